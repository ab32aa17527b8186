/* The batches of the state as a feed of lines. All of it runs on the driver's thread, except for what says otherwise. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/sql.h"
#include "save/state.h"
#include "serve/batch.h"
#include "serve/batches.h"
#include "serve/batches_internal.h"
#include "serve/files.h"
#include "serve/limit.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double RETRY_SECONDS = 1;   /* until a reply that found no room is stored again */
static const double EXPIRE_SECONDS = 60; /* between two looks at the files' times */

/* A reply on its way to the state. */
struct line_done {
    struct state_write write;
    struct batches *all;
    int64_t batch, number;
    int status;
    struct buf reply;
    struct line_done *next;
};

/* ---- replies ---- */

/* Once: a line that has a status keeps it. */
static int line_done_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    const struct line_done *d = (const struct line_done *)w;
    struct sql q;
    sql_begin(&q, db,
              "UPDATE batch_lines SET status = ?, reply = ?, body = NULL WHERE batch = ? AND number = ? AND "
              "status IS NULL",
              e);
    sql_bind_int(&q, d->status);
    sql_bind_bytes(&q, d->reply.data, d->reply.len);
    sql_bind_int(&q, d->batch);
    sql_bind_int(&q, d->number);
    if (sql_end(&q))
        return -1;
    if (!sqlite3_changes(db))
        return 0;
    sql_begin(&q, db, "UPDATE batches SET completed = completed + ?, failed = failed + ? WHERE number = ?",
              e);
    sql_bind_int(&q, d->status == 200);
    sql_bind_int(&q, d->status != 200);
    sql_bind_int(&q, d->batch);
    return sql_end(&q);
}

/* The mutex is held. */
static void line_left(struct batches *all, int64_t batch)
{
    for (uint32_t i = 0; i < all->count; i++)
        if (all->open[i].number == batch)
            all->open[i].running--;
}

/* On the writer. A reply that found no room is kept, and stored later. */
static void line_done_stored(struct state_write *w)
{
    struct line_done *d = (struct line_done *)w;
    struct batches *all = d->all;
    bool stored = !w->err.code;
    pthread_mutex_lock(&all->mutex);
    if (stored)
        line_left(all, d->batch);
    else {
        d->next = all->unsaved;
        all->unsaved = d;
    }
    if (stored && !all->stopping)
        batch_wake(all->server); /* it may have been the last */
    all->pending--;
    pthread_cond_signal(&all->idle);
    pthread_mutex_unlock(&all->mutex);
    if (stored) {
        buf_free(&d->reply);
        mem_free(d);
    }
}

static void line_store(struct line_done *d)
{
    struct batches *all = d->all;
    struct err e = {0};
    pthread_mutex_lock(&all->mutex);
    all->pending++;
    pthread_mutex_unlock(&all->mutex);
    if (!state_write(all->server->o->state, &d->write, &e))
        return;
    d->write.err = e;
    line_done_stored(&d->write);
}

static void batches_store_again(struct batches *all)
{
    double now = clock_now();
    if (now - all->tried < RETRY_SECONDS)
        return;
    all->tried = now;
    pthread_mutex_lock(&all->mutex);
    struct line_done *list = all->unsaved;
    all->unsaved = NULL;
    pthread_mutex_unlock(&all->mutex);
    for (struct line_done *next; list; list = next) {
        next = list->next;
        line_store(list);
    }
}

/* The line of Anthropic's results. */
static void batches_write_result(const struct batch_line *l, struct buf *out)
{
    bool good = l->status == 200;
    buf_str(out, "{\"custom_id\":\"");
    json_escape(out, l->custom_id, strlen(l->custom_id));
    buf_printf(out, "\",\"result\":{\"type\":\"%s\",\"%s\":", good ? "succeeded" : "errored",
               good ? "message" : "error");
    buf_add(out, l->reply.len ? l->reply.data : "null", l->reply.len ? l->reply.len : 4);
    buf_str(out, "}}\n");
}

