/* Integer products: quantised weights against rounded activations, the same for all vector tiers. A tier's
 * header (matmul_avx2.h, matmul_avx512.h, matmul_neon.h) defines, before the file of a family includes this:
 *
 *   SIGNED_OFFSET   what multiply_bytes adds to signed bytes (128 or 0)
 *   multiply_bytes  32 bytes of a group as dot_bytes and panels want them
 *   dot_bytes       8 int32, each the sum of four products of bytes w * x
 *   q8_tile_panel   a panel of any type times a tile: one function for all families (matmul_classes.h)
 *   q8_tile_packed  packed groups times a tile
 *   panel_ready, tile_ready  a panel or a tile that is complete, in an order of its own
 *   LINE_ALONE      both take a single line that is packed without room for others
 *   SUMS_OF_16      dot_bytes has sums of 16 bits on the way: see matmul_classes.h
 *   FILE_STREAMS    matmul_file.h is as fast as memory on such processors, for types that `streams` is said of
 *   PACKED_MOST     as long as there are no more rows it is given packed groups (matmul_packed.h) as they are
 *
 * One or two lines of types that can be repacked go by matmul_file.h as long as they are not. Few lines of the others stream
 * along the weights, too: their sums are in another order than in panels, and take fewer instructions, which these types
 * have too many of already. */
#pragma once

#include "device/cpu/matmul_file.h"
#include "device/cpu/matmul_packed.h"

/* ---- few rows of types that are never repacked ---- */

/* The scale of each 32-bit lane of group g, from c: one for a group of 32, or one for each half. */
ALWAYS_INLINE __m256 lane_scales(bool halves, const __m256 c[2], int g)
{
    if (!halves)
        return lanes_of(c[0], g, g);
    return lanes_of(c[g / 4], 2 * (g % 4), 2 * (g % 4) + 1);
}

/* The scales of a unit times those of one row of activations. */
ALWAYS_INLINE void joint_scales(bool halves, const struct unit_scales *s, const float *x_d, __m256 c[2])
{
    __m256 d = _mm256_loadu_ps(x_d);
    if (halves) {
        c[0] = _mm256_mul_ps(s->a[0], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
        c[1] = _mm256_mul_ps(s->a[1], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
    } else {
        c[0] = _mm256_mul_ps(s->a[0], d);
    }
}

/* A row has this many independent sums, to hide latency. */
enum { SUMS = 4 };

/* acc (rows, SUMS) += the unit whose bytes are at p, times unit u of each row of x. */
ALWAYS_INLINE void unit_dot(uint32_t type, const uint8_t *p, const struct q8_line *x, size_t u, int rows,
                            __m256 (*acc)[SUMS])
{
    const bool halves = unit_traits[type].halves, is_signed = unit_traits[type].is_signed;
    struct unit_scales s;
    __m256 c[FEW][2], centre = _mm256_set1_ps((float)q8_centre(type));
    unit_scales(type, p, &s);
    for (int r = 0; r < rows; r++)
        joint_scales(halves, &s, x[r].d + UNIT_GROUPS * u, c[r]);
#pragma GCC unroll 8
    for (int g = 0; g < UNIT_GROUPS; g++) {
        __m256i w = multiply_bytes(is_signed, unit_group(type, p, g));
        for (int r = 0; r < rows; r++) {
            __m256i dot = dot_bytes(is_signed, w, load_32(x[r].q + UNIT * u + 32 * g));
            acc[r][g % SUMS] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), lane_scales(halves, c[r], g), acc[r][g % SUMS]);
        }
    }
    for (int i = 0; i < (halves ? 2 : 1); i++) {
        if (!unit_traits[type].has_min && q8_centre(type) == 0)
            break;
        __m256 b = unit_traits[type].has_min
                       ? s.b[i]
                       : _mm256_xor_ps(_mm256_mul_ps(s.a[i], centre), _mm256_set1_ps(-0.0f));
        for (int r = 0; r < rows; r++) {
            const float *sum = x[r].sum + (halves ? 2 : 1) * UNIT_GROUPS * u + 8 * i;
            acc[r][i] = _mm256_fmadd_ps(b, _mm256_loadu_ps(sum), acc[r][i]);
        }
    }
}

/* Lines [0, FEW) of x, with zeros behind them up to a whole unit; those past the end repeat the last one. */
static void q8_copy_few(const struct matmul *job, bool halves, struct q8_line x[FEW])
{
    const uint32_t units = (job->k + UNIT - 1) / UNIT, lines = q8_lines(job);
    memset(job->scratch, 0, lines * (size_t)units * Q8_ROW_BYTES);
    for (uint32_t r = 0; r < FEW; r++) {
        x[r] = r < lines ? q8_copy_line(job, r) : x[r - 1];
        if (r < lines)
            q8_sums(halves, x[r].q, x[r].d, job->k / 32, x[r].sum);
    }
}

