/* Experts of one row or two, each by itself (blockIdx.y), weights in tiles. Behind the router (moe.cu) there are
 * two kernels:
 *   moe_row_up    chooses the experts in every block, norms the row, multiplies with gate and up of the chosen ones
 *                 and applies the activation
 *   moe_row_down  chooses once more, while its predecessor runs, and has the first weights on their way when that
 *                 ends; one product over the columns of all chosen experts, and what follows
 * The shared expert is one more, with matrices of its own. */
#include "device/cuda/choice.cuh"
#include "device/cuda/gemm_row.cuh"

/* One of the chosen experts, or behind them the shared one. */
struct row_expert {
    const struct moe_part &part;
    uint32_t expert; /* which matrix */

    __device__ __forceinline__ row_expert(const struct moe_row_args &p, const struct expert_choice &c,
                                          uint32_t slot)
        : part(p.part[slot < p.route.used ? 0 : 1]),
          expert(slot < p.route.used ? (uint32_t)c.expert[slot] : 0)
    {
    }
};

static __device__ __forceinline__ const uint8_t *strip_of(const struct mat &w, uint32_t expert,
                                                          uint32_t strip, uint32_t column)
{
    return w.base + expert * w.each + strip * w.stride + (uint64_t)column * layout_tile_bytes(w.fmt);
}

/* Which 16 outputs of which expert pair number i is. */
struct row_pair {
    uint32_t slot, strip;

    __device__ __forceinline__ row_pair(const struct moe_row_args &p, uint32_t i)
    {
        const uint32_t chosen = p.route.used * p.strips;
        slot = i < chosen ? i / p.strips : p.route.used;
        strip = i < chosen ? i % p.strips : i - chosen;
    }
};

/* Eight values of a row, whose length is a multiple of eight. */
static __device__ __forceinline__ void row_load(const float *x, bool there, float v[8])
{
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f), a = there ? __ldcg((const float4 *)x) : zero,
                 b = there ? __ldcg((const float4 *)(x + 4)) : zero;
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

struct row_up_room {
    struct expert_choice c;
    float room[MOE_WARPS][TILE_ROWS], sums[MOE_WARPS];
    float bias[MOE_WARPS * TILE_ROWS]; /* of the block's outputs: gate, then up */
};
static_assert(sizeof(struct row_up_room) <= SHARED_OWN, "");

/* A block has p.pairs pairs of strips of gate and up (or strips of up alone), p.split warps for each strip, and at least as
 * many warps as the row has columns. Most of this code runs once a launch, which costs what it takes to fetch it: it is
 * short rather than unrolled. */
