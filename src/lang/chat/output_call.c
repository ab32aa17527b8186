/* Bodies of calls: JSON, a name and JSON, a name and tagged values. */
#define _GNU_SOURCE
#include "lang/chat/output_internal.h"

#include "base/json.h"
#include "base/mem.h"
#include "format/jsonread.h"

#include <string.h>

enum { CALL_TEXT = 4 << 20, CALL_MEMORY = 64 << 20, CALL_NAME = 128 };

bool output_scan(struct output_scan *s, char c)
{
    if (s->quote) {
        bool ends = c == s->quote && !s->escaped;
        s->escaped = c == '\\' && !s->escaped;
        s->quote = ends ? 0 : s->quote;
        return false;
    }
    switch (c) {
    case '"':
    case '\'':
        s->quote = s->depth ? c : 0; /* outside of brackets it is no string of ours */
        break;
    case '{':
    case '[':
    case '(':
        s->depth++;
        break;
    case '}':
    case ']':
    case ')':
        if (s->depth)
            return --s->depth == 0;
        break;
    default:
        break;
    }
    return false;
}

bool output_is_white(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

struct output_text output_trim(struct output_text t)
{
    while (t.n && output_is_white(*t.s))
        t.s++, t.n--;
    while (t.n && output_is_white(t.s[t.n - 1]))
        t.n--;
    return t;
}

bool output_starts(struct output_text t, const char *with)
{
    size_t n = strlen(with);
    return t.n >= n && !memcmp(t.s, with, n);
}

static const char *output_find(struct output_text t, const char *what)
{
    return what && *what && t.n ? memmem(t.s, t.n, what, strlen(what)) : NULL;
}

static struct output_text output_from(struct output_text t, const char *at)
{
    return (struct output_text){at, t.n - (size_t)(at - t.s)};
}

static struct output_text output_until(struct output_text t, const char *at)
{
    return (struct output_text){t.s, (size_t)(at - t.s)};
}

static struct output_text output_skip(struct output_text t, size_t n)
{
    return (struct output_text){t.s + n, t.n - n};
}

/* Letters, digits and what stands between them in names. */
size_t output_name_length(struct output_text t)
{
    size_t n = 0;
    while (n < t.n && n < CALL_NAME &&
           ((t.s[n] >= 'a' && t.s[n] <= 'z') || (t.s[n] >= 'A' && t.s[n] <= 'Z') ||
            (t.s[n] >= '0' && t.s[n] <= '9') || (t.s[n] && strchr("_-.:/", t.s[n]))))
        n++;
    return n;
}

bool output_is_name(const char *name)
{
    struct output_text t = {name, strlen(name)};
    return t.n && output_name_length(t) == t.n;
}

json_t *output_json(struct output_text t)
{
    static const struct jsonread_limits most = {
        .text = CALL_TEXT, .memory = CALL_MEMORY, .depth = OUTPUT_DEPTH};
    struct err e = {0};
    return jsonread_value(t.s, t.n, &most, "a call", &e);
}

int output_add_call(json_t *calls, const char *name, size_t n, json_t *arguments, const char *id)
{
    struct buf text = {0};
    struct json j = {.out = &text};
    bool whole = json_is_object(arguments) && n && output_name_length((struct output_text){name, n}) == n &&
                 json_array_size(calls) < OUTPUT_CALLS;
    if (whole)
        jsonread_write(&j, arguments);
    json_t *call = whole && !text.failed
                       ? json_pack("{s:s%,s:s%}", "name", name, n, "arguments", text.data, text.len)
                       : NULL;
    if (call && id && json_object_set_new(call, "id", json_string(id))) {
        json_decref(call);
        call = NULL;
    }
    json_decref(arguments);
    buf_free(&text);
    return call && !json_array_append_new(calls, call) ? 0 : -1;
}

/* ---- JSON ---- */

static const json_t *call_get(const json_t *o, const char *const *keys)
{
    const json_t *v = NULL;
    for (; *keys && !v; keys++)
        v = json_object_get(o, *keys);
    return v;
}

/* {"name": ..., "arguments": {...}} under the names that models use; also inside of "function". */
static int call_object(json_t *calls, const json_t *o, bool keyed)
{
    static const char *const names[] = {"name", "tool_name", "function", "tool", NULL};
    static const char *const values[] = {"arguments", "parameters", "args", "input", NULL};
    const json_t *inner = json_object_get(o, "function");
    if (json_is_object(inner))
        return call_object(calls, inner, false);
    const json_t *name = call_get(o, names), *value = call_get(o, values);
    if (keyed && json_object_size(o) == 1) {
        const char *key = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)o));
        return output_add_call(calls, key, strlen(key), json_incref(json_object_get(o, key)), NULL);
    }
    if (!json_is_string(name))
        return -1;
    json_t *arguments =
        json_is_string(value)
            ? output_json((struct output_text){json_string_value(value), json_string_length(value)})
        : value && !json_is_null(value) ? json_incref((json_t *)(uintptr_t)value)
                                        : json_object();
    return output_add_call(calls, json_string_value(name), json_string_length(name), arguments,
                           json_string_value(json_object_get(o, "id")));
}

