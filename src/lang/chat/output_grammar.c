/* Calls as a language: what the family writes around them, and each tool's schema inside. */
#include "lang/grammar/constraint_run.h"
#include "lang/chat/output_maker.h"

#include <string.h>

static struct gram *maker_text(struct maker *m, const char *s)
{
    return gram_text(m->g, s ? s : "");
}

/* ---- arguments ---- */

static struct gram *maker_value(struct maker *m, const json_t *schema)
{
    return gram_call(m->g, schema_read(m->g, schema));
}

/* A copy that we keep, with these two keys where they are missing. */
static json_t *maker_copy(struct maker *m, const json_t *schema, const char *key, const json_t *value)
{
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : json_object();
    if (value && !json_object_get(copy, key))
        json_object_set(copy, key, (json_t *)(uintptr_t)value);
    if (json_array_append_new(m->own, copy))
        err_memory(&m->g->err, "a schema", 64);
    return copy;
}

struct gram *maker_object(struct maker *m, const json_t *function)
{
    json_t *type = json_string("object");
    const json_t *schema = m->rule->loose ? NULL : json_object_get(function, "parameters");
    json_t *object = maker_copy(m, schema, "type", type);
    json_decref(type);
    return maker_value(m, object);
}

/* Any text without `end` in it. */
static struct gram *maker_until(struct maker *m, const char *end)
{
    struct ranges all = {0};
    ranges_add(m->g, &all, 0, 0x10ffff);
    struct gram *any = gram_rep(m->g, gram_class(m->g, &all, false), 0, GRAMMAR_MOST);
    const struct dfa *every = dfa_make(m->g, any);
    const struct dfa *with = dfa_make(m->g, gram_seq(m->g, any, gram_text(m->g, end), any));
    const struct dfa *d = every && with ? dfa_combine(m->g, every, with, DFA_MINUS) : NULL;
    return d ? gram_dfa(m->g, d) : gram_fail(m->g);
}

/* A value between tags: texts as they are. */
static struct gram *maker_tagged(struct maker *m, const json_t *schema, const json_t *whole)
{
    const json_t *values = json_object_get(schema, "enum"), *v;
    struct gram_items texts = {0};
    size_t i;
    if (m->rule->loose)
        return maker_until(m, m->wrap->tags->value_close);
    if (!output_is_text(schema))
        return maker_value(m, maker_copy(m, schema, "$defs", json_object_get(whole, "$defs")));
    json_array_foreach(values, i, v)
        gram_push(m->g, &texts, gram_bytes(m->g, json_string_value(v), json_string_length(v)));
    return texts.n ? gram_list(m->g, GRAM_ALT, texts.at, texts.n)
                   : maker_until(m, m->wrap->tags->value_close);
}

static struct gram *maker_tag(struct maker *m, const char *key, const json_t *schema, const json_t *whole)
{
    const struct output_tags *t = m->wrap->tags;
    return gram_seq(m->g, m->space, maker_text(m, t->key_open), gram_text(m->g, key),
                    maker_text(m, t->key_close), maker_text(m, output_is_text(schema) ? t->text : t->json),
                    t->value_open && t->value_open[0] == '<' ? m->space : maker_text(m, ""),
                    maker_text(m, t->value_open), maker_tagged(m, schema, whole),
                    maker_text(m, t->value_close));
}

/* key=value or key:value, as code has it; texts in quotes. */
static struct gram *maker_pair(struct maker *m, const char *key, const json_t *schema, const json_t *whole)
{
    const json_t *value =
        m->rule->loose ? json_true() : maker_copy(m, schema, "$defs", json_object_get(whole, "$defs"));
    return gram_seq(m->g, gram_text(m->g, key), gram_text(m->g, m->wrap->mid ? ":" : "="),
                    maker_value(m, value));
}

static bool maker_needs(const json_t *schema, const char *key)
{
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i,
                       v) if (json_is_string(v) && !strcmp(json_string_value(v), key)) return true;
    return false;
}

/* The declared arguments in their order, those that are not required optional. Rule 2 i + f is what may come from
 * argument i on, f: nothing has come yet. Only code has something between them. */
