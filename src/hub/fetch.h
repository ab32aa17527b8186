/* Downloads one file from a URL to a path: several ranges at once, resumed after an interruption, with its
 * checksum verified. */
#pragma once

#include "base/err.h"
#include "hub/http.h"

#include <stdint.h>

struct hub_progress;

struct fetch {
    const char *url;
    const char *file;            /* its name in messages */
    const char *part, *path;     /* the temporary name, and the one that it gets */
    uint64_t size;               /* size from the Hub's listing, or from HEAD */
    const char *etag;            /* "" = replies are not compared */
    const char *checksum;        /* 64 letters: SHA-256; 40: SHA-1 of git's blob; "" = there is none */
    struct hub_progress *so_far; /* of all files of the pull; done grows by what is new here */
    uint64_t fetched;            /* bytes that came over the network, for the caller */
};

/* If the checksum is wrong and some bytes were there before, it starts again from the first byte. */
int fetch_file(struct hub_http *h, struct fetch *f, struct err *e);
