/* Layers that keep a state: causal convolutions, recurrences, and the gate behind them. Columns of a recurrence's state are
 * independent of each other: a column stays in the registers of a few lanes while they follow its sequence, row by row. */
#include "device/cuda/state.cuh"

/* ---- convolution ---- */

static __device__ __forceinline__ float conv_x(const struct conv_args &p, uint64_t row, uint32_t c)
{
    const float x = p.x[row * p.ldx + c];
    return p.mul ? x * p.mul[row * p.ldm + c] : x;
}

/* The x before row `first` + j of a sequence: past[i] is `TAPS - 1 - i` rows back. */
template <int TAPS>
static __device__ __forceinline__ void conv_past(const struct conv_args &p, uint32_t seq, uint32_t first,
                                                 uint32_t j, uint32_t c, float past[TAPS])
{
    const int32_t slot = p.meta.state_in[seq];
    const float *s = p.state.base + (uint64_t)slot * p.state.stride;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) {
        const uint32_t back = TAPS - 1 - i;
        past[i] = 0.0f;
        if (back > p.cols - 1)
            continue;
        if (back <= j)
            past[i] = conv_x(p, first + j - back, c);
        else if (slot)
            past[i] = s[(uint64_t)(p.cols - 1 + j - back) * p.channels + c];
    }
}

template <int TAPS>
static __device__ __forceinline__ void conv_keep(const struct conv_args &p, int32_t slot, uint32_t c,
                                                 const float past[TAPS])
{
    float *s = p.state.base + (uint64_t)slot * p.state.stride;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        if (TAPS - 1 - i <= p.cols - 1)
            s[(uint64_t)(i + p.cols - TAPS) * p.channels + c] = past[i];
}

/* A thread has a channel of CONV_ROWS rows. Where every sequence has one row it also keeps the state. */
template <int TAPS> static __device__ __forceinline__ void conv_body(const struct conv_args &p)
{
    const uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x, from = blockIdx.y * CONV_ROWS,
                   to = min(from + CONV_ROWS, p.m);
    float w[TAPS], past[TAPS], bias = 0.0f;
    dep_launch();
    if (c < p.channels) {
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const int at = i - (TAPS - (int)p.cols);
            w[i] = at >= 0 ? p.w[c * p.ldw + at] : 0.0f;
        }
        bias = p.bias ? p.bias[c] : 0.0f;
    }
    dep_wait();
    if (c >= p.channels)
        return;
    int32_t seq = -1;
    for (uint32_t r = from; r < to; r++) {
        const int32_t s = p.meta.row_seq[r];
        if (s != seq) {
            const uint32_t first = (uint32_t)p.meta.seq_first[s];
            conv_past<TAPS>(p, (uint32_t)s, first, r - first, c, past);
            seq = s;
        }
        past[TAPS - 1] = conv_x(p, r, c);
        float sum = bias;
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            sum += w[i] * past[i];
        p.y[(uint64_t)r * p.ldy + c] = act_one(p.act, sum);
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            past[i] = past[i + 1];
        const int32_t slot = p.keep ? p.meta.state_out[r] : 0;
        if (slot)
            conv_keep<TAPS>(p, slot, c, past);
    }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS) conv_4(const __grid_constant__ struct conv_args p)
{
    conv_body<4>(p);
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS) conv_8(const __grid_constant__ struct conv_args p)
{
    conv_body<8>(p);
}

/* The states that rows leave, a block for some channels of a sequence: the old one is in registers before any is written,
 * since a row may take its slot. */
