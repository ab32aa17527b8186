#include "device/split.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/size.h"

#include <stdio.h>

enum { SPLIT_PARTS = 2 };

/* Operations [first, first + count) of one device's plan, which are [whole, ...) of the plan that is split. */
struct segment {
    uint32_t device, first, count, whole;
    uint32_t crossing, crossings; /* what passes to it beforehand */
};

struct split {
    struct device base;
    struct device_ops ops; /* those that the device of the results has */
    char name[32];         /* "cuda+cpu" */
    struct device *part[SPLIT_PARTS];
    const struct weights *source;
    void (*progress)(void *, double);
    void *arg;
    /* of prepare */
    const struct plan *whole;
    struct plan plan[SPLIT_PARTS];
    struct weights weights[SPLIT_PARTS];
    struct segment *segment;
    uint32_t *crossing; /* (crossings): buffers */
    uint32_t segments, crossings;
    uint32_t results; /* the device of the last operation */
    float *host;      /* (max_rows, the widest buffer that crosses) */
};

static struct split *self(struct device *d)
{
    return (struct split *)d;
}

static int split_load(struct device *d, const struct weights *w, void (*progress)(void *, double), void *arg,
                      struct err *e)
{
    (void)e; /* the plan decides which device gets a weight: they are loaded in prepare */
    self(d)->source = w;
    self(d)->progress = progress;
    self(d)->arg = arg;
    return 0;
}

/* ---- prepare ---- */

static int split_check(const struct plan *p, struct err *e)
{
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t layer = plan_kv_layer(&p->ops[i]);
        if (p->ops[i].device >= SPLIT_PARTS)
            return err_set(e, ERR_USAGE, "operation %u is for device %u of %d", i, p->ops[i].device,
                           SPLIT_PARTS);
        uint32_t chooser = plan_chooser(p, i);
        if (chooser != UINT32_MAX && p->ops[chooser].device != p->ops[i].device)
            return err_set(e, ERR_USAGE,
                           "operation %u would be on another device than the choice of its keys", i);
        for (uint32_t k = 0; layer != UINT32_MAX && k < i; k++)
            if (plan_kv_layer(&p->ops[k]) == layer && p->ops[k].device != p->ops[i].device)
                return err_set(e, ERR_USAGE,
                               "the keys of layer %u would be on another device than its attention", layer);
    }
    return 0;
}

/* Segments in order, without their crossings. */
static void split_segments(struct split *d, const struct plan *p)
{
    uint32_t done[SPLIT_PARTS] = {0};
    d->segments = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t on = p->ops[i].device;
        if (!i || on != p->ops[i - 1].device)
            d->segment[d->segments++] = (struct segment){.device = on, .first = done[on], .whole = i};
        d->segment[d->segments - 1].count++;
        done[on]++;
        if (p->ops[i].kind == OP_LOGITS)
            d->results = on;
    }
}

/* Whether some operation touches columns of a buffer from the middle on: then a write may leave others as they were. */
static bool split_by_columns(const struct plan *p, uint32_t buffer)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct op_io io = plan_io(&p->ops[i]);
        if (io.out.buffer == buffer && io.out.col)
            return true;
        for (int k = 0; k < IO_READS; k++)
            if (io.read[k].buffer == buffer && io.read[k].col)
                return true;
    }
    return false;
}

/* The buffers that a segment reads and has not got. have: (buffers) bits of the devices that hold the last version. */
static void split_cross(struct split *d, const struct plan *p, struct segment *s, uint8_t *have)
{
    uint8_t own = (uint8_t)(1u << s->device);
    s->crossing = d->crossings;
    for (uint32_t i = s->whole; i < s->whole + s->count; i++) {
        struct op_io io = plan_io(&p->ops[i]);
        for (int k = 0; k <= IO_READS; k++) {
            uint32_t read = k < IO_READS                         ? io.read[k].buffer
                            : split_by_columns(p, io.out.buffer) ? io.out.buffer
                                                                 : 0;
            if (read && have[read] && !(have[read] & own)) {
                d->crossing[d->crossings++] = read;
                have[read] |= own;
            }
        }
        if (io.out.buffer)
            have[io.out.buffer] = own;
    }
    s->crossings = d->crossings - s->crossing;
}

