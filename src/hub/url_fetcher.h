/* Fetches files that others name, for a server that has no rights to the network itself. A process, forked before
 * the sandbox is closed, waits for URLs and forks one more for each. Only http and https; every address that a
 * connection is made to, also after redirects, has to pass a test (address_is_public); no proxy is used, since that
 * would make the connection. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct url_fetcher;

struct url_limits {
    uint64_t bytes;
    uint32_t seconds;
};

enum { URL_FETCH_HOPS = 5, URL_FETCH_MOST = 8192 /* bytes of a URL */ };

int url_fetcher_start(struct url_fetcher **out, bool (*allowed)(const struct sockaddr *a), struct err *e);
/* Appends the file to out. ERR_DATA: a sentence for whoever sent the URL. From any thread, several at once. */
int url_fetch(struct url_fetcher *f, const char *url, const struct url_limits *limits, struct buf *out,
              struct err *e);
void url_fetcher_stop(struct url_fetcher *f); /* NULL is fine */
