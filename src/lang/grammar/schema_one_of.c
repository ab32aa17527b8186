/* oneOf: exactly one branch holds. Branches that cannot both hold are alternatives. Where two objects could, a
 * branch is narrowed until the other cannot: a property that the other requires is left out, or the other is
 * negated. What is still not certain is refused: a text that satisfies two branches would satisfy none. */
#include "lang/grammar/schema.h"

#include "base/buf.h"

#include <math.h>
#include <string.h>

static uint32_t value_type(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return T_OBJECT;
    case JSON_ARRAY:
        return T_ARRAY;
    case JSON_STRING:
        return T_STRING;
    case JSON_INTEGER:
        return T_INTEGER;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v)) ? T_INTEGER : T_FRACTION;
    case JSON_TRUE:
    case JSON_FALSE:
        return T_BOOL;
    case JSON_NULL:
        break;
    }
    return T_NULL;
}

static bool allows_number(struct schema *s, const struct conj *c, const json_t *v)
{
    struct schema_bound lo, hi;
    double d = json_number_value(v);
    schema_bounds(s, c, &lo, &hi);
    uint32_t multiple = schema_multiple(s, c);
    if (lo.set && (d < lo.v || (lo.strict && d == lo.v)))
        return false;
    if (hi.set && (d > hi.v || (hi.strict && d == hi.v)))
        return false;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t none = schema_not_multiple(s, c, i);
        if (none && fmod(d, none) == 0)
            return false;
    }
    return !multiple || fmod(d, multiple) == 0;
}

static bool allows_string(struct schema *s, const struct conj *c, const json_t *v)
{
    if (!conj_has(c, "pattern") && !conj_has(c, "format") && !conj_has(c, "minLength") &&
        !conj_has(c, "maxLength") && !conj_has(c, SCHEMA_NOT_PATTERN))
        return true;
    struct buf text = {0};
    const struct dfa *d = schema_string_dfa(s, c);
    schema_quote(&text, json_string_value(v), json_string_length(v));
    bool in = !d || dfa_accepts(d, text.len ? text.data : "", text.len);
    buf_free(&text);
    return in && !schema_stop(s);
}

bool schema_allows(struct schema *s, const struct conj *c, const json_t *v)
{
    static const char *const deep[] = {"properties",
                                       "required",
                                       "additionalProperties",
                                       "patternProperties",
                                       "minProperties",
                                       "maxProperties",
                                       "propertyNames",
                                       "items",
                                       "prefixItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "contains",
                                       "dependentRequired",
                                       "dependentSchemas",
                                       "unevaluatedItems",
                                       "unevaluatedProperties"};
    if (c->never || !(conj_types(s, c) & value_type(v)))
        return false;
    if (json_is_number(v))
        return allows_number(s, c, v);
    if (json_is_string(v))
        return allows_string(s, c, v);
    if (json_is_array(v) || json_is_object(v))
        for (size_t i = 0; i < sizeof deep / sizeof *deep; i++)
            if (conj_has(c, deep[i]))
                schema_refuse(s, "a list of values that are arrays or objects is not supported beside %s",
                              deep[i]);
    return true;
}

/* --- can two lists of schemas hold for one value? --- */

static bool numbers_apart(struct schema *s, const struct conj *a, const struct conj *b)
{
    struct schema_bound la, ha, lb, hb;
    schema_bounds(s, a, &la, &ha);
    schema_bounds(s, b, &lb, &hb);
    return (ha.set && lb.set && (ha.v < lb.v || (ha.v == lb.v && (ha.strict || lb.strict)))) ||
           (hb.set && la.set && (hb.v < la.v || (hb.v == la.v && (hb.strict || la.strict))));
}

static bool strings_apart(struct schema *s, const struct conj *a, const struct conj *b)
{
    uint32_t la = conj_least(s, a, "minLength", 0), ha = conj_most(s, a, "maxLength", GRAMMAR_MOST);
    uint32_t lb = conj_least(s, b, "minLength", 0), hb = conj_most(s, b, "maxLength", GRAMMAR_MOST);
    if (ha < lb || hb < la)
        return true;
    /* A format is written as a part of what it allows, so it proves nothing about what it does not. */
    if (conj_has(a, "format") || conj_has(b, "format"))
        return false;
    if (!conj_has(a, "pattern") || !conj_has(b, "pattern"))
        return false;
    const struct dfa *both = dfa_combine(s->g, schema_string_dfa(s, a), schema_string_dfa(s, b), DFA_AND);
    return both && dfa_empty(both);
}

static bool arrays_apart(struct schema *s, const struct conj *a, const struct conj *b, int depth)
{
    uint32_t la = conj_least(s, a, "minItems", 0), ha = conj_most(s, a, "maxItems", GRAMMAR_MOST);
    uint32_t lb = conj_least(s, b, "minItems", 0), hb = conj_most(s, b, "maxItems", GRAMMAR_MOST);
    if (ha < lb || hb < la)
        return true;
    for (uint32_t i = 0; i < 4 && i < la && i < lb; i++) {
        struct conj x, y;
        schema_item(s, a, i, &x);
        schema_item(s, b, i, &y);
        if (schema_apart(s, &x, &y, depth + 1))
            return true;
    }
    return false;
}

