/* One sequence through a model from its beginning, alone, with a KV cache of its own: for tools and
 * tests that want the result of every position. */
#pragma once

#include "base/err.h"
#include "device/device.h"
#include "model/model.h"

#include <stdint.h>

struct evaluator {
    const struct model *model;
    struct device *device;          /* opened, not yet loaded */
    uint32_t kv_type;               /* enum dtype */
    uint32_t chunk;                 /* rows a step at most; 0 = 128. Encoders always take one step. */
    const struct adapter_mix *lora; /* or NULL */
    /* Called for every position in order; row is (plan.out_width). */
    void (*row)(void *arg, uint32_t pos, const float *row);
    void *arg;
};

/* The tokens are in the vocabulary, and not more than the model has context for. */
int evaluate_check(const struct model *m, const int32_t *ids, uint32_t n, struct err *e);
int evaluate_run(const struct evaluator *f, const int32_t *ids, uint32_t n, struct err *e);
