/* Expert layers: rows are sorted by expert into slots, each expert's padded to whole tiles, so that the rows of a tile
 * multiply with one matrix, which is read once. */
#include "device/cuda/build.h"

uint32_t lower_moe_slots(uint32_t rows, uint32_t used, uint32_t experts)
{
    const uint32_t tile = launch_tile_rows(rows * used, experts);
    return tile * launch_tiles(rows, used, experts, tile);
}

uint32_t lower_moe_rows(const struct op_moe *o, uint32_t k, uint32_t f, uint32_t n)
{
    enum { LEAST = 256, BYTES = 1 << 30 };
    const uint64_t each = 2ull * (k > f ? k : f) + 4ull * (2 * f > n ? 2 * f : n);
    uint32_t rows = MOE_ROWS;
    while (rows > LEAST &&
           (rows * o->used > MOE_PAIRS || lower_moe_slots(rows, o->used, o->experts) * each > BYTES))
        rows /= 2;
    return rows;
}

/* The rows of experts: how many a tile has, and in which order they are packed in front of gate and up, and of down. */
struct slot_form {
    uint32_t tile;
    enum pack_order up, down;
};

static struct slot_form slots_of(const struct lowering *b, const struct op_moe *o)
{
    const bool exact = b->l->path == PATH_FLOAT;
    struct slot_form s = {.tile = exact ? 8 : launch_tile_rows(b->m * o->used, o->experts)};
    const bool wide = b->l->card->wide && s.tile == GEMM_ROWS_MOST && !exact;
    const bool gate = !o->gate.weight || layout_is_tile(mat_of(b, o->gate.weight)->fmt);
    s.up = wide && gate && layout_is_tile(mat_of(b, o->up.weight)->fmt) ? PACK_CORES : PACK_LANES;
    s.down = wide && layout_is_tile(mat_of(b, o->down.weight)->fmt) ? PACK_CORES : PACK_LANES;
    return s;
}

/* Products of rows in slots with the experts they belong to. x is packed, or float rows. */
static void put_experts(struct lowering *b, const struct linear *l, float *y, uint64_t ldy,
                        enum pack_order order, const struct lora_rows *in)
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
                                    "tiles of rows, each with its expert");
    g->order = (uint8_t)order;
    g->m = b->m / b->rows.tile;
    g->rows.of = ROWS_TILES;
    lowering_grid_rows(g, GRID_Y, 1);
    g->a.gemm = (struct gemm_args){.segs = 1,
                                   .k = w->k,
                                   .groups = b->rows.tile / PACK_STREAMS,
                                   .scale = 1.0f,
                                   .x = at->pack,
                                   .tile = at->tile};
    g->a.gemm.seg[0] = (struct gemm_seg){.w = *w, .y = y, .ldy = ldy, .bias = vector_of(b, l->bias)};
    g->reads[0] = span_of(PLACE_PACK);
    g->reads[1] = span_of(PLACE_ROUTE);
    g->writes[0] = span_of(PLACE_Y);
    lora_up(b, &job, in);
}

/* ---- the input, the router and the choice ---- */

/* The layer's input: rows of x that are still to be normed; or, where adapters or the exact arithmetic want them,
 * rows in z that are. */
struct moe_rows {
    struct input in;
    const float *logits; /* (m, ld) of the router, then that of the shared expert */
    uint64_t ld;
};

static bool adapts(const struct lowering *b, const struct op_moe *o)
{
    const uint32_t slot[] = {o->router.adapter,      o->gate.adapter,         o->up.adapter,
                             o->down.adapter,        o->shared_gate.adapter,  o->shared_up.adapter,
                             o->shared_down.adapter, o->shared_router_adapter};
    bool any = false;
    for (size_t i = 0; i < sizeof slot / sizeof slot[0]; i++)
        any = any || lora_rank(b, slot[i]);
    return any;
}

static const struct norm *router_norm(const struct op_moe *o)
{
    return moe_routes_apart(o) ? &o->router_norm : &o->norm;
}

/* What the router sees: the experts' input, or another. */
static struct input router_input(const struct lowering *b, const struct op_moe *o)
{
    const struct operand from = o->router_in.buffer ? o->router_in : o->in;
    return (struct input){.x = buffer_at(b, from) + b->rows.first * buffer_ld(b, from),
                          .ldx = buffer_ld(b, from),
                          .from = buffer_span(from),
                          .k = mat_of(b, o->router.weight)->k,
                          .norm = router_norm(o)};
}

