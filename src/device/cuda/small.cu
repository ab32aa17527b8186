/* Small operations on rows for callers of the public header, and the choice of a token on the GPU. */
#include "base/noise.h"
#include "device/cuda/cluster.cuh"
#include "device/device.h"

/* y = f(x, w) for m rows of n; w is a second operand of the same shape, or a vector (bias). */
extern "C" __global__ void __launch_bounds__(256) rows_each(const __grid_constant__ struct rows_args p)
{
    dep_launch();
    dep_wait();
    uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n * p.m)
        return;
    float x = p.x[i];
    switch (p.kind) {
    case ROWS_ADD:
        x += p.w[i];
        break;
    case ROWS_BIAS:
        x += p.w[i % p.n];
        break;
    case ROWS_SWIGLU:
        x = act_one(ACT_SILU, x) * p.w[i];
        break;
    default:
        x = act_one(p.kind, x);
    }
    p.y[i] = x;
}

extern "C" __global__ void __launch_bounds__(256) rows_softmax(const __grid_constant__ struct rows_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const float *x = p.x + blockIdx.x * p.n;
    float *y = p.y + blockIdx.x * p.n, max = -INFINITY, sum = 0.0f;
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        max = fmaxf(max, x[i]);
    max = block_max(max, room);
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        sum += expf(x[i] - max);
    sum = block_sum(sum, room);
    for (uint64_t i = threadIdx.x; i < p.n; i += 256)
        y[i] = expf(x[i] - max) / sum;
}

/* x (m, heads, dim), positions from device memory; w: inverse frequencies; kind: enum rope_kind. */
extern "C" __global__ void __launch_bounds__(128) rows_rope(const __grid_constant__ struct rows_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.y, head = blockIdx.x;
    const uint64_t at = ((uint64_t)row * p.heads + head) * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += 128)
        if (i < p.rope_first || i >= p.rope_first + p.rope_dims)
            p.y[at + i] = p.x[at + i];
    for (uint32_t i = threadIdx.x; i < p.rope_dims / 2; i += 128) {
        float s, c;
        sincosf((float)p.pos[row] * p.w[i], &s, &c);
        s *= p.factor;
        c *= p.factor;
        uint32_t a = p.rope_first + (p.kind == ROPE_PAIRS ? 2 * i : i),
                 b = p.kind == ROPE_PAIRS ? a + 1 : a + p.rope_dims / 2;
        float x = p.x[at + a], y = p.x[at + b];
        p.y[at + a] = x * c - y * s;
        p.y[at + b] = x * s + y * c;
    }
}

struct best {
    float v;
    uint32_t i;
};

static __device__ __forceinline__ bool better(struct best a, struct best b)
{
    return a.v > b.v || (a.v == b.v && a.i < b.i);
}

static __device__ __forceinline__ struct best block_best(struct best b, struct best *room)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        struct best c = {__shfl_xor_sync(~0u, b.v, o), __shfl_xor_sync(~0u, b.i, o)};
        if (better(c, b))
            b = c;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = b;
    __syncthreads();
    struct best r = room[0];
    for (uint32_t i = 1; i < blockDim.x / 32; i++)
        if (better(room[i], r))
            r = room[i];
    return r;
}

/* The best below `under` (in the order of `better`). */
static __device__ __forceinline__ struct best row_best(const float *x, uint32_t n, struct best under,
                                                       struct best *room)
{
    struct best b = {-INFINITY, 0xffffffffu};
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        struct best c = {x[i], i};
        if (better(under, c) && better(c, b))
            b = c;
    }
    return block_best(b, room);
}

/* The top_k best of each row, in order; top_k = 1 is argmax. */
extern "C" __global__ void __launch_bounds__(1024) sample_top(const __grid_constant__ struct sample_args p)
{
    __shared__ struct best room[32];
    dep_launch();
    dep_wait();
    struct best b = {INFINITY, 0};
    for (uint32_t k = 0; k < p.top_k; k++) {
        b = row_best(p.logits + blockIdx.x * p.ld, p.n, b, room);
        if (threadIdx.x == 0) {
            p.ids[blockIdx.x * p.top_k + k] = (int)b.i;
            if (p.values)
                p.values[blockIdx.x * p.top_k + k] = b.v;
        }
    }
}

/* From the top_k best of a row (sample_top): temperature, top-p, min-p, then the token where the running sum
 * passes the row's noise. One thread a row: top_k is small. */
