/* A plot of a comparison, as SVG. */
#pragma once

#include "base/err.h"
#include "run/perplexity.h"

/* The divergence at each position, sorted: share of the positions against KL on a logarithmic scale. */
int plot_divergence(const char *path, const struct perplexity *p, const char *model, const char *against,
                    struct err *e);
