/* Anthropic's messages: brought into the form of OpenAI's chats. Runs on a worker. */
#include "base/buf.h"
#include "base/log.h"
#include "serve/anthropic.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/refuse.h"
#include "serve/request.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const struct field anthropic_fields[] = {
    {"messages", FIELD_LIST, 1, 4096},      {"system", FIELD_TEXT | FIELD_LIST, 0, 4096},
    {"tools", FIELD_LIST, 0, 128},          {"tool_choice", FIELD_OBJECT, 1, 16},
    {"thinking", FIELD_OBJECT, 1, 16},      {"output_config", FIELD_OBJECT, 0, 16},
    {"output_format", FIELD_OBJECT, 0, 16}, {"stop_sequences", FIELD_LIST, 0, OPENAI_STOPS},
};

static const struct refusal anthropic_refused[] = {
    {"mcp_servers", "this server calls no MCP servers; give their tools as functions"},
    {"container", "this server runs no code"},
    {"thread", "this server keeps no conversations; send all messages"},
};

/* The text of a text block, or of a text document without citations. NULL = none. */
static const json_t *block_text(const json_t *block)
{
    const char *type = field_text(block, "type");
    const json_t *source = json_object_get(block, "source");
    const char *kind = field_text(source, "type");
    const json_t *text = type && !strcmp(type, "text") ? json_object_get(block, "text") : NULL;
    if (type && !strcmp(type, "document") && kind && !strcmp(kind, "text") &&
        !field_bool(json_object_get(block, "citations"), "enabled"))
        text = json_object_get(source, "data");
    return json_is_string(text) ? text : NULL;
}

/* The texts of blocks in one; a block of another kind is refused. */
static json_t *anthropic_text(struct request *a, const json_t *content, const char *where)
{
    struct buf out = {0};
    const json_t *block;
    size_t i;
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    json_array_foreach(content, i, block)
    {
        const char *type = field_text(block, "type");
        const json_t *text = block_text(block);
        if (!text) {
            request_fail(a, 400, where, "%s: a block of type '%s' cannot be read; %s", where,
                         log_safe(type ? type : "?"), request_reads(a, type));
            buf_free(&out);
            return NULL;
        }
        buf_str(&out, out.len ? "\n" : "");
        buf_add(&out, json_string_value(text), json_string_length(text));
    }
    json_t *s = json_stringn(out.data ? out.data : "", out.len);
    buf_free(&out);
    return s;
}

/* An image in OpenAI's form; the base64 is shared, not copied. NULL and a failure. */
static json_t *anthropic_image(struct request *a, const json_t *block, const char *where)
{
    const json_t *source = json_object_get(block, "source"), *data = json_object_get(source, "data");
    const char *kind = field_text(source, "type"), *url = field_text(source, "url");
    if (kind && !strcmp(kind, "base64") && json_is_string(data))
        return json_pack("{s:s,s:O}", "type", "image", "data", data);
    if (kind && !strcmp(kind, "url") && url)
        return json_pack("{s:s,s:{s:s}}", "type", "image_url", "image_url", "url", url);
    request_fail(a, 400, where,
                 "%s: the source of an image has to be of type base64 with data, or url with a url", where);
    return NULL;
}

static bool block_is_image(const json_t *block)
{
    const char *type = field_text(block, "type");
    return type && !strcmp(type, "image");
}

/* A text; with images among the blocks, a list of parts. NULL and a failure. */
static json_t *anthropic_content(struct request *a, const json_t *content, const char *where)
{
    json_t *block, *parts;
    bool images = false;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)content, i, block) images |= block_is_image(block);
    if (!images || !(parts = json_array()))
        return anthropic_text(a, content, where);
    json_array_foreach((json_t *)(uintptr_t)content, i, block)
    {
        json_t *one = json_pack("[O]", block),
               *text = block_is_image(block) ? NULL : anthropic_text(a, one, where);
        json_t *part = text                ? json_pack("{s:s,s:o}", "type", "text", "text", text)
                       : a->failure.status ? NULL
                                           : anthropic_image(a, block, where);
        json_decref(one);
        if (!part || json_array_append_new(parts, part)) {
            json_decref(parts);
            return NULL;
        }
    }
    return parts;
}

/* What one message becomes: results of tools first, each a message of its own, then the rest. */
struct anthropic_turn {
    json_t *text, *calls, *thoughts; /* of the message */
    json_t *to;                      /* all messages so far */
};

