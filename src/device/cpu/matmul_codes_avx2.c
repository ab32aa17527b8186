/* Products of the AVX2 tier: types of codes. */
#include "device/cpu/matmul_avx2.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_CODE_TYPES(MATMUL_OF)

void matmul_codes_avx2(struct kernels *k)
{
    KERNEL_CODE_TYPES(MATMUL_FILL)
}
