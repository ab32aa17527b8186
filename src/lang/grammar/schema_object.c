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
#include "lang/grammar/schema.h"

#include "base/buf.h"

#include <string.h>

/* --- arrays --- */

static const json_t *array_prefix(const json_t *part)
{
    const json_t *prefix = json_object_get(part, "prefixItems"), *items = json_object_get(part, "items");
    return prefix ? prefix : json_is_array(items) ? items : NULL; /* a list of items is the older drafts' */
}

/* What a part itself says about element i; NULL = nothing. */
static const json_t *part_item(const json_t *part, uint32_t i)
{
    const json_t *prefix = array_prefix(part), *items = json_object_get(part, "items");
    if (i < json_array_size(prefix))
        return json_array_get(prefix, i);
    return json_is_array(items) ? json_object_get(part, "additionalItems") : items;
}

void schema_item(struct schema *s, const struct conj *c, uint32_t i, struct conj *out)
{
    out->n = 0;
    out->never = false;
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *one = part_item(c->part[k].s, i),
                     *rest = json_object_get(c->part[k].s, "unevaluatedItems");
        bool seen = one != NULL;
        for (uint32_t d = 0; rest && d < c->n && !seen; d++)
            seen = d != k && conj_below(c, d, k) &&
                   (part_item(c->part[d].s, i) || json_object_get(c->part[d].s, "unevaluatedItems"));
        if (one)
            conj_add(s, out, one, CONJ_TOP);
        else if (rest && !seen)
            conj_add(s, out, rest, CONJ_TOP);
    }
}

static void array_check(struct schema *s, const struct conj *c, uint32_t most)
{
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *part = c->part[k].s;
        if (json_is_true(json_object_get(part, "uniqueItems")) && most > 1)
            schema_refuse(s, "uniqueItems is not supported");
        if (json_object_get(part, "prefixItems") && !json_is_array(json_object_get(part, "prefixItems")))
            schema_refuse(s, "prefixItems is a list of schemas");
    }
}

/* The schema that one element at least satisfies; NULL = none is asked for. */
static const json_t *array_contains(struct schema *s, const struct conj *c)
{
    const json_t *found = NULL;
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *part = c->part[k].s, *one = json_object_get(part, "contains");
        const json_t *least = json_object_get(part, "minContains");
        if (!one || (least && json_number_value(least) == 0 && !json_object_get(part, "maxContains")))
            continue;
        if (found || (least && json_number_value(least) != 1) || json_object_get(part, "maxContains") ||
            array_prefix(part) || conj_has(c, "maxItems") || conj_has(c, "unevaluatedItems") ||
            conj_least(s, c, "minItems", 0) > 1)
            schema_refuse(s, "contains is supported once, for one element at least, beside items only");
        found = one;
    }
    return found;
}

/* Any elements, one that satisfies the schema, any elements. */
static struct gram *array_with(struct schema *s, const struct conj *c, const json_t *one)
{
    struct grammar *g = s->g;
    struct conj item, special;
    schema_item(s, c, 0, &item);
    conj_copy(&special, &item);
    conj_add(s, &special, one, CONJ_TOP);
    struct gram *comma = gram_seq(g, gram_text(g, ","), schema_space(s)), *any = schema_value(s, &item);
    return gram_seq(g, gram_text(g, "["), schema_space(s),
                    gram_rep(g, gram_seq(g, any, comma), 0, GRAMMAR_MOST), schema_value(s, &special),
                    gram_rep(g, gram_seq(g, comma, any), 0, GRAMMAR_MOST), schema_space(s),
                    gram_text(g, "]"));
}