extern "C" __global__ void __launch_bounds__(CONV_THREADS) conv_state(const __grid_constant__ struct conv_args p)
{
    enum { TAPS = 8 };
    __shared__ int32_t out[CONV_THREADS];
    dep_launch();
    dep_wait();
    const uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x, seq = blockIdx.y,
                   first = (uint32_t)p.meta.seq_first[seq], rows = (uint32_t)p.meta.seq_rows[seq];
    float old[TAPS];
    if (c < p.channels)
        conv_past<TAPS>(p, seq, first, 0, c, old);
    for (uint32_t from = 0; from < rows; from += CONV_THREADS) {
        const uint32_t r = from + threadIdx.x;
        out[threadIdx.x] = r < rows ? p.meta.state_out[first + r] : 0;
        const bool any = __syncthreads_or(out[threadIdx.x]);
        for (uint32_t i = 0; any && c < p.channels && i < CONV_THREADS; i++) {
            if (!out[i])
                continue;
            float past[TAPS];
#pragma unroll
            for (int q = 0; q < TAPS - 1; q++) { /* TAPS - 2 - q rows back from row from + i */
                const uint32_t back = TAPS - 2 - q, j = from + i;
                past[q] = 0.0f;
                if (back <= j) {
                    past[q] = back < p.cols - 1 ? conv_x(p, first + j - back, c) : 0.0f;
                } else {
#pragma unroll
                    for (int o = 0; o < TAPS - 1; o++) /* old[o] is TAPS - 1 - o rows before the first */
                        if (TAPS - 1 - o == (int)(back - j))
                            past[q] = old[o];
                }
            }
            conv_keep<TAPS>(p, out[i], c, past);
        }
        __syncthreads();
    }
}

/* ---- recurrence ---- */

template <int LANES> struct scan_sizes {
    enum {
        COLUMNS = SCAN_THREADS / LANES, /* of a block */
        KEYS = SCAN_EACH * LANES,       /* k_dim, padded */
        DECAYS = KEYS > COLUMNS ? KEYS : COLUMNS,
        ROWS = LANES <= 8 ? 16 : LANES == 16 ? 8 : 4 /* staged at a time */
    };
};

/* What the rows of a chunk bring. EACH: what decays a state. 0: one factor; 1: one for each key; 2: dt of its column;
 * 3: as 1, and rows erase. */
template <int LANES, int EACH> struct scan_stage {
    enum { ERASE_ROWS = EACH == 3 ? scan_sizes<LANES>::ROWS : 1 };
    float erase[ERASE_ROWS][scan_sizes<LANES>::KEYS], rate[ERASE_ROWS][scan_sizes<LANES>::KEYS];
    float q[scan_sizes<LANES>::ROWS][scan_sizes<LANES>::KEYS], k[scan_sizes<LANES>::ROWS][scan_sizes<LANES>::KEYS];
    float decay[scan_sizes<LANES>::ROWS][scan_sizes<LANES>::DECAYS]; /* one a row, or one a key, or dt of columns */
    float v[scan_sizes<LANES>::ROWS][scan_sizes<LANES>::COLUMNS];
    float write[scan_sizes<LANES>::ROWS][scan_sizes<LANES>::COLUMNS];
    int32_t out[scan_sizes<LANES>::ROWS];
};

/* A head of q or k of one row, normed and scaled, from a warp's registers to shared memory; zeros behind it. */
template <int KEYS>
static __device__ __forceinline__ void scan_key(const struct norm_args &n, const float *v, uint32_t head, float scale,
                                                uint32_t dim, float *to)
{
    const uint32_t lane = threadIdx.x % 32;
    const float *w = n.w ? n.w + (n.w_len > dim ? head * dim : 0) : NULL;
    float sum = 0.0f, mean = 0.0f;
    if (n.kind == NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < (KEYS + 31) / 32; i++)
            sum += v[i];
        mean = warp_sum(sum) / (float)dim;
    }
    if (n.kind != NORM_NONE) {
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < (KEYS + 31) / 32; i++)
            sum += 32 * i + lane < dim ? (v[i] - mean) * (v[i] - mean) : 0.0f;
        scale *= rsqrtf(warp_sum(sum) / (float)dim + n.eps);
    }
#pragma unroll
    for (int i = 0; i < (KEYS + 31) / 32; i++) {
        const uint32_t at = 32 * i + lane;
        if (at < KEYS)
            to[at] = at < dim ? (v[i] - mean) * scale * (w ? w[at] : 1.0f) : 0.0f;
    }
}

