/* Attention of many queries, fp16 KV, by mma: for cards without wgmma, and for head sizes that attn_wide.cu has not. */
#include "device/cuda/attn.cuh"

/* K as rows, padded so that two rows that are read together lie in other banks. */
template <int C> struct prefill_room {
    enum { ROW = 64 * C + (C % 2 ? 0 : 64), K = PREFILL_KEYS * ROW, BYTES = K + PREFILL_KEYS * 64 * C };
};

/* 64 keys of one head into shared memory: K as rows, V as two units of [dimension][32 keys]. */
template <int C>
static __device__ __forceinline__ void prefill_fetch(const struct attn_args &p, uint32_t kvh,
                                                     struct prefill_keys keys, uint8_t *room)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint8_t *k = kv_k(p.kv, keys.page, kvh) + keys.slot * (64 * C) + 16 * lane;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) {
        const uint32_t chunk = 32 * i + lane, row = chunk / (4 * C), part = chunk % (4 * C);
        copy16(room + (16 * warp + row) * prefill_room<C>::ROW + 16 * part, k + 512 * i);
    }
    const uint8_t *v =
        kv_v(p.kv, keys.page, kvh) + keys.slot * 2 + ((lane / 2) << p.kv.token_bits) * 2 + lane % 2 * 16;
    uint8_t *to =
        room + prefill_room<C>::K + warp / 2 * (32 * C * 64) + lane / 2 * 64 + warp % 2 * 32 + lane % 2 * 16;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++)
        copy16(to + 1024 * i, v + ((16 * i) << p.kv.token_bits) * 2);
    copies_commit();
}

/* U units of 32 keys from shared memory, the first being `key`. Score tile i of a unit has in column n the key
 * 8*(n/2) + 2i + n%2, so that lane t has the scores of keys 8t..8t+7, and 16 bytes of a row of V go with them. */
template <int C, int U>
static __device__ __forceinline__ void prefill_take(struct flash<C, 2> &s, const struct attn_args &p,
                                                    const struct prefill_tile &tile, uint32_t key,
                                                    const uint8_t *k, const uint8_t *v)
{
    const uint32_t t = threadIdx.x % 4;
    float c[4 * U][4] = {};
    uint32_t a[2 * U][4];
#pragma unroll
    for (int j = 0; j < C; j++) {
        uint4 b[4 * U];
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            b[i] = *(const uint4 *)(k + (32 * (i / 4) + 2 * (i % 4)) * prefill_room<C>::ROW + 64 * j);
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            mma_f16(c[i], s.q[j][0], s.q[j][1], s.q[j][2], s.q[j][3], b[i].x, b[i].y);
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            mma_f16(c[i], s.q[j][4], s.q[j][5], s.q[j][6], s.q[j][7], b[i].z, b[i].w);
    }
    prefill_weigh<C, 4 * U>(s, p, tile, c, a, tile.sees_all(p, key, key + 32 * U),
                            [&](int i) { return key + 32 * (i / 4) + 8 * t + 2 * (i % 4); });
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int i = 0; i < 4 * C; i += 4) {
            uint4 b[4];
#pragma unroll
            for (int d = 0; d < 4; d++)
                b[d] = *(const uint4 *)(v + u * (32 * C * 64) + 8 * (i + d) * 64);
#pragma unroll
            for (int d = 0; d < 4; d++)
                mma_f16(s.o[i + d], a[2 * u][0], a[2 * u][1], a[2 * u][2], a[2 * u][3], b[d].x, b[d].y);
#pragma unroll
            for (int d = 0; d < 4; d++)
                mma_f16(s.o[i + d], a[2 * u + 1][0], a[2 * u + 1][1], a[2 * u + 1][2], a[2 * u + 1][3],
                        b[d].z, b[d].w);
        }
}

