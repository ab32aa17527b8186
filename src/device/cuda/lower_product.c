/* Products: what goes into them, the products themselves with what adapters add, and what follows. */
#include "device/cuda/build.h"

struct norm_args norm_of(const struct lowering *b, const struct norm *n)
{
    return (struct norm_args){.kind = n->kind,
                              .heads = n->heads,
                              .w = vector_of(b, n->weight),
                              .b = vector_of(b, n->bias),
                              .w_len = n->weight ? mat_of(b, n->weight)->k : 0,
                              .eps = n->eps};
}

struct launch *lowering_add(struct lowering *b, uint32_t kernel, enum launch_args args, struct gpu_grid grid,
                            const char *why)
{
    struct launch *l = launch_add(b->list);
    l->kernel = (uint16_t)kernel;
    l->args = (uint8_t)args;
    l->grid = grid;
    l->op = b->op;
    l->m = b->m;
    l->rows = b->rows;
    l->why = why;
    return l;
}

void lowering_grid_rows(struct launch *l, enum grid_rows dimension, uint32_t each)
{
    l->grid_rows = (uint8_t)dimension;
    l->each = (uint8_t)each;
}

/* All of a weight as cuBLASLt takes it, where the card has it so: it is fp16, or it stays decoded. */
struct half_weight {
    const uint8_t *at;  /* NULL: neither */
    const float *scale; /* of e4m3; else NULL */
    uint32_t size;      /* of a value */
};

static struct half_weight half_of(const struct lowering *b, weight_id id)
{
    const struct mat *w = mat_of(b, id);
    const struct kept_weight *k = b->l->kept ? &b->l->kept[id] : NULL;
    if (k && k->values)
        return (struct half_weight){k->values, k->scale, k->scale ? 1 : 2};
    return (struct half_weight){w->fmt == FMT_F16 ? w->base : NULL, NULL, 2};
}

enum path path_of(const struct lowering *b, const weight_id *w, uint32_t n)
{
    bool half = true, kept = true, small = true, fp8 = false;
    const struct mat *all[GEMM_SEGS];
    uint32_t count = 0;
    if (b->l->path != PATH_PACK || !b->l->half)
        return b->l->path;
    for (uint32_t i = 0; i < n; i++) {
        if (!w[i])
            continue;
        const struct mat *m = all[count++] = mat_of(b, w[i]);
        const struct half_weight h = half_of(b, w[i]);
        half = half && m->fmt == FMT_F16;
        kept = kept && h.at;
        small = small && 2ull * m->n * m->k < KEPT_SMALL;
        fp8 = fp8 || h.scale;
    }
    const uint32_t most = half                                                     ? HALF_ROWS_LEAST
                          : !kept                                                  ? PACK_ROWS_MOST
                          : small                                                  ? KEPT_SMALL_LEAST
                          : !fp8 && gpu_is_many_kept(b->l->card, all, count, b->m) ? PACK_ROWS_MOST
                                                                                   : KEPT_ROWS_LEAST;
    return b->m > most ? PATH_HALF : PATH_PACK;
}

enum pack_order order_of(const struct lowering *b, const struct product *p, uint32_t n)
{
    bool many = true;
    struct gpu_many all = {.m = b->m, .k = mat_of(b, p[0].weight)->k};
    for (uint32_t i = 0; i < n; i++)
        all.units += gpu_blocks(mat_of(b, p[i].weight)->n, MANY_UNIT);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t fmt = mat_of(b, p[i].weight)->fmt;
        many = many && (b->l->options.stream_k ? gpu_has_many(b->l->card, fmt, b->m)
                                               : gpu_is_many(b->l->card, fmt, &all));
    }
    return many ? PACK_ROWS : PACK_LANES;
}

/* ---- the input ---- */

static struct span input_span(enum path path)
{
    static const uint8_t place[] = {[PATH_PACK] = PLACE_PACK,
                                    [PATH_HALF] = PLACE_HALF,
                                    [PATH_FLOAT] = PLACE_FLOATS,
                                    [PATH_TILED] = PLACE_FLOATS,
                                    [PATH_INTEGER] = PLACE_Q8};
    return (struct span){.place = place[path]};
}

