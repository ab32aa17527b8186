/* Snapshots of state in the prefix tree. */
#include "base/clock.h"
#include "run/prefix_internal.h"

#include <string.h>

void prefix_limit(struct prefix *t, uint32_t snapshots)
{
    t->most_snapshots = snapshots;
}

/* ---- finding ---- */

/* How many of ids[0..n) the node begins with. */
static uint32_t node_common(const struct node *c, const int32_t *ids, uint32_t n)
{
    uint32_t k = 0;
    while (k < c->n && k < n && c->ids[k] == ids[k])
        k++;
    return k;
}

/* The node's last snapshot after at most n of its tokens; 0 = none. */
static int32_t node_snapshot(const struct prefix *t, const struct node *c, uint32_t n)
{
    int32_t best = 0;
    for (int32_t s = c->snapshot; s; s = t->snapshot[s].next)
        if (t->snapshot[s].n <= n && (!best || t->snapshot[s].n > t->snapshot[best].n))
            best = s;
    return best;
}

int32_t prefix_snapshot(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                        uint32_t n, uint32_t *at)
{
    int32_t best = 0;
    *at = 0;
    salt = prefix_salt(parent, salt);
    for (uint32_t i = t->nodes[parent].child; i; i = t->nodes[i].sibling) {
        const struct node *c = &t->nodes[i];
        int32_t s = c->snapshot && c->salt == salt ? node_snapshot(t, c, node_common(c, ids, n)) : 0;
        if (s && t->snapshot[s].n > *at) {
            *at = t->snapshot[s].n;
            best = s;
        }
    }
    return best;
}

void prefix_use_snapshot(struct prefix *t, int32_t slot)
{
    t->snapshot[slot].used = ++t->uses;
    t->snapshot[slot].floor = t->floor;
}

/* ---- adding and removing ---- */

static void prefix_set_written(struct prefix *t, struct snapshot *s)
{
    t->unsaved_snapshots -= t->disk && !s->saved;
    s->saved = true;
}

static void prefix_remove_snapshot(struct prefix *t, int32_t slot)
{
    struct snapshot *s = &t->snapshot[slot];
    int32_t *at = &t->nodes[s->node].snapshot;
    while (*at != slot)
        at = &t->snapshot[*at].next;
    *at = s->next;
    prefix_set_written(t, s);
    *s = (struct snapshot){0};
    t->stats.snapshots--;
    pages_drop(&t->runner->states, slot);
}

/* The tree shares a slot: the state after the first n tokens of the node. */
static void prefix_add_snapshot(struct prefix *t, uint32_t node, uint32_t n, int32_t slot)
{
    struct node *c = &t->nodes[node];
    pages_share(&t->runner->states, slot);
    t->snapshot[slot] = (struct snapshot){.node = node, .n = (uint16_t)n, .next = c->snapshot};
    c->snapshot = slot;
    t->unsaved_snapshots += t->disk != NULL;
    t->stats.snapshots++;
    prefix_use_snapshot(t, slot);
}

/* The tree has no more snapshots than it may: older ones go. */
static void prefix_trim(struct prefix *t)
{
    while (t->stats.snapshots > t->most_snapshots && prefix_evict_snapshot(t))
        ;
}

void prefix_move_snapshots(struct prefix *t, uint32_t from, uint32_t to)
{
    for (int32_t s; (s = t->nodes[from].snapshot);) {
        if (!to || t->snapshot[s].n > t->nodes[to].n) {
            prefix_remove_snapshot(t, s);
            continue;
        }
        t->nodes[from].snapshot = t->snapshot[s].next;
        t->snapshot[s].next = t->nodes[to].snapshot;
        t->snapshot[s].node = to;
        t->nodes[to].snapshot = s;
    }
}

/* Of a node's snapshots the one after just n of its tokens; 0 = none. */
static int32_t node_snapshot_at(const struct prefix *t, const struct node *c, uint32_t n)
{
    int32_t s = node_snapshot(t, c, n);
    return s && t->snapshot[s].n == n ? s : 0;
}

/* The tree gets a state of the sequence: it ends within `last`, or a node above. */
static void prefix_take_snapshot(struct prefix *t, const struct seq_state *of, uint32_t last)
{
    uint32_t depth = (of->at + RUNNER_PAGE - 1) / RUNNER_PAGE, n = of->at - (depth - 1) * RUNNER_PAGE;
    while (t->nodes[last].depth > depth)
        last = t->nodes[last].parent;
    int32_t known = node_snapshot_at(t, &t->nodes[last], n);
    known = known || !t->snapshot[of->slot].node ? known : of->slot; /* of a node that begins the same */
    if (known)
        prefix_use_snapshot(t, known);
    else if (t->nodes[last].depth == depth && n <= t->nodes[last].n && t->most_snapshots)
        prefix_add_snapshot(t, last, n, of->slot);
}

