/* What a plan takes on the card: KV, and scratch for its launches; and how they are laid out. */
#include "device/cuda/exec.h"

#include "codec/dtype.h"
#include "base/size.h"

/* ---- KV ---- */

static int kv_type_of(uint32_t dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return KV_F32;
    case DTYPE_F16:
        return KV_F16;
    case DTYPE_BF16:
        return KV_BF16;
    case DTYPE_Q8_0:
        return KV_Q8_0;
    case DTYPE_F8_E4M3:
        return KV_F8;
    default:
        return -1;
    }
}

uint32_t kv_row_bytes(uint32_t type, uint32_t dim)
{
    static const uint32_t bytes[] = {[KV_F32] = 4, [KV_F16] = 2, [KV_BF16] = 2, [KV_F8] = 1};
    return type == KV_Q8_0 ? dim / 32 * 34 : dim * bytes[type];
}

int kv_shape(struct group_kv *group, const struct plan *p, const struct kv_config *kv, struct err *e)
{
    int type = kv_type_of(kv->type);
    if (type < 0)
        return err_set(e, ERR_USAGE, "the GPU keeps KV as F32, F16, BF16, Q8_0 or F8_E4M3, not as %s",
                       dtype_get(kv->type) ? dtype_get(kv->type)->name : "that type");
    if (kv->page_tokens < 16 || !size_is_pow2(kv->page_tokens))
        return err_set(e, ERR_USAGE, "a KV page of %u tokens: a power of two, at least 16, was expected",
                       kv->page_tokens);
    for (uint32_t i = 0; i < p->groups; i++) {
        struct group_kv *g = &group[i];
        *g = (struct group_kv){.shape = p->group[i], .type = (uint32_t)type};
        if (type == KV_Q8_0 && (g->shape.k_dim % 32 || g->shape.v_dim % 32))
            return err_set(e, ERR_USAGE,
                           "KV as Q8_0 needs heads of a multiple of 32 values, this model has %u and %u",
                           g->shape.k_dim, g->shape.v_dim);
        g->k_row = kv_row_bytes(g->type, g->shape.k_dim);
        g->v_row = kv_row_bytes(g->type, g->shape.v_dim);
        g->layer_bytes = (uint64_t)kv->page_tokens * g->shape.kv_heads * (g->k_row + g->v_row);
        g->page_bytes = g->layer_bytes * g->shape.layers;
        g->bytes = gpu_granules(g->page_bytes * kv->pages[i]);
    }
    return 0;
}

/* ---- scratch ---- */

enum { GRID_ROWS_MOST = 65535 }; /* blocks of a grid in y and z */

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A linear layer: its width in, and what decoding it takes where many rows may come. */
static void measure_linear(const struct weights *all, struct step_sizes *s, weight_id w, bool head)
{
    if (!w)
        return;
    const struct weight *m = &all->all[w];
    s->k = most(s->k, m->cols);
    uint64_t bytes = (uint64_t)((m->rows + 127) / 128 * 128) * ((m->cols + 31) / 32 * 32) * 2;
    if (m->count != 1)
        return;
    if (head) /* a slice at a time, which is 128 rows at least */
        bytes = (uint64_t)((m->cols + 31) / 32 * 32) * 128 * 2;
    s->decoded = bytes > s->decoded ? bytes : s->decoded;
}

static void measure_attn(const struct size_limits *d, const struct op_attn *o, struct step_sizes *s)
{
    uint64_t parts = gpu_decode_parts(d->card, (uint64_t)o->kv_heads * d->max_seqs) * DECODE_QUERIES,
             shared = (uint64_t)gpu_prefill_slots(d->card) * TILE_QUERIES;
    parts = parts > shared ? parts : shared;
    s->part = parts * o->v_dim > s->part ? parts * o->v_dim : s->part;
    s->part_ml = parts * 2 > s->part_ml ? parts * 2 : s->part_ml;
}

static uint64_t measure_scan(const struct size_limits *d, const struct op_scan *o, uint64_t chunk)
{
    const uint64_t own = scan_chunk_bytes(o->heads, o->k_heads, o->k_dim);
    return d->card->wide && lower_has_chunks(o) && own > chunk ? own : chunk;
}

