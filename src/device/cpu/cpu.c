/* The CPU device: opening, memory, pages, and the step that walks a plan. */
#include "device/cpu/cpu.h"

#include "base/clock.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- prepare ---- */

static int cpu_add_rope(struct cpu *d, const struct rope *r, struct err *e)
{
    if (!r->kind)
        return 0;
    for (uint32_t i = 0; i < d->ropes; i++)
        if (d->rope[i].freqs == r->freqs && d->rope[i].dims == r->dims && d->rope[i].factor == r->factor)
            return 0;
    if (d->ropes == CPU_ROPES_MOST)
        return err_set(e, ERR_DATA, "the plan has more than %d kinds of RoPE", CPU_ROPES_MOST);
    d->rope[d->ropes++] = (struct rope_table){.freqs = r->freqs, .dims = r->dims, .factor = r->factor};
    return 0;
}

static void cpu_drop(struct cpu *d)
{
    mem_free(d->memory);
    mem_free(d->state);
    d->state = NULL;
    for (uint32_t g = 0; g < PLAN_GROUPS_MOST; g++) {
        mem_free(d->group[g].memory);
        d->group[g] = (struct kv_pool){0};
    }
    d->memory = NULL;
    d->plan = NULL;
    d->ropes = 0;
    d->scratch_bytes = 0;
}

/* Pages of a group that count as held from the start. */
static uint32_t kv_backed(const struct kv_config *kv, uint32_t group)
{
    uint32_t least = kv->least[group], all = kv->pages[group];
    return least && least < all ? least : all;
}

/* The same of slots of state. */
static uint32_t states_backed(const struct kv_config *kv)
{
    return kv->states_least && kv->states_least < kv->states ? kv->states_least : kv->states;
}

static int cpu_prepare_kv(struct cpu *d, const struct plan *p, struct err *e)
{
    for (uint32_t i = 0; i < p->groups; i++) {
        struct kv_pool *g = &d->group[i];
        size_t bytes = 0;
        const struct dtype_info *t = dtype_get(d->kv.type);
        if (!kv_layout(g, &p->group[i], &d->kv, d->exact))
            return err_set(e, ERR_USAGE,
                           "KV of type %s cannot keep heads of %u and %u; F16, F32 and BF16 can",
                           t ? t->name : "?", p->group[i].k_dim, p->group[i].v_dim);
        g->pages = d->kv.pages[i];
        if (!g->pages || !size_mul(g->page_bytes, g->pages, &bytes))
            return err_set(e, ERR_USAGE, "KV group %u has %u pages: one or more was expected", i, g->pages);
        /* Zeroed by the system on first touch: unused pages cost nothing. */
        g->memory = mem_zalloc(bytes / 64 + 1, 64);
        if (!g->memory)
            return err_memory(e, "the KV cache", bytes);
        g->base = (uint8_t *)g->memory + (64 - (uintptr_t)g->memory % 64) % 64;
        g->backed = kv_backed(&d->kv, i);
    }
    return 0;
}

/* From slot to slot: whole cache lines. */
static size_t cpu_state_stride(const struct plan *p)
{
    return (p->state_values + 15) & ~(size_t)15;
}

/* Zeroed by the system on first touch, as pages are. */
static int cpu_prepare_states(struct cpu *d, const struct plan *p, struct err *e)
{
    if (!p->state_values)
        return 0;
    if (d->kv.states < 2)
        return err_set(e, ERR_USAGE, "the plan keeps state: two or more slots were expected, not %u",
                       d->kv.states);
    d->state_stride = cpu_state_stride(p);
    d->state = mem_zalloc(d->kv.states, d->state_stride * sizeof *d->state);
    d->states_backed = states_backed(&d->kv);
    return d->state ? 0 : err_memory(e, "the sequences' state", d->state_stride * sizeof *d->state);
}

/* What the step's scratch takes, its kinds of rope among it. */
static int cpu_count(struct cpu *d, const struct plan *p, struct cpu_bump *b, struct err *e)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        const struct rope *r = op->kind == OP_QKV      ? &op->qkv.rope
                               : op->kind == OP_LATENT ? &op->latent.rope
                                                       : NULL;
        if (r && cpu_add_rope(d, r, e))
            return -1;
    }
    cpu_place(d, p, b);
    return b->failed ? err_memory(e, "the step's scratch", b->at) : 0;
}

