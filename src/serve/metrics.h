/* Counters of the server in Prometheus' text format. Owned by the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct server;

enum { METRICS_ROUTES = 96, METRICS_CODES = 24, METRICS_BUCKETS = 21 };
/* Whose names the series have. */
enum { METRICS_QUERN = 1, METRICS_VLLM = 2 };

struct histogram {
    uint64_t counts[METRICS_BUCKETS + 1], count;
    double sum;
};

struct metrics {
    uint64_t requests[METRICS_ROUTES][METRICS_CODES];
    struct histogram first, between, whole; /* seconds to the first token, between tokens, of a request */
};

/* route: its row in the table; the row after the last one counts everything else. */
void metrics_request(struct metrics *m, uint32_t route, int code);
void metrics_seconds(struct histogram *h, double seconds);

/* "quern", "vllm" or "both"; false: it is none of them. */
bool metrics_read_style(const char *word, unsigned *style);
/* The server's counters, with these names. */
void metrics_write(struct server *s, unsigned style, struct buf *out);
/* Counters of one key, or USAGE_ALL. */
void metrics_write_keys(struct server *s, uint32_t key, struct buf *out);
