#define _GNU_SOURCE
#include "run/engine.h"

#include "base/mem.h"
#include "run/job.h"

#include <math.h>
#include <string.h>

enum { ENGINE_DRAFT_MOST = 16, ENGINE_NGRAM = 3, ENGINE_CHUNK_LEAST = 16 };

/* The lists `waiting` and the flags are shared with the clients, under the mutex; everything else is
 * the thread's own. */
struct engine {
    struct loaded *loaded;
    struct engine_options o;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct job *waiting, **waiting_end; /* first come, first served */
    bool closing;
    struct engine_stats stats;
    /* the thread's own */
    struct job **running; /* (slots), in order of admission */
    uint32_t count;
    struct prefix *prefix;
    struct seq_rows *parts;                   /* (slots): the step */
    struct job **owner;                       /* (slots): whose part it is */
    int32_t (*drafts)[ENGINE_DRAFT_MOST + 1]; /* (slots) */
    double row_seconds;                       /* what a row of a prompt takes, as measured */
};

/* ---- clients ---- */

int engine_submit(struct engine *g, const struct engine_request *r, struct stream **out, struct err *e)
{
    uint32_t ctx = g->loaded->runner->ctx;
    *out = NULL;
    if (!r->n)
        return err_set(e, ERR_USAGE, "the prompt is empty: there is nothing to go on from");
    if (r->n > ctx)
        return err_set(e, ERR_RESOURCE, "the prompt has %u tokens and the context holds %u: %u too many",
                       r->n, ctx, r->n - ctx);
    if (sampler_check(&r->sampler, g->loaded->model->plan.out_width, e))
        return -1;
    struct engine_request own = *r;
    own.most = r->most && r->most < ctx - r->n + 1 ? r->most : ctx - r->n + 1;
    struct job *j = job_open(g, &own, e);
    if (!j || sampler_open(&j->sampler, &r->sampler, g->loaded->model->plan.out_width, e)) {
        if (j)
            job_close(j);
        return -1;
    }
    j->decoder =
        (struct tok_decoder){.t = g->loaded->tokenizer, .skip_special = !r->show_special, .started = true};
    j->draft_ok = g->o.draft / 2;
    j->stream->owners = 2;
    pthread_mutex_lock(&g->mutex);
    bool full = g->stats.waiting >= g->o.queue || g->closing;
    g->stats.refused += full;
    if (!full) {
        *g->waiting_end = j;
        g->waiting_end = &j->next;
        g->stats.waiting++;
        g->stats.submitted++;
        pthread_cond_signal(&g->work);
    }
    pthread_mutex_unlock(&g->mutex);
    if (full) {
        j->stream->owners = 1;
        job_close(j);
        return err_set(e, ERR_RESOURCE, "the queue is full: %u requests are waiting", g->o.queue);
    }
    *out = j->stream;
    return 0;
}

void engine_stats(struct engine *g, struct engine_stats *out)
{
    pthread_mutex_lock(&g->mutex);
    *out = g->stats;
    pthread_mutex_unlock(&g->mutex);
}

/* ---- the thread ---- */

static void engine_count(struct engine *g, enum finish_kind finish, bool failed)
{
    g->stats.failed += failed;
    g->stats.cancelled += !failed && finish == FINISH_CANCEL;
    g->stats.finished += !failed && finish != FINISH_CANCEL;
}

/* Ends a running job, and leaves what it computed to the prefix tree. */
static void engine_end(struct engine *g, struct job *j, enum finish_kind finish, const struct err *e)
{
    uint32_t i = 0;
    while (g->running[i] != j)
        i++;
    memmove(g->running + i, g->running + i + 1, (g->count - i - 1) * sizeof *g->running);
    g->count--;
    if (!e)
        prefix_insert(g->prefix, j->request.salt, j->seq, j->seq->len);
    job_finish(j, finish, e);
    pthread_mutex_lock(&g->mutex);
    engine_count(g, finish, e != NULL);
    g->stats.running = g->count;
    pthread_mutex_unlock(&g->mutex);
    job_close(j);
}

/* Takes the youngest running job back into the queue, at its front: it keeps its tokens. */
static void engine_preempt(struct engine *g)
{
    struct job *j = g->running[--g->count];
    seq_close(j->seq);
    j->seq = NULL;
    j->state = JOB_WAITING;
    pthread_mutex_lock(&g->mutex);
    j->next = g->waiting;
    g->waiting = j;
    if (!j->next)
        g->waiting_end = &j->next;
    g->stats.waiting++;
    g->stats.preempted++;
    g->stats.running = g->count;
    pthread_mutex_unlock(&g->mutex);
}