static int cpu_prepare_all(struct cpu *d, const struct plan *p, struct err *e)
{
    struct cpu_bump b = {0};
    if (cpu_count(d, p, &b, e))
        return -1;
    d->memory = mem_aligned(64, b.at);
    if (!d->memory)
        return err_memory(e, "the step's scratch", b.at);
    d->scratch_bytes = b.at;
    b = (struct cpu_bump){.base = d->memory};
    cpu_place(d, p, &b);
    return cpu_prepare_kv(d, p, e) || cpu_prepare_states(d, p, e) ? -1 : 0;
}

static int cpu_prepare(struct device *device, const struct plan *p, const struct kv_config *kv,
                       uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    cpu_drop(d);
    if (!d->w)
        return err_set(e, ERR_USAGE, "the device has no weights yet");
    if (plan_check(p, d->w, e))
        return -1;
    if (!max_rows || max_rows > 1 << 20 || !max_seqs || max_outs > max_rows)
        return err_set(e, ERR_USAGE, "a step of at most %u rows, %u sequences and %u results is not possible",
                       max_rows, max_seqs, max_outs);
    if (kv->page_tokens != 16 && kv->page_tokens != 32)
        return err_set(e, ERR_USAGE, "a page of %u tokens: 16 or 32 was expected", kv->page_tokens);
    d->kv = *kv;
    d->max_rows = max_rows;
    d->max_seqs = max_seqs;
    d->max_outs = max_outs;
    if (cpu_prepare_all(d, p, e)) {
        cpu_drop(d);
        return -1;
    }
    d->plan = p;
    if (d->packs && !d->packed) /* last: it is optional */
        cpu_packed_open(d);
    return 0;
}

/* ---- the step ---- */

static int cpu_check_tables(const struct cpu *d, const struct step *s, uint32_t seq, struct err *e)
{
    uint32_t length = s->seq[seq].length, used = (length + d->kv.page_tokens - 1) / d->kv.page_tokens;
    if (used > s->table_width)
        return err_set(e, ERR_USAGE, "sequence %u is %u tokens long; its page table has room for %u", seq,
                       length, s->table_width * d->kv.page_tokens);
    for (uint32_t g = 0; g < d->plan->groups; g++) {
        const int32_t *table = s->tables + ((size_t)g * s->seqs + seq) * s->table_width;
        for (uint32_t i = 0; i < used; i++)
            if (table[i] < 0 || (uint32_t)table[i] >= d->group[g].pages)
                return err_set(e, ERR_USAGE, "sequence %u names page %d of group %u, which has %u", seq,
                               table[i], g, d->group[g].pages);
    }
    return 0;
}

/* Rows to sequences; everything that a worker will index with. */
static int cpu_check_seqs(struct cpu *d, const struct step *s, struct err *e)
{
    for (uint32_t r = 0; r < s->rows; r++)
        d->row_seq[r] = UINT32_MAX;
    for (uint32_t i = 0; i < s->seqs; i++) {
        const struct step_seq *q = &s->seq[i];
        if (q->first > s->rows || q->rows > s->rows - q->first)
            return err_set(e, ERR_USAGE, "sequence %u has rows beyond the step's %u", i, s->rows);
        if (d->plan->groups && cpu_check_tables(d, s, i, e))
            return -1;
        for (uint32_t r = q->first; r < q->first + q->rows; r++) {
            if (s->pos[r] < 0 || (uint32_t)s->pos[r] >= q->length ||
                (r > q->first && s->pos[r] <= s->pos[r - 1]))
                return err_set(e, ERR_USAGE, "row %u is at position %d of sequence %u, which is %u long", r,
                               s->pos[r], i, q->length);
            d->row_seq[r] = i;
        }
    }
    return 0;
}

