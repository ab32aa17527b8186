/* Integer products: quantised weights against rounded activations, the same for both vector tiers.
 * A tier's file includes matmul_panel.h and defines, before it includes this one:
 *
 *   SIGNED_OFFSET   what multiply_bytes adds to signed bytes (128 or 0)
 *   multiply_bytes  32 bytes of a group as dot_bytes and panels want them
 *   dot_bytes       8 int32, each the sum of four products of bytes w * x
 *   q8_tile_run     a panel times a tile
 *
 * Few rows of activations stream along the weights as they lie; more go through panels. Both use the
 * same quants and scales: they differ by the order of float additions alone. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* What to subtract from the bytes that are multiplied. */
ALWAYS_INLINE int q8_centre(uint32_t type)
{
    return unit_signed(type) ? SIGNED_OFFSET : unit_offset(type);
}

/* ---- few rows: memory is the wall ---- */

enum { FEW = 4 }; /* rows of activations that share one pass over the weights */

/* One row of activations, from some unit on. sum = d * sum of the quants, by 32 or by 16. */
struct q8_row {
    const int8_t *q;
    const float *d, *sum;
};

static void q8_sums(bool halves, const int8_t *q, const float *d, uint32_t groups, float *sum)
{
    const __m256i ones = _mm256_set1_epi8(1), ones_16 = _mm256_set1_epi16(1);
    for (uint32_t g = 0; g < groups; g++) {
        __m256i v = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, load_32(q + 32 * (size_t)g)), ones_16);
        v = _mm256_hadd_epi32(v, v);
        v = _mm256_hadd_epi32(v, v);
        int low = _mm256_cvtsi256_si32(v), high = _mm256_extract_epi32(v, 4);
        if (halves) {
            sum[2 * g] = d[g] * (float)low;
            sum[2 * g + 1] = d[g] * (float)high;
        } else {
            sum[g] = d[g] * (float)(low + high);
        }
    }
}

/* The scale of each 32-bit lane of group g, from c: one for a group of 32, or one for each half. */
ALWAYS_INLINE __m256 lane_scales(bool halves, const __m256 c[2], int g)
{
    if (!halves)
        return _mm256_permutevar8x32_ps(c[0], _mm256_set1_epi32(g));
    int i = 2 * (g % 4);
    return _mm256_permutevar8x32_ps(c[g / 4], _mm256_setr_epi32(i, i, i, i, i + 1, i + 1, i + 1, i + 1));
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

/* acc (rows, 2) += the unit whose bytes are at p, times unit u of each row of x. */
ALWAYS_INLINE void unit_dot(uint32_t type, const uint8_t *p, const struct q8_row *x, size_t u, int rows,
                            __m256 (*acc)[2])
{
    const bool halves = unit_halves(type), is_signed = unit_signed(type);
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
            acc[r][g % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), lane_scales(halves, c[r], g), acc[r][g % 2]);
        }
    }
    for (int i = 0; i < (halves ? 2 : 1); i++) {
        if (!unit_has_min(type) && q8_centre(type) == 0)
            break;
        __m256 b = unit_has_min(type) ? s.b[i] : _mm256_xor_ps(_mm256_mul_ps(s.a[i], centre), _mm256_set1_ps(-0.0f));
        for (int r = 0; r < rows; r++) {
            const float *sum = x[r].sum + (halves ? 2 : 1) * UNIT_GROUPS * u + 8 * i;
            acc[r][i] = _mm256_fmadd_ps(b, _mm256_loadu_ps(sum), acc[r][i]);
        }
    }
}

/* A unit that is not whole: weights and activations are copied out, with zeros behind. */
struct q8_rest {
    uint8_t w[UNIT_MOST_BYTES];
    int8_t q[FEW][UNIT];
    float d[FEW][UNIT_GROUPS], sum[FEW][2 * UNIT_GROUPS];
};

/* Rows [m0, m0+rows) of x against all rows of the job; rows <= FEW is a constant. */
ALWAYS_INLINE void q8_few(uint32_t type, const struct matmul *job, uint32_t m0, int rows)
{
    const bool halves = unit_halves(type);
    const uint32_t units = job->k / UNIT, groups = job->k % UNIT / 32;
    const size_t bytes = unit_bytes(type), sums = (size_t)units * (halves ? 16 : 8);
    struct q8_row x[FEW], last[FEW];
    struct q8_rest rest;
    memset(&rest, 0, sizeof rest);
    for (int r = 0; r < rows; r++) {
        float *sum = (float *)job->scratch + r * sums;
        x[r] = (struct q8_row){job->q8.q + (m0 + r) * job->q8.q_stride, job->q8.d + (m0 + r) * job->q8.s_stride, sum};
        q8_sums(halves, x[r].q, x[r].d, units * UNIT_GROUPS, sum);
        memcpy(rest.q[r], x[r].q + (size_t)units * UNIT, groups * 32);
        memcpy(rest.d[r], x[r].d + (size_t)units * UNIT_GROUPS, groups * sizeof(float));
        q8_sums(halves, rest.q[r], rest.d[r], groups, rest.sum[r]);
        last[r] = (struct q8_row){rest.q[r], rest.d[r], rest.sum[r]};
    }
    for (uint32_t n = job->n0; n < job->n1; n++) {
        const uint8_t *row = job->w + n * job->row_bytes;
        __m256 acc[FEW][2];
        for (int r = 0; r < rows; r++)
            acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (uint32_t u = 0; u < units; u++) {
            ask_ahead(row + u * bytes, bytes);
            unit_dot(type, row + u * bytes, x, u, rows, acc);
        }
        if (groups) {
            memcpy(rest.w, row + units * bytes, groups * (bytes / UNIT_GROUPS));
            unit_dot(type, rest.w, last, 0, rows, acc);
        }
        for (int r = 0; r < rows; r++)
            job->y[(m0 + r) * job->y_stride + n] = sum_8(_mm256_add_ps(acc[r][0], acc[r][1]));
    }
}

