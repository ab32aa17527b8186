#include "base/mem.h"

#include "base/size.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_long mem_countdown; /* 0 = off */
static atomic_long mem_counter;
static _Thread_local bool mem_guarded;

/* Counts one allocation; true when it has to fail. */
static bool mem_must_fail(void)
{
    if (mem_guarded) {
        fputs("quern: bug: an allocation inside a guarded step\n", stderr);
        abort();
    }
    atomic_fetch_add_explicit(&mem_counter, 1, memory_order_relaxed);
    if (atomic_load_explicit(&mem_countdown, memory_order_relaxed) <= 0)
        return false;
    return atomic_fetch_sub(&mem_countdown, 1) == 1;
}

void mem_give_back(void)
{
    enum { LARGE = 128 << 10 }; /* once set, the library does not raise it by itself any more */
    mallopt(M_MMAP_THRESHOLD, LARGE);
    mallopt(M_TRIM_THRESHOLD, LARGE);
}

void mem_fail_at(long n)
{
    atomic_store(&mem_countdown, n);
}

long mem_count(void)
{
    return atomic_load(&mem_counter);
}

void mem_guard(bool on)
{
    mem_guarded = on;
}

void *mem_alloc(size_t count, size_t size)
{
    size_t bytes;
    if (!size_mul(count, size, &bytes) || mem_must_fail())
        return NULL;
    return malloc(bytes ? bytes : 1);
}

void *mem_zalloc(size_t count, size_t size)
{
    if (mem_must_fail())
        return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (!size_mul(count, size, &bytes) || mem_must_fail())
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_more(void *list, size_t count, size_t *room, size_t size)
{
    enum { FIRST = 256 };
    if (count < *room)
        return list;
    size_t wider = *room ? 2 * *room : FIRST;
    void *more = mem_realloc(list, wider, size);
    *room = more ? wider : *room;
    return more;
}

void *mem_aligned(size_t align, size_t bytes)
{
    void *p = NULL;
    if (mem_must_fail() || posix_memalign(&p, align, bytes ? bytes : 1))
        return NULL;
    return p;
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = n == SIZE_MAX ? NULL : mem_alloc(n + 1, 1);
    if (!p)
        return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p)
{
    free(p);
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    size_t bytes, total;
    if (!size_mul(count, size, &bytes) || !size_align(bytes ? bytes : 1, 16, &bytes) ||
        !size_add(a->used, bytes, &total) || (a->limit && total > a->limit))
        return NULL;
    struct arena_chunk *c = a->head;
    if (!c || c->size - c->used < bytes) {
        size_t want = size_max(bytes, c ? size_min(c->size * 2, 1 << 20) : 4096), whole;
        if (!size_add(want, sizeof *c, &whole) || !(c = mem_zalloc(1, whole)))
            return NULL;
        c->size = want;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    a->used = total;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n == SIZE_MAX ? NULL : arena_alloc(a, n + 1, 1);
    if (p)
        memcpy(p, s, n);
    return p;
}

void arena_free(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    a->head = NULL;
    a->used = 0;
}
