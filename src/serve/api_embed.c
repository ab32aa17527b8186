/* OpenAI's /v1/embeddings, and /v1/rerank. Runs on a worker. */
#include "base/base64.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "run/embed.h"
#include "serve/api.h"
#include "serve/field.h"
#include "serve/request.h"
#include "serve/vectors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- embeddings ---- */

static const struct field embed_fields[] = {
    {"input", FIELD_TEXT | FIELD_LIST, 1, 1e6},
    {"dimensions", FIELD_INT, 1, 1 << 24},
    {"encoding_format", FIELD_TEXT, 0, 0},
    {"prompt_name", FIELD_TEXT, 0, 0},
};

/* Little-endian floats: x86-64 has them in that order. */
static void embed_write(struct json *j, const float *vector, size_t n, bool base64)
{
    if (base64) {
        struct buf text = {0};
        base64_add(&text, (const uint8_t *)vector, n * sizeof *vector);
        json_strn(j, text.data ? text.data : "", text.len);
        j->out->failed |= text.failed;
        buf_free(&text);
        return;
    }
    json_begin(j, '[');
    for (size_t i = 0; i < n; i++)
        json_f32(j, vector[i]);
    json_end(j, ']');
}

static void embed_reply(struct request *a, const json_t *body)
{
    struct vectors *v = a->vectors;
    const char *format = field_text(body, "encoding_format");
    bool base64 = format && !strcmp(format, "base64");
    size_t n = vectors_narrow(a, body);
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "object");
    json_str(&j, "list");
    json_key(&j, "data");
    json_begin(&j, '[');
    for (size_t i = 0; i < v->count; i++) {
        const float *vector = v->out + i * v->width;
        json_begin(&j, '{');
        json_key(&j, "object");
        json_str(&j, "embedding");
        json_key(&j, "index");
        json_uint(&j, i);
        json_key(&j, "embedding");
        embed_write(&j, vector, n, base64);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    vectors_usage(a, &j);
    json_end(&j, '}');
}

