#include "device/split.h"
#include "device/border.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

enum { SPLIT_MAIN, SPLIT_REST, SPLIT_STREAM, SPLIT_PARTS };

/* A buffer that passes to a segment's device beforehand. */
struct crossing {
    uint32_t buffer, from;
};

/* Operations [first, first + count) of one device's plan. */
struct segment {
    uint32_t device, first, count;
    uint32_t at;                  /* of the route's operations */
    uint32_t crossing, crossings; /* what passes to it beforehand */
};

/* An order in which all devices together run the plan. */
struct split_way {
    uint32_t *op; /* (count): operations of all.plan */
    uint32_t count;
    struct segment *segment;
    struct crossing *crossing;
    uint32_t segments, crossings;
    /* of the fastest step so far: of a row on the rest, of a step with streamed weights; 0 = not known. Steps that divide
     * experts and those that send all of them have one figure, in the way that divides. */
    double seconds;
};

struct split {
    struct device base;
    struct device_ops ops;            /* those that the device of the results has */
    char name[32];                    /* "cuda+cpu" */
    struct device *part[SPLIT_PARTS]; /* SPLIT_STREAM may be NULL */
    const struct weights *source;
    void (*progress)(void *, double);
    void *arg;
    /* of prepare */
    const struct plan *whole;
    struct plan_streamed all; /* the plan, and what streams it */
    struct plan plan[SPLIT_PARTS];
    struct weights weights[SPLIT_PARTS];
    struct split_way plain, streamed[STREAM_WAYS]; /* some may be empty */
    /* in streamed steps, and in those that are fresh; `experts` is 0 where none are divided */
    struct border border[2];
    uint32_t buffers;                      /* of the plan that is split */
    uint32_t results;                      /* the device of the last operation */
    uint32_t backed[PLAN_GROUPS_MOST + 1]; /* pages with memory on all devices, of each group and of states */
    double *seconds;                       /* (all.plan.count): of a profiled step */
    uint32_t stream_rows; /* from this many rows on weights are streamed; 0 = by measurement */
};

/* Rows from which on streaming is tried while nothing has been measured, and below which it never is. */
enum { STREAM_ROWS_FIRST = 64, STREAM_ROWS_LEAST = 16 };

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
        if (p->ops[i].device > SPLIT_REST)
            return err_set(e, ERR_USAGE, "operation %u is for device %u of 2", i, p->ops[i].device);
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

/* The number of an operation in the plan of its device. */
static uint32_t split_number(const struct plan *p, uint32_t op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < op; i++)
        n += p->ops[i].device == p->ops[op].device;
    return n;
}

/* Segments in order, without their crossings. */
static void route_segments(struct split_way *r, const struct plan *p)
{
    r->segments = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t on = p->ops[r->op[i]].device, number = split_number(p, r->op[i]);
        struct segment *last = r->segments ? &r->segment[r->segments - 1] : NULL;
        if (last && last->device == on && last->first + last->count == number)
            last->count++;
        else
            r->segment[r->segments++] = (struct segment){.device = on, .first = number, .count = 1, .at = i};
    }
}

/* A device that holds the last version: the rest where it does, whose memory is the host's. */
static uint32_t holder_of(uint8_t have)
{
    uint32_t device = have >> SPLIT_REST & 1 ? SPLIT_REST : 0;
    while (!(have >> device & 1))
        device++;
    return device;
}

/* The buffers that a segment reads and has not got. have: (buffers) bits of the devices that hold the last version. */
static void route_cross(struct split_way *r, const struct plan *p, struct segment *s, uint8_t *have)
{
    uint8_t own = (uint8_t)(1u << s->device);
    s->crossing = r->crossings;
    for (uint32_t i = s->at; i < s->at + s->count; i++) {
        struct op_io io = plan_io(&p->ops[r->op[i]]);
        for (int k = 0; k <= IO_READS; k++) {
            uint32_t read = k < IO_READS                        ? io.read[k].buffer
                            : plan_by_columns(p, io.out.buffer) ? io.out.buffer
                                                                : 0;
            if (read && have[read] && !(have[read] & own)) {
                r->crossing[r->crossings++] = (struct crossing){read, holder_of(have[read])};
                have[read] |= own;
            }
        }
        if (io.out.buffer)
            have[io.out.buffer] = own;
    }
    s->crossings = r->crossings - s->crossing;
}

