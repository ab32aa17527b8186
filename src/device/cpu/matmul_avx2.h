/* Tiles of the AVX2 tier: bytes are multiplied in pairs to 16 bits, and summed there as long as
 * they fit. A panel is taken in two halves of eight weight rows, a tile in two halves of four rows. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* Signed weights give their sign to the activations instead of being raised: 255 * 127 * 2 would not
 * fit 16 bits. */
enum {
    SIGNED_OFFSET = 0,
    HALF_TILE = TILE / 2,
    PACKED_MOST = 2,
    LINE_ALONE = 0,
    SUMS_OF_16 = 1,
    FILE_STREAMS = 1
};

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    (void)is_signed;
    return w;
}

#include "device/cpu/matmul_packed.h"
#include "device/cpu/matmul_ready.h"

/* 16 sums of two products; |w| <= 128 and |x| <= 127 cannot overflow. */
ALWAYS_INLINE __m256i dot_pairs(bool is_signed, __m256i w, __m256i x)
{
    if (is_signed)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

ALWAYS_INLINE __m256i dot_bytes(bool is_signed, __m256i w, __m256i x)
{
    return _mm256_madd_epi16(dot_pairs(is_signed, w, x), _mm256_set1_epi16(1));
}

/* The first `cols` of eight floats, and zeros. */
ALWAYS_INLINE __m256i columns_mask(int cols)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(cols), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS_INLINE __m256 columns_load(const float *y, int cols)
{
    return _mm256_maskload_ps(y, columns_mask(cols));
}

ALWAYS_INLINE void columns_store(float *y, int cols, __m256 v)
{
    _mm256_maskstore_ps(y, columns_mask(cols), v);
}

#include "device/cpu/matmul_tile.h"

/* dot = the products of fours [from, to) of group g, line by line, with what they begin with. */
ALWAYS_INLINE void tile_dots(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                             struct tile_piece p, uint32_t g, int from, int to, __m256i dot[TILE])
{
    const int depth = unit_traits[type].depth < to - from ? unit_traits[type].depth : to - from;
    const int sums = p.rows * p.lines * p.wide;
#pragma GCC unroll 8
    for (int j = from; j < to; j += depth) {
        __m256i pairs[TILE] = {0};
#pragma GCC unroll 8
        for (int n = j; n < j + depth; n++) {
            for (int i = 0; i < sums; i++) {
                __m256i w = source_four(type, s, g, n, p.col + 8 * (i % p.wide));
                __m256i x = _mm256_set1_epi32((int)load_u32(t->q[8 * g + n][p.lines * p.row + i / p.wide]));
                __m256i two = dot_pairs(unit_traits[type].is_signed, w, x);
                pairs[i] = n > j ? _mm256_add_epi16(pairs[i], two) : two;
            }
        }
        for (int i = 0; i < sums; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1));
            dot[i] = j > from ? _mm256_add_epi32(dot[i], sum) : sum;
        }
    }
    const int32_t *start = t->start[unit_traits[type].halves ? 2 * g + (from > 0) : g];
    for (int i = 0; i < sums && !unit_traits[type].has_min && !unit_traits[type].is_signed; i++)
        dot[i] = _mm256_add_epi32(dot[i], _mm256_set1_epi32(start[p.lines * p.row + i / p.wide]));
}

#define q8_tile_panel q8_tile_panel_avx2
void q8_tile_panel(uint32_t type, const struct q8_tile_job *job);
