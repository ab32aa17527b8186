#define _GNU_SOURCE
#include "run/embedder.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum { EMBED_TOKENS = 8192, EMBED_YIELD = 5000000 /* ns */ };

/* A text that is being read. */
struct embed_slot {
    struct seq *seq;
    struct embed_job *job; /* NULL = free */
    size_t text;
    uint32_t at; /* tokens read */
    float *sum;  /* (width): of the rows that were read */
};

struct embedder {
    struct session *session;
    struct pooler pooler;
    struct rerank_head *head; /* or NULL */
    pthread_t thread;
    atomic_uint *users; /* jobs of no batch here and elsewhere; NULL = not counted */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct embed_job *queue; /* jobs with texts that have not started; those of batches are the last */
    struct embedder_stats stats;
    uint32_t own; /* jobs of no batch that are not done */
    bool closing;
    /* used by the thread only */
    struct embed_slot *slots; /* (count) */
    uint32_t count, busy;
    uint32_t pages;            /* not reserved */
    struct seq_rows *parts;    /* (count): the step */
    struct embed_slot **owner; /* (count): whose part it is */
};

static uint32_t embed_pages(uint64_t tokens)
{
    return (uint32_t)((tokens + RUNNER_PAGE - 1) / RUNNER_PAGE);
}

void embedder_runner(struct runner_options *r, bool causal, uint32_t ctx, uint32_t texts)
{
    r->ctx = ctx;
    r->seqs = texts;
    r->kv_whole = true; /* texts are admitted by the pages that there are */
    r->chunk = causal || ctx < RUNNER_CHUNK ? RUNNER_CHUNK : ctx;
    r->outs = r->chunk;
    /* most texts are short: the pool has room for one text of the full context, and for this much more */
    uint64_t tokens = ctx > EMBED_TOKENS ? ctx : EMBED_TOKENS, most = (uint64_t)ctx * texts;
    r->pages = embed_pages(tokens < most ? tokens : most) + texts;
}

/* ---- clients ---- */

static int embedder_check(const struct embedder *m, const struct embed_job *j, struct err *e)
{
    uint32_t ctx = m->session->runner->ctx, vocab = m->session->model->h.vocab;
    for (size_t i = 0; i < j->count; i++) {
        const struct ids *t = &j->texts[i];
        if (!t->len)
            return err_set(e, ERR_USAGE, "text %zu is empty: there is nothing to embed", i);
        if (t->len > ctx)
            return err_set(e, ERR_USAGE,
                           "This model's maximum context length is %u tokens; text %zu has %zu. Shorten it.",
                           ctx, i, t->len);
        for (size_t k = 0; k < t->len; k++)
            if (step_token(t->data[k]) >= vocab)
                return err_set(e, ERR_USAGE, "token %zu of text %zu is %d; the vocabulary has 0 to %u", k, i,
                               t->data[k], vocab - 1);
    }
    return 0;
}

/* A job of no batch comes (1), or is done (-1). The mutex is held. */
static void embedder_count(struct embedder *m, const struct embed_job *j, int by)
{
    if (j->batch)
        return;
    m->own += (uint32_t)by;
    if (m->users)
        atomic_fetch_add(m->users, (unsigned)by);
}

/* Behind all of its kind; those of batches behind all others. The mutex is held. */
static void embedder_queue(struct embedder *m, struct embed_job *j)
{
    struct embed_job **at = &m->queue;
    while (*at && (j->batch || !(*at)->batch))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
}

int embedder_submit(struct embedder *m, struct embed_job *j, struct err *e)
{
    if (embedder_check(m, j, e))
        return -1;
    j->begun = j->ended = 0;
    j->next = NULL;
    j->err.code = ERR_NONE;
    pthread_mutex_lock(&m->mutex);
    bool closing = m->closing;
    if (!closing) {
        embedder_queue(m, j);
        embedder_count(m, j, 1);
        m->stats.jobs++;
        m->stats.waiting++;
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->mutex);
    return closing ? err_set(e, ERR_RESOURCE, "the model is being unloaded") : 0;
}

const struct rerank_head *embedder_head(const struct embedder *m)
{
    return m->head;
}

const struct pooler *embedder_pooler(const struct embedder *m)
{
    return &m->pooler;
}

