/* What there is, without loading any of it: the models, their slots and their properties. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "run/engine.h"
#include "run/image_text.h"
#include "run/session.h"
#include "serve/anthropic.h"
#include "serve/api.h"
#include "serve/conn.h"
#include "serve/failure.h"
#include "serve/models.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <string.h>

enum { API_NAME = 512 };

/* Facts of the header, by llama.cpp's names where it has one. */
static void api_write_meta(struct json *j, const struct served_facts *f)
{
    const struct {
        const char *name;
        bool has;
    } can[] = {{"chat", f->can_chat},
               {"tools", f->can_call},
               {"reasoning", f->can_think},
               {"vision", f->can_see},
               {"vectors", f->encoder}};
    json_key(j, "meta");
    json_begin(j, '{');
    json_key(j, "n_params");
    json_uint(j, f->parameters);
    json_key(j, "size");
    json_uint(j, f->bytes);
    json_key(j, "n_ctx_train");
    json_uint(j, f->trained);
    json_key(j, "n_embd");
    json_uint(j, f->width);
    json_key(j, "family");
    json_str(j, f->family);
    json_key(j, "type");
    json_str(j, f->type ? f->type : "");
    json_key(j, "capabilities");
    json_begin(j, '[');
    for (size_t i = 0; i < sizeof can / sizeof *can; i++)
        if (can[i].has)
            json_str(j, can[i].name);
    json_end(j, ']');
    json_end(j, '}');
}

/* Where it is, how much it takes there, and how far its loading is. */
static void api_write_status(struct json *j, const struct served *s)
{
    uint64_t bytes = 0;
    const char *device = NULL;
    const struct instance *loading = NULL;
    json_key(j, "status");
    json_begin(j, '{');
    json_key(j, "value");
    json_str(j, models_state(s));
    for (int i = 0; i < INSTANCES; i++) {
        const struct instance *f = &s->instances[i];
        if (f->state == INSTANCE_LOADING)
            loading = f;
        else
            bytes += f->bytes;
        if ((f->state == INSTANCE_READY || f->state == INSTANCE_LEAVING) && f->session && !device)
            device = f->device;
    }
    if (loading) {
        json_key(j, "progress");
        json_num(j, loading->progress);
    }
    if (device) {
        json_key(j, "device");
        json_str(j, device);
        json_key(j, "memory");
        json_uint(j, bytes);
    }
    json_end(j, '}');
}

struct api_writer {
    struct json j;
    const struct models *models;
};

/* name: its own, an alias, or that of an adapter */
static void api_write_model(void *writer, const struct served *s, const char *name)
{
    struct json *j = &((struct api_writer *)writer)->j;
    const struct served_adapter *a = models_adapter(((struct api_writer *)writer)->models, name);
    json_begin(j, '{');
    json_key(j, "id");
    json_str(j, name);
    json_key(j, "object");
    json_str(j, "model");
    json_key(j, "created");
    json_int(j, s->facts.modified);
    json_key(j, "owned_by");
    json_str(j, "quern");
    if (a) { /* as vLLM has it */
        json_key(j, "parent");
        json_str(j, s->name);
    }
    json_key(j, "max_model_len");
    json_uint(j, s->facts.context);
    api_write_meta(j, &s->facts);
    api_write_status(j, s);
    json_end(j, '}');
}

void api_models(struct conn *c)
{
    if (conn_is_anthropic(c)) {
        anthropic_models(c);
        return;
    }
    struct buf out = {0};
    struct api_writer w = {{.out = &out}, c->server->models};
    struct json *j = &w.j;
    json_begin(j, '{');
    json_key(j, "object");
    json_str(j, "list");
    json_key(j, "data");
    json_begin(j, '[');
    models_lock(c->server->models);
    models_each(c->server->models, api_write_model, &w);
    models_unlock(c->server->models);
    json_end(j, ']');
    json_end(j, '}');
    route_json(c, 200, &out);
}

static void api_no_model(struct conn *c)
{
    struct failure f = {0};
    failure_set(&f, 404, "model_not_found", "model",
                "there is no such model; /v1/models lists what there is");
    conn_fail(c, &f);
}

/* The model of ?model=, else the first. Locked; NULL: there is none. */
static const struct served *api_chosen(struct conn *c)
{
    char name[API_NAME];
    struct models *m = c->server->models;
    models_lock(m);
    return route_query(c, "model", name, sizeof name) ? models_find(m, name) : models_first(m);
}

void api_model(struct conn *c)
{
    char name[API_NAME];
    struct buf out = {0};
    struct models *m = c->server->models;
    struct api_writer w = {{.out = &out}, m};
    bool is_name = route_part(c, 0, name, sizeof name);
    models_lock(m);
    const struct served *s = is_name ? models_find(m, name) : NULL;
    const char *called = s && !models_adapter(m, name) ? models_called(m, s, name) : name;
    if (s && conn_is_anthropic(c))
        anthropic_write_model(&w.j, s, called);
    else if (s)
        api_write_model(&w, s, called);
    models_unlock(m);
    if (s)
        route_json(c, 200, &out);
    else
        api_no_model(c);
}

