/* quern bench --image: how long a tower takes for an image. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

/* Of every --image the rows, and the time from prepared pixels to rows: the median of `repeats`, after one that is not
 * counted. MODEL may be an mmproj file alone. */
int bench_images(const struct args *a, int threads, int repeats, struct err *e);
