/* An independent reference for plans: every operation in double, row by row, with KV kept whole and
 * unpaged; and a rig that runs a plan on it and on the CPU device side by side. */
#pragma once

#include "test.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REF_SEQS = 8, REF_LENGTH = 1024, REF_ROWS = 640 };

/* ---- random weights ---- */

static uint64_t ref_seed = 1;

static uint32_t ref_u32(void)
{
    ref_seed = ref_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(ref_seed >> 33);
}

static float ref_uniform(float most)
{
    return most * ((float)(ref_u32() & 0xffffff) / (float)0x800000 - 1.0f);
}

/* One row: floats, halves, or random blocks whose scale (and minimum) make values of about `size`. */
static void ref_fill(uint32_t type, uint8_t *row, size_t bytes, uint32_t cols, float size)
{
    static const struct {
        uint32_t type, scale_at, min_at; /* offsets of F16 fields in the block; the same: no minimum */
        float most;                      /* value of the largest quant at scale 1 */
    } block[] = {{DTYPE_Q4_0, 0, 0, 8},     {DTYPE_Q5_0, 0, 0, 16},       {DTYPE_Q8_0, 0, 0, 128},
                 {DTYPE_Q4_K, 0, 2, 500},   {DTYPE_Q6_K, 208, 208, 2000}, {DTYPE_Q4_1, 0, 2, 15},
                 {DTYPE_IQ4_NL, 0, 0, 120}, {DTYPE_Q5_K, 0, 2, 1000}};
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16) {
        for (uint32_t i = 0; i < cols; i++) {
            float x = ref_uniform(size);
            uint16_t half = type == DTYPE_F16 ? fp16_from_f32(x) : bf16_from_f32(x);
            if (type == DTYPE_F32)
                memcpy(row + i * sizeof x, &x, sizeof x);
            else
                memcpy(row + i * sizeof half, &half, sizeof half);
        }
        return;
    }
    uint32_t each = dtype_get(type)->block_bytes, t = 0;
    while (block[t].type != type)
        t++;
    for (size_t i = 0; i < bytes; i++)
        row[i] = (uint8_t)ref_u32();
    for (size_t at = 0; at < bytes; at += each) {
        uint16_t scale = fp16_from_f32(2 * size / block[t].most), least = fp16_from_f32(size / 60);
        memcpy(row + at + block[t].scale_at, &scale, sizeof scale);
        if (block[t].min_at != block[t].scale_at)
            memcpy(row + at + block[t].min_at, &least, sizeof least);
    }
}

/* A weight of `count` matrices (rows, cols) of a type, of size about 1/sqrt(cols) (or `most`, where > 0). */
static weight_id ref_weight(struct weights *w, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count,
                            float most)
{
    size_t row = 0;
    assert_true(dtype_row_bytes(type, cols, &row));
    uint8_t *data = malloc(row * rows * count);
    assert_non_null(data);
    for (uint32_t r = 0; r < rows * count; r++)
        ref_fill(type, data + r * row, row, cols, most > 0 ? most : 1.7f / sqrtf((float)cols));
    struct weight one = {.name = "w",
                         .type = type,
                         .rows = rows,
                         .cols = cols,
                         .count = count,
                         .data = data,
                         .row_bytes = row,
                         .each_bytes = row * rows};
    weight_id id = weights_add(w, &one);
    assert_true(id);
    return id;
}

static weight_id ref_vector(struct weights *w, uint32_t n, float middle, float most)
{
    weight_id id = ref_weight(w, DTYPE_F32, 1, n, 1, most);
    float *x = (float *)(void *)(uintptr_t)w->all[id].data;
    for (uint32_t i = 0; i < n; i++)
        x[i] += middle;
    return id;
}

static weight_id ref_freqs(struct weights *w, uint32_t dims)
{
    weight_id id = ref_weight(w, DTYPE_F32, 1, dims / 2, 1, 1);
    float *x = (float *)(void *)(uintptr_t)w->all[id].data;
    for (uint32_t i = 0; i < dims / 2; i++)
        x[i] = powf(10000.0f, -2.0f * (float)i / (float)dims);
    return id;
}

/* ---- the reference ---- */