static int cpu_check_step(struct cpu *d, const struct plan *p, const struct step *s, struct err *e)
{
    if (!d->plan || p != d->plan)
        return err_set(e, ERR_USAGE, "the device was not prepared for this plan");
    if (s->rows > d->max_rows || s->seqs > d->max_seqs || s->outs > d->max_outs)
        return err_set(e, ERR_USAGE,
                       "a step of %u rows, %u sequences, %u results; prepared were %u, %u and %u", s->rows,
                       s->seqs, s->outs, d->max_rows, d->max_seqs, d->max_outs);
    if (s->from > p->count || s->to > p->count)
        return err_set(e, ERR_USAGE, "operations %u to %u of a plan that has %u", s->from, s->to, p->count);
    for (uint32_t i = 0; i < s->outs; i++)
        if (s->out[i] < 0 || (uint32_t)s->out[i] >= s->rows)
            return err_set(e, ERR_USAGE, "a result is asked for row %d of %u", s->out[i], s->rows);
    return device_check_ids(p, d->w, s, e) || device_check_lora(p, s, e) ||
                   device_check_states(p, s, d->kv.states, e) || cpu_check_seqs(d, s, e)
               ? -1
               : device_check_rows(p, s, d->max_rows, e);
}

static void cpu_run_op(struct lane *l, const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        op_embed_run(l, &op->embed);
        break;
    case OP_QKV:
        op_qkv_run(l, &op->qkv);
        break;
    case OP_LATENT:
        op_latent_run(l, &op->latent);
        break;
    case OP_ATTN:
        op_attn_run(l, &op->attn);
        break;
    case OP_HEADS:
        op_heads_run(l, &op->heads);
        break;
    case OP_OUT:
        op_out_run(l, &op->out);
        break;
    case OP_FFN:
        op_ffn_run(l, &op->ffn);
        break;
    case OP_MOE:
        op_moe_run(l, &op->moe);
        break;
    case OP_MAP:
        op_map_run(l, &op->map);
        break;
    case OP_MIX:
        op_mix_run(l, &op->mix);
        break;
    case OP_INDEX:
        op_index_run(l, &op->index);
        break;
    case OP_LOGITS:
        op_logits_run(l, &op->logits);
        break;
    case OP_PROJ:
        op_proj_run(l, &op->proj);
        break;
    case OP_CONV:
        op_conv_run(l, &op->conv);
        break;
    case OP_SCAN:
        op_scan_run(l, &op->scan);
        break;
    case OP_CELL:
        op_cell_run(l, &op->cell);
        break;
    }
}

/* Angles in float, as the models were trained: pos * freq, then cosine and sine. */
static void cpu_rope_tables(struct lane *l)
{
    uint32_t from, to;
    lane_slice(l, l->s->rows, 1, &from, &to);
    for (uint32_t i = 0; i < l->d->ropes; i++) {
        const struct rope_table *t = &l->d->rope[i];
        const float *freqs = lane_vector(l, t->freqs);
        uint32_t half = t->dims / 2, axes = lane_weight(l, t->freqs)->cols / half;
        for (uint32_t r = from; r < to; r++) {
            float *c = t->cos_sin + (size_t)r * t->dims;
            const int32_t *pos = axes > 1 && l->s->axes ? l->s->axes + (size_t)r * PLAN_AXES : NULL;
            for (uint32_t j = 0; j < half; j++) {
                float angle = 0;
                for (uint32_t a = 0; a < axes; a++)
                    angle += (float)(pos ? pos[a] : l->s->pos[r]) * freqs[a * half + j];
                c[j] = cosf(angle) * t->factor;
                c[half + j] = sinf(angle) * t->factor;
            }
        }
    }
}

struct cpu_step {
    struct cpu *d;
    const struct step *s;
};

static void cpu_step_run(void *arg, int worker, int workers)
{
    const struct cpu_step *job = arg;
    struct cpu *d = job->d;
    struct lane l = {.d = d,
                     .k = d->k,
                     .p = d->plan,
                     .s = job->s,
                     .local = &d->local[worker],
                     .worker = worker,
                     .workers = workers};
    double *seconds = worker == 0 ? d->device.seconds : NULL, last = seconds ? clock_now() : 0;
    uint32_t to = job->s->to ? job->s->to : d->plan->count;
    cpu_rope_tables(&l);
    for (uint32_t i = job->s->from; i < to; i++) {
        cpu_run_op(&l, &d->plan->ops[i]);
        if (seconds) {
            double now = clock_now();
            seconds[i - job->s->from] += now - last;
            last = now;
        }
    }
}

