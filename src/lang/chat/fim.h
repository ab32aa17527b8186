/* Fill in the middle: the prompt for a model that writes what stands between two texts. */
#pragma once

#include "base/err.h"
#include "lang/token/tokenizer.h"

/* A file of the same project, for the model to know of. */
struct fim_file {
    const char *name, *text;
};

struct fim {
    const char *prefix, *suffix; /* what stands before and behind */
    const char *begun;           /* how what is missing begins; NULL = nothing of it is there */
    const struct fim_file *files;
    size_t count;
};

/* ERR_USAGE where the vocabulary has no tokens for it. */
int fim_prompt(const struct tokenizer *t, const struct fim *m, struct ids *out, struct err *e);
