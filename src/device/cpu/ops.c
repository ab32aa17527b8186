/* The pieces that the CPU's operations are made of: rows made ready for products, products, tails. */
#include "device/cpu/cpu.h"

#include "base/pool.h"

#include <math.h>
#include <string.h>

void lane_wait(struct lane *l)
{
    pool_barrier(l->d->pool, l->worker);
}

const struct weight *lane_weight(const struct lane *l, weight_id id)
{
    return &l->d->w->all[id];
}

const float *lane_vector(const struct lane *l, weight_id id)
{
    return id ? (const float *)(const void *)lane_weight(l, id)->data : NULL;
}

float *lane_at(const struct lane *l, struct operand o, size_t *stride)
{
    *stride = l->p->width[o.buffer];
    return l->d->buffer[o.buffer] + o.col;
}

void lane_slice(const struct lane *l, uint32_t n, uint32_t unit, uint32_t *from, uint32_t *to)
{
    long a, b;
    pool_slice(n, unit, l->worker, l->workers, &a, &b);
    *from = (uint32_t)a;
    *to = (uint32_t)b;
}

uint64_t share_cost(uint32_t n, uint64_t unit_cost)
{
    return (n + (uint64_t)CPU_UNIT - 1) / CPU_UNIT * unit_cost;
}

struct share lane_share(const struct lane *l, uint64_t total)
{
    return (struct share){.from = total * (uint64_t)l->worker / (uint64_t)l->workers,
                          .to = total * ((uint64_t)l->worker + 1) / (uint64_t)l->workers};
}

struct share lane_loop(const struct lane *l, uint64_t total)
{
    return (struct share){.total = total, .loop = ++l->local->loops};
}

/* A share has SHARE_TICKS ticks. What is left of it: the number of the loop, the first tick, and the one behind the last. Of
 * an earlier loop: all is left. */
enum { SHARE_TICKS = 128, SHARE_VICTIMS = 4 };

static uint64_t share_left(uint32_t loop, uint32_t first, uint32_t end)
{
    return (uint64_t)loop << 32 | first << 16 | end;
}

/* A share is one piece: with several rows, since each piece makes them ready again, with adapters, for whose first half the
 * same holds, and in models whose products are too short for it. */
static bool lane_whole(const struct lane *l)
{
    return l->workers == 1 || !l->d->pieces || l->s->rows > 1 || l->s->lora;
}

/* Half of what worker w has left: the owner takes it from the front, others from the back. */
static bool lane_take_from(const struct lane *l, struct share *s, int w)
{
    _Atomic uint64_t *left = &l->d->local[w].left;
    const bool own = w == l->worker, whole = lane_whole(l);
    uint64_t old = atomic_load_explicit(left, memory_order_relaxed), now;
    uint32_t from, to;
    do {
        const bool begun = old >> 32 == s->loop;
        const uint32_t first = begun ? old >> 16 & 0xffff : 0, end = begun ? old & 0xffff : SHARE_TICKS,
                       n = whole ? end - first : (end - first + 1) / 2;
        if (!n || (whole && !own))
            return false;
        from = own ? first : end - n;
        to = from + n;
        now = own ? share_left(s->loop, to, end) : share_left(s->loop, first, from);
    } while (
        !atomic_compare_exchange_weak_explicit(left, &old, now, memory_order_relaxed, memory_order_relaxed));
    const uint64_t ticks = (uint64_t)l->workers * SHARE_TICKS, at = (uint64_t)w * SHARE_TICKS;
    s->from = s->total * (at + from) / ticks;
    s->to = s->total * (at + to) / ticks;
    s->at = 0;
    return true;
}

bool lane_take(const struct lane *l, struct share *s)
{
    const int most = l->workers < SHARE_VICTIMS ? l->workers : SHARE_VICTIMS;
    for (int i = 0; i < most; i++)
        if (lane_take_from(l, s, (l->worker + i) % l->workers))
            return true;
    return false;
}

struct share lane_columns(const struct lane *l, uint32_t n)
{
    return lane_loop(l, share_cost(n, 1));
}

bool lane_take_columns(const struct lane *l, struct share *s, uint32_t n, uint32_t *n0, uint32_t *n1)
{
    while (lane_take(l, s))
        if (share_next(s, n, 1, n0, n1))
            return true;
    return false;
}

