/* Paged attention, flash-style: scores never leave a tile of query rows x 64 keys.
 *
 * A task is a block of query rows of one sequence and the heads that share one KV head: a tile of up to
 * TILE_ROWS (row, head) pairs, so that a page is read once for all of them. Its keys are walked in blocks of
 * ATTN_KEYS with the running maximum and sum, and every CHUNK_KEYS the result is merged into the total.
 * Chunks start at fixed positions, and are merged in order: whether one worker walks all of them, or several
 * share them and a second phase merges (few tasks, long contexts), changes no bit of the result. */
#include "device/cpu/cpu.h"

#include "codec/dtype.h"

#include <math.h>
#include <string.h>

enum {
    TILE_ROWS = 11 * 6 /* a multiple of the kernels' rows */,
    CHUNK_KEYS = 4 * ATTN_KEYS,
    PARTIAL_FLOATS_MOST = 1 << 24
};

struct attn {
    const struct op_attn *o;
    const struct kv_pool *pool;
    uint32_t group, layer; /* layer within the group */
    uint32_t share;        /* query heads of a KV head */
    uint32_t heads, rows;  /* of a tile, at most */
    size_t slot;           /* floats of a piece that waits to be merged */
};

struct task {
    const struct step_seq *seq;
    uint32_t seq_index, kv_head;
    uint32_t row, rows;   /* batch rows */
    uint32_t head, heads; /* query heads */
    uint32_t k0, k1;      /* keys that any of its rows sees */
};

/* Where a tile's result is built: acc (m, v_dim), the maximum and the sum of each row. */
struct attn_piece {
    float *acc, *max, *sum;
};

/* ---- memory ---- */

/* Floats that a worker stores for each row of its tile. */
enum attn_stat_kind {
    STAT_TOTAL_MAX,
    STAT_TOTAL_SUM,
    STAT_MAX,
    STAT_SUM,
    STAT_RESCALE,
    STAT_Q_SCALE,
    STAT_W_SCALE,
    STATS
};

static float *attn_stat(const struct attn_local *local, enum attn_stat_kind which)
{
    return local->stat + which * TILE_ROWS;
}

static uint32_t attn_dim(const struct plan *p, bool v)
{
    uint32_t most = 16;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == OP_ATTN) {
            uint32_t dim = v ? p->ops[i].attn.v_dim : p->ops[i].attn.k_dim;
            most = dim > most ? dim : most;
        }
    return (most + 15) & ~15u;
}

size_t attn_local_floats(const struct plan *p)
{
    size_t k = attn_dim(p, false), v = attn_dim(p, true);
    return TILE_ROWS * k + ATTN_KEYS * k + ATTN_KEYS * v + TILE_ROWS * ATTN_KEYS + TILE_ROWS * ATTN_KEYS / 2 +
           2 * TILE_ROWS * v + STATS * TILE_ROWS;
}

void attn_local_place(struct attn_local *a, const struct plan *p, float *at)
{
    size_t k = attn_dim(p, false), v = attn_dim(p, true);
    a->q = at;
    a->k = a->q + TILE_ROWS * k;
    a->v = a->k + ATTN_KEYS * k;
    a->s = a->v + ATTN_KEYS * v;
    a->w = (int16_t *)(void *)(a->s + TILE_ROWS * ATTN_KEYS);
    a->acc = a->s + TILE_ROWS * ATTN_KEYS + TILE_ROWS * ATTN_KEYS / 2;
    a->total = a->acc + TILE_ROWS * v;
    a->stat = a->total + TILE_ROWS * v;
}

/* Enough for a step of single rows that see all that the pages can hold. */
size_t attn_partial_floats(const struct cpu *d, const struct plan *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].kind != OP_ATTN)
            continue;
        const struct op_attn *o = &p->ops[i].attn;
        size_t keys = (size_t)d->kv.pages[p->kv[o->layer].group] * d->kv.page_tokens;
        size_t need = (keys / CHUNK_KEYS + 2 * (size_t)d->max_seqs) * o->heads * (o->v_dim + 2);
        most = need > most ? need : most;
    }
    return most < PARTIAL_FLOATS_MOST ? most : PARTIAL_FLOATS_MOST;
}

/* ---- one chunk of keys ---- */

/* Keys [t0, t1) of those from `key` on, ATTN_KEYS at most. */
struct attn_block {
    uint32_t key, t0, t1;
};

