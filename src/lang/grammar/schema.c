/* JSON schema: lists of schemas, their rules, and what does not depend on a type. */
#include "lang/grammar/schema.h"

#include "base/buf.h"
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void schema_refuse(struct schema *s, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    grammar_fail(s->g, ERR_DATA, "JSON schema: %s", text);
}

static bool schema_measure(struct schema *s, const json_t *v, int depth, size_t *nodes)
{
    const char *key;
    json_t *kid;
    size_t i;
    if (depth > SCHEMA_DEPTH || ++*nodes > SCHEMA_NODES) {
        schema_refuse(s, "it is nested more than %d deep, or has more than %d values", SCHEMA_DEPTH,
                      SCHEMA_NODES);
        return false;
    }
    s->embedded = s->embedded || (depth && json_is_string(json_object_get(v, "$id")));
    json_array_foreach(v, i, kid) if (!schema_measure(s, kid, depth + 1, nodes)) return false;
    json_object_foreach((json_t *)v, key, kid) if (!schema_measure(s, kid, depth + 1, nodes)) return false;
    return true;
}

/* One step of a JSON pointer: ~1 is a slash, ~0 a tilde, %XX a byte. */
static const json_t *pointer_step(const json_t *at, const char *step, size_t n)
{
    char name[512];
    size_t len = 0;
    for (size_t i = 0; i < n && len < sizeof name - 1; i++) {
        unsigned hex;
        if (step[i] == '~' && i + 1 < n && (step[i + 1] == '0' || step[i + 1] == '1'))
            name[len++] = step[++i] == '0' ? '~' : '/';
        else if (step[i] == '%' && i + 2 < n && sscanf(step + i + 1, "%2x", &hex) == 1) {
            name[len++] = (char)hex;
            i += 2;
        } else
            name[len++] = step[i];
    }
    name[len] = 0;
    if (json_is_object(at))
        return json_object_get(at, name);
    size_t index = 0;
    for (size_t i = 0; i < len; i++) {
        if (name[i] < '0' || name[i] > '9' || index > SCHEMA_NODES)
            return NULL;
        index = index * 10 + (size_t)(name[i] - '0');
    }
    return len ? json_array_get(at, index) : NULL;
}

static const json_t *schema_anchor(const json_t *at, const char *name)
{
    const char *key, *own = json_string_value(json_object_get(at, "$anchor"));
    const json_t *found = own && !strcmp(own, name) ? at : NULL;
    json_t *kid;
    size_t i;
    json_array_foreach(at, i, kid) if (!found) found = schema_anchor(kid, name);
    json_object_foreach((json_t *)at, key, kid)
    {
        if (!found && strcmp(key, "enum") && strcmp(key, "const")) /* values are no schemas */
            found = schema_anchor(kid, name);
    }
    return found;
}

const json_t *schema_ref(struct schema *s, const char *ref)
{
    const char *id = json_string_value(json_object_get(s->root, "$id")), *at = ref;
    size_t n = id ? strlen(id) : 0;
    if (n && !strncmp(at, id, n) && (!at[n] || at[n] == '#'))
        at += n;
    const json_t *to = s->root;
    if (s->embedded)
        schema_refuse(s,
                      "$ref beside a schema that has an $id of its own, inside this one, is not supported");
    if (*at && *at != '#') {
        schema_refuse(s, "$ref \"%.200s\" leaves the document: only references within it are followed", ref);
        return NULL;
    }
    at += *at == '#';
    if (*at && *at != '/')
        to = schema_anchor(s->root, at);
    while (to && *at == '/') {
        size_t len = strcspn(++at, "/");
        to = pointer_step(to, at, len);
        at += len;
    }
    if (!to)
        schema_refuse(s, "$ref \"%.200s\" leads nowhere", ref);
    return to;
}

