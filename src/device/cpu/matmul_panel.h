/* What integer and float products share: the shape of their blocks, and the 8 x 8 transposition that
 * turns rows into panels. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/matmul_unpack.h"

/* A product of many rows goes by slabs along k: a block of activations is packed into tiles of TILE
 * rows by one slab, then every panel of PANEL weight rows is decoded, slab by slab, and multiplied
 * with all of its tiles. A panel and a tile fit the first cache together, all tiles the second. */
enum { PANEL = KERNEL_PANEL, TILE = 8, TILES = 32, SLAB = KERNEL_SLAB };

/* SLAB values of PANEL weight rows, decoded: four neighbours of a row side by side, then the rows. The
 * index of a and b counts groups of 32, or of 16 for types with halves. */
struct q8_panel {
    int8_t q[SLAB / 4][PANEL][4];
    float a[SLAB / 16][PANEL];
    float b[SLAB / 16][PANEL];
};

/* SLAB values of TILE rows of activations in the same order. sum = d * sum of the quants; start is what
 * an integer sum begins with, so that the offset of the weights cancels. Both by 32, or by 16. */
struct q8_tile {
    int8_t q[SLAB / 4][TILE][4];
    float d[SLAB / 32][TILE];
    float sum[SLAB / 16][TILE];
    int32_t start[SLAB / 16][TILE];
};

struct q8_scratch {
    struct q8_panel panel;
    struct q8_tile tile[TILES];
};

/* A tile's numbers where it has `lanes` lines: TILE of them, or one that is alone, without room for others. */
ALWAYS_INLINE const int8_t *tile_four(const struct q8_tile *t, int lanes, uint32_t four, uint32_t line)
{
    return lanes == 1 ? (const int8_t *)t->q + 4 * (four + line) : t->q[four][line];
}

ALWAYS_INLINE const float *tile_d(const struct q8_tile *t, int lanes, uint32_t g)
{
    return lanes == 1 ? (const float *)t->d + g : t->d[g];
}

ALWAYS_INLINE const float *tile_sum(const struct q8_tile *t, int lanes, uint32_t at)
{
    return lanes == 1 ? (const float *)t->sum + at : t->sum[at];
}

ALWAYS_INLINE const int32_t *tile_start(const struct q8_tile *t, int lanes, uint32_t at)
{
    return lanes == 1 ? (const int32_t *)t->start + at : t->start[at];
}

/* Rows of activations that share one pass over the weights, and what a unit of one takes in scratch. */
enum { FEW = 4, Q8_ROW_BYTES = UNIT + UNIT / 8 + UNIT / 4 };

/* Activations that are packed at a time: rows [m0, m1) of values [k0, k1), at most `most` tiles of `rows`
 * rows and `slab` values. Few rows are taken along all of k if they can, so that the weights are read in
 * order; many slab by slab. */
struct block {
    uint32_t m0, m1, k0, k1;
    uint32_t tiles; /* of one slab */
    uint32_t rows, slab, most;
};

/* The same for float products, a shorter slab. */
enum { FLOAT_SLAB = 256 };

struct float_panel {
    float w[FLOAT_SLAB][PANEL];
};

struct float_tile {
    float x[FLOAT_SLAB][TILE];
};

/* And for products in bf16: two neighbours of a row side by side, then the rows. Tiles have the same order where two
 * values are multiplied at once, and are floats where they are not. */
enum { BF16_TILES = 2 * TILES };

struct bf16_panel {
    uint16_t w[SLAB / 2][PANEL][2];
};

struct bf16_pairs {
    uint16_t x[SLAB / 2][TILE][2];
};

struct bf16_floats {
    float x[SLAB][TILE];
};

/* Where a tile's results go: columns 0..cols-1 of rows 0..rows-1; `add` to what is there. */
struct tile_out {
    float *y;
    size_t stride;
    uint32_t rows, cols;
    bool add;
};

/* `groups` groups of 32 of a panel times a tile. */
struct q8_tile_job {
    const struct q8_panel *panel;
    const uint8_t *packed; /* not NULL: these groups instead (matmul_packed.h) */
    const struct q8_tile *tile;
    uint32_t groups;
    bool alone; /* there is no other tile for this panel */
    bool one;   /* the tile has one line, without room for others */
    bool
        rests; /* of two lines of the tile the second is the rest of the first: a row of the result is of both */
    struct tile_out out;
};

