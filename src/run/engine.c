#define _GNU_SOURCE
#include "run/engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "model/lora.h"
#include "run/engine_internal.h"

#include <math.h>
#include <signal.h>
#include <string.h>

static const double ENGINE_YIELD = 0.005; /* seconds */

/* ---- clients ---- */

static int engine_check(const struct engine *g, const struct engine_request *r, struct err *e)
{
    uint32_t vocab = g->session->model->plan.out_width;
    if (!r->n)
        return err_set(e, ERR_USAGE, "the prompt is empty: there is nothing to continue");
    if (r->n > g->room)
        return err_set(e, ERR_RESOURCE, "the prompt has %u tokens and there is room for %u: %u too many",
                       r->n, g->room, r->n - g->room);
    if (r->echo && !r->logprobs)
        return err_set(e, ERR_USAGE, "echo is for log-probabilities: the request does not ask for any");
    if (r->logit_rows && (!r->prompt_only || r->echo || r->logit_rows > r->n))
        return err_set(e, ERR_USAGE, "logits are of a prompt's tokens alone: %u rows of %u tokens",
                       r->logit_rows, r->n);
    if (r->top_logprobs > ENGINE_TOP_MOST)
        return err_set(e, ERR_USAGE, "top_logprobs is %u; the most is %d", r->top_logprobs, ENGINE_TOP_MOST);
    for (uint32_t i = 0; i < r->n; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= vocab)
            return err_set(e, ERR_USAGE, "token %u of the prompt is %d; the vocabulary has 0 to %u", i,
                           r->prompt[i], vocab - 1);
    for (size_t i = 0; i < r->stops; i++)
        if (!*r->stop_strings[i])
            return err_set(e, ERR_USAGE, "stop string %zu is empty", i);
    return sampler_check(&r->sampler, vocab, e);
}

/* How many jobs are in the engine, of batches or of others. The mutex is held. */
static uint32_t engine_holds(const struct engine *g, bool batch)
{
    const struct engine_stats *s = &g->stats;
    uint32_t of_batches = s->batch_running + s->batch_waiting;
    return batch ? of_batches : s->running + s->waiting - of_batches;
}

/* A job begins to wait (1), or does no longer (-1). The mutex is held. */
static void engine_count_waiting(struct engine *g, const struct job *j, int by)
{
    g->waiting[j->request.batch].bytes += by > 0 ? j->bytes : -j->bytes;
    g->stats.waiting += (uint32_t)by;
    g->stats.batch_waiting += j->request.batch ? (uint32_t)by : 0;
    for (uint32_t i = 0; i < j->request.lora.count; i++)
        g->stats.lora_waiting[j->request.lora.id[i] - 1] += (uint32_t)by;
}

/* The mutex is held. */
static void engine_count_running(struct engine *g)
{
    g->stats.running = g->count;
    g->stats.batch_running = g->count - g->users;
    memset(g->stats.lora_running, 0, sizeof g->stats.lora_running);
    for (uint32_t i = 0; i < g->count; i++)
        for (uint32_t k = 0; k < g->running[i]->request.lora.count; k++)
            g->stats.lora_running[g->running[i]->request.lora.id[k] - 1]++;
}

/* The mutex is held. */
static bool engine_has_waiting(const struct engine *g)
{
    return g->waiting[QUEUE_USERS].first || g->waiting[QUEUE_BATCH].first;
}

/* Puts a job at the end of its queue, unless that is full. */
static int engine_queue(struct engine *g, struct job *j, struct err *e)
{
    struct job_queue *q = &g->waiting[j->request.batch];
    pthread_mutex_lock(&g->mutex);
    bool closing = g->closing;
    /* requests that can start at once do not count against the queue's length */
    bool full = engine_holds(g, j->request.batch) >= g->o.queue + g->o.slots;
    bool large = q->first && q->bytes + j->bytes > g->o.queue_bytes;
    if (!closing && !full && !large) {
        g->last_end = engine_has_waiting(g) ? g->last_end : clock_now();
        *q->end = j;
        q->end = &j->next;
        engine_count_waiting(g, j, 1);
        if (g->o.users && !j->request.batch)
            atomic_fetch_add(g->o.users, 1);
        g->stats.submitted++;
        pthread_cond_signal(&g->work);
    } else {
        g->stats.refused++;
        g->turned_away++;
    }
    uint32_t waiting = g->stats.waiting;
    pthread_mutex_unlock(&g->mutex);
    if (closing)
        return err_set(e, ERR_RESOURCE, "the engine is closing and takes no more requests");
    if (large && !full)
        return err_set(e, ERR_RESOURCE,
                       "the queue is full: %u requests are waiting, with %llu MiB of prompts", waiting,
                       (unsigned long long)(g->o.queue_bytes >> 20));
    return full ? err_set(e, ERR_RESOURCE, "the queue is full: %u requests are waiting", g->o.queue) : 0;
}

