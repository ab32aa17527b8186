/* The type of a whole file, by its key and by its tensors. */
#include "format/bytes.h"

#include "codec/dtype.h"
#include "format/file_type.h"
#include "format/gguf.h"

struct row {
    const char *name;
    uint32_t type;
    uint64_t cols;
    size_t bytes;
};

static const char *type_of(const struct row *rows, size_t n, struct gguf *g)
{
    struct tensor t[8] = {0};
    for (size_t i = 0; i < n; i++)
        t[i] = (struct tensor){.name = rows[i].name,
                               .type = rows[i].type,
                               .dims = 2,
                               .shape = {rows[i].cols, 2, 1, 1},
                               .bytes = rows[i].bytes};
    return store_file_type(&(struct store){.gguf = g, .count = n, .tensors = t});
}

#define TYPE_OF(...)                                                                                         \
    type_of((const struct row[]){__VA_ARGS__},                                                               \
            sizeof((const struct row[]){__VA_ARGS__}) / sizeof(struct row), NULL)

static void test_by_tensors(void **state)
{
    (void)state;
    /* rows of 896 have Q5_0 and Q8_0 in a K mix, and more bytes in them than in the K types */
    assert_string_equal(TYPE_OF({"token_embd.weight", DTYPE_Q8_0, 896, 9000},
                                {"blk.0.attn_q.weight", DTYPE_Q5_0, 896, 5000},
                                {"blk.0.ffn_down.weight", DTYPE_Q4_K, 4864, 900},
                                {"blk.1.ffn_down.weight", DTYPE_Q6_K, 4864, 800}),
                        "Q4_K_M");
    assert_string_equal(TYPE_OF({"token_embd.weight", DTYPE_Q6_K, 512, 9000},
                                {"blk.0.attn_q.weight", DTYPE_Q4_K, 512, 5000},
                                {"blk.0.attn_v.weight", DTYPE_Q5_K, 512, 900}),
                        "Q4_K_S");
    assert_string_equal(TYPE_OF({"blk.0.attn_q.weight", DTYPE_Q5_K, 512, 5000},
                                {"blk.0.attn_v.weight", DTYPE_Q6_K, 512, 900}),
                        "Q5_K_M");
    assert_string_equal(TYPE_OF({"blk.0.attn_q.weight", DTYPE_Q3_K, 512, 5000},
                                {"blk.0.attn_v.weight", DTYPE_Q5_K, 512, 900}),
                        "Q3_K_L");
    assert_string_equal(TYPE_OF({"blk.0.attn_q.weight", DTYPE_Q8_0, 512, 5000},
                                {"blk.0.attn_v.weight", DTYPE_Q4_K, 512, 900}),
                        "Q8_0");
    /* bytes, not tensors */
    assert_string_equal(
        TYPE_OF({"a", DTYPE_F32, 64, 10}, {"b", DTYPE_F32, 64, 10}, {"c", DTYPE_BF16, 64, 100}), "BF16");
    assert_string_equal(type_of(NULL, 0, NULL), "");
}

static void test_by_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *key, *type;
    } rows[] = {
        {"4:15", "Q4_K_M"}, {"4:1039", "Q4_K_M"}, {"4:7", "Q8_0"}, {"4:777", "F16"}, {"4:30", "IQ4_XS"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = {0};
        struct gguf *g = NULL;
        struct err e = {0};
        char words[128];
        snprintf(words, sizeof words, "'GGUF' 4:3 8:0 8:1 s:general.file_type 4:4 %s", rows[i].key);
        bytes_add(&b, words);
        assert_int_equal(gguf_parse(&g, (const uint8_t *)b.data, b.len, &e), 0);
        assert_string_equal(type_of(&(const struct row){"blk.0.a", DTYPE_F16, 64, 9}, 1, g), rows[i].type);
        gguf_close(g);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_tensors), cmocka_unit_test(test_by_the_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
