/* Sequences and their pages: what a step takes and gives back, what is shared and copied, what is refused. */
#include "test.h"

#include "run/open.h"

#include "base/clock.h"

#include <string.h>
#include <unistd.h>

static const struct device_options plain = {.exact = true, .tier = "scalar"};

static uint32_t used(const struct session *l)
{
    return l->runner->pages[0].backed - 1 - l->runner->pages[0].unused;
}

static void fill(int32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * i + seed * 7 + i) % 64);
}

static void feed(struct seq *s, const int32_t *ids, uint32_t n)
{
    struct err e = {0};
    if (seq_feed(s, ids, n, &e))
        fail_msg("%s", e.text);
}

/* How many of these ids the sequence holds, from the start. */
static uint32_t common(const struct seq *s, const int32_t *ids, uint32_t n)
{
    uint32_t i = 0;
    while (i < s->len && i < n && s->ids[i] == ids[i])
        i++;
    return i;
}

static void pages_are_accounted(void **state)
{
    (void)state;
    struct err e = {0};
    int32_t ids[100];
    struct session *l =
        open_tiny("gemma2", &(struct runner_options){.ctx = 100, .seqs = 2, .device_options = plain});
    struct seq *s = seq_open(l->runner, &e);
    fill(ids, 100, 1);
    assert_int_equal(l->runner->pages[0].count - 1, 2 * 4);
    assert_int_equal(seq_need(s, 1), 1);
    assert_int_equal(seq_need(s, 33), 2);
    feed(s, ids, 33);
    assert_int_equal(used(l), 2);
    assert_int_equal(seq_need(s, 31), 0);
    assert_int_equal(seq_need(s, 32), 1);
    feed(s, ids + 33, 64);
    assert_int_equal(used(l), 4);
    assert_int_equal(s->len, 97);
    assert_int_equal(common(s, ids, 100), 97);
    ids[40] ^= 1;
    assert_int_equal(common(s, ids, 100), 40);
    seq_truncate(s, 64);
    assert_int_equal(used(l), 2);
    seq_truncate(s, 65); /* there is no more */
    assert_int_equal(s->len, 64);
    seq_truncate(s, 1);
    assert_int_equal(used(l), 1);
    seq_close(s);
    assert_int_equal(used(l), 0);
    session_close(l);
}

