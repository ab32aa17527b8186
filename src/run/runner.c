#include "run/runner.h"

#include "base/clock.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "device/split.h"
#include "run/ranks.h"
#include "run/seq_images.h"
#include "run/seq_state.h"

#include <string.h>

/* ---- how much KV ---- */

enum { POOL_LEAST = 2, POOL_MOST = 1 << 24 }; /* pages */
enum { POOL_STATES = 4 };                     /* slots of state take at most this part of the free memory */

/* Limits: tokens of a sequence, sequences, rows of a step. */
struct extent {
    uint32_t ctx, seqs, chunk;
};

static struct extent runner_extent(const struct runner_options *o)
{
    struct extent x = {.ctx = o->ctx, .seqs = o->seqs ? o->seqs : 1};
    uint64_t rows = (uint64_t)x.ctx * x.seqs; /* there are never more */
    x.chunk = o->chunk ? o->chunk : RUNNER_CHUNK;
    if (o->whole && x.chunk < o->whole + x.seqs - 1) /* beside a row of every other sequence */
        x.chunk = o->whole + x.seqs - 1;
    x.chunk = x.chunk < o->rows_least ? o->rows_least : x.chunk;
    x.chunk = x.chunk < rows ? x.chunk : (uint32_t)rows;
    return x;
}

static uint32_t pages_of(uint32_t tokens)
{
    return tokens / RUNNER_PAGE + (tokens % RUNNER_PAGE > 0);
}

/* Pages of a group that one sequence holds at most, with `rows` new rows: the window may begin and end within one. */
static uint32_t group_held(const struct kv_group *k, uint32_t ctx, uint32_t rows)
{
    uint64_t span = (uint64_t)k->window + RUNNER_BACK + rows;
    return k->window ? (uint32_t)size_min(pages_of(ctx), span / RUNNER_PAGE + 3) : pages_of(ctx);
}

/* Pages for all sequences. */
static uint64_t extent_pages(const struct extent *x)
{
    return (uint64_t)x->seqs * pages_of(x->ctx);
}

/* Pages of a group where there are `all`. With a window: what the sequences hold in a step, and as much again
 * for cached prefixes. */
static uint32_t group_pages(const struct kv_group *k, const struct extent *x, uint64_t all)
{
    uint64_t held = 2 * (uint64_t)x->seqs * group_held(k, x->ctx, 0) + pages_of(x->chunk);
    return (uint32_t)(k->window ? size_min(all, held) : all);
}

/* Of a token, at most: a CPU has a float beside every K and V that is kept as F16 (device/cpu/kv.c). */
static uint64_t group_bytes(const struct kv_group *k, uint32_t kv_type)
{
    const struct dtype_info *t = dtype_get(kv_type);
    uint64_t heads = (uint64_t)k->layers * k->kv_heads, values = heads * (k->k_dim + k->v_dim);
    uint64_t floats = kv_type == DTYPE_F16 ? 2 * heads * sizeof(float) : 0;
    return t ? values * t->block_bytes / t->block_values + floats : 0;
}

uint64_t runner_state_bytes(const struct plan *plan)
{
    return plan->state_values * sizeof(float);
}

/* Slots of state where this many bytes are free (0 = no limit), without slot 0. A sequence writes to a second slot
 * while it shares the first one with the prefix tree. */
static uint32_t runner_slots(const struct plan *plan, const struct runner_options *o, uint64_t bytes)
{
    const struct extent x = runner_extent(o);
    uint64_t each = runner_state_bytes(plan), one = x.seqs,
             all = one + (o->snapshots ? x.seqs + o->snapshots : 0);
    if (!each)
        return 0;
    if (o->state_bytes)
        return (uint32_t)size_max(size_min(o->state_bytes / each, POOL_MOST), one + 1);
    uint64_t fit = bytes ? bytes / POOL_STATES / each : all;
    return (uint32_t)size_min(all, size_max(fit, o->snapshots ? one + 1 : one));
}

uint64_t runner_kv_bytes(const struct plan *plan, const struct runner_options *o, uint32_t pages)
{
    const struct extent x = runner_extent(o);
    uint64_t all = pages ? pages : extent_pages(&x);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < plan->groups; g++)
        bytes += group_bytes(&plan->group[g], o->device_options.exact ? DTYPE_F32 : o->kv_type) *
                 group_pages(&plan->group[g], &x, all) * RUNNER_PAGE;
    return bytes;
}

uint32_t runner_pages_least(const struct runner_options *o)
{
    return pages_of(o->ctx);
}

/* The most pages, up to `most`, that fit into `bytes`. */
static uint32_t runner_pages_in(const struct plan *plan, const struct runner_options *o, uint64_t bytes,
                                uint32_t most)
{
    uint32_t fit = 0, over = most + 1;
    for (uint32_t n = most; fit + 1 < over; n = fit + (over - fit) / 2)
        *(runner_kv_bytes(plan, o, n) <= bytes ? &fit : &over) = n;
    return fit;
}

