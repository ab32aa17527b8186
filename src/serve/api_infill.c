/* llama.cpp's own shape of requests: /completion and /infill, which editors speak. They become a completion of OpenAI's, and
 * their replies are told in their own words. */
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "format/jsonread.h"
#include "lang/chat/fim.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/api.h"
#include "serve/failure.h"
#include "serve/field.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/openai_logprobs.h"
#include "serve/request.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INFILL_FILES = 256, INFILL_FIELDS = 64 };

/* What this API format keeps of a request. */
struct infill {
    json_t *settings; /* the engine's request */
    json_t *fields;   /* the only fields that the reply has; NULL = all */
};

static const struct field infill_fields[] = {
    {"input_prefix", FIELD_TEXT, 0, 0},
    {"input_suffix", FIELD_TEXT, 0, 0},
    {"input_extra", FIELD_LIST, 0, INFILL_FILES},
    {"n_predict", FIELD_INT, -1, OPENAI_TOKENS},
    {"stream", FIELD_BOOL, 0, 0},
    {"n_probs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"response_fields", FIELD_LIST, 0, INFILL_FIELDS},
};

/* The prompt as ids, so that the texts are never parsed for control tokens. */
static json_t *infill_prompt(struct request *a, const json_t *body)
{
    const json_t *extra = json_object_get(body, "input_extra");
    const char *prefix = field_text(body, "input_prefix"), *suffix = field_text(body, "input_suffix");
    struct fim_file files[INFILL_FILES];
    struct fim m = {.prefix = prefix ? prefix : "",
                    .suffix = suffix ? suffix : "",
                    .begun = field_text(body, "prompt"),
                    .files = files,
                    .count = json_array_size(extra)};
    if (m.begun && strlen(m.begun) != json_string_length(json_object_get(body, "prompt"))) {
        request_fail(a, 400, "prompt", "the prompt of an infill cannot hold the character U+0000");
        return NULL;
    }
    for (size_t i = 0; i < m.count; i++) {
        const json_t *one = json_array_get(extra, i);
        files[i] = (struct fim_file){field_text(one, "filename"), field_text(one, "text")};
        const bool named = files[i].name || !json_object_get(one, "filename");
        files[i].name = files[i].name ? files[i].name : "file";
        if (!files[i].text || !named) {
            request_fail(a, 400, "input_extra", "input_extra[%zu] has to be {filename, text}", i);
            return NULL;
        }
    }
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    json_t *list = NULL;
    if (fim_prompt(a->model->session->tokenizer, &m, &ids, &e))
        ids.over ? openai_too_long(a, &ids, "input_prefix")
                 : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "input_suffix", "%s", e.text);
    else
        list = json_array();
    for (size_t i = 0; list && i < ids.len; i++)
        json_array_append_new(list, json_integer(ids.data[i]));
    ids_free(&ids);
    return list;
}

/* n_predict is OpenAI's max_tokens; without it there is no limit. Editors send 0 to warm up the cache: one
 * token is generated then. */
static void infill_ask(struct request *a)
{
    json_t *body = a->json;
    int64_t most = field_int(body, "n_predict", field_int(body, "max_tokens", -1));
    json_object_set_new(body, "max_tokens", json_integer(most ? most : 1));
    json_object_del(body, "n");
    if (field_int(body, "n_probs", 0) > 0)
        json_object_set(body, "logprobs", json_object_get(body, "n_probs"));
    if (field_bool(body, "stream"))
        json_object_set_new(body, "return_tokens", json_true()); /* the events of a stream always have them */
    openai_completion(a);
}

