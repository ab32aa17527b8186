/* Products of more than 16 rows with tiles, F16 or BF16, by Hopper's own matrix instruction. A warpgroup takes 64 outputs (a
 * strip of 16 a warp, which decodes it to fp16, scales and all: the A operand, in registers) and ROWS rows, whose packed x
 * is the B operand, in shared memory. Copies run ahead: every warp has a ring of tiles of its own, the block a ring of
 * chunks of x, 128 columns each, which its first warp fills.
 *
 * The outputs of a block's warpgroups are a band. There are three ways to deal out bands:
 *   - a block has one (gridDim.y bands, p.split 1);
 *   - its columns are shared by p.split blocks (gridDim.z): they leave their sums in p.part, wait for each other, and each
 *     adds up some of the rows;
 *   - gridDim.y blocks, not as many as there are bands, have equal shares of all columns (stream-K, stream_k.h): each
 *     works through the end of one band, perhaps whole ones, and the beginning of another. The sums of a band's end go to
 *     p.part, and the block that began the band adds them up. Copies of the next band's tiles run while the results of one
 *     are stored.
 * Where bands are cut, all blocks of the launch must be on the card at once; gpu_gemm_many ensures that.
 *
 * x is packed in the order PACK_ROWS. Only in builds for sm_90a: elsewhere the kernels are not there. */
#include "device/cuda/gemm.cuh"
#include "device/cuda/stream_k.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "device/cuda/wgmma.cuh"

enum { STEP = 64, STEP_ROW = 2 * STEP, UNIT = MANY_UNIT, TILES_MOST = 4 };
/* a chunk of x is two steps of 64 columns, as they are packed; a column of tiles is two chunks */
enum { CHUNK_STEPS = 2, CHUNKS = TILE_COLS / STEP / CHUNK_STEPS };

/* ---- rings ---- */

/* A value that all lanes have: where the compiler knows that, it computes once a warp. */
static __device__ __forceinline__ uint32_t same(uint32_t v)
{
    return __shfl_sync(~0u, v, 0);
}

/* Waits for what was copied to a stage of a warp's ring. turns: a bit for each stage, the parity of the phase to wait for
 * next. Every copy is waited for once. */
static __device__ __forceinline__ void many_await(uint32_t full, uint32_t stage, uint32_t &turns)
{
    bar_wait(full + 8 * stage, turns >> stage & 1);
    turns ^= 1u << stage;
}

/* A warp's tiles: as many as fit into MANY_RING bytes. */
struct many_tiles {
    const uint8_t *from; /* the next to fetch */
    uint8_t *room;
    uint32_t full;   /* their barriers, in shared memory */
    uint32_t left;   /* tiles that are still to be fetched */
    uint32_t &turns; /* of the barriers */

    __device__ __forceinline__ void fetch(uint32_t stage, uint32_t bytes)
    {
        if (!left)
            return;
        if (threadIdx.x % 32 == 0) {
            bar_expect(full + 8 * stage, bytes);
            copy_counted(shared_address(room) + stage * bytes, from, bytes, full + 8 * stage);
        }
        from += bytes;
        left--;
    }
    /* The first `depth` were fetched before. */
    __device__ __forceinline__ void skip(uint32_t depth, uint32_t bytes)
    {
        const uint32_t n = min(depth, left);
        from += n * bytes;
        left -= n;
    }
};

/* The block's chunks of x. Chunks are numbered through all pieces: chunk n uses stage n % stages, in phase n / stages of its
 * barriers. */
template <int ROWS> struct many_x {
    enum { STEP_BYTES = ROWS * STEP_ROW, BYTES = CHUNK_STEPS * STEP_BYTES };
    const uint8_t *pack;        /* the block's rows of the piece's first step */
    uint64_t step;              /* bytes from step to step */
    uint32_t bytes;             /* of the rows that there are */
    uint32_t before, count;     /* chunks of the pieces before, and of this one */
    uint32_t bits;              /* log2 of the stages */
    uint32_t room, full, empty; /* in shared memory; barriers of the stages */
    uint32_t stage, parity;     /* of the column in use: its first chunk's */

    /* Chunk i of the piece. */
    __device__ __forceinline__ void fetch(uint32_t i) const
    {
        const uint32_t at = (before + i) & ((1u << bits) - 1);
        bar_expect(full + 8 * at, CHUNK_STEPS * bytes);
#pragma unroll
        for (int s = 0; s < CHUNK_STEPS; s++)
            copy_counted(room + at * BYTES + s * STEP_BYTES, pack + (i * CHUNK_STEPS + s) * step, bytes,
                         full + 8 * at);
    }
    /* As many as there is room for. */
    __device__ __forceinline__ void begin() const
    {
        dep_wait();
        for (uint32_t i = 0; threadIdx.x == 0 && i < count && i < 1u << bits; i++)
            fetch(i);
    }
    /* Near the end of chunk h of a column, one takes the place of the chunk before, once all warps have left that. */
    __device__ __forceinline__ void refill(uint32_t column, int h) const
    {
        if (threadIdx.x)
            return;
        const uint32_t stages = 1u << bits, free = column * CHUNKS + h - 1, n = before + free;
        if (column + h == 0 || free + stages >= count)
            return;
        bar_wait(empty + 8 * (n & (stages - 1)), n >> bits & 1);
        fetch(free + stages);
    }
    /* Chunk h of the column, as an operand. */
    __device__ __forceinline__ uint32_t enter(int h) const
    {
        bar_wait(full + 8 * (stage + h), parity);
        return wgmma_rows_low(room + (stage + h) * BYTES);
    }
    /* A warp has used it. */
    __device__ __forceinline__ void leave(int h) const
    {
        bar_arrive(empty + 8 * (stage + h), threadIdx.x % 32 == 0);
    }
    __device__ __forceinline__ void next()
    {
        stage = (stage + CHUNKS) & ((1u << bits) - 1);
        parity ^= stage == 0;
    }
};

