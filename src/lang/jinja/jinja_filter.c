/* Filters of text and numbers, and the lookup of all of them. */
#include "lang/jinja/jinja_filter.h"

#include "base/size.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static struct jv name(struct jrt *rt, struct jv v, struct jv *arg)

static struct jstr *soft(struct jrt *rt, struct jv v)
{
    return jop_soft_str(rt, v);
}

FILTER(jf_upper)
{
    (void)arg;
    return jv_str(jtext_map_case(rt, soft(rt, v), JTEXT_UPPER));
}

FILTER(jf_lower)
{
    (void)arg;
    return jv_str(jtext_map_case(rt, soft(rt, v), JTEXT_LOWER));
}

FILTER(jf_capitalize)
{
    (void)arg;
    return jv_str(jtext_map_case(rt, soft(rt, v), JTEXT_CAPITALIZE));
}

/* Words begin behind blanks and opening brackets, not behind every character that is no letter. */
FILTER(jf_title)
{
    (void)arg;
    const struct jstr *s = soft(rt, v);
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < s->n;) {
        size_t from = i, at = i;
        bool gap = false;
        for (; i < s->n; at = i) {
            uint32_t c = jtext_next(s, &i);
            bool is_gap = jtext_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
            if (at == from)
                gap = is_gap;
            else if (is_gap != gap) {
                i = at;
                break;
            }
        }
        size_t first = from;
        jtext_next(s, &first);
        jsb_str(&b, jtext_map_case(rt, jstr_sub(rt, s, from, first - from), JTEXT_UPPER));
        jsb_str(&b, jtext_map_case(rt, jstr_sub(rt, s, first, i - first), JTEXT_LOWER));
    }
    return jv_str(jsb_done(&b));
}

FILTER(jf_trim)
{
    const struct jstr *chars = jarg_given(arg[0]) ? jarg_str(rt, arg[0], "chars") : NULL;
    return jv_str(jtext_strip(rt, soft(rt, v), chars, JTEXT_LEFT | JTEXT_RIGHT));
}

FILTER(jf_string)
{
    (void)arg;
    return jv_str(soft(rt, v));
}

FILTER(jf_replace)
{
    int64_t most = jarg_given(arg[2]) ? jarg_int(rt, arg[2], -1, "count") : -1;
    return jv_str(jtext_replace(rt, jop_str(rt, v), jop_str(rt, arg[0]), jop_str(rt, arg[1]), most));
}

FILTER(jf_center)
{
    struct jstr *s = soft(rt, v);
    int64_t width = jarg_int(rt, arg[0], 80, "width");
    size_t pad = width > (int64_t)s->chars ? (size_t)width - s->chars : 0;
    size_t left = pad / 2 + (pad & (size_t)width & 1);
    return jv_str(jtext_pad(rt, s, left, pad - left, jstr_lit(rt, " ")));
}

FILTER(jf_indent)
{
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    struct jstr *s = jarg_str(rt, v, "the value to indent"), *by;
    if (arg[0].kind == J_STR) {
        by = arg[0].s;
    } else {
        int64_t width = jarg_int(rt, arg[0], 4, "width");
        by = jtext_pad(rt, jstr_lit(rt, ""), width > 0 ? (size_t)width : 0, 0, jstr_lit(rt, " "));
    }
    bool first = jv_true(arg[1]), blank = jv_true(arg[2]);
    struct jlist *lines = jtext_splitlines(rt, jstr_concat(rt, s, jstr_lit(rt, "\n")), false);
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < lines->n; i++) {
        const struct jstr *line = lines->v[i].s;
        if (i)
            jsb_lit(&b, "\n", false);
        if (i ? blank || line->n : first)
            jsb_str(&b, by);
        jsb_str(&b, line);
    }
    struct jstr *r = jsb_done(&b);
    r->markup = s->markup;
    return jv_str(r);
}

static struct jstr *jtext_cut(struct jrt *rt, struct jstr *s, int64_t chars)
{
    struct jv bound[3] = {jv_none(), jv_int(chars), jv_none()};
    return jop_slice(rt, jv_str(s), bound).s;
}

