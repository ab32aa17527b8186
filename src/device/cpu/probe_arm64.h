/* The probe's loops for the NEON tiers: sixteen independent accumulators hide every latency. A tier's file defines
 * PROBE_DOT(sum, a), an instruction on bytes, and PROBE_DOT_OPS, its products and sums. */
#pragma once

#include "device/cpu/probe.h"

#include <arm_neon.h>

enum { CHAINS = 16 };

static uint64_t read_bytes(const void *p, size_t bytes)
{
    const uint8_t *at = p;
    uint64x2_t sum[4] = {{0}, {0}, {0}, {0}};
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const void *)((uintptr_t)at + i + 4096), 0, 3);
        for (int j = 0; j < 4; j++)
            sum[j] ^= (uint64x2_t)vld1q_u8(at + i + 16 * j);
    }
    const uint64x2_t all = (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]);
    return all[0] ^ all[1];
}

/* Nothing is known about v: the compiler can neither fold nor hoist what is computed from it. */
#define HIDE(v) __asm__ volatile("" : "+w"(v))

static float int8_steps(long steps)
{
    int8x16_t a = vdupq_n_s8(1);
    int32x4_t sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vdupq_n_s32(i);
    for (long s = 0; s < steps; s++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            HIDE(a);
            sum[i] = PROBE_DOT(sum[i], a);
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] += sum[i];
    return (float)sum[0][0];
}

static float float32_steps(long steps)
{
    float32x4_t a = vdupq_n_f32(0.999f), sum[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vdupq_n_f32((float)i);
    for (long s = 0; s < steps; s++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            HIDE(a);
            sum[i] = vfmaq_f32(a, sum[i], a);
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] += sum[i];
    return sum[0][0];
}

static void probe_fill(struct probe_kernels *k)
{
    *k = (struct probe_kernels){.read = read_bytes,
                                .int8 = int8_steps,
                                .float32 = float32_steps,
                                .int8_round = 1.0 * PROBE_DOT_OPS * CHAINS,
                                .float32_round = 2.0 * 4 * CHAINS};
}
