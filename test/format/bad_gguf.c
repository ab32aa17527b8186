/* Broken GGUF files, each with the sentence that it must give. */
#include "format/bytes.h"

#include "base/mem.h"
#include "format/gguf.h"
#include "format/store.h"

#include <sys/resource.h>
#include <time.h>

#define HEAD(tensors, keys)     "'GGUF' 4:3 8:" #tensors " 8:" #keys " "
#define ONE(dims, type, offset) HEAD(1, 0) "s:w " dims " 4:" type " 8:" offset " pad:32 "
#define KEY(value)              HEAD(0, 1) "s:k " value

struct bad {
    const char *bytes, *sentence;
};

static const struct bad headers[] = {
    {"", "not a GGUF file: 0 bytes are too few"},
    {"'GGU'", "not a GGUF file: 3 bytes are too few"},
    {"'GGUX' 4:3 8:0 8:0", "not a GGUF file: it begins with 47 47 55 58, not with 'GGUF'"},
    {"z:64", "not a GGUF file: it begins with 00 00 00 00, not with 'GGUF'"},
    {"'lmgg' z:60", "not a GGUF file: this is an old GGML file, from before GGUF"},
    {"'tjgg' z:60", "not a GGUF file: this is an old GGML file (GGJT), from before GGUF"},
    {"'fmgg' z:60", "not a GGUF file: this is an old GGML file (GGMF), from before GGUF"},
    {"'algg' z:60", "not a GGUF file: this is an old GGLA adapter, from before GGUF"},
    {"'FUGG' z:60", "not a GGUF file: this is a GGUF file with its bytes swapped"},
    {"'PK' 1:3 1:4 z:60", "not a GGUF file: this is a zip archive (perhaps a PyTorch pickle)"},
    {"'GGUF' 4:0 8:0 8:0", "GGUF version 0 is not supported: versions 2 and 3 are"},
    {"'GGUF' 4:1 4:0 4:0", "GGUF version 1 is not supported: convert the file to version 3"},
    {"'GGUF' 4:4 8:0 8:0", "GGUF version 4 is not supported: versions 2 and 3 are"},
    {"'GGUF' 4:-1 8:0 8:0", "GGUF version 4294967295 is not supported: versions 2 and 3 are"},
    {"'GGUF' 4:50331648 8:0 8:0",
     "this GGUF file is big-endian (version 3): only little-endian files can be opened; convert it"},
    {"'GGUF' 4:33554432 8:0 8:0",
     "this GGUF file is big-endian (version 2): only little-endian files can be opened; convert it"},
    {"'GGUF' 4:3 8:0", "the file ends inside the header (16 bytes)"},
    {HEAD(0, 1), "the header announces 1 keys and 0 tensors, which take at least 14 bytes, and 0 are left"},
    {HEAD(1, 0) "z:32",
     "the header announces 0 keys and 1 tensors, which take at least 33 bytes, and 32 are left"},
    {HEAD(0, 65537) "z:99", "the header announces 65537 keys; at most 65536 are allowed"},
    {HEAD(65537, 0) "z:99", "the header announces 65537 tensors; at most 65536 are allowed"},
    {HEAD(0, 65536) "z:99",
     "the header announces 65536 keys and 0 tensors, which take at least 917504 bytes, and 99 are left"},
    {HEAD(65536, 0) "z:99",
     "the header announces 0 keys and 65536 tensors, which take at least 2162688 bytes, and 99 are left"},
    {"'GGUF' 4:3 8:0 8:2^64-1 z:99",
     "the header announces 18446744073709551615 keys; at most 65536 are allowed"},
    {"'GGUF' 4:3 8:2^64-1 8:0 z:99",
     "the header announces 18446744073709551615 tensors; at most 65536 are allowed"},
    {"'GGUF' 4:3 8:0 8:2^63 z:99",
     "the header announces 9223372036854775808 keys; at most 65536 are allowed"},
    /* 2^60 keys of 16 bytes would wrap to 0 */
    {"'GGUF' 4:3 8:0 8:2^60 z:99",
     "the header announces 1152921504606846976 keys; at most 65536 are allowed"},
};

