/* Integer products of the tier with dot products of bytes. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/tiers.h"

void matmul_dotprod(struct kernels *k)
{
    matmul_fill_rounded(k);
}