/* Keywords that no rule can follow. Those of one type stand with that type. */
static void schema_unsupported(struct schema *s, const json_t *one)
{
    static const char *const words[] = {"$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(one, words[i]))
            schema_refuse(s, "%s is not supported", words[i]);
}

/* Did part d come with part k, or is it that? */
static bool conj_from(const struct conj *c, uint32_t d, uint32_t k)
{
    while (d != k && d != CONJ_TOP)
        d = c->part[d].parent;
    return d == k;
}

void conj_add(struct schema *s, struct conj *c, const json_t *one, uint32_t parent)
{
    bool aside = json_object_get(one, SCHEMA_ASIDE) || (parent != CONJ_TOP && c->part[parent].aside);
    if (schema_stop(s) || json_is_true(one))
        return;
    if (json_is_false(one)) {
        c->never = true;
        return;
    }
    if (!json_is_object(one)) {
        schema_refuse(s, "a schema is an object, true or false");
        return;
    }
    for (uint32_t i = 0; i < c->n; i++)
        if (c->part[i].s == one) {
            /* Still being added, or a choice of its own led back to it. */
            if (c->part[i].open || conj_from(c, parent, i))
                schema_refuse(s, "a $ref comes back to itself before it describes anything");
            return;
        }
    if (!json_object_size(one))
        return;
    if (c->n == SCHEMA_PARTS || ++s->work > SCHEMA_WORK) {
        schema_refuse(s, "too many schemas hold at once (allOf, $ref, anyOf)");
        return;
    }
    schema_unsupported(s, one);
    uint32_t self = c->n++;
    c->part[self] = (struct conj_part){one, 0, (uint16_t)parent, true, aside};
    const json_t *ref = json_object_get(one, "$ref"), *all = json_object_get(one, "allOf");
    if (ref && !json_is_string(ref))
        schema_refuse(s, "$ref is a string");
    else if (ref)
        conj_add(s, c, schema_ref(s, json_string_value(ref)), self);
    if (all && (!json_is_array(all) || !json_array_size(all)))
        schema_refuse(s, "allOf is a list of schemas");
    size_t i;
    json_t *kid;
    json_array_foreach(all, i, kid) conj_add(s, c, kid, self);
    const json_t *derived = schema_derived(s, one);
    if (derived)
        conj_add(s, c, derived, self);
    c->part[self].open = false;
}

bool conj_below(const struct conj *c, uint32_t d, uint32_t k)
{
    return (d == k || !c->part[d].aside) && conj_from(c, d, k);
}

const json_t *conj_choice(const struct conj *c, uint32_t *part, uint32_t *bit)
{
    static const char *const words[] = {"anyOf", "oneOf"};
    for (uint32_t i = 0; i < c->n; i++)
        for (uint32_t k = 0; k < 2; k++) {
            const json_t *branches = json_object_get(c->part[i].s, words[k]);
            if (branches && !(c->part[i].taken >> k & 1)) {
                *part = i;
                *bit = 1u << k;
                return branches;
            }
        }
    return NULL;
}

/* A list in the arena ends with its last part. */
void conj_copy(struct conj *to, const struct conj *from)
{
    memcpy(to, from, offsetof(struct conj, part) + from->n * sizeof *from->part);
}

void conj_branch(struct schema *s, const struct conj *c, uint32_t part, uint32_t bit, const json_t *branch,
                 struct conj *out)
{
    conj_copy(out, c);
    out->part[part].taken |= (uint16_t)bit;
    conj_add(s, out, branch, part);
}

static uint32_t type_bit(const char *name)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOL}, {"integer", T_INTEGER}, {"number", T_NUMBER},
                 {"string", T_STRING}, {"array", T_ARRAY},  {"object", T_OBJECT}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name))
            return types[i].bit;
    return 0;
}

static uint32_t schema_types(struct schema *s, const json_t *type)
{
    uint32_t mask = json_is_string(type) ? type_bit(json_string_value(type)) : 0;
    size_t i;
    json_t *one;
    json_array_foreach(type, i, one)
    {
        uint32_t bit = type_bit(json_string_value(one));
        if (!bit)
            mask = 0;
        mask |= bit;
        if (!bit)
            break;
    }
    if (!mask)
        schema_refuse(
            s, "type is one of null, boolean, integer, number, string, array, object, or a list of them");
    return mask;
}

