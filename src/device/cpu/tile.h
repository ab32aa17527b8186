/* AMX tiles: eight, each whole (16 rows of 64 bytes). */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/* For this thread, all zero, until _tile_release: meanwhile the system saves 8 KB of tile state for it. */
static inline void tiles_open(void)
{
    static const struct {
        uint8_t palette, none[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}
