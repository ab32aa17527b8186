/* Attention's kernels of both vector tiers, in the compiler's vector types: a tier's file defines
 * ATTN_BYTES (the width of its registers), ATTN_COLS (registers of a row in a tile: with ATTN_ROWS rows
 * the accumulators, one row of loads and a broadcast fill the register file), ATTN_HALF(p) (halves to
 * a register of floats) and includes this.
 *
 * Each result is one chain of fused multiply-adds, in the same order whatever the tile's shape: a row's
 * numbers do not depend on the rows beside it. */
#pragma once

#include "device/cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

typedef float av __attribute__((vector_size(ATTN_BYTES)));

enum { ATTN_LANES = ATTN_BYTES / 4, ATTN_ROWS = 6, ATTN_WIDE = ATTN_LANES * ATTN_COLS };

#define ATTN_INLINE static inline __attribute__((always_inline))

/* y(m, width) = start + a(m, n) b(n, width), b of floats or halves. Its columns come in registers: register
 * c of the `count` ones is at b[c] and steps by b_stride, its results at y + c * ATTN_LANES. */
enum attn_start { ATTN_ZERO, ATTN_KEEP, ATTN_RESCALE };

struct attn_product {
    const float *a, *rescale;
    const void *b[ATTN_COLS];
    float *y;
    size_t a_stride, b_stride, y_stride;
    uint32_t n;
    enum attn_start start;
    bool half;
};

ATTN_INLINE av attn_av(const float *p)
{
    av v;
    memcpy(&v, p, sizeof v);
    return v;
}

ATTN_INLINE av attn_half(const uint16_t *p)
{
    return (av)ATTN_HALF(p);
}

ATTN_INLINE void attn_tile_run(const struct attn_product *p, const int rows, const int cols, const bool half)
{
    av acc[ATTN_ROWS][ATTN_COLS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++) {
            acc[r][c] = p->start == ATTN_ZERO ? (av){0} : attn_av(p->y + r * p->y_stride + c * ATTN_LANES);
            if (p->start == ATTN_RESCALE)
                acc[r][c] *= p->rescale[r];
        }
    const float *a = p->a;
    for (size_t i = 0, at = 0; i < p->n; i++, a++, at += p->b_stride) {
        av x[ATTN_COLS];
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            x[c] = half ? attn_half((const uint16_t *)p->b[c] + at) : attn_av((const float *)p->b[c] + at);
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

ATTN_INLINE void attn_rows_run(const struct attn_product *p, uint32_t rows, const int cols, const bool half)
{
    switch (rows) {
    case 1:
        attn_tile_run(p, 1, cols, half);
        break;
    case 2:
        attn_tile_run(p, 2, cols, half);
        break;
    case 3:
        attn_tile_run(p, 3, cols, half);
        break;
    case 4:
        attn_tile_run(p, 4, cols, half);
        break;
    case 5:
        attn_tile_run(p, 5, cols, half);
        break;
    default:
        attn_tile_run(p, 6, cols, half);
    }
}

/* All m rows for the registers in p: ATTN_COLS of them, or one. */
static void attn_product_run(const struct attn_product *p, uint32_t m, bool full)
{
    struct attn_product q = *p;
    for (uint32_t r = 0; r < m; r += ATTN_ROWS) {
        uint32_t rows = m - r < ATTN_ROWS ? m - r : ATTN_ROWS;
        q.a = p->a + r * p->a_stride;
        q.y = p->y + r * p->y_stride;
        q.rescale = p->rescale ? p->rescale + r : NULL;
        if (full && p->half)
            attn_rows_run(&q, rows, ATTN_COLS, true);
        else if (full)
            attn_rows_run(&q, rows, ATTN_COLS, false);
        else if (p->half)
            attn_rows_run(&q, rows, 1, true);
        else
            attn_rows_run(&q, rows, 1, false);
    }
}

static void attn_scores(const struct attn_tile *t)
{
    const struct attn_pages *g = t->pages;
    uint32_t tokens = g ? g->tokens : ATTN_KEYS;
    struct attn_product p = {
        .a = t->q, .a_stride = t->k_dim, .b_stride = tokens, .y_stride = ATTN_KEYS, .n = t->k_dim, .half = g};
    for (uint32_t key = 0, n; key < t->keys; key += n) {
        bool full = key + ATTN_WIDE - ATTN_LANES < t->keys; /* its last register has a key */
        n = full ? ATTN_WIDE : ATTN_LANES;
        for (uint32_t c = 0; c < n / ATTN_LANES; c++) {
            uint32_t at = key + c * ATTN_LANES;
            p.b[c] = g ? (const void *)(g->k[at / tokens] + at % tokens) : (const void *)(t->k + at);
        }
        p.y = t->s + key;
        attn_product_run(&p, t->m, full);
    }
}

/* Keys [from, from + n), whose values start at v. */
static void attn_values_run(const struct attn_tile *t, const void *v, uint32_t from, uint32_t n)
{
    struct attn_product p = {.a = t->s + from,
                             .a_stride = ATTN_KEYS,
                             .b_stride = t->v_dim,
                             .y_stride = t->v_dim,
                             .n = n,
                             .rescale = t->rescale,
                             .start = from ? ATTN_KEEP : ATTN_RESCALE,
                             .half = t->pages};
    size_t size = p.half ? sizeof(uint16_t) : sizeof(float);
    for (uint32_t i = 0, wide; i + ATTN_LANES <= t->v_dim; i += wide) {
        bool full = i + ATTN_WIDE <= t->v_dim;
        wide = full ? ATTN_WIDE : ATTN_LANES;
        for (uint32_t c = 0; c < wide / ATTN_LANES; c++)
            p.b[c] = (const uint8_t *)v + (i + c * ATTN_LANES) * size;
        p.y = t->acc + i;
        attn_product_run(&p, t->m, full);
    }
}

static void attn_values(const struct attn_tile *t)
{
    if (t->pages) {
        uint32_t tokens = t->pages->tokens;
        for (uint32_t key = 0; key < t->keys; key += tokens)
            attn_values_run(t, t->pages->v[key / tokens], key,
                            t->keys - key < tokens ? t->keys - key : tokens);
        return;
    }
    attn_values_run(t, t->v, 0, t->keys);
    for (uint32_t i = t->v_dim / ATTN_LANES * ATTN_LANES; i < t->v_dim; i++)
        for (uint32_t r = 0; r < t->m; r++) {
            float sum = t->acc[r * t->v_dim + i] * t->rescale[r];
            for (uint32_t j = 0; j < t->keys; j++)
                sum += t->s[r * ATTN_KEYS + j] * t->v[j * t->v_dim + i];
            t->acc[r * t->v_dim + i] = sum;
        }
}