/* The number of pages where this many bytes are free (0 = no limit). An explicit size is always granted;
 * pages beyond what the sequences need hold cached prefixes. Otherwise there is room for at least one full
 * sequence. */
static uint32_t runner_pool(const struct plan *plan, const struct runner_options *o, uint64_t bytes)
{
    const struct extent x = runner_extent(o);
    uint32_t all = (uint32_t)size_min(extent_pages(&x), POOL_MOST), one = runner_pages_least(o);
    if (o->pages || !plan->groups)
        return o->pages ? o->pages : all;
    if (o->kv_bytes)
        return size_max(runner_pages_in(plan, o, o->kv_bytes, POOL_MOST), POOL_LEAST);
    uint32_t fit = bytes ? runner_pages_in(plan, o, bytes, all) : all;
    return fit > one ? fit : one;
}

uint64_t runner_kv_tokens(uint32_t window, uint32_t ctx, uint32_t seqs)
{
    struct extent x = runner_extent(&(struct runner_options){.ctx = ctx, .seqs = seqs});
    return (uint64_t)group_pages(&(struct kv_group){.window = window}, &x, extent_pages(&x)) * RUNNER_PAGE;
}

uint32_t runner_held_most(const struct runner *r, uint32_t group)
{
    return group_held(&r->plan->group[group], r->ctx, r->chunk);
}

/* ---- opening ---- */

/* Takes the arrays of the step: sizes are products of checked options, far from overflow. */
static int runner_arrays(struct runner *r, struct err *e)
{
    size_t cells = (size_t)r->most_seqs * r->table_width * size_max(r->plan->groups, 1);
    r->ids = mem_alloc(r->chunk, sizeof *r->ids);
    r->pos = mem_alloc(r->chunk, sizeof *r->pos);
    r->out = mem_alloc(r->most_outs, sizeof *r->out);
    r->tables = mem_alloc(cells, sizeof *r->tables);
    r->step_seq = mem_alloc(r->most_seqs, sizeof *r->step_seq);
    r->lora = mem_zalloc(r->most_seqs, sizeof *r->lora);
    r->pick = mem_alloc(r->most_outs, sizeof *r->pick);
    r->state_in = mem_alloc(r->most_seqs, sizeof *r->state_in);
    r->state_out = mem_alloc(r->chunk, sizeof *r->state_out);
    if (!r->ids || !r->pos || !r->out || !r->tables || !r->step_seq || !r->lora || !r->pick || !r->state_in ||
        !r->state_out)
        return err_memory(e, "a step's tables", cells * sizeof *r->tables);
    return r->plan->given ? step_take_images(r, e) : 0;
}

/* Loads weights onto the open device, and prepares its scratch and KV. */
static int runner_fill_device(struct runner *r, const struct weights *weights, const struct kv_config *kv,
                              const struct runner_options *o, struct err *e)
{
    const struct device_ops *ops = r->device->ops;
    if (ops->load(r->device, weights, o->progress, o->progress_arg, e))
        return -1;
    return ops->prepare(r->device, r->plan, kv, r->chunk, r->most_seqs, r->most_outs, e);
}

struct op_bytes {
    const struct weights *weights;
    uint64_t sum; /* of an operation */
};
enum { RUNNER_STREAMED = 4 }; /* operations whose weights are on the card at once, where these are large */
#define RUNNER_STREAM_BYTES ((uint64_t)1 << 30) /* and what they take where they are small */

static void add_bytes(void *arg, weight_id *id)
{
    struct op_bytes *b = arg;
    b->sum += weight_bytes(&b->weights->all[*id]);
}

uint64_t runner_pin_most(const struct runner_pins *p)
{
    const uint64_t sum = p->weights + p->weights / 8, /* whole pages, and those between */
        need = (p->repacked ? 2 : 1) * p->weights + p->kv + p->pinned + p->memory.total / 8;
    return need < p->memory.available ? sum : 0;
}

/* Of all models of this process: the system counts pinned pages of files as memory that can be had. */
static _Atomic uint64_t runner_pinned;

/* What may be pinned of the weights of the CPU, which has what KV is not on the card. */
static void runner_pin(struct runner *r, const struct weights *weights, const struct device_shape *shape,
                       bool no_repack)
{
    struct op_bytes rest = {.weights = weights};
    struct device_memory all;
    struct err none = {0};
    struct runner_pins pins = {.repacked = !no_repack, .pinned = runner_pinned};
    if (r->device->ops->need(r->device, r->plan, weights, shape, &all, &none))
        return;
    for (uint32_t i = 0; i < r->plan->count; i++)
        if (r->plan->ops[i].device)
            plan_each_weight(&r->plan->ops[i], add_bytes, &rest);
    pins.weights = rest.sum;
    pins.kv = all.kv - size_min(all.kv, r->placement.need.kv);
    memory_read(&pins.memory);
    r->pinned = runner_pin_most(&pins);
    runner_pinned += r->pinned;
}

