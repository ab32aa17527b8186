#include "device/team.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "device/team_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct crew { /* a rank that is a thread of this process */
    struct member m;
    struct device_options options;
    pthread_t thread;
    bool started;
};

struct team {
    struct device base;
    struct device_ops ops;
    char name[48]; /* "cpu x 2" */
    struct member first;
    struct crew *crew; /* (crews) */
    uint32_t crews;
    struct rank_facts facts[COMM_RANKS_MOST];
    const struct plan *prepared;
    float *results; /* (max_outs, out_width) */
    float *parts;   /* the same, rank by rank */
    uint8_t *wire;  /* (wire_room): an order's data */
    size_t wire_room;
    uint32_t backed[PLAN_GROUPS_MOST + 1];
    bool over; /* the ranks have been told to end, or cannot be told */
};

static struct team *self(struct device *d)
{
    return (struct team *)d;
}

static struct comm_group everyone(const struct team *t)
{
    return comm_all(t->first.comm);
}

/* ---- stages ---- */

/* Whether operations before `at` and from it on share keys, or a choice of keys. */
static bool keys_cross(const struct plan *p, uint32_t at)
{
    for (uint32_t i = at; i < p->count; i++) {
        uint32_t chooser = plan_chooser(p, i);
        uint32_t layer = p->ops[i].kind == OP_QKV ? p->ops[i].qkv.layer : plan_kv_layer(&p->ops[i]);
        if (chooser != UINT32_MAX && chooser < at)
            return true;
        for (uint32_t k = 0; layer != UINT32_MAX && k < at; k++)
            if (plan_kv_layer(&p->ops[k]) == layer)
                return true;
    }
    return false;
}

/* The operation at which a layer begins that may be the first of a stage, nearest to `share` of all the cost; 0: none after
 * `from`. */
static uint32_t stage_begin(const struct plan *p, const double *cost, double share, uint32_t from)
{
    uint32_t best = 0;
    double total = cost[p->count], far = 0;
    for (uint32_t i = from + 1; i < p->count; i++) {
        if (p->ops[i].layer == UINT32_MAX || p->ops[i].layer == p->ops[i - 1].layer || keys_cross(p, i))
            continue;
        double off = cost[i] > share * total ? cost[i] - share * total : share * total - cost[i];
        if (!best || off < far) {
            best = i;
            far = off;
        }
    }
    return best;
}

int team_stages(struct plan *p, const struct weights *w, uint32_t n, struct err *e)
{
    double *cost = mem_alloc((size_t)p->count + 1, sizeof *cost);
    uint32_t begin = 0;
    if (!cost)
        return err_memory(e, "stages", p->count * sizeof *cost);
    cost[0] = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct op_cost c = plan_cost(p, w, i, (struct step_shape){.rows = 1, .seqs = 1, .keys = 1024});
        cost[i + 1] = cost[i] + c.weight_bytes + c.kv_bytes;
        p->ops[i].device = 0;
    }
    for (uint32_t s = 1; s < n; s++) {
        begin = stage_begin(p, cost, (double)s / n, begin);
        if (!begin) {
            mem_free(cost);
            return err_set(e, ERR_USAGE,
                           "the layers of this model make %u stages, not %u (layers that share keys stay "
                           "together); a smaller --pipeline helps",
                           s, n);
        }
        for (uint32_t i = begin; i < p->count; i++)
            p->ops[i].device = s;
    }
    mem_free(cost);
    return 0;
}

/* ---- orders ---- */

static int team_lost(struct team *t, struct err *e)
{
    t->over = true;
    return e->code ? -1 : err_set(e, ERR_DEVICE, "a rank of the team has stopped");
}

static int team_order(struct team *t, struct rank_order o, const void *data, struct err *e)
{
    if (t->over)
        return err_set(e, ERR_DEVICE, "the ranks of this model have ended");
    if (comm_broadcast(t->first.comm, everyone(t), &o, sizeof o, e) ||
        (data && comm_broadcast(t->first.comm, everyone(t), (void *)data, o.bytes, e)))
        return team_lost(t, e);
    return 0;
}

/* The first failure among the ranks, `own` among them. */
static int team_answers(struct team *t, const struct err *own, struct err *e)
{
    struct answer all[COMM_RANKS_MOST] = {0}, none = {0};
    if (member_answer(&t->first, &none, all, e))
        return team_lost(t, e);
    if (own->code)
        return err_set(e, own->code, "%s", own->text);
    for (uint32_t i = 1; i < t->first.comm->size; i++)
        if (all[i].code)
            return err_set(e, (enum err_code)all[i].code, "rank %u: %.251s", i, all[i].text);
    return 0;
}

