/* zamba: mamba (1, and 2 in zamba 2) in every layer; in some of them a transformer block first, of which there are only
 * a few for all layers. It sees the stream and the embedding side by side, and adds to what mamba sees, not to the stream.
 * Low-rank products of zamba 2 tell its uses apart. */
#include "model/families.h"

#include "model/arch.h"

#include <math.h>

/* What all versions share, before their recurrent layers are read. */
static int shared_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (!k->gguf) {
        h->k_dim = h->v_dim = 2 * h->width / h->heads;
        h->ssm.inner = 0; /* not attention_hidden_size, which is another */
    }
    if (!h->k_dim || !h->shared_blocks)
        return err_set(e, ERR_DATA, "shared attention of %u blocks with heads of %u: above 0 is expected",
                       h->shared_blocks, h->k_dim);
    h->attn_scale = sqrtf(2 / (float)h->k_dim);
    return 0;
}

static int all_recurrent(struct hparams *h)
{
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i].recurrent = true;
        h->layer[i].rope = h->shared_rope;
    }
    return 0;
}

int zamba2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (!k->gguf && keys_f32(k, NULL, "time_step_min", HPARAMS_REAL, &h->ssm.dt_range[0], e) < 0)
        return -1;
    h->ssm.eps = 1e-5f;
    return shared_setup(h, k, e) < 0 || hybrid_mamba2_setup(h, k, e) < 0 ? -1 : all_recurrent(h);
}

/* A list that is not there is: two layers without the block, one with it, then one in each period. */
static void usual_layers(struct hparams *h, const struct keys *k)
{
    char found[64];
    const uint32_t at = (uint32_t)json_integer_value(keys_json(k, "attn_layer_offset", found)),
                   period = h->ssm.every ? h->ssm.every : 6;
    for (uint32_t i = 0; i < h->layers; i++)
        if (i != 2 && (i < 3 || (i - 3) % period != at))
            h->layer[i].kv_heads = 0;
}

int zamba_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char found[64];
    h->shared_blocks = 1;
    if (!k->gguf && keys_u32(k, NULL, "n_mamba_heads", HPARAMS_SIZE, &h->ssm.groups, e) < 0)
        return -1;
    if (shared_setup(h, k, e) < 0 || jamba_setup(h, k, e) < 0)
        return -1;
    if (!k->gguf && !keys_json(k, "layers_block_type|layer_types", found))
        usual_layers(h, k);
    h->ssm.every = 0;
    if (!h->ssm.groups || h->ssm.inner % h->ssm.groups)
        return err_set(e, ERR_DATA, "mamba of %u channels in %u heads: that does not divide", h->ssm.inner,
                       h->ssm.groups);
    return all_recurrent(h);
}

/* A block, as the first layer that uses it has bound it. */
struct shared_block {
    uint32_t first; /* that layer */
    bool bound;
    struct norm norm, ffn_norm;
    struct linear q, k, v, out, gate_up, gate, up, down; /* gate and up in one, or both */
};

/* One use of a block: the `use`-th layer that has one. */
struct zamba {
    struct build *b;
    struct shared_block *block;
    uint32_t layer, use;
    struct operand embedded, qkv, hidden, branch;
};

static void bind_block(const struct zamba *z, struct shared_block *s)
{
    struct build *b = z->b;
    const struct hparams *h = b->h;
    const struct layer_params *l = &h->layer[z->layer];
    int il = (int)z->layer;
    s->norm = (struct norm){.kind = NORM_RMS, .eps = h->eps};
    s->norm.weight = bind_vector(&b->bind, "shared_attn_norm", il, ".weight", 2 * h->width, 0);
    s->ffn_norm = build_norm(b, "ffn_norm", il);
    s->q = bind_linear(&b->bind, "attn_q", il, h->heads * l->k_dim, 2 * h->width);
    s->k = bind_linear(&b->bind, "attn_k", il, l->kv_heads * l->k_dim, 2 * h->width);
    s->v = bind_linear(&b->bind, "attn_v", il, l->kv_heads * l->v_dim, 2 * h->width);
    s->out = bind_linear(&b->bind, "attn_output", il, h->width, h->heads * l->v_dim);
    if (bind_has(&b->bind, "shared_ffn_gate_up", il)) {
        s->gate_up = bind_linear(&b->bind, "shared_ffn_gate_up", il, 2 * l->ffn, h->width);
    } else {
        s->gate = bind_linear(&b->bind, "ffn_gate", il, l->ffn, h->width);
        s->up = bind_linear(&b->bind, "ffn_up", il, l->ffn, h->width);
    }
    s->down = bind_linear(&b->bind, "ffn_down", il, h->width, l->ffn);
    s->first = z->layer;
    s->bound = true;
}

