#include "device/cuda/replay.h"

#include "device/cuda/timing.h"

#include <string.h>

static int run_one(struct replay *r, struct launch *l, const struct launch_step *s, struct err *e)
{
    struct gpu *g = r->g;
    if (l->args == ARGS_BLAS)
        return l->a.blas.m ? blas_run(r->blas, &l->a.blas, e) : 0;
    if (l->args == ARGS_RESULTS) {
        const uint64_t bytes = launch_rows(&l->rows, &s->meta) * l->a.copy.row * sizeof *l->a.copy.to;
        return gpu_check(g, g->cu->to_host(l->a.copy.to, (cu_ptr)l->a.copy.from, bytes, g->stream),
                         "fetching results", e);
    }
    if (l->once && r->kept[l->once])
        return 0;
    if (gpu_launch(g, l->kernel, l->grid, &l->a, e))
        return -1;
    if (l->once && !l->more)
        r->kept[l->once] = true;
    return 0;
}

/* Whether most products of a list are those of one row with small weights. */
static bool has_small(const struct launch_list *list)
{
    uint32_t small = 0, tiles = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        small += list->all[i].kernel == K_GEMM_ONE;
        tiles += list->all[i].kernel == K_GEMM_ROW || list->all[i].kernel == K_GEMM_ROW_ANY;
    }
    return small > tiles;
}

int replay_list(struct replay *r, struct launch_list *list, const struct launch_step *s, uint32_t from,
                struct err *e)
{
    /* the products of many rows need all of it, and an SM divides its memory again only when it is idle; those of small
     * weights are faster so, those of tiles slower */
    r->g->shared_percent = r->g->profile.wide && (s->meta.rows > 32 || has_small(list)) ? 100 : 0;
    for (uint32_t i = 0; i < list->count; i++) {
        struct launch *l = &list->all[i];
        launch_bind(l, s, &r->limits);
        if (r->g->timing)
            r->g->timing->now = l->op - from;
        if (run_one(r, l, s, e))
            return -1;
    }
    return 0;
}

int replay_plan(struct replay *r, const struct lower *l, const struct step_class *c,
                const struct launch_step *s, struct launch_list *list, struct err *e)
{
    return lower_plan(l, c, list, e) || replay_list(r, list, s, c->from, e) ? -1 : 0;
}

/* ---- lists ---- */

int cache_reserve(struct replay_cache *c, const struct lower *l, uint32_t max_rows, uint32_t max_outs,
                  struct err *e)
{
    const uint32_t rows[] = {1, 2, GEMM_ROWS_MOST, GEMM_ROWS_MOST + 1, PACK_ROWS_MOST, max_rows};
    struct launch_list *list = &c->list[0].list;
    uint32_t most = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint32_t m = rows[i] < max_rows ? rows[i] : max_rows;
        struct step_class class = lower_class(l, m, m < max_outs ? m : max_outs);
        class.seqs = 1;
        class.keys = 1 << 20;
        class.tiles = UINT32_MAX;
        class.decode = class.picks = 1;
        class.chunks = m < CHUNK_LEAST ? 0 : 2;
        class.lora = l->plan->lora != NULL;
        if (lower_plan(l, &class, list, e))
            return -1;
        most = list->count > most ? list->count : most;
    }
    for (uint32_t i = 0; i < LISTS_MOST; i++)
        if (launch_reserve(&c->list[i].list, most + most / 4 + 16, e))
            return -1;
    return 0;
}

struct launch_list *cache_list(struct replay_cache *c, const struct lower *l, const struct step_class *class,
                               struct err *e)
{
    struct list_slot *s = &c->list[0];
    for (uint32_t i = 0; i < LISTS_MOST; i++) {
        struct list_slot *t = &c->list[i];
        if (t->used && !memcmp(&t->class, class, sizeof *class)) {
            t->used = c->step;
            return &t->list;
        }
        s = t->used < s->used ? t : s;
    }
    s->used = 0;
    if (lower_plan(l, class, &s->list, e))
        return NULL;
    s->class = *class;
    s->used = c->step;
    return &s->list;
}

/* ---- graphs ---- */

struct step_graph *cache_find(struct replay_cache *c, const struct graph_key *k)
{
    for (uint32_t i = 0; i < c->graphs; i++)
        if (!memcmp(&c->graph[i].key, k, sizeof *k))
            return &c->graph[i];
    return NULL;
}

static void forget_graph(const struct gpu *g, struct step_graph *s)
{
    if (s->exec)
        g->cu->graph_exec_destroy(s->exec);
    s->exec = NULL;
}

struct step_graph *cache_add(struct replay_cache *c, const struct gpu *g, const struct graph_key *k)
{
    struct step_graph *s = &c->graph[c->graphs < c->most ? c->graphs++ : 0];
    for (uint32_t i = 0; i < c->graphs && c->graphs == c->most; i++)
        if (c->graph[i].used < s->used)
            s = &c->graph[i];
    forget_graph(g, s);
    s->key = *k;
    return s;
}

void cache_forget(struct replay_cache *c, const struct gpu *g)
{
    for (uint32_t i = 0; i < c->graphs; i++)
        forget_graph(g, &c->graph[i]);
    c->graphs = 0;
    for (uint32_t i = 0; i < LISTS_MOST; i++)
        c->list[i].used = 0;
}

void cache_free(struct replay_cache *c, const struct gpu *g)
{
    cache_forget(c, g);
    for (uint32_t i = 0; i < LISTS_MOST; i++)
        launch_free(&c->list[i].list);
}
