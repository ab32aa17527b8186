/* The operations of a plan as launches. */
#include "device/cuda/lora.h"
#include "device/cuda/product.h"

#include "base/log.h"

#include <string.h>

static struct kv_view view_of(struct cuda_device *d, const struct plan *p, uint32_t layer)
{
    struct kv_place place = p->kv[layer];
    const struct group_kv *g = &d->kv[place.group];
    return (struct kv_view){.base = (uint8_t *)(g->base + place.index * g->layer_bytes),
                            .page_bytes = g->page_bytes,
                            .type = g->type,
                            .tokens = d->page_tokens,
                            .token_bits = (uint32_t)__builtin_ctz(d->page_tokens),
                            .heads = g->shape.kv_heads,
                            .k_dim = g->shape.k_dim,
                            .v_dim = g->shape.v_dim,
                            .k_row = g->k_row,
                            .v_row = g->v_row,
                            .table = d->meta.tables + (uint64_t)place.group * d->meta.seqs * d->meta.width};
}

static int op_embed(struct cuda_device *d, const struct op_embed *o, struct err *e)
{
    struct embed_args a = {.table = *mat_of(d, o->table),
                           .position_offset = o->position_offset,
                           .scale = o->scale,
                           .norm = product_norm(d, &o->norm),
                           .out = buffer_at(d, o->out),
                           .ldo = buffer_ld(d, o->out),
                           .meta = d->meta};
    a.width = a.table.k;
    if (o->positions)
        a.positions = *mat_of(d, o->positions);
    if (o->types)
        a.types = *mat_of(d, o->types);
    if (d->lora && o->adapter) {
        a.lora = lora_entries(d, o->adapter);
        a.mix = d->mix;
    }
    return gpu_launch(d->g, K_EMBED, gpu_grid(d->meta.rows, 1, 1, 256, 0), &a, e);
}

static uint32_t ratio_index(const struct cuda_device *d, uint32_t ratio)
{
    uint32_t i = 0;
    while (i < d->ratios && d->ratio[i] != ratio)
        i++;
    return i;
}

static bool attn_on_tensors(const struct cuda_device *d, const struct op_attn *o, const struct kv_view *kv)
{
    uint32_t ratio = o->heads / o->kv_heads;
    return !d->options.exact && kv->type == KV_F16 && !o->v_in_k && o->k_dim == o->v_dim &&
           gpu_head_index(o->k_dim) >= 0 && ratio <= DECODE_QUERIES && ratio_index(d, ratio) < d->ratios &&
           gpu_prefill_choose(d->g, o->k_dim, 1, 1).shared <= (uint32_t)d->g->profile.shared_block;
}

static int op_qkv(struct cuda_device *d, const struct plan *p, const struct op_qkv *o, struct err *e)
{
    uint32_t m = d->meta.rows, q_n = o->heads * o->k_dim, k_n = o->kv_heads * o->k_dim,
             n = q_n + k_n + o->kv_heads * o->v_dim;
    enum path path = product_path(d, m);
    struct input in = {
        buffer_at(d, o->in), buffer_ld(d, o->in), m, mat_of(d, o->q.weight)->k, &o->norm, NULL, false};
    struct product three[3] = {{o->q.weight, 0, o->q.adapter, d->y, n},
                               {o->k.weight, 0, o->k.adapter, d->y + q_n, n},
                               {o->v.weight, 0, o->v.adapter, d->y + q_n + k_n, n}};
    product_expect(d, m, (weight_id[]){o->q.weight, o->k.weight, o->v.weight}, 3);
    if (product_input(d, path, &in, e) || product_run(d, path, three, 3, m, &product_plain, e))
        return -1;
    struct qkv_args a = {.y = d->y,
                         .ldy = n,
                         .row_scale = path == PATH_HALF ? d->half_scale : NULL,
                         .q_bias = vector_of(d, o->q.bias),
                         .k_bias = vector_of(d, o->k.bias),
                         .v_bias = vector_of(d, o->v.bias),
                         .clamp = o->clamp,
                         .m = m,
                         .heads = o->heads,
                         .q_norm = product_norm(d, &o->q_norm),
                         .k_norm = product_norm(d, &o->k_norm),
                         .rope = o->rope.kind,
                         .rope_dims = o->rope.dims,
                         .rope_first = o->rope.first,
                         .rope_factor = o->rope.factor,
                         .freqs = vector_of(d, o->rope.freqs),
                         .out = buffer_at(d, o->out),
                         .ldo = buffer_ld(d, o->out),
                         .kv = view_of(d, p, o->layer),
                         .meta = d->meta};
    uint32_t widest = o->k_dim > o->v_dim ? o->k_dim : o->v_dim;
    struct gpu_grid grid = gpu_grid(gpu_blocks(o->heads + 2 * o->kv_heads, 4), m, 1, 128, 4 * widest * 4);
    return gpu_launch(d->g, K_QKV, grid, &a, e);
}

