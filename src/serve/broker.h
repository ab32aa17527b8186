/* The broker: a separate process that opens files for a sandboxed server (sandbox.h). The server forks it
 * before it starts threads and closes its sandbox. The broker has one thread and serves one request at a time
 * over a socket pair: open this file, open this folder, remove this socket. Its rows, fixed at the start,
 * list the paths that it serves; no request can add one. It resolves a path on every request, so a file
 * replaced by rename, or a link that now leads elsewhere, is the new one. The broker changes no file, reaches
 * no network, starts no program, and ends with the server. When it ends first, the server keeps what it has
 * and can open nothing more. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct broker_row {
    char *path;
    enum broker_kind {
        BROKER_FILE, /* this file */
        BROKER_MODEL, /* a file, its other parts, the texts and the tower beside it; or a folder and all below it */
        BROKER_SOCKET, /* this socket: it can be removed */
    } kind;
};

enum broker_request { BROKER_OPEN, BROKER_LIST, BROKER_REMOVE };

struct broker;
/* Copies nothing: the child has its own rows. */
int broker_start(struct broker **out, const struct broker_row *rows, size_t count, struct err *e);
/* A descriptor (0 for BROKER_REMOVE), or -1 and errno: EACCES where no row has the path, ENODEV for what is neither a file
 * nor a folder, EPIPE when the broker has ended. From any thread. */
int broker_ask(struct broker *b, enum broker_request request, const char *path);
/* Passes the descriptor that reports refused calls (confine.h) to the broker, which logs each call number
 * once; closes it. */
void broker_hear(struct broker *b, int listener);
void broker_stop(struct broker *b); /* NULL is fine */

/* For tests: does the row cover the path? */
bool broker_covers(const struct broker_row *r, enum broker_request request, const char *path);
