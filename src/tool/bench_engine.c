#include "tool/bench_engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "run/engine.h"
#include "tool/load.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <stdio.h>

struct run {
    const struct bench_engine *o;
    struct loaded *loaded;
    struct engine *engine;
    struct stream **streams; /* (most) */
    uint32_t most;
    int32_t *ids; /* (longest prompt) */
    uint32_t seed;
};

struct figures {
    uint32_t streams;
    double tok_s, first; /* all together; seconds until the last one has its first token */
    uint64_t steps;
};

struct gap {
    double usual, longest, seconds; /* between two tokens: before, while the prompt is read; to read it */
};

static struct engine_request request(struct run *r, uint32_t n, uint32_t most)
{
    for (uint32_t i = 0; i < n; i++) { /* different every time: nothing is known of it */
        r->seed = r->seed * 1664525 + 1013904223;
        r->ids[i] = (int32_t)((r->seed >> 8) % r->loaded->model->plan.out_width);
    }
    struct engine_request q = {.prompt = r->ids, .n = n, .most = most, .ignore_eog = true};
    sampler_defaults(&q.sampler);
    q.sampler.temperature = 0;
    return q;
}

/* Waits until the request has ended. */
static int wait_done(struct stream *s, struct stream_news *news, struct err *e)
{
    do
        stream_look(s, -1, news);
    while (!news->done);
    *e = news->err;
    return news->err.code ? -1 : 0;
}

static int measure(struct run *r, uint32_t n, struct figures *f, struct err *e)
{
    struct engine_stats before, after;
    struct stream_news news;
    double first = 0, start = clock_now();
    int failed = 0;
    uint32_t sent = 0;
    engine_stats(r->engine, &before);
    for (; sent < n && !failed; sent++) {
        struct engine_request q = request(r, r->o->prompt, r->o->predict);
        failed = engine_submit(r->engine, &q, &r->streams[sent], e);
    }
    sent -= failed ? 1 : 0;
    for (uint32_t i = 0; i < sent; i++) {
        failed = failed || wait_done(r->streams[i], &news, e);
        first = news.first_seconds > first ? news.first_seconds : first;
        stream_close(r->streams[i]);
    }
    double seconds = clock_now() - start;
    engine_stats(r->engine, &after);
    *f = (struct figures){.streams = n,
                          .tok_s = (double)(after.made_tokens - before.made_tokens) / seconds,
                          .first = first,
                          .steps = after.steps - before.steps};
    return failed ? -1 : 0;
}

/* The longest time between two looks at a running stream that bring something, until `until` has news. */
static double longest_gap(struct stream *running, struct stream *until, uint32_t tokens)
{
    struct stream_news news;
    double longest = 0, last = clock_now();
    for (uint32_t i = 0; i < tokens; i++) {
        if (until && stream_look(until, 0, &news) && (news.count || news.done))
            break;
        stream_look(running, -1, &news);
        double now = clock_now();
        longest = now - last > longest ? now - last : longest;
        last = now;
        if (news.done)
            break;
    }
    return longest;
}

static int measure_gap(struct run *r, struct gap *out, struct err *e)
{
    struct stream *running, *reading;
    struct engine_request q = request(r, r->o->prompt, 0);
    if (engine_submit(r->engine, &q, &running, e))
        return -1;
    longest_gap(running, NULL, 2);
    out->usual = longest_gap(running, NULL, 16);
    q = request(r, r->o->read, 1);
    double start = clock_now();
    int failed = engine_submit(r->engine, &q, &reading, e);
    if (!failed) {
        out->longest = longest_gap(running, reading, UINT32_MAX);
        out->seconds = clock_now() - start;
        stream_close(reading);
    }
    stream_close(running);
    return failed;
}

static int run_open(struct run *r, const struct args *a, struct err *e)
{
    const struct bench_engine *o = r->o;
    struct loaded_options lo = {.no_text = true};
    for (int i = 0; i < o->count; i++)
        r->most = o->streams[i] > r->most ? o->streams[i] : r->most;
    uint32_t each = o->prompt + o->predict, longest = o->read > each ? o->read : each;
    lo.runner.seqs = r->most > 2 ? r->most : 2;
    lo.runner.ctx = longest + RUNNER_PAGE;
    /* a running stream beside the long prompt may need as much again */
    lo.runner.pages = lo.runner.seqs * (each / RUNNER_PAGE + 2) + 2 * (longest / RUNNER_PAGE + 2);
    if (load_model(&r->loaded, a->words[0], &lo, a, e))
        return -1;
    r->streams = mem_zalloc(r->most, sizeof *r->streams);
    r->ids = mem_alloc(longest, sizeof *r->ids);
    if (!r->streams || !r->ids)
        return err_memory(e, "the benchmark", longest * sizeof *r->ids);
    return engine_open(&r->engine, r->loaded, &(struct engine_options){.queue = r->most + 2}, e);
}

static int run_all(struct run *r, const struct args *a, struct err *e)
{
    struct buf out = {0};
    struct figures f = {0}, base = {0};
    if (run_open(r, a, e) || measure(r, 1, &f, e)) /* warms up */
        return -1;
    buf_printf(&out, "%8s %10s %12s %8s %s\n", "streams", "tok/s", "first token", "steps",
               "beside the first");
    for (int i = 0; i < r->o->count; i++) {
        if (measure(r, r->o->streams[i], &f, e))
            return -1;
        base = i ? base : f;
        buf_printf(&out, "%8u %10.1f %9.0f ms %8llu %.2fx\n", f.streams, f.tok_s, 1e3 * f.first,
                   (unsigned long long)f.steps, base.tok_s > 0 ? f.tok_s / base.tok_s : 0);
    }
    struct gap gap;
    if (r->o->read) {
        if (measure_gap(r, &gap, e))
            return -1;
        buf_printf(&out,
                   "a running stream waits %.0f ms at most; %.0f ms while a prompt of %u tokens is read "
                   "(which takes %.1f s)\n",
                   1e3 * gap.usual, 1e3 * gap.longest, r->o->read, gap.seconds);
    }
    return tool_print(&out, e);
}

int bench_engine(const struct args *a, const struct bench_engine *o, struct err *e)
{
    struct run r = {.o = o, .seed = 1};
    int failed = run_all(&r, a, e);
    engine_close(r.engine);
    loaded_close(r.loaded);
    mem_free(r.streams);
    mem_free(r.ids);
    return failed;
}
