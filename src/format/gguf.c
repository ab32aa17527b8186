/* Reading GGUF: one pass over the header with a bounds-checked cursor, then one over the tensor table.
 *
 *   "GGUF" | u32 version | u64 tensors | u64 keys
 *   keys:    string name | u32 type | value        array: u32 item type | u64 count | items
 *   tensors: string name | u32 dims | u64 shape[dims] | u32 type | u64 offset
 *   padding to general.alignment | data, each tensor at its offset from here
 *
 * A string is u64 length | bytes. A split model has one such file per part, each with its own tensors;
 * the first part has all the keys. */
#include "format/gguf.h"

#include "base/cursor.h"
#include "codec/dtype.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "format/names.h"
#include "format/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    GGUF_MOST_TENSORS = 65536,
    GGUF_MOST_KEYS = 65536,
    GGUF_MOST_PARTS = 4096,
    GGUF_MOST_ALIGN = 1 << 20,
    GGUF_MOST_NAME = 65535,
    GGUF_MOST_NAMES = 16 << 20, /* bytes of all names together */
    GGUF_NESTING = 4,
    GGUF_LEAST_KEY = 8 + 1 + 4 + 1,
    GGUF_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8,
};

struct gguf_part {
    char *path; /* NULL: bytes in memory */
    struct map map;
};

struct gguf {
    uint32_t version;
    struct arena names; /* the copies of all names */
    struct gguf_key *keys;
    struct tensor *tensors;
    size_t key_count, tensor_count;
    struct names key_index, tensor_index;
    struct gguf_part *parts;
    size_t part_count, bytes;
};

/* One part while it is read. */
struct gguf_reader {
    struct gguf *g;
    struct cursor c;
    uint64_t tensors, keys; /* that the header announces */
    struct gguf_key *key;   /* (keys): of this part */
    struct names index;     /* of key */
    uint64_t *offsets;      /* (tensors) */
    struct err *e;
};

static const struct {
    const char *name;
    uint8_t size; /* 0 = not of one size */
} gguf_types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};
enum { GGUF_TYPES = sizeof gguf_types / sizeof *gguf_types };

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPES ? gguf_types[t].name : "unknown";
}

size_t gguf_type_size(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPES ? gguf_types[t].size : 0;
}

/* Reads a value of k->type at the cursor: fills the rest of k. */
static int gguf_walk(struct cursor *c, struct gguf_key *k, int depth, struct err *e);

static int gguf_walk_bools(struct cursor *c, uint64_t count, const char *what, struct err *e)
{
    const uint8_t *p = cursor_bytes(c, count);
    for (uint64_t i = 0; p && i < count; i++)
        if (p[i] > 1)
            return err_set(e, ERR_DATA, "key '%s' holds a boolean of %u; only 0 and 1 are", log_safe(what),
                           p[i]);
    return 0;
}

static int gguf_walk_strings(struct cursor *c, uint64_t count, const char *what, struct err *e)
{
    for (uint64_t i = 0; i < count && !c->failed; i++) {
        uint64_t n = cursor_u64(c);
        size_t left = cursor_left(c);
        if (!c->failed && n > left)
            return err_set(e, ERR_DATA, "key '%s' holds a string of %" PRIu64 " bytes where %zu are left",
                           log_safe(what), n, left);
        cursor_skip(c, n);
    }
    return 0;
}

static int gguf_walk_items(struct cursor *c, struct gguf_key *k, int depth, struct err *e)
{
    if (k->item == GGUF_STRING)
        return gguf_walk_strings(c, k->count, k->name, e);
    if (k->item == GGUF_BOOL)
        return gguf_walk_bools(c, k->count, k->name, e);
    if (k->item == GGUF_ARRAY) {
        for (uint64_t i = 0; i < k->count && !c->failed; i++) {
            struct gguf_key inner = {.name = k->name, .type = GGUF_ARRAY};
            if (gguf_walk(c, &inner, depth + 1, e) < 0)
                return -1;
        }
        return 0;
    }
    cursor_skip(c, k->count * gguf_types[k->item].size); /* gguf_walk has checked the product */
    return 0;
}

