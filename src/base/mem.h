/* Memory. Every allocation of the program goes through these, so that a test can make the n-th one
 * fail (for all n), and a guard can make any allocation inside a decode step fatal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* All return NULL when the product overflows, when memory is out, or when a test injects a failure. */
void *mem_alloc(size_t count, size_t size);  /* not cleared */
void *mem_zalloc(size_t count, size_t size); /* cleared */
void *mem_realloc(void *p, size_t count, size_t size);
/* The list with room for one more than `count`: itself, or a new one of twice the room. NULL: it is as it was. */
void *mem_more(void *list, size_t count, size_t *room, size_t size);
void *mem_aligned(size_t align, size_t bytes); /* not cleared; freed with mem_free */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p);

/* For a program that runs for long: large blocks go back to the system when they are freed. Otherwise they
 * stay in the heaps of the threads that allocated them, and the process keeps its peak size. */
void mem_give_back(void);

/* For tests: the n-th allocation from now on fails, once; 0 switches that off. */
void mem_fail_at(long n);
/* How many allocations this process has made. */
long mem_count(void);
/* While on, an allocation by this thread aborts with a message: a decode step must make none. */
void mem_guard(bool on);

/* An arena: many small things with one life. Not shared between threads. */
struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t used;  /* bytes handed out */
    size_t limit; /* hard maximum of `used`; 0 = none */
};

void *arena_alloc(struct arena *a, size_t count, size_t size); /* cleared, aligned to 16; NULL when over */
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_free(struct arena *a);
