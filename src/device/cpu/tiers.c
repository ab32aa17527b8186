/* The vector tiers: which of them this machine has. Compiled for any x86-64; the code of a tier is called
 * only after a check for it. */
#include "device/cpu/tiers.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum isa_register { EAX, EBX, ECX, EDX };

static const struct isa {
    const char *tier;
    unsigned leaf, subleaf;
    enum isa_register in;
    unsigned bit;
} isa[] = {
#define ISA(tier, name, leaf, subleaf, in, bit) {#tier, leaf, subleaf, in, bit},
#include "device/cpu/isa.h"
#undef ISA
};

/* Whether the processor has all that the table lists for a tier. That the system keeps its registers is asked beside it. */
static bool processor_has(const char *tier)
{
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        unsigned r[4];
        if (!strcmp(isa[i].tier, tier) &&
            (!__get_cpuid_count(isa[i].leaf, isa[i].subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) ||
             !(r[isa[i].in] >> isa[i].bit & 1)))
            return false;
    }
    return true;
}

bool kernels_avx2(struct kernels *k)
{
    if (!__builtin_cpu_supports("avx2") || !processor_has("avx2"))
        return false;
    matmul_avx2(k);
    vector_avx2(k);
    k->tier = "avx2";
    return true;
}

bool kernels_avx512(struct kernels *k)
{
    if (!__builtin_cpu_supports("avx512f") || !processor_has("avx512"))
        return false;
    matmul_avx512(k);
    if (__builtin_cpu_supports("avx512bf16"))
        matmul_avx512bf16(k);
    vector_avx512(k);
    k->tier = "avx512";
    return true;
}

/* Tiles are 8 KB of state a thread, so Linux grants them on request: once, for all present and future
 * threads. */
static bool tiles_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool kernels_amx(struct kernels *k)
{
    if (!processor_has("amx") || !tiles_allowed())
        return false;
    matmul_amx(k);
    k->tier = "amx";
    return true;
}