template <int C> static __device__ __forceinline__ void prefill_body(const struct attn_args &p)
{
    extern __shared__ __align__(128) uint8_t keys[];
    constexpr int U = C <= 4 ? 2 : 1;
    enum { ROW = prefill_room<C>::ROW, BYTES = prefill_room<C>::BYTES };
    dep_launch();
    dep_wait();
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const struct prefill_tile tile = prefill_open(p);
    struct flash<C, 2> s;
    flash_start<C, 2, false>(s, p, tile.query);
    if (tile.from < tile.to)
        prefill_fetch<C>(p, tile.kvh, prefill_keys(p, tile, tile.from), keys);
    struct prefill_keys next(p, tile, tile.from + PREFILL_KEYS);
    uint32_t stage = 0;
    for (uint32_t key = tile.from; key < tile.to; key += PREFILL_KEYS, stage ^= 1) {
        const uint8_t *here = keys + stage * BYTES;
        __syncthreads(); /* the other stage is read no more */
        if (key + PREFILL_KEYS < tile.to) {
            prefill_fetch<C>(p, tile.kvh, next, keys + (stage ^ 1) * BYTES);
            next = prefill_keys(p, tile, key + 2 * PREFILL_KEYS);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t u = 0; u < PREFILL_KEYS / 32; u += U)
            if (!tile.past(p, key + 32 * u))
                prefill_take<C, U>(s, p, tile, key + 32 * u,
                                   here + (32 * u + 8 * (g / 2) + g % 2) * ROW + 16 * t,
                                   here + prefill_room<C>::K + u * (32 * C * 64) + g * 64 + 16 * t);
    }
    prefill_close<C>(s, p, tile);
}

#define PREFILL_KERNEL(dim)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * PREFILL_WARPS)                                         \
        attn_prefill_##dim(const __grid_constant__ struct attn_args p)                                       \
    {                                                                                                        \
        prefill_body<dim / 32>(p);                                                                           \
    }

PREFILL_KERNEL(64)
PREFILL_KERNEL(96)
PREFILL_KERNEL(128)
PREFILL_KERNEL(256)

enum { JOIN_DIMS = 16 };

/* Joins the parts of a tile: grid (tiles, KV heads, dimensions by JOIN_DIMS), four threads a query. */
extern "C" __global__ void __launch_bounds__(4 * PREFILL_QUERIES)
    attn_join(const __grid_constant__ struct attn_args p)
{
    dep_launch();
    const uint32_t tile = p.tiles - 1 - blockIdx.x, place = threadIdx.x / 4, vd = p.kv.v_dim,
                   d = JOIN_DIMS * blockIdx.z + threadIdx.x % 4 * 4;
    const struct query q =
        query_of(p, p.meta.tiles[2 * tile], blockIdx.y, p.meta.tiles[2 * tile + 1] + place);
    const uint64_t first =
        ((uint64_t)blockIdx.x * gridDim.y + blockIdx.y) * p.splits * PREFILL_QUERIES + place;
    const float2 *ml = (const float2 *)p.part_ml + first;
    const float *part = p.part + first * vd + d;
    dep_wait_with(ml, part);
    if (q.pos < 0)
        return;
    float max = -INFINITY, sum = 0.0f;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (uint32_t i = 0; i < p.splits; i++)
        max = fmaxf(max, ml[i * PREFILL_QUERIES].x);
#pragma unroll 8
    for (uint32_t i = 0; i < p.splits; i++) {
        const float2 one = ml[i * PREFILL_QUERIES];
        const float4 o = *(const float4 *)(part + (uint64_t)i * PREFILL_QUERIES * vd);
        const float w = flash_exp(one.x, max);
        sum += w * one.y;
        v.x += w * o.x, v.y += w * o.y, v.z += w * o.z, v.w += w * o.w;
    }
    const float scale = flash_scale(p.sinks, q.head, max, sum);
    float *out = p.out + q.row * p.ldo + (uint64_t)q.head * vd + d;
    *(float2 *)out = make_float2(v.x * scale, v.y * scale);
    *(float2 *)(out + 2) = make_float2(v.z * scale, v.w * scale);
}
