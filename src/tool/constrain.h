/* The constraint of an answer, from the command line: JSON, a grammar, a regular expression, or a choice of
 * texts. */
#pragma once

#include "run/session.h"
#include "run/constraint_ref.h"
#include "tool/args.h"

/* Rows for a verb's option table. */
#define CONSTRAIN_OPTIONS                                                                                    \
    {"json-schema", 0, ARG_TEXT, "FILE", "the answer is JSON that this schema accepts", 0, 0},               \
        {"json-object", 0, ARG_FLAG, NULL, "the answer is a JSON object", 0, 0},                             \
        {"grammar", 0, ARG_TEXT, "FILE", "the answer is text that this grammar (GBNF) accepts", 0, 0},       \
        {"regex", 0, ARG_TEXT, "RE", "the answer as a whole matches this regular expression", 0, 0},         \
    {                                                                                                        \
        "choice", 0, ARG_TEXT, "TEXT", "the answer is this text or another --choice; may be repeated", 0, 0  \
    }

/* Reads and compiles it before a model is loaded; *out stays NULL without such an option. */
int constrain_read(const struct args *a, struct constraint **out, struct err *e);
/* Owns the constraint (NULL: none) and prepares it for the model. */
int constrain_ref(struct constraint *c, struct session *l, struct constraint_ref **out, struct err *e);
