/* Regular expressions: the part of ECMA's that is regular. Classes, escapes (\d \w \s \p{L} \n \xHH \uHHHH ...),
 * groups, alternatives, quantifiers (lazy ones mean the same here), anchors at the ends. Look-around,
 * back-references and word boundaries are refused.
 *
 * Programs disagree on \d, \w and \s outside of ASCII. What is generated must hold for all of them, so each class
 * has a sure set and a possible one, and a negation takes what is not even possible. */
#include "lang/grammar/grammar_front.h"
#include "lang/grammar/pattern_unicode.h"

#include "base/utf8.h"

#include <string.h>

enum { PATTERN_DEPTH = 50, PATTERN_TIMES = 100000 };

struct pattern {
    struct grammar *g;
    const char *text, *at, *end;
    bool quoted, possible;
};

/* A class while it is read. */
struct both {
    struct ranges sure, possible;
};

/* Anchors, until pattern_open has looked at them. */
static struct gram pattern_start = {.kind = GRAM_FAIL}, pattern_end = {.kind = GRAM_FAIL};

static bool pattern_stop(const struct pattern *p)
{
    return p->g->err.code != 0;
}

static void pattern_error(struct pattern *p, const char *what)
{
    size_t n = (size_t)(p->end - p->text);
    grammar_fail(p->g, ERR_DATA, "pattern, at byte %zu of \"%.*s\": %s", (size_t)(p->at - p->text),
                 (int)(n < 100 ? n : 100), p->text, what);
}

static void both_add(struct pattern *p, struct both *c, uint32_t lo, uint32_t hi)
{
    ranges_add(p->g, &c->sure, lo, hi);
    ranges_add(p->g, &c->possible, lo, hi);
}

static void both_append(struct pattern *p, struct ranges *to, const struct ranges *from)
{
    for (size_t i = 0; i < from->n; i++)
        ranges_add(p->g, to, from->at[i].lo, from->at[i].hi);
}

static void both_invert(struct pattern *p, struct both *c)
{
    struct both inverted = {c->possible, c->sure};
    ranges_invert(p->g, &inverted.sure);
    ranges_invert(p->g, &inverted.possible);
    *c = inverted;
}

static struct gram *both_class(struct pattern *p, struct both *c)
{
    return gram_class(p->g, p->possible ? &c->possible : &c->sure, p->quoted);
}

