/* Attention's kernels of the AVX2 tier: 6 rows x 2 registers. */
#define ATTN_BYTES   32
#define ATTN_COLS    2
#define ATTN_HALF(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(p)))
#include "device/cpu/attn_vector.h"

void kernels_attn_avx2(struct kernels *k)
{
    k->attn_scores = attn_scores;
    k->attn_values = attn_values;
}
