/* Guessing ahead: what is guessed, and when it is worth its rows. */
#include "test.h"

#include "base/noise.h"
#include "run/batch_room.h"
#include "run/speculate.h"

#include <math.h>
#include <string.h>

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
        struct speculate_index index;
        assert_int_equal(speculate_index_open(&index, 24), 0);
        for (int k = 0; k < 24; k++)
            ids[k] = rows[i].ids[k];
        assert_int_equal(speculate_repeat(&index, ids, rows[i].n, 4, &agree), rows[i].agree ? 4 : 0);
        assert_int_equal(agree, rows[i].agree);
        for (uint32_t k = 0; k < 4 && agree; k++)
            assert_int_equal(ids[rows[i].n + k], rows[i].want[k]);
        speculate_index_close(&index);
    }
}

/* The place that agrees longest, of equals the last, among all there are; 0 = none. */
static uint32_t look_everywhere(const int32_t *ids, uint32_t n, uint32_t *agree)
{
    uint32_t best = 0;
    *agree = 2;
    for (uint32_t at = n; at-- > 1;) {
        uint32_t k = 0;
        while (k < at && k < 16 && ids[at - 1 - k] == ids[n - 1 - k])
            k++;
        best = k > *agree ? at : best;
        *agree = k > *agree ? k : *agree;
    }
    return best;
}

/* The index finds what a look at every place finds, while the text grows by one token or by several. */
static void index_finds_all(void **state)
{
    enum { TEXT = 600, AHEAD = 4 };
    int32_t ids[TEXT + AHEAD];
    (void)state;
    for (uint32_t words = 2; words < 20; words += 3) {
        struct speculate_index index;
        uint64_t found = 0;
        assert_int_equal(speculate_index_open(&index, TEXT), 0);
        for (uint32_t i = 0; i < TEXT + AHEAD; i++)
            ids[i] = (int32_t)(words * noise_uniform(7, i, words));
        for (uint32_t n = 1; n <= TEXT; n += 1 + n % 3) {
            int32_t next[AHEAD];
            uint32_t agree, want, at = look_everywhere(ids, n, &want);
            memcpy(next, ids + n, sizeof next);
            assert_int_equal(speculate_repeat(&index, ids, n, AHEAD, &agree), at ? AHEAD : 0);
            assert_int_equal(agree, at ? want : 0);
            for (uint32_t k = 0; at && k < AHEAD; k++)
                assert_int_equal(ids[n + k], ids[at + k]);
            memcpy(ids + n, next, sizeof next);
            found += at > 0;
        }
        assert_true(found > 10);
        speculate_index_close(&index);
    }
}

static void prices_are_medians(void **state)
{
    struct cost p = {0};
    (void)state;
    cost_note(&p, 99); /* once says nothing */
    assert_true(cost_of(&p) == 0);
    cost_note(&p, 2);
    assert_true(cost_of(&p) == 2);
    cost_note(&p, 3);
    assert_true(cost_of(&p) == 3);
    for (int i = 0; i < 2; i++)
        cost_note(&p, 4);
    assert_true(cost_of(&p) == 4);
    for (int i = 0; i < COST_LAST; i++)
        cost_note(&p, i < 2 ? 99 : 5); /* disturbed */
    assert_true(cost_of(&p) == 5);
}

/* Often enough to be sure of it. */
static void measure(struct step_costs *c, uint32_t rows, double seconds)
{
    for (int i = 0; i < 8; i++)
        step_costs_note(c, rows, seconds);
}

static void costs_lie_between(void **state)
{
    struct step_costs c = {0};
    (void)state;
    assert_true(step_costs_of(&c, 3) == 0); /* nothing is known yet */
    measure(&c, 1, 1);
    assert_true(step_costs_of(&c, 1) == 1 && step_costs_of(&c, 8) == 1 &&
                step_costs_of(&c, 16) == 2); /* till it is tried */
    c.row = 0.25;                            /* now a prompt has told: memory has time for four */
    step_costs_note(&c, 1, 1);
    assert_true(step_costs_of(&c, 4) == 1 && step_costs_of(&c, 8) == 2);
    measure(&c, 9, 5);
    assert_true(step_costs_of(&c, 5) == 3 && step_costs_of(&c, 11) == 5 && step_costs_of(&c, 40) == 10);
    assert_true(step_costs_of(&c, 2 * SPECULATE_ROWS) == 2 * step_costs_of(&c, SPECULATE_ROWS));
    measure(&c, 12, 4);
    assert_true(step_costs_of(&c, 9) == 4); /* fewer rows never cost more */
    for (int i = 0; i < 1000; i++)
        step_costs_note(&c, 1, 1);
    assert_true(step_costs_of(&c, 12) == 3); /* forgotten: it may be tried again */
    step_costs_note(&c, 12, 6);
    assert_true(step_costs_of(&c, 12) == 4); /* and counts at once, with what was known */
    struct step_costs many = {.row = 0.5};
    measure(&many, 9, 5);
    assert_true(step_costs_of(&many, 1) == 1);
}