/* A unit belongs to the worker in whose range it starts: of the units of a part that starts at `at`, those
 * before the given border. */
static uint32_t share_units(uint64_t border, uint64_t at, uint64_t cost, uint32_t units)
{
    uint64_t n = border > at ? (border - at + cost - 1) / cost : 0;
    return n < units ? (uint32_t)n : units;
}

bool share_next(struct share *s, uint32_t n, uint64_t unit_cost, uint32_t *n0, uint32_t *n1)
{
    uint32_t units = (n + CPU_UNIT - 1) / CPU_UNIT;
    uint32_t a = share_units(s->from, s->at, unit_cost, units) * CPU_UNIT;
    uint32_t b = share_units(s->to, s->at, unit_cost, units) * CPU_UNIT;
    *n0 = a < n ? a : n;
    *n1 = b < n ? b : n;
    s->at += units * unit_cost;
    return *n0 < *n1;
}

/* ---- norms ---- */

/* Slice `i` of a row that is normed in slices. */
static void lane_norm_slice(const struct lane *l, const struct norm *n, const float *x, uint32_t size,
                            uint32_t i, float *y)
{
    const float *w = lane_vector(l, n->weight), *b = lane_vector(l, n->bias);
    if (w && lane_weight(l, n->weight)->cols != size)
        w += (size_t)i * size;
    if (b && lane_weight(l, n->bias)->cols != size)
        b += (size_t)i * size;
    if (n->kind == NORM_LAYER)
        l->k->layer_norm(x, w, b, n->eps, size, y);
    else
        l->k->rms_norm(x, w, n->eps, size, y);
}

void lane_norm_head(const struct lane *l, const struct norm *n, float *x, uint32_t size, uint32_t head)
{
    if (n->kind)
        lane_norm_slice(l, n, x, size, head, x);
}

void lane_norm(const struct lane *l, const struct norm *n, const float *x, uint32_t width, float *y)
{
    uint32_t heads = n->heads ? n->heads : 1, size = width / heads;
    for (uint32_t i = 0; i < heads; i++)
        lane_norm_slice(l, n, x + (size_t)i * size, size, i, y + (size_t)i * size);
}

/* ---- rows ---- */

bool cpu_rounds(const struct cpu *d, weight_id id)
{
    const struct weight *w = &d->w->all[id];
    return id && !d->exact && w->cols % Q8_BLOCK == 0 && d->k->matmul_q8[w->type];
}

bool cpu_packs(const struct cpu *d, weight_id id)
{
    return cpu_rounds(d, id) || (id && !d->exact && d->terms == 1 && kernel_bf16(d->w->all[id].type));
}

struct rows area_rows(const struct area *a, uint32_t m, uint32_t k)
{
    size_t wide = area_stride(k);
    return (struct rows){
        .m = m,
        .terms = a->terms,
        .x = a->f,
        .x_stride = wide,
        .q8 = {.q = a->q, .d = a->d, .s = a->s, .q_stride = wide, .s_stride = wide / Q8_BLOCK}};
}

struct rows rows_from(const struct rows *r, uint32_t first, uint32_t m, uint32_t col)
{
    struct rows to = *r;
    to.m = m;
    if (to.row)
        to.row += first;
    if (to.x)
        to.x += first * r->x_stride + col;
    if (to.q8.q) {
        to.q8.q += first * r->terms * r->q8.q_stride + col;
        to.q8.d += first * r->terms * r->q8.s_stride + col / Q8_BLOCK;
        to.q8.s += first * r->terms * r->q8.s_stride + col / Q8_BLOCK;
    }
    return to;
}

void lane_round(const struct lane *l, const float *x, uint32_t n, const struct rows *to, uint32_t row,
                uint32_t col)
{
    struct q8_rows at = rows_from(to, row, 1, col).q8;
    l->k->quantise(x, n, at.q, at.d, at.s);
    if (to->terms > 1)
        l->k->quantise_rest(x, n, &at);
}

