/* What gemma 4 and gemma 3n share. */
#pragma once

#include "model/build.h"

/* Reads which layers use the keys of earlier ones, and the size of per-layer inputs. */
int gemma4_share(struct hparams *h, const struct keys *k, struct err *e);
/* The numbers that layers have of each token, (layers, per_layer): of a table, and of the embedding in x. */
struct operand gemma4_inputs(struct build *b);
/* x += norm(proj(act(gate x) * inputs of the layer)) */
struct op_out *gemma4_add_input(struct build *b, uint32_t layer, struct operand inputs);