void prefix_take_snapshots(struct prefix *t, struct seq *s, uint32_t last, uint32_t len)
{
    for (uint32_t i = 0; i < s->states;) {
        bool takes = s->state[i].snapshot && s->state[i].at <= len;
        if (takes)
            prefix_take_snapshot(t, &s->state[i], last);
        i += !takes || !seq_release_snapshot(s, i);
    }
    prefix_trim(t);
}

/* ---- eviction ---- */

/* Tokens between a snapshot and the one before it: what is computed again where it is missing. */
static uint64_t snapshot_gap(const struct prefix *t, const struct snapshot *s)
{
    const struct node *c = &t->nodes[s->node];
    uint64_t gap = s->n;
    int32_t before = s->n > 1 ? node_snapshot(t, c, s->n - 1u) : 0;
    while (!before && c->parent) {
        c = &t->nodes[c->parent];
        gap += RUNNER_PAGE;
        before = node_snapshot(t, c, RUNNER_PAGE);
    }
    return before ? gap - t->snapshot[before].n : gap;
}

/* What a snapshot is worth: the tokens that it saves, and more the later it was used. */
static uint64_t snapshot_worth(const struct prefix *t, const struct snapshot *s)
{
    return s->floor + snapshot_gap(t, s);
}

/* The least worth of those that only the tree holds; of the older half, or of all. */
static int32_t prefix_victim(const struct prefix *t, bool all)
{
    int32_t best = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 1; i < t->runner->states.count; i++) {
        const struct snapshot *s = &t->snapshot[i];
        if (!s->node || t->runner->states.refs[i] > 1 || (!all && s->used + t->stats.snapshots / 2 > t->uses))
            continue;
        uint64_t worth = snapshot_worth(t, s);
        if (worth < least || (worth == least && s->used < t->snapshot[best].used)) {
            least = worth;
            best = (int32_t)i;
        }
    }
    return best;
}

bool prefix_evict_snapshot(struct prefix *t)
{
    int32_t slot = prefix_victim(t, false);
    slot = slot ? slot : prefix_victim(t, true);
    if (!slot)
        return false;
    uint32_t node = t->snapshot[slot].node;
    uint64_t worth = snapshot_worth(t, &t->snapshot[slot]);
    t->floor = worth > t->floor ? worth : t->floor;
    prefix_write_snapshot(t, slot, false);
    prefix_remove_snapshot(t, slot);
    t->stats.evicted_snapshots++;
    prefix_prune_useless(t, node);
    return true;
}

/* ---- the disk ---- */

/* The name of a snapshot after n tokens that follow a node. */
static void snapshot_name(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                          uint32_t n, struct prefix_disk_page *p)
{
    static const char kind[] = "state";
    prefix_name(t, parent, salt, ids, n, &p->with, &p->name);
    digest_add(&p->name, kind, sizeof kind);
}

static size_t prefix_page_bytes(const struct prefix *t)
{
    const struct device *d = t->runner->device;
    size_t bytes = 0;
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        bytes += d->ops->page_bytes(d, g);
    return bytes;
}

/* A file has the state, and the page where it ends within one. */
static size_t snapshot_bytes(const struct prefix *t, uint32_t tokens)
{
    const struct device *d = t->runner->device;
    return d->ops->state_bytes(d) + (tokens % RUNNER_PAGE ? prefix_page_bytes(t) : 0);
}

static int snapshot_read(struct prefix *t, const struct snapshot *s, int32_t slot, uint8_t *to, struct err *e)
{
    struct device *d = t->runner->device;
    if (d->ops->read_state(d, slot, to, e))
        return -1;
    to += d->ops->state_bytes(d);
    for (uint32_t g = 0; g < t->runner->plan->groups && s->n < RUNNER_PAGE; g++) {
        int32_t page = t->nodes[s->node].page[g];
        if (!page || d->ops->read_page(d, g, page, to, e))
            return -1;
        to += d->ops->page_bytes(d, g);
    }
    return 0;
}

bool prefix_write_snapshot(struct prefix *t, int32_t slot, bool wait)
{
    struct snapshot *s = &t->snapshot[slot];
    const struct node *c = &t->nodes[s->node];
    struct err e = {0};
    if (!t->disk || !s->node || s->saved)
        return true;
    struct prefix_disk_slot *to = prefix_disk_slot(t->disk, PREFIX_DISK_STATE, wait);
    if (!to)
        return false;
    struct prefix_disk_page p = {.tokens = (c->depth - 1) * RUNNER_PAGE + s->n};
    prefix_set_written(t, s);
    snapshot_name(t, c->parent, c->salt, c->ids, s->n, &p);
    p.bytes = snapshot_bytes(t, p.tokens);
    prefix_text(t, c, to->ids);
    if (snapshot_read(t, s, slot, to->bytes, &e))
        p.tokens = 0; /* the writer passes it by */
    to->page = p;
    prefix_disk_write(t->disk, to);
    return true;
}