/* Eight rows of eight 32-bit things -> eight columns. */
ALWAYS_INLINE void transpose_8(__m256i v[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) {
        u[4 * h + 0] = _mm256_unpacklo_epi64(t[4 * h], t[4 * h + 2]);
        u[4 * h + 1] = _mm256_unpackhi_epi64(t[4 * h], t[4 * h + 2]);
        u[4 * h + 2] = _mm256_unpacklo_epi64(t[4 * h + 1], t[4 * h + 3]);
        u[4 * h + 3] = _mm256_unpackhi_epi64(t[4 * h + 1], t[4 * h + 3]);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
        v[4 + i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
    }
}

ALWAYS_INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

ALWAYS_INLINE void block_cut(const struct matmul *job, struct block *b)
{
    b->m1 = least(b->m0 + b->most * b->rows, job->m);
    b->tiles = (b->m1 - b->m0 + b->rows - 1) / b->rows;
    b->k1 = least(b->k0 + b->most / b->tiles * b->slab, job->k);
}

ALWAYS_INLINE struct block block_first(const struct matmul *job, uint32_t rows, uint32_t slab, uint32_t most)
{
    struct block b = {.rows = rows, .slab = slab, .most = most};
    block_cut(job, &b);
    return b;
}

ALWAYS_INLINE bool block_more(const struct matmul *job, const struct block *b)
{
    return b->m0 < job->m;
}

ALWAYS_INLINE void block_next(const struct matmul *job, struct block *b)
{
    if (b->k1 < job->k) {
        b->k0 = b->k1;
    } else {
        b->k0 = 0;
        b->m0 = b->m1;
    }
    if (block_more(job, b))
        block_cut(job, b);
}

/* One panel times one tile. */
struct tile_job {
    const void *panel, *tile;
    uint32_t width; /* values of a row */
    bool ask;       /* prefetch: the panel is read from memory in order, and this is its first tile */
    struct tile_out out;
};

/* A product of many rows, by how its panels and tiles are made and multiplied. */
struct many {
    uint32_t slab, most; /* values of a tile, tiles of a block */
    size_t tile_bytes;
    uint8_t *tiles;    /* (most, tile_bytes) */
    const void *panel; /* where `find` decodes to */
    void (*pack)(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width, void *tile);
    const void *(*find)(const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width);
    void (*run)(const struct tile_job *job);
};

/* The panel at n, slab by slab, times all rows of x that are packed. */
static inline void many_panel(const struct matmul *job, const struct many *many, const struct block *b,
                              uint32_t n)
{
    const uint8_t *tile = many->tiles;
    for (uint32_t k0 = b->k0; k0 < b->k1; k0 += many->slab) {
        struct tile_job t = {.width = least(many->slab, b->k1 - k0)};
        t.panel = many->find(job, n, k0, t.width);
        t.ask = t.panel != many->panel;
        for (uint32_t m = b->m0; m < b->m1; m += TILE, tile += many->tile_bytes) {
            t.tile = tile;
            t.out = (struct tile_out){job->y + m * job->y_stride + n, job->y_stride, least(TILE, b->m1 - m),
                                      least(PANEL, job->n1 - n), k0 > 0};
            many->run(&t);
            t.ask = false;
        }
    }
}

static inline void many_run(const struct matmul *job, const struct many *many)
{
    struct block b = block_first(job, TILE, many->slab, many->most);
    for (; block_more(job, &b); block_next(job, &b)) {
        uint8_t *tile = many->tiles;
        for (uint32_t k0 = b.k0; k0 < b.k1; k0 += b.slab)
            for (uint32_t m = b.m0; m < b.m1; m += TILE, tile += many->tile_bytes)
                many->pack(job, m, k0, least(b.slab, b.k1 - k0), tile);
        for (uint32_t n = job->n0; n < job->n1; n += PANEL)
            many_panel(job, many, &b, n);
    }
}

/* Prefetches the bytes `ahead` of p: a streaming kernel is never in the same page for long, and the
 * hardware's own prefetch stops at its end. Addresses past the end of a tensor do no harm. */
enum { STREAM_AHEAD = 8192 };

ALWAYS_INLINE void ask_ahead(const uint8_t *p, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + ahead + i), _MM_HINT_T0);
}

/* The same for the next panel, into the second cache: the first is full. */
ALWAYS_INLINE void ask_panel(const uint8_t *p, size_t ahead, size_t bytes)
{
    for (size_t i = 0; i < bytes + 63; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + ahead + i), _MM_HINT_T1);
}

ALWAYS_INLINE float sum_8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
