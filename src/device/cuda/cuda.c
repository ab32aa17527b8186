/* The CUDA device behind device.h: memory, steps, graphs. */
#include "device/cuda/exec.h"
#include "device/cuda/parity.h"
#include "device/cuda/timing.h"

#include "base/buf.h"
#include "codec/dtype.h"
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
    if (d->options.streamed) /* in prepare: by operations */
        return 0;
    return upload_weights(&d->weights, d->g, w, d->options.threads, progress, arg, e);
}

/* ---- KV ---- */

static int shape_kv(struct cuda_device *d, const struct plan *p, const struct kv_config *kv, struct err *e)
{
    d->page_tokens = kv->page_tokens;
    d->kv_pages = 0;
    for (uint32_t i = 0; i < p->groups; i++) {
        d->kv_pages = kv->pages[i] > d->kv_pages ? kv->pages[i] : d->kv_pages;
        d->kv_least[i] = kv->least[i] && kv->least[i] < kv->pages[i] ? kv->least[i] : kv->pages[i];
    }
    return kv_shape(d->kv, p, kv, e);
}

static int take_kv(struct cuda_device *d, const struct plan *p, struct err *e)
{
    for (d->kv_groups = 0; d->kv_groups < p->groups; d->kv_groups++) {
        struct group_kv *g = &d->kv[d->kv_groups];
        struct kv_memory *m = &d->kv_memory[d->kv_groups];
        if (kv_memory_open(m, d->g, g->bytes, e) ||
            kv_memory_back(m, d->g, d->kv_least[d->kv_groups] * g->page_bytes, e)) {
            kv_memory_close(m, d->g);
            return -1;
        }
        g->base = m->base;
    }
    return 0;
}

/* ---- slots of state ---- */

static void shape_state(struct cuda_device *d, const struct plan *p, const struct kv_config *kv)
{
    d->states = p->state_values ? kv->states : 0;
    d->states_least = kv->states_least && kv->states_least < d->states ? kv->states_least : d->states;
    d->slot_bytes = state_floats(p) * sizeof(float);
}

static int take_state(struct cuda_device *d, struct err *e)
{
    if (!d->states)
        return 0;
    if (kv_memory_open(&d->state_memory, d->g, d->states * d->slot_bytes, e) ||
        kv_memory_back(&d->state_memory, d->g, d->states_least * d->slot_bytes, e)) {
        kv_memory_close(&d->state_memory, d->g);
        return -1;
    }
    d->state = d->state_memory.base;
    return 0;
}

static size_t cuda_state_bytes(const struct device *base)
{
    const struct cuda_device *d = (const struct cuda_device *)base;
    return d->states ? d->slot_bytes : 0;
}

static int move_state(struct cuda_device *d, int32_t slot, void *to, const void *from, struct err *e)
{
    const size_t bytes = cuda_state_bytes(&d->base);
    const cu_ptr at = d->state + (uint64_t)slot * bytes;
    if (slot <= 0 || (uint32_t)slot >= d->states)
        return err_set(e, ERR_USAGE, "there is no slot %d of state", slot);
    if (gpu_enter(d->g, e) || gpu_check(d->g,
                                        to ? d->g->cu->to_host(to, at, bytes, d->g->stream)
                                           : d->g->cu->to_device(at, from, bytes, d->g->stream),
                                        "moving a slot of state", e))
        return -1;
    return gpu_sync(d->g, e);
}

static int cuda_read_state(struct device *base, int32_t slot, void *host, struct err *e)
{
    return move_state(self(base), slot, host, NULL, e);
}

static int cuda_write_state(struct device *base, int32_t slot, const void *host, struct err *e)
{
    return move_state(self(base), slot, NULL, host, e);
}

/* ---- scratch ---- */

/* Whether weights may stay decoded; if `--gpu-copies` asked for it, and for nothing else, says why not. */
static int check_copies(struct cuda_device *d, bool *may, struct err *e)
{
    const bool bytes = d->options.copies && d->options.copies != COPIES_AUTO && !d->plan->part,
               asked = d->options.fp8 || bytes;
    *may = d->at.decoded_bytes != 0;
    if (!*may && asked)
        log_warn("%s has no effect %s", d->options.fp8 ? "--prefill fp8" : "--gpu-copies",
                 d->options.exact                ? "with --exact"
                 : d->max_rows <= PACK_ROWS_MOST ? "for steps of few rows"
                                                 : "without cuBLASLt");
    if (*may && d->options.fp8 && !blas_has_fp8(d->replay.blas))
        return err_set(e, ERR_DEVICE,
                       "--prefill fp8 needs cuBLASLt of CUDA 12.9 or later, and a card with products of "
                       "fp8 that have a scale a row (Hopper)");
    return 0;
}

