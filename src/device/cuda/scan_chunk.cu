/* Recurrences of prompts with one decay for each row and head, CHUNK_ROWS rows at a time as products of matrices. S (keys,
 * columns) is the state before a chunk; row t decays it by e^c of which c(t) is the sum up to that row, and writes w(t):
 *
 *   u(t) = w(t) (v(t) - e^c(t) S^T k(t) - sum over i < t of e^(c(t) - c(i)) (k(t) k(i)) u(i))      the delta rule, else w v
 *   y(t) = e^c(t) S^T q(t) + sum over i <= t of e^(c(t) - c(i)) (q(t) k(i)) u(i)
 *   S'   = e^c(n) S + sum of e^(c(n) - c(i)) k(i) u(i)^T
 *
 * So U = solve R: R is what rows would write if each were the first, and `solve`, which is the same for all columns, the
 * inverse of a triangle: ones, and below them w(t) e^(c(t) - c(i)) (k(t) k(i)).
 *
 * ready_body makes what depends on no state, a block for each chunk and head. follow_body goes from chunk to chunk, a warp
 * for each 16 columns of a head, which it shares with none: their S^T, R^T, U^T and y^T are in its registers, where the sums
 * of one product are the A operand of the next.
 *
 * Operands are fp16, each matrix times a power of two; sums, decays and the inverse are float. In fp16 all operands together
 * cost about as much accuracy as keys and queries alone, so none has a second part. No exponent is positive. */
#include "device/cuda/state.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/bulk.cuh"

enum {
    TILES = CHUNK_ROWS / 8,      /* of eight rows */
    MATRIX_ROW = 2 * CHUNK_ROWS, /* bytes */
    SIDE = CHUNK_ROWS + 4,       /* floats of a row of the triangle */
    PART = CHUNK_ROWS / 2,       /* rows of the triangles that a warp inverts */
    POWER_LEAST = -40,           /* of a row: nothing is left */
    SEEN_SCALE = 1 << 6          /* what q k as stored is divided by */
};

/* The power of two that brings what is at most `most` to below 2^10. */
static __device__ __forceinline__ float chunk_scale(float most)
{
    const int e = min(max((int)(__float_as_uint(most) >> 23) - 127, -60), 60);
    return __uint_as_float((uint32_t)(127 + 9 - e) << 23);
}

/* Where a lane's row of the four matrices that it loads at once is, in rows of ROW bytes. They are 16 rows of 32 bytes, in
 * the order of a B operand whose columns are the rows; BY_COLUMNS: of an A operand, or of B (turned) whose rows they are. */
template <int ROW, bool BY_COLUMNS> struct chunk_lane {
    uint32_t at, turn;
    __device__ __forceinline__ chunk_lane(const void *matrix)
    {
        const uint32_t lane = threadIdx.x % 32, i = lane / 8, low = BY_COLUMNS ? i % 2 : i / 2,
                       unit = BY_COLUMNS ? i / 2 : i % 2;
        at = shared_address(matrix) + (8 * low + lane % 8) * ROW;
        turn = (unit ^ lane % 8) * 16;
    }
    /* rows from 16 * row on, bytes from 32 * column on */
    __device__ __forceinline__ uint32_t of(uint32_t row, uint32_t column) const
    {
        return at + 16 * ROW * row + (32 * column ^ turn);
    }
};

/* ---- what depends on no state ---- */

template <int KEYS> struct ready_room {
    uint16_t k[CHUNK_ROWS * KEYS], q[CHUNK_ROWS * KEYS];
    float side[CHUNK_ROWS][SIDE]; /* the triangle, then its inverse */
    float power[CHUNK_ROWS], write[CHUNK_ROWS], self[CHUNK_ROWS], most[2][READY_THREADS / 32];
};
static_assert(sizeof(ready_room<64>) <= READY_SHARED(64) && sizeof(ready_room<128>) <= READY_SHARED(128),
              "room");

struct chunk_rows {
    uint32_t first, n; /* of the step; n 0: there is no such chunk */
};

