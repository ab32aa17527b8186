#include "model/matrix.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/size.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

bool matrix_of(struct matrix *m, const struct tensor *t)
{
    uint64_t count = t->shape[2] * t->shape[3];
    *m = (struct matrix){.name = t->name, .type = t->type, .data = t->data};
    if (t->shape[0] > UINT32_MAX || t->shape[1] > UINT32_MAX || count > UINT32_MAX)
        return false;
    m->cols = (uint32_t)t->shape[0];
    m->rows = m->run = (uint32_t)t->shape[1];
    m->count = (uint32_t)count;
    return matrix_bytes(m, t->type, &m->row_bytes, &m->each_bytes) &&
           size_mul(m->row_bytes, m->rows, &m->each_bytes);
}

bool matrix_bytes(const struct matrix *m, uint32_t type, size_t *row, size_t *all)
{
    return dtype_row_bytes(type, m->cols, row) && size_mul(*row, m->rows, all) &&
           size_mul(*all, m->count, all);
}

struct matrix matrix_take(const struct matrix *m, const struct slice *s)
{
    struct matrix part = *m;
    part.rows = s->groups * s->len;
    part.first = m->first + s->first;
    part.run = s->len;
    part.stride = s->stride;
    return part;
}

struct matrix matrix_turn(const struct matrix *m)
{
    struct matrix out = *m;
    out.rows = m->cols;
    out.cols = m->rows;
    out.skip = m->first;
    out.first = 0;
    out.run = out.rows;
    out.turned = !m->turned;
    return out;
}

static bool is_fp8(uint32_t type)
{
    return type == DTYPE_F8_E4M3 || type == DTYPE_F8_E5M2;
}

static bool one_run(const struct matrix *m)
{
    return m->run >= m->rows;
}

bool matrix_lies(const struct matrix *m, struct weight *w)
{
    if (m->turned || m->each || m->exponents || m->quarter || m->pairs || m->row_swap.unit ||
        m->col_swap.unit || m->gain != 0 || is_fp8(m->type) || (!one_run(m) && m->run != 1))
        return false;
    size_t stride = one_run(m) ? 1 : m->stride;
    *w = (struct weight){
        .name = m->name, .type = m->type, .rows = m->rows, .cols = m->cols, .count = m->count};
    w->data = m->data + (m->skip + m->first) * m->row_bytes;
    w->row_bytes = m->row_bytes * stride;
    w->each_bytes = m->each_bytes;
    return true;
}

uint32_t matrix_type(const struct matrix *m)
{
    if (m->quarter && !m->turned && m->cols % dtype_get(DTYPE_TQ2_0)->block_values == 0)
        return DTYPE_TQ2_0;
    if (is_fp8(m->type) || m->quarter)
        return DTYPE_BF16;
    bool plain = m->type == DTYPE_F32 || m->type == DTYPE_BF16;
    return m->turned && !plain ? DTYPE_F16 : m->type;
}

/* Values in a row of the stored matrix. */
static size_t lying_cols(const struct matrix *m)
{
    const struct dtype_info *t = dtype_get(m->type);
    return m->exponents ? m->row_bytes / 16 * 32 : m->row_bytes / t->block_bytes * t->block_values;
}

static uint32_t swapped(const struct matrix_swap *s, uint32_t i)
{
    if (!s->unit || i < s->from)
        return i;
    uint32_t n = i - s->from, block = n / s->unit;
    return s->from + (block % s->a * s->b + block / s->a) * s->unit + n % s->unit;
}

static uint32_t row_number(const struct matrix *m, uint32_t r)
{
    r = swapped(&m->row_swap, r);
    if (m->pairs) {
        uint32_t head = r / m->pairs, i = r % m->pairs;
        r = head * m->pairs + i % 2 * (m->pairs / 2) + i / 2;
    }
    return m->first + r / m->run * m->stride + r % m->run;
}

/* gpt-oss keeps MXFP4 as two tensors: nibbles in order, (experts, rows, blocks, 16), and exponents, (experts, rows,
 * blocks). A block of ours is the exponent, then 16 bytes whose low nibbles are the first 16 values and whose high
 * nibbles the other 16:
 *
 *     theirs  byte i: values 2i (low), 2i+1 (high)       ours  byte i: values i (low), i+16 (high)   */
static void join_mxfp4(const uint8_t *nibbles, const uint8_t *exponents, size_t blocks, uint8_t *to)
{
    for (size_t i = 0; i < blocks; i++, nibbles += 16, to += 17) {
        uint8_t value[32];
        to[0] = exponents[i];
        for (int j = 0; j < 16; j++) {
            value[2 * j] = nibbles[j] & 15;
            value[2 * j + 1] = nibbles[j] >> 4;
        }
        for (int j = 0; j < 16; j++)
            to[1 + j] = (uint8_t)(value[j] | value[j + 16] << 4);
    }
}

