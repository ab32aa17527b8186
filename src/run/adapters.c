#define _GNU_SOURCE
#include "run/adapters.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/lora.h"
#include "run/session.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

/* "…:0.5": the number after the last colon, if there is one; *n becomes what is before it. */
static void adapter_scale(const char *text, size_t *n, float *scale)
{
    size_t at = *n;
    double v;
    while (at && text[at - 1] != ':')
        at--;
    if (!at || !num_f64(text + at, *n - at, -1e6, 1e6, &v))
        return;
    *n = at - 1;
    *scale = (float)v;
}

/* The last part of a path. */
static const char *adapter_file(const char *path, size_t *n)
{
    while (*n > 1 && path[*n - 1] == '/')
        --*n;
    const char *slash = memrchr(path, '/', *n), *from = slash && slash + 1 < path + *n ? slash + 1 : path;
    *n -= (size_t)(from - path);
    return from;
}

/* A name of its own, or the file's, without its folder and its ending. */
static bool adapter_name_of(const char *text, const char *path, size_t n, char out[ADAPTER_NAME])
{
    const char *from = text;
    size_t length = path > text ? (size_t)(path - text) - 1 : 0;
    if (path == text) {
        from = adapter_file(path, &n);
        const char *dot = memrchr(from, '.', n);
        length = dot && dot > from ? (size_t)(dot - from) : n;
    }
    snprintf(out, ADAPTER_NAME, "%.*s", (int)(length < ADAPTER_NAME ? length : 0), from);
    return *out;
}

static const char *adapter_path(const char *text, size_t *n, float *scale)
{
    const char *equals = strchr(text, '='), *path = equals ? equals + 1 : text;
    *n = strlen(path);
    *scale = 1;
    adapter_scale(path, n, scale);
    return path;
}

bool adapter_name(const char *text, char out[ADAPTER_NAME])
{
    size_t n;
    float scale;
    const char *path = adapter_path(text, &n, &scale);
    return adapter_name_of(text, path, n, out);
}

static int adapter_check_name(const char *name, struct err *e)
{
    size_t n = strlen(name);
    if (!n || n >= ADAPTER_NAME)
        return err_set(e, ERR_USAGE, "the name of an adapter has 1 to %d bytes", ADAPTER_NAME - 1);
    for (size_t i = 0; i < n; i++)
        if (iscntrl((unsigned char)name[i]) || strchr(",:=", name[i]))
            return err_set(
                e, ERR_USAGE,
                "an adapter cannot be called \"%s\": commas, colons and equal signs have a meaning",
                log_safe(name));
    return 0;
}

/* ---- the table ---- */

void adapters_init(struct adapters *t)
{
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->loading, NULL);
    for (uint32_t i = 0; i < SESSION_ADAPTERS; i++)
        t->all[i].id = i + 1;
}

/* The adapter of this name; NULL = there is none. Locked. */
static struct session_adapter *adapters_find(struct adapters *t, const char *name, size_t n)
{
    for (uint32_t i = 0; n && i < t->places; i++)
        if (strlen(t->all[i].name) == n && !memcmp(t->all[i].name, name, n))
            return &t->all[i];
    return NULL;
}

/* The adapter that requests know by this id, or NULL. Locked. */
static struct session_adapter *adapters_by_id(struct adapters *t, uint32_t id)
{
    struct session_adapter *a = id ? &t->all[(id - 1) % SESSION_ADAPTERS] : NULL;
    return a && a->id == id && a->name[0] ? a : NULL;
}

static int adapters_add(struct adapters *t, const char *text, size_t n, struct adapter_mix *out,
                        struct err *e)
{
    float scale = NAN;
    adapter_scale(text, &n, &scale);
    const struct session_adapter *a = adapters_find(t, text, n);
    bool any = false;
    for (uint32_t i = 0; i < t->places; i++)
        any |= t->all[i].name[0];
    if (!a)
        return err_set(e, ERR_USAGE, "there is no adapter '%s'; %s", log_safe_n(text, n),
                       any ? "others are loaded" : "none is loaded");
    if (out->count == ADAPTERS_MIXED)
        return err_set(e, ERR_USAGE, "a request can have %d adapters at once", ADAPTERS_MIXED);
    out->id[out->count] = a->id;
    out->scale[out->count++] = isnan(scale) ? a->scale : scale;
    return 0;
}

