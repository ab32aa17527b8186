/* Sets of positions: made unique, closed under everything that needs no byte, stepped by bytes, and moved when
 * the memory is full. */
#include "lang/grammar/constraint_run.h"

#include <stdlib.h>
#include <string.h>

uint32_t bound_alloc(struct constraint_bound *b, size_t bytes)
{
    bytes = (bytes + 7) & ~(size_t)7;
    if (b->failed || bytes > b->size - b->used) {
        b->failed = true;
        return 0;
    }
    uint32_t id = (uint32_t)(b->used / 8);
    b->used += bytes;
    return id;
}

/* Frames from this parent down. */
static uint32_t set_depth(const struct constraint_bound *b, set_id parent)
{
    return parent < SET_FIRST ? 0 : set_get(b, parent)->depth;
}

static uint32_t set_hash(const struct item *items, uint32_t n, uint8_t flags)
{
    uint32_t h = 0x9e3779b9u ^ flags;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ items[i].state) * 0x85ebca6bu;
        h = (h ^ items[i].count ^ h >> 15) * 0xc2b2ae35u;
        h = (h ^ items[i].parent ^ h >> 13) * 0x27d4eb2fu;
    }
    return h ^ h >> 16;
}

static int item_order(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

static void set_fill(struct constraint_bound *b, struct set *s, const struct item *items)
{
    uint32_t depth = 0, reach = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->item[i] = items[i];
        const struct pstate *st = &b->p->states[items[i].state];
        uint32_t d = set_depth(b, items[i].parent) + 1;
        uint32_t below = items[i].parent < SET_FIRST ? 0 : set_get(b, items[i].parent)->reach;
        depth = d > depth ? d : depth;
        reach = d + st->height > reach ? d + st->height : reach;
        reach = below > reach ? below : reach;
        if (st->op != OP_BYTES)
            continue;
        for (uint32_t e = st->a; e < st->a + st->b; e++) {
            if (b->p->states[b->p->edges[e].to].height > PROGRAM_NESTING)
                continue; /* a dead end */
            for (uint32_t c = b->p->edges[e].lo; c <= b->p->edges[e].hi; c++)
                s->first[c / 32] |= 1u << c % 32;
        }
    }
    s->depth = (uint16_t)depth;
    s->reach = (uint16_t)reach;
}

set_id set_intern(struct constraint_bound *b, struct item *items, uint32_t n, uint8_t flags)
{
    if (n > 1)
        qsort(items, n, sizeof *items, item_order);
    uint32_t h = set_hash(items, n, flags), at = h & (b->slot_count - 1);
    for (; b->slots[at]; at = (at + 1) & (b->slot_count - 1)) {
        const struct set *s = set_get(b, b->slots[at]);
        if (s->hash == h && s->n == n && s->flags == flags &&
            (!n || !memcmp(s->item, items, n * sizeof *items)))
            return b->slots[at];
    }
    if (b->set_count > b->slot_count / 2)
        b->failed = true;
    uint32_t id = bound_alloc(b, sizeof(struct set) + n * sizeof *items);
    if (!id)
        return SET_DEAD;
    struct set *s = set_get(b, id);
    memset(s, 0, sizeof *s);
    s->hash = h;
    s->n = n;
    s->flags = flags;
    set_fill(b, s, items);
    b->slots[at] = id;
    b->set_count++;
    return id;
}

/* The bottom as a set, so that it can be joined with others. */
static set_id set_bottom(struct constraint_bound *b, set_id id)
{
    if (id >= SET_FIRST)
        return id;
    return set_intern(b, NULL, 0, FLAG_RAW | (id == SET_END ? FLAG_END : FLAG_EXIT));
}

/* Parents joined. Frames are at most PROGRAM_NESTING deep, and so is this. */
static set_id set_union(struct constraint_bound *b, set_id x, set_id y)
{
    if (x == y)
        return x;
    x = set_bottom(b, x);
    y = set_bottom(b, y);
    if (b->failed)
        return SET_DEAD;
    if (x > y) {
        set_id t = x;
        x = y;
        y = t;
    }
    uint32_t slot = (x * 0x9e3779b9u ^ y * 0x85ebca6bu) >> 22 & (UNION_SLOTS - 1);
    if (b->unions[slot].a == x && b->unions[slot].b == y)
        return b->unions[slot].both;
    const struct set *s = set_get(b, x), *t = set_get(b, y);
    b->left -= s->n + t->n;
    uint32_t n = s->n + t->n, i = 0, j = 0, out = 0, room = bound_alloc(b, n * sizeof(struct item));
    if (b->failed)
        return SET_DEAD;
    struct item *items = bound_at(b, room);
    while (i < s->n || j < t->n) {
        int order = i == s->n ? 1 : j == t->n ? -1 : item_order(&s->item[i], &t->item[j]);
        if (order) {
            items[out++] = order < 0 ? s->item[i++] : t->item[j++];
            continue;
        }
        items[out] = s->item[i];
        items[out++].parent = set_union(b, s->item[i].parent, t->item[j].parent);
        i++, j++;
    }
    set_id both = b->failed ? SET_DEAD : set_intern(b, items, out, s->flags | t->flags);
    b->unions[slot].a = x;
    b->unions[slot].b = y;
    b->unions[slot].both = both;
    return both;
}

