/* Clusters: blocks that run at once and reach each other's shared memory (sm_90 and later). On older cards a cluster is one
 * block: its barrier is the block's, and every place is its own. */
#pragma once

#include "device/cuda/common.cuh"

#if __CUDA_ARCH__ >= 900
#define CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)

static __device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

/* The same place in the shared memory of another block. */
template <typename T> static __device__ __forceinline__ T *cluster_at(T *p, uint32_t block)
{
    T *r;
    asm("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(p), "r"(block));
    return r;
}

/* The same as an address of shared memory, for st.shared::cluster. */
static __device__ __forceinline__ uint32_t cluster_address(const void *p, uint32_t block)
{
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(block));
    return at;
}
#else
#define CLUSTER(blocks)

static __device__ __forceinline__ void cluster_arrive()
{
}

static __device__ __forceinline__ void cluster_wait()
{
    __syncthreads();
}

template <typename T> static __device__ __forceinline__ T *cluster_at(T *p, uint32_t)
{
    return p;
}
#endif
