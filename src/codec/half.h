/* Small floating point types to and from float, on their bits. From float rounds to nearest, ties to even,
 * and is exact for subnormals, infinities and NaN (which stays NaN, quiet, with its sign). No branch that
 * prevents vectorisation, no table. Plain C that nvcc compiles too.
 *
 *             sign exponent mantissa  bias  largest   beyond the largest
 *   fp16        1      5       10      15   65504     infinity
 *   bf16        1      8        7     127   3.39e38   infinity
 *   F8_E4M3     1      4        3       7   448       NaN (s.1111.111; there is no infinity)
 *   F8_E5M2     1      5        2      15   57344     infinity
 *   F8_E8M0     0      8        0     127   2^127     NaN (255); there is no zero
 * */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HALF_INLINE static inline __host__ __device__
#else
#define HALF_INLINE static inline
#endif

HALF_INLINE uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

HALF_INLINE float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* yes where a < b, else no. Arithmetic, as a compiler that sees a branch here does not vectorise. */
HALF_INLINE uint32_t bits_below(uint32_t a, uint32_t b, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)(a < b);
    return (yes & mask) | (no & ~mask);
}

HALF_INLINE float fp16_to_f32(uint16_t h)
{
    uint32_t mag = h & 0x7fffu;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (mag << 13) + bits_below(mag, 0x7c00u, 112u << 23, 224u << 23);
    uint32_t small = f32_bits((float)(int32_t)mag * 0x1p-24f);
    return f32_from_bits(sign | bits_below(mag, 0x400u, small, normal));
}

HALF_INLINE uint16_t fp16_from_f32(float f)
{
    uint32_t sign = f32_bits(f) >> 16 & 0x8000u;
    uint32_t mag = f32_bits(f) & 0x7fffffffu;
    uint32_t normal = ((mag + 0xfffu + (mag >> 13 & 1u)) >> 13) - (112u << 10);
    /* A float in [0.5, 1) has the step of fp16's subnormals, so this sum rounds as they do. */
    uint32_t small = f32_bits(f32_from_bits(bits_below(mag, 0x38800000u, mag, 0)) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (mag >> 13 & 0x3ffu);
    uint32_t r = bits_below(mag, 0x38800000u, small, normal);
    r = bits_below(mag, 0x477ff000u, r, bits_below(0x7f800000u, mag, nan, 0x7c00u));
    return (uint16_t)(sign | r);
}

HALF_INLINE float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

HALF_INLINE uint16_t bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    uint32_t nan = u >> 16 | 0x40u;
    return (uint16_t)bits_below(0x7f800000u, u & 0x7fffffffu, nan, rounded);
}

HALF_INLINE float f8_e4m3_to_f32(uint8_t h)
{
    uint32_t mag = h & 0x7fu;
    uint32_t sign = (uint32_t)(h & 0x80u) << 24;
    uint32_t normal = bits_below(mag, 0x7fu, (mag << 20) + (120u << 23), 0x7fc00000u);
    uint32_t small = f32_bits((float)(int32_t)mag * 0x1p-9f);
    return f32_from_bits(sign | bits_below(mag, 8u, small, normal));
}

HALF_INLINE uint8_t f8_e4m3_from_f32(float f)
{
    uint32_t sign = f32_bits(f) >> 24 & 0x80u;
    uint32_t mag = f32_bits(f) & 0x7fffffffu;
    uint32_t normal = ((mag + 0x7ffffu + (mag >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t small = f32_bits(f32_from_bits(bits_below(mag, 0x3c800000u, mag, 0)) + 0x1p14f) - 0x46800000u;
    uint32_t r = bits_below(mag, 0x3c800000u, small, normal);
    return (uint8_t)(sign | bits_below(r, 0x7fu, r, 0x7fu));
}

HALF_INLINE float f8_e5m2_to_f32(uint8_t h)
{
    return fp16_to_f32((uint16_t)(h << 8));
}

HALF_INLINE uint8_t f8_e5m2_from_f32(float f)
{
    uint32_t sign = f32_bits(f) >> 24 & 0x80u;
    uint32_t mag = f32_bits(f) & 0x7fffffffu;
    uint32_t normal = ((mag + 0xfffffu + (mag >> 21 & 1u)) >> 21) - (112u << 2);
    uint32_t small = f32_bits(f32_from_bits(bits_below(mag, 0x38800000u, mag, 0)) + 0x1p7f) - 0x43000000u;
    uint32_t r = bits_below(mag, 0x38800000u, small, normal);
    r = bits_below(r, 0x7cu, r, bits_below(0x7f800000u, mag, 0x7eu, 0x7cu));
    return (uint8_t)(sign | r);
}

/* 2^(h - 127): an exponent and nothing else. */
HALF_INLINE float f8_e8m0_to_f32(uint8_t h)
{
    uint32_t special = h == 255 ? 0x7fc00000u : 0x00400000u;
    return f32_from_bits(h == 0 || h == 255 ? special : (uint32_t)h << 23);
}

/* The nearest power of two, ties to the even exponent; zero and what is too small become 2^-127, and
 * what has no power of two (a negative number, infinity, NaN) becomes NaN. */
HALF_INLINE uint8_t f8_e8m0_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if (u == 0x80000000u)
        return 0;
    if (u >= 0x7f800000u)
        return 255;
    if (u < 0x00800000u)
        return u > 0x00600000u; /* subnormal: halfway between 2^-127 and 2^-126 */
    return (uint8_t)((u + 0x3fffffu + (u >> 23 & 1u)) >> 23);
}