static const struct bad keys[] = {
    {HEAD(0, 1) "8:0 4:0 1:0 z:9", "the name of key 0 is 0 bytes long; 1 to 65535 are allowed"},
    {HEAD(0, 1) "8:-1 z:20", "the name of key 0 is 18446744073709551615 bytes long where 20 are left"},
    {HEAD(0, 1) "8:21 z:20", "the name of key 0 is 21 bytes long where 20 are left"},
    {HEAD(0, 1) "8:65536 z:65600", "the name of key 0 is 65536 bytes long; 1 to 65535 are allowed"},
    {HEAD(0, 1) "8:3 'a' z:1 'b' 4:0 1:0", "the name of key 0 holds a zero byte: 'a\\x00b'"},
    {HEAD(0, 1) "8:3 'abc' 2:0 1:0", "the file ends inside key 'abc' (38 bytes)"},
    {KEY("4:13 z:8"), "key 'k' has type 13; types are 0 to 12"},
    {KEY("4:-1 z:8"), "key 'k' has type 4294967295; types are 0 to 12"},
    {KEY("4:2 1:0"), "the file ends inside key 'k' (38 bytes)"},
    {KEY("4:5 2:0"), "the file ends inside key 'k' (39 bytes)"},
    {KEY("4:10 4:0"), "the file ends inside key 'k' (41 bytes)"},
    {KEY("4:11 7:0"), "the file ends inside key 'k' (44 bytes)"},
    {KEY("4:12 7:0"), "the file ends inside key 'k' (44 bytes)"},
    {KEY("4:6 3:0"), "the file ends inside key 'k' (40 bytes)"},
    {KEY("4:7 1:2"), "key 'k' holds a boolean of 2; only 0 and 1 are"},
    {KEY("4:7 1:255"), "key 'k' holds a boolean of 255; only 0 and 1 are"},
    {KEY("4:8 8:1"), "key 'k' holds a string of 1 bytes where 0 are left"},
    {KEY("4:8 8:-1 z:40"), "key 'k' holds a string of 18446744073709551615 bytes where 40 are left"},
    {KEY("4:8 8:2^63-1 z:40"), "key 'k' holds a string of 9223372036854775807 bytes where 40 are left"},
    {KEY("4:8 4:1"), "the file ends inside key 'k' (41 bytes)"},
    {KEY("4:9 4:0"), "the file ends inside key 'k' (41 bytes)"},
    {KEY("4:9 4:13 8:0"), "key 'k' is an array of type 13; types are 0 to 12"},
    {KEY("4:9 4:-1 8:0"), "key 'k' is an array of type 4294967295; types are 0 to 12"},
    {KEY("4:9 4:0 8:5 z:4"), "key 'k' is an array of 5 items (u8) where 4 bytes are left"},
    {KEY("4:9 4:4 8:-1 z:4"),
     "key 'k' is an array of 18446744073709551615 items (u32) where 4 bytes are left"},
    {KEY("4:9 4:4 8:2^62 z:4"),
     "key 'k' is an array of 4611686018427387904 items (u32) where 4 bytes are left"},
    {KEY("4:9 4:10 8:2^61 z:4"),
     "key 'k' is an array of 2305843009213693952 items (u64) where 4 bytes are left"},
    {KEY("4:9 4:12 8:2^61+1 z:8"),
     "key 'k' is an array of 2305843009213693953 items (f64) where 8 bytes are left"},
    {KEY("4:9 4:8 8:2^61 z:4"),
     "key 'k' is an array of 2305843009213693952 items (string) where 4 bytes are left"},
    {KEY("4:9 4:8 8:2 s:a"), "key 'k' is an array of 2 items (string) where 9 bytes are left"},
    {KEY("4:9 4:8 8:2 s:a 8:4 'abc'"), "key 'k' holds a string of 4 bytes where 3 are left"},
    {KEY("4:9 4:8 8:2 8:2^64-8 z:30"),
     "key 'k' holds a string of 18446744073709551608 bytes where 30 are left"},
    {KEY("4:9 4:7 8:3 1:0 1:1 1:2"), "key 'k' holds a boolean of 2; only 0 and 1 are"},
    {KEY("4:9 4:9 8:1 4:4"), "key 'k' is an array of 1 items (array) where 4 bytes are left"},
    {KEY("4:9 4:9 8:1 4:4 8:2 4:7"), "key 'k' is an array of 2 items (u32) where 4 bytes are left"},
    {KEY("4:9 4:9 8:1 4:9 8:1 4:9 8:1 4:9 8:1 4:9 8:0"), "key 'k' nests arrays more than 4 deep"},
    {HEAD(0, 2) "s:k 4:0 1:1 s:k 4:0 1:2", "key 'k' is there twice"},
    {HEAD(0, 3) "s:a 4:0 1:1 s:b 4:0 1:2 s:a 4:8 s:x", "key 'a' is there twice"},
    {HEAD(0, 2) "s:k 4:0 1:1 s:aa 4:0", "the file ends inside key 'aa' (52 bytes)"},
    {HEAD(0, 2) "s:kkkkkkkkkkkkkkk 4:0 1:1 4:0", "the file ends before key 1 (56 bytes)"},
};

