/* Attention's kernels of the AVX2 tier: 6 rows x 2 registers. */
#define VECTOR_BYTES        32
#define ATTN_COLS           2
#define ATTN_DOT(sum, a, b) ((sum) + (vi)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#include "device/cpu/attn_vector.h"
#include "device/cpu/tiers.h"

void attn_avx2(struct kernels *k)
{
    attn_fill(k);
}
