/* ZAYA: attention whose q and k are convolved, channel by channel and then within their heads, and take the means of the
 * products that they come from; half of v is that of the row before. The router is a small network of its own, which also
 * sees the hidden values of the router before it, and may choose no expert at all. */
#include "model/families.h"

#include "model/arch.h"

#include <string.h>

/* q and k have the length of the root of their size; of those that are 0 nothing is divided. */
#define LENGTH_EPS 1e-16f

struct zaya {
    struct build *b;
    uint32_t layer, heads, kv_heads, dim, router; /* router: width of its hidden values */
    struct operand products;                      /* q, k, the v of this row, that of the next */
    struct operand channels, before, mixed, qkv, branch;
    struct operand routed, low, hidden; /* of the router; routed stays for the next layer's */
};

int zaya_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k;
    if (!h->experts || !h->kv_heads || h->kv_heads % 2)
        return err_set(e, ERR_DATA,
                       "%u experts, and %u key-value heads: some are expected, and an even number",
                       h->experts, h->kv_heads);
    h->identities = 1; /* the choice of none */
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].recurrent = true; /* beside its keys */
    return 0;
}

static struct operand column(struct operand o, uint32_t col)
{
    o.col += col;
    return o;
}

/* All numbers of a tensor, which the written GGUF has as it is: rows of `rows`. */
static const float *numbers(const struct zaya *z, const char *name, uint32_t rows, uint32_t *cols)
{
    struct binder *w = &z->b->bind;
    struct bound of = {.name = name, .layer = (int)z->layer, .suffix = ".weight"};
    const struct tensor *t =
        bind_tensor(w, (struct tensor_at){name, (int)z->layer, LOOKUP_NO_EXPERT}, ".weight");
    *cols = t ? (uint32_t)(t->values / rows) : 0;
    if (t && (!*cols || *cols > HPARAMS_SIZE[1] || t->values % rows))
        err_set(w->e, ERR_DATA, "%s has not rows of %u channels", t->name, rows);
    const float *x = t && !w->e->code ? bind_floats(w, t, t->values, 0) : NULL;
    return x && bind_table(w, t->name, &of, x, (struct shape){rows, *cols, 1}) ? x : NULL;
}

static const float *vector_data(const struct zaya *z, weight_id id)
{
    return id ? (const float *)(const void *)z->b->bind.weights->all[id].data : NULL;
}

static weight_id table(const struct zaya *z, const char *what, const float *data, struct shape s)
{
    return data ? bind_table(&z->b->bind, what, NULL, data, s) : 0;
}

static void convolve(const struct zaya *z, struct op_conv conv)
{
    conv.state = plan_keep(z->b->p, z->layer, 1, conv.cols > 1 ? conv.cols - 1 : 1, conv.channels);
    plan_add(z->b->p, OP_CONV, z->layer)->conv = conv;
}

/* Row t - back of each channel. */
static weight_id delay(const struct zaya *z, uint32_t channels, uint32_t cols, uint32_t back)
{
    float *w = bind_memory(&z->b->bind, (size_t)channels * cols * sizeof *w);
    for (size_t i = 0; w && i < (size_t)channels * cols; i++)
        w[i] = i % cols == cols - 1 - back;
    return table(z, "the row before", w, (struct shape){channels, cols, 1});
}

/* Column `at` of the taps of each head's matrix. */
static weight_id tap(const struct zaya *z, const float *x, uint32_t taps, uint32_t at)
{
    const uint32_t heads = z->heads + z->kv_heads;
    const size_t n = (size_t)heads * z->dim * z->dim;
    float *w = x ? bind_memory(&z->b->bind, n * sizeof *w) : NULL;
    for (size_t i = 0; w && i < n; i++)
        w[i] = x[i * taps + at];
    return table(z, "convolution of heads", w, (struct shape){z->dim, z->dim, heads});
}

/* Both convolutions of q and k into `mixed`. The second sees the bias of the first at every row, those before the sequence
 * too: it is a part of the second's. */