static void measure_moe(const struct size_limits *d, const struct weights *all, const struct op_moe *o,
                        struct step_sizes *s)
{
    const struct weight *w = all->all;
    uint32_t f = w[o->up.weight].rows, n = w[o->down.weight].rows, k = w[o->up.weight].cols;
    uint32_t at_once = lower_moe_rows(o, k, f, n), rows = d->max_rows < at_once ? d->max_rows : at_once;
    /* a list is made for whole groups of rows, which may have larger tiles than the rows of a step */
    uint32_t whole = (rows + GEMM_ROWS_MOST - 1) / GEMM_ROWS_MOST * GEMM_ROWS_MOST,
             slots = lower_moe_slots(whole < at_once ? whole : at_once, o->used, o->experts);
    /* y and the packed input hold slots rows, not max_rows: said as a width of max_rows rows */
    uint64_t y = (uint64_t)slots * most(2 * f, n), per = (y + d->max_rows - 1) / d->max_rows;
    s->y = most(s->y, (uint32_t)per);
    uint64_t wide = (uint64_t)slots * most((k + 255) / 256 * 256, (f + 255) / 256 * 256);
    s->slots_k = most(s->slots_k, (uint32_t)((wide + d->max_rows - 1) / d->max_rows));
    s->moe_rows = most(s->moe_rows, rows);
    s->slots = most(s->slots, slots);
    s->z = most(s->z, most(w[o->router.weight].cols, most(k, n)));
    s->experts = most(s->experts, o->experts + o->identities);
    s->used = most(s->used, o->used);
    s->shared_width = most(s->shared_width, n);
    measure_linear(all, s, o->shared_gate.weight, false);
    measure_linear(all, s, o->shared_up.weight, false);
    measure_linear(all, s, o->shared_down.weight, false);
    if (o->shared_up.weight)
        s->y = most(s->y, 2 * w[o->shared_up.weight].rows);
}

static void measure_lora(const struct plan *p, const struct weights *w, struct step_sizes *s)
{
    uint32_t heads = LORA_AREAS;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *o = &p->ops[i];
        uint32_t n = o->kind == OP_LATENT  ? o->latent.heads
                     : o->kind == OP_HEADS ? w->all[o->heads.weight].count
                                           : 0;
        heads = n > heads ? n : heads;
    }
    s->lora_rank = plan_rank(p, w);
    s->lora_low = (uint64_t)heads * ADAPTERS_MIXED * s->lora_rank;
}

/* Sizes that kernels have a limit for. */
static int check_sizes(const struct op *o, const struct weight *w, struct err *e)
{
    if (o->kind == OP_ATTN && o->attn.v_dim > 1024)
        return err_set(e, ERR_DATA, "attention of layer %u has heads of %u values: the GPU takes 1024",
                       o->layer, o->attn.v_dim);
    if (o->kind == OP_CONV && o->conv.cols > CONV_COLS_MOST)
        return err_set(e, ERR_DATA, "the convolution of layer %u has %u columns: the GPU takes %d", o->layer,
                       o->conv.cols, CONV_COLS_MOST);
    if (o->kind == OP_SCAN && o->scan.k_dim > SCAN_KEYS_MOST)
        return err_set(e, ERR_DATA, "the recurrence of layer %u has keys of %u values: the GPU takes %d",
                       o->layer, o->scan.k_dim, SCAN_KEYS_MOST);
    if (o->kind == OP_FFN && o->ffn.inner.kind && w[o->ffn.up.weight].rows > NORM_WIDTH_MOST)
        return err_set(e, ERR_DATA, "hidden values of %u are normed: the GPU takes %d",
                       w[o->ffn.up.weight].rows, NORM_WIDTH_MOST);
    return 0;
}

static void measure_op(const struct size_limits *d, const struct weights *all, const struct op *o,
                       struct step_sizes *s)
{
    const struct weight *w = all->all;
    switch (o->kind) {
    case OP_QKV:
        if (o->qkv.given.buffer)
            break;
        measure_linear(all, s, o->qkv.q.weight, false);
        measure_linear(all, s, o->qkv.k.weight, false);
        measure_linear(all, s, o->qkv.v.weight, false);
        s->y = most(s->y, o->qkv.heads * o->qkv.k_dim + o->qkv.kv_heads * (o->qkv.k_dim + o->qkv.v_dim));
        break;
    case OP_LATENT:
        measure_linear(all, s, o->latent.q_a.weight, false);
        measure_linear(all, s, o->latent.q_b.weight, false);
        measure_linear(all, s, o->latent.kv_a.weight, false);
        s->y = most(s->y, o->latent.heads * (o->latent.nope + o->latent.rope.dims));
        s->z = most(s->z, o->latent.latent + o->latent.rope.dims +
                              (o->latent.q_a.weight ? w[o->latent.q_a.weight].rows : 0));
        break;
    case OP_ATTN:
        measure_attn(d, &o->attn, s);
        break;
    case OP_SCAN:
        s->chunk = measure_scan(d, &o->scan, s->chunk);
        break;
    case OP_PROJ:
        for (uint32_t j = 0; j < o->proj.count; j++)
            measure_linear(all, s, o->proj.linear[j].weight, false);
        break;
    case OP_OUT:
        s->z = most(s->z, lower_is_gated(&o->out) ? w[o->out.linear.weight].cols : 0);
        measure_linear(all, s, o->out.linear.weight, false);
        s->y = most(s->y, w[o->out.linear.weight].rows);
        break;
    case OP_FFN:
        measure_linear(all, s, o->ffn.gate.weight, false);
        measure_linear(all, s, o->ffn.up.weight, false);
        measure_linear(all, s, o->ffn.down.weight, false);
        /* gate and up; or their result, and behind it what waits for a tail */
        s->y =
            most(s->y, w[o->ffn.up.weight].rows + most(w[o->ffn.up.weight].rows, w[o->ffn.down.weight].rows));
        break;
    case OP_MOE:
        measure_moe(d, all, &o->moe, s);
        break;
    case OP_LOGITS:
        measure_linear(all, s, o->logits.head.weight, true);
        break;
    default:
        break;
    }
}