template <int N> static __device__ __forceinline__ void row_up(const struct moe_row_args &p)
{
    extern __shared__ __align__(128) uint8_t row_room[]; /* (columns) of ROW_COLUMN bytes */
    __shared__ struct row_up_room s;
    struct expert_choice &c = s.c;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32,
                   columns = (p.k + 255) / 256, kinds = p.part[0].gate.base ? 2 : 1, own = 8 * threadIdx.x;
    /* what needs no predecessor: which strip this warp multiplies, and which output this thread adds up */
    const uint32_t strip = warp / p.split, part = warp % p.split, from = columns * part / p.split,
                   to = columns * (part + 1) / p.split, i = threadIdx.x / TILE_ROWS,
                   at = min(blockIdx.x * p.pairs + i, p.pairs_all - 1);
    const struct row_pair mine(p, min(blockIdx.x * p.pairs + strip / kinds, p.pairs_all - 1)), last(p, at);
    float v[8], w[8];
    row_load(p.norm.w + own, p.norm.w && own < p.k, w);
    args_ahead(p);
    dep_wait();
    dep_launch(); /* not before: the successor reads the logits without waiting for this kernel */
    row_load(p.x + blockIdx.y * p.ldx + own, own < p.k, v);
    choice_load(p.route, c, p.route.logits + blockIdx.y * p.route.ld);
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++)
        squares += v[j] * v[j];
    squares = warp_sum(squares);
    if (lane == 0)
        s.sums[warp] = squares;
    choice_experts(p.route, c);
    __syncthreads();
    const struct row_expert e(p, c, mine.slot);
    const struct mat &m = kinds == 2 && strip % 2 == 0 ? e.part.gate : e.part.up;
    const uint8_t *tiles = strip_of(m, e.expert, mine.strip, from);
    tile_ahead_of<N> ahead(m.fmt, tiles);
    const uint32_t r = threadIdx.x % TILE_ROWS, n = last.strip * TILE_ROWS + r;
    const struct row_expert o(p, c, last.slot);
    const uint32_t f = o.part.up.n;
    const uint32_t above = kinds == 2 ? p.pairs * TILE_ROWS : 0; /* where those of up begin */
    const bool stores = i < p.pairs && blockIdx.x * p.pairs + i < p.pairs_all && n < f;
    if (stores && o.part.gate_bias)
        copy4(&s.bias[threadIdx.x], o.part.gate_bias + (uint64_t)o.expert * f + n);
    if (stores && o.part.up_bias)
        copy4(&s.bias[above + threadIdx.x], o.part.up_bias + (uint64_t)o.expert * f + n);
    if (p.route.scale_input && warp == warps - 1)
        choice_weights(p.route, c);
    if (warp < columns) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] *= p.norm.w ? w[j] : 1.0f;
        row_put(row_room + warp * ROW_COLUMN, v);
    }
    /* the norm of squares is a factor of all results, as in gemm_tile_1 */
    squares = warp_sum(lane < warps ? s.sums[lane] : 0.0f);
    const float scale = p.norm.kind == NORM_NONE ? 1.0f : rsqrtf(squares / (float)p.k + p.norm.eps);
    __syncthreads();
    float acc[2] = {0.0f, 0.0f};
    row_product<N>(acc, ahead, m.fmt, tiles, from, to, row_room);
    row_leave(acc, scale, s.room[warp]);
    copies_wait();
    __syncthreads();
    if (!stores)
        return;
    float gate = 0.0f, up = 0.0f;
#pragma unroll 1
    for (uint32_t j = 0; j < p.split; j++) {
        gate += s.room[i * kinds * p.split + j][r];
        up += s.room[(i * kinds + kinds - 1) * p.split + j][r];
    }
    if (p.route.scale_input && last.slot < p.route.used) /* as if x were scaled */
        gate *= c.weight[last.slot], up *= c.weight[last.slot];
    gate += o.part.gate_bias ? s.bias[threadIdx.x] : 0.0f;
    up += o.part.up_bias ? s.bias[above + threadIdx.x] : 0.0f;
    p.h[blockIdx.y * p.ldh + (uint64_t)last.slot * p.part[0].up.n + n] = /* the shared expert's is the last */
        kinds == 1                     ? act_one(o.part.act, up)
        : o.part.act == ACT_SWIGLU_OAI ? swiglu_oai(p.alpha, p.limit, gate, up)
                                       : act_one(o.part.act, gate) * up;
}

/* Where column i of all is: of an expert's p.columns each, then of the shared one. */
struct row_column {
    uint32_t slot, at;

    __device__ __forceinline__ row_column(const struct moe_row_args &p, uint32_t i)
    {
        const uint32_t chosen = p.route.used * p.columns;
        slot = i < chosen ? i / p.columns : p.route.used;
        at = i < chosen ? i % p.columns : i - chosen;
    }
};

struct row_down_room {
    struct expert_choice c;
    float room[GEMM_DEEP][TILE_ROWS];
    float residual[TILE_ROWS], bias[MOE_USED_MOST + 1][TILE_ROWS]; /* of each expert, then the shared one */
};
static_assert(sizeof(struct row_down_room) <= SHARED_OWN, "");