static int take_copies(struct cuda_device *d, const struct plan *p, struct err *e)
{
    struct copies *c = &d->copies;
    bool may;
    if (!d->options.copies)
        return 0;
    if (check_copies(d, &may, e))
        return -1;
    if (!may)
        return 0;
    c->asked = d->options.copies;
    c->fp8 = d->options.fp8;
    if (copies_open(c, p, d->weights.mat, d->weights.count, e))
        return -1;
    d->lower.kept = c->kept;
    d->replay.kept = c->made;
    return 0;
}

static uint64_t place_scratch(struct cuda_device *d, const struct plan *p, const struct step_sizes *sizes)
{
    const struct scratch_shape shape = {d->max_rows, d->max_outs, d->options.exact, d->replay.blas != NULL,
                                        d->options.fp8};
    return scratch_place(&d->at, p, sizes, &shape, d->scratch);
}

/* Everything that a plan of this shape takes, counted: sizes of scratch, of KV and of the step's data. */
static int shape_device(struct cuda_device *d, const struct plan *p, const struct weights *w,
                        const struct device_shape *shape, struct step_sizes *sizes, struct err *e)
{
    d->max_rows = shape->rows;
    d->max_seqs = shape->seqs;
    d->max_outs = shape->outs;
    if (!d->options.exact && d->max_rows > PACK_ROWS_MOST && !d->replay.blas)
        d->replay.blas = blas_open(d->g, 32u << 20);
    const struct size_limits limits = {&d->g->profile, d->max_rows, d->max_seqs};
    if (step_measure(&limits, p, w, sizes, e) || shape_kv(d, p, shape->kv, e))
        return -1;
    shape_state(d, p, shape->kv);
    mem_free(d->at.buffer);
    if (!(d->at.buffer = mem_zalloc(p->buffers + 1, sizeof *d->at.buffer)))
        return err_memory(e, "the table of buffers", p->buffers * sizeof *d->at.buffer);
    lower_ratios(&d->lower, p);
    d->scratch_bytes = place_scratch(d, p, sizes);
    step_size(d, p);
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
    *m = (struct device_memory){.weights = d->options.streamed ? sender_bytes(p, w, d->options.threads)
                                                               : upload_bytes(w),
                                .total = total,
                                .free = available + gpu_spare_bytes(d->g->card) + d->g->taken};
    for (uint32_t i = 0; i < p->groups; i++) {
        m->kv += gpu_granules(d->kv[i].bytes);
        m->kv_least += gpu_granules(d->kv_least[i] * d->kv[i].page_bytes);
    }
    m->kv += gpu_granules(d->states * d->slot_bytes);
    m->kv_least += gpu_granules(d->states_least * d->slot_bytes);
    if (!gpu_can_map(d->g))
        m->kv_least = m->kv;
    /* what the device has taken already is within its limit, too */
    m->scratch = d->g->taken + d->scratch_bytes + d->meta_bytes + parity_bytes(&sizes);
    /* while weights are loaded the upload's ring is there, and neither KV nor scratch */
    uint64_t ring = d->g->taken + upload_ring_bytes(d->options.threads);
    if (m->kv_least + m->scratch < ring)
        m->scratch = ring - m->kv_least;
    return 0;
}

/* What lowering looks at, now that all of it has its place. */
static void set_lower(struct cuda_device *d, const struct plan *p)
{
    struct lower *l = &d->lower;
    d->at.counters = gpu_counters(d->g);
    d->at.sums = gpu_parts(d->g);
    l->card = &d->g->profile;
    l->plan = p;
    l->source = d->source;
    l->mat = d->sender ? sender_mats(d->sender) : d->weights.mat;
    l->width = p->width;
    l->at = &d->at;
    l->kv = d->kv;
    l->page_tokens = d->page_tokens;
    l->state = (float *)d->state;
    l->state_floats = state_floats(p);
    l->half = d->replay.blas != NULL;
    l->path = d->options.exact ? PATH_FLOAT : PATH_PACK;
    d->replay.g = d->g;
    d->replay.limits.card = &d->g->profile;
    d->replay.limits.part_floats = d->at.part_floats;
    d->replay.limits.rows = d->max_rows;
    d->replay.limits.outs = d->max_outs;
}

