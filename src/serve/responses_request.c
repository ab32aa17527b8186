/* OpenAI's responses: requests brought into the form of chats, and a bounded store of what was answered. */
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/conn.h"
#include "serve/field.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/refuse.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/shelf.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SHELF_BYTES = 1 << 20, SHELF_ALL = 64 << 20 }; /* of text: of one response, of all */

static const struct field responses_fields[] = {
    {"input", FIELD_TEXT | FIELD_LIST, 0, 8192},
    {"instructions", FIELD_TEXT, 0, 0},
    {"previous_response_id", FIELD_TEXT, 0, 0},
    {"store", FIELD_BOOL, 0, 0},
    {"tools", FIELD_LIST, 0, 128},
    {"tool_choice", FIELD_TEXT | FIELD_OBJECT, 0, 16},
    {"text", FIELD_OBJECT, 0, 16},
    {"reasoning", FIELD_OBJECT, 0, 16},
    {"max_output_tokens", FIELD_INT, 1, OPENAI_TOKENS},
    {"background", FIELD_BOOL, 0, 0},
    {"include", FIELD_LIST, 0, 64},
    {"top_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"truncation", FIELD_TEXT, 0, 0},
};

static const struct refusal responses_refused[] = {
    {"background", "answers are made while the client waits"},
    {"prompt", "this server keeps no prompts; send instructions and input"},
    {"conversation", "this server keeps no conversations; send all items, or previous_response_id"},
    {"moderation", "this server judges no texts"},
};

/* ---- items of the input ---- */

static int item_fail(struct request *a, size_t at, const char *why, const char *type)
{
    char where[FAILURE_PARAM];
    snprintf(where, sizeof where, "input[%zu]", at);
    return type ? request_fail(a, 400, where, "%s (of type '%s') %s", where, log_safe(type), why)
                : request_fail(a, 400, where, "%s %s", where, why);
}

/* The texts of a content; NULL and a failure where a part is none. */
static json_t *item_text(struct request *a, const json_t *content, size_t at)
{
    struct buf out = {0};
    const json_t *part;
    size_t i;
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    json_array_foreach(content, i, part)
    {
        const char *text = field_text(part, "text"), *refusal = field_text(part, "refusal");
        if (!text && !refusal) {
            item_fail(a, at, "has a part that is no text; this model reads only text",
                      field_text(part, "type"));
            buf_free(&out);
            return NULL;
        }
        buf_add(&out, text ? text : refusal,
                json_string_length(json_object_get(part, text ? "text" : "refusal")));
    }
    json_t *s = json_stringn(out.data ? out.data : "", out.len);
    buf_free(&out);
    return s;
}

/* An image in a chat's form. NULL and a failure. */
static json_t *item_image(struct request *a, const json_t *part, size_t at)
{
    json_t *url = json_object_get(part, "image_url");
    if (json_is_string(url))
        return json_pack("{s:s,s:{s:O}}", "type", "image_url", "image_url", "url", url);
    item_fail(a, at, "has an image without an image_url; this server keeps no files", NULL);
    return NULL;
}

static bool item_is_image(const json_t *part)
{
    const char *type = field_text(part, "type");
    return type && !strcmp(type, "input_image");
}

/* A text; with images, a list of parts. NULL and a failure. */
static json_t *item_content(struct request *a, const json_t *content, size_t at)
{
    json_t *part, *parts;
    bool images = false;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)content, i, part) images |= item_is_image(part);
    if (!images || !(parts = json_array()))
        return item_text(a, content, at);
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        json_t *one = json_pack("[O]", part), *text = item_is_image(part) ? NULL : item_text(a, one, at);
        json_t *made = text                ? json_pack("{s:s,s:o}", "type", "text", "text", text)
                       : a->failure.status ? NULL
                                           : item_image(a, part, at);
        json_decref(one);
        if (!made || json_array_append_new(parts, made)) {
            json_decref(parts);
            return NULL;
        }
    }
    return parts;
}

/* The assistant's message that calls and reasoning belong to: the last one, or a new one. */
static json_t *item_assistant(json_t *to, bool fresh)
{
    json_t *last = json_array_get(to, json_array_size(to) - 1);
    const char *role = json_array_size(to) ? field_text(last, "role") : NULL;
    if (role && !strcmp(role, "assistant") && !fresh)
        return last;
    last = json_pack("{s:s,s:s}", "role", "assistant", "content", "");
    return last && !json_array_append_new(to, last) ? last : NULL;
}