/* So many of 8 guesses that each come true with this chance; rows cost so much beside the first. */
static uint32_t worth(double chance, double row, double each, uint32_t streams)
{
    struct step_costs c = {0};
    for (uint32_t r = 1; r <= 9 + streams; r++)
        measure(&c, r, 1 + row * (r - 1));
    struct speculate_plan p = {.rows = streams, .tokens = streams};
    uint32_t k = speculate_worth(&p, &c, 8, chance, each);
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
    struct speculate_plan p = {.rows = 1, .tokens = 1};
    assert_int_equal(speculate_worth(&p, &unknown, 8, 1, 0), 0);
}

/* A machine, a model and its draft, in steps of one row: what a guess and a row that the draft reads take, how many rows
 * come for nothing and what each one more takes, how often guesses come true, and whether others disturb it. */
struct world {
    double guess, read, free_rows, row, chance;
    bool noisy;
};

static double world_step(const struct world *w, uint32_t rows)
{
    return rows <= w->free_rows ? 1 : 1 + w->row * (rows - w->free_rows);
}

/* One step or guess in eight takes up to four times as long. */
static double world_noise(const struct world *w, uint64_t *at)
{
    double u = noise_uniform(7, ++*at, 0);
    return !w->noisy ? 1 : u < 0.125 ? 1 + 24 * u : 1 + 0.1 * u;
}

/* Steps per token where always k are guessed. */
static double world_fixed(const struct world *w, uint32_t k)
{
    double tokens = 1, come = 1;
    for (uint32_t i = 0; i < k; i++)
        tokens += come *= w->chance;
    return (world_step(w, 1 + k) + k * w->guess) / tokens;
}

/* Seconds for so many tokens where guesses are weighed, in relation to the best that a fixed number of guesses, or none,
 * would take with the same noise. */
static double world_weighed(const struct world *w, uint32_t tokens)
{
    struct step_costs c = {.row = w->row};
    struct cost guess = {0};
    struct pause pause = {0};
    struct accept_rate accept_rate[SPECULATE_KINDS];
    double weighed = 0, noise = 0, best = 1;
    uint64_t at = 0;
    uint32_t draft_has = 0, steps = 0;
    accept_rate_begin(accept_rate);
    for (uint32_t k = 1; k <= 8; k++)
        best = fmin(best, world_fixed(w, k));
    for (uint32_t made = 0, right; made < tokens; made += 1 + right, steps++) {
        struct speculate_plan p = {.rows = 1, .tokens = 1};
        struct speculate_maker m = {&accept_rate[SPECULATE_MODEL], &pause, &guess,
                                    .first = w->guess * step_costs_of(&c, 1)};
        uint32_t k = speculate_ask(&p, &c, 8, &m);
        double read = w->read * (made - draft_has);
        if (made - draft_has > 32 && !speculate_worth_reading(&c, 8, &m, read, tokens - made))
            k = 0;
        for (uint32_t i = 0; i < k; i++) {
            double took =
                w->guess * world_noise(w, &at) * (guess.count ? 1 : 10); /* the first one warms up */
            cost_note(&guess, took);
            weighed += took;
        }
        weighed += k ? read : 0;
        for (right = 0; right < k && noise_uniform(8, made + right, 0) < w->chance; right++)
            accept_rate_note(&accept_rate[SPECULATE_MODEL], true);
        if (right < k)
            accept_rate_note(&accept_rate[SPECULATE_MODEL], false);
        else if (k)
            pause_forget(&pause);
        draft_has = k ? made + 1 + right : draft_has;
        double disturbed = world_noise(w, &at), took = disturbed * world_step(w, 1 + k);
        step_costs_note(&c, 1 + k, took);
        weighed += took;
        noise += disturbed;
    }
    return weighed / (tokens * best * noise / steps);
}

