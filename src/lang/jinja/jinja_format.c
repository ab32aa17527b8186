/* Formatting: "%5.2f" % x and "{:>8}".format(x), with Python's rules for text and numbers. */
#include "lang/jinja/jinja_call.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct jspec {
    const struct jstr *fill; /* one character, or NULL */
    char align;              /* '<' '>' '^' '=' or 0 */
    char sign;               /* '+' ' ' or 0 */
    char group;              /* ',' '_' or 0 */
    char type;               /* 0 = none */
    bool alternate, zero;
    int64_t width, precision; /* precision -1 = none */
};

#define PRECISION_MAX 250

/* A number at *at of s; the caller has seen a digit there, or gets 0. */
static int64_t spec_number(struct jrt *rt, const struct jstr *s, size_t *at)
{
    int64_t n = 0;
    for (; *at < s->n && s->s[*at] >= '0' && s->s[*at] <= '9'; ++*at) {
        n = n * 10 + (s->s[*at] - '0');
        if (n > INT32_MAX)
            jfail(rt, "a width or precision is too big");
    }
    return n;
}

/* -- numbers */

/* Digits of an integer in a base, most significant first; returns how many. */
static size_t digits_of(int64_t i, char type, char out[72])
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    const char *digit = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    char back[72];
    size_t n = 0;
    do
        back[n++] = digit[u % base];
    while (u /= base);
    for (size_t k = 0; k < n; k++)
        out[k] = back[n - 1 - k];
    out[n] = 0;
    return n;
}

/* Separators into the whole part of a number: every three digits (four for b, o, x). */
static void group_digits(struct jsb *b, const char *digits, const struct jspec *spec, bool data)
{
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    if (spec->type && strchr("eEfFgGn%", spec->type))
        whole = strspn(digits, "0123456789");
    size_t each = spec->type && strchr("boxX", spec->type) ? 4 : 3;
    for (size_t i = 0; i < whole; i++) {
        if (spec->group && i && (whole - i) % each == 0)
            jsb_add(b, &spec->group, 1, data);
        jsb_add(b, digits + i, 1, data);
    }
    jsb_lit(b, digits + whole, data);
}

/* sign, prefix and digits, padded to the width: zeros between sign and digits, or fill around all. */
static struct jstr *pad_number(struct jrt *rt, const struct jspec *spec, const char *sign,
                               const struct jstr *digits)
{
    size_t have = strlen(sign) + digits->chars,
           pad = spec->width > (int64_t)have ? (size_t)spec->width - have : 0;
    const struct jstr *fill = spec->fill ? spec->fill : jstr_lit(rt, spec->zero ? "0" : " ");
    char align = spec->align ? spec->align : spec->zero ? '=' : '>';
    struct jstr *signs = jstr_copy(rt, sign, strlen(sign), digits->data);
    if (align == '=')
        return jstr_concat(rt, signs, jtext_pad(rt, digits, pad, 0, fill));
    size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    return jtext_pad(rt, jstr_concat(rt, signs, digits), left, pad - left, fill);
}

static struct jstr *format_int(struct jrt *rt, const struct jspec *spec, struct jv v)
{
    char digits[72], sign[4] = "";
    int64_t i = jv_as_int(v);
    size_t n = digits_of(i, spec->type, digits);
    size_t at = 0;
    if (i < 0 || spec->sign)
        sign[at++] = i < 0 ? '-' : spec->sign;
    if (spec->alternate && spec->type && strchr("boxX", spec->type)) {
        sign[at++] = '0';
        sign[at++] = spec->type;
    }
    sign[at] = 0;
    struct jsb b = {.rt = rt};
    for (int64_t zeros = spec->precision - (int64_t)n; zeros > 0; zeros--)
        jsb_lit(&b, "0", v.data);
    group_digits(&b, digits, spec, v.data);
    return pad_number(rt, spec, sign, jsb_done(&b));
}

