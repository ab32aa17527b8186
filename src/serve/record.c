#include "serve/record.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/format.h"
#include "serve/models.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/usage.h"
#include "serve/vectors.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int record_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct record *r = (struct record *)w;
    return usage_add(db, &r->usage, e) || (r->kept && r->store(r->kept, db, e)) ? -1 : 0;
}

static void record_free(struct record *r)
{
    if (r->kept)
        r->drop(r->kept);
    mem_free(r);
}

/* Usage that the disk did not take waits in memory; rows of the same kind become one. The mutex is held. */
static void record_keep(struct record *r)
{
    struct server *s = r->server;
    for (struct record *o = s->unsaved; o; o = o->next)
        if (o->usage.day == r->usage.day && o->usage.key == r->usage.key && !strcmp(o->model, r->model)) {
            o->usage.requests += r->usage.requests;
            o->usage.errors += r->usage.errors;
            o->usage.read += r->usage.read;
            o->usage.cached += r->usage.cached;
            o->usage.written += r->usage.written;
            record_free(r);
            return;
        }
    if (r->kept)
        r->drop(r->kept);
    r->kept = NULL;
    r->next = s->unsaved;
    s->unsaved = r;
}

/* On the writer. Where only the usage was to be stored, the client gets its answer all the same. */
static void record_done(struct state_write *w)
{
    struct record *r = (struct record *)w;
    struct server *s = r->server;
    bool stored = !w->err.code;
    pthread_mutex_lock(&s->mutex);
    struct request *a = r->request;
    if (a) {
        if (!stored && r->kept)
            request_fail_state(a, &w->err);
        a->record = NULL;
        atomic_store(&a->recorded, true);
        worker_ring(a);
    }
    r->request = NULL;
    if (!stored)
        record_keep(r); /* which may free it */
    pthread_mutex_unlock(&s->mutex);
    if (stored)
        record_free(r);
}

struct record *record_new(struct request *a)
{
    struct record *r = a->server->o->state ? mem_zalloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    struct usage used = request_usage(a);
    *r =
        (struct record){.write = {.run = record_run, .done = record_done}, .server = a->server, .request = a};
    if (a->model)
        snprintf(r->model, sizeof r->model, "%s", a->model->of->name);
    r->usage = (struct usage_row){.day = usage_day(time(NULL)),
                                  .key = a->owner,
                                  .model = r->model,
                                  .requests = 1,
                                  .errors = a->failure.status != 0,
                                  .read = used.prompt + (a->vectors ? a->vectors->tokens : 0),
                                  .cached = used.cached,
                                  .written = used.made};
    return r;
}

bool record_send(struct record *r, bool wait)
{
    struct err e = {0};
    struct server *s = r->server;
    struct request *a = r->request;
    bool kept = r->kept;
    r->write.bytes = sizeof *r + r->kept_bytes;
    a->accounted = true;
    pthread_mutex_lock(&s->mutex);
    quota_add(&s->quotas, r->usage.key, r->usage.day, r->usage.read + r->usage.written);
    r->request = wait ? a : NULL;
    a->record = r->request ? r : NULL;
    pthread_mutex_unlock(&s->mutex);
    if (!state_write(s->o->state, &r->write, &e))
        return wait;
    if (wait && kept)
        request_fail_state(a, &e);
    pthread_mutex_lock(&s->mutex);
    a->record = NULL;
    record_keep(r);
    pthread_mutex_unlock(&s->mutex);
    return false;
}

void record_post(struct request *a)
{
    struct record *r = a->accounted || a->route->light ? NULL : record_new(a);
    if (r)
        record_send(r, false);
}

void record_leave(struct request *a)
{
    pthread_mutex_lock(&a->server->mutex);
    if (a->record)
        a->record->request = NULL;
    a->record = NULL;
    pthread_mutex_unlock(&a->server->mutex);
}

void record_retry(struct server *s)
{
    struct err e = {0};
    pthread_mutex_lock(&s->mutex);
    struct record *list = s->unsaved;
    s->unsaved = NULL;
    pthread_mutex_unlock(&s->mutex);
    for (struct record *next; list; list = next) {
        next = list->next;
        if (!state_write(s->o->state, &list->write, &e))
            continue;
        pthread_mutex_lock(&s->mutex);
        record_keep(list);
        pthread_mutex_unlock(&s->mutex);
    }
}

void record_free_unsaved(struct server *s)
{
    for (struct record *r; (r = s->unsaved);) {
        s->unsaved = r->next;
        record_free(r);
    }
}
