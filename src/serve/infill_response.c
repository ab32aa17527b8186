/* The replies of llama.cpp's /completion and /infill: one object, or events of the same shape. */
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/jsonread.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/openai_logprobs.h"
#include "serve/request.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What this API format keeps of a request. */
struct infill {
    json_t *settings; /* the engine's request */
    json_t *fields;   /* the only fields that the reply has; NULL = all */
};

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
