#define _GNU_SOURCE
#include "serve/batch.h"
#include "base/clock.h"
#include "base/mem.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/usage.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH_TRIES = 8,      /* of a line that the server had no room for */
    BATCH_WAIT_MOST = 30, /* seconds between two of them */
};
static const double BATCH_TICK = 0.25; /* seconds */

struct batch_driver {
    struct server *server;
    struct batch_feed feed;
    pthread_t thread;
    struct batch_line *running; /* the loop's */
    /* the thread's */
    struct batch_line *later; /* to be tried again */
    bool dry, ended;          /* the feed has no line now; none any more */
    uint32_t count;           /* lines between next and done */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct batch_line *ready, *done;
    int64_t abandon; /* the batch whose lines are to end; 0 = none */
    bool woken, closing, over;
    struct err err;
};

void batch_line_free(struct batch_line *l)
{
    mem_free(l->custom_id);
    buf_free(&l->body);
    buf_free(&l->reply);
    mem_free(l);
}

static void batch_push(struct batch_line **list, struct batch_line *l)
{
    while (*list)
        list = &(*list)->next;
    l->next = NULL;
    *list = l;
}

static void batch_free_list(struct batch_line *l)
{
    for (struct batch_line *next; l; l = next) {
        next = l->next;
        batch_line_free(l);
    }
}

static void batch_ring(const struct batch_driver *d)
{
    uint64_t one = 1;
    ssize_t n = write(d->server->bell_fd, &one, sizeof one);
    (void)n; /* it cannot fill up: the loop empties it */
}

/* ---- the loop ---- */

/* A line leaves the loop with this status; its reply is set. */
static void batch_return(struct batch_line *l, int status)
{
    struct batch_driver *d = l->driver;
    if (l->link) {
        *l->link = l->next;
        if (l->next)
            l->next->link = l->link;
    }
    l->link = NULL;
    l->request = NULL;
    l->status = l->reply.failed ? 503 : status;
    pthread_mutex_lock(&d->mutex);
    batch_push(&d->done, l);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
}

static bool batch_full(const void *client)
{
    (void)client;
    return false;
}

static void batch_reply(void *client, const struct buf *body)
{
    struct batch_line *l = client;
    buf_add(&l->reply, body->data, body->failed ? 0 : body->len);
    batch_return(l, body->failed ? 503 : 200);
}

static void batch_fail(void *client, const struct route *r, const struct failure *f)
{
    struct batch_line *l = client;
    buf_clear(&l->reply);
    format_for(r)->error(f, &l->reply);
    batch_return(l, f->status);
}

/* worker.c refuses lines that ask for a stream. */
static void batch_add(void *client, const struct request *a, const char *data, size_t n)
{
    (void)client, (void)a, (void)data, (void)n;
}

static void batch_end(void *client, const char *data, size_t n)
{
    (void)data, (void)n;
    batch_return(client, 500);
}

static const struct recipient batch_recipient = {
    .full = batch_full, .add = batch_add, .end = batch_end, .reply = batch_reply, .fail = batch_fail};

/* The place of a key in the list of keys, from 1; 0 = none; -1 = it is no longer valid. */
static int64_t batch_key(const struct server *s, int64_t owner)
{
    for (size_t i = 0; owner && i < s->o->key_count; i++)
        if (s->o->keys[i].text && s->o->keys[i].owner == owner)
            return (int64_t)i + 1;
    return owner || s->o->key_count ? -1 : 0;
}

/* The key of a line: it is valid, and has tokens left. -1 and the failure. */
static int64_t batch_admit(struct server *s, const struct batch_line *l, struct failure *f)
{
    int64_t key = batch_key(s, l->owner);
    if (key < 0)
        return failure_set(f, 401, "invalid_api_key", NULL, "the key of this batch is no longer valid");
    if (!key)
        return 0;
    pthread_mutex_lock(&s->mutex);
    int refused = quota_check(&s->quotas, l->owner, &s->o->keys[key - 1].quota, time(NULL), f);
    pthread_mutex_unlock(&s->mutex);
    return refused ? -1 : key;
}

static void batch_begin(struct batch_driver *d, struct batch_line *l)
{
    struct failure f = {0};
    int64_t key = batch_admit(d->server, l, &f);
    const struct request_origin from = {d->server, l->route, &batch_recipient, l, (uint32_t)key};
    struct buf body = {0}; /* a copy: the line may be tried again */
    l->link = NULL;
    if (key < 0) {
        l->tries = BATCH_TRIES; /* it would be refused again */
        batch_fail(l, l->route, &f);
        return;
    }
    buf_add(&body, l->body.data, l->body.len);
    buf_clear(&l->reply);
    struct request *a = body.failed ? NULL : request_start_batch(&from, &body);
    buf_free(&body);
    if (!a) {
        batch_return(l, 503);
        return;
    }
    memcpy(l->id, a->id, sizeof l->id);
    l->request = a;
    l->next = d->running;
    l->link = &d->running;
    if (l->next)
        l->next->link = &l->next;
    d->running = l;
}

/* Ends the lines of a batch (0: all) that run. */
static void batch_drop(struct batch_driver *d, int64_t batch)
{
    for (struct batch_line *l = d->running, *next; l; l = next) {
        next = l->next;
        if (batch && l->batch != batch)
            continue;
        request_abandon(l->request);
        buf_clear(&l->reply);
        batch_return(l, 0);
    }
}

void batch_take(struct server *s)
{
    struct batch_driver *d = s->batch;
    if (!d)
        return;
    pthread_mutex_lock(&d->mutex);
    struct batch_line *ready = d->ready;
    int64_t abandon = d->abandon;
    d->ready = NULL;
    d->abandon = 0;
    pthread_mutex_unlock(&d->mutex);
    for (struct batch_line *next; ready; ready = next) {
        next = ready->next;
        batch_begin(d, ready);
    }
    if (abandon)
        batch_drop(d, abandon);
}

