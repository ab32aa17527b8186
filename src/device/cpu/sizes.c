/* The scratch of a step: what the operations of a plan need, placed twice: once to count, once for real. */
#include "device/cpu/cpu.h"

#include "base/pool.h"
#include "base/size.h"

static void *bump_take(struct cpu_bump *b, size_t count, size_t size)
{
    size_t bytes, next;
    if (b->failed || !size_mul(count, size, &bytes) || !size_align(bytes, 64, &bytes) ||
        !size_add(b->at, bytes, &next)) {
        b->failed = true;
        return NULL;
    }
    void *p = b->base ? b->base + b->at : NULL;
    b->at = next;
    return p;
}

static void bump_area(struct cpu_bump *b, struct area *a)
{
    a->f = bump_take(b, a->floats, sizeof *a->f);
    a->q = bump_take(b, a->blocks, Q8_BLOCK);
    a->d = bump_take(b, a->blocks, sizeof *a->d);
    a->s = bump_take(b, a->blocks, sizeof *a->s);
}

/* What the operations of a plan need at most. */
struct need {
    size_t x, h, g, shared, local; /* values of rows of that area; local: of one row */
    size_t qt, kt, vt, sum;
    size_t tile;
    size_t low;             /* rows times the largest rank of an adapter */
    size_t state, prepared; /* of a worker */
    size_t score, choice, pairs, experts;
};

static void need_most(size_t *most, size_t n)
{
    *most = *most > n ? *most : n;
}

static void need_input(struct need *n, size_t rows, size_t k)
{
    need_most(&n->x, rows * area_stride((uint32_t)k));
    need_most(&n->local, area_stride((uint32_t)k));
}

static void need_moe(struct need *n, const struct weights *w, const struct op_moe *o, size_t rows)
{
    uint32_t k = w->all[o->up.weight].cols, slots = o->used;
    need_input(n, rows, k);
    need_input(n, rows, w->all[o->router.weight].cols);
    need_most(&n->g, rows * slots * area_stride(k));
    need_most(&n->h, rows * slots * area_stride(w->all[o->up.weight].rows));
    if (o->shared_up.weight)
        need_most(&n->shared, rows * area_stride(w->all[o->shared_up.weight].rows));
    const size_t all = (size_t)o->experts + o->identities;
    need_most(&n->score, rows * (all + 1));
    need_most(&n->choice, rows * 2 * all);
    need_most(&n->pairs, rows * slots);
    need_most(&n->experts, all + 1);
}

static void need_latent(struct need *n, const struct weights *w, const struct op_latent *o, size_t rows)
{
    need_input(n, rows, w->all[o->kv_a.weight].cols);
    need_input(n, rows, (size_t)o->heads * o->nope);
    need_most(&n->kt, rows * (o->latent + o->rope.dims));
    need_most(&n->qt, rows * o->heads * (o->nope + o->rope.dims));
    if (!o->q_a.weight)
        return;
    need_input(n, rows, w->all[o->q_a.weight].rows);
    need_most(&n->vt, rows * w->all[o->q_a.weight].rows);
}

static void need_op(struct need *n, const struct weights *w, const struct op *op, size_t rows, size_t outs)
{
    const struct weight *all = w->all;
    switch (op->kind) {
    case OP_EMBED:
        need_most(&n->tile, op->embed.table ? all[op->embed.table].cols : 0);
        break;
    case OP_QKV:
        need_input(n, rows, all[op->qkv.q.weight].cols);
        need_most(&n->kt, rows * op->qkv.kv_heads * op->qkv.k_dim);
        need_most(&n->vt, rows * op->qkv.kv_heads * op->qkv.v_dim);
        break;
    case OP_LATENT:
        need_latent(n, w, &op->latent, rows);
        break;
    case OP_ATTN:
        break;
    case OP_HEADS:
        need_input(n, rows, (size_t)all[op->heads.weight].count * all[op->heads.weight].cols);
        break;
    case OP_OUT:
        need_input(n, rows, all[op->out.linear.weight].cols);
        break;
    case OP_FFN:
        need_input(n, rows, all[op->ffn.up.weight].cols);
        need_input(n, rows, op->ffn.inner.kind ? all[op->ffn.up.weight].rows : 0);
        need_most(&n->h, rows * area_stride(all[op->ffn.up.weight].rows));
        break;
    case OP_MOE:
        need_moe(n, w, &op->moe, rows);
        break;
    case OP_LOGITS:
        if (op->logits.head.weight)
            need_input(n, outs, all[op->logits.head.weight].cols);
        break;
    case OP_PROJ:
        need_input(n, rows, all[op->proj.linear[0].weight].cols);
        break;
    case OP_CONV:
    case OP_SCAN:
    case OP_CELL:
        need_most(&n->state, state_local_floats(op));
        need_most(&n->prepared, state_prepared_floats(op));
        break;
    case OP_MAP:
        need_most(&n->tile, op->map.width);
        break;
    case OP_MIX:
        break;
    case OP_INDEX:
        need_input(n, rows, all[op->index.k.weight].cols);
        need_input(n, rows, all[op->index.q_a.weight].rows);
        need_most(&n->vt, rows * all[op->index.q_a.weight].rows);
        need_most(&n->kt, rows * op->index.dim);
        need_most(&n->qt, rows * op->index.heads * op->index.dim);
        need_most(&n->sum, rows * op->index.heads);
        break;
    }
}