/* op is taken over. */
static int route_open(struct split_way *r, const struct plan *p, struct err *e)
{
    size_t most;
    uint8_t *have = mem_zalloc(p->buffers + 1, sizeof *have);
    r->segment = mem_alloc(r->count, sizeof *r->segment);
    r->crossing = size_mul(r->count, IO_READS + 1, &most) ? mem_alloc(most, sizeof *r->crossing) : NULL;
    if (!have || !r->segment || !r->crossing) {
        mem_free(have);
        return err_memory(e, "the parts of the plan", r->count * sizeof *r->segment);
    }
    route_segments(r, p);
    r->crossings = 0;
    for (uint32_t i = 0; i < r->segments; i++)
        route_cross(r, p, &r->segment[i], have);
    mem_free(have);
    return 0;
}

static void route_drop(struct split_way *r)
{
    mem_free(r->op);
    mem_free(r->segment);
    mem_free(r->crossing);
    *r = (struct split_way){0};
}

/* All routes over `all`. The plan of streamed weights begins with the plan that is split. */
static int split_route(struct split *d, const struct plan *p, struct err *e)
{
    d->plain.op = mem_alloc(p->count, sizeof *d->plain.op);
    for (int i = 0; i < STREAM_WAYS; i++) {
        d->streamed[i].op = d->all.way[i].op;
        d->streamed[i].count = d->all.way[i].count;
        d->all.way[i].op = NULL;
    }
    d->seconds = mem_zalloc(d->all.plan.count, sizeof *d->seconds);
    if (!d->plain.op || !d->seconds)
        return err_memory(e, "the parts of the plan", d->all.plan.count * sizeof *d->seconds);
    for (uint32_t i = 0; i < p->count; i++) {
        d->plain.op[d->plain.count++] = i;
        if (p->ops[i].kind == OP_LOGITS)
            d->results = p->ops[i].device;
    }
    int bad = route_open(&d->plain, &d->all.plan, e);
    for (int i = 0; !bad && i < STREAM_WAYS; i++)
        bad = d->streamed[i].count ? route_open(&d->streamed[i], &d->all.plan, e) : 0;
    return bad;
}

static void split_drop(struct split *d)
{
    for (uint32_t i = 0; i < SPLIT_PARTS; i++) {
        plan_free(&d->plan[i]);
        weights_free(&d->weights[i]);
    }
    route_drop(&d->plain);
    for (int i = 0; i < STREAM_WAYS; i++)
        route_drop(&d->streamed[i]);
    plan_stream_free(&d->all);
    mem_free(d->seconds);
    d->seconds = NULL;
    d->whole = NULL;
}

static const int32_t *split_picks(struct device *device, struct err *e)
{
    struct device *part = self(device)->part[self(device)->results];
    return part->ops->picks(part, e);
}

/* Its pages last for a layer: all layers have the same ones. */
static void split_share_pages(struct plan *p)
{
    for (uint32_t g = 0; g < p->groups; g++)
        p->group[g].layers = p->group[g].layers > 0;
    for (uint32_t i = 0; i < p->layers; i++)
        p->kv[i].index = 0;
}

/* Without it prompts are computed where the weights are. */
static void split_close_stream(struct split *d)
{
    d->part[SPLIT_STREAM]->ops->close(d->part[SPLIT_STREAM]);
    d->part[SPLIT_STREAM] = NULL;
}

/* Cuts out, loads and prepares one device's part. */
static int split_fill(struct split *d, uint32_t i, const struct device_shape *s, struct err *e)
{
    const struct device_ops *ops = d->part[i]->ops;
    if (plan_cut(&d->all.plan, &d->all.weights, i, &d->plan[i], &d->weights[i], e))
        return -1;
    if (i == SPLIT_STREAM)
        split_share_pages(&d->plan[i]);
    if (i == SPLIT_MAIN) /* those that streaming adds are between the two others */
        d->plan[i].buffers = d->buffers;
    return ops->load(d->part[i], &d->weights[i], i ? NULL : d->progress, d->arg, e) ||
                   ops->prepare(d->part[i], &d->plan[i], s->kv, s->rows, s->seqs, s->outs, e)
               ? -1
               : 0;
}

struct sum_bytes {
    const struct weights *w;
    const struct op *op;
    uint32_t border;
    uint64_t bytes;
};

static void add_bytes(void *arg, weight_id *id)
{
    struct sum_bytes *s = arg;
    const struct weight *w = &s->w->all[*id];
    const uint32_t sent = s->border < w->count && plan_is_divided(s->op, *id) ? s->border : w->count;
    s->bytes += weight_bytes(w) / w->count * sent;
}

