/* Convolutions and recurrences of both vector tiers: a tier's file defines VECTOR_BYTES and includes this. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/vector.h"
#include "device/plan.h"

#include <math.h>

enum { STATE_REGISTERS = 4, STATE_CONV_MOST = 8 };

/* ---- recurrences ---- */

/* `cols` columns of a state, in `regs` registers, of which the last may be partly used. */
static inline __attribute__((always_inline)) void
scan_columns(const struct scan_tile *t, uint32_t at, uint32_t cols, const int regs, const bool before)
{
    const uint32_t last = cols - (uint32_t)(regs - 1) * LANES;
    const bool each = t->decays > 1;
#define PART(c) ((c) == regs - 1 ? last : LANES)
    for (uint32_t r = 0; r < t->n; r++) {
        const float *q = t->q + (size_t)r * t->k_dim, *k = t->k + (size_t)r * t->k_dim;
        const float *g = t->decay + (size_t)r * t->decays, *v = t->v + r * t->v_stride + at;
        vf w[STATE_REGISTERS], y[STATE_REGISTERS];
        for (int c = 0; c < regs; c++)
            w[c] = y[c] = v_all(0);
        for (uint32_t i = 0; t->delta && i < t->k_dim; i++) {
            const float factor = k[i] * g[each ? i : 0];
            for (int c = 0; c < regs; c++)
                w[c] += factor * v_load(t->s + i * t->s_stride + at + c * LANES, PART(c));
        }
        for (int c = 0; c < regs; c++)
            w[c] = t->write[r] * (v_load(v + c * LANES, PART(c)) - w[c]);
        for (uint32_t i = 0; i < t->k_dim; i++)
            for (int c = 0; c < regs; c++) {
                float *s = t->s + i * t->s_stride + at + c * LANES;
                vf old = v_load(s, PART(c)), one = g[each ? i : 0] * old + k[i] * w[c];
                v_store(s, PART(c), one);
                y[c] += q[i] * (before ? old : one);
            }
        for (int c = 0; c < regs; c++)
            v_store(t->y + r * t->y_stride + at + c * LANES, PART(c),
                    y[c] + t->skip * v_load(v + c * LANES, PART(c)));
    }
#undef PART
}

/* LANES columns or fewer of a state of which rows erase. */
static void scan_erase(const struct scan_tile *t, uint32_t at, uint32_t cols)
{
    for (uint32_t r = 0; r < t->n; r++) {
        const size_t row = (size_t)r * t->k_dim;
        const float *e = t->erase + row, *rate = t->rate + r * t->rate_stride;
        const vf v = v_load(t->v + r * t->v_stride + at, cols);
        vf known = v_all(0), y = v_all(0);
        for (uint32_t i = 0; i < t->k_dim; i++)
            known += e[i] * v_load(t->s + i * t->s_stride + at, cols);
        for (uint32_t i = 0; i < t->k_dim; i++) {
            float *s = t->s + i * t->s_stride + at;
            vf one = t->decay[row + i] * v_load(s, cols) + t->k[row + i] * v - (rate[i] * e[i]) * known;
            v_store(s, cols, one);
            y += t->q[row + i] * one;
        }
        v_store(t->y + r * t->y_stride + at, cols, y + t->skip * v);
    }
}

static void state_scan(const struct scan_tile *t)
{
    uint32_t at = 0;
    for (uint32_t cols; t->erase && at < t->v_dim; at += cols) {
        cols = t->v_dim - at < LANES ? t->v_dim - at : LANES;
        scan_erase(t, at, cols);
    }
    for (uint32_t cols; t->before && at < t->v_dim; at += cols) {
        cols = t->v_dim - at < LANES ? t->v_dim - at : LANES;
        scan_columns(t, at, cols, 1, true);
    }
    for (; at + STATE_REGISTERS * LANES <= t->v_dim; at += STATE_REGISTERS * LANES)
        scan_columns(t, at, STATE_REGISTERS * LANES, STATE_REGISTERS, false);
    for (uint32_t cols; at < t->v_dim; at += cols) {
        cols = t->v_dim - at < LANES ? t->v_dim - at : LANES;
        scan_columns(t, at, cols, 1, false);
    }
}

