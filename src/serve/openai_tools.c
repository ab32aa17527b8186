/* Tools and output formats: how they enter the prompt, and the constraint on the output. */
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

/* ---- which tools ---- */

/* The name in {"type": "function", "function": {"name": ...}}, also without the inner object. */
static const char *tools_name(const json_t *o)
{
    const json_t *f = json_object_get(o, "function");
    return field_text(json_is_object(f) ? f : o, "name");
}

static int tools_check(struct request *a, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = output_function(tools, i), *parameters = json_object_get(f, "parameters");
        const char *name = field_text(f, "name");
        if (!name || !output_is_name(name))
            return request_fail(a, 400, "tools",
                                "tools[%zu] has to be a function with a name: letters, digits, _ - . : /", i);
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return request_fail(a, 400, "tools", "the parameters of tools[%zu] have to be a JSON schema", i);
    }
    return 0;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}} */
static int tools_allow(struct request *a, struct request_draft *q, const json_t *allowed)
{
    const json_t *inner = json_object_get(allowed, "allowed_tools"), *o = inner ? inner : allowed, *one;
    const char *mode = field_text(o, "mode");
    json_t *some = json_array();
    size_t i;
    json_array_foreach(json_object_get(o, "tools"), i, one)
    {
        const char *name = tools_name(one);
        const json_t *f = name ? output_tool(a->tools, name) : NULL;
        if (!f || json_array_append_new(some, json_pack("{s:s,s:O}", "type", "function", "function", f))) {
            json_decref(some);
            return request_fail(a, 400, "tool_choice", "tool_choice allows a tool that tools does not have");
        }
    }
    json_decref(a->tools);
    a->tools = some;
    q->must = mode && !strcmp(mode, "required");
    return 0;
}