/* y (width) times the gate of row `row`. */
static void lane_gate(const struct lane *l, const struct gate *g, uint32_t row, uint32_t width, float *y)
{
    size_t stride;
    const float *x = lane_at(l, g->in, &stride) + row * stride;
    uint32_t heads = g->heads ? g->heads : 1, size = width / heads;
    if (!g->heads)
        l->k->act_mul((int)g->act, x, y, width, y);
    for (uint32_t h = 0; g->heads && h < heads; h++) {
        float factor;
        l->k->act_mul((int)g->act, x + h, NULL, 1, &factor);
        for (uint32_t i = 0; i < size; i++)
            y[(size_t)h * size + i] *= factor;
    }
}

/* Every worker prepares few rows for itself: that costs less than a barrier. */
struct rows lane_input(struct lane *l, const struct cpu_input *in)
{
    bool norm = in->norm && in->norm->kind, gate = in->gate && in->gate->in.buffer;
    bool direct = !norm && !gate && !in->copy && !in->pick;
    if (direct && !in->rounded)
        return (struct rows){.m = in->m, .x = in->x, .x_stride = in->stride};
    bool alone = in->m <= CPU_FEW && !in->copy;
    struct rows to = area_rows(alone ? &l->local->input : &l->d->x, in->m, in->k);
    to.row = in->pick;
    uint32_t from = 0, end = in->m;
    if (!alone)
        lane_slice(l, in->m, 1, &from, &end);
    for (uint32_t r = from; r < end; r++) {
        const float *x = in->x + (in->pick ? in->pick[r] : (size_t)r) * in->stride;
        float *y = to.x + r * to.x_stride;
        if (!direct && (!norm || (gate && in->gate->first)))
            memcpy(y, x, in->k * sizeof *y);
        if (gate && in->gate->first)
            lane_gate(l, in->gate, r, in->k, y);
        if (norm)
            lane_norm(l, in->norm, gate && in->gate->first ? y : x, in->k, y);
        if (gate && !in->gate->first)
            lane_gate(l, in->gate, r, in->k, y);
        if (in->rounded)
            lane_round(l, direct ? x : y, in->k, &to, r, 0);
    }
    if (!alone)
        lane_wait(l);
    if (direct) {
        to.x = in->x;
        to.x_stride = in->stride;
    }
    return to;
}

/* ---- products ---- */

static void lane_bias(const struct lane *l, const struct cpu_product *p, uint32_t m)
{
    const struct weight *w = lane_weight(l, p->linear.bias);
    const float *b = lane_vector(l, p->linear.bias) + p->matrix * (w->each_bytes / sizeof(float)) + p->n0;
    for (uint32_t r = 0; r < m; r++)
        l->k->axpy(1.0f, b, p->n1 - p->n0, p->y + r * p->y_stride);
}

/* Columns [a, b) of a product. */
static struct matmul matmul_cut(const struct matmul *job, uint32_t a, uint32_t b)
{
    struct matmul cut = *job;
    cut.w += a * job->row_bytes;
    cut.panel += a / KERNEL_PANEL;
    cut.y += a;
    cut.n1 = b - a;
    return cut;
}

static void lane_round_product(const struct lane *l, const struct rows *x, const struct cpu_product *p,
                               struct matmul *job)
{
    uint32_t piece = job->n1;
    const bool first = lane_find_packed(l, p, x->m * x->terms, job, &piece);
    job->rests = x->terms > 1;
    for (uint32_t a = 0, b; a < job->n1; a = b) {
        b = job->n1 - a < piece ? job->n1 : a + piece;
        struct matmul cut = matmul_cut(job, a, b);
        (kernel_bf16(job->type) ? l->k->matmul_bf16 : l->k->matmul_q8[job->type])(&cut);
        if (first)
            lane_forget_weight(l, p, a, b);
    }
}

const struct adapter_mix *lane_mix(const struct lane *l, uint32_t row)
{
    uint32_t seq = l->d->row_seq[row];
    return l->s->lora && seq != UINT32_MAX && l->s->lora[seq].count ? &l->s->lora[seq] : NULL;
}

bool lane_adapts(const struct lane *l, struct linear linear)
{
    return l->s->lora && linear.adapter;
}

static bool mix_same(const struct adapter_mix *a, const struct adapter_mix *b)
{
    return a == b || (a && b && !memcmp(a, b, sizeof *a));
}

