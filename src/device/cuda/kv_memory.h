/* Memory for the KV of one group. Addresses for all pages are reserved once, so that graphs and page tables stay valid;
 * physical memory is mapped behind the first of each layer's pages as sequences grow, and unmapped again. */
#pragma once

#include "device/cuda/gpu.h"

/* A layer's pages begin at a multiple of this, which is what cards map at once. */
#define KV_GRANULE ((uint64_t)2 << 20)
/* Growing leaves this much of the card free: graphs and cuBLASLt take some while steps run. */
#define KV_LEAVE ((uint64_t)256 << 20)

struct kv_memory {
    cu_ptr base;
    uint64_t layer_bytes; /* a multiple of KV_GRANULE */
    uint32_t layers;
    uint64_t backed; /* bytes of every layer that have memory */
    uint8_t
        *begins; /* (layer_bytes / KV_GRANULE): a mapping begins there; NULL: all of it is one allocation */
    bool held;   /* the addresses are reserved */
};

/* Reserves addresses. A card that cannot map memory gets all of it at once. */
int kv_memory_open(struct kv_memory *m, struct gpu *g, uint64_t layer_bytes, uint32_t layers, struct err *e);
void kv_memory_close(struct kv_memory *m, struct gpu *g);
/* Memory for the first `bytes` of every layer: maps what is missing, zeroed, or unmaps what is beyond. After a failure
 * (ERR_RESOURCE) it is as before. */
int kv_memory_back(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e);
/* Bytes that are taken of the card. */
uint64_t kv_memory_bytes(const struct kv_memory *m);
static inline uint64_t kv_granules(uint64_t bytes)
{
    return (bytes + KV_GRANULE - 1) / KV_GRANULE * KV_GRANULE;
}