static int turn_block(struct request *a, struct anthropic_turn *t, const json_t *block, const char *where)
{
    const char *type = field_text(block, "type");
    const json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content");
    if (type && !strcmp(type, "tool_result")) {
        json_t *text = content ? anthropic_content(a, content, where) : json_string("");
        return text && id ? json_array_append_new(t->to, json_pack("{s:s,s:O,s:o}", "role", "tool",
                                                                   "tool_call_id", id, "content", text))
                          : (json_decref(text),
                             request_fail(a, 400, where, "%s: a tool_result needs a tool_use_id", where));
    }
    if (type && !strcmp(type, "tool_use")) {
        const char *name = field_text(block, "name");
        json_t *input = json_object_get(block, "input"), *own = json_object_get(block, "id");
        if (!name || !own)
            return request_fail(a, 400, where, "%s: a tool_use needs an id and a name", where);
        return json_array_append_new(t->calls, json_pack("{s:O,s:s,s:{s:s,s:o}}", "id", own, "type",
                                                         "function", "function", "name", name, "arguments",
                                                         input ? json_incref(input) : json_object()));
    }
    if (type && !strcmp(type, "thinking"))
        return json_array_append_new(
            t->thoughts, json_pack("{s:s,s:s}", "type", "text", "text",
                                   field_text(block, "thinking") ? field_text(block, "thinking") : ""));
    if (type && !strcmp(type, "redacted_thinking"))
        return 0;
    return json_array_append(t->text, (json_t *)(uintptr_t)block);
}

static int anthropic_turn(struct request *a, const json_t *m, size_t at, json_t *to)
{
    const char *role = field_text(m, "role");
    const json_t *content = json_object_get(m, "content"), *block;
    struct anthropic_turn t = {json_array(), json_array(), json_array(), to};
    char where[FAILURE_PARAM];
    size_t i;
    int failed = 0;
    snprintf(where, sizeof where, "messages.%zu", at);
    if (!role || (!json_is_string(content) && !json_is_array(content)))
        failed = request_fail(a, 400, where, "%s has to have a role and a content", where);
    json_array_foreach(content, i, block) failed = failed || turn_block(a, &t, block, where);
    json_t *text = failed ? NULL : anthropic_content(a, json_is_string(content) ? content : t.text, where);
    bool calls = json_array_size(t.calls), empty = json_is_string(text) && !json_string_length(text);
    if (text && (calls || !empty || json_is_string(content) || !strcmp(role, "assistant"))) {
        json_t *out = json_pack("{s:s,s:O}", "role", role, "content", text);
        failed = (calls && json_object_set(out, "tool_calls", t.calls)) ||
                 (json_array_size(t.thoughts) &&
                  json_object_set_new(out, "reasoning_content", anthropic_text(a, t.thoughts, where))) ||
                 json_array_append_new(to, out);
    }
    failed = failed || !text;
    json_decref(text);
    json_decref(t.text);
    json_decref(t.calls);
    json_decref(t.thoughts);
    return failed ? -1 : 0;
}

static json_t *anthropic_conversation(struct request *a, const json_t *body)
{
    const json_t *system = json_object_get(body, "system"), *m;
    json_t *to = json_array();
    size_t i;
    int failed = 0;
    if (system) {
        json_t *text = anthropic_text(a, system, "system");
        failed =
            !text || json_array_append_new(to, json_pack("{s:s,s:o}", "role", "system", "content", text));
    }
    json_array_foreach(json_object_get(body, "messages"), i, m) failed =
        failed || anthropic_turn(a, m, i, to);
    if (!failed)
        return to;
    json_decref(to);
    return NULL;
}

/* NULL and a failure: one is no function. */
static json_t *anthropic_tools(struct request *a, const json_t *tools)
{
    json_t *out = json_array();
    const json_t *t;
    size_t i;
    json_array_foreach(tools, i, t)
    {
        const char *type = field_text(t, "type");
        if (type && strcmp(type, "custom") != 0) {
            json_decref(out);
            refuse_tool(a, i, type);
            return NULL;
        }
        json_t *f = json_object(), *schema = json_object_get(t, "input_schema");
        json_object_set(f, "name", json_object_get(t, "name"));
        if (json_object_get(t, "description"))
            json_object_set(f, "description", json_object_get(t, "description"));
        if (json_object_get(t, "strict"))
            json_object_set(f, "strict", json_object_get(t, "strict"));
        json_object_set_new(f, "parameters",
                            schema ? json_incref(schema) : json_pack("{s:s}", "type", "object"));
        json_array_append_new(out, json_pack("{s:s,s:o}", "type", "function", "function", f));
    }
    return out;
}

static int anthropic_choice(struct request *a, const json_t *choice, json_t *out)
{
    static const char *const types[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const char *type = field_text(choice, "type"), *name = field_text(choice, "name");
    if (type && name && !strcmp(type, "tool"))
        return json_object_set_new(out, "tool_choice",
                                   json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i][0]))
            return json_object_set_new(out, "tool_choice", json_string(types[i][1]));
    return request_fail(a, 400, "tool_choice",
                        "tool_choice has to be of type auto, any, none, or tool with a name");
}

