/* The methods of str. */
#include "lang/jinja/jinja_method.h"

#include "base/size.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <string.h>

#define METHOD(name) static struct jv name(struct jrt *rt, struct jv self, struct jv *arg)

/* -- case */

#define CASE_METHOD(name, how)                                                                               \
    METHOD(name)                                                                                             \
    {                                                                                                        \
        (void)arg;                                                                                           \
        return jv_str(jtext_map_case(rt, self.s, how));                                                      \
    }

CASE_METHOD(jm_upper, JTEXT_UPPER)
CASE_METHOD(jm_lower, JTEXT_LOWER)
CASE_METHOD(jm_title, JTEXT_TITLE)
CASE_METHOD(jm_capitalize, JTEXT_CAPITALIZE)
CASE_METHOD(jm_swapcase, JTEXT_SWAP)
CASE_METHOD(jm_casefold, JTEXT_FOLD)

/* -- stripping and splitting */

static struct jv strip(struct jrt *rt, struct jv self, const struct jv *arg, int sides)
{
    const struct jstr *chars = jarg_given(arg[0]) ? jarg_str(rt, arg[0], "the characters to strip") : NULL;
    return jv_str(jtext_strip(rt, self.s, chars, sides));
}

METHOD(jm_strip)
{
    return strip(rt, self, arg, JTEXT_LEFT | JTEXT_RIGHT);
}

METHOD(jm_lstrip)
{
    return strip(rt, self, arg, JTEXT_LEFT);
}

METHOD(jm_rstrip)
{
    return strip(rt, self, arg, JTEXT_RIGHT);
}

METHOD(jm_split)
{
    const struct jstr *sep = jarg_given(arg[0]) ? jarg_str(rt, arg[0], "the separator") : NULL;
    return jv_list(jtext_split(rt, self.s, sep, jarg_int(rt, arg[1], -1, "maxsplit")));
}

METHOD(jm_rsplit)
{
    const struct jstr *sep = jarg_given(arg[0]) ? jarg_str(rt, arg[0], "the separator") : NULL;
    return jv_list(jtext_rsplit(rt, self.s, sep, jarg_int(rt, arg[1], -1, "maxsplit")));
}

METHOD(jm_splitlines)
{
    return jv_list(jtext_splitlines(rt, self.s, jv_true(arg[0])));
}

static struct jv partition(struct jrt *rt, const struct jstr *s, const struct jstr *sep, bool right)
{
    if (!sep->n)
        jfail(rt, "empty separator");
    jcharge(rt, s->n);
    size_t at = right ? jtext_rfind(rt, s, sep, 0, s->n) : jtext_find(s, sep, 0, s->n);
    struct jlist *l = jlist_new(rt, 3);
    size_t cut[4] = {0, at, at + sep->n, s->n};
    if (at == SIZE_MAX) {
        cut[1] = cut[2] = right ? 0 : s->n;
        cut[0] = 0;
    }
    for (int i = 0; i < 3; i++)
        jlist_add(rt, l, jv_str(jstr_sub(rt, s, cut[i], cut[i + 1] - cut[i])));
    return jv_tuple(l);
}

METHOD(jm_partition)
{
    return partition(rt, self.s, jarg_str(rt, arg[0], "the separator"), false);
}

METHOD(jm_rpartition)
{
    return partition(rt, self.s, jarg_str(rt, arg[0], "the separator"), true);
}

/* -- searching */

struct jwindow {
    size_t from, to; /* bytes */
    bool valid;
};

/* [start:end] of the arguments, as bytes; not valid where start is behind the end of the text. */
static struct jwindow window(struct jrt *rt, const struct jstr *s, struct jv start, struct jv end)
{
    int64_t n = (int64_t)s->chars, a = jarg_given(start) ? jarg_int(rt, start, 0, "start") : 0;
    int64_t b = jarg_given(end) ? jarg_int(rt, end, n, "end") : n;
    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b > n ? n : b;
    if (a > n || a > b)
        return (struct jwindow){.valid = false};
    return (struct jwindow){jstr_offset(s, (size_t)a), jstr_offset(s, (size_t)b), true};
}

static int64_t find(struct jrt *rt, struct jv self, const struct jv *arg, bool right)
{
    struct jwindow w = window(rt, self.s, arg[1], arg[2]);
    struct jstr *sub = jarg_str(rt, arg[0], "what is looked for");
    jcharge(rt, self.s->n);
    size_t at = !w.valid ? SIZE_MAX
                : right  ? jtext_rfind(rt, self.s, sub, w.from, w.to)
                         : jtext_find(self.s, sub, w.from, w.to);
    return at == SIZE_MAX ? -1 : (int64_t)jstr_count(self.s->s, at);
}

