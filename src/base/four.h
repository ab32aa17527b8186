/* Four floats in a register that every machine has, and what the compiler's vector types cannot say. */
#pragma once

#include <stdint.h>
#include <string.h>

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_mask __attribute__((vector_size(16))); /* 0 or -1, as comparisons give them */

/* Lane by lane the larger; b where one is no number. And whether a mask has a lane that is not 0. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define four_max(a, b)                                                                                       \
    ((four)vbslq_f32(vcgtq_f32((float32x4_t)(a), (float32x4_t)(b)), (float32x4_t)(a), (float32x4_t)(b)))
#define four_any(mask) (vmaxvq_u32((uint32x4_t)(mask)) != 0)
#else
#include <emmintrin.h>
#define four_max(a, b) ((four)_mm_max_ps((__m128)(a), (__m128)(b)))
#define four_any(mask) (_mm_movemask_ps((__m128)(mask)) != 0)
#endif

static inline four four_load(const float *p)
{
    four v;
    memcpy(&v, p, sizeof v);
    return v;
}
