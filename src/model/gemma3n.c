/* gemma 3n: four streams side by side (AltUp). Each layer predicts all of them, computes on one, and corrects all by
 * what came of it; a low-rank path (Laurel) runs beside attention, the first layers keep only the largest gates, and
 * per-layer inputs and shared keys are as in gemma 4. */
#include "model/gemma4.h"

#include "model/arch.h"
#include "model/families.h"

#include <math.h>

/* x with a normal distribution below x with probability p. */
static double normal_quantile(double p)
{
    double x = 0;
    for (int i = 0; i < 60; i++) {
        double below = 0.5 * erfc(-x / sqrt(2)), slope = exp(-x * x / 2) / sqrt(2 * M_PI);
        double step = (below - p) / slope;
        x -= step > 1 ? 1 : step < -1 ? -1 : step;
    }
    return x;
}

int gemma3n_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const double share[2] = {0, 0.9999}, scale[2] = {-HUGE_VAL, 1e9}; /* -inf: all gates stay */
    h->streams = 4;
    h->stream_scaled = true;
    h->attn_scale = 1;
    h->embed_scale = sqrtf((float)h->width);
    float *sparse = arena_alloc(&h->arena, h->layers, sizeof *sparse);
    if (!sparse)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++)
        sparse[i] = 0;
    if (gemma4_share(h, k, e) < 0 ||
        keys_u32(k, "altup.num_inputs", "altup_num_inputs", HPARAMS_SIZE, &h->streams, e) < 0 ||
        keys_bool(k, "altup.correct_scale", "altup_correct_scale", &h->stream_scaled, e) < 0 ||
        keys_u32(k, "altup.active_idx", "altup_active_idx", HPARAMS_COUNT, &h->stream, e) < 0 ||
        keys_each_f32(k, "activation_sparsity_scale", "activation_sparsity_pattern", k->gguf ? scale : share,
                      sparse, h->layers, e) < 0)
        return -1;
    if (h->streams < 2 || h->streams > 64 || h->stream >= h->streams || !h->per_layer)
        return err_set(e, ERR_DATA, "stream %u of %u, %u numbers a layer: that cannot be", h->stream,
                       h->streams, h->per_layer);
    for (uint32_t i = 0; i < h->layers; i++)
        if (k->gguf)
            h->layer[i].sparsity = isfinite(sparse[i]) ? sparse[i] : 0;
        else
            h->layer[i].sparsity = sparse[i] > 0 ? (float)normal_quantile(sparse[i]) : 0;
    return 0;
}

/* The buffers of a step. */
struct altup {
    struct operand streams, predicted; /* (streams, width) each */
    struct operand normed, laurel, low, half, out, innovation, first, gates, ups;
    struct operand modality, coefs;
    struct operand inputs; /* per layer */
};

static struct operand stream_of(const struct build *b, struct operand all, uint32_t i)
{
    return (struct operand){all.buffer, all.col + i * b->h->width};
}

/* A product of a row into another, without a residual. */
static struct op_out *product(struct build *b, uint32_t layer, struct operand in, struct operand out)
{
    struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
    *o = (struct op_out){.in = in, .tail = {.scale = 1, .out = out}};
    return o;
}

/* coefs = name(tanh(router(norm(in)) / width)) */
static void coefficients(struct build *b, const struct altup *a, uint32_t layer, struct operand in,
                         const char *name, uint32_t n)
{
    const struct hparams *h = b->h;
    struct op_out *o = product(b, layer, in, a->modality);
    o->norm = build_norm(b, "altup_router_norm", (int)layer);
    o->linear = bind_linear(&b->bind, "altup_router", (int)layer, h->streams, h->width);
    struct op_map *m = build_map(b, layer, a->modality, a->modality, h->streams);
    m->factor = 1 / (float)h->width;
    m->cap = 1;
    o = product(b, layer, a->modality, a->coefs);
    o->linear = bind_linear(&b->bind, name, (int)layer, n, h->streams);
}

static void mix(struct build *b, const struct altup *a, uint32_t layer, struct op_mix m)
{
    m.coef = a->coefs;
    m.outs = b->h->streams;
    m.width = b->h->width;
    plan_add(b->p, OP_MIX, layer)->mix = m;
}

/* half = (stream + norm(attention) + laurel) / sqrt(2) */
static void attention(struct build *b, const struct altup *a, uint32_t layer)
{
    const struct hparams *h = b->h;
    const int il = (int)layer;
    struct operand active = stream_of(b, a->predicted, h->stream);
    build_map(b, layer, active, a->normed, h->width)->norm = build_norm(b, "attn_norm", il);
    const uint32_t rank = (uint32_t)bind_rows(&b->bind, "laurel_l", il);
    struct op_out *o = product(b, layer, a->normed, a->low);
    o->linear = bind_linear(&b->bind, "laurel_l", il, rank, h->width);
    o = product(b, layer, a->low, a->laurel);
    o->linear = bind_linear(&b->bind, "laurel_r", il, h->width, rank);
    o->tail.post = build_norm(b, "laurel_post_norm", il);
    o->tail.residual = a->normed;
    b->x = a->normed;
    struct op_qkv *q = build_qkv(b, layer, (struct norm){0});
    if (q->k.weight)
        q->v_norm = (struct norm){.kind = NORM_RMS, .eps = h->eps, .heads = q->kv_heads};
    build_attn(b, layer);
    struct tail *t = build_out(b, layer);
    t->post = build_norm(b, "post_attention_norm", il);
    t->residual = active;
    t->out = a->half;
    struct op_map *sum = build_map(b, layer, a->half, a->half, h->width);
    sum->residual = a->laurel;
    sum->scale = sqrtf(0.5f);
}

