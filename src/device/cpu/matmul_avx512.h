/* Tiles of the AVX-512 tier: VNNI multiplies bytes, 16 weight rows in the lanes of a register. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* VNNI multiplies unsigned by signed bytes, so that signed weights are raised. */
enum {
    SIGNED_OFFSET = 128,
    PACKED_MOST = 32,
    LINE_ALONE = 1,
    SUMS_OF_16 = 0,
    FILE_STREAMS = 1,
    LINE_AHEAD = 512
};

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    return is_signed ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}

#include "device/cpu/matmul_packed.h"
#include "device/cpu/matmul_ready.h"

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

/* With rests the integers of as many rows fit the registers, those of types with halves of half as many. */
#define RESTS_AT_ONCE(type) (unit_traits[type].halves ? AT_ONCE / 2 : AT_ONCE)

/* Rows [row, row + rows) of a tile of `lanes` lines, of one line or two; all but row are constants. */
struct avx512_piece {
    uint32_t row;
    int rows, lines, lanes;
};

ALWAYS_INLINE __mmask16 columns_mask(const struct tile_out *out, int v)
{
    int cols = (int)out->cols - 16 * v;
    return (__mmask16)(cols >= 16 ? 0xffff : cols <= 0 ? 0 : 0xffff >> (16 - cols));
}

ALWAYS_INLINE void tile_load(const struct tile_out *out, struct avx512_piece p, __m512 acc[TILE][WIDE])
{
    for (int r = 0; r < p.rows; r++)
        for (int v = 0; v < WIDE; v++)
            acc[r][v] = _mm512_setzero_ps();
    for (int r = 0; r < p.rows && out->add; r++)
        for (int v = 0; v < WIDE && p.row + r < out->rows; v++)
            acc[r][v] =
                _mm512_maskz_loadu_ps(columns_mask(out, v), out->y + (p.row + r) * out->stride + 16 * v);
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, struct avx512_piece p, __m512 acc[TILE][WIDE])
{
    for (int r = 0; r < p.rows; r++)
        for (int v = 0; v < WIDE && p.row + r < out->rows; v++)
            _mm512_mask_storeu_ps(out->y + (p.row + r) * out->stride + 16 * v, columns_mask(out, v),
                                  acc[r][v]);
}

/* Where a tile's weights come from: the panel, or, if it has bytes, the packed group itself: they are then decoded in
 * registers, at each use. */
struct avx512_source {
    const struct q8_panel *panel;
    struct packed_group packed;
    bool alone;                /* for a single line, which leaves registers to keep a head's numbers in: */
    __m512 d[WIDE], min[WIDE]; /* as floats */
};

ALWAYS_INLINE __m512i wide_levels(uint32_t type, __m512i codes)
{
    const __m256i all = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4,
                                         5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_shuffle_epi8(_mm512_broadcast_i64x4(packed_levels(type, all)),
                               codes); /* a constant table */
}

/* Bits [at, at + bits) of every byte, moved to `to`. */
ALWAYS_INLINE __m512i bits_to(__m512i v, int at, int bits, int to)
{
    const __m512i moved =
        at > to ? _mm512_srli_epi16(v, (unsigned)(at - to)) : _mm512_slli_epi16(v, (unsigned)(to - at));
    return _mm512_and_si512(at == to ? v : moved, _mm512_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* Four i of group g, of the weight rows of register v: packed_four, wider. */
ALWAYS_INLINE __m512i source_four(uint32_t type, const struct avx512_source *s, uint32_t g, int i, int v)
{
    if (!s->packed.bytes)
        return _mm512_load_si512(s->panel->q[8 * g + i][16 * v]);
    const int low = unit_traits[type].low, share = 8 / low, high = unit_traits[type].high;
    const uint8_t *at = s->packed.bytes + 64 * v, *above = at + low * PACKED_FOURS;
    __m512i w = _mm512_loadu_si512(at + i / share * PACKED_FOURS);
    if (low < 8)
        w = bits_to(w, i % share * low, low, 0);
    if (high == 1)
        w = _mm512_or_si512(w, bits_to(_mm512_loadu_si512(above), i, 1, low));
    else if (high == 2)
        w = _mm512_or_si512(w,
                            bits_to(_mm512_loadu_si512(above + i / 4 * PACKED_FOURS), 2 * (i % 4), 2, low));
    return unit_traits[type].coded ? wide_levels(type, w) : w;
}

ALWAYS_INLINE __m512 wide_halves(const uint8_t *p, int v)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32 * v)));
}

/* packed_scaled, wider; the fp16 at d may be floats already. */
ALWAYS_INLINE __m512 wide_scaled(uint32_t type, const uint8_t *p, const uint8_t *d, const __m512 *floats,
                                 int upper, int v)
{
    __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p + 16 * v)));
    if (type == DTYPE_Q2_K)
        s = _mm512_and_si512(upper ? _mm512_srli_epi32(s, 4) : s, _mm512_set1_epi32(15));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(s), floats ? floats[v] : wide_halves(d, v));
}

