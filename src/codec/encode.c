/* Encoders of the plain and of the 32-value types. Without importance they are the types' reference
 * roundings, to the last bit, which other programs produce too; with it they search (search.h).
 *
 * In the reference roundings a quotient that is no number (of a subnormal scale, of infinities) has the
 * code 0, and a NaN makes the scale NaN, so that it stays visible. */
#include "codec/codec.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "codec/block.h"
#include "codec/search.h"
#include "codec/half.h"

void encode_f32(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    memcpy(dst, src, n * sizeof *src);
}

/* A plain type: the importance of a value changes nothing. */
#define ENCODE_PLAIN(name, type, convert)                                                                    \
    void name(const float *src, void *dst, size_t n, const float *importance)                                \
    {                                                                                                        \
        (void)importance;                                                                                    \
        unsigned char *out = dst;                                                                            \
        for (size_t i = 0; i < n; i++) {                                                                     \
            type v = convert(src[i]);                                                                        \
            memcpy(out + i * sizeof v, &v, sizeof v);                                                        \
        }                                                                                                    \
    }

ENCODE_PLAIN(encode_f16, uint16_t, fp16_from_f32)
ENCODE_PLAIN(encode_bf16, uint16_t, bf16_from_f32)
ENCODE_PLAIN(encode_f8_e4m3, uint8_t, f8_e4m3_from_f32)
ENCODE_PLAIN(encode_f8_e5m2, uint8_t, f8_e5m2_from_f32)
ENCODE_PLAIN(encode_f8_e8m0, uint8_t, f8_e8m0_from_f32)

/* Floats as integers in the same order, -0 below 0; NaN lies beyond both ends. */
static inline int32_t ordered(float v)
{
    int32_t bits = (int32_t)f32_bits(v);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

static inline float unordered(int32_t key)
{
    return f32_from_bits((uint32_t)(key ^ (key >> 31 & 0x7fffffff)));
}

/* The value of the largest magnitude, the first of equals; a NaN is larger than any. */
static float largest(const float x[32])
{
    int32_t best = 0;
    for (int i = 0; i < 32; i++) {
        int32_t bits = (int32_t)(f32_bits(x[i]) & 0x7fffffffu);
        best = bits > best ? bits : best;
    }
    int first = 0;
    while ((int32_t)(f32_bits(x[first]) & 0x7fffffffu) != best)
        first++;
    return x[first];
}

/* Of zeros the first counts, whatever its sign. */
static float first_zero(const float x[32])
{
    int i = 0;
    while (x[i] != 0)
        i++;
    return x[i];
}

/* A NaN makes both one. */
static void range(const float x[32], float *least, float *most)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int i = 0; i < 32; i++) {
        int32_t key = ordered(x[i]);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    *least = unordered(low);
    *most = unordered(high);
    if (isnan(*least) || isnan(*most))
        *least = *most = NAN;
    if (*least == 0)
        *least = first_zero(x);
    if (*most == 0)
        *most = first_zero(x);
}

static float reciprocal(float d)
{
    return d == 0 ? 0 : 1 / d;
}

/* Truncates to 0..most; 0 for what is no such number. */
static inline int32_t code(float v, int most)
{
    v = v >= 0 ? v : 0;
    int32_t q = (int32_t)(v < 256 ? v : 0);
    return q < most ? q : most;
}

static void pack_4bit(const uint8_t q[32], uint8_t qs[16])
{
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((q[j] & 15) | q[j + 16] << 4);
}

static void pack_5bit(const uint8_t q[32], uint8_t qh[4], uint8_t qs[16])
{
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(q[j] >> 4 & 1) << j;
    memcpy(qh, &high, sizeof high);
    pack_4bit(q, qs);
}

/* v = d * (q - half), q = 0..2 half - 1. Returns d as fp16. */
static uint16_t round_symmetric(const float x[32], int half, uint8_t q[32])
{
    float d = largest(x) / (float)-half, inverse = reciprocal(d);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)code(x[j] * inverse + ((float)half + 0.5f), 2 * half - 1);
    return fp16_from_f32(d);
}

/* v = d * q + m, q = 0..most. Returns d as fp16. */
static uint16_t round_offset(const float x[32], int most, uint8_t q[32], uint16_t *m)
{
    float low, high;
    range(x, &low, &high);
    float d = (high - low) / (float)most, inverse = reciprocal(d);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)code((x[j] - low) * inverse + 0.5f, most);
    *m = fp16_from_f32(low);
    return fp16_from_f32(d);
}

static uint16_t search_symmetric(const float x[32], const float *importance, int half, uint8_t q[32])
{
    struct search_form form = {
        .groups = 1, .len = 32, .least = -half, .most = half - 1, .scale_least = 1, .scale_most = 1};
    struct search_result fit;
    search_block(&form, x, importance, &fit);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)(fit.q[j] + half);
    return fit.d;
}

static uint16_t search_offset(const float x[32], const float *importance, int most, uint8_t q[32],
                              uint16_t *m)
{
    struct search_form form = {.groups = 1,
                               .len = 32,
                               .most = most,
                               .scale_least = 1,
                               .scale_most = 1,
                               .min_most = 1,
                               .min_signed = true};
    struct search_result fit;
    search_block(&form, x, importance, &fit);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)fit.q[j];
    *m = fit.dmin ^ 0x8000; /* added where search.h takes away */
    return fit.d;
}

