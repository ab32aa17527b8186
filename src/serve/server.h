/* The server: one thread with the event loop owns every connection; two workers make requests ready
 * (JSON, template, tokens, constraint), so that a long prompt never holds up the loop; the engine's thread
 * rings a bell when a stream has news. */
#pragma once

#include "base/err.h"
#include "serve/models.h"
#include "serve/usage.h"

#include <stdbool.h>
#include <stddef.h>

struct server_options {
    const char *host;               /* an address or "localhost" */
    int port;                       /* 0 = any that is free */
    const char *socket;             /* a path: a Unix socket instead of the address; NULL = none */
    const char *tls_cert, *tls_key; /* PEM files; NULL = no TLS */
    int notify;                     /* systemd's socket (notify.h); -1 = there is none */
    struct key_limits usage;        /* of every key */
    double grace;                   /* seconds that running answers get after SIGTERM */
    const char *const *keys;        /* (key_count): any of them opens */
    const bool *admin; /* (key_count): those that may load, unload and see every key's counters */
    size_t key_count;
    bool no_key;                     /* an address that others can reach, and no key: said in so many words */
    const char *const *allowed_host; /* (allowed_hosts): names that the Host header may have */
    size_t allowed_hosts;
    const char *const *allowed_origin; /* (allowed_origins): pages that may send requests; origin.h */
    size_t allowed_origins;
    /* SIGHUP: reads the keys anew, into keys and key_count above; a key keeps its place. Runs in the loop. */
    int (*reload)(void *arg, struct err *e);
    void *arg;
};

/* Is this safe to run: who can reach it has to have a key. */
int server_check(const struct server_options *o, struct err *e);
/* Listens at the address or the socket: before models are loaded, so that a port that is taken is said at once. Clients
 * that connect wait until server_run accepts them. The descriptor, or -1. */
int server_bind(const struct server_options *o, struct err *e);
void server_unbind(const struct server_options *o, int fd); /* where server_run is not called; -1 = nothing */
/* Takes the descriptor over. Returns when a signal has ended it (SIGTERM, SIGINT) and it has drained. */
int server_run(struct models *m, const struct server_options *o, int fd, struct err *e);
