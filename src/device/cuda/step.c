/* The block of a step: token ids, positions, page tables and choices of tokens, written to pinned memory and sent as one. */
#include "device/cuda/exec.h"

#include <math.h>
#include <string.h>

static uint32_t round_pow2(uint32_t n)
{
    uint32_t r = 1;
    while (r < n)
        r *= 2;
    return r;
}

/* Numbers that the entries of penalties take: steps that differ in them a little share a graph. */
static uint64_t pick_places(uint32_t seen)
{
    return seen ? round_pow2(seen) * (sizeof(struct pick_seen) / 4) : 0;
}

/* What a step's block holds. */
struct step_counts {
    uint32_t rows, seqs, outs;
    uint32_t width; /* of a page table */
    uint32_t seen;  /* tokens under a penalty, of all results */
};

/* The most numbers that such a block takes. */
static uint64_t step_ints(const struct cuda_device *d, const struct plan *p, const struct step_counts *n)
{
    uint64_t ints = 4ull * n->rows + n->outs + 4ull * n->seqs + (uint64_t)p->groups * n->width * n->seqs;
    ints += n->seqs * sizeof(struct adapter_mix) / 4 + (p->given ? (PLAN_AXES + 2ull) * n->rows : 0);
    ints += 1 + n->outs * sizeof(struct pick_row) / 4 + pick_places(n->seen);
    for (uint32_t i = 0; i < d->lower.ratios; i++)
        ints += 2 * ((uint64_t)n->rows * d->lower.ratio[i] / TILE_QUERIES + n->seqs);
    return ints;
}

void step_size(struct cuda_device *d, const struct plan *p)
{
    const struct step_counts most = {.rows = d->max_rows,
                                     .seqs = d->max_seqs,
                                     .outs = d->max_outs,
                                     .width = round_pow2(d->kv_pages ? d->kv_pages : 1),
                                     .seen = d->max_outs * PICK_SEEN_MOST};
    const uint64_t ints = step_ints(d, p, &most);
    d->meta_bytes = ints * 4 < (256u << 20) ? ints * 4 : 256u << 20;
}

/* Whether the step's block has room. */
static int step_fits(const struct cuda_device *d, const struct plan *p, const struct step *s, uint32_t width,
                     struct err *e)
{
    struct step_counts n = {.rows = s->rows, .seqs = s->seqs, .outs = s->outs, .width = width};
    for (uint32_t i = 0; s->pick && i < s->outs; i++) {
        n.seen += s->pick[i].seen_count;
        if (s->pick[i].seen_count > PICK_SEEN_MOST)
            return err_set(e, ERR_USAGE, "%u tokens under a penalty; %d is the most", s->pick[i].seen_count,
                           PICK_SEEN_MOST);
    }
    return step_ints(d, p, &n) * 4 > d->meta_bytes
               ? err_set(e, ERR_RESOURCE, "a page table of %u x %u entries is larger than what was prepared",
                         s->seqs, s->table_width)
               : 0;
}

int step_take(struct cuda_device *d, const struct plan *p, struct err *e)
{
    uint64_t widest = 0;
    if (p->given)
        widest = p->width[p->given];
    for (uint32_t i = 1; p->part && i < p->buffers; i++)
        widest = p->width[i] > widest ? p->width[i] : widest;
    if (widest && !(d->mirror = gpu_pinned(d->g, widest * d->max_rows * 4, e)))
        return -1;
    if (p->part &&
        gpu_check(d->g, d->g->cu->event_create(&d->passed, CU_EVENT_NO_TIMING), "making an event", e))
        return -1;
    if (!(d->meta_host = gpu_pinned(d->g, d->meta_bytes, e)) ||
        !(d->meta_device = gpu_alloc(d->g, d->meta_bytes, "the step's data", e)) ||
        !(d->at.results = gpu_pinned(d->g, (uint64_t)d->max_outs * p->out_width * 4, e)) ||
        !(d->picked = gpu_pinned(d->g, (uint64_t)d->max_outs * sizeof *d->picked, e)))
        return -1;
    memset(d->meta_host, 0, d->meta_bytes);
    return gpu_check(d->g, d->g->cu->set8(d->meta_device, 0, d->meta_bytes, d->g->stream), "clearing scratch",
                     e);
}

