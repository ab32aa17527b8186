/* A sequence in steps, with pages in order: page 0 is trash, token p is in page 1 + p / 32. Its state is in slot 1. */
#include "model/evaluate.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/arch.h"

enum { PAGE_TOKENS = 32 };

struct work {
    int32_t *pos, *out, *tables, *state;
    uint32_t pages;
};

int evaluate_check(const struct model *m, const int32_t *ids, uint32_t n, struct err *e)
{
    bool grows = m->h.rope[0].scaling == SCALING_DYNAMIC;
    const uint32_t positions = plan_positions(&m->plan, &m->weights);
    if (n > positions)
        return err_set(e, ERR_RESOURCE, "%u tokens are %u more than the context of %u that the model has", n,
                       n - positions, positions);
    if (n > m->h.context && !grows)
        log_warn("%u tokens are %u more than the context of %u that the model was trained for", n,
                 n - m->h.context, m->h.context);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= m->h.vocab)
            return err_set(e, ERR_DATA, "token %d at position %u is not in the vocabulary of %u", ids[i], i,
                           m->h.vocab);
    return 0;
}

static int run_steps(const struct evaluator *f, const struct work *w, const int32_t *ids, uint32_t n,
                     uint32_t chunk, struct err *e)
{
    struct device *d = f->device;
    const struct plan *p = &f->model->plan;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        for (uint32_t i = 0; i < rows; i++) {
            w->pos[i] = (int32_t)(at + i);
            w->out[i] = (int32_t)i;
        }
        struct step_seq seq = {.first = 0, .rows = rows, .length = at + rows};
        struct step s = {.rows = rows, .seqs = 1, .outs = rows, .ids = ids + at, .pos = w->pos, .seq = &seq};
        s.tables = w->tables;
        s.table_width = w->pages;
        s.out = w->out;
        s.lora = f->lora;
        int32_t before = at > 0;
        s.state_in = p->states ? &before : NULL;
        s.state_out = p->states ? w->state + chunk - rows : NULL;
        if (d->ops->run(d, p, &s, e) < 0)
            return -1;
        const float *result = d->ops->results(d, e);
        if (!result)
            return -1;
        for (uint32_t i = 0; i < rows; i++)
            f->row(f->arg, at + i, result + (size_t)i * p->out_width);
    }
    return 0;
}

int evaluate_run(const struct evaluator *f, const int32_t *ids, uint32_t n, struct err *e)
{
    const struct model *m = f->model;
    struct device *d = f->device;
    uint32_t chunk = m->h.arch->encoder ? n : f->chunk ? f->chunk : 128;
    if (evaluate_check(m, ids, n, e) < 0)
        return -1;
    struct work w = {.pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS};
    struct kv_config kv = {.type = f->kv_type, .page_tokens = PAGE_TOKENS};
    for (uint32_t g = 0; g < m->plan.groups; g++)
        kv.pages[g] = w.pages + 1;
    kv.states = m->plan.states ? 2 : 0;
    w.pos = mem_alloc(chunk, sizeof *w.pos);
    w.out = mem_alloc(chunk, sizeof *w.out);
    w.state = mem_zalloc(chunk, sizeof *w.state);
    w.tables = mem_alloc((size_t)w.pages * PLAN_GROUPS_MOST, sizeof *w.tables);
    int ok = -1;
    if (!w.pos || !w.out || !w.tables || !w.state) {
        err_memory(e, "a step", chunk * sizeof *w.pos);
    } else {
        w.state[chunk - 1] = 1; /* of the last row */
        for (uint32_t g = 0; g < PLAN_GROUPS_MOST; g++)
            for (uint32_t i = 0; i < w.pages; i++)
                w.tables[(size_t)g * w.pages + i] = (int32_t)i + 1;
        if (d->ops->load(d, &m->weights, NULL, NULL, e) == 0 &&
            d->ops->prepare(d, &m->plan, &kv, chunk, 1, chunk, e) == 0)
            ok = run_steps(f, &w, ids, n, chunk, e);
    }
    mem_free(w.pos);
    mem_free(w.out);
    mem_free(w.state);
    mem_free(w.tables);
    return ok;
}