extern "C" __global__ void sample_pick(const __grid_constant__ struct sample_args p)
{
    dep_launch();
    dep_wait();
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.m)
        return;
    const float *v = p.values + (uint64_t)row * p.top_k;
    const int32_t *from = (const int32_t *)p.logits + (uint64_t)row * p.top_k;
    float sum = 0.0f, kept = 0.0f;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p.top_k; i++)
        sum += expf((v[i] - v[0]) / p.temperature);
    for (uint32_t i = 0; i < p.top_k; i++) {
        float e = expf((v[i] - v[0]) / p.temperature);
        if (n && (kept >= p.top_p * sum || e < p.min_p))
            break;
        kept += e;
        n++;
    }
    float at = p.noise[row] * kept, run = 0.0f;
    uint32_t pick = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        run += expf((v[i] - v[0]) / p.temperature);
        if (run > at) {
            pick = i;
            break;
        }
    }
    p.ids[row] = from[pick];
}

/* ---- a token for a row, by the chain of run/sampler.h ----
 *
 * A cut (top-k, top-p) is a rank: how far below the best a number lies, as an integer that covers the row's range. It is
 * found digit by digit, from a histogram of what lies at each digit: how many, or how much probability in units of
 * 2^-32 (integers, so that the order of sums does not matter).
 *
 * The blocks of a cluster share a row: each has a slice. They find the best of the row and, of the first cut, the first
 * digit together. What lies before it is usually little; the first block takes that in and goes on alone. */

enum { PICK_THREADS = 1024, PICK_WARPS = PICK_THREADS / 32, PICK_BINS = 2048, PICK_LIST = 2048 };

/* The candidates: a slice of the row, all of it, or what a cut has left of it. */
struct pick_view {
    const float *v;
    const int32_t *id; /* NULL: ids count from `first` on */
    uint32_t first, n;
    float best, scale; /* rank = (best - v) * scale */
};

/* What a block knows of its slice: its best, the least as -v, and whether all are numbers. */
struct pick_slice {
    struct best best;
    float low;
    uint32_t bad;
};

struct pick_drawn {
    double v;
    int32_t id;
};

struct pick_room {
    union {
        uint32_t count[PICK_BINS];
        unsigned long long mass[PICK_BINS];
    } bin;
    unsigned long long warp[PICK_WARPS];
    unsigned long long target; /* still to be found */
    uint32_t digit, listed;
    float v[PICK_LIST];
    int32_t id[PICK_LIST];
    struct pick_slice slice[PICK_WARPS], slices[PICK_BLOCKS];
    struct pick_drawn drawn[PICK_WARPS], draws[PICK_BLOCKS];
};

/* Blocks of a row; without clusters the first block has all of it, and the others nothing. */
static __device__ __forceinline__ uint32_t pick_blocks()
{
#if __CUDA_ARCH__ >= 900
    return PICK_BLOCKS;
#else
    return 1;
#endif
}

/* All blocks of the row wait for each other. */
static __device__ __forceinline__ void pick_meet()
{
    cluster_arrive();
    cluster_wait();
}

static __device__ __forceinline__ uint32_t pick_rank(const struct pick_view &r, float x)
{
    return (uint32_t)((r.best - x) * r.scale);
}

static __device__ __forceinline__ unsigned long long pick_mass(const struct pick_view &r, float x)
{
    return (unsigned long long)(expf(x - r.best) * 4294967296.0f);
}

/* f(number, place) for every candidate, shared out over the block; four at a time where a row allows it. */
template <typename F> static __device__ __forceinline__ void pick_each(const struct pick_view &r, F f)
{
    const uint32_t fours = ((uintptr_t)r.v & 15) == 0 ? r.n / 4 : 0;
    const float4 *v4 = (const float4 *)r.v;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < fours; i += PICK_THREADS) {
        const float4 v = v4[i];
        f(v.x, 4 * i);
        f(v.y, 4 * i + 1);
        f(v.z, 4 * i + 2);
        f(v.w, 4 * i + 3);
    }
    for (uint32_t i = 4 * fours + threadIdx.x; i < r.n; i += PICK_THREADS)
        f(r.v[i], i);
}

static __device__ __forceinline__ int32_t pick_id(const struct pick_view &r, uint32_t i)
{
    return r.id ? r.id[i] : (int32_t)(r.first + i);
}

