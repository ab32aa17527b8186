/* Every entry of the kernel table in plain C, written to be read: the meaning, the fallback and the
 * oracle of the vector tiers. Sums are kept in double so that the order of a vector tier is the only
 * difference to it. */
#include "device/cpu/scalar_attn.h"
#include "device/kinds.h"

#include "codec/dtype.h"
#include "codec/half.h"

#include <math.h>
#include <string.h>

enum { SCALAR_CHUNK = 256, SCALAR_ROWS = 16 };

static void scalar_quantise(const float *x, uint32_t k, int8_t *q, float *d, int32_t *s)
{
    for (uint32_t b = 0; b < k / Q8_BLOCK; b++, x += Q8_BLOCK, q += Q8_BLOCK) {
        float most = 0;
        for (int i = 0; i < Q8_BLOCK; i++)
            most = fmaxf(most, fabsf(x[i]));
        float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0;
        int32_t sum = 0;
        for (int i = 0; i < Q8_BLOCK; i++) {
            q[i] = (int8_t)nearbyintf(fminf(fmaxf(x[i] * inverse, -127.0f), 127.0f));
            sum += q[i];
        }
        d[b] = scale;
        s[b] = sum;
    }
}

static void scalar_quantise_rest(const float *x, uint32_t k, const struct q8_rows *row)
{
    for (uint32_t b = 0; b < k / Q8_BLOCK; b++) {
        float d = row->d[b], inverse = d > Q8_LEAST ? Q8_REST / d : 0;
        int32_t sum = 0;
        for (uint32_t i = b * Q8_BLOCK; i < (b + 1) * Q8_BLOCK; i++) {
            float rest = fmaf(-d, (float)row->q[i], x[i]) * inverse;
            int8_t q = (int8_t)nearbyintf(fminf(fmaxf(rest, -127.0f), 127.0f));
            row->q[row->q_stride + i] = q;
            sum += q;
        }
        row->d[row->s_stride + b] = d / Q8_REST;
        row->s[row->s_stride + b] = sum;
    }
}

/* Rows of x for a product, `chunk` values from column `at` of row r, as floats. */
typedef const float *(*scalar_rows)(const struct matmul *job, uint32_t r, uint32_t at, uint32_t n,
                                    float *hold);

static const float *scalar_float_rows(const struct matmul *job, uint32_t r, uint32_t at, uint32_t n,
                                      float *hold)
{
    (void)n;
    (void)hold;
    return job->x + r * job->x_stride + at;
}

static void scalar_round_bf16(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = bf16_to_f32(bf16_from_f32(x[i]));
}

static const float *scalar_bf16_rows(const struct matmul *job, uint32_t r, uint32_t at, uint32_t n,
                                     float *hold)
{
    scalar_round_bf16(job->x + r * job->x_stride + at, n, hold);
    return hold;
}

static const float *scalar_q8_rows(const struct matmul *job, uint32_t r, uint32_t at, uint32_t n, float *hold)
{
    r *= job->rests ? 2 : 1;
    const int8_t *q = job->q8.q + r * job->q8.q_stride + at, *rest = q + job->q8.q_stride;
    const float *d = job->q8.d + r * job->q8.s_stride + at / Q8_BLOCK;
    for (uint32_t i = 0; i < n; i++)
        hold[i] = job->rests ? (Q8_REST * (float)q[i] + (float)rest[i]) * (d[i / Q8_BLOCK] / Q8_REST)
                             : (float)q[i] * d[i / Q8_BLOCK];
    return hold;
}

/* One weight row against up to SCALAR_ROWS rows of x: each chunk of the weight is decoded once for all, and rounded if
 * x is. */
static void scalar_product(const struct matmul *job, const uint8_t *w, uint32_t r0, uint32_t rows,
                           double *sum, scalar_rows get)
{
    const struct dtype_info *t = dtype_get(job->type);
    uint32_t chunk = SCALAR_CHUNK / t->block_values * t->block_values;
    float a[SCALAR_CHUNK], hold[SCALAR_CHUNK];
    for (uint32_t at = 0; at < job->k; at += chunk) {
        uint32_t n = job->k - at < chunk ? job->k - at : chunk;
        t->decode(w + (size_t)(at / t->block_values) * t->block_bytes, a, n);
        if (get == scalar_bf16_rows)
            scalar_round_bf16(a, n, a);
        for (uint32_t r = 0; r < rows; r++) {
            const float *x = get(job, r0 + r, at, n, hold);
            double own = sum[r];
            for (uint32_t i = 0; i < n; i++)
                own += (double)a[i] * (double)x[i];
            sum[r] = own;
        }
    }
}