int session_adapt(struct session *l, const char *text, struct adapter_mix *out, struct err *e)
{
    struct adapters *t = &l->adapters;
    int failed = 0;
    *out = (struct adapter_mix){0};
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; !text && i < t->places && out->count < ADAPTERS_MIXED; i++)
        if (t->all[i].name[0] && t->all[i].standing != 0) {
            out->id[out->count] = t->all[i].id;
            out->scale[out->count++] = t->all[i].standing;
        }
    for (const char *at = text; at && *at && !failed;) {
        size_t n = strcspn(at, ",");
        failed = adapters_add(t, at, n, out, e);
        at += n + (at[n] == ',');
    }
    pthread_mutex_unlock(&t->lock);
    return failed;
}

uint64_t session_salt(const struct session *l, const struct adapter_mix *mix, uint64_t salt)
{
    struct digest d = {.lo = salt};
    for (uint32_t i = 0; i < mix->count; i++) {
        digest_add(&d, &l->adapters.all[(mix->id[i] - 1) % SESSION_ADAPTERS].digest, sizeof d);
        digest_add(&d, &mix->scale[i], sizeof mix->scale[i]);
    }
    return d.lo;
}

int session_hold(struct session *l, struct adapter_mix *mix, struct err *e)
{
    struct adapters *t = &l->adapters;
    int failed = mix->count > ADAPTERS_MIXED
                     ? err_set(e, ERR_USAGE, "a request can have %d adapters at once", ADAPTERS_MIXED)
                     : 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < mix->count && !failed; i++)
        if (!adapters_by_id(t, mix->id[i]))
            failed = err_set(e, ERR_USAGE, "an adapter of the request has been dropped");
    for (uint32_t i = 0; i < mix->count && !failed; i++) {
        struct session_adapter *a = adapters_by_id(t, mix->id[i]);
        mix->id[i] = (uint32_t)(a - t->all) + 1;
        a->users++;
    }
    pthread_mutex_unlock(&t->lock);
    return failed;
}

void session_release(struct session *l, const struct adapter_mix *held)
{
    struct adapters *t = &l->adapters;
    if (!held->count)
        return;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < held->count; i++) {
        struct session_adapter *a = &t->all[held->id[i] - 1];
        if (!--a->users && a->leaving)
            atomic_store(&t->left, true);
    }
    pthread_mutex_unlock(&t->lock);
}

uint32_t session_list_adapters(struct session *l, struct session_adapter out[SESSION_ADAPTERS])
{
    struct adapters *t = &l->adapters;
    pthread_mutex_lock(&t->lock);
    memcpy(out, t->all, sizeof t->all);
    pthread_mutex_unlock(&t->lock);
    return t->places;
}

int session_find_adapter(struct session *l, const char *name)
{
    struct adapters *t = &l->adapters;
    pthread_mutex_lock(&t->lock);
    const struct session_adapter *a = adapters_find(t, name, strlen(name));
    int place = a ? (int)(a - t->all) : -1;
    pthread_mutex_unlock(&t->lock);
    return place;
}

int session_stand(struct session *l, const struct adapter_mix *mix, struct err *e)
{
    struct adapters *t = &l->adapters;
    int failed = 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < mix->count && !failed; i++)
        if (!adapters_by_id(t, mix->id[i]))
            failed = err_set(e, ERR_USAGE, "an adapter has been dropped");
    for (uint32_t i = 0; i < t->places && !failed; i++)
        t->all[i].standing = 0;
    for (uint32_t i = 0; i < mix->count && !failed; i++)
        adapters_by_id(t, mix->id[i])->standing = mix->scale[i];
    pthread_mutex_unlock(&t->lock);
    return failed;
}

/* ---- reading ---- */

/* An adapter that is not at a place yet. */
struct incoming {
    struct lora *lora;
    struct digest digest;
};

