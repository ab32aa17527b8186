#define _GNU_SOURCE
#include "serve/server.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/usage_table.h"
#include "serve/batch.h"
#include "serve/batches.h"
#include "serve/bind.h"
#include "serve/conn.h"
#include "serve/limit.h"
#include "serve/models.h"
#include "serve/notify.h"
#include "serve/origin.h"
#include "serve/record.h"
#include "serve/request.h"
#include "serve/responses_background.h"
#include "serve/responses_expire.h"
#include "serve/resumable.h"
#include "serve/server_internal.h"
#include "serve/tls.h"
#include "serve/worker.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    SERVER_WARN_SECONDS = 60,  /* between two warnings of the same kind */
    SERVER_CUT_SECONDS = 2,    /* for the ends of replies that were cut */
    SERVER_FILES = 64,         /* descriptors that are not for connections */
    SERVER_FILES_MOST = 65536, /* the soft limit that is asked for */
};

static void server_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int n,
                          void *arg)
{
    struct server *s = arg;
    (void)n;
    conn_open(s, fd, from, l == s->metrics_listener);
}

/* No descriptor (or memory) is left. Closes an idle connection; without one, pauses accepting until the next
 * tick, since the listener stays ready and the loop would spin. */
static void server_accept_failed(struct evconnlistener *l, void *arg)
{
    struct server *s = arg;
    int why = EVUTIL_SOCKET_ERROR();
    double now = clock_now();
    if (conn_evict(s))
        return;
    evconnlistener_disable(l);
    s->accept_paused = true; /* of one of them, or of both */
    if (!s->accept_warned || now - s->accept_warned > SERVER_WARN_SECONDS)
        log_warn(
            "cannot accept connections: %s; retrying four times a second (raise the limit of open files)",
            strerror(why));
    s->accept_warned = now;
}

static void server_announce(const struct server *s)
{
    char url[BIND_URL];
    if (!s->listener)
        return;
    bind_url(evconnlistener_get_fd(s->listener), s->tls ? "https" : "http", url, sizeof url);
    if (s->o->socket)
        log_info("quern is ready at unix:%s", log_safe(s->o->socket));
    else if (*url)
        log_info("quern is ready at %s", url);
    notify_say(s->o->notify, "READY=1");
}

/* Those of a file, or those of the state: two lines for each slot, so that one is ready when another ends. */
static int server_start_batches(struct server *s, struct err *e)
{
    uint32_t slots = s->models->o->engine.slots;
    if (s->o->feed)
        return batch_start(s, s->o->feed, e);
    return s->o->state ? batches_start(s, 2 * slots + 2, e) : 0;
}

/* The named model is loaded, or cannot be: then the server ends with the error. */
static void server_loaded(struct server *s)
{
    s->loading = false;
    if (!models_preloaded(s->models, &s->preload, &s->failed) && !server_start_batches(s, &s->failed))
        server_announce(s);
    else
        event_base_loopbreak(s->base);
}

/* On the thread that loads. */
static void server_preloaded(struct model_wait *w)
{
    struct server *s = (struct server *)((char *)w - offsetof(struct server, preload));
    uint64_t one = 1;
    atomic_store(&s->preloaded, true);
    ssize_t n = write(s->bell_fd, &one, sizeof one);
    (void)n; /* the tick looks, too */
}

/* Begins to load the named model, which may be there at once. */
static void server_preload(struct server *s)
{
    s->preload.ready = server_preloaded;
    s->loading = true;
    if (!models_preload(s->models, &s->preload))
        server_loaded(s);
}

static void server_bell(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n, (void)what;
    if (s->loading && atomic_load(&s->preloaded))
        server_loaded(s);
    for (struct request *a; (a = worker_ready(s));) {
        a->arrived = true;
        request_chunk(a);
    }
    batch_take(s);
    struct err ignored;
    if (batch_is_over(s, &ignored))
        event_base_loopbreak(s->base);
}

bool server_charge(struct server *s, size_t *charged, size_t bytes)
{
    size_t before = *charged;
    size_t all = atomic_fetch_add(&s->request_bytes, bytes - before) + bytes - before;
    if (bytes > before && all > limit_of(LIMIT_BODIES)) {
        atomic_fetch_sub(&s->request_bytes, bytes - before);
        return false;
    }
    *charged = bytes;
    return true;
}

void server_name(char *id, size_t size, const char *prefix)
{
    unsigned char random[12] = {0};
    double now = clock_now();
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0)
        memcpy(random, &now, sizeof now);
    size_t at = (size_t)snprintf(id, size, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++)
        at += (size_t)snprintf(id + at, size - at, "%02x", random[i]);
}

/* Whether all requests have ended and all replies are sent. */
static bool server_is_empty(const struct server *s)
{
    if (s->request_count)
        return false;
    for (const struct conn *c = s->conns; c; c = c->next)
        if (evbuffer_get_length(bufferevent_get_output(c->bev)))
            return false;
    return true;
}