/* The rows of a chunk, by its number. A warp. */
static __device__ __forceinline__ struct chunk_rows chunk_find(const struct scan_args &p, uint32_t number)
{
    for (uint32_t from = 0; from < p.meta.seqs; from += 32) {
        const uint32_t seq = from + threadIdx.x % 32;
        const bool there = seq < p.meta.seqs;
        const uint32_t first = there ? (uint32_t)p.meta.seq_first[seq] : 0,
                       rows = there ? (uint32_t)p.meta.seq_rows[seq] : 0, own = first / CHUNK_LEAST;
        const uint32_t hits =
            __ballot_sync(~0u, rows >= p.rows_least && number >= own && (number - own) * CHUNK_ROWS < rows);
        if (hits) {
            const int lane = __ffs(hits) - 1;
            const uint32_t f = __shfl_sync(~0u, first, lane), r = __shfl_sync(~0u, rows, lane),
                           at = (number - f / CHUNK_LEAST) * CHUNK_ROWS;
            return {f + at, min((uint32_t)CHUNK_ROWS, r - at)};
        }
    }
    return {0, 0};
}

/* A head of q or k, a warp's 16 rows of the chunk: KEYS / 32 numbers of each in a lane, zeros behind them. */
template <int KEYS>
static __device__ __forceinline__ void ready_load(const float *x, uint64_t ld, const struct chunk_rows &c,
                                                  uint32_t head, uint32_t dim, float v[16][KEYS / 32])
{
    enum { EACH = KEYS / 32 };
    const uint32_t at = threadIdx.x % 32 * EACH, row = threadIdx.x / 32 * 16;
    const bool aligned = is_aligned(x, ld);
    x += (uint64_t)(c.first + row) * ld + (uint64_t)head * dim + at;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float *from = x + i * ld;
        const bool mine = at < dim && row + i < c.n;
        if (EACH == 4 && aligned) {
            const float4 f = mine ? *(const float4 *)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            v[i][0] = f.x, v[i][1] = f.y, v[i][EACH - 2] = f.z, v[i][EACH - 1] = f.w;
        } else {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                v[i][j] = mine ? from[j] : 0.0f;
        }
    }
}

/* The same rows normed and scaled; the largest number of the warp's. */
template <int KEYS>
static __device__ __forceinline__ float ready_norm(const struct norm_args &n, uint32_t rows, uint32_t head,
                                                   uint32_t dim, float scale, float v[16][KEYS / 32])
{
    enum { EACH = KEYS / 32 };
    const uint32_t at = threadIdx.x % 32 * EACH;
    float w[EACH], most = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        w[j] = at >= dim ? 0.0f : n.w ? n.w[(n.w_len > dim ? head * dim : 0) + at + j] : 1.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float mean = 0.0f, sum = 0.0f, by = scale;
        if (n.kind == NORM_LAYER) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum += v[i][j];
            mean = warp_sum(sum) / (float)dim;
            sum = 0.0f;
        }
        if (n.kind != NORM_NONE) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum += at < dim ? (v[i][j] - mean) * (v[i][j] - mean) : 0.0f;
            sum = warp_sum(sum) / (float)dim + n.eps;
            by = threadIdx.x / 32 * 16 + i < rows ? by * rsqrtf(sum) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            v[i][j] = (v[i][j] - mean) * by * w[j];
            most = fmaxf(most, fabsf(v[i][j]));
        }
    }
    return warp_max(most);
}

/* And as fp16, into shared memory and, if it is this block that does it, to the chunk. */
template <int KEYS>
static __device__ __forceinline__ void ready_store(const float v[16][KEYS / 32], float scale, uint16_t *room,
                                                   uint8_t *to, bool stores)
{
    enum { EACH = KEYS / 32, ROW = 2 * KEYS };
    const uint32_t byte = threadIdx.x % 32 * 2 * EACH, row = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t at = (row + i) * ROW + ((byte / 16 ^ (row + i) % 8) * 16 + byte % 16);
#pragma unroll
        for (int j = 0; j < EACH / 2; j++) {
            const uint32_t bits = half_bits2(v[i][2 * j] * scale, v[i][2 * j + 1] * scale);
            *(uint32_t *)((uint8_t *)room + at + 4 * j) = bits;
            if (stores)
                *(uint32_t *)(to + at + 4 * j) = bits;
        }
    }
}

