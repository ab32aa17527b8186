/* Tokens of prompts and answers with their ids and probabilities, in the shapes of OpenAI, vLLM and llama.cpp. */
#include "serve/openai_logprobs.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/request.h"

#include <math.h>
#include <stdio.h>

struct probs openai_write_choice_probs(const struct request *a, const struct choice *c)
{
    struct probs p = {(const int32_t *)(const void *)c->ids.data,
                      (const float *)(const void *)c->logprobs.data,
                      (const struct token_prob *)(const void *)c->tops.data,
                      (const uint32_t *)(const void *)c->ranks.data,
                      c->ids.len / sizeof(int32_t),
                      a->echoed ? a->prompts[c->prompt_at].len : 0};
    p.echoed = p.echoed < p.count ? p.echoed : p.count;
    return p;
}

struct probs openai_write_chunk_probs(const struct stream_chunk *n)
{
    return n ? (struct probs){n->ids, n->logprobs, n->top, n->ranks, n->count, n->echoed} : (struct probs){0};
}

struct probs openai_write_answer_probs(const struct request *a, struct probs p)
{
    size_t skip = p.echoed;
    if (skip)
        p = (struct probs){p.ids + skip,
                           p.logprobs ? p.logprobs + skip : NULL,
                           p.tops ? p.tops + skip * a->top_stride : NULL,
                           p.ranks ? p.ranks + skip : NULL,
                           p.count - skip,
                           0};
    return p;
}

/* Room for the name of a token that is written as its id. */
struct token_name {
    char text[24];
};

static const char *openai_write_bytes(const struct request *a, int32_t id, size_t *n)
{
    const struct tokenizer *t = a->model->session->tokenizer;
    *n = 0;
    return id >= 0 && id < tokenizer_vocab(t) ? tokenizer_token_bytes(t, id, n) : "";
}

/* What a token is called: its text, or its id. */
static const char *openai_write_token(const struct request *a, int32_t id, struct token_name *own, size_t *n)
{
    if (!a->ids_as_text)
        return openai_write_bytes(a, id, n);
    *n = (size_t)snprintf(own->text, sizeof own->text, "token_id:%d", id);
    return own->text;
}

static bool openai_write_is_stop(const struct request *a, int32_t id)
{
    bool is = !a->endless && session_ends(a->model->session, id);
    for (size_t i = 0; i < a->stop_ids.len && !a->keep_stop; i++)
        is |= a->stop_ids.data[i] == id;
    return is;
}

/* Tokens that count as text: the one that ends the answer does not. */
static size_t openai_write_count(const struct request *a, const struct probs *p)
{
    return p->count - (p->count > p->echoed && openai_write_is_stop(a, p->ids[p->count - 1]));
}

static void openai_write_chat_token(const struct request *a, struct json *j, int32_t id, float logprob)
{
    struct token_name own;
    size_t n;
    const char *text = openai_write_token(a, id, &own, &n);
    json_key(j, "token");
    json_strn(j, text, n);
    text = openai_write_bytes(a, id, &n);
    json_key(j, "logprob");
    json_f32(j, logprob < -9999 ? -9999 : logprob);
    json_key(j, "bytes");
    json_begin(j, '[');
    for (size_t i = 0; i < n; i++)
        json_int(j, (unsigned char)text[i]);
    json_end(j, ']');
}

typedef void write_token(const struct request *a, struct json *j, int32_t id, float logprob);

/* A list of tokens, each with the best ones at its place. `write` writes the fields of one token. */
static void openai_write_token_list(const struct request *a, struct json *j, const struct probs *p,
                                    write_token *write)
{
    json_begin(j, '[');
    for (size_t i = 0; i < openai_write_count(a, p); i++) {
        const size_t at = i * a->top_stride;
        json_begin(j, '{');
        write(a, j, p->ids[i], p->logprobs[i]);
        json_key(j, "top_logprobs");
        json_begin(j, '[');
        for (uint32_t k = 0; k < a->tops && p->tops[at + k].id >= 0; k++) {
            json_begin(j, '{');
            write(a, j, p->tops[at + k].id, p->tops[at + k].logprob);
            json_end(j, '}');
        }
        json_end(j, ']');
        json_end(j, '}');
    }
    json_end(j, ']');
}

void openai_write_token_probs(const struct request *a, struct json *j, const struct probs *p)
{
    openai_write_token_list(a, j, p, openai_write_chat_token);
}

static void openai_write_chat_probs(const struct request *a, struct json *j, const struct probs *p)
{
    json_begin(j, '{');
    json_key(j, "content");
    openai_write_token_probs(a, j, p);
    json_key(j, "refusal");
    json_nil(j);
    json_end(j, '}');
}

static void openai_write_logprob(struct json *j, float logprob)
{
    if (isnan(logprob)) /* the first token has no probability */
        json_nil(j);
    else
        json_f32(j, logprob);
}