static int split_route(struct split *d, const struct plan *p, uint32_t rows, struct err *e)
{
    size_t widest = 1, most;
    uint8_t *have = mem_zalloc(p->buffers + 1, sizeof *have);
    d->segment = mem_alloc(p->count, sizeof *d->segment);
    d->crossing = size_mul(p->count, IO_READS + 1, &most) ? mem_alloc(most, sizeof *d->crossing) : NULL;
    if (!have || !d->segment || !d->crossing) {
        mem_free(have);
        return err_memory(e, "the parts of the plan", p->count * sizeof *d->segment);
    }
    split_segments(d, p);
    d->crossings = 0;
    for (uint32_t i = 0; i < d->segments; i++)
        split_cross(d, p, &d->segment[i], have);
    mem_free(have);
    for (uint32_t i = 0; i < d->crossings; i++)
        widest = size_max(widest, p->width[d->crossing[i]]);
    d->host = size_mul(rows, widest, &most) ? mem_alloc(most, sizeof *d->host) : NULL;
    return d->host ? 0 : err_memory(e, "what passes between devices", rows * widest * sizeof *d->host);
}

static void split_drop(struct split *d)
{
    for (uint32_t i = 0; i < SPLIT_PARTS; i++) {
        plan_free(&d->plan[i]);
        weights_free(&d->weights[i]);
    }
    mem_free(d->segment);
    mem_free(d->crossing);
    mem_free(d->host);
    d->segment = NULL;
    d->crossing = NULL;
    d->host = NULL;
    d->whole = NULL;
}

static const int32_t *split_picks(struct device *device, struct err *e)
{
    struct device *part = self(device)->part[self(device)->results];
    return part->ops->picks(part, e);
}

static int split_prepare(struct device *device, const struct plan *p, const struct kv_config *kv,
                         uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct split *d = self(device);
    split_drop(d);
    if (!d->source)
        return err_set(e, ERR_USAGE, "the device has no weights yet");
    if (plan_check(p, d->source, e) || split_check(p, e) || split_route(d, p, max_rows, e))
        return -1;
    for (uint32_t i = 0; i < SPLIT_PARTS; i++) {
        const struct device_ops *ops = d->part[i]->ops;
        if (plan_cut(p, d->source, i, &d->plan[i], &d->weights[i], e) ||
            ops->load(d->part[i], &d->weights[i], i ? NULL : d->progress, d->arg, e) ||
            ops->prepare(d->part[i], &d->plan[i], kv, max_rows, max_seqs, max_outs, e))
            return -1;
    }
    const struct device_ops *last = d->part[d->results]->ops;
    d->ops.picks = last->picks ? split_picks : NULL;
    d->ops.ahead = last->ahead;
    d->whole = p;
    return 0;
}

/* ---- a step ---- */

static int split_pass(struct split *d, const struct segment *s, uint32_t rows, struct err *e)
{
    struct device *from = d->part[!s->device], *to = d->part[s->device];
    for (uint32_t i = s->crossing; i < s->crossing + s->crossings; i++) {
        uint32_t buffer = d->crossing[i];
        if (from->ops->read_rows(from, buffer, rows, d->host, e) ||
            to->ops->write_rows(to, buffer, rows, d->host, e))
            return -1;
    }
    return 0;
}

static int split_run(struct device *device, const struct plan *p, const struct step *s, struct err *e)
{
    struct split *d = self(device);
    if (!d->whole || p != d->whole)
        return err_set(e, ERR_USAGE, "the device was not prepared for this plan");
    for (uint32_t i = 0; i < d->segments; i++) {
        const struct segment *g = &d->segment[i];
        struct device *part = d->part[g->device];
        struct step step = *s;
        step.from = g->first;
        step.to = g->first + g->count;
        part->seconds = d->base.seconds ? d->base.seconds + g->whole : NULL;
        if (split_pass(d, g, s->rows, e) || part->ops->run(part, &d->plan[g->device], &step, e))
            return -1;
    }
    return 0;
}

static const float *split_results(struct device *device, struct err *e)
{
    struct device *part = self(device)->part[self(device)->results];
    return part->ops->results(part, e);
}

/* ---- pages: the main device's part, then the rest's ---- */

static int split_back(struct device *device, uint32_t group, uint32_t pages, struct err *e)
{
    struct device *const *part = self(device)->part; /* only the main device can be short of it */
    return part[0]->ops->back(part[0], group, pages, e) || part[1]->ops->back(part[1], group, pages, e) ? -1
                                                                                                        : 0;
}

static uint64_t split_back_bytes(const struct device *device, uint32_t group, uint32_t pages)
{
    const struct split *d = (const struct split *)device;
    return d->part[0]->ops->back_bytes(d->part[0], group, pages) +
           d->part[1]->ops->back_bytes(d->part[1], group, pages);
}

static int split_copy_pages(struct device *device, uint32_t group, const int32_t *from, const int32_t *to,
                            uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < SPLIT_PARTS; i++) {
        struct device *part = self(device)->part[i];
        if (part->ops->copy_pages(part, group, from, to, n, e))
            return -1;
    }
    return 0;
}

