#include "device/shard.h"

#include "base/mem.h"
#include "device/shard_internal.h"

#include <string.h>

/* ---- whole on every rank ---- */

static uint32_t rows_of(const struct sharder *s, weight_id id)
{
    return id ? s->source->all[id].rows : 0;
}

/* Columns that an operation writes. */
static uint32_t out_width(const struct sharder *s, const struct op *op)
{
    uint32_t width = 0;
    switch (op->kind) {
    case OP_EMBED:
        return op->embed.table ? s->source->all[op->embed.table].cols : op->embed.width;
    case OP_QKV:
        return op->qkv.heads * op->qkv.k_dim;
    case OP_LATENT:
        return op->latent.heads * (op->latent.latent + op->latent.rope.dims);
    case OP_ATTN:
        return op->attn.heads * op->attn.v_dim;
    case OP_HEADS:
        return s->source->all[op->heads.weight].count * rows_of(s, op->heads.weight);
    case OP_OUT:
        return rows_of(s, op->out.linear.weight);
    case OP_FFN:
        return rows_of(s, op->ffn.down.weight);
    case OP_MOE:
        return rows_of(s, op->moe.down.weight);
    case OP_PROJ:
        for (uint32_t i = 0; i < op->proj.count; i++)
            width += rows_of(s, op->proj.linear[i].weight);
        return width;
    case OP_CONV:
        return op->conv.channels;
    case OP_SCAN:
        return op->scan.heads * op->scan.v_dim;
    case OP_CELL:
        return op->cell.channels * cell_given(op->cell.kind);
    case OP_MAP:
        return op->map.width;
    case OP_MIX:
        return op->mix.outs * op->mix.width;
    case OP_LOGITS:
    case OP_INDEX:
        return 0;
    }
    return 0;
}

static void shard_whole(struct sharder *s, const struct op *from)
{
    struct op_io io = plan_io(from);
    need_inputs(s, from);
    if (io.out.buffer)
        will_write(s, io.out, out_width(s, from));
    struct op *op = add_op(s, from);
    plan_each_weight(op, take_whole, s);
    if (s->to->plan.lora)
        plan_each_slot(op, take_slot, s);
}

/* ---- sums ---- */

static bool tail_is_plain(const struct tail *t)
{
    return !t->post.kind && !t->after.kind;
}

static bool tail_can_wait(const struct tail *t)
{
    return t->post.heads <= 1 && t->after.heads <= 1;
}

/* The tail of a product whose result is in `y` on every rank. */
static void add_tail(struct sharder *s, uint32_t layer, const struct tail *t, struct operand y, uint32_t n)
{
    struct op like = {.kind = OP_MAP, .layer = layer};
    like.map = (struct op_map){.in = y,
                               .residual = t->residual,
                               .out = t->out,
                               .width = n,
                               .norm = t->post,
                               .factor = t->scale,
                               .scale = 1};
    take_norm(s, &like.map.norm);
    add_op(s, &like);
    if (!t->after.kind)
        return;
    like.map =
        (struct op_map){.in = t->out, .out = t->out, .width = n, .norm = t->after, .factor = 1, .scale = 1};
    take_norm(s, &like.map.norm);
    add_op(s, &like);
}

/* The tail of a rank's part of a sum of n columns. Without norms rank 0 adds the residual to its part. */
static struct tail part_tail(struct sharder *s, const struct tail *t, uint32_t n)
{
    if (!tail_is_plain(t))
        return (struct tail){.scale = 1, .out = scratch_row(s, n)};
    struct tail own = *t;
    if (s->rank)
        own.residual = (struct operand){0};
    return own;
}

static void add_sum(struct sharder *s, uint32_t layer, const struct tail *t, uint32_t n, bool absent)
{
    bool plain = tail_is_plain(t);
    struct operand y = plain ? t->out : scratch_row(s, n);
    add_join(s, JOIN_SUM, y, n)->absent = absent;
    if (!plain)
        add_tail(s, layer, t, y, n);
}