/* ---- forms ---- */

/* Like those of gemm.cuh, but what a sub gives are the values themselves. */

/* (a & MASK) | c, in one instruction. */
template <uint32_t MASK> static __device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t c)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(MASK), "r"(c));
    return r;
}

/* 1024 twice, which the assembler does not know: as a constant it would be loaded again for every use. */
static __device__ __forceinline__ uint32_t many_1024()
{
    return 0x64006400u + (blockDim.x >> 16);
}

/* Both halves 1024 + byte I of w. */
template <int I> static __device__ __forceinline__ uint32_t plus_byte(uint32_t w, uint32_t k1024)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(k1024), "n"(0x5050 + 0x0101 * I));
    return r;
}

/* 1024 + bytes 2I and 2I + 1 of w. */
template <int I> static __device__ __forceinline__ uint32_t plus_bytes(uint32_t w, uint32_t k1024)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(k1024), "n"(0x5150 + 0x0202 * I));
    return r;
}

/* Half I of v, twice: instructions take it so, for nothing. */
template <int I> static __device__ __forceinline__ uint32_t both(uint32_t v)
{
    uint32_t r;
    if constexpr (I)
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(r) : "r"(v));
    else
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(r) : "r"(v));
    return r;
}

struct many_q4k {
    enum { BYTES = TILE_Q4_K, CHUNKS = 4 };
    uint32_t s[2][2], m[2][2]; /* of rows g, g + 8: 6-bit scales and mins of subs 0..3, 4..7 */
    uint32_t d[2], dmin[2];    /* twice; dmin negative */
    uint32_t k1024;

    static __device__ constexpr int first(int chunk)
    {
        return form_q4k::first(chunk);
    }
    __device__ __forceinline__ many_q4k(const struct tile_head &h) : k1024(many_1024())
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 v = h.row[r];
            d[r] = __byte_perm(v.x, 0, 0x1010);
            dmin[r] = __byte_perm(v.x, 0, 0x3232) ^ 0x80008000u;
            s[r][0] = v.y & 0x3f3f3f3f, s[r][1] = (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030);
            m[r][0] = v.z & 0x3f3f3f3f, m[r][1] = (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030);
        }
    }
    /* 1024 + n (16 n where SUB is odd) times the scale (a 16th of it), less 1024 scales, is n times the scale, exactly.
     * Scales and mins are made for two subs at a time. */
    template <int SUB> __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[]) const
    {
        constexpr uint32_t MASK = SUB & 1 ? 0x00f000f0u : 0x000f000fu;
        const uint4 v = q[SUB / 2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t scales =
                               fma2(plus_bytes<SUB % 4 / 2>(s[r][SUB / 4], k1024), 0x2c003c00u, 0xd400e400u),
                           lesses = mul2(scales, 0xe400e400u),
                           mins = mul2(
                               fma2(plus_bytes<SUB % 4 / 2>(m[r][SUB / 4], k1024), 0x3c003c00u, 0xe400e400u),
                               dmin[r]),
                           scale = both<SUB & 1>(scales), less = both<SUB & 1>(lesses),
                           min = both<SUB & 1>(mins);
            auto pair = [&](uint32_t bits) {
                return fma2(fma2(and_or<MASK>(bits, k1024), scale, less), d[r], min);
            };
            const uint32_t w0 = r ? v.z : v.x, w1 = r ? v.w : v.y;
            a[r] = pair(w0), a[2 + r] = pair(w0 >> 8);
            a[4 + r] = pair(w1), a[6 + r] = pair(w1 >> 8);
        }
    }
};

struct many_q6k {
    enum { BYTES = TILE_Q6_K, CHUNKS = 6 };
    uint2 s[2];
    uint32_t d[2], k1024;

