#define _GNU_SOURCE
#include "hub/path.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int path_make(char out[PATH_MAX], struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    return n >= 0 && n < PATH_MAX ? 0 : err_set(e, ERR_USAGE, "a path is too long: %s", log_safe(out));
}

bool path_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool path_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t path_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

int path_make_folders(const char *file, struct err *e)
{
    char at[PATH_MAX];
    if (path_make(at, e, "%s", file))
        return -1;
    for (char *slash = strchr(at + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(at, 0777) && errno != EEXIST)
            return err_set(e, ERR_RESOURCE, "cannot make the folder %s: %s", log_safe(at), strerror(errno));
        *slash = '/';
    }
    return 0;
}

static int path_fill(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t put = write(fd, text, n);
        if (put < 0 && errno != EINTR)
            return -1;
        text += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
    return fsync(fd);
}

int path_write(const char *path, const char *text, size_t n, struct err *e)
{
    char temporary[PATH_MAX];
    if (path_make(temporary, e, "%s.%ld", path, (long)getpid()))
        return -1;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool failed = fd < 0 || path_fill(fd, text, n);
    int why = errno;
    if (fd >= 0 && close(fd) && !failed)
        failed = true, why = errno;
    if (!failed && rename(temporary, path))
        failed = true, why = errno;
    if (failed && fd >= 0)
        unlink(temporary);
    return failed ? err_set(e, ERR_RESOURCE, "cannot write %s: %s", log_safe(path), strerror(why)) : 0;
}

bool path_is_inside(const char *name)
{
    if (!*name || strlen(name) > 1024)
        return false;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (!n || n > NAME_MAX || (n == 1 && *p == '.') || (n == 2 && !strncmp(p, "..", 2)))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f || p[i] == '\\')
                return false;
        p += n;
        if (*p && !*++p)
            return false;
    }
    return true;
}

int path_list_add(struct path_list *l, const char *name, size_t n, struct err *e)
{
    if (l->count == PATH_LIST_MOST)
        return err_set(e, ERR_DATA, "there are more than %d files", PATH_LIST_MOST);
    if (!(l->count & (l->count - 1))) { /* room doubles at every power of two */
        const char **names = mem_realloc(l->names, l->count ? 2 * l->count : 1, sizeof *names);
        if (!names)
            return err_memory(e, "a list of files", 2 * l->count * sizeof *names);
        l->names = names;
    }
    if (!(l->names[l->count] = arena_strndup(&l->arena, name, n)))
        return err_memory(e, "a file's name", n);
    l->count++;
    return 0;
}

static int path_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void path_list_sort(struct path_list *l)
{
    if (l->count)
        qsort(l->names, l->count, sizeof *l->names, path_compare);
}

bool path_list_has(const struct path_list *l, const char *name)
{
    return l->count && bsearch(&name, l->names, l->count, sizeof *l->names, path_compare);
}

static DIR *path_open_folder(const char *folder, struct err *e)
{
    DIR *dir = opendir(folder);
    if (!dir && errno != ENOENT && errno != ENOTDIR)
        err_set(e, ERR_DATA, "cannot look into %s: %s", log_safe(folder), strerror(errno));
    return dir;
}

/* `skip` is how much of the path is the folder that names are relative to. */
static int path_list_walk(struct path_list *l, const char *folder, size_t skip, int depth, struct err *e)
{
    DIR *dir = path_open_folder(folder, e);
    if (!dir)
        return e->code ? -1 : 0;
    int bad = 0;
    for (struct dirent *d; !bad && (d = readdir(dir));) {
        char path[PATH_MAX];
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") ||
            (bad = path_make(path, e, "%s/%s", folder, d->d_name)))
            continue;
        struct stat st;
        bool folder_below = lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
        if (folder_below && depth)
            bad = path_list_walk(l, path, skip, depth - 1, e);
        else if (!folder_below && path_is_file(path))
            bad = path_list_add(l, path + skip, strlen(path + skip), e);
    }
    closedir(dir);
    return bad;
}

int path_list_read(struct path_list *l, const char *folder, struct err *e)
{
    *l = (struct path_list){0};
    int bad = path_list_walk(l, folder, strlen(folder) + 1, PATH_DEPTH, e);
    path_list_sort(l);
    if (bad)
        path_list_free(l);
    return bad;
}

int path_list_entries(struct path_list *l, const char *folder, struct err *e)
{
    *l = (struct path_list){0};
    DIR *dir = path_open_folder(folder, e);
    int bad = !dir && e->code;
    for (struct dirent *d; !bad && dir && (d = readdir(dir));)
        if (d->d_name[0] != '.')
            bad = path_list_add(l, d->d_name, strlen(d->d_name), e);
    if (dir)
        closedir(dir);
    path_list_sort(l);
    if (bad)
        path_list_free(l);
    return bad ? -1 : 0;
}

void path_list_free(struct path_list *l)
{
    mem_free(l->names);
    arena_free(&l->arena);
    *l = (struct path_list){0};
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool path_link_base(const char *path, char *out, size_t size)
{
    char to[PATH_MAX];
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n < 0)
        return false;
    to[n] = 0;
    snprintf(out, size, "%s", path_base(to));
    return true;
}

static int path_remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)at;
    return kind == FTW_DP ? rmdir(path) : unlink(path);
}

int path_remove(const char *path, struct err *e)
{
    enum { DESCRIPTORS = 16 };
    if (nftw(path, path_remove_one, DESCRIPTORS, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return 0;
    return err_set(e, ERR_RESOURCE, "cannot remove %s: %s", log_safe(path), strerror(errno));
}
