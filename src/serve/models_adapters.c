/* The adapters that requests may name as models: those of the command line, and those that clients with an admin key load
 * and drop. A model that is unloaded and loaded again has them again. */
#include "base/log.h"
#include "base/mem.h"
#include "serve/models_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the list ---- */

const struct served_adapter *models_adapter(const struct models *m, const char *name)
{
    const struct served_adapter *a = m->adapters;
    while (a && (!a->ready || !name || strcmp(a->name, name)))
        a = a->next;
    return a;
}

const struct served *models_adapted(struct models *m, const struct served_adapter *a)
{
    const struct served *s = a->base ? m->all : models_first(m);
    while (a->base && s && (!s->listed || strcmp(s->name, a->base)))
        s = s->next;
    return s;
}

bool models_adapts(struct models *m, const char *name)
{
    pthread_mutex_lock(&m->mutex);
    bool is = models_adapter(m, name) != NULL;
    pthread_mutex_unlock(&m->mutex);
    return is;
}

/* A new entry at the end; NULL = out of memory. base and path are copied. */
static struct served_adapter *adapters_append(struct models *m, const char *name, const char *base,
                                              const char *path)
{
    struct served_adapter *a = mem_zalloc(1, sizeof *a);
    if (!a)
        return NULL;
    snprintf(a->name, sizeof a->name, "%s", name);
    a->base = base ? mem_strdup(base) : NULL;
    a->path = path ? mem_strdup(path) : NULL;
    if ((base && !a->base) || (path && !a->path)) {
        mem_free(a->base);
        mem_free(a->path);
        mem_free(a);
        return NULL;
    }
    *m->adapters_end = a;
    m->adapters_end = &a->next;
    return a;
}

static void adapters_remove(struct models *m, struct served_adapter *a)
{
    struct served_adapter **at = &m->adapters;
    while (*at != a)
        at = &(*at)->next;
    if (!(*at = a->next))
        m->adapters_end = at;
    mem_free(a->base);
    mem_free(a->path);
    mem_free(a);
}

int models_open_adapters(struct models *m, struct err *e)
{
    for (size_t i = 0; i < m->o->adapter_count; i++) {
        struct served_adapter *a = adapters_append(m, m->o->adapters[i], NULL, NULL);
        if (!a)
            return err_memory(e, "the list of adapters", sizeof *a);
        a->ready = true;
    }
    return 0;
}

void models_free_adapters(struct models *m)
{
    while (m->adapters)
        adapters_remove(m, m->adapters);
}

/* ---- coming and going ---- */

/* The adapter's memory counts as the model's. */
static void adapters_count(struct models *m, struct instance *f, uint64_t bytes, bool comes)
{
    pthread_mutex_lock(&m->mutex);
    f->bytes = comes ? f->bytes + bytes : f->bytes - bytes;
    f->memory.weights = comes ? f->memory.weights + bytes : f->memory.weights - bytes;
    pthread_mutex_unlock(&m->mutex);
}

static uint64_t adapters_bytes(struct instance *f, const char *name)
{
    struct session_adapter all[SESSION_ADAPTERS];
    int place = session_find_adapter(f->session, name);
    session_list_adapters(f->session, all);
    return place < 0 ? 0 : all[place].bytes;
}

/* Reserves a free name: adds its entry before the adapter is read. */
static struct served_adapter *adapters_take(struct models *m, const struct instance *f,
                                            const struct adapter_source *s, struct failure *why)
{
    struct served_adapter *a = NULL;
    bool taken = models_find(m, s->name) != NULL;
    for (const struct served_adapter *x = m->adapters; x && !taken; x = x->next)
        taken = x->path && !strcmp(x->name, s->name);
    if (taken)
        failure_set(why, 400, NULL, "lora_name", "a model or an adapter is called '%s' already",
                    log_safe(s->name));
    else if (!(a = adapters_append(m, s->name, f->of->name, s->path)))
        failure_set(why, 503, NULL, NULL, "out of memory");
    else
        snprintf(a->file, sizeof a->file, "%s", s->file);
    return a;
}

int models_load_adapter(struct models *m, struct instance *f, const struct adapter_source *s,
                        struct failure *why)
{
    struct err e = {0};
    pthread_mutex_lock(&m->mutex);
    struct served_adapter *a = adapters_take(m, f, s, why);
    pthread_mutex_unlock(&m->mutex);
    if (!a)
        return -1;
    int failed = engine_load_adapter(f->engine, s, &e);
    if (failed)
        failure_set(why, e.code == ERR_RESOURCE ? 409 : 400, NULL, "lora_path",
                    "the adapter '%s' cannot be loaded: %s", log_safe(s->name), e.text);
    else
        adapters_count(m, f, adapters_bytes(f, s->name), true);
    pthread_mutex_lock(&m->mutex);
    if (failed)
        adapters_remove(m, a);
    else
        a->ready = true;
    pthread_mutex_unlock(&m->mutex);
    return failed ? -1 : 0;
}