FILTER(jf_truncate)
{
    struct jstr *end = arg[2].kind == J_MISSING ? jstr_lit(rt, "...") : jarg_str(rt, arg[2], "end");
    int64_t length = jarg_int(rt, arg[0], 255, "length"),
            leeway = jarg_given(arg[3]) ? jarg_int(rt, arg[3], 5, "leeway") : 5;
    if (length < (int64_t)end->chars)
        jfail(rt, "expected length >= %zu, got %lld", end->chars, (long long)length);
    if (leeway < 0)
        jfail(rt, "expected leeway >= 0, got %lld", (long long)leeway);
    size_t n;
    if (!jop_len(v, &n))
        jfail(rt, "object of type '%s' has no len()", jv_type(v));
    if ((int64_t)n <= length + leeway)
        return v;
    struct jstr *s = jtext_cut(rt, jarg_str(rt, v, "the value to truncate"), length - (int64_t)end->chars);
    if (!jv_true(arg[1]))
        s = jtext_rsplit(rt, s, jstr_lit(rt, " "), 1)->v[0].s;
    return jop_binary(rt, JBIN_ADD, jv_str(s), jv_str(end));
}

FILTER(jf_wordcount)
{
    (void)arg;
    const struct jstr *s = soft(rt, v);
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c = jtext_next(s, &i);
        bool word = c == '_' || jtext_alnum(c);
        words += word && !inside;
        inside = word;
    }
    return jv_int(words);
}

FILTER(jf_length)
{
    (void)arg;
    size_t n;
    if (v.kind == J_LOOP) {
        static const struct jstr length = {.s = "length", .n = 6};
        return jmethod_find(rt, v, &length);
    }
    if (!jop_len(v, &n))
        jfail(rt, "object of type '%s' has no len()", jv_type(v));
    return jv_int((int64_t)n);
}

FILTER(jf_default)
{
    (void)rt;
    if (v.kind == J_UNDEF || (jv_true(arg[1]) && !jv_true(v)))
        return arg[0].kind == J_MISSING ? jv_lit(rt, "") : arg[0];
    return v;
}

FILTER(jf_tojson)
{
    struct jjson how = {.ascii = jv_true(arg[0]), .sort = jv_true(arg[3]), .pretty = jarg_given(arg[1])};
    how.item_sep = jstr_new(rt, ", ", how.pretty ? 1 : 2, true);
    how.key_sep = jstr_new(rt, ": ", 2, true);
    if (how.pretty) {
        int64_t n = arg[1].kind == J_STR ? 0 : jarg_int(rt, arg[1], 0, "indent");
        how.indent = arg[1].kind == J_STR ? arg[1].s
                                          : jtext_pad(rt, jstr_lit(rt, ""), n > 0 ? (size_t)n : 0, 0,
                                                      jstr_new(rt, " ", 1, true));
    }
    if (jarg_given(arg[2])) {
        struct jlist *sep = jiter_can(arg[2]) ? jiter_list(rt, arg[2]) : NULL;
        if (!sep || sep->n != 2)
            jfail(rt, "tojson: separators must be a pair of strings");
        how.item_sep = jarg_str(rt, sep->v[0], "a separator");
        how.key_sep = jarg_str(rt, sep->v[1], "a separator");
    }
    return jv_str(jop_json(rt, v, &how));
}

FILTER(jf_pprint)
{
    (void)arg;
    return jv_str(jop_pprint(rt, v));
}

static struct jv jf_format(struct jrt *rt, struct jv v, const struct jcall *c)
{
    if (c->npos && c->nkw)
        jfail(rt, "can't handle positional and keyword arguments at the same time");
    struct jstr *s = soft(rt, v);
    if (c->nkw) {
        struct jdict *d = jdict_new(rt);
        for (size_t i = 0; i < c->nkw; i++)
            jdict_set(rt, d, c->kw[2 * i], c->kw[2 * i + 1]);
        return jv_str(jformat_percent(rt, s, jv_dict(d)));
    }
    struct jlist *args = jlist_new(rt, c->npos);
    for (size_t i = 0; i < c->npos; i++)
        jlist_add(rt, args, c->pos[i]);
    return jv_str(jformat_percent(rt, s, jv_tuple(args)));
}

/* -- numbers */