/* Opens the CPU beside a GPU, for the layers that are not on the GPU. Activations are rounded by the size of
 * the whole model. */
static int runner_split(struct runner *r, const struct weights *weights, const struct device_shape *shape,
                        const struct runner_options *o, struct err *e)
{
    struct device_options rest = o->device_options, sent = o->device_options;
    struct split_devices of = {.main = r->device, .stream_rows = o->stream_rows};
    struct err none = {0};
    if (!rest.activations && !cpu_small(weights))
        rest.activations = 8;
    if (cpu_open(&of.rest, &rest, e))
        return -1;
    sent.streamed = true;
    if (!o->no_pin && !o->device_options.exact) /* then nothing is sent */
        runner_pin(r, weights, shape, rest.no_repack);
    sent.pin_most = r->pinned;
    if (sent.memory || o->no_keep) /* what it keeps would be within no limit */
        sent.copies = 0;
    sent.memory = 0;
    sent.fp8 = false;
    if (!o->device_options.exact && cuda_open(&of.stream, &sent, &none))
        of.stream = NULL;
    r->device = NULL; /* the split owns all of them now */
    if (split_open(&r->device, &of, e))
        return -1;
    if (o->sent_fixed)
        split_fix_border(r->device, o->sent_experts);
    return 0;
}

/* Sets the number of pages and of slots of state. */
static int runner_pages(struct runner *r, const struct runner_options *o, uint64_t bytes,
                        struct kv_config *kv, struct err *e)
{
    const struct extent x = runner_extent(o);
    uint32_t slots = runner_slots(r->plan, o, bytes);
    uint64_t taken = slots * runner_state_bytes(r->plan);
    *kv = (struct kv_config){.page_tokens = RUNNER_PAGE, .type = r->kv_type, .states = slots ? slots + 1 : 0};
    kv->states_least = o->kv_whole ? kv->states : (uint32_t)size_min(kv->states, RUNNER_STATES_LEAST);
    r->states_least = kv->states_least;
    pages_close(&r->states);
    if (slots && pages_open(&r->states, kv->states, kv->states_least, e))
        return -1;
    r->pool = runner_pool(r->plan, o, bytes > taken ? bytes - taken : bytes > 0);
    for (uint32_t g = 0; g < r->plan->groups; g++) {
        const struct kv_group *k = &r->plan->group[g];
        kv->pages[g] = 1 + group_pages(k, &x, r->pool);
        kv->least[g] = 1 + (uint32_t)size_min(kv->pages[g] - 1, group_held(k, x.ctx, x.chunk));
        kv->least[g] = o->kv_whole ? kv->pages[g] : kv->least[g];
        r->least[g] = kv->least[g];
        pages_close(&r->pages[g]);
        if (pages_open(&r->pages[g], kv->pages[g], kv->least[g], e))
            return -1;
    }
    return 0;
}

/* The same on the open device, by its own need of memory. Where all of the model fits on a GPU, but not with
 * pages for every sequence: as many as the card could hold, rather than fewer layers. */
static int runner_fit_pages(struct runner *r, const struct weights *weights, const struct runner_options *o,
                            bool gpu, struct kv_config *kv, struct err *e)
{
    const struct device_shape shape = {kv, r->chunk, r->most_seqs, r->most_outs};
    bool whole = gpu && o->gpu != PLACE_SOME && !o->cpu_experts;
    struct device_memory m;
    if (runner_pages(r, o, gpu ? 0 : o->kv_free, kv, e))
        return -1;
    if (o->pages || o->kv_bytes || !whole)
        return 0;
    if (r->device->ops->need(r->device, r->plan, weights, &shape, &m, e))
        return -1;
    uint64_t fixed = m.weights + m.scratch, now = place_room(&m, o->device_options.memory);
    struct runner_options less = *o;
    if (r->plan->states && !o->state_bytes &&
        fixed + m.kv_least > now) { /* fewer snapshots, rather than layers */
        less.state_bytes = now > fixed + POOL_STATES ? (now - fixed) / POOL_STATES : 1;
        less.state_bytes = size_min(less.state_bytes, (r->states.count - 1) * runner_state_bytes(r->plan));
        o = &less;
    }
    if (m.kv_least < m.kv) /* pages take memory as sequences grow: what others hold now may be free by then */
        m.free = m.total;
    uint64_t room = place_room(&m, o->device_options.memory);
    uint64_t rest = fixed + runner_kv_bytes(r->plan, o, 1) + /* page 0 of every group, slot 0 */
                    runner_state_bytes(r->plan);
    return fixed + m.kv <= room && o != &less ? 0 : runner_pages(r, o, room > rest ? room - rest : 1, kv, e);
}