/* q k of each row with itself, from floats: under strong decays it is all that a row sees, and a norm may follow. What keys
 * lack as fp16 waits in the room of the triangle for the queries; a lane takes what it has left there. */
template <int KEYS>
static __device__ __forceinline__ void ready_self(const float v[16][KEYS / 32], float scale, bool query,
                                                  struct ready_room<KEYS> &s)
{
    enum { EACH = KEYS / 32, ROW = 2 * KEYS };
    const uint32_t lane = threadIdx.x % 32, byte = lane * 2 * EACH, first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t row = first + i, at = row * ROW + ((byte / 16 ^ row % 8) * 16 + byte % 16);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH / 2; j++) {
            const float2 high = __half22float2(*(const __half2 *)((const uint8_t *)s.k + at + 4 * j));
            uint32_t *low = (uint32_t *)((uint8_t *)s.side[row] + byte + 4 * j);
            const float a = v[i][2 * j] * scale, b = v[i][2 * j + 1] * scale;
            if (query) {
                const float2 rest = __half22float2(*(const __half2 *)low);
                sum += a * (high.x + rest.x) + b * (high.y + rest.y);
            } else {
                *low = half_bits2(a - high.x, b - high.y);
            }
        }
        if (query) {
            sum = warp_sum(sum);
            if (lane == 0)
                s.self[row] = sum;
        }
    }
}

/* Powers of the rows, summed, and how strongly they write. A warp, two rows a lane. */
static __device__ __forceinline__ void ready_powers(const struct scan_args &p, const struct chunk_rows &c,
                                                    uint32_t head, float *power, float *write)
{
    const uint32_t lane = threadIdx.x % 32;
    const float bias = p.bias ? p.bias[head] : 0.0f;
    float own[2], sum;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t r = 2 * lane + i;
        const uint64_t row = c.first + r;
        own[i] = 0.0f;
        write[r] = 0.0f;
        if (r >= c.n)
            continue;
        const struct scan_decay d =
            scan_decay_of(p, p.a[head], (p.decay ? p.decay[row * p.ldd + head] : 0.0f) + bias);
        own[i] = fmaxf(p.decay_kind == DECAY_GIVEN ? logf(d.power) : d.power, (float)POWER_LEAST);
        const float w = p.write ? p.write[row * p.ldw + head] : 0.0f;
        write[r] = !p.write ? d.dt : p.delta ? p.write_scale * sigmoid(w) : w;
    }
    sum = own[0] + own[1];
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const float below = __shfl_up_sync(~0u, sum, o);
        sum += lane >= (uint32_t)o ? below : 0.0f;
    }
    const float below = __shfl_up_sync(~0u, sum, 1);
    power[2 * lane] = (lane ? below : 0.0f) + own[0];
    power[2 * lane + 1] = sum;
}

