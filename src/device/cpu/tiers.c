/* The vector tiers: which of them this machine has. Compiled for any x86-64; the code of a tier is called
 * only after a check for it. */
#include "device/cpu/tiers.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not every compiler's __builtin_cpu_supports knows F16C. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool kernels_avx2(struct kernels *k)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c() ||
        !__builtin_cpu_supports("bmi2"))
        return false;
    matmul_avx2(k);
    vector_avx2(k);
    k->tier = "avx2";
    return true;
}

bool kernels_avx512(struct kernels *k)
{
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
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
    enum { AMX_ALL = 1 << 22 | 1 << 24 | 1 << 25 }; /* bf16, tiles, int8 */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX_ALL) != AMX_ALL || !tiles_allowed())
        return false;
    matmul_amx(k);
    k->tier = "amx";
    return true;
}
