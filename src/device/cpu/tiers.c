/* The vector tiers: which of them this machine has. Compiled for any x86-64; the code of a tier is
 * called only behind its question. */
#include "device/cpu/tiers.h"

#include <cpuid.h>

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
