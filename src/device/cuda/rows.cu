/* Operations on rows: norms, packing, activations, tails, embeddings, what follows Q/K/V. */
#include "device/cuda/qkv.cuh"
#include "device/device.h"

struct stat {
    float mean, scale;
};

/* Mean and 1/deviation (RMS: mean 0) of n values that each thread of the block sees through f. */
template <class F>
static __device__ __forceinline__ struct stat block_stat(uint32_t kind, float eps, uint32_t n, float *room,
                                                         F f)
{
    struct stat r = {0.0f, 1.0f};
    if (kind == NORM_NONE)
        return r;
    float sum = 0.0f;
    if (kind == NORM_LAYER) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            sum += f(i);
        r.mean = block_sum(sum, room) / (float)n;
        sum = 0.0f;
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        float v = f(i) - r.mean;
        sum += v * v;
    }
    r.scale = rsqrtf(block_sum(sum, room) / (float)n + eps);
    return r;
}

static __device__ __forceinline__ float normed(const struct norm_args &n, struct stat s, float v, uint32_t i)
{
    v = (v - s.mean) * s.scale;
    if (n.w)
        v *= n.w[i];
    if (n.b)
        v += n.b[i];
    return v;
}

/* Eight values of a row that is made here; it goes to x, too. */
static __device__ __forceinline__ void sum8(const struct pack_args &p, uint32_t row, uint32_t at, uint32_t left,
                                            bool aligned, float v[8])
{
    const struct pack_sum &s = p.sum;
    float *x = (float *)p.x + row * p.ldx + at;
    const float rs = s.row_scale ? s.row_scale[row] : 1.0f;
    float r[8];
    load8(s.y + row * s.ldy + at, left, is_aligned(s.y, s.ldy), v);
    load8(s.residual ? s.residual + row * s.ldr + at : x, s.residual ? left : 0, is_aligned(s.residual, s.ldr), r);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float y = v[j] * rs + (s.bias && j < left ? s.bias[at + j] : 0.0f);
        v[j] = j < left ? y * s.scale + r[j] : 0.0f;
    }
    if (aligned && left >= 8) {
        *(float4 *)x = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(x + 4) = make_float4(v[4], v[5], v[6], v[7]);
    } else {
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
            if (j < left)
                x[j] = v[j];
    }
}

/* Where the results of a row's experts are: lane j has choice j. */
struct combine_row {
    const float *from; /* NULL: nowhere */
    float weight, shared;

    __device__ __forceinline__ combine_row(const struct combine_args &c, uint32_t row)
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint64_t i = (uint64_t)row * c.used + lane;
        const bool there = lane < c.used;
        const int slot = there ? c.slot[i] : SLOT_ELSEWHERE;
        weight = !there ? 0.0f : c.weight ? c.weight[i] : 1.0f;
        from = slot == SLOT_ELSEWHERE   ? nullptr
               : slot == SLOT_IDENTITY ? c.identity + (uint64_t)row * c.n
                                       : c.y + (uint64_t)slot * c.ldy;
        shared = c.shared && c.shared_gate ? 1.0f / (1.0f + expf(-c.shared_gate[row * c.shared_ld])) : 1.0f;
    }
};

/* Eight values of a row, zeros from number n on: 0 or 8 of them where all rows are ALIGNED, which leaves no branch between
 * one load and the next. */
struct eight {
    float4 a, b;
};
template <bool ALIGNED> static __device__ __forceinline__ struct eight eight_of(const float *x, uint32_t n)
{
    if (ALIGNED) {
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        load_more(a, (const uint8_t *)x, n != 0);
        load_more(b, (const uint8_t *)(x + 4), n != 0);
        return {*(const float4 *)&a, *(const float4 *)&b};
    }
    return {make_float4(n > 0 ? x[0] : 0.0f, n > 1 ? x[1] : 0.0f, n > 2 ? x[2] : 0.0f, n > 3 ? x[3] : 0.0f),
            make_float4(n > 4 ? x[4] : 0.0f, n > 5 ? x[5] : 0.0f, n > 6 ? x[6] : 0.0f, n > 7 ? x[7] : 0.0f)};
}

static __device__ __forceinline__ void eight_add(float v[8], float f, const struct eight &e)
{
    v[0] += f * e.a.x, v[1] += f * e.a.y, v[2] += f * e.a.z, v[3] += f * e.a.w;
    v[4] += f * e.b.x, v[5] += f * e.b.y, v[6] += f * e.b.z, v[7] += f * e.b.w;
}

