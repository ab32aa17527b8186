/* OpenAI's responses: requests brought into the form of chats. */
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/threads.h"
#include "serve/field.h"
#include "serve/limit.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/refuse.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXT_ITEMS = 8192 }; /* of all turns that a request goes on from */

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
    {"conversation", FIELD_TEXT | FIELD_OBJECT, 0, 16},
    {"metadata", FIELD_OBJECT, 0, 16},
    {"include", FIELD_LIST, 0, 64},
    {"top_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"truncation", FIELD_TEXT, 0, 0},
};

static const struct refusal responses_refused[] = {
    {"prompt", "this server keeps no prompts; send instructions and input"},
    {"moderation", "this server judges no texts"},
};

/* ---- the request ---- */

/* Stored items on their way into messages. */
struct context {
    struct request *request;
    json_t *messages;
    size_t count, bytes;
};

static bool context_take(void *context, const struct thread_item *item)
{
    struct context *c = context;
    struct request *a = c->request;
    c->bytes += item->n;
    if (c->count++ >= CONTEXT_ITEMS || c->bytes > limit_of(LIMIT_RESPONSE)) {
        request_fail(a, 400, "input", "the conversation has grown too long: %d items, or --limit response",
                     CONTEXT_ITEMS);
        return false;
    }
    json_t *one = json_loadb(item->body, item->n, 0, NULL);
    int failed = !one || responses_item(a, one, c->count - 1, c->messages);
    json_decref(one);
    return !failed;
}

/* The messages that this request goes on from; NULL and a failure. */
static json_t *responses_before(struct request *a, const struct responses *own)
{
    struct state *state = a->server->o->state;
    struct context c = {.request = a, .messages = json_array()};
    struct err e = {0};
    const struct thread_page all = {.conversation = own->conversation, .limit = CONTEXT_ITEMS + 1};
    int missing = 0;
    if (!own->previous[0] && !own->conversation[0])
        return c.messages;
    sqlite3 *db = state_reader(state);
    missing = own->previous[0] ? thread_chain(db, a->owner, own->previous, true, context_take, &c, &e)
                               : thread_items(db, a->owner, &all, context_take, &c, &e);
    state_release(state, db);
    if (missing < 0)
        request_fail_state(a, &e);
    else if (missing)
        request_fail(a, 404, own->previous[0] ? "previous_response_id" : "conversation",
                     "there is no %s '%s', or it is kept no longer",
                     own->previous[0] ? "response" : "conversation",
                     log_safe(own->previous[0] ? own->previous : own->conversation));
    if (!a->failure.status)
        return c.messages;
    json_decref(c.messages);
    return NULL;
}

/* Adds an item of the request to the messages, and to what is stored. */
static int responses_input(struct request *a, const json_t *item, size_t at, json_t *messages)
{
    struct responses *own = a->format_state;
    bool stored = own->store || own->conversation[0];
    return responses_item(a, item, at, messages) || (stored && responses_items_add(&own->input, item)) ? -1
                                                                                                       : 0;
}

static json_t *responses_conversation(struct request *a, const json_t *body)
{
    const struct responses *own = a->format_state;
    json_t *input = json_object_get(body, "input"), *item, *all = responses_before(a, own);
    size_t i;
    int failed = !all;
    if (json_is_string(input) && !failed) {
        item = json_pack("{s:s,s:s,s:O}", "type", "message", "role", "user", "content", input);
        failed = !item || responses_input(a, item, 0, all);
        json_decref(item);
    }
    json_array_foreach(input, i, item) failed = failed || responses_input(a, item, i, all);
    if (!failed && own->input.bytes > limit_of(LIMIT_RESPONSE))
        failed = request_fail(a, 413, "input",
                              "the input has more bytes than a stored response may have (--limit response)");
    if (!failed)
        return all;
    json_decref(all);
    if (!a->failure.status)
        request_fail(a, 503, NULL, "out of memory");
    return NULL;
}

/* What is stored, and from what it goes on. */
static int responses_storage(struct request *a, const json_t *body)
{
    struct responses *own = a->format_state;
    const json_t *conversation = json_object_get(body, "conversation");
    const char *previous = field_text(body, "previous_response_id"),
               *id = json_is_object(conversation) ? field_text(conversation, "id")
                                                  : json_string_value(conversation);
    struct err e = {0};
    own->store = !json_is_false(json_object_get(body, "store")) && a->server->o->state;
    own->background = json_is_true(json_object_get(body, "background"));
    if (conversation && !id)
        return request_fail(a, 400, "conversation", "conversation is an id, or an object with an id");
    if (previous && id)
        return request_fail(a, 400, "previous_response_id",
                            "previous_response_id and conversation exclude each other");
    if (own->background && !own->store)
        return request_fail(a, 400, "background", "background needs store: the answer is fetched later");
    if ((previous && strlen(previous) >= THREAD_ID) || (id && strlen(id) >= THREAD_ID))
        return request_fail(a, 404, previous ? "previous_response_id" : "conversation",
                            "there is no such id");
    snprintf(own->previous, THREAD_ID, "%s", previous ? previous : "");
    snprintf(own->conversation, THREAD_ID, "%s", id ? id : "");
    if ((previous || id) && !a->server->o->state)
        return request_fail(a, 400, previous ? "previous_response_id" : "conversation",
                            "nothing is stored here");
    if ((own->store || id) && state_check(a->server->o->state, &e))
        return request_fail_state(a, &e);
    return 0;
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
                                          {"chat_template_kwargs", "chat_template_kwargs"},
                                          {"reasoning", "reasoning"},
                                          {"reasoning_budget", "reasoning_budget"}};
    json_t *out = json_object(), *messages = json_copy((json_t *)(uintptr_t)conversation);
    const char *instructions = field_text(body, "instructions");
    const json_t *format = json_object_get(json_object_get(body, "text"), "format");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(body, same[i][0]))
            json_object_set(out, same[i][1], json_object_get(body, same[i][0]));
    if (instructions)
        json_array_insert_new(messages, 0, json_pack("{s:s,s:s}", "role", "system", "content", instructions));
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
static json_t *responses_as_chat(struct request *a)
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
    else if (!json_object_get(body, "input") && !json_object_get(body, "previous_response_id") &&
             !json_object_get(body, "conversation"))
        request_fail(a, 400, "input", "input is missing");
    if (a->failure.status || responses_storage(a, body))
        return NULL;
    json_t *messages = responses_conversation(a, body);
    if (!messages)
        return NULL;
    own->asked = json_incref(body);
    own->output = json_array();
    own->probs = json_array();
    own->probs_new = json_array();
    json_t *chat = responses_translate(a, body, messages);
    json_decref(messages);
    return chat;
}

void responses_create(struct request *a)
{
    json_t *chat = responses_as_chat(a);
    if (chat)
        openai_as(a, chat, openai_chat);
}

void responses_count(struct request *a)
{
    json_t *chat = responses_as_chat(a);
    if (!chat)
        return;
    json_decref(a->json);
    a->json = chat;
    if (!openai_prompt(a))
        buf_printf(&a->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                   a->prompts[0].len);
}
