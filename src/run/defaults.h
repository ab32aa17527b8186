/* Sampling defaults and stop tokens from a model's files: generation_config.json of a folder, or the keys
 * general.sampling.* of a GGUF. Values out of range are ignored with a warning: a bad default must not stop
 * the model from loading. */
#pragma once

#include "base/err.h"
#include "format/store.h"
#include "run/sampler.h"

/* Overwrites in p what the files say. */
int defaults_sampling(const struct store *s, struct sampler_params *p, struct err *e);
/* eos_token_id of generation_config.json, one or several; *out is freed with mem_free, NULL for none. */
int defaults_stops(const struct store *s, uint32_t vocab, int32_t **out, size_t *count, struct err *e);
