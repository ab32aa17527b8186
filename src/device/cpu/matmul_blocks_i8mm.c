/* Products of the i8mm tier: types with a scale for each block. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_BLOCK_TYPES(MATMUL_OF)

void matmul_blocks_i8mm(struct kernels *k)
{
    KERNEL_BLOCK_TYPES(MATMUL_FILL)
}