/* A norm that kernels of experts do themselves. */
static bool is_simple(const struct norm *n)
{
    return n->kind == NORM_NONE || (n->kind == NORM_RMS && !n->bias && !n->heads);
}

/* Whether the router's kernel takes the layer: it norms the rows itself. Identities want rows that are normed. */
static bool router_fits(const struct lowering *b, const struct op_moe *o)
{
    const struct mat *w = mat_of(b, o->router.weight);
    const struct input in = router_input(b, o);
    const bool plain =
        layout_plain_bytes(w->fmt) && (!o->shared_router || mat_of(b, o->shared_router)->fmt == w->fmt);
    return b->l->path == PATH_PACK && plain && is_simple(router_norm(o)) && !o->identities && !adapts(b, o) &&
           w->k % 4 == 0 && (((uintptr_t)in.x | in.ldx * sizeof *in.x) & 15) == 0;
}

static uint32_t router_outputs(const struct op_moe *o)
{
    return o->experts + o->identities + (o->shared_router ? 1 : 0);
}

static void put_router(struct lowering *b, const struct op_moe *o)
{
    const struct input in = router_input(b, o);
    /* few rows: a block has four outputs of one row or of eight; more: four outputs a warp */
    enum { ROWS = 8, WARPS = 8 };
    const bool few = b->m <= GEMM_ROWS_MOST;
    const uint32_t outputs = router_outputs(o),
                   kernel = b->m == 1 ? 0
                            : few     ? 1
                                      : 2,
                   warps = few ? ROUTER_WARPS : WARPS,
                   wide = gpu_blocks(outputs, few ? ROUTER_OUTPUTS : ROUTER_OUTPUTS * warps);
    struct launch *l = lowering_add(b, K_ROUTER + kernel, ARGS_ROUTER, gpu_grid(wide, 0, 1, 32 * warps, 0),
                                    "norm and router, in float");
    lowering_grid_rows(l, GRID_Y, b->m == 1 ? 1 : ROWS);
    l->a.router = (struct router_args){.x = in.x,
                                       .ldx = in.ldx,
                                       .k = in.k,
                                       .outputs = outputs,
                                       .norm = norm_of(b, in.norm),
                                       .w = *mat_of(b, o->router.weight),
                                       .bias = vector_of(b, o->router.bias),
                                       .logits = b->l->at->router};
    if (o->shared_router)
        l->a.router.shared = *mat_of(b, o->shared_router);
    l->reads[0] = in.from;
    l->writes[0] = span_of(PLACE_ROUTE);
}

/* The rows normed into z, and the products of the router with those. */
static void put_normed(struct lowering *b, const struct op_moe *o, const struct input *x)
{
    const struct scratch *at = b->l->at;
    const struct input seen = router_input(b, o);
    const struct lora_rows in = {.x = at->z, .ldx = seen.k, .from = span_of(PLACE_Z)};
    struct pack_args norm = {.x = seen.x,
                             .ldx = seen.ldx,
                             .k = seen.k,
                             .norm = norm_of(b, seen.norm),
                             .out = {.rows = at->z, .ldr = seen.k}};
    struct float_args r = {.w = *mat_of(b, o->router.weight),
                           .x = at->z,
                           .ldx = seen.k,
                           .y = at->router,
                           .ldy = router_outputs(o),
                           .bias = vector_of(b, o->router.bias),
                           .scale = 1.0f};
    lower_rows(b, &norm, seen.from, span_of(PLACE_Z),
               moe_routes_apart(o) ? "norm, for the router" : "norm, for router and experts");
    lower_float(b, &r, o->router.adapter, &in, span_of(PLACE_ROUTE), "router, in float");
    if (o->shared_router) {
        r.w = *mat_of(b, o->shared_router);
        r.y += o->experts + o->identities;
        r.bias = NULL;
        lower_float(b, &r, o->shared_router_adapter, &in, span_of(PLACE_ROUTE),
                    "weight of the shared expert");
    }
    if (moe_routes_apart(o)) {
        norm = (struct pack_args){.x = x->x,
                                  .ldx = x->ldx,
                                  .k = x->k,
                                  .norm = norm_of(b, &o->norm),
                                  .out = {.rows = at->z, .ldr = x->k}};
        lower_rows(b, &norm, x->from, span_of(PLACE_Z), "norm, for experts");
    }
}

