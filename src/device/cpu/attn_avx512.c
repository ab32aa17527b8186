/* Attention's kernels of the AVX-512 tier: 6 rows x 4 registers. */
#define VECTOR_BYTES        64
#define ATTN_COLS           4
#define ATTN_DOT(sum, a, b) ((vi)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b)))
#include "device/cpu/attn_vector.h"
#include "device/cpu/tiers.h"

void attn_avx512(struct kernels *k)
{
    attn_fill(k);
}
