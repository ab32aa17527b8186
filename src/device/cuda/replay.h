/* Running lists of launches: one by one, or as a graph. */
#pragma once

#include "device/cuda/lower.h"

enum { GRAPHS_WHOLE = 64, GRAPHS_MOST = 512, LISTS_MOST = 8 }; /* graphs of a whole plan, or of its parts */

struct replay {
    struct gpu *g;
    struct blas *blas;
    struct launch_limits limits;
    bool *kept; /* (weights): decoded for good by now; NULL: none is */
};

/* Binds the list to the step and launches all of it. from: the operation that a profile counts from. */
int replay_list(struct replay *r, struct launch_list *list, const struct launch_step *s, uint32_t from,
                struct err *e);
/* Lowers and runs at once. */
int replay_plan(struct replay *r, const struct lower *l, const struct step_class *c,
                const struct launch_step *s, struct launch_list *list, struct err *e);

/* Lists by class; the least recently used one is evicted. */
struct list_slot {
    struct step_class class;
    struct launch_list list;
    uint64_t used; /* step of the last use; 0: never */
};

/* What a graph depends on: it serves all steps with the same key. */
struct graph_key {
    const struct plan *plan;
    uint32_t rows, seqs, outs, width, keys;
    uint32_t picks, seen;
    struct step_class class; /* of its list */
};

struct step_graph {
    struct graph_key key;
    void *exec;
    uint64_t used; /* step of the last use */
};

struct replay_cache {
    struct list_slot list[LISTS_MOST];
    struct step_graph graph[GRAPHS_MOST];
    uint32_t graphs, most; /* most: at a time */
    uint64_t step;         /* now */
    bool no_graphs;        /* building one failed once, or the caller wants none */
};

/* Room in all lists for whatever steps of this lowering need. */
int cache_reserve(struct replay_cache *c, const struct lower *l, uint32_t max_rows, uint32_t max_outs,
                  struct err *e);
/* The list of a class, made if it is not there. */
struct launch_list *cache_list(struct replay_cache *c, const struct lower *l, const struct step_class *class,
                               struct err *e);
struct step_graph *cache_find(struct replay_cache *c, const struct graph_key *k);
/* A place for a new key. */
struct step_graph *cache_add(struct replay_cache *c, const struct gpu *g, const struct graph_key *k);
/* Drops all lists and graphs: lowering is to be done differently from now on. */
void cache_forget(struct replay_cache *c, const struct gpu *g);
void cache_free(struct replay_cache *c, const struct gpu *g);
