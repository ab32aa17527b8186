/* From text to tokens: data and tags, with trim_blocks and lstrip_blocks, raw blocks and comments. */
#define _GNU_SOURCE /* memmem, memrchr */
#include "lang/jinja/jinja_ast.h"

#include "base/size.h"
#include "base/utf8.h"
#include "lang/jinja/jinja_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const jtok_text[] = {"+", "-",  "/",  "//", "*",  "%", "**", "~", "[", "]", "(", ")", "{",
                                        "}", "==", "!=", ">",  ">=", "<", "<=", "=", ".", ":", "|", ",", ";"};

struct jlexer {
    struct jrt *rt;
    const char *s;
    size_t n, at;
    int line;
    struct jtok *t;
    size_t count, cap;
    char open[512]; /* the closing brackets that are waited for */
    size_t nopen;
    bool line_starting; /* the last match ended with a newline */
};

const char *jtok_describe(struct jrt *rt, const struct jtok *t)
{
    static const char *const name[] = {
        [JT_EOF] = "end of template",
        [JT_DATA] = "template data / text",
        [JT_VAR_BEGIN] = "begin of print statement",
        [JT_VAR_END] = "end of print statement",
        [JT_BLOCK_BEGIN] = "begin of statement block",
        [JT_BLOCK_END] = "end of statement block",
        [JT_NAME] = "name",
        [JT_STRING] = "string",
        [JT_INT] = "integer",
        [JT_FLOAT] = "float",
    };
    if (t->kind >= JT_ADD)
        return jtok_text[t->kind - JT_ADD];
    return t->kind == JT_NAME && t->v.kind == J_STR ? jstr_c(rt, t->v.s) : name[t->kind];
}

static void jlex_emit(struct jlexer *x, enum jtok_kind kind, struct jv v)
{
    if (x->count == x->cap) {
        x->cap = x->cap ? x->cap * 2 : 64;
        struct jtok *t = jalloc(x->rt, x->cap, sizeof *t);
        if (x->count)
            memcpy(t, x->t, x->count * sizeof *t);
        x->t = t;
    }
    x->t[x->count++] = (struct jtok){kind, x->line, v};
}

static _Noreturn void jlex_fail(struct jlexer *x, const char *what)
{
    x->rt->line = x->line;
    jfail(x->rt, "%s", what);
}

static void jlex_count(struct jlexer *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        x->line += x->s[i] == '\n';
}

/* One character and how many bytes it has. */
static uint32_t jlex_cp(const struct jlexer *x, size_t at, size_t *len)
{
    uint32_t cp = 0;
    *len = at < x->n ? utf8_decode(x->s + at, x->n - at, &cp) : 0;
    return *len ? cp : 0;
}

static size_t jlex_spaces(const struct jlexer *x, size_t at)
{
    for (size_t len; at < x->n; at += len)
        if (!jtext_space(jlex_cp(x, at, &len)))
            break;
    return at;
}

static bool jlex_has(const struct jlexer *x, size_t at, const char *lit)
{
    size_t n = strlen(lit);
    return at <= x->n && x->n - at >= n && !memcmp(x->s + at, lit, n);
}

/* Behind `close` ("%}" and the like) with its whitespace control at `at`: 0 where it is not there.
 * -close takes all white space, close a newline (blocks only), +close nothing. */
static size_t jlex_close(const struct jlexer *x, size_t at, const char *close, bool block)
{
    if (jlex_has(x, at, "-") && jlex_has(x, at + 1, close))
        return jlex_spaces(x, at + 3);
    if (block && jlex_has(x, at, "+") && jlex_has(x, at + 1, close))
        return at + 3;
    if (!jlex_has(x, at, close))
        return 0;
    return at + 2 + (block && jlex_has(x, at + 2, "\n"));
}

/* Text before a tag: stripped as the tag's sign and lstrip_blocks say, then written as data. */
static void jlex_data(struct jlexer *x, size_t from, size_t to, char sign, bool variable)
{
    size_t end = to;
    struct jstr text = {.s = x->s + from, .n = to - from};
    if (sign == '-') {
        end = from + jtext_strip(x->rt, &text, NULL, JTEXT_RIGHT)->n;
    } else if (sign != '+' && !variable) {
        const char *newline = memrchr(text.s, '\n', text.n);
        size_t start = newline ? (size_t)(newline - x->s) + 1 : from;
        if ((newline || x->line_starting) && start < to && jlex_spaces(x, start) >= to)
            end = start;
    }
    if (end > from)
        jlex_emit(x, JT_DATA, jv_str(jstr_new(x->rt, x->s + from, end - from, false)));
    jlex_count(x, from, to);
}

