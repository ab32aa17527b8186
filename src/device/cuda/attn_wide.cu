/* Attention of many queries by wgmma, fp16 KV, heads of 128 values: a block is a warpgroup with 64 queries, whose
 * Q and weights are A operands in registers; 64 keys at a time lie in shared memory as core matrices of 8 x 16 bytes:
 *
 *   K  [16 bytes of a row][key / 8][key % 8]
 *   V  [8 keys][dimension / 8][dimension % 8], as pages have V transposed
 *
 * Three blocks an SM: while one weighs scores, the others multiply. Only in builds for sm_90a. */
#include "device/cuda/attn.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/wgmma.cuh"

enum {
    C = 4, /* heads of 32 * C values */
    CORE = 128,
    KEY_CORES = PREFILL_KEYS / 8,
    DIM_CORES = 4 * C,
    K_BYTES = DIM_CORES * KEY_CORES * CORE,
    STAGE = 2 * K_BYTES
};

/* 64 keys of one head, 16 a warp. */
static __device__ __forceinline__ void wide_fetch(const struct attn_args &p, uint32_t kvh,
                                                  struct prefill_keys keys, uint8_t *room)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, in = lane % 8 * 16;
    const uint8_t *k = kv_k(p.kv, keys.page, kvh) + (keys.slot + lane % 8) * (64 * C) + lane / 8 * 16;
    uint8_t *to = room + (lane / 8 * KEY_CORES + 2 * warp) * CORE + in;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) /* eight keys, four times 16 bytes of each */
        copy16(to + (i / 2 * 4 * KEY_CORES + i % 2) * CORE, k + i % 2 * (8 * 64 * C) + i / 2 * 64);
    const uint8_t *v = kv_v(p.kv, keys.page, kvh) + keys.slot * 2 +
                       ((lane / 16 * 8 + lane % 8) << p.kv.token_bits) * 2 + lane / 8 % 2 * 16;
    to = room + K_BYTES + ((2 * warp + lane / 8 % 2) * DIM_CORES + lane / 16) * CORE + in;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) /* 16 keys of 16 dimensions */
        copy16(to + 2 * i * CORE, v + ((16 * i) << p.kv.token_bits) * 2);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The 64 keys that lie in `room`, the first being `key`. */
static __device__ __forceinline__ void wide_keys(struct flash<C, 2> &s, const struct attn_args &p,
                                                 const struct prefill_tile &tile, uint32_t key,
                                                 const uint8_t *room)
{
    const uint32_t t = threadIdx.x % 4;
    float c[8][4];
    uint32_t a[4][4];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * C; i++)
        wgmma_64(c, s.q[i / 2] + 4 * (i % 2),
                 wgmma_operand(room + 2 * i * KEY_CORES * CORE, KEY_CORES * CORE, CORE), i > 0);
    wgmma_commit();
    wgmma_done<8>(c);
    prefill_weigh<C, 8>(s, p, tile, c, a, tile.sees_all(p, key, key + PREFILL_KEYS),
                        [&](int i) { return key + 8 * i + 2 * t; });
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_128(s.o, a[i],
                  wgmma_operand(room + K_BYTES + 2 * i * DIM_CORES * CORE, DIM_CORES * CORE, CORE));
    wgmma_commit();
    wgmma_done<4 * C>(s.o);
#pragma unroll
    for (int i = 0; i < 4; i++) /* they were needed until now */
        asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]));
}

/* Heads of 64 values would fit as well, but an assembler (13.0) gives their weights the registers of Q. */
extern "C" __global__ void __launch_bounds__(32 * PREFILL_WARPS, 3)
    attn_wide(const __grid_constant__ struct attn_args p)
{
    extern __shared__ __align__(128) uint8_t keys[];
    dep_launch();
    dep_wait();
    const struct prefill_tile tile = prefill_open(p);
    struct flash<C, 2> s;
    flash_start<C, 2, true>(s, p, tile.query);
    if (tile.from < tile.to)
        wide_fetch(p, tile.kvh, prefill_keys(p, tile, tile.from), keys);
    struct prefill_keys next(p, tile, tile.from + PREFILL_KEYS);
    uint32_t stage = 0;
    for (uint32_t key = tile.from; key < tile.to; key += PREFILL_KEYS, stage ^= 1) {
        asm volatile("cp.async.wait_group 0;\nfence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads(); /* this stage is there for all, and nobody reads the other one */
        if (key + PREFILL_KEYS < tile.to) {
            wide_fetch(p, tile.kvh, next, keys + (stage ^ 1) * STAGE);
            next = prefill_keys(p, tile, key + 2 * PREFILL_KEYS);
        }
        wide_keys(s, p, tile, key, keys + stage * STAGE);
    }
    prefill_close<C>(s, p, tile);
}

#endif