static struct gram *maker_arguments(struct maker *m, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    json_t *properties = json_object_get(schema, "properties"), *one;
    bool code = m->wrap->shape == SHAPE_CODE;
    const char *key;
    uint32_t rule[2] = {grammar_rule(m->g), grammar_rule(m->g)}, first = rule[1];
    json_object_foreach(properties, key, one)
    {
        uint32_t next[2] = {grammar_rule(m->g), grammar_rule(m->g)};
        struct gram *item = code ? maker_pair(m, key, one, schema) : maker_tag(m, key, one, schema);
        for (int f = 0; f < 2; f++) {
            struct gram *with =
                gram_seq(m->g, gram_text(m->g, code && !f ? ", " : ""), item, gram_call(m->g, next[0]));
            grammar_define(m->g, rule[f],
                           maker_needs(schema, key) ? with : gram_alt(m->g, with, gram_call(m->g, next[f])));
        }
        memcpy(rule, next, sizeof rule);
    }
    for (int f = 0; f < 2; f++)
        grammar_define(m->g, rule[f], gram_text(m->g, ""));
    return gram_call(m->g, first);
}

/* ---- one call ---- */

static struct gram *maker_json(struct maker *m, const char *name, const json_t *function)
{
    const char *const *keys = m->wrap->keys;
    struct gram *sp = m->space, *colon = gram_seq(m->g, gram_text(m->g, "\":"), sp);
    if (m->wrap->shape == SHAPE_KEYED)
        return gram_seq(m->g, gram_text(m->g, "{\""), gram_text(m->g, name), colon, maker_object(m, function),
                        sp, gram_text(m->g, "}"));
    return gram_seq(m->g, gram_text(m->g, "{"), sp, gram_text(m->g, "\""),
                    gram_text(m->g, keys[0] ? keys[0] : "name"), colon, gram_text(m->g, "\""),
                    gram_text(m->g, name), gram_text(m->g, "\","), sp, gram_text(m->g, "\""),
                    gram_text(m->g, keys[1] ? keys[1] : "arguments"), colon, maker_object(m, function), sp,
                    gram_text(m->g, "}"));
}

static struct gram *maker_named(struct maker *m, const char *name, const json_t *function)
{
    const struct output_wrap *w = m->wrap;
    struct gram *digits = gram_rep(m->g, gram_ascii(m->g, "09"), 1, 2), *none = gram_text(m->g, "");
    bool fenced = strstr(w->mid, "```") != NULL;
    struct gram *mid = gram_text(m->g, w->mid);
    for (size_t i = 0; i < 2 && w->mid_too[i]; i++)
        mid = gram_alt(m->g, mid, gram_text(m->g, w->mid_too[i]));
    return gram_seq(m->g, w->id_before ? gram_seq(m->g, digits, gram_text(m->g, w->id_before)) : none,
                    gram_text(m->g, w->numbered ? "functions." : ""), gram_text(m->g, name),
                    w->numbered ? gram_seq(m->g, gram_text(m->g, ":"), digits) : none, mid,
                    maker_object(m, function), gram_text(m->g, fenced ? "\n```" : ""));
}

static struct gram *maker_body(struct maker *m, const char *name, const json_t *function)
{
    const struct output_tags *t = m->wrap->tags;
    const char *mid = m->wrap->mid ? m->wrap->mid : "(";
    switch (m->wrap->shape) {
    case SHAPE_JSON:
    case SHAPE_KEYED:
        return maker_json(m, name, function);
    case SHAPE_NAMED:
        return maker_named(m, name, function);
    case SHAPE_TAGS:
        return gram_seq(m->g, maker_text(m, t->name_open), gram_text(m->g, name),
                        maker_text(m, t->name_close), maker_text(m, t->name_rest),
                        maker_arguments(m, function), m->space, maker_text(m, t->end));
    case SHAPE_CODE:
        return gram_seq(m->g, gram_text(m->g, name),
                        gram_rep(m->g, gram_text(m->g, ".call"), 0, m->rule->free && *mid == '('),
                        gram_text(m->g, mid), maker_arguments(m, function),
                        gram_text(m->g, *mid == '{' ? "}" : ")"));
    }
    return gram_fail(m->g);
}

