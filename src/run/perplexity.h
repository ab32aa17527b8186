/* Perplexity of a text under a model, by llama.cpp's scheme: chunks of `ctx` tokens, the first token of
 * each replaced by BOS where the model has one, the second half of each chunk scored. */
#pragma once

#include "base/err.h"
#include "run/runner.h"

#include <stdint.h>

struct perplexity_options {
    uint32_t ctx;    /* tokens a chunk, at least 4 */
    uint32_t chunks; /* at most this many; 0 = all */
    int32_t bos;     /* -1 = none */
    void (*progress)(void *arg, uint32_t done, uint32_t of, double perplexity);
    void *arg;
    const volatile int *cancel; /* may be NULL */
};

struct perplexity {
    double value, error; /* of the value, one standard deviation */
    uint32_t chunks;
    uint64_t scored; /* tokens */
};

/* The sequence's runner needs a context of at least o->ctx. */
int perplexity_run(struct seq *s, const int32_t *ids, size_t n, const struct perplexity_options *o,
                   struct perplexity *out, struct err *e);
