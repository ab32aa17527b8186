/* RWKV 4, 6 and 7: no attention. Each product sees a mix of the row and the one before it (a convolution of two columns).
 * RWKV 4 averages the values of each channel; later ones have heads, whose state forgets number by number and takes k v^T,
 * and that of RWKV 7 erases along one direction. arwkv7 and rwkv6qwen2 have the feed-forward, the norms and the embedding
 * of qwen2. */
#include "model/families.h"

#include "model/arch.h"

#include <math.h>
#include <string.h>

static void without_attention(struct hparams *h)
{
    h->k_dim = h->v_dim = 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i].recurrent = true;
        h->layer[i].kv_heads = 0;
    }
}

int rwkv7_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    if (keys_u32(k, "wkv.head_size", "head_dim|head_size", HPARAMS_SIZE, &s->state, e) < 0)
        return -1;
    if (!s->state || s->state > 1024 || h->width % s->state)
        return err_set(e, ERR_DATA, "a width of %u is not a multiple of heads of %u", h->width, s->state);
    s->heads = s->groups = h->width / s->state;
    s->inner = h->width;
    s->conv = 2;
    if (s->eps == 0)
        s->eps = k->gguf ? 64e-5f : h->eps * (float)s->state;
    without_attention(h);
    return 0;
}

/* What config.json does not say of RWKV 6 follows from the width. */
static int rwkv6_folder(struct hparams *h, const struct keys *k, struct err *e)
{
    char found[64];
    uint32_t divisor = 8;
    if (keys_u32(k, NULL, "head_size_divisor", HPARAMS_SIZE, &divisor, e) < 0)
        return -1;
    if (h->ssm.inner && h->ssm.inner != h->width)
        return err_set(e, ERR_DATA, "config.json: attention_hidden_size is %u; the width, %u, is expected",
                       h->ssm.inner, h->width);
    h->ssm.eps = 1e-5f * (float)divisor * (float)divisor;
    if (!keys_json(k, "intermediate_size", found))
        h->ffn = (uint32_t)(3.5 * h->width) / 32 * 32;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].ffn = h->ffn;
    return 0;
}

/* Keys of RWKV 6; kv_heads are those of rwkv6qwen2. */
int rwkv6_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    const uint32_t shared = k->gguf ? h->kv_heads : 0;
    if ((!k->gguf && rwkv6_folder(h, k, e) < 0) || rwkv7_setup(h, k, e) < 0 ||
        keys_u32(k, "rescale_every_n_layers", "rescale_every", HPARAMS_COUNT, &h->ssm.every, e) < 0)
        return -1;
    h->ssm.groups = shared ? shared : h->ssm.heads;
    if (h->ssm.heads % h->ssm.groups)
        return err_set(e, ERR_DATA, "%u heads share %u keys: that does not divide", h->ssm.heads,
                       h->ssm.groups);
    return 0;
}

/* RWKV 4 has no heads. */
int rwkv4_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (keys_u32(k, "rescale_every_n_layers", "rescale_every", HPARAMS_COUNT, &h->ssm.every, e) < 0)
        return -1;
    h->ssm.inner = h->ssm.inner ? h->ssm.inner : h->width;
    without_attention(h);
    return 0;
}

/* What of a row products see, in the order of the file. */
enum mixed { MIXED_R, MIXED_W, MIXED_K, MIXED_V, MIXED_A, MIXED_G, MIXED };

/* Columns of the rows that a layer makes. */
enum made { MADE_R, MADE_K, MADE_V, MADE_W, MADE_A, MADE_G, MADE_S, MADE };

struct rwkv {
    struct build *b;
    uint32_t layer, width, part; /* part: columns from one to the next of `mixed` and `made` */
    bool gated;
    bool own;    /* mixes say how much of the row itself products see, not of the row before */
    bool turned; /* low-rank factors lie from inputs to outputs */
    struct operand normed, mixed, made, low, erase, some, out, first;
};

static struct operand column(const struct rwkv *z, struct operand o, uint32_t i)
{
    o.col += i * z->part;
    return o;
}

static struct op_map *map(const struct rwkv *z, struct operand in, struct operand out)
{
    return build_map(z->b, z->layer, in, out, z->width);
}