struct ref {
    const struct plan *p;
    const struct weights *w;
    double **buffer;         /* (buffers): (REF_ROWS, width) */
    double *k[64][REF_SEQS]; /* by layer and sequence: (REF_LENGTH, kv_heads * k_dim) */
    double *v[64][REF_SEQS];
    double *results;
};

static double *ref_new(size_t n)
{
    double *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* y (rows of W) = W x + b, with the weight decoded. */
static void ref_linear(const struct ref *f, struct linear l, uint32_t matrix, const double *x, double *y)
{
    const struct weight *w = &f->w->all[l.weight];
    float *row = malloc(w->cols * sizeof *row);
    for (uint32_t n = 0; n < w->rows; n++) {
        dtype_get(w->type)->decode(w->data + matrix * w->each_bytes + n * w->row_bytes, row, w->cols);
        double sum = 0;
        for (uint32_t i = 0; i < w->cols; i++)
            sum += (double)row[i] * x[i];
        if (l.bias) {
            const struct weight *b = &f->w->all[l.bias];
            sum += (double)((const float *)(const void *)(b->data + matrix * b->each_bytes))[n];
        }
        y[n] = sum;
    }
    free(row);
}

static double ref_at(const struct ref *f, weight_id id, uint32_t i)
{
    return (double)((const float *)(const void *)f->w->all[id].data)[i];
}

static void ref_norm(const struct ref *f, const struct norm *n, double *x, uint32_t width)
{
    if (n->kind == NORM_NONE)
        return;
    uint32_t heads = n->heads ? n->heads : 1, size = width / heads;
    for (uint32_t h = 0; h < heads; h++) {
        double mean = 0, square = 0;
        for (uint32_t i = 0; i < size; i++)
            mean += x[h * size + i] / size;
        mean = n->kind == NORM_LAYER ? mean : 0;
        for (uint32_t i = 0; i < size; i++)
            square += (x[h * size + i] - mean) * (x[h * size + i] - mean) / size;
        for (uint32_t i = 0; i < size; i++) {
            double y = (x[h * size + i] - mean) / sqrt(square + (double)n->eps);
            if (n->weight)
                y *= ref_at(f, n->weight, f->w->all[n->weight].cols == size ? i : h * size + i);
            if (n->bias)
                y += ref_at(f, n->bias, f->w->all[n->bias].cols == size ? i : h * size + i);
            x[h * size + i] = y;
        }
    }
}

static double *ref_copy(const double *x, uint32_t n)
{
    double *y = ref_new(n);
    memcpy(y, x, n * sizeof *y);
    return y;
}

static double *ref_row(const struct ref *f, struct operand o, uint32_t row)
{
    return f->buffer[o.buffer] + (size_t)row * f->p->width[o.buffer] + o.col;
}

static double ref_act(int act, double x)
{
    switch (act) {
    case ACT_SILU:
        return x / (1 + exp(-x));
    case ACT_GELU:
        return x * 0.5 * erfc(-x / sqrt(2));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
    case ACT_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return x;
    }
}

static void ref_rope(const struct ref *f, const struct rope *r, double *x, int32_t pos)
{
    uint32_t half = r->dims / 2;
    for (uint32_t i = 0; r->kind && i < half; i++) {
        double angle = pos * ref_at(f, r->freqs, i), c = cos(angle) * (double)r->factor,
               s = sin(angle) * (double)r->factor;
        double *a = x + r->first + (r->kind == ROPE_HALVES ? i : 2 * i),
               *b = a + (r->kind == ROPE_HALVES ? half : 1);
        double a0 = *a, b0 = *b;
        *a = a0 * c - b0 * s;
        *b = b0 * c + a0 * s;
    }
}

static void ref_tail(const struct ref *f, const struct tail *t, double *y, uint32_t n, uint32_t row)
{
    ref_norm(f, &t->post, y, n);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (double)t->scale * y[i] + (t->residual.buffer ? ref_row(f, t->residual, row)[i] : 0);
    ref_norm(f, &t->after, y, n);
    memcpy(ref_row(f, t->out, row), y, n * sizeof *y);
}

static void ref_embed(const struct ref *f, const struct op_embed *o, int32_t id, int32_t pos, uint32_t row)
{
    const weight_id from[3] = {o->table, o->positions, o->types};
    const uint32_t at[3] = {(uint32_t)id, (uint32_t)pos + o->position_offset, 0};
    uint32_t n = f->w->all[o->table].cols;
    double *y = ref_row(f, o->out, row);
    float *x = malloc(n * sizeof *x);
    memset(y, 0, n * sizeof *y);
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        const struct weight *w = &f->w->all[from[i]];
        dtype_get(w->type)->decode(w->data + at[i] * w->row_bytes, x, n);
        for (uint32_t j = 0; j < n; j++)
            y[j] += (double)x[j] * (i ? 1 : (double)o->scale);
    }
    free(x);
    ref_norm(f, &o->norm, y, n);
}