/* An image whose tokens see each other is computed in one step, beside a row of every other stream. */
static int engine_check_images(const struct engine *g, const struct job *j, struct err *e)
{
    const struct runner *r = g->session->runner;
    const uint32_t longest = job_images_longest(&j->images), most = r->chunk - (g->o.slots - 1);
    return r->span && longest > most
               ? err_set(e, ERR_RESOURCE,
                         "an image of %u tokens is larger than a step has room for (%u): make it smaller",
                         longest, most)
               : 0;
}

/* Its adapters are let go before its client knows that it has ended. */
static void engine_finish(struct engine *g, struct job *j, const struct job_end *end)
{
    session_release(g->session, &j->request.lora);
    job_finish(j, end);
    job_close(j);
}

int engine_submit(struct engine *g, const struct engine_request *r, struct stream **out, struct err *e)
{
    *out = NULL;
    if (engine_check(g, r, e))
        return -1;
    struct engine_request own = *r;
    uint32_t most = g->room - r->n + 1; /* the last token needs no place */
    own.most = r->prompt_only ? 0 : r->most && r->most < most ? r->most : most;
    if (session_hold(g->session, &own.lora, e))
        return -1;
    own.salt = session_salt(g->session, &own.lora, r->salt);
    struct job *j = job_open(g->session, &own, e);
    if (!j) {
        session_release(g->session, &own.lora);
        return -1;
    }
    struct stream *s = j->stream;
    s->owners = 2;
    if (engine_check_images(g, j, e) || engine_queue(g, j, e)) {
        s->owners = 1;
        session_release(g->session, &own.lora);
        job_close(j);
        return -1;
    }
    *out = s;
    return 0;
}

uint32_t engine_retry(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    double seconds = ceil(g->turned_away * g->pace);
    pthread_mutex_unlock(&g->mutex);
    return seconds < 1 ? 1 : seconds < ENGINE_RETRY_MOST ? (uint32_t)seconds : ENGINE_RETRY_MOST;
}

void engine_shed(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    g->shed = true;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->mutex);
}

/* Has the thread attach an adapter; one order at a time. */
static int engine_attach(void *arg, uint32_t place, struct lora *a, struct err *e)
{
    struct engine *g = arg;
    struct engine_order o = {.place = place, .adapter = a};
    pthread_mutex_lock(&g->mutex);
    g->order = &o;
    pthread_cond_signal(&g->work);
    while (!o.done)
        pthread_cond_wait(&g->ordered, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return o.failed ? err_set(e, o.err.code, "%s", o.err.text) : 0;
}

int engine_load_adapter(struct engine *g, const struct adapter_source *s, struct err *e)
{
    return session_load_adapter(g->session, s, engine_attach, g, e);
}

int engine_drop_adapter(struct engine *g, const char *name, uint32_t *users, struct err *e)
{
    int failed = session_drop_adapter(g->session, name, users, e);
    pthread_mutex_lock(&g->mutex);
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->mutex);
    return failed;
}

void engine_stats(struct engine *g, struct engine_stats *out)
{
    pthread_mutex_lock(&g->mutex);
    *out = g->stats;
    pthread_mutex_unlock(&g->mutex);
    constraint_cache_stats(g->session->constraints, &out->constraints);
}

/* ---- the thread ---- */

/* A request has ended and its slot is free. The mutex is held. */
static void engine_learn_pace(struct engine *g)
{
    enum { SMOOTH = 8 }; /* ends that the pace is a mean of, about */
    double now = clock_now(), took = now - g->last_end;
    if (engine_has_waiting(g))
        g->pace += g->pace > 0 ? (took - g->pace) / SMOOTH : took;
    g->last_end = now;
    g->turned_away -= g->turned_away > 0;
}

