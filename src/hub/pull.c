/* hub_find and hub_pull: from a name to the files, here or fetched. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/folder.h"
#include "hub/cache.h"
#include "hub/fetch.h"
#include "hub/http.h"
#include "hub/listing.h"
#include "hub/partial_download.h"
#include "hub/pull.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- local files ---- */

static int pull_find_repo(const struct hub *h, const struct hub_name *n, char path[PATH_MAX], struct err *e)
{
    char commit[64], snapshot[PATH_MAX];
    struct path_list all;
    struct pick pick;
    struct err none = {0};
    if (!cache_commit(h, n->repo, n->revision, commit))
        return 0;
    if (cache_snapshot(h, n->repo, commit, snapshot, e) || path_list_read(&all, snapshot, e))
        return -1;
    int found = pick_files(&pick, &all, n->quant, &none) ? 0 : cache_complete(snapshot, &pick, path, e);
    if (!none.code)
        pick_free(&pick);
    path_list_free(&all);
    return found;
}

int hub_find(const struct hub *h, const struct hub_name *n, char path[PATH_MAX], struct err *e)
{
    if (n->kind == HUB_PATH)
        return path_make(path, e, "%s", n->text) ? -1 : 1;
    if (n->kind == HUB_URL)
        return url_find(h, n->text, path, e);
    if (*n->text && (path_is_file(n->text) || path_is_folder(n->text))) /* a built-in name's own file */
        return path_make(path, e, "%s", n->text) ? -1 : 1;
    return pull_find_repo(h, n, path, e);
}

/* ---- fetching ---- */

int pull_space(const char *folder, uint64_t need, struct err *e)
{
    enum { SPARE = 16 << 20 }; /* reserve for the file system and other writers */
    struct statvfs fs;
    if (!need || statvfs(folder, &fs))
        return 0; /* unknown: a full disk shows when writing */
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need + SPARE <= room)
        return 0;
    return err_set(
        e, ERR_RESOURCE,
        "no room in %s: %.2f GB are to be fetched and %.2f GB are free; 'quern ls' lists models to remove",
        log_safe(folder), (double)need / 1e9, (double)room / 1e9);
}

struct pull {
    const struct hub *hub;
    const struct hub_name *name;
    struct hub_http http;
    struct listing listing; /* the Hub's: commit, names */
    char repo[PATH_MAX], snapshot[PATH_MAX];
    struct hub_progress so_far;
    struct hub_pulled *out;
};

/* A file on the Hub, from a HEAD request. */
struct remote {
    const char *file;
    char url[HTTP_URL_MOST];
    char etag[256];
    uint64_t size;
    char blob[PATH_MAX], part[PATH_MAX], pointer[PATH_MAX]; /* pointer: its name in the snapshot */
};

static int pull_head(struct pull *p, const char *file, struct remote *r, struct err *e)
{
    struct http_reply reply;
    r->file = file;
    if (listing_url(p->hub, p->name->repo, p->listing.commit, file, r->url, e) ||
        http_fetch(&p->http, r->url, NULL, &reply, e))
        return -1;
    bool linked = reply.linked_etag[0];
    snprintf(r->etag, sizeof r->etag, "%s", linked ? reply.linked_etag : reply.etag);
    r->size = reply.linked_size != HTTP_UNKNOWN ? reply.linked_size : reply.length;
    if (r->size == HTTP_UNKNOWN || !path_is_inside(r->etag) || strchr(r->etag, '/'))
        return err_set(e, ERR_UNREACHABLE,
                       "%s: the Hub does not say how long the file is, or what it is called there",
                       log_safe(file));
    if (reply.commit[0] && strcmp(reply.commit, p->listing.commit))
        return err_set(e, ERR_UNREACHABLE, "%s: the Hub answers for commit %s and not for %s", log_safe(file),
                       log_safe(reply.commit), p->listing.commit);
    return path_make(r->blob, e, "%s/blobs/%s", p->repo, r->etag) ||
                   path_make(r->part, e, "%s/blobs/%s.quern-part", p->repo, r->etag) ||
                   path_make(r->pointer, e, "%s/%s", p->snapshot, file)
               ? -1
               : 0;
}

