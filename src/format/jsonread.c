#include "format/jsonread.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

const struct jsonread_limits jsonread_config = {
    .text = 4 << 20, .memory = 32 << 20, .depth = JSONREAD_DEPTH, .huge = true, .words = true};

/* What jansson may still allocate on this thread while it reads; outside of that there is no limit. */
static _Thread_local size_t jsonread_left;
static _Thread_local bool jsonread_limited;
static _Thread_local bool jsonread_spent;  /* asked for more than that */
static _Thread_local bool jsonread_failed; /* out of memory: jansson does not always report it */

/* jansson reads beyond its buffer where the memory for a string is refused: it gets what it asks for, and the text ends
 * for it at the next part (jsonread_feed). */
static void *jsonread_alloc(size_t n)
{
    jsonread_spent |= jsonread_limited && n > jsonread_left;
    void *p = mem_alloc(n, 1);
    jsonread_failed |= !p;
    if (p && jsonread_limited)
        jsonread_left -= size_min(jsonread_left, malloc_usable_size(p));
    return p;
}

static void jsonread_free(void *p)
{
    if (p && jsonread_limited)
        jsonread_left += malloc_usable_size(p);
    mem_free(p);
}

static void jsonread_setup(void)
{
    json_set_alloc_funcs(jsonread_alloc, jsonread_free);
}

/* Bytes that jansson takes: for an object with its table, for an array, for a string or a key with its place in a table
 * that is at most half full, for any value with its place in an array. And while it reads, a string is there twice
 * more, in a buffer that doubles. */
enum {
    JSONREAD_OBJECT = 256,
    JSONREAD_ARRAY = 160,
    JSONREAD_STRING = 192,
    JSONREAD_VALUE = 64,
    JSONREAD_COPIES = 2,
    JSONREAD_BASE = 4096
};

/* The place behind a string that begins at i. */
static size_t jsonread_skip_string(const char *s, size_t n, size_t i)
{
    for (i++; i < n && s[i] != '"'; i++)
        i += s[i] == '\\';
    return i < n ? i : n;
}

void jsonread_measure(const char *s, size_t n, struct jsonread_size *out)
{
    size_t longest = 0, memory = JSONREAD_BASE;
    int depth = 0;
    bool opened = false; /* the last character that counts was a bracket that opens */
    *out = (struct jsonread_size){.values = 1};
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
            continue;
        bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
        out->values += c == ',' || (opened && !closes);
        memory += c == '{' ? JSONREAD_OBJECT : c == '[' ? JSONREAD_ARRAY : 0;
        depth += opens - closes;
        out->depth = depth > out->depth ? depth : out->depth;
        opened = opens;
        if (c == '"') {
            size_t end = jsonread_skip_string(s, n, i), length = end - i;
            memory += JSONREAD_STRING + length;
            longest = length > longest ? length : longest;
            i = end;
        }
    }
    out->memory = memory + JSONREAD_VALUE * out->values + JSONREAD_COPIES * longest;
}

/* Python writes these three, which are not JSON. The error's position is after the word, or after its
 * sign. */
static const char *jsonread_not_finite(const char *text, size_t n, const json_error_t *at)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i]), back = i ? len : 1, end = (size_t)at->position;
        if (at->position >= 0 && end >= back && end - back + len <= n &&
            !memcmp(text + end - back, words[i], len))
            return words[i];
    }
    return NULL;
}

struct jsonread_source {
    const char *text;
    size_t left;
};

/* The next bytes of the text, for jansson; 0 = it ends. */
static size_t jsonread_feed(void *to, size_t room, void *source)
{
    enum { PART = 256 }; /* bytes of a part: the most that is read after the memory is spent */
    struct jsonread_source *from = source;
    size_t n = jsonread_spent ? 0 : size_min(size_min(room, PART), from->left);
    memcpy(to, from->text, n);
    from->text += n;
    from->left -= n;
    return n;
}

static json_t *jsonread_parse(const char *text, size_t n, const struct jsonread_limits *most, size_t flags,
                              json_error_t *at)
{
    struct jsonread_source source = {text, n};
    jsonread_left = most->memory;
    jsonread_limited = true;
    jsonread_spent = jsonread_failed = false;
    json_t *v = json_load_callback(jsonread_feed, &source, flags, at);
    jsonread_limited = false;
    return v;
}

