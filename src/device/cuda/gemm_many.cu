/* Products of more than 64 rows with tiles, F16 or BF16, by Hopper's own matrix instruction. A block takes ROWS rows and OUT
 * outputs, 64 columns a step: its decoders write the weights of a step to shared memory, as fp16, the rows come beside them
 * by bulk copies, and its workers (64 rows each) multiply both from there. Steps go through a ring, so that decoders, copies
 * and workers run side by side; a weight is decoded once for all rows of the block.
 *
 * Columns may be shared by p.split blocks: they leave their sums in p.part, wait for each other, and each adds up some of
 * the rows. All blocks of the launch must be on the card at once then; gpu_gemm_many ensures that.
 *
 * A block has outputs of one segment, or of gate and up strips of 16 in turns. x is packed in the order PACK_ROWS. Only in
 * builds for sm_90a: elsewhere the kernels are not there. */
#include "device/cuda/gemm.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/wgmma.cuh"

enum { STEP = 64, STEP_ROW = 2 * STEP, STEPS = TILE_COLS / STEP };

/* How a block of this shape is divided, and what it has in shared memory. */
template <int ROWS, int OUT> struct many_shape {
    enum {
        WORKERS = ROWS / 64, /* warpgroups */
        DECODERS = MANY_THREADS / 32 - 4 * WORKERS,
        STRIPS = OUT / TILE_ROWS / DECODERS, /* of a decoder */
        X_BYTES = ROWS * STEP_ROW,
        STAGE = X_BYTES + OUT * STEP_ROW,
        STAGES = MANY_SHARED / STAGE,
        SUMS = OUT + 8 /* floats of a row of sums: apart in their banks */
    };
    static_assert(ROWS * SUMS * 4 <= STAGES * STAGE, "the sums take the place of the stages");
};

/* Where a thread is in the ring. */
template <int STAGES> struct many_turn {
    uint32_t stage, parity;

    __device__ __forceinline__ void next()
    {
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        parity ^= stage == 0;
    }
};

static __device__ __forceinline__ void many_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

/* ---- decoders ---- */

/* A decoder's lane has the rows g and g + 8 of a strip, and of each 32 columns 8t..8t+7. Not g = lane / 4: eight lanes that
 * store together have rows whose swizzles differ in the upper half. */
struct many_lane {
    uint32_t g, t;

    __device__ __forceinline__ many_lane()
    {
        const uint32_t lane = threadIdx.x % 32;
        g = lane / 8 + lane % 8 / 4 * 4;
        t = lane % 4;
    }
    __device__ __forceinline__ uint32_t chunk() const
    {
        return 16 * (4 * g + t);
    }
};

/* The forms: like those of gemm.cuh, with all scales in the value. RING: chunks of a strip that a lane has in flight.
 * row(): eight values of row g (r = 0) or g + 8 (r = 1) of a sub of 32 columns, from the lane's bytes. */
static __device__ __forceinline__ uint32_t scale_6(uint32_t words, int i)
{
    return fma2(plus_1024(words, i), 0x3c003c00u, 0xe400e400u);
}

struct many_q4k {
    enum { BYTES = TILE_Q4_K, CHUNKS = 4, RING = 4 };
    struct tile_head h;