static int cpu_run(struct device *device, const struct plan *p, const struct step *s, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    if (cpu_check_step(d, p, s, e))
        return -1;
    if (!s->rows)
        return 0;
    struct cpu_step job = {.d = d, .s = s};
    pool_run(d->pool, cpu_step_run, &job);
    return 0;
}

static const float *cpu_results(struct device *device, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    if (!d->plan)
        err_set(e, ERR_USAGE, "no step has been run");
    return d->plan ? d->results : NULL;
}

/* ---- rows of buffers ---- */

static int cpu_check_rows(const struct cpu *d, uint32_t buffer, uint32_t rows, struct err *e)
{
    if (!d->plan || !buffer || buffer >= d->plan->buffers || rows > d->max_rows)
        return err_set(e, ERR_USAGE, "there are no %u rows of buffer %u", rows, buffer);
    return 0;
}

static int cpu_read_rows(struct device *device, uint32_t buffer, uint32_t rows, float *host, struct err *e)
{
    const struct cpu *d = (const struct cpu *)device;
    if (cpu_check_rows(d, buffer, rows, e))
        return -1;
    memcpy(host, d->buffer[buffer], (size_t)rows * d->plan->width[buffer] * sizeof *host);
    return 0;
}

static int cpu_write_rows(struct device *device, uint32_t buffer, uint32_t rows, const float *host,
                          struct err *e)
{
    const struct cpu *d = (const struct cpu *)device;
    if (cpu_check_rows(d, buffer, rows, e))
        return -1;
    memcpy(d->buffer[buffer], host, (size_t)rows * d->plan->width[buffer] * sizeof *host);
    return 0;
}

static float *cpu_host_rows(struct device *device, uint32_t buffer)
{
    return ((struct cpu *)device)->buffer[buffer];
}

static int cpu_take_rows(struct device *device, uint32_t buffer, uint32_t rows, struct device *from,
                         struct err *e)
{
    return cpu_write_rows(device, buffer, rows, cpu_host_rows(from, buffer), e);
}

static void *cpu_host_memory(struct device *device, size_t *bytes)
{
    const struct cpu *d = (struct cpu *)device;
    *bytes = d->scratch_bytes;
    return d->memory;
}

/* ---- pages ---- */

static int cpu_check_page(const struct cpu *d, uint32_t group, int32_t page, struct err *e)
{
    if (!d->plan || group >= d->plan->groups || page < 0 || (uint32_t)page >= d->group[group].pages)
        return err_set(e, ERR_USAGE, "there is no page %d in KV group %u", page, group);
    return 0;
}

static void cpu_back_states(struct cpu *d, uint32_t slots)
{
    const uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)(d->state + slots * d->state_stride) + unit - 1) / unit * unit,
              to = (uintptr_t)(d->state + d->kv.states * d->state_stride) / unit * unit;
    if (d->state && slots < d->states_backed && from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
    d->states_backed = slots < d->kv.states ? slots : d->kv.states;
}

/* The system has the memory of pages that were never written. What is returned are whole pages of the system: of each head's
 * last pages, without those that it shares with its neighbours. */
static int cpu_back(struct device *device, uint32_t group, uint32_t pages, struct err *e)
{
    (void)e;
    if (group == GROUP_STATES) {
        cpu_back_states((struct cpu *)device, pages);
        return 0;
    }
    struct kv_pool *g = &((struct cpu *)device)->group[group];
    const uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t j = 0; j < g->shape.layers * g->shape.kv_heads && pages < g->backed; j++) {
        uintptr_t from = ((uintptr_t)kv_page(g, 0, j, pages) + unit - 1) / unit * unit,
                  to = ((uintptr_t)kv_page(g, 0, j, 0) + g->pages * g->head_page) / unit * unit;
        if (from < to) /* refused where it is locked: then it stays */
            madvise((void *)from, to - from, MADV_DONTNEED);
    }
    g->backed = pages < g->pages ? pages : g->pages;
    return 0;
}

static uint64_t cpu_back_bytes(const struct device *device, uint32_t group, uint32_t pages)
{
    const struct cpu *d = (const struct cpu *)device;
    if (group == GROUP_STATES)
        return d->state ? (uint64_t)pages * d->state_stride * sizeof *d->state : 0;
    return (uint64_t)d->group[group].page_bytes * pages;
}

