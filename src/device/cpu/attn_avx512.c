/* Attention's kernels of the AVX-512 tier: 6 rows x 4 registers. */
#define VECTOR_BYTES 64
#include "device/cpu/lanes.h"

#define ATTN_COLS 4
typedef vi attn_pair_lanes;
#define ATTN_LOAD(p) v_load_words(p)
#define ATTN_DOT(sum, lanes, pair)                                                                           \
    ((vi)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(lanes), _mm512_set1_epi32(pair)))

#include "device/cpu/attn_vector.h"
#include "device/cpu/tiers.h"

void attn_avx512(struct kernels *k)
{
    attn_fill(k);
}
