#define _GNU_SOURCE
#include "hub/local_models.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/cache.h"
#include "hub/pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the list ---- */

static struct local_model *local_models_add(struct local_models *s, const char *name, const char *path,
                                            const char *quant, struct err *e)
{
    struct local_model *items = mem_realloc(s->items, s->count + 1, sizeof *items);
    if (items) {
        s->items = items;
        struct local_model *i = &s->items[s->count];
        *i = (struct local_model){
            .name = mem_strdup(name), .path = path ? mem_strdup(path) : NULL, .quant = mem_strdup(quant)};
        s->count++;
        if (i->name && i->quant && (i->path || !path))
            return i;
    }
    err_memory(e, "the list of models", (s->count + 1) * sizeof *items);
    return NULL;
}

static void local_models_measure(struct local_model *i, const char *folder, const struct path_list *files)
{
    for (size_t k = 0; k < files->count; k++) {
        char path[PATH_MAX];
        struct stat st;
        struct err ignored = {0};
        if (path_make(path, &ignored, "%s/%s", folder, files->names[k]) || stat(path, &st))
            continue;
        i->bytes += (uint64_t)st.st_size;
        i->changed = st.st_mtime > i->changed ? st.st_mtime : i->changed;
    }
}

/* A place in the cache that rows are made from. */
struct local_models_place {
    const char *name; /* of the model, without a quant */
    const char *commit, *snapshot;
    struct path_list all;
};

/* Whether USER/REPO:QUANT means this file, and no other one of the same type. */
static bool local_models_quant_is(const struct local_models_place *at, const char *quant, const char *file)
{
    struct pick pick;
    struct err none = {0};
    if (pick_files(&pick, &at->all, quant, &none))
        return false;
    bool same = pick.kind == PICK_GGUF && !strcmp(pick.files.names[0], file);
    pick_free(&pick);
    return same;
}

static int local_models_row(struct local_models *s, const struct local_models_place *at,
                            const struct pick *pick, const char *quant, struct err *e)
{
    char path[PATH_MAX], name[PATH_MAX];
    const char *file = pick->files.count ? pick->files.names[0] : "";
    int whole = cache_complete(at->snapshot, pick, path, e);
    if (whole <= 0 || path_make(name, e, *quant ? "%s:%s" : "%s", at->name,
                                *quant && !local_models_quant_is(at, quant, file) ? file : quant))
        return whole ? -1 : 0;
    struct local_model *item = local_models_add(s, name, path, quant, e);
    if (!item)
        return -1;
    local_models_measure(item, at->snapshot, *quant ? &pick->files : &at->all);
    snprintf(item->commit, sizeof item->commit, "%.40s", at->commit);
    return 0;
}

/* One row for each GGUF of a snapshot, or one for its safetensors. */
static int local_models_snapshot(struct local_models *s, const struct local_models_place *at, struct err *e)
{
    bool any = false;
    struct pick pick;
    int bad = 0;
    for (size_t i = 0; i < at->all.count && !bad; i++) {
        struct err missing = {0};
        char quant[256];
        if (!pick_is_first(at->all.names[i]) || pick_files(&pick, &at->all, at->all.names[i], &missing))
            continue;
        any = true;
        pick_quant(at->all.names[i], quant, sizeof quant);
        bad = local_models_row(s, at, &pick, quant, e);
        pick_free(&pick);
    }
    if (any || bad)
        return bad;
    if (pick_files(&pick, &at->all, "", e))
        return -1;
    bad = local_models_row(s, at, &pick, "", e);
    pick_free(&pick);
    return bad;
}

/* What was begun and is not whole, all of a repository in one row. */
static int local_models_parts(struct local_models *s, const char *repo, const char *folder, struct err *e)
{
    char blobs[PATH_MAX], path[PATH_MAX];
    struct path_list all;
    struct local_model *item = NULL;
    if (path_make(blobs, e, "%s/blobs", folder) || path_list_entries(&all, blobs, e))
        return -1;
    int bad = 0;
    for (size_t i = 0; i < all.count && !bad; i++) {
        struct stat st;
        const char *dot = strrchr(all.names[i], '.');
        if (!dot || (strcmp(dot, ".quern-part") && strcmp(dot, ".incomplete")) ||
            path_make(path, e, "%s/%s", blobs, all.names[i]) || stat(path, &st))
            continue;
        if (!item && !(item = local_models_add(s, repo, NULL, "", e)))
            bad = -1;
        else
            item->bytes += (uint64_t)st.st_blocks * 512, item->changed = st.st_mtime;
    }
    path_list_free(&all);
    return bad;
}