/* Where `path` wants its input. */
static struct pack_out out_of(const struct lowering *b, enum path path, enum pack_order order, uint32_t k)
{
    const struct scratch *at = b->l->at;
    struct pack_out o = {.kp = (k + 31) / 32 * 32};
    if (path == PATH_PACK && order == PACK_ROWS) {
        o.half = (uint16_t *)at->pack;
        o.half_scale = scales_of(b);
        o.groups = (b->m + 7) / 8;
        o.order = order;
        o.kp = (k + 255) / 256 * 256;
    } else if (path == PATH_PACK) {
        o.pack = at->pack;
        o.groups = gpu_gemm_groups(b->m);
        o.order = order;
    } else if (path == PATH_HALF) {
        o.half = at->half;
        o.half_scale = scales_of(b);
    } else {
        o.rows = at->x;
        o.ldr = k;
    }
    return o;
}

void lower_rows(struct lowering *b, const struct pack_args *a, struct span from, struct span to,
                const char *why)
{
    const uint32_t size = a->k <= 4096 ? 0 : a->k <= 8192 ? 1 : 2, columns = (a->k + 255) / 256;
    const unsigned warps = columns < 16 ? columns : 16;
    struct launch *l = lowering_add(b, (a->slot ? K_NORM_SLOTS : K_NORM_PACK) + size, ARGS_PACK,
                                    gpu_grid(0, 1, 1, size == 2 ? 1024 : 32 * warps, 0), why);
    lowering_grid_rows(l, GRID_X, 1);
    if (a->slot)
        l->rows.of = ROWS_PAIRS;
    l->a.pack = *a;
    l->reads[0] = from;
    l->writes[0] = to;
}

/* The rows, normed, to wherever they are wanted. */
static struct pack_args rows_of(const struct lowering *b, const struct input *in, struct pack_out out)
{
    struct pack_args a = {.x = in->x,
                          .ldx = in->ldx,
                          .k = in->k,
                          .out = out,
                          .slot = in->groups ? b->l->at->slot : NULL,
                          .used = in->groups ? b->rows.used : 0,
                          .slot_weight = in->slot_weight};
    if (in->norm)
        a.norm = norm_of(b, in->norm);
    return a;
}

static bool has_adapters(const struct lowering *b, const struct product_set *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n; i++)
        any = any || lora_rank(b, s->p[i].adapter);
    return any;
}

/* The rows as floats, for adapters. */
static struct lora_rows float_rows(struct lowering *b, const struct product_set *s, const struct input *in)
{
    const struct scratch *at = b->l->at;
    const bool normed = in->norm && in->norm->kind != NORM_NONE;
    struct lora_rows r = {.x = in->x, .ldx = in->ldx, .from = in->from, .results = in->results};
    if (in->groups) {
        r.x_row = r.row = at->slot_row;
        r.expert = at->group_expert;
    }
    if (in->groups || (!normed && !in->results) || !has_adapters(b, s))
        return r;
    const struct pack_args a = rows_of(b, in, (struct pack_out){.rows = at->lora_x, .ldr = in->k});
    r.x = at->lora_x;
    r.ldx = in->k;
    r.from = span_of(PLACE_LORA_X);
    lower_rows(b, &a, in->from, r.from, "input of adapters");
    return r;
}

static void quantise(struct lowering *b, const float *x, uint32_t k, struct span from)
{
    const struct q8_args q = {x, b->l->at->q8, k / 32};
    struct launch *l = lowering_add(b, K_QUANTISE, ARGS_Q8, gpu_grid(gpu_blocks(q.blocks, 8), 1, 1, 256, 0),
                                    "int8 products were asked for");
    l->a.q8 = q;
    l->reads[0] = from;
    l->writes[0] = span_of(PLACE_Q8);
}

/* act(gate) * up: packed by as many warps as a row has columns of 256, or to rows. */
static void put_act(struct lowering *b, const struct act_args *a, struct span from, struct span to,
                    const char *why)
{
    const struct gpu_grid rows = gpu_grid(0, 1, 1, ACT_THREADS, 0),
                          columns = gpu_grid(gpu_blocks(a->k, 1024), 0, 1, 128, 0);
    const bool pack = a->out.pack != NULL;
    struct launch *l = lowering_add(b, pack ? K_ACT_PACK : K_ACT_ROWS, ARGS_ACT, pack ? columns : rows, why);
    lowering_grid_rows(l, pack ? GRID_Y : GRID_X, 1);
    if (pack && a->slot)
        l->rows.of = ROWS_PAIRS;
    l->a.act = *a;
    l->reads[0] = from;
    l->writes[0] = to;
}