static void overflow_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    int32_t ids[100];
    fill(ids, 100, 1);
    struct session *l = open_tiny(
        "llama", &(struct runner_options){.ctx = 96, .seqs = 2, .pages = 3, .device_options = plain});
    struct seq *a = seq_open(l->runner, &e), *b = seq_open(l->runner, &e);
    assert_null(seq_open(l->runner, &e));
    assert_string_equal(e.text, "all 2 sequences are in use");
    e = (struct err){0};
    assert_int_equal(seq_feed(a, ids, 97, &e), -1);
    assert_string_equal(e.text, "97 tokens do not fit into the context of 96: 1 too many");
    feed(a, ids, 60);
    e = (struct err){0};
    struct seq_rows parts[] = {{.seq = b, .ids = ids, .n = 30, .outs = 1}, {.seq = a, .ids = ids, .n = 8}};
    assert_int_equal(runner_step(l->runner, parts, 2, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_string_equal(e.text, "out of KV pages: all 3 are in use");
    assert_int_equal(a->len, 60); /* nothing has changed */
    assert_int_equal(b->len, 0);
    assert_int_equal(used(l), 2);
    e = (struct err){0};
    parts[0].outs = 31;
    assert_int_equal(runner_step(l->runner, parts, 1, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    parts[0].outs = 1;
    e = (struct err){0};
    assert_int_equal(runner_step(l->runner, parts, 1, &e), 0);
    assert_int_equal(b->len, 30);
    seq_close(a);
    seq_close(b);
    assert_int_equal(used(l), 0);
    session_close(l);
}

/* Two sequences on the same, partly filled page: the one that writes gets a copy, and both go on as if
 * they had been alone. */
static void shared_page_is_copied(void **state)
{
    (void)state;
    static const char *const folders[] = {"llama", "gemma2", "deepseek-v2"};
    int32_t ids[48], other[48];
    fill(ids, 48, 1);
    memcpy(other, ids, sizeof ids);
    fill(other + 40, 8, 2);
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        struct err e = {0};
        struct session *l =
            open_tiny(folders[f], &(struct runner_options){.ctx = 96, .seqs = 2, .device_options = plain});
        uint32_t width = l->model->plan.out_width;
        float *want = malloc(2 * width * sizeof *want);
        struct seq *a = seq_open(l->runner, &e), *b = seq_open(l->runner, &e);
        feed(a, ids, 48);
        memcpy(want, runner_results(l->runner, &e), width * sizeof *want);
        feed(b, other, 48);
        memcpy(want + width, runner_results(l->runner, &e), width * sizeof *want);
        seq_truncate(a, 40);
        seq_truncate(b, 0);
        for (uint32_t g = 0; g < l->model->plan.groups; g++)
            for (uint32_t i = 0; i < 2; i++) {
                b->table[g][i] = a->table[g][i];
                pages_share(&l->runner->pages[g], a->table[g][i]);
            }
        memcpy(b->ids, ids, 40 * sizeof *ids);
        b->len = 40;
        assert_int_equal(used(l), 2);
        assert_int_equal(seq_need(b, 8), 1);
        feed(b, other + 40, 8);
        assert_memory_equal(runner_results(l->runner, &e), want + width, width * sizeof *want);
        assert_int_equal(used(l), 3);
        assert_int_equal(a->table[0][0], b->table[0][0]);
        assert_int_not_equal(a->table[0][1], b->table[0][1]);
        assert_int_equal(seq_need(a, 8), 0); /* it is alone on its page now */
        feed(a, ids + 40, 8);
        assert_memory_equal(runner_results(l->runner, &e), want, width * sizeof *want);
        seq_close(a);
        seq_close(b);
        assert_int_equal(used(l), 0);
        free(want);
        session_close(l);
    }
}

/* As many pages as there is memory for: for all sequences at most, for one at least; or as many as somebody asks for. */
static void pool_is_as_large_as_there_is_room(void **state)
{
    (void)state;
    struct runner_options o = {.ctx = 100, .seqs = 4, .device_options = plain};
    struct session *l = open_tiny("llama", &o);
    const uint64_t page = l->kv_bytes / 16;
    session_close(l);
    const struct {
        uint64_t asked;
        uint32_t pages;
    } rows[] = {{0, 16}, {3 * page, 3}, {40 * page, 40}, {1, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        o.kv_bytes = rows[i].asked;
        l = open_tiny("llama", &o);
        assert_int_equal(l->runner->pages[0].count - 1, rows[i].pages);
        assert_int_equal(l->kv_bytes, rows[i].pages * page);
        session_close(l);
    }
    o = (struct runner_options){.ctx = 640, .seqs = 4, .device_options = plain, .kv_bytes = 1 << 19};
    l = open_tiny("gemma2", &o); /* a window's pages count, too */
    assert_true(l->kv_bytes <= o.kv_bytes && l->kv_bytes > o.kv_bytes / 2);
    session_close(l);
}

/* What KV may hold; `now` follows what it holds. */
struct limit {
    uint64_t now, most;
};

static bool limit_resize(void *arg, uint64_t from, uint64_t to)
{
    struct limit *m = arg;
    assert_int_equal(m->now, from);
    m->now = to > m->most && to > from ? from : to;
    return m->now == to;
}

/* Pages take memory as sequences grow, as far as there is some, and return it. One sequence always fits. */
static void memory_follows_the_sequences(void **state)
{
    (void)state;
    struct err e = {0};
    int32_t ids[100];
    struct session *l =
        open_tiny("llama", &(struct runner_options){.ctx = 100, .seqs = 4, .device_options = plain});
    struct runner *r = l->runner;
    const uint64_t page = l->kv_bytes / 16;
    struct device_memory m;
    struct limit limit = {.now = runner_held_bytes(r), .most = 11 * page};
    r->resize = limit_resize;
    r->resize_arg = &limit;
    fill(ids, 100, 1);
    assert_int_equal(limit.now, 5 * page); /* page 0 and those of one sequence */
    struct seq *s[3];
    for (int i = 0; i < 3; i++)
        s[i] = seq_open(r, &e);
    feed(s[0], ids, 100);
    assert_int_equal(limit.now, 5 * page);
    feed(s[1], ids, 100);
    assert_true(limit.now >= 9 * page && limit.now <= 11 * page);
    assert_int_equal(seq_feed(s[2], ids, 100, &e), -1); /* eleven pages of memory, of which one is page 0 */
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_int_equal(s[2]->len, 0);
    r->device->ops->memory(r->device, &m);
    assert_int_equal(m.kv, limit.now);
    limit.most = 100 * page; /* others have left */
    r->grow_after = 0;
    feed(s[2], ids, 100);
    assert_true(limit.now >= 13 * page);
    /* the sequence in the middle ends: its pages are handed out again, and none is returned */
    seq_truncate(s[1], 0);
    runner_shrink(r);
    assert_int_equal(limit.now, 13 * page);
    feed(s[1], ids, 100);
    assert_true(s[1]->table[0][0] < s[2]->table[0][0]);
    seq_close(s[2]);
    runner_shrink(r);
    assert_int_equal(limit.now, 9 * page);
    r->device->ops->memory(r->device, &m);
    assert_int_equal(m.kv, 9 * page);
    seq_close(s[0]);
    seq_close(s[1]);
    runner_shrink(r);
    assert_int_equal(limit.now, 5 * page);
    session_close(l);
}

/* An eighth of the memory is left beside the weights, which may be there twice, KV and what others have pinned. */
static void weights_are_pinned_where_there_is_room(void **state)
{
    (void)state;
    const uint64_t gb = 1 << 30;
    struct runner_pins p = {.weights = 48 * gb, .memory = {.total = 128 * gb, .available = 120 * gb}};
    assert_int_equal(runner_pin_most(&p), 54 * gb);
    p.repacked = true; /* 48 + 48 + 16 of 120 */
    assert_int_equal(runner_pin_most(&p), 54 * gb);
    p.kv = 8 * gb - 1;
    assert_int_equal(runner_pin_most(&p), 54 * gb);
    p.kv = 8 * gb;
    assert_int_equal(runner_pin_most(&p), 0);
    p.kv = 0;
    p.pinned = 8 * gb;
    assert_int_equal(runner_pin_most(&p), 0);
    p.repacked = false;
    assert_int_equal(runner_pin_most(&p), 54 * gb);
    p.memory.available = 72 * gb;
    assert_int_equal(runner_pin_most(&p), 0);
}

static bool refuse_some(void *arg, uint64_t from, uint64_t to)
{
    int *left = arg;
    return to <= from || (*left)-- <= 0;
}

/* Memory that there was not is asked for again a moment later, also by who needs it all the time; less of it at once. */
static void memory_is_asked_for_again(void **state)
{
    (void)state;
    struct session *l = open_tiny("llama", &(struct runner_options){.ctx = 256, .seqs = 4});
    struct runner *r = l->runner;
    const uint32_t had = r->pages[0].backed;
    const struct page_need many = {.of = {had + 8}}, one = {.of = {had}};
    int left = 2; /* with some to spare, and without */
    r->resize = refuse_some;
    r->resize_arg = &left;
    runner_grow(r, &many);
    assert_int_equal(r->pages[0].backed, had);
    r->grow_after = clock_now() + 60; /* however slow this machine is */
    runner_grow(r, &one);
    assert_int_equal(r->pages[0].backed, had + 1);
    r->grow_after = clock_now() + 0.1;
    const double until = clock_now() + 2;
    for (; r->pages[0].backed < had + 9 && clock_now() < until; usleep(2000))
        runner_grow(r, &many);
    assert_true(r->pages[0].backed >= had + 9);
    session_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_accounted),
        cmocka_unit_test(overflow_is_refused),
        cmocka_unit_test(shared_page_is_copied),
        cmocka_unit_test(pool_is_as_large_as_there_is_room),
        cmocka_unit_test(memory_follows_the_sequences),
        cmocka_unit_test(memory_is_asked_for_again),
        cmocka_unit_test(weights_are_pinned_where_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
