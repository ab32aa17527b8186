/* A constraint that begins later: behind a trigger, or where the prompt has begun it. */
#include "test.h"

#include "base/mem.h"
#include "lang/constraint.h"
#include "run/rules.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static char bytes[256];

static const char *byte_text(const void *of, int32_t id, size_t *n)
{
    (void)of;
    *n = id < 256;
    return bytes + id % 256;
}

static enum constraint_kind byte_kind(const void *of, int32_t id)
{
    (void)of;
    return id < 256 ? CONSTRAINT_TEXT : CONSTRAINT_END;
}

static struct constraint_vocab *open_vocab(void)
{
    struct err e = {0};
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    return constraint_vocab_open(
        &(struct constraint_source){.count = 257, .bytes = byte_text, .kind = byte_kind}, &e);
}

/* A rule of these words, begun as `start` says. */
static struct rule *open_rule(const struct constraint_vocab *v, const struct rule_start *start)
{
    static const char *const words[] = {"<go>one.", "<go>two.", "six."};
    struct err e = {0};
    struct rule *r;
    assert_int_equal(rule_open(&r, constraint_from_choices(words, 3, &e), v, &e), 0);
    assert_int_equal(rule_set_start(r, start, &e), 0);
    return r;
}

/* The bytes that may come next; "*" = everything. */
static void next(struct rule_walk *w, const char *want)
{
    const uint32_t *mask;
    struct err e = {0};
    char got[260];
    size_t n = 0;
    assert_int_equal(rule_walk_next(w, &mask, &e), 0);
    if (!mask)
        got[n++] = '*';
    for (int i = 0; mask && i < 257; i++)
        if (mask[i / 32] >> i % 32 & 1)
            got[n++] = i < 256 ? (char)i : '$';
    got[n] = 0;
    assert_string_equal(got, want);
}

/* Tokens of one byte, as a job takes them; the text of all of them arrives in one piece. */
static void say(struct rule_walk *w, const char *text)
{
    struct err e = {0};
    for (const char *s = text; *s; s++)
        assert_int_equal(rule_walk_accept(w, (unsigned char)*s, &e), 0);
    if (w->asleep)
        rule_walk_text(w, text, strlen(text));
}

