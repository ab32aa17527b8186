#include "serve/adapters.h"

#include "base/json.h"
#include "base/log.h"
#include "run/session.h"
#include "serve/failure.h"
#include "serve/field.h"
#include "serve/models.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/server_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- by number ---- */

/* One of a list: its id in requests, and its scale. */
static int adapters_one(struct request *a, const struct session_adapter *all, uint32_t places,
                        const json_t *one, size_t at, struct adapter_mix *out)
{
    const char *name = field_text(one, "name");
    int64_t place = name ? session_find_adapter(a->model->session, name) : field_int(one, "id", -1);
    if (place < 0 || place >= places || !all[place].name[0])
        return request_fail(
            a, 400, "lora",
            "lora[%zu] has to name an adapter by \"id\" or \"name\"; GET /lora-adapters lists "
            "them",
            at);
    double scale = field_num(one, "scale", (double)all[place].scale);
    if (!(scale >= -1e6 && scale <= 1e6))
        return request_fail(a, 400, "lora", "the scale of lora[%zu] is not one", at);
    out->id[out->count] = all[place].id;
    out->scale[out->count++] = (float)scale;
    return 0;
}

int adapters_mix(struct request *a, const json_t *list, struct adapter_mix *out)
{
    struct session_adapter all[SESSION_ADAPTERS];
    uint32_t places = session_list_adapters(a->model->session, all);
    *out = (struct adapter_mix){0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (out->count == ADAPTERS_MIXED)
            return request_fail(a, 400, "lora", "a request can have %d adapters at once", ADAPTERS_MIXED);
        if (adapters_one(a, all, places, json_array_get(list, i), i, out))
            return -1;
        if (out->scale[out->count - 1] == 0) /* as if it was not there */
            out->count--;
    }
    return 0;
}

void adapters_list(struct request *a)
{
    struct session_adapter all[SESSION_ADAPTERS];
    struct json j = {.out = &a->reply};
    uint32_t places = session_list_adapters(a->model->session, all);
    json_begin(&j, '[');
    for (uint32_t i = 0; i < places; i++) {
        if (!all[i].name[0])
            continue;
        json_begin(&j, '{');
        json_key(&j, "id");
        json_uint(&j, i);
        json_key(&j, "name");
        json_str(&j, all[i].name);
        json_key(&j, "path"); /* clients do not see folders */
        json_str(&j, all[i].file);
        json_key(&j, "scale");
        json_f32(&j, all[i].standing);
        json_key(&j, "bytes");
        json_uint(&j, all[i].bytes);
        json_key(&j, "requests");
        json_uint(&j, all[i].users);
        json_end(&j, '}');
    }
    json_end(&j, ']');
}

/* [{id, scale}]: what requests have that name no adapter; those that are not in the list are at 0. */
void adapters_stand(struct request *a)
{
    struct adapter_mix mix;
    if (!json_is_array(a->json))
        request_fail(a, 400, NULL, "the body has to be a list of {\"id\", \"scale\"}");
    else if (!adapters_mix(a, a->json, &mix) && !models_stand(a->server->models, a->model, &mix, &a->failure))
        adapters_list(a);
}

/* ---- coming and going ---- */

/* The file that a client names, below the folder that the operator allows. -1: the request has failed. */
static int adapters_path(struct request *a, const char *given, char real[PATH_MAX], const char **inside)
{
    const char *folder = a->server->o->adapter_dir;
    size_t n = strlen(folder);
    char path[PATH_MAX];
    bool within = !strncmp(given, folder, n) && given[n] == '/';
    *inside = within ? given + n + 1 : given;
    if (**inside == '/')
        return request_fail(a, 400, "lora_path",
                            "lora_path has to be below the folder that the operator allows (--adapter-dir)");
    for (const char *at = *inside; *at;) {
        size_t part = strcspn(at, "/");
        if (part == 2 && at[0] == '.' && at[1] == '.')
            return request_fail(a, 400, "lora_path", "lora_path cannot have '..' in it");
        at += part + (at[part] == '/');
    }
    int length = snprintf(path, sizeof path, "%s/%s", folder, *inside);
    if (length < 0 || length >= (int)sizeof path || !realpath(path, real))
        return failure_set(&a->failure, 404, NULL, "lora_path", "there is no adapter at '%s': %s",
                           log_safe(*inside), length < (int)sizeof path ? strerror(errno) : "too long");
    if (strncmp(real, folder, n) || real[n] != '/')
        return request_fail(a, 400, "lora_path", "'%s' is a link that leads elsewhere", log_safe(*inside));
    return 0;
}

/* Takes the folder out of a message. */
static void adapters_hide(struct err *e, const char *folder)
{
    size_t n = strlen(folder);
    for (char *at; (at = strstr(e->text, folder)) && at[n] == '/';)
        memmove(at, at + n + 1, strlen(at + n + 1) + 1);
}

static void adapters_done(struct request *a, const char *name, const char *key, uint64_t value)
{
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "success");
    json_bool(&j, true);
    json_key(&j, "lora_name");
    json_str(&j, name);
    json_key(&j, key);
    json_uint(&j, value);
    json_end(&j, '}');
}

/* {lora_name, lora_path, model?, scale?, load_inplace?} */
void adapters_load(struct request *a)
{
    const char *folder = a->server->o->adapter_dir, *name = field_text(a->json, "lora_name"),
               *path = field_text(a->json, "lora_path");
    char real[PATH_MAX];
    struct adapter_source s = {.name = name, .path = real};
    uint32_t users;
    if (!folder)
        request_fail(a, 501, NULL,
                     "this server loads no adapters: it needs a folder of them (--adapter-dir DIR)");
    else if (!name || !*name || !path || !*path)
        request_fail(a, 400, name && *name ? "lora_path" : "lora_name", "lora_name and lora_path are needed");
    else if (!a->model->engine)
        request_fail(a, 400, "model", "this model only makes vectors: it takes no adapters");
    else if (adapters_path(a, path, real, &s.file))
        return;
    else if (field_bool(a->json, "load_inplace") && models_adapts(a->server->models, name) &&
             models_drop_adapter(a->server->models, name, &users, &a->failure))
        return;
    s.scale = (float)field_num(a->json, "scale", 1);
    if (a->failure.status)
        return;
    if (models_load_adapter(a->server->models, a->model, &s, &a->failure))
        adapters_hide(&a->failure.err, folder);
    else {
        log_info("the adapter %s of %s is loaded", log_safe(name), a->model->of->name);
        adapters_done(a, name, "id", (uint64_t)session_find_adapter(a->model->session, name));
    }
}

/* {lora_name} */
void adapters_unload(struct request *a)
{
    json_t *body = openai_body(a);
    const char *name = field_text(body, "lora_name");
    uint32_t users;
    if (!body)
        return;
    if (!name || !*name)
        request_fail(a, 400, "lora_name", "lora_name is needed");
    else if (!models_drop_adapter(a->server->models, name, &users, &a->failure)) {
        log_info("the adapter %s is dropped", log_safe(name));
        adapters_done(a, name, "requests", users);
    }
    json_decref(body);
}
