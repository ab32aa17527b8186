/* Adapters in the engine: mixed in one batch, each request gets what it gets alone, and nobody goes on from a
 * prefix that other adapters computed. */
#include "test.h"

#include "run/engine.h"
#include "run/open.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { REQUESTS = 24, MOST = 12, PROMPT = 70 };

static const char *const adapters[] = {"a=test/data/lora/llama", "b=test/data/lora/llama-q:0.5",
                                       "c=test/data/lora/llama-all"};
static const char *const asked[] = {"", "a", "b", "c", "a:0.25", "b,c:-1"};
enum { KINDS = sizeof asked / sizeof *asked };

static struct session *open_adapted(bool exact)
{
    struct err e = {0};
    struct store *store;
    struct session *l;
    struct session_options o = {.no_text = true, .lora = adapters, .loras = 3};
    o.runner = (struct runner_options){.ctx = 128, .seqs = 8, .kv_type = DTYPE_F16};
    o.runner.device_options.threads = 2;
    if (exact)
        o.runner.device_options = (struct device_options){.exact = true, .tier = "scalar", .threads = 2};
    if (store_open(&store, "test/data/arch/llama", &e) || session_open(&l, store, &o, &e))
        fail_msg("%s", e.text);
    return l;
}

/* All have the same beginning: what is shared must be shared among equals only. */
static void make_request(struct session *l, uint32_t i, int32_t prompt[PROMPT], struct engine_request *r)
{
    struct err e = {0};
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = 3 + (int32_t)((k * 7 + k * k + (k > 64 ? i : 0)) % 40);
    *r = (struct engine_request){.prompt = prompt, .n = PROMPT, .most = MOST, .ignore_eog = true};
    sampler_defaults(&r->sampler);
    r->sampler.temperature = 0;
    if (session_adapt(l, asked[i % KINDS], &r->lora, &e))
        fail_msg("%s", e.text);
}

/* In an engine of its own. */
static void alone(struct session *l, const struct engine_request *r, int32_t out[MOST])
{
    struct err e = {0};
    struct engine *g;
    struct stream *s;
    struct stream_chunk news;
    size_t n = 0;
    if (engine_open(&g, l, &(struct engine_options){.slots = 1}, &e) || engine_submit(g, r, &s, &e))
        fail_msg("%s", e.text);
    do {
        assert_true(stream_look(s, -1, &news));
        assert_true(n + news.count <= MOST);
        memcpy(out + n, news.ids, news.count * sizeof *out);
        n += news.count;
    } while (!news.done);
    assert_int_equal(n, MOST);
    stream_close(s);
    engine_close(g);
}

static void test_mixed_is_alone(void **state)
{
    (void)state;
    static int32_t prompt[REQUESTS][PROMPT], want[REQUESTS][MOST];
    struct engine_request r[REQUESTS];
    struct stream *s[REQUESTS];
    struct err e = {0};
    struct engine *g;
    struct session *l = open_adapted(true);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        make_request(l, i, prompt[i], &r[i]);
        alone(l, &r[i], want[i]);
    }
    uint32_t differ = 0;
    for (uint32_t i = 1; i < KINDS; i++)
        differ += memcmp(want[i], want[0], sizeof want[0]) != 0;
    assert_true(differ >= KINDS - 2); /* adapters do something */
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.queue = REQUESTS, .guard = true}, &e), 0);
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (engine_submit(g, &r[i], &s[i], &e))
            fail_msg("%s", e.text);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct stream_chunk news;
        size_t n = 0;
        do {
            assert_true(stream_look(s[i], -1, &news));
            assert_memory_equal(news.ids, want[i] + n, news.count * sizeof *news.ids);
            n += news.count;
        } while (!news.done);
        assert_int_equal(n, MOST);
        stream_close(s[i]);
    }
    struct engine_stats stats;
    engine_stats(g, &stats);
    assert_true(stats.cached_tokens > 0);
    engine_close(g);
    session_close(l);
}

static void test_names(void **state)
{
    (void)state;
    struct session *l = open_adapted(false);
    struct adapter_mix mix;
    struct err e = {0};
    assert_int_equal(session_adapt(l, "b,a:2", &mix, &e), 0);
    assert_int_equal(mix.count, 2);
    assert_int_equal(mix.id[0], 2);
    assert_true(mix.scale[0] == 0.5f && mix.id[1] == 1 && mix.scale[1] == 2.0f);
    assert_int_equal(session_adapt(l, NULL, &mix, &e), 0);
    assert_int_equal(mix.count, 0);
    assert_int_equal(session_adapt(l, "nobody", &mix, &e), -1);
    assert_non_null(strstr(e.text, "nobody"));
    e = (struct err){0};
    assert_int_equal(session_adapt(l, "a,b,c,a,b", &mix, &e), -1);
    /* what was computed with other adapters has another name */
    struct adapter_mix one, other;
    e = (struct err){0};
    assert_int_equal(session_adapt(l, "a", &one, &e) | session_adapt(l, "a:0.9", &other, &e), 0);
    assert_true(session_salt(l, &one, 7) != session_salt(l, &other, 7));
    assert_true(session_salt(l, &one, 7) != session_salt(l, &one, 8));
    assert_true(session_salt(l, &(struct adapter_mix){0}, 7) == 7);
    session_close(l);
}

