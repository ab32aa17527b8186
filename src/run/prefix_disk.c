#define _GNU_SOURCE
#include "run/prefix_disk.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "run/picture_ids.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PREFIX_DISK_SLOTS = 16,
    PREFIX_DISK_STATES = 2,
    PREFIX_DISK_SLOT_BYTES = 64 << 20,
    PREFIX_DISK_STALE = 3600
};

struct header {
    char magic[8];
    struct digest with;
    uint32_t tokens, zero;
    uint64_t bytes;
    struct digest body, head; /* head: of all before it */
};
_Static_assert(sizeof(struct header) == 72, "the header is what disk.h draws");

static const char prefix_disk_magic[8] = {'q', 'u', 'e', 'r', 'n', 'K', 'V', '1'};

struct prefix_disk {
    struct prefix_disk_options o;
    char folder[PATH_MAX - 64];
    uint8_t *page;  /* (o.bytes or o.state_bytes): what was read last */
    int32_t *ids;   /* (o.tokens) */
    uint64_t nonce; /* of this process */
    bool warned;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t change;
    struct prefix_disk_slot slots[PREFIX_DISK_SLOTS + PREFIX_DISK_STATES];
    struct prefix_disk_slot *unused[PREFIX_DISK_KINDS], *first, **last; /* first: to be written, in order */
    bool closing;
    struct prefix_disk_stats stats;
};

/* ---- names ---- */

struct digest prefix_disk_root(const struct prefix_disk *d, uint64_t salt)
{
    struct digest root = d->o.computed;
    digest_add(&root, &salt, sizeof salt);
    return root;
}

/* A row of an image, whatever number it has in this process. */
struct disk_row {
    uint8_t digest[PICTURE_DIGEST];
    uint32_t row;
    uint64_t only; /* of an image that is no longer known: this process */
};

static struct disk_row disk_row(const struct prefix_disk *d, int32_t id)
{
    struct disk_row r = {0};
    if (picture_ids_find(d->o.images, id, r.digest, &r.row))
        return r;
    return (struct disk_row){.row = (uint32_t)id, .only = d->nonce};
}

/* An id as files have it. */
static int32_t disk_id(const struct prefix_disk *d, int32_t id)
{
    if (id >= 0 || !d->o.images)
        return id;
    const struct disk_row r = disk_row(d, id);
    struct digest sum = {0};
    digest_add(&sum, &r, sizeof r);
    return (int32_t)(uint32_t)sum.lo | INT32_MIN;
}

struct digest prefix_disk_name(const struct prefix_disk *d, struct digest before, const int32_t *ids,
                               uint32_t n)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= 0 || !d->o.images)
            continue;
        const struct disk_row r = disk_row(d, ids[i]);
        digest_add(&before, ids + first, (i - first) * sizeof *ids);
        digest_add(&before, &r, sizeof r);
        first = i + 1;
    }
    digest_add(&before, ids + first, (n - first) * sizeof *ids);
    return before;
}

static void prefix_disk_path(const struct prefix_disk *d, struct digest name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%016llx%016llx.kv", d->folder, (unsigned long long)name.hi,
             (unsigned long long)name.lo);
}

static size_t page_bytes(const struct prefix_disk *d, const struct prefix_disk_page *p)
{
    return p->bytes ? p->bytes : d->o.bytes;
}

static struct header prefix_disk_header(const struct prefix_disk *d, const struct prefix_disk_page *p,
                                        const uint8_t *bytes)
{
    struct header h = {.with = p->with, .tokens = p->tokens, .bytes = page_bytes(d, p)};
    memcpy(h.magic, prefix_disk_magic, sizeof h.magic);
    digest_add(&h.body, p->ids, p->tokens * sizeof *p->ids);
    digest_add(&h.body, bytes, h.bytes);
    digest_add(&h.head, &h, offsetof(struct header, head));
    return h;
}

/* ---- reading ---- */

