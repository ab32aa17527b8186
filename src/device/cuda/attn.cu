/* Paged attention. Three ways:
 *   attn_any      every head size and KV type, in float: a block per (row, head). The oracle's arithmetic.
 *   attn_decode   fp16 KV, few queries a sequence: keys split over blocks and warps, 16 queries (rows x heads
 *                 of a group) against 16 keys at a time on the tensor cores; attn_combine joins the parts where
 *                 there are several. attn_few and attn_far: for up to 8 queries, with one unit of keys in flight
 *                 a warp (and the other kernels' share of L1) or several.
 *   attn_prefill  fp16 KV, many queries: 64 of them a block, keys through shared memory.
 *
 * Order of keys in a unit of 16: score tile i (0, 1) has in column n the key 4*(n/2) + 2i + n%2, so that the
 * scores of lane t are keys 4t..4t+3, and its V operand is 8 bytes of a transposed row of V. */
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

static __device__ __forceinline__ float kv_value(uint32_t type, const uint8_t *row, uint32_t i)
{
    switch (type) {
    case KV_F32:
        return ((const float *)row)[i];
    case KV_F16:
        return decode_half(((const uint16_t *)row)[i]);
    case KV_BF16:
        return bf16_to_f32(((const uint16_t *)row)[i]);
    case KV_Q8_0:
        return decode_half(*(const uint16_t *)(row + 34 * (i / 32))) *
               (float)(int8_t)row[34 * (i / 32) + 2 + i % 32];
    default:
        return f8_e4m3_to_f32(row[i]);
    }
}

/* The keys that row sees: [*from, *to). */
static __device__ __forceinline__ void key_range(const struct attn_args &p, uint32_t row, uint32_t *from,
                                                 uint32_t *to)
{
    const uint32_t pos = p.meta.pos[row], len = p.meta.seq_len[p.meta.row_seq[row]];
    *to = p.causal ? min(pos + 1, len) : len;
    *from = p.window && pos + 1 > p.window ? pos + 1 - p.window : 0;
}

static __device__ __forceinline__ float score(const struct attn_args &p, float dot)
{
    float s = dot * p.scale;
    return p.softcap > 0.0f ? p.softcap * tanhf(s / p.softcap) : s;
}

enum {
    ANY_KEYS = 128,
    ANY_DIMS = 8
}; /* keys at a time; values of the output a thread keeps: v_dim <= 1024 */

