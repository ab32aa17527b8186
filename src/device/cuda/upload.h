/* The weights of a model on the GPU: one pool, filled by several threads through pinned memory. */
#pragma once

#include "device/cuda/gpu.h"
#include "device/device.h"

struct upload {
    struct gpu *g;
    struct mat *mat; /* (weights.count); base NULL for index 0 */
    uint32_t count;
    cu_ptr pool;
    uint64_t bytes;
    uint32_t converted;           /* weights whose type has no kernel: decoded to F16 */
    uint32_t decoded[DTYPE_MOST]; /* how many of each such type */
    double seconds;
};

/* What upload_weights will take, and beside it while it runs. */
uint64_t upload_bytes(const struct weights *w);
uint64_t upload_ring_bytes(int threads);
/* The address of each weight in a pool that begins there; allocates only the table. */
int upload_place(struct upload *u, const struct weights *w, cu_ptr pool, struct err *e);
/* threads: 0 = up to eight. */
int upload_weights(struct upload *u, struct gpu *g, const struct weights *w, int threads,
                   void (*progress)(void *, double), void *arg, struct err *e);
void upload_free(struct upload *u);
/* The form that a weight gets, and its dtype there (for messages). */
uint32_t upload_fmt(const struct weight *w);
