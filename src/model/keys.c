/* Typed getters over both containers. */
#include "model/keys.h"

#include "base/log.h"
#include "format/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *gguf_name(const struct keys *k, const char *key, char out[160])
{
    if (key[0] == '.')
        snprintf(out, 160, "%s", key + 1);
    else
        snprintf(out, 160, "%s.%s", k->prefix, key);
    return out;
}

json_t *keys_json(const struct keys *k, const char *hf, char name[64])
{
    for (const char *at = hf; at && *at; at += *at == '|') {
        size_t n = strcspn(at, "|");
        snprintf(name, 64, "%.*s", (int)n, at);
        json_t *v = json_object_get(k->config, name);
        if (v && !json_is_null(v))
            return v;
        at += n;
    }
    return NULL;
}

/* What a value looks like, for a message. */
static const char *shown(json_t *v, char out[64])
{
    size_t n = json_dumpb(v, out, 60, JSON_ENCODE_ANY | JSON_COMPACT);
    out[n < 60 ? n : 60] = 0;
    return log_safe(out);
}

static int json_u32(json_t *v, const char *name, const uint32_t range[2], uint32_t *out, struct err *e)
{
    double d = json_is_number(v) ? json_number_value(v) : -1;
    if (!json_is_number(v) || d != floor(d) || d < range[0] || d > range[1]) {
        char text[64];
        return err_set(e, ERR_DATA, "config.json: %s is %s; a whole number from %u to %u is expected", name,
                       shown(v, text), range[0], range[1]);
    }
    *out = (uint32_t)d;
    return 1;
}

/* Of an array the number that its items are, but for zeros: layers without what it counts. 0: they differ. */
static uint64_t one_of_items(const struct gguf_key *a)
{
    int64_t one = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        const int64_t v = gguf_item_i64(a, i);
        if (v < 0 || (v && one && v != one))
            return 0;
        one = v ? v : one;
    }
    return (uint64_t)one;
}

int keys_u32(const struct keys *k, const char *gguf, const char *hf, const uint32_t range[2], uint32_t *out,
             struct err *e)
{
    if (k->gguf) {
        char name[160];
        uint64_t v;
        if (!gguf)
            return 0;
        const struct gguf_key *a = gguf_find(k->gguf, gguf_name(k, gguf, name));
        if (a && a->type == GGUF_ARRAY && a->item != GGUF_STRING && a->item != GGUF_ARRAY) {
            v = one_of_items(a);
            if (v && v >= range[0] && v <= range[1]) {
                *out = (uint32_t)v;
                return 1;
            }
        }
        int got = gguf_get_u64(k->gguf, gguf_name(k, gguf, name), range[0], range[1], &v, e);
        if (got == 1)
            *out = (uint32_t)v;
        return got;
    }
    char name[64];
    json_t *v = keys_json(k, hf, name), *same = v;
    size_t n = json_array_size(v);
    for (size_t i = 0; i < n && same; i++) /* a number for each layer, all the same */
        same = json_equal(json_array_get(v, i), json_array_get(v, 0)) ? json_array_get(v, 0) : NULL;
    return v ? json_u32(same ? same : v, name, range, out, e) : 0;
}

int keys_f32(const struct keys *k, const char *gguf, const char *hf, const double range[2], float *out,
             struct err *e)
{
    double d;
    char name[160] = "";
    if (k->gguf) {
        int got = gguf ? gguf_get_f64(k->gguf, gguf_name(k, gguf, name), &d, e) : 0;
        if (got != 1)
            return got;
    } else {
        json_t *v = keys_json(k, hf, name);
        if (!v)
            return 0;
        char text[64];
        if (!json_is_number(v))
            return err_set(e, ERR_DATA, "config.json: %s is %s; a number is expected", name, shown(v, text));
        d = json_number_value(v);
    }
    if (!(d >= range[0] && d <= range[1]))
        return err_set(e, ERR_DATA, "%s is %g; a number from %g to %g is expected", log_safe(name), d,
                       range[0], range[1]);
    *out = (float)d;
    return 1;
}

int keys_bool(const struct keys *k, const char *gguf, const char *hf, bool *out, struct err *e)
{
    if (k->gguf) {
        char name[160];
        return gguf ? gguf_get_bool(k->gguf, gguf_name(k, gguf, name), out, e) : 0;
    }
    char name[64], text[64];
    json_t *v = keys_json(k, hf, name);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return err_set(e, ERR_DATA, "config.json: %s is %s; true or false is expected", name, shown(v, text));
    *out = json_is_true(v);
    return 1;
}

