/* Attention's kernels of all vector tiers, in the compiler's vector types: a tier's file defines
 * VECTOR_BYTES (the width of its registers), ATTN_COLS (registers of a row in a tile: with ATTN_ROWS rows
 * the accumulators, one row of loads and a broadcast fill the register file), a type attn_pair_lanes (a pair of int16 for
 * each lane), how it is loaded (ATTN_LOAD(p)) and ATTN_DOT(sum, lanes, pair) (sum plus the products of each lane's
 * pair and the one in an int32), and includes this.
 *
 * Floats: each result is one chain of fused multiply-adds, in the same order whatever the tile's shape. Integers: sums
 * are exact. So a row's numbers do not depend on the rows beside it. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/lanes.h"

#include <math.h>

enum { ATTN_ROWS = 6, ATTN_WIDE = LANES * ATTN_COLS };

#define ATTN_INLINE static inline __attribute__((always_inline))

/* The tile with its number of rows as a constant. */
#define ATTN_EACH(rows, RUN, ...)                                                                            \
    switch (rows) {                                                                                          \
    case 1:                                                                                                  \
        RUN(__VA_ARGS__, 1);                                                                                 \
        break;                                                                                               \
    case 2:                                                                                                  \
        RUN(__VA_ARGS__, 2);                                                                                 \
        break;                                                                                               \
    case 3:                                                                                                  \
        RUN(__VA_ARGS__, 3);                                                                                 \
        break;                                                                                               \
    case 4:                                                                                                  \
        RUN(__VA_ARGS__, 4);                                                                                 \
        break;                                                                                               \
    case 5:                                                                                                  \
        RUN(__VA_ARGS__, 5);                                                                                 \
        break;                                                                                               \
    default:                                                                                                 \
        RUN(__VA_ARGS__, 6);                                                                                 \
    }

/* ---- floats ---- */

/* y(m, columns) = y * rescale + a(m, n) b(n, columns); rescale NULL: y is new. */
struct attn_product {
    const float *a, *b, *rescale;
    float *y;
    size_t a_stride, b_stride, y_stride;
    uint32_t n;
};

