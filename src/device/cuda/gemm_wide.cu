/* Products of 33 to 64 rows of experts with tiles, by Hopper's own matrix instruction: a warpgroup takes 64 outputs (a strip
 * of 16 a warp, which decodes it into the A operand, in registers) and all streams, whose packed x is the B operand, in
 * shared memory. Copies run ahead: every warp has a ring of tiles of its own, the block a ring of columns of x.
 *
 * x is packed in the order PACK_CORES. Only in builds for sm_90a: elsewhere the kernels are not there. */
#include "device/cuda/gemm.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/wgmma.cuh"

enum { NB = GEMM_ROWS_MOST / PACK_STREAMS }; /* groups of eight streams */

/* ---- the matrix instruction ---- */

/* B operands of 16 values of all streams: core matrices of 8 streams x 16 bytes; the two of a group lie side by side. */
static __device__ __forceinline__ uint64_t wide_operand(const uint8_t *at)
{
    return wgmma_operand(at, 128, PACK_BYTES);
}

/* All but the last LEFT groups are done: their operands may change. */
template <int LEFT> static __device__ __forceinline__ void wide_wait(uint32_t a[8])
{
    asm volatile("wgmma.wait_group.sync.aligned %8;"
                 : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(a[4]), "+r"(a[5]), "+r"(a[6]),
                   "+r"(a[7])
                 : "n"(LEFT)
                 : "memory");
}

/* ---- rings ---- */

enum { WIDE_UNIT = 64, WIDE_STAGES = 2, WIDE_TILES_MOST = 4, WIDE_AHEAD = 4 };

/* A warp's tiles: as many as fit into WIDE_RING bytes. */
struct tile_ring {
    const uint8_t *from; /* the next to fetch */
    uint8_t *room;
    uint64_t *full;
    uint32_t left; /* tiles that are still to be fetched */

    template <class FORM> __device__ __forceinline__ void fetch(uint32_t stage)
    {
        if (left && threadIdx.x % 32 == 0)
            copy_bulk(room + stage * FORM::BYTES, from, FORM::BYTES, full + stage);
        from += FORM::BYTES;
        left -= left ? 1 : 0;
    }
};

/* The block's columns of x. The first warp fetches them, into the place of one that all warps have left. */
struct x_ring {
    enum { BYTES = NB * PACK_BYTES };
    const uint8_t *pack;
    uint64_t step;
    uint8_t *room;
    uint64_t *full, *empty; /* (stages); empty: an arrival of each warp */
    uint32_t columns;

    __device__ __forceinline__ void fetch(uint32_t column)
    {
        const uint32_t stage = column % WIDE_STAGES;
        copy_bulk(room + stage * BYTES, pack + column * step, BYTES, full + stage);
    }
    __device__ __forceinline__ const uint8_t *enter(uint32_t column)
    {
        const uint32_t stage = column % WIDE_STAGES;
        bar_wait(full + stage, column / WIDE_STAGES & 1);
        return room + stage * BYTES;
    }
    __device__ __forceinline__ void leave(uint32_t column)
    {
        copies_after();
        __syncwarp();
        bar_arrive(shared_address(empty + column % WIDE_STAGES), threadIdx.x % 32 == 0);
    }
    /* Within a column: the next one takes the place of the one before, once all warps have left that. */
    __device__ __forceinline__ void refill(uint32_t column)
    {
        if (threadIdx.x || !column || column - 1 + WIDE_STAGES >= columns)
            return;
        bar_wait(empty + (column - 1) % WIDE_STAGES, (column - 1) / WIDE_STAGES & 1);
        fetch(column - 1 + WIDE_STAGES);
    }
};

static __device__ __forceinline__ uint4 load_shared(const uint8_t *p)
{
    return *(const uint4 *)p;
}

