/* Numbers of JSON schema. Bounds become automata over decimal digits: a magnitude is compared digit by digit.
 *
 * Without bounds an integer has at most 18 digits, and a number at most 16 before and after its point, with an
 * exponent that keeps it finite. With bounds a number has no exponent and at most 15 digits, so that two of them
 * that differ in writing also differ once they are read as doubles. */
#include "lang/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_INTEGER = 18, NUMBER_EXACT = 15 };

void schema_bounds(struct schema *s, const struct conj *c, struct schema_bound *lo, struct schema_bound *hi)
{
    static const struct {
        const char *word;
        bool upper, strict;
    } words[] = {{"minimum", false, false},
                 {"exclusiveMinimum", false, true},
                 {"maximum", true, false},
                 {"exclusiveMaximum", true, true}};
    *lo = *hi = (struct schema_bound){0};
    for (uint32_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
            const json_t *v = json_object_get(c->part[i].s, words[k].word);
            struct schema_bound *b = words[k].upper ? hi : lo;
            double d = json_number_value(v);
            if (!v)
                continue;
            if (!json_is_number(v) || (json_is_integer(v) && (json_int_t)d != json_integer_value(v)))
                schema_refuse(s, "%s is a number that a double can hold", words[k].word);
            if (!b->set || (words[k].upper ? d < b->v : d > b->v))
                *b = (struct schema_bound){true, words[k].strict, d};
            else if (d == b->v)
                b->strict |= words[k].strict;
        }
}

/* The value of a keyword for multiples; 0 = it is missing, or not supported. */
static uint32_t multiple_of(struct schema *s, const json_t *v)
{
    double d = json_number_value(v);
    if (v && (!json_is_number(v) || d < 1 || d > SCHEMA_MULTIPLE || d != floor(d))) {
        schema_refuse(s, "multipleOf is supported for whole numbers up to %d", SCHEMA_MULTIPLE);
        return 0;
    }
    return (uint32_t)d;
}

uint32_t schema_not_multiple(struct schema *s, const struct conj *c, uint32_t part)
{
    return multiple_of(s, json_object_get(c->part[part].s, SCHEMA_NOT_MULTIPLE));
}

uint32_t schema_multiple(struct schema *s, const struct conj *c)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t one = multiple_of(s, json_object_get(c->part[i].s, "multipleOf"));
        if (!one)
            continue;
        uint32_t a = all ? all : 1, b = one;
        while (b) {
            uint32_t t = a % b;
            a = b;
            b = t;
        }
        all = (all ? all : 1) / a * one;
        if (all > SCHEMA_MULTIPLE) {
            schema_refuse(s, "multipleOf is supported for whole numbers up to %d", SCHEMA_MULTIPLE);
            return 0;
        }
    }
    return all;
}

/* A magnitude in plain digits: no leading zeros before the point (but "0"), none behind the last. */
struct digits {
    char whole[340], part[400];
    size_t n, m;
};

static void digits_of(double v, struct digits *d)
{
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, fabs(v));
        if (strtod(text, NULL) == fabs(v))
            break;
    }
    char mantissa[24];
    size_t n = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++)
        if (*at != '.')
            mantissa[n++] = *at;
    long exponent = strtol(at + 1, NULL, 10); /* of 10; the point stands behind mantissa[0] */
    while (n > 1 && mantissa[n - 1] == '0')
        n--;
    d->n = d->m = 0;
    for (long i = 0; i <= exponent; i++)
        d->whole[d->n++] = (size_t)i < n ? mantissa[i] : '0';
    if (exponent < 0)
        d->whole[d->n++] = '0';
    for (long i = exponent + 1; i < (long)n; i++)
        d->part[d->m++] = i < 0 ? '0' : mantissa[i];
    if (v == 0)
        d->m = 0;
}

static struct gram *digit(struct grammar *g, char lo, char hi)
{
    const char pair[3] = {lo, hi, 0};
    return lo <= hi ? gram_ascii(g, pair) : gram_fail(g);
}

static struct gram *digits_any(struct grammar *g, uint32_t min, uint32_t max)
{
    return gram_rep(g, digit(g, '0', '9'), min, max);
}

