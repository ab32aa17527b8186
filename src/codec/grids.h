/* The grids of the IQ types: which combinations of magnitudes a block can name. An entry packs its
 * values lowest first: eight of 2 bits (IQ1, IQ2) or four of 4 bits (IQ3). The functions below turn such
 * a code into the magnitude that it stands for. */
#pragma once

#include <stdint.h>

extern const uint16_t grid_iq2_xxs[256];
extern const uint16_t grid_iq2_xs[512];
extern const uint16_t grid_iq2_s[1024];
extern const uint16_t grid_iq3_xxs[256];
extern const uint16_t grid_iq3_s[512];
extern const uint16_t grid_iq1[2048];

/* IQ2: 0, 1, 2 stand for 8, 25, 43. */
static inline int grid_iq2_value(uint16_t entry, int i)
{
    int code = entry >> 2 * i & 3;
    return 8 + 17 * code + (code >> 1);
}

/* IQ3_XXS: 0..7 stand for 4, 12, 20, 28, 36, 44, 52, 62. */
static inline int grid_iq3_xxs_value(uint16_t entry, int i)
{
    int code = entry >> 4 * i & 7;
    return 4 + 8 * code + (code == 7) * 2;
}

/* IQ3_S: 0..7 stand for 1, 3, .. 15. */
static inline int grid_iq3_s_value(uint16_t entry, int i)
{
    return 1 + 2 * (entry >> 4 * i & 7);
}

/* IQ1: 0, 1, 2 stand for -1, 0, 1. */
static inline int grid_iq1_value(uint16_t entry, int i)
{
    return (entry >> 2 * i & 3) - 1;
}

/* Eight signs out of seven: the top one makes the number of minus signs even. */
static inline unsigned grid_signs(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}
