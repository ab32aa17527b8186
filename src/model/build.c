/* Operations with their weights: what the families share. */
#include "model/build.h"

#include "base/mem.h"
#include "model/arch.h"
#include "model/rope.h"

#include <math.h>
#include <string.h>

/* Divisors of frequencies that a GGUF may hold. */
static const float *divisors(struct build *b, const char *name, uint32_t n)
{
    const struct tensor *t =
        lookup_find(&b->bind.names, (struct tensor_at){name, LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT}, ".weight");
    if (!t || b->bind.e->code)
        return NULL;
    bind_mark(&b->bind, t);
    return bind_floats(&b->bind, t, n, 0);
}

/* M-RoPE: each pair turns by one axis of the position. Sections are one after the other, or in turns: height and width
 * have every third pair as far as their sections go, and time the rest. */
static weight_id axes_table(struct build *b, const char *name, const float *freqs, uint32_t half)
{
    const uint32_t *n = b->h->rope_sections;
    float *table = bind_memory(&b->bind, (size_t)PLAN_AXES * half * sizeof *table);
    for (uint32_t i = 0; table && i < half; i++) {
        uint32_t axis = i < n[0] ? 0 : i < n[0] + n[1] ? 1 : 2;
        if (b->h->rope_in_turns)
            axis = i % 3 && i < 3 * n[i % 3] ? i % 3 : 0;
        for (uint32_t a = 0; a < PLAN_AXES; a++)
            table[a * half + i] = a == axis ? freqs[i] : 0;
    }
    return table ? bind_table(&b->bind, name, NULL, table, (struct shape){1, PLAN_AXES * half, 1}) : 0;
}

/* kind: the one of the model's two that params are, or are but for the base. */
static struct rope make_rope(struct build *b, const struct rope_params *params,
                             const struct rope_params *kind, const char *name)
{
    const struct hparams *h = b->h;
    uint32_t dims = params->dims ? params->dims : h->rope_dims, half = dims / 2;
    struct rope_divisors d = {0};
    struct rope r = {.kind = h->rope_kind, .dims = dims};
    /* Divisors belong to the rope of full layers, and to others that are alike. */
    if (h->container == STORE_GGUF && !kind->apart && kind->theta == h->rope[0].theta &&
        kind->dims == h->rope[0].dims) {
        d.always = divisors(b, "rope_freqs", half);
        d.brief = divisors(b, "rope_factors_short", half);
        d.extended = divisors(b, "rope_factors_long", half);
    }
    float *freqs = bind_memory(&b->bind, half * sizeof *freqs);
    if (!freqs || rope_table(h, params, dims, b->ctx, &d, freqs, &r.factor, b->bind.e))
        return r;
    for (uint32_t n = 0; h->arch->rope_back && n < half; n++)
        freqs[n] = -freqs[n];
    if (b->images.on && h->rope_sections[0])
        r.axes = true, r.freqs = axes_table(b, name, freqs, half);
    else
        r.freqs = bind_table(&b->bind, name, NULL, freqs, (struct shape){1, half, 1});
    return r;
}

static void rope_tables(struct build *b)
{
    const struct hparams *h = b->h;
    if (h->rope_kind == ROPE_NONE || h->rope_dims < 2)
        return;
    bool slides = false, full = false;
    for (uint32_t i = 0; i < h->layers; i++) {
        slides = slides || h->layer[i].sliding;
        full = full || !h->layer[i].sliding;
    }
    for (int i = 0; i < 2; i++)
        if (i ? slides : full)
            b->rope[i] = make_rope(b, &h->rope[i], &h->rope[i], i ? "rope of sliding layers" : "rope");
}

/* Layers with a theta of their own share a table where they have the same. */
static struct rope layer_rope(struct build *b, uint32_t layer)
{
    const struct layer_params *l = &b->h->layer[layer], *other;
    if (!l->rope || b->h->rope_kind == ROPE_NONE)
        return (struct rope){0};
    if (l->theta == 0)
        return b->rope[l->sliding];
    for (uint32_t i = 0; i < b->p->count; i++) {
        const struct op *op = &b->p->ops[i];
        other = op->kind == OP_QKV ? &b->h->layer[op->layer] : l;
        if (other != l && other->rope && other->theta == l->theta && other->sliding == l->sliding)
            return op->qkv.rope;
    }
    struct rope_params own = b->h->rope[l->sliding];
    own.theta = l->theta;
    return make_rope(b, &own, &b->h->rope[l->sliding], "rope of some layers");
}

