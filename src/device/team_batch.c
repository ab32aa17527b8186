/* The rows of a step in batches, so that the stages of a pipeline work at the same time: while the second stage has the
 * first batch, the first one has the second. A stage takes a + c * r for r rows: a for reading its weights, which every
 * batch does again. n rows in batches of r pass s stages in (n / r + s - 1) * (a + c * r), which is least where r is the
 * root of n * (a / c) / (s - 1). */
#include "base/mem.h"
#include "device/team_internal.h"

#include <math.h>
#include <string.h>

/* a / c: rows whose products take as long as reading the weights. Decode on two Zen 4 cores; Llama-3-8B on an H200. */
enum { READ_ROWS_CPU = 4, READ_ROWS_GPU = 50 };
enum { TILE = 32 }; /* many rows are cut at multiples of it: products of whole tiles are faster */

/* Whether rows of one sequence may be in different batches, in order: keys of the earlier ones are there by then. */
static bool may_cut_sequences(const struct plan *p, const struct step *s)
{
    if (p->states || s->span)
        return false;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == OP_ATTN && !p->ops[i].attn.causal)
            return false;
    return true;
}

/* Whether the host has given rows of this step: they stay where they are. */
static bool has_given(const struct plan *p, const struct step *s)
{
    for (uint32_t i = 0; p->given && i < s->rows; i++)
        if (s->ids[i] < 0)
            return true;
    return false;
}

static uint32_t batch_rows(const struct member *m, uint32_t rows)
{
    const double read = m->device->ops->host_rows ? READ_ROWS_CPU : READ_ROWS_GPU;
    const uint32_t batches = (uint32_t)lround(sqrt(rows * (m->stages - 1) / read));
    if (batches < 2)
        return rows;
    const uint32_t each = (rows + batches - 1) / batches;
    return each < TILE ? each : (each + TILE - 1) / TILE * TILE;
}

uint32_t batch_end(const struct member *m, const struct step *s, uint32_t from)
{
    if (m->stages < 2 || has_given(m->plan, s))
        return s->rows;
    const uint32_t each = batch_rows(m, s->rows);
    if (s->rows - from <= each)
        return s->rows;
    if (may_cut_sequences(m->plan, s))
        return from + each;
    for (uint32_t i = 0; i < s->seqs; i++) /* up to the end of a sequence */
        if (s->seq[i].first + s->seq[i].rows >= from + each)
            return s->seq[i].first + s->seq[i].rows;
    return s->rows;
}

static int batch_room(struct member *m, const struct step *s, struct err *e)
{
    size_t cells = (size_t)m->plan->groups * s->seqs * s->table_width;
    if (cells <= m->table_room)
        return 0;
    int32_t *more = mem_realloc(m->tables, cells, sizeof *more);
    if (!more)
        return err_memory(e, "page tables of a batch", cells * sizeof *more);
    m->tables = more;
    m->table_room = cells;
    return 0;
}

/* The sequences that have rows in [from, to), with the rows that they have there. */
static uint32_t batch_seqs(struct member *m, const struct step *s, uint32_t from, uint32_t to,
                           uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->seqs; i++) {
        const struct step_seq *q = &s->seq[i];
        uint32_t a = q->first > from ? q->first : from, end = q->first + q->rows, b = end < to ? end : to;
        if (a >= b)
            continue;
        *first = n ? *first : i;
        m->seq[n++] = (struct step_seq){.first = a - from, .rows = b - a, .length = q->length - (end - b)};
    }
    return n;
}

int batch_step(struct member *m, const struct step *s, uint32_t from, uint32_t to, struct step *out,
               uint32_t *results, struct err *e)
{
    uint32_t first = 0;
    *out = *s;
    *results = 0;
    if (!from && to == s->rows)
        return 0;
    if (batch_room(m, s, e))
        return -1;
    out->rows = to - from;
    out->seqs = batch_seqs(m, s, from, to, &first);
    out->ids += from;
    out->pos += from;
    out->axes += s->axes ? (size_t)from * PLAN_AXES : 0;
    out->span += s->span ? from : 0;
    out->state_in += s->state_in ? first : 0;
    out->state_out += s->state_out ? from : 0;
    out->lora += s->lora ? first : 0;
    out->seq = m->seq;
    out->tables = m->tables;
    for (uint32_t g = 0; g < m->plan->groups; g++)
        memcpy(m->tables + (size_t)g * out->seqs * s->table_width,
               s->tables + ((size_t)g * s->seqs + first) * s->table_width,
               (size_t)out->seqs * s->table_width * sizeof *m->tables);
    out->outs = 0;
    out->out = m->wanted;
    for (uint32_t i = 0; i < s->outs; i++) {
        uint32_t row = (uint32_t)s->out[i];
        *results += row < from;
        if (row >= from && row < to)
            m->wanted[out->outs++] = (int32_t)(row - from);
    }
    return 0;
}
