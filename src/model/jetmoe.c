/* jetmoe: experts of attention, each with its own Q and output product, of which a row has the best few. All of them are
 * computed, and the weights of the others are 0. */
#include "model/families.h"

#include <string.h>

int jetmoe_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t dim = 128;
    if (keys_u32(k, NULL, "kv_channels", HPARAMS_SIZE, &dim, e) < 0)
        return -1;
    h->k_dim = h->v_dim = dim;
    if ((uint64_t)h->experts * h->kv_heads > 65536 || !h->experts)
        return err_set(e, ERR_DATA, "config.json: %u experts of %u heads of attention cannot be", h->experts,
                       h->kv_heads);
    h->heads = h->experts * h->kv_heads;
    return 0;
}

/* The experts of Q, one below the other. */
static struct linear jetmoe_q(struct build *b, uint32_t layer, uint32_t rows)
{
    struct tensor_at at = {"attn_q_exps", (int)layer, LOOKUP_NO_EXPERT};
    struct matrix m = bind_find(&b->bind, at, (struct shape){rows, b->h->width, b->h->experts});
    m.rows = m.run = rows * b->h->experts;
    m.each_bytes *= b->h->experts;
    m.count = 1;
    return (struct linear){.weight = m.data ? bind_add(&b->bind, "attn_q_exps", (int)layer, &m) : 0};
}

static void jetmoe_qkv(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    uint32_t rows = h->kv_heads * h->k_dim;
    struct slice s[2] = {{"attn_k", 1, 2 * rows, 0, rows}, {"attn_v", 1, 2 * rows, rows, rows}};
    struct linear kv[2] = {0};
    struct op_qkv *o = &plan_add(b->p, OP_QKV, layer)->qkv;
    *o = (struct op_qkv){.in = b->x, .norm = in, .layer = layer, .out = b->q, .rope = b->rope[0]};
    o->heads = h->heads, o->kv_heads = h->kv_heads, o->k_dim = o->v_dim = h->k_dim;
    o->q = jetmoe_q(b, layer, rows);
    bind_split(&b->bind, "attn_kv", (int)layer, (struct shape){2 * rows, h->width, 1}, s, 2, kv);
    o->k = kv[0], o->v = kv[1];
    plan_kv(b->p, layer, (struct kv_group){.kv_heads = h->kv_heads, .k_dim = h->k_dim, .v_dim = h->k_dim});
}

/* x += bias + the sum over the experts of weight * output(attention). */
static void jetmoe_attend(struct build *b, uint32_t layer, struct operand weights)
{
    const struct hparams *h = b->h;
    uint32_t cols = h->kv_heads * h->k_dim;
    struct tensor_at at = {"attn_output_exps", (int)layer, LOOKUP_NO_EXPERT};
    struct matrix all = bind_find(&b->bind, at, (struct shape){h->width, cols, h->experts});
    for (uint32_t i = 0; i < h->experts && all.data; i++) {
        struct op_attn *a = build_attn(b, layer);
        a->in.col += i * cols, a->out.col += i * cols;
        a->heads = h->kv_heads;
    }
    for (uint32_t i = 0; i < h->experts && all.data; i++) {
        struct matrix one = all;
        one.data += i * all.each_bytes;
        one.count = 1;
        struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
        *o = (struct op_out){.in = {b->a.buffer, b->a.col + i * cols}};
        o->gate = (struct gate){.in = {weights.buffer, weights.col + i}, .heads = 1};
        o->linear.weight = bind_add(&b->bind, "attn_output_exps", (int)layer, &one);
        o->linear.bias = i ? 0 : bind_optional(&b->bind, "attn_output_exps", (int)layer, ".bias", h->width);
        o->tail = (struct tail){.scale = 1, .residual = b->x, .out = b->x};
    }
}

/* The weights of a row's experts sum to 1: what is added once is added with each of them. */
static weight_id jetmoe_bias(struct build *b, uint32_t layer)
{
    const struct hparams *h = b->h;
    struct tensor_at at = {"ffn_exps_bias", (int)layer, LOOKUP_NO_EXPERT};
    const struct tensor *t = bind_tensor(&b->bind, at, ".bias");
    const float *one = t ? bind_floats(&b->bind, t, h->width, 0) : NULL;
    float *all = one ? bind_memory(&b->bind, (size_t)h->experts * h->width * sizeof *all) : NULL;
    for (uint32_t i = 0; all && i < h->experts; i++)
        memcpy(all + (size_t)i * h->width, one, h->width * sizeof *all);
    return all ? bind_table(&b->bind, t->name, NULL, all, (struct shape){1, h->width, h->experts}) : 0;
}

/* The norms of layers have this epsilon whatever config.json says, which is for the last one. */
static struct norm layer_norm(struct build *b, const char *name, uint32_t layer)
{
    struct norm n = build_norm(b, name, (int)layer);
    n.eps = 1e-6f;
    return n;
}

void jetmoe_build(struct build *b)
{
    const struct hparams *h = b->h;
    struct operand weights = plan_buffer(b->p, h->experts);
    build_embed(b);
    for (uint32_t i = 0; i < h->layers; i++) {
        struct norm in = layer_norm(b, "attn_norm", i);
        struct op_proj *router = &plan_add(b->p, OP_PROJ, i)->proj;
        *router = (struct op_proj){.in = b->x, .norm = in, .out = weights, .scale = {1}, .count = 1};
        router->best = h->experts_used;
        router->linear[0] = bind_linear(&b->bind, "attn_gate_inp", (int)i, h->experts, h->width);
        jetmoe_qkv(b, i, in);
        jetmoe_attend(b, i, weights);
        struct op_moe *moe = build_moe(b, i, layer_norm(b, "ffn_norm", i));
        moe->down.bias = jetmoe_bias(b, i);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
