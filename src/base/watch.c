#define _GNU_SOURCE
#include "base/watch.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    WATCH_MOST = 4096,      /* files at once */
    WATCH_PIECE = 64 << 10, /* bytes that are read at once */
    WATCH_TRIES = 100,      /* retries while a writer is active */
    WATCH_PAUSE = 100,      /* milliseconds between retries */
};

/* The slots are never freed: a signal handler may look at any of them at any time. */
struct watch {
    atomic_uintptr_t from, to; /* from = 0: the slot is free */
    atomic_bool copied;
    atomic_bool broken;   /* a page could not be read */
    atomic_bool changed;  /* never reset */
    atomic_bool closing;  /* a long read of the file stops */
    atomic_size_t own;    /* bytes of the beginning that are this process's */
    pthread_mutex_t lock; /* guards what follows; held while the file is read */
    bool used;
    int fd;
    char *path;
    pthread_mutex_t st_lock; /* for st, which is written with both locks held */
    struct stat st;          /* as of the last time when the bytes were the first ones */
    bool lease, hashed, failed;
    double held;            /* when the lease was held for certain */
    bool differs, replaced; /* the notes have been written */
    struct digest digest;
};

static struct watch slots[WATCH_MOST];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before a slot's own */
static size_t slots_used;                                      /* those behind have never been used */
static uintptr_t page_bytes;                                   /* set before the first mapping is watched */
static sem_t bell;
static bool watching, running;
static double lease_seconds; /* that the kernel waits for a lease to be given up */

/* ---- what the file is now ---- */

bool watch_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
           a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void set_times(struct watch *w, const struct stat *now)
{
    pthread_mutex_lock(&w->st_lock);
    w->st = *now;
    pthread_mutex_unlock(&w->st_lock);
}

/* True: no process has had the file open for writing since it was mapped. */
static bool has_lease(struct watch *w)
{
    double now = clock_now();
    if (!w->lease ||
        fcntl(w->fd, F_GETLEASE) != F_RDLCK) /* F_UNLCK: a writer waits, or has waited for too long */
        return false;
    w->held = now;
    return true;
}

/* A writer waits for the lease, and cannot have had the file yet. */
static bool lease_blocks(const struct watch *w)
{
    return w->lease && clock_now() - w->held < lease_seconds;
}

/* Reads all of the file: into a digest, or against memory. False: it could not be read, differs, or the slot closes. */
static bool read_all(struct watch *w, struct digest *digest, const uint8_t *same)
{
    uint8_t piece[WATCH_PIECE];
    size_t size = atomic_load(&w->to) - atomic_load(&w->from);
    *digest = (struct digest){0};
    for (size_t at = 0; at < size;) {
        size_t want = size - at < sizeof piece ? size - at : sizeof piece, got = 0;
        while (got < want) {
            ssize_t n = pread(w->fd, piece + got, want - got, (off_t)(at + got));
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return false;
            got += (size_t)n;
        }
        if (atomic_load(&w->closing) || (same && memcmp(piece, same + at, want) != 0))
            return false;
        digest_add(digest, piece, want);
        at += want;
    }
    return true;
}

/* The digest of the first bytes: only while nothing can have been written. The slot's lock is held. */
static void make_digest(struct watch *w)
{
    struct stat before, after;
    struct digest digest;
    if (w->hashed || w->failed || atomic_load(&w->copied))
        return;
    bool whole = !fstat(w->fd, &before) && before.st_size == w->st.st_size && read_all(w, &digest, NULL) &&
                 !fstat(w->fd, &after);
    w->hashed = whole && ((watch_same(&before, &w->st) && watch_same(&after, &w->st)) || lease_blocks(w));
    w->failed = !w->hashed && !atomic_load(&w->closing);
    if (w->hashed) {
        w->digest = digest;
        set_times(w, &after);
    }
}

/* 1: the bytes are the first ones; 0: they are not; -1: a writer was active meanwhile. */
static int compare(struct watch *w, const struct stat *now)
{
    struct stat after;
    struct digest digest;
    bool copied = atomic_load(&w->copied);
    bool whole = read_all(w, &digest, copied ? (const uint8_t *)atomic_load(&w->from) : NULL);
    bool same = whole && (copied || (digest.lo == w->digest.lo && digest.hi == w->digest.hi));
    if (!fstat(w->fd, &after) && watch_same(&after, now))
        return same;
    return copied ? 0 : -1;
}