/* A job has ended. The mutex is held. */
static void engine_count(struct engine *g, const struct job *j, const struct job_end *end)
{
    if (g->o.users && !j->request.batch)
        atomic_fetch_sub(g->o.users, 1);
    bool cancelled = end->finish == FINISH_CANCEL;
    g->stats.failed += end->err != NULL;
    g->stats.cancelled += !end->err && cancelled;
    g->stats.finished += !end->err && !cancelled;
    g->stats.full_length += !end->err && end->finish == FINISH_LENGTH;
    engine_learn_pace(g);
}

/* The prefix tree gets all tokens of a job, and the state after them. */
static void engine_leave(struct engine *g, struct job *j)
{
    seq_want_snapshot(j->seq);
    prefix_insert(g->prefix, j->request.salt, j->seq, j->seq->len);
}

void engine_end(struct engine *g, struct job *j, const struct job_end *end)
{
    uint32_t i = 0;
    while (g->running[i] != j)
        i++;
    memmove(g->running + i, g->running + i + 1, (g->count - i - 1) * sizeof *g->running);
    g->count--;
    g->users -= !j->request.batch;
    g->crowded = false;
    if (!end->err)
        engine_leave(g, j);
    seq_close(j->seq);
    j->seq = NULL;
    pthread_mutex_lock(&g->mutex);
    engine_count(g, j, end);
    engine_count_running(g);
    prefix_stats(g->prefix, &g->stats.prefix); /* with what it leaves */
    pthread_mutex_unlock(&g->mutex);
    engine_finish(g, j, end);
}

void engine_preempt(struct engine *g)
{
    struct job *j = g->running[--g->count];
    struct job_queue *q = &g->waiting[j->request.batch];
    g->users = least(g->users, g->count);
    if (j->seq->states)
        engine_leave(g, j);
    seq_close(j->seq);
    seq_close(j->draft_seq);
    j->seq = j->draft_seq = NULL;
    j->kept = 0;
    pthread_mutex_lock(&g->mutex);
    j->next = q->first;
    q->first = j;
    if (!j->next)
        q->end = &j->next;
    engine_count_waiting(g, j, 1);
    g->stats.preempted++;
    engine_count_running(g);
    pthread_mutex_unlock(&g->mutex);
}

/* Removes the job that *at points to from its queue. The mutex is held. */
static void engine_unqueue(struct engine *g, struct job **at)
{
    struct job *j = *at;
    *at = j->next;
    if (!j->next)
        g->waiting[j->request.batch].end = at;
    j->next = NULL;
    engine_count_waiting(g, j, -1);
    g->turned_away = engine_has_waiting(g) ? g->turned_away : 0; /* an empty queue has room for all */
}

/* Whether there are pages for all tokens that it holds at once, beyond those that it has, and one for each
 * running job. */
static bool engine_fits(struct engine *g, const struct job *j)
{
    const struct runner *r = g->session->runner;
    uint32_t all = seq_need(j->seq, (uint32_t)j->ids.len + 1 - j->seq->len);
    struct page_need need = {.states = r->plan->states > 0};
    for (uint32_t i = 0; i < r->plan->groups; i++)
        need.of[i] = least(all, runner_held_most(r, i)) + g->count;
    return prefix_make_room(g->prefix, &need);
}

uint32_t engine_match(struct engine *g, struct job *j)
{
    uint32_t held = prefix_match(g->prefix, j->request.salt, j->seq, j->ids.data, job_first_result(j));
    if (g->session->runner->span) /* an image whose tokens see each other is computed whole */
        seq_truncate(j->seq, job_images_start(&j->images, held));
    held = j->seq->len;
    j->fetches = prefix_has_more(g->prefix);
    if (prefix_known(g->prefix) >= held + RUNNER_PAGE)
        j->branch = prefix_known(g->prefix);
    return held;
}

/* The next job to be started; NULL = none waits. Only this thread takes from the front. */
static struct job *engine_next(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    struct job *users = g->waiting[QUEUE_USERS].first, *batch = g->waiting[QUEUE_BATCH].first;
    pthread_mutex_unlock(&g->mutex);
    return users ? users : batch;
}