/* The page of a block's key `at`. */
static const uint8_t *attn_page(const struct lane *l, const struct attn *a, const struct task *t,
                                const struct attn_block *b, uint32_t at)
{
    const struct step *s = l->s;
    const int32_t *table = s->tables + ((size_t)a->group * s->seqs + t->seq_index) * s->table_width;
    return kv_page(a->pool, a->layer, t->kv_head, (uint32_t)table[(b->key + at) / l->d->kv.page_tokens]);
}

/* A block's keys from the pages: K's columns, V's rows. V is zero before t0, since 0 times NaN is not 0; K
 * need not be. */
static void attn_load(const struct lane *l, const struct attn *a, const struct task *t,
                      const struct attn_block *b)
{
    const struct attn_local *local = &l->local->attn;
    uint32_t tokens = l->d->kv.page_tokens, v_dim = a->o->v_dim;
    for (uint32_t at = 0; at < b->t1; at += tokens) {
        float *v = local->v + (size_t)at * v_dim;
        uint32_t n = b->t1 - at < tokens ? b->t1 - at : tokens;
        if (at + tokens <= b->t0) { /* before the window: another sequence may have the page by now */
            memset(v, 0, (size_t)tokens * v_dim * sizeof *v);
            continue;
        }
        const uint8_t *page = attn_page(l, a, t, b, at);
        kv_get_k(l->d, a->pool, page, local->k + at);
        if (!a->o->v_in_k)
            kv_get_v(l->d, a->pool, page, n, v);
        for (uint32_t i = 0; a->o->v_in_k && i < v_dim; i++)
            for (uint32_t j = 0; j < n; j++)
                v[(size_t)j * v_dim + i] = local->k[(size_t)i * ATTN_KEYS + at + j];
    }
}

/* The same where pages are integers, which are used in place: keys outside have the scale 0. */
static void attn_point(const struct lane *l, const struct attn *a, const struct task *t,
                       const struct attn_block *b, struct attn_pages *g)
{
    g->tokens = l->d->kv.page_tokens;
    for (uint32_t at = 0; at < b->t1; at += g->tokens)
        kv_point(a->pool, attn_page(l, a, t, b, at), at / g->tokens, g);
    memset(g->v_scale, 0, b->t0 * sizeof *g->v_scale);
    memset(g->v_scale + b->t1, 0, (ATTN_KEYS - b->t1) * sizeof *g->v_scale);
}

/* The keys that a row of the batch sees. */
static struct attn_span attn_keys(const struct lane *l, const struct op_attn *o, uint32_t row,
                                  uint32_t length)
{
    const struct step_span *own = o->span && l->s->span ? &l->s->span[row] : NULL;
    const uint32_t pos = (uint32_t)l->s->pos[row];
    if (own && own->to && o->span == SPAN_ONLY)
        return (struct attn_span){own->from, own->to};
    uint32_t back = o->chunked ? pos % o->window + 1 : o->causal ? o->window : o->window / 2 + 1;
    struct attn_span s = {o->window && pos + 1 > back ? pos + 1 - back : 0, o->causal ? pos + 1 : length};
    if (!o->causal && o->window && pos + back < length)
        s.hi = pos + back;
    if (own && own->to) {
        s.lo = own->from < s.lo && o->span == SPAN_ALSO ? own->from : s.lo;
        s.hi = own->to > s.hi ? own->to : s.hi;
    }
    return s;
}

/* The keys of the block at `key` that each row of the tile sees. */
static void attn_see(const struct lane *l, const struct attn *a, const struct task *t, uint32_t key,
                     struct attn_span *seen)
{
    for (uint32_t r = 0; r < t->rows; r++) {
        struct attn_span all = attn_keys(l, a->o, t->row + r, t->seq->length);
        uint32_t lo = all.lo > key ? all.lo - key : 0, hi = all.hi > key ? all.hi - key : 0;
        hi = hi < ATTN_KEYS ? hi : ATTN_KEYS;
        for (uint32_t h = 0; h < t->heads; h++)
            *seen++ = (struct attn_span){lo < hi ? lo : hi, hi};
    }
}

/* Adds to the scores of a block what depends on the distance from query to key. */
static void attn_distance(const struct lane *l, const struct attn *a, const struct task *t,
                          const struct attn_block *b, float *s)
{
    const uint32_t cols = lane_weight(l, a->o->distance)->cols;
    const int32_t most = (int32_t)(cols / 2);
    const float *table = lane_vector(l, a->o->distance);
    for (uint32_t i = 0; i < t->rows * t->heads; i++, s += ATTN_KEYS) {
        const float *middle = table + (size_t)(t->head + i % t->heads) * cols + most;
        int32_t first = (int32_t)b->key - l->s->pos[t->row + i / t->heads];
        for (int32_t k = 0; k < (int32_t)b->t1; k++) {
            int32_t d = first + k;
            s[k] += middle[d < -most ? -most : d > most ? most : d];
        }
    }
}