static void convolve_keys(const struct zaya *z)
{
    struct binder *w = &z->b->bind;
    const int il = (int)z->layer;
    const uint32_t n = (z->heads + z->kv_heads) * z->dim;
    uint32_t cols = 0, all = 0;
    const float *each = numbers(z, "cca_conv", n, &cols), *heads = numbers(z, "cca_conv_heads", n, &all);
    const uint32_t taps = all / z->dim;
    const float *first = vector_data(z, bind_vector(w, "cca_conv", il, ".bias", n, 0)),
                *second = vector_data(z, bind_vector(w, "cca_conv_heads", il, ".bias", n, 0));
    float *bias = bind_memory(w, n * sizeof *bias);
    if (!each || !heads || !first || !second || !bias)
        return;
    if (!taps || all % z->dim || taps > 64 || cols < 2 || cols > 64) {
        err_set(w->e, ERR_DATA, "the convolutions of layer %u have %u and %u columns", z->layer, cols, taps);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        double sum = (double)second[i];
        for (uint32_t j = 0; j < all; j++)
            sum += (double)heads[(size_t)i * all + j] * (double)first[i / z->dim * z->dim + j / taps];
        bias[i] = (float)sum;
    }
    convolve(z, (struct op_conv){.in = z->products,
                                 .out = z->channels,
                                 .weight = table(z, "convolution", each, (struct shape){n, cols, 1}),
                                 .channels = n,
                                 .cols = cols});
    plan_add(z->b->p, OP_HEADS, z->layer)->heads =
        (struct op_heads){.in = z->channels, .out = z->mixed, .weight = tap(z, heads, taps, taps - 1)};
    build_map(z->b, z->layer, z->mixed, z->mixed, n)->plus = table(z, "bias", bias, (struct shape){1, n, 1});
    for (uint32_t back = 1; back < taps; back++) {
        convolve(z, (struct op_conv){.in = z->channels,
                                     .out = z->before,
                                     .weight = delay(z, n, back + 1, back),
                                     .channels = n,
                                     .cols = back + 1});
        plan_add(z->b->p, OP_HEADS, z->layer)->heads =
            (struct op_heads){.in = z->before, .out = z->qkv, .weight = tap(z, heads, taps, taps - 1 - back)};
        build_map(z->b, z->layer, z->qkv, z->mixed, n)->residual = z->mixed;
    }
}

/* q of a head takes the mean of its product and that of its k; k the mean of those. */
static void add_means(const struct zaya *z)
{
    const uint32_t n = z->heads + z->kv_heads, each = z->heads / z->kv_heads;
    float *c = bind_memory(&z->b->bind, (size_t)n * n * sizeof *c);
    if (!c)
        return;
    memset(c, 0, (size_t)n * n * sizeof *c);
    for (uint32_t h = 0; h < z->heads; h++) {
        const uint32_t key = z->heads + h / each;
        c[(size_t)h * n + h] = c[(size_t)h * n + key] = 0.5f;
        c[(size_t)key * n + h] = 0.5f / (float)each;
        c[(size_t)key * n + key] = 0.5f;
    }
    plan_add(z->b->p, OP_MIX, z->layer)->mix =
        (struct op_mix){.base = z->mixed,
                        .in = z->products,
                        .out = z->qkv,
                        .fixed = table(z, "means of q and k", c, (struct shape){n, n, 1}),
                        .outs = n,
                        .ins = n,
                        .width = z->dim};
}

/* k has a scale for each head. */
static struct norm key_norm(const struct zaya *z)
{
    const float *x =
        vector_data(z, bind_vector(&z->b->bind, "attn_k_scale", (int)z->layer, ".weight", z->kv_heads, 0));
    const uint32_t n = z->kv_heads * z->dim;
    float *w = x ? bind_memory(&z->b->bind, n * sizeof *w) : NULL;
    for (uint32_t i = 0; w && i < n; i++)
        w[i] = x[i / z->dim];
    return (struct norm){.kind = NORM_RMS,
                         .eps = LENGTH_EPS,
                         .heads = z->kv_heads,
                         .weight = table(z, "scale of k", w, (struct shape){1, n, 1})};
}

