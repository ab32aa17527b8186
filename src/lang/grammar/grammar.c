/* The trees of a grammar, as the front ends write them. */
#include "lang/grammar/grammar.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a failed call returns, so that callers need not look. */
static struct gram gram_nothing = {.kind = GRAM_FAIL};

void grammar_init(struct grammar *g)
{
    memset(g, 0, sizeof *g);
    g->arena.limit = GRAMMAR_MEMORY;
}

void grammar_free(struct grammar *g)
{
    arena_free(&g->arena);
    mem_free(g->rules);
    g->rules = NULL;
    g->count = g->cap = 0;
}

void grammar_fail(struct grammar *g, enum err_code code, const char *fmt, ...)
{
    char text[sizeof g->err.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&g->err, code, "%s", text);
}

static void *gram_alloc(struct grammar *g, size_t count, size_t size)
{
    void *p = g->err.code ? NULL : arena_alloc(&g->arena, count ? count : 1, size);
    if (!p)
        grammar_fail(g, ERR_RESOURCE, "the constraint is too large: its grammar takes more than %d MiB",
                     GRAMMAR_MEMORY >> 20);
    return p;
}

static struct gram *gram_new(struct grammar *g, enum gram_kind kind)
{
    struct gram *n = gram_alloc(g, 1, sizeof *n);
    if (!n)
        return &gram_nothing;
    n->kind = kind;
    n->depth = 1;
    return n;
}

struct gram *gram_fail(struct grammar *g)
{
    (void)g;
    return &gram_nothing;
}

struct gram *gram_bytes(struct grammar *g, const char *s, size_t n)
{
    struct gram *node = gram_new(g, GRAM_BYTES);
    char *copy = node->kind == GRAM_FAIL ? NULL : gram_alloc(g, n, 1);
    if (!copy)
        return &gram_nothing;
    memcpy(copy, s, n);
    node->bytes = copy;
    node->n = (uint32_t)n;
    return node;
}

struct gram *gram_text(struct grammar *g, const char *s)
{
    return gram_bytes(g, s, strlen(s));
}