static void jlex_comment(struct jlexer *x)
{
    if (x->at >= x->n)
        return;
    for (size_t i = x->at; i < x->n; i++) {
        size_t end = jlex_close(x, i, "#}", true);
        if (!end)
            continue;
        jlex_count(x, x->at, end);
        x->at = end;
        return;
    }
    jlex_fail(x, "Missing end of comment tag");
}

/* {% raw %} at `at`: behind it, or 0. */
static size_t jlex_raw_begin(const struct jlexer *x, size_t at)
{
    at += 2;
    if (jlex_has(x, at, "-") || jlex_has(x, at, "+"))
        at++;
    at = jlex_spaces(x, at);
    if (!jlex_has(x, at, "raw"))
        return 0;
    at = jlex_spaces(x, at + 3);
    if (jlex_has(x, at, "-%}"))
        return jlex_spaces(x, at + 3);
    return jlex_has(x, at, "%}") ? at + 2 : 0;
}

static void jlex_raw(struct jlexer *x)
{
    if (x->at >= x->n)
        return;
    for (size_t i = x->at; i + 1 < x->n; i++) {
        if (!jlex_has(x, i, "{%"))
            continue;
        size_t at = i + 2;
        char sign = at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at++] : 0;
        at = jlex_spaces(x, at);
        if (!jlex_has(x, at, "endraw"))
            continue;
        size_t end = jlex_close(x, jlex_spaces(x, at + 6), "%}", true);
        if (!end)
            continue;
        jlex_data(x, x->at, i, sign, false);
        jlex_count(x, i, end);
        x->at = end;
        return;
    }
    jlex_fail(x, "Missing end of raw directive");
}

/* -- inside a tag */

static size_t jlex_hex(struct jlexer *x, const char *s, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        int d = s[i] >= '0' && s[i] <= '9'                     ? s[i] - '0'
                : (s[i] | 0x20) >= 'a' && (s[i] | 0x20) <= 'f' ? (s[i] | 0x20) - 'a' + 10
                                                               : -1;
        if (d < 0)
            jlex_fail(x, "a string has a broken \\x, \\u or \\U escape");
        *out = *out << 4 | (uint32_t)d;
    }
    return n;
}

/* The escape behind a backslash at s (n bytes left): how many bytes it takes. */
static size_t jlex_escape(struct jlexer *x, const char *s, size_t n, struct jsb *b)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = s[0] ? strchr(from, s[0]) : NULL;
    if (known) {
        jsb_add(b, &to[known - from], 1, false);
        return 1;
    }
    if (s[0] == '\n')
        return 1;
    uint32_t cp = 0;
    size_t used = 0;
    if (s[0] >= '0' && s[0] <= '7') {
        for (; used < 3 && used < n && s[used] >= '0' && s[used] <= '7'; used++)
            cp = cp * 8 + (uint32_t)(s[used] - '0');
    } else if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
        if (n < digits + 1)
            jlex_fail(x, "a string has a broken \\x, \\u or \\U escape");
        used = 1 + jlex_hex(x, s + 1, digits, &cp);
    } else if (s[0] == 'N') {
        jlex_fail(x, "\\N{...} escapes are not supported");
    } else {
        jsb_lit(b, "\\", false); /* an unknown escape stays as it is */
        return 0;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        jlex_fail(x, "a string has an escape that is no character");
    jsb_cp(b, cp, false);
    return used;
}

static size_t jlex_string(struct jlexer *x, size_t at)
{
    char quote = x->s[at];
    size_t end = at + 1;
    bool plain = true;
    while (end < x->n && x->s[end] != quote) {
        plain = plain && x->s[end] != '\\';
        end += x->s[end] == '\\' ? 2 : 1;
    }
    if (end >= x->n)
        return 0;
    if (plain) {
        jlex_emit(x, JT_STRING, jv_str(jstr_new(x->rt, x->s + at + 1, end - at - 1, false)));
        return end + 1;
    }
    struct jsb b = {.rt = x->rt};
    for (size_t i = at + 1; i < end;) {
        if (x->s[i] != '\\') {
            size_t n = 1;
            while (i + n < end && x->s[i + n] != '\\')
                n++;
            jsb_add(&b, x->s + i, n, false);
            i += n;
        } else {
            i += 1 + jlex_escape(x, x->s + i + 1, end - i - 1, &b);
        }
    }
    struct jstr *s = jsb_done(&b);
    s->buf = NULL; /* a constant is shared by all renders: nothing may grow behind it */
    jlex_emit(x, JT_STRING, jv_str(s));
    return end + 1;
}