static int cpu_copy_pages(struct device *device, uint32_t group, const int32_t *from, const int32_t *to,
                          uint32_t n, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    for (uint32_t i = 0; i < n; i++) {
        if (cpu_check_page(d, group, from[i], e) || cpu_check_page(d, group, to[i], e))
            return -1;
        const struct kv_pool *g = &d->group[group];
        for (uint32_t j = 0; j < g->shape.layers * g->shape.kv_heads; j++)
            memmove(kv_page(g, 0, j, (uint32_t)to[i]), kv_page(g, 0, j, (uint32_t)from[i]), g->head_page);
    }
    return 0;
}

static size_t cpu_page_bytes(const struct device *device, uint32_t group)
{
    const struct cpu *d = (const struct cpu *)device;
    return d->plan && group < d->plan->groups ? d->group[group].page_bytes : 0;
}

static int cpu_read_page(struct device *device, uint32_t group, int32_t page, void *host, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    if (cpu_check_page(d, group, page, e))
        return -1;
    const struct kv_pool *g = &d->group[group];
    for (uint32_t j = 0; j < g->shape.layers * g->shape.kv_heads; j++)
        memcpy((uint8_t *)host + j * g->head_page, kv_page(g, 0, j, (uint32_t)page), g->head_page);
    return 0;
}

static int cpu_write_page(struct device *device, uint32_t group, int32_t page, const void *host,
                          struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    if (cpu_check_page(d, group, page, e))
        return -1;
    const struct kv_pool *g = &d->group[group];
    for (uint32_t j = 0; j < g->shape.layers * g->shape.kv_heads; j++)
        memcpy(kv_page(g, 0, j, (uint32_t)page), (const uint8_t *)host + j * g->head_page, g->head_page);
    return 0;
}

/* ---- slots of state ---- */

static size_t cpu_state_bytes(const struct device *device)
{
    const struct cpu *d = (const struct cpu *)device;
    return d->plan ? d->plan->state_values * sizeof *d->state : 0;
}

static float *cpu_slot(const struct cpu *d, int32_t slot, struct err *e)
{
    if (d->state && slot > 0 && (uint32_t)slot < d->kv.states)
        return d->state + (size_t)slot * d->state_stride;
    err_set(e, ERR_USAGE, "there is no slot %d of state", slot);
    return NULL;
}

static int cpu_read_state(struct device *device, int32_t slot, void *host, struct err *e)
{
    const float *from = cpu_slot((const struct cpu *)device, slot, e);
    if (from)
        memcpy(host, from, cpu_state_bytes(device));
    return from ? 0 : -1;
}

static int cpu_write_state(struct device *device, int32_t slot, const void *host, struct err *e)
{
    float *to = cpu_slot((const struct cpu *)device, slot, e);
    if (to)
        memcpy(to, host, cpu_state_bytes(device));
    return to ? 0 : -1;
}

/* ---- the rest ---- */

bool cpu_small(const struct weights *w)
{
    const uint64_t most = (uint64_t)320 << 20;
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < w->count; i++)
        bytes += weight_bytes(&w->all[i]) / (kernel_bf16(w->all[i].type) ? 2 : 1);
    return bytes < most;
}

/* 16-bit activations by default where the model is small. */
static uint32_t cpu_terms(const struct cpu *d, const struct weights *w)
{
    return d->terms ? d->terms : cpu_small(w) ? 2 : 1;
}

static int cpu_load(struct device *device, const struct weights *w, void (*progress)(void *, double),
                    void *arg, struct err *e)
{
    struct cpu *d = (struct cpu *)device;
    for (uint32_t i = 1; i < w->count; i++)
        if (w->all[i].rows > 1 && w->all[i].cols > KERNEL_K_MOST)
            return err_set(e, ERR_DATA, "%s has rows of %u values; the CPU's kernels take at most %d",
                           log_safe(w->all[i].name), w->all[i].cols, KERNEL_K_MOST);
    d->w = w; /* used in place */
    d->terms = cpu_terms(d, w);
    d->pieces = weights_bytes(w) >= (uint64_t)1 << 30;
    cpu_packed_close(d);
    if (progress)
        progress(arg, 1.0);
    return 0;
}