METHOD(jm_find)
{
    return jv_int(find(rt, self, arg, false));
}

METHOD(jm_rfind)
{
    return jv_int(find(rt, self, arg, true));
}

METHOD(jm_index)
{
    int64_t at = find(rt, self, arg, false);
    if (at < 0)
        jfail(rt, "substring not found");
    return jv_int(at);
}

METHOD(jm_rindex)
{
    int64_t at = find(rt, self, arg, true);
    if (at < 0)
        jfail(rt, "substring not found");
    return jv_int(at);
}

METHOD(jm_count)
{
    struct jwindow w = window(rt, self.s, arg[1], arg[2]);
    struct jstr *sub = jarg_str(rt, arg[0], "what is counted");
    int64_t count = 0;
    jcharge(rt, self.s->n);
    if (!w.valid)
        return jv_int(0);
    if (!sub->n)
        return jv_int((int64_t)jstr_count(self.s->s + w.from, w.to - w.from) + 1);
    for (size_t at = w.from; (at = jtext_find(self.s, sub, at, w.to)) != SIZE_MAX; at += sub->n)
        count++;
    return jv_int(count);
}

static bool at_edge(const struct jstr *s, struct jwindow w, const struct jstr *part, bool start)
{
    if (!w.valid || w.to - w.from < part->n)
        return false;
    return !memcmp(s->s + (start ? w.from : w.to - part->n), part->s, part->n);
}

static struct jv starts_or_ends(struct jrt *rt, struct jv self, const struct jv *arg, bool start)
{
    struct jwindow w = window(rt, self.s, arg[1], arg[2]);
    if (arg[0].kind == J_STR)
        return jv_bool(at_edge(self.s, w, arg[0].s, start));
    if (arg[0].kind != J_TUPLE)
        jfail(rt, "%s first arg must be str or a tuple of str, not %s", start ? "startswith" : "endswith",
              jv_type(arg[0]));
    for (size_t i = 0; i < arg[0].l->n; i++)
        if (at_edge(self.s, w, jarg_str(rt, arg[0].l->v[i], "every item of the tuple"), start))
            return jv_bool(true);
    return jv_bool(false);
}

METHOD(jm_startswith)
{
    return starts_or_ends(rt, self, arg, true);
}

METHOD(jm_endswith)
{
    return starts_or_ends(rt, self, arg, false);
}

METHOD(jm_removeprefix)
{
    const struct jstr *s = self.s, *part = jarg_str(rt, arg[0], "the prefix");
    size_t cut = at_edge(s, (struct jwindow){0, s->n, true}, part, true) ? part->n : 0;
    return jv_str(jstr_sub(rt, s, cut, s->n - cut));
}

METHOD(jm_removesuffix)
{
    const struct jstr *s = self.s, *part = jarg_str(rt, arg[0], "the suffix");
    size_t cut = at_edge(s, (struct jwindow){0, s->n, true}, part, false) ? part->n : 0;
    return jv_str(jstr_sub(rt, s, 0, s->n - cut));
}

/* -- making new text */

METHOD(jm_replace)
{
    struct jstr *from = jarg_str(rt, arg[0], "the old text"), *to = jarg_str(rt, arg[1], "the new text");
    if (self.s->markup)
        to = jop_escape(rt, arg[1]);
    return jv_str(jtext_replace(rt, self.s, from, to, jarg_int(rt, arg[2], -1, "count")));
}

METHOD(jm_join)
{
    struct jlist *l = jiter_list(rt, arg[0]), *text = jlist_new(rt, l->n);
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i].kind != J_STR && !self.s->markup)
            jfail(rt, "sequence item %zu: expected str instance, %s found", i, jv_type(l->v[i]));
        jlist_add(rt, text, self.s->markup ? jv_str(jop_escape(rt, l->v[i])) : l->v[i]);
    }
    struct jstr *s = jtext_join(rt, self.s, text);
    s->markup = self.s->markup;
    return jv_str(s);
}

static size_t missing(struct jrt *rt, const struct jstr *s, struct jv width)
{
    int64_t w = jarg_int(rt, width, 0, "width");
    return w > (int64_t)s->chars ? (size_t)w - s->chars : 0;
}

