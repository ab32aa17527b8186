/* The instructions of AVX2 that the shared sources use, in pairs of NEON registers: what each does is Intel's
 * definition, except where a comment says less. Only for ARM64 (avx.h). */
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define AVX_INLINE static inline __attribute__((always_inline))

typedef uint8x16_t __m128i;
typedef float32x4_t __m128;
typedef struct {
    uint8x16_t lo, hi;
} __m256i;
typedef struct {
    float32x4_t lo, hi;
} __m256;

enum { _MM_HINT_T0 = 3, _MM_HINT_T1 = 2, _MM_FROUND_TO_NEAREST_INT = 0, _CMP_UNORD_Q = 3 };
#define _mm_prefetch(p, hint) __builtin_prefetch(p, 0, hint)

/* Both halves by one expression of x and y, whose lanes are of type T. */
#define AVX_INTS_1(name, T, expression)                                                                      \
    AVX_INLINE __m256i name(__m256i a)                                                                       \
    {                                                                                                        \
        T x = (T)a.lo;                                                                                       \
        const uint8x16_t lo = (uint8x16_t)(expression);                                                      \
        x = (T)a.hi;                                                                                         \
        return (__m256i){lo, (uint8x16_t)(expression)};                                                      \
    }
#define AVX_INTS_2(name, T, expression)                                                                      \
    AVX_INLINE __m256i name(__m256i a, __m256i b)                                                            \
    {                                                                                                        \
        T x = (T)a.lo, y = (T)b.lo;                                                                          \
        const uint8x16_t lo = (uint8x16_t)(expression);                                                      \
        x = (T)a.hi, y = (T)b.hi;                                                                            \
        return (__m256i){lo, (uint8x16_t)(expression)};                                                      \
    }
#define AVX_FLOATS_2(name, expression)                                                                       \
    AVX_INLINE __m256 name(__m256 a, __m256 b)                                                               \
    {                                                                                                        \
        float32x4_t x = a.lo, y = b.lo;                                                                      \
        const float32x4_t lo = (float32x4_t)(expression);                                                    \
        x = a.hi, y = b.hi;                                                                                  \
        return (__m256){lo, (float32x4_t)(expression)};                                                      \
    }
#define AVX_SHIFT(name, T, operator)                                                                         \
    AVX_INLINE __m256i name(__m256i a, int n)                                                                \
    {                                                                                                        \
        return (__m256i){(uint8x16_t)((T)a.lo operator n), (uint8x16_t)((T)a.hi operator n)};                \
    }

/* ---- the same for all lanes ---- */

AVX_INTS_2(_mm256_and_si256, uint8x16_t, x &y)
AVX_INTS_2(_mm256_or_si256, uint8x16_t, x | y)
AVX_INTS_2(_mm256_xor_si256, uint8x16_t, x ^ y)
AVX_INTS_2(_mm256_add_epi8, uint8x16_t, x + y)
AVX_INTS_2(_mm256_sub_epi8, uint8x16_t, x - y)
AVX_INTS_2(_mm256_add_epi16, uint16x8_t, x + y)
AVX_INTS_2(_mm256_add_epi32, uint32x4_t, x + y)
AVX_INTS_2(_mm256_mullo_epi16, uint16x8_t, x *y)
AVX_INTS_2(_mm256_mullo_epi32, uint32x4_t, x *y)
AVX_INTS_2(_mm256_cmpeq_epi8, uint8x16_t, x == y)
AVX_INTS_2(_mm256_cmpeq_epi16, uint16x8_t, x == y)
AVX_INTS_2(_mm256_cmpeq_epi32, uint32x4_t, x == y)
AVX_SHIFT(_mm256_slli_epi16, uint16x8_t, <<)
AVX_SHIFT(_mm256_slli_epi32, uint32x4_t, <<)
AVX_SHIFT(_mm256_srli_epi16, uint16x8_t, >>)
AVX_SHIFT(_mm256_srli_epi32, uint32x4_t, >>)
AVX_FLOATS_2(_mm256_add_ps, x + y)
AVX_FLOATS_2(_mm256_mul_ps, x *y)
AVX_FLOATS_2(_mm256_or_ps, (uint32x4_t)x | (uint32x4_t)y)
AVX_FLOATS_2(_mm256_xor_ps, (uint32x4_t)x ^ (uint32x4_t)y)
AVX_FLOATS_2(_mm256_andnot_ps, ~(uint32x4_t)x &(uint32x4_t)y)
/* y where one of them is no number */
AVX_FLOATS_2(_mm256_max_ps, vbslq_f32(vcgtq_f32(x, y), x, y))
AVX_FLOATS_2(_mm256_min_ps, vbslq_f32(vcltq_f32(x, y), x, y))
/* Indices below 16. */
AVX_INTS_2(_mm256_shuffle_epi8, uint8x16_t, vqtbl1q_u8(x, y))

