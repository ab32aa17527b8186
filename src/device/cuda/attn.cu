/* Paged attention of few queries. Two ways:
 *   attn_any      every head size and KV type, in float: a block per (row, head). The oracle's arithmetic.
 *   attn_decode   fp16 KV, few queries a sequence: keys split over blocks and warps, 16 queries (rows x heads
 *                 of a group) against 16 keys at a time on the tensor cores; attn_combine joins the parts where
 *                 there are several. attn_few and attn_far: for up to 8 queries, with one unit of keys in flight
 *                 a warp (and the other kernels' share of L1) or several.
 * Many queries of fp16 KV: attn_prefill.cu and attn_wide.cu.
 *
 * Order of keys in a unit of 16: score tile i (0, 1) has in column n the key 4*(n/2) + 2i + n%2, so that the
 * scores of lane t are keys 4t..4t+3, and its V operand is 8 bytes of a transposed row of V. */
#include "device/cuda/attn.cuh"
#include "device/cuda/qkv.cuh"

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
    *to = min(pos + 1 + p.ahead, len);
    *from = p.chunked ? pos - pos % p.window : p.window && pos + 1 > p.window ? pos + 1 - p.window : 0;
    const uint32_t own_from = p.span ? p.meta.span[2 * row] : 0, own_to = p.span ? p.meta.span[2 * row + 1] : 0;
    if (!own_to)
        return;
    if (p.span != SPAN_AHEAD)
        *from = p.span == SPAN_ONLY ? own_from : min(*from, own_from);
    *to = p.span == SPAN_ONLY ? own_to : max(*to, own_to);
}

static __device__ __forceinline__ float score(const struct attn_args &p, float dot, uint32_t head,
                                              int distance)
{
    float s = dot * p.scale;
    if (p.distance) {
        const int most = p.distance_cols / 2;
        s += p.distance[(uint64_t)head * p.distance_cols + most + max(-most, min(most, distance))];
    }
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
                s[j] = score(p, dot, head, (int)key - (int)p.meta.pos[row]);
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
    if (p.softcap > 0.0f)
#pragma unroll
        for (int i = 0; i < 4 * R; i++)
            c[i / (2 * R)][i % (2 * R)] = capped(p, c[i / (2 * R)][i % (2 * R)]);
#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                bool seen = is_seen(p, key + 4 * t + 2 * i + j, query[r].pos, len);
                c[i][2 * r + j] = seen ? c[i][2 * r + j] : -INFINITY;
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

/* ---- decode ---- */

enum { DECODE_WARPS = 4 };

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
        copies_commit();
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

/* The warps that attend wait for each other: all of a block, but where others have finished heads for them (OWN). */
template <bool OWN> static __device__ __forceinline__ void decode_sync()
{
    if constexpr (OWN)
        asm volatile("bar.sync 1, %0;" ::"n"(32 * DECODE_WARPS) : "memory");
    else
        __syncthreads();
}

/* What the warps of a block add up: their sums, already weighed. */
template <int C, int R> struct decode_room {
    float o[DECODE_WARPS][8 * R][32 * C + 4];
};

/* A warp's sums times its weight among all, into the room; where the block has all keys also over the sum of weights. */
template <int C, int R>
static __device__ __forceinline__ void decode_leave(const struct attn_args &p, struct flash<C, R> &s,
                                                    struct decode_room<C, R> &room, const float2 (*ml)[8 * R],
                                                    uint64_t part, uint32_t queries)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
                   group = p.heads / p.kv.heads;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t f = g + 8 * r;
        float max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            max = fmaxf(max, ml[w][f].x);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            sum += flash_exp(ml[w][f].x, max) * ml[w][f].y;
        float weight = flash_exp(s.max[r], max);
        if (p.splits == 1)
            weight *= flash_scale(p.sinks, blockIdx.y * group + f % group, max, sum);
        else if (warp == 0 && t == 0 && f < queries)
            *(float2 *)(p.part_ml + 2 * (part + f)) = make_float2(max, sum);
#pragma unroll
        for (int i = 0; i < 4 * C; i++)
            *(float2 *)&room.o[warp][f][8 * i + 2 * t] =
                make_float2(s.o[i][2 * r] * weight, s.o[i][2 * r + 1] * weight);
    }
}