static int call_value(json_t *calls, const json_t *v, bool keyed)
{
    if (!json_is_array(v))
        return call_object(calls, v, keyed);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (call_object(calls, json_array_get(v, i), keyed))
            return -1;
    return 0;
}

/* Without the second of braces that a model has doubled, as templates do: no object begins with an object. NULL where
 * there are none. */
static json_t *call_undouble(struct output_text t)
{
    char doubled[2 * OUTPUT_DEPTH];
    struct output_scan scan = {0};
    struct buf out = {0};
    bool any = false, failed = false;
    for (size_t i = 0, next; i < t.n && !failed; i++) {
        bool quoted = scan.quote, open = !quoted && t.s[i] == '{', close = !quoted && t.s[i] == '}';
        for (next = i + 1; next < t.n && output_is_white(t.s[next]);)
            next++;
        uint32_t depth = scan.depth;
        failed = depth == sizeof doubled || (close && !depth);
        output_scan(&scan, t.s[i]);
        if (failed)
            break;
        if (open)
            any |= doubled[depth] = next < t.n && t.s[next] == '{';
        else if (scan.depth > depth)
            doubled[depth] = false;
        if (!(open && doubled[depth]) && !(close && doubled[depth - 1]))
            buf_char(&out, t.s[i]);
    }
    json_t *v = any && !failed && !out.failed ? output_json((struct output_text){out.data, out.len}) : NULL;
    buf_free(&out);
    return v;
}

/* Several values in a row, with white space, commas or semicolons between them. */
static int call_json(json_t *calls, struct output_text t, bool keyed)
{
    if (output_starts(t, "```")) {
        const char *line = memchr(t.s, '\n', t.n);
        t = output_trim(line ? output_from(t, line) : t);
        if (t.n >= 3 && !memcmp(t.s + t.n - 3, "```", 3))
            t = output_trim((struct output_text){t.s, t.n - 3});
    }
    while (t.n) {
        struct output_scan scan = {0};
        size_t n = 0;
        if (*t.s != '{' && *t.s != '[')
            return -1;
        while (n < t.n && !output_scan(&scan, t.s[n]))
            n++;
        struct output_text one = {t.s, n < t.n ? n + 1 : 0};
        json_t *v = one.n ? output_json(one) : NULL;
        if (one.n && !v)
            v = call_undouble(one);
        int failed = !v || call_value(calls, v, keyed);
        json_decref(v);
        if (failed)
            return -1;
        t = output_trim(output_skip(t, n + 1));
        if (t.n && (*t.s == ';' || *t.s == ','))
            t = output_trim(output_skip(t, 1));
    }
    return 0;
}

/* ---- a name and JSON ---- */

