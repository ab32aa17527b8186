/* The integer view of a quantised weight row, for the vector tiers (AVX2 instructions only; both
 * tiers compile it). A row is cut into units of 256 values: one block of a K type, or eight blocks of
 * a small one. In a unit, group g holds values 32g..32g+31, in order, as bytes q, and
 *
 *     w = a * (q - offset) + b
 *
 * with a and b of the group of 32 (8 of each a unit) or of its halves of 16 (16 of each). Every
 * function takes the type as a constant and folds to the code of that type. */
#pragma once

#include "base/block.h"
#include "base/dtype.h"
#include "base/half.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { UNIT = 256, UNIT_GROUPS = UNIT / 32, UNIT_MOST_BYTES = 272 };

/* a and b of one unit: [0] alone for groups of 32, both for groups of 16. */
struct unit_scales {
    __m256 a[2], b[2];
};

ALWAYS_INLINE uint32_t unit_bytes(uint32_t type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return 8 * sizeof(struct block_q4_0);
    case DTYPE_Q4_1:
        return 8 * sizeof(struct block_q4_1);
    case DTYPE_Q5_0:
        return 8 * sizeof(struct block_q5_0);
    case DTYPE_Q5_1:
        return 8 * sizeof(struct block_q5_1);
    case DTYPE_Q8_0:
        return 8 * sizeof(struct block_q8_0);
    case DTYPE_IQ4_NL:
        return 8 * sizeof(struct block_iq4_nl);
    case DTYPE_MXFP4:
        return 8 * sizeof(struct block_mxfp4);
    case DTYPE_Q2_K:
        return sizeof(struct block_q2_k);
    case DTYPE_Q3_K:
        return sizeof(struct block_q3_k);
    case DTYPE_Q4_K:
        return sizeof(struct block_q4_k);
    case DTYPE_Q5_K:
        return sizeof(struct block_q5_k);
    case DTYPE_Q6_K:
        return sizeof(struct block_q6_k);
    default:
        return sizeof(struct block_iq4_xs);
    }
}
_Static_assert(8 * sizeof(struct block_q8_0) == UNIT_MOST_BYTES, "the largest unit");

/* Scales belong to 16 values instead of 32. */
ALWAYS_INLINE bool unit_halves(uint32_t type)
{
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
}

/* There is a b. */
ALWAYS_INLINE bool unit_has_min(uint32_t type)
{
    return type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q2_K || type == DTYPE_Q4_K ||
           type == DTYPE_Q5_K;
}

/* The bytes are signed and use all eight bits; those of the other types are unsigned and below 64. */
ALWAYS_INLINE bool unit_signed(uint32_t type)
{
    return type == DTYPE_Q8_0 || type == DTYPE_IQ4_NL || type == DTYPE_IQ4_XS;
}

ALWAYS_INLINE int unit_offset(uint32_t type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return 8;
    case DTYPE_Q5_0:
        return 16;
    case DTYPE_MXFP4:
        return 12;
    case DTYPE_Q3_K:
        return 4;
    case DTYPE_Q6_K:
        return 32;
    default:
        return 0;
    }
}

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
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_u32(qh)), spread);
    v = _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
    return _mm256_and_si256(v, _mm256_set1_epi8(16));
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

/* The 32 bytes q of group g of the unit at p. */
ALWAYS_INLINE __m256i unit_group(uint32_t type, const uint8_t *p, int g)
{
    const uint8_t *small = p + (size_t)g * (unit_bytes(type) / 8);
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

/* The 6-bit scales and minima of Q4_K and Q5_K (base/block.h draws them), eight bytes each. */
ALWAYS_INLINE void scales_q4_k(const uint8_t *p, struct unit_scales *s)
{
    const struct block_q4_k *b = (const void *)p;
    const uint64_t six = 0x3f3f3f3f, top = 0x30303030, four = 0x0f0f0f0f;
    uint64_t u0 = load_u32(b->scales), u1 = load_u32(b->scales + 4), u2 = load_u32(b->scales + 8);
    uint64_t scale = (u0 & six) | ((u2 & four) | (u0 >> 2 & top)) << 32;
    uint64_t min = (u1 & six) | ((u2 >> 4 & four) | (u1 >> 2 & top)) << 32;
    s->a[0] = _mm256_mul_ps(bytes_to_ps(scale), fp16_all(b->d));
    s->b[0] = _mm256_mul_ps(bytes_to_ps(min), fp16_all(b->dmin ^ 0x8000));
}

ALWAYS_INLINE void scales_q3_k(const uint8_t *p, struct unit_scales *s)
{
    const struct block_q3_k *b = (const void *)p;
    const uint64_t four = 0x0f0f0f0f, two = 0x03030303;
    uint64_t u0 = load_u32(b->scales), u1 = load_u32(b->scales + 4), u2 = load_u32(b->scales + 8);
    uint64_t low = (u0 & four) | (u2 & two) << 4 | ((u1 & four) | (u2 >> 2 & two) << 4) << 32;
    uint64_t high = (u0 >> 4 & four) | (u2 >> 4 & two) << 4 | ((u1 >> 4 & four) | (u2 >> 6 & two) << 4) << 32;
    __m256 d = fp16_all(b->d), centre = _mm256_set1_ps(32);
    s->a[0] = _mm256_mul_ps(_mm256_sub_ps(bytes_to_ps(low), centre), d);
    s->a[1] = _mm256_mul_ps(_mm256_sub_ps(bytes_to_ps(high), centre), d);
}

ALWAYS_INLINE void scales_q2_k(const uint8_t *p, struct unit_scales *s)
{
    const struct block_q2_k *b = (const void *)p;
    const uint64_t four = 0x0f0f0f0f0f0f0f0f;
    __m256 d = fp16_all(b->d), min = fp16_all(b->dmin ^ 0x8000);
    for (int i = 0; i < 2; i++) {
        uint64_t u;
        memcpy(&u, b->scales + 8 * i, sizeof u);
        s->a[i] = _mm256_mul_ps(bytes_to_ps(u & four), d);
        s->b[i] = _mm256_mul_ps(bytes_to_ps(u >> 4 & four), min);
    }
}

ALWAYS_INLINE void scales_q6_k(const uint8_t *p, struct unit_scales *s)
{
    const struct block_q6_k *b = (const void *)p;
    __m256 d = fp16_all(b->d);
    for (int i = 0; i < 2; i++) {
        uint64_t u;
        memcpy(&u, b->scales + 8 * i, sizeof u);
        s->a[i] = _mm256_mul_ps(bytes_to_ps(u), d);
    }
}

ALWAYS_INLINE void scales_iq4_xs(const uint8_t *p, struct unit_scales *s)
{
    const struct block_iq4_xs *b = (const void *)p;
    uint64_t low = _pdep_u64(load_u32(b->scales_l), 0x0f0f0f0f0f0f0f0f);
    uint64_t high = _pdep_u64(b->scales_h, 0x3030303030303030);
    s->a[0] = _mm256_mul_ps(_mm256_sub_ps(bytes_to_ps(low | high), _mm256_set1_ps(32)), fp16_all(b->d));
}

/* 2^(e-127) for each group, halved because the levels are doubled. e is a float's exponent but for its
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
    size_t step = unit_bytes(type) / 8;
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
    case DTYPE_Q2_K:
        scales_q2_k(p, s);
        break;
    case DTYPE_Q3_K:
        scales_q3_k(p, s);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        scales_q4_k(p, s); /* the heads of both are the same */
        break;
    case DTYPE_Q6_K:
        scales_q6_k(p, s);
        break;
    default:
        scales_iq4_xs(p, s);
    }
}