/* States are vectors: a channel's is followed through all rows, a register of it at a time. */
static void state_scan_channels(const struct scan_channels *t)
{
    for (uint32_t c = 0; c < t->channels; c++)
        for (uint32_t at = 0; at < t->k_dim; at += LANES) {
            const uint32_t n = t->k_dim - at < LANES ? t->k_dim - at : LANES;
            float *state = t->s + (size_t)c * t->k_dim + at;
            vf s = v_load(state, n), a = v_load(t->a + (size_t)c * t->k_dim + at, n);
            for (uint32_t r = 0; r < t->n; r++) {
                const float v = t->v[r * t->v_stride + c], dt = t->dt[(size_t)r * t->channels + c];
                const size_t row = (size_t)r * t->k_dim + at;
                s = v_exp(a * dt) * s + (dt * v) * v_load(t->k + row, n);
                float *y = t->y + r * t->y_stride + c, sum = v_sum(s * v_load(t->q + row, n));
                *y = sum + (at ? *y : t->skip ? t->skip[c] * v : 0);
            }
            v_store(state, n, s);
        }
}

/* log(1 + y) for y from 0 to 1: 2 atanh(y / (2 + y)). */
static inline vf v_log1p(vf y)
{
    vf z = y / (2.0f + y), z2 = z * z, p = v_all(1.0f / 13);
    p = p * z2 + 1.0f / 11;
    p = p * z2 + 1.0f / 9;
    p = p * z2 + 1.0f / 7;
    p = p * z2 + 1.0f / 5;
    p = p * z2 + 1.0f / 3;
    return 2.0f * z * (p * z2 + 1.0f);
}

static inline vf v_softplus(vf x)
{
    return v_max(x, v_all(0)) + v_log1p(v_exp(-v_abs(x)));
}

static float state_decay(const struct decay_row *d)
{
    float last = 1;
    for (uint32_t i = 0; i < d->n; i += LANES) {
        const uint32_t n = d->n - i < LANES ? d->n - i : LANES;
        vf x = d->x ? v_load(d->x + i, n) : v_all(0), dt = v_all(1), power = v_all(d->a);
        if (d->bias && d->x)
            x += v_load(d->bias + i, n);
        if (d->kind == DECAY_SOFTPLUS) {
            dt = v_max(v_softplus(x), v_all(d->least));
            dt = v_select(dt > d->most, v_all(d->most), dt);
            power = d->a * dt;
        } else if (d->kind == DECAY_SIGMOID) {
            power = d->bound * v_sigmoid(d->a * x);
        } else if (d->kind == DECAY_EXP) {
            power = d->a * v_exp(x);
        }
        if (d->dt)
            v_store(d->dt + i, n, dt);
        if (d->y)
            v_store(d->y + i, n, d->kind == DECAY_GIVEN ? x : v_exp(power));
        last = dt[n - 1];
    }
    return last;
}

static inline vf v_sqrt(vf x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
}

static inline vf cell_bias(const float *bias, uint32_t c, uint32_t n)
{
    return bias ? v_load(bias + c, n) : v_all(0);
}

/* Channels of a register, from c on, are followed through all rows. */
static void state_lru(const struct cell_tile *t, uint32_t c, uint32_t n)
{
    vf s = v_load(t->s + c, n), a = v_load(t->a + c, n);
    const vf gate_bias = cell_bias(t->gate_bias, c, n), decay_bias = cell_bias(t->decay_bias, c, n);
    for (uint32_t r = 0; r < t->n; r++) {
        vf g = v_exp(a * v_sigmoid(v_load(t->decay + r * t->decay_stride + c, n) + decay_bias)),
           x = v_sigmoid(v_load(t->gate + r * t->gate_stride + c, n) + gate_bias) *
               v_load(t->x + r * t->x_stride + c, n);
        s = g * s + (t->pos[r] ? v_sqrt((1.0f - g) * (1.0f + g)) * x : x);
        v_store(t->y + r * t->y_stride + c, n, s);
    }
    v_store(t->s + c, n, s);
}