static int op_latent(struct cuda_device *d, const struct plan *p, const struct op_latent *o, struct err *e)
{
    uint32_t m = d->meta.rows, width = o->latent + o->rope.dims, q_n = o->heads * (o->nope + o->rope.dims);
    enum path path = product_path(d, m);
    struct input in = {
        buffer_at(d, o->in), buffer_ld(d, o->in), m, mat_of(d, o->kv_a.weight)->k, &o->norm, NULL, false};
    uint32_t a_n = o->q_a.weight ? mat_of(d, o->q_a.weight)->n : 0;
    float *c = d->z, *low = d->z + (uint64_t)m * width, *q = d->y;
    struct product first[2] = {{o->kv_a.weight, o->kv_a.bias, o->kv_a.adapter, c, width},
                               {o->q_b.weight, o->q_b.bias, o->q_b.adapter, q, q_n}};
    if (a_n)
        first[1] = (struct product){o->q_a.weight, o->q_a.bias, o->q_a.adapter, low, a_n};
    product_expect(d, m, (weight_id[]){first[0].weight, first[1].weight}, 2);
    if (product_input(d, path, &in, e) || product_finished(d, path, first, 2, m, e))
        return -1;
    if (a_n) {
        struct input second = {low, a_n, m, a_n, &o->q_norm, NULL, false};
        struct product b = {o->q_b.weight, o->q_b.bias, o->q_b.adapter, q, q_n};
        product_expect(d, m, &b.weight, 1);
        if (product_input(d, path, &second, e) || product_finished(d, path, &b, 1, m, e))
            return -1;
    }
    struct latent_args a = {.q = q,
                            .ldq = q_n,
                            .c = c,
                            .ldc = width,
                            .norm = product_norm(d, &o->kv_norm),
                            .m = m,
                            .heads = o->heads,
                            .nope = o->nope,
                            .latent = o->latent,
                            .rope = o->rope.kind,
                            .rope_dims = o->rope.dims,
                            .rope_factor = o->rope.factor,
                            .freqs = vector_of(d, o->rope.freqs),
                            .out = buffer_at(d, o->out),
                            .ldo = buffer_ld(d, o->out),
                            .kv = view_of(d, p, o->layer),
                            .meta = d->meta};
    struct gpu_grid grid = gpu_grid(gpu_blocks(o->heads + 1, 4), m, 1, 128, 4 * width * 4);
    if (gpu_launch(d->g, K_LATENT, grid, &a, e))
        return -1;
    /* per head: y[h] = W[h] x[h] */
    struct float_args each = {.w = *mat_of(d, o->k_b),
                              .x = q,
                              .ldx = q_n,
                              .y = buffer_at(d, o->out),
                              .ldy = buffer_ld(d, o->out),
                              .m = m,
                              .scale = 1.0f,
                              .heads = o->heads,
                              .x_step = o->nope + o->rope.dims,
                              .y_step = width};
    return product_float(d, &each, o->k_b_adapter, e);
}

static int op_heads(struct cuda_device *d, const struct op_heads *o, struct err *e)
{
    const struct mat *w = mat_of(d, o->weight);
    struct float_args a = {.w = *w,
                           .x = buffer_at(d, o->in),
                           .ldx = buffer_ld(d, o->in),
                           .y = buffer_at(d, o->out),
                           .ldy = buffer_ld(d, o->out),
                           .m = d->meta.rows,
                           .scale = 1.0f,
                           .heads = w->count,
                           .x_step = w->k,
                           .y_step = w->n};
    return product_float(d, &a, o->adapter, e);
}

