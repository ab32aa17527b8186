/* Integer products of the tier with dot products of bytes: panels of any type. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_classes.h"
#include "device/cpu/tiers.h"

void matmul_dotprod(struct kernels *k)
{
    matmul_blocks_dotprod(k);
    matmul_supers_dotprod(k);
    matmul_smalls_dotprod(k);
    matmul_codes_dotprod(k);
}