static bool jlex_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them: behind them. */
static size_t jlex_digits(const struct jlexer *x, size_t at)
{
    while (at < x->n && (jlex_digit(x->s[at]) || (x->s[at] == '_' && at && jlex_digit(x->s[at - 1]) &&
                                                  at + 1 < x->n && jlex_digit(x->s[at + 1]))))
        at++;
    return at;
}

static size_t jlex_float_end(const struct jlexer *x, size_t at)
{
    size_t end = jlex_digits(x, at), i = end;
    bool real = false;
    if (at && x->s[at - 1] == '.')
        return 0;
    if (i + 1 < x->n && x->s[i] == '.' && jlex_digit(x->s[i + 1])) {
        end = i = jlex_digits(x, i + 1);
        real = true;
    }
    if (i < x->n && (x->s[i] | 0x20) == 'e') {
        size_t digits = i + 1 + (i + 1 < x->n && (x->s[i + 1] == '+' || x->s[i + 1] == '-'));
        if (digits < x->n && jlex_digit(x->s[digits])) {
            end = jlex_digits(x, digits);
            real = true;
        }
    }
    return real ? end : 0;
}

static size_t jlex_number(struct jlexer *x, size_t at)
{
    size_t end = jlex_float_end(x, at);
    if (end) {
        struct jstr text = {.s = x->s + at, .n = end - at};
        double f;
        if (!jtext_to_float(&text, &f))
            jlex_fail(x, "a number that cannot be read");
        jlex_emit(x, JT_FLOAT, jv_float(f));
        return end;
    }
    int base = 10;
    char kind = at + 1 < x->n && x->s[at] == '0' ? (char)(x->s[at + 1] | 0x20) : 0;
    if (kind == 'x' || kind == 'o' || kind == 'b') {
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
        const char *digits = kind == 'x' ? "0123456789abcdefABCDEF" : kind == 'o' ? "01234567" : "01";
        end = at + 2;
        while (end < x->n &&
               ((x->s[end] && strchr(digits, x->s[end])) ||
                (x->s[end] == '_' && end + 1 < x->n && x->s[end + 1] && strchr(digits, x->s[end + 1]))))
            end++;
    }
    if (base == 10 || end == at + 2) {
        base = 10;
        end = jlex_digits(x, at);
        if (x->s[at] == '0') /* 0 is followed only by more of it */
            for (end = at + 1;
                 end < x->n && (x->s[end] == '0' || (x->s[end] == '_' && jlex_has(x, end + 1, "0")));)
                end++;
    }
    struct jstr text = {.s = x->s + at, .n = end - at};
    int64_t i;
    x->rt->line = x->line;
    if (!jtext_to_int(x->rt, &text, base, &i))
        jlex_fail(x, "a number that cannot be read");
    jlex_emit(x, JT_INT, jv_int(i));
    return end;
}

static size_t jlex_name_end(const struct jlexer *x, size_t at)
{
    for (size_t len; at < x->n; at += len) {
        uint32_t c = jlex_cp(x, at, &len);
        if (c != '_' && !jtext_alnum(c) && !(c >= 0x80 && jtext_combining(c)))
            break;
    }
    return at;
}