/* Scores of keys that were not chosen: far below all others, but a number, since a block may have no chosen one. */
static void attn_mask(const struct lane *l, const struct task *t, uint32_t key, float *s)
{
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint64_t bits = index_row(l->d, t->row + r)[key / ATTN_KEYS];
        for (uint32_t h = 0; h < t->heads; h++, s += ATTN_KEYS)
            for (uint32_t i = 0; i < ATTN_KEYS; i++)
                s[i] = bits >> i & 1 ? s[i] : -1e30f;
    }
}

static void attn_block(const struct lane *l, const struct attn *a, const struct task *t,
                       const struct attn_block *b, struct attn_tile *tile)
{
    struct attn_pages pages;
    struct attn_span seen[TILE_ROWS];
    tile->keys = b->t1;
    tile->seen = seen;
    tile->pages = a->pool->ints ? &pages : NULL;
    attn_see(l, a, t, b->key, seen);
    if (tile->pages)
        attn_point(l, a, t, b, &pages);
    else
        attn_load(l, a, t, b);
    l->k->attn_scores(tile);
    if (a->o->distance)
        attn_distance(l, a, t, b, tile->s);
    if (a->o->softcap > 0)
        l->k->softcap(tile->s, tile->m * ATTN_KEYS, 1.0f, a->o->softcap);
    if (a->o->chosen)
        attn_mask(l, t, b->key, tile->s);
    l->k->attn_softmax(tile);
    l->k->attn_values(tile);
}

static void attn_chunk(const struct lane *l, const struct attn *a, const struct task *t, uint32_t chunk,
                       const struct attn_piece *p)
{
    const struct attn_local *local = &l->local->attn;
    uint32_t m = t->rows * t->heads, start = chunk * CHUNK_KEYS, end = start + CHUNK_KEYS;
    struct attn_tile tile = {.q = local->q,
                             .q16 = (const int16_t *)(const void *)local->q,
                             .q_scale = attn_stat(local, STAT_Q_SCALE),
                             .k = local->k,
                             .v = local->v,
                             .s = local->s,
                             .max = p->max,
                             .sum = p->sum,
                             .rescale = attn_stat(local, STAT_RESCALE),
                             .w = local->w,
                             .w_scale = attn_stat(local, STAT_W_SCALE),
                             .acc = p->acc,
                             .m = m,
                             .k_dim = a->o->k_dim,
                             .v_dim = a->o->v_dim};
    memset(p->acc, 0, (size_t)m * a->o->v_dim * sizeof *p->acc);
    for (uint32_t i = 0; i < m; i++) {
        p->max[i] = -INFINITY;
        p->sum[i] = 0;
    }
    for (uint32_t key = start; key < end && key < t->k1; key += ATTN_KEYS) {
        uint32_t t0 = t->k0 > key ? t->k0 - key : 0, t1 = t->k1 - key;
        const struct attn_block block = {key, t0, t1 < ATTN_KEYS ? t1 : ATTN_KEYS};
        if (t0 < ATTN_KEYS)
            attn_block(l, a, t, &block, &tile);
    }
}

/* total += piece */
static void attn_merge(const struct attn_piece *total, const struct attn_piece *p, uint32_t m, uint32_t v_dim)
{
    for (uint32_t i = 0; i < m; i++) {
        if (p->sum[i] == 0)
            continue;
        float most = total->max[i] > p->max[i] ? total->max[i] : p->max[i];
        float a = expf(total->max[i] - most), b = expf(p->max[i] - most);
        float *x = total->acc + (size_t)i * v_dim;
        const float *y = p->acc + (size_t)i * v_dim;
        for (uint32_t j = 0; j < v_dim; j++)
            x[j] = x[j] * a + y[j] * b;
        total->sum[i] = total->sum[i] * a + p->sum[i] * b;
        total->max[i] = most;
    }
}

/* ---- one task ---- */

static struct attn_piece attn_piece(float *acc, uint32_t m, uint32_t v_dim)
{
    float *max = acc + (size_t)m * v_dim;
    return (struct attn_piece){.acc = acc, .max = max, .sum = max + m};
}

