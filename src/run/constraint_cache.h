/* The cache of compiled constraints. Each language is compiled and warmed up once; all requests with the same
 * text share it. The cache and the constraints that use a language each hold a reference to it. Above the
 * limit in bytes the least recently used languages are evicted. Thread-safe. */
#pragma once

#include "base/err.h"
#include "run/constraint_ref.h"

#include <stddef.h>
#include <stdint.h>

struct constraint_cache;

enum { CONSTRAINT_CACHE_MOST = 32, CONSTRAINT_CACHE_BYTES = 256 << 20 };

/* The key of a language: its vocabulary and its full text. */
struct constraint_cache_key {
    const struct constraint_vocab *vocab;
    const char *text;
    size_t n;
};

int constraint_cache_open(struct constraint_cache **out, size_t most_bytes, struct err *e);
void constraint_cache_close(struct constraint_cache *r); /* NULL is ignored */

/* A new constraint in the language of this key, owned by the caller; NULL: not in the cache, or no memory. */
struct constraint_ref *constraint_cache_find(struct constraint_cache *r,
                                             const struct constraint_cache_key *k);
/* Adds the language of a constraint. Never fails: without memory the language is not cached. */
void constraint_cache_keep(struct constraint_cache *r, const struct constraint_cache_key *k,
                           struct constraint_ref *constraint);

struct constraint_cache_stats {
    uint64_t hits, misses, bytes;
    uint32_t kept;
};
void constraint_cache_stats(struct constraint_cache *r, struct constraint_cache_stats *out);