static void set_changed(struct watch *w, const char *how)
{
    if (!atomic_exchange(&w->changed, true) && !atomic_load(&w->closing))
        log_warn("%s %s while it was in use", log_safe(w->path), how);
}

/* The slot's lock is held; the times are not the last ones. */
static void verify_copy(struct watch *w, const struct stat *now)
{
    if (compare(w, now) == 0 && !w->differs && !atomic_load(&w->closing)) {
        w->differs = true;
        log_info("%s differs now from the copy in memory: the copy stays in use", log_safe(w->path));
    }
    set_times(w, now);
}

/* What a check does; the slot's lock is held. */
static void verify(struct watch *w)
{
    struct stat now;
    for (int try = 0; try < WATCH_TRIES && !atomic_load(&w->changed) && !atomic_load(&w->closing); try++) {
        int same;
        if (atomic_load(&w->broken))
            set_changed(w, "was cut short or could not be read");
        else if (fstat(w->fd, &now))
            set_changed(w, "could not be looked at");
        else if (watch_same(&now, &w->st))
            return;
        else if (atomic_load(&w->copied)) {
            verify_copy(w, &now);
            return;
        } else if (now.st_size != w->st.st_size)
            set_changed(w, now.st_size < w->st.st_size ? "was cut short" : "was changed");
        else if (has_lease(w)) { /* asked after fstat: the file was not open for writing until now */
            set_times(w, &now);
            return;
        } else if (make_digest(w), !w->hashed)
            set_changed(w, "may have been changed (there was no time to read it before)");
        else if ((same = compare(w, &now)) > 0) {
            set_times(w, &now);
            return;
        } else if (!same)
            set_changed(w, "was changed");
        else {
            struct timespec pause = {.tv_nsec = WATCH_PAUSE * 1000000L};
            nanosleep(&pause, NULL);
        }
    }
    if (!atomic_load(&w->closing))
        set_changed(w, "is being written");
}

/* ---- the thread ---- */

/* A file of the same name has taken the place of ours. */
static void note_replaced(struct watch *w)
{
    struct stat named;
    if (w->replaced || stat(w->path, &named) ||
        (named.st_dev == w->st.st_dev && named.st_ino == w->st.st_ino))
        return;
    w->replaced = true;
    log_info(
        "%s was replaced by another file: what is loaded stays as it is, the next load reads the new one",
        log_safe(w->path));
}

