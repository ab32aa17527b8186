/* Usage counters and limits of each API key. Index 0 counts requests without a key. The tokens of each
 * key by day and month, for its quotas. Guarded by the server's mutex. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct failure;
struct state;

enum { USAGE_KEYS = 1025 };
#define USAGE_ALL UINT32_MAX /* every key's counters */

struct key_limits {
    uint32_t parallel; /* sequences of a key at once; 0 = no limit */
    double a_minute;   /* requests of a key a minute; 0 = no limit */
};

/* Tokens, read and written together; 0 = no limit. */
struct key_quota {
    uint64_t day, month;
};

struct key_usage {
    uint64_t requests, refused, prompt_tokens, made_tokens;
    uint32_t running;   /* sequences: one for each request, until its number of sequences is known */
    double left, since; /* requests left in the rate limit, as of `since` */
};

/* Tokens of each key on the last day that it was used, and in that day's month, as the database has them. */
struct quotas {
    struct quota_count {
        int64_t key, day;
        uint64_t today, month;
    } * all;
    size_t count, room;
};

int quota_load(struct quotas *q, struct state *s, struct err *e);
void quota_free(struct quotas *q);
void quota_add(struct quotas *q, int64_t key, int64_t day, uint64_t tokens);
/* -1 and 429 with the reason where the key has used its tokens. What has begun ends, even where it goes beyond. */
int quota_check(const struct quotas *q, int64_t key, const struct key_quota *most, int64_t now,
                struct failure *f);

/* Admits a request (NULL), or returns the reason why not. */
const char *usage_admit(struct key_usage *u, const struct key_limits *most, double now);
/* Adds sequences to an admitted request; false: too many for the key. */
bool usage_grow(struct key_usage *u, const struct key_limits *most, uint32_t more);
void usage_end(struct key_usage *u, uint32_t sequences, uint64_t prompt_tokens, uint64_t made_tokens);
/* Counters of the keys that have been used, of all or of one, for Prometheus. */
void usage_write(const struct key_usage *all, uint32_t only, struct buf *out);