    static __device__ constexpr int first(int chunk)
    {
        return form_q6k::first(chunk);
    }
    __device__ __forceinline__ many_q6k(const struct tile_head &h) : k1024(many_1024())
    {
        const bool odd = threadIdx.x & 2; /* scales of the groups of 16 that the lane's columns are in */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r] = make_uint2((odd ? h.row[r].z : h.row[r].x) ^ 0x80808080u,
                              (odd ? h.row[r].w : h.row[r].y) ^ 0x80808080u);
            d[r] = __byte_perm(h.d[r], 0, 0x1010);
        }
    }
    template <int SUB> __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[]) const
    {
        constexpr int HALF = SUB / 4, QUARTER = SUB % 4, LS = QUARTER < 2 ? 4 : 0, HS = 8 - 2 * QUARTER;
        const uint4 h = q[3 * HALF + 2], l = q[3 * HALF + (QUARTER & 1)];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t scale =
                mul2(fma2(plus_byte<QUARTER>(HALF ? s[r].y : s[r].x, k1024), 0x3c003c00u, 0xe480e480u), d[r]);
            auto pair = [&](uint32_t low, uint32_t high, int less) {
                const uint32_t n = and_or<0x03000300u>(
                    form_q6k::shift(high, HS - less),
                    and_or<0x00f000f0u>(form_q6k::shift(low, LS - less), k1024 - 0x10001000u));
                return mul2(fma2(n, 0x3c003c00u, 0xd600d600u), scale);
            };
            const uint32_t l0 = r ? l.z : l.x, l1 = r ? l.w : l.y, h0 = r ? h.z : h.x, h1 = r ? h.w : h.y;
            a[r] = pair(l0, h0, 0), a[2 + r] = pair(l0, h0, 8);
            a[4 + r] = pair(l1, h1, 0), a[6 + r] = pair(l1, h1, 8);
        }
    }
};

struct many_q8 {
    enum { BYTES = TILE_Q8_0, CHUNKS = 8 };
    uint4 s[2]; /* of a row: eight d */
    uint32_t k1024;

    static __device__ constexpr int first(int chunk)
    {
        return chunk;
    }
    __device__ __forceinline__ many_q8(const struct tile_head &h) : k1024(many_1024())
    {
        s[0] = h.row[0], s[1] = h.row[1];
    }
    template <int SUB> __device__ __forceinline__ void sub(uint32_t a[8], const uint4 q[]) const
    {
        const uint4 v = q[SUB];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t d = form_q8::scale(s[r], SUB);
            const uint32_t w[2] = {(r ? v.z : v.x) ^ 0x80808080u, (r ? v.w : v.y) ^ 0x80808080u};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t even, odd; /* 1024 + 128 + q of bytes 0, 2 and 1, 3 */
                asm("prmt.b32 %0, %1, %2, 0x5250;" : "=r"(even) : "r"(w[i]), "r"(k1024));
                asm("prmt.b32 %0, %1, %2, 0x5351;" : "=r"(odd) : "r"(w[i]), "r"(k1024));
                a[4 * i + r] = mul2(fma2(even, 0x3c003c00u, 0xe480e480u), d);
                a[4 * i + 2 + r] = mul2(fma2(odd, 0x3c003c00u, 0xe480e480u), d);
            }
        }
    }
};

/* ---- products ---- */

/* How many subs of 32 columns make a group of matrix instructions: registers are scarce where there are many rows. */
template <int ROWS> struct many_group {
    enum { SUBS = ROWS > 64 ? 1 : 2 };
};

/* The operands as what an instruction changes, so that none is made before or behind it. */
#define A8(a, i)                                                                                             \
    "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3]), "+r"(a[i + 4]), "+r"(a[i + 5]), "+r"(a[i + 6]), \
        "+r"(a[i + 7])

/* All groups but the last are done: the operands of the one before may change. */
static __device__ __forceinline__ void many_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/* The operands are complete. */
template <int N> static __device__ __forceinline__ void many_ready(uint32_t a[N])
{
    if constexpr (N == 16)
        asm volatile("wgmma.fence.sync.aligned;" : A8(a, 0), A8(a, 8)::"memory");
    else
        asm volatile("wgmma.fence.sync.aligned;" : A8(a, 0)::"memory");
}

template <int ROWS>
static __device__ __forceinline__ void many_mma(float c[ROWS / 8][4], const uint32_t a[4], uint64_t b)
{
    if constexpr (ROWS == 32)
        wgmma_32(c, a, b);
    else if constexpr (ROWS == 64)
        wgmma_64(c, a, b, true);
    else if constexpr (ROWS == 96)
        wgmma_96(c, a, b);
    else
        wgmma_128(c, a, b);
}

/* Subs SUB.. of a column: they are decoded while the group before them is multiplied. */
template <int ROWS, int SUB, class SOURCE>
static __device__ __forceinline__ void many_subs(float acc[ROWS / 8][4], SOURCE &w,
                                                 const struct many_x<ROWS> &x, uint32_t column, uint32_t in)
{
    enum { SUBS = many_group<ROWS>::SUBS };
    uint32_t a[8 * SUBS];
    w.template ahead<SUB + SUBS, SUBS>();
    many_wait();
    if constexpr (SUB == 4 + SUBS)
        x.leave(0); /* the group before the last was the last one of its chunk */
    if constexpr ((SUB + SUBS) % 4 == 0)
        x.refill(column, SUB / 4);
    w.template sub<SUB>(a);
    if constexpr (SUBS == 2)
        w.template sub<SUB + 1>(a + 8);
    if constexpr (SUB % 4 == 0)
        in = x.enter(SUB / 4);
    many_ready<8 * SUBS>(a);
#pragma unroll
    for (int i = 0; i < 2 * SUBS; i++)
        many_mma<ROWS>(
            acc, a + 4 * i,
            wgmma_rows_of(in + SUB % 4 / 2 * many_x<ROWS>::STEP_BYTES / 16 + 4 * (SUB % 2) + 2 * i));
    wgmma_commit();
    if constexpr (SUB + SUBS < 8)
        many_subs<ROWS, SUB + SUBS>(acc, w, x, column, in);
}