/* Bytes of the rest's weights with which the streaming device computes in a step with this border. */
static uint64_t split_streamed(const struct split *d, const struct split_way *r, uint32_t border)
{
    struct sum_bytes sum = {.w = &d->all.weights, .border = border};
    for (uint32_t i = 0; i < r->count; i++) {
        sum.op = &d->all.plan.ops[r->op[i]];
        if (sum.op->device == SPLIT_STREAM)
            plan_each_sent(sum.op, add_bytes, &sum);
    }
    return sum.bytes;
}

/* The experts that may be divided: as many as the first operation has that divides its own. */
static void split_border(struct split *d)
{
    const struct plan *p = &d->plan[SPLIT_STREAM];
    struct border b = {.fixed = d->border[0].fixed, .at = d->border[0].at};
    for (uint32_t i = 0; i < p->count && !b.experts; i++)
        if (p->ops[i].kind == OP_MOE && p->ops[i].moe.side) {
            b.experts = p->ops[i].moe.experts;
            b.used = p->ops[i].moe.used;
        }
    d->border[0] = d->border[1] = b;
}

void split_fix_border(struct device *d, uint32_t experts)
{
    for (int i = 0; i < 2; i++) {
        struct border *b = &self(d)->border[i];
        b->fixed = true;
        b->at = experts;
    }
}

/* Whether any operation of the rest is for the streaming device. */
static bool split_sends(const struct split *d)
{
    for (uint32_t i = 0; i < d->all.plan.count; i++)
        if (d->all.plan.ops[i].device == SPLIT_STREAM)
            return true;
    return false;
}

/* The streaming device is optional: there may be no room for it. */
static void split_fill_stream(struct split *d, const struct device_shape *s)
{
    struct err why = {0};
    struct device *stream = d->part[SPLIT_STREAM], *rest = d->part[SPLIT_REST];
    if (!stream)
        return;
    if (!d->whole->lora && split_sends(d) && !split_fill(d, SPLIT_STREAM, s, &why)) {
        split_border(d);
        size_t bytes = 0;
        void *memory = rest->ops->host_memory ? rest->ops->host_memory(rest, &bytes) : NULL;
        for (uint32_t i = 0; i < SPLIT_PARTS && memory; i++)
            if (d->part[i]->ops->pin)
                d->part[i]->ops->pin(d->part[i], memory, bytes);
        return;
    }
    if (why.code)
        log_warn("prompts do not send weights to the GPU: %s", why.text);
    split_close_stream(d);
}

static int split_prepare(struct device *device, const struct plan *p, const struct kv_config *kv,
                         uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct split *d = self(device);
    const struct device_shape shape = {kv, max_rows, max_seqs, max_outs};
    split_drop(d);
    d->buffers = p->buffers;
    if (!d->source)
        return err_set(e, ERR_USAGE, "the device has no weights yet");
    if (plan_check(p, d->source, e) || split_check(p, e) ||
        plan_stream(p, d->source, d->part[SPLIT_STREAM] ? d->part[SPLIT_STREAM]->ops->refuses : NULL, &d->all,
                    e) ||
        split_route(d, p, e) || split_fill(d, SPLIT_MAIN, &shape, e) || split_fill(d, SPLIT_REST, &shape, e))
        return -1;
    const struct device_ops *last = d->part[d->results]->ops;
    d->ops.picks = last->picks ? split_picks : NULL;
    d->ops.ahead = last->ahead;
    d->whole = p;
    for (uint32_t g = 0; g < PLAN_GROUPS_MOST; g++)
        d->backed[g] = kv->least[g] ? kv->least[g] : kv->pages[g];
    d->backed[GROUP_STATES] = kv->states_least ? kv->states_least : kv->states;
    split_fill_stream(d, &shape);
    return 0;
}

/* ---- a step ---- */

/* Rows pass directly between the main device and the streaming one. All others pass through the rest's memory, which may be
 * pinned: its own rows of that buffer are older ones. */
static int split_pass_rows(struct split *d, uint32_t buffer, uint32_t rows, struct device *from,
                           struct device *to, struct err *e)
{
    struct device *rest = d->part[SPLIT_REST];
    if (from != rest && to != rest)
        return to->ops->take_rows(to, buffer, rows, from, e);
    float *host = rest->ops->host_rows(rest, buffer);
    return to == rest ? from->ops->read_rows(from, buffer, rows, host, e)
                      : to->ops->write_rows(to, buffer, rows, host, e);
}

static int split_pass(struct split *d, const struct split_way *r, const struct segment *s, uint32_t rows,
                      struct err *e)
{
    int bad = 0;
    for (uint32_t i = s->crossing; !bad && i < s->crossing + s->crossings; i++)
        bad = split_pass_rows(d, r->crossing[i].buffer, rows, d->part[r->crossing[i].from],
                              d->part[s->device], e);
    return bad;
}

