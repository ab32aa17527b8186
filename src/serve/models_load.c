/* The thread that loads, unloads and evicts models. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/kv_publisher.h"
#include "serve/models_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the queue of wanted instances ---- */

void models_want(struct models *m, struct instance *f)
{
    f->state = INSTANCE_WANTED;
    f->next_wanted = NULL;
    *m->wanted_end = f;
    m->wanted_end = &f->next_wanted;
}

static struct instance *models_unwant(struct models *m)
{
    struct instance *f = m->wanted;
    if (!(m->wanted = f->next_wanted))
        m->wanted_end = &m->wanted;
    return f;
}

/* ---- room ---- */

/* An estimate of a model's memory with room for `seqs` sequences. */
static uint64_t models_estimate(const struct served_facts *k, uint32_t seqs)
{
    uint64_t slots = seqs + 1 > RUNNER_STATES_LEAST ? seqs + 1 : RUNNER_STATES_LEAST;
    return k->bytes + k->kv_bytes * runner_kv_tokens(0, k->context, seqs) +
           k->kv_window_bytes * runner_kv_tokens(k->window, k->context, seqs) + k->state_bytes * slots;
}

/* What the instance holds when it is loaded: measured the last time, or estimated. An engine starts with KV for one
 * sequence, and takes more as requests grow. */
static uint64_t models_need(const struct models *m, const struct instance *f)
{
    uint32_t seqs = f->kind == INSTANCE_VECTORS ? m->o->texts : 1;
    return f->least ? f->least : models_estimate(&f->of->facts, seqs);
}

/* Asks idle engines to return what they hold for cached prefixes; returns how much that is. */
static uint64_t models_shed(struct models *m, const struct instance *but)
{
    uint64_t bytes = 0;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        if (f != but && f->state == INSTANCE_READY && !f->users && f->engine && f->bytes > f->least) {
            engine_shed(f->engine);
            bytes += f->bytes - f->least;
        }
    return bytes;
}

/* On the engine's thread: KV of an instance is to hold `to` bytes, not `from`. */
static bool models_resize(void *arg, uint64_t from, uint64_t to)
{
    struct instance *f = arg;
    struct models *m = f->all;
    pthread_mutex_lock(&m->mutex);
    bool fits = to <= from || models_used(m) + (to - from) <= m->room;
    if (fits) {
        f->bytes = f->bytes + to - from;
        f->memory.kv = f->memory.kv + to - from;
    } else
        models_shed(m, f);
    if (to < from)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    return fits;
}

/* The next instance but this one to evict: an idle one before one in use, then the least recently used. */
static struct instance *models_victim(const struct models *m, const struct instance *but)
{
    struct instance *best = NULL;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f)) {
        if (f->state != INSTANCE_READY || f == but)
            continue;
        bool idler = best && !f->users && best->users, same = best && !f->users == !best->users;
        if (!best || idler || (same && f->last_used < best->last_used))
            best = f;
    }
    return best;
}

/* Whether there is room for the instance. If not, idle ones return their cached prefixes; if that is not enough, others are
 * marked for eviction, least recently used first. */
static bool models_has_room(struct models *m, const struct instance *f)
{
    uint64_t need = models_need(m, f), used = models_used(m), leaving = 0;
    if (!used || used + need <= m->room)
        return true;
    for (const struct instance *x = models_next(m, NULL); x; x = models_next(m, x))
        leaving += x->state == INSTANCE_LEAVING ? x->bytes : 0;
    uint64_t shed = models_shed(m, f);
    if (shed && used - leaving - shed + need <= m->room)
        return false;
    for (struct instance *v;
         used - leaving && used - leaving + need > m->room && (v = models_victim(m, f));) {
        v->state = INSTANCE_LEAVING;
        leaving += v->bytes;
        log_debug("evicting %s to make room for %s", v->of->name, f->of->name);
    }
    return false;
}

/* What was loaded may take more than was estimated: then idle ones return their cached prefixes or are marked for
 * eviction. */
static void models_keep_to_room(struct models *m, const struct instance *loaded)
{
    uint64_t used = models_used(m);
    if (used <= m->room || used - models_shed(m, loaded) <= m->room)
        return;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        used -= f->state == INSTANCE_LEAVING ? f->bytes : 0;
    for (struct instance *v; used > m->room && (v = models_victim(m, loaded)) && !v->users;) {
        v->state = INSTANCE_LEAVING;
        used -= v->bytes;
        log_debug("evicting %s: %s takes more than was estimated", v->of->name, loaded->of->name);
    }
}