/* output_config.format, or output_format as it was called before. */
static int anthropic_format(struct request *a, const json_t *body, json_t *out)
{
    const json_t *config = json_object_get(body, "output_config"),
                 *format = json_object_get(config, "format");
    const char *field = "output_config.format";
    if (!json_is_object(format)) {
        format = json_object_get(body, "output_format");
        field = "output_format";
    }
    const char *type = field_text(format, "type");
    json_t *schema = json_object_get(format, "schema");
    if (!format || (type && !strcmp(type, "text")))
        return 0;
    if (!schema || (type && strcmp(type, "json_schema") != 0))
        return request_fail(a, 400, field, "%s has to be of type json_schema, with a schema", field);
    return json_object_set_new(
        out, "response_format",
        json_pack("{s:s,s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

/* A budget above max_tokens is not reached. */
static int anthropic_budget(struct request *a, json_t *budget, json_t *out)
{
    int64_t n;
    if (!budget)
        return 0;
    if (!field_whole(budget, 0, INT64_MAX, &n))
        return request_fail(a, 400, "thinking", "thinking.budget_tokens has to be a whole number of tokens");
    return json_object_set(out, "reasoning_budget", budget) ? request_fail(a, 503, NULL, "out of memory") : 0;
}

/* How hard to think. */
static int anthropic_thinking(struct request *a, const json_t *body, json_t *out)
{
    static const char *const types[] = {"enabled", "adaptive", "between_tools", "disabled"};
    const json_t *thinking = json_object_get(body, "thinking"),
                 *config = json_object_get(body, "output_config");
    const char *type = field_text(thinking, "type"), *effort = field_text(config, "effort");
    bool known = false;
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        known |= !strcmp(type, types[i]);
    if (thinking && !known)
        return request_fail(a, 400, "thinking", "thinking has to be of type enabled, adaptive or disabled");
    if (type && !json_object_get(out, "chat_template_kwargs"))
        json_object_set_new(out, "chat_template_kwargs",
                            json_pack("{s:b}", "enable_thinking", strcmp(type, "disabled") != 0));
    if (effort)
        json_object_set_new(out, "reasoning_effort", json_string(effort));
    return anthropic_budget(a, json_object_get(thinking, "budget_tokens"), out);
}

static int anthropic_use_tools(struct request *a, const json_t *body, json_t *out)
{
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    json_t *made = json_array_size(tools) ? anthropic_tools(a, tools) : NULL;
    if (made)
        json_object_set_new(out, "tools", made);
    if (a->failure.status || (choice && anthropic_choice(a, choice, out)))
        return -1;
    if (field_bool(choice, "disable_parallel_tool_use"))
        json_object_set_new(out, "parallel_tool_calls", json_false());
    return 0;
}

/* The body in OpenAI's format; NULL and a failure. */
static json_t *anthropic_translate(struct request *a, const json_t *body)
{
    static const char *const same[] = {"model",
                                       "max_tokens",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "stream",
                                       "chat_template_kwargs",
                                       "seed",
                                       "min_p",
                                       "continue_final_message",
                                       "add_generation_prompt"};
    struct err e = {0};
    const char *name = NULL;
    if (field_check(body, anthropic_fields, sizeof anthropic_fields / sizeof *anthropic_fields, &name, &e))
        request_fail(a, 400, name, "%s", e.text);
    else
        refuse_fields(a, body, anthropic_refused, sizeof anthropic_refused / sizeof *anthropic_refused);
    json_t *messages = a->failure.status ? NULL : anthropic_conversation(a, body), *out = NULL;
    if (messages && (out = json_pack("{s:o}", "messages", messages))) {
        for (size_t i = 0; i < sizeof same / sizeof *same; i++)
            if (json_object_get(body, same[i]))
                json_object_set(out, same[i], json_object_get(body, same[i]));
        if (json_object_get(body, "stop_sequences"))
            json_object_set(out, "stop", json_object_get(body, "stop_sequences"));
        if (anthropic_use_tools(a, body, out) || anthropic_format(a, body, out) ||
            anthropic_thinking(a, body, out)) {
            json_decref(out);
            out = NULL;
        }
    } else if (!a->failure.status)
        request_fail(a, 503, NULL, "out of memory");
    return out;
}

void anthropic_messages(struct request *a)
{
    json_t *chat = anthropic_translate(a, a->json);
    if (chat)
        openai_as(a, chat, openai_chat);
}

void anthropic_count(struct request *a)
{
    json_t *chat = anthropic_translate(a, a->json);
    if (!chat)
        return;
    json_decref(a->json);
    a->json = chat;
    if (!openai_prompt(a))
        buf_printf(&a->reply, "{\"input_tokens\":%zu}", a->prompts[0].len);
}
