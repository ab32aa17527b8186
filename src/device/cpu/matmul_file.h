/* One or two lines of activations times weights in the file's layout, eight weight rows at a time, for the types that can
 * be repacked. Every step of a sum is one of a product by panels, so a row has the same bits whether its weights are
 * repacked or not, and whatever is beside it.
 *
 * The eight rows are decoded one after the other, a group of 32 values each. Eight registers of products, of a row each, are
 * added up to one with a row in each lane; there the scales of the eight rows are, too:
 *
 *     row 0   | 4 products | 4 products | ... x8        lane 0   lane 1         lane 7
 *     ...                                          ->  | row 0 | row 1 | ... | row 7 |   * a * d  ->  acc
 *     row 7   | 4 products | 4 products | ... x8
 */
#pragma once

#include "device/cpu/matmul_lines.h"

/* Lines at most. */
enum { FILE_LINES = 2 };

/* All lines of x, with what this type's sums want. */
static void q8_copy_lines(const struct matmul *job, bool halves, bool has_min, int centre,
                          struct q8_line x[FILE_LINES])
{
    const uint32_t groups = job->k / 32, lines = q8_lines(job), parts = halves ? 2 : 1;
    for (uint32_t r = 0; r < lines; r++) {
        x[r] = q8_copy_line(job, r);
        if (has_min)
            q8_sums(halves, x[r].q, x[r].d, groups, x[r].sum);
        else
            q8_starts(halves, centre, x[r].q, groups, x[r].start);
    }
    for (uint32_t i = 0; has_min && job->rests && i < parts * groups; i++)
        x[0].sum[i] += x[1].sum[i];
}

/* Eight of the numbers from `from` on of each of eight rows -> a register of eight rows for each number. */
ALWAYS_INLINE void turn_eight(const float rows[8][16], int from, __m256 to[8])
{
    __m256i v[8];
    for (int r = 0; r < 8; r++)
        v[r] = load_32(rows[r] + from);
    transpose_8(v);
    for (int i = 0; i < 8; i++)
        to[i] = _mm256_castsi256_ps(v[i]);
}

/* Scales and minima of Q4_K and Q5_K, whose blocks begin with d, dmin and twelve bytes of six bits (codec/block.h draws
 * them): a row in each lane all the way. */
ALWAYS_INLINE void eight_scales_q4_k(const uint8_t *const p[8], __m256 a[8], __m256 b[8])
{
    const __m256i six = _mm256_set1_epi32(0x3f3f3f3f), top = _mm256_set1_epi32(0x30303030),
                  four = _mm256_set1_epi32(0x0f0f0f0f), byte = _mm256_set1_epi32(255),
                  halves = _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i v[4], t[4];
    for (int r = 0; r < 4; r++)
        v[r] = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)p[4 + r]),
                                _mm_loadu_si128((const __m128i *)p[r]));
    for (int i = 0; i < 2; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    const __m256i u0 = _mm256_unpackhi_epi64(t[0], t[2]), u1 = _mm256_unpacklo_epi64(t[1], t[3]),
                  u2 = _mm256_unpackhi_epi64(t[1], t[3]);
    const __m256i scales[2] = {
        _mm256_and_si256(u0, six),
        _mm256_or_si256(_mm256_and_si256(u2, four), _mm256_and_si256(_mm256_srli_epi32(u0, 2), top))};
    const __m256i minima[2] = {_mm256_and_si256(u1, six),
                               _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(u2, 4), four),
                                               _mm256_and_si256(_mm256_srli_epi32(u1, 2), top))};
    /* d of four rows and dmin of four rows, twice -> d of eight, dmin of eight */
    const __m256i heads =
        _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_unpacklo_epi64(t[0], t[2]), halves), 0xd8);
    const __m256 d = _mm256_cvtph_ps(_mm256_castsi256_si128(heads)),
                 min = _mm256_xor_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(heads, 1)),
                                     _mm256_set1_ps(-0.0f));
    for (int g = 0; g < 8; g++) {
        const __m256i scale = _mm256_and_si256(_mm256_srli_epi32(scales[g / 4], 8 * (g % 4)), byte),
                      minimum = _mm256_and_si256(_mm256_srli_epi32(minima[g / 4], 8 * (g % 4)), byte);
        a[g] = _mm256_mul_ps(_mm256_cvtepi32_ps(scale), d);
        b[g] = _mm256_mul_ps(_mm256_cvtepi32_ps(minimum), min);
    }
}

/* The scales and minima of a unit of eight weight rows, which are at p: by groups, or halves of them, a row in each lane. */
ALWAYS_INLINE void eight_scales(uint32_t type, const uint8_t *const p[8], __m256 a[16], __m256 b[16])
{
    const int registers = unit_traits[type].halves ? 2 : 1;
    float rows[2][8][16];
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
        eight_scales_q4_k(p, a, b);
        return;
    }
    for (int r = 0; r < 8; r++) {
        struct unit_scales s;
        unit_scales(type, p[r], &s);
        for (int i = 0; i < registers; i++) {
            _mm256_storeu_ps(rows[0][r] + 8 * i, s.a[i]);
            if (unit_traits[type].has_min)
                _mm256_storeu_ps(rows[1][r] + 8 * i, s.b[i]);
        }
    }
    for (int i = 0; i < registers; i++) {
        turn_eight(rows[0], 8 * i, a + 8 * i);
        if (unit_traits[type].has_min)
            turn_eight(rows[1], 8 * i, b + 8 * i);
    }
}

/* The sums of the lower and of the upper four lanes of eight registers. */
ALWAYS_INLINE void eight_sums(const __m256i v[8], __m256i half[2])
{
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3])),
            high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    half[0] = _mm256_permute2x128_si256(low, high, 0x20);
    half[1] = _mm256_permute2x128_si256(low, high, 0x31);
}

