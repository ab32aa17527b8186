/* Lines of rounded activations: those of x, or with the rests of their rounding twice as many. What products need to know of
 * them, whichever way they read the weights. A tier's file defines SIGNED_OFFSET before it includes this one. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* What to subtract from the bytes that are multiplied. */
ALWAYS_INLINE int q8_centre(uint32_t type)
{
    return unit_traits[type].is_signed ? SIGNED_OFFSET : unit_traits[type].offset;
}

ALWAYS_INLINE uint32_t q8_lines(const struct matmul *job)
{
    return job->rests ? 2 * job->m : job->m;
}

ALWAYS_INLINE bool q8_one_line(const struct matmul *job)
{
    return LINE_ALONE && q8_lines(job) == 1;
}

/* One line in scratch. `sum` is d * sum of the quants; or `start`, what cancels the offset of the weights, is in the same
 * place; by 32 or by 16. */
struct q8_line {
    int8_t *q;
    float *d, *sum;
    int32_t *start;
};

/* Line r of x to its place in scratch, without sums. */
static struct q8_line q8_copy_line(const struct matmul *job, uint32_t r)
{
    const size_t units = (job->k + UNIT - 1) / UNIT;
    uint8_t *at = (uint8_t *)job->scratch + r * units * Q8_ROW_BYTES, *sums = at + units * (UNIT + UNIT / 8);
    const struct q8_line line = {(int8_t *)at, (float *)(at + units * UNIT), (float *)sums, (int32_t *)sums};
    memcpy(line.q, job->q8.q + r * job->q8.q_stride, job->k);
    memcpy(line.d, job->q8.d + r * job->q8.s_stride, job->k / 32 * sizeof *line.d);
    return line;
}

/* The sums of both halves of 32 quants. */
ALWAYS_INLINE void q8_halves(const int8_t *q, int32_t half[2])
{
    __m256i v = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_32(q));
    v = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
    v = _mm256_hadd_epi32(v, v);
    v = _mm256_hadd_epi32(v, v);
    half[0] = _mm256_cvtsi256_si32(v);
    half[1] = _mm256_extract_epi32(v, 4);
}

static void q8_sums(bool halves, const int8_t *q, const float *d, uint32_t groups, float *sum)
{
    for (uint32_t g = 0; g < groups; g++) {
        int32_t half[2];
        q8_halves(q + 32 * (size_t)g, half);
        if (halves) {
            sum[2 * g] = d[g] * (float)half[0];
            sum[2 * g + 1] = d[g] * (float)half[1];
        } else {
            sum[g] = d[g] * (float)(half[0] + half[1]);
        }
    }
}

/* What integer sums begin with where bytes have an offset. */
static void q8_starts(bool halves, int centre, const int8_t *q, uint32_t groups, int32_t *start)
{
    for (uint32_t g = 0; g < groups; g++) {
        int32_t half[2] = {0};
        if (centre)
            q8_halves(q + 32 * (size_t)g, half);
        if (halves) {
            start[2 * g] = half[0] * -centre;
            start[2 * g + 1] = half[1] * -centre;
        } else {
            start[g] = (half[0] + half[1]) * -centre;
        }
    }
}