/* q k and k k of a warp's 16 rows with all rows up to them, decayed: `seen`, and the triangle below its ones. */
template <int KEYS, bool DELTA>
static __device__ __forceinline__ void ready_products(struct ready_room<KEYS> &s, float k_scale,
                                                      uint16_t *seen)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const chunk_lane<2 * KEYS, true> q(s.q), k(s.k);
    const chunk_lane<2 * KEYS, false> other(s.k);
    const float k_unit = 1.0f / (k_scale * k_scale);
    float y[TILES][4] = {}, x[TILES][4] = {};
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) {
        uint32_t a[4], e[4], b[4];
        matrix_load(a, q.of(warp, c));
        if constexpr (DELTA)
            matrix_load(e, k.of(warp, c));
#pragma unroll
        for (int j = 0; j < TILES / 2; j++) {
            if (j > warp)
                continue;
            matrix_load(b, other.of(j, c));
            mma_f16(y[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma_f16(y[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            if constexpr (DELTA) {
                mma_f16(x[2 * j], e[0], e[1], e[2], e[3], b[0], b[1]);
                mma_f16(x[2 * j + 1], e[0], e[1], e[2], e[3], b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = 16 * warp + 8 * h + g;
        const float power = s.power[row], write = s.write[row] * k_unit;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float d[2];
            const uint32_t i = 8 * j + 2 * t;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                d[e] = i + e <= row ? __expf(power - s.power[i + e]) : 0.0f;
                y[j][2 * h + e] = i + e == row ? s.self[row] : y[j][2 * h + e];
            }
            *(uint32_t *)((uint8_t *)seen + row * MATRIX_ROW + (j ^ row % 8) * 16 + 4 * t) = half_bits2(
                y[j][2 * h] * d[0] * (1.0f / SEEN_SCALE), y[j][2 * h + 1] * d[1] * (1.0f / SEEN_SCALE));
            if constexpr (DELTA)
                *(float2 *)&s.side[row][i] = make_float2(i < row ? x[j][2 * h] * d[0] * write : 0.0f,
                                                         i + 1 < row ? x[j][2 * h + 1] * d[1] * write : 0.0f);
        }
    }
}

/* The inverse of rows and columns [from, from + PART) of the triangle, in place: a column a lane. */
static __device__ __forceinline__ void ready_invert(float side[CHUNK_ROWS][SIDE], uint32_t from)
{
    const uint32_t lane = threadIdx.x % 32;
    float x[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        float sum[4] = {i == (int)lane ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 a = *(const float4 *)&side[from + i][from + j];
            sum[0] -= a.x * x[j];
            if (j + 1 < i)
                sum[1] -= a.y * x[j + 1];
            if (j + 2 < i)
                sum[2] -= a.z * x[j + 2];
            if (j + 3 < i)
                sum[3] -= a.w * x[j + 3];
        }
        x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PART; i++)
        side[from + i][from + lane] = x[i];
}

/* PART x PART numbers of a product of two such parts of `side`, eight a thread of the block. */
static __device__ __forceinline__ void ready_part(const float side[CHUNK_ROWS][SIDE], uint32_t a_row,
                                                  uint32_t a_col, uint32_t b_row, uint32_t b_col, float y[8])
{
    const uint32_t row = threadIdx.x / 4, col = threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        y[i] = 0.0f;
#pragma unroll 4
    for (int j = 0; j < PART; j++) {
        const float a = side[a_row + row][a_col + j];
        const float4 b = *(const float4 *)&side[b_row + j][b_col + col],
                     c = *(const float4 *)&side[b_row + j][b_col + col + 4];
        y[0] += a * b.x, y[1] += a * b.y, y[2] += a * b.z, y[3] += a * b.w;
        y[4] += a * c.x, y[5] += a * c.y, y[6] += a * c.z, y[7] += a * c.w;
    }
}

/* The inverse of the triangle, in place, and as fp16. X0 and X1 are those of its upper and lower part, the rest is
 * -X1 side X0. */
static __device__ __forceinline__ void ready_solve(float side[CHUNK_ROWS][SIDE], struct scan_chunk *to)
{
    const uint32_t part = threadIdx.x / 4, at = threadIdx.x % 4 * 8, row = threadIdx.x / 2;
    float y[8];
    if (threadIdx.x < 64)
        ready_invert(side, threadIdx.x / 32 * PART);
    __syncthreads();
    ready_part(side, PART, 0, 0, 0, y);
#pragma unroll
    for (int i = 0; i < 8; i++) /* above the diagonal there is room */
        side[part][PART + at + i] = y[i];
    __syncthreads();
    ready_part(side, PART, PART, 0, PART, y);
#pragma unroll
    for (int i = 0; i < 8; i++)
        side[PART + part][at + i] = -y[i];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t unit = threadIdx.x % 2 * 4 + c, place = row * MATRIX_ROW + (unit ^ row % 8) * 16;
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t col = 8 * unit + 2 * i;
            const float a = col <= row ? side[row][col] : 0.0f,
                        b = col + 1 <= row ? side[row][col + 1] : 0.0f;
            bits[i] = half_bits2(a, b);
        }
        *(uint4 *)((uint8_t *)to->solve + place) = make_uint4(bits[0], bits[1], bits[2], bits[3]);
    }
}

/* Grid: numbers of chunks, heads. */
template <int KEYS, bool DELTA> static __device__ __forceinline__ void ready_body(const struct scan_args &p)
{
    extern __shared__ __align__(128) uint8_t room[];
    struct ready_room<KEYS> &s = *(struct ready_room<KEYS> *)room;
    const uint32_t head = blockIdx.y, own = scan_own(p, head), warp = threadIdx.x / 32;
    dep_launch();
    const struct chunk_rows c = chunk_find(p, blockIdx.x);
    dep_wait();
    if (!c.n)
        return;
    const uint64_t pair = 4ull * CHUNK_ROWS * KEYS;
    uint8_t *chunk =
                p.chunks + blockIdx.x * (p.k_heads * pair + p.heads * (uint64_t)sizeof(struct scan_chunk)),
            *keys = chunk + own * pair;
    struct scan_chunk *to = (struct scan_chunk *)(chunk + p.k_heads * pair) + head;
    const bool stores =
        p.tiled ? head < p.k_heads : head % (p.heads / p.k_heads) == 0; /* the first with these keys */
    float k_scale = 1.0f, q_scale = 1.0f;
    if (warp == 0)
        ready_powers(p, c, head, s.power, s.write);
#pragma unroll 1
    for (int query = 0; query < 2; query++) {
        float v[16][KEYS / 32];
        ready_load<KEYS>(query ? p.q : p.k, query ? p.ldq : p.ldk, c, own, p.k_dim, v);
        const float most = ready_norm<KEYS>(query ? p.q_norm : p.k_norm, c.n, own, p.k_dim,
                                            query ? p.q_scale : p.k_scale, v);
        if (threadIdx.x % 32 == 0)
            s.most[query][warp] = most;
        __syncthreads();
        const float *all = s.most[query];
        /* at most 2^6: a sum of products of CHUNK_KEYS_MOST keys is below 2^19 */
        const float scale = 0x1p-4f * chunk_scale(fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])));
        ready_store<KEYS>(v, scale, query ? s.q : s.k, keys + query * (pair / 2), stores);
        ready_self<KEYS>(v, scale, query, s);
        k_scale = query ? k_scale : scale;
        q_scale = scale;
    }
    if (threadIdx.x < CHUNK_ROWS) {
        to->power[threadIdx.x] = s.power[threadIdx.x];
        to->left[threadIdx.x] = expf(s.power[threadIdx.x]);
        to->write[threadIdx.x] = s.write[threadIdx.x];
    } else if (threadIdx.x == CHUNK_ROWS) {
        to->k_scale = k_scale;
        to->q_scale = q_scale;
        to->pad[0] = to->pad[1] = 0.0f;
    }
    __syncwarp(); /* a warp's own rows of q, all rows of k */
    ready_products<KEYS, DELTA>(s, k_scale, to->seen);
    if constexpr (DELTA) {
        __syncthreads();
        ready_solve(s.side, to);
    }
}

