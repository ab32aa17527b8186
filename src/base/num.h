/* Numbers from text, strictly: the whole text is the number (no blanks, no sign unless said, no
 * hexadecimal, no "inf" or "nan"), and it is in range, or false and *out is left alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool num_u64(const char *s, size_t n, uint64_t most, uint64_t *out); /* digits only */
bool num_i64(const char *s, size_t n, int64_t least, int64_t most, int64_t *out);
bool num_f64(const char *s, size_t n, double least, double most, double *out); /* as in JSON */
/* "200", "64k", "1.5M", "2G": a count, in powers of 1000. */
bool num_count(const char *s, size_t n, uint64_t *out);
/* "4096", "64K", "2.5G", "1GiB": bytes, in powers of 1024. */
bool num_bytes(const char *s, size_t n, uint64_t *out);
/* "90", "1.5s", "5m", "1h30m", "300ms": seconds. A minus in front makes it negative. The text ends with NUL. */
bool num_duration(const char *s, size_t n, double *out);
