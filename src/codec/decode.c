/* Decoders: blocks to floats, in plain C. They are the meaning of each type (block.h draws the bits) and
 * the fall-back of the CPU device. The order of each multiplication and sum is part of the meaning: it
 * makes the result the same to the last bit everywhere. */
#include "codec/codec.h"

#include <stdint.h>
#include <string.h>

#include "codec/block.h"
#include "codec/half.h"

void decode_f32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

/* A plain type: one C value of type `type`, at any address, for each float. */
#define DECODE_PLAIN(name, type, convert)                                                                    \
    void name(const void *src, float *dst, size_t n)                                                         \
    {                                                                                                        \
        const unsigned char *s = src;                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            type v;                                                                                          \
            memcpy(&v, s + i * sizeof v, sizeof v);                                                          \
            dst[i] = convert(v);                                                                             \
        }                                                                                                    \
    }

DECODE_PLAIN(decode_f16, uint16_t, fp16_to_f32)
DECODE_PLAIN(decode_bf16, uint16_t, bf16_to_f32)
DECODE_PLAIN(decode_f8_e4m3, uint8_t, f8_e4m3_to_f32)
DECODE_PLAIN(decode_f8_e5m2, uint8_t, f8_e5m2_to_f32)
DECODE_PLAIN(decode_f8_e8m0, uint8_t, f8_e8m0_to_f32)
DECODE_PLAIN(decode_f64, double, (float))
DECODE_PLAIN(decode_i8, int8_t, (float))
DECODE_PLAIN(decode_i16, int16_t, (float))
DECODE_PLAIN(decode_i32, int32_t, (float))
DECODE_PLAIN(decode_i64, int64_t, (float))
DECODE_PLAIN(decode_u8, uint8_t, (float))
DECODE_PLAIN(decode_u16, uint16_t, (float))
DECODE_PLAIN(decode_u32, uint32_t, (float))
DECODE_PLAIN(decode_u64, uint64_t, (float))

void decode_q4_0(const void *src, float *dst, size_t n)
{
    const struct block_q4_0 *b = src;
    for (size_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fp16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)((b->qs[j] & 15) - 8);
            dst[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void decode_q4_1(const void *src, float *dst, size_t n)
{
    const struct block_q4_1 *b = src;
    for (size_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fp16_to_f32(b->d), m = fp16_to_f32(b->m);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)(b->qs[j] & 15) + m;
            dst[j + 16] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

/* The 5-bit values of Q5_0 and Q5_1, 0..31. */
static void unpack_5bit(const uint8_t qh[4], const uint8_t qs[16], int8_t q[32])
{
    uint32_t high;
    memcpy(&high, qh, sizeof high);
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)((qs[j] & 15) | (high >> j & 1) << 4);
        q[j + 16] = (int8_t)(qs[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

void decode_q5_0(const void *src, float *dst, size_t n)
{
    const struct block_q5_0 *b = src;
    for (size_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fp16_to_f32(b->d);
        int8_t q[32];
        unpack_5bit(b->qh, b->qs, q);
        for (int j = 0; j < 32; j++)
            dst[j] = d * (float)(q[j] - 16);
    }
}

void decode_q5_1(const void *src, float *dst, size_t n)
{
    const struct block_q5_1 *b = src;
    for (size_t i = 0; i < n / 32; i++, b++, dst += 32) {
        float d = fp16_to_f32(b->d), m = fp16_to_f32(b->m);
        int8_t q[32];
        unpack_5bit(b->qh, b->qs, q);
        for (int j = 0; j < 32; j++)
            dst[j] = d * (float)q[j] + m;
    }
}

static inline void decode_int8(const int8_t *qs, int n, float d, float *dst)
{
    for (int j = 0; j < n; j++)
        dst[j] = d * (float)qs[j];
}

void decode_q8_0(const void *src, float *dst, size_t n)
{
    const struct block_q8_0 *b = src;
    for (size_t i = 0; i < n / 32; i++)
        decode_int8(b[i].qs, 32, fp16_to_f32(b[i].d), dst + 32 * i);
}

void decode_q8_1(const void *src, float *dst, size_t n)
{
    const struct block_q8_1 *b = src;
    for (size_t i = 0; i < n / 32; i++)
        decode_int8(b[i].qs, 32, fp16_to_f32(b[i].d), dst + 32 * i);
}

void decode_q8_k(const void *src, float *dst, size_t n)
{
    const struct block_q8_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++)
        decode_int8(b[i].qs, BLOCK_K, b[i].d, dst + BLOCK_K * i);
}

void decode_q2_k(const void *src, float *dst, size_t n)
{
    const struct block_q2_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d), dmin = fp16_to_f32(b->dmin);
        for (int g = 0; g < 16; g++) {
            float scale = d * (float)(b->scales[g] & 15), min = dmin * (float)(b->scales[g] >> 4);
            const uint8_t *qs = b->qs + g / 8 * 32 + g % 2 * 16;
            int shift = g / 2 % 4 * 2;
            for (int l = 0; l < 16; l++)
                dst[16 * g + l] = scale * (float)(qs[l] >> shift & 3) - min;
        }
    }
}

void decode_q3_k(const void *src, float *dst, size_t n)
{
    const struct block_q3_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 16; g++) {
            int low = b->scales[g % 8] >> g / 8 * 4 & 15, high = b->scales[8 + g % 4] >> g / 4 * 2 & 3;
            float scale = d * (float)((low | high << 4) - 32);
            const uint8_t *qs = b->qs + g / 8 * 32 + g % 2 * 16, *top = b->hmask + g % 2 * 16;
            int shift = g / 2 % 4 * 2, bit = g / 2;
            for (int l = 0; l < 16; l++)
                dst[16 * g + l] = scale * (float)((qs[l] >> shift & 3) + (top[l] >> bit & 1) * 4 - 4);
        }
    }
}