struct lora_rows lower_input(struct lowering *b, const struct product_set *s, const struct input *in)
{
    const struct lora_rows lora = float_rows(b, s, in);
    const bool normed = in->norm && in->norm->kind != NORM_NONE;
    if (s->path == PATH_INTEGER)
        quantise(b, in->x, in->k, in->from);
    if (s->path == PATH_INTEGER || s->path == PATH_TILED)
        return lora;
    const struct pack_out out = out_of(b, s->path, s->order, in->k);
    if (in->k > NORM_WIDTH_MOST && !normed && !in->results && !in->groups) {
        const struct act_args a = {.up = in->x, .ld = in->ldx, .k = in->k, .act = ACT_NONE, .out = out};
        put_act(b, &a, in->from, input_span(s->path), "a long row, packed as fp16");
        return lora;
    }
    struct pack_args a = rows_of(b, in, out);
    if (in->groups)
        a.out.groups = in->groups;
    lower_rows(b, &a, in->from, input_span(s->path),
               s->path == PATH_PACK   ? "input packed as fp16"
               : s->path == PATH_HALF ? "input as fp16 rows"
                                      : "exact: input as float rows");
    return lora;
}

/* The same from gate and up. */
struct lora_rows lower_act(struct lowering *b, struct act_args a, const struct product_set *down,
                           uint32_t groups)
{
    const struct scratch *at = b->l->at;
    const bool plain = down->path == PATH_TILED || down->path == PATH_INTEGER;
    const struct span y = span_of(PLACE_Y), to = plain ? span_of(PLACE_FLOATS) : input_span(down->path);
    struct lora_rows lora = {.x = at->lora_x, .ldx = a.k, .from = span_of(PLACE_LORA_X)};
    if (groups) {
        lora.row = at->slot_row;
        a.slot = at->slot;
        lora.expert = at->group_expert;
    }
    if (plain) {
        lora.x = at->x;
        lora.from = to;
    }
    if (has_adapters(b, down)) {
        a.out = (struct pack_out){.rows = at->lora_x, .ldr = a.k};
        put_act(b, &a, y, lora.from, "input of adapters");
    }
    a.out = out_of(b, down->path, down->order, a.k);
    if (groups)
        a.out.groups = groups;
    put_act(b, &a, y, to, down->path == PATH_PACK ? "activation, packed as fp16" : "activation");
    if (down->path == PATH_INTEGER)
        quantise(b, at->x, a.k, to);
    return lora;
}

/* ---- products ---- */

static void put_packed(struct lowering *b, const struct product_set *s, const struct product *p)
{
    const struct mat *w = mat_of(b, p->weight);
    const struct scratch *at = b->l->at;
    const bool many = s->order == PACK_ROWS;
    struct launch *l = lowering_add(b, K_GEMM + 4 * w->fmt, ARGS_GEMM, gpu_grid(0, 1, 1, 0, 0), "product");
    l->order = (uint8_t)s->order;
    l->a.gemm = (struct gemm_args){.segs = 1,
                                   .k = w->k,
                                   .groups = many ? (b->m + 7) / 8 : gpu_gemm_groups(b->m),
                                   .row_scale = many ? scales_of(b) : NULL,
                                   .scale = s->after.scale,
                                   .x = at->pack,
                                   .residual = s->after.residual,
                                   .ldr = s->after.residual ? s->after.ldr : 0,
                                   .part = at->sums,
                                   .count = at->counters};
    l->a.gemm.seg[0] = (struct gemm_seg){.w = *w, .y = p->y, .ldy = p->ldy, .bias = vector_of(b, p->bias)};
    l->reads[0] = span_of(PLACE_PACK);
    l->reads[1] = s->after.from;
    l->writes[0] = p->to;
}

static struct launch *put_float(struct lowering *b, const struct float_args *a, struct span from,
                                struct span to, const char *why)
{
    struct launch *l = lowering_add(b, K_GEMM_FLOAT, ARGS_FLOAT,
                                    gpu_grid(gpu_blocks(a->w.n, 8), 0, a->heads ? a->heads : 1, 256, 0), why);
    lowering_grid_rows(l, GRID_Y, 8);
    l->a.product = *a;
    l->reads[0] = from;
    l->writes[0] = to;
    return l;
}

