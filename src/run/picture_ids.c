#include "run/picture_ids.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum { PICTURES_MOST = 1 << 16 }; /* that are remembered: 3.5 MiB */

struct picture_id {
    uint8_t digest[PICTURE_DIGEST];
    int32_t first;
    uint32_t rows;
};

struct picture_ids {
    pthread_mutex_t lock;
    struct picture_id *all; /* (count), by number */
    size_t count, room;
    uint32_t *slot; /* (slots): places in `all`, plus 1, by digest; 0: free. At most half are taken */
    size_t slots;   /* a power of two */
    int32_t next;   /* from INT32_MIN up to -1 */
    uint32_t turns;
};

struct picture_ids *picture_ids_open(void)
{
    struct picture_ids *t = mem_zalloc(1, sizeof *t);
    if (!t)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->next = INT32_MIN;
    return t;
}

void picture_ids_close(struct picture_ids *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    mem_free(t->all);
    mem_free(t->slot);
    mem_free(t);
}

/* The slot of the picture, or the free one where it would be. */
static uint32_t *ids_slot(const struct picture_ids *t, const uint8_t digest[PICTURE_DIGEST], uint32_t rows)
{
    uint64_t i;
    memcpy(&i, digest, sizeof i); /* a digest is as good as a hash */
    for (i &= t->slots - 1; t->slot[i]; i = (i + 1) & (t->slots - 1)) {
        const struct picture_id *p = &t->all[t->slot[i] - 1];
        if (!memcmp(p->digest, digest, PICTURE_DIGEST) && p->rows == rows)
            break;
    }
    return &t->slot[i];
}

/* Of empty slots, those of all pictures. */
static void ids_fill(struct picture_ids *t)
{
    for (size_t i = 0; i < t->count; i++)
        *ids_slot(t, t->all[i].digest, t->all[i].rows) = (uint32_t)i + 1;
}

/* Slots for one more, made anew where they would be too few. */
static int ids_index(struct picture_ids *t)
{
    if (2 * (t->count + 1) <= t->slots)
        return 0;
    const size_t slots = t->slots ? 2 * t->slots : 64;
    uint32_t *slot = mem_zalloc(slots, sizeof *slot);
    if (!slot)
        return -1;
    mem_free(t->slot);
    t->slot = slot;
    t->slots = slots;
    ids_fill(t);
    return 0;
}

/* The first `count` are forgotten. */
static void ids_forget(struct picture_ids *t, size_t count)
{
    t->count -= count;
    if (t->count)
        memmove(t->all, t->all + count, t->count * sizeof *t->all);
    memset(t->slot, 0, t->slots * sizeof *t->slot);
    ids_fill(t);
}

static int32_t ids_add(struct picture_ids *t, const struct picture *p)
{
    if ((int64_t)t->next + p->rows > 0) { /* all are used */
        t->next = INT32_MIN;
        ids_forget(t, t->count);
        t->turns++;
    }
    if (t->count == PICTURES_MOST) /* the older half gets other numbers when it comes again */
        ids_forget(t, t->count / 2);
    void *all = mem_more(t->all, t->count, &t->room, sizeof *t->all);
    if (!all)
        return 0;
    t->all = all;
    struct picture_id *new = &t->all[t->count];
    *new = (struct picture_id){.first = t->next, .rows = p->rows};
    memcpy(new->digest, p->digest, PICTURE_DIGEST);
    *ids_slot(t, p->digest, p->rows) = (uint32_t)++t->count;
    t->next += (int32_t)p->rows;
    return new->first;
}

int32_t picture_ids_take(struct picture_ids *t, const struct picture *p)
{
    pthread_mutex_lock(&t->lock);
    int32_t first = 0;
    if (!ids_index(t)) {
        const uint32_t known = *ids_slot(t, p->digest, p->rows);
        first = known ? t->all[known - 1].first : ids_add(t, p);
    }
    pthread_mutex_unlock(&t->lock);
    return first;
}

uint32_t picture_ids_turns(struct picture_ids *t)
{
    pthread_mutex_lock(&t->lock);
    const uint32_t turns = t->turns;
    pthread_mutex_unlock(&t->lock);
    return turns;
}

bool picture_ids_find(struct picture_ids *t, int32_t id, uint8_t digest[PICTURE_DIGEST], uint32_t *row)
{
    pthread_mutex_lock(&t->lock);
    size_t from = 0, to = t->count;
    while (from < to) { /* the last one that begins at or before id */
        const size_t middle = from + (to - from) / 2;
        if (t->all[middle].first <= id)
            from = middle + 1;
        else
            to = middle;
    }
    const struct picture_id *p = from ? &t->all[from - 1] : NULL;
    const bool found = p && (int64_t)id - p->first < p->rows;
    if (found) {
        memcpy(digest, p->digest, PICTURE_DIGEST);
        *row = (uint32_t)(id - p->first);
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}
