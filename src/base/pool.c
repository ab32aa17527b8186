#define _GNU_SOURCE
#include "base/pool.h"

#include "base/cores.h"
#include "base/mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between two looks at a word that another core will write. */
#if defined(__aarch64__)
#define POOL_PAUSE()                                                                                         \
    __asm__ volatile("isb" ::: "memory") /* some tens of cycles; yield is none on most cores */
#else
#define POOL_PAUSE() __builtin_ia32_pause()
#endif

enum { POOL_SPINS = 2000, POOL_YIELDS = 500, POOL_MOST = CORES_MOST };

struct pool {
    int n;
    pthread_t *threads; /* (n - 1) */
    struct pool_worker {
        struct pool *pool;
        int index;
    } * workers;
    void (*fn)(void *, int, int);
    void *arg;
    bool closing, pin, caller_pinned;
    struct cores cores;
    atomic_int sleepers;
    _Alignas(64) atomic_uint job;        /* counts jobs: a change starts one */
    _Alignas(64) atomic_uint running;    /* workers that have not finished the job */
    _Alignas(64) atomic_int arrived;     /* at the barrier */
    _Alignas(64) atomic_uint generation; /* of the barrier */
};

/* Waits until *word is no longer `old`: spins for some tens of microseconds, then offers its core for some hundreds, then
 * sleeps: to be woken takes a virtual machine longer than most waits are. On a busy machine the other worker may not be
 * running at all: both give it the core. */
static void pool_wait(struct pool *p, atomic_uint *word, unsigned old)
{
    for (int tries = 0; tries < POOL_SPINS + POOL_YIELDS; tries++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        if (tries < POOL_SPINS)
            POOL_PAUSE();
        else
            sched_yield();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == old)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

/* After a change of *word. A sleeper counts itself before it looks at the word a last time, and we change the
 * word before we look at the count: one of the two sees the other. */
static void pool_wake(struct pool *p, atomic_uint *word)
{
    if (atomic_load(&p->sleepers))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, POOL_MOST, NULL, NULL, 0);
}

/* This thread onto its core; where the kernel refuses, it stays where it may be. */
static void pool_pin(const struct pool *p, int worker)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(p->cores.cpu[worker % p->cores.n], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *pool_thread(void *arg)
{
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    if (p->pin)
        pool_pin(p, w->index);
    for (unsigned seen = 0;; seen++) {
        pool_wait(p, &p->job, seen);
        if (p->closing)
            return NULL;
        p->fn(p->arg, w->index, p->n);
        if (atomic_fetch_sub(&p->running, 1) == 1)
            pool_wake(p, &p->running);
    }
}

static void pool_start(struct pool *p)
{
    atomic_store(&p->running, (unsigned)p->n - 1);
    atomic_fetch_add(&p->job, 1);
    pool_wake(p, &p->job);
}

void pool_run(struct pool *p, void (*fn)(void *, int, int), void *arg)
{
    p->fn = fn;
    p->arg = arg;
    if (p->pin && !p->caller_pinned) {
        pool_pin(p, 0);
        p->caller_pinned = true;
    }
    if (p->n > 1)
        pool_start(p);
    fn(arg, 0, p->n);
    for (unsigned left; (left = atomic_load_explicit(&p->running, memory_order_acquire));)
        pool_wait(p, &p->running, left);
}

void pool_barrier(struct pool *p, int worker)
{
    (void)worker;
    if (p->n == 1)
        return;
    unsigned g = atomic_load_explicit(&p->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) < p->n - 1) {
        pool_wait(p, &p->generation, g);
        return;
    }
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    atomic_store(&p->generation, g + 1);
    pool_wake(p, &p->generation);
}

int pool_size(const struct pool *p)
{
    return p->n;
}

struct pool *pool_open(int n, bool pin, struct err *e)
{
    struct cores cores = {0};
    if (n <= 0 || pin) /* it reads a few files for every CPU */
        cores_find(&cores);
    if (n <= 0)
        n = cores.n;
    if (n > POOL_MOST) {
        err_set(e, ERR_USAGE, "%d threads asked for; the most is %d", n, POOL_MOST);
        return NULL;
    }
    struct pool *p = mem_aligned(64, sizeof *p);
    if (!p) {
        err_memory(e, "the thread pool", sizeof *p);
        return NULL;
    }
    memset(p, 0, sizeof *p);
    p->n = 1;
    p->pin = pin;
    p->cores = cores;
    p->threads = mem_zalloc((size_t)n, sizeof *p->threads);
    p->workers = mem_zalloc((size_t)n, sizeof *p->workers);
    if (!p->threads || !p->workers) {
        err_memory(e, "the thread pool", (size_t)n * sizeof *p->threads);
        pool_close(p);
        return NULL;
    }
    for (int i = 1; i < n; i++, p->n++) {
        p->workers[i] = (struct pool_worker){.pool = p, .index = i};
        int r = pthread_create(&p->threads[i], NULL, pool_thread, &p->workers[i]);
        if (r) {
            err_set(e, ERR_RESOURCE, "cannot start thread %d of %d: %s", i + 1, n, strerror(r));
            pool_close(p);
            return NULL;
        }
    }
    return p;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    p->closing = true;
    pool_start(p);
    for (int i = 1; i < p->n; i++)
        pthread_join(p->threads[i], NULL);
    mem_free(p->threads);
    mem_free(p->workers);
    mem_free(p);
}
