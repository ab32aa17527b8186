/* The CUDA device of the seam: memory, steps, graphs. */
#include "device/cuda/lora.h"
#include "device/cuda/parity.h"
#include "device/cuda/timing.h"

#include "base/buf.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct cuda_device *self(struct device *d)
{
    return (struct cuda_device *)d;
}

static int cuda_load(struct device *base, const struct weights *w, void (*progress)(void *, double),
                     void *arg, struct err *e)
{
    struct cuda_device *d = self(base);
    d->source = w;
    return upload_weights(&d->weights, d->g, w, d->options.threads, progress, arg, e);
}

/* ---- KV ---- */

static int kv_type_of(uint32_t dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return KV_F32;
    case DTYPE_F16:
        return KV_F16;
    case DTYPE_BF16:
        return KV_BF16;
    case DTYPE_Q8_0:
        return KV_Q8_0;
    case DTYPE_F8_E4M3:
        return KV_F8;
    default:
        return -1;
    }
}

uint32_t kv_row_bytes(uint32_t type, uint32_t dim)
{
    static const uint32_t bytes[] = {[KV_F32] = 4, [KV_F16] = 2, [KV_BF16] = 2, [KV_F8] = 1};
    return type == KV_Q8_0 ? dim / 32 * 34 : dim * bytes[type];
}

/* How the groups lie, and how large they are; nothing is taken yet. */
static int shape_kv(struct cuda_device *d, const struct plan *p, const struct kv_config *kv, struct err *e)
{
    int type = kv_type_of(kv->type);
    if (type < 0)
        return err_set(e, ERR_USAGE, "the GPU keeps KV as F32, F16, BF16, Q8_0 or F8_E4M3, not as %s",
                       dtype_get(kv->type) ? dtype_get(kv->type)->name : "that type");
    if (kv->page_tokens < 16 || !size_is_pow2(kv->page_tokens))
        return err_set(e, ERR_USAGE, "a KV page of %u tokens: a power of two, at least 16, was expected",
                       kv->page_tokens);
    d->page_tokens = kv->page_tokens;
    d->kv_pages = 0;
    for (uint32_t i = 0; i < p->groups; i++) {
        struct group_kv *g = &d->kv[i];
        *g = (struct group_kv){.shape = p->group[i], .type = (uint32_t)type};
        if (type == KV_Q8_0 && (g->shape.k_dim % 32 || g->shape.v_dim % 32))
            return err_set(e, ERR_USAGE,
                           "KV as Q8_0 needs heads of a multiple of 32 values, this model has %u and %u",
                           g->shape.k_dim, g->shape.v_dim);
        g->k_row = kv_row_bytes(g->type, g->shape.k_dim);
        g->v_row = kv_row_bytes(g->type, g->shape.v_dim);
        g->page_bytes = (uint64_t)kv->page_tokens * g->shape.kv_heads * (g->k_row + g->v_row);
        g->layer_bytes = g->page_bytes * kv->pages[i];
        g->bytes = g->layer_bytes * g->shape.layers;
        d->kv_pages = kv->pages[i] > d->kv_pages ? kv->pages[i] : d->kv_pages;
    }
    return 0;
}

static int take_kv(struct cuda_device *d, const struct plan *p, struct err *e)
{
    for (d->kv_groups = 0; d->kv_groups < p->groups; d->kv_groups++) {
        struct group_kv *g = &d->kv[d->kv_groups];
        if (!(g->base = gpu_alloc(d->g, g->bytes, "KV", e)))
            return -1;
        /* keys past a sequence's end are masked, but their values are multiplied by zero: they must be finite */
        if (gpu_check(d->g, d->g->cu->set8(g->base, 0, g->bytes, d->g->stream), "clearing KV", e)) {
            gpu_free(d->g, g->base, g->bytes);
            return -1;
        }
    }
    return 0;
}

/* ---- scratch ---- */

struct bump {
    uint64_t at;
    cu_ptr base;
};

static void *take(struct bump *b, uint64_t bytes)
{
    uint64_t from = b->at;
    b->at += (bytes + 255) / 256 * 256;
    return (void *)(b->base + from);
}

