/* Negation, and the keywords that come down to it. "not" and the other branches of if and oneOf are rewritten in
 * keywords that rules can follow: not {minimum: 3} is {type: number, exclusiveMaximum: 3}, not {required: [a, b]}
 * is an object without a or one without b. Where a keyword has no such form its alternative is left out, so that a
 * negation may describe fewer values than it could, but never one too many. */
#include "lang/grammar/schema.h"

#include <string.h>

enum { NEGATE_DEPTH = 12, MADE_MOST = 2000 };

static json_t *negate(struct schema *s, const json_t *one, int depth);

/* Adds an alternative; takes the reference, which may be NULL. */
static void either(json_t *list, json_t *one)
{
    if (one && !json_is_false(one))
        json_array_append(list, one);
    json_decref(one);
}

/* None of these values. Strings are excluded by our own keyword, numbers by the ranges above and below
 * them. */
static json_t *negate_values(struct schema *s, const json_t *values)
{
    json_t *all = json_array(), *strings = json_array(), *v, *left;
    size_t i;
    json_array_foreach(values, i, v)
    {
        if (json_is_string(v))
            json_array_append(strings, v);
        else if (json_is_number(v))
            json_array_append_new(all, json_pack("{s[{s{ss}}{sO}{sO}]}", "anyOf", "not", "type", "number",
                                                 "exclusiveMinimum", v, "exclusiveMaximum", v));
        else if (json_is_null(v))
            json_array_append_new(all, json_pack("{s{ss}}", "not", "type", "null"));
        else if (json_is_boolean(v))
            json_array_append_new(all, json_pack("{s[{s{ss}}{sb}]}", "anyOf", "not", "type", "boolean",
                                                 "const", !json_is_true(v)));
        else {
            schema_leave_out(s, "enum"); /* the other arrays and objects */
            json_array_append_new(all,
                                  json_pack("{s{ss}}", "not", "type", json_is_array(v) ? "array" : "object"));
        }
    }
    if (json_array_size(strings))
        json_array_append_new(all, json_pack("{sO}", SCHEMA_NOT_ENUM, strings));
    left = json_pack("{sO}", "allOf", all);
    json_decref(strings);
    json_decref(all);
    return left;
}

/* A bound the other way round: {type, keyword: value + step}. */
static json_t *negate_bound(const char *key, const json_t *v)
{
    static const struct {
        const char *key, *type, *other;
        int step; /* counts: the next one down or up */
    } bounds[] = {{"minimum", "number", "exclusiveMaximum", 0},
                  {"maximum", "number", "exclusiveMinimum", 0},
                  {"exclusiveMinimum", "number", "maximum", 0},
                  {"exclusiveMaximum", "number", "minimum", 0},
                  {"minLength", "string", "maxLength", -1},
                  {"maxLength", "string", "minLength", 1},
                  {"minItems", "array", "maxItems", -1},
                  {"maxItems", "array", "minItems", 1},
                  {"minProperties", "object", "maxProperties", -1},
                  {"maxProperties", "object", "minProperties", 1}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (strcmp(bounds[i].key, key))
            continue;
        if (!bounds[i].step)
            return json_pack("{sssO}", "type", bounds[i].type, bounds[i].other, v);
        double n = json_number_value(v) + bounds[i].step;
        return n < 0 || n > 1e9 ? NULL
                                : json_pack("{sssI}", "type", bounds[i].type, bounds[i].other, (json_int_t)n);
    }
    return NULL;
}

static void negate_properties(struct schema *s, const json_t *properties, json_t *list, int depth)
{
    const char *name;
    json_t *one;
    json_object_foreach((json_t *)properties, name, one)
    {
        json_t *opposite = negate(s, one, depth + 1);
        if (opposite && !json_is_false(opposite))
            either(list, json_pack("{sss[s]s{sO}}", "type", "object", "required", name, "properties", name,
                                   opposite));
        json_decref(opposite);
    }
}

/* One of the names is there, and one that it asks for is not. */
static void negate_dependent(const json_t *dependent, json_t *list)
{
    const char *name;
    json_t *names, *one;
    size_t i;
    json_object_foreach((json_t *)dependent, name, names) json_array_foreach(names, i, one)
        either(list, json_pack("{sss[s]s{sb}}", "type", "object", "required", name, "properties",
                               json_string_value(one), 0));
}

