/* Fields of a request that name tokens: which are allowed, which end the answer, which are returned. The
 * formats are those of vLLM and llama.cpp. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const struct field token_fields[] = {
    {"min_tokens", FIELD_INT, 0, OPENAI_TOKENS},
    {"stop_token_ids", FIELD_LIST, 0, OPENAI_BIASES},
    {"allowed_token_ids", FIELD_LIST, 1, 1 << 20},
    {"bad_words", FIELD_LIST, 0, OPENAI_WORDS},
    {"include_stop_str_in_output", FIELD_BOOL, 0, 0},
    {"skip_special_tokens", FIELD_BOOL, 0, 0},
    {"add_special_tokens", FIELD_BOOL, 0, 0},
    {"return_token_ids", FIELD_BOOL, 0, 0},
    {"return_tokens_as_token_ids", FIELD_BOOL, 0, 0},
    {"prompt_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"truncate_prompt_tokens", FIELD_INT | FIELD_NO_LIMIT, 1, OPENAI_TOKENS},
    {"t_max_predict_ms", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"cache_salt", FIELD_TEXT, 0, 0},
};

static int tokens_memory(struct request *a)
{
    return request_fail(a, 503, NULL, "out of memory");
}

static int tokens_ids(struct request *a, const json_t *list, const char *name, struct ids *out)
{
    const int64_t vocab = a->model->session->model->plan.out_width;
    struct err e = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        if (!field_whole(json_array_get(list, i), 0, vocab - 1, &id))
            return request_fail(a, 400, name, "%s[%zu] has to be a token id below %lld", name, i,
                                (long long)vocab);
        if (ids_add(out, (int32_t)id, &e))
            return tokens_memory(a);
    }
    return 0;
}

/* One way to write a word, behind a space or not; the second only where it is another first token of as many. */
static int tokens_spell(struct request *a, const json_t *word, bool spaced, struct ids *out)
{
    const char *text = json_string_value(word);
    size_t before = out->len, first = before;
    struct buf spelled = {0};
    struct err e = {0};
    while (*text == ' ' || *text == '\n' || *text == '\t')
        text++;
    buf_printf(&spelled, "%s%s", spaced ? " " : "", text);
    int failed = spelled.failed ||
                 tokenizer_encode(a->model->session->tokenizer, spelled.data, spelled.len, 0, out, &e) ||
                 ids_add(out, -1, &e);
    buf_free(&spelled);
    if (failed)
        return tokens_memory(a);
    if (!spaced)
        return 0;
    while (first > 1 && out->data[first - 2] >= 0)
        first--;
    first -= first > 0; /* where the word without a space begins */
    if (out->data[first] == out->data[before] || before - first != out->len - before)
        out->len = before;
    return 0;
}

static int tokens_bad_words(struct request *a, const json_t *words, struct ids *out)
{
    for (size_t i = 0; i < json_array_size(words); i++) {
        const json_t *word = json_array_get(words, i);
        const char *text = json_string_value(word);
        if (!text || !text[strspn(text, " \n\t")])
            return request_fail(a, 400, "bad_words", "bad_words[%zu] has to be a text that is not empty", i);
        if (tokens_spell(a, word, false, out) || tokens_spell(a, word, true, out))
            return -1;
    }
    return 0;
}

static bool tokens_has(const struct ids *ids, int32_t id)
{
    bool has = false;
    for (size_t i = 0; i < ids->len; i++)
        has |= ids->data[i] == id;
    return has;
}

/* Whether this token can be sampled at all under the request's other fields. */
static bool tokens_usable(const struct request *a, const struct request_draft *q, int32_t id)
{
    const struct sampler_params *p = &q->request.sampler;
    const struct ids *bad = &q->bad_words;
    bool ends = tokens_has(&a->stop_ids, id) || (!a->endless && session_ends(a->model->session, id));
    for (size_t i = 0; i < p->biases; i++)
        if (p->bias[i].id == id && isinf(p->bias[i].bias))
            return false;
    for (size_t i = 0; i + 1 < bad->len; i++)
        if ((!i || bad->data[i - 1] < 0) && bad->data[i] == id && bad->data[i + 1] < 0)
            return false;
    return !(ends && q->request.tokens.least);
}

