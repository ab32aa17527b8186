/* Float products, the same for both vector tiers: F32, F16 and BF16 read directly, any other type decoded to
 * floats, FLOAT_SLAB values at a time. A tier's file defines float_tile_run (a panel times a tile) before it
 * includes this one. */
#pragma once

#include "device/cpu/matmul_panel.h"

enum { FLOAT_FEW = 4 }; /* rows of x that share one pass over the weights */

struct float_scratch {
    struct float_panel panel;
    struct float_tile tile[TILES];
    float rows[8][FLOAT_SLAB]; /* decoded weights */
};

/* n values of a row of blocks as floats, n <= FLOAT_SLAB. */
typedef void (*float_decoder)(const void *src, float *dst, size_t n);

/* One unit of a type that has units: w = a * (q - offset) + b. */
ALWAYS_INLINE void decode_unit(uint32_t type, const uint8_t *p, float *y)
{
    const bool halves = unit_traits[type].halves;
    float a[16], b[16];
    struct unit_scales s;
    unit_scales(type, p, &s);
    for (int i = 0; i < (halves ? 2 : 1); i++) {
        __m256 offset = _mm256_set1_ps((float)-unit_traits[type].offset);
        _mm256_storeu_ps(a + 8 * i, s.a[i]);
        _mm256_storeu_ps(b + 8 * i, unit_traits[type].has_min ? s.b[i] : _mm256_mul_ps(s.a[i], offset));
    }
#pragma GCC unroll 8
    for (int g = 0; g < UNIT_GROUPS; g++) {
        uint8_t q[32];
        _mm256_storeu_si256((__m256i *)q, unit_group(type, p, g));
        for (int i = 0; i < 4; i++) {
            int at = halves ? 2 * g + i / 2 : g;
            __m128i eight = _mm_loadl_epi64((const __m128i *)(q + 8 * i));
            __m256i v =
                unit_traits[type].is_signed ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
            __m256 w = _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(a[at]), _mm256_set1_ps(b[at]));
            _mm256_storeu_ps(y + 32 * g + 8 * i, w);
        }
    }
}

ALWAYS_INLINE void decode_units(uint32_t type, const void *src, float *dst, size_t n)
{
    if (n == UNIT)
        decode_unit(type, src, dst);
    else
        dtype_get(type)->decode(src, dst, n);
}

static void decode_q4_0(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q4_0, src, dst, n);
}

static void decode_q4_1(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q4_1, src, dst, n);
}

static void decode_q8_0(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q8_0, src, dst, n);
}

static void decode_q4_k(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q4_K, src, dst, n);
}

static void decode_q5_k(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q5_K, src, dst, n);
}

static void decode_q6_k(const void *src, float *dst, size_t n)
{
    decode_units(DTYPE_Q6_K, src, dst, n);
}

/* The commonest types have a decoder of vectors. */
static float_decoder float_decoder_of(uint32_t type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return decode_q4_0;
    case DTYPE_Q4_1:
        return decode_q4_1;
    case DTYPE_Q8_0:
        return decode_q8_0;
    case DTYPE_Q4_K:
        return decode_q4_k;
    case DTYPE_Q5_K:
        return decode_q5_k;
    case DTYPE_Q6_K:
        return decode_q6_k;
    default:
        return dtype_get(type)->decode;
    }
}