static int gguf_ends(const struct cursor *c, const char *kind, const char *name, struct err *e)
{
    return err_set(e, ERR_DATA, "the file ends inside %s '%s' (%zu bytes)", kind, log_safe(name), c->size);
}

/* The item type and the count of an array. */
static int gguf_walk_array(struct cursor *c, struct gguf_key *k, int depth, struct err *e)
{
    uint32_t item = cursor_u32(c);
    k->count = cursor_u64(c);
    if (c->failed)
        return gguf_ends(c, "key", k->name, e);
    if (item >= GGUF_TYPES)
        return err_set(e, ERR_DATA, "key '%s' is an array of type %u; types are 0 to %d", log_safe(k->name),
                       item, GGUF_TYPES - 1);
    if (depth > GGUF_NESTING)
        return err_set(e, ERR_DATA, "key '%s' nests arrays more than %d deep", log_safe(k->name),
                       GGUF_NESTING);
    /* a string is at least its length, an array its type and its count */
    size_t least = item == GGUF_STRING ? 8 : item == GGUF_ARRAY ? 12 : gguf_types[item].size, bytes;
    if (!size_mul(k->count, least, &bytes) || bytes > cursor_left(c))
        return err_set(e, ERR_DATA, "key '%s' is an array of %" PRIu64 " items (%s) where %zu bytes are left",
                       log_safe(k->name), k->count, gguf_types[item].name, cursor_left(c));
    k->item = (enum gguf_type)item;
    return 0;
}

static int gguf_walk(struct cursor *c, struct gguf_key *k, int depth, struct err *e)
{
    k->item = k->type;
    k->count = 1;
    if (k->type == GGUF_ARRAY && gguf_walk_array(c, k, depth, e) < 0)
        return -1;
    size_t start = c->at;
    k->data = c->data + start;
    if (gguf_walk_items(c, k, depth, e) < 0)
        return -1;
    k->bytes = c->at - start;
    return c->failed ? gguf_ends(c, "key", k->name, e) : 0;
}

/* A name: its length, its bytes, and a copy of them that ends in NUL. `kind` is "key" or "tensor". */
static char *gguf_name(struct gguf_reader *r, const char *kind, uint64_t number)
{
    uint64_t n = cursor_u64(&r->c);
    size_t left = cursor_left(&r->c);
    char *copy = NULL;
    if (r->c.failed)
        err_set(r->e, ERR_DATA, "the file ends before %s %" PRIu64 " (%zu bytes)", kind, number, r->c.size);
    else if (n > left)
        err_set(r->e, ERR_DATA, "the name of %s %" PRIu64 " is %" PRIu64 " bytes long where %zu are left",
                kind, number, n, left);
    else if (!n || n > GGUF_MOST_NAME)
        err_set(r->e, ERR_DATA, "the name of %s %" PRIu64 " is %" PRIu64 " bytes long; 1 to %d are allowed",
                kind, number, n, GGUF_MOST_NAME);
    else {
        const char *s = (const char *)cursor_bytes(&r->c, n);
        if (memchr(s, 0, n))
            err_set(r->e, ERR_DATA, "the name of %s %" PRIu64 " holds a zero byte: '%s'", kind, number,
                    log_safe_n(s, n));
        else if (!(copy = arena_strndup(&r->g->names, s, n)))
            err_set(r->e, ERR_RESOURCE,
                    "no memory for the name of %s %" PRIu64 " (all names: at most %d MiB)", kind, number,
                    GGUF_MOST_NAMES >> 20);
    }
    return copy;
}

static int gguf_index_add(struct gguf_reader *r, struct names *index, const char *name, const char *kind,
                          size_t i)
{
    int there = names_add(index, name, (uint32_t)i);
    if (there < 0)
        return err_memory(r->e, "the index of names", index->count * sizeof(struct names_slot));
    if (there)
        return err_set(r->e, ERR_DATA, "%s '%s' is there twice", kind, log_safe(name));
    return 0;
}

