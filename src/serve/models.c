#define _GNU_SOURCE
#include "serve/models.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/memory.h"
#include "serve/models_internal.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>

enum {
    MODELS_WAITERS = 256, /* of one instance: further requests are refused */
    MODELS_STUCK = 60,    /* seconds in which an engine that has work takes a step */
    MODELS_FAILING = 3,   /* steps in a row that a device fails: then it has failed */
};

struct instance *models_next(const struct models *m, const struct instance *f)
{
    if (f && f->kind + 1 < INSTANCES)
        return &f->of->instances[f->kind + 1];
    struct served *s = f ? f->of->next : m->all;
    return s ? &s->instances[0] : NULL;
}

/* ---- waits ---- */

static void instance_add_wait(struct instance *f, struct model_wait *w)
{
    w->form = NULL;
    w->next = NULL;
    w->since = w->patient ? INFINITY : clock_now();
    *f->waiting_end = w;
    f->waiting_end = &w->next;
    f->waiters++;
}

static void instance_cut_wait(struct instance *f, struct model_wait **at)
{
    struct model_wait *w = *at;
    *at = w->next;
    if (!w->next)
        f->waiting_end = at;
    w->next = NULL;
    f->waiters--;
}

struct model_wait *instance_waits(struct instance *f)
{
    struct model_wait *all = f->waiting;
    f->waiting = NULL;
    f->waiting_end = &f->waiting;
    if (f->state == INSTANCE_READY)
        f->users += f->waiters;
    for (struct model_wait *w = all; w; w = w->next)
        w->form = f->state == INSTANCE_READY ? f : NULL;
    f->waiters = 0;
    return all;
}

void waits_notify(struct model_wait *all)
{
    for (struct model_wait *next; all; all = next) {
        next = all->next;
        all->ready(all);
    }
}

/* ---- the public functions ---- */

static bool instance_in_memory(const struct instance *f)
{
    return f->state == INSTANCE_READY || f->state == INSTANCE_LEAVING || f->state == INSTANCE_LOADING;
}

uint64_t models_used(const struct models *m)
{
    uint64_t sum = 0;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        sum += instance_in_memory(f) ? f->bytes : 0;
    return sum;
}

static void models_sum(struct engine_stats *sum, const struct engine_stats *e)
{
    sum->running += e->running;
    sum->waiting += e->waiting;
    sum->batch_running += e->batch_running;
    sum->batch_waiting += e->batch_waiting;
    sum->submitted += e->submitted;
    sum->finished += e->finished;
    sum->cancelled += e->cancelled;
    sum->failed += e->failed;
    sum->refused += e->refused;
    sum->full_length += e->full_length;
    sum->prompt_tokens += e->prompt_tokens;
    sum->cached_tokens += e->cached_tokens;
    sum->made_tokens += e->made_tokens;
    sum->steps += e->steps;
    sum->step_us += e->step_us;
    sum->host_us += e->host_us;
    sum->preempted += e->preempted;
    sum->images += e->images;
    sum->drafted += e->drafted;
    sum->accepted += e->accepted;
    sum->forced += e->forced;
    sum->pages += e->pages;
    sum->pages_free += e->pages_free;
    sum->pages_idle += e->pages_idle;
    sum->blocks += e->blocks;
    sum->window_pages += e->window_pages;
    sum->window_pages_free += e->window_pages_free;
    sum->states += e->states;
    sum->states_free += e->states_free;
    sum->prefix.snapshots += e->prefix.snapshots;
    sum->prefix.evicted_snapshots += e->prefix.evicted_snapshots;
    sum->prefix.hits += e->prefix.hits;
    sum->prefix.misses += e->prefix.misses;
    sum->prefix.pages += e->prefix.pages;
    sum->prefix.prompt_tokens += e->prefix.prompt_tokens;
    sum->prefix.hit_tokens += e->prefix.hit_tokens;
    sum->constraints.hits += e->constraints.hits;
    sum->constraints.misses += e->constraints.misses;
    sum->constraints.bytes += e->constraints.bytes;
    sum->sizes.rows += e->sizes.rows;
    for (int i = 0; i <= STEP_SIZES; i++)
        sum->sizes.steps[i] += e->sizes.steps[i];
}

