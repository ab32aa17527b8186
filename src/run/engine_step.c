/* A step of the engine: which rows it computes, whether there are pages for them, and what it does with the
 * results. */
#include "base/clock.h"
#include "base/mem.h"
#include "run/engine_internal.h"

#include <math.h>
#include <string.h>

enum {
    STEP_CHUNK_LEAST = 16, /* rows of prompts in a step, however slow the machine */
    STEP_CHUNK_FIRST = 64  /* while nothing has been measured */
};

/* ---- which rows ---- */

static uint32_t job_pending(const struct job *j)
{
    return (uint32_t)j->ids.len - j->seq->len;
}

/* More than the last token is missing: it reads its prompt, or again what it had before a preemption. */
static bool job_reads(const struct job *j)
{
    return job_pending(j) > 1;
}

/* How many tokens of a younger job's prompt, in whole pages, begin this one's text. */
static uint32_t engine_common(const struct job *j, const struct job *younger)
{
    uint32_t most = least(job_first_result(younger), (uint32_t)j->ids.len), n = 0;
    if (j->request.salt != younger->request.salt)
        return 0;
    while (n < most && j->ids.data[n] == younger->ids.data[n])
        n++;
    return n / RUNNER_PAGE * RUNNER_PAGE;
}

/* Asks for a snapshot at this position, if the part reaches it. */
static void part_snap(struct seq_rows *p, uint32_t *snaps, uint32_t at)
{
    if (at > p->seq->len && at <= p->seq->len + p->n && p->snaps < ENGINE_SNAPS)
        snaps[p->snaps++] = at;
}

/* Which snapshots a part makes: at a fixed interval of tokens, at the end of the prompt, where a text of the prefix tree
 * differs from here on, and where a younger job does. */
static void engine_part_snaps(struct engine *g, uint32_t at)
{
    struct seq_rows *p = &g->parts[at];
    struct job *j = g->owner[at];
    uint32_t *snaps = g->snaps + (size_t)at * ENGINE_SNAPS, every = g->o.snapshot, i = 0;
    if (!g->session->runner->plan->states)
        return;
    p->snap = snaps;
    part_snap(p, snaps, j->turn);
    if (j->branch + RUNNER_PAGE <= j->turn)
        part_snap(p, snaps, j->branch);
    while (i < g->count && g->running[i] != j)
        i++;
    for (i++; i < g->count && job_reads(j); i++)
        if (job_reads(g->running[i]))
            part_snap(p, snaps, engine_common(j, g->running[i]));
    for (uint32_t to = (p->seq->len / every + 1) * every; to <= p->seq->len + p->n; to += every)
        part_snap(p, snaps, to);
}

/* One row, and as many of its draft tokens as `rows` allows. With state, each takes a slot. */
static void engine_part_decode(struct engine *g, struct job *j, uint32_t at, uint32_t rows)
{
    j->draft = least(j->drafts, rows - 1);
    if (g->session->runner->plan->states) {
        j->draft = least(j->draft, g->spare);
        g->spare -= j->draft;
    }
    g->owner[at] = j;
    g->parts[at] = (struct seq_rows){.seq = j->seq,
                                     .ids = j->ids.data + j->ids.len - 1,
                                     .n = 1 + j->draft,
                                     .outs = 1 + j->draft,
                                     .back = j->draft};
    engine_part_snaps(g, at);
}

/* Of n tokens those before an image that is not encoded yet; and where the tokens of an image see each other, all of a run
 * of them or none, whatever its share of the step, up to `most`. */
static uint32_t engine_whole(const struct job *j, uint32_t n, uint32_t most)
{
    const int32_t *ids = j->ids.data + j->seq->len;
    const uint32_t left = job_pending(j), ready = job_images_ready(&j->images, j->seq->len, left);
    const uint32_t whole = seq_whole(j->seq, ids, left, least(n, ready));
    if (whole || !ready || !j->seq->runner->span)
        return whole;
    const uint32_t run = seq_run(j->seq, ids, ready);
    return run <= most ? run : 0;
}

