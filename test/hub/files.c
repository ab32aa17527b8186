/* Which files are picked, the file that is being fetched, and the checksums. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "hub/listing.h"
#include "hub/partial_download.h"
#include "hub/path.h"
#include "hub/pick.h"
#include "hub/sha.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect_pick(const char *const *files, const char *quant, const char *expected)
{
    struct path_list all = {0};
    struct pick p;
    struct err e = {0};
    char got[1024] = "";
    for (int i = 0; files[i]; i++)
        path_list_add(&all, files[i], strlen(files[i]), &e);
    path_list_sort(&all);
    if (pick_files(&p, &all, quant, &e)) {
        snprintf(got, sizeof got, "%s", e.text);
    } else {
        for (size_t i = 0, at = 0; i < p.files.count; i++)
            at += (size_t)snprintf(got + at, sizeof got - at, "%s%s", i ? " " : "", p.files.names[i]);
        pick_free(&p);
    }
    assert_string_equal(got, expected);
    path_list_free(&all);
}

static void test_pick(void **state)
{
    (void)state;
    static const char *const many[] = {"m-IQ4_K_M.gguf", "m-Q4_K.gguf", "m-Q4_K_M.gguf",
                                       "m-Q4_K_S.gguf",  "m.f16.gguf",  "mmproj-F16.gguf",
                                       "m-imatrix.gguf", "README.md",   NULL};
    expect_pick(many, "", "m-Q4_K_M.gguf");
    expect_pick(many, "q4_k", "m-Q4_K.gguf");
    expect_pick(many, "F16", "m.f16.gguf");
    expect_pick(many, "m-Q4_K_S.gguf", "m-Q4_K_S.gguf");
    expect_pick(many, "mmproj-F16.gguf", "mmproj-F16.gguf");
    expect_pick(many, "Q4_K_L",
                "there is no GGUF of type 'Q4_K_L'; did you mean Q4_K_M? There are IQ4_K_M, Q4_K, "
                "Q4_K_M, Q4_K_S, f16");
    static const char *const first[] = {"b_Q8_0.gguf", "a-Q5_0.gguf", NULL};
    expect_pick(first, "", "a-Q5_0.gguf");
    expect_pick(first, "Q8_0", "b_Q8_0.gguf");
    static const char *const split[] = {"Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf",
                                        "Q2_K/m-Q2_K-00001-of-00003.gguf", "Q2_K/m-Q2_K-00003-of-00003.gguf",
                                        NULL};
    expect_pick(split, "Q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf Q8_0/m-Q8_0-00002-of-00002.gguf");
    expect_pick(split, "Q2_K",
                "Q2_K/m-Q2_K-00002-of-00003.gguf is not there, though "
                "Q2_K/m-Q2_K-00001-of-00003.gguf says that there are 3 parts");
    static const char *const one[] = {"model.safetensors",
                                      "consolidated.safetensors",
                                      "config.json",
                                      "tokenizer.json",
                                      "pytorch_model.bin",
                                      "pytorch_model.bin.index.json",
                                      "onnx/model.onnx",
                                      "onnx/config.json",
                                      "1_Pooling/config.json",
                                      "2_Dense/model.safetensors",
                                      "2_Dense/pytorch_model.bin",
                                      "onnx/config.json",
                                      NULL};
    expect_pick(
        one, "",
        "model.safetensors 1_Pooling/config.json 2_Dense/model.safetensors config.json tokenizer.json");
    expect_pick(one, "Q8_0",
                "there is no GGUF of type 'Q8_0', and no other GGUF; without a type, safetensors are taken "
                "where there are some");
    static const char *const shards[] = {"model-00001-of-00002.safetensors", "model.safetensors.index.json",
                                         "config.json", NULL};
    expect_pick(shards, "", "model.safetensors.index.json config.json");
    static const char *const none[] = {"pytorch_model.bin", "config.json", NULL};
    expect_pick(none, "", "");
}

static void test_quant_of_a_name(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"Llama-3-8B.Q4_K_M.gguf", "Q4_K_M"},
        {"x/m-IQ3_XXS-00001-of-00009.gguf", "IQ3_XXS"},
        {"qwen2.5-0.5b-instruct-fp16.gguf", "qwen2.5-0.5b-instruct-fp16"},
        {"m-UD-Q2_K_XL.gguf", "Q2_K_XL"},
        {"gpt-oss-mxfp4.gguf", "mxfp4"},
        {"m.bf16.gguf", "bf16"},
        {"plain.gguf", "plain"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char got[64];
        pick_quant(rows[i][0], got, sizeof got);
        assert_string_equal(got, rows[i][1]);
    }
}

static void test_inside(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "a/b.gguf", "..a", ".gitattributes", "a b"};
    static const char *const bad[] = {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\nb", "a\\b", "a/."};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(path_is_inside(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(path_is_inside(bad[i]));
}

static void test_listing(void **state)
{
    (void)state;
    struct listing l = {0};
    struct err e = {0};
    const char *text =
        "{\"sha\": \"abc\", \"siblings\": [{\"rfilename\": \"b\"}, {\"rfilename\": \"../x\"}, 1, "
        "{\"rfilename\": \"a/c\"}, {}]}";
    assert_int_equal(listing_read(&l, text, strlen(text), &e), 0);
    assert_int_equal(l.files.count, 2); /* what leads out of the folder is no file of ours */
    assert_string_equal(l.files.names[0], "a/c");
    listing_free(&l);
    static const char *const bad[] = {"", "[]", "{}", "{\"sha\": \"a/b\", \"siblings\": []}",
                                      "{\"sha\": \"a\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct listing none = {0};
        struct err refused = {0};
        assert_int_equal(listing_read(&none, bad[i], strlen(bad[i]), &refused), -1);
        assert_true(refused.code);
        listing_free(&none);
    }
}

