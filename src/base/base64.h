/* Base64: bytes as text. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void base64_add(struct buf *out, const uint8_t *data, size_t n);
/* Appends the bytes; false: a character does not belong to it, or out->failed. Padding may be missing. */
bool base64_read(struct buf *out, const char *text, size_t n);
/* The same, as people send it: with white space between, or in the alphabet of URLs (- and _). */
bool base64_read_loose(struct buf *out, const char *text, size_t n);