static struct jstr *format_float(struct jrt *rt, const struct jspec *spec, struct jv v)
{
    double f = jv_as_float(v);
    char text[PRECISION_MAX + 400], sign[2] = "";
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    if (spec->precision > PRECISION_MAX)
        jfail(rt, "a precision is too big");
    bool minus = signbit(f) && !isnan(f);
    if (minus || spec->sign)
        sign[0] = minus ? '-' : spec->sign;
    f = minus ? -f : f;
    char type = spec->type == '%' ? 'f' : spec->type == 'n' ? 'g' : spec->type;
    if (spec->type == '%')
        f *= 100;
    if (!type && spec->precision < 0) {
        jop_float_text(f, text);
    } else if (!isfinite(f)) {
        snprintf(text, sizeof text, "%s", isnan(f) ? "nan" : "inf");
    } else {
        switch (type) {
        case 'f':
        case 'F':
            snprintf(text, sizeof text, spec->alternate ? "%#.*f" : "%.*f", precision, f);
            break;
        case 'e':
            snprintf(text, sizeof text, spec->alternate ? "%#.*e" : "%.*e", precision, f);
            break;
        case 'E':
            snprintf(text, sizeof text, spec->alternate ? "%#.*E" : "%.*E", precision, f);
            break;
        case 'G':
            snprintf(text, sizeof text, spec->alternate ? "%#.*G" : "%.*G", precision, f);
            break;
        default:
            snprintf(text, sizeof text, spec->alternate ? "%#.*g" : "%.*g", precision, f);
            if (!type && !strpbrk(text, ".e")) /* no type: like g, but it must look like a float */
                strncat(text, ".0", 3);
        }
    }
    struct jsb b = {.rt = rt};
    group_digits(&b, text, spec, v.data);
    if (spec->type == '%')
        jsb_lit(&b, "%", v.data);
    return pad_number(rt, spec, sign, jsb_done(&b));
}

static struct jstr *format_str(struct jrt *rt, const struct jspec *spec, struct jstr *s)
{
    if (spec->precision >= 0 && (int64_t)s->chars > spec->precision)
        s = jstr_sub(rt, s, 0, jstr_offset(s, (size_t)spec->precision));
    size_t pad = spec->width > (int64_t)s->chars ? (size_t)spec->width - s->chars : 0;
    size_t left = spec->align == '>' ? pad : spec->align == '^' ? pad / 2 : 0;
    const struct jstr *fill = spec->fill ? spec->fill : jstr_lit(rt, spec->zero ? "0" : " ");
    return pad ? jtext_pad(rt, s, left, pad - left, fill) : s;
}

static struct jstr *format_char(struct jrt *rt, struct jv v)
{
    struct jsb b = {.rt = rt};
    int64_t c = jv_as_int(v);
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        jfail(rt, "%%c arg not in range(0x110000)");
    jsb_cp(&b, (uint32_t)c, v.data);
    return jsb_done(&b);
}

static struct jstr *ascii_repr(struct jrt *rt, struct jv v)
{
    const struct jstr *s = jop_repr(rt, v);
    struct jsb b = {.rt = rt};
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = jtext_next(s, &i);
        char text[16];
        snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (c < 0x80)
            jsb_sub(&b, s, at, 1);
        else
            jsb_lit(&b, text, jstr_data_at(s, at));
    }
    return jsb_done(&b);
}

/* -- percent */

struct jpercent {
    struct jrt *rt;
    const struct jstr *fmt;
    struct jv args;
    size_t at, next; /* in fmt; in args */
    bool mapping;    /* some %(key) was used, or args is a mapping */
};

static struct jv percent_next(struct jpercent *p)
{
    size_t n = p->args.kind == J_TUPLE ? p->args.l->n : 1;
    if (p->next >= n)
        jfail(p->rt, "not enough arguments for format string");
    return p->args.kind == J_TUPLE ? p->args.l->v[p->next++] : (p->next++, p->args);
}

static struct jv percent_key(struct jpercent *p)
{
    size_t from = ++p->at, depth = 1;
    for (; p->at < p->fmt->n && depth; p->at++)
        depth += (p->fmt->s[p->at] == '(') - (p->fmt->s[p->at] == ')');
    if (depth)
        jfail(p->rt, "incomplete format key");
    if (p->args.kind != J_DICT)
        jfail(p->rt, "format requires a mapping");
    struct jv key = jv_str(jstr_sub(p->rt, p->fmt, from, p->at - 1 - from)),
              *v = jdict_get(p->rt, p->args.d, key);
    if (!v)
        jfail(p->rt, "%s", jstr_c(p->rt, jop_repr(p->rt, key)));
    return *v;
}

