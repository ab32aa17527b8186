/* Float products, the same for both vector tiers: F32, F16 and BF16 as they lie, any other type
 * through its decoder, FLOAT_SLAB values at a time. A tier's file defines float_tile_run (a panel
 * times a tile) before it includes this one. */
#pragma once

#include "device/cpu/matmul_panel.h"

struct float_scratch {
    struct float_panel panel;
    struct float_tile tile[M_BLOCK / TILE];
    float rows[8][FLOAT_SLAB]; /* decoded weights */
};

ALWAYS_INLINE bool float_direct(uint32_t type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Eight values at p, of a direct type. */
ALWAYS_INLINE __m256 load_8(uint32_t type, const uint8_t *p)
{
    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (type == DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The first n < 8 of them, and zeros. */
ALWAYS_INLINE __m256 load_some(uint32_t type, const uint8_t *p, uint32_t n)
{
    uint8_t part[32] = {0};
    memcpy(part, p, n * (type == DTYPE_F32 ? 4 : 2));
    return load_8(type, part);
}

ALWAYS_INLINE __m256 load_upto(uint32_t type, const uint8_t *p, uint32_t n)
{
    return n < 8 ? load_some(type, p, n) : load_8(type, p);
}

/* acc (rows, 2) += n values at p, of a direct type, times those at x[r]. */
ALWAYS_INLINE void float_dot(uint32_t type, const uint8_t *p, const float *const *x, size_t n, int rows,
                             __m256 (*acc)[2])
{
    const size_t size = type == DTYPE_F32 ? 4 : 2;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (i % 32 == 0)
            ask_ahead(p + i * size, 32 * size);
        for (int j = 0; j < 2; j++) {
            __m256 w = load_8(type, p + (i + 8 * j) * size);
            for (int r = 0; r < rows; r++)
                acc[r][j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x[r] + i + 8 * j), acc[r][j]);
        }
    }
    for (; i < n; i += 8) {
        uint32_t left = least((uint32_t)(n - i), 8);
        __m256 w = load_upto(type, p + i * size, left);
        for (int r = 0; r < rows; r++) {
            __m256 v = load_upto(DTYPE_F32, (const uint8_t *)(x[r] + i), left);
            acc[r][0] = _mm256_fmadd_ps(w, v, acc[r][0]);
        }
    }
}

/* Rows [m0, m0+rows) of x; rows is a constant, as is a direct type (others all come as DTYPE_MOST). */
ALWAYS_INLINE void float_few(uint32_t type, const struct matmul *job, uint32_t m0, int rows)
{
    struct float_scratch *s = job->scratch;
    const struct dtype_info *info = dtype_get(job->type);
    const float *x[4];
    for (int r = 0; r < rows; r++)
        x[r] = job->x + (m0 + r) * job->x_stride;
    for (uint32_t n = job->n0; n < job->n1; n++) {
        const uint8_t *row = job->w + n * job->row_bytes;
        __m256 acc[4][2];
        for (int r = 0; r < rows; r++)
            acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        if (float_direct(type)) {
            float_dot(type, row, x, job->k, rows, acc);
        } else {
            for (uint32_t k0 = 0; k0 < job->k; k0 += FLOAT_SLAB) {
                uint32_t width = least(FLOAT_SLAB, job->k - k0);
                const float *part[4];
                for (int r = 0; r < rows; r++)
                    part[r] = x[r] + k0;
                info->decode(row + k0 / info->block_values * (size_t)info->block_bytes, s->rows[0], width);
                float_dot(DTYPE_F32, (const uint8_t *)s->rows[0], part, width, rows, acc);
            }
        }
        for (int r = 0; r < rows; r++)
            job->y[(m0 + r) * job->y_stride + n] = sum_8(_mm256_add_ps(acc[r][0], acc[r][1]));
    }
}

/* Values [k0, k0+width) of rows [m0, m0+TILE) of x; rows past the end repeat the last one. */
static void float_pack_tile(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width,
                            struct float_tile *t)
{
    for (uint32_t i = 0; i < width; i += 8) {
        __m256i v[8];
        for (uint32_t r = 0; r < TILE; r++) {
            const float *x = job->x + least(m0 + r, job->m - 1) * job->x_stride + k0 + i;
            v[r] = _mm256_castps_si256(load_upto(DTYPE_F32, (const uint8_t *)x, width - i));
        }
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_store_si256((__m256i *)t->x[i + j], v[j]);
    }
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL); rows past the end repeat the last one. */
ALWAYS_INLINE void float_pack_panel(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0,
                                    uint32_t width, struct float_scratch *s)
{
    const struct dtype_info *info = dtype_get(job->type);
    const uint32_t stored = float_direct(type) ? type : DTYPE_F32;
    const size_t size = stored == DTYPE_F32 ? 4 : 2;
    for (uint32_t col = 0; col < PANEL; col += 8) {
        const uint8_t *row[8];
        for (uint32_t r = 0; r < 8; r++) {
            row[r] = job->w + least(n + col + r, job->n1 - 1) * job->row_bytes +
                     k0 / info->block_values * (size_t)info->block_bytes;
            if (!float_direct(type)) {
                info->decode(row[r], s->rows[r], width);
                row[r] = (const uint8_t *)s->rows[r];
            }
        }
        for (uint32_t i = 0; i < width; i += 8) {
            __m256i v[8];
            for (int r = 0; r < 8; r++)
                v[r] = _mm256_castps_si256(load_upto(stored, row[r] + i * size, width - i));
            transpose_8(v);
            for (int j = 0; j < 8; j++)
                _mm256_store_si256((__m256i *)(s->panel.w[i + j] + col), v[j]);
        }
    }
}

ALWAYS_INLINE void float_many(uint32_t type, const struct matmul *job)
{
    struct float_scratch *s = job->scratch;
    for (uint32_t m0 = 0; m0 < job->m; m0 += M_BLOCK) {
        uint32_t m1 = least(m0 + M_BLOCK, job->m);
        for (uint32_t k0 = 0; k0 < job->k; k0 += FLOAT_SLAB) {
            uint32_t width = least(FLOAT_SLAB, job->k - k0);
            for (uint32_t m = m0; m < m1; m += TILE)
                float_pack_tile(job, m, k0, width, s->tile + (m - m0) / TILE);
            for (uint32_t n = job->n0; n < job->n1; n += PANEL) {
                float_pack_panel(type, job, n, k0, width, s);
                for (uint32_t m = m0; m < m1; m += TILE) {
                    struct tile_out out = {job->y + m * job->y_stride + n, job->y_stride, least(TILE, m1 - m),
                                           least(PANEL, job->n1 - n), k0 > 0};
                    float_tile_run(&s->panel, s->tile + (m - m0) / TILE, width, &out);
                }
            }
        }
    }
}

ALWAYS_INLINE void float_any(uint32_t type, const struct matmul *job)
{
    switch (job->m) {
    case 1:
        float_few(type, job, 0, 1);
        break;
    case 2:
        float_few(type, job, 0, 2);
        break;
    case 3:
        float_few(type, job, 0, 3);
        break;
    default:
        float_many(type, job);
    }
}

static void matmul_float(const struct matmul *job)
{
    switch (job->type) {
    case DTYPE_F32:
        float_any(DTYPE_F32, job);
        break;
    case DTYPE_F16:
        float_any(DTYPE_F16, job);
        break;
    case DTYPE_BF16:
        float_any(DTYPE_BF16, job);
        break;
    default:
        float_any(DTYPE_MOST, job);
    }
}
