/* How likely the tokens of a prompt are: as its rows say, in whatever chunks it is read, beside others, put back and read
 * again. */
#include "test.h"

#include "run/engine.h"
#include "run/judge.h"

#include <math.h>

enum { REQUESTS = 8, PROMPT = 150, ANSWER = 20, TOPS = 3 };

struct scored {
    struct engine_request r;
    int32_t prompt[PROMPT + REQUESTS];
    struct stream *stream;
    int32_t ids[CTX];
    float logprobs[CTX];
    struct token_prob top[CTX][TOPS];
    size_t n, echoed;
    struct stream_chunk end;
};

static struct scored all[REQUESTS];

/* Pairs with the same beginning; one does not ask, one says nothing, and one has a single token. */
static void make(struct scored *s, uint32_t i)
{
    memset(s, 0, sizeof *s);
    for (uint32_t k = 0; k < PROMPT + i; k++)
        s->prompt[k] = 3 + (int32_t)((k * k * 7 + i / 2 * 13 + k) % 60);
    s->r = (struct engine_request){.prompt = s->prompt,
                                   .n = i == 6 ? 1 : PROMPT + i,
                                   .most = ANSWER,
                                   .ignore_eog = true,
                                   .logprobs = true,
                                   .echo = i != 3,
                                   .prompt_only = i == 4 || i == 6,
                                   .top_logprobs = TOPS};
    sampler_defaults(&s->r.sampler);
    s->r.sampler.temperature = 0;
}

static void read_all(struct scored *s)
{
    struct stream_chunk *news = &s->end;
    do {
        assert_true(stream_look(s->stream, -1, news));
        if (news->err.code)
            fail_msg("%s", news->err.text);
        memcpy(s->ids + s->n, news->ids, news->count * sizeof *s->ids);
        memcpy(s->logprobs + s->n, news->logprobs, news->count * sizeof *s->logprobs);
        memcpy(s->top + s->n, news->top, news->count * sizeof *s->top);
        s->n += news->count;
        s->echoed += news->echoed;
    } while (!news->done);
    stream_close(s->stream);
}

static void check(const struct session *l, const struct scored *s)
{
    size_t prompt = s->r.echo ? s->r.n : 0;
    assert_int_equal(s->echoed, prompt);
    assert_int_equal(s->n, prompt + (s->r.prompt_only ? 0 : ANSWER));
    assert_int_equal(s->end.finish, FINISH_LENGTH);
    if (!s->r.echo)
        return;
    assert_memory_equal(s->ids, s->prompt, prompt * sizeof *s->ids);
    assert_true(isnan(s->logprobs[0]) && s->top[0][0].id < 0);
    judge(l, s->ids, (uint32_t)s->n);
    for (size_t i = 1; i < s->n; i++) {
        struct token_prob top[TOPS];
        const float *row = judged[i - 1];
        assert_true(s->logprobs[i] == (float)sampler_logprob(row, WIDTH, s->ids[i]));
        sampler_top(row, WIDTH, sampler_log_sum(row, WIDTH), TOPS, top);
        for (int k = 0; k < TOPS; k++)
            assert_true(s->top[i][k].id == top[k].id && s->top[i][k].logprob == top[k].logprob);
        assert_true(i < prompt || s->ids[i] == top[0].id); /* the answer is the best */
    }
}

static void prompts_are_scored(void **state)
{
    (void)state;
    static const struct runner_options settings[] = {
        {.seqs = 4, .chunk = 64, .outs = 64},
        {.seqs = 4, .chunk = 48, .outs = 5}, /* few results a step */
        {.seqs = 4, .chunk = 64, .outs = 24, .pages = 10},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct err e = {0};
        struct engine *g;
        struct engine_stats stats;
        struct session *l = open_judged(i % 2 ? "llama" : "gemma2", &settings[i]);
        struct engine_options o = {.queue = REQUESTS, .draft = 4, .draft_always = true, .guard = true};
        assert_int_equal(engine_open(&g, l, &o, &e), 0);
        for (uint32_t k = 0; k < REQUESTS; k++) {
            make(&all[k], k);
            if (engine_submit(g, &all[k].r, &all[k].stream, &e))
                fail_msg("%s", e.text);
        }
        for (uint32_t k = 0; k < REQUESTS; k++) {
            read_all(&all[k]);
            check(l, &all[k]);
            if (all[k].r.echo && !settings[i].pages)
                assert_int_equal(all[k].end.cached, 0);
        }
        engine_stats(g, &stats);
        assert_int_equal(stats.finished, REQUESTS);
        assert_true(!settings[i].pages || stats.preempted > 0);
        engine_close(g);
        assert_int_equal(l->runner->pages[0].unused, l->runner->pages[0].backed - 1);
        session_close(l);
    }
}

/* What is read in silence is there for whoever comes after. */
static void silence_warms(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct session *l = open_judged("llama", &(struct runner_options){.seqs = 2});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 4, .draft_always = true}, &e), 0);
    for (uint32_t k = 0; k < 2; k++) {
        make(&all[k], 3);
        all[k].r.prompt_only = !k;
        all[k].r.logprobs = false;
        all[k].r.top_logprobs = 0;
        struct stream_chunk news = {0};
        assert_int_equal(engine_submit(g, &all[k].r, &all[k].stream, &e), 0);
        for (size_t n = 0; !news.done; n += news.count) {
            assert_true(stream_look(all[k].stream, -1, &news));
            assert_true(k || !news.count);
        }
        assert_int_equal(news.cached, k ? all[k].r.n - 1 : 0);
        stream_close(all[k].stream);
    }
    all[0].r.echo = true;
    assert_int_equal(engine_submit(g, &all[0].r, &all[0].stream, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    engine_close(g);
    session_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(silence_warms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