/* ALiBi: a score falls by the distance times the head's slope. With n the largest power of two up to the heads, slopes
 * are 2^(-bias (i + 1) / n), and for the heads behind n the exponents lie between those. */
static weight_id alibi_table(struct build *b)
{
    uint32_t n = 1, heads = b->h->heads, cols = 2 * b->ctx + 1;
    float *table = bind_memory(&b->bind, (size_t)heads * cols * sizeof *table);
    while (n * 2 <= heads)
        n *= 2;
    for (uint32_t i = 0; table && i < heads; i++) {
        float slope = exp2f(-b->h->alibi_bias * (i < n ? (float)(i + 1) : (float)(i - n) + 0.5f) / (float)n);
        for (uint32_t d = 0; d < cols; d++)
            table[(size_t)i * cols + d] = slope * ((float)d - (float)b->ctx);
    }
    return table ? bind_table(&b->bind, "ALiBi", NULL, table, (struct shape){1, cols, heads}) : 0;
}

void build_begin(struct build *b)
{
    const struct hparams *h = b->h;
    b->x = plan_buffer(b->p, h->width);
    b->y = plan_buffer(b->p, h->width);
    b->q = plan_buffer(b->p, h->heads * h->k_dim);
    b->a = plan_buffer(b->p, h->heads * h->v_dim);
    rope_tables(b);
    if (h->alibi_bias > 0)
        b->alibi = alibi_table(b);
}

static float norm_add(const struct build *b)
{
    return b->h->arch->norm_plus_one && b->h->container == STORE_SAFETENSORS ? 1 : 0;
}

struct norm build_norm(struct build *b, const char *name, int layer)
{
    struct norm n = {.kind = b->h->arch->norm, .eps = b->h->eps};
    n.weight = bind_vector(&b->bind, name, layer, ".weight", b->h->width, norm_add(b));
    if (n.kind == NORM_LAYER)
        n.bias = bind_optional(&b->bind, name, layer, ".bias", b->h->width);
    return n;
}

/* One tensor a head (stablelm in safetensors), put together. */
static weight_id head_by_head(struct build *b, const char *name, int layer, uint32_t heads, uint32_t dim)
{
    float *all = bind_memory(&b->bind, (size_t)heads * dim * sizeof *all);
    for (uint32_t i = 0; all && i < heads; i++) {
        const struct tensor *t = bind_tensor(&b->bind, (struct tensor_at){name, layer, (int)i}, ".weight");
        const float *one = t ? bind_floats(&b->bind, t, dim, 0) : NULL;
        if (!one)
            return 0;
        memcpy(all + (size_t)i * dim, one, dim * sizeof *all);
    }
    struct bound of = {.name = name, .layer = layer, .suffix = ".weight"};
    return all ? bind_table(&b->bind, name, &of, all, (struct shape){1, heads * dim, 1}) : 0;
}

struct norm build_head_norm(struct build *b, const char *name, int layer, uint32_t heads, uint32_t dim)
{
    struct norm n = {.kind = b->h->arch->norm, .eps = b->h->eps, .heads = heads};
    const struct lookup *names = &b->bind.names;
    const struct tensor *t = lookup_find(names, (struct tensor_at){name, layer, LOOKUP_NO_EXPERT}, ".weight");
    if (t) {
        bool own = heads && t->values == (uint64_t)heads * dim; /* each head has its own weight */
        n.weight = bind_vector(&b->bind, name, layer, ".weight", own ? heads * dim : dim, norm_add(b));
        if (n.kind == NORM_LAYER)
            n.bias = bind_optional(&b->bind, name, layer, ".bias", own ? heads * dim : dim);
        return n;
    }
    if (heads && b->h->container == STORE_SAFETENSORS &&
        lookup_find(names, (struct tensor_at){name, layer, 0}, ".weight")) {
        n.weight = head_by_head(b, name, layer, heads, dim);
        return n;
    }
    return (struct norm){0};
}

/* The same of any row, with arch.norm; NORM_NONE where the file has none. */
static struct norm optional_norm(struct build *b, const char *name, int layer, uint32_t width)
{
    return build_head_norm(b, name, layer, 0, width);
}