/* ---- many rows: a product of matrices ---- */

struct q8_scratch {
    struct q8_panel panel;
    struct q8_tile tile[M_BLOCK / TILE];
};

/* Values [k0, k0+width) of rows [m0, m0+TILE) of x; rows past the end repeat the last one. */
ALWAYS_INLINE void q8_pack_tile(uint32_t type, const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width,
                                struct q8_tile *t)
{
    const bool halves = unit_halves(type);
    const __m256i ones = _mm256_set1_epi8(1), ones_16 = _mm256_set1_epi16(1);
    const __m256i centre = _mm256_set1_epi32(-q8_centre(type));
    for (uint32_t g = 0; g < width / 32; g++) {
        __m256i v[TILE], sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (uint32_t r = 0; r < TILE; r++) {
            size_t row = least(m0 + r, job->m - 1);
            v[r] = load_32(job->q8.q + row * job->q8.q_stride + k0 + 32 * g);
            t->d[g][r] = job->q8.d[row * job->q8.s_stride + k0 / 32 + g];
        }
        transpose_8(v);
        for (int j = 0; j < 8; j++) {
            _mm256_store_si256((__m256i *)t->q[8 * g + j], v[j]);
            __m256i four = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, v[j]), ones_16);
            sum[halves ? j / 4 : 0] = _mm256_add_epi32(sum[halves ? j / 4 : 0], four);
        }
        for (int i = 0; i < (halves ? 2 : 1); i++) {
            uint32_t at = halves ? 2 * g + i : g;
            _mm256_store_si256((__m256i *)t->start[at], _mm256_mullo_epi32(sum[i], centre));
            _mm256_store_ps(t->sum[at], _mm256_mul_ps(_mm256_cvtepi32_ps(sum[i]), _mm256_load_ps(t->d[g])));
        }
    }
}

/* One unit of eight weight rows at p into columns [col, col+8) of the panel, from group `first` on. */
ALWAYS_INLINE void q8_pack_unit(uint32_t type, const uint8_t *const p[8], uint32_t first, uint32_t col,
                                struct q8_panel *panel)
{
    const int parts = unit_halves(type) ? 2 : 1;
    struct unit_scales s[8];
    for (int r = 0; r < 8; r++)
        unit_scales(type, p[r], s + r);
    for (int i = 0; i < parts; i++) {
        __m256i a[8], b[8];
        for (int r = 0; r < 8; r++)
            a[r] = _mm256_castps_si256(s[r].a[i]);
        transpose_8(a);
        for (int g = 0; g < 8; g++)
            _mm256_store_si256((__m256i *)(panel->a[first * parts + 8 * i + g] + col), a[g]);
        if (!unit_has_min(type))
            continue;
        for (int r = 0; r < 8; r++)
            b[r] = _mm256_castps_si256(s[r].b[i]);
        transpose_8(b);
        for (int g = 0; g < 8; g++)
            _mm256_store_si256((__m256i *)(panel->b[first * parts + 8 * i + g] + col), b[g]);
    }
#pragma GCC unroll 8
    for (int g = 0; g < UNIT_GROUPS; g++) {
        __m256i v[8];
        for (int r = 0; r < 8; r++)
            v[r] = multiply_bytes(unit_signed(type), unit_group(type, p[r], g));
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_store_si256((__m256i *)panel->q[8 * (first + g) + j][col], v[j]);
    }
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL); rows past the end repeat the last one. */
ALWAYS_INLINE void q8_pack_panel(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width,
                                 struct q8_panel *panel)
{
    const size_t bytes = unit_bytes(type);
    for (uint32_t col = 0; col < PANEL; col += 8) {
        const uint8_t *row[8];
        for (uint32_t r = 0; r < 8; r++)
            row[r] = job->w + least(n + col + r, job->n1 - 1) * job->row_bytes + k0 / UNIT * bytes;
        uint32_t u = 0;
        for (; u < width / UNIT; u++) {
            const uint8_t *p[8];
            for (int r = 0; r < 8; r++)
                p[r] = row[r] + u * bytes;
            q8_pack_unit(type, p, u * UNIT_GROUPS, col, panel);
        }
        if (width % UNIT) {
            uint8_t rest[8][UNIT_MOST_BYTES] = {{0}};
            const uint8_t *p[8];
            for (int r = 0; r < 8; r++) {
                memcpy(rest[r], row[r] + u * bytes, width % UNIT / 32 * (bytes / UNIT_GROUPS));
                p[r] = rest[r];
            }
            q8_pack_unit(type, p, u * UNIT_GROUPS, col, panel);
        }
    }
}

