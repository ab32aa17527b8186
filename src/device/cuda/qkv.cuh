/* Heads of Q, K and V behind their products: bias, norm, rotation, and K and V into their pages. */
#pragma once

#include "device/cuda/common.cuh"

static __device__ __forceinline__ float rope_angle(const float *freqs, uint32_t dims, uint32_t pos,
                                                   const int32_t *axes, uint32_t pair)
{
    if (!axes)
        return (float)pos * freqs[pair];
    const uint32_t half = dims / 2;
    return (float)axes[0] * freqs[pair] + (float)axes[1] * freqs[half + pair] +
           (float)axes[2] * freqs[2 * half + pair];
}

/* The angles of a lane's first pairs, which no predecessor changes. */
enum { TURNS = 2 };
struct turn {
    float sine[TURNS], cosine[TURNS];

    /* axes: positions of three axes, with frequencies for each; NULL: pos alone */
    __device__ __forceinline__ turn(const float *freqs, uint32_t dims, uint32_t pos, const int32_t *axes)
    {
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            const uint32_t pair = threadIdx.x % 32 + 32 * i;
            sine[i] = 0.0f;
            cosine[i] = 1.0f;
            if (pair < dims / 2)
                sincosf(rope_angle(freqs, dims, pos, axes, pair), &sine[i], &cosine[i]);
        }
    }
};

static __device__ __forceinline__ void rope_pair(float *v, uint32_t kind, uint32_t dims, uint32_t i, float s,
                                                 float c)
{
    const uint32_t a = kind == ROPE_PAIRS ? 2 * i : i, b = kind == ROPE_PAIRS ? a + 1 : a + dims / 2;
    const float x = v[a], y = v[b];
    v[a] = x * c - y * s;
    v[b] = x * s + y * c;
}

/* Rotates v (in shared memory, one warp) in place. */
static __device__ __forceinline__ void rope_warp(float *v, uint32_t kind, uint32_t dims, float factor,
                                                 const float *freqs, uint32_t pos, const int32_t *axes,
                                                 const struct turn &turn)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++)
        if (lane + 32 * i < dims / 2)
            rope_pair(v, kind, dims, lane + 32 * i, turn.sine[i] * factor, turn.cosine[i] * factor);
    for (uint32_t i = lane + 32 * TURNS; i < dims / 2; i += 32) {
        float s, c;
        sincosf(rope_angle(freqs, dims, pos, axes, i), &s, &c);
        rope_pair(v, kind, dims, i, s * factor, c * factor);
    }
    __syncwarp();
}