/* ---- from chunk to chunk ---- */

template <int KEYS> struct __align__(128) follow_stage
{
    uint8_t keys[4 * CHUNK_ROWS * KEYS]; /* and queries */
    struct scan_chunk head;
};

template <int KEYS> struct follow_room {
    struct follow_stage<KEYS> stage[2];
    uint64_t bar[2];
};
static_assert(sizeof(follow_room<64>) <= FOLLOW_SHARED(64) && sizeof(follow_room<128>) <= FOLLOW_SHARED(128),
              "room");

/* What a warp has of its columns: (column g or g + 8, keys 8j + 2t and 8j + 2t + 1) of S^T, rows like keys of the others. */
template <int KEYS> struct follow_state {
    float s[KEYS / 8][4], v[TILES][4], u[TILES][4], y[TILES][4];
};

template <int N> static __device__ __forceinline__ float largest(const float x[N][4])
{
    float most[4] = {};
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            most[j] = fmaxf(most[j], fabsf(x[i][j]));
    return warp_max(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
}

/* Sums of a product, 16 columns of them from tile 2 * i on, as an A operand. */
static __device__ __forceinline__ void operand_of(const float x[][4], int i, float scale, uint32_t a[4])
{
#pragma unroll
    for (int h = 0; h < 4; h++)
        a[h] = half_bits2(x[2 * i + h / 2][h % 2 * 2] * scale, x[2 * i + h / 2][h % 2 * 2 + 1] * scale);
}

static __device__ __forceinline__ void mma_pair(float c[2][4], const uint32_t a[4], const uint32_t b[4])
{
    mma_f16(c[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_f16(c[1], a[0], a[1], a[2], a[3], b[2], b[3]);
}

/* v of the rows of a chunk, zeros behind them. */
template <int KEYS>
static __device__ __forceinline__ void follow_values(struct follow_state<KEYS> &f, const float *v,
                                                     uint64_t ld, uint32_t n)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = 8 * j + 2 * t + i % 2;
            f.v[j][i] = row < n ? v[row * ld + i / 2 * 8] : 0.0f;
        }
}

/* The state, times k of all rows in u and times q in y; both still with their scales. */
template <int KEYS, bool DELTA>
static __device__ __forceinline__ void follow_ask(struct follow_state<KEYS> &f, const uint8_t *keys,
                                                  float scale)
{
    const chunk_lane<2 * KEYS, false> k(keys), q(keys + 2 * CHUNK_ROWS * KEYS);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.u[j][i] = f.y[j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) {
        uint32_t a[4], b[4];
        operand_of(f.s, c, scale, a);
#pragma unroll
        for (int j = 0; j < TILES / 2; j++) {
            if constexpr (DELTA) {
                matrix_load(b, k.of(j, c));
                mma_pair(&f.u[2 * j], a, b);
            }
            matrix_load(b, q.of(j, c));
            mma_pair(&f.y[2 * j], a, b);
        }
    }
}

/* u: what rows would write alone, then what they write. unit: of the state times k. */
template <int KEYS, bool DELTA>
static __device__ __forceinline__ void follow_write(struct follow_state<KEYS> &f, const struct scan_chunk *h,
                                                    float unit)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const float2 w = *(const float2 *)&h->write[8 * j + 2 * t],
                     left = *(const float2 *)&h->left[8 * j + 2 * t];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float known = DELTA ? f.u[j][i] * unit * (i % 2 ? left.y : left.x) : 0.0f;
            f.u[j][i] = (i % 2 ? w.y : w.x) * (f.v[j][i] - known);
        }
    }
    if constexpr (DELTA) {
        const chunk_lane<MATRIX_ROW, false> solve(h->solve);
        const float scale = chunk_scale(largest<TILES>(f.u));
        float u[TILES][4] = {};
#pragma unroll
        for (int c = 0; c < TILES / 2; c++) {
            uint32_t a[4], b[4];
            operand_of(f.u, c, scale, a);
#pragma unroll
            for (int j = c; j < TILES / 2; j++) {
                matrix_load(b, solve.of(j, c));
                mma_pair(&u[2 * j], a, b);
            }
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                f.u[j][i] = u[j][i] * (1.0f / scale);
    }
}