/* The next operation takes what attention gives as it is: then attention packs it. */
static bool feeds_product(const struct cuda_device *d, const struct plan *p, uint32_t i)
{
    if (i + 1 >= d->to || p->ops[i + 1].kind != OP_OUT)
        return false;
    const struct op_out *n = &p->ops[i + 1].out;
    const struct op_attn *o = &p->ops[i].attn;
    return n->in.buffer == o->out.buffer && n->in.col == o->out.col && n->norm.kind == NORM_NONE;
}

/* Whether the product behind attention may join its parts: it has one row, which nobody else reads. */
static bool joins_itself(const struct cuda_device *d, const struct plan *p, uint32_t i,
                         const struct attn_args *a)
{
    const struct operand out = p->ops[i].attn.out;
    struct input in = {a->out, a->ldo, a->m, a->heads * a->kv.v_dim, NULL, NULL, false};
    if (!feeds_product(d, p, i) || !product_waits(d, product_path(d, a->m), &in) || d->lora ||
        a->splits > GEMM_PARTS_MOST || !layout_is_tile(d->weights.mat[p->ops[i + 1].out.linear.weight].fmt))
        return false;
    for (uint32_t k = i + 2; k < p->count && plan_io(&p->ops[k]).out.buffer != out.buffer; k++)
        if (plan_io(&p->ops[k]).in.buffer == out.buffer || plan_io(&p->ops[k]).residual.buffer == out.buffer)
            return false;
    return true;
}

static int attn_decode(struct cuda_device *d, const struct plan *p, uint32_t i, struct attn_args *a,
                       struct err *e)
{
    const struct op_attn *o = &p->ops[i].attn;
    const uint32_t span = o->window && o->window + 32 < d->longest ? o->window + 32 : d->longest;
    const uint32_t ratio = o->heads / o->kv_heads;
    /* one row a sequence and up to eight heads a group: half of a tile's rows are enough */
    const bool few = d->meta.seqs == d->meta.rows && ratio <= DECODE_QUERIES / 2;
    a->part_queries = few ? DECODE_QUERIES / 2 : DECODE_QUERIES;
    const struct gpu_decode how =
        gpu_decode_choose(d->g, a->part_queries, o->v_dim, a->kv.heads * d->meta.seqs, span);
    a->stages = how.stages;
    a->splits = how.splits;
    a->part = d->part;
    a->part_ml = d->part_ml;
    /* A block that has all keys has whole heads, which it can pack only where they make whole columns. One row in front of
     * tiles is left to the product. */
    const bool row = d->meta.rows == 1 && !d->no_fuse;
    if (product_path(d, d->meta.rows) == PATH_PACK && !d->any_prefill && feeds_product(d, p, i) &&
        (a->splits > 1 || ratio * o->v_dim % 256 == 0) &&
        !(row && layout_is_tile(mat_of(d, p->ops[i + 1].out.linear.weight)->fmt))) {
        product_expect(d, d->meta.rows, &p->ops[i + 1].out.linear.weight, 1);
        a->pack = product_out(d, PATH_PACK, d->meta.rows, o->heads * o->v_dim);
        d->packed = o->out;
    }
    struct gpu_grid grid = gpu_grid(a->splits, a->kv.heads, d->meta.seqs, 128, how.shared);
    uint32_t kernel = !few ? K_ATTN_DECODE : how.stages == 1 ? K_ATTN_FEW : K_ATTN_FAR;
    if (gpu_launch(d->g, kernel + (uint32_t)gpu_head_index(o->k_dim), grid, a, e))
        return -1;
    if (a->splits == 1)
        return 0;
    if (!joins_itself(d, p, i, a))
        return product_join(d, a, e);
    d->unjoined = *a;
    return 0;
}

