/* The layout of weights on the GPU. Every layout is a permutation of the file's bytes (and padding), chosen so that
 * kernels load 16 bytes at a time: layout_source says, for each byte there, which byte of the file it is (layout_nibble:
 * of MXFP4, whose halves of bytes are permuted, too), and decode.h reads values back. Plain C that nvcc compiles too;
 * tested on the host.
 *
 *  rows   F32, F16, BF16: rows padded with zeros to a multiple of 32 values.
 *  planes the block types: within a row, each field of all blocks together, largest first
 *           | qs of block 0 | qs 1 | ... | qh 0 | qh 1 | ... | d 0 | d 1 | ...  padded to 16 bytes
 *  native Q4_K as the file has it (its blocks of 144 bytes are aligned).
 *  tiles  Q4_K, Q6_K, Q8_0, MXFP4: 16 rows x 256 columns, in the order in which the lanes of a warp want them
 *         for mma.m16n8k16 (lane = 4 g + t: rows g and g + 8, and of each 32 columns 8t..8t+7); a row of
 *         Q8_0 or MXFP4 may end within a tile, the rest of which is zero:
 *           Q4_K  4 x [lane][row g: 8 bytes of qs | row g+8: 8 bytes], then [row][header of 16 bytes]
 *           Q6_K  2 halves x (ql 0..31, ql 32..63, qh) x [lane][8 | 8 bytes], then [row][16 scales, the
 *                 even groups first], then [row][d]
 *           Q8_0  8 x [lane][8 | 8 bytes], then [row][8 d]
 *           MXFP4 as Q4_K: of each 64 columns the first 32 in the low halves of bytes; then [row][8 exponents]
 * */
#pragma once

#include "codec/dtype.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LAYOUT_FN static __host__ __device__ __forceinline__
#else
#define LAYOUT_FN static inline
#endif

/* The forms that kernels support. */
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

enum {
    TILE_ROWS = 16,
    TILE_COLS = 256,
    TILE_Q4_K = 2304,
    TILE_Q6_K = 3360,
    TILE_Q8_0 = 4352,
    TILE_MXFP4 = 2176
};

/* A matrix (n, k) on the GPU, or several of them `each` bytes apart. */
struct mat {
    const uint8_t *base;
    uint64_t stride; /* from row to row; from row of tiles to row of tiles */
    uint64_t each;
    uint32_t fmt, n, k;
    uint32_t count;
};

/* The traits of all forms, a row each: what a type of the file becomes, its kernels for products (the module
 * of gpu.h and the stem of their names), and its layout. All code that depends on a form uses this table: the
 * functions below, and gpu.c.
 *
 *   FORMATS_PLAIN   form, type, module, stem, bytes of a value
 *   FORMATS_TILE    form, type, module, stem, bytes of a tile, of its lanes' part, values and bytes of the file's block
 *   FORMATS_PLANES  form, type, module, stem, values and bytes of a block, fields: {where in the block, how long}, the
 *                   largest first, so that every plane is aligned for its loads
 *   FORMATS_NATIVE  form, type, module, stem, values and bytes of a block; only on demand (QUERN_GPU_NATIVE) */
#define FORMATS_PLAIN(ROW)                                                                                   \
    ROW(FMT_F32, DTYPE_F32, MODULE_GEMM_PLAIN, "gemm_f32", 4)                                                \
    ROW(FMT_F16, DTYPE_F16, MODULE_GEMM_PLAIN, "gemm_f16", 2)                                                \
    ROW(FMT_BF16, DTYPE_BF16, MODULE_GEMM_PLAIN, "gemm_bf16", 2)

#define FORMATS_TILE(ROW)                                                                                    \
    ROW(FMT_Q4_K_TILE, DTYPE_Q4_K, MODULE_GEMM_TILE, "gemm_tile", TILE_Q4_K, 2048, 256, 144)                 \
    ROW(FMT_Q6_K_TILE, DTYPE_Q6_K, MODULE_GEMM_TILE, "gemm_tile", TILE_Q6_K, 3072, 256, 210)                 \
    ROW(FMT_Q8_0, DTYPE_Q8_0, MODULE_GEMM_TILE, "gemm_tile", TILE_Q8_0, 4096, 32, 34)                        \
    ROW(FMT_MXFP4, DTYPE_MXFP4, MODULE_GEMM_TILE, "gemm_tile", TILE_MXFP4, 2048, 32, 17)