int models_drop_adapter(struct models *m, const char *name, uint32_t *users, struct failure *why)
{
    struct instance *f = NULL;
    struct err e = {0};
    double keep = 0;
    *users = 0;
    pthread_mutex_lock(&m->mutex);
    struct served_adapter *a = (struct served_adapter *)(uintptr_t)models_adapter(m, name);
    struct served *s = a ? (struct served *)(uintptr_t)models_adapted(m, a) : NULL;
    if (!a)
        failure_set(why, 404, "model_not_found", "lora_name", "there is no adapter '%s'", log_safe(name));
    else if (!a->path)
        failure_set(why, 409, NULL, "lora_name",
                    "the adapter '%s' is one of the command line (--lora), and stays", log_safe(name));
    else if (s && s->instances[INSTANCE_WRITER].state == INSTANCE_LOADING)
        failure_set(why, 503, NULL, NULL, "the model is being loaded: try again later");
    else {
        f = s && s->instances[INSTANCE_WRITER].engine ? &s->instances[INSTANCE_WRITER] : NULL;
        if (f) {
            f->users++;
            keep = f->keep;
        }
        adapters_remove(m, a);
    }
    pthread_mutex_unlock(&m->mutex);
    if (f) {
        uint64_t bytes = adapters_bytes(f, name);
        if (!engine_drop_adapter(f->engine, name, users, &e))
            adapters_count(m, f, bytes, false);
        models_drop(m, f, keep);
    }
    return why->status ? -1 : 0;
}

/* ---- standing ---- */

/* The entry that keeps the standing scale of an adapter of this model; made where there is none. */
static struct served_adapter *adapters_entry(struct models *m, const struct served *s, const char *name)
{
    for (struct served_adapter *a = m->adapters; a; a = a->next)
        if (models_adapted(m, a) == s && !strcmp(a->name, name))
            return a;
    return adapters_append(m, name, s->name, NULL);
}

int models_stand(struct models *m, struct instance *f, const struct adapter_mix *mix, struct failure *why)
{
    struct session_adapter all[SESSION_ADAPTERS];
    struct err e = {0};
    if (session_stand(f->session, mix, &e))
        return failure_set(why, 400, NULL, "id", "%s", e.text);
    uint32_t places = session_list_adapters(f->session, all);
    pthread_mutex_lock(&m->mutex);
    for (uint32_t i = 0; i < places; i++) {
        struct served_adapter *a = all[i].name[0] ? adapters_entry(m, f->of, all[i].name) : NULL;
        if (a)
            a->standing = all[i].standing;
    }
    pthread_mutex_unlock(&m->mutex);
    return 0;
}

/* ---- a model that is loaded again ---- */

/* A copy of what is kept of this model's adapters, (count); the caller frees it. */
static struct served_adapter *adapters_copy(struct models *m, const struct served *s, size_t *count)
{
    size_t all = 0;
    *count = 0;
    pthread_mutex_lock(&m->mutex);
    for (const struct served_adapter *a = m->adapters; a; a = a->next)
        all += models_adapted(m, a) == s;
    struct served_adapter *out = mem_zalloc(all + 1, sizeof *out);
    for (const struct served_adapter *a = m->adapters; a && out; a = a->next)
        if (models_adapted(m, a) == s) {
            out[*count] = *a;
            out[*count].base = NULL;
            out[(*count)++].path = a->path ? mem_strdup(a->path) : NULL;
        }
    pthread_mutex_unlock(&m->mutex);
    return out;
}

/* One that cannot be loaded any more is no name of the model any more. */
static void adapters_forget(struct models *m, const char *name)
{
    pthread_mutex_lock(&m->mutex);
    struct served_adapter *a = (struct served_adapter *)(uintptr_t)models_adapter(m, name);
    if (a)
        adapters_remove(m, a);
    pthread_mutex_unlock(&m->mutex);
}

void models_restore_adapters(struct models *m, struct instance *f)
{
    size_t count;
    struct served_adapter *all = adapters_copy(m, f->of, &count);
    struct adapter_mix mix = {0};
    struct err e = {0};
    bool stands = false;
    for (size_t i = 0; all && i < count; i++) {
        const struct served_adapter *a = &all[i];
        const struct adapter_source s = {.name = a->name, .path = a->path, .file = a->file, .scale = 1};
        struct adapter_mix one;
        e = (struct err){0};
        if (a->path && a->ready && engine_load_adapter(f->engine, &s, &e)) {
            log_warn("the adapter %s of %s is dropped: %s", log_safe(a->name), f->of->name, e.text);
            adapters_forget(m, a->name);
        } else if (a->standing != 0 && mix.count < ADAPTERS_MIXED &&
                   !session_adapt(f->session, a->name, &one, &e)) {
            mix.id[mix.count] = one.id[0];
            mix.scale[mix.count++] = a->standing;
            stands = true;
        }
        mem_free(a->path);
    }
    mem_free(all);
    if (stands)
        session_stand(f->session, &mix, &e);
}

/* ---- statistics ---- */

void models_busy_adapters(struct models *m, bool waiting, void (*take)(void *arg, const char *name),
                          void *arg)
{
    pthread_mutex_lock(&m->mutex);
    for (const struct served_adapter *a = m->adapters; a; a = a->next) {
        const struct served *s = a->ready ? models_adapted(m, a) : NULL;
        const struct instance *f = s ? &s->instances[INSTANCE_WRITER] : NULL;
        if (!f || (f->state != INSTANCE_READY && f->state != INSTANCE_LEAVING) || !f->engine)
            continue;
        struct engine_stats e;
        int place = session_find_adapter(f->session, a->name);
        engine_stats(f->engine, &e);
        if (place >= 0 && (waiting ? e.lora_waiting : e.lora_running)[place])
            take(arg, a->name);
    }
    pthread_mutex_unlock(&m->mutex);
}
