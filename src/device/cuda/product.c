#include "device/cuda/product.h"

#include "device/cuda/lora.h"

struct norm_args product_norm(struct cuda_device *d, const struct norm *n)
{
    return (struct norm_args){.kind = n->kind,
                              .heads = n->heads,
                              .w = vector_of(d, n->weight),
                              .b = vector_of(d, n->bias),
                              .w_len = n->weight ? d->weights.mat[n->weight].k : 0,
                              .eps = n->eps};
}

enum path product_path(const struct cuda_device *d, uint32_t m)
{
    if (d->options.exact)
        return PATH_FLOAT;
    return m > PACK_ROWS_MOST && d->blas ? PATH_HALF : PATH_PACK;
}

/* m rows will be packed for products with these weights (0: none). */
void product_expect(struct cuda_device *d, uint32_t m, const weight_id *w, uint32_t n)
{
    bool wide = true;
    for (uint32_t i = 0; i < n; i++)
        wide = wide && (!w[i] || gpu_is_wide(d->g, mat_of(d, w[i])->fmt, m));
    d->order = wide ? PACK_CORES : PACK_LANES;
}

struct pack_out product_out(struct cuda_device *d, enum path path, uint32_t m, uint32_t k)
{
    struct pack_out o = {.kp = (k + 31) / 32 * 32};
    if (path == PATH_PACK) {
        o.pack = d->pack;
        o.groups = gpu_gemm_groups(m);
        o.order = d->order;
    }
    if (path == PATH_HALF) {
        o.half = d->half;
        o.half_scale = d->half_scale;
    }
    if (path == PATH_FLOAT) {
        o.rows = d->x;
        o.ldr = k;
    }
    return o;
}

int product_rows(struct cuda_device *d, const struct pack_args *a, struct err *e)
{
    uint32_t kernel = a->k <= 4096 ? 0 : a->k <= 8192 ? 1 : 2;
    unsigned warps = (a->k + 255) / 256 < 16 ? (a->k + 255) / 256 : 16;
    return gpu_launch(d->g, K_NORM_PACK + kernel, gpu_grid(a->m, 1, 1, kernel == 2 ? 1024 : 32 * warps, 0), a,
                      e);
}

bool product_waits(const struct cuda_device *d, enum path path, const struct input *in)
{
    uint32_t limit = in->norm && in->norm->kind != NORM_NONE ? GEMM_NORM_MOST : GEMM_ROW_MOST;
    return path == PATH_PACK && in->m == 1 && in->k % 256 == 0 && in->k <= limit &&
           ((uintptr_t)in->x & 15) == 0 && !in->grouped && !d->no_fuse;
}

static int put_act(struct cuda_device *d, enum path path, const struct act_args *a, struct err *e)
{
    if (path == PATH_PACK)
        return gpu_launch(d->g, K_ACT_PACK, gpu_grid(gpu_blocks(a->k, 1024), a->m, 1, 128, 0), a, e);
    return gpu_launch(d->g, K_ACT_ROWS, gpu_grid(a->m, 1, 1, 512, 0), a, e);
}

int product_join(struct cuda_device *d, const struct attn_args *a, struct err *e)
{
    const uint64_t width = (uint64_t)a->heads * a->kv.v_dim;
    return gpu_launch(d->g, K_ATTN_COMBINE, gpu_grid(gpu_blocks(width, 256), a->m, 1, 256, 0), a, e);
}

/* The input after all, for a product that wants it packed. */
static int flush_input(struct cuda_device *d, struct err *e)
{
    d->in.x = NULL;
    if (d->unjoined.part && product_join(d, &d->unjoined, e))
        return -1;
    d->unjoined.part = NULL;
    return product_rows(d, &d->in_rows, e);
}

static struct gemm_parts parts_of(const struct attn_args *a)
{
    if (!a->part)
        return (struct gemm_parts){0};
    return (struct gemm_parts){.part = a->part,
                               .ml = a->part_ml,
                               .sinks = a->sinks,
                               .length = a->meta.seq_len,
                               .splits = a->splits,
                               .window = a->window,
                               .queries = a->part_queries,
                               .group = a->heads / a->kv.heads,
                               .dim = a->kv.v_dim};
}

