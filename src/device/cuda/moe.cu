/* Experts: the choice for each row, the grouping of (row, expert) pairs so that an expert's rows lie
 * together in tiles, and the weighted sum at the end. */
#include "device/cuda/choice.cuh"
#include "device/cuda/cluster.cuh"

/* ---- the router ---- */

/* Four weights of an output, as they are in memory. FMT is a constant, so that no branch keeps one load from the next. */
template <int FMT>
static __device__ __forceinline__ uint4 router_load(const struct mat &w, uint32_t n, uint32_t i)
{
    const uint8_t *row = w.base + n * w.stride;
    if (FMT == FMT_F32)
        return *(const uint4 *)(row + 4 * (uint64_t)i);
    const uint2 v = *(const uint2 *)(row + 2 * (uint64_t)i);
    return make_uint4(v.x, v.y, 0, 0);
}

static __device__ __forceinline__ float4 router_values(uint32_t fmt, const uint4 &v)
{
    if (fmt == FMT_F32)
        return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    if (fmt == FMT_F16) {
        const float2 a = __half22float2(*(const __half2 *)&v.x), b = __half22float2(*(const __half2 *)&v.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

template <int FMT>
static __device__ __forceinline__ float4 router_weights(const struct mat &w, uint32_t n, uint32_t i)
{
    return router_values(FMT, router_load<FMT>(w, n, i));
}

static __device__ __forceinline__ float4 router_norm(const struct router_args &p, uint32_t i)
{
    return p.norm.w ? *(const float4 *)(p.norm.w + i) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
}

static __device__ __forceinline__ float dot4(const float4 &a, const float4 &b)
{
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

static __device__ __forceinline__ float4 mul4(const float4 &a, const float4 &b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

/* Output n: an expert, or behind them the weight of the shared expert. */
struct router_output {
    const struct mat &w;
    uint32_t n;

    __device__ __forceinline__ router_output(const struct router_args &p, uint32_t i)
        : w(i < p.w.n ? p.w : p.shared), n(i < p.w.n ? i : 0)
    {
    }
};

static __device__ __forceinline__ float router_bias(const struct router_args &p, uint32_t i)
{
    return p.bias && i < p.w.n ? p.bias[i] : 0.0f;
}

static __device__ __forceinline__ float router_scale(const struct router_args &p, float squares)
{
    return p.norm.kind == NORM_NONE ? 1.0f : rsqrtf(squares / (float)p.k + p.norm.eps);
}

/* Four outputs' weights of four columns, as they are in memory. */
template <int FMT>
static __device__ __forceinline__ void router_four(const struct router_args &p, uint32_t out, uint32_t at,
                                                   uint4 w[ROUTER_OUTPUTS])
{
#pragma unroll
    for (int j = 0; j < ROUTER_OUTPUTS; j++) {
        const struct router_output o(p, min(out + j, p.outputs - 1));
        w[j] = at < p.k ? router_load<FMT>(o.w, o.n, at) : make_uint4(0, 0, 0, 0);
    }
}

static __device__ __forceinline__ void router_four(const struct router_args &p, uint32_t out, uint32_t at,
                                                   uint4 w[ROUTER_OUTPUTS])
{
    if (p.w.fmt == FMT_F32)
        router_four<FMT_F32>(p, out, at, w);
    else if (p.w.fmt == FMT_F16)
        router_four<FMT_F16>(p, out, at, w);
    else
        router_four<FMT_BF16>(p, out, at, w);
}

/* What the warps that share a row's columns have summed: of four outputs, and squares. */
struct router_sums {
    float output[ROUTER_OUTPUTS], squares;
};

static __device__ __forceinline__ struct router_sums router_sum(const float acc[ROUTER_OUTPUTS],
                                                                float squares)
{
    struct router_sums s;
#pragma unroll
    for (int j = 0; j < ROUTER_OUTPUTS; j++)
        s.output[j] = warp_sum(acc[j]);
    s.squares = warp_sum(squares);
    return s;
}

/* Output out + j of a row, from the sums of `warps` warps. */
static __device__ __forceinline__ void router_store(const struct router_args &p, const struct router_sums *s,
                                                    uint32_t warps, uint32_t row, uint32_t out, uint32_t j,
                                                    float bias)
{
    if (row >= p.m || out + j >= p.outputs)
        return;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
    for (uint32_t i = 0; i < warps; i++) {
        sum += s[i].output[j];
        squares += s[i].squares;
    }
    p.logits[(uint64_t)row * p.outputs + out + j] = sum * router_scale(p, squares) + bias;
}

/* One row, a block four outputs: its warps share the columns, and have their weights before the row is there. Code that runs
 * once has to be fetched, and takes longer for that than for what it does: all of it is short. */
extern "C" __global__ void __launch_bounds__(32 * ROUTER_WARPS)
    moe_router_1(const __grid_constant__ struct router_args p)
{
    __shared__ struct router_sums sums[ROUTER_WARPS];
    dep_launch();
    const uint32_t out = blockIdx.x * ROUTER_OUTPUTS;
    const float bias = router_bias(p, out + threadIdx.x % ROUTER_OUTPUTS);
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float acc[ROUTER_OUTPUTS] = {}, squares = 0.0f;
#pragma unroll 1
    for (uint32_t from = 0; from < p.k; from += 4 * blockDim.x) {
        const uint32_t at = from + 4 * threadIdx.x;
        uint4 w[ROUTER_OUTPUTS];
        router_four(p, out, at, w);
        const float4 norm = at < p.k ? router_norm(p, at) : zero;
        if (!from) {
            args_ahead(p);
            dep_wait();
        }
        const float4 x = at < p.k ? *(const float4 *)(p.x + at) : zero, normed = mul4(x, norm);
        squares += dot4(x, x);
        /* weights are not touched before the row is there: that would wait for them */
#pragma unroll
        for (int j = 0; j < ROUTER_OUTPUTS; j++)
            acc[j] += dot4(normed, router_values(p.w.fmt, w[j]));
    }
    const struct router_sums mine = router_sum(acc, squares);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < ROUTER_OUTPUTS)
        router_store(p, sums, blockDim.x / 32, 0, out, threadIdx.x, bias);
}

enum { ROUTER_ROWS = 8, ROUTER_COLUMNS = 4 * 32 * ROUTER_WARPS };

/* The same for eight rows, of which two warps share the columns; the weights are in shared memory. */
extern "C" __global__ void __launch_bounds__(32 * ROUTER_WARPS, 2)
    moe_router_8(const __grid_constant__ struct router_args p)
{
    enum { EACH = ROUTER_WARPS / ROUTER_ROWS, STEPS = ROUTER_COLUMNS / 128 / EACH };
    __shared__ __align__(16) float4 all[ROUTER_OUTPUTS][ROUTER_COLUMNS / 4];
    __shared__ struct router_sums sums[ROUTER_ROWS][EACH];
    dep_launch();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, out = blockIdx.x * ROUTER_OUTPUTS,
                   row = blockIdx.y * ROUTER_ROWS + warp / EACH;
    const float *x = p.x + min(row, p.m - 1) * p.ldx;
    float acc[ROUTER_OUTPUTS] = {}, squares = 0.0f;
    for (uint32_t from = 0; from < p.k; from += ROUTER_COLUMNS) {
        const uint32_t first = 32 * STEPS * (warp % EACH) + lane; /* in fours */
        const uint32_t mine = from + 4 * threadIdx.x;
        float4 v[STEPS];
        uint4 w[ROUTER_OUTPUTS];
        router_four(p, out, mine, w);
        const float4 norm = mine < p.k ? router_norm(p, mine) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (from)
            __syncthreads();
#pragma unroll
        for (int j = 0; j < ROUTER_OUTPUTS; j++)
            all[j][threadIdx.x] = mul4(router_values(p.w.fmt, w[j]), norm);
        if (!from) {
            args_ahead(p);
            dep_wait();
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint32_t at = from + 4 * (first + 32 * i);
            v[i] = at < p.k ? *(const float4 *)(x + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            squares += dot4(v[i], v[i]);
#pragma unroll
            for (int j = 0; j < ROUTER_OUTPUTS; j++)
                acc[j] += dot4(v[i], all[j][first + 32 * i]);
        }
    }
    const struct router_sums mine = router_sum(acc, squares);
    if (lane == 0)
        sums[warp / EACH][warp % EACH] = mine;
    __syncthreads();
    if (threadIdx.x < ROUTER_ROWS * ROUTER_OUTPUTS)
        router_store(p, sums[threadIdx.x / ROUTER_OUTPUTS], EACH,
                     blockIdx.y * ROUTER_ROWS + threadIdx.x / ROUTER_OUTPUTS, out,
                     threadIdx.x % ROUTER_OUTPUTS, router_bias(p, out + threadIdx.x % ROUTER_OUTPUTS));
}

enum { ROUTER_CHUNK = 512 };

/* Products of EACH outputs with a chunk of the rows. */
template <int FMT, int EACH>
static __device__ __forceinline__ void router_chunk(const struct router_args &p, uint32_t out, uint32_t from,
                                                    const float (*x)[ROUTER_CHUNK],
                                                    float acc[EACH][ROUTER_ROWS])
{
    enum { STEPS = ROUTER_CHUNK / 128 };
    const uint32_t lane = threadIdx.x % 32;
    float4 w[STEPS][EACH];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t at = from + 4 * lane + 128 * i;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const struct router_output o(p, min(out + j, p.outputs - 1));
            w[i][j] = at < p.k ? router_weights<FMT>(o.w, o.n, at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int r = 0; r < ROUTER_ROWS; r++) {
            const float4 v = *(const float4 *)&x[r][4 * lane + 128 * i];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                acc[j][r] += dot4(v, w[i][j]);
        }
}

/* Eight rows a block, a warp EACH outputs of one form; the rows go through shared memory, times the weights of the norm. */
template <int FMT, int EACH>
static __device__ __forceinline__ void router_many(const struct router_args &p, uint32_t out,
                                                   float (*x)[ROUTER_CHUNK], float *scale)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * ROUTER_ROWS;
    float acc[EACH][ROUTER_ROWS] = {}, squares = 0.0f;
    const float *mine = p.x + (uint64_t)min(first + warp, p.m - 1) * p.ldx;
    for (uint32_t from = 0; from < p.k; from += ROUTER_CHUNK) {
        float4 v[ROUTER_CHUNK / 128];
#pragma unroll
        for (int i = 0; i < ROUTER_CHUNK / 128; i++) {
            const uint32_t at = from + 4 * lane + 128 * i;
            v[i] = at < p.k ? *(const float4 *)(mine + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROUTER_CHUNK / 128; i++) {
            const uint32_t at = from + 4 * lane + 128 * i;
            squares += dot4(v[i], v[i]);
            *(float4 *)&x[warp][at - from] = at < p.k ? mul4(v[i], router_norm(p, at)) : v[i];
        }
        __syncthreads();
        router_chunk<FMT, EACH>(p, out, from, x, acc);
    }
    squares = warp_sum(squares);
    if (lane == 0)
        scale[warp] = router_scale(p, squares);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
        for (int r = 0; r < ROUTER_ROWS; r++) {
            const float sum = warp_sum(acc[j][r]);
            if (lane == 0 && out + j < p.outputs && first + r < p.m) {
                p.logits[(uint64_t)(first + r) * p.outputs + out + j] =
                    sum * scale[r] + router_bias(p, out + j);
            }
        }
}

extern "C" __global__ void __launch_bounds__(256) moe_router_32(const __grid_constant__ struct router_args p)
{
    enum { EACH = ROUTER_OUTPUTS };
    __shared__ __align__(16) float x[ROUTER_ROWS][ROUTER_CHUNK];
    __shared__ float scale[ROUTER_ROWS];
    dep_launch();
    dep_wait();
    const uint32_t out = (blockIdx.x * ROUTER_ROWS + threadIdx.x / 32) * EACH;
    if (p.w.fmt == FMT_F32)
        router_many<FMT_F32, EACH>(p, out, x, scale);
    else if (p.w.fmt == FMT_F16)
        router_many<FMT_F16, EACH>(p, out, x, scale);
    else
        router_many<FMT_BF16, EACH>(p, out, x, scale);
}

/* ---- choice and grouping ---- */

/* A block a row. */
extern "C" __global__ void __launch_bounds__(256) moe_route(const __grid_constant__ struct route_args p)
{
    __shared__ struct expert_choice c;
    dep_launch();
    dep_wait();
    const uint64_t row = blockIdx.x;
    choice_load(p, c, p.logits + row * p.ld);
    choice_experts(p, c);
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    choice_weights(p, c);
    if (threadIdx.x < p.used) {
        p.expert[row * p.used + threadIdx.x] = c.expert[threadIdx.x];
        p.weight[row * p.used + threadIdx.x] = c.weight[threadIdx.x];
    }
}

/* Exclusive sum over the threads of a block; `room` is a word for each warp. */
static __device__ __forceinline__ uint32_t block_before(uint32_t v, uint32_t *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t w = __shfl_up_sync(~0u, sum, o);
        sum += lane >= o ? w : 0;
    }
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++)
        sum += room[i];
    return sum - v;
}

/* The pairs of expert e, in order, to the slots from `slot` on: a warp looks at 128 of them at a time. */
static __device__ __forceinline__ void group_expert(const struct group_args &p, const uint16_t *chosen,
                                                    uint32_t e, uint32_t slot)
{
    const uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1, pairs = p.m * p.used;
    for (uint32_t base = 0; base < pairs; base += 128) {
        const ushort4 four = *(const ushort4 *)(chosen + base + 4 * lane);
        const bool is[4] = {four.x == e, four.y == e, four.z == e, four.w == e};
        uint32_t mine = slot, all = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t mask = __ballot_sync(~0u, is[j]);
            mine += __popc(mask & before);
            all += __popc(mask);
        }
        slot += all;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (is[j]) {
                const uint32_t i = base + 4 * lane + j;
                p.slot[i] = (int)mine;
                if (p.weight)
                    p.slot_weight[mine] = p.weight[i];
                p.slot_row[mine++] = (int)(i / p.used);
            }
    }
}

/* What a block knows of all pairs: how many each expert has, and which is its first tile. */
template <int EXPERTS, int THREADS> struct group_room {
    uint32_t count[EXPERTS], first[EXPERTS], warp[THREADS / 32], total;
};

/* Pair i, of expert c. */
static __device__ __forceinline__ void group_count(const struct group_args &p, uint32_t *count, uint32_t i,
                                                   uint32_t c)
{
    if (c >= p.first && c < p.end)
        atomicAdd(count + c, 1);
    else if (blockIdx.x == 0)
        p.slot[i] = c >= p.identities ? SLOT_IDENTITY : SLOT_ELSEWHERE;
}

/* Behind the last tile there is nothing. */
static __device__ __forceinline__ void group_end(const struct group_args &p, uint32_t total)
{
    const uint32_t eights = p.rows / 8;
    for (uint32_t i = total + blockIdx.x * blockDim.x + threadIdx.x; i < p.most_tiles;
         i += gridDim.x * blockDim.x) {
        p.tile[i] = {-1, 0};
        for (uint32_t j = 0; j < eights; j++)
            p.group_expert[i * eights + j] = -1;
        for (uint32_t j = 0; j < p.rows; j++)
            p.slot_row[i * p.rows + j] = -1;
    }
}

/* The lists, once a block has all pairs and their counts: a warp an expert, or several in turn. Pairs keep their order
 * within an expert, so that the sums do not depend on the launch. */
template <int EXPERTS, int THREADS>
static __device__ __forceinline__ void
group_rows(const struct group_args &p, struct group_room<EXPERTS, THREADS> &g, const uint16_t *chosen)
{
    enum { EACH = EXPERTS > THREADS ? EXPERTS / THREADS : 1, WARPS = THREADS / 32 };
    const uint32_t lane = threadIdx.x % 32, eights = p.rows / 8, own = EACH * threadIdx.x;
    uint32_t tiles[EACH], sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        tiles[j] = own < EXPERTS ? (g.count[own + j] + p.rows - 1) / p.rows : 0;
        sum += tiles[j];
    }
    uint32_t at = block_before(sum, g.warp);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (own < EXPERTS)
            g.first[own + j] = at;
        at += tiles[j];
    }
    if (threadIdx.x == THREADS - 1)
        g.total = at;
    __syncthreads();
    group_end(p, g.total);
    for (uint32_t e = blockIdx.x * WARPS + threadIdx.x / 32; e < p.end; e += gridDim.x * WARPS) {
        if (e < p.first)
            continue;
        const uint32_t n = g.count[e], from = g.first[e], end = (n + p.rows - 1) / p.rows;
        for (uint32_t i = lane; i < end; i += 32)
            p.tile[from + i] = {(int)e, min(p.rows, n - i * p.rows)};
        for (uint32_t i = lane; i < end * eights; i += 32)
            p.group_expert[from * eights + i] = 8 * i < n ? (int)e : -1;
        for (uint32_t i = n + lane; i < end * p.rows; i += 32)
            p.slot_row[from * p.rows + i] = -1;
        group_expert(p, chosen, e, from * p.rows);
    }
}

