/* Products of a step: what goes into them (rows, normed, in the form that a way through the kernels takes), the products
 * themselves with what adapters add, and what follows (product.c). step.c makes operations of them. */
#pragma once

#include "device/cuda/exec.h"

static inline struct mat *mat_of(struct cuda_device *d, weight_id w)
{
    return &d->weights.mat[w];
}

static inline const float *vector_of(struct cuda_device *d, weight_id w)
{
    return w ? (const float *)d->weights.mat[w].base : NULL;
}

struct norm_args product_norm(struct cuda_device *d, const struct norm *n);
enum path product_path(const struct cuda_device *d, uint32_t m);
/* m rows will be packed for products with these weights (0: none). */
void product_expect(struct cuda_device *d, uint32_t m, const weight_id *w, uint32_t n);
/* Where `path` wants its input. */
struct pack_out product_out(struct cuda_device *d, enum path path, uint32_t m, uint32_t k);

/* The input of products: m rows of x, normed, in the form that `path` takes. */
struct input {
    const float *x;
    uint64_t ldx;
    uint32_t m, k;
    const struct norm *norm;
    const int32_t *row; /* row i is x's row row[i] */
    bool grouped;       /* the rows of experts: each group of eight by itself */
};

/* One row in front of tiles: the product makes its input itself, so nothing is launched for it yet. */
bool product_waits(const struct cuda_device *d, enum path path, const struct input *in);
/* Makes rows of attention's parts. */
int product_join(struct cuda_device *d, const struct attn_args *a, struct err *e);
int product_rows(struct cuda_device *d, const struct pack_args *a, struct err *e);
int product_input(struct cuda_device *d, enum path path, const struct input *in, struct err *e);
/* The same without a norm, packed by as many warps as rows have columns of 256. */
int product_unnormed(struct cuda_device *d, const struct input *in, struct err *e);
/* The same from gate and up. */
int product_act(struct cuda_device *d, enum path path, struct act_args *a, bool grouped, struct err *e);

/* One product of a set that shares its input; y is (m, ldy). */
struct product {
    weight_id weight, bias;
    uint32_t adapter;
    float *y;
    uint64_t ldy;
};

/* What follows: y = scale * (W x + bias) + residual; or, of a pair of products, y = act(gate) * up. */
struct after {
    float scale;
    const float *residual;
    uint64_t ldr;
    bool paired;
    enum act_kind act;
};
static const struct after product_plain = {.scale = 1.0f};

/* Whether these two can be one launch, with the activation in it. */
bool product_pairs(struct cuda_device *d, enum path path, const struct product two[2]);
int product_run(struct cuda_device *d, enum path path, const struct product *p, uint32_t n, uint32_t m,
                const struct after *after, struct err *e);
/* Products whose results are wanted as they are: on the way through cuBLASLt the row's scale and the bias are still to be
 * applied. */
int product_finished(struct cuda_device *d, enum path path, const struct product *p, uint32_t n, uint32_t m,
                     struct err *e);
/* The last product of an operation, with its tail: in the product itself where nothing but a sum follows. */
int product_last(struct cuda_device *d, enum path path, const struct linear *l, const struct tail *t,
                 uint32_t m, struct err *e);
/* Rows in float, as exact mode has them always: the caller says all of it. */
int product_float(struct cuda_device *d, const struct float_args *a, uint32_t adapter, struct err *e);

static inline float *buffer_at(struct cuda_device *d, struct operand o)
{
    return o.buffer ? d->buffer[o.buffer] + o.col : NULL;
}

static inline uint64_t buffer_ld(struct cuda_device *d, struct operand o)
{
    return d->width[o.buffer];
}
