/* The typed getters over the validated table of keys. */
#include "format/gguf.h"

#include "base/log.h"

#include <inttypes.h>
#include <string.h>

bool gguf_is_integer(enum gguf_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

static bool gguf_is_float(enum gguf_type t)
{
    return t == GGUF_F32 || t == GGUF_F64;
}

static bool gguf_is_class(enum gguf_type item, enum gguf_type class)
{
    return class == GGUF_I64   ? gguf_is_integer(item)
           : class == GGUF_F32 ? gguf_is_float(item)
                               : item == class;
}

static int gguf_wrong_type(const struct gguf_key *k, const char *wanted, struct err *e)
{
    return err_set(e, ERR_DATA, "key '%s' is %s%s; %s was expected", log_safe(k->name),
                   k->type == GGUF_ARRAY ? "an array of " : "of type ", gguf_type_name(k->item), wanted);
}

/* Unsigned ones keep their top half; signed ones come out in two's complement, *minus says which. */
static uint64_t gguf_bits(const struct gguf_key *k, uint64_t i, bool *minus)
{
    int64_t s = 0;
    uint64_t u = 0;
    const uint8_t *p = k->data;
    switch (k->item) {
    case GGUF_U8:
    case GGUF_BOOL:
        return p[i];
    case GGUF_U16:
        return memcpy(&u, p + 2 * i, 2), u;
    case GGUF_U32:
        return memcpy(&u, p + 4 * i, 4), u;
    case GGUF_U64:
        return memcpy(&u, p + 8 * i, 8), u;
    case GGUF_I8:
        s = (int8_t)p[i];
        break;
    case GGUF_I16: {
        int16_t v;
        memcpy(&v, p + 2 * i, 2);
        s = v;
        break;
    }
    case GGUF_I32: {
        int32_t v;
        memcpy(&v, p + 4 * i, 4);
        s = v;
        break;
    }
    case GGUF_I64:
        memcpy(&s, p + 8 * i, 8);
        break;
    default:
        return 0;
    }
    *minus = s < 0;
    return (uint64_t)s;
}

int64_t gguf_item_i64(const struct gguf_key *k, uint64_t i)
{
    bool minus = false;
    uint64_t u = gguf_bits(k, i, &minus);
    return !minus && u > INT64_MAX ? INT64_MAX : (int64_t)u;
}

double gguf_item_f64(const struct gguf_key *k, uint64_t i)
{
    if (k->item == GGUF_F32) {
        float f;
        memcpy(&f, k->data + 4 * i, 4);
        return f;
    }
    if (k->item == GGUF_F64) {
        double d;
        memcpy(&d, k->data + 8 * i, 8);
        return d;
    }
    bool minus = false;
    uint64_t u = gguf_bits(k, i, &minus);
    return minus ? (double)(int64_t)u : (double)u;
}

bool gguf_next_str(const struct gguf_key *k, size_t *at, struct gguf_str *out)
{
    if (k->item != GGUF_STRING || *at >= k->bytes)
        return false;
    uint64_t n;
    memcpy(&n, k->data + *at, sizeof n);
    *out = (struct gguf_str){.s = (const char *)k->data + *at + sizeof n, .n = n};
    *at += sizeof n + n;
    return true;
}

int gguf_get_u64(const struct gguf *g, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                 struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k)
        return 0;
    if (!gguf_is_integer(k->type))
        return gguf_wrong_type(k, "an integer", e);
    bool minus = false;
    uint64_t v = gguf_bits(k, 0, &minus);
    if (minus)
        return err_set(e, ERR_DATA, "key '%s' is %" PRId64 "; %" PRIu64 " to %" PRIu64 " was expected", name,
                       (int64_t)v, least, most);
    if (v < least || v > most)
        return err_set(e, ERR_DATA, "key '%s' is %" PRIu64 "; %" PRIu64 " to %" PRIu64 " was expected", name,
                       v, least, most);
    *out = v;
    return 1;
}

int gguf_get_f64(const struct gguf *g, const char *name, double *out, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k)
        return 0;
    if (!gguf_is_float(k->type) && !gguf_is_integer(k->type))
        return gguf_wrong_type(k, "a number", e);
    double v = gguf_item_f64(k, 0);
    if (!(v - v == 0))
        return err_set(e, ERR_DATA, "key '%s' is %g; a finite number was expected", name, v);
    *out = v;
    return 1;
}

int gguf_get_bool(const struct gguf *g, const char *name, bool *out, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k)
        return 0;
    if (k->type != GGUF_BOOL)
        return gguf_wrong_type(k, "a boolean", e);
    *out = k->data[0] != 0;
    return 1;
}

int gguf_get_str(const struct gguf *g, const char *name, struct gguf_str *out, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k)
        return 0;
    if (k->type != GGUF_STRING)
        return gguf_wrong_type(k, "a string", e);
    size_t at = 0;
    gguf_next_str(k, &at, out);
    return 1;
}

int gguf_get_array(const struct gguf *g, const char *name, enum gguf_type item, uint64_t count,
                   const struct gguf_key **out, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k)
        return 0;
    if (k->type != GGUF_ARRAY || !gguf_is_class(k->item, item)) {
        const char *wanted = item == GGUF_STRING ? "an array of strings"
                             : item == GGUF_F32  ? "an array of floats"
                             : item == GGUF_BOOL ? "an array of booleans"
                                                 : "an array of integers";
        return gguf_wrong_type(k, wanted, e);
    }
    if (count && k->count != count)
        return err_set(e, ERR_DATA, "key '%s' has %" PRIu64 " items; %" PRIu64 " were expected", name,
                       k->count, count);
    *out = k;
    return 1;
}