static void state_average(const struct cell_tile *t, uint32_t c, uint32_t n)
{
    const vf a = v_load(t->a + c, n), first = cell_bias(t->gate_bias, c, n);
    vf sum = v_load(t->s + c, n), weight = v_load(t->s + t->s_stride + c, n),
       most = v_load(t->s + 2 * t->s_stride + c, n);
    for (uint32_t r = 0; r < t->n; r++) {
        const vf x = v_load(t->x + r * t->x_stride + c, n), k = v_load(t->gate + r * t->gate_stride + c, n),
                 before = v_select(weight > 0.0f, most, v_all(-1e38f));
        vf m = v_max(before, k + first), old = v_exp(before - m), new = v_exp(k + first - m);
        v_store(t->y + r * t->y_stride + c, n, (old * sum + new *x) / (old * weight + new));
        m = v_max(before + a, k), old = v_exp(before + a - m), new = v_exp(k - m);
        sum = old * sum + new *x;
        weight = old * weight + new;
        most = m;
    }
    v_store(t->s + c, n, sum);
    v_store(t->s + t->s_stride + c, n, weight);
    v_store(t->s + 2 * t->s_stride + c, n, most);
}

static void state_gates(const struct cell_tile *t, uint32_t c, uint32_t n)
{
    const vf gate_bias = cell_bias(t->gate_bias, c, n), decay_bias = cell_bias(t->decay_bias, c, n);
    vf s = v_load(t->s + c, n);
    for (uint32_t r = 0; r < t->n; r++) {
        const vf f = s - v_softplus(-(v_load(t->decay + r * t->decay_stride + c, n) + decay_bias)),
                 i = v_load(t->gate + r * t->gate_stride + c, n) + gate_bias;
        float *y = t->y + r * t->y_stride + c;
        s = v_max(f, i);
        v_store(y, n, v_exp(f - s));
        v_store(y + t->y_part, n, v_exp(i - s));
        v_store(y + 2 * t->y_part, n, v_exp(-s));
    }
    v_store(t->s + c, n, s);
}

static void state_cell(const struct cell_tile *t)
{
    static void (*const run[])(const struct cell_tile *t, uint32_t c, uint32_t n) = {
        [CELL_LRU] = state_lru, [CELL_AVERAGE] = state_average, [CELL_GATES] = state_gates};
    for (uint32_t c = 0, n; c < t->channels; c += n) {
        n = t->channels - c < LANES ? t->channels - c : LANES;
        run[t->kind](t, c, n);
    }
}

/* ---- convolution ---- */

/* LANES channels or fewer, from channel c on; the inputs before a row stay in registers. */
static inline void conv_channels(const struct conv_tile *t, uint32_t c, uint32_t n)
{
    vf w[STATE_CONV_MOST], past[STATE_CONV_MOST];
    const uint32_t before = t->cols - 1;
    for (uint32_t i = 0; i < t->cols; i++) {
        float column[LANES] = {0};
        for (uint32_t j = 0; j < n; j++)
            column[j] = t->w[(size_t)(c + j) * t->cols + i];
        w[i] = v_load(column, LANES);
    }
    for (uint32_t i = 0; i < before; i++)
        past[i] = v_load(t->past + i * t->past_stride + c, n);
    const vf bias = t->bias ? v_load(t->bias + c, n) : v_all(0);
    for (uint32_t r = 0; r < t->n; r++) {
        vf x = v_load(t->x + r * t->x_stride + c, n);
        if (t->mul)
            x *= v_load(t->mul + r * t->mul_stride + c, n);
        vf sum = bias;
        for (uint32_t i = 0; i < before; i++) {
            sum += w[i] * past[i];
            past[i] = i + 1 < before ? past[i + 1] : x;
        }
        sum += w[before] * x;
        v_store(t->y + r * t->y_stride + c, n, v_act(t->act, sum));
    }
    for (uint32_t i = 0; i < before; i++)
        v_store(t->past + i * t->past_stride + c, n, past[i]);
}

/* For all but the columns that registers have no room for. */
static void (*state_conv_any)(const struct conv_tile *t);

static void state_conv(const struct conv_tile *t)
{
    if (t->cols > STATE_CONV_MOST) {
        state_conv_any(t);
        return;
    }
    for (uint32_t c = 0, n; c < t->channels; c += n) {
        n = t->channels - c < LANES ? t->channels - c : LANES;
        conv_channels(t, c, n);
    }
}

static void state_fill(struct kernels *k)
{
    state_conv_any = k->conv;
    k->conv = state_conv;
    k->decay = state_decay;
    k->scan = state_scan;
    k->scan_channels = state_scan_channels;
    k->cell = state_cell;
}
