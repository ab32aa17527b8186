#include "run/prefix.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/size.h"
#include "run/kv_events.h"
#include "run/prefix_internal.h"

#include <math.h>
#include <string.h>

/* No node is in use. */
static void prefix_reset(struct prefix *t)
{
    memset(t->nodes, 0, t->room * sizeof *t->nodes);
    memset(t->bucket, 0, t->buckets * sizeof *t->bucket);
    memset(t->newest, 0, sizeof t->newest);
    memset(t->oldest, 0, sizeof t->oldest);
    t->free = t->save_at = t->unsaved = 0;
    t->stats.nodes = t->stats.pages = t->stats.snapshots = t->unsaved_snapshots = 0;
    memset(t->snapshot, 0, t->runner->states.count * sizeof *t->snapshot);
    for (uint32_t i = t->room - 1; i > 0; i--) {
        t->nodes[i].chain = t->free;
        t->free = i;
    }
}

int prefix_open(struct prefix **out, struct runner *r, uint32_t most_nodes, struct prefix_disk *disk,
                struct err *e)
{
    struct prefix *t = mem_zalloc(1, sizeof *t);
    *out = t;
    if (!t) {
        prefix_disk_close(disk);
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
    t->snapshot = mem_zalloc(size_max(r->states.count, 1), sizeof *t->snapshot);
    t->most_snapshots = r->states.count;
    if (!t->nodes || !t->bucket || !t->snapshot) {
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

/* The node of the first *at tokens of the sequence: where it was followed to the last time, or the root. */
static uint32_t prefix_resume(const struct prefix *t, const struct seq *s, uint32_t *at)
{
    bool known = s->mark.tokens && t->nodes[s->mark.node].born == s->mark.born;
    *at = known ? s->mark.tokens : 0;
    return known ? s->mark.node : 0;
}

static void prefix_mark(const struct prefix *t, struct seq *s, uint32_t node, uint32_t tokens)
{
    if (!t->nodes[node].born) /* the root, or evicted */
        return;
    s->mark = (struct seq_mark){.tokens = tokens, .node = node, .born = t->nodes[node].born};
}

static void prefix_unlink_use(struct prefix *t, uint32_t list, uint32_t i)
{
    struct link *c = &t->nodes[i].use[list];
    *(c->newer ? &t->nodes[c->newer].use[list].older : &t->newest[list]) = c->older;
    *(c->older ? &t->nodes[c->older].use[list].newer : &t->oldest[list]) = c->newer;
}

static void prefix_link_use(struct prefix *t, uint32_t list, uint32_t i)
{
    struct link *c = &t->nodes[i].use[list];
    *c = (struct link){.older = t->newest[list]};
    *(c->older ? &t->nodes[c->older].use[list].newer : &t->oldest[list]) = i;
    t->newest[list] = i;
}

static void prefix_touch(struct prefix *t, uint32_t list, uint32_t i)
{
    prefix_unlink_use(t, list, i);
    prefix_link_use(t, list, i);
}

static uint32_t prefix_window(const struct prefix *t, uint32_t g)
{
    return t->runner->plan->group[g].window;
}

/* The node gets a reference to a page that it lacks. */
static void prefix_give(struct prefix *t, uint32_t i, uint32_t g, int32_t page)
{
    pages_keep(&t->runner->pages[g], page);
    t->nodes[i].page[g] = page;
    if (prefix_window(t, g))
        prefix_link_use(t, g, i);
}

static void prefix_take(struct prefix *t, uint32_t i, uint32_t g)
{
    struct node *c = &t->nodes[i];
    if (c->page[g] && prefix_window(t, g))
        prefix_unlink_use(t, g, i);
    pages_leave(&t->runner->pages[g], c->page[g]);
    c->page[g] = 0;
}

/* Marks a node as saved. */
static void prefix_set_saved(struct prefix *t, struct node *c)
{
    t->unsaved -= t->disk && c->n == RUNNER_PAGE && !c->saved;
    c->saved = true;
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
    prefix_unlink_use(t, LIST_NODES, i);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        prefix_take(t, i, g);
    prefix_move_snapshots(t, i, 0);
    prefix_set_saved(t, c);
    t->stats.pages -= c->n == RUNNER_PAGE;
    if (c->n == RUNNER_PAGE)
        kv_events_removed(t->events, c->hash);
    *c = (struct node){.chain = t->free};
    t->free = i;
    t->stats.nodes--;
}

void prefix_clear(struct prefix *t)
{
    for (uint32_t i = t->oldest[LIST_NODES]; i; i = t->nodes[i].use[LIST_NODES].newer)
        for (uint32_t g = 0; g < t->runner->plan->groups; g++)
            pages_leave(&t->runner->pages[g], t->nodes[i].page[g]);
    for (uint32_t i = 1; i < t->runner->states.count; i++)
        if (t->snapshot[i].node)
            pages_drop(&t->runner->states, (int32_t)i);
    prefix_reset(t);
    kv_events_cleared(t->events);
}

void prefix_close(struct prefix *t)
{
    if (!t)
        return;
    if (t->nodes && t->bucket && t->snapshot) {
        while (prefix_save(t, true))
            ;
        prefix_clear(t);
    }
    prefix_disk_close(t->disk);
    mem_free(t->nodes);
    mem_free(t->bucket);
    mem_free(t->snapshot);
    mem_free(t);
}

void prefix_listen(struct prefix *t, struct kv_events *events)
{
    t->events = events;
}

/* ---- the disk ---- */

void prefix_name(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n,
                 struct digest *with, struct digest *name)
{
    *with = parent ? t->nodes[parent].with : prefix_disk_root(t->disk, salt);
    *name = prefix_disk_name(t->disk, parent ? t->nodes[parent].name : *with, ids, n);
}

void prefix_text(const struct prefix *t, const struct node *c, int32_t *ids)
{
    for (uint32_t at = c->depth; at-- > 0; c = &t->nodes[c->parent])
        memcpy(ids + (size_t)at * RUNNER_PAGE, c->ids, c->n * sizeof *ids);
}

/* Hands a node to the disk's writer; false: it takes no more now. */
static bool prefix_write(struct prefix *t, struct node *c, bool wait)
{
    struct err e = {0};
    struct prefix_disk_page p = {.with = c->with, .name = c->name, .tokens = c->depth * RUNNER_PAGE};
    if (!t->disk || c->n < RUNNER_PAGE || c->saved)
        return true;
    struct prefix_disk_slot *s = prefix_disk_slot(t->disk, PREFIX_DISK_PAGE, wait);
    if (!s)
        return false;
    prefix_set_saved(t, c);
    s->page = p;
    prefix_text(t, c, s->ids);
    const struct device *d = t->runner->device;
    uint8_t *to = s->bytes;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        if (d->ops->read_page(t->runner->device, g, c->page[g], to, &e))
            s->page.tokens = 0; /* the writer passes it by */
        to += d->ops->page_bytes(d, g);
    }
    prefix_disk_write(t->disk, s);
    return true;
}

/* Writes one snapshot that is not on disk yet. */
static void prefix_save_snapshot(struct prefix *t)
{
    uint32_t before = t->unsaved_snapshots;
    for (uint32_t i = 1; i < t->runner->states.count && before && t->unsaved_snapshots == before; i++)
        prefix_write_snapshot(t, (int32_t)i, true);
}

bool prefix_save(struct prefix *t, bool wait)
{
    uint32_t before = t->unsaved;
    for (uint32_t i = 1; t->unsaved && i < t->room; i++) {
        if (!prefix_write(t, &t->nodes[t->save_at], wait) || (wait && t->unsaved < before))
            break;
        t->save_at = t->save_at + 1 < t->room ? t->save_at + 1 : 0;
    }
    if (wait && t->unsaved == before) /* a slot takes long to copy: only while nothing runs */
        prefix_save_snapshot(t);
    return t->unsaved + t->unsaved_snapshots > 0;
}

void prefix_budget(struct prefix *t, double seconds)
{
    t->until = clock_now() + seconds;
}

bool prefix_has_more(const struct prefix *t)
{
    return t->more;
}

/* ---- eviction ---- */

/* Only the tree holds its pages, and it has no child. */
static bool prefix_is_idle_leaf(const struct prefix *t, const struct node *c)
{
    bool idle = !c->child;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        idle &= !c->page[g] || t->runner->pages[g].refs[c->page[g]] == 1;
    return idle;
}

static bool prefix_lacks_page(const struct prefix *t, const struct node *c)
{
    bool lacks = false;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        lacks |= !c->page[g];
    return lacks;
}

/* Whether no sequence can continue from its end: a page within a window is missing, or there is no state. */
static bool prefix_lacks(const struct prefix *t, const struct node *c)
{
    return prefix_lacks_page(t, c) || (t->runner->plan->states && !c->snapshot);
}

/* Removes a leaf, and the ancestors that were kept only for their children. */
static void prefix_prune(struct prefix *t, uint32_t i)
{
    do {
        uint32_t parent = t->nodes[i].parent;
        prefix_write(t, &t->nodes[i], false);
        prefix_remove(t, i);
        t->stats.evicted++;
        i = parent;
    } while (i && prefix_lacks(t, &t->nodes[i]) && prefix_is_idle_leaf(t, &t->nodes[i]));
}

void prefix_prune_useless(struct prefix *t, uint32_t i)
{
    for (uint64_t born = t->nodes[i].born; t->nodes[i].born == born;) {
        uint32_t leaf = i;
        while (t->nodes[leaf].child)
            leaf = t->nodes[leaf].child;
        if (!prefix_lacks(t, &t->nodes[leaf]) || !prefix_is_idle_leaf(t, &t->nodes[leaf]))
            return;
        prefix_prune(t, leaf);
    }
}

static bool prefix_is_short(const struct prefix *t, uint32_t g, const struct page_need *need)
{
    return t->runner->pages[g].unused < need->of[g];
}

/* Evicts pages of a window's group, as many as are needed, the least recently used first. */
static void prefix_strip(struct prefix *t, uint32_t g, const struct page_need *need)
{
    for (uint32_t i = t->oldest[g], next; i && prefix_is_short(t, g, need); i = next) {
        struct node *c = &t->nodes[i];
        next = c->use[g].newer;
        if (t->runner->pages[g].refs[c->page[g]] > 1)
            continue;
        prefix_write(t, c, false);
        prefix_set_saved(t, c); /* only nodes that lack nothing are written */
        prefix_take(t, i, g);
        t->stats.stripped++;
        if (!prefix_is_idle_leaf(t, c))
            continue;
        prefix_prune(t, i);
        next = t->oldest[g]; /* its ancestors may be removed, too */
    }
}

/* Whether pages of a group without a window are short; without a number of pages, whether nodes are. */
static bool prefix_is_full(const struct prefix *t, const struct page_need *need)
{
    bool full = !need && !t->free;
    for (uint32_t g = 0; g < t->runner->plan->groups && need; g++)
        full |= !prefix_window(t, g) && prefix_is_short(t, g, need);
    return full;
}

/* One pass over all nodes, the least recently used first; returns whether any was evicted. */
static bool prefix_evict_pass(struct prefix *t, const struct page_need *need)
{
    uint64_t before = t->stats.nodes;
    for (uint32_t i = t->oldest[LIST_NODES], next; i && prefix_is_full(t, need); i = next) {
        uint32_t parent = t->nodes[i].parent;
        next = t->nodes[i].use[LIST_NODES].newer;
        if (!prefix_is_idle_leaf(t, &t->nodes[i]))
            continue;
        prefix_prune(t, i);
        if (next && !t->nodes[next].n) /* removed with it */
            next = t->oldest[LIST_NODES];
        /* its parent was skipped because of it */
        if (parent && t->nodes[parent].n && prefix_is_idle_leaf(t, &t->nodes[parent]))
            next = parent;
    }
    return t->stats.nodes < before;
}

/* Evicts nodes until there are enough pages, or one node, or no more can be evicted. */
static void prefix_evict(struct prefix *t, const struct page_need *need)
{
    while (prefix_is_full(t, need) && prefix_evict_pass(t, need))
        ;
}

bool prefix_make_room(struct prefix *t, const struct page_need *need)
{
    bool enough = true;
    runner_grow(t->runner, need);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        if (prefix_window(t, g))
            prefix_strip(t, g, need);
        enough &= !prefix_window(t, g) || !prefix_is_short(t, g, need);
    }
    if (enough)
        prefix_evict(t, need);
    while (t->runner->states.unused < need->states && prefix_evict_snapshot(t))
        ;
    return enough && !prefix_is_full(t, need) && t->runner->states.unused >= need->states;
}

uint32_t prefix_nearest(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
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

void prefix_note_good(struct prefix *t, struct descent *d, uint32_t i, uint32_t first, uint32_t tokens)
{
    const struct node *c = &t->nodes[i];
    uint32_t n = tokens;
    int32_t slot = 0;
    if (t->runner->plan->states) {
        slot = prefix_snapshot(t, c->parent, c->salt, d->seq->ids + first, tokens, &n);
        if (!slot)
            return;
    }
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        if (d->lacking[g] && d->lacking[g] + prefix_window(t, g) > first + n + 1)
            return;
    if (slot)
        pages_share(&t->runner->states, slot);
    pages_drop(&t->runner->states, d->state);
    d->state = slot;
    d->good = first + n;
    seq_slide(d->seq, d->good);
}

void prefix_adopt(struct prefix *t, struct descent *d, uint32_t i, uint32_t tokens)
{
    const struct node *c = &t->nodes[i];
    struct seq *s = d->seq;
    uint32_t at = s->len / RUNNER_PAGE;
    memcpy(s->ids + s->len, c->ids, tokens * sizeof *s->ids);
    s->len += tokens;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        s->table[g][at] = c->page[g];
        if (c->page[g])
            pages_share(&t->runner->pages[g], c->page[g]);
        else
            d->lacking[g] = s->len;
        if (c->page[g] && prefix_window(t, g))
            prefix_touch(t, g, i);
    }
    prefix_touch(t, LIST_NODES, i);
    prefix_note_good(t, d, i, s->len - tokens, tokens);
}

/* A new node, if it is a whole page of text. */
static void prefix_note_page(struct prefix *t, struct node *c)
{
    if (c->n < RUNNER_PAGE)
        return;
    t->stats.pages++;
    if (!t->events)
        return;
    c->hash = kv_events_hash(t->events, t->nodes[c->parent].hash, c->salt, c->ids);
    kv_events_stored(t->events, c->hash, t->nodes[c->parent].hash, c->ids, t->adapter);
}

uint32_t prefix_link(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n,
                     const int32_t page[PLAN_GROUPS_MOST])
{
    prefix_evict(t, NULL);
    uint32_t i = t->free;
    if (!i || (parent && !t->nodes[parent].n)) /* no room, or the parent was evicted */
        return 0;
    struct node *c = &t->nodes[i];
    t->free = c->chain;
    *c = (struct node){
        .parent = parent, .salt = prefix_salt(parent, salt), .n = (uint16_t)n, .born = ++t->births};
    c->depth = t->nodes[parent].depth + 1;
    memcpy(c->ids, ids, n * sizeof *c->ids);
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        if (page[g])
            prefix_give(t, i, g, page[g]);
    if (t->disk && n == RUNNER_PAGE) {
        prefix_name(t, parent, salt, ids, n, &c->with, &c->name);
        c->saved = prefix_lacks_page(t, c);
        t->unsaved += !c->saved;
    }
    c->sibling = t->nodes[parent].child;
    t->nodes[parent].child = i;
    uint32_t *b = &t->bucket[prefix_bucket(t, parent, c->salt, c->ids, n)];
    c->chain = *b;
    *b = i;
    prefix_link_use(t, LIST_NODES, i);
    t->stats.nodes++;
    prefix_note_page(t, c);
    return i;
}

/* Reads a page from disk into new pages of the groups that are wanted (1, else 0). The caller owns them then,
 * also after a failure. */
static bool prefix_load(struct prefix *t, const struct prefix_disk_page *p, const struct page_need *want,
                        int32_t page[PLAN_GROUPS_MOST])
{
    const struct runner *r = t->runner;
    struct err e = {0};
    if (clock_now() > t->until) {
        t->more = prefix_disk_has(t->disk, p);
        return false;
    }
    const uint8_t *from = prefix_disk_read(t->disk, p);
    bool whole = from && prefix_make_room(t, want);
    for (uint32_t g = 0; g < r->plan->groups && whole; g++) {
        if (want->of[g]) {
            page[g] = pages_take(&t->runner->pages[g]);
            whole = !r->device->ops->write_page(r->device, g, page[g], from, &e);
        }
        from += r->device->ops->page_bytes(r->device, g);
    }
    return whole;
}

void prefix_drop(struct prefix *t, const int32_t page[PLAN_GROUPS_MOST])
{
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        pages_drop(&t->runner->pages[g], page[g]);
}

/* A node for the page ids[at..), from disk; 0: it is not there. Only the tree holds its pages. */
static uint32_t prefix_fetch(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                             uint32_t at)
{
    int32_t page[PLAN_GROUPS_MOST] = {0};
    struct prefix_disk_page p = {.ids = ids, .tokens = at + RUNNER_PAGE};
    struct page_need all = {0};
    if (!t->disk)
        return 0;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        all.of[g] = 1;
    prefix_name(t, parent, salt, ids + at, RUNNER_PAGE, &p.with, &p.name);
    bool whole = prefix_load(t, &p, &all, page);
    uint32_t i = whole ? prefix_link(t, parent, salt, ids + at, RUNNER_PAGE, page) : 0;
    prefix_drop(t, page); /* the tree has its own reference */
    if (i)
        prefix_set_saved(t, &t->nodes[i]);
    return i;
}

/* Gives the sequence, and a node that it has adopted, the missing pages within its windows. */
static bool prefix_refill(struct prefix *t, struct seq *s, uint32_t i)
{
    int32_t page[PLAN_GROUPS_MOST] = {0};
    struct node *c = &t->nodes[i];
    uint32_t end = c->depth * RUNNER_PAGE;
    struct prefix_disk_page p = {.with = c->with, .name = c->name, .ids = s->ids, .tokens = end};
    struct page_need want = {0};
    bool any = false;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        want.of[g] = !s->table[g][c->depth - 1] && end + prefix_window(t, g) > s->len + 1;
        any |= want.of[g];
    }
    if (!any)
        return true;
    if (!prefix_load(t, &p, &want, page) || !c->n) { /* the node itself may have been evicted */
        prefix_drop(t, page);
        return false;
    }
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        if (want.of[g]) {
            s->table[g][c->depth - 1] = page[g];
            prefix_give(t, i, g, page[g]);
        }
    return true;
}

