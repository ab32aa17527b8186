/* The check of a plan against its weights. A model file decides shapes, and may be wrong or hostile: devices
 * rely on this check and do not repeat it. */
#include "device/plan.h"

#include "codec/dtype.h"
#include "base/size.h"

#include <math.h>

enum {
    CHECK_DIM_MOST = 1024,
    CHECK_WIDTH_MOST = 1 << 24,
    CHECK_K_MOST = 1 << 20,
    CHECK_HEADS_MOST = 1 << 16
};

struct plan_checker {
    const struct plan *p;
    const struct weights *w;
    uint32_t i; /* the operation looked at */
    struct err *e;
};

/* "operation 12 (qkv, layer 3): " and the rest. */
static int check_fail(struct plan_checker *c, const char *what, const char *rest)
{
    const struct op *op = &c->p->ops[c->i];
    if (op->layer == UINT32_MAX)
        return err_set(c->e, ERR_DATA, "operation %u (%s): %s %s", c->i, plan_op_name(op->kind), what, rest);
    return err_set(c->e, ERR_DATA, "operation %u (%s, layer %u): %s %s", c->i, plan_op_name(op->kind),
                   op->layer, what, rest);
}

static int check_operand(struct plan_checker *c, struct operand o, uint64_t n, const char *what)
{
    if (!o.buffer || o.buffer >= c->p->buffers)
        return check_fail(c, what, "names a buffer that the plan does not have");
    if (o.col > c->p->width[o.buffer] || n > c->p->width[o.buffer] - o.col)
        return check_fail(c, what, "reaches beyond the width of its buffer");
    return 0;
}

/* The storage of one weight, whatever it is for. */
static int check_weight(struct plan_checker *c, weight_id id, const char *what)
{
    if (!id || id >= c->w->count)
        return check_fail(c, what, "names a weight that does not exist");
    const struct weight *m = &c->w->all[id];
    const struct dtype_info *t = m->type < DTYPE_MOST ? dtype_get(m->type) : NULL;
    if (!t || !t->decode)
        return check_fail(c, what, "has a type that cannot be computed with");
    size_t packed, matrix;
    if (!m->rows || !m->cols || !m->count || m->cols > CHECK_WIDTH_MOST || !m->data)
        return check_fail(c, what, "is empty, or too wide");
    if (!dtype_row_bytes(m->type, m->cols, &packed))
        return check_fail(c, what, "has rows that are no multiple of its type's block");
    if (m->row_bytes < packed || !size_mul(m->rows, m->row_bytes, &matrix))
        return check_fail(c, what, "has rows that overlap");
    if (m->count > 1 && m->each_bytes < matrix - m->row_bytes + packed)
        return check_fail(c, what, "has matrices that overlap");
    return 0;
}

static int check_matrix(struct plan_checker *c, weight_id id, uint64_t rows, uint64_t cols, uint32_t count,
                        const char *what)
{
    if (check_weight(c, id, what))
        return -1;
    const struct weight *m = &c->w->all[id];
    if (m->rows == rows && m->cols == cols && m->count == count && cols <= CHECK_K_MOST)
        return 0;
    err_set(c->e, ERR_DATA, "'%s' is %u x (%u, %u); %u x (%llu, %llu) was expected", m->name ? m->name : what,
            m->count, m->rows, m->cols, count, (unsigned long long)rows, (unsigned long long)cols);
    return err_prefix(c->e, "operation %u (%s)", c->i, plan_op_name(c->p->ops[c->i].kind));
}

static int check_aligned(struct plan_checker *c, const struct weight *m, const char *what)
{
    if (m->type != DTYPE_F32 || (uintptr_t)m->data % sizeof(float) || m->each_bytes % sizeof(float))
        return check_fail(c, what, "must be aligned F32");
    return 0;
}

static int check_vector(struct plan_checker *c, weight_id id, uint64_t n, uint32_t count, const char *what)
{
    return check_matrix(c, id, 1, n, count, what) ? -1 : check_aligned(c, &c->w->all[id], what);
}

/* A packed matrix of F32. */
static int check_floats(struct plan_checker *c, weight_id id, uint64_t rows, uint64_t cols, const char *what)
{
    if (check_matrix(c, id, rows, cols, 1, what) || check_aligned(c, &c->w->all[id], what))
        return -1;
    return c->w->all[id].row_bytes != cols * sizeof(float) ? check_fail(c, what, "must be packed") : 0;
}

