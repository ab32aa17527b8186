/* Regular languages as deterministic automata: the subset construction, intersection and difference. Used where
 * two constraints hold at once (a pattern and a length, keys that are not among the declared ones). All within
 * a budget of states and of work: some patterns have no small automaton. */
#include "lang/grammar/grammar.h"

#include <string.h>

enum { DFA_STATES = 16384, DFA_WORK = 20 << 20, DFA_FLAT = 5000 }; /* work: of all automata of a grammar */

struct dfa_build {
    struct grammar *g;
    uint16_t (*next)[256];
    uint8_t *accept;
    uint32_t n, cap;
    uint32_t *slot; /* hash of keys -> state; a power of two */
    /* The key of state i is keys[key[i] .. key[i + 1]): the NFA's states, or the pair. */
    uint32_t *keys, *key;
    size_t keys_len, keys_cap;
};

enum { DFA_SLOTS = 1 << 15 };

static void dfa_close(struct dfa_build *b)
{
    mem_free(b->slot);
    mem_free(b->key);
    mem_free(b->keys);
    mem_free(b->next);
    mem_free(b->accept);
}

static bool dfa_open(struct dfa_build *b, struct grammar *g)
{
    memset(b, 0, sizeof *b);
    b->g = g;
    g->work += DFA_FLAT;
    b->slot = mem_zalloc(DFA_SLOTS, sizeof *b->slot);
    b->key = mem_zalloc(DFA_STATES + 2, sizeof *b->key);
    if (!b->slot || !b->key)
        err_memory(&g->err, "an automaton", DFA_SLOTS * sizeof *b->slot);
    return !g->err.code;
}

static bool dfa_grow(struct dfa_build *b, size_t n)
{
    if (b->n == DFA_STATES) {
        grammar_fail(b->g, ERR_DATA, "a pattern (or what holds beside it) needs more than %d states",
                     DFA_STATES);
        return false;
    }
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 64;
        void *next = mem_realloc(b->next, cap, sizeof *b->next);
        b->next = next ? next : b->next;
        void *accept = mem_realloc(b->accept, cap, 1);
        b->accept = accept ? accept : b->accept;
        if (!next || !accept)
            return err_memory(&b->g->err, "an automaton", cap * sizeof *b->next) == 0;
        b->cap = cap;
    }
    if (b->keys_len + n > b->keys_cap) {
        size_t cap = (b->keys_len + n) * 2;
        uint32_t *keys = cap > (4 << 20) ? NULL : mem_realloc(b->keys, cap, sizeof *keys);
        if (!keys) {
            grammar_fail(b->g, ERR_DATA, "a pattern (or what holds beside it) is too large");
            return false;
        }
        b->keys = keys;
        b->keys_cap = cap;
    }
    return true;
}

/* The state with this key, new or old; 0 on failure. */
static uint32_t dfa_state(struct dfa_build *b, const uint32_t *key, size_t n, bool accept)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ key[i]) * 16777619u, h ^= h >> 15;
    uint32_t at = h & (DFA_SLOTS - 1);
    for (; b->slot[at]; at = (at + 1) & (DFA_SLOTS - 1)) {
        uint32_t s = b->slot[at];
        if (b->key[s + 1] - b->key[s] == n && !memcmp(b->keys + b->key[s], key, n * sizeof *key))
            return s;
    }
    if (!dfa_grow(b, n))
        return 0;
    uint32_t s = b->n++;
    if (n)
        memcpy(b->keys + b->keys_len, key, n * sizeof *key);
    b->key[s] = (uint32_t)b->keys_len;
    b->keys_len += n;
    b->key[s + 1] = (uint32_t)b->keys_len;
    b->accept[s] = accept;
    memset(b->next[s], 0, sizeof *b->next);
    if (s) /* the dead state is not found by its key */
        b->slot[at] = s;
    return s;
}

static bool dfa_alike(const struct dfa_build *b, uint32_t x, uint32_t y)
{
    for (uint32_t s = 1; s < b->n; s++)
        if (b->next[s][x] != b->next[s][y])
            return false;
    return true;
}