/* The sequences with many queries; r: which list of tiles. */
static int attn_prefill(struct cuda_device *d, struct attn_args a, uint32_t r, struct err *e)
{
    const uint32_t dim = a.kv.k_dim, span = a.window && a.window + TILE_QUERIES < d->longest
                                                ? a.window + TILE_QUERIES
                                                : d->longest;
    const struct gpu_prefill how = gpu_prefill_choose(d->g, dim, d->tiles[r] * a.kv.heads, span);
    a.tiles = d->tiles[r];
    a.meta.tiles += d->tiles_at[r];
    a.splits = how.splits;
    a.part = d->part;
    a.part_ml = d->part_ml;
    struct gpu_grid grid = gpu_grid(a.tiles, a.kv.heads, a.splits, 128, how.shared),
                    join = gpu_grid(a.tiles, a.kv.heads, dim / 16, 4 * TILE_QUERIES, 0);
    if (gpu_launch(d->g, how.kernel, grid, &a, e))
        return -1;
    return a.splits > 1 ? gpu_launch(d->g, K_ATTN_JOIN, join, &a, e) : 0;
}

static int op_attn(struct cuda_device *d, const struct plan *p, uint32_t i, struct err *e)
{
    const struct op_attn *o = &p->ops[i].attn;
    struct attn_args a = {.q = buffer_at(d, o->in),
                          .ldq = buffer_ld(d, o->in),
                          .out = buffer_at(d, o->out),
                          .ldo = buffer_ld(d, o->out),
                          .heads = o->heads,
                          .m = d->meta.rows,
                          .scale = o->scale,
                          .softcap = o->softcap,
                          .window = o->window,
                          .causal = o->causal,
                          .v_in_k = o->v_in_k,
                          .sinks = vector_of(d, o->sinks),
                          .kv = view_of(d, p, o->layer),
                          .meta = d->meta};
    a.kv.v_dim = o->v_dim;
    if (!attn_on_tensors(d, o, &a.kv))
        return gpu_launch(d->g, K_ATTN_ANY, gpu_grid(d->meta.rows, o->heads, 1, 128, o->k_dim * 4), &a, e);
    uint32_t r = ratio_index(d, o->heads / o->kv_heads);
    if (d->tiles[r] && attn_prefill(d, a, r, e))
        return -1;
    return d->any_decode ? attn_decode(d, p, i, &a, e) : 0;
}

static int op_out(struct cuda_device *d, const struct op_out *o, struct err *e)
{
    uint32_t m = d->meta.rows;
    enum path path = product_path(d, m);
    struct input in = {
        buffer_at(d, o->in), buffer_ld(d, o->in), m, mat_of(d, o->linear.weight)->k, &o->norm, NULL, false};
    bool packed = d->packed.buffer && d->packed.buffer == o->in.buffer && d->packed.col == o->in.col;
    d->in.x = NULL;
    product_expect(d, m, &o->linear.weight, 1);
    if (packed && path == PATH_PACK) /* without a norm */
        d->lora_in = (struct lora_in){.x = in.x, .ldx = in.ldx};
    else if (product_input(d, path, &in, e))
        return -1;
    return product_last(d, path, &o->linear, &o->tail, m, e);
}

/* norm, gate and up, activation: the input of the down product is then in place. */
static int ffn_up(struct cuda_device *d, enum path path, const struct input *in, const struct linear *gate,
                  const struct linear *up, const struct linear *down, enum act_kind act, struct err *e)
{
    const weight_id both[2] = {gate->weight, up->weight};
    uint32_t f = mat_of(d, up->weight)->n, n = gate->weight ? 2 * f : f, m = in->m;
    bool half = path == PATH_HALF;
    struct product two[2] = {{up->weight, half ? 0 : up->bias, up->adapter, d->y + (n - f), n}};
    if (gate->weight) {
        two[1] = two[0];
        two[0] = (struct product){gate->weight, half ? 0 : gate->bias, gate->adapter, d->y, n};
    }
    product_expect(d, m, both, 2);
    if (product_input(d, path, in, e))
        return -1;
    if (gate->weight && product_pairs(d, path, two)) {
        const struct after pair = {.scale = 1.0f, .paired = true, .act = act};
        struct input h = {d->y, f, m, f, NULL, NULL, false};
        two[0].ldy = f;
        if (product_run(d, path, two, 2, m, &pair, e))
            return -1;
        product_expect(d, m, &down->weight, 1);
        return product_unnormed(d, &h, e);
    }
    if (product_run(d, path, two, gate->weight ? 2 : 1, m, &product_plain, e))
        return -1;
    product_expect(d, m, &down->weight, 1);
    struct act_args a = {.gate = gate->weight ? d->y : NULL,
                         .up = d->y + (n - f),
                         .ld = n,
                         .row_scale = half ? d->half_scale : NULL,
                         .m = m,
                         .k = f,
                         .act = act,
                         .gate_bias = half ? vector_of(d, gate->bias) : NULL,
                         .up_bias = half ? vector_of(d, up->bias) : NULL};
    return product_act(d, path, &a, false, e);
}

