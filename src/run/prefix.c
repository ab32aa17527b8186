#include "run/prefix.h"

#include "base/mem.h"

#include <string.h>

/* Nodes stand in one array and name each other by index; 0 is "none". Children of a node form a list;
 * all nodes are in one hash table by (parent, tokens), and in one list by last use. */
struct node {
    uint32_t parent, child, sibling; /* child: the first one */
    uint32_t newer, older;           /* by last use */
    uint32_t chain;                  /* next in the hash bucket */
    uint64_t salt;                   /* of a root's child: parent is 0 */
    uint16_t n;                      /* tokens in it */
    int32_t ids[RUNNER_PAGE];
    int32_t page[PLAN_GROUPS_MOST];
};

struct prefix {
    struct runner *runner;
    struct node *nodes;  /* (room); [0] is unused */
    uint32_t room, free; /* free: first of the list of unused ones, by `chain` */
    uint32_t *bucket;    /* (buckets) */
    uint32_t buckets;
    uint32_t newest, oldest;
    struct prefix_stats stats;
};

int prefix_open(struct prefix **out, struct runner *r, uint32_t most_nodes, struct err *e)
{
    struct prefix *t = mem_zalloc(1, sizeof *t);
    *out = t;
    if (!t)
        return err_memory(e, "the prefix tree", sizeof *t);
    t->runner = r;
    t->room = most_nodes + 1;
    t->buckets = 1;
    while (t->buckets < most_nodes)
        t->buckets *= 2;
    t->nodes = mem_zalloc(t->room, sizeof *t->nodes);
    t->bucket = mem_zalloc(t->buckets, sizeof *t->bucket);
    if (!t->nodes || !t->bucket) {
        prefix_close(t);
        *out = NULL;
        return err_memory(e, "the prefix tree", (uint64_t)t->room * sizeof *t->nodes);
    }
    for (uint32_t i = most_nodes; i > 0; i--) {
        t->nodes[i].chain = t->free;
        t->free = i;
    }
    return 0;
}

static uint32_t prefix_bucket(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                              uint32_t n)
{
    uint64_t h = (parent + salt + 1) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < n; i++) {
        h ^= (uint32_t)ids[i];
        h *= 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    return (uint32_t)(h & (t->buckets - 1));
}

static uint64_t prefix_salt(uint32_t parent, uint64_t salt)
{
    return parent ? 0 : salt;
}

static uint32_t prefix_find(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                            uint32_t n)
{
    salt = prefix_salt(parent, salt);
    uint32_t i = t->bucket[prefix_bucket(t, parent, salt, ids, n)];
    for (; i; i = t->nodes[i].chain) {
        const struct node *c = &t->nodes[i];
        if (c->parent == parent && c->salt == salt && c->n == n && !memcmp(c->ids, ids, n * sizeof *ids))
            return i;
    }
    return 0;
}

static void prefix_unlink_use(struct prefix *t, uint32_t i)
{
    struct node *c = &t->nodes[i];
    *(c->newer ? &t->nodes[c->newer].older : &t->newest) = c->older;
    *(c->older ? &t->nodes[c->older].newer : &t->oldest) = c->newer;
}

static void prefix_link_use(struct prefix *t, uint32_t i)
{
    struct node *c = &t->nodes[i];
    c->newer = 0;
    c->older = t->newest;
    *(t->newest ? &t->nodes[t->newest].newer : &t->oldest) = i;
    t->newest = i;
}

static void prefix_touch(struct prefix *t, uint32_t i)
{
    prefix_unlink_use(t, i);
    prefix_link_use(t, i);
}

static void prefix_remove(struct prefix *t, uint32_t i)
{
    struct node *c = &t->nodes[i];
    uint32_t *at = &t->bucket[prefix_bucket(t, c->parent, c->salt, c->ids, c->n)];
    while (*at != i)
        at = &t->nodes[*at].chain;
    *at = c->chain;
    if (c->parent) {
        at = &t->nodes[c->parent].child;
        while (*at != i)
            at = &t->nodes[*at].sibling;
        *at = c->sibling;
    }
    prefix_unlink_use(t, i);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        pages_drop(&t->runner->pages[g], c->page[g]);
    *c = (struct node){.chain = t->free};
    t->free = i;
    t->stats.nodes--;
}

void prefix_close(struct prefix *t)
{
    if (!t)
        return;
    while (t->nodes && t->oldest)
        prefix_remove(t, t->oldest);
    mem_free(t->nodes);
    mem_free(t->bucket);
    mem_free(t);
}

