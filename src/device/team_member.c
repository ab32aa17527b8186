/* One rank of a team: its part of the plan, and a step of it. */
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "device/team_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int member_open(struct member *m, const struct team_options *o, uint32_t i, struct err *e)
{
    struct device_options own = o->options;
    *m = (struct member){.comm = o->comm[i], .plan = o->plan, .weights = o->weights};
    m->tensor = o->tensor;
    m->stages = o->stages;
    m->stage = m->comm->rank / o->tensor;
    m->stage_ranks = (struct comm_group){m->stage * o->tensor, o->tensor, m->comm->rank % o->tensor};
    if (m->comm->size != o->tensor * o->stages)
        return err_set(e, ERR_USAGE, "%u ranks for %u stages of %u", m->comm->size, o->stages, o->tensor);
    if (!own.activations) /* by the size of the whole model */
        own.activations = cpu_small(o->weights) ? 16 : 8;
    const char *colon = strchr(o->device[i], ':');
    m->index = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
    return device_open(&m->device, o->device[i], &own, e);
}

static void member_drop(struct member *m)
{
    shard_free(&m->shard);
    plan_free(&m->part);
    weights_free(&m->part_weights);
    mem_free(m->in);
    mem_free(m->out);
    mem_free(m->rows);
    mem_free(m->gather);
    mem_free(m->results);
    mem_free(m->seq);
    mem_free(m->wanted);
    mem_free(m->tables);
    m->in = m->out = NULL;
    m->rows = m->gather = m->results = NULL;
    m->seq = NULL;
    m->wanted = m->tables = NULL;
    m->table_room = 0;
    m->ins = m->outs = 0;
    m->prepared = false;
}

void member_close(struct member *m)
{
    if (m->device)
        m->device->ops->close(m->device);
    member_drop(m);
    mem_free(m->data);
    comm_close(m->comm);
    *m = (struct member){0};
}

bool member_is_last(const struct member *m)
{
    return m->stage + 1 == m->stages;
}

/* ---- prepare ---- */

/* Whether stages from `stage` on read what those before it have written to the buffer. */
static bool passes(const struct plan *p, uint32_t buffer, uint32_t stage)
{
    bool written = false;
    for (uint32_t i = 0; i < p->count; i++) {
        struct op_io io = plan_io(&p->ops[i]);
        if (p->ops[i].device < stage) {
            written |= io.out.buffer == buffer;
            continue;
        }
        for (int k = 0; k < IO_READS && written; k++)
            if (io.read[k].buffer == buffer)
                return true;
        if (io.out.buffer == buffer && !plan_by_columns(p, buffer))
            return false;
    }
    return false;
}

static int member_passing(const struct member *m, uint32_t stage, uint32_t **out, uint32_t *count,
                          struct err *e)
{
    *out = mem_alloc(m->plan->buffers + 1, sizeof **out);
    if (!*out)
        return err_memory(e, "rows between stages", m->plan->buffers * sizeof **out);
    for (uint32_t b = 1; b < m->plan->buffers && stage && stage < m->stages; b++)
        if (passes(m->plan, b, stage))
            (*out)[(*count)++] = b;
    return 0;
}

/* Room for rows on their way to other ranks. */
static int member_room(struct member *m, const struct order_prepare *o, struct err *e)
{
    const uint32_t rows = o->rows, outs = o->outs;
    size_t widest = 1, floats, results;
    for (uint32_t i = 0; i < m->shard.joins; i++) {
        const struct join *j = &m->shard.join[i];
        widest = size_max(widest, m->shard.plan.width[j->row.buffer]);
    }
    for (uint32_t i = 0; i < m->ins; i++)
        widest = size_max(widest, m->plan->width[m->in[i]]);
    for (uint32_t i = 0; i < m->outs; i++)
        widest = size_max(widest, m->plan->width[m->out[i]]);
    if (!size_mul(rows, widest, &floats) ||
        !size_mul(outs, member_is_last(m) ? m->shard.plan.out_width : 1, &results))
        return err_set(e, ERR_RESOURCE, "rows of %zu numbers are too wide", widest);
    m->rows = mem_alloc(floats, sizeof *m->rows);
    m->gather = mem_alloc(floats, sizeof *m->gather);
    m->results = mem_alloc(results ? results : 1, sizeof *m->results);
    m->seq = mem_alloc(o->seqs ? o->seqs : 1, sizeof *m->seq);
    m->wanted = mem_alloc(outs ? outs : 1, sizeof *m->wanted);
    if (!m->rows || !m->gather || !m->results || !m->seq || !m->wanted)
        return err_memory(e, "rows between ranks", floats * sizeof *m->rows);
    if (m->device->ops->pin)
        m->device->ops->pin(m->device, m->rows, floats * sizeof *m->rows);
    return comm_reserve(m->comm, floats, e);
}