/* Adds up the warps, eight values a thread: a part, or the finished queries to where they are wanted. Their heads lie
 * side by side, so that they are whole columns of the pack (the host asks for it only then). */
template <int C, int R>
static __device__ __forceinline__ void decode_store(const struct attn_args &p,
                                                    const struct decode_room<C, R> &room, uint64_t part,
                                                    uint32_t first, uint32_t queries)
{
    const uint32_t width = p.heads / p.kv.heads * 32 * C;
    const bool aligned = is_aligned(p.out, p.ldo);
    for (uint32_t i = 8 * threadIdx.x; i < queries * 32 * C; i += 8 * 32 * DECODE_WARPS) {
        const uint32_t f = i / (32 * C), d = i % (32 * C), row = first + i / width,
                       at = blockIdx.y * width + i % width;
        float x[8] = {};
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float4 v = *(const float4 *)&room.o[w][f][d + j];
                x[j] += v.x, x[j + 1] += v.y, x[j + 2] += v.z, x[j + 3] += v.w;
            }
        float *to = p.splits == 1 ? p.out + row * p.ldo + at : p.part + (part + f) * (32 * C) + d;
        if (aligned || p.splits > 1) {
            *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
            *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                to[j] = x[j];
        }
        if (p.splits == 1 && p.pack.pack)
            pack_warp(p.pack, p.heads * 32 * C / 256, row, at / 256, x).finish(1.0f);
    }
}

/* A row that comes straight from its products, its sequence's only one: the block finishes its heads of Q itself, in shared
 * memory, and where it has the last key K and V, which it puts into their page and, in place of what was fetched from there,
 * into the unit. */
template <int C> struct decode_own {
    float q[8][32 * C], k[32 * C], v[32 * C];

    /* The head of this warp, and where it goes; false: it has none. h: position and page of all. */
    __device__ __forceinline__ bool mine(const struct qkv_args &p, struct qkv_head &h, uint32_t kvh,
                                         bool last, float *&to)
    {
        static_assert(ATTN_ROW_WARPS >= 8 + 2, "a warp a head");
        const uint32_t group = p.heads / p.kv.heads, i = threadIdx.x / 32;
        qkv_slot(p, i < group ? kvh * group + i : p.heads + (i == group ? 0 : p.kv.heads) + kvh, h);
        to = i < group ? q[i] : i == group ? k : v;
        return i < group + (last ? 2 : 0);
    }
    __device__ __forceinline__ void put(uint8_t *unit, uint32_t key) const
    {
        for (uint32_t i = threadIdx.x % 32; i < 32 * C; i += 32) {
            ((__half *)(unit + key * decode_ring<C>::ROW))[i] = __float2half_rn(k[i]);
            ((__half *)(unit + 16 * decode_ring<C>::ROW))[16 * i + key] =
                __float2half_rn(fminf(fmaxf(v[i], -65504.0f), 65504.0f));
        }
        __syncwarp();
    }
};

/* grid: (splits, kv heads, sequences); at most 16 queries a sequence. What was in KV before this step, and the step's own
 * data, is read without waiting for the predecessor. own: of OWN, where every sequence has one row. */
