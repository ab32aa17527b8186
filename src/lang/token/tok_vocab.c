/* Strings to ids: the hash map and the byte trie of tok.h. */
#include "lang/token/tok.h"

#include <string.h>

int tok_map_open(struct tok_map *m, size_t count, struct err *e)
{
    size_t size = 64;
    while (size < count * 2)
        size *= 2;
    m->slots = mem_alloc(size, sizeof *m->slots);
    if (!m->slots)
        return err_memory(e, "the vocabulary's index", size * sizeof *m->slots);
    memset(m->slots, 0xff, size * sizeof *m->slots);
    m->mask = (uint32_t)(size - 1);
    return 0;
}

void tok_map_close(struct tok_map *m)
{
    mem_free(m->slots);
    *m = (struct tok_map){0};
}

/* The slot of a string: where it is, or where it would go. */
static struct tok_slot *find_slot(const struct tok_map *m, const struct tok_str *strs, const char *s,
                                  size_t n)
{
    uint64_t h = tok_hash(s, n);
    uint32_t hash = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & m->mask;; i = (i + 1) & m->mask) {
        struct tok_slot *slot = &m->slots[i];
        if (slot->id < 0) {
            return slot;
        }
        if (slot->hash == hash && strs[slot->id].n == n && !memcmp(strs[slot->id].s, s, n))
            return slot;
    }
}

void tok_map_prefetch(const struct tok_map *m, const struct tok_str *strs, const struct tok_str *s, int step)
{
    if (!s->n)
        return;
    const struct tok_slot *slot = &m->slots[(uint32_t)tok_hash(s->s, s->n) & m->mask];
    if (!step)
        __builtin_prefetch(slot);
    else if (slot->id >= 0)
        __builtin_prefetch(step == 1 ? (const void *)&strs[slot->id] : strs[slot->id].s);
}

int32_t tok_map_add(struct tok_map *m, const struct tok_str *strs, int32_t id)
{
    struct tok_slot *slot = find_slot(m, strs, strs[id].s, strs[id].n);
    if (slot->id < 0) {
        slot->hash = (uint32_t)(tok_hash(strs[id].s, strs[id].n) >> 32);
        slot->id = id;
    }
    return slot->id;
}

int32_t tok_map_find(const struct tok_map *m, const struct tok_str *strs, const char *s, size_t n)
{
    return m->slots ? find_slot(m, strs, s, n)->id : -1;
}

int32_t tok_model_find(const struct tokenizer *t, const char *s, size_t n)
{
    int32_t id = tokenizer_find(t, s, n);
    return id >= 0 && !t->outside[id] ? id : -1;
}

int tok_trie_open(struct tok_trie *t, size_t expect, struct err *e)
{
    size_t size = 256;
    while (size < expect * 2)
        size *= 2;
    *t = (struct tok_trie){.mask = (uint32_t)(size - 1)};
    t->keys = mem_zalloc(size, sizeof *t->keys);
    t->to = mem_alloc(size, sizeof *t->to);
    t->cap = 256;
    t->value = mem_alloc(t->cap, sizeof *t->value);
    if (!t->keys || !t->to || !t->value)
        return err_memory(e, "a vocabulary's trie", size * 12);
    t->nodes = 1;
    t->value[0] = -1;
    return 0;
}

void tok_trie_close(struct tok_trie *t)
{
    mem_free(t->keys);
    mem_free(t->to);
    mem_free(t->value);
    *t = (struct tok_trie){0};
}

static void put_edge(struct tok_trie *t, uint64_t key, uint32_t to)
{
    uint32_t i = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & t->mask;
    while (t->keys[i])
        i = (i + 1) & t->mask;
    t->keys[i] = key;
    t->to[i] = to;
}

static int grow(struct tok_trie *t, struct err *e)
{
    if (t->nodes == t->cap) {
        int32_t *value = t->cap > 1u << 28 ? NULL : mem_realloc(t->value, t->cap * 2, sizeof *value);
        if (!value)
            return err_memory(e, "a vocabulary's trie", (unsigned long long)t->cap * 8);
        t->value = value;
        t->cap *= 2;
    }
    if (t->edges * 2 <= t->mask)
        return 0;
    struct tok_trie big = *t;
    big.mask = t->mask * 2 + 1;
    big.keys = mem_zalloc((size_t)big.mask + 1, sizeof *big.keys);
    big.to = mem_alloc((size_t)big.mask + 1, sizeof *big.to);
    if (!big.keys || !big.to) {
        mem_free(big.keys);
        mem_free(big.to);
        return err_memory(e, "a vocabulary's trie", (unsigned long long)big.mask * 12);
    }
    for (uint32_t i = 0; i <= t->mask; i++)
        if (t->keys[i])
            put_edge(&big, t->keys[i], t->to[i]);
    mem_free(t->keys);
    mem_free(t->to);
    *t = big;
    return 0;
}

int tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t value, struct err *e)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        uint32_t next = tok_trie_step(t, node, c);
        if (!next) {
            if (grow(t, e))
                return -1;
            next = t->nodes++;
            t->value[next] = -1;
            if (node)
                put_edge(t, ((uint64_t)node << 8 | c) + 1, next);
            else
                t->first[c] = next;
            t->edges++;
        }
        node = next;
    }
    if (t->value[node] < 0)
        t->value[node] = value;
    return 0;
}