/* To the next group. A single line takes so little time for one that the processor's own prefetch is ahead of it already:
 * more than a little beyond that would be in its way. */
ALWAYS_INLINE void source_step(uint32_t type, struct avx512_source *s, struct packed_walk *walk, uint32_t g)
{
    if (s->alone)
        ask_panel(walk->next, LINE_AHEAD, packed_group_bytes(type));
    s->packed = packed_step(type, walk, g);
    if (!unit_traits[type].headed || !s->alone || g % UNIT_GROUPS)
        return;
    for (int v = 0; v < WIDE; v++) {
        s->d[v] = wide_halves(s->packed.d, v);
        if (unit_traits[type].has_min)
            s->min[v] = wide_halves(s->packed.min, v);
    }
}

/* Scale and minimum number `at` of the panel, the i-th of the group: packed_a and packed_b, wider. */
ALWAYS_INLINE __m512 source_a(uint32_t type, const struct avx512_source *s, uint32_t at, int i, int v)
{
    const struct packed_group *p = &s->packed;
    if (!p->bytes)
        return _mm512_load_ps(s->panel->a[at] + 16 * v);
    if (unit_traits[type].headed)
        return wide_scaled(type, p->scales + i * PANEL, p->d, s->alone ? s->d : NULL, 0, v);
    if (type == DTYPE_MXFP4) {
        __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p->scales + 32 * v)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    }
    return wide_halves(p->scales, v);
}

ALWAYS_INLINE __m512 source_b(uint32_t type, const struct avx512_source *s, uint32_t at, int i, int v)
{
    const struct packed_group *p = &s->packed;
    if (!p->bytes)
        return _mm512_load_ps(s->panel->b[at] + 16 * v);
    if (unit_traits[type].headed)
        return wide_scaled(type, p->scales + (type == DTYPE_Q2_K ? i : 1) * PANEL, p->min,
                           s->alone ? s->min : NULL, 1, v);
    return wide_halves(p->scales + PACKED_HALVES, v);
}

/* A single line's products of group g with nibbles: the upper ones stay where they are, and are multiplied by 16 so. */
ALWAYS_INLINE void tile_dot_nibbles(const struct avx512_source *s, const int8_t *x, __m512i dot[WIDE])
{
    __m512i upper[WIDE];
    for (int v = 0; v < WIDE; v++)
        upper[v] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        for (int v = 0; v < WIDE; v++) {
            const __m512i w = _mm512_loadu_si512(s->packed.bytes + j * PACKED_FOURS + 64 * v);
            dot[v] = _mm512_dpbusd_epi32(dot[v], _mm512_and_si512(w, _mm512_set1_epi8(0x0f)),
                                         all_lanes(x + 8 * j));
            upper[v] = _mm512_dpbusd_epi32(upper[v], _mm512_and_si512(w, _mm512_set1_epi8((char)0xf0)),
                                           all_lanes(x + 8 * j + 4));
        }
    for (int v = 0; v < WIDE; v++)
        dot[v] = _mm512_add_epi32(dot[v], _mm512_srai_epi32(upper[v], 4));
}

/* The products of fours [from, to) of group g, each row's with its rest in one integer: that begins as `at` says. */
ALWAYS_INLINE void tile_dots(uint32_t type, const struct avx512_source *s, const struct q8_tile *t,
                             struct avx512_piece p, uint32_t g, int from, int to, const int32_t *start,
                             __m512i dot[TILE][WIDE])
{
    const int lines = p.rows * p.lines;
    for (int r = 0; r < lines; r++)
        for (int v = 0; v < WIDE; v++)
            dot[r][v] =
                unit_traits[type].has_min ? _mm512_setzero_si512() : all_lanes(start + p.lines * p.row + r);
    if (s->alone && s->packed.bytes && unit_traits[type].low == 4 && !unit_traits[type].high &&
        !unit_traits[type].coded && !unit_traits[type].halves) {
        tile_dot_nibbles(s, tile_four(t, 1, 8 * g, 0), dot[0]);
        return;
    }
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        __m512i w[WIDE];
        for (int v = 0; v < WIDE; v++)
            w[v] = source_four(type, s, g, j, v);
        for (int r = 0; r < lines; r++) {
            __m512i x = all_lanes(tile_four(t, p.lanes, 8 * g + j, p.lines * p.row + r));
            for (int v = 0; v < WIDE; v++)
                dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], w[v], x);
        }
    }
    for (int r = 0; r < p.rows && p.lines == 2; r++)
        for (int v = 0; v < WIDE; v++) /* Q8_REST */
            dot[r][v] = _mm512_add_epi32(_mm512_slli_epi32(dot[2 * r][v], 8), dot[2 * r + 1][v]);
}