extern "C" __global__ void __launch_bounds__(128) attn_any(const __grid_constant__ struct attn_args p)
{
    extern __shared__ float q[]; /* (k_dim) */
    __shared__ float s[ANY_KEYS], room[32];
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x, head = blockIdx.y, kvh = head / (p.heads / p.kv.heads);
    const uint32_t vd = p.kv.v_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t *table = p.kv.table + (uint64_t)p.meta.row_seq[row] * p.meta.width;
    for (uint32_t i = threadIdx.x; i < p.kv.k_dim; i += 128)
        q[i] = p.q[row * p.ldq + (uint64_t)head * p.kv.k_dim + i];
    uint32_t from, to;
    key_range(p, row, &from, &to);
    float max = p.sinks ? p.sinks[head] : -INFINITY, sum = p.sinks ? 1.0f : 0.0f, acc[ANY_DIMS] = {};
    for (uint32_t base = from; base < to; base += ANY_KEYS) {
        const uint32_t n = min((uint32_t)ANY_KEYS, to - base);
        __syncthreads();
        /* a warp per key, so that its row is read in order */
        for (uint32_t j = warp; j < n; j += 4) {
            uint32_t key = base + j;
            const uint8_t *k =
                kv_k(p.kv, table[key / p.kv.tokens], kvh) + (uint64_t)(key % p.kv.tokens) * p.kv.k_row;
            float dot = 0.0f;
            for (uint32_t i = lane; i < p.kv.k_dim; i += 32)
                dot += q[i] * kv_value(p.kv.type, k, i);
            dot = warp_sum(dot);
            if (lane == 0)
                s[j] = score(p, dot);
        }
        __syncthreads();
        float mine = threadIdx.x < n ? s[threadIdx.x] : -INFINITY;
        float next = fmaxf(max, block_max(mine, room));
        float e = threadIdx.x < n ? expf(mine - next) : 0.0f;
        if (threadIdx.x < n)
            s[threadIdx.x] = e;
        float shrink = max == -INFINITY ? 0.0f : expf(max - next);
        sum = sum * shrink + block_sum(e, room);
        max = next;
#pragma unroll
        for (int i = 0; i < ANY_DIMS; i++)
            acc[i] *= shrink;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t key = base + j, page = table[key / p.kv.tokens], slot = key % p.kv.tokens;
            bool turned = p.kv.type == KV_F16 && !p.v_in_k;
            const uint8_t *v = p.v_in_k ? kv_k(p.kv, page, kvh) + (uint64_t)slot * p.kv.k_row
                                        : kv_v(p.kv, page, kvh) + (turned ? 0 : (uint64_t)slot * p.kv.v_row);
#pragma unroll
            for (int i = 0; i < ANY_DIMS; i++) {
                uint32_t d = threadIdx.x + 128 * i;
                if (d < vd)
                    acc[i] += s[j] * kv_value(p.kv.type, v, turned ? d * p.kv.tokens + slot : d);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ANY_DIMS; i++) {
        uint32_t d = threadIdx.x + 128 * i;
        if (d < vd)
            p.out[row * p.ldo + (uint64_t)head * vd + d] = sum > 0.0f ? acc[i] / sum : 0.0f;
    }
}

/* The state of the queries of a warp: rows g and (R = 2) g + 8 of the tile in each lane. D = 32 * C. */
template <int C, int R> struct flash {
    uint32_t q[C][4 * R]; /* A operands of two mma for 32 dimensions: [half][2 pairs][row] */
    float o[4 * C][2 * R];
    float max[R], sum[R];
};

/* c += A B, where rows 8..15 of A may be missing (and then so are those of c). */
template <int R>
static __device__ __forceinline__ void mma_rows(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    if constexpr (R == 2) {
        mma_f16(c, a[0], a[1], a[2], a[3], b0, b1);
    } else {
        float none[2];
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, "
            "{%0,%1,%9,%9};"
            : "+f"(c[0]), "+f"(c[1]), "=f"(none[0]), "=f"(none[1])
            : "r"(a[0]), "r"(0u), "r"(a[1]), "r"(b0), "r"(b1), "f"(0.0f));
    }
}

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

template <int C, int R>
static __device__ __forceinline__ void flash_start(struct flash<C, R> &s, const struct attn_args &p,
                                                   const struct query query[2])
{
    const uint32_t t = threadIdx.x % 4;
    const bool aligned = is_aligned(p.q, p.ldq);
    /* scores are kept in units of ln 2 (softcap: as they are) */
    const float f = p.softcap > 0.0f ? p.scale : p.scale * 1.4426950408889634f;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float *q = query_at(p, query[r], 32 * C) + 8 * t;
        float v[C][8];
#pragma unroll
        for (int c = 0; c < C; c++)
            load8(q + 32 * c, query[r].pos >= 0 ? 8 : 0, aligned, v[c]);
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) /* pairs (0,1) (2,3) are the first mma's, (4,5) (6,7) the second's */
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
    return pos >= 0 && key < len && (!p.causal || (int)key <= pos) &&
           (!p.window || (int)key > pos - (int)p.window);
}

static __device__ __forceinline__ float capped(const struct attn_args &p, float s)
{
    return p.softcap > 0.0f ? p.softcap * tanhf(s / p.softcap) * 1.4426950408889634f : s;
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
        shrink[r] = m == -INFINITY ? 1.0f : exp2f(s.max[r] - m);
        s.max[r] = m;
        s.sum[r] *= shrink[r];
    }
}

static __device__ __forceinline__ float flash_exp(float score, float max)
{
    return score == -INFINITY ? 0.0f : exp2f(score - max);
}

/* The scores of sixteen keys whose K the lane has: k[i][c] of its key of tile i. */
template <int C, int R>
static __device__ __forceinline__ void flash_scores(const struct flash<C, R> &s, float c[2][2 * R],
                                                    const uint4 k[2][C])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2 * R; j++)
            c[i][j] = 0.0f;
