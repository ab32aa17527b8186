/* Collects an importance matrix while a model runs: a device's `watch` (device/device.h). */
#pragma once

#include "base/err.h"
#include "model/model.h"
#include "quant/imatrix.h"

struct collect_sum {
    double *squares; /* (count, cols); NULL = not wanted */
    double *rows;    /* (count) */
};

struct collect {
    const struct model *model;
    struct collect_sum *sums; /* (weights.count) */
    struct arena arena;
};

/* Collects for the products of layers; for the head only if `head` is set. */
int collect_open(struct collect *c, const struct model *m, bool head, struct err *e);
void collect_watch(void *arg, weight_id weight, uint32_t matrix, const float *x, size_t stride,
                   uint32_t rows);
/* What was collected, under GGUF's names. */
int collect_result(const struct collect *c, struct imatrix *out, struct err *e);
void collect_close(struct collect *c);
