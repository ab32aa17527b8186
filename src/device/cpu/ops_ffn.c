/* Feed-forward blocks: one for all rows, or experts that rows choose.
 *
 * Experts: rows are sorted by expert, so that the weights of an expert are read once a step for all of
 * its rows. The first half (gate, up, activation) is cut by (expert, columns); the second by columns of
 * the result alone, so that one worker adds up all experts of a column in the order of their numbers. */
#include "device/cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

void op_ffn_run(struct lane *l, const struct op_ffn *o)
{
    size_t stride;
    float *in = lane_at(l, o->in, &stride);
    const struct weight *up = lane_weight(l, o->up.weight);
    bool rounded = cpu_rounds(l->d, o->up.weight) || (o->gate.weight && cpu_rounds(l->d, o->gate.weight));
    struct rows x = lane_input(
        l,
        &(struct cpu_input){
            .x = in, .stride = stride, .m = l->s->rows, .k = up->cols, .norm = &o->norm, .rounded = rounded});
    struct hidden h = {.gate = o->gate,
                       .up = o->up,
                       .act = o->act,
                       .xielu = lane_vector(l, o->xielu),
                       .to = area_rows(&l->d->h, l->s->rows, up->rows),
                       .rounded = !o->inner.kind && cpu_rounds(l->d, o->down.weight),
                       .floats = lane_adapts(l, o->down)};
    struct share share = lane_columns(l, up->rows);
    for (uint32_t n0, n1; lane_take_columns(l, &share, up->rows, &n0, &n1);)
        lane_hidden(l, &x, &h, n0, n1);
    lane_wait(l);
    if (o->inner.kind)
        h.to = lane_input(l, &(struct cpu_input){.x = h.to.x,
                                                 .stride = h.to.x_stride,
                                                 .m = l->s->rows,
                                                 .k = up->rows,
                                                 .norm = &o->inner,
                                                 .rounded = cpu_rounds(l->d, o->down.weight)});
    lane_product_tail(l, &h.to, o->down, &o->tail);
    lane_tail_end(l, &o->tail, lane_weight(l, o->down.weight)->rows);
}

/* ---- the choice of experts ---- */

static void moe_softmax(const struct kernels *k, float *x, uint32_t n)
{
    float most = -FLT_MAX;
    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    const float sum = k->exp_sum(x, n, most);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* The largest of n, which is then struck out (-INFINITY). Candidates are at least -FLT_MAX. */
static uint32_t moe_take_best(float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    x[best] = -INFINITY;
    return best;
}

/* Strikes out the experts of all groups but the best; `rank` has room for one number a group. */
static void moe_keep_groups(const struct op_moe *o, float *choice, float *rank)
{
    uint32_t size = o->experts / o->groups;
    for (uint32_t g = 0; g < o->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            float x = choice[i];
            second = x > first ? first : x > second ? x : second;
            first = x > first ? x : first;
        }
        rank[g] = o->group_pair && size > 1 ? fmaxf(first + second, -FLT_MAX) : first;
    }
    for (uint32_t i = 0; i < o->groups_used; i++)
        moe_take_best(rank, o->groups);
    for (uint32_t i = 0; i < o->experts; i++) /* those taken are -INFINITY now */
        choice[i] = rank[i / size] > -INFINITY ? -INFINITY : choice[i];
}

/* The best in turn, each with its share of the softmax among those that are near it and not taken yet. */
static void moe_mix(const struct op_moe *o, float *score, uint32_t *expert, float *weight)
{
    for (uint32_t k = 0; k < o->used; k++) {
        uint32_t best = 0;
        float sum = 0;
        for (uint32_t i = 1; i < o->experts; i++)
            best = score[i] > score[best] ? i : best;
        float most = score[best];
        for (uint32_t i = 0; i < o->experts; i++)
            if (most - score[i] <= o->nearness * fmaxf(fabsf(score[i]), most))
                sum += expf(score[i] - most);
        expert[k] = best;
        weight[k] = o->weight_scale / fmaxf(sum, 1.0f);
        score[best] = -INFINITY;
    }
}

