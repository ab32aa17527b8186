/* What the compiler must know of a program: which rules match the empty text, how many frames each state needs
 * at least to finish, that no rule calls itself before it reads a byte, and which bytes are alike. */
#include "lang/grammar/grammar.h"

#include <string.h>

#define HEIGHT_NONE UINT32_MAX

/* The reverse edges of each state: a span of `from`. A rule's callers depend on its start. */
struct back {
    uint32_t *first; /* (states + 1) */
    uint32_t *from;
};

/* Where a state can go without a frame of its own; a call also looks at the start of the rule. */
static uint32_t check_targets(const struct program *p, uint32_t s, uint32_t k)
{
    const struct pstate *st = &p->states[s];
    switch (st->op) {
    case OP_BYTES:
        return k < st->b ? p->edges[st->a + k].to : HEIGHT_NONE;
    case OP_SPLIT:
        return k == 0 ? st->a : k == 1 ? st->b : HEIGHT_NONE;
    case OP_CALL:
        return k == 0 ? p->rules[st->a].start : k == 1 ? st->b : HEIGHT_NONE;
    case OP_END:
    case OP_COUNT:
        break;
    }
    return HEIGHT_NONE;
}

static int check_back(const struct program *p, struct back *b, struct err *e)
{
    size_t links = 0;
    uint32_t to;
    b->first = mem_zalloc((size_t)p->state_count + 2, sizeof *b->first);
    if (!b->first)
        return err_memory(e, "a grammar's states", p->state_count);
    for (uint32_t s = 0; s < p->state_count; s++)
        for (uint32_t k = 0; (to = check_targets(p, s, k)) != HEIGHT_NONE; k++, links++)
            b->first[to + 2]++;
    b->from = mem_alloc(links, sizeof *b->from);
    if (!b->from)
        return err_memory(e, "a grammar's states", links);
    for (uint32_t s = 0; s < p->state_count; s++)
        b->first[s + 1] += b->first[s];
    for (uint32_t s = 0; s < p->state_count; s++)
        for (uint32_t k = 0; (to = check_targets(p, s, k)) != HEIGHT_NONE; k++)
            b->from[b->first[to + 1]++] = s;
    return 0;
}

/* Does this state reach the end of its rule without reading, as far as is known now? */
static bool check_empty(const struct program *p, const bool *empty, uint32_t s)
{
    const struct pstate *st = &p->states[s];
    switch (st->op) {
    case OP_BYTES:
        return false;
    case OP_SPLIT:
        return empty[st->a] || empty[st->b];
    case OP_CALL: {
        const struct prule *r = &p->rules[st->a];
        return (empty[r->start] || (r->counted && !r->min)) && empty[st->b];
    }
    case OP_END:
    case OP_COUNT:
        return true;
    }
    return false;
}

static void check_nullable(struct program *p, const struct back *b, bool *empty, uint32_t *queue)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->state_count; s++)
        if (check_empty(p, empty, s)) {
            empty[s] = true;
            queue[n++] = s;
        }
    while (n) {
        uint32_t s = queue[--n];
        for (uint32_t i = b->first[s]; i < b->first[s + 1]; i++) {
            uint32_t f = b->from[i];
            if (!empty[f] && check_empty(p, empty, f)) {
                empty[f] = true;
                queue[n++] = f;
            }
        }
    }
    for (uint32_t r = 0; r < p->rule_count; r++) {
        struct prule *rule = &p->rules[r];
        rule->nullable = empty[rule->start] || (rule->counted && !rule->min);
        if (empty[rule->start])
            rule->min = 0; /* only rounds that read something are counted */
    }
}

static uint32_t check_height(const struct program *p, uint32_t s)
{
    const struct pstate *st = &p->states[s];
    uint32_t best = HEIGHT_NONE, h;
    switch (st->op) {
    case OP_BYTES:
        for (uint32_t k = 0; k < st->b; k++)
            if ((h = p->states[p->edges[st->a + k].to].height) < best)
                best = h;
        return best;
    case OP_SPLIT:
        best = p->states[st->a].height;
        h = p->states[st->b].height;
        return h < best ? h : best;
    case OP_CALL:
        best = p->states[st->b].height;
        h = p->states[p->rules[st->a].start].height;
        if (p->rules[st->a].nullable || best == HEIGHT_NONE || h == HEIGHT_NONE)
            return p->rules[st->a].nullable ? best : HEIGHT_NONE;
        h += p->states[st->b].op != OP_END; /* a call at the end of a rule takes its caller's place */
        return h > best ? h : best;
    case OP_END:
    case OP_COUNT:
        return 0;
    }
    return best;
}

/* Heights are settled in rising order: level h + 1 needs only levels up to h. */
static void check_heights(struct program *p, const struct back *b, uint32_t *queue, uint32_t *later,
                          bool *late)
{
    uint32_t n = 0, waiting = 0;
    memset(late, 0, p->state_count * sizeof *late);
    for (uint32_t s = 0; s < p->state_count; s++)
        p->states[s].height = HEIGHT_NONE;
    for (uint32_t s = 0; s < p->state_count; s++)
        if (p->states[s].op == OP_END || p->states[s].op == OP_COUNT) {
            p->states[s].height = 0;
            queue[n++] = s;
        }
    for (uint32_t level = 0; n && level <= PROGRAM_NESTING; level++) {
        while (n) {
            uint32_t s = queue[--n];
            for (uint32_t i = b->first[s]; i < b->first[s + 1]; i++) {
                struct pstate *f = &p->states[b->from[i]];
                if (f->height != HEIGHT_NONE)
                    continue;
                uint32_t h = check_height(p, b->from[i]);
                if (h == level) {
                    f->height = h;
                    queue[n++] = b->from[i];
                } else if (h == level + 1 && !late[b->from[i]]) {
                    late[b->from[i]] = true;
                    later[waiting++] = b->from[i];
                }
            }
        }
        for (uint32_t i = 0; i < waiting; i++)
            if (p->states[later[i]].height == HEIGHT_NONE) {
                p->states[later[i]].height = level + 1;
                queue[n++] = later[i];
            }
        waiting = 0;
    }
}

