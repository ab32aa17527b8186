/* The rest of a tier's products: floats and bf16, and the worker's scratch. A tier's file defines
 * float_tile_run (a panel times a tile) before it includes this one. */
#pragma once

#include "device/cpu/matmul_bf16.h"
#include "device/cpu/matmul_packed.h"

/* A worker's scratch: the blocks of a product of matrices, or a few rows of activations. */
union matmul_scratch {
    struct q8_scratch q8;
    struct float_scratch floats;
    struct bf16_scratch bf16;
    struct bf16_rows bf16_rows;
    uint8_t rows[FEW * (KERNEL_K_MOST / UNIT) * Q8_ROW_BYTES];
};

static size_t matmul_packed_bytes(uint32_t type, uint32_t k)
{
#define MATMUL_PACKED(TYPE, name)                                                                            \
    if (type == DTYPE_##TYPE && unit_traits[DTYPE_##TYPE].low)                                               \
        return packed_at(DTYPE_##TYPE, k / 32);
    KERNEL_ROUNDED_TYPES(MATMUL_PACKED)
#undef MATMUL_PACKED
    return kernel_bf16(type) ? bf16_packed_bytes(k) : 0;
}

static bool matmul_streams(uint32_t type)
{
    return FILE_STREAMS && type < DTYPE_MOST && unit_traits[type].streams;
}

/* Families of types fill in their own. */
static void matmul_fill_tier(struct kernels *k, void (*bf16)(const struct matmul *job))
{
    k->packed_bytes = matmul_packed_bytes;
    k->streams = matmul_streams;
    k->matmul_float = matmul_float;
    k->matmul_bf16 = bf16;
    k->scratch_bytes = sizeof(union matmul_scratch);
}
