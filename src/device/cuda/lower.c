#include "device/cuda/build.h"

#include "device/cuda/passes.h"

#include <string.h>

static struct kv_view view_of(const struct lowering *b, uint32_t layer)
{
    const struct kv_place place = b->l->plan->kv[layer];
    const struct group_kv *g = &b->l->kv[place.group];
    return (struct kv_view){.base = (uint8_t *)(g->base + place.index * g->layer_bytes),
                            .page_bytes = g->page_bytes,
                            .type = g->type,
                            .tokens = b->l->page_tokens,
                            .token_bits = (uint32_t)__builtin_ctz(b->l->page_tokens),
                            .heads = g->shape.kv_heads,
                            .k_dim = g->shape.k_dim,
                            .v_dim = g->shape.v_dim,
                            .k_row = g->k_row,
                            .v_row = g->v_row};
}

static void lower_embed(struct lowering *b, const struct op_embed *o)
{
    struct launch *l = lowering_add(b, K_EMBED, ARGS_EMBED, gpu_grid(0, 1, 1, 256, 0), "rows of the table");
    lowering_grid_rows(l, GRID_X, 1);
    struct embed_args a = {.given = buffer_at(b, o->given),
                           .ldg = buffer_ld(b, o->given),
                           .width = o->width,
                           .position_offset = o->position_offset,
                           .scale = o->scale,
                           .norm = norm_of(b, &o->norm),
                           .out = buffer_at(b, o->out),
                           .ldo = buffer_ld(b, o->out),
                           .type_bit = STEP_TYPE};
    if (o->table) {
        a.table = *mat_of(b, o->table);
        a.width = a.table.k;
    }
    if (o->positions)
        a.positions = *mat_of(b, o->positions);
    if (o->types)
        a.types = *mat_of(b, o->types);
    if (b->c->lora && o->adapter)
        a.lora = b->l->at->lora_table + (size_t)o->adapter * (b->l->plan->adapters + 1);
    l->a.embed = a;
    l->reads[0] = buffer_span(o->given);
    l->writes[0] = buffer_span(o->out);
}

static struct query_args query_of(const struct query_scale *q)
{
    return (struct query_args){.beta = q->beta, .length = q->length, .offset = q->offset};
}

/* Columns of those of Q, K and V that there are. */
static uint32_t qkv_width(const struct op_qkv *o)
{
    return o->heads * o->k_dim + (o->k.weight ? o->kv_heads * o->k_dim : 0) +
           (o->v.weight ? o->kv_heads * o->v_dim : 0);
}

/* Q, K and V side by side into y; returns the scales of rows that the results still need. */
static const float *lower_qkv_products(struct lowering *b, const struct op_qkv *o)
{
    const struct scratch *at = b->l->at;
    const uint32_t q_n = o->heads * o->k_dim, k_n = o->kv_heads * o->k_dim, n = qkv_width(o);
    const struct span y = span_of(PLACE_Y);
    const struct input in = {.x = buffer_at(b, o->in),
                             .ldx = buffer_ld(b, o->in),
                             .from = buffer_span(o->in),
                             .k = mat_of(b, o->q.weight)->k,
                             .norm = &o->norm};
    const weight_id all[3] = {o->q.weight, o->k.weight, o->v.weight};
    struct product_set s = {.path = path_of(b, all, 3),
                            .p = {{o->q.weight, 0, o->q.adapter, at->y, n, y},
                                  {o->k.weight, 0, o->k.adapter, at->y + q_n, n, y},
                                  {o->v.weight, 0, o->v.adapter, at->y + q_n + k_n, n, y}},
                            .n = !o->k.weight   ? 1
                                 : !o->v.weight ? 2
                                                : 3,
                            .after = after_plain};
    s.order = order_of(b, s.p, s.n);
    const struct lora_rows lora = lower_input(b, &s, &in);
    lower_products(b, &s, &lora);
    return s.path == PATH_HALF ? scales_of(b) : NULL;
}

