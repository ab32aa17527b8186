/* A bounds-checked reader of little-endian bytes with a sticky failure: read without checks, and check
 * `failed` at the end of a record. After a failure every read gives zero and does not move. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cursor {
    const uint8_t *data;
    size_t size, at; /* at <= size, always */
    bool failed;
};

size_t cursor_left(const struct cursor *c);
/* A pointer to the next n bytes, or NULL. */
const uint8_t *cursor_bytes(struct cursor *c, size_t n);
bool cursor_skip(struct cursor *c, size_t n);
uint8_t cursor_u8(struct cursor *c);
uint32_t cursor_u32(struct cursor *c);
uint64_t cursor_u64(struct cursor *c);