int step_check(const struct cuda_device *d, const struct plan *p, const struct step *s, struct err *e)
{
    if (s->from > p->count || s->to > p->count)
        return err_set(e, ERR_USAGE, "operations %u to %u of a plan that has %u", s->from, s->to, p->count);
    if (s->rows > d->max_rows || s->seqs > d->max_seqs || s->outs > d->max_outs)
        return err_set(e, ERR_RESOURCE,
                       "a step of %u rows, %u sequences and %u results: at most %u, %u and %u were prepared",
                       s->rows, s->seqs, s->outs, d->max_rows, d->max_seqs, d->max_outs);
    return device_check_ids(p, d->source, s, e) || device_check_rows(p, s, d->max_rows, e) ? -1 : 0;
}

/* A cursor over the step's block: the same offsets on the host and on the card. */
static int32_t *put(struct cuda_device *d, uint64_t *at, uint64_t n, const int32_t **device)
{
    int32_t *host = (int32_t *)d->meta_host + *at;
    *device = (const int32_t *)d->meta_device + *at;
    *at += n;
    return host;
}

static void put_tables(struct cuda_device *d, const struct step *s, uint32_t width, int32_t *to)
{
    for (uint32_t i = 0; i < d->kv_groups * s->seqs; i++) {
        uint32_t n = s->table_width < width ? s->table_width : width;
        memcpy(to + (uint64_t)i * width, s->tables + (uint64_t)i * s->table_width, n * 4);
        memset(to + (uint64_t)i * width + n, 0, (width - n) * 4);
    }
}

/* Tiles of queries for the sequences that are not decode, for each ratio of heads to KV heads. */
static void put_tiles(struct cuda_device *d, const struct step *s, uint64_t *at, struct step_class *c)
{
    struct launch_step *now = &d->now;
    int32_t *to = put(d, at, 0, &now->meta.tiles);
    uint32_t n = 0;
    for (uint32_t r = 0; r < d->lower.ratios; r++) {
        now->tiles[r] = 0;
        now->tiles_at[r] = n;
        for (uint32_t i = 0; i < s->seqs; i++) {
            uint32_t queries = s->seq[i].rows * d->lower.ratio[r];
            if (queries <= DECODE_QUERIES) {
                c->decode = 1;
                continue;
            }
            c->tiles |= 1u << r;
            for (uint32_t f = 0; f < queries; f += TILE_QUERIES) {
                to[n++] = (int32_t)i;
                to[n++] = (int32_t)f;
                now->tiles[r]++;
            }
        }
    }
    *at += n;
}

static struct pick_row pick_of(const struct step_pick *p, uint32_t seen)
{
    return (struct pick_row){.seed = p->seed,
                             .position = p->position,
                             .temperature = p->temperature,
                             .top_p = p->top_p,
                             .repeat = p->repeat,
                             .presence = p->presence,
                             .frequency = p->frequency,
                             .min_shift = p->min_p > 0 ? logf(p->min_p) : -INFINITY,
                             .top_k = p->top_k,
                             .seen = seen,
                             .seen_count = p->seen_count,
                             .on = p->on};
}

/* How tokens are chosen. The entries of penalties come last. */
static void put_picks(struct cuda_device *d, const struct step *s, uint64_t *at)
{
    const int32_t *row_at, *seen_at;
    uint32_t seen = 0;
    d->picks = d->seen = 0;
    for (uint32_t i = 0; s->pick && i < s->outs; i++) {
        d->picks += s->pick[i].on;
        seen += s->pick[i].on ? s->pick[i].seen_count : 0;
    }
    if (!d->picks)
        return;
    *at += *at & 1; /* numbers of eight bytes follow */
    struct pick_row *row = (struct pick_row *)(void *)put(d, at, s->outs * sizeof *row / 4, &row_at);
    d->seen = seen ? round_pow2(seen) : 0;
    struct pick_seen *to = (struct pick_seen *)(void *)put(d, at, pick_places(seen), &seen_at);
    seen = 0;
    for (uint32_t i = 0; i < s->outs; i++) {
        row[i] = pick_of(&s->pick[i], seen);
        if (!s->pick[i].on || !s->pick[i].seen_count)
            continue;
        memcpy(to + seen, s->pick[i].seen, s->pick[i].seen_count * sizeof *to);
        seen += s->pick[i].seen_count;
    }
    d->now.pick = (struct pick_args){.logits = d->at.logits,
                                     .ld = d->plan->out_width,
                                     .n = d->plan->out_width,
                                     .m = s->outs,
                                     .row = (const struct pick_row *)(const void *)row_at,
                                     .seen = (const struct pick_seen *)(const void *)seen_at,
                                     .ids = d->picked};
}

