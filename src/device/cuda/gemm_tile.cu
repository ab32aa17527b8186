/* Products with tiles. Three ways to load x (a fourth is in gemm_wide.cu):
 *   gemm_tile_1       one row: every block norms the row itself, into shared memory, while its first
 *                     weights arrive; gemm_tile_1_any for inputs that are gated, joined or normed otherwise
 *   gemm_tile, 8..64  packed, straight from memory
 *   gemm_staged       packed, 32 rows at a time, columns copied ahead into shared memory for the whole block (sm_90);
 *   gemm_staged_few   the same where there are few strips, of which more warps share one */
#include "device/cuda/attn.cuh"
#include "device/cuda/bulk.cuh"
#include "device/cuda/gemm_row.cuh"

GEMM_KERNELS(gemm_tile, 0)
/* rows of experts: many strips of few columns, so that more warps are there to wait */
GEMM_KERNEL(gemm_experts, 0, 1, GEMM_WARPS, 3)

/* ---- one row ---- */

enum { ROW_COLUMNS = 2 }; /* of a warp in registers: rows of 4096 where a norm needs all of them first */

/* The output that a thread adds up: one, as there are at most 16 strips a block. */
struct row_output {
    uint32_t seg, n;
    bool stores;

    __device__ __forceinline__ row_output(const struct gemm_args &p, uint32_t each)
    {
        const uint32_t strip = blockIdx.x * each + threadIdx.x / TILE_ROWS;
        seg = gemm_segment(p, min(strip, p.strips - 1));
        const struct gemm_seg &to = p.seg[seg];
        n = (strip - to.first) * TILE_ROWS + threadIdx.x % TILE_ROWS;
        stores = !p.paired && threadIdx.x < each * TILE_ROWS && strip < p.strips && n < to.w.n;
    }
};

/* What is added to the outputs comes into shared memory by itself. In a register, of which there are none to spare, it would
 * be waited for at once, to be put aside, and the row would be asked for only then. */
struct row_more {
    float bias[GEMM_DEEP * TILE_ROWS], residual[GEMM_DEEP * TILE_ROWS];
};

struct x_row {
    const struct gemm_args &p;
    uint8_t *room;
    float *sums; /* 2 x GEMM_DEEP */
    const struct row_output &y;
    struct row_more &more;

    __device__ __forceinline__ x_row(const struct gemm_args &args, uint8_t *shared, float *reduce,
                                     const struct row_output &out, struct row_more &add)
        : p(args), room(shared), sums(reduce), y(out), more(add)
    {
    }

    /* Once the row is asked for: what is added to the output, too. */
    __device__ __forceinline__ void asked()
    {
        if (y.stores && p.residual)
            copy4(&more.residual[threadIdx.x], p.residual + y.n);
        copies_commit();
    }

    /* Of 256 values; the last may be shorter, by whole lanes. */
    __device__ __forceinline__ uint32_t columns() const
    {
        return (p.k + 255) / 256;
    }

    /* Where the lane's eight values of its warp's column number i are. */
    __device__ __forceinline__ uint32_t at_of(int i) const
    {
        return 256 * (threadIdx.x / 32 + blockDim.x / 32 * i) + threadIdx.x % 32 * 8;
    }