/* out = half + norm(feed-forward) */
static void feed_forward(struct build *b, const struct altup *a, uint32_t layer)
{
    const struct layer_params *l = &b->h->layer[layer];
    const int il = (int)layer;
    struct norm in = build_norm(b, "ffn_norm", il);
    struct tail *t;
    b->x = a->half;
    if (l->sparsity != 0) { /* the gates that stay depend on all of them */
        struct op_out *o = product(b, layer, a->half, a->gates);
        o->norm = in;
        o->linear = bind_linear(&b->bind, "ffn_gate", il, l->ffn, b->h->width);
        o = product(b, layer, a->half, a->ups);
        o->norm = in;
        o->linear = bind_linear(&b->bind, "ffn_up", il, l->ffn, b->h->width);
        struct op_map *m = build_map(b, layer, a->gates, a->gates, l->ffn);
        m->deviations = l->sparsity;
        m->act = b->h->act;
        m->by = a->ups;
        o = product(b, layer, a->gates, a->out);
        o->linear = bind_linear(&b->bind, "ffn_down", il, b->h->width, l->ffn);
        t = &o->tail;
    } else {
        t = &build_dense(b, layer, in)->tail;
    }
    *t = (struct tail){.scale = 1, .residual = a->half, .out = a->out};
    t->post = build_norm(b, "post_ffw_norm", il);
}

static void correct(struct build *b, const struct altup *a, uint32_t layer)
{
    const struct hparams *h = b->h;
    coefficients(b, a, layer, a->out, "altup_correct_coef", h->streams);
    struct op_map *d = build_map(b, layer, stream_of(b, a->predicted, h->stream), a->innovation, h->width);
    d->factor = -1;
    d->residual = a->out;
    mix(b, a, layer,
        (struct op_mix){.base = a->predicted, .in = a->innovation, .out = a->streams, .ins = 1, .bias = 1});
    struct op_map *first = build_map(b, layer, stream_of(b, a->streams, h->stream), a->first, h->width);
    weight_id scale = bind_optional(&b->bind, "altup_correct_scale", (int)layer, ".weight", h->width);
    first->times = h->stream_scaled ? scale : 0;
    b->x = a->first;
    struct tail *t = &gemma4_add_input(b, layer, a->inputs)->tail;
    t->residual = (struct operand){0};
    t->out = a->out;
    for (uint32_t i = 1; i < h->streams; i++) {
        struct operand s = stream_of(b, a->streams, i);
        build_map(b, layer, a->out, s, h->width)->residual = s;
    }
}

/* Streams 1 and up: a product each, given the length of stream 0. */
static void project(struct build *b, const char *name, struct operand from, struct operand to)
{
    const struct hparams *h = b->h;
    struct op_heads *o = &plan_add(b->p, OP_HEADS, UINT32_MAX)->heads;
    *o = (struct op_heads){.in = stream_of(b, from, 1), .out = stream_of(b, to, 1)};
    o->weight =
        bind_stack(&b->bind, name, LOOKUP_NO_LAYER, (struct shape){h->width, h->width, h->streams - 1});
    for (uint32_t i = 1; i < h->streams; i++) {
        struct operand s = stream_of(b, to, i);
        struct op_map *m = build_map(b, UINT32_MAX, s, s, h->width);
        m->norm = (struct norm){.kind = NORM_RMS, .eps = 1e-12f};
        m->like = from;
    }
}

static struct altup buffers(struct build *b)
{
    const struct hparams *h = b->h;
    uint64_t rank = bind_rows(&b->bind, "laurel_l", 0);
    struct altup a = {.streams = plan_buffer(b->p, h->streams * h->width)};
    a.predicted = plan_buffer(b->p, h->streams * h->width);
    a.normed = plan_buffer(b->p, h->width);
    a.laurel = plan_buffer(b->p, h->width);
    a.low = plan_buffer(b->p, rank && rank < h->width ? (uint32_t)rank : h->width);
    a.half = plan_buffer(b->p, h->width);
    a.out = plan_buffer(b->p, h->width);
    a.innovation = plan_buffer(b->p, h->width);
    a.first = plan_buffer(b->p, h->width);
    a.gates = plan_buffer(b->p, h->ffn);
    a.ups = plan_buffer(b->p, h->ffn);
    a.modality = plan_buffer(b->p, h->streams);
    a.coefs = plan_buffer(b->p, h->streams * h->streams);
    return a;
}

void gemma3n_build(struct build *b)
{
    const struct hparams *h = b->h;
    struct altup a = buffers(b);
    struct operand x = b->x;
    build_embed(b);
    a.inputs = gemma4_inputs(b);
    for (uint32_t i = 0; i < h->streams; i++)
        build_map(b, UINT32_MAX, x, stream_of(b, a.predicted, i), h->width);
    build_map(b, UINT32_MAX, x, a.streams, h->width);
    project(b, "altup_proj", a.predicted, a.streams);
    for (uint32_t i = 0; i < h->layers; i++) {
        coefficients(b, &a, i, stream_of(b, a.streams, h->stream), "altup_predict_coef",
                     h->streams * h->streams);
        mix(b, &a, i,
            (struct op_mix){.base = a.streams, .in = a.streams, .out = a.predicted, .ins = h->streams});
        attention(b, &a, i);
        feed_forward(b, &a, i);
        correct(b, &a, i);
    }
    project(b, "altup_unembd_proj", a.streams, a.predicted);
    for (uint32_t i = 1; i < h->streams; i++) {
        struct op_map *m = build_map(b, UINT32_MAX, stream_of(b, a.predicted, i), x, h->width);
        m->residual = i > 1 ? x : a.streams;
        m->scale = i + 1 < h->streams ? 1 : 1 / (float)h->streams;
    }
    b->x = x;
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
