/* The AMX tier on a machine that has only AVX-512: the tier's own source, with its six instructions in plain C. What the
 * processor would refuse (a tile that is not configured, shapes that do not match) ends the test. */
#include "fake_amx.h"

#include "base/err.h"
#include "codec/half.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES_OF_8 = 8, ROWS_MOST = 16, BYTES_MOST = 64 };

static struct {
    bool open;
    uint16_t row_bytes[TILES_OF_8];
    uint8_t rows[TILES_OF_8];
    uint8_t data[TILES_OF_8][ROWS_MOST][BYTES_MOST];
} tiles;

static void fake_demand(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "a tile instruction that a processor refuses: %s\n", what);
    abort();
}

static void fake_loadconfig(const void *config)
{
    const uint8_t *c = config;
    fake_demand(c[0] == 1, "there is no such palette");
    memset(&tiles, 0, sizeof tiles);
    memcpy(tiles.row_bytes, c + 16, sizeof tiles.row_bytes);
    memcpy(tiles.rows, c + 48, sizeof tiles.rows);
    for (int t = 0; t < TILES_OF_8; t++)
        fake_demand(tiles.rows[t] <= ROWS_MOST && tiles.row_bytes[t] <= BYTES_MOST, "a tile is too large");
    tiles.open = true;
}

static void fake_release(void)
{
    tiles.open = false;
}

static void fake_ready(int t)
{
    fake_demand(tiles.open && tiles.rows[t] && tiles.row_bytes[t], "a tile without a shape");
}

static void fake_zero(int t)
{
    fake_ready(t);
    memset(tiles.data[t], 0, sizeof tiles.data[t]);
}

static void fake_loadd(int t, const void *base, size_t stride)
{
    fake_zero(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy(tiles.data[t][r], (const uint8_t *)base + r * stride, tiles.row_bytes[t]);
}

static void fake_stored(int t, void *base, size_t stride)
{
    fake_ready(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy((uint8_t *)base + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
}

static void fake_match(int c, int a, int b)
{
    fake_ready(c), fake_ready(a), fake_ready(b);
    fake_demand(tiles.rows[c] == tiles.rows[a] && tiles.row_bytes[c] == tiles.row_bytes[b] &&
                    tiles.row_bytes[a] == 4 * tiles.rows[b],
                "shapes that do not match");
}

/* c (m, n) += a (m, k) b (k / 2, n x 2), bf16 into floats: the first and the second of all pairs are added up apart. */
static void fake_dpbf16ps(int c, int a, int b)
{
    fake_match(c, a, b);
    for (int m = 0; m < tiles.rows[c]; m++)
        for (int n = 0; n < tiles.row_bytes[c] / 4; n++) {
            float sum, apart[2] = {0};
            for (int k = 0; k < tiles.row_bytes[a] / 2; k++) {
                uint16_t x, w;
                memcpy(&x, tiles.data[a][m] + 2 * k, 2);
                memcpy(&w, tiles.data[b][k / 2] + 4 * n + 2 * (k % 2), 2);
                apart[k % 2] += bf16_to_f32(x) * bf16_to_f32(w);
            }
            memcpy(&sum, tiles.data[c][m] + 4 * n, 4);
            sum += apart[0] + apart[1];
            memcpy(tiles.data[c][m] + 4 * n, &sum, 4);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig fake_loadconfig
#define _tile_release    fake_release
#define _tile_loadd      fake_loadd
#define _tile_stored     fake_stored
#define _tile_zero       fake_zero
#define _tile_dpbf16ps   fake_dpbf16ps
#define matmul_amx       fake_amx
#include "device/cpu/matmul_amx.c"
