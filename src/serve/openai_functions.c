/* The older form of tools: functions and function_call, in requests, in messages and in replies. A request becomes one with
 * tools; request.functions says that its reply has the older form. */
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static int functions_tools(struct request *a, json_t *body)
{
    const json_t *functions = json_object_get(body, "functions");
    json_t *tools = json_array(), *f;
    size_t i;
    if (json_array_size(json_object_get(body, "tools"))) {
        json_decref(tools);
        return request_fail(a, 400, "functions",
                            "functions and tools are two names for one thing; send one of them");
    }
    json_array_foreach(functions, i, f)
    {
        if (!json_is_object(f) || !field_text(f, "name")) {
            json_decref(tools);
            return request_fail(a, 400, "functions", "functions[%zu] has to be an object with a name", i);
        }
        json_array_append_new(tools, json_pack("{s:s,s:O}", "type", "function", "function", f));
    }
    a->functions = true;
    return json_object_set_new(body, "tools", tools) ||
           json_object_set_new(body, "parallel_tool_calls", json_false()); /* that format has room for one */
}

/* "none", "auto" or {"name": ...} */
static int functions_choice(struct request *a, json_t *body)
{
    json_t *call = json_object_get(body, "function_call");
    const char *word = json_string_value(call), *name = field_text(call, "name");
    if (word && (!strcmp(word, "none") || !strcmp(word, "auto")))
        return json_object_set(body, "tool_choice", call);
    if (!name)
        return request_fail(a, 400, "function_call",
                            "function_call has to be 'none', 'auto' or {\"name\": ...}");
    return json_object_set_new(body, "tool_choice",
                               json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name));
}

/* An assistant's call, or a function's result; at: index of the message. The id has nine letters and digits,
 * since some templates require that. */
static int functions_message(struct request *a, json_t *message, size_t at, unsigned *calls)
{
    json_t *call = json_object_get(message, "function_call");
    const char *role = field_text(message, "role");
    char id[16];
    if (role && !strcmp(role, "assistant") && json_is_object(call)) {
        json_t *arguments = json_object_get(call, "arguments");
        if (!field_text(call, "name"))
            return request_fail(a, 400, "messages", "the function_call of messages[%zu] has no name", at);
        snprintf(id, sizeof id, "call%05u", ++*calls % 100000);
        json_t *made = json_pack("[{s:s,s:s,s:{s:O,s:o}}]", "id", id, "type", "function", "function", "name",
                                 json_object_get(call, "name"), "arguments",
                                 arguments ? json_incref(arguments) : json_string("{}"));
        json_object_del(message, "function_call");
        return json_object_set_new(message, "tool_calls", made) ? request_fail(a, 503, NULL, "out of memory")
                                                                : 0;
    }
    if (role && !strcmp(role, "function")) {
        snprintf(id, sizeof id, "call%05u", *calls % 100000);
        if (!field_text(message, "name"))
            return request_fail(a, 400, "messages", "messages[%zu] is a function's: it needs the name of it",
                                at);
        return json_object_set_new(message, "role", json_string("tool")) ||
                       json_object_set_new(message, "tool_call_id", json_string(id))
                   ? request_fail(a, 503, NULL, "out of memory")
                   : 0;
    }
    return 0;
}

int openai_functions(struct request *a, json_t *body)
{
    json_t *message;
    unsigned calls = 0;
    size_t i;
    if (json_array_size(json_object_get(body, "functions")) && functions_tools(a, body))
        return a->failure.status ? -1 : request_fail(a, 503, NULL, "out of memory");
    if (json_object_get(body, "function_call") && functions_choice(a, body))
        return a->failure.status ? -1 : request_fail(a, 503, NULL, "out of memory");
    json_array_foreach(json_object_get(body, "messages"), i, message)
    {
        if (json_is_object(message) && functions_message(a, message, i, &calls))
            return -1;
    }
    return 0;
}
