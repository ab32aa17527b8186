#define _GNU_SOURCE
#include "serve/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "serve/own.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

static void server_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int n,
                          void *arg)
{
    (void)l, (void)from, (void)n;
    conn_open(arg, fd);
}

static void server_bell(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n, (void)what;
    for (struct answer *a; (a = work_ready(s));) {
        a->arrived = true;
        answer_news(a);
    }
}

/* All that runs has ended, and all replies are on their way. */
static bool server_is_empty(const struct server *s)
{
    if (s->answer_count)
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
    models_expire(s->models, now);
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
    log_info("ending: %u requests are running and get %.0f s", s->answer_count, s->o->grace);
    s->draining = true;
    s->drain_until = clock_now() + s->o->grace;
    event_add(s->tick, &(struct timeval){.tv_usec = 100000});
}

/* SIGHUP: the keys and the list of models anew. What runs goes on. */
static void server_reload(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;
    struct err e = {0};
    (void)number, (void)what;
    if (s->o->reload && s->o->reload(s->o->arg, &e))
        log_warn("the keys stay as they were: %s", e.text);
    models_rescan(s->models);
    log_info("the keys and the list of models are read anew");
}

static int server_listen(struct server *s, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", s->o->port);
    int r = getaddrinfo(s->o->host, port, &hints, &found);
    if (r)
        return err_set(e, ERR_USAGE, "--host %s: %s", log_safe(s->o->host), gai_strerror(r));
    s->listener = evconnlistener_new_bind(s->base, server_accept, s,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                          1024, found->ai_addr, (int)found->ai_addrlen);
    int why = errno;
    freeaddrinfo(found);
    if (!s->listener)
        return err_set(e, ERR_RESOURCE, "cannot listen on %s port %d: %s", log_safe(s->o->host), s->o->port,
                       strerror(why));
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char host[NI_MAXHOST];
    if (!getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&at, &n) &&
        !getnameinfo((struct sockaddr *)&at, n, host, sizeof host, port, sizeof port,
                     NI_NUMERICHOST | NI_NUMERICSERV))
        log_info("quern is ready at http://%s%s%s:%s", strchr(host, ':') ? "[" : "", host,
                 strchr(host, ':') ? "]" : "", port);
    return 0;
}

static int server_open(struct server *s, struct err *e)
{
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max < 65536 ? files.rlim_max : 65536;
        setrlimit(RLIMIT_NOFILE, &files);
    }
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
    return work_start(s, e) ? -1 : server_listen(s, e);
}

static void server_close(struct server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    models_shut(s->models); /* whoever waits for one comes back to a worker */
    work_stop(s);
    while (s->conns)
        conn_free(s->conns);
    for (struct answer *a; (a = work_ready(s));) { /* their clients have gone */
        a->arrived = true;
        answer_news(a);
    }
    struct event *const events[] = {s->bell, s->tick, s->term, s->intr, s->hup};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->bell_fd >= 0)
        close(s->bell_fd);
    shelf_free(&s->shelf);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->work);
}

int server_check(const struct server_options *o, struct err *e)
{
    if (gate_is_loopback(o->host) || o->key_count || o->no_key)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--host %s can be reached from elsewhere: give --api-key-file, or --no-key where "
                   "something else keeps strangers out",
                   log_safe(o->host));
}

int server_run(struct models *m, const struct server_options *o, struct err *e)
{
    struct server s = {.o = o, .models = m, .bell_fd = -1, .started = time(NULL)};
    if (server_check(o, e))
        return -1;
    s.loopback = gate_is_loopback(o->host);
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&s.mutex, NULL);
    pthread_cond_init(&s.work, NULL);
    int failed = server_open(&s, e);
    if (!failed && event_base_dispatch(s.base) < 0)
        failed = err_set(e, ERR_RESOURCE, "the event loop failed");
    server_close(&s);
    return s.interrupted ? err_set(e, ERR_INTERRUPTED, "interrupted") : failed;
}
