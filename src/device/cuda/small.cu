/* Small operations on rows for callers of the public header, and the choice of a token on the GPU. */
#include "device/cuda/common.cuh"

/* y = f(x, w) for m rows of n; w is a second operand of the same shape, or a vector (bias). */
extern "C" __global__ void __launch_bounds__(256) rows_each(const __grid_constant__ struct rows_args p)
{
    dep_launch();
    dep_wait();
    uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n * p.m)
        return;
    float x = p.x[i];
    switch (p.kind) {
    case ROWS_ADD:
        x += p.w[i];
        break;
    case ROWS_BIAS:
        x += p.w[i % p.n];
        break;
    case ROWS_SWIGLU:
        x = act_one(ACT_SILU, x) * p.w[i];
        break;
    default:
        x = act_one(p.kind, x);
    }
    p.y[i] = x;
}

extern "C" __global__ void __launch_bounds__(256) rows_softmax(const __grid_constant__ struct rows_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const float *x = p.x + blockIdx.x * p.n;
    float *y = p.y + blockIdx.x * p.n, max = -INFINITY, sum = 0.0f;
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        max = fmaxf(max, x[i]);
    max = block_max(max, room);
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        sum += expf(x[i] - max);
    sum = block_sum(sum, room);
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        y[i] = expf(x[i] - max) / sum;
}

/* x (m, heads, dim), positions from device memory; w: inverse frequencies; kind: enum rope_kind. */
extern "C" __global__ void __launch_bounds__(128) rows_rope(const __grid_constant__ struct rows_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.y, head = blockIdx.x;
    const uint64_t at = ((uint64_t)row * p.heads + head) * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += 128)
        if (i < p.rope_first || i >= p.rope_first + p.rope_dims)
            p.y[at + i] = p.x[at + i];
    for (uint32_t i = threadIdx.x; i < p.rope_dims / 2; i += 128) {
        float s, c;
        sincosf((float)p.pos[row] * p.w[i], &s, &c);
        s *= p.factor;
        c *= p.factor;
        uint32_t a = p.rope_first + (p.kind == ROPE_PAIRS ? 2 * i : i),
                 b = p.kind == ROPE_PAIRS ? a + 1 : a + p.rope_dims / 2;
        float x = p.x[at + a], y = p.x[at + b];
        p.y[at + a] = x * c - y * s;
        p.y[at + b] = x * s + y * c;
    }
}

struct best {
    float v;
    uint32_t i;
};

static __device__ __forceinline__ bool better(struct best a, struct best b)
{
    return a.v > b.v || (a.v == b.v && a.i < b.i);
}

static __device__ __forceinline__ struct best block_best(struct best b, struct best *room)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        struct best c = {__shfl_xor_sync(~0u, b.v, o), __shfl_xor_sync(~0u, b.i, o)};
        if (better(c, b))
            b = c;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = b;
    __syncthreads();
    struct best r = room[0];
    for (uint32_t i = 1; i < blockDim.x / 32; i++)
        if (better(room[i], r))
            r = room[i];
    return r;
}

/* The best below `under` (in the order of `better`). */
static __device__ __forceinline__ struct best row_best(const float *x, uint32_t n, struct best under,
                                                       struct best *room)
{
    struct best b = {-INFINITY, 0xffffffffu};
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        struct best c = {x[i], i};
        if (better(under, c) && better(c, b))
            b = c;
    }
    return block_best(b, room);
}

/* The top_k best of each row, in order; top_k = 1 is argmax. */
extern "C" __global__ void __launch_bounds__(1024) sample_top(const __grid_constant__ struct sample_args p)
{
    __shared__ struct best room[32];
    dep_launch();
    dep_wait();
    struct best b = {INFINITY, 0};
    for (uint32_t k = 0; k < p.top_k; k++) {
        b = row_best(p.logits + blockIdx.x * p.ld, p.n, b, room);
        if (threadIdx.x == 0) {
            p.ids[blockIdx.x * p.top_k + k] = (int)b.i;
            if (p.values)
                p.values[blockIdx.x * p.top_k + k] = b.v;
        }
    }
}

/* From the top_k best of a row (sample_top): temperature, top-p, min-p, then the token where the running sum
 * passes the row's noise. One thread a row: top_k is small. */
extern "C" __global__ void sample_pick(const __grid_constant__ struct sample_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.m)
        return;
    const float *v = p.values + (uint64_t)row * p.top_k;
    const int32_t *from = (const int32_t *)p.logits + (uint64_t)row * p.top_k;
    float sum = 0.0f, kept = 0.0f;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p.top_k; i++)
        sum += expf((v[i] - v[0]) / p.temperature);
    for (uint32_t i = 0; i < p.top_k; i++) {
        float e = expf((v[i] - v[0]) / p.temperature);
        if (n && (kept >= p.top_p * sum || e < p.min_p))
            break;
        kept += e;
        n++;
    }
    float at = p.noise[row] * kept, run = 0.0f;
    uint32_t pick = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        run += expf((v[i] - v[0]) / p.temperature);
        if (run > at) {
            pick = i;
            break;
        }
    }
    p.ids[row] = from[pick];
}
