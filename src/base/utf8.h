/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the valid sequence at s (n bytes there), 0 where there is none; *cp gets the character. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes 1-4 bytes; returns how many (0 for a value that is no character). */
size_t utf8_put(uint32_t cp, char out[4]);
bool utf8_valid(const char *s, size_t n);
/* How many bytes at the end of s are the beginning of a character that more bytes could complete (0-3). */
size_t utf8_partial(const char *s, size_t n);

struct buf;
/* Appends the text with U+FFFD in place of every byte that is no part of a character. */
bool utf8_clean(struct buf *out, const char *s, size_t n);