/* The inclusive sum over the block up to this thread. */
static __device__ __forceinline__ unsigned long long pick_sum_upto(unsigned long long v, struct pick_room *s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        unsigned long long below = __shfl_up_sync(~0u, v, o);
        v += lane >= (uint32_t)o ? below : 0;
    }
    if (lane == 31)
        s->warp[warp] = v;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++)
        v += s->warp[i];
    __syncthreads();
    return v;
}

/* Which bin the target falls into: s->digit, and what of the target lies within it. Past the end: the last bin. `want` is
 * the target itself, or (mass) its share of the sum; it counts when the first digit is looked for. */
template <bool MASS>
static __device__ __forceinline__ void pick_bin(struct pick_room *s, uint32_t bins, bool begin, double want)
{
    const uint32_t at = 2 * threadIdx.x;
    const unsigned long long a = MASS ? s->bin.mass[at] : s->bin.count[at],
                             b = MASS ? s->bin.mass[at + 1] : s->bin.count[at + 1];
    const unsigned long long upto = pick_sum_upto(a + b, s), from = upto - a - b;
    if (threadIdx.x == PICK_THREADS - 1) {
        s->digit = bins - 1;
        if (begin) {
            const unsigned long long target = (unsigned long long)(MASS ? want * (double)upto : want);
            s->target = target ? target : 1;
        }
    }
    __syncthreads();
    const unsigned long long target = s->target;
    __syncthreads();
    if (from < target && upto >= target) {
        const bool first = from + a >= target;
        s->digit = first ? at : at + 1;
        s->target = target - (first ? from : from + a);
    }
    __syncthreads();
}

/* The histogram of a digit: of the candidates up to rank `most` whose digits before it are `prefix`. */
struct pick_digit {
    uint32_t pass, prefix;

    __device__ __forceinline__ uint32_t shift() const
    {
        return pass == 0 ? 21 : pass == 1 ? 10 : 0;
    }
    __device__ __forceinline__ uint32_t bits() const
    {
        return pass == 2 ? 10 : 11;
    }
};

static __device__ __forceinline__ void pick_clear(struct pick_room *s)
{
    for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
        s->bin.mass[i] = 0;
}

template <bool MASS>
static __device__ __forceinline__ void pick_count(const struct pick_view &r, struct pick_digit d,
                                                  uint32_t most, struct pick_room *s)
{
    const uint32_t shift = d.shift(), bits = d.bits();
    pick_each(r, [&](float x, uint32_t) {
        const uint32_t rank = pick_rank(r, x), bin = rank >> shift & ((1u << bits) - 1);
        if (!(x > -INFINITY) || rank > most || (d.pass && rank >> (shift + bits) != d.prefix))
            return;
        if (MASS)
            atomicAdd(&s->bin.mass[bin], pick_mass(r, x));
        else
            atomicAdd(&s->bin.count[bin], 1u);
    });
    __syncthreads();
}

/* What lies up to a rank, into the room of the row's first block, as far as it has place. s->listed counts all. */
static __device__ void pick_gather(const struct pick_view &r, uint32_t most, struct pick_room *s)
{
    struct pick_room *to = cluster_at(s, 0);
    pick_each(r, [&](float x, uint32_t i) {
        if (!(x > -INFINITY) || pick_rank(r, x) > most)
            return;
        const uint32_t at = atomicAdd(&to->listed, 1u);
        if (at < PICK_LIST) {
            to->v[at] = x;
            to->id[at] = pick_id(r, i);
        }
    });
}

/* The first digit of the row's first cut, by all its blocks; `most` becomes the last rank that has it. The bins are clear.
 * For the first block, all: the whole row before; what may lie before the cut after, where it fits into the room. */
template <bool MASS>
static __device__ uint32_t pick_first(const struct pick_view &slice, struct pick_view *all, uint32_t *most,
                                      double want, struct pick_room *s)
{
    struct pick_room *to = cluster_at(s, 0);
    pick_count<MASS>(slice, {0, 0}, *most, s);
    for (uint32_t i = threadIdx.x; blockIdx.x && i < PICK_BINS; i += PICK_THREADS)
        if (MASS && s->bin.mass[i])
            atomicAdd(&to->bin.mass[i], s->bin.mass[i]);
        else if (!MASS && s->bin.count[i])
            atomicAdd(&to->bin.count[i], s->bin.count[i]);
    pick_meet();
    if (blockIdx.x == 0) {
        pick_bin<MASS>(s, PICK_BINS, true, want);
        if (threadIdx.x < pick_blocks())
            *cluster_at(&s->digit, threadIdx.x) = s->digit;
    }
    pick_meet();
    const uint32_t digit = s->digit, end = digit << 21 | 0x1fffff;
    *most = end < *most ? end : *most;
    pick_gather(slice, *most, s);
    pick_meet();
    if (s->listed <= PICK_LIST) {
        all->v = s->v;
        all->id = s->id;
        all->n = s->listed;
    }
    return digit;
}

