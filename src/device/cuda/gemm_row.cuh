/* Products of one row with tiles, on the tensor cores, without scaling the weights first.
 *
 * With one row, seven of the eight columns of an mma's B are free. So B has in column n the x of sub n (32 of the tile's
 * 256 columns of weights), the same for all eight subs, and A the weights of one sub as they are, small integers: of the
 * result only column n = sub is of use, the sum of q * x of that sub. A lane (g, t) has columns 2t and 2t + 1 of rows g and
 * g + 8: it takes those of subs 2t and 2t + 1, and only then multiplies with their scales. A weight costs one AND instead of
 * an AND and a multiplication; x is 16 bytes a lane and tile. Q6_K has a scale for each 16 columns: there column n stands
 * for sub n / 2 (of four), and a lane's x is zero but in the half n % 2 of it.
 *
 * x of a tile, ROW_COLUMN bytes: [sub][32 values, in the order of the packed form], [16 sums of 16 values] * 2^-24,
 * scale * 2^24. */
#pragma once

#include "device/cuda/attn.cuh"
#include "device/cuda/gemm.cuh"

enum { ROW_SUMS = 512, ROW_SCALE = 576 };

/* c = A B of a sub. */
static __device__ __forceinline__ void mma_sub(float c[4], const uint32_t a[8], const uint4 &b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "f"(0.0f));
    mma_f16(c, a[4], a[5], a[6], a[7], b.z, b.w);
}

/* Byte sel - 0x7440 of w: `bits` are those of the power of two `base`, whose last place is the unit. */
enum { BITS_1 = 0x4b000000, BITS_16 = 0x49000000 };          /* 2^23; 2^19, of which it is 1/16 */
static const float BASE_1 = 8388608.0f, BASE_16 = 524288.0f; /* the same */

static __device__ __forceinline__ float byte_float(uint32_t w, uint32_t bits, uint32_t sel, float base)
{
    return __uint_as_float(__byte_perm(w, bits, sel)) - base;
}

/* A form of tiles here: r is what the lane takes of the subs' results, of rows g and g + 8 in turns; chunk i of a tile is
 * used by subs up to last(i). */

/* Subs with one scale each. */
struct row_subs {
    uint4 b;
    float r[4];

    __device__ __forceinline__ row_subs(const uint8_t *x) : b(*(const uint4 *)(x + threadIdx.x % 32 * 16))
    {
    }
    __device__ __forceinline__ const uint4 &x_of(int) const
    {
        return b;
    }
    __device__ __forceinline__ void take(const float c[4], int sub)
    {
        const bool mine = sub < 2 || threadIdx.x % 4 == sub / 2;
        r[sub % 2] = mine ? c[sub % 2] : r[sub % 2];
        r[2 + sub % 2] = mine ? c[2 + sub % 2] : r[2 + sub % 2];
    }
    /* Sums of x over subs 2t and 2t + 1. */
    static __device__ __forceinline__ float2 sums(const uint8_t *x)
    {
        const float4 s = *(const float4 *)(x + ROW_SUMS + threadIdx.x % 4 * 16);
        return make_float2(s.x + s.y, s.z + s.w);
    }
};

/* Q4_K: nibbles are fp16 subnormals, n * 2^-24 and, of the high ones, n * 2^-20. */
struct row_q4k : row_subs {
    enum { BYTES = TILE_Q4_K, CHUNKS = 4 };
    using row_subs::row_subs;

