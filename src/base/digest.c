#include "base/digest.h"

#include <string.h>

enum { LANES = 4 };

static uint64_t digest_step(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

void digest_add(struct digest *d, const void *bytes, size_t n)
{
    const uint8_t *at = bytes, *end = at + n;
    uint64_t lane[LANES] = {d->lo ^ 0x243f6a8885a308d3u, d->hi ^ 0x13198a2e03707344u,
                            d->lo + 0xa4093822299f31d0u, d->hi + 0x082efa98ec4e6c89u};
    uint64_t word[LANES];
    for (; end - at >= (ptrdiff_t)sizeof word; at += sizeof word) {
        memcpy(word, at, sizeof word);
        for (int i = 0; i < LANES; i++)
            lane[i] = digest_step(lane[i], word[i]);
    }
    memset(word, 0, sizeof word);
    memcpy(word, at, (size_t)(end - at));
    uint64_t lo = digest_step(d->lo, n), hi = digest_step(d->hi ^ 0xc0ac29b7c97c50ddu, n);
    for (int i = 0; i < LANES; i++) {
        lane[i] = digest_step(lane[i], word[i]);
        lo = digest_step(lo, lane[i]);
        hi = digest_step(hi, lane[LANES - 1 - i] + 0x3f84d5b5b5470917u);
    }
    d->lo = lo;
    d->hi = hi;
}