static int embed_check(struct request *a, const json_t *body)
{
    struct err e = {0};
    const char *name, *format = field_text(body, "encoding_format");
    if (field_check(body, embed_fields, sizeof embed_fields / sizeof *embed_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    if (format && strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
        return request_fail(a, 400, "encoding_format", "encoding_format has to be 'float' or 'base64'");
    return vectors_check_width(a, body);
}

void api_embeddings(struct request *a)
{
    const json_t *body = a->json;
    if (a->stage) {
        if (vectors_done(a))
            embed_reply(a, body);
    } else if (!embed_check(a, body) && !vectors_read(a, json_object_get(body, "input"), "input", false))
        vectors_submit(a, "input");
}

/* llama.cpp's own format: {content, or input}; a list of rows for each text. */
void api_embedding(struct request *a)
{
    const json_t *body = a->json, *content = json_object_get(body, "content");
    const char *param = content ? "content" : "input";
    const struct vectors *v = a->vectors;
    struct json j = {.out = &a->reply};
    if (!a->stage) {
        if (field_int(body, "embd_normalize", 2) != 2)
            request_fail(a, 400, "embd_normalize", "embd_normalize has to be 2: vectors have length 1 here");
        else if (!vectors_read(a, content ? content : json_object_get(body, "input"), param, false))
            vectors_submit(a, param);
        return;
    }
    if (!vectors_done(a))
        return;
    json_begin(&j, '[');
    for (size_t i = 0; i < v->count; i++) {
        json_begin(&j, '{');
        json_key(&j, "index");
        json_uint(&j, i);
        json_key(&j, "embedding");
        json_begin(&j, '[');
        embed_write(&j, v->out + i * v->width, v->width, false);
        json_end(&j, ']');
        json_end(&j, '}');
    }
    json_end(&j, ']');
}

/* ---- rerank ---- A cross-encoder reads the query and a document as one text, and its head scores the match.
 * For any other model the score is the cosine of the two vectors. */

static const struct field rerank_fields[] = {
    {"query", FIELD_TEXT, 0, 0},
    {"instruction", FIELD_TEXT, 0, 0},
    {"documents", FIELD_LIST, 1, VECTORS_TEXTS - 1},
    {"texts", FIELD_LIST, 1, VECTORS_TEXTS - 1},
    {"top_n", FIELD_INT, 1, 1 << 24},
    {"return_documents", FIELD_BOOL, 0, 0},
    {"return_text", FIELD_BOOL, 0, 0},
};

struct ranked {
    size_t index;
    double score;
};

/* Clients of text-embeddings-inference send `texts`, and get its format of reply. */
static const json_t *rerank_documents(const json_t *body, bool *tei)
{
    const json_t *documents = json_object_get(body, "documents");
    *tei = !documents && json_object_get(body, "texts");
    return *tei ? json_object_get(body, "texts") : documents;
}

static const char *rerank_text(const json_t *document)
{
    return json_is_string(document) ? json_string_value(document) : field_text(document, "text");
}

static const struct rerank_head *rerank_head(const struct request *a)
{
    return embedder_head(a->model->embedder);
}

static int rerank_add(struct request *a, const char *query, const char *text)
{
    return rerank_head(a) ? vectors_add_pair(a, query, text, "documents")
                          : vectors_add_role(a, text, false, "documents");
}

static int rerank_read(struct request *a, const json_t *body)
{
    struct err e = {0};
    const char *name, *query = field_text(body, "query");
    bool tei;
    const json_t *documents = rerank_documents(body, &tei);
    if (field_check(body, rerank_fields, sizeof rerank_fields / sizeof *rerank_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    if (!query)
        return request_fail(a, 400, "query", "query is missing");
    if (!documents)
        return request_fail(a, 400, "documents", "documents is missing");
    if (!vectors_new(a, json_array_size(documents) + 1, rerank_head(a)) ||
        (!rerank_head(a) && vectors_add_role(a, query, true, "query")))
        return -1;
    for (size_t i = 0; i < json_array_size(documents); i++) {
        const char *text = rerank_text(json_array_get(documents, i));
        if (!text)
            return request_fail(a, 400, "documents", "documents[%zu] has to be a text, or an object with one",
                                i);
        if (rerank_add(a, query, text))
            return -1;
    }
    return 0;
}

static int rerank_order(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->index > y->index) - (x->index < y->index);
}

/* The score of document i. Without a head, vector 0 is the query's. */
static double rerank_document_score(const struct request *a, size_t i)
{
    const struct vectors *v = a->vectors;
    double score = 0;
    if (rerank_head(a))
        return rerank_score(rerank_head(a), v->out + i * v->width);
    for (size_t k = 0; k < v->width; k++)
        score += (double)v->out[k] * v->out[(i + 1) * v->width + k];
    return score;
}

static void rerank_result(struct json *j, const struct ranked *r, const char *text, bool tei)
{
    json_begin(j, '{');
    json_key(j, "index");
    json_uint(j, r->index);
    json_key(j, tei ? "score" : "relevance_score");
    json_num(j, r->score);
    if (text) {
        json_key(j, tei ? "text" : "document");
        if (!tei) {
            json_begin(j, '{');
            json_key(j, "text");
        }
        json_str(j, text);
        if (!tei)
            json_end(j, '}');
    }
    json_end(j, '}');
}

static void rerank_reply(struct request *a, const json_t *body)
{
    bool tei;
    const json_t *documents = rerank_documents(body, &tei);
    size_t n = json_array_size(documents), top = (size_t)field_int(body, "top_n", (int64_t)n);
    struct ranked *all = mem_alloc(n, sizeof *all);
    struct json j = {.out = &a->reply};
    bool with_text = field_bool(body, tei ? "return_text" : "return_documents");
    if (!all) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++)
        all[i] = (struct ranked){.index = i, .score = rerank_document_score(a, i)};
    qsort(all, n, sizeof *all, rerank_order);
    if (!tei) {
        json_begin(&j, '{');
        json_key(&j, "object");
        json_str(&j, "list");
        json_key(&j, "results");
    }
    json_begin(&j, '[');
    for (size_t i = 0; i < n && i < top; i++)
        rerank_result(&j, &all[i], with_text ? rerank_text(json_array_get(documents, all[i].index)) : NULL,
                      tei);
    json_end(&j, ']');
    if (!tei) {
        vectors_usage(a, &j);
        json_end(&j, '}');
    }
    mem_free(all);
}

void api_rerank(struct request *a)
{
    if (a->stage) {
        if (vectors_done(a))
            rerank_reply(a, a->json);
    } else if (!rerank_read(a, a->json))
        vectors_submit(a, "documents");
}