#define FORMATS_PLANES(ROW)                                                                                  \
    ROW(FMT_Q4_0, DTYPE_Q4_0, MODULE_GEMM_NIBBLE, "gemm_q4_0", 32, 18, 2, {2, 16}, {0, 2})                   \
    ROW(FMT_Q4_1, DTYPE_Q4_1, MODULE_GEMM_NIBBLE, "gemm_q4_1", 32, 20, 2, {4, 16}, {0, 4})                   \
    ROW(FMT_Q5_0, DTYPE_Q5_0, MODULE_GEMM_NIBBLE, "gemm_q5_0", 32, 22, 3, {6, 16}, {2, 4}, {0, 2})           \
    ROW(FMT_Q5_1, DTYPE_Q5_1, MODULE_GEMM_NIBBLE, "gemm_q5_1", 32, 24, 3, {8, 16}, {4, 4}, {0, 4})           \
    ROW(FMT_IQ4_NL, DTYPE_IQ4_NL, MODULE_GEMM_NIBBLE, "gemm_iq4_nl", 32, 18, 2, {2, 16}, {0, 2})             \
    ROW(FMT_Q2_K, DTYPE_Q2_K, MODULE_GEMM_SUPER, "gemm_q2_k", 256, 84, 3, {16, 64}, {0, 16}, {80, 4})        \
    ROW(FMT_Q3_K, DTYPE_Q3_K, MODULE_GEMM_SUPER, "gemm_q3_k", 256, 110, 4, {32, 64}, {0, 32}, {96, 12},      \
        {108, 2})                                                                                            \
    ROW(FMT_Q5_K, DTYPE_Q5_K, MODULE_GEMM_SUPER, "gemm_q5_k", 256, 176, 3, {48, 128}, {16, 32}, {0, 16})     \
    ROW(FMT_IQ4_XS, DTYPE_IQ4_XS, MODULE_GEMM_SUPER, "gemm_iq4_xs", 256, 136, 2, {8, 128}, {0, 8})

#define FORMATS_NATIVE(ROW) ROW(FMT_Q4_K, DTYPE_Q4_K, MODULE_GEMM_SUPER, "gemm_q4_k", 256, 144)

/* A field of a block: where it is in the file's block, and how long. */
struct layout_field {
    uint8_t at, size;
};

struct layout_info {
    uint16_t values, bytes; /* of a block */
    uint8_t fields;
    struct layout_field field[4];
};

/* The planes of a form. */
LAYOUT_FN struct layout_info layout_info(uint32_t fmt)
{
    switch (fmt) {
#define FORMAT_CASE(form, type, module, stem, values, bytes, fields, ...)                                    \
    case form: {                                                                                             \
        struct layout_info i = {values, bytes, fields, {__VA_ARGS__}};                                       \
        return i;                                                                                            \
    }
        FORMATS_PLANES(FORMAT_CASE)
#undef FORMAT_CASE
    default: {
        struct layout_info i = {256, 0, 0, {{0, 0}}};
        return i;
    }
    }
}

/* Bytes of a value; 0: not a form of plain rows. */
LAYOUT_FN uint32_t layout_plain_bytes(uint32_t fmt)
{
#define FORMAT_VALUE(form, type, module, stem, value) fmt == form ? value:
    return FORMATS_PLAIN(FORMAT_VALUE) 0;
#undef FORMAT_VALUE
}

/* Bytes of a tile; 0: not a form of tiles. */
LAYOUT_FN uint32_t layout_tile_bytes(uint32_t fmt)
{
#define FORMAT_TILE(form, type, module, stem, tile, ...) fmt == form ? tile:
    return FORMATS_TILE(FORMAT_TILE) 0;
#undef FORMAT_TILE
}