/* At most `rows` of the missing rows, with at most `outs` results. Chunks end at page boundaries, so that
 * other requests can share the pages. */
static void engine_part_read(struct engine *g, struct job *j, uint32_t at, uint32_t rows, uint32_t outs,
                             uint32_t most)
{
    uint32_t from = j->seq->len, first = job_first_result(j), before = first > from ? first - from : 0;
    uint32_t n = least(least(job_pending(j), rows), before + outs), over = (from + n) % RUNNER_PAGE;
    if (n < job_pending(j) && n >= RUNNER_PAGE)
        n -= over;
    n = engine_whole(j, n, most);
    j->draft = 0;
    g->owner[at] = j;
    g->parts[at] = (struct seq_rows){
        .seq = j->seq, .ids = j->ids.data + from, .n = n, .outs = n > before ? n - before : 0};
    engine_part_snaps(g, at);
}

/* Whether an older request is reading the page that this one needs next: then this one waits and shares
 * it. */
static bool engine_read_by_other(const struct engine *g, uint32_t at)
{
    const struct job *j = g->running[at];
    uint32_t want = j->seq->len + RUNNER_PAGE;
    bool states = g->session->runner->plan->states;
    if (j->seq->len % RUNNER_PAGE || want > job_first_result(j))
        return false;
    for (uint32_t i = 0; i < at; i++) {
        const struct job *o = g->running[i];
        /* with state, it can continue from where the two part: the other one makes a snapshot there */
        uint32_t shared = states && job_reads(o) ? engine_common(o, j) : 0;
        if (shared >= want && shared > o->seq->len)
            return true;
        if (!states && job_reads(o) && o->request.salt == j->request.salt && o->seq->len < want &&
            o->ids.len >= want && !memcmp(o->ids.data, j->ids.data, want * sizeof *j->ids.data))
            return true;
    }
    return false;
}

/* Rows of prompts that this step may have beside `rows` rows of running streams. Steps of batches alone are short, too: a
 * request that comes meanwhile waits for the end of one. */
static uint32_t engine_prompt_room(const struct engine *g, uint32_t rows)
{
    uint32_t room = g->session->runner->chunk - rows;
    if (!rows && g->users) /* no stream is running */
        return room;
    room = least(room, RUNNER_CHUNK_GPU); /* larger steps are for prompts alone */
    double fit = g->costs.row > 0 ? g->o.gap / g->costs.row : STEP_CHUNK_FIRST;
    fit = fit < STEP_CHUNK_LEAST ? STEP_CHUNK_LEAST : fit;
    return fit < room ? (uint32_t)fit : room;
}

/* Whether it has rows to compute in this step. */
static bool engine_can_read(const struct engine *g, uint32_t at)
{
    const struct job *j = g->running[at];
    return job_reads(j) && !j->fetches && !engine_read_by_other(g, at) &&
           job_images_ready(&j->images, j->seq->len, 1);
}

struct read_room {
    uint32_t rows, outs; /* of all prompts together */
};

/* The prompts of running[from..to) share the step's rows: the youngest gets at most an equal share, and older ones get what
 * is left over. Every prompt can have a result. */
static uint32_t engine_compose_reads(struct engine *g, uint32_t from, uint32_t to, uint32_t parts,
                                     struct read_room room)
{
    uint32_t readers = 0;
    for (uint32_t i = from; i < to; i++)
        readers += engine_can_read(g, i);
    for (uint32_t i = to; i-- > from && room.rows;) {
        struct job *j = g->running[i];
        if (!engine_can_read(g, i))
            continue;
        readers--;
        uint32_t used = 0;
        for (uint32_t k = 0; k < parts; k++)
            used += g->parts[k].n;
        engine_part_read(g, j, parts, (room.rows + readers) / (readers + 1), room.outs - readers,
                         g->session->runner->chunk - used);
        if (!g->parts[parts].n) /* an image of it waits */
            continue;
        room.outs -= g->parts[parts].outs;
        room.rows -= least(room.rows, g->parts[parts++].n);
    }
    return parts;
}