/* y += scale * B (A x) for rows [from, to). Every worker computes all of A x for its columns: it is small. */
static void lane_add_pair(const struct lane *l, const struct rows *x, const struct cpu_product *p,
                          const struct lora_pair *pair, float scale, uint32_t from, uint32_t to)
{
    const struct weight *a = lane_weight(l, pair->a), *b = lane_weight(l, pair->b);
    const float *columns = (const float *)(const void *)(b->data + p->matrix * b->each_bytes) + p->n0;
    struct matmul job = {.w = a->data + p->matrix * a->each_bytes,
                         .row_bytes = a->row_bytes,
                         .type = a->type,
                         .k = a->cols,
                         .n1 = a->rows,
                         .m = to - from,
                         .x = x->x + from * x->x_stride,
                         .x_stride = x->x_stride,
                         .y = l->local->low,
                         .y_stride = a->rows,
                         .scratch = l->local->kernel,
                         .fixed = l->d->fixed};
    l->k->matmul_float(&job);
    scale *= pair->scale;
    for (uint32_t r = from; r < to; r++)
        for (uint32_t i = 0; i < b->rows; i++) {
            float low = i < a->rows ? job.y[(size_t)(r - from) * a->rows + i] : 1.0f;
            l->k->axpy(scale * low, columns + i * (b->row_bytes / sizeof *columns), p->n1 - p->n0,
                       p->y + r * p->y_stride);
        }
}

/* Rows that have the same adapters go together. */
static void lane_adapt(const struct lane *l, const struct rows *x, const struct cpu_product *p)
{
    for (uint32_t r = 0, end; r < x->m; r = end) {
        const struct adapter_mix *mix = lane_mix(l, x->row ? x->row[r] : r);
        for (end = r + 1; end < x->m && mix_same(mix, lane_mix(l, x->row ? x->row[end] : end));)
            end++;
        for (uint32_t i = 0; mix && i < mix->count; i++) {
            const struct lora_pair *pair = plan_lora(l->p, p->linear.adapter, mix->id[i]);
            if (pair)
                lane_add_pair(l, x, p, pair, mix->scale[i], r, end);
        }
    }
}

void lane_product(const struct lane *l, const struct rows *x, const struct cpu_product *p)
{
    const struct weight *w = lane_weight(l, p->linear.weight);
    struct matmul job = {.w = w->data + p->matrix * w->each_bytes + p->n0 * w->row_bytes,
                         .row_bytes = w->row_bytes,
                         .type = w->type,
                         .k = w->cols,
                         .n1 = p->n1 - p->n0,
                         .m = x->m,
                         .x = x->x,
                         .x_stride = x->x_stride,
                         .q8 = x->q8,
                         .y = p->y,
                         .y_stride = p->y_stride,
                         .scratch = l->local->kernel,
                         .fixed = l->d->fixed};
    const struct device *d = &l->d->device;
    if (d->watch && p->n0 == 0 && x->x)
        d->watch(d->watch_arg, p->linear.weight, p->matrix, x->x, x->x_stride, x->m);
    if (!p->floats && cpu_packs(l->d, p->linear.weight))
        lane_round_product(l, x, p, &job);
    else
        l->k->matmul_float(&job);
    if (p->linear.bias)
        lane_bias(l, p, x->m);
    if (lane_adapts(l, p->linear))
        lane_adapt(l, x, p);
}

uint32_t lane_tile_cols(const struct lane *l, uint32_t m)
{
    size_t cols = l->d->tile_floats / m / CPU_UNIT * CPU_UNIT;
    return cols < CPU_UNIT ? CPU_UNIT : cols > 1u << 20 ? 1u << 20 : (uint32_t)cols;
}

/* The two clamps of gpt-oss, brought to the form g' * sigmoid(g') * u' that SiLU has. */
static void lane_clamp_gate(float *gate, float *up, uint32_t n, float alpha, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i] < limit ? gate[i] : limit;
        float u = up[i] < limit ? up[i] : limit;
        u = u > -limit ? u : -limit;
        gate[i] = alpha * g;
        up[i] = (u + 1.0f) / alpha;
    }
}

/* c: p, n, b, eps. */
static void lane_xielu(const float *x, uint32_t n, const float *c, float *y)
{
    for (uint32_t i = 0; i < n; i++) {
        float low = x[i] < c[3] ? x[i] : c[3];
        y[i] = c[2] * x[i] + (x[i] > 0 ? c[0] * x[i] * x[i] : c[1] * (expm1f(low) - x[i]));
    }
}

