#include "tool/bench_engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "run/engine.h"
#include "tool/load.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <stdlib.h>

struct figures {
    uint32_t streams;
    double tok_s, first; /* all together; seconds until the last one has its first token */
    uint64_t steps;
    double host; /* share of the time in which the device waited for the host */
};

enum {
    GAPS_MOST = 1 << 16,
    REST_MOST = 512 /* tokens behind a text that is known */
};

/* Seconds between two tokens of a running stream. */
struct gaps {
    double *item; /* (GAPS_MOST) */
    uint32_t count;
    double median, most;
};

struct engine_run {
    const struct bench_engine *o;
    struct session *session;
    struct engine *engine;
    struct stream **streams; /* (most) */
    uint32_t most;
    int32_t *ids; /* (longest prompt) */
    uint32_t seed;
    struct gaps gaps;
};

/* Tokens [from, to), different every time: no prefix is cached. */
static void draw(struct engine_run *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        r->seed = r->seed * 1664525 + 1013904223;
        r->ids[i] = (int32_t)((r->seed >> 8) % r->session->model->plan.out_width);
    }
}

static struct engine_request request(struct engine_run *r, uint32_t n, uint32_t most)
{
    draw(r, 0, n);
    struct engine_request q = {.prompt = r->ids, .n = n, .most = most, .ignore_eog = true};
    sampler_defaults(&q.sampler);
    q.sampler.temperature = 0;
    return q;
}

/* Waits until the request has ended. */
static int wait_done(struct stream *s, struct stream_chunk *chunk, struct err *e)
{
    do
        stream_look(s, -1, chunk);
    while (!chunk->done);
    *e = chunk->err;
    return chunk->err.code ? -1 : 0;
}

static int measure(struct engine_run *r, uint32_t n, struct figures *f, struct err *e)
{
    struct engine_stats before, after;
    struct stream_chunk chunk;
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
        failed = failed || wait_done(r->streams[i], &chunk, e);
        first = chunk.first_seconds > first ? chunk.first_seconds : first;
        stream_close(r->streams[i]);
    }
    double seconds = clock_now() - start;
    engine_stats(r->engine, &after);
    *f = (struct figures){.streams = n,
                          .tok_s = (double)(after.made_tokens - before.made_tokens) / seconds,
                          .first = first,
                          .steps = after.steps - before.steps};
    double host = (double)(after.host_us - before.host_us), step = (double)(after.step_us - before.step_us);
    f->host = step > 0 ? host / (host + step) : 0;
    return failed ? -1 : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Polls a running stream until `until` has a chunk, or at most `times` times. */
static void watch(struct stream *running, struct stream *until, uint32_t times, struct gaps *out)
{
    struct stream_chunk chunk;
    double last = clock_now();
    for (out->count = 0; out->count < times && out->count < GAPS_MOST;) {
        if (until && stream_look(until, 0, &chunk) && (chunk.count || chunk.done))
            break;
        stream_look(running, -1, &chunk);
        double now = clock_now();
        out->item[out->count++] = now - last;
        last = now;
        if (chunk.done)
            break;
    }
    qsort(out->item, out->count, sizeof *out->item, by_value);
    out->median = out->count ? out->item[out->count / 2] : 0;
    out->most = out->count ? out->item[out->count - 1] : 0;
}

/* How long a running stream waits for its tokens while a long prompt is read. */
static int measure_gap(struct engine_run *r, struct gaps *gaps, struct buf *out, struct err *e)
{
    struct stream *running, *reading;
    struct engine_request q = request(r, r->o->prompt, 0);
    if (engine_submit(r->engine, &q, &running, e))
        return -1;
    watch(running, NULL, 2, gaps);
    watch(running, NULL, 16, gaps);
    buf_printf(out, "a running stream waits %.0f ms for a token (%.0f at most)\n", 1e3 * gaps->median,
               1e3 * gaps->most);
    q = request(r, r->o->read, 1);
    double start = clock_now();
    int failed = engine_submit(r->engine, &q, &reading, e);
    if (!failed) {
        watch(running, reading, GAPS_MOST, gaps);
        buf_printf(out, "while a prompt of %u tokens is read: %.0f ms (%.0f at most), for %.1f s\n",
                   r->o->read, 1e3 * gaps->median, 1e3 * gaps->most, clock_now() - start);
        stream_close(reading);
    }
    stream_close(running);
    return failed;
}

/* Seconds to the first token after a prompt, with nothing beside it. */
static double first_token(struct engine_run *r, const struct engine_request *q, uint32_t *cached,
                          struct err *e)
{
    struct stream *s;
    struct stream_chunk chunk;
    if (engine_submit(r->engine, q, &s, e))
        return -1;
    int failed = wait_done(s, &chunk, e);
    stream_close(s);
    *cached = chunk.cached;
    return failed ? -1 : chunk.first_seconds;
}