/* \d \w \s and their negations. */
static void pattern_set(struct pattern *p, char letter, struct both *out)
{
    static const struct range digit[] = {{'0', '9'}},
                              word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct range space[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                         {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    struct both c = {0};
    char low = (char)(letter | 0x20);
    const struct range *sure = low == 'd' ? digit : low == 'w' ? word : space;
    size_t n = low == 'd' ? 1 : low == 'w' ? 4 : sizeof space / sizeof *space;
    for (size_t i = 0; i < n; i++)
        both_add(p, &c, sure[i].lo, sure[i].hi);
    if (low == 'd')
        pattern_category(p->g, "Nd", 2, &c.possible);
    else if (low == 'w') {
        pattern_category(p->g, "L", 1, &c.possible);
        pattern_category(p->g, "M", 1, &c.possible);
        pattern_category(p->g, "N", 1, &c.possible);
        pattern_category(p->g, "Pc", 2, &c.possible);
    } else {
        ranges_add(p->g, &c.possible, 0x1c, 0x1f);
        ranges_add(p->g, &c.possible, 0x85, 0x85);
        ranges_add(p->g, &c.possible, 0x180e, 0x180e);
        ranges_add(p->g, &c.possible, 0xfeff, 0xfeff);
    }
    if (letter != low)
        both_invert(p, &c);
    both_append(p, &out->sure, &c.sure);
    both_append(p, &out->possible, &c.possible);
}

/* \p{L}, \P{Lu}, \p{Letter}: general categories. */
static void pattern_property(struct pattern *p, bool inverted, struct both *out)
{
    struct both c = {0};
    const char *name = p->at + 1;
    if (p->at >= p->end || *p->at != '{' || !memchr(name, '}', (size_t)(p->end - name))) {
        pattern_error(p, "\\p wants a category in braces");
        return;
    }
    size_t n = (size_t)((const char *)memchr(name, '}', (size_t)(p->end - name)) - name);
    if (!pattern_category(p->g, name, n, &c.sure))
        pattern_error(p, "a category of characters that is not known");
    p->at = name + n + 1;
    both_append(p, &c.possible, &c.sure);
    if (inverted)
        both_invert(p, &c);
    both_append(p, &out->sure, &c.sure);
    both_append(p, &out->possible, &c.possible);
}

static bool pattern_hex(struct pattern *p, int least, int most, uint32_t *cp)
{
    int n = 0;
    *cp = 0;
    for (; n < most && p->at < p->end; n++, p->at++) {
        char c = *p->at, low = c | 0x20;
        int v = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (v < 0)
            break;
        *cp = *cp << 4 | (uint32_t)v;
    }
    if (n < least)
        pattern_error(p, "an escape wants more hexadecimal digits");
    return n >= least;
}

/* After "\u": four digits, perhaps the first half of a pair, or any number in braces. */
static bool pattern_unicode(struct pattern *p, uint32_t *cp)
{
    if (p->at < p->end && *p->at == '{') {
        p->at++;
        if (!pattern_hex(p, 1, 6, cp))
            return false;
        if (p->at >= p->end || *p->at != '}') {
            pattern_error(p, "\\u{ wants its closing brace");
            return false;
        }
        p->at++;
        return true;
    }
    if (!pattern_hex(p, 4, 4, cp))
        return false;
    if (*cp >= 0xd800 && *cp < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
        uint32_t low;
        p->at += 2;
        if (!pattern_hex(p, 4, 4, &low))
            return false;
        if (low >= 0xdc00 && low < 0xe000)
            *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    }
    return true;
}

/* An escape, after its backslash: a set (false) or one character (true, in *cp). */
static bool pattern_escape(struct pattern *p, bool in_class, struct both *set, uint32_t *cp)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v\0";
    char c = p->at < p->end ? *p->at++ : 0;
    const char *simple = c ? memchr(from, c, 6) : NULL;
    *cp = (uint8_t)c;
    if (c && strchr("dDwWsS", c)) {
        pattern_set(p, c, set);
        return false;
    }
    if (c == 'p' || c == 'P') {
        pattern_property(p, c == 'P', set);
        return false;
    }
    if (simple) {
        *cp = (uint8_t)to[simple - from];
        if (c == '0' && p->at < p->end && *p->at >= '0' && *p->at <= '9')
            pattern_error(p, "octal escapes are not supported");
    } else if (c == 'b' && in_class)
        *cp = '\b';
    else if (c == 'x')
        pattern_hex(p, 2, 2, cp);
    else if (c == 'u')
        pattern_unicode(p, cp);
    else if (c == 'c' && p->at < p->end)
        *cp = (uint8_t)*p->at++ & 31;
    else if (c == 'b' || c == 'B')
        pattern_error(p, "word boundaries are not supported");
    else if (c >= '1' && c <= '9')
        pattern_error(p, "back-references are not supported");
    else if (!c || (uint8_t)c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        pattern_error(p, "an escape that is none");
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp <= 0xdfff))
        pattern_error(p, "an escape that is no character");
    return true;
}

/* One member of a class: true and *cp for a character, false for a set. */
static bool pattern_member(struct pattern *p, struct both *set, uint32_t *cp)
{
    if (*p->at == '\\') {
        p->at++;
        return pattern_escape(p, true, set, cp);
    }
    size_t n = utf8_decode(p->at, (size_t)(p->end - p->at), cp);
    if (!n)
        pattern_error(p, "bytes that are not UTF-8");
    p->at += n ? n : 1;
    return true;
}

static struct gram *pattern_class(struct pattern *p)
{
    struct both c = {0};
    p->at++;
    bool inverted = p->at < p->end && *p->at == '^';
    p->at += inverted;
    while (p->at < p->end && *p->at != ']' && !pattern_stop(p)) {
        uint32_t lo, hi;
        if (p->end - p->at > 1 && p->at[0] == '[' && p->at[1] == ':') {
            pattern_error(p, "[:names:] are not supported");
            break;
        }
        if (!pattern_member(p, &c, &lo))
            continue;
        hi = lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            if (!pattern_member(p, &c, &hi)) { /* [a-\d]: the hyphen stands for itself */
                both_add(p, &c, '-', '-');
                hi = lo;
            }
        }
        if (hi < lo)
            pattern_error(p, "a range that runs backwards");
        both_add(p, &c, lo, hi);
    }
    if (!pattern_stop(p) && p->at >= p->end)
        pattern_error(p, "a class without its closing bracket");
    p->at++;
    if (inverted)
        both_invert(p, &c);
    return both_class(p, &c);
}

