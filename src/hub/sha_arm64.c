#include "hub/sha_fast.h"

#include <arm_neon.h>
#include <sys/auxv.h>

bool sha256_instructions(void)
{
    return getauxval(AT_HWCAP) & HWCAP_SHA2;
}

/* The instructions keep the state as two vectors, (a b c d) and (e f g h) from the lowest lane up, and do four rounds
 * each; w holds the last sixteen words of the schedule. */
__attribute__((target("+crypto"))) void sha256_blocks_fast(uint32_t state[8], const uint8_t *data,
                                                           size_t blocks)
{
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; blocks; blocks--, data += 64) {
        uint32x4_t abcd0 = abcd, efgh0 = efgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            uint32x4_t add = vaddq_u32(w[i % 4], vld1q_u32(sha256_k + 4 * i)), before = abcd;
            if (i < 12)
                w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4],
                                           w[(i + 3) % 4]);
            abcd = vsha256hq_u32(abcd, efgh, add);
            efgh = vsha256h2q_u32(efgh, before, add);
        }
        abcd = vaddq_u32(abcd, abcd0);
        efgh = vaddq_u32(efgh, efgh0);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}