/* A point and digits, or nothing. */
static struct gram *fraction(struct grammar *g)
{
    return gram_rep(g, gram_seq(g, gram_text(g, "."), digits_any(g, 1, GRAMMAR_MOST)), 0, 1);
}

/* The fraction behind the bound's own whole part. */
static void compare_part(struct grammar *g, struct gram_items *l, const struct digits *d, bool more,
                         bool strict)
{
    struct gram *whole = gram_bytes(g, d->whole, d->n), *point = gram_text(g, ".");
    struct gram *rest = digits_any(g, 0, GRAMMAR_MOST);
    struct gram *positive = gram_seq(g, rest, digit(g, '1', '9'), rest); /* not all zeros */
    for (size_t j = 0; j < d->m; j++) {
        struct gram *head = gram_bytes(g, d->part, j);
        struct gram *other =
            more ? digit(g, (char)(d->part[j] + 1), '9') : digit(g, '0', (char)(d->part[j] - 1));
        gram_push(g, l, gram_seq(g, whole, point, head, other, rest));
        if (!more && j) /* it ends before the bound does: less */
            gram_push(g, l, gram_seq(g, whole, point, head));
    }
    struct gram *all = gram_bytes(g, d->part, d->m);
    if (more)
        gram_push(g, l, gram_seq(g, whole, point, all, positive));
    if (!more && d->m)
        gram_push(g, l, whole);
    if (strict)
        return;
    struct gram *zeros = gram_rep(g, gram_text(g, "0"), d->m ? 0 : 1, GRAMMAR_MOST);
    gram_push(g, l, gram_seq(g, whole, point, all, zeros));
    if (!d->m)
        gram_push(g, l, whole);
}

/* Magnitudes that are more (or less) than d, or equal to it unless strict. */
static struct gram *compare(struct grammar *g, const struct digits *d, bool more, bool strict)
{
    struct gram_items l = {0};
    uint32_t n = (uint32_t)d->n;
    if (more)
        gram_push(g, &l, gram_seq(g, digit(g, '1', '9'), digits_any(g, n, GRAMMAR_MOST), fraction(g)));
    else if (n > 1)
        gram_push(g, &l,
                  gram_seq(g,
                           gram_alt(g, digit(g, '0', '0'),
                                    gram_seq(g, digit(g, '1', '9'), digits_any(g, 0, n - 2))),
                           fraction(g)));
    for (uint32_t i = 0; i < n; i++) {
        char least = i == 0 && n > 1 ? '1' : '0';
        struct gram *other =
            more ? digit(g, (char)(d->whole[i] + 1), '9') : digit(g, least, (char)(d->whole[i] - 1));
        gram_push(
            g, &l,
            gram_seq(g, gram_bytes(g, d->whole, i), other, digits_any(g, n - i - 1, n - i - 1), fraction(g)));
    }
    compare_part(g, &l, d, more, strict);
    return gram_list(g, GRAM_ALT, l.at, l.n);
}

/* Texts of numbers on one side of a bound. */
static const struct dfa *bound_dfa(struct schema *s, const struct schema_bound *b, bool upper)
{
    struct grammar *g = s->g;
    struct gram *minus = gram_text(g, "-"), *near, *far;
    struct gram *any = gram_seq(g, digits_any(g, 1, GRAMMAR_MOST), fraction(g));
    struct digits d;
    digits_of(b->v, &d);
    if (upper) { /* far: the negative ones below a bound that is none */
        bool negative = b->v < 0;
        near = compare(g, &d, negative, b->strict);
        far = b->v == 0 && b->strict ? compare(g, &d, true, true) : any;
        return dfa_make(g, negative ? gram_seq(g, minus, near) : gram_alt(g, near, gram_seq(g, minus, far)));
    }
    near = compare(g, &d, b->v >= 0, b->strict);
    return dfa_make(g, b->v < 0 ? gram_alt(g, any, gram_seq(g, minus, near)) : near);
}

