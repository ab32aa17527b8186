/* What survives a restart: one SQLite database in the state folder. This is the contract for the modules that keep something
 * in it (usage, responses, files, batches).
 *
 * TABLES are in schema.c, one list of migrations for all modules. sql.h has statements.
 *
 * WRITES. One thread, the writer, changes the database. A module embeds a `struct state_write` in what it wants to store,
 * and hands it over with state_write, from any thread; this never blocks on the disk. The writer takes all that wait, runs
 * each one's `run` in a savepoint of one transaction, commits (with fsync), and then calls each one's `done`. A write is
 * acknowledged when `done` finds err.code 0: from then on neither kill -9 nor a power failure loses it. So the
 * reply to a client follows `done`. A write whose `run` fails is undone alone. `run` may be called again
 * after a failure of the whole group: it changes nothing but the database and its own results. ERR_DATA means that the
 * database is damaged: `run` sets it for nothing else.
 *
 *     struct put { struct state_write write; ... };      (test/save/state.c)
 *     static int put_run(struct state_write *w, sqlite3 *db, struct err *e) { ... return sql_end(&q); }
 *     static void put_done(struct state_write *w) { ... w->err ...; worker_again(request); }
 *     p->write = (struct state_write){.run = put_run, .done = put_done, .bytes = size};
 *     if (state_write(s, &p->write, e)) ... refused: nothing is called
 *
 * Order: writes are run in the order of state_write. state_write_wait is the same for threads that may block.
 *
 * READS. Look-ups are made by the thread that needs them, but never by the event loop or an engine: it takes a read-only
 * connection with state_reader, and gives it back soon. It sees all acknowledged writes.
 *
 * ROOM. state_check says whether more may be accepted: not where the disk (or the limit of the state) has no more room, or
 * where the database is damaged. Call it before starting work whose result is to be stored. ERR_FULL becomes HTTP's 507.
 *
 * FOLDER. quern.db (0600) with its -wal and -shm, and `lock`, which one process holds. A database that is damaged is
 * renamed to damaged-TIME.db, and a new one begins. Without a folder everything is the same in memory, and ends with the
 * process. */
#pragma once

#include "base/err.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct state;

struct state_options {
    const char *folder; /* NULL = in memory */
    uint64_t most;      /* bytes of the database; 0 = no limit */
};

struct state_write {
    /* on the writer, in a transaction */
    int (*run)(struct state_write *w, sqlite3 *db, struct err *e);
    /* on the writer, after the commit or the failure; may free it. NULL = nothing */
    void (*done)(struct state_write *w);
    size_t bytes;             /* of its content: the queue is bounded by bytes, too */
    struct err err;           /* for done: code 0 = it is stored */
    struct state_write *next; /* the queue's */
};

/* Makes the folder and those above it (0700). Before the sandbox; the rest works inside of it. */
int state_make_folder(const char *path, struct err *e);
/* Locks the folder, checks and migrates the database, and starts the writer. ERR_RESOURCE: another process has it.
 * ERR_USAGE: its version is newer than this program. ERR_FULL: it cannot be written. */
int state_open(struct state **out, const struct state_options *o, struct err *e);
/* Runs what is in the queue, and closes. NULL is nothing. */
void state_close(struct state *s);

/* -1: the queue is full, or the state is closing or damaged. */
int state_write(struct state *s, struct state_write *w, struct err *e);
/* Waits for the commit; `done` is not called. */
int state_write_wait(struct state *s, struct state_write *w, struct err *e);

/* Waits until all earlier writes are done; NULL is nothing. */
void state_flush(struct state *s);

/* Waits for a free one. */
sqlite3 *state_reader(struct state *s);
void state_release(struct state *s, sqlite3 *db);

int state_check(struct state *s, struct err *e);
bool state_is_kept(const struct state *s); /* in a folder, not in memory */
uint64_t state_bytes(struct state *s);     /* of the database in use */

/* The database of a folder for a program that is not the server: without the lock, beside a running server. */
int state_open_beside(sqlite3 **out, const char *folder, bool write, struct err *e);
