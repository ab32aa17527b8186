/* Models that keep state: a sequence continues from any place whose state is there, whoever has computed it, and whatever
 * is cut back, shared, evicted or read from disk, its results have the same bits. */
#include "test.h"

#include "base/log.h"
#include "device/split.h"
#include "run/engine.h"
#include "run/open.h"
#include "run/prefix.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 256, PAGE = RUNNER_PAGE, TEXTS = 4, SEQS = 4, MODELS = 7, VOCAB_MOST = 512 };

static uint64_t rng(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(rng(state) % n);
}

/* Moves every second layer to a second device. */
static void split(struct session *l)
{
    static const struct device_options plain = {.exact = true, .tier = "scalar", .threads = 1};
    struct err e = {0};
    struct runner *r = l->runner;
    struct split_devices of = {0};
    struct device *both;
    struct kv_config kv = {.type = r->kv_type, .page_tokens = PAGE, .states = r->states.count};
    for (uint32_t g = 0; g < r->plan->groups; g++)
        kv.pages[g] = r->pages[g].count;
    for (uint32_t i = 0; i < r->plan->count; i++)
        l->model->plan.ops[i].device = r->plan->ops[i].layer != UINT32_MAX && r->plan->ops[i].layer % 2;
    if (cpu_open(&of.main, &plain, &e) || cpu_open(&of.rest, &plain, &e) || split_open(&both, &of, &e) ||
        both->ops->load(both, &l->model->weights, NULL, NULL, &e) ||
        both->ops->prepare(both, r->plan, &kv, r->chunk, r->most_seqs, r->most_outs, &e))
        fail_msg("%s", e.text);
    r->device->ops->close(r->device);
    r->device = both;
}

struct family {
    const char *folder;
    bool split; /* between two devices */
};

static const struct family families[] = {
    {"falcon-h1", false}, {"falcon-h1", true}, {"qwen3-next", false}, {"lfm2", false},
    {"mamba2", false},    {"zamba2", false},   {"rwkv7", false},      {"recurrent-gemma", false}};
enum { FAMILIES = sizeof families / sizeof *families };

static struct session *open_family(const struct family *f, uint32_t pages, uint32_t snapshots)
{
    struct runner_options o = {.ctx = CTX, .seqs = SEQS, .pages = pages, .snapshots = snapshots, .outs = 32};
    o.kv_whole = true;
    o.device_options = (struct device_options){.exact = true, .tier = "scalar"};
    struct session *l = open_tiny(f->folder, &o);
    if (f->split)
        split(l);
    return l;
}

/* ---- texts, and the results of each of their tokens ---- */

static int32_t texts[TEXTS][CTX];
static float judged_all[MODELS][TEXTS][CTX][VOCAB_MOST], (*judged)[CTX][VOCAB_MOST];

/* Text i begins as the one before it does, for 40 * i tokens and some. */
static void make_texts(void)
{
    uint64_t s = 5;
    for (uint32_t i = 0; i < TEXTS; i++)
        for (uint32_t k = 0; k < CTX; k++)
            texts[i][k] = i && k < 40 * i + 7 ? texts[i - 1][k] : 3 + (int32_t)(rng(&s) % 60);
}

static const float *step(struct seq_rows *part)
{
    struct err e = {0};
    const float *results = NULL;
    if (runner_step(part->seq->runner, part, 1, &e) || !(results = runner_results(part->seq->runner, &e)))
        fail_msg("%s", e.text);
    return results;
}

