/* What integer and float products share: the shape of their blocks, and the 8 x 8 transposition that
 * turns rows into panels. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/matmul_unpack.h"

/* A product of m > 1 rows goes slab by slab along k: the activations of a slab are packed once into
 * tiles of TILE rows, then every panel of PANEL weight rows is decoded once and multiplied with all
 * of them. A panel and a tile fit the first cache together, all tiles the second. */
enum { PANEL = 16, TILE = 8, M_BLOCK = 256, SLAB = 512 };

/* SLAB values of PANEL weight rows, decoded: four neighbours of a row side by side, then the rows. The
 * index of a and b counts groups of 32, or of 16 for types with halves. */
struct q8_panel {
    int8_t q[SLAB / 4][PANEL][4];
    float a[SLAB / 16][PANEL];
    float b[SLAB / 16][PANEL];
};

/* SLAB values of TILE rows of activations in the same order. sum = d * sum of the quants; start is what
 * an integer sum begins with, so that the offset of the weights cancels. Both by 32, or by 16. */
struct q8_tile {
    int8_t q[SLAB / 4][TILE][4];
    float d[SLAB / 32][TILE];
    float sum[SLAB / 16][TILE];
    int32_t start[SLAB / 16][TILE];
};

/* The same for float products, a shorter slab. */
enum { FLOAT_SLAB = 256 };

struct float_panel {
    float w[FLOAT_SLAB][PANEL];
};

struct float_tile {
    float x[FLOAT_SLAB][TILE];
};

/* Where a tile's results go: columns 0..cols-1 of rows 0..rows-1; `add` to what is there. */
struct tile_out {
    float *y;
    size_t stride;
    uint32_t rows, cols;
    bool add;
};

/* Eight rows of eight 32-bit things -> eight columns. */
ALWAYS_INLINE void transpose_8(__m256i v[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) {
        u[4 * h + 0] = _mm256_unpacklo_epi64(t[4 * h], t[4 * h + 2]);
        u[4 * h + 1] = _mm256_unpackhi_epi64(t[4 * h], t[4 * h + 2]);
        u[4 * h + 2] = _mm256_unpacklo_epi64(t[4 * h + 1], t[4 * h + 3]);
        u[4 * h + 3] = _mm256_unpackhi_epi64(t[4 * h + 1], t[4 * h + 3]);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
        v[4 + i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
    }
}

ALWAYS_INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Asks for the bytes some way ahead of p; a streaming kernel is never in the same page for long, and
 * the hardware's own prefetch stops at its end. Addresses past the end of a tensor do no harm. */
ALWAYS_INLINE void ask_ahead(const uint8_t *p, size_t bytes)
{
    enum { AHEAD = 4096 };
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + AHEAD + i), _MM_HINT_T0);
}

ALWAYS_INLINE float sum_8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
