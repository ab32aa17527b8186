/* The memory layout of each quantised type: the block structs, little-endian, as files hold them. Shared by
 * the decoders here and by the kernels of every device, so it is plain C that nvcc compiles too.
 *
 * In the diagrams a row is one or more bytes, the highest bit on the left; vN is the N-th value of the block.
 * An fp16 is kept as its bits (codec/half.h). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
#define _Static_assert static_assert
#endif
/* On the host a block may lie at any address. On a GPU tensors are aligned, and packed members would be
 * read byte by byte; no struct here has a hole, so that both have the same layout. */
#ifdef __CUDACC__
#define BLOCK_LAYOUT
#else
#define BLOCK_LAYOUT __attribute__((packed))
#endif

enum { BLOCK_K = 256 }; /* values in a block of the K and IQ types */

/* Q4_0: v = d * (q - 8)
 *   d      | fp16              |
 *   qs[j]  | q(j+16) | q(j)    |  j = 0..15, 4 bits each */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q4_0) == 18, "Q4_0");

/* Q4_1: v = d * q + m
 *   d, m   | fp16 | fp16       |
 *   qs[j]  | q(j+16) | q(j)    |  j = 0..15 */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q4_1) == 20, "Q4_1");

/* Q5_0: v = d * (q - 16), q of 5 bits
 *   d      | fp16                       |
 *   qh     | q31.4 | ... | q1.4 | q0.4  |  32 bits: the top bit of value i is bit i
 *   qs[j]  | q(j+16).3210 | q(j).3210   |  j = 0..15 */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q5_0) == 22, "Q5_0");

/* Q5_1: v = d * q + m, bits as in Q5_0 */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q5_1) == 24, "Q5_1");

/* Q8_0: v = d * q
 *   d      | fp16 |
 *   qs[i]  | q(i) |  i = 0..31, signed */
struct block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q8_0) == 34, "Q8_0");

/* Q8_1: v = d * q; s = d * (sum of q), kept for products with types that have a minimum
 *   d, s   | fp16 | fp16 |
 *   qs[i]  | q(i)        |  i = 0..31, signed */
struct block_q8_1 {
    uint16_t d, s;
    int8_t qs[32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q8_1) == 36, "Q8_1");

/* Q1_0: v = bit ? d : -d
 *   d      | fp16                        |
 *   qs[j]  | v(8j+7) | ... | v(8j)       |  j = 0..15, one bit each */
struct block_q1_0 {
    uint16_t d;
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q1_0) == 18, "Q1_0");

/* Q2_K: 16 groups of 16 values; v = d * scale(g) * q - dmin * min(g)
 *   scales[g]  | min(g):4 | scale(g):4               |  g = 0..15
 *   qs[32h+l]  | q(96+l) | q(64+l) | q(32+l) | q(l)  |  2 bits each, of half h = 0..1 (128 values)
 *   d, dmin    | fp16 | fp16                         | */
struct block_q2_k {
    uint8_t scales[BLOCK_K / 16];
    uint8_t qs[BLOCK_K / 4];
    uint16_t d, dmin;
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q2_k) == 84, "Q2_K");

/* Q3_K: 16 groups of 16 values; v = d * (scale(g) - 32) * (q - 4), q of 3 bits, scale of 6
 *   hmask[l]    | q(224+l).2 | ... | q(32+l).2 | q(l).2                  |  l = 0..31
 *   qs[32h+l]   | q(96+l).10 | q(64+l).10 | q(32+l).10 | q(l).10         |  of half h
 *   scales[i]   | s(i+8).3210 | s(i).3210                                |  i = 0..7
 *   scales[8+i] | s(i+12).54 | s(i+8).54 | s(i+4).54 | s(i).54           |  i = 0..3
 *   d           | fp16                                                   | */
struct block_q3_k {
    uint8_t hmask[BLOCK_K / 8];
    uint8_t qs[BLOCK_K / 4];
    uint8_t scales[12];
    uint16_t d;
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q3_k) == 110, "Q3_K");

/* Q4_K: 8 groups of 32 values; v = d * s(g) * q - dmin * m(g), s and m of 6 bits
 *   d, dmin      | fp16 | fp16                |
 *   scales[i]    | s(i+4).54 | s(i).543210    |  i = 0..3
 *   scales[4+i]  | m(i+4).54 | m(i).543210    |
 *   scales[8+i]  | m(i+4).3210 | s(i+4).3210  |
 *   qs[32p+l]    | q(64p+32+l) | q(64p+l)     |  p = 0..3, l = 0..31 */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[BLOCK_K / 2];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q4_k) == 144, "Q4_K");

