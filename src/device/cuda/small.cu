/* Small operations on rows for callers of the public header, and the choice of a token on the GPU. */
#include "base/noise.h"
#include "device/cuda/common.cuh"
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
 * 2^-32 (integers, so that the order of sums does not matter). */

enum { PICK_THREADS = 1024, PICK_BINS = 2048, PICK_LIST = 2048 };

/* The candidates: the whole row, or what a cut has left of it. */
struct pick_view {
    const float *v;
    const int32_t *id; /* NULL: the place is the id */
    uint32_t n;
    float best, scale; /* rank = (best - v) * scale */
};

struct pick_room {
    union {
        uint32_t count[PICK_BINS];
        unsigned long long mass[PICK_BINS];
    } bin;
    unsigned long long warp[PICK_THREADS / 32];
    unsigned long long target; /* still to be found */
    uint32_t digit, listed;
    float v[PICK_LIST];
    int32_t id[PICK_LIST];
    double drawn[PICK_THREADS / 32];
    int32_t drawn_id[PICK_THREADS / 32];
    struct best best[32];
    float max[32];
};

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

/* What lies up to a rank, where it fits into the room; else the row as it is. */
static __device__ void pick_gather(struct pick_view *r, uint32_t most, struct pick_room *s)
{
    if (threadIdx.x == 0)
        s->listed = 0;
    __syncthreads();
    const struct pick_view all = *r;
    pick_each(all, [&](float x, uint32_t i) {
        if (!(x > -INFINITY) || pick_rank(all, x) > most)
            return;
        const uint32_t at = atomicAdd(&s->listed, 1u);
        if (at < PICK_LIST) {
            s->v[at] = x;
            s->id[at] = (int32_t)i;
        }
    });
    __syncthreads();
    if (s->listed <= PICK_LIST) {
        r->v = s->v;
        r->id = s->id;
        r->n = s->listed;
    }
}

/* The least rank up to which there are `want` candidates, or that share of the probability (of what lies up to rank
 * `most`). Once the first digit is known the candidates are usually few: the other digits look at those alone. */
template <bool MASS>
static __device__ uint32_t pick_cut(struct pick_view *r, uint32_t most, double want, struct pick_room *s)
{
    uint32_t prefix = 0;
    for (int pass = 0; pass < 3; pass++) {
        const uint32_t shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bits = pass == 2 ? 10 : 11;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PICK_BINS; i += PICK_THREADS)
            s->bin.mass[i] = 0;
        __syncthreads();
        const struct pick_view all = *r;
        pick_each(all, [&](float x, uint32_t) {
            const uint32_t rank = pick_rank(all, x), bin = rank >> shift & ((1u << bits) - 1);
            if (!(x > -INFINITY) || rank > most || (pass && rank >> (shift + bits) != prefix))
                return;
            if (MASS)
                atomicAdd(&s->bin.mass[bin], pick_mass(all, x));
            else
                atomicAdd(&s->bin.count[bin], 1u);
        });
        __syncthreads();
        pick_bin<MASS>(s, 1u << bits, pass == 0, want);
        prefix = prefix << bits | s->digit;
        if (pass == 0) {
            const uint32_t end = prefix << 21 | 0x1fffff;
            most = end < most ? end : most;
            if (!r->id)
                pick_gather(r, most, s);
        }
    }
    __syncthreads();
    return prefix < most ? prefix : most;
}

/* The survivor with the largest logit / T + Gumbel noise. */
static __device__ int32_t pick_draw(const struct pick_view &r, const struct pick_row &p, uint32_t most,
                                    struct pick_room *s)
{
    const float least = r.best + p.min_shift;
    double best = -INFINITY;
    int32_t id = -1;
    pick_each(r, [&](float x, uint32_t i) {
        if (!(x > -INFINITY) || x < least || pick_rank(r, x) > most)
            return;
        const double l = x / p.temperature;
        if (l + NOISE_GUMBEL_MOST < best)
            return;
        const int32_t token = r.id ? r.id[i] : (int32_t)i;
        const double v = l - log(-log(noise_uniform(p.seed, p.position, (uint64_t)token)));
        if (v > best || (v == best && token < id)) {
            best = v;
            id = token;
        }
    });
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const double v = __shfl_xor_sync(~0u, best, o);
        const int32_t other = __shfl_xor_sync(~0u, id, o);
        if (v > best || (v == best && other < id)) {
            best = v;
            id = other;
        }
    }
    if (threadIdx.x % 32 == 0) {
        s->drawn[threadIdx.x / 32] = best;
        s->drawn_id[threadIdx.x / 32] = id;
    }
    __syncthreads();
    for (uint32_t i = 0; i < PICK_THREADS / 32; i++)
        if (s->drawn[i] > best || (s->drawn[i] == best && s->drawn_id[i] < id)) {
            best = s->drawn[i];
            id = s->drawn_id[i];
        }
    return id;
}

static __device__ void pick_penalise(const struct pick_args &p, const struct pick_row &r, float *v)
{
    for (uint32_t i = threadIdx.x; i < r.seen_count; i += PICK_THREADS) {
        const struct pick_seen seen = p.seen[r.seen + i];
        if (seen.id < 0 || (uint32_t)seen.id >= p.n)
            continue;
        const float x = v[seen.id];
        const float scaled = (float)(x > 0 ? x / r.repeat : x * r.repeat);
        v[seen.id] = scaled - (float)(r.presence + r.frequency * seen.count);
    }
    __syncthreads();
}

/* The best of the row and the width of its finite numbers; false: some are no numbers, or there is none. */
static __device__ bool pick_range(struct pick_view *r, struct best *out, struct pick_room *s)
{
    struct best b = {-INFINITY, 0xffffffffu};
    float low = -INFINITY; /* of -v */
    bool bad = false;
    pick_each(*r, [&](float x, uint32_t i) {
        const struct best c = {x, i};
        bad |= !(x < INFINITY);
        b = better(c, b) ? c : b;
        low = x > -INFINITY ? fmaxf(low, -x) : low;
    });
    bad = __syncthreads_or(bad);
    *out = block_best(b, s->best);
    low = block_max(low, s->max);
    r->best = out->v;
    const float range = out->v + low;
    r->scale = range > 0.0f ? 4294967040.0f / range : 0.0f;
    return !bad && out->v > -INFINITY;
}

extern "C" __global__ void __launch_bounds__(PICK_THREADS) pick_rows(const __grid_constant__ struct pick_args p)
{
    __shared__ struct pick_room s;
    dep_launch();
    dep_wait();
    const struct pick_row row = p.row[blockIdx.x];
    if (!row.on)
        return;
    float *v = p.logits + blockIdx.x * p.ld;
    struct pick_view r = {v, NULL, p.n, 0.0f, 0.0f};
    struct best best;
    pick_penalise(p, row, v);
    int32_t id = -1;
    if (pick_range(&r, &best, &s)) {
        uint32_t most = 0xffffffffu;
        id = (int32_t)best.i;
        if (row.temperature > 0 && row.top_k > 0 && row.top_k < p.n)
            most = pick_cut<false>(&r, most, row.top_k, &s);
        if (row.temperature > 0 && row.top_p < 1)
            most = pick_cut<true>(&r, most, row.top_p, &s);
        if (row.temperature > 0)
            id = pick_draw(r, row, most, &s);
    }
    if (threadIdx.x == 0)
        p.ids[blockIdx.x] = id;
}