static void moe_choose(const struct lane *l, const struct op_moe *o, uint32_t row)
{
    const struct moe_route *m = &l->d->moe;
    const float *bias = lane_vector(l, o->select_bias);
    const uint32_t all = o->experts + o->identities;
    float *score = m->score + (size_t)row * (all + 1), *choice = m->choice + (size_t)row * 2 * all;
    uint32_t *expert = m->expert + (size_t)row * o->used;
    float *weight = m->weight + (size_t)row * o->used, sum = 0;
    if (o->nearness > 0) {
        moe_mix(o, score, expert, weight);
        return;
    }
    if (o->gating == GATING_SOFTMAX)
        moe_softmax(l->k, score, all);
    for (uint32_t i = 0; i < all; i++) {
        if (o->gating == GATING_SIGMOID)
            score[i] = 1.0f / (1.0f + expf(-score[i]));
        float x = score[i] + (bias ? bias[i] : 0.0f);
        choice[i] = x > -FLT_MAX ? x : -FLT_MAX; /* NaN too: a choice is always made */
    }
    if (o->groups > 1)
        moe_keep_groups(o, choice, choice + all);
    for (uint32_t i = 0; i < o->used; i++) {
        expert[i] = moe_take_best(choice, all);
        weight[i] = score[expert[i]];
    }
    if (o->gating == GATING_SOFTMAX_TOPK)
        moe_softmax(l->k, weight, o->used);
    for (uint32_t i = 0; i < o->used; i++)
        sum += weight[i];
    float scale = o->weight_scale / (o->normalise ? fmaxf(sum + 1e-20f, o->least_sum) : 1.0f);
    const float *own = lane_vector(l, o->expert_scale);
    for (uint32_t i = 0; i < o->used; i++)
        weight[i] *= own ? scale * own[expert[i]] : scale;
}

/* Whether this operation computes expert e, or another one does. */
static bool moe_has(const struct lane *l, const struct op_moe *o, uint32_t e)
{
    const struct moe_range r = moe_range(o->experts, o->side, l->s->border);
    return e < o->experts ? e >= r.first && e < r.end : o->side != MOE_ABOVE;
}

/* Sorts (row, expert) pairs by expert, rows in order. */
static void moe_sort(const struct lane *l, const struct op_moe *o)
{
    const struct moe_route *m = &l->d->moe;
    uint32_t pairs = l->s->rows * o->used, all = o->experts + o->identities;
    memset(m->first, 0, (all + 1) * sizeof *m->first);
    for (uint32_t i = 0; i < pairs; i++)
        m->first[m->expert[i] + 1] += moe_has(l, o, m->expert[i]);
    for (uint32_t e = 0; e < all; e++)
        m->first[e + 1] += m->first[e];
    for (uint32_t i = 0; i < pairs; i++) { /* first[e] moves on to where e + 1 starts */
        if (!moe_has(l, o, m->expert[i]))
            continue;
        uint32_t slot = m->first[m->expert[i]]++;
        m->slot_row[slot] = i / o->used;
        m->slot_weight[slot] = m->weight[i];
    }
    memmove(m->first + 1, m->first, all * sizeof *m->first);
    m->first[0] = 0;
}

/* Scores of rows [from, to) for experts [n0, n1), and for the shared expert. */
struct moe_scores {
    uint32_t from, to, n0, n1;
    bool shared;
};

static void moe_score(const struct lane *l, const struct op_moe *o, const struct rows *x,
                      const struct moe_scores *s)
{
    const uint32_t all = o->experts + o->identities;
    const struct rows part = rows_from(x, s->from, s->to - s->from, 0);
    float *score = l->d->moe.score + (size_t)s->from * (all + 1);
    struct cpu_product p = {.linear = o->router,
                            .floats = true,
                            .n0 = s->n0,
                            .n1 = s->n1,
                            .y = score + s->n0,
                            .y_stride = all + 1};
    if (part.m && s->n0 < s->n1)
        lane_product(l, &part, &p);
    if (!part.m || !s->shared)
        return;
    p.linear = (struct linear){.weight = o->shared_router, .adapter = o->shared_router_adapter};
    p.n0 = 0, p.n1 = 1, p.y = score + all;
    lane_product(l, &part, &p);
}