    static __device__ constexpr int last(int chunk)
    {
        return form_q4k::last(chunk);
    }
    static __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub)
    {
        const uint32_t mask = sub & 1 ? 0x00f000f0u : 0x000f000fu;
        const uint4 v = q[sub / 2];
        a[0] = v.x & mask, a[1] = v.z & mask, a[2] = v.x >> 8 & mask, a[3] = v.z >> 8 & mask;
        a[4] = v.y & mask, a[5] = v.w & mask, a[6] = v.y >> 8 & mask, a[7] = v.w >> 8 & mask;
    }
    /* Scale and min of the lane's subs: s[0], s[1] / 16, m[0], m[1]. */
    static __device__ __forceinline__ void scales(const uint4 &h, float s[2], float m[2])
    {
        const uint32_t t = threadIdx.x % 4, sel = 0x7440 + 2 * (t & 1);
        const uint32_t low = t < 2 ? 0x3f3f3f3fu : 0x0f0f0f0fu, high = t < 2 ? 0u : 0x30303030u;
        const uint32_t sw = ((t < 2 ? h.y : h.w) & low) | ((h.y >> 2) & high),
                       mw = ((t < 2 ? h.z : h.w >> 4) & low) | ((h.z >> 2) & high);
        s[0] = byte_float(sw, BITS_1, sel, BASE_1);
        s[1] = byte_float(sw, BITS_16, sel + 1, BASE_16);
        m[0] = byte_float(mw, BITS_1, sel, BASE_1);
        m[1] = byte_float(mw, BITS_1, sel + 1, BASE_1);
    }
    __device__ __forceinline__ void add(float acc[2], const struct tile_head &head, const uint8_t *x) const
    {
        const float2 sum = sums(x);
        const float scale = *(const float *)(x + ROW_SCALE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float s[2], m[2];
            scales(head.row[i], s, m);
            const float2 d = __half22float2(*(const __half2 *)&head.row[i].x);
            acc[i] +=
                scale * (d.x * (s[0] * r[2 * i] + s[1] * r[2 * i + 1]) - d.y * (m[0] * sum.x + m[1] * sum.y));
        }
    }
};

/* Q6_K: q is an fp16 subnormal, q * 2^-24 of the first two subs of a half, q * 2^-20 of the others: the two bits of qh are
 * brought to the four of ql, which stay where they are. */
struct row_q6k {
    enum { BYTES = TILE_Q6_K, CHUNKS = 6 };
    uint4 b[2]; /* of the tile's halves */
    float r[2][4];

    static __device__ constexpr int last(int chunk)
    {
        return form_q6k::last(chunk);
    }
    __device__ __forceinline__ row_q6k(const uint8_t *x)
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const bool mine = t / 2 == g % 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 v = *(const uint4 *)(x + 256 * half + g / 2 * 64 + t * 16);
            b[half] = make_uint4(mine ? v.x : 0, mine ? v.y : 0, mine ? v.z : 0, mine ? v.w : 0);
        }
    }
    __device__ __forceinline__ const uint4 &x_of(int sub) const
    {
        return b[sub / 4];
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t low, uint32_t high, int quarter)
    {
        return quarter < 2 ? (low & 0x000f000fu) | (high & 0x00300030u)
                           : (low & 0x00f000f0u) | (high & 0x03000300u);
    }
    static __device__ __forceinline__ uint32_t even(uint32_t l, uint32_t h, int quarter)
    {
        return pair(l, quarter % 2 ? h << 2 : h << 4, quarter);
    }
    static __device__ __forceinline__ uint32_t odd(uint32_t l, uint32_t h, int quarter)
    {
        return pair(l >> 8, quarter % 2 ? h >> 6 : h >> 4, quarter);
    }
    static __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub)
    {
        const int i = sub % 4;
        const uint4 l = q[sub / 4 * 3 + i % 2], h = q[sub / 4 * 3 + 2];
        a[0] = even(l.x, h.x, i), a[1] = even(l.z, h.z, i), a[2] = odd(l.x, h.x, i), a[3] = odd(l.z, h.z, i);
        a[4] = even(l.y, h.y, i), a[5] = even(l.w, h.w, i), a[6] = odd(l.y, h.y, i), a[7] = odd(l.w, h.w, i);
    }
    __device__ __forceinline__ void take(const float c[4], int sub)
    {
        const bool mine = sub % 4 == 0 || threadIdx.x % 4 == sub % 4;
#pragma unroll
        for (int j = 0; j < 4; j++)
            r[sub / 4][j] = mine ? c[j] : r[sub / 4][j];
    }
    __device__ __forceinline__ void add(float acc[2], const struct tile_head &head, const uint8_t *x) const
    {
        const uint32_t t = threadIdx.x % 4, sel = 0x7440 + t;
        /* scales of the last two subs are a sixteenth, as their q are sixteen times as large */
        const uint32_t bits = t < 2 ? BITS_1 : BITS_16;
        const float base = t < 2 ? BASE_1 + 128.0f : BASE_16 + 8.0f, middle = t < 2 ? 32.0f : 512.0f;
        const float scale = *(const float *)(x + ROW_SCALE);
        const float2 low = *(const float2 *)(x + ROW_SUMS + 8 * t),
                     high = *(const float2 *)(x + ROW_SUMS + 8 * t + 32);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 h = head.row[i];
            const float y =
                byte_float(h.x ^ 0x80808080u, bits, sel, base) * (r[0][2 * i] - middle * low.x) +
                byte_float(h.z ^ 0x80808080u, bits, sel, base) * (r[0][2 * i + 1] - middle * low.y) +
                byte_float(h.y ^ 0x80808080u, bits, sel, base) * (r[1][2 * i] - middle * high.x) +
                byte_float(h.w ^ 0x80808080u, bits, sel, base) * (r[1][2 * i + 1] - middle * high.y);
            acc[i] += scale * decode_half(head.d[i]) * y;
        }
    }
};

