/* The prefix tree: what it finds, what it keeps, what it gives up, and that every page comes back. */
#include "test.h"

#include "run/open.h"
#include "run/prefix.h"

#include <string.h>

enum { CTX = 256, PAGE = RUNNER_PAGE };

struct fixture {
    struct session *l;
    struct prefix *t;
    struct seq *a, *b;
};

static void open_family(struct fixture *f, const char *folder, uint32_t pages, uint32_t nodes)
{
    struct err e = {0};
    f->l =
        open_tiny(folder, &(struct runner_options){.ctx = CTX, .seqs = 2, .pages = pages, .kv_whole = true});
    f->a = seq_open(f->l->runner, &e);
    f->b = seq_open(f->l->runner, &e);
    assert_int_equal(prefix_open(&f->t, f->l->runner, nodes, NULL, &e), 0);
}

static void open_fixture(struct fixture *f, uint32_t pages, uint32_t nodes)
{
    open_family(f, "llama", pages, nodes);
}

static uint32_t used_of(const struct fixture *f, uint32_t g)
{
    const struct pages *p = &f->l->runner->pages[g];
    return p->backed - 1 - p->unused;
}

static uint32_t used(const struct fixture *f)
{
    return used_of(f, 0);
}

/* Asks for so many pages more than are free in every group; how many nodes went. */
static uint64_t evict(struct fixture *f, uint32_t pages)
{
    struct prefix_stats before, after;
    struct page_need need = {0};
    for (uint32_t g = 0; g < f->l->model->plan.groups; g++)
        need.of[g] = f->l->runner->pages[g].unused + pages;
    prefix_stats(f->t, &before);
    prefix_make_room(f->t, &need);
    prefix_stats(f->t, &after);
    return after.evicted - before.evicted;
}

static void close_fixture(struct fixture *f)
{
    seq_close(f->a);
    seq_close(f->b);
    prefix_close(f->t);
    for (uint32_t g = 0; g < f->l->model->plan.groups; g++)
        assert_int_equal(used_of(f, g), 0);
    session_close(f->l);
}

static void feed(struct seq *s, const int32_t *ids, uint32_t n)
{
    struct err e = {0};
    if (seq_feed(s, ids, n, &e))
        fail_msg("%s", e.text);
}

static void fill(int32_t *ids, uint32_t from, uint32_t n, uint32_t seed)
{
    for (uint32_t i = from; i < n; i++)
        ids[i] = (int32_t)((i * i + seed * 11 + i) % 64);
}

static void longest_beginning(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[CTX], other[CTX];
    open_fixture(&f, 0, 64);
    fill(ids, 0, CTX, 1);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 100), 0);
    feed(f.a, ids, 75);
    prefix_insert(f.t, 0, f.a, 75); /* two whole pages and 11 tokens */
    assert_int_equal(used(&f), 3);
    assert_int_equal(prefix_match(f.t, 1, f.b, ids, 100), 0); /* another salt */
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 100), 75);
    assert_memory_equal(f.b->ids, ids, 75 * sizeof *ids);
    assert_int_equal(used(&f), 3); /* stored once */
    seq_truncate(f.b, 0);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 70), 70); /* no more than is asked for */
    seq_truncate(f.b, 0);
    memcpy(other, ids, sizeof ids);
    fill(other, 40, CTX, 3); /* parts within the second page */
    uint32_t common = 0;
    while (ids[common] == other[common])
        common++;
    assert_int_equal(prefix_match(f.t, 0, f.b, other, 100), common);
    feed(f.b, other + common, 100 - common);
    assert_int_equal(used(&f), 3 + 3); /* the first page is shared */
    prefix_insert(f.t, 0, f.b, 100);
    seq_truncate(f.a, 0);
    seq_truncate(f.b, 0);
    assert_int_equal(used(&f), 6);
    assert_int_equal(prefix_match(f.t, 0, f.a, other, 101), 100);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 101), 75);
    close_fixture(&f);
}

/* A sequence that stands at the end of a page goes on with what others have computed meanwhile, and pages
 * that two have computed are kept once. */