/* Adds the counters of an instance to the totals. */
void models_add_stats(struct models_stats *sum, const struct instance *f)
{
    struct engine_stats e = {0};
    struct embedder_stats v = {0};
    if (f->engine)
        engine_stats(f->engine, &e);
    if (f->embedder)
        embedder_stats(f->embedder, &v);
    models_sum(&sum->engine, &e);
    sum->embedder.texts += v.texts;
    sum->embedder.tokens += v.tokens;
    sum->embedder.jobs += v.jobs;
    sum->embedder.failed += v.failed;
    sum->embedder.waiting += v.waiting;
}

const struct served *models_lock(struct models *m)
{
    pthread_mutex_lock(&m->mutex);
    return m->all;
}

void models_unlock(struct models *m)
{
    pthread_mutex_unlock(&m->mutex);
}

const struct served *models_first(struct models *m)
{
    const struct served *s = m->all;
    while (s && !s->listed)
        s = s->next;
    return s;
}

/* "name", or "name:latest". */
static bool models_is_name(const char *own, const char *name)
{
    size_t n = strlen(own);
    return !strncmp(own, name, n) && (!name[n] || !strcmp(name + n, ":latest"));
}

static const char *models_alias(const struct models *m, const char *name)
{
    for (size_t i = 0; name && i < m->o->alias_count; i++)
        if (models_is_name(m->o->aliases[i], name))
            return m->o->aliases[i];
    return NULL;
}

const char *models_called(const struct models *m, const struct served *s, const char *name)
{
    const char *alias = models_alias(m, name);
    return alias ? alias : s->name;
}

const struct served *models_find(struct models *m, const char *name)
{
    for (const struct served *s = m->all; s; s = s->next)
        if (s->listed && models_is_name(s->name, name))
            return s;
    const struct served_adapter *a = models_adapter(m, name);
    return a ? models_adapted(m, a) : models_alias(m, name) ? models_first(m) : NULL;
}

void models_each(struct models *m, void (*take)(void *arg, const struct served *s, const char *name),
                 void *arg)
{
    const struct served *first = models_first(m);
    for (const struct served *s = m->all; s; s = s->next)
        if (s->listed)
            take(arg, s, s->name);
    for (size_t i = 0; first && i < m->o->alias_count; i++)
        take(arg, first, m->o->aliases[i]);
    for (const struct served_adapter *a = m->adapters; a; a = a->next) {
        const struct served *base = a->ready ? models_adapted(m, a) : NULL;
        if (base)
            take(arg, base, a->name);
    }
}

/* Without a name: the first model that supports the request; for a chat preferably one with a template. */
static struct served *models_default(struct models *m, const struct model_want *want)
{
    struct served *first = NULL;
    for (struct served *s = m->all; s; s = s->next) {
        if (!s->listed || !s->facts.known || s->facts.encoder != (want->kind == INSTANCE_VECTORS))
            continue;
        if (!want->chat || s->facts.can_chat)
            return s;
        first = first ? first : s;
    }
    return first ? first : (struct served *)(uintptr_t)models_first(m);
}

/* The instance for a request; NULL and a failure. */
static struct instance *models_choose(struct models *m, const struct model_want *want, struct failure *f)
{
    bool named = want->name && *want->name;
    struct served *s = named ? (struct served *)models_find(m, want->name) : models_default(m, want);
    if (!s && named)
        failure_set(f, 404, "model_not_found", "model",
                    "there is no model '%s'; /v1/models lists what there is", log_safe(want->name));
    else if (!s)
        failure_set(f, 404, "model_not_found", "model", "there is no model here");
    else if (want->any) {
        bool vectors = s->facts.encoder || (s->instances[INSTANCE_VECTORS].state == INSTANCE_READY &&
                                            s->instances[INSTANCE_WRITER].state != INSTANCE_READY);
        return &s->instances[vectors ? INSTANCE_VECTORS : INSTANCE_WRITER];
    } else if (want->kind == INSTANCE_WRITER && s->facts.encoder)
        failure_set(f, 400, NULL, "model", "%s only makes vectors: use /v1/embeddings", s->name);
    else
        return &s->instances[want->kind];
    return NULL;
}