/* The 6-bit scale and minimum of group g of Q4_K and Q5_K. */
static inline void unpack_scale_min(const uint8_t scales[12], int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = scales[g] & 63;
        *min = scales[g + 4] & 63;
    } else {
        *scale = (scales[g + 4] & 15) | scales[g - 4] >> 6 << 4;
        *min = scales[g + 4] >> 4 | scales[g] >> 6 << 4;
    }
}

void decode_q4_k(const void *src, float *dst, size_t n)
{
    const struct block_q4_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d), dmin = fp16_to_f32(b->dmin);
        for (int g = 0; g < 8; g++) {
            int s, m;
            unpack_scale_min(b->scales, g, &s, &m);
            float scale = d * (float)s, min = dmin * (float)m;
            const uint8_t *qs = b->qs + g / 2 * 32;
            int shift = g % 2 * 4;
            for (int l = 0; l < 32; l++)
                dst[32 * g + l] = scale * (float)(qs[l] >> shift & 15) - min;
        }
    }
}

void decode_q5_k(const void *src, float *dst, size_t n)
{
    const struct block_q5_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d), dmin = fp16_to_f32(b->dmin);
        for (int g = 0; g < 8; g++) {
            int s, m;
            unpack_scale_min(b->scales, g, &s, &m);
            float scale = d * (float)s, min = dmin * (float)m;
            const uint8_t *qs = b->qs + g / 2 * 32;
            int shift = g % 2 * 4;
            for (int l = 0; l < 32; l++)
                dst[32 * g + l] = scale * (float)((qs[l] >> shift & 15) | (b->qh[l] >> g & 1) << 4) - min;
        }
    }
}

void decode_q6_k(const void *src, float *dst, size_t n)
{
    const struct block_q6_k *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 16; g++) {
            float scale = d * (float)b->scales[g];
            const uint8_t *ql = b->ql + g / 8 * 64 + g % 4 * 16, *qh = b->qh + g / 8 * 32 + g % 2 * 16;
            int low = g / 4 % 2 * 4, high = g / 2 % 4 * 2;
            for (int l = 0; l < 16; l++)
                dst[16 * g + l] = scale * (float)(((ql[l] >> low & 15) | (qh[l] >> high & 3) << 4) - 32);
        }
    }
}

static const float iq4_levels[16] = {BLOCK_IQ4_LEVELS};
static const float e2m1_twice[16] = {BLOCK_E2M1_TWICE};

/* 2n values: the low nibbles of n bytes, then the high ones, through a table of 16. */
static inline void decode_nibbles(const uint8_t *qs, int n, float scale, const float levels[16], float *dst)
{
    for (int j = 0; j < n; j++) {
        dst[j] = scale * levels[qs[j] & 15];
        dst[j + n] = scale * levels[qs[j] >> 4];
    }
}

void decode_iq4_nl(const void *src, float *dst, size_t n)
{
    const struct block_iq4_nl *b = src;
    for (size_t i = 0; i < n / 32; i++)
        decode_nibbles(b[i].qs, 16, fp16_to_f32(b[i].d), iq4_levels, dst + 32 * i);
}

void decode_iq4_xs(const void *src, float *dst, size_t n)
{
    const struct block_iq4_xs *b = src;
    for (size_t i = 0; i < n / BLOCK_K; i++, b++, dst += BLOCK_K) {
        float d = fp16_to_f32(b->d);
        for (int g = 0; g < 8; g++) {
            int s = (b->scales_l[g / 2] >> g % 2 * 4 & 15) | (b->scales_h >> 2 * g & 3) << 4;
            decode_nibbles(b->qs + 16 * g, 16, d * (float)(s - 32), iq4_levels, dst + 32 * g);
        }
    }
}

/* 2^(e - 128), which makes good for e2m1_twice. Below 2^-126 it is a subnormal float; 255, which the
 * standard calls NaN, is read as a plain exponent. */
static float mxfp4_scale(uint8_t e)
{
    return f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

void decode_mxfp4(const void *src, float *dst, size_t n)
{
    const struct block_mxfp4 *b = src;
    for (size_t i = 0; i < n / 32; i++)
        decode_nibbles(b[i].qs, 16, mxfp4_scale(b[i].e), e2m1_twice, dst + 32 * i);
}

/* Half of an e4m3 without its sign, which makes good for e2m1_twice; NaN is read as zero. */
static float nvfp4_scale(uint8_t d)
{
    return d == 0x7f ? 0 : (d & 0x7f) == 0x7f ? 240 : 0.5f * f8_e4m3_to_f32(d & 0x7f);
}

void decode_nvfp4(const void *src, float *dst, size_t n)
{
    const struct block_nvfp4 *b = src;
    for (size_t i = 0; i < n / 64; i++, b++, dst += 64)
        for (int g = 0; g < 4; g++)
            decode_nibbles(b->qs + 8 * g, 8, nvfp4_scale(b->d[g]), e2m1_twice, dst + 16 * g);
}