static void api_write_sampling(const struct sampler_params *p, struct json *j)
{
    for (size_t i = 0; i < sampler_field_count; i++) {
        json_key(j, sampler_fields[i].name);
        json_num(j, *(const double *)((const char *)p + sampler_fields[i].offset));
    }
}

/* Template and tokens; nothing where the model is not loaded. */
static void api_write_text(const struct session *l, struct json *j)
{
    static const struct {
        const char *key;
        enum tok_role role;
    } tokens[] = {{"bos_token", TOK_BOS}, {"eos_token", TOK_EOS}};
    json_key(j, "modalities");
    json_begin(j, '{');
    json_key(j, "vision");
    json_bool(j, l && l->vision);
    json_key(j, "audio");
    json_bool(j, false);
    json_end(j, '}');
    if (l && l->vision) {
        json_key(j, "media_marker");
        json_str(j, IMAGE_TEXT_MARK);
    }
    if (!l || !l->tokenizer)
        return;
    json_key(j, "chat_template");
    json_str(j, l->chat ? chat_text(l->chat) : "");
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t n = 0;
        int32_t id = tokenizer_id(l->tokenizer, tokens[i].role);
        const char *piece = id >= 0 ? tokenizer_piece(l->tokenizer, id, &n) : NULL;
        json_key(j, tokens[i].key);
        json_strn(j, piece ? piece : "", piece ? n : 0);
    }
}

/* As in llama.cpp's server: properties of the model. */
void api_props(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    const struct models *m = c->server->models;
    const struct served *s = api_chosen(c);
    if (s) {
        const struct instance *f = &s->instances[INSTANCE_WRITER];
        const char *slash = strrchr(s->path, '/');
        struct sampler_params p;
        sampler_defaults(&p);
        if (f->state == INSTANCE_READY)
            p = f->session->defaults;
        json_begin(&j, '{');
        json_key(&j, "model");
        json_str(&j, s->name);
        json_key(&j, "model_alias");
        json_str(&j, s->name);
        json_key(&j, "model_path"); /* only the file's name: clients do not see paths */
        json_str(&j, slash ? slash + 1 : s->path);
        json_key(&j, "status");
        json_str(&j, models_state(s));
        json_key(&j, "total_slots");
        json_uint(&j, m->o->engine.slots);
        json_key(&j, "build_info");
        json_str(&j, "quern " QUERN_VERSION);
        json_key(&j, "has_chat_template");
        json_bool(&j, s->facts.can_chat);
        api_write_text(f->state == INSTANCE_READY ? f->session : NULL, &j);
        json_key(&j, "default_generation_settings");
        json_begin(&j, '{');
        json_key(&j, "n_ctx");
        json_uint(&j, s->facts.context);
        json_key(&j, "params");
        json_begin(&j, '{');
        api_write_sampling(&p, &j);
        json_end(&j, '}');
        json_end(&j, '}');
        json_end(&j, '}');
    }
    models_unlock(c->server->models);
    if (s)
        route_json(c, 200, &out);
    else
        api_no_model(c);
}

/* Streams at once: a model's own settings may have fewer than the server. */
static uint32_t instance_slots(const struct models *m, const struct instance *f)
{
    uint32_t most = f->session->runner->most_seqs, all = m->o->engine.slots;
    return most && most < all ? most : all;
}

/* The slots of every loaded model that generates text. */
void api_slots(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    struct models *m = c->server->models;
    json_begin(&j, '[');
    uint64_t id = 0;
    for (const struct served *s = models_lock(m); s; s = s->next) {
        const struct instance *f = &s->instances[INSTANCE_WRITER];
        struct engine_stats e;
        if (f->state != INSTANCE_READY && (f->state != INSTANCE_LEAVING || !f->engine))
            continue;
        engine_stats(f->engine, &e);
        for (uint32_t i = 0; i < instance_slots(m, f); i++) {
            json_begin(&j, '{');
            json_key(&j, "id");
            json_uint(&j, id++);
            json_key(&j, "model");
            json_str(&j, s->name);
            json_key(&j, "n_ctx");
            json_uint(&j, s->facts.context);
            json_key(&j, "is_processing");
            json_bool(&j, i < e.running);
            json_end(&j, '}');
        }
    }
    models_unlock(m);
    json_end(&j, ']');
    route_json(c, 200, &out);
}

/* ---- loading and unloading on request ---- */

static void api_count(struct request *a, const char *key, int count)
{
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "success");
    json_bool(&j, true);
    json_key(&j, key);
    json_int(&j, count);
    json_end(&j, '}');
}

/* {model}: the reply comes when the model is loaded. */
void api_load(struct request *a)
{
    api_count(a, "loaded", 1);
}

/* {model?} */
void api_unload(struct request *a)
{
    json_t *body = openai_body(a), *name = json_object_get(body, "model");
    if (!body)
        return;
    int count = name && !json_is_string(name) ? 0 : models_stop(a->server->models, json_string_value(name));
    if (name && !json_is_string(name))
        request_fail(a, 400, "model", "model has to be a text");
    else if (count < 0)
        failure_set(&a->failure, 404, "model_not_found", "model",
                    "there is no model '%s'; /v1/models lists what there is",
                    log_safe(json_string_value(name)));
    else
        api_count(a, "unloaded", count);
    json_decref(body);
}
