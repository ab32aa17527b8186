/* Token masks: the tree of the vocabulary walked with the sets of positions.
 *
 * A wide set (the inside of a string) lets most of the vocabulary pass, and would be walked again for every
 * parent that it returns to. So what its frame alone decides is computed once, above an unknown parent: the part.
 * It has the tokens that stay inside the frame, and the edges of the tree at which the frame has just ended and
 * the next byte is none of its own: the few subtrees that are left for the parent. In a counted frame (a string
 * with a length) each token also has the rounds that it begins, so one part serves every count. */
#include "lang/grammar/constraint_run.h"

#include <string.h>

struct leave { /* an edge of the tree where the frame has ended */
    uint32_t node;
    uint32_t rounds; /* that were done by then */
};

struct mask_part {
    bool usable;
    uint32_t reach;      /* frames, as in struct set */
    uint32_t overlap[8]; /* bytes of the frame's own at places where it can also end */
    uint32_t mask;       /* all of its tokens */
    uint32_t ids;        /* counted: the tokens by the rounds that they begin */
    uint32_t upto;       /* counted: (most + 1) [i]: how many of ids begin at most i */
    uint32_t most;
    uint32_t leave; /* struct leave by their byte */
    uint32_t leave_at[257];
};

/* What a walk above an unknown parent finds, in the memory's idle half. */
struct find {
    struct mask_part *part;
    struct found {
        uint32_t byte, node, rounds;
    } * leave;
    size_t leaves, leave_cap;
    struct mask_need {
        uint32_t id, rounds;
    } * need; /* from the end of the half, downwards */
    size_t needs;
    bool counted;
};

enum { MASK_NARROW = 16, MASK_GROUPS = 8, MASK_KEEP = 2048, PART_ROUNDS = 1024 };
enum {
    WARM_SETS = 48,
    WARM_NODES = 6 << 20
}; /* what is computed beforehand: sets of a rule, nodes of the tree */

static uint32_t words(const struct constraint_bound *b)
{
    return ((uint32_t)b->v->count + 31) / 32;
}

static void mask_set(uint32_t *mask, int32_t id)
{
    mask[(uint32_t)id / 32] |= 1u << (uint32_t)id % 32;
}

static bool has_byte(const uint32_t *bytes, uint32_t c)
{
    return bytes[c / 32] >> c % 32 & 1;
}

/* Below `from`, the nodes [begin, end): siblings and all that is under them. */
static void mask_walk(struct constraint_bound *b, set_id from, uint32_t begin, uint32_t end)
{
    const struct constraint_vocab *v = b->v;
    uint32_t i = begin;
    if (begin < end)
        b->path[v->node[begin].depth - 1] = from;
    while (i < end) {
        const struct vocab_node *n = &v->node[i];
        set_id to = set_step(b, b->path[n->depth - 1], n->byte);
        b->visited++;
        if (to == SET_END) {
            i = n->skip;
            continue;
        }
        b->path[n->depth] = to;
        for (uint32_t t = n->tokens; t < n[1].tokens; t++)
            mask_set(b->mask, v->sorted[t]);
        i++;
    }
}

/* One node above an unknown parent; false when the part cannot be used. */
static bool part_visit(struct constraint_bound *b, struct find *f, uint32_t node, const struct set *s)
{
    const struct constraint_vocab *v = b->v;
    const struct vocab_node *n = &v->node[node];
    uint32_t rounds = 0;
    if (s->reach > f->part->reach)
        f->part->reach = s->reach;
    if (f->counted) {
        rounds = s->n ? s->item[0].count : 0;
        for (uint32_t i = 1; i < s->n; i++)
            if (s->item[i].count != rounds)
                return false;
    }
    uint32_t begun = f->counted && !(s->flags & FLAG_EXIT) ? rounds + 1 : rounds;
    if (f->counted && (begun >= PART_ROUNDS || !s->n))
        return false;
    for (uint32_t t = n->tokens; t < n[1].tokens; t++, f->needs++)
        *(f->need - f->needs - 1) = (struct mask_need){(uint32_t)v->sorted[t], begun};
    if (!(s->flags & FLAG_EXIT))
        return true;
    for (int i = 0; i < 8; i++)
        f->part->overlap[i] |= s->first[i];
    for (uint32_t kid = node + 1; kid < n->skip; kid = v->node[kid].skip)
        if (!has_byte(s->first, v->node[kid].byte)) {
            if (f->leaves == f->leave_cap)
                return false;
            f->leave[f->leaves++] = (struct found){v->node[kid].byte, kid, rounds};
        }
    return true;
}