#define ALIGN(value) HEAD(0, 1) "s:general.alignment " value
static const struct bad alignments[] = {
    {ALIGN("4:4 4:0"), "general.alignment is 0; a power of two up to 1048576 was expected"},
    {ALIGN("4:4 4:3"), "general.alignment is 3; a power of two up to 1048576 was expected"},
    {ALIGN("4:4 4:48"), "general.alignment is 48; a power of two up to 1048576 was expected"},
    {ALIGN("4:4 4:2097152"), "general.alignment is 2097152; a power of two up to 1048576 was expected"},
    {ALIGN("4:4 4:2^31"), "general.alignment is 2147483648; a power of two up to 1048576 was expected"},
    {ALIGN("4:4 4:-1"), "general.alignment is 4294967295; a power of two up to 1048576 was expected"},
    {ALIGN("4:5 4:-1"), "general.alignment is -1; a power of two up to 1048576 was expected"},
    {ALIGN("4:5 4:-32"), "general.alignment is -32; a power of two up to 1048576 was expected"},
    {ALIGN("4:11 8:2^63"),
     "general.alignment is -9223372036854775808; a power of two up to 1048576 was expected"},
    {ALIGN("4:10 8:2^63"),
     "general.alignment is 9223372036854775807; a power of two up to 1048576 was expected"},
    {ALIGN("4:10 8:2^64-1"),
     "general.alignment is 9223372036854775807; a power of two up to 1048576 was expected"},
    {ALIGN("4:10 8:2^64-32"),
     "general.alignment is 9223372036854775807; a power of two up to 1048576 was expected"},
    {ALIGN("4:1 1:-1"), "general.alignment is -1; a power of two up to 1048576 was expected"},
    {ALIGN("4:8 s:32"), "general.alignment is of type string; an integer was expected"},
    {ALIGN("4:6 4:1107296256"), "general.alignment is of type f32; an integer was expected"},
    {ALIGN("4:7 1:1"), "general.alignment is of type bool; an integer was expected"},
    {ALIGN("4:9 4:4 8:1 4:32"), "general.alignment is of type array; an integer was expected"},
};