/* The text with null, and blanks behind it, in place of these words. For the caller to free; NULL: out of memory. */
static char *jsonread_without_words(const char *text, size_t n)
{
    static const char *const words[] = {"-Infinity", "Infinity"};
    char *copy = mem_alloc(n + 1, 1);
    if (copy)
        memcpy(copy, text, n);
    for (size_t i = 0; copy && i < n; i++) {
        if (copy[i] == '"')
            i = jsonread_skip_string(copy, n, i);
        for (size_t w = 0; w < sizeof words / sizeof *words && i < n; w++) {
            size_t len = strlen(words[w]);
            if (n - i < len || memcmp(copy + i, words[w], len) != 0)
                continue;
            memset(copy + i, ' ', len);
            memcpy(copy + i, "null", 4);
        }
    }
    return copy;
}

json_t *jsonread_value(const char *text, size_t n, const struct jsonread_limits *most, const char *what,
                       struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, jsonread_setup);
    what = log_safe(what);
    if (n > most->text) {
        err_set(e, ERR_DATA, "%s is %zu bytes of JSON; at most %zu are read", what, n, most->text);
        return NULL;
    }
    struct jsonread_size size;
    jsonread_measure(text, n, &size);
    if (size.depth > most->depth) {
        err_set(e, ERR_DATA, "%s nests more than %d levels deep", what, most->depth);
        return NULL;
    }
    json_error_t at;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | (most->nul ? JSON_ALLOW_NUL : 0);
    json_t *v = jsonread_parse(text, n, most, flags, &at);
    if (!v && most->huge && json_error_code(&at) == json_error_numeric_overflow)
        v = jsonread_parse(text, n, most, flags | JSON_DECODE_INT_AS_REAL, &at);
    if (!v && most->words && !jsonread_spent && jsonread_not_finite(text, n, &at)) {
        char *copy = jsonread_without_words(text, n);
        v = copy ? jsonread_parse(copy, n, most, flags, &at) : NULL;
        mem_free(copy);
    }
    if (v && !jsonread_spent)
        return v;
    json_decref(v);
    const char *odd = jsonread_not_finite(text, n, &at);
    if (jsonread_spent)
        err_set(e, ERR_RESOURCE, "%s needs more than the %zu MiB that it may take to read", what,
                most->memory >> 20);
    else if (jsonread_failed)
        err_memory(e, what, n);
    else if (odd)
        err_set(e, ERR_DATA, "%s, line %d: %s is not JSON; write a finite number or null there", what,
                at.line, odd);
    else
        err_set(e, ERR_DATA, "%s, line %d, column %d: %s", what, at.line, at.column,
                strstr(at.text, "JSON_ALLOW_NUL") ? "the character U+0000 cannot stand in a text here"
                                                  : log_safe(at.text));
    return NULL;
}

json_t *jsonread_object(const char *text, size_t n, const struct jsonread_limits *most, const char *what,
                        struct err *e)
{
    json_t *v = jsonread_value(text, n, most, what, e);
    if (v && !json_is_object(v)) {
        err_set(e, ERR_DATA, "%s is not a JSON object", log_safe(what));
        json_decref(v);
        return NULL;
    }
    return v;
}

json_t *jsonread_file(const char *path, const struct jsonread_limits *most, struct err *e)
{
    struct map m;
    if (map_open(&m, path, e) < 0)
        return NULL;
    json_t *v = jsonread_object(m.data ? (const char *)m.data : "", m.size, most, path, e);
    map_close(&m);
    return v;
}

static void jsonread_write_object(struct json *out, const json_t *v)
{
    const char *key;
    json_t *item;
    json_begin(out, '{');
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        json_key(out, key);
        jsonread_write(out, item);
    }
    json_end(out, '}');
}

void jsonread_write(struct json *out, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        jsonread_write_object(out, v);
        break;
    case JSON_ARRAY:
        json_begin(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++)
            jsonread_write(out, json_array_get(v, i));
        json_end(out, ']');
        break;
    case JSON_STRING:
        json_strn(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        json_int(out, json_integer_value(v));
        break;
    case JSON_REAL:
        json_num(out, json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        json_bool(out, json_is_true(v));
        break;
    case JSON_NULL:
        json_nil(out);
        break;
    }
}
