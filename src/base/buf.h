/* A growable byte buffer with a hard maximum and a sticky failure: append without checks, and check `failed`
 * once at the end. `data` is always NUL-terminated once something was appended. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap;
    size_t max;  /* len never grows beyond it; 0 = 1 GiB */
    bool failed; /* out of memory, or over the maximum: nothing was appended since */
};

bool buf_add(struct buf *b, const void *data, size_t n);
bool buf_str(struct buf *b, const char *s);
bool buf_char(struct buf *b, char c);
bool buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for n more bytes: the caller writes to the pointer and adds n to len. NULL on failure. */
char *buf_reserve(struct buf *b, size_t n);
void buf_clear(struct buf *b); /* empties it, keeps the memory, forgets a failure */
void buf_free(struct buf *b);
