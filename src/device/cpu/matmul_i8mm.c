/* Integer products of the tier with products of matrices of bytes: panels of any type. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_classes.h"
#include "device/cpu/tiers.h"

void matmul_i8mm(struct kernels *k)
{
    matmul_blocks_i8mm(k);
    matmul_supers_i8mm(k);
    matmul_smalls_i8mm(k);
    matmul_codes_i8mm(k);
}
