/* Copies to shared memory that run by themselves, and the barriers that count them: sm_90 and later. Barriers and places are
 * pointers, or where registers are scarce addresses in shared memory. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* count: arrivals that complete it. */
static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void bar_init(uint64_t *bar, uint32_t count)
{
    bar_init(shared_address(bar), count);
}

/* Orders what this thread did to shared memory before bulk copies that start after a barrier (of the block or the warp). */
static __device__ __forceinline__ void copies_after()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Barriers that this thread has made are there for copies. */
static __device__ __forceinline__ void bar_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile(
        "{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra wait;\n}" ::
            "r"(bar),
        "r"(parity)
        : "memory");
}

static __device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t parity)
{
    bar_wait(shared_address(bar), parity);
}

/* One arrival of a thread for which `mine` is true; without a branch. */
static __device__ __forceinline__ void bar_arrive(uint32_t bar, bool mine)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(bar),
        "r"((uint32_t)mine)
        : "memory");
}

/* One arrival; the barrier also waits for this number of bytes. */
static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void bar_expect(uint64_t *bar, uint32_t bytes)
{
    bar_expect(shared_address(bar), bytes);
}

/* One thread: bytes from memory to shared memory; bar, which expects them, counts them. */
static __device__ __forceinline__ void copy_counted(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

static __device__ __forceinline__ void copy_counted(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    copy_counted(shared_address(to), from, bytes, shared_address(bar));
}

/* The same as its only copy. */
static __device__ __forceinline__ void copy_bulk(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    bar_expect(bar, bytes);
    copy_counted(to, from, bytes, bar);
}
