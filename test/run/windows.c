/* Layers that see a window only: pages behind it are given back while a request runs, and nothing that it says is any
 * different. The judge is one pass over the whole text with every page in its place. */
#include "test.h"

#include "run/engine.h"
#include "run/judge.h"

#include <string.h>

enum { PROMPT = 100, ANSWER = 300 };

static const char *const families[] = {"gemma2",  "gemma3",    "mistral", "cohere2",
                                       "gpt-oss", "phi3-long", "llama4",  "gemma4-e"};
enum { FAMILIES = sizeof families / sizeof *families };

static struct session *open_family(const char *folder, uint32_t seqs, uint32_t pages)
{
    return open_judged(folder,
                       &(struct runner_options){.seqs = seqs, .chunk = 64, .outs = 32, .pages = pages});
}

static void fill(int32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 3 + (int32_t)((i * i * 7 + seed * 13 + i) % 60);
}

static int32_t best(const float *row)
{
    int32_t most = 0;
    for (int32_t i = 1; i < WIDTH; i++)
        most = row[i] > row[most] ? i : most;
    return most;
}

/* ---- sequences ---- */

static uint32_t held(const struct session *l, uint32_t g)
{
    return l->runner->pages[g].backed - 1 - l->runner->pages[g].unused;
}

static void steps_are_whole(void **state)
{
    static const uint32_t parts[] = {1, 7, 64, 3, 31, 33, 2, 64, 64, 1, 1, 60};
    (void)state;
    int32_t ids[CTX];
    fill(ids, CTX, 1);
    for (size_t f = 0; f < FAMILIES; f++) {
        struct err e = {0};
        struct session *l = open_family(families[f], 1, 0);
        struct seq *s = seq_open(l->runner, &e);
        judge(l, ids, CTX);
        for (uint32_t i = 0; s->len < CTX; i++) {
            uint32_t n = parts[i % (sizeof parts / sizeof *parts)];
            n = n < CTX - s->len ? n : CTX - s->len;
            if (seq_feed(s, ids + s->len, n, &e))
                fail_msg("%s: %s", families[f], e.text);
            assert_memory_equal(runner_results(l->runner, &e), judged[s->len - 1], sizeof *judged);
            for (uint32_t g = 0; g < l->model->plan.groups; g++) {
                uint32_t whole = (s->len + RUNNER_PAGE - 1) / RUNNER_PAGE;
                assert_int_equal(held(l, g), whole - s->gone[g]);
                if (l->model->plan.group[g].window)
                    assert_in_range(held(l, g), 1, runner_held_most(l->runner, g));
                else
                    assert_int_equal(s->gone[g], 0);
            }
        }
        seq_close(s);
        session_close(l);
    }
}

/* Cut back by as much as guesses may be wrong, and by more: then it is read again. */
static void cut_back(void **state)
{
    (void)state;
    int32_t ids[CTX];
    struct err e = {0};
    struct session *l = open_family("gemma3", 1, 0);
    struct seq *s = seq_open(l->runner, &e);
    fill(ids, CTX, 2);
    judge(l, ids, 400);
    assert_int_equal(seq_feed(s, ids, 300, &e), 0);
    for (uint32_t at = 300; at < 330; at++)
        assert_int_equal(seq_feed(s, ids + at, 1, &e), 0);
    seq_truncate(s, 330 - RUNNER_BACK);
    assert_int_equal(s->len, 330 - RUNNER_BACK);
    assert_int_equal(seq_feed(s, ids + s->len, 40, &e), 0);
    assert_memory_equal(runner_results(l->runner, &e), judged[s->len - 1], sizeof *judged);
    seq_truncate(s, 100);
    assert_int_equal(s->len, 0);
    assert_int_equal(seq_feed(s, ids, 400, &e), 0);
    assert_memory_equal(runner_results(l->runner, &e), judged[399], sizeof *judged);
    seq_close(s);
    for (uint32_t g = 0; g < l->model->plan.groups; g++)
        assert_int_equal(held(l, g), 0);
    session_close(l);
}

/* ---- requests ---- */

struct text {
    int32_t ids[CTX];
    uint32_t n, cached;
};

static struct stream *submit(struct engine *g, const int32_t *prompt, uint32_t n, uint32_t most)
{
    struct err e = {0};
    struct stream *s;
    struct engine_request r = {.prompt = prompt, .n = n, .most = most, .ignore_eog = true};
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 0;
    if (engine_submit(g, &r, &s, &e))
        fail_msg("%s", e.text);
    return s;
}

static void read_all(struct stream *s, struct text *t)
{
    struct stream_chunk news;
    do {
        assert_true(stream_look(s, -1, &news));
        memcpy(t->ids + t->n, news.ids, news.count * sizeof *t->ids);
        t->n += (uint32_t)news.count;
    } while (!news.done);
    if (news.err.code)
        fail_msg("%s", news.err.text);
    t->cached = news.cached;
    stream_close(s);
}

