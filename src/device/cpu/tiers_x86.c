/* The vector tiers of x86-64: which of them this machine has. Compiled for any x86-64; the code of a tier is called only
 * after a check for it. */
#include "device/cpu/tiers.h"

#include "base/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

void scalar_fused(struct kernels *k)
{
    if (isa_has(ISA_avx2))
        scalar_avx2(k);
}

static bool fill_avx2(struct kernels *k)
{
    if (!isa_has(ISA_avx2))
        return false;
    matmul_avx2(k);
    vector_avx2(k);
    attn_avx2(k);
    return true;
}

static bool fill_avx512(struct kernels *k)
{
    if (!isa_has(ISA_avx512))
        return false;
    matmul_avx512(k);
    if (__builtin_cpu_supports("avx512bf16"))
        matmul_avx512bf16(k);
    vector_avx512(k);
    attn_avx512(k);
    return true;
}

/* Tiles are 8 KB of state a thread, so Linux grants them on request: once, for all present and future
 * threads. */
static bool tiles_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool fill_amx(struct kernels *k)
{
    if (!isa_has(ISA_amx) || !tiles_allowed())
        return false;
    matmul_amx(k);
    return true;
}

const struct tier kernel_tiers[] = {
    {"avx2", fill_avx2, probe_avx2},
    {"avx512", fill_avx512, probe_avx512},
    {"amx", fill_amx, probe_amx},
    {0},
};
