/* Shared by the files of constraint_*.c: sets of positions, and their memory.
 *
 * A position is {state of the program, count of its frame, parent}: the parent is the set of positions to
 * which the frame returns. Sets are unique: equal sets have one id, and within a set positions with equal
 * state and count are one, with the union of their parents. So an ambiguous grammar does not multiply stacks,
 * and whatever is computed for a set (its transitions, its token mask) is computed once.
 *
 * All of it is in one half of a fixed memory. When a half is nearly full, what the open states still need is
 * copied to the other one and the rest is dropped. */
#pragma once

#include "lang/grammar/constraint.h"
#include "lang/grammar/grammar.h"

#include <pthread.h>

struct constraint {
    struct program program;
};

/* From a grammar that a front end has written; the grammar is freed. */
struct constraint *constraint_make(struct grammar *g, uint32_t root, struct err *e);

/* The tree in preorder: the subtree of node i is [i, skip). Node 0 is the root. */
struct vocab_node {
    uint8_t byte;
    uint16_t depth; /* the root's is 0 */
    uint32_t skip;
    uint32_t tokens; /* its own are sorted[tokens .. next node's tokens) */
};

struct constraint_vocab {
    int32_t count;
    uint32_t nodes;
    uint32_t depth;          /* of the longest token */
    struct vocab_node *node; /* (nodes + 1) */
    int32_t *sorted;         /* ids of text tokens, by their bytes */
    int32_t *end;            /* ids of tokens that end */
    uint32_t ends;
    char *bytes; /* of all tokens */
    size_t *at;  /* (count + 1): token i is bytes[at[i] .. at[i + 1]) */
    uint8_t *kind;
    uint32_t *all; /* the mask of all tokens but those that are never allowed */
};

/* The longest token that these bytes begin with; -1 = none. */
int32_t vocab_longest(const struct constraint_vocab *v, const char *text, size_t n);

/* An id is an offset into the half, in units of 8 bytes; small ones mean something else. */
typedef uint32_t set_id;
enum {
    SET_DEAD = 0,      /* as a transition: not computed yet */
    SET_END = 1,       /* as a parent: the text ends here; as a transition: leads nowhere */
    SET_BELOW = 2,     /* as a parent: unknown, for what is computed once for all parents */
    SET_COUNTLESS = 3, /* the same, of a simple counted rule whose bounds are left open */
    SET_FIRST = 8
};

enum { FLAG_END = 1, FLAG_EXIT = 2, FLAG_RAW = 4 };

struct item {
    uint32_t state, count;
    set_id parent;
};

struct set {
    uint32_t hash, n;
    uint16_t depth; /* frames below and with it */
    uint16_t reach; /* the same with the frames that are needed at least to finish, here or below */
    uint8_t flags;
    uint32_t next;      /* the table of transitions by class of bytes; 0 = none yet */
    uint32_t closed;    /* RAW: the same after all that needs no byte */
    uint32_t mask;      /* the words of the token mask, 0 = none yet */
    uint32_t part;      /* struct part, of sets above SET_BELOW or SET_COUNTLESS */
    uint32_t first[8];  /* bytes that may come */
    struct item item[]; /* (n) by state, count */
};

/* A position in a closure that is being made. */
struct constraint_work {
    struct item item;
    bool fresh; /* its frame has read nothing yet */
    bool done;
    uint32_t slot; /* where the hash of the work has it */
};

/* A text may cost WORK_TEXT once and WORK_CALL for each call on average: what ordinary languages need is far
 * below, and an ambiguous one must not delay other requests. */
enum { WORK_TEXT = 2 << 20, WORK_CALL = 20000 };
enum { WORK_MOST = 1 << 15, WORK_SLOTS = 1 << 16, UNION_SLOTS = 1 << 10 };

struct constraint_bound {
    const struct program *p;
    const struct constraint_vocab *v;
    pthread_mutex_t lock;
    char *half[2];
    size_t size, used; /* of the half in use */
    int current;
    bool turned;     /* the other half has been used, too */
    uint32_t *slots; /* the hash of sets */
    uint32_t slot_count, set_count;
    struct constraint_work *work;
    uint32_t work_count, work_next, *work_slot; /* (WORK_SLOTS): index + 1 */
    struct {
        set_id a, b, both;
    } * unions;               /* the last unions, by hash */
    struct item *temp;        /* (WORK_MOST) */
    set_id *path;             /* (vocabulary depth + 1), of a walk through the tree */
    uint32_t *mask, *scratch; /* a mask being made, and a part of one */
    uint8_t flags;            /* of the closure being made */
    int64_t left;             /* work that this call may still do, in positions looked at */
    bool failed;              /* out of memory or work: sticky within one call */
    size_t visited;           /* nodes of the tree, in this call */
    set_id start;
    struct constraint_state *states;
};

struct constraint_state {
    struct constraint_bound *b;
    struct constraint_state *next, *prev;
    int64_t left;                     /* work that its calls may still do; each call adds some */
    bool open;                        /* the last mask allowed everything */
    uint32_t n, at;                   /* ring: `n` entries, the newest at `at` */
    set_id ring[CONSTRAINT_BACK + 1]; /* SET_END: an ending token was accepted */
};

static inline void *bound_at(const struct constraint_bound *b, uint32_t id)
{
    return b->half[b->current] + (size_t)id * 8;
}

static inline struct set *set_get(const struct constraint_bound *b, set_id id)
{
    return bound_at(b, id);
}

uint32_t bound_alloc(struct constraint_bound *b, size_t bytes); /* 0 and b->failed when full */
/* The unique set with these items, which get sorted. */
set_id set_intern(struct constraint_bound *b, struct item *items, uint32_t n, uint8_t flags);
set_id set_closed(struct constraint_bound *b, set_id raw);
/* Where a byte leads; SET_END = nowhere. */
set_id set_step_slow(struct constraint_bound *b, set_id from, uint32_t class);
/* The beginning of a rule, above a parent. */
set_id set_start(struct constraint_bound *b, uint32_t rule, set_id parent);
int sets_open(struct constraint_bound *b);
/* Copies what the states need to the other half, when this one is more than half full. */
void sets_collect(struct constraint_bound *b);

static inline set_id set_step(struct constraint_bound *b, set_id from, uint8_t byte)
{
    struct set *s = set_get(b, from);
    uint32_t class = b->p->class_of[byte];
    if (s->next) {
        set_id to = ((const uint32_t *)bound_at(b, s->next))[class];
        if (to)
            return to;
    }
    return set_step_slow(b, from, class);
}

/* Adds the tokens that may follow `from` to b->mask. */
void mask_make(struct constraint_bound *b, set_id from);
/* Computes beforehand what masks of wide sets will need. */
void mask_warm(struct constraint_bound *b);
