/* A device that works ahead and chooses tokens, as a GPU does: the CPU's device on a thread of its own, with the plain
 * choice of gpu/oracle.h behind it. A step is copied when it is given, begins a little later, and whoever wants something of
 * the device waits for it. There is one at a time. */
#pragma once

#include "gpu/oracle.h"
#include "run/session.h"

#include <pthread.h>
#include <unistd.h>

enum { AHEAD_ROWS = 512, AHEAD_SEQS = 16, AHEAD_OUTS = 64, AHEAD_PAGES = 32, AHEAD_VOCAB = 4096 };

static struct {
    struct device_ops ops;
    const struct device_ops *real;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t change;
    bool busy, closing; /* with all below: the thread's while it is busy */
    struct device *device;
    const struct plan *plan;
    struct step step;
    int failed;
    struct err err;
    uint64_t chosen;
    int32_t picks[AHEAD_OUTS];
    /* the step's */
    int32_t ids[AHEAD_ROWS], pos[AHEAD_ROWS], out[AHEAD_OUTS];
    int32_t tables[PLAN_GROUPS_MOST * AHEAD_SEQS * AHEAD_PAGES];
    int32_t state_in[AHEAD_SEQS], state_out[AHEAD_ROWS];
    struct step_seq seq[AHEAD_SEQS];
    struct adapter_mix lora[AHEAD_SEQS];
    struct step_pick pick[AHEAD_OUTS];
    struct pick_seen seen[AHEAD_OUTS][PICK_SEEN_MOST];
    struct oracle_token room[AHEAD_VOCAB];
} ahead = {.mutex = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

/* Chooses, and leaves nothing to be read of the numbers that it chose from. */
static void ahead_choose(void)
{
    const struct step *s = &ahead.step;
    uint32_t width = ahead.plan->out_width;
    float *numbers = (float *)ahead.real->results(ahead.device, &ahead.err);
    for (uint32_t i = 0; s->pick && i < s->outs; i++) {
        float *row = numbers + (size_t)i * width;
        if (!s->pick[i].on)
            continue;
        ahead.picks[i] = oracle_pick(row, width, &s->pick[i], ahead.room);
        for (uint32_t k = 0; k < width; k++)
            row[k] = NAN;
        ahead.chosen++;
    }
}

static void *ahead_thread(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&ahead.mutex);
    while (!ahead.closing) {
        if (!ahead.busy) {
            pthread_cond_wait(&ahead.change, &ahead.mutex);
            continue;
        }
        pthread_mutex_unlock(&ahead.mutex);
        usleep(20); /* so that the host is at its next step meanwhile */
        ahead.failed = ahead.real->run(ahead.device, ahead.plan, &ahead.step, &ahead.err);
        if (!ahead.failed)
            ahead_choose();
        pthread_mutex_lock(&ahead.mutex);
        ahead.busy = false;
        pthread_cond_broadcast(&ahead.change);
    }
    pthread_mutex_unlock(&ahead.mutex);
    return NULL;
}

static void ahead_wait(void)
{
    pthread_mutex_lock(&ahead.mutex);
    while (ahead.busy)
        pthread_cond_wait(&ahead.change, &ahead.mutex);
    pthread_mutex_unlock(&ahead.mutex);
}

#define AHEAD_COPY(field, count)                                                                             \
    do {                                                                                                     \
        if ((count) * sizeof *s->field > sizeof ahead.field)                                                 \
            abort();                                                                                         \
        memcpy(ahead.field, s->field, (count) * sizeof *s->field);                                           \
        ahead.step.field = ahead.field;                                                                      \
    } while (0)

static int ahead_run(struct device *d, const struct plan *p, const struct step *s, struct err *e)
{
    (void)e;
    ahead_wait();
    ahead.device = d;
    ahead.plan = p;
    ahead.step = *s;
    ahead.err = (struct err){0};
    AHEAD_COPY(ids, s->rows);
    AHEAD_COPY(pos, s->rows);
    AHEAD_COPY(seq, s->seqs);
    AHEAD_COPY(tables, (size_t)p->groups * s->seqs * s->table_width);
    AHEAD_COPY(out, s->outs);
    if (s->state_in) {
        AHEAD_COPY(state_in, s->seqs);
        AHEAD_COPY(state_out, s->rows);
    }
    if (s->lora)
        AHEAD_COPY(lora, s->seqs);
    if (s->pick)
        AHEAD_COPY(pick, s->outs);
    for (uint32_t i = 0; s->pick && i < s->outs; i++)
        if (s->pick[i].on) {
            memcpy(ahead.seen[i], s->pick[i].seen, s->pick[i].seen_count * sizeof **ahead.seen);
            ahead.pick[i].seen = ahead.seen[i];
        }
    pthread_mutex_lock(&ahead.mutex);
    ahead.busy = true;
    pthread_cond_broadcast(&ahead.change);
    pthread_mutex_unlock(&ahead.mutex);
    return 0;
}

static const float *ahead_results(struct device *d, struct err *e)
{
    ahead_wait();
    if (ahead.failed)
        *e = ahead.err;
    return ahead.failed ? NULL : ahead.real->results(d, e);
}

static const int32_t *ahead_picks(struct device *d, struct err *e)
{
    return ahead_results(d, e) ? ahead.picks : NULL;
}

static int ahead_copy_pages(struct device *d, uint32_t group, const int32_t *from, const int32_t *to,
                            uint32_t n, struct err *e)
{
    ahead_wait();
    return ahead.real->copy_pages(d, group, from, to, n, e);
}

static int ahead_read_page(struct device *d, uint32_t group, int32_t page, void *host, struct err *e)
{
    ahead_wait();
    return ahead.real->read_page(d, group, page, host, e);
}

static int ahead_write_page(struct device *d, uint32_t group, int32_t page, const void *host, struct err *e)
{
    ahead_wait();
    return ahead.real->write_page(d, group, page, host, e);
}

static int ahead_read_state(struct device *d, int32_t slot, void *host, struct err *e)
{
    ahead_wait();
    return ahead.real->read_state(d, slot, host, e);
}

static int ahead_write_state(struct device *d, int32_t slot, const void *host, struct err *e)
{
    ahead_wait();
    return ahead.real->write_state(d, slot, host, e);
}

static void ahead_close(struct device *d)
{
    pthread_mutex_lock(&ahead.mutex);
    ahead.closing = true;
    pthread_cond_broadcast(&ahead.change);
    pthread_mutex_unlock(&ahead.mutex);
    pthread_join(ahead.thread, NULL);
    ahead.real->close(d);
}

/* From now on the model's device works ahead. */
static void ahead_begin(struct session *l)
{
    struct device *d = l->runner->device;
    ahead.real = d->ops;
    ahead.ops = *d->ops;
    ahead.ops.ahead = true;
    ahead.ops.run = ahead_run;
    ahead.ops.results = ahead_results;
    ahead.ops.picks = ahead_picks;
    ahead.ops.copy_pages = ahead_copy_pages;
    ahead.ops.read_page = ahead_read_page;
    ahead.ops.write_page = ahead_write_page;
    ahead.ops.read_state = ahead_read_state;
    ahead.ops.write_state = ahead_write_state;
    ahead.ops.close = ahead_close;
    ahead.chosen = 0;
    ahead.busy = ahead.closing = false;
    if (l->model->plan.out_width > AHEAD_VOCAB || pthread_create(&ahead.thread, NULL, ahead_thread, NULL))
        fail_msg("there is no room for a device that works ahead");
    d->ops = &ahead.ops;
}