/* ---- adapters that come and go ---- */

enum { COMING = 3, PLACES = 2, CLIENTS = 3, LOADERS = 2, LOADS = 60 };

/* By name: their files, what a request with each generates, and the prompt of all requests. */
static const char *const files[COMING] = {"test/data/lora/llama", "test/data/lora/llama-q",
                                          "test/data/lora/llama-all"};
static const char *const names[COMING] = {"a", "b", "c"};

struct coming {
    struct session *l;
    struct engine *g;
    int32_t want[COMING + 1][MOST], prompt[PROMPT];
    atomic_uint loads, drops, answers, seed;
    atomic_bool over;
};

static struct session *open_for_more(uint32_t rank, uint64_t bytes)
{
    struct err e = {0};
    struct store *store;
    struct session *l;
    struct session_options o = {
        .no_text = true, .lora_places = PLACES, .lora_rank = rank, .lora_bytes = bytes};
    o.runner = (struct runner_options){.ctx = 128, .seqs = 4, .device = "cpu"};
    o.runner.device_options = (struct device_options){.exact = true, .tier = "scalar", .threads = 1};
    if (store_open(&store, "test/data/arch/llama", &e) || session_open(&l, store, &o, &e))
        fail_msg("%s", e.text);
    return l;
}

/* Returns 0, or -1 where the adapter is not there. */
static int generate(struct coming *c, const char *which, int32_t out[MOST])
{
    struct engine_request r = {.prompt = c->prompt, .n = PROMPT, .most = MOST, .ignore_eog = true};
    struct err e = {0};
    struct stream *s;
    struct stream_chunk news;
    size_t n = 0;
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 0;
    if (session_adapt(c->l, which, &r.lora, &e) || engine_submit(c->g, &r, &s, &e))
        return -1;
    do {
        assert_true(stream_look(s, -1, &news));
        assert_int_equal(news.err.code, 0);
        memcpy(out + n, news.ids, news.count * sizeof *out);
        n += news.count;
    } while (!news.done);
    stream_close(s);
    assert_int_equal(n, MOST);
    return 0;
}

static int load(struct coming *c, const char *name, const char *path, struct err *e)
{
    return engine_load_adapter(
        c->g, &(struct adapter_source){.name = name, .path = path, .file = path, .scale = 1}, e);
}

static void open_coming(struct coming *c, struct session *l)
{
    struct err e = {0};
    uint32_t users;
    *c = (struct coming){.l = l};
    for (uint32_t k = 0; k < PROMPT; k++)
        c->prompt[k] = 3 + (int32_t)((k * 7 + k * k) % 40);
    if (engine_open(&c->g, l, &(struct engine_options){.queue = REQUESTS, .guard = true}, &e))
        fail_msg("%s", e.text);
    assert_int_equal(generate(c, "", c->want[COMING]), 0);
    for (uint32_t i = 0; i < COMING; i++) {
        if (load(c, names[i], files[i], &e) || generate(c, names[i], c->want[i]) ||
            engine_drop_adapter(c->g, names[i], &users, &e))
            fail_msg("%s", e.text);
        assert_int_equal(users, 0);
        assert_memory_not_equal(c->want[i], c->want[COMING], sizeof c->want[i]);
    }
}

static void close_coming(struct coming *c)
{
    struct session_adapter all[SESSION_ADAPTERS];
    for (bool taken = true; taken;) { /* dropped ones leave their places when nothing runs */
        uint32_t n = session_list_adapters(c->l, all);
        taken = false;
        for (uint32_t i = 0; i < n; i++)
            taken |= all[i].taken;
        sched_yield();
    }
    engine_close(c->g);
    session_close(c->l);
}

static void *client(void *arg)
{
    struct coming *c = arg;
    uint32_t random = atomic_fetch_add(&c->seed, 7919) + 1;
    while (!atomic_load(&c->over)) {
        int32_t got[MOST];
        random = random * 1664525 + 1013904223;
        uint32_t which = (random >> 16) % (COMING + 1);
        if (generate(c, which < COMING ? names[which] : "", got))
            continue;
        assert_memory_equal(got, c->want[which], sizeof got);
        atomic_fetch_add(&c->answers, 1);
    }
    return NULL;
}

