/* Text forms of values: str, repr, JSON and pprint. What stands around the strings of a container
 * counts as data: it is made from data. */
#include "lang/jinja/jinja_op.h"

#include "base/utf8.h"
#include "lang/jinja/jinja_run.h"
#include "lang/jinja/jinja_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t jop_float_text(double f, char out[32])
{
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    char digits[32];
    for (int precision = 0; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f)
            break;
    }
    /* digits is d[.ddd]e±xx: Python writes it plainly between 1e-4 and 1e16 */
    char *e = strchr(digits, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    int places = (int)(e - digits) - (digits[0] == '-') - (strchr(digits, '.') != NULL) - 1;
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, 32, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                                abs(exponent));
    int after = places - exponent;
    return (size_t)snprintf(out, 32, "%.*f", after < 1 ? 1 : after, f);
}

static void jrepr_str(struct jsb *b, const struct jstr *s)
{
    char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    jsb_add(b, &quote, 1, s->data);
    uint32_t cp = 0;
    for (size_t i = 0, n; i < s->n; i += n) {
        bool data = jstr_data_at(s, i);
        n = utf8_decode(s->s + i, s->n - i, &cp);
        char text[16];
        if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp == '\\' || cp == (uint32_t)quote)
            snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (jtext_printable(cp)) {
            jsb_add(b, s->s + i, n, data);
            continue;
        } else
            snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        jsb_lit(b, text, data);
    }
    jsb_add(b, &quote, 1, s->data);
}

static void jrepr_add(struct jsb *b, struct jv v);

static void jrepr_items(struct jsb *b, const char *open, const struct jlist *l, const char *close)
{
    jsb_lit(b, open, true);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jsb_lit(b, ", ", true);
        jrepr_add(b, l->v[i]);
    }
    jsb_lit(b, close, true);
}

static void jrepr_dict(struct jsb *b, const struct jdict *d)
{
    jsb_lit(b, "{", true);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jsb_lit(b, ", ", true);
        jrepr_add(b, d->item[i].key);
        jsb_lit(b, ": ", true);
        jrepr_add(b, d->item[i].value);
    }
    jsb_lit(b, "}", true);
}

static void jrepr_scalar(struct jsb *b, struct jv v)
{
    char text[96];
    switch (v.kind) {
    case J_UNDEF:
    case J_MISSING:
        snprintf(text, sizeof text, "Undefined");
        break;
    case J_NONE:
        snprintf(text, sizeof text, "None");
        break;
    case J_BOOL:
        snprintf(text, sizeof text, "%s", v.b ? "True" : "False");
        break;
    case J_INT:
        snprintf(text, sizeof text, "%" PRId64, v.i);
        break;
    case J_FLOAT:
        jop_float_text(v.f, text);
        break;
    case J_RANGE:
        snprintf(text, sizeof text,
                 v.range->step == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                    : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v.range->start, v.range->stop, v.range->step);
        break;
    default:
        snprintf(text, sizeof text, "<%s object>", jv_type(v));
        break;
    }
    jsb_lit(b, text, v.data);
}

