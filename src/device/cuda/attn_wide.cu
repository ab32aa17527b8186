/* Attention of many queries by wgmma, fp16 KV, heads of 64, 96 or 128 values: a block is a warpgroup with 64 queries, whose
 * weights are A operands in registers; so is Q where heads have more than 64 values, else it is in shared memory (an
 * assembler, 13.0, gave the weights of such heads the registers of Q). 64 keys at a time lie in shared memory as rows of 128
 * bytes, whose 16 bytes c of row r are in place c ^ r % 8 (what the hardware calls a swizzle of 128 bytes),
 * so that neither copies nor products have bank conflicts:
 *
 *   K  [64 dimensions, those behind them][key] 64 dimensions (of 96, the last rows are half empty)
 *   V  [dimension] 64 keys, as pages have V transposed
 *
 * Three blocks an SM: while one weighs scores, the others multiply. Only in builds for sm_90a. */
#include "device/cuda/attn.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/wgmma.cuh"

enum { ROW = 128, K_HALF = PREFILL_KEYS * ROW };

/* Heads of 32 * C values: a stage, and behind the two of them Q. */
template <int C> struct wide_shape {
    enum { V_AT = (C + 1) / 2 * K_HALF, STAGE = V_AT + 32 * C * ROW, Q_AT = 2 * STAGE };
};

static __device__ __forceinline__ uint8_t *wide_place(uint8_t *rows, uint32_t row, uint32_t chunk)
{
    return rows + row * ROW + ((chunk ^ row) & 7) * 16;
}

/* 64 keys of one head, 16 a warp. */
template <int C>
static __device__ __forceinline__ void wide_fetch(const struct attn_args &p, uint32_t kvh,
                                                  struct prefill_keys keys, uint8_t *room)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint8_t *k = kv_k(p.kv, keys.page, kvh) + keys.slot * (64 * C);
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) {
        /* the first 64 values of four keys, then those behind them: 64 of four keys, or 32 of eight */
        const uint32_t half = i / 4, by = C == 3 && half ? 4 : 8, chunk = lane % by,
                       key = i % 4 * (32 / by) + lane / by;
        copy16(wide_place(room + half * K_HALF, 16 * warp + key, chunk),
               k + key * (64 * C) + half * 128 + 16 * chunk);
    }
    /* of eight lanes, two have the 16 keys of one dimension; dimensions that go together are two apart */
    const uint32_t d = lane / 8 % 2 + lane % 8 / 2 * 2 + lane / 16 * 8, half = lane % 2;
    const uint8_t *v = kv_v(p.kv, keys.page, kvh) + keys.slot * 2 + (d << p.kv.token_bits) * 2 + half * 16;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) /* 16 dimensions at a time */
        copy16(wide_place(room + wide_shape<C>::V_AT, 16 * i + d, 2 * warp + half),
               v + ((16 * i) << p.kv.token_bits) * 2);
    copies_commit();
}

/* The warp's queries as an operand in shared memory. */
template <int C>
static __device__ __forceinline__ void wide_queries(const struct flash<C, 2> &s, uint8_t *room)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) /* rows g and g + 8 in turns, then the next eight values */
            *(uint32_t *)(wide_place(room, 16 * warp + g + i % 2 * 8, 4 * c + i / 2) + 4 * t) = s.q[c][i];
}

/* The 64 keys that lie in `room`, the first being `key`; queries: where those lie, if they do. */
template <int C>
static __device__ __forceinline__ void wide_keys(struct flash<C, 2> &s, const struct attn_args &p,
                                                 const struct prefill_tile &tile, uint32_t key,
                                                 const uint8_t *room, const uint8_t *queries)
{
    const uint32_t t = threadIdx.x % 4;
    float c[8][4];
    uint32_t a[4][4];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * C; i++)
        if constexpr (C > 2)
            wgmma_64(c, s.q[i / 2] + 4 * (i % 2), wgmma_rows(room + i / 4 * K_HALF + i % 4 * 32), i > 0);
        else
            wgmma_both<8>(c, wgmma_rows(queries + i * 32), wgmma_rows(room + i * 32), i > 0);
    wgmma_commit();
    wgmma_done<8>(c);
    prefill_weigh<C, 8>(s, p, tile, c, a, tile.sees_all(p, key, key + PREFILL_KEYS),
                        [&](int i) { return key + 8 * i + 2 * t; });
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        if constexpr (C == 4)
            wgmma_128(s.o, a[i], wgmma_rows(room + wide_shape<C>::V_AT + i * 32));
        else if constexpr (C == 3)
            wgmma_96(s.o, a[i], wgmma_rows(room + wide_shape<C>::V_AT + i * 32));
        else
            wgmma_64(s.o, a[i], wgmma_rows(room + wide_shape<C>::V_AT + i * 32), true);
    wgmma_commit();
    wgmma_done<4 * C>(s.o);
#pragma unroll
    for (int i = 0; i < 4; i++) /* they were needed until now */
        asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]));
}

template <int C> static __device__ __forceinline__ void wide_attend(const struct attn_args &p)
{
    typedef struct wide_shape<C> shape;
    extern __shared__ __align__(1024) uint8_t keys[]; /* two stages, queries */
    dep_launch();
    dep_wait();
    const struct prefill_tile tile = prefill_open(p);
    struct flash<C, 2> s;
    flash_start<C, 2, true>(s, p, tile.query);
    if constexpr (C == 2)
        wide_queries<C>(s, keys + shape::Q_AT);
    if (tile.from < tile.to)
        wide_fetch<C>(p, tile.kvh, prefill_keys(p, tile, tile.from), keys);
    struct prefill_keys next(p, tile, tile.from + PREFILL_KEYS);
    uint32_t stage = 0;
    for (uint32_t key = tile.from; key < tile.to; key += PREFILL_KEYS, stage ^= 1) {
        asm volatile("cp.async.wait_group 0;\nfence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads(); /* this stage is complete, and no warp reads the other one */
        if (key + PREFILL_KEYS < tile.to) {
            wide_fetch<C>(p, tile.kvh, next, keys + (stage ^ 1) * shape::STAGE);
            next = prefill_keys(p, tile, key + 2 * PREFILL_KEYS);
        }
        wide_keys<C>(s, p, tile, key, keys + stage * shape::STAGE, keys + shape::Q_AT);
    }
    prefill_close<C>(s, p, tile);
}

extern "C" __global__ void __launch_bounds__(32 * PREFILL_WARPS, 3)
    attn_wide_128(const __grid_constant__ struct attn_args p)
{
    wide_attend<4>(p);
}

extern "C" __global__ void __launch_bounds__(32 * PREFILL_WARPS, 3)
    attn_wide_96(const __grid_constant__ struct attn_args p)
{
    wide_attend<3>(p);
}

extern "C" __global__ void __launch_bounds__(32 * PREFILL_WARPS, 4)
    attn_wide_64(const __grid_constant__ struct attn_args p)
{
    wide_attend<2>(p);
}

#endif
