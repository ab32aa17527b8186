/* Arrays and objects of JSON schema.
 *
 * An object is a chain of rules, one for each declared property in the schema's order and each number of
 * properties written so far (which matters only where it is bounded; otherwise it says whether a comma is due):
 *
 *   at(i, c)  =  [","] "name i": value at(i + 1, c + 1)  |  at(i + 1, c) where it may be left out
 *   at(n, c)  =  the others, as far as they are allowed, and "}"
 *
 * The others have keys that are none of the declared ones; with patternProperties they fall into cells, one for
 * each set of patterns that a key can match. */
#include "lang/schema.h"

#include "base/buf.h"

#include <string.h>

static void refuse_keywords(struct schema *s, const struct conj *c, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (conj_has(c, words[i]))
            schema_refuse(s, "%s is not supported", words[i]);
}

/* --- arrays --- */

static const json_t *array_prefix(const json_t *part)
{
    const json_t *prefix = json_object_get(part, "prefixItems"), *items = json_object_get(part, "items");
    return prefix ? prefix : json_is_array(items) ? items : NULL; /* a list of items is the older drafts' */
}

void schema_item(struct schema *s, const struct conj *c, uint32_t i, struct conj *out)
{
    out->n = 0;
    out->never = false;
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *part = c->part[k].s, *prefix = array_prefix(part),
                     *items = json_object_get(part, "items");
        const json_t *rest = json_is_array(items) ? json_object_get(part, "additionalItems") : items;
        if (!rest)
            rest = json_object_get(part, "unevaluatedItems");
        const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
        if (one)
            conj_add(s, out, one, 0);
    }
}

static void array_check(struct schema *s, const struct conj *c, uint32_t most)
{
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *part = c->part[k].s, *least = json_object_get(part, "minContains");
        if (json_is_true(json_object_get(part, "uniqueItems")) && most > 1)
            schema_refuse(s, "uniqueItems is not supported");
        if (json_object_get(part, "contains") &&
            (!least || json_number_value(least) != 0 || json_object_get(part, "maxContains")))
            schema_refuse(s, "contains is not supported");
        if (json_object_get(part, "prefixItems") && !json_is_array(json_object_get(part, "prefixItems")))
            schema_refuse(s, "prefixItems is a list of schemas");
    }
}

struct gram *schema_array(struct schema *s, const struct conj *c)
{
    struct grammar *g = s->g;
    uint32_t min = conj_least(s, c, "minItems", 0), max = conj_most(s, c, "maxItems", GRAMMAR_MOST),
             named = 0;
    array_check(s, c, max);
    for (uint32_t k = 0; k < c->n; k++)
        if (json_array_size(array_prefix(c->part[k].s)) > named)
            named = (uint32_t)json_array_size(array_prefix(c->part[k].s));
    if (min > max)
        return gram_fail(g);
    struct gram *close = gram_text(g, "]"), *comma = gram_seq(g, gram_text(g, ","), schema_space(s));
    struct conj item;
    schema_item(s, c, named, &item);
    if (item.never && max > named)
        max = named;
    if (min > max)
        return gram_fail(g);
    /* From the end: after `i` elements. */
    struct gram *value = schema_value(s, &item), *at = NULL;
    struct gram *end = gram_seq(g, schema_space(s), close);
    if (max > named) {
        uint32_t first = named ? named : 1, most = max == GRAMMAR_MOST ? max : max - first;
        at = gram_seq(g, gram_rep(g, gram_seq(g, comma, value), min > first ? min - first : 0, most), end);
        if (!named)
            at = gram_seq(g, value, at);
    }
    if (named || !at)
        at = at ? at : named ? end : gram_fail(g);
    for (uint32_t i = named < max ? named : max; i-- > 0 && !schema_stop(s);) {
        schema_item(s, c, i, &item);
        struct gram *one = schema_value(s, &item);
        /* Each level is a rule, so that the tree stays flat. */
        uint32_t rule = grammar_rule(g);
        if (i + 1 < min)
            grammar_define(g, rule, gram_seq(g, i ? comma : gram_text(g, ""), one, at));
        else
            grammar_define(g, rule,
                           gram_alt(g, gram_seq(g, i ? comma : gram_text(g, ""), one, at),
                                    i && i >= min ? end : gram_fail(g)));
        at = gram_call(g, rule);
    }
    struct gram *empty = min == 0 ? close : gram_fail(g);
    return gram_seq(g, gram_text(g, "["), schema_space(s), gram_alt(g, empty, max ? at : gram_fail(g)));
}

