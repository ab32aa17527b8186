/* Attention's kernels of the NEON tiers: 6 rows x 4 registers. Of the pairs the first and the second numbers are apart, so
 * that each multiplies a whole register. */
#define VECTOR_BYTES 16
#include "device/cpu/lanes.h"

#define ATTN_COLS 4
typedef int16x4x2_t attn_pair_lanes;
#define ATTN_LOAD(p)               vld2_s16(p)
#define ATTN_DOT(sum, lanes, pair) ((vi)neon_dot((int32x4_t)(sum), lanes, pair))

static inline __attribute__((always_inline)) int32x4_t neon_dot(int32x4_t sum, int16x4x2_t lanes,
                                                                int32_t pair)
{
    const int16x4_t both = vreinterpret_s16_s32(vdup_n_s32(pair));
    return vmlal_lane_s16(vmlal_lane_s16(sum, lanes.val[0], both, 0), lanes.val[1], both, 1);
}

#include "device/cpu/attn_vector.h"
#include "device/cpu/tiers.h"

void attn_neon(struct kernels *k)
{
    attn_fill(k);
}
