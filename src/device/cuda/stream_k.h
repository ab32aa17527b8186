/* Stream-K: how the blocks of gemm_many share the columns of all bands, where a band is the outputs that a block multiplies
 * at once. The work is bands x columns, counted from band to band; a block has a share of it, which may end within a band:
 *
 *   columns  |----band 0----|----band 1----|----band 2----|
 *   shares   |--block 0--|--block 1--|--block 2--|--block 3-|
 *
 * Shares are equal within one column. A band that is cut belongs to the block that has its first column. That block computes
 * the band last and the others compute their part of it first, so it waits briefly for their sums. Plain C that nvcc
 * compiles too; tested on the host. No result needs more than 32 bits while blocks x (work + 1) fits (stream_k_fits): 64-bit
 * divisions are long on a card. */
#pragma once

#include "device/cuda/layout.h"

#include <stdbool.h>

/* Columns [from, to) of a band. */
struct piece {
    uint32_t band, from, to;
};

LAYOUT_FN bool stream_k_fits(uint32_t work, uint32_t blocks)
{
    return blocks && blocks <= work && blocks < UINT32_MAX / (work + 1);
}

/* Where the share of this block begins; of block `blocks`: where all of them end. */
LAYOUT_FN uint32_t stream_k_begin(uint32_t work, uint32_t blocks, uint32_t block)
{
    return work * block / blocks;
}

/* The block whose share has column `at` of the work. */
LAYOUT_FN uint32_t stream_k_owner(uint32_t work, uint32_t blocks, uint32_t at)
{
    return ((at + 1) * blocks - 1) / work;
}

/* The first piece of what is left of a share: [at, end) of the work. */
LAYOUT_FN struct piece stream_k_piece(uint32_t columns, uint32_t at, uint32_t end)
{
    struct piece p;
    p.band = at / columns;
    p.from = at - p.band * columns;
    p.to = end - at < columns - p.from ? p.from + end - at : columns;
    return p;
}