FILTER(jf_abs)
{
    (void)arg;
    if (v.kind == J_UNDEF || !jv_is_num(v))
        jfail(rt, "bad operand type for abs(): '%s'", jv_type(v));
    return jop_negate(rt, v, jv_as_float(v) < 0 || (v.kind == J_FLOAT && signbit(v.f)));
}

FILTER(jf_float)
{
    double f = 0;
    struct jv r = arg[0].kind == J_MISSING ? jv_float(0) : arg[0];
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (jv_is_num(v))
        r = (struct jv){.kind = J_FLOAT, .data = v.data, .f = jv_as_float(v)};
    else if (v.kind == J_STR && jtext_to_float(v.s, &f))
        r = (struct jv){.kind = J_FLOAT, .data = jstr_any_data(v.s), .f = f};
    return r;
}

static bool jf_whole(double f, int64_t *i)
{
    if (!(f > -9223372036854775808.0 && f < 9223372036854775808.0))
        return false;
    *i = (int64_t)f;
    return true;
}

FILTER(jf_int)
{
    struct jv otherwise = arg[0].kind == J_MISSING ? jv_int(0) : arg[0];
    int64_t i = 0, base = jarg_int(rt, arg[1], 10, "base");
    double f;
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (jv_is_int(v))
        return (struct jv){.kind = J_INT, .data = v.data, .i = jv_as_int(v)};
    if (v.kind == J_STR) {
        struct jv r = {.kind = J_INT, .data = jstr_any_data(v.s)};
        if ((base == 0 || (base >= 2 && base <= 36)) && jtext_to_int(rt, v.s, (int)base, &r.i))
            return r;
        if (!jtext_to_float(v.s, &f) || !isfinite(f))
            return otherwise;
        if (!jf_whole(f, &r.i))
            jfail_limit(rt, "an integer does not fit in 64 bits");
        return r;
    }
    if (v.kind != J_FLOAT || isnan(v.f))
        return otherwise;
    if (isinf(v.f))
        jfail(rt, "cannot convert float infinity to integer");
    if (!jf_whole(v.f, &i))
        jfail_limit(rt, "an integer does not fit in 64 bits");
    return (struct jv){.kind = J_INT, .data = v.data, .i = i};
}

/* round(i, -places): to even where it is half way */
static int64_t jf_round_int(int64_t i, int64_t places)
{
    if (places > 18)
        return 0;
    int64_t unit = 1;
    while (places-- > 0)
        unit *= 10;
    int64_t q = i / unit, rest = i % unit, twice = (rest < 0 ? -rest : rest);
    bool up = twice > unit - twice || (twice == unit - twice && (q & 1));
    return (q + (up ? (i < 0 ? -1 : 1) : 0)) * unit;
}

FILTER(jf_round)
{
    struct jstr *method = arg[1].kind == J_MISSING ? jstr_lit(rt, "common") : jarg_str(rt, arg[1], "method");
    int64_t precision = jarg_int(rt, arg[0], 0, "precision");
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (!jstr_is(method, "common") && !jstr_is(method, "ceil") && !jstr_is(method, "floor"))
        jfail(rt, "method must be common, ceil or floor");
    if (!jv_is_num(v))
        jfail(rt, "type %s doesn't define __round__ method", jv_type(v));
    if (precision > 300 || precision < -300)
        jfail(rt, "the precision of round is out of range");
    if (!jstr_is(method, "common")) {
        double unit = pow(10, (double)precision), x = jv_as_float(v) * unit;
        return jv_float((jstr_is(method, "ceil") ? ceil(x) : floor(x)) / unit);
    }
    if (jv_is_int(v))
        return jv_int(precision >= 0 ? jv_as_int(v) : jf_round_int(jv_as_int(v), -precision));
    if (!isfinite(v.f) || precision > 30)
        return v;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return jv_float(rint(v.f / unit) * unit);
    }
    char text[400];
    snprintf(text, sizeof text, "%.*f", (int)precision, v.f);
    return jv_float(strtod(text, NULL));
}