    static __device__ constexpr int chunk_of(int sub)
    {
        return sub / 2;
    }
    __device__ __forceinline__ uint4 row(const uint4 q[], int sub, int r) const
    {
        const uint4 v = h.row[r];
        const uint32_t low = r ? q[chunk_of(sub) % RING].z : q[chunk_of(sub) % RING].x,
                       high = r ? q[chunk_of(sub) % RING].w : q[chunk_of(sub) % RING].y;
        const uint32_t s = sub < 4 ? v.y & 0x3f3f3f3f : (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030),
                       m = sub < 4 ? v.z & 0x3f3f3f3f : (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030);
        const uint32_t d = __byte_perm(v.x, 0, 0x1010), scale = scale_6(s, sub % 4),
                       min = mul2(scale_6(m, sub % 4), __byte_perm(v.x, 0, 0x3232) ^ 0x80008000u);
        auto pair = [&](uint32_t w) {
            const uint32_t n = sub & 1 ? fma2((w & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd400d400u)
                                       : fma2((w & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe400e400u);
            return fma2(mul2(n, scale), d, min); /* n * scale is exact */
        };
        return make_uint4(pair(low), pair(low >> 8), pair(high), pair(high >> 8));
    }
};

struct many_q6k {
    enum { BYTES = TILE_Q6_K, CHUNKS = 6, RING = 3 };
    struct tile_head h;

    __device__ __forceinline__ uint4 row(const uint4 q[], int sub, int r) const
    {
        const int half = sub / 4, quarter = sub % 4, ls = quarter < 2 ? 4 : 0, hs = 8 - 2 * quarter;
        const uint4 l = q[quarter & 1], b = q[2];
        const uint32_t l0 = r ? l.z : l.x, l1 = r ? l.w : l.y, b0 = r ? b.z : b.x, b1 = r ? b.w : b.y;
        const bool odd = threadIdx.x & 2; /* scales of the groups of 16 that the lane's columns are in */
        const uint4 v = h.row[r];
        const uint32_t words = (half ? (odd ? v.w : v.y) : (odd ? v.z : v.x)) ^ 0x80808080u;
        const uint32_t scale =
            mul2(fma2(plus_1024(words, quarter), 0x3c003c00u, 0xe480e480u), __byte_perm(h.d[r], 0, 0x1010));
        auto pair = [&](uint32_t low, uint32_t high, int less) {
            const uint32_t n = (form_q6k::shift(low, ls - less) & 0x00f000f0u) |
                               (form_q6k::shift(high, hs - less) & 0x03000300u) | 0x54005400u;
            return mul2(fma2(n, 0x3c003c00u, 0xd600d600u), scale);
        };
        return make_uint4(pair(l0, b0, 0), pair(l0, b0, 8), pair(l1, b1, 0), pair(l1, b1, 8));
    }
};

struct many_q8 {
    enum { BYTES = TILE_Q8_0, CHUNKS = 8, RING = 4 };
    struct tile_head h;

    __device__ __forceinline__ uint4 row(const uint4 q[], int sub, int r) const
    {
        const uint32_t d = form_q8::scale(h.row[r], sub);
        const uint4 v = q[sub % RING];
        const uint32_t a = r ? v.z : v.x, b = r ? v.w : v.y;
        return make_uint4(form_q8::pair(a, 0, d), form_q8::pair(a, 1, d), form_q8::pair(b, 0, d),
                          form_q8::pair(b, 1, d));
    }
};

/* The chunks of a strip on their way through a lane's registers: chunk j is in place j % RING, and as soon as it is used up
 * the one RING further on takes its place, be it of this tile or of the next. */
template <class FORM> struct many_strip {
    const uint8_t *tile; /* the lane's chunk 0 */
    const uint8_t *head;
    uint4 q[FORM::RING];

    __device__ __forceinline__ void start(const uint8_t *at, const struct many_lane &lane)
    {
        tile = at + lane.chunk();
        head = at + 512 * FORM::CHUNKS + 16 * lane.g;
#pragma unroll
        for (int j = 0; j < FORM::RING; j++)
            q[j] = load_stream(tile + 512 * j);
    }
    __device__ __forceinline__ struct tile_head read_head(const struct many_lane &lane) const
    {
        struct tile_head h = {{load_stream(head), load_stream(head + 128)}, {0, 0}};
        if constexpr (FORM::CHUNKS == 6) {
            const uint16_t *d = (const uint16_t *)(head - 16 * lane.g + 256) + lane.g;
            h.d[0] = d[0], h.d[1] = d[8];
        }
        return h;
    }
    /* Step `step` of the tile is decoded. */
    __device__ __forceinline__ void refill(int step, bool more)
    {
        constexpr int EACH = FORM::CHUNKS / FORM::RING * FORM::RING == FORM::CHUNKS ? FORM::RING : 0;
        static_assert(EACH, "a ring is passed whole");
#pragma unroll
        for (int j = 0; j < FORM::CHUNKS; j++) {
            const bool last = FORM::CHUNKS == 6 ? step == j / 3 * 2 + 1 : step == 4 * j / FORM::CHUNKS;
            if (last)
                load_more(q[j % FORM::RING],
                          tile + 512 * (j + FORM::RING) +
                              (j + FORM::RING < FORM::CHUNKS ? 0 : FORM::BYTES - 512 * FORM::CHUNKS),
                          more || j + FORM::RING < FORM::CHUNKS);
        }
    }
    __device__ __forceinline__ void next()
    {
        tile += FORM::BYTES;
        head += FORM::BYTES;
    }
};

/* What all threads of a block know. */
struct many_block {
    uint8_t *room;
    uint64_t *full, *empty; /* (stages) */
    const uint8_t *x;       /* the block's rows, of chunk 0 */
    uint64_t x_step;        /* bytes from chunk to chunk */
    uint32_t x_bytes;
    uint32_t from, to, steps; /* columns of 256; steps: of the whole row */
};

template <class FORM, int ROWS, int OUT>
static __device__ __forceinline__ void many_decode(const struct many_block &b, const struct mat &w,
                                                   uint32_t first, uint32_t stride, uint32_t place)
{
    typedef struct many_shape<ROWS, OUT> shape;
    const struct many_lane lane;
    struct many_strip<FORM> strip[shape::STRIPS];
    struct many_turn<shape::STAGES> turn = {
        0, 1
    };
    /* strips past the last one repeat it; their results are not stored */
#pragma unroll
    for (int i = 0; i < shape::STRIPS; i++)
        strip[i].start(
            w.base + min(first + i, (w.n - 1) / TILE_ROWS) * w.stride + (uint64_t)b.from * FORM::BYTES, lane);
    const bool fetches = threadIdx.x / 32 == 4 * shape::WORKERS;
    if (fetches)
        dep_wait();
    for (uint32_t column = b.from; column < b.to; column++) {
        FORM form[shape::STRIPS];
#pragma unroll
        for (int i = 0; i < shape::STRIPS; i++)
            form[i].h = strip[i].read_head(lane);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (STEPS * column + step >= b.steps)
                break;
            uint8_t *stage = b.room + turn.stage * shape::STAGE;
            bar_wait(b.empty + turn.stage, turn.parity);
            if (fetches && threadIdx.x % 32 == 0)
                copy_bulk(stage, b.x + (STEPS * column + step) * b.x_step, b.x_bytes, b.full + turn.stage);
#pragma unroll
            for (int i = 0; i < shape::STRIPS; i++) {
                uint8_t *to = stage + shape::X_BYTES + (place + stride * i) * TILE_ROWS * STEP_ROW;
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int r = 0; r < 2; r++)
                        *(uint4 *)(to + (lane.g + 8 * r) * STEP_ROW + ((4 * k + lane.t) ^ lane.g) * 16) =
                            form[i].row(strip[i].q, 2 * step + k, r);
                strip[i].refill(step, column + 1 < b.to);
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                many_arrive(b.full + turn.stage);
            turn.next();
        }
#pragma unroll
        for (int i = 0; i < shape::STRIPS; i++)
            strip[i].next();
    }
}

/* Eight values of F16 or BF16 in the order of the pack. */
template <int FMT> static __device__ __forceinline__ uint4 many_plain(const uint4 &v)
{
    if (FMT == FMT_F16)
        return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                          __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
    auto low = [](uint32_t w) { return __uint_as_float(w << 16); };
    auto high = [](uint32_t w) { return __uint_as_float(w & 0xffff0000u); };
    return make_uint4(half_bits2(low(v.x), low(v.y)), half_bits2(high(v.x), high(v.y)),
                      half_bits2(low(v.z), low(v.w)), half_bits2(high(v.z), high(v.w)));
}

/* The same from rows of F16 or BF16: a lane has AHEAD steps in flight. */
template <int FMT, int ROWS, int OUT>
static __device__ __forceinline__ void many_copy(const struct many_block &b, const struct mat &w,
                                                 uint32_t first, uint32_t stride, uint32_t place)
{
    typedef struct many_shape<ROWS, OUT> shape;
    enum { AHEAD = 4 / shape::STRIPS };
    const struct many_lane lane;
    const uint32_t to = min(STEPS * b.to, b.steps), subs = (w.k + 31) / 32;
    const uint8_t *row[shape::STRIPS][2];
    uint4 q[shape::STRIPS][AHEAD][4];
    struct many_turn<shape::STAGES> turn = {
        0, 1
    };
    auto load = [&](int i, int a, uint32_t step) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t at = 2 * step + j / 2;
            q[i][a][j] = make_uint4(0, 0, 0, 0);
            load_more(q[i][a][j], row[i][j % 2] + 64 * (uint64_t)at, step < to && at < subs);
        }
    };
