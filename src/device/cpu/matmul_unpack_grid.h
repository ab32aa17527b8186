/* The integer view (matmul_unpack.h) of the types that name points of a grid: IQ1, IQ2 and IQ3. An entry
 * of a grid holds its codes side by side in 16 bits (codec/grids.h), so pdep spreads one to the bytes of a
 * register and the grids stay small enough for the first cache; a shuffle turns codes into magnitudes. */
#pragma once

#include "codec/block.h"
#include "codec/grids.h"
#include "device/cpu/avx.h"

#include <stdint.h>
#include <string.h>

#define GRID_INLINE static inline __attribute__((always_inline))

/* Bit i of `bits` -> byte i: all ones or zero. */
GRID_INLINE __m256i spread_bits(uint32_t bits)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

/* Minus the byte where its bit is set. */
GRID_INLINE __m256i give_signs(__m256i v, uint32_t signs)
{
    __m256i mask = spread_bits(signs);
    return _mm256_sub_epi8(_mm256_xor_si256(v, mask), mask);
}

/* Four times seven sign bits -> four times eight, each with an even number of minus signs. */
GRID_INLINE uint32_t even_signs(uint32_t sevens)
{
    uint32_t eights = _pdep_u32(sevens, 0x7f7f7f7f), parity = eights ^ eights >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return eights | (parity & 0x01010101) << 7;
}

GRID_INLINE uint64_t grid_load(const void *p, size_t bytes)
{
    uint64_t u = 0;
    memcpy(&u, p, bytes);
    return u;
}

/* Four entries of eight codes of 2 bits -> 32 codes. */
GRID_INLINE __m256i codes_of_8(uint16_t e0, uint16_t e1, uint16_t e2, uint16_t e3)
{
    const uint64_t to = 0x0303030303030303;
    return _mm256_setr_epi64x((long long)_pdep_u64(e0, to), (long long)_pdep_u64(e1, to),
                              (long long)_pdep_u64(e2, to), (long long)_pdep_u64(e3, to));
}

/* Eight entries of four codes of 4 bits, two side by side in each argument -> 32 codes. */
GRID_INLINE __m256i codes_of_4(uint32_t e01, uint32_t e23, uint32_t e45, uint32_t e67)
{
    const uint64_t to = 0x0f0f0f0f0f0f0f0f;
    return _mm256_setr_epi64x((long long)_pdep_u64(e01, to), (long long)_pdep_u64(e23, to),
                              (long long)_pdep_u64(e45, to), (long long)_pdep_u64(e67, to));
}

GRID_INLINE __m256i iq2_levels(__m256i codes)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_setr_epi32(0x002b1908, 0, 0, 0)), codes);
}

GRID_INLINE __m256i group_iq2_xxs(const struct block_iq2_xxs *b, int g)
{
    const uint16_t *grid = grid_iq2_xxs;
    uint64_t u = grid_load(b->qs + 4 * g, 8);
    __m256i codes = codes_of_8(grid[u & 255], grid[u >> 8 & 255], grid[u >> 16 & 255], grid[u >> 24 & 255]);
    return give_signs(iq2_levels(codes), even_signs(u >> 32 & 0x0fffffff));
}

GRID_INLINE __m256i group_iq2_xs(const struct block_iq2_xs *b, int g)
{
    const uint16_t *grid = grid_iq2_xs;
    uint64_t u = grid_load(b->qs + 4 * g, 8);
    __m256i codes = codes_of_8(grid[u & 511], grid[u >> 16 & 511], grid[u >> 32 & 511], grid[u >> 48 & 511]);
    return give_signs(iq2_levels(codes), even_signs((uint32_t)_pext_u64(u, 0xfe00fe00fe00fe00)));
}

GRID_INLINE __m256i group_iq2_s(const struct block_iq2_s *b, int g)
{
    const uint16_t *grid = grid_iq2_s;
    const uint8_t *low = b->qs + 4 * g;
    unsigned high = b->qh[g];
    __m256i codes = codes_of_8(grid[low[0] | (high & 3) << 8], grid[low[1] | (high & 12) << 6],
                               grid[low[2] | (high & 48) << 4], grid[low[3] | (high & 192) << 2]);
    return give_signs(iq2_levels(codes), (uint32_t)grid_load(b->signs + 4 * g, 4));
}

