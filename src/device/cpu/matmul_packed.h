/* Repacked weights, in the order in which products read them: a panel of PANEL rows is contiguous, and 32
 * values of all of its rows are adjacent. Types with blocks of 256 have a head before every eight groups:
 *
 *     panel:  | head | group 0 | ... | group 7 | head | group 8 | ...
 *     head:   d of every row, then -dmin                              fp16 (PANEL) each
 *     group:  scales of every row, then minima                        16 bits (PANEL) each; behind a head
 *                                                                     bytes that its numbers scale, (2, PANEL)
 *             the lower bits, two, four or all eight of each value    (2, 4 or 8, PANEL, 4)
 *             what is above them, a bit or two                        (1 or 2, PANEL, 4)
 *
 * where a four is four neighbours of a row, side by side as in struct q8_panel, and fours share bytes: the
 * first of them has the lowest bits. To decode this costs a few shifts, and the numbers are those of
 * unit_group and unit_scales, to the bit. A tier's file defines multiply_bytes before it includes this
 * one. */
#pragma once

#include "device/cpu/matmul_panel.h"

/* PACKED_AHEAD: bytes that are prefetched. */
enum { PACKED_FOURS = 4 * PANEL, PACKED_HALVES = 2 * PANEL, PACKED_AHEAD = 4096 };

ALWAYS_INLINE __m256i packed_levels(uint32_t type, __m256i codes)
{
    return type == DTYPE_MXFP4 ? e2m1_levels(codes) : multiply_bytes(true, iq4_levels(codes));
}

ALWAYS_INLINE size_t packed_head_bytes(uint32_t type)
{
    return unit_traits[type].headed ? PACKED_HALVES * (1 + unit_traits[type].has_min) : 0;
}

/* A scale and a minimum, two scales, or one alone (IQ4_XS, so that lines of the cache stay whole); in Q2_K two bytes with
 * the scale below and the minimum above. */
ALWAYS_INLINE size_t packed_scale_bytes(uint32_t type)
{
    return unit_traits[type].headed ? 2 * PANEL : PACKED_HALVES * (1 + unit_traits[type].has_min);
}

ALWAYS_INLINE size_t packed_group_bytes(uint32_t type)
{
    return packed_scale_bytes(type) + PACKED_FOURS * (size_t)(unit_traits[type].low + unit_traits[type].high);
}

/* Where the head before group g of a panel starts, or the group itself where there are none. */
ALWAYS_INLINE size_t packed_at(uint32_t type, size_t g)
{
    const size_t unit = packed_head_bytes(type) + UNIT_GROUPS * packed_group_bytes(type);
    return unit_traits[type].headed ? g / UNIT_GROUPS * unit : g * packed_group_bytes(type);
}

/* ---- reading ---- */

/* Where a group's numbers are: its bytes, and its scales with what they are scaled by, where that is. */
struct packed_group {
    const uint8_t *bytes, *scales, *d, *min;
};

/* Four i of eight weight rows from `row` on. */
ALWAYS_INLINE __m256i packed_four(uint32_t type, const struct packed_group *p, int i, uint32_t row)
{
    const int low = unit_traits[type].low, share = 8 / low;
    const uint8_t *at = p->bytes + 4 * row, *above = at + low * PACKED_FOURS;
    __m256i v = load_32(at + i / share * PACKED_FOURS);
    if (low == 4)
        v = nibble(v, i % share);
    else if (low == 2)
        v = bit_pair(v, i % share);
    if (unit_traits[type].high == 1)
        v = _mm256_or_si256(v, bit_to(load_32(above), i, low));
    else if (unit_traits[type].high == 2)
        v = _mm256_or_si256(v,
                            _mm256_slli_epi16(bit_pair(load_32(above + i / 4 * PACKED_FOURS), i % 4), low));
    return unit_traits[type].coded ? packed_levels(type, v) : v;
}

ALWAYS_INLINE __m256 packed_halves(const uint8_t *p, uint32_t row)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 2 * row)));
}