enum { COMBINE_AHEAD = 4 }; /* choices whose values are on their way at once */

/* Eight values of a row that is the weighted sum of experts, in the order of choices (moe_combine in moe.cu); they go to x,
 * too. A whole warp calls it. */
template <bool ALIGNED>
static __device__ __forceinline__ void combine8(const struct combine_args &c, const struct combine_row &r,
                                                uint32_t row, uint32_t at, uint32_t left, float v[8])
{
    const struct eight plus = eight_of<ALIGNED>(c.residual + row * c.ldr + at, c.residual ? left : 0),
                       more = eight_of<ALIGNED>(c.shared + (uint64_t)row * c.n + at, c.shared ? left : 0);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = 0.0f;
    for (uint32_t j = 0; j < c.used; j += COMBINE_AHEAD) {
        struct eight e[COMBINE_AHEAD];
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++) {
            const float *x = (const float *)__shfl_sync(~0u, (unsigned long long)r.from, j + i);
            e[i] = eight_of<ALIGNED>(x + at, x ? left : 0);
        }
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++)
            eight_add(v, __shfl_sync(~0u, r.weight, j + i), e[i]);
    }
    eight_add(v, r.shared, more);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] *= c.scale;
    eight_add(v, 1.0f, plus);
    float *out = c.out + row * c.ldo + at;
    if (ALIGNED && left) {
        *(float4 *)out = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(out + 4) = make_float4(v[4], v[5], v[6], v[7]);
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; j++)
        if (!ALIGNED && j < left)
            out[j] = v[j];
}

static __device__ __forceinline__ bool combine_aligned(const struct combine_args &c)
{
    return c.n % 8 == 0 && is_aligned(c.y, c.ldy) && is_aligned(c.identity, c.n) && is_aligned(c.shared, c.n) &&
           is_aligned(c.residual, c.ldr) && is_aligned(c.out, c.ldo);
}

/* What a warp has of the block's row. */
template <int COLUMNS>
static __device__ __forceinline__ void combine_columns(uint32_t k, const struct combine_args &c,
                                                       float v[COLUMNS][8])
{
    const struct combine_row r(c, blockIdx.x);
    const bool aligned = combine_aligned(c);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t at = 8 * threadIdx.x + 8 * blockDim.x * i, left = at < k ? k - at : 0;
        if (aligned)
            combine8<true>(c, r, blockIdx.x, at, left, v[i]);
        else
            combine8<false>(c, r, blockIdx.x, at, left, v[i]);
    }
}

/* Sum and maximum over the block, of numbers of which the latter are not negative; `room` is not free again at return. */
static __device__ __forceinline__ float2 block_sum_most(float sum, float most, float2 *room)
{
    const uint32_t lane = threadIdx.x % 32;
    sum = warp_sum(sum), most = warp_most(most);
    if (lane == 0)
        room[threadIdx.x / 32] = make_float2(sum, most);
    __syncthreads();
    const float2 all = lane < (blockDim.x + 31) / 32 ? room[lane] : make_float2(0.0f, 0.0f);
    return make_float2(warp_sum(all.x), warp_most(all.y));
}

enum rows_from {
    ROWS_THERE,     /* x has it */
    ROWS_FOR_SLOTS, /* x has it, and it goes to the slots of its experts */
    ROWS_SUMMED,    /* it is made of a product's results */
    ROWS_COMBINED   /* it is made of experts' results */
};

/* load8 past L1, which may hold an older x if the kernel has not waited. */
static __device__ __forceinline__ void load8_past(const float *x, uint32_t left, bool aligned, float v[8])
{
    if (aligned && left >= 8) {
        const float4 a = __ldcg((const float4 *)x), b = __ldcg((const float4 *)(x + 4));
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = i < left ? __ldcg(x + i) : 0.0f;
    }
}

