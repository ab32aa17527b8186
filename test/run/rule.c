/* A constraint that begins later: behind a trigger, or where the prompt has begun it. */
#include "test.h"

#include "lang/constraint.h"
#include "run/rule.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_starts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