static int64_t percent_width(struct jpercent *p)
{
    if (p->at < p->fmt->n && p->fmt->s[p->at] == '*') {
        p->at++;
        return jarg_int(p->rt, percent_next(p), 0, "*");
    }
    return spec_number(p->rt, p->fmt, &p->at);
}

static struct jstr *percent_one(struct jpercent *p, struct jspec *spec, struct jv v)
{
    struct jrt *rt = p->rt;
    switch (spec->type) {
    case 's':
        return format_str(rt, spec, p->fmt->markup ? jop_escape(rt, v) : jop_soft_str(rt, v));
    case 'r':
        return format_str(rt, spec, jop_repr(rt, v));
    case 'a':
        return format_str(rt, spec, ascii_repr(rt, v));
    case 'c':
        if (v.kind == J_STR && v.s->chars == 1)
            return format_str(rt, spec, v.s);
        if (!jv_is_int(v))
            jfail(rt, "%%c requires int or char");
        return format_str(rt, spec, format_char(rt, v));
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        if (v.kind == J_FLOAT && !strchr("oxX", spec->type) && fabs(v.f) < 9e18)
            v = (struct jv){.kind = J_INT, .data = v.data, .i = (int64_t)v.f};
        if (v.kind == J_UNDEF)
            jfail_undef(rt, v);
        if (!jv_is_int(v))
            jfail(rt, "%%%c format: a number is required, not %s", spec->type, jv_type(v));
        return format_int(rt, spec, v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.kind == J_UNDEF)
            jfail_undef(rt, v);
        if (!jv_is_num(v))
            jfail(rt, "must be real number, not %s", jv_type(v));
        return format_float(rt, spec, v);
    default:
        jfail(rt, "unsupported format character '%c'", spec->type);
    }
}

/* One conversion, behind its '%'. */
static struct jstr *percent_field(struct jpercent *p)
{
    struct jspec spec = {.precision = -1};
    struct jv v = jv_missing();
    const struct jstr *f = p->fmt;
    if (p->at < f->n && f->s[p->at] == '(')
        v = percent_key(p);
    bool left = false;
    for (; p->at < f->n && strchr("-+ #0", f->s[p->at]) && f->s[p->at]; p->at++) {
        char c = f->s[p->at];
        left = left || c == '-';
        spec.sign = c == '+' ? '+' : c == ' ' && !spec.sign ? ' ' : spec.sign;
        spec.alternate = spec.alternate || c == '#';
        spec.zero = spec.zero || c == '0';
    }
    spec.width = percent_width(p);
    if (spec.width < 0) {
        left = true;
        spec.width = -spec.width;
    }
    if (p->at < f->n && f->s[p->at] == '.') {
        p->at++;
        spec.precision = percent_width(p);
    }
    while (p->at < f->n && (f->s[p->at] == 'h' || f->s[p->at] == 'l' || f->s[p->at] == 'L'))
        p->at++;
    if (p->at >= f->n)
        jfail(p->rt, "incomplete format");
    spec.type = f->s[p->at++];
    if (spec.type == '%')
        return jstr_lit(p->rt, "%");
    spec.align = left ? '<' : strchr("srac", spec.type) ? '>' : 0;
    spec.zero = spec.zero && !left && !strchr("srac", spec.type);
    return percent_one(p, &spec, v.kind == J_MISSING ? percent_next(p) : v);
}

struct jstr *jformat_percent(struct jrt *rt, const struct jstr *fmt, struct jv args)
{
    struct jpercent p = {.rt = rt, .fmt = fmt, .args = args};
    struct jsb b = {.rt = rt};
    while (p.at < fmt->n) {
        const char *sign = memchr(fmt->s + p.at, '%', fmt->n - p.at);
        size_t end = sign ? (size_t)(sign - fmt->s) : fmt->n;
        jsb_sub(&b, fmt, p.at, end - p.at);
        p.at = end + 1;
        if (sign)
            jsb_str(&b, percent_field(&p));
    }
    /* what can be subscribed counts as a mapping, whose items need not all be used */
    bool mapping = args.kind == J_DICT || args.kind == J_LIST || args.kind == J_RANGE || args.kind == J_UNDEF;
    size_t n = args.kind == J_TUPLE ? args.l->n : !mapping;
    if (p.next < n)
        jfail(rt, "not all arguments converted during string formatting");
    struct jstr *s = jsb_done(&b);
    s->markup = fmt->markup;
    return s;
}

