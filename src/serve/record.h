/* What of a request is stored at its end, in one transaction: its usage, and what its API keeps of the answer. The client
 * gets the end of its reply when that is committed: what it was told is there after any crash.
 *
 * A record is the loop's until it is sent, then the writer's. */
#pragma once

#include "save/state.h"
#include "save/usage_table.h"

struct request;
struct server;

enum { RECORD_MODEL = 128 };

struct record {
    struct state_write write;
    struct server *server;
    struct request *request; /* that waits for it; NULL = none. Guarded by the server's mutex */
    struct usage_row usage;
    char model[RECORD_MODEL];
    /* What the API keeps: stored in the same transaction. Where this fails, the request does. kept NULL = nothing. */
    void *kept;
    int (*store)(void *kept, sqlite3 *db, struct err *e);
    void (*drop)(void *kept);
    size_t kept_bytes;
    struct record *next; /* of the server's unsaved ones */
};

/* The loop's. Makes the record of a request that ends; NULL: no memory, or no state. */
struct record *record_new(struct request *a);
/* Hands it over. true: the request waits, and request_chunk is called again when `recorded` is set. */
bool record_send(struct record *r, bool wait);
/* The usage of a request that ends without a reply. */
void record_post(struct request *a);
/* The request goes: it waits no more. */
void record_leave(struct request *a);
/* Tries again what could not be stored; a few times a second. */
void record_retry(struct server *s);
void record_free_unsaved(struct server *s);
