/* What the client reads: chunks, whole answers, errors, as OpenAI's clients expect them. */
#include "base/buf.h"
#include "base/json.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/openai_logprobs.h"
#include "serve/request.h"
#include "serve/route.h"

#include <stdio.h>

/* ---- the head of every reply ---- */

static void openai_write_begin(const struct request *a, struct json *j, bool chunk)
{
    json_begin(j, '{');
    json_key(j, "id");
    char id[sizeof a->id + 16];
    snprintf(id, sizeof id, "%s-%s", a->chat ? "chatcmpl" : "cmpl", a->id);
    json_str(j, id);
    json_key(j, "object");
    json_str(j, !a->chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
    json_key(j, "created");
    json_int(j, a->created);
    json_key(j, "model");
    json_str(j, a->called);
    json_key(j, "system_fingerprint");
    json_str(j, "build-" QUERN_VERSION);
    json_key(j, "choices");
    json_begin(j, '[');
}

static void openai_write_usage(const struct request *a, struct json *j)
{
    struct usage u = request_usage(a);
    json_key(j, "usage");
    json_begin(j, '{');
    json_key(j, "prompt_tokens");
    json_uint(j, u.prompt);
    json_key(j, "completion_tokens");
    json_uint(j, u.made);
    json_key(j, "total_tokens");
    json_uint(j, u.prompt + u.made);
    json_key(j, "prompt_tokens_details");
    json_begin(j, '{');
    json_key(j, "cached_tokens");
    json_uint(j, u.cached);
    json_end(j, '}');
    json_key(j, "completion_tokens_details");
    json_begin(j, '{');
    json_key(j, "reasoning_tokens");
    json_uint(j, u.thought);
    json_end(j, '}');
    json_end(j, '}');
}

/* Of the first choice. */
void openai_write_timings(const struct request *a, struct json *j)
{
    const struct choice *c = &a->choices[0];
    double n = (double)a->prompts[0].len - c->end.cached, made = c->made;
    double reading = c->end.first_seconds - c->end.queued_seconds,
           writing = c->end.seconds - c->end.first_seconds;
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"queued_ms", 1e3 * c->end.queued_seconds},
        {"cache_n", c->end.cached},
        {"prompt_n", n},
        {"prompt_ms", 1e3 * reading},
        {"prompt_per_token_ms", n > 0 ? 1e3 * reading / n : 0},
        {"prompt_per_second", reading > 0 ? n / reading : 0},
        {"predicted_n", made},
        {"predicted_ms", 1e3 * writing},
        {"predicted_per_token_ms", made > 1 ? 1e3 * writing / (made - 1) : 0},
        {"predicted_per_second", writing > 0 && made > 1 ? (made - 1) / writing : 0},
    };
    json_key(j, "timings");
    json_begin(j, '{');
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_key(j, rows[i].name);
        json_num(j, rows[i].value);
    }
    if (c->end.drafted) {
        json_key(j, "draft_n");
        json_uint(j, c->end.drafted);
        json_key(j, "draft_n_accepted");
        json_uint(j, c->end.accepted);
    }
    json_end(j, '}');
}

/* ---- streams ---- */

static void openai_write_event(struct request *a, struct choice *c, struct json *j)
{
    const struct ids *prompt = &a->prompts[c->prompt_at];
    json_end(j, ']');
    if (a->chat && a->token_ids && !c->begun)
        openai_write_ids(j, "prompt_token_ids", prompt->data, prompt->len);
    json_end(j, '}');
    buf_str(j->out, "\n\n");
}

static void openai_write_event_begin(struct request *a, struct choice *c, struct json *j)
{
    buf_str(j->out, "data: ");
    openai_write_begin(a, j, true);
    json_begin(j, '{');
    json_key(j, "index");
    json_int(j, c - a->choices);
    if (a->chat) {
        json_key(j, "delta");
        json_begin(j, '{');
    }
}