/* Whether a running job of a batch makes way for this one; then it is preempted. */
static bool engine_make_way(struct engine *g, const struct job *j)
{
    if (j->request.batch || g->users == g->count || g->computing)
        return false;
    engine_preempt(g);
    return true;
}

/* Gives a job its sequence, with what is cached of its tokens: *known. false: there is no room for it now. */
static bool engine_open_seq(struct engine *g, struct job *j, uint32_t *known, struct err *e)
{
    if (!(j->seq = seq_open(g->session->runner, e)))
        return true; /* it ends with this error */
    j->seq->lora = j->request.lora;
    j->seq->image = j->images.at;
    j->seq->images = j->images.count;
    *known = engine_match(g, j);
    while (!engine_fits(g, j) && g->count) {
        g->crowded = true;
        if (engine_make_way(g, j))
            continue;
        seq_close(j->seq);
        j->seq = NULL;
        return false;
    }
    return true;
}

/* Puts it among the running jobs: those of batches are the last. */
static void engine_insert(struct engine *g, struct job *j)
{
    uint32_t at = j->request.batch ? g->count : g->users;
    memmove(g->running + at + 1, g->running + at, (g->count - at) * sizeof *g->running);
    g->running[at] = j;
    g->count++;
    g->users += !j->request.batch;
}

/* The ids of images begin anew: what has the old ones goes. */
static void engine_forget_images(struct engine *g)
{
    const uint32_t turns = g->session->tower ? picture_ids_turns(g->session->tower->ids) : 0;
    if (turns != g->image_turns)
        prefix_clear(g->prefix);
    g->image_turns = turns;
}

bool engine_admit(struct engine *g)
{
    engine_forget_images(g);
    struct job *j = engine_next(g);
    struct err e = {0};
    uint32_t known = 0;
    bool alone = j && !j->request.batch && g->users < g->count; /* those that run can make way */
    if (!j || (g->crowded && g->count && !alone))
        return false;
    if ((g->count == g->o.slots && !engine_make_way(g, j)) || !engine_open_seq(g, j, &known, &e))
        return false;
    engine_insert(g, j);
    pthread_mutex_lock(&g->mutex);
    engine_unqueue(g, &g->waiting[j->request.batch].first);
    engine_count_running(g);
    if (!j->made) {
        j->cached = known;
        j->started = clock_now();
        memcpy(j->accept_rate, g->accept_rate, sizeof j->accept_rate);
    }
    pthread_mutex_unlock(&g->mutex);
    if (g->o.draft_model && g->o.draft && !j->images.count) { /* which reads only text */
        struct err none = {0};
        j->draft_seq = seq_open(g->o.draft_model->runner, &none); /* NULL: no draft model for this job */
    }
    if (!j->seq)
        engine_end(g, j, &(struct job_end){.finish = FINISH_CANCEL, .err = &e});
    return true;
}

/* Whether a job has to end now; *end: the reason. */
static bool engine_is_over(const struct job *j, double now, struct job_end *end)
{
    static const struct err late = {.code = ERR_RESOURCE, .text = "the deadline has passed"};
    bool cancelled = atomic_load(&j->stream->cancel);
    bool too_late = j->request.seconds > 0 && now > j->submitted + j->request.seconds;
    *end = (struct job_end){.finish = FINISH_CANCEL, .err = !cancelled && too_late ? &late : NULL};
    return cancelled || too_late;
}

/* Removes the first waiting job that has ended (all: any) from the queue; NULL = there is none. */
static struct job *engine_next_over(struct engine *g, double now, bool all, struct job_end *end)
{
    struct job *j = NULL;
    pthread_mutex_lock(&g->mutex);
    for (int i = 0; i < QUEUES && !j; i++) {
        struct job **at = &g->waiting[i].first;
        while (*at && !engine_is_over(*at, now, end) && !all)
            at = &(*at)->next;
        if ((j = *at)) {
            engine_unqueue(g, at);
            engine_count(g, j, end);
        }
    }
    pthread_mutex_unlock(&g->mutex);
    return j;
}

