/* Grammars, patterns and choices: what they accept, what they refuse, and how a state moves. */
#include "test.h"

#include "base/mem.h"
#include "lang/words.h"

#include <pthread.h>
#include <stdio.h>

enum kind { GBNF, REGEX };

struct row {
    enum kind kind;
    const char *source;
    const char *yes[8], *no[8];
};

static const struct row rows[] = {
    {REGEX, "a*b", {"b", "aaaab", "aaaaaaaaaaaaab"}, {"", "a", "ba", "bb"}},
    {REGEX, "^ab$", {"ab"}, {"", "aab", "abb"}},
    {REGEX, "(a{2,3}){2}", {"aaaa", "aaaaa", "aaaaaa"}, {"aaa", "aaaaaaa"}},
    {REGEX,
     "a{3,40}b",
     {"aaab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"},
     {"aab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}},
    {REGEX,
     "(a?){30,40}b",
     {"b", "aaab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"},
     {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "aa"}},
    {REGEX,
     "(aaaa|aaaaaaaa){10,}",
     {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
     {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
    {REGEX, "[^a-z]é?", {"A", "é", "éé", "日", "日é", "😀"}, {"a", "éa", "\xc3", "\xff", "\xed\xa0\x80"}},
    {REGEX, ".|[\\s\\S]{2}", {"x", "日", "\n\n"}, {"\n", "", "xxx"}},
    {REGEX, "\\d{4}-\\d\\d|\\w+@\\w+", {"2024-12", "a_1@b"}, {"2024-1", "a@", "é@b"}},
    {REGEX, "[\\x41\\u00e9\\u{65e5}\\t\\]-]+", {"A-]\té日"}, {"B", ""}},
    {REGEX, "(?:a|(?<n>b))(c|)d??", {"a", "bc", "acd", "bd"}, {"ab", "cd"}},
    {REGEX, "a|^b$|c", {"a", "b", "c"}, {"", "ab"}},
    {REGEX, "x{,3}\\{2\\}", {"x{,3}{2}"}, {"{2}", "xxx{2}"}},
    {REGEX, "\\p{Lu}\\P{Lu}", {"Aa", "É1"}, {"AA", "aa"}},
    {GBNF, "root ::= \"(\" root \")\" | \"x\"", {"x", "((x))", "((((((((x))))))))"}, {"", "(x", "x)", "()"}},
    {GBNF,
     "root ::= e\ne ::= t ((\"+\" | \"-\") t)*\nt ::= [0-9]+ | \"(\" e \")\"",
     {"1+2", "(1+(2-3))-12"},
     {"1+", "(1", "+"}},
    {GBNF,
     "root ::= l (\"\\n\" l)* # comment\nl ::= \"- \" [^\\n\\x00-\\x1f]+",
     {"- a", "- é\n- b"},
     {"-", "- a\n"}},
    {GBNF, "root ::= \"(\" root \")\" | \"(\" root \"]\" | \"x\"", {"x", "((((x]))]"}, {"((x)", "(x}"}},
    {GBNF,
     "root ::= a a a\na ::= \"x\"? | b\nb ::= \"y\"{0,2}",
     {"", "x", "xyyx", "yyyyyy"},
     {"yyyyyyy", "xxxx"}},
    {GBNF,
     "root ::= [a-c]{2} . (\n \"\\u00e9\" |\n\"\\U0001F600\" # or this\n) | \"\\\"\\\\\\x41\\t\"\n",
     {"abxé", "cc日😀", "\"\\A\t"},
     {"adxé", "ab"}},
    {GBNF, "root ::= \"a\"\n  | \"b\"\n\n  \"c\"\nother-rule ::= root", {"a", "bc"}, {"b", "ac"}},
    {GBNF, "root ::= x |\nx ::= \"x\"", {"x", ""}, {"xx"}},
    {GBNF, "root ::= \"a\"* \"a\"* b\nb ::= \"\" | \"b\" b", {"", "aaaa", "aabbb"}, {"ba", "c"}},
    {GBNF, "root ::= (\"ab\" | \"a\" \"b\"? \"c\")+", {"ab", "abc", "acab", "ababcac"}, {"", "a", "abb"}},
};

static struct constraint *make(enum kind kind, const char *source, struct err *e)
{
    return kind == GBNF ? constraint_from_gbnf(source, strlen(source), e)
                        : constraint_from_regex(source, strlen(source), e);
}

static void test_rows(void **state)
{
    struct constraint_vocab *v = words_open();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = {0};
        struct constraint *c = make(rows[i].kind, rows[i].source, &e);
        if (!c)
            fail_msg("%s: %s", rows[i].source, e.text);
        words_check(v, c, rows[i].source, i % 2, rows[i].yes, rows[i].no);
    }
    constraint_vocab_close(v);
}

static void test_refused(void **state)
{
    static const struct {
        enum kind kind;
        const char *source, *why;
    } bad[] = {{GBNF, "root ::= root \"a\"", "left-recursive"},
               {GBNF, "root ::= a root\na ::= \"x\"?", "left-recursive"},
               {GBNF, "root ::= \"a\" root", "no finite text"},
               {GBNF, "root ::= a", "\"a\" is used but not defined"},
               {GBNF, "a ::= \"x\"", "no rule \"root\""},
               {GBNF, "root ::= \"x\"\nroot ::= \"y\"", "line 2: a rule is defined twice"},
               {GBNF, "root ::= \"x", "closing quote"},
               {GBNF, "root ::= (\"x\"", "closing parenthesis"},
               {GBNF, "root ::= [b-a]", "backwards"},
               {GBNF, "root ::= \"\\x4g\"", "hexadecimal"},
               {REGEX, "(?=a)b", "look-around"},
               {REGEX, "(a)\\1", "back-references"},
               {REGEX, "a\\b", "word boundaries"},
               {REGEX, "a^b", "anchor"},
               {REGEX, "(a", "closing parenthesis"},
               {REGEX, "a)", "too many"},
               {REGEX, "*a", "nothing to repeat"},
               {REGEX, "[a", "closing bracket"},
               {REGEX, "a{2,1}", "backwards"},
               {REGEX, "\xff", "UTF-8"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        assert_null(make(bad[i].kind, bad[i].source, &e));
        if (!strstr(e.text, bad[i].why))
            fail_msg("%s: %s", bad[i].source, e.text);
    }
}

static void test_choices(void **state)
{
    static const char *const texts[] = {"yes", "no", "no way", "né"};
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    (void)state;
    struct constraint *c = constraint_from_choices(texts, 4, &e);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e);
    assert_non_null(b);
    for (int i = 0; i < 4; i++)
        assert_true(words_accepts(b, texts[i], strlen(texts[i])));
    assert_false(words_accepts(b, "no ", 3));
    assert_false(words_accepts(b, "", 0));
    constraint_unbind(b);
    constraint_free(c);
    assert_null(constraint_from_choices(texts, 0, &e));
    constraint_vocab_close(v);
}

/* Forced bytes, ends, taking back, clones. */
static void test_state(void **state)
{
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    char out[64];
    uint32_t mask[(WORDS_COUNT + 31) / 32];
    (void)state;
    struct constraint *c = constraint_from_regex("begin(one|two)end", 17, &e);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e);
    struct constraint_state *s = constraint_state_open(b, &e);
    assert_int_equal(constraint_forced(s, out, sizeof out), 5);
    assert_memory_equal(out, "begin", 5);
    assert_int_equal(constraint_accept_bytes(s, "begin", 5, &e), 0);
    assert_int_equal(constraint_forced(s, out, sizeof out), 0);
    struct constraint_state *t = constraint_state_clone(s, &e);
    assert_int_equal(constraint_accept(s, 't', &e), 0);
    assert_int_equal(constraint_forced(s, out, 3), 3);
    assert_memory_equal(out, "woe", 3);
    assert_int_equal(constraint_accept(s, 'x', NULL), -1);
    assert_int_equal(constraint_accept(s, WORDS_END, NULL), -1);
    assert_int_equal(constraint_accept(s, WORDS_CONTROL, NULL), -1);
    assert_int_equal(constraint_accept(s, -1, NULL), -1);
    assert_int_equal(constraint_accept(s, WORDS_COUNT, NULL), -1);
    assert_int_equal(constraint_accept_bytes(s, "woend", 5, &e), 0);
    assert_true(constraint_accepts_end(s));
    assert_int_equal(constraint_mask(s, mask, &e), 0);
    for (int32_t id = 0; id < WORDS_COUNT; id++)
        assert_int_equal(words_allowed(mask, id), id == WORDS_END);
    assert_int_equal(constraint_accept(s, WORDS_END, &e), 0);
    assert_int_equal(constraint_mask(s, mask, &e), 0);
    assert_true(words_allowed(mask, WORDS_END));
    assert_int_equal(constraint_accept(s, 'a', NULL), -1);
    assert_int_equal(constraint_rollback(s, 3, &e), 0);
    assert_int_equal(constraint_accept_bytes(s, "oneend", 6, &e), 0);
    assert_true(constraint_accepts_end(s));
    assert_int_equal(constraint_accept_bytes(t, "twoend", 6, &e), 0);
    assert_int_equal(constraint_rollback(t, 3, NULL), -1);
    constraint_state_close(s);
    constraint_state_close(t);
    constraint_unbind(b);
    constraint_free(c);
    constraint_vocab_close(v);
}

/* A long text through a small memory, which is tidied many times; nothing allocates meanwhile. */
static void test_small_memory(void **state)
{
    static const char source[] = "root ::= v\nv ::= \"[\" (v (\",\" v)*)? \"]\" | [a-z]{1,1000}";
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    uint32_t mask[(WORDS_COUNT + 31) / 32];
    (void)state;
    struct constraint *c = constraint_from_gbnf(source, sizeof source - 1, &e);
    struct constraint_bound *b = constraint_bind(c, v, 1 << 20, &e);
    struct constraint_state *s = constraint_state_open(b, &e), *old = constraint_state_open(b, &e);
    long before = mem_count();
    for (int i = 0; i < 50; i++)
        assert_int_equal(constraint_accept(s, '[', &e), 0);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 500; i++) {
            assert_int_equal(constraint_accept(s, 'a' + i % 26, &e), 0);
            assert_int_equal(constraint_mask(s, mask, &e), 0);
            assert_true(words_allowed(mask, 'q'));
            assert_true(words_allowed(mask, ']'));
            assert_false(words_allowed(mask, '['));
        }
        assert_int_equal(constraint_rollback(s, 200, &e), 0);
        for (int i = 0; i < 700; i++)
            assert_int_equal(constraint_accept(s, 'z', &e), 0);
        assert_int_equal(constraint_accept(s, 'z', NULL), -1);
        assert_int_equal(constraint_accept(s, ',', &e), 0);
        assert_int_equal(constraint_accept(old, '[', &e), 0);
    }
    assert_int_equal(constraint_accept_bytes(s, "[]", 2, &e), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(constraint_accept(s, ']', &e), 0);
    assert_true(constraint_accepts_end(s));
    assert_int_equal(mem_count(), before);
    constraint_state_close(s);
    constraint_state_close(old);
    constraint_unbind(b);
    constraint_free(c);
    constraint_vocab_close(v);
}

/* Nesting ends where the frames do, and from there every text can still be finished. */
static void test_deep(void **state)
{
    static const char source[] = "root ::= \"(\" root \")\" | \"[\" [0-9] root \"]\" | \"x\"";
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    (void)state;
    struct constraint *c = constraint_from_gbnf(source, sizeof source - 1, &e);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e);
    struct constraint_state *s = constraint_state_open(b, &e);
    int depth = 0;
    while (depth < 100000 && !constraint_accept(s, '(', NULL))
        depth++;
    assert_in_range(depth, 100, 1000);
    assert_int_equal(constraint_accept(s, 'x', &e), 0);
    for (int i = 0; i < depth; i++)
        assert_int_equal(constraint_accept(s, ')', &e), 0);
    assert_true(constraint_accepts_end(s));
    constraint_state_close(s);
    constraint_unbind(b);
    constraint_free(c);
    constraint_vocab_close(v);
}

static void *walk_many(void *bound)
{
    bool ok = true;
    struct err e = {0};
    uint32_t mask[(WORDS_COUNT + 31) / 32];
    for (int round = 0; round < 20; round++) {
        struct constraint_state *s = constraint_state_open(bound, &e);
        for (int i = 0; i < 100; i++)
            ok = ok && !constraint_accept(s, "ab("[(i + round) % 2], &e) && !constraint_mask(s, mask, &e);
        constraint_state_close(s);
    }
    return ok ? bound : NULL;
}

static void test_threads(void **state)
{
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    pthread_t threads[4];
    (void)state;
    struct constraint *c = constraint_from_regex("([a-z]{1,90}b?)*", 16, &e);
    struct constraint_bound *b = constraint_bind(c, v, 2 << 20, &e);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_many, b), 0);
    for (int i = 0; i < 4; i++) {
        void *out;
        pthread_join(threads[i], &out);
        assert_ptr_equal(out, b);
    }
    constraint_unbind(b);
    constraint_free(c);
    constraint_vocab_close(v);
}

