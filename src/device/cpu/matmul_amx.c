/* Products of the AMX tier: F16 and BF16 weights by tiles. Both sides are rounded to bf16 as in every tier,
 * and the sums of 32 rows of activations and a panel of weights stay in tiles along k:
 *
 *     A (16 rows, 32 values)  x  B (16 pairs of k, 16 weight rows x 2 values)  ->  C (16 rows, 16 floats)
 *
 * where B is a panel as it is. All rows use tiles, also a single one, which is bound by memory anyway: so a
 * row has the same bits whatever the number of rows. (Where that is not required, and there are no panels
 * yet, one or two rows do not.)
 *
 * Bytes stay with AVX-512: their sums need a scale for every 32 values, and would have to leave the tiles
 * through memory for it. */
#include "device/cpu/tiers.h"
#include "device/cpu/matmul_panel.h"
#include "device/cpu/tile.h"

/* MOST tiles of ROWS rows by a slab are as much as the second cache holds: 512 rows by two slabs, fewer rows by more. */
enum { HALF = 16, ROWS = 2 * HALF, STEP = 32, MOST = 32 };

/* A slab of ROWS rows of activations, as tiles load it. */
struct amx_rows {
    uint16_t x[SLAB / STEP][ROWS][STEP];
};

struct amx_scratch {
    struct bf16_panel panel[MOST]; /* the slabs of one */
    struct amx_rows rows[MOST];
};

/* Rows past the end keep old values: their results are not read. */
static void amx_pack_rows(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width,
                          struct amx_rows *to)
{
    for (uint32_t r = 0; r < least(ROWS, job->m - m0); r++) {
        const float *x = job->x + (m0 + r) * job->x_stride + k0;
        for (uint32_t i = 0; i < width; i += STEP) {
            const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
            _mm512_storeu_si512(to->x[i / STEP][r], (__m512i)both);
        }
    }
}

/* A slab of a panel, and of a tile's rows. */
struct amx_slab {
    const uint8_t *panel;
    const struct amx_rows *rows;
    uint32_t width;
    bool ask; /* prefetch: the panel is read from memory in order, and these are its first rows */
};

/* The numbers of tiles have to be in the code: 0 to 3 are C, 4 and 5 are A, 6 and 7 are B. */
ALWAYS_INLINE void amx_multiply(const struct amx_slab *s, bool both)
{
    const size_t stride = sizeof((struct bf16_panel *)0)->w[0], step = STEP / 2 * stride;
    const uint8_t *w = s->panel;
    for (uint32_t i = 0; i < s->width / STEP; i++, w += step) {
        if (s->ask)
            ask_ahead(w, STREAM_AHEAD, step);
        _tile_loadd(4, s->rows->x[i], sizeof s->rows->x[i][0]);
        _tile_loadd(6, w, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + 64, stride);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, s->rows->x[i][HALF], sizeof s->rows->x[i][0]);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

#define TILES_C(DO, y, stride)                                                                               \
    DO(0, y, stride);                                                                                        \
    DO(1, (y) + 16, stride);                                                                                 \
    DO(2, (uint8_t *)(y) + HALF * (stride), stride);                                                         \
    DO(3, (uint8_t *)((y) + 16) + HALF * (stride), stride)

/* The sums of some rows over all slabs. Tiles have no masks: partial tiles go through a buffer. */
static void amx_sum(const struct amx_slab *slab, uint32_t slabs, const struct tile_out *out)
{
    const bool whole = out->rows == ROWS && out->cols == PANEL;
    float part[ROWS][PANEL] __attribute__((aligned(64)));
    float *y = whole ? out->y : part[0];
    const size_t stride = whole ? out->stride * sizeof *y : sizeof part[0];
    for (uint32_t r = 0; r < out->rows && out->add && !whole; r++)
        memcpy(part[r], out->y + r * out->stride, out->cols * sizeof *y);
    __asm__ volatile("" ::: "memory"); /* tiles read memory that the compiler does not track */
    if (out->add) {
        TILES_C(_tile_loadd, y, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (uint32_t i = 0; i < slabs; i++)
        out->rows > HALF ? amx_multiply(&slab[i], true) : amx_multiply(&slab[i], false);
    TILES_C(_tile_stored, y, stride);
    for (uint32_t r = 0; r < out->rows && !whole; r++)
        memcpy(out->y + r * out->stride, part[r], out->cols * sizeof *y);
}

/* The panel at n times all rows of x that are packed. */
static void amx_panel(const struct matmul *job, const struct block *b, uint32_t n)
{
    struct amx_scratch *s = job->scratch;
    struct amx_slab slab[MOST];
    uint32_t slabs = 0;
    for (uint32_t k0 = b->k0; k0 < b->k1; k0 += SLAB, slabs++) {
        struct matmul here = *job;
        here.scratch = &s->panel[slabs];
        slab[slabs] = (struct amx_slab){.rows = s->rows + slabs * b->tiles, .width = least(SLAB, b->k1 - k0)};
        slab[slabs].panel = panel_bf16_avx512(&here, n, k0, slab[slabs].width);
        slab[slabs].ask = slab[slabs].panel != here.scratch;
    }
    for (uint32_t m = b->m0; m < b->m1; m += ROWS) {
        const struct tile_out out = {job->y + m * job->y_stride + n, job->y_stride, least(ROWS, b->m1 - m),
                                     least(PANEL, job->n1 - n), b->k0 > 0};
        amx_sum(slab, slabs, &out);
        for (uint32_t i = 0; i < slabs; i++) {
            slab[i].rows++;
            slab[i].ask = false;
        }
    }
}

static void amx_product(const struct matmul *job)
{
    struct amx_scratch *s = job->scratch;
    if (job->k % STEP) {
        product_bf16_avx512(job);
        return;
    }
    if (few_bf16_avx512(job))
        return;
    tiles_open();
    for (struct block b = block_first(job, ROWS, SLAB, MOST); block_more(job, &b); block_next(job, &b)) {
        struct amx_rows *to = s->rows;
        for (uint32_t k0 = b.k0; k0 < b.k1; k0 += SLAB)
            for (uint32_t m = b.m0; m < b.m1; m += ROWS)
                amx_pack_rows(job, m, k0, least(SLAB, b.k1 - k0), to++);
        for (uint32_t n = job->n0; n < job->n1; n += PANEL)
            amx_panel(job, &b, n);
    }
    _tile_release();
}

void matmul_amx(struct kernels *k)
{
    k->matmul_bf16 = amx_product;
    if (k->scratch_bytes < sizeof(struct amx_scratch))
        k->scratch_bytes = sizeof(struct amx_scratch);
}
