/* The integer view of a quantised weight row, for the vector tiers (AVX2 instructions only; both
 * tiers compile it). A row is cut into units of 256 values: one block of a K type, or eight blocks of
 * a small one (NVFP4 has four, Q1_0 two). In a unit, group g holds values 32g..32g+31, in order, as bytes q, and
 *
 *     w = a * (q - offset) + b
 *
 * with a and b of the group of 32 (8 of each a unit) or of its halves of 16 (16 of each). Every
 * function takes the type as a constant and folds to the code of that type. */
#pragma once

#include "codec/block.h"
#include "codec/dtype.h"
#include "codec/half.h"
#include "device/cpu/avx.h"
#include "device/cpu/matmul_unpack_grid.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { UNIT = 256, UNIT_GROUPS = UNIT / 32, UNIT_MOST_BYTES = 272 };

/* a and b of one unit: [0] alone for groups of 32, both for groups of 16. */
struct unit_scales {
    __m256 a[2], b[2];
};

/* What the vector tiers know of a block type: one row each. A constant type folds to constants. The last five are of
 * repacked weights (matmul_packed.h); types without `low` are never repacked: they decode by large tables, or are rare. */
struct unit_traits {
    uint16_t bytes; /* of a unit */
    uint8_t offset;
    bool is_signed; /* bytes use all eight bits; those of the other types are unsigned and below 64 */
    bool halves;    /* scales belong to 16 values instead of 32 */
    bool has_min;   /* there is a b */
    uint8_t depth;  /* sums of pairs of bytes that fit 16 bits: 2 * 127 * largest byte * depth < 32768 */
    uint8_t low;    /* lower bits of a value */
    uint8_t high;   /* bits above them */
    bool headed;    /* units have heads */
    bool coded;     /* values are codes of sixteen levels */
    bool streams; /* one line waits for memory in the file's layout, too: it need not be repacked for that */
};

static const struct unit_traits unit_traits[DTYPE_MOST] = {
    [DTYPE_Q4_0] = {.bytes = 8 * sizeof(struct block_q4_0), .offset = 8, .depth = 8, .low = 4},
    [DTYPE_Q4_1] = {.bytes = 8 * sizeof(struct block_q4_1), .has_min = true, .depth = 8, .low = 4},
    [DTYPE_Q5_0] = {.bytes = 8 * sizeof(struct block_q5_0), .offset = 16, .depth = 4, .low = 4, .high = 1},
    [DTYPE_Q5_1] = {.bytes = 8 * sizeof(struct block_q5_1), .has_min = true, .depth = 4, .low = 4, .high = 1},
    [DTYPE_Q8_0] =
        {.bytes = 8 * sizeof(struct block_q8_0), .is_signed = true, .depth = 1, .low = 8, .streams = true},
    [DTYPE_IQ4_NL] =
        {.bytes = 8 * sizeof(struct block_iq4_nl), .is_signed = true, .depth = 1, .low = 4, .coded = true},
    [DTYPE_MXFP4] =
        {.bytes = 8 * sizeof(struct block_mxfp4), .offset = 12, .depth = 4, .low = 4, .coded = true},
    [DTYPE_NVFP4] = {.bytes = 4 * sizeof(struct block_nvfp4), .offset = 12, .halves = true, .depth = 2},
    [DTYPE_Q1_0] = {.bytes = 2 * sizeof(struct block_q1_0), .offset = 1, .depth = 4},
    [DTYPE_Q2_K] = {.bytes = sizeof(struct block_q2_k),
                    .halves = true,
                    .has_min = true,
                    .depth = 8,
                    .low = 2,
                    .headed = true},
    [DTYPE_Q3_K] = {.bytes = sizeof(struct block_q3_k),
                    .offset = 4,
                    .halves = true,
                    .depth = 2,
                    .low = 2,
                    .high = 1,
                    .headed = true},
    [DTYPE_Q4_K] = {.bytes = sizeof(struct block_q4_k),
                    .has_min = true,
                    .depth = 8,
                    .low = 4,
                    .headed = true,
                    .streams = true},
    [DTYPE_Q5_K] = {.bytes = sizeof(struct block_q5_k),
                    .has_min = true,
                    .depth = 4,
                    .low = 4,
                    .high = 1,
                    .headed = true,
                    .streams = true},
    [DTYPE_Q6_K] = {.bytes = sizeof(struct block_q6_k),
                    .offset = 32,
                    .halves = true,
                    .depth = 2,
                    .low = 4,
                    .high = 2,
                    .headed = true,
                    .streams = true},
    [DTYPE_IQ1_S] = {.bytes = sizeof(struct block_iq1_s), .offset = 9, .depth = 4},
    [DTYPE_IQ1_M] = {.bytes = sizeof(struct block_iq1_m), .offset = 9, .halves = true, .depth = 2},
    [DTYPE_IQ2_XXS] = {.bytes = sizeof(struct block_iq2_xxs), .is_signed = true, .depth = 1},
    [DTYPE_IQ2_XS] = {.bytes = sizeof(struct block_iq2_xs), .is_signed = true, .halves = true, .depth = 1},
    [DTYPE_IQ2_S] = {.bytes = sizeof(struct block_iq2_s), .is_signed = true, .halves = true, .depth = 1},
    [DTYPE_IQ3_XXS] = {.bytes = sizeof(struct block_iq3_xxs), .is_signed = true, .depth = 1},
    [DTYPE_IQ3_S] = {.bytes = sizeof(struct block_iq3_s), .offset = 15, .depth = 4},
    [DTYPE_IQ4_XS] = {.bytes = sizeof(struct block_iq4_xs),
                      .is_signed = true,
                      .depth = 1,
                      .low = 4,
                      .headed = true,
                      .coded = true},
    [DTYPE_TQ1_0] = {.bytes = sizeof(struct block_tq1_0), .offset = 1, .depth = 4},
    [DTYPE_TQ2_0] = {.bytes = sizeof(struct block_tq2_0), .offset = 1, .depth = 4},
};
_Static_assert(8 * sizeof(struct block_q8_0) == UNIT_MOST_BYTES, "the largest unit");

