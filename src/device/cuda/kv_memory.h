/* Memory for the KV of one group. Addresses for all pages are reserved once, so that graphs and page tables stay valid;
 * physical memory is mapped behind the first pages as sequences grow, and unmapped again. A page holds all layers of its
 * tokens, so that this is one mapping. */
#pragma once

#include "device/cuda/gpu.h"

/* Growing leaves this much of the card free: graphs and cuBLASLt take some while steps run. */
#define KV_LEAVE ((uint64_t)256 << 20)

struct kv_memory {
    cu_ptr base;
    uint64_t bytes;  /* of all pages, in whole granules */
    uint64_t backed; /* the first of them that have memory */
    uint8_t *begins; /* (granules): a mapping begins there; NULL: all of it is one allocation */
    bool held;       /* the addresses are reserved */
};

/* Reserves addresses. A card that cannot map memory gets all of it at once. */
int kv_memory_open(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e);
void kv_memory_close(struct kv_memory *m, struct gpu *g);
/* Memory for the first bytes: maps what is missing, zeroed, or unmaps what is beyond. After a failure (ERR_RESOURCE) it is
 * as before. */
int kv_memory_back(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e);