int output_named_head(const struct output_wrap *w, struct output_text t, struct output_call_head *h)
{
    const char *mid = w->args ? w->args : w->mid, *at = output_find(t, mid);
    if (!at)
        return 0;
    struct output_text head = output_trim(output_until(t, at)), id = {0};
    h->n = (size_t)(at - t.s) + strlen(mid);
    if (w->id_before && (at = output_find(head, w->id_before))) {
        id = output_until(head, at);
        head = output_skip(output_from(head, at), strlen(w->id_before));
    } else if (w->id_after && (at = output_find(head, w->id_after))) {
        id = output_skip(output_from(head, at), strlen(w->id_after));
        head = output_until(head, at);
    }
    struct output_text name = {head.s, output_name_length(head)};
    if (w->numbered) {
        id = name;
        name = output_starts(name, "functions.") ? output_skip(name, 10) : name;
        at = memrchr(name.s, ':', name.n);
        name = at ? output_until(name, at) : name;
    } else if (!w->args && name.n != head.n)
        return -1;
    h->name = name;
    h->id = id;
    return 1;
}

static int call_named(json_t *calls, const struct output_wrap *w, struct output_text t)
{
    struct output_call_head h;
    if (output_named_head(w, t, &h) <= 0)
        return -1;
    t = output_trim(output_skip(t, h.n));
    if (t.n > 3 && !memcmp(t.s + t.n - 3, "```", 3))
        t = output_trim((struct output_text){t.s, t.n - 3});
    char *own = h.id.n ? mem_strndup(h.id.s, h.id.n) : NULL;
    json_t *arguments = t.n ? output_json(t) : *w->close ? json_object() : NULL;
    int failed = output_add_call(calls, h.name.s, h.name.n, arguments, own);
    mem_free(own);
    return failed;
}

/* ---- a name and tagged values ---- */

const json_t *output_function(const json_t *tools, size_t i)
{
    const json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function");
    return f ? f : tool;
}

const json_t *output_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = output_function(tools, i);
        const char *own = json_string_value(json_object_get(f, "name"));
        if (own && !strcmp(own, name))
            return f;
    }
    return NULL;
}

static bool kind_is(const json_t *type, const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
        [JSON_FALSE] = "boolean",   [JSON_NULL] = "null"};
    const char *name = json_string_value(type), *own = names[json_typeof(v)];
    return name && (!strcmp(name, own) || (!strcmp(name, "number") && json_is_integer(v)));
}

/* May a value of this schema be this one, as far as its type says? */
static bool kind_allows(const json_t *schema, const json_t *v)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    if (json_is_string(type))
        return kind_is(type, v);
    json_array_foreach(type, i, one) if (kind_is(one, v)) return true;
    return !json_is_array(type);
}

bool output_is_text(const json_t *schema)
{
    const json_t *values = json_object_get(schema, "enum"), *v;
    json_t *sample = json_string("");
    size_t i;
    bool text = kind_allows(schema, sample);
    json_array_foreach(values, i, v) text &= json_is_string(v);
    json_decref(sample);
    return text;
}

/* A value as it stands between its tags: a text where the schema wants one, and where nothing else fits. */
static json_t *call_tagged(struct output_text t, const json_t *schema)
{
    static const struct {
        const char *word;
        json_t *(*make)(void);
    } words[] = {{"True", json_true}, {"False", json_false}, {"None", json_null}};
    if (t.n && *t.s == '\n')
        t = output_skip(t, 1);
    if (t.n && t.s[t.n - 1] == '\n')
        t.n--;
    struct output_text word = output_trim(t);
    json_t *v = output_json(word);
    for (size_t i = 0; i < sizeof words / sizeof *words && !v; i++)
        if (word.n == strlen(words[i].word) && output_starts(word, words[i].word))
            v = words[i].make();
    if (v && !json_is_string(v) && kind_allows(schema, v))
        return v;
    json_decref(v);
    return json_stringn(t.s, t.n);
}