static struct moe_rows put_input(struct lowering *b, const struct op_moe *o)
{
    const struct scratch *at = b->l->at;
    const uint32_t width = mat_of(b, o->up.weight)->k;
    struct moe_rows r = {.in = {.x = buffer_at(b, o->in) + b->rows.first * buffer_ld(b, o->in),
                                .ldx = buffer_ld(b, o->in),
                                .from = buffer_span(o->in),
                                .k = width,
                                .norm = &o->norm},
                         .logits = at->router,
                         .ld = router_outputs(o)};
    if (router_fits(b, o)) {
        put_router(b, o);
        return r;
    }
    put_normed(b, o, &r.in);
    r.in = (struct input){.x = at->z, .ldx = width, .from = span_of(PLACE_Z), .k = width};
    return r;
}

static struct route_args route_of(const struct lowering *b, const struct op_moe *o, const struct moe_rows *in)
{
    return (struct route_args){.logits = in->logits,
                               .select_bias = vector_of(b, o->select_bias),
                               .expert_scale = vector_of(b, o->expert_scale),
                               .ld = in->ld,
                               .experts = o->experts + o->identities,
                               .used = o->used,
                               .gating = o->gating,
                               .groups = o->groups,
                               .groups_used = o->groups_used,
                               .normalise = o->normalise,
                               .weight_scale = o->weight_scale,
                               .nearness = o->nearness,
                               .least_sum =
                                   o->normalise && o->gating != GATING_SOFTMAX_TOPK ? o->least_sum : 0.0f,
                               .group_pair = o->group_pair,
                               .scale_input = o->scale_input,
                               .expert = b->l->at->route_expert,
                               .weight = b->l->at->route_weight};
}

static struct group_args group_of(const struct lowering *b, const struct op_moe *o)
{
    const struct scratch *at = b->l->at;
    return (struct group_args){.expert = at->route_expert,
                               .used = o->used,
                               .experts = o->experts,
                               .rows = slots_of(b, o).tile,
                               .slot = at->slot,
                               .slot_row = at->slot_row,
                               .weight = o->scale_input ? at->route_weight : NULL,
                               .slot_weight = at->slot_weight,
                               .group_expert = at->group_expert,
                               .tile = at->tile};
}

/* Whether one kernel chooses and sorts: it knows no groups, and leaves weights only to what adds up. */
static bool sorts_at_once(const struct lowering *b, const struct op_moe *o)
{
    return !b->l->options.no_fuse && b->l->card->major >= 9 && b->m <= SORT_ROWS &&
           o->experts + o->identities <= SORT_EXPERTS && (o->groups <= 1 || o->groups_used >= o->groups) &&
           !(o->nearness > 0.0f) && !o->scale_input;
}

/* Choice and grouping. */
static void put_route(struct lowering *b, const struct op_moe *o, const struct moe_rows *in)
{
    struct launch *l;
    if (sorts_at_once(b, o)) {
        l = lowering_add(b, K_SORT + (o->experts + o->identities > SORT_EXPERTS / 2), ARGS_SORT,
                         gpu_grid(SORT_BLOCKS, 1, 1, SORT_THREADS, 0),
                         o->side ? "the best experts of each row; those of the step's own part sorted"
                                 : "the best experts of each row, and rows sorted by expert");
        l->a.sort = (struct sort_args){.group = group_of(b, o), .route = route_of(b, o, in)};
    } else {
        l = lowering_add(b, K_ROUTE, ARGS_ROUTE, gpu_grid(0, 1, 1, o->experts <= 32 ? 128 : 256, 0),
                         "the best experts of each row");
        lowering_grid_rows(l, GRID_X, 1);
        l->a.route = route_of(b, o, in);
        l->reads[0] = l->writes[0] = span_of(PLACE_ROUTE);
        l = lowering_add(b, K_GROUP, ARGS_GROUP, gpu_grid(gpu_blocks(o->experts, 8), 1, 1, 256, 0),
                         o->side ? "rows sorted by expert, those of the step's own part"
                                 : "rows sorted by expert");
        l->a.group = group_of(b, o);
    }
    l->side = (uint8_t)o->side;
    l->reads[0] = l->writes[0] = span_of(PLACE_ROUTE);
}

/* ---- many rows ---- */

static enum act_kind shared_act(const struct op_moe *o)
{
    return o->act == ACT_SWIGLU_OAI ? ACT_SILU : o->act;
}

