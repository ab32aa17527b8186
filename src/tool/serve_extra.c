#include "tool/serve_extra.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/jsonread.h"
#include "hub/path.h"
#include "hub/preset.h"

#include <string.h>
#include <unistd.h>

int serve_extra_open(struct serve_extra *x, struct err *e)
{
    *x = (struct serve_extra){.all = json_object()};
    pthread_mutex_init(&x->mutex, NULL);
    return x->all ? 0 : err_memory(e, "the list of models", sizeof *x);
}

void serve_extra_close(struct serve_extra *x)
{
    json_decref(x->all);
    pthread_mutex_destroy(&x->mutex);
}

static const char *extra_path(const json_t *entry)
{
    return json_string_value(json_object_get(entry, "path"));
}

void serve_extra_keep(struct serve_extra *x, const char *folder)
{
    struct err e = {0};
    const char *name;
    json_t *entry;
    if (path_make(x->file, &e, "%s/served-models.json", folder)) {
        log_warn("%s", e.text);
        serve_extra_forget(x);
        return;
    }
    json_t *read = access(x->file, F_OK) ? NULL : jsonread_file(x->file, &jsonread_config, &e);
    if (e.code)
        log_warn("models that clients pulled are not listed: %s", e.text);
    json_object_foreach(read, name, entry)
    {
        const char *path = extra_path(entry);
        if (!preset_is_name(name) || !path)
            continue;
        if (access(path, F_OK))
            log_warn("the model %s is no longer listed: %s is not there", log_safe(name), log_safe(path));
        else
            json_object_set(x->all, name, entry);
    }
    json_decref(read);
}

void serve_extra_forget(struct serve_extra *x)
{
    x->file[0] = 0;
}

void serve_extra_change(struct serve_extra *x, const struct model_change *c)
{
    struct err e = {0};
    pthread_mutex_lock(&x->mutex);
    if (c->path) {
        json_t *entry = json_pack("{s:s}", "path", c->path);
        if (entry && c->preset)
            json_object_set(entry, "preset", (json_t *)(uintptr_t)c->preset);
        json_object_set_new(x->all, c->name, entry);
    } else
        json_object_del(x->all, c->name);
    char *text = x->file[0] ? json_dumps(x->all, JSON_INDENT(2)) : NULL;
    if (text && path_write(x->file, text, strlen(text), &e))
        log_warn("the list of models is not kept for a restart: %s", e.text);
    mem_free(text);
    pthread_mutex_unlock(&x->mutex);
}

int serve_extra_list(struct serve_extra *x, struct model_list *out, struct err *e)
{
    int failed = 0;
    const char *name;
    json_t *entry;
    pthread_mutex_lock(&x->mutex);
    json_object_foreach(x->all, name, entry)
    {
        bool taken = false;
        for (size_t k = 0; k < out->count; k++)
            taken |= !strcmp(out->items[k].name, name);
        if (taken || failed)
            continue;
        failed = model_list_add(out, name, extra_path(entry), e);
        if (!failed)
            out->items[out->count - 1].removable = true;
    }
    pthread_mutex_unlock(&x->mutex);
    return failed;
}

json_t *serve_extra_preset(struct serve_extra *x, const char *name)
{
    pthread_mutex_lock(&x->mutex);
    json_t *preset = name ? json_object_get(json_object_get(x->all, name), "preset") : NULL;
    json_t *out =
        preset ? json_deep_copy(preset) : NULL; /* counts of references are not for several threads */
    pthread_mutex_unlock(&x->mutex);
    return out;
}