/* Eight bytes that the fp16 at d scale; of Q2_K their lower (0) or upper (1) nibbles. */
ALWAYS_INLINE __m256 packed_scaled(uint32_t type, const uint8_t *p, const uint8_t *d, int upper, uint32_t row)
{
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + row)));
    if (type == DTYPE_Q2_K)
        s = _mm256_and_si256(upper ? _mm256_srli_epi32(s, 4) : s, _mm256_set1_epi32(15));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(s), packed_halves(d, row));
}

/* The i-th scale of a group, and its minimum, for eight weight rows from `row` on. */
ALWAYS_INLINE __m256 packed_a(uint32_t type, const struct packed_group *p, int i, uint32_t row)
{
    if (unit_traits[type].headed)
        return packed_scaled(type, p->scales + i * PANEL, p->d, 0, row);
    if (type == DTYPE_MXFP4) { /* bf16 */
        __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p->scales + 2 * row)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    }
    return packed_halves(p->scales, row);
}

ALWAYS_INLINE __m256 packed_b(uint32_t type, const struct packed_group *p, int i, uint32_t row)
{
    if (unit_traits[type].headed)
        return packed_scaled(type, p->scales + (type == DTYPE_Q2_K ? i : 1) * PANEL, p->min, 1, row);
    return packed_halves(p->scales + PACKED_HALVES, row);
}

/* From group to group of a panel; the first walk prefetches. */
struct packed_walk {
    const uint8_t *next, *head;
    bool first;
};

ALWAYS_INLINE struct packed_group packed_step(uint32_t type, struct packed_walk *w, uint32_t g)
{
    if (unit_traits[type].headed && g % UNIT_GROUPS == 0) {
        w->head = w->next;
        w->next += packed_head_bytes(type);
    }
    struct packed_group p = {.scales = w->next, .bytes = w->next + packed_scale_bytes(type)};
    if (unit_traits[type].headed) {
        p.d = w->head;
        p.min = w->head + PACKED_HALVES;
    }
    if (w->first)
        ask_ahead(w->next, PACKED_AHEAD, packed_group_bytes(type));
    w->next += packed_group_bytes(type);
    return p;
}

/* `groups` groups from p on as a panel. */
ALWAYS_INLINE void packed_read(uint32_t type, const uint8_t *p, uint32_t groups, struct q8_panel *panel)
{
    const int parts = unit_traits[type].halves ? 2 : 1;
    struct packed_walk w = {.next = p, .first = true};
    for (uint32_t g = 0; g < groups; g++) {
        const struct packed_group group = packed_step(type, &w, g);
        for (uint32_t row = 0; row < PANEL; row += 8) {
            for (int i = 0; i < parts; i++) {
                _mm256_store_ps(panel->a[parts * g + i] + row, packed_a(type, &group, i, row));
                if (unit_traits[type].has_min)
                    _mm256_store_ps(panel->b[parts * g + i] + row, packed_b(type, &group, i, row));
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                _mm256_store_si256((__m256i *)panel->q[8 * g + i][row], packed_four(type, &group, i, row));
        }
    }
}

/* ---- writing ---- */

/* The reverse of packed_levels. */
ALWAYS_INLINE __m256i packed_codes(uint32_t type, __m256i levels)
{
    __m256i codes = _mm256_setzero_si256();
    for (int i = 1; i < 16; i++) {
        const __m256i code = _mm256_set1_epi8((char)i),
                      same = _mm256_cmpeq_epi8(levels, packed_levels(type, code));
        codes = _mm256_blendv_epi8(codes, code, same);
    }
    return codes;
}

/* The reverse of packed_four, for all fours and rows: bytes as panels have them, (8, PANEL, 4). */
ALWAYS_INLINE void packed_write_bytes(uint32_t type, const uint8_t *q, uint8_t *p)
{
    const int low = unit_traits[type].low, share = 8 / low;
    const __m256i mask = _mm256_set1_epi8((char)((1 << low) - 1));
    for (int c = 0; c < PACKED_FOURS; c += 32) {
        __m256i below[8] = {0}, above[2] = {0};
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __m256i v = load_32(q + i * PACKED_FOURS + c);
            if (unit_traits[type].coded)
                v = packed_codes(type, v);
            const __m256i bits = low < 8 ? _mm256_and_si256(v, mask) : v;
            below[i / share] = _mm256_or_si256(below[i / share], _mm256_slli_epi16(bits, i % share * low));
            if (unit_traits[type].high == 1)
                above[0] = _mm256_or_si256(above[0], bit_to(v, low, i));
            if (unit_traits[type].high == 2)
                above[i / 4] = _mm256_or_si256(above[i / 4], _mm256_slli_epi16(nibble(v, 1), 2 * (i % 4)));
        }
        for (int i = 0; i < low; i++)
            _mm256_storeu_si256((__m256i *)(p + i * PACKED_FOURS + c), below[i]);
        for (int i = 0; i < unit_traits[type].high; i++)
            _mm256_storeu_si256((__m256i *)(p + (low + i) * PACKED_FOURS + c), above[i]);
    }
}