uint32_t conj_types(struct schema *s, const struct conj *c)
{
    uint32_t mask = c->never ? 0 : T_ALL;
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *type = json_object_get(c->part[i].s, "type"),
                     *excluded = json_object_get(c->part[i].s, "not");
        if (type)
            mask &= schema_types(s, type);
        if (json_object_size(excluded) == 1 && json_object_get(excluded, "type"))
            mask &= ~schema_types(s, json_object_get(excluded, "type"));
    }
    return mask;
}

bool conj_has(const struct conj *c, const char *keyword)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (json_object_get(c->part[i].s, keyword))
            return true;
    return false;
}

/* A count among the keywords: a whole number, perhaps written as 2.0. */
static bool schema_count(struct schema *s, const struct conj_part *p, const char *keyword, uint32_t *out)
{
    const json_t *v = json_object_get(p->s, keyword);
    if (!v)
        return false;
    double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d != floor(d)) {
        schema_refuse(s, "%s is a whole number, at least 0", keyword);
        return false;
    }
    *out = d > 1e9 ? 1000000000 : (uint32_t)d;
    return true;
}

uint32_t conj_least(struct schema *s, const struct conj *c, const char *keyword, uint32_t none)
{
    uint32_t v, best = none;
    for (uint32_t i = 0; i < c->n; i++)
        if (schema_count(s, &c->part[i], keyword, &v) && v > best)
            best = v;
    return best;
}

uint32_t conj_most(struct schema *s, const struct conj *c, const char *keyword, uint32_t none)
{
    uint32_t v, best = none;
    for (uint32_t i = 0; i < c->n; i++)
        if (schema_count(s, &c->part[i], keyword, &v) && v < best)
            best = v;
    return best;
}

/* Equal as JSON schema means it: 1 and 1.0 are. */
static bool value_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b))
        return false;
    const char *key;
    json_t *kid;
    size_t i;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, kid) if (!value_equal(kid, json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach((json_t *)a, key, kid)
        {
            const json_t *other = json_object_get(b, key);
            if (!other || !value_equal(kid, other))
                return false;
        }
        return true;
    }
    return json_equal(a, b);
}

static bool value_listed(const json_t *part, const json_t *v)
{
    const json_t *only = json_object_get(part, "const"), *list = json_object_get(part, "enum");
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(part, SCHEMA_NOT_ENUM), i, one) if (json_equal(one, v)) return false;
    if (only && !value_equal(only, v))
        return false;
    if (!list)
        return true;
    json_array_foreach(list, i, one) if (value_equal(one, v)) return true;
    return false;
}

json_t *conj_values(struct schema *s, const struct conj *c)
{
    const json_t *only = NULL, *list = NULL;
    for (uint32_t k = 0; k < c->n; k++) {
        const json_t *values = json_object_get(c->part[k].s, "enum");
        if (values && (!json_is_array(values) || !json_array_size(values)))
            schema_refuse(s, "enum is a list of values");
        list = list ? list : values;
        only = only ? only : json_object_get(c->part[k].s, "const");
    }
    if ((!only && !list) || schema_stop(s))
        return NULL;
    json_t *all = only ? json_pack("[O]", (json_t *)only) : json_incref((json_t *)list), *kept = json_array(),
           *v;
    size_t i;
    json_array_foreach(all, i, v)
    {
        bool in = true;
        s->work += c->n;
        for (uint32_t k = 0; in && k < c->n; k++)
            in = value_listed(c->part[k].s, v);
        if (in && schema_allows(s, c, v))
            json_array_append(kept, v);
    }
    json_decref(all);
    if (!all || !kept)
        err_memory(&s->g->err, "a schema", 64);
    return kept;
}

