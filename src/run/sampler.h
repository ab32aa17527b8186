/* From logits to a token. The chain, in this order, each link off by default:
 *
 *   bias, penalties, DRY -> top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw
 *
 * (mirostat replaces top-k to XTC). Temperature 0 is greedy: the best after bias and penalties.
 *
 * The draw takes the token with the largest logit / T + g, where g is Gumbel noise that depends only
 * on (seed, position, token). So the text of a request does not depend on what runs beside it, and a
 * drafted token can be checked against what would have been drawn.
 *
 * A sampler belongs to one sequence, and to the thread that picks with it. It allocates when it is opened, never later. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct logit_bias {
    int32_t id;
    float bias; /* -inf bans the token */
};

struct sampler_params {
    double temperature;
    double top_k; /* 0 or -1 = off; a whole number, kept as double so that one table serves all fields */
    double top_p, min_p, typical_p;
    double xtc_probability, xtc_threshold;
    double repeat_penalty, presence_penalty, frequency_penalty;
    double repeat_last_n; /* tokens the penalties look at; -1 = all, 0 = none */
    double dry_multiplier, dry_base, dry_allowed_length, dry_last_n;
    double mirostat; /* 0, 1 or 2 */
    double mirostat_tau, mirostat_eta;
    uint64_t seed;
    const struct logit_bias *bias; /* (biases) */
    size_t biases;
    const uint8_t *dry_breaker; /* (vocab): 1 where a token ends a repetition; NULL = none does; copied */
};

/* One row for every field: the command line, the server and the check below share it. */
struct sampler_field {
    const char *name; /* "top_k" */
    size_t offset;    /* of the double in struct sampler_params */
    double least, most, initial;
    bool whole; /* only whole numbers */
};

extern const struct sampler_field sampler_fields[];
extern const size_t sampler_field_count;

/* The defaults where neither the user nor the model says anything. */
void sampler_defaults(struct sampler_params *p);
/* Every field in its range, or an error that names the field. */
int sampler_check(const struct sampler_params *p, uint32_t vocab, struct err *e);

/* Scratch, some megabytes: all samplers that one thread uses can share it. */
struct sampler_room;
int sampler_room_open(struct sampler_room **out, uint32_t vocab, struct err *e);
void sampler_room_close(struct sampler_room *r);

struct sampler;
/* room NULL: it has its own. */
int sampler_open(struct sampler **out, const struct sampler_params *p, uint32_t vocab,
                 struct sampler_room *room, struct err *e);
void sampler_close(struct sampler *s);

/* The token for `position` after `history` (n ids, prompt and output). logits (vocab) is not changed. `mask`,
 * where not NULL, has a bit for every token that a constraint allows. -1 and an error when the logits hold a
 * NaN, or nothing is allowed. */
int32_t sampler_pick(struct sampler *s, const float *logits, const int32_t *history, size_t n,
                     uint64_t position, const uint32_t *mask, struct err *e);

/* The same choice, for a device that makes it itself. false: this chain is for the host (biases, DRY, typical, XTC,
 * mirostat, or more tokens under a penalty than a device takes). out->seen has room for PICK_SEEN_MOST. */
struct step_pick;
bool sampler_on_device(struct sampler *s, const int32_t *history, size_t n, uint64_t position,
                       struct step_pick *out);

/* ln of the sum of exponentials. */
double sampler_log_sum(const float *logits, uint32_t vocab);
/* ln p of a token under plain softmax. */
double sampler_logprob(const float *logits, uint32_t vocab, int32_t id);

/* The place of a token among all by its logit, from 1. */
uint32_t sampler_rank(const float *logits, uint32_t vocab, int32_t id);

/* The k best tokens under plain softmax, with the sum of above, the best first; fewer where the vocabulary has fewer:
 * id -1. */
struct token_prob {
    int32_t id;
    float logprob;
};
void sampler_top(const float *logits, uint32_t vocab, double log_sum, uint32_t k, struct token_prob *out);