/* A norm with a mean or a bias, of what a warp has of the block's row, in place; zeros past its end. */
template <int NORM_COLUMNS>
static __device__ __forceinline__ void norm_whole(const struct pack_args &p, float v[NORM_COLUMNS][8],
                                                  const float w[NORM_COLUMNS][8], float *room)
{
    float sum = 0.0f, mean = 0.0f;
    if (p.norm.kind == NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < NORM_COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum += v[i][j];
        mean = block_sum(sum, room) / (float)p.k;
        sum = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (8 * threadIdx.x + 8 * blockDim.x * i + j < p.k)
                sum += (v[i][j] - mean) * (v[i][j] - mean);
    const float scale = rsqrtf(block_sum(sum, room) / (float)p.k + p.norm.eps);
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t at = 8 * threadIdx.x + 8 * blockDim.x * i + j;
            const float bias = p.norm.b && at < p.k ? p.norm.b[at] : 0.0f;
            v[i][j] = at < p.k ? (v[i][j] - mean) * scale * w[i][j] + bias : 0.0f;
        }
}

/* A row a block: norm, and on to wherever it is wanted. A warp has NORM_COLUMNS columns of 256 values in registers, a lane
 * 8 values of each. The norm of squares is a factor behind the rounding to fp16, as in the products of one row that norm
 * their input: a row is rounded the same way alone and among others. */
template <int NORM_COLUMNS, enum rows_from FROM>
static __device__ __forceinline__ void norm_pack_body(const struct pack_args &p,
                                                      const struct combine_args *experts)
{
    __shared__ float2 room[32];
    constexpr bool SLOTS = FROM == ROWS_FOR_SLOTS;
    const bool x_there = SLOTS && p.x_there;
    if (!x_there)
        dep_launch();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    uint32_t row = blockIdx.x, from = SLOTS ? row / p.used : row;
    const uint32_t columns = (p.k + 255) / 256;
    float v[NORM_COLUMNS][8], w[NORM_COLUMNS][8];
    /* weights are there before the predecessor is done */
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++) {
        const uint32_t at = 256 * (warp + warps * i) + 8 * lane;
        if (p.norm.w && at < p.k)
            load8(p.norm.w + at, p.k - at, true, w[i]);
        else
#pragma unroll
            for (int j = 0; j < 8; j++)
                w[i][j] = 1.0f;
    }
    if (!x_there)
        dep_wait();
    if (FROM == ROWS_THERE && p.x_row)
        from = (uint32_t)p.x_row[row];
    const float *x = p.x + (uint64_t)from * p.ldx;
    const bool aligned = is_aligned(p.x, p.ldx);
    float sum = 0.0f, most = 0.0f;
    if constexpr (FROM == ROWS_COMBINED)
        combine_columns<NORM_COLUMNS>(p.k, *experts, v);
    const bool whole = !norm_is_factor(&p.norm);
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++) {
        const uint32_t at = 256 * (warp + warps * i) + 8 * lane;
        const uint32_t left = at < p.k ? p.k - at : 0;
        if (FROM == ROWS_SUMMED)
            sum8(p, row, at, left, aligned, v[i]);
        else if (SLOTS)
            load8_past(x + at, left, aligned, v[i]);
        else if (FROM == ROWS_THERE)
            load8(x + at, left, aligned, v[i]);
        if (!whole)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum += v[i][j] * v[i][j];
                v[i][j] *= w[i][j];
            }
    }
    if (whole)
        norm_whole<NORM_COLUMNS>(p, v, w, (float *)room);
    if (SLOTS) {
        if (x_there) {
            dep_wait();
            dep_launch();
        }
        if (p.slot[row] < 0)
            return;
        row = (uint32_t)p.slot[row];
    }
    struct packed_column packed[NORM_COLUMNS];
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++) {
        packed[i] = {1.0f, nullptr};
        if (p.out.pack && warp + warps * i < columns)
            packed[i] = pack_warp(p.out, columns, row, warp + warps * i, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            most = fmaxf(most, fabsf(v[i][j]));
    }
    float factor = SLOTS && p.slot_weight ? p.slot_weight[row] : 1.0f, half = 1.0f;
    if (p.out.half || (p.norm.kind != NORM_NONE && !whole)) {
        const float2 all = block_sum_most(sum, most, room);
        if (p.norm.kind != NORM_NONE && !whole)
            factor *= rsqrtf(all.x / (float)p.k + p.norm.eps);
        half = pack_scale(all.y);
    }
    if (p.out.half && threadIdx.x == 0)
        p.out.half_scale[row] = factor / half;
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++) {
        const uint32_t at = 256 * (warp + warps * i) + 8 * lane;
        packed[i].finish(factor);
        if (p.out.half && at < p.out.kp)
            half_row(p.out, row, at / 8, v[i], half);
        if (p.out.rows)
#pragma unroll
            for (uint32_t j = 0; j < 8; j++)
                if (at + j < p.k)
                    p.out.rows[(uint64_t)row * p.out.ldr + at + j] = v[i][j] * factor;
    }
}

