/* Expert layers, MOE_ROWS rows at a time: rows are sorted by expert into slots, each expert's padded to eight, so that a
 * group of eight slots multiplies with one matrix. */
#include "device/cuda/build.h"

/* Products of grouped rows with the experts they belong to. x is packed, or float rows. */
static void put_experts(struct lowering *b, const struct linear *l, float *y, uint64_t ldy,
                        const struct lora_rows *in)
{
    const struct mat *w = mat_of(b, l->weight);
    const struct scratch *at = b->l->at;
    const struct lora_job job = {
        .slot = l->adapter, .y = y, .ldy = ldy, .scale = 1.0f, .to = span_of(PLACE_Y)};
    if (b->l->path == PATH_FLOAT) {
        struct lora_rows rows = *in;
        const struct float_args a = {.w = *w,
                                     .x = at->x,
                                     .ldx = w->k,
                                     .y = y,
                                     .ldy = ldy,
                                     .bias = vector_of(b, l->bias),
                                     .scale = 1.0f,
                                     .expert = at->group_expert};
        rows.from = span_of(PLACE_FLOATS);
        lower_float(b, &a, l->adapter, &rows, span_of(PLACE_Y), "exact: float products of experts");
        return;
    }
    lora_down(b, &job, in);
    struct launch *g = lowering_add(b, K_GEMM + 4 * w->fmt, ARGS_GEMM, gpu_grid(0, 0, 1, 0, 0),
                                    "eight rows of an expert a group");
    lowering_grid_rows(g, GRID_Y, 8);
    g->a.gemm = (struct gemm_args){
        .segs = 1, .k = w->k, .groups = 1, .scale = 1.0f, .x = at->pack, .expert = at->group_expert};
    g->a.gemm.seg[0] = (struct gemm_seg){.w = *w, .y = y, .ldy = ldy, .bias = vector_of(b, l->bias)};
    g->reads[0] = span_of(PLACE_PACK);
    g->reads[1] = span_of(PLACE_ROUTE);
    g->writes[0] = span_of(PLACE_Y);
    lora_up(b, &job, in);
}

/* The rows that are computed now, normed, in z. */
static struct lora_rows rows_in_z(const struct lowering *b, uint32_t width)
{
    return (struct lora_rows){.x = b->l->at->z, .ldx = width, .from = span_of(PLACE_Z)};
}

/* Router and grouping. */
static void put_route(struct lowering *b, const struct op_moe *o, uint32_t width)
{
    const struct scratch *at = b->l->at;
    const struct lora_rows in = rows_in_z(b, width);
    const struct float_args r = {.w = *mat_of(b, o->router.weight),
                                 .x = at->z,
                                 .ldx = width,
                                 .y = at->router,
                                 .ldy = o->experts,
                                 .bias = vector_of(b, o->router.bias),
                                 .scale = 1.0f};
    lower_float(b, &r, o->router.adapter, &in, span_of(PLACE_ROUTE), "router, in float");
    struct launch *l =
        lowering_add(b, K_ROUTE, ARGS_ROUTE, gpu_grid(0, 1, 1, 32, 0), "the best experts of each row");
    lowering_grid_rows(l, GRID_X, 1);
    l->a.route = (struct route_args){.logits = at->router,
                                     .select_bias = vector_of(b, o->select_bias),
                                     .experts = o->experts,
                                     .used = o->used,
                                     .gating = o->gating,
                                     .groups = o->groups,
                                     .groups_used = o->groups_used,
                                     .normalise = o->normalise,
                                     .weight_scale = o->weight_scale,
                                     .expert = at->route_expert,
                                     .weight = at->route_weight};
    l->reads[0] = l->writes[0] = span_of(PLACE_ROUTE);
    l = lowering_add(b, K_GROUP, ARGS_GROUP, gpu_grid(1, 1, 1, 1024, 0), "rows sorted by expert");
    l->a.group = (struct group_args){.expert = at->route_expert,
                                     .used = o->used,
                                     .experts = o->experts,
                                     .slot = at->slot,
                                     .slot_row = at->slot_row,
                                     .group_expert = at->group_expert};
    l->reads[0] = l->writes[0] = span_of(PLACE_ROUTE);
}

/* The shared expert, into its own scratch. */
static void put_shared(struct lowering *b, const struct op_moe *o, enum path path, uint32_t width)
{
    const struct scratch *at = b->l->at;
    const struct input in = {.x = at->z, .ldx = width, .from = span_of(PLACE_Z), .k = width};
    const struct lora_rows rows = rows_in_z(b, width);
    const enum act_kind act = o->act == ACT_SWIGLU_OAI ? ACT_SILU : o->act;
    struct product_set down = {.path = path, .n = 1, .after = after_plain};
    down.p[0] = (struct product){o->shared_down.weight,
                                 o->shared_down.bias,
                                 o->shared_down.adapter,
                                 at->shared,
                                 mat_of(b, o->shared_down.weight)->n,
                                 span_of(PLACE_SHARED)};
    down.order = order_of(b, down.p, 1);
    const struct lora_rows lora = lower_up(b, &in, &o->shared_gate, &o->shared_up, act, &down);
    lower_products(b, &down, &lora);
    if (!o->shared_router)
        return;
    const struct float_args r = {.w = *mat_of(b, o->shared_router),
                                 .x = at->z,
                                 .ldx = width,
                                 .y = at->shared_gate,
                                 .ldy = 1,
                                 .scale = 1.0f};
    lower_float(b, &r, o->shared_router_adapter, &rows, span_of(PLACE_SHARED), "weight of the shared expert");
}