static int tokens_allowed(struct request *a, const struct request_draft *q)
{
    bool usable = !q->allowed.len;
    for (size_t i = 0; i < q->allowed.len && !usable; i++)
        usable = tokens_usable(a, q, q->allowed.data[i]);
    return usable ? 0
                  : request_fail(a, 400, "allowed_token_ids",
                                 "allowed_token_ids leaves no token: logit_bias, bad_words or min_tokens "
                                 "exclude all of them");
}

/* What is given back beside the text. */
static int tokens_written(struct request *a, struct request_draft *q)
{
    struct engine_request *r = &q->request;
    a->token_ids = field_bool(q->body, "return_token_ids") || field_bool(q->body, "return_tokens");
    a->ids_as_text = field_bool(q->body, "return_tokens_as_token_ids");
    a->prompt_probs = json_object_get(q->body, "prompt_logprobs") != NULL;
    a->prompt_tops = (uint32_t)field_int(q->body, "prompt_logprobs", 0);
    if (a->prompt_probs && a->stream)
        return request_fail(a, 400, "prompt_logprobs",
                            "prompt_logprobs cannot be streamed: set stream to false");
    if (a->prompt_probs) {
        r->echo = r->logprobs = r->ranks = true;
        r->top_logprobs = a->prompt_tops > a->tops ? a->prompt_tops : a->tops;
    }
    a->top_stride = r->top_logprobs;
    a->echoed = r->echo;
    return 0;
}

int openai_tokens(struct request *a, struct request_draft *q)
{
    struct engine_request *r = &q->request;
    const int64_t least = field_int(q->body, "min_tokens", 0), ms = field_int(q->body, "t_max_predict_ms", 0);
    struct err e = {0};
    const char *name, *salt = field_text(q->body, "cache_salt");
    if (field_check(q->body, token_fields, sizeof token_fields / sizeof *token_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    if (a->chat && field_bool(q->body, "add_special_tokens"))
        return request_fail(
            a, 400, "add_special_tokens",
            "add_special_tokens cannot be true in a chat: the template writes the special tokens itself");
    if (r->most && least > r->most)
        return request_fail(a, 400, "min_tokens",
                            "min_tokens is %lld; it has to be at most max_tokens, which is %u",
                            (long long)least, r->most);
    if (tokens_ids(a, json_object_get(q->body, "stop_token_ids"), "stop_token_ids", &a->stop_ids) ||
        tokens_ids(a, json_object_get(q->body, "allowed_token_ids"), "allowed_token_ids", &q->allowed) ||
        tokens_bad_words(a, json_object_get(q->body, "bad_words"), &q->bad_words) || tokens_written(a, q))
        return -1;
    a->keep_stop = r->keep_stop = field_bool(q->body, "include_stop_str_in_output");
    r->show_special |= json_is_false(json_object_get(q->body, "skip_special_tokens"));
    r->write_seconds = ms > 0 ? 1e-3 * (double)ms : 0;
    r->tokens = (struct token_rules){.least = least > UINT32_MAX ? UINT32_MAX : (uint32_t)least,
                                     .stops = a->stop_ids.data,
                                     .stop_count = a->stop_ids.len,
                                     .allowed = q->allowed.data,
                                     .allowed_count = q->allowed.len,
                                     .banned = q->bad_words.data,
                                     .banned_count = q->bad_words.len};
    if (salt) {
        struct digest d = {.lo = r->salt};
        digest_add(&d, salt, strlen(salt));
        r->salt = d.lo;
    }
    return tokens_allowed(a, q);
}

int openai_truncate(struct request *a, struct request_draft *q)
{
    const uint32_t ctx = a->model->session->runner->ctx;
    int64_t most = field_int(q->body, "truncate_prompt_tokens", 0);
    most = most < 0 ? (int64_t)ctx - 1 : most;
    for (uint32_t i = 0; i < a->prompt_count && most; i++) {
        struct ids *p = &a->prompts[i];
        if (p->len <= (size_t)most)
            continue;
        if (a->images[i].count)
            return request_fail(a, 400, "truncate_prompt_tokens", "a prompt with images cannot be truncated");
        memmove(p->data, p->data + p->len - (size_t)most, (size_t)most * sizeof *p->data);
        p->len = (size_t)most;
    }
    return 0;
}

int openai_together(struct request *a, const struct request_draft *q)
{
    if (q->constraint && q->allowed.len)
        return request_fail(
            a, 400, "allowed_token_ids",
            "allowed_token_ids does not go together with tools or with a format that the answer has to have");
    return 0;
}