/* Q8_0: 1152 + q as it is in fp16. */
struct row_q8 : row_subs {
    enum { BYTES = TILE_Q8_0, CHUNKS = 8 };
    using row_subs::row_subs;

    static __device__ constexpr int last(int chunk)
    {
        return form_q8::last(chunk);
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t w, bool odd)
    {
        return __byte_perm(w ^ 0x80808080u, 0x64, odd ? 0x4341 : 0x4240);
    }
    static __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub)
    {
        const uint4 v = q[sub];
        a[0] = pair(v.x, false), a[1] = pair(v.z, false), a[2] = pair(v.x, true), a[3] = pair(v.z, true);
        a[4] = pair(v.y, false), a[5] = pair(v.w, false), a[6] = pair(v.y, true), a[7] = pair(v.w, true);
    }
    __device__ __forceinline__ void add(float acc[2], const struct tile_head &head, const uint8_t *x) const
    {
        const float2 sum = sums(x);
        const uint32_t t = threadIdx.x % 4;
        const float scale = *(const float *)(x + ROW_SCALE), unit = 1.0f / 16777216.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 h = head.row[i];
            const uint32_t two = t == 0 ? h.x : t == 1 ? h.y : t == 2 ? h.z : h.w;
            const float2 d = __half22float2(*(const __half2 *)&two);
            acc[i] += scale * (d.x * (r[2 * i] * unit - 1152.0f * sum.x) +
                               d.y * (r[2 * i + 1] * unit - 1152.0f * sum.y));
        }
    }
};

/* MXFP4: values times 2^-14, as they are in fp16. */
struct row_mxfp4 : row_subs {
    enum { BYTES = TILE_MXFP4, CHUNKS = 4 };
    using row_subs::row_subs;

    static __device__ constexpr int last(int chunk)
    {
        return form_mxfp4::last(chunk);
    }
    static __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[], int sub)
    {
        const uint4 v = q[sub / 2];
        const bool high = sub & 1;
        a[0] = pair_e2m1(v.x, false, high), a[1] = pair_e2m1(v.z, false, high);
        a[2] = pair_e2m1(v.x, true, high), a[3] = pair_e2m1(v.z, true, high);
        a[4] = pair_e2m1(v.y, false, high), a[5] = pair_e2m1(v.w, false, high);
        a[6] = pair_e2m1(v.y, true, high), a[7] = pair_e2m1(v.w, true, high);
    }
    __device__ __forceinline__ void add(float acc[2], const struct tile_head &head, const uint8_t *x) const
    {
        const uint32_t t = threadIdx.x % 4;
        const float scale = *(const float *)(x + ROW_SCALE) * (1.0f / 1024.0f); /* 2^14 / 2^24 */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 e = tile_exponents(head.row[i]);
            const uint32_t two = (t < 2 ? e.x : e.y) >> 16 * (t & 1);
            acc[i] += scale * (f8_e8m0_to_f32((uint8_t)two) * r[2 * i] +
                               f8_e8m0_to_f32((uint8_t)(two >> 8)) * r[2 * i + 1]);
        }
    }
};

/* Columns [from, to), at least one, of a strip of tiles, of which p is the first and t is on its way. The chunks of the next
 * tile are asked for as soon as those of this one are used. The four lanes of a row have a part of its sum each. */
