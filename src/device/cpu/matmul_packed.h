/* Weights laid out anew, in the order in which products want them: a panel of PANEL rows is one run of memory, and
 * 32 values of all of its rows lie together. Where k comes in blocks of 256 these have a head of their own:
 *
 *     panel:  | head | group 0 | ... | group 7 | head | group 8 | ...      (heads: Q4_K, Q5_K and Q6_K alone)
 *     head:   d of every row, then -dmin                                    fp16 (PANEL) each
 *     group:  scales of every row, then minima                              fp16 (PANEL), or bytes that head's d scales
 *             the lower four bits: byte j of | four 2i + 1 | four 2i |      (4, PANEL, 4)
 *             what is above them: bit i of a byte belongs to four i         (1, PANEL, 4): fifth bits
 *                                 two bits each, fours 0-3 and 4-7          (2, PANEL, 4): Q6_K
 *
 * where a four is four neighbours of a row, side by side as in struct q8_panel; Q8_0 has its bytes as they are. To
 * decode this costs a few shifts, and the numbers are those of unit_group and unit_scales, to the bit. */
#pragma once

#include "device/cpu/matmul_panel.h"

enum { PACKED_FOURS = 4 * PANEL, PACKED_HALVES = 2 * PANEL };

/* Types that can be laid out so: the others' bytes come from tables, or they are rare. */
ALWAYS_INLINE bool packed_type(uint32_t type)
{
    return type == DTYPE_Q4_0 || type == DTYPE_Q4_1 || type == DTYPE_Q5_0 || type == DTYPE_Q5_1 ||
           type == DTYPE_Q8_0 || type == DTYPE_Q4_K || type == DTYPE_Q5_K || type == DTYPE_Q6_K;
}

/* Scales are bytes times a d that 256 values share. */
ALWAYS_INLINE bool packed_shared(uint32_t type)
{
    return type == DTYPE_Q4_K || type == DTYPE_Q5_K || type == DTYPE_Q6_K;
}

/* Bits above the lower four. */
ALWAYS_INLINE int packed_high(uint32_t type)
{
    return type == DTYPE_Q6_K ? 2 : type == DTYPE_Q5_0 || type == DTYPE_Q5_1 || type == DTYPE_Q5_K;
}

ALWAYS_INLINE size_t packed_head_bytes(uint32_t type)
{
    return packed_shared(type) ? PACKED_HALVES * (1 + unit_has_min(type)) : 0;
}

ALWAYS_INLINE size_t packed_scale_bytes(uint32_t type)
{
    const size_t each = packed_shared(type) ? PANEL : PACKED_HALVES;
    return each * ((unit_halves(type) ? 2 : 1) + unit_has_min(type));
}

ALWAYS_INLINE size_t packed_group_bytes(uint32_t type)
{
    return packed_scale_bytes(type) + PACKED_FOURS * (type == DTYPE_Q8_0 ? 8 : 4 + (size_t)packed_high(type));
}

/* Where the head before group g of a panel starts, or the group itself where there are none. */
ALWAYS_INLINE size_t packed_at(uint32_t type, size_t g)
{
    const size_t unit = packed_head_bytes(type) + UNIT_GROUPS * packed_group_bytes(type);
    return packed_shared(type) ? g / UNIT_GROUPS * unit : g * packed_group_bytes(type);
}

/* ---- reading ---- */

/* What is above the lower four bits of four i, from where its lower bits would be. */
ALWAYS_INLINE __m256i packed_high_bits(uint32_t type, const uint8_t *p, int i)
{
    p += 4 * PACKED_FOURS;
    if (packed_high(type) == 1)
        return bit_to(load_32(p), i, 4);
    const __m256i h = load_32(p + i / 4 * PACKED_FOURS);
    const int up = 4 - 2 * (i % 4);
    return _mm256_and_si256(up > 0 ? _mm256_slli_epi16(h, up) : _mm256_srli_epi16(h, -up),
                            _mm256_set1_epi8(0x30));
}

/* Four i of eight weight rows, of the group whose bytes start 4 * (the first of them) before p. */
ALWAYS_INLINE __m256i packed_four(uint32_t type, const uint8_t *p, int i)
{
    if (type == DTYPE_Q8_0)
        return load_32(p + i * PACKED_FOURS);
    const __m256i low = nibble(load_32(p + i / 2 * PACKED_FOURS), i % 2);
    return packed_high(type) ? _mm256_or_si256(low, packed_high_bits(type, p, i)) : low;
}

ALWAYS_INLINE __m256 packed_halves(const uint8_t *p, uint32_t row)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 2 * row)));
}

ALWAYS_INLINE __m256 packed_bytes(const uint8_t *p, const uint8_t *shared, uint32_t row)
{
    const __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + row)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(s), packed_halves(shared, row));
}

/* The i-th scale of a group, and its minimum, for eight weight rows from `row` on. */
ALWAYS_INLINE __m256 packed_a(uint32_t type, const uint8_t *group, const uint8_t *d, int i, uint32_t row)
{
    return packed_shared(type) ? packed_bytes(group + i * PANEL, d, row) : packed_halves(group, row);
}

ALWAYS_INLINE __m256 packed_b(uint32_t type, const uint8_t *group, const uint8_t *min, uint32_t row)
{
    return packed_shared(type) ? packed_bytes(group + PANEL, min, row)
                               : packed_halves(group + PACKED_HALVES, row);
}

/* From group to group of a panel; the first to walk it asks for what lies ahead. */
struct packed_walk {
    const uint8_t *next, *d, *min;
    bool first;
};

