/* Tools and output formats: how they enter the prompt, and the constraint on the output. */
#include "base/log.h"
#include "lang/chat/tools.h"
#include "run/prefill.h"
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

/* A template that does not mention tools gets them in words. */
static int tools_in_words(struct request *a, struct request_draft *q)
{
    json_t *messages = tools_spell(a->model->session->chat, json_object_get(q->body, "messages"), a->tools);
    int failed = !messages || json_object_set(q->body, "messages", messages);
    json_decref(messages);
    return failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

int openai_tools(struct request *a, struct request_draft *q)
{
    json_t *tools = json_object_get(q->body, "tools");
    const struct session *l = a->model->session;
    struct err e = {0};
    a->tools = json_array_size(tools) ? json_incref(tools) : NULL;
    q->many = !json_is_false(json_object_get(q->body, "parallel_tool_calls"));
    if (tools_check(a->tools, &e))
        return request_fail(a, 400, "tools", "%s", e.text);
    if (tools_choice(a, q, json_object_get(q->body, "tool_choice")))
        return -1;
    if (!l->chat || chat_capabilities(l->chat).tools)
        return 0;
    return tools_in_words(a, q);
}

/* ---- the constraint ---- */

/* Sets the constraint's start. A required call begins in the prompt, or after the reasoning if the prompt has
 * opened one. */
static int constraint_begin(struct request *a, struct request_draft *q, const struct output_want *want)
{
    const struct session *l = a->model->session;
    const char *lead;
    struct err e = {0};
    if (prefill_lead(l, want, &a->prefill, q->call_begun, &lead, &q->lead, &e))
        return request_fail(a, 400, "messages", "%s", e.text);
    if ((q->lead &&
         tokenizer_encode(l->tokenizer, q->lead, strlen(q->lead), TOK_SPECIAL, &a->prompts[0], &e)) ||
        (lead && constraint_ref_set_lead(q->constraint, lead, &e)))
        return request_fail(a, 503, NULL, "%s", e.text);
    if (a->tools)
        constraint_ref_set_yielding(q->constraint);
    return 0;
}

/* Applies an output format. */
static int openai_set_constraint(struct request *a, struct request_draft *q, const struct wanted *wanted)
{
    struct err e = {0};
    if (a->tools && wanted->kind > WANT_SCHEMA)
        return request_fail(a, 400, wanted->field, "%s does not go together with tools", wanted->field);
    const struct output_want want = {.kind = wanted->kind,
                                     .value = wanted->value,
                                     .tools = a->tools,
                                     .only = q->only,
                                     .must = q->must,
                                     .many = q->many,
                                     .thinking = q->thinking};
    if (output_want_constraint(a->model->session, &want, &q->constraint, &e))
        return request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, a->tools ? "tools" : wanted->field, "%s",
                            e.text);
    if (!q->constraint)
        return 0;
    q->request.constraint = q->constraint;
    a->endless = false; /* under a constraint an end token ends */
    return constraint_begin(a, q, &want);
}

int openai_constrain(struct request *a, struct request_draft *q)
{
    struct wanted wanted = {0};
    int failed = openai_wanted(a, q->body, &wanted) || openai_set_constraint(a, q, &wanted);
    json_decref(wanted.value);
    return failed ? -1 : 0;
}