struct gram *maker_any(struct maker *m)
{
    struct gram_items all = {0};
    for (size_t i = 0; i < json_array_size(m->rule->tools); i++) {
        const json_t *f = output_function(m->rule->tools, i);
        const char *name = json_string_value(json_object_get(f, "name"));
        if (name && (!m->rule->only || !strcmp(name, m->rule->only)))
            gram_push(m->g, &all, maker_body(m, name, f));
    }
    return all.n ? gram_list(m->g, GRAM_ALT, all.at, all.n) : gram_fail(m->g);
}

/* ---- all of them ---- */

static const struct output_wrap *form_wrap(const struct output_form *f)
{
    static const struct output_wrap bare = {
        .open = "", .close = "", .shape = SHAPE_JSON, .keys = {"name", "parameters"}};
    return f->bare == BARE_USUAL ? &bare : &f->wraps[0];
}

const char *output_trigger(const struct output_form *f)
{
    return f->bare == BARE_USUAL ? "{\"name\"" : f->section[0] ? f->section[0] : f->wraps[0].open;
}

/* What stands around a call or a list of them; texts in tags begin with a space of their own. */
static struct gram *maker_wrapped(struct maker *m, struct gram *body)
{
    bool loose = m->wrap->shape == SHAPE_JSON || m->wrap->shape == SHAPE_KEYED ||
                 (m->wrap->shape == SHAPE_TAGS && m->wrap->tags->name_open);
    struct gram *sp = loose || m->wrap->list || m->wrap->lines ? m->space : gram_text(m->g, "");
    return gram_seq(m->g, gram_text(m->g, m->wrap->open), sp, body, sp, gram_text(m->g, m->wrap->close));
}

/* All of them within a section, where the form has one. */
static struct gram *maker_section(struct maker *m, struct gram *all)
{
    const char *const *section = m->form->section;
    if (!section[0])
        return all;
    return gram_seq(m->g, gram_text(m->g, section[0]), m->space, all, m->space, gram_text(m->g, section[1]));
}

struct gram *maker_calls(struct maker *m)
{
    uint32_t most = m->rule->many && !m->wrap->single ? GRAMMAR_MOST : 0;
    uint32_t one = grammar_rule(m->g);
    struct gram *sp = m->space, *call = gram_call(m->g, one);
    if (m->wrap->list) {
        grammar_define(m->g, one, maker_any(m));
        struct gram *more = gram_rep(m->g, gram_seq(m->g, gram_text(m->g, ","), sp, call), 0, most);
        return maker_wrapped(m,
                             gram_seq(m->g, gram_text(m->g, "["), sp, call, more, sp, gram_text(m->g, "]")));
    }
    if (m->wrap->lines) {
        grammar_define(m->g, one, maker_any(m));
        struct gram *more = gram_rep(m->g, gram_seq(m->g, gram_text(m->g, "\n"), call), 0, most);
        return maker_wrapped(m, gram_seq(m->g, call, more));
    }
    grammar_define(m->g, one, maker_wrapped(m, maker_any(m)));
    /* without marks a second call could not be told from text */
    most = *m->wrap->open ? most : 0;
    return gram_seq(m->g, call, gram_rep(m->g, gram_seq(m->g, sp, call), 0, most));
}

/* Only calls, or a text of the schema that was asked for. A model may write a line end before it ends. */
static struct gram *maker_held(struct maker *m)
{
    struct gram *all = maker_section(m, maker_calls(m));
    if (m->rule->answer)
        all = gram_alt(m->g, all, maker_value(m, m->rule->answer));
    return gram_seq(m->g, m->space, all, m->space);
}

struct constraint *output_constraint(const struct output_form *f, const struct output_rule *r, struct err *e)
{
    struct grammar g;
    grammar_init(&g);
    struct maker m = {.g = &g, .form = f, .wrap = form_wrap(f), .rule = r, .own = json_array()};
    m.space = gram_rep(&g, gram_ascii(&g, "  \n\n"), 0, 2);
    uint32_t root = grammar_rule(&g);
    grammar_define(&g, root, r->free ? maker_free(&m) : maker_held(&m));
    if (r->thinking && !r->free)
        root = grammar_behind(&g, r->thought->close, root);
    struct constraint *c = constraint_make(&g, root, e);
    json_decref(m.own);
    return c;
}