AVX_INLINE __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c)
{
    return (__m256){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}

/* _CMP_UNORD_Q alone. */
AVX_INLINE __m256 _mm256_cmp_ps(__m256 a, __m256 b, int how)
{
    (void)how;
    return (__m256){(float32x4_t) ~(vceqq_f32(a.lo, a.lo) & vceqq_f32(b.lo, b.lo)),
                    (float32x4_t) ~(vceqq_f32(a.hi, a.hi) & vceqq_f32(b.hi, b.hi))};
}

/* Masks whose lanes are all ones or zero. */
AVX_INLINE __m256 _mm256_blendv_ps(__m256 no, __m256 yes, __m256 mask)
{
    return (__m256){vbslq_f32((uint32x4_t)mask.lo, yes.lo, no.lo),
                    vbslq_f32((uint32x4_t)mask.hi, yes.hi, no.hi)};
}

AVX_INLINE __m256i _mm256_blendv_epi8(__m256i no, __m256i yes, __m256i mask)
{
    return (__m256i){vbslq_u8(mask.lo, yes.lo, no.lo), vbslq_u8(mask.hi, yes.hi, no.hi)};
}

/* 0xf0 alone: the upper half of b. */
AVX_INLINE __m256 _mm256_blend_ps(__m256 a, __m256 b, int which)
{
    (void)which;
    return (__m256){a.lo, b.hi};
}

/* ---- constants, memory, casts ---- */

AVX_INLINE __m256i _mm256_set_m128i(__m128i hi, __m128i lo)
{
    return (__m256i){lo, hi};
}

#define _mm_set1_epi16(x)              ((__m128i)vdupq_n_s16(x))
#define _mm_set1_epi32(x)              ((__m128i)vdupq_n_s32(x))
#define _mm_setr_epi8(...)             ((__m128i)(int8x16_t){__VA_ARGS__})
#define _mm_setr_epi16(...)            ((__m128i)(int16x8_t){__VA_ARGS__})
#define _mm_setr_epi32(...)            ((__m128i)(int32x4_t){__VA_ARGS__})
#define _mm_cvtsi64_si128(x)           ((__m128i)(int64x2_t){x, 0})
#define _mm256_broadcastsi128_si256(x) _mm256_twice(x)
#define _mm256_set1_epi8(x)            _mm256_twice((__m128i)vdupq_n_s8(x))
#define _mm256_set1_epi16(x)           _mm256_twice((__m128i)vdupq_n_s16(x))
#define _mm256_set1_epi32(x)           _mm256_twice((__m128i)vdupq_n_s32(x))
#define _mm256_set1_epi64x(x)          _mm256_twice((__m128i)vdupq_n_s64(x))
#define _mm256_setzero_si256()         _mm256_twice((__m128i)vdupq_n_u8(0))
#define _mm256_set1_ps(x)              _mm256_same(vdupq_n_f32(x))
#define _mm256_setzero_ps()            _mm256_same(vdupq_n_f32(0))
#define _mm256_setr_epi32(a, b, c, d, e, f, g, h)                                                            \
    _mm256_set_m128i(_mm_setr_epi32(e, f, g, h), _mm_setr_epi32(a, b, c, d))
#define _mm256_setr_epi64x(a, b, c, d)                                                                       \
    _mm256_set_m128i((__m128i)(int64x2_t){c, d}, (__m128i)(int64x2_t){a, b})

AVX_INLINE __m256i _mm256_twice(__m128i v)
{
    return (__m256i){v, v};
}

AVX_INLINE __m256 _mm256_same(__m128 v)
{
    return (__m256){v, v};
}

AVX_INLINE __m256 _mm256_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h)
{
    return (__m256){(float32x4_t){a, b, c, d}, (float32x4_t){e, f, g, h}};
}

AVX_INLINE __m128i _mm_loadu_si128(const __m128i *p)
{
    return vld1q_u8((const uint8_t *)p);
}

/* Eight bytes, and zeros. */
AVX_INLINE __m128i _mm_loadl_epi64(const __m128i *p)
{
    return vcombine_u8(vld1_u8((const uint8_t *)p), vdup_n_u8(0));
}