static void weighing_is_nearly_the_best(void **state)
{
    static const struct {
        struct world w;
        double most; /* in relation to the best */
    } rows[] = {
        {{.guess = 0.36, .read = 0.05, .free_rows = 4, .row = 0.14, .chance = 0.9}, 1.08},
        {{.guess = 0.36, .read = 0.05, .free_rows = 4, .row = 0.14, .chance = 0.9, .noisy = true}, 1.15},
        {{.guess = 0.1, .read = 0.02, .free_rows = 8, .row = 0.05, .chance = 0.8, .noisy = true}, 1.08},
        {{.guess = 0.36, .read = 0.05, .free_rows = 4, .row = 0.14, .chance = 0}, 1.03},
        {{.guess = 0.36, .read = 0.05, .free_rows = 4, .row = 0.14, .chance = 0.3, .noisy = true}, 1.03},
        {{.guess = 0.36, .read = 0.05, .free_rows = 1, .row = 1, .chance = 0.9, .noisy = true}, 1.03},
        {{.guess = 0.9, .read = 0.2, .free_rows = 4, .row = 0.14, .chance = 0.9, .noisy = true}, 1.03},
        {{.guess = 0.05, .read = 0.01, .free_rows = 4, .row = 0.14, .chance = 0, .noisy = true}, 1.03},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double took = world_weighed(&rows[i].w, 1000);

        if (took > rows[i].most)
            fail_msg("world %zu: %.3f times the best; at most %.3f", i, took, rows[i].most);
    }
}

static void accept_rate_follows(void **state)
{
    struct accept_rate l[SPECULATE_KINDS];
    (void)state;
    accept_rate_begin(l);
    assert_true(accept_rate_chance(&l[SPECULATE_CONSTRAINT]) > accept_rate_chance(&l[SPECULATE_SHORT]));
    for (int i = 0; i < 60; i++)
        accept_rate_note(&l[SPECULATE_SHORT], true);
    assert_true(accept_rate_chance(&l[SPECULATE_SHORT]) > 0.9);
    for (int i = 0; i < 60; i++)
        accept_rate_note(&l[SPECULATE_SHORT], false);
    assert_true(accept_rate_chance(&l[SPECULATE_SHORT]) < 0.1);
}

/* Steps whose rows cost `each` of a step alone: what a batch gets beside others, and how many steps are slow. */
static uint32_t room_after(double each, uint32_t ready, uint32_t steps, uint32_t *slow)
{
    struct batch_room b = {0};
    *slow = 0;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t rows = batch_room_ask(&b, ready);
        double seconds = (1 + 0.01 * noise_uniform(7, i, 0)) * (1 + each * rows);
        assert_true(rows <= ready);
        batch_room_note(&b, rows, seconds);
        *slow += seconds > 1.1;
    }
    return b.rows;
}

static void batches_get_what_is_left(void **state)
{
    uint32_t slow;
    (void)state;
    assert_int_equal(room_after(0.5, 64, 4000, &slow), 0); /* a CPU */
    assert_true(slow < 40);
    uint32_t rows = room_after(0.002, 64, 4000, &slow); /* a GPU: 5 % are 25 rows */
    assert_true(rows >= 12 && rows <= 25 && slow < 40);
    assert_int_equal(room_after(0, 48, 4000, &slow), 48); /* as many as there are */
    assert_int_equal(slow, 0);
    /* a device that becomes slower: half of it, until it is affordable */
    struct batch_room b = {.rows = 32, .grow = 10000};
    for (int i = 0; i < 4000; i++) {
        rows = batch_room_ask(&b, 64);
        batch_room_note(&b, rows, 1 + 0.01 * rows);
    }
    assert_true(b.rows <= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_are_found),   cmocka_unit_test(index_finds_all),
        cmocka_unit_test(prices_are_medians),  cmocka_unit_test(costs_lie_between),
        cmocka_unit_test(guesses_have_to_pay), cmocka_unit_test(weighing_is_nearly_the_best),
        cmocka_unit_test(accept_rate_follows), cmocka_unit_test(batches_get_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
