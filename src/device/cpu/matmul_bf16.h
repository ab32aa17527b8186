/* Products of F16 and BF16 weights, both sides rounded to bf16: where the processor multiplies two pairs at
 * once that is twice the speed of floats, elsewhere it is the same rounding. A tier's file defines what
 * multiplies a panel with a tile.
 *
 * Panels are of the size of the weight and need no more decoding, so that a repacked weight (struct packed)
 * is just its panels, one after another; few rows are then bound by memory only. Every sum then has one
 * order, whatever the number of rows. */
#pragma once

#include "device/cpu/matmul_float.h"

struct bf16_scratch {
    struct bf16_panel panel;
    union { /* in pairs, or as floats */
        struct bf16_pairs pairs[BF16_TILES];
        struct bf16_floats floats[TILES];
    } tile;
};

/* A panel's values come sixteen at a time. */
enum { BF16_STEP = 16, BF16_PAIRS = 4 * PANEL };

/* Sixteen values of F32, F16 or BF16 in bf16. */
typedef __m256i (*bf16_loader)(uint32_t type, const uint8_t *p);

static inline __m256i bf16_load(uint32_t type, const uint8_t *p)
{
    if (type == DTYPE_BF16)
        return load_32(p);
    const size_t size = type == DTYPE_F32 ? 4 : 2;
    const __m256i low = _mm256_srli_epi32(bf16_round(load_8(type, p)), 16),
                  high = _mm256_srli_epi32(bf16_round(load_8(type, p + 8 * size)), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* `width` values of eight rows into columns of pairs, from column to column `stride` bytes. */
ALWAYS_INLINE void bf16_turn(bf16_loader load, uint32_t type, const uint8_t *const row[8], uint32_t width,
                             uint8_t *to, size_t stride)
{
    const size_t size = type == DTYPE_F32 ? 4 : 2;
    for (uint32_t i = 0; i < width; i += BF16_STEP, to += 8 * stride) {
        __m256i v[8];
        for (int r = 0; r < 8; r++) {
            uint8_t part[BF16_STEP * sizeof(float)] = {0};
            const uint8_t *p = row[r] + i * size;
            v[r] = load(type, width - i < BF16_STEP ? memcpy(part, p, (width - i) * size) : p);
        }
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_storeu_si256((__m256i *)(to + j * stride), v[j]);
    }
}

/* Values [k0, k0+width) of rows [m0, m0+TILE) of x, in pairs; rows past the end repeat the last one. */
ALWAYS_INLINE void bf16_pack_pairs(bf16_loader load, const struct matmul *job, uint32_t m0, uint32_t k0,
                                   uint32_t width, void *tile)
{
    const uint8_t *row[TILE];
    for (uint32_t r = 0; r < TILE; r++)
        row[r] = (const uint8_t *)(job->x + least(m0 + r, job->m - 1) * job->x_stride + k0);
    bf16_turn(load, DTYPE_F32, row, width, tile, TILE * 2 * sizeof(uint16_t));
}

/* The same as floats. */
static void bf16_pack_floats(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width, void *tile)
{
    struct bf16_floats *t = tile;
    float_pack_rows(job, true, m0, k0, width, t->x);
    if (width % 2) /* its neighbour in the panel is zero, and this must be a number */
        memset(t->x[width], 0, sizeof t->x[width]);
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL); rows past the end repeat the last one. */
ALWAYS_INLINE void bf16_pack_panel(bf16_loader load, uint32_t type, const struct matmul *job, uint32_t n,
                                   uint32_t k0, uint32_t width, uint8_t *to)
{
    for (uint32_t col = 0; col < PANEL; col += 8) {
        const uint8_t *row[8];
        for (uint32_t r = 0; r < 8; r++) {
            row[r] = job->w + least(n + col + r, job->n1 - 1) * job->row_bytes + 2 * (size_t)k0;
            ask_panel(row[r], PANEL * job->row_bytes, 2 * (size_t)width);
        }
        bf16_turn(load, type, row, width, to + 4 * col, BF16_PAIRS);
    }
}

/* The panel: repacked before, or repacked now, or else decoded into scratch. */
ALWAYS_INLINE const void *bf16_find_panel(bf16_loader load, const struct matmul *job, uint32_t n, uint32_t k0,
                                          uint32_t width)
{
    const struct packed *p = job->packed;
    uint8_t *to = (uint8_t *)&((struct bf16_scratch *)job->scratch)->panel;
    if (p) {
        const size_t at = job->panel + (n - job->n0) / PANEL;
        uint8_t *done = p->done + at * p->slabs + k0 / SLAB;
        uint8_t *packed = p->data + at * p->panel_bytes + k0 / 2 * (size_t)BF16_PAIRS;
        if (*done)
            return packed;
        if (job->repack) {
            to = packed;
            *done = 1;
        }
    }
    if (job->type == DTYPE_F16)
        bf16_pack_panel(load, DTYPE_F16, job, n, k0, width, to);
    else
        bf16_pack_panel(load, DTYPE_BF16, job, n, k0, width, to);
    return to;
}

static const void *bf16_find_plain(const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width)
{
    return bf16_find_panel(bf16_load, job, n, k0, width);
}

static size_t bf16_packed_bytes(uint32_t k)
{
    return (k + BF16_STEP - 1) / BF16_STEP * (BF16_STEP / 2) * (size_t)BF16_PAIRS;
}

/* Few rows stream along a weight that is not repacked: to transpose it would take longer than to read it. */
enum { BF16_FEW = 2 };

struct bf16_rows {
    float x[BF16_FEW][KERNEL_K_MOST]; /* rounded */
};

/* True where that has been done. */
static bool bf16_few(const struct matmul *job)
{
    if (job->fixed || job->packed || job->m > BF16_FEW)
        return false;
    struct bf16_rows *s = job->scratch;
    struct matmul few = *job;
    few.x = s->x[0];
    few.x_stride = KERNEL_K_MOST;
    for (uint32_t r = 0; r < job->m; r++)
        for (uint32_t i = 0; i < job->k; i += 8) {
            const float *x = job->x + r * job->x_stride + i;
            _mm256_storeu_ps(s->x[r] + i, bf16_value(load_upto(DTYPE_F32, (const uint8_t *)x, job->k - i)));
        }
    if (job->type == DTYPE_F16)
        job->m == 1 ? float_few(DTYPE_F16, true, &few, 1) : float_few(DTYPE_F16, true, &few, 2);
    else
        job->m == 1 ? float_few(DTYPE_BF16, false, &few, 1) : float_few(DTYPE_BF16, false, &few, 2);
    return true;
}

/* A product; of `how` the tiles and what becomes of them are given. */
ALWAYS_INLINE void bf16_many(const struct matmul *job, struct many how)
{
    struct bf16_scratch *s = job->scratch;
    how.slab = SLAB;
    how.tiles = (uint8_t *)&s->tile;
    how.panel = &s->panel;
    if (!bf16_few(job))
        many_run(job, &how);
}

/* One whose tiles are floats. */
ALWAYS_INLINE void bf16_many_floats(const struct matmul *job, void (*run)(const struct tile_job *))
{
    bf16_many(job, (struct many){.most = TILES,
                                 .tile_bytes = sizeof(struct bf16_floats),
                                 .pack = bf16_pack_floats,
                                 .find = bf16_find_plain,
                                 .run = run});
}
