/* A device that chooses tokens itself: requests get the text that the host's sampler would have drawn, alone, batched,
 * with guesses and with penalties; and nobody looks at numbers that stay on the device. */
#include "test.h"

#include "base/mem.h"
#include "run/ahead.h"
#include "run/engine.h"
#include "run/open.h"

enum { CTX = 256, SLOTS = 8, REQUESTS = 48, PROMPT = 24, ANSWER = 24 };

static struct session *open_model(bool picks)
{
    struct session *l = open_tiny(
        "llama",
        &(struct runner_options){
            .ctx = CTX, .seqs = SLOTS, .outs = 64, .device_options = {.exact = true, .tier = "scalar"}});
    if (picks)
        ahead_begin(l);
    return l;
}

/* ---- while a step runs ---- */

static struct {
    struct engine *engine;
    struct engine_request request;
    struct stream *late; /* that has come while the first step ran */
    uint32_t waiting, running;
} busy;

static int busy_run(struct device *d, const struct plan *p, const struct step *s, struct err *e)
{
    mem_guard(false); /* this is a client's, on whatever thread */
    int failed = !busy.late && engine_submit(busy.engine, &busy.request, &busy.late, e);
    mem_guard(true);
    return failed ? -1 : ahead_run(d, p, s, e);
}

/* The step is done when somebody asks for what it chose. */
static const int32_t *busy_picks(struct device *d, struct err *e)
{
    struct engine_stats stats;
    engine_stats(busy.engine, &stats);
    busy.waiting = stats.waiting;
    busy.running = stats.running > busy.running ? stats.running : busy.running;
    return ahead_picks(d, e);
}

/* Rules of tokens, which are for the host: some requests have each, and all of them are held to. */
enum limits {
    CONSTRAINT_CACHE_NONE,
    CONSTRAINT_CACHE_ALLOWED,
    CONSTRAINT_CACHE_BANNED,
    CONSTRAINT_CACHE_LEAST
};
static const int32_t allowed[] = {4, 9, 11, 23, 42}, banned[] = {11, -1, 9, 4, -1}, stops[] = {4, 9, 11};

static enum limits rules_of(uint32_t i)
{
    return i % 12 < 3    ? CONSTRAINT_CACHE_NONE
           : i % 12 == 3 ? CONSTRAINT_CACHE_ALLOWED
           : i % 12 == 6 ? CONSTRAINT_CACHE_BANNED
           : i % 12 == 9 ? CONSTRAINT_CACHE_LEAST
                         : 0;
}

static void check_rules(const int32_t *ids, uint32_t i)
{
    for (uint32_t k = 0; k < ANSWER; k++) {
        bool in = false, stop = false;
        for (size_t m = 0; m < sizeof allowed / sizeof *allowed; m++)
            in |= ids[k] == allowed[m];
        for (size_t m = 0; m < sizeof stops / sizeof *stops; m++)
            stop |= ids[k] == stops[m];
        assert_true(in ||
                    (rules_of(i) != CONSTRAINT_CACHE_ALLOWED && rules_of(i) != CONSTRAINT_CACHE_BANNED));
        if (rules_of(i) == CONSTRAINT_CACHE_BANNED)
            assert_true(ids[k] != 11 && !(k && ids[k - 1] == 9 && ids[k] == 4));
        if (rules_of(i) == CONSTRAINT_CACHE_LEAST)
            assert_true(!stop);
    }
}

static const struct logit_bias ban[] = {{.id = 7, .bias = -INFINITY}};

static void make_request(struct engine_request *r, int32_t *prompt, uint32_t i)
{
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = 3 + (int32_t)((i % 3 * 17 + k * k * (i % 5 + 1)) % 60);
    *r = (struct engine_request){.prompt = prompt, .n = PROMPT, .most = ANSWER, .ignore_eog = true};
    struct sampler_params *p = &r->sampler;
    sampler_defaults(p);
    p->seed = 900 + i;
    p->temperature = i % 4 == 0 ? 0 : 0.5 + 0.3 * (i % 5);
    p->top_k = i % 3 == 0 ? 0 : 5 * (i % 7);
    p->top_p = i % 2 ? 1 : 0.6 + 0.01 * i / 2;
    p->min_p = i % 5 ? 0 : 0.1;
    p->repeat_penalty = i % 6 == 1 ? 1.3 : 1;
    p->presence_penalty = i % 6 == 2 ? 0.7 : 0;
    p->frequency_penalty = i % 6 == 3 ? 0.4 : 0;
    p->repeat_last_n = i % 2 ? -1 : 16;
    if (i % 11 == 5) /* for the host */
        p->typical_p = 0.9;
    if (i % 11 == 7) {
        p->bias = ban;
        p->biases = 1;
    }
    r->logprobs = i % 13 == 3;
    if (rules_of(i) == CONSTRAINT_CACHE_ALLOWED || rules_of(i) == CONSTRAINT_CACHE_BANNED)
        r->tokens =
            (struct token_rules){.allowed = allowed, .allowed_count = sizeof allowed / sizeof *allowed};
    if (rules_of(i) == CONSTRAINT_CACHE_BANNED) {
        r->tokens.banned = banned;
        r->tokens.banned_count = sizeof banned / sizeof *banned;
    }
    if (rules_of(i) == CONSTRAINT_CACHE_LEAST) /* no stop may come in all of it */
        r->tokens =
            (struct token_rules){.least = ANSWER, .stops = stops, .stop_count = sizeof stops / sizeof *stops};
}