static uint32_t half_width(const struct mat *w)
{
    return (w->k + 31) / 32 * 32;
}

/* Rows [first, first + rows) of a weight as fp16, half_width(w) values each. */
static struct launch *put_decode(struct lowering *b, const struct mat *w, uint32_t first, uint32_t rows,
                                 uint16_t *to, const char *why)
{
    const bool tile = w->fmt == FMT_Q4_K_TILE; /* the one form with a kernel of its own */
    const uint64_t tiles = (uint64_t)((rows + 15) / 16) * (w->k / 256);
    struct launch *l = lowering_add(b, tile ? K_DEQUANT_TILE : K_DEQUANT, ARGS_DEQUANT,
                                    gpu_grid(tile ? gpu_blocks(tiles, 8) : rows, 1, 1, 256, 0), why);
    l->rows.of = ROWS_NONE;
    l->a.dequant =
        (struct dequant_args){.w = *w, .dst = to, .first = first, .rows = rows, .kp = half_width(w)};
    l->writes[0] = span_of(PLACE_DECODED);
    return l;
}

/* Rows of k halves as e4m3. */
static struct launch *put_fp8(struct lowering *b, const struct fp8_args *a, struct span from, struct span to,
                              const char *why)
{
    struct launch *l = lowering_add(b, K_FP8, ARGS_FP8, gpu_grid(0, 1, 1, 256, 0), why);
    l->a.fp8 = *a;
    l->reads[0] = from;
    l->writes[0] = to;
    return l;
}

static void put_blas(struct lowering *b, const struct product *p, struct half_weight w, uint32_t row,
                     uint32_t n, uint32_t kp)
{
    const struct scratch *at = b->l->at;
    struct launch *l = lowering_add(b, LAUNCH_BLAS, ARGS_BLAS, gpu_grid(0, 0, 0, 0, 0),
                                    w.scale ? "many rows, in fp8" : "many rows");
    l->a.blas = (struct blas_product){.w = (cu_ptr)w.at,
                                      .x = w.scale ? (cu_ptr)at->fp8 : (cu_ptr)at->half,
                                      .y = (cu_ptr)(p->y + row),
                                      .w_scale = (cu_ptr)w.scale,
                                      .x_scale = w.scale ? (cu_ptr)at->fp8_scale : 0,
                                      .n = n,
                                      .k = kp,
                                      .ldy = p->ldy};
    l->reads[0] = span_of(w.scale ? PLACE_FP8 : PLACE_HALF);
    l->reads[1] = span_of(PLACE_DECODED);
    l->writes[0] = p->to;
}

/* A weight that does not fit into the room for decoded ones: a slice at a time. */
static void put_slices(struct lowering *b, const struct product *p, uint32_t most)
{
    const struct mat *w = mat_of(b, p->weight);
    uint16_t *decoded = b->l->at->decoded;
    for (uint32_t row = 0; row < w->n; row += most) {
        const uint32_t n = w->n - row < most ? w->n - row : most;
        put_decode(b, w, row, n, decoded, "weights as fp16 for cuBLASLt");
        put_blas(b, p, (struct half_weight){(const uint8_t *)decoded, NULL, 2}, row, n, half_width(w));
    }
}

/* How many products from p on are one: their results lie side by side, and their weights do: whole, or decoded into room
 * for `most` rows. */
static uint32_t halves_joined(const struct lowering *b, const struct product *p, uint32_t count,
                              uint32_t most)
{
    const struct half_weight whole = half_of(b, p[0].weight);
    const uint32_t kp = half_width(mat_of(b, p[0].weight));
    uint32_t rows = mat_of(b, p[0].weight)->n, i = 1;
    for (; i < count; i++) {
        const struct mat *w = mat_of(b, p[i].weight);
        const struct half_weight h = half_of(b, p[i].weight);
        const bool beside = whole.at ? h.at == whole.at + (uint64_t)rows * kp * whole.size &&
                                           h.size == whole.size && (!h.scale || h.scale == whole.scale + rows)
                                     : !h.at && rows + w->n <= most;
        if (half_width(w) != kp || p[i].ldy != p[0].ldy || p[i].y != p[0].y + rows || !beside)
            break;
        rows += w->n;
    }
    return i;
}

