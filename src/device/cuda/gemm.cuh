/* Products of packed activations (params.h) with weights, on the tensor cores: a warp takes 16 outputs
 * and some of the columns, for NB groups of eight streams, so that a weight is read and decoded once
 * for all of them. The A operand is the decoded weight, the scale of its group already in it; B is the
 * packed x. The warps that share a tile's columns add up through shared memory. */
#pragma once

#include "device/cuda/common.cuh"

/* Where a lane finds its part of a column of x: its B operand of sub s and group nb is at b + nb * PACK_BYTES + s * SUB,
 * the sums at sum, the scales at scale (both + nb * PACK_BYTES). */
struct x_column {
    const uint8_t *b, *sum, *scale;
};

/* Straight from memory. Groups of a column lie side by side, so that all offsets but the column's are constants. Lanes of
 * streams that are not there (fewer than eight in all) read the last one's. */
struct x_memory {
    enum { SUB = 512 };
    struct x_column at;
    uint64_t step; /* bytes from a column to the next */

    __device__ __forceinline__ x_memory(const uint8_t *pack, uint32_t groups, uint32_t m)
    {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4, stream = min(lane / 4, m - 1);
        at.b = pack + 64 * stream + 16 * t;
        at.sum = pack + PACK_SUMS + 32 * stream + 8 * t;
        at.scale = pack + PACK_SCALE + 8 * t;
        step = (uint64_t)groups * PACK_BYTES;
    }
    __device__ __forceinline__ void begin(uint32_t)
    {
        dep_wait();
    }
    __device__ __forceinline__ struct x_column enter(uint32_t column)
    {
        struct x_column c = {at.b + column * step, at.sum + column * step, at.scale + column * step};
        return c;
    }
    __device__ __forceinline__ void leave(uint32_t)
    {
    }
};

static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    __half2 r = __hmul2(*(__half2 *)&a, *(__half2 *)&b);
    return *(uint32_t *)&r;
}

static __device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c)
{
    __half2 r = __hfma2(*(__half2 *)&a, *(__half2 *)&b, *(__half2 *)&c);
    return *(uint32_t *)&r;
}

/* Both halves 1024 + s, from byte i of w. */
static __device__ __forceinline__ uint32_t plus_1024(uint32_t w, int i)
{
    return __byte_perm(w, 0x64, 0x4040 + 0x0101 * i);
}

/* ---- the forms of tiles ----
 * A lane has CHUNKS chunks of 16 bytes, 512 bytes apart; behind them lies a head of 16 bytes for each row (and, for Q6_K,
 * d of each row). A form says which subs of 32 columns use chunk i (from first(i) to last(i)), and makes of them the A
 * operands of a sub: a[0..3] of the mma of its first 16 columns, a[4..7] of the second. d: what c is multiplied with. */
enum { CHUNKS_MOST = 8 };

/* What a lane needs of its rows g and g + 8 besides the chunks. */
struct tile_head {
    uint4 row[2];
    uint16_t d[2];
};

template <class LOAD>
static __device__ __forceinline__ struct tile_head tile_head(const uint8_t *tile, uint32_t bytes, LOAD get)
{
    const uint32_t g = threadIdx.x % 32 / 4,
                   lanes = bytes == TILE_Q6_K   ? 3072
                           : bytes == TILE_Q8_0 ? 4096
                                                : 2048,
                   row = bytes == TILE_MXFP4 ? 8 : 16;
    const uint8_t *p = tile + lanes + row * g / 16 * 16;
    struct tile_head h = {};
    h.row[0] = get(p);
    h.row[1] = get(p + 8 * row);
    if (bytes == TILE_Q6_K) {
        h.d[0] = *(const uint16_t *)(tile + 3328 + 2 * g);
        h.d[1] = *(const uint16_t *)(tile + 3328 + 2 * (g + 8));
    }
    return h;
}

/* Q4_K: a nibble is an fp16 subnormal (n * 2^-24; n * 2^-20 for the high ones, whose scale is s/16), and
 * n * s <= 945 stays one, exactly: the whole superblock chains into one accumulator. */
struct form_q4k {
    enum { BYTES = TILE_Q4_K, CHUNKS = 4, MINS = 1 };
    uint32_t s[2][2]; /* of rows g, g + 8: 6-bit scales of subs 0..3, 4..7 */
    uint32_t min[2];  /* mins of subs 2t, 2t+1 as subnormals */
    float d[2], dmin[2];

