/* Products of packed activations (params.h) with weights, on the tensor cores: a warp takes 16 outputs
 * and some of the columns, for NB groups of eight streams, so that a weight is read and decoded once
 * for all of them. The A operand is the decoded weight, the scale of its group already in it; B is the
 * packed x. The warps that share a tile's columns add up through shared memory. */
#pragma once

#include "device/cuda/common.cuh"

struct gemm_where {
    const uint8_t *x; /* pack of the first group */
    uint32_t columns; /* of 256 */
    uint32_t m;       /* streams from the first group on */
};

static __device__ __forceinline__ const uint8_t *gemm_x(const struct gemm_where &w, int nb, uint32_t column)
{
    return w.x + ((uint64_t)nb * w.columns + column) * PACK_BYTES;
}

/* B of one sub for group nb: nothing for streams that are not there. */
static __device__ __forceinline__ uint4 gemm_b(const struct gemm_where &w, int nb, const uint8_t *x, uint32_t sub)
{
    uint32_t lane = threadIdx.x % 32;
    if (lane / 4 + 8 * nb < w.m)
        return *(const uint4 *)(x + sub * 512 + lane * 16);
    return make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ float2 gemm_scale(const struct gemm_where &w, int nb, const uint8_t *x)
{
    uint32_t t = threadIdx.x % 4;
    float2 s = make_float2(0.0f, 0.0f);
    if (2 * t + 8 * nb < w.m)
        s = *(const float2 *)(x + PACK_SCALE + 8 * t);
    return s;
}

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

template <int NB>
static __device__ __forceinline__ void q4k_columns(float acc[NB][4], const uint8_t *tile, uint32_t from, uint32_t to,
                                                   const struct gemm_where &w)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4;
    uint4 q[4], h0, h1;
    if (from < to) {
        const uint8_t *p = tile + (uint64_t)from * TILE_Q4_K;
#pragma unroll
        for (int j = 0; j < 4; j++)
            q[j] = load_stream(p + 512 * j + 16 * lane);
        h0 = load_stream(p + 2048 + 16 * g);
        h1 = load_stream(p + 2048 + 16 * (g + 8));
    }
    dep_wait();
    for (uint32_t s = from; s < to; s++) {
        /* The next tile's chunk is fetched into the registers of the one just used; the last tile again at the end. */
        const uint8_t *next = tile + (uint64_t)(s + 1 < to ? s + 1 : s) * TILE_Q4_K;
        struct q4k_head a = q4k_header(h0), b = q4k_header(h1);
        h0 = load_stream(next + 2048 + 16 * g);
        h1 = load_stream(next + 2048 + 16 * (g + 8));
        float c[NB][4], mn[NB][4];
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            uint2 sum = make_uint2(0, 0);
            if (g + 8 * nb < w.m)
                sum = *(const uint2 *)(gemm_x(w, nb, s) + PACK_SUMS + 8 * lane);
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[nb][i] = mn[nb][i] = 0.0f;
            mma_f16(mn[nb], a.min, b.min, a.min, b.min, sum.x, sum.y);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int sub = 2 * j + high;
                const uint32_t one = high ? 0x2c002c00u : 0x3c003c00u; /* 1/16 or 1 */
                const uint32_t off = high ? 0xd400d400u : 0xe400e400u; /* -64 or -1024 */
                const uint32_t mask = high ? 0x00f000f0u : 0x000f000fu;
                uint32_t sa = fma2(q4k_1024(sub < 4 ? a.s0 : a.s1, sub % 4), one, off);
                uint32_t sb = fma2(q4k_1024(sub < 4 ? b.s0 : b.s1, sub % 4), one, off);
                uint32_t a0 = mul2(q[j].x & mask, sa), a1 = mul2(q[j].z & mask, sb);
                uint32_t a2 = mul2(q[j].x >> 8 & mask, sa), a3 = mul2(q[j].z >> 8 & mask, sb);
                uint32_t a4 = mul2(q[j].y & mask, sa), a5 = mul2(q[j].w & mask, sb);
                uint32_t a6 = mul2(q[j].y >> 8 & mask, sa), a7 = mul2(q[j].w >> 8 & mask, sb);
#pragma unroll
                for (int nb = 0; nb < NB; nb++) {
                    uint4 x = gemm_b(w, nb, gemm_x(w, nb, s), sub);
                    mma_f16(c[nb], a0, a1, a2, a3, x.x, x.y);
                    mma_f16(c[nb], a4, a5, a6, a7, x.z, x.w);
                }
            }
            q[j] = load_stream(next + 512 * j + 16 * lane);
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            float2 xs = gemm_scale(w, nb, gemm_x(w, nb, s));
            acc[nb][0] += xs.x * (a.d * c[nb][0] - a.dmin * mn[nb][0]);
            acc[nb][1] += xs.y * (a.d * c[nb][1] - a.dmin * mn[nb][1]);
            acc[nb][2] += xs.x * (b.d * c[nb][2] - b.dmin * mn[nb][2]);
            acc[nb][3] += xs.y * (b.d * c[nb][3] - b.dmin * mn[nb][3]);
        }
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

