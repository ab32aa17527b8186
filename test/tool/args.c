/* The command line's options: every form, every kind, every mistake. */
#include "test.h"

#include "base/edit_distance.h"
#include "tool/args.h"

#include <stdio.h>
#include <string.h>

static const struct arg_option table[] = {
    {"json", 0, ARG_FLAG, NULL, "", 0, 0},
    {"all", 'a', ARG_FLAG, NULL, "", 0, 0},
    {"count", 'n', ARG_INT, "N", "", -1, 1000},
    {"temp", 't', ARG_NUM, "T", "", 0, 2},
    {"prompt", 'p', ARG_TEXT, "TEXT", "", 0, 0},
    {"memory", 'm', ARG_BYTES, "SIZE", "", 1024, 1e15},
    {0},
};

static int parse(struct args *a, struct err *e, const char *line)
{
    static char text[256];
    static char *argv[32];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *at = text; *at && argc < 32;) {
        argv[argc++] = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = 0;
    }
    *e = (struct err){0};
    return args_parse(a, table, argc, argv, e);
}

static void test_forms(void **state)
{
    (void)state;
    struct args a;
    struct err e;
    static const char *const lines[] = {"-n 5 model --temp 0.5 -p x --json",
                                        "model --count=5 --temp=0.5 --prompt=x --json",
                                        "-n5 -t0.5 -px --json model", "-n=5 --json -t=0.5 -p x -- model",
                                        "-n 7 -n 5 --temp 1 --temp 0.5 --json --json -p y -p x model"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(parse(&a, &e, lines[i]), 0);
        assert_int_equal(a.count, 1);
        assert_string_equal(a.words[0], "model");
        assert_int_equal(args_int(&a, "count", 0), 5);
        assert_true(args_num(&a, "temp", 0) == 0.5);
        assert_string_equal(args_text(&a, "prompt"), "x");
        assert_true(args_flag(&a, "json") && !args_flag(&a, "all"));
        args_free(&a);
    }
}

/* Spellings of other programs mean our options; MODEL comes to the front. */
static void test_synonyms(void **state)
{
    (void)state;
    struct args a;
    struct err e;
    static const char *const lines[] = {"--model model --temperature 0.5 word",
                                        "word --model=model --temperature=0.5", "--temp 0.5 model word",
                                        "--temperature 0.5 word --model model"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(parse(&a, &e, lines[i]), 0);
        assert_int_equal(a.count, 2);
        assert_string_equal(a.words[0], "model");
        assert_string_equal(a.words[1], "word");
        assert_true(args_num(&a, "temp", 0) == 0.5);
        args_free(&a);
    }
    assert_int_equal(parse(&a, &e, "-hf user/repo:q4"), 0);
    assert_string_equal(a.words[0], "hf:user/repo:q4");
    args_free(&a);
    assert_int_equal(parse(&a, &e, "-m 2048 word"), 0); /* the table's own */
    assert_true(a.count == 1 && args_int(&a, "memory", 0) == 2048);
    args_free(&a);
    /* twice, without a value, and where the table has no such option */
    static const char *const bad[] = {"--model a -hf b", "-hf", "-ngl 5", "--ctx-size 5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&a, &e, bad[i]), -1);
        assert_int_equal(e.code, ERR_USAGE);
        args_free(&a);
    }
}

static void test_odd_ones(void **state)
{
    (void)state;
    struct args a;
    struct err e;
    assert_int_equal(parse(&a, &e, "-n -1 -p -x - -- --json -a"), 0); /* a value may begin with a dash */
    assert_int_equal(args_int(&a, "count", 0), -1);
    assert_string_equal(args_text(&a, "prompt"), "-x");
    assert_int_equal(a.count, 3);
    assert_string_equal(a.words[0], "-");
    assert_string_equal(a.words[1], "--json");
    assert_false(args_flag(&a, "json"));
    args_free(&a);
    assert_int_equal(parse(&a, &e, "-ahn 3 -m 1.5K"), 0); /* letters in one word */
    assert_true(args_flag(&a, "all") && args_flag(&a, "help"));
    assert_int_equal(args_int(&a, "count", 0), 3);
    assert_int_equal(args_int(&a, "memory", 0), 1536);
    assert_true(args_num(&a, "temp", 0.25) == 0.25);
    assert_null(args_text(&a, "prompt"));
    args_free(&a);
    assert_int_equal(parse(&a, &e, "-p a -n 1 -p b"), 0);
    int at = 0;
    assert_string_equal(args_next(&a, "prompt", &at), "a");
    assert_string_equal(args_next(&a, "prompt", &at), "b");
    assert_null(args_next(&a, "prompt", &at));
    args_free(&a);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--jsn", "there is no option --jsn; did you mean --json?"},
        {"--cuont 3", "there is no option --cuont; did you mean --count?"},
        {"--promp=3", "there is no option --promp; did you mean --prompt?"},
        {"--hlp", "there is no option --hlp; did you mean --help?"},
        {"--zzz", "there is no option --zzz; --help lists them"},
        {"-z", "there is no option -z; --help lists them"},
        {"-az", "there is no option -az; --help lists them"},
        {"---", "there is no option ---; --help lists them"},
        {"--json=1", "--json takes no value"},
        {"--json=", "--json takes no value"},
        {"--count", "--count needs a value (N)"},
        {"-p", "--prompt needs a value (TEXT)"},
        {"-n x", "--count takes a whole number, not 'x'"},
        {"-n 1.5", "--count takes a whole number, not '1.5'"},
        {"-n 0x10", "--count takes a whole number, not '0x10'"},
        {"--count=", "--count takes a whole number, not ''"},
        {"-n 99999999999999999999", "--count takes a whole number, not '99999999999999999999'"},
        {"-n 1001", "--count takes a whole number from -1 to 1000, not 1001"},
        {"-n -2", "--count takes a whole number from -1 to 1000, not -2"},
        {"-t nan", "--temp takes a number, not 'nan'"},
        {"-t 2.5", "--temp takes a number from 0 to 2, not 2.5"},
        {"-m lots", "--memory takes a size such as 512M, not 'lots'"},
        {"-m 5", "--memory takes a size such as 512M from 1024 to 1e+15, not 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct args a;
        struct err e;
        assert_int_equal(parse(&a, &e, cases[i][0]), -1);
        assert_int_equal(e.code, ERR_USAGE);
        assert_string_equal(e.text, cases[i][1]);
        args_free(&a);
    }
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("info", "info"), 0);
    assert_int_equal(edit_distance("inof", "info"), 2);
    assert_int_equal(edit_distance("xy", "ps"), EDIT_DISTANCE_FAR); /* half of a word is no likeness */
    assert_int_equal(edit_distance("ab", "abc"), 1);
    assert_int_equal(edit_distance("tensor", "tensors"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),    cmocka_unit_test(test_synonyms), cmocka_unit_test(test_odd_ones),
        cmocka_unit_test(test_mistakes), cmocka_unit_test(test_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
