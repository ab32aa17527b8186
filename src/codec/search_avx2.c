/* The search with AVX2: sixteen lanes are two registers. */
#include <immintrin.h>
#include <string.h>

typedef float halves __attribute__((vector_size(64)));

static inline halves max_of(halves a, halves b)
{
    __m256 x[2], y[2];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    x[0] = _mm256_max_ps(x[0], y[0]);
    x[1] = _mm256_max_ps(x[1], y[1]);
    memcpy(&a, x, sizeof a);
    return a;
}

static inline halves min_of(halves a, halves b)
{
    __m256 x[2], y[2];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    x[0] = _mm256_min_ps(x[0], y[0]);
    x[1] = _mm256_min_ps(x[1], y[1]);
    memcpy(&a, x, sizeof a);
    return a;
}

#define LANES_MAX(a, b) max_of(a, b)
#define LANES_MIN(a, b) min_of(a, b)
#include "codec/search_inline.h"

void search_avx2(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    search_run(f, x, weight, out);
}
