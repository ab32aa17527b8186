/* Operations on rows without a product: maps of a row, mixtures of streams. A row is one piece of work. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

static float rows_rms(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return (float)sqrt(sum / n);
}

/* x = max(x - mean - deviations * deviation, 0) */
static void rows_sparse(float *x, uint32_t n, float deviations)
{
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    const double mean = sum / n;
    for (uint32_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    const float least = (float)(mean + deviations * sqrt(square / n));
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] > least ? x[i] - least : 0;
}

static void map_row(const struct lane *l, const struct op_map *o, uint32_t row, float *y)
{
    size_t stride;
    const uint32_t n = o->width;
    const float *x = lane_at(l, o->in, &stride) + row * stride, *times = lane_vector(l, o->times);
    if (o->norm.kind)
        lane_norm(l, &o->norm, x, n, y);
    else
        memcpy(y, x, n * sizeof *y);
    if (o->factor != 1 || o->cap > 0)
        l->k->softcap(y, n, o->factor, o->cap);
    if (o->deviations != 0)
        rows_sparse(y, n, o->deviations);
    if (o->act != ACT_NONE)
        l->k->act_mul(o->act, y, NULL, n, y);
    for (uint32_t i = 0; times && i < n; i++)
        y[i] *= times[i];
    if (o->like.buffer) {
        const float *like = lane_at(l, o->like, &stride) + row * stride;
        l->k->softcap(y, n, rows_rms(like, n), 0);
    }
    if (o->by.buffer) {
        const float *by = lane_at(l, o->by, &stride) + row * stride;
        for (uint32_t i = 0; i < n; i++)
            y[i] *= by[i];
    }
    if (o->plus)
        l->k->axpy(1.0f, lane_vector(l, o->plus), n, y);
    if (o->residual.buffer)
        l->k->axpy(1.0f, lane_at(l, o->residual, &stride) + row * stride, n, y);
    if (o->scale != 1)
        l->k->softcap(y, n, o->scale, 0);
    for (uint32_t i = 0; o->clips && i < n; i++)
        y[i] = fminf(fmaxf(y[i], o->least), o->most);
}

void op_map_run(struct lane *l, const struct op_map *o)
{
    size_t stride;
    float *out = lane_at(l, o->out, &stride);
    uint32_t from, to;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        map_row(l, o, r, l->local->tile[0]);
        memcpy(out + r * stride, l->local->tile[0], o->width * sizeof *out);
    }
    lane_wait(l);
}

void op_mix_run(struct lane *l, const struct op_mix *o)
{
    size_t base_stride = 0, in_stride, coef_stride = 0, out_stride;
    const float *base = o->base.buffer ? lane_at(l, o->base, &base_stride) : NULL;
    const float *coef = o->coef.buffer ? lane_at(l, o->coef, &coef_stride) : NULL;
    const float *in = lane_at(l, o->in, &in_stride), *fixed = lane_vector(l, o->fixed);
    float *out = lane_at(l, o->out, &out_stride);
    uint32_t from, to, n = o->width;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++)
        for (uint32_t i = 0; i < o->outs; i++) {
            float *y = out + r * out_stride + (size_t)i * n;
            if (base)
                memcpy(y, base + r * base_stride + (size_t)i * n, n * sizeof *y);
            else
                memset(y, 0, n * sizeof *y);
            for (uint32_t j = 0; j < o->ins; j++) {
                const float by = (coef ? coef[r * coef_stride + i * o->ins + j] : 0) +
                                 (fixed ? fixed[i * o->ins + j] : 0) + o->bias;
                if (coef || by != 0)
                    l->k->axpy(by, in + r * in_stride + (size_t)j * n, n, y);
            }
        }
    lane_wait(l);
}
