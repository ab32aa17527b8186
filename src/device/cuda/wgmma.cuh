/* Hopper's matrix instruction: D (64 rows, a warpgroup's) += A B, A in registers, B in shared memory. Only in builds for
 * sm_90a. */
#pragma once

#include "device/cuda/bulk.cuh"

/* Where B lies, in core matrices of eight rows of 16 bytes: `inner` bytes from a core matrix to the next one along k,
 * `outer` along n. */
static __device__ __forceinline__ uint64_t wgmma_operand(const uint8_t *at, uint32_t inner, uint32_t outer)
{
    return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)(inner >> 4) << 16 |
           (uint64_t)(outer >> 4) << 32;
}

/* The same in rows of 128 bytes, of which 16 bytes c of row r lie in place c ^ r % 8; eight rows start at a multiple of
 * 1024 bytes. `at`: where row 0 would have its part if nothing were swapped. */
static __device__ __forceinline__ uint64_t wgmma_rows(const uint8_t *at)
{
    return wgmma_operand(at, 16, 1024) | 1ull << 62;
}

/* The same in two steps: the low word, which alone depends on the address (in shared memory); and the operand. */
static __device__ __forceinline__ uint32_t wgmma_rows_low(uint32_t at)
{
    return (at >> 4 & 0x3fff) | 1u << 16;
}

static __device__ __forceinline__ uint64_t wgmma_rows_of(uint32_t low)
{
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | low;
}

#define C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])

/* 16 of k, 64 columns. add false: c is overwritten. */
static __device__ __forceinline__ void wgmma_64(float c[8][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add));
}

/* 32 columns, always added. */
static __device__ __forceinline__ void wgmma_32(float c[4][4], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : C4(0), C4(1), C4(2), C4(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* 96 columns. */
static __device__ __forceinline__ void wgmma_96(float c[12][4], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
                 "{%48,%49,%50,%51}, %52, 1, 1, 1, 0;"
                 : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7), C4(8), C4(9), C4(10), C4(11)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* 128 columns. */
static __device__ __forceinline__ void wgmma_128(float c[16][4], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7), C4(8), C4(9), C4(10), C4(11),
                   C4(12), C4(13), C4(14), C4(15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Both operands in shared memory, in rows of 128 bytes (wgmma_rows); 8 * N columns. */
template <int N>
static __device__ __forceinline__ void wgmma_both(float c[N][4], uint64_t a, uint64_t b, bool add)
{
    static_assert(N == 8 || N == 16 || N == 32, "64, 128 or 256 columns");
    if constexpr (N == 8)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                     "%32, %33, p, 1, 1, 0, 0;\n}"
                     : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7)
                     : "l"(a), "l"(b), "r"((uint32_t)add));
    else if constexpr (N == 32)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                     "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                     "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                     "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                     "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
                     "%128, %129, p, 1, 1, 0, 0;\n}"
                     : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7), C4(8), C4(9), C4(10), C4(11),
                       C4(12), C4(13), C4(14), C4(15), C4(16), C4(17), C4(18), C4(19), C4(20), C4(21), C4(22),
                       C4(23), C4(24), C4(25), C4(26), C4(27), C4(28), C4(29), C4(30), C4(31)
                     : "l"(a), "l"(b), "r"((uint32_t)add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                     "%64, %65, p, 1, 1, 0, 0;\n}"
                     : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7), C4(8), C4(9), C4(10), C4(11),
                       C4(12), C4(13), C4(14), C4(15)
                     : "l"(a), "l"(b), "r"((uint32_t)add));
}

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All are done: the sums may be read, the operands changed. */
template <int N> static __device__ __forceinline__ void wgmma_done(float c[N][4])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : C4(i)::"memory");
}

/* Split-K: waits until all blocks that share columns have written their parts. The last one to leave sets the count back. */
static __device__ __forceinline__ void gemm_join(uint32_t *count, uint32_t blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t seen;
        __threadfence();
        atomicAdd(count, 1);
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
        while (seen < blocks);
        if (atomicAdd(count, 1) == 2 * blocks - 1)
            *count = 0;
    }
    __syncthreads();
}