template <int C, int R, bool OWN>
static __device__ __forceinline__ void decode_body(const struct attn_args &p, const struct qkv_args *own)
{
    extern __shared__ __align__(128) uint8_t keys[];
    struct decode_room<C, R> &room = *(struct decode_room<C, R> *)keys;
    __shared__ float2 ml[DECODE_WARPS][8 * R];
    __shared__ struct decode_own<OWN ? C : 1> own_room;
    struct decode_own<C> &heads = (struct decode_own<C> &)own_room; /* of OWN */
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
    const struct decode_span span = decode_span(p.splits, p.window, len, rows);
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
    const bool attends = !OWN || warp < DECODE_WARPS;
    uint32_t ahead = 0;
    for (; attends && ahead < p.stages &&
           (OWN ? ring.key(ahead) < end : ring.key(ahead) + 16 <= min(old, end));
         ahead++)
        ring.fetch(ahead);
    struct flash<C, R> s;
    args_ahead(p);
    if constexpr (OWN) {
        args_ahead(*own);
        const uint32_t row = p.meta.seq_first[seq];
        struct qkv_head head = qkv_start(*own, row, 0);
        float *to;
        const bool mine = heads.mine(*own, head, kvh, end == len, to), plain = qkv_is_plain<C>(*own, head);
        struct qkv_plain<C> lane_of;
        if (mine && plain)
            lane_of.ahead(*own, head);
        else if (mine)
            qkv_ahead(*own, head);
        const struct turn turn(own->freqs, own->rope != ROPE_NONE ? own->rope_dims : 0, head.pos, head.axes);
        dep_wait();
        if (mine && plain)
            lane_of.compute(*own, head, turn, row, to);
        for (; attends && ahead < p.stages; ahead++)
            ring.fetch(ahead);
        if (mine && !plain)
            qkv_compute(*own, head, turn, row, to);
        __syncthreads();
        if (mine && head.kind != QKV_Q)
            kv_store(own->kv, head.page, head.pos & (own->kv.tokens - 1), kvh, head.kind == QKV_V, to);
        if (!attends)
            return;
        flash_start<C, R, false>(s, p, query, heads.q[0]);
    } else {
        dep_wait();
        for (; ahead < p.stages; ahead++)
            ring.fetch(ahead);
        flash_start<C, R, false>(s, p, query);
    }
    for (uint32_t i = 0; ring.key(i) < end; i++) {
        const uint8_t *unit = ring.enter();
        if constexpr (OWN)
            if (ring.key(i) + 16 > old)
                heads.put((uint8_t *)unit, old % 16);
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
    flash_end<C, R>(s);
#pragma unroll
    for (int r = 0; r < R; r++)
        if (t == 0)
            ml[warp][g + 8 * r] = make_float2(s.max[r], s.sum[r]);
    decode_sync<OWN>(); /* the rings are free, too: sums take their place */
    const uint64_t part = (((uint64_t)seq * p.kv.heads + kvh) * p.splits + blockIdx.x) * p.part_queries;
    decode_leave<C, R>(p, s, room, ml, part, queries);
    decode_sync<OWN>();
    decode_store<C, R>(p, room, part, p.meta.seq_first[seq], queries);
}

enum { PARTS_AHEAD = 32 };

/* Joins the parts of a row, 256 columns a block; one warp a head weighs its parts first. */
extern "C" __global__ void __launch_bounds__(256) attn_combine(const __grid_constant__ struct attn_args p)
{
    __shared__ float weight[8][SPLITS_MOST], v[256];
    dep_launch();
    const uint32_t row = blockIdx.y, width = p.heads * p.kv.v_dim, vd = p.kv.v_dim,
                   group = p.heads / p.kv.heads, seq = p.meta.row_seq[row], rows = p.meta.seq_rows[seq];
    const uint32_t splits = decode_span(p.splits, p.window, p.meta.seq_len[seq], rows).splits;
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
        const float scale = flash_scale(p.sinks, head0 + warp, max, warp_sum(sum));
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
        pack_warp(p.pack, (width + 255) / 256, row, blockIdx.x, x).finish(1.0f);
    }
}

#define ATTN_KERNEL(name, body, blocks)                                                                      \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                \
        name(const __grid_constant__ struct attn_args p)                                                     \
    {                                                                                                        \
        body(p, nullptr);                                                                                    \
    }

#define ATTN_KERNELS(dim, c, few)                                                                            \
    ATTN_KERNEL(attn_decode_##dim, (decode_body<c, 2, false>), 1)                                            \
    ATTN_KERNEL(attn_few_##dim, (decode_body<c, 1, false>), few)                                             \
    ATTN_KERNEL(attn_far_##dim, (decode_body<c, 1, false>), 1)                                               \
    extern "C" __global__ void __launch_bounds__(ATTN_ROW_WARPS * 32, 1)                                     \
        attn_row_##dim(const __grid_constant__ struct attn_row_args p)                                       \
    {                                                                                                        \
        decode_body<c, 1, true>(p.attn, &p.qkv);                                                             \
    }

ATTN_KERNELS(64, 2, 4)
ATTN_KERNELS(96, 3, 4)
ATTN_KERNELS(128, 4, 3)
ATTN_KERNELS(256, 8, 1)