static void attention(const struct zaya *z)
{
    struct build *b = z->b;
    struct binder *w = &b->bind;
    const struct layer_params *l = &b->h->layer[z->layer];
    const int il = (int)z->layer;
    const uint32_t nq = z->heads * z->dim, nk = z->kv_heads * z->dim, width = b->h->width;
    struct norm in = build_norm(b, "attn_norm", il);
    struct op_proj proj = {.in = b->x, .norm = in, .out = z->products, .count = 4, .scale = {1, 1, 1, 1}};
    proj.linear[0] = bind_linear(w, "attn_q", il, nq, width);
    proj.linear[1] = bind_linear(w, "attn_k", il, nk, width);
    proj.linear[2] = bind_linear(w, "attn_v", il, nk / 2, width);
    proj.linear[3] = bind_linear(w, "attn_v_next", il, nk / 2, width);
    const weight_id late = proj.linear[3].bias; /* of the first row, too, which has none before it */
    proj.linear[3].bias = 0;
    plan_add(b->p, OP_PROJ, z->layer)->proj = proj;
    convolve_keys(z);
    add_means(z);
    build_map(b, z->layer, column(z->products, nq + nk), column(z->qkv, nq + nk), nk / 2);
    convolve(z, (struct op_conv){.in = column(z->products, nq + nk + nk / 2),
                                 .out = column(z->qkv, nq + nk + nk / 2),
                                 .weight = delay(z, nk / 2, 2, 1),
                                 .bias = late,
                                 .channels = nk / 2,
                                 .cols = 2});
    struct norm of_k = key_norm(z);
    struct op_qkv *o = &plan_add(b->p, OP_QKV, z->layer)->qkv;
    *o = (struct op_qkv){.in = b->x, .given = z->qkv, .norm = in, .layer = z->layer, .out = b->q};
    o->q = proj.linear[0], o->k = o->v = proj.linear[1]; /* v: of the same shape as the two halves */
    o->heads = z->heads, o->kv_heads = z->kv_heads, o->k_dim = o->v_dim = z->dim;
    o->q_norm = (struct norm){.kind = NORM_RMS, .eps = LENGTH_EPS, .heads = z->heads};
    o->k_norm = of_k;
    o->rope = b->rope[l->sliding];
    plan_kv(b->p, z->layer,
            (struct kv_group){z->kv_heads, z->dim, z->dim, .window = l->sliding ? b->h->window : 0});
    build_attn(b, z->layer);
    struct tail *t = build_out(b, z->layer);
    t->residual.buffer = 0;
    t->out = z->branch;
}

/* A vector times another: what a bias before a scale is behind it. */
static weight_id scaled_bias(const struct zaya *z, weight_id bias, weight_id scale)
{
    const float *x = vector_data(z, bias), *y = vector_data(z, scale);
    const uint32_t n = z->b->h->width;
    float *both = x && y ? bind_memory(&z->b->bind, n * sizeof *both) : NULL;
    for (uint32_t i = 0; both && i < n; i++)
        both[i] = x[i] * y[i];
    return table(z, "scaled bias", both, (struct shape){1, n, 1});
}

/* out = (in + bias) scale */
static struct op_map *rescale(const struct zaya *z, const char *name, int layer, struct operand in,
                              struct operand out)
{
    const uint32_t n = z->b->h->width;
    const weight_id scale = bind_vector(&z->b->bind, name, layer, ".weight", n, 0),
                    bias = bind_vector(&z->b->bind, name, layer, ".bias", n, 0),
                    plus = scaled_bias(z, bias, scale);
    struct op_map *m = build_map(z->b, layer < 0 ? UINT32_MAX : z->layer, in, out, n);
    m->times = scale;
    m->plus = plus;
    return m;
}

/* The stream and what the branch adds to it, each with its scale and bias. */
static void join(const struct zaya *z, const char *stream, const char *branch)
{
    rescale(z, stream, (int)z->layer, z->b->x, z->b->x);
    rescale(z, branch, (int)z->layer, z->branch, z->b->x)->residual = z->b->x;
}

