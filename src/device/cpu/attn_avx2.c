/* Attention's kernels of the AVX2 tier: 6 rows x 2 registers. */
#define ATTN_BYTES 32
#define ATTN_COLS  2
#include "device/cpu/attn_vector.h"

void kernels_attn_avx2(struct kernels *k)
{
    k->attn_scores = attn_scores;
    k->attn_values = attn_values;
}