/* acc += the piece's columns, whose first copies run already. SOURCE gives the operands of a sub; its calls mark where a
 * column begins and ends. There a warpgroup waits for all of its instructions: the assembler gives up overlapping them where
 * some run on into the next turn of a loop. What the next column begins with is loaded meanwhile. */
template <int ROWS, class SOURCE>
static __device__ __forceinline__ void many_columns(float acc[ROWS / 8][4], SOURCE &w, struct many_x<ROWS> x)
{
    w.enter();
    const uint32_t columns = x.count / CHUNKS;
    for (uint32_t column = 0; column < columns; column++) {
        many_subs<ROWS, 0>(acc, w, x, column, 0);
        w.leave();
        if (column + 1 < columns)
            w.enter();
        wgmma_done<ROWS / 8>(acc);
        x.leave(1);
        x.next();
    }
}

/* Tiles, through the warp's ring. A group of subs loads what the next one decodes. */
template <class FORM, int GROUP> struct many_form {
    enum { DEPTH = MANY_RING / FORM::BYTES };
    static_assert(DEPTH <= TILES_MOST, "barriers");
    struct many_tiles tiles;
    uint32_t stage;
    struct tile_head head;
    uint4 q[FORM::CHUNKS];

    __device__ __forceinline__ many_form(const struct many_tiles &t) : tiles(t), stage(0)
    {
        tiles.skip(DEPTH, FORM::BYTES);
    }
    __device__ __forceinline__ const uint8_t *tile() const
    {
        return tiles.room + stage * FORM::BYTES;
    }
    __device__ __forceinline__ void enter()
    {
        many_await(tiles.full, stage, tiles.turns);
        head = tile_head(tile(), FORM::BYTES, [](const uint8_t *p) { return *(const uint4 *)p; });
        ahead<0, GROUP>();
    }
    /* What subs SUB.. are the first to use. */
    template <int SUB, int SUBS> __device__ __forceinline__ void ahead()
    {
#pragma unroll
        for (int j = 0; j < FORM::CHUNKS; j++)
            if (FORM::first(j) >= SUB && FORM::first(j) < SUB + SUBS)
                q[j] = *(const uint4 *)(tile() + 512 * j + threadIdx.x % 32 * 16);
    }
    template <int SUB> __device__ __forceinline__ void sub(uint32_t a[8])
    {
        FORM(head).template sub<SUB>(a, q);
    }
    __device__ __forceinline__ void leave()
    {
        copies_after();
        __syncwarp();
        tiles.fetch(stage, FORM::BYTES);
        stage = stage + 1 < DEPTH ? stage + 1 : 0;
    }
};

/* Eight values of F16 or BF16 in the order of the pack. */
template <int FMT> static __device__ __forceinline__ uint4 many_plain(const uint4 &v)
{
    if (FMT == FMT_F16)
        return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                          __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
    auto low = [](uint32_t w) { return __uint_as_float(w << 16); };
    auto high = [](uint32_t w) { return __uint_as_float(w & 0xffff0000u); };
    return make_uint4(half_bits2(low(v.x), low(v.y)), half_bits2(high(v.x), high(v.y)),
                      half_bits2(low(v.z), low(v.w)), half_bits2(high(v.z), high(v.w)));
}