/* The pairs of a slot, for a product of (rows, cols); `table`: for one that looks rows up. */
static int check_adapters(struct plan_checker *c, uint32_t slot, uint64_t rows, uint64_t cols, uint32_t count,
                          bool table)
{
    const struct plan *p = c->p;
    if (slot > p->slots || (slot && !p->lora))
        return check_fail(c, "adapter", "names a slot that the plan does not have");
    for (uint32_t i = 1; slot && i <= p->adapters; i++) {
        const struct lora_pair *pair = plan_lora(p, slot, i);
        if (!pair)
            continue;
        if (pair->a >= c->w->count || !pair->b || pair->b >= c->w->count || !isfinite(pair->scale))
            return check_fail(c, "adapter", "has half a pair");
        const struct weight *a = &c->w->all[pair->a], *b = &c->w->all[pair->b];
        uint32_t rank = table ? a->cols : a->rows;
        if (check_matrix(c, pair->b, b->rows > rank && !table ? rank + 1 : rank, rows, count,
                         "adapter's B") ||
            check_matrix(c, pair->a, table ? cols : rank, table ? rank : cols, count, "adapter's A"))
            return -1;
        if (b->type != DTYPE_F32 || b->rows > CHECK_K_MOST || (uintptr_t)b->data % sizeof(float) ||
            b->row_bytes % sizeof(float) || b->each_bytes % sizeof(float))
            return check_fail(c, "adapter's B", "must be aligned F32 of a rank that can be");
    }
    return 0;
}

static int check_linear(struct plan_checker *c, struct linear l, uint64_t rows, uint64_t cols, uint32_t count,
                        const char *what)
{
    if (check_matrix(c, l.weight, rows, cols, count, what))
        return -1;
    if (l.bias && check_vector(c, l.bias, rows, count, what))
        return -1;
    return check_adapters(c, l.adapter, rows, cols, count, false);
}

static int check_norm(struct plan_checker *c, const struct norm *n, uint64_t width, const char *what)
{
    if (n->kind == NORM_NONE)
        return 0;
    if (n->kind != NORM_RMS && n->kind != NORM_LAYER)
        return check_fail(c, what, "is of no kind that exists");
    if (!isfinite(n->eps) || n->eps < 0)
        return check_fail(c, what, "has an epsilon that is no small number");
    if (n->heads && width % n->heads)
        return check_fail(c, what, "does not divide its row into equal heads");
    uint64_t slice = n->heads ? width / n->heads : width;
    const weight_id both[2] = {n->weight, n->bias};
    for (int i = 0; i < 2; i++) {
        bool whole = both[i] && both[i] < c->w->count && c->w->all[both[i]].cols == width;
        if (both[i] && check_vector(c, both[i], whole ? width : slice, 1, what))
            return -1;
    }
    return 0;
}

static int check_rope(struct plan_checker *c, const struct rope *r, uint32_t room)
{
    if (r->kind == ROPE_NONE)
        return 0;
    if (r->kind != ROPE_PAIRS && r->kind != ROPE_HALVES)
        return check_fail(c, "rope", "is of no kind that exists");
    if (!r->dims || r->dims % 2 || r->dims > room || r->first > room - r->dims || !isfinite(r->factor))
        return check_fail(c, "rope", "rotates dimensions that the head does not have");
    return check_vector(c, r->freqs, (uint64_t)(r->axes ? PLAN_AXES : 1) * (r->dims / 2), 1,
                        "rope's frequencies");
}

static int check_query_scale(struct plan_checker *c, const struct query_scale *s)
{
    if (!isfinite(s->beta) || (s->beta != 0 && !s->length))
        return check_fail(c, "scale of q", "has no length or no number");
    return 0;
}

static int check_tail(struct plan_checker *c, const struct tail *t, uint64_t n)
{
    if (!isfinite(t->scale))
        return check_fail(c, "scale", "is not a number");
    if (check_norm(c, &t->post, n, "post norm") || check_norm(c, &t->after, n, "norm after"))
        return -1;
    if (t->residual.buffer && check_operand(c, t->residual, n, "residual"))
        return -1;
    return check_operand(c, t->out, n, "output");
}

static int check_apart(struct plan_checker *c, struct operand in, struct operand out)
{
    return in.buffer == out.buffer ? check_fail(c, "output", "is the buffer of the input") : 0;
}

/* The number of columns of a weight, 0 where there is none. */
static uint32_t check_cols(const struct plan_checker *c, weight_id id)
{
    return id && id < c->w->count ? c->w->all[id].cols : 0;
}

static uint32_t check_rows(const struct plan_checker *c, weight_id id)
{
    return id && id < c->w->count ? c->w->all[id].rows : 0;
}

static int check_heads_shape(struct plan_checker *c, uint32_t heads, uint32_t kv_heads, uint32_t k_dim,
                             uint32_t v_dim)
{
    if (!heads || heads > CHECK_HEADS_MOST || !kv_heads || heads % kv_heads)
        return check_fail(c, "heads", "must be a multiple of the KV heads");
    if (!k_dim || k_dim > CHECK_DIM_MOST || !v_dim || v_dim > CHECK_DIM_MOST)
        return check_fail(c, "head size", "must be from 1 to 1024");
    return 0;
}

static int check_place(struct plan_checker *c, uint32_t layer, uint32_t kv_heads, uint32_t k_dim,
                       uint32_t v_dim)
{
    const struct plan *p = c->p;
    if (layer >= p->layers || p->kv[layer].group >= p->groups)
        return check_fail(c, "layer", "has no place for its KV");
    const struct kv_group *g = &p->group[p->kv[layer].group];
    if (p->kv[layer].index >= g->layers || g->kv_heads != kv_heads || g->k_dim != k_dim || g->v_dim != v_dim)
        return check_fail(c, "KV", "has another geometry than its group");
    return 0;
}