static uint32_t engine_free_pages(const struct engine *g)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < g->loaded->model->plan.groups; i++) {
        uint32_t n = g->loaded->runner->pages[i].unused;
        least = n < least ? n : least;
    }
    return least;
}

/* Makes room for so many pages, from what nobody uses. */
static bool engine_make_room(struct engine *g, uint32_t pages)
{
    uint32_t have = engine_free_pages(g);
    if (have < pages)
        prefix_evict(g->prefix, pages - have);
    return engine_free_pages(g) >= pages;
}

/* The first of the queue starts, if there is a slot and room for its tokens. */
static bool engine_admit(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    struct job *j = g->count < g->o.slots ? g->waiting : NULL;
    pthread_mutex_unlock(&g->mutex);
    if (!j)
        return false;
    uint32_t need = (uint32_t)j->ids.len / RUNNER_PAGE + 2;
    if (!j->stream->cancel && !engine_make_room(g, need) && g->count)
        return false;
    pthread_mutex_lock(&g->mutex);
    g->waiting = j->next;
    if (!g->waiting)
        g->waiting_end = &g->waiting;
    g->stats.waiting--;
    g->stats.running = g->count + 1;
    pthread_mutex_unlock(&g->mutex);
    j->next = NULL;
    struct err e = {0};
    g->running[g->count++] = j;
    j->state = JOB_RUNNING;
    if (!(j->seq = seq_open(g->loaded->runner, &e))) {
        engine_end(g, j, FINISH_CANCEL, &e);
        return true;
    }
    /* the last token is always computed: its result is wanted */
    uint32_t cached = prefix_match(g->prefix, j->request.salt, j->seq, j->ids.data, (uint32_t)j->ids.len - 1);
    if (!j->made) {
        j->started = engine_clock();
        pthread_mutex_lock(&j->stream->mutex);
        j->stream->state.cached = cached;
        pthread_mutex_unlock(&j->stream->mutex);
        pthread_mutex_lock(&g->mutex);
        g->stats.cached_tokens += cached;
        pthread_mutex_unlock(&g->mutex);
    }
    return true;
}

/* Jobs that were cancelled or are too late end before the step. */
static void engine_sweep(struct engine *g)
{
    double now = engine_clock();
    for (uint32_t i = g->count; i-- > 0;) {
        struct job *j = g->running[i];
        struct err late = {.code = ERR_RESOURCE, .text = "the deadline has passed"};
        if (j->stream->cancel)
            engine_end(g, j, FINISH_CANCEL, NULL);
        else if (j->request.seconds > 0 && now > j->submitted + j->request.seconds)
            engine_end(g, j, FINISH_CANCEL, &late);
    }
}

/* Guesses what follows: the tokens that came after the last place where the text ended as it does now. */
static uint32_t engine_draft(const struct job *j, uint32_t most, int32_t *out)
{
    const int32_t *ids = j->ids.data;
    size_t n = j->ids.len;
    if (n < 2 * ENGINE_NGRAM)
        return 0;
    for (size_t at = n - ENGINE_NGRAM; at-- > 0;) {
        if (memcmp(ids + at, ids + n - ENGINE_NGRAM, ENGINE_NGRAM * sizeof *ids) != 0)
            continue;
        uint32_t k = 0;
        for (; k < most && at + ENGINE_NGRAM + k < n; k++)
            out[k] = ids[at + ENGINE_NGRAM + k];
        return k;
    }
    return 0;
}

/* The job's part in the step: one row (and guesses), or as much of its prompt as `room` allows. */
static void engine_part(struct engine *g, struct job *j, uint32_t at, uint32_t room, uint32_t rows_left)
{
    uint32_t pending = (uint32_t)j->ids.len - j->seq->len,
             left = g->loaded->runner->ctx - (uint32_t)j->ids.len;
    struct seq_rows *p = &g->parts[at];
    *p = (struct seq_rows){.seq = j->seq, .ids = j->ids.data + j->seq->len};
    g->owner[at] = j;
    j->draft = 0;
    if (pending > 1) {
        p->n = pending < room ? pending : room;
        p->outs = p->n == pending;
        return;
    }
    uint32_t most = j->draft_rest ? 0 : j->draft_ok;
    most = most < left ? most : left;
    most = most < j->request.most - j->made - 1 ? most : j->request.most - j->made - 1;
    most = most + 1 < rows_left ? most : rows_left ? rows_left - 1 : 0;
    if (most) {
        g->drafts[at][0] = j->ids.data[j->ids.len - 1];
        j->draft = engine_draft(j, most, g->drafts[at] + 1);
        p->ids = g->drafts[at];
    }
    j->draft_rest -= j->draft_rest > 0;
    p->n = p->outs = 1 + j->draft;
}

