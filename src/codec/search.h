/* The search behind the encoders: for a block of values, the integers and the factors whose decoding is
 * nearest to them, by the weighted sum of squares.
 *
 * Every type that is searched has this form, value i being in group g = i / len:
 *
 *   value(i) = d * scale(g) * level(q(i)) - dmin * min(g)
 * */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SEARCH_GROUPS = 16, SEARCH_VALUES = 256, SEARCH_LEVELS = 16 };

struct search_form {
    int groups, len;             /* len is 16 or 32 */
    int least, most;             /* codes q */
    const float *levels;         /* (most - least + 1), rising; NULL: the level of a code is itself */
    int scale_least, scale_most; /* factors of d; 1 and 1: d alone */
    int min_most;                /* factors of dmin are 0..min_most; 0: the type has no minima */
    bool min_signed;             /* dmin may be negative, and its factor is always 1 */
    bool power;                  /* d is a power of two and kept as e8m0; otherwise as fp16 */
};

struct search_result {
    uint16_t d, dmin;            /* fp16, or e8m0 */
    int8_t scale[SEARCH_GROUPS]; /* scale_least..scale_most */
    uint8_t min[SEARCH_GROUPS];  /* 0..min_most */
    int8_t q[SEARCH_VALUES];     /* least..most */
};

/* x and weight are (groups * len); weight may be NULL: all alike. Whatever the floats are, the result is a
 * valid block: NaN counts as zero, infinity as the largest float, a weight that is no positive number as
 * next to nothing. */
void search_block(const struct search_form *f, const float *x, const float *weight,
                  struct search_result *out);

/* What it chooses from, all with the same result: the ways of this architecture (search_x86.c, search_arm64.c), the
 * fastest first; the last one runs on any machine. */
enum { SEARCH_ANYWHERE = -1 };

struct search_way {
    int tier; /* base/isa.h, or SEARCH_ANYWHERE */
    void (*run)(const struct search_form *f, const float *x, const float *weight, struct search_result *out);
};
extern const struct search_way search_ways[];

void search_plain(const struct search_form *f, const float *x, const float *weight,
                  struct search_result *out);
void search_avx2(const struct search_form *f, const float *x, const float *weight, struct search_result *out);
void search_avx512(const struct search_form *f, const float *x, const float *weight,
                   struct search_result *out);