/* ---- prepare ---- */

static int team_load(struct device *d, const struct weights *w, void (*progress)(void *, double), void *arg,
                     struct err *e)
{
    (void)d, (void)w, (void)e; /* each rank loads its part in prepare */
    if (progress)
        progress(arg, 1.0);
    return 0;
}

static int team_room(struct team *t, const struct plan *p, uint32_t outs, struct err *e)
{
    size_t floats;
    mem_free(t->results);
    mem_free(t->parts);
    t->results = t->parts = NULL;
    if (!size_mul(outs ? outs : 1, p->out_width, &floats))
        return err_set(e, ERR_RESOURCE, "results of %u numbers are too wide", p->out_width);
    t->results = mem_alloc(floats, sizeof *t->results);
    t->parts = mem_alloc(floats, sizeof *t->parts);
    return t->results && t->parts ? 0 : err_memory(e, "results", 2 * floats * sizeof *t->results);
}

/* After all ranks have prepared: what they do next they do together. */
static int team_meet(struct team *t, struct err *e)
{
    const struct err none = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_MEET}, NULL, e))
        return -1;
    if (member_meet(&t->first, e)) {
        comm_abort(t->first.comm, e->text);
        return team_lost(t, e);
    }
    return team_answers(t, &none, e);
}

static int team_prepare(struct device *device, const struct plan *p, const struct kv_config *kv,
                        uint32_t max_rows, uint32_t max_seqs, uint32_t max_outs, struct err *e)
{
    struct team *t = self(device);
    struct err own = {0};
    const struct order_prepare o = {*kv, max_rows, max_seqs, max_outs};
    size_t at[COMM_RANKS_MOST + 1];
    if (p != t->first.plan)
        return err_set(e, ERR_USAGE, "the ranks were opened for another plan");
    if (team_order(t, (struct rank_order){.kind = ORDER_PREPARE, .bytes = sizeof o}, &o, e))
        return -1;
    if (!member_prepare(&t->first, &o, &own))
        team_room(t, p, max_outs, &own);
    for (uint32_t i = 0; i <= t->first.comm->size; i++)
        at[i] = i * sizeof *t->facts;
    int failed = team_answers(t, &own, e);
    if (t->over || comm_gather(t->first.comm, everyone(t), NULL, t->facts, at, e))
        return team_lost(t, e);
    t->facts[0] = t->first.facts;
    for (uint32_t g = 0; g < p->groups; g++)
        t->backed[g] = kv->least[g] && kv->least[g] < kv->pages[g] ? kv->least[g] : kv->pages[g];
    t->backed[GROUP_STATES] =
        kv->states_least && kv->states_least < kv->states ? kv->states_least : kv->states;
    t->prepared = failed ? NULL : p;
    return failed ? -1 : team_meet(t, e);
}

static int team_need(struct device *device, const struct plan *p, const struct weights *w,
                     const struct device_shape *s, struct device_memory *m, struct err *e)
{
    struct team *t = self(device);
    struct plan part;
    struct weights own;
    struct shard shard = {0};
    const uint32_t ranks = t->first.comm->size;
    int failed = plan_cut(p, w, t->first.stage, &part, &own, e) ||
                 plan_shard(&part, &own, 0, t->first.tensor, &shard, e) ||
                 t->first.device->ops->need(t->first.device, &shard.plan, &shard.weights, s, m, e);
    shard_free(&shard);
    plan_free(&part);
    weights_free(&own);
    if (failed)
        return -1;
    /* as if all ranks were like this one */
    m->weights *= ranks, m->scratch *= ranks, m->total *= ranks, m->free *= ranks;
    m->kv *= ranks, m->kv_least *= ranks;
    return 0;
}

/* ---- a step ---- */

/* The results of the last stage's ranks, put side by side. */
static int team_collect(struct team *t, const struct step *s, struct err *e)
{
    struct member *m = &t->first;
    const uint32_t width = m->plan->out_width, last = (m->stages - 1) * m->tensor,
                   ranks = shard_cuts_results(m->plan, m->tensor) ? m->tensor : 1;
    if (!s->outs || !s->rows)
        return 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct shard_range of = shard_results(m->plan, r, m->tensor);
        const float *part = last + r ? t->parts : m->results;
        if (last + r && comm_recv(m->comm, last + r, t->parts, (size_t)s->outs * of.count * sizeof *part, e))
            return -1;
        for (uint32_t i = 0; i < s->outs; i++)
            memcpy(t->results + (size_t)i * width + of.first, part + (size_t)i * of.count,
                   of.count * sizeof *part);
    }
    return 0;
}