/* A vector of the layer. In folders that of a low-rank product is a bias. */
static weight_id vector(const struct rwkv *z, const char *name, const char *suffix)
{
    struct binder *w = &z->b->bind;
    const bool gguf = z->b->h->container == STORE_GGUF;
    struct tensor_at at = {name, (int)z->layer, LOOKUP_NO_EXPERT};
    const struct tensor *t = bind_tensor(w, at, gguf ? ".weight" : suffix);
    const float *data = t ? bind_floats(w, t, z->width, 0) : NULL;
    struct bound of = {.name = name, .layer = (int)z->layer, .suffix = ".weight"};
    return data ? bind_table(w, t->name, &of, data, (struct shape){1, z->width, 1}) : 0;
}

/* 1 less each number of a vector. */
static weight_id less_from_one(const struct rwkv *z, weight_id id)
{
    float *y = bind_memory(&z->b->bind, z->width * sizeof *y);
    const float *x = id ? (const float *)(const void *)z->b->bind.weights->all[id].data : NULL;
    for (uint32_t i = 0; x && y && i < z->width; i++)
        y[i] = 1 - x[i];
    return x && y ? bind_table(&z->b->bind, "1 less a vector", NULL, y, (struct shape){1, z->width, 1}) : 0;
}

/* out = x + (before - x) mu: columns mu and 1 - mu of a convolution. */
static void shift(const struct rwkv *z, const float *mu, struct operand out)
{
    struct build *b = z->b;
    float *w = bind_memory(&b->bind, 2 * (size_t)z->width * sizeof *w);
    if (!mu || !w)
        return;
    for (uint32_t i = 0; i < z->width; i++) {
        w[2 * i] = mu[i];
        w[2 * i + 1] = 1 - mu[i];
    }
    struct op_conv conv = {.in = z->normed, .out = out, .channels = z->width, .cols = 2};
    conv.weight = bind_table(&b->bind, "mix with the row before", NULL, w, (struct shape){z->width, 2, 1});
    conv.state = plan_keep(b->p, z->layer, 1, 1, z->width);
    plan_add(b->p, OP_CONV, z->layer)->conv = conv;
}

/* How much of the row before each product sees, (n, width): one tensor, or one for each. */
static const float *bind_mixes(const struct rwkv *z, const char *const *names, uint32_t n)
{
    static const char fused[] = "time_mix_lerp_fused";
    struct binder *w = &z->b->bind;
    struct bound of = {.name = fused, .layer = (int)z->layer, .suffix = ".weight"};
    const float *all = NULL;
    if (bind_has(w, fused, of.layer)) {
        const struct tensor *t =
            bind_tensor(w, (struct tensor_at){fused, of.layer, LOOKUP_NO_EXPERT}, ".weight");
        all = t ? bind_floats(w, t, (uint64_t)n * z->width, 0) : NULL;
    } else {
        float *own = bind_memory(w, (size_t)n * z->width * sizeof *own);
        for (uint32_t i = 0; own && i < n; i++) {
            struct tensor_at at = {names[i], of.layer, LOOKUP_NO_EXPERT};
            const struct tensor *t = bind_tensor(w, at, ".weight");
            const float *one = t ? bind_floats(w, t, z->width, 0) : NULL;
            if (!one)
                return NULL;
            memcpy(own + (size_t)i * z->width, one, z->width * sizeof *own);
        }
        all = own;
    }
    return all && bind_table(w, fused, &of, all, (struct shape){n, z->width, 1}) ? all : NULL;
}

static struct op_proj *project(const struct rwkv *z, struct operand in, struct operand out, struct linear l)
{
    struct op_proj *o = &plan_add(z->b->p, OP_PROJ, z->layer)->proj;
    *o = (struct op_proj){.in = in, .out = out, .linear = {l}, .scale = {1}, .count = 1};
    return o;
}

/* out = act(B inner(A in) + bias) */
struct low_rank {
    const char *a, *b, *bias; /* bias NULL: none */
    enum act_kind inner, act;
};

static weight_id factor(const struct rwkv *z, const char *name, struct shape s)
{
    struct binder *w = &z->b->bind;
    const struct tensor_at at = {name, (int)z->layer, LOOKUP_NO_EXPERT};
    if (!z->turned)
        return bind_matrix(w, name, (int)z->layer, s);
    const struct matrix lies = bind_find(w, at, (struct shape){s.cols, s.rows, s.count}),
                        m = lies.data ? matrix_turn(&lies) : lies;
    return bind_add(w, name, (int)z->layer, &m);
}