static void sha_of(enum sha_kind kind, size_t n, size_t step, char hex[SHA_HEX])
{
    struct sha s;
    uint8_t data[256];
    sha_start(&s, kind);
    for (size_t at = 0; at < n;) {
        size_t take = n - at < step ? n - at : step;
        for (size_t i = 0; i < take; i++)
            data[i] = (uint8_t)((at + i) * 7);
        sha_add(&s, data, take);
        at += take;
    }
    sha_end(&s, hex);
}

/* FIPS 180's own words, then plain C against the CPU's instructions at every length and step. */
static void test_sha(void **state)
{
    (void)state;
    struct sha s;
    char hex[SHA_HEX], plain[300][SHA_HEX], fast[300][SHA_HEX];
    sha_start(&s, SHA_256);
    sha_add(&s, "abc", 3);
    sha_end(&s, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha_start(&s, SHA_1);
    sha_add(&s, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56);
    sha_end(&s, hex);
    assert_string_equal(hex, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    sha_start(&s, SHA_256);
    sha_end(&s, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size_t n = 0; n < 300; n++)
        sha_of(SHA_256, n, n % 67 + 1, fast[n]);
    sha_plain();
    for (size_t n = 0; n < 300; n++) {
        sha_of(SHA_256, n, 64, plain[n]);
        assert_string_equal(plain[n], fast[n]);
    }
}

static void test_part(void **state)
{
    (void)state;
    char path[] = "/tmp/quern-part-XXXXXX", to[64];
    struct partial_download p;
    struct err e = {0};
    enum { SIZE = 2 * PARTIAL_PIECE + 1000 };
    close(mkstemp(path));
    snprintf(to, sizeof to, "%s.done", path);
    assert_int_equal(partial_open(&p, path, SIZE, &e), 0);
    assert_int_equal(p.pieces, 3);
    assert_false(p.resumed);
    char *piece = mem_zalloc(PARTIAL_PIECE, 1);
    assert_int_equal(partial_write(&p, 5, "abcd", 4, &e), 0); /* after a gap: not counted */
    assert_int_equal(p.done, 0);
    assert_int_equal(partial_write(&p, 0, piece, PARTIAL_PIECE - 2, &e), 0);
    assert_int_equal(partial_write(&p, PARTIAL_PIECE - 2, "abcd", 4, &e), 0);
    assert_int_equal(p.counts[1], 2);
    mem_free(piece);
    partial_close(&p);
    assert_int_equal(partial_open(&p, path, SIZE, &e), 0);
    assert_true(p.resumed);
    assert_int_equal(p.counts[0], PARTIAL_PIECE);
    assert_int_equal(p.counts[1], 2);
    assert_int_equal(p.done, PARTIAL_PIECE + 2);
    partial_close(&p);
    assert_int_equal(partial_open(&p, path, SIZE + 1, &e),
                     0); /* another file's part is the beginning of nothing */
    assert_int_equal(p.done, 0);
    partial_close(&p);
    assert_int_equal(truncate(path, 1234), 0); /* what another tool leaves: the first bytes */
    assert_int_equal(partial_open(&p, path, SIZE, &e), 0);
    assert_int_equal(p.done, 1234);
    assert_int_equal(partial_finish(&p, to, &e), 0);
    partial_close(&p);
    assert_int_equal(path_bytes(to), SIZE);
    unlink(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick),   cmocka_unit_test(test_quant_of_a_name),
        cmocka_unit_test(test_inside), cmocka_unit_test(test_listing),
        cmocka_unit_test(test_sha),    cmocka_unit_test(test_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