static void cpu_memory(const struct device *device, struct device_memory *m)
{
    const struct cpu *d = (const struct cpu *)device;
    long pages = sysconf(_SC_PHYS_PAGES), free = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    *m = (struct device_memory){.scratch = d->scratch_bytes};
    for (uint32_t g = 0; g < PLAN_GROUPS_MOST; g++)
        m->kv += (uint64_t)d->group[g].page_bytes * d->group[g].backed;
    m->kv += d->state ? (uint64_t)d->states_backed * d->state_stride * sizeof *d->state : 0;
    m->total = pages > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    m->free = free > 0 ? (uint64_t)free * (uint64_t)size : 0;
    m->weights = d->w ? weights_bytes(d->w) : 0;
}

static int cpu_need_memory(struct device *device, const struct plan *p, const struct weights *w,
                           const struct device_shape *s, struct device_memory *m, struct err *e)
{
    struct cpu as = *(struct cpu *)device; /* a copy with this shape */
    struct cpu_bump b = {0};
    as.w = w;
    as.terms = cpu_terms(&as, w);
    as.kv = *s->kv;
    as.max_rows = s->rows;
    as.max_seqs = s->seqs;
    as.max_outs = s->outs;
    as.ropes = 0;
    if (plan_check(p, w, e) || cpu_count(&as, p, &b, e))
        return -1;
    cpu_memory(device, m);
    *m = (struct device_memory){
        .weights = weights_bytes(w), .scratch = b.at, .total = m->total, .free = m->free};
    for (uint32_t i = 0; i < p->groups; i++) {
        struct kv_pool g;
        if (!kv_layout(&g, &p->group[i], s->kv, as.exact))
            continue;
        m->kv += (uint64_t)g.page_bytes * s->kv->pages[i];
        m->kv_least += (uint64_t)g.page_bytes * kv_backed(s->kv, i);
    }
    uint64_t slot = cpu_state_stride(p) * sizeof(float);
    m->kv += s->kv->states * slot;
    m->kv_least += states_backed(s->kv) * slot;
    return 0;
}

static void cpu_describe(const struct device *device, struct buf *out)
{
    const struct cpu *d = (const struct cpu *)device;
    char name[64];
    snprintf(name, sizeof name, "cpu (%d threads, %s)", pool_size(d->pool), d->k->tier);
    device_say(device, name, d->plan, out);
}

static void cpu_close(struct device *device)
{
    struct cpu *d = (struct cpu *)device;
    cpu_drop(d);
    cpu_packed_close(d);
    pool_close(d->pool);
    mem_free(d);
}

int cpu_open(struct device **out, const struct device_options *o, struct err *e)
{
    static const struct device_ops ops = {.name = "cpu",
                                          .adapts = true,
                                          .load = cpu_load,
                                          .need = cpu_need_memory,
                                          .prepare = cpu_prepare,
                                          .run = cpu_run,
                                          .results = cpu_results,
                                          .read_rows = cpu_read_rows,
                                          .write_rows = cpu_write_rows,
                                          .take_rows = cpu_take_rows,
                                          .host_rows = cpu_host_rows,
                                          .host_memory = cpu_host_memory,
                                          .back = cpu_back,
                                          .back_bytes = cpu_back_bytes,
                                          .copy_pages = cpu_copy_pages,
                                          .page_bytes = cpu_page_bytes,
                                          .read_page = cpu_read_page,
                                          .write_page = cpu_write_page,
                                          .state_bytes = cpu_state_bytes,
                                          .read_state = cpu_read_state,
                                          .write_state = cpu_write_state,
                                          .memory = cpu_memory,
                                          .describe = cpu_describe,
                                          .close = cpu_close};
    *out = NULL;
    const struct kernels *k = kernels_get(o->tier, e);
    if (!k)
        return -1;
    struct cpu *d = mem_zalloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "the CPU device", sizeof *d);
    d->device.ops = &ops;
    d->k = k;
    d->exact = o->exact;
    d->fixed = o->deterministic;
    d->packs = !o->no_repack && !o->exact;
    d->terms = o->activations == 16 ? 2 : o->activations == 8 ? 1 : 0;
    d->pool = pool_open(o->threads, o->pin, e);
    if (!d->pool) {
        mem_free(d);
        return -1;
    }
    *out = &d->device;
    return 0;
}
