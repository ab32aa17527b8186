/* The message of an answer, piece by piece: stored, and sent where the request streams. */
#define _GNU_SOURCE
#include "serve/message.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/jsonread.h"
#include "lang/chat/tools.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/format.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

enum { MESSAGE_CALLS = 256 };

static bool message_begin_call(struct choice *c, const struct output_piece *p)
{
    struct message *s = &c->message;
    struct message_call *all = mem_realloc(s->calls, s->call_count + 1, sizeof *all);
    if (!all)
        return false;
    s->calls = all;
    struct message_call *call = &all[s->call_count++];
    *call = (struct message_call){.name = tools_call_text(p->name),
                                  .id = p->id ? tools_call_text(p->id)
                                              : tools_call_id(c->request->model->session->form->short_ids)};
    return call->name && call->id;
}

struct message_call *message_last(const struct choice *c)
{
    return &c->message.calls[c->message.call_count - 1];
}

/* A call, or more of the last one's arguments. */
static bool message_call(struct choice *c, const struct output_piece *p)
{
    if (p->name && !message_begin_call(c, p))
        return false;
    message_last(c)->whole = !p->more;
    return buf_add(&message_last(c)->arguments, p->text, p->n);
}

void message_take(void *arg, const struct output_piece *p)
{
    struct message_sink *sink = arg;
    struct choice *c = sink->choice;
    struct request *a = c->request;
    c->message.full |= p->part == OUTPUT_CALL && p->name && c->message.call_count == MESSAGE_CALLS;
    if (c->message.full && p->part == OUTPUT_CALL)
        return;
    bool kept = p->part == OUTPUT_CALL
                    ? message_call(c, p)
                    : buf_add(p->part == OUTPUT_TEXT ? &c->message.text : &c->message.reason, p->text, p->n);
    if (!kept)
        request_fail(a, 503, NULL, "out of memory");
    else if (a->stream && !(a->no_reasoning && p->part == OUTPUT_REASON)) {
        format_for(a->route)->piece(a, c, p, sink->chunk, sink->out);
        sink->chunk = p->part == OUTPUT_TEXT ? NULL : sink->chunk;
    }
}

void message_free(struct message *s)
{
    for (uint32_t i = 0; i < s->call_count; i++) {
        mem_free(s->calls[i].name);
        mem_free(s->calls[i].id);
        buf_free(&s->calls[i].arguments);
    }
    mem_free(s->calls);
    buf_free(&s->text);
    buf_free(&s->reason);
}

bool message_called(const struct choice *c)
{
    return c->end.finish == FINISH_STOP && c->message.call_count && message_last(c)->whole;
}

const char *message_finish(const struct choice *c)
{
    return !message_called(c)      ? finish_name(c->end.finish)
           : c->request->functions ? "function_call"
                                   : "tool_calls";
}

json_t *message_string(const char *text, size_t n)
{
    struct buf clean = {0};
    utf8_clean(&clean, text ? text : "", n);
    json_t *s = clean.failed ? NULL : json_stringn_nocheck(clean.data ? clean.data : "", clean.len);
    buf_free(&clean);
    return s;
}

json_t *message_arguments(const struct message_call *call)
{
    json_t *arguments = json_loadb(call->arguments.data, call->arguments.len, 0, NULL);
    return arguments ? arguments : json_object();
}

void message_json(struct buf *out, json_t *value)
{
    struct json j = {.out = out};
    if (value)
        jsonread_write(&j, value);
    out->failed |= !value;
    json_decref(value);
}

void message_event(struct buf *out, json_t *event)
{
    buf_printf(out, "event: %s\ndata: ", event ? json_string_value(json_object_get(event, "type")) : "error");
    message_json(out, event);
    buf_str(out, "\n\n");
}