AVX_INLINE void _mm_storeu_si128(__m128i *p, __m128i v)
{
    vst1q_u8((uint8_t *)p, v);
}

AVX_INLINE __m256i _mm256_loadu_si256(const __m256i *p)
{
    return (__m256i){vld1q_u8((const uint8_t *)p), vld1q_u8((const uint8_t *)p + 16)};
}

AVX_INLINE void _mm256_storeu_si256(__m256i *p, __m256i v)
{
    vst1q_u8((uint8_t *)p, v.lo);
    vst1q_u8((uint8_t *)p + 16, v.hi);
}

AVX_INLINE __m256 _mm256_loadu_ps(const float *p)
{
    return (__m256){vld1q_f32(p), vld1q_f32(p + 4)};
}

AVX_INLINE void _mm256_storeu_ps(float *p, __m256 v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
}

#define _mm256_load_si256  _mm256_loadu_si256
#define _mm256_load_ps     _mm256_loadu_ps
#define _mm256_store_si256 _mm256_storeu_si256
#define _mm256_store_ps    _mm256_storeu_ps

AVX_INLINE __m256 _mm256_castsi256_ps(__m256i v)
{
    return (__m256){(float32x4_t)v.lo, (float32x4_t)v.hi};
}

AVX_INLINE __m256i _mm256_castps_si256(__m256 v)
{
    return (__m256i){(uint8x16_t)v.lo, (uint8x16_t)v.hi};
}

#define _mm256_castsi256_si128(v) ((v).lo)
#define _mm256_castps256_ps128(v) ((v).lo)
#define _mm256_castsi128_si256(v) _mm256_twice(v) /* the upper half may be anything */

/* n is a constant, and b is inserted above alone. */
#define _mm256_extracti128_si256(v, n)   ((n) ? (v).hi : (v).lo)
#define _mm256_extractf128_ps(v, n)      ((n) ? (v).hi : (v).lo)
#define _mm256_inserti128_si256(a, b, n) ((__m256i){(a).lo, b})
#define _mm256_extract_epi32(v, n)       vgetq_lane_s32((int32x4_t)((n) / 4 ? (v).hi : (v).lo), (n) % 4)
#define _mm256_cvtsi256_si32(v)          vgetq_lane_s32((int32x4_t)(v).lo, 0)
#define _mm_cvtsi128_si32(v)             vgetq_lane_s32((int32x4_t)(v), 0)

/* ---- conversions ---- */

AVX_INLINE __m256i _mm256_cvtepi8_epi32(__m128i v)
{
    const int16x8_t w = vmovl_s8(vget_low_s8((int8x16_t)v));
    return (__m256i){(uint8x16_t)vmovl_s16(vget_low_s16(w)), (uint8x16_t)vmovl_high_s16(w)};
}

AVX_INLINE __m256i _mm256_cvtepu16_epi32(__m128i v)
{
    return (__m256i){(uint8x16_t)vmovl_u16(vget_low_u16((uint16x8_t)v)),
                     (uint8x16_t)vmovl_high_u16((uint16x8_t)v)};
}

AVX_INLINE __m256i _mm256_cvtepu8_epi16(__m128i v)
{
    return (__m256i){(uint8x16_t)vmovl_u8(vget_low_u8(v)), (uint8x16_t)vmovl_high_u8(v)};
}

AVX_INLINE __m256i _mm256_cvtepu8_epi32(__m128i v)
{
    return _mm256_cvtepu16_epi32((__m128i)vmovl_u8(vget_low_u8(v)));
}

AVX_INLINE __m256 _mm256_cvtepi32_ps(__m256i v)
{
    return (__m256){vcvtq_f32_s32((int32x4_t)v.lo), vcvtq_f32_s32((int32x4_t)v.hi)};
}

/* To nearest even; a NaN gives 0. */
AVX_INLINE __m256i _mm256_cvtps_epi32(__m256 v)
{
    return (__m256i){(uint8x16_t)vcvtnq_s32_f32(v.lo), (uint8x16_t)vcvtnq_s32_f32(v.hi)};
}

AVX_INLINE __m256 _mm256_cvtph_ps(__m128i v)
{
    return (__m256){vcvt_f32_f16(vget_low_f16((float16x8_t)v)), vcvt_high_f32_f16((float16x8_t)v)};
}

AVX_INLINE __m128i _mm256_cvtps_ph(__m256 v, int how)
{
    (void)how;
    return (__m128i)vcvt_high_f16_f32(vcvt_f16_f32(v.lo), v.hi);
}