/* Arrays and objects, with the white space that those of a schema may have. The depth is that of the schema. */
static struct gram *literal_deep(struct schema *s, const json_t *v)
{
    struct grammar *g = s->g;
    struct gram_items l = {0};
    struct gram *comma = gram_seq(g, gram_text(g, ","), schema_space(s));
    const char *key;
    json_t *kid;
    size_t i;
    json_array_foreach(v, i, kid)
    {
        if (i)
            gram_push(g, &l, comma);
        gram_push(g, &l, schema_literal(s, kid));
    }
    json_object_foreach((json_t *)v, key, kid)
    {
        json_t *name = json_string(key);
        if (l.n)
            gram_push(g, &l, comma);
        gram_push(g, &l, schema_literal(s, name));
        gram_push(g, &l, gram_seq(g, gram_text(g, ":"), schema_space(s)));
        gram_push(g, &l, schema_literal(s, kid));
        json_decref(name);
    }
    if (l.n)
        gram_push(g, &l, schema_space(s));
    struct gram *inside = gram_list(g, GRAM_SEQ, l.at, l.n);
    bool array = json_is_array(v);
    return gram_seq(g, gram_text(g, array ? "[" : "{"), schema_space(s), inside,
                    gram_text(g, array ? "]" : "}"));
}

struct gram *schema_literal(struct schema *s, const json_t *v)
{
    struct gram *node;
    if (json_is_string(v) || json_is_real(v)) {
        struct buf out = {0};
        struct json j = {.out = &out};
        if (json_is_real(v))
            json_num(&j, json_real_value(v));
        else {
            buf_char(&out, '"');
            schema_quote(&out, json_string_value(v), json_string_length(v));
            buf_char(&out, '"');
        }
        if (out.failed)
            err_memory(&s->g->err, "a schema", out.len);
        node = gram_bytes(s->g, out.len ? out.data : "", out.len);
        buf_free(&out);
        return node;
    }
    if (json_is_array(v) || json_is_object(v))
        return literal_deep(s, v);
    char text[32];
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    return gram_text(s->g, json_is_integer(v) ? text
                           : json_is_null(v)  ? "null"
                           : json_is_true(v)  ? "true"
                                              : "false");
}

struct gram *schema_space(struct schema *s)
{
    return gram_call(s->g, s->space);
}

static uint32_t conj_hash(const struct conj *c)
{
    uint32_t h = c->never;
    for (uint32_t i = 0; i < c->n; i++)
        h = (h ^ (uint32_t)((uintptr_t)c->part[i].s >> 4) ^ c->part[i].taken << 28) * 0x85ebca6bu,
        h ^= h >> 15;
    return h;
}

static bool conj_equal(const struct conj *a, const struct conj *b)
{
    if (a->n != b->n || a->never != b->never)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->part[i].s != b->part[i].s || a->part[i].taken != b->part[i].taken ||
            a->part[i].parent != b->part[i].parent)
            return false;
    return true;
}

struct gram *schema_value(struct schema *s, const struct conj *c)
{
    if (c->never || schema_stop(s))
        return gram_fail(s->g);
    uint32_t h = conj_hash(c), at = h & (SCHEMA_SLOTS - 1);
    for (; s->slots[at]; at = (at + 1) & (SCHEMA_SLOTS - 1)) {
        const struct schema_rule *r = &s->rules[s->slots[at] - 1];
        if (r->hash == h && conj_equal(r->of, c))
            return gram_call(s->g, r->rule);
    }
    if (s->count == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 64;
        struct schema_rule *rules = mem_realloc(s->rules, cap, sizeof *rules);
        if (!rules) {
            err_memory(&s->g->err, "a schema's rules", cap * sizeof *rules);
            return gram_fail(s->g);
        }
        s->rules = rules;
        s->cap = cap;
    }
    size_t bytes = offsetof(struct conj, part) + c->n * sizeof *c->part;
    struct conj *copy = arena_alloc(&s->g->arena, 1, bytes);
    uint32_t rule = grammar_rule(s->g);
    if (!copy)
        grammar_fail(s->g, ERR_RESOURCE, "the schema is too large");
    if (schema_stop(s))
        return gram_fail(s->g);
    conj_copy(copy, c);
    s->rules[s->count] = (struct schema_rule){copy, rule, h};
    s->slots[at] = ++s->count;
    return gram_call(s->g, rule);
}

