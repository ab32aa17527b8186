/* Embedding, Q/K/V, latent attention's products, per-head products, the output product, the head. */
#include "device/cpu/cpu.h"

#include "codec/dtype.h"

#include <math.h>
#include <string.h>

/* ---- embed ---- */

/* Row `row` of a table, added to y (after `scale`), or y itself where `first`. */
static void embed_add(const struct lane *l, weight_id id, uint32_t row, float *y, bool first)
{
    const struct weight *w = lane_weight(l, id);
    const struct dtype_info *t = dtype_get(w->type);
    float *at = first ? y : l->local->tile[0];
    t->decode(w->data + row * w->row_bytes, at, w->cols);
    if (!first)
        l->k->axpy(1.0f, at, w->cols, y);
}

/* y += scale * B a, where a is A's row of this token. */
static void embed_adapt(const struct lane *l, const struct op_embed *o, uint32_t row, float *y)
{
    const struct adapter_mix *mix = lane_mix(l, row);
    for (uint32_t i = 0; mix && i < mix->count; i++) {
        const struct lora_pair *pair = plan_lora(l->p, o->adapter, mix->id[i]);
        if (!pair)
            continue;
        const struct weight *a = lane_weight(l, pair->a), *b = lane_weight(l, pair->b);
        const float *columns = lane_vector(l, pair->b);
        dtype_get(a->type)->decode(a->data + step_token(l->s->ids[row]) * a->row_bytes, l->local->low,
                                   a->cols);
        for (uint32_t k = 0; k < a->cols; k++)
            l->k->axpy(mix->scale[i] * pair->scale * l->local->low[k], columns + (size_t)k * b->cols, b->cols,
                       y);
    }
}

void op_embed_run(struct lane *l, const struct op_embed *o)
{
    size_t stride;
    float *out = lane_at(l, o->out, &stride);
    uint32_t from, to, n = o->table ? lane_weight(l, o->table)->cols : o->width;
    size_t given_stride = 0;
    const float *given = o->given.buffer ? lane_at(l, o->given, &given_stride) : NULL;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *y = out + r * stride;
        if (given && l->s->ids[r] < 0) {
            memcpy(y, given + r * given_stride, n * sizeof *y);
            continue;
        }
        if (!o->table) {
            memset(y, 0, n * sizeof *y);
            continue;
        }
        uint32_t id = step_token(l->s->ids[r]); /* a table beside the vocabulary's may be shorter */
        id = l->s->ids[r] < 0 ? 0 : id;
        embed_add(l, o->table, id < lane_weight(l, o->table)->rows ? id : 0, y, true);
        if (l->s->lora && o->adapter)
            embed_adapt(l, o, r, y);
        if (o->scale != 1.0f)
            l->k->softcap(y, n, o->scale, 0);
        if (o->positions)
            embed_add(l, o->positions, (uint32_t)l->s->pos[r] + o->position_offset, y, false);
        if (o->types)
            embed_add(l, o->types, step_type(l->s->ids[r]), y, false);
        if (o->norm.kind)
            lane_norm(l, &o->norm, y, n, y);
    }
    lane_wait(l);
}

/* ---- qkv ---- */

static const float *lane_cos_sin(const struct lane *l, const struct rope *r, uint32_t row)
{
    const struct rope_table *t = l->d->rope;
    while (t->freqs != r->freqs || t->dims != r->dims || t->factor != r->factor)
        t++;
    return t->cos_sin + (size_t)row * t->dims;
}

void lane_rotate(const struct lane *l, const struct rope *r, uint32_t row, float *x)
{
    if (r->kind)
        l->k->rope(x + r->first, r->dims, r->kind == ROPE_HALVES, lane_cos_sin(l, r, row));
}

/* What the position multiplies q by, 1 mostly. */
static float lane_query_scale(const struct lane *l, const struct query_scale *s, uint32_t row)
{
    if (s->beta == 0)
        return 1;
    uint32_t turns = ((uint32_t)l->s->pos[row] + s->offset) / s->length;
    return 1 + s->beta * log1pf((float)turns);
}

