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

ALWAYS_INLINE void tile_load(const struct tile_out *out, int rows, __m512 *acc)
{
    const __mmask16 mask = (__mmask16)(0xffff >> (PANEL - out->cols));
    for (int r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (int r = 0; r < rows; r++)
        if (out->add && (uint32_t)r < out->rows)
            acc[r] = _mm512_maskz_loadu_ps(mask, out->y + (size_t)r * out->stride);
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, int rows, const __m512 *acc)
{
    const __mmask16 mask = (__mmask16)(0xffff >> (PANEL - out->cols));
    for (int r = 0; r < rows; r++)
        if ((uint32_t)r < out->rows)
            _mm512_mask_storeu_ps(out->y + (size_t)r * out->stride, mask, acc[r]);
}

/* dot[r] = start + the products of `fours` steps of four values, from step j on. */
ALWAYS_INLINE void tile_dots(const struct q8_panel *p, const struct q8_tile *t, uint32_t j, int fours,
                             const int32_t *start, int rows, __m512i *dot)
{
    for (int r = 0; r < rows; r++)
        dot[r] = start ? all_lanes(start + r) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < fours; i++) {
        __m512i w = _mm512_load_si512(p->q[j + i]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            dot[r] = _mm512_dpbusd_epi32(dot[r], w, all_lanes(t->q[j + i][r]));
    }
}

/* rows <= TILE is a constant; the last out->rows of them may be fewer. */
ALWAYS_INLINE void q8_tile_rows(uint32_t type, const struct q8_panel *p, const struct q8_tile *t,
                                uint32_t groups, int rows, const struct tile_out *out)
{
    const int parts = unit_halves(type) ? 2 : 1;
    const bool centred = unit_signed(type) || unit_offset(type);
    __m512 acc[TILE];
    tile_load(out, rows, acc);
    for (uint32_t g = 0; g < groups; g++) {
        __m512 part[TILE];
        for (int i = 0; i < parts; i++) {
            uint32_t at = parts * g + i;
            __m512i dot[TILE];
            tile_dots(p, t, 8 * g + 4 * i, 8 / parts, centred ? t->start[at] : NULL, rows, dot);
            __m512 a = _mm512_load_ps(p->a[at]);
            for (int r = 0; r < rows; r++) {
                __m512 f = _mm512_cvtepi32_ps(dot[r]);
                part[r] = i ? _mm512_fmadd_ps(f, a, part[r]) : _mm512_mul_ps(f, a);
            }
            if (!unit_has_min(type))
                continue;
            __m512 b = _mm512_load_ps(p->b[at]);
            for (int r = 0; r < rows; r++)
                acc[r] = _mm512_fmadd_ps(b, _mm512_set1_ps(t->sum[at][r]), acc[r]);
        }
        for (int r = 0; r < rows; r++)
            acc[r] = _mm512_fmadd_ps(part[r], _mm512_set1_ps(t->d[g][r]), acc[r]);
    }
    tile_store(out, rows, acc);
}

ALWAYS_INLINE void q8_tile_run(uint32_t type, const struct q8_panel *p, const struct q8_tile *t,
                               uint32_t groups, const struct tile_out *out)
{
    if (out->rows > TILE / 2)
        q8_tile_rows(type, p, t, groups, TILE, out);
    else
        q8_tile_rows(type, p, t, groups, TILE / 2, out);
}

ALWAYS_INLINE void float_tile_rows(const struct float_panel *p, const struct float_tile *t, uint32_t width,
                                   int rows, const struct tile_out *out)
{
    __m512 acc[TILE];
    tile_load(out, rows, acc);
    for (uint32_t i = 0; i < width; i++) {
        __m512 w = _mm512_load_ps(p->w[i]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            acc[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(t->x[i][r]), acc[r]);
    }
    tile_store(out, rows, acc);
}

ALWAYS_INLINE void float_tile_run(const struct float_panel *p, const struct float_tile *t, uint32_t width,
                                  const struct tile_out *out)
{
    if (out->rows > TILE / 2)
        float_tile_rows(p, t, width, TILE, out);
    else
        float_tile_rows(p, t, width, TILE / 2, out);
}

#include "device/cpu/matmul_float.h"
#include "device/cpu/matmul_q8.h"

void matmul_avx512(struct kernels *k)
{
    matmul_q8_fill(k);
    k->matmul_float = matmul_float;
    k->scratch_bytes = MATMUL_SCRATCH;
}