/* The disk may have what windows lack before the end of the sequence, whose last node is i. */
static void prefix_refill_all(struct prefix *t, struct descent *d, uint32_t i)
{
    bool whole = true;
    for (; i && whole; i = t->nodes[i].parent)
        whole = prefix_refill(t, d->seq, i);
    if (!whole)
        return;
    d->good = d->seq->len;
    seq_slide(d->seq, d->seq->len);
}

/* The end of a descent: the sequence is cut back to where it can continue from. While the disk has more, a sequence with
 * state stays where it was: it continues from the end of a page. */
static void prefix_land(struct prefix *t, struct descent *d, uint32_t had)
{
    if (t->more && t->runner->plan->states)
        d->good = had;
    else if (d->state) {
        prefix_use_snapshot(t, d->state);
        seq_set_state(d->seq, d->good, d->state);
    }
    pages_drop(&t->runner->states, d->state);
    seq_truncate(d->seq, d->good);
}

uint32_t prefix_match(struct prefix *t, uint64_t salt, struct seq *s, const int32_t *ids, uint32_t n)
{
    uint32_t at, parent = prefix_resume(t, s, &at), had = s->len;
    bool fresh = s->len == 0, followed = at == s->len, states = t->runner->plan->states;
    struct descent d = {.seq = s, .good = s->len};
    t->more = false;
    t->adapter = s->lora.count ? s->lora.id[0] : 0;
    for (uint32_t i; at + RUNNER_PAGE <= n; at += RUNNER_PAGE, parent = i) {
        i = prefix_find(t, parent, salt, ids + at, RUNNER_PAGE);
        if (!i && at == s->len)
            i = prefix_fetch(t, parent, salt, ids, at);
        if (!i)
            break;
        if (at == s->len)
            prefix_adopt(t, &d, i, RUNNER_PAGE);
    }
    if (t->disk && !states && d.good < s->len)
        prefix_refill_all(t, &d, parent);
    if (t->disk && states && !t->more && at == s->len)
        prefix_fetch_snapshot(t, &d, parent, at, salt, ids, n);
    uint32_t common = 0, i = t->more ? 0 : prefix_nearest(t, parent, salt, ids + at, n - at, &common);
    if (i && fresh && s->len == at && (states || d.good == at))
        prefix_adopt(t, &d, i, common);
    t->known = at + common;
    prefix_land(t, &d, had);
    if (followed && at <= s->len)
        prefix_mark(t, s, parent, at);
    return s->len;
}

