#include "quant/imatrix.h"

#include "base/cursor.h"
#include "codec/dtype.h"
#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "format/gguf.h"
#include "format/gguf_write.h"
#include "format/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SUMS   ".in_sum2"
#define COUNTS ".counts"

const struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name)
{
    int64_t at = names_find(&m->index, name);
    return at < 0 ? NULL : &m->all[at];
}

struct imatrix_entry *imatrix_add(struct imatrix *m, const char *name, uint32_t cols, uint32_t count,
                                  struct err *e)
{
    struct imatrix_entry *more = mem_more(m->all, m->count, &m->room, sizeof *more);
    if (!more) {
        err_memory(e, "the importance matrix", (m->count + 1) * sizeof *more);
        return NULL;
    }
    m->all = more;
    struct imatrix_entry *x = &m->all[m->count];
    size_t values;
    *x = (struct imatrix_entry){.cols = cols, .count = count};
    x->name = arena_strndup(&m->arena, name, strlen(name));
    x->sums = size_mul(cols, count, &values) ? arena_alloc(&m->arena, values, sizeof *x->sums) : NULL;
    x->rows = arena_alloc(&m->arena, count, sizeof *x->rows);
    int there = x->name && x->sums && x->rows ? names_add(&m->index, x->name, (uint32_t)m->count) : -1;
    if (there) {
        if (there < 0)
            err_memory(e, "the importance matrix", sizeof *x);
        else
            err_set(e, ERR_DATA, "tensor %s is twice in the importance matrix", log_safe(name));
        return NULL;
    }
    m->count++;
    return x;
}

int imatrix_importance(struct imatrix *m, const char *name, uint32_t cols, uint32_t count,
                       struct importance *out, struct err *e)
{
    const struct imatrix_entry *x = imatrix_find(m, name);
    *out = (struct importance){0};
    if (!x)
        return 0;
    if (x->cols != cols || (x->count != 1 && x->count != count))
        return err_set(e, ERR_DATA, "the importance matrix has %u x %u values for %s; %u x %u are expected",
                       x->count, x->cols, log_safe(name), count, cols);
    float *mean = arena_alloc(&m->arena, (size_t)x->count * cols, sizeof *mean);
    if (!mean)
        return err_memory(e, "the importance matrix", (size_t)x->count * cols * sizeof *mean);
    for (uint32_t i = 0; i < x->count; i++)
        for (uint32_t c = 0; c < cols; c++) {
            size_t at = (size_t)i * cols + c;
            mean[at] = x->rows[i] > 0 ? (float)(x->sums[at] / x->rows[i])
                                      : 1; /* an expert that no token was routed to */
        }
    *out = (struct importance){mean, x->count};
    return 0;
}

/* ---- files ---- */

static int check_values(const struct imatrix_entry *x, struct err *e)
{
    for (size_t i = 0; i < (size_t)x->count * x->cols; i++)
        if (!isfinite(x->sums[i]) || x->sums[i] < 0)
            return err_set(e, ERR_DATA, "the importance matrix holds %g for %s; no mean square is that",
                           x->sums[i], log_safe(x->name));
    for (uint32_t i = 0; i < x->count; i++)
        if (!isfinite(x->rows[i]) || x->rows[i] < 0)
            return err_set(e, ERR_DATA, "the importance matrix counts %g rows for %s", x->rows[i],
                           log_safe(x->name));
    return 0;
}

static int read_pair(struct imatrix *m, const struct tensor *sums, const struct tensor *rows,
                     const char *name, struct err *e)
{
    uint64_t count = rows ? rows->values : 0;
    if (!rows || rows->type != DTYPE_F32 || sums->type != DTYPE_F32 || !count || count > 1 << 20 ||
        sums->values % count || sums->values / count > 1 << 24)
        return err_set(e, ERR_DATA, "tensor %s: F32, with the tensor %s" COUNTS " beside it, is expected",
                       log_safe(sums->name), log_safe(name));
    struct imatrix_entry *x = imatrix_add(m, name, (uint32_t)(sums->values / count), (uint32_t)count, e);
    if (!x)
        return -1;
    for (uint64_t i = 0; i < sums->values; i++) {
        float v;
        memcpy(&v, sums->data + i * sizeof v, sizeof v);
        x->sums[i] = v;
    }
    for (uint64_t i = 0; i < count; i++) {
        float v;
        memcpy(&v, rows->data + i * sizeof v, sizeof v);
        x->rows[i] = v;
    }
    return check_values(x, e);
}

static int read_gguf(struct imatrix *m, const struct gguf *g, struct err *e)
{
    uint64_t chunks = 0;
    const struct gguf_key *sets;
    struct gguf_str set;
    size_t at = 0;
    if (gguf_get_u64(g, "imatrix.chunk_count", 0, UINT32_MAX, &chunks, e) < 0 ||
        gguf_get_array(g, "imatrix.datasets", GGUF_STRING, 0, &sets, e) < 0)
        return -1;
    m->chunks = (uint32_t)chunks;
    if (gguf_find(g, "imatrix.datasets") && gguf_next_str(sets, &at, &set))
        m->dataset = arena_strndup(&m->arena, set.s, set.n);
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct tensor *t = gguf_tensor_at(g, i);
        size_t n = strlen(t->name), tail = strlen(SUMS);
        char name[256], other[256];
        if (n <= tail || strcmp(t->name + n - tail, SUMS))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - tail), t->name);
        snprintf(other, sizeof other, "%.240s" COUNTS, name);
        if (read_pair(m, t, gguf_find_tensor(g, other), name, e))
            return -1;
    }
    return m->count ? 0 : err_set(e, ERR_DATA, "the file has no tensor called *" SUMS);
}