static struct attn_piece attn_total(const struct lane *l, uint32_t m, uint32_t v_dim)
{
    const struct attn_local *local = &l->local->attn;
    struct attn_piece total = {.acc = local->total,
                               .max = attn_stat(local, STAT_TOTAL_MAX),
                               .sum = attn_stat(local, STAT_TOTAL_SUM)};
    memset(total.acc, 0, (size_t)m * v_dim * sizeof *total.acc);
    for (uint32_t i = 0; i < m; i++) {
        total.max[i] = -INFINITY;
        total.sum[i] = 0;
    }
    return total;
}

/* The tile's queries, scaled, one after another. */
static void attn_queries(const struct lane *l, const struct attn *a, const struct task *t)
{
    size_t stride;
    const float *in = lane_at(l, a->o->in, &stride) + (size_t)t->head * a->o->k_dim;
    uint32_t dim = a->o->k_dim, even = dim + dim % 2;
    float *q = l->local->attn.q, *scale = attn_stat(&l->local->attn, STAT_Q_SCALE);
    int16_t *q16 = (int16_t *)(void *)q;
    for (uint32_t i = 0; i < t->rows * t->heads; i++, q += dim, q16 += even) {
        const float *x = in + (t->row + i / t->heads) * stride + (size_t)(i % t->heads) * dim;
        if (a->pool->ints) {
            q16[even - 1] = 0;
            scale[i] = a->o->scale * l->k->round_i16(x, dim, true, q16);
        }
        for (uint32_t j = 0; j < dim && !a->pool->ints; j++)
            q[j] = x[j] * a->o->scale;
    }
}

static void attn_finish(const struct lane *l, const struct attn *a, const struct task *t,
                        const struct attn_piece *total)
{
    size_t stride;
    uint32_t v_dim = a->o->v_dim;
    float *out = lane_at(l, a->o->out, &stride) + (size_t)t->head * v_dim;
    const float *sinks = lane_vector(l, a->o->sinks);
    for (uint32_t i = 0; i < t->rows * t->heads; i++) {
        uint32_t r = i / t->heads, h = i % t->heads;
        float factor = 1.0f, sum = total->sum[i];
        if (sinks) {
            float sink = sinks[t->head + h], most = sink > total->max[i] ? sink : total->max[i];
            factor = expf(total->max[i] - most);
            sum = sum * factor + expf(sink - most);
        }
        factor = sum > 0 ? factor / sum : sum; /* a row that sees nothing is zero; NaN stays NaN */
        float *y = out + (t->row + r) * stride + (size_t)h * v_dim;
        const float *x = total->acc + (size_t)i * v_dim;
        for (uint32_t j = 0; j < v_dim; j++)
            y[j] = x[j] * factor;
    }
}

static void attn_task(const struct lane *l, const struct attn *a, const struct task *t)
{
    uint32_t m = t->rows * t->heads, v_dim = a->o->v_dim;
    const struct attn_local *local = &l->local->attn;
    struct attn_piece total = attn_total(l, m, v_dim);
    struct attn_piece p = {
        .acc = local->acc, .max = attn_stat(local, STAT_MAX), .sum = attn_stat(local, STAT_SUM)};
    attn_queries(l, a, t);
    uint32_t first = t->k0 / CHUNK_KEYS;
    attn_chunk(l, a, t, first, &total); /* the same as merged into nothing */
    for (uint32_t c = first + 1; c * CHUNK_KEYS < t->k1; c++) {
        attn_chunk(l, a, t, c, &p);
        attn_merge(&total, &p, m, v_dim);
    }
    attn_finish(l, a, t, &total);
}

/* ---- all tasks, in the same order for every worker ---- */

struct walk {
    uint32_t seq, kv_head, head, row; /* the next task */
};

static bool attn_next(const struct lane *l, const struct attn *a, struct walk *w, struct task *t)
{
    const struct step *s = l->s;
    while (w->seq < s->seqs && w->row >= s->seq[w->seq].rows) { /* rows, then heads, KV heads, sequences */
        w->row = 0;
        w->head += a->heads;
        if (w->head >= a->share) {
            w->head = 0;
            w->kv_head++;
        }
        if (w->kv_head == a->o->kv_heads || !s->seq[w->seq].rows) {
            w->kv_head = w->head = 0;
            w->seq++;
        }
    }
    if (w->seq == s->seqs)
        return false;
    const struct step_seq *q = &s->seq[w->seq];
    uint32_t left = q->rows - w->row;
    *t = (struct task){.seq = q,
                       .seq_index = w->seq,
                       .kv_head = w->kv_head,
                       .row = q->first + w->row,
                       .rows = left < a->rows ? left : a->rows,
                       .head = w->kv_head * a->share + w->head,
                       .heads = a->share - w->head < a->heads ? a->share - w->head : a->heads};
    t->k0 = attn_keys(l, a->o, t->row, q->length).lo;
    t->k1 = attn_keys(l, a->o, t->row + t->rows - 1, q->length).hi;
    w->row += t->rows;
    return true;
}

