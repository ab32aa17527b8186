#include "format/safetensors.h"

#include "base/cursor.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "base/size.h"
#include "format/jsonread.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAFETENSORS_MOST = 65536, SAFETENSORS_RANK = 8 };

static const struct jsonread_limits safetensors_limits = {.text = 32 << 20, .memory = 48 << 20, .depth = 8};

static const struct {
    const char *name;
    enum dtype type;
} safetensors_types[] = {
    {"F64", DTYPE_F64},   {"F32", DTYPE_F32},         {"F16", DTYPE_F16},         {"BF16", DTYPE_BF16},
    {"I64", DTYPE_I64},   {"I32", DTYPE_I32},         {"I16", DTYPE_I16},         {"I8", DTYPE_I8},
    {"U64", DTYPE_U64},   {"U32", DTYPE_U32},         {"U16", DTYPE_U16},         {"U8", DTYPE_U8},
    {"BOOL", DTYPE_BOOL}, {"F8_E4M3", DTYPE_F8_E4M3}, {"F8_E5M2", DTYPE_F8_E5M2},
};

static int safetensors_type(struct tensor *t, const json_t *entry, struct err *e)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return err_set(e, ERR_DATA, "tensor '%s' has no dtype", log_safe(t->name));
    for (size_t i = 0; i < sizeof safetensors_types / sizeof *safetensors_types; i++)
        if (!strcmp(name, safetensors_types[i].name)) {
            t->type = safetensors_types[i].type;
            return 0;
        }
    return err_set(e, ERR_DATA, "tensor '%s' has dtype '%s', which is none that quern knows",
                   log_safe(t->name), log_safe(name));
}

/* The file's shape is outermost first, ours innermost first. Dimensions beyond four (kernels of image
 * encoders have five) are folded into the outermost: the layout of the bytes is the same. */
static int safetensors_shape(struct tensor *t, const json_t *entry, struct err *e)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape))
        return err_set(e, ERR_DATA, "tensor '%s' has no shape", log_safe(t->name));
    if (rank > SAFETENSORS_RANK)
        return err_set(e, ERR_DATA, "tensor '%s' has %zu dimensions; at most %d are allowed",
                       log_safe(t->name), rank, SAFETENSORS_RANK);
    t->dims = (uint32_t)size_min(rank, 4);
    t->values = 1;
    for (size_t d = 0; d < 4; d++)
        t->shape[d] = 1;
    for (size_t d = 0; d < rank; d++) {
        const json_t *n = json_array_get(shape, rank - 1 - d);
        uint64_t v = json_is_integer(n) ? (uint64_t)json_integer_value(n) : UINT64_MAX;
        if (v > INT64_MAX)
            return err_set(e, ERR_DATA, "tensor '%s': a dimension is not a whole number from 0 up",
                           log_safe(t->name));
        uint64_t *place = &t->shape[size_min(d, 3)];
        if (!size_mul(*place, v, place) || !size_mul(t->values, v, &t->values) || t->values > INT64_MAX)
            return err_set(e, ERR_DATA, "tensor '%s': the product of its dimensions is too large",
                           log_safe(t->name));
    }
    return 0;
}

static int safetensors_range(struct tensor *t, const json_t *entry, const uint8_t *data, size_t room,
                             struct err *e)
{
    const json_t *range = json_object_get(entry, "data_offsets");
    const json_t *b = json_array_get(range, 0), *end = json_array_get(range, 1);
    const char *name = log_safe(t->name);
    if (json_array_size(range) != 2 || !json_is_integer(b) || !json_is_integer(end))
        return err_set(e, ERR_DATA, "tensor '%s': data_offsets is not a pair of whole numbers", name);
    json_int_t from = json_integer_value(b), to = json_integer_value(end);
    if (from < 0 || to < from)
        return err_set(e, ERR_DATA, "tensor '%s': data_offsets %lld to %lld make no range", name,
                       (long long)from, (long long)to);
    if ((uint64_t)to > room)
        return err_set(
            e, ERR_DATA,
            "tensor '%s' (bytes %lld to %lld) goes past the end of the file, which has %zu bytes of data: "
            "is it cut short?",
            name, (long long)from, (long long)to, room);
    const struct dtype_info *type = dtype_get(t->type);
    if (!size_mul(t->values, type->block_bytes, &t->bytes) || t->bytes != (uint64_t)(to - from))
        return err_set(e, ERR_DATA,
                       "tensor '%s': its range has %lld bytes, and %" PRIu64 " values of %s take %" PRIu64
                       " each",
                       name, (long long)(to - from), t->values, type->name, (uint64_t)type->block_bytes);
    t->data = data + from;
    return 0;
}

