#include "run/output_want.h"

#include "base/mem.h"
#include "lang/chat/tools.h"

#include <string.h>

/* behind: the reasoning that the prompt has opened ends with this; NULL = there is none. */
static struct constraint *want_format(const struct output_want *w, const char *behind, struct err *e)
{
    static const enum constraint_language languages[] = {[WANT_SCHEMA] = LANGUAGE_SCHEMA,
                                                         [WANT_GRAMMAR] = LANGUAGE_GBNF,
                                                         [WANT_REGEX] = LANGUAGE_REGEX,
                                                         [WANT_CHOICE] = LANGUAGE_CHOICES};
    struct constraint_spec spec = {.language = languages[w->kind],
                                   .schema = w->value,
                                   .text = json_string_value(w->value),
                                   .n = json_string_length(w->value),
                                   .behind = behind};
    if (w->kind != WANT_CHOICE)
        return constraint_from(&spec, e);
    spec.n = json_array_size(w->value);
    const char **texts = mem_zalloc(spec.n, sizeof *texts);
    if (!texts) {
        err_memory(e, "choices", spec.n * sizeof *texts);
        return NULL;
    }
    for (size_t i = 0; i < spec.n; i++)
        texts[i] = json_string_value(json_array_get(w->value, i));
    spec.choices = texts;
    struct constraint *c = constraint_from(&spec, e);
    mem_free(texts);
    return c;
}

/* The language of calls. A schema that cannot be enforced becomes any object, unless a tool is strict. */
static struct constraint *want_calls(const struct session *l, const struct output_want *w, struct err *e)
{
    struct output_rule r = {.tools = w->tools,
                            .only = w->only,
                            .many = w->many,
                            .answer = w->must ? NULL : w->value,
                            .free = !w->must && !w->kind,
                            .thought = l->thought,
                            .thinking = w->thinking};
    struct err first = {0};
    struct constraint *c = output_constraint(l->form, &r, &first);
    if (!c && first.code == ERR_DATA && !tools_strict(w->tools)) {
        r.loose = true;
        c = output_constraint(l->form, &r, e);
    } else if (!c)
        *e = first;
    return c;
}

/* The cache key: all that the constraint depends on, as a text. */
static char *want_key(const struct output_want *w)
{
    json_t *all =
        json_pack("[O?,s?,b,b,b,i,O?]", w->tools, w->only, w->many, w->must, w->thinking, w->kind, w->value);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    return text;
}

static int want_find(struct session *l, const struct output_want *w, struct constraint_ref **out,
                     struct err *e)
{
    /* marks of calls and reasoning may be control tokens */
    const struct constraint_vocab *v =
        w->tools || w->thinking ? session_call_vocab(l, e) : session_vocab(l, e);
    char *text = v ? want_key(w) : NULL;
    if (!text)
        return v ? err_memory(e, "a constraint", 1) : -1;
    const struct constraint_cache_key key = {v, text, strlen(text)};
    int failed = 0;
    if (!(*out = constraint_cache_find(l->constraints, &key))) {
        const char *behind = w->thinking ? l->thought->close : NULL;
        struct constraint *c = w->tools ? want_calls(l, w, e) : want_format(w, behind, e);
        failed = c ? constraint_ref_open(out, c, v, e) : -1;
        if (!failed)
            constraint_cache_keep(l->constraints, &key, *out);
    }
    mem_free(text);
    return failed;
}

int output_want_constraint(struct session *l, const struct output_want *w, struct constraint_ref **out,
                           struct err *e)
{
    struct err why = {0};
    *out = NULL;
    if (!w->kind && !w->tools)
        return 0;
    if (!want_find(l, w, out, &why) ||
        (!w->kind && !w->must && why.code == ERR_DATA && !tools_strict(w->tools)))
        return 0;
    return err_set(e, why.code, "%s", why.text);
}
