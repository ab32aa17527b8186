/* The sampler's options, the same for every verb that generates. */
#pragma once

#include "run/sampler.h"
#include "tool/args.h"

#define SAMPLING_OPTIONS                                                                                     \
    {"temp", 0, ARG_NUM, "T", "randomness; 0 takes the best token always", 0, 100},                          \
        {"top-k", 0, ARG_INT, "K", "only the K best tokens; 0 = all", 0, 1 << 20},                           \
        {"top-p", 0, ARG_NUM, "P", "only the best tokens that make up this probability; 1 = all", 0, 1},     \
        {"min-p", 0, ARG_NUM, "P", "only tokens this probable, relative to the best; 0 = all", 0, 1},        \
        {"typical-p", 0, ARG_NUM, "P", "locally typical sampling; 1 = off", 0, 1},                           \
        {"xtc-probability", 0, ARG_NUM, "P", "chance that top choices are excluded; 0 = off", 0, 1},         \
        {"xtc-threshold", 0, ARG_NUM, "P", "what counts as a top choice for that", 0, 1},                    \
        {"repeat-penalty", 0, ARG_NUM, "X", "divides the logits of tokens seen; 1 = off", 0.01, 100},        \
        {"presence-penalty", 0, ARG_NUM, "X", "subtracted from tokens seen; 0 = off", -100, 100},            \
        {"frequency-penalty", 0, ARG_NUM, "X", "subtracted each time a token was seen", -100, 100},          \
        {"repeat-last-n", 0, ARG_INT, "N", "tokens that penalties look back at; -1 = all", -1, 1 << 30},     \
        {"dry-multiplier", 0, ARG_NUM, "X", "penalty on repeated sequences (DRY); 0 = off", 0, 100},         \
        {"dry-base", 0, ARG_NUM, "X", "base of that penalty", 1, 100},                                       \
        {"dry-allowed-length", 0, ARG_INT, "N", "repetitions up to this long are free", 0, 1 << 20},         \
        {"dry-last-n", 0, ARG_INT, "N", "tokens that DRY looks back at; -1 = all", -1, 1 << 30},             \
        {"mirostat", 0, ARG_INT, "V", "1 or 2: hold the surprise instead of top-k and the like", 0, 2},      \
        {"mirostat-tau", 0, ARG_NUM, "X", "surprise that mirostat aims at, in bits", 0, 100},                \
        {"mirostat-eta", 0, ARG_NUM, "X", "learning rate of mirostat", 0, 1},                                \
        {"seed", 's', ARG_TEXT, "S", "the same seed gives the same text (default: random)", 0, 0},           \
    {                                                                                                        \
        "logit-bias", 0, ARG_TEXT, "ID=X", "added to a token's logit; -inf bans it; may be repeated", 0, 0   \
    }

enum { SAMPLING_BIASES = 1024 };

struct sampling {
    struct sampler_params params;
    struct logit_bias bias[SAMPLING_BIASES];
};

/* Starts from `defaults`; the user's options override them. */
int sampling_read(const struct args *a, const struct sampler_params *defaults, struct sampling *out,
                  struct err *e);
/* "temp" or "top_k" or "top-k" to its field; NULL = there is none. */
const struct sampler_field *sampling_field(const char *name);
double *sampling_value(struct sampler_params *p, const struct sampler_field *f);