static int check_embed(struct plan_checker *c, const struct op_embed *o)
{
    uint32_t n = o->table ? check_cols(c, o->table) : o->width;
    if (o->given.buffer && (check_operand(c, o->given, n, "given rows") || check_apart(c, o->given, o->out)))
        return -1;
    if (!o->table && (!o->given.buffer || o->positions || o->types || o->adapter))
        return check_fail(c, "table", "is absent, and the rows are not given");
    if (o->table && (check_weight(c, o->table, "table") ||
                     check_matrix(c, o->table, check_rows(c, o->table), n, 1, "table")))
        return -1;
    if (check_adapters(c, o->adapter, n, check_rows(c, o->table), 1, true))
        return -1;
    if (o->positions && check_matrix(c, o->positions, check_rows(c, o->positions), n, 1, "positions"))
        return -1;
    if (o->types && check_matrix(c, o->types, check_rows(c, o->types), n, 1, "types"))
        return -1;
    if (!isfinite(o->scale) || o->position_offset > CHECK_WIDTH_MOST)
        return check_fail(c, "scale or offset", "is not a number that makes sense");
    return check_norm(c, &o->norm, n, "norm") ? -1 : check_operand(c, o->out, n, "output");
}

static int check_qkv(struct plan_checker *c, const struct op_qkv *o)
{
    if (check_heads_shape(c, o->heads, o->kv_heads, o->k_dim, o->v_dim) ||
        (o->k.weight && check_place(c, o->layer, o->kv_heads, o->k_dim, o->v_dim)))
        return -1;
    uint64_t k = check_cols(c, o->q.weight), nq = (uint64_t)o->heads * o->k_dim;
    uint64_t nk = (uint64_t)o->kv_heads * o->k_dim, nv = (uint64_t)o->kv_heads * o->v_dim;
    if (check_linear(c, o->q, nq, k, 1, "q") || (o->k.weight && check_linear(c, o->k, nk, k, 1, "k")) ||
        (o->v.weight && check_linear(c, o->v, nv, k, 1, "v")))
        return -1;
    if (!o->v.weight && (o->k.weight ? o->v_dim != o->k_dim : o->k.bias || o->v.bias))
        return check_fail(c, "v", "is absent, and k cannot stand for it");
    if (o->v.weight && !o->k.weight)
        return check_fail(c, "k", "is absent beside a v");
    if ((o->q_norm.heads && o->q_norm.heads != o->heads) ||
        (o->k_norm.heads && o->k_norm.heads != o->kv_heads) ||
        (o->v_norm.kind && o->v_norm.heads != o->kv_heads))
        return check_fail(c, "q, k or v norm", "has another number of heads");
    if (check_norm(c, &o->norm, k, "norm") || check_norm(c, &o->q_norm, nq, "q norm") ||
        check_norm(c, &o->k_norm, nk, "k norm") || check_norm(c, &o->v_norm, nv, "v norm") ||
        check_rope(c, &o->rope, o->k_dim) || check_query_scale(c, &o->q_scale))
        return -1;
    if (!isfinite(o->clamp))
        return check_fail(c, "clamp", "is not a number");
    if (o->given.buffer &&
        (check_operand(c, o->given, nq + (o->k.weight ? nk : 0) + (o->v.weight ? nv : 0), "products") ||
         check_apart(c, o->given, o->out)))
        return -1;
    return check_operand(c, o->in, k, "input") || check_operand(c, o->out, nq, "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_latent(struct plan_checker *c, const struct op_latent *o)
{
    uint32_t r = o->rope.dims;
    if (!o->heads || o->heads > CHECK_HEADS_MOST || !o->nope || o->nope > CHECK_DIM_MOST ||
        r > CHECK_DIM_MOST || o->latent > CHECK_DIM_MOST)
        return check_fail(c, "head size", "must be from 1 to 1024");
    if (check_heads_shape(c, o->heads, 1, o->latent + r, o->latent) ||
        check_place(c, o->layer, 1, o->latent + r, 0))
        return -1;
    uint64_t k = check_cols(c, o->kv_a.weight), nq = (uint64_t)o->heads * (o->nope + r);
    uint64_t low = o->q_a.weight ? check_rows(c, o->q_a.weight) : k;
    if (o->q_a.weight && check_linear(c, o->q_a, low, k, 1, "q_a"))
        return -1;
    if (check_linear(c, o->q_b, nq, low, 1, "q_b") || check_linear(c, o->kv_a, o->latent + r, k, 1, "kv_a") ||
        check_linear(c, (struct linear){.weight = o->k_b, .adapter = o->k_b_adapter}, o->latent, o->nope,
                     o->heads, "k_b"))
        return -1;
    if (check_norm(c, &o->norm, k, "norm") || check_norm(c, &o->kv_norm, o->latent, "kv norm") ||
        (o->q_a.weight && check_norm(c, &o->q_norm, low, "q norm")) || check_rope(c, &o->rope, r) ||
        check_query_scale(c, &o->q_scale))
        return -1;
    if (!r || o->rope.first)
        return check_fail(c, "rope", "must have the tail of the head, counted from 0");
    return check_operand(c, o->in, k, "input") ||
                   check_operand(c, o->out, (uint64_t)o->heads * (o->latent + r), "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_attn(struct plan_checker *c, const struct op_attn *o)
{
    if (check_heads_shape(c, o->heads, o->kv_heads, o->k_dim, o->v_dim) ||
        check_place(c, o->layer, o->kv_heads, o->k_dim, o->v_in_k ? 0 : o->v_dim))
        return -1;
    if (o->v_in_k && o->v_dim > o->k_dim)
        return check_fail(c, "v", "is longer than the k that it is part of");
    uint32_t window = c->p->group[c->p->kv[o->layer].group].window;
    if (window && (!o->window || o->window > window || !o->causal))
        return check_fail(c, "window", "is wider than what its group keeps");
    if (o->chunked && (!o->window || !o->causal))
        return check_fail(c, "chunk", "has no size, or attention is not causal");
    if (o->chosen && (plan_chooser(c->p, c->i) == UINT32_MAX || !o->causal))
        return check_fail(c, "keys", "are chosen by no operation before, or attention is not causal");
    if (!isfinite(o->scale) || !isfinite(o->softcap))
        return check_fail(c, "scale or softcap", "is not a number");
    if ((unsigned)o->span > SPAN_ONLY || (o->span == SPAN_ONLY && (o->causal || o->window)) ||
        ((o->span == SPAN_ALSO || o->span == SPAN_AHEAD) && (!o->causal || o->chunked || o->chosen)))
        return check_fail(c, "spans", "are of no kind that exists, or beside keys that they exclude");
    if (o->sinks && check_vector(c, o->sinks, o->heads, 1, "sinks"))
        return -1;
    if (o->distance && (check_weight(c, o->distance, "distance") ||
                        check_vector(c, o->distance, c->w->all[o->distance].cols, o->heads, "distance")))
        return -1;
    if (o->distance && c->w->all[o->distance].cols % 2 == 0)
        return check_fail(c, "distance", "has no entry in the middle");
    return check_operand(c, o->in, (uint64_t)o->heads * o->k_dim, "input") ||
                   check_operand(c, o->out, (uint64_t)o->heads * o->v_dim, "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_heads(struct plan_checker *c, const struct op_heads *o)
{
    if (check_weight(c, o->weight, "weight"))
        return -1;
    const struct weight *m = &c->w->all[o->weight];
    if (m->count > CHECK_HEADS_MOST ||
        check_linear(c, (struct linear){.weight = o->weight, .adapter = o->adapter}, m->rows, m->cols,
                     m->count, "weight"))
        return check_fail(c, "weight", "has too many heads");
    return check_operand(c, o->in, (uint64_t)m->count * m->cols, "input") ||
                   check_operand(c, o->out, (uint64_t)m->count * m->rows, "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

/* Of one row of numbers. */
static bool act_exists(enum act_kind act)
{
    return (unsigned)act <= ACT_TANH && act != ACT_SWIGLU_OAI;
}

static int check_gate(struct plan_checker *c, const struct gate *g, uint64_t width)
{
    if (!g->in.buffer)
        return 0;
    if (!act_exists(g->act))
        return check_fail(c, "gate", "has an activation that is none for gates");
    if (g->heads && width % g->heads)
        return check_fail(c, "gate", "does not divide its row into equal heads");
    return check_operand(c, g->in, g->heads ? g->heads : width, "gate");
}

static int check_out(struct plan_checker *c, const struct op_out *o)
{
    uint32_t n = check_rows(c, o->linear.weight), k = check_cols(c, o->linear.weight);
    return check_linear(c, o->linear, n, k, 1, "weight") || check_norm(c, &o->norm, k, "norm") ||
                   check_gate(c, &o->gate, k) || check_operand(c, o->in, k, "input") ||
                   check_tail(c, &o->tail, n)
               ? -1
               : 0;
}

/* gate (may be absent), up and down of a feed-forward block between rows of k. */
static int check_hidden(struct plan_checker *c, const struct linear l[3], uint32_t k, uint32_t count,
                        const char *what)
{
    uint32_t hidden = check_rows(c, l[1].weight), n = check_rows(c, l[2].weight);
    return (l[0].weight && check_linear(c, l[0], hidden, k, count, what)) ||
                   check_linear(c, l[1], hidden, k, count, what) ||
                   check_linear(c, l[2], n, hidden, count, what)
               ? -1
               : 0;
}

static int check_ffn(struct plan_checker *c, const struct op_ffn *o)
{
    const struct linear l[3] = {o->gate, o->up, o->down};
    uint32_t k = check_cols(c, o->up.weight);
    if ((unsigned)o->act >= ACT_SWIGLU_OAI)
        return check_fail(c, "activation", "is none that a plain feed-forward has");
    if (o->xielu && (o->gate.weight || check_vector(c, o->xielu, 4, 1, "xIELU's numbers")))
        return check_fail(c, "xIELU", "has a gate, or not its four numbers");
    if (check_norm(c, &o->inner, check_rows(c, o->up.weight), "inner norm"))
        return -1;
    return check_hidden(c, l, k, 1, "weight") || check_norm(c, &o->norm, k, "norm") ||
                   check_operand(c, o->in, k, "input") ||
                   check_tail(c, &o->tail, check_rows(c, o->down.weight))
               ? -1
               : 0;
}

static int check_choice(struct plan_checker *c, const struct op_moe *o)
{
    if (!o->experts || o->experts > CHECK_HEADS_MOST || !o->used || o->used > o->experts + o->identities)
        return check_fail(c, "experts", "are fewer than a row uses, or none");
    if ((unsigned)o->gating > GATING_SIGMOID || (unsigned)o->act > ACT_SWIGLU_OAI)
        return check_fail(c, "gating or activation", "is of no kind that exists");
    if (o->groups > 1) {
        if (o->experts % o->groups || !o->groups_used || o->groups_used > o->groups ||
            (uint64_t)o->groups_used * (o->experts / o->groups) < o->used)
            return check_fail(c, "expert groups", "do not hold the experts that a row uses");
    }
    if (!isfinite(o->weight_scale) || !isfinite(o->nearness) || !isfinite(o->least_sum) ||
        (o->act == ACT_SWIGLU_OAI &&
         (!isfinite(o->alpha) || !o->alpha || !(o->limit > 0) || !o->gate.weight)))
        return check_fail(c, "weight scale, alpha or limit", "is not a number that makes sense");
    if (o->identities > CHECK_HEADS_MOST || (o->identities && (o->groups > 1 || o->scale_input)))
        return check_fail(c, "identities", "are too many, or beside groups or scaled inputs");
    uint64_t all = (uint64_t)o->experts + o->identities;
    if (o->expert_scale && check_vector(c, o->expert_scale, all, 1, "scale of experts"))
        return -1;
    return o->select_bias ? check_vector(c, o->select_bias, all, 1, "selection bias") : 0;
}

static int check_moe(struct plan_checker *c, const struct op_moe *o)
{
    const struct linear l[3] = {o->gate, o->up, o->down};
    const struct linear shared[3] = {o->shared_gate, o->shared_up, o->shared_down};
    const struct tail *t = &o->tail;
    if ((unsigned)o->side > MOE_ABOVE || (o->side && (t->post.kind || t->after.kind)) ||
        (o->side == MOE_ABOVE && (o->shared_up.weight || o->shared_router)))
        return check_fail(c, "side of the experts", "has a norm behind its sum, or what the other side has");
    uint32_t k = check_cols(c, o->up.weight), n = check_rows(c, o->down.weight),
             of = o->router_in.buffer ? check_cols(c, o->router.weight) : k;
    if (check_choice(c, o) ||
        check_linear(c, o->router, (uint64_t)o->experts + o->identities, of, 1, "router") ||
        check_hidden(c, l, k, o->experts, "experts"))
        return -1;
    if (o->shared_up.weight) {
        if (check_hidden(c, shared, k, 1, "shared expert"))
            return -1;
        if (check_rows(c, o->shared_down.weight) != n)
            return check_fail(c, "shared expert", "is not as wide as the others");
        if (o->act == ACT_SWIGLU_OAI && !o->shared_gate.weight)
            return check_fail(c, "shared expert", "has no gate");
    }
    if (o->identities && n != k)
        return check_fail(c, "identities", "give rows of another width");
    if (o->router_norm.kind && (o->shared_router || check_norm(c, &o->router_norm, of, "router norm")))
        return check_fail(c, "router norm", "is beside a shared router, or wrong");
    if (o->router_in.buffer && (o->shared_router || check_operand(c, o->router_in, of, "router's input")))
        return check_fail(c, "router's input", "is beside a shared router, or wrong");
    struct linear gate = {.weight = o->shared_router, .adapter = o->shared_router_adapter};
    if (gate.weight && check_linear(c, gate, 1, k, 1, "shared router"))
        return -1;
    return check_norm(c, &o->norm, k, "norm") || check_operand(c, o->in, k, "input") ||
                   check_tail(c, &o->tail, n)
               ? -1
               : 0;
}

static int check_logits(struct plan_checker *c, const struct op_logits *o)
{
    uint32_t k = o->head.weight ? check_cols(c, o->head.weight) : c->p->out_width;
    if (o->head.weight && check_linear(c, o->head, c->p->out_width, k, 1, "head"))
        return -1;
    if (!isfinite(o->scale) || !isfinite(o->softcap))
        return check_fail(c, "scale or softcap", "is not a number");
    return check_norm(c, &o->norm, k, "norm") ? -1 : check_operand(c, o->in, k, "input");
}

static int check_proj(struct plan_checker *c, const struct op_proj *o)
{
    uint64_t width = 0;
    uint32_t k = check_cols(c, o->linear[0].weight);
    if (!o->count || o->count > PROJ_MOST)
        return check_fail(c, "products", "are none, or too many");
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t n = check_rows(c, o->linear[i].weight);
        if (check_linear(c, o->linear[i], n, k, 1, "weight"))
            return -1;
        if (!isfinite(o->scale[i]) || !act_exists(o->act[i]))
            return check_fail(c, "scale or activation", "is none that exists");
        width += n;
    }
    if (o->best > width)
        return check_fail(c, "products", "are fewer than are chosen");
    return check_norm(c, &o->norm, k, "norm") || check_operand(c, o->in, k, "input") ||
                   check_operand(c, o->out, width, "output") || check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_state(struct plan_checker *c, uint32_t number, uint32_t heads, uint32_t rows, uint32_t cols)
{
    const struct plan_state *s = number < c->p->states ? &c->p->state[number] : NULL;
    size_t all = c->p->state_values, n;
    if (!s || !heads || s->heads != heads || s->rows != rows || s->cols != cols)
        return check_fail(c, "state", "is none of the plan's, or of another size");
    if (!size_mul(heads, rows, &n) || !size_mul(n, cols, &n) || s->at > all || n > all - s->at)
        return check_fail(c, "state", "reaches beyond its slot");
    return 0;
}

static int check_conv(struct plan_checker *c, const struct op_conv *o)
{
    if (o->cols < 2 || o->cols > CHECK_DIM_MOST || !o->channels || o->channels > CHECK_WIDTH_MOST)
        return check_fail(c, "convolution", "has a size that cannot be");
    if (!act_exists(o->act))
        return check_fail(c, "activation", "is of no kind that exists");
    if (check_floats(c, o->weight, o->channels, o->cols, "weight") ||
        (o->bias && check_vector(c, o->bias, o->channels, 1, "bias")) ||
        check_state(c, o->state, 1, o->cols - 1, o->channels) ||
        (o->mul.buffer &&
         (check_operand(c, o->mul, o->channels, "factor") || check_apart(c, o->mul, o->out))))
        return -1;
    return check_operand(c, o->in, o->channels, "input") || check_operand(c, o->out, o->channels, "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_map(struct plan_checker *c, const struct op_map *o)
{
    if (!isfinite(o->factor) || !isfinite(o->cap) || !isfinite(o->deviations) || !isfinite(o->scale))
        return check_fail(c, "factor, cap, deviations or scale", "is not a number");
    if (o->clips && (isnan(o->least) || isnan(o->most)))
        return check_fail(c, "limits", "are not numbers");
    if ((unsigned)o->act >= ACT_SWIGLU_OAI)
        return check_fail(c, "activation", "is none that a row has");
    if (check_norm(c, &o->norm, o->width, "norm") ||
        (o->times && check_vector(c, o->times, o->width, 1, "times")) ||
        (o->plus && check_vector(c, o->plus, o->width, 1, "plus")) ||
        (o->residual.buffer && check_operand(c, o->residual, o->width, "residual")) ||
        (o->like.buffer && check_operand(c, o->like, o->width, "row that it is like")) ||
        (o->by.buffer && check_operand(c, o->by, o->width, "factors")))
        return -1;
    if (o->norm.heads > 1) { /* a slice is stored while others are read */
        const struct operand read[] = {o->residual, o->like, o->by};
        for (int i = 0; i < 3; i++)
            if (read[i].buffer && check_apart(c, read[i], o->out))
                return -1;
    }
    return check_operand(c, o->in, o->width, "input") || check_operand(c, o->out, o->width, "output") ? -1
                                                                                                      : 0;
}

static int check_mix(struct plan_checker *c, const struct op_mix *o)
{
    uint64_t outs = (uint64_t)o->outs * o->width, ins = (uint64_t)o->ins * o->width;
    if (!o->outs || !o->ins || !isfinite(o->bias))
        return check_fail(c, "streams", "are none, or the bias is not a number");
    if ((o->base.buffer && (check_operand(c, o->base, outs, "base") || check_apart(c, o->base, o->out))) ||
        (o->coef.buffer && check_operand(c, o->coef, (uint64_t)o->outs * o->ins, "coefficients")) ||
        (o->fixed && check_floats(c, o->fixed, o->outs, o->ins, "fixed coefficients")))
        return -1;
    return check_operand(c, o->in, ins, "input") || check_operand(c, o->out, outs, "output") ||
                   check_apart(c, o->in, o->out)
               ? -1
               : 0;
}

static int check_scan_numbers(struct plan_checker *c, const struct op_scan *o)
{
    const float all[] = {o->q_scale, o->k_scale, o->bound, o->write_scale, o->size_eps};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!isfinite(all[i]))
            return check_fail(c, "scale", "is not a number");
    if (!(o->dt_range[0] >= 0) || !(o->dt_range[1] >= o->dt_range[0]))
        return check_fail(c, "range of dt", "is none");
    if ((unsigned)o->decay_kind > DECAY_GIVEN || (o->decay_kind != DECAY_FIXED) != (o->decay.buffer != 0))
        return check_fail(c, "decay", "is of no kind that exists, or has no input");
    if (o->delta ? !o->write.buffer || o->decay_kind == DECAY_GIVEN
                 : o->write.buffer && o->decay_kind != DECAY_GIVEN)
        return check_fail(c, "delta rule",
                          "wants a strength of writing, and only a given decay does beside it");
    return 0;
}

/* k and v of some heads are one: `given` is how many there are. */
static int check_scan_sharing(struct plan_checker *c, const struct op_scan *o, uint32_t *given)
{
    *given = o->heads;
    if (o->rest && !o->decay_each)
        return check_fail(c, "rest", "wants a decay for each number of a key");
    if ((o->before || o->rest || o->sharing) && (o->delta || o->erase.buffer))
        return check_fail(c, "before, rest or sharing", "is beside a delta rule");
    if (!o->sharing)
        return 0;
    if (o->heads % o->sharing || o->k_heads != o->heads || o->k_norm.kind)
        return check_fail(c, "sharing", "does not divide the heads, or is beside other key heads");
    *given = o->heads / o->sharing;
    return 0;
}

static int check_scan_erase(struct plan_checker *c, const struct op_scan *o)
{
    const uint64_t n = (uint64_t)o->heads * o->k_dim;
    if (!o->erase.buffer && !o->rate.buffer)
        return 0;
    if (o->delta || !o->decay_each || o->k_heads != o->heads)
        return check_fail(c, "erase",
                          "is beside a delta rule, or without a decay and a key for each of its numbers");
    return check_operand(c, o->erase, n, "erase") || check_operand(c, o->rate, n, "rate") ||
                   check_apart(c, o->erase, o->out) || check_apart(c, o->rate, o->out)
               ? -1
               : 0;
}

static int check_scan_size(struct plan_checker *c, const struct op_scan *o)
{
    if (!o->size.buffer && !o->least.buffer)
        return 0;
    if (o->k_heads != o->heads || o->tiled || o->sharing)
        return check_fail(c, "size", "is of heads that have no key of their own");
    return check_operand(c, o->size, o->heads, "size") ||
                   check_operand(c, o->least, o->heads, "least size") || check_apart(c, o->size, o->out) ||
                   check_apart(c, o->least, o->out)
               ? -1
               : 0;
}

static int check_scan(struct plan_checker *c, const struct op_scan *o)
{
    if (!o->heads || o->heads > CHECK_WIDTH_MOST || !o->k_heads || o->heads % o->k_heads || !o->k_dim ||
        o->k_dim > CHECK_DIM_MOST || !o->v_dim || o->v_dim > CHECK_DIM_MOST)
        return check_fail(c, "heads", "are none, too large, or no multiple of the key heads");
    uint64_t nk = (uint64_t)o->k_heads * o->k_dim, nv = (uint64_t)o->heads * o->v_dim,
             nd = (uint64_t)o->heads * (o->decay_each ? o->k_dim : 1);
    bool each = check_rows(c, o->a) == o->heads && o->heads > 1;
    uint32_t given;
    if (check_scan_numbers(c, o) || check_scan_sharing(c, o, &given) ||
        (each ? check_floats(c, o->a, o->heads, o->k_dim, "a") : check_vector(c, o->a, o->heads, 1, "a")) ||
        (o->bias && check_vector(c, o->bias, nd, 1, "bias")) ||
        (o->skip && check_vector(c, o->skip, o->heads, 1, "skip")) ||
        check_state(c, o->state, o->heads, o->k_dim, o->v_dim))
        return -1;
    if (each && (o->v_dim != 1 || o->decay_kind != DECAY_SOFTPLUS || o->decay_each || o->delta || o->tiled ||
                 o->before || o->sharing || o->size.buffer))
        return check_fail(c, "a", "has a number for each row of a state that is no vector");
    if ((o->q_norm.kind && o->q_norm.heads != o->k_heads) ||
        (o->k_norm.kind && o->k_norm.heads != o->k_heads) || check_norm(c, &o->q_norm, nk, "q norm") ||
        check_norm(c, &o->k_norm, nk, "k norm"))
        return check_fail(c, "q or k norm", "has another number of heads");
    if ((o->decay.buffer && (check_operand(c, o->decay, nd, "decay") || check_apart(c, o->decay, o->out))) ||
        (o->write.buffer &&
         (check_operand(c, o->write, o->heads, "write") || check_apart(c, o->write, o->out))))
        return -1;
    return check_scan_erase(c, o) || check_scan_size(c, o) || check_operand(c, o->q, nk, "q") ||
                   check_operand(c, o->k, o->sharing ? (uint64_t)given * o->k_dim : nk, "k") ||
                   check_operand(c, o->v, (uint64_t)given * o->v_dim, "v") ||
                   check_operand(c, o->out, nv, "output") || check_apart(c, o->q, o->out) ||
                   check_apart(c, o->k, o->out) || check_apart(c, o->v, o->out)
               ? -1
               : 0;
}

/* An input of a cell, which some kinds have. */
static int check_cell_in(struct plan_checker *c, const struct op_cell *o, struct operand in, bool has,
                         const char *what)
{
    if (!has)
        return in.buffer ? check_fail(c, what, "is there, and this kind of cell has none") : 0;
    return check_operand(c, in, o->channels, what) || check_apart(c, in, o->out) ? -1 : 0;
}

static int check_cell(struct plan_checker *c, const struct op_cell *o)
{
    const uint32_t n = o->channels;
    if ((unsigned)o->kind > CELL_GATES)
        return check_fail(c, "cell", "is of no kind that exists");
    if (!n || n > CHECK_WIDTH_MOST)
        return check_fail(c, "channels", "are none, or too many");
    return (o->kind != CELL_GATES && check_vector(c, o->a, n, 1, "a")) ||
                   (o->gate_bias && check_vector(c, o->gate_bias, n, 1, "bias of the gate")) ||
                   (o->decay_bias && check_vector(c, o->decay_bias, n, 1, "bias of the decay")) ||
                   check_state(c, o->state, 1, cell_kept(o->kind), n) ||
                   check_cell_in(c, o, o->in, o->kind != CELL_GATES, "input") ||
                   check_cell_in(c, o, o->gate, true, "gate") ||
                   check_cell_in(c, o, o->decay, o->kind != CELL_AVERAGE, "decay") ||
                   check_operand(c, o->out, (uint64_t)cell_given(o->kind) * n, "output")
               ? -1
               : 0;
}

static int check_index(struct plan_checker *c, const struct op_index *o)
{
    uint64_t k = check_cols(c, o->k.weight), low = check_rows(c, o->q_a.weight);
    if (check_heads_shape(c, o->heads, 1, o->dim, o->dim) || check_place(c, o->layer, 1, o->dim, 0) ||
        !o->used)
        return check_fail(c, "choice", "has heads or keys of another size, or takes none");
    return check_linear(c, o->q_a, low, k, 1, "q_a") ||
                   check_linear(c, o->q_b, (uint64_t)o->heads * o->dim, low, 1, "q_b") ||
                   check_linear(c, o->k, o->dim, k, 1, "k") ||
                   check_linear(c, o->weights, o->heads, k, 1, "weights") ||
                   check_norm(c, &o->norm, k, "norm") || check_norm(c, &o->q_norm, low, "q norm") ||
                   check_norm(c, &o->k_norm, o->dim, "k norm") || check_rope(c, &o->rope, o->dim) ||
                   check_operand(c, o->in, k, "input")
               ? -1
               : 0;
}

static int check_op(struct plan_checker *c, const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        return check_embed(c, &op->embed);
    case OP_QKV:
        return check_qkv(c, &op->qkv);
    case OP_LATENT:
        return check_latent(c, &op->latent);
    case OP_ATTN:
        return check_attn(c, &op->attn);
    case OP_HEADS:
        return check_heads(c, &op->heads);
    case OP_OUT:
        return check_out(c, &op->out);
    case OP_FFN:
        return check_ffn(c, &op->ffn);
    case OP_MOE:
        return check_moe(c, &op->moe);
    case OP_LOGITS:
        return check_logits(c, &op->logits);
    case OP_PROJ:
        return check_proj(c, &op->proj);
    case OP_CONV:
        return check_conv(c, &op->conv);
    case OP_SCAN:
        return check_scan(c, &op->scan);
    case OP_CELL:
        return check_cell(c, &op->cell);
    case OP_MAP:
        return check_map(c, &op->map);
    case OP_MIX:
        return check_mix(c, &op->mix);
    case OP_INDEX:
        return check_index(c, &op->index);
    }
    return check_fail(c, "kind", "is none that exists");
}

int plan_check(const struct plan *p, const struct weights *w, struct err *e)
{
    if (p->failed)
        return err_set(e, ERR_RESOURCE, "out of memory, or too many KV geometries, while the plan was built");
    uint32_t results = 0;
    for (uint32_t i = 0; i < p->count; i++)
        results += p->ops[i].kind == OP_LOGITS;
    if (!p->out_width || p->out_width > CHECK_WIDTH_MOST || results > 1 || (!results && !p->part))
        return err_set(e, ERR_DATA, "a plan has one result of 1 to %d numbers a row; this has %u of %u",
                       CHECK_WIDTH_MOST, results, p->out_width);
    for (uint32_t b = 1; b < p->buffers; b++)
        if (!p->width[b] || p->width[b] > CHECK_WIDTH_MOST)
            return err_set(e, ERR_DATA, "buffer %u of the plan is %u wide; 1 to %d was expected", b,
                           p->width[b], CHECK_WIDTH_MOST);
    for (uint32_t b = 1; b < p->buffers; b++)
        if (p->fold && p->fold[b] &&
            (p->fold[b] >= b || p->fold[p->fold[b]] || !p->fold_by ||
             p->width[b] != (uint64_t)p->fold_by * p->width[p->fold[b]]))
            return err_set(e, ERR_DATA, "buffer %u of the plan folds one that it cannot", b);
    if (p->given >= (p->buffers ? p->buffers : 1))
        return err_set(e, ERR_DATA, "the rows that are given have no buffer");
    for (uint32_t g = 0; g < p->groups; g++)
        if (!p->group[g].kv_heads || p->group[g].kv_heads > CHECK_HEADS_MOST || !p->group[g].k_dim ||
            p->group[g].k_dim > CHECK_DIM_MOST || p->group[g].v_dim > CHECK_DIM_MOST)
            return err_set(e, ERR_DATA, "KV group %u has heads of an invalid size", g);
    struct plan_checker c = {.p = p, .w = w, .e = e};
    for (c.i = 0; c.i < p->count; c.i++)
        if (check_op(&c, &p->ops[c.i]))
            return -1;
    return 0;
}
