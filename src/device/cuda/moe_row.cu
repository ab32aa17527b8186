/* Experts of one row, weights in tiles. Behind the router (moe.cu) there are two kernels:
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

/* Sums of the lane's rows g and g + 8 over the four lanes that share them; to[row] from one of those. */
static __device__ __forceinline__ void row_leave(float acc[2], float *to)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        acc[i] += __shfl_xor_sync(~0u, acc[i], 1);
        acc[i] += __shfl_xor_sync(~0u, acc[i], 2);
        if (lane % 4 == 0)
            to[lane / 4 + 8 * i] = acc[i];
    }
}

enum { UP_COLUMNS = 2 }; /* of a warp where the row is normed */

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

/* A block has p.pairs pairs of strips of gate and up (or strips of up alone), p.split warps for each strip. */
extern "C" __global__ void __launch_bounds__(GEMM_DEEP * 32, 1)
    moe_row_up(const __grid_constant__ struct moe_row_args p)
{
    extern __shared__ __align__(128) uint8_t row_room[]; /* (columns) of ROW_COLUMN bytes */
    __shared__ struct expert_choice c;
    __shared__ float room[GEMM_DEEP][TILE_ROWS], sums[GEMM_DEEP];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32,
                   columns = (p.k + 255) / 256, kinds = p.part[0].gate.base ? 2 : 1;
    float v[UP_COLUMNS][8], w[UP_COLUMNS][8], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < UP_COLUMNS; i++) {
        const uint32_t at = 256 * (warp + warps * i) + 8 * lane;
        if (p.norm.w && at < p.k)
            load8(p.norm.w + at, p.k - at, true, w[i]);
        else
#pragma unroll
            for (int j = 0; j < 8; j++)
                w[i][j] = 1.0f;
    }
    dep_wait();
    dep_launch(); /* not before: the successor reads the logits without waiting for this kernel */
#pragma unroll
    for (int i = 0; i < UP_COLUMNS; i++) {
        const uint32_t at = 256 * (warp + warps * i) + 8 * lane;
        load8(p.x + at, at < p.k ? p.k - at : 0, true, v[i]);
    }
    choice_load(p.route, c, p.route.logits);
