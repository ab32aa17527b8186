/* Limits of requests. One table: the names for --limit, the default values, the range of each. Set before the
 * server starts, read-only after that. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum limit {
    LIMIT_BODY,
    LIMIT_BODIES,
    LIMIT_QUEUED,
    LIMIT_HEADERS,
    LIMIT_URI,
    LIMIT_CONNECTIONS,
    LIMIT_HEADER_SECONDS,
    LIMIT_BODY_SECONDS,
    LIMIT_WRITE_SECONDS,
    LIMIT_IDLE_SECONDS,
    LIMIT_ALIVE_SECONDS,
    LIMIT_STATE,
    LIMIT_FILE,
    LIMIT_FILE_DAYS,
    LIMIT_BATCH_LINES,
    LIMIT_BATCHES,
    LIMIT_RESPONSE,
    LIMIT_RESPONSES,
    LIMIT_ADAPTERS,
    LIMIT_ADAPTER_BYTES,
    LIMIT_ADAPTER_RANK,
    LIMIT_DEPTH,
    LIMIT_VALUES,
    LIMIT_SCHEMA,
    LIMIT_MESSAGES,
    LIMIT_TOOLS,
    LIMIT_N,
    LIMIT_STOP,
    LIMIT_TOP_LOGPROBS,
    LIMIT_LOGIT_BIAS,
    LIMIT_IMAGES,
    LIMIT_IMAGE_BYTES,
    LIMIT_IMAGE_PIXELS,
    LIMIT_IMAGE_SECONDS,
    LIMIT_COUNT
};

struct limit_row {
    const char *name, *help;
    uint64_t usual, least, most;
};
extern const struct limit_row limit_rows[LIMIT_COUNT];

uint64_t limit_of(enum limit which);
/* The limit of a request's field of this name; `otherwise` where it has none. */
double limit_of_field(const char *name, double otherwise);
/* "body=64M": sizes may have a K, M or G behind them. */
int limit_set(const char *assignment, struct err *e);