/* Ends cancelled and overdue jobs, running or waiting, before the step; or all jobs. */
static void engine_sweep(struct engine *g, bool all)
{
    double now = clock_now();
    struct job_end end;
    for (uint32_t i = g->count; i-- > 0;)
        if (engine_is_over(g->running[i], now, &end) || all)
            engine_end(g, g->running[i], &end);
    for (struct job *j; (j = engine_next_over(g, now, all, &end));) {
        g->crowded = false; /* the queue may have a new head */
        engine_finish(g, j, &end);
    }
}

static void engine_count_pages(struct engine *g)
{
    const struct runner *r = g->session->runner;
    struct engine_stats *s = &g->stats;
    s->pages = s->pages_free = s->pages_idle = s->window_pages = s->window_pages_free = 0;
    for (uint32_t i = 0; i < r->plan->groups; i++) {
        bool window = r->plan->group[i].window;
        s->pages += r->pages[i].count - 1;
        uint32_t unused = r->pages[i].unused + r->pages[i].count - r->pages[i].backed;
        s->pages_free += unused;
        s->pages_idle += r->pages[i].idle;
        s->window_pages += window ? r->pages[i].count - 1 : 0;
        s->window_pages_free += window ? unused : 0;
    }
    s->states = r->states.count ? r->states.count - 1 : 0;
    s->states_free = r->states.unused + r->states.count - r->states.backed;
}

/* Between steps: adapters come and go. */
static void engine_adapters(struct engine *g)
{
    session_sweep_adapters(g->session);
    pthread_mutex_lock(&g->mutex);
    struct engine_order *o = g->order;
    g->order = NULL;
    pthread_mutex_unlock(&g->mutex);
    if (!o)
        return;
    o->failed = lora_attach(g->session->model, o->place, o->adapter, &o->err);
    pthread_mutex_lock(&g->mutex);
    o->done = true;
    pthread_cond_signal(&g->ordered);
    pthread_mutex_unlock(&g->mutex);
}

/* An adapter is to come or to go. The mutex is held. */
static bool engine_has_adapters(struct engine *g)
{
    return g->order || atomic_load(&g->session->adapters.left);
}

/* No job is running or waiting. */
static bool engine_is_idle(struct engine *g)
{
    pthread_mutex_lock(&g->mutex);
    bool idle = !g->closing && !engine_has_waiting(g) && !g->count && !engine_has_adapters(g);
    pthread_mutex_unlock(&g->mutex);
    return idle;
}

/* Returns the memory of KV that nothing uses; with `shed`, that of cached prefixes, too. The mutex is held, but not
 * meanwhile. */
static void engine_shrink(struct engine *g, bool shed)
{
    pthread_mutex_unlock(&g->mutex);
    if (shed)
        prefix_clear(g->prefix);
    kv_events_flush(g->events);
    runner_shrink(g->session->runner);
    if (g->o.draft_model)
        runner_shrink(g->o.draft_model->runner);
    pthread_mutex_lock(&g->mutex);
    engine_count_pages(g);
    prefix_stats(g->prefix, &g->stats.prefix);
}

/* Work for later, a little at a time; false: there is none. */
static bool engine_work_ahead(struct engine *g)
{
    struct device *d = g->session->runner->device;
    return prefix_save(g->prefix, true) || (d->ops->warm && d->ops->warm(d));
}

/* Waits for work; false when the engine closes. */
static bool engine_wait(struct engine *g)
{
    const double until = clock_now() + ENGINE_IDLE;
    const struct timespec at = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    bool shrunk = false;
    kv_events_flush(g->events);
    while (engine_is_idle(g) && engine_work_ahead(g))
        ;
    pthread_mutex_lock(&g->mutex);
    engine_count_pages(g);
    prefix_stats(g->prefix, &g->stats.prefix);
    while (!g->closing && !engine_has_waiting(g) && !g->count && !engine_has_adapters(g)) {
        g->done = 0;
        if (g->shed || (!shrunk && clock_now() >= until)) {
            bool shed = g->shed;
            g->shed = false;
            shrunk = true;
            engine_shrink(g, shed);
        } else if (shrunk)
            pthread_cond_wait(&g->work, &g->mutex);
        else
            pthread_cond_timedwait(&g->work, &g->mutex, &at);
    }
    g->shed = false;
    bool closing = g->closing;
    pthread_mutex_unlock(&g->mutex);
    return !closing;
}

/* Encodes an image that a running job needs next, as long as a prompt's part of a step may take: then the others have a
 * step. */