/* ---- rules ---- */

static bool norm_is_by_heads(const struct norm *n)
{
    return !n->kind || n->heads > 0;
}

static const struct kv_group *group_of(const struct sharder *s, uint32_t layer, uint32_t *number)
{
    *number = s->from->kv[layer].group;
    return &s->from->group[*number];
}

static bool qkv_can_be_cut(const struct op_qkv *o)
{
    return !o->given.buffer && norm_is_by_heads(&o->q_norm) && norm_is_by_heads(&o->k_norm) &&
           norm_is_by_heads(&o->v_norm);
}

/* A group's KV is cut by heads where all operations that write or read it can be. */
static void choose_groups(struct sharder *s)
{
    uint32_t heads[PLAN_GROUPS_MOST] = {0}, g = 0;
    for (uint32_t i = 0; i < s->from->groups; i++)
        s->cut_group[i] = true;
    for (uint32_t i = 0; i < s->from->count; i++) {
        const struct op *op = &s->from->ops[i];
        uint32_t layer = op->kind == OP_QKV ? op->qkv.layer : plan_kv_layer(op), own = 0;
        if (layer == UINT32_MAX || op->kind == OP_INDEX)
            continue;
        const struct kv_group *kv = group_of(s, layer, &g);
        own = op->kind == OP_QKV ? op->qkv.heads : op->kind == OP_ATTN ? op->attn.heads : op->latent.heads;
        if ((op->kind == OP_QKV && !qkv_can_be_cut(&op->qkv)) ||
            (heads[g] && heads[g] != own && kv->kv_heads < s->ranks))
            s->cut_group[g] = false;
        heads[g] = own;
    }
    for (uint32_t i = 0; i < s->from->groups; i++)
        if (s->cut_group[i])
            s->to->plan.group[i].kv_heads = shard_kv(s, s->from->group[i].kv_heads, s->rank).count;
}

static void shard_qkv(struct sharder *s, const struct op *from)
{
    uint32_t g;
    group_of(s, from->qkv.layer, &g);
    if (!s->cut_group[g]) {
        shard_whole(s, from);
        return;
    }
    const struct op_qkv *o = &from->qkv;
    const uint32_t *head = shard_cut_heads(s, o->heads, o->kv_heads);
    if (s->failed)
        return;
    const struct shard_range q = shard_mine(s, head, 1), kv = shard_kv(s, o->kv_heads, s->rank);
    need_whole(s, o->in);
    will_write(s, o->out, o->heads * o->k_dim);
    if (q.count) {
        struct op_qkv *own = &add_op(s, from)->qkv;
        take_norm(s, &own->norm);
        take_rows(s, &own->q, (struct shard_range){q.first * o->k_dim, q.count * o->k_dim});
        take_rows(s, &own->k, (struct shard_range){kv.first * o->k_dim, kv.count * o->k_dim});
        take_rows(s, &own->v, (struct shard_range){kv.first * o->v_dim, kv.count * o->v_dim});
        take_norm_heads(s, &own->q_norm, o->heads * o->k_dim, q);
        take_norm_heads(s, &own->k_norm, o->kv_heads * o->k_dim, kv);
        take_norm_heads(s, &own->v_norm, o->kv_heads * o->v_dim, kv);
        take_id(s, &own->rope.freqs);
        own->heads = q.count;
        own->kv_heads = kv.count;
    }
    is_cut(s, o->out, o->k_dim, head);
}

