/* The probe's loops for AMX: full tiles of bytes or of bf16, four independent sums; the rest is that of AVX-512. */
#include "device/cpu/probe.h"
#include "device/cpu/tile.h"

enum { CHAINS = 4, TILE_ROWS = 16, TILE_BYTES = 64, TILE_SUMS = TILE_ROWS * TILE_BYTES / 4 };

/* Four sums of zeros, from two tiles either side; the instructions want the numbers of tiles in the code. */
#define TILE_STEPS(DOT)                                                                                      \
    int32_t sum[TILE_SUMS];                                                                                  \
    tiles_open();                                                                                            \
    for (long s = 0; s < steps; s++) {                                                                       \
        DOT(0, 4, 6);                                                                                        \
        DOT(1, 4, 7);                                                                                        \
        DOT(2, 5, 6);                                                                                        \
        DOT(3, 5, 7);                                                                                        \
    }                                                                                                        \
    _tile_stored(0, sum, TILE_BYTES);                                                                        \
    _tile_release();                                                                                         \
    return (float)sum[0]

static float int8_steps(long steps)
{
    TILE_STEPS(_tile_dpbssd);
}

static float bf16_steps(long steps)
{
    TILE_STEPS(_tile_dpbf16ps);
}

void probe_amx(struct probe_kernels *k)
{
    probe_avx512(k);
    k->int8 = int8_steps;
    k->bf16 = bf16_steps;
    k->int8_round = 2.0 * TILE_SUMS * TILE_BYTES * CHAINS;
    k->bf16_round = k->int8_round / 2;
}
