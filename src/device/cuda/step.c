/* The operations of a plan as launches. */
#include "device/cuda/exec.h"

#include "base/log.h"

#include <string.h>

static struct mat *mat_of(struct cuda_device *d, weight_id w)
{
    return &d->weights.mat[w];
}

static const float *vector_of(struct cuda_device *d, weight_id w)
{
    return w ? (const float *)d->weights.mat[w].base : NULL;
}

static float *at(struct cuda_device *d, struct operand o)
{
    return o.buffer ? d->buffer[o.buffer] + o.col : NULL;
}

static uint64_t ld(struct cuda_device *d, struct operand o)
{
    return d->width[o.buffer];
}

static struct norm_args norm_of(struct cuda_device *d, const struct norm *n)
{
    return (struct norm_args){.kind = n->kind,
                              .heads = n->heads,
                              .w = vector_of(d, n->weight),
                              .b = vector_of(d, n->bias),
                              .w_len = n->weight ? d->weights.mat[n->weight].k : 0,
                              .eps = n->eps};
}

static enum path path_for(const struct cuda_device *d, uint32_t m)
{
    if (d->options.exact)
        return PATH_FLOAT;
    return m > PACK_ROWS_MOST && d->blas ? PATH_HALF : PATH_PACK;
}

/* m rows will be packed for products with these weights (0: none). */
static void expect(struct cuda_device *d, uint32_t m, const weight_id *w, uint32_t n)
{
    bool wide = true;
    for (uint32_t i = 0; i < n; i++)
        wide = wide && (!w[i] || gpu_is_wide(d->g, mat_of(d, w[i])->fmt, m));
    d->order = wide ? PACK_CORES : PACK_LANES;
}

static struct pack_out out_of(struct cuda_device *d, enum path path, uint32_t m, uint32_t k)
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

/* The input of products: m rows of x, normed, in the form that `path` takes. */
struct input {
    const float *x;
    uint64_t ldx;
    uint32_t m, k;
    const struct norm *norm;
    const int32_t *row; /* row i is x's row row[i] */
    bool grouped;       /* the rows of experts: each group of eight by itself */
};

static int put_rows(struct cuda_device *d, const struct pack_args *a, struct err *e)
{
    uint32_t kernel = a->k <= 4096 ? 0 : a->k <= 8192 ? 1 : 2;
    unsigned warps = (a->k + 255) / 256 < 16 ? (a->k + 255) / 256 : 16;
    return gpu_launch(d->g, K_NORM_PACK + kernel, gpu_grid(a->m, 1, 1, kernel == 2 ? 1024 : 32 * warps, 0), a,
                      e);
}

/* One row in front of tiles: the product makes its input itself, so nothing is launched for it yet. */
static bool may_wait(const struct cuda_device *d, enum path path, const struct input *in)
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

/* The input after all, for a product that wants it packed. */
static int flush_input(struct cuda_device *d, struct err *e)
{
    d->in.x = NULL;
    return put_rows(d, &d->in_rows, e);
}

static int put_input(struct cuda_device *d, enum path path, const struct input *in, struct err *e)
{
    struct pack_args a = {.x = in->x, .ldx = in->ldx, .m = in->m, .k = in->k, .slot_row = in->row};
    if (in->norm)
        a.norm = norm_of(d, in->norm);
    a.out = out_of(d, path, in->m, in->k);
    if (in->grouped)
        a.out.groups = 1;
    d->in.x = NULL;
    if (may_wait(d, path, in) && (!in->row || d->meta.rows == 1)) {
        d->in = (struct gemm_in){in->x, a.norm};
        d->in_rows = a;
        return 0;
    }
    return put_rows(d, &a, e);
}

/* One product of a set that shares its input; y is (m, ldy). */
struct product {
    weight_id weight, bias;
    float *y;
    uint64_t ldy;
};