enum taken models_take(struct models *m, const struct model_want *want, struct model_wait *w)
{
    enum taken result = TAKEN_NONE;
    w->form = NULL;
    w->failure = (struct failure){0};
    w->why = (struct err){0};
    pthread_mutex_lock(&m->mutex);
    struct instance *f = models_choose(m, want, &w->failure);
    if (f && m->closing)
        failure_set(&w->failure, 503, NULL, NULL, "the server is ending and takes no more requests");
    else if (f && f->state == INSTANCE_READY) {
        f->users++;
        w->form = f;
        result = TAKEN_NOW;
        if (m->wanted) /* it may have been idle, and about to return memory for that one */
            pthread_cond_signal(&m->changed);
    } else if (f && f->waiters == MODELS_WAITERS)
        failure_set(&w->failure, 503, NULL, NULL, "%s is being loaded, and %d requests wait for it already",
                    f->of->name, MODELS_WAITERS);
    else if (f) {
        instance_add_wait(f, w);
        if (f->state == INSTANCE_AWAY)
            models_want(m, f);
        pthread_cond_signal(&m->changed);
        result = TAKEN_LATER;
    }
    pthread_mutex_unlock(&m->mutex);
    return result;
}

void models_drop(struct models *m, struct instance *f, double keep)
{
    pthread_mutex_lock(&m->mutex);
    f->users--;
    f->last_used = clock_now();
    f->keep = keep == MODELS_KEEP_DEFAULT ? m->o->keep : keep;
    if (!f->users)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

bool models_unwait(struct models *m, struct model_wait *w)
{
    bool found = false;
    pthread_mutex_lock(&m->mutex);
    for (struct instance *f = models_next(m, NULL); f && !found; f = models_next(m, f))
        for (struct model_wait **at = &f->waiting; *at && !found; at = found ? at : &(*at)->next)
            if (*at == w) {
                instance_cut_wait(f, at);
                found = true;
                break;
            }
    if (found)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    return found;
}

/* Removes the waits that began before `since` and returns them as a list. */
static struct model_wait *models_impatient(struct models *m, double since)
{
    struct model_wait *out = NULL;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        for (struct model_wait **at = &f->waiting, *w; (w = *at);) {
            if (w->since > since) {
                at = &w->next;
                continue;
            }
            instance_cut_wait(f, at);
            w->next = out;
            out = w;
        }
    return out;
}

static void models_refuse_waiting(struct models *m, double since, const char *why)
{
    pthread_mutex_lock(&m->mutex);
    struct model_wait *all = models_impatient(m, since);
    if (all)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    for (struct model_wait *w = all; w; w = w->next)
        failure_set(&w->failure, 503, NULL, NULL, "%s", why);
    waits_notify(all);
}

/* A model whose file has changed takes no more requests; the next request loads the new file. */
static void models_take_out_changed(struct models *m)
{
    pthread_mutex_lock(&m->mutex);
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f)) {
        if (f->state != INSTANCE_READY || !session_is_changed(f->session))
            continue;
        f->state = INSTANCE_LEAVING;
        f->of->stale = true;
        log_warn("%s is taken out: its file was changed while it was in use", f->of->name);
        pthread_cond_signal(&m->changed);
    }
    pthread_mutex_unlock(&m->mutex);
}

void models_expire(struct models *m, double now)
{
    models_take_out_changed(m);
    models_refuse_waiting(m, now - m->o->patience, "the model is still being loaded: try again later");
}

int models_stop(struct models *m, const char *name)
{
    int count = 0;
    pthread_mutex_lock(&m->mutex);
    const struct served *only = name ? models_find(m, name) : NULL;
    for (struct instance *f = models_next(m, NULL); f && (only || !name); f = models_next(m, f))
        if (f->state == INSTANCE_READY && (!only || f->of == only)) {
            f->state = INSTANCE_LEAVING;
            count++;
        }
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    return name && !only ? -1 : count;
}