static int tools_choice(struct request *a, struct request_draft *q, const json_t *choice)
{
    const char *word = json_string_value(choice), *type = field_text(choice, "type");
    if (!choice || (word && !strcmp(word, "auto")))
        return 0;
    if (word && !strcmp(word, "none")) {
        json_decref(a->tools);
        a->tools = NULL;
        return 0;
    }
    if (!a->tools)
        return request_fail(a, 400, "tool_choice", "tool_choice asks for a call, and there are no tools");
    if (word && (!strcmp(word, "required") || !strcmp(word, "any"))) {
        q->must = true;
        return 0;
    }
    if (type && !strcmp(type, "allowed_tools"))
        return tools_allow(a, q, choice);
    const char *name = tools_name(choice);
    if (!name)
        return request_fail(a, 400, "tool_choice",
                            "tool_choice has to be 'none', 'auto', 'required' or "
                            "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (!output_tool(a->tools, name))
        return request_fail(a, 400, "tool_choice", "tool_choice names '%s', which tools does not have",
                            log_safe(name));
    q->only = name;
    q->must = true;
    q->many = false;
    return 0;
}

/* ---- templates without support for tools ---- */

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
        const char *name = field_text(f, "name");
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
    const char *role = field_text(first, "role");
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

/* Tools in words, for a template that does not mention them. */
static int tools_spell(struct request *a, struct request_draft *q)
{
    struct chat_caps caps = chat_capabilities(a->model->session->chat);
    json_t *messages = json_deep_copy(json_object_get(q->body, "messages")), *m;
    char *text = a->tools ? tools_text(a->tools) : NULL;
    size_t i;
    int failed = !messages || (a->tools && !text);
    json_array_foreach(messages, i, m)
    {
        const char *role = field_text(m, "role");
        failed = failed || tools_write_calls(m) || (role && !strcmp(role, "tool") && tools_write_result(m));
    }
    failed = failed || (text && tools_introduce(messages, text, caps.system)) ||
             json_object_set(q->body, "messages", messages);
    json_decref(messages);
    mem_free(text);
    return failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

int openai_tools(struct request *a, struct request_draft *q)
{
    json_t *tools = json_object_get(q->body, "tools");
    const struct session *l = a->model->session;
    a->tools = json_array_size(tools) ? json_incref(tools) : NULL;
    q->many = !json_is_false(json_object_get(q->body, "parallel_tool_calls"));
    if (tools_check(a, a->tools) || tools_choice(a, q, json_object_get(q->body, "tool_choice")))
        return -1;
    if (!l->chat || chat_capabilities(l->chat).tools)
        return 0;
    return tools_spell(a, q);
}

/* ---- the constraint ---- */

static bool tools_strict(const json_t *tools)
{
    bool strict = false;
    for (size_t i = 0; i < json_array_size(tools); i++)
        strict |= field_bool(output_function(tools, i), "strict");
    return strict;
}

/* The language of calls. A schema that cannot be enforced becomes any object, unless a tool is strict. */
static struct constraint *openai_call_constraint(struct request *a, const struct request_draft *q,
                                                 const struct wanted *wanted, struct err *e)
{
    const struct output_form *f = a->model->session->form;
    struct output_rule r = {.tools = a->tools,
                            .only = q->only,
                            .many = q->many,
                            .answer = q->must ? NULL : wanted->value,
                            .free = !q->must && !wanted->kind,
                            .thought = a->model->session->thought,
                            .thinking = q->thinking};
    struct err first = {0};
    struct constraint *c = output_constraint(f, &r, &first);
    if (!c && first.code == ERR_DATA && !tools_strict(a->tools)) {
        r.loose = true;
        c = output_constraint(f, &r, e);
    } else if (!c)
        *e = first;
    return c;
}

/* Sets the constraint's start. A required call begins in the prompt, or after the reasoning if the prompt has
 * opened one. */
static int constraint_begin(struct request *a, struct request_draft *q, bool shaped)
{
    const struct session *l = a->model->session;
    const char *lead = q->lead = q->must && !q->thinking ? output_trigger(l->form) : NULL;
    struct err e = {0};
    if (prefill_start(a, q, shaped, &lead))
        return -1;
    if ((q->lead && tokenizer_encode(l->tokenizer, lead, strlen(lead), TOK_SPECIAL, &a->prompts[0], &e)) ||
        (lead && constraint_ref_set_lead(q->constraint, lead, &e)))
        return request_fail(a, 503, NULL, "%s", e.text);
    if (a->tools)
        constraint_ref_set_yielding(q->constraint);
    return 0;
}

/* The cache key of the constraint: all that it depends on, as a text. */
static char *constraint_text(const struct request *a, const struct request_draft *q,
                             const struct wanted *wanted)
{
    json_t *all = json_pack("[O?,s?,b,b,b,i,O?]", a->tools, q->only, q->many, q->must, q->thinking,
                            wanted->kind, wanted->value);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    return text;
}

/* The constraint, from the cache or compiled now. */
static int openai_get_constraint(struct request *a, struct request_draft *q, const struct wanted *wanted,
                                 struct err *e)
{
    struct session *l = a->model->session;
    /* marks of calls and reasoning may be control tokens */
    const struct constraint_vocab *v =
        a->tools || q->thinking ? session_call_vocab(l, e) : session_vocab(l, e);
    char *text = v ? constraint_text(a, q, wanted) : NULL;
    if (!text)
        return v ? err_memory(e, "a constraint", 1) : -1;
    const struct constraint_cache_key key = {v, text, strlen(text)};
    int failed = 0;
    if (!(q->constraint = constraint_cache_find(l->constraints, &key))) {
        const char *behind = q->thinking ? l->thought->close : NULL;
        struct constraint *c =
            a->tools ? openai_call_constraint(a, q, wanted, e) : wanted_constraint(wanted, behind, e);
        failed = c ? constraint_ref_open(&q->constraint, c, v, e) : -1;
        if (!failed)
            constraint_cache_keep(l->constraints, &key, q->constraint);
    }
    mem_free(text);
    return failed;
}

/* Applies an output format. */
static int openai_set_constraint(struct request *a, struct request_draft *q, const struct wanted *wanted)
{
    struct err e = {0};
    if (a->tools && wanted->kind > WANTED_SCHEMA)
        return request_fail(a, 400, wanted->field, "%s does not go together with tools", wanted->field);
    if (!wanted->kind && !a->tools)
        return 0;
    int failed = openai_get_constraint(a, q, wanted, &e);
    if (failed && !wanted->kind && !q->must && e.code == ERR_DATA && !tools_strict(a->tools))
        return 0; /* calls that cannot be enforced are allowed, and parsed as far as possible */
    if (failed)
        return request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, a->tools ? "tools" : wanted->field, "%s",
                            e.text);
    q->request.constraint = q->constraint;
    a->endless = false; /* under a constraint an end token ends */
    return constraint_begin(a, q, wanted->kind);
}

int openai_constrain(struct request *a, struct request_draft *q)
{
    struct wanted wanted = {0};
    int failed = openai_wanted(a, q->body, &wanted) || openai_set_constraint(a, q, &wanted);
    json_decref(wanted.value);
    return failed ? -1 : 0;
}
