/* Tensor types: the table, the small floats over all of their values, and every decoder and encoder on odd
 * input. That decoders agree with other programs to the last bit is for test/e2e/test_dtype.py. */
#include "test.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "codec/block.h"
#include "codec/dtype.h"
#include "codec/half.h"

enum { VALUES = 512, BYTES = 8 * VALUES };

static void same(float a, float b)
{
    if (isnan(a) && isnan(b))
        return;
    if (f32_bits(a) != f32_bits(b))
        fail_msg("%a (0x%08x) is not %a (0x%08x)", (double)a, f32_bits(a), (double)b, f32_bits(b));
}

static uint32_t noise_state = 1;

static uint32_t noise(void)
{
    noise_state ^= noise_state << 13;
    noise_state ^= noise_state >> 17;
    return noise_state ^= noise_state << 5;
}

/* Uniform in -1..1. */
static float noise_f32(void)
{
    return (float)(int32_t)noise() * 0x1p-31f;
}

static void table(void **state)
{
    (void)state;
    int known = 0;
    for (uint32_t i = 0; i < DTYPE_MOST; i++) {
        const struct dtype_info *t = dtype_get(i);
        if (!t)
            continue;
        known++;
        assert_true(t->block_values >= 1 && t->block_bytes >= 1);
        assert_true(VALUES % t->block_values == 0 && t->block_values <= BLOCK_K);
        assert_non_null(t->decode);
        assert_int_equal(dtype_find(t->name), (int)i);
        size_t bytes = 1;
        assert_true(dtype_row_bytes(i, 0, &bytes) && bytes == 0);
        assert_true(dtype_row_bytes(i, t->block_values, &bytes) && bytes == t->block_bytes);
    }
    assert_int_equal(known, 42);
    assert_int_equal(dtype_find("q4_k"), DTYPE_Q4_K);
    assert_int_equal(dtype_find("Q4_K"), DTYPE_Q4_K);
    assert_int_equal(dtype_find("Q4"), -1);
    assert_int_equal(dtype_find(""), -1);
    static const uint32_t none[] = {4, 5, 31, 32, 33, 36, 37, 38, 99, DTYPE_MOST, DTYPE_MOST + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(dtype_get(none[i]));
}

static void row_bytes(void **state)
{
    (void)state;
    size_t bytes = 77;
    assert_true(dtype_row_bytes(DTYPE_Q4_K, 4096, &bytes));
    assert_int_equal(bytes, 16 * 144);
    bytes = 77;
    assert_false(dtype_row_bytes(DTYPE_Q4_K, 4097, &bytes));
    assert_false(dtype_row_bytes(DTYPE_Q4_K, 128, &bytes));
    assert_false(dtype_row_bytes(4, 32, &bytes));
    assert_false(dtype_row_bytes(DTYPE_F32, SIZE_MAX / 4 + 1, &bytes));
    assert_false(dtype_row_bytes(DTYPE_F32, SIZE_MAX, &bytes));
    assert_false(dtype_row_bytes(DTYPE_Q8_0, SIZE_MAX - 31, &bytes)); /* 34 bytes for 32 values */
    assert_false(dtype_row_bytes(DTYPE_Q8_K, SIZE_MAX / 256 * 256, &bytes));
    assert_int_equal(bytes, 77);
    assert_true(dtype_row_bytes(DTYPE_F32, SIZE_MAX / 4, &bytes));
    assert_true(dtype_row_bytes(DTYPE_Q4_0, SIZE_MAX - 31, &bytes)); /* 18 bytes for 32 values */
}

/* A small float by its definition: sign, exponent, mantissa. The top exponent is infinity and NaN, or for
 * `finite` types a number like the others but for the last code, NaN. */
static float small_float(unsigned code, int exponent_bits, int mantissa_bits, bool finite)
{
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int mantissa = (int)(code & ((1u << mantissa_bits) - 1));
    int exponent = (int)(code >> mantissa_bits) & top;
    float sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1.0f : 1.0f;
    if (exponent == top && !finite)
        return mantissa ? NAN : sign * INFINITY;
    if (finite && exponent == top && mantissa == (1 << mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
}

/* Between each two neighbours: the exact values come back, the middle goes to the even code, and the floats
 * on both sides of it to their own. */
static void check_rounding(float (*to)(unsigned), unsigned (*from)(float), unsigned last, unsigned sign)
{
    for (unsigned code = 0; code <= last; code++) {
        float v = to(code);
        assert_int_equal(from(v), code);
        assert_int_equal(from(-v), code | sign);
        if (code == last)
            break;
        float next = to(code + 1), middle = v + (next - v) / 2;
        assert_int_equal(from(middle), code & 1 ? code + 1 : code);
        assert_int_equal(from(nextafterf(middle, -INFINITY)), code);
        assert_int_equal(from(nextafterf(middle, INFINITY)), code + 1);
        assert_int_equal(from(-nextafterf(middle, INFINITY)), (code + 1) | sign);
    }
}

static float fp16_to(unsigned c)
{
    return fp16_to_f32((uint16_t)c);
}

static unsigned fp16_from(float f)
{
    return fp16_from_f32(f);
}

static float bf16_to(unsigned c)
{
    return bf16_to_f32((uint16_t)c);
}

static unsigned bf16_from(float f)
{
    return bf16_from_f32(f);
}

static float e4m3_to(unsigned c)
{
    return f8_e4m3_to_f32((uint8_t)c);
}

static unsigned e4m3_from(float f)
{
    return f8_e4m3_from_f32(f);
}

static float e5m2_to(unsigned c)
{
    return f8_e5m2_to_f32((uint8_t)c);
}

static unsigned e5m2_from(float f)
{
    return f8_e5m2_from_f32(f);
}

static void halves(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        same(fp16_to_f32((uint16_t)i), small_float(i, 5, 10, false));
        same(bf16_to_f32((uint16_t)i), small_float(i, 8, 7, false));
    }
    check_rounding(fp16_to, fp16_from, 0x7bff, 0x8000);
    check_rounding(bf16_to, bf16_from, 0x7f7f, 0x8000);
    assert_int_equal(fp16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(fp16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(fp16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(fp16_from_f32(65520), 0x7c00); /* halfway to what would be next */
    assert_int_equal(fp16_from_f32(FLT_MAX), 0x7c00);
    assert_int_equal(fp16_from_f32(0x1p-149f), 0);
    assert_int_equal(bf16_from_f32(FLT_MAX), 0x7f80);
    assert_int_equal(bf16_from_f32(-INFINITY), 0xff80);
    for (uint32_t u = 0x7f800001; u < 0x80000000u;
         u += 0x1fff) /* every kind of NaN stays one, with its sign */
        for (unsigned minus = 0; minus < 2; minus++) {
            float f = f32_from_bits(u | minus << 31);
            assert_true(isnan(fp16_to_f32(fp16_from_f32(f))) && isnan(bf16_to_f32(bf16_from_f32(f))));
            assert_int_equal(fp16_from_f32(f) >> 15, minus);
            assert_int_equal(bf16_from_f32(f) >> 15, minus);
        }
}

static void eights(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 256; i++) {
        same(f8_e4m3_to_f32((uint8_t)i), small_float(i, 4, 3, true));
        same(f8_e5m2_to_f32((uint8_t)i), small_float(i, 5, 2, false));
        float e = f8_e8m0_to_f32((uint8_t)i);
        same(e, i == 255 ? NAN : ldexpf(1, (int)i - 127));
        assert_int_equal(f8_e8m0_from_f32(e), i);
    }
    check_rounding(e4m3_to, e4m3_from, 0x7e, 0x80);
    check_rounding(e5m2_to, e5m2_from, 0x7b, 0x80);
    assert_int_equal(f8_e4m3_from_f32(464), 0x7e); /* halfway to what would be next */
    assert_int_equal(f8_e4m3_from_f32(464.001f), 0x7f);
    assert_int_equal(f8_e4m3_from_f32(-INFINITY), 0xff);
    assert_int_equal(f8_e4m3_from_f32(NAN) & 0x7f, 0x7f);
    assert_int_equal(f8_e5m2_from_f32(61440), 0x7c);
    assert_int_equal(f8_e5m2_from_f32(-FLT_MAX), 0xfc);
    assert_true(isnan(f8_e5m2_to_f32(f8_e5m2_from_f32(NAN))));
    for (unsigned i = 0; i < 254; i++) {
        float middle = 1.5f * f8_e8m0_to_f32((uint8_t)i);
        assert_int_equal(f8_e8m0_from_f32(middle), i & 1 ? i + 1 : i);
        assert_int_equal(f8_e8m0_from_f32(nextafterf(middle, 0)), i);
        assert_int_equal(f8_e8m0_from_f32(nextafterf(middle, INFINITY)), i + 1);
    }
    assert_int_equal(f8_e8m0_from_f32(-1), 255);
    assert_int_equal(f8_e8m0_from_f32(NAN), 255);
    assert_int_equal(f8_e8m0_from_f32(0), 0);
}

static void plain_numbers(void **state)
{
    (void)state;
    float out[2];
    dtype_get(DTYPE_F64)->decode((double[]){1.0 / 3, 1e300}, out, 2);
    same(out[0], (float)(1.0 / 3));
    same(out[1], INFINITY);
    dtype_get(DTYPE_I8)->decode((int8_t[]){-128, 127}, out, 2);
    assert_true(out[0] == -128 && out[1] == 127);
    dtype_get(DTYPE_I16)->decode((int16_t[]){-32768, 32767}, out, 2);
    assert_true(out[0] == -32768 && out[1] == 32767);
    dtype_get(DTYPE_I32)->decode((int32_t[]){INT32_MIN, 16777217}, out, 2);
    assert_true(out[0] == -0x1p31f && out[1] == 16777216);
    dtype_get(DTYPE_I64)->decode((int64_t[]){INT64_MIN, -5}, out, 2);
    assert_true(out[0] == -0x1p63f && out[1] == -5);
    dtype_get(DTYPE_U8)->decode((uint8_t[]){255, 0}, out, 2);
    assert_true(out[0] == 255 && out[1] == 0);
    dtype_get(DTYPE_U16)->decode((uint16_t[]){65535, 1}, out, 2);
    assert_true(out[0] == 65535 && out[1] == 1);
    dtype_get(DTYPE_U32)->decode((uint32_t[]){UINT32_MAX, 2}, out, 2);
    assert_true(out[0] == 0x1p32f && out[1] == 2);
    dtype_get(DTYPE_U64)->decode((uint64_t[]){UINT64_MAX, 3}, out, 2);
    assert_true(out[0] == 0x1p64f && out[1] == 3);
    dtype_get(DTYPE_BOOL)->decode((uint8_t[]){1, 0}, out, 2);
    assert_true(out[0] == 1 && out[1] == 0);
}

/* Types that the other programs do not decode, or decode otherwise, by their diagrams. */
static void known_blocks(void **state)
{
    (void)state;
    float out[BLOCK_K];
    struct block_q8_1 q8_1 = {.d = fp16_from_f32(0.5f), .s = 0x7e00};
    struct block_q8_k q8_k = {.d = -3};
    struct block_q1_0 q1_0 = {.d = fp16_from_f32(2)};
    for (int i = 0; i < BLOCK_K; i++)
        q8_k.qs[i] = (int8_t)(i - 128);
    memcpy(q8_1.qs, q8_k.qs + 100, sizeof q8_1.qs);
    dtype_get(DTYPE_Q8_1)->decode(&q8_1, out, 32);
    for (int i = 0; i < 32; i++)
        same(out[i], 0.5f * (float)(i - 28));
    dtype_get(DTYPE_Q8_K)->decode(&q8_k, out, BLOCK_K);
    for (int i = 0; i < BLOCK_K; i++)
        same(out[i], -3.0f * (float)(i - 128));
    q1_0.qs[0] = 0x81;
    q1_0.qs[15] = 0x02;
    dtype_get(DTYPE_Q1_0)->decode(&q1_0, out, 128);
    for (int i = 0; i < 128; i++)
        same(out[i], i == 0 || i == 7 || i == 121 ? 2 : -2);

    /* In Q4_K group 5 has its scale in three places. */
    struct block_q4_k q4_k = {.d = fp16_from_f32(1), .dmin = fp16_from_f32(0.25f)};
    q4_k.scales[9] = 0x3d; /* low bits: minimum 3, scale 13 */
    q4_k.scales[1] = 0x80; /* bits 5 and 4 of scale 5: 10 */
    q4_k.scales[5] = 0x40; /* of minimum 5: 01 */
    q4_k.qs[64] = 0x70;    /* value 160 */
    dtype_get(DTYPE_Q4_K)->decode(&q4_k, out, BLOCK_K);
    same(out[160], 7.0f * (13 + 32) - 0.25f * (3 + 16));
    same(out[161], -0.25f * (3 + 16));
    same(out[0], 0);
}

/* Wherever blocks lie, the values are the same. */
static void any_address(void **state)
{
    (void)state;
    static uint8_t bytes[BYTES + 16];
    static float a[VALUES], b[VALUES];
    for (uint32_t i = 0; i < DTYPE_MOST; i++) {
        const struct dtype_info *t = dtype_get(i);
        size_t n;
        if (!t || !dtype_row_bytes(i, VALUES, &n))
            continue;
        assert_true(n <= BYTES);
        for (size_t j = 0; j < n; j++)
            bytes[j] = (uint8_t)noise();
        t->decode(bytes, a, VALUES);
        for (size_t at = 1; at < 4; at++) {
            memmove(bytes + at, bytes + at - 1, n);
            t->decode(bytes + at, b, VALUES);
            for (int j = 0; j < VALUES; j++)
                same(a[j], b[j]);
        }
    }
}

/* How far a value may be off, as a part of the largest in the row. */
static float tolerance(uint32_t type)
{
    switch (type) {
    case DTYPE_F32:
        return 0;
    case DTYPE_F16:
        return 0x1p-11f;
    case DTYPE_BF16:
    case DTYPE_Q8_0:
    case DTYPE_Q8_1:
    case DTYPE_Q8_K:
        return 0x1p-7f;
    case DTYPE_Q6_K:
        return 0x1p-5f;
    case DTYPE_Q5_K:
    case DTYPE_Q5_1:
    case DTYPE_Q5_0:
    case DTYPE_F8_E4M3:
        return 0.1f;
    case DTYPE_F8_E5M2:
    case DTYPE_Q4_K:
    case DTYPE_Q4_1:
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return 0.2f;
    case DTYPE_MXFP4:
    case DTYPE_Q3_K:
        return 0.3f;
    default:
        return 0.5f;
    }
}

static void check_round_trip(uint32_t type, const float *x, const float *importance)
{
    static uint8_t bytes[BYTES], again[BYTES];
    static float y[VALUES];
    const struct dtype_info *t = dtype_get(type);
    size_t n = 0;
    assert_true(dtype_row_bytes(type, VALUES, &n));
    float most = 0;
    for (int i = 0; i < VALUES; i++)
        most = fmaxf(most, fabsf(x[i]));
    t->encode(x, bytes, VALUES, importance);
    memset(again, 0xa5, sizeof again);
    t->encode(x, again, VALUES, importance);
    assert_memory_equal(bytes, again, n);
    t->decode(bytes, y, VALUES);
    for (int i = 0; i < VALUES; i++)
        if (!(fabsf(y[i] - x[i]) <= tolerance(type) * most))
            fail_msg("%s: value %d is %g and becomes %g; the largest is %g", t->name, i, (double)x[i],
                     (double)y[i], (double)most);
}

static void for_each_encoder(void (*check)(uint32_t, const float *, const float *), const float *x,
                             const float *importance)
{
    for (uint32_t i = 0; i < DTYPE_MOST; i++)
        if (dtype_get(i) && dtype_get(i)->encode && i != DTYPE_F8_E8M0)
            check(i, x, importance);
}

static void round_trips(void **state)
{
    (void)state;
    static float x[VALUES], importance[VALUES];
    for (int i = 0; i < VALUES; i++)
        importance[i] = 0.2f + fabsf(noise_f32());
    for (int kind = 0; kind < 8; kind++) {
        for (int i = 0; i < VALUES; i++) {
            float r = noise_f32();
            x[i] = kind == 0   ? r
                   : kind == 1 ? 0
                   : kind == 2 ? 1
                   : kind == 3 ? -1
                   : kind == 4 ? r * 100 + 300
                   : kind == 5 ? (float)(i % 2) - 0.5f
                   : kind == 6 ? (i == 200 ? -5.0f : 0)
                               : r * 0.015f;
        }
        for_each_encoder(check_round_trip, x, NULL);
        for_each_encoder(check_round_trip, x, importance);
    }
}

/* Whatever comes in, an encoder writes its own bytes and no others, and a decoder takes them. */
static void check_survives(uint32_t type, const float *x, const float *importance)
{
    static uint8_t bytes[BYTES + 1];
    static float y[VALUES];
    size_t n = 0;
    assert_true(dtype_row_bytes(type, VALUES, &n));
    memset(bytes, 0x5a, sizeof bytes);
    dtype_get(type)->encode(x, bytes, VALUES, importance);
    assert_int_equal(bytes[n], 0x5a);
    dtype_get(type)->decode(bytes, y, VALUES);
}

static void odd_input(void **state)
{
    (void)state;
    static const float odd[] = {0,         -0.0f, 1,        -1,      FLT_MAX,   -FLT_MAX,  INFINITY,
                                -INFINITY, NAN,   FLT_MIN,  -1e-40f, 0x1p-149f, 0x1p-126f, 6e-8f,
                                65504,     65520, -3.4e38f, 1e30f,   1e-30f,    0x1p-25f};
    static float x[VALUES], importance[VALUES];
    const int count = sizeof odd / sizeof *odd;
    for (int round = 0; round < 40 + count * 3; round++) {
        for (int i = 0; i < VALUES; i++) {
            x[i] = odd[noise() % count];
            importance[i] = odd[noise() % count];
            if (round >= 40) /* one odd value among ordinary ones, or all the same, or next to nothing */
                x[i] = (round - 40) % 3 == 0   ? noise_f32()
                       : (round - 40) % 3 == 1 ? odd[(round - 40) / 3]
                                               : noise_f32() * odd[(round - 40) / 3];
        }
        if (round >= 40 && round % 3 == 1)
            x[noise() % VALUES] = odd[(round - 40) / 3];
        for_each_encoder(check_survives, x, NULL);
        for_each_encoder(check_survives, x, importance);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),       cmocka_unit_test(row_bytes),     cmocka_unit_test(halves),
        cmocka_unit_test(eights),      cmocka_unit_test(plain_numbers), cmocka_unit_test(known_blocks),
        cmocka_unit_test(any_address), cmocka_unit_test(round_trips),   cmocka_unit_test(odd_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