/* The rows, normed, to wherever they are wanted. */
static struct pack_args rows_of(struct cuda_device *d, const struct input *in, struct pack_out out)
{
    struct pack_args a = {
        .x = in->x, .ldx = in->ldx, .m = in->m, .k = in->k, .out = out, .slot_row = in->row};
    if (in->norm)
        a.norm = product_norm(d, in->norm);
    return a;
}

/* The rows as floats, for adapters. */
static int put_floats(struct cuda_device *d, const struct input *in, struct err *e)
{
    const bool normed = in->norm && in->norm->kind != NORM_NONE;
    d->lora_in = (struct lora_in){.x = in->x, .ldx = in->ldx, .row = in->row, .first = d->row_first};
    if (in->grouped) {
        d->lora_in.x_row = in->row;
        d->lora_in.expert = d->group_expert;
    }
    if (!d->lora || in->grouped || (!normed && !in->row))
        return 0;
    const struct pack_args a = rows_of(d, in, (struct pack_out){.rows = d->lora_x, .ldr = in->k});
    d->lora_in.x = d->lora_x;
    d->lora_in.ldx = in->k;
    return product_rows(d, &a, e);
}

int product_input(struct cuda_device *d, enum path path, const struct input *in, struct err *e)
{
    if (put_floats(d, in, e))
        return -1;
    struct pack_args a = rows_of(d, in, product_out(d, path, in->m, in->k));
    if (in->grouped)
        a.out.groups = 1;
    d->in.x = NULL;
    if (product_waits(d, path, in) && (!in->row || d->meta.rows == 1)) {
        d->in = (struct gemm_in){in->x, a.norm, parts_of(&d->unjoined)};
        d->in_rows = a;
        return 0;
    }
    return product_rows(d, &a, e);
}

static bool is_tile(const struct mat *m)
{
    return layout_is_tile(m->fmt);
}

/* Products [i, n) that one launch can take: the tile forms together, other forms if they are equal. */
static uint32_t run_of(struct cuda_device *d, const struct product *p, uint32_t i, uint32_t n)
{
    uint32_t j = i + 1;
    const struct mat *a = mat_of(d, p[i].weight);
    while (j < n && j - i < GEMM_SEGS) {
        const struct mat *b = mat_of(d, p[j].weight);
        if (!(is_tile(a) && is_tile(b)) && a->fmt != b->fmt)
            break;
        j++;
    }
    return j;
}

static uint32_t strips_of(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t outputs)
{
    uint32_t strips = 0;
    for (uint32_t j = 0; j < n; j++)
        strips += (mat_of(d, p[j].weight)->n + outputs - 1) / outputs;
    return strips;
}

/* The row of the variant table for products [p, p + n) of m rows. */
static struct gpu_gemm choose(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m,
                              bool paired)
{
    const struct mat *first = mat_of(d, p[0].weight);
    if (d->order == PACK_CORES)
        return gpu_gemm_wide(d->g, strips_of(d, p, n, 64), first->k, paired);
    return gpu_gemm_choose(d->g, first->fmt, m, strips_of(d, p, n, TILE_ROWS), first->k, paired);
}