/* Puts the table of adapters' pairs on the card. */
static int send_adapters(struct cuda_device *d, const struct plan *p, struct err *e)
{
    const size_t count = (size_t)(p->slots + 1) * (p->adapters + 1), bytes = count * sizeof *d->at.lora_table;
    if (!p->lora)
        return 0;
    struct lora_entry *host = mem_zalloc(count, sizeof *host);
    if (!host)
        return err_memory(e, "the table of adapters", bytes);
    for (size_t i = 0; i < count; i++)
        if (p->lora[i].a)
            host[i] = (struct lora_entry){.a = d->weights.mat[p->lora[i].a],
                                          .b = d->weights.mat[p->lora[i].b],
                                          .scale = p->lora[i].scale};
    int bad = gpu_check(d->g, d->g->cu->to_device((cu_ptr)d->at.lora_table, host, bytes, d->g->stream),
                        "sending adapters", e) ||
              gpu_sync(d->g, e);
    mem_free(host);
    return bad ? -1 : 0;
}

static int cuda_prepare(struct device *base, const struct plan *p, const struct kv_config *kv,
                        uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct cuda_device *d = self(base);
    struct step_sizes sizes;
    d->plan = p;
    d->buffers = p->buffers;
    if (shape_device(d, p, d->source, &(struct device_shape){kv, max_rows, max_seqs, max_outs}, &sizes, e))
        return -1;
    if (d->options.streamed && sender_open(&d->sender, d->g, p, d->source, &d->options, e))
        return -1;
    d->cache.no_graphs = d->sender != NULL;
    d->cache.most = p->part ? GRAPHS_MOST : GRAPHS_WHOLE;
    if (take_kv(d, p, e) || take_state(d, e) ||
        !(d->scratch = gpu_alloc(d->g, d->scratch_bytes, "scratch", e)) || step_take(d, p, e))
        return -1;
    place_scratch(d, p, &sizes);
    set_lower(d, p);
    if (gpu_check(d->g, d->g->cu->set8(d->scratch, 0, d->scratch_bytes, d->g->stream), "clearing scratch",
                  e) ||
        gpu_sync(d->g, e) || send_adapters(d, p, e) ||
        (!d->options.no_parity && !d->sender && parity_check(d, &sizes, e)))
        return -1;
    if ((!d->sender && take_copies(d, p, e)) || cache_reserve(&d->cache, &d->lower, max_rows, max_outs, e))
        return -1;
    if (d->sender)
        sender_fill(d->sender);
    return 0;
}

/* ---- a step ---- */

/* A step whose weights are sent meanwhile: operation by operation. */
static int put_streamed(struct cuda_device *d, const struct step_class *c, struct err *e)
{
    struct gpu *g = d->g;
    d->replay.limits.no_wide = d->lower.options.no_wide;
    sender_border(d->sender, d->now.border);
    if (gpu_fetch(g, d->meta_device, d->meta_host, d->meta_used, "sending a step", e))
        return -1;
    for (uint32_t i = c->from; i < c->to; i++) {
        struct step_class one = *c;
        one.from = i;
        one.to = i + 1;
        struct launch_list *list = cache_list(&d->cache, &d->lower, &one, e);
        if (!list || sender_begin(d->sender, i, e) || replay_list(&d->replay, list, &d->now, c->from, e) ||
            sender_end(d->sender, i, e))
            return -1;
    }
    const struct sender_times times = sender_times(d->sender);
    d->base.link = times.link;
    d->base.waited = times.waited;
    d->base.sent = times.bytes;
    return 0;
}

/* All of a step on the stream: data in, launches, results out. */
static int put_step(struct cuda_device *d, const struct step_class *c, struct err *e)
{
    struct gpu *g = d->g;
    if (d->sender)
        return put_streamed(d, c, e);
    struct launch_list *list = cache_list(&d->cache, &d->lower, c, e);
    if (!list || gpu_fetch(g, d->meta_device, d->meta_host, d->meta_used, "sending a step", e))
        return -1;
    d->replay.limits.no_wide = d->lower.options.no_wide;
    return replay_list(&d->replay, list, &d->now, c->from, e);
}