/* Q5_K: as Q4_K, q of 5 bits
 *   qh[l]  | q(224+l).4 | ... | q(32+l).4 | q(l).4 |  l = 0..31
 * d, dmin, scales and the low four bits qs as in Q4_K. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[BLOCK_K / 8];
    uint8_t qs[BLOCK_K / 2];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q5_k) == 176, "Q5_K");

/* Q6_K: 16 groups of 16 values; v = d * scales(g) * (q - 32), q of 6 bits, scales signed
 * of half h = 0..1 (128 values), l = 0..31:
 *   ql[64h+l]     | q(64+l).3210 | q(l).3210                      |
 *   ql[64h+32+l]  | q(96+l).3210 | q(32+l).3210                   |
 *   qh[32h+l]     | q(96+l).54 | q(64+l).54 | q(32+l).54 | q(l).54 |
 *   scales[g]     | int8                                          |  g = 0..15
 *   d             | fp16                                          | */
struct block_q6_k {
    uint8_t ql[BLOCK_K / 2];
    uint8_t qh[BLOCK_K / 4];
    int8_t scales[BLOCK_K / 16];
    uint16_t d;
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q6_k) == 210, "Q6_K");

/* Q8_K: v = d * q
 *   d         | float                            |
 *   qs[i]     | q(i)                             |  i = 0..255, signed
 *   bsums[g]  | int16: the sum of q(16g..16g+15) | */
struct block_q8_k {
    float d;
    int8_t qs[BLOCK_K];
    int16_t bsums[BLOCK_K / 16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_q8_k) == 292, "Q8_K");

/* IQ4_NL: v = d * level(q), 16 uneven levels
 *   d      | fp16           |
 *   qs[j]  | q(j+16) | q(j) |  j = 0..15 */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq4_nl) == 18, "IQ4_NL");

/* IQ4_XS: 8 groups of 32 values; v = d * (s(g) - 32) * level(q), s of 6 bits
 *   d             | fp16                            |
 *   scales_h      | s(7).54 | ... | s(1).54 | s(0).54 |  16 bits
 *   scales_l[i]   | s(2i+1).3210 | s(2i).3210       |  i = 0..3
 *   qs[16g+j]     | q(32g+16+j) | q(32g+j)          |  j = 0..15 */
struct block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[BLOCK_K / 64];
    uint8_t qs[BLOCK_K / 2];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq4_xs) == 136, "IQ4_XS");

/* The other IQ types hold indices into grids (codec/grids.h): an entry is 8 (IQ1, IQ2) or 4 (IQ3) magnitudes.
 * Where seven sign bits serve eight values, the eighth makes the number of minus signs even.
 *
 * IQ2_XXS: 8 groups of 32 values; v = d * (0.5 + s(g)) / 4 * +-grid. A group is 64 bits:
 *   qs[4g..4g+1]    | i(3):8 | i(2):8 | i(1):8 | i(0):8               |  indices, 8 values each
 *   qs[4g+2..4g+3]  | s(g):4 | sg(3):7 | sg(2):7 | sg(1):7 | sg(0):7  |  scale and signs */
struct block_iq2_xxs {
    uint16_t d;
    uint16_t qs[BLOCK_K / 8];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq2_xxs) == 66, "IQ2_XXS");

/* IQ2_XS: 16 groups of 16 values; v = d * (0.5 + s(g)) / 4 * +-grid
 *   qs[k]      | signs:7 | index:9    |  k = 0..31, 8 values each
 *   scales[i]  | s(2i+1):4 | s(2i):4  |  i = 0..7 */
struct block_iq2_xs {
    uint16_t d;
    uint16_t qs[BLOCK_K / 8];
    uint8_t scales[BLOCK_K / 32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq2_xs) == 74, "IQ2_XS");

/* IQ2_S: 16 groups of 16 values; v = d * (0.5 + s(g)) / 4 * +-grid, index of 10 bits
 *   qs[k]      | i(k).76543210                                      |  k = 0..31, 8 values each
 *   signs[k]   | one bit for each of the 8                          |
 *   qh[j]      | i(4j+3).98 | i(4j+2).98 | i(4j+1).98 | i(4j).98    |  j = 0..7
 *   scales[i]  | s(2i+1):4 | s(2i):4                                | */
struct block_iq2_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 8];
    uint8_t signs[BLOCK_K / 8];
    uint8_t qh[BLOCK_K / 32];
    uint8_t scales[BLOCK_K / 32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq2_s) == 82, "IQ2_S");