    static __device__ constexpr int first(int chunk)
    {
        return 2 * chunk;
    }
    static __device__ constexpr int last(int chunk)
    {
        return 2 * chunk + 1;
    }
    __device__ __forceinline__ form_q4k(const struct tile_head &h)
    {
        const uint32_t t = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 v = h.row[r];
            d[r] = decode_half((uint16_t)v.x) * 16777216.0f;
            dmin[r] = decode_half((uint16_t)(v.x >> 16)) * 16777216.0f;
            s[r][0] = v.y & 0x3f3f3f3f;
            s[r][1] = (v.w & 0x0f0f0f0f) | ((v.y >> 2) & 0x30303030);
            uint32_t m0 = v.z & 0x3f3f3f3f, m1 = ((v.w >> 4) & 0x0f0f0f0f) | ((v.z >> 2) & 0x30303030);
            min[r] = __byte_perm(t < 2 ? m0 : m1, 0, t & 1 ? 0x4342 : 0x4140);
        }
    }
    __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub) const
    {
        const uint32_t one = sub & 1 ? 0x2c002c00u : 0x3c003c00u; /* 1/16 or 1 */
        const uint32_t off = sub & 1 ? 0xd400d400u : 0xe400e400u; /* -64 or -1024 */
        const uint32_t mask = sub & 1 ? 0x00f000f0u : 0x000f000fu;
        const uint32_t sa = fma2(plus_1024(s[0][sub / 4], sub % 4), one, off);
        const uint32_t sb = fma2(plus_1024(s[1][sub / 4], sub % 4), one, off);
        const uint4 v = q[sub / 2];
        a[0] = mul2(v.x & mask, sa), a[1] = mul2(v.z & mask, sb);
        a[2] = mul2(v.x >> 8 & mask, sa), a[3] = mul2(v.z >> 8 & mask, sb);
        a[4] = mul2(v.y & mask, sa), a[5] = mul2(v.w & mask, sb);
        a[6] = mul2(v.y >> 8 & mask, sa), a[7] = mul2(v.w >> 8 & mask, sb);
    }
};

/* Q6_K: 64 + q as fp16 has q in bits 4..9; one fma makes it s * (q - 32), rounded to fp16. */
struct form_q6k {
    enum { BYTES = TILE_Q6_K, CHUNKS = 6, MINS = 0 };
    uint2 s[2];
    float d[2];

    static __device__ constexpr int first(int chunk)
    {
        return chunk / 3 * 4 + chunk % 3 % 2;
    }
    static __device__ constexpr int last(int chunk)
    {
        return chunk / 3 * 4 + (chunk % 3 ? 3 : 2);
    }
    __device__ __forceinline__ form_q6k(const struct tile_head &h)
    {
        const bool odd = threadIdx.x & 2; /* scales of the groups of 16 that the lane's columns are in */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r] = make_uint2((odd ? h.row[r].z : h.row[r].x) ^ 0x80808080u,
                              (odd ? h.row[r].w : h.row[r].y) ^ 0x80808080u);
            d[r] = decode_half(h.d[r]);
        }
    }
    /* Shift left by n, to the right for negative n. */
    static __device__ __forceinline__ uint32_t shift(uint32_t v, int n)
    {
        return n >= 0 ? v << n : v >> -n;
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t low, uint32_t high, uint32_t k, uint32_t c)
    {
        return fma2((low & 0x00f000f0u) | (high & 0x03000300u) | 0x54005400u, k, c);
    }
    __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub) const
    {
        const int half = sub / 4, quarter = sub % 4, ls = quarter < 2 ? 4 : 0, hs = 8 - 2 * quarter;
        const uint4 h = q[3 * half + 2], l = q[3 * half + (quarter & 1)];
        /* scales as halves: 1024 + 128 + s, minus 1152; then -96 of them */
        const uint32_t ka = fma2(plus_1024(half ? s[0].y : s[0].x, quarter), 0x3c003c00u, 0xe480e480u);
        const uint32_t kb = fma2(plus_1024(half ? s[1].y : s[1].x, quarter), 0x3c003c00u, 0xe480e480u);
        const uint32_t ca = mul2(ka, 0xd600d600u), cb = mul2(kb, 0xd600d600u);
        a[0] = pair(shift(l.x, ls), shift(h.x, hs), ka, ca);
        a[1] = pair(shift(l.z, ls), shift(h.z, hs), kb, cb);
        a[2] = pair(shift(l.x, ls - 8), shift(h.x, hs - 8), ka, ca);
        a[3] = pair(shift(l.z, ls - 8), shift(h.z, hs - 8), kb, cb);
        a[4] = pair(shift(l.y, ls), shift(h.y, hs), ka, ca);
        a[5] = pair(shift(l.w, ls), shift(h.w, hs), kb, cb);
        a[6] = pair(shift(l.y, ls - 8), shift(h.y, hs - 8), ka, ca);
        a[7] = pair(shift(l.w, ls - 8), shift(h.w, hs - 8), kb, cb);
    }
};

