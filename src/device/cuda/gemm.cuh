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
    __device__ __forceinline__ void begin()
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

/* Q4_K: a nibble is an fp16 subnormal (n * 2^-24; n * 2^-20 for the high ones, whose scale is s/16), and
 * n * s <= 945 stays one, exactly: the whole superblock chains into one accumulator. */
struct q4k_head {
    uint32_t s0, s1; /* 6-bit scales of subs 0..3, 4..7 */
    uint32_t min;    /* mins of subs 2t, 2t+1 as subnormals */
    float d, dmin;   /* times 2^24 */
};

static __device__ __forceinline__ struct q4k_head q4k_header(uint4 h)
{
    struct q4k_head r;
    uint32_t t = threadIdx.x % 4;
    r.d = decode_half((uint16_t)h.x) * 16777216.0f;
    r.dmin = decode_half((uint16_t)(h.x >> 16)) * 16777216.0f;
    r.s0 = h.y & 0x3f3f3f3f;
    r.s1 = (h.w & 0x0f0f0f0f) | ((h.y >> 2) & 0x30303030);
    uint32_t m0 = h.z & 0x3f3f3f3f, m1 = ((h.w >> 4) & 0x0f0f0f0f) | ((h.z >> 2) & 0x30303030);
    r.min = __byte_perm(t < 2 ? m0 : m1, 0, t & 1 ? 0x4342 : 0x4140);
    return r;
}

/* Both halves 1024 + s, from byte i of w. */
static __device__ __forceinline__ uint32_t q4k_1024(uint32_t w, int i)
{
    return __byte_perm(w, 0x64, 0x4040 + 0x0101 * i);
}

/* RT strips of 16 outputs share what is read of x. */
template <int NB, int RT, class X>
static __device__ __forceinline__ void q4k_columns(float acc[RT][NB][4], const uint8_t *const strip[RT],
                                                   uint32_t from, uint32_t to, X &x)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4;
    uint4 q[RT][4], h[RT][2];
    const uint8_t *p[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) {
        p[r] = strip[r] + (uint64_t)from * TILE_Q4_K;
        if (from < to) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                q[r][j] = load_stream(p[r] + 512 * j + 16 * lane);
            h[r][0] = load_stream(p[r] + 2048 + 16 * g);
            h[r][1] = load_stream(p[r] + 2048 + 16 * (g + 8));
        }
    }
    x.begin();
    for (uint32_t s = from; s < to; s++) {
        const struct x_column in = x.enter(s);
        struct q4k_head hd[RT][2];
        float c[RT][NB][4] = {}, mn[RT][NB][4] = {};
        const uint32_t step = s + 1 < to ? TILE_Q4_K : 0; /* the last tile is fetched again at the end */
#pragma unroll
        for (int r = 0; r < RT; r++) {
            hd[r][0] = q4k_header(h[r][0]);
            hd[r][1] = q4k_header(h[r][1]);
            p[r] += step;
            h[r][0] = load_stream(p[r] + 2048 + 16 * g);
            h[r][1] = load_stream(p[r] + 2048 + 16 * (g + 8));
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const uint2 sum = *(const uint2 *)(in.sum + nb * PACK_BYTES);
#pragma unroll
            for (int r = 0; r < RT; r++)
                mma_f16(mn[r][nb], hd[r][0].min, hd[r][1].min, hd[r][0].min, hd[r][1].min, sum.x, sum.y);
        }
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
            const int j = sub / 2;
            const uint32_t one = sub & 1 ? 0x2c002c00u : 0x3c003c00u; /* 1/16 or 1 */
            const uint32_t off = sub & 1 ? 0xd400d400u : 0xe400e400u; /* -64 or -1024 */
            const uint32_t mask = sub & 1 ? 0x00f000f0u : 0x000f000fu;
            uint4 b[NB];
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                b[nb] = *(const uint4 *)(in.b + nb * PACK_BYTES + X::SUB * sub);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                uint32_t sa = fma2(q4k_1024(sub < 4 ? hd[r][0].s0 : hd[r][0].s1, sub % 4), one, off);
                uint32_t sb = fma2(q4k_1024(sub < 4 ? hd[r][1].s0 : hd[r][1].s1, sub % 4), one, off);
                const uint4 v = q[r][j];
                uint32_t a0 = mul2(v.x & mask, sa), a1 = mul2(v.z & mask, sb);
                uint32_t a2 = mul2(v.x >> 8 & mask, sa), a3 = mul2(v.z >> 8 & mask, sb);
                uint32_t a4 = mul2(v.y & mask, sa), a5 = mul2(v.w & mask, sb);
                uint32_t a6 = mul2(v.y >> 8 & mask, sa), a7 = mul2(v.w >> 8 & mask, sb);
#pragma unroll
                for (int nb = 0; nb < NB; nb++)
                    mma_f16(c[r][nb], a0, a1, a2, a3, b[nb].x, b[nb].y);
#pragma unroll
                for (int nb = 0; nb < NB; nb++)
                    mma_f16(c[r][nb], a4, a5, a6, a7, b[nb].z, b[nb].w);
                if (sub & 1)
                    q[r][j] = load_stream(p[r] + 512 * j + 16 * lane);
            }
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const float2 xs = *(const float2 *)(in.scale + nb * PACK_BYTES);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const struct q4k_head &e = hd[r][0], &f = hd[r][1];
                acc[r][nb][0] += xs.x * (e.d * c[r][nb][0] - e.dmin * mn[r][nb][0]);
                acc[r][nb][1] += xs.y * (e.d * c[r][nb][1] - e.dmin * mn[r][nb][1]);
                acc[r][nb][2] += xs.x * (f.d * c[r][nb][2] - f.dmin * mn[r][nb][2]);
                acc[r][nb][3] += xs.y * (f.d * c[r][nb][3] - f.dmin * mn[r][nb][3]);
            }
        }
        x.leave(s);
    }
}

