/* How weights lie on the GPU. Every layout is a permutation of the file's bytes (and padding), chosen
 * so that kernels load 16 bytes at a time: layout_source says, for each byte there, which byte of the
 * file it is, and decode.h reads values back. Plain C that nvcc compiles too; tested on the host.
 *
 *  rows   F32, F16, BF16: rows padded with zeros to a multiple of 32 values.
 *  planes the block types: within a row, each field of all blocks together, largest first
 *           | qs of block 0 | qs 1 | ... | qh 0 | qh 1 | ... | d 0 | d 1 | ...  padded to 16 bytes
 *  native Q4_K as the file has it (its blocks of 144 bytes are aligned).
 *  tiles  Q4_K, Q6_K, Q8_0: 16 rows x 256 columns, in the order in which the lanes of a warp want them
 *         for mma.m16n8k16 (lane = 4 g + t: rows g and g + 8, and of each 32 columns 8t..8t+7); a row of
 *         Q8_0 may end within a tile, the rest of which is zero:
 *           Q4_K  4 x [lane][row g: 8 bytes of qs | row g+8: 8 bytes], then [row][header of 16 bytes]
 *           Q6_K  2 halves x (ql 0..31, ql 32..63, qh) x [lane][8 | 8 bytes], then [row][16 scales, the
 *                 even groups first], then [row][d]
 *           Q8_0  8 x [lane][8 | 8 bytes], then [row][8 d]
 */
#pragma once

#include "base/dtype.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LAYOUT_FN static __host__ __device__ __forceinline__
#else
#define LAYOUT_FN static inline
#endif

/* The forms that kernels know. */
enum fmt {
    FMT_NONE,
    FMT_F32,
    FMT_F16,
    FMT_BF16,
    FMT_Q4_0,
    FMT_Q4_1,
    FMT_Q5_0,
    FMT_Q5_1,
    FMT_Q8_0,
    FMT_Q2_K,
    FMT_Q3_K,
    FMT_Q5_K,
    FMT_IQ4_NL,
    FMT_IQ4_XS,
    FMT_MXFP4,
    FMT_Q4_K, /* native */
    FMT_Q4_K_TILE,
    FMT_Q6_K_TILE,
    FMT_COUNT
};

enum { TILE_ROWS = 16, TILE_COLS = 256, TILE_Q4_K = 2304, TILE_Q6_K = 3360, TILE_Q8_0 = 4352 };

/* A matrix (n, k) on the GPU, or several of them `each` bytes apart. */
struct mat {
    const uint8_t *base;
    uint64_t stride; /* from row to row; from row of tiles to row of tiles */
    uint64_t each;
    uint32_t fmt, n, k;
    uint32_t count;
};

/* A field of a block: where it is in the file's block, and how long. */
struct layout_field {
    uint8_t at, size;
};

struct layout_info {
    uint8_t values, bytes; /* of a block; values 0 stands for 256 */
    uint8_t fields;
    struct layout_field field[4];
};

/* Largest fields first, so that every plane is aligned for its loads. */
LAYOUT_FN struct layout_info layout_info(uint32_t fmt)
{
    switch (fmt) {
    case FMT_Q4_0:
    case FMT_IQ4_NL: {
        struct layout_info i = {32, 18, 2, {{2, 16}, {0, 2}}};
        return i;
    }
    case FMT_Q4_1: {
        struct layout_info i = {32, 20, 2, {{4, 16}, {0, 4}}};
        return i;
    }
    case FMT_Q5_0: {
        struct layout_info i = {32, 22, 3, {{6, 16}, {2, 4}, {0, 2}}};
        return i;
    }
    case FMT_Q5_1: {
        struct layout_info i = {32, 24, 3, {{8, 16}, {4, 4}, {0, 4}}};
        return i;
    }
    case FMT_MXFP4: {
        struct layout_info i = {32, 17, 2, {{1, 16}, {0, 1}}};
        return i;
    }
    case FMT_Q2_K: {
        struct layout_info i = {0, 84, 3, {{16, 64}, {0, 16}, {80, 4}}};
        return i;
    }
    case FMT_Q3_K: {
        struct layout_info i = {0, 110, 4, {{32, 64}, {0, 32}, {96, 12}, {108, 2}}};
        return i;
    }
    case FMT_Q5_K: {
        struct layout_info i = {0, 176, 3, {{48, 128}, {16, 32}, {0, 16}}};
        return i;
    }
    case FMT_IQ4_XS: {
        struct layout_info i = {0, 136, 2, {{8, 128}, {0, 8}}};
        return i;
    }
    default: {
        struct layout_info i = {0, 0, 0, {{0, 0}}};
        return i;
    }
    }
}