static void engine_encode(struct engine *g)
{
    enum { ENGINE_ENCODE = 1 }; /* seconds after which a cancelled request is noticed */
    struct vision *v = g->session->tower;
    struct err e = {0};
    for (uint32_t i = 0; v && i < g->count; i++) {
        struct job *j = g->running[i];
        int did = j->images.count && !j->fetches
                      ? job_images_encode(&j->images, v, j->seq->len, (uint32_t)j->ids.len,
                                          g->count > 1 ? g->o.gap : ENGINE_ENCODE, &e)
                      : 0;
        if (did < 0)
            engine_end(g, j, &(struct job_end){.finish = FINISH_CANCEL, .err = &e});
        if (did)
            break;
    }
    pthread_mutex_lock(&g->mutex);
    g->stats.images = vision_encoded(v);
    g->stats.last_step = v && v->going ? clock_now() : g->stats.last_step; /* it is not stuck */
    pthread_mutex_unlock(&g->mutex);
}

/* Where only jobs of batches run, and another engine has others: waits a moment, or for such a job of its own. */
static bool engine_yields(struct engine *g)
{
    if (!g->count || g->users || !g->o.users)
        return false;
    const double until = clock_now() + ENGINE_YIELD;
    const struct timespec at = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    pthread_mutex_lock(&g->mutex);
    bool yields = !g->closing && atomic_load(g->o.users) > engine_holds(g, false);
    if (yields) {
        pthread_cond_timedwait(&g->work, &g->mutex, &at);
        g->stats.last_step = clock_now(); /* it is not stuck */
        g->done = 0;
    }
    pthread_mutex_unlock(&g->mutex);
    return yields;
}

static void *engine_thread(void *arg)
{
    struct engine *g = arg;
    while (engine_wait(g)) {
        engine_sweep(g, false);
        engine_adapters(g);
        while (engine_admit(g))
            ;
        if (engine_yields(g))
            continue;
        engine_encode(g);
        if (g->count)
            engine_step(g);
    }
    engine_sweep(g, true);
    engine_adapters(g); /* for whoever waits for it */
    return NULL;
}

static void engine_free(struct engine *g)
{
    prefix_close(g->prefix);
    kv_events_close(g->events);
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->work);
    pthread_cond_destroy(&g->ordered);
    mem_free(g->running);
    mem_free(g->parts);
    mem_free(g->snaps);
    mem_free(g->owner);
    mem_free(g->pick);
    mem_free(g->seen);
    mem_free(g);
}

/* Fills in default options, and computes how many tokens one request can have. */
static void engine_limits(struct engine *g, const struct engine_options *o)
{
    const struct runner *r = g->session->runner;
    g->o = *o;
    g->o.slots = least(o->slots ? o->slots : r->most_seqs, r->most_seqs);
    g->o.slots = least(g->o.slots, least(r->chunk, r->most_outs)); /* every stream has a row in every step */
    g->o.queue = o->queue ? o->queue : ENGINE_QUEUE;
    g->o.queue_bytes = o->queue_bytes ? o->queue_bytes : (uint64_t)ENGINE_QUEUE_MIB << 20;
    g->o.gap = o->gap > 0 ? o->gap : 0.15;
    g->o.snapshot = o->snapshot ? o->snapshot : ENGINE_SNAPSHOT;
    g->o.draft = least(o->draft, SPECULATE_MOST);
    g->costs.flat = o->draft_always;
    accept_rate_begin(g->accept_rate);
    if (o->draft_model)
        g->draft_share = (double)weights_bytes(&o->draft_model->model->weights) /
                         (double)weights_bytes(&g->session->model->weights);
    g->room = r->ctx;
    for (uint32_t i = 0; i < r->plan->groups; i++) {
        uint32_t pages = r->pages[i].count - 1;
        uint64_t tokens = (uint64_t)pages * RUNNER_PAGE;
        if (pages < runner_held_most(r, i))
            g->room = tokens < g->room ? (uint32_t)tokens : g->room;
    }
    engine_count_pages(g);
}

uint32_t engine_snapshots(uint32_t streams)
{
    enum { SNAPSHOTS_LEAST = 16, SNAPSHOTS_EACH = 6 };
    return SNAPSHOTS_LEAST + SNAPSHOTS_EACH * (streams ? streams : 1);
}