static struct gram *pattern_one_char(struct pattern *p, uint32_t cp)
{
    struct ranges r = {0};
    ranges_add(p->g, &r, cp, cp);
    return gram_class(p->g, &r, p->quoted);
}

static struct gram *pattern_any(struct pattern *p, bool lines)
{
    struct ranges r = {0};
    if (!lines)
        ranges_add(p->g, &r, '\n', '\n');
    if (!lines && !p->possible) { /* some take these for ends of lines, too */
        ranges_add(p->g, &r, '\r', '\r');
        ranges_add(p->g, &r, 0x2028, 0x2029);
    }
    ranges_invert(p->g, &r);
    return gram_class(p->g, &r, p->quoted);
}

static struct gram *pattern_alternatives(struct pattern *p, int depth);

static struct gram *pattern_group(struct pattern *p, int depth)
{
    p->at++;
    if (p->at < p->end && *p->at == '?') {
        const char *close = memchr(p->at, '>', (size_t)(p->end - p->at));
        bool python = p->end - p->at > 2 && p->at[1] == 'P' && p->at[2] == '<';
        bool name = python || (p->end - p->at > 2 && p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!');
        if (p->end - p->at > 1 && p->at[1] == ':')
            p->at += 2;
        else if (name && close)
            p->at = close + 1;
        else {
            pattern_error(p, "look-around and flags are not supported");
            return gram_fail(p->g);
        }
    }
    struct gram *one = pattern_alternatives(p, depth + 1);
    if (!pattern_stop(p) && (p->at >= p->end || *p->at != ')'))
        pattern_error(p, "a group without its closing parenthesis");
    p->at++;
    return one;
}

static struct gram *pattern_atom(struct pattern *p, int depth)
{
    uint32_t cp = 0;
    switch (*p->at) {
    case '(':
        return pattern_group(p, depth);
    case '[':
        return pattern_class(p);
    case '.':
        p->at++;
        return pattern_any(p, false);
    case '^':
        p->at++;
        return &pattern_start;
    case '$':
        p->at++;
        return &pattern_end;
    case '*':
    case '+':
    case '?':
        pattern_error(p, "nothing to repeat");
        return gram_fail(p->g);
    case '\\': {
        struct both set = {0};
        p->at++;
        if (pattern_escape(p, false, &set, &cp))
            return pattern_one_char(p, cp);
        return both_class(p, &set);
    }
    default: {
        size_t n = utf8_decode(p->at, (size_t)(p->end - p->at), &cp);
        if (!n)
            pattern_error(p, "bytes that are not UTF-8");
        p->at += n ? n : 1;
        return pattern_one_char(p, cp);
    }
    }
}

/* {m}, {m,}, {m,n}; a brace that is none of these is a character. */
static bool pattern_times(struct pattern *p, uint32_t *min, uint32_t *max)
{
    const char *c = p->at + 1;
    uint64_t v[2] = {0, GRAMMAR_MOST};
    bool digits = false;
    for (; c < p->end && *c >= '0' && *c <= '9' && v[0] <= PATTERN_TIMES; c++, digits = true)
        v[0] = v[0] * 10 + (uint64_t)(*c - '0');
    if (!digits)
        return false;
    if (c < p->end && *c == ',') {
        c++;
        if (c < p->end && *c >= '0' && *c <= '9')
            for (v[1] = 0; c < p->end && *c >= '0' && *c <= '9' && v[1] <= PATTERN_TIMES; c++)
                v[1] = v[1] * 10 + (uint64_t)(*c - '0');
    } else
        v[1] = v[0];
    if (v[0] > PATTERN_TIMES || (v[1] > PATTERN_TIMES && v[1] != GRAMMAR_MOST))
        pattern_error(p, "a repetition of more than 100,000 times");
    else if (c >= p->end || *c != '}')
        return false;
    else if (v[1] < v[0])
        pattern_error(p, "a repetition whose bounds run backwards");
    *min = (uint32_t)v[0];
    *max = (uint32_t)v[1];
    p->at = c + 1;
    return true;
}

static struct gram *pattern_repeat(struct pattern *p, struct gram *one)
{
    char c = p->at < p->end ? *p->at : 0;
    uint32_t min = 0, max = GRAMMAR_MOST;
    if (c == '+')
        min = 1;
    else if (c == '?')
        max = 1;
    else if (c == '{') {
        if (!pattern_times(p, &min, &max))
            return one;
        p->at--;
    } else if (c != '*')
        return one;
    p->at++;
    if (p->at < p->end && *p->at == '?')
        p->at++; /* lazy: the same language */
    else if (p->at < p->end && *p->at == '+')
        pattern_error(p, "possessive quantifiers are not supported");
    if (one == &pattern_start || one == &pattern_end)
        pattern_error(p, "an anchor cannot be repeated");
    return gram_rep(p->g, one, min, max);
}

static struct gram *pattern_sequence(struct pattern *p, int depth)
{
    struct gram_items l = {0};
    while (p->at < p->end && *p->at != '|' && *p->at != ')' && !pattern_stop(p)) {
        struct gram *one = pattern_atom(p, depth);
        if (!pattern_stop(p))
            gram_push(p->g, &l, pattern_repeat(p, one));
    }
    return gram_list(p->g, GRAM_SEQ, l.at, l.n);
}

static struct gram *pattern_alternatives(struct pattern *p, int depth)
{
    struct gram_items l = {0};
    if (depth > PATTERN_DEPTH) {
        pattern_error(p, "groups nested too deeply");
        return gram_fail(p->g);
    }
    for (;;) {
        gram_push(p->g, &l, pattern_sequence(p, depth));
        if (pattern_stop(p) || p->at >= p->end || *p->at != '|')
            break;
        p->at++;
    }
    return gram_list(p->g, GRAM_ALT, l.at, l.n);
}

static bool pattern_anchored(const struct gram *n)
{
    if (n == &pattern_start || n == &pattern_end)
        return true;
    if (n->kind != GRAM_SEQ && n->kind != GRAM_ALT && n->kind != GRAM_REP)
        return false;
    for (uint32_t i = 0; i < n->n; i++)
        if (pattern_anchored(n->kids[i]))
            return true;
    return false;
}

/* The whole text from a search: `any` goes where the pattern stands at an end of the text (left, right) and has
 * no anchor there. */
static struct gram *pattern_open(struct pattern *p, struct gram *n, bool left, bool right, struct gram *any)
{
    struct grammar *g = p->g;
    struct gram *none = gram_bytes(g, "", 0);
    if ((n == &pattern_start && !left) || (n == &pattern_end && !right) ||
        (n->kind == GRAM_REP && pattern_anchored(n))) {
        pattern_error(p, "an anchor stands where it can be neither the beginning nor the end");
        return n;
    }
    if (n == &pattern_start)
        return right ? any : none;
    if (n == &pattern_end)
        return left ? any : none;
    if ((n->kind != GRAM_ALT && n->kind != GRAM_SEQ) || !pattern_anchored(n))
        return left || right ? gram_seq(g, left ? any : none, n, right ? any : none) : n;
    struct gram_items l = {0};
    uint32_t from = 0, to = n->n;
    if (n->kind == GRAM_SEQ && left && n->kids[0] == &pattern_start)
        for (left = false; from < to && n->kids[from] == &pattern_start;)
            from++;
    if (n->kind == GRAM_SEQ && right && to > from && n->kids[to - 1] == &pattern_end)
        for (right = false; to > from && n->kids[to - 1] == &pattern_end;)
            to--;
    for (uint32_t i = from; i < to; i++) {
        bool first = n->kind == GRAM_ALT || i == from, last = n->kind == GRAM_ALT || i + 1 == to;
        gram_push(g, &l, pattern_open(p, n->kids[i], left && first, right && last, any));
    }
    if (from == to && (left || right))
        return any;
    return gram_list(g, n->kind, l.at, l.n);
}

struct gram *pattern_read(struct grammar *g, const char *text, size_t n, enum pattern_kind kind)
{
    struct pattern p = {.g = g, .text = text, .at = text, .end = text + n};
    p.quoted = kind != PATTERN_WHOLE;
    p.possible = kind == PATTERN_POSSIBLE;
    struct gram *tree = pattern_alternatives(&p, 0);
    if (!pattern_stop(&p) && p.at < p.end)
        pattern_error(&p, "a closing parenthesis too many");
    if (pattern_stop(&p))
        return gram_fail(g);
    struct gram *any = p.quoted ? gram_rep(g, pattern_any(&p, true), 0, GRAMMAR_MOST) : gram_bytes(g, "", 0);
    struct gram *all = pattern_open(&p, tree, true, true, any);
    /* to some, "$" also stands before a last line end */
    return p.possible ? gram_seq(g, all, gram_rep(g, pattern_one_char(&p, '\n'), 0, 1)) : all;
}
