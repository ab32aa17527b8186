/* Tokenizers by themselves: spans and trust, the streaming decoder, the alphabet, and failures of memory. */
#include "test.h"

#include "base/mem.h"
#include "lang/token/tok.h"
#include "lang/token/unicode.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Byte-level BPE whose words are what lies between spaces; <think> is text, <|end|> steers. */
static const char json[] =
    "{\"added_tokens\": ["
    "{\"id\": 300, \"content\": \"<|end|>\", \"special\": true, \"normalized\": false},"
    "{\"id\": 301, \"content\": \"<think>\", \"special\": false, \"normalized\": false, \"rstrip\": true},"
    "{\"id\": 302, \"content\": \"cat\", \"special\": false, \"single_word\": true, \"normalized\": false}],"
    "\"normalizer\": {\"type\": \"NFC\"},"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \" ?[^ ]+\"}, \"behavior\": \"Isolated\"},"
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},"
    "\"decoder\": {\"type\": \"ByteLevel\"},"
    "\"model\": {\"type\": \"BPE\", \"vocab\": {%s}, \"merges\": [\"h e\", \"l l\", \"he ll\", [\"hell\", "
    "\"o\"]]}}";

static void make_json(struct buf *out)
{
    struct buf vocab = {0};
    for (int b = 0; b < 256; b++)
        buf_printf(&vocab, "\"\\u%04x\": %d, ", (unsigned)tok_byte_char((unsigned char)b), b);
    buf_str(&vocab, "\"he\": 256, \"ll\": 257, \"hell\": 258, \"hello\": 259");
    buf_printf(out, json, vocab.data);
    buf_free(&vocab);
}

static int open_json(struct tokenizer **t, const char *text, size_t n, struct err *e)
{
    char path[] = "/tmp/quern-test-XXXXXX.json";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    close(fd);
    int rc = tokenizer_open_file(t, path, e);
    unlink(path);
    return rc;
}

static struct tokenizer *open_small(void)
{
    struct buf text = {0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    make_json(&text);
    if (open_json(&t, text.data, text.len, &e))
        fail_msg("%s", e.text);
    buf_free(&text);
    return t;
}

static void expect_ids(const struct ids *ids, const int32_t *want, size_t n)
{
    assert_int_equal(ids->len, n);
    assert_memory_equal(ids->data, want, n * sizeof *want);
}

static void test_spans(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    struct err e = {0};
    struct ids ids = {0};
    /* the same bytes: trusted, from a user, and a control token that is half of one and half of the other */
    const struct tok_span spans[] = {{"<|end|>", 7, true}, {"<|end|>", 7, false},       {"<|en", 4, true},
                                     {"d|>", 3, false},    {"<think>  hel", 12, false}, {"lo", 2, true}};
    assert_int_equal(tokenizer_encode_spans(t, spans, 6, TOK_SPECIAL, &ids, &e), 0);
    const int32_t want[] = {300, '<', '|', 'e', 'n', 'd', '|', '>', '<',
                            '|', 'e', 'n', 'd', '|', '>', 301, 259};
    expect_ids(&ids, want, sizeof want / sizeof *want);
    ids.len = 0;
    assert_int_equal(tokenizer_encode_spans(t, spans, 1, 0, &ids, &e), 0);
    expect_ids(&ids, want + 1, 7); /* without the flag nothing is parsed */
    ids.len = 0;
    assert_int_equal(tokenizer_encode(t, "cat cats", 8, 0, &ids, &e), 0);
    const int32_t cats[] = {302, ' ', 'c', 'a', 't', 's'};
    expect_ids(&ids, cats, 6);
    ids_free(&ids);
    tokenizer_close(t);
}

static void test_stream(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    struct tok_decoder d = {.t = t, .skip_special = true};
    struct buf out = {0};
    struct err e = {0};
    static const unsigned char bytes[] = "\xe2\x82\xac\xf0\x9f\x98";
    const size_t after[] = {0, 0, 3, 3, 3, 3};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(tok_decoder_feed(&d, bytes[i], &out, &e), 0);
        assert_int_equal(out.len, after[i]);
    }
    assert_int_equal(tok_decoder_feed(&d, 300, &out, &e),
                     0); /* no text, so the character is not broken yet */
    assert_int_equal(out.len, 3);
    assert_int_equal(tok_decoder_feed(&d, 'x', &out, &e), 0);
    tok_decoder_flush(&d, &out);
    assert_int_equal(out.len, 7);
    assert_memory_equal(out.data, "\xe2\x82\xac\xf0\x9f\x98x", 7);
    assert_int_equal(tok_decoder_feed(&d, 303, &out, &e), -1);
    assert_non_null(strstr(e.text, "303"));
    buf_free(&out);
    tokenizer_close(t);
}

