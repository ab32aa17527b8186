/* The results of every row of a text in one pass of plain kernels, alone, with every page in its place. The same kernels
 * give the same bits in every batch: whoever runs the model by parts has to get just these. */
#pragma once

#include "device/cpu/cpu.h"
#include "model/evaluate.h"
#include "run/open.h"

#include <string.h>

enum { CTX = 1024, WIDTH = 64 };

static const struct device_options judge_device = {.exact = true, .tier = "scalar", .threads = 1};

static float judged[CTX][WIDTH];

static inline struct session *open_judged(const char *folder, const struct runner_options *o)
{
    struct runner_options own = *o;
    own.ctx = CTX;
    own.device_options = judge_device;
    struct session *l = open_tiny(folder, &own);
    l->model->h.context = CTX; /* the judge would not read more than these were made for */
    return l;
}

static inline void judge_row(void *arg, uint32_t pos, const float *row)
{
    (void)arg;
    memcpy(judged[pos], row, sizeof judged[pos]);
}

static inline void judge(const struct session *l, const int32_t *ids, uint32_t n)
{
    struct err e = {0};
    struct evaluator f = {.model = l->model, .kv_type = DTYPE_F32, .row = judge_row};
    assert_int_equal(l->model->plan.out_width, WIDTH);
    if (cpu_open(&f.device, &judge_device, &e) || evaluate_run(&f, ids, n, &e))
        fail_msg("%s", e.text);
    f.device->ops->close(f.device);
}