static void lower_qkv(struct lowering *b, const struct op_qkv *o)
{
    const struct scratch *at = b->l->at;
    const bool given = o->given.buffer;
    const struct span y = given ? buffer_span(o->given) : span_of(PLACE_Y);
    const float *row_scale = given ? NULL : lower_qkv_products(b, o);
    const uint32_t stored = o->k.weight ? o->kv_heads : 0;
    const uint32_t group = b->l->plan->kv[o->layer].group;
    const bool pages = group != UINT32_MAX; /* of queries alone they may be on another device */
    const struct kv_view kv =
        pages ? view_of(b, o->layer)
              : (struct kv_view){.heads = o->kv_heads, .k_dim = o->k_dim, .v_dim = o->v_dim};
    const uint32_t widest = o->k_dim > o->v_dim ? o->k_dim : o->v_dim;
    struct launch *l = lowering_add(b, K_QKV, ARGS_QKV,
                                    gpu_grid(gpu_blocks(o->heads + 2 * stored, 4), 0, 1, 128, 4 * widest * 4),
                                    "bias, norm and rotation of heads, K and V into the pages");
    lowering_grid_rows(l, GRID_Y, 1);
    l->group = pages ? (uint8_t)group : 0;
    l->a.qkv = (struct qkv_args){.y = given ? buffer_at(b, o->given) : at->y,
                                 .ldy = given ? buffer_ld(b, o->given) : qkv_width(o),
                                 .row_scale = row_scale,
                                 .q_bias = given ? NULL : vector_of(b, o->q.bias),
                                 .k_bias = given ? NULL : vector_of(b, o->k.bias),
                                 .v_bias = given ? NULL : vector_of(b, o->v.bias),
                                 .clamp = o->clamp,
                                 .heads = o->heads,
                                 .q_norm = norm_of(b, &o->q_norm),
                                 .k_norm = norm_of(b, &o->k_norm),
                                 .v_norm = norm_of(b, &o->v_norm),
                                 .norm_last = o->norm_last,
                                 .clamp_last = o->clamp_last,
                                 .k_heads = stored,
                                 .v_is_k = !o->v.weight,
                                 .q_scale = query_of(&o->q_scale),
                                 .rope = o->rope.kind,
                                 .rope_dims = o->rope.dims,
                                 .rope_first = o->rope.first,
                                 .rope_factor = o->rope.factor,
                                 .rope_axes = o->rope.axes,
                                 .freqs = vector_of(b, o->rope.freqs),
                                 .out = buffer_at(b, o->out),
                                 .ldo = buffer_ld(b, o->out),
                                 .kv = kv};
    l->reads[0] = y;
    l->writes[0] = buffer_span(o->out);
}

/* q and c of latent attention: the products. */
static void latent_products(struct lowering *b, const struct op_latent *o, float *c, float *q)
{
    const struct scratch *at = b->l->at;
    const uint32_t width = o->latent + o->rope.dims, q_n = o->heads * (o->nope + o->rope.dims),
                   a_n = o->q_a.weight ? mat_of(b, o->q_a.weight)->n : 0;
    float *low = at->z + (uint64_t)at->max_rows * width;
    const struct span y = span_of(PLACE_Y), z = span_of(PLACE_Z);
    const struct input in = {.x = buffer_at(b, o->in),
                             .ldx = buffer_ld(b, o->in),
                             .from = buffer_span(o->in),
                             .k = mat_of(b, o->kv_a.weight)->k,
                             .norm = &o->norm};
    const struct product q_b = {o->q_b.weight, o->q_b.bias, o->q_b.adapter, q, q_n, y};
    const weight_id all[3] = {o->kv_a.weight, o->q_a.weight, o->q_b.weight};
    struct product_set s = {.path = path_of(b, all, 3),
                            .p = {{o->kv_a.weight, o->kv_a.bias, o->kv_a.adapter, c, width, z}, q_b},
                            .n = 2,
                            .after = after_plain};
    if (a_n)
        s.p[1] = (struct product){o->q_a.weight, o->q_a.bias, o->q_a.adapter, low, a_n, z};
    s.order = order_of(b, s.p, s.n);
    struct lora_rows lora = lower_input(b, &s, &in);
    lower_finished(b, &s, &lora);
    if (!a_n)
        return;
    const struct input second = {.x = low, .ldx = a_n, .from = z, .k = a_n, .norm = &o->q_norm};
    s.p[0] = q_b;
    s.n = 1;
    s.order = order_of(b, s.p, s.n);
    lora = lower_input(b, &s, &second);
    lower_finished(b, &s, &lora);
}

