/* Lines broken at words: widths, ideographs, words that no line holds, fences, and any cut of the bytes. */
#include "test.h"

#include "tool/wrap.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

/* Feeds the text in pieces of `step` bytes. */
static void check_in_steps(const char *text, int width, size_t step, const char *want)
{
    struct wrap w = {.width = width};
    struct buf out = {0};
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i += step)
        wrap_feed(&w, text + i, n - i < step ? n - i : step, &out);
    wrap_end(&w, &out);
    buf_char(&out, 0);
    assert_string_equal(out.data, want);
    buf_free(&out);
    wrap_free(&w);
}

static void check(const char *text, int width, const char *want)
{
    for (size_t step = 1; step <= 7; step++)
        check_in_steps(text, width, step, want);
}

static void test_words(void **state)
{
    (void)state;
    check("the quick brown fox", 10, "the quick\nbrown fox");
    check("the quick brown fox", 0, "the quick brown fox");
    check("exactly ten", 11, "exactly ten");
    check("exactly ten", 10, "exactly\nten");
    check("a\nb  c\n\n  indented words", 12, "a\nb  c\n\n  indented\nwords");
    check("abcdefghijklmnop qr", 8, "abcdefgh\nijklmnop\nqr"); /* longer than a line */
    check("ab abcdefghijkl", 8, "ab\nabcdefgh\nijkl");
    check("trailing   ", 20, "trailing");
    check("a\tb", 20, "a       b");
}

static void test_scripts(void **state)
{
    (void)state;
    check("水車小屋の石臼", 8, "水車小屋\nの石臼");
    check("水車小屋。石臼", 8, "水車小\n屋。石臼"); /* closing punctuation begins no line */
    check("見よ mill 水車", 9, "見よ mill\n水車");
    check("방앗간에서 가루를 빻는다", 11, "방앗간에서\n가루를\n빻는다"); /* Hangul breaks at blanks */
    check("мельница мелет зерно", 14, "мельница мелет\nзерно");
    check("e\xcc\x81t\xc3\xa9 e\xcc\x81t\xc3\xa9", 7,
          "e\xcc\x81t\xc3\xa9 e\xcc\x81t\xc3\xa9"); /* combining marks */
    check("🌾🌾🌾🌾🌾", 8, "🌾🌾🌾🌾\n🌾");
}

static void test_code_and_bytes(void **state)
{
    (void)state;
    check("see:\n```c\nint main(void) { return 0; }\n\tx\n```\nand more words", 12,
          "see:\n```c\nint main(void) { return 0; }\n\tx\n```\nand more\nwords");
    check("a\033[2Jb", 20, "a\xef\xbf\xbd[2Jb"); /* nothing moves the cursor */
    check("a\xff\xe2(b", 20, "a\xef\xbf\xbd\xef\xbf\xbd(b");
    check("a\xe6\xb0", 20, "a\xef\xbf\xbd");
}

int main(void)
{
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_scripts),
                                       cmocka_unit_test(test_code_and_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
