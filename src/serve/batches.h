/* Batches in the state: OpenAI's /v1/batches and Anthropic's /v1/messages/batches. Their lines are run by the driver of
 * batch.h; the state is the record of what is done. So after a stop of any kind a batch goes on with the lines that have no
 * reply, each once.
 *
 *   validating -> in_progress -> finalizing -> completed
 *        failed        expired (its time was up), cancelling -> cancelled
 *
 * batches.c has OpenAI's routes, anthropic_batches.c Anthropic's, batches_feed.c the feed: which batches are open, and their
 * next lines; batches_life.c how they begin and end. */
#pragma once

#include "base/err.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

enum { BATCHES_MOST = 64, BATCHES_ID = 48 };
enum { BATCHES_OPENAI, BATCHES_ANTHROPIC }; /* the column api */

struct batch_feed;
struct batches;
struct buf;
struct request;
struct server;
struct sql;

/* The routes: on a worker. */
void batches_create(struct request *a);
void batches_list(struct request *a);
void batches_get(struct request *a);
void batches_cancel(struct request *a);
void anthropic_batches_create(struct request *a);
void anthropic_batches_list(struct request *a);
void anthropic_batches_get(struct request *a);
void anthropic_batches_cancel(struct request *a);
void anthropic_batches_delete(struct request *a);
void anthropic_batches_results(struct request *a);

/* The loop's: finds the batches that have not ended, and starts the driver. */
int batches_start(struct server *s, uint32_t lines, struct err *e);
void batches_stop(struct server *s);
/* Any thread's: a batch has been added, or is to be cancelled. */
void batches_changed(struct server *s);

/* ---- what the routes share ---- */

/* A row of the table. Texts are valid until the statement ends. */
struct batch_row {
    int64_t number, created, expires, started, cancelling, finalizing, ended;
    int64_t total, completed, failed;
    const char *id, *status, *endpoint, *input, *output, *failures, *window, *metadata, *errors;
};
#define BATCHES_COLUMNS                                                                                      \
    "number, created, expires, started, cancelling, finalizing, ended, total, completed, failed, "           \
    "id, status, endpoint, input, output, failures, window, metadata, errors"
void batches_row(const struct sql *q, struct batch_row *out);
/* The statement of the batch that the path names, of this key and this API; true: it has it. */
bool batches_find(struct request *a, sqlite3 *db, int api, struct sql *q, struct err *e);
/* Writes the reply about the batch that the path names, as `write` does. */
void batches_show(struct request *a, int api, void (*write)(const struct batch_row *b, struct buf *out));
/* The same for a page of a list. */
struct batches_page {
    int64_t limit;
    const char *after, *before; /* ids; NULL = none */
};
void batches_show_page(struct request *a, int api, const struct batches_page *p,
                       void (*write)(const struct batch_row *b, struct buf *out));
/* Adds a batch, on the writer; 0 and its number, 1: there are too many that have not ended, -1: an error. */
struct batch_new {
    char id[BATCHES_ID];
    int64_t key;
    int api;
    const char *status, *endpoint, *input, *window, *metadata; /* may be NULL but for the first two */
    int64_t seconds;                                           /* until it expires */
    int64_t total;
};
int batches_add(sqlite3 *db, const struct batch_new *b, int64_t *number, struct err *e);
int batches_add_line(sqlite3 *db, int64_t batch, int64_t number, const char *custom_id,
                     const struct buf *body, struct err *e);
/* Starts a write for the request, whose route is called again with the next stage when it is done; a->task is the write. */
struct state_write;
void batches_write(struct request *a, struct state_write *w);
/* A batch becomes one that is cancelled, where it has not ended. */
void batches_start_cancel(struct request *a, int api);
/* -1 and a failure: what was started has failed. */
int batches_cancelled(struct request *a);
