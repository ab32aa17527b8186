/* Binds weights: finds a tensor by canonical name, checks its shape, describes how it becomes what operations
 * take, and adds it to the model's weight table. A weight whose layout in the file can be used directly is a
 * view (whole tensors, row slices, strides); the rest is materialized later, into memory that the model owns
 * (model_make). Vectors are small and are made at once.
 *
 * Errors are sticky: after the first, everything returns "none" at once, and the caller looks at
 * binder.e->code once. One thread. */
#pragma once

#include "base/err.h"
#include "device/plan.h"
#include "model/hparams.h"
#include "model/lookup.h"
#include "model/matrix.h"

#include <stdbool.h>
#include <stdint.h>

struct owned; /* one block of converted bytes */

/* A weight in terms of GGUF, and its source. */
struct bound {
    const char *name;   /* canonical; NULL = a table of our own */
    int layer;          /* or LOOKUP_NO_LAYER */
    const char *suffix; /* ".weight" or ".bias" */
    const char *whole;  /* canonical name of the tensor that it was cut from, NULL = of none */
    struct matrix m;
    bool lies; /* used where it is */
};

struct binder {
    struct lookup names;
    const struct hparams *h;
    const char *arch; /* its name, for messages */
    struct weights *weights;
    struct bound *bound; /* (weights->count), by weight_id; room bound_room */
    uint32_t bound_room;
    struct owned *owned;
    uint64_t owned_bytes;  /* of vectors */
    uint8_t *used;         /* (store->count): tensors that were taken */
    bool packed, divided;  /* matrices of U8 hold four rows in one; their scales divide */
    uint32_t fp8_block[2]; /* rows and columns that share a scale; 0 = from the scale's shape */
    bool conv1d;           /* matrices of layers are stored transposed (gpt2 in safetensors) */
    struct err *e;
};

int binder_open(struct binder *b, const struct store *s, const struct hparams *h, struct weights *w,
                struct err *e);
void binder_close(struct binder *b); /* keeps what is owned, and bound */
/* Memory in a list, 64-byte aligned, not cleared. */
void *owned_add(struct owned **list, size_t bytes, struct err *e);
void owned_free(struct owned *o);

/* The same with the model's life. */
void *bind_memory(struct binder *b, size_t bytes);

bool bind_has(const struct binder *b, const char *name, int layer);
/* Rows and columns that the tensor has; 0 = no such tensor. */
uint64_t bind_rows(const struct binder *b, const char *name, int layer);
uint64_t bind_cols(const struct binder *b, const char *name, int layer);

struct shape {
    uint32_t rows, cols, count;
};

/* A tensor as a matrix of this shape; data NULL on failure. */
struct matrix bind_find(struct binder *b, struct tensor_at at, struct shape want);
weight_id bind_add(struct binder *b, const char *name, int layer, const struct matrix *m);
weight_id bind_matrix(struct binder *b, const char *name, int layer, struct shape want);
/* n numbers as F32, plus `add`. suffix ".weight" or ".bias". Optional: 0 where the file has none. */
weight_id bind_vector(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n,
                      float add);
weight_id bind_optional(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n);
/* All n numbers of a tensor as floats, plus `add`: in the mapping where possible. NULL on failure. */
const float *bind_floats(struct binder *b, const struct tensor *t, uint64_t n, float add);
/* n F32 numbers that live as long as the model. of: what they are; NULL = a table of our own, called `name`. */
weight_id bind_table(struct binder *b, const char *name, const struct bound *of, const float *data,
                     struct shape s);

/* y = W x + b; the bias is taken where the file has one. */
struct linear bind_linear(struct binder *b, const char *name, int layer, uint32_t rows, uint32_t cols);

/* Cuts a fused tensor of `rows` rows (weight, and bias where there is one) into n products. */
void bind_split(struct binder *b, const char *name, int layer, struct shape want, const struct slice *s,
                uint32_t n, struct linear *out);

/* The experts of a layer: stacked, one by one, gate and up fused, MXFP4 in two tensors. (experts.c) */
struct expert_linears {
    struct linear gate, up, down;
};
struct expert_linears bind_experts(struct binder *b, int layer);
/* Matrices of one shape, stacked or one by one. */
weight_id bind_stack(struct binder *b, const char *name, int layer, struct shape want);

/* Whether the file has a tensor of its own at `at`, and not the same as at `from` once more: a few rows show it. */
bool bind_differs(const struct binder *b, struct tensor_at at, struct tensor_at from);

/* For experts.c. */
const struct tensor *bind_tensor(struct binder *b, struct tensor_at at,
                                 const char *suffix); /* error when absent */
int bind_check(struct binder *b, const struct tensor *t, struct shape want);
void bind_mark(struct binder *b, const struct tensor *t);
/* Whether weights can have this type. */
int bind_number(struct binder *b, const struct tensor *t);
/* The scales of FP8; NULL where the tensor needs none. */
int bind_scales(struct binder *b, struct tensor_at at, const struct tensor *t, struct matrix_scales *out);
