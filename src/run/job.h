/* A request on its way through the engine: the part that only the engine's thread touches, and the
 * stream that its client reads. */
#pragma once

#include "run/engine.h"
#include "run/stop.h"

#include <pthread.h>

enum job_state { JOB_WAITING, JOB_RUNNING, JOB_DONE };

/* Guarded by its own mutex. Two owners, the engine and the client: the last one frees it. */
struct stream {
    pthread_mutex_t mutex;
    pthread_cond_t news;
    struct buf text;
    struct ids ids;
    float *logprobs;            /* (ids.cap) or NULL */
    size_t seen_text, seen_ids; /* what the client has been given */
    struct buf out_text;        /* copies for the client: the originals move as they grow */
    struct ids out_ids;
    float *out_logprobs;
    struct stream_news state; /* all but the pointers */
    bool fresh;               /* there is something to look at */
    volatile int cancel;
    int owners;
    struct engine *engine;
};

struct job {
    struct job *next; /* in the engine's list of its state */
    enum job_state state;
    struct stream *stream;
    struct engine_request request; /* its pointers are the job's own copies */
    char **stop_strings;
    struct ids ids;  /* prompt and answer */
    struct seq *seq; /* while it runs */
    struct sampler *sampler;
    struct tok_decoder decoder;
    struct stop stop;
    struct buf piece;
    float *logprobs_piece;
    uint32_t made;
    double submitted, started, first;
    uint32_t draft;      /* tokens that the next step guesses ahead */
    uint32_t draft_ok;   /* how many it may guess: adapts */
    uint32_t draft_rest; /* steps to sit out after guesses that failed */
};

struct job *job_open(struct engine *g, const struct engine_request *r, struct err *e);
/* Ends it: the stream learns why, the pages go back. */
void job_finish(struct job *j, enum finish_kind finish, const struct err *e);
void job_close(struct job *j);
/* One more token for the stream. 1: it ends the request; 0: go on; -1: an error. */
int job_token(struct job *j, const struct loaded *l, int32_t id, float logprob, struct err *e);
void job_publish(struct job *j); /* tells the client that there is news */

double engine_clock(void);