static void openai_write_top(const struct request *a, struct json *j, const struct token_prob *top)
{
    if (top[0].id < 0) {
        json_nil(j);
        return;
    }
    json_begin(j, '{');
    for (uint32_t k = 0; k < a->tops && top[k].id >= 0; k++) {
        struct token_name own;
        size_t n;
        const char *text = openai_write_token(a, top[k].id, &own, &n);
        struct buf name = {0};
        utf8_clean(&name, text, n);
        json_key(j, name.data ? name.data : "");
        json_f32(j, top[k].logprob);
        buf_free(&name);
    }
    json_end(j, '}');
}

static size_t openai_write_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

/* Where the text of each token begins; of a prompt's, in the text that is given back: without control tokens. */
static void openai_write_offsets(const struct request *a, struct json *j, struct choice *c,
                                 const struct probs *p)
{
    struct tok_decoder decoder = {.t = a->model->session->tokenizer, .skip_special = true};
    struct buf piece = {0};
    struct err e = {0};
    json_begin(j, '[');
    for (size_t i = 0, n; i < openai_write_count(a, p); i++) {
        const char *text = openai_write_bytes(a, p->ids[i], &n);
        buf_clear(&piece);
        if (i < p->echoed && !tok_decoder_feed(&decoder, p->ids[i], &piece, &e)) {
            text = piece.data;
            n = piece.len;
        }
        json_uint(j, c->offset);
        c->offset += openai_write_characters(text, n);
    }
    json_end(j, ']');
    buf_free(&piece);
}

/* Completions have four lists in parallel. */
static void openai_write_text_probs(const struct request *a, struct json *j, struct choice *c,
                                    const struct probs *p)
{
    static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs"};
    size_t count = openai_write_count(a, p), n;
    json_begin(j, '{');
    for (int k = 0; k < 3; k++) {
        json_key(j, keys[k]);
        if (k == 2 && !a->tops) {
            json_nil(j);
            continue;
        }
        json_begin(j, '[');
        for (size_t i = 0; i < count; i++) {
            struct token_name own;
            const char *text = openai_write_token(a, p->ids[i], &own, &n);
            if (k == 0)
                json_strn(j, text, n);
            else if (k == 1)
                openai_write_logprob(j, p->logprobs[i]);
            else
                openai_write_top(a, j, p->tops + i * a->top_stride);
        }
        json_end(j, ']');
    }
    json_key(j, "text_offset");
    openai_write_offsets(a, j, c, p);
    json_end(j, '}');
}

void openai_write_probs(struct request *a, struct json *j, struct choice *c, const struct probs *p)
{
    json_key(j, "logprobs");
    if (!a->logprobs || !p)
        json_nil(j);
    else if (a->chat)
        openai_write_chat_probs(a, j, p);
    else
        openai_write_text_probs(a, j, c, p);
}

/* ---- vLLM: ids, and the prompt's probabilities ---- */

void openai_write_ids(struct json *j, const char *key, const int32_t *ids, size_t n)
{
    json_key(j, key);
    json_begin(j, '[');
    for (size_t i = 0; i < n; i++)
        json_int(j, ids[i]);
    json_end(j, ']');
}

static void openai_write_prompt_token(const struct request *a, struct json *j, struct token_prob t,
                                      uint32_t rank)
{
    char key[16];
    size_t n;
    const char *text = openai_write_bytes(a, t.id, &n);
    snprintf(key, sizeof key, "%d", t.id);
    json_key(j, key);
    json_begin(j, '{');
    json_key(j, "logprob");
    json_f32(j, t.logprob);
    json_key(j, "rank");
    json_uint(j, rank);
    json_key(j, "decoded_token");
    json_strn(j, text, n);
    json_end(j, '}');
}

void openai_write_prompt_probs(const struct request *a, const struct choice *c, struct json *j)
{
    const struct probs p = openai_write_choice_probs(a, c);
    json_key(j, "prompt_logprobs");
    if (!a->prompt_probs) {
        json_nil(j);
        return;
    }
    json_begin(j, '[');
    for (size_t i = 0; i < p.echoed; i++) {
        if (!i) { /* the first token has no probability */
            json_nil(j);
            continue;
        }
        json_begin(j, '{');
        openai_write_prompt_token(a, j, (struct token_prob){p.ids[i], p.logprobs[i]}, p.ranks[i]);
        for (uint32_t k = 0; k < a->prompt_tops; k++) {
            struct token_prob top = p.tops[i * a->top_stride + k];
            if (top.id >= 0 && top.id != p.ids[i])
                openai_write_prompt_token(a, j, top, k + 1);
        }
        json_end(j, '}');
    }
    json_end(j, ']');
}

/* ---- llama.cpp: completion_probabilities ---- */

static void openai_write_native_token(const struct request *a, struct json *j, int32_t id, float logprob)
{
    json_key(j, "id");
    json_int(j, id);
    openai_write_chat_token(a, j, id, logprob);
}

void openai_write_native_probs(const struct request *a, struct json *j, const struct probs *p)
{
    json_key(j, "completion_probabilities");
    openai_write_token_list(a, j, p, openai_write_native_token);
}
