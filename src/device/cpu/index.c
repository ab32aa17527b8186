/* The choice of keys for sparse attention: every query scores all keys by a small attention of its own, and the best
 * are marked in a bitmap that op_attn_run reads. */
#include "device/cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- memory ---- */

size_t index_keys(const struct cpu *d, const struct plan *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].kind != OP_INDEX)
            continue;
        size_t keys = (size_t)d->kv.pages[p->kv[p->ops[i].index.layer].group] * d->kv.page_tokens;
        most = keys > most ? keys : most;
    }
    return (most + ATTN_KEYS - 1) / ATTN_KEYS * ATTN_KEYS;
}

size_t index_local_floats(const struct cpu *d, const struct plan *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == OP_INDEX) {
            const struct op_index *o = &p->ops[i].index;
            size_t need = (size_t)ATTN_KEYS * o->dim + (size_t)ATTN_KEYS * o->heads;
            most = need > most ? need : most;
        }
    return most ? most + 2 * index_keys(d, p) : 0;
}

uint64_t *index_row(const struct cpu *d, uint32_t row)
{
    return d->chosen + (size_t)row * (d->chosen_keys / 64);
}

/* ---- the choice ---- */

static void index_swap(float *a, float *b)
{
    float t = *a;
    *a = *b;
    *b = t;
}

/* The k-th largest of n, k >= 1; the order of x is lost. */
static float index_kth(float *x, size_t n, size_t k)
{
    size_t lo = 0, hi = n; /* it is in [lo, hi) */
    for (;;) {
        const float pivot = x[lo + (hi - lo) / 2];
        size_t above = lo, below = hi; /* [lo, above) are larger, [below, hi) smaller, those between equal */
        for (size_t i = lo; i < below;) {
            if (x[i] > pivot)
                index_swap(&x[above++], &x[i++]);
            else if (x[i] < pivot)
                index_swap(&x[--below], &x[i]);
            else
                i++;
        }
        if (k <= above)
            hi = above;
        else if (k > below)
            lo = below;
        else
            return pivot;
    }
}

/* Marks the `used` best of n scores; of equal ones the first. */
static void index_mark(const float *score, size_t n, uint32_t used, float *room, uint64_t *mark)
{
    memset(mark, 0, (n + 63) / 64 * sizeof *mark);
    float least = -INFINITY;
    size_t above = 0;
    if (n > used) {
        memcpy(room, score, n * sizeof *room);
        least = index_kth(room, n, used);
        for (size_t i = 0; i < n; i++)
            above += score[i] > least;
    }
    size_t equal = n > used ? used - above : n;
    for (size_t i = 0; i < n; i++) {
        bool take = score[i] > least || (score[i] == least && equal && equal--);
        mark[i / 64] |= (uint64_t)take << i % 64;
    }
}

/* score[key] = sum over heads of weight[h] * relu(q[h].k), for keys 0 to the row's own. */
static void index_scores(const struct lane *l, const struct op_index *o, uint32_t row, const float *q,
                         const float *weight, float *k, float *s, float *score)
{
    const struct step *st = l->s;
    const struct kv_place *place = &l->p->kv[o->layer];
    const struct kv_pool *pool = &l->d->group[place->group];
    const uint32_t seq = l->d->row_seq[row], tokens = l->d->kv.page_tokens, n = (uint32_t)st->pos[row] + 1;
    const int32_t *table = st->tables + ((size_t)place->group * st->seqs + seq) * st->table_width;
    struct attn_tile tile = {.q = q, .k = k, .s = s, .m = o->heads, .k_dim = o->dim};
    for (uint32_t at = 0; at < n; at += ATTN_KEYS) {
        tile.keys = n - at < ATTN_KEYS ? n - at : ATTN_KEYS;
        for (uint32_t i = 0; i < tile.keys; i += tokens)
            kv_get_k(l->d, pool, kv_page(pool, place->index, 0, (uint32_t)table[(at + i) / tokens]), k + i);
        l->k->attn_scores(&tile);
        for (uint32_t j = 0; j < tile.keys; j++) {
            float sum = 0;
            for (uint32_t h = 0; h < o->heads; h++) {
                float x = s[(size_t)h * ATTN_KEYS + j];
                sum += x > 0 ? weight[h] * x : 0;
            }
            score[at + j] = sum > -FLT_MAX ? sum : -FLT_MAX; /* NaN too: a choice is always made */
        }
    }
}

static void index_choose(struct lane *l, const struct op_index *o)
{
    const size_t keys = l->d->chosen_keys;
    float *k = l->local->index, *s = k + (size_t)ATTN_KEYS * o->dim,
          *score = s + (size_t)ATTN_KEYS * o->heads;
    uint32_t from, to;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        if (l->d->row_seq[r] == UINT32_MAX)
            continue;
        const uint32_t n = (uint32_t)l->s->pos[r] + 1;
        if (n > o->used)
            index_scores(l, o, r, l->d->qt + (size_t)r * o->heads * o->dim, l->d->sum + (size_t)r * o->heads,
                         k, s, score);
        else
            memset(score, 0, n * sizeof *score);
        index_mark(score, n, o->used, score + keys, index_row(l->d, r));
    }
    lane_wait(l);
}

/* ---- queries, keys and the weights of heads ---- */

/* In kt lie the keys, which are normed, rotated and put into the pages; in qt the queries, which are rotated; in sum the
 * weights of heads. */
static void index_finish(struct lane *l, const struct op_index *o)
{
    const struct kv_pool *g = &l->d->group[l->p->kv[o->layer].group];
    uint32_t from, to, slot = 0;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *k = l->d->kt + (size_t)r * o->dim, *q = l->d->qt + (size_t)r * o->heads * o->dim;
        lane_norm_head(l, &o->k_norm, k, o->dim, 0);
        lane_rotate(l, &o->rope, r, k);
        for (uint32_t h = 0; h < o->heads; h++)
            lane_rotate(l, &o->rope, r, q + (size_t)h * o->dim);
        uint8_t *page = lane_slot(l, o->layer, 0, r, &slot);
        if (page)
            kv_put_k(l->d, g, page, slot, k);
    }
    lane_wait(l);
}

void op_index_run(struct lane *l, const struct op_index *o)
{
    size_t stride;
    float *in = lane_at(l, o->in, &stride);
    const uint32_t m = l->s->rows, low = lane_weight(l, o->q_a.weight)->rows;
    const struct target t[3] = {{o->q_a, l->d->vt, low, 1, ACT_NONE},
                                {o->k, l->d->kt, o->dim, 1, ACT_NONE},
                                {o->weights, l->d->sum, o->heads, 1, ACT_NONE}};
    struct rows x = lane_input(l, &(struct cpu_input){.x = in,
                                                      .stride = stride,
                                                      .m = m,
                                                      .k = lane_weight(l, o->k.weight)->cols,
                                                      .norm = &o->norm,
                                                      .rounded = lane_any_rounds(l, t, 3)});
    lane_products(l, &x, t, 3);
    lane_wait(l);
    const struct target q = {o->q_b, l->d->qt, (size_t)o->heads * o->dim, 1, ACT_NONE};
    x = lane_input(l, &(struct cpu_input){.x = l->d->vt,
                                          .stride = low,
                                          .m = m,
                                          .k = low,
                                          .norm = &o->q_norm,
                                          .rounded = lane_any_rounds(l, &q, 1)});
    lane_products(l, &x, &q, 1);
    lane_wait(l);
    index_finish(l, o);
    index_choose(l, o);
}