static void jrepr_add(struct jsb *b, struct jv v)
{
    struct jrt *rt = b->rt;
    jcharge(rt, 0);
    jdeeper(rt);
    switch (v.kind) {
    case J_STR:
        if (v.s->markup)
            jsb_lit(b, "Markup(", true);
        jrepr_str(b, v.s);
        if (v.s->markup)
            jsb_lit(b, ")", true);
        break;
    case J_LIST:
        jrepr_items(b, "[", v.l, "]");
        break;
    case J_TUPLE:
        jrepr_items(b, "(", v.l, v.l->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        jrepr_dict(b, v.d);
        break;
    case J_NS:
        jsb_lit(b, "<Namespace ", false);
        jrepr_dict(b, v.d);
        jsb_lit(b, ">", false);
        break;
    case J_MACRO:
        jsb_lit(b, "<Macro ", false);
        jrepr_add(b, v.macro->node->name ? jv_str(v.macro->node->name) : jv_none());
        jsb_lit(b, ">", false);
        break;
    case J_LOOP:
        jsb_lit(b, "<LoopContext ", false);
        jrepr_add(b, jv_int(v.loop->index0 + 1));
        jsb_lit(b, "/", false);
        jrepr_add(b, jv_int((int64_t)jloop_length(rt, v.loop)));
        jsb_lit(b, ">", false);
        break;
    case J_VIEW:
        jsb_lit(b, jv_type(v), false);
        jrepr_items(b, "([", jiter_list(rt, v), "])");
        break;
    default:
        jrepr_scalar(b, v);
        break;
    }
    jshallower(rt);
}

struct jstr *jop_repr(struct jrt *rt, struct jv v)
{
    struct jsb b = {.rt = rt};
    jrepr_add(&b, v);
    return jsb_done(&b);
}

struct jstr *jop_soft_str(struct jrt *rt, struct jv v)
{
    if (v.kind == J_STR)
        return v.s;
    if (v.kind == J_UNDEF)
        return jstr_lit(rt, "");
    return jop_repr(rt, v);
}

struct jstr *jop_str(struct jrt *rt, struct jv v)
{
    return v.kind == J_STR ? jstr_plain(rt, v.s) : jop_soft_str(rt, v);
}

/* -- JSON */

static void jjson_str(struct jsb *b, const struct jstr *s, bool ascii)
{
    jsb_lit(b, "\"", true);
    uint32_t cp = 0;
    for (size_t i = 0, n; i < s->n; i += n) {
        static const char short_form[] = "\b\t\n\f\r\"\\", letter[] = "btnfr\"\\";
        bool data = jstr_data_at(s, i);
        n = utf8_decode(s->s + i, s->n - i, &cp);
        const char *known = cp && cp < 0x80 ? strchr(short_form, (int)cp) : NULL;
        char text[16];
        if (known)
            snprintf(text, sizeof text, "\\%c", letter[known - short_form]);
        else if (cp >= 0x20 && !(ascii && cp >= 0x7f)) {
            jsb_add(b, s->s + i, n, data);
            continue;
        } else if (cp < 0x10000)
            snprintf(text, sizeof text, "\\u%04x", cp);
        else
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + (cp & 0x3ff));
        jsb_lit(b, text, data);
    }
    jsb_lit(b, "\"", true);
}

static void jjson_line(struct jsb *b, const struct jjson *how, size_t level)
{
    if (!how->pretty)
        return;
    jsb_lit(b, "\n", true);
    for (size_t i = 0; i < level; i++)
        jsb_str(b, how->indent);
}

static void jjson_scalar(struct jsb *b, struct jv v)
{
    if (v.kind == J_NONE)
        jsb_lit(b, "null", v.data);
    else if (v.kind == J_BOOL)
        jsb_lit(b, v.b ? "true" : "false", v.data);
    else if (v.kind == J_FLOAT && !isfinite(v.f))
        jsb_lit(b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity", v.data);
    else
        jrepr_scalar(b, v);
}

static void jjson_add(struct jsb *b, struct jv v, const struct jjson *how, size_t level);

static int jjson_by_key(const void *a, const void *b)
{
    return jstr_cmp(((const struct jpair *)a)->key.s, ((const struct jpair *)b)->key.s);
}

static const struct jpair *jjson_sorted(struct jrt *rt, const struct jdict *d)
{
    struct jpair *p = jalloc(rt, d->n, sizeof *p);
    for (size_t i = 0; i < d->n; i++) {
        p[i] = d->item[i];
        if (p[i].key.kind != J_STR)
            jfail(rt, "tojson: keys can be sorted only where all are strings, not %s", jv_type(p[i].key));
    }
    qsort(p, d->n, sizeof *p, jjson_by_key);
    return p;
}

static void jjson_dict(struct jsb *b, const struct jdict *d, const struct jjson *how, size_t level)
{
    struct jrt *rt = b->rt;
    if (!d->n) {
        jsb_lit(b, "{}", true);
        return;
    }
    const struct jpair *item = how->sort ? jjson_sorted(rt, d) : d->item;
    jsb_lit(b, "{", true);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jsb_str(b, how->item_sep);
        jjson_line(b, how, level + 1);
        struct jv key = item[i].key;
        if (key.kind == J_STR)
            jjson_str(b, key.s, how->ascii);
        else if (jv_is_num(key) || key.kind == J_NONE) {
            jsb_lit(b, "\"", true);
            jjson_scalar(b, key);
            jsb_lit(b, "\"", true);
        } else
            jfail(rt, "keys must be str, int, float, bool or None, not %s", jv_type(key));
        jsb_str(b, how->key_sep);
        jjson_add(b, item[i].value, how, level + 1);
    }
    jjson_line(b, how, level);
    jsb_lit(b, "}", true);
}

