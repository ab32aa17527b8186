/* Norms, activations and small vector work of both vector tiers, in the compiler's vector types: a
 * tier's file defines VECTOR_BYTES, the width of its registers, and includes this. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/kinds.h"
#include "device/cpu/lanes.h"

#include <math.h>

/* For any x: what would overflow becomes 2^127 and more. */
static inline vf v_exp(vf x)
{
    const float most = 88.3f;
    return v_exp_below(v_select(x > most, v_all(most), x));
}

static inline vf v_sigmoid(vf x)
{
    return 1.0f / (1.0f + v_exp(-x));
}

/* Odd polynomial where 1 - 2 / (e^2x + 1) would lose digits. */
static inline vf v_tanh(vf x)
{
    vf z = x * x, big = 1.0f - 2.0f / (v_exp(2.0f * v_abs(x)) + 1.0f);
    vf p = v_all(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    vf small = p * z * x + x;
    vf signed_big = (vf)((vi)big | ((vi)x & (int32_t)0x80000000));
    return v_select(v_abs(x) < 0.625f, small, signed_big);
}

/* x * Phi(x). erfc(z) = e^(-z^2) P(1 / (1 + pz)) for z >= 0 (Abramowitz and Stegun 7.1.26, 1.5e-7). */
static inline vf v_gelu(vf x)
{
    vf z = v_abs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    vf p = v_all(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf erfc = p * t * v_exp(-z * z);
    return 0.5f * x * v_select(x < 0, erfc, 2.0f - erfc);
}

static inline vf v_act(int act, vf x)
{
    switch (act) {
    case ACT_SILU:
        return x * v_sigmoid(x);
    case ACT_GELU:
        return v_gelu(x);
    case ACT_GELU_TANH: /* (1 + tanh(u)) / 2 is the sigmoid of 2u */
        return x * v_sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    case ACT_GELU_QUICK:
        return x * v_sigmoid(1.702f * x);
    case ACT_RELU:
        return v_select(x > 0, x, v_all(0));
    case ACT_RELU2:
        return v_select(x > 0, x * x, v_all(0));
    case ACT_SIGMOID:
        return v_sigmoid(x);
    case ACT_TANH:
        return 2.0f * v_sigmoid(2.0f * x) - 1.0f;
    default:
        return x;
    }
}

static inline __attribute__((always_inline)) void v_act_mul(int act, const float *gate, const float *up,
                                                            uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = v_act(act, v_load(gate + i, n - i));
        v_store(y + i, n - i, up ? v * v_load(up + i, n - i) : v);
    }
}

static void vector_act_mul(int act, const float *gate, const float *up, uint32_t n, float *y)
{
    switch (act) {
    case ACT_SILU:
        v_act_mul(ACT_SILU, gate, up, n, y);
        break;
    case ACT_GELU:
        v_act_mul(ACT_GELU, gate, up, n, y);
        break;
    case ACT_GELU_TANH:
        v_act_mul(ACT_GELU_TANH, gate, up, n, y);
        break;
    default:
        v_act_mul(act, gate, up, n, y);
    }
}

/* The rounding of scalar.c, bit for bit. */
/* Four times eight numbers as 32 bytes, and their sum. */
static inline int32_t v_store_block(const __m256i n[4], int8_t *q)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));
    return _mm_cvtsi128_si32(t);
}

static void vector_quantise(const float *x, uint32_t k, int8_t *q, float *d, int32_t *s)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), top = _mm256_set1_ps(127.0f), bottom = _mm256_set1_ps(-127.0f);
    for (uint32_t b = 0; b < k / Q8_BLOCK; b++, x += Q8_BLOCK, q += Q8_BLOCK) {
        __m256 v[4], most = _mm256_setzero_ps();
        __m256i n[4];
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            most = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), most); /* a NaN yields to the second */
        }
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        m = _mm_max_ss(m, _mm_movehdup_ps(m));
        float largest = _mm_cvtss_f32(m);
        __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0);
        for (int i = 0; i < 4; i++) {
            __m256 r = _mm256_max_ps(_mm256_mul_ps(v[i], inverse), bottom);
            n[i] = _mm256_cvtps_epi32(_mm256_min_ps(r, top));
        }
        d[b] = largest / 127.0f;
        s[b] = v_store_block(n, q);
    }
}

static void vector_quantise_rest(const float *x, uint32_t k, const struct q8_rows *row)
{
    const __m256 top = _mm256_set1_ps(127.0f), bottom = _mm256_set1_ps(-127.0f);
    const int8_t *q = row->q;
    int8_t *rest = row->q + row->q_stride;
    for (uint32_t b = 0; b < k / Q8_BLOCK; b++, x += Q8_BLOCK, q += Q8_BLOCK, rest += Q8_BLOCK) {
        const float d = row->d[b];
        const __m256 scale = _mm256_set1_ps(-d), inverse = _mm256_set1_ps(d > Q8_LEAST ? Q8_REST / d : 0);
        __m256i n[4];
        for (int i = 0; i < 4; i++) {
            __m256i eight = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(q + 8 * i)));
            __m256 r = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(eight), _mm256_loadu_ps(x + 8 * i));
            n[i] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(r, inverse), bottom), top));
        }
        row->d[row->s_stride + b] = d / Q8_REST;
        row->s[row->s_stride + b] = v_store_block(n, rest);
    }
}

