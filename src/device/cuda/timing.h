/* The time of a step, launch by launch: an event before and after each, read when the step is done. Costs
 * nothing while it is off.
 *
 * Launches overlap: the next one starts while the last one ends, and copies run beside kernels. So a launch gets its
 * exclusive time, and all of them together take as long as the card was busy. */
#pragma once

#include "device/cuda/gpu.h"
#include "device/device.h"

enum { TIMING_BLAS = K_COUNT, TIMING_KERNELS }; /* cuBLASLt counts as one kernel */

/* One launch on the step's timeline; seconds since its first event. */
struct timing_span {
    double from, to;
    double own;  /* its exclusive time (timing_exclusive) */
    uint32_t at; /* its number in the step */
};

struct gpu_timing {
    void **event;             /* (room): pairs */
    uint16_t *what;           /* (room / 2): the kernel */
    uint32_t *op;             /* (room / 2): whose it was */
    struct timing_span *span; /* (room / 2) */
    uint32_t used, room;
    uint32_t now; /* the operation that launches */
    bool failed;  /* no memory for more: the rest of the step is not counted */
    double seconds[TIMING_KERNELS];
    uint64_t calls[TIMING_KERNELS];
};

int timing_open(struct gpu *g, struct err *e); /* into g->timing; may be called again */
void timing_close(struct gpu *g);
void timing_start(struct gpu *g); /* a step begins */
/* Around a launch, where g->timing is there. */
void timing_before(struct gpu *g, uint32_t kernel);
void timing_after(struct gpu *g);
/* Fills in `own`: every moment belongs to the launch that started first of those that run. Sorts the spans by start. */
void timing_exclusive(struct timing_span *span, uint32_t n);
/* Once the stream is done: adds the seconds of operations (seconds[op]) and kernels. */
int timing_collect(struct gpu *g, double *seconds, struct err *e);
/* What kernels took since the last call, the longest first. */
uint32_t timing_take(struct gpu *g, struct device_kernel *out, uint32_t most);