template <int NB>
static __device__ __forceinline__ void q6k_columns(float acc[NB][4], const uint8_t *tile, uint32_t from, uint32_t to,
                                                   const struct gemm_where &w)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint4 q[6];
    uint2 sa, sb;
    uint16_t da, db;
    if (from < to) {
        const uint8_t *p = tile + (uint64_t)from * TILE_Q6_K;
#pragma unroll
        for (int j = 0; j < 6; j++)
            q[j] = load_stream(p + 512 * j + 16 * lane);
        sa = *(const uint2 *)(p + 3072 + 16 * g + 8 * (t / 2));
        sb = *(const uint2 *)(p + 3072 + 16 * (g + 8) + 8 * (t / 2));
        da = *(const uint16_t *)(p + 3328 + 2 * g);
        db = *(const uint16_t *)(p + 3328 + 2 * (g + 8));
    }
    dep_wait();
    for (uint32_t s = from; s < to; s++) {
        const uint8_t *next = tile + (uint64_t)(s + 1 < to ? s + 1 : s) * TILE_Q6_K;
        uint32_t ua[2] = {sa.x ^ 0x80808080u, sa.y ^ 0x80808080u}, ub[2] = {sb.x ^ 0x80808080u, sb.y ^ 0x80808080u};
        float fa = decode_half(da), fb = decode_half(db);
        sa = *(const uint2 *)(next + 3072 + 16 * g + 8 * (t / 2));
        sb = *(const uint2 *)(next + 3072 + 16 * (g + 8) + 8 * (t / 2));
        da = *(const uint16_t *)(next + 3328 + 2 * g);
        db = *(const uint16_t *)(next + 3328 + 2 * (g + 8));
        float c[NB][4];
#pragma unroll
        for (int nb = 0; nb < NB; nb++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[nb][i] = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 h = q[3 * half + 2];
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                const int sub = 4 * half + quarter;
                const uint4 l = q[3 * half + (quarter & 1)];
                const int ls = quarter < 2 ? 4 : 0, hs = 8 - 2 * quarter;
                /* scales as halves: 1024 + 128 + s, minus 1152 */
                uint32_t ka = fma2(q4k_1024(ua[sub / 4], sub % 4), 0x3c003c00u, 0xe480e480u);
                uint32_t kb = fma2(q4k_1024(ub[sub / 4], sub % 4), 0x3c003c00u, 0xe480e480u);
                uint32_t ca = mul2(ka, 0xd600d600u), cb = mul2(kb, 0xd600d600u); /* -96 */
                uint32_t a0 = q6k_pair(shift(l.x, ls), shift(h.x, hs), ka, ca);
                uint32_t a1 = q6k_pair(shift(l.z, ls), shift(h.z, hs), kb, cb);
                uint32_t a2 = q6k_pair(shift(l.x, ls - 8), shift(h.x, hs - 8), ka, ca);
                uint32_t a3 = q6k_pair(shift(l.z, ls - 8), shift(h.z, hs - 8), kb, cb);
                uint32_t a4 = q6k_pair(shift(l.y, ls), shift(h.y, hs), ka, ca);
                uint32_t a5 = q6k_pair(shift(l.w, ls), shift(h.w, hs), kb, cb);
                uint32_t a6 = q6k_pair(shift(l.y, ls - 8), shift(h.y, hs - 8), ka, ca);
                uint32_t a7 = q6k_pair(shift(l.w, ls - 8), shift(h.w, hs - 8), kb, cb);
#pragma unroll
                for (int nb = 0; nb < NB; nb++) {
                    uint4 x = gemm_b(w, nb, gemm_x(w, nb, s), sub);
                    mma_f16(c[nb], a0, a1, a2, a3, x.x, x.y);
                    mma_f16(c[nb], a4, a5, a6, a7, x.z, x.w);
                }
            }
#pragma unroll
            for (int j = 3 * half; j < 3 * half + 3; j++)
                q[j] = load_stream(next + 512 * j + 16 * lane);
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            float2 xs = gemm_scale(w, nb, gemm_x(w, nb, s));
            acc[nb][0] += xs.x * fa * c[nb][0];
            acc[nb][1] += xs.y * fa * c[nb][1];
            acc[nb][2] += xs.x * fb * c[nb][2];
            acc[nb][3] += xs.y * fb * c[nb][3];
        }
    }
}