FILTER(jf_filesizeformat)
{
    struct jv number = jf_float(rt, v, (struct jv[]){jv_none()});
    if (number.kind != J_FLOAT)
        jfail(rt, "could not convert to float: %s", jv_type(v));
    static const char prefix[] = "kMGTPEZY";
    bool binary = jv_true(arg[0]);
    double base = binary ? 1024 : 1000, unit = base, f = number.f;
    char text[64];
    if (f == 1)
        return jv_lit(rt, "1 Byte");
    if (f < base) {
        snprintf(text, sizeof text, "%lld Bytes", (long long)(f > -9e18 ? f : -9e18));
    } else {
        int i = 0;
        for (unit *= base; i < 7 && f >= unit; i++)
            unit *= base;
        char p = binary && i == 0 ? 'K' : prefix[i];
        snprintf(text, sizeof text, "%.1f %c%s", base * f / unit, p, binary ? "iB" : "B");
    }
    return jv_str(jstr_copy(rt, text, strlen(text), v.data));
}

/* -- wordwrap: Python's textwrap, paragraph by paragraph */

struct jwrap {
    struct jrt *rt;
    const struct jstr *s;
    int64_t width;
    bool break_words, break_hyphens;
    struct jlist *lines;
};

static bool jwrap_letter(uint32_t c)
{
    return c == '_' || (jtext_alnum(c) && !jtext_decimal(c));
}

/* Behind a hyphen at byte i of [from, to): may a line end there? Two letters before it, and a letter behind. */
static bool jwrap_hyphen(const struct jstr *s, size_t from, size_t i, size_t to)
{
    struct jstr before = {.s = s->s + from, .n = i - from}, after = {.s = s->s + i + 1, .n = to - i - 1};
    uint32_t last[2] = {0, 0}, c;
    for (size_t k = 0; k < before.n;) {
        last[0] = last[1];
        last[1] = jtext_next(&before, &k);
    }
    size_t k = 0;
    if (!jwrap_letter(last[0]) || !jwrap_letter(last[1]) || !after.n || !jwrap_letter(jtext_next(&after, &k)))
        return false;
    if (k < after.n && after.s[k] == '-')
        k++;
    if (k >= after.n)
        return false;
    c = jtext_next(&after, &k);
    return jwrap_letter(c);
}

static bool jwrap_blank(char c)
{
    return c && strchr("\t\n\v\f\r ", c);
}

/* Blanks, and words cut at their hyphens. */
static struct jlist *jwrap_chunks(const struct jwrap *w, const struct jstr *s)
{
    struct jlist *l = jlist_new(w->rt, 0);
    for (size_t i = 0; i < s->n;) {
        size_t from = i;
        bool blank = jwrap_blank(s->s[i]);
        while (i < s->n && jwrap_blank(s->s[i]) == blank)
            i++;
        for (size_t k = from; w->break_hyphens && !blank && k < i; k++)
            if (s->s[k] == '-' && jwrap_hyphen(s, from, k, i)) {
                jlist_add(w->rt, l, jv_str(jstr_sub(w->rt, s, from, k + 1 - from)));
                from = k + 1;
            }
        jlist_add(w->rt, l, jv_str(jstr_sub(w->rt, s, from, i - from)));
    }
    return l;
}

static bool jwrap_is_blank(const struct jstr *s)
{
    return s->n && jwrap_blank(s->s[0]);
}

/* A word longer than the line: how many characters of it go on this one. */
static int64_t jwrap_long(const struct jwrap *w, const struct jstr *chunk, int64_t used)
{
    int64_t room = w->width < 1 ? 1 : w->width - used;
    if (w->break_hyphens && (int64_t)chunk->chars > room) {
        size_t at = jtext_rfind(w->rt, chunk, jstr_lit(w->rt, "-"), 0, jstr_offset(chunk, (size_t)room));
        if (at != SIZE_MAX && at > 0 && strspn(jstr_c(w->rt, chunk), "-") < at)
            return (int64_t)jstr_count(chunk->s, at) + 1;
    }
    return room;
}

