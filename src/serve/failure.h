/* A failed request: the HTTP status and the reply's error fields. */
#pragma once

#include "base/err.h"

#include <stdint.h>

enum { FAILURE_PARAM = 64 };

struct failure {
    int status;
    const char *code; /* or NULL */
    char param[FAILURE_PARAM];
    struct err err;
    uint32_t retry; /* Retry-After in seconds, for 429 and 503; 0 = 1 */
};

/* Sets it, once, and returns -1. code and param may be NULL. */
int failure_set(struct failure *f, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
