/* Building plans, their costs, and printing them. The check is in plan_check.c. */
#include "device/plan.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/size.h"

#include <string.h>

/* Grows an arena array by doubling; the old one stays in the arena, which has one life. */
static void *plan_grow(struct plan *p, void *old, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return old;
    uint32_t more = *room ? *room * 2 : 16;
    void *grown = count >= UINT32_MAX / 4 ? NULL : arena_alloc(&p->arena, more, size);
    if (!grown) {
        p->failed = true;
        return NULL;
    }
    if (count)
        memcpy(grown, old, count * size);
    *room = more;
    return grown;
}

struct op *plan_add(struct plan *p, enum op_kind kind, uint32_t layer)
{
    static _Thread_local struct op lost; /* a dummy to write to after a failure */
    struct op *ops = plan_grow(p, p->ops, p->count, &p->room, sizeof *ops);
    if (!ops) {
        memset(&lost, 0, sizeof lost);
        return &lost;
    }
    p->ops = ops;
    struct op *op = &p->ops[p->count++];
    op->kind = kind;
    op->layer = layer;
    return op;
}

struct operand plan_buffer(struct plan *p, uint32_t width)
{
    uint32_t count = p->buffers ? p->buffers : 1; /* buffer 0 is "none" */
    uint32_t *grown = arena_alloc(&p->arena, (size_t)count + 1, sizeof *grown);
    if (!grown) {
        p->failed = true;
        return (struct operand){0};
    }
    uint32_t *fold = arena_alloc(&p->arena, (size_t)count + 1, sizeof *fold);
    if (!fold) {
        p->failed = true;
        return (struct operand){0};
    }
    if (p->buffers) {
        memcpy(grown, p->width, p->buffers * sizeof *grown);
        memcpy(fold, p->fold, p->buffers * sizeof *fold);
    }
    grown[count] = width;
    fold[count] = 0;
    p->width = grown;
    p->fold = fold;
    p->buffers = count + 1;
    return (struct operand){.buffer = count};
}

struct operand plan_fold(struct plan *p, struct operand of, uint32_t n)
{
    size_t width = 0;
    if (!of.buffer || !n || !size_mul(p->width[of.buffer], n, &width) || width > UINT32_MAX) {
        p->failed = true;
        return (struct operand){0};
    }
    struct operand o = plan_buffer(p, (uint32_t)width);
    if (p->fold_by && (p->fold_by != n || p->fold_at != p->count))
        p->failed = true;
    p->fold_by = n;
    p->fold_at = p->count;
    if (o.buffer)
        p->fold[o.buffer] = of.buffer;
    return o;
}

static bool plan_same_group(const struct kv_group *a, const struct kv_group *b)
{
    return a->kv_heads == b->kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
           a->window == b->window;
}

void plan_kv(struct plan *p, uint32_t layer, struct kv_group geometry)
{
    if (layer >= p->layers) {
        struct kv_place *kv =
            layer < (1u << 20) ? arena_alloc(&p->arena, (size_t)layer + 1, sizeof *kv) : NULL;
        if (!kv) {
            p->failed = true;
            return;
        }
        if (p->layers)
            memcpy(kv, p->kv, p->layers * sizeof *kv);
        for (uint32_t i = p->layers; i < layer; i++)
            kv[i].group = UINT32_MAX; /* not set yet */
        p->kv = kv;
        p->layers = layer + 1;
    }
    uint32_t g = 0;
    while (g < p->groups && !plan_same_group(&p->group[g], &geometry))
        g++;
    if (g == PLAN_GROUPS_MOST) {
        p->failed = true;
        return;
    }
    if (g == p->groups) {
        geometry.layers = 0;
        p->group[p->groups++] = geometry;
    }
    p->kv[layer] = (struct kv_place){.group = g, .index = p->group[g].layers++};
}

uint32_t plan_keep(struct plan *p, uint32_t layer, uint32_t heads, uint32_t rows, uint32_t cols)
{
    struct plan_state *state = plan_grow(p, p->state, p->states, &p->state_room, sizeof *state);
    size_t values, all;
    if (!state || !size_mul(heads, rows, &values) || !size_mul(values, cols, &values) ||
        !size_add(p->state_values, values, &all)) {
        p->failed = true;
        return 0;
    }
    p->state = state;
    p->state[p->states] = (struct plan_state){
        .layer = layer, .heads = heads, .rows = rows, .cols = cols, .at = p->state_values};
    p->state_values = all;
    return p->states++;
}

