/* Any bytes as requests on one connection. How the network cuts them makes no difference. */
#include "serve/http.h"
#include "serve/limit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A checksum of all that was read, fed in pieces of `piece` bytes. */
static uint64_t sum(const char *text, size_t n, size_t piece)
{
    struct http h = {0};
    uint64_t all = 1469598103934665603u;
    for (size_t at = 0; at < n && h.state != HTTP_BAD;) {
        size_t len = n - at < piece ? n - at : piece;
        at += http_feed(&h, text + at, len);
        if (h.state != HTTP_DONE && h.state != HTTP_BAD)
            continue;
        if (h.head.len > 2 * limit_of(LIMIT_HEADERS) + 2 * limit_of(LIMIT_URI) ||
            h.body.len > limit_of(LIMIT_BODY))
            abort();
        all = 31 * all + (uint64_t)h.state + (uint64_t)h.status + h.body.len;
        for (const char *s = h.state == HTTP_DONE ? http_target(&h) : ""; *s; s++)
            all = 31 * all + (unsigned char)*s;
        for (size_t i = 0; h.state == HTTP_DONE && i < h.body.len; i++)
            all = 31 * all + (unsigned char)h.body.data[i];
        if (h.state == HTTP_DONE)
            http_reset(&h);
    }
    http_free(&h);
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    uint64_t whole = sum(text, size, SIZE_MAX);
    if (whole != sum(text, size, 1) || whole != sum(text, size, 13))
        abort();
    return 0;
}