#pragma unroll
    for (int j = 0; j < C; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                mma_rows<R>(c[i], s.q[j] + 2 * R * h, h ? k[i][j].z : k[i][j].x, h ? k[i][j].w : k[i][j].y);
}

/* Takes them in, the first being `key`: v[d] is V of dimension 8d + g and keys 4t..4t+3. */
template <int C, int R>
static __device__ __forceinline__ void flash_values(struct flash<C, R> &s, const struct attn_args &p,
                                                    uint32_t key, const struct query query[2], uint32_t len,
                                                    float c[2][2 * R], const uint2 v[4 * C])
{
    const uint32_t t = threadIdx.x % 4;
    float top[R], shrink[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                bool seen = is_seen(p, key + 4 * t + 2 * i + j, query[r].pos, len);
                c[i][2 * r + j] = seen ? capped(p, c[i][2 * r + j]) : -INFINITY;
                top[r] = fmaxf(top[r], c[i][2 * r + j]);
            }
    }
    flash_raise<C, R>(s, top, shrink);
    uint32_t a[2 * R];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            float e0 = flash_exp(c[i][2 * r], s.max[r]), e1 = flash_exp(c[i][2 * r + 1], s.max[r]);
            s.sum[r] += e0 + e1;
            a[R * i + r] = half_bits2(e0, e1);
        }
#pragma unroll
    for (int i = 0; i < 4 * C; i++) {
#pragma unroll
        for (int j = 0; j < 2 * R; j++)
            s.o[i][j] *= shrink[j / 2];
        mma_rows<R>(s.o[i], a, v[i].x, v[i].y);
    }
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

/* ---- decode ---- */

enum { DECODE_WARPS = 4 };

static __device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from));
}

/* A warp's ring of units of 16 keys in shared memory: K as rows, padded so that rows that are read together lie in other
 * banks, then V as [dimension][16 keys]. */