/* Recognizes other kinds of files by their first bytes. */
static int gguf_magic(struct gguf_reader *r)
{
    static const struct {
        const char *bytes, *what;
    } known[] = {
        {"lmgg", "an old GGML file, from before GGUF"},
        {"tjgg", "an old GGML file (GGJT), from before GGUF"},
        {"fmgg", "an old GGML file (GGMF), from before GGUF"},
        {"algg", "an old GGLA adapter, from before GGUF"},
        {"FUGG", "a GGUF file with its bytes swapped"},
        {"PK\3\4", "a zip archive (perhaps a PyTorch pickle)"},
    };
    const uint8_t *magic = cursor_bytes(&r->c, 4);
    if (!magic)
        return err_set(r->e, ERR_DATA, "not a GGUF file: %zu bytes are too few", r->c.size);
    if (!memcmp(magic, "GGUF", 4))
        return 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!memcmp(magic, known[i].bytes, 4))
            return err_set(r->e, ERR_DATA, "not a GGUF file: this is %s", known[i].what);
    return err_set(r->e, ERR_DATA, "not a GGUF file: it begins with %02x %02x %02x %02x, not with 'GGUF'",
                   magic[0], magic[1], magic[2], magic[3]);
}

static int gguf_counts(struct gguf_reader *r)
{
    r->tensors = cursor_u64(&r->c);
    r->keys = cursor_u64(&r->c);
    if (r->c.failed)
        return err_set(r->e, ERR_DATA, "the file ends inside the header (%zu bytes)", r->c.size);
    if (r->keys > GGUF_MOST_KEYS)
        return err_set(r->e, ERR_DATA, "the header announces %" PRIu64 " keys; at most %d are allowed",
                       r->keys, GGUF_MOST_KEYS);
    if (r->tensors > GGUF_MOST_TENSORS)
        return err_set(r->e, ERR_DATA, "the header announces %" PRIu64 " tensors; at most %d are allowed",
                       r->tensors, GGUF_MOST_TENSORS);
    size_t left = cursor_left(&r->c), least = r->keys * GGUF_LEAST_KEY + r->tensors * GGUF_LEAST_TENSOR;
    if (least > left)
        return err_set(r->e, ERR_DATA,
                       "the header announces %" PRIu64 " keys and %" PRIu64
                       " tensors, which take at least %zu bytes, and %zu are left",
                       r->keys, r->tensors, least, left);
    return 0;
}

static int gguf_header(struct gguf_reader *r)
{
    if (gguf_magic(r) < 0)
        return -1;
    uint32_t version = cursor_u32(&r->c);
    if (r->c.failed)
        return err_set(r->e, ERR_DATA, "the file ends inside the header (%zu bytes)", r->c.size);
    if (version && !(version & 0xf0ffffff)) /* a small number with its bytes in the other order */
        return err_set(
            r->e, ERR_DATA,
            "this GGUF file is big-endian (version %u): only little-endian files can be opened; convert it",
            version >> 24);
    if (version == 1)
        return err_set(r->e, ERR_DATA, "GGUF version 1 is not supported: convert the file to version 3");
    if (version != 2 && version != 3)
        return err_set(r->e, ERR_DATA, "GGUF version %u is not supported: versions 2 and 3 are", version);
    r->g->version = version;
    return gguf_counts(r);
}

static int gguf_read_keys(struct gguf_reader *r)
{
    r->key = mem_zalloc(r->keys, sizeof *r->key);
    if (!r->key)
        return err_memory(r->e, "the keys", r->keys * sizeof *r->key);
    for (size_t i = 0; i < r->keys; i++) {
        struct gguf_key *k = &r->key[i];
        if (!(k->name = gguf_name(r, "key", i)))
            return -1;
        uint32_t type = cursor_u32(&r->c);
        if (r->c.failed)
            return gguf_ends(&r->c, "key", k->name, r->e);
        if (type >= GGUF_TYPES)
            return err_set(r->e, ERR_DATA, "key '%s' has type %u; types are 0 to %d", log_safe(k->name), type,
                           GGUF_TYPES - 1);
        k->type = (enum gguf_type)type;
        if (gguf_walk(&r->c, k, 1, r->e) < 0 || gguf_index_add(r, &r->index, k->name, "key", i) < 0)
            return -1;
    }
    return 0;
}