static struct gram *schema_any_of(struct schema *s, const struct conj *c, uint32_t part,
                                  const json_t *branches)
{
    struct gram_items l = {0};
    struct conj one;
    size_t i;
    json_t *branch;
    json_array_foreach(branches, i, branch)
    {
        conj_branch(s, c, part, TAKEN_ANY, branch, &one);
        if (!one.never)
            gram_push(s->g, &l, schema_value(s, &one));
    }
    return gram_list(s->g, GRAM_ALT, l.at, l.n);
}

static struct gram *schema_typed(struct schema *s, const struct conj *c)
{
    struct grammar *g = s->g;
    struct gram_items l = {0};
    uint32_t types = conj_types(s, c);
    if (types & T_OBJECT)
        gram_push(g, &l, schema_object(s, c));
    if (types & T_ARRAY)
        gram_push(g, &l, schema_array(s, c));
    if (types & T_STRING)
        gram_push(g, &l, schema_string(s, c));
    if (types & T_NUMBER)
        gram_push(g, &l, schema_number(s, c, types));
    if (types & T_BOOL)
        gram_push(g, &l, gram_alt(g, gram_text(g, "true"), gram_text(g, "false")));
    if (types & T_NULL)
        gram_push(g, &l, gram_text(g, "null"));
    return gram_list(g, GRAM_ALT, l.at, l.n);
}

static struct gram *schema_body(struct schema *s, const struct conj *c)
{
    uint32_t part, bit;
    const json_t *branches = conj_choice(c, &part, &bit);
    if (branches) {
        if (!json_is_array(branches) || !json_array_size(branches)) {
            schema_refuse(s, "anyOf and oneOf are lists of schemas");
            return gram_fail(s->g);
        }
        return bit == TAKEN_ANY ? schema_any_of(s, c, part, branches) : schema_one_of(s, c, part, branches);
    }
    json_t *values = conj_values(s, c);
    if (!values)
        return schema_typed(s, c);
    struct gram_items l = {0};
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) gram_push(s->g, &l, schema_literal(s, v));
    json_decref(values);
    return gram_list(s->g, GRAM_ALT, l.at, l.n);
}

/* Bounded white space, and a string without conditions: every character, every escape, no lone surrogate. */
static void schema_basics(struct schema *s)
{
    static const char string[] =
        "([^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
        "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})))";
    struct grammar *g = s->g;
    s->space = grammar_rule(g);
    grammar_define(g, s->space,
                   gram_alt(g, gram_text(g, ""), gram_text(g, " "),
                            gram_seq(g, gram_text(g, "\n"), gram_rep(g, gram_ascii(g, "  \t\t"), 0, 32))));
    s->character = pattern_read(g, string, sizeof string - 1, PATTERN_WHOLE);
    s->string = grammar_rule(g);
    struct gram *quote = gram_text(g, "\"");
    grammar_define(g, s->string, gram_seq(g, quote, gram_rep(g, s->character, 0, GRAMMAR_MOST), quote));
}

uint32_t schema_read(struct grammar *g, const json_t *schema)
{
    struct schema s = {.g = g, .root = schema, .own = json_array()};
    size_t nodes = 0;
    uint32_t root = grammar_rule(g);
    s.slots = mem_zalloc(SCHEMA_SLOTS, sizeof *s.slots);
    if (!s.slots || !s.own)
        err_memory(&g->err, "a schema", SCHEMA_SLOTS * sizeof *s.slots);
    else if (schema_measure(&s, schema, 0, &nodes)) {
        struct conj c = {0};
        schema_basics(&s);
        conj_add(&s, &c, schema, CONJ_TOP);
        grammar_define(g, root, schema_value(&s, &c));
        for (; s.done < s.count && !schema_stop(&s); s.done++) {
            /* The body may add rules, and move the list. */
            uint32_t rule = s.rules[s.done].rule;
            grammar_define(g, rule, schema_body(&s, s.rules[s.done].of));
            if (s.work > SCHEMA_WORK)
                schema_refuse(&s, "its combinations (allOf, anyOf, oneOf, enum) are too many");
        }
    }
    json_decref(s.own);
    mem_free(s.rules);
    mem_free(s.slots);
    mem_free(s.made);
    return root;
}
