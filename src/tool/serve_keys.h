/* The keys of a server: of the files and the environment. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "serve/server.h"

#include <stddef.h>

enum { SERVE_KEYS = 1024 };

struct args;

/* A key keeps its index for the life of the server: prefixes and counters are stored by index. */
struct serve_keys {
    struct buf text, admin_text; /* what the keys point into */
    struct server_key all[SERVE_KEYS];
    size_t count;
};

/* Reads --api-key-file and --admin-key-file, QUERN_API_KEY and QUERN_ADMIN_KEY again. On an error the old ones stay. A line
 * is KEY [DAY [MONTH [NAME]]]: tokens a day and a month ("200k", "1.5M", "-" = no limit), and a name for reports. */
int serve_keys_read(struct serve_keys *k, const struct args *a, struct err *e);
void serve_keys_free(struct serve_keys *k);