/* Of a form of tiles: bytes of the lanes' part; values and bytes of the file's block. */
struct layout_tile {
    uint32_t lanes, values, bytes;
};

LAYOUT_FN struct layout_tile layout_tile(uint32_t fmt)
{
    switch (fmt) {
#define FORMAT_CASE(form, type, module, stem, tile, lanes, values, bytes)                                    \
    case form: {                                                                                             \
        struct layout_tile t = {lanes, values, bytes};                                                       \
        return t;                                                                                            \
    }
        FORMATS_TILE(FORMAT_CASE)
#undef FORMAT_CASE
    default: {
        struct layout_tile t = {0, TILE_COLS, 0};
        return t;
    }
    }
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
    const struct layout_info i = layout_info(fmt);
    return ((uint64_t)(k / i.values) * i.bytes + 15) / 16 * 16;
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
    const uint32_t lanes = layout_tile(fmt).lanes;
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
    if (fmt == FMT_MXFP4) {
        r.row = (w - lanes) / 8;
        r.block = (w - lanes) % 8;
        return r;
    }
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
    const struct layout_tile block = layout_tile(fmt);
    const uint32_t bytes = layout_tile_bytes(fmt);
    const uint64_t tile = to / bytes, per_row = (k + TILE_COLS - 1) / TILE_COLS;
    const struct layout_spot s = layout_spot(fmt, (uint32_t)(to % bytes));
    const uint64_t r = tile / per_row * TILE_ROWS + s.row,
                   at = tile % per_row * (TILE_COLS / block.values) + s.block;
    return r < n && at < k / block.values ? (int64_t)(r * row_bytes + at * block.bytes + s.in) : -1;
}

/* Of byte `to` of a form whose halves of bytes are permuted, the low (0) or high (1) half: twice the byte of the file that
 * it is in, and one more where it is that byte's high half; -1: padding, zero, or not such a byte. */
LAYOUT_FN int64_t layout_nibble(uint32_t fmt, uint32_t n, uint32_t k, uint64_t row_bytes, uint64_t to,
                                uint32_t half)
{
    const uint32_t w = (uint32_t)(to % TILE_MXFP4), lane = w % 512 / 16, byte = w % 16,
                   value = 8 * (lane % 4) + byte % 8;
    const uint64_t tile = to / TILE_MXFP4, per_row = (k + TILE_COLS - 1) / TILE_COLS,
                   r = tile / per_row * TILE_ROWS + lane / 4 + (byte >= 8 ? 8 : 0),
                   block = tile % per_row * (TILE_COLS / 32) + 2 * (w / 512) + half;
    if (fmt != FMT_MXFP4 || w >= 2048 || r >= n || block >= k / 32)
        return -1;
    return (int64_t)(2 * (r * row_bytes + block * 17 + 1 + value % 16) + value / 16);
}

LAYOUT_FN int layout_has_nibbles(uint32_t fmt, uint64_t to)
{
    return fmt == FMT_MXFP4 && to % TILE_MXFP4 < 2048;
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
    uint32_t nb = k / i.values;
    for (uint32_t f = 0; f < i.fields; f++) {
        uint64_t plane = (uint64_t)nb * i.field[f].size;
        if (o < plane)
            return (int64_t)(r * row_bytes + o / i.field[f].size * i.bytes + i.field[f].at +
                             o % i.field[f].size);
        o -= plane;
    }
    return -1;
}

/* The form for a type of the file: the fastest one; FMT_NONE: decode it to F16 first. */
LAYOUT_FN uint32_t layout_for(uint32_t dtype)
{
    switch (dtype) {
#define FORMAT_FOR(form, type, ...)                                                                          \
    case type:                                                                                               \
        return form;
        FORMATS_PLAIN(FORMAT_FOR)
        FORMATS_TILE(FORMAT_FOR)
        FORMATS_PLANES(FORMAT_FOR)
#undef FORMAT_FOR
    default:
        return FMT_NONE;
    }
}
