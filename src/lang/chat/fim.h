/* Fill in the middle (FIM): the prompt for a model that writes the text between a prefix and a suffix. */
#pragma once

#include "base/err.h"
#include "lang/token/tokenizer.h"

/* A file of the same project, as context for the model. */
struct fim_file {
    const char *name, *text;
};

struct fim {
    const char *prefix, *suffix; /* what stands before and behind */
    const char *begun;           /* the beginning of the missing text; NULL = none */
    const struct fim_file *files;
    size_t count;
};

/* ERR_USAGE where the vocabulary has no tokens for it. */
int fim_prompt(const struct tokenizer *t, const struct fim *m, struct ids *out, struct err *e);