/* Rows of the first factor of a low-rank product: its ranks. */
static uint64_t ranks(const struct rwkv *z, const char *name)
{
    const struct tensor_at at = {name, (int)z->layer, LOOKUP_NO_EXPERT};
    const struct tensor *t = lookup_find(&z->b->bind.names, at, ".weight");
    return !t ? 0 : t->shape[z->turned ? 0 : 1];
}

static void project_low(const struct rwkv *z, struct operand in, struct operand out, struct low_rank r)
{
    const uint64_t rows = ranks(z, r.a);
    const uint32_t rank = rows && rows <= z->width ? (uint32_t)rows : z->width;
    struct linear a = {factor(z, r.a, (struct shape){rank, z->width, 1}), 0, 0},
                  b = {factor(z, r.b, (struct shape){z->width, rank, 1}), 0, 0};
    if (r.bias)
        b.bias = vector(z, r.bias, ".bias");
    project(z, in, z->low, a)->act[0] = r.inner;
    project(z, z->low, out, b)->act[0] = r.act;
}

static struct linear whole(const struct rwkv *z, const char *name)
{
    return bind_linear(&z->b->bind, name, (int)z->layer, z->width, z->width);
}

/* GGUF has tensors for the mix of values in the first layer, too, which has none: copies of others. */
static void fill_first(const struct rwkv *z)
{
    static const char *const names[][2] = {
        {"time_mix_v0", "time_mix_a0"}, {"time_mix_v1", "time_mix_a1"}, {"time_mix_v2", "time_mix_a2"}};
    struct binder *w = &z->b->bind;
    for (int i = 0; i < 3; i++) {
        struct tensor_at at = {names[i][0], 0, LOOKUP_NO_EXPERT};
        const struct tensor *t = lookup_find(&w->names, at, ".weight");
        const uint32_t count = w->weights->count;
        for (weight_id id = 1; !t && id < count; id++) {
            struct bound like = w->bound[id];
            if (like.name && !like.layer && !strcmp(like.name, names[i][1]))
                bind_add(w, names[i][0], 0, &like.m);
        }
        if (t)
            bind_mark(w, t);
    }
}

/* v = v + (that of the first layer - v) s */
static void mix_values(const struct rwkv *z)
{
    struct operand v = column(z, z->made, MADE_V), s = column(z, z->made, MADE_S);
    if (!z->layer) {
        map(z, v, z->first);
        fill_first(z);
        return;
    }
    project_low(z, column(z, z->mixed, MIXED_V), s,
                (struct low_rank){"time_mix_v1", "time_mix_v2", "time_mix_v0", ACT_NONE, ACT_SIGMOID});
    struct op_map *m = map(z, v, z->some);
    m->factor = -1;
    m->residual = z->first;
    m = map(z, z->some, v);
    m->by = s;
    m->residual = v;
}

/* What is erased, and k times 1 + (a - 1) k_a. */
static void mix_keys(const struct rwkv *z)
{
    struct operand k = column(z, z->made, MADE_K);
    map(z, k, z->erase)->times = vector(z, "time_mix_k_k", ".weight");
    weight_id k_a = vector(z, "time_mix_k_a", ".weight");
    map(z, k, z->some)->times = less_from_one(z, k_a);
    struct op_map *m = map(z, k, k);
    m->by = column(z, z->made, MADE_A);
    m->times = k_a;
    m->residual = z->some;
}

/* some = v times the sum over its head of r k r_k: a product with rows that are all r_k. */
static void add_bonus(const struct rwkv *z, const char *name)
{
    const struct ssm_params *s = &z->b->h->ssm;
    weight_id r_k = vector(z, name, ".weight");
    const float *x = r_k ? (const float *)(const void *)z->b->bind.weights->all[r_k].data : NULL;
    const size_t n = s->state;
    float *rows = x ? bind_memory(&z->b->bind, z->width * n * sizeof *rows) : NULL;
    for (size_t i = 0; rows && i < z->width; i++)
        memcpy(rows + i * n, x + i / n * n, n * sizeof *rows);
    map(z, column(z, z->made, MADE_R), z->some)->by = column(z, z->made, MADE_K);
    struct op_heads *o = &plan_add(z->b->p, OP_HEADS, z->layer)->heads;
    *o = (struct op_heads){.in = z->some, .out = z->out};
    o->weight =
        rows ? bind_table(&z->b->bind, "r_k", NULL, rows, (struct shape){s->state, s->state, s->heads}) : 0;
    map(z, column(z, z->made, MADE_V), z->some)->by = z->out;
}