static bool pull_is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static bool pull_has(const char *path, const struct remote *r)
{
    return path_is_file(path) && path_bytes(path) == r->size;
}

/* Present under its name in the snapshot, link or not, or as a blob of other snapshots. */
static bool pull_is_here(const struct remote *r)
{
    return pull_has(r->pointer, r) || pull_has(r->blob, r);
}

/* Takes over another tool's partial download: it holds the first bytes of the same file. */
static void pull_adopt(const struct remote *r)
{
    char theirs[PATH_MAX];
    struct err ignored = {0};
    if (!path_is_file(r->part) && !path_make(theirs, &ignored, "%s.incomplete", r->blob) &&
        path_is_file(theirs))
        (void)!rename(theirs, r->part);
}

static int pull_blob(struct pull *p, struct remote *r, struct err *e)
{
    char lock_path[PATH_MAX];
    if (path_make(lock_path, e, "%s/.locks/%s/%s.lock", p->hub->cache, strrchr(p->repo, '/') + 1, r->etag) ||
        path_make_folders(r->blob, e))
        return -1;
    int lock = cache_lock(lock_path, r->file, e);
    if (lock < 0)
        return -1;
    int bad = 0;
    if (pull_has(r->blob, r)) { /* by the previous holder of the lock */
        p->so_far.done += r->size;
    } else {
        bool names_bytes = pull_is_hex(r->etag, 64) || pull_is_hex(r->etag, 40);
        struct fetch f = {.url = r->url,
                          .file = r->file,
                          .part = r->part,
                          .path = r->blob,
                          .size = r->size,
                          .etag = "",
                          .checksum = names_bytes ? r->etag : "",
                          .so_far = &p->so_far};
        p->so_far.file = r->file;
        pull_adopt(r);
        bad = fetch_file(&p->http, &f, e);
        p->out->fetched += f.fetched;
    }
    cache_unlock(lock);
    return bad;
}

/* Downloads all files: checks all sizes first, so that a full disk is reported before the first byte. */
static int pull_files(struct pull *p, const char *const *files, size_t count, struct err *e)
{
    struct remote *all = mem_zalloc(count ? count : 1, sizeof *all);
    uint64_t need = 0;
    int bad = all ? 0 : err_memory(e, "a list of files", count * sizeof *all);
    for (size_t i = 0; i < count && !bad; i++) {
        bad = pull_head(p, files[i], &all[i], e);
        bool here = !bad && pull_is_here(&all[i]);
        need += bad || here ? 0 : partial_missing(all[i].part, all[i].size);
        p->out->bytes += bad ? 0 : all[i].size;
        p->so_far.total += bad || here ? 0 : all[i].size;
    }
    if (!bad)
        bad = path_make_folders(all[0].blob, e) || pull_space(p->repo, need, e);
    for (size_t i = 0; i < count && !bad; i++) {
        bad = pull_is_here(&all[i]) ? 0 : pull_blob(p, &all[i], e);
        if (!bad && !pull_has(all[i].pointer, &all[i]))
            bad = cache_link(p->snapshot, all[i].file, all[i].etag, e);
        p->out->files += !bad;
    }
    mem_free(all);
    return bad ? -1 : 0;
}

/* The shards that the index names, which is here by now. */
static int pull_shards(struct pull *p, struct err *e)
{
    struct folder f;
    struct path_list shards = {0};
    if (folder_look(&f, p->snapshot, e))
        return -1;
    int bad = 0;
    for (size_t i = 0; i < f.count && !bad; i++) {
        const char *name = strrchr(f.files[i], '/') + 1;
        if (!path_list_has(&p->listing.files, name))
            bad =
                err_set(e, ERR_DATA, PICK_INDEX " names %s, which is not in the repository", log_safe(name));
        bad = bad || path_list_add(&shards, name, strlen(name), e);
    }
    bad = bad || pull_files(p, shards.names, shards.count, e);
    path_list_free(&shards);
    folder_free(&f);
    return bad;
}