/* The shared expert, into its own scratch. */
static void put_shared(struct lowering *b, const struct op_moe *o, const struct moe_rows *in)
{
    const struct scratch *at = b->l->at;
    const weight_id all[3] = {o->shared_gate.weight, o->shared_up.weight, o->shared_down.weight};
    struct product_set down = {.path = path_of(b, all, 3), .n = 1, .after = after_plain};
    down.p[0] = (struct product){o->shared_down.weight,
                                 o->shared_down.bias,
                                 o->shared_down.adapter,
                                 at->shared,
                                 mat_of(b, o->shared_down.weight)->n,
                                 span_of(PLACE_SHARED)};
    down.order = order_of(b, down.p, 1);
    const struct hidden_values h = {.gate = &o->shared_gate, .up = &o->shared_up, .act = shared_act(o)};
    const struct lora_rows lora = lower_up(b, &in->in, &h, &down);
    lower_finished(b, &down, &lora);
}

/* The experts' products: y is (slots, outputs). */
static void put_chosen(struct lowering *b, const struct op_moe *o, const struct moe_rows *from)
{
    const struct scratch *at = b->l->at;
    const struct launch_rows rows = b->rows;
    const struct slot_form slots = slots_of(b, o);
    const uint32_t m = b->m, f = mat_of(b, o->up.weight)->n, groups = slots.tile / PACK_STREAMS;
    const bool gated = o->gate.weight != 0;
    const enum path path = b->l->path == PATH_FLOAT ? PATH_FLOAT : PATH_PACK;
    struct input in = from->in;
    struct product_set up = {.path = path, .order = slots.up, .n = 1},
                       down = {.path = path, .order = slots.down, .n = 1};
    b->rows.of = ROWS_SLOTS;
    b->rows.used = o->used;
    b->rows.experts = o->experts;
    b->rows.tile = slots.tile;
    b->m = slots.tile * launch_tiles(m, o->used, o->experts, slots.tile);
    in.groups = groups;
    in.slot_weight = o->scale_input ? at->slot_weight : NULL;
    down.p[0].adapter = o->down.adapter;
    const struct lora_rows lora = lower_input(b, &up, &in);
    if (gated)
        put_experts(b, &o->gate, at->y, 2 * f, slots.up, &lora);
    put_experts(b, &o->up, at->y + f, 2 * f, slots.up, &lora);
    const struct act_args act = {.gate = gated ? at->y : NULL,
                                 .up = at->y + f,
                                 .ld = 2 * (uint64_t)f,
                                 .k = f,
                                 .act = o->act,
                                 .alpha = o->alpha,
                                 .limit = o->limit};
    const struct lora_rows h = lower_act(b, act, &down, groups);
    put_experts(b, &o->down, at->y, mat_of(b, o->down.weight)->n, slots.down, &h);
    b->rows = rows;
    b->m = m;
}

/* Where the layer's result goes: z, if a norm is behind it, or out. */
struct moe_out {
    bool norms;
    const float *residual;
    float *out;
    uint64_t ldr, ldo;
    float scale;
    struct span from, to;
};

static struct moe_out out_of_layer(const struct lowering *b, const struct op_moe *o)
{
    const struct tail *t = &o->tail;
    const uint32_t first = b->rows.first;
    struct moe_out r = {.norms = t->post.kind != NORM_NONE || t->after.kind != NORM_NONE,
                        .out = b->l->at->z,
                        .ldo = mat_of(b, o->down.weight)->n,
                        .scale = 1.0f,
                        .to = span_of(PLACE_Z)};
    if (r.norms)
        return r;
    r.ldr = buffer_ld(b, t->residual);
    r.residual = t->residual.buffer ? buffer_at(b, t->residual) + first * r.ldr : NULL;
    r.ldo = buffer_ld(b, t->out);
    r.out = buffer_at(b, t->out) + first * r.ldo;
    r.scale = t->scale;
    r.from = buffer_span(t->residual);
    r.to = buffer_span(t->out);
    return r;
}

