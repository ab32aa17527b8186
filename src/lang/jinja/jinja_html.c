/* Filters of HTML and URLs. */
#include "lang/jinja/jinja_filter.h"

#include "base/utf8.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static struct jv name(struct jrt *rt, struct jv v, struct jv *arg)

struct jstr *jop_escape(struct jrt *rt, struct jv v)
{
    struct jstr *s = jop_soft_str(rt, v);
    if (s->markup)
        return s;
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < s->n; i++) {
        bool data = jstr_data_at(s, i);
        switch (s->s[i]) {
        case '&':
            jsb_lit(&b, "&amp;", data);
            break;
        case '<':
            jsb_lit(&b, "&lt;", data);
            break;
        case '>':
            jsb_lit(&b, "&gt;", data);
            break;
        case '\'':
            jsb_lit(&b, "&#39;", data);
            break;
        case '"':
            jsb_lit(&b, "&#34;", data);
            break;
        default:
            jsb_add(&b, s->s + i, 1, data);
        }
    }
    struct jstr *r = jsb_done(&b);
    r->markup = true;
    return r;
}

FILTER(jf_escape)
{
    (void)arg;
    return jv_str(jop_escape(rt, v));
}

FILTER(jf_forceescape)
{
    (void)arg;
    return jv_str(jop_escape(rt, jv_str(jop_str(rt, v))));
}

FILTER(jf_safe)
{
    (void)arg;
    return jv_str(jstr_markup(rt, jop_soft_str(rt, v)));
}

/* -- striptags */

static const struct {
    const char *name;
    uint32_t cp;
} entities[] = {
    {"amp", '&'},      {"lt", '<'},       {"gt", '>'},        {"quot", '"'},     {"apos", '\''},
    {"nbsp", 0xa0},    {"copy", 0xa9},    {"reg", 0xae},      {"laquo", 0xab},   {"raquo", 0xbb},
    {"middot", 0xb7},  {"deg", 0xb0},     {"times", 0xd7},    {"eacute", 0xe9},  {"egrave", 0xe8},
    {"agrave", 0xe0},  {"auml", 0xe4},    {"ouml", 0xf6},     {"uuml", 0xfc},    {"szlig", 0xdf},
    {"ndash", 0x2013}, {"mdash", 0x2014}, {"lsquo", 0x2018},  {"rsquo", 0x2019}, {"ldquo", 0x201c},
    {"rdquo", 0x201d}, {"bull", 0x2022},  {"hellip", 0x2026}, {"euro", 0x20ac},  {"trade", 0x2122},
};

/* The entity at s (behind '&'), and how many bytes it takes with its semicolon; 0 = none known. */
static size_t entity(const char *s, size_t n, uint32_t *cp)
{
    size_t len = 0;
    while (len < n && len < 32 && s[len] != ';' && s[len] != '&' && s[len] != ' ')
        len++;
    if (len >= n || s[len] != ';' || !len)
        return 0;
    if (s[0] == '#') {
        char digits[32], *end;
        bool hex = len > 1 && (s[1] | 0x20) == 'x';
        memcpy(digits, s + 1 + hex, len - 1 - hex);
        digits[len - 1 - hex] = 0;
        unsigned long v = strtoul(digits, &end, hex ? 16 : 10);
        if (*end || end == digits)
            return 0;
        *cp = v > 0x10ffff || (v >= 0xd800 && v < 0xe000) || !v ? 0xfffd : (uint32_t)v;
        return len + 1;
    }
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++)
        if (strlen(entities[i].name) == len && !memcmp(entities[i].name, s, len)) {
            *cp = entities[i].cp;
            return len + 1;
        }
    return 0;
}

static struct jstr *unescape(struct jrt *rt, const struct jstr *s)
{
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = 0;
        size_t n = s->s[i] == '&' ? entity(s->s + i + 1, s->n - i - 1, &cp) : 0;
        if (n)
            jsb_cp(&b, cp, jstr_data_at(s, i));
        else
            jsb_sub(&b, s, i, 1);
        i += n + 1;
    }
    return jsb_done(&b);
}