    /* Over the block, each time with other room: no wait until it is free again. */
    __device__ __forceinline__ float all(float v, float *each)
    {
        v = warp_sum(v);
        if (threadIdx.x % 32 == 0)
            each[threadIdx.x / 32] = v;
        __syncthreads();
        return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? each[threadIdx.x % 32] : 0.0f);
    }

    /* The row is in parts: a column of a warp at a time. */
    __device__ __forceinline__ void join_all()
    {
        const struct gemm_parts &in = p.in.parts;
        const uint32_t splits = decode_span(in.splits, in.window, *in.length, 1).splits;
        dep_wait();
        asked();
        for (uint32_t c = threadIdx.x / 32; c < columns(); c += blockDim.x / 32) {
            const uint32_t at = 256 * c + threadIdx.x % 32 * 8;
            float v[8] = {};
            if (at < p.k)
                gemm_join(in, at, splits, v);
            row_put(room + c * ROW_COLUMN, v);
        }
    }

    /* No norm: the row as it is, four columns of a warp at a time. */
    __device__ __forceinline__ void copy()
    {
        enum { AHEAD = 4 };
        const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
        const float *from[AHEAD];
        bool there[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            from[i] = p.in.x + at_of(i);
            there[i] = at_of(i) < p.k;
        }
        dep_wait();
#pragma unroll 1
        for (uint32_t c = warp;;) {
            float v[AHEAD][8];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                load8(from[i], there[i] ? 8 : 0, true, v[i]);
            if (c == warp)
                asked();
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (c + warps * i < columns())
                    row_put(room + (c + warps * i) * ROW_COLUMN, v[i]);
            c += AHEAD * warps;
            if (c >= columns())
                break;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                from[i] += 256 * AHEAD * warps;
                there[i] = 256 * (c + warps * i) + threadIdx.x % 32 * 8 < p.k;
            }
        }
    }

    /* Eight numbers from `at` on, gated and normed within their slice: lanes side by side have it. */
    __device__ __forceinline__ void gate_eight(uint32_t at, float v[8])
    {
        const struct gemm_gate &by = p.in.gate;
        const struct norm_args &norm = p.in.norm;
        float z[8], sum = 0.0f;
        load8(p.in.x + at, 8, true, v);
        if (by.heads) {
            const float one = by.gate[at / (p.k / by.heads)];
#pragma unroll
            for (int j = 0; j < 8; j++)
                z[j] = one;
        } else {
            load8(by.gate + at, 8, true, z);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            z[j] = act_one(by.act, z[j]);
            v[j] *= by.first ? z[j] : 1.0f;
            sum += v[j] * v[j];
        }
        float scale = 1.0f;
        if (by.slice) {
            for (uint32_t o = by.slice / 16; o; o >>= 1)
                sum += __shfl_xor_sync(~0u, sum, o);
            scale = rsqrtf(sum / (float)by.slice + norm.eps);
        }
        const float *w = by.slice && norm.w ? norm.w + (norm.w_len > by.slice ? at : at % by.slice) : nullptr;
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] *= scale * (w ? w[j] : 1.0f) * (by.first ? 1.0f : z[j]);
    }

    __device__ __forceinline__ void gate_all()
    {
        dep_wait();
        asked();
        for (uint32_t c = threadIdx.x / 32; c < p.k / 256; c += blockDim.x / 32) {
            float v[8];
            gate_eight(256 * c + threadIdx.x % 32 * 8, v);
            row_put(room + c * ROW_COLUMN, v);
        }
    }

    /* Eight of the norm's weights. */
    __device__ __forceinline__ void weights(uint32_t at, float w[8]) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++)
            w[j] = 1.0f;
        if (p.in.norm.w && at < p.k)
            load8(p.in.norm.w + at, 8, true, w);
    }

    /* A column of the row times the norm's weights; -> the sum of its squares. */
    __device__ __forceinline__ float weigh(uint32_t c, float v[8], const float w[8])
    {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum += v[j] * v[j];
            v[j] *= w[j];
        }
        if (c < columns())
            row_put(room + c * ROW_COLUMN, v);
        return sum;
    }

    /* The norm of squares is a factor of the whole row: the results are multiplied with it (scale), not the row. */
    __device__ __forceinline__ void squares()
    {
        const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
        float v[ROW_COLUMNS][8], w[ROW_COLUMNS][8], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++)
            weights(at_of(i), w[i]);
        dep_wait();
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++)
            load8(p.in.x + at_of(i), at_of(i) < p.k ? 8 : 0, true, v[i]);
        asked();
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++)
            sum += weigh(warp + warps * i, v[i], w[i]);
        for (uint32_t c = warp + warps * ROW_COLUMNS; c < columns(); c += warps) {
            const uint32_t at = 256 * c + threadIdx.x % 32 * 8;
            weights(at, w[0]);
            load8(p.in.x + at, at < p.k ? 8 : 0, true, v[0]);
            sum += weigh(c, v[0], w[0]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            sums[warp] = sum;
    }

    __device__ __forceinline__ float scale() const
    {
        const float sum = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
        return rsqrtf(warp_sum(sum) / (float)p.k + p.in.norm.eps);
    }

    /* Whether results still lack the norm's factor. */
    __device__ __forceinline__ bool scales() const
    {
        return p.in.norm.kind == NORM_RMS && !p.in.norm.b && !p.in.gate.gate;
    }

    /* A norm with a mean or a bias. */
    __device__ __forceinline__ void normed()
    {
        const struct gemm_in &in = p.in;
        const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
        float v[ROW_COLUMNS][8], w[ROW_COLUMNS][8], sum = 0.0f, mean = 0.0f, scale = 1.0f;
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++)
            weights(at_of(i), w[i]);
        dep_wait();
        asked();
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++) {
            load8(in.x + at_of(i), at_of(i) < p.k ? 8 : 0, true, v[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum += in.norm.kind == NORM_LAYER ? v[i][j] : v[i][j] * v[i][j];
        }
        if (in.norm.kind == NORM_LAYER) {
            mean = all(sum, sums) / (float)p.k;
            sum = 0.0f;
#pragma unroll
            for (int i = 0; i < ROW_COLUMNS; i++)
                if (at_of(i) < p.k)
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        sum += (v[i][j] - mean) * (v[i][j] - mean);
        }
        scale = rsqrtf(all(sum, sums + GEMM_DEEP) / (float)p.k + in.norm.eps);
#pragma unroll
        for (int i = 0; i < ROW_COLUMNS; i++) {
            const uint32_t c = warp + warps * i, at = at_of(i);
            if (c >= columns())
                break;
            const float there = at < p.k ? scale : 0.0f; /* zeros behind the row's end */
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[i][j] = (v[i][j] - mean) * there * w[i][j];
                if (in.norm.b && at < p.k)
                    v[i][j] += in.norm.b[at + j];
            }
            row_put(room + c * ROW_COLUMN, v[i]);
        }
    }

    /* ANY: as the launch says; else no norm, or one of squares, alone. The block has not met yet. */
    template <bool ANY> __device__ __forceinline__ void begin()
    {
        if (ANY && p.in.parts.part)
            join_all();
        else if (ANY && p.in.gate.gate)
            gate_all();
        else if (p.in.norm.kind == NORM_NONE)
            copy();
        else if (!ANY || scales())
            squares();
        else
            normed();
    }
};