/* One launch of products that share a kernel: rows [row, row + a.m). */
static int run_segments(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m, uint32_t row,
                        const struct after *after, struct err *e)
{
    const struct mat *first = mat_of(d, p[0].weight);
    const uint32_t k = first->k, columns = (k + 255) / 256;
    struct gemm_args a = {
        .k = k, .m = m - row < GEMM_ROWS_MOST ? m - row : GEMM_ROWS_MOST, .groups = gpu_gemm_groups(m)};
    struct gpu_gemm how = choose(d, p, n, a.m, after->paired);
    a.split = how.split;
    a.scale = after->scale;
    a.paired = after->paired;
    a.act = after->act;
    a.x = d->pack + (uint64_t)(row / PACK_STREAMS) * columns * PACK_BYTES;
    a.part = gpu_parts(d->g);
    a.count = gpu_counters(d->g);
    for (uint32_t j = 0; j < n; j++) {
        const struct mat *w = mat_of(d, p[j].weight);
        a.seg[a.segs++] = (struct gemm_seg){.w = *w,
                                            .y = p[j].y + row * p[j].ldy,
                                            .ldy = p[j].ldy,
                                            .bias = vector_of(d, p[j].bias),
                                            .first = a.strips};
        a.strips += (w->n + how.outputs - 1) / how.outputs;
    }
    if (after->residual) {
        a.residual = after->residual + row * after->ldr;
        a.ldr = after->ldr;
    }
    if (d->in.x && is_tile(first)) {
        a.in = d->in;
        d->unjoined.part = NULL;
        how.kernel = K_GEMM_ROW;
        how.grid.shared = columns * ROW_COLUMN;
    } else if (d->in.x && flush_input(d, e)) {
        return -1;
    }
    return gpu_launch(d->g, how.kernel, how.grid, &a, e);
}

static int run_packed(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m,
                      const struct after *after, struct err *e)
{
    for (uint32_t i = 0, next; i < n; i = next) {
        next = run_of(d, p, i, n);
        for (uint32_t row = 0; row < m; row += GEMM_ROWS_MOST)
            if (run_segments(d, p + i, next - i, m, row, after, e))
                return -1;
    }
    return 0;
}

static int run_float(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m,
                     const struct after *after, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        struct float_args a = {.w = *mat_of(d, p[i].weight),
                               .x = d->x,
                               .y = p[i].y,
                               .ldy = p[i].ldy,
                               .bias = vector_of(d, p[i].bias),
                               .residual = after->residual,
                               .ldr = after->ldr,
                               .m = m,
                               .scale = after->scale};
        a.ldx = a.w.k;
        struct gpu_grid grid = gpu_grid(gpu_blocks(a.w.n, 8), gpu_blocks(m, 8), 1, 256, 0);
        if (gpu_launch(d->g, K_GEMM_FLOAT, grid, &a, e))
            return -1;
    }
    return 0;
}

static uint32_t half_width(const struct mat *w)
{
    return (w->k + 31) / 32 * 32;
}

/* Rows [first, first + rows) of a weight as fp16, half_width(w) values each. */
static int decode_rows(struct cuda_device *d, const struct mat *w, uint32_t first, uint32_t rows,
                       uint16_t *to, struct err *e)
{
    struct dequant_args a = {.w = *w, .dst = to, .first = first, .rows = rows, .kp = half_width(w)};
    bool tile = w->fmt == FMT_Q4_K_TILE; /* the one form with a kernel of its own */
    uint64_t tiles = (uint64_t)((rows + 15) / 16) * (w->k / 256);
    struct gpu_grid grid = gpu_grid(tile ? gpu_blocks(tiles, 8) : rows, 1, 1, 256, 0);
    return gpu_launch(d->g, tile ? K_DEQUANT_TILE : K_DEQUANT, grid, &a, e);
}

/* All of a weight as fp16, where the card has it so: it is of this type, or there is room to keep it decoded. NULL:
 * neither. */
static int whole_half(struct cuda_device *d, weight_id id, const uint16_t **out, struct err *e)
{
    const struct mat *w = mat_of(d, id);
    const uint64_t bytes = (uint64_t)w->n * half_width(w) * sizeof **out;
    *out = w->fmt == FMT_F16 ? (const uint16_t *)w->base : NULL;
    if (*out || !d->copy || id >= d->weights.count)
        return 0;
    if (!d->copy[id] && bytes <= d->copies_bytes - d->copies_used) {
        uint16_t *to = (uint16_t *)(d->copies + d->copies_used);
        if (decode_rows(d, w, 0, w->n, to, e))
            return -1;
        d->copy[id] = to;
        d->copies_used += bytes;
    }
    *out = d->copy[id];
    return 0;
}

/* Through cuBLASLt, with a bounded slice of decoded weights at a time where they are not there whole. Neither bias nor
 * scale: the caller's tail does those. */
