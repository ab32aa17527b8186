/* GBNF, llama.cpp's kind of grammar:
 *
 *   rule  ::= alternatives             to the end of the line; a line that begins with '|', or is no rule, goes on
 *   "text" [a-z\n] [^"] .              with escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH
 *   ( ... )  *  +  ?  {m}  {m,}  {m,n}  # comment
 *
 * The text is the rule "root". Every rule that is named must be there, once. */
#include "lang/grammar/grammar_front.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <string.h>

enum { GBNF_DEPTH = 60, GBNF_TEXT = 1 << 20 };

struct gbnf {
    struct grammar *g;
    const char *text, *at, *end;
    struct gbnf_name {
        const char *s;
        size_t n;
        uint32_t rule;
    } * names; /* open addressing */
    uint32_t slots, used;
};

static bool gbnf_stop(const struct gbnf *p)
{
    return p->g->err.code != 0;
}

static void gbnf_error(struct gbnf *p, const char *what)
{
    unsigned line = 1;
    for (const char *c = p->text; c < p->at; c++)
        line += *c == '\n';
    char near[40];
    size_t n = 0;
    for (const char *c = p->at; c < p->end && n < sizeof near - 1 && *c != '\n'; c++)
        near[n++] = *c;
    while (n && utf8_partial(near, n)) /* never half a character */
        n--;
    near[n] = 0;
    grammar_fail(p->g, ERR_DATA, "grammar, line %u: %s at \"%s\"", line, what, near);
}

static bool gbnf_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Blanks and comments; line ends only where `lines`. */
static void gbnf_space(struct gbnf *p, bool lines)
{
    while (p->at < p->end) {
        char c = *p->at;
        if (c == '#')
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            p->at++;
        else
            return;
    }
}

static size_t gbnf_name_length(const struct gbnf *p)
{
    size_t n = 0;
    while (p->at + n < p->end && gbnf_word(p->at[n]))
        n++;
    return n;
}

/* Does a definition begin here: a name and "::="? */
static bool gbnf_at_rule(struct gbnf *p)
{
    const char *from = p->at;
    size_t n = gbnf_name_length(p);
    p->at += n;
    gbnf_space(p, false);
    bool yes = n && p->end - p->at >= 3 && !memcmp(p->at, "::=", 3);
    p->at = from;
    return yes;
}

static struct gbnf_name *gbnf_slot(struct gbnf *p, const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 16777619u;
    uint32_t at = (h ^ h >> 16) & (p->slots - 1);
    while (p->names[at].s && (p->names[at].n != n || memcmp(p->names[at].s, s, n)))
        at = (at + 1) & (p->slots - 1);
    return &p->names[at];
}

static uint32_t gbnf_rule(struct gbnf *p, const char *s, size_t n)
{
    struct gbnf_name *slot = gbnf_slot(p, s, n);
    if (!slot->s && p->used < p->slots / 2) {
        *slot = (struct gbnf_name){s, n, grammar_rule(p->g)};
        p->used++;
    }
    return slot->rule;
}

static bool gbnf_hex(struct gbnf *p, int digits, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < digits; i++) {
        char c = p->at < p->end ? *p->at : 0;
        char low = c | 0x20;
        int v = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (v < 0) {
            gbnf_error(p, "an escape wants more hexadecimal digits");
            return false;
        }
        *cp = *cp << 4 | (uint32_t)v;
        p->at++;
    }
    return true;
}

/* One character of a text or a class, escaped or not. */
static bool gbnf_char(struct gbnf *p, uint32_t *cp)
{
    if (*p->at != '\\') {
        size_t n = utf8_decode(p->at, (size_t)(p->end - p->at), cp);
        if (!n)
            gbnf_error(p, "bytes that are not UTF-8");
        p->at += n;
        return n > 0;
    }
    p->at++;
    char c = p->at < p->end ? *p->at++ : 0;
    bool ok = true;
    switch (c) {
    case 'n':
        *cp = '\n';
        break;
    case 'r':
        *cp = '\r';
        break;
    case 't':
        *cp = '\t';
        break;
    case 'x':
        ok = gbnf_hex(p, 2, cp);
        break;
    case 'u':
        ok = gbnf_hex(p, 4, cp);
        break;
    case 'U':
        ok = gbnf_hex(p, 8, cp);
        break;
    default:
        *cp = (uint8_t)c;
        ok = c && strchr("\\\"[]-^/'", c);
        if (!ok)
            gbnf_error(p, "an escape that is none");
    }
    if (ok && (*cp > 0x10ffff || (*cp >= 0xd800 && *cp <= 0xdfff))) {
        gbnf_error(p, "an escape that is no character");
        ok = false;
    }
    return ok;
}

