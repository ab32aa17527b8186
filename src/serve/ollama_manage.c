/* Ollama's /api/pull, /api/create, /api/copy and /api/delete, for admin keys: the work is the manager's (manager.h). A
 * thread for each request reads the manager's lines; the reply is sent in parts as they come. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/preset.h"
#include "run/preset.h"
#include "serve/field.h"
#include "serve/manager.h"
#include "serve/ollama.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/server_internal.h"
#include "serve/worker.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct manage_task {
    struct request *request;
    char *model;  /* whose list entry changes */
    bool removes; /* it is deleted */
    bool quiet;   /* the reply of a success is empty: copy, delete */
    int fd;
    pthread_t thread;
    bool running;
    pthread_mutex_t mutex;
    json_t *last;     /* the last line that was read */
    struct buf lines; /* that have come; guarded, as the next two */
    bool done;
    bool waiting; /* the request waits for more */
};

static void manage_drop(void *task)
{
    struct manage_task *t = task;
    shutdown(t->fd, SHUT_RDWR);
    if (t->running)
        pthread_join(t->thread, NULL);
    close(t->fd);
    pthread_mutex_destroy(&t->mutex);
    buf_free(&t->lines);
    json_decref(t->last);
    mem_free(t->model);
    mem_free(t);
}

/* Something came, the work has ended, or the client has gone: a worker takes the request up. */
static void manage_wake(struct manage_task *t)
{
    pthread_mutex_lock(&t->mutex);
    bool wake = t->waiting;
    t->waiting = false;
    pthread_mutex_unlock(&t->mutex);
    if (wake)
        worker_again(t->request);
}

static void *manage_read(void *arg)
{
    struct manage_task *t = arg;
    char part[4096];
    for (bool more = true; more;) {
        ssize_t n = recv(t->fd, part, sizeof part, 0);
        bool silent = n < 0 && (errno == EAGAIN || errno == EINTR);
        more = n > 0 || silent;
        if (silent && !atomic_load(&t->request->gone))
            continue;
        pthread_mutex_lock(&t->mutex);
        if (n > 0)
            buf_add(&t->lines, part, (size_t)n);
        t->done = !more;
        pthread_mutex_unlock(&t->mutex);
        manage_wake(t);
    }
    return NULL;
}

/* Waits a moment for the list to follow, so that the client's next request finds the model. */
static void manage_settle(struct models *m, const char *name, bool there)
{
    for (int i = 0; i < 100; i++) {
        models_lock(m);
        bool found = models_find(m, name) != NULL;
        models_unlock(m);
        if (found == there)
            return;
        usleep(20000);
    }
}

/* The last line decides; the list of models follows it. Returns its error, or NULL. */
static const char *manage_end(struct request *a, const struct manage_task *t, const json_t *last)
{
    const struct server_options *o = a->server->o;
    const char *error = json_string_value(json_object_get(last, "error")),
               *status = json_string_value(json_object_get(last, "status"));
    if (error || !status || strcmp(status, "success") != 0)
        return error ? error : "the process that manages models has ended before its work";
    const struct model_change change = {.name = t->model,
                                        .path = t->removes ? NULL
                                                           : json_string_value(json_object_get(last, "path")),
                                        .preset = json_object_get(last, "preset")};
    if (t->removes)
        models_stop(a->server->models, t->model);
    if (o->change_models)
        o->change_models(o->arg, &change);
    models_rescan(a->server->models);
    manage_settle(a->server->models, t->model, !t->removes);
    return NULL;
}

/* Paths of this machine are not for clients. */
static void manage_public(struct buf *out, json_t *line)
{
    json_object_del(line, "path");
    json_object_del(line, "preset");
    json_object_del(line, "code");
    char *text = json_dumps(line, JSON_COMPACT);
    buf_str(out, text ? text : "{}");
    buf_char(out, '\n');
    mem_free(text);
}