/* The rows of a step, and the options with them. */
static struct runner_options runner_sized(struct runner *r, const struct runner_options *o, uint32_t chunk)
{
    struct runner_options sized = *o;
    sized.chunk = o->chunk ? o->chunk : chunk;
    r->chunk = runner_extent(&sized).chunk;
    r->most_outs = o->outs ? o->outs : r->most_seqs;
    r->most_outs = r->most_outs < r->chunk ? r->most_outs : r->chunk;
    return sized;
}

/* What streaming weights of layers that do not fit takes (device/split.h): scratch, and room for some operations. Where that
 * is much of the card, the layers get it. */
static int runner_stream_bytes(const struct runner *r, struct plan *plan, const struct weights *weights,
                               const struct device_shape *shape, uint64_t *bytes, struct err *e)
{
    struct device_memory m;
    uint64_t largest = 0;
    if (r->device->ops->need(r->device, plan, weights, shape, &m, e))
        return -1;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct op_bytes b = {.weights = weights};
        if (plan->ops[i].kind != OP_EMBED && plan->ops[i].kind != OP_LOGITS)
            plan_each_weight(&plan->ops[i], add_bytes, &b);
        largest = b.sum > largest ? b.sum : largest;
    }
    *bytes = m.scratch + size_max(RUNNER_STREAMED * largest, RUNNER_STREAM_BYTES);
    *bytes = *bytes <= m.total / 8 ? *bytes : 0;
    return 0;
}

/* The rows of a step and the number of pages, on the open GPU. */
static int runner_fit_gpu(struct runner *r, const struct weights *weights, const struct runner_options *o,
                          struct runner_options *sized, struct kv_config *kv, struct err *e)
{
    struct device_memory m;
    *sized = runner_sized(r, o, RUNNER_CHUNK_ALONE);
    if (runner_fit_pages(r, weights, sized, true, kv, e))
        return -1;
    if (o->chunk || r->chunk <= RUNNER_CHUNK_GPU)
        return 0;
    const struct device_shape shape = {kv, r->chunk, r->most_seqs, r->most_outs};
    if (r->device->ops->need(r->device, r->plan, weights, &shape, &m, e))
        return -1;
    if (m.scratch <= m.total / RUNNER_ALONE_PART)
        return 0;
    *sized = runner_sized(r, o, RUNNER_CHUNK_GPU);
    return runner_fit_pages(r, weights, sized, true, kv, e);
}

/* Sets the size of steps and of KV, and which layers the open GPU gets. */
static int runner_place(struct runner *r, struct plan *plan, const struct weights *weights,
                        const struct runner_options *given, struct runner_options *o, struct kv_config *kv,
                        struct err *e)
{
    if (runner_fit_gpu(r, weights, given, o, kv, e))
        return -1;
    struct place_request want = {.plan = plan,
                                 .weights = weights,
                                 .main = r->device,
                                 .shape = {kv, r->chunk, r->most_seqs, r->most_outs},
                                 .how = o->gpu,
                                 .layers = o->gpu_layers,
                                 .experts_on_rest = o->cpu_experts,
                                 .memory = o->device_options.memory};
    return (o->gpu == PLACE_FIT && runner_stream_bytes(r, plan, weights, &want.shape, &want.spare, e)) ||
                   place_plan(&want, &r->placement, e)
               ? -1
               : 0;
}

/* How much memory is missing for all that is for the GPU, where it could fit if others held none; else 0. */
static uint64_t runner_missing(const struct runner *r, const struct runner_options *o)
{
    struct device_memory m = o->gpu == PLACE_FIT ? r->placement.whole : r->placement.need;
    const uint64_t need = m.weights + m.scratch + m.kv_least, now = place_room(&m, o->device_options.memory);
    m.free = m.total;
    return now < need && need <= place_room(&m, o->device_options.memory) ? need - now : 0;
}

/* Whether others gave memory of the GPU back, so that more of the model may fit. */
static bool runner_make_room(const struct runner *r, const struct runner_options *o)
{
    const uint64_t missing = o->make_room ? runner_missing(r, o) : 0;
    return missing && o->make_room(o->make_room_arg, missing);
}

/* Loads the model onto the open GPU, as many layers as the options ask for and as fit. */
static int runner_fill_gpu(struct runner *r, struct plan *plan, const struct weights *weights,
                           const struct runner_options *given, struct err *e)
{
    struct runner_options sized;
    const struct runner_options *o = &sized;
    struct kv_config kv;
    if (given->device_options.deterministic)
        return err_set(e, ERR_USAGE, "--deterministic is for the CPU only: --device cpu");
    do {
        if (runner_place(r, plan, weights, given, &sized, &kv, e))
            return -1;
    } while (runner_make_room(r, given));
    const struct device_memory *m = &r->placement.whole;
    const struct device_shape shape = {&kv, r->chunk, r->most_seqs, r->most_outs};
    const uint64_t limit = o->device_options.memory;
    if (!r->placement.layers && o->gpu == PLACE_FIT) {
        err_set(e, ERR_RESOURCE,
                "not one layer fits: the model needs %.2f GB of GPU memory (weights %.2f, KV %.2f, scratch "
                "%.2f) and %.2f GB are free; a smaller --ctx helps, or --device cpu",
                1e-9 * (double)(m->weights + m->kv + m->scratch), 1e-9 * (double)m->weights,
                1e-9 * (double)m->kv, 1e-9 * (double)m->scratch,
                1e-9 * (double)(limit && limit < m->free ? limit : m->free));
        return runner_missing(r, given) ? err_crowded(e) : -1;
    }
    if (r->placement.rest && runner_split(r, weights, &shape, o, e))
        return -1;
    return runner_fill_device(r, weights, &kv, o, e);
}