/* -- braces */

static struct jspec parse_spec(struct jrt *rt, const struct jstr *s)
{
    struct jspec spec = {.precision = -1};
    size_t at = 0, first = 0;
    if (s->n)
        jtext_next(s, &first);
    if (first < s->n && strchr("<>=^", s->s[first])) {
        spec.fill = jstr_sub(rt, s, 0, first);
        spec.align = s->s[first];
        at = first + 1;
    } else if (s->n && s->s[0] && strchr("<>=^", s->s[0])) {
        spec.align = s->s[at++];
    }
    if (at < s->n && s->s[at] && strchr("+- ", s->s[at]))
        spec.sign = s->s[at++];
    if (spec.sign == '-')
        spec.sign = 0;
    if (at < s->n && s->s[at] == '#')
        spec.alternate = ++at;
    if (at < s->n && s->s[at] == '0') {
        at++;
        spec.zero = !spec.fill;
    }
    spec.width = spec_number(rt, s, &at);
    if (at < s->n && (s->s[at] == ',' || s->s[at] == '_'))
        spec.group = s->s[at++];
    if (at < s->n && s->s[at] == '.') {
        if (++at >= s->n || s->s[at] < '0' || s->s[at] > '9')
            jfail(rt, "Format specifier missing precision");
        spec.precision = spec_number(rt, s, &at);
    }
    if (at < s->n)
        spec.type = s->s[at++];
    if (at < s->n)
        jfail(rt, "Invalid format specifier '%s'", jstr_c(rt, s));
    return spec;
}

static struct jstr *format_value(struct jrt *rt, struct jv v, const struct jstr *text)
{
    if (!text->n)
        return jop_soft_str(rt, v);
    struct jspec spec = parse_spec(rt, text);
    bool floating = spec.type && strchr("eEfFgGn%", spec.type);
    if (v.kind == J_STR) {
        if ((spec.type && spec.type != 's') || spec.align == '=' || spec.sign || spec.group || spec.alternate)
            jfail(rt, "Unknown format code '%c' for object of type 'str'", spec.type ? spec.type : '=');
        return format_str(rt, &spec, v.s);
    }
    if (v.kind == J_FLOAT || (jv_is_int(v) && floating)) {
        if (spec.type && !floating)
            jfail(rt, "Unknown format code '%c' for object of type 'float'", spec.type);
        if (spec.type == 'n' && jv_is_int(v)) {
            spec.type = 'd';
            return format_int(rt, &spec, v);
        }
        return format_float(rt, &spec, v);
    }
    if (!jv_is_int(v))
        jfail(rt, "unsupported format string passed to %s.__format__", jv_type(v));
    if (spec.type && !strchr("dboxXc", spec.type))
        jfail(rt, "Unknown format code '%c' for object of type 'int'", spec.type);
    if (spec.precision >= 0)
        jfail(rt, "Precision not allowed in integer format specifier");
    if (spec.type == 'c')
        return format_str(rt, &spec, format_char(rt, v));
    return format_int(rt, &spec, v);
}

struct jbraces {
    struct jrt *rt;
    const struct jcall *args;
    int64_t automatic; /* the next {}; -1 once numbers were used */
    bool markup;
};

static struct jv braces_argument(struct jbraces *f, struct jstr *name)
{
    struct jrt *rt = f->rt;
    size_t at = 0;
    int64_t index = spec_number(rt, name, &at);
    if (!name->n) {
        if (f->automatic < 0)
            jfail(rt, "cannot switch from manual field specification to automatic field numbering");
        index = f->automatic++;
    } else if (at == name->n) {
        if (f->automatic > 0)
            jfail(rt, "cannot switch from automatic field numbering to manual field specification");
        f->automatic = -1;
    } else {
        for (size_t i = 0; i < f->args->nkw; i++)
            if (jstr_eq(f->args->kw[2 * i].s, name))
                return f->args->kw[2 * i + 1];
        jfail(rt, "%s", jstr_c(rt, jop_repr(rt, jv_str(name))));
    }
    if ((size_t)index >= f->args->npos)
        jfail(rt, "Replacement index %lld out of range for positional args tuple", (long long)index);
    return f->args->pos[index];
}