static void jwrap_paragraph(struct jwrap *w, const struct jstr *s)
{
    struct jlist *chunks = jwrap_chunks(w, s);
    size_t start = w->lines->n;
    for (size_t i = 0; i < chunks->n;) {
        struct jlist *line = jlist_new(w->rt, 0);
        int64_t used = 0;
        if (jwrap_is_blank(chunks->v[i].s) && w->lines->n > start)
            i++;
        for (; i < chunks->n && used + (int64_t)chunks->v[i].s->chars <= w->width; i++) {
            jlist_add(w->rt, line, chunks->v[i]);
            used += (int64_t)chunks->v[i].s->chars;
        }
        if (i < chunks->n && (int64_t)chunks->v[i].s->chars > w->width) {
            struct jstr *chunk = chunks->v[i].s;
            int64_t take = w->break_words ? jwrap_long(w, chunk, used) : line->n ? 0 : (int64_t)chunk->chars;
            size_t cut = jstr_offset(chunk, size_min((size_t)take, chunk->chars));
            if (cut)
                jlist_add(w->rt, line, jv_str(jstr_sub(w->rt, chunk, 0, cut)));
            chunks->v[i] = jv_str(jstr_sub(w->rt, chunk, cut, chunk->n - cut));
            i += cut == chunk->n;
        }
        if (line->n && jwrap_is_blank(line->v[line->n - 1].s))
            line->n--;
        if (line->n)
            jlist_add(w->rt, w->lines, jv_str(jtext_join(w->rt, jstr_lit(w->rt, ""), line)));
    }
}

FILTER(jf_wordwrap)
{
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    const struct jstr *sep = jarg_given(arg[2]) ? jarg_str(rt, arg[2], "wrapstring") : jstr_lit(rt, "\n");
    struct jlist *paragraphs = jtext_splitlines(rt, jarg_str(rt, v, "the value to wrap"), false);
    struct jlist *whole = jlist_new(rt, 0);
    struct jwrap w = {.rt = rt, .width = jarg_int(rt, arg[0], 79, "width")};
    w.break_words = arg[1].kind == J_MISSING || jv_true(arg[1]);
    w.break_hyphens = arg[3].kind == J_MISSING || jv_true(arg[3]);
    if (w.width <= 0)
        jfail(rt, "invalid width %lld (must be > 0)", (long long)w.width);
    for (size_t i = 0; i < paragraphs->n; i++) {
        w.lines = jlist_new(rt, 0);
        jwrap_paragraph(&w, paragraphs->v[i].s);
        jlist_add(rt, whole, jv_str(jtext_join(rt, sep, w.lines)));
    }
    return jv_str(jtext_join(rt, sep, whole));
}

static const struct jfunc table[] = {
    {"abs", "", {.bound = jf_abs}},
    {"capitalize", "", {.bound = jf_capitalize}},
    {"center", "|width", {.bound = jf_center}},
    {"count", "", {.bound = jf_length}},
    {"d", "|default_value boolean", {.bound = jf_default}},
    {"default", "|default_value boolean", {.bound = jf_default}},
    {"filesizeformat", "|binary", {.bound = jf_filesizeformat}},
    {"float", "|default", {.bound = jf_float}},
    {"format", NULL, {.call = jf_format}},
    {"indent", "|width first blank", {.bound = jf_indent}},
    {"int", "|default base", {.bound = jf_int}},
    {"length", "", {.bound = jf_length}},
    {"lower", "", {.bound = jf_lower}},
    {"pprint", "", {.bound = jf_pprint}},
    {"replace", "old new|count", {.bound = jf_replace}},
    {"round", "|precision method", {.bound = jf_round}},
    {"string", "", {.bound = jf_string}},
    {"title", "", {.bound = jf_title}},
    {"tojson", "|ensure_ascii indent separators sort_keys", {.bound = jf_tojson}},
    {"trim", "|chars", {.bound = jf_trim}},
    {"truncate", "|length killwords end leeway", {.bound = jf_truncate}},
    {"upper", "", {.bound = jf_upper}},
    {"wordcount", "", {.bound = jf_wordcount}},
    {"wordwrap", "|width break_long_words wrapstring break_on_hyphens", {.bound = jf_wordwrap}},
};

const struct jfilters jfilters_text = {table, sizeof table / sizeof table[0]};

const struct jfunc *jfilter_find(const char *name, size_t n)
{
    static const struct jfilters *const all[] = {&jfilters_text, &jfilters_seq, &jfilters_html};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < all[k]->n; i++)
            if (strlen(all[k]->f[i].name) == n && !memcmp(all[k]->f[i].name, name, n))
                return &all[k]->f[i];
    return NULL;
}