/* Rows of images are given, with those of deepstack behind them, which tokens have not. */
static struct op_embed *build_given(struct build *b)
{
    const uint32_t width = b->h->width, deep = b->images.deepstacks, at = b->p->count - 1;
    struct operand given = plan_buffer(b->p, width * (1 + deep));
    b->p->given = given.buffer;
    if (deep) {
        b->deep = plan_buffer(b->p, width * deep);
        plan_add(b->p, OP_EMBED, UINT32_MAX)->embed = (struct op_embed){
            .given = {given.buffer, width}, .width = width * deep, .scale = 1, .out = b->deep};
    }
    struct op_embed *o = &b->p->ops[at].embed;
    o->given = given;
    return o;
}

void build_deepstack(struct build *b, uint32_t layer)
{
    if (layer < b->images.deepstacks)
        build_map(b, layer, (struct operand){b->deep.buffer, layer * b->h->width}, b->x, b->h->width)
            ->residual = b->x;
}

struct op_embed *build_embed(struct build *b)
{
    struct op_embed *o = &plan_add(b->p, OP_EMBED, UINT32_MAX)->embed;
    b->table =
        bind_matrix(&b->bind, "token_embd", LOOKUP_NO_LAYER, (struct shape){b->h->vocab, b->h->width, 1});
    o->table = b->table;
    o->scale = b->h->embed_scale;
    o->out = b->x;
    return b->images.on ? build_given(b) : o;
}

struct op_embed *build_embed_all(struct build *b)
{
    struct op_embed *o = build_embed(b);
    if (bind_has(&b->bind, "position_embd", LOOKUP_NO_LAYER)) {
        o->positions = bind_matrix(&b->bind, "position_embd", LOOKUP_NO_LAYER,
                                   (struct shape){b->h->context + b->h->position_offset, b->h->width, 1});
        o->position_offset = b->h->position_offset;
    }
    o->norm = optional_norm(b, "token_embd_norm", LOOKUP_NO_LAYER, b->h->width);
    return o;
}

void build_qkv_slices(const struct hparams *h, enum store_kind container, const struct op_qkv *o,
                      struct slice s[3])
{
    uint32_t q = o->heads * o->k_dim, k = o->kv_heads * o->k_dim, v = o->kv_heads * o->v_dim;
    uint32_t groups = h->arch->grouped_qkv && container == STORE_SAFETENSORS ? o->kv_heads : 1;
    if (h->arch->qkv_quarters && container == STORE_SAFETENSORS) {
        s[0] = (struct slice){"attn_q", 4, 3 * q / 4, 0, q / 4};
        s[1] = (struct slice){"attn_k", 4, 3 * q / 4, q / 2, q / 4};
        s[2] = (struct slice){"attn_v", 4, 3 * q / 4, q / 4, q / 4};
        return;
    }
    uint32_t stride = (q + k + v) / groups;
    s[0] = (struct slice){"attn_q", groups, stride, 0, q / groups};
    s[1] = (struct slice){"attn_k", groups, stride, q / groups, k / groups};
    s[2] = (struct slice){"attn_v", groups, stride, (q + k) / groups, v / groups};
}

static void bind_qkv(struct build *b, uint32_t layer, struct op_qkv *o)
{
    const struct hparams *h = b->h;
    uint32_t q = o->heads * o->k_dim, k = o->kv_heads * o->k_dim, v = o->kv_heads * o->v_dim;
    if (!bind_has(&b->bind, "attn_qkv", (int)layer)) {
        if (bind_rows(&b->bind, "attn_q", (int)layer) == 2ull * q) { /* head by head: q, then its gate */
            const struct slice s[2] = {{"attn_q", o->heads, 2 * o->k_dim, 0, o->k_dim},
                                       {"attn_q", o->heads, 2 * o->k_dim, o->k_dim, o->k_dim}};
            struct linear out[2] = {0};
            bind_split(&b->bind, "attn_q", (int)layer, (struct shape){2 * q, h->width, 1}, s, 2, out);
            o->q = out[0];
            b->gate.linear = out[1];
        } else {
            o->q = bind_linear(&b->bind, "attn_q", (int)layer, q, h->width);
        }
        if (h->layer[layer].kv != layer)
            return; /* another layer has the keys */
        o->k = bind_linear(&b->bind, "attn_k", (int)layer, k, h->width);
        if (bind_has(&b->bind, "attn_v", (int)layer) || !h->arch->v_is_k)
            o->v = bind_linear(&b->bind, "attn_v", (int)layer, v, h->width);
        return;
    }
    struct slice s[3];
    struct linear out[3] = {0};
    build_qkv_slices(h, h->container, o, s);
    bind_split(&b->bind, "attn_qkv", (int)layer, (struct shape){q + k + v, h->width, 1}, s, 3, out);
    o->q = out[0], o->k = out[1], o->v = out[2];
}

