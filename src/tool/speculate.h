/* Speculation, from the command line: its mode, the number of draft tokens, and the draft model. */
#pragma once

#include "run/engine.h"
#include "tool/args.h"

/* Rows for a verb's option table. */
#define SPECULATE_OPTIONS                                                                                    \
    {"speculate",                                                                                            \
     0,                                                                                                      \
     ARG_TEXT,                                                                                               \
     "HOW",                                                                                                  \
     "speculate: auto (where it is faster), ngram (where the text repeats), always, off (default: auto)",    \
     0,                                                                                                      \
     0},                                                                                                     \
        {"draft", 0, ARG_TEXT, "MODEL", "draft model: a small one with the same vocabulary", 0, 0},          \
    {                                                                                                        \
        "draft-n", 0, ARG_INT, "N", "most draft tokens a step (default: 16; 8 with --draft)", 1, 16          \
    }

/* Call it before the model is loaded, with o->runner.seqs set: adds room for the draft tokens' results, and for
 * snapshots. */
int speculate_read(const struct args *a, struct engine_options *g, struct session_options *o, struct err *e);
/* Loads the draft model (NULL: none) for l into g->draft_model; the caller closes it after the engine. */
int speculate_load(const struct args *a, const char *model, struct engine_options *g, const struct session *l,
                   struct err *e);