static int item_message(struct request *a, const json_t *item, size_t at, json_t *to)
{
    const char *role = field_text(item, "role");
    json_t *text = role ? item_content(a, json_object_get(item, "content"), at) : NULL, *last;
    if (!role)
        return item_fail(a, at, "has no role", NULL);
    if (!text)
        return -1;
    if (strcmp(role, "assistant") != 0)
        return json_array_append_new(to, json_pack("{s:s,s:o}", "role", role, "content", text));
    last = json_array_get(to, json_array_size(to) - 1);
    /* reasoning that came before it opened the message */
    bool joins = json_array_size(to) && json_object_get(last, "reasoning_content") &&
                 !json_object_get(last, "tool_calls") &&
                 !json_string_length(json_object_get(last, "content"));
    return json_object_set_new(item_assistant(to, !joins), "content", text);
}

static int item_call(struct request *a, const json_t *item, size_t at, json_t *to)
{
    json_t *id = json_object_get(item, "call_id"), *arguments = json_object_get(item, "arguments");
    const char *name = field_text(item, "name");
    json_t *message = item_assistant(to, false), *calls = json_object_get(message, "tool_calls");
    if (!json_is_string(id) || !name || !json_is_string(arguments))
        return item_fail(a, at, "has to have call_id, name and arguments", NULL);
    if (!calls && (!(calls = json_array()) || json_object_set_new(message, "tool_calls", calls)))
        return -1;
    return json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:s,s:O}}", "id", id, "type", "function",
                                                  "function", "name", name, "arguments", arguments));
}

static int item_output(struct request *a, const json_t *item, size_t at, json_t *to)
{
    json_t *id = json_object_get(item, "call_id"),
           *text = item_content(a, json_object_get(item, "output"), at);
    if (text && json_is_string(id))
        return json_array_append_new(
            to, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text));
    json_decref(text);
    return item_fail(a, at, "has to have call_id and output", NULL);
}

static int item_reasoning(struct request *a, const json_t *item, size_t at, json_t *to)
{
    const json_t *content = json_object_get(item, "content");
    json_t *text = item_text(a, json_array_size(content) ? content : json_object_get(item, "summary"), at);
    return text ? json_object_set_new(item_assistant(to, true), "reasoning_content", text) : -1;
}

static int responses_item(struct request *a, const json_t *item, size_t at, json_t *to)
{
    static const struct {
        const char *type;
        int (*read)(struct request *a, const json_t *item, size_t at, json_t *to);
    } kinds[] = {{"message", item_message},
                 {"function_call", item_call},
                 {"function_call_output", item_output},
                 {"reasoning", item_reasoning}};
    const char *type = field_text(item, "type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type ? type : "message", kinds[i].type))
            return kinds[i].read(a, item, at, to);
    return item_fail(a, at, "is not known here", type);
}

/* ---- what is kept ---- */

/* The server's mutex is held. */
static struct shelf_entry *shelf_find(struct shelf *s, const char *id, uint32_t key)
{
    for (uint32_t i = 0; i < SHELF_ENTRIES; i++)
        if (s->entries[i].id[0] && s->entries[i].key == key && !strcmp(s->entries[i].id, id))
            return &s->entries[i];
    return NULL;
}

static void shelf_empty(struct shelf *s, struct shelf_entry *e)
{
    json_decref(e->conversation);
    json_decref(e->response);
    s->bytes -= e->bytes;
    *e = (struct shelf_entry){0};
}

void shelf_free(struct shelf *s)
{
    for (uint32_t i = 0; i < SHELF_ENTRIES; i++)
        shelf_empty(s, &s->entries[i]);
}

/* A place for one more: the oldest ones go. */
static struct shelf_entry *shelf_place(struct shelf *s, size_t bytes)
{
    for (uint32_t i = 0; i < SHELF_ENTRIES && s->bytes + bytes > SHELF_ALL; i++)
        shelf_empty(s, &s->entries[(s->next + i) % SHELF_ENTRIES]);
    struct shelf_entry *e = &s->entries[s->next++ % SHELF_ENTRIES];
    shelf_empty(s, e);
    return e;
}

void responses_keep(struct request *a, json_t *response)
{
    struct responses *own = a->format_state;
    struct server *s = a->server;
    const struct message *reply = &a->choices[0].message;
    json_t *message = json_pack("{s:s,s:o}", "role", "assistant", "content",
                                message_string(reply->text.data, reply->text.len)),
           *calls = json_array();
    for (uint32_t i = 0; i < reply->call_count; i++)
        json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", reply->calls[i].id, "type",
                                               "function", "function", "name", reply->calls[i].name,
                                               "arguments", message_arguments(&reply->calls[i])));
    if (reply->call_count)
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    if (reply->reason.len)
        json_object_set_new(message, "reasoning_content",
                            message_string(reply->reason.data, reply->reason.len));
    size_t bytes = json_dumpb(own->conversation, NULL, 0, 0) + json_dumpb(response, NULL, 0, 0);
    if (json_array_append_new(own->conversation, message) || bytes > SHELF_BYTES || !own->store)
        return;
    pthread_mutex_lock(&s->mutex);
    struct shelf_entry *e = shelf_place(&s->shelf, bytes);
    *e = (struct shelf_entry){.key = a->key,
                              .bytes = bytes,
                              .conversation = json_incref(own->conversation),
                              .response = json_incref(response)};
    snprintf(e->id, sizeof e->id, "%s", json_string_value(json_object_get(response, "id")));
    s->shelf.bytes += bytes;
    pthread_mutex_unlock(&s->mutex);
}