static size_t jlex_operator(struct jlexer *x, size_t at)
{
    size_t best = 0, n = 0;
    for (size_t i = 0; i < sizeof jtok_text / sizeof jtok_text[0]; i++)
        if (jlex_has(x, at, jtok_text[i]) && strlen(jtok_text[i]) > n) {
            best = i;
            n = strlen(jtok_text[i]);
        }
    if (!n)
        return 0;
    char c = x->s[at], closing = c == '{' ? '}' : c == '(' ? ')' : c == '[' ? ']' : 0;
    char what[64];
    if (closing) {
        if (x->nopen == sizeof x->open)
            jlex_fail(x, "brackets are nested too deeply");
        x->open[x->nopen++] = closing;
    } else if (c == '}' || c == ')' || c == ']') {
        snprintf(what, sizeof what, "unexpected '%c'", c);
        if (!x->nopen)
            jlex_fail(x, what);
        if (x->open[--x->nopen] != c) {
            snprintf(what, sizeof what, "unexpected '%c', expected '%c'", c, x->open[x->nopen]);
            jlex_fail(x, what);
        }
    }
    jlex_emit(x, (enum jtok_kind)(JT_ADD + best), jv_missing());
    return at + n;
}

/* The inside of a tag, up to and with its end; false where the text ends first. */
static bool jlex_tag(struct jlexer *x, const char *close, bool block)
{
    while (x->at < x->n) {
        size_t at = x->at, end = x->nopen ? 0 : jlex_close(x, at, close, block), len;
        if (end) {
            jlex_emit(x, block ? JT_BLOCK_END : JT_VAR_END, jv_missing());
            jlex_count(x, at, end);
            x->at = end;
            x->line_starting = x->s[end - 1] == '\n';
            return true;
        }
        uint32_t c = jlex_cp(x, at, &len);
        if (jtext_space(c))
            end = jlex_spaces(x, at);
        else if (c < 0x80 && jlex_digit((char)c))
            end = jlex_number(x, at);
        else if (c == '_' || jtext_alpha(c)) {
            end = jlex_name_end(x, at);
            jlex_emit(x, JT_NAME, jv_str(jstr_new(x->rt, x->s + at, end - at, false)));
        } else if (c == '\'' || c == '"')
            end = jlex_string(x, at);
        else
            end = jlex_operator(x, at);
        if (!end) {
            char what[96];
            snprintf(what, sizeof what, "unexpected char '%.*s' at %zu", (int)len, x->s + at,
                     jstr_count(x->s, at));
            jlex_fail(x, what);
        }
        jlex_count(x, at, end);
        x->at = end;
    }
    return false;
}

/* Newlines of all kinds become \n, and one at the very end is dropped. */
static void jlex_normalize(struct jlexer *x, const char *text, size_t n)
{
    char *s = jalloc(x->rt, n + 1, 1);
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            s[out++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n';
        } else {
            s[out++] = text[i];
        }
    }
    x->s = s;
    x->n = out - (out && s[out - 1] == '\n');
}

struct jtokens jlex(struct jrt *rt, const char *text, size_t n)
{
    struct jlexer x = {.rt = rt, .line = 1, .line_starting = true};
    if (!utf8_valid(text, n))
        jfail(rt, "the template is not valid UTF-8");
    jlex_normalize(&x, text, n);
    while (x.at < x.n) {
        size_t i = x.at;
        for (; i + 1 < x.n; i++)
            if (x.s[i] == '{' && (x.s[i + 1] == '{' || x.s[i + 1] == '%' || x.s[i + 1] == '#'))
                break;
        if (i + 1 >= x.n) {
            jlex_emit(&x, JT_DATA, jv_str(jstr_new(rt, x.s + x.at, x.n - x.at, false)));
            jlex_count(&x, x.at, x.n);
            break;
        }
        char kind = x.s[i + 1];
        size_t raw = kind == '%' ? jlex_raw_begin(&x, i) : 0, behind = i + 2;
        char sign = behind < x.n && (x.s[behind] == '-' || x.s[behind] == '+') ? x.s[behind] : 0;
        jlex_data(&x, x.at, i, sign, kind == '{');
        x.at = raw ? raw : behind + (sign != 0);
        x.line_starting = x.s[x.at - 1] == '\n';
        if (raw) {
            jlex_count(&x, i, raw);
            jlex_raw(&x);
            x.line_starting = x.s[x.at - 1] == '\n';
        } else if (kind == '#') {
            jlex_comment(&x);
            x.line_starting = x.s[x.at - 1] == '\n';
        } else {
            jlex_emit(&x, kind == '{' ? JT_VAR_BEGIN : JT_BLOCK_BEGIN, jv_missing());
            if (!jlex_tag(&x, kind == '{' ? "}}" : "%}", kind == '%'))
                break;
        }
    }
    jlex_emit(&x, JT_EOF, jv_missing());
    return (struct jtokens){x.t, x.count};
}