/* Row by row, each text from the empty state; once for each model. */
static void judge(struct session *l)
{
    static char known[MODELS][256];
    struct err e = {0};
    uint32_t i = 0;
    while (i < MODELS && *known[i] && strcmp(known[i], l->store->path) != 0)
        i++;
    assert_true(i < MODELS);
    judged = judged_all[i];
    if (*known[i])
        return;
    snprintf(known[i], sizeof known[i], "%s", l->store->path);
    struct seq *s = seq_open(l->runner, &e);
    uint32_t width = l->model->plan.out_width;
    assert_true(s && width <= VOCAB_MOST && l->model->plan.states > 0);
    make_texts();
    for (i = 0; i < TEXTS; i++) {
        seq_truncate(s, 0);
        for (uint32_t k = 0; k < CTX; k++)
            memcpy(judged[i][k], step(&(struct seq_rows){.seq = s, .ids = &texts[i][k], .n = 1, .outs = 1}),
                   width * sizeof(float));
    }
    seq_close(s);
}

static void assert_judged(const struct seq *s, uint32_t text, const float *row)
{
    uint32_t width = s->runner->plan->out_width;
    if (memcmp(row, judged[text][s->len - 1], width * sizeof(float)) != 0)
        fail_msg("the result of token %u of text %u is not what it is alone", s->len - 1, text);
}

static void feed(struct seq *s, uint32_t text, uint32_t to)
{
    struct err e = {0};
    if (seq_feed(s, texts[text] + s->len, to - s->len, &e))
        fail_msg("%s", e.text);
    assert_judged(s, text, runner_results(s->runner, &e));
}

static uint32_t used(const struct session *l)
{
    return l->runner->states.count - 1 - l->runner->states.unused;
}

static void assert_all_back(struct session *l)
{
    assert_int_equal(l->runner->seqs, 0);
    assert_int_equal(used(l), 0);
    for (uint32_t g = 0; g < l->model->plan.groups; g++)
        assert_int_equal(l->runner->pages[g].unused, l->runner->pages[g].count - 1);
}

/* ---- sequences ---- */

/* A prompt in parts of any size; the state is overwritten in place. */
static void parts_are_whole(void **state)
{
    static const uint32_t parts[] = {1, 3, 31, 64, 100};
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct err e = {0};
        struct session *l = open_family(&families[f], 0, 0);
        struct seq *s = seq_open(l->runner, &e);
        judge(l);
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            for (seq_truncate(s, 0); s->len < CTX;) {
                feed(s, 0, s->len + parts[p] < CTX ? s->len + parts[p] : CTX);
                assert_int_equal(used(l), 1);
            }
        }
        seq_close(s);
        assert_all_back(l);
        session_close(l);
    }
}

/* Rows that are rejected: the sequence continues from any of those that it can be cut back to; else from the empty state. */
static void cut_back(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct err e = {0};
        struct session *l = open_family(&families[f], 0, 20);
        struct seq *s = seq_open(l->runner, &e);
        judge(l);
        feed(s, 0, 50);
        for (uint32_t keep = 0; keep <= 8; keep++) {
            uint32_t from = s->len;
            int32_t ids[9];
            for (uint32_t i = 0; i < 9; i++) /* right up to there, then wrong */
                ids[i] = texts[0][from + i] + (i > keep);
            const float *rows = step(&(struct seq_rows){.seq = s, .ids = ids, .n = 9, .outs = 9, .back = 8});
            uint32_t width = l->model->plan.out_width;
            for (uint32_t i = 0; i <= keep; i++)
                assert_memory_equal(rows + (size_t)i * width, judged[0][from + i], width * sizeof(float));
            assert_int_equal(used(l), 9);
            seq_truncate(s, from + keep + 1);
            assert_int_equal(s->len, from + keep + 1);
            feed(s, 0, s->len + 1);
            assert_int_equal(used(l), 1);
        }
        seq_truncate(s, s->len - 1);
        assert_int_equal(s->len, 0);
        /* a draft model goes on token by token, and is cut back to any of them */
        feed(s, 0, 40);
        for (uint32_t i = 0; i < 6; i++)
            step(&(struct seq_rows){.seq = s,
                                    .ids = texts[1] + s->len,
                                    .n = 1,
                                    .outs = 1,
                                    .hold = i > 0}); /* text 1 parts at 47 */
        assert_int_equal(used(l), 6);
        seq_truncate(s, 43);
        assert_int_equal(s->len, 43);
        feed(s, 0, 60);
        assert_int_equal(used(l), 1);
        seq_close(s);
        assert_all_back(l);
        session_close(l);
    }
}