#pragma unroll
    for (int i = 0; i < shape::STRIPS; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            row[i][r] =
                w.base + min((first + i) * TILE_ROWS + lane.g + 8 * r, w.n - 1) * w.stride + 16 * lane.t;
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            load(i, a, STEPS * b.from + a);
    }
    const bool fetches = threadIdx.x / 32 == 4 * shape::WORKERS;
    if (fetches)
        dep_wait();
    for (uint32_t from = STEPS * b.from; from < to; from += AHEAD)
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const uint32_t step = from + a;
            if (step >= to)
                break;
            uint8_t *stage = b.room + turn.stage * shape::STAGE;
            bar_wait(b.empty + turn.stage, turn.parity);
            if (fetches && threadIdx.x % 32 == 0)
                copy_bulk(stage, b.x + step * b.x_step, b.x_bytes, b.full + turn.stage);
#pragma unroll
            for (int i = 0; i < shape::STRIPS; i++) {
                uint8_t *put = stage + shape::X_BYTES + (place + stride * i) * TILE_ROWS * STEP_ROW;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    *(uint4 *)(put + (lane.g + j % 2 * 8) * STEP_ROW + ((j / 2 * 4 + lane.t) ^ lane.g) * 16) =
                        many_plain<FMT>(q[i][a][j]);
                load(i, a, step + AHEAD);
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                many_arrive(b.full + turn.stage);
            turn.next();
        }
}

