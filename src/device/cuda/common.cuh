/* What all kernels share: dependent launches, warp sums, the packed form of activations. */
#pragma once

#include "device/cuda/decode.h"
#include "device/cuda/params.h"
#include "device/kinds.h"

#include <cuda_fp16.h>

/* Programmatic dependent launch: a kernel lets its successor start at once, and waits for its
 * predecessor before it touches what that one wrote. Without the launch attribute both are nothing. */
static __device__ __forceinline__ void dep_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void dep_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The same, once a and b are computed. */
template <class A, class B> static __device__ __forceinline__ void dep_wait_with(A *&a, B *&b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : "+l"(a), "+l"(b)::"memory");
#endif
}

/* Reads a word of every 64 bytes of the arguments, so that none has to be fetched once the predecessor has ended. */
template <class T> static __device__ __forceinline__ void args_ahead(const T &p)
{
    uint32_t all = 0;
#pragma unroll
    for (size_t i = 0; i < sizeof p / 4; i += 16)
        all ^= ((const uint32_t *)&p)[i];
    /* a use, without which nothing would be read */
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x9e3779b9;\n@p nanosleep.u32 0;\n}" ::"r"(all));
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* Of numbers that are not negative: they have the order of their bits. */
static __device__ __forceinline__ float warp_most(float v)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(v)));
}

/* Over a block of up to 1024 threads; `room` is 32 floats of shared memory, free again at return. */
static __device__ __forceinline__ float block_sum(float v, float *room)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? room[threadIdx.x % 32] : 0.0f;
    v = warp_sum(v);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ float block_max(float v, float *room)
{
    v = warp_max(v);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? room[threadIdx.x % 32] : -INFINITY;
    v = warp_max(v);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ float act_one(uint32_t act, float x)
{
    switch (act) {
    case ACT_SILU:
        return x / (1.0f + expf(-x));
    case ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_QUICK:
        return x / (1.0f + expf(-1.702f * x));
    case ACT_RELU:
        return fmaxf(x, 0.0f);
    case ACT_RELU2:
        x = fmaxf(x, 0.0f);
        return x * x;
    case ACT_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case ACT_TANH:
        return tanhf(x);
    default:
        return x;
    }
}

static __device__ __forceinline__ float swiglu_oai(float alpha, float limit, float gate, float up)
{
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return gate / (1.0f + expf(-alpha * gate)) * (up + 1.0f);
}

static __device__ __forceinline__ uint32_t half_bits2(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}

/* The power of two that brings max to [2^9, 2^10): 32 such values still sum to less than 2^15. */
static __device__ __forceinline__ float pack_scale(float max)
{
    int e = (int)(__float_as_uint(max) >> 23) - 127;
    if (max == 0.0f || e < -100)
        return 1.0f;
    e = e > 100 ? 100 : e;
    return __uint_as_float((uint32_t)(127 + 9 - e) << 23);
}

/* The power of two for a warp's 256 values, eight a lane. */
static __device__ __forceinline__ float pack_scale_of(const float v[8])
{
    float max = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        max = fmaxf(max, fabsf(v[i]));
    return pack_scale(warp_most(max));
}

/* A lane's eight values as fp16 in the order of the packed form, times `scale`; and the sum of those. */
static __device__ __forceinline__ uint4 pack_halves(const float v[8], float scale, float &sum)
{
    float r[8];
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        r[i] = __half2float(__float2half_rn(v[i] * scale));
        sum += r[i];
    }
    return make_uint4(half_bits2(r[0], r[2]), half_bits2(r[1], r[3]), half_bits2(r[4], r[6]),
                      half_bits2(r[5], r[7]));
}

/* A column of a stream in the pack: what its values were multiplied with, and where the inverse of that goes. */
struct packed_column {
    float by, *scale; /* NULL: there is no place for it */

    /* The values are to be multiplied with `factor` as well. */
    __device__ __forceinline__ void finish(float factor) const
    {
        if (scale && threadIdx.x % 32 == 0)
            *scale = factor / by;
    }
};

/* A warp packs 256 values of one stream, and returns what it has multiplied them with: lane l has values 8l..8l+7 (sub l/4,
 * t = l%4). `b` is where the stream's first sub is, `sub` the bytes to the next one; `sums` where its sums are. */