static struct need cpu_need(const struct cpu *d, const struct plan *p)
{
    struct need n = {.tile = CPU_TILE};
    need_most(&n.tile, (size_t)CPU_UNIT * d->max_rows);
    for (uint32_t i = 0; i < p->count; i++)
        need_op(&n, d->w, &p->ops[i], d->max_rows, d->max_outs);
    for (uint32_t b = 1; b < p->buffers; b++)
        need_most(&n.sum, (size_t)d->max_rows * p->width[b]);
    need_most(&n.low, size_max(d->max_rows, n.pairs) * plan_rank(p, d->w));
    return n;
}

static struct area cpu_area(const struct cpu *d, size_t values)
{
    return (struct area){.floats = values, .blocks = d->terms * values / Q8_BLOCK, .terms = d->terms};
}

static void cpu_place_own(struct cpu *d, const struct plan *p, const struct need *n, struct cpu_bump *b)
{
    size_t attn = attn_local_floats(p), index = index_local_floats(d, p);
    for (int i = 0; i < pool_size(d->pool); i++) {
        struct worker_local local = {.input = cpu_area(d, CPU_FEW * n->local)};
        local.kernel = bump_take(b, d->k->scratch_bytes, 1);
        local.tile[0] = bump_take(b, d->tile_floats, sizeof(float));
        local.tile[1] = bump_take(b, d->tile_floats, sizeof(float));
        local.low = bump_take(b, n->low, sizeof(float));
        local.state = bump_take(b, n->state, sizeof(float));
        local.prepared = bump_take(b, n->prepared, sizeof(float));
        local.index = bump_take(b, index, sizeof(float));
        bump_area(b, &local.input);
        float *at = bump_take(b, attn, sizeof(float));
        if (!b->base)
            continue;
        attn_local_place(&local.attn, p, at);
        d->local[i] = local;
    }
}

static void cpu_place_moe(struct moe_route *m, const struct need *n, struct cpu_bump *b)
{
    m->score = bump_take(b, n->score, sizeof *m->score);
    m->choice = bump_take(b, n->choice, sizeof *m->choice);
    m->expert = bump_take(b, n->pairs, sizeof *m->expert);
    m->weight = bump_take(b, n->pairs, sizeof *m->weight);
    m->first = bump_take(b, n->experts, sizeof *m->first);
    m->slot_row = bump_take(b, n->pairs, sizeof *m->slot_row);
    m->slot_weight = bump_take(b, n->pairs, sizeof *m->slot_weight);
}

void cpu_place(struct cpu *d, const struct plan *p, struct cpu_bump *b)
{
    struct need n = cpu_need(d, p);
    d->tile_floats = n.tile;
    d->x = cpu_area(d, n.x);
    d->h = cpu_area(d, n.h);
    d->g = cpu_area(d, n.g);
    d->shared = cpu_area(d, n.shared);
    bump_area(b, &d->x);
    bump_area(b, &d->h);
    bump_area(b, &d->g);
    bump_area(b, &d->shared);
    d->qt = bump_take(b, n.qt, sizeof(float));
    d->kt = bump_take(b, n.kt, sizeof(float));
    d->vt = bump_take(b, n.vt, sizeof(float));
    d->sum = bump_take(b, n.sum, sizeof(float));
    cpu_place_moe(&d->moe, &n, b);
    d->chosen_keys = index_keys(d, p);
    d->chosen = bump_take(b, d->max_rows * (d->chosen_keys / 64), sizeof *d->chosen);
    d->partial_floats = attn_partial_floats(d, p);
    d->partial = bump_take(b, d->partial_floats, sizeof(float));
    d->row_seq = bump_take(b, d->max_rows, sizeof *d->row_seq);
    d->results = bump_take(b, size_max(d->max_outs, 1) * p->out_width, sizeof(float));
    for (uint32_t i = 0; i < d->ropes; i++)
        d->rope[i].cos_sin = bump_take(b, (size_t)d->max_rows * d->rope[i].dims, sizeof(float));
    float **buffer = bump_take(b, p->buffers ? p->buffers : 1, sizeof *buffer);
    struct worker_local *local = bump_take(b, (size_t)pool_size(d->pool), sizeof *local);
    d->buffer = buffer;
    d->local = local;
    for (uint32_t i = 1; i < p->buffers; i++) {
        const bool own = !p->fold || !p->fold[i];
        float *at = own ? bump_take(b, (size_t)d->max_rows * p->width[i], sizeof(float)) : NULL;
        if (b->base)
            d->buffer[i] = own ? at : d->buffer[p->fold[i]];
    }
    cpu_place_own(d, p, &n, b);
}