static void manage_fail(struct request *a, const json_t *last, const char *error)
{
    json_int_t code = json_integer_value(json_object_get(last, "code"));
    bool missing = code == ERR_DATA && strstr(error, "no");
    request_fail(a, missing ? 404 : code == ERR_USAGE || code == ERR_DATA ? 400 : 502, "model", "%s", error);
}

/* The line of the result, which is sent when the list has followed it. */
static bool manage_is_end(const json_t *line)
{
    const char *status = json_string_value(json_object_get(line, "status"));
    return json_object_get(line, "error") || (status && !strcmp(status, "success"));
}

/* Whole lines that have come; the last one, too, where the work has ended. */
static void manage_take(struct request *a)
{
    struct manage_task *t = a->task;
    const char *error = NULL;
    pthread_mutex_lock(&t->mutex);
    size_t from = 0;
    for (char *end; from < t->lines.len && (end = memchr(t->lines.data + from, '\n', t->lines.len - from));) {
        json_decref(t->last);
        t->last = json_loadb(t->lines.data + from, (size_t)(end - t->lines.data) - from, 0, NULL);
        from = (size_t)(end - t->lines.data) + 1;
        if (a->stream && t->last && !manage_is_end(t->last))
            manage_public(&a->reply, t->last);
    }
    bool done = t->done;
    memmove(t->lines.data, t->lines.data + from, t->lines.len - from);
    t->lines.len -= from;
    a->waits = !done && !a->reply.len;
    t->waiting = a->waits;
    pthread_mutex_unlock(&t->mutex);
    a->partial = !done;
    if (!done)
        return;
    error = manage_end(a, t, t->last);
    if (a->stream && manage_is_end(t->last))
        manage_public(&a->reply, t->last);
    else if (a->stream)
        buf_printf(&a->reply, "{\"error\":\"%s\"}\n", error ? error : "");
    else if (error)
        manage_fail(a, t->last, error);
    else
        buf_str(&a->reply, t->quiet ? "" : "{\"status\":\"success\"}");
}

/* Sends the request to the manager. Takes over the object. */
static void manage_begin(struct request *a, json_t *order, bool quiet)
{
    struct manager *m = a->server->o->manager;
    struct err e = {0};
    const char *verb = json_string_value(json_object_get(order, "do")),
               *model = json_string_value(json_object_get(order, strcmp(verb, "copy") ? "model" : "to"));
    char *text = json_dumps(order, JSON_COMPACT);
    struct manage_task *t = mem_zalloc(1, sizeof *t);
    if (!m)
        request_fail(
            a, 501, NULL,
            "this server does not manage models: it needs an admin key (--admin-key-file) or --manage");
    else if (!model || !preset_is_name(model))
        request_fail(a, 400, "model", "model has to be a name: letters, digits and -_.:/");
    else if (!t || !text || !(t->model = mem_strdup(model)))
        request_fail(a, 503, NULL, "out of memory");
    else if ((t->fd = manager_call(m, text, strlen(text), &e)) < 0)
        request_fail(a, 503, NULL, "%s", e.text);
    if (!a->failure.status) {
        t->request = a;
        t->removes = !strcmp(verb, "delete");
        t->quiet = quiet;
        pthread_mutex_init(&t->mutex, NULL);
        a->task = t;
        a->drop_task = manage_drop;
        a->stage = 1;
        a->type = a->stream ? "application/x-ndjson" : NULL;
        t->running = !pthread_create(&t->thread, NULL, manage_read, t);
        if (!t->running)
            request_fail(a, 503, NULL, "cannot start a thread");
        else
            manage_take(a);
    } else if (t) {
        mem_free(t->model);
        mem_free(t);
    }
    mem_free(text);
    json_decref(order);
}

/* The name, under either of its keys. */
static const char *manage_name(const json_t *body)
{
    const char *model = field_text(body, "model");
    return model ? model : field_text(body, "name");
}