/* Another request may have computed more of this prompt since. */
static void engine_catch_up(struct engine *g, struct job *j)
{
    uint32_t had = j->seq->len;
    if (!job_reads(j) || had % RUNNER_PAGE)
        return;
    engine_match(g, j);
    j->cached += j->made ? 0 : j->seq->len - had;
}

/* Rows that jobs of batches could have in this step: each of them one, or all of a chunk. */
static uint32_t engine_batch_ready(const struct engine *g)
{
    uint32_t rows = 0;
    for (uint32_t i = g->users; i < g->count; i++)
        rows += !job_reads(g->running[i]) ? 1 : engine_can_read(g, i) ? job_pending(g->running[i]) : 0;
    return least(rows, g->session->runner->chunk / 2);
}

/* How many rows batches have in this step beside those of others: none while one of these reads its prompt. */
static void engine_ask_batch(struct engine *g)
{
    g->beside = g->users > 0;
    for (uint32_t i = 0; i < g->users; i++)
        g->beside &= !job_reads(g->running[i]);
    g->batch_rows = g->beside ? batch_room_ask(&g->batch_room, engine_batch_ready(g)) : 0;
}

/* Jobs of batches beside others: one row of those that decode, then prompts; batch_rows in all. */
static uint32_t engine_compose_batch(struct engine *g, uint32_t parts, uint32_t rows)
{
    const struct runner *r = g->session->runner;
    uint32_t left = least(g->batch_rows, least(r->chunk, r->most_outs) - rows);
    g->batch_rows = left;
    for (uint32_t i = g->users; i < g->count && left; i++)
        if (!job_reads(g->running[i])) {
            engine_part_decode(g, g->running[i], parts++, 1);
            left--;
        }
    uint32_t outs = r->most_outs - rows - (g->batch_rows - left), first = parts;
    if (outs > g->count)
        parts = engine_compose_reads(g, g->users, g->count, parts, (struct read_room){left, outs});
    for (uint32_t i = first; i < parts; i++)
        left -= g->parts[i].n;
    g->batch_rows -= left;
    return parts;
}

/* Fills the step: for every decoding job one row and its draft tokens, then prompts, then jobs of batches where there are
 * others. */
static uint32_t engine_compose(struct engine *g)
{
    const struct runner *r = g->session->runner;
    uint32_t parts = 0, rows = 0, free = runner_states_free(r), front = engine_front(g),
             after = front; /* each of those after has a row and a result for itself */
    g->spare = free > g->count ? free - g->count : 0;
    for (uint32_t i = 0; i < front; i++) {
        struct job *j = g->running[i];
        if (job_reads(j))
            continue;
        after--;
        engine_part_decode(g, j, parts, least(r->chunk, r->most_outs) - rows - after);
        rows += g->parts[parts++].n;
    }
    parts = engine_compose_reads(g, 0, front, parts,
                                 (struct read_room){engine_prompt_room(g, rows), r->most_outs - rows});
    return g->batch_rows ? engine_compose_batch(g, parts, rows) : parts;
}

/* Adds the pages and slots of state that a part needs. */
static void engine_need(struct page_need *all, const struct seq_rows *p)
{
    uint32_t pages = seq_need(p->seq, p->n);
    for (uint32_t k = 0; k < p->seq->runner->plan->groups; k++)
        all->of[k] += pages;
    all->states += seq_need_states(p);
}

