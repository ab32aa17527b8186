/* One file from an address to a path: several ranges at once, gone on with where a break left it, checked. */
#pragma once

#include "base/err.h"
#include "hub/http.h"

#include <stdint.h>

struct hub_progress;

struct fetch {
    const char *url;
    const char *file;            /* what people call it */
    const char *part, *path;     /* the temporary name, and the one that it gets */
    uint64_t size;               /* as the Hub says, or HEAD */
    const char *etag;            /* "" = answers need not be compared */
    const char *checksum;        /* 64 letters: SHA-256; 40: SHA-1 of git's blob; "" = there is none */
    struct hub_progress *so_far; /* of all files of the pull; done grows by what is new here */
    uint64_t fetched;            /* bytes that came over the network, for the caller */
};

/* Where the checksum is wrong, and some of the bytes were there before: once more from the first byte. */
int fetch_file(struct hub_http *h, struct fetch *f, struct err *e);
