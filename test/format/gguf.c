/* GGUF files that open: every type of key through every getter, arrays in arrays, holes, alignments. */
#include "format/bytes.h"

#include "codec/dtype.h"
#include "format/gguf.h"
#include "format/store.h"

static struct gguf *open_words(struct buf *b, const char *words)
{
    struct gguf *g = NULL;
    struct err e = {0};
    bytes_add(b, words);
    if (gguf_parse(&g, (const uint8_t *)b->data, b->len, &e) < 0)
        fail_msg("%s", e.text);
    return g;
}

#define SCALARS                                                                                              \
    "'GGUF' 4:2 8:0 8:13 s:u8 4:0 1:200 s:i8 4:1 1:-3 s:u16 4:2 2:60000 s:i16 4:3 2:-5 s:u32 4:4 4:2^32-1 "  \
    "s:i32 4:5 4:-7 s:f32 4:6 4:1069547520 s:bool 4:7 1:1 s:str 4:8 s:hello s:u64 4:10 8:2^64-1 s:i64 4:11 " \
    "8:-1 "                                                                                                  \
    "s:f64 4:12 8:4612811918334230528 s:nan 4:6 4:2143289344"

static void test_scalars(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g = open_words(&b, SCALARS);
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_key_count(g), 13);
    static const struct {
        const char *name;
        int found;
        uint64_t value;
    } whole[] = {{"u8", 1, 200}, {"u16", 1, 60000}, {"u32", 1, UINT32_MAX}, {"u64", 1, UINT64_MAX},
                 {"i8", -1, 0},  {"i64", -1, 0},    {"f32", -1, 0},         {"bool", -1, 0},
                 {"str", -1, 0}, {"none", 0, 0}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        uint64_t v = 0;
        struct err e = {0};
        assert_int_equal(gguf_get_u64(g, whole[i].name, 0, UINT64_MAX, &v, &e), whole[i].found);
        assert_int_equal(v, whole[i].value);
    }
    double d;
    bool yes = false;
    struct gguf_str s;
    struct err e = {0};
    assert_int_equal(gguf_get_f64(g, "f32", &d, &e), 1);
    assert_true(d == 1.5);
    assert_int_equal(gguf_get_f64(g, "f64", &d, &e), 1);
    assert_true(d == 2.5);
    assert_int_equal(gguf_get_f64(g, "i32", &d, &e), 1);
    assert_true(d == -7);
    assert_int_equal(gguf_get_bool(g, "bool", &yes, &e), 1);
    assert_true(yes);
    assert_int_equal(gguf_get_str(g, "str", &s, &e), 1);
    assert_memory_equal(s.s, "hello", s.n);
    assert_int_equal(e.code, 0);
    gguf_close(g);
    buf_free(&b);
}

static void test_getter_sentences(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g = open_words(&b, SCALARS);
    struct err e[7] = {0};
    uint64_t u;
    double d;
    bool yes;
    struct gguf_str s;
    const struct gguf_key *k;
    gguf_get_u64(g, "u8", 1, 100, &u, &e[0]);
    gguf_get_u64(g, "i32", 1, 100, &u, &e[1]);
    gguf_get_u64(g, "str", 1, 100, &u, &e[2]);
    gguf_get_f64(g, "nan", &d, &e[3]);
    gguf_get_bool(g, "u8", &yes, &e[4]);
    gguf_get_str(g, "f64", &s, &e[5]);
    gguf_get_array(g, "u32", GGUF_STRING, 0, &k, &e[6]);
    assert_string_equal(e[0].text, "key 'u8' is 200; 1 to 100 was expected");
    assert_string_equal(e[1].text, "key 'i32' is -7; 1 to 100 was expected");
    assert_string_equal(e[2].text, "key 'str' is of type string; an integer was expected");
    assert_string_equal(e[3].text, "key 'nan' is nan; a finite number was expected");
    assert_string_equal(e[4].text, "key 'u8' is of type u8; a boolean was expected");
    assert_string_equal(e[5].text, "key 'f64' is of type f64; a string was expected");
    assert_string_equal(e[6].text, "key 'u32' is of type u32; an array of strings was expected");
    gguf_close(g);
    buf_free(&b);
}