/* Called twice: once to count (base 0), once to hand out. */
static void lay_out(struct cuda_device *d, const struct plan *p, const struct step_sizes *s, struct bump *b)
{
    uint64_t rows = d->max_rows, moe = rows < MOE_ROWS ? rows : MOE_ROWS;
    uint64_t slots = moe * s->used + 8ull * (s->experts < moe * s->used ? s->experts : moe * s->used) + 8;
    for (uint32_t i = 1; i < p->buffers; i++)
        d->buffer[i] = take(b, rows * p->width[i] * 4);
    uint64_t in = rows > d->max_outs ? rows : d->max_outs;
    d->pack = take(b, (in + 63) / 64 * 8 * ((s->k + 255) / 256) * PACK_BYTES);
    d->x = take(b, d->options.exact ? in * ((s->k + 7) / 8 * 8) * 4 : 0);
    bool large = d->blas && in > PACK_ROWS_MOST;
    d->half = take(b, large ? in * ((s->k + 31) / 32 * 32) * 2 : 0);
    d->half_scale = take(b, large ? in * 4 : 0);
    d->decoded_bytes = large ? s->decoded : 0;
    d->decoded = take(b, d->decoded_bytes);
    d->y = take(b, rows * s->y * 4);
    d->z = take(b, rows * s->z * 4);
    d->part = take(b, s->part * 4);
    d->part_ml = take(b, s->part_ml * 4);
    d->logits = take(b, (uint64_t)d->max_outs * p->out_width * 4);
    d->router = take(b, moe * s->experts * 4);
    d->route_weight = take(b, moe * s->used * 4);
    d->route_expert = take(b, moe * s->used * 4);
    d->shared = take(b, moe * s->shared_width * 4);
    d->shared_gate = take(b, moe * 4);
    d->slot = take(b, moe * s->used * 4);
    d->slot_row = take(b, slots * 4);
    d->group_expert = take(b, slots / 8 * 4);
    d->lora_rank = s->lora_rank;
    d->lora_rows = (uint32_t)(s->experts && slots > in ? slots : in);
    d->lora_x = take(b, s->lora_rank ? in * s->k * 4 : 0);
    d->lora_low = take(b, d->lora_rows * s->lora_low * 4);
    d->lora_table = take(b, p->lora ? (p->slots + 1ull) * (p->adapters + 1) * sizeof *d->lora_table : 0);
}

static uint32_t round_pow2(uint32_t n)
{
    uint32_t r = 1;
    while (r < n)
        r *= 2;
    return r;
}

static void find_ratios(struct cuda_device *d, const struct plan *p)
{
    d->ratios = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].kind != OP_ATTN)
            continue;
        uint32_t r = p->ops[i].attn.heads / p->ops[i].attn.kv_heads, j = 0;
        while (j < d->ratios && d->ratio[j] != r)
            j++;
        if (j == d->ratios && j < RATIOS_MOST)
            d->ratio[d->ratios++] = r;
    }
}

static void size_meta(struct cuda_device *d, const struct plan *p)
{
    uint64_t width = round_pow2(d->kv_pages ? d->kv_pages : 1);
    uint64_t ints =
        3ull * d->max_rows + d->max_outs + 3ull * d->max_seqs + p->groups * width * d->max_seqs + 64;
    ints += d->max_seqs * sizeof(struct adapter_mix) / 4;
    ints += d->max_outs * (sizeof(struct pick_row) / 4 + 2ull * PICK_SEEN_MOST) + 2;
    for (uint32_t i = 0; i < d->ratios; i++)
        ints += 2 * ((uint64_t)d->max_rows * d->ratio[i] / TILE_QUERIES + d->max_seqs + 1);
    d->meta_bytes = ints * 4 < (256u << 20) ? ints * 4 : 256u << 20;
}