static int gguf_read_shape(struct gguf_reader *r, struct tensor *t)
{
    const char *name = log_safe(t->name);
    t->dims = cursor_u32(&r->c);
    if (!r->c.failed && (t->dims < 1 || t->dims > 4))
        return err_set(r->e, ERR_DATA, "tensor '%s' has %u dimensions; 1 to 4 are allowed", name, t->dims);
    t->values = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->shape[d] = d < t->dims ? cursor_u64(&r->c) : 1;
        if (r->c.failed)
            return gguf_ends(&r->c, "tensor", t->name, r->e);
        if (!t->shape[d])
            return err_set(r->e, ERR_DATA, "tensor '%s': dimension %u is 0; the least is 1", name, d);
        if (!size_mul(t->values, t->shape[d], &t->values) || t->values > INT64_MAX)
            return err_set(r->e, ERR_DATA, "tensor '%s': the product of its dimensions is too large", name);
    }
    return 0;
}

static int gguf_read_tensor(struct gguf_reader *r, struct tensor *t, uint64_t *offset)
{
    if (gguf_read_shape(r, t) < 0)
        return -1;
    const char *name = log_safe(t->name);
    t->type = cursor_u32(&r->c);
    *offset = cursor_u64(&r->c);
    if (r->c.failed)
        return gguf_ends(&r->c, "tensor", t->name, r->e);
    const struct dtype_info *type = t->type < DTYPE_F8_E4M3 ? dtype_get(t->type) : NULL;
    if (!type)
        return err_set(r->e, ERR_DATA, "tensor '%s' has type %u, which is none that quern knows", name,
                       t->type);
    if (t->shape[0] % type->block_values)
        return err_set(r->e, ERR_DATA,
                       "tensor '%s': rows of %" PRIu64 " values do not divide into %s blocks of %u", name,
                       t->shape[0], type->name, type->block_values);
    if (!dtype_row_bytes(t->type, t->shape[0], &t->bytes) ||
        !size_mul(t->bytes, t->values / t->shape[0], &t->bytes))
        return err_set(r->e, ERR_DATA, "tensor '%s': its size in bytes is too large", name);
    return 0;
}

static int gguf_alignment(struct gguf_reader *r, size_t *align)
{
    int64_t i = names_find(&r->index, "general.alignment");
    *align = 32;
    if (i < 0)
        return 0;
    const struct gguf_key *k = &r->key[i];
    if (!gguf_is_integer(k->type))
        return err_set(r->e, ERR_DATA, "general.alignment is of type %s; an integer was expected",
                       gguf_types[k->type].name);
    int64_t v = gguf_item_i64(k, 0);
    if (v < 1 || v > GGUF_MOST_ALIGN || !size_is_pow2((size_t)v))
        return err_set(r->e, ERR_DATA,
                       "general.alignment is %" PRId64 "; a power of two up to %d was expected", v,
                       GGUF_MOST_ALIGN);
    *align = (size_t)v;
    return 0;
}

/* Sorts a range of tensor numbers by offset: merge sort, since the order is the file's choice. */
static void gguf_sort(uint32_t *at, uint32_t *room, size_t n, const uint64_t *offsets)
{
    if (n < 2)
        return;
    size_t half = n / 2;
    gguf_sort(at, room, half, offsets);
    gguf_sort(at + half, room, n - half, offsets);
    if (offsets[at[half - 1]] <= offsets[at[half]])
        return;
    memcpy(room, at, half * sizeof *at);
    for (size_t i = 0, j = half, k = 0; i < half; k++)
        at[k] = j < n && offsets[at[j]] < offsets[room[i]] ? at[j++] : room[i++];
}