static void test_arrays(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g =
        open_words(&b, "'GGUF' 4:3 8:0 8:4 s:words 4:9 4:8 8:3 s:a s: s:abc s:ids 4:9 4:5 8:2 4:-1 4:7 "
                       "s:scores 4:9 4:6 8:1 4:1069547520 "
                       "s:nest 4:9 4:9 8:2 4:4 8:2 4:1 4:2 4:8 8:1 s:x");
    struct err e = {0};
    const struct gguf_key *k;
    assert_int_equal(gguf_get_array(g, "words", GGUF_STRING, 3, &k, &e), 1);
    size_t at = 0, lengths[4], n = 0;
    struct gguf_str s;
    while (gguf_next_str(k, &at, &s))
        lengths[n++] = s.n;
    assert_int_equal(n, 3);
    assert_true(lengths[0] == 1 && lengths[1] == 0 && lengths[2] == 3);
    assert_int_equal(gguf_get_array(g, "ids", GGUF_I64, 0, &k, &e), 1);
    assert_int_equal(gguf_item_i64(k, 0), -1);
    assert_int_equal(gguf_item_i64(k, 1), 7);
    assert_int_equal(gguf_get_array(g, "scores", GGUF_F32, 1, &k, &e), 1);
    assert_true(gguf_item_f64(k, 0) == 1.5);
    struct gguf_key inner;
    k = gguf_find(g, "nest");
    at = 0;
    assert_true(gguf_next_array(k, &at, &inner) && inner.item == GGUF_U32 && gguf_item_i64(&inner, 1) == 2);
    assert_true(gguf_next_array(k, &at, &inner) && inner.item == GGUF_STRING && inner.count == 1);
    assert_false(gguf_next_array(k, &at, &inner));
    struct err length = {0}, class = {0};
    assert_int_equal(gguf_get_array(g, "words", GGUF_STRING, 4, &k, &length), -1);
    assert_int_equal(gguf_get_array(g, "words", GGUF_I64, 3, &k, &class), -1);
    assert_string_equal(length.text, "key 'words' has 3 items; 4 were expected");
    assert_string_equal(class.text, "key 'words' is an array of string; an array of integers was expected");
    gguf_close(g);
    buf_free(&b);
}

/* Alignment 64 in a byte, tensors out of order, a hole between them, no padding after the last. */
static void test_tensors(void **state)
{
    (void)state;
    struct buf b = {0};
    struct gguf *g =
        open_words(&b, "'GGUF' 4:3 8:3 8:1 s:general.alignment 4:0 1:64 s:late 4:1 8:4 4:0 8:256 "
                       "s:first 4:2 8:32 8:2 4:8 8:0 s:half 4:4 8:2 8:1 8:3 8:1 4:1 8:128 "
                       "pad:64 z:256 4:1069547520 z:12");
    assert_int_equal(gguf_tensor_count(g), 3);
    const struct tensor *late = gguf_find_tensor(g, "late"), *first = gguf_tensor_at(g, 1);
    assert_ptr_equal(first, gguf_find_tensor(g, "first"));
    assert_null(gguf_find_tensor(g, "none"));
    assert_int_equal(late->bytes, 16);
    assert_int_equal(first->bytes, 68);
    assert_int_equal(first->type, DTYPE_Q8_0);
    assert_int_equal(first->values, 64);
    assert_int_equal(gguf_find_tensor(g, "half")->values, 6);
    float v;
    memcpy(&v, late->data, sizeof v);
    assert_true(v == 1.5f);
    gguf_close(g);
    buf_free(&b);
}

/* Every power of two up to 1 MiB. */
static void test_alignments(void **state)
{
    (void)state;
    for (int bit = 0; bit <= 20; bit++) {
        char words[160];
        struct buf b = {0};
        snprintf(words, sizeof words,
                 "'GGUF' 4:3 8:1 8:1 s:general.alignment 4:11 8:2^%d s:w 4:1 8:2 4:0 8:0 pad:%d z:8", bit,
                 1 << bit);
        struct gguf *g = open_words(&b, words);
        assert_ptr_equal(gguf_tensor_at(g, 0)->data + 8, (uint8_t *)b.data + b.len);
        gguf_close(g);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),    cmocka_unit_test(test_getter_sentences),
        cmocka_unit_test(test_arrays),     cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_alignments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
