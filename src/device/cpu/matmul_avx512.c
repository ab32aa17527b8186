/* Products of the AVX-512 tier: VNNI multiplies bytes, 16 weight rows in the lanes of a register. */
#include "device/cpu/tiers.h"
#include "device/cpu/matmul_panel.h"

/* VNNI multiplies unsigned by signed bytes, so that signed weights are raised. */
enum { SIGNED_OFFSET = 128 };

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    return is_signed ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}

ALWAYS_INLINE __m256i dot_bytes(bool is_signed, __m256i w, __m256i x)
{
    (void)is_signed;
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x);
}

ALWAYS_INLINE __m512i all_lanes(const void *four)
{
    return _mm512_set1_epi32((int)load_u32(four));
}

/* Rows of a tile that are multiplied at a time, with WIDE registers of weight rows: each load of either
 * side then serves several products. */
enum { AT_ONCE = 4, WIDE = PANEL / 16 };

ALWAYS_INLINE __mmask16 columns_mask(const struct tile_out *out, int v)
{
    int cols = (int)out->cols - 16 * v;
    return (__mmask16)(cols >= 16 ? 0xffff : cols <= 0 ? 0 : 0xffff >> (16 - cols));
}

ALWAYS_INLINE void tile_load(const struct tile_out *out, uint32_t row, int rows, __m512 acc[][WIDE])
{
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < WIDE; v++)
            acc[r][v] = _mm512_setzero_ps();
    for (int r = 0; r < rows && out->add; r++)
        for (int v = 0; v < WIDE && row + r < out->rows; v++)
            acc[r][v] =
                _mm512_maskz_loadu_ps(columns_mask(out, v), out->y + (row + r) * out->stride + 16 * v);
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, uint32_t row, int rows, __m512 acc[][WIDE])
{
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < WIDE && row + r < out->rows; v++)
            _mm512_mask_storeu_ps(out->y + (row + r) * out->stride + 16 * v, columns_mask(out, v), acc[r][v]);
}

/* dot = start (or 0) + the products of `fours` steps of four values, from step j and from `row` on. */
ALWAYS_INLINE void tile_dots(const struct q8_tile_job *job, uint32_t row, uint32_t j, int fours,
                             const int32_t *start, __m512i dot[AT_ONCE][WIDE])
{
    for (int r = 0; r < AT_ONCE; r++)
        for (int v = 0; v < WIDE; v++)
            dot[r][v] = start ? all_lanes(start + row + r) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < fours; i++) {
        __m512i w[WIDE];
        for (int v = 0; v < WIDE; v++)
            w[v] = _mm512_load_si512(job->panel->q[j + i][16 * v]);
        for (int r = 0; r < AT_ONCE; r++) {
            __m512i x = all_lanes(job->tile->q[j + i][row + r]);
            for (int v = 0; v < WIDE; v++)
                dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], w[v], x);
        }
    }
}

/* acc += b * sum, the part of the minima. */
ALWAYS_INLINE void tile_minima(const struct q8_tile_job *job, uint32_t row, uint32_t at,
                               __m512 acc[AT_ONCE][WIDE])
{
    for (int v = 0; v < WIDE; v++) {
        __m512 b = _mm512_load_ps(job->panel->b[at] + 16 * v);
        for (int r = 0; r < AT_ONCE; r++)
            acc[r][v] = _mm512_fmadd_ps(b, _mm512_set1_ps(job->tile->sum[at][row + r]), acc[r][v]);
    }
}

/* Rows [row, row+AT_ONCE) of the tile. parts (1, or 2 for types with halves) and has_min are constants. */
ALWAYS_INLINE void q8_tile_rows(const struct q8_tile_job *job, uint32_t row, int parts, bool has_min)
{
    __m512 acc[AT_ONCE][WIDE];
    tile_load(&job->out, row, AT_ONCE, acc);
    for (uint32_t g = 0; g < job->groups; g++) {
        __m512 part[AT_ONCE][WIDE];
        for (int i = 0; i < parts; i++) {
            uint32_t at = parts * g + i;
            __m512i dot[AT_ONCE][WIDE];
            tile_dots(job, row, 8 * g + 4 * i, 8 / parts, has_min ? NULL : job->tile->start[at], dot);
            for (int v = 0; v < WIDE; v++) {
                __m512 a = _mm512_load_ps(job->panel->a[at] + 16 * v);
                for (int r = 0; r < AT_ONCE; r++) {
                    __m512 f = _mm512_cvtepi32_ps(dot[r][v]);
                    part[r][v] = i ? _mm512_fmadd_ps(f, a, part[r][v]) : _mm512_mul_ps(f, a);
                }
            }
            if (has_min)
                tile_minima(job, row, at, acc);
        }
        for (int r = 0; r < AT_ONCE; r++)
            for (int v = 0; v < WIDE; v++)
                acc[r][v] = _mm512_fmadd_ps(part[r][v], _mm512_set1_ps(job->tile->d[g][row + r]), acc[r][v]);
    }
    tile_store(&job->out, row, AT_ONCE, acc);
}

ALWAYS_INLINE void q8_tile_class(const struct q8_tile_job *job, int parts, bool has_min)
{
    for (uint32_t row = 0; row < job->out.rows; row += AT_ONCE)
        q8_tile_rows(job, row, parts, has_min);
}

/* Four classes are all that types differ by here: none has both a minimum and a centre. */
static void q8_tile_run(uint32_t type, const struct q8_tile_job *job)
{
    if (unit_halves(type) && unit_has_min(type))
        q8_tile_class(job, 2, true);
    else if (unit_halves(type))
        q8_tile_class(job, 2, false);
    else if (unit_has_min(type))
        q8_tile_class(job, 1, true);
    else
        q8_tile_class(job, 1, false);
}

ALWAYS_INLINE void float_tile_run(const struct float_panel *p, const struct float_tile *t, uint32_t width,
                                  const struct tile_out *out)
{
    __m512 acc[TILE][WIDE];
    tile_load(out, 0, TILE, acc);
    for (uint32_t i = 0; i < width; i++) {
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
    tile_store(out, 0, TILE, acc);
}

#include "device/cpu/matmul_float.h"
#include "device/cpu/matmul_q8.h"

void matmul_avx512(struct kernels *k)
{
    matmul_q8_fill(k);
    k->matmul_float = matmul_float;
    k->scratch_bytes = MATMUL_SCRATCH;
}
