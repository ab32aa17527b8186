/* Attention's kernels of both vector tiers, in the compiler's vector types: a tier's file defines
 * ATTN_BYTES (the width of its registers), ATTN_COLS (registers of a row in a tile: with ATTN_ROWS rows
 * the accumulators, one row of loads and a broadcast fill the register file) and includes this.
 *
 * Each result is one chain of fused multiply-adds, in the same order whatever the tile's shape: a row's
 * numbers do not depend on the rows beside it. */
#pragma once

#include "device/cpu/kernels.h"

#include <string.h>

typedef float av __attribute__((vector_size(ATTN_BYTES)));

enum { ATTN_LANES = ATTN_BYTES / 4, ATTN_ROWS = 6, ATTN_WIDE = ATTN_LANES * ATTN_COLS };

#define ATTN_INLINE static inline __attribute__((always_inline))

/* y(rows, ATTN_WIDE) = y * rescale + a(rows, n) b(n, ATTN_WIDE); without rescale, y starts from 0. */
struct attn_product {
    const float *a, *b, *rescale;
    float *y;
    size_t a_stride, b_stride, y_stride;
    uint32_t n;
};

ATTN_INLINE av attn_av(const float *p)
{
    av v;
    memcpy(&v, p, sizeof v);
    return v;
}

ATTN_INLINE void attn_tile_run(const struct attn_product *p, const int rows, const int cols)
{
    av acc[ATTN_ROWS][ATTN_COLS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            acc[r][c] =
                p->rescale ? attn_av(p->y + r * p->y_stride + c * ATTN_LANES) * p->rescale[r] : (av){0};
    const float *a = p->a, *b = p->b;
    for (uint32_t i = 0; i < p->n; i++, a++, b += p->b_stride) {
        av x[ATTN_COLS];
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            x[c] = attn_av(b + c * ATTN_LANES);
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
            memcpy(p->y + r * p->y_stride + c * ATTN_LANES, &acc[r][c], sizeof acc[r][c]);
}

ATTN_INLINE void attn_rows_run(const struct attn_product *p, uint32_t rows, const int cols)
{
    switch (rows) {
    case 1:
        attn_tile_run(p, 1, cols);
        break;
    case 2:
        attn_tile_run(p, 2, cols);
        break;
    case 3:
        attn_tile_run(p, 3, cols);
        break;
    case 4:
        attn_tile_run(p, 4, cols);
        break;
    case 5:
        attn_tile_run(p, 5, cols);
        break;
    default:
        attn_tile_run(p, 6, cols);
    }
}

/* m rows and any number of columns, `wide` of them at a time. */
static void attn_product_run(struct attn_product p, uint32_t m, uint32_t width)
{
    for (uint32_t c = 0, done; c < width; c += done) {
        done = width - c >= ATTN_WIDE ? ATTN_WIDE : ATTN_LANES;
        if (width - c < ATTN_LANES)
            break; /* the rest is the caller's */
        struct attn_product q = p;
        q.b = p.b + c;
        for (uint32_t r = 0; r < m; r += ATTN_ROWS) {
            uint32_t rows = m - r < ATTN_ROWS ? m - r : ATTN_ROWS;
            q.a = p.a + r * p.a_stride;
            q.y = p.y + r * p.y_stride + c;
            q.rescale = p.rescale ? p.rescale + r : NULL;
            if (done == ATTN_WIDE)
                attn_rows_run(&q, rows, ATTN_COLS);
            else
                attn_rows_run(&q, rows, 1);
        }
    }
}

static void attn_scores(const struct attn_tile *t)
{
    attn_product_run((struct attn_product){.a = t->q,
                                           .b = t->k,
                                           .y = t->s,
                                           .a_stride = t->k_dim,
                                           .b_stride = ATTN_KEYS,
                                           .y_stride = ATTN_KEYS,
                                           .n = t->k_dim},
                     t->m, (t->keys + ATTN_WIDE - 1) / ATTN_WIDE * ATTN_WIDE);
}

static void attn_values(const struct attn_tile *t)
{
    attn_product_run((struct attn_product){.a = t->s,
                                           .b = t->v,
                                           .y = t->acc,
                                           .rescale = t->rescale,
                                           .a_stride = ATTN_KEYS,
                                           .b_stride = t->v_dim,
                                           .y_stride = t->v_dim,
                                           .n = t->keys},
                     t->m, t->v_dim);
    for (uint32_t i = t->v_dim / ATTN_LANES * ATTN_LANES; i < t->v_dim; i++)
        for (uint32_t r = 0; r < t->m; r++) {
            float sum = t->acc[r * t->v_dim + i] * t->rescale[r];
            for (uint32_t j = 0; j < t->keys; j++)
                sum += t->s[r * ATTN_KEYS + j] * t->v[j * t->v_dim + i];
            t->acc[r * t->v_dim + i] = sum;
        }
}
