/* Encoders of the K types, of IQ4 and of MXFP4: the search of search.h, then the bits of block.h. */
#include "codec/codec.h"

#include <stdint.h>
#include <string.h>

#include "codec/block.h"
#include "codec/search.h"

static const struct search_form form_q2_k = {
    .groups = 16, .len = 16, .most = 3, .scale_most = 15, .min_most = 15};
static const struct search_form form_q3_k = {
    .groups = 16, .len = 16, .least = -4, .most = 3, .scale_least = -32, .scale_most = 31};
static const struct search_form form_q4_k = {
    .groups = 8, .len = 32, .most = 15, .scale_most = 63, .min_most = 63};
static const struct search_form form_q5_k = {
    .groups = 8, .len = 32, .most = 31, .scale_most = 63, .min_most = 63};
static const struct search_form form_q6_k = {
    .groups = 16, .len = 16, .least = -32, .most = 31, .scale_least = -128, .scale_most = 127};

static const float iq4_levels[16] = {BLOCK_IQ4_LEVELS};
static const struct search_form form_iq4_nl = {
    .groups = 1, .len = 32, .most = 15, .levels = iq4_levels, .scale_least = 1, .scale_most = 1};
static const struct search_form form_iq4_xs = {
    .groups = 8, .len = 32, .most = 15, .levels = iq4_levels, .scale_least = -32, .scale_most = 31};

/* e2m1 in rising order; a code is the sign and the magnitude, -7..7. */
static const float e2m1_levels[15] = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
static const struct search_form form_mxfp4 = {.groups = 1,
                                              .len = 32,
                                              .least = -7,
                                              .most = 7,
                                              .levels = e2m1_levels,
                                              .scale_least = 1,
                                              .scale_most = 1,
                                              .power = true};

static void search_at(const struct search_form *f, const float *src, const float *importance, size_t i,
                      struct search_result *fit)
{
    search_block(f, src + i, importance ? importance + i : NULL, fit);
}

void encode_q2_k(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q2_k *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_q2_k, src, importance, i, &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        for (int g = 0; g < 16; g++)
            b->scales[g] = (uint8_t)(fit.scale[g] | fit.min[g] << 4);
        for (int j = 0; j < 64; j++) {
            const int8_t *q = fit.q + j / 32 * 128 + j % 32;
            b->qs[j] = (uint8_t)(q[0] | q[32] << 2 | q[64] << 4 | q[96] << 6);
        }
    }
}

void encode_q3_k(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q3_k *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_q3_k, src, importance, i, &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        for (int g = 0; g < 16; g++) {
            int scale = fit.scale[g] + 32;
            b->scales[g % 8] |= (uint8_t)((scale & 15) << g / 8 * 4);
            b->scales[8 + g % 4] |= (uint8_t)(scale >> 4 << g / 4 * 2);
        }
        for (int j = 0; j < BLOCK_K; j++) {
            int q = fit.q[j] + 4;
            b->qs[j / 128 * 32 + j % 32] |= (uint8_t)((q & 3) << j / 32 % 4 * 2);
            b->hmask[j % 32] |= (uint8_t)(q >> 2 << j / 32);
        }
    }
}

/* The scales and minima of Q4_K and Q5_K, 6 bits each. */
static void pack_scales(const struct search_result *fit, uint8_t scales[12])
{
    for (int g = 0; g < 4; g++) {
        scales[g] = (uint8_t)(fit->scale[g] | fit->scale[g + 4] >> 4 << 6);
        scales[g + 4] = (uint8_t)(fit->min[g] | fit->min[g + 4] >> 4 << 6);
        scales[g + 8] = (uint8_t)((fit->scale[g + 4] & 15) | (fit->min[g + 4] & 15) << 4);
    }
}

/* n values, in pairs of rows of `row`: the first in the low, the second in the high four bits. */
static void pack_nibbles(const int8_t *q, int n, int row, uint8_t *qs)
{
    for (int j = 0; j < n / 2; j++) {
        const int8_t *at = q + j / row * 2 * row + j % row;
        qs[j] = (uint8_t)((at[0] & 15) | (at[row] & 15) << 4);
    }
}

void encode_q4_k(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q4_k *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_q4_k, src, importance, i, &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        pack_scales(&fit, b->scales);
        pack_nibbles(fit.q, BLOCK_K, 32, b->qs);
    }
}

void encode_q5_k(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q5_k *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_q5_k, src, importance, i, &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        pack_scales(&fit, b->scales);
        pack_nibbles(fit.q, BLOCK_K, 32, b->qs);
        memset(b->qh, 0, sizeof b->qh);
        for (int j = 0; j < BLOCK_K; j++)
            b->qh[j % 32] |= (uint8_t)(fit.q[j] >> 4 << j / 32);
    }
}

void encode_q6_k(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q6_k *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_q6_k, src, importance, i, &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        memcpy(b->scales, fit.scale, sizeof b->scales);
        for (int j = 0; j < BLOCK_K; j++) {
            int q = fit.q[j] + 32;
            b->ql[j / 128 * 64 + j % 64] |= (uint8_t)((q & 15) << j / 64 % 2 * 4);
            b->qh[j / 128 * 32 + j % 32] |= (uint8_t)(q >> 4 << j / 32 % 4 * 2);
        }
    }
}

void encode_iq4_nl(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_iq4_nl *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += 32, b++) {
        search_at(&form_iq4_nl, src, importance, i, &fit);
        b->d = fit.d;
        pack_nibbles(fit.q, 32, 16, b->qs);
    }
}

void encode_iq4_xs(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_iq4_xs *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        search_at(&form_iq4_xs, src, importance, i, &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        for (int g = 0; g < 8; g++) {
            int scale = fit.scale[g] + 32;
            b->scales_l[g / 2] |= (uint8_t)((scale & 15) << g % 2 * 4);
            b->scales_h |= (uint16_t)(scale >> 4 << 2 * g);
        }
        pack_nibbles(fit.q, BLOCK_K, 16, b->qs);
    }
}

void encode_mxfp4(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_mxfp4 *b = dst;
    struct search_result fit;
    for (size_t i = 0; i < n; i += 32, b++) {
        search_at(&form_mxfp4, src, importance, i, &fit);
        b->e = (uint8_t)fit.d;
        for (int j = 0; j < 32; j++)
            fit.q[j] = (int8_t)(fit.q[j] < 0 ? 8 - fit.q[j] : fit.q[j]);
        pack_nibbles(fit.q, 32, 16, b->qs);
    }
}
