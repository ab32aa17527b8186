/* Responses that run in the background: the request goes on without its client, and others look at it, follow its events,
 * or end it. The loop's. Once one has ended and is stored, it is no longer here. */
#pragma once

#include "save/threads.h"
#include "serve/relay.h"

#include <jansson.h>
#include <stdbool.h>

struct err;
struct request;
struct server;
struct state;

struct background {
    struct relay relay; /* its bytes: the events of a stream */
    struct server *server;
    struct request *request; /* NULL = it has ended */
    char id[THREAD_ID];
    int64_t key;
    bool stream, removed; /* removed: nothing of it is to stay */
    json_t *base, *final; /* as it began, and as it ended */
    struct background *next, **link;
};

/* A worker is through with a request that is to run in the background: its client gets the response as it begins. */
void background_begin(struct request *a);
/* The server ends; what runs is found as failed at the next start. */
void background_stop(struct server *s);
int background_recover(struct state *s, struct err *e);
