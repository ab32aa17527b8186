/* A text as a vector: the model's final rows, pooled as the model says (mean, first or last row), scaled
 * to length 1. The model is loaded with loaded_options.hidden, and its runner takes a whole text as one
 * step (runner_options.chunk and outs as large as ctx). */
#pragma once

#include "base/err.h"
#include "run/loaded.h"

/* out: (width) floats. */
int embed_ids(struct loaded *l, struct seq *s, const struct ids *ids, float *out, struct err *e);
