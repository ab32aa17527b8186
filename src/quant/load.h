/* Quantises weights while a model loads. */
#pragma once

#include "model/model.h"
#include "quant/recipe.h"

/* Makes the weights of a described model, those that the file holds as F32, F16, BF16 or FP8 in the types of the
 * recipe; others stay as they are. how: threads and progress. */
int quant_load(struct model *m, const struct recipe *r, const struct model_make *how, struct err *e);