AVX_INLINE float _cvtsh_ss(uint16_t h)
{
    __fp16 f;
    memcpy(&f, &h, sizeof f);
    return (float)f;
}

AVX_INLINE uint16_t _cvtss_sh(float v, int how)
{
    (void)how;
    const __fp16 f = (__fp16)v;
    uint16_t h;
    memcpy(&h, &f, sizeof h);
    return h;
}

/* Saturating, within halves. */
AVX_INLINE __m256i _mm256_packs_epi32(__m256i a, __m256i b)
{
    return (__m256i){(uint8x16_t)vqmovn_high_s32(vqmovn_s32((int32x4_t)a.lo), (int32x4_t)b.lo),
                     (uint8x16_t)vqmovn_high_s32(vqmovn_s32((int32x4_t)a.hi), (int32x4_t)b.hi)};
}

AVX_INLINE __m256i _mm256_packus_epi32(__m256i a, __m256i b)
{
    return (__m256i){(uint8x16_t)vqmovun_high_s32(vqmovun_s32((int32x4_t)a.lo), (int32x4_t)b.lo),
                     (uint8x16_t)vqmovun_high_s32(vqmovun_s32((int32x4_t)a.hi), (int32x4_t)b.hi)};
}

AVX_INLINE __m256i _mm256_packs_epi16(__m256i a, __m256i b)
{
    return (__m256i){(uint8x16_t)vqmovn_high_s16(vqmovn_s16((int16x8_t)a.lo), (int16x8_t)b.lo),
                     (uint8x16_t)vqmovn_high_s16(vqmovn_s16((int16x8_t)a.hi), (int16x8_t)b.hi)};
}

AVX_INLINE __m128i _mm_packus_epi16(__m128i a, __m128i b)
{
    return (__m128i)vqmovun_high_s16(vqmovun_s16((int16x8_t)a), (int16x8_t)b);
}

/* ---- neighbours ---- */

/* Sums of neighbours: no pair's sum is beyond 16 bits where this is used. */
AVX_INLINE uint8x16_t avx_byte_pairs(uint8x16_t a, int8x16_t b)
{
    const int16x8_t lo = (int16x8_t)vmovl_u8(vget_low_u8(a)) * vmovl_s8(vget_low_s8(b));
    const int16x8_t hi = (int16x8_t)vmovl_high_u8(a) * vmovl_high_s8(b);
    return (uint8x16_t)vpaddq_s16(lo, hi);
}

AVX_INLINE uint8x16_t avx_pairs(int16x8_t a, int16x8_t b)
{
    return (uint8x16_t)vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

AVX_INTS_2(_mm256_maddubs_epi16, uint8x16_t, avx_byte_pairs(x, (int8x16_t)y))
AVX_INTS_2(_mm256_madd_epi16, int16x8_t, avx_pairs(x, y))
AVX_INTS_2(_mm256_hadd_epi32, int32x4_t, vpaddq_s32(x, y))
AVX_INTS_2(_mm256_unpacklo_epi32, uint32x4_t, vzip1q_u32(x, y))
AVX_INTS_2(_mm256_unpackhi_epi32, uint32x4_t, vzip2q_u32(x, y))
AVX_INTS_2(_mm256_unpacklo_epi64, uint64x2_t, vzip1q_u64(x, y))
AVX_INTS_2(_mm256_unpackhi_epi64, uint64x2_t, vzip2q_u64(x, y))
#define _mm_unpacklo_epi64(a, b) ((__m128i)vzip1q_u64((uint64x2_t)(a), (uint64x2_t)(b)))
#define _mm_unpackhi_epi64(a, b) ((__m128i)vzip2q_u64((uint64x2_t)(a), (uint64x2_t)(b)))

/* 0x20 and 0x31 alone: both lower or both upper halves. */
AVX_INLINE __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int which)
{
    return which == 0x20 ? (__m256i){a.lo, b.lo} : (__m256i){a.hi, b.hi};
}

/* 0xd8 alone: quarters 0, 2, 1, 3. */
AVX_INLINE __m256i _mm256_permute4x64_epi64(__m256i v, int which)
{
    (void)which;
    return (__m256i){_mm_unpacklo_epi64(v.lo, v.hi), _mm_unpackhi_epi64(v.lo, v.hi)};
}

/* 0xb1 alone: neighbours change places. */
AVX_INLINE __m256 _mm256_permute_ps(__m256 v, int which)
{
    (void)which;
    return (__m256){vrev64q_f32(v.lo), vrev64q_f32(v.hi)};
}