/* The convolution of one channel of a sequence's only row. */
struct row_conv {
    float w[GEMM_CONV_COLS], past[GEMM_CONV_COLS - 1], bias;
    int32_t out;

    /* Column i counts from the end: w[GEMM_CONV_COLS - 1] is that of this row. */
    __device__ __forceinline__ void load(const struct gemm_conv &c, uint32_t n)
    {
        const int32_t in = *c.in;
        const int skip = GEMM_CONV_COLS - (int)c.cols;
        out = *c.out;
        bias = c.bias ? c.bias[n] : 0.0f;
#pragma unroll
        for (int i = 0; i < GEMM_CONV_COLS; i++)
            w[i] = i >= skip ? c.w[n * c.ldw + i - skip] : 0.0f;
#pragma unroll
        for (int i = 0; i < GEMM_CONV_COLS - 1; i++)
            past[i] = in && i >= skip ? c.state[in * c.stride + (uint64_t)(i - skip) * c.channels + n] : 0.0f;
    }
    __device__ __forceinline__ void store(const struct gemm_conv &c, uint32_t n, float x)
    {
        const int skip = GEMM_CONV_COLS - (int)c.cols;
        float sum = bias;
#pragma unroll
        for (int i = 0; i < GEMM_CONV_COLS - 1; i++)
            sum += w[i] * past[i];
        c.y[n] = act_one(c.act, sum + w[GEMM_CONV_COLS - 1] * x);
#pragma unroll
        for (int i = 0; i < GEMM_CONV_COLS - 1; i++)
            if (out && i >= skip)
                c.state[out * c.stride + (uint64_t)(i - skip) * c.channels + n] =
                    i + 1 < GEMM_CONV_COLS - 1 ? past[i + 1 < GEMM_CONV_COLS - 1 ? i + 1 : i] : x;
    }
};

