/* A digest of bytes, 128 bits: for telling contents apart and for finding what has changed on its way, not
 * against somebody who looks for two contents with the same digest. Every step of it can be undone, so a change
 * within eight bytes that lie together always shows. The same on every machine (little-endian). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct digest {
    uint64_t lo, hi;
};

/* Goes on from d with n more bytes; where the pieces are cut counts. */
void digest_add(struct digest *d, const void *bytes, size_t n);