uint32_t plan_rank(const struct plan *p, const struct weights *w)
{
    uint32_t rank = p->rank;
    for (size_t i = 0; p->lora && i < (size_t)(p->slots + 1) * (p->adapters + 1); i++) {
        const struct lora_pair *pair = &p->lora[i]; /* A is (rank, K) or (V, rank); B has rank rows */
        if (pair->b && w->all[pair->b].rows > rank)
            rank = w->all[pair->b].rows;
    }
    return rank;
}

void plan_free(struct plan *p)
{
    arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

bool weights_reserve(struct weights *w, uint32_t more)
{
    uint64_t need = (uint64_t)w->count + more + 1, room = w->room ? w->room : 64;
    while (room < need)
        room *= 2;
    if (room == w->room)
        return true;
    struct weight *all = room < UINT32_MAX / 2 ? mem_realloc(w->all, room, sizeof *all) : NULL;
    if (!all)
        return false;
    w->all = all;
    w->room = (uint32_t)room;
    return true;
}

weight_id weights_add(struct weights *w, const struct weight *one)
{
    uint32_t count = w->count ? w->count : 1;
    if (!weights_reserve(w, 1))
        return 0;
    if (!w->count)
        memset(&w->all[0], 0, sizeof w->all[0]);
    w->all[count] = *one;
    w->count = count + 1;
    return count;
}

void weights_free(struct weights *w)
{
    mem_free(w->all);
    memset(w, 0, sizeof *w);
}

/* ---- cost ---- */

/* Adds a product of `rows` rows with `used` of the weight's matrices (0 = all of them). */
static void cost_matrix(struct op_cost *c, const struct weights *w, weight_id id, double rows, double used)
{
    if (!id || id >= w->count)
        return;
    const struct weight *m = &w->all[id];
    size_t bytes = 0;
    dtype_row_bytes(m->type, m->cols, &bytes);
    double count = used > 0 ? used : m->count;
    c->weight_bytes += count * m->rows * (double)bytes;
    c->flops += 2 * rows * count * m->rows * m->cols;
}

static void cost_linear(struct op_cost *c, const struct weights *w, struct linear l, double rows)
{
    cost_matrix(c, w, l.weight, rows, 0);
    cost_matrix(c, w, l.bias, 0, 0);
}

static void cost_moe(struct op_cost *c, const struct weights *w, const struct op_moe *m, double rows)
{
    cost_linear(c, w, m->router, rows);
    /* The expected number of experts that `rows` rows use, if they choose evenly; each computes its share of
     * the rows. */
    double idle = 1;
    for (double i = 0; i < rows && i < 1024; i++)
        idle *= 1 - (double)m->used / m->experts;
    double awake = m->experts * (1 - idle);
    weight_id experts[3] = {m->gate.weight, m->up.weight, m->down.weight};
    for (int i = 0; i < 3; i++)
        cost_matrix(c, w, experts[i], awake > 0 ? rows * m->used / awake : 0, awake);
    cost_linear(c, w, m->shared_gate, rows);
    cost_linear(c, w, m->shared_up, rows);
    cost_linear(c, w, m->shared_down, rows);
    cost_matrix(c, w, m->shared_router, rows, 0);
}

/* The cost of KV is that of F16, the devices' default. */
static void cost_attn(struct op_cost *c, const struct op_attn *a, struct step_shape s)
{
    const double keys = a->window && s.keys > a->window ? a->window : s.keys;
    c->kv_bytes = 2.0 * s.seqs * keys * a->kv_heads * (a->k_dim + (a->v_in_k ? 0 : a->v_dim));
    c->flops = 2.0 * s.rows * keys * a->heads * (a->k_dim + a->v_dim);
}

static void cost_row(struct op_cost *c, const struct weights *w, weight_id id, double rows)
{
    size_t bytes = 0;
    if (id && id < w->count && dtype_row_bytes(w->all[id].type, w->all[id].cols, &bytes))
        c->weight_bytes += rows * (double)bytes;
}

static void cost_latent(struct op_cost *c, const struct weights *w, const struct op_latent *o, double rows)
{
    cost_linear(c, w, o->q_a, rows);
    cost_linear(c, w, o->q_b, rows);
    cost_linear(c, w, o->kv_a, rows);
    cost_matrix(c, w, o->k_b, rows, 0);
    c->kv_bytes = 2.0 * rows * (o->latent + o->rope.dims);
}

static void cost_index(struct op_cost *c, const struct weights *w, const struct op_index *o,
                       struct step_shape s)
{
    cost_linear(c, w, o->q_a, s.rows);
    cost_linear(c, w, o->q_b, s.rows);
    cost_linear(c, w, o->k, s.rows);
    cost_linear(c, w, o->weights, s.rows);
    c->kv_bytes = 2.0 * s.seqs * s.keys * o->dim;
    c->flops += 2.0 * s.rows * s.keys * o->heads * o->dim;
}

struct op_cost plan_cost(const struct plan *p, const struct weights *w, uint32_t i, struct step_shape s)
{
    const double rows = s.rows;
    struct op_cost c = {0};
    const struct op *op = &p->ops[i];
    switch (op->kind) {
    case OP_EMBED:
        cost_row(&c, w, op->embed.table, rows);
        cost_row(&c, w, op->embed.positions, rows);
        break;
    case OP_QKV:
        cost_linear(&c, w, op->qkv.q, rows);
        cost_linear(&c, w, op->qkv.k, rows);
        cost_linear(&c, w, op->qkv.v, rows);
        if (op->qkv.k.weight)
            c.kv_bytes = 2.0 * rows * op->qkv.kv_heads * (op->qkv.k_dim + op->qkv.v_dim);
        break;
    case OP_LATENT:
        cost_latent(&c, w, &op->latent, rows);
        break;
    case OP_ATTN:
        cost_attn(&c, &op->attn, s);
        break;
    case OP_HEADS:
        cost_matrix(&c, w, op->heads.weight, rows, 0);
        break;
    case OP_OUT:
        cost_linear(&c, w, op->out.linear, rows);
        break;
    case OP_FFN:
        cost_linear(&c, w, op->ffn.gate, rows);
        cost_linear(&c, w, op->ffn.up, rows);
        cost_linear(&c, w, op->ffn.down, rows);
        break;
    case OP_MOE:
        cost_moe(&c, w, &op->moe, rows);
        break;
    case OP_LOGITS:
        cost_linear(&c, w, op->logits.head, rows);
        break;
    case OP_PROJ:
        for (uint32_t k = 0; k < op->proj.count; k++)
            cost_linear(&c, w, op->proj.linear[k], rows);
        break;
    case OP_CONV:
        cost_matrix(&c, w, op->conv.weight, rows / op->conv.cols, 0);
        c.kv_bytes = 8.0 * s.seqs * op->conv.channels * (op->conv.cols - 1);
        break;
    case OP_SCAN:
        c.kv_bytes = 8.0 * s.seqs * op->scan.heads * op->scan.k_dim * op->scan.v_dim;
        c.flops = rows * op->scan.heads * op->scan.k_dim * op->scan.v_dim;
        c.flops *= op->scan.delta ? 7 : op->scan.erase.buffer ? 9 : 5;
        break;
    case OP_CELL:
        c.kv_bytes = 8.0 * s.seqs * op->cell.channels * cell_kept(op->cell.kind);
        break;
    case OP_INDEX:
        cost_index(&c, w, &op->index, s);
        break;
    case OP_MAP:
    case OP_MIX:
        break;
    }
    return c;
}

/* ---- print ---- */

const char *plan_op_name(enum op_kind kind)
{
    static const char *const name[] = {"embed",  "qkv",  "latent", "attn", "heads", "out", "ffn", "moe",
                                       "logits", "proj", "conv",   "scan", "cell",  "map", "mix", "index"};
    return (size_t)kind < sizeof name / sizeof *name ? name[kind] : "?";
}

static void print_weight(struct buf *out, const struct weights *w, const char *label, weight_id id)
{
    if (!id || id >= w->count)
        return;
    const struct weight *m = &w->all[id];
    const struct dtype_info *t = dtype_get(m->type);
    buf_printf(out, " %s=", label);
    if (m->count > 1)
        buf_printf(out, "%ux", m->count);
    buf_printf(out, "%ux%u:%s", m->rows, m->cols, t ? t->name : "?");
}

static void print_norm(struct buf *out, const char *label, const struct norm *n)
{
    static const char *const kind[] = {"", "rms", "layer"};
    if (n->kind)
        buf_printf(out, n->heads ? " %s=%s/%u" : " %s=%s", label, kind[n->kind], n->heads);
}

static void print_tail(struct buf *out, const struct tail *t)
{
    print_norm(out, "post", &t->post);
    print_norm(out, "after", &t->after);
    if (t->scale != 1)
        buf_printf(out, " scale=%g", (double)t->scale);
    if (t->residual.buffer)
        buf_printf(out, " +b%u", t->residual.buffer);
    buf_printf(out, " -> b%u", t->out.buffer);
}

static void print_rope(struct buf *out, const struct rope *r)
{
    if (r->kind)
        buf_printf(out, " rope=%s/%u%s", r->kind == ROPE_PAIRS ? "pairs" : "halves", r->dims,
                   r->axes ? " axes" : "");
}

static void print_query_scale(struct buf *out, const struct query_scale *s)
{
    if (s->beta != 0)
        buf_printf(out, " q_scale=%g/%u", (double)s->beta, s->length);
}

static void print_qkv(struct buf *out, const struct weights *w, const struct op_qkv *q)
{
    buf_printf(out, " b%u", q->in.buffer);
    print_norm(out, "norm", &q->norm);
    print_weight(out, w, "q", q->q.weight);
    print_weight(out, w, "k", q->k.weight);
    print_weight(out, w, "v", q->v.weight);
    print_norm(out, "q_norm", &q->q_norm);
    print_norm(out, "k_norm", &q->k_norm);
    print_norm(out, "v_norm", &q->v_norm);
    print_rope(out, &q->rope);
    buf_str(out, q->norm_last ? " norms last" : "");
    if (q->clamp > 0)
        buf_printf(out, " clamp=%g%s", (double)q->clamp, q->clamp_last ? " after norms" : "");
    print_query_scale(out, &q->q_scale);
    if (!q->k.weight)
        buf_str(out, " q alone");
    else if (!q->v.weight)
        buf_str(out, " v = k");
    buf_printf(out, " -> b%u", q->out.buffer);
}

static void print_latent(struct buf *out, const struct weights *w, const struct op_latent *l)
{
    buf_printf(out, " b%u", l->in.buffer);
    print_norm(out, "norm", &l->norm);
    print_weight(out, w, "q_a", l->q_a.weight);
    print_weight(out, w, "q_b", l->q_b.weight);
    print_weight(out, w, "kv_a", l->kv_a.weight);
    print_weight(out, w, "k_b", l->k_b);
    print_rope(out, &l->rope);
    print_query_scale(out, &l->q_scale);
    buf_printf(out, " -> b%u", l->out.buffer);
}

static void print_attn(struct buf *out, const struct op_attn *a, uint32_t op_layer)
{
    buf_printf(out, " b%u heads=%u/%u dims=%u/%u", a->in.buffer, a->heads, a->kv_heads, a->k_dim, a->v_dim);
    if (a->window)
        buf_printf(out, " %s=%u", a->chunked ? "chunk" : "window", a->window);
    if (op_layer != a->layer)
        buf_printf(out, " kv=L%u", a->layer);
    if (a->softcap > 0)
        buf_printf(out, " softcap=%g", (double)a->softcap);
    static const char *const spans[] = {"", " and spans", " and spans ahead", " spans alone"};
    buf_printf(out, "%s%s%s%s%s%s -> b%u", a->sinks ? " sinks" : "", a->distance ? " distance" : "",
               a->causal ? "" : " both ways", a->v_in_k ? " v in k" : "", a->chosen ? " chosen keys" : "",
               spans[a->span], a->out.buffer);
}

static void print_ffn(struct buf *out, const struct weights *w, const struct op_ffn *f)
{
    buf_printf(out, " b%u", f->in.buffer);
    print_norm(out, "norm", &f->norm);
    print_weight(out, w, "gate", f->gate.weight);
    print_weight(out, w, "up", f->up.weight);
    print_norm(out, "inner", &f->inner);
    print_weight(out, w, "down", f->down.weight);
    print_tail(out, &f->tail);
}

static void print_moe(struct buf *out, const struct weights *w, const struct op_moe *m)
{
    static const char *const gating[] = {"softmax", "softmax-topk", "sigmoid"};
    static const char *const side[] = {"", " below the border", " from the border on"};
    buf_printf(out, " b%u", m->in.buffer);
    print_norm(out, "norm", &m->norm);
    buf_printf(out, " %u of %u by %s", m->used, m->experts,
               m->nearness > 0 ? "sparsemixer" : gating[m->gating]);
    buf_str(out, side[m->side]);
    print_weight(out, w, "gate", m->gate.weight);
    print_weight(out, w, "up", m->up.weight);
    print_weight(out, w, "down", m->down.weight);
    print_weight(out, w, "shared", m->shared_up.weight);
    print_norm(out, "router_norm", &m->router_norm);
    if (m->identities)
        buf_printf(out, " identities=%u", m->identities);
    if (m->groups > 1)
        buf_printf(out, " groups=%u of %u%s", m->groups_used, m->groups, m->group_pair ? " by pairs" : "");
    if (m->least_sum > 0)
        buf_printf(out, " least_sum=%g", (double)m->least_sum);
    buf_str(out, m->scale_input ? " weights scale inputs" : "");
    buf_str(out, m->expert_scale ? " experts scaled" : "");
    print_tail(out, &m->tail);
}

static void print_gate(struct buf *out, const struct gate *g)
{
    if (g->in.buffer)
        buf_printf(out, " gate=b%u%s", g->in.buffer, g->first ? " first" : "");
}

static void print_proj(struct buf *out, const struct weights *w, const struct op_proj *p)
{
    buf_printf(out, " b%u", p->in.buffer);
    print_norm(out, "norm", &p->norm);
    for (uint32_t i = 0; i < p->count; i++)
        print_weight(out, w, "w", p->linear[i].weight);
    buf_printf(out, " -> b%u", p->out.buffer);
}

static void print_scan(struct buf *out, const struct op_scan *s)
{
    buf_printf(out, " b%u heads=%u/%u dims=%u/%u%s", s->v.buffer, s->heads, s->k_heads, s->k_dim, s->v_dim,
               s->delta ? " delta" : "");
    print_norm(out, "q_norm", &s->q_norm);
    print_norm(out, "k_norm", &s->k_norm);
    buf_printf(out, " -> b%u", s->out.buffer);
}

static void print_map(struct buf *out, const struct op_map *m)
{
    buf_printf(out, " b%u+%u", m->in.buffer, m->in.col);
    print_norm(out, "norm", &m->norm);
    if (m->factor != 1 || m->cap > 0)
        buf_printf(out, m->cap > 0 ? " %g tanh" : " %g", (double)m->factor);
    if (m->deviations != 0)
        buf_printf(out, " sparse=%g", (double)m->deviations);
    buf_str(out, m->times ? " times a vector" : "");
    if (m->like.buffer)
        buf_printf(out, " like b%u+%u", m->like.buffer, m->like.col);
    if (m->by.buffer)
        buf_printf(out, " * b%u+%u", m->by.buffer, m->by.col);
    if (m->residual.buffer)
        buf_printf(out, " +b%u+%u", m->residual.buffer, m->residual.col);
    if (m->scale != 1)
        buf_printf(out, " scale=%g", (double)m->scale);
    if (m->clips)
        buf_printf(out, " in [%g, %g]", (double)m->least, (double)m->most);
    buf_printf(out, " -> b%u+%u", m->out.buffer, m->out.col);
}

static void print_embed(struct buf *out, const struct weights *w, const struct op_embed *o)
{
    print_weight(out, w, "table", o->table);
    print_weight(out, w, "positions", o->positions);
    print_norm(out, "norm", &o->norm);
    if (o->given.buffer)
        buf_printf(out, " given=b%u+%u", o->given.buffer, o->given.col);
    buf_printf(out, " -> b%u", o->out.buffer);
}

static void print_index(struct buf *out, const struct weights *w, const struct op_index *o)
{
    buf_printf(out, " b%u", o->in.buffer);
    print_norm(out, "norm", &o->norm);
    print_weight(out, w, "q_b", o->q_b.weight);
    print_rope(out, &o->rope);
    buf_printf(out, " heads=%u/%u used=%u kv=L%u", o->heads, o->dim, o->used, o->layer);
}

static void print_op(struct buf *out, const struct weights *w, const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        print_embed(out, w, &op->embed);
        break;
    case OP_QKV:
        print_qkv(out, w, &op->qkv);
        break;
    case OP_LATENT:
        print_latent(out, w, &op->latent);
        break;
    case OP_ATTN:
        print_attn(out, &op->attn, op->layer);
        break;
    case OP_HEADS:
        buf_printf(out, " b%u", op->heads.in.buffer);
        print_weight(out, w, "w", op->heads.weight);
        buf_printf(out, " -> b%u", op->heads.out.buffer);
        break;
    case OP_OUT:
        buf_printf(out, " b%u", op->out.in.buffer);
        print_norm(out, "norm", &op->out.norm);
        print_gate(out, &op->out.gate);
        print_weight(out, w, "w", op->out.linear.weight);
        print_tail(out, &op->out.tail);
        break;
    case OP_FFN:
        print_ffn(out, w, &op->ffn);
        break;
    case OP_MOE:
        print_moe(out, w, &op->moe);
        break;
    case OP_MAP:
        print_map(out, &op->map);
        break;
    case OP_MIX:
        buf_printf(out, " b%u + %ux%u b%u * b%u -> b%u", op->mix.base.buffer, op->mix.outs, op->mix.ins,
                   op->mix.coef.buffer, op->mix.in.buffer, op->mix.out.buffer);
        break;
    case OP_INDEX:
        print_index(out, w, &op->index);
        break;
    case OP_LOGITS:
        buf_printf(out, " b%u", op->logits.in.buffer);
        print_norm(out, "norm", &op->logits.norm);
        print_weight(out, w, "head", op->logits.head.weight);
        break;
    case OP_PROJ:
        print_proj(out, w, &op->proj);
        break;
    case OP_CONV:
        buf_printf(out, " b%u", op->conv.in.buffer);
        print_weight(out, w, "w", op->conv.weight);
        buf_printf(out, " -> b%u", op->conv.out.buffer);
        break;
    case OP_SCAN:
        print_scan(out, &op->scan);
        break;
    case OP_CELL:
        buf_printf(out, " b%u channels=%u -> b%u", op->cell.gate.buffer, op->cell.channels,
                   op->cell.out.buffer);
        break;
    }
}

