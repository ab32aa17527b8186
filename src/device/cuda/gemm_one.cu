/* Products of one row with small weights of any form, in float: every block norms the row itself, into shared memory, a
 * warp takes an output at a time. What a warp reads of its first output is decoded before the row is there. For small
 * models, whose steps are bound by the number and length of their launches; large ones with tiles have gemm_tile_1.
 * Values of the row have the eleven bits of fp16, as in other products: so a text in a batch is the text alone. */
#include "device/cuda/attn.cuh"
#include "device/cuda/gemm_row.cuh"

enum {
    ONE_AHEAD = 6
}; /* eight values each, of a lane; where it has two outputs, gate and up, half of each */

template <int FMT, int AHEAD>
static __device__ __forceinline__ void one_ahead(float v[AHEAD][8], const struct mat &w, uint32_t n)
{
#pragma unroll
    for (uint32_t j = 0; j < AHEAD; j++) {
        const uint32_t i = threadIdx.x % 32 + 32 * j;
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[j][e] = 0.0f;
        if (8 * i < w.k)
            decode8(w.base, w.stride, FMT, w.k, n, i, v[j]);
    }
}

template <int FMT, int AHEAD>
static __device__ __forceinline__ float one_rest(const struct mat &w, uint32_t n, const float *x)
{
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % 32 + 32 * AHEAD; 8 * i < w.k; i += 32) {
        float v[8];
        decode8(w.base, w.stride, FMT, w.k, n, i, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += v[e] * x[8 * i + e];
    }
    return sum;
}

#define ONE_FORMS(CASE)                                                                                      \
    CASE(FMT_F32)                                                                                            \
    CASE(FMT_F16)                                                                                            \
    CASE(FMT_BF16)                                                                                           \
    CASE(FMT_Q4_0)                                                                                           \
    CASE(FMT_Q4_1)                                                                                           \
    CASE(FMT_Q5_0)                                                                                           \
    CASE(FMT_Q5_1)                                                                                           \
    CASE(FMT_Q8_0)                                                                                           \
    CASE(FMT_Q2_K)                                                                                           \
    CASE(FMT_Q3_K)                                                                                           \
    CASE(FMT_Q5_K)                                                                                           \
    CASE(FMT_IQ4_NL)                                                                                         \
    CASE(FMT_IQ4_XS)                                                                                         \
    CASE(FMT_MXFP4)

/* Output n of a weight: the first part decoded, and the sum with all of x. */
template <int AHEAD> struct one_output {
    float v[AHEAD][8];

    __device__ __forceinline__ void ahead(const struct mat &w, uint32_t n)
    {
        switch (w.fmt) {
#define CASE(f)                                                                                              \
    case f:                                                                                                  \
        one_ahead<f, AHEAD>(v, w, n);                                                                        \
        break;
            ONE_FORMS(CASE)
#undef CASE
        }
    }
    __device__ __forceinline__ float sum(const struct mat &w, uint32_t n, const float *x) const
    {
        float s = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = threadIdx.x % 32 + 32 * j;
            if (8 * i >= w.k)
                break;
            const float4 a = *(const float4 *)(x + 8 * i), b = *(const float4 *)(x + 8 * i + 4);
            s += v[j][0] * a.x + v[j][1] * a.y + v[j][2] * a.z + v[j][3] * a.w;
            s += v[j][4] * b.x + v[j][5] * b.y + v[j][6] * b.z + v[j][7] * b.w;
        }
        if (w.k > 256 * AHEAD)
            switch (w.fmt) {
#define CASE(f)                                                                                              \
    case f:                                                                                                  \
        s += one_rest<f, AHEAD>(w, n, x);                                                                    \
        break;
                ONE_FORMS(CASE)
#undef CASE
            }
        return warp_sum(s);
    }
};

/* Eight values of the row, or of the parts it is in; zeros past its end. */
static __device__ __forceinline__ void one_load(const struct gemm_args &p, uint32_t i, uint32_t splits,
                                                bool aligned, float v[8])
{
    if (p.in.parts.part)
        gemm_join(p.in.parts, 8 * i, splits, v);
    else
        load8(p.in.x + 8 * i, 8 * i < p.k ? p.k - 8 * i : 0, aligned, v);
}

/* v with fp16's eleven bits, however large or small it is; what is no finite number stays. */
static __device__ __forceinline__ float one_round(float v)
{
    const uint32_t bits = __float_as_uint(v);
    return fabsf(v) < 0x1p127f ? __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu) : v;
}

/* The row, normed, as floats in shared memory. A thread has its first eight values in registers, with their weights, which
 * are there before the row is. -> *add, once that may be read; add NULL: 0. */
