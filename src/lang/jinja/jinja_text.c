/* The algorithms behind the methods of str. */
#define _GNU_SOURCE /* memmem, memrchr */
#include "lang/jinja/jinja_text.h"

#include "base/size.h"
#include "base/utf8.h"
#include "lang/jinja/jinja_op.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

uint32_t jtext_next(const struct jstr *s, size_t *at)
{
    uint32_t cp = 0;
    size_t n = utf8_decode(s->s + *at, s->n - *at, &cp);
    *at += n ? n : 1;
    return cp;
}

static uint32_t jtext_before(const struct jstr *s, size_t *at)
{
    size_t i = *at - 1;
    while (i && ((unsigned char)s->s[i] & 0xc0) == 0x80)
        i--;
    *at = i;
    return jtext_next(s, &i);
}

/* A capital sigma at the end of a word is lowered to its final form. */
static bool jtext_final_sigma(const struct jstr *s, size_t before, size_t after)
{
    uint32_t c = 0;
    bool cased = false;
    while (before && !cased) {
        c = jtext_before(s, &before);
        if (jtext_case_ignorable(c))
            continue;
        if (!jtext_cased(c))
            return false;
        cased = true;
    }
    if (!cased)
        return false;
    while (after < s->n) {
        c = jtext_next(s, &after);
        if (!jtext_case_ignorable(c))
            return !jtext_cased(c);
    }
    return true;
}

static size_t jtext_lower_at(const struct jstr *s, size_t at, size_t next, uint32_t c, uint32_t out[4])
{
    if (c == 0x3a3) {
        out[0] = jtext_final_sigma(s, at, next) ? 0x3c2 : 0x3c3;
        return 1;
    }
    return jtext_lower(c, out);
}

struct jstr *jtext_map_case(struct jrt *rt, const struct jstr *s, enum jtext_case how)
{
    struct jsb b = {.rt = rt};
    bool in_word = false;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = jtext_next(s, &i), out[4];
        size_t n;
        if (how == JTEXT_UPPER || (how == JTEXT_SWAP && jtext_is_lower(c)))
            n = jtext_upper(c, out);
        else if (how == JTEXT_FOLD)
            n = jtext_fold(c, out);
        else if ((how == JTEXT_TITLE && !in_word) || (how == JTEXT_CAPITALIZE && !at))
            n = jtext_title(c, out);
        else if (how == JTEXT_SWAP && !jtext_is_upper(c))
            out[0] = c, n = 1;
        else
            n = jtext_lower_at(s, at, i, c, out);
        for (size_t k = 0; k < n; k++)
            jsb_cp(&b, out[k], jstr_data_at(s, at));
        in_word = jtext_cased(c);
    }
    struct jstr *r = jsb_done(&b);
    r->markup = s->markup;
    return r;
}

static bool jtext_in_set(const struct jstr *chars, uint32_t c)
{
    if (!chars)
        return jtext_space(c);
    for (size_t i = 0; i < chars->n;)
        if (jtext_next(chars, &i) == c)
            return true;
    return false;
}

struct jstr *jtext_strip(struct jrt *rt, const struct jstr *s, const struct jstr *chars, int sides)
{
    size_t from = 0, to = s->n;
    while ((sides & JTEXT_LEFT) && from < to) {
        size_t i = from;
        if (!jtext_in_set(chars, jtext_next(s, &i)))
            break;
        jcharge(rt, chars ? chars->n : 0);
        from = i;
    }
    while ((sides & JTEXT_RIGHT) && to > from) {
        size_t i = to;
        if (!jtext_in_set(chars, jtext_before(s, &i)))
            break;
        jcharge(rt, chars ? chars->n : 0);
        to = i;
    }
    return jstr_sub(rt, s, from, to - from);
}

size_t jtext_find(const struct jstr *s, const struct jstr *sub, size_t from, size_t to)
{
    if (from > to || to - from < sub->n)
        return SIZE_MAX;
    if (!sub->n)
        return from;
    const char *p = memmem(s->s + from, to - from, sub->s, sub->n);
    return p ? (size_t)(p - s->s) : SIZE_MAX;
}

size_t jtext_rfind(struct jrt *rt, const struct jstr *s, const struct jstr *sub, size_t from, size_t to)
{
    if (from > to || to - from < sub->n)
        return SIZE_MAX;
    for (size_t i = to - sub->n + 1; i-- > from;) {
        if (sub->n && s->s[i] != sub->s[0])
            continue;
        jcharge(rt, sub->n);
        if (!memcmp(s->s + i, sub->s, sub->n))
            return i;
    }
    return SIZE_MAX;
}