/* The room is no longer needed: instances that are LEAVING and still loaded become READY again. */
static struct model_wait *models_stay(struct models *m)
{
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        if (f->state == INSTANCE_LEAVING && f->session && !session_is_changed(f->session)) {
            f->state = INSTANCE_READY;
            if (f->waiters)
                return instance_waits(f);
        }
    return NULL;
}

/* Whether its session is there and may be closed once it is idle. */
static bool instance_is_loaded(const struct instance *f)
{
    return f->session && (f->state == INSTANCE_READY || f->state == INSTANCE_LEAVING);
}

/* ---- loading and unloading: on the thread; called with the mutex held, released during the work ---- */

static void models_unload(struct models *m, struct instance *f)
{
    struct instance was = *f;
    f->state = INSTANCE_LEAVING;
    models_add_stats(&m->stats, f);
    m->stats.engine.pages = m->stats.engine.pages_free = m->stats.engine.pages_idle = 0;
    m->stats.engine.blocks = 0;
    m->stats.engine.window_pages = m->stats.engine.window_pages_free = 0;
    m->stats.engine.states = m->stats.engine.states_free = 0;
    m->stats.engine.prefix.snapshots = m->stats.engine.prefix.pages = 0;
    m->stats.engine.constraints.bytes = 0;
    m->stats.unloads++;
    f->session = NULL;
    f->engine = NULL;
    f->embedder = NULL;
    pthread_mutex_unlock(&m->mutex);
    engine_close(was.engine);
    embedder_close(was.embedder);
    session_close(was.session);
    log_info("%s is unloaded", f->of->name);
    pthread_mutex_lock(&m->mutex);
    f->state = INSTANCE_AWAY;
    f->bytes = 0;
    if (f->waiters)
        models_want(m, f);
}

/* On the engine's thread: events of its prefix tree. */
static void models_publish(void *arg, const void *events, size_t n)
{
    const struct instance *f = arg;
    kv_publisher_send(f->all->o->publisher, f->of->name, events, n);
}

static void models_progress(void *arg, double share)
{
    struct instance *f = arg;
    pthread_mutex_lock(&f->all->mutex);
    f->progress = share;
    pthread_mutex_unlock(&f->all->mutex);
}

/* Of the idle instances on a card, the least recently used one; *bytes: what all of them hold there. */
static struct instance *models_card_victim(const struct models *m, uint64_t *bytes)
{
    struct instance *best = NULL;
    *bytes = 0;
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f)) {
        uint64_t here = instance_is_loaded(f) && !f->users ? instance_on_card(f) : 0;
        *bytes += here;
        if (here && (!best || f->last_used < best->last_used))
            best = f;
    }
    return best;
}

/* While a model loads: it would be on the card as a whole if others gave back `bytes` of it. Evicts idle ones, least
 * recently used first, if together they have as much. */
static bool models_free_card(void *arg, uint64_t bytes)
{
    const struct instance *f = arg;
    struct models *m = f->all;
    uint64_t had = 0, freed = 0, idle;
    pthread_mutex_lock(&m->mutex);
    for (struct instance *v; (v = models_card_victim(m, &idle)) && freed < bytes && freed + idle >= bytes;
         freed += had) {
        had = instance_on_card(v);
        log_debug("evicting %s to make room on the GPU for %s", v->of->name, f->of->name);
        models_unload(m, v);
    }
    pthread_mutex_unlock(&m->mutex);
    return freed > 0;
}