static void lane_clip(float *x, uint32_t n, float most)
{
    for (uint32_t i = 0; most > 0 && i < n; i++)
        x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

uint8_t *lane_slot(const struct lane *l, uint32_t layer, uint32_t head, uint32_t row, uint32_t *slot)
{
    const struct step *s = l->s;
    const struct kv_place *place = &l->p->kv[layer];
    uint32_t seq = l->d->row_seq[row], tokens = l->d->kv.page_tokens, pos = (uint32_t)s->pos[row];
    if (seq == UINT32_MAX)
        return NULL;
    *slot = pos % tokens;
    int32_t page = s->tables[((size_t)place->group * s->seqs + seq) * s->table_width + pos / tokens];
    return kv_page(&l->d->group[place->group], place->index, head, (uint32_t)page);
}

/* Clipping, norm and rotation of heads [h0, h1) of a row x (heads, k_dim). A norm of the whole row comes with all heads. */
static void qkv_turn(const struct lane *l, const struct op_qkv *o, const struct norm *n, uint32_t row,
                     float *x, uint32_t heads, uint32_t h0, uint32_t h1)
{
    bool whole = n->kind && !n->heads;
    if (!o->clamp_last)
        lane_clip(x + h0 * o->k_dim, (h1 - h0) * o->k_dim, o->clamp);
    if (whole && !o->norm_last)
        lane_norm(l, n, x, heads * o->k_dim, x);
    for (uint32_t h = h0; h < h1; h++) {
        float *head = x + h * o->k_dim;
        if (!whole && !o->norm_last)
            lane_norm_head(l, n, head, o->k_dim, h);
        if (o->clamp_last)
            lane_clip(head, o->k_dim, o->clamp);
        lane_rotate(l, &o->rope, row, head);
        if (!whole && o->norm_last)
            lane_norm_head(l, n, head, o->k_dim, h);
    }
    if (whole && o->norm_last)
        lane_norm(l, n, x, heads * o->k_dim, x);
}

/* Heads [h0, h1) of one row, after the products. */
static void qkv_finish_q(const struct lane *l, const struct op_qkv *o, uint32_t row, uint32_t h0, uint32_t h1)
{
    size_t stride;
    float *q = lane_at(l, o->out, &stride) + row * stride;
    float scale = lane_query_scale(l, &o->q_scale, row);
    qkv_turn(l, o, &o->q_norm, row, q, o->heads, h0, h1);
    if (scale != 1)
        l->k->softcap(q + h0 * o->k_dim, (h1 - h0) * o->k_dim, scale, 0);
}

/* V of heads [h0, h1), from its own product or from K's, which is not normed and rotated yet. */
static void qkv_finish_v(const struct lane *l, const struct op_qkv *o, uint32_t row, uint32_t h0, uint32_t h1)
{
    const struct kv_pool *g = &l->d->group[l->p->kv[o->layer].group];
    const size_t at = (size_t)row * o->kv_heads * o->v_dim + h0 * o->v_dim, n = (h1 - h0) * o->v_dim;
    float *v = l->d->vt + at;
    if (!o->v.weight)
        memcpy(v, l->d->kt + at, n * sizeof *v);
    lane_clip(v, (uint32_t)n, o->clamp);
    for (uint32_t h = h0, slot = 0; h < h1; h++, v += o->v_dim) {
        lane_norm_head(l, &o->v_norm, v, o->v_dim, h);
        uint8_t *page = lane_slot(l, o->layer, h, row, &slot);
        if (page)
            kv_put_v(l->d, g, page, slot, v);
    }
}

static void qkv_finish_k(const struct lane *l, const struct op_qkv *o, uint32_t row, uint32_t h0, uint32_t h1)
{
    const struct kv_pool *g = &l->d->group[l->p->kv[o->layer].group];
    float *k = l->d->kt + (size_t)row * o->kv_heads * o->k_dim;
    if (!o->v.weight)
        qkv_finish_v(l, o, row, h0, h1);
    qkv_turn(l, o, &o->k_norm, row, k, o->kv_heads, h0, h1);
    for (uint32_t h = h0, slot = 0; h < h1; h++) {
        uint8_t *page = lane_slot(l, o->layer, h, row, &slot);
        if (page)
            kv_put_k(l->d, g, page, slot, k + h * o->k_dim);
    }
}

/* Norms, RoPE and the pages: a head of a row is one piece of work, or all its heads where a norm goes
 * over the whole row. */
static void qkv_finish(struct lane *l, const struct op_qkv *o)
{
    bool whole = (o->q_norm.kind && !o->q_norm.heads) || (o->k_norm.kind && !o->k_norm.heads);
    uint32_t nq = whole ? 1 : o->heads, nkv = whole ? 1 : o->kv_heads, from, to;
    uint32_t each = nq + (o->k.weight ? nkv : 0) + (o->v.weight ? nkv : 0);
    lane_slice(l, l->s->rows * each, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t row = i / each, j = i % each;
        if (j < nq)
            qkv_finish_q(l, o, row, j, whole ? o->heads : j + 1);
        else if (j < nq + nkv)
            qkv_finish_k(l, o, row, j - nq, whole ? o->kv_heads : j - nq + 1);
        else
            qkv_finish_v(l, o, row, j - nq - nkv, whole ? o->kv_heads : j - nq - nkv + 1);
    }
    lane_wait(l);
}

/* What a unit of columns costs: its bytes where weights are read for few rows, else its work. */
static uint64_t lane_unit_cost(const struct lane *l, weight_id id, uint32_t m)
{
    return m > 8 ? lane_weight(l, id)->cols : lane_weight(l, id)->row_bytes;
}

/* A piece of them. */
static void lane_products_piece(const struct lane *l, const struct rows *x, const struct target *t,
                                uint32_t count, struct share *share)
{
    for (uint32_t i = 0, n0, n1; i < count; i++) {
        uint32_t n = lane_weight(l, t[i].linear.weight)->rows;
        if (!share_next(share, n, lane_unit_cost(l, t[i].linear.weight, x->m), &n0, &n1))
            continue;
        struct cpu_product p = {
            .linear = t[i].linear, .n0 = n0, .n1 = n1, .y = t[i].y + n0, .y_stride = t[i].stride};
        lane_product(l, x, &p);
        for (uint32_t r = 0; t[i].scale != 1.0f && r < x->m; r++)
            for (uint32_t col = 0; col < n1 - n0; col++)
                p.y[r * p.y_stride + col] *= t[i].scale;
        for (uint32_t r = 0; t[i].act && r < x->m; r++)
            l->k->act_mul((int)t[i].act, p.y + r * p.y_stride, NULL, n1 - n0, p.y + r * p.y_stride);
    }
}

void lane_products(const struct lane *l, const struct rows *x, const struct target *t, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total +=
            share_cost(lane_weight(l, t[i].linear.weight)->rows, lane_unit_cost(l, t[i].linear.weight, x->m));
    struct share share = lane_loop(l, total);
    while (lane_take(l, &share))
        lane_products_piece(l, x, t, count, &share);
}

bool lane_any_rounds(const struct lane *l, const struct target *t, uint32_t count)
{
    bool any = false;
    for (uint32_t i = 0; i < count; i++)
        any |= cpu_rounds(l->d, t[i].linear.weight);
    return any;
}

/* Products that another device computed: q, k and v of a row, side by side. */
static void qkv_take(const struct lane *l, const struct op_qkv *o, float *out, size_t out_stride)
{
    const size_t nq = (size_t)o->heads * o->k_dim, nk = (size_t)o->kv_heads * o->k_dim,
                 nv = (size_t)o->kv_heads * o->v_dim;
    size_t stride;
    const float *from = lane_at(l, o->given, &stride);
    uint32_t first, end;
    lane_slice(l, l->s->rows, 1, &first, &end);
    for (uint32_t r = first; r < end; r++) {
        memcpy(out + r * out_stride, from + r * stride, nq * sizeof *out);
        if (o->k.weight)
            memcpy(l->d->kt + r * nk, from + r * stride + nq, nk * sizeof *out);
        if (o->v.weight)
            memcpy(l->d->vt + r * nv, from + r * stride + nq + nk, nv * sizeof *out);
    }
}

void op_qkv_run(struct lane *l, const struct op_qkv *o)
{
    size_t in_stride, out_stride;
    float *in = lane_at(l, o->in, &in_stride), *out = lane_at(l, o->out, &out_stride);
    const uint32_t products = !o->k.weight ? 1 : !o->v.weight ? 2 : 3;
    const struct target t[3] = {{o->q, out, out_stride, 1, ACT_NONE},
                                {o->k, l->d->kt, (size_t)o->kv_heads * o->k_dim, 1, ACT_NONE},
                                {o->v, l->d->vt, (size_t)o->kv_heads * o->v_dim, 1, ACT_NONE}};
    if (o->given.buffer) {
        qkv_take(l, o, out, out_stride);
        lane_wait(l);
        qkv_finish(l, o);
        return;
    }
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = in_stride,
                                                      .m = l->s->rows,
                                                      .k = lane_weight(l, o->q.weight)->cols,
                                                      .norm = &o->norm,
                                                      .rounded = lane_any_rounds(l, t, products)});
    lane_products(l, &x, t, products);
    lane_wait(l);
    qkv_finish(l, o);
}