static __device__ __forceinline__ void norm_warp(const struct norm_args &n, float *v, uint32_t dim,
                                                 uint32_t head, const float *whole, uint32_t whole_n,
                                                 float rs, const float *bias)
{
    const uint32_t lane = threadIdx.x % 32;
    float mean = 0.0f, sum = 0.0f, count = n.heads ? (float)dim : (float)whole_n;
    /* heads == 0: the statistics of the whole row, which every warp computes itself */
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
static __device__ __forceinline__ void kv_store(const struct kv_view &kv, uint32_t page, uint32_t slot,
                                                uint32_t head, bool is_v, const float *v)
{
    const uint32_t lane = threadIdx.x % 32, dim = is_v ? kv.v_dim : kv.k_dim,
                   row = is_v ? kv.v_row : kv.k_row;
    uint8_t *at = kv.base + page * kv.page_bytes;
    at += is_v ? (uint64_t)kv.heads * kv.tokens * kv.k_row : 0;
    at += (uint64_t)head * kv.tokens * row;
    if (kv.type == KV_F16 && is_v) {
        /* finite whatever comes: attention multiplies what lies past a sequence's end by zero, and pages change hands */
        for (uint32_t i = lane; i < dim; i += 32)
            ((__half *)at)[(uint64_t)i * kv.tokens + slot] =
                __float2half_rn(fminf(fmaxf(v[i], -65504.0f), 65504.0f));
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

static __device__ __forceinline__ float query_scale(const struct query_args &q, uint32_t pos)
{
    return q.beta == 0.0f ? 1.0f : 1.0f + q.beta * log1pf((float)((pos + q.offset) / q.length));
}

enum { QKV_Q, QKV_K, QKV_V };

struct qkv_head {
    uint32_t kind, head, pos, page;
    const int32_t *axes;
};

static __device__ __forceinline__ const struct norm_args &qkv_norm(const struct qkv_args &p,
                                                                   const struct qkv_head &h)
{
    return h.kind == QKV_Q ? p.q_norm : h.kind == QKV_K ? p.k_norm : p.v_norm;
}

/* Which head a slot is: those of q, then of k, then of v. */
static __device__ __forceinline__ void qkv_slot(const struct qkv_args &p, uint32_t slot, struct qkv_head &h)
{
    h.kind = slot < p.heads ? QKV_Q : slot < p.heads + p.kv.heads ? QKV_K : QKV_V;
    h.head = h.kind == QKV_Q ? slot : h.kind == QKV_K ? slot - p.heads : slot - p.heads - p.kv.heads;
}

/* What needs no predecessor: the step's data was there before the first kernel. */
static __device__ __forceinline__ struct qkv_head qkv_start(const struct qkv_args &p, uint32_t row,
                                                            uint32_t slot)
{
    struct qkv_head h;
    qkv_slot(p, slot, h);
    h.pos = p.meta.pos[row];
    h.axes = p.rope_axes ? p.meta.axes + 3 * (uint64_t)row : nullptr;
    h.page =
        p.k_heads ? p.kv.table[(uint64_t)p.meta.row_seq[row] * p.meta.width + (h.pos >> p.kv.token_bits)] : 0;
    return h;
}

/* Asks for what a head is added to and normed with, which lies in memory that the weights have driven out of the cache. */
static __device__ __forceinline__ void qkv_ahead(const struct qkv_args &p, const struct qkv_head &h)
{
    const uint32_t at = threadIdx.x % 32 * 32, dim = h.kind == QKV_V ? p.kv.v_dim : p.kv.k_dim;
    const float *bias = h.kind == QKV_Q ? p.q_bias : h.kind == QKV_K || p.v_is_k ? p.k_bias : p.v_bias;
    const struct norm_args &n = qkv_norm(p, h);
    if (at >= dim)
        return;
    if (bias)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(bias + h.head * dim + at));
    if (n.kind != NORM_NONE && n.w)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(n.w + (n.w_len > dim ? h.head * dim : 0) + at));
}

/* The finished head into v (shared memory, its dimension long). */
static __device__ __forceinline__ void qkv_compute(const struct qkv_args &p, const struct qkv_head &h,
                                                   const struct turn &turn, uint32_t row, float *v)
{
    const uint32_t lane = threadIdx.x % 32, dim = h.kind == QKV_V ? p.kv.v_dim : p.kv.k_dim;
    const uint64_t q_n = (uint64_t)p.heads * p.kv.k_dim, k_n = (uint64_t)p.kv.heads * p.kv.k_dim;
    const bool as_k = h.kind == QKV_K || (h.kind == QKV_V && p.v_is_k);
    const float *y = p.y + row * p.ldy + (h.kind == QKV_Q ? 0 : as_k ? q_n : q_n + k_n);
    const float *bias = h.kind == QKV_Q ? p.q_bias : as_k ? p.k_bias : p.v_bias;
    const float rs = p.row_scale ? p.row_scale[row] : 1.0f;
    const bool late = p.clamp_last && h.kind != QKV_V;
#pragma unroll 4
    for (uint32_t i = lane; i < dim; i += 32) {
        float x = y[(uint64_t)h.head * dim + i] * rs + (bias ? bias[h.head * dim + i] : 0.0f);
        v[i] = p.clamp > 0.0f && !late ? fminf(fmaxf(x, -p.clamp), p.clamp) : x;
    }
    __syncwarp();
    const struct norm_args &n = qkv_norm(p, h);
    const bool last = p.norm_last && h.kind != QKV_V;
    if (n.kind != NORM_NONE && !last)
        norm_warp(n, v, dim, h.head, y, (uint32_t)(h.kind == QKV_Q ? q_n : k_n), rs, bias);
    if (p.clamp > 0.0f && late) {
        for (uint32_t i = lane; i < dim; i += 32)
            v[i] = fminf(fmaxf(v[i], -p.clamp), p.clamp);
        __syncwarp();
    }
    if (h.kind != QKV_V && p.rope != ROPE_NONE)
        rope_warp(v + p.rope_first, p.rope, p.rope_dims, p.rope_factor, p.freqs, h.pos, h.axes, turn);
    if (n.kind != NORM_NONE && last)
        norm_warp(n, v, dim, h.head, y, (uint32_t)(h.kind == QKV_Q ? q_n : k_n), rs, bias);
    if (h.kind == QKV_Q && p.q_scale.beta != 0.0f) {
        const float scale = query_scale(p.q_scale, h.pos);
        for (uint32_t i = lane; i < dim; i += 32)
            v[i] *= scale;
        __syncwarp();
    }
}

/* Heads of 32 * C values with nothing rare about them, in a warp's registers: what follows their products is short then.
 * A lane has C of them, both of each pair that is rotated. */
template <int C> struct qkv_plain {
    float w[C], b[C];

    static __device__ __forceinline__ uint32_t at(const struct qkv_args &p, int i)
    {
        const uint32_t lane = threadIdx.x % 32;
        return p.rope == ROPE_PAIRS ? i / 2 * 64 + 2 * lane + i % 2 : i % 2 * (16 * C) + i / 2 * 32 + lane;
    }
    /* What needs no predecessor. */
    __device__ __forceinline__ void ahead(const struct qkv_args &p, const struct qkv_head &h)
    {
        const float *bias = h.kind == QKV_Q ? p.q_bias : h.kind == QKV_K ? p.k_bias : p.v_bias;
        const struct norm_args &n = qkv_norm(p, h);
        const float *weight =
            n.kind != NORM_NONE && n.w ? n.w + (n.w_len > 32 * C ? h.head * 32 * C : 0) : nullptr;
#pragma unroll
        for (int i = 0; i < C; i++) {
            b[i] = bias ? bias[h.head * 32 * C + at(p, i)] : 0.0f;
            w[i] = weight ? weight[at(p, i)] : 1.0f;
        }
    }
    __device__ __forceinline__ void compute(const struct qkv_args &p, const struct qkv_head &h,
                                            const struct turn &turn, uint32_t row, float *to) const
    {
        const uint32_t first = h.kind == QKV_Q ? 0 : p.heads + (h.kind == QKV_K ? 0 : p.kv.heads);
        const float *y = p.y + row * p.ldy + (first + h.head) * 32 * C;
        const float rs = p.row_scale ? p.row_scale[row] : 1.0f;
        const struct norm_args &n = qkv_norm(p, h);
        float v[C], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < C; i++)
            v[i] = y[at(p, i)];
#pragma unroll
        for (int i = 0; i < C; i++) {
            v[i] = v[i] * rs + b[i];
            sum += v[i] * v[i];
        }
        if (n.kind != NORM_NONE) {
            const float scale = rsqrtf(warp_sum(sum) / (float)(32 * C) + n.eps);
#pragma unroll
            for (int i = 0; i < C; i++)
                v[i] *= scale * w[i];
        }
        const bool turns = h.kind != QKV_V && p.rope != ROPE_NONE;
#pragma unroll
        for (int i = 0; i < C / 2; i++) {
            const float s = turns ? turn.sine[i % TURNS] * p.rope_factor : 0.0f,
                        c = turns ? turn.cosine[i % TURNS] * p.rope_factor : 1.0f;
            to[at(p, 2 * i)] = v[2 * i] * c - v[2 * i + 1] * s;
            to[at(p, 2 * i + 1)] = v[2 * i] * s + v[2 * i + 1] * c;
        }
    }
};

/* Whether it can have the head. */
template <int C>
static __device__ __forceinline__ bool qkv_is_plain(const struct qkv_args &p, const struct qkv_head &h)
{
    const struct norm_args &n = qkv_norm(p, h);
    const bool norm = n.kind == NORM_NONE || (n.kind == NORM_RMS && n.heads && !n.b),
               rope = p.rope == ROPE_NONE || (p.rope_dims == 32 * C && p.rope_first == 0);
    return C % 2 == 0 && C / 2 <= TURNS && norm && rope && p.clamp <= 0.0f && !p.norm_last && !p.v_is_k &&
           p.q_scale.beta == 0.0f;
}