void batch_abandon(struct server *s, int64_t batch)
{
    struct batch_driver *d = s->batch;
    pthread_mutex_lock(&d->mutex);
    for (struct batch_line **at = &d->later, *l; (l = *at);) {
        if (l->batch != batch) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        l->status = 0;
        batch_push(&d->done, l);
    }
    d->abandon = batch;
    batch_ring(d);
    pthread_mutex_unlock(&d->mutex);
}

/* ---- the thread ---- */

/* The server had no room, or was loading the model: such a line is tried again. */
static bool batch_tries_again(struct batch_driver *d, struct batch_line *l)
{
    if ((l->status != 429 && l->status != 503) || l->tries >= BATCH_TRIES)
        return false;
    double wait = (double)(1u << l->tries++);
    l->again = clock_now() + (wait < BATCH_WAIT_MOST ? wait : BATCH_WAIT_MOST);
    batch_push(&d->later, l);
    return true;
}

static void batch_hand_over(struct batch_driver *d, struct batch_line *l)
{
    pthread_mutex_lock(&d->mutex);
    batch_push(&d->ready, l);
    batch_ring(d);
    pthread_mutex_unlock(&d->mutex);
}

/* Lines that are due again. */
static void batch_retry(struct batch_driver *d)
{
    double now = clock_now();
    for (struct batch_line **at = &d->later; *at;) {
        struct batch_line *l = *at;
        if (l->again > now) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        batch_hand_over(d, l);
    }
}

/* Takes replies to the feed. */
static int batch_keep(struct batch_driver *d, struct batch_line *done, struct err *e)
{
    int failed = 0;
    for (struct batch_line *next; done; done = next) {
        next = done->next;
        if (!failed && batch_tries_again(d, done))
            continue;
        failed = failed || d->feed.done(d->feed.arg, done, e);
        batch_line_free(done);
        d->count--;
    }
    return failed;
}

/* One more line; false: there is none now. */
static bool batch_next(struct batch_driver *d, struct err *e)
{
    struct batch_line *l = mem_zalloc(1, sizeof *l);
    int r = l ? d->feed.next(d->feed.arg, l, e) : err_memory(e, "a line of a batch", sizeof *l);
    if (r <= 0) {
        d->dry = true;
        d->ended = r < 0;
        if (l)
            batch_line_free(l);
        return false;
    }
    l->driver = d;
    d->count++;
    batch_hand_over(d, l);
    return true;
}

/* Waits until there is something to do; false: the driver is to end. */
static bool batch_wait(struct batch_driver *d, struct batch_line **done)
{
    double until = clock_now() + BATCH_TICK;
    const struct timespec at = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    int late = 0;
    pthread_mutex_lock(&d->mutex);
    while (!d->closing && !d->done && !d->woken && (d->dry || d->count >= d->feed.most) && !late)
        late = pthread_cond_timedwait(&d->work, &d->mutex, &at);
    d->dry = d->ended || (d->dry && !d->woken && !late);
    d->woken = false;
    *done = d->done;
    d->done = NULL;
    bool on = !d->closing;
    pthread_mutex_unlock(&d->mutex);
    return on;
}

static void *batch_thread(void *driver)
{
    struct batch_driver *d = driver;
    struct batch_line *done;
    struct err e = {0};
    bool on = true;
    while (on && !e.code) {
        on = batch_wait(d, &done);
        on &= !batch_keep(d, done, &e);
        batch_retry(d);
        if (d->feed.tick)
            d->feed.tick(d->feed.arg);
        while (on && !d->dry && d->count < d->feed.most && batch_next(d, &e))
            ;
        on &= !(d->ended && !d->count);
    }
    pthread_mutex_lock(&d->mutex);
    d->err = e;
    d->over = !d->closing;
    batch_ring(d);
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* ---- start and stop ---- */

int batch_start(struct server *s, const struct batch_feed *f, struct err *e)
{
    struct batch_driver *d = mem_zalloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "the batches", sizeof *d);
    d->server = s;
    d->feed = *f;
    pthread_mutex_init(&d->mutex, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&d->work, &clock);
    pthread_condattr_destroy(&clock);
    sigset_t all, before; /* the loop handles signals */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    s->batch = d;
    int r = pthread_create(&d->thread, NULL, batch_thread, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r)
        return 0;
    s->batch = NULL;
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->work);
    mem_free(d);
    return err_set(e, ERR_RESOURCE, "cannot start the thread of batches: %s", strerror(r));
}

void batch_wake(struct server *s)
{
    struct batch_driver *d = s->batch;
    if (!d)
        return;
    pthread_mutex_lock(&d->mutex);
    d->woken = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
}

bool batch_is_over(const struct server *s, struct err *e)
{
    struct batch_driver *d = s->batch;
    if (!d)
        return false;
    pthread_mutex_lock(&d->mutex);
    bool over = d->over;
    if (over && d->err.code)
        *e = d->err;
    pthread_mutex_unlock(&d->mutex);
    return over;
}

void batch_stop(struct server *s)
{
    struct batch_driver *d = s->batch;
    if (!d)
        return;
    pthread_mutex_lock(&d->mutex);
    d->closing = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL); /* it has taken all replies that came */
    while (d->running) {
        struct batch_line *l = d->running;
        request_abandon(l->request);
        batch_return(l, 0);
    }
    batch_free_list(d->ready);
    batch_free_list(d->done);
    batch_free_list(d->later);
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->work);
    mem_free(d);
    s->batch = NULL;
}