static int infill_check(struct request *a)
{
    struct err e = {0};
    const char *name;
    if (field_check(a->json, infill_fields, sizeof infill_fields / sizeof *infill_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    const json_t *wanted = json_object_get(a->json, "response_fields");
    for (size_t i = 0; i < json_array_size(wanted); i++)
        if (!json_is_string(json_array_get(wanted, i)))
            return request_fail(a, 400, "response_fields", "response_fields[%zu] has to be a text", i);
    return 0;
}

/* ---- /completion: its prompts and biases ---- */

/* A prompt of ids and texts in turn, as one list of ids. NULL and a failure. */
static json_t *completion_mixed(struct request *a, const json_t *parts)
{
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    json_t *list = json_array();
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        if (a->failure.status)
            break;
        ids.len = 0;
        if (json_is_string(part) &&
            tokenizer_encode(a->model->session->tokenizer, json_string_value(part), json_string_length(part),
                             TOK_SPECIAL | (i ? 0 : TOK_ADD), &ids, &e))
            ids.over ? openai_too_long(a, &ids, "prompt")
                     : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "prompt", "%s", e.text);
        else if (!json_is_string(part) && !json_is_number(part))
            request_fail(a, 400, "prompt", "prompt[%zu] has to be a text or a token id", i);
        if (json_is_number(part))
            json_array_append(list, (json_t *)(uintptr_t)part);
        for (size_t k = 0; k < ids.len; k++)
            json_array_append_new(list, json_integer(ids.data[k]));
    }
    ids_free(&ids);
    if (!a->failure.status)
        return list;
    json_decref(list);
    return NULL;
}

static bool completion_has_numbers(const json_t *list)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v) if (json_is_number(v)) return true;
    return false;
}

/* {"prompt_string": text} as the text. NULL and a failure where it holds anything else. */
static json_t *completion_object(struct request *a, const json_t *prompt)
{
    json_t *text = json_object_get(prompt, "prompt_string");
    const json_t *media = json_object_get(prompt, "multimodal_data");
    if (media && !(json_is_array(media) && !json_array_size(media)))
        request_fail(a, 400, "prompt", "multimodal_data is not supported: the models here read text");
    else if (!json_is_string(text))
        request_fail(a, 400, "prompt", "a prompt that is an object has to be {\"prompt_string\": text}");
    return a->failure.status ? NULL : json_incref(text);
}

/* A list with a number in it is one prompt; any other list has a prompt in each place. */
static int completion_prompts(struct request *a)
{
    json_t *prompt = json_object_get(a->json, "prompt"), *one, *made;
    size_t i;
    if (json_is_object(prompt)) {
        made = completion_object(a, prompt);
        return made ? json_object_set_new(a->json, "prompt", made) : -1;
    }
    if (json_is_array(prompt) && completion_has_numbers(prompt)) {
        made = completion_mixed(a, prompt);
        return made ? json_object_set_new(a->json, "prompt", made) : -1;
    }
    json_array_foreach(prompt, i, one)
    {
        if (!json_is_array(one) && !json_is_object(one))
            continue;
        made = json_is_object(one) ? completion_object(a, one) : completion_mixed(a, one);
        if (!made || json_array_set_new(prompt, i, made))
            return -1;
    }
    return 0;
}

/* All tokens of a text, or the one token of a number, get this bias. */
static int completion_bias(struct request *a, const json_t *token, const json_t *value, json_t *to)
{
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    char key[32];
    double bias = json_is_false(value) ? -100 : json_number_value(value);
    int64_t id;
    if (!json_is_false(value) && !json_is_number(value))
        return request_fail(a, 400, "logit_bias", "a bias of logit_bias has to be a number, or false");
    bool known = json_is_string(token)
                     ? !tokenizer_encode(a->model->session->tokenizer, json_string_value(token),
                                         json_string_length(token), TOK_SPECIAL, &ids, &e)
                     : field_whole(token, 0, a->model->session->model->plan.out_width - 1, &id) &&
                           !ids_add(&ids, (int32_t)id, &e);
    bias = bias < -100 ? -100 : bias > 100 ? 100 : bias;
    for (size_t i = 0; i < ids.len; i++) {
        snprintf(key, sizeof key, "%d", (int)ids.data[i]);
        json_object_set_new(to, key, json_real(bias));
    }
    ids_free(&ids);
    return known ? 0 : request_fail(a, 400, "logit_bias", "logit_bias has to name tokens by id or by text");
}

/* [[id or text, bias or false], ...], or {"id or text": bias}: as {"id": bias}. */
static int completion_biases(struct request *a)
{
    json_t *all = json_object_get(a->json, "logit_bias"), *made = json_object(), *v;
    const char *name;
    size_t i;
    int failed = 0;
    json_array_foreach(all, i, v)
    {
        if (json_array_size(v) != 2)
            failed = request_fail(a, 400, "logit_bias", "logit_bias[%zu] has to be [token, bias]", i);
        failed = failed || completion_bias(a, json_array_get(v, 0), json_array_get(v, 1), made);
    }
    json_object_foreach(all, name, v)
    {
        int64_t id;
        bool number = num_i64(name, strlen(name), 0, INT32_MAX, &id);
        json_t *token = number ? json_integer(id) : json_string(name);
        failed = failed || completion_bias(a, token, v, made);
        json_decref(token);
    }
    if (!failed && (json_is_array(all) || json_is_object(all)))
        json_object_set(a->json, "logit_bias", made);
    json_decref(made);
    return failed;
}