static int batches_done(void *arg, struct batch_line *l, struct err *e)
{
    struct batches *all = arg;
    struct line_done *d = l->status ? mem_zalloc(1, sizeof *d) : NULL;
    (void)e;
    if (!d) { /* it was abandoned */
        pthread_mutex_lock(&all->mutex);
        line_left(all, l->batch);
        pthread_mutex_unlock(&all->mutex);
        return 0;
    }
    *d = (struct line_done){.all = all, .batch = l->batch, .number = l->number, .status = l->status};
    if (l->route->api == API_ANTHROPIC)
        batches_write_result(l, &d->reply);
    else
        batch_write_line(l, &d->reply);
    d->write = (struct state_write){.run = line_done_run, .done = line_done_stored, .bytes = d->reply.len};
    line_store(d);
    return 0;
}

/* ---- lines ---- */

/* The next line of a batch that has none yet; false: all have been handed out. */
static bool batches_next_of(struct batches *all, struct open_batch *b, struct batch_line *l)
{
    struct state *s = all->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    struct sql q;
    size_t n;
    sql_begin(
        &q, db,
        "SELECT number, custom_id, body FROM batch_lines WHERE batch = ? AND number > ? AND status IS NULL "
        "ORDER BY number LIMIT 1",
        &e);
    sql_bind_int(&q, b->number);
    sql_bind_int(&q, b->at);
    bool found = sql_step(&q);
    if (found) {
        l->number = b->at = sql_int(&q, 0);
        l->custom_id = mem_strdup(sql_text(&q, 1, NULL));
        const char *body = sql_text(&q, 2, &n);
        buf_add(&l->body, body, n);
    }
    if (sql_end(&q))
        log_error("the lines of batch %s cannot be read: %s", b->id, e.text);
    state_release(s, db);
    b->all = !found && !e.code;
    return found && l->custom_id && !l->body.failed;
}

static bool batches_has_unsaved(struct batches *all)
{
    pthread_mutex_lock(&all->mutex);
    bool any = all->unsaved != NULL;
    pthread_mutex_unlock(&all->mutex);
    return any;
}

/* From each batch in turn. */
static int batches_next(void *arg, struct batch_line *l, struct err *e)
{
    struct batches *all = arg;
    struct err full = {0};
    (void)e;
    if (batches_has_unsaved(all) || state_check(all->server->o->state, &full))
        return 0;
    for (uint32_t i = 0; i < all->count; i++) {
        struct open_batch *b = &all->open[all->turn++ % all->count];
        if (b->validating || b->all || b->stops || !batches_next_of(all, b, l))
            continue;
        l->batch = b->number;
        l->owner = b->owner;
        l->route = route_batch(b->endpoint);
        pthread_mutex_lock(&all->mutex);
        b->running++;
        pthread_mutex_unlock(&all->mutex);
        return 1;
    }
    return 0;
}

/* ---- which batches are open ---- */

static struct open_batch *batches_known(struct batches *all, int64_t number)
{
    for (uint32_t i = 0; i < all->count; i++)
        if (all->open[i].number == number)
            return &all->open[i];
    return NULL;
}

/* New ones are added, and those to be cancelled are noted. */
static void batches_look(struct batches *all)
{
    struct state *s = all->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    struct sql q;
    sql_begin(&q, db,
              "SELECT number, key, api, id, endpoint, input, expires, status, cancelling FROM batches WHERE "
              "ended = 0 "
              "ORDER BY number",
              &e);
    while (sql_step(&q)) {
        struct open_batch *b = batches_known(all, sql_int(&q, 0));
        if (!b && all->count == BATCHES_MOST)
            break;
        if (!b) {
            b = &all->open[all->count];
            *b = (struct open_batch){.number = sql_int(&q, 0),
                                     .owner = sql_int(&q, 1),
                                     .api = (int)sql_int(&q, 2),
                                     .expires = sql_int(&q, 6),
                                     .validating = !strcmp(sql_text(&q, 7, NULL), "validating")};
            const char *input = sql_text(&q, 5, NULL);
            snprintf(b->id, sizeof b->id, "%s", sql_text(&q, 3, NULL));
            snprintf(b->endpoint, sizeof b->endpoint, "%s", sql_text(&q, 4, NULL));
            snprintf(b->input, sizeof b->input, "%s", input ? input : "");
            pthread_mutex_lock(&all->mutex);
            all->count++;
            pthread_mutex_unlock(&all->mutex);
        }
        b->cancelling = sql_int(&q, 8) != 0;
    }
    if (sql_end(&q))
        log_error("the batches cannot be read: %s", e.text);
    state_release(s, db);
}