static const struct bad tensors[] = {
    {ONE("4:0", "0", "0") "z:64", "tensor 'w' has 0 dimensions; 1 to 4 are allowed"},
    {ONE("4:5 8:1 8:1 8:1 8:1 8:1", "0", "0") "z:64", "tensor 'w' has 5 dimensions; 1 to 4 are allowed"},
    {ONE("4:-1 8:1", "0", "0") "z:64", "tensor 'w' has 4294967295 dimensions; 1 to 4 are allowed"},
    {ONE("4:1 8:0", "0", "0") "z:64", "tensor 'w': dimension 0 is 0; the least is 1"},
    {ONE("4:2 8:4 8:0", "0", "0") "z:64", "tensor 'w': dimension 1 is 0; the least is 1"},
    {ONE("4:4 8:4 8:1 8:1 8:0", "0", "0") "z:64", "tensor 'w': dimension 3 is 0; the least is 1"},
    {ONE("4:2 8:2^32 8:2^32", "0", "0") "z:64", "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:2 8:2^63 8:2", "0", "0") "z:64", "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:4 8:2^16 8:2^16 8:2^16 8:2^16", "0", "0") "z:64",
     "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:4 8:2^16 8:2^16 8:2^16 8:2^15", "0", "0") "z:64",
     "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:1 8:2^64-1", "0", "0") "z:64", "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:1 8:2^63", "0", "0") "z:64", "tensor 'w': the product of its dimensions is too large"},
    {ONE("4:1 8:2^63-1", "0", "0") "z:64", "tensor 'w': its size in bytes is too large"},
    {ONE("4:1 8:2^62", "0", "0") "z:64", "tensor 'w': its size in bytes is too large"},
    {ONE("4:2 8:2^31 8:2^31", "28", "0") "z:64", "tensor 'w': its size in bytes is too large"},
    {ONE("4:2 8:4 8:2^61-1", "28", "0") "z:64", "tensor 'w': its size in bytes is too large"},
    {ONE("4:1 8:2^62-1", "0", "0") "z:64", "tensor 'w' (18446744073709551612 bytes at offset 0) goes past "
                                           "the end of the file, which has 64 bytes of data: is "
                                           "it cut short?"},
    {ONE("4:1 8:2^62-1", "0", "32") "z:64", "tensor 'w' (18446744073709551612 bytes at offset 32) goes past "
                                            "the end of the file, which has 64 bytes of data: "
                                            "is it cut short?"},
    {ONE("4:2 8:1024 8:1024", "0", "0") "z:64", "tensor 'w' (4194304 bytes at offset 0) goes past the end of "
                                                "the file, which has 64 bytes of data: is it cut "
                                                "short?"},
    {ONE("4:1 8:16", "0", "32") "z:64", "tensor 'w' (64 bytes at offset 32) goes past the end of the file, "
                                        "which has 64 bytes of data: is it cut short?"},
    {ONE("4:1 8:17", "0", "0") "z:64", "tensor 'w' (68 bytes at offset 0) goes past the end of the file, "
                                       "which has 64 bytes of data: is it cut short?"},
    {ONE("4:1 8:16", "0", "2^64-32") "z:64", "tensor 'w' (64 bytes at offset 18446744073709551584) goes past "
                                             "the end of the file, which has 64 bytes of data: is "
                                             "it cut short?"},
    {ONE("4:1 8:16", "0", "2^63") "z:64", "tensor 'w' (64 bytes at offset 9223372036854775808) goes past the "
                                          "end of the file, which has 64 bytes of data: is "
                                          "it cut short?"},
    {ONE("4:1 8:4", "0", "1") "z:64", "tensor 'w' lies at offset 1, which is no multiple of 32"},
    {ONE("4:1 8:4", "0", "16") "z:64", "tensor 'w' lies at offset 16, which is no multiple of 32"},
    {ONE("4:1 8:4", "0", "2^64-1") "z:64",
     "tensor 'w' lies at offset 18446744073709551615, which is no multiple of 32"},
    {ONE("4:1 8:4", "4", "0") "z:64", "tensor 'w' has type 4, which is none that quern knows"},
    {ONE("4:1 8:4", "5", "0") "z:64", "tensor 'w' has type 5, which is none that quern knows"},
    {ONE("4:1 8:4", "31", "0") "z:64", "tensor 'w' has type 31, which is none that quern knows"},
    {ONE("4:1 8:4", "99", "0") "z:64", "tensor 'w' has type 99, which is none that quern knows"},
    /* numbers that quern uses inside for types of safetensors are none of GGUF's */
    {ONE("4:1 8:4", "100", "0") "z:64", "tensor 'w' has type 100, which is none that quern knows"},
    {ONE("4:1 8:4", "102", "0") "z:64", "tensor 'w' has type 102, which is none that quern knows"},
    {ONE("4:1 8:4", "106", "0") "z:64", "tensor 'w' has type 106, which is none that quern knows"},
    {ONE("4:1 8:4", "128", "0") "z:64", "tensor 'w' has type 128, which is none that quern knows"},
    {ONE("4:1 8:4", "-1", "0") "z:64", "tensor 'w' has type 4294967295, which is none that quern knows"},
    {ONE("4:1 8:31", "8", "0") "z:64", "tensor 'w': rows of 31 values do not divide into Q8_0 blocks of 32"},
    {ONE("4:2 8:1 8:32", "8", "0") "z:64",
     "tensor 'w': rows of 1 values do not divide into Q8_0 blocks of 32"},
    {ONE("4:1 8:128", "12", "0") "z:200",
     "tensor 'w': rows of 128 values do not divide into Q4_K blocks of 256"},
    {ONE("4:1 8:255", "14", "0") "z:250",
     "tensor 'w': rows of 255 values do not divide into Q6_K blocks of 256"},
    {HEAD(1, 0) "s:w 4:1 8:4 4:0 8:0", "the file ends before the tensors' data (57 bytes)"},
    {HEAD(1, 0) "s:w 4:4 8:4 8:4",
     "the header announces 0 keys and 1 tensors, which take at least 33 bytes, and 29 are left"},
    {HEAD(1, 0) "s:w 4:4 8:4 8:4 8:4", "the file ends inside tensor 'w' (61 bytes)"},
    {HEAD(1, 0) "s:wwwwww 4:1 8:4 4:0 4:0", "the file ends inside tensor 'wwwwww' (58 bytes)"},
    {HEAD(1, 0) "8:0 z:60", "the name of tensor 0 is 0 bytes long; 1 to 65535 are allowed"},
    {HEAD(1, 0) "8:2^63-1 z:60", "the name of tensor 0 is 9223372036854775807 bytes long where 60 are left"},
    {HEAD(1, 0) "8:2 'w' z:1 4:1 8:4 4:0 8:0 pad:32 z:32",
     "the name of tensor 0 holds a zero byte: 'w\\x00'"},
};