/* gemm_store_pairs for one row, an output a thread: its general form is much code to run once. */
static __device__ __forceinline__ void row_pairs(const struct gemm_args &p, const float (*room)[TILE_ROWS],
                                                 uint32_t each, uint32_t bits)
{
    const uint32_t k = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS,
                   n = (blockIdx.x * (each / 2) + k) * TILE_ROWS + row;
    if (k >= each / 2 || n >= p.seg[0].w.n)
        return;
    float gate = p.seg[0].bias ? p.seg[0].bias[n] : 0.0f, up = p.seg[1].bias ? p.seg[1].bias[n] : 0.0f;
#pragma unroll 1
    for (uint32_t j = 0; j < 1u << bits; j++) {
        gate += room[(2 * k << bits) + j][row];
        up += room[(2 * k + 1 << bits) + j][row];
    }
    p.seg[0].y[n] = gemm_act(p, gate, up);
}

/* ANY: whichever input and output; else they are plain (passes.c), which leaves out most of the code. Between the end of its
 * predecessor and its first product all that a block does counts: code that runs once takes some 7 ns an instruction. */
template <bool ANY> static __device__ __forceinline__ void row_body(const struct gemm_args &p)
{
    extern __shared__ __align__(128) uint8_t row_room[]; /* (columns) of ROW_COLUMN bytes */
    __shared__ float room[GEMM_DEEP][TILE_ROWS], sums[2 * GEMM_DEEP];
    __shared__ struct row_more more;
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, bits = 31 - __clz(p.split), each = blockDim.x / 32 >> bits,
                   part = warp & (p.split - 1), strip = min(blockIdx.x * each + (warp >> bits), p.strips - 1);
    const uint32_t columns = (p.k + 255) / 256, from = columns * part >> bits,
                   to = columns * (part + 1) >> bits;
    const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
    const uint32_t fmt = seg.w.fmt;
    const uint8_t *tiles =
        seg.w.base + gemm_within(p, seg, strip) * seg.w.stride + from * layout_tile_bytes(fmt);
    float acc[2] = {0.0f, 0.0f};
    struct tile_ahead ahead(fmt, tiles);
    const struct row_output y(p, each);
    if (y.stores && p.seg[y.seg].bias)
        copy4(&more.bias[threadIdx.x], p.seg[y.seg].bias + y.n);
    copies_commit();
    struct x_row x(p, row_room, sums, y, more);
    args_ahead(p);
    x.begin<ANY>(); /* in one place for all forms: its code is large */
    const bool convolves = ANY && y.stores && p.conv.w && y.seg == p.conv.seg;
    struct row_conv conv;
    if (convolves)
        conv.load(p.conv, y.n);
    __syncthreads();
    row_product<CHUNKS_MOST>(acc, ahead, fmt, tiles, from, to, row_room);
    const float scale = (ANY ? x.scales() : p.in.norm.kind == NORM_RMS) ? x.scale() : 1.0f;
    row_leave(acc, scale, room[warp]);
    copies_wait();
    __syncthreads();
    if (p.paired)
        row_pairs(p, room, each, bits);
    if (!y.stores)
        return;
    float sum = p.seg[y.seg].bias ? more.bias[threadIdx.x] : 0.0f;
    /* all loads at once: one after the other they take longer than the rest of this */
#pragma unroll
    for (uint32_t j = 0; j < GEMM_DEEP; j++)
        sum += j < p.split ? room[(threadIdx.x / TILE_ROWS << bits) + j][threadIdx.x % TILE_ROWS] : 0.0f;
    sum = sum * p.scale + (p.residual ? more.residual[threadIdx.x] : 0.0f);
    p.seg[y.seg].y[y.n] = sum;
    if (convolves)
        conv.store(p.conv, y.n, sum);
}

extern "C" __global__ void __launch_bounds__(GEMM_DEEP * 32, 1)
    gemm_tile_1(const __grid_constant__ struct gemm_args p)
{
    row_body<false>(p);
}
extern "C" __global__ void __launch_bounds__(GEMM_DEEP * 32, 1)
    gemm_tile_1_any(const __grid_constant__ struct gemm_args p)
{
    row_body<true>(p);
}

