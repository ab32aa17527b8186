/* Attention's kernels of the AVX-512 tier: 6 rows x 4 registers. */
#define ATTN_BYTES 64
#define ATTN_COLS  4
#include "device/cpu/attn_vector.h"

void kernels_attn_avx512(struct kernels *k)
{
    k->attn_scores = attn_scores;
    k->attn_values = attn_values;
}
