/* The list of models: the contents of folders, the facts of headers, and the list that requests see. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/file_type.h"
#include "format/gguf.h"
#include "model/arch.h"
#include "run/vision.h"
#include "serve/models_internal.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LIST_DEPTH = 3, LIST_MOST = 4096 };

/* ---- names ---- */

char *model_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *slash = memrchr(path, '/', n);
    const char *from = slash && slash + 1 < path + n ? slash + 1 : path;
    n -= (size_t)(from - path);
    if (n > 5 && !strncmp(from + n - 5, ".gguf", 5))
        n -= 5;
    static const char split[] = "-00001-of-";
    if (n > 15 && !strncmp(from + n - 15, split, sizeof split - 1))
        n -= 15;
    return mem_strndup(from, n);
}

int model_list_add(struct model_list *l, const char *name, const char *path, struct err *e)
{
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->items[i].name, name))
            return err_set(e, ERR_USAGE, "two models are called %s: %s and %s", log_safe(name),
                           log_safe(l->items[i].path), log_safe(path));
    if (l->count == LIST_MOST)
        return err_set(e, ERR_USAGE, "there are more than %d models", LIST_MOST);
    void *grown = mem_realloc(l->items, l->count + 1, sizeof *l->items);
    if (!grown)
        return err_memory(e, "the list of models", sizeof *l->items);
    l->items = grown;
    char *own_name = mem_strdup(name), *own_path = mem_strdup(path);
    if (!own_name || !own_path) {
        mem_free(own_name);
        mem_free(own_path);
        return err_memory(e, "the list of models", strlen(path));
    }
    l->items[l->count++] = (struct model_item){.name = own_name, .path = own_path};
    return 0;
}

void model_list_free(struct model_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        mem_free(l->items[i].name);
        mem_free(l->items[i].path);
    }
    mem_free(l->items);
    *l = (struct model_list){0};
}

/* ---- folders ---- */

static bool list_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n > t && !strcmp(name + n - t, tail);
}

/* A file that is a model by itself: of a split one only the first, and no projector of an image model. */
static bool list_is_gguf(const char *name)
{
    const char *of = strstr(name, "-of-");
    bool later = of && of - name > 6 && of[-6] == '-' && strncmp(of - 5, "00001", 5) != 0;
    return list_ends(name, ".gguf") && !later && strncmp(name, "mmproj", 6) != 0;
}

static int list_one(struct model_list *l, const char *path, struct err *e)
{
    struct err why = {0};
    char *name = model_name(path);
    if (!name)
        return err_memory(e, "the name of a model", strlen(path));
    int failed = model_list_add(l, name, path, &why);
    if (failed && why.code == ERR_USAGE) { /* a folder may hold other files, too */
        log_warn("%s is left out: %s", log_safe(path), why.text);
        failed = 0;
    } else if (failed)
        *e = why;
    mem_free(name);
    return failed;
}

static bool list_has(const char *folder, const char *file)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    struct stat st;
    return n < PATH_MAX && !stat(path, &st) && S_ISREG(st.st_mode);
}

static int list_walk(struct model_list *l, const char *folder, int depth, struct err *e)
{
    DIR *d = file_folder(folder);
    if (!d)
        return depth ? 0 : err_set(e, ERR_USAGE, "--models-dir %s: %s", log_safe(folder), strerror(errno));
    int failed = 0;
    for (const struct dirent *x; !failed && (x = readdir(d));) {
        char path[PATH_MAX];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/%s", folder, x->d_name);
        if (x->d_name[0] == '.' || n < 0 || n >= PATH_MAX || stat(path, &st))
            continue;
        if (S_ISREG(st.st_mode) && list_is_gguf(x->d_name))
            failed = list_one(l, path, e);
        else if (S_ISDIR(st.st_mode) && list_has(path, "config.json"))
            failed = list_one(l, path, e);
        else if (S_ISDIR(st.st_mode) && depth + 1 < LIST_DEPTH)
            failed = list_walk(l, path, depth + 1, e);
    }
    closedir(d);
    return failed;
}