void api_infill(struct request *a)
{
    json_t *prompt = infill_check(a) || completion_biases(a) ? NULL : infill_prompt(a, a->json);
    if (prompt && !json_object_set_new(a->json, "prompt", prompt))
        infill_ask(a);
}

void api_completion(struct request *a)
{
    if (!infill_check(a) && !completion_prompts(a) && !completion_biases(a))
        infill_ask(a);
}

/* ---- replies ---- */

static json_t *infill_settings(const struct request *a, const struct engine_request *r)
{
    const int64_t most = r->prompt_only ? 0 : r->most ? (int64_t)r->most : -1;
    json_t *all = json_pack("{s:I,s:I,s:I,s:I,s:b,s:b,s:I}", "n_ctx",
                            (json_int_t)a->model->session->runner->ctx, "n_predict", (json_int_t)most,
                            "max_tokens", (json_int_t)most, "seed", (json_int_t)r->sampler.seed, "ignore_eos",
                            r->ignore_eog, "stream", a->stream, "n_probs", (json_int_t)a->tops);
    json_t *stops = json_array(), *biases = json_array();
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        double value = *(const double *)(const void *)((const char *)&r->sampler + f->offset);
        json_object_set_new(all, f->name, f->whole ? json_integer((json_int_t)value) : json_real(value));
    }
    for (size_t i = 0; i < r->stops; i++)
        json_array_append_new(stops, json_string(r->stop_strings[i]));
    for (size_t i = 0; i < r->sampler.biases; i++) { /* null: it never comes */
        const struct logit_bias *b = &r->sampler.bias[i];
        json_t *bias = isinf(b->bias) ? json_null() : json_real((double)b->bias);
        json_array_append_new(biases, json_pack("{s:i,s:o}", "token", (int)b->id, "bias", bias));
    }
    json_object_set_new(all, "stop", stops);
    json_object_set_new(all, "logit_bias", biases);
    return all;
}

static int infill_asked(struct request *a, const struct engine_request *r)
{
    json_t *fields = json_object_get(a->json, "response_fields");
    struct infill *own = a->format_state = mem_zalloc(1, sizeof *own);
    if (!own || !(own->settings = infill_settings(a, r)))
        return request_fail(a, 503, NULL, "out of memory");
    own->fields = json_array_size(fields) ? json_incref(fields) : NULL;
    return 0;
}

static void infill_forget(void *arg)
{
    struct infill *own = arg;
    if (own) {
        json_decref(own->settings);
        json_decref(own->fields);
    }
    mem_free(own);
}

/* Only the requested fields; "a/b" is b of a, under the whole name. */
static void infill_pick(const json_t *fields, const struct buf *whole, struct buf *out)
{
    json_t *all = json_loadb(whole->data, whole->len, 0, NULL), *picked = json_object();
    for (size_t i = 0; i < json_array_size(fields); i++) {
        const char *name = json_string_value(json_array_get(fields, i)), *slash = strchr(name, '/');
        json_t *found =
            slash ? json_object_getn(all, name, (size_t)(slash - name)) : json_object_get(all, name);
        found = slash ? json_object_get(found, slash + 1) : found;
        if (found)
            json_object_set(picked, name, found);
    }
    message_json(out, picked);
    json_decref(all);
}

/* Why it ended: by a stop string, which is returned, by the length, or by an end token. */
static void infill_stop(const struct request *a, const struct choice *c, struct json *j)
{
    uint32_t at = c->end.stopped;
    const char *word =
        json_string_value(json_is_array(a->stops) ? json_array_get(a->stops, at - 1) : a->stops);
    json_key(j, "stop_type");
    json_str(j, at ? "word" : c->end.finish == FINISH_LENGTH ? "limit" : "eos");
    json_key(j, "stopping_word");
    json_str(j, at && word ? word : "");
}

