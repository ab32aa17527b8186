/* Attention's kernels of the AVX2 tier: 6 rows x 2 registers. */
#define VECTOR_BYTES 32
#include "device/cpu/lanes.h"

#define ATTN_COLS 2
typedef vi attn_pair_lanes;
#define ATTN_LOAD(p)               v_load_words(p)
#define ATTN_DOT(sum, lanes, pair) ((sum) + (vi)_mm256_madd_epi16((__m256i)(lanes), _mm256_set1_epi32(pair)))

#include "device/cpu/attn_vector.h"
#include "device/cpu/tiers.h"

void attn_avx2(struct kernels *k)
{
    attn_fill(k);
}