/* The rest of an event. chunk: the tokens that go with it, or NULL. finish: NULL = it goes on. */
static void openai_write_event_end(struct request *a, struct choice *c, struct json *j,
                                   const struct stream_chunk *chunk, const char *finish)
{
    const struct probs p = openai_write_chunk_probs(chunk), own = openai_write_answer_probs(a, p);
    if (a->chat)
        json_end(j, '}');
    openai_write_probs(a, j, c, chunk ? &p : NULL);
    if (a->token_ids && !a->chat && !c->prompt_sent)
        openai_write_ids(j, "prompt_token_ids", a->prompts[c->prompt_at].data, a->prompts[c->prompt_at].len);
    c->prompt_sent = true;
    if (a->token_ids)
        openai_write_ids(j, "token_ids", own.ids, own.count);
    json_key(j, "finish_reason");
    json_str(j, finish);
    json_end(j, '}');
    openai_write_event(a, c, j);
}

/* An event with one text in its delta, or with the same under two names. */
static void openai_write_text(struct request *a, struct choice *c, const char *const names[2],
                              const char *text, size_t n, const struct stream_chunk *chunk, struct buf *out)
{
    struct json j = {.out = out};
    openai_write_event_begin(a, c, &j);
    for (int i = 0; i < 2 && names[i]; i++) {
        json_key(&j, names[i]);
        json_strn(&j, text, n);
    }
    openai_write_event_end(a, c, &j, chunk, NULL);
}

/* The only call, in the older format. */
static void openai_write_function_delta(struct request *a, struct choice *c, const struct output_piece *p,
                                        bool first, struct buf *out)
{
    struct json j = {.out = out};
    openai_write_event_begin(a, c, &j);
    json_key(&j, "function_call");
    json_begin(&j, '{');
    if (first) {
        json_key(&j, "name");
        json_str(&j, message_last(c)->name);
    }
    json_key(&j, "arguments");
    json_strn(&j, p->text, first ? 0 : p->n);
    json_end(&j, '}');
    openai_write_event_end(a, c, &j, NULL, NULL);
}

/* id and name come once, then the arguments: the piece's. */
static void openai_write_call_delta(struct request *a, struct choice *c, const struct output_piece *p,
                                    bool first, struct buf *out)
{
    struct json j = {.out = out};
    const struct message_call *call = message_last(c);
    if (a->functions) {
        if (c->message.call_count == 1) /* that form has room for one */
            openai_write_function_delta(a, c, p, first, out);
        return;
    }
    openai_write_event_begin(a, c, &j);
    json_key(&j, "tool_calls");
    json_begin(&j, '[');
    json_begin(&j, '{');
    json_key(&j, "index");
    json_int(&j, (int64_t)c->message.call_count - 1);
    if (first) {
        json_key(&j, "id");
        json_str(&j, call->id);
        json_key(&j, "type");
        json_str(&j, "function");
    }
    json_key(&j, "function");
    json_begin(&j, '{');
    if (first) {
        json_key(&j, "name");
        json_str(&j, call->name);
    }
    json_key(&j, "arguments");
    json_strn(&j, p->text, first ? 0 : p->n);
    json_end(&j, '}');
    json_end(&j, '}');
    json_end(&j, ']');
    openai_write_event_end(a, c, &j, NULL, NULL);
}

static void openai_write_piece(struct request *a, struct choice *c, const struct output_piece *p,
                               const struct stream_chunk *chunk, struct buf *out)
{
    static const char *const text[2] = {"text"}, *const content[2] = {"content"},
                             *const reasoning[2] = {"reasoning_content", "reasoning"};
    if (p->part == OUTPUT_CALL) {
        if (p->name)
            openai_write_call_delta(a, c, p, true, out);
        if (p->n)
            openai_write_call_delta(a, c, p, false, out);
    } else
        openai_write_text(a, c,
                          p->part == OUTPUT_REASON ? reasoning
                          : a->chat                ? content
                                                   : text,
                          p->text, p->n,
                          p->part == OUTPUT_TEXT ? chunk : NULL, /* probabilities go with text */
                          out);
}