static void test_alphabet(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        assert_int_equal(tok_char_byte(tok_byte_char((unsigned char)b)), b);
    assert_int_equal(tok_byte_char(' '), 0x120);
    assert_int_equal(tok_byte_char('\n'), 0x10a);
    assert_int_equal(tok_char_byte(0x144), -1);
    assert_int_equal(tok_byte_name("<0xfF>", 6), 0xff);
    assert_int_equal(tok_byte_name("<0xg0>", 6), -1);
}

static void test_repair(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"a\xff"
                                            "b",
                                            "a\xef\xbf\xbd"
                                            "b"},
                                           {"\xe4\xb8", "\xef\xbf\xbd"},
                                           {"\xf0\x9f\x98x", "\xef\xbf\xbdx"},
                                           {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                                           {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                                           {"\xe2\x82\xac", "\xe2\x82\xac"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        unicode_repair(&out, cases[i][0], strlen(cases[i][0]));
        assert_string_equal(out.data, cases[i][1]);
        buf_free(&out);
    }
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        enum unicode_form form;
        const char *in, *out;
    } cases[] = {{UNICODE_NFC, "e\xcc\x81 x", "\xc3\xa9 x"},
                 {UNICODE_NFD, "\xc3\xa9", "e\xcc\x81"},
                 {UNICODE_NFKC, "\xef\xac\x81\xe2\x91\xa0", "fi1"},
                 {UNICODE_NFC, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},
                 {UNICODE_NFKD, "\xc2\xbd",
                  "1\xe2\x81\x84"
                  "2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        unicode_normalize(&out, cases[i].form, cases[i].in, strlen(cases[i].in));
        assert_string_equal(out.data, cases[i].out);
        buf_free(&out);
    }
}

/* The n-th allocation fails, for all n: an error or the right answer, and no leak. */
static void test_memory(void **state)
{
    (void)state;
    struct buf text = {0};
    make_json(&text);
    bool whole = false;
    for (long n = 1; n < 100000 && !whole; n++) {
        struct tokenizer *t = NULL;
        struct ids ids = {0};
        struct buf out = {0};
        struct err e = {0};
        mem_fail_at(n);
        int rc = open_json(&t, text.data, text.len, &e);
        if (!rc)
            rc = tokenizer_encode(t,
                                  "hello w\xff"
                                  "orld <think>",
                                  20, TOK_SPECIAL, &ids, &e);
        if (!rc)
            rc = tokenizer_decode(t, ids.data, ids.len, false, &out, &e);
        mem_fail_at(0);
        if (rc)
            assert_int_not_equal(e.code, ERR_NONE);
        else
            whole = out.len == 22 && !memcmp(out.data,
                                             "hello w\xef\xbf\xbd"
                                             "orld <think>",
                                             22);
        tokenizer_close(t);
        ids_free(&ids);
        buf_free(&out);
    }
    assert_true(whole);
    buf_free(&text);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const char *const files[] = {
        "",
        "[",
        "{}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999999}}}",
        "{\"model\": {\"type\": \"Sorcery\", \"vocab\": {\"a\": 1}}}",
        "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 1}}}",
        "{\"model\": {\"vocab\": {\"a\": 1}}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"(\"}}}",
        "{\"model\": {\"vocab\": {\"a\": 1}}, \"pre_tokenizer\": {\"type\": \"Spell\"}}",
        "{\"model\": {\"vocab\": {\"a\": 1}}, \"normalizer\": {\"type\": \"Precompiled\", "
        "\"precompiled_charsmap\": \"////\"}}"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        assert_int_equal(open_json(&t, files[i], strlen(files[i]), &e), -1);
        assert_int_equal(e.code, ERR_DATA);
    }
}

/* A list of at most as many ids as the text has takes them; one that may have fewer is over, and holds no more. */
static void expect_bound(const struct tokenizer *t, const char *text, size_t n)
{
    struct ids all = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text, n, TOK_ADD, &all, &e), 0);
    struct ids same = {.most = all.len};
    if (all.len && tokenizer_encode(t, text, n, TOK_ADD, &same, &e))
        fail_msg("%zu bytes, %zu tokens: %s", n, all.len, e.text);
    assert_int_equal(same.len, all.len);
    for (size_t most = 1; most < all.len; most = 2 * most + 1) {
        struct ids fewer = {.most = most};
        struct err over = {0};
        assert_int_equal(tokenizer_encode(t, text, n, TOK_ADD, &fewer, &over), -1);
        assert_true(fewer.over && fewer.len <= most && over.code == ERR_DATA);
        ids_free(&fewer);
    }
    ids_free(&all);
    ids_free(&same);
}