static struct op_scan *recur(const struct rwkv *z, float a)
{
    struct build *b = z->b;
    const struct ssm_params *s = &b->h->ssm;
    float *same = bind_memory(&b->bind, s->heads * sizeof *same);
    for (uint32_t i = 0; same && i < s->heads; i++)
        same[i] = a;
    struct op_scan *o = &plan_add(b->p, OP_SCAN, z->layer)->scan;
    *o = (struct op_scan){.heads = s->heads, .k_heads = s->heads, .k_dim = s->state, .v_dim = s->state};
    o->q_scale = o->k_scale = o->write_scale = 1;
    o->dt_range[1] = INFINITY;
    o->decay_each = true;
    o->a = same ? bind_table(&b->bind, "a", NULL, same, (struct shape){1, s->heads, 1}) : 0;
    o->q = column(z, z->made, MADE_R), o->k = column(z, z->made, MADE_K), o->v = column(z, z->made, MADE_V);
    o->decay = column(z, z->made, MADE_W);
    o->out = z->out;
    o->state = plan_keep(b->p, z->layer, s->heads, s->state, s->state);
    return o;
}

static void erase(const struct rwkv *z, struct op_scan *o)
{
    o->decay_kind = DECAY_SIGMOID;
    o->bound = -0.6065306597126334f; /* of e^-0.5: what a number decays by at most */
    o->bias = vector(z, "time_mix_w0", ".bias");
    o->erase = z->erase, o->rate = column(z, z->made, MADE_A);
}

/* The norm of what heads give, where the file has one. */
static struct norm head_norm(const struct rwkv *z)
{
    struct binder *w = &z->b->bind;
    if (!bind_has(w, "time_mix_ln", (int)z->layer))
        return (struct norm){0};
    struct norm n = {.kind = NORM_LAYER, .eps = z->b->h->ssm.eps, .heads = z->b->h->ssm.heads};
    n.weight = bind_vector(w, "time_mix_ln", (int)z->layer, ".weight", z->width, 0);
    n.bias = bind_optional(w, "time_mix_ln", (int)z->layer, ".bias", z->width);
    return n;
}

static void time_mix(const struct rwkv *z)
{
    struct build *b = z->b;
    const uint32_t mixes = z->gated ? MIXED : MIXED_G;
    static const char *const names[MIXED] = {"time_mix_lerp_r", "time_mix_lerp_w", "time_mix_lerp_k",
                                             "time_mix_lerp_v", "time_mix_lerp_a", "time_mix_lerp_g"};
    const float *mu = bind_mixes(z, names, mixes);
    for (uint32_t i = 0; mu && i < mixes; i++)
        shift(z, mu + (size_t)i * z->width, column(z, z->mixed, i));
    project(z, column(z, z->mixed, MIXED_R), column(z, z->made, MADE_R), whole(z, "time_mix_receptance"));
    project(z, column(z, z->mixed, MIXED_K), column(z, z->made, MADE_K), whole(z, "time_mix_key"));
    project(z, column(z, z->mixed, MIXED_V), column(z, z->made, MADE_V), whole(z, "time_mix_value"));
    project_low(z, column(z, z->mixed, MIXED_W), column(z, z->made, MADE_W),
                (struct low_rank){"time_mix_w1", "time_mix_w2", NULL, ACT_TANH, ACT_NONE});
    project_low(z, column(z, z->mixed, MIXED_A), column(z, z->made, MADE_A),
                (struct low_rank){"time_mix_a1", "time_mix_a2", "time_mix_a0", ACT_NONE, ACT_SIGMOID});
    if (z->gated)
        project_low(z, column(z, z->mixed, MIXED_G), column(z, z->made, MADE_G),
                    (struct low_rank){"time_mix_g1", "time_mix_g2", NULL, ACT_SIGMOID, ACT_NONE});
    mix_values(z);
    mix_keys(z);
    add_bonus(z, "time_mix_r_k");
    erase(z, recur(z, 1));
    struct norm of_heads = head_norm(z);
    struct op_map *m = map(z, z->out, z->out);
    m->norm = of_heads;
    m->residual = z->some;
    struct op_out *o = &plan_add(b->p, OP_OUT, z->layer)->out;
    *o = (struct op_out){.in = z->out, .linear = whole(z, "time_mix_output")};
    if (z->gated)
        o->gate.in = column(z, z->made, MADE_G);
    o->tail = (struct tail){.scale = 1, .residual = b->x, .out = b->x};
}