/* The softmax of the `best` largest of n numbers; the others become 0. */
static void proj_choose(float *x, uint32_t n, uint32_t best)
{
    float least = INFINITY, most = -INFINITY, sum = 0;
    for (uint32_t k = 0, left = best; left && k < n;
         k++) { /* the next smaller number, with all that equal it */
        float next = -INFINITY;
        uint32_t same = 0;
        for (uint32_t i = 0; i < n; i++)
            next = x[i] < least && x[i] > next ? x[i] : next;
        for (uint32_t i = 0; i < n; i++)
            same += x[i] == next;
        least = next;
        left -= same < left ? same : left;
    }
    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] = x[i] >= least ? expf(x[i] - most) : 0;
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

void op_proj_run(struct lane *l, const struct op_proj *o)
{
    size_t in_stride, out_stride;
    float *in = lane_at(l, o->in, &in_stride), *out = lane_at(l, o->out, &out_stride);
    struct target t[PROJ_MOST];
    for (uint32_t i = 0; i < o->count; i++) {
        t[i] = (struct target){o->linear[i], out, out_stride, o->scale[i], o->act[i]};
        out += lane_weight(l, o->linear[i].weight)->rows;
    }
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = in_stride,
                                                      .m = l->s->rows,
                                                      .k = lane_weight(l, o->linear[0].weight)->cols,
                                                      .norm = &o->norm,
                                                      .rounded = lane_any_rounds(l, t, o->count)});
    lane_products(l, &x, t, o->count);
    lane_wait(l);
    if (!o->best)
        return;
    uint32_t from, to, n = 0;
    float *first = lane_at(l, o->out, &out_stride);
    for (uint32_t i = 0; i < o->count; i++)
        n += lane_weight(l, o->linear[i].weight)->rows;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++)
        proj_choose(first + r * out_stride, n, o->best);
    lane_wait(l);
}

