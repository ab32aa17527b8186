/* Ollama's API: version, tags, ps, show; and errors for unsupported operations. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "run/session.h"
#include "serve/conn.h"
#include "serve/failure.h"
#include "serve/field.h"
#include "serve/models.h"
#include "serve/ollama.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Programs compare this with what they need: the version of Ollama whose API this is. */
#define OLLAMA_VERSION "0.12.6"

void ollama_time(struct json *j, const char *key, double seconds_from_now)
{
    struct timespec now;
    struct tm tm;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &now);
    time_t t = now.tv_sec + (time_t)seconds_from_now;
    gmtime_r(&t, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%09ldZ", now.tv_nsec);
    json_key(j, key);
    json_str(j, text);
}

static void ollama_modified(struct json *j, time_t t)
{
    struct tm tm;
    char text[64];
    gmtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_key(j, "modified_at");
    json_str(j, text);
}

/* 134515008 to "134.52M". */
static void ollama_size(uint64_t parameters, char *out, size_t size)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}, {1, ""}};
    int i = 0;
    while (units[i].unit > 1 && (double)parameters < units[i].unit)
        i++;
    snprintf(out, size, "%.*f%s", i < 3 ? 2 : 0, (double)parameters / units[i].unit, units[i].name);
}

static void ollama_details(struct json *j, const struct served *s)
{
    char size[32];
    ollama_size(s->facts.parameters, size, sizeof size);
    size_t n = strlen(s->path);
    json_key(j, "details");
    json_begin(j, '{');
    json_key(j, "parent_model");
    json_str(j, "");
    json_key(j, "format");
    json_str(j, n > 5 && !strcmp(s->path + n - 5, ".gguf") ? "gguf" : "safetensors");
    json_key(j, "family");
    json_str(j, s->facts.family);
    json_key(j, "families");
    json_begin(j, '[');
    json_str(j, s->facts.family);
    json_end(j, ']');
    json_key(j, "parameter_size");
    json_str(j, size);
    json_key(j, "quantization_level");
    json_str(j, s->facts.type);
    json_end(j, '}');
}

/* The digest of a file. Ollama hashes the bytes; programs only compare the value, and reading all bytes would
 * take minutes, so this hashes the name, the size and the time. */
static void ollama_digest(struct json *j, const struct served *s)
{
    char text[65];
    for (int part = 0; part < 4; part++) {
        uint64_t h = 14695981039346656037u + (uint64_t)part;
        const uint64_t figures[] = {s->facts.bytes, (uint64_t)s->facts.modified, s->facts.parameters};
        for (const char *c = s->name; *c; c++)
            h = (h ^ (unsigned char)*c) * 1099511628211u;
        for (size_t i = 0; i < 3; i++)
            for (int b = 0; b < 64; b += 8)
                h = (h ^ (figures[i] >> b & 255)) * 1099511628211u;
        snprintf(text + 16 * part, 17, "%016" PRIx64, h);
    }
    json_key(j, "digest");
    json_str(j, text);
}

static void ollama_name(struct json *j, const char *name)
{
    json_key(j, "name");
    json_str(j, name);
    json_key(j, "model");
    json_str(j, name);
}

void ollama_version(struct conn *c)
{
    struct buf out = {0};
    buf_str(&out, "{\"version\":\"" OLLAMA_VERSION "\"}");
    route_json(c, 200, &out);
}

static void ollama_tag(struct json *j, const struct served *s, const char *name)
{
    json_begin(j, '{');
    ollama_name(j, name);
    ollama_modified(j, s->facts.modified);
    json_key(j, "size");
    json_uint(j, s->facts.bytes);
    ollama_digest(j, s);
    ollama_details(j, s);
    json_end(j, '}');
}

void ollama_tags(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    struct models *m = c->server->models;
    json_begin(&j, '{');
    json_key(&j, "models");
    json_begin(&j, '[');
    for (const struct served *s = models_lock(m); s; s = s->next)
        if (s->listed && s->facts.known)
            ollama_tag(&j, s, s->name);
    const struct served *first = models_first(m);
    for (size_t i = 0; first && first->facts.known && i < m->o->alias_count; i++)
        ollama_tag(&j, first, m->o->aliases[i]);
    models_unlock(m);
    json_end(&j, ']');
    json_end(&j, '}');
    route_json(c, 200, &out);
}

/* A loaded instance: its size, its device, and its expiry time. */
static void ollama_running(struct json *j, const struct instance *f, double now)
{
    static const double forever = 100.0 * 365 * 86400;
    const char *device = f->session ? f->session->runner->device->ops->name : "";
    double left =
        f->keep < 0 || f->keep > forever ? forever : (f->users ? now : f->last_used) + f->keep - now;
    json_begin(j, '{');
    ollama_name(j, f->of->name);
    json_key(j, "size");
    json_uint(j, f->bytes);
    json_key(j, "size_vram");
    json_uint(j, instance_on_card(f));
    ollama_digest(j, f->of);
    ollama_details(j, f->of);
    ollama_time(j, "expires_at", left);
    json_key(j, "context_length");
    json_uint(j, f->of->facts.context);
    json_key(j, "device");
    json_str(j, device);
    json_key(j, "kind");
    json_str(j, f->kind == INSTANCE_VECTORS ? "vectors" : "text");
    json_key(j, "users");
    json_uint(j, f->users);
    json_end(j, '}');
}

