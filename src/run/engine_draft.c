/* Speculative decoding: draft tokens, which one step verifies together. They come from the constraint, where
 * it allows one text only; from repetitions in the text; or from a draft model. A draft token is accepted
 * when the model itself samples it at that position with that position's noise. Draft tokens stand in the
 * job's ids, right after the text. */
#include "base/clock.h"
#include "run/engine_internal.h"

#include <math.h>
#include <string.h>

enum {
    DRAFT_LONG = 8, /* tokens that must match for a long repetition */
    DRAFT_LAG = 32  /* tokens that a draft model may be behind and still draft in this step */
};

/* How many tokens may be drafted: what the request can still have. */
static uint32_t draft_most(const struct engine *g, const struct job *j)
{
    uint32_t most = least(g->o.draft, g->room - (uint32_t)j->ids.len);
    return j->request.prompt_only ? 0 : least(most, j->request.most - j->made - 1);
}

/* Draft tokens from the constraint or from the text. */
static uint32_t draft_look(struct job *j, uint32_t most)
{
    int32_t *after = j->ids.data + j->ids.len;
    uint32_t agree = 0, n = (uint32_t)constraint_walk_forced(&j->walk, after, most);
    j->shadow_kind = SPECULATE_CONSTRAINT;
    if (!n) {
        n = speculate_repeat(&j->index, j->ids.data, (uint32_t)j->ids.len, most, &agree);
        j->shadow_kind = agree >= DRAFT_LONG ? SPECULATE_LONG : SPECULATE_SHORT;
    }
    j->shadow = n ? *after : -1;
    return n;
}

/* The draft model. It is limited by memory bandwidth, as the model is: until it is measured, its cost is
 * taken to be proportional to its size. */
static struct speculate_maker draft_maker(struct engine *g, struct job *j)
{
    double first = g->costs.flat ? 0 : g->draft_share * step_costs_of(&g->costs, 1);
    return (struct speculate_maker){&j->accept_rate[SPECULATE_MODEL], &j->pause, &g->draft_token, first};
}

static bool draft_reading_pays(struct engine *g, struct job *j, uint32_t behind)
{
    double known = cost_of(&g->draft_row), row = known > 0 ? known : g->draft_share * g->costs.row;
    const struct speculate_maker m = draft_maker(g, j);
    return speculate_worth_reading(&g->costs, draft_most(g, j), &m, behind * row, j->request.most - j->made);
}

/* Whether the draft model can draft for this job now: if it is far behind, it reads first. */
static bool draft_ready(struct engine *g, struct job *j, uint32_t *rows)
{
    struct runner *r = g->o.draft_model->runner;
    uint32_t behind = (uint32_t)j->ids.len - j->draft_seq->len;
    struct err e = {0};
    if (behind <= DRAFT_LAG) {
        *rows += behind;
        return *rows <= r->chunk;
    }
    if (!draft_reading_pays(g, j, behind))
        return false;
    struct seq_rows part = {.seq = j->draft_seq,
                            .ids = j->ids.data + j->draft_seq->len,
                            .n = least(least(behind - 1, 2 * DRAFT_LAG), r->chunk)};
    double start = clock_now();
    runner_step(r, &part, 1, &e); /* on failure it stays behind, and drafts nothing */
    cost_note(&g->draft_row, (clock_now() - start) / part.n);
    return false;
}

/* One more draft token for every job that still drafts; returns how many go on. */
static uint32_t draft_round(struct engine *g, uint32_t count)
{
    struct runner *r = g->o.draft_model->runner;
    struct err e = {0};
    uint32_t on = 0;
    const float *logits = runner_step(r, g->parts, count, &e) ? NULL : runner_results(r, &e);
    for (uint32_t i = 0; i < count && logits; i++, logits += r->plan->out_width) {
        struct job *j = g->owner[i];
        size_t n = j->ids.len + j->drafts;
        int32_t id = sampler_pick(j->sampler, logits, j->ids.data, n, n, NULL, &e);
        if (id < 0 || (uint32_t)id >= g->session->model->plan.out_width)
            continue;
        j->ids.data[n] = id;
        if (++j->drafts >= j->speculate_most)
            continue;
        g->owner[on] = j;
        g->parts[on++] =
            (struct seq_rows){.seq = j->draft_seq, .ids = j->ids.data + n, .n = 1, .outs = 1, .hold = true};
    }
    return on;
}

/* Runs the draft model for the jobs in g->owner; the first round has `rows` rows. */
static void draft_rounds(struct engine *g, uint32_t count, uint32_t rows)
{
    while (count) {
        double start = clock_now();
        uint32_t on = draft_round(g, count);
        /* a round that also reads missed tokens does not measure the cost of a draft token */
        if (rows <= 2 * count && !g->costs.flat)
            cost_note(&g->draft_token, (clock_now() - start) / count);
        rows = count = on;
    }
}