static void ref_qkv(struct ref *f, const struct op_qkv *o, uint32_t seq, int32_t pos, uint32_t row)
{
    uint32_t nq = o->heads * o->k_dim, nk = o->kv_heads * o->k_dim, nv = o->kv_heads * o->v_dim;
    uint32_t cols = f->w->all[o->q.weight].cols;
    double *x = ref_copy(ref_row(f, o->in, row), cols), *q = ref_row(f, o->out, row);
    double *k = f->k[o->layer][seq] + (size_t)pos * nk, *v = f->v[o->layer][seq] + (size_t)pos * nv;
    ref_norm(f, &o->norm, x, cols);
    ref_linear(f, o->q, 0, x, q);
    ref_linear(f, o->k, 0, x, k);
    ref_linear(f, o->v, 0, x, v);
    double *all[3] = {q, k, v};
    uint32_t n[3] = {nq, nk, nv};
    for (int j = 0; o->clamp > 0 && j < 3; j++)
        for (uint32_t i = 0; i < n[j]; i++)
            all[j][i] = fmax(fmin(all[j][i], (double)o->clamp), -(double)o->clamp);
    ref_norm(f, &o->q_norm, q, nq);
    ref_norm(f, &o->k_norm, k, nk);
    for (uint32_t h = 0; h < o->heads; h++)
        ref_rope(f, &o->rope, q + h * o->k_dim, pos);
    for (uint32_t h = 0; h < o->kv_heads; h++)
        ref_rope(f, &o->rope, k + h * o->k_dim, pos);
    free(x);
}

static void ref_latent(struct ref *f, const struct op_latent *o, uint32_t seq, int32_t pos, uint32_t row)
{
    uint32_t cols = f->w->all[o->kv_a.weight].cols, r = o->rope.dims, wide = o->nope + r, low = cols;
    double *x = ref_copy(ref_row(f, o->in, row), cols), *a = x, *q = ref_new(o->heads * wide);
    double *c = f->k[o->layer][seq] + (size_t)pos * (o->latent + r);
    ref_norm(f, &o->norm, x, cols);
    if (o->q_a.weight) {
        low = f->w->all[o->q_a.weight].rows;
        a = ref_new(low);
        ref_linear(f, o->q_a, 0, x, a);
        ref_norm(f, &o->q_norm, a, low);
    }
    ref_linear(f, o->q_b, 0, a, q);
    ref_linear(f, o->kv_a, 0, x, c);
    ref_norm(f, &o->kv_norm, c, o->latent);
    ref_rope(f, &o->rope, c + o->latent, pos);
    for (uint32_t h = 0; h < o->heads; h++) {
        double *y = ref_row(f, o->out, row) + h * (o->latent + r);
        ref_linear(f, (struct linear){.weight = o->k_b}, h, q + h * wide, y);
        memcpy(y + o->latent, q + h * wide + o->nope, r * sizeof *y);
        ref_rope(f, &o->rope, y + o->latent, pos);
    }
    if (a != x)
        free(a);
    free(x);
    free(q);
}