FILTER(jf_striptags)
{
    (void)arg;
    const struct jstr *s = jop_soft_str(rt, v);
    struct jsb b = {.rt = rt};
    size_t at = 0, open;
    while ((open = jtext_find(s, jstr_lit(rt, "<"), at, s->n)) != SIZE_MAX) {
        bool comment = s->n - open >= 4 && !memcmp(s->s + open, "<!--", 4);
        const struct jstr *close = jstr_lit(rt, comment ? "-->" : ">");
        size_t end = jtext_find(s, close, open + (comment ? 4 : 0), s->n);
        if (end == SIZE_MAX)
            break;
        jsb_sub(&b, s, at, open - at);
        at = end + close->n;
    }
    jsb_sub(&b, s, at, s->n - at);
    struct jlist *words = jtext_split(rt, jsb_done(&b), NULL, -1);
    return jv_str(unescape(rt, jtext_join(rt, jstr_lit(rt, " "), words)));
}

/* -- URLs */

static void quote(struct jsb *b, const struct jstr *s, bool query)
{
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        bool data = jstr_data_at(s, i);
        char text[8];
        if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.-~", c)) ||
            (c == '/' && !query))
            snprintf(text, sizeof text, "%c", c);
        else if (c == ' ' && query)
            snprintf(text, sizeof text, "+");
        else
            snprintf(text, sizeof text, "%%%02X", c);
        jsb_lit(b, text, data);
    }
}

FILTER(jf_urlencode)
{
    (void)arg;
    struct jsb b = {.rt = rt};
    if (v.kind == J_STR || !jiter_can(v)) {
        quote(&b, jop_soft_str(rt, v), false);
        return jv_str(jsb_done(&b));
    }
    struct jview all = {JVIEW_ITEMS, v.d};
    struct jiter *it = jiter_of(rt, v.kind == J_DICT ? (struct jv){.kind = J_VIEW, .view = &all} : v);
    struct jv item;
    for (bool first = true; jiter_next(rt, it, &item); first = false) {
        struct jlist *pair = jiter_can(item) ? jiter_list(rt, item) : NULL;
        if (!pair || pair->n != 2)
            jfail(rt, "urlencode needs pairs of keys and values");
        if (!first)
            jsb_lit(&b, "&", true);
        quote(&b, jop_soft_str(rt, pair->v[0]), true);
        jsb_lit(&b, "=", true);
        quote(&b, jop_soft_str(rt, pair->v[1]), true);
    }
    return jv_str(jsb_done(&b));
}

FILTER(jf_xmlattr)
{
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (v.kind != J_DICT)
        jfail(rt, "'%s' object has no attribute 'items'", jv_type(v));
    struct jsb b = {.rt = rt};
    bool space = arg[0].kind == J_MISSING || jv_true(arg[0]);
    for (size_t i = 0; i < v.d->n; i++) {
        const struct jpair *p = &v.d->item[i];
        if (p->value.kind == J_NONE || p->value.kind == J_UNDEF)
            continue;
        struct jstr *key = jarg_str(rt, p->key, "the name of an attribute");
        for (size_t k = 0; k < key->n; k++)
            if (key->s[k] && strchr(" \t\n\r\f\v/>=", key->s[k]))
                jfail(rt, "Invalid character in attribute name: %s", jstr_c(rt, jop_repr(rt, p->key)));
        if (b.n || space)
            jsb_lit(&b, " ", false);
        jsb_str(&b, jop_escape(rt, p->key));
        jsb_lit(&b, "=\"", false);
        jsb_str(&b, jop_escape(rt, p->value));
        jsb_lit(&b, "\"", false);
    }
    return jv_str(jsb_done(&b));
}

static const struct jfunc table[] = {
    {"e", "", {.bound = jf_escape}},
    {"escape", "", {.bound = jf_escape}},
    {"forceescape", "", {.bound = jf_forceescape}},
    {"safe", "", {.bound = jf_safe}},
    {"striptags", "", {.bound = jf_striptags}},
    {"urlencode", "", {.bound = jf_urlencode}},
    {"urlize", "|trim_url_limit nofollow target rel extra_schemes", {.bound = jurlize_filter}},
    {"xmlattr", "|autospace", {.bound = jf_xmlattr}},
};

const struct jfilters jfilters_html = {table, sizeof table / sizeof table[0]};