/* The grace is over: replies that are not whole end with an error, and have a moment to be sent. */
static void server_cut(struct server *s)
{
    for (struct conn *c = s->conns, *next; c; c = next) {
        struct request *a = c->request;
        next = c->next;
        if (!a || !a->arrived || a->ended)
            continue;
        request_fail(a, 503, NULL, "the server is shutting down");
        request_chunk(a);
    }
    s->cut = true;
    s->drain_until = clock_now() + SERVER_CUT_SECONDS;
}

static void server_tick(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    double now = clock_now();
    (void)fd, (void)what;
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        conn_tick(c, now);
    }
    if (s->accept_paused) {
        s->accept_paused = false;
        evconnlistener_enable(s->listener);
        if (s->metrics_listener)
            evconnlistener_enable(s->metrics_listener);
    }
    record_retry(s);
    responses_expire(s, now);
    resumable_expire(s, now);
    models_expire(s->models, now);
    if (now - s->notified >= 1 && !models_fault(s->models)) { /* else systemd restarts us */
        notify_say(s->o->notify, "WATCHDOG=1");
        s->notified = now;
    }
    if (s->draining && !s->cut && now > s->drain_until)
        server_cut(s);
    if (s->draining && (server_is_empty(s) || now > s->drain_until))
        event_base_loopbreak(s->base);
}

static void server_signal(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;
    (void)what;
    if (s->draining && number == SIGINT) { /* a second time: at once */
        s->interrupted = true;
        event_base_loopbreak(s->base);
        return;
    }
    if (s->draining)
        return;
    if (s->loading) { /* there is nothing to wait for, and a large model takes minutes */
        if (s->o->socket)
            file_remove(s->o->socket);
        signal(number, SIG_DFL);
        raise(number);
    }
    batches_stop(s); /* what runs of them begins again when the server does */
    if (s->listener)
        log_info("ending: %u requests are running and get %.0f s", s->request_count, s->o->grace);
    notify_say(s->o->notify, "STOPPING=1");
    s->draining = true;
    s->drain_until = clock_now() + s->o->grace;
    event_add(s->tick, &(struct timeval){.tv_usec = 100000});
}

static int server_tls(struct server *s, struct err *e)
{
    struct tls *fresh = NULL;
    if (!s->o->tls_cert)
        return 0;
    if (tls_open(&fresh, s->o->tls_cert, s->o->tls_key, e))
        return -1;
    tls_close(s->tls);
    s->tls = fresh;
    return 0;
}

/* The list of keys, for reports about usage. */
struct server_keys {
    struct state_write write;
    int64_t count;
    struct usage_key keys[];
};

static int server_keys_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    const struct server_keys *k = (const struct server_keys *)w;
    return usage_name_keys(db, k->keys, k->count, e);
}

static void server_keys_done(struct state_write *w)
{
    struct server_keys *k = (struct server_keys *)w;
    for (int64_t i = 0; i < k->count; i++)
        mem_free((char *)(uintptr_t)k->keys[i].name);
    mem_free(k);
}

static void server_name_keys(struct server *s)
{
    struct err e = {0};
    size_t n = s->o->key_count;
    struct server_keys *k = s->o->state ? mem_zalloc(1, sizeof *k + n * sizeof *k->keys) : NULL;
    if (!k)
        return;
    k->write = (struct state_write){.run = server_keys_run, .done = server_keys_done};
    k->count = (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const struct server_key *key = &s->o->keys[i];
        k->keys[i] = (struct usage_key){key->text ? key->owner : 0, key->name ? mem_strdup(key->name) : NULL};
    }
    if (state_write(s->o->state, &k->write, &e))
        server_keys_done(&k->write);
}

/* SIGHUP: reloads the keys, the certificate and the list of models. Running requests continue. What cannot be
 * read stays as it was, and that is logged as an error, since a key may have been revoked. */
static void server_reload(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;
    struct err e = {0};
    (void)number, (void)what;
    if (s->o->reload && s->o->reload(s->o->arg, &e))
        log_error("the keys could NOT be read, the old ones stay valid: %s", e.text);
    else if (s->o->key_count)
        log_info("the keys have been read");
    server_name_keys(s);
    e = (struct err){0};
    if (server_tls(s, &e))
        log_error("the certificate could NOT be read, the old one stays in use: %s", e.text);
    else if (s->tls)
        log_info("the certificate has been read");
    models_rescan(s->models);
}

static struct evconnlistener *server_listen(struct server *s, int *fd, struct err *e)
{
    struct evconnlistener *l =
        evconnlistener_new(s->base, server_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, *fd);
    if (!l) {
        err_set(e, ERR_RESOURCE, "cannot accept connections: %s", strerror(errno));
        return NULL;
    }
    *fd = -1; /* the listener's now */
    evconnlistener_set_error_cb(l, server_accept_failed);
    return l;
}