/* How many draft tokens of the draft model pay; adds them to the plan. */
static uint32_t draft_ask(struct engine *g, struct job *j, struct speculate_plan *p, uint32_t most)
{
    /* the state of the sampler, or of a constraint in force here, would have to be rolled back */
    if (!most || !j->draft_seq || j->request.sampler.mirostat > 0 ||
        (j->walk.state && !constraint_walk_allows_all(&j->walk)))
        return 0;
    const struct speculate_maker m = draft_maker(g, j);
    return speculate_ask(p, &g->costs, most, &m);
}

/* A job's part in the plan: the better of the drafts known without a model and those of the draft model. True
 * where the draft model is to run. */
static bool draft_plan(struct engine *g, struct job *j, struct speculate_plan *p, uint32_t *rows)
{
    uint32_t most = draft_most(g, j), n = draft_look(j, most);
    struct speculate_plan look = *p, ask = *p;
    j->speculate_kind = j->shadow_kind;
    j->drafts = speculate_worth(&look, &g->costs, n, accept_rate_chance(&j->accept_rate[j->shadow_kind]), 0);
    j->speculate_most = draft_ask(g, j, &ask, most);
    if (j->speculate_most && speculate_rate(&ask, &g->costs) > speculate_rate(&look, &g->costs) &&
        draft_ready(g, j, rows)) {
        j->speculate_kind = SPECULATE_MODEL;
        j->drafts = 0;
        *p = ask;
        return true;
    }
    *p = look;
    return false;
}

void engine_speculate(struct engine *g)
{
    struct speculate_plan plan = {0};
    uint32_t count = 0, rows = 0, front = engine_front(g);
    for (uint32_t i = 0; i < g->count; i++) {
        struct job *j = g->running[i];
        j->drafts = 0;
        j->shadow = -1;
        plan.rows += i < front && j->ids.len - j->seq->len == 1;
    }
    plan.tokens = plan.rows;
    for (uint32_t i = 0; i < front && g->o.draft; i++) {
        struct job *j = g->running[i];
        if (j->ids.len - j->seq->len != 1 || !draft_plan(g, j, &plan, &rows))
            continue;
        g->owner[count] = j;
        g->parts[count++] = (struct seq_rows){.seq = j->draft_seq,
                                              .ids = j->ids.data + j->draft_seq->len,
                                              .n = (uint32_t)j->ids.len - j->draft_seq->len,
                                              .outs = 1};
    }
    draft_rounds(g, count, rows);
}

static void draft_note(struct engine *g, struct job *j, enum speculate_kind kind, bool right)
{
    accept_rate_note(&j->accept_rate[kind], right);
    accept_rate_note(&g->accept_rate[kind], right);
}

void engine_learn(struct engine *g, struct job *j, uint32_t right)
{
    if (j->draft_seq)
        seq_truncate(j->draft_seq, j->seq->len);
    for (uint32_t i = 0; i < right; i++)
        draft_note(g, j, j->speculate_kind, true);
    if (right < j->draft)
        draft_note(g, j, j->speculate_kind, false);
    else if (j->draft && j->speculate_kind == SPECULATE_MODEL)
        pause_forget(&j->pause);
    /* to look at drafts that are not verified costs nothing */
    uint32_t first = j->seq->len - right;
    if (j->shadow >= 0 && !(j->draft && j->speculate_kind == j->shadow_kind) && first < j->ids.len)
        draft_note(g, j, j->shadow_kind, j->ids.data[first] == j->shadow);
    j->drafted += j->draft;
    j->accepted += right;
    j->forced += j->speculate_kind == SPECULATE_CONSTRAINT ? right : 0;
}

void engine_learn_cost(struct engine *g, uint32_t parts, double seconds)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < parts; i++) {
        if (g->parts[i].n != 1 + g->owner[i]->draft) /* a prompt */
            return;
        rows += g->parts[i].n;
    }
    step_costs_note(&g->costs, rows, seconds);
}

/* Both vocabularies have to be the same: draft tokens are exchanged as ids. */
int engine_check_draft(const struct session *l, const struct session *draft, uint32_t slots, uint32_t room,
                       struct err *e)
{
    if (draft->runner->most_seqs < slots || draft->runner->ctx < room)
        return err_set(e, ERR_USAGE,
                       "the draft model has room for %u streams of %u tokens; %u of %u are needed",
                       draft->runner->most_seqs, draft->runner->ctx, slots, room);
    int32_t n = l->tokenizer ? tokenizer_vocab(l->tokenizer) : 0;
    bool same = !l->tokenizer == !draft->tokenizer && (!n || tokenizer_vocab(draft->tokenizer) == n);
    same &= n || l->model->plan.out_width == draft->model->plan.out_width;
    for (int32_t i = 0; i < n && same; i++) {
        size_t a = 0, b = 0;
        const char *x = tokenizer_piece(l->tokenizer, i, &a), *y = tokenizer_piece(draft->tokenizer, i, &b);
        same = a == b && (!a || !memcmp(x, y, a));
    }
    return same ? 0 : err_set(e, ERR_USAGE, "the draft model has another vocabulary than the model");
}