static void channel_mix(const struct rwkv *z)
{
    struct build *b = z->b;
    const uint32_t ffn = b->h->layer[z->layer].ffn;
    weight_id mu = vector(z, "channel_mix_lerp_k", ".weight");
    map(z, b->x, z->normed)->norm = build_norm(b, "attn_norm_2", (int)z->layer);
    shift(z, mu ? (const float *)(const void *)b->bind.weights->all[mu].data : NULL, z->mixed);
    struct linear up = bind_linear(&b->bind, "channel_mix_key", (int)z->layer, ffn, z->width),
                  down = bind_linear(&b->bind, "channel_mix_value", (int)z->layer, z->width, ffn);
    plan_add(b->p, OP_FFN, z->layer)->ffn =
        (struct op_ffn){.in = z->mixed,
                        .up = up,
                        .down = down,
                        .act = ACT_RELU2,
                        .tail = {.scale = 1, .residual = b->x, .out = b->x}};
}

static struct rwkv buffers(struct build *b)
{
    const uint32_t width = b->h->width, inner = b->h->ssm.inner, part = inner > width ? inner : width;
    struct rwkv z = {.b = b, .width = width, .part = part, .normed = plan_buffer(b->p, width)};
    z.mixed = plan_buffer(b->p, MIXED * part);
    z.made = plan_buffer(b->p, MADE * part);
    z.low = plan_buffer(b->p, width);
    z.erase = plan_buffer(b->p, width);
    z.some = plan_buffer(b->p, width);
    z.out = plan_buffer(b->p, part);
    z.first = plan_buffer(b->p, width);
    return z;
}