/* What makes a weight that stays decoded. */
static void put_kept(struct lowering *b, weight_id id)
{
    const struct mat *w = mat_of(b, id);
    const struct kept_weight *k = b->l->kept ? &b->l->kept[id] : NULL;
    if (!k || !k->values)
        return;
    if (!k->scale) {
        put_decode(b, w, 0, w->n, k->values, "decoded once, stays (--gpu-copies)")->once = id;
        return;
    }
    const bool half = w->fmt == FMT_F16;
    const struct fp8_args a = {.from = half ? (const uint16_t *)w->base : b->l->at->decoded,
                               .to = k->values,
                               .scale = k->scale,
                               .k = half_width(w)};
    if (!half) {
        struct launch *l = put_decode(b, w, 0, w->n, b->l->at->decoded, "decoded once, for fp8");
        l->once = id;
        l->more = true;
    }
    struct launch *l = put_fp8(b, &a, span_of(half ? PLACE_NONE : PLACE_DECODED), span_of(PLACE_DECODED),
                               "fp8 once, stays (--prefill fp8)");
    l->rows.of = ROWS_NONE;
    l->grid.x = w->n;
    l->once = id;
}

/* Through cuBLASLt, with a bounded room of decoded weights where they are not there whole. Neither bias nor scale: the
 * caller's tail does those. Returns how many products that were. */
static uint32_t put_half(struct lowering *b, const struct product *p, uint32_t count)
{
    const struct scratch *at = b->l->at;
    struct half_weight whole = half_of(b, p->weight);
    const uint32_t kp = half_width(mat_of(b, p->weight)),
                   slice = (uint32_t)(at->decoded_bytes / 2 / kp) / 128 * 128,
                   most = slice ? slice : UINT32_MAX, joined = halves_joined(b, p, count, most);
    uint32_t rows = 0;
    if (!whole.at && mat_of(b, p->weight)->n > most) {
        put_slices(b, p, most);
        return 1;
    }
    for (uint32_t i = 0; i < joined; i++) {
        const struct mat *w = mat_of(b, p[i].weight);
        if (!whole.at)
            put_decode(b, w, 0, w->n, at->decoded + (uint64_t)rows * kp, "weights as fp16 for cuBLASLt");
        else
            put_kept(b, p[i].weight);
        rows += w->n;
    }
    if (!whole.at)
        whole.at = (const uint8_t *)at->decoded;
    put_blas(b, p, whole, 0, rows, kp);
    return joined;
}

/* All products of a set; what they share of their input as fp8 is made once. */
static void put_halves(struct lowering *b, const struct product_set *s)
{
    const struct scratch *at = b->l->at;
    bool fp8 = false;
    for (uint32_t i = 0; i < s->n; i++)
        fp8 = fp8 || half_of(b, s->p[i].weight).scale;
    if (fp8) {
        const struct fp8_args a = {.from = at->half,
                                   .to = at->fp8,
                                   .scale = at->fp8_scale,
                                   .k = half_width(mat_of(b, s->p[0].weight))};
        lowering_grid_rows(put_fp8(b, &a, span_of(PLACE_HALF), span_of(PLACE_FP8), "the input as fp8"),
                           GRID_X, 1);
    }
    for (uint32_t i = 0; i < s->n;)
        i += put_half(b, &s->p[i], s->n - i);
}

/* One row by the kernels that callers of the public header can ask for. */
static void put_gemv(struct lowering *b, enum path path, const struct product *p, const struct lora_rows *in)
{
    const struct mat *w = mat_of(b, p->weight);
    const bool tiled = path == PATH_TILED;
    const uint32_t per = tiled ? b->l->per_block : 8, chunk = b->l->whole ? (w->k + 7) / 8 * 8 : 8192;
    struct launch *l =
        lowering_add(b, tiled ? K_GEMV_TILED : K_GEMV_DP4A, ARGS_GEMV,
                     gpu_grid(gpu_blocks(w->n, per), 1, 1, 256, tiled ? chunk * 4 : 0),
                     tiled ? "asked for: input staged in shared memory" : "asked for: int8 products");
    l->a.gemv = (struct gemv_args){.w = *w, .y = p->y};
    if (tiled) {
        l->a.gemv.x = in->x;
        l->a.gemv.per_block = per;
        l->a.gemv.chunk = chunk;
    } else {
        l->a.gemv.x8 = b->l->at->q8;
    }
    l->reads[0] = tiled ? in->from : span_of(PLACE_Q8);
    l->writes[0] = p->to;
}