/* With many rows, workers share rows: if they shared experts, each would pack all rows. Each has eight rows at least, so a
 * row's scores have the same bits as in the product of all rows. */
static void moe_route(struct lane *l, const struct op_moe *o, const struct rows *x)
{
    enum { CHOICE_FEW = 8, ROWS_EACH = 8 };
    const uint32_t rows = l->s->rows, all = o->experts + o->identities;
    const bool by_rows = rows >= (uint32_t)l->workers * ROWS_EACH && !l->s->lora && !l->d->device.watch;
    struct moe_scores s = {.to = rows, .n1 = all, .shared = o->shared_router};
    uint32_t from, to;
    if (by_rows) {
        lane_slice(l, rows, ROWS_EACH, &s.from, &s.to);
    } else {
        lane_slice(l, all, 8, &s.n0, &s.n1);
        s.shared = o->shared_router && l->worker == l->workers - 1;
    }
    moe_score(l, o, x, &s);
    if (!by_rows)
        lane_wait(l);
    if (rows > CHOICE_FEW) {
        lane_slice(l, rows, by_rows ? ROWS_EACH : 1, &from, &to);
        for (uint32_t r = from; r < to; r++)
            moe_choose(l, o, r);
        lane_wait(l);
    }
    if (l->worker == 0) {
        for (uint32_t r = 0; rows <= CHOICE_FEW && r < rows; r++)
            moe_choose(l, o, r);
        moe_sort(l, o);
    }
    lane_wait(l);
}

/* ---- the experts ---- */

struct moe_run {
    struct rows x;      /* (rows, k) */
    struct rows slots;  /* (slots, k): x in the order of slots */
    struct rows h;      /* (slots, hidden) */
    struct rows shared; /* (rows, hidden of the shared expert) */
    bool one;           /* a single row: every slot is that row */
};

/* The forms that the experts' first products want, in the order of slots. */
static void moe_gather(struct lane *l, const struct op_moe *o, struct moe_run *run)
{
    bool floats = lane_adapts(l, o->up) || lane_adapts(l, o->gate);
    bool up = cpu_rounds(l->d, o->up.weight), gate = o->gate.weight ? cpu_rounds(l->d, o->gate.weight) : up;
    uint32_t slots = l->d->moe.first[o->experts + o->identities], k = lane_weight(l, o->up.weight)->cols,
             from, to;
    run->slots = area_rows(&l->d->g, slots, k);
    run->slots.row = l->d->moe.slot_row;
    lane_slice(l, slots, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        struct rows a = rows_from(&run->x, l->d->moe.slot_row[i], 1, 0), b = rows_from(&run->slots, i, 1, 0);
        float scale = o->scale_input ? l->d->moe.slot_weight[i] : 1.0f;
        if (!up || !gate || floats)
            memcpy(b.x, a.x, k * sizeof *b.x);
        if (scale != 1 && (!up || !gate || floats))
            l->k->softcap(b.x, k, scale, 0);
        if (!up && !gate)
            continue;
        for (uint32_t t = 0; t < a.terms; t++) {
            memcpy(b.q8.q + t * b.q8.q_stride, a.q8.q + t * a.q8.q_stride, k);
            memcpy(b.q8.d + t * b.q8.s_stride, a.q8.d + t * a.q8.s_stride, k / Q8_BLOCK * sizeof *b.q8.d);
            memcpy(b.q8.s + t * b.q8.s_stride, a.q8.s + t * a.q8.s_stride, k / Q8_BLOCK * sizeof *b.q8.s);
            if (scale != 1)
                l->k->softcap(b.q8.d + t * b.q8.s_stride, k / Q8_BLOCK, scale, 0);
        }
    }
    lane_wait(l);
}

