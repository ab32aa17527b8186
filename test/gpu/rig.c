#include "rig.h"

#include "codec/half.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

void rig_seed(uint64_t seed)
{
    state = seed * 2654435761u + 88172645463325252u;
}

uint32_t rig_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

float rig_uniform(float most)
{
    return most * ((float)(rig_random() & 0xffffff) / 8388608.0f - 1.0f);
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "memory is out\n");
        exit(75);
    }
    return p;
}

static weight_id add(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count,
                     uint8_t *data)
{
    struct weight w = {.name = "w", .type = type, .rows = rows, .cols = cols, .count = count, .data = data};
    dtype_row_bytes(type, cols, &w.row_bytes);
    w.each_bytes = w.row_bytes * rows;
    weight_id id = weights_add(&r->weights, &w);
    if (!id)
        must(NULL);
    return id;
}

/* For types without an encoder: random bytes, and a scale (its place) that keeps values small. */
static void random_block(uint32_t type, uint8_t *to, size_t bytes, float size)
{
    const struct dtype_info *info = dtype_get(type);
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)rig_random();
    /* the scale is the first or the last two bytes of a block */
    uint16_t d = fp16_from_f32(size / 64);
    size_t last = type == DTYPE_TQ1_0 || type == DTYPE_TQ2_0 ? info->block_bytes - 2u : 0;
    for (size_t at = 0; at < bytes; at += info->block_bytes)
        memcpy(to + at + last, &d, 2);
}

weight_id rig_matrix(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count, float size)
{
    const struct dtype_info *info = dtype_get(type);
    size_t row = 0;
    dtype_row_bytes(type, cols, &row);
    uint8_t *data = must(mem_alloc((size_t)rows * count, row));
    float *values = must(mem_alloc(cols, sizeof *values));
    for (size_t i = 0; i < (size_t)rows * count; i++) {
        for (uint32_t j = 0; j < cols; j++)
            values[j] = rig_uniform(size);
        if (info->encode)
            info->encode(values, data + i * row, cols, NULL);
        else
            random_block(type, data + i * row, row, size);
    }
    mem_free(values);
    return add(r, type, rows, cols, count, data);
}

weight_id rig_vector(struct rig *r, uint32_t n, float mean, float spread)
{
    float *v = must(mem_alloc(n, sizeof *v));
    for (uint32_t i = 0; i < n; i++)
        v[i] = mean + rig_uniform(spread);
    return add(r, DTYPE_F32, 1, n, 1, (uint8_t *)v);
}

struct linear rig_linear(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, bool bias)
{
    return (struct linear){.weight = rig_matrix(r, type, rows, cols, 1, 1.7f / sqrtf((float)cols)),
                           .bias = bias ? rig_vector(r, rows, 0, 0.3f) : 0};
}

struct norm rig_norm(struct rig *r, enum norm_kind kind, uint32_t n)
{
    return (struct norm){.kind = kind,
                         .weight = rig_vector(r, n, 1, 0.3f),
                         .bias = kind == NORM_LAYER ? rig_vector(r, n, 0, 0.2f) : 0,
                         .eps = 1e-5f};
}

/* ---- adapters ---- */

static void count_slot(void *arg, weight_id weight, uint32_t *slot)
{
    struct rig *r = arg;
    (void)weight;
    *slot = ++r->plan.slots;
}

/* The pair of adapter i: ranks and types differ, and some products are left alone. */
static struct lora_pair pair_of(struct rig *r, weight_id weight, uint32_t slot, uint32_t i, bool table)
{
    static const uint32_t types[] = {DTYPE_F16, DTYPE_F32, DTYPE_BF16};
    const struct weight w = r->weights.all[weight];
    const uint32_t rank = 3 + 5 * i, outputs = table ? w.cols : w.rows,
                   more = i == 2 && !table && w.count == 1;
    if ((slot + i) % 4 == 0)
        return (struct lora_pair){0};
    return (struct lora_pair){
        .a = rig_matrix(r, types[i % 3], table ? w.rows : rank, table ? rank : w.cols, w.count, 0.3f),
        .b = rig_matrix(r, DTYPE_F32, rank + more, outputs, w.count, 0.1f),
        .scale = 0.5f + 0.25f * (float)i};
}

struct adapt {
    struct rig *r;
    bool table;
};

static void fill_slot(void *arg, weight_id weight, uint32_t *slot)
{
    const struct adapt *a = arg;
    struct plan *p = &a->r->plan;
    for (uint32_t i = 1; i <= p->adapters; i++)
        p->lora[(size_t)*slot * (p->adapters + 1) + i] = pair_of(a->r, weight, *slot, i, a->table);
}