static void catches_up_and_merges(void **state)
{
    (void)state;
    struct fixture f;
    struct prefix_stats stats;
    int32_t ids[CTX];
    open_fixture(&f, 0, 64);
    fill(ids, 0, CTX, 1);
    feed(f.a, ids, 2 * PAGE);
    feed(f.b, ids, 2 * PAGE);
    assert_int_equal(used(&f), 4);
    prefix_insert(f.t, 0, f.a, 2 * PAGE);
    prefix_insert(f.t, 0, f.b, 2 * PAGE);
    assert_int_equal(used(&f), 2);
    assert_memory_equal(f.a->table[0], f.b->table[0], 2 * sizeof **f.a->table);
    feed(f.a, ids + 2 * PAGE, 2 * PAGE);
    prefix_insert(f.t, 0, f.a, 4 * PAGE);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, CTX), 4 * PAGE);
    assert_int_equal(used(&f), 4);
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.nodes, 4);
    /* a beginning of a page makes way for more of it, and is not added to what has more */
    feed(f.a, ids + 4 * PAGE, 20);
    prefix_insert(f.t, 0, f.a, 4 * PAGE + 10);
    prefix_insert(f.t, 0, f.a, 4 * PAGE + 20);
    prefix_insert(f.t, 0, f.a, 4 * PAGE + 5);
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.nodes, 5);
    close_fixture(&f);
}

static void evicts_least_recent(void **state)
{
    (void)state;
    struct fixture f;
    struct prefix_stats stats;
    int32_t ids[3][CTX];
    open_fixture(&f, 16, 16);
    for (uint32_t i = 0; i < 3; i++) {
        fill(ids[i], 0, CTX, i + 1);
        feed(f.a, ids[i], 4 * PAGE);
        prefix_insert(f.t, 0, f.a, 4 * PAGE);
        seq_truncate(f.a, 0);
    }
    assert_int_equal(used(&f), 12);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids[0], 4 * PAGE), 4 * PAGE); /* used now */
    assert_int_equal(evict(&f, 5), 5);
    assert_int_equal(used(&f), 7);
    assert_int_equal(prefix_match(f.t, 0, f.a, ids[1], 4 * PAGE), 0);
    assert_int_equal(prefix_match(f.t, 0, f.a, ids[2], 4 * PAGE), 3 * PAGE); /* its end went, not its start */
    assert_int_equal(evict(&f, 100), 0);                                     /* all that is left is in use */
    seq_truncate(f.a, 0);
    seq_truncate(f.b, 0);
    assert_int_equal(evict(&f, 100), 7);
    assert_int_equal(used(&f), 0);
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.nodes, 0);
    assert_int_equal(stats.evicted, 12);
    feed(f.a, ids[0], 3 * PAGE);
    prefix_insert(f.t, 0, f.a, 3 * PAGE);
    prefix_clear(f.t); /* also what is in use; the sequence keeps its own */
    assert_int_equal(used(&f), 3);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids[0], 3 * PAGE), 0);
    close_fixture(&f);
}

static void few_nodes_forget(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[CTX];
    open_fixture(&f, 0, 3);
    for (uint32_t i = 0; i < 5; i++) {
        fill(ids, 0, CTX, i);
        feed(f.a, ids, 6 * PAGE);
        prefix_insert(f.t, 0, f.a, 6 * PAGE);
        assert_int_equal(used(&f), 6);
        seq_truncate(f.a, 0);
        assert_int_equal(used(&f), 3);
        assert_int_equal(prefix_match(f.t, 0, f.b, ids, CTX), 3 * PAGE);
        seq_truncate(f.b, 0);
    }
    close_fixture(&f);
}

/* ---- windows ---- */

/* The groups of a family with a window, and without. */
static uint32_t group_of(const struct fixture *f, bool window)
{
    uint32_t g = 0;
    while (!f->l->model->plan.group[g].window == window)
        g++;
    return g;
}

/* A sequence holds of a window's group only what the window reaches; the tree keeps the rest while there is room, gives it
 * up page by page, and what it lacks it gets again from whoever computes it. */