/* Q6_K: 64 + q as fp16 has q in bits 4..9; one fma makes it s * (q - 32), rounded to fp16. */
static __device__ __forceinline__ uint32_t q6k_pair(uint32_t low, uint32_t high, uint32_t s, uint32_t c)
{
    return fma2((low & 0x00f000f0u) | (high & 0x03000300u) | 0x54005400u, s, c);
}

/* Shift left by n, to the right for negative n. */
static __device__ __forceinline__ uint32_t shift(uint32_t v, int n)
{
    return n >= 0 ? v << n : v >> -n;
}

/* The lane's two rows of scales and d: fetched a tile ahead, like the quants. */
struct q6k_head {
    uint2 sa, sb;
    uint16_t da, db;
};

static __device__ __forceinline__ struct q6k_head q6k_header(const uint8_t *p)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    struct q6k_head h;
    h.sa = *(const uint2 *)(p + 3072 + 16 * g + 8 * (t / 2));
    h.sb = *(const uint2 *)(p + 3072 + 16 * (g + 8) + 8 * (t / 2));
    h.da = *(const uint16_t *)(p + 3328 + 2 * g);
    h.db = *(const uint16_t *)(p + 3328 + 2 * (g + 8));
    return h;
}

template <int NB, int RT, class X>
static __device__ __forceinline__ void q6k_columns(float acc[RT][NB][4], const uint8_t *const strip[RT],
                                                   uint32_t from, uint32_t to, X &x)
{
    const uint32_t lane = threadIdx.x % 32;
    uint4 q[RT][6];
    struct q6k_head next[RT];
    const uint8_t *p[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) {
        p[r] = strip[r] + (uint64_t)from * TILE_Q6_K;
        if (from < to) {
#pragma unroll
            for (int j = 0; j < 6; j++)
                q[r][j] = load_stream(p[r] + 512 * j + 16 * lane);
            next[r] = q6k_header(p[r]);
        }
    }
    x.begin();
    for (uint32_t s = from; s < to; s++) {
        const struct x_column in = x.enter(s);
        const uint32_t step = s + 1 < to ? TILE_Q6_K : 0;
        float c[RT][NB][4];
        struct q6k_head hd[RT];
#pragma unroll
        for (int r = 0; r < RT; r++) {
            hd[r] = next[r];
            p[r] += step;
            next[r] = q6k_header(p[r]);
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[r][nb][i] = 0.0f;
        }
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
            const int half = sub / 4, quarter = sub % 4, ls = quarter < 2 ? 4 : 0, hs = 8 - 2 * quarter;
            uint4 b[NB];
#pragma unroll
            for (int nb = 0; nb < NB; nb++)
                b[nb] = *(const uint4 *)(in.b + nb * PACK_BYTES + X::SUB * sub);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const uint4 h = q[r][3 * half + 2], l = q[r][3 * half + (quarter & 1)];
                /* scales as halves: 1024 + 128 + s, minus 1152; then -96 of them */
                uint32_t ka = fma2(q4k_1024((sub < 4 ? hd[r].sa.x : hd[r].sa.y) ^ 0x80808080u, sub % 4),
                                   0x3c003c00u, 0xe480e480u);
                uint32_t kb = fma2(q4k_1024((sub < 4 ? hd[r].sb.x : hd[r].sb.y) ^ 0x80808080u, sub % 4),
                                   0x3c003c00u, 0xe480e480u);
                uint32_t ca = mul2(ka, 0xd600d600u), cb = mul2(kb, 0xd600d600u);
                uint32_t a0 = q6k_pair(shift(l.x, ls), shift(h.x, hs), ka, ca);
                uint32_t a1 = q6k_pair(shift(l.z, ls), shift(h.z, hs), kb, cb);
                uint32_t a2 = q6k_pair(shift(l.x, ls - 8), shift(h.x, hs - 8), ka, ca);
                uint32_t a3 = q6k_pair(shift(l.z, ls - 8), shift(h.z, hs - 8), kb, cb);
                uint32_t a4 = q6k_pair(shift(l.y, ls), shift(h.y, hs), ka, ca);
                uint32_t a5 = q6k_pair(shift(l.w, ls), shift(h.w, hs), kb, cb);
                uint32_t a6 = q6k_pair(shift(l.y, ls - 8), shift(h.y, hs - 8), ka, ca);
                uint32_t a7 = q6k_pair(shift(l.w, ls - 8), shift(h.w, hs - 8), kb, cb);
#pragma unroll
                for (int nb = 0; nb < NB; nb++)
                    mma_f16(c[r][nb], a0, a1, a2, a3, b[nb].x, b[nb].y);
#pragma unroll
                for (int nb = 0; nb < NB; nb++)
                    mma_f16(c[r][nb], a4, a5, a6, a7, b[nb].z, b[nb].w);
                if (quarter == 3)
#pragma unroll
                    for (int i = 3 * half; i < 3 * half + 3; i++)
                        q[r][i] = load_stream(p[r] + 512 * i + 16 * lane);
            }
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const float2 xs = *(const float2 *)(in.scale + nb * PACK_BYTES);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const float fa = decode_half(hd[r].da), fb = decode_half(hd[r].db);
                acc[r][nb][0] += xs.x * fa * c[r][nb][0];
                acc[r][nb][1] += xs.y * fa * c[r][nb][1];
                acc[r][nb][2] += xs.x * fb * c[r][nb][2];
                acc[r][nb][3] += xs.y * fb * c[r][nb][3];
            }
        }
        x.leave(s);
    }
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
    if (FMT == FMT_Q8_0) {
        const uint8_t *row = w.base + r * w.stride;
        uint2 v = *(const uint2 *)(row + 8 * (uint64_t)i8);
        uint32_t d = *(const uint16_t *)(row + w.k + 2 * (uint64_t)(i8 / 4));
        d |= d << 16;
        v.x ^= 0x80808080u;
        v.y ^= 0x80808080u;
        /* 1152 + q in each half, minus 1152, times d */
        const uint32_t one = 0x3c003c00u, off = 0xe480e480u;
        return make_uint4(mul2(fma2(__byte_perm(v.x, 0x64, 0x4240), one, off), d),
                          mul2(fma2(__byte_perm(v.x, 0x64, 0x4341), one, off), d),
                          mul2(fma2(__byte_perm(v.y, 0x64, 0x4240), one, off), d),
                          mul2(fma2(__byte_perm(v.y, 0x64, 0x4341), one, off), d));
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
    source.begin();
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
    return p.segs > 2 && strip >= p.seg[2].first ? 2 : p.segs > 1 && strip >= p.seg[1].first ? 1 : 0;
}

