/* The choice of experts of one row, by a block or by a warp: from the router's logits to experts and their weights. A
 * gating is a row of the two functions at the top. */
#pragma once

#include "device/cuda/common.cuh"

/* A logit as its gating sees it; max: the largest of the row. */
static __device__ __forceinline__ float gating_value(uint32_t gating, float x, float max)
{
    switch (gating) {
    case GATING_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case GATING_SOFTMAX_TOPK:
        return x;
    default:
        return expf(x - max);
    }
}

/* What the weight of a chosen expert is before all are scaled together; sum: of the row's values. */
static __device__ __forceinline__ float gating_weight(uint32_t gating, float value, float max, float sum)
{
    return gating == GATING_SOFTMAX ? value / sum : gating == GATING_SOFTMAX_TOPK ? expf(value - max) : value;
}

struct expert_choice {
    __align__(
        16) float key[EXPERTS_MOST]; /* what is compared; up to a multiple of 16 there is -inf behind it */
    float logit[EXPERTS_MOST], group[EXPERT_GROUPS_MOST];
    float shared; /* the shared expert's logit */
    int32_t expert[MOE_USED_MOST];
    float weight[MOE_USED_MOST];
};

/* Whether keys are the logits themselves: they have the same order. */
static __device__ __forceinline__ bool choice_direct(const struct route_args &p)
{
    return !p.select_bias && (p.groups <= 1 || p.groups_used >= p.groups);
}

/* Maximum and sum over the row; each warp for itself. */
static __device__ __forceinline__ void choice_row(const struct route_args &p, const struct expert_choice &c,
                                                  float &max, float &sum)
{
    max = -INFINITY, sum = 0.0f;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < p.experts; i += 32)
        max = fmaxf(max, c.logit[i]);
    max = warp_max(max);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < p.experts; i += 32)
        sum += gating_value(p.gating, c.logit[i], max);
    sum = warp_sum(sum);
}

/* Keys where they are not the logits: with the bias, and only of the experts in the best groups. */
static __device__ __noinline__ void choice_keys(const struct route_args &p, struct expert_choice &c)
{
    float max, sum;
    choice_row(p, c, max, sum);
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x)
        c.key[e] = gating_value(p.gating, c.logit[e], max) / (p.gating == GATING_SOFTMAX ? sum : 1.0f) +
                   (p.select_bias ? p.select_bias[e] : 0.0f);
    __syncthreads();
    if (p.groups <= 1 || p.groups_used >= p.groups)
        return;
    const uint32_t size = p.experts / p.groups;
    for (uint32_t g = threadIdx.x; g < p.groups; g += blockDim.x) {
        float a = -INFINITY, b = -INFINITY;
        for (uint32_t i = 0; i < size; i++) {
            const float v = c.key[g * size + i];
            b = fmaxf(b, fminf(a, v));
            a = fmaxf(a, v);
        }
        c.group[g] = p.group_pair && size > 1 ? a + b : a;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
        const uint32_t g = e / size;
        uint32_t rank = 0;
        for (uint32_t i = 0; i < p.groups; i++)
            rank += c.group[i] > c.group[g] || (c.group[i] == c.group[g] && i < g);
        if (rank >= p.groups_used)
            c.key[e] = -INFINITY;
    }
    __syncthreads();
}

/* The row's logits into c; the block waits. */
static __device__ __forceinline__ void choice_load(const struct route_args &p, struct expert_choice &c,
                                                   const float *logits)
{
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < (p.experts + 15) / 16 * 16; e += blockDim.x) {
        const float x = e < p.experts ? __ldcg(logits + e) : -INFINITY;
        c.key[e] = x;
        if (e < p.experts)
            c.logit[e] = x;
    }
    if (threadIdx.x < p.used)
        c.expert[threadIdx.x] = (int)threadIdx.x; /* stays where logits are not numbers */
    if (threadIdx.x == 0 && p.ld > p.experts)
        c.shared = __ldcg(logits + p.experts);
    __syncthreads();
    if (!choice_direct(p))
        choice_keys(p, c);
}

/* c.expert, the best first: an expert's place is the number of keys that are larger, or as large and earlier. One, two or
 * four threads count for an expert. The caller lets the block wait. */
static __device__ __forceinline__ void choice_experts(const struct route_args &p, struct expert_choice &c)
{
    const uint32_t n = p.experts,
                   bits = 4 * n <= blockDim.x   ? 2
                          : 2 * n <= blockDim.x ? 1
                                                : 0,
                   parts = 1u << bits, end = (n * parts + 31) / 32 * 32;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t e = i >> bits, part = i & (parts - 1);
        const float v = c.key[min(e, n - 1)];
        uint32_t rank = 0;
#pragma unroll 4
        for (uint32_t j = 4 * part; j < n; j += 4 * parts) {
            const float4 w = *(const float4 *)(c.key + j);
            rank += w.x > v || (w.x == v && j < e);
            rank += w.y > v || (w.y == v && j + 1 < e);
            rank += w.z > v || (w.z == v && j + 2 < e);
            rank += w.w > v || (w.w == v && j + 3 < e);
        }
#pragma unroll 1
        for (uint32_t o = 1; o < parts; o *= 2)
            rank += __shfl_xor_sync(~0u, rank, o);
        if (part == 0 && e < n && rank < p.used)
            c.expert[rank] = (int)e;
    }
}