ALWAYS_INLINE __m256i load_32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

ALWAYS_INLINE uint32_t load_u32(const void *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

ALWAYS_INLINE __m256i low_nibbles(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(0x0f));
}

/* The n-th nibble (0, 1) or the n-th pair of bits (0..3) of every byte. */
ALWAYS_INLINE __m256i nibble(__m256i v, int n)
{
    return low_nibbles(n ? _mm256_srli_epi16(v, 4) : v);
}

ALWAYS_INLINE __m256i bit_pair(__m256i v, int n)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 2 * n), _mm256_set1_epi8(3));
}

/* Bit n of every byte, moved to bit `to`. */
ALWAYS_INLINE __m256i bit_to(__m256i v, int n, int to)
{
    __m256i moved = n > to ? _mm256_srli_epi16(v, n - to) : _mm256_slli_epi16(v, to - n);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(1 << to)));
}

/* 16 bytes of | q(j+16) | q(j) | -> 32 nibbles in order. */
ALWAYS_INLINE __m256i nibbles_16(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return low_nibbles(_mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1));
}

/* 32 bits -> 32 bytes of 0 or 16. */
ALWAYS_INLINE __m256i fifth_bits(const uint8_t *qh)
{
    return _mm256_and_si256(spread_bits(load_u32(qh)), _mm256_set1_epi8(16));
}

ALWAYS_INLINE __m256i iq4_levels(__m256i q)
{
    const __m256i levels = _mm256_broadcastsi128_si256(_mm_setr_epi8(BLOCK_IQ4_LEVELS));
    return _mm256_shuffle_epi8(levels, q);
}

/* Twice the value, plus the offset 12. */
ALWAYS_INLINE __m256i e2m1_levels(__m256i q)
{
    const __m256i levels = _mm256_broadcastsi128_si256(_mm_setr_epi8(BLOCK_E2M1_TWICE));
    return _mm256_shuffle_epi8(_mm256_add_epi8(levels, _mm256_set1_epi8(12)), q); /* the sum is a constant */
}

/* 16 bytes of two groups of NVFP4, each 8 of | q(j+8) | q(j) | -> 32 nibbles in order. */
ALWAYS_INLINE __m256i nibbles_8(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p), high = _mm_srli_epi16(v, 4);
    return low_nibbles(_mm256_set_m128i(_mm_unpackhi_epi64(v, high), _mm_unpacklo_epi64(v, high)));
}

/* One base-3 digit of each of 16 bytes: `power` is 3 to its place. */
ALWAYS_INLINE __m128i trits(__m128i bytes, __m256i power)
{
    __m256i v = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(bytes), power);
    v = _mm256_mullo_epi16(_mm256_and_si256(v, _mm256_set1_epi16(255)), _mm256_set1_epi16(3));
    v = _mm256_srli_epi16(v, 8);
    return _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

