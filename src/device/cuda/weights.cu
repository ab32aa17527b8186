/* Weights: repacking after upload, decoding to fp16 for the large products, the float product that
 * every type has (the oracle's arithmetic), and the single-row variants of the public header. */
#include "device/cuda/common.cuh"

/* 16 bytes a thread, each looked up by layout_source, or its halves by layout_nibble. */
extern "C" __global__ void repack(const __grid_constant__ struct repack_args p)
{
    uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    if (at >= p.bytes)
        return;
    const uint8_t *src = p.src + blockIdx.y * p.src_each;
    uint32_t word[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++) {
        uint32_t b = 0;
        if (layout_has_nibbles(p.fmt, at + i)) {
            for (uint32_t half = 0; half < 2; half++) {
                const int64_t from = layout_nibble(p.fmt, p.n, p.k, p.row_bytes, at + i, half);
                b |= from < 0 ? 0 : (src[from / 2] >> 4 * (from % 2) & 15u) << 4 * half;
            }
        } else {
            const int64_t from = layout_source(p.fmt, p.n, p.k, p.row_bytes, at + i);
            b = from < 0 ? 0 : src[from];
        }
        word[i / 4] |= b << (8 * (i % 4));
    }
    *(uint4 *)(p.dst + blockIdx.y * p.dst_each + at) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* What the host has written meanwhile is read from its memory, not from a cache. */
static __device__ __forceinline__ uint4 fetch_16(const uint32_t *from)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* 16 bytes a thread; from addresses that are no multiples of 16, word by word. */
extern "C" __global__ void __launch_bounds__(256) fetch(const __grid_constant__ struct fetch_args p)
{
    const uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (at + 4 <= p.words && ((uintptr_t)p.from | (uintptr_t)p.to) % 16 == 0) {
        *(uint4 *)(p.to + at) = fetch_16(p.from + at);
        return;
    }
    for (uint64_t i = at; i < at + 4 && i < p.words; i++)
        p.to[i] = *(const volatile uint32_t *)(p.from + i);
}

/* A warp writes 256 values, 512 bytes; four such rounds in flight. */
template <int FMT>
static __device__ __forceinline__ void dequant_row(const struct dequant_args &p, uint32_t r)
{
    const uint32_t k8 = (p.w.k + 31) / 32 * 4;
    uint16_t *to = p.dst + (uint64_t)(r - p.first) * p.kp;
    for (uint32_t i = threadIdx.x; i < p.kp / 8; i += blockDim.x) {
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (i < k8)
            decode8(p.w.base, p.w.stride, FMT, p.w.k, r, i, v);
        *(uint4 *)(to + 8 * (uint64_t)i) = make_uint4(half_bits2(v[0], v[1]), half_bits2(v[2], v[3]),
                                                      half_bits2(v[4], v[5]), half_bits2(v[6], v[7]));
    }
}

/* Q4_K tiles, a warp per tile: the lane reads its 64 bytes and two headers once. */
static __device__ void dequant_q4k(const struct dequant_args &p)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, columns = p.w.k / 256;
    const uint64_t tile = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t row = (uint32_t)(tile / columns) * 16, column = (uint32_t)(tile % columns);
    if (row >= p.rows)
        return;
    const uint8_t *from = p.w.base + (p.first + row) / 16 * p.w.stride + (uint64_t)column * TILE_Q4_K;
    uint4 q[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        q[j] = load_stream(from + 512 * j + 16 * lane);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const uint32_t r = row + g + 8 * side;
        const uint8_t *head = from + 2048 + 16 * (g + 8 * side);
        if (r >= p.rows)
            continue;
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
            struct pair32 w = {side ? q[sub / 2].z : q[sub / 2].x, side ? q[sub / 2].w : q[sub / 2].y};
            float v[8];
            decode_q4_k(w, head, sub, v);
            *(uint4 *)(p.dst + (uint64_t)r * p.kp + 256 * column + 32 * sub + 8 * t) =
                make_uint4(half_bits2(v[0], v[1]), half_bits2(v[2], v[3]), half_bits2(v[4], v[5]),
                           half_bits2(v[6], v[7]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) dequant_tile(const __grid_constant__ struct dequant_args p)
{
    dep_wait();
    dequant_q4k(p);
}

extern "C" __global__ void __launch_bounds__(256) dequant(const __grid_constant__ struct dequant_args p)
{
    const uint32_t r = p.first + blockIdx.x;
    dep_wait();
    switch (p.w.fmt) {
#define CASE(f)                                                                                              \
    case f:                                                                                                  \
        dequant_row<f>(p, r);                                                                                \
        break;
        CASE(FMT_F32)
        CASE(FMT_F16)
        CASE(FMT_BF16)
        CASE(FMT_Q4_0)
        CASE(FMT_Q4_1)
        CASE(FMT_Q5_0)
        CASE(FMT_Q5_1)
        CASE(FMT_Q8_0)
        CASE(FMT_Q2_K)
        CASE(FMT_Q3_K)
        CASE(FMT_Q5_K)
        CASE(FMT_IQ4_NL)
        CASE(FMT_IQ4_XS)
        CASE(FMT_MXFP4)
        CASE(FMT_Q4_K)
        CASE(FMT_Q4_K_TILE)
        CASE(FMT_Q6_K_TILE)
#undef CASE
    default:
        break;
    }
}

/* Eight floats of a row of k, zeros past its end. */
static __device__ __forceinline__ void load8(const float *x, uint32_t k, uint32_t i8, float v[8])
{
    for (int i = 0; i < 8; i++)
        v[i] = 8 * i8 + i < k ? x[8 * (uint64_t)i8 + i] : 0.0f;
}

/* A warp per output, eight rows of x at a time. */
extern "C" __global__ void __launch_bounds__(256) gemm_float(const __grid_constant__ struct float_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t lane = threadIdx.x % 32, n = blockIdx.x * 8 + threadIdx.x / 32;
    uint32_t first = blockIdx.y * 8, rows = p.m > first ? min(8u, p.m - first) : 0;
    struct mat w = p.w;
    const float *x = p.x;
    float *y = p.y;
    int expert = 0;
    if (p.expert) {
        expert = p.expert[blockIdx.y];
        if (expert < 0)
            return;
        rows = 8;
        w.base += expert * w.each;
    }
    if (p.heads) {
        w.base += blockIdx.z * w.each;
        x += (uint64_t)blockIdx.z * p.x_step;
        y += (uint64_t)blockIdx.z * p.y_step;
    }
    if (n >= w.n)
        return;
    float acc[8] = {};
    for (uint32_t i = lane; i < (w.k + 7) / 8; i += 32) {
        float v[8], z[8];
        decode8(w.base, w.stride, w.fmt, w.k, n, i, v);
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (r < rows) {
                load8(x + (uint64_t)(first + r) * p.ldx, w.k, i, z);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    acc[r] += v[j] * z[j];
            }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        float s = warp_sum(acc[r]);
        if (lane == 0 && r < rows) {
            if (p.bias)
                s += p.bias[(uint64_t)expert * w.n + n];
            s *= p.scale;
            if (p.residual)
                s += p.residual[(uint64_t)(first + r) * p.ldr + n];
            y[(uint64_t)(first + r) * p.ldy + n] = s;
        }
    }
}

/* One row of x, staged in shared memory (whole, or in chunks) and shared by the block's outputs. */
extern "C" __global__ void __launch_bounds__(256) gemv_tiled(const __grid_constant__ struct gemv_args p)
{
    extern __shared__ float staged[];
    __shared__ float room[8];
    dep_launch();
    dep_wait();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = 8 / p.per_block;
    const uint32_t n = blockIdx.x * p.per_block + warp / split;
    float acc = 0.0f;
    for (uint32_t from = 0; from < p.w.k; from += p.chunk) {
        const uint32_t count = min(p.chunk, p.w.k - from);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < (count + 7) / 8 * 8; i += 256)
            staged[i] = i < count ? p.x[from + i] : 0.0f;
        __syncthreads();
        if (n < p.w.n)
            for (uint32_t i = lane + 32 * (warp % split); i < (count + 7) / 8; i += 32 * split) {
                float v[8];
                decode8(p.w.base, p.w.stride, p.w.fmt, p.w.k, n, from / 8 + i, v);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    acc += v[j] * staged[8 * i + j];
            }
    }
    acc = warp_sum(acc);
    if (lane == 0)
        room[warp] = acc;
    __syncthreads();
    if (threadIdx.x < p.per_block && blockIdx.x * p.per_block + threadIdx.x < p.w.n) {
        float s = 0.0f;
        for (uint32_t j = 0; j < split; j++)
            s += room[threadIdx.x * split + j];
        p.y[blockIdx.x * p.per_block + threadIdx.x] = s;
    }
}

/* A warp per block of 32: d = max / 127. */
extern "C" __global__ void quantise_q8_1(const __grid_constant__ struct q8_args p)
{
    dep_launch();
    dep_wait();
    uint64_t block = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    uint32_t lane = threadIdx.x % 32;
    if (block >= p.blocks)
        return;
    float v = p.x[block * 32 + lane];
    float d = __half2float(__float2half_rn(warp_max(fabsf(v)) / 127.0f));
    int q = d > 0.0f ? __float2int_rn(v / d) : 0;
    q = max(-127, min(127, q));
    float s = warp_sum((float)q) * d;
    uint8_t *to = p.y + block * 36;
    to[4 + lane] = (uint8_t)(int8_t)q;
    if (lane == 0)
        *(uint32_t *)to = half_bits2(d, s);
}

/* Q4_K, native, against Q8_1: a warp per output; a lane takes 16 bytes of quants = 32 weights. */
extern "C" __global__ void __launch_bounds__(256) gemv_q4k_dp4a(const __grid_constant__ struct gemv_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t lane = threadIdx.x % 32, n = blockIdx.x * 8 + threadIdx.x / 32;
    if (n >= p.w.n)
        return;
    const uint8_t *row = p.w.base + n * p.w.stride;
    const uint32_t part = lane % 8, pair = part / 2;
    float acc = 0.0f;
    for (uint32_t b = lane / 8; b < p.w.k / 256; b += 4) {
        const uint8_t *block = row + 144 * (uint64_t)b;
        uint4 q = load_stream(block + 16 + 16 * part), h = load_stream(block);
        uint32_t s0, m0, s1, m1;
        uint32_t head[4] = {h.x, h.y, h.z, h.w};
        decode_scale_min((const uint8_t *)head + 4, 2 * pair, &s0, &m0);
        decode_scale_min((const uint8_t *)head + 4, 2 * pair + 1, &s1, &m1);
        const uint8_t *x0 = p.x8 + (8ull * b + 2 * pair) * 36, *x1 = x0 + 36;
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        int low = 0, high = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low = __dp4a((int)(w[i] & 0x0f0f0f0fu), *(const int *)(x0 + 4 + 16 * (part & 1) + 4 * i), low);
            high = __dp4a((int)(w[i] >> 4 & 0x0f0f0f0fu), *(const int *)(x1 + 4 + 16 * (part & 1) + 4 * i),
                          high);
        }
        float d = decode_half((uint16_t)h.x), dmin = decode_half((uint16_t)(h.x >> 16));
        uint32_t ds0 = *(const uint32_t *)x0, ds1 = *(const uint32_t *)x1;
        acc += d * ((float)s0 * decode_half((uint16_t)ds0) * (float)low +
                    (float)s1 * decode_half((uint16_t)ds1) * (float)high);
        if ((part & 1) == 0)
            acc -= dmin * ((float)m0 * decode_half((uint16_t)(ds0 >> 16)) +
                           (float)m1 * decode_half((uint16_t)(ds1 >> 16)));
    }
    acc = warp_sum(acc);
    if (lane == 0)
        p.y[n] = acc;
}

/* Two values as e4m3. */
static __device__ __forceinline__ uint32_t fp8_pair(float a, float b)
{
#if __CUDA_ARCH__ >= 890
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
    return r;
#else
    return f8_e4m3_from_f32(a) | (uint32_t)f8_e4m3_from_f32(b) << 8;
#endif
}

/* A block a row. What follows may write where this reads (decoded weights), and starts when all of it is done. */
extern "C" __global__ void __launch_bounds__(256) fp8_rows(const __grid_constant__ struct fp8_args p)
{
    __shared__ float room[32];
    const uint4 *from = (const uint4 *)(p.from + (uint64_t)blockIdx.x * p.k);
    uint2 *to = (uint2 *)(p.to + (uint64_t)blockIdx.x * p.k);
    __half2 most = __float2half2_rn(0.0f);
    dep_wait();
    for (uint32_t i = threadIdx.x; i < p.k / 8; i += blockDim.x) {
        const uint4 v = from[i];
        const __half2 *h = (const __half2 *)&v;
#pragma unroll
        for (int j = 0; j < 4; j++)
            most = __hmax2(most, __habs2(h[j]));
    }
    const float max = block_max(fmaxf(__low2float(most), __high2float(most)), room);
    const float by = max > 0.0f ? 448.0f / max : 0.0f;
    for (uint32_t i = threadIdx.x; i < p.k / 8; i += blockDim.x) {
        const uint4 v = from[i];
        const __half2 *h = (const __half2 *)&v;
        uint32_t pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            pair[j] = fp8_pair(__low2float(h[j]) * by, __high2float(h[j]) * by);
        to[i] = make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
    }
    if (threadIdx.x == 0)
        p.scale[blockIdx.x] = max > 0.0f ? max / 448.0f : 1.0f;
}

/* How fast memory can be read: the sum of all words, so that nothing is left out. */
extern "C" __global__ void __launch_bounds__(512) probe_read(const __grid_constant__ struct probe_args p)
{
    uint64_t n = p.bytes / 64, step = (uint64_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t base = i / 32 * 2048 + i % 32 * 16;
        uint4 a = load_stream(p.src + base), b = load_stream(p.src + base + 512);
        uint4 c = load_stream(p.src + base + 1024), d = load_stream(p.src + base + 1536);
        sum += a.x ^ b.y ^ c.z ^ d.w;
    }
    if (sum == 0x12345678)
        *p.sink = sum;
}