/* A block a strip of 16 outputs; its warps share the columns of all experts. */
template <int N> static __device__ __forceinline__ void row_down(const struct moe_row_args &p)
{
    extern __shared__ __align__(128) uint8_t row_room[]; /* (warps, most) of ROW_COLUMN bytes */
    __shared__ struct row_down_room s;
    struct expert_choice &c = s.c;
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t from = p.columns_all * warp / warps, to = p.columns_all * (warp + 1) / warps,
                   most = (p.columns_all + warps - 1) / warps;
    const bool shared = p.part[1].up.base != NULL;
    choice_load(p.route, c, p.route.logits + blockIdx.y * p.route.ld);
    choice_experts(p.route, c);
    __syncthreads();
    if (warp == warps - 1) {
        if (!p.route.scale_input)
            choice_weights(p.route, c);
        else if (lane < p.route.used)
            c.weight[lane] = 1.0f;
    }
    struct row_column here(p, from < to ? from : 0);
    const struct row_expert first(p, c, here.slot);
    const uint8_t *tiles = strip_of(first.part.down, first.expert, blockIdx.x, here.at);
    tile_ahead_of<N> ahead(first.part.down.fmt, tiles);
    __syncthreads();
    /* what is added at the end; the router, which moe_row_up has waited for, has waited for the residual */
    const uint32_t n = blockIdx.x * TILE_ROWS + threadIdx.x % TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    if (n < p.n && threadIdx.x < TILE_ROWS && p.residual)
        copy4(&s.residual[row], p.residual + blockIdx.y * p.ldr + n);
    for (uint32_t j = threadIdx.x / TILE_ROWS; n < p.n && j < p.route.used + 1; j += blockDim.x / TILE_ROWS) {
        const struct row_expert e(p, c, j);
        if (e.part.down_bias)
            copy4(&s.bias[j][row], e.part.down_bias + (uint64_t)e.expert * p.n + n);
    }
    const float alone = !shared ? 0.0f : p.shared_gate ? 1.0f / (1.0f + expf(-c.shared)) : 1.0f;
    uint8_t *x = row_room + warp * most * ROW_COLUMN;
    args_ahead(p);
    dep_wait();
#pragma unroll 1
    for (uint32_t i = from; i < to; i++) {
        const struct row_column in(p, i);
        const uint32_t f = p.part[in.slot < p.route.used ? 0 : 1].up.n, at = 256 * in.at + 8 * lane;
        const float *h = p.h + blockIdx.y * p.ldh + (uint64_t)in.slot * p.part[0].up.n;
        uint8_t *to_x = x + (i - from) * ROW_COLUMN;
        float v[8];
        row_load(h + at, at < f, v);
        row_put(to_x, v);
        if (lane == 0)
            *(float *)(to_x + ROW_SCALE) *= in.slot < p.route.used ? c.weight[in.slot] : alone;
    }
    __syncwarp();
    float acc[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (uint32_t i = from; i < to;) {
        const struct row_expert e(p, c, here.slot);
        const struct mat &m = e.part.down;
        const uint32_t end = min(to, i + (here.slot < p.route.used ? p.columns - here.at : p.columns_all));
        if (i > from) {
            tiles = strip_of(m, e.expert, blockIdx.x, here.at);
            ahead = tile_ahead_of<N>(m.fmt, tiles);
        }
        row_product<N>(acc, ahead, m.fmt, tiles, i - from, end - from, x);
        i = end;
        here.slot++, here.at = 0;
    }
    row_leave(acc, 1.0f, s.room[warp]);
    copies_wait();
    __syncthreads();
    if (threadIdx.x >= TILE_ROWS || n >= p.n)
        return;
    float y = 0.0f;
#pragma unroll 4
    for (uint32_t j = 0; j < warps; j++)
        y += s.room[j][threadIdx.x];
    if (p.part[0].down_bias)
        for (uint32_t j = 0; j < p.route.used; j++)
            y += c.weight[j] * s.bias[j][row];
    if (shared && p.part[1].down_bias)
        y += alone * s.bias[p.route.used][row];
    p.out[blockIdx.y * p.ldo + n] = y * p.scale + (p.residual ? s.residual[row] : 0.0f);
}

/* _4: forms of four chunks, which need fewer registers, so that more warps fit. */
#define ROW_KERNEL(name, body, bounds, chunks)                                                               \
    extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ struct moe_row_args p)  \
    {                                                                                                        \
        body<chunks>(p);                                                                                     \
    }
ROW_KERNEL(moe_row_up, row_up, (GEMM_DEEP * 32, 1), CHUNKS_MOST)
ROW_KERNEL(moe_row_up_4, row_up, (MOE_WARPS * 32, 1), 4)
ROW_KERNEL(moe_row_down, row_down, (GEMM_DEEP * 32, 1), CHUNKS_MOST)