static int adapter_read(struct incoming *in, const struct session *l, const char *path, uint64_t most,
                        struct err *e)
{
    struct store *s = NULL;
    *in = (struct incoming){0};
    if (lora_open_store(&s, path, e))
        return -1;
    int failed = s->bytes > most ? err_set(e, ERR_RESOURCE, "it has %llu bytes, and there is room for %llu",
                                           (unsigned long long)s->bytes, (unsigned long long)most)
                                 : lora_open(&in->lora, l->model, s, e);
    for (size_t k = 0; k < s->count && !failed; k++) {
        const struct tensor *t = &s->tensors[k];
        digest_add(&in->digest, t->name, strlen(t->name));
        digest_add(&in->digest, t->data, t->bytes);
    }
    if (!failed && (failed = store_check(s, e))) /* what was read may be zeros */
        lora_close(in->lora);
    store_close(s);
    return failed;
}

/* A name and a place for it; -1: there is none. Locked. */
static int adapters_take(struct adapters *t, const char *name, struct err *e)
{
    if (adapter_check_name(name, e))
        return -1;
    if (adapters_find(t, name, strlen(name)))
        return err_set(e, ERR_USAGE, "an adapter is called %s already", log_safe(name));
    for (uint32_t i = 0; i < t->places; i++)
        if (!t->all[i].taken) {
            t->all[i].taken = true;
            return (int)i;
        }
    return err_set(e, ERR_RESOURCE, "all %u places for adapters are taken: drop one first", t->places);
}

/* The place has its adapter, which gets its name. Locked. */
static void adapters_settle(struct session_adapter *a, const struct adapter_source *s,
                            const struct incoming *in)
{
    snprintf(a->name, sizeof a->name, "%s", s->name);
    snprintf(a->file, sizeof a->file, "%s", s->file);
    a->scale = s->scale;
    a->standing = 0;
    a->bytes = lora_bytes(in->lora);
    a->digest = in->digest;
}

/* ---- those that the session is opened with ---- */

static int adapters_first(struct session *l, const char *text, struct err *e)
{
    struct adapters *t = &l->adapters;
    struct adapter_source s = {.file = text};
    struct incoming in;
    struct err own = {0};
    char name[ADAPTER_NAME] = "", file[ADAPTER_NAME];
    size_t n;
    const char *path = adapter_path(text, &n, &s.scale);
    char *only = mem_strndup(path, n);
    if (!only)
        return err_memory(e, "an adapter", n);
    adapter_name_of(text, path, n, name);
    path = adapter_file(path, &n);
    snprintf(file, sizeof file, "%.*s", (int)n, path);
    s.name = name;
    s.file = file;
    if (adapters_find(t, name, strlen(name))) {
        mem_free(only);
        return err_set(e, ERR_USAGE, "two adapters are called %s; NAME=PATH gives one another name",
                       log_safe(name));
    }
    int place = adapters_take(t, name, e);
    int failed = place < 0 ? -1 : adapter_read(&in, l, only, UINT64_MAX, &own);
    if (place >= 0 && !failed)
        failed = lora_attach(l->model, (uint32_t)place + 1, in.lora, &own);
    if (own.code)
        err_set(e, own.code, "adapter %s: %s", log_safe(only), own.text);
    mem_free(only);
    if (failed)
        return -1;
    struct session_adapter *a = &t->all[place];
    adapters_settle(a, &s, &in);
    a->fixed = true;
    /* those of a model's own settings are for every request that names none */
    a->standing = json_object_get(l->preset, "adapters") ? a->scale : 0;
    l->model->converted += a->bytes;
    return 0;
}

int adapters_open(struct session *l, const struct session_options *o, bool more, struct err *e)
{
    struct adapters *t = &l->adapters;
    if (o->loras > SESSION_ADAPTERS)
        return err_set(e, ERR_USAGE, "%zu adapters; the most is %d", o->loras, SESSION_ADAPTERS);
    t->places = (uint32_t)o->loras + (more ? o->lora_places : 0);
    t->places = t->places < SESSION_ADAPTERS ? t->places : SESSION_ADAPTERS;
    t->most = o->lora_bytes;
    if (t->places && lora_reserve(l->model, t->places, more ? o->lora_rank : 0, e))
        return -1;
    for (size_t i = 0; i < o->loras; i++)
        if (adapters_first(l, o->lora[i], e))
            return -1;
    return 0;
}

