/* Products of the AVX-512 tier: types with a scale for each block. */
#include "device/cpu/matmul_avx512.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_BLOCK_TYPES(MATMUL_OF)

void matmul_blocks_avx512(struct kernels *k)
{
    KERNEL_BLOCK_TYPES(MATMUL_FILL)
}
