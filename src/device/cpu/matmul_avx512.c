/* Products of the AVX-512 tier: panels of any type, floats and bf16. */
#include "device/cpu/matmul_avx512.h"
#include "device/cpu/matmul_classes.h"
#include "device/cpu/tiers.h"

static void float_tile_run(const struct tile_job *job)
{
    const struct float_panel *p = job->panel;
    const struct float_tile *t = job->tile;
    const struct tile_out *out = &job->out;
    __m512 acc[TILE][WIDE];
    tile_load(out, (struct avx512_piece){0, TILE, 1, TILE}, acc);
    for (uint32_t i = 0; i < job->width; i++) {
        __m512 w[WIDE];
        for (int v = 0; v < WIDE; v++)
            w[v] = _mm512_load_ps(p->w[i] + 16 * v);
#pragma GCC unroll 8
        for (int r = 0; r < TILE; r++) {
            __m512 x = _mm512_set1_ps(t->x[i][r]);
            for (int v = 0; v < WIDE; v++)
                acc[r][v] = _mm512_fmadd_ps(w[v], x, acc[r][v]);
        }
    }
    tile_store(out, (struct avx512_piece){0, TILE, 1, TILE}, acc);
}

#include "device/cpu/matmul_tier.h"

/* A tile by the code for its number of rows. */
#define BF16_EACH(RUN, job)                                                                                  \
    if ((job)->out.rows == 1)                                                                                \
        RUN(job, 1);                                                                                         \
    else if ((job)->out.rows == 2)                                                                           \
        RUN(job, 2);                                                                                         \
    else if ((job)->out.rows <= 4)                                                                           \
        RUN(job, 4);                                                                                         \
    else                                                                                                     \
        RUN(job, TILE);

/* Two pairs are multiplied and added at once, where the processor can. */
#define BF16_TARGET __attribute__((target("avx512bf16")))

ALWAYS_INLINE BF16_TARGET void bf16_dot_piece(const struct tile_job *job, int rows)
{
    const struct bf16_panel *p = job->panel;
    const struct bf16_pairs *t = job->tile;
    const struct avx512_piece all = {0, rows, 1, TILE};
    __m512 acc[TILE][WIDE];
    tile_load(&job->out, all, acc);
    for (uint32_t i = 0; i < (job->width + 1) / 2; i++) {
        __m512i w[WIDE];
        if (job->ask)
            ask_ahead((const uint8_t *)p->w[i], STREAM_AHEAD, sizeof p->w[i]);
        for (int v = 0; v < WIDE; v++)
            w[v] = _mm512_loadu_si512(p->w[i][16 * v]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m512i x = all_lanes(t->x[i][r]);
            for (int v = 0; v < WIDE; v++)
                acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)w[v], (__m512bh)x);
        }
    }
    tile_store(&job->out, all, acc);
}

static BF16_TARGET void bf16_tile_dot(const struct tile_job *job)
{
    BF16_EACH(bf16_dot_piece, job)
}

static inline BF16_TARGET __m256i bf16_load_at_once(uint32_t type, const uint8_t *p)
{
    if (type == DTYPE_BF16)
        return load_32(p);
    return (__m256i)_mm512_cvtneps_pbh(type == DTYPE_F32 ? _mm512_loadu_ps(p) : _mm512_cvtph_ps(load_32(p)));
}

static BF16_TARGET void bf16_pack_at_once(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width,
                                          void *tile)
{
    bf16_pack_pairs(bf16_load_at_once, job, m0, k0, width, tile);
}

static BF16_TARGET const void *bf16_find_at_once(const struct matmul *job, uint32_t n, uint32_t k0,
                                                 uint32_t width)
{
    return bf16_find_panel(bf16_load_at_once, job, n, k0, width);
}

static void matmul_bf16_dot(const struct matmul *job)
{
    bf16_many(job, (struct many){.most = BF16_TILES,
                                 .tile_bytes = sizeof(struct bf16_pairs),
                                 .pack = bf16_pack_at_once,
                                 .find = bf16_find_at_once,
                                 .run = bf16_tile_dot});
}

/* Elsewhere they are floats, one after the other. */
ALWAYS_INLINE void bf16_fma_piece(const struct tile_job *job, int rows)
{
    const struct bf16_panel *p = job->panel;
    const struct bf16_floats *t = job->tile;
    const struct avx512_piece all = {0, rows, 1, TILE};
    __m512 acc[TILE][WIDE];
    tile_load(&job->out, all, acc);
    for (uint32_t i = 0; i < (job->width + 1) / 2; i++) {
        if (job->ask)
            ask_ahead((const uint8_t *)p->w[i], STREAM_AHEAD, sizeof p->w[i]);
        for (int half = 0; half < 2; half++) {
            __m512 w[WIDE];
            for (int v = 0; v < WIDE; v++) {
                const __m512i both = _mm512_loadu_si512(p->w[i][16 * v]);
                w[v] = _mm512_castsi512_ps(half ? _mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000))
                                                : _mm512_slli_epi32(both, 16));
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < WIDE; v++)
                    acc[r][v] = _mm512_fmadd_ps(w[v], _mm512_set1_ps(t->x[2 * i + half][r]), acc[r][v]);
        }
    }
    tile_store(&job->out, all, acc);
}

static void bf16_tile_fma(const struct tile_job *job)
{
    BF16_EACH(bf16_fma_piece, job)
}

static void matmul_bf16_fma(const struct matmul *job)
{
    bf16_many_floats(job, bf16_tile_fma);
}

void matmul_avx512(struct kernels *k)
{
    matmul_blocks_avx512(k);
    matmul_supers_avx512(k);
    matmul_smalls_avx512(k);
    matmul_codes_avx512(k);
    matmul_fill_tier(k, matmul_bf16_fma);
}

void product_bf16_avx512(const struct matmul *job)
{
    matmul_bf16_dot(job);
}

bool few_bf16_avx512(const struct matmul *job)
{
    return bf16_few(job);
}

const void *panel_bf16_avx512(const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width)
{
    return bf16_find_at_once(job, n, k0, width);
}

void matmul_avx512bf16(struct kernels *k)
{
    k->matmul_bf16 = matmul_bf16_dot;
}
