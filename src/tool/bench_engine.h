/* quern bench --streams: the engine with many concurrent requests, and how long a running one waits while a
 * long prompt is read. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

struct bench_engine {
    const uint32_t *streams; /* (count) how many at once */
    int count;
    uint32_t prompt, predict; /* tokens of each */
    uint32_t read;            /* tokens of the long prompt; 0 = none */
    int threads;              /* 0 = all cores */
};

int bench_engine(const struct args *a, const struct bench_engine *o, struct err *e);