/* 0xdd alone: the odd lanes, within halves. */
AVX_INLINE __m256 _mm256_shuffle_ps(__m256 a, __m256 b, int which)
{
    (void)which;
    return (__m256){vuzp2q_f32(a.lo, b.lo), vuzp2q_f32(a.hi, b.hi)};
}

/* Lane i of c in the lower four lanes, lane j in the upper ones. */
AVX_INLINE __m256 lanes_of(__m256 c, int i, int j)
{
    return (__m256){vdupq_n_f32(i < 4 ? c.lo[i % 4] : c.hi[i % 4]),
                    vdupq_n_f32(j < 4 ? c.lo[j % 4] : c.hi[j % 4])};
}

/* Any lane to any place. */
AVX_INLINE __m256i _mm256_permutevar8x32_epi32(__m256i v, __m256i lane)
{
    const uint8x16x2_t both = {{v.lo, v.hi}};
    const uint32x4_t byte = vdupq_n_u32(0x03020100);
    return (__m256i){vqtbl2q_u8(both, (uint8x16_t)((uint32x4_t)lane.lo * 0x04040404 + byte)),
                     vqtbl2q_u8(both, (uint8x16_t)((uint32x4_t)lane.hi * 0x04040404 + byte))};
}

AVX_INLINE __m256 _mm256_permutevar8x32_ps(__m256 v, __m256i lane)
{
    return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_castps_si256(v), lane));
}

/* ---- half a register ---- */

#define _mm_add_epi32(a, b)  ((__m128i)((uint32x4_t)(a) + (uint32x4_t)(b)))
#define _mm_srli_epi16(a, n) ((__m128i)((uint16x8_t)(a) >> (n)))
#define _mm_add_ps(a, b)     ((__m128)(a) + (__m128)(b))
#define _mm_add_ss(a, b)     _mm_add_ps(a, b) /* all lanes; one is used */
#define _mm_max_ps(a, b)     vbslq_f32(vcgtq_f32(a, b), a, b)
#define _mm_max_ss(a, b)     _mm_max_ps(a, b)
#define _mm_cvtss_f32(v)     vgetq_lane_f32(v, 0)
#define _mm_movehdup_ps(v)   vtrn2q_f32(v, v)
#define _mm_movehl_ps(a, b)  ((__m128)vzip2q_u64((uint64x2_t)(b), (uint64x2_t)(a)))

/* 0x4e and 0xb1 alone: halves or neighbours change places. */
AVX_INLINE __m128i _mm_shuffle_epi32(__m128i v, int which)
{
    return which == 0x4e ? vextq_u8(v, v, 8) : (__m128i)vrev64q_u32((uint32x4_t)v);
}

/* ---- bits of words ---- */

/* Fields of `bits` bits side by side -> one in each byte; up to eight. */
AVX_INLINE uint64_t avx_spread(uint64_t x, int bits)
{
    const uint64_t four = ((uint64_t)1 << 4 * bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1,
                   one = ((uint64_t)1 << bits) - 1;
    x = (x & four) | (x >> 4 * bits & four) << 32;
    x = (x & two * 0x0000000100000001) | (x >> 2 * bits & two * 0x0000000100000001) << 16;
    return (x & one * 0x0001000100010001) | (x >> bits & one * 0x0001000100010001) << 8;
}

/* One field of `bits` bits in each 16 -> side by side. */
AVX_INLINE uint64_t avx_gather(uint64_t x, int bits)
{
    const uint64_t one = ((uint64_t)1 << bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1;
    x = (x & one * 0x0000000100000001) | (x >> 16 & one * 0x0000000100000001) << bits;
    return (x & two) | (x >> 32 & two) << 2 * bits;
}

/* Masks that repeat the same field in each byte. */
AVX_INLINE uint64_t _pdep_u64(uint64_t x, uint64_t mask)
{
    return avx_spread(x, __builtin_popcountll(mask & 255)) << __builtin_ctzll(mask);
}

AVX_INLINE uint32_t _pdep_u32(uint32_t x, uint32_t mask)
{
    return (uint32_t)_pdep_u64(x, mask);
}

/* Masks that repeat the same field in each 16 bits. */
AVX_INLINE uint64_t _pext_u64(uint64_t x, uint64_t mask)
{
    return avx_gather(x >> __builtin_ctzll(mask), __builtin_popcountll(mask & 0xffff));
}