/* The text of the prompt, where `echo` asks for it. */
static void openai_write_echo(const struct request *a, const struct choice *c, struct buf *out)
{
    struct err e = {0};
    const struct ids *ids = &a->prompts[c->prompt_at];
    if (a->echo && !a->chat &&
        tokenizer_decode(a->model->session->tokenizer, ids->data, ids->len, true, out, &e))
        out->failed = true;
}

static void openai_write_stream_begin(struct request *a, struct choice *c, struct buf *out)
{
    struct buf echo = {0};
    struct json j = {.out = out};
    openai_write_echo(a, c, &echo);
    if (echo.len)
        openai_write_piece(
            a, c, &(struct output_piece){.part = OUTPUT_TEXT, .text = echo.data, .n = echo.len}, NULL, out);
    buf_free(&echo);
    if (a->chat) {
        openai_write_event_begin(a, c, &j);
        json_key(&j, "role");
        json_str(&j, "assistant");
        json_key(&j, "content");
        json_str(&j, "");
        openai_write_event_end(a, c, &j, NULL, NULL);
    }
}

static void openai_write_end(struct request *a, struct choice *c, struct buf *out)
{
    struct json j = {.out = out};
    openai_write_event_begin(a, c, &j);
    if (!a->chat) {
        json_key(&j, "text");
        json_str(&j, "");
    }
    openai_write_event_end(a, c, &j, NULL, message_finish(c));
}

static void openai_write_usage_chunk(struct request *a, struct buf *out)
{
    struct json j = {.out = out};
    buf_str(out, "data: ");
    openai_write_begin(a, &j, true);
    json_end(&j, ']');
    openai_write_usage(a, &j);
    openai_write_timings(a, &j);
    json_end(&j, '}');
    buf_str(out, "\n\n");
}

/* ---- whole answers ---- */

static void openai_write_calls(const struct message *s, struct json *j)
{
    json_key(j, "tool_calls");
    json_begin(j, '[');
    for (uint32_t i = 0; i < s->call_count; i++) {
        json_begin(j, '{');
        json_key(j, "id");
        json_str(j, s->calls[i].id);
        json_key(j, "type");
        json_str(j, "function");
        json_key(j, "function");
        json_begin(j, '{');
        json_key(j, "name");
        json_str(j, s->calls[i].name);
        json_key(j, "arguments");
        json_strn(j, s->calls[i].arguments.data, s->calls[i].arguments.len);
        json_end(j, '}');
        json_end(j, '}');
    }
    json_end(j, ']');
}

/* The older format has room for one. */
static void openai_write_function(const struct message_call *call, struct json *j)
{
    json_key(j, "function_call");
    json_begin(j, '{');
    json_key(j, "name");
    json_str(j, call->name);
    json_key(j, "arguments");
    json_strn(j, call->arguments.data, call->arguments.len);
    json_end(j, '}');
}

static void openai_write_message(const struct request *a, const struct message *s, struct json *j)
{
    json_key(j, "message");
    json_begin(j, '{');
    json_key(j, "role");
    json_str(j, "assistant");
    json_key(j, "content");
    if (s->call_count && !s->text.len)
        json_nil(j);
    else
        json_strn(j, s->text.data ? s->text.data : "", s->text.len);
    for (int i = 0; i < 2 && s->reason.len && !a->no_reasoning; i++) {
        json_key(j, i ? "reasoning" : "reasoning_content");
        json_strn(j, s->reason.data, s->reason.len);
    }
    if (s->call_count && a->functions)
        openai_write_function(&s->calls[0], j);
    else if (s->call_count)
        openai_write_calls(s, j);
    json_end(j, '}');
}