/* Texts that become as few tokens as can be: the bound by bytes never refuses one that fits. */
static void expect_bounds(const struct tokenizer *t)
{
    static const char *const parts[] = {"hello",
                                        "hello ",
                                        " ",
                                        "a",
                                        "\n",
                                        "<think>   ",
                                        "cafe\xcc\x81",
                                        "\xe2\x84\xaa",
                                        "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8",
                                        "xyzzy",
                                        "\xf0\x9d\x94\xb8"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t times = 1; times < 3000; times = 5 * times + 1) {
            struct buf text = {0};
            for (size_t k = 0; k < times; k++)
                buf_str(&text, parts[i]);
            expect_bound(t, text.data, text.len);
            buf_free(&text);
        }
}

static void test_bound(void **state)
{
    /* those that drop white space, fuse what is unknown, or shrink a text have no bound, and need none */
    static const char *const files[] = {
        "{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[UNK]\": 0, "
        "\"hello\": 1, "
        "\"a\": 2}}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"normalizer\": {\"type\": "
        "\"BertNormalizer\"}}",
        "{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"hello\": 1}}, "
        "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}}",
        "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": true, \"vocab\": {\"?\": 0, "
        "\"h\": 1, "
        "\"a\": 2}, \"merges\": []}}",
        "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"?\", 0], [\"hello\", -1], [\"a\", "
        "-2]]}}",
    };
    (void)state;
    struct tokenizer *t = open_small();
    assert_int_equal(t->reach, 7); /* <|end|> and <think> */
    expect_bounds(t);
    /* 59 bytes are more than six tokens of seven: that is known before they are read */
    struct ids few = {.most = 6};
    struct err e = {0};
    assert_int_equal(
        tokenizer_encode(t, "hellohellohellohellohellohellohello!!!!!!!!!!!!!!!!!!!!!!!!", 59, 0, &few, &e),
        -1);
    assert_true(few.over && !few.len);
    ids_free(&few);
    tokenizer_close(t);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct err why = {0};
        if (open_json(&t, files[i], strlen(files[i]), &why))
            fail_msg("%zu: %s", i, why.text);
        assert_int_equal(t->reach, 0);
        expect_bounds(t);
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spans),     cmocka_unit_test(test_stream),
                                       cmocka_unit_test(test_alphabet),  cmocka_unit_test(test_repair),
                                       cmocka_unit_test(test_forms),     cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_bad_files), cmocka_unit_test(test_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
