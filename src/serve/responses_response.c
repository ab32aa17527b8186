/* OpenAI's responses, as their clients read them: items, and events in the order that the SDK follows. */
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "run/engine.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/openai_logprobs.h"
#include "serve/request.h"
#include "serve/responses.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { OPEN_NONE, OPEN_MESSAGE, OPEN_REASONING, OPEN_CALL }; /* an item */

/* ---- items ---- */

/* An id for the next item: "msg_", "rs_", "fc_". */
static json_t *item_id(const struct request *a, const char *kind)
{
    const struct responses *own = a->format_state;
    char id[sizeof a->id + 24];
    snprintf(id, sizeof id, "%s_%s_%zu", kind, a->id, json_array_size(own->output));
    return json_string(id);
}

/* Takes both over; probs NULL = none. */
static json_t *item_part(int kind, json_t *text, json_t *probs)
{
    if (kind == OPEN_MESSAGE)
        return json_pack("{s:s,s:o,s:[],s:o}", "type", "output_text", "text", text, "annotations", "logprobs",
                         probs ? probs : json_array());
    json_decref(probs);
    return json_pack("{s:s,s:o}", "type", "reasoning_text", "text", text);
}

/* Tokens and their probabilities, if requested: a list that may be empty. */
static json_t *item_probs(const struct request *a, const struct probs *p)
{
    struct buf text = {0};
    struct json j = {.out = &text};
    if (!a->logprobs || !p->count)
        return json_array();
    openai_write_token_probs(a, &j, p);
    json_t *list = text.failed ? NULL : json_loadb(text.data, text.len, 0, NULL);
    buf_free(&text);
    return list ? list : json_array();
}

/* part NULL = it begins, and has none. */
static json_t *item_make(const struct request *a, int kind, json_t *part)
{
    json_t *content = part ? json_pack("[o]", part) : json_array();
    bool cut = part && a->choices[0].done && a->choices[0].end.finish == FINISH_LENGTH;
    const char *status = cut ? "incomplete" : part ? "completed" : "in_progress";
    if (kind == OPEN_MESSAGE)
        return json_pack("{s:s,s:o,s:s,s:s,s:o}", "type", "message", "id", item_id(a, "msg"), "status",
                         status, "role", "assistant", "content", content);
    return json_pack("{s:s,s:o,s:s,s:[],s:o}", "type", "reasoning", "id", item_id(a, "rs"), "status", status,
                     "summary", "content", content);
}

/* begins: it has no arguments yet */
static json_t *item_call(const struct request *a, const struct message_call *call, bool begins)
{
    const char *status = begins ? "in_progress" : call->whole ? "completed" : "incomplete";
    return json_pack("{s:s,s:o,s:s,s:s,s:s,s:o}", "type", "function_call", "id", item_id(a, "fc"), "call_id",
                     call->id, "name", call->name, "status", status, "arguments",
                     message_string(call->arguments.data, begins ? 0 : call->arguments.len));
}

/* ---- the response ---- */

static json_t *responses_usage(const struct request *a)
{
    struct usage u = request_usage(a);
    return json_pack("{s:I,s:{s:I},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)u.prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)u.cached, "output_tokens",
                     (json_int_t)u.made, "output_tokens_details", "reasoning_tokens", (json_int_t)u.thought,
                     "total_tokens", (json_int_t)(u.prompt + u.made));
}