/* ---- products per head ---- */

struct per_head {
    struct linear linear;
    struct rows x; /* head h's columns start at h * x_step */
    uint32_t x_step;
    float *y;
    size_t y_stride;
    uint32_t y_step;
};

static void lane_per_head(const struct lane *l, const struct per_head *j)
{
    const struct weight *w = lane_weight(l, j->linear.weight);
    uint32_t units = (w->rows + CPU_UNIT - 1) / CPU_UNIT, from, to;
    lane_slice(l, w->count * units, 1, &from, &to);
    for (uint32_t u = from, end; u < to; u = end) {
        uint32_t head = u / units, n0 = u % units * CPU_UNIT;
        end = (head + 1) * units < to ? (head + 1) * units : to;
        uint32_t n1 = n0 + (end - u) * CPU_UNIT;
        struct rows x = rows_from(&j->x, 0, j->x.m, head * j->x_step);
        struct cpu_product p = {.linear = j->linear,
                                .matrix = head,
                                .n0 = n0,
                                .n1 = n1 < w->rows ? n1 : w->rows,
                                .y = j->y + (size_t)head * j->y_step + n0,
                                .y_stride = j->y_stride};
        lane_product(l, &x, &p);
    }
}

void op_heads_run(struct lane *l, const struct op_heads *o)
{
    const struct weight *w = lane_weight(l, o->weight);
    size_t in_stride;
    float *in = lane_at(l, o->in, &in_stride);
    struct per_head job = {
        .linear = {.weight = o->weight, .adapter = o->adapter}, .x_step = w->cols, .y_step = w->rows};
    job.y = lane_at(l, o->out, &job.y_stride);
    job.x = lane_input(l, &(struct cpu_input){.x = in,
                                              .stride = in_stride,
                                              .m = l->s->rows,
                                              .k = w->count * w->cols,
                                              .rounded = cpu_rounds(l->d, o->weight)});
    lane_per_head(l, &job);
    lane_wait(l);
}