/* A row of the stored matrix, in whole blocks; `room` for those that have to be put together. */
static const uint8_t *lying_row(const struct matrix *m, uint32_t one, uint32_t row, uint8_t *room)
{
    const uint32_t shift = m->quarter ? 2 * ((m->skip + row) / m->quarter) : 0,
                   r = m->quarter ? (m->skip + row) % m->quarter : m->skip + row;
    const uint8_t *at = (m->each ? m->each[one] : m->data + one * m->each_bytes) + r * m->row_bytes;
    for (size_t i = 0; m->quarter && i < m->row_bytes; i++)
        room[i] = (uint8_t)((at[i] >> shift & 3) - 1);
    if (m->quarter)
        return room;
    if (!m->exponents)
        return at;
    size_t blocks = m->row_bytes / 16;
    join_mxfp4(at, m->exponents + (size_t)(at - m->data) / 16, blocks, room);
    return room;
}

static void apply_scales(const struct matrix *m, uint32_t one, uint32_t row, uint32_t col, uint32_t n,
                         float *x)
{
    if (!m->scales)
        return;
    const struct matrix_scales *s = &m->scales[m->each ? one : 0];
    size_t r = m->skip + row + (m->each ? 0 : one * (m->each_bytes / m->row_bytes));
    for (uint32_t i = 0; s->value && i < n; i++)
        x[i] *= s->value[r / s->row_span * s->cols + (col + i) / s->col_span];
}

static size_t matrix_room(const struct matrix *m, uint32_t n)
{
    size_t wide = lying_cols(m);
    return (wide > n ? wide : n) * sizeof(float) + 2 * m->row_bytes;
}

/* Transposes: each row of the stored matrix gives a value to every row of the result. */
static void turned_values(const struct matrix *m, uint32_t one, uint32_t from, uint32_t n, float *out,
                          void *room)
{
    const struct dtype_info *t = dtype_get(m->type);
    float *row = room;
    size_t wide = lying_cols(m);
    uint8_t *bytes = (uint8_t *)(row + (wide > n ? wide : n));
    uint32_t low = row_number(m, from);
    bool together =
        t->block_values == 1 && row_number(m, from + n - 1) == low + n - 1 && !m->pairs && !m->row_swap.unit;
    for (uint32_t c = 0; c < m->cols; c++) {
        const uint8_t *at = lying_row(m, one, c, bytes);
        uint32_t base = together ? low : 0, width = together ? n : (uint32_t)wide;
        t->decode(at + (size_t)base * t->block_bytes, row, width);
        apply_scales(m, one, c, base, width, row);
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)i * m->cols + c] = row[row_number(m, from + i) - base];
    }
}

/* Columns of a row in their order, by way of `room`; then the gain. */
static void finish_row(const struct matrix *m, float *x, float *room)
{
    if (m->col_swap.unit) {
        memcpy(room, x, m->cols * sizeof *x);
        for (uint32_t c = 0; c < m->cols; c++)
            x[c] = room[swapped(&m->col_swap, c)];
    }
    for (uint32_t c = 0; m->gain != 0 && c < m->cols; c++)
        x[c] *= m->gain;
}

/* n rows of matrix `one` as floats, (n, cols). room: matrix_room(m, n) bytes. */
static void matrix_values(const struct matrix *m, uint32_t one, uint32_t from, uint32_t n, float *out,
                          void *room)
{
    if (m->turned)
        turned_values(m, one, from, n, out, room);
    for (uint32_t i = 0; i < n; i++, out += m->cols) {
        uint32_t row = row_number(m, from + i);
        if (!m->turned) {
            dtype_get(m->type)->decode(lying_row(m, one, row, room), out, m->cols);
            apply_scales(m, one, row, 0, m->cols, out);
        }
        finish_row(m, out, room);
    }
}

/* ---- on all cores ---- */

enum { PIECE_VALUES = 1 << 18 };

/* The pieces of all items in order: a worker takes the next. */
struct matrix_stream {
    const struct matrix_out *items;
    uint32_t count;
    const struct matrix_sink *sink;
    size_t *first; /* (count + 1): the first piece of each item */
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards e */
    struct err *e;
};

static uint32_t piece_rows(const struct matrix *m)
{
    uint32_t n = PIECE_VALUES / (m->cols ? m->cols : 1);
    return n ? n < m->rows ? n : m->rows : 1;
}

static size_t piece_count(const struct matrix *m)
{
    uint32_t n = piece_rows(m);
    if (!m->rows || !m->cols)
        return 0;
    return (size_t)m->count * ((m->rows + n - 1) / n);
}

struct matrix_worker {
    uint8_t *bytes, *room;
    float *values;
    size_t bytes_size, room_size, values_size;
};