ALWAYS_INLINE __m128i trits_16(const uint8_t *p, int power)
{
    return trits(_mm_loadu_si128((const __m128i *)p), _mm256_set1_epi16((short)power));
}

/* Four digits of each of four bytes. */
ALWAYS_INLINE __m128i trits_4(const uint8_t *p)
{
    const __m256i power =
        _mm256_setr_epi64x(0x0001000100010001, 0x0003000300030003, 0x0009000900090009, 0x001b001b001b001b);
    return trits(_mm_set1_epi32((int)load_u32(p)), power);
}

/* codec/block.h draws where the digits are: 5 x 32, 5 x 16, 4 x 4. */
ALWAYS_INLINE __m256i group_tq1_0(const struct block_tq1_0 *b, int g)
{
    static const uint8_t power[] = {1, 3, 9, 27, 81};
    if (g < 5)
        return _mm256_set_m128i(trits_16(b->qs + 16, power[g]), trits_16(b->qs, power[g]));
    const int n = 2 * (g - 5);
    return _mm256_set_m128i(g < 7 ? trits_16(b->qs + 32, power[n + 1]) : trits_4(b->qh),
                            trits_16(b->qs + 32, power[n]));
}

/* The 32 bytes q of group g of the unit at p. */
ALWAYS_INLINE __m256i unit_group(uint32_t type, const uint8_t *p, int g)
{
    const uint8_t *small = p + (size_t)g * (unit_traits[type].bytes / 8);
    switch (type) {
    case DTYPE_Q4_0:
        return nibbles_16(small + 2);
    case DTYPE_Q4_1:
        return nibbles_16(small + 4);
    case DTYPE_Q5_0:
        return _mm256_or_si256(nibbles_16(small + 6), fifth_bits(small + 2));
    case DTYPE_Q5_1:
        return _mm256_or_si256(nibbles_16(small + 8), fifth_bits(small + 4));
    case DTYPE_Q8_0:
        return load_32(small + 2);
    case DTYPE_IQ4_NL:
        return iq4_levels(nibbles_16(small + 2));
    case DTYPE_MXFP4:
        return e2m1_levels(nibbles_16(small + 1));
    case DTYPE_Q2_K: {
        const struct block_q2_k *b = (const void *)p;
        return bit_pair(load_32(b->qs + 32 * (g / 4)), g % 4);
    }
    case DTYPE_Q3_K: {
        const struct block_q3_k *b = (const void *)p;
        return _mm256_or_si256(bit_pair(load_32(b->qs + 32 * (g / 4)), g % 4),
                               bit_to(load_32(b->hmask), g, 2));
    }
    case DTYPE_Q4_K: {
        const struct block_q4_k *b = (const void *)p;
        return nibble(load_32(b->qs + 32 * (g / 2)), g % 2);
    }
    case DTYPE_Q5_K: {
        const struct block_q5_k *b = (const void *)p;
        return _mm256_or_si256(nibble(load_32(b->qs + 32 * (g / 2)), g % 2), bit_to(load_32(b->qh), g, 4));
    }
    case DTYPE_Q6_K: {
        const struct block_q6_k *b = (const void *)p;
        __m256i low = nibble(load_32(b->ql + 64 * (g / 4) + 32 * (g % 2)), g % 4 / 2);
        __m256i high = load_32(b->qh + 32 * (g / 4));
        high =
            g % 4 < 2 ? _mm256_slli_epi16(high, 4 - 2 * (g % 4)) : _mm256_srli_epi16(high, 2 * (g % 4) - 4);
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    }
    case DTYPE_IQ1_S:
        return group_iq1_s((const void *)p, g);
    case DTYPE_IQ1_M:
        return group_iq1_m((const void *)p, g);
    case DTYPE_IQ2_XXS:
        return group_iq2_xxs((const void *)p, g);
    case DTYPE_IQ2_XS:
        return group_iq2_xs((const void *)p, g);
    case DTYPE_IQ2_S:
        return group_iq2_s((const void *)p, g);
    case DTYPE_IQ3_XXS:
        return group_iq3_xxs((const void *)p, g);
    case DTYPE_IQ3_S:
        return group_iq3_s((const void *)p, g);
    case DTYPE_TQ1_0:
        return group_tq1_0((const void *)p, g);
    case DTYPE_TQ2_0: {
        const struct block_tq2_0 *b = (const void *)p;
        return bit_pair(load_32(b->qs + 32 * (g / 4)), g % 4);
    }
    case DTYPE_Q1_0: {
        const struct block_q1_0 *b = (const struct block_q1_0 *)(const void *)p + g / 4;
        return _mm256_and_si256(spread_bits(load_u32(b->qs + 4 * (g % 4))), _mm256_set1_epi8(2));
    }
    case DTYPE_NVFP4: {
        const struct block_nvfp4 *b = (const struct block_nvfp4 *)(const void *)p + g / 2;
        return e2m1_levels(nibbles_8(b->qs + 16 * (g % 2)));
    }
    default: {
        const struct block_iq4_xs *b = (const void *)p;
        return iq4_levels(nibbles_16(b->qs + 16 * g));
    }
    }
}

