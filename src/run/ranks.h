/* Opening the ranks of a runner. */
#pragma once

#include "device/device.h"
#include "run/runner.h"

/* Whether the options ask for more than one rank, or this process is one of several. */
bool ranks_wanted(const struct ranks_options *o);
/* Whether these ranks are cards. */
bool ranks_on_gpu(const struct runner_options *o);
/* Rank 0's device, or in the process of another rank: serves until rank 0 ends, then *out is NULL and 0 is returned. */
int ranks_open(struct device **out, struct plan *plan, const struct weights *weights,
               const struct runner_options *o, struct err *e);

/* How a model goes onto cards. */
struct ranks_advice {
    uint32_t cards;   /* that there are */
    uint64_t memory;  /* bytes of one */
    uint32_t tensor;  /* ranks to share every layer; 0: not even all cards hold it */
    uint64_t weights; /* bytes of the rank that has most of them, with `tensor` ranks or with all cards */
    uint64_t token;   /* and of the KV of one token there */
};
/* The fewest cards that hold the weights and the KV of `tokens` tokens. */
int ranks_advise(const struct plan *plan, const struct weights *weights, uint32_t cards, uint64_t memory,
                 uint64_t tokens, struct ranks_advice *out, struct err *e);
