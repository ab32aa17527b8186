/* A model: hyper-parameters, weights and the plan of its forward pass, over an open store. Built once,
 * then read-only and safe to share. The store must outlive it; a device that loaded the weights must
 * not. */
#pragma once

#include "base/err.h"
#include "device/plan.h"
#include "format/store.h"
#include "model/hparams.h"

#include <stdint.h>

struct owned;

struct model_options {
    uint32_t
        ctx; /* the longest sequence that will be run: some rotary scalings depend on it; 0 = as trained */
};

struct model {
    const struct store *store;
    struct hparams h;
    struct weights weights;
    struct plan plan;
    uint64_t converted; /* bytes of weights that had to be converted into memory of our own */
    struct owned *owned;
};

int model_open(struct model **out, const struct store *s, const struct model_options *o, struct err *e);
void model_close(struct model *m);
