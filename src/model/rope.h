/* Rotary positions: every scaling scheme, worked into a table of inverse frequencies. */
#pragma once

#include "model/hparams.h"

/* GGUF files may hold divisors as tensors: rope_freqs, rope_factors_short, rope_factors_long. */
struct rope_divisors {
    const float *always, *brief, *extended; /* (dims / 2) each, or NULL */
};

/* Fills freqs (dims / 2) for a context of `ctx` tokens and sets the factor of cos and sin. */
int rope_table(const struct hparams *h, const struct rope_params *r, uint32_t dims, uint32_t ctx,
               const struct rope_divisors *d, float *freqs, float *factor, struct err *e);

/* YaRN's m(scale) = 0.1 m ln(scale) + 1 for scale > 1. */
float rope_mscale(float scale, float m);
/* How often the context was stretched. */
float rope_stretch(const struct hparams *h, const struct rope_params *r);
