/* A prompt in, text out, one sequence: feeds what the sequence does not hold yet, then samples token
 * by token until a stop token, a stop string, the length, or a cancel. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "run/loaded.h"
#include "run/rule.h"
#include "run/runner.h"
#include "run/sampler.h"

#include <stdbool.h>
#include <stdint.h>

enum finish_kind {
    FINISH_STOP,   /* a stop token or a stop string */
    FINISH_LENGTH, /* as many tokens as were asked for, or the context is full */
    FINISH_CANCEL
};

struct generate_options {
    struct sampler_params sampler;
    uint32_t most;                   /* tokens; 0 = until the context is full */
    const char *const *stop_strings; /* (stops) */
    size_t stops;
    struct rule *rule;                                   /* what the answer has to be; NULL = anything */
    bool ignore_eog;                                     /* stop tokens do not stop */
    bool show_special;                                   /* control tokens appear in the text */
    void (*text)(void *arg, const char *text, size_t n); /* as it comes, whole characters; may be NULL */
    void *arg;
    struct feed_control feed; /* progress of the prompt, and the cancel flag for both phases */
};

struct generation {
    struct buf text; /* all of it */
    struct ids ids;  /* what was sampled, stop token included */
    enum finish_kind finish;
    bool context_full;                                    /* FINISH_LENGTH because the context ended */
    uint32_t prompt;                                      /* tokens of the prompt */
    uint32_t cached;                                      /* of which the sequence held this many */
    double prompt_seconds, first_seconds, decode_seconds; /* reading, until the first token, after it */
};

const char *finish_name(enum finish_kind f);

/* The model says what ends a text; without its tokenizer there is no text. Appends to g, which the caller
 * zeroes first and frees afterwards. After an error g holds what came before it. */
int generate(struct seq *s, const struct loaded *l, const int32_t *prompt, uint32_t n,
             const struct generate_options *o, struct generation *g, struct err *e);
void generation_free(struct generation *g);