/* A property that a requires, and that cannot be what b wants of it. */
static bool requires_other(struct schema *s, const struct conj *a, const struct conj *b, int depth)
{
    for (uint32_t k = 0; k < a->n; k++) {
        size_t i;
        json_t *name;
        json_array_foreach(json_object_get(a->part[k].s, "required"), i, name)
        {
            const char *text = json_string_value(name);
            struct conj x, y;
            if (!text || schema_stop(s))
                return false;
            schema_property(s, a, text, &x);
            schema_property(s, b, text, &y);
            if (y.never || (y.n && schema_apart(s, &x, &y, depth + 1)))
                return true;
        }
    }
    return false;
}

/* The values that enum or const leave to a: does b refuse each of them? */
static bool values_apart(struct schema *s, const struct conj *a, const struct conj *b)
{
    json_t *values = conj_values(s, a), *v;
    bool meet = !values;
    size_t i;
    json_array_foreach(values, i, v)
    {
        struct conj both;
        json_t *only = json_pack("{sO}", "const", v);
        if (meet || !only || json_array_append_new(s->own, only)) {
            meet = true;
            break;
        }
        conj_copy(&both, b);
        conj_add(s, &both, only, CONJ_TOP);
        json_t *left = conj_values(s, &both);
        meet = !left || json_array_size(left);
        json_decref(left);
    }
    json_decref(values);
    return !meet;
}

bool schema_apart(struct schema *s, const struct conj *a, const struct conj *b, int depth)
{
    struct conj one;
    uint32_t part, bit;
    size_t i;
    json_t *branch;
    if (a->never || b->never)
        return true;
    if (depth > 5 || ++s->work > SCHEMA_WORK || schema_stop(s))
        return false;
    const struct conj *open = conj_choice(a, &part, &bit) ? a : conj_choice(b, &part, &bit) ? b : NULL;
    if (open) { /* one branch at least holds: all of them must be apart from the other list */
        const json_t *branches = conj_choice(open, &part, &bit);
        json_array_foreach(branches, i, branch)
        {
            conj_branch(s, open, part, bit, branch, &one);
            if (!schema_apart(s, &one, open == a ? b : a, depth + 1))
                return false;
        }
        return true;
    }
    uint32_t common = conj_types(s, a) & conj_types(s, b);
    if (!common)
        return true;
    if (values_apart(s, a, b) || values_apart(s, b, a))
        return true;
    if (common & (T_NULL | T_BOOL))
        return false;
    if ((common & T_NUMBER) && !numbers_apart(s, a, b))
        return false;
    if ((common & T_STRING) && !strings_apart(s, a, b))
        return false;
    if ((common & T_ARRAY) && !arrays_apart(s, a, b, depth))
        return false;
    if ((common & T_OBJECT) && !requires_other(s, a, b, depth) && !requires_other(s, b, a, depth))
        return false;
    return true;
}

/* A name that b requires and a does not: without it, what a allows cannot be b. */
static const char *name_to_drop(const struct conj *a, const struct conj *b)
{
    for (uint32_t k = 0; k < b->n; k++) {
        size_t i;
        json_t *name;
        json_array_foreach(json_object_get(b->part[k].s, "required"), i, name)
        {
            if (json_is_string(name) && !schema_required(a, json_string_value(name)))
                return json_string_value(name);
        }
    }
    return NULL;
}

/* Narrows branch a until it is certain that b, whose schema is `other`, does not hold; false where that is not
 * known to be possible. */
static bool branch_narrow(struct schema *s, struct conj *a, const struct conj *b, const json_t *other)
{
    uint32_t part, bit;
    if (schema_apart(s, a, b, 0))
        return true;
    if (schema_stop(s))
        return false;
    bool open = conj_choice(a, &part, &bit) || conj_choice(b, &part, &bit);
    const char *name = !open && (conj_types(s, a) & conj_types(s, b)) == T_OBJECT ? name_to_drop(a, b) : NULL;
    const json_t *without = NULL;
    if (name) {
        json_t *made = json_pack("{s{sb}}", "properties", name, 0);
        without = made && !json_array_append_new(s->own, made) ? made : NULL;
        schema_leave_out(s, "oneOf"); /* with the name, but otherwise than b wants it */
    } else
        without = schema_negated(s, other);
    if (!without)
        return false;
    conj_add(s, a, without, CONJ_TOP);
    return true;
}

struct gram *schema_one_of(struct schema *s, const struct conj *c, uint32_t part, const json_t *branches)
{
    struct gram_items l = {0};
    struct conj one, other;
    size_t n = json_array_size(branches), lost = n;
    if (n > 256)
        schema_refuse(s, "oneOf with more than 256 branches is not supported");
    for (size_t i = 0; i < n && !schema_stop(s); i++) {
        bool sure = true;
        conj_branch(s, c, part, TAKEN_ONE, json_array_get(branches, i), &one);
        for (size_t k = 0; sure && k < n && !one.never && !schema_stop(s); k++) {
            if (k == i)
                continue;
            conj_branch(s, c, part, TAKEN_ONE, json_array_get(branches, k), &other);
            sure = branch_narrow(s, &one, &other, json_array_get(branches, k));
        }
        if (!sure) {
            lost = i;
            schema_leave_out(s, "oneOf");
        } else if (!one.never)
            gram_push(s->g, &l, schema_value(s, &one));
    }
    if (!l.n && lost < n)
        schema_refuse(
            s,
            "oneOf: branch %zu may hold together with another one, and exactly one must: use anyOf, or "
            "tell them apart by type, by required or by a property with a const",
            lost);
    return gram_list(s->g, GRAM_ALT, l.at, l.n);
}
