#include "run/constraint_ref.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

struct language {
    atomic_int owners;
    struct constraint *constraint;
    struct constraint_bound *bound;
};

struct constraint_ref {
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

/* Takes over a reference to the language, also when it fails. */
static struct constraint_ref *constraint_ref_in(struct language *l)
{
    struct constraint_ref *r = mem_zalloc(1, sizeof *r);
    if (!r) {
        language_drop(l);
        return NULL;
    }
    r->owners = 1;
    r->language = l;
    return r;
}

int constraint_ref_open(struct constraint_ref **out, struct constraint *c, const struct constraint_vocab *v,
                        struct err *e)
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
    constraint_warm(l->bound); /* here, so that no step has to wait for it */
    *out = constraint_ref_in(l);
    return *out ? 0 : err_memory(e, "a constraint", sizeof **out);
}

struct constraint_ref *constraint_ref_again(struct constraint_ref *r)
{
    atomic_fetch_add(&r->language->owners, 1);
    return constraint_ref_in(r->language);
}

size_t constraint_ref_bytes(const struct constraint_ref *r)
{
    return constraint_bytes(r->language->bound);
}

int constraint_ref_set_lead(struct constraint_ref *r, const char *lead, struct err *e)
{
    r->lead = mem_strdup(lead);
    return r->lead ? 0 : err_memory(e, "a constraint", strlen(lead));
}

void constraint_ref_set_yielding(struct constraint_ref *r)
{
    r->yielding = true;
}

static struct constraint_ref *constraint_ref_share(struct constraint_ref *r)
{
    if (r)
        atomic_fetch_add(&r->owners, 1);
    return r;
}

void constraint_ref_drop(struct constraint_ref *r)
{
    if (!r || atomic_fetch_sub(&r->owners, 1) != 1)
        return;
    language_drop(r->language);
    mem_free(r->lead);
    mem_free(r);
}

int constraint_walk_open(struct constraint_walk *w, struct constraint_ref *r, uint32_t vocab, struct err *e)
{
    *w = (struct constraint_walk){.constraint = constraint_ref_share(r)};
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
        return err_set(e, why.code, "the text that the output continues does not satisfy the constraint: %s",
                       why.text);
    return 0;
}

void constraint_walk_close(struct constraint_walk *w)
{
    constraint_state_close(w->state);
    mem_free(w->mask);
    constraint_ref_drop(w->constraint);
    *w = (struct constraint_walk){0};
}

int constraint_walk_next(struct constraint_walk *w, const uint32_t **mask, struct err *e)
{
    *mask = w->state ? w->mask : NULL;
    if (!w->state)
        return 0;
    struct err why = {0};
    if (!constraint_mask(w->state, w->mask, &why)) {
        *mask = constraint_allows_all(w->state) ? NULL : w->mask;
        return 0;
    }
    if (constraint_accepts_end(w->state)) /* complete, and the vocabulary has no end token */
        return 1;
    *e = why;
    return -1;
}

int32_t constraint_walk_only(const struct constraint_walk *w, const uint32_t *mask)
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

int constraint_walk_accept(struct constraint_walk *w, int32_t id, struct err *e)
{
    return w->state ? constraint_accept(w->state, id, e) : 0;
}

size_t constraint_walk_forced(struct constraint_walk *w, int32_t *out, size_t cap)
{
    return w->state && cap ? constraint_forced_tokens(w->state, out, cap) : 0;
}

bool constraint_walk_allows_all(struct constraint_walk *w)
{
    const uint32_t *mask;
    struct err e = {0};
    return constraint_walk_next(w, &mask, &e) == 0 && !mask;
}

bool constraint_walk_is_open(const struct constraint_walk *w)
{
    return !w->state || constraint_allows_all(w->state);
}

bool constraint_walk_yields(struct constraint_walk *w)
{
    return w->state && w->constraint->yielding && constraint_is_over(w->state);
}