/* Without a free slot a step fails, and no sequence changes. */
static void out_of_slots(void **state)
{
    (void)state;
    struct err e = {0};
    struct session *l = open_family(&families[0], 0, 0);
    struct seq *s = seq_open(l->runner, &e);
    judge(l);
    feed(s, 0, 40);
    struct seq_rows part = {.seq = s, .ids = texts[0] + 40, .n = 8, .outs = 1, .back = 7};
    assert_int_equal(seq_need_states(&part), 7);
    assert_int_equal(runner_step(l->runner, &part, 1, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_int_equal(used(l), 1);
    feed(s, 0, 50);
    seq_close(s);
    assert_all_back(l);
    session_close(l);
}

/* ---- the prefix tree ---- */

struct fixture {
    struct session *l;
    struct prefix *t;
    struct seq *s[SEQS];
};

static char cache[] = "/tmp/quern-state-XXXXXX";

static void open_cached(struct fixture *f, const struct family *of, uint32_t pages, uint32_t snapshots,
                        const struct engine_options *o)
{
    struct err e = {0};
    struct prefix_disk *disk;
    f->l = open_family(of, pages, snapshots);
    judge(f->l);
    for (uint32_t i = 0; i < SEQS; i++)
        f->s[i] = seq_open(f->l->runner, &e);
    assert_int_equal(engine_open_disk(&disk, f->l, o, &e), 0);
    assert_int_equal(prefix_open(&f->t, f->l->runner, 64, disk, &e), 0);
}

static void open_fixture(struct fixture *f, const struct family *of, uint32_t pages, uint32_t snapshots)
{
    open_cached(f, of, pages, snapshots, &(struct engine_options){0});
}

static void close_fixture(struct fixture *f)
{
    for (uint32_t i = 0; i < SEQS; i++)
        seq_close(f->s[i]);
    prefix_close(f->t);
    assert_all_back(f->l);
    session_close(f->l);
}

static uint64_t snapshots(const struct fixture *f)
{
    struct prefix_stats stats;
    prefix_stats(f->t, &stats);
    return stats.snapshots;
}

/* Reads text up to `to`, with snapshots at these positions. */
static void read_to(struct seq *s, uint32_t text, uint32_t to, const uint32_t *snap, uint32_t snaps)
{
    assert_judged(s, text,
                  step(&(struct seq_rows){.seq = s,
                                          .ids = texts[text] + s->len,
                                          .n = to - s->len,
                                          .outs = 1,
                                          .snap = snap,
                                          .snaps = snaps}));
}

/* A match ends at a snapshot: within a page or at its end, of this text or of one that parts later. */
static void matches_end_at_snapshots(void **state)
{
    static const uint32_t at[] = {20, 64, 90};
    (void)state;
    for (size_t k = 0; k < FAMILIES; k++) {
        struct fixture f;
        open_fixture(&f, &families[k], 0, 20);
        read_to(f.s[0], 0, 100, at, 3);
        assert_int_equal(used(f.l), 4);
        prefix_insert(f.t, 0, f.s[0], 96); /* whole pages: what is in them */
        assert_int_equal(snapshots(&f), 3);
        assert_int_equal(prefix_match(f.t, 0, f.s[1], texts[0], 200), 90);
        assert_int_equal(prefix_known(f.t), 96);
        feed(f.s[1], 0, 120);
        assert_int_equal(prefix_match(f.t, 0, f.s[2], texts[0], 89), 64);
        feed(f.s[2], 0, 70);
        assert_int_equal(prefix_match(f.t, 0, f.s[3], texts[1], 200), 20); /* it parts at 47 */
        assert_int_equal(prefix_known(f.t), 47);
        feed(f.s[3], 1, 150);
        prefix_insert(f.t, 0, f.s[3], 150);
        seq_truncate(f.s[3], 0);
        assert_int_equal(prefix_match(f.t, 1, f.s[3], texts[0], 200), 0); /* another salt */
        assert_int_equal(prefix_match(f.t, 0, f.s[3], texts[1], 200), 20);
        /* the state after all tokens, within a page: also when more of the page is added */
        seq_want_snapshot(f.s[0]);
        prefix_insert(f.t, 0, f.s[0], f.s[0]->len);
        seq_truncate(f.s[2], 0);
        assert_int_equal(prefix_match(f.t, 0, f.s[2], texts[0], 200), 100);
        feed(f.s[2], 0, 101);
        feed(f.s[0], 0, 128); /* its slot is shared: it writes to another one */
        prefix_insert(f.t, 0, f.s[0], 128);
        seq_truncate(f.s[2], 0);
        assert_int_equal(prefix_match(f.t, 0, f.s[2], texts[0], 200), 100);
        feed(f.s[2], 0, 130);
        close_fixture(&f);
    }
}

static bool has(struct fixture *f, uint32_t text, uint32_t at)
{
    seq_truncate(f->s[3], 0);
    bool found = prefix_match(f->t, 0, f->s[3], texts[text], at) == at;
    seq_truncate(f->s[3], 0);
    return found;
}

/* What costs the least to compute again goes first; nodes without a snapshot after them go, too. */
static void evicts_what_costs_least(void **state)
{
    static const uint32_t at[] = {64, 70, 128, 192};
    (void)state;
    for (size_t k = 0; k < FAMILIES; k++) {
        struct fixture f;
        struct prefix_stats stats;
        open_fixture(&f, &families[k], 0, 20);
        read_to(f.s[0], 0, 200, at, 4);
        prefix_insert(f.t, 0, f.s[0], 200);
        seq_truncate(f.s[0], 0);
        assert_int_equal(snapshots(&f), 4);
        assert_int_equal(used(f.l), 4);
        struct page_need need = {.states = f.l->runner->states.count - 4};
        assert_true(prefix_make_room(f.t, &need));
        assert_int_equal(snapshots(&f), 3);
        assert_false(has(&f, 0, 70));
        assert_true(has(&f, 0, 64) && has(&f, 0, 128) && has(&f, 0, 192));
        need.states = f.l->runner->states.count - 1;
        assert_true(prefix_make_room(f.t, &need));
        prefix_stats(f.t, &stats);
        assert_int_equal(stats.snapshots, 0);
        assert_int_equal(stats.evicted_snapshots, 4);
        assert_true(!has(&f, 0, 64));
        for (uint32_t g = 0; g < f.l->model->plan.groups; g++)
            assert_int_equal(f.l->runner->pages[g].unused, f.l->runner->pages[g].count - 1);
        /* the tree has no more than it may, and the newest ones */
        prefix_clear(f.t);
        prefix_limit(f.t, 2);
        read_to(f.s[0], 0, 200, at, 4);
        prefix_insert(f.t, 0, f.s[0], 200);
        assert_int_equal(snapshots(&f), 2);
        assert_true(has(&f, 0, 192));
        close_fixture(&f);
    }
}

/* Anything in any order, with many slots and with few: every result has the bits that it has alone. */
static void random_operations_of(const struct family *of, uint32_t pages, uint32_t slots, uint64_t seed,
                                 const char *on_disk)
{
    struct fixture f;
    uint32_t text[SEQS] = {0}, continued = 0;
    open_cached(&f, of, pages, slots, &(struct engine_options){.cache_dir = on_disk, .cache_bytes = 4 << 20});
    prefix_limit(f.t, SEQS + slots - 1);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t k = below(&seed, SEQS), n = 1 + below(&seed, 40), snap[4];
        struct seq *s = f.s[k];
        switch (below(&seed, 8)) {
        case 0:
            seq_truncate(s, 0);
            text[k] = below(&seed, TEXTS);
            continued += prefix_match(f.t, 0, s, texts[text[k]], below(&seed, CTX)) > 0;
            break;
        case 1:
            if (below(&seed, 2))
                seq_want_snapshot(s);
            prefix_insert(f.t, 0, s, below(&seed, 3) ? s->len : s->len / PAGE * PAGE);
            break;
        case 2:
            if (s->len % PAGE == 0)
                prefix_match(f.t, 0, s, texts[text[k]], CTX - 1);
            break;
        case 3:
            seq_truncate(s, s->len - below(&seed, s->len < 9 ? s->len + 1 : 9));
            break;
        default:
            if (s->len + n > CTX)
                seq_truncate(s, 0);
            for (uint32_t j = 0; j < 4; j++)
                snap[j] = s->len + 1 + below(&seed, n);
            struct seq_rows part = {.seq = s,
                                    .ids = texts[text[k]] + s->len,
                                    .n = n,
                                    .outs = 1,
                                    .back = below(&seed, 3) ? 0 : below(&seed, 5),
                                    .hold = s->states < 20 && !below(&seed, 4),
                                    .snap = snap,
                                    .snaps = below(&seed, 5)};
            struct page_need need = {.states = seq_need_states(&part)};
            for (uint32_t g = 0; g < f.l->model->plan.groups; g++)
                need.of[g] = seq_need(s, n);
            if (prefix_make_room(f.t, &need))
                assert_judged(s, text[k], step(&part));
            else /* the others have all of it */
                seq_truncate(f.s[below(&seed, SEQS)], 0);
        }
    }
    assert_true(continued > 10);
    close_fixture(&f);
}

static void random_operations(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        random_operations_of(&families[f], 12, 40, 2, NULL);
        random_operations_of(&families[f], 0, 1, 3, NULL);
    }
}