template <class FORM, int N>
static __device__ __forceinline__ void row_columns(float acc[2], tile_ahead_of<N> &t, const uint8_t *p,
                                                   uint32_t from, uint32_t to, const uint8_t *x)
{
    const uint32_t lane16 = threadIdx.x % 32 * 16;
    x += from * ROW_COLUMN;
    for (uint32_t s = from; s < to; s++, x += ROW_COLUMN) {
        const struct tile_head head = t.head;
        const bool more = s + 1 < to;
        FORM w(x);
        p += more ? FORM::BYTES : 0; /* of the last tile the head is fetched again */
        t.head = tile_head(p, FORM::BYTES, load_stream);
        /* one address, of which the chunks have constant offsets: the compiler would keep one for each of them, and spill */
        const uint8_t *next = p + lane16;
        asm("" : "+l"(next));
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
            uint32_t a[8];
            float c[4];
            FORM::sub(a, t.q, sub);
            mma_sub(c, a, w.x_of(sub));
            w.take(c, sub);
#pragma unroll
            for (int j = 0; j < FORM::CHUNKS; j++)
                if (FORM::last(j) == sub)
                    load_more(t.q[j], next + 512 * j, more);
        }
        w.add(acc, head, x);
    }
}

/* A warp's column of 256 values into shared memory, eight a lane. */
static __device__ __forceinline__ void row_put(uint8_t *to, const float v[8])
{
    const uint32_t lane = threadIdx.x % 32;
    const float scale = pack_scale_of(v);
    uint32_t half[4];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = i / 2 * 4 + i % 2;
        half[i] = half_bits2(v[j] * scale, v[j + 2] * scale);
        const float2 r = __half22float2(*(const __half2 *)&half[i]);
        sum += r.x + r.y;
    }
    *(uint4 *)(to + 16 * lane) = make_uint4(half[0], half[1], half[2], half[3]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (lane % 2 == 0)
        *(float *)(to + ROW_SUMS + 2 * lane) = sum * (1.0f / 16777216.0f);
    if (lane == 0) /* 2^24 / scale, which is a power of two */
        *(float *)(to + ROW_SCALE) = __uint_as_float(((2 * 127u + 24) << 23) - __float_as_uint(scale));
}

/* Whichever form the weight has, of at most N chunks. */
template <int N>
static __device__ __forceinline__ void row_product(float acc[2], tile_ahead_of<N> &ahead, uint32_t fmt,
                                                   const uint8_t *tiles, uint32_t from, uint32_t to,
                                                   const uint8_t *x)
{
    if (fmt == FMT_Q4_K_TILE)
        row_columns<row_q4k>(acc, ahead, tiles, from, to, x);
    else if (fmt == FMT_MXFP4)
        row_columns<row_mxfp4>(acc, ahead, tiles, from, to, x);
    else if constexpr (N > 4) {
        if (fmt == FMT_Q6_K_TILE)
            row_columns<row_q6k>(acc, ahead, tiles, from, to, x);
        else
            row_columns<row_q8>(acc, ahead, tiles, from, to, x);
    }
}

/* Sums of the lane's rows g and g + 8 over the four lanes that share them, times scale; to[row] from one of those. */
static __device__ __forceinline__ void row_leave(float acc[2], float scale, float *to)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        acc[i] += __shfl_xor_sync(~0u, acc[i], 1);
        acc[i] += __shfl_xor_sync(~0u, acc[i], 2);
        if (lane % 4 == 0)
            to[lane / 4 + 8 * i] = acc[i] * scale;
    }
}

/* Eight values of attention's result, from the parts of it. */
static __device__ __forceinline__ void gemm_join(const struct gemm_parts &in, uint32_t at, uint32_t splits,
                                                 float v[8])
{
    const uint32_t head = at / in.dim, first = head / in.group * in.splits * in.queries + head % in.group;
    const float2 *ml = (const float2 *)in.ml + first;
    const float *part = in.part + (uint64_t)first * in.dim + at % in.dim;
    float weight[GEMM_PARTS_MOST], max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < GEMM_PARTS_MOST; s++) {
        weight[s] = s < splits ? ml[s * in.queries].x : -INFINITY;
        max = fmaxf(max, weight[s]);
    }
#pragma unroll
    for (uint32_t s = 0; s < GEMM_PARTS_MOST; s++) {
        weight[s] = flash_exp(weight[s], max);
        sum += s < splits ? weight[s] * ml[s * in.queries].y : 0.0f;
    }
    const float scale = flash_scale(in.sinks, head, max, sum);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < GEMM_PARTS_MOST; s++) {
        float o[8];
        load8(part + (uint64_t)s * in.queries * in.dim, s < splits ? 8 : 0, true, o);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] += weight[s] * scale * o[i];
    }
}
