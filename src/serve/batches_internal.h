/* What the files of the feed of batches share: batches_feed.c has the lines, batches_life.c how a batch begins and ends. */
#pragma once

#include "serve/batches.h"
#include "serve/files.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct line_done;
struct server;

/* A batch that has not ended. The driver's, but for `running`. */
struct open_batch {
    int64_t number, owner, expires;
    int api;
    char id[BATCHES_ID], endpoint[64], input[FILES_ID];
    bool validating, cancelling;
    bool stops;       /* its time is up, or it is cancelled: no more lines */
    int64_t at;       /* the last line that was handed out */
    bool all;         /* and it was the last of all */
    uint32_t running; /* lines that were handed out, and whose reply is not stored; guarded by the mutex */
};

struct batches {
    struct server *server;
    struct open_batch open[BATCHES_MOST];
    uint32_t turn;         /* whose line is next */
    double tried, expired; /* when replies without room were stored last; when files were looked at */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t idle;
    uint32_t count;            /* of open; only the driver changes it */
    uint32_t pending;          /* writes that are not done */
    struct line_done *unsaved; /* replies that found no room */
    bool changed, stopping;
};

/* Reads the input of a batch and makes its lines. True: it has ended, since the input is wrong. */
bool batches_validate(struct batches *all, struct open_batch *b);
/* Nothing of the batch runs, and nothing more will. True: it has ended. */
bool batches_finish(struct batches *all, struct open_batch *b);
