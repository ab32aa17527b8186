/* struct server: what the loop, the workers and the engines' threads share. The loop's thread owns it; a field that other
 * threads use says so. server.h is what the rest of the program calls. */
#pragma once

#include "serve/metrics.h"
#include "serve/server.h"
#include "serve/usage.h"
#include "serve/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct batch_driver;
struct batches;
struct background;
struct conn;
struct event;
struct event_base;
struct evconnlistener;
struct models;
struct record;
struct request;
struct resumable;
struct tls;

enum { CONN_ADDRESSES = 256 };

struct server {
    const struct server_options *o;
    struct models *models;
    struct event_base *base;
    struct evconnlistener *listener, *metrics_listener;
    struct event *tick, *term, *intr, *hup, *bell;
    int bell_fd;
    struct server_sockets at; /* until they have listeners */
    bool loopback;            /* only this machine can reach us */
    struct tls *tls;          /* NULL = plain */
    bool loading;             /* the named model: not ready, and requests wait */
    bool
        leaving; /* POST /drain: not ready, so that no more requests are sent here; those that come are served */
    bool draining; /* SIGTERM: not ready, and requests are refused */
    bool cut;      /* and the grace is over */
    bool interrupted;
    struct model_wait preload;
    atomic_bool preloaded; /* set by the thread that loads: `preload` is over */
    struct err failed;     /* why the server ends */
    double drain_until, notified;
    struct conn *conns;
    uint32_t conn_count, request_count;
    uint32_t conn_most;                       /* connections; above, the idle are evicted */
    uint32_t conn_by_address[CONN_ADDRESSES]; /* how many, by a hash of the client's address */
    bool accept_paused;                       /* no descriptor was left: the next tick tries again */
    double accept_warned;                     /* when that was last logged; 0 = never */
    /* of all requests: bodies, and the JSON that was read from them; any thread's */
    atomic_size_t request_bytes;
    time_t started;
    struct batch_driver *batch; /* NULL = no lines are run */
    struct batches *batches;    /* of the state; NULL = none; guarded by the mutex */
    struct metrics metrics;
    struct background *background; /* responses that run there */
    struct resumable *resumable;   /* streams that outlive their connection */
    double clock_offset,
        steady_since; /* of the time of day against the clock; since when it has not jumped */
    double expired;   /* when old responses were last looked for */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct key_usage usage[USAGE_KEYS];
    struct quotas quotas;
    struct record *unsaved;          /* usage that the disk did not take */
    struct worker_lane lanes[LANES]; /* for the workers */
    struct request *ready;           /* have a chunk for the loop */
    bool closing;
    pthread_t workers[WORKERS];
    int worker_count;
};

/* The part of request_bytes that a connection or a request has becomes `bytes`. false: it would grow, and all together
 * would be above the limit; then nothing changes. Any thread's. */
bool server_charge(struct server *s, size_t *charged, size_t bytes);
/* A new id: the prefix, and 24 digits that are random. */
void server_name(char *id, size_t size, const char *prefix);