/* Whether streaming the weights takes less time than computing this many rows on the rest. */
static bool split_streams(const struct split *d, uint32_t rows)
{
    if (!d->part[SPLIT_STREAM] || rows < STREAM_ROWS_LEAST)
        return d->part[SPLIT_STREAM] && d->stream_rows && rows >= d->stream_rows;
    if (d->stream_rows)
        return rows >= d->stream_rows;
    const double fresh = d->streamed[STREAM_FRESH].seconds, sent = fresh > 0 ? fresh : d->streamed[0].seconds;
    return d->plain.seconds > 0 && sent > 0 ? d->plain.seconds * rows > sent : rows >= STREAM_ROWS_FIRST;
}

/* Which way a step goes whose weights are streamed: enum stream_way. border: where its experts are divided. */
static int split_choose(const struct split *d, const struct step *s, uint32_t *border)
{
    bool fresh = d->streamed[STREAM_FRESH].count > 0;
    for (uint32_t i = 0; i < s->seqs; i++)
        fresh &= s->seq[i].length == s->seq[i].rows;
    const struct border *b = &d->border[fresh];
    *border = border_choose(b, s->rows);
    const bool whole = b->experts && *border >= b->experts;
    return (fresh ? STREAM_FRESH : 0) | (whole ? STREAM_WHOLE : 0);
}

/* Rows that the host gives: to the devices that embed. */
static int split_write_rows(struct device *device, uint32_t buffer, uint32_t rows, const float *host,
                            struct err *e)
{
    struct split *d = self(device);
    for (uint32_t k = SPLIT_MAIN; k <= SPLIT_REST; k++) {
        bool embeds = false;
        for (uint32_t i = 0; i < d->plan[k].count; i++)
            embeds |= d->plan[k].ops[i].kind == OP_EMBED;
        if (embeds && d->part[k]->ops->write_rows(d->part[k], buffer, rows, host, e))
            return -1;
    }
    return 0;
}

/* Whether experts of a segment are divided, and computed on the rest. */
static bool segment_divides(const struct split *d, const struct segment *g)
{
    bool divides = false;
    for (uint32_t i = g->first; i < g->first + g->count; i++) {
        const struct op *op = &d->plan[g->device].ops[i];
        divides |= op->kind == OP_MOE && op->moe.side == MOE_ABOVE;
    }
    return divides;
}

/* The segments of a step, one after the other. cpu: seconds of those that compute divided experts on the rest. */
static int split_segments(struct split *d, const struct split_way *r, struct step *s, double *cpu,
                          struct err *e)
{
    *cpu = 0;
    for (uint32_t i = 0; i < r->segments; i++) {
        const struct segment *g = &r->segment[i];
        struct device *part = d->part[g->device];
        s->from = g->first;
        s->to = g->first + g->count;
        part->seconds = d->base.seconds ? d->seconds : NULL;
        memset(d->seconds, 0, g->count * sizeof *d->seconds);
        if (split_pass(d, r, g, s->rows, e))
            return -1;
        const double began = clock_now();
        if (part->ops->run(part, &d->plan[g->device], s, e))
            return -1;
        *cpu += segment_divides(d, g) ? clock_now() - began : 0;
        for (uint32_t k = 0; d->base.seconds && k < g->count; k++)
            d->base.seconds[d->all.origin[r->op[g->at + k]]] += d->seconds[k];
    }
    return 0;
}

/* Where attention is computed makes a difference: what streamed steps teach is not for fresh ones. */
static void split_learn(struct split *d, int way, const struct step *s, struct border_step took)
{
    struct split_way *r = way < 0 ? &d->plain : &d->streamed[way & STREAM_FRESH];
    const double each = took.seconds / (way < 0 ? s->rows : 1);
    if (way >= 0)
        border_learn(&d->border[way & STREAM_FRESH], &took);
    if (s->rows >= STREAM_ROWS_LEAST)
        r->seconds = r->seconds > 0 && r->seconds < each ? r->seconds : each;
}