/* All of a list negated, joined by `word`; NULL where one of them has no negation. */
static json_t *negate_all(struct schema *s, const json_t *list, const char *word, int depth)
{
    json_t *out = json_array(), *one, *joined;
    bool whole = true;
    size_t i;
    json_array_foreach(list, i, one)
    {
        json_t *opposite = negate(s, one, depth + 1);
        whole = whole && opposite;
        if (opposite)
            json_array_append(out, opposite);
        json_decref(opposite);
    }
    joined = (whole || !strcmp(word, "anyOf")) && json_array_size(out) ? json_pack("{sO}", word, out) : NULL;
    json_decref(out);
    return joined;
}

static void negate_keyword(struct schema *s, const char *key, const json_t *v, json_t *list, int depth)
{
    json_t *one;
    size_t i;
    if (!strcmp(key, "type"))
        either(list, json_pack("{s{sO}}", "not", "type", v));
    else if (!strcmp(key, "enum"))
        either(list, negate_values(s, v));
    else if (!strcmp(key, "const")) {
        json_t *values = json_pack("[O]", v);
        either(list, negate_values(s, values));
        json_decref(values);
    } else if (!strcmp(key, "pattern"))
        either(list, json_pack("{sssO}", "type", "string", SCHEMA_NOT_PATTERN, v));
    else if (!strcmp(key, "multipleOf"))
        either(list, json_pack("{sssO}", "type", "number", SCHEMA_NOT_MULTIPLE, v));
    else if (!strcmp(key, "properties"))
        negate_properties(s, v, list, depth);
    else if (!strcmp(key, "required"))
        json_array_foreach(v, i, one)
            either(list, json_pack("{sss{sb}}", "type", "object", "properties", json_string_value(one), 0));
    else if (!strcmp(key, "dependentRequired"))
        negate_dependent(v, list);
    else if (!strcmp(key, "allOf"))
        either(list, negate_all(s, v, "anyOf", depth));
    else if (!strcmp(key, "anyOf"))
        either(list, negate_all(s, v, "allOf", depth));
    else if (!strcmp(key, "not"))
        either(list, json_incref((json_t *)v));
    else if (!strcmp(key, "$ref") && json_is_string(v))
        either(list, negate(s, schema_ref(s, json_string_value(v)), depth + 1));
    else
        either(list, negate_bound(key, v));
}

/* A keyword has no opposite that is known: lists those that could have one. */
static void negate_none(struct schema *s, const char *key)
{
    static const char *const hard[] = {"format",
                                       "items",
                                       "prefixItems",
                                       "contains",
                                       "uniqueItems",
                                       "additionalProperties",
                                       "patternProperties",
                                       "propertyNames",
                                       "unevaluatedItems",
                                       "unevaluatedProperties",
                                       "dependentSchemas",
                                       "oneOf",
                                       "if"};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        if (!strcmp(hard[i], key))
            schema_leave_out(s, hard[i]);
}

/* A new reference, or NULL where nothing is known not to satisfy it. */
static json_t *negate(struct schema *s, const json_t *one, int depth)
{
    const char *key;
    json_t *v, *list, *out;
    if (schema_stop(s) || depth > NEGATE_DEPTH || ++s->work > SCHEMA_WORK) {
        schema_leave_out(s, "not");
        return NULL;
    }
    if (json_is_boolean(one))
        return json_boolean(!json_is_true(one));
    if (json_is_object(one) && !json_object_size(one))
        return json_false();
    list = json_array();
    json_object_foreach((json_t *)one, key, v)
    {
        size_t before = json_array_size(list);
        negate_keyword(s, key, v, list, depth);
        if (json_array_size(list) == before)
            negate_none(s, key);
    }
    out = json_array_size(list) ? json_pack("{sO}", "anyOf", list) : NULL;
    json_decref(list);
    return out;
}