static struct jstr *fill(struct jrt *rt, struct jv v)
{
    struct jstr *s = v.kind == J_MISSING ? jstr_lit(rt, " ") : jarg_str(rt, v, "the fill character");
    if (s->chars != 1)
        jfail(rt, "The fill character must be exactly one character long");
    return s;
}

METHOD(jm_center)
{
    size_t pad = missing(rt, self.s, arg[0]), left = pad / 2 + (pad & (self.s->chars + pad) & 1);
    return jv_str(jtext_pad(rt, self.s, left, pad - left, fill(rt, arg[1])));
}

METHOD(jm_ljust)
{
    return jv_str(jtext_pad(rt, self.s, 0, missing(rt, self.s, arg[0]), fill(rt, arg[1])));
}

METHOD(jm_rjust)
{
    return jv_str(jtext_pad(rt, self.s, missing(rt, self.s, arg[0]), 0, fill(rt, arg[1])));
}

METHOD(jm_zfill)
{
    size_t pad = missing(rt, self.s, arg[0]);
    size_t sign = self.s->n && (self.s->s[0] == '-' || self.s->s[0] == '+');
    struct jstr *digits = jstr_sub(rt, self.s, sign, self.s->n - sign);
    struct jstr *padded = jtext_pad(rt, digits, pad, 0, jstr_lit(rt, "0"));
    struct jstr *r = jstr_concat(rt, jstr_sub(rt, self.s, 0, sign), padded);
    r->markup = self.s->markup;
    return jv_str(r);
}

METHOD(jm_expandtabs)
{
    int64_t size = jarg_int(rt, arg[0], 8, "tabsize"), column = 0;
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < self.s->n;) {
        size_t at = i;
        uint32_t c = jtext_next(self.s, &i);
        if (c == '\t') {
            for (int64_t n = size > 0 ? size - column % size : 0; n > 0; n--, column++)
                jsb_add(&b, " ", 1, jstr_data_at(self.s, at));
            continue;
        }
        column = c == '\n' || c == '\r' ? 0 : column + 1;
        jsb_sub(&b, self.s, at, i - at);
    }
    return jv_str(jsb_done(&b));
}

static struct jv jm_format(struct jrt *rt, struct jv self, const struct jcall *c)
{
    return jv_str(jformat_braces(rt, self.s, c));
}

METHOD(jm_format_map)
{
    if (arg[0].kind != J_DICT)
        jfail(rt, "format_map() needs a mapping, not %s", jv_type(arg[0]));
    struct jcall c = {.name = "format_map", .kw = jalloc(rt, 2 * arg[0].d->n + 2, sizeof *c.kw)};
    for (size_t i = 0; i < arg[0].d->n; i++)
        if (arg[0].d->item[i].key.kind == J_STR) {
            c.kw[2 * c.nkw] = arg[0].d->item[i].key;
            c.kw[2 * c.nkw++ + 1] = arg[0].d->item[i].value;
        }
    return jv_str(jformat_braces(rt, self.s, &c));
}

static struct jv jm_unsupported(struct jrt *rt, struct jv self, const struct jcall *c)
{
    (void)self;
    jfail(rt, "the method %s of str is not supported", c->name);
}

/* -- asking */

static bool all_of(const struct jstr *s, bool (*is)(uint32_t c))
{
    for (size_t i = 0; i < s->n;)
        if (!is(jtext_next(s, &i)))
            return false;
    return s->n > 0;
}

#define CLASS_METHOD(name, is)                                                                               \
    METHOD(name)                                                                                             \
    {                                                                                                        \
        (void)rt;                                                                                            \
        (void)arg;                                                                                           \
        return jv_bool(all_of(self.s, is));                                                                  \
    }

CLASS_METHOD(jm_isalpha, jtext_alpha)
CLASS_METHOD(jm_isdigit, jtext_digit)
CLASS_METHOD(jm_isdecimal, jtext_decimal)
CLASS_METHOD(jm_isnumeric, jtext_numeric)
CLASS_METHOD(jm_isalnum, jtext_alnum)
CLASS_METHOD(jm_isspace, jtext_space)

METHOD(jm_isprintable)
{
    (void)rt;
    (void)arg;
    return jv_bool(!self.s->n || all_of(self.s, jtext_printable));
}

METHOD(jm_isascii)
{
    (void)rt;
    (void)arg;
    return jv_bool(self.s->n == self.s->chars);
}