static bool read_all(int fd, void *to, size_t n)
{
    for (uint8_t *at = to; n;) {
        ssize_t r = read(fd, at, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += r;
        n -= (size_t)r;
    }
    return true;
}

/* 1 = it is the page, 0 = another one, -1 = damaged. */
static int prefix_disk_check(struct prefix_disk *d, int fd, const struct prefix_disk_page *p)
{
    struct header h, want;
    struct stat st;
    if (fstat(fd, &st) || !read_all(fd, &h, sizeof h))
        return -1;
    struct digest head = {0};
    digest_add(&head, &h, offsetof(struct header, head));
    size_t bytes = page_bytes(d, p), size = sizeof h + (size_t)p->tokens * sizeof *p->ids + bytes;
    if (memcmp(h.magic, prefix_disk_magic, sizeof h.magic) != 0 || memcmp(&head, &h.head, sizeof head) != 0)
        return -1;
    if (h.tokens != p->tokens || h.bytes != bytes || memcmp(&h.with, &p->with, sizeof h.with) != 0)
        return 0;
    if ((uint64_t)st.st_size != size || !read_all(fd, d->ids, p->tokens * sizeof *d->ids) ||
        !read_all(fd, d->page, bytes))
        return -1;
    struct prefix_disk_page found = *p;
    found.ids = d->ids;
    want = prefix_disk_header(d, &found, d->page);
    if (memcmp(&want, &h, sizeof h) != 0)
        return -1;
    for (uint32_t i = 0; i < p->tokens; i++)
        if (d->ids[i] != disk_id(d, p->ids[i]))
            return 0;
    return 1;
}

const uint8_t *prefix_disk_read(struct prefix_disk *d, const struct prefix_disk_page *p)
{
    char path[PATH_MAX];
    prefix_disk_path(d, p->name, path);
    bool fits = p->tokens <= d->o.tokens && page_bytes(d, p) <= size_max(d->o.bytes, d->o.state_bytes);
    int fd = fits ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0)
        return NULL;
    int is = prefix_disk_check(d, fd, p);
    if (is > 0)
        futimens(fd, NULL); /* used now */
    close(fd);
    if (is < 0) {
        unlink(path);
        if (!d->warned)
            log_warn("the cache on disk: %s is damaged and is computed again", path);
        d->warned = true;
    }
    pthread_mutex_lock(&d->mutex);
    d->stats.read += is > 0;
    d->stats.damaged += is < 0;
    pthread_mutex_unlock(&d->mutex);
    return is > 0 ? d->page : NULL;
}

bool prefix_disk_has(const struct prefix_disk *d, const struct prefix_disk_page *p)
{
    char path[PATH_MAX];
    prefix_disk_path(d, p->name, path);
    return access(path, R_OK) == 0;
}

/* ---- the bound ---- */

struct prefix_disk_entry {
    char name[48];
    struct timespec used;
    uint64_t bytes;
};

