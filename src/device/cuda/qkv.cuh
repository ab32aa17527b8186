/* What follows the Q/K/V products, for one head of one row, by one warp: bias, clamp, norm, rotation, and the place in KV. */
#pragma once

#include "device/cuda/common.cuh"

/* Rotates v (in shared memory, one warp) in place; the lane has the sine and cosine of its first pair. */
static __device__ __forceinline__ void rope_warp(float *v, uint32_t kind, uint32_t dims, uint32_t first, float factor,
                                                 const float *freqs, int pos, float sine, float cosine)
{
    for (uint32_t i = threadIdx.x % 32; i < dims / 2; i += 32) {
        if (i >= 32)
            sincosf((float)pos * freqs[i], &sine, &cosine);
        const float s = sine * factor, c = cosine * factor;
        uint32_t a = first + (kind == ROPE_PAIRS ? 2 * i : i), b = kind == ROPE_PAIRS ? a + 1 : a + dims / 2;
        float x = v[a], y = v[b];
        v[a] = x * c - y * s;
        v[b] = x * s + y * c;
    }
    __syncwarp();
}

static __device__ __forceinline__ void norm_warp(const struct norm_args &n, float *v, uint32_t dim, uint32_t head,
                                                 const float *whole, uint32_t whole_n, float rs, const float *bias)
{
    const uint32_t lane = threadIdx.x % 32;
    float mean = 0.0f, sum = 0.0f, count = n.heads ? (float)dim : (float)whole_n;
    /* heads == 0: the statistics of the whole row, which every warp takes anew */
    auto at = [&](uint32_t i) { return n.heads ? v[i] : whole[i] * rs + (bias ? bias[i] : 0.0f); };
    if (n.kind == NORM_LAYER) {
        for (uint32_t i = lane; i < (uint32_t)count; i += 32)
            mean += at(i);
        mean = warp_sum(mean) / count;
    }
    for (uint32_t i = lane; i < (uint32_t)count; i += 32) {
        float d = at(i) - mean;
        sum += d * d;
    }
    float scale = rsqrtf(warp_sum(sum) / count + n.eps);
    uint32_t off = n.w_len > dim || !n.heads ? head * dim : 0;
    for (uint32_t i = lane; i < dim; i += 32) {
        float r = (v[i] - mean) * scale;
        if (n.w)
            r *= n.w[off + i];
        if (n.b)
            r += n.b[off + i];
        v[i] = r;
    }
    __syncwarp();
}

/* A row of K or V of one head from shared memory into its page. */
static __device__ __forceinline__ void kv_store(const struct kv_view &kv, uint32_t page, uint32_t slot, uint32_t head,
                                                bool is_v, const float *v)
{
    const uint32_t lane = threadIdx.x % 32, dim = is_v ? kv.v_dim : kv.k_dim, row = is_v ? kv.v_row : kv.k_row;
    uint8_t *at = kv.base + page * kv.page_bytes;
    at += is_v ? (uint64_t)kv.heads * kv.tokens * kv.k_row : 0;
    at += (uint64_t)head * kv.tokens * row;
    if (kv.type == KV_F16 && is_v) {
        for (uint32_t i = lane; i < dim; i += 32)
            ((__half *)at)[(uint64_t)i * kv.tokens + slot] = __float2half_rn(v[i]);
        return;
    }
    at += (uint64_t)slot * row;
    if (kv.type == KV_Q8_0) {
        for (uint32_t b = 0; b < dim / 32; b++) {
            float x = v[32 * b + lane];
            __half d = __float2half_rn(warp_max(fabsf(x)) / 127.0f);
            float f = __half2float(d);
            int q = f > 0.0f ? __float2int_rn(x / f) : 0;
            at[34 * b + 2 + lane] = (uint8_t)(int8_t)max(-127, min(127, q));
            if (lane == 0)
                *(__half *)(at + 34 * b) = d;
        }
        return;
    }
    for (uint32_t i = lane; i < dim; i += 32) {
        if (kv.type == KV_F32)
            ((float *)at)[i] = v[i];
        else if (kv.type == KV_F16)
            ((__half *)at)[i] = __float2half_rn(v[i]);
        else if (kv.type == KV_BF16)
            ((uint16_t *)at)[i] = bf16_from_f32(v[i]);
        else
            at[i] = f8_e4m3_from_f32(fminf(fmaxf(v[i], -448.0f), 448.0f));
    }
}

enum { QKV_Q, QKV_K, QKV_V };

struct qkv_head {
    uint32_t kind, head, pos, page;
    float sine, cosine; /* of the lane's first pair */
};

/* What needs no predecessor: the step's data was there before the first kernel. slot counts the heads of q, k, v. */
static __device__ __forceinline__ struct qkv_head qkv_start(const struct qkv_args &p, uint32_t row, uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32;
    struct qkv_head h;
    h.kind = slot < p.heads ? QKV_Q : slot < p.heads + p.kv.heads ? QKV_K : QKV_V;
    h.head = h.kind == QKV_Q ? slot : h.kind == QKV_K ? slot - p.heads : slot - p.heads - p.kv.heads;
    h.pos = p.meta.pos[row];
    h.page = p.kv.table[(uint64_t)p.meta.row_seq[row] * p.meta.width + (h.pos >> p.kv.token_bits)];
    h.sine = 0.0f;
    h.cosine = 1.0f;
    if (h.kind != QKV_V && p.rope != ROPE_NONE && lane < p.rope_dims / 2)
        sincosf((float)h.pos * p.freqs[lane], &h.sine, &h.cosine);
    return h;
}

/* The finished head into v (shared memory, its dimension long). */
static __device__ __forceinline__ void qkv_compute(const struct qkv_args &p, const struct qkv_head &h, uint32_t row, float *v)
{
    const uint32_t lane = threadIdx.x % 32, dim = h.kind == QKV_V ? p.kv.v_dim : p.kv.k_dim;
    const uint64_t q_n = (uint64_t)p.heads * p.kv.k_dim, k_n = (uint64_t)p.kv.heads * p.kv.k_dim;
    const float *y = p.y + row * p.ldy + (h.kind == QKV_Q ? 0 : h.kind == QKV_K ? q_n : q_n + k_n);
    const float *bias = h.kind == QKV_Q ? p.q_bias : h.kind == QKV_K ? p.k_bias : p.v_bias;
    const float rs = p.row_scale ? p.row_scale[row] : 1.0f;
#pragma unroll 4
    for (uint32_t i = lane; i < dim; i += 32) {
        float x = y[(uint64_t)h.head * dim + i] * rs + (bias ? bias[h.head * dim + i] : 0.0f);
        v[i] = p.clamp > 0.0f ? fminf(fmaxf(x, -p.clamp), p.clamp) : x;
    }
    __syncwarp();
    const struct norm_args &n = h.kind == QKV_Q ? p.q_norm : p.k_norm;
    if (h.kind != QKV_V && n.kind != NORM_NONE)
        norm_warp(n, v, dim, h.head, y, (uint32_t)(h.kind == QKV_Q ? q_n : k_n), rs, bias);
    if (h.kind != QKV_V && p.rope != ROPE_NONE)
        rope_warp(v, p.rope, p.rope_dims, p.rope_first, p.rope_factor, p.freqs, (int)h.pos, h.sine, h.cosine);
}