static int run_half(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct mat *w = mat_of(d, p[i].weight);
        const uint16_t *whole;
        if (whole_half(d, p[i].weight, &whole, e))
            return -1;
        const uint32_t kp = half_width(w),
                       most = whole ? w->n : (uint32_t)(d->decoded_bytes / 2 / kp) / 128 * 128;
        for (uint32_t row = 0; row < w->n; row += most) {
            struct blas_product b = {.w = (cu_ptr)(whole ? whole : d->decoded),
                                     .x = (cu_ptr)d->half,
                                     .y = (cu_ptr)(p[i].y + row),
                                     .m = m,
                                     .n = w->n - row < most ? w->n - row : most,
                                     .k = kp,
                                     .ldy = p[i].ldy};
            if ((!whole && decode_rows(d, w, row, b.n, d->decoded, e)) || blas_run(d->blas, &b, e))
                return -1;
        }
    }
    return 0;
}

static int run_path(struct cuda_device *d, enum path path, const struct product *p, uint32_t n, uint32_t m,
                    const struct after *after, struct err *e)
{
    if (path == PATH_HALF)
        return run_half(d, p, n, m, e);
    if (path == PATH_FLOAT)
        return run_float(d, p, n, m, after, e);
    return run_packed(d, p, n, m, after, e);
}

int product_run(struct cuda_device *d, enum path path, const struct product *p, uint32_t n, uint32_t m,
                const struct after *after, struct err *e)
{
    /* the products may write where their input is */
    for (uint32_t i = 0; d->lora && i < n; i++)
        if (lora_down(d, &(struct lora_job){.slot = p[i].adapter, .area = i, .m = m}, e))
            return -1;
    if (run_path(d, path, p, n, m, after, e))
        return -1;
    for (uint32_t i = 0; d->lora && i < n; i++)
        if (lora_up(d,
                    &(struct lora_job){.slot = p[i].adapter,
                                       .area = i,
                                       .m = m,
                                       .y = p[i].y,
                                       .ldy = p[i].ldy,
                                       .scale = after->scale,
                                       .row_scale = path == PATH_HALF ? d->half_scale : NULL},
                    e))
            return -1;
    return 0;
}

bool product_pairs(struct cuda_device *d, enum path path, const struct product two[2])
{
    return path == PATH_PACK && run_of(d, two, 0, 2) == 2 && !d->no_fuse &&
           !layout_plain_bytes(mat_of(d, two[0].weight)->fmt) &&
           !(d->lora && (two[0].adapter || two[1].adapter));
}

/* Products whose results are wanted as they are: on the way through cuBLASLt the row's scale and the bias are still
 * to be applied. */
int product_finished(struct cuda_device *d, enum path path, const struct product *p, uint32_t n, uint32_t m,
                     struct err *e)
{
    if (product_run(d, path, p, n, m, &product_plain, e))
        return -1;
    for (uint32_t i = 0; i < n && path == PATH_HALF; i++) {
        struct tail_args t = {.y = p[i].y,
                              .ldy = p[i].ldy,
                              .row_scale = d->half_scale,
                              .bias = vector_of(d, p[i].bias),
                              .m = m,
                              .n = mat_of(d, p[i].weight)->n,
                              .scale = 1.0f,
                              .out = p[i].y,
                              .ldo = p[i].ldy};
        if (gpu_launch(d->g, K_TAIL, gpu_grid(m, 1, 1, 256, 0), &t, e))
            return -1;
    }
    return 0;
}

static int product_tail(struct cuda_device *d, const struct tail *t, const float *y, uint64_t ldy, uint32_t n,
                        uint32_t m, const float *row_scale, const float *bias, struct err *e)
{
    struct tail_args a = {.y = y,
                          .ldy = ldy,
                          .row_scale = row_scale,
                          .bias = bias,
                          .m = m,
                          .n = n,
                          .post = product_norm(d, &t->post),
                          .after = product_norm(d, &t->after),
                          .scale = t->scale,
                          .residual = buffer_at(d, t->residual),
                          .ldr = buffer_ld(d, t->residual),
                          .out = buffer_at(d, t->out),
                          .ldo = buffer_ld(d, t->out)};
    return gpu_launch(d->g, K_TAIL, gpu_grid(m, 1, 1, n >= 2048 ? 512 : 256, 0), &a, e);
}

