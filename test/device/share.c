/* Loops whose pieces workers take from each other: every column once, whoever takes it. */
#include "test.h"

#include "base/pool.h"
#include "device/cpu/cpu.h"

#include <string.h>

enum { WORKERS = 3, COLUMNS = 1000, UNITS = (COLUMNS + CPU_UNIT - 1) / CPU_UNIT, LOOPS = 400 };

struct fixture {
    struct worker_local local[WORKERS];
    struct cpu cpu;
    struct step step;
};

static void begin(struct fixture *f, uint32_t rows)
{
    memset(f, 0, sizeof *f);
    f->cpu.local = f->local;
    f->cpu.pieces = true;
    f->step.rows = rows;
}

static struct lane lane(struct fixture *f, int worker, int workers)
{
    return (struct lane){
        .d = &f->cpu, .s = &f->step, .local = &f->local[worker], .worker = worker, .workers = workers};
}

/* Takes all that this worker gets, and returns the number of pieces. */
static int take_all(struct lane *l, struct share *s, uint8_t times[UNITS])
{
    int pieces = 0;
    for (uint32_t n0, n1; lane_take_columns(l, s, COLUMNS, &n0, &n1); pieces++) {
        assert_int_equal(n0 % CPU_UNIT, 0);
        assert_true(n1 == COLUMNS || n1 % CPU_UNIT == 0);
        for (uint32_t u = n0 / CPU_UNIT; u < (n1 + CPU_UNIT - 1) / CPU_UNIT; u++)
            times[u]++;
    }
    return pieces;
}

static void assert_once(const uint8_t times[UNITS])
{
    for (int u = 0; u < UNITS; u++)
        assert_int_equal(times[u], 1);
}

/* The others come when all is taken: they find nothing, also of the next loop's. */
static void test_late(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 1);
    for (int loop = 0, first = 0; loop < 4; loop++, first = (first + 1) % WORKERS) {
        uint8_t times[UNITS] = {0};
        for (int i = 0; i < WORKERS; i++) {
            struct lane l = lane(&f, (first + i) % WORKERS, WORKERS);
            struct share s = lane_columns(&l, COLUMNS);
            const int pieces = take_all(&l, &s, times);
            assert_true(i ? pieces == 0 : pieces > WORKERS);
        }
        assert_once(times);
    }
}

/* The first piece leaves the others something of its owner's share; parts of different cost are cut where units start. */
static void test_parts(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 1);
    const uint32_t cols[3] = {320, 32, 96};
    const uint64_t cost[3] = {7, 100, 1};
    uint8_t times[3][10] = {0};
    uint64_t total = 0;
    for (int i = 0; i < 3; i++)
        total += share_cost(cols[i], cost[i]);
    struct lane own = lane(&f, 0, 2), other = lane(&f, 1, 2);
    struct share s[2] = {lane_loop(&own, total), lane_loop(&other, total)};
    assert_true(lane_take(&own, &s[0]));
    assert_true(s[0].from == 0 && s[0].to > 0 && s[0].to < total / 2);
    for (int w = 0, more = 1; more; w = 1) {
        for (uint32_t i = 0, n0, n1; i < 3; i++)
            if (share_next(&s[w], cols[i], cost[i], &n0, &n1))
                for (uint32_t u = n0 / CPU_UNIT; u < n1 / CPU_UNIT; u++)
                    times[i][u]++;
        more = lane_take(&other, &s[1]);
    }
    assert_false(lane_take(&own, &s[0]));
    for (int i = 0; i < 3; i++)
        for (uint32_t u = 0; u < cols[i] / CPU_UNIT; u++)
            assert_int_equal(times[i][u], 1);
}

/* Several rows, or a small model: a share is one piece, and nobody takes another's. */
static void test_whole_shares(void **state)
{
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct fixture f;
        begin(&f, small ? 1 : 2);
        f.cpu.pieces = !small;
        uint8_t times[UNITS] = {0};
        for (int w = 0; w < WORKERS; w++) {
            struct lane l = lane(&f, w, WORKERS);
            struct share s = lane_columns(&l, COLUMNS);
            assert_int_equal(take_all(&l, &s, times), 1);
        }
        assert_once(times);
    }
}

struct race {
    struct fixture f;
    struct pool *pool;
    uint8_t times[WORKERS][LOOPS][UNITS];
};

static void race_run(void *arg, int worker, int workers)
{
    struct race *r = arg;
    struct lane l = lane(&r->f, worker, workers);
    for (int i = 0; i < LOOPS; i++) {
        struct share s = lane_columns(&l, COLUMNS);
        take_all(&l, &s, r->times[worker][i]);
        pool_barrier(r->pool, worker);
    }
}

static void test_race(void **state)
{
    (void)state;
    static struct race r;
    struct err e = {0};
    begin(&r.f, 1);
    r.pool = pool_open(WORKERS, false, &e);
    assert_non_null(r.pool);
    pool_run(r.pool, race_run, &r);
    pool_close(r.pool);
    for (int i = 0; i < LOOPS; i++)
        for (int u = 0; u < UNITS; u++)
            assert_int_equal(r.times[0][i][u] + r.times[1][i][u] + r.times[2][i][u], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_whole_shares),
        cmocka_unit_test(test_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
