/* Connections. All of them, and everything here, belong to the loop's thread: a worker never sees one. */
#pragma once

#include "serve/failure.h"
#include "serve/http.h"
#include "serve/multipart.h"

#include <event2/util.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct bufferevent;
struct recipient;
struct request;
struct route;
struct server;
struct sockaddr;

struct conn {
    struct server *server;
    struct bufferevent *bev;
    struct conn *next, **link;
    struct http http;
    struct request *request; /* while one is running */
    const struct route *route;
    double since;     /* when this phase began */
    double started;   /* when the request was whole */
    double last_sent; /* for keep-alive in streams */
    int phase;
    size_t charged; /* its part of the server's request_bytes */
    bool continued; /* "100 Continue" has been sent */
    bool streaming; /* in a reply without a known length */
    bool closing;   /* no more requests; ends when the output has gone */
    bool lingering; /* all is sent; waits for the other side to end */
    bool origin_ok;
    const char *headers;               /* of the next reply: whole lines beside the usual ones; NULL = none */
    uint32_t retry;                    /* of the reply: seconds after which to try again; 0 = 1 */
    bool reserve;                      /* beyond conn_most: kept for probes */
    bool metrics;                      /* on the metrics port: no key, no other routes */
    bool local;                        /* the other side is on this machine */
    uint8_t address;                   /* its place in the server's conn_by_address */
    uint32_t key;                      /* which one it came with, from 1; 0 = none */
    bool admin;                        /* may load and unload models, and see every key's counters */
    char id[40];                       /* of the request */
    char boundary[MULTIPART_BOUNDARY]; /* of a form */
};

/* What a request knows of its connection; its functions take a struct conn. */
extern const struct recipient conn_recipient;

/* metrics: it came to the metrics port. */
void conn_open(struct server *s, evutil_socket_t fd, const struct sockaddr *from, bool metrics);
/* Closes the connection that has been idle for the longest time, one of the address that has most of them. Those with a
 * request running stay. false: all have one. */
bool conn_evict(struct server *s);
void conn_free(struct conn *c);
/* A few times a second: deadlines. */
void conn_tick(struct conn *c, double now);
/* A whole reply, and on to the next request. */
void conn_reply(struct conn *c, int status, const char *type, const struct buf *body);
void conn_fail(struct conn *c, const struct failure *f);
void conn_failf(struct conn *c, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The client speaks Anthropic's API: by the route, or by the header that its clients send. */
bool conn_is_anthropic(const struct conn *c);