static void lower_latent(struct lowering *b, const struct op_latent *o)
{
    const uint32_t width = o->latent + o->rope.dims, q_n = o->heads * (o->nope + o->rope.dims);
    float *c = b->l->at->z, *q = b->l->at->y;
    latent_products(b, o, c, q);
    struct launch *l = lowering_add(b, K_LATENT, ARGS_LATENT,
                                    gpu_grid(gpu_blocks(o->heads + 1, 4), 0, 1, 128, 4 * width * 4),
                                    "norm and rotation, the latent into the pages");
    lowering_grid_rows(l, GRID_Y, 1);
    l->group = (uint8_t)b->l->plan->kv[o->layer].group;
    l->a.latent = (struct latent_args){.q = q,
                                       .ldq = q_n,
                                       .c = c,
                                       .ldc = width,
                                       .norm = norm_of(b, &o->kv_norm),
                                       .heads = o->heads,
                                       .nope = o->nope,
                                       .latent = o->latent,
                                       .rope = o->rope.kind,
                                       .rope_dims = o->rope.dims,
                                       .rope_factor = o->rope.factor,
                                       .q_scale = query_of(&o->q_scale),
                                       .freqs = vector_of(b, o->rope.freqs),
                                       .out = buffer_at(b, o->out),
                                       .ldo = buffer_ld(b, o->out),
                                       .kv = view_of(b, o->layer)};
    l->reads[0] = span_of(PLACE_Y);
    l->reads[1] = span_of(PLACE_Z);
    l->writes[0] = buffer_span(o->out);
    /* per head: y[h] = W[h] x[h] */
    const struct float_args each = {.w = *mat_of(b, o->k_b),
                                    .x = q,
                                    .ldx = q_n,
                                    .y = buffer_at(b, o->out),
                                    .ldy = buffer_ld(b, o->out),
                                    .scale = 1.0f,
                                    .heads = o->heads,
                                    .x_step = o->nope + o->rope.dims,
                                    .y_step = width};
    const struct lora_rows in = {.x = q, .ldx = q_n, .from = span_of(PLACE_Y)};
    lower_float(b, &each, o->k_b_adapter, &in, buffer_span(o->out), "a product per head, absorbed into q");
}

static void lower_heads(struct lowering *b, const struct op_heads *o)
{
    const struct mat *w = mat_of(b, o->weight);
    const struct float_args a = {.w = *w,
                                 .x = buffer_at(b, o->in),
                                 .ldx = buffer_ld(b, o->in),
                                 .y = buffer_at(b, o->out),
                                 .ldy = buffer_ld(b, o->out),
                                 .scale = 1.0f,
                                 .heads = w->count,
                                 .x_step = w->k,
                                 .y_step = w->n};
    const struct lora_rows in = {.x = a.x, .ldx = a.ldx, .from = buffer_span(o->in)};
    lower_float(b, &a, o->adapter, &in, buffer_span(o->out), "a product per head");
}

/* ---- attention ---- */

static uint32_t ratio_index(const struct lower *l, uint32_t ratio)
{
    uint32_t i = 0;
    while (i < l->ratios && l->ratio[i] != ratio)
        i++;
    return i;
}

static bool attn_on_tensors(const struct lower *l, const struct op_attn *o, const struct kv_view *kv)
{
    const uint32_t ratio = o->heads / o->kv_heads;
    return l->path != PATH_FLOAT && kv->type == KV_F16 && !o->v_in_k && !o->distance && !o->chunked &&
           o->k_dim == o->v_dim && gpu_head_index(o->k_dim) >= 0 && ratio <= DECODE_QUERIES &&
           ratio_index(l, ratio) < l->ratios &&
           gpu_prefill_choose(l->card, o->k_dim, 1, 1, l->options.no_wide).shared <=
               (uint32_t)l->card->shared_block;
}

/* A launch of attention: reads q and KV, writes rows. */
static struct launch *put_attn(struct lowering *b, const struct op_attn *o, uint32_t kernel,
                               const struct attn_args *a, struct gpu_grid grid, const char *why)
{
    struct launch *l = lowering_add(b, kernel, ARGS_ATTN, grid, why);
    l->group = (uint8_t)b->l->plan->kv[o->layer].group;
    l->a.attn = *a;
    l->reads[0] = buffer_span(o->in);
    l->reads[1] = span_of(PLACE_KV);
    l->writes[0] = buffer_span(o->out);
    return l;
}

