#include "run/rule.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

struct rule {
    atomic_int owners;
    struct constraint *constraint;
    struct constraint_bound *bound;
    char *lead, *trigger;
    bool within, first;
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
    *out = r;
    return 0;
}

int rule_set_start(struct rule *r, const struct rule_start *s, struct err *e)
{
    if (s->trigger && strlen(s->trigger) > RULE_TRIGGER)
        return err_set(e, ERR_USAGE, "a trigger has at most %d bytes", RULE_TRIGGER);
    r->lead = s->lead ? mem_strdup(s->lead) : NULL;
    r->trigger = s->trigger ? mem_strdup(s->trigger) : NULL;
    r->within = s->within;
    r->first = s->first;
    bool whole = (!s->lead || r->lead) && (!s->trigger || r->trigger);
    return whole ? 0 : err_memory(e, "a constraint", RULE_TRIGGER);
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
    mem_free(r->lead);
    mem_free(r->trigger);
    mem_free(r);
}

int rule_walk_open(struct rule_walk *w, struct rule *r, uint32_t vocab, struct err *e)
{
    *w = (struct rule_walk){.rule = rule_share(r)};
    if (!r)
        return 0;
    w->mask = mem_zalloc((vocab + 31) / 32, sizeof *w->mask);
    if (!w->mask)
        return err_memory(e, "a constraint's mask", vocab / 8);
    w->asleep = r->trigger != NULL;
    if (!(w->state = constraint_state_open(r->bound, e)))
        return -1;
    return r->lead ? constraint_accept_bytes(w->state, r->lead, strlen(r->lead), e) : 0;
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
    *mask = rule_walk_binds(w) ? w->mask : NULL;
    if (!*mask)
        return 0;
    struct err why = {0};
    if (!constraint_mask(w->state, w->mask, &why))
        return 0;
    if (constraint_accepts_end(w->state)) /* whole, and the vocabulary has no token that says so */
        return 1;
    *e = why;
    return -1;
}

int rule_walk_accept(struct rule_walk *w, int32_t id, struct err *e)
{
    return rule_walk_binds(w) ? constraint_accept(w->state, id, e) : 0;
}

/* Is the end of what has come the trigger, where it counts? */
static bool rule_walk_triggered(const struct rule_walk *w)
{
    const char *trigger = w->rule->trigger;
    size_t n = strlen(trigger);
    if (w->seen < n || (w->rule->first && w->solid + n != w->seen))
        return false;
    for (size_t i = 0; i < n; i++)
        if (w->last[(w->seen - n + i) % RULE_TRIGGER] != trigger[i])
            return false;
    return true;
}

void rule_walk_text(struct rule_walk *w, const char *text, size_t n)
{
    const struct rule *r = w->rule;
    for (size_t i = 0; i < n && w->asleep; i++) {
        bool white = text[i] == ' ' || text[i] == '\n';
        w->solid += white && w->solid == w->seen;
        w->last[w->seen++ % RULE_TRIGGER] = text[i];
        if (!rule_walk_triggered(w))
            continue;
        /* what came with the trigger in one token is part of it, unless the language does not know it: then the
         * text goes its own way */
        struct err e = {0};
        w->asleep = (r->within && constraint_accept_bytes(w->state, r->trigger, strlen(r->trigger), &e)) ||
                    constraint_accept_bytes(w->state, text + i + 1, n - i - 1, &e);
        if (w->asleep) {
            constraint_state_close(w->state);
            w->state = NULL;
            w->asleep = false;
        }
        return;
    }
}