void plan_print(const struct plan *p, const struct weights *w, struct buf *out)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        buf_printf(out, "%4u ", i);
        buf_printf(out, op->layer == UINT32_MAX ? "     " : "L%-4u", op->layer);
        buf_printf(out, " %-6s", plan_op_name(op->kind));
        print_op(out, w, op);
        if (op->device)
            buf_printf(out, " on device %u", op->device);
        buf_char(out, '\n');
    }
    for (uint32_t g = 0; g < p->groups; g++) {
        const struct kv_group *k = &p->group[g];
        buf_printf(out, "kv group %u: %u layers, %u heads of %u/%u", g, k->layers, k->kv_heads, k->k_dim,
                   k->v_dim);
        buf_printf(out, k->window ? ", window %u\n" : "\n", k->window);
    }
    if (p->state_values)
        buf_printf(out, "state: %zu bytes a sequence\n", p->state_values * sizeof(float));
}

enum { SUMMARY_ATTN = 1, SUMMARY_FFN = 2, SUMMARY_MOE = 4 };

/* What the plan has of a layer. */
static unsigned summary_of(const struct plan *p, uint32_t layer)
{
    unsigned has = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        if (op->layer == layer)
            has |= op->kind == OP_ATTN || plan_state_of(op) != UINT32_MAX ? SUMMARY_ATTN
                   : op->kind == OP_FFN                                   ? SUMMARY_FFN
                   : op->kind == OP_MOE                                   ? SUMMARY_MOE
                                                                          : 0;
    }
    return has;
}

