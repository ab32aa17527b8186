/* Regular expressions that come with a tokenizer (written for Oniguruma), over PCRE2 with limits on time
 * and memory. Compiled once, shared by threads; a match needs the caller's `struct regex_run`. */
#pragma once

#include "base/err.h"

#include <stddef.h>

struct regex;
struct regex_run; /* scratch of one thread, for any regex */

int regex_open(struct regex **out, const char *pattern, size_t n, struct err *e);
void regex_close(struct regex *r);
struct regex_run *regex_run_open(void);
void regex_run_close(struct regex_run *run);

/* The first match at or after `from` in s (n bytes of valid UTF-8): 1 and its place, 0 = none, -1 = the
 * pattern ran into a limit. */
int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t n, size_t from,
               size_t at[2], struct err *e);