static int entry_older(const void *a, const void *b)
{
    const struct timespec *x = &((const struct prefix_disk_entry *)a)->used,
                          *y = &((const struct prefix_disk_entry *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* A file of ours: *bytes and *used say how large and how old. Removes files that a process left
 * half-written. */
static bool entry_read(int folder, const char *name, struct prefix_disk_entry *out)
{
    struct stat st;
    size_t n = strlen(name);
    if (n >= sizeof out->name || fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
        return false;
    if (!strncmp(name, "new-", 4) && time(NULL) - st.st_mtime > PREFIX_DISK_STALE)
        unlinkat(folder, name, 0);
    if (n != 35 || strcmp(name + 32, ".kv") != 0)
        return false;
    *out = (struct prefix_disk_entry){.used = st.st_mtim, .bytes = (uint64_t)st.st_size};
    memcpy(out->name, name, n);
    return true;
}

static struct prefix_disk_entry *entries_list(DIR *folder, size_t *count)
{
    struct prefix_disk_entry *all = NULL, one;
    size_t room = 0;
    *count = 0;
    for (struct dirent *f; (f = readdir(folder));) {
        if (!entry_read(dirfd(folder), f->d_name, &one))
            continue;
        struct prefix_disk_entry *more = mem_more(all, *count, &room, sizeof *all);
        if (!more)
            break; /* the files found so far are enough */
        all = more;
        all[(*count)++] = one;
    }
    return all;
}

/* Counts the folder again, and removes the least recently used until a tenth of the bound is free. */
static uint64_t prefix_disk_trim(struct prefix_disk *d)
{
    DIR *folder = opendir(d->folder);
    size_t count = 0;
    uint64_t bytes = 0;
    struct prefix_disk_entry *all = folder ? entries_list(folder, &count) : NULL;
    for (size_t i = 0; i < count; i++)
        bytes += all[i].bytes;
    if (bytes > d->o.most) {
        qsort(all, count, sizeof *all, entry_older);
        for (size_t i = 0; i < count && bytes > d->o.most - d->o.most / 10; i++)
            if (!unlinkat(dirfd(folder), all[i].name, 0) || errno == ENOENT)
                bytes -= all[i].bytes;
    }
    mem_free(all);
    if (folder)
        closedir(folder);
    return bytes;
}

/* ---- writing ---- */

static bool write_all(int fd, const void *from, size_t n)
{
    for (const uint8_t *at = from; n;) {
        ssize_t r = write(fd, at, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += r;
        n -= (size_t)r;
    }
    return true;
}

/* Returns the bytes written: 0 where the disk is full. An existing file of this name is damaged, or the
 * same. */
static uint64_t prefix_disk_store(struct prefix_disk *d, const struct prefix_disk_slot *s)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    struct prefix_disk_page p = s->page;
    p.ids = s->ids;
    if (!p.tokens)
        return 0;
    prefix_disk_path(d, p.name, path);
    static atomic_uint number; /* there may be several engines in a process */
    snprintf(temporary, sizeof temporary, "%s/new-%ld-%u", d->folder, (long)getpid(),
             atomic_fetch_add(&number, 1));
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return 0;
    struct header h = prefix_disk_header(d, &p, s->bytes);
    bool whole = write_all(fd, &h, sizeof h) && write_all(fd, s->ids, p.tokens * sizeof *s->ids) &&
                 write_all(fd, s->bytes, h.bytes);
    whole &= close(fd) == 0;
    if (whole && !rename(temporary, path))
        return sizeof h + p.tokens * sizeof *s->ids + h.bytes;
    unlink(temporary);
    return 0;
}

static void *prefix_disk_thread(void *arg)
{
    struct prefix_disk *d = arg;
    uint64_t bytes = prefix_disk_trim(d);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        d->stats.bytes = bytes;
        while (!d->first && !d->closing)
            pthread_cond_wait(&d->change, &d->mutex);
        struct prefix_disk_slot *s = d->first;
        if (!s)
            break;
        pthread_mutex_unlock(&d->mutex);
        uint64_t more = prefix_disk_store(d, s);
        bytes += more;
        if (bytes > d->o.most)
            bytes = prefix_disk_trim(d);
        pthread_mutex_lock(&d->mutex);
        d->stats.written += more > 0;
        d->first = s->next;
        if (!d->first)
            d->last = &d->first;
        s->next = d->unused[s->kind];
        d->unused[s->kind] = s;
        pthread_cond_broadcast(&d->change);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

struct prefix_disk_slot *prefix_disk_slot(struct prefix_disk *d, enum prefix_disk_kind kind, bool wait)
{
    pthread_mutex_lock(&d->mutex);
    while (!d->unused[kind] && wait)
        pthread_cond_wait(&d->change, &d->mutex);
    struct prefix_disk_slot *s = d->unused[kind];
    if (s)
        d->unused[kind] = s->next;
    pthread_mutex_unlock(&d->mutex);
    return s;
}

void prefix_disk_write(struct prefix_disk *d, struct prefix_disk_slot *s)
{
    for (uint32_t i = 0; i < s->page.tokens; i++)
        s->ids[i] = disk_id(d, s->ids[i]);
    pthread_mutex_lock(&d->mutex);
    s->next = NULL;
    *d->last = s;
    d->last = &s->next;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->mutex);
}

void prefix_disk_stats(struct prefix_disk *d, struct prefix_disk_stats *out)
{
    pthread_mutex_lock(&d->mutex);
    *out = d->stats;
    pthread_mutex_unlock(&d->mutex);
}

/* ---- open and close ---- */

static int prefix_disk_folder(struct prefix_disk *d, struct err *e)
{
    struct stat st;
    if (snprintf(d->folder, sizeof d->folder, "%s", d->o.folder) >= (int)sizeof d->folder)
        return err_set(e, ERR_USAGE, "the name of the cache's folder is too long");
    if (mkdir(d->folder, 0700) && errno != EEXIST)
        return err_set(e, ERR_USAGE, "the cache's folder %s cannot be created: %s", log_safe(d->folder),
                       strerror(errno));
    if (stat(d->folder, &st) || !S_ISDIR(st.st_mode) || access(d->folder, R_OK | W_OK | X_OK))
        return err_set(e, ERR_USAGE, "the cache's folder %s is not a writable folder", log_safe(d->folder));
    return 0;
}

/* Allocates `count` slots of a kind from slots[at] on. */
static bool prefix_disk_slots(struct prefix_disk *d, enum prefix_disk_kind kind, size_t at, size_t count,
                              size_t bytes)
{
    bool whole = true;
    for (size_t i = at; i < at + count; i++) {
        struct prefix_disk_slot *s = &d->slots[i];
        s->kind = kind;
        s->ids = mem_alloc(d->o.tokens, sizeof *s->ids);
        s->bytes = mem_alloc(bytes, 1);
        whole &= s->ids && s->bytes;
        s->next = d->unused[kind];
        d->unused[kind] = s;
    }
    return whole;
}

static int prefix_disk_memory(struct prefix_disk *d, struct err *e)
{
    size_t count = d->o.bytes ? PREFIX_DISK_SLOT_BYTES / d->o.bytes : PREFIX_DISK_SLOTS;
    size_t states = d->o.state_bytes ? PREFIX_DISK_STATES : 0;
    count = count < 2 ? 2 : count > PREFIX_DISK_SLOTS ? PREFIX_DISK_SLOTS : count;
    d->page = mem_alloc(size_max(d->o.bytes, d->o.state_bytes), 1);
    d->ids = mem_alloc(d->o.tokens, sizeof *d->ids);
    bool whole = d->page && d->ids && prefix_disk_slots(d, PREFIX_DISK_PAGE, 0, count, d->o.bytes) &&
                 prefix_disk_slots(d, PREFIX_DISK_STATE, count, states, d->o.state_bytes);
    return whole ? 0
                 : err_memory(e, "the cache on disk",
                              (uint64_t)count * d->o.bytes + (uint64_t)states * d->o.state_bytes);
}

int prefix_disk_open(struct prefix_disk **out, const struct prefix_disk_options *o, struct err *e)
{
    struct prefix_disk *d = mem_zalloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return err_memory(e, "the cache on disk", sizeof *d);
    d->o = *o;
    d->last = &d->first;
    pthread_mutex_init(&d->mutex, NULL);
    d->nonce = (uint64_t)getpid() << 40 ^ (uint64_t)(clock_now() * 1e6);
    pthread_cond_init(&d->change, NULL);
    int failed = prefix_disk_folder(d, e) || prefix_disk_memory(d, e);
    if (!failed) {
        int r = pthread_create(&d->thread, NULL, prefix_disk_thread, d);
        d->started = !r;
        failed = r ? err_set(e, ERR_RESOURCE, "cannot start the cache's thread: %s", strerror(r)) : 0;
    }
    if (failed) {
        prefix_disk_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

void prefix_disk_close(struct prefix_disk *d)
{
    if (!d)
        return;
    if (d->started) {
        pthread_mutex_lock(&d->mutex);
        d->closing = true;
        pthread_cond_broadcast(&d->change);
        pthread_mutex_unlock(&d->mutex);
        pthread_join(d->thread, NULL);
    }
    for (size_t i = 0; i < sizeof d->slots / sizeof *d->slots; i++) {
        mem_free(d->slots[i].ids);
        mem_free(d->slots[i].bytes);
    }
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->change);
    mem_free(d->page);
    mem_free(d->ids);
    mem_free(d);
}