/* Q8_0: 1152 + q in each half, minus 1152, times d, rounded to fp16. */
struct form_q8 {
    enum { BYTES = TILE_Q8_0, CHUNKS = 8, MINS = 0 };
    uint4 s[2]; /* of a row: eight d */
    float d[2];

    static __device__ constexpr int first(int chunk)
    {
        return chunk;
    }
    static __device__ constexpr int last(int chunk)
    {
        return chunk;
    }
    __device__ __forceinline__ form_q8(const struct tile_head &h)
    {
        s[0] = h.row[0], s[1] = h.row[1];
        d[0] = d[1] = 1.0f;
    }
    static __device__ __forceinline__ uint32_t scale(const uint4 &s, int sub)
    {
        const uint32_t w = sub < 2 ? s.x : sub < 4 ? s.y : sub < 6 ? s.z : s.w;
        return __byte_perm(w, w, sub & 1 ? 0x3232 : 0x1010);
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t w, int odd, uint32_t d)
    {
        return mul2(fma2(__byte_perm(w ^ 0x80808080u, 0x64, odd ? 0x4341 : 0x4240), 0x3c003c00u, 0xe480e480u),
                    d);
    }
    __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub) const
    {
        const uint32_t da = scale(s[0], sub), db = scale(s[1], sub);
        const uint4 v = q[sub];
        a[0] = pair(v.x, 0, da), a[1] = pair(v.z, 0, db);
        a[2] = pair(v.x, 1, da), a[3] = pair(v.z, 1, db);
        a[4] = pair(v.y, 0, da), a[5] = pair(v.w, 0, db);
        a[6] = pair(v.y, 1, da), a[7] = pair(v.w, 1, db);
    }
};

/* MXFP4: a nibble's three bits are the last of fp16's exponent and the first of its fraction, which makes it the value
 * times 2^-14; the factor 2^14 and the group's exponent, less the largest of the row's, are multiplied with it. */
static __device__ __forceinline__ uint32_t shift_by(uint32_t v, int n)
{
    return n >= 0 ? v << n : v >> -n;
}

/* Two values times 2^-14 of w: of bytes 0 and 2, or (odd) 1 and 3; of the low halves, or the high ones. */
static __device__ __forceinline__ uint32_t pair_e2m1(uint32_t w, bool odd, bool high)
{
    const int by = 9 - (odd ? 8 : 0) - (high ? 4 : 0);
    return (shift_by(w, by) & 0x0e000e00u) | (shift_by(w, by + 3) & 0x80008000u);
}

/* A row's exponents, which are half of the 16 bytes that its head has. */
static __device__ __forceinline__ uint2 tile_exponents(const uint4 &v)
{
    return threadIdx.x & 4 ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y);
}

struct form_mxfp4 {
    enum { BYTES = TILE_MXFP4, CHUNKS = 4, MINS = 0 };
    uint2 e[2]; /* of a row: eight exponents */
    uint32_t most[2];
    float d[2];