/* All lines of x, at most rows <= FEW; rows is a constant. */
ALWAYS_INLINE void q8_few(uint32_t type, const struct matmul *job, int rows)
{
    const uint32_t whole = job->k / UNIT, groups = job->k % UNIT / 32;
    const size_t bytes = unit_traits[type].bytes;
    uint8_t rest[UNIT_MOST_BYTES] = {0}; /* of a row that is no whole number of units */
    struct q8_line x[FEW];
    q8_copy_few(job, unit_traits[type].halves, x);
    for (uint32_t n = job->n0; n < job->n1; n++) {
        const uint8_t *row = job->w + n * job->row_bytes;
        __m256 acc[FEW][SUMS];
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < SUMS; i++)
                acc[r][i] = _mm256_setzero_ps();
        if (groups)
            memcpy(rest, row + whole * bytes, groups * bytes / UNIT_GROUPS);
        for (uint32_t u = 0; u < whole + (groups > 0); u++) {
            const uint8_t *p = u < whole ? row + u * bytes : rest;
            ask_ahead(p, STREAM_AHEAD, bytes);
            unit_dot(type, p, x, u, rows, acc);
        }
        float sum[FEW] = {0};
        for (int r = 0; r < rows; r++)
            sum[r] = sum_8(
                _mm256_add_ps(_mm256_add_ps(acc[r][0], acc[r][1]), _mm256_add_ps(acc[r][2], acc[r][3])));
        for (uint32_t r = 0; r < job->m; r++)
            job->y[r * job->y_stride + n] = job->rests ? sum[2 * r] + sum[2 * r + 1] : sum[r];
    }
}

/* ---- many rows: a product of matrices ---- */

/* The sums of the quants of a half group, for each of eight rows: v holds four values of each row. */
ALWAYS_INLINE __m256i q8_half_sums(const __m256i v[4])
{
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i low = _mm256_add_epi16(_mm256_maddubs_epi16(ones, v[0]), _mm256_maddubs_epi16(ones, v[1]));
    __m256i high = _mm256_add_epi16(_mm256_maddubs_epi16(ones, v[2]), _mm256_maddubs_epi16(ones, v[3]));
    return _mm256_madd_epi16(_mm256_add_epi16(low, high), _mm256_set1_epi16(1));
}

/* With rests the sum of a row and its rest is at both. */
ALWAYS_INLINE void q8_store_sums(__m256i sum, __m256 d, int centre, bool rests, uint32_t at,
                                 struct q8_tile *t)
{
    __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), d);
    if (rests)
        scaled = _mm256_add_ps(scaled, _mm256_permute_ps(scaled, 0xb1));
    _mm256_store_si256((__m256i *)t->start[at], _mm256_mullo_epi32(sum, _mm256_set1_epi32(-centre)));
    _mm256_store_ps(t->sum[at], scaled);
}

/* Values [k0, k0+width) of lines [m0, m0+TILE) of x; those past the end repeat the last one. */
static void q8_pack_tile(uint32_t type, const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width,
                         struct q8_tile *t)
{
    const int8_t *q[TILE];
    const float *d[TILE];
    for (uint32_t r = 0; r < TILE; r++) {
        size_t row = least(m0 + r, q8_lines(job) - 1);
        q[r] = job->q8.q + row * job->q8.q_stride + k0;
        d[r] = job->q8.d + row * job->q8.s_stride + k0 / 32;
    }
    for (uint32_t g = 0; g < width / 32; g++) {
        __m256i v[TILE];
        for (uint32_t r = 0; r < TILE; r++)
            v[r] = load_32(q[r] + 32 * g);
        __m256 scale = _mm256_setr_ps(d[0][g], d[1][g], d[2][g], d[3][g], d[4][g], d[5][g], d[6][g], d[7][g]);
        _mm256_store_ps(t->d[g], scale);
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_store_si256((__m256i *)t->q[8 * g + j], v[j]);
        __m256i low = q8_half_sums(v), high = q8_half_sums(v + 4);
        if (unit_traits[type].halves) {
            q8_store_sums(low, scale, q8_centre(type), job->rests, 2 * g, t);
            q8_store_sums(high, scale, q8_centre(type), job->rests, 2 * g + 1, t);
        } else {
            q8_store_sums(_mm256_add_epi32(low, high), scale, q8_centre(type), job->rests, g, t);
        }
    }
    tile_ready(t, width / 32);
}