template <int C> struct decode_ring {
    enum { ROW = 64 * C + (C % 2 ? 0 : 64), BYTES = 16 * ROW + 1024 * C };
    const struct attn_args &p;
    const int32_t *table;
    uint8_t *room;
    uint32_t kvh, start, end; /* this warp's first key; the keys' end */
    uint32_t page;            /* of the lane's unit, 32 units at a time */
    uint32_t in, out;         /* the stages that take the next unit, and that give it */

    /* The first key of the warp's unit i. */
    __device__ __forceinline__ uint32_t key(uint32_t i) const
    {
        return start + 16 * DECODE_WARPS * i;
    }
    __device__ __forceinline__ uint8_t *turn(uint32_t &stage)
    {
        uint8_t *at = room + stage * BYTES;
        stage = stage + 1 < p.stages ? stage + 1 : 0;
        return at;
    }
    /* Units i to i + 31: a lane's. */
    __device__ __forceinline__ void load_pages(uint32_t i)
    {
        const uint32_t at = key(i + threadIdx.x % 32) >> p.kv.token_bits;
        page = at < p.meta.width ? table[at] : 0;
    }
    /* Asks for unit i, which takes the place of unit i - stages. */
    __device__ __forceinline__ void fetch(uint32_t i)
    {
        uint8_t *to = turn(in);
        const uint32_t lane = threadIdx.x % 32, mask = p.kv.tokens - 1, at = key(i);
        if (i % 32 == 0 && i)
            load_pages(i);
        const uint32_t from = __shfl_sync(~0u, page, i % 32);
        if (at < end) {
            const uint8_t *k = kv_k(p.kv, from, kvh) + (at & mask) * (64 * C) + 16 * lane;
            const uint8_t *v =
                kv_v(p.kv, from, kvh) + (at & mask) * 2 + ((lane / 2) << p.kv.token_bits) * 2 + lane % 2 * 16;
#pragma unroll
            for (uint32_t j = 0; j < 2 * C; j++) {
                const uint32_t chunk = 32 * j + lane;
                copy16(to + chunk / (4 * C) * ROW + chunk % (4 * C) * 16, k + 512 * j);
            }
#pragma unroll
            for (uint32_t j = 0; j < 2 * C; j++)
                copy16(to + 16 * ROW + 512 * j + 16 * lane, v + ((16 * j) << p.kv.token_bits) * 2);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    /* Waits for the next unit; those after it, stages - 1 of them, may still be on their way. */
    __device__ __forceinline__ const uint8_t *enter()
    {
        if (p.stages == 3)
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        else if (p.stages == 2)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        return turn(out);
    }
    /* The lane's K, and its V, of the unit. */
    static __device__ __forceinline__ void load_k(const uint8_t *unit, uint4 k[2][C])
    {
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const uint8_t *from = unit + (4 * (g / 2) + g % 2) * ROW + 16 * t;
#pragma unroll
        for (int i = 0; i < 2 * C; i++)
            k[i / C][i % C] = *(const uint4 *)(from + i / C * (2 * ROW) + 64 * (i % C));
    }
    static __device__ __forceinline__ void load_v(const uint8_t *unit, uint2 v[4 * C])
    {
        const uint8_t *from = unit + 16 * ROW + threadIdx.x % 32 * 8;
#pragma unroll
        for (int i = 0; i < 4 * C; i++)
            v[i] = *(const uint2 *)(from + 256 * i);
    }
};

enum { SPLITS_MOST = 128 };

/* The keys of a sequence that some query of a decode step sees, in units of 16, dealt out evenly: `each` units a split, to
 * as many of the launch's splits as there is work for. */
struct decode_span {
    uint32_t first, each, splits;
};

static __device__ __forceinline__ struct decode_span decode_span(const struct attn_args &p, uint32_t len,
                                                                 uint32_t rows)
{
    const uint32_t old = len - rows, from = p.window && old + 1 > p.window ? old + 1 - p.window : 0;
    struct decode_span s;
    s.first = from / 16;
    const uint32_t units = (len + 15) / 16 - s.first;
    s.each = (units + p.splits - 1) / p.splits;
    s.splits = (units + s.each - 1) / s.each;
    return s;
}

/* What the warps of a block add up, and the result where the block has all the keys. */
template <int C, int R> struct decode_room {
    float o[DECODE_WARPS][8 * R][32 * C + 4];
    float result[8 * R][32 * C];
};

/* What a sum with this maximum and this weight is to be multiplied with, the sink counted in. */
static __device__ __forceinline__ float decode_scale(const struct attn_args &p, uint32_t head, float max,
                                                     float sum)
{
    if (!p.sinks)
        return sum > 0.0f ? 1.0f / sum : 0.0f;
    const float sink = p.sinks[head] * 1.4426950408889634f, top = fmaxf(sink, max), e = flash_exp(max, top);
    return e / (sum * e + exp2f(sink - top));
}

/* The finished queries to where they are wanted. Their heads lie side by side, so that they are whole columns of the pack
 * (the host asks for it only then). */
template <int C, int R>
static __device__ __forceinline__ void decode_store(const struct attn_args &p,
                                                    const struct decode_room<C, R> &room, uint32_t first,
                                                    uint32_t kvh, uint32_t queries)
{
    const uint32_t group = p.heads / p.kv.heads, width = group * 32 * C;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < queries * 32 * C; i += 32 * DECODE_WARPS)
        p.out[(first + i / width) * p.ldo + kvh * width + i % width] = (&room.result[0][0])[i];
    if (!p.pack.pack)
        return;
    for (uint32_t c = threadIdx.x / 32; c < queries * 32 * C / 256; c += DECODE_WARPS) {
        float x[8];
        load8(&room.result[0][0] + 256 * c + 8 * (threadIdx.x % 32), 8, true, x);
        pack_warp(p.pack, p.heads * 32 * C / 256, first + 256 * c / width,
                  (kvh * width + 256 * c % width) / 256, x);
    }
}

/* Adds up the warps: a part, or where the block has all the keys the result. */
template <int C, int R>
static __device__ __forceinline__ void decode_merge(const struct attn_args &p, struct decode_room<C, R> &room,
                                                    const float (*ml)[8 * R][2], uint32_t queries)
{
    const uint32_t group = p.heads / p.kv.heads;
    const uint64_t part =
        (((uint64_t)blockIdx.z * p.kv.heads + blockIdx.y) * p.splits + blockIdx.x) * p.part_queries;
    for (uint32_t i = threadIdx.x; i < queries * 32 * C; i += 32 * DECODE_WARPS) {
        const uint32_t f = i / (32 * C), d = i % (32 * C);
        float max = -INFINITY, sum = 0.0f, v = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            max = fmaxf(max, ml[w][f][0]);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            float e = flash_exp(ml[w][f][0], max);
            sum += e * ml[w][f][1];
            v += e * room.o[w][f][d];
        }
        if (p.splits == 1) {
            room.result[f][d] = v * decode_scale(p, blockIdx.y * group + f % group, max, sum);
            continue;
        }
        p.part[(part + f) * (32 * C) + d] = v;
        if (d == 0)
            *(float2 *)(p.part_ml + 2 * (part + f)) = make_float2(max, sum);
    }
}