/* y: with what rows of the chunk wrote. before: what makes its sums ones with u's scale. */
template <int KEYS>
static __device__ __forceinline__ void follow_see(struct follow_state<KEYS> &f, const struct scan_chunk *h,
                                                  float before, float scale)
{
    const uint32_t t = threadIdx.x % 4;
    const chunk_lane<MATRIX_ROW, false> seen(h->seen);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const float2 left = *(const float2 *)&h->left[8 * j + 2 * t];
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.y[j][i] *= before * (i % 2 ? left.y : left.x);
    }
#pragma unroll
    for (int c = 0; c < TILES / 2; c++) {
        uint32_t a[4], b[4];
        operand_of(f.u, c, scale, a);
#pragma unroll
        for (int j = c; j < TILES / 2; j++) {
            matrix_load(b, seen.of(j, c));
            mma_pair(&f.y[2 * j], a, b);
        }
    }
}

/* The state behind row `to`, from that before row `from` of the chunk. scales: of u and k. */
template <int KEYS>
static __device__ __forceinline__ void follow_step(struct follow_state<KEYS> &f, const struct scan_chunk *h,
                                                   const uint8_t *keys, uint32_t from, uint32_t to,
                                                   float scale, float scales)
{
    const uint32_t t = threadIdx.x % 4;
    const chunk_lane<2 * KEYS, true> k(keys);
    const float end = h->power[to], keep = __expf(end - (from ? h->power[from - 1] : 0.0f)) * scales;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.s[j][i] *= keep;
#pragma unroll
    for (int c = 0; c < TILES / 2; c++) {
        if (16 * c > to || 16 * c + 15 < from)
            continue;
        float u[2][4];
        uint32_t a[4], b[4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t row = 16 * c + 8 * j + 2 * t;
            const float2 power = *(const float2 *)&h->power[row];
            const float first = row >= from && row <= to ? __expf(end - power.x) : 0.0f,
                        second = row + 1 >= from && row + 1 <= to ? __expf(end - power.y) : 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++)
                u[j][i] = f.u[2 * c + j][i] * (i % 2 ? second : first);
        }
        operand_of(u, 0, scale, a);
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            matrix_load_turned(b, k.of(c, j));
            mma_pair(&f.s[2 * j], a, b);
        }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.s[j][i] *= 1.0f / scales;
}

