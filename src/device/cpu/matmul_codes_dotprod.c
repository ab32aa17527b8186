/* Products of the dotprod tier: types of codes. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_CODE_TYPES(MATMUL_OF)

void matmul_codes_dotprod(struct kernels *k)
{
    KERNEL_CODE_TYPES(MATMUL_FILL)
}