/* Remainders of a number read digit by digit: state 2 + r. */
static const struct dfa *multiple_dfa(struct schema *s, uint32_t m)
{
    struct dfa *d = arena_alloc(&s->g->arena, 1, sizeof *d);
    uint16_t *next = arena_alloc(&s->g->arena, (m + 3) * 12, sizeof *next);
    uint8_t *accept = arena_alloc(&s->g->arena, m + 3, 1);
    if (!d || !next || !accept) {
        grammar_fail(s->g, ERR_RESOURCE, "the schema is too large");
        return NULL;
    }
    *d = (struct dfa){.n = m + 3, .classes = 12, .next = next, .accept = accept};
    for (uint32_t c = 0; c < 10; c++)
        d->class_of['0' + c] = (uint8_t)(1 + c);
    d->class_of['-'] = 11;
    next[12 + 11] = (uint16_t)(m + 2); /* the start again, without a sign */
    for (uint32_t state = 1; state < m + 3; state++) {
        uint32_t r = state == 1 || state == m + 2 ? 0 : state - 2;
        for (uint32_t c = 0; c < 10; c++)
            next[state * 12 + 1 + c] = (uint16_t)(2 + (r * 10 + c) % m);
    }
    accept[2] = 1;
    return d;
}

/* All numbers within these limits of digits before and after the point. */
static struct gram *number_text(struct grammar *g, uint32_t whole, uint32_t part, bool exponent)
{
    struct gram *minus = gram_rep(g, gram_text(g, "-"), 0, 1);
    struct gram *n = gram_seq(
        g, minus,
        gram_alt(g, gram_text(g, "0"), gram_seq(g, digit(g, '1', '9'), digits_any(g, 0, whole - 1))));
    if (part)
        n = gram_seq(g, n, gram_rep(g, gram_seq(g, gram_text(g, "."), digits_any(g, 1, part)), 0, 1));
    if (exponent) {
        static const char text[] = "([eE]([+-]?[0-9]{1,2}|[+]?1[0-9][0-9]|[+]?2[0-7][0-9]|-[12][0-9][0-9]))?";
        n = gram_seq(g, n, pattern_read(g, text, sizeof text - 1, PATTERN_WHOLE));
    }
    return n;
}

struct gram *schema_number(struct schema *s, const struct conj *c, uint32_t types)
{
    struct grammar *g = s->g;
    struct schema_bound lo, hi;
    struct digits d;
    schema_bounds(s, c, &lo, &hi);
    uint32_t multiple = schema_multiple(s, c), whole = 1;
    bool integer = !(types & T_FRACTION) || multiple, fraction_only = !(types & T_INTEGER);
    bool excludes = conj_has(c, SCHEMA_NOT_MULTIPLE);
    if (fraction_only && multiple)
        return gram_fail(g);
    if (!lo.set && !hi.set && !multiple && !fraction_only && !excludes)
        return number_text(g, integer ? NUMBER_INTEGER : 16, integer ? 0 : 16, !integer);
    for (int i = 0; i < 2; i++) {
        const struct schema_bound *b = i ? &hi : &lo;
        digits_of(b->v, &d);
        uint32_t n = b->set ? (uint32_t)d.n : integer ? NUMBER_INTEGER : 9;
        whole = n > whole ? n : whole;
    }
    uint32_t part = integer || whole >= NUMBER_EXACT ? 0 : NUMBER_EXACT - whole;
    const struct dfa *all = dfa_make(g, number_text(g, whole, part, false));
    if (lo.set)
        all = dfa_combine(g, all, bound_dfa(s, &lo, false), DFA_AND);
    if (hi.set)
        all = dfa_combine(g, all, bound_dfa(s, &hi, true), DFA_AND);
    if (multiple)
        all = dfa_combine(g, all, multiple_dfa(s, multiple), DFA_AND);
    for (uint32_t i = 0, one; i < c->n && !schema_stop(s); i++)
        if ((one = schema_not_multiple(s, c, i)))
            all = dfa_combine(g, all, multiple_dfa(s, one), DFA_MINUS);
    if (fraction_only || excludes) { /* where integers are a separate type, they have no point */
        static const char fraction[] = "-?[0-9]+\\.[0-9]*[1-9][0-9]*",
                          either[] = "-?[0-9]+(\\.[0-9]*[1-9][0-9]*)?";
        const char *text = fraction_only ? fraction : either;
        all = dfa_combine(g, all, dfa_make(g, pattern_read(g, text, strlen(text), PATTERN_WHOLE)), DFA_AND);
    }
    if (!integer && lo.set && hi.set && lo.v <= hi.v)
        schema_leave_out(s, "minimum"); /* numbers of more digits */
    return gram_dfa(g, all);
}
