/* The host's time between two steps, while the device waits for it: the engine with a real model, but with a
 * device that only waits for a millisecond and picks arbitrary tokens.
 *   bench_host MODEL */
#include "base/clock.h"
#include "codec/dtype.h"
#include "run/engine.h"
#include "run/speculate.h"

#include <stdio.h>
#include <time.h>

enum { STREAMS = 32, ANSWER = 600, WATCHED_MS = 500 };

static struct {
    struct device_ops ops;
    double done; /* when the step will be */
    uint64_t made;
    int32_t picks[STREAMS * (SPECULATE_MOST + 1)];
} idle;

static int idle_run(struct device *d, const struct plan *p, const struct step *s, struct err *e)
{
    (void)d;
    (void)e;
    for (uint32_t i = 0; i < s->outs; i++)
        idle.picks[i] = (int32_t)(idle.made++ * 2654435761u % p->out_width);
    idle.done = clock_now() + 1e-3;
    return 0;
}

static const int32_t *idle_picks(struct device *d, struct err *e)
{
    (void)d;
    (void)e;
    while (clock_now() < idle.done)
        ;
    return idle.picks;
}

struct setting {
    uint32_t streams, prompt, draft;
    double penalty;
};

static void watch(struct engine *g, struct stream *last, const struct setting *s)
{
    struct stream_chunk news = {0};
    struct engine_stats before, after;
    const struct timespec while_ = {.tv_nsec = WATCHED_MS * 1000000L};
    while (!news.count && !news.done)
        stream_look(last, -1, &news);
    engine_stats(g, &before);
    nanosleep(&while_, NULL);
    engine_stats(g, &after);
    printf("%7u  %6u  %7s  %9s  %.1f us\n", s->streams, s->prompt, s->draft ? "auto" : "off",
           s->penalty > 1 ? "yes" : "no",
           (double)(after.host_us - before.host_us) / (double)(after.steps - before.steps));
}

static int measure(struct session *l, const struct setting *s, int32_t *prompt, struct err *e)
{
    struct engine *g;
    struct stream *streams[STREAMS];
    struct engine_options o = {.slots = s->streams, .draft = s->draft};
    if (engine_open(&g, l, &o, e))
        return -1;
    uint32_t sent = 0;
    int failed = 0;
    for (; sent < s->streams && !failed; sent += !failed) {
        for (uint32_t k = 0; k < s->prompt; k++)
            prompt[k] = (int32_t)(idle.made++ * 40503 % l->model->plan.out_width);
        struct engine_request r = {.prompt = prompt, .n = s->prompt, .most = ANSWER, .ignore_eog = true};
        sampler_defaults(&r.sampler);
        r.sampler.repeat_penalty = s->penalty;
        failed = engine_submit(g, &r, &streams[sent], e);
    }
    if (!failed)
        watch(g, streams[sent - 1], s);
    for (uint32_t i = 0; i < sent; i++)
        stream_close(streams[i]);
    engine_close(g);
    return failed;
}

int main(int argc, char **argv)
{
    static const struct setting settings[] = {{1, 1000, 0, 1},
                                              {1, 1000, SPECULATE_MOST, 1},
                                              {32, 1000, 0, 1},
                                              {32, 1000, SPECULATE_MOST, 1},
                                              {32, 1000, 0, 1.1},
                                              {32, 4000, 0, 1},
                                              {32, 4000, SPECULATE_MOST, 1}};
    static int32_t prompt[4000];
    struct err e = {0};
    struct store *store;
    struct session *l = NULL;
    struct session_options lo = {.runner = {.device = "cpu",
                                            .ctx = 8192,
                                            .seqs = STREAMS,
                                            .outs = STREAMS * (SPECULATE_MOST + 1),
                                            .chunk = STREAMS * (SPECULATE_MOST + 1),
                                            .kv_type = DTYPE_F16,
                                            .device_options = {.threads = 1}}};
    int failed = argc != 2 ? err_set(&e, ERR_USAGE, "usage: bench_host MODEL")
                           : store_open(&store, argv[1], &e) || session_open(&l, store, &lo, &e);
    if (!failed) {
        idle.ops = *l->runner->device->ops;
        idle.ops.ahead = true;
        idle.ops.run = idle_run;
        idle.ops.picks = idle_picks;
        l->runner->device->ops = &idle.ops;
        printf("streams  prompt   drafts  penalties  between two steps\n");
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings && !failed; i++)
        failed = measure(l, &settings[i], prompt, &e);
    if (failed)
        fprintf(stderr, "%s\n", e.text);
    session_close(l);
    return failed ? 1 : 0;
}