/* ---- workers ---- */

template <int LEFT> static __device__ __forceinline__ void many_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int ROWS, int OUT>
static __device__ __forceinline__ void many_work(const struct many_block &b, float acc[OUT / 8][4])
{
    typedef struct many_shape<ROWS, OUT> shape;
    struct many_turn<shape::STAGES> turn = {
        0, 0
    };
    const uint32_t count = min(STEPS * b.to, b.steps) - STEPS * b.from, group = threadIdx.x / 128;
    uint32_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *stage = b.room + turn.stage * shape::STAGE;
        bar_wait(b.full + turn.stage, turn.parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            wgmma_both<OUT / 8>(acc, wgmma_rows(stage + group * 64 * STEP_ROW + 32 * k),
                                wgmma_rows(stage + shape::X_BYTES + 32 * k), i || k);
        wgmma_commit();
        many_wait<1>();
        if (i && threadIdx.x % 32 == 0)
            many_arrive(b.empty + last);
        last = turn.stage;
        turn.next();
    }
    wgmma_done<OUT / 8>(acc);
}

/* ---- results ---- */

/* The sums of a block: in its shared memory, or, where blocks share the columns, in p.part, from all of them. */
struct many_sums {
    const float *at;
    uint32_t ld, parts;
    uint64_t step; /* from part to part */

    /* of four outputs */
    __device__ __forceinline__ float4 get(uint32_t row, uint32_t column) const
    {
        const float *from = at + row * ld + column;
        if (parts == 1)
            return *(const float4 *)from;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (uint32_t i = 0; i < parts; i++) {
            const float4 w = __ldcg((const float4 *)(from + i * step));
            v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
        }
        return v;
    }
};

/* Four outputs of a row, in place. */
struct many_four {
    float v[4];
    float *to; /* NULL: there are none */
    uint32_t count;
};