/* Whether there are pages for this step, after idle ones have been evicted. */
static bool engine_pages_suffice(struct engine *g, uint32_t parts)
{
    struct page_need need = {0};
    for (uint32_t i = 0; i < parts; i++)
        engine_need(&need, &g->parts[i]);
    if (!prefix_make_room(g->prefix, &need))
        return false;
    for (uint32_t i = 0; i < parts; i++)
        need.states += g->parts[i].snaps;
    prefix_make_room(g->prefix, &need); /* without room there are fewer snapshots */
    return true;
}

/* ---- results ---- */

/* The results of one row: numbers on the host, or the token that the device has chosen (NULL: it has not). */
struct result {
    const float *logits;
    const int32_t *pick;
};

/* Where the device chooses tokens: how, for the results of every part. A constraint and log-probabilities
 * need the logits. */
static void engine_ask_picks(struct engine *g, uint32_t parts)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < parts && g->pick; i++) {
        struct seq_rows *p = &g->parts[i];
        struct job *j = g->owner[i];
        p->pick = p->outs && !job_needs_logits(j) ? g->pick + at : NULL;
        for (uint32_t k = 0; k < p->outs && p->pick; k++) {
            size_t len = j->ids.len + k; /* with the draft tokens before it */
            g->pick[at + k].seen = g->seen + (size_t)(at + k) * PICK_SEEN_MOST;
            if (!sampler_on_device(j->sampler, j->ids.data, len, len, &g->pick[at + k]))
                p->pick = NULL;
        }
        at += p->outs;
    }
}

enum took { TOOK_ONE, TOOK_STOP, TOOK_LENGTH, TOOK_FULL, TOOK_ERROR };

/* Takes one token for a job from its logits. *id is -1 where the text is complete without one more. */
static enum took engine_token(const struct engine *g, struct job *j, const struct result *r, int32_t *id,
                              struct err *e)
{
    uint32_t len = (uint32_t)j->ids.len;
    const uint32_t *mask;
    *id = -1;
    if (j->request.prompt_only) {
        job_keep_logits(j, g->session->model->plan.out_width, r->logits);
        return TOOK_LENGTH;
    }
    int whole = constraint_walk_next(&j->walk, &mask, e);
    if (whole)
        return whole < 0 ? TOOK_ERROR : TOOK_STOP;
    bool yields = mask && constraint_walk_yields(&j->walk);
    int32_t forced = reasoning_forced(j->reasoning);
    bool force = forced >= 0 && (!mask || mask[forced / 32] >> forced % 32 & 1);
    *id = force ? forced : r->pick ? *r->pick : yields ? -1 : constraint_walk_only(&j->walk, mask);
    if (*id < 0 && r->pick)
        err_set(e, ERR_DEVICE, "the model gave a logit that is not a finite number");
    else if (*id < 0) {
        const uint32_t *may =
            token_filter_mask(j->filter, yields ? NULL : mask, j->ids.data + j->prompt, j->made);
        *id = sampler_pick(j->sampler, r->logits, j->ids.data, len, len, may, e);
    }
    if (yields && *id >= 0 && !(mask[*id / 32] >> *id % 32 & 1)) {
        *id = -1;
        return TOOK_STOP;
    }
    int end = *id < 0 ? -1 : job_token(j, g->session, *id, r->logits, e);
    if (end)
        return end < 0 ? TOOK_ERROR : TOOK_STOP;
    if (j->made == j->request.most)
        return len == g->room ? TOOK_FULL : TOOK_LENGTH;
    if (j->request.write_seconds > 0 && j->line && clock_now() - j->first > j->request.write_seconds)
        return TOOK_LENGTH;
    return TOOK_ONE;
}

/* Shares whole pages as soon as they are computed. */
static void engine_keep(struct engine *g, struct job *j)
{
    uint32_t whole = j->seq->len / RUNNER_PAGE * RUNNER_PAGE;
    if (whole > j->kept)
        prefix_insert(g->prefix, j->request.salt, j->seq, whole);
    j->kept = whole;
}