/* grid: (splits, kv heads, sequences); at most 16 queries a sequence. What was in KV before this step, and the step's own
 * data, is read without waiting for the predecessor. */
template <int C, int R> static __device__ __forceinline__ void decode_body(const struct attn_args &p)
{
    extern __shared__ __align__(128) uint8_t keys[];
    struct decode_room<C, R> &room = *(struct decode_room<C, R> *)keys;
    __shared__ float ml[DECODE_WARPS][8 * R][2];
    dep_launch();
    const uint32_t kvh = blockIdx.y, seq = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   g = lane / 4, t = lane % 4;
    struct decode_ring<C> ring = {
        p, p.kv.table + (uint64_t)seq *p.meta.width, keys + warp *p.stages *decode_ring<C>::BYTES, kvh,
            16 * warp, 0, 0, 0, 0
    };
    const bool whole = p.splits == 1 && !p.window;
    if (whole) /* which keys these are is known before their number is */
        ring.load_pages(0);
    const uint32_t len = p.meta.seq_len[seq], rows = p.meta.seq_rows[seq],
                   queries = p.heads / p.kv.heads * rows;
    const uint32_t old = len - rows; /* keys of earlier steps */
    const struct decode_span span = decode_span(p, len, rows);
    const uint32_t start = 16 * (span.first + blockIdx.x * span.each), end = min(start + 16 * span.each, len);
    if (queries > 16 || blockIdx.x >= span.splits) {
        dep_wait();
        return; /* attn_prefill's, or nothing left to do */
    }
    ring.start += start;
    ring.end = end;
    if (!whole)
        ring.load_pages(0);
    struct query query[2] = {query_of(p, seq, kvh, g), query_of(p, seq, kvh, g + 8)};
    uint32_t ahead = 0;
    for (; ahead < p.stages && ring.key(ahead) + 16 <= min(old, end); ahead++)
        ring.fetch(ahead);
    dep_wait();
    for (; ahead < p.stages; ahead++)
        ring.fetch(ahead);
    struct flash<C, R> s;
    flash_start<C, R>(s, p, query);
    for (uint32_t i = 0; ring.key(i) < end; i++) {
        const uint8_t *unit = ring.enter();
        float c[2][2 * R];
        uint4 kf[2][C];
        uint2 vf[4 * C];
        ring.load_k(unit, kf);
        ring.load_v(unit, vf);
        flash_scores<C, R>(s, c, kf);
        flash_values<C, R>(s, p, ring.key(i), query, len, c, vf);
        __syncwarp();
        ring.fetch(i + p.stages);
    }
    __syncthreads(); /* the rings are free: sums take their place */
    flash_end<C, R>(s);
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int i = 0; i < 4 * C; i++)
            *(float2 *)&room.o[warp][g + 8 * r][8 * i + 2 * t] =
                make_float2(s.o[i][2 * r], s.o[i][2 * r + 1]);
        if (t == 0) {
            ml[warp][g + 8 * r][0] = s.max[r];
            ml[warp][g + 8 * r][1] = s.sum[r];
        }
    }
    __syncthreads();
    decode_merge<C, R>(p, room, ml, queries);
    if (p.splits == 1)
        decode_store<C, R>(p, room, p.meta.seq_first[seq], kvh, queries);
}

enum { PARTS_AHEAD = 32 };