/* A copy of the conversation that this request continues. */
static json_t *responses_before(struct request *a, const char *id)
{
    pthread_mutex_lock(&a->server->mutex);
    const struct shelf_entry *e = shelf_find(&a->server->shelf, id, a->key);
    json_t *kept = e ? json_incref(e->conversation) : NULL;
    pthread_mutex_unlock(&a->server->mutex);
    if (!kept)
        request_fail(a, 404, "previous_response_id", "there is no response '%s', or it is kept no longer",
                     log_safe(id));
    json_t *copy = kept ? json_deep_copy(kept) : NULL;
    json_decref(kept);
    return copy;
}

/* ---- the request ---- */

static json_t *responses_conversation(struct request *a, const json_t *body)
{
    const char *before = field_text(body, "previous_response_id");
    const json_t *input = json_object_get(body, "input"), *item;
    json_t *all = before ? responses_before(a, before) : json_array();
    size_t i;
    int failed = !all;
    if (json_is_string(input))
        failed =
            failed || json_array_append_new(all, json_pack("{s:s,s:O}", "role", "user", "content", input));
    json_array_foreach(input, i, item) failed = failed || responses_item(a, item, i, all);
    if (!failed)
        return all;
    json_decref(all);
    if (!a->failure.status)
        request_fail(a, 503, NULL, "out of memory");
    return NULL;
}

/* Only functions: what runs at OpenAI's, or is written in a syntax of its own, is refused. NULL and a failure. */
static json_t *responses_tools(struct request *a, const json_t *tools)
{
    json_t *out = json_array();
    const json_t *t;
    size_t i;
    json_array_foreach(tools, i, t)
    {
        const char *type = field_text(t, "type");
        if (!type || strcmp(type, "function") != 0) {
            json_decref(out);
            refuse_tool(a, i, type ? type : "?");
            return NULL;
        }
        json_array_append_new(out, json_pack("{s:s,s:O}", "type", "function", "function", t));
    }
    return out;
}

static json_t *responses_format(const json_t *format)
{
    const char *type = field_text(format, "type");
    if (type && !strcmp(type, "json_schema"))
        return json_pack("{s:s,s:O}", "type", type, "json_schema", format);
    return json_incref((json_t *)(uintptr_t)format);
}

/* Asked for by include, or by the number of likely tokens beside each one. */
static void responses_logprobs(const json_t *body, json_t *out)
{
    int64_t tops = field_int(body, "top_logprobs", 0);
    bool wanted = tops > 0;
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(body, "include"), i, v)
    {
        const char *name = json_string_value(v);
        wanted |= name && !strcmp(name, "message.output_text.logprobs");
    }
    if (wanted) {
        json_object_set_new(out, "logprobs", json_true());
        json_object_set_new(out, "top_logprobs", json_integer(tops));
    }
}

