#include "base/cursor.h"

#include <string.h>

size_t cursor_left(const struct cursor *c)
{
    return c->failed ? 0 : c->size - c->at;
}

const uint8_t *cursor_bytes(struct cursor *c, size_t n)
{
    if (c->failed || n > c->size - c->at) {
        c->failed = true;
        return NULL;
    }
    const uint8_t *p = c->data + c->at;
    c->at += n;
    return p;
}

bool cursor_skip(struct cursor *c, size_t n)
{
    return cursor_bytes(c, n) != NULL;
}

/* The bytes are little-endian and so is every machine that we run on. */
static void cursor_get(struct cursor *c, void *out, size_t n)
{
    const uint8_t *p = cursor_bytes(c, n);
    if (p)
        memcpy(out, p, n);
}

uint8_t cursor_u8(struct cursor *c)
{
    uint8_t v = 0;
    cursor_get(c, &v, sizeof v);
    return v;
}

uint32_t cursor_u32(struct cursor *c)
{
    uint32_t v = 0;
    cursor_get(c, &v, sizeof v);
    return v;
}

uint64_t cursor_u64(struct cursor *c)
{
    uint64_t v = 0;
    cursor_get(c, &v, sizeof v);
    return v;
}
