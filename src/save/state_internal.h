/* struct state: what the writer, the readers and the check share. */
#pragma once

#include "save/state.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

enum { STATE_READERS = 2 };

struct state {
    char folder[PATH_MAX]; /* "" = in memory */
    int lock_fd;
    uint64_t most;
    sqlite3 *db; /* the writer's; in memory the readers', too, under `alone` */
    pthread_mutex_t alone;
    pthread_t writer, checker;
    bool has_writer, has_checker;
    sqlite3 *_Atomic checked; /* the checker's connection, while it checks */
    atomic_bool damaged, closing;
    atomic_uint_least64_t used; /* bytes of pages in use, as of the last commit */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work, reader_free;
    struct state_write *first, **end; /* the queue */
    size_t queued, queued_bytes;
    sqlite3 *readers[STATE_READERS];
    uint32_t reader_count;
    struct err full;    /* why the last write found no room; code 0 = it did */
    double full_at;     /* when that was */
    uint64_t disk_free; /* bytes, as of */
    double disk_seen;
};

/* The path of a file of the folder. */
void state_path(const struct state *s, const char *name, char out[PATH_MAX]);
/* Opens a connection to the database of the folder, or in memory. */
int state_connect(const struct state *s, bool write, sqlite3 **out, struct err *e);
/* Found damaged while in use: no more is written, and the next start moves the database aside. Any thread. */
void state_damage(struct state *s, const char *why);

/* The threads (state_write.c, state_check.c). */
void *state_writer(void *state);
void *state_checker(void *state);
/* Checks the structure of the database, for at most `seconds`. 0 = sound, 1 = not finished, -1 = damaged. */
int state_quick_check(struct state *s, sqlite3 *db, double seconds, struct err *e);
