/* Products of the AVX2 tier: bytes are multiplied in pairs to 16 bits, and summed there as long as
 * they fit. A panel is taken in two halves of eight weight rows, a tile in two halves of four rows. */
#include "device/cpu/tiers.h"
#include "device/cpu/matmul_panel.h"

/* Signed weights give their sign to the activations instead of being raised: 255 * 127 * 2 would not
 * fit 16 bits. */
enum { SIGNED_OFFSET = 0, HALF_TILE = TILE / 2 };

ALWAYS_INLINE __m256i multiply_bytes(bool is_signed, __m256i w)
{
    (void)is_signed;
    return w;
}

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

/* How many sums of pairs fit 16 bits: 2 * 127 * most * n < 32768, for bytes up to `most`. */
ALWAYS_INLINE int pairs_depth(uint32_t type)
{
    switch (type) {
    case DTYPE_Q4_0: /* up to 15 */
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return 8;
    default: /* up to 31; Q6_K has 63, Q2_K and Q3_K sums of four only, signed ones no room at all */
        return 4;
    }
}

/* Columns [col, col+8) of rows [row, row+HALF_TILE). */
ALWAYS_INLINE __m256i columns_mask(const struct tile_out *out, uint32_t col)
{
    int cols = (int)out->cols - (int)col;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(cols), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS_INLINE void tile_load(const struct tile_out *out, uint32_t row, uint32_t col, __m256 acc[HALF_TILE])
{
    for (uint32_t r = 0; r < HALF_TILE; r++)
        acc[r] = _mm256_setzero_ps();
    for (uint32_t r = 0; r < HALF_TILE; r++)
        if (out->add && row + r < out->rows && col < out->cols)
            acc[r] = _mm256_maskload_ps(out->y + (row + r) * out->stride + col, columns_mask(out, col));
}

ALWAYS_INLINE void tile_store(const struct tile_out *out, uint32_t row, uint32_t col,
                              const __m256 acc[HALF_TILE])
{
    for (uint32_t r = 0; r < HALF_TILE; r++)
        if (row + r < out->rows && col < out->cols)
            _mm256_maskstore_ps(out->y + (row + r) * out->stride + col, columns_mask(out, col), acc[r]);
}

/* A quarter of a tile: HALF_TILE rows from `row` on, eight columns from `col` on. */
struct quarter {
    const struct q8_panel *p;
    const struct q8_tile *t;
    uint32_t groups, row, col;
    const struct tile_out *out;
};

/* dot[r] = the products of `fours` steps of four values, from step j on. */
ALWAYS_INLINE void quarter_dots(const struct quarter *q, uint32_t j, int fours, int most, bool is_signed,
                                __m256i *dot)
{
    const int depth = most < fours ? most : fours;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < fours; i += depth) {
        __m256i pairs[HALF_TILE];
#pragma GCC unroll 8
        for (int n = 0; n < depth; n++) {
            __m256i w = _mm256_load_si256((const __m256i *)q->p->q[j + i + n][q->col]);
            for (int r = 0; r < HALF_TILE; r++) {
                __m256i x = _mm256_set1_epi32((int)load_u32(q->t->q[j + i + n][q->row + r]));
                __m256i two = dot_pairs(is_signed, w, x);
                pairs[r] = n ? _mm256_add_epi16(pairs[r], two) : two;
            }
        }
        for (int r = 0; r < HALF_TILE; r++) {
            __m256i sum = _mm256_madd_epi16(pairs[r], ones);
            dot[r] = i ? _mm256_add_epi32(dot[r], sum) : sum;
        }
    }
}