/* ---- latent attention ---- */

/* c = kv_a x lies in kt: its latent part is normed, its tail rotated, and all of it goes to the page. */
static void latent_finish_kv(const struct lane *l, const struct op_latent *o)
{
    const struct kv_pool *g = &l->d->group[l->p->kv[o->layer].group];
    uint32_t from, to, wide = o->latent + o->rope.dims, slot = 0;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *c = l->d->kt + (size_t)r * wide;
        if (o->kv_norm.kind)
            lane_norm(l, &o->kv_norm, c, o->latent, c);
        lane_rotate(l, &o->rope, r, c + o->latent);
        uint8_t *page = lane_slot(l, o->layer, 0, r, &slot);
        if (page)
            kv_put_k(l->d, g, page, slot, c);
    }
}

/* Each q head in qt: its head is rounded for k_b, its tail rotated and put behind what k_b will write. *step is
 * from head to head in what it returns. */
static struct rows latent_finish_q(struct lane *l, const struct op_latent *o, uint32_t *step)
{
    bool rounded = cpu_rounds(l->d, o->k_b), floats = l->s->lora && o->k_b_adapter;
    uint32_t from, to, wide = o->nope + o->rope.dims, m = l->s->rows;
    struct rows x = area_rows(&l->d->x, m, o->heads * o->nope);
    size_t stride, q_stride = (size_t)o->heads * wide;
    float *out = lane_at(l, o->out, &stride);
    lane_slice(l, m * o->heads, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t r = i / o->heads, h = i % o->heads;
        float *q = l->d->qt + r * q_stride + (size_t)h * wide;
        float *tail = out + r * stride + (size_t)h * (o->latent + o->rope.dims) + o->latent;
        float scale = lane_query_scale(l, &o->q_scale, r);
        lane_rotate(l, &o->rope, r, q + o->nope);
        if (scale != 1)
            l->k->softcap(q, wide, scale, 0);
        memcpy(tail, q + o->nope, o->rope.dims * sizeof *q);
        if (rounded)
            lane_round(l, q, o->nope, &x, r, h * o->nope);
        if (rounded && floats)
            memcpy(x.x + r * x.x_stride + (size_t)h * o->nope, q, o->nope * sizeof *q);
    }
    *step = rounded ? o->nope : wide;
    if (!rounded && o->q_scale.beta != 0)
        lane_wait(l); /* others read what was scaled in place */
    if (!rounded)
        return (struct rows){.m = m, .x = l->d->qt, .x_stride = q_stride};
    x.x = floats ? x.x : NULL;
    lane_wait(l);
    return x;
}

