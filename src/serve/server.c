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
#include "serve/conn.h"
#include "serve/limit.h"
#include "serve/models.h"
#include "serve/notify.h"
#include "serve/origin.h"
#include "serve/record.h"
#include "serve/request.h"
#include "serve/responses_background.h"
#include "serve/responses_expire.h"
#include "serve/server_internal.h"
#include "serve/tls.h"
#include "serve/worker.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    SERVER_WARN_SECONDS = 60,  /* between two warnings of the same kind */
    SERVER_FILES = 64,         /* descriptors that are not for connections */
    SERVER_FILES_MOST = 65536, /* the soft limit that is asked for */
};

static void server_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int n,
                          void *arg)
{
    (void)l, (void)n;
    conn_open(arg, fd, from);
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
    s->accept_paused = true;
    if (!s->accept_warned || now - s->accept_warned > SERVER_WARN_SECONDS)
        log_warn(
            "cannot accept connections: %s; retrying four times a second (raise the limit of open files)",
            strerror(why));
    s->accept_warned = now;
}

static void server_bell(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n, (void)what;
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
    }
    record_retry(s);
    responses_expire(s, now);
    models_expire(s->models, now);
    if (now - s->notified >= 1 && !models_stuck(s->models, SERVER_STUCK)) { /* else systemd restarts us */
        notify_say(s->o->notify, "WATCHDOG=1");
        s->notified = now;
    }
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

enum { SERVER_BACKLOG = 1024 };

/* Listens there; the descriptor, or -1 with why in errno. */
static int server_socket(const struct sockaddr *at, socklen_t n)
{
    int on = 1, fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, at, n) && !listen(fd, SERVER_BACKLOG))
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Removes a stale socket without a listener; the new one is accessible to this user only. */
static int server_bind_unix(const char *path, struct err *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof at.sun_path)
        return err_set(e, ERR_USAGE, "--socket %s: a path of at most %zu bytes", log_safe(path),
                       sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path));
    if (!lstat(path, &st) && S_ISSOCK(st.st_mode)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool dead = connect(fd, (struct sockaddr *)&at, sizeof at) && errno == ECONNREFUSED;
        close(fd);
        if (dead)
            unlink(path);
    }
    mode_t mask = umask(0177);
    int fd = server_socket((struct sockaddr *)&at, sizeof at), why = errno;
    umask(mask);
    if (fd < 0)
        err_set(e, ERR_RESOURCE, "cannot listen on %s: %s", log_safe(path), strerror(why));
    return fd;
}

static int server_bind_address(const char *host, int number, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", number);
    int r = getaddrinfo(host, port, &hints, &found);
    if (r)
        return err_set(e, ERR_USAGE, "--host %s: %s", log_safe(host), gai_strerror(r));
    int fd = server_socket(found->ai_addr, found->ai_addrlen), why = errno;
    freeaddrinfo(found);
    if (fd < 0)
        err_set(e, ERR_RESOURCE, "cannot listen on %s port %d: %s", log_safe(host), number, strerror(why));
    return fd;
}

int server_bind(const struct server_options *o, struct err *e)
{
    struct tls *t = NULL;
    if (server_check(o, e) || (o->tls_cert && tls_open(&t, o->tls_cert, o->tls_key, e)))
        return -1;
    tls_close(t); /* OpenSSL has read its own configuration now, before the sandbox closes */
    return o->socket ? server_bind_unix(o->socket, e) : server_bind_address(o->host, o->port, e);
}

/* From now on connections are accepted. */
static int server_listen(struct server *s, struct err *e)
{
    s->listener = evconnlistener_new(s->base, server_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC,
                                     0, s->listen_fd);
    if (!s->listener)
        return err_set(e, ERR_RESOURCE, "cannot accept connections: %s", strerror(errno));
    s->listen_fd = -1; /* the listener's now */
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (s->o->socket)
        log_info("quern is ready at unix:%s", log_safe(s->o->socket));
    else if (!getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&at, &n) &&
             !getnameinfo((struct sockaddr *)&at, n, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV))
        log_info("quern is ready at http%s://%s%s%s:%s", s->tls ? "s" : "", strchr(host, ':') ? "[" : "",
                 host, strchr(host, ':') ? "]" : "", port);
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

/* Those of a file, or those of the state: two lines for each slot, so that one is ready when another ends. */
static int server_start_batches(struct server *s, struct err *e)
{
    uint32_t slots = s->models->o->engine.slots;
    if (s->o->feed)
        return batch_start(s, s->o->feed, e);
    return s->o->state ? batches_start(s, 2 * slots + 2, e) : 0;
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
    if (server_tls(s, e) || worker_start(s, e) || server_start_batches(s, e))
        return -1;
    if (s->listen_fd < 0)
        return 0;
    if (server_listen(s, e))
        return -1;
    evconnlistener_set_error_cb(s->listener, server_accept_failed);
    notify_say(s->o->notify, "READY=1");
    return 0;
}

static void server_close(struct server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->o->socket)
        file_remove(s->o->socket);
    batches_stop(s);
    models_shut(s->models); /* waiting requests come back to a worker */
    worker_stop(s);
    background_stop(s);
    while (s->conns)
        conn_free(s->conns);
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

int server_check(const struct server_options *o, struct err *e)
{
    if (!o->tls_cert != !o->tls_key)
        return err_set(e, ERR_USAGE, "--tls-cert and --tls-key belong together");
    for (size_t i = 0; i < o->allowed_origins; i++) {
        if (origin_check_allowed(o->allowed_origin[i], e))
            return -1;
        if (!strcmp(o->allowed_origin[i], "*") && !o->key_count)
            return err_set(
                e, ERR_USAGE,
                "--allowed-origin '*' lets every page of the web send requests: give --api-key-file");
    }
    if (o->socket || origin_is_loopback(o->host) || o->key_count || (o->no_key && o->allowed_hosts))
        return 0;
    if (o->no_key)
        return err_set(
            e, ERR_USAGE,
            "--host %s with --no-key can be reached by every web page, through a name that its owner "
            "points here: give --allowed-host NAME for each name that clients use",
            log_safe(o->host));
    return err_set(e, ERR_USAGE,
                   "--host %s can be reached from elsewhere: give --api-key-file, or --no-key and "
                   "--allowed-host behind a proxy that checks access",
                   log_safe(o->host));
}

void server_unbind(const struct server_options *o, int fd)
{
    if (fd < 0)
        return;
    close(fd);
    if (o->socket)
        file_remove(o->socket);
}

int server_run(struct models *m, const struct server_options *o, int fd, struct err *e)
{
    struct server *s = mem_zalloc(1, sizeof *s);
    if (!s) {
        server_unbind(o, fd);
        return err_memory(e, "the server", sizeof *s);
    }
    *s = (struct server){.o = o, .models = m, .bell_fd = -1, .listen_fd = fd, .started = time(NULL)};
    s->loopback = o->socket || (o->host && origin_is_loopback(o->host));
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->work, NULL);
    int failed = server_open(s, e);
    if (!failed && event_base_dispatch(s->base) < 0)
        failed = err_set(e, ERR_RESOURCE, "the event loop failed");
    failed |= batch_is_over(s, e) && e->code ? -1 : 0;
    server_close(s);
    if (s->interrupted)
        failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    mem_free(s);
    return failed;
}