/* x to length 1, once times the root of its numbers. */
static __device__ __forceinline__ struct norm_args unit_norm(void)
{
    struct norm_args n = {};
    n.kind = NORM_RMS;
    n.eps = 1e-26f;
    return n;
}

/* Which head and which of its columns a thread has; head == heads: none. */
struct scan_column {
    uint32_t head, v;
};

/* Where states are vectors (a factor of `a` for each key), a block has a head a column, all of one key head; else columns
 * of one head. */
template <int LANES> static __device__ __forceinline__ struct scan_column scan_column_of(const struct scan_args &p,
                                                                                         uint32_t column)
{
    enum { COLUMNS = scan_sizes<LANES>::COLUMNS };
    if (p.by_channel) {
        const uint32_t each = p.heads / p.k_heads, per = (each + COLUMNS - 1) / COLUMNS,
                       i = blockIdx.x % per * COLUMNS + column;
        return {i < each ? blockIdx.x / per * each + i : p.heads, 0};
    }
    const uint32_t per = (p.v_dim + COLUMNS - 1) / COLUMNS, v = blockIdx.x % per * COLUMNS + column;
    return {v < p.v_dim ? blockIdx.x / per : p.heads, v};
}

/* What a thread loads of a chunk: on its way while the chunk before is computed. Items of q and k belong to a warp, numbers
 * of columns (v, decay, write) and decays of keys to a thread. */
template <int LANES, int EACH> struct scan_ahead {
    enum {
        WARPS = SCAN_THREADS / 32,
        KINDS = EACH == 3 ? 4 : 2, /* q, k, erase, rate */
        KEY_ITEMS = KINDS * scan_sizes<LANES>::ROWS / WARPS,
        KEY_VALUES = (scan_sizes<LANES>::KEYS + 31) / 32,
        COLUMN_ITEMS = (scan_sizes<LANES>::ROWS * scan_sizes<LANES>::COLUMNS + SCAN_THREADS - 1) / SCAN_THREADS,
        DECAY_ITEMS = scan_sizes<LANES>::ROWS * scan_sizes<LANES>::KEYS / SCAN_THREADS
    };
    float key[KEY_ITEMS][KEY_VALUES], v[COLUMN_ITEMS], decay[COLUMN_ITEMS], write[COLUMN_ITEMS], each[DECAY_ITEMS];
    int32_t out;
};

/* Whose k and v a head has: of its own, or shared. */
template <int EACH> static __device__ __forceinline__ uint32_t scan_shared(const struct scan_args &p, uint32_t head)
{
    return EACH == 1 ? head / p.sharing : head;
}

/* Loads rows [from, from + n) of the step. */
template <int LANES, int EACH>
static __device__ __forceinline__ void scan_fetch(const struct scan_args &p, uint32_t from, uint32_t n,
                                                  struct scan_ahead<LANES, EACH> &a)
{
    typedef scan_ahead<LANES, EACH> A;
    enum { COLUMNS = scan_sizes<LANES>::COLUMNS, KEYS = scan_sizes<LANES>::KEYS };
    const uint32_t head = scan_column_of<LANES>(p, 0).head, own = scan_own(p, head), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < A::KEY_ITEMS; i++) {
        const uint32_t item = i * A::WARPS + threadIdx.x / 32;
        const uint64_t row = from + item / A::KINDS;
        const float *x = item % A::KINDS == 0   ? p.q + row * p.ldq + own * p.k_dim
                         : item % A::KINDS == 1 ? p.k + row * p.ldk + scan_shared<EACH>(p, own) * p.k_dim
                         : item % A::KINDS == 2 ? p.erase + row * p.lde + own * p.k_dim
                                                : p.rate + row * p.ldr + own * p.k_dim;
#pragma unroll
        for (int j = 0; j < A::KEY_VALUES; j++)
            a.key[i][j] = item / A::KINDS < n && 32 * j + lane < p.k_dim ? x[32 * j + lane] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < A::COLUMN_ITEMS; i++) {
        const uint32_t item = i * SCAN_THREADS + threadIdx.x;
        const struct scan_column c = scan_column_of<LANES>(p, item % COLUMNS);
        const uint64_t row = from + item / COLUMNS;
        const bool there = item / COLUMNS < n && c.head < p.heads;
        a.v[i] = there ? p.v[row * p.ldv + scan_shared<EACH>(p, c.head) * p.v_dim + c.v] : 0.0f;
        a.decay[i] = there && p.decay && !(EACH & 1) ? p.decay[row * p.ldd + c.head] : 0.0f;
        a.write[i] = there && p.write ? p.write[row * p.ldw + c.head] : 0.0f;
    }
