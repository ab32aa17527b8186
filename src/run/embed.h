/* The embedding of a text: the model's final rows, pooled as the model's files say (mean, first or last row),
 * scaled to length 1. The model is loaded with session_options.hidden, and its runner takes a whole text as
 * one step (runner_options.chunk and outs as large as ctx). */
#pragma once

#include "base/err.h"
#include "run/session.h"

/* out: (width) floats. */
int embed_ids(struct session *l, struct seq *s, const struct ids *ids, float *out, struct err *e);

/* ---- the same for a text that is read in parts ---- */

/* What to pool where the file does not say: the mean for encoders, the last row for decoders. */
enum pooling embed_pooling(const struct hparams *h);
/* Rows [at, at + n) of a text of `of` rows: for how many of them, counted from the last, the results count. */
uint32_t embed_outs(enum pooling pooling, uint32_t at, uint32_t n, uint32_t of);
/* Adds the results of such a part, (rows, width), to out, (width). */
void embed_add(enum pooling pooling, const float *results, size_t rows, size_t width, float *out);
/* Scales to length 1. An error if a value is NaN or infinite. */
int embed_scale(float *out, size_t width, struct err *e);