/* The sequences with few queries. */
static void attn_decode(struct lowering *b, const struct op_attn *o, struct attn_args a)
{
    const struct step_class *c = b->c;
    const struct lower *low = b->l;
    const uint32_t span = a.window && a.window + a.ahead + 32 < c->keys ? a.window + a.ahead + 32 : c->keys,
                   ratio = o->heads / o->kv_heads;
    /* one row a sequence and up to eight heads a group: half of a tile's rows are enough */
    const bool few = c->single && ratio <= DECODE_QUERIES / 2;
    a.part_queries = few ? DECODE_QUERIES / 2 : DECODE_QUERIES;
    const bool heads = few && b->op && low->plan->ops[b->op - 1].kind == OP_QKV && !low->options.no_fuse &&
                       gpu_finishes_heads(low->card, (uint64_t)a.kv.heads * c->seqs);
    struct gpu_decode how = gpu_decode_choose(low->card, a.part_queries, o->v_dim, a.kv.heads * c->seqs, span,
                                              heads, low->options.stages);
    if ((uint64_t)how.splits * a.kv.heads * c->seqs * a.part_queries * o->v_dim > low->at->part_floats)
        how.splits = 1;
    a.stages = how.stages;
    a.splits = how.splits;
    a.part = low->at->part;
    a.part_ml = low->at->part_ml;
    const uint32_t kernel = !few ? K_ATTN_DECODE : how.stages == 1 ? K_ATTN_FEW : K_ATTN_FAR;
    struct launch *l = put_attn(b, o, kernel + (uint32_t)gpu_head_index(o->k_dim), &a,
                                gpu_grid(a.splits, a.kv.heads, c->seqs, 128, how.shared),
                                a.splits > 1 ? "few queries: blocks share a sequence's keys"
                                             : "few queries, few keys: a block has all");
    if (a.splits == 1)
        return;
    l->writes[0] = span_of(PLACE_PARTS);
    l = put_attn(b, o, K_ATTN_COMBINE, &a,
                 gpu_grid(gpu_blocks((uint64_t)a.heads * a.kv.v_dim, 256), 0, 1, 256, 0),
                 "joins the parts of blocks that shared keys");
    lowering_grid_rows(l, GRID_Y, 1);
    l->reads[0] = span_of(PLACE_PARTS);
    l->reads[1] = span_of(PLACE_NONE);
}

/* The sequences with many queries; r: which list of tiles. How many blocks share keys depends on the number of tiles,
 * which launch_bind knows. */
static void attn_prefill(struct lowering *b, const struct op_attn *o, struct attn_args a, uint32_t r)
{
    const uint32_t dim = a.kv.k_dim;
    const struct gpu_prefill how = gpu_prefill_choose(b->l->card, dim, 1, 1, b->l->options.no_wide);
    a.part = b->l->at->part;
    a.part_ml = b->l->at->part_ml;
    struct launch *l =
        put_attn(b, o, how.kernel, &a, gpu_grid(0, a.kv.heads, 1, 128, how.shared),
                 how.kernel >= K_ATTN_WIDE && how.kernel < K_ATTN_JOIN ? "tiles of 64 queries by wgmma"
                                                                       : "tiles of 64 queries");
    l->ratio = (uint8_t)(r + 1);
    l = put_attn(b, o, K_ATTN_JOIN, &a, gpu_grid(0, a.kv.heads, dim / 16, 4 * TILE_QUERIES, 0),
                 "joins the parts of blocks that share keys, if they do");
    l->ratio = (uint8_t)(r + 1);
    l->reads[0] = span_of(PLACE_PARTS);
    l->reads[1] = span_of(PLACE_NONE);
}

static void lower_attn(struct lowering *b, const struct op_attn *o)
{
    struct attn_args a = {.q = buffer_at(b, o->in),
                          .ldq = buffer_ld(b, o->in),
                          .out = buffer_at(b, o->out),
                          .ldo = buffer_ld(b, o->out),
                          .heads = o->heads,
                          .scale = o->scale,
                          .softcap = o->softcap,
                          .window = o->causal || !o->window ? o->window : o->window / 2 + 1,
                          .ahead = o->causal   ? 0
                                   : o->window ? o->window / 2
                                               : ATTN_AHEAD_ALL,
                          .chunked = o->chunked,
                          .v_in_k = o->v_in_k,
                          .span = b->c->spans ? o->span : SPAN_NONE,
                          .sinks = vector_of(b, o->sinks),
                          .distance = vector_of(b, o->distance),
                          .distance_cols = o->distance ? mat_of(b, o->distance)->k : 0,
                          .kv = view_of(b, o->layer)};
    a.kv.v_dim = o->v_dim;
    if (a.span || !attn_on_tensors(b->l, o, &a.kv)) {
        struct launch *l = put_attn(b, o, K_ATTN_ANY, &a, gpu_grid(0, o->heads, 1, 128, o->k_dim * 4),
                                    "no tensor-core kernel for this KV, head, span, bias or arithmetic");
        lowering_grid_rows(l, GRID_X, 1);
        return;
    }
    const uint32_t r = ratio_index(b->l, o->heads / o->kv_heads);
    if (b->c->tiles & 1u << r)
        attn_prefill(b, o, a, r);
    if (b->c->decode)
        attn_decode(b, o, a);
}

