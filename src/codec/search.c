/* The search for any x86-64, and the choice of the fastest that this machine can run. */
#include "codec/search_inline.h"

void search_plain(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    search_run(f, x, weight, out);
}

void search_block(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        search_avx512(f, x, weight, out);
    else if (__builtin_cpu_supports("avx2"))
        search_avx2(f, x, weight, out);
    else
        search_plain(f, x, weight, out);
}