/* The older format. */
static int read_old(struct imatrix *m, struct cursor *c, struct err *e)
{
    uint32_t entries = cursor_u32(c);
    for (uint32_t i = 0; i < entries && !c->failed; i++) {
        uint32_t n = cursor_u32(c);
        const uint8_t *name = cursor_bytes(c, n);
        uint32_t calls = cursor_u32(c), values = cursor_u32(c);
        const uint8_t *data = cursor_bytes(c, (size_t)values * sizeof(float));
        char text[256];
        if (c->failed || !n || n >= sizeof text || !values || values > 1 << 26)
            break;
        snprintf(text, sizeof text, "%.*s", (int)n, (const char *)name);
        struct imatrix_entry *x = imatrix_add(m, text, values, 1, e);
        if (!x)
            return -1;
        x->rows[0] = calls ? calls : 1;
        for (uint32_t k = 0; k < values; k++) {
            float v;
            memcpy(&v, data + k * sizeof v, sizeof v);
            x->sums[k] = v;
        }
        if (check_values(x, e))
            return -1;
    }
    if (c->failed || !entries || m->count != entries)
        return err_set(e, ERR_DATA,
                       "this is no importance matrix: GGUF, or llama.cpp's older format, is expected");
    m->chunks = cursor_left(c) >= 4 ? cursor_u32(c) : 0;
    uint32_t n = cursor_left(c) >= 4 ? cursor_u32(c) : 0;
    const uint8_t *set = n && n <= cursor_left(c) ? cursor_bytes(c, n) : NULL;
    if (set)
        m->dataset = arena_strndup(&m->arena, (const char *)set, n);
    return 0;
}

int imatrix_parse(struct imatrix *m, const uint8_t *data, size_t size, struct err *e)
{
    struct gguf *g = NULL;
    struct cursor c = {.data = data, .size = size};
    int failed;
    *m = (struct imatrix){0};
    if (size >= 4 && !memcmp(data, "GGUF", 4))
        failed = gguf_parse(&g, data, size, e) || read_gguf(m, g, e);
    else
        failed = read_old(m, &c, e);
    gguf_close(g);
    if (failed)
        imatrix_free(m);
    return failed ? -1 : 0;
}

int imatrix_read(struct imatrix *m, const char *path, struct err *e)
{
    struct map map;
    *m = (struct imatrix){0};
    if (map_open(&map, path, e) < 0)
        return -1;
    int failed = imatrix_parse(m, map.data, map.size, e);
    map_close(&map);
    return failed ? err_prefix(e, "%s", log_safe(path)) : 0;
}

static int write_entry(struct gguf_writer *w, size_t i, const struct imatrix_entry *x, struct err *e)
{
    size_t n = (size_t)x->cols * x->count, most = n > x->count ? n : x->count;
    float *room = mem_alloc(most, sizeof *room);
    if (!room)
        return err_memory(e, "the importance matrix", most * sizeof *room);
    for (size_t k = 0; k < n; k++)
        room[k] = (float)x->sums[k];
    int failed = gguf_put_data(w, 2 * i, 0, (const uint8_t *)room, n * sizeof *room, e);
    for (uint32_t k = 0; k < x->count; k++)
        room[k] = (float)x->rows[k];
    failed = failed || gguf_put_data(w, 2 * i + 1, 0, (const uint8_t *)room, x->count * sizeof *room, e);
    mem_free(room);
    return failed ? -1 : 0;
}

int imatrix_write(const struct imatrix *m, const char *path, struct err *e)
{
    struct gguf_writer w = {0};
    int failed = 0;
    gguf_put_str(&w, "general.type", "imatrix", 7);
    if (m->dataset && gguf_put_strings(&w, "imatrix.datasets", 1))
        gguf_add_string(&w, m->dataset, strlen(m->dataset));
    gguf_put_u32(&w, "imatrix.chunk_count", m->chunks);
    gguf_put_u32(&w, "imatrix.chunk_size", m->chunk_size);
    for (size_t i = 0; i < m->count && !failed; i++) {
        const struct imatrix_entry *x = &m->all[i];
        char name[256];
        snprintf(name, sizeof name, "%.240s" SUMS, x->name);
        failed = gguf_add_tensor(&w, name, DTYPE_F32, 2, (uint64_t[4]){x->cols, x->count}, e);
        snprintf(name, sizeof name, "%.240s" COUNTS, x->name);
        failed = failed || gguf_add_tensor(&w, name, DTYPE_F32, 2, (uint64_t[4]){1, x->count}, e);
    }
    failed = failed || gguf_begin(&w, path, 0, e);
    for (size_t i = 0; i < m->count && !failed; i++)
        failed = write_entry(&w, i, &m->all[i], e);
    failed = failed || gguf_commit(&w, e);
    gguf_writer_close(&w);
    return failed ? -1 : 0;
}

void imatrix_free(struct imatrix *m)
{
    mem_free(m->all);
    names_free(&m->index);
    arena_free(&m->arena);
    *m = (struct imatrix){0};
}
