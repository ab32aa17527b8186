/* Token filters of a request beside its constraint: allowed tokens, banned words, a minimum number of tokens,
 * stop tokens.
 *
 * The constraint wins: where the filter leaves none of its tokens, the filter is ignored for that token. A
 * filter belongs to one request and to the engine's thread. It allocates when it is opened, never later. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session;

/* What a request asks for. All zero = nothing. */
struct token_rules {
    uint32_t least;       /* minimum tokens before the output may end */
    const int32_t *stops; /* (stop_count): each ends the output */
    size_t stop_count;
    const int32_t *allowed; /* (allowed_count): no others; 0 = all are */
    size_t allowed_count;
    const int32_t
        *banned; /* (banned_count): words as ids, each ended by -1: its last token never follows the others */
    size_t banned_count;
};

struct token_filter;

/* *out is NULL where nothing is filtered. Copies the lists. */
int token_filter_open(struct token_filter **out, const struct token_rules *r, const struct session *l,
                      struct err *e);
void token_filter_close(struct token_filter *f);
/* Does this token end the output. f may be NULL, here and below. */
bool token_filter_ends(const struct token_filter *f, int32_t id);
/* Does the next token depend on the filter: then the logits are needed on the host. made: tokens of the
 * output so far. */
bool token_filter_acts(const struct token_filter *f, uint32_t made);
/* What may come next: the constraint's mask (NULL = everything) without what the filter excludes. answer:
 * (made). */
const uint32_t *token_filter_mask(struct token_filter *f, const uint32_t *mask, const int32_t *answer,
                                  uint32_t made);