static void ref_attn(const struct ref *f, const struct op_attn *o, uint32_t seq, uint32_t length, int32_t pos,
                     uint32_t row)
{
    double *s = ref_new(length);
    for (uint32_t h = 0; h < o->heads; h++) {
        uint32_t kv = h / (o->heads / o->kv_heads);
        const double *q = ref_row(f, o->in, row) + h * o->k_dim;
        double *y = ref_row(f, o->out, row) + h * o->v_dim;
        uint32_t side = o->window / 2, end = o->causal ? (uint32_t)pos + 1 : length;
        uint32_t start = o->causal && o->window && end > o->window ? end - o->window : 0;
        if (!o->causal && o->window) {
            start = (uint32_t)pos > side ? (uint32_t)pos - side : 0;
            end = (uint32_t)pos + side + 1 < length ? (uint32_t)pos + side + 1 : length;
        }
        double most = o->sinks ? ref_at(f, o->sinks, h) : -INFINITY, sum = 0;
        for (uint32_t j = start; j < end; j++) {
            const double *k = f->k[o->layer][seq] + ((size_t)j * o->kv_heads + kv) * o->k_dim;
            s[j] = 0;
            for (uint32_t i = 0; i < o->k_dim; i++)
                s[j] += q[i] * k[i];
            s[j] *= (double)o->scale;
            if (o->distance) {
                int cols = (int)f->w->all[o->distance].cols, n = cols / 2, d = (int)j - pos;
                d = d < -n ? -n : d > n ? n : d;
                s[j] += ref_at(f, o->distance, h * (uint32_t)cols + (uint32_t)(d + n));
            }
            if (o->softcap > 0)
                s[j] = (double)o->softcap * tanh(s[j] / (double)o->softcap);
            most = fmax(most, s[j]);
        }
        for (uint32_t j = start; j < end; j++)
            sum += s[j] = exp(s[j] - most);
        if (o->sinks)
            sum += exp(ref_at(f, o->sinks, h) - most);
        memset(y, 0, o->v_dim * sizeof *y);
        for (uint32_t j = start; j < end; j++) {
            const double *v = o->v_in_k ? f->k[o->layer][seq] + (size_t)j * o->k_dim
                                        : f->v[o->layer][seq] + ((size_t)j * o->kv_heads + kv) * o->v_dim;
            for (uint32_t i = 0; i < o->v_dim; i++)
                y[i] += s[j] / sum * v[i];
        }
    }
    free(s);
}

/* down(act(gate x) * up x) of one expert. */
static void ref_hidden(const struct ref *f, const struct linear l[3], uint32_t matrix, const struct op_moe *m,
                       int act, const double *x, double *y)
{
    uint32_t n = f->w->all[l[1].weight].rows;
    double *g = ref_new(n), *u = ref_new(n);
    ref_linear(f, l[1], matrix, x, u);
    if (l[0].weight)
        ref_linear(f, l[0], matrix, x, g);
    for (uint32_t i = 0; i < n; i++) {
        if (act == ACT_SWIGLU_OAI) {
            double gate = fmin(g[i], (double)m->limit),
                   up = fmax(fmin(u[i], (double)m->limit), -(double)m->limit);
            u[i] = gate / (1 + exp(-(double)m->alpha * gate)) * (up + 1);
        } else {
            u[i] = l[0].weight ? ref_act(act, g[i]) * u[i] : ref_act(act, u[i]);
        }
    }
    ref_linear(f, l[2], matrix, u, y);
    free(g);
    free(u);
}

