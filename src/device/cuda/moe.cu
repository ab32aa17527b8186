/* Experts: the choice for each row, the grouping of (row, expert) pairs so that an expert's rows lie
 * together in groups of eight, and the weighted sum at the end. */
#include "device/cuda/common.cuh"

enum { EXPERTS_MOST = 1024, EXPERT_GROUPS_MOST = 64 };

/* The best of n values by a warp: the larger value, then the smaller index. */
static __device__ __forceinline__ uint32_t warp_best(const float *v, uint32_t n, float *value)
{
    float best = -INFINITY;
    uint32_t at = 0xffffffffu;
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        if (v[i] > best || (v[i] == best && i < at)) {
            best = v[i];
            at = i;
        }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        float b = __shfl_xor_sync(~0u, best, o);
        uint32_t j = __shfl_xor_sync(~0u, at, o);
        if (b > best || (b == best && j < at)) {
            best = b;
            at = j;
        }
    }
    *value = best;
    return at;
}

/* Leaves only the experts of the best groups in `choice`. */
static __device__ void keep_groups(const struct route_args &p, float *choice, float *group)
{
    const uint32_t lane = threadIdx.x, size = p.experts / p.groups;
    for (uint32_t g = lane; g < p.groups; g += 32) {
        float a = -INFINITY, b = -INFINITY;
        for (uint32_t i = 0; i < size; i++) {
            float v = choice[g * size + i];
            if (v > a) {
                b = a;
                a = v;
            } else if (v > b) {
                b = v;
            }
        }
        group[g] = p.gating == GATING_SIGMOID ? a + (size > 1 ? b : 0.0f) : a;
    }
    __syncwarp();
    uint64_t keep = 0;
    for (uint32_t i = 0; i < p.groups_used; i++) {
        float v;
        uint32_t g = warp_best(group, p.groups, &v);
        keep |= 1ull << g;
        if (lane == 0)
            group[g] = -INFINITY;
        __syncwarp();
    }
    for (uint32_t i = lane; i < p.experts; i += 32)
        if (!(keep >> (i / size) & 1))
            choice[i] = -INFINITY;
    __syncwarp();
}

/* A warp a row. */
extern "C" __global__ void __launch_bounds__(32) moe_route(const __grid_constant__ struct route_args p)
{
    __shared__ float prob[EXPERTS_MOST], choice[EXPERTS_MOST], group[EXPERT_GROUPS_MOST];
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    const float *x = p.logits + (uint64_t)row * p.experts;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = lane; i < p.experts; i += 32)
        max = fmaxf(max, x[i]);
    max = warp_max(max);
    for (uint32_t i = lane; i < p.experts; i += 32) {
        prob[i] = p.gating == GATING_SIGMOID   ? 1.0f / (1.0f + expf(-x[i]))
                  : p.gating == GATING_SOFTMAX ? expf(x[i] - max)
                                               : x[i];
        sum += prob[i];
    }
    sum = warp_sum(sum);
    for (uint32_t i = lane; i < p.experts; i += 32) {
        if (p.gating == GATING_SOFTMAX)
            prob[i] /= sum;
        choice[i] = prob[i] + (p.select_bias ? p.select_bias[i] : 0.0f);
    }
    __syncwarp();
    if (p.groups > 1 && p.groups_used < p.groups)
        keep_groups(p, choice, group);
    float total = 0.0f;
    for (uint32_t i = 0; i < p.used; i++) {
        float v;
        uint32_t e = warp_best(choice, p.experts, &v);
        e = e < p.experts ? e : 0;
        float w = prob[e];
        if (p.gating == GATING_SOFTMAX_TOPK)
            w = expf(w - max);
        total += w;
        if (lane == 0) {
            p.expert[row * p.used + i] = (int)e;
            p.weight[row * p.used + i] = w;
            choice[e] = -INFINITY;
        }
        __syncwarp();
    }
    float f = p.weight_scale;
    if (p.normalise || p.gating == GATING_SOFTMAX_TOPK)
        f /= fmaxf(total, 1e-20f);
    for (uint32_t i = lane; i < p.used; i += 32)
        p.weight[row * p.used + i] *= f;
}

/* One block. Pairs keep their order within an expert, so that the sums do not depend on the launch. */
extern "C" __global__ void __launch_bounds__(1024) moe_group(const __grid_constant__ struct group_args p)
{
    __shared__ uint32_t first[EXPERTS_MOST + 1], count[EXPERTS_MOST];
    dep_launch();
    dep_wait();
    const uint32_t pairs = p.m * p.used;
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < pairs; i++)
            n += p.expert[i] == (int)e;
        count[e] = n;
    }
    for (uint32_t i = threadIdx.x; i < p.most_groups; i += blockDim.x)
        p.group_expert[i] = -1;
    for (uint32_t i = threadIdx.x; i < p.most_groups * 8; i += blockDim.x)
        p.slot_row[i] = -1;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t at = 0;
        for (uint32_t e = 0; e < p.experts; e++) {
            first[e] = at;
            at += (count[e] + 7) / 8;
        }
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
        uint32_t slot = first[e] * 8;
        if (!count[e])
            continue;
        for (uint32_t g = 0; g < (count[e] + 7) / 8; g++)
            p.group_expert[first[e] + g] = (int)e;
        for (uint32_t i = 0; i < pairs; i++)
            if (p.expert[i] == (int)e) {
                p.slot[i] = (int)slot;
                p.slot_row[slot++] = (int)(i / p.used);
            }
    }
}

extern "C" __global__ void __launch_bounds__(256) moe_combine(const __grid_constant__ struct combine_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n)
        return;
    float v = 0.0f;
    for (uint32_t j = 0; j < p.used; j++)
        v += p.weight[row * p.used + j] * p.y[(uint64_t)p.slot[row * p.used + j] * p.ldy + i];
    if (p.shared) {
        float f = p.shared_gate ? 1.0f / (1.0f + expf(-p.shared_gate[row])) : 1.0f;
        v += f * p.shared[(uint64_t)row * p.n + i];
    }
    p.out[row * p.ldo + i] = v;
}