ALWAYS_INLINE void packed_set_half(uint8_t *p, uint32_t row, uint16_t half)
{
    memcpy(p + 2 * row, &half, sizeof half);
}

/* The head of what starts with this block, and the scales of the groups behind it, for one row. */
ALWAYS_INLINE void packed_write_head(uint32_t type, const uint8_t *block, uint32_t row, uint8_t *head)
{
    uint8_t *scales = head + packed_head_bytes(type) + row;
    struct unit_bytes u;
    unit_scale_bytes(type, block, &u);
    packed_set_half(head, row, u.d);
    if (unit_traits[type].has_min)
        packed_set_half(head + PACKED_HALVES, row, u.min);
    for (int g = 0; g < UNIT_GROUPS; g++, scales += packed_group_bytes(type)) {
        const int i = 2 * g % 8; /* with halves, two of the sixteen one after another */
        const uint64_t both = g < 4 ? u.first : u.second;
        scales[0] = (uint8_t)(unit_traits[type].halves ? both >> 8 * i : u.first >> 8 * g);
        scales[PANEL] = (uint8_t)(unit_traits[type].halves ? both >> 8 * (i + 1) : u.second >> 8 * g);
    }
}

/* The scale of a block of 32, and its minimum, for one row. */
ALWAYS_INLINE void packed_write_scale(uint32_t type, const uint8_t *block, uint32_t row, uint8_t *group)
{
    if (type == DTYPE_MXFP4)
        packed_set_half(group, row, bf16_from_f32(0.5f * f8_e8m0_to_f32(block[0])));
    else
        memcpy(group + 2 * row, block, 2);
    if (unit_traits[type].has_min)
        memcpy(group + PACKED_HALVES + 2 * row, block + 2, 2);
}

/* `groups` groups of PANEL rows to p: their bytes from the panel, which has been decoded; their scales from the blocks,
 * where row r has them at block + r * row_bytes, those after the last row repeating it. */
ALWAYS_INLINE void packed_write(uint32_t type, const struct q8_panel *panel, const uint8_t *block,
                                size_t row_bytes, uint32_t rows, uint32_t groups, uint8_t *p)
{
    const uint32_t each = unit_traits[type].headed ? UNIT_GROUPS : 1; /* groups of a block */
    const size_t bytes = unit_traits[type].bytes / (UNIT_GROUPS / each);
    for (uint32_t g = 0; g < groups; g++) {
        for (uint32_t r = 0; r < PANEL && g % each == 0; r++) {
            const uint8_t *from = block + least(r, rows - 1) * row_bytes + g / each * bytes;
            unit_traits[type].headed ? packed_write_head(type, from, r, p)
                                     : packed_write_scale(type, from, r, p);
        }
        if (g % each == 0)
            p += packed_head_bytes(type);
        packed_write_bytes(type, (const uint8_t *)panel->q[8 * g], p + packed_scale_bytes(type));
        p += packed_group_bytes(type);
    }
}