static void put_product(struct lowering *b, const struct product_set *s, const struct product *p,
                        const struct lora_rows *in)
{
    switch (s->path) {
    case PATH_PACK:
        put_packed(b, s, p);
        return;
    case PATH_HALF: /* put_halves */
        return;
    case PATH_FLOAT: {
        const struct mat *w = mat_of(b, p->weight);
        const struct float_args a = {.w = *w,
                                     .x = b->l->at->x,
                                     .ldx = w->k,
                                     .y = p->y,
                                     .ldy = p->ldy,
                                     .bias = vector_of(b, p->bias),
                                     .residual = s->after.residual,
                                     .ldr = s->after.ldr,
                                     .scale = s->after.scale};
        put_float(b, &a, span_of(PLACE_FLOATS), p->to, "exact: float products")->reads[1] = s->after.from;
        return;
    }
    case PATH_TILED:
    case PATH_INTEGER:
        put_gemv(b, s->path, p, in);
    }
}

void lower_products(struct lowering *b, const struct product_set *s, const struct lora_rows *in)
{
    /* the products may write where their input is */
    for (uint32_t i = 0; i < s->n; i++)
        lora_down(b, &(struct lora_job){.slot = s->p[i].adapter, .area = i}, in);
    if (s->path == PATH_HALF)
        put_halves(b, s);
    for (uint32_t i = 0; i < s->n && s->path != PATH_HALF; i++)
        put_product(b, s, &s->p[i], in);
    for (uint32_t i = 0; i < s->n; i++)
        lora_up(b,
                &(struct lora_job){.slot = s->p[i].adapter,
                                   .area = i,
                                   .y = s->p[i].y,
                                   .ldy = s->p[i].ldy,
                                   .scale = s->after.scale,
                                   .row_scale = s->path == PATH_HALF ? scales_of(b) : NULL,
                                   .to = s->p[i].to},
                in);
}

static void put_tail(struct lowering *b, const struct tail_args *a, uint32_t threads, struct span from,
                     struct span residual, struct span to, const char *why)
{
    struct launch *l = lowering_add(b, K_TAIL, ARGS_TAIL, gpu_grid(0, 1, 1, threads, 0), why);
    lowering_grid_rows(l, GRID_X, 1);
    l->a.tail = *a;
    l->reads[0] = from;
    l->reads[1] = residual;
    l->writes[0] = to;
}

void lower_finished(struct lowering *b, const struct product_set *s, const struct lora_rows *in)
{
    struct product_set plain = *s;
    for (uint32_t i = 0; i < s->n && s->path == PATH_HALF; i++) {
        plain.p[i].bias = 0;
        plain.after.scale = 1.0f;
    }
    lower_products(b, &plain, in);
    for (uint32_t i = 0; i < s->n && s->path == PATH_HALF; i++) {
        const struct product *p = &s->p[i];
        const struct tail_args t = {.y = p->y,
                                    .ldy = p->ldy,
                                    .row_scale = scales_of(b),
                                    .bias = vector_of(b, p->bias),
                                    .n = mat_of(b, p->weight)->n,
                                    .scale = s->after.scale,
                                    .out = p->y,
                                    .ldo = p->ldy};
        put_tail(b, &t, 256, p->to, span_of(PLACE_NONE), p->to, "the rows' scale, and the bias");
    }
}

/* Whether the path's products add bias and residual themselves. */
static bool path_adds(enum path path)
{
    return path == PATH_PACK || path == PATH_FLOAT;
}