    static __device__ constexpr int first(int chunk)
    {
        return 2 * chunk;
    }
    static __device__ constexpr int last(int chunk)
    {
        return 2 * chunk + 1;
    }
    __device__ __forceinline__ form_mxfp4(const struct tile_head &h)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            e[r] = tile_exponents(h.row[r]);
            const uint32_t four = __vmaxu4(e[r].x, e[r].y), two = __vmaxu4(four, four >> 16);
            most[r] = max(two & 255, two >> 8 & 255);
            d[r] = f8_e8m0_to_f32((uint8_t)most[r]);
        }
    }
    __device__ __forceinline__ uint32_t scale(int r, int sub) const
    {
        const int by = 29 - (int)most[r] + (int)((sub < 4 ? e[r].x : e[r].y) >> 8 * (sub % 4) & 255);
        return (uint32_t)max(by, 0) * 0x04000400u;
    }
    __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub) const
    {
        const uint32_t sa = scale(0, sub), sb = scale(1, sub);
        const uint4 v = q[sub / 2];
        const bool high = sub & 1;
        a[0] = mul2(pair_e2m1(v.x, false, high), sa), a[1] = mul2(pair_e2m1(v.z, false, high), sb);
        a[2] = mul2(pair_e2m1(v.x, true, high), sa), a[3] = mul2(pair_e2m1(v.z, true, high), sb);
        a[4] = mul2(pair_e2m1(v.y, false, high), sa), a[5] = mul2(pair_e2m1(v.w, false, high), sb);
        a[6] = mul2(pair_e2m1(v.y, true, high), sa), a[7] = mul2(pair_e2m1(v.w, true, high), sb);
    }
};

/* The first tile of a strip, of whichever form of at most N chunks: asked for before x is there. */
template <int N> struct tile_ahead_of {
    uint4 q[N];
    struct tile_head head;

    __device__ __forceinline__ tile_ahead_of(uint32_t fmt, const uint8_t *p)
    {
        const uint32_t chunks = fmt == FMT_Q4_K_TILE || fmt == FMT_MXFP4 ? 4 : fmt == FMT_Q6_K_TILE ? 6 : 8;
#pragma unroll
        for (int j = 0; j < N; j++) {
            q[j] = make_uint4(0, 0, 0, 0);
            load_more(q[j], p + 512 * j + threadIdx.x % 32 * 16, j < chunks);
        }
        /* as tile_head, without a branch by form: where two ways meet, what was loaded is copied, and all wait for it */
        const uint32_t g = threadIdx.x % 32 / 4, row = fmt == FMT_MXFP4 ? 8 : 16;
        const uint8_t *at = p + 512 * chunks + row * g / 16 * 16;
        head.row[0] = load_stream(at);
        head.row[1] = load_stream(at + 8 * row);
        head.d[0] = head.d[1] = 0;
        load_more(head.d[0], p + 3328 + 2 * g, fmt == FMT_Q6_K_TILE);
        load_more(head.d[1], p + 3328 + 2 * (g + 8), fmt == FMT_Q6_K_TILE);
    }
};
struct tile_ahead : tile_ahead_of<CHUNKS_MOST> {
    using tile_ahead_of::tile_ahead_of;
};

/* Columns [from, to), at least one, of a strip of tiles, of which p is the first. The chunks of the next tile are asked for
 * as soon as those of this one are used. */
template <class FORM, int NB, class X>
static __device__ __forceinline__ void tile_columns(float acc[NB][4], struct tile_ahead &t, const uint8_t *p,
                                                    uint32_t from, uint32_t to, X &x)
{
    const uint32_t lane16 = threadIdx.x % 32 * 16;
    for (uint32_t s = from; s < to; s++) {
        const struct x_column in = x.enter(s);
        const FORM w(t.head);
        float c[NB][4] = {}, mn[NB][4] = {};
        const bool more = s + 1 < to;
        p += more ? FORM::BYTES : 0; /* of the last tile the head is fetched again */
        t.head = tile_head(p, FORM::BYTES, load_stream);
        if constexpr (FORM::MINS) {
#pragma unroll
            for (int nb = 0; nb < NB; nb++) {
                const uint2 sum = *(const uint2 *)(in.sum + nb * PACK_BYTES);
                mma_f16(mn[nb], w.min[0], w.min[1], w.min[0], w.min[1], sum.x, sum.y);
            }
        }
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
            uint4 b[NB];
            uint32_t a[8];
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                b[nb] = *(const uint4 *)(in.b + nb * PACK_BYTES + X::SUB * sub);
            w.sub(a, t.q, sub);
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                mma_f16(c[nb], a[0], a[1], a[2], a[3], b[nb].x, b[nb].y);
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                mma_f16(c[nb], a[4], a[5], a[6], a[7], b[nb].z, b[nb].w);
#pragma unroll
            for (int j = 0; j < FORM::CHUNKS; j++)
                if (FORM::last(j) == sub)
                    load_more(t.q[j], p + 512 * j + lane16, more);
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const float2 xs = *(const float2 *)(in.scale + nb * PACK_BYTES);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = w.d[i / 2] * c[nb][i];
                if constexpr (FORM::MINS)
                    v -= w.dmin[i / 2] * mn[nb][i];
                acc[nb][i] += (i & 1 ? xs.y : xs.x) * v;
            }
        }
        x.leave(s);
    }
}