/* Opens the instance's session and engine or embedder. It is LOADING: only this thread touches it. */
static int models_read(struct models *m, struct instance *f, struct err *e)
{
    const struct served_facts *k = &f->of->facts;
    struct session_options o = {.hidden = f->kind == INSTANCE_VECTORS,
                                .runner = {.ctx = k->context,
                                           .make_room = models_free_card,
                                           .make_room_arg = f,
                                           .progress = models_progress,
                                           .progress_arg = f}};
    if (!k->known || f->of->stale) { /* reports what is wrong with it, unless it has been repaired */
        struct served_facts fresh;
        int failed = served_facts_read(&fresh, f->of->path, m->o, e);
        pthread_mutex_lock(&m->mutex);
        f->of->facts = fresh;
        f->of->stale = false;
        pthread_mutex_unlock(&m->mutex);
        if (failed)
            return -1;
    }
    o.runner.ctx = k->context;
    if (f->kind == INSTANCE_VECTORS)
        embedder_runner(&o.runner, !k->encoder, k->context, m->o->texts ? m->o->texts : 1);
    else
        o.runner.seqs = m->o->engine.slots;
    o.name = f->of->name;
    if (m->o->open(m->o->arg, &f->session, f->of->path, &o, e))
        return -1;
    f->session->runner->resize = models_resize;
    f->session->runner->resize_arg = f;
    struct engine_options g = m->o->engine;
    g.users = &m->users;
    if (m->o->publisher)
        g.events = (struct kv_events_options){models_publish, f};
    uint32_t seqs = f->session->runner->most_seqs; /* a model's own settings may have fewer */
    g.slots = g.slots < seqs ? g.slots : seqs;
    if (f->kind == INSTANCE_VECTORS)
        return embedder_open(&f->embedder, f->session, &m->users, e);
    if (engine_open(&f->engine, f->session, &g, e))
        return -1;
    models_restore_adapters(m, f);
    return 0;
}

static void models_measure(struct models *m, struct instance *f)
{
    struct device_memory d;
    const struct device *device = f->session->runner->device;
    device->ops->memory(device, &d);
    f->bytes = f->least = d.weights + d.kv + d.scratch;
    f->memory = d;
    snprintf(f->device, sizeof f->device, "%s", device->ops->name);
    const struct tokenizer *t = f->session->tokenizer;
    if (f->kind == INSTANCE_WRITER) /* a model's own settings may have another */
        f->of->facts.context = f->session->runner->ctx;
    f->of->facts.can_insert = t && tokenizer_id(t, TOK_FIM_MID) >= 0;
    if (!m->o->memory && !device_is_cpu(device))
        m->room = models_used(m) + d.free;
}

/* Fails all waits with the reason. Clients do not see paths. */
static void models_refuse(struct instance *f, struct model_wait *all, const struct err *e)
{
    bool large = e->code == ERR_RESOURCE;
    bool reported = false; /* by the one who waits from the start of the server on */
    for (struct model_wait *w = all; w; w = w->next)
        reported |= w->patient;
    if (!reported)
        log_warn("%s cannot be loaded: %s", f->of->name, e->text);
    for (struct model_wait *w = all; w; w = w->next) {
        w->why = *e;
        failure_set(&w->failure, 500, "model_load_failed", "model", "the model '%s' cannot be loaded: %s",
                    log_safe(f->of->name),
                    large ? "there is not enough memory" : "its file is damaged or not supported");
    }
}

/* A device may have less room than was counted on: if others are in memory it needs more than there is besides these, so
 * that one of them goes first. false: it is alone, or was so when it failed a moment ago. */
static bool models_want_again(struct models *m, struct instance *f)
{
    f->bytes = 0;
    const uint64_t used = models_used(m);
    if (!used || (f->of->failed && clock_now() - f->of->failed < MODELS_FAILED))
        return false;
    f->least = m->room > used ? m->room - used + 1 : models_need(m, f);
    f->state = INSTANCE_WANTED;
    f->next_wanted = m->wanted;
    m->wanted = f;
    if (!f->next_wanted)
        m->wanted_end = &f->next_wanted;
    return true;
}

static void models_load(struct models *m, struct instance *f)
{
    struct err e = {0};
    f->state = INSTANCE_LOADING;
    f->progress = 0;
    f->bytes = models_need(m, f);
    pthread_mutex_unlock(&m->mutex);
    double start = clock_now();
    int failed = models_read(m, f, &e);
    if (failed) {
        session_close(f->session);
        f->session = NULL;
    }
    pthread_mutex_lock(&m->mutex);
    if (failed && e.crowded && models_want_again(m, f))
        return;
    f->state = failed ? INSTANCE_AWAY : INSTANCE_READY;
    f->keep = m->o->keep;
    f->last_used = clock_now();
    f->of->failed = failed ? f->last_used : 0;
    if (failed) {
        f->bytes = 0;
        f->least = 0;
        m->stats.failures++;
    } else {
        models_measure(m, f);
        m->stats.loads++;
        log_info("%s is loaded%s: %.2f GB in %.1f s", f->of->name,
                 f->kind == INSTANCE_VECTORS ? " for vectors" : "", 1e-9 * (double)f->bytes,
                 f->last_used - start);
        models_keep_to_room(m, f);
    }
    struct model_wait *all = instance_waits(f);
    pthread_mutex_unlock(&m->mutex);
    if (failed)
        models_refuse(f, all, &e);
    waits_notify(all);
    pthread_mutex_lock(&m->mutex);
}

