#include "run/rules.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct entry {
    struct rule *rule; /* with the language alone; NULL: the place is free */
    const struct constraint_vocab *vocab;
    char *text;
    size_t n;
    uint64_t used; /* when last, counted in calls */
};

struct rules {
    pthread_mutex_t mutex; /* guards all of it */
    struct entry all[RULES_MOST];
    size_t most;
    uint64_t now;
    struct rules_stats stats; /* hits and misses */
};

int rules_open(struct rules **out, size_t most_bytes, struct err *e)
{
    struct rules *r = *out = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(e, "the cache of constraints", sizeof *r);
    pthread_mutex_init(&r->mutex, NULL);
    r->most = most_bytes;
    return 0;
}

static void entry_drop(struct entry *x)
{
    rule_drop(x->rule);
    mem_free(x->text);
    *x = (struct entry){0};
}

void rules_close(struct rules *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < RULES_MOST; i++)
        entry_drop(&r->all[i]);
    pthread_mutex_destroy(&r->mutex);
    mem_free(r);
}

static struct entry *rules_look(struct rules *r, const struct rules_key *k)
{
    for (struct entry *x = r->all; x < r->all + RULES_MOST; x++)
        if (x->rule && x->vocab == k->vocab && x->n == k->n && !memcmp(x->text, k->text, k->n))
            return x;
    return NULL;
}

struct rule *rules_find(struct rules *r, const struct rules_key *k)
{
    pthread_mutex_lock(&r->mutex);
    struct entry *x = rules_look(r, k);
    struct rule *own = x ? rule_again(x->rule) : NULL;
    if (x)
        x->used = ++r->now;
    r->stats.hits += own != NULL;
    r->stats.misses += own == NULL;
    pthread_mutex_unlock(&r->mutex);
    return own;
}

/* The place of the one that was not asked for the longest; a free one comes first. */
static struct entry *rules_oldest(struct rules *r, bool taken)
{
    struct entry *oldest = NULL;
    for (struct entry *x = r->all; x < r->all + RULES_MOST; x++)
        if ((x->rule || !taken) && (!oldest || x->used < oldest->used))
            oldest = x;
    return oldest;
}

static void rules_count(const struct rules *r, struct rules_stats *out)
{
    *out = r->stats;
    for (const struct entry *x = r->all; x < r->all + RULES_MOST; x++) {
        out->kept += x->rule != NULL;
        out->bytes += x->rule ? rule_bytes(x->rule) + x->n : 0;
    }
}

/* Masks are computed as texts need them, so that all that is kept is measured anew. */
static void rules_shrink(struct rules *r)
{
    struct rules_stats s;
    for (rules_count(r, &s); s.bytes > r->most && s.kept; rules_count(r, &s))
        entry_drop(rules_oldest(r, true));
}

void rules_keep(struct rules *r, const struct rules_key *k, struct rule *rule)
{
    struct entry x = {.rule = rule_again(rule), .vocab = k->vocab, .n = k->n};
    x.text = mem_strndup(k->text, k->n);
    pthread_mutex_lock(&r->mutex);
    if (!x.rule || !x.text || rules_look(r, k)) /* two may have compiled it at once */
        entry_drop(&x);
    else {
        struct entry *at = rules_oldest(r, false);
        entry_drop(at);
        x.used = ++r->now;
        *at = x;
        rules_shrink(r);
    }
    pthread_mutex_unlock(&r->mutex);
}

void rules_stats(struct rules *r, struct rules_stats *out)
{
    pthread_mutex_lock(&r->mutex);
    rules_count(r, out);
    pthread_mutex_unlock(&r->mutex);
}