/* Eight decoded values as the A operand wants them: (0,2) (1,3) (4,6) (5,7). */
template <int FMT>
static __device__ __forceinline__ uint4 gemm_decode(const struct mat &w, uint32_t r, uint32_t i8)
{
    if (FMT == FMT_F16) {
        uint4 v = load_stream(w.base + r * w.stride + 16 * (uint64_t)i8);
        return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x5410),
                          __byte_perm(v.z, v.w, 0x7632));
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
    return make_uint4(half_bits2(v[0], v[2]), half_bits2(v[1], v[3]), half_bits2(v[4], v[6]), half_bits2(v[5], v[7]));
}

template <int FMT, int NB>
static __device__ __forceinline__ void any_columns(float acc[NB][4], const struct mat &m, uint32_t first, uint32_t from,
                                                   uint32_t to, const struct gemm_where &w)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    /* Rows past the last one read the last one; their results are not stored. */
    const uint32_t ra = min(first + g, m.n - 1), rb = min(first + g + 8, m.n - 1), subs = (m.k + 31) / 32;
    dep_wait();
    for (uint32_t s = from; s < to; s++) {
        float c[NB][4];
#pragma unroll
        for (int nb = 0; nb < NB; nb++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[nb][i] = 0.0f;
        const uint32_t here = min(8u, subs - 8 * s);
        auto sub_step = [&](uint32_t sub, const uint4 &a, const uint4 &b) {
#pragma unroll
            for (int nb = 0; nb < NB; nb++) {
                uint4 x = gemm_b(w, nb, gemm_x(w, nb, s), sub);
                mma_f16(c[nb], a.x, b.x, a.y, b.y, x.x, x.y);
                mma_f16(c[nb], a.z, b.z, a.w, b.w, x.z, x.w);
            }
        };
        if (here == 8) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 a[4], b[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[i] = gemm_decode<FMT>(m, ra, 4 * (8 * s + 4 * half + i) + t);
                    b[i] = gemm_decode<FMT>(m, rb, 4 * (8 * s + 4 * half + i) + t);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sub_step(4 * half + i, a[i], b[i]);
            }
        } else {
            for (uint32_t sub = 0; sub < here; sub++)
                sub_step(sub, gemm_decode<FMT>(m, ra, 4 * (8 * s + sub) + t), gemm_decode<FMT>(m, rb, 4 * (8 * s + sub) + t));
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            float2 xs = gemm_scale(w, nb, gemm_x(w, nb, s));
            acc[nb][0] += xs.x * c[nb][0];
            acc[nb][1] += xs.y * c[nb][1];
            acc[nb][2] += xs.x * c[nb][2];
            acc[nb][3] += xs.y * c[nb][3];
        }
    }
}

