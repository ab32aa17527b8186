/* Embeddings for many clients at once. One thread owns the runner; texts of all jobs share its steps.
 * Decoders read a long text in chunks; an encoder, where every token sees every other, reads it in one step.
 * The model is loaded with session_options.hidden and a runner as embedder_runner says. */
#pragma once

#include "base/err.h"
#include "run/pooler.h"
#include "run/rerank.h"
#include "run/session.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct embedder;

/* The client's, from submit until it is done. Everything but the last part is set by the client. */
struct embed_job {
    const struct ids *texts;   /* (count), none of them empty or longer than the context */
    size_t count;              /* at least 1 */
    float *out;                /* (count, out_width of the pooler; width where they are scored) */
    bool scored;               /* the row for the reranker's head, instead of a vector */
    bool batch;                /* waits for all jobs that are of no batch */
    const atomic_bool *cancel; /* set by the client to cancel; may be NULL */
    /* Called once by the embedder's thread when it is done; must not block. */
    void (*done)(void *arg);
    void *arg;
    /* when it is done: code != 0 says that it failed */
    struct err err;
    /* used by the embedder only */
    size_t begun, ended;
    struct embed_job *next;
};

struct embedder_stats {
    uint64_t texts, tokens, jobs, failed;
    uint32_t waiting; /* jobs that are not done */
    double last_step;
};

/* The options of a runner for `texts` texts at once, of up to ctx tokens each. */
void embedder_runner(struct runner_options *r, bool causal, uint32_t ctx, uint32_t texts);
/* users: as of engine_options. */
int embedder_open(struct embedder **out, struct session *l, atomic_uint *users, struct err *e);
/* Pending jobs fail. */
void embedder_close(struct embedder *m);
/* Any thread. ERR_USAGE where a text is empty, too long, or has ids that the model does not know. */
int embedder_submit(struct embedder *m, struct embed_job *j, struct err *e);
/* How vectors are made of rows. */
const struct pooler *embedder_pooler(const struct embedder *m);
/* The head of a reranker; NULL = the model has none. */
const struct rerank_head *embedder_head(const struct embedder *m);
void embedder_stats(struct embedder *m, struct embedder_stats *out);