static void scalar_matmul(const struct matmul *job, scalar_rows get)
{
    for (uint32_t n = job->n0; n < job->n1; n++) {
        const uint8_t *w = job->w + n * job->row_bytes;
        for (uint32_t r0 = 0; r0 < job->m; r0 += SCALAR_ROWS) {
            uint32_t rows = job->m - r0 < SCALAR_ROWS ? job->m - r0 : SCALAR_ROWS;
            double sum[SCALAR_ROWS] = {0};
            scalar_product(job, w, r0, rows, sum, get);
            for (uint32_t r = 0; r < rows; r++)
                job->y[(r0 + r) * job->y_stride + n] = (float)sum[r];
        }
    }
}

static void scalar_matmul_float(const struct matmul *job)
{
    scalar_matmul(job, scalar_float_rows);
}

static void scalar_matmul_bf16(const struct matmul *job)
{
    scalar_matmul(job, scalar_bf16_rows);
}

static void scalar_matmul_q8(const struct matmul *job)
{
    scalar_matmul(job, scalar_q8_rows);
}

static void scalar_rms_norm(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float inverse = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inverse * (w ? w[i] : 1.0f);
}

static void scalar_layer_norm(const float *x, const float *w, const float *b, float eps, uint32_t n, float *y)
{
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    double mean = sum / n;
    for (uint32_t i = 0; i < n; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    float inverse = (float)(1.0 / sqrt(square / n + (double)eps)), middle = (float)mean;
    for (uint32_t i = 0; i < n; i++)
        y[i] = (x[i] - middle) * inverse * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
}

static float scalar_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float scalar_act(int act, float x)
{
    switch (act) {
    case ACT_SILU:
        return x * scalar_sigmoid(x);
    case ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_QUICK:
        return x * scalar_sigmoid(1.702f * x);
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    case ACT_SIGMOID:
        return scalar_sigmoid(x);
    case ACT_TANH:
        return tanhf(x);
    default:
        return x;
    }
}

static void scalar_act_mul(int act, const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = scalar_act(act, gate[i]) * (up ? up[i] : 1.0f);
}

static void scalar_rope(float *x, uint32_t dims, bool halves, const float *cos_sin)
{
    uint32_t half = dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = halves ? &x[i] : &x[2 * i], *b = halves ? &x[i + half] : &x[2 * i + 1];
        float c = cos_sin[i], s = cos_sin[half + i], a0 = *a, b0 = *b;
        *a = a0 * c - b0 * s;
        *b = a0 * s + b0 * c;
    }
}

static float scalar_dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static void scalar_axpy(float a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static float scalar_max(const float *x, uint32_t n)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static float scalar_exp_sum(float *x, uint32_t n, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += (double)x[i];
    }
    return (float)sum;
}

/* To nearest; any integer for NaN. */
static int16_t scalar_i16(float x)
{
    return x == x ? (int16_t)nearbyintf(fminf(fmaxf(x, -I16_LENGTH), I16_LENGTH)) : 0;
}

static void scalar_softcap(float *x, uint32_t n, float scale, float cap)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap > 0 ? cap * tanhf(x[i] * scale / cap) : x[i] * scale;
}

static void scalar_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fp16_from_f32(x[i]);
}

static void scalar_from_f16(const uint16_t *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fp16_to_f32(x[i]);
}

static void scalar_panel_f16(const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t cols, float *y,
                             size_t y_stride)
{
    for (uint32_t r = 0; r < rows; r++)
        scalar_from_f16(x + r * x_stride, cols, y + r * y_stride);
}