static void *loader(void *arg)
{
    struct coming *c = arg;
    uint32_t random = atomic_fetch_add(&c->seed, 7919) + 1, users;
    while (atomic_load(&c->loads) < LOADS) {
        struct err e = {0};
        random = random * 1664525 + 1013904223;
        uint32_t which = (random >> 16) % COMING;
        if (random >> 31) {
            if (!load(c, names[which], files[which], &e))
                atomic_fetch_add(&c->loads, 1);
            else /* the name or all places are taken */
                assert_true(e.code == ERR_USAGE || e.code == ERR_RESOURCE);
        } else
            atomic_fetch_add(&c->drops, !engine_drop_adapter(c->g, names[which], &users, &e));
    }
    return NULL;
}

static void test_come_and_go(void **state)
{
    (void)state;
    static struct coming c;
    pthread_t clients[CLIENTS], loaders[LOADERS];
    open_coming(&c, open_for_more(64, 1 << 30));
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, client, &c), 0);
    for (int i = 0; i < LOADERS; i++)
        assert_int_equal(pthread_create(&loaders[i], NULL, loader, &c), 0);
    for (int i = 0; i < LOADERS; i++)
        pthread_join(loaders[i], NULL);
    atomic_store(&c.over, true);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    assert_true(atomic_load(&c.loads) >= LOADS && atomic_load(&c.answers) > 0);
    for (int i = 0; i < COMING; i++) {
        struct err e = {0};
        uint32_t users;
        engine_drop_adapter(c.g, names[i], &users, &e);
    }
    close_coming(&c);
}

/* A running request keeps its adapter, whose name is free at once; pages of the old file are not used for the new one. */
static void test_kept_while_used(void **state)
{
    (void)state;
    static struct coming c;
    struct err e = {0};
    uint32_t users;
    int32_t got[MOST];
    open_coming(&c, open_for_more(64, 1 << 30));
    for (uint32_t i = 0; i < 2 * COMING; i++) {
        struct adapter_mix old;
        if (load(&c, "same", files[i % COMING], &e))
            fail_msg("%s", e.text);
        assert_int_equal(generate(&c, "same", got), 0);
        assert_memory_equal(got, c.want[i % COMING], sizeof got);
        /* held as a request holds it */
        assert_int_equal(session_adapt(c.l, "same", &old, &e) | session_hold(c.l, &old, &e), 0);
        assert_int_equal(engine_drop_adapter(c.g, "same", &users, &e), 0);
        assert_int_equal(users, 1);
        assert_int_equal(session_adapt(c.l, "same", &(struct adapter_mix){0}, &e), -1);
        assert_int_equal(generate(&c, "", got), 0); /* the engine had time to take it away */
        assert_non_null(c.l->model->lora[old.id[0]]);
        session_release(c.l, &old);
        e = (struct err){0};
    }
    close_coming(&c);
}

static void test_refused(void **state)
{
    (void)state;
    static struct coming c;
    const struct {
        const char *name, *path, *says;
    } bad[] = {{"x", "test/data/lora/gpt2", "is expected"},
               {"x", "test/data/lora/none", "open"},
               {"x", "test/data/arch/llama", "open"},
               {"a,b", files[0], "commas"},
               {"", files[0], "1 to 127 bytes"}};
    open_coming(&c, open_for_more(64, 1 << 30));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        assert_int_equal(load(&c, bad[i].name, bad[i].path, &e), -1);
        if (!strstr(e.text, bad[i].says))
            fail_msg("%s", e.text);
    }
    struct err e = {0};
    uint32_t users;
    assert_int_equal(load(&c, "a", files[0], &e) | load(&c, "b", files[1], &e), 0);
    assert_int_equal(load(&c, "a", files[1], &e), -1);
    assert_non_null(strstr(e.text, "already"));
    e = (struct err){0};
    assert_int_equal(load(&c, "c", files[2], &e), -1);
    assert_non_null(strstr(e.text, "2 places"));
    assert_int_equal(engine_drop_adapter(c.g, "c", &users, &e), -1);
    e = (struct err){0};
    assert_int_equal(engine_drop_adapter(c.g, "a", &users, &e) | engine_drop_adapter(c.g, "b", &users, &e),
                     0);
    close_coming(&c);
}

static void test_limits(void **state)
{
    (void)state;
    const struct {
        uint32_t rank;
        uint64_t bytes;
        const char *says;
    } limits[] = {{2, 1 << 30, "rank"}, {64, 1000, "room for 1000"}};
    for (size_t i = 0; i < 2; i++) {
        static struct coming c;
        struct err e = {0};
        c = (struct coming){.l = open_for_more(limits[i].rank, limits[i].bytes)};
        assert_int_equal(engine_open(&c.g, c.l, &(struct engine_options){0}, &e), 0);
        assert_int_equal(load(&c, "x", files[0], &e), -1);
        if (!strstr(e.text, limits[i].says))
            fail_msg("%s", e.text);
        close_coming(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_is_alone), cmocka_unit_test(test_names),
        cmocka_unit_test(test_come_and_go),    cmocka_unit_test(test_kept_while_used),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
