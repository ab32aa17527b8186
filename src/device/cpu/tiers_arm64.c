/* The vector tiers of ARM64: which of them this machine has. Compiled for any ARM64; the code of a tier is called only
 * after a check for it. */
#include "device/cpu/tiers.h"

#include "base/isa.h"

void scalar_fused(struct kernels *k)
{
    (void)k; /* the baseline has it */
}

static bool fill_neon(struct kernels *k)
{
    if (!isa_has(ISA_neon))
        return false;
    matmul_neon(k);
    vector_neon(k);
    attn_neon(k);
    return true;
}

static bool fill_dotprod(struct kernels *k)
{
    if (!isa_has(ISA_dotprod))
        return false;
    matmul_dotprod(k);
    return true;
}

static bool fill_i8mm(struct kernels *k)
{
    if (!isa_has(ISA_i8mm))
        return false;
    matmul_i8mm(k);
    return true;
}

const struct tier kernel_tiers[] = {
    {"neon", fill_neon, probe_neon},
    {"dotprod", fill_dotprod, probe_dotprod},
    {"i8mm", fill_i8mm, probe_i8mm},
    {0},
};