/* A low-rank factor. Folders keep those of all uses with the block, GGUF with the layer. */
static struct tensor_at low_at(const struct zamba *z, const char *name)
{
    if (z->b->h->container == STORE_GGUF)
        return (struct tensor_at){name, (int)z->layer, LOOKUP_NO_EXPERT};
    return (struct tensor_at){name, (int)z->block->first, (int)z->use};
}

static struct linear bind_low(const struct zamba *z, const char *name, uint32_t rows, uint32_t cols)
{
    struct matrix m = bind_find(&z->b->bind, low_at(z, name), (struct shape){rows, cols, 1});
    return (struct linear){.weight = bind_add(&z->b->bind, name, (int)z->layer, &m)};
}

static uint32_t low_rank(const struct zamba *z, const char *name)
{
    const struct tensor *t = lookup_find(&z->b->bind.names, low_at(z, name), ".weight");
    return t && t->shape[1] <= z->b->h->width ? (uint32_t)t->shape[1] : 0;
}

static struct op_proj *project(const struct zamba *z, struct operand in, struct norm norm, struct operand out)
{
    struct op_proj *o = &plan_add(z->b->p, OP_PROJ, z->layer)->proj;
    *o = (struct op_proj){.in = in, .norm = norm, .out = out, .scale = {1, 1, 1}};
    return o;
}

/* out = residual + W in, without a norm. */
static struct op_out *add(const struct zamba *z, struct linear l, struct operand in, struct operand residual,
                          struct operand out)
{
    struct op_out *o = &plan_add(z->b->p, OP_OUT, z->layer)->out;
    *o = (struct op_out){.in = in, .linear = l, .tail = {.scale = 1, .residual = residual, .out = out}};
    return o;
}

static struct operand column(struct operand o, uint32_t col)
{
    o.col += col;
    return o;
}

/* q, k and v side by side, with what their low-rank products add. */
static void products(const struct zamba *z)
{
    static const char *const a[] = {"attn_q_low_a", "attn_k_low_a", "attn_v_low_a"}, *const b[] = {
                                                                                         "attn_q_low_b",
                                                                                         "attn_k_low_b",
                                                                                         "attn_v_low_b"};
    const struct hparams *h = z->b->h;
    const struct layer_params *l = &h->layer[z->layer];
    const struct shared_block *s = z->block;
    const uint32_t n[3] = {h->heads * l->k_dim, l->kv_heads * l->k_dim, l->kv_heads * l->v_dim},
                   rank = low_rank(z, a[0]);
    struct op_proj *o = project(z, z->b->x, s->norm, z->qkv);
    o->linear[0] = s->q, o->linear[1] = s->k, o->linear[2] = s->v;
    o->count = 3;
    if (!rank)
        return;
    o = project(z, z->b->x, s->norm, build_mix(z->b, MIX_LOW, 3 * rank));
    for (o->count = 0; o->count < 3; o->count++)
        o->linear[o->count] = bind_low(z, a[o->count], rank, 2 * h->width);
    for (uint32_t i = 0, at = 0; i < 3; at += n[i++]) {
        struct operand to = column(z->qkv, at), low = build_mix(z->b, MIX_LOW, 3 * rank);
        add(z, bind_low(z, b[i], n[i], rank), column(low, i * rank), to, to);
    }
}