static int local_models_repo(struct local_models *s, const struct hub *h, const char *folder,
                             const char *repo, struct err *e)
{
    char snapshots[PATH_MAX], snapshot[PATH_MAX], name[PATH_MAX], current[64] = "";
    struct path_list commits;
    if (path_make(snapshots, e, "%s/snapshots", folder) || path_list_entries(&commits, snapshots, e))
        return -1;
    cache_commit(h, repo, "main", current);
    int bad = 0;
    for (size_t i = 0; i < commits.count && !bad; i++) {
        const char *commit = commits.names[i];
        struct local_models_place at = {.name = name, .commit = commit, .snapshot = snapshot};
        bool is_main = !strcmp(commit, current);
        bad = path_make(snapshot, e, "%s/%s", snapshots, commit) ||
              path_make(name, e, is_main ? "%s" : "%s@%s", repo, commit) ||
              path_list_read(&at.all, snapshot, e) || local_models_snapshot(s, &at, e);
        path_list_free(&at.all);
    }
    path_list_free(&commits);
    return bad || local_models_parts(s, repo, folder, e) ? -1 : 0;
}

static int local_models_hub(struct local_models *s, const struct hub *h, const char *folder,
                            const char *entry, struct err *e)
{
    char repo[256];
    return cache_repo_name(entry, repo, sizeof repo) ? local_models_repo(s, h, folder, repo, e) : 0;
}

/* hub.own/models: by their built-in name where they have one, else by their path. */
static int local_models_own(struct local_models *s, const struct hub *h, const char *path, const char *entry,
                            struct err *e)
{
    const char *name = NULL, *file = NULL;
    char quant[256] = "", folder[PATH_MAX];
    bool is_folder = path_is_folder(path);
    if ((!is_folder && !pick_is_first(entry)) ||
        path_make(folder, e, is_folder ? "%s" : "%s/models", is_folder ? path : h->own))
        return e->code ? -1 : 0;
    for (int i = 0; (name = name_built_in(i, &file)) && strcmp(file, entry); i++)
        ;
    if (!is_folder)
        pick_quant(entry, quant, sizeof quant);
    struct local_model *item = local_models_add(s, name ? name : path, path, quant, e);
    struct path_list files = {0};
    int bad = !item ||
              (is_folder ? path_list_read(&files, path, e) : path_list_add(&files, entry, strlen(entry), e));
    if (!bad)
        local_models_measure(item, folder, &files);
    path_list_free(&files);
    return bad ? -1 : 0;
}

static int local_models_address(struct local_models *s, const struct hub *h, const char *folder,
                                const char *entry, struct err *e)
{
    char source[PATH_MAX], path[PATH_MAX], quant[256];
    struct buf text = {.max = 1 << 20};
    struct path_list files = {0};
    struct local_model *item = NULL;
    struct err unreadable = {0};
    int here = 0;
    (void)entry;
    if (path_make(source, e, "%s/source", folder))
        return -1;
    if (path_is_file(source) && !file_read(source, &text, &unreadable) && text.len) {
        text.data[strcspn(text.data, "\n")] = 0;
        here = url_find(h, text.data, path, e);
    }
    if (here > 0 && !path_list_read(&files, folder, e)) {
        pick_quant(path, quant, sizeof quant);
        if ((item = local_models_add(s, text.data, path, quant, e)))
            local_models_measure(item, folder, &files);
    }
    path_list_free(&files);
    buf_free(&text);
    return here < 0 || (here && !item) ? -1 : 0;
}

/* Calls the function of a cache for every entry of its folder. */
static int local_models_each(struct local_models *s, const struct hub *h, const char *folder,
                             int (*read)(struct local_models *, const struct hub *, const char *,
                                         const char *, struct err *),
                             struct err *e)
{
    struct path_list all;
    char path[PATH_MAX];
    if (path_list_entries(&all, folder, e))
        return -1;
    int bad = 0;
    for (size_t i = 0; i < all.count && !bad; i++)
        bad = path_make(path, e, "%s/%s", folder, all.names[i]) || read(s, h, path, all.names[i], e);
    path_list_free(&all);
    return bad ? -1 : 0;
}

static int local_models_compare(const void *a, const void *b)
{
    return strcmp(((const struct local_model *)a)->name, ((const struct local_model *)b)->name);
}

int local_models_read(struct local_models *s, const struct hub *h, struct err *e)
{
    char models[PATH_MAX], urls[PATH_MAX];
    *s = (struct local_models){0};
    if (path_make(models, e, "%s/models", h->own) || path_make(urls, e, "%s/urls", h->own) ||
        local_models_each(s, h, models, local_models_own, e) ||
        local_models_each(s, h, h->cache, local_models_hub, e) ||
        local_models_each(s, h, urls, local_models_address, e)) {
        local_models_free(s);
        return -1;
    }
    if (s->count)
        qsort(s->items, s->count, sizeof *s->items, local_models_compare);
    return 0;
}

void local_models_free(struct local_models *s)
{
    for (size_t i = 0; i < s->count; i++) {
        mem_free(s->items[i].name);
        mem_free(s->items[i].path);
        mem_free(s->items[i].quant);
    }
    mem_free(s->items);
    *s = (struct local_models){0};
}

/* ---- removal ---- */

