/* A pool of compute threads: fork and join, cheap enough for a few hundred a token. The caller is worker 0. A
 * waiting thread spins for some tens of microseconds, then sleeps. One job at a time; one caller at a
 * time. */
#pragma once

#include "base/err.h"

#include <stdbool.h>

struct pool;

/* n counts the caller; 0 = one per core that this process may use (base/cores.h). With `pin` every worker
 * stays on one of them, the caller from its first job on: good on a dedicated machine, bad on a shared
 * one. */
struct pool *pool_open(int n, bool pin, struct err *e);
void pool_close(struct pool *p);
int pool_size(const struct pool *p);

/* Runs fn(arg, worker, workers) once on every worker, and returns when all are done. */
void pool_run(struct pool *p, void (*fn)(void *arg, int worker, int workers), void *arg);
/* Inside a job: all workers wait for each other. */
void pool_barrier(struct pool *p, int worker);

/* The slice [*from, *to) of n things, in units of `unit`, that is this worker's. */
static inline void pool_slice(long n, long unit, int worker, int workers, long *from, long *to)
{
    long units = (n + unit - 1) / unit;
    long a = units * worker / workers * unit, b = units * (worker + 1) / workers * unit;
    *from = a < n ? a : n;
    *to = b < n ? b : n;
}