/* The answer at this place of the list: prompt by prompt, rank by rank. */
static struct choice *openai_write_at(struct request *a, uint32_t index)
{
    struct choice *c = a->choices;
    while (c->prompt_at != index / a->returned || c->rank != index % a->returned)
        c++;
    return c;
}

static void openai_write_choice(struct request *a, uint32_t index, struct json *j)
{
    struct choice *c = openai_write_at(a, index);
    const struct ids *prompt = &a->prompts[c->prompt_at];
    const struct probs all = openai_write_choice_probs(a, c), own = openai_write_answer_probs(a, all);
    struct buf text = {0};
    json_begin(j, '{');
    json_key(j, "index");
    json_uint(j, index);
    if (a->chat)
        openai_write_message(a, &c->message, j);
    else {
        openai_write_echo(a, c, &text);
        buf_add(&text, c->message.text.data ? c->message.text.data : "", c->message.text.len);
        json_key(j, "text");
        json_strn(j, text.data ? text.data : "", text.len);
    }
    openai_write_probs(a, j, c, a->echo && !a->chat ? &all : &own);
    if (a->token_ids) {
        if (!a->chat)
            openai_write_ids(j, "prompt_token_ids", prompt->data, prompt->len);
        openai_write_ids(j, "token_ids", own.ids, own.count);
    }
    if (a->prompt_probs && !a->chat)
        openai_write_prompt_probs(a, c, j);
    json_key(j, "finish_reason");
    json_str(j, message_finish(c));
    json_end(j, '}');
    j->out->failed |= text.failed;
    buf_free(&text);
}

static void openai_write_whole(struct request *a, struct buf *out)
{
    struct json j = {.out = out};
    openai_write_begin(a, &j, false);
    for (uint32_t i = 0; i < a->returned * a->prompt_count; i++)
        openai_write_choice(a, i, &j);
    json_end(&j, ']');
    if (a->chat && a->token_ids)
        openai_write_ids(&j, "prompt_token_ids", a->prompts[0].data, a->prompts[0].len);
    if (a->chat && a->prompt_probs)
        openai_write_prompt_probs(a, &a->choices[0], &j);
    openai_write_usage(a, &j);
    openai_write_timings(a, &j);
    json_end(&j, '}');
}

static void openai_write_error(const struct failure *f, struct buf *out)
{
    struct json j = {.out = out};
    int s = f->status;
    json_begin(&j, '{');
    json_key(&j, "error");
    json_begin(&j, '{');
    json_key(&j, "message");
    json_str(&j, f->err.text);
    json_key(&j, "type");
    json_str(&j, s == 401   ? "authentication_error"
                 : s == 403 ? "permission_error"
                 : s == 404 ? "not_found_error"
                 : s == 429 ? "rate_limit_error"
                 : s >= 500 ? "server_error"
                            : "invalid_request_error");
    json_key(&j, "param");
    json_str(&j, f->param[0] ? f->param : NULL);
    json_key(&j, "code");
    json_str(&j, f->code);
    json_end(&j, '}');
    json_end(&j, '}');
}

/* ---- all of it ---- */

static void openai_write_finish(struct request *a, struct buf *out)
{
    if (a->include_usage)
        openai_write_usage_chunk(a, out);
    buf_str(out, "data: [DONE]\n\n");
}

static void openai_write_broken(const struct failure *f, struct buf *out)
{
    buf_str(out, "data: ");
    openai_write_error(f, out);
    buf_str(out, "\n\ndata: [DONE]\n\n");
}

const struct api_format openai_api = {
    .type = "text/event-stream",
    .alive = ":\n\n",
    .begin = openai_write_stream_begin,
    .piece = openai_write_piece,
    .end = openai_write_end,
    .finish = openai_write_finish,
    .whole = openai_write_whole,
    .error = openai_write_error,
    .broken = openai_write_broken,
};