/* name.attr[item]... */
static struct jv braces_lookup(struct jbraces *f, const struct jstr *path)
{
    struct jrt *rt = f->rt;
    size_t at = 0;
    while (at < path->n && path->s[at] != '.' && path->s[at] != '[')
        at++;
    struct jv v = braces_argument(f, jstr_sub(rt, path, 0, at));
    while (at < path->n) {
        bool item = path->s[at] == '[';
        size_t from = ++at;
        while (at < path->n && (item ? path->s[at] != ']' : path->s[at] != '.' && path->s[at] != '['))
            at++;
        if (at == from || (item && at >= path->n))
            jfail(rt, "Empty attribute in format string");
        struct jstr *name = jstr_sub(rt, path, from, at - from);
        size_t end = 0;
        int64_t index = item ? spec_number(rt, name, &end) : 0;
        v = !item ? jop_attr(rt, v, name) : jop_item(rt, v, end == name->n ? jv_int(index) : jv_str(name));
        at += item;
    }
    return v;
}

static void braces_run(struct jbraces *f, const struct jstr *fmt, struct jsb *b, int depth);

/* The field in fmt[from, to): name, !conversion, :spec */
static void braces_field(struct jbraces *f, const struct jstr *fmt, size_t from, size_t to, struct jsb *b,
                         int depth)
{
    struct jrt *rt = f->rt;
    size_t end = from;
    for (bool bracket = false; end < to; end++) {
        bracket = fmt->s[end] == '[' ? true : fmt->s[end] == ']' ? false : bracket;
        if (!bracket && (fmt->s[end] == '!' || fmt->s[end] == ':'))
            break;
    }
    struct jv v = braces_lookup(f, jstr_sub(rt, fmt, from, end - from));
    if (end < to && fmt->s[end] == '!') {
        char how = end + 1 < to ? fmt->s[end + 1] : 0;
        if (how != 'r' && how != 's' && how != 'a')
            jfail(rt, "Unknown conversion specifier in a format string");
        v = jv_str(how == 'r' ? jop_repr(rt, v) : how == 's' ? jop_str(rt, v) : ascii_repr(rt, v));
        end += 2;
        if (end < to && fmt->s[end] != ':')
            jfail(rt, "expected ':' after conversion specifier");
    }
    struct jsb spec = {.rt = rt};
    if (end < to)
        braces_run(f, jstr_sub(rt, fmt, end + 1, to - end - 1), &spec, depth - 1);
    struct jstr *s = format_value(rt, v, jsb_done(&spec));
    jsb_str(b, f->markup ? jop_escape(rt, jv_str(s)) : s);
}

static void braces_run(struct jbraces *f, const struct jstr *fmt, struct jsb *b, int depth)
{
    if (depth < 0)
        jfail(f->rt, "Max string recursion exceeded");
    for (size_t i = 0; i < fmt->n;) {
        char c = fmt->s[i];
        if (c != '{' && c != '}') {
            size_t from = i;
            while (i < fmt->n && fmt->s[i] != '{' && fmt->s[i] != '}')
                i++;
            jsb_sub(b, fmt, from, i - from);
            continue;
        }
        if (i + 1 < fmt->n && fmt->s[i + 1] == c) {
            jsb_sub(b, fmt, i, 1);
            i += 2;
            continue;
        }
        if (c == '}')
            jfail(f->rt, "Single '}' encountered in format string");
        size_t from = ++i, nested = 1;
        for (; i < fmt->n; i++) {
            nested += (fmt->s[i] == '{') - (size_t)(fmt->s[i] == '}');
            if (!nested)
                break;
        }
        if (i >= fmt->n)
            jfail(f->rt, from == fmt->n ? "Single '{' encountered in format string"
                                        : "expected '}' before end of string");
        braces_field(f, fmt, from, i, b, depth);
        i++;
    }
}

struct jstr *jformat_braces(struct jrt *rt, const struct jstr *fmt, const struct jcall *args)
{
    struct jbraces f = {.rt = rt, .args = args, .markup = fmt->markup};
    struct jsb b = {.rt = rt};
    braces_run(&f, fmt, &b, 2);
    struct jstr *s = jsb_done(&b);
    s->markup = fmt->markup;
    return s;
}