static void runner_drop_device(struct runner *r)
{
    if (r->device)
        r->device->ops->close(r->device);
    r->device = NULL;
    runner_pinned -= r->pinned;
    r->pinned = 0;
}

/* Without a named device: the GPU, if there is one and at least a layer fits, else the CPU. */
static bool runner_on_gpu(struct runner *r, struct plan *plan, const struct weights *weights,
                          const struct runner_options *o)
{
    struct err why = {0};
    if (o->device_options.tier || cuda_open(&r->device, &o->device_options, &why))
        return false;
    if (!runner_fill_gpu(r, plan, weights, o, &why))
        return true;
    log_warn("the GPU is not used: %s", why.text);
    runner_drop_device(r);
    r->placement = (struct placement){0};
    return false;
}

/* In the process of a rank other than 0 (run/ranks.h) this fails without a reason once rank 0 has ended. */
static int runner_device(struct runner *r, struct plan *plan, const struct weights *weights,
                         const struct runner_options *o, struct err *e)
{
    struct kv_config kv;
    const bool ranks = ranks_wanted(&o->ranks), cards = ranks && ranks_on_gpu(o);
    bool cpu = (o->device && !strcmp(o->device, "cpu")) || (o->gpu == PLACE_SOME && !o->gpu_layers);
    r->kv_type = o->device_options.exact ? DTYPE_F32 : o->kv_type;
    r->device_options = o->device_options;
    if (!cpu && !ranks && o->device)
        return device_open(&r->device, o->device, &o->device_options, e) ||
                       runner_fill_gpu(r, plan, weights, o, e)
                   ? -1
                   : 0;
    if (!cpu && !ranks && runner_on_gpu(r, plan, weights, o))
        return 0;
    const struct runner_options sized = runner_sized(r, o, cards ? RUNNER_CHUNK_GPU : RUNNER_CHUNK);
    return (ranks ? ranks_open(&r->device, plan, weights, o, e) || !r->device
                  : cpu_open(&r->device, &o->device_options, e)) ||
                   runner_fit_pages(r, weights, &sized, cards, &kv, e) ||
                   runner_fill_device(r, weights, &kv, &sized, e)
               ? -1
               : 0;
}