static int team_run(struct device *device, const struct plan *p, const struct step *s, struct err *e)
{
    struct team *t = self(device);
    if (!t->prepared || p != t->prepared)
        return err_set(e, ERR_USAGE, "the device was not prepared for this plan");
    if (team_step_check(p, t->first.weights, s, e))
        return -1;
    const size_t bytes = team_step_bytes(p, s);
    if (bytes > t->wire_room) {
        uint8_t *more = mem_realloc(t->wire, 2 * bytes, 1);
        if (!more)
            return err_memory(e, "a step for other ranks", 2 * bytes);
        t->wire = more;
        t->wire_room = 2 * bytes;
    }
    team_step_pack(p, s, t->wire);
    if (team_order(t, (struct rank_order){.kind = ORDER_RUN, .bytes = bytes}, t->wire, e))
        return -1;
    const double began = clock_now();
    if (member_run(&t->first, s, e) || team_collect(t, s, e)) {
        comm_abort(t->first.comm, e->text);
        return team_lost(t, e);
    }
    if (t->base.seconds) /* the whole step; ranks do not measure operations */
        t->base.seconds[0] += clock_now() - began;
    return 0;
}

static const float *team_results(struct device *device, struct err *e)
{
    const struct team *t = self(device);
    if (!t->prepared)
        err_set(e, ERR_USAGE, "no step has been run");
    return t->prepared ? t->results : NULL;
}

static int team_write_rows(struct device *device, uint32_t buffer, uint32_t rows, const float *host,
                           struct err *e)
{
    struct team *t = self(device);
    struct err own = {0};
    uint64_t bytes = (uint64_t)rows * t->first.plan->width[buffer] * sizeof *host;
    if (team_order(t, (struct rank_order){.kind = ORDER_ROWS, .a = buffer, .b = rows, .bytes = bytes}, host,
                   e))
        return -1;
    t->first.device->ops->write_rows(t->first.device, buffer, rows, host, &own);
    return team_answers(t, &own, e);
}

/* ---- pages ---- */

static int team_back_all(struct team *t, uint32_t group, uint32_t pages, struct err *e)
{
    struct err own = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_BACK, .a = group, .b = pages}, NULL, e))
        return -1;
    t->first.device->ops->back(t->first.device, group, pages, &own);
    return team_answers(t, &own, e);
}

/* All ranks, or none: those that could go back to what they had. */
static int team_back(struct device *device, uint32_t group, uint32_t pages, struct err *e)
{
    struct team *t = self(device);
    struct err none = {0};
    if (!team_back_all(t, group, pages, e)) {
        t->backed[group] = pages;
        return 0;
    }
    if (!t->over)
        team_back_all(t, group, t->backed[group], &none);
    return -1;
}

static uint64_t team_back_bytes(const struct device *device, uint32_t group, uint32_t pages)
{
    const struct team *t = (const struct team *)device;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->first.comm->size; i++)
        bytes += pages * (group == GROUP_STATES ? t->facts[i].state_bytes : t->facts[i].page_bytes[group]);
    return bytes;
}

static int team_copy_pages(struct device *device, uint32_t group, const int32_t *from, const int32_t *to,
                           uint32_t n, struct err *e)
{
    struct team *t = self(device);
    struct err own = {0};
    const size_t bytes = n * sizeof *from;
    int32_t *both = mem_alloc(2 * (size_t)n, sizeof *both);
    if (!both)
        return err_memory(e, "numbers of pages", 2 * bytes);
    memcpy(both, from, bytes);
    memcpy(both + n, to, bytes);
    int failed = team_order(
        t, (struct rank_order){.kind = ORDER_COPY, .a = group, .b = n, .bytes = 2 * bytes}, both, e);
    mem_free(both);
    if (failed)
        return -1;
    t->first.device->ops->copy_pages(t->first.device, group, from, to, n, &own);
    return team_answers(t, &own, e);
}

static size_t team_page_bytes(const struct device *device, uint32_t group)
{
    return team_back_bytes(device, group, 1);
}