/* The automaton with its bytes in classes, in the grammar's arena. */
static const struct dfa *dfa_finish(struct dfa_build *b)
{
    struct grammar *g = b->g;
    struct dfa *d = g->err.code ? NULL : arena_alloc(&g->arena, 1, sizeof *d);
    uint8_t first[256]; /* of each class */
    for (uint32_t c = 0; d && c < 256; c++) {
        uint32_t k = 0;
        while (k < d->classes && !dfa_alike(b, first[k], c))
            k++;
        if (k == d->classes)
            first[d->classes++] = (uint8_t)c;
        d->class_of[c] = (uint8_t)k;
    }
    uint16_t *next = d ? arena_alloc(&g->arena, (size_t)b->n * d->classes, sizeof *next) : NULL;
    uint8_t *accept = next ? arena_alloc(&g->arena, b->n, 1) : NULL;
    if (accept) {
        for (uint32_t s = 0; s < b->n; s++)
            for (uint32_t k = 0; k < d->classes; k++)
                next[s * d->classes + k] = b->next[s][first[k]];
        memcpy(accept, b->accept, b->n);
        d->n = b->n;
        d->next = next;
        d->accept = accept;
    } else
        grammar_fail(g, ERR_RESOURCE, "the constraint is too large: its automata take more than %d MiB",
                     GRAMMAR_MEMORY >> 20);
    dfa_close(b);
    return accept ? d : NULL;
}

struct nfa_walk {
    const struct program *p;
    uint32_t *mark; /* (states): the round in which it was reached */
    uint32_t round;
    uint32_t *stack, *set;
    uint32_t n; /* of set */
    size_t visited;
    bool accept;
};

static void nfa_reach(struct nfa_walk *w, uint32_t from)
{
    uint32_t n = 0;
    w->stack[n++] = from;
    while (n) {
        uint32_t s = w->stack[--n];
        if (w->mark[s] == w->round)
            continue;
        w->mark[s] = w->round;
        const struct pstate *st = &w->p->states[s];
        if (st->op == OP_SPLIT) {
            w->stack[n++] = st->a;
            w->stack[n++] = st->b;
        } else if (st->op == OP_END)
            w->accept = true;
        else if (st->b)
            w->set[w->n++] = s;
        w->visited++;
    }
}

static uint32_t nfa_state(struct dfa_build *b, struct nfa_walk *w)
{
    if (!w->n && !w->accept)
        return 0;
    /* Insertion sort: sets are small and nearly sorted. */
    for (uint32_t i = 1; i < w->n; i++) {
        uint32_t v = w->set[i], j = i;
        for (; j && w->set[j - 1] > v; j--, b->g->work++)
            w->set[j] = w->set[j - 1];
        w->set[j] = v;
    }
    w->set[w->n] = w->accept ? 1 : 0; /* part of the key: a set may or may not hold the end */
    return dfa_state(b, w->set, w->n + 1, w->accept);
}

static void dfa_check_work(struct grammar *g)
{
    if (g->work > DFA_WORK)
        grammar_fail(g, ERR_DATA, "the patterns (or what holds beside them) take too much work");
}

static void dfa_subsets(struct dfa_build *b, struct nfa_walk *w)
{
    const struct program *p = w->p;
    dfa_state(b, NULL, 0, false);
    w->round = 1;
    nfa_reach(w, p->rules[0].start);
    if (!nfa_state(b, w) && b->n == 1 && !b->g->err.code) {
        uint32_t none = 0;
        dfa_state(b, &none, 1, false); /* a language with nothing in it still has its start */
    }
    for (uint32_t s = 1; s < b->n && !b->g->err.code; s++)
        for (uint32_t c = 0; c < p->classes && !b->g->err.code; c++) {
            uint8_t byte = p->class_byte[c];
            w->round++;
            w->n = 0;
            w->accept = false;
            uint32_t most = b->key[s + 1] - 1;
            for (uint32_t k = b->key[s]; k < most; k++) {
                const struct pstate *st = &p->states[b->keys[k]];
                for (uint32_t e = st->a; e < st->a + st->b; e++)
                    if (byte >= p->edges[e].lo && byte <= p->edges[e].hi)
                        nfa_reach(w, p->edges[e].to);
                b->g->work += st->b + 1;
            }
            b->g->work += 4 * w->n + w->visited;
            w->visited = 0;
            dfa_check_work(b->g);
            uint16_t to = (uint16_t)nfa_state(b, w);
            uint32_t end = c + 1 < p->classes ? p->class_byte[c + 1] : 256;
            for (uint32_t x = byte; x < end; x++)
                b->next[s][x] = to;
        }
}

const struct dfa *dfa_make(struct grammar *g, const struct gram *node)
{
    struct program p = {0};
    struct dfa_build b;
    if (g->err.code || program_emit(g, node, true, &p)) {
        program_free(&p);
        return NULL;
    }
    program_classes(&p);
    size_t n = p.state_count;
    struct nfa_walk w = {.p = &p,
                         .mark = mem_zalloc(n, sizeof *w.mark),
                         .stack = mem_alloc(2 * n + 2, sizeof *w.stack),
                         .set = mem_alloc(n + 2, sizeof *w.set)};
    if (!w.mark || !w.stack || !w.set)
        err_memory(&g->err, "an automaton", n * sizeof *w.mark);
    const struct dfa *d = NULL;
    if (!g->err.code) {
        if (dfa_open(&b, g))
            dfa_subsets(&b, &w);
        d = dfa_finish(&b);
    }
    mem_free(w.mark);
    mem_free(w.stack);
    mem_free(w.set);
    program_free(&p);
    return d;
}