METHOD(jm_isidentifier)
{
    (void)rt;
    (void)arg;
    for (size_t i = 0; i < self.s->n;) {
        bool first = !i;
        uint32_t c = jtext_next(self.s, &i);
        if (c != '_' && !jtext_alpha(c) && (first || !(jtext_decimal(c) || jtext_combining(c))))
            return jv_bool(false);
    }
    return jv_bool(self.s->n > 0);
}

METHOD(jm_islower)
{
    (void)arg;
    return jfunc_run(rt, jtest_find("lower", 5), self, &(struct jcall){.name = "islower"});
}

METHOD(jm_isupper)
{
    (void)arg;
    return jfunc_run(rt, jtest_find("upper", 5), self, &(struct jcall){.name = "isupper"});
}

METHOD(jm_istitle)
{
    (void)rt;
    (void)arg;
    bool inside = false, any = false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t c = jtext_next(self.s, &i);
        bool upper = jtext_is_upper(c) || jtext_is_title(c), lower = jtext_is_lower(c);
        if ((upper && inside) || (lower && !inside))
            return jv_bool(false);
        inside = upper || lower;
        any = any || inside;
    }
    return jv_bool(any);
}

static const struct jfunc table[] = {
    {"capitalize", "", {.bound = jm_capitalize}},
    {"casefold", "", {.bound = jm_casefold}},
    {"center", "width|fillchar", {.bound = jm_center}},
    {"count", "sub|start end", {.bound = jm_count}},
    {"encode", NULL, {.call = jm_unsupported}},
    {"endswith", "suffix|start end", {.bound = jm_endswith}},
    {"expandtabs", "|tabsize", {.bound = jm_expandtabs}},
    {"find", "sub|start end", {.bound = jm_find}},
    {"format", NULL, {.call = jm_format}},
    {"format_map", "mapping", {.bound = jm_format_map}},
    {"index", "sub|start end", {.bound = jm_index}},
    {"isalnum", "", {.bound = jm_isalnum}},
    {"isalpha", "", {.bound = jm_isalpha}},
    {"isascii", "", {.bound = jm_isascii}},
    {"isdecimal", "", {.bound = jm_isdecimal}},
    {"isdigit", "", {.bound = jm_isdigit}},
    {"isidentifier", "", {.bound = jm_isidentifier}},
    {"islower", "", {.bound = jm_islower}},
    {"isnumeric", "", {.bound = jm_isnumeric}},
    {"isprintable", "", {.bound = jm_isprintable}},
    {"isspace", "", {.bound = jm_isspace}},
    {"istitle", "", {.bound = jm_istitle}},
    {"isupper", "", {.bound = jm_isupper}},
    {"join", "iterable", {.bound = jm_join}},
    {"ljust", "width|fillchar", {.bound = jm_ljust}},
    {"lower", "", {.bound = jm_lower}},
    {"lstrip", "|chars", {.bound = jm_lstrip}},
    {"maketrans", NULL, {.call = jm_unsupported}},
    {"partition", "sep", {.bound = jm_partition}},
    {"removeprefix", "prefix", {.bound = jm_removeprefix}},
    {"removesuffix", "suffix", {.bound = jm_removesuffix}},
    {"replace", "old new|count", {.bound = jm_replace}},
    {"rfind", "sub|start end", {.bound = jm_rfind}},
    {"rindex", "sub|start end", {.bound = jm_rindex}},
    {"rjust", "width|fillchar", {.bound = jm_rjust}},
    {"rpartition", "sep", {.bound = jm_rpartition}},
    {"rsplit", "|sep maxsplit", {.bound = jm_rsplit}},
    {"rstrip", "|chars", {.bound = jm_rstrip}},
    {"split", "|sep maxsplit", {.bound = jm_split}},
    {"splitlines", "|keepends", {.bound = jm_splitlines}},
    {"startswith", "prefix|start end", {.bound = jm_startswith}},
    {"strip", "|chars", {.bound = jm_strip}},
    {"swapcase", "", {.bound = jm_swapcase}},
    {"title", "", {.bound = jm_title}},
    {"translate", NULL, {.call = jm_unsupported}},
    {"upper", "", {.bound = jm_upper}},
    {"zfill", "width", {.bound = jm_zfill}},
};

const struct jfunc *jstr_methods_find(const struct jstr *name)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (jstr_is(name, table[i].name))
            return &table[i];
    return NULL;
}