/* No two tensors share a byte. Holes are allowed. */
static int gguf_overlap(struct gguf_reader *r, const struct tensor *t)
{
    size_t n = r->tensors;
    uint32_t *order = mem_alloc(n, 2 * sizeof *order);
    if (!order)
        return err_memory(r->e, "the order of tensors", n * 2 * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    gguf_sort(order, order + n, n, r->offsets);
    int result = 0;
    for (size_t i = 1; i < n && !result; i++) {
        uint32_t a = order[i - 1], b = order[i];
        if (r->offsets[b] - r->offsets[a] < t[a].bytes)
            result = err_set(r->e, ERR_DATA, "tensors '%s' and '%s' overlap", log_safe(t[a].name),
                             log_safe(t[b].name));
    }
    mem_free(order);
    return result;
}

/* Sets the address of every tensor of this part. */
static int gguf_place(struct gguf_reader *r, struct tensor *t)
{
    size_t align, start;
    if (gguf_alignment(r, &align) < 0)
        return -1;
    if (!r->tensors)
        return 0;
    if (!size_align(r->c.at, align, &start) || start > r->c.size)
        return err_set(r->e, ERR_DATA, "the file ends before the tensors' data (%zu bytes)", r->c.size);
    size_t room = r->c.size - start;
    for (size_t i = 0; i < r->tensors; i++) {
        uint64_t offset = r->offsets[i];
        if (offset % align)
            return err_set(r->e, ERR_DATA,
                           "tensor '%s' lies at offset %" PRIu64 ", which is no multiple of %zu",
                           log_safe(t[i].name), offset, align);
        if (t[i].bytes > room || offset > room - t[i].bytes)
            return err_set(r->e, ERR_DATA,
                           "tensor '%s' (%zu bytes at offset %" PRIu64 ") goes past the end of the file, "
                           "which has %zu bytes of data: is it cut short?",
                           log_safe(t[i].name), t[i].bytes, offset, room);
        t[i].data = r->c.data + start + offset;
    }
    return gguf_overlap(r, t);
}

static int gguf_read_tensors(struct gguf_reader *r)
{
    struct gguf *g = r->g;
    size_t total = g->tensor_count + r->tensors;
    if (total > GGUF_MOST_TENSORS)
        return err_set(r->e, ERR_DATA, "all parts together have %zu tensors; at most %d are allowed", total,
                       GGUF_MOST_TENSORS);
    struct tensor *all = mem_realloc(g->tensors, total, sizeof *all);
    if (!all)
        return err_memory(r->e, "the tensors", total * sizeof *all);
    g->tensors = all;
    struct tensor *mine = all + g->tensor_count;
    memset(mine, 0, r->tensors * sizeof *mine);
    r->offsets = mem_alloc(r->tensors, sizeof *r->offsets);
    if (!r->offsets)
        return err_memory(r->e, "the tensors", r->tensors * sizeof *r->offsets);
    for (size_t i = 0; i < r->tensors; i++)
        if (!(mine[i].name = gguf_name(r, "tensor", i)) ||
            gguf_read_tensor(r, &mine[i], &r->offsets[i]) < 0 ||
            gguf_index_add(r, &g->tensor_index, mine[i].name, "tensor", g->tensor_count + i) < 0)
            return -1;
    if (gguf_place(r, mine) < 0)
        return -1;
    g->tensor_count = total;
    return 0;
}

/* Reads one part into g. The keys of the first stay; of the others only `split` (its number) is looked at. */
static int gguf_read(struct gguf *g, const uint8_t *data, size_t size, struct gguf_key *split, struct err *e)
{
    struct gguf_reader r = {.g = g, .c = {.data = data, .size = size}, .e = e};
    int result = gguf_header(&r) < 0 || gguf_read_keys(&r) < 0 || gguf_read_tensors(&r) < 0 ? -1 : 0;
    if (!result && !split) {
        g->keys = r.key;
        g->key_count = r.keys;
        g->key_index = r.index;
    } else {
        int64_t i = result ? -1 : names_find(&r.index, "split.no");
        if (i >= 0)
            *split = r.key[i];
        mem_free(r.key);
        names_free(&r.index);
    }
    mem_free(r.offsets);
    g->bytes += size;
    return result;
}

static struct gguf *gguf_new(struct err *e)
{
    struct gguf *g = mem_zalloc(1, sizeof *g);
    if (!g)
        err_memory(e, "the model's tables", sizeof *g);
    else
        g->names.limit = GGUF_MOST_NAMES;
    return g;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->part_count; i++) {
        map_close(&g->parts[i].map);
        mem_free(g->parts[i].path);
    }
    mem_free(g->parts);
    names_free(&g->key_index);
    names_free(&g->tensor_index);
    arena_free(&g->names);
    mem_free(g->keys);
    mem_free(g->tensors);
    mem_free(g);
}