/* New tokens after a cached prefix of `read` tokens, and the same number of tokens alone: medians of the time
 * to the first token. */
static int measure_rest(struct engine_run *r, uint32_t rest, struct buf *out, struct err *e)
{
    enum { TIMES = 7 };
    double behind[TIMES], alone[TIMES];
    uint32_t n = r->o->read, cached = 0, none;
    struct engine_request q = request(r, n, 1);
    if (first_token(r, &q, &cached, e) < 0)
        return -1;
    for (int i = -1; i < TIMES; i++) { /* the first ones warm up */
        int at = i < 0 ? 0 : i;
        draw(r, n, n + rest);
        q.prompt = r->ids;
        q.n = n + rest;
        behind[at] = first_token(r, &q, &cached, e);
        draw(r, n, n + rest);
        q.prompt += n;
        q.n = rest;
        alone[at] = behind[at] < 0 ? -1 : first_token(r, &q, &none, e);
        if (alone[at] < 0)
            return -1;
    }
    qsort(behind, TIMES, sizeof *behind, by_value);
    qsort(alone, TIMES, sizeof *alone, by_value);
    buf_printf(out,
               "first token of %u tokens behind %u that are known: %.1f ms; of %u alone: %.1f ms: %.2fx\n",
               rest, cached, 1e3 * behind[TIMES / 2], rest, 1e3 * alone[TIMES / 2],
               behind[TIMES / 2] / alone[TIMES / 2]);
    return 0;
}

static int measure_known(struct engine_run *r, struct buf *out, struct err *e)
{
    for (uint32_t rest = REST_MOST / 4; rest <= REST_MOST; rest *= 2)
        if (measure_rest(r, rest, out, e))
            return -1;
    return 0;
}

static int run_open(struct engine_run *r, const struct args *a, struct err *e)
{
    const struct bench_engine *o = r->o;
    struct session_options lo = {.no_text = true, .runner.device_options.threads = o->threads};
    for (int i = 0; i < o->count; i++)
        r->most = o->streams[i] > r->most ? o->streams[i] : r->most;
    uint32_t each = o->prompt + o->predict, read = o->read ? o->read + REST_MOST : 0,
             longest = read > each ? read : each;
    lo.runner.seqs = r->most > 2 ? r->most : 2;
    lo.runner.ctx = longest + RUNNER_PAGE;
    lo.runner.snapshots = engine_snapshots(lo.runner.seqs);
    /* a running stream beside the long prompt may need as much again */
    lo.runner.pages = lo.runner.seqs * (each / RUNNER_PAGE + 2) + 2 * (longest / RUNNER_PAGE + 2);
    if (load_model(&r->session, a->count ? a->words[0] : NULL, &lo, a, e))
        return -1;
    r->streams = mem_zalloc(r->most, sizeof *r->streams);
    r->ids = mem_alloc(longest, sizeof *r->ids);
    r->gaps.item = mem_alloc(GAPS_MOST, sizeof *r->gaps.item);
    if (!r->streams || !r->ids || !r->gaps.item)
        return err_memory(e, "the benchmark", longest * sizeof *r->ids);
    return engine_open(&r->engine, r->session, &(struct engine_options){.queue = r->most + 2}, e);
}

static int run_all(struct engine_run *r, const struct args *a, struct err *e)
{
    struct buf out = {0};
    struct figures f = {0}, base = {0};
    if (run_open(r, a, e) || measure(r, 1, &f, e)) /* warms up */
        return -1;
    buf_printf(&out, "%8s %10s %12s %8s %6s %s\n", "streams", "tok/s", "first token", "steps", "host",
               "beside the first");
    for (int i = 0; i < r->o->count; i++) {
        if (measure(r, r->o->streams[i], &f, e))
            return -1;
        base = i ? base : f;
        buf_printf(&out, "%8u %10.1f %9.0f ms %8llu %5.1f%% %.2fx\n", f.streams, f.tok_s, 1e3 * f.first,
                   (unsigned long long)f.steps, 100 * f.host, base.tok_s > 0 ? f.tok_s / base.tok_s : 0);
    }
    if (r->o->read && (measure_gap(r, &r->gaps, &out, e) || measure_known(r, &out, e)))
        return -1;
    return tool_print(&out, e);
}

int bench_engine(const struct args *a, const struct bench_engine *o, struct err *e)
{
    struct engine_run r = {.o = o, .seed = 1};
    int failed = run_all(&r, a, e);
    engine_close(r.engine);
    session_close(r.session);
    mem_free(r.streams);
    mem_free(r.ids);
    mem_free(r.gaps.item);
    return failed;
}
