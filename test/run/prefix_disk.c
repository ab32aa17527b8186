/* The cache on disk: what one process computed another one finds, bit by bit; whatever happens to a file, and
 * whatever else differs, it is computed again. */
#include "test.h"

#include "base/log.h"
#include "run/engine.h"
#include "run/open.h"
#include "device/cpu/kernels.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CTX = 160, PAGE = RUNNER_PAGE, PROMPT = 4 * PAGE + 9 };

static char folder[] = "/tmp/quern-disk-XXXXXX";

/* The pages. A file that is still written has another name, and that is gone in a moment. */
static void each_file(void (*visit)(const char *path, void *arg), void *arg)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        size_t n = strlen(f->d_name);
        if (n > 3 && !strcmp(f->d_name + n - 3, ".kv"))
            visit(path, arg);
    }
    closedir(d);
}

static void remove_one(const char *path, void *arg)
{
    (void)arg;
    unlink(path);
}

static void count_one(const char *path, void *arg)
{
    struct stat st;
    size_t *sum = arg;
    assert_int_equal(stat(path, &st), 0);
    sum[0]++;
    sum[1] += (size_t)st.st_size;
}

static size_t files(size_t *bytes)
{
    size_t sum[2] = {0};
    each_file(count_one, sum);
    if (bytes)
        *bytes = sum[1];
    return sum[0];
}

struct setting {
    const char *model, *lora, *tier;
    uint32_t kv_type, pages, chunk;
    uint64_t salt, most;
};

struct one {
    struct session *l;
    struct prefix *t;
    struct seq *s;
    struct adapter_mix mix;
    uint64_t salt;
};

static void one_open(struct one *o, const struct setting *w)
{
    struct err e = {0};
    struct store *store;
    struct prefix_disk *disk;
    char path[128];
    struct session_options lo = {.no_text = true, .lora = &w->lora, .loras = w->lora != NULL};
    lo.runner = (struct runner_options){.ctx = CTX,
                                        .seqs = 1,
                                        .pages = w->pages,
                                        .chunk = w->chunk,
                                        .kv_type = w->kv_type ? w->kv_type : DTYPE_F16};
    lo.runner.device_options = (struct device_options){.tier = w->tier ? w->tier : "scalar", .threads = 1};
    snprintf(path, sizeof path, "test/data/arch/%s", w->model ? w->model : "gemma2");
    struct engine_options eo = {.cache_dir = folder, .cache_bytes = w->most};
    *o = (struct one){0};
    if (store_open(&store, path, &e) || session_open(&o->l, store, &lo, &e) ||
        engine_open_disk(&disk, o->l, &eo, &e) || prefix_open(&o->t, o->l->runner, 64, disk, &e) ||
        !(o->s = seq_open(o->l->runner, &e)) || (w->lora && session_adapt(o->l, "x", &o->mix, &e)))
        fail_msg("%s", e.text);
    o->s->lora = o->mix;
    o->salt = session_salt(o->l, &o->mix, w->salt);
}

static void one_close(struct one *o)
{
    seq_close(o->s);
    prefix_close(o->t);
    for (uint32_t g = 0; g < o->l->model->plan.groups; g++)
        assert_int_equal(o->l->runner->pages[g].unused, o->l->runner->pages[g].backed - 1);
    session_close(o->l);
}

static void prompt_of(int32_t ids[PROMPT], uint32_t seed)
{
    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)((i * i + seed * 11 + i) % 40);
}

/* The logits after the prompt, and how many tokens of it were found. */
static uint32_t ask(struct one *o, uint32_t seed, float *logits)
{
    struct err e = {0};
    int32_t ids[PROMPT];
    prompt_of(ids, seed);
    seq_truncate(o->s, 0);
    struct page_need need = {0};
    uint32_t known = prefix_match(o->t, o->salt, o->s, ids, PROMPT - 1);
    for (uint32_t g = 0; g < o->l->model->plan.groups; g++)
        need.of[g] = seq_need(o->s, PROMPT - known);
    assert_true(prefix_make_room(o->t, &need));
    if (seq_feed(o->s, ids + known, PROMPT - known, &e))
        fail_msg("%s", e.text);
    const float *got = runner_results(o->l->runner, &e);
    assert_non_null(got);
    if (logits)
        memcpy(logits, got, o->l->model->plan.out_width * sizeof *got);
    prefix_insert(o->t, o->salt, o->s, o->s->len);
    return known;
}