static int take_meta(struct cuda_device *d, const struct plan *p, struct err *e)
{
    uint64_t widest = 0;
    for (uint32_t i = 1; p->part && i < p->buffers; i++)
        widest = p->width[i] > widest ? p->width[i] : widest;
    if (widest && !(d->mirror = gpu_pinned(d->g, widest * d->max_rows * 4, e)))
        return -1;
    if (!(d->meta_host = gpu_pinned(d->g, d->meta_bytes, e)) ||
        !(d->meta_device = gpu_alloc(d->g, d->meta_bytes, "the step's data", e)) ||
        !(d->results = gpu_pinned(d->g, (uint64_t)d->max_outs * p->out_width * 4, e)) ||
        !(d->picked = gpu_pinned(d->g, (uint64_t)d->max_outs * sizeof *d->picked, e)))
        return -1;
    memset(d->meta_host, 0, d->meta_bytes);
    return gpu_check(d->g, d->g->cu->set8(d->meta_device, 0, d->meta_bytes, d->g->stream), "clearing scratch",
                     e);
}

/* Room for decoded weights, of what nobody else has taken. */
static int take_copies(struct cuda_device *d, uint64_t all, struct err *e)
{
    const uint64_t wanted = d->options.copies < all ? d->options.copies : all;
    uint64_t room;
    if (wanted && !d->decoded_bytes)
        log_warn("--gpu-copies is of no use %s", d->options.exact                ? "with --exact"
                                                 : d->max_rows <= PACK_ROWS_MOST ? "for steps of few rows"
                                                                                 : "without cuBLASLt");
    if (!wanted || !d->decoded_bytes)
        return 0;
    if (gpu_room(d->g, &room, e))
        return -1;
    if (!(d->copy = mem_zalloc(d->weights.count, sizeof *d->copy)))
        return err_memory(e, "the table of decoded weights", d->weights.count * sizeof *d->copy);
    room = room > COPIES_LEAVE ? room - COPIES_LEAVE : 0;
    d->copies_bytes = wanted < room ? wanted : room;
    if (d->copies_bytes < wanted)
        log_warn("--gpu-copies: of the %.1f GB that are wanted, %.1f GB are free", 1e-9 * (double)wanted,
                 1e-9 * (double)d->copies_bytes);
    return (d->copies = gpu_alloc(d->g, d->copies_bytes, "decoded weights", e)) ? 0 : -1;
}

/* Everything that a plan of this shape takes, counted: sizes of scratch, of KV and of the step's data. */
static int shape_device(struct cuda_device *d, const struct plan *p, const struct weights *w,
                        const struct device_shape *shape, struct step_sizes *sizes, struct err *e)
{
    struct bump count = {0};
    d->max_rows = shape->rows;
    d->max_seqs = shape->seqs;
    d->max_outs = shape->outs;
    if (!d->options.exact && d->max_rows > PACK_ROWS_MOST && !d->blas)
        d->blas = blas_open(d->g, 32u << 20);
    if (step_measure(d, p, w, sizes, e) || shape_kv(d, p, shape->kv, e))
        return -1;
    mem_free(d->buffer);
    if (!(d->buffer = mem_zalloc(p->buffers + 1, sizeof *d->buffer)))
        return err_memory(e, "the table of buffers", p->buffers * sizeof *d->buffer);
    find_ratios(d, p);
    lay_out(d, p, sizes, &count);
    d->scratch_bytes = count.at;
    size_meta(d, p);
    return 0;
}

static int cuda_need(struct device *base, const struct plan *p, const struct weights *w,
                     const struct device_shape *shape, struct device_memory *m, struct err *e)
{
    struct cuda_device *d = self(base);
    struct step_sizes sizes;
    size_t available = 0, total = 0;
    if (gpu_alive(d->g, e) || plan_check(p, w, e) || shape_device(d, p, w, shape, &sizes, e) ||
        gpu_check(d->g, d->g->cu->mem_info(&available, &total), "asking for free memory", e))
        return -1;
    *m = (struct device_memory){.weights = upload_bytes(w), .total = total, .free = available};
    for (uint32_t i = 0; i < p->groups; i++)
        m->kv += d->kv[i].bytes;
    m->scratch = d->scratch_bytes + d->meta_bytes + parity_bytes(&sizes);
    /* while weights are loaded the upload's ring is there, and neither KV nor scratch */
    uint64_t ring = upload_ring_bytes(d->options.threads);
    if (m->kv + m->scratch < ring)
        m->scratch = ring - m->kv;
    return 0;
}

