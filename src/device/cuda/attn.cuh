/* What the kernels of attention share: addresses of keys, the queries of a lane, the running softmax. */
#pragma once

#include "device/cuda/common.cuh"

static __device__ __forceinline__ const uint8_t *kv_k(const struct kv_view &kv, uint32_t page, uint32_t head)
{
    return kv.base + page * kv.page_bytes + (uint64_t)head * kv.tokens * kv.k_row;
}

static __device__ __forceinline__ const uint8_t *kv_v(const struct kv_view &kv, uint32_t page, uint32_t head)
{
    return kv.base + page * kv.page_bytes +
           (uint64_t)kv.tokens * (kv.heads * (uint64_t)kv.k_row + head * (uint64_t)kv.v_row);
}

/* Of KV, whose lines of 128 bytes come to L2 as a whole: other warps ask for the rest. */
static __device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from));
}

static __device__ __forceinline__ void copy4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from));
}

static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The thread's own, all of them. */
static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The state of the queries of a warp: rows g and (R = 2) g + 8 of the tile in each lane. D = 32 * C. */
template <int C, int R> struct flash {
    uint32_t q[C][4 * R]; /* A operands of two mma for 32 dimensions: [half][2 pairs][row] */
    float o[4 * C][2 * R];
    float max[R], sum[R];
};

/* Which query a row of the tile is: f = (row of the sequence) * group + head of the group. */
struct query {
    uint32_t row, head;
    int pos; /* -1: there is none */
};

static __device__ __forceinline__ struct query query_of(const struct attn_args &p, uint32_t seq, uint32_t kvh,
                                                        uint32_t f)
{
    const uint32_t group = p.heads / p.kv.heads;
    struct query r;
    r.row = p.meta.seq_first[seq] + f / group;
    r.head = kvh * group + f % group;
    r.pos = -1;
    if (f / group < (uint32_t)p.meta.seq_rows[seq])
        r.pos = p.meta.pos[r.row];
    else
        r.row = p.meta.seq_first[seq];
    return r;
}

static __device__ __forceinline__ const float *query_at(const struct attn_args &p, struct query q,
                                                        uint32_t dim)
{
    return p.q + q.row * p.ldq + (uint64_t)q.head * dim;
}

/* Takes the queries in, from shared memory where the block has them there (own), and nothing of the keys yet. The pairs of
 * a lane's values lie as the order of K's dimensions wants them: of each 32 dimensions 8t..8t+7 (K is then read 16 bytes at
 * a time), or for wgmma IN_ORDER, 8i + 2t of each eight. */
template <int C, int R, bool IN_ORDER>
static __device__ __forceinline__ void flash_start(struct flash<C, R> &s, const struct attn_args &p,
                                                   const struct query query[2], const float *own = nullptr)
{
    const uint32_t t = threadIdx.x % 4;
    const bool aligned = own || is_aligned(p.q, p.ldq);
    /* scores are kept in units of ln 2 (softcap: as they are) */
    const float f = p.softcap > 0.0f ? p.scale : p.scale * 1.4426950408889634f;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float *q =
            own ? own + (threadIdx.x % 32 / 4 + 8 * r) * (32 * C) : query_at(p, query[r], 32 * C);
        float v[C][8];
#pragma unroll
        for (int c = 0; c < C; c++)
            if constexpr (IN_ORDER) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[c][i] = query[r].pos >= 0 ? q[32 * c + 8 * (i / 2) + 2 * t + i % 2] : 0.0f;
            } else {
                load8(q + 32 * c + 8 * t, query[r].pos >= 0 ? 8 : 0, aligned, v[c]);
            }
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) /* pairs 0 and 1 are the first mma's, 2 and 3 the second's */
                s.q[c][2 * R * (i / 2) + R * (i % 2) + r] = half_bits2(v[c][2 * i] * f, v[c][2 * i + 1] * f);
        s.max[r] = -INFINITY;
        s.sum[r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4 * C; i++)
#pragma unroll
        for (int j = 0; j < 2 * R; j++)
            s.o[i][j] = 0.0f;
}

/* A key is seen by a query at pos. */
static __device__ __forceinline__ bool is_seen(const struct attn_args &p, uint32_t key, int pos, uint32_t len)
{
    /* the keys that it sees are [from, to) */
    const int to = pos < 0 ? 0 : min(pos + 1 + (int)p.ahead, (int)len),
              from = p.window ? pos + 1 - (int)p.window : 0;
    return (int)key < to && (int)key >= from;
}

/* 2^x; what is too small for a normal number is 0. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* softcap * tanh(s / softcap), in units of ln 2, in few instructions. */
static __device__ __forceinline__ float capped(const struct attn_args &p, float s)
{
    const float e = exp2_fast(__fdividef(s * 2.885390081777927f, p.softcap)); /* exp(2 s / softcap) */
    return p.softcap * 1.4426950408889634f * (1.0f - __fdividef(2.0f, e + 1.0f));
}