uint32_t prefix_known(const struct prefix *t)
{
    return t->known;
}

void prefix_count(struct prefix *t, uint32_t tokens, uint32_t prompt)
{
    t->stats.prompt_tokens += prompt;
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

/* The sequence's page at `at` is in the tree: the sequence takes that one and drops its own, or gives the
 * tree what it lacks. */
static void prefix_merge(struct prefix *t, struct seq *s, uint32_t i, uint32_t at)
{
    for (uint32_t g = 0; g < t->runner->plan->groups; g++) {
        int32_t *page = &s->table[g][at / RUNNER_PAGE], known = t->nodes[i].page[g];
        if (*page && !known)
            prefix_give(t, i, g, *page);
        else if (*page && prefix_window(t, g))
            prefix_touch(t, g, i);
        if (!*page || !known || *page == known)
            continue;
        pages_share(&t->runner->pages[g], known);
        pages_drop(&t->runner->pages[g], *page);
        *page = known;
    }
    prefix_touch(t, LIST_NODES, i);
}

/* A new node for a page of the sequence, in place of a beginning of that page: that has no children. 0 where there is no
 * room. */
static uint32_t prefix_grow(struct prefix *t, uint32_t parent, uint64_t salt, const struct seq *s,
                            uint32_t at, uint32_t n)
{
    uint32_t common, old = prefix_nearest(t, parent, salt, s->ids + at, n, &common);
    bool outgrown = old && common == t->nodes[old].n && common < RUNNER_PAGE;
    uint64_t born = outgrown ? t->nodes[old].born : 0;
    uint32_t i = prefix_add(t, parent, salt, s, at, n);
    if (i && outgrown && t->nodes[old].born == born) { /* unless it was evicted for the new one */
        prefix_move_snapshots(t, old, i);
        prefix_remove(t, old);
    }
    return i;
}

void prefix_insert(struct prefix *t, uint64_t salt, struct seq *s, uint32_t len)
{
    uint32_t at, parent = prefix_resume(t, s, &at);
    t->adapter = s->lora.count ? s->lora.id[0] : 0;
    for (; at + RUNNER_PAGE <= len; at += RUNNER_PAGE) {
        uint32_t i = prefix_find(t, parent, salt, s->ids + at, RUNNER_PAGE);
        if (i)
            prefix_merge(t, s, i, at);
        else if (!(i = prefix_grow(t, parent, salt, s, at, RUNNER_PAGE)))
            return;
        parent = i;
        prefix_mark(t, s, parent, at + RUNNER_PAGE);
    }
    uint32_t common, last = parent, i = prefix_nearest(t, parent, salt, s->ids + at, len - at, &common);
    if (at < len && i && common == len - at)
        prefix_touch(t, LIST_NODES, last = i);
    else if (at < len && !(last = prefix_grow(t, parent, salt, s, at, len - at)))
        return;
    prefix_take_snapshots(t, s, last, len);
}

void prefix_stats(const struct prefix *t, struct prefix_stats *out)
{
    *out = t->stats;
    if (t->disk)
        prefix_disk_stats(t->disk, &out->disk);
}
