/* Guessing ahead: what is guessed, and when it is worth its rows. */
#include "test.h"

#include "run/guess.h"

static void repeats_are_found(void **state)
{
    static const struct {
        int32_t ids[24];
        uint32_t n, agree;
        int32_t want[4];
    } rows[] = {
        {{1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, 10, 3, {4, 5, 6, 7}},
        {{1, 2, 3, 9, 1, 2, 3, 8, 5, 1, 2, 3}, 12, 3, {8, 5, 1, 2}},    /* the last of two */
        {{7, 1, 2, 3, 9, 1, 2, 3, 8, 7, 1, 2, 3}, 13, 4, {9, 1, 2, 3}}, /* the one that agrees longer */
        {{5, 5, 5, 5}, 4, 3, {5, 5, 5, 5}},                             /* goes round */
        {{1, 2, 1, 2, 1, 2}, 6, 4, {1, 2, 1, 2}},
        {{1, 2, 3, 4, 1, 2}, 6, 0, {0}}, /* two are too few */
        {{1, 2, 3}, 3, 0, {0}},
        {{1}, 1, 0, {0}},
        {{0}, 0, 0, {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t ids[24];
        uint32_t agree;
        for (int k = 0; k < 24; k++)
            ids[k] = rows[i].ids[k];
        assert_int_equal(guess_repeat(ids, rows[i].n, 4, &agree), rows[i].agree ? 4 : 0);
        assert_int_equal(agree, rows[i].agree);
        for (uint32_t k = 0; k < 4 && agree; k++)
            assert_int_equal(ids[rows[i].n + k], rows[i].want[k]);
    }
}

static void costs_lie_between(void **state)
{
    struct step_costs c = {0};
    (void)state;
    assert_true(costs_of(&c, 3) == 0); /* nothing is known yet */
    costs_note(&c, 1, 99);             /* the first time says nothing */
    costs_note(&c, 9, 99);
    costs_note(&c, 1, 1);
    assert_true(costs_of(&c, 1) == 1 && costs_of(&c, 9) == 3); /* a guess, until it is tried */
    costs_note(&c, 9, 5);
    assert_true(costs_of(&c, 5) == 3 && costs_of(&c, 11) == 6); /* between, and as before */
    assert_true(costs_of(&c, 2 * GUESS_ROWS) == 2 * costs_of(&c, GUESS_ROWS));
    costs_note(&c, 9, 500); /* disturbed: counts little */
    assert_true(costs_of(&c, 9) < 60);
    for (int i = 0; i < 1000; i++)
        costs_note(&c, 1, 1);
    assert_true(costs_of(&c, 9) == 3); /* forgotten: it may be tried again */
    costs_note(&c, 9, 4);
    assert_true(costs_of(&c, 9) == 4);
}

/* So many of 8 guesses that each come true with this chance; rows cost so much beside the first. */
static uint32_t worth(double chance, double row, double each, uint32_t streams)
{
    struct step_costs c = {0};
    for (uint32_t r = 2; r < 2 * GUESS_ROWS + 2; r++) /* each twice */
        costs_note(&c, r / 2, 1 + row * (r / 2 - 1));
    struct guess_plan p = {.rows = streams, .tokens = streams};
    uint32_t k = guess_worth(&p, &c, 8, chance, each);
    assert_int_equal(p.rows, streams + k);
    assert_true(k ? p.tokens > streams : p.tokens == streams);
    return k;
}

static void guesses_have_to_pay(void **state)
{
    (void)state;
    assert_int_equal(worth(0.9, 0, 0, 1), 8);      /* rows for nothing */
    assert_int_equal(worth(0.9, 1, 0, 1), 0);      /* a row costs a step */
    assert_int_equal(worth(0.1, 0.3, 0, 1), 0);    /* they hardly come true */
    assert_in_range(worth(0.7, 0.2, 0, 1), 1, 4);  /* a few of them */
    assert_int_equal(worth(0.9, 0.05, 0.9, 1), 0); /* the draft model is too slow */
    assert_true(worth(0.9, 0.05, 0.2, 1) > 0);
    assert_true(worth(0.9, 0.01, 0, 8) > 0); /* beside others a row is dearer in relation */
    assert_int_equal(worth(0.3, 0.2, 0, 8), 0);
    struct step_costs unknown = {0};
    struct guess_plan p = {.rows = 1, .tokens = 1};
    assert_int_equal(guess_worth(&p, &unknown, 8, 1, 0), 0);
}

static void luck_follows(void **state)
{
    struct luck l[GUESS_KINDS];
    (void)state;
    luck_begin(l);
    assert_true(luck_chance(&l[GUESS_RULE]) > luck_chance(&l[GUESS_SHORT]));
    for (int i = 0; i < 60; i++)
        luck_note(&l[GUESS_SHORT], true);
    assert_true(luck_chance(&l[GUESS_SHORT]) > 0.9);
    for (int i = 0; i < 60; i++)
        luck_note(&l[GUESS_SHORT], false);
    assert_true(luck_chance(&l[GUESS_SHORT]) < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_are_found),
        cmocka_unit_test(costs_lie_between),
        cmocka_unit_test(guesses_have_to_pay),
        cmocka_unit_test(luck_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
