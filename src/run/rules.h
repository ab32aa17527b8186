/* Languages that requests have asked for: each is compiled and warmed up once, and shared by all that ask for the same
 * text. The cache has a share of each, as the rules that use it have; those not asked for the longest go when all
 * take more bytes than they may. Any thread may call. */
#pragma once

#include "base/err.h"
#include "run/rule.h"

#include <stddef.h>
#include <stdint.h>

struct rules;

enum { RULES_MOST = 32, RULES_BYTES = 256 << 20 };

/* What a language is known by: its vocabulary, and a text that says all of it. */
struct rules_key {
    const struct constraint_vocab *vocab;
    const char *text;
    size_t n;
};

int rules_open(struct rules **out, size_t most_bytes, struct err *e);
void rules_close(struct rules *r); /* NULL is nothing */

/* A rule of the caller's own in the language of this key; NULL: it is not known, or there is no memory for it. */
struct rule *rules_find(struct rules *r, const struct rules_key *k);
/* Remembers the language of a rule. Never fails: where there is no memory, it forgets. */
void rules_keep(struct rules *r, const struct rules_key *k, struct rule *rule);

struct rules_stats {
    uint64_t hits, misses, bytes;
    uint32_t kept;
};
void rules_stats(struct rules *r, struct rules_stats *out);
