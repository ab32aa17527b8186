/* Requests on their way to the workers and back to the loop. */
#define _GNU_SOURCE
#include "serve/worker.h"
#include "base/clock.h"
#include "serve/field.h"
#include "serve/models.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { WORKER_SHORT = 64 << 10 }; /* bytes of a body: a few milliseconds of work */

void worker_ring(struct request *a)
{
    struct server *s = a->server;
    if (a->is_ready)
        return;
    a->is_ready = true;
    a->next_ready = s->ready;
    s->ready = a;
    uint64_t one = 1;
    ssize_t n = write(s->bell_fd, &one, sizeof one);
    (void)n; /* it cannot fill up: the loop empties it */
}

void worker_wake(void *request)
{
    struct request *a = request;
    pthread_mutex_lock(&a->server->mutex);
    if (a->prepared) /* else the worker rings when it is through */
        worker_ring(a);
    pthread_mutex_unlock(&a->server->mutex);
}

/* The mutex is held. */
static void worker_queue(struct request *a)
{
    struct server *s = a->server;
    struct worker_lane *l = &s->lanes[a->lane];
    a->again = false;
    a->queued = clock_now();
    *l->end = a;
    l->end = &a->next_todo;
    pthread_cond_signal(&s->work);
}

/* The next request for a worker; NULL = none. In order of arrival, but only one long request at a time; those of batches
 * when there is no other, and one at a time with the long ones. The mutex is held. */
static struct request *worker_take(struct server *s)
{
    struct worker_lane *lanes = s->lanes;
    struct request *small = lanes[LANE_SHORT].first, *large = lanes[LANE_LONG].first;
    bool slow = lanes[LANE_LONG].busy || lanes[LANE_BATCH].busy;
    bool is_large = large && !slow && (!small || large->queued < small->queued);
    struct request *a = is_large ? large : small ? small : slow ? NULL : lanes[LANE_BATCH].first;
    if (!a)
        return NULL;
    struct worker_lane *l = &lanes[a->lane];
    if (!(l->first = a->next_todo))
        l->end = &l->first;
    a->next_todo = NULL;
    a->working = l->busy = true;
    return a;
}

/* A worker releases a request. The mutex is held. */
static void worker_done(struct request *a)
{
    a->working = false;
    a->server->lanes[a->lane].busy = false;
    if (!a->waits) {
        a->prepared = true;
        worker_ring(a);
    } else if (a->again)
        worker_queue(a);
}

void worker_again(struct request *a)
{
    struct server *s = a->server;
    pthread_mutex_lock(&s->mutex);
    a->again = true;
    if (!a->working)
        worker_queue(a);
    pthread_mutex_unlock(&s->mutex);
}

void worker_more(struct request *a)
{
    pthread_mutex_lock(&a->server->mutex);
    a->prepared = false;
    worker_queue(a);
    pthread_mutex_unlock(&a->server->mutex);
}

static void worker_model_ready(struct model_wait *w)
{
    worker_again((struct request *)((char *)w - offsetof(struct request, wait)));
}

/* Whether the name is looked for: with one model for all requests, only where it is one of its names. */
static bool worker_knows(struct server *s, const char *name)
{
    if (!name || !s->o->one_model)
        return true;
    models_lock(s->models);
    bool known = models_find(s->models, name) != NULL;
    models_unlock(s->models);
    return known;
}

int worker_model(struct request *a, enum route_model model)
{
    static const struct model_want wants[] = {[ROUTE_WRITER] = {.kind = INSTANCE_WRITER},
                                              [ROUTE_CHAT] = {.kind = INSTANCE_WRITER, .chat = true},
                                              [ROUTE_VECTORS] = {.kind = INSTANCE_VECTORS},
                                              [ROUTE_WORDS] = {.kind = INSTANCE_WRITER, .any = true}};
    bool first = !a->wait.ready;
    if (a->model || model == ROUTE_NO_MODEL)
        return 0;
    json_t *body = openai_body(a);
    if (!body)
        return -1;
    json_decref(body); /* the request keeps a reference */
    if (a->batch && (field_bool(body, "stream") || field_bool(body, "background")))
        return request_fail(a, 400, "stream",
                            "a line of a batch has no stream, and does not run in the background");
    if (first) {
        struct model_want want = wants[model];
        const json_t *name = json_object_get(body, "model");
        name = name ? name : json_object_get(body, "name"); /* older programs of Ollama's */
        if (name && !json_is_string(name))
            return request_fail(a, 400, "model", "model has to be a text");
        want.name = worker_knows(a->server, json_string_value(name)) ? json_string_value(name) : NULL;
        want.chat |= json_object_get(body, "messages") != NULL;
        a->adapted = models_adapts(a->server->models, want.name);
        a->wait.ready = worker_model_ready;
        a->waits = models_take(a->server->models, &want, &a->wait) == TAKEN_LATER;
        if (a->waits)
            return -1;
    }
    a->model = a->wait.form;
    a->got = clock_now();
    if (!a->model)
        a->failure = a->wait.failure;
    else
        a->called = models_called(a->server->models, a->model->of, field_text(body, "model"));
    return a->model ? 0 : -1;
}

static void *worker_thread(void *arg)
{
    struct server *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        struct request *a;
        while (!(a = worker_take(s)) && !s->closing)
            pthread_cond_wait(&s->work, &s->mutex);
        if (!a) /* what is left of the other lanes is for the worker that has one of them */
            break;
        pthread_mutex_unlock(&s->mutex);
        a->waits = false;
        if (!atomic_load(&a->gone) && !worker_model(a, a->route->model))
            a->route->prepare(a);
        if (!a->waits)
            request_drop_body(a);
        pthread_mutex_lock(&s->mutex);
        worker_done(a);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void worker_add(struct request *a)
{
    struct server *s = a->server;
    a->lane = a->batch ? LANE_BATCH : a->body.len > WORKER_SHORT ? LANE_LONG : LANE_SHORT;
    pthread_mutex_lock(&s->mutex);
    worker_queue(a);
    pthread_mutex_unlock(&s->mutex);
}

struct request *worker_ready(struct server *s)
{
    pthread_mutex_lock(&s->mutex);
    struct request *a = s->ready;
    if (a) {
        s->ready = a->next_ready;
        a->is_ready = false;
    }
    pthread_mutex_unlock(&s->mutex);
    return a;
}

void worker_forget(struct request *a)
{
    struct server *s = a->server;
    pthread_mutex_lock(&s->mutex);
    for (struct request **at = &s->ready; *at; at = &(*at)->next_ready)
        if (*at == a) {
            *at = a->next_ready;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
}

int worker_start(struct server *s, struct err *e)
{
    for (int i = 0; i < LANES; i++)
        s->lanes[i].end = &s->lanes[i].first;
    /* the loop handles signals */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* faults are delivered to the thread itself */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = 0;
    while (s->worker_count < WORKERS && !r)
        if (!(r = pthread_create(&s->workers[s->worker_count], NULL, worker_thread, s)))
            s->worker_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r ? err_set(e, ERR_RESOURCE, "cannot start a worker: %s", strerror(r)) : 0;
}

void worker_stop(struct server *s)
{
    pthread_mutex_lock(&s->mutex);
    s->closing = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->mutex);
    for (int i = 0; i < s->worker_count; i++)
        pthread_join(s->workers[i], NULL);
    s->worker_count = 0;
}
