/* A cross-encoder's head: how well a document answers a query, from the first row of both as one text. */
#pragma once

#include "base/err.h"
#include "format/store.h"

#include <stdint.h>

struct rerank_head;

/* *out is NULL where the model has no head with one result. */
int rerank_open(struct rerank_head **out, const struct store *s, uint32_t width, struct err *e);
void rerank_close(struct rerank_head *h);
/* row: (width), not scaled. The score is the logistic of the logit: 0 to 1. */
double rank_logit(const struct rerank_head *h, const float *row);
double rerank_score(const struct rerank_head *h, const float *row);