/* Only the tree holds its pages, and nothing hangs on it. */
static bool prefix_is_idle_leaf(const struct prefix *t, const struct node *c)
{
    return !c->child && t->runner->pages[0].refs[c->page[0]] == 1;
}

uint32_t prefix_evict(struct prefix *t, uint32_t pages)
{
    uint32_t gone = 0;
    for (uint32_t i = t->oldest; i && gone < pages;) {
        struct node *c = &t->nodes[i];
        uint32_t next = c->newer, parent = c->parent;
        if (prefix_is_idle_leaf(t, c)) {
            prefix_remove(t, i);
            gone++;
            /* a parent is older than its children only if it was not used with them; look at it now */
            if (parent && prefix_is_idle_leaf(t, &t->nodes[parent]))
                next = parent;
        }
        i = next;
    }
    t->stats.evicted += gone;
    return gone;
}

/* The child of `parent` that has most of its beginning in common with ids[0..n); *common says how much. */
static uint32_t prefix_nearest(const struct prefix *t, uint32_t parent, const int32_t *ids, uint32_t n,
                               uint32_t *common)
{
    uint32_t best = 0;
    *common = 0;
    for (uint32_t i = t->nodes[parent].child; i; i = t->nodes[i].sibling) {
        uint32_t k = 0;
        while (k < t->nodes[i].n && k < n && t->nodes[i].ids[k] == ids[k])
            k++;
        if (k > *common) {
            *common = k;
            best = i;
        }
    }
    return best;
}

static void prefix_adopt(struct prefix *t, struct seq *s, uint32_t i, uint32_t tokens)
{
    const struct node *c = &t->nodes[i];
    uint32_t at = s->len / RUNNER_PAGE;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        pages_share(&t->runner->pages[g], c->page[g]);
        s->table[g][at] = c->page[g];
    }
    memcpy(s->ids + s->len, c->ids, tokens * sizeof *s->ids);
    s->len += tokens;
    prefix_touch(t, i);
}

uint32_t prefix_match(struct prefix *t, uint64_t salt, struct seq *s, const int32_t *ids, uint32_t n)
{
    uint32_t parent = 0;
    while (s->len + RUNNER_PAGE <= n) {
        uint32_t i = prefix_find(t, parent, salt, ids + s->len, RUNNER_PAGE);
        if (!i)
            break;
        prefix_adopt(t, s, i, RUNNER_PAGE);
        parent = i;
    }
    uint32_t common = 0, i = parent ? prefix_nearest(t, parent, ids + s->len, n - s->len, &common) : 0;
    if (i)
        prefix_adopt(t, s, i, common);
    t->stats.hits += s->len > 0;
    t->stats.misses += s->len == 0;
    t->stats.hit_tokens += s->len;
    return s->len;
}

/* A new node for a page of the sequence; 0 where there is no room. */
static uint32_t prefix_add(struct prefix *t, uint32_t parent, uint64_t salt, const struct seq *s, uint32_t at,
                           uint32_t n)
{
    if (!t->free)
        prefix_evict(t, 1);
    uint32_t i = t->free;
    if (!i || (parent && !t->nodes[parent].n)) /* no room, or it was the parent that had to go */
        return 0;
    struct node *c = &t->nodes[i];
    t->free = c->chain;
    *c = (struct node){.parent = parent, .salt = prefix_salt(parent, salt), .n = (uint16_t)n};
    memcpy(c->ids, s->ids + at, n * sizeof *c->ids);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        c->page[g] = s->table[g][at / RUNNER_PAGE];
        pages_share(&t->runner->pages[g], c->page[g]);
    }
    if (parent) {
        c->sibling = t->nodes[parent].child;
        t->nodes[parent].child = i;
    }
    uint32_t *b = &t->bucket[prefix_bucket(t, parent, c->salt, c->ids, n)];
    c->chain = *b;
    *b = i;
    prefix_link_use(t, i);
    t->stats.nodes++;
    return i;
}

void prefix_insert(struct prefix *t, uint64_t salt, const struct seq *s, uint32_t len)
{
    uint32_t parent = 0;
    for (uint32_t at = 0; at < len; at += RUNNER_PAGE) {
        uint32_t n = len - at < RUNNER_PAGE ? len - at : RUNNER_PAGE;
        if (n < RUNNER_PAGE && !parent)
            return; /* less than a page in all: not worth a node */
        uint32_t i = prefix_find(t, parent, salt, s->ids + at, n);
        if (i)
            prefix_touch(t, i);
        else if (!(i = prefix_add(t, parent, salt, s, at, n)))
            return;
        parent = i;
    }
}

void prefix_stats(const struct prefix *t, struct prefix_stats *out)
{
    *out = t->stats;
}