const struct dfa *dfa_never(struct grammar *g, const struct gram *node)
{
    const struct dfa *d = dfa_make(g, node);
    size_t size = d ? (size_t)d->n * d->classes : 0;
    struct dfa *out = d ? arena_alloc(&g->arena, 1, sizeof *out) : NULL;
    uint16_t *next = out ? arena_alloc(&g->arena, size, sizeof *next) : NULL;
    uint8_t *accept = next ? arena_alloc(&g->arena, d->n, 1) : NULL;
    if (!accept) {
        grammar_fail(g, ERR_RESOURCE, "the constraint is too large: its automata take more than %d MiB",
                     GRAMMAR_MEMORY >> 20);
        return NULL;
    }
    for (size_t i = 0; i < size; i++)
        next[i] = d->accept[d->next[i]] ? 0 : d->next[i];
    for (uint32_t i = 1; i < d->n; i++)
        accept[i] = !d->accept[i];
    *out = *d;
    out->next = next;
    out->accept = accept;
    return out;
}

/* The pair's state, or 0 where nothing can be accepted any more. */
static uint32_t dfa_pair(struct dfa_build *b, const struct dfa *x, const struct dfa *y, uint32_t i,
                         uint32_t j, enum dfa_op op)
{
    if (!i || (op == DFA_AND && !j))
        return 0;
    uint32_t key[2] = {i, j};
    bool in = y->accept[j];
    return dfa_state(b, key, 2, x->accept[i] && (op == DFA_AND ? in : !in));
}

const struct dfa *dfa_combine(struct grammar *g, const struct dfa *x, const struct dfa *y, enum dfa_op op)
{
    struct dfa_build b;
    if (!x || !y)
        return NULL;
    if (dfa_open(&b, g)) {
        dfa_state(&b, NULL, 0, false);
        dfa_pair(&b, x, y, 1, 1, op);
    }
    for (uint32_t s = 1; s < b.n && !g->err.code; s++) {
        uint32_t i = b.keys[b.key[s]], j = b.keys[b.key[s] + 1];
        g->work += 1024; /* 256 look-ups in the hash */
        dfa_check_work(g);
        for (uint32_t c = 0; c < 256 && !g->err.code; c++) {
            uint32_t to = dfa_pair(&b, x, y, dfa_next(x, i, c), dfa_next(y, j, c), op);
            b.next[s][c] = (uint16_t)to;
        }
    }
    return dfa_finish(&b);
}

const struct dfa *dfa_counted(struct grammar *g, const struct dfa *d, const struct dfa *one, uint32_t min,
                              uint32_t max)
{
    struct dfa_build b;
    if (!d || !one)
        return NULL;
    uint32_t key[3] = {1, 1, 0}; /* the state of d, the state within a character, the characters */
    if (dfa_open(&b, g)) {
        dfa_state(&b, NULL, 0, false);
        dfa_state(&b, key, 3, d->accept[1] && !min);
    }
    for (uint32_t s = 1; s < b.n && !g->err.code; s++) {
        g->work += 1024;
        dfa_check_work(g);
        for (uint32_t c = 0; c < 256 && !g->err.code; c++) {
            memcpy(key, b.keys + b.key[s], sizeof key);
            key[0] = dfa_next(d, key[0], c);
            key[1] = dfa_next(one, key[1], c);
            if (one->accept[key[1]]) {
                key[1] = 1;
                key[2] = max == GRAMMAR_MOST && key[2] >= min ? min : key[2] + 1;
            }
            bool in = key[0] && d->accept[key[0]] && key[1] == 1 && key[2] >= min;
            uint32_t to = key[0] && key[1] && key[2] <= max ? dfa_state(&b, key, 3, in) : 0;
            b.next[s][c] = (uint16_t)to;
        }
    }
    return dfa_finish(&b);
}

bool dfa_empty(const struct dfa *d)
{
    for (uint32_t i = 1; i < d->n; i++)
        if (d->accept[i])
            return false;
    return true;
}

bool dfa_accepts(const struct dfa *d, const char *s, size_t n)
{
    uint32_t at = 1;
    for (size_t i = 0; i < n && at; i++)
        at = dfa_next(d, at, (uint8_t)s[i]);
    return at && d->accept[at];
}
