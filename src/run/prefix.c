#include "run/prefix.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Nodes stand in one array and name each other by index; 0 is the root, and "none" everywhere else.
 * Children of a node form a list; all nodes are in one hash table by (parent, tokens), and in one list
 * by last use. */
struct node {
    uint32_t parent, child, sibling; /* child: the first one */
    uint32_t newer, older;           /* by last use */
    uint32_t chain;                  /* next in the hash bucket */
    uint64_t salt;                   /* of a root's child: parent is 0 */
    uint16_t n;                      /* tokens in it */
    int32_t ids[RUNNER_PAGE];
    int32_t page[PLAN_GROUPS_MOST];
    /* where there is a disk */
    struct digest with, name;
    uint32_t depth; /* pages up to it, with it */
    bool saved;     /* or not worth it: only whole pages are */
};

struct prefix {
    struct runner *runner;
    struct node *nodes;  /* (room); [0] is the root, of which only `child` is used */
    uint32_t room, free; /* free: first of the list of unused ones, by `chain` */
    uint32_t *bucket;    /* (buckets) */
    uint32_t buckets;
    uint32_t newest, oldest;
    struct prefix_stats stats;
    struct disk *disk;
    double until; /* matches may read from it */
    bool more;
    uint32_t unsaved, save_at; /* nodes; where prefix_save goes on looking */
};

/* No node is in use. */
static void prefix_reset(struct prefix *t)
{
    memset(t->nodes, 0, t->room * sizeof *t->nodes);
    memset(t->bucket, 0, t->buckets * sizeof *t->bucket);
    t->free = t->newest = t->oldest = t->save_at = t->unsaved = 0;
    t->stats.nodes = 0;
    for (uint32_t i = t->room - 1; i > 0; i--) {
        t->nodes[i].chain = t->free;
        t->free = i;
    }
}

int prefix_open(struct prefix **out, struct runner *r, uint32_t most_nodes, struct disk *disk, struct err *e)
{
    struct prefix *t = mem_zalloc(1, sizeof *t);
    *out = t;
    if (!t) {
        disk_close(disk);
        return err_memory(e, "the prefix tree", sizeof *t);
    }
    t->runner = r;
    t->disk = disk;
    t->until = INFINITY;
    t->room = most_nodes + 1;
    t->buckets = 1;
    while (t->buckets < most_nodes)
        t->buckets *= 2;
    t->nodes = mem_zalloc(t->room, sizeof *t->nodes);
    t->bucket = mem_zalloc(t->buckets, sizeof *t->bucket);
    if (!t->nodes || !t->bucket) {
        prefix_close(t);
        *out = NULL;
        return err_memory(e, "the prefix tree", (uint64_t)most_nodes * sizeof(struct node));
    }
    prefix_reset(t);
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
    at = &t->nodes[c->parent].child;
    while (*at != i)
        at = &t->nodes[*at].sibling;
    *at = c->sibling;
    prefix_unlink_use(t, i);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        pages_drop(&t->runner->pages[g], c->page[g]);
    t->unsaved -= t->disk && c->n == RUNNER_PAGE && !c->saved;
    *c = (struct node){.chain = t->free};
    t->free = i;
    t->stats.nodes--;
}

void prefix_clear(struct prefix *t)
{
    for (uint32_t i = t->oldest; i; i = t->nodes[i].newer)
        for (uint32_t g = 0; g < t->runner->plan->groups; g++)
            pages_drop(&t->runner->pages[g], t->nodes[i].page[g]);
    prefix_reset(t);
}

void prefix_close(struct prefix *t)
{
    if (!t)
        return;
    if (t->nodes && t->bucket) {
        while (prefix_save(t, true))
            ;
        prefix_clear(t);
    }
    disk_close(t->disk);
    mem_free(t->nodes);
    mem_free(t->bucket);
    mem_free(t);
}

/* ---- the disk ---- */

/* How a page is called on disk, from its parent's name. */
static void prefix_name(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                        struct digest *with, struct digest *name)
{
    *with = parent ? t->nodes[parent].with : disk_root(t->disk, salt);
    *name = disk_name(parent ? t->nodes[parent].name : *with, ids, RUNNER_PAGE);
}