ALWAYS_INLINE bool float_direct(uint32_t type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Eight values at p, of a direct type. */
ALWAYS_INLINE __m256 load_8(uint32_t type, const uint8_t *p)
{
    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (type == DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The first n < 8 of them, and zeros. */
ALWAYS_INLINE __m256 load_some(uint32_t type, const uint8_t *p, uint32_t n)
{
    uint8_t part[32] = {0};
    memcpy(part, p, n * (type == DTYPE_F32 ? 4 : 2));
    return load_8(type, part);
}

ALWAYS_INLINE __m256 load_upto(uint32_t type, const uint8_t *p, uint32_t n)
{
    return n < 8 ? load_some(type, p, n) : load_8(type, p);
}

/* Eight floats rounded to bf16, NaN staying NaN; of their bits the lower halves are to be ignored. */
ALWAYS_INLINE __m256i bf16_round(__m256 v)
{
    const __m256i u = _mm256_castps_si256(v),
                  odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
    const __m256 nan = _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(r), nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}

ALWAYS_INLINE __m256 bf16_value(__m256 v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bf16_round(v), _mm256_set1_epi32((int)0xffff0000)));
}

/* acc (rows, 2) += n values at p, of a direct type, as they are or rounded to bf16, times those at x[r]. */
ALWAYS_INLINE void float_dot(uint32_t type, bool rounded, const uint8_t *p, const float *const *x, size_t n,
                             int rows, __m256 (*acc)[2])
{
    const size_t size = type == DTYPE_F32 ? 4 : 2;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (i % 32 == 0)
            ask_ahead(p + i * size, STREAM_AHEAD, 32 * size);
        for (int j = 0; j < 2; j++) {
            __m256 w = load_8(type, p + (i + 8 * j) * size);
            w = rounded ? bf16_value(w) : w;
            for (int r = 0; r < rows; r++)
                acc[r][j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x[r] + i + 8 * j), acc[r][j]);
        }
    }
    for (; i < n; i += 8) {
        uint32_t left = least((uint32_t)(n - i), 8);
        __m256 w = load_upto(type, p + i * size, left);
        w = rounded ? bf16_value(w) : w;
        for (int r = 0; r < rows; r++) {
            __m256 v = load_upto(DTYPE_F32, (const uint8_t *)(x[r] + i), left);
            acc[r][0] = _mm256_fmadd_ps(w, v, acc[r][0]);
        }
    }
}

/* acc (rows, 2) = the row of weights at p, decoded piece by piece, times those at x[r]. */
ALWAYS_INLINE void float_dot_decoded(const struct matmul *job, const uint8_t *p, const float *const *x,
                                     int rows, __m256 (*acc)[2])
{
    struct float_scratch *s = job->scratch;
    const struct dtype_info *info = dtype_get(job->type);
    const float_decoder decode = float_decoder_of(job->type);
    for (uint32_t k0 = 0; k0 < job->k; k0 += FLOAT_SLAB) {
        uint32_t width = least(FLOAT_SLAB, job->k - k0);
        const float *part[FLOAT_FEW];
        for (int r = 0; r < rows; r++)
            part[r] = x[r] + k0;
        decode(p + k0 / info->block_values * (size_t)info->block_bytes, s->rows[0], width);
        float_dot(DTYPE_F32, false, (const uint8_t *)s->rows[0], part, width, rows, acc);
    }
}

/* All of job->m <= rows rows of x, those past the end repeat the last one; rows is a constant, as is a
 * direct type (others all come as DTYPE_MOST), whose values may be rounded to bf16. */
ALWAYS_INLINE void float_few(uint32_t type, bool rounded, const struct matmul *job, int rows)
{
    const float *x[FLOAT_FEW];
    for (int r = 0; r < rows; r++)
        x[r] = job->x + least((uint32_t)r, job->m - 1) * job->x_stride;
    for (uint32_t n = job->n0; n < job->n1; n++) {
        const uint8_t *row = job->w + n * job->row_bytes;
        __m256 acc[FLOAT_FEW][2];
        for (int r = 0; r < rows; r++)
            acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        if (float_direct(type))
            float_dot(type, rounded, row, x, job->k, rows, acc);
        else
            float_dot_decoded(job, row, x, rows, acc);
        for (int r = 0; r < rows; r++)
            if ((uint32_t)r < job->m)
                job->y[r * job->y_stride + n] = sum_8(_mm256_add_ps(acc[r][0], acc[r][1]));
    }
}

/* Values [k0, k0+width) of rows [m0, m0+TILE) of x, as they are or rounded to bf16; rows past the end repeat the
 * last one. */
