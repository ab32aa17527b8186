/* The noise that draws tokens: a function of (seed, position, token) alone, the same on every device. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define NOISE_FN static __host__ __device__ __forceinline__
#else
#define NOISE_FN static inline
#endif

/* Uniform in (0, 1): two rounds of a 64-bit mixer. */
NOISE_FN double noise_uniform(uint64_t seed, uint64_t position, uint64_t token)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + position * 0xd1342543de82ef95u + token * 0xaf251af3b0f025b5u;
    for (int i = 0; i < 2; i++) {
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93u;
    }
    x ^= x >> 32;
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

/* Gumbel noise is below this for every number that noise_uniform can give. */
#define NOISE_GUMBEL_MOST 37