static bool part_walk(struct constraint_bound *b, struct find *f, set_id from)
{
    const struct constraint_vocab *v = b->v;
    b->path[0] = from;
    for (uint32_t i = 1; i < v->nodes;) {
        const struct vocab_node *n = &v->node[i];
        set_id to = set_step(b, b->path[n->depth - 1], n->byte);
        b->visited++;
        if (to == SET_END) {
            i = n->skip;
            continue;
        }
        b->path[n->depth] = to;
        if (!part_visit(b, f, i, set_get(b, to)))
            return false;
        i++;
    }
    return !b->failed;
}

static void part_rounds(struct constraint_bound *b, const struct find *f)
{
    uint32_t *upto = bound_at(b, f->part->upto), *ids = bound_at(b, f->part->ids);
    memset(upto, 0, (PART_ROUNDS + 1) * sizeof *upto);
    for (size_t i = 0; i < f->needs; i++) {
        uint32_t r = (f->need - i - 1)->rounds;
        upto[r]++;
        f->part->most = r > f->part->most ? r : f->part->most;
    }
    for (uint32_t r = 1; r <= PART_ROUNDS; r++)
        upto[r] += upto[r - 1];
    for (size_t i = 0; i < f->needs; i++)
        ids[--upto[(f->need - i - 1)->rounds]] = (f->need - i - 1)->id;
    /* upto[r] is now where r begins: shift it to where r ends. */
    memmove(upto, upto + 1, PART_ROUNDS * sizeof *upto);
    upto[PART_ROUNDS] = (uint32_t)f->needs;
}

/* What was found, in the memory in use, each list sorted by counting. */
static void part_keep(struct constraint_bound *b, const struct find *f)
{
    struct mask_part *p = f->part;
    p->leave = bound_alloc(b, f->leaves * sizeof(struct leave) + 8);
    p->mask = bound_alloc(b, words(b) * sizeof(uint32_t));
    if (f->counted) {
        p->ids = bound_alloc(b, f->needs * sizeof(uint32_t) + 8);
        p->upto = bound_alloc(b, (PART_ROUNDS + 1) * sizeof(uint32_t));
    }
    if (b->failed)
        return;
    struct leave *leave = bound_at(b, p->leave);
    for (size_t i = 0; i < f->leaves; i++)
        p->leave_at[f->leave[i].byte + 1]++;
    for (int c = 0; c < 256; c++)
        p->leave_at[c + 1] += p->leave_at[c];
    for (size_t i = f->leaves; i-- > 0;) /* backwards, so that leave_at[c] ends at the first of c */
        leave[--p->leave_at[f->leave[i].byte + 1]] = (struct leave){f->leave[i].node, f->leave[i].rounds};
    for (int c = 0; c < 256; c++)
        p->leave_at[c] = p->leave_at[c + 1];
    p->leave_at[256] = (uint32_t)f->leaves;
    uint32_t *mask = bound_at(b, p->mask);
    memset(mask, 0, words(b) * sizeof *mask);
    for (size_t i = 0; i < f->needs; i++)
        mask_set(mask, (int32_t)(f->need - i - 1)->id);
    if (f->counted)
        part_rounds(b, f);
    p->usable = true;
}

