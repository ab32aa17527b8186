/* Languages that requests have asked for: each is compiled and warmed up once, and shared by all that ask for the same
 * text. The cache has a share of each, as the rules that use it have; those not asked for the longest go when all
 * take more bytes than they may. Any thread may call. */
#pragma once

#include "base/err.h"
#include "run/constraint_ref.h"

#include <stddef.h>
#include <stdint.h>

struct constraint_cache;

enum { CONSTRAINT_CACHE_MOST = 32, CONSTRAINT_CACHE_BYTES = 256 << 20 };

/* What a language is known by: its vocabulary, and a text that says all of it. */
struct constraint_cache_key {
    const struct constraint_vocab *vocab;
    const char *text;
    size_t n;
};

int constraint_cache_open(struct constraint_cache **out, size_t most_bytes, struct err *e);
void constraint_cache_close(struct constraint_cache *r); /* NULL is nothing */

/* A rule of the caller's own in the language of this key; NULL: it is not known, or there is no memory for it. */
struct constraint_ref *constraint_cache_find(struct constraint_cache *r,
                                             const struct constraint_cache_key *k);
/* Remembers the language of a rule. Never fails: where there is no memory, it forgets. */
void constraint_cache_keep(struct constraint_cache *r, const struct constraint_cache_key *k,
                           struct constraint_ref *rule);

struct constraint_cache_stats {
    uint64_t hits, misses, bytes;
    uint32_t kept;
};
void constraint_cache_stats(struct constraint_cache *r, struct constraint_cache_stats *out);
