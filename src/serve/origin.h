/* Hosts and origins as browsers and clients write them: "name:port" and "scheme://name:port". */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct origin {
    char scheme[32]; /* in small letters; "" for what a Host header names */
    char host
        [256]; /* in small letters, an IPv6 address without its brackets; may be "" behind other schemes */
    int port;  /* -1 = none is given, and the scheme has no usual one */
};

/* "name", "name:80", "[::1]:80": false where it is anything else, such as a port with letters. */
bool origin_read_host(const char *text, struct origin *o);
/* "scheme://host[:port]" and nothing behind it. "null" is no origin. */
bool origin_read(const char *text, struct origin *o);

bool origin_is_loopback(const char *host); /* localhost, 127.0.0.0/8, ::1 */
/* A host of this machine: loopback, or a name below .localhost. */
bool origin_is_local(const struct origin *o);
bool origin_is_web(const struct origin *o); /* http or https */

/* What --allowed-origin takes: an origin, "null", "SCHEME://" followed by "*" for every page of a scheme other than http and
 * https, or "*" for every origin. */
int origin_check_allowed(const char *allowed, struct err *e);
/* Whether the request's origin matches this allowed origin. */
bool origin_matches(const char *allowed, const char *origin);
