/* Products of the i8mm tier: types of codes. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_CODE_TYPES(MATMUL_OF)

void matmul_codes_i8mm(struct kernels *k)
{
    KERNEL_CODE_TYPES(MATMUL_FILL)
}