static void windows_give_up_pages(void **state)
{
    (void)state;
    struct fixture f;
    struct prefix_stats stats;
    int32_t ids[CTX];
    open_family(&f, "gemma2", 16, 64);
    uint32_t full = group_of(&f, false), window = group_of(&f, true);
    fill(ids, 0, CTX, 1);
    feed(f.a, ids, 4 * PAGE); /* in one step: all of its rows see something */
    assert_int_equal(used_of(&f, window), 4);
    prefix_insert(f.t, 0, f.a, 4 * PAGE);
    feed(f.a, ids + 4 * PAGE, PAGE);
    feed(f.a, ids + 5 * PAGE, 1);
    assert_int_equal(f.a->gone[full], 0);
    assert_int_equal(f.a->gone[window], 3); /* position 128 - 8 is in the fourth page */
    assert_int_equal(used_of(&f, full), 6);
    assert_int_equal(used_of(&f, window), 6); /* three of them are the tree's alone */
    seq_truncate(f.a, 4 * PAGE);              /* it has not gone on for longer than that */
    assert_int_equal(f.a->len, 4 * PAGE);
    /* three pages of the window's group are given up, and no node: from the end one can still go on */
    assert_int_equal(evict(&f, 0), 0);
    struct page_need need = {.of[0] = 0};
    need.of[window] = f.l->runner->pages[window].unused + 3;
    assert_true(prefix_make_room(f.t, &need));
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.stripped, 3);
    assert_int_equal(stats.nodes, 4);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 3 * PAGE), 0);
    assert_int_equal(used_of(&f, full), 4);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 4 * PAGE), 4 * PAGE);
    assert_int_equal(f.b->table[window][0] | f.b->table[window][1] | f.b->table[window][2], 0);
    seq_truncate(f.b, 4 * PAGE - 1); /* before its floor */
    assert_int_equal(f.b->len, 0);
    /* one that computes it again gives the tree what that lacks */
    feed(f.b, ids, 3 * PAGE);
    prefix_insert(f.t, 0, f.b, 3 * PAGE);
    seq_truncate(f.b, 0);
    assert_int_equal(used_of(&f, full), 4);
    assert_int_equal(used_of(&f, window), 4);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, 3 * PAGE), 3 * PAGE);
    close_fixture(&f);
}

/* Where every group has a window, a text can be longer than all pages; a leaf that lacks a page goes, and with it what
 * was kept for it alone. */
static void windows_only(void **state)
{
    (void)state;
    struct fixture f;
    struct prefix_stats stats;
    int32_t ids[CTX];
    open_family(&f, "mistral", 4, 64);
    fill(ids, 0, CTX, 1);
    for (uint32_t at = 0; at < CTX; at += PAGE) {
        feed(f.a, ids + at, PAGE);
        prefix_insert(f.t, 0, f.a, at + PAGE);
        assert_true(prefix_make_room(f.t, &(struct page_need){.of[0] = 1}));
    }
    assert_int_equal(f.a->len, CTX);
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.nodes, CTX / PAGE);
    seq_truncate(f.a, 0);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, CTX / 2), 0);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, CTX), CTX);
    seq_truncate(f.b, 0);
    assert_int_equal(evict(&f, 4), CTX / PAGE);
    prefix_stats(f.t, &stats);
    assert_int_equal(stats.nodes, 0);
    close_fixture(&f);
}

/* The tree goes on from where it followed a sequence to: unless that is another text by now, or the tree another one. */
static void follows_anew(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[CTX], other[CTX];
    open_fixture(&f, 0, 64);
    fill(ids, 0, CTX, 1);
    memcpy(other, ids, sizeof ids);
    fill(other, PAGE, CTX, 3);
    feed(f.a, ids, 3 * PAGE);
    prefix_insert(f.t, 0, f.a, 3 * PAGE);
    seq_truncate(f.a, PAGE + 5);
    assert_int_equal(f.a->mark.tokens, 0);
    seq_truncate(f.a, PAGE);
    feed(f.a, other + PAGE, 3 * PAGE);
    prefix_insert(f.t, 0, f.a, 4 * PAGE);
    assert_int_equal(f.a->mark.tokens, 4 * PAGE);
    assert_int_equal(prefix_match(f.t, 0, f.b, ids, CTX), 3 * PAGE);
    assert_int_equal(f.b->mark.tokens, 3 * PAGE);
    seq_truncate(f.b, 0);
    assert_int_equal(prefix_match(f.t, 0, f.b, other, CTX), 4 * PAGE);
    prefix_clear(f.t); /* the marks lead nowhere now */
    feed(f.b, other + 4 * PAGE, PAGE);
    prefix_insert(f.t, 0, f.b, 5 * PAGE);
    seq_truncate(f.a, 0);
    assert_int_equal(prefix_match(f.t, 0, f.a, other, CTX), 5 * PAGE);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longest_beginning),     cmocka_unit_test(catches_up_and_merges),
        cmocka_unit_test(evicts_least_recent),   cmocka_unit_test(few_nodes_forget),
        cmocka_unit_test(windows_give_up_pages), cmocka_unit_test(windows_only),
        cmocka_unit_test(follows_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
