/* The search with AVX-512. */
#include <immintrin.h>

#define LANES_MAX(a, b) ((lanes)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LANES_MIN(a, b) ((lanes)_mm512_min_ps((__m512)(a), (__m512)(b)))
#include "codec/search_inline.h"

void search_avx512(const struct search_form *f, const float *x, const float *weight,
                   struct search_result *out)
{
    search_run(f, x, weight, out);
}