static int safetensors_metadata(struct safetensors *s, json_t *metadata, struct err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return err_set(e, ERR_DATA, "__metadata__ is not an object");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return err_set(e, ERR_DATA, "__metadata__: '%s' is not a string", log_safe(key));
    }
    s->metadata = json_incref(metadata);
    return 0;
}

static int safetensors_compare(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    /* an empty tensor before the one at the same offset; then by name, for a fixed order */
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* One after the other from the first byte to the last: no hole, no overlap. */
static int safetensors_contiguous(struct safetensors *s, const uint8_t *data, size_t room, struct err *e)
{
    size_t at = 0;
    qsort(s->tensors, s->count, sizeof *s->tensors, safetensors_compare);
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        size_t from = (size_t)(t->data - data);
        if (from < at)
            return err_set(e, ERR_DATA, "tensors '%s' and '%s' overlap", log_safe(t[-1].name),
                           log_safe(t->name));
        if (from > at)
            return err_set(e, ERR_DATA, "%zu bytes before tensor '%s' belong to no tensor", from - at,
                           log_safe(t->name));
        at += t->bytes;
    }
    if (at != room)
        return err_set(e, ERR_DATA, "%zu bytes at the end of the file belong to no tensor", room - at);
    return 0;
}

static int safetensors_table(struct safetensors *s, json_t *header, const uint8_t *data, size_t room,
                             struct err *e)
{
    size_t n = json_object_size(header);
    if (n > SAFETENSORS_MOST)
        return err_set(e, ERR_DATA, "the header has %zu entries; at most %d are allowed", n,
                       SAFETENSORS_MOST);
    if (!(s->tensors = mem_zalloc(n, sizeof *s->tensors)))
        return err_memory(e, "the tensors", n * sizeof *s->tensors);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (!strcmp(name, "__metadata__")) {
            if (safetensors_metadata(s, entry, e) < 0)
                return -1;
            continue;
        }
        struct tensor *t = &s->tensors[s->count++];
        if (!(t->name = arena_strndup(&s->names, name, strlen(name))))
            return err_memory(e, "a tensor's name", strlen(name));
        if (!json_is_object(entry))
            return err_set(e, ERR_DATA, "tensor '%s' is not described by an object", log_safe(name));
        if (safetensors_type(t, entry, e) < 0 || safetensors_shape(t, entry, e) < 0 ||
            safetensors_range(t, entry, data, room, e) < 0)
            return -1;
    }
    return safetensors_contiguous(s, data, room, e);
}

int safetensors_parse(struct safetensors *out, const uint8_t *data, size_t size, struct err *e)
{
    *out = (struct safetensors){0};
    struct cursor c = {.data = data, .size = size};
    uint64_t n = cursor_u64(&c);
    if (c.failed)
        return err_set(e, ERR_DATA, "not a safetensors file: %zu bytes are too few", size);
    if (n > safetensors_limits.text)
        return err_set(e, ERR_DATA,
                       "not a safetensors file: its header would be %" PRIu64
                       " bytes long, and %zu are allowed",
                       n, safetensors_limits.text);
    if (n > cursor_left(&c))
        return err_set(e, ERR_DATA, "the file ends inside its header: %" PRIu64 " bytes announced, %zu there",
                       n, cursor_left(&c));
    const char *text = (const char *)cursor_bytes(&c, n);
    if (!n || text[0] != '{')
        return err_set(e, ERR_DATA, "not a safetensors file: its header does not begin with '{'");
    json_t *header = jsonread_object(text, n, &safetensors_limits, "the header", e);
    int result = header ? safetensors_table(out, header, data + c.at, cursor_left(&c), e) : -1;
    json_decref(header);
    if (result < 0)
        safetensors_free(out);
    return result;
}

void safetensors_free(struct safetensors *s)
{
    json_decref(s->metadata);
    arena_free(&s->names);
    mem_free(s->tensors);
    *s = (struct safetensors){0};
}
