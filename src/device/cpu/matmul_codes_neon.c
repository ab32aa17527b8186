/* Products of the NEON tier: types of codes. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_CODE_TYPES(MATMUL_OF)

void matmul_codes_neon(struct kernels *k)
{
    KERNEL_CODE_TYPES(MATMUL_FILL)
}