/* Values [k0, k0+width) of the only line of x, without room for others: it stays in the first cache beside the weights. */
static void q8_pack_line(uint32_t type, const struct matmul *job, uint32_t k0, uint32_t width,
                         struct q8_tile *t)
{
    const bool halves = unit_traits[type].halves;
    const uint32_t groups = width / 32;
    memcpy(t->q, job->q8.q + k0, width);
    memcpy(t->d, job->q8.d + k0 / 32, groups * sizeof(float));
    q8_sums(halves, (const int8_t *)t->q, (const float *)t->d, groups, (float *)t->sum);
    q8_starts(halves, q8_centre(type), (const int8_t *)t->q, groups, (int32_t *)t->start);
}

/* Eight weight rows of one unit, decoded; then they are turned into columns. */
struct q8_unit_rows {
    uint8_t q[8][UNIT];
    float a[8][16], b[8][16];
};

static void q8_turn_scales(const float rows[8][16], int count, float (*panel)[PANEL])
{
    for (int i = 0; i < count; i += 8) {
        __m256 v[8];
        turn_eight(rows, i, v);
        for (int g = 0; g < 8; g++)
            _mm256_store_ps(panel[i + g], v[g]);
    }
}

/* Into columns [col, col+8) of the panel, from group `first` on; parts of a group with a scale: 1 or 2. */
static void q8_turn_unit(const struct q8_unit_rows *s, int parts, uint32_t first, uint32_t col,
                         struct q8_panel *panel)
{
    q8_turn_scales(s->a, 8 * parts, (float(*)[PANEL])(panel->a[first * parts] + col));
    q8_turn_scales(s->b, 8 * parts, (float(*)[PANEL])(panel->b[first * parts] + col));
    for (uint32_t g = 0; g < UNIT_GROUPS; g++) {
        __m256i v[8];
        for (int r = 0; r < 8; r++)
            v[r] = load_32(s->q[r] + 32 * g);
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_store_si256((__m256i *)panel->q[8 * (first + g) + j][col], v[j]);
    }
}

ALWAYS_INLINE void q8_decode_unit(uint32_t type, const uint8_t *p, uint32_t r, struct q8_unit_rows *out)
{
    struct unit_scales s;
    unit_scales(type, p, &s);
    for (int i = 0; i < (unit_traits[type].halves ? 2 : 1); i++) {
        _mm256_storeu_ps(out->a[r] + 8 * i, s.a[i]);
        _mm256_storeu_ps(out->b[r] + 8 * i, unit_traits[type].has_min ? s.b[i] : _mm256_setzero_ps());
    }
#pragma GCC unroll 8
    for (int g = 0; g < UNIT_GROUPS; g++) {
        __m256i v = multiply_bytes(unit_traits[type].is_signed, unit_group(type, p, g));
        _mm256_storeu_si256((__m256i *)(out->q[r] + 32 * g), v);
    }
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL); rows past the end repeat the last one. */
ALWAYS_INLINE void q8_pack_panel(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0,
                                 uint32_t width, struct q8_panel *panel)
{
    const size_t bytes = unit_traits[type].bytes;
    uint8_t rest[UNIT_MOST_BYTES] = {0}; /* of rows that are no whole number of units */
    for (uint32_t col = 0; col < PANEL; col += 8)
        for (uint32_t at = 0; at < width; at += UNIT) {
            struct q8_unit_rows unit;
            const uint32_t groups = least(UNIT, width - at) / 32;
            for (uint32_t r = 0; r < 8; r++) {
                const uint8_t *p =
                    job->w + least(n + col + r, job->n1 - 1) * job->row_bytes + (k0 + at) / UNIT * bytes;
                ask_panel(p, PANEL * job->row_bytes, bytes);
                if (groups < UNIT_GROUPS)
                    p = memcpy(rest, p, groups * bytes / UNIT_GROUPS);
                q8_decode_unit(type, p, r, &unit);
            }
            q8_turn_unit(&unit, unit_traits[type].halves ? 2 : 1, at / 32, col, panel);
        }
}

