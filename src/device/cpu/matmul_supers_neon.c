/* Products of the NEON tier: types of four to six bits with two levels of scales. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_q8.h"
#include "device/cpu/tiers.h"

KERNEL_SUPER_TYPES(MATMUL_OF)

void matmul_supers_neon(struct kernels *k)
{
    KERNEL_SUPER_TYPES(MATMUL_FILL)
}