static void batches_forget(struct batches *all, struct open_batch *b)
{
    pthread_mutex_lock(&all->mutex);
    *b = all->open[--all->count];
    pthread_mutex_unlock(&all->mutex);
}

static uint32_t batches_running(struct batches *all, const struct open_batch *b)
{
    pthread_mutex_lock(&all->mutex);
    uint32_t n = b->running;
    pthread_mutex_unlock(&all->mutex);
    return n;
}

/* One step of a batch's life; true: it has ended. */
static bool batches_advance(struct batches *all, struct open_batch *b, int64_t now)
{
    b->stops = b->cancelling || now >= b->expires;
    if (b->validating && !b->stops)
        return batches_validate(all, b);
    if (!b->all && !b->stops)
        return false;
    if (!batches_running(all, b))
        return batches_finish(all, b);
    if (b->stops)
        batch_abandon(all->server, b->number);
    return false;
}

struct expire_files {
    struct state_write write;
};

static int expire_files_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    (void)w;
    return files_expire(db, time(NULL), e);
}

static void batches_tick(void *arg)
{
    struct batches *all = arg;
    double now = clock_now();
    struct err e = {0};
    pthread_mutex_lock(&all->mutex);
    bool changed = all->changed;
    all->changed = false;
    pthread_mutex_unlock(&all->mutex);
    if (changed)
        batches_look(all);
    if (batches_has_unsaved(all))
        batches_store_again(all);
    for (uint32_t i = 0; i < all->count;) {
        if (batches_advance(all, &all->open[i], time(NULL)))
            batches_forget(all, &all->open[i]);
        else
            i++;
    }
    if (now - all->expired < EXPIRE_SECONDS)
        return;
    all->expired = now;
    struct expire_files x = {.write.run = expire_files_run};
    if (state_write_wait(all->server->o->state, &x.write, &e))
        log_warn("old files cannot be removed: %s", e.text);
}

/* ---- start and stop: the loop's ---- */

int batches_start(struct server *s, uint32_t lines, struct err *e)
{
    struct batches *all = mem_zalloc(1, sizeof *all);
    if (!all)
        return err_memory(e, "the batches", sizeof *all);
    all->server = s;
    all->changed = true;
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->idle, NULL);
    s->batches = all;
    const struct batch_feed feed = {
        .next = batches_next, .done = batches_done, .tick = batches_tick, .arg = all, .most = lines};
    return batch_start(s, &feed, e);
}

void batches_stop(struct server *s)
{
    pthread_mutex_lock(&s->mutex); /* against batches_changed */
    struct batches *all = s->batches;
    s->batches = NULL;
    pthread_mutex_unlock(&s->mutex);
    if (all) {
        pthread_mutex_lock(&all->mutex);
        all->stopping = true;
        pthread_mutex_unlock(&all->mutex);
    }
    batch_stop(s);
    if (!all)
        return;
    pthread_mutex_lock(&all->mutex);
    while (all->pending)
        pthread_cond_wait(&all->idle, &all->mutex);
    pthread_mutex_unlock(&all->mutex);
    for (struct line_done *d = all->unsaved, *next; d; d = next) { /* these lines are run again */
        next = d->next;
        buf_free(&d->reply);
        mem_free(d);
    }
    pthread_mutex_destroy(&all->mutex);
    pthread_cond_destroy(&all->idle);
    mem_free(all);
}

void batches_changed(struct server *s)
{
    pthread_mutex_lock(&s->mutex);
    struct batches *all = s->batches;
    if (all) {
        pthread_mutex_lock(&all->mutex);
        all->changed = true;
        pthread_mutex_unlock(&all->mutex);
        batch_wake(s);
    }
    pthread_mutex_unlock(&s->mutex);
}