static void check(const struct constraint_vocab *v, const struct rule_start *start, const char *const *said,
                  const char *const *want)
{
    struct rule *r = open_rule(v, start);
    struct rule_walk w;
    struct err e = {0};
    assert_int_equal(rule_walk_open(&w, r, 257, &e), 0);
    next(&w, *want++);
    for (; *said; said++) {
        say(&w, *said);
        next(&w, *want++);
    }
    rule_walk_close(&w);
    rule_drop(r);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_starts(void **state)
{
    (void)state;
    struct constraint_vocab *v = open_vocab();
    check(v, &(struct rule_start){0}, LIST("<go>", "one."), LIST("<s", "ot", "$"));
    check(v, &(struct rule_start){.lead = "<go>t"}, LIST("wo"), LIST("w", "."));
    /* asleep until the trigger has come, in whatever pieces */
    struct rule_start within = {.trigger = "<go>", .within = true};
    check(v, &within, LIST("so: <", "g<go", ">", "t"), LIST("*", "*", "*", "ot", "w"));
    check(v, &within, LIST("<go>on"), LIST("*", "e"));
    /* what came with the trigger and is not in the language: the text goes its own way */
    check(v, &within, LIST("<go>x", "<go>"), LIST("*", "*", "*"));
    struct rule_start behind = {.trigger = "</think>"};
    check(v, &behind, LIST("hm</think>", "s"), LIST("*", "<s", "i"));
    struct rule_start first = {.trigger = "<go>", .within = true, .first = true};
    check(v, &first, LIST(" \n<go>"), LIST("*", "ot"));
    check(v, &first, LIST("a <go>"), LIST("*", "*"));
    /* what is said aside does not count */
    struct rule_start aside = {.trigger = "<go>", .within = true, .aside = {"(", ")"}};
    check(v, &aside, LIST("a (<go>t", ") <go>"), LIST("*", "*", "ot"));
    aside.in_aside = true;
    check(v, &aside, LIST("<go>", ")<go>"), LIST("*", "*", "ot"));
    constraint_vocab_close(v);
}

/* ---- the cache ---- */

/* A rule of this regular expression as a request gets it. */
static struct rule *get(struct rules *all, const struct constraint_vocab *v, const char *regex)
{
    struct err e = {0};
    const struct rules_key key = {v, regex, strlen(regex)};
    struct rule *r = rules_find(all, &key);
    if (r)
        return r;
    assert_int_equal(rule_open(&r, constraint_from_regex(regex, strlen(regex), &e), v, &e), 0);
    rules_keep(all, &key, r);
    return r;
}

static struct rules_stats stats_of(struct rules *all)
{
    struct rules_stats s;
    rules_stats(all, &s);
    return s;
}

/* What is asked for again is compiled once, begins where each one says, and outlives the cache. */
static void test_kept(void **state)
{
    (void)state;
    struct err e = {0};
    struct rules *all;
    struct constraint_vocab *v = open_vocab(), *other = open_vocab();
    struct rule_walk w[2];
    assert_int_equal(rules_open(&all, RULES_BYTES, &e), 0);
    struct rule *a = get(all, v, "ab+c"), *b = get(all, v, "ab+c");
    assert_ptr_not_equal(a, b);
    assert_int_equal(stats_of(all).hits, 1);
    assert_int_equal(stats_of(all).kept, 1);
    assert_true(stats_of(all).bytes == rule_bytes(a) + 4 && rule_bytes(a) == rule_bytes(b));
    assert_int_equal(rule_set_start(b, &(struct rule_start){.lead = "abb"}, &e), 0);
    struct rule *c = get(all, v, "ab+"), *d = get(all, other, "ab+c");
    assert_int_equal(stats_of(all).misses, 3); /* another text, another vocabulary */
    rules_close(all);
    rule_drop(c);
    rule_drop(d);
    assert_int_equal(rule_walk_open(&w[0], a, 257, &e) | rule_walk_open(&w[1], b, 257, &e), 0);
    rule_drop(a);
    rule_drop(b);
    next(&w[0], "a");
    next(&w[1], "bc");
    say(&w[0], "a");
    next(&w[0], "b");
    rule_walk_close(&w[0]);
    rule_walk_close(&w[1]);
    constraint_vocab_close(v);
    constraint_vocab_close(other);
}

static void test_bounded(void **state)
{
    (void)state;
    struct err e = {0};
    struct rules *all;
    struct constraint_vocab *v = open_vocab();
    char text[16];
    assert_int_equal(rules_open(&all, RULES_BYTES, &e), 0);
    rule_drop(get(all, v, "[a-z]+"));
    size_t each = stats_of(all).bytes;
    rules_close(all);
    assert_int_equal(rules_open(&all, 4 * each, &e), 0);
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "[a-z]%02d", i);
        rule_drop(get(all, v, text));
        rule_drop(get(all, v, "[a-z]00")); /* asked for all the time */
        assert_true(stats_of(all).bytes <= 4 * each && stats_of(all).kept >= (i ? 2 : 1));
    }
    assert_int_equal(stats_of(all).misses, 20);
    rule_drop(get(all, v, "[a-z]19"));
    assert_int_equal(stats_of(all).misses, 20);
    rule_drop(get(all, v, "[a-z]01"));
    assert_int_equal(stats_of(all).misses, 21);
    /* without memory it forgets */
    for (long n = 1; n < 3; n++) {
        struct rule *r = get(all, v, "[a-z]02");
        mem_fail_at(n);
        rules_keep(all, &(struct rules_key){v, "new", 3}, r);
        mem_fail_at(0);
        rule_drop(r);
        assert_null(rules_find(all, &(struct rules_key){v, "new", 3}));
    }
    rules_close(all);
    constraint_vocab_close(v);
}

struct asker {
    pthread_t thread;
    struct rules *all;
    const struct constraint_vocab *v;
    int number;
};

static void *ask_often(void *arg)
{
    struct asker *a = arg;
    struct err e = {0};
    for (int i = 0; i < 60; i++) {
        char text[16];
        struct rule_walk w;
        const uint32_t *mask;
        snprintf(text, sizeof text, "%c[a-c]*", 'a' + (i * 7 + a->number) % 5);
        struct rule *r = get(a->all, a->v, text);
        if (rule_walk_open(&w, r, 257, &e) || rule_walk_next(&w, &mask, &e) ||
            rule_walk_only(&w, mask) != text[0] || rule_walk_accept(&w, text[0], &e))
            a->number = -1;
        rule_walk_close(&w);
        rule_drop(r);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct err e = {0};
    struct asker askers[3];
    struct rules *all;
    struct constraint_vocab *v = open_vocab();
    assert_int_equal(rules_open(&all, 6 << 20, &e), 0); /* about two of them */
    for (int i = 0; i < 3; i++) {
        askers[i] = (struct asker){.all = all, .v = v, .number = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].number, i);
    }
    assert_int_equal(stats_of(all).hits + stats_of(all).misses, 180);
    rules_close(all);
    constraint_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_starts), cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_bounded), cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