/* The same with every launch timed: no graph, one synchronisation at the end. */
static int timed_step(struct cuda_device *d, const struct step_class *c, struct err *e)
{
    if (timing_open(d->g, e))
        return -1;
    timing_start(d->g);
    return put_step(d, c, e) || gpu_sync(d->g, e) || timing_collect(d->g, d->base.seconds, e) ? -1 : 0;
}

/* Records the step as a graph; where that fails the step runs as launches from then on, and the log says so. */
static int record_graph(struct cuda_device *d, const struct step_class *c, struct step_graph *s)
{
    struct gpu *g = d->g;
    struct err why = {0};
    void *graph = NULL;
    if (gpu_check(g, g->cu->capture_begin(g->stream, CU_CAPTURE_THREAD), "recording a graph", &why))
        goto failed;
    int bad = put_step(d, c, &why);
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
    d->cache.no_graphs = true;
    s->exec = NULL;
    log_warn("no CUDA graphs, steps run as single launches: %s", why.text);
    return -1;
}

/* The graph for this step; NULL: it runs as launches. */
static struct step_graph *graph_for(struct cuda_device *d, const struct plan *p, const struct step_class *c)
{
    const struct meta *m = &d->now.meta;
    struct graph_key key;
    if (d->cache.no_graphs || d->base.seconds || c->tiles || m->rows > GRAPH_ROWS_MOST)
        return NULL;
    memset(&key, 0, sizeof key);
    key.plan = p;
    key.rows = m->rows;
    key.seqs = m->seqs;
    key.outs = m->outs;
    key.width = m->width;
    key.keys = d->now.keys;
    key.picks = d->picks;
    key.seen = d->seen;
    key.class = *c;
    struct step_graph *graph = cache_find(&d->cache, &key);
    if (!graph) { /* a graph is built at the second step with this key */
        cache_add(&d->cache, d->g, &key)->used = d->cache.step;
        return NULL;
    }
    if (!graph->exec)
        record_graph(d, c, graph);
    graph->used = graph->exec ? d->cache.step : graph->used;
    return graph->exec ? graph : NULL;
}

/* The card has done all that it was given: it reads neither the step's block nor rows of the host any more. */
static int finish(struct cuda_device *d, struct err *e)
{
    if (gpu_sync(d->g, e))
        return -1;
    d->ran = d->sending = false;
    return 0;
}

static int cuda_run(struct device *base, const struct plan *p, const struct step *s, struct err *e)
{
    struct cuda_device *d = self(base);
    struct gpu *g = d->g;
    struct step_class class;
    if (gpu_enter(g, e) || step_check(d, p, s, e) || device_check_lora(p, s, e) ||
        device_check_states(p, s, d->states, e))
        return -1;
    if (d->ran && finish(d, e)) /* the last step may still read the block that is written now */
        return -1;
    if (step_write(d, p, s, &class, e))
        return -1;
    if (!d->base.seconds)
        timing_close(g);
    d->cache.step++;
    const bool stale = copies_hold(&d->copies);
    if ((d->sender && sender_hold(d->sender)) || stale)
        cache_forget(&d->cache, g);
    struct step_graph *graph = graph_for(d, p, &class);
    d->ran = true;
    int failed = graph ? gpu_check(g, g->cu->graph_launch(graph->exec, g->stream), "replaying a graph", e)
                 : d->base.seconds ? timed_step(d, &class, e)
                                   : put_step(d, &class, e);
    if (d->sender)
        sender_release(d->sender);
    copies_release(&d->copies);
    return failed;
}

int exec_product(struct cuda_device *d, const struct mat *w, const float *x, uint32_t m, float *y,
                 struct err *e)
{
    struct mat mat[2] = {{0}, *w};
    struct op op = {.kind = OP_OUT};
    op.out = (struct op_out){.in = {1, 0}, .linear = {.weight = 1}, .tail = {.scale = 1.0f, .out = {2, 0}}};
    uint32_t width[3] = {0, w->k, w->n};
    float *buffer[3] = {NULL, (float *)x, y};
    const struct plan plan = {.ops = &op, .count = 1, .width = width, .buffers = 3};
    struct scratch at = d->at;
    struct lower l = d->lower;
    at.buffer = buffer;
    l.plan = &plan;
    l.mat = mat;
    l.width = width;
    l.at = &at;
    l.kept = NULL;
    const struct step_class c = lower_class(&l, m, 0);
    const struct launch_step step = {.meta = {.rows = m}};
    return replay_plan(&d->replay, &l, &c, &step, &d->cache.list[0].list, e);
}