static int op_ffn(struct cuda_device *d, const struct op_ffn *o, struct err *e)
{
    uint32_t m = d->meta.rows;
    enum path path = product_path(d, m);
    struct input in = {
        buffer_at(d, o->in), buffer_ld(d, o->in), m, mat_of(d, o->up.weight)->k, &o->norm, NULL, false};
    return ffn_up(d, path, &in, &o->gate, &o->up, &o->down, o->act, e) ||
                   product_last(d, path, &o->down, &o->tail, m, e)
               ? -1
               : 0;
}

static int run_experts_packed(struct cuda_device *d, const struct linear *l, float *y, uint64_t ldy,
                              uint32_t groups, struct err *e)
{
    const struct mat *w = mat_of(d, l->weight);
    struct gemm_args a = {
        .segs = 1, .k = w->k, .m = 8, .groups = 1, .scale = 1.0f, .x = d->pack, .expert = d->group_expert};
    a.strips = (w->n + TILE_ROWS - 1) / TILE_ROWS;
    struct gpu_gemm how = gpu_gemm_choose(d->g, w->fmt, 8, a.strips * (groups < 8 ? groups : 8), w->k, false);
    a.split = how.split;
    a.seg[0] = (struct gemm_seg){.w = *w, .y = y, .ldy = ldy, .bias = vector_of(d, l->bias)};
    how.grid.x = gpu_blocks(a.strips, how.grid.threads / 32 / a.split);
    how.grid.y = groups;
    return gpu_launch(d->g, how.kernel, how.grid, &a, e);
}

/* Products of grouped rows with the experts they belong to. x is packed, or float rows in d->x. */
static int run_experts(struct cuda_device *d, const struct linear *l, float *y, uint64_t ldy, uint32_t groups,
                       struct err *e)
{
    const struct lora_job job = {.slot = l->adapter, .m = groups * 8, .y = y, .ldy = ldy, .scale = 1.0f};
    struct float_args a = {.w = *mat_of(d, l->weight),
                           .x = d->x,
                           .ldx = mat_of(d, l->weight)->k,
                           .y = y,
                           .ldy = ldy,
                           .bias = vector_of(d, l->bias),
                           .m = groups * 8,
                           .scale = 1.0f,
                           .expert = d->group_expert};
    if (d->options.exact)
        return product_float(d, &a, l->adapter, e);
    if ((d->lora && lora_down(d, &job, e)) || run_experts_packed(d, l, y, ldy, groups, e))
        return -1;
    return d->lora ? lora_up(d, &job, e) : 0;
}

/* Router and grouping of m rows whose normed form is in z; the number of groups of eight pairs. */
static uint32_t moe_route(struct cuda_device *d, const struct op_moe *o, uint32_t m, uint32_t width,
                          struct err *e)
{
    uint32_t pairs = m * o->used, groups = pairs / 8 + (pairs < o->experts ? pairs : o->experts);
    struct float_args r = {.w = *mat_of(d, o->router.weight),
                           .x = d->z,
                           .ldx = width,
                           .y = d->router,
                           .ldy = o->experts,
                           .bias = vector_of(d, o->router.bias),
                           .m = m,
                           .scale = 1.0f};
    struct route_args c = {.logits = d->router,
                           .select_bias = vector_of(d, o->select_bias),
                           .m = m,
                           .experts = o->experts,
                           .used = o->used,
                           .gating = o->gating,
                           .groups = o->groups,
                           .groups_used = o->groups_used,
                           .normalise = o->normalise,
                           .weight_scale = o->weight_scale,
                           .expert = d->route_expert,
                           .weight = d->route_weight};
    struct group_args s = {.expert = d->route_expert,
                           .m = m,
                           .used = o->used,
                           .experts = o->experts,
                           .most_groups = groups,
                           .slot = d->slot,
                           .slot_row = d->slot_row,
                           .group_expert = d->group_expert};
    if (product_float(d, &r, o->router.adapter, e) ||
        gpu_launch(d->g, K_ROUTE, gpu_grid(m, 1, 1, 32, 0), &c, e) ||
        gpu_launch(d->g, K_GROUP, gpu_grid(1, 1, 1, 1024, 0), &s, e))
        return 0;
    return groups;
}