/* ---- the rest ---- */

static void lower_out(struct lowering *b, const struct op_out *o)
{
    const uint32_t k = mat_of(b, o->linear.weight)->k;
    struct input in = {.x = buffer_at(b, o->in),
                       .ldx = buffer_ld(b, o->in),
                       .from = buffer_span(o->in),
                       .k = k,
                       .norm = &o->norm};
    if (lower_is_gated(o))
        in = lower_gated(b, o, k);
    const struct product_set s =
        lower_last(b, path_of(b, &o->linear.weight, 1), &o->linear, &o->tail, b->l->at->y);
    const struct lora_rows lora = lower_input(b, &s, &in);
    lower_products(b, &s, &lora);
    lower_tail(b, &s, &o->linear, &o->tail);
}

static void put_finish(struct lowering *b, const struct op_logits *o, const float *bias, uint32_t n)
{
    if (!bias && o->scale == 1.0f && o->softcap <= 0.0f)
        return;
    struct launch *l = lowering_add(b, K_FINISH, ARGS_FINISH, gpu_grid(gpu_blocks(n, 256), 0, 1, 256, 0),
                                    "scale, cap or bias of logits");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.finish = (struct finish_args){
        .y = b->l->at->logits, .ldy = n, .bias = bias, .n = n, .scale = o->scale, .softcap = o->softcap};
    l->reads[0] = l->writes[0] = span_of(PLACE_LOGITS);
}

/* Final norm alone: an encoder's rows are the results. */
static void lower_rows_out(struct lowering *b, const struct op_logits *o)
{
    const uint32_t width = b->l->plan->out_width;
    const struct pack_args a = {.x = buffer_at(b, o->in),
                                .ldx = buffer_ld(b, o->in),
                                .k = width,
                                .norm = norm_of(b, &o->norm),
                                .out = {.rows = b->l->at->logits, .ldr = width}};
    lower_rows(b, &a, buffer_span(o->in), span_of(PLACE_LOGITS), "final norm of the rows that want results");
    put_finish(b, o, NULL, width);
}

static void lower_head(struct lowering *b, const struct op_logits *o)
{
    const struct scratch *at = b->l->at;
    const struct mat *w = mat_of(b, o->head.weight);
    const struct span to = span_of(PLACE_LOGITS);
    const struct input in = {.x = buffer_at(b, o->in),
                             .ldx = buffer_ld(b, o->in),
                             .from = buffer_span(o->in),
                             .k = w->k,
                             .norm = &o->norm,
                             .results = true};
    struct product_set s = {.path = path_of(b, &o->head.weight, 1), .n = 1, .after = after_plain};
    const bool bias = s.path == PATH_HALF && o->head.bias;
    s.p[0] = (struct product){o->head.weight, bias ? 0 : o->head.bias, o->head.adapter, at->logits, w->n, to};
    s.order = order_of(b, s.p, 1);
    const struct lora_rows lora = lower_input(b, &s, &in);
    lower_finished(b, &s, &lora);
    put_finish(b, o, bias ? vector_of(b, o->head.bias) : NULL, w->n);
}

/* What leaves the card: tokens that it chooses, and the numbers of rows that want them. */
static void lower_results(struct lowering *b)
{
    const struct scratch *at = b->l->at;
    if (b->c->picks) {
        struct launch *l = lowering_add(b, K_PICK_ROWS, ARGS_PICK, gpu_grid(PICK_BLOCKS, 0, 1, 1024, 0),
                                        "the card chooses tokens");
        lowering_grid_rows(l, GRID_Y, 1);
        l->reads[0] = span_of(PLACE_LOGITS);
        l->writes[0] = span_of(PLACE_HOST);
    }
    if (b->c->picks == 2)
        return;
    struct launch *l =
        lowering_add(b, LAUNCH_RESULTS, ARGS_RESULTS, gpu_grid(0, 0, 0, 0, 0), "results to the host");
    l->a.copy = (struct copy_args){at->results, at->logits, b->l->plan->out_width};
    l->reads[0] = span_of(PLACE_LOGITS);
    l->writes[0] = span_of(PLACE_HOST);
}