void rig_adapt(struct rig *r, uint32_t adapters)
{
    struct plan *p = &r->plan;
    for (uint32_t i = 0; i < p->count; i++)
        plan_each_slot(&p->ops[i], count_slot, r);
    p->adapters = adapters;
    const size_t pairs = (size_t)(p->slots + 1) * (adapters + 1);
    p->lora = must(arena_alloc(&p->arena, pairs, sizeof *p->lora));
    memset(p->lora, 0, pairs * sizeof *p->lora);
    for (uint32_t i = 0; i < p->count; i++)
        plan_each_slot(&p->ops[i], fill_slot, &(struct adapt){r, p->ops[i].kind == OP_EMBED});
}

/* ---- slabs ---- */

enum { SLAB_BYTES = 96 << 20 };

static void slab_scales(uint32_t type, uint8_t *block)
{
    struct {
        uint32_t type, at;
        float scale;
        int min_at;
        float min;
    } all[] = {{DTYPE_Q4_K, 0, 1e-4f, 2, 7.5e-4f},
               {DTYPE_Q6_K, 208, 3e-5f, -1, 0},
               {DTYPE_Q8_0, 0, 2.7e-4f, -1, 0},
               {DTYPE_Q4_0, 0, 4.3e-3f, -1, 0},
               {DTYPE_Q5_K, 0, 5e-5f, 2, 7.5e-4f}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].type == type) {
            uint16_t d = fp16_from_f32(all[i].scale), m = fp16_from_f32(all[i].min);
            memcpy(block + all[i].at, &d, 2);
            if (all[i].min_at >= 0)
                memcpy(block + all[i].min_at, &m, 2);
        }
}

static uint8_t *slab_of(uint32_t type)
{
    static uint8_t *slab[DTYPE_MOST];
    if (slab[type])
        return slab[type];
    slab[type] = must(mem_alloc(SLAB_BYTES, 1));
    const struct dtype_info *info = dtype_get(type);
    for (size_t i = 0; i + 4 <= SLAB_BYTES; i += 4) {
        uint32_t w = rig_random();
        memcpy(slab[type] + i, &w, 4);
    }
    for (size_t at = 0; at + info->block_bytes <= SLAB_BYTES; at += info->block_bytes) {
        if (type == DTYPE_F16) {
            uint16_t h = fp16_from_f32(rig_uniform(0.03f));
            memcpy(slab[type] + at, &h, 2);
        } else {
            slab_scales(type, slab[type] + at);
        }
    }
    return slab[type];
}

/* The data of a large matrix is the slab over and over: rows are cut from it at random places. To keep row_bytes
 * constant the matrix must lie in one piece, so it is built by copying. */
weight_id rig_slab(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count)
{
    const struct dtype_info *info = dtype_get(type);
    size_t row = 0, bytes, done = 0;
    dtype_row_bytes(type, cols, &row);
    bytes = row * rows * count;
    uint8_t *slab = slab_of(type), *data = must(mem_alloc(bytes, 1));
    size_t blocks = SLAB_BYTES / info->block_bytes;
    while (done < bytes) {
        size_t from = rig_random() % (blocks / 2) * info->block_bytes, n = blocks * info->block_bytes - from;
        n = n < bytes - done ? n : bytes - done;
        memcpy(data + done, slab + from, n);
        done += n;
    }
    return add(r, type, rows, cols, count, data);
}

/* ---- device and steps ---- */

/* Page 0 is trash, which nobody reads: it is made of NaNs, so that whoever does shows it. */
static int rig_spoil(struct rig *r, struct err *e)
{
    const struct device_ops *ops = r->device->ops;
    int failed = 0;
    for (uint32_t g = 0; g < r->plan.groups && !failed; g++) {
        size_t bytes = ops->page_bytes(r->device, g);
        uint8_t *page = must(mem_alloc(bytes ? bytes : 1, 1));
        memset(page, 0xff, bytes);
        failed = bytes && ops->write_page(r->device, g, 0, page, e);
        mem_free(page);
    }
    return failed;
}

int rig_open(struct rig *r, const char *device, const struct device_options *o, uint32_t kv_type,
             uint32_t tokens, struct err *e)
{
    uint32_t page = 16;
    r->table_width = (tokens + page - 1) / page;
    r->kv = (struct kv_config){.type = kv_type, .page_tokens = page};
    for (uint32_t g = 0; g < r->plan.groups; g++)
        r->kv.pages[g] = r->table_width * r->max_seqs + 1;
    r->ids = must(mem_alloc(r->max_rows, 4));
    r->pos = must(mem_alloc(r->max_rows, 4));
    r->out = must(mem_alloc(r->max_rows, 4));
    r->state_out = must(mem_zalloc(r->max_rows, 4));
    r->kv.states = r->plan.state_values ? 3 * r->max_seqs + 1 : 0;
    memset(r->slot, 0, sizeof r->slot);
    r->turn = 0;
    r->tables = must(mem_zalloc((size_t)PLAN_GROUPS_MOST * RIG_SEQS * r->table_width, 4));
    memset(r->length, 0, sizeof r->length);
    if (plan_check(&r->plan, &r->weights, e) || (device && device_open(&r->device, device, o, e)))
        return -1;
    const struct device_ops *ops = r->device->ops;
    uint32_t outs = r->max_rows < 512 ? r->max_rows : 512;
    return ops->load(r->device, &r->weights, NULL, NULL, e) ||
           ops->prepare(r->device, &r->plan, &r->kv, r->max_rows, r->max_seqs, outs, e) || rig_spoil(r, e);
}