static void look_at(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    if (w->used && !atomic_load(&w->changed)) {
        if (!has_lease(w))
            make_digest(w);
        if (w->lease && !has_lease(w)) { /* a writer waits, and may go on now */
            fcntl(w->fd, F_SETLEASE, F_UNLCK);
            w->lease = false;
        }
        verify(w);
        note_replaced(w);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *watch_thread(void *arg)
{
    (void)arg;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        while (sem_timedwait(&bell, &until) && errno == EINTR)
            ;
        pthread_mutex_lock(&slots_lock);
        size_t n = slots_used;
        pthread_mutex_unlock(&slots_lock);
        for (size_t i = 0; i < n; i++)
            look_at(&slots[i]);
    }
    return NULL;
}

void watch_start(void)
{
    FILE *f = fopen("/proc/sys/fs/lease-break-time", "re");
    char text[24] = "45";
    uint64_t seconds = 45;
    if (f && fgets(text, sizeof text, f))
        num_u64(text, strcspn(text, "\n"), 1 << 20, &seconds);
    if (f)
        fclose(f);
    lease_seconds = seconds ? (double)seconds - 1 : 1e9; /* 0: it waits for ever */
    watching = !sem_init(&bell, 0, 0);
}

void watch_wake(void)
{
    int was = errno;
    sem_post(&bell);
    errno = was;
}

/* The slots' lock is held. */
static void start_thread(void)
{
    pthread_t t;
    sigset_t all, before;
    if (!watching || running)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (!pthread_create(&t, NULL, watch_thread, NULL)) {
        pthread_detach(t);
        running = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- slots ---- */

static struct watch *free_slot(void)
{
    for (size_t i = 0; i < slots_used; i++)
        if (!slots[i].used)
            return &slots[i];
    if (slots_used == WATCH_MOST)
        return NULL;
    pthread_mutex_init(&slots[slots_used].lock, NULL);
    pthread_mutex_init(&slots[slots_used].st_lock, NULL);
    return &slots[slots_used++];
}

struct watch *watch_add(const char *path, int fd, const struct stat *st, const void *data, bool copied)
{
    char *name = mem_strdup(path);
    pthread_mutex_lock(&slots_lock);
    struct watch *w = name ? free_slot() : NULL;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (w) {
        pthread_mutex_lock(&w->lock);
        w->used = true;
        w->fd = fd;
        w->path = name;
        set_times(w, st);
        atomic_store(&w->own, 0);
        w->hashed = w->failed = w->differs = w->replaced = false;
        w->held = clock_now();
        bool lease = w->lease = watching && !copied && !fcntl(fd, F_SETLEASE, F_RDLCK);
        atomic_store(&w->copied, copied);
        atomic_store(&w->broken, false);
        atomic_store(&w->changed, false);
        atomic_store(&w->closing, false);
        atomic_store(&w->to, (uintptr_t)data + (size_t)st->st_size);
        atomic_store(&w->from, (uintptr_t)data);
        pthread_mutex_unlock(&w->lock);
        start_thread();
        if (running && !lease && !copied)
            sem_post(&bell); /* its digest is made at once */
    } else
        mem_free(name);
    pthread_mutex_unlock(&slots_lock);
    return w;
}

void watch_remove(struct watch *w)
{
    if (!w)
        return;
    atomic_store(&w->closing, true);
    pthread_mutex_lock(&slots_lock);
    pthread_mutex_lock(&w->lock);
    if (w->lease)
        fcntl(w->fd, F_SETLEASE, F_UNLCK);
    atomic_store(&w->from, 0);
    atomic_store(&w->to, 0);
    mem_free(w->path);
    w->path = NULL;
    w->used = false;
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_unlock(&slots_lock);
}

void watch_own(struct watch *w, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *from = w ? (uint8_t *)atomic_load(&w->from) : NULL;
    if (!watching || !from || atomic_load(&w->copied))
        return;
    size_t size = atomic_load(&w->to) - (uintptr_t)from, bytes = (n + page - 1) / page * page;
    bytes = bytes < size ? bytes : (size + page - 1) / page * page;
    /* a page of a private mapping that was written to would go with the file's when that is cut short */
    void *copy =
        bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (copy == MAP_FAILED)
        return;
    memcpy(copy, from, bytes < size ? bytes : size);
    mprotect(copy, bytes, PROT_READ);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, from) == MAP_FAILED)
        munmap(copy, bytes);
    else
        atomic_store(&w->own, bytes);
}

int watch_check(struct watch *w, struct err *e)
{
    struct stat now;
    if (!w || !watching || atomic_load(&w->copied))
        return 0;
    pthread_mutex_lock(&w->st_lock);
    bool same = !atomic_load(&w->broken) && !fstat(w->fd, &now) && watch_same(&now, &w->st);
    pthread_mutex_unlock(&w->st_lock);
    if (!same && !atomic_load(&w->changed)) {
        pthread_mutex_lock(&w->lock);
        verify(w);
        pthread_mutex_unlock(&w->lock);
    }
    return atomic_load(&w->changed)
               ? err_set(e, ERR_CHANGED, "the model file was changed or cut short while it was in use")
               : 0;
}

bool watch_is_ready(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool ready = has_lease(w) || w->hashed;
    pthread_mutex_unlock(&w->lock);
    return ready;
}

bool watch_is_changed(const struct watch *w)
{
    return w && atomic_load(&w->changed);
}

void watch_forget(const void *p, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    pthread_mutex_lock(&slots_lock);
    for (size_t i = 0; i < slots_used; i++) {
        const struct watch *w = &slots[i];
        const uintptr_t begin = atomic_load(&w->from) + atomic_load(&w->own),
                        end = atomic_load(&w->to) / page * page;
        const uintptr_t a = from > begin ? from : begin, b = to < end ? to : end;
        if (!atomic_load(&w->copied) && atomic_load(&w->from) && a < b)
            madvise((void *)a, b - a, MADV_DONTNEED); /* refused where it is locked: then it stays */
    }
    pthread_mutex_unlock(&slots_lock);
}

bool watch_fault(const void *address)
{
    const uintptr_t at = (uintptr_t)address, page = page_bytes;
    for (size_t i = 0; i < WATCH_MOST; i++) {
        struct watch *w = &slots[i];
        const uintptr_t from = atomic_load(&w->from), to = atomic_load(&w->to);
        if (!from || at < from || at >= to || atomic_load(&w->copied))
            continue;
        atomic_store(&w->broken, true);
        const uintptr_t begin = at / page * page;
        return mmap((void *)begin, to - begin, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
    }
    return false;
}
