/* Replies to Anthropic's messages, whole or as a stream of blocks. */
#include "run/engine.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/request.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_CALL };

static json_t *anthropic_usage(const struct request *a)
{
    struct usage u = request_usage(a);
    return json_pack("{s:I,s:I,s:I,s:I}", "input_tokens", (json_int_t)(u.prompt - u.cached),
                     "cache_read_input_tokens", (json_int_t)u.cached, "cache_creation_input_tokens",
                     (json_int_t)0, "output_tokens", (json_int_t)u.made);
}

/* Why it ended; *sequence is the stop string that ended it, or null. */
static const char *anthropic_reason(const struct request *a, json_t **sequence)
{
    const struct choice *c = &a->choices[0];
    uint32_t at = c->end.stopped;
    json_t *stop = json_is_array(a->stops) ? json_array_get(a->stops, at - 1) : a->stops;
    *sequence = at && stop ? json_incref(stop) : json_null();
    return message_called(c)                ? "tool_use"
           : c->end.finish == FINISH_LENGTH ? "max_tokens"
           : at                             ? "stop_sequence"
                                            : "end_turn";
}

static json_t *anthropic_message(const struct request *a, json_t *content)
{
    char id[sizeof a->id + 8];
    snprintf(id, sizeof id, "msg_%s", a->id);
    return json_pack("{s:s,s:s,s:s,s:s,s:o,s:n,s:n,s:o}", "id", id, "type", "message", "role", "assistant",
                     "model", a->called, "content", content, "stop_reason", "stop_sequence", "usage",
                     anthropic_usage(a));
}

static void anthropic_whole(struct request *a, struct buf *out)
{
    const struct message *s = &a->choices[0].message;
    json_t *content = json_array(), *sequence;
    if (s->reason.len)
        json_array_append_new(content,
                              json_pack("{s:s,s:o,s:s}", "type", "thinking", "thinking",
                                        message_string(s->reason.data, s->reason.len), "signature", ""));
    if (s->text.len)
        json_array_append_new(content, json_pack("{s:s,s:o}", "type", "text", "text",
                                                 message_string(s->text.data, s->text.len)));
    for (uint32_t i = 0; i < s->call_count; i++)
        json_array_append_new(content,
                              json_pack("{s:s,s:s,s:s,s:o}", "type", "tool_use", "id", s->calls[i].id, "name",
                                        s->calls[i].name, "input", message_arguments(&s->calls[i])));
    const char *reason = anthropic_reason(a, &sequence);
    json_t *message = anthropic_message(a, content);
    json_object_set_new(message, "stop_reason", json_string(reason));
    json_object_set_new(message, "stop_sequence", sequence);
    message_json(out, message);
}

static void anthropic_begin(struct request *a, struct choice *c, struct buf *out)
{
    (void)c;
    message_event(
        out, json_pack("{s:s,s:o}", "type", "message_start", "message", anthropic_message(a, json_array())));
    message_event(out, json_pack("{s:s}", "type", "ping"));
}

static void anthropic_close(struct choice *c, struct buf *out)
{
    if (c->open)
        message_event(out, json_pack("{s:s,s:i}", "type", "content_block_stop", "index", c->blocks++));
    c->open = BLOCK_NONE;
}

static void anthropic_delta(const struct choice *c, const char *type, const char *key, json_t *value,
                            struct buf *out)
{
    message_event(out, json_pack("{s:s,s:i,s:{s:s,s:o}}", "type", "content_block_delta", "index", c->blocks,
                                 "delta", "type", type, key, value));
}

static void anthropic_piece(struct request *a, struct choice *c, const struct output_piece *p,
                            const struct stream_chunk *chunk, struct buf *out)
{
    (void)a;
    (void)chunk;
    static const struct {
        int block;
        const char *start, *delta, *key;
    } kinds[] = {[OUTPUT_TEXT] = {BLOCK_TEXT, "text", "text_delta", "text"},
                 [OUTPUT_REASON] = {BLOCK_THINKING, "thinking", "thinking_delta", "thinking"},
                 [OUTPUT_CALL] = {BLOCK_CALL, "tool_use", "input_json_delta", "partial_json"}};
    const struct message_call *call = p->part == OUTPUT_CALL ? message_last(c) : NULL;
    if (!call && !p->n)
        return;
    if (p->name || c->open != kinds[p->part].block) {
        anthropic_close(c, out);
        json_t *block = call ? json_pack("{s:s,s:s,s:s,s:{}}", "type", "tool_use", "id", call->id, "name",
                                         call->name, "input")
                             : json_pack("{s:s,s:s}", "type", kinds[p->part].start, kinds[p->part].key, "");
        message_event(out, json_pack("{s:s,s:i,s:o}", "type", "content_block_start", "index", c->blocks,
                                     "content_block", block));
        c->open = kinds[p->part].block;
    }
    if (p->n)
        anthropic_delta(c, kinds[p->part].delta, kinds[p->part].key, message_string(p->text, p->n), out);
    if (call && !p->more)
        anthropic_close(c, out);
}

static void anthropic_end(struct request *a, struct choice *c, struct buf *out)
{
    (void)a;
    anthropic_close(c, out);
}

static void anthropic_finish(struct request *a, struct buf *out)
{
    json_t *sequence;
    const char *reason = anthropic_reason(a, &sequence);
    message_event(out, json_pack("{s:s,s:{s:s,s:o},s:o}", "type", "message_delta", "delta", "stop_reason",
                                 reason, "stop_sequence", sequence, "usage", anthropic_usage(a)));
    message_event(out, json_pack("{s:s}", "type", "message_stop"));
}

static json_t *anthropic_failure(const struct failure *f)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = f->status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        type = types[i].status == f->status ? types[i].type : type;
    return json_pack("{s:s,s:{s:s,s:o}}", "type", "error", "error", "type", type, "message",
                     message_string(f->err.text, strlen(f->err.text)));
}

static void anthropic_error(const struct failure *f, struct buf *out)
{
    message_json(out, anthropic_failure(f));
}

static void anthropic_broken(const struct failure *f, struct buf *out)
{
    message_event(out, anthropic_failure(f));
}

const struct api_format anthropic_api = {.type = "text/event-stream",
                                         .alive = ":\n\n",
                                         .begin = anthropic_begin,
                                         .piece = anthropic_piece,
                                         .end = anthropic_end,
                                         .finish = anthropic_finish,
                                         .whole = anthropic_whole,
                                         .error = anthropic_error,
                                         .broken = anthropic_broken};