static void ref_choose(const struct ref *f, const struct op_moe *o, double *score, double *weight)
{
    uint32_t n = o->experts, size = o->groups > 1 ? n / o->groups : n;
    double sum = 0, *choice = ref_new(n);
    bool *open = calloc(n, 1), *chosen = calloc(n, 1);
    double most = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, score[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp(score[i] - most);
    for (uint32_t i = 0; i < n; i++) {
        score[i] = o->gating == GATING_SOFTMAX   ? exp(score[i] - most) / sum
                   : o->gating == GATING_SIGMOID ? 1 / (1 + exp(-score[i]))
                                                 : score[i];
        choice[i] = score[i] + (o->select_bias ? ref_at(f, o->select_bias, i) : 0);
        open[i] = o->groups <= 1;
    }
    for (uint32_t turn = 0; o->groups > 1 && turn < o->groups_used; turn++) {
        uint32_t best = UINT32_MAX;
        double best_rank = -INFINITY;
        for (uint32_t g = 0; g < o->groups; g++) {
            double a = -INFINITY, b = -INFINITY;
            for (uint32_t i = g * size; i < (g + 1) * size; i++) {
                if (choice[i] > a)
                    b = a, a = choice[i];
                else if (choice[i] > b)
                    b = choice[i];
            }
            double rank = o->group_pair ? a + b : a;
            if (!open[g * size] && (best == UINT32_MAX || rank > best_rank))
                best = g, best_rank = rank;
        }
        for (uint32_t i = best * size; i < (best + 1) * size; i++)
            open[i] = true;
    }
    memset(weight, 0, n * sizeof *weight);
    for (uint32_t turn = 0; turn < o->used; turn++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < n; i++)
            if (open[i] && !chosen[i] && (best == UINT32_MAX || choice[i] > choice[best]))
                best = i;
        chosen[best] = true;
        weight[best] = score[best];
    }
    sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (chosen[i] && o->gating == GATING_SOFTMAX_TOPK)
            weight[i] = exp(weight[i] - most);
        sum += weight[i];
    }
    for (uint32_t i = 0; i < n; i++)
        weight[i] *= (double)o->weight_scale / (o->normalise || o->gating == GATING_SOFTMAX_TOPK ? sum : 1);
    free(choice);
    free(open);
    free(chosen);
}

static void ref_moe(const struct ref *f, const struct op_moe *o, uint32_t border, uint32_t row)
{
    uint32_t k = f->w->all[o->up.weight].cols, n = f->w->all[o->down.weight].rows;
    const struct linear l[3] = {o->gate, o->up, o->down};
    const struct linear shared[3] = {o->shared_gate, o->shared_up, o->shared_down};
    double *x = ref_copy(ref_row(f, o->in, row), k), *score = ref_new(o->experts),
           *weight = ref_new(o->experts);
    double *y = ref_new(n), *sum = ref_new(n), gate = 0;
    ref_norm(f, &o->norm, x, k);
    ref_linear(f, o->router, 0, x, score);
    ref_choose(f, o, score, weight);
    for (uint32_t e = 0; e < o->experts; e++) {
        if (weight[e] == 0 || (o->side == MOE_BELOW && e >= border) || (o->side == MOE_ABOVE && e < border))
            continue;
        ref_hidden(f, l, e, o, o->act, x, y);
        for (uint32_t i = 0; i < n; i++)
            sum[i] += weight[e] * y[i];
    }
    if (o->shared_up.weight) {
        ref_hidden(f, shared, 0, o, o->act, x, y);
        if (o->shared_router)
            ref_linear(f, (struct linear){.weight = o->shared_router}, 0, x, &gate);
        for (uint32_t i = 0; i < n; i++)
            sum[i] += y[i] * (o->shared_router ? 1 / (1 + exp(-gate)) : 1);
    }
    ref_tail(f, &o->tail, sum, n, row);
    free(x);
    free(score);
    free(weight);
    free(y);
    free(sum);
}

static void ref_ffn(const struct ref *f, const struct op_ffn *o, uint32_t row)
{
    uint32_t k = f->w->all[o->up.weight].cols, n = f->w->all[o->down.weight].rows;
    const struct linear l[3] = {o->gate, o->up, o->down};
    double *x = ref_copy(ref_row(f, o->in, row), k), *y = ref_new(n);
    ref_norm(f, &o->norm, x, k);
    ref_hidden(f, l, 0, NULL, o->act, x, y);
    ref_tail(f, &o->tail, y, n, row);
    free(x);
    free(y);
}

static void ref_out(const struct ref *f, const struct op_out *o, uint32_t row)
{
    const struct weight *w = &f->w->all[o->linear.weight];
    double *x = ref_copy(ref_row(f, o->in, row), w->cols), *y = ref_new(w->rows);
    ref_norm(f, &o->norm, x, w->cols);
    ref_linear(f, o->linear, 0, x, y);
    ref_tail(f, &o->tail, y, w->rows, row);
    free(x);
    free(y);
}