ALWAYS_INLINE void q8_many(uint32_t type, const struct matmul *job)
{
    struct q8_scratch *s = job->scratch;
    for (uint32_t m0 = 0; m0 < job->m; m0 += M_BLOCK) {
        uint32_t m1 = least(m0 + M_BLOCK, job->m);
        for (uint32_t k0 = 0; k0 < job->k; k0 += SLAB) {
            uint32_t width = least(SLAB, job->k - k0);
            for (uint32_t m = m0; m < m1; m += TILE)
                q8_pack_tile(type, job, m, k0, width, s->tile + (m - m0) / TILE);
            for (uint32_t n = job->n0; n < job->n1; n += PANEL) {
                q8_pack_panel(type, job, n, k0, width, &s->panel);
                for (uint32_t m = m0; m < m1; m += TILE) {
                    struct tile_out out = {job->y + m * job->y_stride + n, job->y_stride, least(TILE, m1 - m),
                                           least(PANEL, job->n1 - n), k0 > 0};
                    q8_tile_run(type, &s->panel, s->tile + (m - m0) / TILE, width / 32, &out);
                }
            }
        }
    }
}

ALWAYS_INLINE void matmul_q8(uint32_t type, const struct matmul *job)
{
    switch (job->m) {
    case 1:
        q8_few(type, job, 0, 1);
        break;
    case 2:
        q8_few(type, job, 0, 2);
        break;
    case 3:
        q8_few(type, job, 0, 3);
        break;
    case 4:
        q8_few(type, job, 0, 4);
        break;
    default:
        q8_many(type, job);
    }
}

/* A worker's scratch: the blocks of a product of matrices, or the sums of a few rows. */
enum {
    MATMUL_SUMS = FEW * (KERNEL_K_MOST / 16) * sizeof(float),
    MATMUL_BLOCKS = sizeof(struct q8_scratch) + sizeof(struct float_scratch),
    MATMUL_SCRATCH = (int)MATMUL_SUMS > (int)MATMUL_BLOCKS ? MATMUL_SUMS : MATMUL_BLOCKS
};

static void matmul_q4_0(const struct matmul *job)
{
    matmul_q8(DTYPE_Q4_0, job);
}

static void matmul_q4_1(const struct matmul *job)
{
    matmul_q8(DTYPE_Q4_1, job);
}

static void matmul_q5_0(const struct matmul *job)
{
    matmul_q8(DTYPE_Q5_0, job);
}

static void matmul_q5_1(const struct matmul *job)
{
    matmul_q8(DTYPE_Q5_1, job);
}

static void matmul_q8_0(const struct matmul *job)
{
    matmul_q8(DTYPE_Q8_0, job);
}

static void matmul_q2_k(const struct matmul *job)
{
    matmul_q8(DTYPE_Q2_K, job);
}

static void matmul_q3_k(const struct matmul *job)
{
    matmul_q8(DTYPE_Q3_K, job);
}

static void matmul_q4_k(const struct matmul *job)
{
    matmul_q8(DTYPE_Q4_K, job);
}

static void matmul_q5_k(const struct matmul *job)
{
    matmul_q8(DTYPE_Q5_K, job);
}

static void matmul_q6_k(const struct matmul *job)
{
    matmul_q8(DTYPE_Q6_K, job);
}

static void matmul_iq4_nl(const struct matmul *job)
{
    matmul_q8(DTYPE_IQ4_NL, job);
}

static void matmul_iq4_xs(const struct matmul *job)
{
    matmul_q8(DTYPE_IQ4_XS, job);
}

static void matmul_mxfp4(const struct matmul *job)
{
    matmul_q8(DTYPE_MXFP4, job);
}

static void matmul_q8_fill(struct kernels *k)
{
    k->matmul_q8[DTYPE_Q4_0] = matmul_q4_0;
    k->matmul_q8[DTYPE_Q4_1] = matmul_q4_1;
    k->matmul_q8[DTYPE_Q5_0] = matmul_q5_0;
    k->matmul_q8[DTYPE_Q5_1] = matmul_q5_1;
    k->matmul_q8[DTYPE_Q8_0] = matmul_q8_0;
    k->matmul_q8[DTYPE_Q2_K] = matmul_q2_k;
    k->matmul_q8[DTYPE_Q3_K] = matmul_q3_k;
    k->matmul_q8[DTYPE_Q4_K] = matmul_q4_k;
    k->matmul_q8[DTYPE_Q5_K] = matmul_q5_k;
    k->matmul_q8[DTYPE_Q6_K] = matmul_q6_k;
    k->matmul_q8[DTYPE_IQ4_NL] = matmul_iq4_nl;
    k->matmul_q8[DTYPE_IQ4_XS] = matmul_iq4_xs;
    k->matmul_q8[DTYPE_MXFP4] = matmul_mxfp4;
}