/* Rows of F16 or BF16, through the warp's ring, four subs at a time; a row is copied by a lane of its own. */
template <int FMT> struct many_rows {
    enum { SUBS = 4, BYTES = 64 * SUBS, PITCH = BYTES + 16, SLOT = TILE_ROWS * PITCH, DEPTH = MANY_RING / SLOT };
    static_assert(DEPTH >= 2 && DEPTH <= TILES_MOST, "barriers");
    const uint8_t *row; /* of the lane: where its next copy begins */
    uint8_t *room;
    uint32_t full, &turns;
    uint32_t sub_next, sub_end; /* the first sub that is still to be fetched; the row's end */
    uint32_t at, to;            /* subs: the column's first; the end of the block's */
    uint32_t slot;

    __device__ __forceinline__ many_rows(const struct mat &w, uint32_t strip, uint32_t from, uint32_t columns,
                                         const struct many_tiles &tiles)
        : room(tiles.room), full(tiles.full), turns(tiles.turns), slot(0)
    {
        at = sub_next = 8 * from;
        to = at + 8 * columns;
        sub_end = (w.k + 31) / 32;
        row = w.base + min(strip * TILE_ROWS + threadIdx.x % 16, w.n - 1) * w.stride + 64 * (uint64_t)at;
    }
    __device__ __forceinline__ void fetch(uint32_t place)
    {
        if (sub_next >= min(to, sub_end))
            return;
        const uint32_t bytes = 64 * min((uint32_t)SUBS, sub_end - sub_next), lane = threadIdx.x % 32;
        if (lane == 0)
            bar_expect(full + 8 * place, TILE_ROWS * bytes);
        __syncwarp();
        if (lane < TILE_ROWS)
            copy_counted(shared_address(room) + place * SLOT + lane * PITCH, row, bytes, full + 8 * place);
        row += BYTES;
        sub_next += SUBS;
    }
    __device__ __forceinline__ void begin()
    {
        for (uint32_t i = 0; i < DEPTH; i++)
            fetch(i);
    }
    /* They were fetched before. */
    __device__ __forceinline__ void skip()
    {
        row += DEPTH * BYTES;
        sub_next += DEPTH * SUBS;
    }
    __device__ __forceinline__ void enter()
    {
    }
    template <int SUB, int SUBS> __device__ __forceinline__ void ahead()
    {
    }
    /* Past the row's end there are zeros. */
    template <int SUB> __device__ __forceinline__ void sub(uint32_t a[8])
    {
        const uint32_t lane = threadIdx.x % 32;
        const bool there = at + SUB < sub_end;
        if (SUB % SUBS == 0 && there)
            many_await(full, slot, turns);
        const uint8_t *p = room + slot * SLOT + lane / 4 * PITCH + 64 * (SUB % SUBS) + lane % 4 * 16;
        uint4 u = *(const uint4 *)p, v = *(const uint4 *)(p + 8 * PITCH);
        u = many_plain<FMT>(u), v = many_plain<FMT>(v);
        a[0] = there ? u.x : 0, a[1] = there ? v.x : 0, a[2] = there ? u.y : 0, a[3] = there ? v.y : 0;
        a[4] = there ? u.z : 0, a[5] = there ? v.z : 0, a[6] = there ? u.w : 0, a[7] = there ? v.w : 0;
        if (SUB % SUBS == SUBS - 1) {
            copies_after();
            __syncwarp();
            fetch(slot);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
        }
    }
    __device__ __forceinline__ void leave()
    {
        at += 8;
    }
};

/* ---- results ---- */

/* Where four outputs of a row are among (rows)[outputs] sums: groups of eight are swapped by row, so that the lanes of a
 * warpgroup that leave some have banks of their own. */
static __device__ __forceinline__ uint32_t many_place(uint32_t row, uint32_t output, uint32_t outputs)
{
    return row * outputs + (output ^ row / 2 % 4 * 8);
}

/* The sums of a band: in shared memory, or, where blocks share its columns, in p.part, from all of them. */
struct many_sums {
    const float *at;
    uint32_t outputs, parts;
    uint64_t step; /* from part to part */

    /* of four outputs */
    __device__ __forceinline__ float4 get(uint32_t row, uint32_t output) const
    {
        const float *from = at + many_place(row, output, outputs);
        if (parts == 1)
            return *(const float4 *)from;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (uint32_t i = 0; i < parts; i++) {
            const float4 w = __ldcg((const float4 *)(from + i * step));
            v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
        }
        return v;
    }
};

static __device__ __forceinline__ void many_load4(const float *from, uint32_t count, float v[4])
{
    if (count == 4 && ((uintptr_t)from & 15) == 0) {
        const float4 f = *(const float4 *)from;
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = i < count ? from[i] : 0.0f;
}

/* The block's first row. */
template <int ROWS> static __device__ __forceinline__ uint32_t many_base()
{
    return blockIdx.x * ROWS;
}

/* Four outputs of a row, and what they need from memory. */
struct many_four {
    uint32_t seg, n, count; /* count: of outputs that there are */
    uint32_t row, in;       /* of the block's sums */
    float scale, more[4];   /* the row's; the residual */
};

/* Outputs `at`.. of a row of the block's; in pairs of gate and up `at` counts pairs. base: the block's first row. */
static __device__ __forceinline__ struct many_four many_find(const struct gemm_args &p, uint32_t band, uint32_t base,
                                                             uint32_t row, uint32_t at)
{
    const uint32_t units = blockDim.x / 128, step = p.paired ? 2 : 1, unit = band * units + at / UNIT * step;
    struct many_four f = {0, 0, 0, row, at / UNIT * step * UNIT + at % UNIT, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}};
    if (unit >= p.strips)
        return f;
    f.seg = gemm_segment(p, unit);
    const struct gemm_seg &seg = p.seg[f.seg];
    f.n = gemm_within(p, seg, unit) * UNIT + at % UNIT;
    if (f.n >= seg.w.n)
        return f;
    f.count = min(4u, seg.w.n - f.n);
    f.scale = p.row_scale[base + row];
    if (p.residual)
        many_load4(p.residual + (uint64_t)(base + row) * p.ldr + f.n, f.count, f.more);
    return f;
}