/* Hands a node to the disk's writer; false: it takes no more now. */
static bool prefix_write(struct prefix *t, struct node *c, bool wait)
{
    struct err e = {0};
    struct disk_page p = {.with = c->with, .name = c->name, .tokens = c->depth * RUNNER_PAGE};
    if (!t->disk || c->n < RUNNER_PAGE || c->saved)
        return true;
    struct disk_slot *s = disk_slot(t->disk, wait);
    if (!s)
        return false;
    c->saved = true;
    t->unsaved--;
    s->page = p;
    const struct node *up = c;
    for (uint32_t at = c->depth; at-- > 0; up = &t->nodes[up->parent])
        memcpy(s->ids + (size_t)at * RUNNER_PAGE, up->ids, sizeof up->ids);
    const struct device *d = t->runner->device;
    uint8_t *to = s->bytes;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        if (d->ops->read_page(t->runner->device, g, c->page[g], to, &e))
            s->page.tokens = 0; /* the writer passes it by */
        to += d->ops->page_bytes(d, g);
    }
    disk_write(t->disk, s);
    return true;
}

bool prefix_save(struct prefix *t, bool wait)
{
    uint32_t before = t->unsaved;
    for (uint32_t i = 1; t->unsaved && i < t->room; i++) {
        if (!prefix_write(t, &t->nodes[t->save_at], wait) || (wait && t->unsaved < before))
            break;
        t->save_at = t->save_at + 1 < t->room ? t->save_at + 1 : 0;
    }
    return t->unsaved > 0;
}

void prefix_budget(struct prefix *t, double seconds)
{
    t->until = clock_now() + seconds;
}

bool prefix_has_more(const struct prefix *t)
{
    return t->more;
}

/* ---- giving up ---- */

/* Only the tree holds its pages, and nothing hangs on it. */
static bool prefix_is_idle_leaf(const struct prefix *t, const struct node *c)
{
    return !c->child && t->runner->pages[0].refs[c->page[0]] == 1;
}

/* One look at all nodes, from the least recently used on. */
static uint32_t prefix_evict_pass(struct prefix *t, uint32_t pages)
{
    uint32_t gone = 0;
    for (uint32_t i = t->oldest; i && gone < pages;) {
        struct node *c = &t->nodes[i];
        uint32_t next = c->newer, parent = c->parent;
        if (prefix_is_idle_leaf(t, c)) {
            prefix_write(t, c, false);
            prefix_remove(t, i);
            gone++;
            /* its parent was passed by because of it */
            if (parent && prefix_is_idle_leaf(t, &t->nodes[parent]))
                next = parent;
        }
        i = next;
    }
    return gone;
}

uint32_t prefix_evict(struct prefix *t, uint32_t pages)
{
    uint32_t gone = 0, more;
    do
        gone += more = prefix_evict_pass(t, pages - gone);
    while (more && gone < pages);
    t->stats.evicted += gone;
    return gone;
}