static void infill_prompt_text(const struct request *a, const struct choice *c, struct json *j)
{
    const struct ids *ids = &a->prompts[c->prompt_at];
    struct buf text = {0};
    struct err e = {0};
    json_key(j, "prompt");
    if (tokenizer_decode(a->model->session->tokenizer, ids->data, ids->len, false, &text, &e))
        j->out->failed = true;
    json_strn(j, text.data ? text.data : "", text.len);
    buf_free(&text);
}

/* chunk: the tokens of a piece; NULL where the answer has stopped: all of them. */
static void infill_object(struct request *a, struct choice *c, const char *text, size_t n, bool stop,
                          const struct stream_chunk *chunk, struct buf *out)
{
    const struct infill *own = a->format_state;
    const struct buf *all = &c->message.text;
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "index");
    json_int(&j, c - a->choices);
    json_key(&j, "content");
    json_strn(&j, text, n);
    json_key(&j, "stop");
    json_bool(&j, stop);
    json_key(&j, "id_slot");
    json_int(&j, c - a->choices);
    json_key(&j, "tokens_predicted");
    json_uint(&j, c->made);
    json_key(&j, "tokens_evaluated");
    json_uint(&j, a->prompts[c->prompt_at].len);
    const struct probs p = openai_write_answer_probs(a, stop ? openai_write_choice_probs(a, c)
                                                             : openai_write_chunk_probs(chunk));
    openai_write_ids(&j, "tokens", p.ids, a->token_ids && !(stop && a->stream) ? p.count : 0);
    if (a->logprobs && !(stop && a->stream))
        openai_write_native_probs(a, &j, &p);
    if (stop) {
        json_key(&j, "model");
        json_str(&j, a->called);
        infill_prompt_text(a, c, &j);
        json_key(&j, "has_new_line");
        json_bool(&j, all->len && memchr(all->data, '\n', all->len));
        json_key(&j, "truncated");
        json_bool(&j, c->end.context_full);
        json_key(&j, "generation_settings");
        jsonread_write(&j, own->settings);
        infill_stop(a, c, &j);
        json_key(&j, "tokens_cached");
        json_uint(&j, c->end.cached);
        openai_write_timings(a, &j);
    }
    json_end(&j, '}');
}

static void infill_piece(struct request *a, struct choice *c, const char *text, size_t n, bool stop,
                         const struct stream_chunk *chunk, struct buf *out)
{
    const struct infill *own = a->format_state;
    struct buf whole = {0};
    if (!stop || !own->fields) {
        infill_object(a, c, text, n, stop, chunk, out);
        return;
    }
    infill_object(a, c, text, n, stop, chunk, &whole);
    infill_pick(own->fields, &whole, out);
    out->failed |= whole.failed;
    buf_free(&whole);
}

static void infill_event(struct request *a, struct choice *c, const char *text, size_t n, bool stop,
                         const struct stream_chunk *chunk, struct buf *out)
{
    buf_str(out, "data: ");
    infill_piece(a, c, text, n, stop, chunk, out);
    buf_str(out, "\n\n");
}

static void infill_stream_piece(struct request *a, struct choice *c, const struct output_piece *p,
                                const struct stream_chunk *chunk, struct buf *out)
{
    infill_event(a, c, p->text, p->n, false, chunk, out);
}

static void infill_end(struct request *a, struct choice *c, struct buf *out)
{
    infill_event(a, c, "", 0, true, NULL, out);
}

/* One prompt gets an object, several a list. */
static void infill_whole(struct request *a, struct buf *out)
{
    if (a->count > 1)
        buf_char(out, '[');
    for (uint32_t i = 0; i < a->count; i++) {
        struct choice *c = &a->choices[i];
        if (i)
            buf_char(out, ',');
        infill_piece(a, c, c->message.text.data ? c->message.text.data : "", c->message.text.len, true, NULL,
                     out);
    }
    if (a->count > 1)
        buf_char(out, ']');
}

static void infill_error(const struct failure *f, struct buf *out)
{
    openai_api.error(f, out);
}

static void infill_broken(const struct failure *f, struct buf *out)
{
    buf_str(out, "data: ");
    infill_error(f, out);
    buf_str(out, "\n\n");
}

const struct api_format infill_api = {
    .type = "text/event-stream",
    .alive = ":\n\n",
    .piece = infill_stream_piece,
    .end = infill_end,
    .whole = infill_whole,
    .error = infill_error,
    .broken = infill_broken,
    .asked = infill_asked,
    .forget = infill_forget,
};