static const float *cuda_results(struct device *base, struct err *e)
{
    struct cuda_device *d = self(base);
    if (gpu_enter(d->g, e) || finish(d, e))
        return NULL;
    return d->at.results;
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
    return gpu_enter(d->g, e);
}

/* Fewer bytes are copied on the way sooner than they are waited for. */
enum { PINNED_LEAST = 1 << 18 };

static bool is_pinned(const struct cuda_device *d, const void *host, size_t bytes)
{
    const uintptr_t from = (uintptr_t)d->pinned, at = (uintptr_t)host;
    return d->pinned && bytes >= PINNED_LEAST && at >= from && at + bytes <= from + d->pinned_bytes;
}

static void unpin(struct cuda_device *d)
{
    if (d->pinned_here)
        d->g->cu->host_unregister(d->pinned);
    d->pinned = NULL;
    d->pinned_here = false;
}

static void cuda_pin(struct device *base, void *memory, size_t bytes)
{
    struct cuda_device *d = self(base);
    struct err none = {0};
    if (gpu_enter(d->g, &none))
        return;
    unpin(d);
    if (!memory)
        return;
    int r = d->g->cu->host_register(memory, bytes, 0);
    if (r != CU_OK && r != CU_ALREADY_REGISTERED) /* another device of this card may have done it */
        return;
    d->pinned = memory;
    d->pinned_bytes = bytes;
    d->pinned_here = r == CU_OK;
}

static int cuda_read_rows(struct device *base, uint32_t buffer, uint32_t rows, float *host, struct err *e)
{
    struct cuda_device *d = self(base);
    if (check_rows(d, buffer, rows, e))
        return -1;
    size_t bytes = (size_t)rows * d->plan->width[buffer] * sizeof *host;
    if (is_pinned(d, host, bytes))
        return gpu_check(d->g, d->g->cu->to_host(host, (cu_ptr)d->at.buffer[buffer], bytes, d->g->stream),
                         "fetching rows", e) ||
                       finish(d, e)
                   ? -1
                   : 0;
    if (gpu_check(d->g, d->g->cu->to_host(d->mirror, (cu_ptr)d->at.buffer[buffer], bytes, d->g->stream),
                  "fetching rows", e) ||
        finish(d, e))
        return -1;
    memcpy(host, d->mirror, bytes);
    return 0;
}

static int cuda_write_rows(struct device *base, uint32_t buffer, uint32_t rows, const float *host,
                           struct err *e)
{
    struct cuda_device *d = self(base);
    if (check_rows(d, buffer, rows, e) || (d->sending && finish(d, e)))
        return -1;
    size_t bytes = (size_t)rows * d->plan->width[buffer] * sizeof *host;
    if (is_pinned(d, host, bytes)) /* and waits: the other device may write to it next */
        return gpu_fetch(d->g, (cu_ptr)d->at.buffer[buffer], host, bytes, "sending rows", e) || finish(d, e)
                   ? -1
                   : 0;
    memcpy(d->mirror, host, bytes);
    d->sending = true;
    return gpu_fetch(d->g, (cu_ptr)d->at.buffer[buffer], d->mirror, bytes, "sending rows", e);
}

/* What `then` does from now on follows what `first` was told to do so far. */
static int follow(struct cuda_device *then, struct cuda_device *first, struct err *e)
{
    const struct driver *cu = first->g->cu;
    return gpu_check(first->g, cu->event_record(first->passed, first->g->stream), "passing rows", e) ||
                   gpu_check(then->g, cu->stream_wait(then->g->stream, first->passed, 0), "passing rows", e)
               ? -1
               : 0;
}

/* The copy is the other one's to make, behind its kernels and before those that change the rows again. */
static int cuda_take_rows(struct device *base, uint32_t buffer, uint32_t rows, struct device *from,
                          struct err *e)
{
    struct cuda_device *d = self(base), *other = self(from);
    const uint64_t bytes = (uint64_t)rows * d->plan->width[buffer] * sizeof(float);
    if (check_rows(d, buffer, rows, e) || check_rows(other, buffer, rows, e))
        return -1;
    if (d->g->card != other->g->card)
        return err_set(e, ERR_USAGE, "rows pass between devices of one card only");
    return follow(other, d, e) ||
                   gpu_copy(other->g, (cu_ptr)d->at.buffer[buffer], other->at.buffer[buffer], bytes,
                            "passing rows", e) ||
                   follow(d, other, e)
               ? -1
               : 0;
}

