#include "run/picture_ids.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum { PICTURES_MOST = 1 << 16 }; /* that are remembered: 3 MiB */

struct picture_id {
    uint8_t digest[PICTURE_DIGEST];
    int32_t first;
    uint32_t rows;
};

struct picture_ids {
    pthread_mutex_t lock;
    struct picture_id *all; /* (count), by number */
    size_t count, room;
    int32_t next; /* from INT32_MIN up to -1 */
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
    mem_free(t);
}

/* The newest come again most. */
static const struct picture_id *ids_known(const struct picture_ids *t, const struct picture *p)
{
    for (size_t i = t->count; i--;)
        if (!memcmp(t->all[i].digest, p->digest, PICTURE_DIGEST) && t->all[i].rows == p->rows)
            return &t->all[i];
    return NULL;
}

static int32_t ids_add(struct picture_ids *t, const struct picture *p)
{
    if ((int64_t)t->next + p->rows > 0) { /* all are used */
        t->next = INT32_MIN;
        t->count = 0;
        t->turns++;
    }
    if (t->count ==
        PICTURES_MOST) { /* the older half is forgotten: those get other numbers when they come again */
        t->count /= 2;
        memmove(t->all, t->all + t->count, t->count * sizeof *t->all);
    }
    void *all = mem_more(t->all, t->count, &t->room, sizeof *t->all);
    if (!all)
        return 0;
    t->all = all;
    struct picture_id *new = &t->all[t->count++];
    *new = (struct picture_id){.first = t->next, .rows = p->rows};
    memcpy(new->digest, p->digest, PICTURE_DIGEST);
    t->next += (int32_t)p->rows;
    return new->first;
}

int32_t picture_ids_take(struct picture_ids *t, const struct picture *p)
{
    pthread_mutex_lock(&t->lock);
    const struct picture_id *known = ids_known(t, p);
    const int32_t first = known ? known->first : ids_add(t, p);
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