ATTN_INLINE void attn_tile_run(const struct attn_product *p, const int cols, const int rows)
{
    vf acc[ATTN_ROWS][ATTN_COLS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            acc[r][c] =
                p->rescale ? v_load(p->y + r * p->y_stride + c * LANES, LANES) * p->rescale[r] : (vf){0};
    const float *a = p->a, *b = p->b;
    for (uint32_t i = 0; i < p->n; i++, a++, b += p->b_stride) {
        vf x[ATTN_COLS];
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            x[c] = v_load(b + c * LANES, LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int c = 0; c < cols; c++)
                acc[r][c] += a[r * p->a_stride] * x[c];
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            v_store(p->y + r * p->y_stride + c * LANES, LANES, acc[r][c]);
}

/* All m rows for ATTN_COLS registers, or one. */
static void attn_product_run(const struct attn_product *p, uint32_t m, bool full)
{
    struct attn_product q = *p;
    for (uint32_t r = 0; r < m; r += ATTN_ROWS) {
        uint32_t rows = m - r < ATTN_ROWS ? m - r : ATTN_ROWS;
        q.a = p->a + r * p->a_stride;
        q.y = p->y + r * p->y_stride;
        q.rescale = p->rescale ? p->rescale + r : NULL;
        if (full)
            ATTN_EACH(rows, attn_tile_run, &q, ATTN_COLS)
        else
            ATTN_EACH(rows, attn_tile_run, &q, 1)
    }
}

static void attn_scores_float(const struct attn_tile *t)
{
    struct attn_product p = {
        .a = t->q, .a_stride = t->k_dim, .b_stride = ATTN_KEYS, .y_stride = ATTN_KEYS, .n = t->k_dim};
    for (uint32_t key = 0, n; key < t->keys; key += n) {
        bool full = key + ATTN_WIDE - LANES < t->keys; /* its last register has a key */
        n = full ? ATTN_WIDE : LANES;
        p.b = t->k + key;
        p.y = t->s + key;
        attn_product_run(&p, t->m, full);
    }
}

static void attn_values_float(const struct attn_tile *t)
{
    struct attn_product p = {.a = t->s,
                             .a_stride = ATTN_KEYS,
                             .b_stride = t->v_dim,
                             .y_stride = t->v_dim,
                             .n = t->keys,
                             .rescale = t->rescale};
    uint32_t i = 0;
    for (uint32_t wide; i + LANES <= t->v_dim; i += wide) {
        bool full = i + ATTN_WIDE <= t->v_dim;
        wide = full ? ATTN_WIDE : LANES;
        p.b = t->v + i;
        p.y = t->acc + i;
        attn_product_run(&p, t->m, full);
    }
    for (; i < t->v_dim; i++)
        for (uint32_t r = 0; r < t->m; r++) {
            float sum = t->acc[r * t->v_dim + i] * t->rescale[r];
            for (uint32_t j = 0; j < t->keys; j++)
                sum += t->s[r * ATTN_KEYS + j] * t->v[j * t->v_dim + i];
            t->acc[r * t->v_dim + i] = sum;
        }
}

/* ---- integers ---- */

/* Sums of `pairs` pairs: those of a row of a against those in the lanes of registers of b, which lie in
 * pages: register c of a page's pair i is at b[page][c] + i * b_stride, and a page has `page_pairs` of them.
 * Each sum is multiplied by `scale` of its row and added to y * rescale, or (rescale NULL) multiplied by the
 * scale of its column, too, and stored in y. */
struct attn_pairs {
    const int16_t *a, *b[ATTN_PAGES][ATTN_COLS];
    const float *scale, *rescale, *column;
    float *y;
    size_t a_stride, b_stride, y_stride;
    uint32_t pairs, page_pairs;
    uint32_t lanes; /* of a single register that are wanted */
};

ATTN_INLINE void attn_pairs_end(const struct attn_pairs *p, vi sum, int r, int c, uint32_t lanes)
{
    float *y = p->y + r * p->y_stride + c * LANES;
    vf x = __builtin_convertvector(sum, vf) * p->scale[r];
    v_store(y, lanes,
            p->rescale ? v_load(y, lanes) * p->rescale[r] + x : v_load(p->column + c * LANES, LANES) * x);
}

ATTN_INLINE void attn_pairs_tile(const struct attn_pairs *p, const int cols, const int rows)
{
    vi sum[ATTN_ROWS][ATTN_COLS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            sum[r][c] = (vi){0};
    const int16_t *a = p->a;
    for (uint32_t from = 0, page = 0; from < p->pairs; from += p->page_pairs, page++) {
        uint32_t n = p->pairs - from < p->page_pairs ? p->pairs - from : p->page_pairs;
        const int16_t *const *b = p->b[page];
        for (size_t at = 0; n; n--, a += 2, at += p->b_stride) {
            attn_pair_lanes x[ATTN_COLS];
#pragma GCC unroll 4
            for (int c = 0; c < cols; c++)
                x[c] = ATTN_LOAD(b[c] + at);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, a + r * p->a_stride, sizeof pair);
#pragma GCC unroll 4
                for (int c = 0; c < cols; c++)
                    sum[r][c] = ATTN_DOT(sum[r][c], x[c], pair);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            attn_pairs_end(p, sum[r][c], r, c, cols > 1 ? LANES : p->lanes);
}

static void attn_pairs_rows(const struct attn_pairs *p, uint32_t rows, bool full)
{
    if (full)
        ATTN_EACH(rows, attn_pairs_tile, p, ATTN_COLS)
    else
        ATTN_EACH(rows, attn_pairs_tile, p, 1)
}

static void attn_scores_int(const struct attn_tile *t)
{
    const struct attn_pages *g = t->pages;
    const uint32_t pairs = (t->k_dim + 1) / 2;
    struct attn_pairs p = {.a_stride = 2 * pairs,
                           .b_stride = 2 * g->tokens,
                           .y_stride = ATTN_KEYS,
                           .pairs = pairs,
                           .page_pairs = pairs,
                           .lanes = LANES};
    for (uint32_t r = 0; r < t->m; r += ATTN_ROWS)
        for (uint32_t key = 0, n; key < t->keys; key += n) {
            bool full = key + ATTN_WIDE - LANES < t->keys;
            n = full ? ATTN_WIDE : LANES;
            for (uint32_t c = 0; c < n / LANES; c++) {
                uint32_t at = key + c * LANES;
                p.b[0][c] = g->k[at / g->tokens] + 2 * (at % g->tokens);
            }
            p.a = t->q16 + r * p.a_stride;
            p.scale = t->q_scale + r;
            p.column = g->k_scale + key;
            p.y = t->s + r * ATTN_KEYS + key;
            attn_pairs_rows(&p, t->m - r < ATTN_ROWS ? t->m - r : ATTN_ROWS, full);
        }
}

static void attn_values_int(const struct attn_tile *t)
{
    const struct attn_pages *g = t->pages;
    struct attn_pairs p = {.a_stride = ATTN_KEYS,
                           .b_stride = 2 * attn_v_cols(t->v_dim),
                           .y_stride = t->v_dim,
                           .pairs = (t->keys + 1) / 2,
                           .page_pairs = g->tokens / 2};
    for (uint32_t r = 0; r < t->m; r += ATTN_ROWS)
        for (uint32_t i = 0, wide; i < t->v_dim; i += wide) {
            bool full = i + ATTN_WIDE <= t->v_dim;
            wide = full ? ATTN_WIDE : LANES;
            p.lanes = t->v_dim - i < LANES ? t->v_dim - i : LANES;
            for (uint32_t page = 0; page * g->tokens < t->keys; page++)
                for (uint32_t c = 0; c < wide / LANES; c++)
                    p.b[page][c] = g->v[page] + 2 * (i + c * LANES);
            p.a = t->w + r * ATTN_KEYS;
            p.scale = t->w_scale + r;
            p.rescale = t->rescale + r;
            p.y = t->acc + r * t->v_dim + i;
            attn_pairs_rows(&p, t->m - r < ATTN_ROWS ? t->m - r : ATTN_ROWS, full);
        }
}

/* ---- probabilities ---- */

enum { ATTN_REGISTERS = ATTN_KEYS / LANES, ATTN_SIDE = ATTN_REGISTERS > 8 ? 1 : 2 };

/* A row's scores, -INFINITY for keys that it does not see. */
ATTN_INLINE void attn_seen_scores(const float *s, struct attn_span seen, vf v[ATTN_REGISTERS])
{
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_REGISTERS; i++)
        v[i] = v_load(s + i * LANES, LANES);
    if (seen.lo || seen.hi < ATTN_KEYS)
#pragma GCC unroll 16
        for (uint32_t i = 0; i < ATTN_REGISTERS; i++)
            v[i] = v_between(v[i], -INFINITY, i * LANES, seen.lo, seen.hi);
}

/* Probabilities v times the scales of the values, as integers w (ATTN_KEYS); returns the scale of w. */
ATTN_INLINE float attn_weights(const vf v[ATTN_REGISTERS], const float *v_scale, int16_t *w)
{
    vf x[ATTN_REGISTERS], sum = {0}, most = {0};
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_REGISTERS; i++) {
        x[i] = v[i] * v_load(v_scale + i * LANES, LANES);
        sum += x[i];
        most = v_max(x[i], most);
    }
    const float by_sum = v_sum(sum) * (1 / I16_WEIGHTS), by_most = v_most(most) * (1 / I16_LENGTH);
    const float scale = by_sum < by_most ? by_most : by_sum, inverse = scale <= I16_LEAST ? 0 : 1 / scale;
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_REGISTERS; i++) {
        v16 r = v_round_i16(x[i], inverse);
        memcpy(w + i * LANES, &r, sizeof r);
    }
    return scale;
}

/* Several rows interleaved, to hide latency. */
ATTN_INLINE void attn_softmax_rows(const struct attn_tile *t, uint32_t r, const int rows)
{
    vf v[ATTN_SIDE][ATTN_REGISTERS];
    float top[ATTN_SIDE];
#pragma GCC unroll 2
    for (int n = 0; n < rows; n++) {
        vf most = v_all(-INFINITY);
        attn_seen_scores(t->s + (r + n) * ATTN_KEYS, t->seen[r + n], v[n]);
#pragma GCC unroll 16
        for (int i = 0; i < ATTN_REGISTERS; i++)
            most = v_max(v[n][i], most);
        top[n] = v_most(most);
    }
#pragma GCC unroll 2
    for (int n = 0; n < rows; n++) {
        float *max = t->max + r + n;
        t->rescale[r + n] = 1;
        if (top[n] > *max + ATTN_LAG) {
            t->rescale[r + n] = v_exp_below(v_all(*max - top[n]))[0];
            *max = top[n];
        }
        /* a row that sees nothing: -INFINITY minus a number is -INFINITY */
        top[n] = t->seen[r + n].lo < t->seen[r + n].hi ? *max : 0;
    }
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_REGISTERS; i++)
#pragma GCC unroll 2
        for (int n = 0; n < rows; n++)
            v[n][i] = v_exp_below(v[n][i] - top[n]);
#pragma GCC unroll 2
    for (int n = 0; n < rows; n++) {
        vf sum = {0};
#pragma GCC unroll 16
        for (int i = 0; i < ATTN_REGISTERS; i++)
            sum += v[n][i];
        t->sum[r + n] = t->sum[r + n] * t->rescale[r + n] + v_sum(sum);
        if (t->pages)
            t->w_scale[r + n] = attn_weights(v[n], t->pages->v_scale, t->w + (r + n) * ATTN_KEYS);
        for (int i = 0; !t->pages && i < ATTN_REGISTERS; i++)
            v_store(t->s + (r + n) * ATTN_KEYS + i * LANES, LANES, v[n][i]);
    }
}

static void attn_softmax(const struct attn_tile *t)
{
    uint32_t r = 0;
    for (; r + ATTN_SIDE <= t->m; r += ATTN_SIDE)
        attn_softmax_rows(t, r, ATTN_SIDE);
    for (; r < t->m; r++)
        attn_softmax_rows(t, r, 1);
}

/* ---- the table's entries ---- */

static void attn_scores(const struct attn_tile *t)
{
    t->pages ? attn_scores_int(t) : attn_scores_float(t);
}

static void attn_values(const struct attn_tile *t)
{
    t->pages ? attn_values_int(t) : attn_values_float(t);
}

static void attn_fill(struct kernels *k)
{
    k->attn_scores = attn_scores;
    k->attn_softmax = attn_softmax;
    k->attn_values = attn_values;
}