static json_t *manage_body(struct request *a, bool streams)
{
    json_t *body = openai_body(a);
    const json_t *stream = json_object_get(body, "stream");
    a->stream = streams && body && !json_is_false(stream);
    if (body && !manage_name(body) && streams)
        request_fail(a, 400, "model", "model is missing");
    if (!a->failure.status)
        return body;
    json_decref(body);
    return NULL;
}

void ollama_pull(struct request *a)
{
    if (a->stage) {
        manage_take(a);
        return;
    }
    json_t *body = manage_body(a, true);
    if (body)
        manage_begin(a, json_pack("{s:s,s:s}", "do", "pull", "model", manage_name(body)), false);
    json_decref(body);
}

/* A preset of the body's fields, or of the text of a Modelfile. */
static json_t *manage_entry(struct request *a, const json_t *body)
{
    static const char *const same[] = {"from", "system", "template", "parameters", "messages", "adapters"};
    const char *file = field_text(body, "modelfile");
    struct err e = {0};
    json_t *entry = file ? modelfile_read(file, strlen(file), "/", &e) : json_object();
    for (size_t i = 0; !file && i < sizeof same / sizeof *same; i++)
        if (json_object_get(body, same[i]))
            json_object_set(entry, same[i], json_object_get(body, same[i]));
    const json_t *license = json_object_get(body, "license");
    if (!file && json_is_string(license))
        json_object_set(entry, "license", (json_t *)(uintptr_t)license);
    if (!e.code && (json_object_get(body, "files") || json_object_get(body, "quantize")))
        err_set(
            &e, ERR_USAGE,
            "files and quantize are not taken here: 'quern quantize' makes files, and from names a model");
    if (!e.code && !preset_check(entry, "the request", &e) && !preset_template(entry, &e))
        preset_check_parameters(json_object_get(entry, "parameters"), &e);
    const char *from = field_text(entry, "from");
    if (!e.code && (from[0] == '/' || from[0] == '.' || from[0] == '~' || json_object_get(entry, "adapters")))
        err_set(&e, ERR_USAGE, "paths of the server's machine are not taken here: 'quern create' takes them");
    if (!e.code)
        return entry;
    request_fail(a, 400, "from", "%s", e.text);
    json_decref(entry);
    return NULL;
}

void ollama_create(struct request *a)
{
    if (a->stage) {
        manage_take(a);
        return;
    }
    json_t *body = manage_body(a, true), *entry = body ? manage_entry(a, body) : NULL;
    if (entry)
        manage_begin(
            a, json_pack("{s:s,s:s,s:o}", "do", "create", "model", manage_name(body), "entry", entry), false);
    json_decref(body);
}

void ollama_copy(struct request *a)
{
    if (a->stage) {
        manage_take(a);
        return;
    }
    json_t *body = manage_body(a, false);
    const char *from = field_text(body, "source"), *to = field_text(body, "destination");
    if (body && (!from || !to))
        request_fail(a, 400, "source", "source and destination are missing");
    else if (body)
        manage_begin(a, json_pack("{s:s,s:s,s:s}", "do", "copy", "model", from, "to", to), true);
    json_decref(body);
}

/* A model of the command line, or of its folder. */
static bool manage_stays(struct request *a, const char *name)
{
    models_lock(a->server->models);
    const struct served *s = models_find(a->server->models, name);
    bool stays = s && !s->removable;
    models_unlock(a->server->models);
    return stays;
}

void ollama_delete(struct request *a)
{
    if (a->stage) {
        manage_take(a);
        return;
    }
    json_t *body = manage_body(a, false);
    const char *model = body ? manage_name(body) : NULL;
    if (body && !model)
        request_fail(a, 400, "model", "model is missing");
    else if (body && manage_stays(a, model))
        request_fail(
            a, 400, "model",
            "'%s' was named when the server was started, and stays; 'quern rm' removes what was pulled",
            log_safe(model));
    else if (body)
        manage_begin(a, json_pack("{s:s,s:s}", "do", "delete", "model", model), true);
    json_decref(body);
}