struct product_set lower_last(const struct lowering *b, enum path path, const struct linear *l,
                              const struct tail *t, float *y)
{
    const bool sum = t->post.kind == NORM_NONE && t->after.kind == NORM_NONE,
               bare = !l->bias && !t->residual.buffer && t->scale == 1.0f;
    struct product_set s = {.path = path, .n = 1, .after = after_plain};
    if (sum && (path_adds(path) || (path != PATH_HALF && bare))) {
        s.p[0] = (struct product){
            l->weight, l->bias, l->adapter, buffer_at(b, t->out), buffer_ld(b, t->out), buffer_span(t->out)};
        s.after = (struct after){t->scale, buffer_at(b, t->residual), buffer_ld(b, t->residual),
                                 buffer_span(t->residual)};
    } else {
        s.p[0] = (struct product){l->weight, path_adds(path) ? l->bias : 0, l->adapter,
                                  y,         mat_of(b, l->weight)->n,       span_of(PLACE_Y)};
    }
    s.order = order_of(b, s.p, 1);
    return s;
}

void lower_tail(struct lowering *b, const struct product_set *s, const struct linear *l, const struct tail *t)
{
    if (s->p[0].to.place != PLACE_Y) /* the product did it */
        return;
    const uint32_t n = mat_of(b, l->weight)->n;
    const struct tail_args a = {.y = s->p[0].y,
                                .ldy = n,
                                .row_scale = s->path == PATH_HALF ? scales_of(b) : NULL,
                                .bias = path_adds(s->path) ? NULL : vector_of(b, l->bias),
                                .n = n,
                                .post = norm_of(b, &t->post),
                                .after = norm_of(b, &t->after),
                                .scale = t->scale,
                                .residual = buffer_at(b, t->residual),
                                .ldr = buffer_ld(b, t->residual),
                                .out = buffer_at(b, t->out),
                                .ldo = buffer_ld(b, t->out)};
    put_tail(b, &a, n >= 2048 ? 512 : 256, span_of(PLACE_Y), buffer_span(t->residual), buffer_span(t->out),
             path_adds(s->path) ? "a norm behind the product"
                                : "scale, bias and residual behind the product");
}

/* ---- FFN ---- */

struct lora_rows lower_up(struct lowering *b, const struct input *in, const struct hidden_values *h,
                          const struct product_set *down)
{
    const struct scratch *at = b->l->at;
    const struct linear *gate = h->gate, *up = h->up;
    const uint32_t f = mat_of(b, up->weight)->n, n = gate->weight ? 2 * f : f;
    const bool late = !path_adds(down->path), half = down->path == PATH_HALF;
    struct product_set s = {.path = down->path, .after = after_plain};
    if (gate->weight)
        s.p[s.n++] =
            (struct product){gate->weight, late ? 0 : gate->bias, gate->adapter, at->y, n, span_of(PLACE_Y)};
    s.p[s.n++] =
        (struct product){up->weight, late ? 0 : up->bias, up->adapter, at->y + (n - f), n, span_of(PLACE_Y)};
    s.order = order_of(b, s.p, s.n);
    const struct lora_rows lora = lower_input(b, &s, in);
    lower_products(b, &s, &lora);
    struct act_args a = {.gate = gate->weight ? at->y : NULL,
                         .up = at->y + (n - f),
                         .ld = n,
                         .row_scale = half ? scales_of(b) : NULL,
                         .k = f,
                         .act = h->act,
                         .gate_bias = late ? vector_of(b, gate->bias) : NULL,
                         .up_bias = late ? vector_of(b, up->bias) : NULL,
                         .xielu = h->xielu ? vector_of(b, h->xielu) : NULL};
    if (!h->inner || h->inner->kind == NORM_NONE)
        return lower_act(b, a, down, 0);
    /* in place: a thread reads what it replaces, and no other */
    a.out = (struct pack_out){.rows = at->y, .ldr = n};
    put_act(b, &a, span_of(PLACE_Y), span_of(PLACE_Y), "activation");
    return lower_input(
        b, down, &(struct input){.x = at->y, .ldx = n, .from = span_of(PLACE_Y), .k = f, .norm = h->inner});
}