/* Fills the step: every decoding job one row, then prompts in order of admission within the budget. */
static uint32_t engine_compose(struct engine *g)
{
    struct runner *r = g->loaded->runner;
    uint32_t parts = 0, rows = 0, decoding = 0;
    for (uint32_t i = 0; i < g->count; i++)
        decoding += g->running[i]->ids.len - g->running[i]->seq->len == 1;
    for (uint32_t i = 0; i < g->count; i++) {
        struct job *j = g->running[i];
        if (j->ids.len - j->seq->len != 1)
            continue;
        uint32_t spare = r->chunk - rows - (decoding - parts - 1); /* the others' rows are theirs */
        uint32_t outs = r->most_outs - rows - (decoding - parts - 1);
        engine_part(g, j, parts, 0, spare < outs ? spare : outs);
        rows += g->parts[parts++].n;
    }
    /* while others wait for their next token, a prompt gets what fits into the gap */
    uint32_t room = r->chunk - rows;
    if (decoding && g->row_seconds > 0) {
        double fit = g->o.gap / g->row_seconds;
        fit = fit < ENGINE_CHUNK_LEAST ? ENGINE_CHUNK_LEAST : fit;
        room = fit < room ? (uint32_t)fit : room;
    }
    for (uint32_t i = 0; i < g->count && room; i++) {
        struct job *j = g->running[i];
        if (j->ids.len - j->seq->len == 1)
            continue;
        engine_part(g, j, parts, room, 0);
        room -= g->parts[parts++].n;
    }
    return parts;
}

/* Whether the pages for this step are there; where not, somebody has to give way. */
static bool engine_pages_suffice(struct engine *g, uint32_t parts)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < parts; i++)
        need += g->parts[i].n / RUNNER_PAGE + 2;
    return engine_make_room(g, need);
}

enum took { TOOK_ONE, TOOK_STOP, TOOK_LENGTH, TOOK_FULL, TOOK_ERROR };

/* Takes one token for a job from its logits. */
static enum took engine_token(const struct engine *g, struct job *j, const float *logits, int32_t *id,
                              struct err *e)
{
    uint32_t vocab = g->loaded->model->plan.out_width, len = (uint32_t)j->ids.len;
    *id = sampler_pick(j->sampler, logits, j->ids.data, len, len, NULL, e);
    float logprob = *id >= 0 && j->request.logprobs ? (float)sampler_logprob(logits, vocab, *id) : 0;
    int end = *id < 0 ? -1 : job_token(j, g->loaded, *id, logprob, e);
    if (end)
        return end < 0 ? TOOK_ERROR : TOOK_STOP;
    if (j->made == j->request.most)
        return len == g->loaded->runner->ctx ? TOOK_FULL : TOOK_LENGTH;
    return TOOK_ONE;
}

/* Guesses that come true may grow longer; those that fail grow shorter and pause. */
static void engine_learn(struct engine *g, struct job *j, uint32_t right)
{
    if (!j->draft)
        return;
    pthread_mutex_lock(&g->mutex);
    g->stats.drafted += j->draft;
    g->stats.accepted += right;
    pthread_mutex_unlock(&g->mutex);
    if (right == j->draft)
        j->draft_ok = j->draft_ok * 2 < g->o.draft ? j->draft_ok * 2 : g->o.draft;
    else if (!right) {
        j->draft_ok = j->draft_ok > 1 ? j->draft_ok / 2 : 1;
        j->draft_rest = 4;
    }
}

/* The results of one part: a token, and as many of the guesses as turn out to be what the model takes. */
static void engine_take(struct engine *g, uint32_t part, const float *logits)
{
    struct job *j = g->owner[part];
    struct err e = {0};
    uint32_t right = 0, base = j->seq->len - j->draft;
    enum took took;
    for (uint32_t i = 0;; i++) {
        int32_t id;
        took = engine_token(g, j, logits + (size_t)i * g->loaded->model->plan.out_width, &id, &e);
        if (took != TOOK_ONE || i == j->draft || id != g->drafts[part][i + 1])
            break;
        right++;
    }
    seq_truncate(j->seq, base + right);
    engine_learn(g, j, right);
    pthread_mutex_lock(&g->mutex);
    g->stats.made_tokens += right + 1;
    pthread_mutex_unlock(&g->mutex);
    if (took == TOOK_ONE) {
        job_publish(j);
        return;
    }
    j->stream->state.context_full = took == TOOK_FULL;
    engine_end(g, j, took == TOOK_STOP ? FINISH_STOP : FINISH_LENGTH, took == TOOK_ERROR ? &e : NULL);
}