/* ---- the disk ---- */

static uint32_t each_file(void (*visit)(const char *path))
{
    DIR *d = opendir(cache);
    uint32_t n = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", cache, f->d_name);
        if (f->d_name[0] == '.')
            continue;
        visit(path);
        n++;
    }
    closedir(d);
    return n;
}

static void remove_one(const char *path)
{
    unlink(path);
}

/* Another bit in the middle: in the pages or in the state. */
static void damage_one(const char *path)
{
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    off_t at = lseek(fd, 0, SEEK_END) / 2;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* The longest beginning of a text's first `of` tokens that is found, which a sequence then continues. */
static uint32_t found(struct fixture *f, uint32_t text, uint32_t of)
{
    seq_truncate(f->s[0], 0);
    uint32_t n = prefix_match(f->t, 0, f->s[0], texts[text], of);
    feed(f->s[0], text, of + 5);
    return n;
}

/* A later process finds the snapshots of one that has ended: at the end of a page and within one. */
static void restarts(void **state)
{
    static const uint32_t at[] = {20, 64, 90, 150};
    const struct engine_options o = {.cache_dir = cache};
    (void)state;
    assert_non_null(mkdtemp(cache));
    for (size_t k = 0; k < FAMILIES; k++) {
        struct fixture f;
        struct prefix_stats stats;
        each_file(remove_one);
        open_cached(&f, &families[k], 0, 20, &o);
        read_to(f.s[0], 0, 200, at, 4);
        seq_want_snapshot(f.s[0]);
        prefix_insert(f.t, 0, f.s[0], 200);
        close_fixture(&f);
        for (int again = 0; again < 2; again++) { /* the second time with few slots and pages */
            open_cached(&f, &families[k], again ? 16 : 0, again ? 1 : 20, &o);
            prefix_budget(f.t, -1);
            assert_int_equal(prefix_match(f.t, 0, f.s[1], texts[0], 240), 0);
            assert_true(prefix_has_more(f.t));
            prefix_budget(f.t, INFINITY);
            assert_int_equal(prefix_match(f.t, 0, f.s[1], texts[0], 240), 200);
            seq_truncate(f.s[1], 0);
            assert_int_equal(found(&f, 0, 199), 150);
            assert_int_equal(found(&f, 0, 149), 90);
            assert_int_equal(found(&f, 0, 89), 64);
            assert_int_equal(found(&f, 0, 63), 20);
            assert_int_equal(found(&f, 1, 200), 20);
            assert_int_equal(found(&f, 0, 240), 200);
            assert_int_equal(prefix_match(f.t, 1, f.s[1], texts[0], 240), 0); /* another salt */
            prefix_stats(f.t, &stats);
            assert_int_equal(stats.disk.damaged, 0);
            close_fixture(&f);
        }
        assert_true(each_file(damage_one) > 5);
        open_cached(&f, &families[k], 0, 20, &o);
        assert_int_equal(found(&f, 0, 240), 0);
        prefix_stats(f.t, &stats);
        assert_true(stats.disk.damaged > 0);
        close_fixture(&f);
        each_file(remove_one);
        random_operations_of(&families[k], 12, 3, 5, cache);
    }
    each_file(remove_one);
    rmdir(cache);
}

struct limit {
    uint64_t now, most;
};

static bool limit_resize(void *arg, uint64_t from, uint64_t to)
{
    struct limit *l = arg;
    assert_int_equal(l->now, from);
    bool grants = to <= from || to <= l->most;
    l->now = grants ? to : from;
    return grants;
}

/* Slots take memory as sequences and snapshots need them, and return it. Without memory there are fewer snapshots. */
static void slots_by_need(void **state)
{
    static const uint32_t at[] = {32, 64, 96, 128, 160};
    (void)state;
    struct runner_options o = {.ctx = CTX, .seqs = SEQS, .snapshots = 20, .outs = 32};
    o.device_options = (struct device_options){.exact = true, .tier = "scalar"};
    struct session *l = open_tiny("mamba2", &o); /* without pages */
    struct runner *r = l->runner;
    struct device_memory m;
    struct err e = {0};
    judge(l);
    runner_shrink(r);
    const uint64_t slot = runner_held_bytes(r) / RUNNER_STATES_LEAST;
    struct limit limit = {.now = RUNNER_STATES_LEAST * slot, .most = 5 * slot};
    assert_true(slot >= runner_state_bytes(r->plan) && r->states.count > 20);
    r->resize = limit_resize;
    r->resize_arg = &limit;
    struct seq *s = seq_open(r, &e);
    read_to(s, 0, 40, at, 1);
    assert_int_equal(limit.now, RUNNER_STATES_LEAST * slot);
    read_to(s, 0, 200, at + 1, 4); /* room for two of them */
    assert_int_equal(limit.now, 5 * slot);
    assert_true(s->states >= 3 && s->states <= 4);
    r->device->ops->memory(r->device, &m);
    assert_int_equal(m.kv, limit.now);
    limit.most = 100 * slot;
    r->grow_after = 0;
    seq_truncate(s, 0);
    read_to(s, 1, 200, at, 5);
    assert_int_equal(s->states, 6);
    assert_true(limit.now >= 7 * slot);
    seq_close(s);
    runner_shrink(r);
    assert_int_equal(limit.now, RUNNER_STATES_LEAST * slot);
    r->device->ops->memory(r->device, &m);
    assert_int_equal(m.kv, limit.now);
    session_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_whole),
        cmocka_unit_test(cut_back),
        cmocka_unit_test(out_of_slots),
        cmocka_unit_test(matches_end_at_snapshots),
        cmocka_unit_test(evicts_what_costs_least),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(restarts),
        cmocka_unit_test(slots_by_need),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
