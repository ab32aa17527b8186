/* Products of the dotprod tier: types of one to three bits. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_SMALL_TYPES(MATMUL_OF)

void matmul_smalls_dotprod(struct kernels *k)
{
    KERNEL_SMALL_TYPES(MATMUL_FILL)
}