/* The same code for all types that these arguments, which are constants, do not tell apart. */
ALWAYS_INLINE void q8_quarter(const struct quarter *q, int depth, bool is_signed, int parts, bool has_min)
{
    __m256 acc[HALF_TILE];
    tile_load(q->out, q->row, q->col, acc);
    for (uint32_t g = 0; g < q->groups; g++) {
        __m256 part[HALF_TILE];
        for (int i = 0; i < parts; i++) {
            uint32_t at = parts * g + i;
            __m256i dot[HALF_TILE];
            quarter_dots(q, 8 * g + 4 * i, 8 / parts, depth, is_signed, dot);
            __m256 a = _mm256_load_ps(q->p->a[at] + q->col), b = _mm256_load_ps(q->p->b[at] + q->col);
            for (int r = 0; r < HALF_TILE; r++) {
                if (!has_min && !is_signed)
                    dot[r] = _mm256_add_epi32(dot[r], _mm256_set1_epi32(q->t->start[at][q->row + r]));
                __m256 f = _mm256_cvtepi32_ps(dot[r]);
                part[r] = i ? _mm256_fmadd_ps(f, a, part[r]) : _mm256_mul_ps(f, a);
                if (has_min)
                    acc[r] = _mm256_fmadd_ps(b, _mm256_set1_ps(q->t->sum[at][q->row + r]), acc[r]);
            }
        }
        for (int r = 0; r < HALF_TILE; r++)
            acc[r] = _mm256_fmadd_ps(part[r], _mm256_set1_ps(q->t->d[g][q->row + r]), acc[r]);
    }
    tile_store(q->out, q->row, q->col, acc);
}

static void q8_quarter_run(uint32_t type, const struct quarter *q)
{
    const bool has_min = unit_has_min(type);
    if (unit_signed(type))
        unit_halves(type) ? q8_quarter(q, 1, true, 2, false) : q8_quarter(q, 1, true, 1, false);
    else if (type == DTYPE_Q2_K)
        q8_quarter(q, 8, false, 2, true);
    else if (unit_halves(type))
        q8_quarter(q, 2, false, 2, false);
    else if (pairs_depth(type) == 8)
        has_min ? q8_quarter(q, 8, false, 1, true) : q8_quarter(q, 8, false, 1, false);
    else
        has_min ? q8_quarter(q, 4, false, 1, true) : q8_quarter(q, 4, false, 1, false);
}

static void q8_tile_run(uint32_t type, const struct q8_tile_job *job)
{
    for (uint32_t row = 0; row < job->out.rows; row += HALF_TILE)
        for (uint32_t col = 0; col < job->out.cols; col += 8)
            q8_quarter_run(type, &(struct quarter){job->panel, job->tile, job->groups, row, col, &job->out});
}

/* HALF_TILE rows and 16 columns at a time. */
ALWAYS_INLINE void float_tile_run(const struct float_panel *p, const struct float_tile *t, uint32_t width,
                                  const struct tile_out *out)
{
    for (uint32_t row = 0; row < out->rows; row += HALF_TILE)
        for (uint32_t col = 0; col < out->cols; col += 16) {
            __m256 left[HALF_TILE], right[HALF_TILE];
            tile_load(out, row, col, left);
            tile_load(out, row, col + 8, right);
            for (uint32_t i = 0; i < width; i++) {
                __m256 w0 = _mm256_load_ps(p->w[i] + col), w1 = _mm256_load_ps(p->w[i] + col + 8);
                for (int r = 0; r < HALF_TILE; r++) {
                    __m256 x = _mm256_set1_ps(t->x[i][row + r]);
                    left[r] = _mm256_fmadd_ps(w0, x, left[r]);
                    right[r] = _mm256_fmadd_ps(w1, x, right[r]);
                }
            }
            tile_store(out, row, col, left);
            tile_store(out, row, col + 8, right);
        }
}

#include "device/cpu/matmul_float.h"
#include "device/cpu/matmul_q8.h"

void matmul_avx2(struct kernels *k)
{
    matmul_q8_fill(k);
    k->matmul_float = matmul_float;
    k->scratch_bytes = MATMUL_SCRATCH;
}
