/* The probe's loops for AVX2: ten independent accumulators hide every latency. */
#include "device/cpu/probe.h"

#include <immintrin.h>

enum { CHAINS = 10 };

static uint64_t read_bytes(const void *p, size_t bytes)
{
    const __m256i *v = p;
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes / 32; i += 4) {
        _mm_prefetch((const char *)((uintptr_t)(v + i) + 4096), _MM_HINT_T0);
        _mm_prefetch((const char *)((uintptr_t)(v + i) + 4160), _MM_HINT_T0);
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(v + i + j));
    }
    __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    return (uint64_t)_mm256_extract_epi64(all, 0) ^ (uint64_t)_mm256_extract_epi64(all, 1) ^
           (uint64_t)_mm256_extract_epi64(all, 2) ^ (uint64_t)_mm256_extract_epi64(all, 3);
}

/* Nothing is known about v: the compiler can neither fold nor hoist what is computed from it. */
#define HIDE(v) __asm__ volatile("" : "+x"(v))

static float int8_steps(long steps)
{
    __m256i a = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1), sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (long s = 0; s < steps; s++)
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            HIDE(a);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    return (float)_mm256_cvtsi256_si32(sum[0]);
}

static float float32_steps(long steps)
{
    __m256 a = _mm256_set1_ps(0.999f), sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (long s = 0; s < steps; s++)
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            HIDE(a);
            sum[i] = _mm256_fmadd_ps(sum[i], a, a);
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    return _mm256_cvtss_f32(sum[0]);
}

void probe_avx2(struct probe_kernels *k)
{
    *k = (struct probe_kernels){.read = read_bytes,
                                .int8 = int8_steps,
                                .float32 = float32_steps,
                                .int8_round = 2.0 * 32 * CHAINS,
                                .float32_round = 2.0 * 8 * CHAINS};
}