/* The i-th scale's part of group g: part = a * dot, and what minima add to acc. */
ALWAYS_INLINE void tile_part(uint32_t type, const struct avx512_source *s, const struct q8_tile *t,
                             struct avx512_piece p, uint32_t g, int i, __m512 part[TILE][WIDE],
                             __m512 acc[TILE][WIDE])
{
    const int parts = unit_traits[type].halves ? 2 : 1, fours = 8 / parts;
    const uint32_t at = parts * g + i;
    __m512i dot[TILE][WIDE];
    tile_dots(type, s, t, p, g, fours * i, fours * (i + 1), tile_start(t, p.lanes, at), dot);
    for (int v = 0; v < WIDE; v++) {
        __m512 a = source_a(type, s, at, i, v);
        for (int r = 0; r < p.rows; r++) {
            __m512 f = _mm512_cvtepi32_ps(dot[r][v]);
            part[r][v] = i ? _mm512_fmadd_ps(f, a, part[r][v]) : _mm512_mul_ps(f, a);
        }
    }
    for (int v = 0; v < WIDE && unit_traits[type].has_min; v++) {
        const __m512 b = source_b(type, s, at, i, v);
        const float *sum = tile_sum(t, p.lanes, at);
        for (int r = 0; r < p.rows; r++)
            acc[r][v] = _mm512_fmadd_ps(b, _mm512_set1_ps(sum[p.lines * (p.row + r)]), acc[r][v]);
    }
}

ALWAYS_INLINE void q8_tile_piece(uint32_t type, const struct q8_tile_job *job, bool packed,
                                 struct avx512_piece p)
{
    struct avx512_source s = {.panel = job->panel, .alone = p.lanes == 1};
    struct packed_walk walk = {.next = job->packed, .first = p.row == 0 && !s.alone};
    __m512 acc[TILE][WIDE], part[TILE][WIDE] = {0};
    tile_load(&job->out, p, acc);
    for (uint32_t g = 0; g < job->groups; g++) {
        /* the last line's: what the integers are in units of */
        const float *d = tile_d(job->tile, p.lanes, g) + p.lines - 1;
        if (packed)
            source_step(type, &s, &walk, g);
        for (int i = 0; i < (unit_traits[type].halves ? 2 : 1); i++)
            tile_part(type, &s, job->tile, p, g, i, part, acc);
        for (int r = 0; r < p.rows; r++)
            for (int v = 0; v < WIDE; v++)
                acc[r][v] = _mm512_fmadd_ps(part[r][v], _mm512_set1_ps(d[p.lines * (p.row + r)]), acc[r][v]);
    }
    tile_store(&job->out, p, acc);
}

ALWAYS_INLINE void q8_tile_class(uint32_t type, const struct q8_tile_job *job)
{
    if (job->rests)
        for (uint32_t row = 0; row < job->out.rows; row += RESTS_AT_ONCE(type))
            q8_tile_piece(type, job, false, (struct avx512_piece){row, RESTS_AT_ONCE(type), 2, TILE});
    else if (job->one)
        q8_tile_piece(type, job, false, (struct avx512_piece){0, 1, 1, 1});
    else
        for (uint32_t row = 0; row < job->out.rows; row += AT_ONCE)
            q8_tile_piece(type, job, false, (struct avx512_piece){row, AT_ONCE, 1, TILE});
}

#define q8_tile_panel q8_tile_panel_avx512
void q8_tile_panel(uint32_t type, const struct q8_tile_job *job);

/* Packed groups have the code of their type. A tile that is alone waits for memory, and goes through it once; with others
 * it waits for registers. */
ALWAYS_INLINE void q8_tile_packed_lines(uint32_t type, const struct q8_tile_job *job)
{
    if (job->one)
        q8_tile_piece(type, job, true, (struct avx512_piece){0, 1, 1, 1});
    else if (job->out.rows <= 2)
        q8_tile_piece(type, job, true, (struct avx512_piece){0, 2, 1, TILE});
    else if (job->out.rows > AT_ONCE && job->alone)
        q8_tile_piece(type, job, true, (struct avx512_piece){0, TILE, 1, TILE});
    else
        for (uint32_t row = 0; row < job->out.rows; row += AT_ONCE)
            q8_tile_piece(type, job, true, (struct avx512_piece){row, AT_ONCE, 1, TILE});
}

ALWAYS_INLINE void q8_tile_packed_rests(uint32_t type, const struct q8_tile_job *job)
{
    if (job->out.rows == 1)
        q8_tile_piece(type, job, true, (struct avx512_piece){0, 1, 2, TILE});
    else
        for (uint32_t row = 0; row < job->out.rows; row += RESTS_AT_ONCE(type))
            q8_tile_piece(type, job, true, (struct avx512_piece){row, RESTS_AT_ONCE(type), 2, TILE});
}

ALWAYS_INLINE void q8_tile_packed(uint32_t type, const struct q8_tile_job *job)
{
    job->rests ? q8_tile_packed_rests(type, job) : q8_tile_packed_lines(type, job);
}