/* A unit of an expert's columns costs what its weights cost to read, and its rows. */
static uint64_t moe_cost(uint32_t rows)
{
    return rows ? rows + 4 : 0;
}

static uint32_t moe_shared_rows(const struct lane *l, const struct op_moe *o)
{
    return o->shared_up.weight ? lane_weight(l, o->shared_up.weight)->rows : 0;
}

/* A piece of the first half. */
static void moe_hidden_piece(struct lane *l, const struct op_moe *o, struct moe_run *run, struct share *share)
{
    const uint32_t *first = l->d->moe.first, rows = l->s->rows, wide = moe_shared_rows(l, o);
    uint32_t hidden = lane_weight(l, o->up.weight)->rows, n0, n1;
    struct hidden h = {.gate = o->gate,
                       .up = o->up,
                       .act = o->act,
                       .alpha = o->alpha,
                       .limit = o->limit,
                       .rounded = cpu_rounds(l->d, o->down.weight),
                       .floats = lane_adapts(l, o->down)};
    for (uint32_t e = 0; e < o->experts; e++) {
        uint32_t m = first[e + 1] - first[e];
        if (!m || !share_next(share, hidden, moe_cost(m), &n0, &n1))
            continue;
        struct rows x = run->one ? run->x : rows_from(&run->slots, first[e], m, 0);
        h.to = rows_from(&run->h, first[e], m, 0);
        h.matrix = e;
        lane_hidden(l, &x, &h, n0, n1);
    }
    if (wide && share_next(share, wide, moe_cost(rows), &n0, &n1)) {
        h.gate = o->shared_gate, h.up = o->shared_up, h.matrix = 0, h.to = run->shared;
        h.rounded = cpu_rounds(l->d, o->shared_down.weight);
        h.floats = lane_adapts(l, o->shared_down);
        lane_hidden(l, &run->x, &h, n0, n1);
    }
}

static void moe_hidden(struct lane *l, const struct op_moe *o, struct moe_run *run)
{
    const uint32_t *first = l->d->moe.first, wide = moe_shared_rows(l, o);
    uint64_t total = wide ? share_cost(wide, moe_cost(l->s->rows)) : 0;
    for (uint32_t e = 0; e < o->experts; e++)
        total += share_cost(lane_weight(l, o->up.weight)->rows, moe_cost(first[e + 1] - first[e]));
    struct share share = lane_loop(l, total);
    while (lane_take(l, &share))
        moe_hidden_piece(l, o, run, &share);
    lane_wait(l);
}

/* Columns [n0, n1) of all experts, each times its weight, added up in `sum`. */
static void moe_combine(const struct lane *l, const struct op_moe *o, const struct moe_run *run, uint32_t n0,
                        uint32_t n1)
{
    const struct moe_route *m = &l->d->moe;
    size_t stride = l->p->width[o->tail.out.buffer];
    float *sum = l->d->sum + n0, *y = l->local->tile[0];
    struct cpu_product p = {.linear = o->down, .n0 = n0, .n1 = n1, .y = y, .y_stride = n1 - n0};
    for (uint32_t r = 0; r < l->s->rows; r++)
        memset(sum + r * stride, 0, (n1 - n0) * sizeof *sum);
    for (uint32_t e = 0; e < o->experts; e++) {
        uint32_t first = m->first[e], count = m->first[e + 1] - first;
        if (!count)
            continue;
        struct rows x = rows_from(&run->h, first, count, 0);
        p.matrix = e;
        lane_product(l, &x, &p);
        for (uint32_t i = 0; i < count; i++)
            l->k->axpy(o->scale_input ? 1.0f : m->slot_weight[first + i], y + (size_t)i * (n1 - n0), n1 - n0,
                       sum + m->slot_row[first + i] * stride);
    }
    for (uint32_t i = m->first[o->experts]; i < m->first[o->experts + o->identities]; i++)
        l->k->axpy(m->slot_weight[i], run->x.x + m->slot_row[i] * run->x.x_stride + n0, n1 - n0,
                   sum + m->slot_row[i] * stride);
    if (!o->shared_up.weight)
        return;
    p.linear = o->shared_down, p.matrix = 0;
    lane_product(l, &run->shared, &p);
    for (uint32_t r = 0; r < l->s->rows; r++) {
        float gate = m->score[(size_t)(r + 1) * (o->experts + o->identities + 1) - 1];
        float weight = o->shared_router ? 1.0f / (1.0f + expf(-gate)) : 1.0f;
        l->k->axpy(weight, y + (size_t)r * (n1 - n0), n1 - n0, sum + r * stride);
    }
}

