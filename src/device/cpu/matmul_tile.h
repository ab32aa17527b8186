/* A panel times a tile with registers of eight weight rows, for the tiers that have no wider ones. A tier's header
 * (matmul_avx2.h, matmul_neon.h) defines, before it includes this:
 *
 *   columns_load, columns_store  eight floats, of which the first `cols` are in memory
 *
 * and after it, since it needs struct tile_piece, what multiplies: tile_dots. */
#pragma once

#include "device/cpu/matmul_packed.h"

/* A piece of a tile: rows [row, row + rows), of one line or two, and `wide` times eight columns from `col` on. rows, wide
 * and lines are constants, and there are at most TILE sums. */
struct tile_piece {
    uint32_t row, col;
    int rows, wide, lines;
};

/* acc[r * wide + v] */
ALWAYS_INLINE void tile_load(const struct tile_out *out, struct tile_piece p, __m256 *acc)
{
    for (int i = 0; i < p.rows * p.wide; i++) {
        const uint32_t row = p.row + i / p.wide, col = p.col + 8 * (i % p.wide);
        acc[i] = _mm256_setzero_ps();
        if (out->add && row < out->rows && col < out->cols)
            acc[i] = columns_load(out->y + row * out->stride + col, (int)(out->cols - col));
    }
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, struct tile_piece p, const __m256 *acc)
{
    for (int i = 0; i < p.rows * p.wide; i++) {
        const uint32_t row = p.row + i / p.wide, col = p.col + 8 * (i % p.wide);
        if (row < out->rows && col < out->cols)
            columns_store(out->y + row * out->stride + col, (int)(out->cols - col), acc[i]);
    }
}

/* Where a tile's weights come from: the panel, or, if it has bytes, the packed group itself: they are then decoded at each
 * use. */
struct tile_source {
    const struct q8_panel *panel;
    struct packed_group packed;
};

/* Four i of group g, of eight weight rows. */
ALWAYS_INLINE __m256i source_four(uint32_t type, const struct tile_source *s, uint32_t g, int i, uint32_t col)
{
    if (s->packed.bytes)
        return packed_four(type, &s->packed, i, col);
    return _mm256_load_si256((const __m256i *)s->panel->q[8 * g + i][col]);
}

ALWAYS_INLINE __m256 source_a(uint32_t type, const struct tile_source *s, uint32_t at, int i, uint32_t col)
{
    return s->packed.bytes ? packed_a(type, &s->packed, i, col) : _mm256_load_ps(s->panel->a[at] + col);
}

ALWAYS_INLINE __m256 source_b(uint32_t type, const struct tile_source *s, uint32_t at, int i, uint32_t col)
{
    return s->packed.bytes ? packed_b(type, &s->packed, i, col) : _mm256_load_ps(s->panel->b[at] + col);
}

ALWAYS_INLINE void tile_dots(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                             struct tile_piece p, uint32_t g, int from, int to, __m256i dot[TILE]);

/* The n-th scale's part of group g: part = a * dot, and what minima add to acc. */
ALWAYS_INLINE void tile_part(uint32_t type, const struct tile_source *s, const struct q8_tile *t,
                             struct tile_piece p, uint32_t g, int n, __m256 part[TILE], __m256 acc[TILE])
{
    const int parts = unit_traits[type].halves ? 2 : 1;
    const uint32_t at = parts * g + n;
    __m256i dot[TILE] = {0};
    tile_dots(type, s, t, p, g, 8 / parts * n, 8 / parts * (n + 1), dot);
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
                                 struct tile_piece p)
{
    struct tile_source s = {.panel = job->panel};
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

ALWAYS_INLINE void q8_tile_class(uint32_t type, const struct q8_tile_job *job)
{
    const uint32_t rows = job->rests ? HALF_TILE / 2 : HALF_TILE;
    for (uint32_t row = 0; row < job->out.rows; row += rows)
        for (uint32_t col = 0; col < job->out.cols; col += 8)
            if (job->rests)
                q8_tile_piece(type, job, false, (struct tile_piece){row, col, HALF_TILE / 2, 1, 2});
            else
                q8_tile_piece(type, job, false, (struct tile_piece){row, col, HALF_TILE, 1, 1});
}

/* Packed groups have the code of their type. All columns go together, so that memory is read in order. */
ALWAYS_INLINE void q8_tile_packed(uint32_t type, const struct q8_tile_job *job)
{
    if (job->rests)
        for (uint32_t row = 0; row < job->out.rows; row++)
            q8_tile_piece(type, job, true, (struct tile_piece){row, 0, 1, PANEL / 8, 2});
    else if (job->out.rows == 1)
        q8_tile_piece(type, job, true, (struct tile_piece){0, 0, 1, PANEL / 8, 1});
    else if (PACKED_MOST == 2)
        q8_tile_piece(type, job, true, (struct tile_piece){0, 0, 2, PANEL / 8, 1});
    else
        for (uint32_t row = 0; row < job->out.rows; row += 2)
            q8_tile_piece(type, job, true, (struct tile_piece){row, 0, 2, PANEL / 8, 1});
}

/* bf16 as floats, piece by piece. One and two rows take all columns at once, so that memory is read in order. */
ALWAYS_INLINE void bf16_tile_pieces(const struct tile_job *job,
                                    void (*run)(const struct tile_job *job, struct tile_piece piece))
{
    if (job->out.rows == 1)
        run(job, (struct tile_piece){0, 0, 1, PANEL / 8, 1});
    else if (job->out.rows == 2)
        run(job, (struct tile_piece){0, 0, 2, PANEL / 8, 1});
    else
        for (uint32_t row = 0; row < job->out.rows; row += HALF_TILE)
            for (uint32_t col = 0; col < job->out.cols; col += 16)
                run(job, (struct tile_piece){row, col, HALF_TILE, 2, 1});
}