/* Calls that a rule can make before it has read a byte: a walk from its start; `seen` marks with the rule. */
static uint32_t check_first_calls(const struct program *p, uint32_t rule, uint32_t *seen, uint32_t *stack,
                                  uint32_t *calls)
{
    uint32_t n = 0, found = 0;
    stack[n++] = p->rules[rule].start;
    while (n) {
        uint32_t s = stack[--n];
        const struct pstate *st = &p->states[s];
        if (seen[s] == rule + 1)
            continue;
        seen[s] = rule + 1;
        if (st->op == OP_SPLIT) {
            stack[n++] = st->b;
            stack[n++] = st->a;
        } else if (st->op == OP_CALL) {
            calls[found++] = st->a;
            if (p->rules[st->a].nullable)
                stack[n++] = st->b;
        }
    }
    return found;
}

/* A rule is removed once every rule that it calls first is removed; rules that are left call themselves. */
static int check_left(const struct program *p, uint32_t *seen, uint32_t *stack, uint32_t *calls,
                      struct err *e)
{
    uint32_t *caller = NULL, *next = NULL, *open = mem_zalloc(p->rule_count, sizeof *open);
    uint32_t *head = mem_alloc(p->rule_count, sizeof *head), *ready = mem_alloc(p->rule_count, sizeof *ready);
    uint32_t links = 0, cap = 0, n = 0, away = 0;
    int rc = !open || !head || !ready ? err_memory(e, "a grammar's rules", p->rule_count) : 0;
    for (uint32_t r = 0; !rc && r < p->rule_count; r++)
        head[r] = HEIGHT_NONE;
    for (uint32_t r = 0; !rc && r < p->rule_count; r++) {
        uint32_t found = check_first_calls(p, r, seen, stack, calls);
        open[r] = found;
        if (!found)
            ready[n++] = r;
        if (links + found > cap) {
            cap = (links + found) * 2;
            uint32_t *c = mem_realloc(caller, cap, sizeof *c);
            caller = c ? c : caller;
            uint32_t *x = mem_realloc(next, cap, sizeof *x);
            next = x ? x : next;
            rc = !c || !x ? err_memory(e, "a grammar's rules", cap) : 0;
        }
        for (uint32_t i = 0; !rc && i < found; i++, links++) {
            caller[links] = r;
            next[links] = head[calls[i]];
            head[calls[i]] = links;
        }
    }
    while (!rc && n) {
        away++;
        for (uint32_t l = head[ready[--n]]; l != HEIGHT_NONE; l = next[l])
            if (--open[caller[l]] == 0)
                ready[n++] = caller[l];
    }
    if (!rc && away < p->rule_count)
        rc = err_set(e, ERR_DATA,
                     "the constraint is left-recursive: a rule (or a $ref) comes back to itself before it "
                     "reads anything");
    mem_free(caller);
    mem_free(next);
    mem_free(open);
    mem_free(head);
    mem_free(ready);
    return rc;
}

void program_classes(struct program *p)
{
    bool cut[257] = {false};
    for (uint32_t i = 0; i < p->edge_count; i++)
        cut[p->edges[i].lo] = cut[p->edges[i].hi + 1] = true;
    p->classes = 0;
    for (int c = 0; c < 256; c++) {
        if (c == 0 || cut[c])
            p->class_byte[p->classes++] = (uint8_t)c;
        p->class_of[c] = (uint8_t)(p->classes - 1);
    }
}

/* The error for an empty language: nothing satisfies the source, or nothing of the part that is enforced. */
static int check_nothing(const char *left_out, struct err *e)
{
    if (!left_out)
        return err_set(e, ERR_DATA, "the constraint matches no finite text (nothing satisfies it)");
    return err_set(
        e, ERR_DATA,
        "the enforceable part of the constraint allows no text: \"%s\" is not enforced in full there",
        left_out);
}

int program_check(struct program *p, const char *left_out, struct err *e)
{
    struct back b = {0};
    size_t n = p->state_count;
    bool *empty = mem_zalloc(n, sizeof *empty);
    uint32_t *queue = mem_alloc(2 * n + 2, sizeof *queue), *seen = mem_zalloc(n, sizeof *seen);
    uint32_t *calls = mem_alloc(n, sizeof *calls);
    int rc = !empty || !queue || !seen || !calls ? err_memory(e, "a grammar's states", n) : 0;
    if (!rc)
        rc = check_back(p, &b, e);
    if (!rc) {
        check_nullable(p, &b, empty, queue);
        rc = check_left(p, seen, queue, calls, e);
    }
    if (!rc)
        check_heights(p, &b, queue, calls, empty);
    if (!rc && p->states[p->rules[p->root].start].height >= PROGRAM_NESTING)
        rc = check_nothing(left_out, e);
    for (uint32_t r = 0; r < p->rule_count; r++) {
        struct prule *rule = &p->rules[r];
        rule->simple = rule->counted;
    }
    for (uint32_t s = 0; s < p->state_count; s++)
        if (p->states[s].op == OP_CALL)
            p->rules[p->states[s].rule].simple = false;
    program_classes(p);
    mem_free(b.first);
    mem_free(b.from);
    mem_free(empty);
    mem_free(queue);
    mem_free(seen);
    mem_free(calls);
    return rc;
}
