/* Ranks as threads: sums in the order of ranks, parts side by side, and an abort that wakes everyone. */
#include "test.h"

#include "base/mem.h"
#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 5, LONG = 70001 };

struct rank {
    struct comm *comm;
    pthread_t thread;
    void (*work)(struct comm *c);
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    r->work(r->comm);
    return NULL;
}

static void on_ranks(uint32_t n, void (*work)(struct comm *c))
{
    struct comm *comm[RANKS];
    struct rank rank[RANKS];
    struct err e = {0};
    assert_int_equal(comm_threads(comm, n, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        rank[i] = (struct rank){.comm = comm[i], .work = work};
        assert_int_equal(pthread_create(&rank[i].thread, NULL, rank_main, &rank[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(rank[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++)
        comm_close(comm[i]);
}

/* A number that rounding changes, of rank r at place i. */
static float number(uint32_t r, size_t i)
{
    return (float)((double)(i % 97 + 1) / (3.0 + r));
}

static void sum_work(struct comm *c)
{
    static const size_t sizes[] = {1, 7, 64, 4097, LONG};
    struct err e = {0};
    float *x = mem_alloc(LONG, sizeof *x);
    assert_int_equal(comm_reserve(c, LONG, &e), 0);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t i = 0; i < sizes[k]; i++)
            x[i] = number(c->rank, i);
        assert_int_equal(comm_all_reduce(c, comm_all(c), x, sizes[k], &e), 0);
        for (size_t i = 0; i < sizes[k]; i++) {
            float want = number(0, i);
            for (uint32_t r = 1; r < c->size; r++)
                want += number(r, i);
            assert_true(x[i] == want);
        }
    }
    assert_int_equal(comm_all_reduce(c, comm_all(c), x, LONG + 1, &e), c->size > 1 ? -1 : 0);
    mem_free(x);
}

static void test_sums(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= RANKS; n++)
        on_ranks(n, sum_work);
}

/* Parts of different lengths, one of them empty; then the ranks of two groups of two. */
static void gather_work(struct comm *c)
{
    static const size_t at[] = {0, 3, 3, 10, 11, 19};
    uint8_t all[20] = {0}, to_first[20] = {0};
    struct err e = {0};
    memset(all + at[c->rank], (int)c->rank + 1, at[c->rank + 1] - at[c->rank]);
    memcpy(to_first, all, sizeof all);
    assert_int_equal(comm_all_gather(c, comm_all(c), all, at, &e), 0);
    assert_int_equal(comm_gather(c, comm_all(c), all + at[c->rank], to_first, at, &e), 0);
    for (uint32_t r = 0; r < c->size; r++)
        for (size_t i = at[r]; i < at[r + 1]; i++) {
            assert_int_equal(all[i], r + 1);
            assert_true(c->rank || to_first[i] == r + 1);
        }
    uint64_t said = c->rank ? 0 : 42;
    assert_int_equal(comm_broadcast(c, comm_all(c), &said, sizeof said, &e), 0);
    assert_int_equal(said, 42);
    assert_int_equal(comm_barrier(c, comm_all(c), &e), 0);
    if (c->rank == 4)
        return;
    struct comm_group two = {c->rank / 2 * 2, 2, c->rank % 2};
    float x = (float)c->rank;
    assert_int_equal(comm_reserve(c, 1, &e), 0);
    assert_int_equal(comm_all_reduce(c, two, &x, 1, &e), 0);
    assert_true(x == (c->rank < 2 ? 1.0f : 5.0f));
}

static void test_parts(void **state)
{
    (void)state;
    on_ranks(RANKS, gather_work);
}

/* Rank 2 gives up while the others wait for it, awake or asleep. */
static void abort_work(struct comm *c)
{
    struct err e = {0};
    if (c->rank == 2) {
        usleep(20000);
        comm_abort(c, "the card is gone");
        return;
    }
    assert_int_equal(comm_barrier(c, comm_all(c), &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_string_equal(e.text, "rank 2: the card is gone");
}

static void test_abort(void **state)
{
    (void)state;
    on_ranks(RANKS, abort_work);
}

/* Two ranks that do not agree how much is sent. */
static void differ_work(struct comm *c)
{
    uint8_t data[8] = {0};
    struct err e = {0};
    if (!c->rank) {
        assert_int_equal(comm_send(c, 1, data, 8, &e), -1);
        return;
    }
    assert_int_equal(comm_recv(c, 0, data, 4, &e), -1);
    assert_non_null(strstr(e.text, "sent 8 bytes"));
    comm_abort(c, e.text);
}

static void test_sizes_that_differ(void **state)
{
    (void)state;
    on_ranks(2, differ_work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_abort),
                                       cmocka_unit_test(test_sizes_that_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