static void jlist_add_sub(struct jrt *rt, struct jlist *l, const struct jstr *s, size_t from, size_t to)
{
    jlist_add(rt, l, jv_str(jstr_sub(rt, s, from, to - from)));
}

static struct jlist *jtext_split_space(struct jrt *rt, const struct jstr *s, int64_t most)
{
    struct jlist *l = jlist_new(rt, 0);
    size_t i = 0;
    for (;;) {
        size_t start = i;
        while (i < s->n && jtext_space(jtext_next(s, &i)))
            start = i;
        if (start >= s->n)
            return l;
        if (most >= 0 && l->n == (size_t)most) {
            jlist_add_sub(rt, l, s, start, s->n);
            return l;
        }
        size_t end = i = start;
        while (i < s->n && !jtext_space(jtext_next(s, &i)))
            end = i;
        jlist_add_sub(rt, l, s, start, end);
        i = end;
    }
}

struct jlist *jtext_split(struct jrt *rt, const struct jstr *s, const struct jstr *sep, int64_t most)
{
    jcharge(rt, s->n);
    if (!sep)
        return jtext_split_space(rt, s, most);
    if (!sep->n)
        jfail(rt, "empty separator");
    struct jlist *l = jlist_new(rt, 0);
    size_t from = 0, at;
    while ((most < 0 || l->n < (size_t)most) && (at = jtext_find(s, sep, from, s->n)) != SIZE_MAX) {
        jlist_add_sub(rt, l, s, from, at);
        from = at + sep->n;
    }
    jlist_add_sub(rt, l, s, from, s->n);
    return l;
}

static struct jlist *jlist_reversed(struct jrt *rt, const struct jlist *l)
{
    struct jlist *r = jlist_new(rt, l->n);
    for (size_t i = l->n; i-- > 0;)
        jlist_add(rt, r, l->v[i]);
    return r;
}

static struct jlist *jtext_rsplit_space(struct jrt *rt, const struct jstr *s, int64_t most)
{
    struct jlist *l = jlist_new(rt, 0);
    size_t to = s->n;
    for (;;) {
        struct jstr *rest = jtext_strip(rt, jstr_sub(rt, s, 0, to), NULL, JTEXT_RIGHT);
        to = rest->n;
        if (!to)
            break;
        if (most >= 0 && l->n == (size_t)most) {
            jlist_add(rt, l, jv_str(rest));
            break;
        }
        size_t start = to;
        for (size_t i = to; i && !jtext_space(jtext_before(s, &i));)
            start = i;
        jlist_add_sub(rt, l, s, start, to);
        to = start;
    }
    return jlist_reversed(rt, l);
}

struct jlist *jtext_rsplit(struct jrt *rt, const struct jstr *s, const struct jstr *sep, int64_t most)
{
    jcharge(rt, s->n);
    if (!sep)
        return jtext_rsplit_space(rt, s, most);
    if (!sep->n)
        jfail(rt, "empty separator");
    struct jlist *l = jlist_new(rt, 0);
    size_t to = s->n, at;
    while ((most < 0 || l->n < (size_t)most) && (at = jtext_rfind(rt, s, sep, 0, to)) != SIZE_MAX) {
        jlist_add_sub(rt, l, s, at + sep->n, to);
        to = at;
    }
    jlist_add_sub(rt, l, s, 0, to);
    return jlist_reversed(rt, l);
}

static bool jtext_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct jlist *jtext_splitlines(struct jrt *rt, const struct jstr *s, bool keep)
{
    struct jlist *l = jlist_new(rt, 0);
    jcharge(rt, s->n);
    size_t from = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = jtext_next(s, &i);
        if (!jtext_line_end(c))
            continue;
        if (c == '\r' && i < s->n && s->s[i] == '\n')
            i++;
        jlist_add_sub(rt, l, s, from, keep ? i : at);
        from = i;
    }
    if (from < s->n)
        jlist_add_sub(rt, l, s, from, s->n);
    return l;
}