static void shard_latent(struct sharder *s, const struct op *from)
{
    const struct op_latent *o = &from->latent;
    const uint32_t *head = shard_cut_heads(s, o->heads, 1);
    if (s->failed)
        return;
    const struct shard_range q = shard_mine(s, head, 1);
    const uint32_t each = o->nope + o->rope.dims;
    need_whole(s, o->in);
    will_write(s, o->out, o->heads * (o->latent + o->rope.dims));
    if (q.count) {
        struct op_latent *own = &add_op(s, from)->latent;
        take_norm(s, &own->norm);
        take_norm(s, &own->q_norm);
        take_norm(s, &own->kv_norm);
        take_linear(s, &own->q_a);
        take_rows(s, &own->q_b, (struct shard_range){q.first * each, q.count * each});
        take_linear(s, &own->kv_a);
        own->k_b = take_count(s, own->k_b, &own->k_b_adapter, q);
        take_id(s, &own->rope.freqs);
        own->heads = q.count;
    }
    is_cut(s, o->out, o->latent + o->rope.dims, head);
}

static void shard_attn(struct sharder *s, const struct op *from)
{
    const struct op_attn *o = &from->attn;
    uint32_t g;
    group_of(s, o->layer, &g);
    if (!s->cut_group[g]) {
        shard_whole(s, from);
        return;
    }
    const uint32_t *head = shard_cut_heads(s, o->heads, o->kv_heads);
    const struct by_heads *in = cut_row(s, o->in);
    if (s->failed)
        return;
    const bool cut = in && in->each == o->k_dim && !memcmp(in->head, head, (s->ranks + 1) * sizeof *head);
    if (!cut)
        need_whole(s, o->in);
    const struct shard_range q = shard_mine(s, head, 1);
    will_write(s, o->out, o->heads * o->v_dim);
    if (q.count) {
        struct op_attn *own = &add_op(s, from)->attn;
        own->sinks = take_part(s, o->sinks, (struct weight_part){.cols = q});
        own->distance = take_part(s, o->distance, (struct weight_part){.count = q});
        own->heads = q.count;
        own->kv_heads = shard_kv(s, o->kv_heads, s->rank).count;
        own->in.col += cut ? 0 : q.first * o->k_dim;
    }
    is_cut(s, o->out, o->v_dim, head);
}

static void shard_heads(struct sharder *s, const struct op *from)
{
    const struct op_heads *o = &from->heads;
    const struct weight *w = &s->source->all[o->weight];
    const struct by_heads *in = cut_row(s, o->in);
    if (!in || in->each != w->cols || in->head[s->ranks] != w->count) {
        shard_whole(s, from);
        return;
    }
    const uint32_t *head = in->head;
    const struct shard_range q = shard_mine(s, head, 1);
    will_write(s, o->out, w->count * w->rows);
    if (q.count) {
        struct op_heads *own = &add_op(s, from)->heads;
        own->weight = take_count(s, o->weight, &own->adapter, q);
    }
    is_cut(s, o->out, w->rows, head);
}

/* ---- products that end in a sum ---- */

/* Columns of the input that stay together: those of a block, and of a slice of the norm or the gate. */
static uint32_t out_unit(const struct sharder *s, const struct op_out *o, uint32_t k)
{
    uint32_t unit = unit_cols(s, &o->linear);
    if (o->norm.kind)
        unit = multiple(unit, k / o->norm.heads);
    return o->gate.in.buffer && o->gate.heads ? multiple(unit, k / o->gate.heads) : unit;
}

/* Where the input is cut by heads at places where the product can be cut, too. */
static const uint32_t *out_cut(struct sharder *s, const struct op_out *o, uint32_t k, uint32_t unit)
{
    const struct by_heads *in = cut_row(s, o->in);
    if (!in || in->head[s->ranks] * in->each != k)
        return NULL;
    uint32_t *cut = shard_cut(s, 0, 1);
    for (uint32_t r = 0; cut && r <= s->ranks; r++) {
        cut[r] = in->head[r] * in->each;
        if (cut[r] % unit)
            return NULL;
    }
    return cut;
}