static uint32_t attn_chunks(const struct task *t)
{
    return (t->k1 + CHUNK_KEYS - 1) / CHUNK_KEYS - t->k0 / CHUNK_KEYS;
}

/* Blocks of keys times what one costs: loading it, and the rows of the tile. */
static uint64_t attn_cost(const struct task *t, uint32_t k0, uint32_t k1)
{
    return (uint64_t)((k1 + ATTN_KEYS - 1) / ATTN_KEYS - k0 / ATTN_KEYS) * (t->rows * t->heads + 8);
}

static uint64_t attn_chunk_cost(const struct task *t, uint32_t c)
{
    uint32_t k0 = c * CHUNK_KEYS, k1 = k0 + CHUNK_KEYS;
    return attn_cost(t, k0 > t->k0 ? k0 : t->k0, k1 < t->k1 ? k1 : t->k1);
}

static bool attn_mine(struct share *s, uint64_t cost)
{
    bool mine = s->at >= s->from && s->at < s->to;
    s->at += cost;
    return mine;
}

static void attn_whole(struct lane *l, const struct attn *a, uint64_t total)
{
    struct share share = lane_share(l, total);
    struct walk w = {0};
    for (struct task t; attn_next(l, a, &w, &t);)
        if (attn_mine(&share, attn_cost(&t, t.k0, t.k1)))
            attn_task(l, a, &t);
    lane_wait(l);
}

/* Chunks shared out, then merged task by task. */
static void attn_split(struct lane *l, const struct attn *a, uint64_t total, uint32_t tasks)
{
    struct share share = lane_share(l, total);
    struct walk w = {0};
    float *at = l->d->partial;
    for (struct task t; attn_next(l, a, &w, &t);) {
        uint32_t first = t.k0 / CHUNK_KEYS, n = attn_chunks(&t), m = t.rows * t.heads;
        bool ready = false;
        for (uint32_t c = first; c < first + n; c++, at += a->slot) {
            if (!attn_mine(&share, attn_chunk_cost(&t, c)))
                continue;
            if (!ready)
                attn_queries(l, a, &t);
            ready = true;
            struct attn_piece p = attn_piece(at, m, a->o->v_dim);
            attn_chunk(l, a, &t, c, &p);
        }
    }
    lane_wait(l);
    w = (struct walk){0};
    at = l->d->partial;
    uint32_t i = 0, from, to;
    lane_slice(l, tasks, 1, &from, &to);
    for (struct task t; attn_next(l, a, &w, &t); i++) {
        uint32_t n = attn_chunks(&t), m = t.rows * t.heads;
        if (i >= from && i < to) {
            struct attn_piece sum = attn_total(l, m, a->o->v_dim);
            for (uint32_t c = 0; c < n; c++) {
                struct attn_piece p = attn_piece(at + c * a->slot, m, a->o->v_dim);
                attn_merge(&sum, &p, m, a->o->v_dim);
            }
            attn_finish(l, a, &t, &sum);
        }
        at += n * a->slot;
    }
    lane_wait(l);
}

void op_attn_run(struct lane *l, const struct op_attn *o)
{
    const struct kv_place *place = &l->p->kv[o->layer];
    struct attn a = {.o = o,
                     .pool = &l->d->group[place->group],
                     .group = place->group,
                     .layer = place->index,
                     .share = o->heads / o->kv_heads};
    a.heads = a.share < TILE_ROWS ? a.share : TILE_ROWS;
    a.rows = TILE_ROWS / a.heads;
    uint64_t total = 0, pieces = 0;
    uint32_t tasks = 0, m = 0;
    struct walk w = {0};
    for (struct task t; attn_next(l, &a, &w, &t); tasks++) {
        total += attn_cost(&t, t.k0, t.k1);
        pieces += attn_chunks(&t);
        m = t.rows * t.heads > m ? t.rows * t.heads : m;
    }
    a.slot = (size_t)m * (o->v_dim + 2);
    bool split = l->workers > 1 && tasks < 4 * (uint32_t)l->workers && pieces > tasks &&
                 pieces <= l->d->partial_floats / (a.slot ? a.slot : 1);
    if (split)
        attn_split(l, &a, total, tasks);
    else
        attn_whole(l, &a, total);
}