static size_t split_page_bytes(const struct device *device, uint32_t group)
{
    const struct split *d = (const struct split *)device;
    return d->part[0]->ops->page_bytes(d->part[0], group) + d->part[1]->ops->page_bytes(d->part[1], group);
}

static int split_read_page(struct device *device, uint32_t group, int32_t page, void *host, struct err *e)
{
    struct device *const *part = self(device)->part;
    uint8_t *rest = (uint8_t *)host + part[0]->ops->page_bytes(part[0], group);
    return part[0]->ops->read_page(part[0], group, page, host, e) ||
                   part[1]->ops->read_page(part[1], group, page, rest, e)
               ? -1
               : 0;
}

static int split_write_page(struct device *device, uint32_t group, int32_t page, const void *host,
                            struct err *e)
{
    struct device *const *part = self(device)->part;
    const uint8_t *rest = (const uint8_t *)host + part[0]->ops->page_bytes(part[0], group);
    return part[0]->ops->write_page(part[0], group, page, host, e) ||
                   part[1]->ops->write_page(part[1], group, page, rest, e)
               ? -1
               : 0;
}

static size_t part_state_bytes(const struct split *d, uint32_t i)
{
    return d->plan[i].state_values ? d->part[i]->ops->state_bytes(d->part[i]) : 0;
}

static size_t split_state_bytes(const struct device *device)
{
    const struct split *d = (const struct split *)device;
    return part_state_bytes(d, 0) + part_state_bytes(d, 1);
}

static int split_read_state(struct device *device, int32_t slot, void *host, struct err *e)
{
    const struct split *d = self(device);
    uint8_t *to = host;
    for (uint32_t i = 0; i < SPLIT_PARTS; to += part_state_bytes(d, i++))
        if (d->plan[i].state_values && d->part[i]->ops->read_state(d->part[i], slot, to, e))
            return -1;
    return 0;
}

static int split_write_state(struct device *device, int32_t slot, const void *host, struct err *e)
{
    const struct split *d = self(device);
    const uint8_t *from = host;
    for (uint32_t i = 0; i < SPLIT_PARTS; from += part_state_bytes(d, i++))
        if (d->plan[i].state_values && d->part[i]->ops->write_state(d->part[i], slot, from, e))
            return -1;
    return 0;
}

/* ---- the rest ---- */

static void split_memory(const struct device *device, struct device_memory *m)
{
    const struct split *d = (const struct split *)device;
    struct device_memory rest;
    d->part[0]->ops->memory(d->part[0], m);
    d->part[1]->ops->memory(d->part[1], &rest);
    m->weights += rest.weights;
    m->kv += rest.kv;
    m->scratch += rest.scratch;
}

static void split_describe(const struct device *device, struct buf *out)
{
    const struct split *d = (const struct split *)device;
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        d->part[i]->ops->describe(d->part[i], out);
}

/* Those of the main device; the CPU has none to name. */
static uint32_t split_take_kernels(struct device *device, struct device_kernel *out, uint32_t most)
{
    struct device *main = self(device)->part[0];
    return main->ops->take_kernels ? main->ops->take_kernels(main, out, most) : 0;
}

static void split_close(struct device *device)
{
    struct split *d = self(device);
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        d->part[i]->ops->close(d->part[i]);
    split_drop(d);
    mem_free(d);
}

int split_open(struct device **out, struct device *main, struct device *rest, struct err *e)
{
    static const struct device_ops ops = {.load = split_load,
                                          .prepare = split_prepare,
                                          .run = split_run,
                                          .results = split_results,
                                          .back = split_back,
                                          .back_bytes = split_back_bytes,
                                          .copy_pages = split_copy_pages,
                                          .page_bytes = split_page_bytes,
                                          .read_page = split_read_page,
                                          .write_page = split_write_page,
                                          .state_bytes = split_state_bytes,
                                          .read_state = split_read_state,
                                          .write_state = split_write_state,
                                          .memory = split_memory,
                                          .describe = split_describe,
                                          .take_kernels = split_take_kernels,
                                          .close = split_close};
    struct split *d = mem_zalloc(1, sizeof *d);
    *out = NULL;
    if (!d) {
        main->ops->close(main);
        rest->ops->close(rest);
        return err_memory(e, "a split device", sizeof *d);
    }
    d->ops = ops;
    snprintf(d->name, sizeof d->name, "%s+%s", main->ops->name, rest->ops->name);
    d->ops.name = d->name;
    d->base.ops = &d->ops;
    d->part[0] = main;
    d->part[1] = rest;
    *out = &d->base;
    return 0;
}