#pragma unroll
    for (int i = 0; EACH & 1 && i < A::DECAY_ITEMS; i++) {
        const uint32_t item = i * SCAN_THREADS + threadIdx.x, key = item % KEYS;
        a.each[i] = item / KEYS < n && key < p.k_dim
                        ? p.decay[(uint64_t)(from + item / KEYS) * p.ldd + head * p.k_dim + key]
                        : 0.0f;
    }
    a.out = threadIdx.x < n ? p.meta.state_out[from + threadIdx.x] : 0;
}

/* What S^T q of a row and head is multiplied by. */
static __device__ __forceinline__ float scan_share(const struct scan_args &p, uint64_t row, uint32_t head)
{
    if (!p.size)
        return 1.0f;
    return 1.0f / (fmaxf(fabsf(p.size[row * p.lds + head]), p.least[row * p.ldl + head]) + p.size_eps);
}

/* The same rows, prepared, into shared memory. */
template <int LANES, int EACH>
static __device__ __forceinline__ void scan_stage_rows(const struct scan_args &p, uint32_t from, uint32_t n,
                                                       const struct scan_ahead<LANES, EACH> &a,
                                                       struct scan_stage<LANES, EACH> &s)
{
    typedef scan_ahead<LANES, EACH> A;
    enum { COLUMNS = scan_sizes<LANES>::COLUMNS, KEYS = scan_sizes<LANES>::KEYS, ROWS = scan_sizes<LANES>::ROWS };
    const uint32_t head = scan_column_of<LANES>(p, 0).head, own = scan_own(p, head);
    struct norm_args plain = {};
#pragma unroll
    for (int i = 0; i < A::KEY_ITEMS; i++) {
        const uint32_t item = i * A::WARPS + threadIdx.x / 32;
        const uint32_t row = item / A::KINDS;
        if (row >= n)
            continue;
        if (item % A::KINDS == 0)
            scan_key<KEYS>(p.q_norm, a.key[i], own, p.q_scale * (EACH ? 1.0f : scan_share(p, from + row, head)),
                           p.k_dim, s.q[row]);
        else if (item % A::KINDS == 1)
            scan_key<KEYS>(p.k_norm, a.key[i], own, p.k_scale, p.k_dim, s.k[row]);
        else if (item % A::KINDS == 2)
            scan_key<KEYS>(unit_norm(), a.key[i], own, rsqrtf((float)p.k_dim), p.k_dim, s.erase[row]);
        else
            scan_key<KEYS>(plain, a.key[i], own, 1.0f, p.k_dim, s.rate[row]);
    }
#pragma unroll
    for (int i = 0; i < A::COLUMN_ITEMS; i++) {
        const uint32_t item = i * SCAN_THREADS + threadIdx.x, row = item / COLUMNS, column = item % COLUMNS,
                       h = min(scan_column_of<LANES>(p, column).head, p.heads - 1);
        if (row >= ROWS)
            continue;
        const struct scan_decay d =
            scan_decay_of(p, EACH ? 0.0f : p.a[h], a.decay[i] + (p.bias && !(EACH & 1) ? p.bias[h] : 0.0f));
        s.v[row][column] = a.v[i];
        s.write[row][column] = p.write ? (p.delta ? p.write_scale * sigmoid(a.write[i]) : a.write[i])
                               : EACH & 1 ? 1.0f
                                          : d.dt;
        if (EACH == 2)
            s.decay[row][column] = d.dt;
        else if (EACH == 0 && column == 0)
            s.decay[row][0] = scan_factor(p, d);
    }
#pragma unroll
    for (int i = 0; EACH & 1 && i < A::DECAY_ITEMS; i++) {
        const uint32_t item = i * SCAN_THREADS + threadIdx.x, key = item % KEYS;
        const float bias = p.bias && key < p.k_dim ? p.bias[head * p.k_dim + key] : 0.0f;
        s.decay[item / KEYS][key] =
            key < p.k_dim ? scan_factor(p, scan_decay_of(p, p.a[head], a.each[i] + bias)) : 0.0f;
    }
    if (threadIdx.x < ROWS)
        s.out[threadIdx.x] = a.out;
}