void embedder_stats(struct embedder *m, struct embedder_stats *out)
{
    pthread_mutex_lock(&m->mutex);
    *out = m->stats;
    pthread_mutex_unlock(&m->mutex);
}

/* ---- the thread ---- */

/* `texts` more texts of a job are done; the last one ends the job. */
static void embedder_end(struct embedder *m, struct embed_job *j, size_t texts)
{
    j->ended += texts;
    bool all = j->ended == j->count;
    pthread_mutex_lock(&m->mutex);
    m->stats.texts += j->err.code ? 0 : texts;
    m->stats.waiting -= all;
    if (all)
        embedder_count(m, j, -1);
    m->stats.failed += all && j->err.code;
    pthread_mutex_unlock(&m->mutex);
    if (all)
        j->done(j->arg);
}

/* The next text of the first job, which then goes behind those of its kind; false: there is none. The rest of
 * a failed or cancelled job is skipped: *skipped, *rest. */
static bool embedder_next(struct embedder *m, struct embed_slot *s, struct embed_job **skipped, size_t *rest)
{
    pthread_mutex_lock(&m->mutex);
    struct embed_job *j = m->queue;
    *skipped = NULL;
    uint32_t pages = j && j->begun < j->count ? embed_pages(j->texts[j->begun].len) : 0;
    if (pages > m->pages) /* when others have ended */
        j = NULL;
    if (j) {
        m->queue = j->next;
        j->next = NULL;
        bool over = j->err.code || m->closing || (j->cancel && atomic_load(j->cancel));
        if (over) {
            *skipped = j;
            *rest = j->count - j->begun;
            j->begun = j->count;
            err_set(&j->err, ERR_INTERRUPTED, "the request for embeddings was cancelled");
        } else {
            *s = (struct embed_slot){.seq = s->seq, .sum = s->sum, .job = j, .text = j->begun++};
            memset(s->sum, 0, m->pooler.width * sizeof *s->sum);
            m->pages -= pages;
            if (j->begun < j->count)
                embedder_queue(m, j);
        }
    }
    pthread_mutex_unlock(&m->mutex);
    return j != NULL;
}

static void embedder_fill(struct embedder *m)
{
    for (uint32_t i = 0; i < m->count;) {
        struct embed_slot *s = &m->slots[i];
        struct embed_job *skipped;
        size_t rest;
        if (s->job) {
            i++;
            continue;
        }
        if (!embedder_next(m, s, &skipped, &rest))
            return;
        if (skipped)
            embedder_end(m, skipped, rest);
        else
            m->busy++;
    }
}

static enum pooling embedder_pooling(const struct embedder *m, const struct embed_job *j)
{
    return j->scored ? rerank_pooling(m->head) : m->pooler.kind;
}

static uint32_t embedder_compose(struct embedder *m)
{
    uint32_t room = m->session->runner->chunk, parts = 0;
    bool whole = !m->session->model->h.causal;
    for (uint32_t i = 0; i < m->count; i++) {
        struct embed_slot *s = &m->slots[i];
        if (!s->job || !room)
            continue;
        const struct ids *t = &s->job->texts[s->text];
        uint32_t left = (uint32_t)t->len - s->at, n = left < room ? left : room;
        if (whole && n < left) /* in a later step: one text always fits */
            continue;
        m->owner[parts] = s;
        m->parts[parts++] =
            (struct seq_rows){.seq = s->seq,
                              .ids = t->data + s->at,
                              .n = n,
                              .outs = pooler_outs(embedder_pooling(m, s->job), s->at, n, (uint32_t)t->len)};
        room -= n;
    }
    return parts;
}

/* Takes a step's results for a text; err: the step failed. */
static void embedder_take(struct embedder *m, uint32_t part, const float *results, const struct err *err)
{
    struct embed_slot *s = m->owner[part];
    struct embed_job *j = s->job;
    enum pooling kind = embedder_pooling(m, j);
    uint32_t width = m->pooler.width, outs = m->parts[part].outs;
    s->at += m->parts[part].n;
    if (err)
        err_set(&j->err, err->code, "%s", err->text);
    else
        pooler_add(kind, results, outs, s->at - outs, width, s->sum);
    if (!err && s->at < j->texts[s->text].len)
        return;
    if (!err && j->scored) {
        pooler_divide(kind, s->at, width, s->sum);
        memcpy(j->out + s->text * width, s->sum, width * sizeof *j->out);
    } else if (!err) {
        pooler_finish(&m->pooler, s->at, s->sum, j->out + s->text * m->pooler.out_width, &j->err);
    }
    seq_truncate(s->seq, 0);
    m->pages += embed_pages(j->texts[s->text].len);
    s->job = NULL;
    m->busy--;
    embedder_end(m, j, 1);
}