static struct op_proj *project(const struct zaya *z, struct operand in, struct norm norm, struct linear l,
                               struct operand out)
{
    struct op_proj *o = &plan_add(z->b->p, OP_PROJ, z->layer)->proj;
    *o = (struct op_proj){.in = in, .norm = norm, .out = out, .linear = {l}, .scale = {1}, .count = 1};
    return o;
}

static void experts(const struct zaya *z)
{
    struct build *b = z->b;
    struct binder *w = &b->bind;
    const struct hparams *h = b->h;
    const int il = (int)z->layer;
    const uint32_t n = z->router, all = h->experts + h->identities;
    struct norm in = build_norm(b, "ffn_norm", il), inner = {.kind = NORM_RMS, .eps = h->eps};
    project(z, b->x, in, bind_linear(w, "router_down", il, n, h->width), z->layer ? z->low : z->routed);
    if (z->layer) {
        const weight_id scale = bind_vector(w, "router_scale", il, ".weight", n, 0);
        struct op_map *m = build_map(b, z->layer, z->routed, z->routed, n);
        m->times = scale;
        m->residual = z->low;
    }
    inner.weight = bind_vector(w, "router_norm", il, ".weight", n, 0);
    project(z, z->routed, inner, bind_linear(w, "router_1", il, n, n), z->low)->act[0] = ACT_GELU;
    project(z, z->low, (struct norm){0}, bind_linear(w, "router_2", il, n, n), z->hidden)->act[0] = ACT_GELU;
    float *scale = bind_memory(w, all * sizeof *scale);
    for (uint32_t i = 0; scale && i < all; i++)
        scale[i] = i < h->experts;
    struct op_moe o = {
        .in = b->x, .norm = in, .act = h->act, .gating = GATING_SOFTMAX, .router_in = z->hidden};
    o.router = bind_linear(w, "ffn_gate_inp", il, all, n);
    o.select_bias = bind_vector(w, "router_balance", il, ".weight", all, 0);
    o.expert_scale = table(z, "scale of experts", scale, (struct shape){1, all, 1});
    o.experts = h->experts, o.identities = h->identities, o.used = h->experts_used;
    o.weight_scale = 1;
    struct expert_linears e = bind_experts(w, il);
    o.gate = e.gate, o.up = e.up, o.down = e.down;
    o.tail = (struct tail){.scale = 1, .out = z->branch};
    plan_add(b->p, OP_MOE, z->layer)->moe = o;
}

static struct zaya buffers(struct build *b)
{
    const struct hparams *h = b->h;
    struct zaya z = {.b = b, .heads = h->heads, .kv_heads = h->kv_heads, .dim = h->k_dim};
    const uint32_t n = (z.heads + z.kv_heads) * z.dim, v = z.kv_heads * z.dim;
    const uint64_t rows = bind_rows(&b->bind, "router_down", 0);
    z.router = rows && rows <= HPARAMS_SIZE[1] ? (uint32_t)rows : 1;
    z.products = plan_buffer(b->p, n + v);
    z.channels = plan_buffer(b->p, n);
    z.before = plan_buffer(b->p, n);
    z.mixed = plan_buffer(b->p, n);
    z.qkv = plan_buffer(b->p, n + v);
    z.branch = plan_buffer(b->p, h->width);
    z.routed = plan_buffer(b->p, z.router);
    z.low = plan_buffer(b->p, z.router);
    z.hidden = plan_buffer(b->p, z.router);
    return z;
}

void zaya_build(struct build *b)
{
    struct zaya z = buffers(b);
    build_embed(b);
    rescale(&z, "token_embd_scale", LOOKUP_NO_LAYER, b->x, b->x);
    for (z.layer = 0; z.layer < b->h->layers; z.layer++) {
        attention(&z);
        join(&z, "attn_stream_scale", "attn_branch_scale");
        experts(&z);
        join(&z, "ffn_stream_scale", "ffn_branch_scale");
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
