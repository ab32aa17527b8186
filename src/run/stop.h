/* Stop strings in a stream of text. What may be the beginning of a stop string is held back until it
 * is clear; a stop string itself is let out only where the request asks for that. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

struct stop {
    const char *const *strings; /* (count), not empty */
    size_t count;
    bool keep; /* a stop string goes out, too */
    struct buf held;
    bool hit;
    size_t which; /* once hit: which of them */
};

/* Takes n bytes; what can go out is appended to out. Returns true once a stop string has come. */
bool stop_feed(struct stop *s, const char *text, size_t n, struct buf *out);
/* At the end of the text: what was held back goes out. */
void stop_flush(struct stop *s, struct buf *out);
void stop_free(struct stop *s);