static float scalar_round_i16(const float *x, uint32_t n, bool length, int16_t *y)
{
    double square = 0;
    float most = 0;
    for (uint32_t i = 0; i < n; i++) {
        square += (double)x[i] * (double)x[i];
        most = fmaxf(most, fabsf(x[i]));
    }
    float all = length ? (float)sqrt(square) : most + 0 * (float)square; /* what is no number stays none */
    float top = length ? I16_LENGTH : I16_LARGEST, inverse = all <= I16_LEAST ? 0 : top / all;
    for (uint32_t i = 0; i < n; i++)
        y[i] = scalar_i16(x[i] * inverse);
    return all / top;
}

void scalar_scores_int(const struct attn_tile *t)
{
    const struct attn_pages *g = t->pages;
    const uint32_t pairs = (t->k_dim + 1) / 2;
    for (uint32_t r = 0; r < t->m; r++)
        for (uint32_t j = 0; j < t->keys; j++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < 2 * pairs; i++)
                sum += t->q16[r * 2 * pairs + i] *
                       g->k[j / g->tokens][(i / 2 * g->tokens + j % g->tokens) * 2 + i % 2];
            t->s[r * ATTN_KEYS + j] = (float)sum * t->q_scale[r] * g->k_scale[j];
        }
}

static void scalar_attn_scores(const struct attn_tile *t)
{
    any_scores(t);
}

/* A row's probabilities times the scales of the values, as integers; returns their scale. */
static float scalar_weights(const float *s, const float *v_scale, int16_t *w)
{
    float sum = 0, most = 0;
    for (uint32_t j = 0; j < ATTN_KEYS; j++) {
        sum += s[j] * v_scale[j];
        most = fmaxf(most, s[j] * v_scale[j]);
    }
    float scale = fmaxf(sum / I16_WEIGHTS, most / I16_LENGTH), inverse = scale <= I16_LEAST ? 0 : 1 / scale;
    for (uint32_t j = 0; j < ATTN_KEYS; j++)
        w[j] = scalar_i16(s[j] * v_scale[j] * inverse);
    return sum == sum ? scale : sum;
}

static void scalar_attn_softmax(const struct attn_tile *t)
{
    for (uint32_t r = 0; r < t->m; r++) {
        const struct attn_span seen = t->seen[r];
        float *s = t->s + r * ATTN_KEYS, top = -INFINITY;
        double sum = 0;
        for (uint32_t i = seen.lo; i < seen.hi; i++)
            top = s[i] > top ? s[i] : top;
        t->rescale[r] = 1;
        if (top > t->max[r] + ATTN_LAG) {
            t->rescale[r] = expf(t->max[r] - top);
            t->max[r] = top;
        }
        for (uint32_t i = 0; i < ATTN_KEYS; i++) {
            s[i] = i >= seen.lo && i < seen.hi ? expf(s[i] - t->max[r]) : 0;
            sum += (double)s[i];
        }
        t->sum[r] = t->sum[r] * t->rescale[r] + (float)sum;
        if (t->pages)
            t->w_scale[r] = scalar_weights(s, t->pages->v_scale, t->w + r * ATTN_KEYS);
    }
}

void scalar_values_int(const struct attn_tile *t)
{
    const struct attn_pages *g = t->pages;
    const uint32_t cols = attn_v_cols(t->v_dim);
    for (uint32_t r = 0; r < t->m; r++)
        for (uint32_t i = 0; i < t->v_dim; i++) {
            int32_t sum = 0;
            for (uint32_t j = 0; j < t->keys; j++)
                sum +=
                    t->w[r * ATTN_KEYS + j] * g->v[j / g->tokens][(j % g->tokens / 2 * cols + i) * 2 + j % 2];
            float *acc = t->acc + r * t->v_dim + i;
            *acc = *acc * t->rescale[r] + t->w_scale[r] * (float)sum;
        }
}

static void scalar_attn_values(const struct attn_tile *t)
{
    any_values(t);
}

/* ---- layers with a state ---- */

static void scalar_conv(const struct conv_tile *t)
{
    for (uint32_t c = 0; c < t->channels; c++)
        for (uint32_t r = 0; r < t->n; r++) {
            float x = t->x[r * t->x_stride + c] * (t->mul ? t->mul[r * t->mul_stride + c] : 1.0f);
            const float *w = t->w + (size_t)c * t->cols;
            double sum = (double)(t->bias ? t->bias[c] : 0.0f) + (double)w[t->cols - 1] * (double)x;
            for (uint32_t i = 0; i + 1 < t->cols; i++) {
                float *past = &t->past[i * t->past_stride + c];
                sum += (double)w[i] * (double)*past;
                *past = i + 2 < t->cols ? past[t->past_stride] : x;
            }
            t->y[r * t->y_stride + c] = scalar_act(t->act, (float)sum);
        }
}

