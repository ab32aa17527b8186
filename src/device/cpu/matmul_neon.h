/* Tiles of the NEON tiers: a register has four weight rows, and one of avx_neon.h is two. The tiers differ by what
 * multiplies bytes:
 *
 *   neon      products of 16 bits, added in pairs
 *   dotprod   four products of bytes to one sum of 32 bits, in each lane
 *   i8mm      the same; and in panels, eight products to each of four sums, of two weight rows and two lines: there
 *             panels and tiles have eights instead of fours */
#pragma once

#include "device/cpu/matmul_panel.h"

/* Bytes of both sides are signed. */
enum {
    SIGNED_OFFSET = 0,
    HALF_TILE = TILE / 2,
    PACKED_MOST = 4,
    LINE_ALONE = 0,
    SUMS_OF_16 = 0,
    FILE_STREAMS = 0
};

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    (void)is_signed;
    return w;
}

#include "device/cpu/matmul_packed.h"

/* dot_fours: sum + the products of the four bytes in each lane. dot_lane: the same with the fours of one lane of x. */
#if defined(__ARM_FEATURE_DOTPROD)

#define dot_fours vdotq_s32

ALWAYS_INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane)
{
    return lane == 0   ? vdotq_laneq_s32(sum, w, x, 0)
           : lane == 1 ? vdotq_laneq_s32(sum, w, x, 1)
           : lane == 2 ? vdotq_laneq_s32(sum, w, x, 2)
                       : vdotq_laneq_s32(sum, w, x, 3);
}

#else

/* Two products of 128 * 127 fit 16 bits. */
ALWAYS_INLINE int32x4_t dot_fours(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)));
}

ALWAYS_INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane)
{
    return dot_fours(sum, w, (int8x16_t)vdupq_n_s32(((int32x4_t)x)[lane]));
}

#endif

ALWAYS_INLINE __m256i dot_bytes(bool is_signed, __m256i w, __m256i x)
{
    (void)is_signed;
    return (__m256i){(uint8x16_t)dot_fours(vdupq_n_s32(0), (int8x16_t)w.lo, (int8x16_t)x.lo),
                     (uint8x16_t)dot_fours(vdupq_n_s32(0), (int8x16_t)w.hi, (int8x16_t)x.hi)};
}

ALWAYS_INLINE __m256 columns_load(const float *y, int cols)
{
    float some[8] = {0};
    return _mm256_loadu_ps(cols >= 8 ? y : memcpy(some, y, (size_t)cols * sizeof *y));
}

ALWAYS_INLINE void columns_store(float *y, int cols, __m256 v)
{
    float some[8];
    _mm256_storeu_ps(cols >= 8 ? y : some, v);
    if (cols < 8)
        memcpy(y, some, (size_t)cols * sizeof *y);
}

#include "device/cpu/matmul_tile.h"

/* ---- the order of a panel's and a tile's bytes ---- */

#if defined(__ARM_FEATURE_MATMUL_INT8)

/* Two fours of `rows` rows after one another -> one eight of each row after another, in place. */
ALWAYS_INLINE void fours_to_eights(int8_t *q, int rows)
{
    uint32x4_t a[PANEL / 4], b[PANEL / 4];
    for (int i = 0; i < rows / 4; i++) {
        a[i] = (uint32x4_t)vld1q_s8(q + 16 * i);
        b[i] = (uint32x4_t)vld1q_s8(q + 4 * rows + 16 * i);
    }
    for (int i = 0; i < rows / 4; i++) {
        vst1q_s8(q + 32 * i, (int8x16_t)vzip1q_u32(a[i], b[i]));
        vst1q_s8(q + 32 * i + 16, (int8x16_t)vzip2q_u32(a[i], b[i]));
    }
}

ALWAYS_INLINE void panel_ready(struct q8_panel *p, uint32_t groups)
{
    for (uint32_t i = 0; i < 8 * groups; i += 2)
        fours_to_eights(p->q[i][0], PANEL);
}

ALWAYS_INLINE void tile_ready(struct q8_tile *t, uint32_t groups)
{
    for (uint32_t i = 0; i < 8 * groups; i += 2)
        fours_to_eights(t->q[i][0], TILE);
}

/* Of two lines from `line` on the n-th fours: lanes n % 2 and 2 + n % 2. */
enum { LINES_OF_LOAD = 2 };

ALWAYS_INLINE int8x16_t lines_load(const struct q8_tile *t, uint32_t n, uint32_t line)
{
    return vld1q_s8(t->q[n & ~1u][0] + 8 * (size_t)line);
}