/* The bytes that the files below a folder take; links count nothing, their targets count in their own
 * folders. */
static uint64_t local_models_taken(const char *path, struct err *e)
{
    struct path_list all;
    uint64_t bytes = 0;
    struct stat st;
    if (!path_is_folder(path))
        return lstat(path, &st) ? 0 : (uint64_t)st.st_size;
    if (path_list_read(&all, path, e))
        return 0;
    for (size_t i = 0; i < all.count; i++) {
        char file[PATH_MAX];
        if (!path_make(file, e, "%s/%s", path, all.names[i]) && !lstat(file, &st) && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    path_list_free(&all);
    return bytes;
}

static int local_models_remove_tree(const char *path, uint64_t *freed, struct err *e)
{
    uint64_t bytes = local_models_taken(path, e);
    if (path_remove(path, e))
        return -1;
    *freed += bytes;
    return 0;
}

static int local_models_remove_repo(const struct hub *h, const char *repo, uint64_t *freed, struct err *e)
{
    char folder[PATH_MAX], locks[PATH_MAX];
    if (cache_repo(h, repo, folder, e) ||
        path_make(locks, e, "%s/.locks/%s", h->cache, strrchr(folder, '/') + 1))
        return -1;
    return local_models_remove_tree(folder, freed, e) || path_remove(locks, e) ? -1 : 0;
}

/* Whether any link below snapshots/ still leads to this blob. */
static bool local_models_is_used(const char *snapshots, const struct path_list *links, const char *blob)
{
    for (size_t i = 0; i < links->count; i++) {
        char path[PATH_MAX], base[NAME_MAX + 1];
        struct err ignored = {0};
        if (!path_make(path, &ignored, "%s/%s", snapshots, links->names[i]) &&
            path_link_base(path, base, sizeof base) && !strcmp(base, blob))
            return true;
    }
    return false;
}

/* One link, and its blob where no other link leads to it. A snapshot may hold the file itself instead. */
static int local_models_remove_link(const char *folder, const char *path, uint64_t *freed, struct err *e)
{
    char base[NAME_MAX + 1], blob[PATH_MAX], snapshots[PATH_MAX];
    struct path_list links;
    if (!path_link_base(path, base, sizeof base))
        return local_models_remove_tree(path, freed, e);
    if (path_remove(path, e) || path_make(snapshots, e, "%s/snapshots", folder) ||
        path_make(blob, e, "%s/blobs/%s", folder, base) || path_list_read(&links, snapshots, e))
        return -1;
    bool used = local_models_is_used(snapshots, &links, base);
    path_list_free(&links);
    return used ? 0 : local_models_remove_tree(blob, freed, e);
}

static int local_models_remove_quant(const struct hub *h, const struct hub_name *n, uint64_t *freed,
                                     struct err *e)
{
    char folder[PATH_MAX], snapshot[PATH_MAX], commit[64], path[PATH_MAX];
    struct path_list all;
    struct pick pick;
    if (!cache_commit(h, n->repo, n->revision, commit))
        return err_set(e, ERR_DATA, "%s is not here", name_text(n));
    if (cache_repo(h, n->repo, folder, e) || cache_snapshot(h, n->repo, commit, snapshot, e) ||
        path_list_read(&all, snapshot, e))
        return -1;
    int bad = pick_files(&pick, &all, n->quant, e);
    path_list_free(&all);
    if (bad)
        return -1;
    for (size_t i = 0; i < pick.files.count && !bad; i++)
        bad = path_make(path, e, "%s/%s", snapshot, pick.files.names[i]) ||
              local_models_remove_link(folder, path, freed, e);
    pick_free(&pick);
    if (bad || path_list_read(&all, snapshot, e))
        return -1;
    bool empty = !all.count;
    path_list_free(&all);
    return empty ? local_models_remove_repo(h, n->repo, freed, e) : 0;
}

int local_models_remove(const struct hub *h, const struct hub_name *n, uint64_t *freed, struct err *e)
{
    char path[PATH_MAX];
    *freed = 0;
    if (n->kind == HUB_PATH)
        return err_set(e, ERR_USAGE, "%s is a path: only what was pulled is removed here", log_safe(n->text));
    if (n->kind == HUB_URL) {
        if (url_folder(h, n->text, path, e))
            return -1;
        return path_is_folder(path) ? local_models_remove_tree(path, freed, e)
                                    : err_set(e, ERR_DATA, "%s is not here", log_safe(n->text));
    }
    if (*n->text && (path_is_file(n->text) || path_is_folder(n->text)))
        return local_models_remove_tree(n->text, freed, e);
    if (cache_repo(h, n->repo, path, e))
        return -1;
    if (!path_is_folder(path))
        return err_set(e, ERR_DATA, "%s is not here; 'quern ls' lists what is", name_text(n));
    bool all = !*n->quant && !strcmp(n->revision, "main");
    return all ? local_models_remove_repo(h, n->repo, freed, e) : local_models_remove_quant(h, n, freed, e);
}
