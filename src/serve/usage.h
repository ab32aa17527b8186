/* What each key has used, and how much of it may be used at once. Place 0 stands for whoever came without one.
 * Belongs to the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buf;

enum { USAGE_KEYS = 1025 };

struct key_limits {
    uint32_t parallel; /* requests of a key at once; 0 = as many as there is room for */
    double a_minute;   /* requests of a key a minute; 0 = as many as it likes */
};

struct key_usage {
    uint64_t requests, refused, prompt_tokens, made_tokens;
    uint32_t running;
    double left, since; /* requests that it may still make, as of then */
};

/* Lets a request in, or says why not: a sentence. */
const char *usage_admit(struct key_usage *u, const struct key_limits *most, double now);
void usage_end(struct key_usage *u, uint64_t prompt_tokens, uint64_t made_tokens);
/* Counters of all keys that have been used, for Prometheus. */
void usage_write(const struct key_usage *all, struct buf *out);