static struct gram *gbnf_text(struct gbnf *p)
{
    const char *from = p->at++;
    struct buf text = {0};
    while (p->at < p->end && *p->at != '"' && *p->at != '\n' && !gbnf_stop(p)) {
        uint32_t cp = 0;
        char utf8[4];
        if (gbnf_char(p, &cp))
            buf_add(&text, utf8, utf8_put(cp, utf8));
    }
    if (!gbnf_stop(p) && (p->at >= p->end || *p->at != '"')) {
        p->at = from;
        gbnf_error(p, "a text without its closing quote");
    }
    p->at++;
    if (text.failed)
        err_memory(&p->g->err, "a grammar", text.len);
    struct gram *node = gram_bytes(p->g, text.len ? text.data : "", text.len);
    buf_free(&text);
    return node;
}

static struct gram *gbnf_class(struct gbnf *p)
{
    const char *from = p->at++;
    struct ranges r = {0};
    bool inverted = p->at < p->end && *p->at == '^';
    p->at += inverted;
    while (p->at < p->end && *p->at != ']' && !gbnf_stop(p)) {
        uint32_t lo = 0, hi;
        if (!gbnf_char(p, &lo))
            break;
        hi = lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            if (!gbnf_char(p, &hi))
                break;
        }
        if (hi < lo)
            gbnf_error(p, "a range that runs backwards");
        ranges_add(p->g, &r, lo, hi);
    }
    if (!gbnf_stop(p) && p->at >= p->end) {
        p->at = from;
        gbnf_error(p, "a class without its closing bracket");
    }
    p->at++;
    if (inverted)
        ranges_invert(p->g, &r);
    return gram_class(p->g, &r, false);
}

static bool gbnf_number(struct gbnf *p, uint32_t *out)
{
    uint64_t v = 0;
    const char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        v = v * 10 + (uint64_t)(*p->at++ - '0');
        if (v > 1000000) {
            gbnf_error(p, "a repetition of more than 1,000,000 times");
            return false;
        }
    }
    *out = (uint32_t)v;
    return p->at > from;
}

static struct gram *gbnf_repeat(struct gbnf *p, struct gram *one)
{
    for (;;) {
        char c = p->at < p->end ? *p->at : 0;
        uint32_t min = 0, max = GRAMMAR_MOST;
        if (c == '+')
            min = 1;
        else if (c == '?')
            max = 1;
        else if (c == '{') {
            p->at++;
            gbnf_space(p, false);
            bool least = gbnf_number(p, &min);
            gbnf_space(p, false);
            if (p->at < p->end && *p->at == ',') {
                p->at++;
                gbnf_space(p, false);
                if (!gbnf_number(p, &max))
                    max = GRAMMAR_MOST;
                gbnf_space(p, false);
            } else if (least)
                max = min;
            if (p->at >= p->end || *p->at != '}' || max < min || (!least && max == GRAMMAR_MOST))
                gbnf_error(p, "a repetition is {m}, {m,}, {,n} or {m,n}");
        } else if (c != '*')
            return one;
        if (gbnf_stop(p))
            return one;
        p->at++;
        one = gram_rep(p->g, one, min, max);
    }
}

static struct gram *gbnf_alternatives(struct gbnf *p, int depth);

static struct gram *gbnf_one(struct gbnf *p, int depth)
{
    char c = *p->at;
    struct gram *one;
    size_t n;
    if (c == '"')
        one = gbnf_text(p);
    else if (c == '[')
        one = gbnf_class(p);
    else if (c == '.') {
        struct ranges r = {0};
        ranges_add(p->g, &r, 0, 0x10ffff);
        one = gram_class(p->g, &r, false);
        p->at++;
    } else if (c == '(') {
        p->at++;
        one = gbnf_alternatives(p, depth + 1);
        if (!gbnf_stop(p) && (p->at >= p->end || *p->at != ')'))
            gbnf_error(p, "a group without its closing parenthesis");
        p->at++;
    } else if ((n = gbnf_name_length(p)) > 0) {
        one = gram_call(p->g, gbnf_rule(p, p->at, n));
        p->at += n;
    } else {
        gbnf_error(p, "expected a text, a class, a group or a rule's name");
        return gram_fail(p->g);
    }
    return gbnf_stop(p) ? one : gbnf_repeat(p, one);
}

