/* The one decoder of each weight form on the GPU: eight values of a row at a time, as floats. Plain C that
 * nvcc compiles too; the host's tests compare it with the decoders of codec/dtype.h. */
#pragma once

#include "codec/block.h"
#include "codec/half.h"
#include "device/cuda/layout.h"

/* Half of fp16 bits by the hardware where there is one. */
LAYOUT_FN float decode_half(uint16_t bits)
{
#ifdef __CUDA_ARCH__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
#else
    return fp16_to_f32(bits);
#endif
}

LAYOUT_FN uint32_t decode_u32(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    return *(const uint32_t *)p;
#else
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
#endif
}

LAYOUT_FN uint16_t decode_u16(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    return *(const uint16_t *)p;
#else
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
#endif
}

/* Two words as one load. */
struct pair32 {
    uint32_t a, b;
};

LAYOUT_FN struct pair32 decode_u64(const uint8_t *p)
{
    struct pair32 r;
#ifdef __CUDA_ARCH__
    uint2 v = *(const uint2 *)p;
    r.a = v.x;
    r.b = v.y;
#else
    memcpy(&r, p, 8);
#endif
    return r;
}

LAYOUT_FN uint32_t decode_byte(struct pair32 w, int i)
{
    return (i < 4 ? w.a >> (8 * i) : w.b >> (8 * (i - 4))) & 0xff;
}

LAYOUT_FN float decode_iq4_level(uint32_t q)
{
    /* BLOCK_IQ4_LEVELS as bytes, eight a word: a table in registers */
    uint64_t word = q < 8 ? 0xf6eaddcfbfad9881u : 0x7159453526190d01u;
    return (float)(int8_t)(word >> (8 * (q & 7)));
}

/* e2m1: sign, two bits of exponent, one of mantissa. */
LAYOUT_FN float decode_e2m1(uint32_t q)
{
    uint32_t e = q >> 1 & 3, m = q & 1;
    float v = e ? (float)(2 + m) * (float)(1 << e) * 0.25f : (float)m * 0.5f;
    return q & 8 ? -v : v;
}