/* A process of its own, as far as the cache can tell. */
static uint32_t ask_fresh(const struct setting *w, uint32_t seed, float *logits)
{
    struct one o;
    one_open(&o, w);
    uint32_t known = ask(&o, seed, logits);
    one_close(&o);
    return known;
}

static const struct setting usual;
static float first[1 << 16], later[1 << 16];

static void assert_same_logits(void)
{
    assert_memory_equal(first, later, sizeof first);
}

static void restart(void **state)
{
    (void)state;
    each_file(remove_one, NULL);
    assert_int_equal(ask_fresh(&usual, 1, first), 0);
    assert_int_equal(files(NULL), PROMPT / PAGE);
    assert_int_equal(ask_fresh(&usual, 1, later), PROMPT / PAGE * PAGE);
    assert_same_logits();
    assert_int_equal(ask_fresh(&usual, 2, NULL), 0);
    assert_int_equal(files(NULL), 2 * (PROMPT / PAGE));
}

/* Where all layers see a window only, a text can be longer than all pages, and so can what is read from disk. */
static void windows(void **state)
{
    (void)state;
    const struct setting few = {.model = "mistral", .pages = 4, .chunk = PAGE};
    struct one o;
    struct err e = {0};
    int32_t ids[PROMPT];
    each_file(remove_one, NULL);
    assert_int_equal(ask_fresh(&(struct setting){.model = "mistral"}, 1, first), 0);
    assert_int_equal(ask_fresh(&few, 1, later), PROMPT / PAGE * PAGE);
    assert_same_logits();
    /* written while the pages of the beginning go */
    each_file(remove_one, NULL);
    one_open(&o, &few);
    prompt_of(ids, 1);
    for (uint32_t at = 0; at < PROMPT; at = o.s->len) {
        assert_true(prefix_make_room(o.t, &(struct page_need){.of[0] = 1}));
        if (seq_feed(o.s, ids + at, PROMPT - at < PAGE ? PROMPT - at : PAGE, &e))
            fail_msg("%s", e.text);
        prefix_insert(o.t, o.salt, o.s, o.s->len);
        prefix_save(o.t, true);
    }
    /* the tree has lost its pages of the beginning, and the disk has them */
    struct prefix_stats stats;
    seq_truncate(o.s, 0);
    while (prefix_save(o.t, true))
        ;
    while (files(NULL) < PROMPT / PAGE)
        ;
    prefix_stats(o.t, &stats);
    assert_true(stats.stripped > 0);
    prefix_budget(o.t, -1); /* no time for it now, but later */
    assert_int_equal(prefix_match(o.t, o.salt, o.s, ids, PAGE), 0);
    assert_true(prefix_has_more(o.t));
    prefix_budget(o.t, 1000);
    assert_int_equal(prefix_match(o.t, o.salt, o.s, ids, PAGE), PAGE);
    assert_false(prefix_has_more(o.t));
    assert_true(o.s->table[0][0] > 0);
    one_close(&o);
    assert_int_equal(files(NULL), PROMPT / PAGE);
    assert_int_equal(ask_fresh(&few, 1, later), PROMPT / PAGE * PAGE);
    assert_same_logits();
}

/* What else a page depends on. */
static void other_settings(void **state)
{
    (void)state;
    each_file(remove_one, NULL);
    const struct setting others[] = {{.salt = 1},
                                     {.kv_type = DTYPE_BF16},
                                     {.tier = kernels_tier(1)},
                                     {.model = "gemma"},
                                     {.model = "llama"},
                                     {.model = "llama", .lora = "x=test/data/lora/llama"},
                                     {.model = "llama", .lora = "x=test/data/lora/llama:0.5"},
                                     {.model = "llama", .lora = "x=test/data/lora/llama-q"}};
    ask_fresh(&usual, 1, NULL);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct err e = {0};
        if (others[i].tier && !kernels_get(others[i].tier, &e))
            continue;
        if (ask_fresh(&others[i], 1, first))
            fail_msg("setting %zu shares with others", i);
        assert_int_equal(ask_fresh(&others[i], 1, later), PROMPT / PAGE * PAGE);
        assert_same_logits();
    }
}