/* ---- sums over cards ---- */

bool cuda_meeting_id(uint8_t id[MEETING_ID])
{
    return nccl_identity(id);
}

static int cuda_meet(struct device *base, const struct device_meeting *m, struct err *e)
{
    struct cuda_device *d = self(base);
    nccl_close(d->nccl);
    return (d->nccl = nccl_open(d->g, m, e)) ? 0 : -1;
}

static int cuda_sum_rows(struct device *base, uint32_t buffer, uint32_t rows, struct err *e)
{
    struct cuda_device *d = self(base);
    if (!d->nccl)
        return err_set(e, ERR_USAGE, "this card has met no others");
    if (check_rows(d, buffer, rows, e))
        return -1;
    return nccl_sum(d->nccl, d->at.buffer[buffer], (size_t)rows * d->plan->width[buffer], e);
}

/* ---- pages ---- */

static int cuda_back(struct device *base, uint32_t group, uint32_t pages, struct err *e)
{
    struct cuda_device *d = self(base);
    const bool states = group == GROUP_STATES;
    struct kv_memory *m = states ? &d->state_memory : &d->kv_memory[group];
    const uint64_t each = states ? d->slot_bytes : d->kv[group].page_bytes;
    const bool fewer = pages < d->backed[group]; /* also where they are on another device of this card */
    if (gpu_enter(d->g, e) || kv_memory_back(m, d->g, pages * each, e))
        return -1;
    d->backed[group] = pages;
    if (fewer && d->sender)
        sender_fill(d->sender);
    else if (fewer)
        copies_fill(&d->copies);
    return 0;
}

static uint64_t cuda_back_bytes(const struct device *base, uint32_t group, uint32_t pages)
{
    const struct cuda_device *d = (const struct cuda_device *)base;
    const bool states = group == GROUP_STATES;
    const struct kv_memory *m = states ? &d->state_memory : &d->kv_memory[group];
    if (m->bytes && !m->begins) /* the card cannot map memory: all of it is there */
        return m->bytes;
    if (states)
        return d->states ? gpu_granules(pages * d->slot_bytes) : 0;
    return gpu_granules(pages * d->kv[group].page_bytes);
}

static int cuda_copy_pages(struct device *base, uint32_t group, const int32_t *from, const int32_t *to,
                           uint32_t n, struct err *e)
{
    struct cuda_device *d = self(base);
    const struct group_kv *k = &d->kv[group];
    if (gpu_enter(d->g, e))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (gpu_check(d->g,
                      d->g->cu->to_same(k->base + (uint64_t)to[i] * k->page_bytes,
                                        k->base + (uint64_t)from[i] * k->page_bytes, k->page_bytes,
                                        d->g->stream),
                      "copying KV pages", e))
            return -1;
    return 0;
}

static size_t cuda_page_bytes(const struct device *base, uint32_t group)
{
    return ((const struct cuda_device *)base)->kv[group].page_bytes;
}

static int move_page(struct cuda_device *d, uint32_t group, int32_t page, uint8_t *to, const uint8_t *from,
                     struct err *e)
{
    const struct group_kv *k = &d->kv[group];
    const struct driver *cu = d->g->cu;
    if (gpu_enter(d->g, e))
        return -1;
    const cu_ptr at = k->base + (uint64_t)page * k->page_bytes;
    int r = to ? cu->to_host(to, at, k->page_bytes, d->g->stream)
               : cu->to_device(at, from, k->page_bytes, d->g->stream);
    return gpu_check(d->g, r, "moving a KV page", e) || gpu_sync(d->g, e) ? -1 : 0;
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
    *m = (struct device_memory){
        .weights = d->weights.bytes, .scratch = d->g->taken - d->weights.bytes, .on_card = d->g->taken};
    for (uint32_t i = 0; i < d->kv_groups; i++)
        m->kv += d->kv_memory[i].backed;
    m->kv += d->state_memory.backed;
    m->scratch -= m->kv;
    if (d->g->cu->mem_info(&available, &total) == CU_OK) {
        m->total = total;
        m->free = available + gpu_spare_bytes(d->g->card);
    }
}

