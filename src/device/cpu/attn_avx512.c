/* Attention's kernels of the AVX-512 tier: 6 rows x 4 registers. */
#define ATTN_BYTES   64
#define ATTN_COLS    4
#define ATTN_HALF(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(p)))
#include "device/cpu/attn_vector.h"

void kernels_attn_avx512(struct kernels *k)
{
    k->attn_scores = attn_scores;
    k->attn_values = attn_values;
}
