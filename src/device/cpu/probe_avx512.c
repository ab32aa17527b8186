/* The probe's loops for AVX-512: VNNI for bytes, and AVX512_BF16 where the machine has it. */
#include "device/cpu/probe.h"

#include <immintrin.h>

enum { CHAINS = 16 };

#define HIDE(v) __asm__ volatile("" : "+v"(v)) /* nothing is known about v from here on */

static uint64_t read_bytes(const void *p, size_t bytes)
{
    const __m512i *v = p;
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                      _mm512_setzero_si512()};
    for (size_t i = 0; i < bytes / 64; i += 4)
        for (int j = 0; j < 4; j++) {
            _mm_prefetch((const char *)((uintptr_t)(v + i + j) + 4096), _MM_HINT_T0);
            sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(v + i + j));
        }
    __m512i all = _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]));
    return (uint64_t)_mm512_reduce_add_epi64(all);
}

static float int8_steps(long steps)
{
    __m512i a = _mm512_set1_epi8(1), sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (long s = 0; s < steps; s++) {
        HIDE(a);
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    return (float)_mm512_reduce_add_epi32(sum[0]);
}

static float float32_steps(long steps)
{
    __m512 a = _mm512_set1_ps(0.999f), sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (long s = 0; s < steps; s++) {
        HIDE(a);
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_fmadd_ps(sum[i], a, a);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx512bf16"))) static float bf16_steps(long steps)
{
    __m512i bits = _mm512_set1_epi16(0x3c00); /* a small number: the sums stay finite */
    __m512 sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (long s = 0; s < steps; s++) {
        HIDE(bits);
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)bits, (__m512bh)bits);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}

void probe_avx512(struct probe_kernels *k)
{
    *k = (struct probe_kernels){.read = read_bytes,
                                .int8 = int8_steps,
                                .float32 = float32_steps,
                                .bf16 = __builtin_cpu_supports("avx512bf16") ? bf16_steps : NULL,
                                .int8_round = 2.0 * 64 * CHAINS,
                                .float32_round = 2.0 * 16 * CHAINS,
                                .bf16_round = 2.0 * 32 * CHAINS};
}