/* One key with its value; *t moves behind it. */
static int call_argument(json_t *to, const struct output_tags *g, const json_t *properties,
                         struct output_text *t)
{
    *t = output_skip(*t, strlen(g->key_open));
    const char *end = output_find(*t, g->key_close);
    if (!end)
        return -1;
    struct output_text key = output_until(*t, end), attribute = {end + strlen(g->key_close), 0};
    *t = output_skip(*t, key.n + strlen(g->key_close));
    if (g->value_open) {
        if (!(end = output_find(*t, g->value_open)))
            return -1;
        attribute = output_until(*t, end);
        *t = output_skip(*t, attribute.n + strlen(g->value_open));
    }
    if (!(end = output_find(*t, g->value_close)))
        return -1;
    key = output_trim(key);
    char *name = key.n && !memchr(key.s, 0, key.n) ? mem_strndup(key.s, key.n) : NULL;
    struct output_text value = output_until(*t, end);
    json_t *v = g->text && output_find(attribute, g->text)
                    ? json_stringn(value.s, value.n)
                    : call_tagged(value, name && !g->text ? json_object_get(properties, name) : NULL);
    int failed = !name || json_object_set(to, name, v);
    json_decref(v);
    mem_free(name);
    *t = output_trim(output_skip(output_from(*t, end), strlen(g->value_close)));
    return failed ? -1 : 0;
}

/* One call; *t moves behind it. */
static int call_one_tagged(json_t *calls, const struct output_tags *g, const json_t *tools,
                           struct output_text *t)
{
    if (g->name_open) {
        if (!output_starts(*t, g->name_open))
            return -1;
        *t = output_skip(*t, strlen(g->name_open));
    }
    struct output_text name = {t->s, output_name_length(*t)};
    *t = output_skip(*t, name.n);
    if (g->name_close) {
        if (!output_starts(*t, g->name_close))
            return -1;
        *t = output_skip(*t, strlen(g->name_close));
    }
    const char *rest = g->name_rest ? output_find(*t, g->name_rest) : NULL;
    if (g->name_rest && !rest)
        return -1;
    *t = output_trim(rest ? output_skip(output_from(*t, rest), strlen(g->name_rest)) : *t);
    char *own = mem_strndup(name.s, name.n);
    json_t *arguments = json_object();
    const json_t *properties =
        own ? json_object_get(json_object_get(output_tool(tools, own), "parameters"), "properties") : NULL;
    int failed = !own || !arguments;
    while (!failed && output_starts(*t, g->key_open))
        failed = call_argument(arguments, g, properties, t);
    failed = failed || (g->end && !output_starts(*t, g->end));
    if (!failed && g->end)
        *t = output_trim(output_skip(*t, strlen(g->end)));
    if (failed)
        json_decref(arguments);
    else
        failed = output_add_call(calls, name.s, name.n, arguments, NULL);
    mem_free(own);
    return failed ? -1 : 0;
}

static int call_tags(json_t *calls, const struct output_wrap *w, const json_t *tools, struct output_text t)
{
    do {
        if (call_one_tagged(calls, w->tags, tools, &t))
            return -1;
    } while (t.n && w->tags->name_open);
    return t.n ? -1 : 0;
}

/* ---- any of them ---- */

json_t *output_calls(const struct output_wrap *w, const json_t *tools, struct output_text body)
{
    json_t *calls = json_array(), *call;
    size_t i;
    int failed = -1;
    body = output_trim(body);
    switch (w->shape) {
    case SHAPE_JSON:
    case SHAPE_KEYED:
        failed = call_json(calls, body, w->shape == SHAPE_KEYED);
        break;
    case SHAPE_NAMED:
        failed = call_named(calls, w, body);
        break;
    case SHAPE_TAGS:
        failed = call_tags(calls, w, tools, body);
        break;
    case SHAPE_CODE:
        failed = output_code(calls, body);
        break;
    }
    if (w->known)
        json_array_foreach(calls, i, call) failed |=
            !output_tool(tools, json_string_value(json_object_get(call, "name")));
    if (!failed && json_array_size(calls))
        return calls;
    json_decref(calls);
    return NULL;
}
