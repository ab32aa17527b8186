#include "tool/bench_engine.h"

#include "base/clock.h"
#include "base/json.h"
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
    REST_MOST = 512, /* tokens behind a text that is known */
    RESTS = 3        /* this number, half of it, and a quarter */
};

/* Seconds between two tokens of a running stream. */
struct gaps {
    uint32_t count;
    double median, most;
    bool ended; /* the stream has reached the end of its context: no more tokens come */
};

/* The time to the first token of `rest` tokens behind `cached` that are known, and of the same number alone. */
struct rest_figures {
    uint32_t rest, cached;
    double behind, alone;
};

/* With --read. */
struct read_figures {
    struct gaps before, during; /* a running stream, before and while the prompt is read */
    double seconds;             /* until the prompt was read */
    struct rest_figures rest[RESTS];
};

struct engine_run {
    const struct bench_engine *o;
    struct session *session;
    struct engine *engine;
    struct stream **streams; /* (most) */
    uint32_t most;
    int32_t *ids; /* (longest prompt) */
    uint32_t seed;
    double *gap; /* (GAPS_MOST): those of one struct gaps */
    /* what was found */
    struct figures *figures; /* (o->count) */
    struct read_figures read;
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

/* Polls a running stream until `until` has a chunk, or at most `times` times, or until it ends. */
static int watch(struct engine_run *r, struct stream *running, struct stream *until, uint32_t times,
                 struct gaps *out, struct err *e)
{
    struct stream_chunk chunk = {0};
    double last = clock_now();
    *out = (struct gaps){0};
    while (out->count < times && out->count < GAPS_MOST && !out->ended) {
        if (until && stream_look(until, 0, &chunk) && (chunk.count || chunk.done))
            break;
        stream_look(running, -1, &chunk);
        double now = clock_now();
        out->ended = chunk.done;
        if (chunk.count || !chunk.done) /* the end alone is no token */
            r->gap[out->count++] = now - last;
        last = now;
    }
    qsort(r->gap, out->count, sizeof *r->gap, by_value);
    out->median = out->count ? r->gap[out->count / 2] : 0;
    out->most = out->count ? r->gap[out->count - 1] : 0;
    *e = chunk.done ? chunk.err : *e;
    return chunk.done && chunk.err.code ? -1 : 0;
}

/* A long prompt beside the running stream. */
static int measure_reading(struct engine_run *r, struct stream *running, struct err *e)
{
    struct read_figures *f = &r->read;
    struct engine_request q = request(r, r->o->read, 1);
    struct stream *reading;
    struct stream_chunk chunk;
    double start = clock_now();
    if (engine_submit(r->engine, &q, &reading, e))
        return -1;
    f->during.ended = f->before.ended;
    int failed = f->before.ended ? 0 : watch(r, running, reading, GAPS_MOST, &f->during, e);
    if (!failed && f->during.ended)
        failed = wait_done(reading, &chunk, e);
    f->seconds = clock_now() - start;
    stream_close(reading);
    return failed;
}

/* How long a running stream waits for its tokens while a long prompt is read. */
static int measure_gap(struct engine_run *r, struct err *e)
{
    struct gaps *before = &r->read.before;
    struct stream *running;
    struct engine_request q = request(r, r->o->prompt, 0);
    if (engine_submit(r->engine, &q, &running, e))
        return -1;
    int failed = watch(r, running, NULL, 2, before, e);
    if (!failed && !before->ended)
        failed = watch(r, running, NULL, 16, before, e);
    failed = failed || measure_reading(r, running, e);
    stream_close(running);
    return failed ? -1 : 0;
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
static int measure_rest(struct engine_run *r, uint32_t rest, struct rest_figures *f, struct err *e)
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
    *f = (struct rest_figures){
        .rest = rest, .cached = cached, .behind = behind[TIMES / 2], .alone = alone[TIMES / 2]};
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
    r->gap = mem_alloc(GAPS_MOST, sizeof *r->gap);
    r->figures = mem_zalloc((size_t)o->count, sizeof *r->figures);
    if (!r->streams || !r->ids || !r->gap || !r->figures)
        return err_memory(e, "the benchmark", longest * sizeof *r->ids);
    return engine_open(&r->engine, r->session, &(struct engine_options){.queue = r->most + 2}, e);
}

static int measure_all(struct engine_run *r, struct err *e)
{
    struct figures warm;
    if (measure(r, 1, &warm, e))
        return -1;
    for (int i = 0; i < r->o->count; i++)
        if (measure(r, r->o->streams[i], &r->figures[i], e))
            return -1;
    if (!r->o->read)
        return 0;
    if (measure_gap(r, e))
        return -1;
    for (int i = 0; i < RESTS; i++)
        if (measure_rest(r, REST_MOST >> (RESTS - 1 - i), &r->read.rest[i], e))
            return -1;
    return 0;
}

/* ---- the table ---- */

static void text_gaps(const struct gaps *g, struct buf *out)
{
    if (!g->count)
        buf_printf(out, "not measured, as it had reached the end of its context");
    else
        buf_printf(out, "%.0f ms (%.0f at most)%s", 1e3 * g->median, 1e3 * g->most,
                   g->ended ? ", until it reached the end of its context" : "");
}

static void text_read(const struct engine_run *r, struct buf *out)
{
    const struct read_figures *f = &r->read;
    buf_printf(out, "a running stream waits for a token: ");
    text_gaps(&f->before, out);
    buf_printf(out, "\nwhile a prompt of %u tokens is read: ", r->o->read);
    text_gaps(&f->during, out);
    buf_printf(out, ", for %.1f s\n", f->seconds);
    for (int i = 0; i < RESTS; i++) {
        const struct rest_figures *t = &f->rest[i];
        buf_printf(
            out, "first token of %u tokens behind %u that are known: %.1f ms; of %u alone: %.1f ms: %.2fx\n",
            t->rest, t->cached, 1e3 * t->behind, t->rest, 1e3 * t->alone, t->behind / t->alone);
    }
}

static double beside_first(const struct engine_run *r, const struct figures *f)
{
    return r->figures->tok_s > 0 ? f->tok_s / r->figures->tok_s : 0;
}

static void text_all(const struct engine_run *r, struct buf *out)
{
    buf_printf(out, "%8s %10s %12s %8s %6s %s\n", "streams", "tok/s", "first token", "steps", "host",
               "beside the first");
    for (int i = 0; i < r->o->count; i++) {
        const struct figures *f = &r->figures[i];
        buf_printf(out, "%8u %10.1f %9.0f ms %8llu %5.1f%% %.2fx\n", f->streams, f->tok_s, 1e3 * f->first,
                   (unsigned long long)f->steps, 100 * f->host, beside_first(r, f));
    }
    if (r->o->read)
        text_read(r, out);
}

/* ---- JSON: a row of each number of streams, then those of --read ---- */

static void json_begin_row(struct json *j, const char *test)
{
    json_begin(j, '{');
    json_key(j, "test");
    json_str(j, test);
}

static void json_number(struct json *j, const char *key, double value)
{
    json_key(j, key);
    json_num(j, value);
}

static void json_gaps(const struct gaps *g, const char *test, struct json *j)
{
    json_begin_row(j, test);
    json_number(j, "gaps", g->count);
    json_number(j, "median_ms", 1e3 * g->median);
    json_number(j, "most_ms", 1e3 * g->most);
    json_key(j, "ended");
    json_bool(j, g->ended);
}

static void json_read(const struct engine_run *r, struct json *j)
{
    const struct read_figures *f = &r->read;
    json_gaps(&f->before, "running", j);
    json_end(j, '}');
    json_gaps(&f->during, "reading", j);
    json_number(j, "prompt", r->o->read);
    json_number(j, "seconds", f->seconds);
    json_end(j, '}');
    for (int i = 0; i < RESTS; i++) {
        json_begin_row(j, "known");
        json_number(j, "prompt", f->rest[i].rest);
        json_number(j, "cached", f->rest[i].cached);
        json_number(j, "first_ms", 1e3 * f->rest[i].behind);
        json_number(j, "alone_ms", 1e3 * f->rest[i].alone);
        json_end(j, '}');
    }
}

static void json_all(const struct engine_run *r, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (int i = 0; i < r->o->count; i++) {
        const struct figures *f = &r->figures[i];
        json_begin_row(&j, "streams");
        json_number(&j, "streams", f->streams);
        json_number(&j, "prompt", r->o->prompt);
        json_number(&j, "predict", r->o->predict);
        json_number(&j, "tok_s", f->tok_s);
        json_number(&j, "first_ms", 1e3 * f->first);
        json_number(&j, "steps", (double)f->steps);
        json_number(&j, "host_share", f->host);
        json_number(&j, "beside_first", beside_first(r, f));
        json_end(&j, '}');
    }
    if (r->o->read)
        json_read(r, &j);
    json_end(&j, ']');
    buf_char(out, '\n');
}

static int run_all(struct engine_run *r, const struct args *a, struct err *e)
{
    struct buf out = {0};
    if (run_open(r, a, e) || measure_all(r, e))
        return -1;
    args_flag(a, "json") ? json_all(r, &out) : text_all(r, &out);
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
    mem_free(r.gap);
    mem_free(r.figures);
    return failed;
}