/* --- objects --- */

bool schema_required(const struct conj *c, const char *name)
{
    for (uint32_t k = 0; k < c->n; k++) {
        size_t i;
        json_t *one;
        json_array_foreach(json_object_get(c->part[k].s, "required"), i, one)
        {
            if (json_is_string(one) && !strcmp(json_string_value(one), name))
                return true;
        }
    }
    return false;
}

static const json_t *object_others(const json_t *part)
{
    const json_t *others = json_object_get(part, "additionalProperties");
    return others ? others : json_object_get(part, "unevaluatedProperties");
}

static bool dfa_matches(struct schema *s, const struct dfa *d, const char *name)
{
    struct buf text = {0};
    schema_quote(&text, name, strlen(name));
    bool in = d && dfa_accepts(d, text.len ? text.data : "", text.len);
    if (text.failed)
        err_memory(&s->g->err, "a schema", text.len);
    buf_free(&text);
    return in;
}

/* The keys that propertyNames leaves; NULL = all. */
static const struct dfa *object_names(struct schema *s, const struct conj *c)
{
    const struct dfa *all = NULL;
    for (uint32_t k = 0; k < c->n && !schema_stop(s); k++) {
        const json_t *names = json_object_get(c->part[k].s, "propertyNames");
        struct conj one = {0};
        uint32_t part, bit;
        if (!names)
            continue;
        conj_add(s, &one, names, 0);
        const struct dfa *d = NULL;
        if (one.never || !(conj_types(s, &one) & T_STRING))
            d = dfa_make(s->g, gram_fail(s->g));
        else if (conj_choice(&one, &part, &bit))
            schema_refuse(s, "propertyNames is supported for patterns, lengths, formats and lists");
        else if (conj_has(&one, "enum") || conj_has(&one, "const")) {
            struct gram_items l = {0};
            json_t *values = conj_values(s, &one), *v;
            size_t i;
            json_array_foreach(values, i, v)
            {
                struct buf text = {0};
                if (json_is_string(v)) {
                    schema_quote(&text, json_string_value(v), json_string_length(v));
                    gram_push(s->g, &l, gram_bytes(s->g, text.len ? text.data : "", text.len));
                }
                buf_free(&text);
            }
            json_decref(values);
            d = dfa_make(s->g, gram_list(s->g, GRAM_ALT, l.at, l.n));
        } else
            d = schema_string_dfa(s, &one);
        if (d)
            all = all ? dfa_combine(s->g, all, d, DFA_AND) : d;
    }
    return all;
}

void schema_property(struct schema *s, const struct conj *c, const char *name, struct conj *out)
{
    const char *pattern;
    json_t *schema;
    out->n = 0;
    out->never = false;
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *part = c->part[k].s, *own = json_object_get(json_object_get(part, "properties"), name);
        bool known = own != NULL;
        if (own)
            conj_add(s, out, own, 0);
        json_object_foreach(json_object_get(part, "patternProperties"), pattern, schema)
        {
            if (!dfa_matches(s, schema_pattern_dfa(s, pattern), name))
                continue;
            known = true;
            conj_add(s, out, schema, 0);
        }
        if (!known && object_others(part))
            conj_add(s, out, object_others(part), 0);
    }
}

struct object {
    struct schema *s;
    const struct conj *c;
    json_t *names; /* declared or required, in order: an object used as a set */
    const struct dfa *allowed;
    uint32_t min, max, counts;         /* counts: how many are told apart */
    struct gram *comma, *end, *member; /* member: one of the others, NULL = none is allowed */
    struct gram_items members;
    const char *pattern[SCHEMA_PATTERNS];
    const struct dfa *match[SCHEMA_PATTERNS];
    uint32_t patterns;
};