/* What follows: y = scale * (W x + bias) + residual; or, of a pair of products, y = act(gate) * up. */
struct after {
    float scale;
    const float *residual;
    uint64_t ldr;
    bool paired;
    enum act_kind act;
};

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
    uint32_t strips = strips_of(d, p, n, TILE_ROWS);
    struct gpu_gemm how = gpu_gemm_choose(d->g, first->fmt, m, strips, first->k);
    const uint32_t warps = how.grid.threads / 32;
    if (paired && how.split == warps) { /* both strips of a pair lie in one block */
        how.split /= 2;
        how.grid.x = gpu_blocks(strips, warps / how.split);
    }
    return how;
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
    if (d->in.x) {
        /* a block repeats the work on the row: not for so many that this costs more than a launch */
        if (is_tile(first) && how.grid.x <= (uint32_t)d->g->profile.sms * 4) {
            a.in = d->in;
            how.kernel = K_GEMM_ROW;
            how.grid.shared = columns * 560; /* ROW_COLUMN of gemm_tile.cu */
        } else if (flush_input(d, e)) {
            return -1;
        }
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

/* Through cuBLASLt, a bounded slice of decoded weights at a time. Neither bias nor scale: the caller's tail does those. */
static int run_half(struct cuda_device *d, const struct product *p, uint32_t n, uint32_t m, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct mat *w = mat_of(d, p[i].weight);
        uint32_t kp = (w->k + 31) / 32 * 32, most = (uint32_t)(d->decoded_bytes / 2 / kp) / 128 * 128;
        for (uint32_t row = 0; row < w->n; row += most) {
            struct dequant_args a = {.w = *w, .dst = d->decoded, .first = row, .kp = kp};
            a.rows = w->n - row < most ? w->n - row : most;
            bool tile = w->fmt == FMT_Q4_K_TILE; /* the one form with a kernel of its own */
            uint64_t tiles = (uint64_t)((a.rows + 15) / 16) * (w->k / 256);
            struct gpu_grid grid = gpu_grid(tile ? gpu_blocks(tiles, 8) : a.rows, 1, 1, 256, 0);
            struct blas_product b = {.w = (cu_ptr)d->decoded,
                                     .x = (cu_ptr)d->half,
                                     .y = (cu_ptr)(p[i].y + row),
                                     .m = m,
                                     .n = a.rows,
                                     .k = kp,
                                     .ldy = p[i].ldy};
            if (gpu_launch(d->g, tile ? K_DEQUANT_TILE : K_DEQUANT, grid, &a, e) || blas_run(d->blas, &b, e))
                return -1;
        }
    }
    return 0;
}

static int run_products(struct cuda_device *d, enum path path, const struct product *p, uint32_t n,
                        uint32_t m, const struct after *after, struct err *e)
{
    if (path == PATH_HALF)
        return run_half(d, p, n, m, e);
    if (path == PATH_FLOAT)
        return run_float(d, p, n, m, after, e);
    return run_packed(d, p, n, m, after, e);
}

static const struct after plain = {.scale = 1.0f};

/* Products whose results are wanted as they are: on the way through cuBLASLt the row's scale and the bias are still
 * to be applied. */