/* The experts' products: y is (slots, outputs). */
static void put_chosen(struct lowering *b, const struct op_moe *o, enum path path, uint32_t width)
{
    const struct scratch *at = b->l->at;
    const struct launch_rows rows = b->rows;
    const uint32_t m = b->m, pairs = m * o->used, f = mat_of(b, o->up.weight)->n;
    const bool gated = o->gate.weight != 0;
    struct product_set up = {.path = path, .n = 1}, down = up;
    b->rows.of = ROWS_SLOTS;
    b->rows.used = o->used;
    b->rows.experts = o->experts;
    b->m = (pairs / 8 + (pairs < o->experts ? pairs : o->experts)) * 8;
    const struct input in = {.x = at->z, .ldx = width, .from = span_of(PLACE_Z), .k = width, .grouped = true};
    down.p[0].adapter = o->down.adapter;
    const struct lora_rows lora = lower_input(b, &up, &in);
    if (gated)
        put_experts(b, &o->gate, at->y, 2 * f, &lora);
    put_experts(b, &o->up, at->y + f, 2 * f, &lora);
    const struct act_args act = {.gate = gated ? at->y : NULL,
                                 .up = at->y + f,
                                 .ld = 2 * (uint64_t)f,
                                 .k = f,
                                 .act = o->act,
                                 .alpha = o->alpha,
                                 .limit = o->limit};
    const struct lora_rows h = lower_act(b, act, &down, true);
    put_experts(b, &o->down, at->y, mat_of(b, o->down.weight)->n, &h);
    b->rows = rows;
    b->m = m;
}

/* Their weighted sum, and the tail. */
static void put_sum(struct lowering *b, const struct op_moe *o)
{
    const struct scratch *at = b->l->at;
    const uint32_t n = mat_of(b, o->down.weight)->n, first = b->rows.first;
    struct launch *l = lowering_add(b, K_COMBINE, ARGS_COMBINE, gpu_grid(gpu_blocks(n, 256), 0, 1, 256, 0),
                                    "weighted sum of the experts");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.combine = (struct combine_args){.y = at->y,
                                         .ldy = n,
                                         .slot = at->slot,
                                         .weight = at->route_weight,
                                         .shared = o->shared_up.weight ? at->shared : NULL,
                                         .shared_gate = o->shared_router ? at->shared_gate : NULL,
                                         .out = at->z,
                                         .ldo = n,
                                         .n = n,
                                         .used = o->used};
    l->reads[0] = span_of(PLACE_Y);
    l->reads[1] = span_of(PLACE_ROUTE);
    l->reads[2] = span_of(PLACE_SHARED);
    l->writes[0] = span_of(PLACE_Z);
    l = lowering_add(b, K_TAIL, ARGS_TAIL, gpu_grid(0, 1, 1, 256, 0), "tail behind the experts");
    lowering_grid_rows(l, GRID_X, 1);
    l->a.tail =
        (struct tail_args){.y = at->z,
                           .ldy = n,
                           .n = n,
                           .post = norm_of(b, &o->tail.post),
                           .after = norm_of(b, &o->tail.after),
                           .scale = o->tail.scale,
                           .residual = o->tail.residual.buffer ? buffer_at(b, o->tail.residual) +
                                                                     first * buffer_ld(b, o->tail.residual)
                                                               : NULL,
                           .ldr = buffer_ld(b, o->tail.residual),
                           .out = buffer_at(b, o->tail.out) + first * buffer_ld(b, o->tail.out),
                           .ldo = buffer_ld(b, o->tail.out)};
    l->reads[0] = span_of(PLACE_Z);
    l->reads[1] = buffer_span(o->tail.residual);
    l->writes[0] = buffer_span(o->tail.out);
}

/* Rows [b->rows.first, ...) of an expert layer. */
static void lower_chunk(struct lowering *b, const struct op_moe *o)
{
    const uint32_t width = mat_of(b, o->up.weight)->k;
    const enum path path = b->l->path == PATH_FLOAT ? PATH_FLOAT : PATH_PACK;
    const struct pack_args norm = {.x = buffer_at(b, o->in) + b->rows.first * buffer_ld(b, o->in),
                                   .ldx = buffer_ld(b, o->in),
                                   .k = width,
                                   .norm = norm_of(b, &o->norm),
                                   .out = {.rows = b->l->at->z, .ldr = width}};
    lower_rows(b, &norm, buffer_span(o->in), span_of(PLACE_Z), "norm, for router and experts");
    if (o->shared_up.weight)
        put_shared(b, o, path, width);
    put_route(b, o, width);
    put_chosen(b, o, path, width);
    put_sum(b, o);
}

void lower_moe(struct lowering *b, const struct op_moe *o)
{
    const struct launch_rows rows = b->rows;
    const uint32_t m = b->m;
    for (uint32_t first = 0; first < m; first += MOE_ROWS) {
        b->rows.first = first;
        b->rows.most = MOE_ROWS;
        b->m = m - first < MOE_ROWS ? m - first : MOE_ROWS;
        lower_chunk(b, o);
    }
    b->rows = rows;
    b->m = m;
}