void lower_ffn(struct lowering *b, const struct op_ffn *o)
{
    const uint32_t f = mat_of(b, o->up.weight)->n;
    const struct input in = {.x = buffer_at(b, o->in),
                             .ldx = buffer_ld(b, o->in),
                             .from = buffer_span(o->in),
                             .k = mat_of(b, o->up.weight)->k,
                             .norm = &o->norm};
    const struct hidden_values h = {
        .gate = &o->gate, .up = &o->up, .act = o->act, .xielu = o->xielu, .inner = &o->inner};
    /* results that wait for their tail lie behind act(gate) * up */
    const weight_id all[3] = {o->gate.weight, o->up.weight, o->down.weight};
    const struct product_set down =
        lower_last(b, path_of(b, all, 3), &o->down, &o->tail, b->l->at->y + (uint64_t)b->l->at->max_rows * f);
    const struct lora_rows lora = lower_up(b, &in, &h, &down);
    lower_products(b, &down, &lora);
    lower_tail(b, &down, &o->down, &o->tail);
}

/* ---- float products, adapters ---- */

void lower_float(struct lowering *b, const struct float_args *a, uint32_t adapter, const struct lora_rows *in,
                 struct span to, const char *why)
{
    const struct lora_job job = {.slot = adapter,
                                 .heads = a->heads,
                                 .x_step = a->x_step,
                                 .y_step = a->y_step,
                                 .y = a->y,
                                 .ldy = a->ldy,
                                 .scale = a->scale,
                                 .to = to};
    lora_down(b, &job, in);
    put_float(b, a, in->from, to, why);
    lora_up(b, &job, in);
}

/* The largest rank of the slot's pairs; 0: there are none, or no sequence has an adapter. */
uint32_t lora_rank(const struct lowering *b, uint32_t slot)
{
    const struct plan *p = b->l->plan;
    uint32_t rank = 0;
    for (uint32_t i = 1; b->c->lora && slot && i <= p->adapters; i++) {
        const struct lora_pair *pair = plan_lora(p, slot, i);
        if (pair && b->l->source->all[pair->b].rows > rank)
            rank = b->l->source->all[pair->b].rows;
    }
    return rank;
}

static uint32_t lora_outputs(const struct lowering *b, uint32_t slot)
{
    const struct plan *p = b->l->plan;
    uint32_t n = 0;
    for (uint32_t i = 1; i <= p->adapters && !n; i++) {
        const struct lora_pair *pair = plan_lora(p, slot, i);
        n = pair ? b->l->source->all[pair->b].cols : 0;
    }
    return n;
}

static struct launch *put_lora(struct lowering *b, uint32_t kernel, const struct lora_job *j,
                               const struct lora_rows *in, uint32_t blocks)
{
    const struct scratch *at = b->l->at;
    const bool down = kernel == K_LORA_DOWN;
    struct launch *l =
        lowering_add(b, kernel, ARGS_LORA, gpu_grid(blocks, 0, j->heads ? j->heads : 1, 256, 0),
                     down ? "A x of the adapters" : "B A x of the adapters, added");
    lowering_grid_rows(l, GRID_Y, 8);
    l->a.lora = (struct lora_args){.entry = at->lora_table + (size_t)j->slot * (b->l->plan->adapters + 1),
                                   .x = in->x,
                                   .ldx = in->ldx,
                                   .x_row = in->x_row,
                                   .row = in->row,
                                   .expert = in->expert,
                                   .first = b->rows.first,
                                   .rank = lora_rank(b, j->slot),
                                   .heads = j->heads,
                                   .x_step = j->x_step,
                                   .y_step = j->y_step,
                                   .y = j->y,
                                   .ldy = j->ldy,
                                   .scale = j->scale,
                                   .row_scale = j->row_scale};
    l->a.lora.low = at->lora_low + (uint64_t)j->area * at->lora_rows * ADAPTERS_MIXED * at->lora_rank;
    l->reads[0] = down ? in->from : span_of(PLACE_LORA_LOW);
    l->reads[1] = down ? span_of(PLACE_NONE) : j->to;
    l->writes[0] = down ? span_of(PLACE_LORA_LOW) : j->to;
    return l;
}

void lora_down(struct lowering *b, const struct lora_job *j, const struct lora_rows *in)
{
    const uint32_t rank = lora_rank(b, j->slot);
    if (rank)
        put_lora(b, K_LORA_DOWN, j, in, gpu_blocks(rank, 8));
}

void lora_up(struct lowering *b, const struct lora_job *j, const struct lora_rows *in)
{
    if (lora_rank(b, j->slot))
        put_lora(b, K_LORA_UP, j, in, gpu_blocks(lora_outputs(b, j->slot), 256));
}
