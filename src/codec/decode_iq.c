/* Decoders of the IQ types that name points of a grid, and of the ternary and one-bit types. */
#include "codec/codec.h"

#include <stdint.h>
#include <string.h>

#include "codec/block.h"
#include "codec/grids.h"
#include "codec/half.h"

/* scale, or minus it where bit i of signs is set. */
static inline float with_sign(float scale, unsigned signs, int i)
{
    return f32_from_bits(f32_bits(scale) ^ (signs >> i & 1u) << 31);
}

static inline void decode_iq2_point(uint16_t entry, unsigned signs, float scale, float dst[8])
{
    for (int i = 0; i < 8; i++)
        dst[i] = with_sign(scale * (float)grid_iq2_value(entry, i), signs, i);
}

void decode_iq2_xxs(const void *src, float *dst, size_t n)
{
    const struct block_iq2_xxs *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 8; g++) {
            uint8_t index[4];
            uint32_t signs;
            memcpy(index, b->qs + 4 * g, sizeof index);
            memcpy(&signs, b->qs + 4 * g + 2, sizeof signs);
            float scale = d * (0.5f + (float)(signs >> 28)) * 0.25f;
            for (int k = 0; k < 4; k++, dst += 8)
                decode_iq2_point(grid_iq2_xxs[index[k]], grid_signs(signs >> 7 * k & 127), scale, dst);
        }
    }
}

void decode_iq2_xs(const void *src, float *dst, size_t n)
{
    const struct block_iq2_xs *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int k = 0; k < 32; k++, dst += 8) {
            float scale = d * (0.5f + (float)(b->scales[k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
            decode_iq2_point(grid_iq2_xs[b->qs[k] & 511], grid_signs(b->qs[k] >> 9), scale, dst);
        }
    }
}

void decode_iq2_s(const void *src, float *dst, size_t n)
{
    const struct block_iq2_s *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int k = 0; k < 32; k++, dst += 8) {
            float scale = d * (0.5f + (float)(b->scales[k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
            unsigned index = b->qs[k] | (b->qh[k / 4] >> k % 4 * 2 & 3u) << 8;
            decode_iq2_point(grid_iq2_s[index], b->signs[k], scale, dst);
        }
    }
}

void decode_iq3_xxs(const void *src, float *dst, size_t n)
{
    const struct block_iq3_xxs *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 8; g++) {
            uint32_t packed;
            memcpy(&packed, b->gas + 4 * g, sizeof packed);
            float scale = d * (0.5f + (float)(packed >> 28)) * 0.5f;
            for (int k = 0; k < 8; k++, dst += 4) {
                unsigned signs = grid_signs(packed >> k / 2 * 7 & 127) >> k % 2 * 4;
                uint16_t entry = grid_iq3_xxs[b->qs[8 * g + k]];
                for (int l = 0; l < 4; l++)
                    dst[l] = with_sign(scale * (float)grid_iq3_xxs_value(entry, l), signs, l);
            }
        }
    }
}

void decode_iq3_s(const void *src, float *dst, size_t n)
{
    const struct block_iq3_s *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int k = 0; k < 64; k++, dst += 4) {
            float scale = d * (float)(1 + 2 * (b->scales[k / 16] >> k / 8 % 2 * 4 & 15));
            unsigned signs = b->signs[k / 2] >> k % 2 * 4;
            uint16_t entry = grid_iq3_s[b->qs[k] | (b->qh[k / 8] >> k % 8 & 1) << 8];
            for (int l = 0; l < 4; l++)
                dst[l] = with_sign(scale * (float)grid_iq3_s_value(entry, l), signs, l);
        }
    }
}

static inline void decode_iq1_point(unsigned index, float shift, float scale, float dst[8])
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * ((float)grid_iq1_value(grid_iq1[index], i) + shift);
}

void decode_iq1_s(const void *src, float *dst, size_t n)
{
    const struct block_iq1_s *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int k = 0; k < 32; k++, dst += 8) {
            unsigned high = b->qh[k / 4];
            float scale = d * (float)(2 * (high >> 12 & 7) + 1);
            decode_iq1_point(b->qs[k] | (high >> k % 4 * 3 & 7) << 8, high >> 15 ? -0.125f : 0.125f, scale,
                             dst);
        }
    }
}

void decode_iq1_m(const void *src, float *dst, size_t n)
{
    const struct block_iq1_m *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        unsigned bits = 0;
        for (int j = 0; j < 4; j++)
            bits |= (unsigned)(b->scales[j] >> 12) << 4 * j;
        float d = fp16_to_f32((uint16_t)bits);
        for (int k = 0; k < 32; k++, dst += 8) {
            float scale = d * (float)(2 * (b->scales[k / 8] >> k / 2 % 4 * 3 & 7) + 1);
            unsigned high = b->qh[k / 2] >> k % 2 * 4;
            decode_iq1_point(b->qs[k] | (high & 7) << 8, high & 8 ? -0.125f : 0.125f, scale, dst);
        }
    }
}

/* The first `digits` base-3 digits of each of `width` bytes, digit by digit. */
static inline float *decode_trits(const uint8_t *qs, int width, int digits, float d, float *dst)
{
    for (unsigned power = 1; digits--; power *= 3, dst += width)
        for (int l = 0; l < width; l++)
            dst[l] = d * (float)((int)((qs[l] * power & 255u) * 3 >> 8) - 1);
    return dst;
}

void decode_tq1_0(const void *src, float *dst, size_t n)
{
    const struct block_tq1_0 *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        dst = decode_trits(b->qs, 32, 5, d, dst);
        dst = decode_trits(b->qs + 32, 16, 5, d, dst);
        dst = decode_trits(b->qh, 4, 4, d, dst);
    }
}

void decode_tq2_0(const void *src, float *dst, size_t n)
{
    const struct block_tq2_0 *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 8; g++, dst += 32)
            for (int l = 0; l < 32; l++)
                dst[l] = d * (float)((b->qs[g / 4 * 32 + l] >> g % 4 * 2 & 3) - 1);
    }
}

void decode_q1_0(const void *src, float *dst, size_t n)
{
    const struct block_q1_0 *b = src;
    for (size_t i = 0; i < n / 128; i++, b++) {
        float minus = -fp16_to_f32(b->d);
        for (int j = 0; j < 16; j++, dst += 8)
            for (int l = 0; l < 8; l++)
                dst[l] = with_sign(minus, b->qs[j], l);
    }
}
