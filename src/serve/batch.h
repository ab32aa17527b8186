/* Requests without a connection, at the lowest priority: the lines of batches. A feed gives lines and takes their replies;
 * it is a file (tool/batch.c), or the batches in the state (batches.h). The lines take the way of requests that come by
 * HTTP: workers, engine, formats.
 *
 *   feed -> driver -> ready -> loop: request -> ... -> recipient -> done -> driver -> feed
 *
 * The driver is a thread of its own: the feed may wait for the disk. The loop starts the requests and gets the replies. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct batch_driver;
struct request;
struct route;
struct server;

/* Owned by the driver, the loop, then the driver again. */
struct batch_line {
    /* the feed's */
    int64_t batch, number; /* which one */
    char *custom_id;
    const struct route *route;
    int64_t owner; /* whose it is: a key, as the state knows it; 0 = none */
    struct buf body;
    /* the reply, for the feed */
    int status; /* of HTTP; 0 = it was abandoned */
    struct buf reply;
    char id[40]; /* of the request */
    /* the driver's */
    struct batch_driver *driver;
    uint32_t tries;
    double again; /* not before */
    struct request *request;
    struct batch_line *next, **link;
};

struct batch_feed {
    /* The next line: 1 = here it is, 0 = there is none now (batch_wake says when), -1 = there will be none. */
    int (*next)(void *arg, struct batch_line *l, struct err *e);
    /* A line has its reply. -1: it cannot be kept; the driver stops. */
    int (*done)(void *arg, struct batch_line *l, struct err *e);
    /* Now and then, also while nothing happens. May be NULL. */
    void (*tick)(void *arg);
    void *arg;
    uint32_t most; /* lines at once */
};

/* The loop's. */
int batch_start(struct server *s, const struct batch_feed *f, struct err *e);
void batch_take(struct server *s); /* the bell: starts what the driver has ready */
/* Abandons all that runs, and ends the driver; what was abandoned is as if it had not begun. */
void batch_stop(struct server *s);
/* Whether the feed has ended, with all replies; and with which error. */
bool batch_is_over(const struct server *s, struct err *e);

/* Any thread's. */
void batch_wake(struct server *s); /* the feed has lines again */
/* The feed's, from its tick: lines of this batch that run are to end, with status 0. Repeat it until they have. */
void batch_abandon(struct server *s, int64_t batch);

/* A line {"custom_id", "method", "url", "body"}: sets custom_id, route and body. endpoint: the only url; NULL = any. */
int batch_read_line(const char *text, size_t n, const char *endpoint, struct batch_line *l, struct err *e);
/* The line of an output file, with its line end. */
void batch_write_line(const struct batch_line *l, struct buf *out);
void batch_line_free(struct batch_line *l);