template <int ORDER>
static __device__ __forceinline__ float pack_values(uint8_t *b, uint32_t sub, uint8_t *sums, const float v[8])
{
    const uint32_t lane = threadIdx.x % 32;
    float sum;
    const float s = pack_scale_of(v);
    const uint4 bits = pack_halves(v, s, sum);
    b += lane / 4 * sub;
    if constexpr (ORDER == PACK_LANES) {
        *(uint4 *)(b + lane % 4 * 16) = bits;
    } else {
        uint32_t *word = (uint32_t *)(b + lane % 4 * 4);
        word[0] = bits.x, word[32] = bits.y, word[64] = bits.z, word[96] = bits.w;
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    /* lane 8t of the warp has the sum of sub 2t, lane 8t + 4 that of 2t + 1 */
    float other = __shfl_down_sync(~0u, sum, 4);
    if (lane % 8 == 0) {
        const float hi0 = __half2float(__float2half_rn(sum)), hi1 = __half2float(__float2half_rn(other));
        const uint32_t hi = half_bits2(hi0, hi1), lo = half_bits2(sum - hi0, other - hi1);
        if constexpr (ORDER == PACK_LANES) {
            *(uint2 *)(sums + lane) = make_uint2(hi, lo);
        } else {
            *(uint32_t *)(sums + lane / 2) = hi;
            *(uint32_t *)(sums + lane / 2 + 128) = lo;
        }
    }
    return s;
}

/* Eight values of a row in the order PACK_ROWS; i: which. */
static __device__ __forceinline__ void pack_row(const struct pack_out &o, uint8_t *pack, uint32_t row,
                                                uint32_t i, const float v[8], float s)
{
    uint8_t *to = pack + ((uint64_t)(i / 8) * 8 * o.groups + row) * 128 + i % 4 * 4;
    const uint32_t first = i & 4; /* of the sub's four times 16 bytes */
#pragma unroll
    for (uint32_t w = 0; w < 4; w++)
        *(uint32_t *)(to + ((first + w) ^ (row & 7)) * 16) =
            half_bits2(v[w / 2 * 4 + w % 2] * s, v[w / 2 * 4 + w % 2 + 2] * s);
}

/* The same where rows of fp16 are wanted, in whichever order. */
static __device__ __forceinline__ void half_row(const struct pack_out &o, uint32_t row, uint32_t i,
                                                const float v[8], float s)
{
    if (o.order == PACK_ROWS)
        pack_row(o, (uint8_t *)o.half, row, i, v, s);
    else
        *(uint4 *)(o.half + (uint64_t)row * o.kp + 8 * i) =
            make_uint4(half_bits2(v[0] * s, v[1] * s), half_bits2(v[2] * s, v[3] * s),
                       half_bits2(v[4] * s, v[5] * s), half_bits2(v[6] * s, v[7] * s));
}

/* 256 values of a row into its place; the caller finishes the column. */
static __device__ __forceinline__ struct packed_column pack_warp(const struct pack_out &o, uint32_t columns,
                                                                 uint32_t row, uint32_t column, const float v[8])
{
    const uint32_t stream = row % PACK_STREAMS, group = row / PACK_STREAMS, lane = threadIdx.x % 32;
    if (o.half) { /* attention's results: as large as V, which is fp16 */
        if (8 * lane + 256 * column < o.kp)
            half_row(o, row, 32 * column + lane, v, 1.0f);
        if (!column && !lane)
            o.half_scale[row] = 1.0f;
        return {1.0f, nullptr};
    }
    uint8_t *to = o.pack + (((uint64_t)(group / o.groups) * columns + column) * o.groups + group % o.groups) *
                               PACK_BYTES;
    uint8_t *sums = to + PACK_SUMS;
    return {o.order == PACK_LANES ? pack_values<PACK_LANES>(to + 64 * stream, 512, sums + 32 * stream, v)
                                  : pack_values<PACK_CORES>(to + 16 * stream, 512, sums + 16 * stream, v),
            (float *)(to + PACK_SCALE) + stream};
}

/* Eight floats from x, zeros from `left` on. */
static __device__ __forceinline__ void load8(const float *x, uint32_t left, bool aligned, float v[8])
{
    if (aligned && left >= 8) {
        float4 a = *(const float4 *)x, b = *(const float4 *)(x + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = i < left ? x[i] : 0.0f;
    }
}

static __device__ __forceinline__ bool is_aligned(const void *p, uint64_t ld)
{
    return (((uintptr_t)p | ld * 4) & 15) == 0;
}

static __device__ __forceinline__ float xielu(const float *c, float x)
{
    return c[2] * x + (x > 0.0f ? c[0] * x * x : c[1] * (expm1f(fminf(x, c[3])) - x));
}

static __device__ __forceinline__ float act_pair(const struct act_args &p, float g, float u)
{
    if (p.xielu)
        return xielu(p.xielu, u);
    if (p.act == ACT_SWIGLU_OAI)
        return swiglu_oai(p.alpha, p.limit, g, u);
    return p.gate ? act_one(p.act, g) * u : act_one(p.act, u);
}

/* Eight results of a row from `at` on, zeros past its end. */
static __device__ __forceinline__ void act8(const struct act_args &p, uint64_t row, float rs, uint32_t at,
                                            bool aligned, float v[8])
{
    float g[8], u[8];
    const uint32_t left = at < p.k ? p.k - at : 0;
    load8(p.up + row * p.ld + at, left, aligned, u);
    if (p.gate)
        load8(p.gate + row * p.ld + at, left, aligned, g);
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        const float gb = p.gate_bias && j < left ? p.gate_bias[at + j] : 0.0f,
                    ub = p.up_bias && j < left ? p.up_bias[at + j] : 0.0f;
        v[j] = j < left ? act_pair(p, p.gate ? g[j] * rs + gb : 0.0f, u[j] * rs + ub) : 0.0f;
    }
}

static __device__ __forceinline__ bool act_aligned(const struct act_args &p)
{
    return is_aligned(p.up, p.ld) && (!p.gate || is_aligned(p.gate, p.ld));
}

static __device__ __forceinline__ void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Four matrices of 8 x 8 fp16 from shared memory: lane l has the address of row l % 8 of matrix l / 8, and gets numbers
 * 2t and 2t + 1 of row g of each (lane 4g + t); turned: of column g. */
static __device__ __forceinline__ void matrix_load(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void matrix_load_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Weights are read once: past L1. (Not by ld.global.nc, which the assembler moves behind dep_wait.) */
static __device__ __forceinline__ uint4 load_stream(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The same where `more` is true; v stays as it is where not. */
static __device__ __forceinline__ void load_more(uint4 &v, const uint8_t *p, bool more)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"((uint32_t)more));
}

/* Two bytes where `more` is true. */
static __device__ __forceinline__ void load_more(uint16_t &v, const uint8_t *p, bool more)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.L1::no_allocate.u16 %0, [%1];\n}"
                 : "+h"(v)
                 : "l"(p), "r"((uint32_t)more));
}