void models_rescan(struct models *m)
{
    pthread_mutex_lock(&m->mutex);
    m->rescan = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

const char *models_state(const struct served *s)
{
    bool loading = false;
    for (int i = 0; i < INSTANCES; i++) {
        enum instance_state state = s->instances[i].state;
        if (state == INSTANCE_READY || (state == INSTANCE_LEAVING && !s->instances[i].waiters))
            return "loaded";
        loading |= state != INSTANCE_AWAY;
    }
    return loading ? "loading" : "unloaded";
}

uint64_t instance_on_card(const struct instance *f)
{
    double share = f->least ? (double)f->memory.on_card / (double)f->least : 0;
    return share < 1 ? (uint64_t)(share * (double)f->bytes) : f->bytes;
}

/* Adds an instance's memory to its device's total. */
static void models_add_memory(struct models_stats *sum, const struct instance *f)
{
    struct models_device *d = sum->devices;
    while (d < sum->devices + sum->device_count && strcmp(d->name, f->device) != 0)
        d++;
    if (d == sum->devices + MODELS_DEVICES)
        return;
    sum->device_count += d == sum->devices + sum->device_count;
    memcpy(d->name, f->device, sizeof d->name);
    d->memory.weights += f->memory.weights;
    d->memory.kv += f->memory.kv;
    d->memory.scratch += f->memory.scratch;
    d->memory.total = f->memory.total;
}

void models_stats(struct models *m, struct models_stats *out)
{
    pthread_mutex_lock(&m->mutex);
    *out = m->stats;
    out->bytes = models_used(m);
    for (const struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        if (f->state == INSTANCE_READY || f->state == INSTANCE_LEAVING) {
            out->loaded++;
            models_add_stats(out, f);
            models_add_memory(out, f);
        }
    pthread_mutex_unlock(&m->mutex);
}

const char *models_fault(struct models *m)
{
    const char *fault = NULL;
    pthread_mutex_lock(&m->mutex);
    for (const struct instance *f = models_next(m, NULL); f && !fault; f = models_next(m, f)) {
        struct engine_stats e = {0};
        if (f->state != INSTANCE_LOADING && f->engine)
            engine_stats(f->engine, &e);
        if (e.running && e.last_step > 0 && clock_now() - e.last_step > MODELS_STUCK)
            fault = "the engine makes no progress";
        else if (e.failing >= MODELS_FAILING)
            fault = "the device fails";
    }
    pthread_mutex_unlock(&m->mutex);
    return fault;
}

const char *models_unable(struct models *m)
{
    const char *fault = models_fault(m);
    double since = clock_now() - MODELS_FAILED;
    bool any = false, able = false;
    pthread_mutex_lock(&m->mutex);
    for (const struct served *s = m->all; s; s = s->next) {
        any |= s->listed;
        able |= s->listed && (!s->failed || s->failed < since);
    }
    pthread_mutex_unlock(&m->mutex);
    return fault ? fault : able ? NULL : any ? "no model can be loaded" : "there is no model";
}

/* ---- opening and closing ---- */

bool models_preload(struct models *m, struct model_wait *w)
{
    struct model_want want = {.kind = INSTANCE_WRITER, .any = true};
    w->patient = true;
    return models_take(m, &want, w) == TAKEN_LATER;
}

int models_preloaded(struct models *m, struct model_wait *w, struct err *e)
{
    if (w->form)
        models_drop(m, w->form, MODELS_KEEP_DEFAULT);
    else if (w->why.code)
        err_set(e, w->why.code, "%s", w->why.text);
    else
        err_set(e, ERR_DATA, "%s", w->failure.err.text);
    return w->form ? 0 : -1;
}

static int models_start(struct models *m, struct err *e)
{
    struct memory have;
    memory_read(&have);
    m->room = m->o->memory ? m->o->memory : have.available - have.available / 16;
    sigset_t all, before; /* the loop handles signals */
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* faults are delivered to the thread itself */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = pthread_create(&m->thread, NULL, models_thread, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    m->running = !r;
    return r ? err_set(e, ERR_RESOURCE, "cannot start a thread: %s", strerror(r)) : 0;
}

int models_open(struct models **out, const struct models_options *o, struct err *e)
{
    struct models *m = mem_zalloc(1, sizeof *m);
    pthread_condattr_t clock;
    *out = NULL;
    if (!m)
        return err_memory(e, "the models", sizeof *m);
    m->o = o;
    m->wanted_end = &m->wanted;
    m->adapters_end = &m->adapters;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (models_open_adapters(m, e) || models_scan(m, e) || models_start(m, e)) {
        models_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

void models_shut(struct models *m)
{
    pthread_mutex_lock(&m->mutex);
    m->closing = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    models_refuse_waiting(m, 1e18, "the server is ending and takes no more requests");
}

void models_close(struct models *m)
{
    if (!m)
        return;
    models_shut(m);
    if (m->running)
        pthread_join(m->thread, NULL);
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f)) {
        engine_close(f->engine);
        embedder_close(f->embedder);
        session_close(f->session);
    }
    models_free_list(m);
    models_free_adapters(m);
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->changed);
    mem_free(m);
}