int step_measure(const struct size_limits *d, const struct plan *p, const struct weights *all,
                 struct step_sizes *s, struct err *e)
{
    *s = (struct step_sizes){.y = 1, .k = 1, .z = 1, .part = 1, .part_ml = 1};
    if (d->max_rows > GRID_ROWS_MOST)
        return err_set(e, ERR_USAGE, "steps of %u rows: the GPU takes %d; a smaller --ctx helps", d->max_rows,
                       GRID_ROWS_MOST);
    measure_lora(p, all, s);
    for (uint32_t i = 1; i < p->buffers; i++)
        if (p->width[i] > NORM_WIDTH_MOST)
            return err_set(e, ERR_DATA, "rows of %u values: the GPU takes %d", p->width[i], NORM_WIDTH_MOST);
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *o = &p->ops[i];
        if (lower_refuses(o))
            continue; /* on the CPU */
        if (check_sizes(o, all->all, e))
            return -1;
        measure_op(d, all, o, s);
    }
    return 0;
}

struct bump {
    uint64_t at;
    cu_ptr base;
};

static void *take(struct bump *b, uint64_t bytes)
{
    uint64_t from = b->at;
    b->at += (bytes + 255) / 256 * 256;
    return (void *)(b->base + from);
}

static void place_moe(struct scratch *s, const struct step_sizes *z, struct bump *b)
{
    const uint64_t moe = z->moe_rows, slots = z->slots;
    s->router = take(b, moe * (z->experts + 1) * 4);
    s->route_weight = take(b, moe * z->used * 4);
    s->route_expert = take(b, moe * z->used * 4);
    s->shared = take(b, moe * z->shared_width * 4);
    s->slot = take(b, moe * z->used * 4);
    s->slot_row = take(b, slots * 4);
    s->slot_weight = take(b, slots * 4);
    s->group_expert = take(b, slots / 8 * 4);
    s->tile = take(b, slots / 8 * sizeof *s->tile);
}

uint64_t scratch_place(struct scratch *s, const struct plan *p, const struct step_sizes *z,
                       const struct scratch_shape *shape, cu_ptr base)
{
    const uint64_t rows = shape->max_rows, in = rows > shape->max_outs ? rows : shape->max_outs;
    const uint32_t k = most(z->k, z->slots_k); /* of what experts' rows go through, too */
    const bool large = shape->half && in > PACK_ROWS_MOST;
    struct bump b = {0, base};
    for (uint32_t i = 1; i < p->buffers; i++) {
        const uint32_t of = p->fold ? p->fold[i] : 0;
        s->buffer[i] = of ? s->buffer[of] : take(&b, rows * p->width[i] * 4);
    }
    s->max_rows = shape->max_rows;
    s->pack = take(&b, (in + 63) / 64 * 8 * ((k + 255) / 256) * PACK_BYTES);
    s->x = take(&b, shape->exact ? in * ((k + 7) / 8 * 8) * 4 : 0);
    s->half = take(&b, large ? in * ((z->k + 31) / 32 * 32) * 2 : 0);
    s->half_scale = take(&b, in * 4);
    s->out_scale = take(&b, in * 4);
    s->fp8 = take(&b, large && shape->fp8 ? in * ((z->k + 31) / 32 * 32) : 0);
    s->fp8_scale = take(&b, large && shape->fp8 ? in * 4 : 0);
    s->decoded_bytes = large ? z->decoded : 0;
    s->decoded = take(&b, s->decoded_bytes);
    s->y = take(&b, rows * z->y * 4);
    s->z = take(&b, rows * z->z * 4);
    s->part = take(&b, z->part * 4);
    s->part_floats = z->part;
    s->part_ml = take(&b, z->part_ml * 4);
    s->chunks = NULL;
    if (z->chunk && !shape->exact && rows >= CHUNK_LEAST)
        s->chunks = take(&b, rows / CHUNK_LEAST * z->chunk);
    s->logits = take(&b, (uint64_t)shape->max_outs * p->out_width * 4);
    place_moe(s, z, &b);
    s->lora_rank = z->lora_rank;
    s->lora_rows = (uint32_t)(z->slots > in ? z->slots : in);
    s->lora_x = take(&b, z->lora_rank ? in * k * 4 : 0);
    s->lora_low = take(&b, s->lora_rows * z->lora_low * 4);
    s->lora_table = take(&b, p->lora ? (p->slots + 1ull) * (p->adapters + 1) * sizeof *s->lora_table : 0);
    return b.at;
}

uint32_t keys_rounded(uint32_t longest)
{
    uint32_t power = 1;
    while (power < longest)
        power *= 2;
    const uint32_t unit = power / 16 < 64 ? 64 : power / 16;
    return (longest + unit - 1) / unit * unit;
}