int runner_open(struct runner **out, struct plan *plan, const struct weights *weights,
                const struct runner_options *o, struct err *e)
{
    *out = NULL;
    struct runner *r = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(e, "the runner", sizeof *r);
    const struct extent x = runner_extent(o);
    r->plan = plan;
    r->ctx = x.ctx;
    r->most_seqs = x.seqs;
    r->table_width = pages_of(r->ctx);
    if (runner_device(r, plan, weights, o, e) || runner_arrays(r, e)) {
        runner_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

void runner_close(struct runner *r)
{
    if (!r)
        return;
    runner_drop_device(r);
    for (uint32_t g = 0; g < r->plan->groups; g++)
        pages_close(&r->pages[g]);
    pages_close(&r->states);
    mem_free(r->state_in);
    mem_free(r->state_out);
    mem_free(r->ids);
    mem_free(r->pos);
    mem_free(r->out);
    mem_free(r->tables);
    mem_free(r->step_seq);
    step_free_images(r);
    mem_free(r->lora);
    mem_free(r->pick);
    mem_free(r);
}

/* ---- sequences ---- */

struct seq *seq_open(struct runner *r, struct err *e)
{
    if (r->seqs == r->most_seqs) {
        err_set(e, ERR_RESOURCE, "all %u sequences are in use", r->most_seqs);
        return NULL;
    }
    struct seq *s = mem_zalloc(1, sizeof *s);
    if (s) {
        s->runner = r;
        r->seqs++;
        bool whole = (s->ids = mem_alloc(r->ctx, sizeof *s->ids)) != NULL;
        for (uint32_t g = 0; g < r->plan->groups; g++)
            whole &= (s->table[g] = mem_zalloc(r->table_width, sizeof **s->table)) != NULL;
        if (whole)
            return s;
        seq_close(s);
    }
    err_memory(e, "a sequence", (uint64_t)r->ctx * sizeof(int32_t));
    return NULL;
}

void seq_close(struct seq *s)
{
    if (!s)
        return;
    seq_truncate(s, 0);
    for (uint32_t g = 0; g < s->runner->plan->groups; g++)
        mem_free(s->table[g]);
    mem_free(s->ids);
    s->runner->seqs--;
    mem_free(s);
}

static void seq_drop_page(struct seq *s, uint32_t g, uint32_t at)
{
    pages_drop(&s->runner->pages[g], s->table[g][at]);
    s->table[g][at] = 0;
}

/* Releases the pages after those of the first `keep` tokens, up to those of the first `len`. */
static void seq_drop_pages(struct seq *s, uint32_t keep, uint32_t len)
{
    for (uint32_t g = 0; g < s->runner->plan->groups; g++)
        for (uint32_t i = pages_of(len); i > pages_of(keep) && i > s->gone[g]; i--)
            seq_drop_page(s, g, i - 1);
}

void seq_truncate(struct seq *s, uint32_t len)
{
    if (len >= s->len)
        return;
    len = seq_drop_states(s, len);
    uint32_t keep = len < s->floor ? 0 : len;
    seq_drop_pages(s, keep, s->len);
    s->len = keep;
    if (s->mark.tokens > keep)
        s->mark = (struct seq_mark){0};
    if (keep)
        return;
    seq_drop_states(s, 0);
    s->floor = 0;
    memset(s->gone, 0, sizeof s->gone);
}

void seq_slide(struct seq *s, uint32_t floor)
{
    if (floor <= s->floor)
        return;
    for (uint32_t g = 0; g < s->runner->plan->groups; g++) {
        uint32_t window = s->runner->plan->group[g].window;
        /* the row at `floor` sees that many tokens, with itself */
        uint32_t unseen = window && floor + 1 > window ? (floor + 1 - window) / RUNNER_PAGE : 0;
        s->floor = s->gone[g] < unseen ? floor : s->floor;
        for (; s->gone[g] < unseen; s->gone[g]++)
            seq_drop_page(s, g, s->gone[g]);
    }
}

void seq_leave_behind(struct seq *s)
{
    if (s->len > RUNNER_BACK)
        seq_slide(s, s->len - RUNNER_BACK);
}

/* ---- memory of pages ---- */

#define RUNNER_RETRY 0.1 /* seconds after which memory is asked for again, once there was none */

/* Pages of a group, or slots of state. */
static struct pages *runner_pages_of(struct runner *r, uint32_t g)
{
    return g == GROUP_STATES ? &r->states : &r->pages[g];
}

uint64_t runner_held_bytes(const struct runner *r)
{
    uint64_t bytes = r->device->ops->back_bytes(r->device, GROUP_STATES, r->states.backed);
    for (uint32_t g = 0; g < r->plan->groups; g++)
        bytes += r->device->ops->back_bytes(r->device, g, r->pages[g].backed);
    return bytes;
}

/* Memory for the first `pages` pages of a group; false: there is not so much. */
static bool runner_back(struct runner *r, uint32_t g, uint32_t pages)
{
    const struct device_ops *ops = r->device->ops;
    struct pages *of = runner_pages_of(r, g);
    struct err why = {0};
    uint64_t held = runner_held_bytes(r), now = ops->back_bytes(r->device, g, of->backed),
             then = ops->back_bytes(r->device, g, pages);
    if (r->resize && !r->resize(r->resize_arg, held, held - now + then))
        return false;
    if (ops->back(r->device, g, pages, &why)) {
        log_debug("%s", why.text);
        if (r->resize)
            r->resize(r->resize_arg, held - now + then, held);
        return false;
    }
    pages_back(of, pages);
    return true;
}

/* An eighth more than is needed, where there is room, so that growing stays rare. */
static void runner_grow_group(struct runner *r, uint32_t g, uint32_t need)
{
    const struct pages *p = runner_pages_of(r, g);
    if (p->unused >= need || p->backed == p->count)
        return;
    uint32_t want = (uint32_t)size_min(p->count, (uint64_t)p->backed + need - p->unused),
             ample = (uint32_t)size_min(p->count, (uint64_t)want + p->backed / 8);
    const struct device_ops *ops = r->device->ops;
    const uint64_t more = ops->back_bytes(r->device, g, want) - ops->back_bytes(r->device, g, p->backed);
    const double now = clock_now();
    const bool again = now < r->grow_after;
    if (again && more >= r->refused)
        return;
    if ((!again && runner_back(r, g, ample)) || runner_back(r, g, want))
        return;
    r->refused = more;
    r->grow_after = again ? r->grow_after : now + RUNNER_RETRY;
}

void runner_grow(struct runner *r, const struct page_need *need)
{
    for (uint32_t g = 0; g < r->plan->groups; g++)
        runner_grow_group(r, g, need->of[g]);
    runner_grow_group(r, GROUP_STATES, need->states);
}

static void runner_shrink_group(struct runner *r, uint32_t g, uint32_t least_pages)
{
    const struct pages *p = runner_pages_of(r, g);
    uint32_t used = pages_last(p) + 1, keep = used > least_pages ? used : least_pages;
    if (keep < p->backed)
        runner_back(r, g, keep);
}

void runner_shrink(struct runner *r)
{
    for (uint32_t g = 0; g < r->plan->groups; g++)
        runner_shrink_group(r, g, r->least[g]);
    runner_shrink_group(r, GROUP_STATES, r->states_least);
}

uint32_t runner_states_free(const struct runner *r)
{
    const struct pages *p = &r->states;
    return p->unused + (clock_now() < r->grow_after ? 0 : p->count - p->backed);
}

int32_t runner_take_state(struct runner *r)
{
    runner_grow_group(r, GROUP_STATES, 1);
    return pages_take(&r->states);
}

/* A free page, with memory; 0: there is none. */
static int32_t runner_take_page(struct runner *r, uint32_t g)
{
    struct page_need one = {0};
    one.of[g] = 1;
    runner_grow(r, &one);
    return pages_take(&r->pages[g]);
}

static int runner_out_of_pages(const struct runner *r, uint32_t g, struct err *e)
{
    return err_set(e, ERR_RESOURCE, "out of KV pages: all %u are in use", r->pages[g].backed - 1);
}

/* Copies the page of the next token first, where it is shared and partly filled. */
static int seq_own_tail(struct seq *s, struct err *e)
{
    struct runner *r = s->runner;
    uint32_t at = s->len / RUNNER_PAGE;
    for (uint32_t g = 0; g < r->plan->groups && s->len % RUNNER_PAGE; g++) {
        int32_t shared = s->table[g][at];
        if (r->pages[g].refs[shared] == 1)
            continue;
        int32_t own = runner_take_page(r, g);
        if (!own)
            return runner_out_of_pages(r, g, e);
        if (r->device->ops->copy_pages(r->device, g, &shared, &own, 1, e)) {
            pages_drop(&r->pages[g], own);
            return -1;
        }
        pages_drop(&r->pages[g], shared);
        s->table[g][at] = own;
    }
    return 0;
}

/* Pages for positions up to len, in every group. */
static int seq_reserve(struct seq *s, uint32_t len, struct err *e)
{
    seq_leave_behind(s);
    if (seq_own_tail(s, e))
        return -1;
    for (uint32_t g = 0; g < s->runner->plan->groups; g++)
        for (uint32_t i = pages_of(s->len); i < pages_of(len); i++)
            if (!(s->table[g][i] = runner_take_page(s->runner, g)))
                return runner_out_of_pages(s->runner, g, e);
    return 0;
}

uint32_t seq_need(const struct seq *s, uint32_t n)
{
    const struct runner *r = s->runner;
    uint32_t need = pages_of(s->len + n) - pages_of(s->len), copies = 0;
    for (uint32_t g = 0; g < r->plan->groups && s->len % RUNNER_PAGE; g++)
        copies |= r->pages[g].refs[s->table[g][s->len / RUNNER_PAGE]] > 1;
    return need + copies;
}

/* ---- steps ---- */

static int runner_check(struct runner *r, const struct seq_rows *parts, uint32_t count, struct err *e)
{
    uint64_t rows = 0, outs = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct seq *s = parts[i].seq;
        rows += parts[i].n;
        outs += parts[i].outs;
        if (!parts[i].n || parts[i].outs > parts[i].n)
            return err_set(e, ERR_USAGE, "a part of a step has %u rows and wants %u results", parts[i].n,
                           parts[i].outs);
        if (r->plan->states && s->states + parts[i].back >= RUNNER_STATES)
            return err_set(e, ERR_USAGE, "a sequence has %u states; %u more do not fit", s->states,
                           parts[i].back + 1);
        if (parts[i].n > r->ctx - s->len)
            return err_set(e, ERR_RESOURCE,
                           "the context of %u tokens is too small by %u: %u are in it, %u more come", r->ctx,
                           parts[i].n - (r->ctx - s->len), s->len, parts[i].n);
    }
    if (count > r->most_seqs || rows > r->chunk || outs > r->most_outs)
        return err_set(e, ERR_RESOURCE,
                       "a step has %u sequences, %u rows and %u results; the most is %u, %u and %u", count,
                       (unsigned)rows, (unsigned)outs, r->most_seqs, r->chunk, r->most_outs);
    return 0;
}

/* Tables are only as wide as the longest sequence after the step: every step copies them to the device. */
static uint32_t runner_width(const struct seq_rows *parts, uint32_t count)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t len = parts[i].seq->len + parts[i].n;
        longest = len > longest ? len : longest;
    }
    return pages_of(longest);
}