/* Takes the results that score tokens of the prompt; returns whether others are left. */
static bool engine_score(struct engine *g, uint32_t part, struct result *r)
{
    struct job *j = g->owner[part];
    uint32_t rows = g->parts[part].outs, vocab = g->session->model->plan.out_width, had = j->scored;
    if (had == j->prompt)
        return rows > 0;
    job_score(j, vocab, r->logits, rows);
    r->logits += (size_t)(j->scored - had) * vocab;
    return j->scored - had < rows;
}

/* The results of one part: a token, and the draft tokens that the model accepts. */
static void engine_take(struct engine *g, uint32_t part, struct result r)
{
    struct job *j = g->owner[part];
    struct err e = {0};
    uint32_t right = 0, made = j->made, base = j->seq->len - j->draft;
    enum took took;
    for (;; right++) {
        int32_t id;
        took = engine_token(g, j, &r, &id, &e);
        if (took != TOOK_ONE || right == j->draft || id != j->seq->ids[base + right])
            break;
        r.logits += g->session->model->plan.out_width;
        r.pick += r.pick != NULL;
    }
    seq_truncate(j->seq, base + right);
    engine_keep(g, j);
    engine_learn(g, j, right);
    pthread_mutex_lock(&g->mutex);
    g->stats.drafted += j->draft;
    g->stats.accepted += right;
    g->stats.forced += j->speculate_kind == SPECULATE_CONSTRAINT ? right : 0;
    g->stats.made_tokens += j->made - made;
    if (!made && j->made) {
        g->stats.cached_tokens += j->cached;
        prefix_count(g->prefix, j->cached, j->prompt);
    }
    pthread_mutex_unlock(&g->mutex);
    if (took == TOOK_ONE) {
        g->news = j->news = true;
        return;
    }
    engine_end(g, j,
               &(struct job_end){.finish = took == TOOK_STOP ? FINISH_STOP : FINISH_LENGTH,
                                 .context_full = took == TOOK_FULL,
                                 .err = took == TOOK_ERROR ? &e : NULL});
}

static void step_rows_add(struct step_rows *s, uint32_t rows)
{
    uint32_t i = 0;
    while (i < STEP_SIZES && rows > step_rows_bound(i))
        i++;
    s->steps[i]++;
    s->rows += rows;
}

static void engine_measure(struct engine *g, uint32_t parts)
{
    double start = g->session->runner->began, now = clock_now(), seconds = now - start,
           waited = g->done > 0 ? start - g->done : 0;
    uint32_t rows = 0, prompt = 0, read = 0;
    for (uint32_t i = 0; i < parts; i++) {
        const struct seq_rows *p = &g->parts[i];
        rows += p->n;
        prompt += g->owner[i]->made ? 0 : p->n - g->owner[i]->draft;
        read += p->n > 1 && !g->owner[i]->draft ? p->n : 0;
    }
    engine_learn_cost(g, parts, seconds);
    if (g->beside)
        batch_room_note(&g->batch_room, g->batch_rows, seconds);
    if (read >= STEP_CHUNK_LEAST)
        g->costs.row = g->costs.row > 0 ? 0.7 * g->costs.row + 0.3 * seconds / rows : seconds / rows;
    pthread_mutex_lock(&g->mutex);
    g->stats.steps++;
    g->stats.failing = 0;
    step_rows_add(&g->stats.sizes, rows);
    g->stats.prompt_tokens += prompt;
    g->stats.step_us += (uint64_t)(1e6 * seconds);
    g->stats.host_us += (uint64_t)(1e6 * waited);
    g->stats.last_step = now;
    pthread_mutex_unlock(&g->mutex);
    g->done = now;
}

/* A failed step ends its requests with the error; the engine continues. */
static void engine_fail(struct engine *g, const struct err *e)
{
    pthread_mutex_lock(&g->mutex);
    g->stats.failing += e->code == ERR_DEVICE;
    pthread_mutex_unlock(&g->mutex);
    while (g->count)
        engine_end(g, g->running[g->count - 1], &(struct job_end){.finish = FINISH_CANCEL, .err = e});
}