/* Rows of up to 256 * warps, 512 * warps and 1024 * warps values. */
extern "C" __global__ void __launch_bounds__(512) norm_pack_1(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<1, ROWS_THERE>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(512) norm_pack_2(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<2, ROWS_THERE>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(1024) norm_pack_4(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<4, ROWS_THERE>(p, nullptr);
}

/* The same for the slots of experts' rows. */
extern "C" __global__ void __launch_bounds__(512) norm_slots_1(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<1, ROWS_FOR_SLOTS>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(512) norm_slots_2(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<2, ROWS_FOR_SLOTS>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(1024) norm_slots_4(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<4, ROWS_FOR_SLOTS>(p, nullptr);
}

/* The same for rows that are made here, of results of a product or of experts. */
extern "C" __global__ void __launch_bounds__(512) norm_sum_1(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<1, ROWS_SUMMED>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(512) norm_sum_2(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<2, ROWS_SUMMED>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(1024) norm_sum_4(const __grid_constant__ struct pack_args p)
{
    norm_pack_body<4, ROWS_SUMMED>(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(512)
    norm_combine_1(const __grid_constant__ struct pack_combine_args p)
{
    norm_pack_body<1, ROWS_COMBINED>(p.pack, &p.from);
}

extern "C" __global__ void __launch_bounds__(512)
    norm_combine_2(const __grid_constant__ struct pack_combine_args p)
{
    norm_pack_body<2, ROWS_COMBINED>(p.pack, &p.from);
}

/* What most rows want has code of its own: code that runs once a launch has to be fetched, and that of all activations for
 * eight values at once is long. ACTS_COPY: the product has applied the activation. */
enum acts { ACTS_ANY, ACTS_COPY, ACTS_SILU };

static __device__ __forceinline__ enum acts acts_of(const struct act_args &p)
{
    if (p.xielu || p.up_bias || p.gate_bias)
        return ACTS_ANY;
    if (p.gate)
        return p.act == ACT_SILU ? ACTS_SILU : ACTS_ANY;
    return p.act == ACT_NONE && !p.row_scale ? ACTS_COPY : ACTS_ANY;
}

template <enum acts ACTS>
static __device__ __forceinline__ void act_eight(const struct act_args &p, uint64_t row, float rs, uint32_t at,
                                                 bool aligned, float v[8])
{
    const uint32_t left = at < p.k ? p.k - at : 0;
    if (ACTS == ACTS_ANY) {
        act8(p, row, rs, at, aligned, v);
        return;
    }
    load8(p.up + row * p.ld + at, left, aligned, v);
    if (ACTS == ACTS_COPY)
        return;
    float g[8];
    load8(p.gate + row * p.ld + at, left, aligned, g);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = act_one(ACT_SILU, g[j] * rs) * (v[j] * rs);
}

/* Packed: a warp per 256 values, blockIdx.y the row. */
extern "C" __global__ void __launch_bounds__(128) act_pack(const __grid_constant__ struct act_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t columns = (p.k + 255) / 256, c = blockIdx.x * 4 + threadIdx.x / 32;
    const int row = p.slot ? p.slot[blockIdx.y] : (int)blockIdx.y;
    if (c >= columns || row < 0)
        return;
    const uint32_t at = 256 * c + 8 * (threadIdx.x % 32);
    float v[8];
    if (acts_of(p) == ACTS_COPY)
        act_eight<ACTS_COPY>(p, row, 1.0f, at, act_aligned(p), v);
    else
        act_eight<ACTS_ANY>(p, row, p.row_scale ? p.row_scale[row] : 1.0f, at, act_aligned(p), v);
    pack_warp(p.out, columns, row, c, v).finish(1.0f);
}

enum { ACT_AHEAD = 2 };

/* A row as fp16, times s; its largest value. A thread has ACT_AHEAD times eight values on their way at once. */
template <enum acts ACTS>
static __device__ __forceinline__ float act_half(const struct act_args &p, uint32_t row, float rs, bool aligned,
                                                 float s)
{
    float max = 0.0f;
    for (uint32_t from = 8 * threadIdx.x; from < p.out.kp; from += 8 * ACT_THREADS * ACT_AHEAD) {
        float v[ACT_AHEAD][8];
#pragma unroll
        for (int i = 0; i < ACT_AHEAD; i++)
            act_eight<ACTS>(p, row, rs, from + 8 * ACT_THREADS * i, aligned, v[i]);
#pragma unroll
        for (int i = 0; i < ACT_AHEAD; i++) {
            const uint32_t at = from + 8 * ACT_THREADS * i;
            if (at < p.out.kp)
                half_row(p.out, row, at / 8, v[i], s);
#pragma unroll
            for (int j = 0; j < 8; j++)
                max = fmaxf(max, fabsf(v[i][j]));
        }
    }
    return max;
}

/* fp16 or float rows: a block a row. The row's scale for fp16 needs its maximum first. */
extern "C" __global__ void __launch_bounds__(ACT_THREADS)
    act_rows(const __grid_constant__ struct act_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x;
    const float rs = p.row_scale ? p.row_scale[row] : 1.0f;
    const bool aligned = act_aligned(p);
    if (p.out.half) {
        const enum acts acts = acts_of(p);
        const float max = block_max(acts == ACTS_COPY   ? act_half<ACTS_COPY>(p, row, rs, aligned, 1.0f)
                                    : acts == ACTS_SILU ? act_half<ACTS_SILU>(p, row, rs, aligned, 1.0f)
                                                        : act_half<ACTS_ANY>(p, row, rs, aligned, 1.0f),
                                    room);
        const float s = max > 32768.0f ? pack_scale(max) : 1.0f;
        if (s != 1.0f) /* rare: once more, scaled (every thread overwrites what it wrote) */
            act_half<ACTS_ANY>(p, row, rs, aligned, s);
        if (threadIdx.x == 0)
            p.out.half_scale[row] = 1.0f / s;
    }
    for (uint32_t at = 8 * threadIdx.x; p.out.rows && at < p.k; at += 8 * ACT_THREADS) {
        float v[8];
        act8(p, row, rs, at, aligned, v);
        for (uint32_t j = 0; j < 8 && at + j < p.k; j++)
            p.out.rows[(uint64_t)row * p.out.ldr + at + j] = v[j];
    }
}

/* out = after(residual + scale * post(y + bias)), a block a row. */
extern "C" __global__ void __launch_bounds__(512) tail(const __grid_constant__ struct tail_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const uint64_t row = blockIdx.x;
    const float *y = p.y + row * p.ldy, rs = p.row_scale ? p.row_scale[row] : 1.0f;
    auto in = [&](uint32_t i) { return y[i] * rs + (p.bias ? p.bias[i] : 0.0f); };
    float *out = p.out + row * p.ldo;
    /* a slice of the row for each head that is normed for itself, with the same weight */
    const uint32_t slice = p.post.heads > 1 ? p.n / p.post.heads : p.n;
    struct stat s;
    for (uint32_t from = 0; from < p.n; from += slice) {
        s = block_stat(p.post.kind, p.post.eps, slice, room, [&](uint32_t i) { return in(from + i); });
        for (uint32_t i = threadIdx.x; i < slice; i += blockDim.x) {
            float v = in(from + i);
            if (p.post.kind != NORM_NONE)
                v = normed(p.post, s, v, p.post.w_len > slice ? from + i : i);
            v *= p.scale;
            if (p.residual)
                v += p.residual[row * p.ldr + from + i];
            out[from + i] = v;
        }
    }
    if (p.after.kind == NORM_NONE)
        return;
    /* each thread reads back only what it wrote */
    s = block_stat(p.after.kind, p.after.eps, p.n, room, [&](uint32_t i) { return out[i]; });
    for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x)
        out[i] = normed(p.after, s, out[i], i);
}

/* Eight values of the token's row as adapters change it: v += scale * B a, where a is A's row of this token. */
static __device__ void embed_adapt(const struct embed_args &p, uint32_t row, uint32_t id, uint32_t i,
                                   float v[8])
{
    const struct adapter_mix &mix = p.mix[p.meta.row_seq[row]];
    for (uint32_t k = 0; k < mix.count; k++) {
        const struct lora_entry &e = p.lora[mix.id[k]];
        float a[8];
        for (uint32_t r = 0; e.a.base && r < e.a.k; r++) {
            if (r % 8 == 0)
                decode8(e.a.base, e.a.stride, e.a.fmt, e.a.k, id, r / 8, a);
            const float *b = (const float *)(e.b.base + r * e.b.stride) + 8 * i;
            for (int j = 0; j < 8; j++)
                v[j] += 8 * i + j < p.width ? mix.scale[k] * e.scale * a[r % 8] * b[j] : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ struct embed_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x;
    float *out = p.out + (uint64_t)row * p.ldo;
    if (!p.table.base || (p.given && p.meta.ids[row] < 0)) {
        for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x)
            out[i] = p.meta.ids[row] < 0 ? p.given[row * p.ldg + i] : 0.0f;
        return;
    }
    /* a table beside the vocabulary's may be shorter */
    const uint32_t given = (uint32_t)p.meta.ids[row] & ((1u << p.type_bit) - 1),
                   id = p.meta.ids[row] >= 0 && given < p.table.n ? given : 0,
        type = (uint32_t)p.meta.ids[row] >> p.type_bit, at = p.meta.pos[row] + p.position_offset;
    for (uint32_t i = threadIdx.x; i < (p.width + 7) / 8; i += blockDim.x) {
        float v[8], z[8];
        decode8(p.table.base, p.table.stride, p.table.fmt, p.table.k, id, i, v);
        if (p.lora)
            embed_adapt(p, row, id, i, v);
        for (int j = 0; j < 8; j++)
            v[j] *= p.scale;
        if (p.positions.base) {
            decode8(p.positions.base, p.positions.stride, p.positions.fmt, p.positions.k, at, i, z);
            for (int j = 0; j < 8; j++)
                v[j] += z[j];
        }
        if (p.types.base) {
            decode8(p.types.base, p.types.stride, p.types.fmt, p.types.k, type, i, z);
            for (int j = 0; j < 8; j++)
                v[j] += z[j];
        }
        for (int j = 0; j < 8; j++)
            if (8 * i + j < p.width)
                out[8 * i + j] = v[j];
    }
    if (p.norm.kind == NORM_NONE)
        return;
    __syncthreads();
    struct stat s = block_stat(p.norm.kind, p.norm.eps, p.width, room, [&](uint32_t i) { return out[i]; });
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x)
        out[i] = normed(p.norm, s, out[i], i);
}

extern "C" __global__ void __launch_bounds__(256) finish_logits(const __grid_constant__ struct finish_args p)
{
    dep_launch();
    dep_wait();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n)
        return;
    float *y = p.y + blockIdx.y * p.ldy + i;
    float v = (*y + (p.bias ? p.bias[i] : 0.0f)) * p.scale;
    *y = p.softcap > 0.0f ? p.softcap * tanhf(v / p.softcap) : v;
}

/* A warp per (row, head of q, k or v). */
extern "C" __global__ void __launch_bounds__(128) qkv_finish(const __grid_constant__ struct qkv_args p)
{
    extern __shared__ float row_room[];
    dep_launch();
    const uint32_t warp = threadIdx.x / 32, slot = blockIdx.x * 4 + warp, row = blockIdx.y;
    struct qkv_head h = qkv_start(p, row, slot);
    const struct turn turn(p.freqs, h.kind != QKV_V && p.rope != ROPE_NONE ? p.rope_dims : 0, h.pos, h.axes);
    args_ahead(p);
    dep_wait();
    if (slot >= p.heads + 2 * p.k_heads)
        return;
    float *v = row_room + warp * max(p.kv.k_dim, p.kv.v_dim);
    qkv_compute(p, h, turn, row, v);
    if (h.kind == QKV_Q) {
        for (uint32_t i = threadIdx.x % 32; i < p.kv.k_dim; i += 32)
            p.out[row * p.ldo + (uint64_t)h.head * p.kv.k_dim + i] = v[i];
        return;
    }
    kv_store(p.kv, h.page, h.pos & (p.kv.tokens - 1), h.head, h.kind == QKV_V, v);
}

/* Latent attention: warp 0 of a row's first block norms, rotates and stores c; the others rotate a q head. */
extern "C" __global__ void __launch_bounds__(128) latent_finish(const __grid_constant__ struct latent_args p)
{
    extern __shared__ float row_room[];
    dep_launch();
    dep_wait();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = blockIdx.x * 4 + warp,
                   row = blockIdx.y;
    if (slot > p.heads)
        return;
    const uint32_t pos = p.meta.pos[row], width = p.latent + p.rope_dims;
    float *v = row_room + warp * width;
    const struct turn turn(p.freqs, p.rope != ROPE_NONE ? p.rope_dims : 0, pos, nullptr);
    if (slot == p.heads) {
        const float *c = p.c + row * p.ldc;
        for (uint32_t i = lane; i < width; i += 32)
            v[i] = c[i];
        __syncwarp();
        struct norm_args n = p.norm;
        n.heads = 1;
        if (n.kind != NORM_NONE)
            norm_warp(n, v, p.latent, 0, nullptr, 0, 1.0f, nullptr);
        if (p.rope != ROPE_NONE)
            rope_warp(v + p.latent, p.rope, p.rope_dims, p.rope_factor, p.freqs, pos, nullptr, turn);
        const uint32_t page = p.kv.table[(uint64_t)p.meta.row_seq[row] * p.meta.width + pos / p.kv.tokens];
        kv_store(p.kv, page, pos % p.kv.tokens, 0, false, v);
        return;
    }
    float *q = p.q + row * p.ldq + (uint64_t)slot * (p.nope + p.rope_dims) + p.nope;
    const float scale = query_scale(p.q_scale, pos);
    for (uint32_t i = lane; i < p.rope_dims; i += 32)
        v[i] = q[i] * scale;
    for (uint32_t i = lane; i < p.nope && scale != 1.0f; i += 32)
        q[(int)i - (int)p.nope] *= scale;
    __syncwarp();
    if (p.rope != ROPE_NONE)
        rope_warp(v, p.rope, p.rope_dims, p.rope_factor, p.freqs, pos, nullptr, turn);
    float *out = p.out + row * p.ldo + (uint64_t)slot * width + p.latent;
    for (uint32_t i = lane; i < p.rope_dims; i += 32)
        out[i] = v[i];
}

/* A row for itself: a block each. Every thread reads and writes its own columns, so that `out` may be an input. */
extern "C" __global__ void __launch_bounds__(256) map_rows(const __grid_constant__ struct map_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const uint64_t row = blockIdx.x;
    const float *x = p.x + row * p.ldx;
    const struct stat s = block_stat(p.norm.kind, p.norm.eps, p.n, room, [&](uint32_t i) { return x[i]; });
    auto first = [&](uint32_t i) {
        const float v = (p.norm.kind != NORM_NONE ? normed(p.norm, s, x[i], i) : x[i]) * p.factor;
        return p.cap > 0.0f ? p.cap * tanhf(v / p.cap) : v;
    };
    float least = 0.0f, scale = 1.0f, sum = 0.0f;
    if (p.deviations != 0.0f) {
        for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x)
            sum += first(i);
        const float mean = block_sum(sum, room) / (float)p.n;
        sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x)
            sum += (first(i) - mean) * (first(i) - mean);
        least = mean + p.deviations * sqrtf(block_sum(sum, room) / (float)p.n);
    }
    if (p.like) {
        sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x)
            sum += p.like[row * p.ldl + i] * p.like[row * p.ldl + i];
        scale = sqrtf(block_sum(sum, room) / (float)p.n);
    }
    for (uint32_t i = threadIdx.x; i < p.n; i += blockDim.x) {
        float v = first(i);
        if (p.deviations != 0.0f)
            v = fmaxf(v - least, 0.0f);
        if (p.act != ACT_NONE)
            v = act_one(p.act, v);
        v *= p.times ? p.times[i] * scale : scale;
        if (p.by)
            v *= p.by[row * p.ldb + i];
        if (p.plus)
            v += p.plus[i];
        if (p.residual)
            v += p.residual[row * p.ldr + i];
        v *= p.scale;
        p.out[row * p.ldo + i] = p.clips ? fminf(fmaxf(v, p.least), p.most) : v;
    }
}

/* Streams mixed by coefficients of the row: a thread a column, blockIdx.y the row. */
extern "C" __global__ void __launch_bounds__(256) mix_rows(const __grid_constant__ struct mix_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t row = blockIdx.y;
    if (at >= p.n)
        return;
    for (uint32_t i = 0; i < p.outs; i++) {
        float v = p.base ? p.base[row * p.ldb + (uint64_t)i * p.n + at] : 0.0f;
        for (uint32_t j = 0; j < p.ins; j++)
            v += ((p.coef ? p.coef[row * p.ldc + i * p.ins + j] : 0.0f) +
                  (p.fixed ? p.fixed[i * p.ldf + j] : 0.0f) + p.bias) *
                 p.in[row * p.ldi + (uint64_t)j * p.n + at];
        p.out[row * p.ldo + (uint64_t)i * p.n + at] = v;
    }
}