static void member_facts(struct member *m)
{
    const struct device_ops *ops = m->device->ops;
    struct device_memory memory = {0};
    for (uint32_t g = 0; g < m->plan->groups; g++)
        m->facts.page_bytes[g] = ops->page_bytes(m->device, g);
    m->facts.state_bytes = m->part.state_values ? ops->state_bytes(m->device) : 0;
    ops->memory(m->device, &memory);
    m->facts.weights = memory.weights;
    m->facts.scratch = memory.scratch;
    m->facts.kv = memory.kv;
    m->facts.total = memory.total;
    m->facts.free = memory.free;
}

/* What a rank says before cards meet. */
struct invitation {
    uint8_t id[MEETING_ID];
    uint32_t has, unused;
    char card[120]; /* which one it is, on which machine */
};

/* Cards that sum among themselves are there for all ranks of a stage, each a card of its own; or none does, and rows pass
 * through pinned memory. QUERN_NCCL=0 is against it, QUERN_NCCL=1 also for a single card. */
static bool member_may_meet(const struct member *m, const struct invitation *all)
{
    const char *wish = getenv("QUERN_NCCL");
    bool may = wish && *wish ? *wish == '1' : m->tensor > 1;
    for (uint32_t i = 0; i < m->tensor; i++) {
        may &= all[i].has != 0;
        for (uint32_t k = 0; k < i; k++)
            may &= memcmp(all[i].card, all[k].card, sizeof all[i].card) != 0;
    }
    return may;
}

int member_meet(struct member *m, struct err *e)
{
    struct invitation all[COMM_RANKS_MOST] = {0}, *own = &all[m->stage_ranks.me];
    struct err why = {0};
    uint32_t met[COMM_RANKS_MOST] = {0};
    size_t at[COMM_RANKS_MOST + 1], each[COMM_RANKS_MOST + 1];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    own->has = m->device->ops->meet && cuda_meeting_id(own->id);
    snprintf(own->card, sizeof own->card, "%.60s/%.40s/%d", host, visible ? visible : "", m->index);
    for (uint32_t i = 0; i <= m->tensor; i++) {
        at[i] = i * sizeof *all;
        each[i] = i * sizeof *met;
    }
    m->met = false;
    if (comm_all_gather(m->comm, m->stage_ranks, all, at, e))
        return -1;
    if (!member_may_meet(m, all))
        return 0;
    struct device_meeting with = {.rank = m->stage_ranks.me, .ranks = m->tensor};
    memcpy(with.id, all[0].id, sizeof with.id);
    met[m->stage_ranks.me] = !m->device->ops->meet(m->device, &with, &why);
    if (comm_all_gather(m->comm, m->stage_ranks, met, each, e))
        return -1;
    m->met = true;
    for (uint32_t i = 0; i < m->tensor; i++)
        m->met &= met[i] != 0;
    if (!m->met)
        log_warn("cards do not sum among themselves, rows pass through memory: %s",
                 why.code ? why.text : "another rank cannot");
    return 0;
}

