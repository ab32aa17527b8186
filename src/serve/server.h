/* The server: one thread with the event loop owns every connection; two workers prepare requests (JSON,
 * template, tokens, constraint), so that a long prompt never blocks the loop; the engine's thread wakes the
 * loop when a stream has a new chunk. */
#pragma once

#include "base/err.h"
#include "serve/models.h"
#include "serve/usage.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct decoder;
struct state;
struct url_fetcher;

struct server_key {
    const char *text; /* NULL = it is no longer valid */
    const char *name; /* for reports; NULL = none */
    bool admin;       /* may load, unload and see every key's counters */
    int64_t owner;    /* how the state knows the key: the same after a restart; not 0 */
    struct key_quota quota;
};

struct batch_feed;
struct manager;
struct mcp_server;

/* A model that is there from now on, or (path NULL) no longer. */
struct model_change {
    const char *name, *path;
    const json_t *preset; /* its settings (hub/preset.h), or NULL */
};

struct server_options {
    const char *host;               /* an address or "localhost" */
    int port;                       /* 0 = any that is free */
    const char *metrics_host;       /* where /metrics and probes need no key */
    int metrics_port;               /* -1 = nowhere; 0 = any that is free */
    unsigned metrics_style;         /* METRICS_QUERN, METRICS_VLLM or both (metrics.h) */
    bool preload;                   /* loads the first model, and ends where it cannot */
    const char *socket;             /* a path: a Unix socket instead of the address; NULL = none */
    const char *tls_cert, *tls_key; /* PEM files; NULL = no TLS */
    int notify;                     /* systemd's socket (notify.h); -1 = there is none */
    struct key_limits usage;        /* of every key */
    double keep_responses; /* seconds that responses and conversations are kept after their last use */
    double grace;          /* seconds that running requests get after SIGTERM */
    const struct server_key *keys; /* (key_count) */
    size_t key_count;
    struct decoder *decoder;         /* of images; NULL: they are decoded in this process (tests) */
    struct url_fetcher *fetcher;     /* of images by URL; NULL: none is fetched */
    struct state *state;             /* what survives a restart */
    bool no_key;                     /* --no-key: allow an address that others can reach without a key */
    const char *const *allowed_host; /* (allowed_hosts): names that the Host header may have */
    size_t allowed_hosts;
    const char *const *allowed_origin; /* (allowed_origins): pages that may send requests; origin.h */
    size_t allowed_origins;
    const struct mcp_server *mcp; /* (mcp_count): tools for the page, page.h */
    size_t mcp_count;
    bool one_model;                /* requests get the first model, whatever name they ask for */
    const struct batch_feed *feed; /* runs these lines, and ends with them; without an address. NULL = none */
    /* SIGHUP: reloads the keys into keys and key_count above; a key keeps its index. Runs in the loop. */
    int (*reload)(void *arg, struct err *e);
    const char *
        adapter_dir; /* adapters that clients with an admin key load are below it; resolved. NULL = none is */
    struct manager *manager; /* downloads, makes and removes models for admin keys; NULL = none does */
    void (*change_models)(void *arg,
                          const struct model_change *c); /* the list has to follow; a worker's thread */
    void *arg;
};

/* Checks that the options are safe: a server that others can reach needs a key. */
int server_check(const struct server_options *o, struct err *e);
/* Descriptors that listen; -1 = none. */
struct server_sockets {
    int requests, metrics;
};
/* Listens at the address or the socket: before models are loaded, so that a port in use is reported at once. */
int server_bind(const struct server_options *o, struct server_sockets *out, struct err *e);
/* Where server_run is not called. */
void server_unbind(const struct server_options *o, const struct server_sockets *at);
/* Owns the descriptors; without one for requests only the feed's lines run. Returns after SIGTERM or SIGINT, when
 * running requests have ended, or with the end of the feed. */
int server_run(struct models *m, const struct server_options *o, const struct server_sockets *at,
               struct err *e);