/* Adds a position to the closure being made; one that is there already gets this parent too, and is looked at
 * again. */
static void work_add(struct constraint_bound *b, uint32_t state, uint32_t count, set_id parent, bool fresh)
{
    const struct pstate *st = &b->p->states[state];
    if (--b->left < 0)
        b->failed = true;
    if (b->failed || set_depth(b, parent) + 1 + (uint64_t)st->height > PROGRAM_NESTING)
        return;
    uint32_t h = (state * 0x9e3779b9u ^ count * 0x85ebca6bu ^ fresh) * 0x27d4eb2fu;
    uint32_t at = (h ^ h >> 15) & (WORK_SLOTS - 1);
    for (; b->work_slot[at]; at = (at + 1) & (WORK_SLOTS - 1)) {
        struct constraint_work *w = &b->work[b->work_slot[at] - 1];
        if (w->item.state != state || w->item.count != count || w->fresh != fresh)
            continue;
        set_id both = set_union(b, w->item.parent, parent);
        if (both != w->item.parent) {
            w->item.parent = both;
            w->done = false;
            if (w < b->work + b->work_next)
                b->work_next = (uint32_t)(w - b->work);
        }
        return;
    }
    if (b->work_count == WORK_MOST) {
        b->failed = true;
        return;
    }
    b->work[b->work_count] = (struct constraint_work){{state, count, parent}, fresh, false, at};
    b->work_slot[at] = ++b->work_count;
}

static void work_return(struct constraint_bound *b, set_id parent)
{
    if (parent < SET_FIRST) {
        b->flags |= parent == SET_END ? FLAG_END : FLAG_EXIT;
        return;
    }
    const struct set *s = set_get(b, parent);
    b->flags |= s->flags & (FLAG_END | FLAG_EXIT);
    for (uint32_t i = 0; i < s->n; i++)
        work_add(b, s->item[i].state, s->item[i].count, s->item[i].parent, false);
}

/* A round of a counted rule is done. */
static void work_count_round(struct constraint_bound *b, const struct prule *r, struct item it)
{
    bool open = it.parent == SET_COUNTLESS;
    uint32_t count = it.count + 1;
    if (!open && r->max == GRAMMAR_MOST && count > r->min)
        count = r->min;
    if (open || r->max == GRAMMAR_MOST || count < r->max)
        work_add(b, r->start, count, it.parent, true);
    if (open || count >= r->min)
        work_return(b, it.parent);
}

static void work_look(struct constraint_bound *b, struct item it, bool fresh)
{
    const struct program *p = b->p;
    const struct pstate *st = &p->states[it.state];
    switch (st->op) {
    case OP_BYTES:
        break;
    case OP_SPLIT:
        work_add(b, st->a, it.count, it.parent, fresh);
        work_add(b, st->b, it.count, it.parent, fresh);
        break;
    case OP_CALL: {
        set_id parent = it.parent; /* a call at the end of a rule needs no frame to return to */
        if (p->rules[st->a].nullable)
            work_add(b, st->b, it.count, it.parent, fresh);
        if (p->states[st->b].op != OP_END)
            parent = set_intern(b, &(struct item){st->b, it.count, it.parent}, 1, FLAG_RAW);
        if (!b->failed)
            work_add(b, p->rules[st->a].start, 0, parent, true);
        break;
    }
    case OP_END:
        if (!fresh)
            work_return(b, it.parent);
        break;
    case OP_COUNT:
        if (!fresh)
            work_count_round(b, &p->rules[st->a], it);
        break;
    }
}