/* The shared expert of m rows (normed, in z) into d->shared. */
static int moe_shared(struct cuda_device *d, const struct op_moe *o, uint32_t m, uint32_t width,
                      struct err *e)
{
    enum path path = d->options.exact ? PATH_FLOAT : PATH_PACK;
    struct input in = {d->z, width, m, width, NULL, NULL, false};
    const enum act_kind act = o->act == ACT_SWIGLU_OAI ? ACT_SILU : o->act;
    if (ffn_up(d, path, &in, &o->shared_gate, &o->shared_up, &o->shared_down, act, e))
        return -1;
    struct product down = {o->shared_down.weight, o->shared_down.bias, o->shared_down.adapter, d->shared,
                           mat_of(d, o->shared_down.weight)->n};
    if (product_run(d, path, &down, 1, m, &product_plain, e))
        return -1;
    if (!o->shared_router)
        return 0;
    struct float_args r = {.w = *mat_of(d, o->shared_router),
                           .x = d->z,
                           .ldx = width,
                           .y = d->shared_gate,
                           .ldy = 1,
                           .m = m,
                           .scale = 1.0f};
    return product_float(d, &r, o->shared_router_adapter, e);
}

/* Rows [first, first + m) of an expert layer: y = sum of the experts, into d->y's second part, then the tail. */
static int moe_rows(struct cuda_device *d, const struct op_moe *o, uint32_t first, uint32_t m, struct err *e)
{
    uint32_t width = mat_of(d, o->up.weight)->k, f = mat_of(d, o->up.weight)->n,
             n = mat_of(d, o->down.weight)->n;
    struct pack_args norm = {.x = buffer_at(d, o->in) + first * buffer_ld(d, o->in),
                             .ldx = buffer_ld(d, o->in),
                             .m = m,
                             .k = width,
                             .norm = product_norm(d, &o->norm),
                             .out = {.rows = d->z, .ldr = width}};
    if (product_rows(d, &norm, e))
        return -1;
    if (o->shared_up.weight && moe_shared(d, o, m, width, e))
        return -1;
    uint32_t groups = moe_route(d, o, m, width, e), slots = groups * 8;
    if (!groups)
        return -1;
    enum path path = d->options.exact ? PATH_FLOAT : PATH_PACK;
    struct input in = {d->z, width, slots, width, NULL, d->slot_row, true};
    bool gated = o->gate.weight != 0;
    d->order = PACK_LANES;
    if (product_input(d, path, &in, e) || (gated && run_experts(d, &o->gate, d->y, 2 * f, groups, e)) ||
        run_experts(d, &o->up, d->y + f, 2 * f, groups, e))
        return -1;
    struct act_args act = {.gate = gated ? d->y : NULL,
                           .up = d->y + f,
                           .ld = 2 * (uint64_t)f,
                           .m = slots,
                           .k = f,
                           .act = o->act,
                           .alpha = o->alpha,
                           .limit = o->limit};
    if (product_act(d, path, &act, true, e) || run_experts(d, &o->down, d->y, n, groups, e))
        return -1;
    struct combine_args c = {.y = d->y,
                             .ldy = n,
                             .slot = d->slot,
                             .weight = d->route_weight,
                             .shared = o->shared_up.weight ? d->shared : NULL,
                             .shared_gate = o->shared_router ? d->shared_gate : NULL,
                             .out = d->z,
                             .ldo = n,
                             .m = m,
                             .n = n,
                             .used = o->used};
    if (gpu_launch(d->g, K_COMBINE, gpu_grid(gpu_blocks(n, 256), m, 1, 256, 0), &c, e))
        return -1;
    struct tail_args t = {.y = d->z,
                          .ldy = n,
                          .m = m,
                          .n = n,
                          .post = product_norm(d, &o->tail.post),
                          .after = product_norm(d, &o->tail.after),
                          .scale = o->tail.scale,
                          .residual = o->tail.residual.buffer ? buffer_at(d, o->tail.residual) +
                                                                    first * buffer_ld(d, o->tail.residual)
                                                              : NULL,
                          .ldr = buffer_ld(d, o->tail.residual),
                          .out = buffer_at(d, o->tail.out) + first * buffer_ld(d, o->tail.out),
                          .ldo = buffer_ld(d, o->tail.out)};
    return gpu_launch(d->g, K_TAIL, gpu_grid(m, 1, 1, 256, 0), &t, e);
}