static int team_read_page(struct device *device, uint32_t group, int32_t page, void *host, struct err *e)
{
    struct team *t = self(device);
    uint8_t *to = host;
    struct err own = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_READ_PAGE, .a = group, .b = (uint32_t)page}, NULL, e))
        return -1;
    if (t->facts[0].page_bytes[group])
        t->first.device->ops->read_page(t->first.device, group, page, to, &own);
    for (uint32_t i = 1; i < t->first.comm->size; i++) {
        to += t->facts[i - 1].page_bytes[group];
        if (comm_recv(t->first.comm, i, to, t->facts[i].page_bytes[group], e))
            return team_lost(t, e);
    }
    return team_answers(t, &own, e);
}

static int team_write_page(struct device *device, uint32_t group, int32_t page, const void *host,
                           struct err *e)
{
    struct team *t = self(device);
    const uint8_t *from = host;
    struct err own = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_WRITE_PAGE, .a = group, .b = (uint32_t)page}, NULL,
                   e))
        return -1;
    if (t->facts[0].page_bytes[group])
        t->first.device->ops->write_page(t->first.device, group, page, from, &own);
    for (uint32_t i = 1; i < t->first.comm->size; i++) {
        from += t->facts[i - 1].page_bytes[group];
        if (comm_send(t->first.comm, i, from, t->facts[i].page_bytes[group], e))
            return team_lost(t, e);
    }
    return team_answers(t, &own, e);
}

/* ---- states: of the first rank of every stage; its others have the same ---- */

static size_t team_state_bytes(const struct device *device)
{
    const struct team *t = (const struct team *)device;
    size_t bytes = 0;
    for (uint32_t i = 0; i < t->first.comm->size; i += t->first.tensor)
        bytes += t->facts[i].state_bytes;
    return bytes;
}

static int team_read_state(struct device *device, int32_t slot, void *host, struct err *e)
{
    struct team *t = self(device);
    uint8_t *to = host;
    struct err own = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_READ_STATE, .b = (uint32_t)slot}, NULL, e))
        return -1;
    if (t->facts[0].state_bytes)
        t->first.device->ops->read_state(t->first.device, slot, to, &own);
    for (uint32_t i = t->first.tensor; i < t->first.comm->size; i += t->first.tensor) {
        to += t->facts[i - t->first.tensor].state_bytes;
        if (comm_recv(t->first.comm, i, to, t->facts[i].state_bytes, e))
            return team_lost(t, e);
    }
    return team_answers(t, &own, e);
}

static int team_write_state(struct device *device, int32_t slot, const void *host, struct err *e)
{
    struct team *t = self(device);
    const uint8_t *from = host;
    struct err own = {0};
    if (team_order(t, (struct rank_order){.kind = ORDER_WRITE_STATE, .b = (uint32_t)slot}, NULL, e))
        return -1;
    if (t->facts[0].state_bytes)
        t->first.device->ops->write_state(t->first.device, slot, from, &own);
    for (uint32_t i = 1; i < t->first.comm->size; i++) {
        from += i % t->first.tensor ? 0 : t->facts[i - 1].state_bytes;
        if (comm_send(t->first.comm, i, from, t->facts[i].state_bytes, e))
            return team_lost(t, e);
    }
    return team_answers(t, &own, e);
}

/* ---- the rest ---- */

static void team_memory(const struct device *device, struct device_memory *m)
{
    const struct team *t = (const struct team *)device;
    t->first.device->ops->memory(t->first.device, m);
    for (uint32_t i = 1; i < t->first.comm->size; i++) {
        m->weights += t->facts[i].weights;
        m->scratch += t->facts[i].scratch;
        m->kv += t->facts[i].kv;
    }
    m->on_card = m->on_card ? m->weights + m->scratch + m->kv : 0; /* all ranks have cards, or none has */
}

static void team_describe(const struct device *device, struct buf *out)
{
    const struct team *t = (const struct team *)device;
    const struct member *m = &t->first;
    buf_printf(out, "%u ranks over %s: %u stage%s of %u%s\n", m->comm->size, m->comm->ops->name, m->stages,
               m->stages > 1 ? "s" : "", m->tensor, m->met ? "; sums by NCCL" : "");
    m->device->ops->describe(m->device, out);
    for (uint32_t i = 1; i < m->comm->size; i++)
        buf_printf(out, "rank %u: weights %.2f GB, KV %.2f GB, scratch %.2f GB\n", i,
                   1e-9 * (double)t->facts[i].weights, 1e-9 * (double)t->facts[i].kv,
                   1e-9 * (double)t->facts[i].scratch);
}