ALWAYS_INLINE const uint8_t *packed_step(uint32_t type, struct packed_walk *w, uint32_t g)
{
    if (packed_shared(type) && g % UNIT_GROUPS == 0) {
        w->d = w->next;
        w->min = w->next + PACKED_HALVES;
        w->next += packed_head_bytes(type);
    }
    const uint8_t *group = w->next;
    w->next += packed_group_bytes(type);
    if (w->first)
        ask_ahead(group, STREAM_AHEAD, packed_group_bytes(type));
    return group;
}

/* `groups` groups from p on, where a head is if there are any, as a panel. */
ALWAYS_INLINE void packed_read(uint32_t type, const uint8_t *p, uint32_t groups, struct q8_panel *panel)
{
    const int parts = unit_halves(type) ? 2 : 1;
    struct packed_walk w = {.next = p, .first = true};
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *group = packed_step(type, &w, g);
        for (uint32_t row = 0; row < PANEL; row += 8) {
            for (int i = 0; i < parts; i++)
                _mm256_store_ps(panel->a[parts * g + i] + row, packed_a(type, group, w.d, i, row));
            if (unit_has_min(type))
                _mm256_store_ps(panel->b[g] + row, packed_b(type, group, w.min, row));
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                _mm256_store_si256((__m256i *)panel->q[8 * g + i][row],
                                   packed_four(type, group + packed_scale_bytes(type) + 4 * row, i));
        }
    }
}

/* ---- writing ---- */

/* The reverse of packed_read_bytes. */
ALWAYS_INLINE void packed_write_bytes(uint32_t type, const uint8_t *q, uint8_t *p)
{
    if (type == DTYPE_Q8_0) {
        memcpy(p, q, 8 * PACKED_FOURS);
        return;
    }
    uint8_t *high = p + 4 * PACKED_FOURS;
    for (int c = 0; c < PACKED_FOURS; c += 32) {
        __m256i top[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, low = top[0];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m256i v = load_32(q + i * PACKED_FOURS + c), above = nibble(v, 1);
            if (packed_high(type) == 1)
                top[0] = _mm256_or_si256(top[0], bit_to(above, 0, i));
            if (packed_high(type) == 2)
                top[i / 4] = _mm256_or_si256(top[i / 4], _mm256_slli_epi16(above, 2 * (i % 4)));
            if (i % 2 == 0)
                low = low_nibbles(v);
            else
                _mm256_storeu_si256((__m256i *)(p + i / 2 * PACKED_FOURS + c),
                                    _mm256_or_si256(low, _mm256_slli_epi16(low_nibbles(v), 4)));
        }
        for (int i = 0; i < packed_high(type); i++)
            _mm256_storeu_si256((__m256i *)(high + i * PACKED_FOURS + c), top[i]);
    }
}

/* The head of a block of 256 of row r. */
ALWAYS_INLINE void packed_write_head(uint32_t type, const uint8_t *block, int r, uint8_t *head)
{
    const struct block_q4_k *b = (const void *)block;
    const uint16_t d = type == DTYPE_Q6_K ? ((const struct block_q6_k *)(const void *)block)->d : b->d;
    memcpy(head + 2 * r, &d, sizeof d);
    if (unit_has_min(type)) {
        const uint16_t min = b->dmin ^ 0x8000;
        memcpy(head + PACKED_HALVES + 2 * r, &min, sizeof min);
    }
}

/* The scales of row r of the eight groups after a head, `step` bytes from one group to the next. */
ALWAYS_INLINE void packed_write_shared(uint32_t type, const uint8_t *block, int r, uint8_t *to, size_t step)
{
    uint64_t first, second;
    if (type == DTYPE_Q6_K) {
        const struct block_q6_k *b = (const void *)block;
        for (int g = 0; g < UNIT_GROUPS; g++, to += step) {
            to[r] = (uint8_t)b->scales[2 * g];
            to[PANEL + r] = (uint8_t)b->scales[2 * g + 1];
        }
        return;
    }
    sixes_q4_k(block, &first, &second);
    for (int g = 0; g < UNIT_GROUPS; g++, to += step) {
        to[r] = (uint8_t)(first >> 8 * g);
        to[PANEL + r] = (uint8_t)(second >> 8 * g);
    }
}

/* `groups` groups of PANEL rows to p: their bytes from the panel, which has been decoded; their scales from the blocks,
 * where row r has them at block + r * row_bytes, those after the last row repeating it. */
ALWAYS_INLINE void packed_write(uint32_t type, const struct q8_panel *panel, const uint8_t *block,
                                size_t row_bytes, uint32_t rows, uint32_t groups, uint8_t *p)
{
    const size_t group = packed_group_bytes(type), small = unit_bytes(type) / UNIT_GROUPS;
    for (uint32_t g = 0; g < groups; g++) {
        if (packed_shared(type) && g % UNIT_GROUPS == 0) {
            for (uint32_t r = 0; r < PANEL; r++) {
                const uint8_t *b =
                    block + least(r, rows - 1) * row_bytes + g / UNIT_GROUPS * unit_bytes(type);
                packed_write_head(type, b, (int)r, p);
                packed_write_shared(type, b, (int)r, p + packed_head_bytes(type), group);
            }
            p += packed_head_bytes(type);
        }
        for (uint32_t r = 0; r < PANEL && !packed_shared(type); r++) {
            const uint8_t *b = block + least(r, rows - 1) * row_bytes + g * small;
            memcpy(p + 2 * r, b, 2);
            if (unit_has_min(type))
                memcpy(p + PACKED_HALVES + 2 * r, b + 2, 2);
        }
        packed_write_bytes(type, (const uint8_t *)panel->q[8 * g], p + packed_scale_bytes(type));
        p += group;
    }
}