/* Every allocation fails once: an error each time, and no leak (which the sanitizer sees). */
static void test_memory_fails(void **state)
{
    static const char source[] = "root ::= (\"abc\" [a-zé-ü]{3,90} x | [0-9]+)*\nx ::= \"(\" root \")\"";
    bool done = false;
    (void)state;
    for (long n = 1; !done; n++) {
        struct err e = {0};
        struct constraint_source words = {WORDS_COUNT, NULL, words_bytes, words_kind};
        mem_fail_at(n);
        struct constraint_vocab *v = constraint_vocab_open(&words, &e);
        struct constraint *c = v ? constraint_from_gbnf(source, sizeof source - 1, &e) : NULL;
        struct constraint_bound *b = c ? constraint_bind(c, v, 1 << 20, &e) : NULL;
        struct constraint_state *s = b ? constraint_state_open(b, &e) : NULL;
        mem_fail_at(0);
        done = s != NULL;
        assert_true(done || e.code);
        constraint_state_close(s);
        constraint_unbind(b);
        constraint_free(c);
        constraint_vocab_close(v);
        assert_in_range(n, 1, 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_refused),      cmocka_unit_test(test_choices),
        cmocka_unit_test(test_state),   cmocka_unit_test(test_small_memory), cmocka_unit_test(test_deep),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
