/* Guesses of what comes next, before a step verifies them all at once: from the text so far, or from a draft
 * model. A guess is only ever a guess: it counts when it is what the model itself takes at that place with that
 * place's noise. Guesses stand in the job's ids, right after the text. */
#include "run/engine_own.h"

#include <string.h>

enum {
    DRAFT_NGRAM = 3, /* tokens that have to agree before what followed them is guessed again */
    DRAFT_LAG = 32   /* tokens that a draft model may be behind and still guess in this step */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many tokens are worth guessing: what the request can still have, as far as guesses came true lately. */
static uint32_t draft_most(const struct engine *g, const struct job *j)
{
    uint32_t most = j->draft_rest ? 0 : j->draft_ok;
    most = least(most, g->room - (uint32_t)j->ids.len);
    return least(most, j->request.most - j->made - 1);
}

/* What came after the last place where the text ended as it does now. */
static uint32_t draft_repeat(struct job *j, uint32_t most)
{
    int32_t *ids = j->ids.data;
    size_t n = j->ids.len;
    if (n <= DRAFT_NGRAM || !most)
        return 0;
    for (size_t at = n - DRAFT_NGRAM; at-- > 0;) {
        if (memcmp(ids + at, ids + n - DRAFT_NGRAM, DRAFT_NGRAM * sizeof *ids) != 0)
            continue;
        uint32_t k = least(most, (uint32_t)(n - at) - DRAFT_NGRAM);
        memcpy(ids + n, ids + at + DRAFT_NGRAM, k * sizeof *ids);
        return k;
    }
    return 0;
}

/* Whether the draft model can guess for it now: where it is far behind, it reads first. */
static bool draft_ready(struct engine *g, struct job *j, uint32_t *rows)
{
    struct runner *r = g->o.draft_model->runner;
    uint32_t behind = (uint32_t)j->ids.len - j->guess->len;
    struct err e = {0};
    if (behind <= DRAFT_LAG) {
        *rows += behind;
        return *rows <= r->chunk;
    }
    struct seq_rows part = {.seq = j->guess,
                            .ids = j->ids.data + j->guess->len,
                            .n = least(least(behind - 1, 2 * DRAFT_LAG), r->chunk)};
    runner_step(r, &part, 1, &e); /* where that fails it stays behind, and guesses nothing */
    return false;
}

/* One more token for everybody who still guesses; how many of them go on. */
static uint32_t draft_round(struct engine *g, uint32_t count)
{
    struct runner *r = g->o.draft_model->runner;
    struct err e = {0};
    uint32_t on = 0;
    const float *logits = runner_step(r, g->parts, count, &e) ? NULL : runner_results(r, &e);
    for (uint32_t i = 0; i < count && logits; i++, logits += r->plan->out_width) {
        struct job *j = g->owner[i];
        size_t n = j->ids.len + j->guessed;
        int32_t id = sampler_pick(j->sampler, logits, j->ids.data, n, n, NULL, &e);
        if (id < 0)
            continue;
        j->ids.data[n] = id;
        if (++j->guessed == draft_most(g, j))
            continue;
        g->owner[on] = j;
        g->parts[on++] = (struct seq_rows){.seq = j->guess, .ids = j->ids.data + n, .n = 1, .outs = 1};
    }
    return on;
}

void engine_guess(struct engine *g)
{
    uint32_t count = 0, rows = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        struct job *j = g->running[i];
        j->guessed = 0;
        if (j->ids.len - j->seq->len != 1)
            continue;
        uint32_t most = draft_most(g, j);
        j->guessed = draft_repeat(j, most);
        /* a sampler with a state, or a rule, would have to be taken back */
        if (!most || j->guessed || !j->guess || j->walk.state || j->request.sampler.mirostat > 0 ||
            !draft_ready(g, j, &rows))
            continue;
        g->owner[count] = j;
        g->parts[count++] = (struct seq_rows){.seq = j->guess,
                                              .ids = j->ids.data + j->guess->len,
                                              .n = (uint32_t)j->ids.len - j->guess->len,
                                              .outs = 1};
    }
    while (count)
        count = draft_round(g, count);
}

/* Guesses that come true may grow longer; those that fail grow shorter and pause. */
void engine_learn(const struct engine *g, struct job *j, uint32_t right)
{
    enum { REST = 4 }; /* steps */
    if (j->guess)
        seq_truncate(j->guess, j->seq->len);
    j->draft_rest -= j->draft_rest > 0;
    if (!j->draft)
        return;
    if (right == j->draft)
        j->draft_ok = least(j->draft_ok * 2, g->o.draft);
    else if (!right) {
        j->draft_ok = j->draft_ok > 1 ? j->draft_ok / 2 : 1;
        j->draft_rest = REST;
    }
}

/* Both vocabularies have to be the same, or a guess would be another word. */
int engine_check_draft(const struct loaded *l, const struct loaded *draft, uint32_t slots, uint32_t room,
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
