/* Products of the AVX2 tier: types of one to three bits. */
#include "device/cpu/matmul_avx2.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_SMALL_TYPES(MATMUL_OF)

void matmul_smalls_avx2(struct kernels *k)
{
    KERNEL_SMALL_TYPES(MATMUL_FILL)
}