/* NULL and a failure. */
static json_t *responses_translate(struct request *a, const json_t *body, const json_t *conversation)
{
    static const char *const same[][2] = {{"model", "model"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"stream", "stream"},
                                          {"tool_choice", "tool_choice"},
                                          {"parallel_tool_calls", "parallel_tool_calls"},
                                          {"max_output_tokens", "max_tokens"},
                                          {"seed", "seed"},
                                          {"stop", "stop"},
                                          {"chat_template_kwargs", "chat_template_kwargs"}};
    json_t *out = json_object(), *messages = json_copy((json_t *)(uintptr_t)conversation);
    const char *instructions = field_text(body, "instructions"),
               *effort = field_text(json_object_get(body, "reasoning"), "effort");
    const json_t *format = json_object_get(json_object_get(body, "text"), "format");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(body, same[i][0]))
            json_object_set(out, same[i][1], json_object_get(body, same[i][0]));
    if (instructions)
        json_array_insert_new(messages, 0, json_pack("{s:s,s:s}", "role", "system", "content", instructions));
    if (effort)
        json_object_set_new(out, "reasoning_effort", json_string(effort));
    if (format)
        json_object_set_new(out, "response_format", responses_format(format));
    responses_logprobs(body, out);
    json_object_set_new(out, "messages", messages);
    json_object_set_new(out, "continue_final_message", json_false()); /* every response is a new turn */
    if (json_object_get(body, "tools"))
        json_object_set_new(out, "tools", responses_tools(a, json_object_get(body, "tools")));
    if (!a->failure.status)
        return out;
    json_decref(out);
    return NULL;
}

/* The request as a chat; NULL and a failure. */
static json_t *responses_read(struct request *a)
{
    json_t *body = a->json;
    struct responses *own = a->format_state = mem_zalloc(1, sizeof *own);
    struct err e = {0};
    const char *name = NULL;
    if (!own)
        request_fail(a, 503, NULL, "out of memory");
    else if (field_check(body, responses_fields, sizeof responses_fields / sizeof *responses_fields, &name,
                         &e))
        request_fail(a, 400, name, "%s", e.text);
    else if (refuse_fields(a, body, responses_refused, sizeof responses_refused / sizeof *responses_refused))
        return NULL;
    else if (!json_object_get(body, "input") && !json_object_get(body, "previous_response_id"))
        request_fail(a, 400, "input", "input is missing");
    if (a->failure.status || !(own->conversation = responses_conversation(a, body)))
        return NULL;
    own->asked = json_incref(body);
    own->store = !json_is_false(json_object_get(body, "store"));
    own->output = json_array();
    own->probs = json_array();
    own->probs_new = json_array();
    return responses_translate(a, body, own->conversation);
}

void responses_create(struct request *a)
{
    json_t *chat = responses_read(a);
    if (chat)
        openai_as(a, chat, openai_chat);
}

void responses_count(struct request *a)
{
    json_t *chat = responses_read(a);
    if (!chat)
        return;
    json_decref(a->json);
    a->json = chat;
    if (!openai_prompt(a))
        buf_printf(&a->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                   a->prompts[0].len);
}

/* ---- stored responses ---- */

/* The response that the path names, removed from the store or not; NULL and a reply. */
static json_t *responses_named(struct conn *c, bool out)
{
    char id[64] = "";
    bool named = route_part(c, 0, id, sizeof id);
    pthread_mutex_lock(&c->server->mutex);
    struct shelf_entry *e = named ? shelf_find(&c->server->shelf, id, c->key) : NULL;
    json_t *kept = e ? json_incref(e->response) : NULL;
    if (e && out)
        shelf_empty(&c->server->shelf, e);
    pthread_mutex_unlock(&c->server->mutex);
    if (!kept)
        conn_failf(c, 404, NULL, "there is no response '%s', or it is kept no longer", log_safe(id));
    return kept;
}

void responses_get(struct conn *c)
{
    json_t *kept = responses_named(c, false);
    struct buf out = {0};
    if (kept) {
        message_json(&out, kept);
        route_json(c, 200, &out);
    }
}

void responses_delete(struct conn *c)
{
    json_t *kept = responses_named(c, true);
    struct buf out = {0};
    if (kept) {
        message_json(&out, json_pack("{s:O,s:s,s:b}", "id", json_object_get(kept, "id"), "object", "response",
                                     "deleted", 1));
        route_json(c, 200, &out);
    }
    json_decref(kept);
}
