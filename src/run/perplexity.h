/* Perplexity of a text under a model, by llama.cpp's scheme: chunks of `ctx` tokens, the first token of
 * each replaced by BOS where the model has one, the second half of each chunk scored. Where there is a second
 * model, the first is measured against it: how far its distributions are from that one's. */
#pragma once

#include "base/err.h"
#include "run/runner.h"

#include <stdbool.h>
#include <stdint.h>

struct perplexity_options {
    uint32_t ctx;      /* tokens a chunk, at least 4 */
    uint32_t chunks;   /* at most this many; 0 = all */
    int32_t bos;       /* -1 = none */
    struct seq *other; /* the reference, of the same vocabulary; NULL = none */
    void (*progress)(void *arg, uint32_t done, uint32_t of, double perplexity);
    void *arg;
    const volatile int *cancel; /* may be NULL */
};

/* KL divergence of the model from the reference, sum p ln(p / q), over the scored positions; in nats. */
struct divergence {
    float *each; /* (scored), ascending */
    double mean, error, median, p99, most;
    double same_top;     /* share of positions where both have the same best token */
    double other, ratio; /* perplexity of the reference, and the model's divided by it */
};

struct perplexity {
    double value, error; /* of the value, one standard deviation */
    uint32_t chunks;
    uint64_t scored;           /* tokens */
    struct divergence against; /* each is NULL without a reference */
};

/* The runners of both sequences need a context of at least o->ctx. Free it, also after an error. */
int perplexity_run(struct seq *s, const int32_t *ids, size_t n, const struct perplexity_options *o,
                   struct perplexity *out, struct err *e);
void perplexity_free(struct perplexity *p);
