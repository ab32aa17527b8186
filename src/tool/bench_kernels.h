/* quern bench --kernels: every row of the kernel tables over shapes of real models, beside the machine's
 * limits. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KERNEL_LINES = 1024 };

/* One measurement. */
struct kernel_line {
    const char *device, *kernel, *type, *shape_of; /* the model that has a weight of that shape */
    char tier[12];
    uint32_t n, k, m; /* outputs, inputs, rows */
    double us, gb_s, gop_s;
    double share; /* of the limit, which is the read bandwidth or the arithmetic */
    const char *limit;
};

struct kernel_bench {
    struct kernel_line line[KERNEL_LINES];
    uint32_t count;
    int only;    /* enum dtype; -1 = all */
    int threads; /* 0 = all cores */
    const char *device;
    const char *tier;
};

/* The products of real models that are timed. */
struct kernel_shape {
    const char *of;
    uint32_t n, k;
};

/* Adds a line; NULL when the table is full. `work` is what one call reads (bytes) and computes (operations). */
struct kernel_work {
    double bytes, ops, read_peak, op_peak; /* peaks a second; 0 = not known */
    bool by_bytes;                         /* which of them is the limit */
};
void kernel_add(struct kernel_bench *b, struct kernel_line line, double seconds, const struct kernel_work *w);

int bench_kernels_gpu(struct kernel_bench *b, int card, struct err *e);
/* Runs all benchmarks and writes them to standard output, as a table or as JSON. */
int bench_kernels(struct kernel_bench *b, bool json, struct err *e);