LAYOUT_FN uint32_t layout_plain_bytes(uint32_t fmt)
{
    return fmt == FMT_F32 ? 4 : fmt == FMT_F16 || fmt == FMT_BF16 ? 2 : 0;
}

/* Bytes of a tile; 0: not a form of tiles. */
LAYOUT_FN uint32_t layout_tile_bytes(uint32_t fmt)
{
    return fmt == FMT_Q4_K_TILE   ? TILE_Q4_K
           : fmt == FMT_Q6_K_TILE ? TILE_Q6_K
           : fmt == FMT_Q8_0      ? TILE_Q8_0
                                  : 0;
}

LAYOUT_FN int layout_is_tile(uint32_t fmt)
{
    return layout_tile_bytes(fmt) != 0;
}

/* Bytes from a row (of tiles) to the next. k is a multiple of the type's block. */
LAYOUT_FN uint64_t layout_stride(uint32_t fmt, uint32_t k)
{
    if (layout_is_tile(fmt))
        return (uint64_t)((k + TILE_COLS - 1) / TILE_COLS) * layout_tile_bytes(fmt);
    if (fmt == FMT_Q4_K)
        return (uint64_t)(k / 256) * 144;
    if (layout_plain_bytes(fmt))
        return (uint64_t)((k + 31) / 32) * 32 * layout_plain_bytes(fmt);
    struct layout_info i = layout_info(fmt);
    uint32_t values = i.values ? i.values : 256;
    return ((uint64_t)(k / values) * i.bytes + 15) / 16 * 16;
}

/* Bytes of one matrix. */
LAYOUT_FN uint64_t layout_bytes(uint32_t fmt, uint32_t n, uint32_t k)
{
    uint64_t rows = layout_is_tile(fmt) ? (n + TILE_ROWS - 1) / TILE_ROWS : n;
    return rows * layout_stride(fmt, k);
}

/* Where the plane of field f begins in a row of nb blocks. */
LAYOUT_FN uint64_t layout_plane(struct layout_info i, uint32_t f, uint32_t nb)
{
    uint64_t at = 0;
    for (uint32_t j = 0; j < f; j++)
        at += i.field[j].size;
    return at * nb;
}

/* Byte w of a tile: its row, its block within the tile's row, and the byte of that block. */
struct layout_spot {
    uint32_t row, block, in;
};

LAYOUT_FN struct layout_spot layout_spot(uint32_t fmt, uint32_t w)
{
    const uint32_t lanes = fmt == FMT_Q4_K_TILE ? 2048 : fmt == FMT_Q6_K_TILE ? 3072 : 4096;
    struct layout_spot r = {0, 0, 0};
    if (w < lanes) {
        uint32_t c = w / 512, lane = w % 512 / 16, byte = w % 16, at = 8 * (lane % 4) + byte % 8;
        r.row = lane / 4 + (byte >= 8 ? 8 : 0);
        if (fmt == FMT_Q4_K_TILE) {
            r.in = 16 + 32 * c + at;
        } else if (fmt == FMT_Q6_K_TILE) {
            r.in = (c % 3 < 2 ? 64 * (c / 3) + 32 * (c % 3) : 128 + 32 * (c / 3)) + at;
        } else {
            r.block = c;
            r.in = 2 + at;
        }
        return r;
    }
    const uint32_t i = (w - lanes) % 16;
    r.row = (w - lanes) / 16;
    if (fmt == FMT_Q4_K_TILE) {
        r.in = i;
    } else if (fmt == FMT_Q8_0) {
        r.block = i / 2;
        r.in = i % 2;
    } else if (w < 3328) {
        r.in = 192 + (i < 8 ? 2 * i : 2 * (i - 8) + 1);
    } else {
        r.row = (w - 3328) / 2;
        r.in = 208 + (w - 3328) % 2;
    }
    return r;
}