#define TWO(a, b) HEAD(2, 0) "s:a " a " s:b " b " pad:32 "
static const struct bad pairs[] = {
    {TWO("4:1 8:8 4:0 8:0", "4:1 8:8 4:0 8:0") "z:96", "tensors 'a' and 'b' overlap"},
    {TWO("4:1 8:9 4:0 8:0", "4:1 8:8 4:0 8:32") "z:96", "tensors 'a' and 'b' overlap"},
    {TWO("4:1 8:8 4:0 8:32", "4:1 8:9 4:0 8:0") "z:96", "tensors 'b' and 'a' overlap"},
    {TWO("4:1 8:24 4:0 8:0", "4:1 8:8 4:0 8:64") "z:96", "tensors 'a' and 'b' overlap"},
    {HEAD(2, 0) "s:a 4:1 8:8 4:0 8:0 s:a 4:1 8:8 4:0 8:32 pad:32 z:64", "tensor 'a' is there twice"},
    {HEAD(2, 1) "s:general.alignment 4:4 4:64 s:a 4:1 8:8 4:0 8:0 s:b 4:1 8:8 4:0 8:32 pad:64 z:128",
     "tensor 'b' lies at offset 32, which is no multiple of 64"},
    {HEAD(1, 1) "s:general.alignment 4:4 4:1048576 s:a 4:1 8:8 4:0 8:0 pad:32 z:64",
     "the file ends before the tensors' data (160 bytes)"},
};

/* A copy of exactly its size, so that ASan sees a byte too far. */
static int parse(struct gguf **g, const struct buf *b, size_t n, struct err *e)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, b->data, n);
    *g = NULL;
    int result = gguf_parse(g, copy, n, e);
    if (result == 0) {
        gguf_close(*g);
        *g = NULL;
    }
    free(copy);
    return result;
}

static void check(const struct bad *cases, size_t count)
{
    int wrong = 0;
    for (size_t i = 0; i < count; i++) {
        struct buf b = {0};
        struct gguf *g;
        struct err e = {0};
        bytes_add(&b, cases[i].bytes);
        parse(&g, &b, b.len, &e);
        wrong += !bytes_said(cases[i].bytes, &e, cases[i].sentence);
        assert_true(!e.code || e.code == ERR_DATA);
        buf_free(&b);
    }
    print_message("%zu cases\n", count);
    assert_int_equal(wrong, 0);
}

#define CHECK(table)                                                                                         \
    static void test_##table(void **state)                                                                   \
    {                                                                                                        \
        (void)state;                                                                                         \
        check(table, sizeof table / sizeof *table);                                                          \
    }
CHECK(headers)
CHECK(keys)
CHECK(alignments)
CHECK(tensors)
CHECK(pairs)

/* A small file with a key of each kind and three tensors, which opens. */
#define WHOLE                                                                                                \
    "'GGUF' 4:3 8:3 8:6 s:general.architecture 4:8 s:llama s:general.alignment 4:4 4:32 s:list 4:9 4:8 8:2 " \
    "s:one s: "                                                                                              \
    "s:ids 4:9 4:5 8:3 4:1 4:2 4:3 s:yes 4:7 1:1 s:nest 4:9 4:9 8:1 4:6 8:1 4:0 "                            \
    "s:w 4:2 8:32 8:2 4:8 8:0 s:b 4:1 8:4 4:0 8:96 s:v 4:4 8:1 8:2 8:1 8:2 4:1 8:128 pad:32 z:136"

