/* Python's str: character classes, case mapping and the algorithms behind its methods. The origin of each
 * byte is kept: what comes from data is data. */
#pragma once

#include "lang/jinja/jinja_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* characters; the mappings write 1 to 4 of them and return how many */
size_t jtext_upper(uint32_t c, uint32_t out[4]);
size_t jtext_lower(uint32_t c, uint32_t out[4]);
size_t jtext_title(uint32_t c, uint32_t out[4]);
size_t jtext_fold(uint32_t c, uint32_t out[4]);
bool jtext_alpha(uint32_t c);
bool jtext_decimal(uint32_t c);
bool jtext_digit(uint32_t c);
bool jtext_numeric(uint32_t c);
bool jtext_alnum(uint32_t c);
bool jtext_is_lower(uint32_t c);
bool jtext_is_upper(uint32_t c);
bool jtext_is_title(uint32_t c);
bool jtext_cased(uint32_t c);
bool jtext_case_ignorable(uint32_t c);
bool jtext_combining(uint32_t c);
bool jtext_space(uint32_t c);
bool jtext_printable(uint32_t c);

/* One character at byte offset *at, which moves behind it. */
uint32_t jtext_next(const struct jstr *s, size_t *at);

enum jtext_case { JTEXT_UPPER, JTEXT_LOWER, JTEXT_TITLE, JTEXT_CAPITALIZE, JTEXT_SWAP, JTEXT_FOLD };
struct jstr *jtext_map_case(struct jrt *rt, const struct jstr *s, enum jtext_case how);

enum { JTEXT_LEFT = 1, JTEXT_RIGHT = 2 };
/* chars NULL: white space */
struct jstr *jtext_strip(struct jrt *rt, const struct jstr *s, const struct jstr *chars, int sides);
/* sep NULL: runs of white space; most < 0: no bound */
struct jlist *jtext_split(struct jrt *rt, const struct jstr *s, const struct jstr *sep, int64_t most);
struct jlist *jtext_rsplit(struct jrt *rt, const struct jstr *s, const struct jstr *sep, int64_t most);
struct jlist *jtext_splitlines(struct jrt *rt, const struct jstr *s, bool keep);
struct jstr *jtext_replace(struct jrt *rt, const struct jstr *s, const struct jstr *from,
                           const struct jstr *to, int64_t most);
/* Byte offset of the first (last) occurrence in bytes [from, to), SIZE_MAX where there is none. */
size_t jtext_find(const struct jstr *s, const struct jstr *sub, size_t from, size_t to);
size_t jtext_rfind(struct jrt *rt, const struct jstr *s, const struct jstr *sub, size_t from, size_t to);
/* Left and right padding to a width in characters, with one character. */
struct jstr *jtext_pad(struct jrt *rt, const struct jstr *s, size_t left, size_t right,
                       const struct jstr *fill);
struct jstr *jtext_join(struct jrt *rt, const struct jstr *sep, const struct jlist *items);
/* int(s, base) and float(s) of Python; false: not a number. */
bool jtext_to_int(struct jrt *rt, const struct jstr *s, int base, int64_t *out);
bool jtext_to_float(const struct jstr *s, double *out);