static struct step runner_fill(struct runner *r, const struct seq_rows *parts, uint32_t count)
{
    struct step st = {.ids = r->ids,
                      .pos = r->pos,
                      .seq = r->step_seq,
                      .tables = r->tables,
                      .out = r->out,
                      .state_in = r->plan->states ? r->state_in : NULL,
                      .state_out = r->plan->states ? r->state_out : NULL,
                      .seqs = count,
                      .table_width = runner_width(parts, count)};
    for (uint32_t i = 0; i < count; i++) {
        const struct seq_rows *p = &parts[i];
        const struct seq_state *before = seq_last_state(p->seq);
        r->lora[i] = p->seq->lora;
        r->state_in[i] = before ? before->slot : 0;
        st.lora = p->seq->lora.count ? r->lora : st.lora;
        r->step_seq[i] = (struct step_seq){.first = st.rows, .rows = p->n, .length = p->seq->len + p->n};
        for (uint32_t k = 0; k < p->n; k++) {
            r->ids[st.rows + k] = p->ids[k];
            r->pos[st.rows + k] = (int32_t)(p->seq->len + k);
        }
        for (uint32_t k = 0; k < p->outs; k++) {
            r->pick[st.outs] = p->pick ? p->pick[k] : (struct step_pick){0};
            r->out[st.outs++] = (int32_t)(st.rows + p->n - p->outs + k);
        }
        if (p->pick)
            st.pick = r->pick;
        if (r->plan->given)
            part_fill_images(p, &st);
        for (uint32_t g = 0; g < r->plan->groups; g++)
            memcpy(r->tables + ((size_t)g * count + i) * st.table_width, p->seq->table[g],
                   st.table_width * sizeof *r->tables);
        st.rows += p->n;
    }
    return st;
}

