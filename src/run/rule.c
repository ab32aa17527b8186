#include "run/rule.h"

#include "base/mem.h"

#include <stdatomic.h>

struct rule {
    atomic_int owners;
    struct constraint *constraint;
    struct constraint_bound *bound;
};

int rule_open(struct rule **out, struct constraint *c, const struct constraint_vocab *v, struct err *e)
{
    struct rule *r = mem_zalloc(1, sizeof *r);
    *out = NULL;
    if (!r) {
        constraint_free(c);
        return err_memory(e, "a constraint", sizeof *r);
    }
    r->owners = 1;
    r->constraint = c;
    if (!(r->bound = constraint_bind(c, v, 0, e))) {
        rule_drop(r);
        return -1;
    }
    constraint_warm(r->bound); /* here, and not in a step that others wait for */
    *out = r;
    return 0;
}

struct rule *rule_share(struct rule *r)
{
    if (r)
        atomic_fetch_add(&r->owners, 1);
    return r;
}

void rule_drop(struct rule *r)
{
    if (!r || atomic_fetch_sub(&r->owners, 1) != 1)
        return;
    if (r->bound)
        constraint_unbind(r->bound);
    constraint_free(r->constraint);
    mem_free(r);
}

int rule_walk_open(struct rule_walk *w, struct rule *r, uint32_t vocab, struct err *e)
{
    *w = (struct rule_walk){.rule = rule_share(r)};
    if (!r)
        return 0;
    w->words = (vocab + 31) / 32;
    w->mask = mem_zalloc(w->words, sizeof *w->mask);
    if (!w->mask)
        return err_memory(e, "a constraint's mask", vocab / 8);
    return (w->state = constraint_state_open(r->bound, e)) ? 0 : -1;
}

void rule_walk_close(struct rule_walk *w)
{
    if (w->state)
        constraint_state_close(w->state);
    mem_free(w->mask);
    rule_drop(w->rule);
    *w = (struct rule_walk){0};
}

int rule_walk_next(struct rule_walk *w, const uint32_t **mask, struct err *e)
{
    *mask = w->mask;
    if (!w->state)
        return 0;
    struct err why = {0};
    if (!constraint_mask(w->state, w->mask, &why))
        return 0;
    if (constraint_accepts_end(w->state)) /* whole, and the vocabulary has no token that says so */
        return 1;
    *e = why;
    return -1;
}

int32_t rule_walk_only(const struct rule_walk *w, const uint32_t *mask)
{
    int32_t only = -1;
    for (uint32_t i = 0; mask && i < w->words; i++) {
        uint32_t bits = mask[i];
        if (bits && (only >= 0 || (bits & (bits - 1))))
            return -1;
        only = bits ? (int32_t)(32 * i) + __builtin_ctz(bits) : only;
    }
    return only;
}

int rule_walk_accept(struct rule_walk *w, int32_t id, struct err *e)
{
    return w->state ? constraint_accept(w->state, id, e) : 0;
}

size_t rule_walk_forced(struct rule_walk *w, int32_t *out, size_t cap)
{
    return w->state && cap ? constraint_forced_tokens(w->state, out, cap) : 0;
}