static void object_read(struct object *o)
{
    struct schema *s = o->s;
    const char *key;
    json_t *v;
    size_t i;
    for (uint32_t k = 0; k < o->c->n; k++) {
        const json_t *part = o->c->part[k].s, *required = json_object_get(part, "required");
        json_t *properties = json_object_get(part, "properties"),
               *by = json_object_get(part, "patternProperties");
        if ((properties && !json_is_object(properties)) || (by && !json_is_object(by)) ||
            (required && !json_is_array(required)))
            schema_refuse(s, "properties and patternProperties are objects, required is a list of names");
        json_object_foreach(properties, key, v) json_object_set_new(o->names, key, json_null());
        json_object_foreach(by, key, v)
        {
            uint32_t at = 0;
            while (at < o->patterns && strcmp(o->pattern[at], key))
                at++;
            if (at < o->patterns)
                continue;
            if (at == SCHEMA_PATTERNS) {
                schema_refuse(s, "more than %d patternProperties at once are not supported", SCHEMA_PATTERNS);
                return;
            }
            o->pattern[o->patterns] = key;
            o->match[o->patterns++] = schema_pattern_dfa(s, key);
        }
    }
    for (uint32_t k = 0; k < o->c->n; k++)
        json_array_foreach(json_object_get(o->c->part[k].s, "required"), i, v)
        {
            if (!json_is_string(v))
                schema_refuse(s, "required is a list of names");
            else if (!json_object_get(o->names, json_string_value(v)))
                json_object_set_new(o->names, json_string_value(v), json_null());
        }
}

/* What holds for a key that is not declared and matches exactly the patterns of the set. */
static void object_cell_value(struct object *o, uint32_t set, struct conj *out)
{
    out->n = 0;
    out->never = false;
    for (uint32_t k = 0; k < o->c->n; k++) {
        const json_t *part = o->c->part[k].s, *by = json_object_get(part, "patternProperties");
        bool known = false;
        for (uint32_t p = 0; p < o->patterns; p++) {
            const json_t *one = set >> p & 1 ? json_object_get(by, o->pattern[p]) : NULL;
            if (!one)
                continue;
            known = true;
            conj_add(o->s, out, one, 0);
        }
        if (!known && object_others(part))
            conj_add(o->s, out, object_others(part), 0);
    }
}

/* ": value" behind a key, which has its quotes. */
static struct gram *object_member(struct object *o, struct gram *key, const struct conj *value)
{
    struct grammar *g = o->s->g;
    return gram_seq(g, key, gram_text(g, ":"), schema_space(o->s), schema_value(o->s, value));
}

/* The keys that are left once the declared ones are taken away. */
static const struct dfa *object_other_keys(struct object *o)
{
    struct schema *s = o->s;
    struct gram_items l = {0};
    const char *key;
    json_t *v;
    json_object_foreach(o->names, key, v)
    {
        struct buf text = {0};
        schema_quote(&text, key, strlen(key));
        gram_push(s->g, &l, gram_bytes(s->g, text.len ? text.data : "", text.len));
        buf_free(&text);
    }
    const struct dfa *all = o->allowed ? o->allowed : schema_keys(s);
    if (!l.n)
        return all;
    return dfa_combine(s->g, all, dfa_make(s->g, gram_list(s->g, GRAM_ALT, l.at, l.n)), DFA_MINUS);
}

static void object_others_members(struct object *o)
{
    struct schema *s = o->s;
    struct conj value;
    object_cell_value(o, 0, &value);
    if (!o->patterns && value.never)
        return;
    if (!o->patterns && !o->allowed && !json_object_size(o->names)) {
        o->member = object_member(o, gram_call(s->g, s->string), &value);
        return;
    }
    const struct dfa *keys = object_other_keys(o);
    struct gram *quote = gram_text(s->g, "\"");
    for (uint32_t set = 0; set < 1u << o->patterns && !schema_stop(s); set++) {
        object_cell_value(o, set, &value);
        if (value.never)
            continue;
        const struct dfa *cell = keys;
        for (uint32_t p = 0; p < o->patterns; p++)
            cell = dfa_combine(s->g, cell, o->match[p], set >> p & 1 ? DFA_AND : DFA_MINUS);
        if (cell && !dfa_empty(cell))
            gram_push(s->g, &o->members,
                      object_member(o, gram_seq(s->g, quote, gram_dfa(s->g, cell), quote), &value));
    }
    if (o->members.n) {
        uint32_t rule = grammar_rule(s->g);
        grammar_define(s->g, rule, gram_list(s->g, GRAM_ALT, o->members.at, o->members.n));
        o->member = gram_call(s->g, rule);
    }
}

/* After all declared properties, `c` of which are there. Two of the others may have the same key, so of them
 * only the first is sure to count. */