static int split_run(struct device *device, const struct plan *p, const struct step *s, struct err *e)
{
    struct split *d = self(device);
    if (!d->whole || p != d->whole)
        return err_set(e, ERR_USAGE, "the device was not prepared for this plan");
    const double began = clock_now();
    struct border_step took = {.rows = s->rows};
    const int way = split_streams(d, s->rows) ? split_choose(d, s, &took.at) : -1;
    const struct split_way *r = way < 0 ? &d->plain : &d->streamed[way];
    const struct device *stream = way < 0 ? NULL : d->part[SPLIT_STREAM];
    const double link = stream ? stream->link : 0, waited = stream ? stream->waited : 0;
    struct step step = *s;
    step.border = way >= 0 && way & STREAM_WHOLE ? UINT32_MAX : took.at;
    if (split_segments(d, r, &step, &took.cpu, e)) {
        if (stream) /* it may not recover, and what it has pinned is of use to others */
            split_close_stream(d);
        return -1;
    }
    took.seconds = clock_now() - began;
    if (stream) {
        d->base.streamed += split_streamed(d, r, took.at);
        d->base.sent = stream->sent;
        took.link = stream->link - link;
        took.waited = stream->waited - waited;
    }
    split_learn(d, way, s, took);
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
    struct split *d = self(device);
    struct err none = {0};
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        if (d->part[i] && d->part[i]->ops->back(d->part[i], group, pages, e)) {
            while (i--)
                d->part[i]->ops->back(d->part[i], group, d->backed[group], &none);
            return -1;
        }
    d->backed[group] = pages;
    return 0;
}

static uint64_t split_back_bytes(const struct device *device, uint32_t group, uint32_t pages)
{
    const struct split *d = (const struct split *)device;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        bytes += d->part[i] ? d->part[i]->ops->back_bytes(d->part[i], group, pages) : 0;
    return bytes;
}

static int split_copy_pages(struct device *device, uint32_t group, const int32_t *from, const int32_t *to,
                            uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < SPLIT_STREAM; i++) { /* the streaming device has no pages */
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
    if (d->part[SPLIT_STREAM]) { /* what it holds of weights is a buffer for them */
        d->part[SPLIT_STREAM]->ops->memory(d->part[SPLIT_STREAM], &rest);
        m->kv += rest.kv;
        m->scratch += rest.weights + rest.scratch;
        m->on_card += rest.on_card;
    }
}

static void split_describe(const struct device *device, struct buf *out)
{
    const struct split *d = (const struct split *)device;
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        if (d->part[i])
            d->part[i]->ops->describe(d->part[i], out);
}

/* Those of the main device and of the streaming one, by name; the CPU has none to name. */
static uint32_t split_take_kernels(struct device *device, struct device_kernel *out, uint32_t most)
{
    static const uint32_t cards[] = {SPLIT_MAIN, SPLIT_STREAM};
    uint32_t n = 0;
    for (uint32_t c = 0; c < 2; c++) {
        struct device *part = self(device)->part[cards[c]];
        struct device_kernel *more = out + n;
        const uint32_t first = n, count = part && part->ops->take_kernels
                                              ? part->ops->take_kernels(part, more, most - n)
                                              : 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct device_kernel k = more[i];
            uint32_t at = 0;
            while (at < first && strcmp(out[at].name, k.name) != 0)
                at++;
            if (at < first) {
                out[at].calls += k.calls;
                out[at].seconds += k.seconds;
            } else {
                out[n++] = k;
            }
        }
    }
    device_sort_kernels(out, n);
    return n;
}

static void split_close(struct device *device)
{
    struct split *d = self(device);
    static const uint32_t order[] = {SPLIT_STREAM, SPLIT_MAIN,
                                     SPLIT_REST}; /* GPUs unpin memory of the rest */
    for (uint32_t i = 0; i < SPLIT_PARTS; i++)
        if (d->part[order[i]])
            d->part[order[i]]->ops->close(d->part[order[i]]);
    split_drop(d);
    mem_free(d);
}

int split_open(struct device **out, const struct split_devices *of, struct err *e)
{
    static const struct device_ops ops = {.load = split_load,
                                          .prepare = split_prepare,
                                          .run = split_run,
                                          .results = split_results,
                                          .write_rows = split_write_rows,
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
        of->main->ops->close(of->main);
        of->rest->ops->close(of->rest);
        if (of->stream)
            of->stream->ops->close(of->stream);
        return err_memory(e, "a split device", sizeof *d);
    }
    d->ops = ops;
    snprintf(d->name, sizeof d->name, "%s+%s", of->main->ops->name, of->rest->ops->name);
    d->ops.name = d->name;
    d->base.ops = &d->ops;
    d->part[SPLIT_MAIN] = of->main;
    d->part[SPLIT_REST] = of->rest;
    d->part[SPLIT_STREAM] = of->stream;
    d->stream_rows = of->stream_rows;
    *out = &d->base;
    return 0;
}