static int pull_nothing(const struct pull *p, struct err *e)
{
    const struct path_list *all = &p->listing.files;
    bool pickle = false;
    for (size_t i = 0; i < all->count; i++)
        pickle |= strstr(all->names[i], ".bin") || strstr(all->names[i], ".pth");
    return err_set(e, ERR_DATA, "it holds no GGUF and no safetensors%s",
                   pickle ? ", only PyTorch pickles, which can run code when they are opened" : "");
}

static int pull_picked(struct pull *p, const struct pick *pick, struct err *e)
{
    if (pick->kind == PICK_NONE)
        return pull_nothing(p, e);
    if (pull_files(p, pick->files.names, pick->files.count, e) || (pick->indexed && pull_shards(p, e)))
        return -1;
    if (cache_write_ref(p->hub, p->name->repo, p->name->revision, p->listing.commit, e))
        return -1;
    int there = cache_complete(p->snapshot, pick, p->out->path, e);
    return there > 0 ? 0 : err_set(e, ERR_DATA, "the repository is no model: its config.json is missing");
}

static int pull_repo(struct pull *p, struct err *e)
{
    struct pick pick = {0};
    if (http_open(&p->http, p->hub, e) || cache_repo(p->hub, p->name->repo, p->repo, e) ||
        listing_fetch(&p->listing, &p->http, p->name, e))
        return -1;
    snprintf(p->out->commit, sizeof p->out->commit, "%s", p->listing.commit);
    if (cache_snapshot(p->hub, p->name->repo, p->listing.commit, p->snapshot, e) ||
        pick_files(&pick, &p->listing.files, p->name->quant, e))
        return -1;
    int bad = pull_picked(p, &pick, e);
    pick_free(&pick);
    return bad;
}

/* Adds the name and suggestions to an error. */
static int pull_explain(const struct hub *h, const struct hub_name *n, struct err *e)
{
    char near[256];
    if (n->kind == HUB_REPO && *n->text)
        return err_prefix(e, "%s (there is no %s, which scripts/fetch-model of the source tree fetches)",
                          name_text(n), log_safe(n->text));
    if (n->kind == HUB_REPO && e->code == ERR_DATA && cache_near(h, n->repo, near, sizeof near))
        return err_prefix(e, "%s (%s is here: did you mean that?)", name_text(n), near);
    bool slip = n->kind == HUB_REPO && n->plain;
    return err_prefix(e, slip ? "%s (no file or folder here, so a repository of the Hub)" : "%s",
                      name_text(n));
}

int hub_pull(const struct hub *h, const struct hub_name *n, struct hub_pulled *out, struct err *e)
{
    *out = (struct hub_pulled){0};
    if (n->kind == HUB_PATH)
        return err_set(e, ERR_USAGE, "%s is a path: only USER/REPO, an address or a name can be pulled",
                       log_safe(n->text));
    int here = h->offline ? hub_find(h, n, out->path, e) : 0;
    if (here)
        return here < 0 ? -1 : 0;
    if (h->offline) {
        err_set(e, ERR_DATA, "it is not here, and nothing is fetched (--offline, HF_HUB_OFFLINE)");
        return pull_explain(h, n, e);
    }
    struct pull *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(e, "a download", sizeof *p);
    p->hub = h, p->name = n, p->out = out;
    int bad = n->kind == HUB_URL ? url_pull(h, n->text, out, e) : pull_repo(p, e);
    if (bad && n->kind == HUB_REPO)
        pull_explain(h, n, e);
    listing_free(&p->listing);
    http_close(&p->http);
    mem_free(p);
    return bad ? -1 : 0;
}