static struct gram *object_tail(struct object *o, uint32_t c)
{
    struct grammar *g = o->s->g;
    uint32_t least = o->min > c ? o->min - c : 0, most = o->max == GRAMMAR_MOST ? o->max : o->max - c;
    struct gram *bare = c ? o->end : gram_text(g, "}");
    if (least == 0 && (!o->member || !most))
        return bare;
    if (!o->member || !most || least > 1)
        return gram_fail(g);
    struct gram *more = gram_seq(g, o->comma, o->member);
    if (c)
        return gram_seq(g, gram_rep(g, more, least, most), o->end);
    struct gram *some =
        gram_seq(g, o->member, gram_rep(g, more, 0, most == GRAMMAR_MOST ? most : most - 1), o->end);
    return least ? some : gram_alt(g, bare, some);
}

/* The rule for "i properties passed, c of them written" is first + i * counts + c. */
static void object_chain(struct object *o, uint32_t first, uint32_t n)
{
    struct schema *s = o->s;
    struct grammar *g = s->g;
    const char *name;
    json_t *v;
    uint32_t i = 0;
    json_object_foreach(o->names, name, v)
    {
        struct conj value;
        schema_property(s, o->c, name, &value);
        value.never = value.never || (o->allowed && !dfa_matches(s, o->allowed, name));
        bool required = schema_required(o->c, name);
        json_t *text = json_string(name);
        struct gram *member = object_member(o, schema_literal(s, text), &value);
        json_decref(text);
        for (uint32_t c = 0; c < o->counts && !schema_stop(s); c++) {
            uint32_t more = c + 1 < o->counts ? c + 1 : c, here = first + i * o->counts + c;
            bool room = o->max == GRAMMAR_MOST || c < o->max;
            struct gram *with = gram_fail(g);
            if (room && !value.never)
                with = gram_seq(g, c ? o->comma : gram_text(g, ""), member,
                                gram_call(g, first + (i + 1) * o->counts + more));
            struct gram *without = required ? gram_fail(g) : gram_call(g, first + (i + 1) * o->counts + c);
            grammar_define(g, here, gram_alt(g, with, without));
        }
        i++;
        if (schema_stop(s))
            return;
    }
    for (uint32_t c = 0; c < o->counts; c++)
        grammar_define(g, first + n * o->counts + c, object_tail(o, c));
}

struct gram *schema_object(struct schema *s, const struct conj *c)
{
    static const char *const refused[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    struct grammar *g = s->g;
    struct object o = {.s = s, .c = c, .names = json_object()};
    refuse_keywords(s, c, refused, sizeof refused / sizeof *refused);
    if (!o.names)
        err_memory(&g->err, "a schema", 64);
    o.min = conj_least(s, c, "minProperties", 0);
    o.max = conj_most(s, c, "maxProperties", GRAMMAR_MOST);
    o.comma = gram_seq(g, gram_text(g, ","), schema_space(s));
    o.end = gram_seq(g, schema_space(s), gram_text(g, "}"));
    if (!schema_stop(s))
        object_read(&o);
    if (!schema_stop(s))
        o.allowed = object_names(s, c);
    if (!schema_stop(s))
        object_others_members(&o);
    uint32_t n = (uint32_t)json_object_size(o.names), first = g->count;
    if (!o.member && o.max >= n)
        o.max = GRAMMAR_MOST;
    uint64_t counts = o.max != GRAMMAR_MOST ? (uint64_t)o.max + 1 : o.min > 1 ? (uint64_t)o.min + 1 : 2;
    struct gram *out = gram_fail(g);
    if (o.min > o.max || schema_stop(s)) {
        json_decref(o.names);
        return out;
    }
    if (!n && counts > 2) /* nothing is declared: the others count themselves */
        counts = 1;
    if (counts * (n + 1) > SCHEMA_GRID)
        schema_refuse(s, "minProperties and maxProperties are too large for so many properties");
    o.counts = (uint32_t)counts;
    for (uint64_t i = 0; i < counts * (n + 1) && !schema_stop(s); i++)
        grammar_rule(g);
    if (!schema_stop(s)) {
        object_chain(&o, first, n);
        out = gram_seq(g, gram_text(g, "{"), schema_space(s), gram_call(g, first));
    }
    json_decref(o.names);
    return out;
}