static bool worker_fits(void **p, size_t *have, size_t want)
{
    if (want <= *have)
        return true;
    mem_free(*p);
    *p = mem_aligned(64, want);
    *have = *p ? want : 0;
    return *p != NULL;
}

/* Some rows of one matrix of an item. */
struct matrix_piece {
    uint32_t one, from, n;
    size_t row_bytes; /* packed, in the item's type */
};

/* Its rows, packed, in w->bytes. */
static int piece_fill(const struct matrix_out *o, const struct matrix_piece *p, struct matrix_worker *w,
                      struct err *e)
{
    const struct matrix *m = o->m;
    size_t values = (size_t)p->n * m->cols * sizeof(float), bytes = p->n * p->row_bytes;
    if (!worker_fits((void **)&w->bytes, &w->bytes_size, bytes) ||
        !worker_fits((void **)&w->room, &w->room_size, matrix_room(m, p->n)))
        return err_memory(e, "a piece of a tensor", bytes);
    if (o->type == m->type && !m->turned && !m->scales && !m->col_swap.unit && m->gain == 0) {
        for (uint32_t i = 0; i < p->n; i++)
            memcpy(w->bytes + i * p->row_bytes, lying_row(m, p->one, row_number(m, p->from + i), w->room),
                   p->row_bytes);
        return 0;
    }
    if (!worker_fits((void **)&w->values, &w->values_size, values))
        return err_memory(e, "a piece of a tensor", values);
    matrix_values(m, p->one, p->from, p->n, w->values, w->room);
    const float *importance = o->importance;
    if (importance && o->importances > 1)
        importance += (size_t)p->one * m->cols;
    const struct dtype_info *t = dtype_get(o->type);
    if (!importance)
        t->encode(w->values, w->bytes, (size_t)p->n * m->cols, NULL);
    for (uint32_t i = 0; importance && i < p->n; i++)
        t->encode(w->values + (size_t)i * m->cols, w->bytes + i * p->row_bytes, m->cols, importance);
    return 0;
}

static int piece_run(struct matrix_stream *s, struct matrix_worker *w, uint32_t item, size_t number,
                     struct err *e)
{
    const struct matrix_out *o = &s->items[item];
    const struct matrix *m = o->m;
    uint32_t rows = piece_rows(m);
    size_t in_one = (m->rows + rows - 1) / rows, all;
    struct matrix_piece p = {.one = (uint32_t)(number / in_one), .from = (uint32_t)(number % in_one) * rows};
    p.n = m->rows - p.from < rows ? m->rows - p.from : rows;
    const struct dtype_info *t = dtype_get(o->type);
    if (!matrix_bytes(m, o->type, &p.row_bytes, &all) || (o->type != m->type && !t->encode))
        return err_set(e, ERR_DATA, "tensor %s, of %u columns, cannot be made %s", log_safe(m->name), m->cols,
                       t->name);
    if (piece_fill(o, &p, w, e))
        return -1;
    size_t at = ((size_t)p.one * m->rows + p.from) * p.row_bytes;
    return s->sink->put(s->sink->arg, item, at, w->bytes, p.n * p.row_bytes, e);
}

static void stream_work(void *arg, int worker, int workers)
{
    struct matrix_stream *s = arg;
    struct matrix_worker w = {0};
    uint32_t item = 0;
    (void)workers;
    size_t total = s->first[s->count];
    for (size_t i; !atomic_load(&s->failed) && (i = atomic_fetch_add(&s->next, 1)) < total;) {
        struct err own = {0};
        while (i >= s->first[item + 1])
            item++;
        if (piece_run(s, &w, item, i - s->first[item], &own)) {
            pthread_mutex_lock(&s->lock);
            if (!atomic_exchange(&s->failed, true))
                *s->e = own;
            pthread_mutex_unlock(&s->lock);
        }
        if (worker == 0 && s->sink->progress)
            s->sink->progress(s->sink->arg, (double)i / (double)total);
    }
    mem_free(w.bytes);
    mem_free(w.room);
    mem_free(w.values);
}

int matrix_stream(struct pool *p, const struct matrix_out *items, uint32_t count,
                  const struct matrix_sink *sink, struct err *e)
{
    struct matrix_stream s = {.items = items, .count = count, .sink = sink, .e = e};
    s.first = mem_alloc((size_t)count + 1, sizeof *s.first);
    if (!s.first)
        return err_memory(e, "the list of tensors", count * sizeof *s.first);
    s.first[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        s.first[i + 1] = s.first[i] + piece_count(items[i].m);
    pthread_mutex_init(&s.lock, NULL);
    if (p)
        pool_run(p, stream_work, &s);
    else
        stream_work(&s, 0, 1);
    pthread_mutex_destroy(&s.lock);
    mem_free(s.first);
    return atomic_load(&s.failed) ? -1 : 0;
}
