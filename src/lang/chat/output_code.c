/* Calls that look like code: name(key=value, ...), [a(x=1), b()], name.call(...), and Gemma's name{key:value}
 * with <|"|> or <escape> around its texts. Values are literals of Python or JSON. */
#include "lang/chat/output_internal.h"

#include "base/utf8.h"

#include <string.h>

/* What stands around a text; after the first CODE_RAW of them no backslash means anything. */
enum { CODE_RAW = 2, CODE_QUOTES = 6 };
static const char *const code_quotes[CODE_QUOTES] = {"<|\"|>", "<escape>", "\"\"\"", "'''", "\"", "'"};

struct code {
    const char *s;
    size_t n; /* still to be read */
    int depth;
};

static json_t *code_value(struct code *c);

static void code_skip(struct code *c, size_t n)
{
    c->s += n;
    c->n -= n;
}

static void code_space(struct code *c)
{
    while (c->n && (*c->s == ' ' || *c->s == '\n' || *c->s == '\t' || *c->s == '\r'))
        code_skip(c, 1);
}

static bool code_take(struct code *c, const char *what)
{
    code_space(c);
    if (!output_starts((struct output_text){c->s, c->n}, what))
        return false;
    code_skip(c, strlen(what));
    return true;
}

static bool code_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static struct output_text code_name(struct code *c)
{
    code_space(c);
    struct output_text name = {c->s, 0};
    while (name.n < c->n && code_is_letter(c->s[name.n]))
        name.n++;
    code_skip(c, name.n);
    return name;
}

/* ---- literals ---- */

static bool code_hex(struct code *c, size_t digits, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < digits; i++, code_skip(c, 1)) {
        static const char hex[] = "0123456789abcdef";
        const char *at =
            c->n && *c->s ? strchr(hex, *c->s >= 'A' && *c->s <= 'F' ? *c->s + 32 : *c->s) : NULL;
        if (!at)
            return false;
        *out = *out * 16 + (uint32_t)(at - hex);
    }
    return true;
}

/* Behind a backslash. */
static bool code_escape(struct code *c, struct buf *out)
{
    static const char from[] = "nrtbf0'\"\\/", to[] = "\n\r\t\b\f\0'\"\\/";
    if (!c->n)
        return false;
    char kind = *c->s, text[4];
    code_skip(c, 1);
    const char *at = kind ? strchr(from, kind) : NULL;
    if (at)
        return buf_char(out, to[at - from]);
    size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    uint32_t cp, low;
    if (!digits)
        return buf_char(out, '\\') && buf_char(out, kind);
    if (!code_hex(c, digits, &cp))
        return false;
    if (cp >> 10 == 0x36 && code_take(c, "\\u") && code_hex(c, 4, &low) && low >> 10 == 0x37)
        cp = 0x10000 + ((cp & 0x3ff) << 10 | (low & 0x3ff));
    size_t n = utf8_put(cp, text);
    return n && buf_add(out, text, n);
}

static json_t *code_text(struct code *c)
{
    struct buf out = {0};
    const char *end = NULL;
    size_t kind = 0;
    while (kind < CODE_QUOTES && !(end = code_take(c, code_quotes[kind]) ? code_quotes[kind] : NULL))
        kind++;
    bool whole = end != NULL, closed = false;
    while (whole && !closed && c->n) {
        if ((closed = output_starts((struct output_text){c->s, c->n}, end))) {
            code_skip(c, strlen(end));
        } else if (*c->s == '\\' && kind >= CODE_RAW) {
            code_skip(c, 1);
            whole = code_escape(c, &out);
        } else {
            buf_char(&out, *c->s);
            code_skip(c, 1);
        }
    }
    json_t *v = whole && closed && !out.failed ? json_stringn(out.data ? out.data : "", out.len) : NULL;
    buf_free(&out);
    return v;
}

static json_t *code_list(struct code *c, const char *close)
{
    json_t *list = json_array();
    while (!code_take(c, close)) {
        if (json_array_append_new(list, code_value(c)) ||
            (!code_take(c, ",") && (!c->n || *c->s != *close))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Keys with this between them and their values, up to the close. */
static json_t *code_pairs(struct code *c, const char *between, const char *close)
{
    json_t *object = json_object();
    while (!code_take(c, close)) {
        code_space(c);
        json_t *quoted = c->n && strchr("'\"<", *c->s) ? code_text(c) : NULL;
        struct output_text key =
            quoted ? (struct output_text){json_string_value(quoted), json_string_length(quoted)}
                   : code_name(c);
        char name[256];
        bool whole = key.n && key.n < sizeof name && !memchr(key.s, 0, key.n) && code_take(c, between);
        if (whole) {
            memcpy(name, key.s, key.n);
            name[key.n] = 0;
        }
        json_decref(quoted);
        if (!whole || json_object_set_new(object, name, code_value(c)) ||
            (!code_take(c, ",") && (!c->n || *c->s != *close))) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* A number, or a word of Python or JSON. */
static json_t *code_word(struct code *c)
{
    static const struct {
        const char *word;
        json_t *(*make)(void);
    } words[] = {{"True", json_true}, {"False", json_false}, {"None", json_null},
                 {"true", json_true}, {"false", json_false}, {"null", json_null}};
    struct output_text t = {c->s, 0};
    while (t.n < c->n && (code_is_letter(c->s[t.n]) || c->s[t.n] == '+'))
        t.n++;
    code_skip(c, t.n);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == t.n && !memcmp(words[i].word, t.s, t.n))
            return words[i].make();
    return t.n ? output_json(t) : NULL;
}

static json_t *code_value(struct code *c)
{
    json_t *v = NULL;
    code_space(c);
    if (!c->n || ++c->depth > OUTPUT_DEPTH)
        return NULL;
    if (strchr("'\"<", *c->s) && *c->s)
        v = code_text(c);
    else if (code_take(c, "["))
        v = code_list(c, "]");
    else if (code_take(c, "("))
        v = code_list(c, ")");
    else if (code_take(c, "{"))
        v = code_pairs(c, ":", "}");
    else
        v = code_word(c);
    c->depth--;
    return v;
}

/* ---- calls ---- */

static int code_call(struct code *c, json_t *calls)
{
    struct output_text name = code_name(c);
    if (name.n > 5 && !memcmp(name.s + name.n - 5, ".call", 5))
        name.n -= 5;
    json_t *arguments = code_take(c, "(")   ? code_pairs(c, "=", ")")
                        : code_take(c, "{") ? code_pairs(c, ":", "}")
                                            : NULL;
    return arguments ? output_add_call(calls, name.s, name.n, arguments, NULL) : -1;
}

int output_code(json_t *calls, struct output_text body)
{
    struct code c = {body.s, body.n, 0};
    if (code_take(&c, "print(")) { /* Gemma often does */
        body.n -= body.n && body.s[body.n - 1] == ')';
        c = (struct code){body.s + 6, body.n - 6, 0};
    }
    bool list = code_take(&c, "[");
    do {
        if (code_call(&c, calls))
            return -1;
        code_take(&c, ",");
        code_take(&c, ";");
        code_space(&c);
    } while (c.n && !(list && *c.s == ']'));
    if (list && !code_take(&c, "]"))
        return -1;
    code_space(&c);
    return c.n ? -1 : 0;
}