/* A lane's part of the columns from or to a slot; at: its first number there. */
template <int KEYS, bool STORE>
static __device__ __forceinline__ void follow_move(struct follow_state<KEYS> &f, const struct scan_args &p,
                                                   int32_t slot, uint64_t at)
{
    float *state = p.state.base + (uint64_t)slot * p.state.stride + at;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 *place = (float2 *)(state + 8 * j + i * 8ull * p.keys);
            const bool there = 8 * j < (int)p.keys; /* a multiple of 16 */
            if (STORE && there)
                *place = make_float2(f.s[j][2 * i], f.s[j][2 * i + 1]);
            if (!STORE) {
                const float2 x = slot && there ? *place : make_float2(0.0f, 0.0f);
                f.s[j][2 * i] = x.x, f.s[j][2 * i + 1] = x.y;
            }
        }
}

/* Chunk i of a sequence into a stage: one thread. */
template <int KEYS, bool DELTA>
static __device__ __forceinline__ void follow_fetch(const struct scan_args &p, uint32_t number, uint32_t head,
                                                    struct follow_room<KEYS> &room, uint32_t stage)
{
    /* all but `solve` where rows do not need it */
    enum { PAIR = sizeof room.stage[0].keys, FROM = DELTA ? 0 : offsetof(struct scan_chunk, seen) };
    const uint64_t head_bytes = sizeof(struct scan_chunk), heads_at = p.k_heads * (uint64_t)PAIR;
    const uint8_t *chunk = p.chunks + number * (heads_at + p.heads * head_bytes);
    uint64_t *bar = &room.bar[stage];
    bar_expect(bar, PAIR + head_bytes - FROM);
    copy_counted(room.stage[stage].keys, chunk + scan_own(p, head) * (uint64_t)PAIR, PAIR, bar);
    copy_counted((uint8_t *)&room.stage[stage].head + FROM, chunk + heads_at + head * head_bytes + FROM,
                 head_bytes - FROM, bar);
}

/* One chunk of a warp's columns: y to `out`, and states where rows leave them. next: v of the chunk behind it. */
template <int KEYS, bool DELTA>
static __device__ __forceinline__ void follow_chunk(struct follow_state<KEYS> &f, const struct scan_args &p,
                                                    const struct follow_stage<KEYS> &stage, uint32_t n,
                                                    const int32_t *slots, uint64_t at, float skip, float *out,
                                                    const float *next, uint32_t next_n)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    const struct scan_chunk *h = &stage.head;
    const int32_t low = lane < n ? slots[lane] : 0, high = 32 + lane < n ? slots[32 + lane] : 0;
    uint64_t ends =
        (uint64_t)__ballot_sync(~0u, high != 0) << 32 | __ballot_sync(~0u, low != 0) | 1ull << (n - 1);
    const float k_scale = h->k_scale, state_scale = chunk_scale(largest<KEYS / 8>(f.s));
    follow_ask<KEYS, DELTA>(f, stage.keys, state_scale);
    follow_write<KEYS, DELTA>(f, h, 1.0f / k_scale / state_scale);
    /* y's first part is brought to the scale of its second one, which must not be too large for that */
    const float scale = fminf(chunk_scale(largest<TILES>(f.u)), state_scale * 0x1p40f / k_scale),
                scales = scale * k_scale;
    follow_see<KEYS>(f, h, scales / state_scale * (1.0f / SEEN_SCALE), scale);
    const float unit = SEEN_SCALE / scales / h->q_scale;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = 8 * j + 2 * t + i % 2;
            if (row < n)
                out[row * p.ldo + i / 2 * 8] = f.y[j][i] * unit + skip * f.v[j][i];
        }
    follow_values<KEYS>(f, next, p.ldv, next_n);
    for (uint32_t from = 0; ends; ends &= ends - 1) {
        const uint32_t to = (uint32_t)__ffsll((long long)ends) - 1;
        const int32_t slot = __shfl_sync(~0u, to < 32 ? low : high, to % 32);
        follow_step<KEYS>(f, h, stage.keys, from, to, scale, scales);
        if (slot)
            follow_move<KEYS, true>(f, p, slot, at);
        from = to + 1;
    }
}

