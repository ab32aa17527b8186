/* Integer products of the tier with products of matrices of bytes. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/tiers.h"

void matmul_i8mm(struct kernels *k)
{
    matmul_fill_rounded(k);
}
