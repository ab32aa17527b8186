#define _GNU_SOURCE
#include "base/file.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_kind(mode_t m)
{
    return S_ISDIR(m) ? "a folder" : S_ISFIFO(m) ? "a FIFO" : S_ISSOCK(m) ? "a socket" : "a device";
}

static const struct file_opener *opener;

void file_set_opener(const struct file_opener *o)
{
    opener = o;
}

/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
static int file_fd(const char *path, bool folder)
{
    if (opener)
        return opener->open(opener->arg, path, folder);
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (folder ? O_DIRECTORY : 0));
}

DIR *file_folder(const char *path)
{
    int fd = file_fd(path, true);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    return d;
}

int file_remove(const char *path)
{
    return opener ? opener->remove(opener->arg, path) : unlink(path);
}

static int file_open(const char *path, struct stat *st, struct err *e)
{
    int fd = file_fd(path, false);
    if (fd < 0 && errno == ENODEV && !stat(path, st)) /* an opener opens no device */
        return err_set(e, ERR_DATA, "%s is %s, not a file", log_safe(path), file_kind(st->st_mode));
    if (fd < 0) {
        int code = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? ERR_RESOURCE : ERR_DATA;
        return err_set(e, code, "cannot open %s: %s", log_safe(path), strerror(errno));
    }
    if (fstat(fd, st) < 0)
        err_set(e, ERR_CHANGED, "cannot look at %s: %s", log_safe(path), strerror(errno));
    else if (!S_ISREG(st->st_mode))
        err_set(e, ERR_DATA, "%s is %s, not a file", log_safe(path), file_kind(st->st_mode));
    else
        return fd;
    close(fd);
    return -1;
}

enum { MAP_TRIES = 5 };
static bool map_copies;

void map_into_memory(bool on)
{
    map_copies = on;
}

/* Fills anonymous memory with the file: it is unmapped like any other mapping. */
static int map_fill(uint8_t *to, size_t n, int fd, const char *path, struct err *e)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = pread(fd, to + at, n - at, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_set(e, ERR_CHANGED, "cannot read %s at byte %zu: %s", log_safe(path), at,
                           got ? strerror(errno) : "it has become shorter");
        at += (size_t)got;
    }
    return 0;
}

/* Again where it was written meanwhile: what is in memory is one state of the file. */
static int map_read(uint8_t *to, int fd, struct stat *st, const char *path, struct err *e)
{
    struct stat after;
    for (int try = 0; try < MAP_TRIES; try++) {
        if (map_fill(to, (size_t)st->st_size, fd, path, e))
            return -1;
        if (!fstat(fd, &after) && watch_same(st, &after))
            return mprotect(to, (size_t)st->st_size, PROT_READ);
        if (after.st_size != st->st_size)
            break;
        *st = after;
    }
    return err_set(e, ERR_CHANGED, "%s was changed while it was read", log_safe(path));
}

void map_forget(const void *p, size_t n)
{
    watch_forget(p, n);
}

void map_own(const struct map *m, size_t n)
{
    watch_own(m->watch, n);
}

int map_check(const struct map *m, struct err *e)
{
    return watch_check(m->watch, e);
}

bool map_is_changed(const struct map *m)
{
    return watch_is_changed(m->watch);
}

/* Shared, since of private pages that a driver pins the system makes copies first; but some file systems have only those. */
static void *map_file(int fd, size_t size, bool *is_private)
{
    void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    *is_private = p == MAP_FAILED && errno != ENOMEM;
    return *is_private ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : p;
}

int map_open(struct map *m, const char *path, struct err *e)
{
    struct stat st;
    *m = (struct map){.fd = -1};
    int fd = file_open(path, &st, e);
    if (fd < 0)
        return -1;
    void *p = NULL;
    bool is_private = false;
    if (st.st_size) {
        if (map_copies)
            p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        else
            p = map_file(fd, (size_t)st.st_size, &is_private);
        if (p == MAP_FAILED) {
            if (errno == ENOMEM)
                err_memory(e, log_safe(path), (unsigned long long)st.st_size);
            else
                err_set(e, ERR_RESOURCE, "cannot map %s (%lld bytes): %s", log_safe(path),
                        (long long)st.st_size, strerror(errno));
            close(fd);
            return -1;
        }
        if (map_copies && map_read(p, fd, &st, path, e)) {
            munmap(p, (size_t)st.st_size);
            close(fd);
            return -1;
        }
    }
    struct watch *w = p ? watch_add(path, fd, &st, p, map_copies) : NULL;
    if (p && !w) {
        err_set(e, ERR_RESOURCE, "cannot map %s: too many files are mapped, or memory is short",
                log_safe(path));
        munmap(p, (size_t)st.st_size);
        close(fd);
        return -1;
    }
    *m = (struct map){.data = p, .size = (size_t)st.st_size, .fd = fd, .watch = w, .is_private = is_private};
    return 0;
}

void map_close(struct map *m)
{
    watch_remove(m->watch);
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    if (m->fd >= 0)
        close(m->fd);
    *m = (struct map){.fd = -1};
}

static int file_slurp(int fd, const char *path, struct buf *b, struct err *e)
{
    for (;;) {
        char *p = buf_reserve(b, 65536);
        if (!p)
            return err_set(e, ERR_RESOURCE, "%s is too large: more than %zu bytes", log_safe(path), b->len);
        ssize_t n = read(fd, p, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_CHANGED, "cannot read %s: %s", log_safe(path), strerror(errno));
        b->len += (size_t)n;
        b->data[b->len] = 0;
        if (!n)
            return 0;
    }
}

int file_read(const char *path, struct buf *b, struct err *e)
{
    if (!strcmp(path, "-"))
        return file_slurp(0, "standard input", b, e);
    struct stat st;
    int fd = file_open(path, &st, e);
    if (fd < 0)
        return -1;
    int r = file_slurp(fd, path, b, e);
    close(fd);
    return r;
}
