/* The search with AVX-512. */
#include <immintrin.h>

#define LANES_MAX(a, b) ((lanes)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LANES_MIN(a, b) ((lanes)_mm512_min_ps((__m512)(a), (__m512)(b)))
#include "base/fit_search.h"

void fit_avx512(const struct fit_form *f, const float *x, const float *weight, struct fit *out)
{
    fit_search(f, x, weight, out);
}