static int op_moe(struct cuda_device *d, const struct op_moe *o, struct err *e)
{
    int bad = 0;
    for (uint32_t first = 0; first < d->meta.rows && !bad; first += MOE_ROWS) {
        uint32_t left = d->meta.rows - first;
        d->row_first = first;
        bad = moe_rows(d, o, first, left < MOE_ROWS ? left : MOE_ROWS, e);
    }
    d->row_first = 0;
    return bad;
}

static int op_logits(struct cuda_device *d, const struct plan *p, const struct op_logits *o, struct err *e)
{
    uint32_t m = d->meta.outs, width = d->width[o->in.buffer] - o->in.col;
    if (!m)
        return 0;
    if (!o->head.weight) {
        width = p->out_width;
        struct pack_args a = {.x = buffer_at(d, o->in),
                              .ldx = buffer_ld(d, o->in),
                              .m = m,
                              .k = width,
                              .norm = product_norm(d, &o->norm),
                              .out = {.rows = d->logits, .ldr = width},
                              .slot_row = d->meta.out};
        return product_rows(d, &a, e);
    }
    const struct mat *w = mat_of(d, o->head.weight);
    enum path path = product_path(d, m);
    struct input in = {buffer_at(d, o->in), buffer_ld(d, o->in), m, w->k, &o->norm, d->meta.out, false};
    /* Where nothing follows, the product writes to the host's memory itself: the transfer hides behind it. */
    d->direct = path == PATH_PACK && o->scale == 1.0f && o->softcap <= 0.0f && !d->picks &&
                !(d->lora && o->head.adapter);
    struct product head = {o->head.weight, path == PATH_HALF ? 0 : o->head.bias, o->head.adapter,
                           d->direct ? d->results : d->logits, w->n};
    product_expect(d, m, &o->head.weight, 1);
    if (product_input(d, path, &in, e) || product_finished(d, path, &head, 1, m, e))
        return -1;
    bool bias = path == PATH_HALF && o->head.bias;
    if (!bias && o->scale == 1.0f && o->softcap <= 0.0f)
        return 0;
    struct finish_args a = {.y = d->logits,
                            .ldy = w->n,
                            .bias = bias ? vector_of(d, o->head.bias) : NULL,
                            .n = w->n,
                            .m = m,
                            .scale = o->scale,
                            .softcap = o->softcap};
    return gpu_launch(d->g, K_FINISH, gpu_grid(gpu_blocks(w->n, 256), m, 1, 256, 0), &a, e);
}

int step_op(struct cuda_device *d, const struct plan *p, uint32_t i, struct err *e)
{
    const struct op *o = &p->ops[i];
    switch (o->kind) {
    case OP_EMBED:
        return op_embed(d, &o->embed, e);
    case OP_QKV:
        return op_qkv(d, p, &o->qkv, e);
    case OP_LATENT:
        return op_latent(d, p, &o->latent, e);
    case OP_ATTN:
        return op_attn(d, p, i, e);
    case OP_HEADS:
        return op_heads(d, &o->heads, e);
    case OP_OUT: {
        int bad = op_out(d, &o->out, e);
        d->packed = (struct operand){0, 0};
        return bad;
    }
    case OP_FFN:
        return op_ffn(d, &o->ffn, e);
    case OP_MOE:
        return op_moe(d, &o->moe, e);
    case OP_LOGITS:
        return op_logits(d, p, &o->logits, e);
    }
    return err_set(e, ERR_DATA, "operation %u of the plan is of no known kind", i);
}
