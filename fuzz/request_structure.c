/* The body of a request with its structure changed: {"path": ..., "form": the family that the model writes
 * like, "tools": whether its template knows tools, "body": ...}, up to the engine, which has no room for any
 * prompt. It gets a response, or an error with a status and a message, in the API's own shape. */
#include "ready.h"
#include "structure.h"

#include "base/log.h"
#include "serve/api.h"
#include "serve/format.h"
#include "serve/models.h"
#include "serve/ollama.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/vectors.h"

/* Embeddings come from a real model: a tiny cross-encoder. */
static struct instance *vectors_model(void)
{
    static struct served served = {.name = "v"};
    struct instance *f = &served.instances[INSTANCE_VECTORS];
    struct session_options o = {.hidden = true};
    struct store *s = NULL;
    struct err e = {0};
    if (f->session)
        return f;
    log_set_level(LOG_ERROR);
    embedder_runner(&o.runner, false, 64, 4);
    o.runner.device_options.threads = 1;
    f->of = &served;
    if (store_open(&s, FUZZ_DATA "/rank", &e) || session_open(&f->session, s, &o, &e) ||
        embedder_open(&f->embedder, f->session, NULL, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return f;
}

/* As a worker does: where the request waits for its vectors, it is taken up again when they are there. */
static void prepare(struct request *a)
{
    struct server *s = a->server;
    struct worker_lane *l = &s->lanes[a->lane];
    a->route->prepare(a);
    if (!a->waits)
        return;
    pthread_mutex_lock(&s->mutex);
    while (!l->first)
        pthread_cond_wait(&s->work, &s->mutex);
    l->first = NULL;
    l->end = &l->first;
    pthread_mutex_unlock(&s->mutex);
    a->waits = false;
    a->route->prepare(a);
}

static const struct route *find_route(const json_t *doc)
{
    const char *path = json_string_value(json_object_get(doc, "path"));
    const struct route *first = NULL;
    for (size_t i = 0; i < route_count; i++) {
        const struct route *r = &route_table[i];
        bool fits =
            r->prepare && r->prepare != api_load && r->prepare != api_unload && r->prepare != ollama_show;
        if (fits && path && !strcmp(r->path, path))
            return r;
        first = !first && r->prepare == openai_chat ? r : first;
    }
    return first;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *doc = size > 1 << 16 ? NULL : structure_parse(data, size);
    if (!doc)
        return 0;
    const struct route *r = find_route(doc);
    const json_t *said = json_object_get(doc, "body");
    struct request *a = ready_request(r, json_is_true(json_object_get(doc, "tools")));
    uint64_t form = (uint64_t)json_integer_value(json_object_get(doc, "form"));
    if (r->model == ROUTE_VECTORS)
        a->model = vectors_model();
    a->model->session->form = &output_forms[form % output_form_count];
    structure_write(said ? said : doc, &a->body);
    json_t *body = openai_body(a);
    if (body) /* as a worker does, once there is a model */
        prepare(a);
    json_decref(body);
    ready_check(a, r);
    ready_drop(a);
    json_decref(doc);
    return 0;
}
