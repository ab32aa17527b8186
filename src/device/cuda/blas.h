/* cuBLASLt, found at run time: the large products, fp16 in, float sums. Optional: its absence costs speed only. */
#pragma once

#include "device/cuda/gpu.h"

struct blas;

/* NULL where the library is not there (not an error); `workspace` bytes are taken from g. */
struct blas *blas_open(struct gpu *g, uint64_t workspace);
void blas_close(struct blas *b);

/* y(m, n) = x(m, k) w(n, k)^T on g's stream; rows of y are ldy floats apart, those of x and w k halves. */
struct blas_product {
    cu_ptr w, x, y;
    uint32_t m, n, k;
    uint64_t ldy;
};
int blas_run(struct blas *b, const struct blas_product *p, struct err *e);