/* FMT 0: Q4_K and Q6_K tiles, whichever the segment has. */
template <int FMT, int NB> static __device__ __forceinline__ void gemm_body(const struct gemm_args &p)
{
    __shared__ float room[GEMM_WARPS][TILE_ROWS][NB * 8 + 1];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t per_block = GEMM_WARPS / p.split, part = warp % p.split;
    const uint32_t tile = blockIdx.x * per_block + warp / p.split;
    const uint32_t columns = (p.k + 255) / 256;
    float acc[NB][4] = {};
    int expert = 0;
    struct gemm_where where = {p.x, columns, p.m};
    if (p.expert) {
        dep_wait(); /* which experts there are is the predecessor's result */
        expert = p.expert[blockIdx.y];
        if (expert < 0)
            return;
        where.x += (uint64_t)blockIdx.y * columns * PACK_BYTES;
        where.m = 8;
    }
    if (tile < p.tiles) {
        uint32_t i = p.segs > 2 && tile >= p.seg[2].first_tile ? 2 : p.segs > 1 && tile >= p.seg[1].first_tile ? 1 : 0;
        struct mat m = p.seg[i].w;
        m.base += expert * m.each;
        const uint32_t at = tile - p.seg[i].first_tile;
        const uint32_t from = columns * part / p.split, to = columns * (part + 1) / p.split;
        if constexpr (FMT == 0) {
            if (m.fmt == FMT_Q4_K_TILE)
                q4k_columns<NB>(acc, m.base + at * m.stride, from, to, where);
            else
                q6k_columns<NB>(acc, m.base + at * m.stride, from, to, where);
        } else {
            any_columns<FMT, NB>(acc, m, at * TILE_ROWS, from, to, where);
        }
    } else {
        dep_wait();
    }
#pragma unroll
    for (int nb = 0; nb < NB; nb++) {
        room[warp][g][8 * nb + 2 * t] = acc[nb][0];
        room[warp][g][8 * nb + 2 * t + 1] = acc[nb][1];
        room[warp][g + 8][8 * nb + 2 * t] = acc[nb][2];
        room[warp][g + 8][8 * nb + 2 * t + 1] = acc[nb][3];
    }
    __syncthreads();
    const uint32_t streams = min(where.m, (uint32_t)NB * 8);
    for (uint32_t i = threadIdx.x; i < per_block * TILE_ROWS * streams; i += GEMM_WARPS * 32) {
        uint32_t row = i % TILE_ROWS, stream = i / TILE_ROWS % streams, k = i / (TILE_ROWS * streams);
        uint32_t out = blockIdx.x * per_block + k;
        if (out >= p.tiles)
            continue;
        uint32_t s = p.segs > 2 && out >= p.seg[2].first_tile ? 2 : p.segs > 1 && out >= p.seg[1].first_tile ? 1 : 0;
        const struct gemm_seg &seg = p.seg[s];
        uint32_t n = (out - seg.first_tile) * TILE_ROWS + row;
        if (n >= seg.w.n)
            continue;
        float y = 0.0f;
        for (uint32_t j = 0; j < p.split; j++)
            y += room[k * p.split + j][row][stream];
        uint64_t r = stream + (p.expert ? 8ull * blockIdx.y : 0);
        if (seg.bias)
            y += seg.bias[(uint64_t)expert * seg.w.n + n];
        y *= p.scale;
        if (p.residual)
            y += p.residual[r * p.ldr + n];
        seg.y[r * seg.ldy + n] = y;
    }
}

#define GEMM_KERNEL(name, fmt, nb, blocks)                                                                             \
    extern "C" __global__ void __launch_bounds__(GEMM_WARPS * 32, blocks) name(const __grid_constant__ struct gemm_args p)            \
    {                                                                                                                  \
        gemm_body<fmt, nb>(p);                                                                                         \
    }

#define GEMM_KERNELS(name, fmt)                                                                                        \
    GEMM_KERNEL(name##_8, fmt, 1, 2)                                                                                   \
    GEMM_KERNEL(name##_16, fmt, 2, 2)                                                                                  \
    GEMM_KERNEL(name##_32, fmt, 4, 1)                                                                                  \
    GEMM_KERNEL(name##_64, fmt, 8, 1)
