/* The table of routes: which path is answered by which function, and on which thread. Constant; what takes a connection is
 * the loop's. */
#pragma once

#include "serve/format.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROUTE_STARS = 2 };

struct buf;
struct conn;
struct request;

struct route {
    const char *method, *path;          /* without /v1; * is one part, at the end the rest */
    void (*now)(struct conn *c);        /* answers at once, in the loop */
    void (*prepare)(struct request *a); /* or: on a worker */
    bool open;                          /* needs no key */
    bool probe;   /* answered on the connections that are kept for probes, too, and whatever Host is named */
    bool scraped; /* answered on the metrics port, too, without a key */
    bool admin;   /* needs an admin key where there are keys */
    bool light;   /* looks up or changes what is stored: the limits of a key do not count it */
    bool batch;   /* may be a line of a batch */
    bool large;   /* the body may be as large as a file */
    bool form;    /* the body is a form */
    bool resumes; /* with X-Stream-Id, the reply can be followed again (resumable.h) */
    bool list;    /* the body is a JSON list */
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
/* The route of a url of a batch, "/v1/chat/completions"; NULL = it may be none. */
const struct route *route_batch(const char *url);
/* How many bytes the body of a request to this target may have. */
uint64_t route_body_most(const char *target);
/* What stands for a * of the route's path (0 = the first), decoded; false: it is no name, and "". */
bool route_part(const struct conn *c, int which, char *out, size_t size);
/* A value of the query, decoded; false: there is none. */
bool route_query(const struct conn *c, const char *name, char *out, size_t size);
/* All values of the query, as texts; NULL: out of memory. */
json_t *route_query_all(const struct conn *c);