/* ---- staged ---- */

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
/* The warps of a block that share columns have a ring of their own, and a barrier of their own. */
template <int NB> struct x_staged {
    enum { SUB = 512, BYTES = NB * PACK_BYTES };
    const uint8_t *pack;
    uint32_t step;       /* bytes from column to column */
    uint32_t ring, full; /* in shared memory: stages, and their barriers */
    uint32_t to;         /* the columns' end */
    uint32_t stages, part, threads;
    bool first;             /* this thread fetches */
    uint32_t stage, parity; /* of the column in use */

    __device__ __forceinline__ void fetch(uint32_t column, uint32_t into)
    {
        bar_expect(full + 8 * into, BYTES);
        copy_counted(ring + into * BYTES, pack + (uint64_t)column * step, BYTES, full + 8 * into);
    }

    __device__ __forceinline__ void begin(uint32_t from)
    {
        if (first) {
            for (uint32_t i = 0; i < stages; i++)
                bar_init(full + 8 * i, 1);
            bar_made();
        }
        __syncthreads();
        dep_wait();
        if (first) {
            asm volatile("fence.proxy.async;" ::: "memory");
            for (uint32_t i = 0; i < stages && from + i < to; i++)
                fetch(from + i, i);
        }
    }

    __device__ __forceinline__ struct x_column enter(uint32_t)
    {
        extern __shared__ __align__(128) uint8_t all_stages[];
        const uint32_t lane = threadIdx.x % 32;
        bar_wait(full + 8 * stage, parity);
        const uint8_t *at = all_stages + (part * stages + stage) * BYTES;
        struct x_column c = {at + 16 * lane, at + PACK_SUMS + 8 * lane, at + PACK_SCALE + 8 * (lane % 4)};
        return c;
    }

    __device__ __forceinline__ void leave(uint32_t column)
    {
        /* no warp of this part reads the stage any more */
        asm volatile("bar.sync %0, %1;" ::"r"(1 + part), "r"(threads) : "memory");
        if (first && column + stages < to)
            fetch(column + stages, stage);
        stage = stage + 1 < stages ? stage + 1 : 0;
        parity ^= stage == 0;
    }
};

/* A block takes some strips, each with p.split warps, and has `stages` columns of x for each part of the columns;
 * blockIdx.y: which groups of eight streams, NB at a time. */
template <int NB> static __device__ __forceinline__ void staged_body(const struct gemm_args &p, uint32_t stages)
{
    extern __shared__ __align__(128) uint8_t all_stages[];
    __shared__ uint64_t full[GEMM_PARTS][GEMM_STAGES];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = (p.k + 255) / 256;
    const uint32_t each = blockDim.x / 32 / p.split, part = warp % p.split,
                   strip = min(blockIdx.x * each + warp / p.split, p.strips - 1);
    const uint32_t stream0 = blockIdx.y * NB * 8, from = columns * part / p.split,
                   to = columns * (part + 1) / p.split;
    const struct gemm_seg &seg = p.seg[gemm_segment(p, strip)];
    float acc[NB][4] = {};
    struct x_staged<NB> x = {p.x + (uint64_t)blockIdx.y * NB * PACK_BYTES,
                             p.groups * PACK_BYTES,
                             shared_address(all_stages + part * stages * (NB * PACK_BYTES)),
                             shared_address(full[part]),
                             to,
                             stages,
                             part,
                             each * 32,
                             warp / p.split == 0 && lane == 0,
                             0,
                             0};
    strip_columns<NB>(acc, seg.w.fmt, seg.w.base + gemm_within(p, seg, strip) * seg.w.stride, from, to, x);
    __syncthreads();
    float(*room)[TILE_ROWS][NB * 8 + 1] = (float(*)[TILE_ROWS][NB * 8 + 1]) all_stages; /* free now */
    gemm_leave<NB>(acc, room[warp]);
    __syncthreads();
    const struct gemm_rows rows = {p.m - stream0, 0, stream0};
    if (p.paired)
        gemm_store_pairs<NB>(p, room, rows);
    else
        gemm_store<NB>(p, room, rows);
}
#else
template <int NB> static __device__ __forceinline__ void staged_body(const struct gemm_args &, uint32_t)
{
}
#endif

extern "C" __global__ void __launch_bounds__(GEMM_WARPS * 32, 2)
    gemm_staged(const __grid_constant__ struct gemm_args p)
{
    staged_body<4>(p, GEMM_STAGES);
}

/* The same for few strips: more warps share one, each with more registers. */
extern "C" __global__ void __launch_bounds__(GEMM_FEW * 32, 1)
    gemm_staged_few(const __grid_constant__ struct gemm_args p)
{
    staged_body<4>(p, p.stages);
}