/* The product of a row that cannot be cut: each rank has some of the results. */
static void shard_out_rows(struct sharder *s, const struct op *from)
{
    const struct op_out *o = &from->out;
    const uint32_t n = rows_of(s, o->linear.weight), first = 0, each = 1;
    const uint32_t *cut = shard_cut(s, n, 1);
    struct operand y = scratch_row(s, n);
    need_inputs(s, from);
    will_write(s, o->tail.out, n);
    if (s->failed)
        return;
    if (!shard_empty(s, cut)) {
        struct op_out *own = &add_op(s, from)->out;
        take_norm(s, &own->norm);
        take_rows(s, &own->linear, shard_mine(s, cut, 1));
        own->tail = (struct tail){.scale = 1, .out = y};
    }
    add_gather(s, y, n, 1, &cut, &first, &each);
    add_tail(s, from->layer, &o->tail, y, n);
}

static void take_gate(struct gate *g, uint32_t k, struct shard_range cols, bool cut)
{
    if (!g->in.buffer)
        return;
    uint32_t slice = g->heads ? k / g->heads : 1;
    g->in.col += cut ? 0 : cols.first / slice;
    g->heads = g->heads ? cols.count / slice : 0;
}

static void shard_out(struct sharder *s, const struct op *from)
{
    const struct op_out *o = &from->out;
    const uint32_t n = rows_of(s, o->linear.weight), k = s->source->all[o->linear.weight].cols;
    if (!tail_can_wait(&o->tail)) {
        shard_whole(s, from);
        return;
    }
    if (o->norm.kind && !o->norm.heads) {
        shard_out_rows(s, from);
        return;
    }
    const uint32_t unit = out_unit(s, o, k), *cut = out_cut(s, o, k, unit);
    const bool by_heads = cut != NULL;
    if (!cut) {
        need_whole(s, o->in);
        cut = shard_cut(s, k, unit);
    }
    need_whole(s, o->gate.in);
    need_whole(s, o->tail.residual);
    will_write(s, o->tail.out, n);
    if (s->failed)
        return;
    const struct shard_range cols = shard_mine(s, cut, 1);
    if (cols.count) {
        struct op_out *own = &add_op(s, from)->out;
        uint32_t slice = o->norm.heads ? k / o->norm.heads : k;
        take_norm_heads(s, &own->norm, k, (struct shard_range){cols.first / slice, cols.count / slice});
        take_gate(&own->gate, k, cols, false);
        take_cols(s, &own->linear, cols);
        own->in.col += by_heads ? 0 : cols.first;
        own->tail = part_tail(s, &o->tail, n);
    }
    add_sum(s, from->layer, &o->tail, n, !cols.count);
}

static void shard_ffn(struct sharder *s, const struct op *from)
{
    const struct op_ffn *o = &from->ffn;
    const uint32_t n = rows_of(s, o->down.weight);
    if (o->inner.kind || !tail_can_wait(&o->tail)) {
        shard_whole(s, from);
        return;
    }
    const uint32_t *cut = shard_cut(s, rows_of(s, o->up.weight), unit_cols(s, &o->down));
    need_inputs(s, from);
    will_write(s, o->tail.out, n);
    if (s->failed)
        return;
    const struct shard_range hidden = shard_mine(s, cut, 1);
    if (hidden.count) {
        struct op_ffn *own = &add_op(s, from)->ffn;
        take_norm(s, &own->norm);
        take_rows(s, &own->gate, hidden);
        take_rows(s, &own->up, hidden);
        take_cols(s, &own->down, hidden);
        take_id(s, &own->xielu);
        own->tail = part_tail(s, &o->tail, n);
    }
    add_sum(s, from->layer, &o->tail, n, !hidden.count);
}