/* What is read from disk: a slot and, where it ends within a page, pages. The caller owns them, also after a failure. */
struct fetched {
    int32_t slot, page[PLAN_GROUPS_MOST];
};

static bool prefix_load_snapshot(struct prefix *t, const struct prefix_disk_page *p, bool pages,
                                 struct fetched *out)
{
    struct device *d = t->runner->device;
    struct page_need need = {.states = 1};
    struct err e = {0};
    if (clock_now() > t->until) {
        t->more = true;
        return false;
    }
    for (uint32_t g = 0; g < t->runner->plan->groups; g++)
        need.of[g] = pages;
    const uint8_t *from = prefix_disk_read(t->disk, p);
    if (!from || !prefix_make_room(t, &need))
        return false;
    out->slot = pages_take(&t->runner->states);
    bool whole = !d->ops->write_state(d, out->slot, from, &e);
    from += d->ops->state_bytes(d);
    for (uint32_t g = 0; g < t->runner->plan->groups && pages && whole; g++) {
        out->page[g] = pages_take(&t->runner->pages[g]);
        whole = !d->ops->write_page(d, g, out->page[g], from, &e);
        from += d->ops->page_bytes(d, g);
    }
    return whole;
}

/* Reads the snapshot after n tokens that follow `parent`, which is on disk, for node i; or for a new node (0). The node. */
static uint32_t prefix_read_snapshot(struct prefix *t, uint32_t parent, uint64_t salt, uint32_t i,
                                     const struct prefix_disk_page *p, uint32_t n)
{
    struct fetched f = {0};
    uint64_t born = t->nodes[i].born, above = t->nodes[parent].born;
    bool whole = prefix_load_snapshot(t, p, !i && t->runner->plan->groups, &f);
    bool stays = t->nodes[i].born == born && t->nodes[parent].born == above; /* not evicted to make room */
    if (whole && stays && !i)
        i = prefix_link(t, parent, salt, p->ids + p->tokens - n, n, f.page);
    whole &= stays && i && t->nodes[i].n >= n;
    if (whole) {
        prefix_add_snapshot(t, i, n, f.slot);
        prefix_set_written(t, &t->snapshot[f.slot]);
    }
    prefix_trim(t); /* not of this one: it is in use */
    prefix_drop(t, f.page);
    pages_drop(&t->runner->states, f.slot);
    return whole ? i : 0;
}

/* Which snapshots are looked for. */
struct seek {
    uint64_t salt;
    uint32_t least, most, common;
};

/* Looks on disk for a snapshot after more than `least` and at most `most` of the tokens that follow `parent`, the first of
 * which are those of node i, up to `common`. Returns its node, *n: after how many of its tokens. */
static uint32_t prefix_seek_snapshot(struct prefix *t, struct prefix_disk_page p, uint32_t parent, uint32_t i,
                                     const struct seek *k, uint32_t *n)
{
    uint32_t at = p.tokens, found = 0;
    for (*n = k->most; *n > k->least && !found && !t->more; *n -= !found) {
        p.tokens = at + *n;
        p.bytes = snapshot_bytes(t, p.tokens);
        snapshot_name(t, parent, k->salt, p.ids + at, *n, &p);
        if (prefix_disk_has(t->disk, &p))
            found = prefix_read_snapshot(t, parent, k->salt, *n > k->common ? 0 : i, &p, *n);
    }
    return found;
}

void prefix_fetch_snapshot(struct prefix *t, struct descent *d, uint32_t i, uint32_t at, uint64_t salt,
                           const int32_t *ids, uint32_t n)
{
    struct prefix_disk_page p = {.ids = ids, .tokens = at};
    struct seek k = {.salt = salt, .most = n - at < RUNNER_PAGE - 1 ? n - at : RUNNER_PAGE - 1};
    uint32_t near = prefix_nearest(t, i, salt, ids + at, k.most, &k.common), found;
    bool here = prefix_snapshot(t, i, salt, ids + at, k.most, &k.least) != 0;
    if ((found = prefix_seek_snapshot(t, p, i, near, &k, &n)))
        prefix_adopt(t, d, found, n);
    k.most = k.common = RUNNER_PAGE;
    while (i && !found && !here && at > d->good && !t->more) { /* in the pages before */
        uint32_t parent = t->nodes[i].parent;
        p.tokens = at -= RUNNER_PAGE;
        k.least = d->good > at ? d->good - at : 0;
        if ((found = prefix_seek_snapshot(t, p, parent, i, &k, &n)))
            prefix_note_good(t, d, found, at, RUNNER_PAGE);
        i = parent;
    }
}
