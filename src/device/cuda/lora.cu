/* Adapters: low = A x, y += scale * B low. A block takes eight rows, which may have different adapters: those
 * with the same adapter as the first are computed together, then the rest in the same way. */
#include "device/cuda/common.cuh"
#include "device/device.h"

enum { LORA_ROWS = 8 };

/* The k-th adapter of the block's rows. */
struct lora_group {
    uint32_t id[LORA_ROWS]; /* 0: none */
    float scale[LORA_ROWS];
};

static __device__ __forceinline__ struct lora_group lora_group(const struct lora_args &p, uint32_t k)
{
    struct lora_group r;
#pragma unroll
    for (int j = 0; j < LORA_ROWS; j++) {
        const uint32_t i = blockIdx.y * LORA_ROWS + j;
        const int32_t at = i >= p.m ? -1 : p.row ? p.row[i] : (int32_t)i;
        r.id[j] = 0;
        r.scale[j] = 0.0f;
        if (at < 0)
            continue;
        const struct adapter_mix &mix = p.mix[p.row_seq[p.first + at]];
        if (k < mix.count) {
            r.id[j] = mix.id[k];
            r.scale[j] = mix.scale[k];
        }
    }
    return r;
}

/* Rows whose adapter is that of the first row in `todo`; 0: there are no more. */
static __device__ __forceinline__ uint32_t lora_same(const struct lora_group &r, uint32_t todo, uint32_t *id)
{
    uint32_t same = 0;
    *id = 0;
#pragma unroll
    for (int j = 0; j < LORA_ROWS; j++) {
        if (!(todo >> j & 1))
            continue;
        *id = *id ? *id : r.id[j];
        same |= r.id[j] == *id ? 1u << j : 0;
    }
    return same;
}

static __device__ __forceinline__ uint32_t lora_todo(const struct lora_group &r)
{
    uint32_t todo = 0;
#pragma unroll
    for (int j = 0; j < LORA_ROWS; j++)
        todo |= r.id[j] ? 1u << j : 0;
    return todo;
}

/* Which of the matrices of a pair the block needs; -1: it has no rows. */
static __device__ __forceinline__ int lora_matrix(const struct lora_args &p)
{
    return p.expert ? p.expert[blockIdx.y] : (int)blockIdx.z;
}

static __device__ __forceinline__ float *lora_low(const struct lora_args &p, uint32_t j, uint32_t k)
{
    const uint64_t row = (uint64_t)(blockIdx.y * LORA_ROWS + j) * gridDim.z + blockIdx.z;
    return p.low + (row * ADAPTERS_MIXED + k) * p.rank;
}

/* grid: (ranks by eight, rows by eight, heads): a warp per row of A. */
extern "C" __global__ void __launch_bounds__(256) lora_down(const __grid_constant__ struct lora_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t lane = threadIdx.x % 32, r = blockIdx.x * 8 + threadIdx.x / 32;
    const int matrix = lora_matrix(p);
    for (uint32_t k = 0; k < ADAPTERS_MIXED && matrix >= 0; k++) {
        const struct lora_group rows = lora_group(p, k);
        uint32_t id, same;
        for (uint32_t todo = lora_todo(rows); (same = lora_same(rows, todo, &id)); todo &= ~same) {
            const struct mat a = p.entry[id].a;
            if (!a.base || r >= a.n)
                continue;
            float acc[LORA_ROWS] = {};
            for (uint32_t i = lane; i < (a.k + 7) / 8; i += 32) {
                float w[8], x[8];
                decode8(a.base + matrix * a.each, a.stride, a.fmt, a.k, r, i, w);
#pragma unroll
                for (uint32_t j = 0; j < LORA_ROWS; j++) {
                    if (!(same >> j & 1))
                        continue;
                    const uint32_t at = blockIdx.y * LORA_ROWS + j;
                    const float *from =
                        p.x + (p.x_row ? p.x_row[at] : (int)at) * p.ldx + blockIdx.z * p.x_step + 8 * i;
                    load8(from, a.k - 8 * i, false, x);
#pragma unroll
                    for (int n = 0; n < 8; n++)
                        acc[j] += w[n] * x[n];
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < LORA_ROWS; j++) {
                const float sum = warp_sum(acc[j]);
                if (lane == 0 && same >> j & 1)
                    lora_low(p, j, k)[r] = sum;
            }
        }
    }
}

/* grid: (outputs by 256, rows by eight, heads). B may have a row more than A: it is added whatever x is. */
extern "C" __global__ void __launch_bounds__(256) lora_up(const __grid_constant__ struct lora_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t n = blockIdx.x * 256 + threadIdx.x;
    const int matrix = lora_matrix(p);
    float sum[LORA_ROWS] = {};
    for (uint32_t k = 0; k < ADAPTERS_MIXED && matrix >= 0; k++) {
        const struct lora_group rows = lora_group(p, k);
        uint32_t id, same;
        for (uint32_t todo = lora_todo(rows); (same = lora_same(rows, todo, &id)); todo &= ~same) {
            const struct lora_entry &e = p.entry[id];
            if (!e.a.base || n >= e.b.k)
                continue;
            float acc[LORA_ROWS] = {};
            for (uint32_t r = 0; r < e.b.n; r++) {
                const float b = *(const float *)(e.b.base + matrix * e.b.each + r * e.b.stride + 4ull * n);
#pragma unroll
                for (uint32_t j = 0; j < LORA_ROWS; j++)
                    if (same >> j & 1)
                        acc[j] += b * (r < e.a.n ? lora_low(p, j, k)[r] : 1.0f);
            }
#pragma unroll
            for (int j = 0; j < LORA_ROWS; j++)
                sum[j] += same >> j & 1 ? rows.scale[j] * e.scale * acc[j] : 0.0f;
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < LORA_ROWS; j++) {
        const uint32_t at = blockIdx.y * LORA_ROWS + j;
        if (sum[j] != 0.0f)
            p.y[at * p.ldy + blockIdx.z * p.y_step + n] +=
                p.scale * sum[j] / (p.row_scale ? p.row_scale[at] : 1.0f);
    }
}
