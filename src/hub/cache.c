#define _GNU_SOURCE
#include "hub/cache.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/edit_distance.h"
#include "format/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CACHE_COMMIT = 40, CACHE_REF_FILE = 1 << 17 };

int cache_repo(const struct hub *h, const char *repo, char out[PATH_MAX], struct err *e)
{
    const char *slash = strchr(repo, '/');
    return path_make(out, e, "%s/models--%.*s%s%s", h->cache, slash ? (int)(slash - repo) : (int)strlen(repo),
                     repo, slash ? "--" : "", slash ? slash + 1 : "");
}

bool cache_repo_name(const char *folder, char *out, size_t size)
{
    if (strncmp(folder, "models--", 8))
        return false;
    const char *user = folder + 8, *rest = strstr(user, "--");
    snprintf(out, size, "%.*s%s%s", rest ? (int)(rest - user) : (int)strlen(user), user, rest ? "/" : "",
             rest ? rest + 2 : "");
    return name_is_repo(out);
}

bool cache_near(const struct hub *h, const char *repo, char *out, size_t size)
{
    struct path_list all;
    struct err ignored = {0};
    struct nearest best = {.word = repo};
    if (path_list_entries(&all, h->cache, &ignored))
        return false;
    for (size_t i = 0; i < all.count; i++) {
        char name[256];
        struct nearest one = {.word = repo};
        if (cache_repo_name(all.names[i], name, sizeof name))
            nearest_offer(&one, name);
        if (one.best && one.far && (!best.best || one.far < best.far)) {
            snprintf(out, size, "%s", name);
            best = (struct nearest){.word = repo, .best = out, .far = one.far};
        }
    }
    path_list_free(&all);
    return best.best;
}

static bool cache_is_commit(const char *s)
{
    return strlen(s) == CACHE_COMMIT && strspn(s, "0123456789abcdef") == CACHE_COMMIT;
}

/* A download by commit leaves no ref: of several snapshots the newest counts. */
static bool cache_newest(const char *repo, char commit[64])
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct err ignored = {0};
    struct path_list all;
    time_t newest = 0;
    commit[0] = 0;
    if (path_make(folder, &ignored, "%s/snapshots", repo) || path_list_entries(&all, folder, &ignored))
        return false;
    for (size_t i = 0; i < all.count; i++) {
        struct stat st;
        if (cache_is_commit(all.names[i]) && !path_make(path, &ignored, "%s/%s", folder, all.names[i]) &&
            !stat(path, &st) && (!commit[0] || st.st_mtime > newest)) {
            newest = st.st_mtime;
            snprintf(commit, 64, "%.40s", all.names[i]);
        }
    }
    path_list_free(&all);
    return commit[0];
}

bool cache_commit(const struct hub *h, const char *repo, const char *revision, char commit[64])
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct err ignored = {0};
    struct buf text = {.max = CACHE_REF_FILE};
    if (cache_is_commit(revision)) {
        snprintf(commit, 64, "%s", revision);
        return true;
    }
    if (cache_repo(h, repo, folder, &ignored) || path_make(path, &ignored, "%s/refs/%s", folder, revision))
        return false;
    bool found = path_is_file(path) && !file_read(path, &text, &ignored) && text.len;
    if (found) {
        text.data[strcspn(text.data, " \r\n")] = 0;
        found = cache_is_commit(text.data);
        snprintf(commit, 64, "%s", found ? text.data : "");
    }
    buf_free(&text);
    return found || (!strcmp(revision, "main") && cache_newest(folder, commit));
}

int cache_snapshot(const struct hub *h, const char *repo, const char *commit, char out[PATH_MAX],
                   struct err *e)
{
    char folder[PATH_MAX];
    return cache_repo(h, repo, folder, e) || path_make(out, e, "%s/snapshots/%s", folder, commit) ? -1 : 0;
}

int cache_complete(const char *snapshot, const struct pick *p, char path[PATH_MAX], struct err *e)
{
    char config[PATH_MAX];
    bool all = p->kind != PICK_NONE;
    if (p->kind == PICK_GGUF)
        return path_make(path, e, "%s/%s", snapshot, p->files.names[0]) ? -1 : 1;
    if (path_make(path, e, "%s", snapshot) || path_make(config, e, "%s/config.json", snapshot))
        return -1;
    struct folder f;
    struct err ignored = {0};
    if (!all || !path_is_file(config) || folder_look(&f, snapshot, &ignored))
        return 0;
    for (size_t i = 0; i < f.count; i++)
        all &= path_is_file(f.files[i]);
    folder_free(&f);
    return all;
}

int cache_write_ref(const struct hub *h, const char *repo, const char *revision, const char *commit,
                    struct err *e)
{
    char folder[PATH_MAX], path[PATH_MAX], now[64];
    if (cache_is_commit(revision) ||
        (cache_commit(h, repo, revision, now) && !strcmp(now, commit) && strcmp(revision, "main")))
        return 0;
    return cache_repo(h, repo, folder, e) || path_make(path, e, "%s/refs/%s", folder, revision) ||
                   path_make_folders(path, e) || path_write(path, commit, strlen(commit), e)
               ? -1
               : 0;
}

int cache_link(const char *snapshot, const char *file, const char *etag, struct err *e)
{
    char path[PATH_MAX], temporary[PATH_MAX], target[PATH_MAX], there[PATH_MAX];
    size_t up = 0;
    struct buf steps = {.max = PATH_MAX};
    for (const char *p = file; (p = strchr(p, '/')); p++)
        up++;
    for (buf_str(&steps, "../../"); up; up--)
        buf_str(&steps, "../");
    int bad = steps.failed || path_make(target, e, "%sblobs/%s", steps.data, etag) ||
              path_make(path, e, "%s/%s", snapshot, file) ||
              path_make(temporary, e, "%s.%ld", path, (long)getpid()) || path_make_folders(path, e);
    buf_free(&steps);
    if (bad)
        return -1;
    ssize_t n = readlink(path, there, sizeof there - 1);
    if (n > 0 && (size_t)n == strlen(target) && !strncmp(there, target, (size_t)n))
        return 0;
    if (symlink(target, temporary) || rename(temporary, path)) {
        err_set(e, ERR_RESOURCE, "cannot link %s: %s", log_safe(path), strerror(errno));
        unlink(temporary);
        return -1;
    }
    return 0;
}

/* Other processes remove the lock file when they are done, so the file that we locked may be unlinked. */
static bool cache_lock_is(int fd, const char *path)
{
    struct stat mine, theirs;
    return fstat(fd, &mine) == 0 && stat(path, &theirs) == 0 && mine.st_ino == theirs.st_ino &&
           mine.st_dev == theirs.st_dev;
}

int cache_lock(const char *path, const char *file, struct err *e)
{
    if (path_make_folders(path, e))
        return -1;
    for (bool said = false;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
        if (fd < 0)
            return err_set(e, ERR_RESOURCE, "cannot lock %s: %s", log_safe(path), strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            if (errno != EWOULDBLOCK && errno != EINTR)
                return fd; /* the file system has no locks: the checksum still detects a conflict */
            if (!said)
                log_info("waiting for another program that fetches %s", log_safe(file));
            said = true;
            while (flock(fd, LOCK_EX) && errno == EINTR)
                ;
        }
        if (cache_lock_is(fd, path))
            return fd;
        close(fd);
    }
}

void cache_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