/* Group g of eight weight rows times a group of each line: the sums of its halves, for each of the eight. */
ALWAYS_INLINE void eight_dots(uint32_t type, const uint8_t *const p[8], int g, const struct q8_line *x,
                              size_t at, int lines, __m256i half[FILE_LINES][2])
{
    const bool is_signed = unit_traits[type].is_signed;
    __m256i dot[FILE_LINES][8];
    for (int r = 0; r < 8; r++) {
        const __m256i w = multiply_bytes(is_signed, unit_group(type, p[r], g));
        for (int i = 0; i < lines; i++)
            dot[i][r] = dot_bytes(is_signed, w, load_32(x[i].q + at));
    }
    for (int i = 0; i < lines; i++)
        eight_sums(dot[i], half[i]);
}

/* acc += group g of eight weight rows, whose integers are `half`, as a tile's group is added to its sums: the same steps. */
ALWAYS_INLINE void eight_add(uint32_t type, const __m256 *a, const __m256 *b, const struct q8_line *x,
                             uint32_t g, int per, __m256i half[FILE_LINES][2], __m256 *acc)
{
    const int parts = unit_traits[type].halves ? 2 : 1;
    __m256 part = _mm256_setzero_ps();
    for (int n = 0; n < parts; n++) {
        const uint32_t at = parts * g + n;
        __m256i dot[2];
        for (int i = 0; i < per; i++) {
            dot[i] = parts == 2 ? half[i][n] : _mm256_add_epi32(half[i][0], half[i][1]);
            if (!unit_traits[type].has_min && q8_centre(type))
                dot[i] = _mm256_add_epi32(dot[i], _mm256_set1_epi32(x[i].start[at]));
        }
        if (per == 2) /* Q8_REST */
            dot[0] = _mm256_add_epi32(_mm256_slli_epi32(dot[0], 8), dot[1]);
        const __m256 f = _mm256_cvtepi32_ps(dot[0]);
        part = n ? _mm256_fmadd_ps(f, a[n], part) : _mm256_mul_ps(f, a[0]);
        if (unit_traits[type].has_min)
            *acc = _mm256_fmadd_ps(b[n], _mm256_set1_ps(x[0].sum[at]), *acc);
    }
    *acc = _mm256_fmadd_ps(part, _mm256_set1_ps(x[per - 1].d[g]), *acc);
}

/* acc (lines / per) += groups [0, groups) of unit u of eight weight rows, which are at p, times all lines. A row has `per`
 * lines. */
ALWAYS_INLINE void eight_unit(uint32_t type, const uint8_t *const p[8], const struct q8_line *x, uint32_t u,
                              uint32_t groups, int lines, int per, __m256 acc[FILE_LINES])
{
    const int parts = unit_traits[type].halves ? 2 : 1;
    __m256 a[16], b[16];
    eight_scales(type, p, a, b);
#pragma GCC unroll 8
    for (int g = 0; g < UNIT_GROUPS; g++) {
        __m256i half[FILE_LINES][2];
        if ((uint32_t)g >= groups)
            break;
        eight_dots(type, p, g, x, UNIT * (size_t)u + 32 * (size_t)g, lines, half);
        for (int r = 0; r < lines / per; r++)
            eight_add(type, a + parts * g, b + parts * g, x + per * r, UNIT_GROUPS * u + g, per,
                      half + per * r, acc + r);
    }
}

/* Weight rows in the file's layout, eight at a time, times the `lines` lines of x, of which a row has `per`; both are
 * constants. Every step of a sum is one of a panel's: the bits are the same. */
ALWAYS_INLINE void q8_file(uint32_t type, const struct matmul *job, int lines, int per)
{
    const uint32_t whole = job->k / UNIT, groups = job->k % UNIT / 32;
    const size_t bytes = unit_traits[type].bytes, eight = 8 * job->row_bytes;
    /* the same place of eight rows to come; also behind the last row, where the worker's next piece begins */
    const size_t ahead = (STREAM_AHEAD + eight - 1) / eight * eight;
    uint8_t rest[8][UNIT_MOST_BYTES]; /* of rows that are no whole number of units */
    struct q8_line x[FILE_LINES];
    q8_copy_lines(job, unit_traits[type].halves, unit_traits[type].has_min, q8_centre(type), x);
    if (groups)
        memset(rest, 0, sizeof rest);
    for (uint32_t n = job->n0; n < job->n1; n += 8) {
        const uint8_t *p[8];
        __m256 acc[FILE_LINES];
        for (int r = 0; r < FILE_LINES; r++)
            acc[r] = _mm256_setzero_ps();
        for (uint32_t r = 0; r < 8; r++)
            p[r] = job->w + least(n + r, job->n1 - 1) * job->row_bytes;
        for (uint32_t u = 0; u < whole; u++) {
            eight_unit(type, p, x, u, UNIT_GROUPS, lines, per, acc);
            for (int r = 0; r < 8; r++) {
                ask_ahead(p[r], ahead, bytes);
                p[r] += bytes;
            }
        }
        if (groups) {
            for (int r = 0; r < 8; r++)
                p[r] = memcpy(rest[r], p[r], groups * bytes / UNIT_GROUPS);
            eight_unit(type, p, x, whole, groups, lines, per, acc);
        }
        for (uint32_t r = 0; r < job->m; r++) {
            float y[8];
            _mm256_storeu_ps(y, acc[r]);
            memcpy(job->y + r * job->y_stride + n, y, least(job->n1 - n, 8) * sizeof *y);
        }
    }
}
