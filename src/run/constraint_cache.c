#include "run/constraint_cache.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct constraint_cache_entry {
    struct constraint_ref *constraint; /* with the language alone; NULL: the slot is free */
    const struct constraint_vocab *vocab;
    char *text;
    size_t n;
    uint64_t used; /* when last, counted in calls */
};

struct constraint_cache {
    pthread_mutex_t mutex; /* guards all of it */
    struct constraint_cache_entry all[CONSTRAINT_CACHE_MOST];
    size_t most;
    uint64_t now;
    struct constraint_cache_stats stats; /* hits and misses */
};

int constraint_cache_open(struct constraint_cache **out, size_t most_bytes, struct err *e)
{
    struct constraint_cache *r = *out = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(e, "the cache of constraints", sizeof *r);
    pthread_mutex_init(&r->mutex, NULL);
    r->most = most_bytes;
    return 0;
}

static void entry_drop(struct constraint_cache_entry *x)
{
    constraint_ref_drop(x->constraint);
    mem_free(x->text);
    *x = (struct constraint_cache_entry){0};
}

void constraint_cache_close(struct constraint_cache *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < CONSTRAINT_CACHE_MOST; i++)
        entry_drop(&r->all[i]);
    pthread_mutex_destroy(&r->mutex);
    mem_free(r);
}

static struct constraint_cache_entry *constraint_cache_look(struct constraint_cache *r,
                                                            const struct constraint_cache_key *k)
{
    for (struct constraint_cache_entry *x = r->all; x < r->all + CONSTRAINT_CACHE_MOST; x++)
        if (x->constraint && x->vocab == k->vocab && x->n == k->n && !memcmp(x->text, k->text, k->n))
            return x;
    return NULL;
}

struct constraint_ref *constraint_cache_find(struct constraint_cache *r, const struct constraint_cache_key *k)
{
    pthread_mutex_lock(&r->mutex);
    struct constraint_cache_entry *x = constraint_cache_look(r, k);
    struct constraint_ref *own = x ? constraint_ref_again(x->constraint) : NULL;
    if (x)
        x->used = ++r->now;
    r->stats.hits += own != NULL;
    r->stats.misses += own == NULL;
    pthread_mutex_unlock(&r->mutex);
    return own;
}

/* The slot to fill: a free one, else the least recently used. */
static struct constraint_cache_entry *constraint_cache_oldest(struct constraint_cache *r, bool taken)
{
    struct constraint_cache_entry *oldest = NULL;
    for (struct constraint_cache_entry *x = r->all; x < r->all + CONSTRAINT_CACHE_MOST; x++)
        if ((x->constraint || !taken) && (!oldest || x->used < oldest->used))
            oldest = x;
    return oldest;
}

static void constraint_cache_count(const struct constraint_cache *r, struct constraint_cache_stats *out)
{
    *out = r->stats;
    for (const struct constraint_cache_entry *x = r->all; x < r->all + CONSTRAINT_CACHE_MOST; x++) {
        out->kept += x->constraint != NULL;
        out->bytes += x->constraint ? constraint_ref_bytes(x->constraint) + x->n : 0;
    }
}

/* Masks are computed on demand, so the size of every entry is measured again. */
static void constraint_cache_shrink(struct constraint_cache *r)
{
    struct constraint_cache_stats s;
    for (constraint_cache_count(r, &s); s.bytes > r->most && s.kept; constraint_cache_count(r, &s))
        entry_drop(constraint_cache_oldest(r, true));
}

void constraint_cache_keep(struct constraint_cache *r, const struct constraint_cache_key *k,
                           struct constraint_ref *constraint)
{
    struct constraint_cache_entry x = {
        .constraint = constraint_ref_again(constraint), .vocab = k->vocab, .n = k->n};
    x.text = mem_strndup(k->text, k->n);
    pthread_mutex_lock(&r->mutex);
    if (!x.constraint || !x.text ||
        constraint_cache_look(r, k)) /* two threads may have compiled it at once */
        entry_drop(&x);
    else {
        struct constraint_cache_entry *at = constraint_cache_oldest(r, false);
        entry_drop(at);
        x.used = ++r->now;
        *at = x;
        constraint_cache_shrink(r);
    }
    pthread_mutex_unlock(&r->mutex);
}

void constraint_cache_stats(struct constraint_cache *r, struct constraint_cache_stats *out)
{
    pthread_mutex_lock(&r->mutex);
    constraint_cache_count(r, out);
    pthread_mutex_unlock(&r->mutex);
}