void adapters_close(struct adapters *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->loading);
}

/* ---- those that come and go ---- */

/* Bytes that are left for adapters. */
static uint64_t adapters_room(struct adapters *t)
{
    uint64_t used = 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->places; i++)
        used += t->all[i].fixed ? 0 : t->all[i].bytes;
    pthread_mutex_unlock(&t->lock);
    return used < t->most ? t->most - used : 0;
}

static int adapter_fits(const struct session *l, const struct lora *a, uint64_t room, struct err *e)
{
    const uint32_t most = l->model->plan.rank;
    if (lora_most_rank(a) > most)
        return err_set(e, ERR_RESOURCE,
                       "it has rank %u (with a bias one more), and %u is the most of an adapter that comes "
                       "while the model is in use",
                       lora_most_rank(a), most);
    if (lora_bytes(a) > room)
        return err_set(e, ERR_RESOURCE, "it takes %llu bytes, and there is room for %llu",
                       (unsigned long long)lora_bytes(a), (unsigned long long)room);
    return 0;
}

int session_load_adapter(struct session *l, const struct adapter_source *s,
                         int (*attach)(void *arg, uint32_t place, struct lora *a, struct err *e), void *arg,
                         struct err *e)
{
    struct adapters *t = &l->adapters;
    struct incoming in = {0};
    if (!l->runner->device->ops->adapts)
        return err_set(e, ERR_USAGE,
                       "a model on %s takes no adapters while it is in use: name them when it is opened "
                       "(--lora NAME=PATH)",
                       l->runner->device->ops->name);
    pthread_mutex_lock(&t->loading);
    pthread_mutex_lock(&t->lock);
    int place = adapters_take(t, s->name, e);
    pthread_mutex_unlock(&t->lock);
    int failed = place < 0;
    if (!failed) {
        const uint64_t room = adapters_room(t);
        failed = adapter_read(&in, l, s->path, room, e);
        if (!failed && (failed = adapter_fits(l, in.lora, room, e)))
            lora_close(in.lora);
        failed = failed || attach(arg, (uint32_t)place + 1, in.lora, e);
        pthread_mutex_lock(&t->lock);
        if (failed)
            t->all[place].taken = false;
        else
            adapters_settle(&t->all[place], s, &in);
        pthread_mutex_unlock(&t->lock);
    }
    pthread_mutex_unlock(&t->loading);
    return failed ? -1 : 0;
}

int session_drop_adapter(struct session *l, const char *name, uint32_t *users, struct err *e)
{
    struct adapters *t = &l->adapters;
    int failed = 0;
    *users = 0;
    pthread_mutex_lock(&t->lock);
    struct session_adapter *a = adapters_find(t, name, strlen(name));
    if (!a)
        failed = err_set(e, ERR_DATA, "there is no adapter '%s'", log_safe(name));
    else if (a->fixed)
        failed =
            err_set(e, ERR_USAGE, "the adapter '%s' came with the model, and stays with it", log_safe(name));
    else {
        a->name[0] = 0;
        a->standing = 0;
        a->leaving = true;
        *users = a->users;
        atomic_store(&t->left, true);
    }
    pthread_mutex_unlock(&t->lock);
    return failed;
}

void session_sweep_adapters(struct session *l)
{
    struct adapters *t = &l->adapters;
    if (!atomic_exchange(&t->left, false))
        return;
    for (uint32_t i = 0; i < t->places; i++) {
        struct session_adapter *a = &t->all[i];
        pthread_mutex_lock(&t->lock);
        bool goes = a->leaving && !a->users; /* without a name, no new request can hold it */
        pthread_mutex_unlock(&t->lock);
        if (!goes)
            continue;
        lora_detach(l->model, i + 1);
        pthread_mutex_lock(&t->lock);
        *a = (struct session_adapter){.id = a->id + SESSION_ADAPTERS};
        pthread_mutex_unlock(&t->lock);
    }
}