void build_gate(struct build *b, uint32_t layer)
{
    uint64_t rows = bind_rows(&b->bind, "attn_gate", (int)layer);
    b->gate.linear = (struct linear){0};
    b->gate.heads = rows == b->h->heads ? b->h->heads : 0;
    if (rows)
        b->gate.linear = bind_linear(&b->bind, "attn_gate", (int)layer,
                                     b->gate.heads ? b->h->heads : b->h->heads * b->h->v_dim, b->h->width);
}

/* Its product, unless it was made before. */
static void build_gate_rows(struct build *b, uint32_t layer)
{
    if (!b->gate.linear.weight)
        return;
    if (!b->g.buffer)
        b->g = plan_buffer(b->p, b->h->heads * b->h->v_dim);
    plan_add(b->p, OP_PROJ, layer)->proj = (struct op_proj){
        .in = b->x, .norm = b->gate.norm, .out = b->g, .linear = {b->gate.linear}, .scale = {1}, .count = 1};
    b->gate.linear = (struct linear){0};
    b->gate.made = true;
}

/* Norm of each head of a row, or of the row. */
static struct norm qk_norm(struct build *b, const char *name, uint32_t layer, uint32_t heads, uint32_t dim)
{
    bool row = b->h->arch->qk_norm_row;
    return build_head_norm(b, name, (int)layer, row ? 0 : heads, row ? heads * dim : dim);
}

struct op_qkv *build_qkv(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    const struct layer_params *l = &h->layer[layer];
    struct op_qkv o = {.in = b->x, .norm = in, .clamp = h->clamp_qkv, .layer = l->kv, .out = b->q};
    o.clamp_last = h->clamp_last;
    o.heads = h->heads, o.kv_heads = l->kv_heads, o.k_dim = l->k_dim, o.v_dim = l->v_dim;
    o.norm_last = h->arch->norm_last;
    if (l->scales_q)
        o.q_scale = h->q_scale;
    b->gate.norm = in;
    build_gate(b, layer);
    bind_qkv(b, layer, &o);
    o.q_norm = qk_norm(b, "attn_q_norm", layer, o.heads, o.k_dim);
    o.rope = layer_rope(b, layer);
    if (l->kv == layer) {
        o.k_norm = qk_norm(b, "attn_k_norm", layer, o.kv_heads, o.k_dim);
        plan_kv(b->p, layer,
                (struct kv_group){l->kv_heads, l->k_dim, l->v_dim,
                                  .window = l->sliding && h->causal ? h->window : 0, .layers = 0});
    }
    build_gate_rows(b, layer); /* beside the products of the same rows */
    struct op *op = plan_add(b->p, OP_QKV, layer);
    op->qkv = o;
    return &op->qkv;
}

struct op_attn *build_attn(struct build *b, uint32_t layer)
{
    const struct hparams *h = b->h;
    const struct layer_params *l = &h->layer[layer];
    struct op_attn *o = &plan_add(b->p, OP_ATTN, layer)->attn;
    *o = (struct op_attn){
        .in = b->q, .out = b->a, .layer = l->kv, .scale = h->attn_scale, .softcap = h->attn_softcap};
    o->heads = h->heads, o->kv_heads = l->kv_heads, o->k_dim = l->k_dim, o->v_dim = l->v_dim;
    o->window = l->sliding ? h->window : 0;
    o->chunked = l->sliding && h->chunked;
    o->causal = h->causal;
    if (b->images.two_sided)
        o->span = !b->images.windows_only ? SPAN_ALSO : l->sliding ? SPAN_AHEAD : SPAN_NONE;
    o->sinks = bind_optional(&b->bind, "attn_sinks", (int)layer, ".weight", h->heads);
    o->distance = b->alibi;
    return o;
}

static struct tail stream_tail(const struct build *b)
{
    return (struct tail){.scale = b->h->residual_scale, .residual = b->x, .out = b->x};
}

/* The gate of attention's output, where it has one. */
static struct gate take_gate(struct build *b, uint32_t layer)
{
    build_gate_rows(b, layer);
    if (!b->gate.made)
        return (struct gate){0};
    b->gate.made = false;
    return (struct gate){.in = b->g, .act = ACT_SIGMOID, .heads = b->gate.heads};
}

