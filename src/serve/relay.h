/* A reply that several connections read: its bytes so far, and the requests that follow it. The loop's. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

struct conn;
struct relay;
struct request;

struct relay_kind {
    /* The reply has ended, and the follower has the bytes of its stream: gives it the rest and frees it. */
    void (*finish)(struct relay *r, struct request *follower);
    void (*left)(struct relay *r); /* the last follower has left; may free it */
};

struct relay {
    const struct relay_kind *kind;
    struct buf bytes; /* of a stream, so far */
    bool ended;
    struct request *followers;
};

/* A request of the connection that follows; NULL: out of memory, and the connection has a reply that says so.
 * stream: it gets the bytes as they come, else only the end. */
struct request *relay_follow(struct relay *r, struct conn *c, bool stream);
void relay_feed(struct request *follower); /* sends what there is */
void relay_feed_all(struct relay *r);
void relay_leave(struct request *follower); /* it follows no more */