struct gram *schema_array(struct schema *s, const struct conj *c)
{
    struct grammar *g = s->g;
    uint32_t min = conj_least(s, c, "minItems", 0), max = conj_most(s, c, "maxItems", GRAMMAR_MOST),
             named = 0;
    array_check(s, c, max);
    const json_t *contained = array_contains(s, c);
    if (contained)
        return array_with(s, c, contained);
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
        conj_add(s, &one, names, CONJ_TOP);
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

/* A key: a name, or whatever matches exactly the patterns of a set. */
struct key {
    const char *name; /* NULL = the set */
    uint32_t set, patterns;
    const char *const *pattern; /* (patterns) */
};

static bool key_matches(struct schema *s, const struct key *key, const char *pattern)
{
    if (key->name)
        return dfa_matches(s, schema_pattern_dfa(s, pattern, PATTERN_QUOTED), key->name);
    for (uint32_t p = 0; p < key->patterns; p++)
        if (!strcmp(key->pattern[p], pattern))
            return key->set >> p & 1;
    return false;
}

/* What a part says about a key, added to `out` where there is one; does it say anything? */
static bool key_part(struct schema *s, const struct key *key, const json_t *part, struct conj *out)
{
    const json_t *own = key->name ? json_object_get(json_object_get(part, "properties"), key->name) : NULL;
    const json_t *others = json_object_get(part, "additionalProperties");
    const char *pattern;
    json_t *schema;
    bool known = own != NULL;
    if (own && out)
        conj_add(s, out, own, CONJ_TOP);
    json_object_foreach(json_object_get(part, "patternProperties"), pattern, schema)
    {
        if (!key_matches(s, key, pattern))
            continue;
        known = true;
        if (out)
            conj_add(s, out, schema, CONJ_TOP);
    }
    if (!known && others && out)
        conj_add(s, out, others, CONJ_TOP);
    return known || others;
}

static void key_value(struct schema *s, const struct conj *c, const struct key *key, struct conj *out)
{
    out->n = 0;
    out->never = false;
    for (uint32_t k = 0; k < c->n && !schema_stop(s); k++) {
        const json_t *rest = json_object_get(c->part[k].s, "unevaluatedProperties");
        bool seen = key_part(s, key, c->part[k].s, out);
        for (uint32_t d = 0; rest && d < c->n && !seen; d++)
            seen = d != k && conj_below(c, d, k) &&
                   (json_object_get(c->part[d].s, "unevaluatedProperties") ||
                    key_part(s, key, c->part[d].s, NULL));
        if (rest && !seen)
            conj_add(s, out, rest, CONJ_TOP);
    }
}

void schema_property(struct schema *s, const struct conj *c, const char *name, struct conj *out)
{
    key_value(s, c, &(struct key){.name = name}, out);
}

struct object {
    struct schema *s;
    const struct conj *c;
    json_t *names; /* declared or required, in order: an object used as a set */
    const struct dfa *allowed;
    uint32_t min, max, counts;         /* counts: how many are distinguished */
    struct gram *comma, *end, *member; /* member: one of the others, NULL = none is allowed */
    struct gram_items members;
    const char *pattern[SCHEMA_PATTERNS];
    const struct dfa *match[SCHEMA_PATTERNS], *may_match[SCHEMA_PATTERNS];
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
            o->may_match[o->patterns] = schema_pattern_dfa(s, key, PATTERN_POSSIBLE);
            o->match[o->patterns++] = schema_pattern_dfa(s, key, PATTERN_QUOTED);
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
    key_value(o->s, o->c, &(struct key){NULL, set, o->patterns, o->pattern}, out);
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
            cell = set >> p & 1 ? dfa_combine(s->g, cell, o->match[p], DFA_AND)
                                : dfa_combine(s->g, cell, o->may_match[p], DFA_MINUS);
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
    if (least > 1 && o->member && most >= least)
        schema_leave_out(o->s, "minProperties");
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
    struct grammar *g = s->g;
    struct object o = {.s = s, .c = c, .names = json_object()};
    if (conj_has(c, "dependencies"))
        schema_refuse(s, "dependencies is not supported: write dependentRequired or dependentSchemas");
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
        schema_refuse(s, "minProperties and maxProperties are too large for this number of properties");
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