static int runner_intact(const struct runner *r, struct err *e)
{
    return r->intact ? r->intact(r->intact_arg, e) : 0;
}

/* Takes pages and slots of state for the step: for snapshots, too, where some are left. */
static int runner_reserve(struct runner *r, const struct seq_rows *parts, uint32_t count, struct err *e)
{
    int32_t *out = r->state_out;
    int failed = 0;
    memset(r->state_out, 0, r->chunk * sizeof *r->state_out);
    for (uint32_t i = 0; i < count && !failed; out += parts[i++].n)
        failed = seq_reserve(parts[i].seq, parts[i].seq->len + parts[i].n, e) ||
                 part_take_states(&parts[i], out, e);
    out = r->state_out;
    for (uint32_t i = 0; i < count && !failed; out += parts[i++].n)
        part_take_snapshots(&parts[i], out);
    return failed;
}

int runner_step(struct runner *r, const struct seq_rows *parts, uint32_t count, struct err *e)
{
    if (runner_check(r, parts, count, e))
        return -1;
    int failed = runner_reserve(r, parts, count, e);
    bool ran = !failed;
    if (ran) {
        struct step st = runner_fill(r, parts, count);
        r->began = clock_now();
        if (r->watch)
            r->watch(r->watch_arg, &st);
        failed = step_give_images(r, &st, e) || r->device->ops->run(r->device, r->plan, &st, e) ||
                 runner_intact(r, e);
    }
    const int32_t *out = r->state_out;
    for (uint32_t i = 0; i < count; out += parts[i++].n) {
        struct seq *s = parts[i].seq;
        if (failed) {
            seq_drop_pages(s, s->len, s->len + parts[i].n);
            part_return_states(&parts[i], out, ran);
            continue;
        }
        part_keep_states(&parts[i], out);
        memcpy(s->ids + s->len, parts[i].ids, parts[i].n * sizeof *s->ids);
        s->len += parts[i].n;
    }
    return failed ? -1 : 0;
}

const float *runner_results(struct runner *r, struct err *e)
{
    const float *results = r->device->ops->results(r->device, e);
    return results && r->device->ops->ahead && runner_intact(r, e) ? NULL : results;
}

bool runner_can_pick(const struct runner *r)
{
    return r->device->ops->picks != NULL;
}

const int32_t *runner_picks(struct runner *r, struct err *e)
{
    const int32_t *picks = r->device->ops->picks(r->device, e);
    return picks && r->device->ops->ahead && runner_intact(r, e) ? NULL : picks;
}

int seq_feed(struct seq *s, const int32_t *ids, uint32_t n, struct err *e)
{
    struct runner *r = s->runner;
    if (n > r->ctx - s->len)
        return err_set(e, ERR_RESOURCE, "%u tokens do not fit into the context of %u: %u too many",
                       s->len + n, r->ctx, s->len + n - r->ctx);
    for (uint32_t at = 0; at < n;) {
        uint32_t part = seq_whole(s, ids + at, n - at, r->chunk);
        if (!part)
            return err_set(e, ERR_RESOURCE, "an image has more tokens than a step has rows (%u)", r->chunk);
        struct seq_rows rows = {.seq = s, .ids = ids + at, .n = part, .outs = at + part == n};
        if (runner_step(r, &rows, 1, e))
            return -1;
        at += part;
    }
    return 0;
}