static void lane_activate(const struct lane *l, const struct hidden *h, float *gate, float *up, uint32_t n,
                          float *y)
{
    if (h->act == ACT_SWIGLU_OAI) {
        lane_clamp_gate(gate, up, n, h->alpha, h->limit);
        l->k->act_mul(ACT_SILU, gate, up, n, y);
    } else if (h->xielu) {
        lane_xielu(up, n, h->xielu, y);
    } else if (h->gate.weight) {
        l->k->act_mul(h->act, gate, up, n, y);
    } else {
        l->k->act_mul(h->act, up, NULL, n, y);
    }
}

void lane_hidden(const struct lane *l, const struct rows *x, const struct hidden *h, uint32_t n0, uint32_t n1)
{
    uint32_t most = lane_tile_cols(l, x->m);
    float *gate = l->local->tile[0], *up = l->local->tile[1];
    for (uint32_t a = n0, b; a < n1; a = b) {
        b = n1 - a < most ? n1 : a + most;
        struct cpu_product p = {
            .linear = h->up, .matrix = h->matrix, .n0 = a, .n1 = b, .y = up, .y_stride = b - a};
        lane_product(l, x, &p);
        if (h->gate.weight) {
            p.linear = h->gate;
            p.y = gate;
            lane_product(l, x, &p);
        }
        for (uint32_t r = 0; r < x->m; r++) {
            float *g = gate + (size_t)r * (b - a), *u = up + (size_t)r * (b - a);
            float *y = h->rounded && !h->floats ? u : h->to.x + r * h->to.x_stride + a;
            lane_activate(l, h, g, u, b - a, y);
            if (h->rounded)
                lane_round(l, y, b - a, &h->to, r, a);
        }
    }
}

/* ---- tails ---- */

void lane_tail(const struct lane *l, const struct tail *t, const float *y, size_t y_stride, uint32_t n0,
               uint32_t n1)
{
    size_t out_stride, in_stride = 0;
    float *out = lane_at(l, t->out, &out_stride);
    const float *in = t->residual.buffer ? lane_at(l, t->residual, &in_stride) : NULL;
    for (uint32_t r = 0; r < l->s->rows; r++, y += y_stride) {
        if (t->post.kind) {
            memmove(l->d->sum + r * out_stride + n0, y, (n1 - n0) * sizeof *y);
            continue;
        }
        float *o = out + r * out_stride;
        const float *i = in ? in + r * in_stride : NULL;
        for (uint32_t n = n0; n < n1; n++)
            o[n] = (i ? i[n] : 0.0f) + t->scale * y[n - n0];
    }
}

void lane_tail_end(struct lane *l, const struct tail *t, uint32_t n)
{
    lane_wait(l);
    if (!t->post.kind && !t->after.kind)
        return;
    size_t out_stride, in_stride = 0;
    float *out = lane_at(l, t->out, &out_stride);
    const float *in = t->residual.buffer ? lane_at(l, t->residual, &in_stride) : NULL;
    uint32_t from, to;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *o = out + r * out_stride, *y = l->d->sum + r * out_stride;
        if (t->post.kind) {
            lane_norm(l, &t->post, y, n, y);
            for (uint32_t i = 0; i < n; i++)
                o[i] = (in ? in[r * in_stride + i] : 0.0f) + t->scale * y[i];
        }
        if (t->after.kind)
            lane_norm(l, &t->after, o, n, o);
    }
    lane_wait(l);
}

void lane_product_tail(const struct lane *l, const struct rows *x, struct linear linear, const struct tail *t)
{
    const uint32_t most = lane_tile_cols(l, x->m), n = lane_weight(l, linear.weight)->rows;
    struct share share = lane_columns(l, n);
    for (uint32_t from, to; lane_take_columns(l, &share, n, &from, &to);)
        for (uint32_t a = from, b; a < to; a = b) {
            b = to - a < most ? to : a + most;
            struct cpu_product p = {
                .linear = linear, .n0 = a, .n1 = b, .y = l->local->tile[0], .y_stride = b - a};
            lane_product(l, x, &p);
            lane_tail(l, t, p.y, p.y_stride, a, b);
        }
}
