/* Tiles of the AVX2 tier: bytes are multiplied in pairs to 16 bits, and summed there as long as
 * they fit. A panel is taken in two halves of eight weight rows, a tile in two halves of four rows. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* Signed weights give their sign to the activations instead of being raised: 255 * 127 * 2 would not
 * fit 16 bits. */
enum { SIGNED_OFFSET = 0, HALF_TILE = TILE / 2, PACKED_MOST = 2 };

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    (void)is_signed;
    return w;
}

#include "device/cpu/matmul_packed.h"

/* 16 sums of two products; |w| <= 128 and |x| <= 127 cannot overflow. */
ALWAYS_INLINE __m256i dot_pairs(bool is_signed, __m256i w, __m256i x)
{
    if (is_signed)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

ALWAYS_INLINE __m256i dot_bytes(bool is_signed, __m256i w, __m256i x)
{
    return _mm256_madd_epi16(dot_pairs(is_signed, w, x), _mm256_set1_epi16(1));
}

/* A piece of a tile: rows [row, row + rows), of one line or two, and `wide` times eight columns from `col` on. rows, wide
 * and lines are constants, and there are at most TILE sums. */
struct avx2_piece {
    uint32_t row, col;
    int rows, wide, lines;
};

ALWAYS_INLINE __m256i columns_mask(const struct tile_out *out, uint32_t col)
{
    int cols = (int)out->cols - (int)col;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(cols), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* acc[r * wide + v] */
ALWAYS_INLINE void tile_load(const struct tile_out *out, struct avx2_piece p, __m256 *acc)
{
    for (int i = 0; i < p.rows * p.wide; i++) {
        const uint32_t row = p.row + i / p.wide, col = p.col + 8 * (i % p.wide);
        acc[i] = _mm256_setzero_ps();
        if (out->add && row < out->rows && col < out->cols)
            acc[i] = _mm256_maskload_ps(out->y + row * out->stride + col, columns_mask(out, col));
    }
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, struct avx2_piece p, const __m256 *acc)
{
    for (int i = 0; i < p.rows * p.wide; i++) {
        const uint32_t row = p.row + i / p.wide, col = p.col + 8 * (i % p.wide);
        if (row < out->rows && col < out->cols)
            _mm256_maskstore_ps(out->y + row * out->stride + col, columns_mask(out, col), acc[i]);
    }
}

/* Where a tile's weights come from: the panel, or, if it has bytes, the packed group itself: they are then decoded at each
 * use. */
struct avx2_source {
    const struct q8_panel *panel;
    struct packed_group packed;
};

/* Four i of group g, of eight weight rows. */
ALWAYS_INLINE __m256i source_four(uint32_t type, const struct avx2_source *s, uint32_t g, int i, uint32_t col)
{
    if (s->packed.bytes)
        return packed_four(type, &s->packed, i, col);
    return _mm256_load_si256((const __m256i *)s->panel->q[8 * g + i][col]);
}

ALWAYS_INLINE __m256 source_a(uint32_t type, const struct avx2_source *s, uint32_t at, int i, uint32_t col)
{
    return s->packed.bytes ? packed_a(type, &s->packed, i, col) : _mm256_load_ps(s->panel->a[at] + col);
}

ALWAYS_INLINE __m256 source_b(uint32_t type, const struct avx2_source *s, uint32_t at, int i, uint32_t col)
{
    return s->packed.bytes ? packed_b(type, &s->packed, i, col) : _mm256_load_ps(s->panel->b[at] + col);
}

/* dot = the products of fours [from, to) of group g, line by line. */
ALWAYS_INLINE void tile_dots(uint32_t type, const struct avx2_source *s, const struct q8_tile *t,
                             struct avx2_piece p, uint32_t g, int from, int to, __m256i dot[TILE])
{
    const int depth = unit_traits[type].depth < to - from ? unit_traits[type].depth : to - from;
    const int sums = p.rows * p.lines * p.wide;
#pragma GCC unroll 8
    for (int j = from; j < to; j += depth) {
        __m256i pairs[TILE] = {0};
#pragma GCC unroll 8
        for (int n = j; n < j + depth; n++) {
            for (int i = 0; i < sums; i++) {
                __m256i w = source_four(type, s, g, n, p.col + 8 * (i % p.wide));
                __m256i x = _mm256_set1_epi32((int)load_u32(t->q[8 * g + n][p.lines * p.row + i / p.wide]));
                __m256i two = dot_pairs(unit_traits[type].is_signed, w, x);
                pairs[i] = n > j ? _mm256_add_epi16(pairs[i], two) : two;
            }
        }
        for (int i = 0; i < sums; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1));
            dot[i] = j > from ? _mm256_add_epi32(dot[i], sum) : sum;
        }
    }
}