static void test_cut(void **state)
{
    (void)state;
    struct buf b = {0};
    bytes_add(&b, WHOLE);
    struct gguf *g;
    struct err whole = {0};
    assert_int_equal(parse(&g, &b, b.len, &whole), 0);
    static const char *const phrases[] = {"the file ends ", " are left", " bytes are too few",
                                          "goes past the end"};
    for (size_t n = 0; n < b.len; n++) {
        struct err e = {0};
        assert_int_equal(parse(&g, &b, n, &e), -1);
        assert_int_equal(e.code, ERR_DATA);
        bool said = false;
        for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
            said |= strstr(e.text, phrases[i]) != NULL;
        if (!said)
            fail_msg("cut at %zu: \"%s\"", n, e.text);
    }
    print_message("%zu cuts\n", b.len);
    buf_free(&b);
}

static void test_any_byte(void **state)
{
    (void)state;
    struct buf b = {0};
    bytes_add(&b, WHOLE);
    size_t opened = 0;
    for (size_t i = 0; i < b.len; i++) {
        char was = b.data[i];
        for (int v = 0; v < 256; v++) {
            struct gguf *g;
            struct err e = {0};
            b.data[i] = (char)v;
            opened += parse(&g, &b, b.len, &e) == 0;
            assert_true(!e.code || e.text[0]);
        }
        b.data[i] = was;
    }
    assert_true(opened > b.len); /* each byte opens at least as it was */
    buf_free(&b);
}