/* How many snapshots the prefix tree may have: up to half of the slots are left for the streams and their draft
 * tokens. */
static uint32_t engine_most_snapshots(const struct engine *g)
{
    uint32_t slots = g->stats.states, left = g->o.slots * (2 + g->o.draft);
    uint32_t half = slots / 2 > g->o.slots ? slots / 2 : least(slots, g->o.slots);
    return slots - least(left, half);
}

/* Nodes of the prefix tree: at most as many as pages, since every node holds a page. */
static uint32_t engine_nodes(const struct runner *r)
{
    uint32_t nodes = r->most_seqs * r->table_width;
    for (uint32_t i = 0; i < r->plan->groups; i++)
        if (!r->plan->group[i].window)
            nodes = r->pages[i].count - 1;
    return nodes;
}

int engine_open_disk(struct prefix_disk **out, const struct session *l, const struct engine_options *o,
                     struct err *e)
{
    const struct runner *r = l->runner;
    *out = NULL;
    if (!o->cache_dir || !(r->plan->groups || r->plan->states))
        return 0;
    struct prefix_disk_options d = {.folder = o->cache_dir,
                                    .most =
                                        o->cache_bytes ? o->cache_bytes : (uint64_t)ENGINE_CACHE_GIB << 30,
                                    .computed = session_digest(l),
                                    .tokens = r->table_width * RUNNER_PAGE,
                                    .images = l->tower ? l->tower->ids : NULL};
    for (uint32_t g = 0; g < r->plan->groups; g++)
        d.bytes += r->device->ops->page_bytes(r->device, g);
    if (r->plan->states)
        d.state_bytes = r->device->ops->state_bytes(r->device) + d.bytes;
    return prefix_disk_open(out, &d, e);
}

/* Allocates the arrays for sampling on the device. */
static int engine_open_picks(struct engine *g, struct err *e)
{
    size_t n = g->session->runner->most_outs;
    if (!runner_can_pick(g->session->runner))
        return 0;
    g->pick = mem_alloc(n, sizeof *g->pick);
    g->seen = mem_alloc(n, PICK_SEEN_MOST * sizeof *g->seen);
    return g->pick && g->seen ? 0 : err_memory(e, "the engine", n * PICK_SEEN_MOST * sizeof *g->seen);
}

static int engine_start(struct engine *g, struct err *e)
{
    struct prefix_disk *disk;
    g->running = mem_alloc(g->o.slots, sizeof *g->running);
    g->parts = mem_alloc(g->o.slots, sizeof *g->parts);
    g->owner = mem_alloc(g->o.slots, sizeof *g->owner);
    g->snaps = mem_alloc(g->o.slots, ENGINE_SNAPS * sizeof *g->snaps);
    if (!g->running || !g->parts || !g->owner || !g->snaps)
        return err_memory(e, "the engine", g->o.slots * sizeof *g->parts);
    g->stats.blocks = engine_nodes(g->session->runner);
    if (engine_open_picks(g, e) || engine_open_disk(&disk, g->session, &g->o, e) ||
        prefix_open(&g->prefix, g->session->runner, g->stats.blocks, disk, e) ||
        kv_events_open(&g->events, &g->o.events, e))
        return -1;
    prefix_listen(g->prefix, g->events);
    prefix_limit(g->prefix, engine_most_snapshots(g));
    /* signals go to the clients' threads */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a fault is the thread's own */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&g->thread, NULL, engine_thread, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r ? err_set(e, ERR_RESOURCE, "cannot start the engine's thread: %s", strerror(r)) : 0;
}

int engine_open(struct engine **out, struct session *l, const struct engine_options *o, struct err *e)
{
    struct engine *g = mem_zalloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return err_memory(e, "the engine", sizeof *g);
    g->session = l;
    for (int i = 0; i < QUEUES; i++)
        g->waiting[i].end = &g->waiting[i].first;
    pthread_mutex_init(&g->mutex, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&g->work, &clock);
    pthread_condattr_destroy(&clock);
    pthread_cond_init(&g->ordered, NULL);
    engine_limits(g, o);
    if ((o->draft_model && engine_check_draft(l, o->draft_model, g->o.slots, g->room, e)) ||
        engine_start(g, e)) {
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
