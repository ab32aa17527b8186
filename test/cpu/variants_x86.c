#include "variants.h"

#include "device/cpu/tiers.h"
#include "fake_amx.h"

/* AVX-512 without AVX512_BF16, and the AMX tier without AMX. */
bool variant_bf16(size_t i, struct kernels *k)
{
    struct err e = {0};
    const struct kernels *under = kernels_get("avx512", &e);
    if (!under || (i && !__builtin_cpu_supports("avx512bf16")))
        return false;
    *k = *under;
    if (i) {
        fake_amx(k);
        k->tier = "amx in C";
    } else {
        matmul_avx512(k);
    }
    return true;
}