/* Joins the parts of a row, 256 columns a block; one warp a head weighs its parts first. */
extern "C" __global__ void __launch_bounds__(256) attn_combine(const __grid_constant__ struct attn_args p)
{
    __shared__ float weight[8][SPLITS_MOST], v[256];
    dep_launch();
    const uint32_t row = blockIdx.y, width = p.heads * p.kv.v_dim, vd = p.kv.v_dim,
                   group = p.heads / p.kv.heads, seq = p.meta.row_seq[row], rows = p.meta.seq_rows[seq];
    const uint32_t splits = decode_span(p, p.meta.seq_len[seq], rows).splits;
    /* the first part of this row's query for head h, in queries; the next is p.part_queries further */
    const uint32_t query = (row - p.meta.seq_first[seq]) * group;
    auto place = [&](uint32_t h) {
        return ((uint64_t)seq * p.kv.heads + h / group) * p.splits * p.part_queries + query + h % group;
    };
    const uint32_t col = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t head0 = blockIdx.x * 256 / vd,
                   heads = min((blockIdx.x * 256 + 255) / vd + 1, p.heads) - head0;
    const uint64_t step = (uint64_t)p.part_queries * vd;
    const float *part = p.part + (col < width ? place(col / vd) * vd + col % vd : 0);
    const float2 *ml = (const float2 *)p.part_ml + (warp < heads ? place(head0 + warp) : 0);
    dep_wait_with(part, ml); /* all the divisions are done by then */
    if (group * rows > 16)
        return;
    float ahead[PARTS_AHEAD]; /* on their way while the weights are computed */
#pragma unroll
    for (uint32_t s = 0; s < PARTS_AHEAD; s++)
        ahead[s] = col < width && s < splits ? part[s * step] : 0.0f;
    if (warp < heads) {
        float2 mine[SPLITS_MOST / 32];
        float max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < SPLITS_MOST / 32; i++) {
            mine[i] =
                lane + 32 * i < splits ? ml[(lane + 32 * i) * p.part_queries] : make_float2(-INFINITY, 0.0f);
            max = fmaxf(max, mine[i].x);
        }
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < SPLITS_MOST / 32; i++) {
            mine[i].x = flash_exp(mine[i].x, max);
            sum += mine[i].x * mine[i].y;
        }
        const float scale = decode_scale(p, head0 + warp, max, warp_sum(sum));
#pragma unroll
        for (int i = 0; i < SPLITS_MOST / 32; i++)
            weight[warp][lane + 32 * i] = mine[i].x * scale;
    }
    __syncthreads();
    float r = 0.0f;
    if (col < width) {
        const float *w = weight[col / vd - head0];
#pragma unroll
        for (uint32_t s = 0; s < PARTS_AHEAD; s++)
            r += s < splits ? w[s] * ahead[s] : 0.0f;
#pragma unroll 8
        for (uint32_t s = PARTS_AHEAD; s < splits; s++)
            r += w[s] * part[s * step];
        p.out[row * p.ldo + col] = r;
    }
    if (!p.pack.pack)
        return;
    v[threadIdx.x] = r;
    __syncthreads();
    if (threadIdx.x < 32) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = v[8 * threadIdx.x + i];
        pack_warp(p.pack, (width + 255) / 256, row, blockIdx.x, x);
    }
}

enum { PREFILL_WARPS = 4, PREFILL_KEYS = 64 };

/* 64 keys of one head into shared memory: K rows padded by 16 bytes, V as two units of [dimension][32 keys]. */
template <int C>
static __device__ __forceinline__ void prefill_fetch(const struct attn_args &p, const int32_t *table,
                                                     uint32_t kvh, uint32_t key, uint32_t len, uint8_t *ks,
                                                     uint8_t *vs)
{
    /* a warp per 16 keys, which lie in one page; past the end the last ones again */
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   at = min(key + 16 * warp, (len - 1) / 16 * 16);
    const uint32_t page = table[at >> p.kv.token_bits], slot = at & (p.kv.tokens - 1);
    const uint8_t *k = kv_k(p.kv, page, kvh) + slot * (64 * C) + 16 * lane;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++) {
        const uint32_t chunk = 32 * i + lane, row = chunk / (4 * C), part = chunk % (4 * C);
        copy16(ks + (16 * warp + row) * (64 * C + 16) + 16 * part, k + 512 * i);
    }
    const uint8_t *v = kv_v(p.kv, page, kvh) + slot * 2 + ((lane / 2) << p.kv.token_bits) * 2 + lane % 2 * 16;
    uint8_t *to = vs + warp / 2 * (32 * C * 64) + lane / 2 * 64 + warp % 2 * 32 + lane % 2 * 16;