static void cuda_describe(const struct device *base, struct buf *out)
{
    const struct cuda_device *d = (const struct cuda_device *)base;
    char name[160];
    snprintf(name, sizeof name, "cuda:%d (%s)%s", d->options.index, d->g->profile.name,
             d->sender ? " for prompts, with weights of the CPU's layers" : "");
    device_say(base, name, d->plan, out);
    if (d->sender && sender_pinned(d->sender))
        buf_printf(out, "  pinned in the machine's memory as prompts first send it: %.2f GB\n",
                   1e-9 * (double)sender_pinned(d->sender));
    if (d->sender && sender_kept(d->sender))
        buf_printf(out, "  stays on the card: %.2f GB, until KV needs the memory (--gpu-copies)\n",
                   1e-9 * (double)sender_kept(d->sender));
    if (d->copies.bytes)
        buf_printf(out, "  decoded for prompts: %.2f of %.2f GB, until KV needs the memory (--gpu-copies)\n",
                   1e-9 * (double)copies_bytes(&d->copies), 1e-9 * (double)d->copies.bytes);
    if (d->weights.converted) {
        buf_printf(out, "  decoded to F16 at load, as there is no kernel for the type:");
        for (uint32_t t = 0; t < DTYPE_MOST; t++)
            if (d->weights.decoded[t])
                buf_printf(out, " %u of %s", d->weights.decoded[t], dtype_get(t)->name);
        buf_char(out, '\n');
    }
}

static bool cuda_warm(struct device *base)
{
    return exec_warm(self(base));
}

static uint32_t cuda_take_kernels(struct device *base, struct device_kernel *out, uint32_t most)
{
    return timing_take(self(base)->g, out, most);
}

static void cuda_close(struct device *base)
{
    struct cuda_device *d = self(base);
    struct gpu *g = d->g;
    struct err none = {0};
    if (g) {
        gpu_enter(g, &none);
        g->cu->stream_sync(g->stream);
        sender_close(d->sender);
        nccl_close(d->nccl);
        unpin(d);
        if (d->passed)
            g->cu->event_destroy(d->passed);
        cache_free(&d->cache, g);
        blas_close(d->replay.blas);
        gpu_pinned_free(g, d->meta_host);
        gpu_pinned_free(g, d->at.results);
        gpu_pinned_free(g, d->mirror);
        gpu_pinned_free(g, d->picked);
        gpu_free(g, d->meta_device, d->meta_bytes);
        gpu_free(g, d->scratch, d->scratch_bytes);
        copies_close(&d->copies);
        kv_memory_close(&d->state_memory, g);
        for (uint32_t i = 0; i < d->kv_groups; i++)
            kv_memory_close(&d->kv_memory[i], g);
        upload_free(&d->weights);
        gpu_close(g);
    }
    mem_free(d->at.buffer);
    mem_free(d);
}

static const struct device_ops ops = {.name = "cuda",
                                      .ahead = true,
                                      .refuses = lower_refuses,
                                      .load = cuda_load,
                                      .need = cuda_need,
                                      .prepare = cuda_prepare,
                                      .run = cuda_run,
                                      .results = cuda_results,
                                      .picks = cuda_picks,
                                      .read_rows = cuda_read_rows,
                                      .write_rows = cuda_write_rows,
                                      .take_rows = cuda_take_rows,
                                      .meet = cuda_meet,
                                      .sum_rows = cuda_sum_rows,
                                      .pin = cuda_pin,
                                      .back = cuda_back,
                                      .back_bytes = cuda_back_bytes,
                                      .copy_pages = cuda_copy_pages,
                                      .page_bytes = cuda_page_bytes,
                                      .read_page = cuda_read_page,
                                      .write_page = cuda_write_page,
                                      .state_bytes = cuda_state_bytes,
                                      .read_state = cuda_read_state,
                                      .write_state = cuda_write_state,
                                      .memory = cuda_memory,
                                      .describe = cuda_describe,
                                      .warm = cuda_warm,
                                      .take_kernels = cuda_take_kernels,
                                      .close = cuda_close};

uint32_t cuda_head_dim(uint32_t dim)
{
    return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : dim <= 256 ? 256 : dim;
}

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
    copies_init(&d->copies, d->g);
    *out = &d->base;
    return 0;
}