/* At the end of a line outside of groups: does the rule go on below? */
static bool gbnf_goes_on(struct gbnf *p)
{
    const char *from = p->at;
    gbnf_space(p, true);
    if (p->at < p->end && !gbnf_at_rule(p))
        return true;
    p->at = from;
    return false;
}

static struct gram *gbnf_sequence(struct gbnf *p, int depth)
{
    struct gram_items l = {0};
    for (;;) {
        gbnf_space(p, depth > 0);
        char c = p->at < p->end ? *p->at : 0;
        if (gbnf_stop(p) || !c || c == '|' || c == ')')
            break;
        if (c == '\n' || c == '\r') {
            if (!gbnf_goes_on(p))
                break;
            continue;
        }
        gram_push(p->g, &l, gbnf_one(p, depth));
    }
    return gram_list(p->g, GRAM_SEQ, l.at, l.n);
}

static struct gram *gbnf_alternatives(struct gbnf *p, int depth)
{
    struct gram_items l = {0};
    if (depth > GBNF_DEPTH) {
        gbnf_error(p, "groups nested too deeply");
        return gram_fail(p->g);
    }
    for (;;) {
        gbnf_space(p, true);
        /* An empty alternative at a rule's end: the next line is another rule. */
        bool empty = depth == 0 && gbnf_at_rule(p);
        gram_push(p->g, &l, empty ? gram_bytes(p->g, "", 0) : gbnf_sequence(p, depth));
        if (empty || gbnf_stop(p) || p->at >= p->end || *p->at != '|')
            break;
        p->at++;
    }
    return gram_list(p->g, GRAM_ALT, l.at, l.n);
}

static void gbnf_rules(struct gbnf *p)
{
    for (gbnf_space(p, true); p->at < p->end && !gbnf_stop(p); gbnf_space(p, true)) {
        const char *name = p->at;
        size_t n = gbnf_name_length(p);
        if (!gbnf_at_rule(p)) {
            gbnf_error(p, "expected a rule (name ::= ...)");
            return;
        }
        uint32_t rule = gbnf_rule(p, name, n);
        p->at += n;
        gbnf_space(p, false);
        p->at += 3;
        if (rule < p->g->count && p->g->rules[rule]) {
            p->at = name;
            gbnf_error(p, "a rule is defined twice");
            return;
        }
        grammar_define(p->g, rule, gbnf_alternatives(p, 0));
        if (!gbnf_stop(p) && p->at < p->end && *p->at == ')')
            gbnf_error(p, "a closing parenthesis too many");
    }
}

uint32_t gbnf_read(struct grammar *g, const char *text, size_t n)
{
    struct gbnf p = {.g = g, .text = text, .at = text, .end = text + n, .slots = 1u << 16};
    if (n > GBNF_TEXT || (n && memchr(text, 0, n))) {
        grammar_fail(g, ERR_DATA, "a grammar is text of at most %d bytes", GBNF_TEXT);
        return 0;
    }
    p.names = mem_zalloc(p.slots, sizeof *p.names);
    if (!p.names) {
        err_memory(&g->err, "a grammar's names", p.slots * sizeof *p.names);
        return 0;
    }
    gbnf_rules(&p);
    const struct gbnf_name *root = gbnf_slot(&p, "root", 4);
    uint32_t rule = root->s ? root->rule : 0;
    if (!root->s)
        grammar_fail(g, ERR_DATA, "the grammar has no rule \"root\"");
    for (uint32_t i = 0; i < p.slots && !g->err.code; i++)
        if (p.names[i].s && !g->rules[p.names[i].rule])
            grammar_fail(g, ERR_DATA, "grammar: the rule \"%.*s\" is used but not defined",
                         (int)(p.names[i].n < 80 ? p.names[i].n : 80), p.names[i].s);
    mem_free(p.names);
    return rule;
}