static void attention(const struct zamba *z)
{
    struct build *b = z->b;
    const struct layer_params *l = &b->h->layer[z->layer];
    products(z);
    struct op_qkv *o = &plan_add(b->p, OP_QKV, z->layer)->qkv;
    *o = (struct op_qkv){.in = b->x, .given = z->qkv, .norm = z->block->norm, .layer = z->layer, .out = b->q};
    o->q = z->block->q, o->k = z->block->k, o->v = z->block->v;
    o->heads = b->h->heads, o->kv_heads = l->kv_heads, o->k_dim = l->k_dim, o->v_dim = l->v_dim;
    if (l->rope)
        o->rope = b->rope[0];
    plan_kv(b->p, z->layer, (struct kv_group){l->kv_heads, l->k_dim, l->v_dim, .layers = 0});
    build_attn(b, z->layer);
    add(z, z->block->out, b->a, (struct operand){0}, z->branch);
}

static void feed_forward(const struct zamba *z)
{
    struct build *b = z->b;
    const struct shared_block *s = z->block;
    const uint32_t ffn = b->h->layer[z->layer].ffn, rank = low_rank(z, "ffn_low_a");
    struct op_proj *o = project(z, z->branch, s->ffn_norm, z->hidden);
    if (s->gate_up.weight) {
        o->linear[o->count++] = s->gate_up;
    } else {
        o->linear[o->count++] = s->gate;
        o->linear[o->count++] = s->up;
    }
    if (rank) {
        struct operand low = build_mix(b, MIX_LOW, rank);
        o = project(z, z->branch, s->ffn_norm, low);
        o->linear[o->count++] = bind_low(z, "ffn_low_a", rank, b->h->width);
        add(z, bind_low(z, "ffn_low_b", 2 * ffn, rank), low, z->hidden, z->hidden);
    }
    add(z, s->down, column(z->hidden, ffn), (struct operand){0}, z->branch)->gate =
        (struct gate){.in = z->hidden, .act = b->h->act};
}

/* The block of the layer: y = x + what it adds. */
static void shared(struct zamba *z)
{
    struct build *b = z->b;
    struct shared_block own = {0};
    const struct tensor_at at = {"attn_q", (int)z->layer, LOOKUP_NO_EXPERT},
                           first = {"attn_q", (int)z->block->first, LOOKUP_NO_EXPERT};
    if (z->block->bound && bind_differs(&b->bind, at, first)) /* files whose head is not tied share nothing */
        z->block = &own;
    if (!z->block->bound)
        bind_block(z, z->block);
    attention(z);
    feed_forward(z);
    struct linear last = bind_linear(&b->bind, "shared_output", (int)z->layer, b->h->width, b->h->width);
    add(z, last, z->branch, b->x, b->y);
}

static struct zamba buffers(struct build *b)
{
    const struct hparams *h = b->h;
    struct zamba z = {.b = b};
    b->p->width[b->x.buffer] = 2 * h->width; /* with the embedding behind it */
    z.embedded = column(b->x, h->width);
    z.qkv = plan_buffer(b->p, (h->heads + 2 * h->kv_heads) * h->k_dim);
    z.hidden = plan_buffer(b->p, 2 * h->ffn);
    z.branch = plan_buffer(b->p, h->width);
    return z;
}

void zamba_build(struct build *b)
{
    const struct hparams *h = b->h;
    struct zamba z = buffers(b);
    struct shared_block *blocks = bind_memory(&b->bind, h->shared_blocks * sizeof *blocks);
    for (uint32_t i = 0; blocks && i < h->shared_blocks; i++)
        blocks[i] = (struct shared_block){0};
    build_embed(b);
    build_map(b, UINT32_MAX, b->x, z.embedded, h->width);
    for (uint32_t i = 0; blocks && i < h->layers; i++) {
        struct operand x = b->x;
        if (h->layer[i].kv_heads) {
            z.layer = i;
            z.block = &blocks[z.use % h->shared_blocks];
            shared(&z);
            z.use++;
            b->x = b->y;
        }
        struct op_out *o = h->arch->mixer(b, i, build_norm(b, "attn_norm", (int)i));
        o->tail.residual = o->tail.out = b->x = x;
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