int keys_str(const struct keys *k, const char *gguf, const char *hf, char *out, size_t size, struct err *e)
{
    if (k->gguf) {
        char name[160];
        struct gguf_str s;
        int got = gguf ? gguf_get_str(k->gguf, gguf_name(k, gguf, name), &s, e) : 0;
        if (got == 1)
            snprintf(out, size, "%.*s", (int)(s.n < size ? s.n : size - 1), s.s);
        return got;
    }
    char name[64], text[64];
    json_t *v = keys_json(k, hf, name);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return err_set(e, ERR_DATA, "config.json: %s is %s; a string is expected", name, shown(v, text));
    snprintf(out, size, "%s", json_string_value(v));
    return 1;
}

static int gguf_each(const struct keys *k, const char *name, const uint32_t range[2], uint32_t *out,
                     uint32_t n, struct err *e)
{
    const struct gguf_key *a;
    if (gguf_get_array(k->gguf, name, GGUF_I64, 0, &a, e) != 1)
        return -1;
    if (a->count < n)
        return err_set(e, ERR_DATA, "%s has %llu numbers; one for each of %u layers is expected",
                       log_safe(name), (unsigned long long)a->count, n);
    for (uint32_t i = 0; i < n; i++) {
        int64_t v = gguf_item_i64(a, i);
        if (v < (int64_t)range[0] || v > (int64_t)range[1])
            return err_set(e, ERR_DATA, "%s[%u] is %lld; a whole number from %u to %u is expected",
                           log_safe(name), i, (long long)v, range[0], range[1]);
        out[i] = (uint32_t)v;
    }
    return 1;
}

uint32_t keys_items(const struct keys *k, const char *gguf, const char *hf)
{
    char name[160];
    uint64_t n = 1;
    if (k->gguf) {
        const struct gguf_key *key = gguf ? gguf_find(k->gguf, gguf_name(k, gguf, name)) : NULL;
        n = key && key->type == GGUF_ARRAY ? key->count : 1;
    } else {
        json_t *v = keys_json(k, hf, name);
        n = json_is_array(v) ? json_array_size(v) : 1;
    }
    return n < 65536 ? (uint32_t)n : 65536;
}

int keys_each(const struct keys *k, const char *gguf, const char *hf, const uint32_t range[2], uint32_t *out,
              uint32_t n, struct err *e)
{
    uint32_t one;
    char name[160];
    if (k->gguf && gguf) {
        const struct gguf_key *key = gguf_find(k->gguf, gguf_name(k, gguf, name));
        if (key && key->type == GGUF_ARRAY)
            return gguf_each(k, name, range, out, n, e);
    } else if (!k->gguf) {
        json_t *v = keys_json(k, hf, name);
        if (json_is_array(v)) {
            if (json_array_size(v) < n)
                return err_set(e, ERR_DATA,
                               "config.json: %s has %zu numbers; one for each of %u layers is expected", name,
                               json_array_size(v), n);
            for (uint32_t i = 0; i < n; i++)
                if (json_u32(json_array_get(v, i), name, range, &out[i], e) < 0)
                    return -1;
            return 1;
        }
    }
    int got = keys_u32(k, gguf, hf, range, &one, e);
    for (uint32_t i = 0; got == 1 && i < n; i++)
        out[i] = one;
    return got;
}

int keys_each_f32(const struct keys *k, const char *gguf, const char *hf, const double range[2], float *out,
                  uint32_t n, struct err *e)
{
    char name[160] = "";
    const struct gguf_key *items = k->gguf && gguf ? gguf_find(k->gguf, gguf_name(k, gguf, name)) : NULL;
    json_t *list = k->gguf ? NULL : keys_json(k, hf, name);
    bool array = items ? items->type == GGUF_ARRAY : json_is_array(list);
    if (!array) {
        int got = keys_f32(k, gguf, hf, range, out, e);
        for (uint32_t i = 1; got == 1 && i < n; i++)
            out[i] = out[0];
        return got;
    }
    if (items && gguf_get_array(k->gguf, name, GGUF_F32, 0, &items, e) < 0)
        return -1;
    uint64_t have = items ? items->count : json_array_size(list);
    if (have < n)
        return err_set(e, ERR_DATA, "%s has %llu numbers; one for each of %u layers is expected",
                       log_safe(name), (unsigned long long)have, n);
    for (uint32_t i = 0; i < n; i++) {
        json_t *one = json_array_get(list, i);
        double d = items ? gguf_item_f64(items, i) : json_is_number(one) ? json_number_value(one) : NAN;
        if (!(d >= range[0] && d <= range[1]))
            return err_set(e, ERR_DATA, "%s has a value for layer %u that is no number from %g to %g",
                           log_safe(name), i, range[0], range[1]);
        out[i] = (float)d;
    }
    return 1;
}