/* ---- damage ---- */

struct damage {
    long at; /* < 0: cut there, from the end */
    int bit;
};

static void damage_one(const char *path, void *arg)
{
    const struct damage *d = arg;
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    if (d->at < 0) {
        assert_int_equal(truncate(path, st.st_size > -d->at ? st.st_size + d->at : 0), 0);
        return;
    }
    long at = st.st_size ? d->at % (long)st.st_size : 0;
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0 && (pread(fd, &byte, 1, at) == 1 || !st.st_size));
    byte ^= (uint8_t)(1 << d->bit);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void damaged(void **state)
{
    (void)state;
    size_t bytes, count;
    each_file(remove_one, NULL);
    ask_fresh(&usual, 1, first);
    count = files(&bytes);
    long each = (long)(bytes / count);
    for (long at = -each - 1; at < each + 8;) {
        struct damage d = {.at = at, .bit = (int)((at * 5 + 40000) % 8)};
        each_file(damage_one, &d);
        assert_int_equal(ask_fresh(&usual, 1, later), 0);
        assert_same_logits();
        assert_int_equal(files(NULL), count);
        /* the head, the tokens, and some of all else */
        at += at < 0 ? 1997 : at < 72 + PROMPT * 4 ? 11 : 2003;
    }
    assert_int_equal(ask_fresh(&usual, 1, later), PROMPT / PAGE * PAGE);
    assert_same_logits();
}

/* The file of a prompt's first page. */
static void page_path(char path[512], const struct prefix_disk *d, uint32_t seed)
{
    int32_t ids[PROMPT];
    prompt_of(ids, seed);
    struct digest name = prefix_disk_name(d, prefix_disk_root(d, 0), ids, PAGE);
    snprintf(path, 512, "%s/%016llx%016llx.kv", folder, (unsigned long long)name.hi,
             (unsigned long long)name.lo);
}

/* Not a page at all: an empty file, a folder, a link, another one's page. */
static void strangers(void **state)
{
    (void)state;
    struct one o;
    char path[512], other[512];
    each_file(remove_one, NULL);
    one_open(&o, &usual);
    struct prefix_disk *d;
    struct err e = {0};
    struct engine_options eo = {.cache_dir = folder};
    assert_int_equal(engine_open_disk(&d, o.l, &eo, &e), 0);
    page_path(path, d, 1);
    page_path(other, d, 3);
    prefix_disk_close(d);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(ask(&o, 1, NULL), 0);
    rmdir(path);
    one_close(&o);
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_equal(ask_fresh(&usual, 1, NULL), 0);
    unlink(path);
    /* a page of other tokens under this name: whole, and not the one */
    ask_fresh(&usual, 3, NULL);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(ask_fresh(&usual, 1, later), 0);
    each_file(remove_one, NULL);
    ask_fresh(&usual, 1, first);
    assert_same_logits();
}

static void bounded(void **state)
{
    (void)state;
    size_t bytes, count;
    each_file(remove_one, NULL);
    ask_fresh(&usual, 1, NULL);
    count = files(&bytes);
    struct setting small = {.most = bytes * 3};
    for (uint32_t i = 2; i < 12; i++) {
        ask_fresh(&small, i, NULL);
        files(&bytes);
        assert_true(bytes <= small.most);
    }
    assert_true(files(NULL) >= 2 * count);
    assert_int_equal(ask_fresh(&small, 11, NULL), PROMPT / PAGE * PAGE); /* the latest is there */
    assert_int_equal(ask_fresh(&small, 1, NULL), 0);                     /* the oldest is not */
}

/* Where reading may take no time it says that there is more, and takes no beginning of a page meanwhile. */
static void budget(void **state)
{
    (void)state;
    struct one o;
    int32_t ids[PROMPT];
    each_file(remove_one, NULL);
    ask_fresh(&usual, 1, NULL);
    one_open(&o, &usual);
    prompt_of(ids, 1);
    prefix_budget(o.t, -1);
    assert_int_equal(prefix_match(o.t, o.salt, o.s, ids, PROMPT - 1), 0);
    assert_true(prefix_has_more(o.t));
    prefix_budget(o.t, 60);
    assert_int_equal(prefix_match(o.t, o.salt, o.s, ids, PROMPT - 1), PROMPT / PAGE * PAGE);
    assert_false(prefix_has_more(o.t));
    one_close(&o);
}

