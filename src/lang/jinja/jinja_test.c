/* The tests: what stands behind `is`. */
#include "lang/jinja/jinja_call.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <string.h>

#define TEST(name) static struct jv name(struct jrt *rt, struct jv v, struct jv *arg)
#define KIND_TEST(name, condition)                                                                           \
    TEST(name)                                                                                               \
    {                                                                                                        \
        (void)rt;                                                                                            \
        (void)arg;                                                                                           \
        return jv_bool(condition);                                                                           \
    }
#define COMPARE_TEST(name, op)                                                                               \
    TEST(name)                                                                                               \
    {                                                                                                        \
        return jv_bool(jop_compare(rt, op, v, arg[0]));                                                      \
    }

KIND_TEST(jt_defined, v.kind != J_UNDEF)
KIND_TEST(jt_undefined, v.kind == J_UNDEF)
KIND_TEST(jt_none, v.kind == J_NONE)
KIND_TEST(jt_boolean, v.kind == J_BOOL)
KIND_TEST(jt_true, v.kind == J_BOOL && v.b)
KIND_TEST(jt_false, v.kind == J_BOOL && !v.b)
KIND_TEST(jt_integer, v.kind == J_INT)
KIND_TEST(jt_float, v.kind == J_FLOAT)
KIND_TEST(jt_number, jv_is_num(v))
KIND_TEST(jt_string, v.kind == J_STR)
KIND_TEST(jt_mapping, v.kind == J_DICT)
KIND_TEST(jt_iterable, jiter_can(v) || v.kind == J_LOOP)
KIND_TEST(jt_escaped, v.kind == J_STR && v.s->markup)
KIND_TEST(jt_sequence,
          v.kind == J_UNDEF || v.kind == J_STR || jv_is_seq(v) || v.kind == J_DICT || v.kind == J_RANGE)
KIND_TEST(jt_callable, v.kind == J_UNDEF || v.kind == J_MACRO || v.kind == J_FUNC || v.kind == J_METHOD ||
                           v.kind == J_LOOP || v.kind == J_JOINER)
COMPARE_TEST(jt_eq, JCMP_EQ)
COMPARE_TEST(jt_ne, JCMP_NE)
COMPARE_TEST(jt_lt, JCMP_LT)
COMPARE_TEST(jt_le, JCMP_LE)
COMPARE_TEST(jt_gt, JCMP_GT)
COMPARE_TEST(jt_ge, JCMP_GE)
COMPARE_TEST(jt_in, JCMP_IN)

TEST(jt_odd)
{
    (void)arg;
    return jv_bool(jop_eq(rt, jop_binary(rt, JBIN_MOD, v, jv_int(2)), jv_int(1)));
}

TEST(jt_even)
{
    (void)arg;
    return jv_bool(jop_eq(rt, jop_binary(rt, JBIN_MOD, v, jv_int(2)), jv_int(0)));
}

TEST(jt_divisibleby)
{
    return jv_bool(jop_eq(rt, jop_binary(rt, JBIN_MOD, v, arg[0]), jv_int(0)));
}

static bool all_cased(const struct jstr *s, bool upper)
{
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c = jtext_next(s, &i);
        if (upper ? jtext_is_lower(c) || jtext_is_title(c) : jtext_is_upper(c) || jtext_is_title(c))
            return false;
        any = any || (upper ? jtext_is_upper(c) : jtext_is_lower(c));
    }
    return any;
}

TEST(jt_lower)
{
    (void)arg;
    return jv_bool(all_cased(jop_soft_str(rt, v), false));
}

TEST(jt_upper)
{
    (void)arg;
    return jv_bool(all_cased(jop_soft_str(rt, v), true));
}

TEST(jt_filter)
{
    (void)rt;
    (void)arg;
    return jv_bool(v.kind == J_STR && jfilter_find(v.s->s, v.s->n));
}

TEST(jt_test)
{
    (void)rt;
    (void)arg;
    return jv_bool(v.kind == J_STR && jtest_find(v.s->s, v.s->n));
}

/* Python's `is`: small values are what they are, containers are themselves alone. */
TEST(jt_sameas)
{
    (void)rt;
    struct jv o = arg[0];
    if (v.kind != o.kind)
        return jv_bool(false);
    switch (v.kind) {
    case J_NONE:
        return jv_bool(true);
    case J_BOOL:
        return jv_bool(v.b == o.b);
    case J_INT:
        return jv_bool(v.i == o.i);
    case J_FLOAT:
        return jv_bool(v.f == o.f);
    case J_STR:
        return jv_bool(jstr_eq(v.s, o.s));
    default:
        return jv_bool(v.l == o.l);
    }
}

static const struct jfunc table[] = {
    {"!=", "other", {.bound = jt_ne}},
    {"<", "other", {.bound = jt_lt}},
    {"<=", "other", {.bound = jt_le}},
    {"==", "other", {.bound = jt_eq}},
    {">", "other", {.bound = jt_gt}},
    {">=", "other", {.bound = jt_ge}},
    {"boolean", "", {.bound = jt_boolean}},
    {"callable", "", {.bound = jt_callable}},
    {"defined", "", {.bound = jt_defined}},
    {"divisibleby", "num", {.bound = jt_divisibleby}},
    {"eq", "other", {.bound = jt_eq}},
    {"equalto", "other", {.bound = jt_eq}},
    {"escaped", "", {.bound = jt_escaped}},
    {"even", "", {.bound = jt_even}},
    {"false", "", {.bound = jt_false}},
    {"filter", "", {.bound = jt_filter}},
    {"float", "", {.bound = jt_float}},
    {"ge", "other", {.bound = jt_ge}},
    {"greaterthan", "other", {.bound = jt_gt}},
    {"gt", "other", {.bound = jt_gt}},
    {"in", "seq", {.bound = jt_in}},
    {"integer", "", {.bound = jt_integer}},
    {"iterable", "", {.bound = jt_iterable}},
    {"le", "other", {.bound = jt_le}},
    {"lessthan", "other", {.bound = jt_lt}},
    {"lower", "", {.bound = jt_lower}},
    {"lt", "other", {.bound = jt_lt}},
    {"mapping", "", {.bound = jt_mapping}},
    {"ne", "other", {.bound = jt_ne}},
    {"none", "", {.bound = jt_none}},
    {"number", "", {.bound = jt_number}},
    {"odd", "", {.bound = jt_odd}},
    {"sameas", "other", {.bound = jt_sameas}},
    {"sequence", "", {.bound = jt_sequence}},
    {"string", "", {.bound = jt_string}},
    {"test", "", {.bound = jt_test}},
    {"true", "", {.bound = jt_true}},
    {"undefined", "", {.bound = jt_undefined}},
    {"upper", "", {.bound = jt_upper}},
};

const struct jfunc *jtest_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, name, n))
            return &table[i];
    return NULL;
}