/* acc += all columns. */
template <class FORM>
static __device__ __forceinline__ void wide_columns(float acc[NB][4], struct tile_ring &tiles,
                                                    struct x_ring &x)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, depth = WIDE_RING / FORM::BYTES;
    static_assert(WIDE_RING / FORM::BYTES <= WIDE_TILES_MOST, "barriers");
    for (uint32_t i = 0; i < depth; i++)
        tiles.fetch<FORM>(i);
    dep_wait();
    if (threadIdx.x == 0)
        for (uint32_t c = 0; c < x.columns && c < WIDE_STAGES; c++)
            x.fetch(c);
    uint32_t stage = 0, parity = 0;
    for (uint32_t column = 0; column < x.columns; column++) {
        const uint8_t *tile = tiles.room + stage * FORM::BYTES, *in = x.enter(column);
        bar_wait(tiles.full + stage, parity);
        const FORM w(tile_head(tile, FORM::BYTES, load_shared));
        float c[NB][4];
        uint32_t a[2][8];
        uint4 q[FORM::CHUNKS];
#pragma unroll
        for (int i = 0; i < NB; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[i][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            a[i / 8][i % 8] = 0;
        /* with mins c starts as their part, divided by d; a d of 0 stands for one that is almost 0 */
        const float d[2] = {!FORM::MINS || w.d[0] != 0.0f ? w.d[0] : 0x1p-60f,
                            !FORM::MINS || w.d[1] != 0.0f ? w.d[1] : 0x1p-60f};
        if constexpr (FORM::MINS) {
            const uint32_t min[4] = {w.min[0], w.min[1], w.min[0], w.min[1]};
            wgmma_fence();
            wgmma_64(c, min, wide_operand(in + PACK_SUMS), false);
            wgmma_commit();
            wgmma_done<NB>(c);
            const float ratio[2] = {-w.dmin[0] / d[0], -w.dmin[1] / d[1]};
#pragma unroll
            for (int i = 0; i < NB; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    c[i][j] *= ratio[j / 2];
        }
#pragma unroll
        for (int sub = 0; sub < 8; sub++) {
#pragma unroll
            for (int j = 0; j < FORM::CHUNKS; j++)
                if (FORM::first(j) == sub)
                    q[j] = load_shared(tile + 512 * j + 16 * lane);
            uint32_t *here = a[sub & 1];
            wide_wait<1>(here);
            w.sub(here, q, sub);
            if (sub == 1)
                x.refill(column);
            wgmma_fence();
            wgmma_64(c, here, wide_operand(in + 512 * sub), FORM::MINS || sub);
            wgmma_64(c, here + 4, wide_operand(in + 512 * sub + 256), true);
            wgmma_commit();
        }
        copies_after();
        __syncwarp();
        tiles.fetch<FORM>(stage);
        stage = stage + 1 < depth ? stage + 1 : 0;
        parity ^= stage == 0;
        float2 xs[NB];
#pragma unroll
        for (int i = 0; i < NB; i++)
            xs[i] = *(const float2 *)(in + i * PACK_BYTES + PACK_SCALE + 8 * t);
        wide_wait<0>(a[0]);
        wide_wait<0>(a[1]);
        wgmma_done<NB>(c);
#pragma unroll
        for (int i = 0; i < NB; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[i][j] += (j & 1 ? xs[i].y : xs[i].x) * (d[j / 2] * c[i][j]);
        x.leave(column);
    }
}

/* ---- results ---- */

/* The sums of a block, in its shared memory. */
struct wide_sums {
    const float *at;
    uint32_t rows; /* from stream to stream */

    /* of four outputs */
    __device__ __forceinline__ float4 get(uint32_t row, uint32_t stream) const
    {
        return *(const float4 *)(at + stream * rows + row);
    }
};

/* Which segment and which 64 of its outputs a unit is; in pairs gate and up take turns. */
struct wide_unit {
    uint32_t seg, at;
};

static __device__ __forceinline__ struct wide_unit wide_unit(const struct gemm_args &p, uint32_t unit)
{
    struct wide_unit u;
    u.seg = gemm_segment(p, unit);
    u.at = gemm_within(p, p.seg[u.seg], unit);
    return u;
}

/* Four outputs of a stream. */
struct wide_four {
    float v[4];
    float *to; /* NULL: there are none */
    uint32_t count;
};

static __device__ __forceinline__ struct wide_four wide_finish(const struct gemm_args &p,
                                                               const struct gemm_rows &rows,
                                                               const struct wide_sums &sums, uint32_t row,
                                                               uint32_t stream)
{
    const uint32_t units = blockDim.x / 128, step = p.paired ? 2 : 1,
                   unit = blockIdx.x * units + row / WIDE_UNIT * step;
    struct wide_four f = {{0.0f, 0.0f, 0.0f, 0.0f}, nullptr, 0};
    if (unit >= p.strips)
        return f;
    const struct wide_unit u = wide_unit(p, unit);
    const struct gemm_seg &seg = p.seg[u.seg];
    const uint32_t n = u.at * WIDE_UNIT + row % WIDE_UNIT,
                   in = row / WIDE_UNIT * step * WIDE_UNIT + row % WIDE_UNIT;
    if (n >= seg.w.n)
        return f;
    f.to = seg.y + (rows.first + stream) * seg.ldy + n;
    f.count = min(4u, seg.w.n - n);
    const float4 y = sums.get(in, stream);
    const float four[4] = {y.x, y.y, y.z, y.w};
    float up[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (p.paired) {
        const float4 v = sums.get(in + WIDE_UNIT, stream);
        up[0] = v.x, up[1] = v.y, up[2] = v.z, up[3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= f.count)
            continue;
        f.v[i] = four[i] + gemm_bias(seg, rows.expert, n + i);
        if (p.paired)
            f.v[i] = gemm_act(p, f.v[i], up[i] + gemm_bias(p.seg[1], rows.expert, n + i));
        else
            f.v[i] = f.v[i] * p.scale + (p.residual ? p.residual[stream * p.ldr + n + i] : 0.0f);
    }
    return f;
}

/* All streams, WIDE_AHEAD x 4 outputs a thread at a time: all are read before any is written. */
static __device__ __forceinline__ void wide_store(const struct gemm_args &p, const struct gemm_rows &rows,
                                                  const struct wide_sums &sums, uint32_t streams)
{
    const uint32_t outputs = blockDim.x / 128 / (p.paired ? 2 : 1) * WIDE_UNIT, count = streams * outputs / 4;
    for (uint32_t from = threadIdx.x; from < count; from += WIDE_AHEAD * blockDim.x) {
        struct wide_four f[WIDE_AHEAD];
#pragma unroll
        for (int j = 0; j < WIDE_AHEAD; j++) {
            const uint32_t i = 4 * (from + j * blockDim.x);
            f[j].to = nullptr;
            if (i < 4 * count)
                f[j] = wide_finish(p, rows, sums, i % outputs, i / outputs);
        }
#pragma unroll
        for (int j = 0; j < WIDE_AHEAD; j++) {
            if (!f[j].to)
                continue;
            if (f[j].count == 4 && ((uintptr_t)f[j].to & 15) == 0)
                *(float4 *)f[j].to = make_float4(f[j].v[0], f[j].v[1], f[j].v[2], f[j].v[3]);
            else
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (i < f[j].count)
                        f[j].to[i] = f[j].v[i];
        }
    }
}

/* grid: (units of 64 outputs by as many warpgroups, tiles of experts). Shared memory: the stages of x, then the
 * warps' rings. */
static __device__ __forceinline__ void wide_body(const struct gemm_args &p)
{
    extern __shared__ __align__(128) uint8_t room[];
    __shared__ uint64_t x_full[WIDE_STAGES], x_empty[WIDE_STAGES], full[WIDE_WARPS][WIDE_TILES_MOST];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t units = blockDim.x / 128, columns = (p.k + 255) / 256;
    if (threadIdx.x < WIDE_STAGES) {
        bar_init(x_full + threadIdx.x, 1);
        bar_init(x_empty + threadIdx.x, blockDim.x / 32);
    }
    if (lane < WIDE_TILES_MOST)
        bar_init(&full[warp][lane], 1);
    bar_made();
    __syncthreads();
    const struct moe_tile tile = gemm_tile_of(p);
    if (tile.expert < 0)
        return;
    const struct gemm_rows all = {tile.rows, (uint32_t)tile.expert, blockIdx.y * 8ull * NB};
    const struct wide_unit u = wide_unit(p, min(blockIdx.x * units + warp / 4, p.strips - 1));
    const struct mat &w = p.seg[u.seg].w;
    struct x_ring x = {p.x + (uint64_t)blockIdx.y * columns * NB * PACK_BYTES,
                       (uint64_t)p.groups * PACK_BYTES,
                       room,
                       x_full,
                       x_empty,
                       columns};
    /* strips past the last one repeat it; their results are not stored */
    const uint32_t strip = min(u.at * 4 + warp % 4, (w.n - 1) / TILE_ROWS);
    struct tile_ring tiles = {w.base + all.expert * w.each + strip * w.stride,
                              room + WIDE_STAGES * NB * PACK_BYTES + warp * WIDE_RING, full[warp], columns};
    float acc[NB][4] = {};
    if (w.fmt == FMT_Q4_K_TILE)
        wide_columns<form_q4k>(acc, tiles, x);
    else if (w.fmt == FMT_Q6_K_TILE)
        wide_columns<form_q6k>(acc, tiles, x);
    else if (w.fmt == FMT_MXFP4)
        wide_columns<form_mxfp4>(acc, tiles, x);
    else
        wide_columns<form_q8>(acc, tiles, x);
    __syncthreads();
    /* (streams)[rows], the stages being free now; 4 more floats a row keep the lanes' banks apart */
    const uint32_t rows = units * WIDE_UNIT, ld = rows + 4;
    float *sums = (float *)room;
#pragma unroll
    for (int nb = 0; nb < NB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[(8 * nb + 2 * t + i % 2) * ld + 16 * warp + g + i / 2 * 8] = acc[nb][i];
    __syncthreads();
    wide_store(p, all, {sums, ld}, min(all.m, (uint32_t)NB * 8));
}

extern "C" __global__ void __launch_bounds__(WIDE_WARPS * 32, 1)
    gemm_wide(const __grid_constant__ struct gemm_args p)
{
    wide_body(p);
}

#endif
