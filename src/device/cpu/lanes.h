/* Registers of all vector tiers in the compiler's vector types: a tier's file defines VECTOR_BYTES, their width. */
#pragma once

#include "device/cpu/avx.h"

#include <stdint.h>
#include <string.h>

typedef float vf __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t v16 __attribute__((vector_size(VECTOR_BYTES / 2)));

enum { LANES = VECTOR_BYTES / 4 };

/* The first n values at p, at most LANES; zeros behind them. */
static inline vf v_load(const float *p, uint32_t n)
{
    vf v = {0};
    if (__builtin_expect(n >= LANES, 1))
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, n * sizeof *p);
    return v;
}

/* LANES words, of any kind. */
static inline vi v_load_words(const void *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void v_store(float *p, uint32_t n, vf v)
{
    if (__builtin_expect(n >= LANES, 1))
        memcpy(p, &v, sizeof v);
    else
        memcpy(p, &v, n * sizeof *p);
}

static inline vf v_all(float x)
{
    return (vf){0} + x;
}

/* mask lanes are 0 or -1, as comparisons give them */
static inline vf v_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

static inline vf v_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

/* What is the compiler's for no width: the larger (b where one is no number), and the last four lanes of a fold of all. */
#if VECTOR_BYTES == 64
#define v_max(a, b)    ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define V_EIGHT(OP, v) OP(_mm512_castps512_ps256((__m512)(v)), _mm512_extractf32x8_ps((__m512)(v), 1))
#elif VECTOR_BYTES == 32
#define v_max(a, b)    ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define V_EIGHT(OP, v) (__m256)(v)
#else
#define v_max(a, b) ((vf)_mm_max_ps((__m128)(a), (__m128)(b)))
#endif
#if VECTOR_BYTES > 16
#define V_FOUR(OP, v)                                                                                        \
    _mm_##OP(_mm256_castps256_ps128(V_EIGHT(_mm256_##OP, v)),                                                \
             _mm256_extractf128_ps(V_EIGHT(_mm256_##OP, v), 1))
#else
#define V_FOUR(OP, v) ((__m128)(v))
#endif

static inline float v_sum(vf v)
{
    __m128 q = V_FOUR(add_ps, v);
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v_most(vf v)
{
    __m128 q = V_FOUR(max_ps, v);
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Lanes whose place, the first one's being `at`, is in [lo, hi); `other` in the others. */
static inline vf v_between(vf v, float other, uint32_t at, uint32_t lo, uint32_t hi)
{
    static const int32_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi place;
    memcpy(&place, places, sizeof place);
    place += (int32_t)at;
    return v_select((place >= (int32_t)lo) & (place < (int32_t)hi), v, v_all(other));
}

/* round(v * scale), below 2^22: adding 1.5 * 2^23 rounds to an integer, which then lies in the low bits. */
#define V_ROUND 0x1.8p23f

static inline v16 v_round_i16(vf v, float scale)
{
    return __builtin_convertvector((vi)(v * scale + V_ROUND), v16);
}

/* e^x to a unit in the last place or two, for x up to 88: x = n ln 2 + r, a polynomial for e^r, n into the exponent.
 * What would be subnormal becomes 0; NaN stays. */
static inline vf v_exp_below(vf x)
{
    const float least = -87.33654f;
    vf c = v_max(v_all(least), x);
    vf n = c * 1.44269504f + V_ROUND;
    vi exponent = (vi)n << 23;
    n -= V_ROUND;
    vf r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = v_all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return v_select(x < least, v_all(0), (vf)((vi)p + exponent));
}