GRID_INLINE uint32_t iq3_pair(const uint16_t *grid, unsigned first, unsigned second)
{
    return grid[first] | (uint32_t)grid[second] << 16;
}

GRID_INLINE __m256i group_iq3_xxs(const struct block_iq3_xxs *b, int g)
{
    const __m256i levels =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0));
    const uint16_t *grid = grid_iq3_xxs;
    const uint8_t *q = b->qs + 8 * g;
    __m256i codes = codes_of_4(iq3_pair(grid, q[0], q[1]), iq3_pair(grid, q[2], q[3]),
                               iq3_pair(grid, q[4], q[5]), iq3_pair(grid, q[6], q[7]));
    uint32_t packed = (uint32_t)grid_load(b->gas + 4 * g, 4);
    return give_signs(_mm256_shuffle_epi8(levels, codes), even_signs(packed & 0x0fffffff));
}

/* Raised by 15: 0..30. */
GRID_INLINE __m256i group_iq3_s(const struct block_iq3_s *b, int g)
{
    const uint16_t *grid = grid_iq3_s;
    const uint8_t *q = b->qs + 8 * g;
    unsigned high = (unsigned)b->qh[g] << 8; /* bit 8 + k is bit 8 of index k */
    uint32_t pair[4];
    for (int k = 0; k < 4; k++)
        pair[k] =
            iq3_pair(grid, q[2 * k] | (high >> 2 * k & 256), q[2 * k + 1] | (high >> (2 * k + 1) & 256));
    __m256i codes = codes_of_4(pair[0], pair[1], pair[2], pair[3]);
    __m256i v = _mm256_add_epi8(_mm256_add_epi8(codes, codes), _mm256_set1_epi8(1));
    v = give_signs(v, (uint32_t)grid_load(b->signs + 4 * g, 4));
    return _mm256_add_epi8(v, _mm256_set1_epi8(15));
}

/* Eight times (grid +- 1/8), raised by 9: 8 code + 2, or 8 code where the shift is minus. */
GRID_INLINE __m256i iq1_raised(__m256i codes, __m256i plus)
{
    return _mm256_add_epi8(_mm256_slli_epi16(codes, 3), _mm256_and_si256(plus, _mm256_set1_epi8(2)));
}

GRID_INLINE __m256i group_iq1_s(const struct block_iq1_s *b, int g)
{
    const uint16_t *grid = grid_iq1;
    const uint8_t *low = b->qs + 4 * g;
    unsigned high = b->qh[g];
    __m256i codes = codes_of_8(grid[low[0] | (high & 7) << 8], grid[low[1] | (high & 0070) << 5],
                               grid[low[2] | (high & 0700) << 2], grid[low[3] | (high & 07000) >> 1]);
    return iq1_raised(codes, _mm256_set1_epi8(high >> 15 ? 0 : -1));
}

GRID_INLINE __m256i group_iq1_m(const struct block_iq1_m *b, int g)
{
    const __m256i minus = _mm256_setr_epi64x(0x0008000800080008, 0x0080008000800080, 0x0800080008000800,
                                             (long long)0x8000800080008000u);
    const uint16_t *grid = grid_iq1;
    const uint8_t *low = b->qs + 4 * g;
    unsigned high = b->qh[2 * g] | (unsigned)b->qh[2 * g + 1] << 8;
    __m256i codes = codes_of_8(grid[low[0] | (high & 7) << 8], grid[low[1] | (high & 0x70) << 4],
                               grid[low[2] | (high & 0x700)], grid[low[3] | (high & 0x7000) >> 4]);
    __m256i shifts = _mm256_and_si256(_mm256_set1_epi16((short)high), minus);
    return iq1_raised(codes, _mm256_cmpeq_epi16(shifts, _mm256_setzero_si256()));
}