/* The part of a set that stands above an unknown parent. */
static const struct mask_part *part_get(struct constraint_bound *b, set_id id)
{
    if (set_get(b, id)->part)
        return bound_at(b, set_get(b, id)->part);
    uint32_t at = bound_alloc(b, sizeof(struct mask_part));
    if (!at)
        return NULL;
    struct mask_part *p = bound_at(b, at);
    memset(p, 0, sizeof *p);
    set_get(b, id)->part = at;
    char *idle = b->half[b->current ^ 1];
    size_t needs = (size_t)b->v->count * sizeof(struct mask_need);
    if (needs >= b->size) {
        b->failed = true;
        return NULL;
    }
    struct find f = {.part = p,
                     .leave = (struct found *)idle,
                     .leave_cap = (b->size - needs) / sizeof(struct found),
                     .need = (struct mask_need *)(idle + b->size),
                     .counted = set_get(b, id)->item[0].parent == SET_COUNTLESS};
    if (part_walk(b, &f, id))
        part_keep(b, &f);
    return b->failed ? NULL : p;
}

/* The positions of a set with one parent, as they stand above an unknown one. */
static set_id part_above(struct constraint_bound *b, const struct set *s, set_id parent, set_id unknown,
                         uint32_t *count)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->item[i].parent != parent)
            continue;
        const struct prule *r = &b->p->rules[b->p->states[s->item[i].state].rule];
        if (unknown == SET_COUNTLESS && (!r->simple || (n && s->item[i].count != *count)))
            return SET_DEAD;
        *count = s->item[i].count;
        b->temp[n] = (struct item){s->item[i].state, unknown == SET_COUNTLESS ? 0 : *count, unknown};
        n++;
    }
    return set_intern(b, b->temp, n, 0);
}

static void mask_tokens(struct constraint_bound *b, const struct mask_part *p, uint32_t rounds)
{
    const uint32_t *mask = bound_at(b, p->mask);
    if (p->ids && rounds < p->most) {
        const uint32_t *ids = bound_at(b, p->ids), *upto = bound_at(b, p->upto);
        uint32_t in = upto[rounds], all = upto[PART_ROUNDS];
        if (in < all - in) {
            for (uint32_t i = 0; i < in; i++)
                mask_set(b->mask, (int32_t)ids[i]);
            return;
        }
        for (uint32_t w = 0; w < words(b); w++)
            b->scratch[w] = mask[w];
        for (uint32_t i = in; i < all; i++)
            b->scratch[ids[i] / 32] &= ~(1u << ids[i] % 32);
        mask = b->scratch;
    }
    for (uint32_t w = 0; w < words(b); w++)
        b->mask[w] |= mask[w];
}

/* The tokens of one parent's positions, from their part; false where it does not serve. */
static bool mask_part(struct constraint_bound *b, const struct set *s, set_id parent, set_id unknown)
{
    uint32_t count = 0;
    set_id above = part_above(b, s, parent, unknown, &count);
    const struct mask_part *p = above >= SET_FIRST ? part_get(b, above) : NULL;
    set_id after = p && p->usable ? set_closed(b, parent) : SET_DEAD;
    if (after < SET_FIRST)
        return false;
    const struct set *a = set_get(b, after);
    uint32_t below = parent < SET_FIRST ? 0 : set_get(b, parent)->depth;
    if (below + p->reach > PROGRAM_NESTING)
        return false;
    for (int i = 0; i < 8; i++)
        if (a->first[i] & p->overlap[i])
            return false;
    uint32_t least = 0, most = GRAMMAR_MOST;
    if (unknown == SET_COUNTLESS) {
        const struct prule *r = &b->p->rules[b->p->states[set_get(b, above)->item[0].state].rule];
        least = r->min > count ? r->min - count : 0;
        most = r->max == GRAMMAR_MOST ? r->max : r->max - count;
    }
    mask_tokens(b, p, most);
    const struct leave *leave = bound_at(b, p->leave);
    for (uint32_t c = 0; c < 256; c++)
        if (has_byte(a->first, c))
            for (uint32_t i = p->leave_at[c]; i < p->leave_at[c + 1]; i++)
                if (leave[i].rounds >= least && leave[i].rounds <= most)
                    mask_walk(b, after, leave[i].node, b->v->node[leave[i].node].skip);
    return !b->failed;
}

