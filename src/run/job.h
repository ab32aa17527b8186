/* A request on its way through the engine: the part that only the engine's thread touches, and the
 * stream that its client reads. All memory is taken when it is submitted (most of it is touched only as
 * the answer grows), so that a step takes none. */
#pragma once

#include "run/engine.h"
#include "run/speculate.h"
#include "run/stop.h"

#include <pthread.h>
#include <stdatomic.h>

/* Guarded by its own mutex. Two owners, the engine and the client: the last one frees it. */
struct stream {
    pthread_mutex_t mutex;
    pthread_cond_t news;
    struct buf text;
    struct ids ids;         /* it, logprobs and top never move: the client looks into them */
    uint32_t echoed;        /* the first of ids that are the prompt's */
    float *logprobs;        /* (ids.cap) or NULL */
    struct token_prob *top; /* (ids.cap, tops) or NULL */
    uint32_t *ranks;        /* (ids.cap) or NULL */
    uint32_t tops;
    size_t seen_text, seen_ids; /* what the client has been given */
    struct buf out_text;        /* a copy for the client: the original moves as it grows */
    struct stream_chunk state;  /* all but the pointers */
    bool fresh;                 /* there is something to look at */
    bool closed;                /* the client has gone */
    int owners;
    void (*wake)(void *arg);
    void *arg;
    atomic_bool cancel; /* not guarded */
};

struct job {
    struct job *next; /* in the queue */
    struct stream *stream;
    struct engine_request request; /* its pointers are the job's own copies */
    char **stop_strings;
    struct ids ids;               /* prompt and answer */
    struct speculate_index index; /* of them */
    struct seq *seq;              /* while it runs */
    bool news;                    /* tokens that its client has not been told of */
    struct sampler *sampler;
    struct constraint_walk walk;
    struct token_filter *filter; /* NULL = none */
    bool line;                   /* the answer has come to the end of a line */
    struct tok_decoder decoder;
    struct stop stop;
    struct buf piece;
    uint32_t made, cached;
    uint32_t prompt; /* tokens of ids that are the request's own */
    size_t bytes;    /* that it takes while it waits, about */
    uint32_t scored; /* of these, tokens whose probability the stream has; all, where nobody asks */
    uint32_t kept;   /* tokens that the prefix tree has been given */
    bool fetches;    /* the disk has more of its tokens: it computes nothing meanwhile */
    double submitted, started, first;
    struct seq *guess;       /* the draft model's, while it runs; NULL = none */
    uint32_t guessed;        /* guesses that stand after ids */
    uint32_t speculate_most; /* how many the draft model is to make */
    enum speculate_kind speculate_kind;
    int32_t shadow; /* what the rule or the text says comes next, verified or not; -1 = nothing */
    enum speculate_kind shadow_kind;
    uint32_t draft; /* how many of the guesses the step verifies */
    struct accept_rate accept_rate[SPECULATE_KINDS];
    struct pause pause;                 /* of the draft model's guesses */
    uint32_t drafted, accepted, forced; /* guesses verified, come true, of those by the rule */
};

/* The request's `most` is the real one: what the answer can have at most. */
struct job *job_open(const struct session *l, const struct engine_request *r, struct err *e);
void job_close(struct job *j);
/* How it ends: the stream learns why. */
struct job_end {
    enum finish_kind finish;
    bool context_full;
    const struct err *err; /* NULL = it did not fail */
};
void job_finish(struct job *j, const struct job_end *end);
/* One more token, taken from these logits. 1: it ends the request; 0: go on; -1: an error. */
int job_token(struct job *j, const struct session *l, int32_t id, const float *logits, struct err *e);
/* The results of these rows say how likely the prompt's next tokens were. */
void job_score(struct job *j, uint32_t vocab, const float *logits, uint32_t rows);
/* The first of its tokens whose result is wanted: the last, or the one before the first that has not been scored. */
uint32_t job_first_result(const struct job *j);
/* Does the next token need the logits on the host. */
bool job_needs_logits(struct job *j);
void job_publish(struct job *j); /* tells the client that there is news */
