/* A request on its way through the engine: the part that only the engine's thread touches, and the stream
 * that its client reads. All memory is taken when it is submitted (most of it is touched only as the output
 * grows), so that a step takes none. */
#pragma once

#include "run/engine.h"
#include "run/job_images.h"
#include "run/speculate.h"
#include "run/stop.h"

#include <pthread.h>
#include <stdatomic.h>

/* Guarded by its own mutex. Two owners, the engine and the client: the last one frees it. */
struct stream {
    pthread_mutex_t mutex;
    pthread_cond_t news;
    struct buf text;
    struct ids ids;         /* it, logprobs and top never move: the client reads them in place */
    uint32_t echoed;        /* the first of ids that are the prompt's */
    float *logprobs;        /* (ids.cap) or NULL */
    struct token_prob *top; /* (ids.cap, tops) or NULL */
    uint32_t *ranks;        /* (ids.cap) or NULL */
    uint32_t tops;
    float
        *logits; /* (logit_rows, vocab) or NULL: written by the engine until it is done, then the client's */
    size_t seen_text, seen_ids; /* what the client has been given */
    struct buf out_text;        /* a copy for the client: the original moves as it grows */
    struct stream_chunk state;  /* all but the pointers */
    bool fresh;                 /* there is a chunk to read */
    bool closed;                /* the client has closed it */
    int owners;
    void (*wake)(void *arg);
    void *arg;
    atomic_bool cancel; /* not guarded */
};

struct job {
    struct job *next; /* in the queue */
    struct stream *stream;
    struct engine_request request; /* its pointers are copies that the job owns */
    char **stop_strings;
    struct ids ids; /* prompt and output; ids of images' rows are negative */
    struct job_images images;
    struct speculate_index index; /* of them */
    struct seq *seq;              /* while it runs */
    bool news;                    /* has tokens that are not published yet */
    struct sampler *sampler;
    struct constraint_walk walk;
    struct token_filter *filter; /* NULL = none */
    struct reasoning *reasoning; /* NULL = none */
    bool line;                   /* the output has reached the end of a line */
    struct tok_decoder decoder;
    struct stop stop;
    struct buf piece;
    uint32_t made, cached;
    uint32_t prompt; /* tokens of ids that are the request's prompt */
    size_t bytes;    /* that it takes while it waits, about */
    uint32_t scored; /* of these, tokens whose probability the stream has; all, if the request wants none */
    uint32_t rows;   /* of logits that the stream has */
    uint32_t kept;   /* tokens that the prefix tree has been given */
    bool fetches;    /* more of its pages are being read from disk: it waits for them */
    uint32_t
        turn; /* where the next prompt of the conversation may go another way: a snapshot is made there */
    uint32_t branch; /* where it leaves a text of the prefix tree: the same */
    double submitted, started, first;
    struct seq *draft_seq;   /* the draft model's, while it runs; NULL = none */
    uint32_t drafts;         /* draft tokens that stand after ids */
    uint32_t speculate_most; /* how many the draft model may draft */
    enum speculate_kind speculate_kind;
    int32_t shadow; /* the next draft token of the constraint or the text, verified or not; -1 = none */
    enum speculate_kind shadow_kind;
    uint32_t draft; /* how many of the draft tokens the step verifies */
    struct accept_rate accept_rate[SPECULATE_KINDS];
    struct pause pause;                 /* of the draft model */
    uint32_t drafted, accepted, forced; /* draft tokens: verified, accepted, accepted from the constraint */
};

/* The request's `most` is resolved: the most tokens that the output can have. */
struct job *job_open(const struct session *l, const struct engine_request *r, struct err *e);
void job_close(struct job *j);
/* How it ends, for the stream. */
struct job_end {
    enum finish_kind finish;
    bool context_full;
    const struct err *err; /* NULL = it did not fail */
};
void job_finish(struct job *j, const struct job_end *end);
/* One more token, taken from these logits. 1: it ends the request; 0: go on; -1: an error. */
int job_token(struct job *j, const struct session *l, int32_t id, const float *logits, struct err *e);
/* Scores the prompt's next tokens with the results of these rows. */
void job_score(struct job *j, uint32_t vocab, const float *logits, uint32_t rows);
/* Keeps a row of logits for the client, where it asked for them. */
void job_keep_logits(struct job *j, uint32_t vocab, const float *logits);
/* The first of its tokens whose result is wanted: the last, or the one before the first that has not been scored. */
uint32_t job_first_result(const struct job *j);
/* Does the next token need the logits on the host. */
bool job_needs_logits(struct job *j);
void job_publish(struct job *j); /* signals the client that there is a chunk */