static void ref_logits(const struct ref *f, const struct op_logits *o, const struct step *s)
{
    uint32_t n = f->p->out_width, k = o->head.weight ? f->w->all[o->head.weight].cols : n;
    for (uint32_t i = 0; i < s->outs; i++) {
        double *x = ref_copy(ref_row(f, o->in, (uint32_t)s->out[i]), k), *y = f->results + (size_t)i * n;
        ref_norm(f, &o->norm, x, k);
        if (o->head.weight)
            ref_linear(f, o->head, 0, x, y);
        else
            memcpy(y, x, n * sizeof *y);
        for (uint32_t j = 0; j < n; j++) {
            y[j] *= (double)o->scale;
            if (o->softcap > 0)
                y[j] = (double)o->softcap * tanh(y[j] / (double)o->softcap);
        }
        free(x);
    }
}

/* name (seqs): which sequence of the reference each sequence of the step is. */
static void ref_run(struct ref *f, const struct step *s, const uint32_t *name)
{
    for (uint32_t i = 0; i < f->p->count; i++) {
        const struct op *op = &f->p->ops[i];
        if (op->kind == OP_LOGITS)
            ref_logits(f, &op->logits, s);
        for (uint32_t q = 0; q < s->seqs; q++)
            for (uint32_t r = s->seq[q].first; r < s->seq[q].first + s->seq[q].rows; r++) {
                if (op->kind == OP_EMBED)
                    ref_embed(f, &op->embed, s->ids[r], s->pos[r], r);
                else if (op->kind == OP_QKV)
                    ref_qkv(f, &op->qkv, name[q], s->pos[r], r);
                else if (op->kind == OP_LATENT)
                    ref_latent(f, &op->latent, name[q], s->pos[r], r);
                else if (op->kind == OP_ATTN)
                    ref_attn(f, &op->attn, name[q], s->seq[q].length, s->pos[r], r);
                else if (op->kind == OP_OUT)
                    ref_out(f, &op->out, r);
                else if (op->kind == OP_FFN)
                    ref_ffn(f, &op->ffn, r);
                else if (op->kind == OP_MOE)
                    ref_moe(f, &op->moe, s->border, r);
                else if (op->kind == OP_HEADS)
                    for (uint32_t h = 0; h < f->w->all[op->heads.weight].count; h++)
                        ref_linear(f, (struct linear){.weight = op->heads.weight}, h,
                                   ref_row(f, op->heads.in, r) + h * f->w->all[op->heads.weight].cols,
                                   ref_row(f, op->heads.out, r) + h * f->w->all[op->heads.weight].rows);
            }
    }
}

/* ---- the rig ---- */

struct rig {
    struct plan plan;
    struct weights weights;
    struct kv_config kv;
    struct ref ref;
    uint32_t length[REF_SEQS];
    /* pages of each sequence in each group, handed out in a scrambled order */
    int32_t table[PLAN_GROUPS_MOST][REF_SEQS][REF_LENGTH / 16];
    int32_t ids[REF_ROWS], pos[REF_ROWS], out[REF_ROWS];
    int32_t tables[PLAN_GROUPS_MOST * REF_SEQS * (REF_LENGTH / 16)];
    struct step_seq seq[REF_SEQS];
    uint32_t name[REF_SEQS];
    uint32_t border; /* of all steps */
    struct step step;
};

/* Once the plan is written: its pages, its reference. */
static void rig_begin(struct rig *g, uint32_t page_tokens, uint32_t kv_type)
{
    struct err e = {0};
    if (plan_check(&g->plan, &g->weights, &e))
        fail_msg("%s", e.text);
    g->kv = (struct kv_config){.type = kv_type, .page_tokens = page_tokens};
    uint32_t each = REF_LENGTH / page_tokens, all = each * REF_SEQS;
    for (uint32_t i = 0; i < g->plan.groups; i++) {
        g->kv.pages[i] = all + 1;
        for (uint32_t s = 0; s < REF_SEQS; s++)
            for (uint32_t p = 0; p < each; p++)
                g->table[i][s][p] = (int32_t)(1 + ((s * each + p) * 37 + i * 11) % all);
    }
    struct ref *f = &g->ref;
    f->p = &g->plan;
    f->w = &g->weights;
    f->buffer = calloc(g->plan.buffers, sizeof *f->buffer);
    for (uint32_t b = 1; b < g->plan.buffers; b++)
        f->buffer[b] = ref_new((size_t)REF_ROWS * g->plan.width[b]);
    for (uint32_t l = 0; l < g->plan.layers; l++) {
        const struct kv_group *kv = &g->plan.group[g->plan.kv[l].group];
        for (uint32_t s = 0; s < REF_SEQS; s++) {
            f->k[l][s] = ref_new((size_t)REF_LENGTH * kv->kv_heads * kv->k_dim);
            f->v[l][s] = ref_new((size_t)REF_LENGTH * kv->kv_heads * kv->v_dim);
        }
    }
    f->results = ref_new((size_t)REF_ROWS * g->plan.out_width);
}