static void put_norms(struct lowering *b, const struct op_moe *o)
{
    const struct scratch *at = b->l->at;
    const struct tail *t = &o->tail;
    const uint32_t n = mat_of(b, o->down.weight)->n, first = b->rows.first;
    struct launch *l =
        lowering_add(b, K_TAIL, ARGS_TAIL, gpu_grid(0, 1, 1, 256, 0), "a norm behind the experts");
    lowering_grid_rows(l, GRID_X, 1);
    l->a.tail = (struct tail_args){
        .y = at->z,
        .ldy = n,
        .n = n,
        .post = norm_of(b, &t->post),
        .after = norm_of(b, &t->after),
        .scale = t->scale,
        .residual = t->residual.buffer ? buffer_at(b, t->residual) + first * buffer_ld(b, t->residual) : NULL,
        .ldr = buffer_ld(b, t->residual),
        .out = buffer_at(b, t->out) + first * buffer_ld(b, t->out),
        .ldo = buffer_ld(b, t->out)};
    l->reads[0] = span_of(PLACE_Z);
    l->reads[1] = buffer_span(t->residual);
    l->writes[0] = buffer_span(t->out);
}

/* Their weighted sum, and what follows. */
static void put_sum(struct lowering *b, const struct op_moe *o, const struct moe_rows *in)
{
    const struct scratch *at = b->l->at;
    const uint32_t n = mat_of(b, o->down.weight)->n;
    const struct moe_out to = out_of_layer(b, o);
    struct launch *l = lowering_add(b, K_COMBINE, ARGS_COMBINE, gpu_grid(gpu_blocks(n, 1024), 0, 1, 256, 0),
                                    "weighted sum of the experts");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.combine = (struct combine_args){.y = at->y,
                                         .ldy = n,
                                         .slot = at->slot,
                                         .weight = o->scale_input ? NULL : at->route_weight,
                                         .identity = at->z,
                                         .shared = o->shared_up.weight ? at->shared : NULL,
                                         .shared_gate = o->shared_router ? in->logits + in->ld - 1 : NULL,
                                         .shared_ld = in->ld,
                                         .residual = to.residual,
                                         .ldr = to.ldr,
                                         .out = to.out,
                                         .ldo = to.ldo,
                                         .n = n,
                                         .used = o->used,
                                         .scale = to.scale};
    l->reads[0] = span_of(PLACE_Y);
    l->reads[1] = span_of(PLACE_ROUTE);
    l->reads[2] = o->shared_up.weight ? span_of(PLACE_SHARED) : span_of(PLACE_NONE);
    l->reads[3] = to.from;
    l->reads[4] = o->identities ? span_of(PLACE_Z) : span_of(PLACE_NONE);
    l->writes[0] = to.to;
    if (to.norms)
        put_norms(b, o);
}

/* ---- one row ---- */

/* Of a form of four chunks, or not there. */
static bool is_four(const struct lowering *b, const struct linear *l)
{
    const uint32_t fmt = l->weight ? mat_of(b, l->weight)->fmt : FMT_Q4_K_TILE;
    return fmt == FMT_Q4_K_TILE || fmt == FMT_MXFP4;
}

/* Columns of 256 inputs of down, of all chosen experts and the shared one. */
static uint32_t down_columns(const struct lowering *b, const struct op_moe *o)
{
    const uint32_t shared = o->shared_down.weight ? (mat_of(b, o->shared_down.weight)->k + 255) / 256 : 0;
    return o->used * ((mat_of(b, o->down.weight)->k + 255) / 256) + shared;
}

static uint32_t down_shared(uint32_t columns, uint32_t warps)
{
    return gpu_blocks(columns, warps) * warps * ROW_COLUMN;
}

/* Whether the kernels of one row take the layer. They read all experts that the row has chosen. */
static bool row_fits(const struct lowering *b, const struct op_moe *o)
{
    const bool gated = o->gate.weight != 0, shared = o->shared_up.weight != 0;
    const struct linear *all[] = {&o->gate,        &o->up,        &o->down,
                                  &o->shared_gate, &o->shared_up, &o->shared_down};
    bool fits = b->m <= MOE_FEW && !o->side && router_fits(b, o) && is_simple(&o->norm) &&
                (!shared || gated == (o->shared_gate.weight != 0)) &&
                mat_of(b, o->up.weight)->k <= GEMM_DEEP * TILE_COLS &&
                down_shared(down_columns(b, o), GEMM_DEEP) <= gpu_shared_most(b->l->card);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct mat *w = all[i]->weight ? mat_of(b, all[i]->weight) : NULL;
        fits = fits && (!w || (layout_is_tile(w->fmt) && w->k % 8 == 0));
    }
    return fits;
}