void rwkv7_build(struct build *b)
{
    struct rwkv z = buffers(b);
    build_embed_all(b);
    for (z.layer = 0; z.layer < b->h->layers; z.layer++) {
        z.gated = bind_has(&b->bind, "time_mix_g1", (int)z.layer);
        map(&z, b->x, z.normed)->norm = build_norm(b, "attn_norm", (int)z.layer);
        time_mix(&z);
        if (bind_has(&b->bind, "channel_mix_key", (int)z.layer))
            channel_mix(&z);
        else
            build_ffn(b, z.layer, build_norm(b, "ffn_norm", (int)z.layer));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* ---- RWKV 6 ---- */

/* What of a row products see, in the order of the file; buffers of a layer are those of RWKV 7. */
enum mixed6 { MIXED6_W, MIXED6_K, MIXED6_V, MIXED6_R, MIXED6_G, MIXED6 };

/* out = the row before less this one. */
static void difference(const struct rwkv *z, struct operand out)
{
    struct build *b = z->b;
    float *w = bind_memory(&b->bind, 2 * (size_t)z->width * sizeof *w);
    for (uint32_t i = 0; w && i < 2 * z->width; i++)
        w[i] = i % 2 ? -1 : 1;
    struct op_conv conv = {.in = z->normed, .out = out, .channels = z->width, .cols = 2};
    conv.weight = w ? bind_table(&b->bind, "the row before", NULL, w, (struct shape){z->width, 2, 1}) : 0;
    conv.state = plan_keep(b->p, z->layer, 1, 1, z->width);
    plan_add(b->p, OP_CONV, z->layer)->conv = conv;
}

/* out = x + some times a vector of the layer. */
static void shift_by(const struct rwkv *z, const char *name, struct operand out)
{
    weight_id mu = vector(z, name, ".weight"), share = z->own ? less_from_one(z, mu) : mu;
    struct op_map *m = map(z, z->some, out);
    m->times = share;
    m->residual = z->normed;
}

/* How much of the row before each product sees follows from the row: x + (before - x) (mu + B tanh(A x')). */
static void mix_rows(const struct rwkv *z)
{
    static const char *const names[MIXED6] = {"time_mix_lerp_w", "time_mix_lerp_k", "time_mix_lerp_v",
                                              "time_mix_lerp_r", "time_mix_lerp_g"};
    struct build *b = z->b;
    struct binder *w = &b->bind;
    const uint64_t rows = ranks(z, "time_mix_w1");
    const uint32_t rank = rows >= MIXED6 && rows <= HPARAMS_SIZE[1] ? (uint32_t)rows / MIXED6 : 1;
    struct operand low = build_mix(b, MIX_LOW, MIXED6 * rank);
    difference(z, z->some);
    shift_by(z, "time_mix_lerp_x", z->out);
    struct linear a = {factor(z, "time_mix_w1", (struct shape){MIXED6 * rank, z->width, 1}), 0, 0};
    project(z, z->out, low, a)->act[0] = ACT_TANH;
    weight_id up = factor(z, "time_mix_w2", (struct shape){z->width, rank, MIXED6});
    plan_add(b->p, OP_HEADS, z->layer)->heads = (struct op_heads){.in = low, .out = z->mixed, .weight = up};
    const float *mu = bind_mixes(z, names, MIXED6);
    for (uint32_t i = 0; mu && i < MIXED6; i++) {
        struct operand one = column(z, z->mixed, i);
        weight_id plus = bind_table(w, "mix with the row before", NULL, mu + (size_t)i * z->width,
                                    (struct shape){1, z->width, 1});
        map(z, one, one)->plus = plus;
        struct op_map *m = map(z, one, one);
        m->by = z->some;
        m->residual = z->normed;
    }
}

/* scale: of what is added to the stream. */
static void time_mix6(const struct rwkv *z, float scale)
{
    struct build *b = z->b;
    struct binder *w = &b->bind;
    const struct ssm_params *s = &b->h->ssm;
    const int il = (int)z->layer;
    const bool first = bind_has(w, "time_mix_first", il);
    const uint32_t given = s->groups * s->state;
    mix_rows(z);
    project(z, column(z, z->mixed, MIXED6_R), column(z, z->made, MADE_R), whole(z, "time_mix_receptance"));
    project(z, column(z, z->mixed, MIXED6_K), column(z, z->made, MADE_K),
            bind_linear(w, "time_mix_key", il, given, z->width));
    project(z, column(z, z->mixed, MIXED6_V), column(z, z->made, MADE_V),
            bind_linear(w, "time_mix_value", il, given, z->width));
    project(z, column(z, z->mixed, MIXED6_G), column(z, z->made, MADE_G), whole(z, "time_mix_gate"));
    project_low(z, column(z, z->mixed, MIXED6_W), column(z, z->made, MADE_W),
                (struct low_rank){"time_mix_decay_w1", "time_mix_decay_w2", NULL, ACT_TANH, ACT_NONE});
    if (first)
        add_bonus(z, "time_mix_first");
    struct op_scan *scan = recur(z, -1);
    scan->decay_kind = DECAY_EXP;
    scan->bias = vector(z, "time_mix_decay", ".weight");
    scan->before = first;
    scan->rest = !first;
    scan->sharing = s->groups < s->heads ? s->heads / s->groups : 0;
    scan->q_scale = first ? 1 : 1 / sqrtf((float)s->state);
    if (first)
        map(z, z->out, z->out)->residual = z->some;
    struct norm of_heads = head_norm(z);
    struct op_out *o = &plan_add(b->p, OP_OUT, z->layer)->out;
    *o = (struct op_out){.in = z->out, .norm = of_heads, .linear = whole(z, "time_mix_output")};
    o->gate = (struct gate){.in = column(z, z->made, MADE_G), .act = first ? ACT_SILU : ACT_SIGMOID};
    o->tail = (struct tail){.scale = scale, .residual = b->x, .out = b->x};
}

static void channel_mix6(const struct rwkv *z, float scale)
{
    struct build *b = z->b;
    const int il = (int)z->layer;
    const uint32_t ffn = b->h->layer[z->layer].ffn, every = b->h->ssm.every;
    map(z, b->x, z->normed)->norm = build_norm(b, "attn_norm_2", il);
    difference(z, z->some);
    shift_by(z, "channel_mix_lerp_k", z->mixed);
    shift_by(z, "channel_mix_lerp_r", column(z, z->mixed, 1));
    project(z, column(z, z->mixed, 1), column(z, z->made, MADE_R), whole(z, "channel_mix_receptance"))
        ->act[0] = ACT_SIGMOID;
    struct linear up = bind_linear(&b->bind, "channel_mix_key", il, ffn, z->width),
                  down = bind_linear(&b->bind, "channel_mix_value", il, z->width, ffn);
    plan_add(b->p, OP_FFN, z->layer)->ffn = (struct op_ffn){
        .in = z->mixed, .up = up, .down = down, .act = ACT_RELU2, .tail = {.scale = scale, .out = z->out}};
    struct op_map *m = map(z, z->out, b->x);
    m->by = column(z, z->made, MADE_R);
    m->residual = b->x;
    m->scale = every && (z->layer + 1) % every == 0 ? 0.5f : 1; /* as the weights behind it are */
}

/* The stream is halved every some layers; what they add to it is scaled alike, in GGUF by its weights. */
float rwkv_scale(const struct hparams *h, uint32_t layer)
{
    return h->ssm.every ? ldexpf(1, -(int)(layer / h->ssm.every)) : 1;
}

void rwkv6_build(struct build *b)
{
    struct rwkv z = buffers(b);
    z.turned = b->h->container == STORE_SAFETENSORS;
    build_embed_all(b);
    for (z.layer = 0; z.layer < b->h->layers; z.layer++) {
        const float scale = z.turned ? rwkv_scale(b->h, z.layer) : 1;
        map(&z, b->x, z.normed)->norm = build_norm(b, "attn_norm", (int)z.layer);
        time_mix6(&z, scale);
        if (bind_has(&b->bind, "channel_mix_key", (int)z.layer))
            channel_mix6(&z, scale);
        else
            build_ffn(b, z.layer, build_norm(b, "ffn_norm", (int)z.layer));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* ---- RWKV 4 ---- */

static float decay4(float x)
{
    return -expf(x);
}

/* A vector of the recurrence; GGUF has the file's own numbers. */
static weight_id inner_vector(const struct rwkv *z, const char *name, float (*f)(float))
{
    struct binder *w = &z->b->bind;
    const uint32_t n = z->b->h->ssm.inner;
    const weight_id id = bind_vector(w, name, (int)z->layer, ".weight", n, 0);
    const float *x = id && f ? (const float *)(const void *)w->weights->all[id].data : NULL;
    float *y = x ? bind_memory(w, n * sizeof *y) : NULL;
    for (uint32_t i = 0; y && i < n; i++)
        y[i] = f(x[i]);
    return y ? bind_table(w, name, NULL, y, (struct shape){1, n, 1}) : id;
}

static void time_mix4(const struct rwkv *z, float scale)
{
    static const char *const names[3][2] = {{"time_mix_lerp_r", "time_mix_receptance"},
                                            {"time_mix_lerp_k", "time_mix_key"},
                                            {"time_mix_lerp_v", "time_mix_value"}};
    struct build *b = z->b;
    const int il = (int)z->layer;
    const uint32_t n = b->h->ssm.inner;
    difference(z, z->some);
    for (uint32_t i = MADE_R; i <= MADE_V; i++) {
        shift_by(z, names[i][0], column(z, z->mixed, i));
        project(z, column(z, z->mixed, i), column(z, z->made, i),
                bind_linear(&b->bind, names[i][1], il, n, z->width))
            ->act[0] = i == MADE_R ? ACT_SIGMOID : ACT_NONE;
    }
    struct op_cell cell = {.kind = CELL_AVERAGE, .out = z->out, .channels = n};
    cell.in = column(z, z->made, MADE_V), cell.gate = column(z, z->made, MADE_K);
    cell.a = inner_vector(z, "time_mix_decay", decay4);
    cell.gate_bias = inner_vector(z, "time_mix_first", NULL);
    cell.state = plan_keep(b->p, z->layer, 1, cell_kept(cell.kind), n);
    plan_add(b->p, OP_CELL, z->layer)->cell = cell;
    struct op_out *o = &plan_add(b->p, OP_OUT, z->layer)->out;
    *o = (struct op_out){.in = z->out, .linear = bind_linear(&b->bind, "time_mix_output", il, z->width, n)};
    o->gate.in = column(z, z->made, MADE_R);
    o->tail = (struct tail){.scale = scale, .residual = b->x, .out = b->x};
}

void rwkv4_build(struct build *b)
{
    struct rwkv z = buffers(b);
    z.own = true;
    build_embed_all(b);
    for (z.layer = 0; z.layer < b->h->layers; z.layer++) {
        const float scale = rwkv_scale(b->h, z.layer);
        map(&z, b->x, z.normed)->norm = build_norm(b, "attn_norm", (int)z.layer);
        time_mix4(&z, scale);
        channel_mix6(&z, scale);
    }
    struct norm last = build_norm(b, "output_norm", LOOKUP_NO_LAYER);
    last.eps = 1e-5f; /* whatever that of the others is */
    build_logits(b, last);
}
