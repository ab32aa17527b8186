/* Adapters in the engine: mixed in one batch, each request gets what it gets alone, and nobody goes on from a
 * prefix that other adapters computed. */
#include "test.h"

#include "run/engine.h"
#include "run/open.h"

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
static void make_request(const struct session *l, uint32_t i, int32_t prompt[PROMPT],
                         struct engine_request *r)
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixed_is_alone), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