/* The least rank up to which there are `want` candidates, or that share of the probability (of what lies up to rank
 * `most`). `known`: the first digit is `prefix`. */
template <bool MASS>
static __device__ uint32_t pick_cut(const struct pick_view &r, uint32_t most, bool known, uint32_t prefix,
                                    double want, struct pick_room *s)
{
    for (uint32_t pass = known ? 1 : 0; pass < 3; pass++) {
        const struct pick_digit d = {pass, prefix};
        __syncthreads();
        pick_clear(s);
        __syncthreads();
        pick_count<MASS>(r, d, most, s);
        pick_bin<MASS>(s, 1u << d.bits(), pass == 0, want);
        prefix = prefix << d.bits() | s->digit;
    }
    __syncthreads();
    return prefix < most ? prefix : most;
}

static __device__ __forceinline__ struct pick_drawn pick_better(struct pick_drawn a, struct pick_drawn b)
{
    return a.v > b.v || (a.v == b.v && a.id < b.id) ? a : b;
}

/* The survivor with the largest logit / T + Gumbel noise. */
static __device__ struct pick_drawn pick_draw(const struct pick_view &r, const struct pick_row &p,
                                              uint32_t most, struct pick_room *s)
{
    const float least = r.best + p.min_shift;
    struct pick_drawn best = {-INFINITY, -1};
    pick_each(r, [&](float x, uint32_t i) {
        if (!(x > -INFINITY) || x < least || pick_rank(r, x) > most)
            return;
        const double l = x / p.temperature;
        if (l + NOISE_GUMBEL_MOST < best.v)
            return;
        const int32_t token = pick_id(r, i);
        best = pick_better({l - log(-log(noise_uniform(p.seed, p.position, (uint64_t)token))), token}, best);
    });
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = pick_better({__shfl_xor_sync(~0u, best.v, o), __shfl_xor_sync(~0u, best.id, o)}, best);
    if (threadIdx.x % 32 == 0)
        s->drawn[threadIdx.x / 32] = best;
    __syncthreads();
    for (uint32_t i = 0; i < PICK_WARPS; i++)
        best = pick_better(s->drawn[i], best);
    return best;
}

/* The same by all blocks of the row, each its slice; for the first one. */
static __device__ struct pick_drawn pick_draw_all(const struct pick_view &slice, const struct pick_row &p,
                                                  struct pick_room *s)
{
    struct pick_drawn best = pick_draw(slice, p, 0xffffffffu, s);
    if (threadIdx.x == 0)
        *cluster_at(&s->draws[blockIdx.x], 0) = best;
    pick_meet();
    for (uint32_t i = 0; blockIdx.x == 0 && i < pick_blocks(); i++)
        best = pick_better(s->draws[i], best);
    return best;
}

/* Those tokens of the slice that have occurred before. */
static __device__ void pick_penalise(const struct pick_args &p, const struct pick_row &r, float *v,
                                     const struct pick_view &slice)
{
    for (uint32_t i = threadIdx.x; i < r.seen_count; i += PICK_THREADS) {
        const struct pick_seen seen = p.seen[r.seen + i];
        if ((uint32_t)seen.id < slice.first || (uint32_t)seen.id - slice.first >= slice.n)
            continue;
        const float x = v[seen.id];
        const float scaled = (float)(x > 0 ? x / r.repeat : x * r.repeat);
        v[seen.id] = scaled - (float)(r.presence + r.frequency * seen.count);
    }
    __syncthreads();
}

static __device__ __forceinline__ struct pick_slice pick_join(struct pick_slice a, struct pick_slice b)
{
    return {better(a.best, b.best) ? a.best : b.best, fmaxf(a.low, b.low), a.bad | b.bad};
}