/* A rank has no other device for what its own cannot do. */
static int member_able(const struct member *m, struct err *e)
{
    const struct device_ops *ops = m->device->ops;
    for (uint32_t i = 0; ops->refuses && i < m->shard.plan.count; i++) {
        const char *why = ops->refuses(&m->shard.plan.ops[i]);
        if (why)
            return err_set(e, ERR_DATA,
                           "%s cannot run operation %u (%s: %s) of this model; ranks on the CPU can",
                           ops->name, i, plan_op_name(m->shard.plan.ops[i].kind), why);
    }
    return 0;
}

int member_prepare(struct member *m, const struct order_prepare *o, struct err *e)
{
    const struct device_ops *ops = m->device->ops;
    member_drop(m);
    if (plan_cut(m->plan, m->weights, m->stage, &m->part, &m->part_weights, e) ||
        plan_shard(&m->part, &m->part_weights, m->stage_ranks.me, m->tensor, &m->shard, e) ||
        member_able(m, e) || member_passing(m, m->stage, &m->in, &m->ins, e) ||
        member_passing(m, m->stage + 1, &m->out, &m->outs, e) || member_room(m, o, e))
        return -1;
    if (ops->load(m->device, &m->shard.weights, NULL, NULL, e) ||
        ops->prepare(m->device, &m->shard.plan, &o->kv, o->rows, o->seqs, o->outs, e))
        return -1;
    member_facts(m);
    m->limit = *o;
    m->prepared = true;
    return 0;
}

/* ---- a step ---- */

/* The rows of a buffer in host memory: the device's own, or a copy. */
static float *rows_begin(struct member *m, uint32_t buffer, uint32_t rows, bool read, struct err *e)
{
    const struct device_ops *ops = m->device->ops;
    float *own = ops->host_rows ? ops->host_rows(m->device, buffer) : NULL;
    if (own)
        return own;
    return read && ops->read_rows(m->device, buffer, rows, m->rows, e) ? NULL : m->rows;
}

static int rows_end(struct member *m, uint32_t buffer, uint32_t rows, const float *x, struct err *e)
{
    return x == m->rows ? m->device->ops->write_rows(m->device, buffer, rows, x, e) : 0;
}

/* Copies `count` columns of every row. */
static void copy_cols(float *to, size_t to_stride, const float *from, size_t from_stride, uint32_t rows,
                      uint32_t count)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, count * sizeof *to);
}

static int join_sum(struct member *m, const struct join *j, float *x, size_t stride, uint32_t rows,
                    struct err *e)
{
    const size_t n = (size_t)rows * j->width;
    float *y = stride == j->width ? x : m->gather;
    if (j->absent)
        memset(y, 0, n * sizeof *y);
    else if (y != x)
        copy_cols(y, j->width, x, stride, rows, j->width);
    if (comm_all_reduce(m->comm, m->stage_ranks, y, n, e))
        return -1;
    if (y != x)
        copy_cols(x, stride, y, j->width, rows, j->width);
    return 0;
}

/* The parts of the ranks one after the other, then each piece where it belongs. */
static int join_gather(struct member *m, const struct join *j, float *x, size_t stride, uint32_t rows,
                       struct err *e)
{
    size_t at[COMM_RANKS_MOST + 1] = {0};
    uint32_t width[COMM_RANKS_MOST] = {0};
    for (uint32_t r = 0; r < m->tensor; r++) {
        for (uint32_t i = 0; i < j->pieces; i++)
            width[r] += j->piece[r * j->pieces + i].count;
        at[r + 1] = at[r] + (size_t)rows * width[r] * sizeof *x;
    }
    const uint32_t me = m->stage_ranks.me;
    copy_cols(m->gather + at[me] / sizeof *x, width[me], x, stride, rows, width[me]);
    if (comm_all_gather(m->comm, m->stage_ranks, m->gather, at, e))
        return -1;
    for (uint32_t r = 0; r < m->tensor; r++) {
        const float *part = m->gather + at[r] / sizeof *x;
        for (uint32_t i = 0; i < j->pieces; part += j->piece[r * j->pieces + i++].count)
            copy_cols(x + j->piece[r * j->pieces + i].first, stride, part, width[r], rows,
                      j->piece[r * j->pieces + i].count);
    }
    return 0;
}