template <class FORM, int NB, class X>
static __device__ __forceinline__ void form_columns(float acc[NB][4], uint32_t fmt, const uint8_t *p,
                                                    uint32_t from, uint32_t to, X &x)
{
    struct tile_ahead t(fmt, p);
    x.begin(from);
    tile_columns<FORM, NB>(acc, t, p, from, to, x);
}

/* Whichever form the weight has. */
template <int NB, class X>
static __device__ __forceinline__ void strip_columns(float acc[NB][4], uint32_t fmt, const uint8_t *strip,
                                                     uint32_t from, uint32_t to, X &x)
{
    const uint8_t *p = strip + (uint64_t)from * layout_tile_bytes(fmt);
    if (fmt == FMT_Q4_K_TILE)
        form_columns<form_q4k, NB>(acc, FMT_Q4_K_TILE, p, from, to, x);
    else if (fmt == FMT_Q6_K_TILE)
        form_columns<form_q6k, NB>(acc, FMT_Q6_K_TILE, p, from, to, x);
    else if (fmt == FMT_MXFP4)
        form_columns<form_mxfp4, NB>(acc, FMT_MXFP4, p, from, to, x);
    else
        form_columns<form_q8, NB>(acc, FMT_Q8_0, p, from, to, x);
}

/* Eight decoded values as the A operand wants them: (0,2) (1,3) (4,6) (5,7). */
template <int FMT>
static __device__ __forceinline__ uint4 gemm_decode(const struct mat &w, uint32_t r, uint32_t i8)
{
    if (FMT == FMT_F16) {
        uint4 v = load_stream(w.base + r * w.stride + 16 * (uint64_t)i8);
        return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                          __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
    }
    float v[8];
    decode8(w.base, w.stride, FMT, w.k, r, i8, v);
    return make_uint4(half_bits2(v[0], v[2]), half_bits2(v[1], v[3]), half_bits2(v[4], v[6]),
                      half_bits2(v[5], v[7]));
}

template <int FMT, int NB>
static __device__ __forceinline__ void any_columns(float acc[NB][4], const struct mat &m, uint32_t first,
                                                   uint32_t from, uint32_t to, struct x_memory &source)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    /* Rows past the last one read the last one; their results are not stored. */
    const uint32_t ra = min(first + g, m.n - 1), rb = min(first + g + 8, m.n - 1), subs = (m.k + 31) / 32;
    source.begin(from);
    for (uint32_t s = from; s < to; s++) {
        const struct x_column in = source.enter(s);
        float c[NB][4];
#pragma unroll
        for (int nb = 0; nb < NB; nb++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[nb][i] = 0.0f;
        const uint32_t here = min(8u, subs - 8 * s);
        auto sub_step = [&](uint32_t sub, const uint4 &x, const uint4 &y) {
            uint4 v[NB];
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                v[nb] = *(const uint4 *)(in.b + nb * PACK_BYTES + 512 * sub);
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                mma_f16(c[nb], x.x, y.x, x.y, y.y, v[nb].x, v[nb].y);
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                mma_f16(c[nb], x.z, y.z, x.w, y.w, v[nb].z, v[nb].w);
        };
        if (here == 8) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[i] = gemm_decode<FMT>(m, ra, 4 * (8 * s + 4 * half + i) + t);
                    y[i] = gemm_decode<FMT>(m, rb, 4 * (8 * s + 4 * half + i) + t);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sub_step(4 * half + i, x[i], y[i]);
            }
        } else {
            for (uint32_t sub = 0; sub < here; sub++)
                sub_step(sub, gemm_decode<FMT>(m, ra, 4 * (8 * s + sub) + t),
                         gemm_decode<FMT>(m, rb, 4 * (8 * s + sub) + t));
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const float2 xs = *(const float2 *)(in.scale + nb * PACK_BYTES);
            acc[nb][0] += xs.x * c[nb][0];
            acc[nb][1] += xs.y * c[nb][1];
            acc[nb][2] += xs.x * c[nb][2];
            acc[nb][3] += xs.y * c[nb][3];
        }
    }
}