#pragma unroll
    for (uint32_t i = 0; i < 2 * C; i++)
        copy16(to + 1024 * i, v + ((16 * i) << p.kv.token_bits) * 2);
    asm volatile("cp.async.commit_group;");
}

/* U units of 32 keys from shared memory. Score tile i of a unit has in column n the key 8*(n/2) + 2i + n%2, so that lane
 * t has the scores of keys 8t..8t+7, and 16 bytes of a row of V go with them. */
template <int C, int U>
static __device__ __forceinline__ void prefill_keys(struct flash<C, 2> &s, const struct attn_args &p,
                                                    uint32_t key, int pa, int pb, uint32_t len, bool all_seen,
                                                    const uint8_t *k, const uint8_t *v)
{
    const uint32_t t = threadIdx.x % 4;
    float c[4 * U][4] = {};
#pragma unroll
    for (int j = 0; j < C; j++) {
        uint4 b[4 * U];
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            b[i] = *(const uint4 *)(k + (32 * (i / 4) + 2 * (i % 4)) * (64 * C + 16) + 64 * j);
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            mma_f16(c[i], s.q[j][0], s.q[j][1], s.q[j][2], s.q[j][3], b[i].x, b[i].y);
#pragma unroll
        for (int i = 0; i < 4 * U; i++)
            mma_f16(c[i], s.q[j][4], s.q[j][5], s.q[j][6], s.q[j][7], b[i].z, b[i].w);
    }
    float top[2] = {-INFINITY, -INFINITY}, shrink[2];
#pragma unroll
    for (int i = 0; i < 4 * U; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            c[i][j] = capped(p, c[i][j]);
            if (!all_seen &&
                !is_seen(p, key + 32 * (i / 4) + 8 * t + 2 * (i % 4) + (j & 1), j < 2 ? pa : pb, len))
                c[i][j] = -INFINITY;
            top[j / 2] = fmaxf(top[j / 2], c[i][j]);
        }
    flash_raise<C, 2>(s, top, shrink);
    /* with no key seen yet the maximum is -inf: 0 in its place keeps the exponent from being NaN */
    const float m0 = s.max[0] == -INFINITY ? 0.0f : s.max[0], m1 = s.max[1] == -INFINITY ? 0.0f : s.max[1];
    uint32_t a[2 * U][4];
#pragma unroll
    for (int i = 0; i < 4 * U; i++) {
        const float e0 = exp2f(c[i][0] - m0), e1 = exp2f(c[i][1] - m0), e2 = exp2f(c[i][2] - m1),
                    e3 = exp2f(c[i][3] - m1);
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

/* A query's row of the result. */
template <int C>
static __device__ __forceinline__ void prefill_store(const struct flash<C, 2> &s, const struct attn_args &p,
                                                     struct query q, int r)
{
    if (q.pos < 0)
        return;
    float sum = s.sum[r], scale = sum > 0.0f ? 1.0f / sum : 0.0f;
    if (p.sinks) {
        float sink = p.sinks[q.head] * 1.4426950408889634f, max = fmaxf(sink, s.max[r]),
              e = flash_exp(s.max[r], max);
        scale = e / (sum * e + exp2f(sink - max));
    }
    float *out = p.out + q.row * p.ldo + (uint64_t)q.head * (32 * C);
#pragma unroll
    for (int i = 0; i < 4 * C; i++)
        *(float2 *)(out + 8 * i + 2 * (threadIdx.x % 4)) =
            make_float2(s.o[i][2 * r] * scale, s.o[i][2 * r + 1] * scale);
}

template <int C> static __device__ __forceinline__ void prefill_body(const struct attn_args &p)
{
    extern __shared__ __align__(128) uint8_t keys[];
    constexpr int U = C <= 4 ? 2 : 1;
    const uint32_t k_bytes = PREFILL_KEYS * (64 * C + 16), v_bytes = PREFILL_KEYS * 64 * C;
    dep_launch();
    dep_wait();
    const uint32_t kvh = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4,
                   t = lane % 4;
    /* the tiles with the most keys first */
    const uint32_t tile = p.tiles - 1 - blockIdx.x;
    const uint32_t seq = p.meta.tiles[2 * tile], f0 = p.meta.tiles[2 * tile + 1], len = p.meta.seq_len[seq];
    const uint32_t group = p.heads / p.kv.heads, queries = group * p.meta.seq_rows[seq];
    const struct query query[2] = {query_of(p, seq, kvh, f0 + 16 * warp + g),
                                   query_of(p, seq, kvh, f0 + 16 * warp + g + 8)};
    const struct query &a = query[0], &b = query[1];
    struct flash<C, 2> s;
    flash_start<C, 2>(s, p, query);
    const uint32_t last = min(f0 + 16 * PREFILL_WARPS, queries) - 1;
    const int first_pos = query_of(p, seq, kvh, f0).pos, last_pos = query_of(p, seq, kvh, last).pos;
    const uint32_t from =
        p.window && first_pos + 1 > (int)p.window ? (first_pos + 1 - p.window) / 16 * 16 : 0;
    const uint32_t to = p.causal ? min((uint32_t)last_pos + 1, len) : len;
    /* of this warp's queries: the first and the last position */
    const int warp_first = __shfl_sync(~0u, a.pos, 0), warp_last = __shfl_sync(~0u, b.pos, 28);
    const bool whole = __all_sync(~0u, a.pos >= 0 && b.pos >= 0);
    const int32_t *table = p.kv.table + (uint64_t)seq * p.meta.width;
    prefill_fetch<C>(p, table, kvh, from, len, keys, keys + k_bytes);
    uint32_t stage = 0;
    for (uint32_t key = from; key < to; key += PREFILL_KEYS, stage ^= 1) {
        uint8_t *here = keys + stage * (k_bytes + v_bytes), *other = keys + (stage ^ 1) * (k_bytes + v_bytes);
        __syncthreads(); /* the other stage is read no more */
        if (key + PREFILL_KEYS < to) {
            prefill_fetch<C>(p, table, kvh, key + PREFILL_KEYS, len, other, other + k_bytes);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t u = 0; u < PREFILL_KEYS / 32 / U; u++) {
            const uint32_t at = key + 32 * U * u, end = at + 32 * U;
            const bool all_seen = whole && end <= len && (!p.causal || (int)end <= warp_first + 1) &&
                                  (!p.window || (int)at > warp_last - (int)p.window);
            if (p.causal && (int)at > (whole ? warp_last : last_pos))
                continue;
            const uint8_t *k = here + (32 * U * u + 8 * (g / 2) + g % 2) * (64 * C + 16) + 16 * t;
            const uint8_t *v = here + k_bytes + U * u * (32 * C * 64) + g * 64 + 16 * t;
            prefill_keys<C, U>(s, p, at, a.pos, b.pos, len, all_seen, k, v);
        }
    }
    flash_end<C, 2>(s);
    prefill_store<C>(s, p, a, 0);
    prefill_store<C>(s, p, b, 1);
}

#define ATTN_KERNEL(name, body, blocks)                                                                      \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                \
        name(const __grid_constant__ struct attn_args p)                                                     \
    {                                                                                                        \
        body(p);                                                                                             \
    }

#define ATTN_KERNELS(dim, c, few)                                                                            \
    ATTN_KERNEL(attn_decode_##dim, (decode_body<c, 2>), 1)                                                   \
    ATTN_KERNEL(attn_few_##dim, (decode_body<c, 1>), few)                                                    \
    ATTN_KERNEL(attn_far_##dim, (decode_body<c, 1>), 1)                                                      \
    ATTN_KERNEL(attn_prefill_##dim, (prefill_body<c>), 1)

ATTN_KERNELS(64, 2, 4)
ATTN_KERNELS(96, 3, 4)
ATTN_KERNELS(128, 4, 3)
ATTN_KERNELS(256, 8, 1)