static int member_join(struct member *m, const struct join *j, uint32_t rows, struct err *e)
{
    const size_t stride = m->shard.plan.width[j->row.buffer];
    if (m->met && j->kind == JOIN_SUM && stride == j->width) {
        if (j->absent)
            memset(m->rows, 0, rows * stride * sizeof *m->rows);
        return (j->absent && m->device->ops->write_rows(m->device, j->row.buffer, rows, m->rows, e)) ||
                       m->device->ops->sum_rows(m->device, j->row.buffer, rows, e)
                   ? -1
                   : 0;
    }
    float *x = rows_begin(m, j->row.buffer, rows, true, e);
    if (!x)
        return -1;
    int failed = j->kind == JOIN_SUM ? join_sum(m, j, x + j->row.col, stride, rows, e)
                                     : join_gather(m, j, x + j->row.col, stride, rows, e);
    return failed ? -1 : rows_end(m, j->row.buffer, rows, x, e);
}

/* Rows from the same rank of the stage before, or to that of the next. */
static int member_pass(struct member *m, bool in, uint32_t rows, struct err *e)
{
    const uint32_t *buffer = in ? m->in : m->out, count = in ? m->ins : m->outs;
    const uint32_t peer = in ? m->comm->rank - m->tensor : m->comm->rank + m->tensor;
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = (size_t)rows * m->plan->width[buffer[i]] * sizeof *m->rows;
        float *x = rows_begin(m, buffer[i], rows, !in, e);
        if (!x || (in ? comm_recv(m->comm, peer, x, bytes, e) : comm_send(m->comm, peer, x, bytes, e)) ||
            (in && rows_end(m, buffer[i], rows, x, e)))
            return -1;
    }
    return 0;
}

static int member_ops(struct member *m, const struct step *s, uint32_t from, uint32_t to, struct err *e)
{
    struct step step = *s;
    if (from == to)
        return 0;
    step.from = from;
    step.to = to;
    step.pick = NULL;
    return m->device->ops->run(m->device, &m->shard.plan, &step, e);
}

static int member_results(struct member *m, const struct step *s, uint32_t first, struct err *e)
{
    if (!s->outs || !member_is_last(m))
        return 0;
    const float *x = m->device->ops->results(m->device, e);
    const size_t width = m->shard.plan.out_width;
    if (x)
        memcpy(m->results + first * width, x, s->outs * width * sizeof *x);
    return x ? 0 : -1;
}

/* One batch: from the stage before, through this one, to the next. */
static int member_batch(struct member *m, const struct step *s, uint32_t results, struct err *e)
{
    const struct shard *shard = &m->shard;
    uint32_t at = 0;
    if (member_pass(m, true, s->rows, e))
        return -1;
    for (uint32_t i = 0; i < shard->joins; i++) {
        if (member_ops(m, s, at, shard->join[i].at, e) || member_join(m, &shard->join[i], s->rows, e))
            return -1;
        at = shard->join[i].at;
    }
    return member_ops(m, s, at, shard->plan.count, e) || member_results(m, s, results, e) ||
                   member_pass(m, false, s->rows, e)
               ? -1
               : 0;
}

int member_run(struct member *m, const struct step *s, struct err *e)
{
    const struct order_prepare *l = &m->limit;
    if (s->rows > l->rows || s->seqs > l->seqs || s->outs > l->outs)
        return err_set(e, ERR_USAGE,
                       "a step of %u rows, %u sequences, %u results; prepared were %u, %u and %u", s->rows,
                       s->seqs, s->outs, l->rows, l->seqs, l->outs);
    for (uint32_t from = 0, to; from < s->rows; from = to) {
        struct step batch;
        uint32_t results;
        to = batch_end(m, s, from);
        if (batch_step(m, s, from, to, &batch, &results, e) || member_batch(m, &batch, results, e))
            return -1;
    }
    return 0;
}