static int list_order(const void *a, const void *b)
{
    const struct model_item *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int model_list_folder(struct model_list *l, const char *folder, struct err *e)
{
    size_t before = l->count;
    if (list_walk(l, folder, 0, e))
        return -1;
    if (l->count > before)
        qsort(l->items + before, l->count - before, sizeof *l->items, list_order);
    return 0;
}

/* ---- headers ---- */

static void facts_weights(struct served_facts *f, const struct store *s)
{
    for (size_t i = 0; i < s->count; i++)
        f->parameters += s->tensors[i].values;
    f->type = store_file_type(s);
    f->bytes = s->bytes;
}

static void facts_figures(struct served_facts *f, const struct hparams *h, uint32_t ctx)
{
    snprintf(f->family, sizeof f->family, "%s", h->arch->name);
    f->encoder = h->arch->encoder;
    f->trained = h->context;
    f->context = ctx ? ctx : session_context(h);
    f->width = h->width;
    f->window = h->window;
    for (uint32_t i = 0; i < h->layers; i++)
        *(h->layer[i].sliding ? &f->kv_window_bytes : &f->kv_bytes) += 2 * hparams_kv_values(h, i);
}

/* What only the plan says, which is described without its weights. */
static void facts_state(struct served_facts *f, const struct store *s, const struct hparams *h)
{
    struct err e = {0};
    struct model *m = NULL;
    if (!h->arch->hybrid || model_open(&m, s, &(struct model_options){.describe = true}, &e))
        return;
    f->state_bytes = runner_state_bytes(&m->plan);
    model_close(m);
}

static bool facts_says(const char *text, size_t n, const char *word)
{
    return text && memmem(text, n, word, strlen(word));
}

static void facts_template(struct served_facts *f, const char *text, size_t n)
{
    f->can_call |= facts_says(text, n, "tools");
    f->can_think |= facts_says(text, n, "<think>") || facts_says(text, n, "reasoning_effort");
}

/* What the chat template supports: the given one, or the model's own. */
static void facts_text(struct served_facts *f, const struct store *s, const char *given)
{
    static const char *const files[] = {"chat_template.jinja", "tokenizer_config.json"};
    struct err ignored = {0};
    struct gguf_str t = {0};
    if (given) {
        f->can_chat = !f->encoder;
        facts_template(f, given, strlen(given));
        return;
    }
    if (s->gguf) {
        f->can_chat = gguf_get_str(s->gguf, "tokenizer.chat_template", &t, &ignored) > 0;
        facts_template(f, t.s, t.n);
    }
    for (size_t i = 0; i < 2 && !f->can_chat; i++) {
        const char *path = store_beside(s, files[i]);
        struct map m;
        if (!path || map_open(&m, path, &ignored))
            continue;
        f->can_chat = i == 0 || facts_says((const char *)m.data, m.size, "\"chat_template\"");
        if (f->can_chat)
            facts_template(f, (const char *)m.data, m.size);
        map_close(&m);
    }
}

int served_facts_read(struct served_facts *f, const char *path, const struct models_options *o, struct err *e)
{
    struct store *s;
    struct hparams h;
    struct stat st;
    *f = (struct served_facts){.type = ""};
    if (store_open(&s, path, e))
        return -1;
    int failed = hparams_read(&h, s, e);
    if (!failed) {
        facts_weights(f, s);
        facts_figures(f, &h, o->ctx);
        facts_state(f, s, &h);
        facts_text(f, s, o->chat_template);
        f->can_see = !f->encoder && vision_found(s);
        f->modified = stat(path, &st) ? 0 : st.st_mtime;
        f->known = true;
        hparams_free(&h);
    }
    store_close(s);
    return failed;
}

/* ---- the list that requests see ---- */

static struct served *served_new(struct models *m, const char *name, const char *path)
{
    struct served *s = mem_zalloc(1, sizeof *s);
    if (s) {
        s->name = mem_strdup(name);
        s->path = mem_strdup(path);
    }
    if (!s || !s->name || !s->path) {
        mem_free(s ? s->name : NULL);
        mem_free(s ? s->path : NULL);
        mem_free(s);
        return NULL;
    }
    for (int i = 0; i < INSTANCES; i++) {
        s->instances[i] = (struct instance){.of = s, .all = m, .kind = (enum instance_kind)i};
        s->instances[i].waiting_end = &s->instances[i].waiting;
    }
    return s;
}

static void served_free(struct served *s)
{
    mem_free(s->name);
    mem_free(s->path);
    mem_free(s);
}

/* The known entry of this name and path, taken out of the list; NULL = there is none. */
static struct served *models_cut(struct models *m, const char *name, const char *path)
{
    for (struct served **at = &m->all, *s; (s = *at); at = &s->next)
        if (!strcmp(s->name, name) && !strcmp(s->path, path)) {
            *at = s->next;
            return s;
        }
    return NULL;
}

static bool served_is_away(const struct served *s)
{
    for (int i = 0; i < INSTANCES; i++)
        if (s->instances[i].state != INSTANCE_AWAY)
            return false;
    return true;
}

/* Frees entries that are no longer listed and have no users. */
static void models_clean(struct models *m)
{
    for (struct served **at = &m->all, *s; (s = *at);)
        if (s->listed || !served_is_away(s))
            at = &s->next;
        else {
            *at = s->next;
            served_free(s);
        }
}

/* Puts the new list before the old entries. facts: (count). */
static int models_set_list(struct models *m, const struct model_list *l, const struct served_facts *facts,
                           struct err *e)
{
    struct served *first = NULL, **end = &first;
    int failed = 0;
    pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < l->count && !failed; i++) {
        struct served *s = models_cut(m, l->items[i].name, l->items[i].path);
        if (!s)
            s = served_new(m, l->items[i].name, l->items[i].path);
        if (!s) {
            failed = err_memory(e, "the list of models", sizeof *s);
            continue;
        }
        s->listed = true;
        s->removable = l->items[i].removable;
        if (served_is_away(s)) /* loaded instances stay as they are */
            s->facts = facts[i];
        s->next = NULL;
        *end = s;
        end = &s->next;
    }
    for (struct served *s = m->all; s; s = s->next)
        s->listed = failed && s->listed;
    *end = m->all;
    m->all = first;
    models_clean(m);
    pthread_mutex_unlock(&m->mutex);
    return failed;
}

int models_scan(struct models *m, struct err *e)
{
    struct model_list l = {0};
    int failed = m->o->list(m->o->arg, &l, e);
    struct served_facts *facts = mem_zalloc(l.count + 1, sizeof *facts);
    for (size_t i = 0; facts && !failed && i < l.count; i++) {
        struct err why = {0};
        if (served_facts_read(&facts[i], l.items[i].path, m->o, &why))
            log_warn("%s: %s", log_safe(l.items[i].name), why.text);
    }
    if (!facts)
        failed = err_memory(e, "the list of models", l.count * sizeof *facts);
    failed = failed || models_set_list(m, &l, facts, e) ? -1 : 0;
    mem_free(facts);
    model_list_free(&l);
    return failed;
}

void models_free_list(struct models *m)
{
    for (struct served *s; (s = m->all);) {
        m->all = s->next;
        served_free(s);
    }
}