static __device__ __forceinline__ void many_load4(const float *from, uint32_t count, float v[4])
{
    if (count == 4 && ((uintptr_t)from & 15) == 0) {
        const float4 f = *(const float4 *)from;
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = i < count ? from[i] : 0.0f;
}

/* Output `at` of the block's, of a row of the block's. first: its first output in the segment, base: its first row. */
static __device__ __forceinline__ struct many_four many_finish(const struct gemm_args &p,
                                                               const struct gemm_seg &seg,
                                                               const struct many_sums &sums, uint32_t first,
                                                               uint32_t base, uint32_t row, uint32_t at)
{
    const uint32_t n = first + at, column = p.paired ? at / 16 * 32 + at % 16 : at;
    struct many_four f = {{0.0f, 0.0f, 0.0f, 0.0f}, nullptr, 0};
    if (n >= seg.w.n)
        return f;
    const uint64_t r = base + row;
    f.to = seg.y + r * seg.ldy + n;
    f.count = min(4u, seg.w.n - n);
    const float scale = p.row_scale ? p.row_scale[r] : 1.0f;
    const float4 y = sums.get(row, column);
    float four[4] = {y.x * scale, y.y * scale, y.z * scale, y.w * scale}, more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (seg.bias)
        many_load4(seg.bias + n, f.count, more);
#pragma unroll
    for (int i = 0; i < 4; i++)
        f.v[i] = four[i] + more[i];
    if (p.paired) {
        const float4 u = sums.get(row, column + 16);
        const float up[4] = {u.x * scale, u.y * scale, u.z * scale, u.w * scale};
#pragma unroll
        for (int i = 0; i < 4; i++)
            more[i] = 0.0f;
        if (p.seg[1].bias)
            many_load4(p.seg[1].bias + n, f.count, more);
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.v[i] = act_one(p.act, f.v[i]) * (up[i] + more[i]);
        return f;
    }
    if (p.residual)
        many_load4(p.residual + r * p.ldr + n, f.count, more);
#pragma unroll
    for (int i = 0; i < 4; i++)
        f.v[i] = f.v[i] * p.scale + (p.residual ? more[i] : 0.0f);
    return f;
}

enum { MANY_AHEAD = 4 };

/* Rows [from, to) of the block's, MANY_AHEAD x 4 outputs a thread at a time: all are read before any is written. */
static __device__ __forceinline__ void many_store(const struct gemm_args &p, const struct gemm_seg &seg,
                                                  const struct many_sums &sums, uint32_t first,
                                                  uint32_t outputs, uint32_t base, uint32_t from, uint32_t to)
{
    const uint32_t count = (to - from) * outputs / 4;
    for (uint32_t i = threadIdx.x; i < count; i += MANY_AHEAD * MANY_THREADS) {
        struct many_four f[MANY_AHEAD];
#pragma unroll
        for (int j = 0; j < MANY_AHEAD; j++) {
            const uint32_t at = 4 * (i + j * MANY_THREADS);
            f[j].to = nullptr;
            if (at < 4 * count)
                f[j] = many_finish(p, seg, sums, first, base, from + at / outputs, at % outputs);
        }
#pragma unroll
        for (int j = 0; j < MANY_AHEAD; j++) {
            if (!f[j].to)
                continue;
            if (f[j].count == 4 && ((uintptr_t)f[j].to & 15) == 0)
                *(float4 *)f[j].to = make_float4(f[j].v[0], f[j].v[1], f[j].v[2], f[j].v[3]);
            else
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (k < f[j].count)
                        f[j].to[k] = f[j].v[k];
        }
    }
}

/* The workers' sums to shared memory, where the stages were. */
template <int ROWS, int OUT>
static __device__ __forceinline__ void many_leave(const float acc[OUT / 8][4], float *sums)
{
    const uint32_t lane = threadIdx.x % 32,
                   row = threadIdx.x / 128 * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < OUT / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(float2 *)(sums + (row + 8 * i) * many_shape<ROWS, OUT>::SUMS + 8 * j + lane % 4 * 2) =
                make_float2(acc[j][2 * i], acc[j][2 * i + 1]);
}

/* grid: (ROWS rows, OUT outputs, p.split). */
template <int ROWS, int OUT> static __device__ __forceinline__ void many_body(const struct gemm_args &p)
{
    typedef struct many_shape<ROWS, OUT> shape;
    extern __shared__ __align__(1024) uint8_t room[];
    __shared__ uint64_t full[shape::STAGES], empty[shape::STAGES];
    const uint32_t warp = threadIdx.x / 32, columns = (p.k + TILE_COLS - 1) / TILE_COLS,
                   base = blockIdx.x * ROWS, rows = min(p.m - base, (uint32_t)ROWS);
    dep_launch();
    if (threadIdx.x < shape::STAGES) {
        bar_init(full + threadIdx.x, shape::DECODERS + 1);
        bar_init(empty + threadIdx.x, 4 * shape::WORKERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    const uint32_t outputs = p.paired ? OUT / 2 : OUT, which = p.paired ? 0 : gemm_segment(p, blockIdx.y);
    const struct gemm_seg &seg = p.seg[which];
    const uint32_t first = (blockIdx.y - seg.first) * outputs;
    const struct many_block b = {room,
                                 full,
                                 empty,
                                 p.x + base * STEP_ROW,
                                 (uint64_t)p.groups * 8 * STEP_ROW,
                                 (rows + 7) / 8 * 8 * STEP_ROW,
                                 columns * blockIdx.z / p.split,
                                 columns * (blockIdx.z + 1) / p.split,
                                 (p.k + STEP - 1) / STEP};
    float *sums = (float *)room;
    if (warp >= 4 * shape::WORKERS) {
        /* where there are gate and up, half of the decoders have one, half the other */
        const uint32_t decoder = warp - 4 * shape::WORKERS, half = shape::DECODERS / 2,
                       up = p.paired ? decoder / half : 0,
                       mine = (p.paired ? decoder % half : decoder) * shape::STRIPS,
                       stride = p.paired ? 2 : 1;
        const struct mat &w = p.seg[which + up].w;
        const uint32_t from = first / TILE_ROWS + mine, place = mine * stride + up;
        if (w.fmt == FMT_Q4_K_TILE)
            many_decode<many_q4k, ROWS, OUT>(b, w, from, stride, place);
        else if (w.fmt == FMT_Q6_K_TILE)
            many_decode<many_q6k, ROWS, OUT>(b, w, from, stride, place);
        else if (w.fmt == FMT_F16)
            many_copy<FMT_F16, ROWS, OUT>(b, w, from, stride, place);
        else if (w.fmt == FMT_BF16)
            many_copy<FMT_BF16, ROWS, OUT>(b, w, from, stride, place);
        else
            many_decode<many_q8, ROWS, OUT>(b, w, from, stride, place);
        __syncthreads();
    } else {
        float acc[OUT / 8][4];
        many_work<ROWS, OUT>(b, acc);
        __syncthreads(); /* all have used the last stage */
        many_leave<ROWS, OUT>(acc, sums);
    }
    __syncthreads();
    dep_wait();
    struct many_sums from = {sums, shape::SUMS, 1, 0};
    if (p.split == 1) {
        many_store(p, seg, from, first, outputs, base, 0, rows);
        return;
    }
    const uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x;
    from.step = (uint64_t)gridDim.x * gridDim.y * ROWS * OUT;
    float *part = p.part + (uint64_t)tile * ROWS * OUT;
    for (uint32_t i = 4 * threadIdx.x; i < rows * OUT; i += 4 * MANY_THREADS)
        __stcg((float4 *)(part + blockIdx.z * from.step + i),
               *(const float4 *)(sums + i / OUT * shape::SUMS + i % OUT));
    gemm_join(p.count + tile, p.split);
    from.at = part, from.ld = OUT, from.parts = p.split;
    many_store(p, seg, from, first, outputs, base, rows * blockIdx.z / p.split,
               rows * (blockIdx.z + 1) / p.split);
}

#define MANY_KERNEL(rows, outputs)                                                                           \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)                                            \
        gemm_many_##rows##_##outputs(const __grid_constant__ struct gemm_args p)                             \
    {                                                                                                        \
        many_body<rows, outputs>(p);                                                                         \
    }
MANY_KERNEL(64, 128)
MANY_KERNEL(64, 256)
MANY_KERNEL(128, 128)
MANY_KERNEL(128, 256)

#endif