static int cuda_prepare(struct device *base, const struct plan *p, const struct kv_config *kv,
                        uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct cuda_device *d = self(base);
    struct step_sizes sizes;
    d->plan = p;
    d->buffers = p->buffers;
    d->width = p->width;
    if (shape_device(d, p, d->source, &(struct device_shape){kv, max_rows, max_seqs, max_outs}, &sizes, e))
        return -1;
    if (take_kv(d, p, e) || !(d->scratch = gpu_alloc(d->g, d->scratch_bytes, "scratch", e)) ||
        take_meta(d, p, e))
        return -1;
    struct bump hand = {0, d->scratch};
    lay_out(d, p, &sizes, &hand);
    if (gpu_check(d->g, d->g->cu->set8(d->scratch, 0, d->scratch_bytes, d->g->stream), "clearing scratch",
                  e) ||
        gpu_sync(d->g, e) || lora_prepare(d, p, e) || (!d->options.no_parity && parity_check(d, &sizes, e)))
        return -1;
    return take_copies(d, sizes.copies, e);
}

/* ---- a step ---- */

static int too_large(const struct cuda_device *d, const struct plan *p, const struct step *s, struct err *e)
{
    if (s->from > p->count || s->to > p->count)
        return err_set(e, ERR_USAGE, "operations %u to %u of a plan that has %u", s->from, s->to, p->count);
    if (s->rows > d->max_rows || s->seqs > d->max_seqs || s->outs > d->max_outs)
        return err_set(e, ERR_RESOURCE,
                       "a step of %u rows, %u sequences and %u results: at most %u, %u and %u were prepared",
                       s->rows, s->seqs, s->outs, d->max_rows, d->max_seqs, d->max_outs);
    return 0;
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
static void put_tiles(struct cuda_device *d, const struct step *s, uint64_t *at)
{
    const int32_t *base;
    int32_t *to = put(d, at, 0, &base);
    uint32_t n = 0;
    d->meta.tiles = base;
    d->any_decode = d->any_prefill = false;
    for (uint32_t r = 0; r < d->ratios; r++) {
        d->tiles[r] = 0;
        d->tiles_at[r] = n;
        for (uint32_t i = 0; i < s->seqs; i++) {
            uint32_t queries = s->seq[i].rows * d->ratio[r];
            if (queries <= DECODE_QUERIES) {
                d->any_decode = true;
                continue;
            }
            d->any_prefill = true;
            for (uint32_t f = 0; f < queries; f += TILE_QUERIES) {
                to[n++] = (int32_t)i;
                to[n++] = (int32_t)f;
                d->tiles[r]++;
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

/* How tokens are chosen. The entries of penalties come last and take a rounded number of places, so that steps that
 * differ in them a little share a graph. */
static int put_picks(struct cuda_device *d, const struct step *s, uint64_t *at, struct err *e)
{
    const int32_t *row_at, *seen_at;
    uint32_t seen = 0;
    d->picks = d->seen = 0;
    for (uint32_t i = 0; s->pick && i < s->outs; i++) {
        d->picks += s->pick[i].on;
        seen += s->pick[i].on ? s->pick[i].seen_count : 0;
        if (s->pick[i].seen_count > PICK_SEEN_MOST)
            return err_set(e, ERR_USAGE, "%u tokens under a penalty; %d is the most", s->pick[i].seen_count,
                           PICK_SEEN_MOST);
    }
    if (!d->picks)
        return 0;
    *at += *at & 1; /* numbers of eight bytes follow */
    struct pick_row *row = (struct pick_row *)(void *)put(d, at, s->outs * sizeof *row / 4, &row_at);
    d->seen = seen ? round_pow2(seen) : 0;
    struct pick_seen *to = (struct pick_seen *)(void *)put(d, at, 2ull * d->seen, &seen_at);
    seen = 0;
    for (uint32_t i = 0; i < s->outs; i++) {
        row[i] = pick_of(&s->pick[i], seen);
        if (!s->pick[i].on || !s->pick[i].seen_count)
            continue;
        memcpy(to + seen, s->pick[i].seen, s->pick[i].seen_count * sizeof *to);
        seen += s->pick[i].seen_count;
    }
    d->pick = (struct pick_args){.logits = d->logits,
                                 .ld = d->plan->out_width,
                                 .n = d->plan->out_width,
                                 .m = s->outs,
                                 .row = (const struct pick_row *)(const void *)row_at,
                                 .seen = (const struct pick_seen *)(const void *)seen_at,
                                 .ids = d->picked};
    return 0;
}

static int write_meta(struct cuda_device *d, const struct step *s, struct err *e)
{
    struct meta *m = &d->meta;
    uint64_t at = 0;
    uint32_t longest = 1, width = round_pow2(s->table_width ? s->table_width : 1);
    uint64_t ints = 3ull * s->rows + s->outs + 3ull * s->seqs + (uint64_t)d->kv_groups * s->seqs * width;
    if (ints * 4 > d->meta_bytes)
        return err_set(e, ERR_RESOURCE, "a page table of %u x %u entries is larger than what was prepared",
                       s->seqs, s->table_width);
    *m = (struct meta){.rows = s->rows, .seqs = s->seqs, .outs = s->outs, .width = width};
    memcpy(put(d, &at, s->rows, &m->ids), s->ids, s->rows * 4ull);
    memcpy(put(d, &at, s->rows, &m->pos), s->pos, s->rows * 4ull);
    int32_t *row_seq = put(d, &at, s->rows, &m->row_seq), *out = put(d, &at, s->outs, &m->out);
    int32_t *first = put(d, &at, s->seqs, &m->seq_first), *rows = put(d, &at, s->seqs, &m->seq_rows);
    int32_t *len = put(d, &at, s->seqs, &m->seq_len);
    if (s->outs)
        memcpy(out, s->out, s->outs * 4ull);
    for (uint32_t i = 0; i < s->seqs; i++) {
        first[i] = (int32_t)s->seq[i].first;
        rows[i] = (int32_t)s->seq[i].rows;
        len[i] = (int32_t)s->seq[i].length;
        longest = s->seq[i].length > longest ? s->seq[i].length : longest;
        for (uint32_t r = 0; r < s->seq[i].rows && s->seq[i].first + r < s->rows; r++)
            row_seq[s->seq[i].first + r] = (int32_t)i;
    }
    d->lora = s->lora && d->plan->lora;
    if (d->lora) {
        const int32_t *mix;
        memcpy(put(d, &at, s->seqs * sizeof *s->lora / 4, &mix), s->lora, s->seqs * sizeof *s->lora);
        d->mix = (const struct adapter_mix *)(const void *)mix;
    }
    put_tables(d, s, width, put(d, &at, (uint64_t)d->kv_groups * s->seqs * width, &m->tables));
    if (put_picks(d, s, &at, e))
        return -1;
    put_tiles(d, s, &at);
    d->meta_used = at * 4;
    /* graphs are kept per length, rounded up to eighths of a power of two */
    uint32_t unit = round_pow2(longest) / 16 < 64 ? 64 : round_pow2(longest) / 16;
    d->longest = (longest + unit - 1) / unit * unit;
    return 0;
}

/* All of a step on the stream: data in, operations, results out. */
static int put_step(struct cuda_device *d, const struct plan *p, struct err *e)
{
    struct gpu *g = d->g;
    if (gpu_check(g, g->cu->to_device(d->meta_device, d->meta_host, d->meta_used, g->stream),
                  "sending a step", e))
        return -1;
    d->packed = (struct operand){0, 0};
    d->direct = false;
    d->in.x = NULL;
    d->unjoined.part = NULL;
    bool results = false;
    for (uint32_t i = d->from; i < d->to; i++) {
        results |= p->ops[i].kind == OP_LOGITS;
        if (g->timing)
            g->timing->now = i - d->from;
        if (step_op(d, p, i, e))
            return -1;
    }
    uint64_t bytes = (uint64_t)d->meta.outs * p->out_width * 4;
    if (!bytes || !results || d->direct)
        return 0;
    if (d->picks && gpu_launch(g, K_PICK_ROWS, gpu_grid(d->pick.m, 1, 1, 1024, 0), &d->pick, e))
        return -1;
    if (d->picks == d->meta.outs)
        return 0;
    return gpu_check(g, g->cu->to_host(d->results, (cu_ptr)d->logits, bytes, g->stream), "fetching results",
                     e);
}

/* The same with every launch timed: no graph, one synchronisation at the end. */
static int timed_step(struct cuda_device *d, const struct plan *p, struct err *e)
{
    if (timing_open(d->g, e))
        return -1;
    timing_start(d->g);
    return put_step(d, p, e) || gpu_sync(d->g, e) || timing_collect(d->g, d->base.seconds, e) ? -1 : 0;
}

static struct step_graph *find_graph(struct cuda_device *d, const struct step_key *k)
{
    for (uint32_t i = 0; i < d->graphs; i++)
        if (!memcmp(&d->graph[i].key, k, sizeof *k))
            return &d->graph[i];
    return NULL;
}

static void forget_graph(struct cuda_device *d, struct step_graph *s)
{
    if (s->exec)
        d->g->cu->graph_exec_destroy(s->exec);
    s->exec = NULL;
}

/* A place for a new key: the one not used for the longest time goes. */
static struct step_graph *new_graph(struct cuda_device *d, const struct step_key *k)
{
    struct step_graph *s = &d->graph[d->graphs < GRAPHS_MOST ? d->graphs++ : 0];
    for (uint32_t i = 0; i < d->graphs && d->graphs == GRAPHS_MOST; i++)
        if (d->graph[i].used < s->used)
            s = &d->graph[i];
    forget_graph(d, s);
    s->key = *k;
    return s;
}

/* Records the step as a graph; where that fails the step runs as launches from then on, and the log says so. */
static int record_graph(struct cuda_device *d, const struct plan *p, struct step_graph *s)
{
    struct gpu *g = d->g;
    struct err why = {0};
    void *graph = NULL;
    if (gpu_check(g, g->cu->capture_begin(g->stream, CU_CAPTURE_THREAD), "recording a graph", &why))
        goto failed;
    int bad = put_step(d, p, &why);
    int r = g->cu->capture_end(g->stream, &graph);
    if (bad || gpu_check(g, r, "recording a graph", &why) ||
        gpu_check(g, g->cu->graph_instantiate(&s->exec, graph, 0), "building a graph", &why)) {
        if (graph)
            g->cu->graph_destroy(graph);
        goto failed;
    }
    g->cu->graph_destroy(graph);
    return 0;
failed:
    d->no_graphs = true;
    s->exec = NULL;
    log_warn("no CUDA graphs, steps run as single launches: %s", why.text);
    return -1;
}

static bool may_graph(const struct cuda_device *d, const struct plan *p)
{
    (void)p;
    return !d->no_graphs && !d->base.seconds && !d->any_prefill && d->meta.rows <= PACK_ROWS_MOST;
}

static int cuda_run(struct device *base, const struct plan *p, const struct step *s, struct err *e)
{
    struct cuda_device *d = self(base);
    struct gpu *g = d->g;
    if (gpu_enter(g, e) || too_large(d, p, s, e) || device_check_lora(p, s, e))
        return -1;
    if (d->ran && gpu_sync(g, e)) /* the last step still reads the block that is written now */
        return -1;
    d->ran = false;
    if (write_meta(d, s, e))
        return -1;
    if (!d->base.seconds)
        timing_close(g);
    d->step++;
    d->from = s->from;
    d->to = s->to ? s->to : p->count;
    d->out_width = p->out_width;
    struct step_graph *graph = NULL;
    if (may_graph(d, p)) {
        struct step_key key;
        memset(&key, 0, sizeof key);
        key.plan = p;
        key.rows = s->rows;
        key.seqs = s->seqs;
        key.outs = s->outs;
        key.width = d->meta.width;
        key.longest = d->longest;
        key.from = d->from;
        key.to = d->to;
        key.picks = d->picks;
        key.seen = d->seen;
        key.lora = d->lora;
        graph = find_graph(d, &key);
        if (!graph) /* the second step with this key is worth a graph */
            new_graph(d, &key)->used = d->step;
        else if (!graph->exec)
            record_graph(d, p, graph);
    }
    d->ran = true;
    if (graph && graph->exec) {
        graph->used = d->step;
        return gpu_check(g, g->cu->graph_launch(graph->exec, g->stream), "replaying a graph", e);
    }
    return d->base.seconds ? timed_step(d, p, e) : put_step(d, p, e);
}

static const float *cuda_results(struct device *base, struct err *e)
{
    struct cuda_device *d = self(base);
    if (gpu_enter(d->g, e) || gpu_sync(d->g, e))
        return NULL;
    d->ran = false;
    return d->results;
}

static const int32_t *cuda_picks(struct device *base, struct err *e)
{
    return cuda_results(base, e) ? self(base)->picked : NULL;
}

/* ---- rows of buffers: through pinned memory, which the copy before this one has left ---- */

static int check_rows(struct cuda_device *d, uint32_t buffer, uint32_t rows, struct err *e)
{
    if (!d->mirror || !buffer || buffer >= d->buffers || rows > d->max_rows)
        return err_set(e, ERR_USAGE, "there are no %u rows of buffer %u to pass on", rows, buffer);
    return gpu_sync(d->g, e);
}

static int cuda_read_rows(struct device *base, uint32_t buffer, uint32_t rows, float *host, struct err *e)
{
    struct cuda_device *d = self(base);
    if (check_rows(d, buffer, rows, e))
        return -1;
    size_t bytes = (size_t)rows * d->width[buffer] * sizeof *host;
    if (gpu_check(d->g, d->g->cu->to_host(d->mirror, (cu_ptr)d->buffer[buffer], bytes, d->g->stream),
                  "fetching rows", e) ||
        gpu_sync(d->g, e))
        return -1;
    memcpy(host, d->mirror, bytes);
    return 0;
}

static int cuda_write_rows(struct device *base, uint32_t buffer, uint32_t rows, const float *host,
                           struct err *e)
{
    struct cuda_device *d = self(base);
    if (check_rows(d, buffer, rows, e))
        return -1;
    size_t bytes = (size_t)rows * d->width[buffer] * sizeof *host;
    memcpy(d->mirror, host, bytes);
    return gpu_check(d->g, d->g->cu->to_device((cu_ptr)d->buffer[buffer], d->mirror, bytes, d->g->stream),
                     "sending rows", e);
}

/* ---- pages ---- */

static int cuda_copy_pages(struct device *base, uint32_t group, const int32_t *from, const int32_t *to,
                           uint32_t n, struct err *e)
{
    struct cuda_device *d = self(base);
    const struct group_kv *k = &d->kv[group];
    if (gpu_enter(d->g, e))
        return -1;
    for (uint32_t l = 0; l < k->shape.layers; l++)
        for (uint32_t i = 0; i < n; i++) {
            cu_ptr layer = k->base + l * k->layer_bytes;
            if (gpu_check(d->g,
                          d->g->cu->to_same(layer + (uint64_t)to[i] * k->page_bytes,
                                            layer + (uint64_t)from[i] * k->page_bytes, k->page_bytes,
                                            d->g->stream),
                          "copying KV pages", e))
                return -1;
        }
    return 0;
}

static size_t cuda_page_bytes(const struct device *base, uint32_t group)
{
    const struct group_kv *k = &((const struct cuda_device *)base)->kv[group];
    return k->page_bytes * k->shape.layers;
}

static int move_page(struct cuda_device *d, uint32_t group, int32_t page, uint8_t *to, const uint8_t *from,
                     struct err *e)
{
    const struct group_kv *k = &d->kv[group];
    const struct driver *cu = d->g->cu;
    if (gpu_enter(d->g, e))
        return -1;
    for (uint32_t l = 0; l < k->shape.layers; l++) {
        cu_ptr at = k->base + l * k->layer_bytes + (uint64_t)page * k->page_bytes;
        int r = to ? cu->to_host(to + l * k->page_bytes, at, k->page_bytes, d->g->stream)
                   : cu->to_device(at, from + l * k->page_bytes, k->page_bytes, d->g->stream);
        if (gpu_check(d->g, r, "moving a KV page", e))
            return -1;
    }
    return gpu_sync(d->g, e);
}

static int cuda_read_page(struct device *base, uint32_t group, int32_t page, void *host, struct err *e)
{
    return move_page(self(base), group, page, host, NULL, e);
}

static int cuda_write_page(struct device *base, uint32_t group, int32_t page, const void *host, struct err *e)
{
    return move_page(self(base), group, page, NULL, host, e);
}

/* ---- the rest ---- */

static void cuda_memory(const struct device *base, struct device_memory *m)
{
    const struct cuda_device *d = (const struct cuda_device *)base;
    size_t available = 0, total = 0;
    *m = (struct device_memory){.weights = d->weights.bytes, .scratch = d->g->taken - d->weights.bytes};
    for (uint32_t i = 0; i < d->kv_groups; i++)
        m->kv += d->kv[i].bytes;
    m->scratch -= m->kv;
    if (d->g->cu->mem_info(&available, &total) == CU_OK) {
        m->total = total;
        m->free = available;
    }
}

static void cuda_describe(const struct device *base, struct buf *out)
{
    const struct cuda_device *d = (const struct cuda_device *)base;
    char name[160];
    snprintf(name, sizeof name, "cuda:%d (%s)", d->options.index, d->g->profile.name);
    device_say(base, name, d->plan, out);
    if (d->weights.converted) {
        buf_printf(out, "  decoded to F16 at load, as there is no kernel for the type:");
        for (uint32_t t = 0; t < DTYPE_MOST; t++)
            if (d->weights.decoded[t])
                buf_printf(out, " %u of %s", d->weights.decoded[t], dtype_get(t)->name);
        buf_char(out, '\n');
    }
}

static uint32_t cuda_take_kernels(struct device *base, struct device_kernel *out, uint32_t most)
{
    return timing_take(self(base)->g, out, most);
}

static void cuda_close(struct device *base)
{
    struct cuda_device *d = self(base);
    struct gpu *g = d->g;
    if (g) {
        g->cu->stream_sync(g->stream);
        for (uint32_t i = 0; i < d->graphs; i++)
            forget_graph(d, &d->graph[i]);
        blas_close(d->blas);
        gpu_pinned_free(g, d->meta_host);
        gpu_pinned_free(g, d->results);
        gpu_pinned_free(g, d->mirror);
        gpu_pinned_free(g, d->picked);
        gpu_free(g, d->meta_device, d->meta_bytes);
        gpu_free(g, d->scratch, d->scratch_bytes);
        gpu_free(g, d->copies, d->copies_bytes);
        for (uint32_t i = 0; i < d->kv_groups; i++)
            gpu_free(g, d->kv[i].base, d->kv[i].bytes);
        upload_free(&d->weights);
        gpu_close(g);
    }
    mem_free(d->buffer);
    mem_free(d->copy);
    mem_free(d);
}

static const struct device_ops ops = {.name = "cuda",
                                      .ahead = true,
                                      .load = cuda_load,
                                      .need = cuda_need,
                                      .prepare = cuda_prepare,
                                      .run = cuda_run,
                                      .results = cuda_results,
                                      .picks = cuda_picks,
                                      .read_rows = cuda_read_rows,
                                      .write_rows = cuda_write_rows,
                                      .copy_pages = cuda_copy_pages,
                                      .page_bytes = cuda_page_bytes,
                                      .read_page = cuda_read_page,
                                      .write_page = cuda_write_page,
                                      .memory = cuda_memory,
                                      .describe = cuda_describe,
                                      .take_kernels = cuda_take_kernels,
                                      .close = cuda_close};

int cuda_open(struct device **out, const struct device_options *o, struct err *e)
{
    *out = NULL;
    struct cuda_device *d = mem_zalloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "a device", sizeof *d);
    d->base.ops = &ops;
    d->options = *o;
    if (!(d->g = gpu_open(o->index, o->memory, e))) {
        mem_free(d);
        return -1;
    }
    *out = &d->base;
    return 0;
}