/* The new maximum of the rows, given this lane's; what was summed so far shrinks by shrink[]. */
template <int C, int R>
static __device__ __forceinline__ void flash_raise(struct flash<C, R> &s, const float *top, float *shrink)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        float m = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        m = fmaxf(s.max[r], m);
        shrink[r] = m == -INFINITY ? 1.0f : exp2_fast(s.max[r] - m);
        s.max[r] = m;
        s.sum[r] *= shrink[r];
    }
}

static __device__ __forceinline__ float flash_exp(float score, float max)
{
    return score == -INFINITY ? 0.0f : exp2_fast(score - max);
}

/* What a sum with this maximum and this weight is to be multiplied with, the sink counted in. */
static __device__ __forceinline__ float flash_scale(const float *sinks, uint32_t head, float max, float sum)
{
    if (!sinks)
        return sum > 0.0f ? 1.0f / sum : 0.0f;
    const float sink = sinks[head] * 1.4426950408889634f, top = fmaxf(sink, max), e = flash_exp(max, top);
    return e / (sum * e + exp2_fast(sink - top));
}

/* The sums of the four lanes that share a row. */
template <int C, int R> static __device__ __forceinline__ void flash_end(struct flash<C, R> &s)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        s.sum[r] += __shfl_xor_sync(~0u, s.sum[r], 1);
        s.sum[r] += __shfl_xor_sync(~0u, s.sum[r], 2);
    }
}

/* The keys of a sequence that some query of a decode step sees, in units of 16, dealt out evenly: `each` units a split, to
 * as many of the launch's splits as there is work for. */
struct decode_span {
    uint32_t first, each, splits;
};

static __device__ __forceinline__ struct decode_span decode_span(uint32_t splits, uint32_t window,
                                                                 uint32_t len, uint32_t rows)
{
    const uint32_t old = len - rows, from = window && old + 1 > window ? old + 1 - window : 0;
    struct decode_span s;
    s.first = from / 16;
    const uint32_t units = (len + 15) / 16 - s.first;
    s.each = (units + splits - 1) / splits;
    s.splits = (units + s.each - 1) / s.each;
    return s;
}

/* ---- prefill: a block takes PREFILL_QUERIES queries of a sequence, 16 a warp, PREFILL_KEYS keys at a time ---- */

enum { PREFILL_QUERIES = 64, PREFILL_WARPS = 4, PREFILL_KEYS = 64 };

struct prefill_tile {
    struct query query[2]; /* the lane's: rows g and g + 8 of its warp's */
    const int32_t *table;
    uint32_t kvh, len;
    uint32_t from, to;                   /* the keys that this block looks at */
    int warp_first, warp_last, last_pos; /* positions of the warp's queries, and the block's last */
    bool whole;                          /* all of the warp's queries are there */

    /* No query of the warp sees a key from `key` on. */
    __device__ __forceinline__ bool past(const struct attn_args &p, uint32_t key) const
    {
        return (int)key > (whole ? warp_last : last_pos) + (int)p.ahead;
    }
    /* Every query of the warp sees the keys [key, end). */
    __device__ __forceinline__ bool sees_all(const struct attn_args &p, uint32_t key, uint32_t end) const
    {
        return whole && end <= len && (int)end <= warp_first + 1 + (int)p.ahead &&
               (!p.window || (int)key > warp_last - (int)p.window);
    }
};

/* Where a warp's 16 of 64 keys lie, which is in one page; past the end it takes the last ones again. Looked
 * up a turn before they are fetched, so that no warp waits for the table. */
struct prefill_keys {
    uint32_t page, slot;

    __device__ __forceinline__ prefill_keys(const struct attn_args &p, const struct prefill_tile &t,
                                            uint32_t key)
    {
        const uint32_t at = min(key + 16 * (threadIdx.x / 32), (t.len - 1) / 16 * 16);
        page = t.table[at >> p.kv.token_bits];
        slot = at & (p.kv.tokens - 1);
    }
};