/* The shared expert: by columns, or on rank 0 alone where it has fewer blocks than the ranks that work. */
static void take_shared(struct sharder *s, struct op_moe *own, const struct op_moe *o, uint32_t working)
{
    const uint32_t hidden = rows_of(s, o->shared_up.weight),
                   unit = hidden ? unit_cols(s, &o->shared_down) : 1, ranks = s->ranks;
    s->ranks = hidden / unit < working ? 1 : working;
    const uint32_t *cut = hidden ? shard_cut(s, hidden, unit) : NULL;
    s->ranks = ranks;
    if (!cut || (s->rank && hidden / unit < working)) {
        own->shared_gate = own->shared_up = own->shared_down = (struct linear){0};
        own->shared_router = 0;
        own->shared_router_adapter = 0;
        return;
    }
    const struct shard_range mine = shard_mine(s, cut, 1);
    take_rows(s, &own->shared_gate, mine);
    take_rows(s, &own->shared_up, mine);
    take_cols(s, &own->shared_down, mine);
    struct linear router = {.weight = o->shared_router, .adapter = o->shared_router_adapter};
    take_linear(s, &router);
    own->shared_router = router.weight;
    own->shared_router_adapter = router.adapter;
}

/* Each rank has a part of the columns of every expert: they are as busy as each other whatever rows choose. */
static void shard_moe(struct sharder *s, const struct op *from)
{
    const struct op_moe *o = &from->moe;
    const uint32_t n = rows_of(s, o->down.weight);
    if (o->identities || !tail_can_wait(&o->tail)) {
        shard_whole(s, from);
        return;
    }
    const uint32_t hidden = rows_of(s, o->up.weight), unit = unit_cols(s, &o->down);
    const uint32_t *cut = shard_cut(s, hidden, unit);
    need_inputs(s, from);
    will_write(s, o->tail.out, n);
    if (s->failed)
        return;
    const struct shard_range mine = shard_mine(s, cut, 1);
    if (mine.count) {
        struct op_moe *own = &add_op(s, from)->moe;
        take_norm(s, &own->norm);
        take_norm(s, &own->router_norm);
        take_linear(s, &own->router);
        take_id(s, &own->select_bias);
        take_id(s, &own->expert_scale);
        take_rows(s, &own->gate, mine);
        take_rows(s, &own->up, mine);
        take_cols(s, &own->down, mine);
        take_shared(s, own, o, hidden / unit < s->ranks ? hidden / unit : s->ranks);
        own->tail = part_tail(s, &o->tail, n);
    }
    add_sum(s, from->layer, &o->tail, n, !mine.count);
}

/* ---- products whose results are put side by side ---- */

static void shard_proj(struct sharder *s, const struct op *from)
{
    const struct op_proj *o = &from->proj;
    const uint32_t *cut[PROJ_MOST];
    uint32_t first[PROJ_MOST], each[PROJ_MOST], width = 0;
    if (o->best) {
        shard_whole(s, from);
        return;
    }
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t n = rows_of(s, o->linear[i].weight);
        cut[i] = shard_cut(s, n, 1);
        first[i] = width;
        each[i] = 1;
        width += n;
    }
    need_inputs(s, from);
    will_write(s, o->out, width);
    if (s->failed)
        return;
    struct op own = *from;
    own.proj.count = 0;
    for (uint32_t i = 0; i < o->count; i++) {
        if (shard_empty(s, cut[i]))
            continue;
        uint32_t at = own.proj.count++;
        own.proj.linear[at] = o->linear[i];
        own.proj.act[at] = o->act[i];
        own.proj.scale[at] = o->scale[i];
        take_rows(s, &own.proj.linear[at], shard_mine(s, cut[i], 1));
    }
    if (own.proj.count) {
        take_norm(s, &own.proj.norm);
        add_op(s, &own);
    }
    add_gather(s, o->out, width, o->count, cut, first, each);
}

bool shard_cuts_results(const struct plan *p, uint32_t ranks)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == OP_LOGITS)
            return p->ops[i].logits.head.weight && p->out_width >= ranks;
    return false;
}