struct said {
    int32_t ids[ANSWER];
    float logprobs[ANSWER];
};

static void ask_all(struct session *l, uint32_t draft, struct said *out)
{
    static int32_t prompt[REQUESTS][PROMPT];
    struct stream *s[REQUESTS];
    struct engine *g;
    struct err e = {0};
    struct engine_options o = {.slots = SLOTS, .queue = REQUESTS, .draft = draft, .guard = true};
    if (engine_open(&g, l, &o, &e))
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct engine_request r;
        make_request(&r, prompt[i], i);
        if (engine_submit(g, &r, &s[i], &e))
            fail_msg("%s", e.text);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct stream_chunk news;
        size_t n = 0;
        do {
            assert_true(stream_look(s[i], -1, &news));
            assert_true(n + news.count <= ANSWER);
            memcpy(out[i].ids + n, news.ids, news.count * sizeof *news.ids);
            if (news.logprobs)
                memcpy(out[i].logprobs + n, news.logprobs, news.count * sizeof *news.logprobs);
            n += news.count;
        } while (!news.done);
        if (news.err.code)
            fail_msg("request %u: %s", i, news.err.text);
        assert_int_equal(n, ANSWER);
        stream_close(s[i]);
    }
    engine_close(g);
}

static void same_text_from_the_device(void **state)
{
    (void)state;
    static struct said want[REQUESTS], got[REQUESTS];
    struct session *l = open_model(false);
    ask_all(l, 0, want);
    session_close(l);
    for (uint32_t i = 0; i < REQUESTS; i++)
        check_rules(want[i].ids, i);
    for (uint32_t draft = 0; draft <= 6; draft += 6) {
        memset(got, 0, sizeof got);
        l = open_model(true);
        ask_all(l, draft, got);
        session_close(l);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            assert_memory_equal(got[i].ids, want[i].ids, sizeof got[i].ids);
            assert_memory_equal(got[i].logprobs, want[i].logprobs, sizeof got[i].logprobs);
        }
        assert_true(ahead.chosen > REQUESTS * ANSWER / 2);
    }
}

/* Numbers that are none end a request with a sentence. */
static const int32_t *no_picks(struct device *d, struct err *e)
{
    int32_t *ids = (int32_t *)ahead_picks(d, e);
    for (uint32_t i = 0; i < AHEAD_OUTS; i++)
        ids[i] = -1;
    return ids;
}

static void numbers_that_are_none(void **state)
{
    (void)state;
    struct err e = {0};
    int32_t prompt[PROMPT];
    struct engine_request r;
    struct engine *g;
    struct stream *s;
    struct stream_chunk news;
    struct session *l = open_model(true);
    ahead.ops.picks = no_picks;
    make_request(&r, prompt, 0);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.slots = 2}, &e), 0);
    assert_int_equal(engine_submit(g, &r, &s, &e), 0);
    do
        stream_look(s, -1, &news);
    while (!news.done);
    assert_int_equal(news.err.code, ERR_DEVICE);
    assert_string_equal(news.err.text, "the model gave a logit that is not a finite number");
    stream_close(s);
    engine_close(g);
    session_close(l);
}

static void next_step_is_prepared(void **state)
{
    (void)state;
    struct err e = {0};
    int32_t prompt[PROMPT];
    struct stream *first;
    struct stream_chunk news;
    struct session *l = open_model(true);
    ahead.ops.run = busy_run;
    ahead.ops.picks = busy_picks;
    make_request(&busy.request, prompt, 0);
    struct engine_options o = {.slots = 2, .guard = true};
    struct engine_request one = busy.request;
    one.most = 1; /* it has but one step */
    assert_int_equal(engine_open(&busy.engine, l, &o, &e), 0);
    assert_int_equal(engine_submit(busy.engine, &one, &first, &e), 0);
    for (struct stream *s = first; s; s = s == first ? busy.late : NULL) {
        do
            assert_true(stream_look(s, -1, &news));
        while (!news.done);
        assert_int_equal(news.err.code, 0);
    }
    stream_close(first);
    stream_close(busy.late);
    engine_close(busy.engine);
    session_close(l);
    assert_int_equal(busy.running, 2); /* both, although the first ended with its first step */
    assert_int_equal(busy.waiting, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_from_the_device),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(next_step_is_prepared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