/* grid: (tiles, KV heads, p.splits): the last shares out the keys. */
static __device__ __forceinline__ struct prefill_tile prefill_open(const struct attn_args &p)
{
    const uint32_t tile = p.tiles - 1 - blockIdx.x; /* those with the most keys first */
    const uint32_t seq = p.meta.tiles[2 * tile], f0 = p.meta.tiles[2 * tile + 1], warp = threadIdx.x / 32,
                   g = threadIdx.x % 32 / 4, queries = p.heads / p.kv.heads * p.meta.seq_rows[seq];
    struct prefill_tile t;
    t.kvh = blockIdx.y;
    t.len = p.meta.seq_len[seq];
    t.table = p.kv.table + (uint64_t)seq * p.meta.width;
    t.query[0] = query_of(p, seq, t.kvh, f0 + 16 * warp + g);
    t.query[1] = query_of(p, seq, t.kvh, f0 + 16 * warp + g + 8);
    const int first = query_of(p, seq, t.kvh, f0).pos;
    t.last_pos = query_of(p, seq, t.kvh, min(f0 + PREFILL_QUERIES, queries) - 1).pos;
    t.warp_first = __shfl_sync(~0u, t.query[0].pos, 0);
    t.warp_last = __shfl_sync(~0u, t.query[1].pos, 28);
    t.whole = __all_sync(~0u, t.query[0].pos >= 0 && t.query[1].pos >= 0);
    const uint32_t from = p.window && first + 1 > (int)p.window ? (first + 1 - p.window) / 16 * 16 : 0,
                   to = min((uint32_t)t.last_pos + 1 + p.ahead, t.len),
                   each = ((to - from + PREFILL_KEYS - 1) / PREFILL_KEYS + p.splits - 1) / p.splits *
                          PREFILL_KEYS;
    t.from = from + blockIdx.z * each;
    t.to = min(t.from + each, to);
    return t;
}

/* Scores become weights, as A operands of 16 keys each; key(i) says which key the first of c[i] is, the second is the next
 * one. What was summed so far shrinks. */
template <int C, int N, class KEY>
static __device__ __forceinline__ void prefill_weigh(struct flash<C, 2> &s, const struct attn_args &p,
                                                     const struct prefill_tile &t, float c[N][4],
                                                     uint32_t a[N / 2][4], bool all_seen, KEY key)
{
    float top[2] = {-INFINITY, -INFINITY}, shrink[2];
    /* what is rare stands apart: no branch for each score */
    if (p.softcap > 0.0f)
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            c[i / 4][i % 4] = capped(p, c[i / 4][i % 4]);
    if (!all_seen)
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            c[i / 4][i % 4] =
                is_seen(p, key(i / 4) + (i & 1), t.query[i % 4 / 2].pos, t.len) ? c[i / 4][i % 4] : -INFINITY;
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        top[i % 4 / 2] = fmaxf(top[i % 4 / 2], c[i / 4][i % 4]);
    flash_raise<C, 2>(s, top, shrink);
    /* with no key seen yet the maximum is -inf: 0 in its place keeps the exponent from being NaN */
    const float m0 = s.max[0] == -INFINITY ? 0.0f : s.max[0], m1 = s.max[1] == -INFINITY ? 0.0f : s.max[1];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float e0 = exp2_fast(c[i][0] - m0), e1 = exp2_fast(c[i][1] - m0), e2 = exp2_fast(c[i][2] - m1),
                    e3 = exp2_fast(c[i][3] - m1);
        s.sum[0] += e0 + e1;
        s.sum[1] += e2 + e3;
        a[i / 2][2 * (i % 2)] = half_bits2(e0, e1);
        a[i / 2][2 * (i % 2) + 1] = half_bits2(e2, e3);
    }
    if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < 4 * C; i++) {
            s.o[i][0] *= shrink[0];
            s.o[i][1] *= shrink[0];
            s.o[i][2] *= shrink[1];
            s.o[i][3] *= shrink[1];
        }
}

/* The queries' results; a part of them where others have the other keys: attn_join adds the parts up. */
template <int C>
static __device__ __forceinline__ void prefill_close(struct flash<C, 2> &s, const struct attn_args &p,
                                                     const struct prefill_tile &t)
{
    flash_end<C, 2>(s);
    const uint32_t lane = threadIdx.x % 32, place = 16 * (threadIdx.x / 32) + lane / 4;
    const uint64_t part =
        (((uint64_t)blockIdx.x * gridDim.y + blockIdx.y) * p.splits + blockIdx.z) * PREFILL_QUERIES;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const struct query &q = t.query[r];
        if (q.pos < 0)
            continue;
        float *out = p.out + q.row * p.ldo + (uint64_t)q.head * (32 * C), scale = 1.0f;
        if (p.splits == 1) {
            scale = flash_scale(p.sinks, q.head, s.max[r], s.sum[r]);
        } else {
            out = p.part + (part + place + 8 * r) * (32 * C);
            if (lane % 4 == 0)
                *(float2 *)(p.part_ml + 2 * (part + place + 8 * r)) = make_float2(s.max[r], s.sum[r]);
        }
#pragma unroll
        for (int i = 0; i < 4 * C; i++)
            *(float2 *)(out + 8 * i + 2 * (lane % 4)) =
                make_float2(s.o[i][2 * r] * scale, s.o[i][2 * r + 1] * scale);
    }
}