/* Every number of a header, at the values where arithmetic goes wrong. */
static void test_fields(void **state)
{
    (void)state;
    static const char *const values[] = {"0", "1", "-1", "2^31", "2^32-1", "2^63-1", "2^64-1"};
    /* NULL = opens: there the value is a legal one */
    static const struct {
        const char *name, *before, *after;
        int width;
        const char *said[7];
    } fields[] = {
        {"version",
         "'GGUF'",
         "8:0 8:0",
         4,
         {"version 0 is", "version 1 is", "version 4294967295", "version 2147483648", "version 4294967295",
          "version 4294967295", "version 4294967295"}},
        {"tensors",
         "'GGUF' 4:3",
         "8:0 z:99",
         8,
         {NULL, "the name of tensor 0 is 0", "tensors; at most", "tensors; at most", "tensors; at most",
          "tensors; at most", "tensors; at most"}},
        {"keys",
         "'GGUF' 4:3 8:0",
         "z:99",
         8,
         {NULL, "the name of key 0 is 0", "keys; at most", "keys; at most", "keys; at most", "keys; at most",
          "keys; at most"}},
        {"key length",
         HEAD(0, 1),
         "'k' 4:0 z:60",
         8,
         {"is 0 bytes long", NULL, "where 65 are left", "where 65 are left", "where 65 are left",
          "where 65 are left", "where 65 are left"}},
        {"key type",
         HEAD(0, 1) "s:k",
         "z:60",
         4,
         {NULL, NULL, "has type 4294967295", "has type 2147483648", "has type 4294967295",
          "has type 4294967295", "has type 4294967295"}},
        {"string length",
         KEY("4:8"),
         "z:60",
         8,
         {NULL, NULL, "where 60 are left", "where 60 are left", "where 60 are left", "where 60 are left",
          "where 60 are left"}},
        {"item type",
         KEY("4:9"),
         "8:2 z:60",
         4,
         {NULL, NULL, "array of type 4294967295", "array of type 2147483648", "array of type 4294967295",
          "array of type 4294967295", "array of type 4294967295"}},
        {"item count",
         KEY("4:9 4:5"),
         "z:60",
         8,
         {NULL, NULL, "where 60 bytes are left", "where 60 bytes are left", "where 60 bytes are left",
          "where 60 bytes are left", "where 60 bytes are left"}},
        {"alignment",
         ALIGN("4:4"),
         "",
         4,
         {"alignment is 0", NULL, "alignment is 4294967295", "alignment is 2147483648",
          "alignment is 4294967295", "alignment is 4294967295", "alignment is 4294967295"}},
        {"tensor name length",
         HEAD(1, 0),
         "'w' 4:1 8:4 4:0 8:0 pad:32 z:32",
         8,
         {"is 0 bytes long", NULL, "where 64 are left", "where 64 are left", "where 64 are left",
          "where 64 are left", "where 64 are left"}},
        {"dimensions",
         HEAD(1, 0) "s:w",
         "8:4 4:0 8:0 pad:32 z:32",
         4,
         {"has 0 dim", NULL, "has 4294967295 dim", "has 2147483648 dim", "has 4294967295 dim",
          "has 4294967295 dim", "has 4294967295 dim"}},
        {"dimension",
         HEAD(1, 0) "s:w 4:1",
         "4:0 8:0 pad:32 z:32",
         8,
         {"dimension 0 is 0", NULL, "product of its dim", "past the end", "past the end", "size in bytes",
          "product of its dim"}},
        {"tensor type",
         HEAD(1, 0) "s:w 4:1 8:4",
         "8:0 pad:32 z:32",
         4,
         {NULL, NULL, "has type 4294967295", "has type 2147483648", "has type 4294967295",
          "has type 4294967295", "has type 4294967295"}},
        {"offset",
         HEAD(1, 0) "s:w 4:1 8:4 4:0",
         "pad:32 z:32",
         8,
         {NULL, "no multiple of 32", "no multiple of 32", "past the end", "no multiple of 32",
          "no multiple of 32", "no multiple of 32"}},
    };
    int wrong = 0, cases = 0;
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (int v = 0; v < 7; v++, cases++) {
            char value[32];
            struct buf b = {0};
            struct gguf *g;
            struct err e = {0};
            snprintf(value, sizeof value, "%d:%s", fields[f].width, values[v]);
            bytes_add(&b, fields[f].before);
            bytes_add(&b, value);
            bytes_add(&b, fields[f].after);
            parse(&g, &b, b.len, &e);
            const char *want = fields[f].said[v];
            if (want ? !e.code || !strstr(e.text, want) : e.code != 0) {
                print_error("%s = %s: said \"%s\", expected \"%s\"\n", fields[f].name, values[v], e.text,
                            want ? want : "(opens)");
                wrong++;
            }
            buf_free(&b);
        }
    print_message("%d cases\n", cases);
    assert_int_equal(wrong, 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 40,000 tensors, the last named as the first. */
static void test_duplicates(void **state)
{
    (void)state;
    struct buf b = {0};
    bytes_add(&b, HEAD(40000, 0));
    for (int i = 0; i < 40000; i++) {
        char words[96];
        snprintf(words, sizeof words, "s:blk.%d.weight 4:1 8:8 4:0 8:%d", i % 39999, 32 * i);
        bytes_add(&b, words);
    }
    bytes_add(&b, "pad:32 z:1280000");
    struct gguf *g;
    struct err e = {0};
    double start = now();
    assert_int_equal(gguf_parse(&g, (const uint8_t *)b.data, b.len, &e), -1);
    print_message("refused in %.1f ms\n", (now() - start) * 1e3);
    assert_string_equal(e.text, "tensor 'blk.0.weight' is there twice");
    buf_free(&b);
}

/* The n-th allocation fails, for all n: a clean error each time. */
static void test_memory(void **state)
{
    (void)state;
    struct buf b = {0};
    bytes_add(&b, WHOLE);
    int n = 1;
    for (;; n++) {
        struct gguf *g = NULL;
        struct err e = {0};
        mem_fail_at(n);
        int result = gguf_parse(&g, (const uint8_t *)b.data, b.len, &e);
        mem_fail_at(0);
        gguf_close(g);
        if (result == 0)
            break;
        assert_int_equal(e.code, ERR_RESOURCE);
        g = NULL;
    }
    assert_true(n > 5);
    buf_free(&b);
}

/* Nothing here may take what a hostile file announces. ASan's own memory would be counted too. */
static void test_peak(void **state)
{
    (void)state;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    print_message("peak %ld KiB\n", u.ru_maxrss);
#ifndef __SANITIZE_ADDRESS__
    assert_true(u.ru_maxrss < 64 * 1024);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),  cmocka_unit_test(test_keys),   cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_tensors),  cmocka_unit_test(test_pairs),  cmocka_unit_test(test_cut),
        cmocka_unit_test(test_any_byte), cmocka_unit_test(test_fields), cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_memory),   cmocka_unit_test(test_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
