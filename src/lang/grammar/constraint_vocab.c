/* The tokens of a vocabulary as a tree of bytes, in preorder. */
#define _GNU_SOURCE
#include "lang/grammar/constraint_run.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB_TOKEN = 4096 }; /* bytes; longer tokens are never allowed */

void constraint_vocab_close(struct constraint_vocab *v)
{
    if (!v)
        return;
    mem_free(v->node);
    mem_free(v->sorted);
    mem_free(v->end);
    mem_free(v->bytes);
    mem_free(v->at);
    mem_free(v->kind);
    mem_free(v->all);
    mem_free(v);
}

static int vocab_copy(struct constraint_vocab *v, const struct constraint_source *s, struct err *e)
{
    size_t n, total = 0;
    v->at = mem_alloc((size_t)s->count + 1, sizeof *v->at);
    v->kind = mem_alloc((size_t)s->count, 1);
    v->all = mem_zalloc(((size_t)s->count + 31) / 32, sizeof *v->all);
    if (!v->at || !v->kind || !v->all)
        return err_memory(e, "a vocabulary", (unsigned long long)s->count * sizeof *v->at);
    for (int32_t id = 0; id < s->count; id++) {
        enum constraint_kind kind = s->kind(s->of, id);
        const char *bytes = s->bytes(s->of, id, &n);
        if (kind == CONSTRAINT_TEXT && (!bytes || !n || n > VOCAB_TOKEN))
            kind = CONSTRAINT_NEVER;
        v->kind[id] = (uint8_t)kind;
        v->at[id] = total;
        total += kind == CONSTRAINT_TEXT ? n : 0;
        v->ends += kind == CONSTRAINT_END;
        v->all[id / 32] |= (uint32_t)(kind != CONSTRAINT_NEVER) << id % 32;
    }
    v->at[s->count] = total;
    v->bytes = mem_alloc(total, 1);
    v->end = mem_alloc(v->ends, sizeof *v->end);
    v->sorted = mem_alloc((size_t)s->count, sizeof *v->sorted);
    if (!v->bytes || !v->end || !v->sorted)
        return err_memory(e, "a vocabulary", total);
    v->ends = 0;
    for (int32_t id = 0; id < s->count; id++) {
        if (v->kind[id] == CONSTRAINT_TEXT)
            memcpy(v->bytes + v->at[id], s->bytes(s->of, id, &n), v->at[id + 1] - v->at[id]);
        else if (v->kind[id] == CONSTRAINT_END)
            v->end[v->ends++] = id;
    }
    return 0;
}

static int vocab_order(const void *a, const void *b, void *of)
{
    const struct constraint_vocab *v = of;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = v->at[x + 1] - v->at[x], m = v->at[y + 1] - v->at[y];
    int order = memcmp(v->bytes + v->at[x], v->bytes + v->at[y], n < m ? n : m);
    return order ? order : n < m ? -1 : n > m ? 1 : x < y ? -1 : x > y;
}

/* Bytes that token i of the sorted ones shares with the one before it. */
static size_t vocab_shared(const struct constraint_vocab *v, uint32_t i)
{
    int32_t x = v->sorted[i - 1], y = v->sorted[i];
    size_t n = v->at[x + 1] - v->at[x], m = v->at[y + 1] - v->at[y], k = 0;
    while (k < n && k < m && v->bytes[v->at[x] + k] == v->bytes[v->at[y] + k])
        k++;
    return k;
}

static int vocab_tree(struct constraint_vocab *v, uint32_t tokens, struct err *e)
{
    size_t nodes = 1;
    for (uint32_t i = 0; i < tokens; i++) {
        size_t n = v->at[v->sorted[i] + 1] - v->at[v->sorted[i]];
        nodes += n - (i ? vocab_shared(v, i) : 0);
        v->depth = n > v->depth ? (uint32_t)n : v->depth;
    }
    uint32_t *open = mem_alloc((size_t)v->depth + 1, sizeof *open); /* the nodes on the way to the last one */
    v->node = nodes < UINT32_MAX ? mem_alloc(nodes + 1, sizeof *v->node) : NULL;
    if (!v->node || !open) {
        mem_free(open);
        return err_memory(e, "a vocabulary's tree", nodes * sizeof *v->node);
    }
    size_t depth = 0;
    v->nodes = 1;
    v->node[0] = (struct vocab_node){0};
    open[0] = 0;
    for (uint32_t i = 0; i < tokens; i++) {
        int32_t id = v->sorted[i];
        size_t n = v->at[id + 1] - v->at[id], shared = i ? vocab_shared(v, i) : 0;
        for (; depth > shared; depth--)
            v->node[open[depth]].skip = v->nodes;
        while (depth < n) {
            uint8_t byte = (uint8_t)v->bytes[v->at[id] + depth++];
            open[depth] = v->nodes;
            v->node[v->nodes++] = (struct vocab_node){byte, (uint16_t)depth, 0, i};
        }
    }
    for (; depth > 0; depth--)
        v->node[open[depth]].skip = v->nodes;
    v->node[0].skip = v->nodes;
    v->node[v->nodes] = (struct vocab_node){.tokens = tokens, .skip = v->nodes};
    mem_free(open);
    return 0;
}

struct constraint_vocab *constraint_vocab_open(const struct constraint_source *s, struct err *e)
{
    struct constraint_vocab *v = mem_zalloc(1, sizeof *v);
    if (!v) {
        err_memory(e, "a vocabulary", sizeof *v);
        return NULL;
    }
    v->count = s->count;
    uint32_t tokens = 0;
    int rc = vocab_copy(v, s, e);
    for (int32_t id = 0; !rc && id < s->count; id++)
        if (v->kind[id] == CONSTRAINT_TEXT)
            v->sorted[tokens++] = id;
    if (!rc) {
        qsort_r(v->sorted, tokens, sizeof *v->sorted, vocab_order, v);
        rc = vocab_tree(v, tokens, e);
    }
    if (rc) {
        constraint_vocab_close(v);
        return NULL;
    }
    return v;
}

int32_t vocab_longest(const struct constraint_vocab *v, const char *text, size_t n)
{
    uint32_t at = 0;
    int32_t best = -1;
    for (size_t i = 0; i < n; i++) {
        uint32_t kid = at + 1, end = v->node[at].skip;
        while (kid < end && v->node[kid].byte != (uint8_t)text[i])
            kid = v->node[kid].skip;
        if (kid >= end)
            break;
        at = kid;
        if (v->node[at].tokens < v->node[at + 1].tokens)
            best = v->sorted[v->node[at].tokens];
    }
    return best;
}
