/* A reranker's head: how well a document answers a query, from both as one text. Cross-encoders score the first row
 * (or the mean of all), decoders the last one: by a head with one result, or by the logits of "yes" and "no".
 *
 * Read-only once it is open: any thread. */
#pragma once

#include "base/err.h"
#include "run/session.h"

#include <stdint.h>

struct rerank_head;

/* *out is NULL where the model is no reranker. */
int rerank_open(struct rerank_head **out, const struct session *l, struct err *e);
void rerank_close(struct rerank_head *h);
/* The row that is scored. */
enum pooling rerank_pooling(const struct rerank_head *h);
/* row: (width), pooled, not scaled. The score is the logistic of the logit: 0 to 1. */
double rerank_logit(const struct rerank_head *h, const float *row);
double rerank_score(const struct rerank_head *h, const float *row);

/* A query and a document as one text, as this model reads them; appended to out. instruction: what decoders are asked
 * to judge, NULL = their usual one. */
struct rerank_pair {
    const char *query, *document, *instruction;
};
int rerank_encode(const struct rerank_head *h, const struct session *l, const struct rerank_pair *p,
                  struct ids *out, struct err *e);
