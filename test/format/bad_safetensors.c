/* Broken safetensors files, each with the sentence that it must give; and those that open. */
#include "format/bytes.h"

#include "codec/dtype.h"
#include "base/mem.h"
#include "format/safetensors.h"

#include <sys/resource.h>

struct bad {
    const char *header;
    size_t data; /* bytes that follow it */
    const char *sentence;
};

#define ENTRY(dtype, shape, range) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"
#define ONE(dtype, shape, range)   "{\"w\":" ENTRY(dtype, shape, range) "}"
#define TWO(a, b)                  "{\"a\":" a ",\"b\":" b "}"

static const struct bad cases[] = {
    {"", 0, "not a safetensors file: its header does not begin with '{'"},
    {"[]", 0, "not a safetensors file: its header does not begin with '{'"},
    {" {}", 0, "not a safetensors file: its header does not begin with '{'"},
    {"null", 0, "not a safetensors file: its header does not begin with '{'"},
    {"{", 0, "the header, line 1, column 1: string or '}' expected near end of file"},
    {"{}x", 0, "the header, line 1, column 3: end of file expected near 'x'"},
    {"{\"w\":}", 0, "the header, line 1, column 6: unexpected token near '}'"},
    {"{\"w\" 1}", 0, "the header, line 1, column 6: ':' expected near '1'"},
    {"{\"w\":NaN}", 0, "the header, line 1: NaN is not JSON; write a finite number or null there"},
    {"{\"w\":Infinity}", 0, "the header, line 1: Infinity is not JSON; write a finite number or null there"},
    {"{\"w\":-Infinity}", 0,
     "the header, line 1: -Infinity is not JSON; write a finite number or null there"},
    {"{\"w\":[[[[[[[[[1]]]]]]]]]}", 0, "the header nests more than 8 levels deep"},
    {"{\"a\":1,\"a\":2}", 0, "the header, line 1, column 10: duplicate object key near '\"a\"'"},
    {TWO(ENTRY("U8", "[1]", "[0,1]"), "1,\"a\":2"), 1,
     "the header, line 1, column 62: duplicate object key near '\"a\"'"},
    {"{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "the header, line 1, column 26: duplicate object key near '\"dtype\"'"},
    {"{\"w\\u0000\":1}", 0,
     "the header, line 1, column 10: NUL byte in object key not supported near '\"w\\u0000\"'"},
    {"{\"w\":1}", 0, "tensor 'w' is not described by an object"},
    {"{\"w\":[]}", 0, "tensor 'w' is not described by an object"},
    {"{\"w\":null}", 0, "tensor 'w' is not described by an object"},
    {"{\"w\":{}}", 0, "tensor 'w' has no dtype"},
    {"{\"w\":{\"dtype\":1}}", 0, "tensor 'w' has no dtype"},
    {"{\"w\":{\"dtype\":\"F32\"}}", 0, "tensor 'w' has no shape"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":4}}", 0, "tensor 'w' has no shape"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":{}}}", 0, "tensor 'w' has no shape"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4,
     "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F31", "[1]", "[0,4]"), 4, "tensor 'w' has dtype 'F31', which is none that quern knows"},
    {ONE("f32", "[1]", "[0,4]"), 4, "tensor 'w' has dtype 'f32', which is none that quern knows"},
    {ONE("Q4_K", "[1]", "[0,4]"), 4, "tensor 'w' has dtype 'Q4_K', which is none that quern knows"},
    {ONE("C64", "[1]", "[0,8]"), 8, "tensor 'w' has dtype 'C64', which is none that quern knows"},
    {ONE("", "[1]", "[0,4]"), 4, "tensor 'w' has dtype '', which is none that quern knows"},
    {ONE("F32", "[-1]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[1.0]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[\"1\"]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[null]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[[1]]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[true]", "[0,4]"), 4, "tensor 'w': a dimension is not a whole number from 0 up"},
    {ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "tensor 'w' has 9 dimensions; at most 8 are allowed"},
    {ONE("F32", "[4294967296,4294967296]", "[0,4]"), 4,
     "tensor 'w': the product of its dimensions is too large"},
    {ONE("F32", "[9223372036854775807,3]", "[0,4]"), 4,
     "tensor 'w': the product of its dimensions is too large"},
    {ONE("F32", "[2,2,2,2,2,4611686018427387904]", "[0,4]"), 4,
     "tensor 'w': the product of its dimensions is too large"},
    {ONE("F32", "[9223372036854775808]", "[0,4]"), 4,
     "the header, line 1, column 48: too big integer near '9223372036854775808'"},
    {ONE("F32", "[9223372036854775807]", "[0,4]"), 4,
     "tensor 'w': its range has 4 bytes, and 9223372036854775807 values of F32 take 4 each"},
    {ONE("F32", "[4611686018427387904]", "[0,0]"), 0,
     "tensor 'w': its range has 0 bytes, and 4611686018427387904 values of F32 take 4 each"},
    {ONE("F32", "[1024,1024]", "[0,64]"), 64,
     "tensor 'w': its range has 64 bytes, and 1048576 values of F32 take 4 each"},
    {ONE("F32", "[1024,1024]", "[0,4194304]"), 64,
     "tensor 'w' (bytes 0 to 4194304) goes past the end of the file, which has 64 bytes of data: is it cut "
     "short?"},
    {ONE("F32", "[2]", "[0,4]"), 4, "tensor 'w': its range has 4 bytes, and 2 values of F32 take 4 each"},
    {ONE("F32", "[]", "[0,8]"), 8, "tensor 'w': its range has 8 bytes, and 1 values of F32 take 4 each"},
    {ONE("F32", "[0]", "[0,4]"), 4, "tensor 'w': its range has 4 bytes, and 0 values of F32 take 4 each"},
    {ONE("BF16", "[3]", "[0,4]"), 4, "tensor 'w': its range has 4 bytes, and 3 values of BF16 take 2 each"},
    {ONE("F32", "[1]", "4"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "[0]"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "[0,4,8]"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "[0,\"4\"]"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "[0.0,4.0]"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "{}"), 4, "tensor 'w': data_offsets is not a pair of whole numbers"},
    {ONE("F32", "[1]", "[-4,0]"), 4, "tensor 'w': data_offsets -4 to 0 make no range"},
    {ONE("F32", "[1]", "[4,0]"), 4, "tensor 'w': data_offsets 4 to 0 make no range"},
    {ONE("F32", "[1]", "[0,-1]"), 4, "tensor 'w': data_offsets 0 to -1 make no range"},
    {ONE("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 4,
     "tensor 'w' (bytes 9223372036854775803 to 9223372036854775807) goes past the end of the file, which has "
     "4 bytes of "
     "data: is it cut short?"},
    {ONE("F32", "[1]", "[0,4]"), 3,
     "tensor 'w' (bytes 0 to 4) goes past the end of the file, which has 3 bytes of data: is it cut short?"},
    {ONE("F32", "[1]", "[4,8]"), 8, "4 bytes before tensor 'w' belong to no tensor"},
    {ONE("F32", "[1]", "[0,4]"), 5, "1 bytes at the end of the file belong to no tensor"},
    {"{}", 1, "1 bytes at the end of the file belong to no tensor"},
    {TWO(ENTRY("U8", "[4]", "[0,4]"), ENTRY("U8", "[4]", "[0,4]")), 4, "tensors 'a' and 'b' overlap"},
    {TWO(ENTRY("U8", "[4]", "[0,4]"), ENTRY("U8", "[4]", "[2,6]")), 6, "tensors 'a' and 'b' overlap"},
    {TWO(ENTRY("U8", "[4]", "[0,4]"), ENTRY("U8", "[4]", "[5,9]")), 9,
     "1 bytes before tensor 'b' belong to no tensor"},
    {TWO(ENTRY("U8", "[4]", "[0,4]"), ENTRY("U8", "[0]", "[2,2]")), 4, "tensors 'a' and 'b' overlap"},
    {"{\"__metadata__\":1}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":[\"a\"]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: 'a' is not a string"},
    {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "__metadata__: 'a' is not a string"},
};

static int parse(const char *header, uint64_t announced, size_t data, struct err *e)
{
    size_t n = strlen(header), size = 8 + n + data;
    uint8_t *bytes = malloc(size);
    memcpy(bytes, &announced, 8);
    memcpy(bytes + 8, header, n);
    memset(bytes + 8 + n, 0, data);
    struct safetensors s = {0};
    int result = safetensors_parse(&s, bytes, size, e);
    safetensors_free(&s);
    free(bytes);
    return result;
}

static void test_sentences(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        parse(cases[i].header, strlen(cases[i].header), cases[i].data, &e);
        wrong += !bytes_said(cases[i].header, &e, cases[i].sentence);
    }
    print_message("%zu cases\n", sizeof cases / sizeof *cases);
    assert_int_equal(wrong, 0);
}

/* The one number in front of the header. */
static void test_length(void **state)
{
    (void)state;
    static const struct {
        const char *value, *sentence;
    } lengths[] = {
        {"0", "not a safetensors file: its header does not begin with '{'"},
        {"1", "the header, line 1, column 1: string or '}' expected near end of file"},
        {"3", "the file ends inside its header: 3 bytes announced, 2 there"},
        {"2^31",
         "not a safetensors file: its header would be 2147483648 bytes long, and 33554432 are allowed"},
        {"2^32-1",
         "not a safetensors file: its header would be 4294967295 bytes long, and 33554432 are allowed"},
        {"2^63-1", "not a safetensors file: its header would be 9223372036854775807 bytes long, and 33554432 "
                   "are allowed"},
        {"2^64-1", "not a safetensors file: its header would be 18446744073709551615 bytes long, and "
                   "33554432 are allowed"},
        {"2^64-8", "not a safetensors file: its header would be 18446744073709551608 bytes long, and "
                   "33554432 are allowed"},
        {"33554433",
         "not a safetensors file: its header would be 33554433 bytes long, and 33554432 are allowed"},
        {"33554432", "the file ends inside its header: 33554432 bytes announced, 2 there"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct err e = {0};
        parse("{}", bytes_number(lengths[i].value), 0, &e);
        wrong += !bytes_said(lengths[i].value, &e, lengths[i].sentence);
    }
    assert_int_equal(wrong, 0);
}

#define WHOLE                                                                                                \
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" ENTRY("F32", "[2,3]", "[0,24]") ",\"z\":" ENTRY(          \
        "I8", "[0,4]", "[24,24]") ",\"b\":" ENTRY("BF16", "[]", "[24,26]") ",\"c\":" ENTRY("U8",             \
                                                                                           "[1,2,1,1,2]",    \
                                                                                           "[26,30]") "}   "

static void test_cut(void **state)
{
    (void)state;
    struct buf b = {0};
    uint64_t n = strlen(WHOLE);
    buf_add(&b, &n, 8);
    buf_str(&b, WHOLE);
    for (int i = 0; i < 30; i++)
        buf_char(&b, (char)i);
    for (size_t cut = 0; cut < b.len; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, b.data, cut);
        struct safetensors s;
        struct err e = {0};
        assert_int_equal(safetensors_parse(&s, copy, cut, &e), -1);
        assert_true(strstr(e.text, "are too few") || strstr(e.text, "ends inside its header") ||
                    strstr(e.text, "goes past the end"));
        free(copy);
    }
    buf_free(&b);
}

static void test_whole(void **state)
{
    (void)state;
    struct buf b = {0};
    uint64_t n = strlen(WHOLE);
    buf_add(&b, &n, 8);
    buf_str(&b, WHOLE);
    for (int i = 0; i < 30; i++)
        buf_char(&b, (char)i);
    struct safetensors s;
    struct err e = {0};
    assert_int_equal(safetensors_parse(&s, (const uint8_t *)b.data, b.len, &e), 0);
    assert_int_equal(s.count, 4);
    assert_string_equal(json_string_value(json_object_get(s.metadata, "format")), "pt");
    const struct tensor *a = &s.tensors[0], *z = &s.tensors[1], *c = &s.tensors[3];
    assert_true(a->dims == 2 && a->shape[0] == 3 && a->shape[1] == 2 && a->values == 6 && a->data[1] == 1);
    assert_true(z->values == 0 && z->bytes == 0 && z->shape[1] == 0 && z->shape[0] == 4);
    assert_true(s.tensors[2].dims == 0 && s.tensors[2].values == 1);
    assert_true(c->dims == 4 && c->shape[0] == 2 && c->shape[3] == 2 && c->values == 4 && c->data[0] == 26);
    safetensors_free(&s);
    buf_free(&b);
}

static void test_memory(void **state)
{
    (void)state;
    int n = 1;
    for (;; n++) {
        struct err e = {0};
        mem_fail_at(n);
        int result = parse(WHOLE, strlen(WHOLE), 30, &e);
        mem_fail_at(0);
        if (result == 0)
            break;
        assert_int_equal(e.code, ERR_RESOURCE);
    }
    assert_true(n > 10);
}

/* A header of 32 MiB of "1,1,1,...": read as it stands it would take twenty times as much. */
static void test_bomb(void **state)
{
    (void)state;
    uint64_t n = 32 << 20;
    char *file = malloc(8 + n);
    memcpy(file, &n, 8);
    for (uint64_t i = 0; i < n; i += 2)
        memcpy(file + 8 + i, "1,", 2);
    memcpy(file + 8, "{\"w\":[", 6);
    memcpy(file + 8 + n - 4, "1 ]}", 4);
    struct safetensors s;
    struct err e = {0};
    assert_int_equal(safetensors_parse(&s, (const uint8_t *)file, 8 + n, &e), -1);
    assert_string_equal(e.text, "the header needs more than the 48 MiB that it may take to read");
    assert_int_equal(e.code, ERR_RESOURCE);
    free(file);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    print_message("peak %ld KiB, 32 MiB of which are the file\n", u.ru_maxrss);
#ifndef __SANITIZE_ADDRESS__
    assert_true(u.ru_maxrss < (32 + 64) * 1024);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences), cmocka_unit_test(test_length), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_whole),     cmocka_unit_test(test_memory), cmocka_unit_test(test_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