static __device__ __forceinline__ float one_row(const struct gemm_args &p, float *x, float *room,
                                                const float *add)
{
    const struct gemm_in &in = p.in;
    const uint32_t groups = (p.k + 7) / 8, mine = threadIdx.x;
    const bool aligned = is_aligned(in.x, 0), norm = in.norm.kind != NORM_NONE,
               layer = in.norm.kind == NORM_LAYER, whole = !norm_is_factor(&in.norm);
    const uint32_t splits =
        in.parts.part ? decode_span(in.parts.splits, in.parts.window, *in.parts.length, 1).splits : 0;
    float v[8] = {}, w[8], sum = 0.0f, mean = 0.0f, scale = 1.0f, more = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++)
        w[e] = norm && in.norm.w && 8 * mine + e < p.k ? in.norm.w[8 * mine + e] : 1.0f;
    dep_wait();
    if (add)
        more = *add;
    if (mine < groups)
        one_load(p, mine, splits, aligned, v);
    auto take = [&](float e) { sum += layer ? e : e * e; };
#pragma unroll
    for (int e = 0; e < 8; e++)
        take(v[e]);
    for (uint32_t i = mine + ONE_THREADS; i < groups; i += ONE_THREADS) {
        float rest[8];
        one_load(p, i, splits, aligned, rest);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            x[8 * i + e] = rest[e];
            take(rest[e]);
        }
    }
    if (layer) {
        mean = block_sum(sum, room) / (float)p.k;
        sum = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += 8 * mine + e < p.k ? (v[e] - mean) * (v[e] - mean) : 0.0f;
        for (uint32_t i = mine + ONE_THREADS; i < groups; i += ONE_THREADS)
            for (uint32_t e = 0; e < 8 && 8 * i + e < p.k; e++)
                sum += (x[8 * i + e] - mean) * (x[8 * i + e] - mean);
    }
    if (norm)
        scale = rsqrtf(block_sum(sum, room) / (float)p.k + in.norm.eps);
    if (mine < groups && whole)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float bias = in.norm.b && 8 * mine + e < p.k ? in.norm.b[8 * mine + e] : 0.0f;
            x[8 * mine + e] = 8 * mine + e < p.k ? one_round((v[e] - mean) * scale * w[e] + bias) : 0.0f;
        }
    else if (mine < groups)
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[8 * mine + e] = one_round(v[e] * w[e]) * scale;
    /* each thread changes only what it wrote */
    for (uint32_t i = mine + ONE_THREADS; i < groups; i += ONE_THREADS)
        for (uint32_t at = 8 * i; at < min(8 * i + 8, p.k); at++) {
            const float by = norm && in.norm.w ? in.norm.w[at] : 1.0f,
                        bias = whole && in.norm.b ? in.norm.b[at] : 0.0f;
            x[at] = whole ? one_round((x[at] - mean) * scale * by + bias) : one_round(x[at] * by) * scale;
        }
    __syncthreads();
    return more;
}

/* p.strips: outputs in all; in pairs those of gate. */
template <bool PAIRED> static __device__ __forceinline__ void one_body(const struct gemm_args &p)
{
    extern __shared__ __align__(16) float one_x[];
    __shared__ float room[32];
    enum { AHEAD = PAIRED ? ONE_AHEAD / 2 : ONE_AHEAD };
    struct one_output<AHEAD> a, b;
    const uint32_t warps = ONE_THREADS / 32, first = blockIdx.x * warps + threadIdx.x / 32;
    for (uint32_t i = first; i < p.strips || i == first; i += gridDim.x * warps) {
        const uint32_t at = min(i, p.strips - 1);
        const struct gemm_seg &seg = p.seg[PAIRED ? 0 : gemm_segment(p, at)];
        const uint32_t n = at - seg.first;
        const float bias = seg.bias ? seg.bias[n] : 0.0f;
        const float *residual = p.residual ? p.residual + n : nullptr;
        a.ahead(seg.w, n);
        if (PAIRED)
            b.ahead(p.seg[1].w, n);
        const float more = i == first ? one_row(p, one_x, room, residual) : residual ? *residual : 0.0f;
        float y = a.sum(seg.w, n, one_x) + bias;
        if (PAIRED)
            y = act_one(p.act, y) * (b.sum(p.seg[1].w, n, one_x) + (p.seg[1].bias ? p.seg[1].bias[n] : 0.0f));
        else
            y = y * p.scale + more;
        if (threadIdx.x % 32 == 0 && i < p.strips)
            seg.y[n] = y;
    }
}

extern "C" __global__ void __launch_bounds__(ONE_THREADS, 2)
    gemm_one(const __grid_constant__ struct gemm_args p)
{
    dep_launch();
    if (p.paired)
        one_body<true>(p);
    else
        one_body<false>(p);
}
