/* A model: hyper-parameters, weights and the plan of its forward pass, over an open store. Built once,
 * then read-only and safe to share. The store must outlive it; a device that loaded the weights must
 * not. */
#pragma once

#include "base/err.h"
#include "device/plan.h"
#include "format/store.h"
#include "model/hparams.h"

#include <stdbool.h>
#include <stdint.h>

struct owned;
struct lora; /* model/lora.h */

struct bound; /* model/bind.h */

/* How to materialize weights whose layout in the file cannot be used directly. */
struct model_make {
    int threads;                               /* 0 = all cores */
    const uint32_t *types;                     /* (weights.count): the type that a weight gets, MODEL_AS_IT_IS
                                                * where it stays; NULL = all stay */
    const float *const *importance;            /* (weights.count) rows for the encoders, or NULL */
    const uint32_t *importances;               /* (weights.count): rows there, 1 or one for each matrix */
    void (*progress)(void *arg, double share); /* may be NULL */
    void *arg;
};
#define MODEL_AS_IT_IS UINT32_MAX

/* Of a model that sees: rows of a step may be given, and how its attention treats them. */
struct model_images {
    bool on;
    uint32_t deepstacks; /* given rows have as many more parts, each added behind one of the first layers */
    bool two_sided;      /* the tokens of an image see each other */
    uint32_t whole;      /* ... as many at most */
    bool windows_only;   /* ... in layers with a window, and within it (gemma4) */
};

struct model_options {
    /* the longest sequence that will be run: some rotary scalings depend on it; 0 = as trained */
    uint32_t ctx;
    struct model_images images;
    bool describe; /* only describe the weights: model_make materializes them, or the caller reads `bound` */
    struct model_make make;
};

struct model {
    const struct store *store;
    struct hparams h;
    struct weights weights;
    struct plan plan;
    uint32_t own_weights; /* with adapters: of the table; theirs follow. 0 = all are */
    uint64_t converted;   /* bytes of weights that are in memory of our own */
    struct bound *bound;  /* (weights.count): what the weights are made of */
    struct owned *owned;
    struct lora **lora; /* (plan.adapters + 1): those at their places in the plan; NULL = none */
};

int model_open(struct model **out, const struct store *s, const struct model_options *o, struct err *e);
/* Materializes described weights on all cores; call it once. */
int model_make(struct model *m, const struct model_make *o, struct err *e);
void model_close(struct model *m);
