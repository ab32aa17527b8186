/* The table of routes: which path is answered by which function, and on which thread. Constant; what takes a connection is
 * the loop's. */
#pragma once

#include "serve/format.h"

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct conn;
struct request;

struct route {
    const char *method, *path;          /* without /v1 */
    void (*now)(struct conn *c);        /* answers at once, in the loop */
    void (*prepare)(struct request *a); /* or: on a worker */
    bool open;                          /* needs no key */
    bool probe; /* answered on the connections that are kept for probes, too, and whatever Host is named */
    bool admin; /* needs an admin key where there are keys */
    enum route_model {
        ROUTE_WRITER,  /* prepare wants a model that writes */
        ROUTE_CHAT,    /* the same, rather one with a chat template where the request names none */
        ROUTE_VECTORS, /* one that makes vectors */
        ROUTE_WORDS,   /* one with a tokenizer */
        ROUTE_NO_MODEL
    } model;
    enum api api;
};

extern const struct route *const route_table;
extern const size_t route_count;

/* The request of the connection is whole: finds its route, and starts it. */
void route_request(struct conn *c);
void route_json(struct conn *c, int status, struct buf *out); /* frees it */
/* What stands for the * of the route's path, decoded; false: it is no name. */
bool route_rest(const struct conn *c, char *out, size_t size);
/* A value of the query, decoded; false: there is none. */
bool route_query(const struct conn *c, const char *name, char *out, size_t size);