/* k times 1 - decay, of rows that are staged. */
template <int LANES>
static __device__ __forceinline__ void scan_rest(uint32_t n, struct scan_stage<LANES, 1> &s)
{
    enum { KEYS = scan_sizes<LANES>::KEYS };
    for (uint32_t item = threadIdx.x; item < n * KEYS; item += SCAN_THREADS)
        s.k[item / KEYS][item % KEYS] *= 1.0f - s.decay[item / KEYS][item % KEYS];
}

template <int LANES> static __device__ __forceinline__ float lanes_sum(float v)
{
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

/* S *= decay. */
template <int LANES, int EACH>
static __device__ __forceinline__ void scan_fade(const struct scan_stage<LANES, EACH> &st, uint32_t r, uint32_t column,
                                                 uint32_t lane, const float a[SCAN_EACH], float s[SCAN_EACH])
{
    if constexpr (EACH == 0) {
        const float g = st.decay[r][0];
#pragma unroll
        for (int i = 0; i < SCAN_EACH; i++)
            s[i] *= g;
    } else if constexpr (EACH & 1) {
#pragma unroll
        for (int i = 0; i < SCAN_EACH / 4; i++) {
            const float4 g = *(const float4 *)&st.decay[r][4 * (i * LANES + lane)];
            s[4 * i] *= g.x, s[4 * i + 1] *= g.y, s[4 * i + 2] *= g.z, s[4 * i + 3] *= g.w;
        }
    } else {
        const float dt = st.decay[r][column];
#pragma unroll
        for (int i = 0; i < SCAN_EACH; i++)
            s[i] *= expf(a[i] * dt);
    }
}

template <int LANES>
static __device__ __forceinline__ float scan_dot(const float *x, uint32_t lane, const float s[SCAN_EACH])
{
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SCAN_EACH / 4; i++) {
        const float4 v = *(const float4 *)&x[4 * (i * LANES + lane)];
        sum[0] += v.x * s[4 * i], sum[1] += v.y * s[4 * i + 1], sum[2] += v.z * s[4 * i + 2],
            sum[3] += v.w * s[4 * i + 3];
    }
    return lanes_sum<LANES>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* One row: the state after it, and what it gives. */
template <int LANES, int EACH>
static __device__ __forceinline__ float scan_row(const struct scan_args &p, const struct scan_stage<LANES, EACH> &st,
                                                 uint32_t r, uint32_t column, uint32_t lane, const float a[SCAN_EACH],
                                                 float s[SCAN_EACH])
{
    float known = 0.0f, v = st.v[r][column], before = 0.0f;
    if constexpr (EACH == 3)
        known = scan_dot<LANES>(st.erase[r], lane, s);
    if (EACH == 1 && p.before)
        before = scan_dot<LANES>(st.q[r], lane, s);
    scan_fade<LANES, EACH>(st, r, column, lane, a, s);
    if (p.delta)
        v -= scan_dot<LANES>(st.k[r], lane, s);
    v *= st.write[r][column];
#pragma unroll
    for (int i = 0; i < SCAN_EACH / 4; i++) {
        const float4 k = *(const float4 *)&st.k[r][4 * (i * LANES + lane)];
        s[4 * i] += k.x * v, s[4 * i + 1] += k.y * v, s[4 * i + 2] += k.z * v, s[4 * i + 3] += k.w * v;
        if constexpr (EACH == 3) {
            const float4 e = *(const float4 *)&st.erase[r][4 * (i * LANES + lane)],
                         w = *(const float4 *)&st.rate[r][4 * (i * LANES + lane)];
            s[4 * i] -= e.x * w.x * known, s[4 * i + 1] -= e.y * w.y * known;
            s[4 * i + 2] -= e.z * w.z * known, s[4 * i + 3] -= e.w * w.w * known;
        }
    }
    return EACH == 1 && p.before ? before : scan_dot<LANES>(st.q[r], lane, s);
}

/* The part of a column that a lane has, from or to a slot. */
template <int LANES, bool STORE>
static __device__ __forceinline__ void scan_move(const struct scan_args &p, int32_t slot, uint64_t column,
                                                 uint32_t lane, float s[SCAN_EACH])
{
    float *at = p.state.base + (uint64_t)slot * p.state.stride + column * p.keys;
#pragma unroll
    for (int i = 0; i < SCAN_EACH / 4; i++) {
        const uint32_t k = 4 * (i * LANES + lane);
        if (STORE && k < p.keys)
            *(float4 *)(at + k) = make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
        if (!STORE) {
            const float4 v = slot && k < p.keys ? *(const float4 *)(at + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            s[4 * i] = v.x, s[4 * i + 1] = v.y, s[4 * i + 2] = v.z, s[4 * i + 3] = v.w;
        }
    }
}

/* A block has COLUMNS columns of one sequence (blockIdx.y). */
template <int LANES, int EACH> static __device__ __forceinline__ void scan_body(const struct scan_args &p)
{
    enum { ROWS = scan_sizes<LANES>::ROWS };
    __shared__ __align__(16) struct scan_stage<LANES, EACH> st;
    const uint32_t seq = blockIdx.y, lane = threadIdx.x % LANES, column = threadIdx.x / LANES;
    const struct scan_column c = scan_column_of<LANES>(p, column);
    const bool mine = c.head < p.heads;
    const uint64_t at = (uint64_t)c.head * p.v_dim + c.v;
    float s[SCAN_EACH], a[SCAN_EACH], skip = 0.0f;
    dep_launch();
    /* the state is of an earlier step: it can be read before the predecessor is done */
    scan_move<LANES, false>(p, mine ? p.meta.state_in[seq] : 0, at, lane, s);
#pragma unroll
    for (int i = 0; EACH == 2 && i < SCAN_EACH; i++) {
        const uint32_t k = 4 * (i / 4 * LANES + lane) + i % 4;
        a[i] = mine && k < p.k_dim ? p.a[c.head * p.lda + k] : 0.0f;
    }
    if (mine && p.skip)
        skip = p.skip[c.head];
    dep_wait();
    const uint32_t first = (uint32_t)p.meta.seq_first[seq], rows = (uint32_t)p.meta.seq_rows[seq];
    if (EACH == 0 && rows > p.rows_most)
        return; /* in chunks */
    struct scan_ahead<LANES, EACH> ahead;
    scan_fetch<LANES, EACH>(p, first, min((uint32_t)ROWS, rows), ahead);
    for (uint32_t from = 0; from < rows; from += ROWS) {
        const uint32_t n = min((uint32_t)ROWS, rows - from);
        if (from)
            __syncthreads();
        scan_stage_rows<LANES, EACH>(p, first + from, n, ahead, st);
        __syncthreads();
        if constexpr (EACH == 1) {
            if (p.rest) {
                scan_rest<LANES>(n, st);
                __syncthreads();
            }
        }
        if (from + ROWS < rows)
            scan_fetch<LANES, EACH>(p, first + from + ROWS, min((uint32_t)ROWS, rows - from - ROWS), ahead);
        for (uint32_t r = 0; r < n; r++) {
            const float y = scan_row<LANES, EACH>(p, st, r, column, lane, a, s);
            if (mine && lane == 0)
                p.out[(uint64_t)(first + from + r) * p.ldo + at] = y + skip * st.v[r][column];
            if (mine && st.out[r])
                scan_move<LANES, true>(p, st.out[r], at, lane, s);
        }
    }
}

#define SCAN(lanes)                                                                                          \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS)                                               \
        scan_##lanes(const __grid_constant__ struct scan_args p)                                             \
    {                                                                                                        \
        scan_body<lanes, 0>(p);                                                                              \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS)                                               \
        scan_each_##lanes(const __grid_constant__ struct scan_args p)                                        \
    {                                                                                                        \
        scan_body<lanes, 1>(p);                                                                              \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS)                                               \
        scan_channels_##lanes(const __grid_constant__ struct scan_args p)                                    \
    {                                                                                                        \
        scan_body<lanes, 2>(p);                                                                              \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS)                                               \
        scan_erase_##lanes(const __grid_constant__ struct scan_args p)                                       \
    {                                                                                                        \
        scan_body<lanes, 3>(p);                                                                              \
    }

SCAN(1)
SCAN(2)
SCAN(4)
SCAN(8)
SCAN(16)
SCAN(32)

/* ---- recurrences of channels ---- */

/* What a row brings to a channel, whatever the state is. */
struct cell_row {
    float a, b, c;
};

template <int KIND>
static __device__ __forceinline__ struct cell_row cell_row_of(const struct cell_args &p, uint64_t row, uint32_t c, float a,
                                                              float gate_bias, float decay_bias)
{
    const float gate = p.gate[row * p.ldg + c];
    if constexpr (KIND == CELL_AVERAGE)
        return {p.x[row * p.ldx + c], gate, gate + gate_bias};
    const float decay = p.decay[row * p.ldd + c] + decay_bias;
    if constexpr (KIND == CELL_GATES)
        return {-softplus(-decay), gate + gate_bias, 0.0f};
    const float power = a * sigmoid(decay);
    return {expf(power),
            (p.meta.pos[row] ? sqrtf(-expm1f(2.0f * power)) : 1.0f) * sigmoid(gate + gate_bias) * p.x[row * p.ldx + c],
            0.0f};
}

/* A row: the state after it, and what it gives. */
template <int KIND>
static __device__ __forceinline__ void cell_step(const struct cell_args &p, const struct cell_row &r, float a, float s[3],
                                                 float *y)
{
    if constexpr (KIND == CELL_LRU) {
        *y = s[0] = r.a * s[0] + r.b;
    } else if constexpr (KIND == CELL_GATES) {
        const float f = r.a + s[0], m = fmaxf(f, r.b);
        y[0] = expf(f - m);
        y[p.channels] = expf(r.b - m);
        y[2 * p.channels] = expf(-m);
        s[0] = m;
    } else {
        const float before = s[1] > 0.0f ? s[2] : -INFINITY; /* no row yet */
        float m = fmaxf(before, r.c), old = expf(before - m), own = expf(r.c - m);
        *y = (old * s[0] + own * r.a) / (old * s[1] + own);
        m = fmaxf(before + a, r.b), old = expf(before + a - m), own = expf(r.b - m);
        s[0] = old * s[0] + own * r.a;
        s[1] = old * s[1] + own;
        s[2] = m;
    }
}

/* A thread has a channel of a sequence (blockIdx.y). What CELL_ROWS rows bring is made at once. */
template <int KIND> static __device__ __forceinline__ void cell_body(const struct cell_args &p)
{
    enum { KEPT = KIND == CELL_AVERAGE ? 3 : 1 };
    const uint32_t c = blockIdx.x * CELL_THREADS + threadIdx.x, seq = blockIdx.y;
    dep_launch();
    if (c >= p.channels)
        return;
    /* as in scan_body: of an earlier step */
    const int32_t slot = p.meta.state_in[seq];
    float s[3];
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        s[i] = slot ? p.state.base[(uint64_t)slot * p.state.stride + i * p.channels + c] : 0.0f;
    const float a = p.a ? p.a[c] : 0.0f, gate_bias = p.gate_bias ? p.gate_bias[c] : 0.0f,
                decay_bias = p.decay_bias ? p.decay_bias[c] : 0.0f;
    dep_wait();
    const uint32_t first = (uint32_t)p.meta.seq_first[seq], rows = (uint32_t)p.meta.seq_rows[seq];
    for (uint32_t from = 0; from < rows; from += CELL_ROWS) {
        struct cell_row in[CELL_ROWS];
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++)
            if (from + i < rows)
                in[i] = cell_row_of<KIND>(p, first + from + i, c, a, gate_bias, decay_bias);
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            if (from + i >= rows)
                break;
            const uint64_t row = first + from + i;
            cell_step<KIND>(p, in[i], a, s, p.y + row * p.ldy + c);
            const int32_t out = p.meta.state_out[row];
#pragma unroll
            for (int j = 0; out && j < KEPT; j++)
                p.state.base[(uint64_t)out * p.state.stride + j * p.channels + c] = s[j];
        }
    }
}