#pragma unroll
    for (int i = 0; i < UP_COLUMNS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            squares += v[i][j] * v[i][j];
    squares = warp_sum(squares);
    if (lane == 0)
        sums[warp] = squares;
    choice_experts(p.route, c);
    __syncthreads();
    const uint32_t strip = warp / p.split, part = warp % p.split,
                   pair = min(blockIdx.x * p.pairs + strip / kinds, p.pairs_all - 1);
    const struct row_pair mine(p, pair);
    const struct row_expert e(p, c, mine.slot);
    const struct mat &m = kinds == 2 && strip % 2 == 0 ? e.part.gate : e.part.up;
    const uint32_t from = columns * part / p.split, to = columns * (part + 1) / p.split;
    const uint8_t *tiles = strip_of(m, e.expert, mine.strip, from);
    struct tile_ahead ahead(m.fmt, tiles);
    squares = warp_sum(lane < warps ? sums[lane] : 0.0f);
    const float scale = p.norm.kind == NORM_NONE ? 1.0f : rsqrtf(squares / (float)p.k + p.norm.eps);
#pragma unroll
    for (int i = 0; i < UP_COLUMNS; i++) {
        if (warp + warps * i >= columns)
            break;
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[i][j] *= scale * w[i][j];
        row_put(row_room + (warp + warps * i) * ROW_COLUMN, v[i]);
    }
    __syncthreads();
    float acc[2] = {0.0f, 0.0f};
    row_product(acc, ahead, m.fmt, tiles, from, to, row_room);
    row_leave(acc, room[warp]);
    __syncthreads();
    const uint32_t i = threadIdx.x / TILE_ROWS, r = threadIdx.x % TILE_ROWS, at = blockIdx.x * p.pairs + i;
    if (i >= p.pairs || at >= p.pairs_all)
        return;
    const struct row_pair to_pair(p, at);
    const struct row_expert o(p, c, to_pair.slot);
    const uint32_t n = to_pair.strip * TILE_ROWS + r, f = o.part.up.n;
    if (n >= f)
        return;
    float y[2] = {0.0f, 0.0f};
    for (uint32_t k = 0; k < kinds; k++)
        for (uint32_t j = 0; j < p.split; j++)
            y[k] += room[(i * kinds + k) * p.split + j][r];
    const uint64_t b = (uint64_t)o.expert * f + n;
    float *h = p.h + (uint64_t)to_pair.slot * p.part[0].up.n + n; /* the shared expert's is the last */
    if (kinds == 1) {
        *h = act_one(o.part.act, y[0] + (o.part.up_bias ? o.part.up_bias[b] : 0.0f));
        return;
    }
    const float gate = y[0] + (o.part.gate_bias ? o.part.gate_bias[b] : 0.0f),
                up = y[1] + (o.part.up_bias ? o.part.up_bias[b] : 0.0f);
    *h = o.part.act == ACT_SWIGLU_OAI ? swiglu_oai(p.alpha, p.limit, gate, up)
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

/* A block a strip of 16 outputs; its warps share the columns of all experts. */
extern "C" __global__ void __launch_bounds__(GEMM_DEEP * 32, 1)
    moe_row_down(const __grid_constant__ struct moe_row_args p)
{
    extern __shared__ __align__(128) uint8_t row_room[]; /* (warps, most) of ROW_COLUMN bytes */
    __shared__ struct expert_choice c;
    __shared__ float room[GEMM_DEEP][TILE_ROWS];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t from = p.columns_all * warp / warps, to = p.columns_all * (warp + 1) / warps,
                   most = (p.columns_all + warps - 1) / warps;
    const bool shared = p.part[1].up.base != NULL;
    choice_load(p.route, c, p.route.logits);
    choice_experts(p.route, c);
    __syncthreads();
    if (warp == warps - 1)
        choice_weights(p.route, c);
    struct row_column here(p, from < to ? from : 0);
    const struct row_expert first(p, c, here.slot);
    const uint8_t *tiles = strip_of(first.part.down, first.expert, blockIdx.x, here.at);
    struct tile_ahead ahead(first.part.down.fmt, tiles);
    __syncthreads();
    const float alone = !shared         ? 0.0f
                        : p.shared_gate ? 1.0f / (1.0f + expf(-__ldcg(p.route.logits + p.route.experts)))
                                        : 1.0f;
    uint8_t *x = row_room + warp * most * ROW_COLUMN;
    dep_wait();
    for (uint32_t i = from; i < to; i++) {
        const struct row_column in(p, i);
        const uint32_t f = p.part[in.slot < p.route.used ? 0 : 1].up.n, at = 256 * in.at + 8 * lane;
        const float *h = p.h + (uint64_t)in.slot * p.part[0].up.n;
        uint8_t *to_x = x + (i - from) * ROW_COLUMN;
        float v[8];
        load8(h + at, at < f ? f - at : 0, is_aligned(h, 0), v);
        row_put(to_x, v);
        if (lane == 0)
            *(float *)(to_x + ROW_SCALE) *= in.slot < p.route.used ? c.weight[in.slot] : alone;
    }
    __syncwarp();
    float acc[2] = {0.0f, 0.0f};
    for (uint32_t i = from; i < to;) {
        const struct row_expert e(p, c, here.slot);
        const struct mat &m = e.part.down;
        const uint32_t end = min(to, i + (here.slot < p.route.used ? p.columns - here.at : p.columns_all));
        if (i > from) {
            tiles = strip_of(m, e.expert, blockIdx.x, here.at);
            ahead = tile_ahead(m.fmt, tiles);
        }
        row_product(acc, ahead, m.fmt, tiles, i - from, end - from, x);
        i = end;
        here.slot++, here.at = 0;
    }
    row_leave(acc, room[warp]);
    __syncthreads();
    const uint32_t n = blockIdx.x * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || n >= p.n)
        return;
    float y = 0.0f;
    for (uint32_t j = 0; j < warps; j++)
        y += room[j][threadIdx.x];
    if (p.part[0].down_bias)
        for (uint32_t j = 0; j < p.route.used; j++)
            y += c.weight[j] * p.part[0].down_bias[(uint64_t)c.expert[j] * p.n + n];
    if (shared && p.part[1].down_bias)
        y += alone * p.part[1].down_bias[n];
    p.out[n] = y * p.scale + (p.residual ? p.residual[n] : 0.0f);
}