/* IQ3_XXS: 8 groups of 32 values; v = d * (0.5 + s(g)) / 2 * +-grid
 *   qs[k]          | index:8                                         |  k = 0..63, 4 values each
 *   gas[4g..4g+3]  | s(g):4 | sg(3):7 | sg(2):7 | sg(1):7 | sg(0):7  |  32 bits: scale and signs */
struct block_iq3_xxs {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4];
    uint8_t gas[BLOCK_K / 8];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq3_xxs) == 98, "IQ3_XXS");

/* IQ3_S: 8 groups of 32 values; v = d * (1 + 2 s(g)) * +-grid, index of 9 bits
 *   qs[k]      | i(k).76543210                   |  k = 0..63, 4 values each
 *   qh[g]      | i(8g+7).8 | ... | i(8g).8       |
 *   signs[k]   | one bit for each of 8 values    |  k = 0..31
 *   scales[i]  | s(2i+1):4 | s(2i):4             |  i = 0..3 */
struct block_iq3_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4];
    uint8_t qh[BLOCK_K / 32];
    uint8_t signs[BLOCK_K / 8];
    uint8_t scales[BLOCK_K / 64];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq3_s) == 110, "IQ3_S");

/* IQ1_S: 8 groups of 32 values; v = d * (2 s(g) + 1) * (grid +- 1/8), grid of -1, 0, 1, index of 11 bits
 *   qs[k]   | i(k).76543210                                                    |  k = 0..31, 8 values each
 *   qh[g]   | minus:1 | s(g):3 | i(4g+3).a98 | i(4g+2).a98 | i(4g+1).a98 | i(4g).a98 | */
struct block_iq1_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 8];
    uint16_t qh[BLOCK_K / 32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq1_s) == 50, "IQ1_S");

/* IQ1_M: 16 groups of 16 values; as IQ1_S, with a shift for each 8 values
 *   qs[k]      | i(k).76543210                                                     |  k = 0..31
 *   qh[j]      | minus(2j+1):1 | i(2j+1).a98 | minus(2j):1 | i(2j).a98             |  j = 0..15
 *   scales[i]  | d, bits 4i..4i+3 | s(4i+3):3 | s(4i+2):3 | s(4i+1):3 | s(4i):3    |  i = 0..3 */
struct block_iq1_m {
    uint8_t qs[BLOCK_K / 8];
    uint8_t qh[BLOCK_K / 16];
    uint16_t scales[BLOCK_K / 64];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_iq1_m) == 56, "IQ1_M");

/* TQ1_0: v = d * (t - 1), t of 0, 1, 2. A byte is a fraction of 256 whose first base-3 digits are the
 * values: digit n is (byte * 3^n mod 256) * 3 / 256.
 *   qs[l]     digits n = 0..4 are v(32n + l)         |  l = 0..31
 *   qs[32+l]  digits n = 0..4 are v(160 + 16n + l)   |  l = 0..15
 *   qh[l]     digits n = 0..3 are v(240 + 4n + l)    |  l = 0..3
 *   d         | fp16 | */
struct block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_tq1_0) == 54, "TQ1_0");

/* TQ2_0: v = d * (t - 1)
 *   qs[32h+l]  | t(96+l) | t(64+l) | t(32+l) | t(l) |  2 bits each, of half h = 0..1
 *   d          | fp16                               | */
struct block_tq2_0 {
    uint8_t qs[BLOCK_K / 4];
    uint16_t d;
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_tq2_0) == 66, "TQ2_0");

/* MXFP4: v = 2^(e-127) * e2m1(q), of the OCP microscaling formats
 *   e      | exponent       |
 *   qs[j]  | q(j+16) | q(j) |  j = 0..15; q is sign, 2 exponent bits, 1 mantissa bit */
struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_mxfp4) == 17, "MXFP4");

/* NVFP4: 4 groups of 16 values; v = e4m3(d(g)) * e2m1(q)
 *   d[g]        | unsigned e4m3            |  g = 0..3
 *   qs[8g+j]    | q(16g+8+j) | q(16g+j)    |  j = 0..7 */
struct block_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
} BLOCK_LAYOUT;
_Static_assert(sizeof(struct block_nvfp4) == 36, "NVFP4");

/* The levels of IQ4_NL and IQ4_XS, and twice the values of e2m1 (FP4), as initialisers. */
#define BLOCK_IQ4_LEVELS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define BLOCK_E2M1_TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