void op_latent_run(struct lane *l, const struct op_latent *o)
{
    size_t in_stride, wide = o->nope + o->rope.dims, low = 0;
    float *in = lane_at(l, o->in, &in_stride);
    uint32_t m = l->s->rows;
    struct target t[2] = {{o->q_b, l->d->qt, o->heads * wide, 1, ACT_NONE},
                          {o->kv_a, l->d->kt, o->latent + o->rope.dims, 1, ACT_NONE}};
    if (o->q_a.weight) {
        low = lane_weight(l, o->q_a.weight)->rows;
        t[0] = (struct target){o->q_a, l->d->vt, low, 1, ACT_NONE};
    }
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = in_stride,
                                                      .m = m,
                                                      .k = lane_weight(l, o->kv_a.weight)->cols,
                                                      .norm = &o->norm,
                                                      .rounded = lane_any_rounds(l, t, 2)});
    lane_products(l, &x, t, 2);
    lane_wait(l);
    latent_finish_kv(l, o);
    if (o->q_a.weight) {
        const struct target q = {o->q_b, l->d->qt, o->heads * wide, 1, ACT_NONE};
        x = lane_input(l, &(struct cpu_input){.x = l->d->vt,
                                              .stride = low,
                                              .m = m,
                                              .k = (uint32_t)low,
                                              .norm = &o->q_norm,
                                              .rounded = cpu_rounds(l->d, o->q_b.weight)});
        lane_products(l, &x, &q, 1);
        lane_wait(l);
    }
    struct per_head job = {.linear = {.weight = o->k_b, .adapter = o->k_b_adapter},
                           .y_step = o->latent + o->rope.dims};
    job.x = latent_finish_q(l, o, &job.x_step);
    job.y = lane_at(l, o->out, &job.y_stride);
    lane_per_head(l, &job);
    lane_wait(l);
}

/* ---- out and logits ---- */

void op_out_run(struct lane *l, const struct op_out *o)
{
    size_t stride;
    float *in = lane_at(l, o->in, &stride);
    const struct weight *w = lane_weight(l, o->linear.weight);
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = stride,
                                                      .m = l->s->rows,
                                                      .k = w->cols,
                                                      .norm = &o->norm,
                                                      .gate = &o->gate,
                                                      .rounded = cpu_rounds(l->d, o->linear.weight),
                                                      .copy = o->in.buffer == o->tail.out.buffer});
    lane_product_tail(l, &x, o->linear, &o->tail);
    lane_tail_end(l, &o->tail, w->rows);
}

/* The normed rows themselves are the result. */
static void logits_rows(struct lane *l, const struct op_logits *o, const float *in, size_t stride)
{
    uint32_t from, to, n = l->p->out_width;
    lane_slice(l, l->s->outs, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        const float *x = in + (size_t)l->s->out[r] * stride;
        float *y = l->d->results + (size_t)r * n;
        if (o->norm.kind)
            lane_norm(l, &o->norm, x, n, y);
        else
            memcpy(y, x, n * sizeof *y);
        if (o->scale != 1.0f || o->softcap > 0)
            l->k->softcap(y, n, o->scale, o->softcap);
    }
}

static void logits_head(struct lane *l, const struct op_logits *o, float *in, size_t stride)
{
    uint32_t n0, n1, n = l->p->out_width;
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = stride,
                                                      .m = l->s->outs,
                                                      .k = lane_weight(l, o->head.weight)->cols,
                                                      .pick = (const uint32_t *)l->s->out,
                                                      .norm = &o->norm,
                                                      .rounded = cpu_rounds(l->d, o->head.weight)});
    struct share share = lane_columns(l, n);
    while (lane_take_columns(l, &share, n, &n0, &n1)) {
        struct cpu_product p = {
            .linear = o->head, .n0 = n0, .n1 = n1, .y = l->d->results + n0, .y_stride = n};
        lane_product(l, &x, &p);
        for (uint32_t r = 0; (o->scale != 1.0f || o->softcap > 0) && r < l->s->outs; r++)
            l->k->softcap(p.y + (size_t)r * n, n1 - n0, o->scale, o->softcap);
    }
}

void op_logits_run(struct lane *l, const struct op_logits *o)
{
    size_t stride;
    float *in = lane_at(l, o->in, &stride);
    if (!l->s->outs)
        return;
    if (o->head.weight)
        logits_head(l, o, in, stride);
    else
        logits_rows(l, o, in, stride);
    lane_wait(l);
}
