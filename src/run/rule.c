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
    char *lead, *trigger, *aside[2];
    bool within, first, in_aside;
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

/* Copies a text that may be missing. */
static int rule_copy(char **to, const char *text, size_t most, struct err *e)
{
    if (text && strlen(text) > most)
        return err_set(e, ERR_USAGE, "a trigger has at most %zu bytes", most);
    *to = text ? mem_strdup(text) : NULL;
    return text && !*to ? err_memory(e, "a constraint", strlen(text)) : 0;
}

int rule_set_start(struct rule *r, const struct rule_start *s, struct err *e)
{
    r->within = s->within;
    r->first = s->first;
    r->in_aside = s->in_aside && s->aside[1];
    return rule_copy(&r->lead, s->lead, SIZE_MAX, e) || rule_copy(&r->trigger, s->trigger, RULE_TRIGGER, e) ||
                   rule_copy(&r->aside[0], s->aside[0], RULE_TRIGGER, e) ||
                   rule_copy(&r->aside[1], s->aside[1], RULE_TRIGGER, e)
               ? -1
               : 0;
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
    mem_free(r->trigger);
    mem_free(r->aside[0]);
    mem_free(r->aside[1]);
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
    struct constraint_state **state = r->trigger ? &w->asleep : &w->state;
    w->in_aside = r->in_aside;
    if (!(*state = constraint_state_open(r->language->bound, e)))
        return -1;
    struct err why = {0};
    if (r->lead && constraint_accept_bytes(*state, r->lead, strlen(r->lead), &why))
        return err_set(e, why.code, "what the answer goes on from does not fit what it has to be: %s",
                       why.text);
    return 0;
}

void rule_walk_close(struct rule_walk *w)
{
    constraint_state_close(w->state);
    constraint_state_close(w->asleep);
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

/* Is this the end of what has come? */
static bool rule_walk_ends(const struct rule_walk *w, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    for (size_t i = 0; i < n && n <= w->seen; i++)
        if (w->last[(w->seen - n + i) % RULE_TRIGGER] != text[i])
            return false;
    return n && n <= w->seen;
}

static bool rule_walk_triggered(struct rule_walk *w)
{
    const struct rule *r = w->rule;
    if (rule_walk_ends(w, r->aside[w->in_aside])) {
        w->in_aside = !w->in_aside;
        return false;
    }
    return !w->in_aside && rule_walk_ends(w, r->trigger) &&
           !(r->first && w->solid + strlen(r->trigger) != w->seen);
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
        if ((r->within && constraint_accept_bytes(w->asleep, r->trigger, strlen(r->trigger), &e)) ||
            constraint_accept_bytes(w->asleep, text + i + 1, n - i - 1, &e))
            constraint_state_close(w->asleep);
        else
            w->state = w->asleep;
        w->asleep = NULL;
        return;
    }
}