void rig_close(struct rig *r)
{
    if (r->device)
        r->device->ops->close(r->device);
    r->device = NULL;
    mem_free(r->ids);
    mem_free(r->pos);
    mem_free(r->out);
    mem_free(r->tables);
    mem_free(r->state_out);
    r->ids = r->pos = r->out = r->tables = r->state_out = NULL;
}

void rig_free(struct rig *r)
{
    for (uint32_t i = 1; i < r->weights.count; i++)
        mem_free((void *)r->weights.all[i].data);
    weights_free(&r->weights);
    plan_free(&r->plan);
    *r = (struct rig){0};
}

void rig_begin(struct rig *r)
{
    r->step = (struct step){.ids = r->ids, .pos = r->pos, .seq = r->seq, .tables = r->tables, .out = r->out};
    r->step.table_width = r->table_width;
    r->turn++;
    if (r->plan.state_values) {
        r->step.state_in = r->state_in;
        r->step.state_out = r->state_out;
    }
}

/* A sequence has three slots: its state stays in one of the first two or moves to the other, and its middle row leaves
 * one in the third. */
static void rig_states(struct rig *r, uint32_t seq, uint32_t first, uint32_t rows)
{
    int32_t own = (int32_t)(1 + seq), other = own + (int32_t)r->max_seqs,
            third = other + (int32_t)r->max_seqs;
    const bool stays = r->turn % 2 && r->slot[seq];
    r->state_in[r->step.seqs] = r->slot[seq];
    memset(r->state_out + first, 0, rows * sizeof *r->state_out);
    if (rows > 3)
        r->state_out[first + rows / 2] = third;
    r->slot[seq] = stays && r->slot[seq] != third ? r->slot[seq] : r->slot[seq] == own ? other : own;
    r->state_out[first + rows - 1] = r->slot[seq];
}

void rig_back(struct rig *r, uint32_t seq, uint32_t rows)
{
    r->length[seq] -= rows - 1 - rows / 2;
    r->slot[seq] = (int32_t)(1 + seq + 2 * r->max_seqs);
}

void rig_add(struct rig *r, uint32_t seq, uint32_t rows, bool all)
{
    struct step *s = &r->step;
    if (r->plan.state_values)
        rig_states(r, seq, s->rows, rows);
    r->seq[s->seqs] = (struct step_seq){.first = s->rows, .rows = rows, .length = r->length[seq] + rows};
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t pos = r->length[seq] + i;
        r->ids[s->rows] = (int32_t)((pos * 7919u + seq * 104729u + 17u) % r->vocab);
        r->pos[s->rows] = (int32_t)pos;
        if (all || i + 1 == rows)
            r->out[s->outs++] = (int32_t)s->rows;
        s->rows++;
    }
    r->length[seq] += rows;
    static const struct adapter_mix mixes[4] = {
        {0}, {1, {1}, {1.0f}}, {1, {2}, {0.5f}}, {2, {3, 1}, {-1.0f, 0.75f}}};
    r->mix[s->seqs] = mixes[seq % 4];
    s->lora = r->plan.adapters ? r->mix : NULL;
    s->seqs++;
    /* tables of all groups are laid out when the step runs: remember who it is */
    r->tables[(size_t)(PLAN_GROUPS_MOST - 1) * RIG_SEQS * r->table_width + s->seqs - 1] = (int32_t)seq;
}

const float *rig_run(struct rig *r, struct err *e)
{
    struct step *s = &r->step;
    int32_t who[RIG_SEQS];
    memcpy(who, r->tables + (size_t)(PLAN_GROUPS_MOST - 1) * RIG_SEQS * r->table_width, s->seqs * 4);
    for (uint32_t g = 0; g < r->plan.groups; g++)
        for (uint32_t i = 0; i < s->seqs; i++) {
            /* pages before the window of the first row are given back */
            uint32_t window = r->plan.group[g].window, first = s->seq[i].length - s->seq[i].rows,
                     gone = window && first + 1 > window ? (first + 1 - window) / r->kv.page_tokens : 0;
            for (uint32_t p = 0; p < r->table_width; p++)
                r->tables[((size_t)g * s->seqs + i) * r->table_width + p] =
                    p < gone ? 0 : (int32_t)(1 + p * r->max_seqs + (uint32_t)who[i]);
        }
    if (r->device->ops->run(r->device, &r->plan, s, e))
        return NULL;
    return r->device->ops->results(r->device, e);
}

double rig_distance(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return 1e9;
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(d / (s > 0 ? s : 1));
}