/* Over lanes 0 to count - 1, a power of two, of a warp. */
static __device__ __forceinline__ struct pick_slice pick_join_lanes(struct pick_slice b, uint32_t count)
{
    for (uint32_t o = count / 2; o; o >>= 1) {
        const struct pick_slice c = {{__shfl_xor_sync(~0u, b.best.v, o), __shfl_xor_sync(~0u, b.best.i, o)},
                                     __shfl_xor_sync(~0u, b.low, o),
                                     __shfl_xor_sync(~0u, b.bad, o)};
        b = pick_join(c, b);
    }
    return b;
}

/* The best of the whole row, whose rank is 0, and the width of its finite numbers; false: some are no numbers, or there is
 * none. All blocks of the row find the same. */
static __device__ bool pick_range(struct pick_view *r, struct best *out, struct pick_room *s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct pick_slice b = {{-INFINITY, 0xffffffffu}, -INFINITY, 0};
    pick_each(*r, [&](float x, uint32_t i) {
        const struct best c = {x, r->first + i};
        b.bad |= !(x < INFINITY);
        b.best = better(c, b.best) ? c : b.best;
        b.low = x > -INFINITY ? fmaxf(b.low, -x) : b.low;
    });
    b = pick_join_lanes(b, 32);
    if (lane == 0)
        s->slice[warp] = b;
    __syncthreads();
    cluster_wait(); /* all blocks have begun: their memory is there */
    if (warp == 0) {
        b = pick_join_lanes(s->slice[lane], PICK_WARPS);
        if (lane < pick_blocks())
            *cluster_at(&s->slices[blockIdx.x], lane) = b;
    }
    pick_meet();
    b = s->slices[0];
    for (uint32_t i = 1; i < pick_blocks(); i++)
        b = pick_join(s->slices[i], b);
    *out = b.best;
    r->best = b.best.v;
    const float range = b.best.v + b.low;
    r->scale = range > 0.0f ? 4294967040.0f / range : 0.0f;
    return !b.bad && b.best.v > -INFINITY;
}

/* The token of a row that has numbers; -1 in all blocks but the first. */
static __device__ int32_t pick_token(const struct pick_row &row, const struct pick_view &slice,
                                     struct pick_view all, struct pick_room *s)
{
    const bool top_k = row.top_k > 0 && row.top_k < all.n, top_p = row.top_p < 1;
    uint32_t most = 0xffffffffu, digit;
    if (!top_k && !top_p) {
        const int32_t id = pick_draw_all(slice, row, s).id;
        return blockIdx.x == 0 ? id : -1;
    }
    digit = top_k ? pick_first<false>(slice, &all, &most, row.top_k, s)
                  : pick_first<true>(slice, &all, &most, row.top_p, s);
    if (blockIdx.x)
        return -1;
    most = top_k ? pick_cut<false>(all, most, true, digit, row.top_k, s)
                 : pick_cut<true>(all, most, true, digit, row.top_p, s);
    if (top_k && top_p)
        most = pick_cut<true>(all, most, false, 0, row.top_p, s);
    return pick_draw(all, row, most, s).id;
}

/* grid: (PICK_BLOCKS, rows) */
extern "C" __global__ void CLUSTER(PICK_BLOCKS) __launch_bounds__(PICK_THREADS)
    pick_rows(const __grid_constant__ struct pick_args p)
{
    __shared__ struct pick_room s;
    dep_launch();
    const struct pick_row row = p.row[blockIdx.y];
    if (!row.on || blockIdx.x >= pick_blocks()) {
        dep_wait();
        return;
    }
    float *v = p.logits + blockIdx.y * p.ld;
    const uint32_t each = (p.n + 4 * pick_blocks() - 1) / (4 * pick_blocks()) * 4,
                   first = min(blockIdx.x * each, p.n);
    struct pick_view slice = {v + first, NULL, first, min(each, p.n - first), 0.0f, 0.0f};
    pick_clear(&s);
    if (threadIdx.x == 0)
        s.listed = 0;
    __syncthreads();
    cluster_arrive();
    dep_wait();
    pick_penalise(p, row, v, slice);
    struct best best;
    int32_t id = -1;
    if (pick_range(&slice, &best, &s)) {
        const struct pick_view all = {v, NULL, 0, p.n, slice.best, slice.scale};
        id = row.temperature > 0 ? pick_token(row, slice, all, &s) : (int32_t)best.i;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        p.ids[blockIdx.y] = id;
}