/* Where a slab of the panel at n is repacked, and whether that is done; NULL: it is not repacked. */
ALWAYS_INLINE uint8_t *q8_packed_slab(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0,
                                      uint8_t **done)
{
    const struct packed *p = job->packed;
    if (!unit_traits[type].low || !p)
        return NULL;
    const size_t at = job->panel + (n - job->n0) / PANEL;
    *done = p->done + at * p->slabs + k0 / SLAB;
    return p->data + at * p->panel_bytes + packed_at(type, k0 / 32);
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL): decoded into `panel`, or as the packed groups that are returned. */
ALWAYS_INLINE const uint8_t *q8_find_panel(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0,
                                           uint32_t width, uint32_t rows, struct q8_panel *panel)
{
    uint8_t *done = NULL, *packed = q8_packed_slab(type, job, n, k0, &done);
    if (packed && *done) {
        if (rows <= PACKED_MOST)
            return packed;
        packed_read(type, packed, width / 32, panel);
        panel_ready(panel, width / 32);
        return NULL;
    }
    q8_pack_panel(type, job, n, k0, width, panel);
    if (packed && job->repack) {
        const uint8_t *block = job->w + n * job->row_bytes + k0 / UNIT * unit_traits[type].bytes;
        packed_write(type, panel, block, job->row_bytes, least(PANEL, job->n1 - n), width / 32, packed);
        *done = 1;
    }
    panel_ready(panel, width / 32);
    return NULL;
}

ALWAYS_INLINE void q8_tile_run(uint32_t type, const struct q8_tile_job *job)
{
    if (unit_traits[type].low && job->packed)
        q8_tile_packed(type, job);
    else
        q8_tile_panel(type, job);
}

/* The panel at n, slab by slab, times all lines of x that are packed. */
ALWAYS_INLINE void q8_panel_run(uint32_t type, const struct matmul *job, const struct block *b, uint32_t n)
{
    struct q8_scratch *s = job->scratch;
    const uint32_t lines = job->rests ? 2 : 1;
    const bool one = q8_one_line(job);
    for (uint32_t k0 = b->k0; k0 < b->k1; k0 += SLAB) {
        const uint32_t width = least(SLAB, b->k1 - k0);
        const struct q8_tile *t = s->tile + (k0 - b->k0) / SLAB * b->tiles;
        const uint8_t *packed = q8_find_panel(type, job, n, k0, width, (b->m1 - b->m0) / lines, &s->panel);
        for (uint32_t m = b->m0; m < b->m1; m += TILE, t++) {
            struct tile_out out = {job->y + m / lines * job->y_stride + n, job->y_stride,
                                   least(TILE, b->m1 - m) / lines, least(PANEL, job->n1 - n), k0 > 0};
            q8_tile_run(type, &(struct q8_tile_job){&s->panel, packed, t, width / 32, b->tiles == 1, one,
                                                    job->rests, out});
        }
    }
}

ALWAYS_INLINE void q8_many(uint32_t type, const struct matmul *job)
{
    struct q8_scratch *s = job->scratch;
    struct matmul by_lines = *job;
    by_lines.m = q8_lines(job);
    struct block b = block_first(&by_lines, TILE, SLAB, TILES);
    for (; block_more(&by_lines, &b); block_next(&by_lines, &b)) {
        struct q8_tile *t = s->tile;
        for (uint32_t k0 = b.k0; k0 < b.k1; k0 += SLAB)
            for (uint32_t m = b.m0; m < b.m1; m += TILE)
                if (q8_one_line(job))
                    q8_pack_line(type, job, k0, least(SLAB, b.k1 - k0), t++);
                else
                    q8_pack_tile(type, job, m, k0, least(SLAB, b.k1 - k0), t++);
        for (uint32_t n = job->n0; n < job->n1; n += PANEL)
            q8_panel_run(type, job, &b, n);
    }
}

/* Many rows; and few ones where weights are repacked already, or here, or where only panels have the bits that are
 * wanted. */
ALWAYS_INLINE bool q8_by_panels(uint32_t type, const struct matmul *job)
{
    const struct packed *p = job->packed;
    if (unit_traits[type].low)
        return q8_lines(job) > FILE_LINES || (p && (job->repack || p->done[job->panel * p->slabs]));
    return job->fixed || q8_lines(job) > FEW;
}

ALWAYS_INLINE void matmul_q8(uint32_t type, const struct matmul *job)
{
    const uint32_t lines = q8_lines(job);
    if (q8_by_panels(type, job))
        q8_many(type, job);
    else if (unit_traits[type].low && job->rests)
        q8_file(type, job, 2, 2);
    else if (unit_traits[type].low)
        lines == 1 ? q8_file(type, job, 1, 1) : q8_file(type, job, 2, 1);
    else if (lines == 1)
        q8_few(type, job, 1);
    else
        lines == 2 ? q8_few(type, job, 2) : q8_few(type, job, FEW);
}

/* A family of types: the functions, and their places in the table. */
#define MATMUL_OF(TYPE, name)                                                                                \
    static void matmul_##name(const struct matmul *job)                                                      \
    {                                                                                                        \
        matmul_q8(DTYPE_##TYPE, job);                                                                        \
    }
#define MATMUL_FILL(TYPE, name) k->matmul_q8[DTYPE_##TYPE] = matmul_##name;
