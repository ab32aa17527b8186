/* What each key has used, and how much of it may be used at once. Place 0 stands for whoever came without one.
 * Guarded by the server's mutex. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buf;

enum { USAGE_KEYS = 1025 };
#define USAGE_ALL UINT32_MAX /* every key's counters */

struct key_limits {
    uint32_t parallel; /* sequences of a key at once; 0 = as many as there is room for */
    double a_minute;   /* requests of a key a minute; 0 = as many as it likes */
};

struct key_usage {
    uint64_t requests, refused, prompt_tokens, made_tokens;
    uint32_t running;   /* sequences: one of a request, until it is known how many it asks for */
    double left, since; /* requests that it may still make, as of then */
};

/* Lets a request in, or says why not: a sentence. */
const char *usage_admit(struct key_usage *u, const struct key_limits *most, double now);
/* So many sequences more for a request that was let in; false: they are too many. */
bool usage_grow(struct key_usage *u, const struct key_limits *most, uint32_t more);
void usage_end(struct key_usage *u, uint32_t sequences, uint64_t prompt_tokens, uint64_t made_tokens);
/* Counters of the keys that have been used, of all or of one, for Prometheus. */
void usage_write(const struct key_usage *all, uint32_t only, struct buf *out);
