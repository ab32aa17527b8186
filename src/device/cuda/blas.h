/* cuBLASLt, found at run time: the large products, fp16 or fp8 in, float sums. Optional: its absence costs speed only. */
#pragma once

#include "device/cuda/gpu.h"

struct blas;

/* NULL where the library is not there (not an error); `workspace` bytes are taken from g. */
struct blas *blas_open(struct gpu *g, uint64_t workspace);
void blas_close(struct blas *b);

/* Whether it multiplies e4m3 with a scale a row. */
bool blas_has_fp8(struct blas *b);

/* y(m, n) = x(m, k) w(n, k)^T on g's stream; rows of y are ldy floats apart, those of x and w k halves, or with scales, (n)
 * and (m), k values of e4m3. */
struct blas_product {
    cu_ptr w, x, y;
    cu_ptr w_scale, x_scale; /* 0: fp16 */
    uint32_t m, n, k;
    uint64_t ldy;
};
int blas_run(struct blas *b, const struct blas_product *p, struct err *e);
/* Whether a product of this shape has run before: the first one loads its kernel. */
bool blas_knows(struct blas *b, const struct blas_product *p);