/* Without experts of its own only the residual is left. */
static bool moe_idle(const struct lane *l, const struct op_moe *o)
{
    const struct moe_range r = moe_range(o->experts, o->side, l->s->border);
    return r.first >= r.end && !o->shared_up.weight && (o->side == MOE_ABOVE || !o->identities);
}

static void moe_pass(struct lane *l, const struct op_moe *o)
{
    const uint32_t n = lane_weight(l, o->down.weight)->rows;
    const size_t stride = l->p->width[o->tail.out.buffer];
    uint32_t from, to;
    lane_slice(l, n, CPU_UNIT, &from, &to);
    for (uint32_t r = 0; r < l->s->rows; r++)
        memset(l->d->sum + r * stride + from, 0, (to - from) * sizeof *l->d->sum);
    lane_tail(l, &o->tail, l->d->sum + from, stride, from, to);
    lane_tail_end(l, &o->tail, n);
}

void op_moe_run(struct lane *l, const struct op_moe *o)
{
    if (moe_idle(l, o)) {
        moe_pass(l, o);
        return;
    }
    size_t stride, out_stride = l->p->width[o->tail.out.buffer];
    float *in = lane_at(l, o->in, &stride);
    const struct weight *up = lane_weight(l, o->up.weight);
    uint32_t rows = l->s->rows, k = up->cols, n = lane_weight(l, o->down.weight)->rows;
    const weight_id first[4] = {o->gate.weight, o->up.weight, o->shared_gate.weight, o->shared_up.weight};
    bool rounded = false;
    for (int i = 0; i < 4; i++)
        rounded |= cpu_rounds(l->d, first[i]);
    struct moe_run run = {.one = rows == 1 && !o->scale_input};
    struct cpu_input input = {.x = in, .stride = stride, .m = rows, .k = k, .norm = &o->norm};
    if (moe_routes_apart(o)) {
        struct cpu_input routed = input;
        routed.norm = &o->router_norm;
        if (o->router_in.buffer) {
            routed.x = lane_at(l, o->router_in, &routed.stride);
            routed.k = lane_weight(l, o->router.weight)->cols;
        }
        run.x = lane_input(l, &routed);
        moe_route(l, o, &run.x);
    }
    input.rounded = rounded;
    run.x = lane_input(l, &input);
    if (!moe_routes_apart(o))
        moe_route(l, o, &run.x);
    run.h = area_rows(&l->d->h, rows * o->used, up->rows);
    run.h.row = l->d->moe.slot_row;
    if (o->shared_up.weight)
        run.shared = area_rows(&l->d->shared, rows, lane_weight(l, o->shared_up.weight)->rows);
    if (!run.one)
        moe_gather(l, o, &run);
    moe_hidden(l, o, &run);
    uint32_t most = lane_tile_cols(l, rows);
    struct share share = lane_columns(l, n);
    for (uint32_t from, to; lane_take_columns(l, &share, n, &from, &to);)
        for (uint32_t a = from, b; a < to; a = b) {
            b = to - a < most ? to : a + most;
            moe_combine(l, o, &run, a, b);
            lane_tail(l, &o->tail, l->d->sum + a, out_stride, a, b);
        }
    lane_tail_end(l, &o->tail, n);
}