static int run_finished(struct cuda_device *d, enum path path, const struct product *p, uint32_t n,
                        uint32_t m, struct err *e)
{
    if (run_products(d, path, p, n, m, &plain, e))
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

static int run_tail(struct cuda_device *d, const struct tail *t, const float *y, uint64_t ldy, uint32_t n,
                    uint32_t m, const float *row_scale, const float *bias, struct err *e)
{
    struct tail_args a = {.y = y,
                          .ldy = ldy,
                          .row_scale = row_scale,
                          .bias = bias,
                          .m = m,
                          .n = n,
                          .post = norm_of(d, &t->post),
                          .after = norm_of(d, &t->after),
                          .scale = t->scale,
                          .residual = at(d, t->residual),
                          .ldr = ld(d, t->residual),
                          .out = at(d, t->out),
                          .ldo = ld(d, t->out)};
    return gpu_launch(d->g, K_TAIL, gpu_grid(m, 1, 1, n >= 2048 ? 512 : 256, 0), &a, e);
}

/* The last product of an operation, with its tail: in the product itself where nothing but a sum follows. */
static int run_last(struct cuda_device *d, enum path path, const struct linear *l, const struct tail *t,
                    uint32_t m, struct err *e)
{
    uint32_t n = mat_of(d, l->weight)->n;
    if (path != PATH_HALF && t->post.kind == NORM_NONE && t->after.kind == NORM_NONE) {
        struct product p = {l->weight, l->bias, at(d, t->out), ld(d, t->out)};
        struct after after = {.scale = t->scale, .residual = at(d, t->residual), .ldr = ld(d, t->residual)};
        return run_products(d, path, &p, 1, m, &after, e);
    }
    struct product p = {l->weight, path == PATH_HALF ? 0 : l->bias, d->y, n};
    if (run_products(d, path, &p, 1, m, &plain, e))
        return -1;
    return run_tail(d, t, d->y, n, n, m, path == PATH_HALF ? d->half_scale : NULL,
                    path == PATH_HALF ? vector_of(d, l->bias) : NULL, e);
}

int step_product(struct cuda_device *d, enum path path, const struct mat *w, const float *x, uint32_t m,
                 float *y, struct err *e)
{
    const weight_id part = d->weights.count;
    struct input in = {x, w->k, m, w->k, NULL, NULL, false};
    struct product p = {part, 0, y, w->n};
    d->weights.mat[part] = *w;
    expect(d, m, &part, 1);
    return put_input(d, path, &in, e) || run_finished(d, path, &p, 1, m, e) ? -1 : 0;
}

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
                           .norm = norm_of(d, &o->norm),
                           .out = at(d, o->out),
                           .ldo = ld(d, o->out),
                           .meta = d->meta};
    a.width = a.table.k;
    if (o->positions)
        a.positions = *mat_of(d, o->positions);
    if (o->types)
        a.types = *mat_of(d, o->types);
    return gpu_launch(d->g, K_EMBED, gpu_grid(d->meta.rows, 1, 1, 256, 0), &a, e);
}

/* Which kernels a head size has on the tensor cores; -1: none. */
static int dim_index(uint32_t dim)
{
    return dim == 64 ? 0 : dim == 96 ? 1 : dim == 128 ? 2 : dim == 256 ? 3 : -1;
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
           dim_index(o->k_dim) >= 0 && ratio <= DECODE_QUERIES && ratio_index(d, ratio) < d->ratios;
}

static int op_qkv(struct cuda_device *d, const struct plan *p, const struct op_qkv *o, struct err *e)
{
    uint32_t m = d->meta.rows, q_n = o->heads * o->k_dim, k_n = o->kv_heads * o->k_dim,
             n = q_n + k_n + o->kv_heads * o->v_dim;
    enum path path = path_for(d, m);
    struct input in = {at(d, o->in), ld(d, o->in), m, mat_of(d, o->q.weight)->k, &o->norm, NULL, false};
    struct product three[3] = {
        {o->q.weight, 0, d->y, n}, {o->k.weight, 0, d->y + q_n, n}, {o->v.weight, 0, d->y + q_n + k_n, n}};
    expect(d, m, (weight_id[]){o->q.weight, o->k.weight, o->v.weight}, 3);
    if (put_input(d, path, &in, e) || run_products(d, path, three, 3, m, &plain, e))
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
                         .q_norm = norm_of(d, &o->q_norm),
                         .k_norm = norm_of(d, &o->k_norm),
                         .rope = o->rope.kind,
                         .rope_dims = o->rope.dims,
                         .rope_first = o->rope.first,
                         .rope_factor = o->rope.factor,
                         .freqs = vector_of(d, o->rope.freqs),
                         .out = at(d, o->out),
                         .ldo = ld(d, o->out),
                         .kv = view_of(d, p, o->layer),
                         .meta = d->meta};
    uint32_t widest = o->k_dim > o->v_dim ? o->k_dim : o->v_dim;
    struct gpu_grid grid = gpu_grid(gpu_blocks(o->heads + 2 * o->kv_heads, 4), m, 1, 128, 4 * widest * 4);
    return gpu_launch(d->g, K_QKV, grid, &a, e);
}