void ollama_ps(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    double now = clock_now();
    json_begin(&j, '{');
    json_key(&j, "models");
    json_begin(&j, '[');
    for (const struct served *s = models_lock(c->server->models); s; s = s->next)
        for (int i = 0; i < INSTANCES; i++)
            if (s->instances[i].state == INSTANCE_READY || s->instances[i].state == INSTANCE_LEAVING)
                ollama_running(&j, &s->instances[i], now);
    models_unlock(c->server->models);
    json_end(&j, ']');
    json_end(&j, '}');
    route_json(c, 200, &out);
}

/* A key of the file; lists are long and are null, as in Ollama. */
static void ollama_key(struct json *j, const struct gguf *g, const struct gguf_key *k)
{
    struct err ignored = {0};
    struct gguf_str text;
    uint64_t whole;
    double number;
    bool truth;
    json_key(j, k->name);
    if (k->type == GGUF_STRING && gguf_get_str(g, k->name, &text, &ignored) > 0)
        json_strn(j, text.s, text.n);
    else if (k->type == GGUF_BOOL && gguf_get_bool(g, k->name, &truth, &ignored) > 0)
        json_bool(j, truth);
    else if (k->type != GGUF_ARRAY && gguf_get_u64(g, k->name, 0, UINT64_MAX, &whole, &ignored) > 0)
        json_uint(j, whole);
    else if (k->type != GGUF_ARRAY && gguf_get_f64(g, k->name, &number, &ignored) > 0)
        json_f32(j, (float)number);
    else
        json_nil(j);
}

/* The keys of a GGUF without those reported elsewhere; for a folder the known facts. */
static void ollama_info(struct json *j, const struct served_facts *k, const struct store *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"context_length", k->trained}, {"embedding_length", k->width}};
    json_key(j, "model_info");
    json_begin(j, '{');
    json_key(j, "general.architecture");
    json_str(j, k->family);
    json_key(j, "general.parameter_count");
    json_uint(j, k->parameters);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", k->family, rows[i].name);
        if (s && s->gguf && gguf_find(s->gguf, key))
            continue;
        json_key(j, key);
        json_uint(j, rows[i].value);
    }
    for (size_t i = 0; s && s->gguf && i < gguf_key_count(s->gguf); i++) {
        const struct gguf_key *one = gguf_key_at(s->gguf, i);
        if (strcmp(one->name, "general.architecture") != 0 && strcmp(one->name, "general.name") != 0 &&
            strcmp(one->name, "general.parameter_count") != 0 &&
            strncmp(one->name, "tokenizer.chat_template", 23) != 0)
            ollama_key(j, s->gguf, one);
    }
    json_end(j, '}');
}

static void ollama_capabilities(struct json *j, const struct served_facts *k)
{
    json_key(j, "capabilities");
    json_begin(j, '[');
    json_str(j, k->encoder ? "embedding" : "completion");
    if (k->can_insert)
        json_str(j, "insert");
    if (k->can_call)
        json_str(j, "tools");
    if (k->can_think)
        json_str(j, "thinking");
    if (k->can_see)
        json_str(j, "vision");
    json_end(j, ']');
}

/* The chat template in use, read from the file; "" = none. */
static void ollama_template(struct json *j, const struct store *s, const char *given)
{
    struct chat *chat = NULL;
    struct err ignored = {0};
    bool found = s && !chat_open(&chat, s, given, &ignored);
    json_key(j, "template");
    json_str(j, found ? chat_text(chat) : "");
    chat_close(chat);
}

void ollama_show(struct request *a)
{
    struct models *m = a->server->models;
    struct json j = {.out = &a->reply};
    json_t *body = openai_body(a);
    const char *name = ollama_model(body);
    struct served copy = {0};
    struct store *store = NULL;
    struct err ignored = {0};
    if (!body)
        return;
    models_lock(m);
    const struct served *s = name ? models_find(m, name) : NULL;
    if (s)
        copy = (struct served){.path = mem_strdup(s->path), .facts = s->facts};
    models_unlock(m);
    if (s && (!copy.path || store_open(&store, copy.path, &ignored)))
        store = NULL;
    if (s && copy.path) {
        json_begin(&j, '{');
        json_key(&j, "modelfile");
        json_str(&j, "");
        json_key(&j, "parameters");
        json_str(&j, "");
        ollama_template(&j, store, m->o->chat_template);
        ollama_details(&j, &copy);
        ollama_info(&j, &copy.facts, store);
        ollama_capabilities(&j, &copy.facts);
        ollama_modified(&j, copy.facts.modified);
        json_end(&j, '}');
    }
    store_close(store);
    if (s && !copy.path)
        request_fail(a, 503, NULL, "out of memory");
    mem_free(copy.path);
    if (!name)
        request_fail(a, 400, "model", "model is missing");
    else if (!s)
        failure_set(&a->failure, 404, "model_not_found", "model", "model '%s' not found", name);
    json_decref(body);
}

void ollama_refuse(struct conn *c)
{
    conn_failf(c, 501, NULL, "%s is not done here: the operator of this server chooses its models",
               c->route->path);
}
