/* How the rows of a text become one, as the model's files say. */
#pragma once

#include "model/hparams.h"

/* Sets h->pooling; POOLING_NONE: the files do not say. */
int pooling_read(struct hparams *h, const struct keys *k, const struct store *s, struct err *e);
