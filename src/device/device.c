/* Opening a device by its name, and describing what is on it. */
#include "device/device.h"

#include "base/buf.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

int device_open(struct device **out, const char *spec, const struct device_options *o, struct err *e)
{
    *out = NULL;
    if (!strcmp(spec, "cpu"))
        return cpu_open(out, o, e);
    struct device_options options = *o;
    uint64_t index = 0;
    if (!strcmp(spec, "cuda"))
        return cuda_open(out, &options, e);
    if (!strncmp(spec, "cuda:", 5) && num_u64(spec + 5, strlen(spec + 5), 1023, &index)) {
        options.index = (int)index;
        return cuda_open(out, &options, e);
    }
    return err_set(e, ERR_USAGE, "there is no device '%s': cpu, cuda or cuda:N was expected", spec);
}

void device_say(const struct device *d, const char *name, const struct plan *p, struct buf *out)
{
    struct device_memory m;
    d->ops->memory(d, &m);
    buf_printf(out, "%s: ", name);
    if (p)
        plan_summary(p, out);
    buf_printf(out, "; weights %.2f GB, KV %.2f GB, scratch %.2f GB\n", 1e-9 * (double)m.weights,
               1e-9 * (double)m.kv, 1e-9 * (double)m.scratch);
}

/* By the name, and of ranks by what is before " x ". */
static bool device_is(const struct device *d, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(d->ops->name, name, n) && (!d->ops->name[n] || d->ops->name[n] == ' ');
}

bool device_is_cuda(const struct device *d)
{
    return device_is(d, "cuda");
}

bool device_is_ranks(const struct device *d)
{
    return strchr(d->ops->name, ' ') != NULL; /* "cpu x 2" */
}

bool device_is_cpu(const struct device *d)
{
    return device_is(d, "cpu");
}

static int by_seconds(const void *a, const void *b)
{
    const struct device_kernel *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

void device_sort_kernels(struct device_kernel *all, uint32_t n)
{
    qsort(all, n, sizeof *all, by_seconds);
}

int device_check_lora(const struct plan *p, const struct step *s, struct err *e)
{
    for (uint32_t i = 0; s->lora && i < s->seqs; i++)
        for (uint32_t k = 0; k < s->lora[i].count; k++)
            if (s->lora[i].count > ADAPTERS_MIXED || !s->lora[i].id[k] || s->lora[i].id[k] > p->adapters)
                return err_set(e, ERR_USAGE,
                               "sequence %u asks for an adapter that does not exist: there are %u", i,
                               p->adapters);
    return 0;
}

int device_check_states(const struct plan *p, const struct step *s, uint32_t states, struct err *e)
{
    if (!p->state_values)
        return 0;
    if (!s->state_in || !s->state_out)
        return err_set(e, ERR_USAGE, "the plan keeps state, and the step names no slots for it");
    for (uint32_t i = 0; i < s->seqs; i++)
        if (s->state_in[i] < 0 || (uint32_t)s->state_in[i] >= states)
            return err_set(e, ERR_USAGE, "sequence %u is to continue state %d of %u", i, s->state_in[i],
                           states);
    for (uint32_t i = 0; i < s->rows; i++)
        if (s->state_out[i] < 0 || (uint32_t)s->state_out[i] >= states)
            return err_set(e, ERR_USAGE, "row %u is to leave state %d of %u", i, s->state_out[i], states);
    return 0;
}

/* Attention looks at the first and the last row of a tile only, so spans may not go back. */
static int check_spans(const struct step *s, uint32_t seq, struct err *e)
{
    const struct step_seq *q = &s->seq[seq];
    struct step_span before = {0};
    for (uint32_t r = q->first; r < q->first + q->rows && r < s->rows; r++) {
        struct step_span now = s->span[r];
        if (!now.to)
            continue;
        if (now.from >= now.to || now.to > q->length || now.from < before.from || now.to < before.to)
            return err_set(e, ERR_USAGE, "row %u of sequence %u has the span %u to %u", r, seq, now.from,
                           now.to);
        before = now;
    }
    return 0;
}

/* The largest table that tokens are looked up in: smaller ones beside it have their first row for the others. */
static uint32_t known_tokens(const struct plan *p, const struct weights *w)
{
    uint32_t known = 0;
    bool any = false;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind != OP_EMBED || !op->embed.table)
            continue;
        known = w->all[op->embed.table].rows > known ? w->all[op->embed.table].rows : known;
        any = true;
    }
    return any ? known : UINT32_MAX;
}

static int check_row(const struct op_embed *o, const struct weights *w, uint32_t known, int32_t id,
                     int32_t pos, struct err *e)
{
    const uint32_t places = o->positions ? w->all[o->positions].rows : 0,
                   types = o->types ? w->all[o->types].rows : 1;
    if (step_token(id) >= known)
        return err_set(e, ERR_USAGE, "there is no token %u: the vocabulary has %u", step_token(id), known);
    if (step_type(id) >= types)
        return err_set(e, ERR_USAGE, "there is no type %u of tokens: the model has %u", step_type(id), types);
    if (o->positions && (pos < 0 || (uint64_t)(uint32_t)pos + o->position_offset >= places))
        return err_set(e, ERR_RESOURCE, "position %d is beyond the %u that the model has learnt", pos,
                       places - o->position_offset);
    return 0;
}

int device_check_ids(const struct plan *p, const struct weights *w, const struct step *s, struct err *e)
{
    const uint32_t known = known_tokens(p, w);
    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t r = 0; p->ops[i].kind == OP_EMBED && r < s->rows; r++)
            if ((s->ids[r] >= 0 || !p->given) &&
                check_row(&p->ops[i].embed, w, known, s->ids[r], s->pos[r], e))
                return -1;
    return 0;
}

int device_check_rows(const struct plan *p, const struct step *s, uint32_t max_rows, struct err *e)
{
    uint32_t to = s->to ? s->to : p->count;
    if (p->fold_by && to > p->fold_at && (s->from < p->fold_at || s->rows > max_rows / p->fold_by))
        return err_set(e, ERR_USAGE, "a step of %u rows with operations %u to %u, whose rows are folded",
                       s->rows, s->from, to);
    for (uint32_t i = 0; s->span && i < s->seqs; i++)
        if (check_spans(s, i, e))
            return -1;
    return 0;
}