/* Its number within its segment. */
static __device__ __forceinline__ uint32_t gemm_within(const struct gemm_args &p, const struct gemm_seg &seg,
                                                       uint32_t strip)
{
    return p.paired ? strip >> 1 : strip - seg.first;
}

/* Gate and up of 16 outputs lie in neighbouring strips of one block: y = act(gate) * up. */
template <int NB>
static __device__ __forceinline__ void gemm_store_pairs(const struct gemm_args &p,
                                                        const float (*room)[TILE_ROWS][NB * 8 + 1],
                                                        uint32_t m, uint32_t stream0 = 0)
{
    const uint32_t pairs = GEMM_WARPS / p.split / 2, streams = min(m, (uint32_t)NB * 8);
    for (uint32_t i = threadIdx.x; i < pairs * TILE_ROWS * streams; i += GEMM_WARPS * 32) {
        const uint32_t row = i % TILE_ROWS, stream = i / TILE_ROWS % streams, k = i / (TILE_ROWS * streams);
        const uint32_t n = (blockIdx.x * pairs + k) * TILE_ROWS + row;
        if (n >= p.seg[0].w.n)
            continue;
        float gate = p.seg[0].bias ? p.seg[0].bias[n] : 0.0f, up = p.seg[1].bias ? p.seg[1].bias[n] : 0.0f;
        for (uint32_t j = 0; j < p.split; j++) {
            gate += room[2 * k * p.split + j][row][stream];
            up += room[(2 * k + 1) * p.split + j][row][stream];
        }
        p.seg[0].y[(uint64_t)(stream0 + stream) * p.seg[0].ldy + n] = act_one(p.act, gate) * up;
    }
}