void encode_q4_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q4_0 *b = dst;
    uint8_t q[32];
    for (size_t i = 0; i < n; i += 32, b++) {
        b->d = importance ? search_symmetric(src + i, importance + i, 8, q) : round_symmetric(src + i, 8, q);
        pack_4bit(q, b->qs);
    }
}

void encode_q4_1(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q4_1 *b = dst;
    uint8_t q[32];
    uint16_t m;
    for (size_t i = 0; i < n; i += 32, b++) {
        b->d =
            importance ? search_offset(src + i, importance + i, 15, q, &m) : round_offset(src + i, 15, q, &m);
        b->m = m;
        pack_4bit(q, b->qs);
    }
}

void encode_q5_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q5_0 *b = dst;
    uint8_t q[32];
    for (size_t i = 0; i < n; i += 32, b++) {
        b->d =
            importance ? search_symmetric(src + i, importance + i, 16, q) : round_symmetric(src + i, 16, q);
        pack_5bit(q, b->qh, b->qs);
    }
}

void encode_q5_1(const float *src, void *dst, size_t n, const float *importance)
{
    struct block_q5_1 *b = dst;
    uint8_t q[32];
    uint16_t m;
    for (size_t i = 0; i < n; i += 32, b++) {
        b->d =
            importance ? search_offset(src + i, importance + i, 31, q, &m) : round_offset(src + i, 31, q, &m);
        b->m = m;
        pack_5bit(q, b->qh, b->qs);
    }
}

/* To nearest, ties away from zero; 0 for what is no number. */
static inline int32_t round_int8(float v)
{
    float a = fabsf(v);
    a = a < 128 ? a : 0;
    int32_t whole = (int32_t)a;
    whole += a - (float)whole >= 0.5f;
    return v < 0 ? -whole : whole;
}

/* v = d * q, q = -127..127. With steps this fine importance would change next to nothing, and is ignored. */
static uint16_t round_8bit(const float x[32], int8_t q[32])
{
    float d = fabsf(largest(x)) / 127, inverse = reciprocal(d);
    for (int j = 0; j < 32; j++)
        q[j] = (int8_t)round_int8(x[j] * inverse);
    return fp16_from_f32(d);
}

void encode_q8_0(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    struct block_q8_0 *b = dst;
    for (size_t i = 0; i < n; i += 32, b++)
        b->d = round_8bit(src + i, b->qs);
}

void encode_q8_1(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    struct block_q8_1 *b = dst;
    for (size_t i = 0; i < n; i += 32, b++) {
        int sum = 0;
        b->d = round_8bit(src + i, b->qs);
        for (int j = 0; j < 32; j++)
            sum += b->qs[j];
        b->s = fp16_from_f32(fp16_to_f32(b->d) * (float)sum);
    }
}

void encode_q8_k(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    struct block_q8_k *b = dst;
    for (size_t i = 0; i < n; i += BLOCK_K, b++) {
        float most = 0;
        for (int j = 0; j < BLOCK_K; j += 32) {
            float v = fabsf(largest(src + i + j));
            most = isnan(most) || v <= most ? most : v;
        }
        b->d = most / 127;
        float inverse = reciprocal(b->d);
        for (int g = 0; g < 16; g++) {
            int sum = 0;
            for (int j = 16 * g; j < 16 * g + 16; j++)
                sum += b->qs[j] = (int8_t)round_int8(src[i + (size_t)j] * inverse);
            b->bsums[g] = (int16_t)sum;
        }
    }
}

/* ---- ternary ---- */

/* Codes 0, 1 and 2 of a block's values by its largest magnitude, which is returned. */
static float ternary(const float x[BLOCK_K], uint8_t code[BLOCK_K])
{
    float most = 0;
    for (int i = 0; i < BLOCK_K; i++)
        most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
    const float inverse = most != 0 ? 1 / most : 0;
    for (int i = 0; i < BLOCK_K; i++) {
        float q = roundf(x[i] * inverse);
        code[i] = q == 1 ? 2 : q == -1 ? 0 : 1; /* no quotient is larger, but infinities */
    }
    return most;
}

/* Five digits as a fraction of 256, rounded up. */
static uint8_t ternary_byte(const uint8_t *code, int step, int digits)
{
    unsigned q = 0;
    for (int n = 0; n < 5; n++)
        q = 3 * q + (n < digits ? code[n * step] : 0);
    return (uint8_t)((q * 256 + 242) / 243);
}

void encode_tq1_0(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    struct block_tq1_0 *out = dst;
    for (size_t b = 0; b < n / BLOCK_K; b++) {
        uint8_t code[BLOCK_K];
        struct block_tq1_0 y;
        y.d = fp16_from_f32(ternary(src + b * BLOCK_K, code));
        for (int i = 0; i < 32; i++)
            y.qs[i] = ternary_byte(code + i, 32, 5);
        for (int i = 0; i < 16; i++)
            y.qs[32 + i] = ternary_byte(code + 160 + i, 16, 5);
        for (int i = 0; i < 4; i++)
            y.qh[i] = ternary_byte(code + 240 + i, 4, 4);
        out[b] = y;
    }
}

void encode_tq2_0(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    struct block_tq2_0 *out = dst;
    for (size_t b = 0; b < n / BLOCK_K; b++) {
        uint8_t code[BLOCK_K];
        struct block_tq2_0 y;
        y.d = fp16_from_f32(ternary(src + b * BLOCK_K, code));
        for (int i = 0; i < BLOCK_K / 4; i++) {
            const uint8_t *c = code + i / 32 * 128 + i % 32;
            y.qs[i] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
        }
        out[b] = y;
    }
}
