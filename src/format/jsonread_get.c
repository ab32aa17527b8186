/* Typed getters over jansson's trees. See jsonread.h. */
#include "format/jsonread.h"

#include "base/buf.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { JSONREAD_KEY = 64 }; /* bytes of a key that the program chose */

/* ---- sentences ---- */

static const char *const names[] = {"true or false", "a whole number", "a number",
                                    "a string",      "an array",       "an object"};

int jsonread_wrong(struct err *e, const char *file, const char *path, const char *is, unsigned types)
{
    char expected[96] = "";
    size_t at = 0, rest = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        rest += types >> i & 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (types >> i & 1) {
            rest--;
            int n = snprintf(expected + at, sizeof expected - at, "%s%s",
                             !at    ? ""
                             : rest ? ", "
                                    : " or ",
                             names[i]);
            at += n > 0 ? (size_t)n : 0;
        }
    return err_set(e, ERR_DATA, "%s: %s is %s, %s was expected", file, path, is, expected);
}

int jsonread_out_of_range(struct err *e, const char *file, const char *path, double is, const double range[2])
{
    return err_set(e, ERR_DATA, "%s: %s is %.15g, a number from %.15g to %.15g was expected", file, path, is,
                   range[0], range[1]);
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

static void back_to(struct buf *out, size_t n)
{
    out->len = n;
    out->failed = false;
}

/* Finds a container below `at`: its path in `out`, true if found. Scalars have no place of their own, since
 * jansson shares some of them. */
static bool find(const json_t *at, const json_t *what, struct buf *out)
{
    size_t before = out->len, i;
    const char *key;
    json_t *v;
    if (at == what)
        return true;
    json_object_foreach((json_t *)(uintptr_t)at, key, v)
    {
        buf_printf(out, "%s%s", before ? "." : "", log_safe(key));
        if (find(v, what, out))
            return true;
        back_to(out, before);
    }
    json_array_foreach((json_t *)(uintptr_t)at, i, v)
    {
        buf_printf(out, "[%zu]", i);
        if (find(v, what, out))
            return true;
        back_to(out, before);
    }
    return false;
}

/* The path of a member (key) or an item of a container; neither: of the container itself. */
static const char *path_of(const struct jsonread *r, const json_t *in, const char *key, size_t item,
                           struct buf *out)
{
    out->max = 400;
    if (r->root)
        find(r->root, in, out);
    if (key)
        buf_printf(out, "%s%s", out->len ? "." : "", log_safe(key));
    else if (item != SIZE_MAX)
        buf_printf(out, "[%zu]", item);
    return out->len ? log_safe_n(out->data, out->len) : "the value";
}

static void wrong(const struct jsonread *r, const json_t *in, const char *key, size_t item, const json_t *v,
                  unsigned types)
{
    struct buf path = {0};
    jsonread_wrong(r->e, r->file, path_of(r, in, key, item, &path), v ? type_name(v) : "missing", types);
    buf_free(&path);
}

/* ---- types ---- */

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return JSONREAD_IS_OBJECT;
    case JSON_ARRAY:
        return JSONREAD_IS_ARRAY;
    case JSON_STRING:
        return JSONREAD_IS_STRING;
    case JSON_INTEGER:
        return JSONREAD_IS_INT | JSONREAD_IS_NUMBER;
    case JSON_REAL:
        return JSONREAD_IS_NUMBER | (floor(json_real_value(v)) == json_real_value(v) ? JSONREAD_IS_INT : 0);
    case JSON_TRUE:
    case JSON_FALSE:
        return JSONREAD_IS_BOOL;
    default:
        return 0;
    }
}

json_t *jsonread_member(const struct jsonread *r, const json_t *o, const char *key, unsigned types)
{
    if (!o)
        return NULL;
    if (!json_is_object(o)) {
        wrong(r, o, NULL, SIZE_MAX, o, JSONREAD_IS_OBJECT);
        return NULL;
    }
    json_t *v = json_object_get(o, key);
    if (!v || type_of(v) & types)
        return v;
    wrong(r, o, key, SIZE_MAX, v, types);
    return NULL;
}

/* The key without the '?' of one that may be null; *null says which it is. */
static const char *bare_key(const char *key, char out[JSONREAD_KEY], bool *null)
{
    size_t n = strlen(key);
    *null = n && key[n - 1] == '?';
    snprintf(out, JSONREAD_KEY, "%.*s", (int)(n - *null), key);
    return out;
}

json_t *jsonread_get(const struct jsonread *r, const json_t *o, const char *key, unsigned types)
{
    char name[JSONREAD_KEY];
    bool null;
    bare_key(key, name, &null);
    return null && json_is_null(json_object_get(o, name)) ? NULL : jsonread_member(r, o, name, types);
}

json_t *jsonread_item(const struct jsonread *r, const json_t *array, size_t i, unsigned types)
{
    json_t *v = json_array_get(array, i);
    if (v && type_of(v) & types)
        return v;
    wrong(r, array, NULL, i, v, types);
    return NULL;
}

const char *jsonread_str(const struct jsonread *r, const json_t *o, const char *key, const char *otherwise)
{
    const json_t *v = jsonread_get(r, o, key, JSONREAD_IS_STRING);
    return v ? json_string_value(v) : otherwise;
}

bool jsonread_bool(const struct jsonread *r, const json_t *o, const char *key, bool otherwise)
{
    const json_t *v = jsonread_get(r, o, key, JSONREAD_IS_BOOL);
    return v ? json_is_true(v) : otherwise;
}

bool jsonread_whole(const json_t *v, const int64_t range[2], int64_t *out)
{
    if (json_is_integer(v))
        *out = json_integer_value(v);
    else if (json_is_real(v) && fabs(json_real_value(v)) < 9e15 && type_of(v) & JSONREAD_IS_INT)
        *out = (int64_t)json_real_value(v);
    else
        return false;
    return *out >= range[0] && *out <= range[1];
}

static void out_of_range(const struct jsonread *r, const json_t *o, const char *key, double is,
                         const double range[2])
{
    struct buf path = {0};
    char name[JSONREAD_KEY];
    bool null;
    key = bare_key(key, name, &null);
    jsonread_out_of_range(r->e, r->file, path_of(r, o, key, SIZE_MAX, &path), is, range);
    buf_free(&path);
}

double jsonread_number(const struct jsonread *r, const json_t *o, const char *key, const double range[2],
                       double otherwise)
{
    const json_t *v = jsonread_get(r, o, key, JSONREAD_IS_NUMBER);
    double d = json_number_value(v);
    if (!v)
        return otherwise;
    if (d >= range[0] && d <= range[1])
        return d;
    out_of_range(r, o, key, d, range);
    return otherwise;
}
