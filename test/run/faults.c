/* Whatever happens at whichever step: a client cancels, the device fails. The others get what they would have got, what is
 * left of the failure serves nobody, and all comes back. */
#include "test.h"

#include "run/ahead.h"
#include "run/engine.h"
#include "run/open.h"

#include <stdatomic.h>
#include <string.h>

enum { CTX = 256, REQUESTS = 4, PROMPT = 70, ANSWER = 12 };

enum fault_kind { FAULT_CANCEL, FAULT_RUN, FAULT_RESULTS, FAULTS };

/* In front of the device: something happens at one of its steps. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    enum fault_kind kind;
    atomic_uint steps, at;
    _Atomic(struct stream *) victim; /* of a cancel; NULL: it is not there yet */
} fault;

static bool fault_is_now(enum fault_kind kind)
{
    return fault.kind == kind && fault.steps == fault.at;
}

static int fault_run(struct device *d, const struct plan *p, const struct step *s, struct err *e)
{
    fault.steps++;
    if (fault_is_now(FAULT_CANCEL) && fault.victim)
        stream_cancel(fault.victim);
    return fault_is_now(FAULT_RUN) ? err_set(e, ERR_DEVICE, "a step fails") : fault.real->run(d, p, s, e);
}

static const float *fault_results(struct device *d, struct err *e)
{
    const float *real = fault.real->results(d, e); /* it is done with the step in any case */
    if (fault_is_now(FAULT_RESULTS))
        err_set(e, ERR_DEVICE, "its results are lost");
    return fault_is_now(FAULT_RESULTS) ? NULL : real;
}

static const int32_t *fault_picks(struct device *d, struct err *e)
{
    return fault_results(d, e) ? fault.real->picks(d, e) : NULL;
}

static struct session *open_faulty(const char *folder, bool works_ahead)
{
    const struct runner_options o = {.ctx = CTX,
                                     .seqs = 3,
                                     .chunk = 64,
                                     .outs = 32,
                                     .pages = 14,
                                     .device_options = {.exact = true, .tier = "scalar"}};
    struct session *l = open_tiny(folder, &o);
    if (works_ahead)
        ahead_begin(l);
    fault.real = l->runner->device->ops;
    fault.ops = *fault.real;
    fault.ops.run = fault_run;
    fault.ops.results = fault_results;
    fault.ops.picks = fault.real->picks ? fault_picks : NULL;
    l->runner->device->ops = &fault.ops;
    fault.steps = fault.at = 0;
    fault.victim = NULL;
    return l;
}

/* Two beginnings in common. */
static struct stream *ask(struct engine *g, uint32_t i)
{
    struct err e = {0};
    struct stream *s;
    int32_t prompt[PROMPT];
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = 3 + (int32_t)((k * k + k / 40 * i + i % 2) % 60);
    struct engine_request r = {.prompt = prompt, .n = PROMPT, .most = ANSWER, .ignore_eog = true};
    sampler_defaults(&r.sampler);
    r.sampler.seed = i;
    if (engine_submit(g, &r, &s, &e))
        fail_msg("%s", e.text);
    return s;
}

struct said {
    int32_t ids[ANSWER];
    size_t n;
    struct err err;
    enum finish_kind finish;
};

static void read_all(struct stream *s, struct said *out)
{
    struct stream_chunk news;
    out->n = 0;
    do {
        assert_true(stream_look(s, -1, &news));
        memcpy(out->ids + out->n, news.ids, news.count * sizeof *news.ids);
        out->n += news.count;
    } while (!news.done);
    out->err = news.err;
    out->finish = news.finish;
}

/* A beginning of the right answer, or all of it. */
static void assert_right(const struct said *got, const struct said *want, bool whole)
{
    assert_true(whole ? got->n == want->n : got->n <= want->n);
    assert_memory_equal(got->ids, want->ids, got->n * sizeof *got->ids);
}

static void open_engine(struct engine **g, struct session *l)
{
    struct err e = {0};
    struct engine_options o = {.queue = REQUESTS, .draft = 4, .draft_always = true, .guard = true};
    if (engine_open(g, l, &o, &e))
        fail_msg("%s", e.text);
}

static void close_engine(struct engine *g, struct session *l)
{
    engine_close(g);
    assert_int_equal(l->runner->seqs, 0);
    for (uint32_t i = 0; i < l->model->plan.groups; i++)
        assert_int_equal(l->runner->pages[i].unused, l->runner->pages[i].backed - 1);
    session_close(l);
}

/* All requests at once with a fault at a step, and then one after the other without; false: there was no such step. */
static bool round_with_fault(const char *folder, bool works_ahead, uint32_t at, const struct said *want)
{
    struct session *l = open_faulty(folder, works_ahead);
    struct engine *g;
    struct stream *s[REQUESTS], *again;
    struct said got;
    open_engine(&g, l);
    fault.at = at;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        s[i] = ask(g, i);
        fault.victim = s[i];
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_all(s[i], &got);
        bool whole = !got.err.code && got.finish != FINISH_CANCEL;
        assert_right(&got, &want[i], whole);
        assert_true(whole || (fault.kind == FAULT_CANCEL ? !got.err.code : got.err.code == ERR_DEVICE));
    }
    bool happened = fault.steps >= at;
    fault.at = UINT32_MAX;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_all(again = ask(g, i), &got);
        assert_int_equal(got.err.code, 0);
        assert_right(&got, &want[i], true);
        stream_close(again);
    }
    close_engine(g, l);
    for (uint32_t i = 0; i < REQUESTS; i++)
        stream_close(s[i]);
    return happened;
}

static void faults_at_every_step(void **state)
{
    static const char *const folders[] = {"llama", "gemma2"};
    (void)state;
    for (uint32_t f = 0; f < 2; f++) {
        struct said want[REQUESTS];
        struct engine *g;
        struct session *l = open_faulty(folders[f], false);
        open_engine(&g, l);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            struct stream *s = ask(g, i);
            read_all(s, &want[i]);
            assert_int_equal(want[i].n, ANSWER);
            stream_close(s);
        }
        close_engine(g, l);
        for (fault.kind = 0; fault.kind < FAULTS; fault.kind++)
            for (uint32_t works_ahead = 0; works_ahead < 2; works_ahead++) {
                uint32_t at = 1;
                while (round_with_fault(folders[f], works_ahead, at, want))
                    at++;
                assert_true(at > 5);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults_at_every_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
