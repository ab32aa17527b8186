/* Opening the ranks of a runner. */
#pragma once

#include "device/device.h"
#include "run/runner.h"

/* Whether the options ask for more than one rank, or this process is one of several. */
bool ranks_wanted(const struct ranks_options *o);
/* Whether these ranks are cards. */
bool ranks_on_gpu(const struct runner_options *o);
/* Rank 0's device, or in the process of another rank: serves until rank 0 ends, then *out is NULL and 0 is returned. */
int ranks_open(struct device **out, struct plan *plan, const struct weights *weights,
               const struct runner_options *o, struct err *e);
