#include "run/rule.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

struct language {
    atomic_int owners;
    struct constraint *constraint;
    struct constraint_bound *bound;
};

struct rule {
    atomic_int owners;
    struct language *language;
    char *lead; /* NULL = none */
    bool yielding;
};

static void language_drop(struct language *l)
{
    if (!l || atomic_fetch_sub(&l->owners, 1) != 1)
        return;
    if (l->bound)
        constraint_unbind(l->bound);
    constraint_free(l->constraint);
    mem_free(l);
}

/* Takes over a share of the language, also when it fails. */
static struct rule *rule_in(struct language *l)
{
    struct rule *r = mem_zalloc(1, sizeof *r);
    if (!r) {
        language_drop(l);
        return NULL;
    }
    r->owners = 1;
    r->language = l;
    return r;
}

int rule_open(struct rule **out, struct constraint *c, const struct constraint_vocab *v, struct err *e)
{
    struct language *l = mem_zalloc(1, sizeof *l);
    *out = NULL;
    if (!l) {
        constraint_free(c);
        return err_memory(e, "a constraint", sizeof *l);
    }
    l->owners = 1;
    l->constraint = c;
    if (!(l->bound = constraint_bind(c, v, 0, e))) {
        language_drop(l);
        return -1;
    }
    constraint_warm(l->bound); /* here, and not in a step that others wait for */
    *out = rule_in(l);
    return *out ? 0 : err_memory(e, "a constraint", sizeof **out);
}

struct rule *rule_again(struct rule *r)
{
    atomic_fetch_add(&r->language->owners, 1);
    return rule_in(r->language);
}

size_t rule_bytes(const struct rule *r)
{
    return constraint_bytes(r->language->bound);
}

int rule_set_lead(struct rule *r, const char *lead, struct err *e)
{
    r->lead = mem_strdup(lead);
    return r->lead ? 0 : err_memory(e, "a constraint", strlen(lead));
}

void rule_set_yielding(struct rule *r)
{
    r->yielding = true;
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
    language_drop(r->language);
    mem_free(r->lead);
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
    if (!(w->state = constraint_state_open(r->language->bound, e)))
        return -1;
    struct err why = {0};
    if (r->lead && constraint_accept_bytes(w->state, r->lead, strlen(r->lead), &why))
        return err_set(e, why.code, "what the answer goes on from does not fit what it has to be: %s",
                       why.text);
    return 0;
}

void rule_walk_close(struct rule_walk *w)
{
    constraint_state_close(w->state);
    mem_free(w->mask);
    rule_drop(w->rule);
    *w = (struct rule_walk){0};
}

int rule_walk_next(struct rule_walk *w, const uint32_t **mask, struct err *e)
{
    *mask = w->state ? w->mask : NULL;
    if (!w->state)
        return 0;
    struct err why = {0};
    if (!constraint_mask(w->state, w->mask, &why)) {
        *mask = constraint_allows_all(w->state) ? NULL : w->mask;
        return 0;
    }
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

bool rule_walk_allows_all(struct rule_walk *w)
{
    const uint32_t *mask;
    struct err e = {0};
    return rule_walk_next(w, &mask, &e) == 0 && !mask;
}

bool rule_walk_is_open(const struct rule_walk *w)
{
    return !w->state || constraint_allows_all(w->state);
}

bool rule_walk_yields(struct rule_walk *w)
{
    return w->state && w->rule->yielding && constraint_is_over(w->state);
}