struct tail *build_out(struct build *b, uint32_t layer)
{
    const struct hparams *h = b->h;
    struct gate gate = take_gate(b, layer);
    struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
    o->in = b->a;
    o->gate = gate;
    o->norm = optional_norm(b, "attn_sub_norm", (int)layer, h->heads * h->layer[layer].v_dim);
    o->linear = bind_linear(&b->bind, "attn_output", (int)layer, h->width, h->heads * h->layer[layer].v_dim);
    o->tail = stream_tail(b);
    o->tail.scale *= h->v_scale;
    return &o->tail;
}

/* gate and up in one tensor, gate first. */
static void split_gate_up(struct build *b, const char *name, uint32_t layer, uint32_t ffn,
                          struct linear *gate, struct linear *up)
{
    bool shared = strstr(name, "_shexp") != NULL;
    struct slice s[2] = {{shared ? "ffn_gate_shexp" : "ffn_gate", 1, 2 * ffn, 0, ffn},
                         {shared ? "ffn_up_shexp" : "ffn_up", 1, 2 * ffn, ffn, ffn}};
    struct linear out[2] = {0};
    bind_split(&b->bind, name, (int)layer, (struct shape){2 * ffn, b->h->width, 1}, s, 2, out);
    *gate = out[0];
    *up = out[1];
}

struct op_moe *build_moe(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    struct binder *w = &b->bind;
    int il = (int)layer;
    struct op_moe *o = &plan_add(b->p, OP_MOE, layer)->moe;
    *o = (struct op_moe){.in = b->x, .norm = in, .act = h->act, .gating = h->gating};
    o->alpha = h->act_alpha, o->limit = h->act_limit;
    o->experts = h->experts, o->used = h->experts_used;
    o->groups = h->expert_groups, o->groups_used = h->expert_groups_used;
    o->group_pair = h->gating == GATING_SIGMOID || h->group_pair;
    o->normalise = h->normalise;
    o->least_sum = h->least_sum;
    o->weight_scale = h->weight_scale;
    o->nearness = h->nearness;
    o->scale_input = h->scale_input;
    o->identities = h->identities;
    o->router = bind_linear(w, "ffn_gate_inp", il, h->experts + h->identities, h->width);
    o->select_bias = bind_optional(w, "exp_probs_b", il, ".bias", h->experts + h->identities);
    struct expert_linears e = bind_experts(w, il);
    o->gate = e.gate, o->up = e.up, o->down = e.down;
    if (bind_has(w, "ffn_down_shexp", il)) {
        const uint64_t cols = bind_cols(w, "ffn_down_shexp", il);
        /* The key that llama.cpp's converter writes for ernie is another number. */
        const uint32_t n =
            h->container == STORE_GGUF && cols <= HPARAMS_SIZE[1] ? (uint32_t)cols : h->shared_ffn;
        const char *both = bind_has(w, "ffn_gate_up_shexp", il)           ? "ffn_gate_up_shexp"
                           : bind_rows(w, "ffn_up_shexp", il) == 2ull * n ? "ffn_up_shexp"
                                                                          : NULL;
        if (both) {
            split_gate_up(b, both, layer, n, &o->shared_gate, &o->shared_up);
        } else {
            if (bind_has(w, "ffn_gate_shexp", il))
                o->shared_gate = bind_linear(w, "ffn_gate_shexp", il, n, h->width);
            o->shared_up = bind_linear(w, "ffn_up_shexp", il, n, h->width);
        }
        o->shared_down = bind_linear(w, "ffn_down_shexp", il, h->width, n);
        if (bind_has(w, "ffn_gate_inp_shexp", il))
            o->shared_router = bind_matrix(w, "ffn_gate_inp_shexp", il, (struct shape){1, h->width, 1});
    }
    o->tail = stream_tail(b);
    return o;
}

/* xIELU's p, n, b and eps. Files hold p and n before softplus, n without b: a GGUF in its keys. */
static weight_id bind_xielu(struct build *b, uint32_t layer)
{
    static const char *const names[] = {"xielu_alpha_p", "xielu_alpha_n", "xielu_beta", "xielu_eps"};
    float *c = bind_memory(&b->bind, 4 * sizeof *c);
    for (int i = 0; c && i < 4; i++) {
        struct tensor_at at = {names[i], (int)layer, LOOKUP_NO_EXPERT};
        const struct tensor *t = b->h->xielu ? NULL : bind_tensor(&b->bind, at, ".weight");
        const float *one = b->h->xielu ? b->h->xielu + 4 * (size_t)layer + i
                           : t         ? bind_floats(&b->bind, t, 1, 0)
                                       : NULL;
        if (!one)
            return 0;
        c[i] = i < 2 ? (float)log1p(exp((double)*one)) : *one;
    }
    if (!c)
        return 0;
    c[1] += c[2];
    return bind_table(&b->bind, "xIELU", NULL, c, (struct shape){1, 4, 1});
}

