/* An HTTP client for the verbs that talk to a running server. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <jansson.h>

#define CLIENT_URL "http://127.0.0.1:8080"

/* Rows for a verb's option table. */
#define CLIENT_OPTIONS                                                                                       \
    {                                                                                                        \
        "url", 0, ARG_TEXT, "U", "the server's URL (default: " CLIENT_URL "; QUERN_API_KEY is its key)", 0,  \
            0                                                                                                \
    }

struct buf;

/* The key of an operator: the first of --admin-key-file, QUERN_ADMIN_KEY, or QUERN_API_KEY. Points into text or the
 * environment; NULL with e->code set: the file cannot be read. */
const char *client_admin_key(const struct args *a, struct buf *text, struct err *e);

/* The server's JSON reply; body NULL = GET; key NULL = QUERN_API_KEY. A refused request is an error with the
 * server's message; a server that cannot be reached is ERR_UNREACHABLE. */
json_t *client_ask(const struct args *a, const char *path, const char *key, const json_t *body,
                   struct err *e);
