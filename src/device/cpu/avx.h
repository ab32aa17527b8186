/* Registers of eight floats or 32 bytes, by the names of AVX2, for the sources that all vector tiers share: on ARM64 each is
 * two registers, and avx_neon.h has the instructions that those sources use. */
#pragma once

#if defined(__aarch64__)
#include "device/cpu/avx_neon.h"
#else
#include <immintrin.h>

/* Lane i of c in the lower four lanes, lane j in the upper ones. */
static inline __attribute__((always_inline, target("avx2"))) __m256 lanes_of(__m256 c, int i, int j)
{
    return _mm256_permutevar8x32_ps(c, _mm256_setr_epi32(i, i, i, i, j, j, j, j));
}
#endif