struct op_ffn *build_dense(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    struct binder *w = &b->bind;
    int il = (int)layer;
    uint32_t ffn = h->layer[layer].ffn;
    struct op_ffn *o = &plan_add(b->p, OP_FFN, layer)->ffn;
    *o = (struct op_ffn){.in = b->x, .norm = in, .act = h->act};
    const char *both = bind_has(w, "ffn_gate_up", il)             ? "ffn_gate_up"
                       : bind_rows(w, "ffn_up", il) == 2ull * ffn ? "ffn_up"
                                                                  : NULL;
    if (both) {
        split_gate_up(b, both, layer, ffn, &o->gate, &o->up);
    } else {
        if (bind_has(w, "ffn_gate", il))
            o->gate = bind_linear(w, "ffn_gate", il, ffn, h->width);
        o->up = bind_linear(w, "ffn_up", il, ffn, h->width);
    }
    o->down = bind_linear(w, "ffn_down", il, h->width, ffn);
    o->inner = optional_norm(b, "ffn_sub_norm", il, ffn);
    if (h->xielu || bind_has(w, "xielu_alpha_p", il))
        o->xielu = bind_xielu(b, layer);
    o->tail = stream_tail(b);
    return o;
}

struct tail *build_ffn(struct build *b, uint32_t layer, struct norm in)
{
    if (b->h->experts && bind_has(&b->bind, "ffn_gate_inp", (int)layer))
        return &build_moe(b, layer, in)->tail;
    return &build_dense(b, layer, in)->tail;
}

struct op_map *build_map(struct build *b, uint32_t layer, struct operand in, struct operand out,
                         uint32_t width)
{
    struct op_map *o = &plan_add(b->p, OP_MAP, layer)->map;
    *o = (struct op_map){.in = in, .out = out, .width = width, .factor = 1, .scale = 1};
    return o;
}

weight_id build_scaled(struct build *b, weight_id id, float factor)
{
    if (!id)
        return 0;
    const struct weight *from = &b->bind.weights->all[id];
    const float *x = (const float *)(const void *)from->data;
    uint32_t n = from->cols;
    float *y = bind_memory(&b->bind, n * sizeof *y);
    for (uint32_t i = 0; y && i < n; i++)
        y[i] = x[i] * factor;
    return y ? bind_table(&b->bind, from->name, NULL, y, (struct shape){1, n, 1}) : 0;
}

void build_bare(struct build *b, weight_id id)
{
    if (id)
        b->bind.bound[id].suffix = "";
}

struct op_logits *build_logits(struct build *b, struct norm in)
{
    const struct hparams *h = b->h;
    struct op_logits *o = &plan_add(b->p, OP_LOGITS, UINT32_MAX)->logits;
    *o = (struct op_logits){.in = b->x, .norm = in, .scale = h->logit_scale, .softcap = h->logit_softcap};
    b->p->out_width = h->width;
    if (h->arch->encoder)
        return o;
    b->p->out_width = h->vocab;
    const struct tensor_at head = {"output", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT},
                           table = {"token_embd", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT};
    /* a head that is in the file counts, whatever config.json says */
    if (h->tied ? !bind_differs(&b->bind, head, table) : !bind_has(&b->bind, "output", LOOKUP_NO_LAYER)) {
        o->head.weight = b->table;
        o->head.bias = bind_optional(&b->bind, "output", LOOKUP_NO_LAYER, ".bias", h->vocab);
    } else {
        o->head = bind_linear(&b->bind, "output", LOOKUP_NO_LAYER, h->vocab, h->width);
    }
    return o;
}

void build_parallel(struct build *b, uint32_t layer, struct norm attn, struct norm ffn)
{
    build_qkv(b, layer, attn);
    build_attn(b, layer);
    build_out(b, layer)->out = b->y;
    struct tail *t = build_ffn(b, layer, ffn);
    t->residual = t->out = b->y;
    struct operand old = b->x;
    b->x = b->y;
    b->y = old;
}
