/* Checked arithmetic on sizes: the only way in which a number from a file becomes a size.
 * Each returns false, and leaves *out alone, when the result does not fit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of a power of two. */
static inline bool size_align(size_t a, size_t align, size_t *out)
{
    size_t r;
    if (!size_add(a, align - 1, &r))
        return false;
    *out = r & ~(align - 1);
    return true;
}

static inline bool size_is_pow2(size_t a)
{
    return a && !(a & (a - 1));
}

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}