static void embedder_step(struct embedder *m)
{
    struct runner *r = m->session->runner;
    struct err e = {0};
    uint32_t parts = embedder_compose(m), tokens = 0;
    const float *results = runner_step(r, m->parts, parts, &e) ? NULL : runner_results(r, &e);
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t outs = m->parts[i].outs;
        tokens += m->parts[i].n;
        embedder_take(m, i, results, results ? NULL : &e);
        results += results ? outs * m->session->model->h.width : 0;
    }
    pthread_mutex_lock(&m->mutex);
    m->stats.tokens += tokens;
    m->stats.last_step = clock_now();
    pthread_mutex_unlock(&m->mutex);
}

static bool embedder_wait(struct embedder *m)
{
    pthread_mutex_lock(&m->mutex);
    while (!m->queue && !m->busy && !m->closing)
        pthread_cond_wait(&m->work, &m->mutex);
    bool on = m->queue || m->busy;
    pthread_mutex_unlock(&m->mutex);
    return on;
}

/* Where only jobs of batches are there, and others have some of no batch: waits a moment. */
static bool embedder_yields(struct embedder *m)
{
    pthread_mutex_lock(&m->mutex);
    bool yields = m->users && !m->own && !m->closing && atomic_load(m->users) > 0;
    m->stats.last_step = yields ? clock_now() : m->stats.last_step; /* it is not stuck */
    pthread_mutex_unlock(&m->mutex);
    if (yields)
        nanosleep(&(struct timespec){.tv_nsec = EMBED_YIELD}, NULL);
    return yields;
}

static void *embedder_thread(void *arg)
{
    struct embedder *m = arg;
    while (embedder_wait(m)) {
        embedder_fill(m);
        if (m->busy && !embedder_yields(m))
            embedder_step(m);
    }
    return NULL;
}

/* ---- open and close ---- */

static void embedder_free(struct embedder *m)
{
    for (uint32_t i = 0; m->slots && i < m->count; i++) {
        seq_close(m->slots[i].seq);
        mem_free(m->slots[i].sum);
    }
    pooler_close(&m->pooler);
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->work);
    rerank_close(m->head);
    mem_free(m->slots);
    mem_free(m->parts);
    mem_free(m->owner);
    mem_free(m);
}

static int embedder_start(struct embedder *m, struct err *e)
{
    m->slots = mem_zalloc(m->count, sizeof *m->slots);
    m->parts = mem_alloc(m->count, sizeof *m->parts);
    m->owner = mem_alloc(m->count, sizeof(struct embed_slot *));
    if (!m->slots || !m->parts || !m->owner)
        return err_memory(e, "the embedder", m->count * sizeof *m->slots);
    for (uint32_t i = 0; i < m->count; i++) {
        if (!(m->slots[i].sum = mem_alloc(m->pooler.width, sizeof(float))))
            return err_memory(e, "the embedder", m->pooler.width * sizeof(float));
        if (!(m->slots[i].seq = seq_open(m->session->runner, e)))
            return -1;
    }
    int r = pthread_create(&m->thread, NULL, embedder_thread, m);
    return r ? err_set(e, ERR_RESOURCE, "cannot start the embedder's thread: %s", strerror(r)) : 0;
}

int embedder_open(struct embedder **out, struct session *l, atomic_uint *users, struct err *e)
{
    struct embedder *m = mem_zalloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(e, "the embedder", sizeof *m);
    m->session = l;
    m->users = users;
    m->count = l->runner->most_seqs;
    m->pages = l->runner->pages[0].count - 1;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->work, NULL);
    if (pooler_open(&m->pooler, l->store, &l->model->h, e) || rerank_open(&m->head, l, e) ||
        embedder_start(m, e)) {
        embedder_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

void embedder_close(struct embedder *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->mutex);
    m->closing = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->mutex);
    pthread_join(m->thread, NULL);
    embedder_free(m);
}