/* ---- the thread ---- */

static void models_do_rescan(struct models *m)
{
    struct err e = {0};
    m->rescan = false;
    pthread_mutex_unlock(&m->mutex);
    if (models_scan(m, &e))
        log_error("the list of models could NOT be read and stays as it was: %s", e.text);
    else
        log_info("the list of models has been read");
    pthread_mutex_lock(&m->mutex);
}

/* Whether the instance is due for unloading. *when: lowered to the time when it will be, if idle. */
static bool instance_is_due(const struct instance *f, double now, double *when)
{
    if (f->users || !instance_is_loaded(f))
        return false;
    if (f->state == INSTANCE_LEAVING || !f->of->listed)
        return true;
    if (f->keep < 0)
        return false;
    double at = f->last_used + f->keep;
    *when = at < *when ? at : *when;
    return now >= at;
}

/* Unloads one instance that is due. *when: when to look again. */
static bool models_retire(struct models *m, double *when)
{
    double now = clock_now();
    for (struct instance *f = models_next(m, NULL); f; f = models_next(m, f))
        if (instance_is_due(f, now, when)) {
            models_unload(m, f);
            return true;
        }
    return false;
}

/* Loads the first wanted instance; false: it has to wait for room. */
static bool models_serve_first(struct models *m)
{
    struct instance *f = m->wanted;
    if (!f)
        return false;
    if (!f->waiters) { /* all waits were cancelled */
        models_unwant(m)->state = INSTANCE_AWAY;
        f->least = 0; /* models_want_again may have set it */
        for (struct model_wait *all; !m->wanted && (all = models_stay(m));) {
            pthread_mutex_unlock(&m->mutex);
            waits_notify(all);
            pthread_mutex_lock(&m->mutex);
        }
        return true;
    }
    /* with less memory there are fewer sequences, but at least one has to fit */
    uint64_t need = models_estimate(&f->of->facts, 1), most = m->o->memory;
    if (most && need > most) {
        struct err e = {0};
        models_unwant(m)->state = INSTANCE_AWAY;
        err_set(&e, ERR_RESOURCE, "it needs %.2f GB and --memory allows %.2f GB", 1e-9 * (double)need,
                1e-9 * (double)most);
        struct model_wait *all = instance_waits(f);
        f->of->failed = clock_now();
        m->stats.failures++;
        pthread_mutex_unlock(&m->mutex);
        models_refuse(f, all, &e);
        waits_notify(all);
        pthread_mutex_lock(&m->mutex);
        return true;
    }
    if (!models_has_room(m, f))
        return false;
    models_load(m, models_unwant(m));
    return true;
}

/* Waits for a signal, or until `when`. */
static void models_sleep(struct models *m, double when)
{
    if (when > 1e17) {
        pthread_cond_wait(&m->changed, &m->mutex);
        return;
    }
    struct timespec at = {.tv_sec = (time_t)when, .tv_nsec = (long)(1e9 * (when - (double)(time_t)when))};
    pthread_cond_timedwait(&m->changed, &m->mutex, &at);
}

void *models_thread(void *arg)
{
    struct models *m = arg;
    pthread_mutex_lock(&m->mutex);
    while (!m->closing) {
        double when = 1e18;
        if (m->rescan)
            models_do_rescan(m);
        else if (!models_retire(m, &when) && !models_serve_first(m)) {
            /* eviction may just have made an instance due */
            bool due = false;
            for (struct instance *f = models_next(m, NULL); f && !due; f = models_next(m, f))
                due = instance_is_due(f, clock_now(), &when);
            if (!due)
                models_sleep(m, when);
        }
    }
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}