/* Everything that the work reaches without a byte; the set of its positions that read one. */
static set_id work_close(struct constraint_bound *b)
{
    while (b->work_next < b->work_count && !b->failed) {
        struct constraint_work *w = &b->work[b->work_next++];
        if (w->done)
            continue;
        w->done = true;
        work_look(b, w->item, w->fresh);
    }
    b->left -= 2 * (int64_t)b->work_count;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->work_count; i++) {
        const struct constraint_work *w = &b->work[i];
        b->work_slot[w->slot] = 0;
        if (b->p->states[w->item.state].op == OP_BYTES)
            b->temp[n++] = w->item;
    }
    if (b->failed)
        return SET_DEAD;
    /* The same position may have come with a fresh frame and with an old one. */
    qsort(b->temp, n, sizeof *b->temp, item_order);
    uint32_t out = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (out && !item_order(&b->temp[out - 1], &b->temp[i]))
            b->temp[out - 1].parent = set_union(b, b->temp[out - 1].parent, b->temp[i].parent);
        else
            b->temp[out++] = b->temp[i];
    }
    if (b->failed)
        return SET_DEAD;
    return out || b->flags ? set_intern(b, b->temp, out, b->flags) : SET_END;
}

static void work_begin(struct constraint_bound *b)
{
    b->work_count = b->work_next = 0;
    b->flags = 0;
}

set_id set_closed(struct constraint_bound *b, set_id raw)
{
    if (raw < SET_FIRST)
        raw = set_bottom(b, raw);
    if (b->failed)
        return SET_DEAD;
    set_id done = set_get(b, raw)->closed;
    if (done)
        return done;
    work_begin(b);
    work_return(b, raw);
    done = work_close(b);
    set_get(b, raw)->closed = done;
    return done;
}

set_id set_step_slow(struct constraint_bound *b, set_id from, uint32_t class)
{
    const struct program *p = b->p;
    struct set *s = set_get(b, from);
    uint8_t byte = p->class_byte[class];
    if (!s->next) {
        s->next = bound_alloc(b, p->classes * sizeof(uint32_t));
        if (!s->next)
            return SET_END;
        memset(bound_at(b, s->next), 0, p->classes * sizeof(uint32_t));
    }
    uint32_t *to = (uint32_t *)bound_at(b, s->next) + class;
    work_begin(b);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct pstate *st = &p->states[s->item[i].state];
        for (uint32_t e = st->a; e < st->a + st->b; e++)
            if (byte >= p->edges[e].lo && byte <= p->edges[e].hi)
                work_add(b, p->edges[e].to, s->item[i].count, s->item[i].parent, false);
    }
    *to = work_close(b);
    return *to ? *to : SET_END;
}

set_id set_start(struct constraint_bound *b, uint32_t rule, set_id parent)
{
    work_begin(b);
    work_add(b, b->p->rules[rule].start, 0, parent, true);
    return work_close(b);
}

static void sets_begin(struct constraint_bound *b)
{
    b->used = SET_FIRST * 8;
    b->set_count = 0;
    memset(b->slots, 0, b->slot_count * sizeof *b->slots);
    memset(b->unions, 0, UNION_SLOTS * sizeof *b->unions);
}

int sets_open(struct constraint_bound *b)
{
    const struct prule *root = &b->p->rules[b->p->root];
    b->left = WORK_TEXT;
    sets_begin(b);
    work_begin(b);
    work_add(b, root->start, 0, SET_END, true);
    if (root->nullable)
        b->flags |= FLAG_END;
    b->start = work_close(b);
    return b->failed || b->start < SET_FIRST ? -1 : 0;
}

/* A set of the old half in the new one, with all of its parents. */
static set_id sets_move(struct constraint_bound *b, const char *old, set_id id)
{
    if (id < SET_FIRST)
        return id;
    struct set *s = (struct set *)(old + (size_t)id * 8);
    if (s->n == UINT32_MAX) /* moved already: its first field says where to */
        return s->hash;
    for (uint32_t i = 0; i < s->n; i++)
        s->item[i].parent = sets_move(b, old, s->item[i].parent);
    set_id to = set_intern(b, s->item, s->n, s->flags);
    s->hash = to;
    s->n = UINT32_MAX;
    return to;
}

void sets_collect(struct constraint_bound *b)
{
    if (b->used < b->size / 2 && b->set_count < b->slot_count / 4)
        return;
    const char *old = b->half[b->current];
    b->current ^= 1;
    b->turned = true;
    sets_begin(b);
    b->start = sets_move(b, old, b->start);
    for (struct constraint_state *s = b->states; s; s = s->next)
        for (uint32_t i = 0; i < s->n; i++) {
            set_id *at = &s->ring[(s->at + CONSTRAINT_BACK + 1 - i) % (CONSTRAINT_BACK + 1)];
            *at = sets_move(b, old, *at);
        }
}