/* From now on connections are accepted: probes have an answer while a model is being loaded, and requests wait for it. */
static int server_accept_all(struct server *s, struct err *e)
{
    char url[BIND_URL];
    if (!(s->listener = server_listen(s, &s->at.requests, e)))
        return -1;
    if (s->at.metrics < 0)
        return 0;
    if (!(s->metrics_listener = server_listen(s, &s->at.metrics, e)))
        return -1;
    bind_url(evconnlistener_get_fd(s->metrics_listener), "http", url, sizeof url);
    log_info("metrics are at %s/metrics", url);
    return 0;
}

/* As many connections as the limit says, or fewer where descriptors are few: half of what is left, up to
 * SERVER_FILES, stays for models, workers and probes. */
static void server_count_files(struct server *s)
{
    struct rlimit files = {0};
    uint64_t most = limit_of(LIMIT_CONNECTIONS), left = most + SERVER_FILES;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max < SERVER_FILES_MOST ? files.rlim_max : SERVER_FILES_MOST;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    int next = dup(s->bell_fd); /* descriptors are given out from the lowest */
    if (!getrlimit(RLIMIT_NOFILE, &files) && next >= 0)
        left = files.rlim_cur > (uint64_t)next ? files.rlim_cur - (uint64_t)next : 0;
    if (next >= 0)
        close(next);
    uint64_t room = left > 2 * SERVER_FILES ? left - SERVER_FILES : left / 2;
    s->conn_most = (uint32_t)(room < most ? room : most);
    if (s->conn_most < most)
        log_warn("open files are limited to %llu: %u connections at once instead of %llu",
                 (unsigned long long)files.rlim_cur, s->conn_most, (unsigned long long)most);
}

static int server_open(struct server *s, struct err *e)
{
    s->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->bell_fd < 0 || !(s->base = event_base_new()) ||
        !(s->bell = event_new(s->base, s->bell_fd, EV_READ | EV_PERSIST, server_bell, s)) ||
        !(s->tick = event_new(s->base, -1, EV_PERSIST, server_tick, s)) ||
        !(s->term = evsignal_new(s->base, SIGTERM, server_signal, s)) ||
        !(s->intr = evsignal_new(s->base, SIGINT, server_signal, s)) ||
        !(s->hup = evsignal_new(s->base, SIGHUP, server_reload, s)) || event_add(s->bell, NULL) ||
        event_add(s->tick, &(struct timeval){.tv_usec = 250000}) || event_add(s->term, NULL) ||
        event_add(s->intr, NULL) || event_add(s->hup, NULL))
        return err_set(e, ERR_RESOURCE, "cannot start the event loop: %s", strerror(errno));
    server_count_files(s);
    if (s->o->state && (quota_load(&s->quotas, s->o->state, e) || background_recover(s->o->state, e)))
        return -1;
    server_name_keys(s);
    if (server_tls(s, e) || worker_start(s, e) || (s->at.requests >= 0 && server_accept_all(s, e)))
        return -1;
    if (s->o->preload) {
        server_preload(s);
        return 0;
    }
    server_announce(s);
    return server_start_batches(s, e);
}

static void server_close(struct server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    if (s->metrics_listener)
        evconnlistener_free(s->metrics_listener);
    server_unbind(s->o, &s->at);
    if (s->o->socket)
        file_remove(s->o->socket);
    batches_stop(s);
    models_shut(s->models); /* waiting requests come back to a worker */
    worker_stop(s);
    background_stop(s);
    while (s->conns)
        conn_free(s->conns);
    resumable_stop(s);
    record_retry(s);
    state_flush(s->o->state);
    for (struct request *a; (a = worker_ready(s));) { /* their clients have gone */
        a->arrived = true;
        request_chunk(a);
    }
    state_flush(s->o->state); /* no write knows this server any more */
    struct event *const events[] = {s->bell, s->tick, s->term, s->intr, s->hup};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->bell_fd >= 0)
        close(s->bell_fd);
    quota_free(&s->quotas);
    record_free_unsaved(s);
    tls_close(s->tls);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->work);
}

int server_run(struct models *m, const struct server_options *o, const struct server_sockets *at,
               struct err *e)
{
    struct server *s = mem_zalloc(1, sizeof *s);
    if (!s) {
        server_unbind(o, at);
        return err_memory(e, "the server", sizeof *s);
    }
    *s = (struct server){.o = o, .models = m, .bell_fd = -1, .at = *at, .started = time(NULL)};
    s->loopback = o->socket || (o->host && origin_is_loopback(o->host));
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->work, NULL);
    int failed = server_open(s, e);
    if (!failed && !s->failed.code && event_base_dispatch(s->base) < 0)
        failed = err_set(e, ERR_RESOURCE, "the event loop failed");
    failed |= batch_is_over(s, e) && e->code ? -1 : 0;
    if (s->failed.code)
        failed = err_set(e, s->failed.code, "%s", s->failed.text);
    server_close(s);
    if (s->interrupted)
        failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    mem_free(s);
    return failed;
}