/* Sums times the row's scale, plus their bias. */
static __device__ __forceinline__ void many_biased(const struct gemm_seg &seg, const struct many_sums &sums,
                                                   const struct many_four &f, uint32_t in, float v[4])
{
    const float4 y = sums.get(f.row, in);
    float bias[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (seg.bias)
        many_load4(seg.bias + f.n, f.count, bias);
    v[0] = y.x * f.scale + bias[0], v[1] = y.y * f.scale + bias[1];
    v[2] = y.z * f.scale + bias[2], v[3] = y.w * f.scale + bias[3];
}

static __device__ __forceinline__ void many_put(const struct gemm_args &p, const struct many_sums &sums, uint32_t base,
                                                const struct many_four &f)
{
    if (!f.count)
        return;
    const struct gemm_seg &seg = p.seg[f.seg];
    float v[4], up[4];
    many_biased(seg, sums, f, f.in, v);
    if (p.paired) {
        many_biased(p.seg[1], sums, f, f.in + UNIT, up);
        if (p.act == ACT_SILU)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = act_one(ACT_SILU, v[i]) * up[i];
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = gemm_act(p, v[i], up[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = v[i] * p.scale + f.more[i];
    }
    float *to = seg.y + (uint64_t)(base + f.row) * seg.ldy + f.n;
    if (f.count == 4 && ((uintptr_t)to & 15) == 0)
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
    else
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < f.count)
                to[k] = v[k];
}

/* Rows [from, to) of the block's, of a band, four outputs a thread at a time; the next four's are on their way meanwhile. A
 * short loop: code that runs once a launch has to be fetched, and waits longer for that than it computes. */
template <int ROWS>
static __device__ __forceinline__ void many_store(const struct gemm_args &p, const struct many_sums &sums,
                                                  uint32_t band, uint32_t from, uint32_t to)
{
    const uint32_t outputs = blockDim.x / 128 / (p.paired ? 2 : 1) * UNIT, count = (to - from) * outputs / 4,
                   base = many_base<ROWS>();
    struct many_four f = {0, 0, 0, 0, 0, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll 1
    for (uint32_t i = threadIdx.x, first = 1;; i += blockDim.x, first = 0) {
        struct many_four next = {0, 0, 0, 0, 0, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}};
        if (i < count)
            next = many_find(p, band, base, from + 4 * i / outputs, 4 * i % outputs);
        if (!first)
            many_put(p, sums, base, f);
        if (i >= count)
            return;
        f = next;
    }
}

/* A warpgroup's sums to shared memory, where the chunks of x were. */
template <int ROWS>
static __device__ __forceinline__ void many_leave(const float acc[ROWS / 8][4], float *sums, uint32_t outputs)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[many_place(8 * j + 2 * t + i % 2, threadIdx.x / 32 * 16 + i / 2 * 8, outputs) + g] =
                acc[j][i];
}

/* What the blocks that share the columns of one band have summed: each adds up some of the rows. */
template <int ROWS>
static __device__ __forceinline__ void many_join(const struct gemm_args &p, struct many_sums from, uint32_t band,
                                                 uint32_t rows)
{
    const uint32_t tile = band * gridDim.x + blockIdx.x;
    float *part = p.part + (uint64_t)tile * ROWS * from.outputs;
    from.step = (uint64_t)gridDim.x * gridDim.y * ROWS * from.outputs;
    for (uint32_t i = 4 * threadIdx.x; i < rows * from.outputs; i += 4 * blockDim.x)
        __stcg((float4 *)(part + blockIdx.z * from.step + i), *(const float4 *)(from.at + i));
    gemm_join(p.count + tile, p.split);
    from.at = part, from.parts = p.split;
    many_store<ROWS>(p, from, band, rows * blockIdx.z / p.split, rows * (blockIdx.z + 1) / p.split);
}

/* ---- shares ---- */

/* Where a block leaves what it has of a band that another block began: as registers hold it. */
template <int ROWS> static __device__ __forceinline__ float4 *many_part(const struct gemm_args &p, uint32_t block)
{
    return (float4 *)p.part + (uint64_t)(blockIdx.x * gridDim.y + block) * (ROWS / 8) * blockDim.x + threadIdx.x;
}

/* The sums of a band's end, for `owner`, which counts those who have left theirs. */
template <int ROWS>
static __device__ __forceinline__ void many_hand(const struct gemm_args &p, const float acc[ROWS / 8][4],
                                                 uint32_t owner)
{
    float4 *to = many_part<ROWS>(p, blockIdx.y);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
        __stcg(to + j * blockDim.x, make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
    __syncthreads();
    if (threadIdx.x == blockDim.x - 32) { /* not the first, which fetches x */
        __threadfence();
        atomicAdd(p.count + blockIdx.x * gridDim.y + owner, 1);
    }
}

/* The block that began a band adds what the next ones, up to block `last`, had of it, in their order. */
template <int ROWS>
static __device__ __forceinline__ void many_take(const struct gemm_args &p, float acc[ROWS / 8][4], uint32_t last)
{
    if (threadIdx.x == 0) {
        uint32_t *count = p.count + blockIdx.x * gridDim.y + blockIdx.y, seen;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
        while (seen < last - blockIdx.y);
        *count = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t block = blockIdx.y + 1; block <= last; block++) {
        const float4 *from = many_part<ROWS>(p, block);
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            const float4 v = __ldcg(from + j * blockDim.x);
            acc[j][0] += v.x, acc[j][1] += v.y, acc[j][2] += v.z, acc[j][3] += v.w;
        }
    }
}

/* ---- pieces ---- */

/* What a warp has of a band. */
struct many_strip {
    const struct mat &w;
    uint32_t at; /* of its strips */
    struct many_tiles tiles;
};

/* What a block keeps in shared memory besides the stages of x. */
struct many_room {
    uint8_t *rings;
    uint32_t full;  /* barriers of the tiles */
    uint32_t turns; /* of those of this warp */
};

static __device__ __forceinline__ struct many_strip many_find_strip(const struct gemm_args &p,
                                                                    const struct piece &at,
                                                                    struct many_room &room)
{
    const uint32_t warp = same(threadIdx.x / 32), unit = min(at.band * (blockDim.x / 128) + warp / 4, p.strips - 1);
    const struct gemm_seg &seg = p.seg[gemm_segment(p, unit)];
    const struct mat &w = seg.w;
    /* strips past the last one repeat it; their results are not stored */
    const uint32_t strip = min(gemm_within(p, seg, unit) * 4 + warp % 4, (w.n - 1) / TILE_ROWS);
    return {w, strip, {w.base + strip * w.stride + (uint64_t)at.from * layout_tile_bytes(w.fmt),
                       room.rings + warp * MANY_RING, room.full + 8 * warp * TILES_MOST, at.to - at.from,
                       room.turns}};
}

/* Copies as many of the piece's tiles as there is room for. */
static __device__ __forceinline__ void many_begin(const struct gemm_args &p, const struct piece &at,
                                                  struct many_room &room)
{
    struct many_strip s = many_find_strip(p, at, room);
    if (s.w.fmt == FMT_F16) {
        struct many_rows<FMT_F16> rows(s.w, s.at, at.from, at.to - at.from, s.tiles);
        rows.begin();
    } else if (s.w.fmt == FMT_BF16) {
        struct many_rows<FMT_BF16> rows(s.w, s.at, at.from, at.to - at.from, s.tiles);
        rows.begin();
    } else {
        const uint32_t bytes = layout_tile_bytes(s.w.fmt);
#pragma unroll 1
        for (uint32_t i = 0; i < (bytes == TILE_Q4_K ? MANY_RING / TILE_Q4_K : 2u); i++)
            s.tiles.fetch(i, bytes);
    }
}

/* A warp's sums of a piece, after many_begin and many_x::begin. */
template <int ROWS>
static __device__ __forceinline__ void many_sum(const struct gemm_args &p, float acc[ROWS / 8][4],
                                                const struct piece &at, struct many_room &room,
                                                const struct many_x<ROWS> &x)
{
    enum { SUBS = many_group<ROWS>::SUBS };
    static_assert(MANY_RING / TILE_Q6_K == 2 && MANY_RING / TILE_Q8_0 == 2, "many_begin");
    const struct many_strip s = many_find_strip(p, at, room);
    if (s.w.fmt == FMT_Q4_K_TILE) {
        struct many_form<many_q4k, SUBS> form(s.tiles);
        many_columns<ROWS>(acc, form, x);
    } else if (s.w.fmt == FMT_Q6_K_TILE) {
        struct many_form<many_q6k, SUBS> form(s.tiles);
        many_columns<ROWS>(acc, form, x);
    } else if (s.w.fmt == FMT_Q8_0) {
        struct many_form<many_q8, SUBS> form(s.tiles);
        many_columns<ROWS>(acc, form, x);
    } else if (s.w.fmt == FMT_F16) {
        struct many_rows<FMT_F16> rows(s.w, s.at, at.from, at.to - at.from, s.tiles);
        rows.skip();
        many_columns<ROWS>(acc, rows, x);
    } else {
        struct many_rows<FMT_BF16> rows(s.w, s.at, at.from, at.to - at.from, s.tiles);
        rows.skip();
        many_columns<ROWS>(acc, rows, x);
    }
}

/* The barriers of the rings, made once: all that is copied in a piece is waited for in it, so that they count
 * on from piece to piece, whatever forms those have. */
struct many_bars {
    uint64_t x_full[MANY_STAGES], x_empty[MANY_STAGES], full[MANY_WARPS * TILES_MOST];

    __device__ __forceinline__ void make()
    {
        if (threadIdx.x < MANY_STAGES) {
            bar_init(x_full + threadIdx.x, 1);
            bar_init(x_empty + threadIdx.x, blockDim.x / 32);
        }
        if (threadIdx.x < MANY_WARPS * TILES_MOST)
            bar_init(full + threadIdx.x, 1);
        bar_made();
    }
    /* After a piece that others follow, when all warps have left all of x: waits for the last phase of each stage, whose
     * place no chunk of this piece takes. It has ended; synccheck reports phases that nothing waits for. chunks: so far. */
    __device__ __forceinline__ void await_empty(uint32_t chunks, uint32_t bits)
    {
        const uint32_t stage = threadIdx.x, behind = (chunks - 1 - stage) & ((1u << bits) - 1);
        if (stage < 1u << bits && stage < chunks)
            bar_wait(shared_address(x_empty + stage), (chunks - 1 - behind) >> bits & 1);
    }
};

/* What a block has to do: columns of the work up to `end`, of which `piece` is the first part. EVEN: whether there are equal
 * shares; for 128 rows there are too few registers. */
template <bool EVEN> struct many_share {
    uint32_t bands, end;
    struct piece piece;

    /* An equal share of all columns; else there is one piece. */
    __device__ __forceinline__ bool stream_k() const
    {
        return EVEN && gridDim.y != bands;
    }
    __device__ __forceinline__ bool next(uint32_t columns)
    {
        const uint32_t at = piece.band * columns + piece.to;
        if (stream_k() && at < end)
            piece = stream_k_piece(columns, at, end);
        return stream_k() && at < end;
    }
};

template <bool EVEN>
static __device__ __forceinline__ struct many_share<EVEN> many_find_share(const struct gemm_args &p, uint32_t columns)
{
    const uint32_t units = blockDim.x / 128, bands = (p.strips + units - 1) >> (units >> 1); /* of 1, 2, 4 */
    struct many_share<EVEN> s = {bands, 0, {blockIdx.y, 0, 0}};
    if (s.stream_k()) {
        s.end = stream_k_begin(bands * columns, gridDim.y, blockIdx.y + 1);
        s.piece = stream_k_piece(columns, stream_k_begin(bands * columns, gridDim.y, blockIdx.y), s.end);
    } else {
        s.piece.from = columns * blockIdx.z / p.split, s.piece.to = columns * (blockIdx.z + 1) / p.split;
    }
    return s;
}

/* grid: (ROWS rows, bands or shares, p.split). Shared memory: the stages of x, then the warps' rings. */
template <int ROWS> static __device__ __forceinline__ void many_body(const struct gemm_args &p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ struct many_bars bars;
    const uint32_t base = many_base<ROWS>(), rows = min(p.m - base, (uint32_t)ROWS), units = blockDim.x / 128,
                   columns = (p.k + 255) / 256;
    const uint64_t step = (uint64_t)p.groups * 8 * STEP_ROW;
    struct many_room room = {shared + (many_x<ROWS>::BYTES << p.stages), shared_address(bars.full), 0};
    const struct many_sums sums = {(const float *)shared, units * UNIT, 1, 0};
    dep_launch();
    bars.make();
    auto s = many_find_share<ROWS <= MANY_STREAM_K>(p, columns);
    __syncthreads();
    uint32_t chunks = 0; /* of x, in all pieces so far */
    for (bool begun = false;;) {
        const struct piece at = s.piece;
        const bool hands = s.stream_k() && at.from, takes = s.stream_k() && !at.from && at.to < columns;
        if (!begun)
            many_begin(p, at, room);
        const struct many_x<ROWS> x = {p.x + base * STEP_ROW + CHUNKS * CHUNK_STEPS * at.from * step,
                                       step,
                                       (rows + 7) / 8 * 8 * STEP_ROW,
                                       chunks,
                                       CHUNKS * (at.to - at.from),
                                       p.stages,
                                       shared_address(shared),
                                       shared_address(bars.x_full),
                                       shared_address(bars.x_empty),
                                       chunks & ((1u << p.stages) - 1),
                                       chunks >> p.stages & 1};
        chunks += x.count;
        float acc[ROWS / 8][4] = {};
        x.begin();
        many_sum<ROWS>(p, acc, at, room, x);
        const bool more = s.next(columns);
        __syncthreads(); /* all have used the rings */
        if (more)
            bars.await_empty(chunks, p.stages);
        if (takes)
            many_take<ROWS>(p, acc, stream_k_owner(s.bands * columns, gridDim.y, (at.band + 1) * columns - 1));
        if (!hands)
            many_leave<ROWS>(acc, (float *)shared, sums.outputs);
        copies_after();
        __syncthreads();
        begun = more && (hands || units <= 1u << p.stages); /* the sums take no more than the stages of x */
        if (begun)
            many_begin(p, s.piece, room);
        if (hands)
            many_hand<ROWS>(p, acc, stream_k_owner(s.bands * columns, gridDim.y, at.band * columns));
        else if (p.split == 1)
            many_store<ROWS>(p, sums, at.band, 0, rows);
        else
            many_join<ROWS>(p, sums, at.band, rows);
        if (!more)
            return;
        copies_after();
        __syncthreads();
    }
}

#define MANY_KERNEL(rows)                                                                                    \
    extern "C" __global__ void __launch_bounds__(MANY_WARPS * 32, 1)                                         \
        gemm_many_##rows(const __grid_constant__ struct gemm_args p)                                         \
    {                                                                                                        \
        many_body<rows>(p);                                                                                  \
    }
MANY_KERNEL(32)
MANY_KERNEL(64)
MANY_KERNEL(96)
MANY_KERNEL(128)

#endif