static void lower_logits(struct lowering *b, const struct op_logits *o)
{
    if (!b->c->outs)
        return;
    b->m = b->c->outs;
    b->rows.of = ROWS_RESULTS;
    if (o->head.weight)
        lower_head(b, o);
    else
        lower_rows_out(b, o);
    lower_results(b);
}

static void lower_map(struct lowering *b, const struct op_map *op)
{
    struct op_map each = *op;
    const struct op_map *o = &each;
    if (op->norm.heads > 1) { /* slices that are normed each by itself: first, in place */
        lower_normed(b, op);
        each.norm = (struct norm){0};
        each.in = op->out;
    }
    struct launch *l = lowering_add(b, K_MAP, ARGS_MAP, gpu_grid(0, 1, 1, 256, 0), "a row for itself");
    lowering_grid_rows(l, GRID_X, 1);
    l->a.map = (struct map_args){.x = buffer_at(b, o->in),
                                 .ldx = buffer_ld(b, o->in),
                                 .times = vector_of(b, o->times),
                                 .plus = vector_of(b, o->plus),
                                 .like = buffer_at(b, o->like),
                                 .ldl = buffer_ld(b, o->like),
                                 .by = buffer_at(b, o->by),
                                 .ldb = buffer_ld(b, o->by),
                                 .residual = buffer_at(b, o->residual),
                                 .ldr = buffer_ld(b, o->residual),
                                 .norm = norm_of(b, &o->norm),
                                 .factor = o->factor,
                                 .cap = o->cap,
                                 .deviations = o->deviations,
                                 .scale = o->scale,
                                 .least = o->least,
                                 .most = o->most,
                                 .clips = o->clips,
                                 .act = o->act,
                                 .n = o->width,
                                 .out = buffer_at(b, o->out),
                                 .ldo = buffer_ld(b, o->out)};
    l->reads[0] = buffer_span(o->in);
    l->reads[1] = buffer_span(o->residual);
    l->writes[0] = buffer_span(o->out);
}

static void lower_mix(struct lowering *b, const struct op_mix *o)
{
    struct launch *l = lowering_add(b, K_MIX, ARGS_MIX, gpu_grid(gpu_blocks(o->width, 256), 0, 1, 256, 0),
                                    "streams, mixed by coefficients of the row");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.mix = (struct mix_args){.base = buffer_at(b, o->base),
                                 .ldb = buffer_ld(b, o->base),
                                 .in = buffer_at(b, o->in),
                                 .ldi = buffer_ld(b, o->in),
                                 .coef = buffer_at(b, o->coef),
                                 .ldc = buffer_ld(b, o->coef),
                                 .fixed = vector_of(b, o->fixed),
                                 .ldf = o->fixed ? mat_of(b, o->fixed)->stride / sizeof(float) : 0,
                                 .outs = o->outs,
                                 .ins = o->ins,
                                 .n = o->width,
                                 .bias = o->bias,
                                 .out = buffer_at(b, o->out),
                                 .ldo = buffer_ld(b, o->out)};
    l->reads[0] = buffer_span(o->in);
    l->reads[1] = buffer_span(o->coef);
    l->reads[2] = buffer_span(o->base);
    l->writes[0] = buffer_span(o->out);
}

static const char *refuses_moe(const struct op_moe *o)
{
    if ((uint64_t)o->experts + o->identities > EXPERTS_MOST || o->used > MOE_USED_MOST ||
        o->groups > EXPERT_GROUPS_MOST)
        return "no kernel for this many experts";
    if (o->identities && o->expert_scale)
        return "no kernel for scales of identities that passes its test";
    return o->scale_input && (o->gate.adapter || o->up.adapter)
               ? "no kernel for adapters of experts whose input is scaled"
               : NULL;
}

static const char *refuses_scan(const struct op_scan *o)
{
    if (o->q_norm.bias || o->k_norm.bias)
        return "no kernel for biases of the norms of keys";
    if (o->decay_each && o->decay_kind == DECAY_FIXED)
        return "no kernel for fixed decays of keys";
    if ((o->before || o->sharing) && !o->decay_each)
        return "no kernel for shared keys, or states before their row, with one decay";
    return o->size.buffer && o->decay_each ? "no kernel for sizes of heads that decay by keys" : NULL;
}

