/* The embedding of one text. The model is loaded with session_options.hidden, and its runner takes a whole text as
 * one step (runner_options.chunk and outs as large as ctx). */
#pragma once

#include "base/err.h"
#include "run/pooler.h"
#include "run/session.h"

/* A text after a prompt of the model's files ("" = none), as ids; what the tokenizer adds is added. */
int embed_encode(const struct session *l, const char *prompt, const char *text, size_t n, struct ids *out,
                 struct err *e);
/* out: (pooler.out_width) floats. */
int embed_ids(struct session *l, struct seq *s, const struct pooler *p, const struct ids *ids, float *out,
              struct err *e);
/* The final rows of the text, (tokens, width), valid until the next step. */
const float *embed_rows(struct session *l, struct seq *s, const struct ids *ids, struct err *e);