/* The n-th scale's part of group g: part = a * dot, and what minima add to acc. */
ALWAYS_INLINE void tile_part(uint32_t type, const struct avx2_source *s, const struct q8_tile *t,
                             struct avx2_piece p, uint32_t g, int n, __m256 part[TILE], __m256 acc[TILE])
{
    const int parts = unit_traits[type].halves ? 2 : 1;
    const uint32_t at = parts * g + n;
    __m256i dot[TILE] = {0};
    tile_dots(type, s, t, p, g, 8 / parts * n, 8 / parts * (n + 1), dot);
    for (int i = 0;
         i < p.rows * p.lines * p.wide && !unit_traits[type].has_min && !unit_traits[type].is_signed; i++)
        dot[i] = _mm256_add_epi32(dot[i], _mm256_set1_epi32(t->start[at][p.lines * p.row + i / p.wide]));
    for (int i = 0; i < p.rows * p.wide; i++) {
        const uint32_t row = p.lines * (p.row + i / p.wide), col = p.col + 8 * (i % p.wide);
        const __m256 a = source_a(type, s, at, n, col);
        const int line = i / p.wide * p.lines * p.wide + i % p.wide;
        if (p.lines == 2) /* Q8_REST */
            dot[i] = _mm256_add_epi32(_mm256_slli_epi32(dot[line], 8), dot[line + p.wide]);
        __m256 f = _mm256_cvtepi32_ps(dot[i]);
        part[i] = n ? _mm256_fmadd_ps(f, a, part[i]) : _mm256_mul_ps(f, a);
        if (unit_traits[type].has_min) {
            const __m256 b = source_b(type, s, at, n, col);
            acc[i] = _mm256_fmadd_ps(b, _mm256_set1_ps(t->sum[at][row]), acc[i]);
        }
    }
}

ALWAYS_INLINE void q8_tile_piece(uint32_t type, const struct q8_tile_job *job, bool packed,
                                 struct avx2_piece p)
{
    struct avx2_source s = {.panel = job->panel};
    struct packed_walk walk = {.next = job->packed, .first = true};
    __m256 acc[TILE], part[TILE] = {0};
    tile_load(&job->out, p, acc);
    for (uint32_t g = 0; g < job->groups; g++) {
        const float *d =
            job->tile->d[g] + p.lines - 1; /* the last line's: what the integers are in units of */
        if (packed)
            s.packed = packed_step(type, &walk, g);
        for (int n = 0; n < (unit_traits[type].halves ? 2 : 1); n++)
            tile_part(type, &s, job->tile, p, g, n, part, acc);
        for (int i = 0; i < p.rows * p.wide; i++)
            acc[i] = _mm256_fmadd_ps(part[i], _mm256_set1_ps(d[p.lines * (p.row + i / p.wide)]), acc[i]);
    }
    tile_store(&job->out, p, acc);
}

/* What types differ by once they are panels is in one place for all families. */
void q8_tile_panel_avx2(uint32_t type, const struct q8_tile_job *job);

/* Packed groups have the code of their type. All columns go together, so that memory is read in order. */
ALWAYS_INLINE void q8_tile_packed(uint32_t type, const struct q8_tile_job *job)
{
    if (job->rests)
        for (uint32_t row = 0; row < job->out.rows; row++)
            q8_tile_piece(type, job, true, (struct avx2_piece){row, 0, 1, PANEL / 8, 2});
    else if (job->out.rows == 1)
        q8_tile_piece(type, job, true, (struct avx2_piece){0, 0, 1, PANEL / 8, 1});
    else
        q8_tile_piece(type, job, true, (struct avx2_piece){0, 0, 2, PANEL / 8, 1});
}

ALWAYS_INLINE void q8_tile_run(uint32_t type, const struct q8_tile_job *job)
{
    if (unit_traits[type].low && job->packed)
        q8_tile_packed(type, job);
    else
        q8_tile_panel_avx2(type, job);
}