/* Every block counts all pairs. */
extern "C" __global__ void __launch_bounds__(256) moe_group(const __grid_constant__ struct group_args p)
{
    extern __shared__ __align__(8) uint16_t chosen[]; /* (pairs, rounded up to 128) */
    __shared__ struct group_room<EXPERTS_MOST, 256> g;
    if (!p.late)
        dep_launch();
    const uint32_t pairs = p.m * p.used;
    for (uint32_t i = threadIdx.x; i < EXPERTS_MOST; i += 256)
        g.count[i] = 0;
    __syncthreads();
    dep_wait();
    if (p.late)
        dep_launch();
    for (uint32_t i = threadIdx.x; i < (pairs + 127) / 128 * 128; i += 256) {
        const uint32_t c = i < pairs ? (uint32_t)p.expert[i] : 0xffffu;
        chosen[i] = (uint16_t)c;
        if (i < pairs)
            group_count(p, g.count, i, c);
    }
    __syncthreads();
    group_rows(p, g, chosen);
}

/* ---- both at once, of few rows ---- */

#if __CUDA_ARCH__ >= 900
/* The cluster's blocks share the rows, a warp a row, and tell each other which experts these have chosen; then each sorts
 * the pairs of some of the experts, as moe_group does. */
template <int EACH> static __device__ __forceinline__ void sort_body(const struct sort_args &p)
{
    __shared__ struct group_room<32 * EACH, SORT_THREADS> g;
    __shared__ __align__(8) uint16_t chosen[SORT_ROWS * MOE_USED_MOST];
    if (!p.group.late)
        dep_launch();
    const uint32_t pairs = p.group.m * p.group.used, lane = threadIdx.x % 32,
                   row = blockIdx.x + SORT_BLOCKS * (threadIdx.x / 32);
    for (uint32_t i = threadIdx.x; i < 32 * EACH; i += SORT_THREADS)
        g.count[i] = 0;
    for (uint32_t i = pairs + threadIdx.x; i < (pairs + 127) / 128 * 128; i += SORT_THREADS)
        chosen[i] = 0xffff;
    cluster_arrive();
    args_ahead(p);
    dep_wait();
    if (p.group.late)
        dep_launch();
    if (row < p.group.m) {
        const bool direct = choice_direct(p.route);
        struct warp_choice<EACH> c(p.route, p.route.logits + row * p.route.ld);
        if (!direct)
            c.row(p.route);
        c.choose(p.route, direct);
        cluster_wait(); /* all blocks have begun: their memory is there */
        const uint32_t at = row * p.route.used + lane;
        if (lane < p.route.used)
            for (uint32_t i = 0; i < SORT_BLOCKS; i++)
                asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(cluster_address(chosen + at, i)),
                             "h"((uint16_t)c.expert)
                             : "memory");
        cluster_arrive();
        if (direct)
            c.row(p.route);
        const float w = c.weight(p.route);
        if (lane < p.route.used)
            p.route.weight[at] = w;
    } else {
        cluster_wait();
        cluster_arrive();
    }
    cluster_wait();
    for (uint32_t i = threadIdx.x; i < pairs; i += SORT_THREADS)
        group_count(p.group, g.count, i, chosen[i]);
    __syncthreads();
    group_rows(p.group, g, chosen);
}
#else /* no clusters: nothing launches them */
template <int EACH> static __device__ __forceinline__ void sort_body(const struct sort_args &)
{
}
#endif

