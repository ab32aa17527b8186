/* The border of a machine that is only arithmetic: it comes to where the step is fastest, and follows what changes. */
#include "test.h"

#include "device/border.h"

#include <math.h>
#include <stdlib.h>

enum { EXPERTS = 128, USED = 8 };

/* Seconds: of an expert on the link; of one on the CPU for a row, and for its weights; of the other things; of passing rows
 * to and from the CPU where it computes any. */
struct machine {
    double link, row, weights, other, pass;
};

static struct border_step run(const struct machine *m, uint32_t rows, uint32_t at)
{
    const double cpu = (EXPERTS - at) * (m->weights + m->row * rows * USED / EXPERTS), link = m->link * at;
    const double busy = cpu + m->other + (at < EXPERTS ? m->pass : 0), seconds = fmax(link, busy);
    return (struct border_step){
        .rows = rows, .at = at, .seconds = seconds, .link = link, .cpu = cpu, .waited = seconds - busy};
}

static double best(const struct machine *m, uint32_t rows)
{
    double least = INFINITY;
    for (uint32_t at = EXPERTS / 16; at <= EXPERTS; at++)
        least = fmin(least, run(m, rows, at).seconds);
    return least;
}

/* Steps until it is near the best: now and then one expert is tried on the rest. */
static int settle(struct border *b, const struct machine *m, uint32_t rows)
{
    int bad = 0;
    for (int i = 0; i < 20; i++) {
        const struct border_step s = run(m, rows, border_choose(b, rows));
        border_learn(b, &s);
        bad = s.seconds > 1.12 * best(m, rows) ? i + 1 : bad;
    }
    return bad;
}

static const struct machine server = {.link = 2.9e-3, .row = 1.6e-4, .weights = 7e-4, .other = 0.06},
                            laptop = {.link = 8e-3, .row = 4e-3, .weights = 4e-3, .other = 0.1},
                            dear = {.link = 1e-3, .row = 1, .weights = 1, .other = 0.01};

static void comes_to_the_best(void **state)
{
    (void)state;
    const struct machine *all[] = {&server, &laptop, &dear};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (uint32_t rows = 16; rows <= 4096; rows *= 4) {
            struct border b = {.experts = EXPERTS, .used = USED};
            assert_true(settle(&b, all[i], rows) <= 2);
        }
}

/* Prompts of different lengths have borders of their own, and learn from each other. */
static void lengths_differ(void **state)
{
    (void)state;
    struct border b = {.experts = EXPERTS, .used = USED};
    settle(&b, &server, 64);
    const uint32_t few = border_choose(&b, 64), guess = border_choose(&b, 2048);
    assert_true(guess > few + 32);
    settle(&b, &server, 2048);
    assert_int_equal(border_choose(&b, 64), few);
    assert_true(abs((int)border_choose(&b, 2048) - (int)guess) < 16);
}

/* A first step that took far longer (pages came from the disk, kernels were loaded) is forgotten in a few. */
static void slow_first_step(void **state)
{
    (void)state;
    struct border b = {.experts = EXPERTS, .used = USED};
    struct border_step s = run(&server, 512, border_choose(&b, 512));
    s.seconds += 3;
    s.link *= 10;
    s.cpu *= 3;
    s.waited += 1;
    border_learn(&b, &s);
    assert_true(settle(&b, &server, 512) <= 4);
    /* and so is one where the rest looked too slow to have any */
    b = (struct border){.experts = EXPERTS, .used = USED};
    s = run(&server, 512, border_choose(&b, 512));
    s.cpu *= 1000;
    s.seconds += s.cpu;
    border_learn(&b, &s);
    assert_int_equal(border_choose(&b, 512), EXPERTS);
    for (int i = 0; i < 500; i++) {
        s = run(&server, 512, border_choose(&b, 512));
        border_learn(&b, &s);
    }
    assert_true(s.seconds < 1.03 * best(&server, 512));
}

/* Dividing costs something by itself: what steps that divide nothing show of the rest is not believed of those that do. */
static void passing_costs(void **state)
{
    (void)state;
    enum { STEPS = 200 };
    for (double link = 0.5e-3; link < 3e-3; link *= 1.02)
        for (double pass = 0.01; pass < 0.05; pass *= 2) {
            const struct machine m = {link, 0, 4e-3, 0.15, pass};
            struct border b = {.experts = EXPERTS, .used = USED};
            double sum = 0;
            for (int i = 0; i < STEPS; i++) {
                const struct border_step s = run(&m, 512, border_choose(&b, 512));
                border_learn(&b, &s);
                sum += s.seconds;
            }
            if (sum > 1.03 * STEPS * best(&m, 512))
                fail_msg("%g s of an expert on the link, %g s of passing: %g of the best", link, pass,
                         sum / STEPS / best(&m, 512));
        }
}

static void none_and_fixed(void **state)
{
    (void)state;
    struct border b = {0};
    const struct border_step s = run(&server, 64, 0);
    border_learn(&b, &s);
    assert_int_equal(border_choose(&b, 64), 0);
    b = (struct border){.experts = EXPERTS, .used = USED, .fixed = true, .at = 7};
    assert_int_equal(border_choose(&b, 64), 7);
    b.at = UINT32_MAX;
    assert_int_equal(border_choose(&b, 64), EXPERTS);
    /* a device that has the weights already: all are its own */
    b = (struct border){.experts = EXPERTS, .used = USED};
    border_learn(&b, &(struct border_step){.rows = 64, .at = 112, .seconds = 1, .cpu = 0.5});
    assert_int_equal(border_choose(&b, 64), EXPERTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_to_the_best), cmocka_unit_test(lengths_differ),
        cmocka_unit_test(slow_first_step),   cmocka_unit_test(passing_costs),
        cmocka_unit_test(none_and_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