ALWAYS_INLINE short load_i16(const uint8_t *p)
{
    short h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* Eight fp16, `step` bytes apart. */
ALWAYS_INLINE __m256 gather_fp16(const uint8_t *p, size_t step)
{
    return _mm256_cvtph_ps(_mm_setr_epi16(
        load_i16(p), load_i16(p + step), load_i16(p + 2 * step), load_i16(p + 3 * step),
        load_i16(p + 4 * step), load_i16(p + 5 * step), load_i16(p + 6 * step), load_i16(p + 7 * step)));
}

ALWAYS_INLINE __m256 fp16_all(uint16_t h)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)h));
}

ALWAYS_INLINE __m256 bytes_to_ps(uint64_t eight)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)eight)));
}

/* The scales of a block of 256, as small numbers that d and min, fp16, scale: a byte for each group in `first` and its
 * minimum in `second`; or, with halves, sixteen bytes, those of Q2_K with the scale below and the minimum above. */
struct unit_bytes {
    uint64_t first, second;
    uint16_t d, min; /* min with its sign turned */
};

/* The 6-bit scales and minima of Q4_K and Q5_K (codec/block.h draws them). */
ALWAYS_INLINE void bytes_q4_k(const struct block_q4_k *b, struct unit_bytes *u)
{
    const uint64_t six = 0x3f3f3f3f, top = 0x30303030, four = 0x0f0f0f0f;
    uint64_t u0 = load_u32(b->scales), u1 = load_u32(b->scales + 4), u2 = load_u32(b->scales + 8);
    u->first = (u0 & six) | ((u2 & four) | (u0 >> 2 & top)) << 32;
    u->second = (u1 & six) | ((u2 >> 4 & four) | (u1 >> 2 & top)) << 32;
    u->d = b->d;
    u->min = b->dmin ^ 0x8000;
}

/* Every byte less 32: none is above 63, so that no borrow leaves it. */
ALWAYS_INLINE uint64_t bytes_less_32(uint64_t eight)
{
    const uint64_t top = 0x8080808080808080;
    return ((eight | top) - 0x2020202020202020) ^ top;
}

ALWAYS_INLINE void bytes_q3_k(const struct block_q3_k *b, struct unit_bytes *u)
{
    const uint64_t four = 0x0f0f0f0f, two = 0x03030303;
    uint64_t u0 = load_u32(b->scales), u1 = load_u32(b->scales + 4), u2 = load_u32(b->scales + 8);
    u->first = bytes_less_32((u0 & four) | (u2 & two) << 4 | ((u1 & four) | (u2 >> 2 & two) << 4) << 32);
    u->second = bytes_less_32((u0 >> 4 & four) | (u2 >> 4 & two) << 4 |
                              ((u1 >> 4 & four) | (u2 >> 6 & two) << 4) << 32);
    u->d = b->d;
}

ALWAYS_INLINE void bytes_iq4_xs(const struct block_iq4_xs *b, struct unit_bytes *u)
{
    u->first = bytes_less_32(_pdep_u64(load_u32(b->scales_l), 0x0f0f0f0f0f0f0f0f) |
                             _pdep_u64(b->scales_h, 0x3030303030303030));
    u->d = b->d;
}