/* Adds up the warps that shared a strip, and stores. */
template <int NB, int RT>
static __device__ __forceinline__ void gemm_store(const struct gemm_args &p,
                                                  const float (*room)[RT * TILE_ROWS][NB * 8 + 1], uint32_t m,
                                                  int expert, uint32_t stream0 = 0)
{
    const uint32_t per_block = GEMM_WARPS / p.split, streams = min(m, (uint32_t)NB * 8),
                   rows = RT * TILE_ROWS;
    for (uint32_t i = threadIdx.x; i < per_block * rows * streams; i += GEMM_WARPS * 32) {
        const uint32_t row = i % rows, stream = i / rows % streams, k = i / (rows * streams);
        const uint32_t strip = blockIdx.x * per_block + k;
        if (strip >= p.strips)
            continue;
        const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
        const uint32_t n = (strip - seg.first) * rows + row;
        if (n >= seg.w.n)
            continue;
        float y = 0.0f;
        for (uint32_t j = 0; j < p.split; j++)
            y += room[k * p.split + j][row][stream];
        const uint64_t r = stream0 + stream + (p.expert ? 8ull * blockIdx.y : 0);
        if (seg.bias)
            y += seg.bias[(uint64_t)expert * seg.w.n + n];
        y *= p.scale;
        if (p.residual)
            y += p.residual[r * p.ldr + n];
        seg.y[r * seg.ldy + n] = y;
    }
}

/* FMT 0: Q4_K and Q6_K tiles, whichever the segment has. */
template <int FMT, int NB, int RT> static __device__ __forceinline__ void gemm_body(const struct gemm_args &p)
{
    __shared__ float room[GEMM_WARPS][RT * TILE_ROWS][NB * 8 + 1];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t part = warp % p.split, strip = blockIdx.x * (GEMM_WARPS / p.split) + warp / p.split;
    const uint32_t columns = (p.k + 255) / 256;
    float acc[RT][NB][4] = {};
    const uint8_t *x = p.x;
    uint32_t m = p.m;
    int expert = 0;
    if (p.expert) {
        dep_wait(); /* which experts there are is the predecessor's result */
        expert = p.expert[blockIdx.y];
        if (expert < 0)
            return;
        x += (uint64_t)blockIdx.y * columns * PACK_BYTES;
        m = 8;
    }
    struct x_memory where(x, p.groups, m);
    if (strip < p.strips) {
        const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
        const uint32_t first = gemm_within(p, seg, strip) * RT, last = (seg.w.n - 1) / TILE_ROWS;
        const uint32_t from = columns * part / p.split, to = columns * (part + 1) / p.split;
        const uint8_t *base = seg.w.base + expert * seg.w.each;
        if constexpr (FMT == 0) {
            const uint8_t *at[RT];
#pragma unroll
            for (int r = 0; r < RT; r++)
                at[r] = base + min(first + r, last) * seg.w.stride;
            if (seg.w.fmt == FMT_Q4_K_TILE)
                q4k_columns<NB, RT>(acc, at, from, to, where);
            else
                q6k_columns<NB, RT>(acc, at, from, to, where);
        } else {
            static_assert(FMT == 0 || RT == 1, "one strip");
            struct mat w = seg.w;
            w.base = base;
            any_columns<FMT, NB>(acc[0], w, first * TILE_ROWS, from, to, where);
        }
    } else {
        dep_wait();
    }
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            room[warp][16 * r + g][8 * nb + 2 * t] = acc[r][nb][0];
            room[warp][16 * r + g][8 * nb + 2 * t + 1] = acc[r][nb][1];
            room[warp][16 * r + g + 8][8 * nb + 2 * t] = acc[r][nb][2];
            room[warp][16 * r + g + 8][8 * nb + 2 * t + 1] = acc[r][nb][3];
        }
    __syncthreads();
    if constexpr (RT == 1)
        if (p.paired) {
            gemm_store_pairs<NB>(p, room, m);
            return;
        }
    gemm_store<NB, RT>(p, room, m, expert);
}

#define GEMM_KERNEL(name, fmt, nb, rt, blocks)                                                               \
    extern "C" __global__ void __launch_bounds__(GEMM_WARPS * 32, blocks)                                    \
        name(const __grid_constant__ struct gemm_args p)                                                     \
    {                                                                                                        \
        gemm_body<fmt, nb, rt>(p);                                                                           \
    }

#define GEMM_KERNELS(name, fmt)                                                                              \
    GEMM_KERNEL(name##_8, fmt, 1, 1, 2)                                                                      \
    GEMM_KERNEL(name##_16, fmt, 2, 1, 2)                                                                     \
    GEMM_KERNEL(name##_32, fmt, 4, 1, 1)                                                                     \
    GEMM_KERNEL(name##_64, fmt, 8, 1, 1)
