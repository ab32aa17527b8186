#include "serve/vectors.h"
#include "base/json.h"
#include "base/mem.h"
#include "run/embed.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/worker.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct vectors *vectors_new(struct request *a, size_t most, bool scored)
{
    struct vectors *v = mem_zalloc(1, sizeof *v);
    const struct pooler *p = embedder_pooler(a->model->embedder);
    size_t width = scored ? p->width : p->out_width;
    a->vectors = v;
    if (v) {
        v->width = width;
        v->scored = scored;
        v->texts = mem_zalloc(most, sizeof *v->texts);
        v->out = mem_alloc(most, width * sizeof *v->out);
    }
    if (v && v->texts && v->out)
        return v;
    request_fail(a, 503, NULL, "out of memory");
    return NULL;
}

void vectors_free(struct vectors *v)
{
    if (!v)
        return;
    for (size_t i = 0; i < v->count; i++)
        ids_free(&v->texts[i]);
    mem_free(v->texts);
    mem_free(v->out);
    mem_free(v);
}

static int vectors_add_prompted(struct request *a, const char *prompt, const char *text, size_t n,
                                const char *param)
{
    struct vectors *v = a->vectors;
    struct err e = {0};
    if (!a->model->session->tokenizer)
        return request_fail(a, 400, param, "this model has no tokenizer: give ids");
    struct ids *out = &v->texts[v->count++];
    out->most = v->cut ? 0 : openai_count_most(a);
    if (embed_encode(a->model->session, prompt, text, n, out, &e))
        return out->over ? openai_too_long(a, out, param)
                         : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, param, "%s", e.text);
    return 0;
}

int vectors_add_text(struct request *a, const char *text, size_t n, const char *param)
{
    const char *name = field_text(a->json, "prompt_name");
    const char *prompt = pooler_prompt(embedder_pooler(a->model->embedder), name);
    if (!prompt)
        return request_fail(a, 400, "prompt_name", "the model's files have no prompt of this name");
    return vectors_add_prompted(a, prompt, text, n, param);
}

int vectors_add_role(struct request *a, const char *text, bool query, const char *param)
{
    return vectors_add_prompted(a, pooler_role(embedder_pooler(a->model->embedder), query), text,
                                strlen(text), param);
}

int vectors_add_pair(struct request *a, const char *first, const char *second, const char *param)
{
    struct vectors *v = a->vectors;
    const struct session *l = a->model->session;
    struct ids *out = &v->texts[v->count++];
    struct err e = {0};
    const struct rerank_pair pair = {first, second, field_text(a->json, "instruction")};
    if (!l->tokenizer)
        return request_fail(a, 400, param, "this model has no tokenizer, which reranking needs");
    out->most = v->cut ? 0 : openai_count_most(a);
    int failed = rerank_encode(embedder_head(a->model->embedder), l, &pair, out, &e);
    if (out->over)
        return openai_too_long(a, &(struct ids){.over = true, .most = openai_count_most(a)}, param);
    return failed ? request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, param, "%s", e.text) : 0;
}

static int vectors_add_ids(struct request *a, const json_t *list, const char *param)
{
    struct vectors *v = a->vectors;
    int64_t vocab = a->model->session->model->h.vocab;
    struct ids *out = &v->texts[v->count++];
    struct err e = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        if (!field_whole(json_array_get(list, i), 0, vocab - 1, &id))
            return request_fail(a, 400, param, "token %zu of %s has to be an id below %lld", i, param,
                                (long long)vocab);
        if (ids_add(out, (int32_t)id, &e))
            return request_fail(a, 503, NULL, "%s", e.text);
    }
    return 0;
}

static int vectors_add(struct request *a, const json_t *one, const char *param)
{
    if (json_is_string(one))
        return vectors_add_text(a, json_string_value(one), json_string_length(one), param);
    if (json_is_array(one))
        return vectors_add_ids(a, one, param);
    return request_fail(a, 400, param, "%s has to be a text, a list of texts, ids, or lists of ids", param);
}

/* Cuts what does not fit; the token that ends a text stays. */
static void vectors_cut(struct request *a)
{
    uint32_t ctx = a->model->session->runner->ctx;
    const struct tokenizer *t = a->model->session->tokenizer;
    for (size_t i = 0; i < a->vectors->count; i++) {
        struct ids *ids = &a->vectors->texts[i];
        if (ids->len <= ctx)
            continue;
        if (t && tokenizer_adds_eos(t))
            ids->data[ctx - 1] = ids->data[ids->len - 1];
        ids->len = ctx;
    }
}

int vectors_read(struct request *a, const json_t *input, const char *param, bool cut)
{
    bool many = json_is_array(input) && !json_is_number(json_array_get(input, 0));
    size_t n = many ? json_array_size(input) : 1;
    if (!input)
        return request_fail(a, 400, param, "%s is missing", param);
    if (!n || n > VECTORS_TEXTS)
        return request_fail(a, 400, param, "%s is %zu items long; it has to be from 1 to %d", param, n,
                            VECTORS_TEXTS);
    if (!vectors_new(a, n, false))
        return -1;
    a->vectors->cut = cut;
    for (size_t i = 0; i < n; i++)
        if (vectors_add(a, many ? json_array_get(input, i) : input, param))
            return -1;
    if (cut)
        vectors_cut(a);
    return 0;
}

int vectors_check_width(struct request *a, const json_t *body)
{
    int64_t width = embedder_pooler(a->model->embedder)->out_width;
    if (field_int(body, "dimensions", 1) > width)
        return request_fail(a, 400, "dimensions", "dimensions has to be from 1 to %lld, which this model has",
                            (long long)width);
    return 0;
}

size_t vectors_narrow(struct request *a, const json_t *body)
{
    const struct vectors *v = a->vectors;
    size_t n = (size_t)field_int(body, "dimensions", (int64_t)v->width);
    struct err ignored = {0};
    for (size_t i = 0; n < v->width && i < v->count; i++)
        pooler_scale(v->out + i * v->width, n, &ignored);
    return n;
}

static void vectors_ready(void *request)
{
    worker_again(request);
}

void vectors_submit(struct request *a, const char *param)
{
    struct vectors *v = a->vectors;
    uint32_t ctx = a->model->session->runner->ctx;
    struct err e = {0};
    bool too_long = false;
    for (size_t i = 0; i < v->count; i++) {
        v->tokens += v->texts[i].len;
        too_long |= v->texts[i].len > ctx;
    }
    v->job = (struct embed_job){.texts = v->texts,
                                .count = v->count,
                                .out = v->out,
                                .scored = v->scored,
                                .batch = a->batch,
                                .cancel = &a->gone,
                                .done = vectors_ready,
                                .arg = a};
    a->waits = true;
    a->stage++;
    if (!embedder_submit(a->model->embedder, &v->job, &e))
        return;
    a->waits = false;
    request_fail(a, e.code == ERR_USAGE ? 400 : 503, param, "%s", e.text);
    if (too_long)
        a->failure.code = "context_length_exceeded";
}

bool vectors_done(struct request *a)
{
    const struct err *e = &a->vectors->job.err;
    if (e->code)
        request_fail(a, e->code == ERR_INTERRUPTED ? 503 : 500, NULL, "the vectors failed: %s", e->text);
    return !e->code;
}

void vectors_usage(const struct request *a, struct json *j)
{
    json_key(j, "model");
    json_str(j, a->called);
    json_key(j, "usage");
    json_begin(j, '{');
    json_key(j, "prompt_tokens");
    json_uint(j, a->vectors->tokens);
    json_key(j, "total_tokens");
    json_uint(j, a->vectors->tokens);
    json_end(j, '}');
}
