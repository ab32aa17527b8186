#include "device/cuda/timing.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int timing_open(struct gpu *g, struct err *e)
{
    if (!g->timing && !(g->timing = mem_zalloc(1, sizeof *g->timing)))
        return err_memory(e, "the profile", sizeof *g->timing);
    return 0;
}

void timing_close(struct gpu *g)
{
    struct gpu_timing *t = g->timing;
    if (!t)
        return;
    for (uint32_t i = 0; i < t->room; i++)
        if (t->event[i])
            g->cu->event_destroy(t->event[i]);
    mem_free(t->event);
    mem_free(t->what);
    mem_free(t->op);
    mem_free(t->span);
    mem_free(t);
    g->timing = NULL;
}

void timing_start(struct gpu *g)
{
    g->timing->used = 0;
    g->timing->now = 0; /* what comes before the first operation counts for it */
    g->timing->failed = false;
}

/* Room for one more pair of events. */
static bool timing_grow(struct gpu *g)
{
    struct gpu_timing *t = g->timing;
    if (t->used < t->room)
        return true;
    uint32_t room = t->room ? 2 * t->room : 1024;
    void **event = mem_realloc(t->event, room, sizeof *event);
    t->event = event ? event : t->event;
    uint16_t *what = mem_realloc(t->what, room / 2, sizeof *what);
    t->what = what ? what : t->what;
    uint32_t *op = mem_realloc(t->op, room / 2, sizeof *op);
    t->op = op ? op : t->op;
    struct timing_span *span = mem_realloc(t->span, room / 2, sizeof *span);
    t->span = span ? span : t->span;
    if (!event || !what || !op || !span)
        return false;
    memset(event + t->room, 0, (room - t->room) * sizeof *event);
    uint32_t at = t->room;
    t->room = room;
    for (; at < room; at++)
        if (g->cu->event_create(&event[at], 0) != CU_OK)
            return false;
    return true;
}

void timing_before(struct gpu *g, uint32_t kernel)
{
    struct gpu_timing *t = g->timing;
    t->failed = t->failed || !timing_grow(g);
    if (t->failed)
        return;
    t->what[t->used / 2] = (uint16_t)kernel;
    t->op[t->used / 2] = t->now;
    g->cu->event_record(t->event[t->used], g->stream);
}

void timing_after(struct gpu *g)
{
    struct gpu_timing *t = g->timing;
    if (t->failed)
        return;
    g->cu->event_record(t->event[t->used + 1], g->stream);
    t->used += 2;
}

static int by_start(const void *a, const void *b)
{
    const struct timing_span *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from) : (x->at > y->at) - (x->at < y->at);
}

void timing_exclusive(struct timing_span *span, uint32_t n)
{
    if (n)
        qsort(span, n, sizeof *span, by_start);
    double busy = n ? span[0].from : 0; /* the card's time is given to launches up to here */
    for (uint32_t i = 0; i < n; i++) {
        double from = span[i].from > busy ? span[i].from : busy;
        span[i].own = span[i].to > from ? span[i].to - from : 0;
        busy = span[i].to > busy ? span[i].to : busy;
    }
}

int timing_collect(struct gpu *g, double *seconds, struct err *e)
{
    struct gpu_timing *t = g->timing;
    for (uint32_t i = 0; i < t->used; i += 2) {
        float from = 0, to = 0;
        if (gpu_check(g, g->cu->event_ms(&from, t->event[0], t->event[i]), "timing", e) ||
            gpu_check(g, g->cu->event_ms(&to, t->event[0], t->event[i + 1]), "timing", e))
            return -1;
        t->span[i / 2] = (struct timing_span){.from = 1e-3 * from, .to = 1e-3 * to, .at = i / 2};
    }
    timing_exclusive(t->span, t->used / 2);
    for (uint32_t i = 0; i < t->used / 2; i++) {
        const struct timing_span *s = &t->span[i];
        seconds[t->op[s->at]] += s->own;
        t->seconds[t->what[s->at]] += s->own;
        t->calls[t->what[s->at]]++;
    }
    return 0;
}

uint32_t timing_take(struct gpu *g, struct device_kernel *out, uint32_t most)
{
    struct gpu_timing *t = g->timing;
    uint32_t n = 0;
    for (uint32_t k = 0; t && k < TIMING_KERNELS; k++) {
        const char *name = k == TIMING_BLAS ? "cublasLt" : gpu_kernel_name(k);
        uint32_t at = 0;
        while (at < n && strcmp(out[at].name, name) != 0) /* the sizes of one kernel count together */
            at++;
        if (!t->calls[k] || at == most)
            continue;
        if (at == n)
            out[n++] = (struct device_kernel){.name = name};
        out[at].calls += t->calls[k];
        out[at].seconds += t->seconds[k];
    }
    if (t) {
        memset(t->seconds, 0, sizeof t->seconds);
        memset(t->calls, 0, sizeof t->calls);
    }
    device_sort_kernels(out, n);
    return n;
}