static struct moe_part part_of(const struct lowering *b, const struct linear *gate, const struct linear *up,
                               const struct linear *down, enum act_kind act)
{
    struct moe_part r = {.up = *mat_of(b, up->weight),
                         .down = *mat_of(b, down->weight),
                         .gate_bias = vector_of(b, gate->bias),
                         .up_bias = vector_of(b, up->bias),
                         .down_bias = vector_of(b, down->bias),
                         .act = act};
    if (gate->weight)
        r.gate = *mat_of(b, gate->weight);
    return r;
}

static void lower_row(struct lowering *b, const struct op_moe *o, const struct moe_rows *in)
{
    const struct scratch *at = b->l->at;
    const struct moe_out to = out_of_layer(b, o);
    struct moe_row_args a = {.route = route_of(b, o, in),
                             .part = {part_of(b, &o->gate, &o->up, &o->down, o->act)},
                             .x = in->in.x,
                             .ldx = in->in.ldx,
                             .norm = norm_of(b, &o->norm),
                             .h = at->y,
                             .residual = to.residual,
                             .ldr = to.ldr,
                             .out = to.out,
                             .ldo = to.ldo,
                             .k = in->in.k,
                             .n = mat_of(b, o->down.weight)->n,
                             .columns = (mat_of(b, o->down.weight)->k + 255) / 256,
                             .columns_all = down_columns(b, o),
                             .shared_gate = o->shared_router != 0,
                             .scale = to.scale,
                             .alpha = o->alpha,
                             .limit = o->limit};
    a.strips = (a.part[0].up.n + TILE_ROWS - 1) / TILE_ROWS;
    a.pairs_all = o->used * a.strips;
    if (o->shared_up.weight) {
        a.part[1] = part_of(b, &o->shared_gate, &o->shared_up, &o->shared_down, shared_act(o));
        a.pairs_all += (a.part[1].up.n + TILE_ROWS - 1) / TILE_ROWS;
    }
    a.ldh = o->used * (uint64_t)a.part[0].up.n + (o->shared_up.weight ? a.part[1].up.n : 0);
    const bool four = is_four(b, &o->gate) && is_four(b, &o->up) && is_four(b, &o->shared_gate) &&
                      is_four(b, &o->shared_up);
    const struct gpu_experts up =
        gpu_experts_row(b->l->card, a.pairs_all, o->gate.weight ? 2 : 1, a.k, four ? MOE_WARPS : GEMM_DEEP);
    a.pairs = up.pairs;
    a.split = up.split;
    struct launch *l = lowering_add(b, four ? K_MOE_UP_4 : K_MOE_UP, ARGS_MOE_ROW, up.grid,
                                    "choice of experts, norm, gate and up and the activation");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.moe_row = a;
    l->reads[0] = in->in.from;
    l->reads[1] = span_of(PLACE_ROUTE);
    l->writes[0] = span_of(PLACE_Y);
    const uint32_t strips = (a.n + TILE_ROWS - 1) / TILE_ROWS,
                   warps = strips <= (uint32_t)b->l->card->sms ? GEMM_DEEP : GEMM_WARPS;
    l = lowering_add(b, K_MOE_DOWN, ARGS_MOE_ROW,
                     gpu_grid(strips, 0, 1, 32 * warps, down_shared(a.columns_all, warps)),
                     "down of the chosen experts, weights, sum and residual");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.moe_row = a;
    l->reads[0] = span_of(PLACE_Y);
    l->reads[1] = span_of(PLACE_ROUTE);
    l->reads[2] = to.from;
    l->writes[0] = to.to;
    if (to.norms)
        put_norms(b, o);
}

/* Rows [b->rows.first, ...) of an expert layer. */
static void lower_chunk(struct lowering *b, const struct op_moe *o)
{
    const struct moe_rows in = put_input(b, o);
    if (row_fits(b, o)) {
        lower_row(b, o, &in);
        return;
    }
    if (o->shared_up.weight)
        put_shared(b, o, &in);
    put_route(b, o, &in);
    put_chosen(b, o, &in);
    put_sum(b, o, &in);
}

void lower_moe(struct lowering *b, const struct op_moe *o)
{
    const struct launch_rows rows = b->rows;
    const struct mat *up = mat_of(b, o->up.weight);
    const uint32_t m = b->m, most = lower_moe_rows(o, up->k, up->n, mat_of(b, o->down.weight)->n);
    for (uint32_t first = 0; first < m; first += most) {
        b->rows.first = first;
        b->rows.most = most;
        b->m = m - first < most ? m - first : most;
        lower_chunk(b, o);
    }
    b->rows = rows;
    b->m = m;
}
