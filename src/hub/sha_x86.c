#include "hub/sha_fast.h"

#include <cpuid.h>
#include <immintrin.h>

/* CPUID leaf 7, EBX bit 29; every CPU that has it has SSE4.1 and SSSE3 too. */
bool sha256_instructions(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}

/* The instructions keep the state as two vectors, (f e b a) and (h g d c) from the lowest lane up, and do two
 * rounds each; w holds the last sixteen words of the schedule. */
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_blocks_fast(uint32_t state[8], const uint8_t *data,
                                                                    size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i dcba = _mm_loadu_si128((const __m128i *)state),
            hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; blocks; blocks--, data += 64) {
        __m128i abef0 = abef, cdgh0 = cdgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i *now = &w[i % 4];
            if (i >= 4) {
                __m128i before = w[(i + 3) % 4];
                *now = _mm_sha256msg1_epu32(*now, w[(i + 1) % 4]);
                *now = _mm_add_epi32(*now, _mm_alignr_epi8(before, w[(i + 2) % 4], 4));
                *now = _mm_sha256msg2_epu32(*now, before);
            }
            __m128i add = _mm_add_epi32(*now, _mm_load_si128((const __m128i *)(sha256_k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, add);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(add, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef0);
        cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
