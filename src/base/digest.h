/* A digest of bytes, 128 bits: to compare contents and to detect accidental changes; not cryptographic:
 * collisions can be constructed. Every step is invertible, so a change within eight consecutive bytes is
 * always detected. The same on every machine (little-endian). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct digest {
    uint64_t lo, hi;
};

/* Continues d with n more bytes; the result depends on where the pieces are cut. */
void digest_add(struct digest *d, const void *bytes, size_t n);