/* Of up to 128 and 256 experts. */
extern "C" __global__ void CLUSTER(SORT_BLOCKS) __launch_bounds__(SORT_THREADS)
    moe_sort_4(const __grid_constant__ struct sort_args p)
{
    sort_body<4>(p);
}

extern "C" __global__ void CLUSTER(SORT_BLOCKS) __launch_bounds__(SORT_THREADS)
    moe_sort_8(const __grid_constant__ struct sort_args p)
{
    sort_body<8>(p);
}

/* Four outputs a thread. */
extern "C" __global__ void __launch_bounds__(256) moe_combine(const __grid_constant__ struct combine_args p)
{
    dep_launch();
    dep_wait();
    const uint64_t row = blockIdx.y;
    const uint32_t i = 4 * (blockIdx.x * 256 + threadIdx.x), left = i < p.n ? min(4u, p.n - i) : 0;
    const bool four = left == 4 && p.n % 4 == 0;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[4];
    if (!left)
        return;
    auto get = [&](const float *from, bool aligned) {
        if (four && aligned) {
            const float4 x = *(const float4 *)from;
            w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
        } else {
            for (uint32_t j = 0; j < 4; j++)
                w[j] = j < left ? from[j] : 0.0f;
        }
    };
    auto add = [&](float f) {
        for (int j = 0; j < 4; j++)
            v[j] += f * w[j];
    };
    for (uint32_t j = 0; j < p.used; j++) {
        const int slot = p.slot[row * p.used + j];
        if (slot == SLOT_ELSEWHERE)
            continue;
        if (slot == SLOT_IDENTITY)
            get(p.identity + row * p.n + i, is_aligned(p.identity, p.n));
        else
            get(p.y + (uint64_t)slot * p.ldy + i, is_aligned(p.y, p.ldy));
        add(p.weight ? p.weight[row * p.used + j] : 1.0f);
    }
    if (p.shared) {
        get(p.shared + row * p.n + i, is_aligned(p.shared, p.n));
        add(p.shared_gate ? 1.0f / (1.0f + expf(-p.shared_gate[row * p.shared_ld])) : 1.0f);
    }
    for (int j = 0; j < 4; j++)
        v[j] *= p.scale;
    if (p.residual) {
        get(p.residual + row * p.ldr + i, is_aligned(p.residual, p.ldr));
        add(1.0f);
    }
    for (uint32_t j = 0; j < left; j++)
        p.out[row * p.ldo + i + j] = v[j];
}
