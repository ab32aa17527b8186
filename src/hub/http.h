/* Requests to the Hub and to the targets of its redirects. This file follows redirects, not libcurl, so that
 * one place enforces: only http and https, never from https to http, and the token only to the Hub's own
 * origin (scheme, host and port). Not shared between threads. */
#pragma once

#include "base/err.h"
#include "hub/curl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct hub;

enum {
    HTTP_URL_MOST = 8192,
    HTTP_HOPS = 10,
    HTTP_HEADERS_MOST = 64 << 10, /* bytes of a reply's headers */
    HTTP_WAIT_MOST = 600,         /* seconds that a Retry-After may ask for */
};

#define HTTP_UNKNOWN UINT64_MAX

/* A reply's headers; the Hub's own (x-linked-*, x-repo-commit) are kept over redirects. */
struct http_reply {
    long status;
    uint64_t length;                         /* Content-Length */
    uint64_t range_from, range_to, range_of; /* Content-Range: bytes FROM-TO/OF, both ends included */
    char etag[256];                          /* without W/ and quotes */
    char linked_etag[256];
    uint64_t linked_size;
    char commit[64];
    uint64_t retry_after; /* seconds */
    char error_code[64], error_message[256];
    size_t header_bytes;
};

struct hub_http {
    const struct curl *c;
    const struct hub *hub;
    CURLM *multi;
};

struct http_request {
    char origin_url[HTTP_URL_MOST]; /* the first URL: a failed signed URL starts again there */
    char url[HTTP_URL_MOST];        /* the end of the redirects so far */
    int hops;
    bool head;
    bool fresh;        /* use a new connection: an old one may have caused the failure */
    uint64_t from, to; /* bytes [from, to); to = 0: everything */
    /* The body of a 200 or 206; -1 stops the transfer, with the reason in e or, for a new attempt, nothing. */
    int (*take)(void *arg, const void *data, size_t n, struct err *e);
    void *arg;

    struct http_reply reply;
    size_t dropped;     /* bytes of the body of a redirect or an error */
    struct err problem; /* why take or the headers stopped it */
    CURL *easy;
    struct curl_slist *headers;
    CURLcode result;
    char detail[CURL_ERROR_SIZE]; /* libcurl's message */
};

enum http_verdict {
    HTTP_DONE,
    HTTP_FOLLOW, /* url is the next hop: start it again at once */
    HTTP_AGAIN,  /* a later attempt may work; the reason is in the error */
    HTTP_FAILED, /* none will */
};

int http_open(struct hub_http *h, const struct hub *hub, struct err *e);
void http_close(struct hub_http *h);

/* Sets the URL; the caller sets the other fields of r. */
int http_aim(struct http_request *r, const char *url, struct err *e);
int http_start(struct hub_http *h, struct http_request *r, struct err *e);
/* Runs transfers for at most this many milliseconds; returns a request that has ended, or NULL. */
struct http_request *http_next(struct hub_http *h, int milliseconds, struct err *e);
void http_stop(struct hub_http *h, struct http_request *r); /* in the middle, or after the end */
enum http_verdict http_judge(const struct hub_http *h, struct http_request *r, struct err *e);
/* How long to wait before attempt number `failures` + 1: what the server asked for, else longer each time. */
double http_delay(const struct http_request *r, int failures);

/* One request, with its redirects and its further attempts. body = NULL asks for the headers only, and stops at
 * the redirect that names the linked file's size and checksum. */
int http_fetch(struct hub_http *h, const char *url, struct buf *body, struct http_reply *reply,
               struct err *e);