struct shard_range shard_results(const struct plan *p, uint32_t rank, uint32_t ranks)
{
    if (!shard_cuts_results(p, ranks))
        return (struct shard_range){0, p->out_width};
    uint32_t each = p->out_width / ranks, more = p->out_width % ranks;
    return (struct shard_range){rank * each + (rank < more ? rank : more), each + (rank < more)};
}

static void shard_logits(struct sharder *s, const struct op *from)
{
    if (!shard_cuts_results(s->from, s->ranks)) {
        shard_whole(s, from);
        return;
    }
    const struct shard_range mine = shard_results(s->from, s->rank, s->ranks);
    need_whole(s, from->logits.in);
    struct op_logits *own = &add_op(s, from)->logits;
    take_norm(s, &own->norm);
    take_rows(s, &own->head, mine);
    s->to->plan.out_width = mine.count;
}

/* ---- the pass ---- */

static void shard_op(struct sharder *s, const struct op *op)
{
    switch (op->kind) {
    case OP_QKV:
        shard_qkv(s, op);
        break;
    case OP_LATENT:
        shard_latent(s, op);
        break;
    case OP_ATTN:
        shard_attn(s, op);
        break;
    case OP_HEADS:
        shard_heads(s, op);
        break;
    case OP_OUT:
        shard_out(s, op);
        break;
    case OP_FFN:
        shard_ffn(s, op);
        break;
    case OP_MOE:
        shard_moe(s, op);
        break;
    case OP_PROJ:
        shard_proj(s, op);
        break;
    case OP_LOGITS:
        shard_logits(s, op);
        break;
    case OP_EMBED:
    case OP_CONV:
    case OP_SCAN:
    case OP_CELL:
    case OP_MAP:
    case OP_MIX:
    case OP_INDEX:
        shard_whole(s, op);
        break;
    }
}

/* The rank's plan, without operations. Buffers, KV groups, layers and states keep their numbers. */
static int shard_begin(struct sharder *s, struct err *e)
{
    const struct plan *p = s->from;
    struct plan *own = &s->to->plan;
    uint32_t slots = 0;
    *own = *p;
    own->arena = (struct arena){0};
    own->ops = NULL;
    own->count = own->room = 0;
    own->lora = NULL;
    for (uint32_t i = 0; p->lora && i < p->count; i++) {
        struct op op = p->ops[i];
        plan_each_slot(&op, count_slot, &slots);
    }
    if (slots) {
        own->slots = slots;
        own->lora = arena_alloc(&own->arena, (size_t)(slots + 1) * (p->adapters + 1), sizeof *own->lora);
    }
    s->number = mem_zalloc(s->source->count ? s->source->count : 1, sizeof *s->number);
    if (!s->number || (slots && !own->lora))
        return err_memory(e, "a part of the plan", s->source->count * sizeof *s->number);
    return 0;
}

int plan_shard(const struct plan *p, const struct weights *w, uint32_t rank, uint32_t ranks,
               struct shard *out, struct err *e)
{
    struct sharder s = {.from = p, .source = w, .to = out, .rank = rank, .ranks = ranks};
    *out = (struct shard){0};
    if (!ranks || rank >= ranks)
        return err_set(e, ERR_USAGE, "rank %u of %u", rank, ranks);
    if (p->fold_by)
        return err_set(e, ERR_USAGE, "a plan with folded rows cannot be shared by ranks");
    if (shard_begin(&s, e))
        return -1;
    choose_groups(&s);
    for (uint32_t i = 0; i < p->count && !s.failed && !out->plan.failed; i++)
        shard_op(&s, &p->ops[i]);
    for (uint32_t i = s.rows; i-- > 0 && !s.failed && p->part;) /* another part may read it */
        need_whole(&s, s.row[i].at);
    mem_free(s.number);
    return s.failed || out->plan.failed ? err_memory(e, "a part of the plan", p->count * sizeof *p->ops) : 0;
}

void shard_free(struct shard *s)
{
    plan_free(&s->plan);
    weights_free(&s->weights);
    *s = (struct shard){0};
}