static void summary_run(struct buf *out, unsigned has, uint32_t from, uint32_t to)
{
    const char *what = !(has & SUMMARY_ATTN)
                           ? has & SUMMARY_MOE ? "experts of layers" : "feed-forward of layers"
                       : has & (SUMMARY_FFN | SUMMARY_MOE) ? "layers"
                                                           : "attention of layers";
    buf_printf(out, "%s%s %u", out->len && out->data[out->len - 1] != ' ' ? ", " : "", what, from);
    if (to > from)
        buf_printf(out, "-%u", to);
}

void plan_summary(const struct plan *p, struct buf *out)
{
    uint32_t layers = 0;
    bool head = false, embeds = false;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        layers = op->layer != UINT32_MAX && op->layer >= layers ? op->layer + 1 : layers;
        head |= op->kind == OP_LOGITS;
        embeds |= op->kind == OP_EMBED && op->embed.table;
    }
    if (embeds)
        buf_str(out, "embeddings");
    for (uint32_t from = 0, to; from < layers; from = to) {
        unsigned has = summary_of(p, from);
        for (to = from + 1; to < layers && summary_of(p, to) == has; to++)
            ;
        if (has)
            summary_run(out, has, from, to - 1);
    }
    if (head)
        buf_str(out, out->len && out->data[out->len - 1] != ' ' ? ", head" : "head");
}
