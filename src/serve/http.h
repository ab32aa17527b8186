/* A strict parser of HTTP/1.1 requests: ambiguous input is refused and the connection is closed. Bytes arrive
 * in chunks of any size; a request never takes more memory than its limits (serve/limit.h: uri, headers with
 * trailers, body).
 *
 *   line -> headers -> [length | chunks -> trailers] -> done
 *                any of them -> bad, with the status of the reply */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_FIELDS_MOST = 128 };

enum http_state {
    HTTP_LINE,
    HTTP_HEADERS,
    HTTP_LENGTH,     /* a body of known length */
    HTTP_CHUNK_LINE, /* its size */
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_END, /* the line end after the data */
    HTTP_TRAILERS,
    HTTP_DONE,
    HTTP_BAD,
};

/* The position of a text in the head. */
struct http_text {
    uint32_t at, n;
};

struct http {
    enum http_state state;
    int status;      /* HTTP_BAD: the status of the reply */
    const char *why; /* and its message */
    struct buf head; /* the request line and the headers, unchanged */
    struct buf body;
    size_t line;       /* where the unfinished line begins in head */
    size_t head_bytes; /* of header lines and trailers so far */
    uint64_t left;     /* bytes of the body or of the chunk that are still to come */
    struct http_text method, target;
    struct {
        struct http_text name, value;
    } fields[HTTP_FIELDS_MOST];
    uint32_t count;
    bool skipped;         /* an empty line before the request */
    bool old;             /* HTTP/1.0 */
    bool keep;            /* the connection may be used again */
    bool expects;         /* waits for "100 Continue" before it sends the body */
    bool chunked, length; /* how the body's end is known */
    uint64_t body_length, body_most;
};

/* Takes bytes until the request is done or bad, and returns how many it took. */
size_t http_feed(struct http *h, const char *data, size_t n);
/* Resets for the next request on the same connection; keeps small buffers. */
void http_reset(struct http *h);
void http_free(struct http *h);

/* The first header of this name (lower case); NULL = none. NUL-terminated: the separators in the head are
 * overwritten once the request is complete. */
const char *http_field(const struct http *h, const char *name);
const char *http_method(const struct http *h);
const char *http_target(const struct http *h); /* path and query; the host of an absolute one is cut off */
bool http_is(const struct http *h, const char *method);
