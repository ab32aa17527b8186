/* Attention's products of floats, a fused multiply-add at a time. Where the baseline of the architecture has no such
 * instruction, fmaf is a call: scalar.c has this code for any machine, scalar_avx2.c for one that has the instruction. Both
 * give the same bits, since every number is rounded in the same order. */
#pragma once

#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* With pages: in integers (scalar.c). */
void scalar_scores_int(const struct attn_tile *t);
void scalar_values_int(const struct attn_tile *t);

static inline void float_scores(const struct attn_tile *t)
{
    for (uint32_t r = 0; r < t->m; r++) {
        float *s = t->s + r * ATTN_KEYS;
        memset(s, 0, t->keys * sizeof *s);
        for (uint32_t i = 0; i < t->k_dim; i++)
            for (uint32_t j = 0; j < t->keys; j++)
                s[j] = fmaf(t->q[r * t->k_dim + i], t->k[i * ATTN_KEYS + j], s[j]);
    }
}

static inline void float_values(const struct attn_tile *t)
{
    for (uint32_t r = 0; r < t->m; r++) {
        float *acc = t->acc + r * t->v_dim;
        for (uint32_t i = 0; i < t->v_dim; i++)
            acc[i] *= t->rescale[r];
        for (uint32_t j = 0; j < t->keys; j++)
            for (uint32_t i = 0; i < t->v_dim; i++)
                acc[i] = fmaf(t->s[r * ATTN_KEYS + j], t->v[j * t->v_dim + i], acc[i]);
    }
}

static inline void any_scores(const struct attn_tile *t)
{
    if (t->pages)
        scalar_scores_int(t);
    else
        float_scores(t);
}

static inline void any_values(const struct attn_tile *t)
{
    if (t->pages)
        scalar_values_int(t);
    else
        float_values(t);
}
