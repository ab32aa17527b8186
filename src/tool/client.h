/* A request to a running server, for the verbs that ask one. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <jansson.h>

#define CLIENT_URL "http://127.0.0.1:8080"

/* Rows for a verb's option table. */
#define CLIENT_OPTIONS                                                                                       \
    {                                                                                                        \
        "url", 0, ARG_TEXT, "U", "where the server is (default: " CLIENT_URL "; QUERN_API_KEY is its key)",  \
            0, 0                                                                                             \
    }

/* The server's answer, which is JSON; body NULL = GET. What the server refuses is an error with its own words; one that
 * does not answer is ERR_UNREACHABLE. */
json_t *client_ask(const struct args *a, const char *path, const json_t *body, struct err *e);