ALWAYS_INLINE void unit_scale_bytes(uint32_t type, const uint8_t *p, struct unit_bytes *u)
{
    *u = (struct unit_bytes){0};
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) { /* the heads of both are the same */
        bytes_q4_k((const void *)p, u);
    } else if (type == DTYPE_Q3_K) {
        bytes_q3_k((const void *)p, u);
    } else if (type == DTYPE_IQ4_XS) {
        bytes_iq4_xs((const void *)p, u);
    } else {
        const struct block_q6_k *q6 = (const void *)p;
        const struct block_q2_k *q2 = (const void *)p;
        const uint8_t *scales = type == DTYPE_Q2_K ? q2->scales : (const uint8_t *)q6->scales;
        memcpy(&u->first, scales, 8);
        memcpy(&u->second, scales + 8, 8);
        u->d = type == DTYPE_Q2_K ? q2->d : q6->d;
        u->min = type == DTYPE_Q2_K ? q2->dmin ^ 0x8000 : 0;
    }
}

/* The same as floats. */
ALWAYS_INLINE void scales_of_bytes(uint32_t type, const uint8_t *p, struct unit_scales *s)
{
    const uint64_t four = 0x0f0f0f0f0f0f0f0f;
    struct unit_bytes u;
    unit_scale_bytes(type, p, &u);
    const __m256 d = fp16_all(u.d), min = fp16_all(u.min);
    if (type == DTYPE_Q2_K) {
        s->a[0] = _mm256_mul_ps(bytes_to_ps(u.first & four), d);
        s->a[1] = _mm256_mul_ps(bytes_to_ps(u.second & four), d);
        s->b[0] = _mm256_mul_ps(bytes_to_ps(u.first >> 4 & four), min);
        s->b[1] = _mm256_mul_ps(bytes_to_ps(u.second >> 4 & four), min);
        return;
    }
    s->a[0] = _mm256_mul_ps(bytes_to_ps(u.first), d);
    if (unit_traits[type].halves)
        s->a[1] = _mm256_mul_ps(bytes_to_ps(u.second), d);
    else if (unit_traits[type].has_min)
        s->b[0] = _mm256_mul_ps(bytes_to_ps(u.second), min);
}

/* (1 + 2 s) * d */
ALWAYS_INLINE __m256 odd_scales(__m256i s, __m256 d)
{
    __m256 twice = _mm256_cvtepi32_ps(_mm256_add_epi32(s, s));
    return _mm256_mul_ps(_mm256_add_ps(twice, _mm256_set1_ps(1)), d);
}

/* Eight nibbles, or eight threes of bits, one in each byte. */
ALWAYS_INLINE __m256i bytes_to_ints(uint64_t eight)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)eight));
}

ALWAYS_INLINE __m256i nibbles_to_ints(const uint8_t *p)
{
    return bytes_to_ints(_pdep_u64(load_u32(p), 0x0f0f0f0f0f0f0f0f));
}

ALWAYS_INLINE void scales_iq1_m(const uint8_t *p, struct unit_scales *s)
{
    const struct block_iq1_m *b = (const void *)p;
    uint64_t u = grid_load(b->scales, 8), threes = _pext_u64(u, 0x0fff0fff0fff0fff);
    __m256 d = _mm256_mul_ps(fp16_all((uint16_t)_pext_u64(u, 0xf000f000f000f000)), _mm256_set1_ps(0.125f));
    for (int i = 0; i < 2; i++)
        s->a[i] = odd_scales(bytes_to_ints(_pdep_u64(threes >> 24 * i, 0x0707070707070707)), d);
}

/* Every scale of IQ2 and IQ3 is (1 + 2 s) times a part of d. */
ALWAYS_INLINE void scales_iq(uint32_t type, const uint8_t *p, struct unit_scales *s)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    const float part = type == DTYPE_IQ3_S ? 1 : type == DTYPE_IQ3_XXS ? 0.25f : 0.125f; /* IQ1_S: 1/8 */
    const __m256 d = _mm256_mul_ps(fp16_all(half), _mm256_set1_ps(part));
    if (type == DTYPE_IQ1_S) {
        __m256i high =
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + offsetof(struct block_iq1_s, qh))));
        s->a[0] = odd_scales(_mm256_and_si256(_mm256_srli_epi32(high, 12), _mm256_set1_epi32(7)), d);
    } else if (type == DTYPE_IQ2_XXS) {
        const struct block_iq2_xxs *b = (const void *)p;
        __m256 low = _mm256_castsi256_ps(load_32(b->qs)), high = _mm256_castsi256_ps(load_32(b->qs + 16));
        __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)); /* within halves */
        s->a[0] = odd_scales(_mm256_srli_epi32(_mm256_permute4x64_epi64(odd, 0xd8), 28), d);
    } else if (type == DTYPE_IQ3_XXS) {
        const struct block_iq3_xxs *b = (const void *)p;
        s->a[0] = odd_scales(_mm256_srli_epi32(load_32(b->gas), 28), d);
    } else if (type == DTYPE_IQ3_S) {
        s->a[0] = odd_scales(nibbles_to_ints(((const struct block_iq3_s *)(const void *)p)->scales), d);
    } else {
        const uint8_t *scales = type == DTYPE_IQ2_XS ? ((const struct block_iq2_xs *)(const void *)p)->scales
                                                     : ((const struct block_iq2_s *)(const void *)p)->scales;
        s->a[0] = odd_scales(nibbles_to_ints(scales), d);
        s->a[1] = odd_scales(nibbles_to_ints(scales + 4), d);
    }
}