ALWAYS_INLINE int line_lane(int n, int line)
{
    return 2 * line + n % 2;
}

#else

#include "device/cpu/matmul_ready.h"

/* Of four lines from `line` on the n-th fours. */
enum { LINES_OF_LOAD = 4 };

ALWAYS_INLINE int8x16_t lines_load(const struct q8_tile *t, uint32_t n, uint32_t line)
{
    return vld1q_s8(t->q[n][0] + 4 * (size_t)line);
}

ALWAYS_INLINE int line_lane(int n, int line)
{
    (void)n;
    return line;
}

#endif

/* ---- products ---- */

/* Fours [from, to) of group g against `wide` times eight weight rows, line by line. */
ALWAYS_INLINE void fours_dots(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                              struct tile_piece p, uint32_t g, int from, int to, const int32_t *start,
                              __m256i dot[TILE])
{
    const int lines = p.rows * p.lines;
    const uint32_t line = p.lines * p.row;
    for (int i = 0; i < lines * p.wide; i++)
        dot[i] = _mm256_set1_epi32(start ? start[line + i / p.wide] : 0);
#pragma GCC unroll 8
    for (int n = from; n < to; n++) {
        int8x16_t x[2];
        for (int i = 0; i < lines; i += LINES_OF_LOAD)
            x[i / LINES_OF_LOAD] = lines_load(t, 8 * g + n, line + i);
        for (int v = 0; v < p.wide; v++) {
            const __m256i w = source_four(type, s, g, n, p.col + 8 * v);
#pragma GCC unroll 4
            for (int i = 0; i < lines; i++) {
                const int8x16_t of = x[i / LINES_OF_LOAD];
                const int lane = line_lane(n, i % LINES_OF_LOAD);
                __m256i *sum = &dot[i * p.wide + v];
                sum->lo = (uint8x16_t)dot_lane((int32x4_t)sum->lo, (int8x16_t)w.lo, of, lane);
                sum->hi = (uint8x16_t)dot_lane((int32x4_t)sum->hi, (int8x16_t)w.hi, of, lane);
            }
        }
    }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

/* Four lines against eight weight rows of the panel, two of both at a time. */
ALWAYS_INLINE void panel_dots(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                              struct tile_piece p, uint32_t g, int from, int to, const int32_t *start,
                              __m256i dot[TILE])
{
    (void)type;
    const uint32_t line = p.lines * p.row;
    int32x4_t block[4][2];
    for (int x = 0; x < 2; x++) {
        const int32x2_t two = start ? vld1_s32(start + line + 2 * x) : vdup_n_s32(0);
        for (int w = 0; w < 4; w++)
            block[w][x] = vcombine_s32(two, two);
    }
#pragma GCC unroll 4
    for (int n = from; n < to; n += 2) {
        const int8_t *rows = s->panel->q[8 * g + n][0] + 8 * (size_t)p.col;
        const int8x16_t x0 = lines_load(t, 8 * g + n, line), x1 = lines_load(t, 8 * g + n, line + 2);
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) {
            block[w][0] = vmmlaq_s32(block[w][0], vld1q_s8(rows + 16 * w), x0);
            block[w][1] = vmmlaq_s32(block[w][1], vld1q_s8(rows + 16 * w), x1);
        }
    }
#pragma GCC unroll 2
    for (int x = 0; x < 2; x++) {
        dot[2 * x] = (__m256i){(uint8x16_t)vuzp1q_s32(block[0][x], block[1][x]),
                               (uint8x16_t)vuzp1q_s32(block[2][x], block[3][x])};
        dot[2 * x + 1] = (__m256i){(uint8x16_t)vuzp2q_s32(block[0][x], block[1][x]),
                                   (uint8x16_t)vuzp2q_s32(block[2][x], block[3][x])};
    }
}

#else
#define panel_dots fours_dots
#endif

ALWAYS_INLINE void tile_dots(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                             struct tile_piece p, uint32_t g, int from, int to, __m256i dot[TILE])
{
    const uint32_t at = unit_traits[type].halves ? 2 * g + (from > 0) : g;
    const int32_t *start = unit_traits[type].has_min ? NULL : t->start[at];
    if (s->packed.bytes)
        fours_dots(type, s, t, p, g, from, to, start, dot);
    else
        panel_dots(type, s, t, p, g, from, to, start, dot);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define q8_tile_panel q8_tile_panel_i8mm
#elif defined(__ARM_FEATURE_DOTPROD)
#define q8_tile_panel q8_tile_panel_dotprod
#else
#define q8_tile_panel q8_tile_panel_neon
#endif
void q8_tile_panel(uint32_t type, const struct q8_tile_job *job);