static float scalar_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

static float scalar_decay(const struct decay_row *d)
{
    float dt = 1;
    for (uint32_t i = 0; i < d->n; i++) {
        float x = d->kind == DECAY_FIXED ? 0 : d->x[i] + (d->bias ? d->bias[i] : 0), power = d->a;
        if (d->kind == DECAY_SOFTPLUS) {
            dt = fminf(fmaxf(scalar_softplus(x), d->least), d->most);
            power = d->a * dt;
        } else if (d->kind == DECAY_SIGMOID) {
            power = d->bound * scalar_sigmoid(d->a * x);
        } else if (d->kind == DECAY_EXP) {
            power = d->a * expf(x);
        }
        if (d->dt)
            d->dt[i] = dt;
        if (d->y)
            d->y[i] = d->kind == DECAY_GIVEN ? x : expf(power);
    }
    return dt;
}

/* A row of a column, where what is erased is known from the state before it. */
static void scalar_erase(const struct scan_tile *t, uint32_t r, uint32_t j)
{
    const size_t at = (size_t)r * t->k_dim;
    const float *rate = t->rate + r * t->rate_stride, v = t->v[r * t->v_stride + j];
    double known = 0, y = 0;
    for (uint32_t i = 0; i < t->k_dim; i++)
        known += (double)t->erase[at + i] * (double)t->s[i * t->s_stride + j];
    for (uint32_t i = 0; i < t->k_dim; i++) {
        float *s = &t->s[i * t->s_stride + j];
        *s = t->decay[at + i] * *s + t->k[at + i] * v - rate[i] * t->erase[at + i] * (float)known;
        y += (double)t->q[at + i] * (double)*s;
    }
    t->y[r * t->y_stride + j] = (float)y + t->skip * v;
}

/* Columns of S are independent of each other. */
static void scalar_scan(const struct scan_tile *t)
{
    for (uint32_t j = 0; j < t->v_dim; j++)
        for (uint32_t r = 0; r < t->n; r++) {
            if (t->erase) {
                scalar_erase(t, r, j);
                continue;
            }
            const float *q = t->q + (size_t)r * t->k_dim, *k = t->k + (size_t)r * t->k_dim;
            const float *g = t->decay + (size_t)r * t->decays;
            float v = t->v[r * t->v_stride + j];
            double known = 0, y = 0;
            for (uint32_t i = 0; i < t->k_dim; i++) {
                float *s = &t->s[i * t->s_stride + j];
                y += t->before ? (double)q[i] * (double)*s : 0;
                *s *= g[t->decays > 1 ? i : 0];
                known += (double)k[i] * (double)*s;
            }
            float w = t->write[r] * (t->delta ? v - (float)known : v);
            for (uint32_t i = 0; i < t->k_dim; i++) {
                float *s = &t->s[i * t->s_stride + j];
                *s += k[i] * w;
                y += t->before ? 0 : (double)q[i] * (double)*s;
            }
            t->y[r * t->y_stride + j] = (float)y + t->skip * v;
        }
}

static void scalar_scan_channels(const struct scan_channels *t)
{
    for (uint32_t c = 0; c < t->channels; c++)
        for (uint32_t r = 0; r < t->n; r++) {
            float *s = t->s + (size_t)c * t->k_dim;
            const float *a = t->a + (size_t)c * t->k_dim;
            float v = t->v[r * t->v_stride + c], dt = t->dt[(size_t)r * t->channels + c];
            double y = 0;
            for (uint32_t i = 0; i < t->k_dim; i++) {
                s[i] = expf(a[i] * dt) * s[i] + dt * v * t->k[(size_t)r * t->k_dim + i];
                y += (double)t->q[(size_t)r * t->k_dim + i] * (double)s[i];
            }
            t->y[r * t->y_stride + c] = (float)y + (t->skip ? t->skip[c] * v : 0);
        }
}