/* A norm of slices where kernels know only that of a whole row. */
static const char *refuses_slices(const struct norm *const n[4])
{
    for (int i = 0; i < 4; i++)
        if (n[i] && n[i]->kind && n[i]->heads > 1)
            return "no kernel for a norm of slices here";
    return NULL;
}

static const char *refuses_norms(const struct op *o)
{
    switch (o->kind) {
    case OP_EMBED:
        return refuses_slices((const struct norm *const[4]){&o->embed.norm});
    case OP_QKV:
        return refuses_slices((const struct norm *const[4]){&o->qkv.norm});
    case OP_LATENT:
        return refuses_slices(
            (const struct norm *const[4]){&o->latent.norm, &o->latent.q_norm, &o->latent.kv_norm});
    case OP_OUT:
        return refuses_slices((const struct norm *const[4]){&o->out.tail.after});
    case OP_FFN:
        return refuses_slices((const struct norm *const[4]){&o->ffn.norm, &o->ffn.inner, &o->ffn.tail.after});
    case OP_MOE:
        return refuses_slices(
            (const struct norm *const[4]){&o->moe.norm, &o->moe.router_norm, &o->moe.tail.after});
    case OP_PROJ:
        return refuses_slices((const struct norm *const[4]){&o->proj.norm});
    case OP_LOGITS:
        return refuses_slices((const struct norm *const[4]){&o->logits.norm});
    default:
        return NULL;
    }
}

const char *lower_refuses(const struct op *op)
{
    const struct op_qkv *q = &op->qkv;
    const char *norms = refuses_norms(op);
    if (norms)
        return norms;
    switch (op->kind) {
    case OP_LATENT:
        return op->latent.rope.kind && op->latent.rope.axes ? "no kernel for axes of latent attention" : NULL;
    case OP_QKV:
        if (q->clamp > 0 && !q->clamp_last &&
            ((q->q_norm.kind && !q->q_norm.heads) || (q->k_norm.kind && !q->k_norm.heads)))
            return "no kernel for norms of whole rows that are clipped";
        return q->norm_last && ((q->q_norm.kind && !q->q_norm.heads) || (q->k_norm.kind && !q->k_norm.heads))
                   ? "no kernel for norms of whole rows after the rotation"
                   : NULL;
    case OP_PROJ:
        return op->proj.best ? "no kernel for the choice of products" : NULL;
    case OP_INDEX:
        return "no kernel for the choice of keys";
    case OP_SCAN:
        return refuses_scan(&op->scan);
    case OP_MOE:
        return refuses_moe(&op->moe);
    case OP_MIX: /* zaya's, as its experts: its logits were off by 0.02 to 0.04 on an H200, where the kernel left these
                  * coefficients out; it has them again, which no card has shown yet */
        return op->mix.fixed ? "no kernel for fixed coefficients that passes its test" : NULL;
    case OP_ATTN:
        return op->attn.chosen ? "no kernel for chosen keys" : NULL;
    default:
        return NULL;
    }
}

static int lower_op(struct lowering *b, const struct op *o, struct err *e)
{
    b->m = b->c->rows;
    b->rows = (struct launch_rows){.of = ROWS_STEP, .most = UINT32_MAX};
    if (lower_refuses(o))
        return 0;
    switch (o->kind) {
    case OP_EMBED:
        return lower_embed(b, &o->embed), 0;
    case OP_QKV:
        return lower_qkv(b, &o->qkv), 0;
    case OP_LATENT:
        return lower_latent(b, &o->latent), 0;
    case OP_ATTN:
        return lower_attn(b, &o->attn), 0;
    case OP_HEADS:
        return lower_heads(b, &o->heads), 0;
    case OP_OUT:
        return lower_out(b, &o->out), 0;
    case OP_FFN:
        return lower_ffn(b, &o->ffn), 0;
    case OP_MOE:
        return lower_moe(b, &o->moe), 0;
    case OP_LOGITS:
        return lower_logits(b, &o->logits), 0;
    case OP_PROJ:
        return lower_proj(b, &o->proj), 0;
    case OP_CONV:
        return lower_conv(b, &o->conv), 0;
    case OP_SCAN:
        return lower_scan(b, &o->scan), 0;
    case OP_CELL:
        return lower_cell(b, &o->cell), 0;
    case OP_MAP:
        return lower_map(b, &o->map), 0;
    case OP_MIX:
        return lower_mix(b, &o->mix), 0;
    case OP_INDEX:
        break; /* refused */
    }
    return err_set(e, ERR_DATA, "operation %u of the plan has an unknown kind", b->op);
}