static float vector_dot(const float *a, const float *b, uint32_t n)
{
    vf sum[4] = {{0}, {0}, {0}, {0}};
    uint32_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (uint32_t j = 0; j < 4; j++)
            sum[j] += v_load(a + i + j * LANES, LANES) * v_load(b + i + j * LANES, LANES);
    for (; i < n; i += LANES)
        sum[0] += v_load(a + i, n - i) * v_load(b + i, n - i);
    return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* y = (x - middle) * scale * w + b */
static void v_normalise(const float *x, float middle, float scale, const float *w, const float *b, uint32_t n,
                        float *y)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = (v_load(x + i, n - i) - middle) * scale;
        if (w)
            v *= v_load(w + i, n - i);
        if (b)
            v += v_load(b + i, n - i);
        v_store(y + i, n - i, v);
    }
}

static void vector_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    v_normalise(x, 0, 1.0f / sqrtf(vector_dot(x, x, n) / (float)n + eps), w, NULL, n, y);
}

static void vector_layer_norm(const float *x, const float *w, const float *b, float eps, uint32_t n, float *y)
{
    vf sum[2] = {{0}, {0}}, square[2] = {{0}, {0}};
    for (uint32_t i = 0; i < n; i += LANES)
        sum[i / LANES % 2] += v_load(x + i, n - i);
    float mean = v_sum(sum[0] + sum[1]) / (float)n;
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = v_load(x + i, n - i) - mean;
        if (n - i < LANES)
            v = v_load((const float *)&v, n - i); /* the lanes past the end are zero */
        square[i / LANES % 2] += v * v;
    }
    v_normalise(x, mean, 1.0f / sqrtf(v_sum(square[0] + square[1]) / (float)n + eps), w, b, n, y);
}

static void vector_rope(float *x, uint32_t dims, bool halves, const float *cos_sin)
{
    const uint32_t half = dims / 2;
    if (!halves) { /* pairs are neighbours; rare, and short */
        for (uint32_t i = 0; i < half; i++) {
            float c = cos_sin[i], s = cos_sin[half + i], a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c - b * s;
            x[2 * i + 1] = a * s + b * c;
        }
        return;
    }
    for (uint32_t i = 0; i < half; i += LANES) {
        uint32_t n = half - i;
        vf c = v_load(cos_sin + i, n), s = v_load(cos_sin + half + i, n);
        vf a = v_load(x + i, n), b = v_load(x + half + i, n);
        v_store(x + i, n, a * c - b * s);
        v_store(x + half + i, n, a * s + b * c);
    }
}

static void vector_axpy(float a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(y + i, n - i, v_load(y + i, n - i) + a * v_load(x + i, n - i));
}

static float vector_max(const float *x, uint32_t n)
{
    vf m = v_all(-INFINITY);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        m = v_max(v_load(x + i, LANES), m);
    float most = v_most(m);
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static float vector_exp_sum(float *x, uint32_t n, float max)
{
    enum { SIDE = 4 }; /* interleaved, to hide latency */
    vf sum = {0};
    uint32_t i = 0;
    for (; i + SIDE * LANES <= n; i += SIDE * LANES) {
        vf v[SIDE];
#pragma GCC unroll 4
        for (int j = 0; j < SIDE; j++)
            v[j] = v_exp(v_load(x + i + j * LANES, LANES) - max);
#pragma GCC unroll 4
        for (int j = 0; j < SIDE; j++) {
            v_store(x + i + j * LANES, LANES, v[j]);
            sum += v[j];
        }
    }
    for (; i < n; i += LANES) {
        vf v = v_exp(v_load(x + i, n - i) - max);
        v_store(x + i, n - i, v);
        sum += n - i < LANES ? v_load(x + i, n - i) : v;
    }
    return v_sum(sum);
}

static void vector_softcap(float *x, uint32_t n, float scale, float cap)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = v_load(x + i, n - i) * scale;
        v_store(x + i, n - i, cap > 0 ? cap * v_tanh(v / cap) : v);
    }
}

static float vector_round_i16(const float *x, uint32_t n, bool length, int16_t *y)
{
    vf most = {0};
    for (uint32_t i = 0; i < n && !length; i += LANES)
        most = v_max(v_abs(v_load(x + i, n - i)), most);
    const float square = vector_dot(x, x, n);
    const float all = length ? sqrtf(square) : v_most(most) + 0 * square; /* what is no number stays none */
    const float top = length ? I16_LENGTH : I16_LARGEST, inverse = all <= I16_LEAST ? 0 : top / all;
    for (uint32_t i = 0; i < n; i += LANES) {
        v16 r = v_round_i16(v_load(x + i, n - i), inverse);
        memcpy(y + i, &r, n - i < LANES ? (n - i) * sizeof *y : sizeof r);
    }
    return all / top;
}

static void vector_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        y[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}

static void vector_from_f16(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    for (; i < n; i++)
        y[i] = _cvtsh_ss(x[i]);
}

static void vector_panel_f16(const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t cols, float *y,
                             size_t y_stride)
{
    for (uint32_t r = 0; r < rows; r++)
        vector_from_f16(x + r * x_stride, cols, y + r * y_stride);
}

static void vector_fill(struct kernels *k)
{
    k->quantise = vector_quantise;
    k->quantise_rest = vector_quantise_rest;
    k->rms_norm = vector_rms_norm;
    k->layer_norm = vector_layer_norm;
    k->act_mul = vector_act_mul;
    k->rope = vector_rope;
    k->dot = vector_dot;
    k->axpy = vector_axpy;
    k->max = vector_max;
    k->exp_sum = vector_exp_sum;
    k->round_i16 = vector_round_i16;
    k->softcap = vector_softcap;
    k->to_f16 = vector_to_f16;
    k->from_f16 = vector_from_f16;
    k->panel_f16 = vector_panel_f16;
}
