/* The workers: threads that make requests ready (JSON, template, tokens, constraint), and the way of a request to them and
 * back to the loop. The queues are guarded by the server's mutex. */
#pragma once

#include "base/err.h"
#include "serve/route.h"

enum { WORKERS = 2 };

struct request;
struct server;

/* Of requests with large bodies, and of those of batches, one at a time is made ready, so that one worker is always free for
 * the others. Those of batches come last. */
enum lane_kind { LANE_SHORT, LANE_LONG, LANE_BATCH, LANES };

struct worker_lane {
    struct request *first, **end;
    bool busy; /* a worker has one of it */
};

/* The loop's. */
int worker_start(struct server *s, struct err *e);
void worker_stop(struct server *s);
void worker_add(struct request *a);
void worker_more(struct request *a);            /* a part of its reply is sent: a worker makes the next */
struct request *worker_ready(struct server *s); /* the next one with something for the loop; NULL = none */
void worker_forget(struct request *a);

/* Any thread's. */
void worker_ring(struct request *a);  /* it has something for the loop; the server's mutex is held */
void worker_again(struct request *a); /* what it waited for has come: a worker takes it up again */
void worker_wake(void *request);      /* the engine's wake */

/* A worker's: the model that the request names. -1: there is none, or it is not there yet: the caller returns, and is
 * called again. */
int worker_model(struct request *a, enum route_model model);