/* sparsemixer: the share of the chosen expert number k in the softmax of those that are near it and not chosen before. */
static __device__ __noinline__ float choice_near(const struct route_args &p, const struct expert_choice &c,
                                                 uint32_t k)
{
    const float most = c.logit[c.expert[k]];
    float sum = 0.0f;
    for (uint32_t i = 0; i < p.experts; i++) {
        const float x = c.logit[i];
        bool counts = most - x <= p.nearness * fmaxf(fabsf(x), most);
        for (uint32_t j = 0; j < k; j++)
            counts = counts && c.expert[j] != (int)i;
        sum += counts ? expf(x - most) : 0.0f;
    }
    return 1.0f / fmaxf(sum, 1.0f);
}

/* The weight of the expert that a lane has, with this logit (`has`: it has one), by one warp. */
static __device__ __forceinline__ float choice_weight(const struct route_args &p, bool has, float logit,
                                                      uint32_t expert, float max, float sum)
{
    const float w =
        has ? gating_weight(p.gating, gating_value(p.gating, logit, max), max, sum) : 0.0f;
    const float total = warp_sum(w);
    float f = p.weight_scale;
    if (p.normalise || p.gating == GATING_SOFTMAX_TOPK)
        f /= fmaxf(total, fmaxf(p.least_sum, 1e-20f));
    return w * f * (has && p.expert_scale ? p.expert_scale[expert] : 1.0f);
}

/* c.weight, by one warp; c.expert is there. */
static __device__ __forceinline__ void choice_weights(const struct route_args &p, struct expert_choice &c)
{
    const uint32_t lane = threadIdx.x % 32;
    const bool has = lane < p.used;
    float max, sum;
    if (p.nearness > 0.0f) {
        if (has)
            c.weight[lane] = p.weight_scale * choice_near(p, c, lane);
        return;
    }
    choice_row(p, c, max, sum);
    const uint32_t expert = has ? (uint32_t)c.expert[lane] : 0;
    const float w = choice_weight(p, has, c.logit[expert], expert, max, sum);
    if (has)
        c.weight[lane] = w;
}

/* ---- by a warp, in registers: up to 32 * EACH experts, without groups and nearness ---- */

/* An unsigned key in the order of the floats; 0 stands for what is chosen. */
static __device__ __forceinline__ uint32_t choice_order(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* one zero */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* A lane has experts 32 * j + lane of a row, and then the k-th best (lane k), as a block would choose them. */
template <int EACH> struct warp_choice {
    float logit[EACH], max, sum;
    uint32_t expert;
    float chosen; /* its logit */

    __device__ __forceinline__ warp_choice(const struct route_args &p, const float *logits)
        : expert(0), chosen(0.0f)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            logit[j] = 32 * j + lane < p.experts ? __ldcg(logits + 32 * j + lane) : -INFINITY;
    }

    /* Maximum and sum over the row. */
    __device__ __forceinline__ void row(const struct route_args &p)
    {
        const uint32_t lane = threadIdx.x % 32;
        max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            max = fmaxf(max, logit[j]);
        max = warp_max(max);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            sum += 32 * j + lane < p.experts ? gating_value(p.gating, logit[j], max) : 0.0f;
        sum = warp_sum(sum);
    }

    /* What is compared where it is not the logit. */
    __device__ __forceinline__ float key(const struct route_args &p, int j) const
    {
        const uint32_t e = min(32 * j + threadIdx.x % 32, p.experts - 1);
        return gating_value(p.gating, logit[j], max) / (p.gating == GATING_SOFTMAX ? sum : 1.0f) +
               (p.select_bias ? p.select_bias[e] : 0.0f);
    }

    /* direct: logits are compared; else row() comes first. */
    __device__ __forceinline__ void choose(const struct route_args &p, bool direct)
    {
        const uint32_t lane = threadIdx.x % 32;
        uint32_t left[EACH];
        float by[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            by[j] = logit[j];
        if (!direct)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                by[j] = key(p, j);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            left[j] = 32 * j + lane < p.experts ? choice_order(by[j]) : 0;
#pragma unroll 1
        for (uint32_t k = 0; k < p.used; k++) {
            uint32_t best = 0, at = ~0u;
            float x = 0.0f;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                best = ::max(best, left[j]);
            best = __reduce_max_sync(~0u, best);
#pragma unroll
            for (int j = EACH - 1; j >= 0; j--) {
                x = left[j] == best ? logit[j] : x;
                at = left[j] == best ? 32 * j + lane : at;
            }
            at = __reduce_min_sync(~0u, at);
#pragma unroll
            for (int j = 0; j < EACH; j++)
                left[j] = at == 32 * j + lane ? 0 : left[j];
            x = __shfl_sync(~0u, x, at % 32);
            expert = lane == k ? at : expert;
            chosen = lane == k ? x : chosen;
        }
    }

    __device__ __forceinline__ float weight(const struct route_args &p) const
    {
        return choice_weight(p, threadIdx.x % 32 < p.used, chosen, expert, max, sum);
    }
};