static bool mask_parts(struct constraint_bound *b, const struct set *s)
{
    set_id parents[MASK_GROUPS];
    uint32_t n = 0, bytes = 0;
    for (int i = 0; i < 8; i++)
        bytes += (uint32_t)__builtin_popcount(s->first[i]);
    if (bytes <= MASK_NARROW)
        return false;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = 0;
        while (k < n && parents[k] != s->item[i].parent)
            k++;
        if (k == MASK_GROUPS)
            return false;
        if (k == n)
            parents[n++] = s->item[i].parent;
    }
    for (uint32_t k = 0; k < n; k++)
        if (!mask_part(b, s, parents[k], SET_COUNTLESS) && !mask_part(b, s, parents[k], SET_BELOW))
            return false;
    return true;
}

void mask_make(struct constraint_bound *b, set_id from)
{
    size_t bytes = words(b) * sizeof(uint32_t);
    struct set *s = set_get(b, from);
    if (s->mask) {
        memcpy(b->mask, bound_at(b, s->mask), bytes);
        return;
    }
    memset(b->mask, 0, bytes);
    b->visited = 0;
    if (!mask_parts(b, s))
        mask_walk(b, from, 1, b->v->nodes);
    if (!b->failed && b->visited > MASK_KEEP) {
        s->mask = bound_alloc(b, bytes);
        if (s->mask)
            memcpy(bound_at(b, s->mask), b->mask, bytes);
    }
}

/* A set above an unknown parent as part_above would write it; 0 where it holds frames of other rules, which are
 * looked at with those. */
static set_id warm_set(struct constraint_bound *b, set_id id, set_id unknown)
{
    const struct set *s = set_get(b, id);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->item[i].parent != unknown || (unknown == SET_COUNTLESS && s->item[i].count))
            return SET_DEAD;
        b->temp[i] = s->item[i];
    }
    return s->n ? set_intern(b, b->temp, s->n, 0) : SET_DEAD;
}

/* The wide sets of one rule: from its start, byte by byte. */
static void warm_rule(struct constraint_bound *b, uint32_t rule)
{
    set_id unknown = b->p->rules[rule].simple ? SET_COUNTLESS : SET_BELOW, seen[WARM_SETS];
    set_id start = set_start(b, rule, unknown),
           at = start < SET_FIRST ? SET_DEAD : warm_set(b, start, unknown);
    uint32_t n = 0;
    if (at)
        seen[n++] = at;
    for (uint32_t i = 0; i < n && !b->failed; i++) {
        const struct set *s = set_get(b, seen[i]);
        uint32_t bytes = 0;
        for (int k = 0; k < 8; k++)
            bytes += (uint32_t)__builtin_popcount(s->first[k]);
        if (bytes > MASK_NARROW && b->visited < WARM_NODES && b->used < b->size / 4)
            part_get(b, seen[i]);
        for (uint32_t c = 0; c < b->p->classes && n < WARM_SETS && !b->failed; c++) {
            set_id to = set_step(b, seen[i], b->p->class_byte[c]);
            to = to < SET_FIRST ? SET_DEAD : warm_set(b, to, unknown);
            uint32_t k = 0;
            while (k < n && seen[k] != to)
                k++;
            if (to && k == n)
                seen[n++] = to;
        }
    }
}

void mask_warm(struct constraint_bound *b)
{
    b->visited = 0;
    b->left = WORK_TEXT;
    for (uint32_t r = 0; r < b->p->rule_count && b->visited < WARM_NODES && b->used < b->size / 4; r++) {
        b->failed = false;
        warm_rule(b, r);
    }
    b->failed = false;
}
