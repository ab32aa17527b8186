/* Panels of any type, once in each tier. As panels, types differ by halves and minima alone; where bytes are
 * multiplied to sums of 16 bits (SUMS_OF_16), by signs and depth, too. A tier's header defines before:
 *
 *   q8_tile_class   a panel of a class, named by one of its types, times a tile
 *   q8_tile_panel   its name in this tier */
#pragma once

#include "device/cpu/matmul_panel.h"

void q8_tile_panel(uint32_t type, const struct q8_tile_job *job)
{
    const bool has_min = unit_traits[type].has_min, halves = unit_traits[type].halves;
    if (SUMS_OF_16 && unit_traits[type].is_signed)
        halves ? q8_tile_class(DTYPE_IQ2_XS, job) : q8_tile_class(DTYPE_Q8_0, job);
    else if (halves)
        has_min ? q8_tile_class(DTYPE_Q2_K, job) : q8_tile_class(DTYPE_Q6_K, job);
    else if (SUMS_OF_16 && unit_traits[type].depth != 8)
        has_min ? q8_tile_class(DTYPE_Q5_K, job) : q8_tile_class(DTYPE_Q5_0, job);
    else
        has_min ? q8_tile_class(DTYPE_Q4_K, job) : q8_tile_class(DTYPE_Q4_0, job);
}