/* Every token after the first `from` is what the model says when it sees all of the text at once. */
static void assert_judged(const struct session *l, const struct text *t, uint32_t from)
{
    judge(l, t->ids, t->n);
    for (uint32_t i = from; i < t->n; i++)
        assert_int_equal(t->ids[i], best(judged[i - 1]));
}

static void close_all(struct engine *g, struct session *l)
{
    engine_close(g);
    for (uint32_t i = 0; i < l->model->plan.groups; i++)
        assert_int_equal(held(l, i), 0);
    session_close(l);
}

/* Two long requests have far fewer pages of windows than tokens, beside guesses, and none is put back. */
static void long_requests(void **state)
{
    (void)state;
    static struct text texts[2];
    for (size_t f = 0; f < FAMILIES; f++) {
        struct err e = {0};
        struct engine *g;
        struct engine_stats stats;
        struct stream *s[2];
        struct session *l = open_family(families[f], 2, 0);
        struct engine_options o = {.draft = f % 2 ? 4 : 0, .draft_always = true, .guard = true};
        assert_int_equal(engine_open(&g, l, &o, &e), 0);
        for (uint32_t i = 0; i < 2; i++) {
            fill(texts[i].ids, PROMPT, i);
            texts[i].n = PROMPT;
            s[i] = submit(g, texts[i].ids, PROMPT, ANSWER);
        }
        for (uint32_t i = 0; i < 2; i++) {
            read_all(s[i], &texts[i]);
            assert_int_equal(texts[i].n, PROMPT + ANSWER);
            assert_judged(l, &texts[i], PROMPT);
        }
        engine_stats(g, &stats);
        assert_in_range(stats.window_pages, 1, 20);
        assert_true(2 * (PROMPT + ANSWER) / RUNNER_PAGE > 20);
        assert_int_equal(stats.preempted, 0);
        assert_true(stats.prefix.stripped > 0);
        close_all(g, l);
    }
}

/* Whoever goes on from a text finds it, as long as the window before its end is there; without that all is read again. */
static void conversations_go_on(void **state)
{
    (void)state;
    static struct text talk, other;
    for (size_t f = 0; f < FAMILIES; f++) {
        struct err e = {0};
        struct engine *g;
        struct session *l = open_family(families[f], 2, 0);
        assert_int_equal(engine_open(&g, l, &(struct engine_options){.guard = true}, &e), 0);
        fill(talk.ids, talk.n = PROMPT, 5);
        for (uint32_t turn = 0; turn < 3; turn++) {
            uint32_t had = talk.n;
            read_all(submit(g, talk.ids, talk.n, 60), &talk);
            assert_int_equal(talk.cached, turn ? had - 13 - 1 : 0); /* the last token has never been read */
            assert_judged(l, &talk, had);
            fill(talk.ids + talk.n, 13, turn);
            talk.n += 13;
        }
        /* many others, until its windows have gone */
        for (uint32_t i = 0; i < 12; i++) {
            fill(other.ids, other.n = 200, 20 + i);
            read_all(submit(g, other.ids, other.n, 8), &other);
            assert_judged(l, &other, 200);
        }
        uint32_t had = talk.n;
        read_all(submit(g, talk.ids, talk.n, 40), &talk);
        assert_int_equal(talk.cached, 0);
        assert_judged(l, &talk, had);
        close_all(g, l);
    }
}

/* Fewer pages than the requests want: they take turns, and all is as it would be. */
static void few_pages(void **state)
{
    (void)state;
    static struct text texts[6];
    for (size_t f = 0; f < FAMILIES; f++)
        for (uint32_t pages = 8; pages <= 16; pages += 8) {
            struct err e = {0};
            struct engine *g;
            struct stream *s[6];
            struct session *l = open_family(families[f], 3, pages);
            struct engine_options o = {.queue = 8, .draft = 4, .draft_always = true, .guard = true};
            assert_int_equal(engine_open(&g, l, &o, &e), 0);
            for (uint32_t i = 0; i < 6; i++) {
                fill(texts[i].ids, PROMPT + i, i / 2);
                texts[i].n = PROMPT + i;
                s[i] = submit(g, texts[i].ids, PROMPT + i, 80);
            }
            for (uint32_t i = 0; i < 6; i++) {
                read_all(s[i], &texts[i]);
                assert_judged(l, &texts[i], PROMPT + i);
            }
            close_all(g, l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_whole),     cmocka_unit_test(cut_back),  cmocka_unit_test(long_requests),
        cmocka_unit_test(conversations_go_on), cmocka_unit_test(few_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