static void rig_end(struct rig *g)
{
    for (uint32_t l = 0; l < g->plan.layers; l++)
        for (uint32_t s = 0; s < REF_SEQS; s++) {
            free(g->ref.k[l][s]);
            free(g->ref.v[l][s]);
        }
    for (uint32_t b = 1; b < g->plan.buffers; b++)
        free(g->ref.buffer[b]);
    free(g->ref.buffer);
    free(g->ref.results);
    for (uint32_t i = 1; i < g->weights.count; i++)
        free((void *)(uintptr_t)g->weights.all[i].data);
    weights_free(&g->weights);
    plan_free(&g->plan);
    free(g);
}

static struct rig *rig_new(void)
{
    struct rig *g = calloc(1, sizeof *g);
    assert_non_null(g);
    return g;
}

/* Begins a batch; rig_add puts `rows` more tokens of a sequence into it; all rows ask for results. */
static void rig_batch(struct rig *g)
{
    g->step = (struct step){.ids = g->ids, .pos = g->pos, .seq = g->seq, .tables = g->tables, .out = g->out};
    g->step.border = g->border;
}

static void rig_add(struct rig *g, uint32_t name, uint32_t rows)
{
    struct step *s = &g->step;
    g->seq[s->seqs] = (struct step_seq){.first = s->rows, .rows = rows, .length = g->length[name] + rows};
    g->name[s->seqs++] = name;
    for (uint32_t i = 0; i < rows; i++, s->rows++) {
        g->ids[s->rows] = (int32_t)((name * 7 + (g->length[name] + i) * 13) % 31);
        g->pos[s->rows] = (int32_t)(g->length[name] + i);
        g->out[s->outs++] = (int32_t)s->rows;
    }
    g->length[name] += rows;
    uint32_t width = REF_LENGTH / g->kv.page_tokens;
    s->table_width = width;
    for (uint32_t i = 0; i < g->plan.groups; i++)
        for (uint32_t q = 0; q < s->seqs; q++)
            memcpy(g->tables + ((size_t)i * s->seqs + q) * width, g->table[i][g->name[q]],
                   width * sizeof(int32_t));
}

static struct device *rig_device(struct rig *g, const struct device_options *o)
{
    struct device *d = NULL;
    struct err e = {0};
    if (device_open(&d, "cpu", o, &e) || d->ops->load(d, &g->weights, NULL, NULL, &e) ||
        d->ops->prepare(d, &g->plan, &g->kv, REF_ROWS, REF_SEQS, REF_ROWS, &e))
        fail_msg("%s", e.text);
    return d;
}

static const float *rig_run(struct rig *g, struct device *d)
{
    struct err e = {0};
    if (d->ops->run(d, &g->plan, &g->step, &e))
        fail_msg("%s", e.text);
    return d->ops->results(d, &e);
}

/* The difference to the reference, relative to the root mean square of its results: the largest one, or
 * (for rounded activations, where single values may be far off) its own root mean square. */
static double rig_error(const struct rig *g, const float *y, bool largest)
{
    double most = 0, square = 0, off = 0;
    size_t n = (size_t)g->step.outs * g->plan.out_width;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((double)y[i]))
            return INFINITY;
        double x = g->ref.results[i], d = (double)y[i] - x;
        most = fmax(most, fabs(d));
        off += d * d;
        square += x * x;
    }
    return (largest ? most : sqrt(off / (double)n)) / sqrt(square / (double)n + 1e-30);
}