static float cell_gate(const struct cell_tile *t, uint32_t r, uint32_t c)
{
    return t->gate[r * t->gate_stride + c] + (t->gate_bias ? t->gate_bias[c] : 0);
}

static float cell_decay(const struct cell_tile *t, uint32_t r, uint32_t c)
{
    return t->decay[r * t->decay_stride + c] + (t->decay_bias ? t->decay_bias[c] : 0);
}

static void scalar_lru(const struct cell_tile *t, uint32_t r, uint32_t c)
{
    const float power = t->a[c] * scalar_sigmoid(cell_decay(t, r, c)), x = t->x[r * t->x_stride + c];
    const float root = t->pos[r] ? sqrtf(-expm1f(2 * power)) : 1;
    t->s[c] = expf(power) * t->s[c] + root * scalar_sigmoid(cell_gate(t, r, c)) * x;
    t->y[r * t->y_stride + c] = t->s[c];
}

static void scalar_average(const struct cell_tile *t, uint32_t r, uint32_t c)
{
    float *sum = t->s + c, *weight = sum + t->s_stride, *most = weight + t->s_stride;
    const float x = t->x[r * t->x_stride + c], own = cell_gate(t, r, c), k = t->gate[r * t->gate_stride + c];
    const float before = *weight > 0 ? *most : -INFINITY; /* no row yet */
    float m = fmaxf(before, own), old = expf(before - m), new = expf(own - m);
    t->y[r * t->y_stride + c] = (old * *sum + new *x) / (old * *weight + new);
    m = fmaxf(before + t->a[c], k), old = expf(before + t->a[c] - m), new = expf(k - m);
    *sum = old * *sum + new *x;
    *weight = old * *weight + new;
    *most = m;
}

static void scalar_gates(const struct cell_tile *t, uint32_t r, uint32_t c)
{
    const float f = t->s[c] - scalar_softplus(-cell_decay(t, r, c)), i = cell_gate(t, r, c), m = fmaxf(f, i);
    float *y = t->y + r * t->y_stride + c;
    y[0] = expf(f - m);
    y[t->y_part] = expf(i - m);
    y[2 * t->y_part] = expf(-m);
    t->s[c] = m;
}

static void scalar_cell(const struct cell_tile *t)
{
    static void (*const row[])(const struct cell_tile *t, uint32_t r, uint32_t c) = {
        [CELL_LRU] = scalar_lru, [CELL_AVERAGE] = scalar_average, [CELL_GATES] = scalar_gates};
    for (uint32_t c = 0; c < t->channels; c++)
        for (uint32_t r = 0; r < t->n; r++)
            row[t->kind](t, r, c);
}

void kernels_scalar(struct kernels *k)
{
    memset(k, 0, sizeof *k);
    k->tier = "scalar";
    k->scratch_bytes = 64;
    k->quantise = scalar_quantise;
    k->quantise_rest = scalar_quantise_rest;
#define SCALAR_ROUNDED(TYPE, name) k->matmul_q8[DTYPE_##TYPE] = scalar_matmul_q8;
    KERNEL_ROUNDED_TYPES(SCALAR_ROUNDED)
#undef SCALAR_ROUNDED
    k->matmul_float = scalar_matmul_float;
    k->matmul_bf16 = scalar_matmul_bf16;
    k->rms_norm = scalar_rms_norm;
    k->layer_norm = scalar_layer_norm;
    k->act_mul = scalar_act_mul;
    k->rope = scalar_rope;
    k->dot = scalar_dot;
    k->axpy = scalar_axpy;
    k->max = scalar_max;
    k->exp_sum = scalar_exp_sum;
    k->round_i16 = scalar_round_i16;
    k->softcap = scalar_softcap;
    k->to_f16 = scalar_to_f16;
    k->from_f16 = scalar_from_f16;
    k->panel_f16 = scalar_panel_f16;
    k->attn_scores = scalar_attn_scores;
    k->attn_softmax = scalar_attn_softmax;
    k->attn_values = scalar_attn_values;
    k->conv = scalar_conv;
    k->decay = scalar_decay;
    k->scan = scalar_scan;
    k->scan_channels = scalar_scan_channels;
    k->cell = scalar_cell;
}