/* A step that fails takes its requests with it; the engine goes on. */
static void engine_fail(struct engine *g, const struct err *e)
{
    while (g->count)
        engine_end(g, g->running[g->count - 1], FINISH_CANCEL, e);
}

static void engine_measure(struct engine *g, uint32_t parts, double seconds)
{
    uint32_t rows = 0, prompt = 0;
    for (uint32_t i = 0; i < parts; i++) {
        rows += g->parts[i].n;
        prompt += g->parts[i].outs != g->parts[i].n ? g->parts[i].n : 0;
    }
    if (prompt >= ENGINE_CHUNK_LEAST)
        g->row_seconds = g->row_seconds > 0 ? 0.7 * g->row_seconds + 0.3 * seconds / rows : seconds / rows;
    pthread_mutex_lock(&g->mutex);
    g->stats.steps++;
    g->stats.prompt_tokens += prompt;
    g->stats.last_step = engine_clock();
    g->stats.pages = g->loaded->model->plan.groups ? g->loaded->runner->pages[0].count - 1 : 0;
    g->stats.pages_free = engine_free_pages(g);
    prefix_stats(g->prefix, &g->stats.prefix);
    pthread_mutex_unlock(&g->mutex);
}

static void engine_step(struct engine *g)
{
    struct err e = {0};
    uint32_t parts = engine_compose(g);
    while (!engine_pages_suffice(g, parts) && g->count > 1) {
        engine_preempt(g);
        parts = engine_compose(g);
    }
    double start = engine_clock();
    const float *results = NULL;
    if (!runner_step(g->loaded->runner, g->parts, parts, &e))
        results = runner_results(g->loaded->runner, &e);
    if (!results) {
        engine_fail(g, &e);
        return;
    }
    engine_measure(g, parts, engine_clock() - start);
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t outs = g->parts[i].outs;
        if (outs)
            engine_take(g, i, results);
        results += (size_t)outs * g->loaded->model->plan.out_width;
    }
}

/* Waits for work; false when the engine closes. */
static bool engine_wait(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    while (!g->closing && !g->waiting && !g->count)
        pthread_cond_wait(&g->work, &g->mutex);
    bool closing = g->closing;
    pthread_mutex_unlock(&g->mutex);
    return !closing;
}

static void *engine_thread(void *arg)
{
    struct engine *g = arg;
    while (engine_wait(g)) {
        while (engine_admit(g))
            ;
        engine_sweep(g);
        if (g->count)
            engine_step(g);
    }
    while (g->count)
        engine_end(g, g->running[g->count - 1], FINISH_CANCEL, NULL);
    for (struct job *j = g->waiting, *next; j; j = next) {
        next = j->next;
        job_finish(j, FINISH_CANCEL, NULL);
        engine_count(g, FINISH_CANCEL, false);
        job_close(j);
    }
    return NULL;
}

static void engine_free(struct engine *g)
{
    prefix_close(g->prefix);
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->work);
    mem_free(g->running);
    mem_free(g->parts);
    mem_free(g->owner);
    mem_free(g->drafts);
    mem_free(g);
}

int engine_open(struct engine **out, struct loaded *l, const struct engine_options *o, struct err *e)
{
    struct engine *g = mem_zalloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return err_memory(e, "the engine", sizeof *g);
    g->loaded = l;
    g->o = *o;
    g->o.slots = o->slots && o->slots < l->runner->most_seqs ? o->slots : l->runner->most_seqs;
    g->o.queue = o->queue ? o->queue : 4 * g->o.slots;
    g->o.gap = o->gap > 0 ? o->gap : 0.1;
    g->o.draft = o->draft < ENGINE_DRAFT_MOST ? o->draft : ENGINE_DRAFT_MOST;
    g->waiting_end = &g->waiting;
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->work, NULL);
    g->running = mem_alloc(g->o.slots, sizeof *g->running);
    g->parts = mem_alloc(g->o.slots, sizeof *g->parts);
    g->owner = mem_alloc(g->o.slots, sizeof *g->owner);
    g->drafts = mem_alloc(g->o.slots, sizeof *g->drafts);
    uint32_t nodes = l->model->plan.groups ? l->runner->pages[0].count : 1;
    int failed = !g->running || !g->parts || !g->owner || !g->drafts
                     ? err_memory(e, "the engine", g->o.slots * sizeof *g->drafts)
                     : prefix_open(&g->prefix, l->runner, nodes, e);
    int r = failed ? 0 : pthread_create(&g->thread, NULL, engine_thread, g);
    if (r)
        failed = err_set(e, ERR_RESOURCE, "cannot start the engine's thread: %s", strerror(r));
    if (failed) {
        engine_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    g->closing = true;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->mutex);
    pthread_join(g->thread, NULL);
    engine_free(g);
}
