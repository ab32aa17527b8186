/* Streams that outlive their connection. A request with the header X-Stream-Id: ID is answered as any other; where its
 * client goes, it runs on, and GET /v1/streams/ID sends its reply again from the beginning and goes on. Replies are kept
 * in memory only. One that no connection follows is ended and forgotten after RESUMABLE_SECONDS. The loop's. */
#pragma once

#include "serve/failure.h"
#include "serve/relay.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RESUMABLE_SECONDS = 60,
    RESUMABLE_ID_LEAST = 16, /* characters of an id, so that it cannot be guessed */
    RESUMABLE_ID_MOST = 64,
};

struct conn;
struct recipient;
struct request;
struct route;
struct server;

struct resumable {
    struct relay relay;
    struct server *server;
    struct request *request; /* NULL = it has ended */
    const struct route *route;
    char id[RESUMABLE_ID_MOST + 1];
    int64_t key;
    double since;           /* when its last follower left, or it ended */
    bool removed;           /* by its client: it is found no more */
    bool whole;             /* its reply is no stream: `body` is all of it */
    struct buf body;        /* the same */
    struct failure failure; /* how it ended; status 0 = well */
    size_t charged;         /* its part of the server's request_bytes */
    struct resumable *next, **link;
};

extern const struct recipient resumable_recipient; /* its functions take a struct resumable */

bool resumable_is_asked(const struct conn *c);
/* For a request of this connection, which follows it; NULL: the connection has a reply that says why. */
struct resumable *resumable_open(struct conn *c);
/* The request could not be made: the connection is free again. */
void resumable_undo(struct resumable *h, struct conn *c);

void resumable_get(struct conn *c);
void resumable_delete(struct conn *c);

/* A few times a second: ends those that no connection follows any more. */
void resumable_expire(struct server *s, double now);
/* The server ends, and all connections have gone. */
void resumable_stop(struct server *s);