static void jjson_list(struct jsb *b, const struct jlist *l, const struct jjson *how, size_t level)
{
    if (!l->n) {
        jsb_lit(b, "[]", true);
        return;
    }
    jsb_lit(b, "[", true);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jsb_str(b, how->item_sep);
        jjson_line(b, how, level + 1);
        jjson_add(b, l->v[i], how, level + 1);
    }
    jjson_line(b, how, level);
    jsb_lit(b, "]", true);
}

static void jjson_add(struct jsb *b, struct jv v, const struct jjson *how, size_t level)
{
    jcharge(b->rt, 0);
    jdeeper(b->rt);
    if (v.kind == J_STR)
        jjson_str(b, v.s, how->ascii);
    else if (jv_is_seq(v))
        jjson_list(b, v.l, how, level);
    else if (v.kind == J_DICT)
        jjson_dict(b, v.d, how, level);
    else if (v.kind == J_NONE || jv_is_num(v))
        jjson_scalar(b, v);
    else
        jfail(b->rt, "Object of type %s is not JSON serializable", jv_type(v));
    jshallower(b->rt);
}

struct jstr *jop_json(struct jrt *rt, struct jv v, const struct jjson *how)
{
    struct jsb b = {.rt = rt};
    jjson_add(&b, v, how, 0);
    return jsb_done(&b);
}

/* -- pprint: one line where it fits in 80 columns, else an item a line. Dicts are sorted by key. */

static void jpprint_add(struct jsb *b, struct jv v, size_t indent, size_t after);

static struct jv jpprint_sorted(struct jrt *rt, struct jv v)
{
    jdeeper(rt);
    if (v.kind == J_DICT) {
        bool strings = true;
        for (size_t i = 0; i < v.d->n; i++)
            strings = strings && v.d->item[i].key.kind == J_STR;
        const struct jpair *item = strings ? jjson_sorted(rt, v.d) : v.d->item;
        struct jdict *d = jdict_new(rt);
        for (size_t i = 0; i < v.d->n; i++)
            jdict_set(rt, d, item[i].key, jpprint_sorted(rt, item[i].value));
        v = jv_dict(d);
    } else if (jv_is_seq(v)) {
        struct jlist *l = jlist_new(rt, v.l->n);
        for (size_t i = 0; i < v.l->n; i++)
            jlist_add(rt, l, jpprint_sorted(rt, v.l->v[i]));
        v.l = l;
    }
    jshallower(rt);
    return v;
}

static void jpprint_break(struct jsb *b, size_t indent)
{
    jsb_lit(b, ",\n", true);
    for (size_t i = 0; i < indent; i++)
        jsb_lit(b, " ", true);
}

static void jpprint_dict(struct jsb *b, const struct jdict *d, size_t indent, size_t after)
{
    jsb_lit(b, "{", true);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jpprint_break(b, indent + 1);
        struct jstr *key = jop_repr(b->rt, d->item[i].key);
        jsb_str(b, key);
        jsb_lit(b, ": ", true);
        jpprint_add(b, d->item[i].value, indent + 1 + key->chars + 2, i + 1 == d->n ? after + 1 : 1);
    }
    jsb_lit(b, "}", true);
}

static void jpprint_add(struct jsb *b, struct jv v, size_t indent, size_t after)
{
    struct jstr *line = jop_repr(b->rt, v);
    bool fits = indent + after + line->chars <= 80;
    if (fits || (v.kind != J_DICT && !jv_is_seq(v)) || !jv_true(v)) {
        jsb_str(b, line);
        return;
    }
    jdeeper(b->rt);
    if (v.kind == J_DICT)
        jpprint_dict(b, v.d, indent, after);
    else {
        const char *close = v.kind == J_LIST ? "]" : v.l->n == 1 ? ",)" : ")";
        jsb_lit(b, v.kind == J_LIST ? "[" : "(", true);
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                jpprint_break(b, indent + 1);
            jpprint_add(b, v.l->v[i], indent + 1, i + 1 == v.l->n ? after + strlen(close) : 1);
        }
        jsb_lit(b, close, true);
    }
    jshallower(b->rt);
}

struct jstr *jop_pprint(struct jrt *rt, struct jv v)
{
    struct jsb b = {.rt = rt};
    jpprint_add(&b, jpprint_sorted(rt, v), 0, 0);
    return jsb_done(&b);
}