#define CELL(kind, name)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CELL_THREADS)                                               \
        cell_##name(const __grid_constant__ struct cell_args p)                                              \
    {                                                                                                        \
        cell_body<kind>(p);                                                                                  \
    }

CELL(CELL_LRU, lru)
CELL(CELL_AVERAGE, average)
CELL(CELL_GATES, gates)

/* ---- the gate behind them ---- */

/* A number of the gate for column i of a row. */
static __device__ __forceinline__ float gate_at(const struct gate_args &p, uint64_t row, uint32_t i)
{
    if (!p.gate)
        return 1.0f;
    return act_one(p.act, p.gate[row * p.ldg + (p.gate_heads ? i / (p.k / p.gate_heads) : i)]);
}

static __device__ __forceinline__ float gate_in(const struct gate_args &p, uint64_t row, uint32_t i)
{
    const float x = p.x[row * p.ldx + i];
    return p.first ? x * gate_at(p, row, i) : x;
}

static __device__ __forceinline__ float gate_out(const struct gate_args &p, uint64_t row, uint32_t i, float mean,
                                                 float scale, uint32_t w_at)
{
    float y = (gate_in(p, row, i) - mean) * scale;
    y *= p.norm.w ? p.norm.w[w_at] : 1.0f;
    y += p.norm.b ? p.norm.b[w_at] : 0.0f;
    return p.first ? y : y * gate_at(p, row, i);
}