/* Which segment a strip belongs to: in turns where gate and up are paired. */
static __device__ __forceinline__ uint32_t gemm_segment(const struct gemm_args &p, uint32_t strip)
{
    if (p.paired)
        return strip & 1;
    return p.segs > 3 && strip >= p.seg[3].first   ? 3
           : p.segs > 2 && strip >= p.seg[2].first ? 2
           : p.segs > 1 && strip >= p.seg[1].first ? 1
                                                   : 0;
}

/* Its number within its segment. */
static __device__ __forceinline__ uint32_t gemm_within(const struct gemm_args &p, const struct gemm_seg &seg,
                                                       uint32_t strip)
{
    return p.paired ? strip >> 1 : strip - seg.first;
}

/* A warp's sums to where the warps of its strip add up. */
template <int NB>
static __device__ __forceinline__ void gemm_leave(const float acc[NB][4], float (*room)[NB * 8 + 1])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int nb = 0; nb < NB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            room[g + i / 2 * 8][8 * nb + 2 * t + i % 2] = acc[nb][i];
}

/* Which rows a block has: m of them from `first` on, with the matrices of one expert. */
struct gemm_rows {
    uint32_t m, expert;
    uint64_t first;
};

/* The block's tile of experts' rows. Where the sorting is known to have ended (p.tile_there) it is read without waiting for
 * the predecessor, so that weights are on their way when that ends; the caller waits before it reads x, or returns. The
 * load goes past L1, which may hold an older list. It is volatile, so the compiler leaves it where it is. */
static __device__ __forceinline__ struct moe_tile gemm_tile_of(const struct gemm_args &p)
{
    struct moe_tile t;
    if (!p.tile_there)
        dep_wait();
    asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];"
                 : "=r"(t.expert), "=r"(t.rows)
                 : "l"(p.tile + blockIdx.y)
                 : "memory");
    if (t.expert < 0)
        dep_wait(); /* a kernel must not end before its predecessor has */
    return t;
}

static __device__ __forceinline__ float gemm_act(const struct gemm_args &p, float gate, float up)
{
    return p.act == ACT_SWIGLU_OAI ? swiglu_oai(p.alpha, p.limit, gate, up) : act_one(p.act, gate) * up;
}

/* What is added to output n of an expert. */
static __device__ __forceinline__ float gemm_bias(const struct gemm_seg &seg, uint32_t expert, uint32_t n)
{
    return seg.bias ? seg.bias[(uint64_t)expert * seg.w.n + n] : 0.0f;
}

/* log2 of the rows of a block, rounded up: what counts in powers of two needs no division. */
template <int NB> static __device__ __forceinline__ uint32_t gemm_row_bits(const struct gemm_rows &rows)
{
    return 32 - __clz(min(rows.m, 8u * NB) - 1);
}

/* Gate and up of 16 outputs lie in neighbouring strips of one block: y = act(gate) * up. */
template <int NB>
static __device__ __forceinline__ void gemm_store_pairs(const struct gemm_args &p,
                                                        const float (*room)[TILE_ROWS][NB * 8 + 1],
                                                        const struct gemm_rows &rows)
{
    const uint32_t pairs = blockDim.x / 32 / p.split / 2, bits = gemm_row_bits<NB>(rows);
    for (uint32_t i = threadIdx.x; i < pairs * TILE_ROWS << bits; i += blockDim.x) {
        const uint32_t row = i % TILE_ROWS, stream = i / TILE_ROWS & ((1u << bits) - 1),
                       k = i / TILE_ROWS >> bits;
        const uint32_t n = (blockIdx.x * pairs + k) * TILE_ROWS + row;
        if (n >= p.seg[0].w.n || stream >= rows.m)
            continue;
        float gate = gemm_bias(p.seg[0], rows.expert, n), up = gemm_bias(p.seg[1], rows.expert, n);
        for (uint32_t j = 0; j < p.split; j++) {
            gate += room[2 * k * p.split + j][row][stream];
            up += room[(2 * k + 1) * p.split + j][row][stream];
        }
        p.seg[0].y[(rows.first + stream) * p.seg[0].ldy + n] = gemm_act(p, gate, up);
    }
}