/* The last product of an operation, with its tail: in the product itself where nothing but a sum follows. */
int product_last(struct cuda_device *d, enum path path, const struct linear *l, const struct tail *t,
                 uint32_t m, struct err *e)
{
    uint32_t n = mat_of(d, l->weight)->n;
    if (path != PATH_HALF && t->post.kind == NORM_NONE && t->after.kind == NORM_NONE) {
        struct product p = {l->weight, l->bias, l->adapter, buffer_at(d, t->out), buffer_ld(d, t->out)};
        struct after after = {
            .scale = t->scale, .residual = buffer_at(d, t->residual), .ldr = buffer_ld(d, t->residual)};
        return product_run(d, path, &p, 1, m, &after, e);
    }
    struct product p = {l->weight, path == PATH_HALF ? 0 : l->bias, l->adapter, d->y, n};
    if (product_run(d, path, &p, 1, m, &product_plain, e))
        return -1;
    return product_tail(d, t, d->y, n, n, m, path == PATH_HALF ? d->half_scale : NULL,
                        path == PATH_HALF ? vector_of(d, l->bias) : NULL, e);
}

int step_product(struct cuda_device *d, enum path path, const struct mat *w, const float *x, uint32_t m,
                 float *y, struct err *e)
{
    const weight_id part = d->weights.count;
    struct input in = {x, w->k, m, w->k, NULL, NULL, false};
    struct product p = {part, 0, 0, y, w->n};
    d->weights.mat[part] = *w;
    product_expect(d, m, &part, 1);
    return product_input(d, path, &in, e) || product_finished(d, path, &p, 1, m, e) ? -1 : 0;
}

/* gate and up lie side by side in y. */
int product_act(struct cuda_device *d, enum path path, struct act_args *a, bool grouped, struct err *e)
{
    a->out = product_out(d, path, a->m, a->k);
    if (grouped)
        a->out.groups = 1;
    d->in.x = NULL;
    d->lora_in = (struct lora_in){.x = d->lora_x, .ldx = a->k, .first = d->row_first};
    if (grouped) {
        d->lora_in.row = d->slot_row;
        d->lora_in.expert = d->group_expert;
    }
    if (d->lora) {
        struct act_args rows = *a;
        rows.out = (struct pack_out){.rows = d->lora_x, .ldr = a->k};
        if (put_act(d, PATH_FLOAT, &rows, e))
            return -1;
    }
    return put_act(d, path, a, e);
}

/* Rows without a norm, packed by as many warps as they have columns of 256. */
int product_unnormed(struct cuda_device *d, const struct input *in, struct err *e)
{
    struct act_args a = {.up = in->x,
                         .ld = in->ldx,
                         .m = in->m,
                         .k = in->k,
                         .act = ACT_NONE,
                         .out = product_out(d, PATH_PACK, in->m, in->k)};
    if (product_waits(d, PATH_PACK, in))
        return product_input(d, PATH_PACK, in, e);
    d->lora_in = (struct lora_in){.x = in->x, .ldx = in->ldx, .first = d->row_first};
    return put_act(d, PATH_PACK, &a, e);
}

int product_float(struct cuda_device *d, const struct float_args *a, uint32_t adapter, struct err *e)
{
    const uint32_t heads = a->heads ? a->heads : 1;
    struct gpu_grid grid = gpu_grid(gpu_blocks(a->w.n, 8), gpu_blocks(a->m, 8), heads, 256, 0);
    struct lora_job job = {.slot = adapter,
                           .m = a->m,
                           .heads = a->heads,
                           .x_step = a->x_step,
                           .y_step = a->y_step,
                           .y = a->y,
                           .ldy = a->ldy,
                           .scale = a->scale};
    if (!a->expert)
        d->lora_in = (struct lora_in){.x = a->x, .ldx = a->ldx, .first = d->row_first};
    if ((d->lora && lora_down(d, &job, e)) || gpu_launch(d->g, K_GEMM_FLOAT, grid, a, e))
        return -1;
    return d->lora ? lora_up(d, &job, e) : 0;
}