struct jstr *jtext_replace(struct jrt *rt, const struct jstr *s, const struct jstr *from,
                           const struct jstr *to, int64_t most)
{
    struct jsb b = {.rt = rt};
    size_t at = 0, hit;
    jcharge(rt, s->n);
    if (from->n) {
        for (; most && (hit = jtext_find(s, from, at, s->n)) != SIZE_MAX; most -= most > 0) {
            jsb_sub(&b, s, at, hit - at);
            jsb_str(&b, to);
            at = hit + from->n;
        }
    } else {
        for (; most; most -= most > 0) {
            jsb_str(&b, to);
            if (at >= s->n)
                break;
            size_t next = at;
            jtext_next(s, &next);
            jsb_sub(&b, s, at, next - at);
            at = next;
        }
    }
    jsb_sub(&b, s, at, s->n - at);
    struct jstr *r = jsb_done(&b);
    r->markup = s->markup;
    return r;
}

struct jstr *jtext_pad(struct jrt *rt, const struct jstr *s, size_t left, size_t right,
                       const struct jstr *fill)
{
    struct jsb b = {.rt = rt};
    if (left > rt->arena.limit || right > rt->arena.limit)
        jfail_limit(rt, "a padded string is too long");
    for (size_t i = 0; i < left; i++)
        jsb_str(&b, fill);
    jsb_str(&b, s);
    for (size_t i = 0; i < right; i++)
        jsb_str(&b, fill);
    struct jstr *r = jsb_done(&b);
    r->markup = s->markup;
    return r;
}

struct jstr *jtext_join(struct jrt *rt, const struct jstr *sep, const struct jlist *items)
{
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < items->n; i++) {
        if (i)
            jsb_str(&b, sep);
        jsb_str(&b, items->v[i].s);
    }
    return jsb_done(&b);
}

/* -- numbers from text: blanks around it, single underscores between digits, any decimal digits */

/* The text in ASCII without blanks and underscores; false where it cannot be a number. */
static bool jtext_number(const struct jstr *s, char *out, size_t room)
{
    size_t from = 0, to = s->n, n = 0;
    for (size_t i = 0; i < to && jtext_space(jtext_next(s, &i));)
        from = i;
    while (to > from) {
        size_t i = to;
        if (!jtext_space(jtext_before(s, &i)))
            break;
        to = i;
    }
    for (size_t i = from; i < to;) {
        uint32_t c = jtext_next(s, &i);
        if (c == '_') {
            char after = i < to ? s->s[i] : 0;
            bool between = n && strchr("0123456789abcdefABCDEFxXoO", out[n - 1]) && after && after != '_';
            if (!between)
                return false;
            continue;
        }
        if (c >= 0x80) {
            if (!jtext_decimal(c))
                return false;
            uint32_t zero = c; /* decimal digits stand in runs of ten, from zero */
            while (c - zero < 9 && jtext_decimal(zero - 1))
                zero--;
            c = '0' + (c - zero);
        }
        if (n + 1 >= room || !c)
            return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return n > 0;
}

bool jtext_to_int(struct jrt *rt, const struct jstr *s, int base, int64_t *out)
{
    char text[400], *p = text;
    if (!jtext_number(s, text, sizeof text))
        return false;
    bool minus = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    char prefix = p[0] == '0' ? (char)(p[1] | 0x20) : 0;
    int named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        p += 2;
        base = named;
    } else if (base == 0) {
        if (p[0] == '0' && strspn(p, "0") != strlen(p))
            return false;
        base = 10;
    }
    if (!*p)
        return false;
    int64_t v = 0;
    bool over = false;
    for (; *p; p++) {
        int d = *p >= '0' && *p <= '9'                     ? *p - '0'
                : (*p | 0x20) >= 'a' && (*p | 0x20) <= 'z' ? (*p | 0x20) - 'a' + 10
                                                           : 99;
        if (d >= base)
            return false;
        over = over || __builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v);
    }
    if (over || (!minus && v == INT64_MIN))
        jfail_limit(rt, "an integer does not fit in 64 bits");
    *out = minus ? v : -v;
    return true;
}

bool jtext_to_float(const struct jstr *s, double *out)
{
    char text[400];
    if (!jtext_number(s, text, sizeof text))
        return false;
    const char *p = text + (text[0] == '-' || text[0] == '+');
    bool named = !strcasecmp(p, "inf") || !strcasecmp(p, "infinity") || !strcasecmp(p, "nan");
    if (!named &&
        (strspn(p, "0123456789.eE+-") != strlen(p) || !strpbrk(p, "0123456789") || *p == 'e' || *p == 'E'))
        return false;
    char *end;
    *out = strtod(text, &end);
    return !*end;
}