/* Slices of a row that are normed each by itself, a warp a slice; or one row a block. */
extern "C" __global__ void __launch_bounds__(256) gate_rows(const __grid_constant__ struct gate_args p)
{
    __shared__ float room[32];
    dep_launch();
    dep_wait();
    const uint32_t slices = p.norm.heads > 1 ? p.norm.heads : 1, dim = p.k / slices, row = blockIdx.y;
    const bool whole = slices == 1;
    const uint32_t slice = whole ? 0 : blockIdx.x * 8 + threadIdx.x / 32, at = whole ? threadIdx.x : threadIdx.x % 32,
                   step = whole ? 256 : 32, from = slice * dim;
    float mean = 0.0f, scale = 1.0f, sum = 0.0f;
    if (slice >= slices)
        return;
    if (p.norm.kind == NORM_LAYER) {
        for (uint32_t i = at; i < dim; i += step)
            sum += gate_in(p, row, from + i);
        mean = (whole ? block_sum(sum, room) : warp_sum(sum)) / (float)dim;
        sum = 0.0f;
    }
    if (p.norm.kind != NORM_NONE) {
        for (uint32_t i = at; i < dim; i += step) {
            const float v = gate_in(p, row, from + i) - mean;
            sum += v * v;
        }
        scale = rsqrtf((whole ? block_sum(sum, room) : warp_sum(sum)) / (float)dim + p.norm.eps);
    }
    const bool own = p.norm.w_len > dim; /* a weight for each slice */
    for (uint32_t i = at; i < dim; i += step)
        p.out[(uint64_t)row * p.ldo + from + i] = gate_out(p, row, from + i, mean, scale, own ? from + i : i);
}