ALWAYS_INLINE void float_pack_rows(const struct matmul *job, bool rounded, uint32_t m0, uint32_t k0,
                                   uint32_t width, float (*to)[TILE])
{
    for (uint32_t i = 0; i < width; i += 8) {
        __m256i v[8];
        for (uint32_t r = 0; r < TILE; r++) {
            const float *x = job->x + least(m0 + r, job->m - 1) * job->x_stride + k0 + i;
            const __m256 eight = load_upto(DTYPE_F32, (const uint8_t *)x, width - i);
            v[r] = _mm256_castps_si256(rounded ? bf16_value(eight) : eight);
        }
        transpose_8(v);
        for (int j = 0; j < 8; j++)
            _mm256_store_si256((__m256i *)to[i + j], v[j]);
    }
}

static void float_pack_tile(const struct matmul *job, uint32_t m0, uint32_t k0, uint32_t width, void *tile)
{
    float_pack_rows(job, false, m0, k0, width, ((struct float_tile *)tile)->x);
}

/* Values [k0, k0+width) of weight rows [n, n+PANEL); rows past the end repeat the last one. */
ALWAYS_INLINE void float_pack_panel(uint32_t type, const struct matmul *job, uint32_t n, uint32_t k0,
                                    uint32_t width, struct float_scratch *s)
{
    const struct dtype_info *info = dtype_get(job->type);
    const float_decoder decode = float_decoder_of(job->type);
    const uint32_t stored = float_direct(type) ? type : DTYPE_F32;
    const size_t size = stored == DTYPE_F32 ? 4 : 2;
    for (uint32_t col = 0; col < PANEL; col += 8) {
        const uint8_t *row[8];
        for (uint32_t r = 0; r < 8; r++) {
            row[r] = job->w + least(n + col + r, job->n1 - 1) * job->row_bytes +
                     k0 / info->block_values * (size_t)info->block_bytes;
            ask_panel(row[r], PANEL * job->row_bytes, width / info->block_values * info->block_bytes);
            if (!float_direct(type)) {
                decode(row[r], s->rows[r], width);
                row[r] = (const uint8_t *)s->rows[r];
            }
        }
        for (uint32_t i = 0; i < width; i += 8) {
            __m256i v[8];
            for (int r = 0; r < 8; r++)
                v[r] = _mm256_castps_si256(load_upto(stored, row[r] + i * size, width - i));
            transpose_8(v);
            for (int j = 0; j < 8; j++)
                _mm256_store_si256((__m256i *)(s->panel.w[i + j] + col), v[j]);
        }
    }
}

static const void *float_find_panel(const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width)
{
    struct float_scratch *s = job->scratch;
    if (job->type == DTYPE_F32)
        float_pack_panel(DTYPE_F32, job, n, k0, width, s);
    else if (job->type == DTYPE_F16)
        float_pack_panel(DTYPE_F16, job, n, k0, width, s);
    else if (job->type == DTYPE_BF16)
        float_pack_panel(DTYPE_BF16, job, n, k0, width, s);
    else
        float_pack_panel(DTYPE_MOST, job, n, k0, width, s);
    return &s->panel;
}

static void float_many(const struct matmul *job)
{
    struct float_scratch *s = job->scratch;
    many_run(job, &(struct many){.slab = FLOAT_SLAB,
                                 .most = TILES,
                                 .tile_bytes = sizeof *s->tile,
                                 .tiles = (uint8_t *)s->tile,
                                 .panel = &s->panel,
                                 .pack = float_pack_tile,
                                 .find = float_find_panel,
                                 .run = float_tile_run});
}

ALWAYS_INLINE void float_any(uint32_t type, const struct matmul *job)
{
    if (job->fixed)
        float_many(job);
    else if (job->m == 1)
        float_few(type, false, job, 1);
    else if (job->m == 2)
        float_few(type, false, job, 2);
    else if (job->m <= FLOAT_FEW)
        float_few(type, false, job, FLOAT_FEW);
    else
        float_many(job);
}

static void matmul_float(const struct matmul *job)
{
    switch (job->type) {
    case DTYPE_F32:
        float_any(DTYPE_F32, job);
        break;
    case DTYPE_F16:
        float_any(DTYPE_F16, job);
        break;
    case DTYPE_BF16:
        float_any(DTYPE_BF16, job);
        break;
    default:
        float_any(DTYPE_MOST, job);
    }
}