/* Adds up the warps that shared a strip, and stores. */
template <int NB>
static __device__ __forceinline__ void gemm_store(const struct gemm_args &p,
                                                  const float (*room)[TILE_ROWS][NB * 8 + 1],
                                                  const struct gemm_rows &rows)
{
    const uint32_t per_block = blockDim.x / 32 / p.split, bits = gemm_row_bits<NB>(rows);
    for (uint32_t i = threadIdx.x; i < per_block * TILE_ROWS << bits; i += blockDim.x) {
        const uint32_t row = i % TILE_ROWS, stream = i / TILE_ROWS & ((1u << bits) - 1),
                       k = i / TILE_ROWS >> bits;
        const uint32_t strip = blockIdx.x * per_block + k;
        if (strip >= p.strips || stream >= rows.m)
            continue;
        const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
        const uint32_t n = (strip - seg.first) * TILE_ROWS + row;
        if (n >= seg.w.n)
            continue;
        float y = 0.0f;
        for (uint32_t j = 0; j < p.split; j++)
            y += room[k * p.split + j][row][stream];
        const uint64_t r = rows.first + stream;
        y = (y + gemm_bias(seg, rows.expert, n)) * p.scale;
        if (p.residual)
            y += p.residual[r * p.ldr + n];
        seg.y[r * seg.ldy + n] = y;
    }
}

/* FMT 0: tiles, whichever the segment has. */
template <int FMT, int NB, int WARPS>
static __device__ __forceinline__ void gemm_body(const struct gemm_args &p)
{
    __shared__ float room[WARPS][TILE_ROWS][NB * 8 + 1];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t part = warp % p.split, strip = blockIdx.x * (blockDim.x / 32 / p.split) + warp / p.split;
    const uint32_t columns = (p.k + 255) / 256;
    float acc[NB][4] = {};
    const uint8_t *x = p.x;
    struct gemm_rows rows = {p.m, 0, 0};
    if (p.tile) {
        const struct moe_tile tile = gemm_tile_of(p);
        if (tile.expert < 0)
            return;
        x += (uint64_t)blockIdx.y * columns * p.groups * PACK_BYTES;
        rows = {tile.rows, (uint32_t)tile.expert, blockIdx.y * 8ull * p.groups};
    }
    struct x_memory where(x, p.groups, rows.m);
    if (strip < p.strips) {
        const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
        const uint32_t at = gemm_within(p, seg, strip);
        const uint32_t from = columns * part / p.split, to = columns * (part + 1) / p.split;
        const uint8_t *base = seg.w.base + rows.expert * seg.w.each;
        if constexpr (FMT == 0) {
            strip_columns<NB>(acc, seg.w.fmt, base + at * seg.w.stride, from, to, where);
        } else {
            struct mat w = seg.w;
            w.base = base;
            any_columns<FMT, NB>(acc, w, at * TILE_ROWS, from, to, where);
        }
    } else {
        dep_wait();
    }
    gemm_leave<NB>(acc, room[warp]);
    __syncthreads();
    if (p.paired)
        gemm_store_pairs<NB>(p, room, rows);
    else
        gemm_store<NB>(p, room, rows);
}

/* warps: of a block, at most; blocks: of an SM, which leaves them fewer registers. Kernels for up to 16 rows run as two
 * blocks of GEMM_WARPS an SM, or as one of all its warps: the same kernel, so that its code stays in the instruction
 * cache. */
#define GEMM_KERNEL(name, fmt, nb, warps, blocks)                                                            \
    extern "C" __global__ void __launch_bounds__(warps * 32, blocks)                                         \
        name(const __grid_constant__ struct gemm_args p)                                                     \
    {                                                                                                        \
        gemm_body<fmt, nb, warps>(p);                                                                        \
    }

#define GEMM_KERNELS(name, fmt)                                                                              \
    GEMM_KERNEL(name##_8, fmt, 1, GEMM_DEEP, 1)                                                              \
    GEMM_KERNEL(name##_16, fmt, 2, GEMM_DEEP, 1)                                                             \
    GEMM_KERNEL(name##_32, fmt, 4, GEMM_WARPS, 1)                                                            \
    GEMM_KERNEL(name##_64, fmt, 8, GEMM_WARPS, 1)