/* Per-head products: y[h] = W[h] x[h], in float. */
static int run_heads(struct cuda_device *d, weight_id w, const float *x, uint64_t ldx, uint32_t x_step,
                     float *y, uint64_t ldy, uint32_t y_step, uint32_t m, struct err *e)
{
    struct float_args a = {.w = *mat_of(d, w),
                           .x = x,
                           .ldx = ldx,
                           .y = y,
                           .ldy = ldy,
                           .m = m,
                           .scale = 1.0f,
                           .x_step = x_step,
                           .y_step = y_step};
    a.heads = a.w.count;
    struct gpu_grid grid = gpu_grid(gpu_blocks(a.w.n, 8), gpu_blocks(m, 8), a.heads, 256, 0);
    return gpu_launch(d->g, K_GEMM_FLOAT, grid, &a, e);
}

static int op_latent(struct cuda_device *d, const struct plan *p, const struct op_latent *o, struct err *e)
{
    uint32_t m = d->meta.rows, width = o->latent + o->rope.dims, q_n = o->heads * (o->nope + o->rope.dims);
    enum path path = path_for(d, m);
    struct input in = {at(d, o->in), ld(d, o->in), m, mat_of(d, o->kv_a.weight)->k, &o->norm, NULL, false};
    uint32_t a_n = o->q_a.weight ? mat_of(d, o->q_a.weight)->n : 0;
    float *c = d->z, *low = d->z + (uint64_t)m * width, *q = d->y;
    struct product first[2] = {{o->kv_a.weight, o->kv_a.bias, c, width},
                               {o->q_b.weight, o->q_b.bias, q, q_n}};
    if (a_n)
        first[1] = (struct product){o->q_a.weight, o->q_a.bias, low, a_n};
    expect(d, m, (weight_id[]){first[0].weight, first[1].weight}, 2);
    if (put_input(d, path, &in, e) || run_finished(d, path, first, 2, m, e))
        return -1;
    if (a_n) {
        struct input second = {low, a_n, m, a_n, &o->q_norm, NULL, false};
        struct product b = {o->q_b.weight, o->q_b.bias, q, q_n};
        expect(d, m, &b.weight, 1);
        if (put_input(d, path, &second, e) || run_finished(d, path, &b, 1, m, e))
            return -1;
    }
    struct latent_args a = {.q = q,
                            .ldq = q_n,
                            .c = c,
                            .ldc = width,
                            .norm = norm_of(d, &o->kv_norm),
                            .m = m,
                            .heads = o->heads,
                            .nope = o->nope,
                            .latent = o->latent,
                            .rope = o->rope.kind,
                            .rope_dims = o->rope.dims,
                            .rope_factor = o->rope.factor,
                            .freqs = vector_of(d, o->rope.freqs),
                            .out = at(d, o->out),
                            .ldo = ld(d, o->out),
                            .kv = view_of(d, p, o->layer),
                            .meta = d->meta};
    struct gpu_grid grid = gpu_grid(gpu_blocks(o->heads + 1, 4), m, 1, 128, 4 * width * 4);
    if (gpu_launch(d->g, K_LATENT, grid, &a, e))
        return -1;
    return run_heads(d, o->k_b, q, q_n, o->nope + o->rope.dims, at(d, o->out), ld(d, o->out), width, m, e);
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
    if (path_for(d, d->meta.rows) == PATH_PACK && !d->any_prefill && feeds_product(d, p, i) &&
        (a->splits > 1 || ratio * o->v_dim % 256 == 0) &&
        !(row && is_tile(mat_of(d, p->ops[i + 1].out.linear.weight)))) {
        expect(d, d->meta.rows, &p->ops[i + 1].out.linear.weight, 1);
        a->pack = out_of(d, PATH_PACK, d->meta.rows, o->heads * o->v_dim);
        d->packed = o->out;
    }
    struct gpu_grid grid = gpu_grid(a->splits, a->kv.heads, d->meta.seqs, 128, how.shared);
    struct gpu_grid join = gpu_grid(gpu_blocks((uint64_t)o->heads * o->v_dim, 256), d->meta.rows, 1, 256, 0);
    uint32_t kernel = !few ? K_ATTN_DECODE : how.stages == 1 ? K_ATTN_FEW : K_ATTN_FAR;
    if (gpu_launch(d->g, kernel + (uint32_t)dim_index(o->k_dim), grid, a, e))
        return -1;
    return a->splits > 1 ? gpu_launch(d->g, K_ATTN_COMBINE, join, a, e) : 0;
}