/* Scale and minimum of group g (0..7) from the 12 bytes of Q4_K and Q5_K. */
LAYOUT_FN void decode_scale_min(const uint8_t *s, uint32_t g, uint32_t *scale, uint32_t *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *min = (uint32_t)s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

/* Blocks of 32 with nibbles: value i in byte i % 16, low half first. */
LAYOUT_FN void decode_nibbles(const uint8_t *row, uint32_t fmt, uint32_t nb, uint32_t i8, float v[8])
{
    uint32_t b = i8 / 4, part = i8 % 4;
    struct pair32 w = decode_u64(row + 16 * b + 8 * (part & 1));
    uint32_t shift = part >= 2 ? 4 : 0;
    const uint8_t *rest = row + 16 * (uint64_t)nb;
    uint32_t high = 0;
    float d, m = 0;
    if (fmt == FMT_Q5_0 || fmt == FMT_Q5_1) {
        high = decode_u32(rest + 4 * b) >> (8 * part);
        rest += 4 * (uint64_t)nb;
    }
    if (fmt == FMT_Q4_1 || fmt == FMT_Q5_1) {
        uint32_t dm = decode_u32(rest + 4 * b);
        d = decode_half((uint16_t)dm);
        m = decode_half((uint16_t)(dm >> 16));
    } else {
        d = decode_half(decode_u16(rest + 2 * b));
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < 8; i++) {
        uint32_t q = decode_byte(w, i) >> shift & 15;
        switch (fmt) {
        case FMT_Q4_0:
            v[i] = d * (float)((int)q - 8);
            break;
        case FMT_Q4_1:
            v[i] = d * (float)q + m;
            break;
        case FMT_Q5_0:
            v[i] = d * (float)((int)(q | (high >> i & 1) << 4) - 16);
            break;
        case FMT_Q5_1:
            v[i] = d * (float)(q | (high >> i & 1) << 4) + m;
            break;
        default:
            v[i] = d * decode_iq4_level(q);
        }
    }
}

LAYOUT_FN void decode_q2_k(const uint8_t *row, uint32_t nb, uint32_t i8, float v[8])
{
    uint32_t b = i8 / 32, p = i8 % 32; /* p: which 8 of the 256 */
    struct pair32 w = decode_u64(row + 64 * (uint64_t)b + 32 * (p / 16) + 8 * (p % 4));
    uint32_t shift = 2 * (p % 16 / 4);
    uint32_t sc = row[64 * (uint64_t)nb + 16 * (uint64_t)b + p / 2];
    uint32_t dm = decode_u32(row + 80 * (uint64_t)nb + 4 * b);
    float d = decode_half((uint16_t)dm) * (float)(sc & 15),
          m = decode_half((uint16_t)(dm >> 16)) * (float)(sc >> 4);
    for (int i = 0; i < 8; i++)
        v[i] = d * (float)(decode_byte(w, i) >> shift & 3) - m;
}

LAYOUT_FN void decode_q3_k(const uint8_t *row, uint32_t nb, uint32_t i8, float v[8])
{
    uint32_t b = i8 / 32, p = i8 % 32, g = p / 2;
    struct pair32 w = decode_u64(row + 64 * (uint64_t)b + 32 * (p / 16) + 8 * (p % 4));
    struct pair32 h = decode_u64(row + 64 * (uint64_t)nb + 32 * (uint64_t)b + 8 * (p % 4));
    const uint8_t *s = row + 96 * (uint64_t)nb + 12 * (uint64_t)b;
    uint32_t low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, top = s[8 + g % 4] >> (2 * (g / 4)) & 3;
    float d = decode_half(decode_u16(row + 108 * (uint64_t)nb + 2 * b)) * (float)((int)(low | top << 4) - 32);
    uint32_t shift = 2 * (p % 16 / 4), bit = p / 4;
    for (int i = 0; i < 8; i++) {
        int q = (int)(decode_byte(w, i) >> shift & 3) + (int)(decode_byte(h, i) >> bit & 1) * 4;
        v[i] = d * (float)(q - 4);
    }
}

LAYOUT_FN void decode_q5_k(const uint8_t *row, uint32_t nb, uint32_t i8, float v[8])
{
    uint32_t b = i8 / 32, p = i8 % 32, g = p / 4, s, m;
    struct pair32 w = decode_u64(row + 128 * (uint64_t)b + 32 * (g / 2) + 8 * (p % 4));
    struct pair32 h = decode_u64(row + 128 * (uint64_t)nb + 32 * (uint64_t)b + 8 * (p % 4));
    const uint8_t *head = row + 160 * (uint64_t)nb + 16 * (uint64_t)b;
    uint32_t dm = decode_u32(head);
    decode_scale_min(head + 4, g, &s, &m);
    float d = decode_half((uint16_t)dm) * (float)s, low = decode_half((uint16_t)(dm >> 16)) * (float)m;
    uint32_t shift = g & 1 ? 4 : 0;
    for (int i = 0; i < 8; i++)
        v[i] = d * (float)((decode_byte(w, i) >> shift & 15) | (decode_byte(h, i) >> g & 1) << 4) - low;
}

/* Q4_K: eight bytes of quants and the header, wherever the layout has put them. */
LAYOUT_FN void decode_q4_k(struct pair32 w, const uint8_t *head, uint32_t g, float v[8])
{
    uint32_t s, m, dm = decode_u32(head), shift = g & 1 ? 4 : 0;
    decode_scale_min(head + 4, g, &s, &m);
    float d = decode_half((uint16_t)dm) * (float)s, low = decode_half((uint16_t)(dm >> 16)) * (float)m;
    for (int i = 0; i < 8; i++)
        v[i] = d * (float)(decode_byte(w, i) >> shift & 15) - low;
}

LAYOUT_FN void decode_q6_k_tile(const uint8_t *tile, uint32_t r, uint32_t p, float v[8])
{
    uint32_t g = p / 4, t = p % 4, half = g / 4, quarter = g % 4;
    const uint8_t *lane = tile + (4 * (r % 8) + t) * 16 + 8 * (r / 8);
    struct pair32 w = decode_u64(lane + 512 * (3 * half + (quarter & 1)));
    struct pair32 h = decode_u64(lane + 512 * (3 * half + 2));
    int8_t sc = (int8_t)tile[3072 + 16 * r + 8 * (t / 2) + g];
    float d = decode_half(decode_u16(tile + 3328 + 2 * r)) * (float)sc;
    uint32_t shift = quarter >= 2 ? 4 : 0;
    for (int i = 0; i < 8; i++) {
        uint32_t q = (decode_byte(w, i) >> shift & 15) | (decode_byte(h, i) >> (2 * quarter) & 3) << 4;
        v[i] = d * (float)((int)q - 32);
    }
}

LAYOUT_FN void decode_q8_0_tile(const uint8_t *tile, uint32_t r, uint32_t p, float v[8])
{
    struct pair32 w = decode_u64(tile + 512 * (p / 4) + (4 * (r % 8) + p % 4) * 16 + 8 * (r / 8));
    float d = decode_half(decode_u16(tile + 4096 + 16 * r + 2 * (p / 4)));
    for (int i = 0; i < 8; i++)
        v[i] = d * (float)(int8_t)decode_byte(w, i);
}

LAYOUT_FN void decode_mxfp4_tile(const uint8_t *tile, uint32_t r, uint32_t p, float v[8])
{
    const uint32_t g = p / 4, shift = g & 1 ? 4 : 0;
    struct pair32 w = decode_u64(tile + 512 * (g / 2) + (4 * (r % 8) + p % 4) * 16 + 8 * (r / 8));
    const float d = f8_e8m0_to_f32(tile[2048 + 8 * r + g]);
    for (int i = 0; i < 8; i++)
        v[i] = d * decode_e2m1(decode_byte(w, i) >> shift & 15);
}

LAYOUT_FN void decode_iq4_xs(const uint8_t *row, uint32_t nb, uint32_t i8, float v[8])
{
    uint32_t b = i8 / 32, p = i8 % 32, g = p / 4;
    struct pair32 w = decode_u64(row + 128 * (uint64_t)b + 16 * g + 8 * (p & 1));
    struct pair32 head = decode_u64(row + 128 * (uint64_t)nb + 8 * (uint64_t)b);
    uint32_t low = head.b >> (4 * g) & 15, top = head.a >> (16 + 2 * g) & 3, shift = p % 4 >= 2 ? 4 : 0;
    float d = decode_half((uint16_t)head.a) * (float)((int)(low | top << 4) - 32);
    for (int i = 0; i < 8; i++)
        v[i] = d * decode_iq4_level(decode_byte(w, i) >> shift & 15);
}

LAYOUT_FN void decode_plain(const uint8_t *row, uint32_t fmt, uint32_t i8, float v[8])
{
    for (int i = 0; i < 8; i++) {
        if (fmt == FMT_F32)
            v[i] = f32_from_bits(decode_u32(row + 4 * (8 * (uint64_t)i8 + i)));
        else if (fmt == FMT_F16)
            v[i] = decode_half(decode_u16(row + 2 * (8 * (uint64_t)i8 + i)));
        else
            v[i] = bf16_to_f32(decode_u16(row + 2 * (8 * (uint64_t)i8 + i)));
    }
}

/* Values 8*i8 .. 8*i8+7 of row r. With a constant fmt this becomes the one decoder. */
LAYOUT_FN void decode8(const uint8_t *base, uint64_t stride, uint32_t fmt, uint32_t k, uint32_t r,
                       uint32_t i8, float v[8])
{
    if (layout_is_tile(fmt)) {
        uint32_t p = i8 % 32, g = p / 4;
        const uint8_t *tile = base + r / 16 * stride + (uint64_t)(i8 / 32) * layout_tile_bytes(fmt);
        if (fmt == FMT_Q6_K_TILE) {
            decode_q6_k_tile(tile, r % 16, p, v);
            return;
        }
        if (fmt == FMT_Q8_0) {
            decode_q8_0_tile(tile, r % 16, p, v);
            return;
        }
        if (fmt == FMT_MXFP4) {
            decode_mxfp4_tile(tile, r % 16, p, v);
            return;
        }
        struct pair32 w = decode_u64(tile + 512 * (g / 2) + (4 * (r % 8) + p % 4) * 16 + 8 * (r % 16 / 8));
        decode_q4_k(w, tile + 2048 + 16 * (r % 16), g, v);
        return;
    }
    const uint8_t *row = base + r * stride;
    switch (fmt) {
    case FMT_F32:
    case FMT_F16:
    case FMT_BF16:
        decode_plain(row, fmt, i8, v);
        break;
    case FMT_Q2_K:
        decode_q2_k(row, k / 256, i8, v);
        break;
    case FMT_Q3_K:
        decode_q3_k(row, k / 256, i8, v);
        break;
    case FMT_Q5_K:
        decode_q5_k(row, k / 256, i8, v);
        break;
    case FMT_Q4_K: {
        const uint8_t *block = row + (uint64_t)(i8 / 32) * 144;
        uint32_t p = i8 % 32, g = p / 4;
        decode_q4_k(decode_u64(block + 16 + 32 * (g / 2) + 8 * (p % 4)), block, g, v);
        break;
    }
    case FMT_IQ4_XS:
        decode_iq4_xs(row, k / 256, i8, v);
        break;
    default:
        decode_nibbles(row, fmt, k / 32, i8, v);
    }
}