/* Fields of the request that the response repeats, with their defaults. */
static void responses_echo(const struct responses *own, json_t *r)
{
    static const struct {
        const char *name, *otherwise;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"previous_response_id", "null"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"store", "true"},
                  {"temperature", "null"},
                  {"background", "false"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_logprobs", "0"},
                  {"top_p", "null"},
                  {"truncation", "\"disabled\""},
                  {"user", "null"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *v = json_object_get(own->asked, fields[i].name);
        json_object_set_new(r, fields[i].name,
                            v ? json_incref(v) : json_loads(fields[i].otherwise, JSON_DECODE_ANY, NULL));
    }
}

json_t *responses_make(const struct request *a, const char *status)
{
    const struct responses *own = a->format_state;
    bool over = strcmp(status, "in_progress") != 0 && strcmp(status, "queued") != 0,
         cut = !strcmp(status, "incomplete");
    char id[sizeof a->id + 8];
    snprintf(id, sizeof id, "resp_%s", a->id);
    json_t *r =
        json_pack("{s:s,s:s,s:I,s:s,s:s,s:n,s:O,s:o,s:o}", "id", id, "object", "response", "created_at",
                  (json_int_t)a->created, "status", status, "model", a->called, "error", "output",
                  own->output, "usage", over ? responses_usage(a) : json_null(), "incomplete_details",
                  cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null());
    if (r)
        responses_echo(own, r);
    if (r && own->conversation[0])
        json_object_set_new(r, "conversation", json_pack("{s:s}", "id", own->conversation));
    return r;
}

static json_t *responses_done(struct request *a)
{
    struct responses *own = a->format_state;
    const char *status = own->cancelled                              ? "cancelled"
                         : a->choices[0].end.finish == FINISH_LENGTH ? "incomplete"
                                                                     : "completed";
    json_t *r = responses_make(a, status);
    own->final = json_incref(r);
    return r;
}

static void responses_whole(struct request *a, struct buf *out)
{
    const struct message *s = &a->choices[0].message;
    struct responses *own = a->format_state;
    if (s->reason.len)
        json_array_append_new(
            own->output,
            item_make(a, OPEN_REASONING,
                      item_part(OPEN_REASONING, message_string(s->reason.data, s->reason.len), NULL)));
    struct probs p = openai_write_choice_probs(a, &a->choices[0]);
    if (s->text.len || !s->call_count)
        json_array_append_new(
            own->output,
            item_make(a, OPEN_MESSAGE,
                      item_part(OPEN_MESSAGE, message_string(s->text.data, s->text.len), item_probs(a, &p))));
    for (uint32_t i = 0; i < s->call_count; i++)
        json_array_append_new(own->output, item_call(a, &s->calls[i], false));
    message_json(out, responses_done(a));
}

/* ---- streams ---- */

/* Every event has a number; takes it over. */
static void responses_event(struct request *a, struct buf *out, const char *type, json_t *event)
{
    struct responses *own = a->format_state;
    if (event) {
        json_object_set_new(event, "type", json_string(type));
        json_object_set_new(event, "sequence_number", json_integer(own->sequence++));
    }
    message_event(out, event);
}

/* An event about the item that is being made: with the place of its part where it has one. */
static void responses_item_event(struct request *a, struct buf *out, const char *type, json_t *event,
                                 const char *kind)
{
    struct responses *own = a->format_state;
    json_object_set_new(event, "output_index", json_integer((json_int_t)json_array_size(own->output)));
    if (kind)
        json_object_set_new(event, "item_id", item_id(a, kind));
    responses_event(a, out, type, event);
}

static void responses_part_event(struct request *a, struct buf *out, const char *type, json_t *event)
{
    json_object_set_new(event, "content_index", json_integer(0));
    responses_item_event(a, out, type, event, a->choices[0].open == OPEN_MESSAGE ? "msg" : "rs");
}

static void responses_begin(struct request *a, struct choice *c, struct buf *out)
{
    (void)c;
    const struct responses *own = a->format_state;
    const char *first = own->background ? "queued" : "in_progress";
    responses_event(a, out, "response.created", json_pack("{s:o}", "response", responses_make(a, first)));
    responses_event(a, out, "response.in_progress",
                    json_pack("{s:o}", "response", responses_make(a, "in_progress")));
}

static void responses_open_item(struct request *a, struct choice *c, int kind, struct buf *out)
{
    struct responses *own = a->format_state;
    c->open = kind;
    own->from = kind == OPEN_MESSAGE ? c->message.text.len : c->message.reason.len;
    responses_item_event(a, out, "response.output_item.added",
                         json_pack("{s:o}", "item", item_make(a, kind, NULL)), NULL);
    responses_part_event(a, out, "response.content_part.added",
                         json_pack("{s:o}", "part", item_part(kind, json_string(""), NULL)));
}

static void responses_open_call(struct request *a, struct choice *c, struct buf *out)
{
    c->open = OPEN_CALL;
    responses_item_event(a, out, "response.output_item.added",
                         json_pack("{s:o}", "item", item_call(a, message_last(c), true)), NULL);
}

/* Adds the finished item to the response, which owns it. */
static void responses_item_done(struct request *a, struct choice *c, json_t *item, struct buf *out)
{
    struct responses *own = a->format_state;
    responses_item_event(a, out, "response.output_item.done", json_pack("{s:O}", "item", item), NULL);
    json_array_append_new(own->output, item);
    c->open = OPEN_NONE;
}

static void responses_close_call(struct request *a, struct choice *c, struct buf *out)
{
    const struct message_call *call = message_last(c);
    responses_item_event(a, out, "response.function_call_arguments.done",
                         json_pack("{s:s,s:o}", "name", call->name, "arguments",
                                   message_string(call->arguments.data, call->arguments.len)),
                         "fc");
    responses_item_done(a, c, item_call(a, call, false), out);
}

static void responses_close_item(struct request *a, struct choice *c, struct buf *out)
{
    struct responses *own = a->format_state;
    int kind = c->open;
    const struct buf *said = kind == OPEN_MESSAGE ? &c->message.text : &c->message.reason;
    if (kind == OPEN_CALL)
        responses_close_call(a, c, out);
    if (kind == OPEN_NONE || kind == OPEN_CALL)
        return;
    json_t *text = message_string(said->data + own->from, said->len - own->from);
    if (kind == OPEN_MESSAGE) {
        json_array_extend(own->probs, own->probs_new);
        json_array_clear(own->probs_new);
    }
    json_t *part = item_part(kind, json_incref(text), json_copy(own->probs));
    if (kind == OPEN_MESSAGE)
        responses_part_event(a, out, "response.output_text.done",
                             json_pack("{s:O,s:o}", "text", text, "logprobs", json_copy(own->probs)));
    else
        responses_part_event(a, out, "response.reasoning_text.done", json_pack("{s:O}", "text", text));
    responses_part_event(a, out, "response.content_part.done", json_pack("{s:O}", "part", part));
    responses_item_done(a, c, item_make(a, kind, part), out);
    json_decref(text);
    json_array_clear(own->probs);
}

static void responses_call(struct request *a, struct choice *c, const struct output_piece *p, struct buf *out)
{
    if (p->name) {
        responses_close_item(a, c, out);
        responses_open_call(a, c, out);
    }
    if (p->n)
        responses_item_event(a, out, "response.function_call_arguments.delta",
                             json_pack("{s:o}", "delta", message_string(p->text, p->n)), "fc");
    if (!p->more)
        responses_close_call(a, c, out);
}

/* The piece has been added to the message: if it starts an item, that item's first events come before it. */
static void responses_piece(struct request *a, struct choice *c, const struct output_piece *p,
                            const struct stream_chunk *chunk, struct buf *out)
{
    struct responses *own = a->format_state;
    int kind = p->part == OUTPUT_TEXT ? OPEN_MESSAGE : OPEN_REASONING;
    if (p->part == OUTPUT_CALL) {
        responses_call(a, c, p, out);
        return;
    }
    if (kind == OPEN_MESSAGE && a->logprobs) {
        struct probs probs = openai_write_chunk_probs(chunk);
        json_t *new_probs = item_probs(a, &probs);
        json_array_extend(own->probs_new, new_probs);
        json_decref(new_probs);
    }
    if (!p->n)
        return;
    if (c->open != kind) {
        responses_close_item(a, c, out);
        responses_open_item(a, c, kind, out);
        own->from -= p->n;
    }
    json_t *delta = message_string(p->text, p->n);
    if (kind == OPEN_MESSAGE) {
        responses_part_event(a, out, "response.output_text.delta",
                             json_pack("{s:o,s:o}", "delta", delta, "logprobs", json_copy(own->probs_new)));
        json_array_extend(own->probs, own->probs_new);
        json_array_clear(own->probs_new);
    } else
        responses_part_event(a, out, "response.reasoning_text.delta", json_pack("{s:o}", "delta", delta));
}

static void responses_end(struct request *a, struct choice *c, struct buf *out)
{
    responses_close_item(a, c, out);
}

static void responses_finish(struct request *a, struct buf *out)
{
    const struct responses *own = a->format_state;
    json_t *r = responses_done(a);
    const char *type =
        a->choices[0].end.finish == FINISH_LENGTH ? "response.incomplete" : "response.completed";
    if (own->cancelled) /* the API has no event for it: the stream ends */
        json_decref(r);
    else
        responses_event(a, out, type, json_pack("{s:o}", "response", r));
}

static void responses_error(const struct failure *f, struct buf *out)
{
    openai_api.error(f, out);
}

static void responses_broken(const struct failure *f, struct buf *out)
{
    message_event(out,
                  json_pack("{s:s,s:s?,s:o,s:n,s:i}", "type", "error", "code", f->code, "message",
                            message_string(f->err.text, strlen(f->err.text)), "param", "sequence_number", 0));
}

static void responses_forget(void *of)
{
    struct responses *own = of;
    if (own) {
        json_decref(own->asked);
        json_decref(own->final);
        responses_items_free(&own->input);
        json_decref(own->output);
        json_decref(own->probs);
        json_decref(own->probs_new);
    }
    mem_free(own);
}

/* Of one in the background, the beginning is stored before it runs. */
static int responses_asked(struct request *a, const struct engine_request *r)
{
    const struct responses *own = a->format_state;
    (void)r;
    return own->background ? responses_keep_begun(a) : 0;
}

const struct api_format responses_api = {.type = "text/event-stream",
                                         .alive = ":\n\n",
                                         .begin = responses_begin,
                                         .piece = responses_piece,
                                         .end = responses_end,
                                         .finish = responses_finish,
                                         .whole = responses_whole,
                                         .keep = responses_keep,
                                         .asked = responses_asked,
                                         .error = responses_error,
                                         .broken = responses_broken,
                                         .forget = responses_forget};