/* The child of `parent` that has most of its beginning in common with ids[0..n); *common says how much. */
static uint32_t prefix_nearest(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                               uint32_t n, uint32_t *common)
{
    uint32_t best = 0;
    *common = 0;
    salt = prefix_salt(parent, salt);
    for (uint32_t i = t->nodes[parent].child; i; i = t->nodes[i].sibling) {
        const struct node *c = &t->nodes[i];
        uint32_t k = 0;
        while (c->salt == salt && k < c->n && k < n && c->ids[k] == ids[k])
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

/* A new node that shares these pages; 0 where there is no room. */
static uint32_t prefix_link(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n,
                            const int32_t page[PLAN_GROUPS_MOST])
{
    if (!t->free)
        prefix_evict(t, 1);
    uint32_t i = t->free;
    if (!i || (parent && !t->nodes[parent].n)) /* no room, or it was the parent that had to go */
        return 0;
    struct node *c = &t->nodes[i];
    t->free = c->chain;
    *c = (struct node){.parent = parent, .salt = prefix_salt(parent, salt), .n = (uint16_t)n};
    c->depth = t->nodes[parent].depth + 1;
    memcpy(c->ids, ids, n * sizeof *c->ids);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        c->page[g] = page[g];
        pages_share(&t->runner->pages[g], c->page[g]);
    }
    if (t->disk && n == RUNNER_PAGE) {
        prefix_name(t, parent, salt, ids, &c->with, &c->name);
        t->unsaved++;
    }
    c->sibling = t->nodes[parent].child;
    t->nodes[parent].child = i;
    uint32_t *b = &t->bucket[prefix_bucket(t, parent, c->salt, c->ids, n)];
    c->chain = *b;
    *b = i;
    prefix_link_use(t, i);
    t->stats.nodes++;
    return i;
}

/* A node for the page ids[at..), from disk; 0 where that has none. Its pages are the tree's alone. */
static uint32_t prefix_fetch(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                             uint32_t at)
{
    const struct runner *r = t->runner;
    int32_t page[PLAN_GROUPS_MOST] = {0};
    struct err e = {0};
    bool whole = true;
    if (!t->disk)
        return 0;
    struct disk_page p = {.ids = ids, .tokens = at + RUNNER_PAGE};
    prefix_name(t, parent, salt, ids + at, &p.with, &p.name);
    if (clock_now() > t->until) {
        t->more = disk_has(t->disk, &p);
        return 0;
    }
    const uint8_t *from = disk_read(t->disk, &p);
    if (!from)
        return 0;
    if (!t->free || !r->pages[0].unused)
        prefix_evict(t, 1);
    for (uint32_t g = 0; g < r->plan->groups && whole; g++) {
        page[g] = pages_take(&t->runner->pages[g]);
        whole = page[g] && !r->device->ops->write_page(r->device, g, page[g], from, &e);
        from += r->device->ops->page_bytes(r->device, g);
    }
    uint32_t i = whole ? prefix_link(t, parent, salt, ids + at, RUNNER_PAGE, page) : 0;
    for (uint32_t g = 0; g < r->plan->groups; g++)
        pages_drop(&t->runner->pages[g], page[g]); /* the tree has its own share */
    if (i) {
        t->nodes[i].saved = true;
        t->unsaved--;
    }
    return i;
}

uint32_t prefix_match(struct prefix *t, uint64_t salt, struct seq *s, const int32_t *ids, uint32_t n)
{
    bool fresh = s->len == 0;
    uint32_t parent = 0, at = 0;
    t->more = false;
    for (uint32_t i; at + RUNNER_PAGE <= n; at += RUNNER_PAGE, parent = i) {
        i = prefix_find(t, parent, salt, ids + at, RUNNER_PAGE);
        if (!i && at == s->len)
            i = prefix_fetch(t, parent, salt, ids, at);
        if (!i)
            break;
        if (at == s->len)
            prefix_adopt(t, s, i, RUNNER_PAGE);
    }
    uint32_t common = 0,
             i = fresh && !t->more ? prefix_nearest(t, parent, salt, ids + at, n - at, &common) : 0;
    if (i)
        prefix_adopt(t, s, i, common);
    return s->len;
}

void prefix_count(struct prefix *t, uint32_t tokens)
{
    t->stats.hits += tokens > 0;
    t->stats.misses += tokens == 0;
    t->stats.hit_tokens += tokens;
}

/* A new node for a page of the sequence; 0 where there is no room. */
static uint32_t prefix_add(struct prefix *t, uint32_t parent, uint64_t salt, const struct seq *s, uint32_t at,
                           uint32_t n)
{
    int32_t page[PLAN_GROUPS_MOST] = {0};
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        page[g] = s->table[g][at / RUNNER_PAGE];
    return prefix_link(t, parent, salt, s->ids + at, n, page);
}

/* The sequence's page at `at` is known: it takes the tree's, and gives up its own. */
static void prefix_merge(struct prefix *t, struct seq *s, uint32_t i, uint32_t at)
{
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        int32_t *page = &s->table[g][at / RUNNER_PAGE];
        if (*page == t->nodes[i].page[g])
            continue;
        pages_share(&t->runner->pages[g], t->nodes[i].page[g]);
        pages_drop(&t->runner->pages[g], *page);
        *page = t->nodes[i].page[g];
    }
    prefix_touch(t, i);
}

/* Beginnings of a page go when more of it comes: nothing hangs on them. */
static void prefix_outgrow(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n)
{
    uint32_t common, i = prefix_nearest(t, parent, salt, ids, n, &common);
    if (i && common == t->nodes[i].n && common < RUNNER_PAGE)
        prefix_remove(t, i);
}

void prefix_insert(struct prefix *t, uint64_t salt, struct seq *s, uint32_t len)
{
    uint32_t parent = 0, at = 0;
    for (; at + RUNNER_PAGE <= len; at += RUNNER_PAGE) {
        uint32_t i = prefix_find(t, parent, salt, s->ids + at, RUNNER_PAGE);
        if (i)
            prefix_merge(t, s, i, at);
        else {
            prefix_outgrow(t, parent, salt, s->ids + at, RUNNER_PAGE);
            if (!(i = prefix_add(t, parent, salt, s, at, RUNNER_PAGE)))
                return;
        }
        parent = i;
    }
    uint32_t common, i = prefix_nearest(t, parent, salt, s->ids + at, len - at, &common);
    if (at == len)
        return;
    if (i && common == len - at) {
        prefix_touch(t, i);
        return;
    }
    prefix_outgrow(t, parent, salt, s->ids + at, len - at);
    prefix_add(t, parent, salt, s, at, len - at);
}

void prefix_stats(const struct prefix *t, struct prefix_stats *out)
{
    *out = t->stats;
    if (t->disk)
        disk_stats(t->disk, &out->disk);
}