/* Eight e4m3 without sign, halved because the levels are doubled. The bits are those of a float with a
 * shorter exponent; of the two NaN 0x7f is read as 0 and 0xff as 480. */
ALWAYS_INLINE __m256 e4m3_halved(uint64_t eight)
{
    __m256i e = bytes_to_ints(eight), bits = _mm256_and_si256(e, _mm256_set1_epi32(0x7f));
    __m256 v = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 20)), _mm256_set1_ps(0x1p119f));
    __m256 nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f)));
    __m256 zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(e, bits));
    return _mm256_blendv_ps(v, _mm256_andnot_ps(zero, _mm256_set1_ps(240)), nan);
}

ALWAYS_INLINE void scales_nvfp4(const uint8_t *p, struct unit_scales *s)
{
    enum { STEP = sizeof(struct block_nvfp4) };
    for (int i = 0; i < 2; i++) {
        uint64_t low = load_u32(p + 2 * i * STEP), high = load_u32(p + (2 * i + 1) * STEP);
        s->a[i] = e4m3_halved(low | high << 32);
    }
}

ALWAYS_INLINE void scales_q1_0(const uint8_t *p, struct unit_scales *s)
{
    const struct block_q1_0 *b = (const void *)p;
    s->a[0] = _mm256_blend_ps(fp16_all(b[0].d), fp16_all(b[1].d), 0xf0);
}

/* 2^(e-127) for each group, halved because the levels are doubled. e is a float's exponent except at its
 * ends: 0 is 2^-127, which is subnormal, and 255 is NaN. */
ALWAYS_INLINE void scales_mxfp4(const uint8_t *p, struct unit_scales *s)
{
    enum { STEP = sizeof(struct block_mxfp4) };
    uint64_t eight = 0;
    for (int i = 0; i < 8; i++)
        eight |= (uint64_t)p[i * STEP] << 8 * i;
    __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)eight)), bits = _mm256_slli_epi32(e, 23);
    __m256i low = _mm256_cmpeq_epi32(e, _mm256_setzero_si256()),
            high = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    bits = _mm256_or_si256(bits, _mm256_and_si256(_mm256_or_si256(low, high), _mm256_set1_epi32(0x00400000)));
    s->a[0] = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}

ALWAYS_INLINE void unit_scales(uint32_t type, const uint8_t *p, struct unit_scales *s)
{
    size_t step = unit_traits[type].bytes / 8;
    switch (type) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        s->b[0] = gather_fp16(p + 2, step);
        s->a[0] = gather_fp16(p, step);
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
        s->a[0] = gather_fp16(p, step);
        break;
    case DTYPE_MXFP4:
        scales_mxfp4(p, s);
        break;
    case DTYPE_IQ1_M:
        scales_iq1_m(p, s);
        break;
    case DTYPE_IQ1_S:
    case DTYPE_IQ2_XXS:
    case DTYPE_IQ2_XS:
    case DTYPE_IQ2_S:
    case DTYPE_IQ3_XXS:
    case DTYPE_IQ3_S:
        scales_iq(type, p, s);
        break;
    case DTYPE_TQ1_0:
        s->a[0] = fp16_all(((const struct block_tq1_0 *)(const void *)p)->d);
        break;
    case DTYPE_TQ2_0:
        s->a[0] = fp16_all(((const struct block_tq2_0 *)(const void *)p)->d);
        break;
    case DTYPE_Q1_0:
        scales_q1_0(p, s);
        break;
    case DTYPE_NVFP4:
        scales_nvfp4(p, s);
        break;
    default: /* IQ4_XS and the K types */
        scales_of_bytes(type, p, s);
    }
}