/* What does not satisfy the schema evaluates nothing in its name. */
static json_t *negate_aside(struct schema *s, const json_t *one)
{
    json_t *opposite = negate(s, one, 0);
    json_t *out = opposite ? json_pack("{sbs[O]}", SCHEMA_ASIDE, 1, "allOf", opposite) : NULL;
    json_decref(opposite);
    return out;
}

static struct schema_made *made_find(struct schema *s, const json_t *from, bool negated)
{
    for (uint32_t i = 0; i < s->made_count; i++)
        if (s->made[i].from == from && s->made[i].negated == negated)
            return &s->made[i];
    return NULL;
}

/* Keeps what was written for a schema; takes the reference. */
static const json_t *made_keep(struct schema *s, const json_t *from, bool negated, json_t *made)
{
    if (s->made_count == s->made_cap) {
        uint32_t cap = s->made_cap ? s->made_cap * 2 : 16;
        struct schema_made *grown = cap > MADE_MOST * 2 ? NULL : mem_realloc(s->made, cap, sizeof *grown);
        if (!grown) {
            schema_refuse(s, "too many conditions (not, if, dependentRequired, dependentSchemas)");
            json_decref(made);
            return NULL;
        }
        s->made = grown;
        s->made_cap = cap;
    }
    s->made[s->made_count++] = (struct schema_made){from, made, negated};
    if (made && json_array_append_new(s->own, made))
        err_memory(&s->g->err, "a schema", 64);
    return made;
}

const json_t *schema_negated(struct schema *s, const json_t *one)
{
    const struct schema_made *known = made_find(s, one, true);
    return known ? known->made : made_keep(s, one, true, negate(s, one, 0));
}

/* Either the condition holds and what follows from it, or it does not. */
static void derive_if(struct schema *s, const json_t *one, json_t *all)
{
    const json_t *condition = json_object_get(one, "if"), *then = json_object_get(one, "then");
    const json_t *otherwise = json_object_get(one, "else");
    if (!condition || (!then && !otherwise))
        return;
    json_t *yes = json_pack("{s[O]}", "allOf", condition), *no = json_array(),
           *opposite = negate_aside(s, condition);
    if (!opposite)
        schema_refuse(s, "the condition of an \"if\" cannot be negated");
    if (then)
        json_array_append(json_object_get(yes, "allOf"), (json_t *)then);
    json_array_append(no, opposite);
    if (otherwise)
        json_array_append(no, (json_t *)otherwise);
    if (yes && no && opposite)
        json_array_append_new(all, json_pack("{s[O{sO}]}", "anyOf", yes, "allOf", no));
    json_decref(yes);
    json_decref(no);
    json_decref(opposite);
}

static void derive_dependent(const json_t *one, json_t *all)
{
    static const char *const words[] = {"dependentRequired", "dependentSchemas"};
    const char *name;
    json_t *v;
    for (int k = 0; k < 2; k++)
        json_object_foreach(json_object_get(one, words[k]), name, v)
        {
            json_t *with =
                k ? json_pack("{s[s]s[O]}", "required", name, "allOf", v) : json_pack("{sO}", "required", v);
            json_array_append_new(all, json_pack("{s[{s{sb}}O]}", "anyOf", "properties", name, 0, with));
            json_decref(with);
        }
}

const json_t *schema_derived(struct schema *s, const json_t *one)
{
    static const char *const words[] = {"not", "if", "dependentRequired", "dependentSchemas"};
    const json_t *opposite = json_object_get(one, "not");
    bool any = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        any = any || json_object_get(one, words[i]);
    if (!any || schema_stop(s))
        return NULL;
    const struct schema_made *known = made_find(s, one, false);
    if (known)
        return known->made;
    json_t *all = json_array(), *out;
    /* A type that is excluded is a keyword of its own here. */
    if (opposite && !(json_object_size(opposite) == 1 && json_object_get(opposite, "type"))) {
        json_t *negated = negate_aside(s, opposite);
        if (!negated)
            schema_refuse(s, "this \"not\" cannot be followed");
        json_array_append(all, negated);
        json_decref(negated);
    }
    derive_if(s, one, all);
    derive_dependent(one, all);
    out = json_array_size(all) ? json_pack("{sO}", "allOf", all) : NULL;
    json_decref(all);
    return made_keep(s, one, false, out);
}