LAYOUT_FN int64_t layout_source_tile(uint32_t fmt, uint32_t n, uint32_t k, uint64_t row_bytes, uint64_t to)
{
    const uint32_t bytes = layout_tile_bytes(fmt), values = fmt == FMT_Q8_0 ? 32 : TILE_COLS,
                   size = fmt == FMT_Q4_K_TILE   ? 144
                          : fmt == FMT_Q6_K_TILE ? 210
                                                 : 34;
    const uint64_t tile = to / bytes, per_row = (k + TILE_COLS - 1) / TILE_COLS;
    const struct layout_spot s = layout_spot(fmt, (uint32_t)(to % bytes));
    const uint64_t r = tile / per_row * TILE_ROWS + s.row,
                   block = tile % per_row * (TILE_COLS / values) + s.block;
    return r < n && block < k / values ? (int64_t)(r * row_bytes + block * size + s.in) : -1;
}

/* The byte of the file's matrix (rows of row_bytes) that lies at `to`; -1: padding, zero. */
LAYOUT_FN int64_t layout_source(uint32_t fmt, uint32_t n, uint32_t k, uint64_t row_bytes, uint64_t to)
{
    if (layout_is_tile(fmt))
        return layout_source_tile(fmt, n, k, row_bytes, to);
    uint64_t stride = layout_stride(fmt, k), r = to / stride, o = to % stride;
    if (layout_plain_bytes(fmt))
        return o < (uint64_t)k * layout_plain_bytes(fmt) ? (int64_t)(r * row_bytes + o) : -1;
    if (fmt == FMT_Q4_K)
        return (int64_t)(r * row_bytes + o);
    struct layout_info i = layout_info(fmt);
    uint32_t nb = k / (i.values ? i.values : 256);
    for (uint32_t f = 0; f < i.fields; f++) {
        uint64_t plane = (uint64_t)nb * i.field[f].size;
        if (o < plane)
            return (int64_t)(r * row_bytes + o / i.field[f].size * i.bytes + i.field[f].at +
                             o % i.field[f].size);
        o -= plane;
    }
    return -1;
}

/* The form for a type of the file: the one kernels like best; FMT_NONE: decode it to F16 first. */
LAYOUT_FN uint32_t layout_for(uint32_t dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return FMT_F32;
    case DTYPE_F16:
        return FMT_F16;
    case DTYPE_BF16:
        return FMT_BF16;
    case DTYPE_Q4_0:
        return FMT_Q4_0;
    case DTYPE_Q4_1:
        return FMT_Q4_1;
    case DTYPE_Q5_0:
        return FMT_Q5_0;
    case DTYPE_Q5_1:
        return FMT_Q5_1;
    case DTYPE_Q8_0:
        return FMT_Q8_0;
    case DTYPE_Q2_K:
        return FMT_Q2_K;
    case DTYPE_Q3_K:
        return FMT_Q3_K;
    case DTYPE_Q4_K:
        return FMT_Q4_K_TILE;
    case DTYPE_Q5_K:
        return FMT_Q5_K;
    case DTYPE_Q6_K:
        return FMT_Q6_K_TILE;
    case DTYPE_IQ4_NL:
        return FMT_IQ4_NL;
    case DTYPE_IQ4_XS:
        return FMT_IQ4_XS;
    case DTYPE_MXFP4:
        return FMT_MXFP4;
    default:
        return FMT_NONE;
    }
}