static int op_attn(struct cuda_device *d, const struct plan *p, uint32_t i, struct err *e)
{
    const struct op_attn *o = &p->ops[i].attn;
    struct attn_args a = {.q = at(d, o->in),
                          .ldq = ld(d, o->in),
                          .out = at(d, o->out),
                          .ldo = ld(d, o->out),
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
    if (d->tiles[r]) {
        struct attn_args b = a;
        b.tiles = d->tiles[r];
        b.meta.tiles += d->tiles_at[r];
        uint32_t row = 2 * o->k_dim;
        struct gpu_grid grid = gpu_grid(b.tiles, a.kv.heads, 1, 128, 2 * 64 * (row + 16 + row));
        if (gpu_launch(d->g, K_ATTN_PREFILL + (uint32_t)dim_index(o->k_dim), grid, &b, e))
            return -1;
    }
    return d->any_decode ? attn_decode(d, p, i, &a, e) : 0;
}

static int op_out(struct cuda_device *d, const struct op_out *o, struct err *e)
{
    uint32_t m = d->meta.rows;
    enum path path = path_for(d, m);
    struct input in = {at(d, o->in), ld(d, o->in), m, mat_of(d, o->linear.weight)->k, &o->norm, NULL, false};
    bool packed = d->packed.buffer && d->packed.buffer == o->in.buffer && d->packed.col == o->in.col;
    d->in.x = NULL;
    expect(d, m, &o->linear.weight, 1);
    if (!(packed && path == PATH_PACK) && put_input(d, path, &in, e))
        return -1;
    return run_last(d, path, &o->linear, &o->tail, m, e);
}

/* gate and up lie side by side in y. */
static int run_act(struct cuda_device *d, enum path path, struct act_args *a, bool grouped, struct err *e)
{
    a->out = out_of(d, path, a->m, a->k);
    if (grouped)
        a->out.groups = 1;
    d->in.x = NULL;
    return put_act(d, path, a, e);
}

/* Rows without a norm, packed by as many warps as they have columns of 256. */
static int put_rows_only(struct cuda_device *d, const struct input *in, struct err *e)
{
    struct act_args a = {.up = in->x,
                         .ld = in->ldx,
                         .m = in->m,
                         .k = in->k,
                         .act = ACT_NONE,
                         .out = out_of(d, PATH_PACK, in->m, in->k)};
    if (may_wait(d, PATH_PACK, in))
        return put_input(d, PATH_PACK, in, e);
    return put_act(d, PATH_PACK, &a, e);
}

/* norm, gate and up, activation: the input of the down product is then in place. */
static int ffn_up(struct cuda_device *d, enum path path, const struct input *in, const struct linear *gate,
                  const struct linear *up, const struct linear *down, enum act_kind act, struct err *e)
{
    const weight_id both[2] = {gate->weight, up->weight};
    uint32_t f = mat_of(d, up->weight)->n, n = gate->weight ? 2 * f : f, m = in->m;
    bool half = path == PATH_HALF;
    struct product two[2] = {{up->weight, half ? 0 : up->bias, d->y + (n - f), n}};
    if (gate->weight) {
        two[1] = two[0];
        two[0] = (struct product){gate->weight, half ? 0 : gate->bias, d->y, n};
    }
    expect(d, m, both, 2);
    if (put_input(d, path, in, e))
        return -1;
    if (path == PATH_PACK && gate->weight && run_of(d, two, 0, 2) == 2 && !d->no_fuse &&
        !layout_plain_bytes(mat_of(d, up->weight)->fmt)) {
        const struct after pair = {.scale = 1.0f, .paired = true, .act = act};
        struct input h = {d->y, f, m, f, NULL, NULL, false};
        two[0].ldy = f;
        if (run_products(d, path, two, 2, m, &pair, e))
            return -1;
        expect(d, m, &down->weight, 1);
        return put_rows_only(d, &h, e);
    }
    if (run_products(d, path, two, gate->weight ? 2 : 1, m, &plain, e))
        return -1;
    expect(d, m, &down->weight, 1);
    struct act_args a = {.gate = gate->weight ? d->y : NULL,
                         .up = d->y + (n - f),
                         .ld = n,
                         .row_scale = half ? d->half_scale : NULL,
                         .m = m,
                         .k = f,
                         .act = act,
                         .gate_bias = half ? vector_of(d, gate->bias) : NULL,
                         .up_bias = half ? vector_of(d, up->bias) : NULL};
    return run_act(d, path, &a, false, e);
}

static int op_ffn(struct cuda_device *d, const struct op_ffn *o, struct err *e)
{
    uint32_t m = d->meta.rows;
    enum path path = path_for(d, m);
    struct input in = {at(d, o->in), ld(d, o->in), m, mat_of(d, o->up.weight)->k, &o->norm, NULL, false};
    return ffn_up(d, path, &in, &o->gate, &o->up, &o->down, o->act, e) ||
                   run_last(d, path, &o->down, &o->tail, m, e)
               ? -1
               : 0;
}

/* Products of grouped rows with the experts they belong to. x is packed, or float rows in d->x. */
static int run_experts(struct cuda_device *d, const struct linear *l, float *y, uint64_t ldy, uint32_t groups,
                       struct err *e)
{
    const struct mat *w = mat_of(d, l->weight);
    if (d->options.exact) {
        struct float_args a = {.w = *w,
                               .x = d->x,
                               .ldx = w->k,
                               .y = y,
                               .ldy = ldy,
                               .bias = vector_of(d, l->bias),
                               .m = groups * 8,
                               .scale = 1.0f,
                               .expert = d->group_expert};
        return gpu_launch(d->g, K_GEMM_FLOAT, gpu_grid(gpu_blocks(w->n, 8), groups, 1, 256, 0), &a, e);
    }
    struct gemm_args a = {
        .segs = 1, .k = w->k, .m = 8, .groups = 1, .scale = 1.0f, .x = d->pack, .expert = d->group_expert};
    a.strips = (w->n + TILE_ROWS - 1) / TILE_ROWS;
    struct gpu_gemm how = gpu_gemm_choose(d->g, w->fmt, 8, a.strips * (groups < 8 ? groups : 8), w->k);
    a.split = how.split;
    a.seg[0] = (struct gemm_seg){.w = *w, .y = y, .ldy = ldy, .bias = vector_of(d, l->bias)};
    how.grid.x = gpu_blocks(a.strips, how.grid.threads / 32 / a.split);
    how.grid.y = groups;
    return gpu_launch(d->g, how.kernel, how.grid, &a, e);
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
    if (gpu_launch(d->g, K_GEMM_FLOAT, gpu_grid(gpu_blocks(o->experts, 8), gpu_blocks(m, 8), 1, 256, 0), &r,
                   e) ||
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
    struct product down = {o->shared_down.weight, o->shared_down.bias, d->shared,
                           mat_of(d, o->shared_down.weight)->n};
    if (run_products(d, path, &down, 1, m, &plain, e))
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
    return gpu_launch(d->g, K_GEMM_FLOAT, gpu_grid(1, gpu_blocks(m, 8), 1, 256, 0), &r, e);
}

/* Rows [first, first + m) of an expert layer: y = sum of the experts, into d->y's second part, then the tail. */
static int moe_rows(struct cuda_device *d, const struct op_moe *o, uint32_t first, uint32_t m, struct err *e)
{
    uint32_t width = mat_of(d, o->up.weight)->k, f = mat_of(d, o->up.weight)->n,
             n = mat_of(d, o->down.weight)->n;
    struct pack_args norm = {.x = at(d, o->in) + first * ld(d, o->in),
                             .ldx = ld(d, o->in),
                             .m = m,
                             .k = width,
                             .norm = norm_of(d, &o->norm),
                             .out = {.rows = d->z, .ldr = width}};
    if (put_rows(d, &norm, e))
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
    if (put_input(d, path, &in, e) || (gated && run_experts(d, &o->gate, d->y, 2 * f, groups, e)) ||
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
    if (run_act(d, path, &act, true, e) || run_experts(d, &o->down, d->y, n, groups, e))
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
                          .post = norm_of(d, &o->tail.post),
                          .after = norm_of(d, &o->tail.after),
                          .scale = o->tail.scale,
                          .residual = o->tail.residual.buffer
                                          ? at(d, o->tail.residual) + first * ld(d, o->tail.residual)
                                          : NULL,
                          .ldr = ld(d, o->tail.residual),
                          .out = at(d, o->tail.out) + first * ld(d, o->tail.out),
                          .ldo = ld(d, o->tail.out)};
    return gpu_launch(d->g, K_TAIL, gpu_grid(m, 1, 1, 256, 0), &t, e);
}

static int op_moe(struct cuda_device *d, const struct op_moe *o, struct err *e)
{
    for (uint32_t first = 0; first < d->meta.rows; first += MOE_ROWS) {
        uint32_t left = d->meta.rows - first;
        if (moe_rows(d, o, first, left < MOE_ROWS ? left : MOE_ROWS, e))
            return -1;
    }
    return 0;
}

static int op_logits(struct cuda_device *d, const struct plan *p, const struct op_logits *o, struct err *e)
{
    uint32_t m = d->meta.outs, width = d->width[o->in.buffer] - o->in.col;
    if (!m)
        return 0;
    if (!o->head.weight) {
        width = p->out_width;
        struct pack_args a = {.x = at(d, o->in),
                              .ldx = ld(d, o->in),
                              .m = m,
                              .k = width,
                              .norm = norm_of(d, &o->norm),
                              .out = {.rows = d->logits, .ldr = width},
                              .slot_row = d->meta.out};
        return put_rows(d, &a, e);
    }
    const struct mat *w = mat_of(d, o->head.weight);
    enum path path = path_for(d, m);
    struct input in = {at(d, o->in), ld(d, o->in), m, w->k, &o->norm, d->meta.out, false};
    /* Where nothing follows, the product writes to the host's memory itself: the transfer hides behind it. */
    d->direct = path == PATH_PACK && o->scale == 1.0f && o->softcap <= 0.0f && !d->picks;
    struct product head = {o->head.weight, path == PATH_HALF ? 0 : o->head.bias,
                           d->direct ? d->results : d->logits, w->n};
    expect(d, m, &o->head.weight, 1);
    if (put_input(d, path, &in, e) || run_finished(d, path, &head, 1, m, e))
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
    case OP_HEADS: {
        const struct op_heads *h = &o->heads;
        const struct mat *w = mat_of(d, h->weight);
        return run_heads(d, h->weight, at(d, h->in), ld(d, h->in), w->k, at(d, h->out), ld(d, h->out), w->n,
                         d->meta.rows, e);
    }
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