/* Whether a stream waits for a token while prompts are read. */
static bool engine_decodes(const struct engine *g)
{
    bool any = false;
    for (uint32_t i = 0; i < g->count; i++)
        any |= !job_reads(g->running[i]);
    return any;
}

/* Publishes the tokens of the previous step to the clients. */
static void engine_tell(struct engine *g)
{
    for (uint32_t i = 0; i < g->count && g->news; i++) {
        if (g->running[i]->news)
            job_publish(g->running[i]);
        g->running[i]->news = false;
    }
    g->news = false;
}

/* Prepares the next step while the device runs this one: admits waiting requests, with their cached pages and
 * pages for the rest, and evicts idle pages to make room for every job's next token. */
static void engine_prepare(struct engine *g)
{
    struct page_need need = {0};
    mem_guard(false);
    while (engine_admit(g))
        ;
    mem_guard(g->o.guard);
    for (uint32_t i = 0; i < g->count; i++)
        engine_need(&need, &(struct seq_rows){.seq = g->running[i]->seq, .n = 1});
    prefix_make_room(g->prefix, &need);
}

/* Runs the step. While an asynchronous device computes it, the tokens of the last step are published and the
 * next is prepared. */
static int engine_compute(struct engine *g, uint32_t parts, struct result *out, struct err *e)
{
    struct runner *r = g->session->runner;
    bool numbers = false, picks = false;
    engine_ask_picks(g, parts);
    for (uint32_t i = 0; i < parts; i++) {
        picks |= g->parts[i].pick != NULL;
        numbers |= g->parts[i].outs && !g->parts[i].pick;
    }
    if (runner_step(r, g->parts, parts, e))
        return -1;
    engine_tell(g);
    g->computing = true;
    if (r->device->ops->ahead)
        engine_prepare(g);
    g->computing = false;
    if (picks && !(out->pick = runner_picks(r, e)))
        return -1;
    return (numbers || !picks) && !(out->logits = runner_results(r, e)) ? -1 : 0;
}

void engine_step(struct engine *g)
{
    struct err e = {0};
    mem_guard(g->o.guard);
    prefix_budget(g->prefix, engine_decodes(g) ? g->o.gap / 2 : INFINITY);
    for (uint32_t i = 0; i < g->count; i++) {
        engine_catch_up(g, g->running[i]);
        seq_leave_behind(g->running[i]->seq);
    }
    engine_speculate(g);
    engine_ask_batch(g);
    uint32_t parts = engine_compose(g);
    if (!engine_pages_suffice(g, parts)) /* no more slots of state get memory now: fewer draft tokens */
        parts = engine_compose(g);
    while (!engine_pages_suffice(g, parts) && g->count > 1) {
        engine_tell(g);
        engine_preempt(g);
        g->crowded = true;
        parts = engine_compose(g);
    }
    if (g->count == 1 && !engine_pages_suffice(g, parts)) {
        prefix_clear(g->prefix); /* without shared pages the pool holds one request */
        parts = engine_compose(g);
    }
    struct result all = {0};
    if (!parts) /* the images of all prompts are still being encoded */
        engine_tell(g);
    else if (engine_compute(g, parts, &all, &e))
        engine_fail(g, &e);
    else {
        engine_measure(g, parts);
        for (uint32_t i = 0, at = 0; i < parts; i++) {
            struct result r = {.pick = g->parts[i].pick ? all.pick + at : NULL};
            if (all.logits)
                r.logits = all.logits + (size_t)at * g->session->model->plan.out_width;
            at += g->parts[i].outs;
            if (engine_score(g, i, &r))
                engine_take(g, i, r);
            else
                engine_keep(g, g->owner[i]);
        }
    }
    prefix_save(g->prefix, false);
    if (!g->session->runner->device->ops->ahead)
        engine_tell(g);
    mem_guard(false);
}
