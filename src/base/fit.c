/* The search for any x86-64, and the choice of the fastest that this machine can run. */
#include "base/fit_search.h"

void fit_plain(const struct fit_form *f, const float *x, const float *weight, struct fit *out)
{
    fit_search(f, x, weight, out);
}

void fit_block(const struct fit_form *f, const float *x, const float *weight, struct fit *out)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        fit_avx512(f, x, weight, out);
    else if (__builtin_cpu_supports("avx2"))
        fit_avx2(f, x, weight, out);
    else
        fit_plain(f, x, weight, out);
}