int gguf_parse(struct gguf **out, const uint8_t *data, size_t size, struct err *e)
{
    struct gguf *g = gguf_new(e);
    if (!g || gguf_read(g, data, size, NULL, e) < 0) {
        gguf_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

/* Where "-00001-of-00004.gguf" begins at the end of a path; NULL where it does not end so. */
static const char *gguf_suffix(const char *path)
{
    enum { SUFFIX = sizeof "-00001-of-00004.gguf" - 1 };
    size_t n = strlen(path);
    if (n <= SUFFIX)
        return NULL;
    const char *s = path + n - SUFFIX;
    uint64_t v;
    bool fits = s[0] == '-' && num_u64(s + 1, 5, 99999, &v) && !strncmp(s + 6, "-of-", 4) &&
                num_u64(s + 10, 5, 99999, &v) && !strcmp(s + 15, ".gguf");
    return fits ? s : NULL;
}

static char *gguf_part_path(const char *path, uint64_t number, uint64_t count)
{
    const char *suffix = gguf_suffix(path);
    if (!suffix)
        return NULL;
    size_t stem = (size_t)(suffix - path), room = stem + 64;
    char *name = mem_alloc(room, 1);
    if (name)
        snprintf(name, room, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)stem, path, number, count);
    return name;
}

/* Takes the path. */
static int gguf_open_part(struct gguf *g, char *path, struct gguf_key *split, struct err *e)
{
    struct gguf_part *parts = path ? mem_realloc(g->parts, g->part_count + 1, sizeof *parts) : NULL;
    if (!parts) {
        mem_free(path);
        return err_memory(e, "a part of the model", sizeof *parts);
    }
    g->parts = parts;
    struct gguf_part *p = &parts[g->part_count++];
    *p = (struct gguf_part){.path = path, .map.fd = -1};
    if (map_open(&p->map, path, e) < 0)
        return -1;
    size_t before = g->tensor_count, header = p->map.size;
    if (gguf_read(g, p->map.data, p->map.size, split, e) < 0)
        return err_prefix(e, "%s", log_safe(path));
    for (size_t i = before; i < g->tensor_count; i++) {
        size_t at = (size_t)(g->tensors[i].data - p->map.data);
        header = at < header ? at : header;
    }
    map_own(&p->map, header); /* keys, vocabulary and template are read as long as the model lives */
    return 0;
}

static int gguf_open_others(struct gguf *g, const char *path, uint64_t count, struct err *e)
{
    for (uint64_t i = 1; i < count; i++) {
        char *name = gguf_part_path(path, i + 1, count);
        struct gguf_key no = {.type = GGUF_STRING};
        if (gguf_open_part(g, name, &no, e) < 0)
            return err_prefix(e, "part %" PRIu64 " of %" PRIu64 " of this model", i + 1, count);
        if (!gguf_is_integer(no.type) || gguf_item_i64(&no, 0) != (int64_t)i)
            return err_set(e, ERR_DATA, "%s: split.no is not %" PRIu64 ", as it must be in part %" PRIu64,
                           log_safe(name), i, i + 1);
    }
    return 0;
}

/* The parts are found by name, and only from the first. */
static int gguf_check_first(const char *path, uint64_t no, uint64_t count, struct err *e)
{
    char *first = gguf_part_path(path, 1, count);
    int result = 0;
    if (!first && gguf_suffix(path))
        result = err_memory(e, "a path", strlen(path));
    else if (no)
        result = err_set(e, ERR_DATA, "%s is part %" PRIu64 " of %" PRIu64 ": open the first%s%s",
                         log_safe(path), no + 1, count, first ? ", " : "", first ? log_safe(first) : "");
    else if (!first || strcmp(first, path) != 0)
        result = err_set(e, ERR_DATA,
                         "%s is the first of %" PRIu64 " parts, which are found by name: it must end in "
                         "-00001-of-%05" PRIu64 ".gguf",
                         log_safe(path), count, count);
    mem_free(first);
    return result;
}

/* After the first part: finds the others, and checks that all is there. */
static int gguf_open_split(struct gguf *g, const char *path, struct err *e)
{
    uint64_t count = 1, no = 0, tensors = 0;
    int has = gguf_get_u64(g, "split.count", 0, GGUF_MOST_PARTS, &count, e);
    if (has < 0 || gguf_get_u64(g, "split.no", 0, GGUF_MOST_PARTS, &no, e) < 0)
        return err_prefix(e, "%s", log_safe(path));
    if (count > 1 && (gguf_check_first(path, no, count, e) < 0 || gguf_open_others(g, path, count, e) < 0))
        return -1;
    has = gguf_get_u64(g, "split.tensors.count", 0, INT64_MAX, &tensors, e);
    if (has > 0 && tensors != g->tensor_count)
        has = err_set(e, ERR_DATA, "split.tensors.count is %" PRIu64 ", and the parts have %zu tensors",
                      tensors, g->tensor_count);
    return has < 0 ? err_prefix(e, "%s", log_safe(path)) : 0;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g = gguf_new(e);
    if (!g || gguf_open_part(g, mem_strdup(path), NULL, e) < 0 || gguf_open_split(g, path, e) < 0) {
        gguf_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_key_count(const struct gguf *g)
{
    return g->key_count;
}

const struct gguf_key *gguf_key_at(const struct gguf *g, size_t i)
{
    return &g->keys[i];
}

const struct gguf_key *gguf_find(const struct gguf *g, const char *name)
{
    int64_t i = names_find(&g->key_index, name);
    return i < 0 ? NULL : &g->keys[i];
}

bool gguf_next_array(const struct gguf_key *k, size_t *at, struct gguf_key *out)
{
    if (k->item != GGUF_ARRAY || *at >= k->bytes)
        return false;
    struct cursor c = {.data = k->data, .size = k->bytes, .at = *at};
    *out = (struct gguf_key){.name = k->name, .type = GGUF_ARRAY};
    if (gguf_walk(&c, out, 1, NULL) < 0)
        return false;
    *at = c.at;
    return true;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->tensor_count;
}

const struct tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    int64_t i = names_find(&g->tensor_index, name);
    return i < 0 ? NULL : &g->tensors[i];
}

int gguf_check(const struct gguf *g, struct err *e)
{
    for (size_t i = 0; i < g->part_count; i++)
        if (map_check(&g->parts[i].map, e))
            return -1;
    return 0;
}

bool gguf_is_changed(const struct gguf *g)
{
    bool changed = false;
    for (size_t i = 0; i < g->part_count; i++)
        changed |= map_is_changed(&g->parts[i].map);
    return changed;
}

bool gguf_is_private(const struct gguf *g)
{
    bool is_private = false;
    for (size_t i = 0; i < g->part_count; i++)
        is_private |= g->parts[i].map.is_private;
    return is_private;
}

size_t gguf_file_bytes(const struct gguf *g)
{
    return g->bytes;
}

const char *gguf_tensor_file(const struct gguf *g, const struct tensor *t, size_t *offset)
{
    for (size_t i = 0; i < g->part_count; i++) {
        const struct map *m = &g->parts[i].map;
        if (t->data >= m->data && t->data < m->data + m->size) {
            *offset = (size_t)(t->data - m->data);
            return g->parts[i].path;
        }
    }
    return NULL;
}