static void team_close(struct device *device)
{
    struct team *t = self(device);
    struct err none = {0};
    if (!t->over && t->first.comm)
        team_order(t, (struct rank_order){.kind = ORDER_END}, NULL, &none);
    if (none.code && t->first.comm)
        comm_abort(t->first.comm, "rank 0 has closed the model");
    for (uint32_t i = 0; i < t->crews; i++)
        if (t->crew[i].started)
            pthread_join(t->crew[i].thread, NULL);
    for (uint32_t i = 0; i < t->crews; i++)
        member_close(&t->crew[i].m);
    member_close(&t->first);
    mem_free(t->crew);
    mem_free(t->results);
    mem_free(t->parts);
    mem_free(t->wire);
    mem_free(t);
}

/* ---- open ---- */

static void *crew_main(void *arg)
{
    struct crew *c = arg;
    struct err e = {0};
    if (member_agree(&c->m, &c->options, &e) || member_serve(&c->m, &e))
        comm_abort(c->m.comm, e.text);
    return NULL;
}

static int team_start(struct team *t, const struct team_options *o, struct err *e)
{
    int failed = member_open(&t->first, o, 0, e);
    for (uint32_t i = 0; i < t->crews && !failed; i++) {
        t->crew[i].options = o->options;
        failed = member_open(&t->crew[i].m, o, i + 1, e);
    }
    for (uint32_t i = 0; i < t->crews && !failed; i++) {
        struct crew *c = &t->crew[i];
        c->started = !pthread_create(&c->thread, NULL, crew_main, c);
        if (!c->started)
            failed = err_set(e, ERR_RESOURCE, "no thread for rank %u", i + 1);
    }
    if (!failed && member_agree(&t->first, &o->options, e))
        failed = -1;
    t->over = failed;
    if (failed)
        comm_abort(t->first.comm, e->text);
    return failed ? -1 : 0;
}

static const struct device_ops team_ops = {.load = team_load,
                                           .need = team_need,
                                           .prepare = team_prepare,
                                           .run = team_run,
                                           .results = team_results,
                                           .write_rows = team_write_rows,
                                           .back = team_back,
                                           .back_bytes = team_back_bytes,
                                           .copy_pages = team_copy_pages,
                                           .page_bytes = team_page_bytes,
                                           .read_page = team_read_page,
                                           .write_page = team_write_page,
                                           .state_bytes = team_state_bytes,
                                           .read_state = team_read_state,
                                           .write_state = team_write_state,
                                           .memory = team_memory,
                                           .describe = team_describe,
                                           .close = team_close};

int team_open(struct device **out, const struct team_options *o, struct err *e)
{
    struct team *t = mem_zalloc(1, sizeof *t);
    *out = NULL;
    if (t)
        t->crew = mem_zalloc(o->comms, sizeof *t->crew);
    if (!t || !t->crew) {
        mem_free(t);
        for (uint32_t i = 0; i < o->comms; i++)
            comm_close(o->comm[i]);
        return err_memory(e, "a team of ranks", o->comms * sizeof *t->crew);
    }
    t->ops = team_ops;
    t->base.ops = &t->ops;
    t->over = true; /* until they have started */
    t->crews = o->comms - 1;
    for (uint32_t i = 0; i < o->comms; i++)
        (i ? &t->crew[i - 1].m : &t->first)->comm = o->comm[i];
    if (plan_check(o->plan, o->weights, e) || team_stages(o->plan, o->weights, o->stages, e) ||
        team_start(t, o, e)) {
        team_close(&t->base);
        return -1;
    }
    snprintf(t->name, sizeof t->name, "%s x %u", t->first.device->ops->name, t->first.comm->size);
    t->ops.name = t->name;
    *out = &t->base;
    return 0;
}

int team_serve(const struct team_options *o, struct err *e)
{
    struct member m = {0};
    int failed = plan_check(o->plan, o->weights, e) || team_stages(o->plan, o->weights, o->stages, e) ||
                 member_open(&m, o, 0, e) || member_agree(&m, &o->options, e) || member_serve(&m, e);
    if (failed)
        comm_abort(o->comm[0], e->text);
    member_close(&m);
    return failed ? -1 : 0;
}
