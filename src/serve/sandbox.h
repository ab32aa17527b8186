/* The sandbox: a server keeps the rights that it needs and gives up the rest permanently. Landlock closes
 * files, a list of allowed system calls (seccomp) closes the others, and both close the network: nothing can
 * connect, and ports are bound before. Files opened later (reloaded keys and certificates, models) come from
 * the broker (broker.h) as descriptors, through the opener of base/file.h.
 *
 * A table by feature (sandbox.c) lists the remaining rights: a feature that needs more adds a row there, and
 * the caller names the paths of the features in use. */
#pragma once

#include "base/err.h"
#include "serve/broker.h"

#include <stdbool.h>
#include <stddef.h>

enum sandbox_feature {
    SANDBOX_SERVER,      /* always: the machine's facts, libraries, threads, connections */
    SANDBOX_KEYS,        /* paths: files of keys */
    SANDBOX_CERTIFICATE, /* paths: of TLS, and its key */
    SANDBOX_MODELS,      /* paths: models, adapters, folders of models */
    SANDBOX_CACHE,       /* paths: folders that are written to */
    SANDBOX_STATE,       /* paths: the state folder */
    SANDBOX_SOCKET,      /* paths: the socket that is removed at the end */
    SANDBOX_GPU,         /* paths: folders of libraries, as LD_LIBRARY_PATH names them */
    SANDBOX_GPU_CACHE,   /* paths: the driver's folder for kernels that it compiled */
    SANDBOX_FEATURES
};

struct sandbox {
    bool used[SANDBOX_FEATURES];
    struct broker_row *rows; /* (row_count): what the broker opens */
    size_t row_count, row_room;
    struct confine_rule *rules; /* (rule_count): what Landlock leaves open; the paths are owned */
    size_t rule_count, rule_room;
    struct broker *broker;
    bool failed; /* out of memory: sandbox_enter reports it */
};

/* The feature is in use, with this path (copied; NULL: none). */
void sandbox_use(struct sandbox *s, enum sandbox_feature feature, const char *path);
/* Starts the broker, sets the opener of base/file.h and closes the rest, for the whole process and
 * permanently. Threads that libraries have started (MPI's) are confined, too, unless they block signals. Logs one line: what
 * is closed, and the reason for what is not. */
int sandbox_enter(struct sandbox *s, struct err *e);
void sandbox_free(struct sandbox *s);
