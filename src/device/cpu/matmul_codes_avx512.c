/* Products of the AVX-512 tier: types of codes. */
#include "device/cpu/matmul_avx512.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_CODE_TYPES(MATMUL_OF)

void matmul_codes_avx512(struct kernels *k)
{
    KERNEL_CODE_TYPES(MATMUL_FILL)
}