/* ---- two at once ---- */

static void *ask_many(void *arg)
{
    uint32_t seed = *(uint32_t *)arg;
    static _Thread_local float logits[1 << 16];
    for (uint32_t i = 0; i < 12; i++)
        ask_fresh(&usual, 20 + (i * 5 + seed) % 6, logits);
    return NULL;
}

static void two_at_once(void **state)
{
    (void)state;
    pthread_t t[2];
    uint32_t seed[2] = {0, 3};
    each_file(remove_one, NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, ask_many, &seed[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(files(NULL), 6 * (PROMPT / PAGE));
    for (uint32_t i = 20; i < 26; i++)
        assert_int_equal(ask_fresh(&usual, i, NULL), PROMPT / PAGE * PAGE);
}

/* ---- the engine ---- */

static void engine_ask(struct engine *g, uint32_t seed, int32_t out[8], uint32_t *cached)
{
    struct err e = {0};
    int32_t ids[PROMPT];
    struct stream *s;
    struct stream_chunk news;
    prompt_of(ids, seed);
    struct engine_request r = {.prompt = ids, .n = PROMPT, .most = 8, .ignore_eog = true};
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 0;
    if (engine_submit(g, &r, &s, &e))
        fail_msg("%s", e.text);
    size_t n = 0;
    do {
        assert_true(stream_look(s, -1, &news));
        memcpy(out + n, news.ids, news.count * sizeof *out);
        n += news.count;
    } while (!news.done);
    assert_int_equal(n, 8);
    *cached = news.cached;
    stream_close(s);
}

static void in_the_engine(void **state)
{
    (void)state;
    int32_t want[8], got[8];
    uint32_t cached;
    each_file(remove_one, NULL);
    for (int round = 0; round < 3; round++) {
        struct err e = {0};
        struct engine *g;
        struct session *l = open_tiny("gemma2", &(struct runner_options){.ctx = CTX, .seqs = 2});
        struct engine_options o = {.cache_dir = folder, .guard = true};
        assert_int_equal(engine_open(&g, l, &o, &e), 0);
        engine_ask(g, 1, round ? got : want, &cached);
        assert_int_equal(cached, round ? PROMPT / PAGE * PAGE : 0);
        if (round)
            assert_memory_equal(got, want, sizeof want);
        engine_close(g);
        session_close(l);
    }
}

/* Few pages: what was given up comes back from disk, or is computed again, and the answer stays the same. */
static void crowded(void **state)
{
    static const char *const models[] = {"gemma2", "mistral"};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        int32_t want[8], got[8];
        uint32_t cached, most = 0;
        each_file(remove_one, NULL);
        for (int round = 0; round < 3; round++) {
            struct err e = {0};
            struct engine *g;
            struct runner_options few = {.ctx = CTX, .seqs = 2, .pages = 8, .chunk = PAGE};
            struct session *l = open_tiny(models[m], &few);
            struct engine_options o = {.cache_dir = folder, .guard = true};
            assert_int_equal(engine_open(&g, l, &o, &e), 0);
            for (uint32_t i = 0; i < 12; i++) {
                uint32_t seed = i % 3 ? 2 + i % 4 : 1;
                engine_ask(g, seed, got, &cached);
                if (!round && !i)
                    memcpy(want, got, sizeof want);
                if (seed == 1)
                    assert_memory_equal(got, want, sizeof want);
                most = cached > most ? cached : most;
            }
            engine_close(g);
            session_close(l);
        }
        assert_true(most >= PROMPT / PAGE * PAGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart),     cmocka_unit_test(windows),   cmocka_unit_test(other_settings),
        cmocka_unit_test(damaged),     cmocka_unit_test(strangers), cmocka_unit_test(bounded),
        cmocka_unit_test(two_at_once), cmocka_unit_test(budget),    cmocka_unit_test(in_the_engine),
        cmocka_unit_test(crowded),
    };
    if (!mkdtemp(folder))
        return 1;
    log_set_level(LOG_ERROR);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    each_file(remove_one, NULL);
    rmdir(folder);
    return failed;
}
