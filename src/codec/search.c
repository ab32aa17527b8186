/* The search for any x86-64, and the choice of the fastest that this machine can run. */
#include "codec/search_inline.h"

#include "base/isa.h"

void search_plain(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    search_run(f, x, weight, out);
}

void search_block(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    if (isa_has(ISA_avx512))
        search_avx512(f, x, weight, out);
    else if (isa_has(ISA_avx2))
        search_avx2(f, x, weight, out);
    else
        search_plain(f, x, weight, out);
}
