/* Stop strings in a stream of text. Text that may be the beginning of a stop string is held back until that
 * is decided. A stop string itself is output only where the request asks for it. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

struct stop {
    const char *const *strings; /* (count), not empty */
    size_t count;
    bool keep; /* stop strings are output, too */
    struct buf held;
    bool hit;
    size_t which; /* once hit: which of them */
};

/* Takes n bytes; appends what can be output to out. Returns true once a stop string is found. */
bool stop_feed(struct stop *s, const char *text, size_t n, struct buf *out);
/* At the end of the text: outputs what was held back. */
void stop_flush(struct stop *s, struct buf *out);
void stop_free(struct stop *s);
