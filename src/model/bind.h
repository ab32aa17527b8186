/* Binds weights: finds a tensor by canonical name, checks its shape, brings it into the form that
 * operations take, and adds it to the model's weight table. What can be used where it lies is a view
 * (whole tensors, row slices, strides); the rest is converted into memory that the model owns.
 *
 * Errors are sticky: after the first, everything returns "none" at once, and the caller looks at
 * binder.e->code once. One thread. */
#pragma once

#include "base/err.h"
#include "device/plan.h"
#include "model/hparams.h"
#include "model/lookup.h"

#include <stdbool.h>
#include <stdint.h>

struct owned; /* one block of converted bytes */

struct binder {
    struct lookup names;
    const struct hparams *h;
    struct weights *weights;
    struct owned *owned;
    uint64_t owned_bytes;
    uint8_t *used;         /* (store->count): tensors that were taken */
    uint32_t fp8_block[2]; /* rows and columns that share a scale; 0 = said by the scale's shape */
    bool conv1d;           /* matrices of layers lie transposed (gpt2 in safetensors) */
    struct err *e;
};

int binder_open(struct binder *b, const struct store *s, const struct hparams *h, struct weights *w,
                struct err *e);
void binder_close(struct binder *b); /* keeps what is owned */
void owned_free(struct owned *o);

/* Memory with the model's life, 64-byte aligned, not cleared. */
void *bind_memory(struct binder *b, size_t bytes);

bool bind_has(const struct binder *b, const char *name, int layer);
/* Rows that the tensor has; 0 = no such tensor. */
uint64_t bind_rows(const struct binder *b, const char *name, int layer);

struct shape {
    uint32_t rows, cols, count;
};

/* The matrix as it lies, or converted where no device takes its type; data NULL on failure. */
struct weight bind_find(struct binder *b, struct tensor_at at, struct shape want);
weight_id bind_add(struct binder *b, const struct weight *w);
weight_id bind_matrix(struct binder *b, const char *name, int layer, struct shape want);
/* n numbers as F32, plus `add`. suffix ".weight" or ".bias". Optional: 0 where the file has none. */
weight_id bind_vector(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n,
                      float add);
weight_id bind_optional(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n);
/* All n numbers of a tensor as floats, plus `add`: where they lie when that can be. NULL on failure. */
const float *bind_floats(struct binder *b, const struct tensor *t, uint64_t n, float add);
/* F32 numbers of our own making. */
weight_id bind_table(struct binder *b, const char *name, const float *data, uint32_t n);

/* y = W x + b; the bias is taken where the file has one. */
struct linear bind_linear(struct binder *b, const char *name, int layer, uint32_t rows, uint32_t cols);

/* Rows [group * stride + first, + len) of each of `groups` groups, one after the other. */
struct slice {
    uint32_t groups, stride, first, len;
};
/* Cuts a fused tensor of `rows` rows (weight, and bias where there is one) into n products. */
void bind_split(struct binder *b, const char *name, int layer, struct shape want, const struct slice *s,
                uint32_t n, struct linear *out);

/* Swaps rows and columns of each matrix: owned, in the same type where it is plain, else F16. */
struct weight bind_transpose(struct binder *b, const struct weight *w);

/* The experts of a layer: stacked, one by one, gate and up fused, MXFP4 in two tensors. (experts.c) */
struct expert_linears {
    struct linear gate, up, down;
};
struct expert_linears bind_experts(struct binder *b, int layer);

/* For experts.c: one matrix of a type that no device takes, decoded into dst as BF16. */
bool bind_is_fp8(uint32_t type);
void bind_decode_fp8(struct binder *b, struct tensor_at at, const struct tensor *t, uint16_t *dst);
const struct tensor *bind_tensor(struct binder *b, struct tensor_at at,
                                 const char *suffix); /* error when absent */
int bind_check(struct binder *b, const struct tensor *t, struct shape want);
void bind_mark(struct binder *b, const struct tensor *t);