/* Operations [from, to) into what is left of the list's room, passes and all. */
static int lower_ops(const struct lower *l, const struct step_class *c, uint32_t from, uint32_t to,
                     struct launch_list *part, struct err *e)
{
    struct lowering b = {.l = l, .c = c, .list = part};
    for (b.op = from; b.op < to; b.op++)
        if (lower_op(&b, &l->plan->ops[b.op], e))
            return -1;
    passes_run(l, c, part);
    return 0;
}

int lower_plan(const struct lower *l, const struct step_class *c, struct launch_list *out, struct err *e)
{
    /* A layer at a time: no pass but the last looks beyond it, and changes to a short list are cheap. */
    const struct op *ops = l->plan->ops;
    out->count = 0;
    for (uint32_t from = c->from, to = from; from < c->to;) {
        while (to < c->to && ops[to].layer == ops[from].layer)
            to++;
        struct launch_list part = {
            .all = out->all + out->count, .room = out->room - out->count, .part = true};
        if (lower_ops(l, c, from, to, &part, e))
            return -1;
        if (part.failed) { /* once more, with more room */
            if (launch_reserve(out, out->room ? 2 * out->room : 64, e))
                return -1;
            to = from;
            continue;
        }
        out->count += part.count;
        from = to;
    }
    if (!l->options.no_fuse)
        pass_sum_rows(out);
    return 0;
}

/* ---- classes of steps ---- */

/* Few rows have a class each; then as many as one kernel serves, in blocks of GEMM_ROWS_MOST. */
static uint32_t class_rows(const struct lower *l, uint32_t m, bool moe)
{
    const uint32_t rest = m % GEMM_ROWS_MOST;
    if (m > PACK_ROWS_MOST && l->half && l->path == PATH_PACK && !moe) /* cuBLASLt takes any number */
        return l->at->max_rows > m ? l->at->max_rows : m;
    return m - rest + (rest <= 16 ? rest : rest <= 32 ? 32 : GEMM_ROWS_MOST);
}

struct step_class lower_class(const struct lower *l, uint32_t rows, uint32_t outs)
{
    bool moe = false;
    for (uint32_t i = 0; i < l->plan->count; i++)
        moe = moe || l->plan->ops[i].kind == OP_MOE;
    struct step_class c;
    memset(&c, 0, sizeof c); /* classes are compared as bytes */
    c.to = l->plan->count;
    c.rows = class_rows(l, rows, moe);
    c.outs = class_rows(l, outs, false);
    return c;
}

void lower_ratios(struct lower *l, const struct plan *p)
{
    l->ratios = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].kind != OP_ATTN)
            continue;
        const uint32_t ratio = p->ops[i].attn.heads / p->ops[i].attn.kv_heads;
        if (ratio_index(l, ratio) == l->ratios && l->ratios < RATIOS_MOST)
            l->ratio[l->ratios++] = ratio;
    }
}

/* The weights of an operation that cuBLASLt multiplies with; how many. */
static uint32_t half_weights(const struct op *o, weight_id w[PROJ_MOST])
{
    switch (o->kind) {
    case OP_QKV:
        w[0] = o->qkv.q.weight, w[1] = o->qkv.k.weight, w[2] = o->qkv.v.weight;
        return 3;
    case OP_LATENT:
        w[0] = o->latent.kv_a.weight, w[1] = o->latent.q_a.weight, w[2] = o->latent.q_b.weight;
        return 3;
    case OP_OUT:
        w[0] = o->out.linear.weight;
        return 1;
    case OP_PROJ:
        for (uint32_t i = 0; i < o->proj.count; i++)
            w[i] = o->proj.linear[i].weight;
        return o->proj.count;
    case OP_FFN:
        w[0] = o->ffn.gate.weight, w[1] = o->ffn.up.weight, w[2] = o->ffn.down.weight;
        return 3;
    case OP_MOE:
        w[0] = o->moe.shared_gate.weight, w[1] = o->moe.shared_up.weight, w[2] = o->moe.shared_down.weight;
        return 3;
    default:
        return 0;
    }
}

void lower_each_half(const struct plan *p, void (*visit)(void *arg, weight_id id), void *arg)
{
    for (uint32_t i = 0; i < p->count; i++) {
        weight_id w[PROJ_MOST];
        const uint32_t n = half_weights(&p->ops[i], w);
        for (uint32_t j = 0; j < n; j++)
            if (w[j])
                visit(arg, w[j]);
    }
}