/* A block has CHUNK_COLUMNS columns of a head of a sequence (blockIdx.y). */
template <int KEYS, bool DELTA> static __device__ __forceinline__ void follow_body(const struct scan_args &p)
{
    extern __shared__ __align__(128) uint8_t room[];
    struct follow_room<KEYS> &s = *(struct follow_room<KEYS> *)room;
    const uint32_t seq = blockIdx.y, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                   per = (p.v_dim + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS, head = blockIdx.x / per,
                   v = blockIdx.x % per * CHUNK_COLUMNS + threadIdx.x / 32 * 16;
    const bool mine = v < p.v_dim;
    const uint64_t column = (uint64_t)head * p.v_dim + v + g, at = column * p.keys + 2 * t;
    struct follow_state<KEYS> f;
    dep_launch();
    const uint32_t first = (uint32_t)p.meta.seq_first[seq], rows = (uint32_t)p.meta.seq_rows[seq];
    const bool on = rows >= p.rows_least;
    /* the state is of an earlier step, as in scan_body */
    follow_move<KEYS, false>(f, p, on && mine ? p.meta.state_in[seq] : 0, mine ? at : 0);
    const float skip = p.skip ? p.skip[head] : 0.0f;
    if (threadIdx.x == 0) {
        bar_init(&s.bar[0], 1);
        bar_init(&s.bar[1], 1);
        bar_made();
    }
    __syncwarp(); /* racecheck takes the barriers for the work of another thread of the warp */
    dep_wait();
    if (!on)
        return;
    const uint32_t number = first / CHUNK_LEAST;
    const float *values = p.v + (uint64_t)first * p.ldv + column;
    float *out = p.out + (uint64_t)first * p.ldo + column;
    if (threadIdx.x == 0) {
        follow_fetch<KEYS, DELTA>(p, number, head, s, 0);
        if (rows > CHUNK_ROWS)
            follow_fetch<KEYS, DELTA>(p, number + 1, head, s, 1);
    }
    follow_values<KEYS>(f, values, p.ldv, mine ? min((uint32_t)CHUNK_ROWS, rows) : 0);
    __syncthreads(); /* the barriers are made */
    for (uint32_t i = 0; i * CHUNK_ROWS < rows; i++) {
        const uint32_t done = i * CHUNK_ROWS, next = min(done + CHUNK_ROWS, rows), n = next - done;
        bar_wait(&s.bar[i % 2], i / 2 % 2);
        if (mine)
            follow_chunk<KEYS, DELTA>(f, p, s.stage[i % 2], n, p.meta.state_out + first + done, at, skip,
                                      out + done * p.ldo, values + next * p.ldv,
                                      min((uint32_t)CHUNK_ROWS, rows - next));
        __syncthreads(); /* the stage is read no more */
        if (threadIdx.x == 0 && done + 2 * CHUNK_ROWS < rows)
            follow_fetch<KEYS, DELTA>(p, number + i + 2, head, s, i % 2);
    }
}

#define CHUNKS(name, keys, delta)                                                                            \
    extern "C" __global__ void __launch_bounds__(READY_THREADS)                                              \
        name##_ready_##keys(const __grid_constant__ struct scan_args p)                                      \
    {                                                                                                        \
        ready_body<keys, delta>(p);                                                                          \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(FOLLOW_THREADS)                                             \
        name##_follow_##keys(const __grid_constant__ struct scan_args p)                                     \
    {                                                                                                        \
        follow_body<keys, delta>(p);                                                                         \
    }

CHUNKS(scan, 64, false)
CHUNKS(scan, 128, false)
CHUNKS(delta, 64, true)
CHUNKS(delta, 128, true)
#endif