/* Positions by axis, and spans where some row has one. */
static void put_images(struct cuda_device *d, const struct step *s, uint64_t *at, struct step_class *c)
{
    struct meta *m = &d->now.meta;
    int32_t *axes = put(d, at, (uint64_t)PLAN_AXES * s->rows, &m->axes);
    if (s->axes)
        memcpy(axes, s->axes, PLAN_AXES * s->rows * sizeof *axes);
    for (uint32_t i = 0; !s->axes && i < PLAN_AXES * s->rows; i++)
        axes[i] = s->pos[i / PLAN_AXES];
    for (uint32_t i = 0; s->span && i < s->rows; i++)
        c->spans |= s->span[i].to != 0;
    if (c->spans)
        memcpy(put(d, at, 2ull * s->rows, &m->span), s->span, s->rows * sizeof *s->span);
}

int step_write(struct cuda_device *d, const struct plan *p, const struct step *s, struct step_class *c,
               struct err *e)
{
    struct meta *m = &d->now.meta;
    uint64_t at = 0;
    uint32_t longest = 1, many = 0, width = round_pow2(s->table_width ? s->table_width : 1);
    if (step_fits(d, p, s, width, e))
        return -1;
    *m = (struct meta){.rows = s->rows, .seqs = s->seqs, .outs = s->outs, .width = width};
    memcpy(put(d, &at, s->rows, &m->ids), s->ids, s->rows * 4ull);
    memcpy(put(d, &at, s->rows, &m->pos), s->pos, s->rows * 4ull);
    int32_t *row_seq = put(d, &at, s->rows, &m->row_seq), *out = put(d, &at, s->outs, &m->out);
    int32_t *first = put(d, &at, s->seqs, &m->seq_first), *rows = put(d, &at, s->seqs, &m->seq_rows);
    int32_t *len = put(d, &at, s->seqs, &m->seq_len);
    if (s->outs)
        memcpy(out, s->out, s->outs * 4ull);
    if (d->states) {
        memcpy(put(d, &at, s->seqs, &m->state_in), s->state_in, s->seqs * 4ull);
        memcpy(put(d, &at, s->rows, &m->state_out), s->state_out, s->rows * 4ull);
    }
    for (uint32_t i = 0; i < s->seqs; i++) {
        first[i] = (int32_t)s->seq[i].first;
        rows[i] = (int32_t)s->seq[i].rows;
        len[i] = (int32_t)s->seq[i].length;
        longest = s->seq[i].length > longest ? s->seq[i].length : longest;
        for (uint32_t r = 0; r < s->seq[i].rows && s->seq[i].first + r < s->rows; r++)
            row_seq[s->seq[i].first + r] = (int32_t)i;
        many += s->seq[i].rows >= CHUNK_LEAST;
    }
    *c = lower_class(&d->lower, s->rows, s->outs);
    if (p->given)
        put_images(d, s, &at, c);
    c->lora = s->lora && d->plan->lora;
    if (c->lora) {
        const int32_t *mix;
        memcpy(put(d, &at, s->seqs * sizeof *s->lora / 4, &mix), s->lora, s->seqs * sizeof *s->lora);
        d->now.mix = (const struct adapter_mix *)(const void *)mix;
    }
    put_tables(d, s, width, put(d, &at, (uint64_t)d->kv_groups * s->seqs * width, &m->tables));
    put_picks(d, s, &at);
    put_tiles(d, s, &at, c);
    d->meta_used = at * 4;
    d->now.border = s->border;
    d->now.keys = keys_rounded(longest);
    c->from = s->from;
    c->to = s->to ? s->to : p->count;
    c->seqs = c->decode ? s->seqs : 0;
    c->keys = c->decode ? d->now.keys : 0;
    c->single = s->seqs == s->rows;
    c->chunks = !many || !d->at.chunks ? 0 : many == s->seqs ? 1 : 2;
    c->picks = !d->picks ? 0 : d->picks == s->outs ? 2 : 1;
    return 0;
}
