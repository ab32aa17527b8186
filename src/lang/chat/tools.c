#define _GNU_SOURCE
#include "lang/chat/tools.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "lang/chat/output.h"

#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

static const char *tools_field(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

int tools_check(const json_t *tools, struct err *e)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = output_function(tools, i), *parameters = json_object_get(f, "parameters");
        const char *name = tools_field(f, "name");
        if (!name || !output_is_name(name))
            return err_set(e, ERR_USAGE,
                           "tools[%zu] has to be a function with a name: letters, digits, _ - . : /", i);
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return err_set(e, ERR_USAGE, "the parameters of tools[%zu] have to be a JSON schema", i);
    }
    return 0;
}

bool tools_strict(const json_t *tools)
{
    bool strict = false;
    for (size_t i = 0; i < json_array_size(tools); i++)
        strict |= json_is_true(json_object_get(output_function(tools, i), "strict"));
    return strict;
}

/* Text that goes before everything else in the prompt. */
static char *tools_text(const json_t *tools)
{
    struct buf out = {0};
    buf_str(&out, "You can call these functions:\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char *text = json_dumps(output_function(tools, i), JSON_COMPACT);
        buf_printf(&out, "%s\n", text ? text : "");
        mem_free(text);
    }
    buf_str(&out,
            "To call one, answer with\n<tool_call>\n{\"name\": NAME, \"arguments\": {...}}\n</tool_call>\n");
    return out.data;
}

/* An assistant's message, with its calls written out after the text. */
static int tools_write_calls(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    const json_t *content = json_object_get(message, "content");
    struct buf out = {0};
    if (!json_array_size(calls))
        return 0;
    if (json_is_string(content))
        buf_add(&out, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = output_function(calls, i), *arguments = json_object_get(f, "arguments");
        const char *name = tools_field(f, "name");
        char *text = json_is_string(arguments) ? mem_strdup(json_string_value(arguments))
                                               : json_dumps(arguments, JSON_COMPACT);
        buf_printf(&out, "%s<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>",
                   out.len ? "\n" : "", name ? name : "", text ? text : "{}");
        mem_free(text);
    }
    json_object_del(message, "tool_calls");
    int failed = json_object_set_new(message, "content", json_stringn(out.data, out.len));
    buf_free(&out);
    return failed;
}

/* A tool's result becomes a user message: some templates support no other roles. */
static int tools_write_result(json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    struct buf out = {0};
    if (!json_is_string(content))
        return 0;
    buf_str(&out, "<tool_response>\n");
    buf_add(&out, json_string_value(content), json_string_length(content));
    buf_str(&out, "\n</tool_response>");
    int failed = json_object_set_new(message, "content", json_stringn(out.data, out.len)) ||
                 json_object_set_new(message, "role", json_string("user"));
    buf_free(&out);
    return failed;
}

/* Puts the text in front of the first message of the role, or of all. */
static int tools_introduce(json_t *messages, const char *text, bool system)
{
    json_t *first = json_array_get(messages, 0);
    const json_t *content = json_object_get(first, "content");
    const char *role = tools_field(first, "role");
    bool joins =
        json_is_string(content) && role && (!strcmp(role, "system") || !strcmp(role, "developer") || !system);
    struct buf out = {0};
    if (!joins)
        return json_array_insert_new(
            messages, 0, json_pack("{s:s,s:s}", "role", system ? "system" : "user", "content", text));
    buf_printf(&out, "%s\n", text);
    buf_add(&out, json_string_value(content), json_string_length(content));
    int failed = json_object_set_new(first, "content", json_stringn(out.data, out.len));
    buf_free(&out);
    return failed;
}

json_t *tools_spell(const struct chat *c, const json_t *given, const json_t *tools)
{
    struct chat_caps caps = chat_capabilities(c);
    json_t *messages = json_deep_copy(given), *m;
    char *text = tools ? tools_text(tools) : NULL;
    size_t i;
    int failed = !messages || (tools && !text);
    json_array_foreach(messages, i, m)
    {
        const char *role = tools_field(m, "role");
        failed = failed || tools_write_calls(m) || (role && !strcmp(role, "tool") && tools_write_result(m));
    }
    failed = failed || (text && tools_introduce(messages, text, caps.system));
    mem_free(text);
    if (!failed)
        return messages;
    json_decref(messages);
    return NULL;
}

char *tools_call_id(bool nine)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[24] = {0};
    char id[sizeof random + 8] = "call_";
    size_t at = nine ? 0 : 5, n = nine ? 9 : sizeof random;
    ssize_t got = getrandom(random, sizeof random, 0);
    (void)got;
    for (size_t i = 0; i < n; i++)
        id[at++] = letters[random[i] % (sizeof letters - 1)];
    id[at] = 0;
    return mem_strdup(id);
}

char *tools_call_text(const char *text)
{
    struct buf clean = {0};
    utf8_clean(&clean, text, strlen(text));
    char *copy = clean.failed ? NULL : mem_strdup(clean.data ? clean.data : "");
    buf_free(&clean);
    return copy;
}
