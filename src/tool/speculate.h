/* Guessing ahead, from the command line: whether, how far, and with which draft model. */
#pragma once

#include "run/engine.h"
#include "tool/args.h"

/* Rows for a verb's option table. */
#define SPECULATE_OPTIONS                                                                                    \
    {"speculate",                                                                                            \
     0,                                                                                                      \
     ARG_TEXT,                                                                                               \
     "HOW",                                                                                                  \
     "guess ahead: auto (where it pays), ngram (where the text repeats), always, off (default: auto)",       \
     0,                                                                                                      \
     0},                                                                                                     \
        {"draft", 0, ARG_TEXT, "MODEL", "a small model of the same vocabulary, which guesses ahead", 0, 0},  \
    {                                                                                                        \
        "draft-n", 0, ARG_INT, "N", "guess at most so many tokens at once (default: 16; 8 with --draft)", 1, \
            16                                                                                               \
    }

/* Before the model is loaded, whose o->runner.seqs are set: room for the guesses' results. */
int speculate_read(const struct args *a, struct engine_options *g, struct session_options *o, struct err *e);
/* Loads the draft model (NULL: none) for l into g->draft_model; the caller closes it after the engine. */
int speculate_load(const struct args *a, const char *model, struct engine_options *g, const struct session *l,
                   struct err *e);