static int range_order(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void ranges_add(struct grammar *g, struct ranges *l, uint32_t lo, uint32_t hi)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        struct range *at = gram_alloc(g, cap, sizeof *at);
        if (!at)
            return;
        if (l->n)
            memcpy(at, l->at, l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = (struct range){lo, hi};
}

/* sorted and apart */
static void ranges_join(struct ranges *l)
{
    struct range *r = l->at;
    size_t out = 0;
    if (l->n)
        qsort(r, l->n, sizeof *r, range_order);
    for (size_t i = 0; i < l->n; i++) {
        if (r[i].lo > r[i].hi)
            continue;
        if (out && r[i].lo <= r[out - 1].hi + 1) {
            if (r[i].hi > r[out - 1].hi)
                r[out - 1].hi = r[i].hi;
        } else
            r[out++] = r[i];
    }
    l->n = out;
}

void ranges_invert(struct grammar *g, struct ranges *l)
{
    struct ranges out = {0};
    uint32_t from = 0;
    ranges_join(l);
    for (size_t i = 0; i < l->n; i++) {
        if (l->at[i].lo > from)
            ranges_add(g, &out, from, l->at[i].lo - 1);
        from = l->at[i].hi + 1;
    }
    if (from <= 0x10ffff)
        ranges_add(g, &out, from, 0x10ffff);
    *l = out;
}

struct gram *gram_class(struct grammar *g, struct ranges *r, bool quoted)
{
    struct gram *node = gram_new(g, GRAM_CLASS);
    if (node->kind == GRAM_FAIL)
        return node;
    ranges_join(r);
    node->n = (uint32_t)r->n;
    node->ranges = r->at;
    node->quoted = quoted;
    return node;
}

struct gram *gram_ascii(struct grammar *g, const char *pairs)
{
    struct ranges r = {0};
    for (; pairs[0] && pairs[1]; pairs += 2)
        ranges_add(g, &r, (uint8_t)pairs[0], (uint8_t)pairs[1]);
    return gram_class(g, &r, false);
}

struct gram *gram_list(struct grammar *g, enum gram_kind kind, struct gram *const *kids, size_t n)
{
    if (n == 1)
        return kids[0];
    struct gram *node = gram_new(g, kind);
    struct gram **copy = node->kind == GRAM_FAIL ? NULL : gram_alloc(g, n, sizeof *copy);
    if (!copy)
        return &gram_nothing;
    for (size_t i = 0; i < n; i++) {
        copy[i] = kids[i];
        if (kids[i]->depth >= node->depth)
            node->depth = kids[i]->depth + 1;
    }
    node->kids = copy;
    node->n = (uint32_t)n;
    if (node->depth > GRAMMAR_DEPTH)
        grammar_fail(g, ERR_DATA, "the constraint is nested more than %d deep", GRAMMAR_DEPTH);
    return node;
}

struct gram *gram_rep(struct grammar *g, struct gram *kid, uint32_t min, uint32_t max)
{
    if (min > max)
        return &gram_nothing;
    if (min == 1 && max == 1)
        return kid;
    struct gram *node = gram_new(g, GRAM_REP);
    struct gram **copy = node->kind == GRAM_FAIL ? NULL : gram_alloc(g, 1, sizeof *copy);
    if (!copy)
        return &gram_nothing;
    copy[0] = kid;
    node->kids = copy;
    node->n = 1;
    node->min = min;
    node->max = max;
    node->depth = kid->depth + 1;
    if (node->depth > GRAMMAR_DEPTH)
        grammar_fail(g, ERR_DATA, "the constraint is nested more than %d deep", GRAMMAR_DEPTH);
    return node;
}

struct gram *gram_call(struct grammar *g, uint32_t rule)
{
    struct gram *node = gram_new(g, GRAM_CALL);
    if (node->kind == GRAM_CALL)
        node->n = rule;
    return node;
}

struct gram *gram_dfa(struct grammar *g, const struct dfa *d)
{
    struct gram *node = d ? gram_new(g, GRAM_DFA) : &gram_nothing;
    if (node->kind == GRAM_DFA)
        node->dfa = d;
    return node;
}

struct gram *gram_any(struct grammar *g)
{
    static const uint16_t next[] = {0, 1};
    static const uint8_t accept[] = {0, 1};
    static const struct dfa any = {.n = 2, .classes = 1, .next = next, .accept = accept};
    return gram_dfa(g, &any);
}

struct gram *gram_until(struct grammar *g, const char *text)
{
    return gram_dfa(g, dfa_never(g, gram_seq(g, gram_any(g), gram_text(g, text))));
}

uint32_t grammar_behind(struct grammar *g, const char *text, uint32_t rule)
{
    enum { WHITE = 16 }; /* characters */
    uint32_t root = grammar_rule(g);
    grammar_define(g, root,
                   gram_seq(g, gram_until(g, text), gram_text(g, text),
                            gram_rep(g, gram_ascii(g, "\t\n\r\r  "), 0, WHITE), gram_call(g, rule)));
    return root;
}

uint32_t grammar_rule(struct grammar *g)
{
    if (g->count >= GRAMMAR_RULES) {
        grammar_fail(g, ERR_DATA, "the constraint has more than %d rules", GRAMMAR_RULES);
        return 0;
    }
    if (g->count == g->cap) {
        uint32_t cap = g->cap ? g->cap * 2 : 64;
        struct gram **rules = mem_realloc(g->rules, cap, sizeof *rules);
        if (!rules) {
            err_memory(&g->err, "the rules of a grammar", cap * sizeof *rules);
            return 0;
        }
        g->rules = rules;
        g->cap = cap;
    }
    g->rules[g->count] = NULL;
    return g->count++;
}

void grammar_define(struct grammar *g, uint32_t rule, struct gram *body)
{
    if (rule < g->count)
        g->rules[rule] = body;
}

void gram_push(struct grammar *g, struct gram_items *l, struct gram *one)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 8;
        struct gram **at = gram_alloc(g, cap, sizeof *at);
        if (!at)
            return;
        if (l->n)
            memcpy(at, l->at, l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = one;
}

int grammar_compile(struct grammar *g, uint32_t root, struct program *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    out->root = root;
    int rc = g->err.code ? -1 : program_emit(g, NULL, false, out);
    if (g->err.code)
        rc = err_set(e, g->err.code, "%s", g->err.text);
    if (!rc)
        rc = program_check(out, g->left_out, e);
    if (rc)
        program_free(out);
    return rc;
}

void program_free(struct program *p)
{
    mem_free(p->states);
    mem_free(p->edges);
    mem_free(p->rules);
    memset(p, 0, sizeof *p);
}
