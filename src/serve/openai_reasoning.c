/* How long a request lets the model reason: a budget in tokens, by any of the names that APIs have for it, or an effort,
 * which is a variable of the template and, where the template does not know it, a budget. */
#include "lang/chat/chat.h"
#include "run/reasoning.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

/* In order of precedence; -1 = no limit. */
static const struct field budget_fields[] = {
    {"reasoning_budget", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"reasoning_budget_tokens", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"thinking_budget", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"thinking_budget_tokens", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"thinking_token_budget", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
};
enum { BUDGET_FIELDS = sizeof budget_fields / sizeof *budget_fields };

/* Fields of objects that hold a budget or an effort, too. */
static const struct {
    const char *object, *name;
} budget_places[] = {{"thinking", "budget_tokens"},
                     {"reasoning", "max_tokens"},
                     {"reasoning", "effort"},
                     {"chat_template_kwargs", "thinking_budget"}};

/* A number in one of those places. */
static int budget_place(struct request *a, const json_t *body, size_t at, int64_t *out)
{
    const json_t *object = json_object_get(body, budget_places[at].object),
                 *v = json_object_get(object, budget_places[at].name);
    if (!json_is_number(v))
        return 0;
    if (!field_whole(v, -1, OPENAI_TOKENS, out))
        return request_fail(a, 400, budget_places[at].object,
                            "%s.%s has to be a whole number of tokens, or -1", budget_places[at].object,
                            budget_places[at].name);
    return 1;
}

/* 1: there is one; 0: there is none. */
static int budget_read(struct request *a, const json_t *body, int64_t *out)
{
    struct err e = {0};
    const char *name = NULL;
    if (field_check(body, budget_fields, BUDGET_FIELDS, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    for (size_t i = 0; i < BUDGET_FIELDS; i++)
        if (json_object_get(body, budget_fields[i].name)) {
            *out = field_int(body, budget_fields[i].name, -1);
            return 1;
        }
    const json_t *effort = json_object_get(body, "reasoning_effort");
    if (json_is_number(effort)) {
        *out = field_int(body, "reasoning_effort", -1);
        return 1;
    }
    int found = 0;
    for (size_t i = 0; i < sizeof budget_places / sizeof *budget_places && !found; i++)
        found = budget_place(a, body, i, out);
    return found;
}

/* The template's variables: the level of the effort, and whether to reason at all. */
static int effort_set(json_t *set, const char *effort, bool none)
{
    return (effort && json_object_set_new(set, "reasoning_effort", json_string(effort))) ||
           (none && (json_object_set_new(set, "enable_thinking", json_false()) ||
                     json_object_set_new(set, "thinking", json_false())));
}

int openai_reasoning(struct request *a, struct request_draft *q, json_t *set)
{
    const struct session *l = a->model->session;
    struct reasoning_rule *r = &q->request.reasoning;
    const char *effort = field_text(q->body, "reasoning_effort");
    effort = effort ? effort : field_text(json_object_get(q->body, "reasoning"), "effort");
    int64_t budget = -1;
    int given = budget_read(a, q->body, &budget);
    if (given < 0)
        return -1;
    *r = (struct reasoning_rule){.counted = true, .calls = a->tools != NULL, .most = l->reasoning_budget};
    if (given)
        r->most = budget < 0 || budget > UINT32_MAX ? REASONING_UNLIMITED : (uint32_t)budget;
    else if (effort && !(l->chat && chat_capabilities(l->chat).effort))
        r->most = reasoning_effort(effort);
    bool none = !r->most || (effort && !strcmp(effort, "none"));
    if (effort_set(set, effort, none))
        return request_fail(a, 503, NULL, "out of memory");
    return 0;
}
