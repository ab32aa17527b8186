/* The prefix tree's data, shared by its files: prefix.c has the tree, prefix_state.c the snapshots of state. */
#pragma once

#include "run/prefix.h"

/* Lists by last use: of the nodes that hold a page of a group with a window, one for each such group; and of all. */
enum { LIST_NODES = PLAN_GROUPS_MOST, LISTS };

struct link {
    uint32_t newer, older;
};

/* Nodes are in one array and refer to each other by index; 0 is the root, and "none" everywhere else.
 * Children of a node form a list; all nodes are in one hash table by (parent, tokens), and in lists by last
 * use. */
struct node {
    uint32_t parent, child, sibling; /* child: the first one */
    uint32_t chain;                  /* next in the hash bucket */
    struct link use[LISTS];
    uint64_t salt; /* of a root's child: parent is 0 */
    uint64_t born; /* no other node has, or had, the same; 0: it is not in use */
    uint16_t n;    /* tokens in it */
    int32_t ids[RUNNER_PAGE];
    int32_t page[PLAN_GROUPS_MOST]; /* 0: lacking */
    int32_t snapshot;               /* the first of its snapshots; 0 = none */
    uint32_t depth;                 /* pages up to it, with it */
    uint64_t hash;                  /* of a whole page, where there are events */
    /* where there is a disk */
    struct digest with, name;
    bool saved; /* or a partial page, which is not saved */
};

/* The state after the first n tokens of a node. Its slot is its number. */
struct snapshot {
    uint32_t node; /* 0: this slot is not the tree's */
    int32_t next;  /* of the same node */
    uint16_t n;
    bool saved;
    uint64_t used;  /* when last, counted in uses */
    uint64_t floor; /* what snapshots that were evicted before its last use were worth */
};

struct prefix {
    struct runner *runner;
    struct node *nodes;  /* (room); [0] is the root, of which only `child` is used */
    uint32_t room, free; /* free: first of the list of unused ones, by `chain` */
    uint32_t *bucket;    /* (buckets) */
    uint32_t buckets;
    uint32_t newest[LISTS], oldest[LISTS];
    uint64_t births;
    struct prefix_stats stats;
    struct kv_events *events; /* NULL = none */
    uint32_t adapter;         /* of the sequence at hand, for events */
    struct prefix_disk *disk;
    double until; /* matches may read from it */
    bool more;
    uint32_t known;            /* tokens of the last match that the tree has */
    uint32_t unsaved, save_at; /* nodes; where prefix_save continues its scan */
    /* where the plan keeps state */
    struct snapshot *snapshot;  /* (the runner's slots) */
    uint32_t most_snapshots;    /* that the tree may have */
    uint32_t unsaved_snapshots; /* where there is a disk */
    uint64_t uses, floor;
};

/* A sequence that descends the tree. */
struct descent {
    struct seq *seq;
    uint32_t good; /* tokens up to the last position that it can continue from */
    int32_t state; /* the slot of the state there: it has a reference; 0 = the sequence's own */
    uint32_t lacking[PLAN_GROUPS_MOST]; /* where the last page ends that a window's group lacks */
};

static inline uint64_t prefix_salt(uint32_t parent, uint64_t salt)
{
    return parent ? 0 : salt;
}

/* ---- prefix.c ---- */

/* The child of `parent` that has the longest common prefix with ids[0..n); *common: its length. */
uint32_t prefix_nearest(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                        uint32_t n, uint32_t *common);
/* The name of what follows a node on disk: n tokens. */
void prefix_name(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n,
                 struct digest *with, struct digest *name);
/* The tokens from the root to the end of a node. */
void prefix_text(const struct prefix *t, const struct node *c, int32_t *ids);
/* A new node that shares these pages; 0 where there is no room. */
uint32_t prefix_link(struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids, uint32_t n,
                     const int32_t page[PLAN_GROUPS_MOST]);
/* The sequence has the tokens of a node from position `first` on, as many as are said here. If no window reaches a missing
 * page it can continue from their end or, where the plan keeps state, from the last snapshot in them. */
void prefix_note_good(struct prefix *t, struct descent *d, uint32_t i, uint32_t first, uint32_t tokens);
/* The sequence takes the first tokens of a node. */
void prefix_adopt(struct prefix *t, struct descent *d, uint32_t i, uint32_t tokens);
void prefix_drop(struct prefix *t, const int32_t page[PLAN_GROUPS_MOST]);
/* A node has lost its last snapshot: removes it and what follows it, as far as that has none either, and the ancestors
 * that were kept for it alone. */
void prefix_prune_useless(struct prefix *t, uint32_t i);

/* ---- prefix_state.c ---- */

/* Of all children of `parent`, the snapshot after the most of ids[0..n); *at: after how many. 0 = there is none. */
int32_t prefix_snapshot(const struct prefix *t, uint32_t parent, uint64_t salt, const int32_t *ids,
                        uint32_t n, uint32_t *at);
/* Counts a use of a snapshot. */
void prefix_use_snapshot(struct prefix *t, int32_t slot);
/* The node's snapshots become the other node's, or go (0). */
void prefix_move_snapshots(struct prefix *t, uint32_t from, uint32_t to);
/* Takes over the sequence's snapshots up to its first `len` tokens. `last` is the node of the last of these. */
void prefix_take_snapshots(struct prefix *t, struct seq *s, uint32_t last, uint32_t len);
/* Evicts the snapshot that is worth the least; false: none can be evicted. */
bool prefix_evict_snapshot(struct prefix *t);
/* Hands a snapshot to the disk's writer; false: it takes no more now. */
bool prefix_write_snapshot(struct prefix *t, int32_t slot, bool wait);
/* A sequence has descended to the first `at` of ids[0..n), which end with node i. The disk may have a state after
 * more of them than the tree has. */
void prefix_fetch_snapshot(struct prefix *t, struct descent *d, uint32_t i, uint32_t at, uint64_t salt,
                           const int32_t *ids, uint32_t n);
