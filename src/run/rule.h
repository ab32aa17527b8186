/* A constraint made ready for one model's vocabulary, and where it begins. Requests share it, each with its own walk;
 * rules share the language, which is most of it. Counted references, so that a client may let go of it while a request
 * still runs; any thread may. */
#pragma once

#include "base/err.h"
#include "lang/constraint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rule;

/* Takes the constraint over, also when it fails. The vocabulary must outlive the rule. */
int rule_open(struct rule **out, struct constraint *c, const struct constraint_vocab *v, struct err *e);
/* Where the language begins, other than at once. Both may be NULL; copied. */
struct rule_start {
    const char *lead;     /* the prompt has already written this part of it */
    const char *trigger;  /* before this text has come everything is allowed */
    bool within;          /* the trigger is the beginning of the language; else the language follows it */
    bool first;           /* the trigger counts only at the beginning of the text */
    const char *aside[2]; /* between these two texts it does not count; NULL = it counts everywhere */
    bool in_aside;        /* the text begins there */
};
enum { RULE_TRIGGER = 128 }; /* bytes of these texts, at most */
int rule_set_start(struct rule *r, const struct rule_start *s, struct err *e);
struct rule *rule_share(struct rule *r);
/* Another rule in the same language, which begins at once; NULL: no memory. */
struct rule *rule_again(struct rule *r);
/* Of its language, as far as it has been computed by now. */
size_t rule_bytes(const struct rule *r);
void rule_drop(struct rule *r); /* NULL is nothing */

/* Where one text stands. Without a rule, and before its trigger has come, everything is allowed. It allocates when it
 * is opened, never later. */
struct rule_walk {
    struct rule *rule;
    struct constraint_state *state; /* NULL = everything is allowed */
    uint32_t *mask;                 /* (words), a bit for each token */
    uint32_t words;
    /* until the trigger comes */
    struct constraint_state *asleep;
    bool in_aside;
    char last[RULE_TRIGGER]; /* of the text, in a ring */
    size_t seen, solid;      /* bytes so far; those before the first that is no white space */
};

int rule_walk_open(struct rule_walk *w, struct rule *r, uint32_t vocab, struct err *e);
void rule_walk_close(struct rule_walk *w);
/* 0: *mask says what may come next (NULL: everything); 1: the text is whole and nothing can follow. */
int rule_walk_next(struct rule_walk *w, const uint32_t **mask, struct err *e);
/* The only token that a mask of rule_walk_next allows; -1 = there are others, or no mask. */
int32_t rule_walk_only(const struct rule_walk *w, const uint32_t *mask);
/* Tokens of the only text that may come next, as far as it is the only one; up to cap. */
size_t rule_walk_forced(struct rule_walk *w, int32_t *out, size_t cap);
int rule_walk_accept(struct rule_walk *w, int32_t id, struct err *e);
/* The text of a token that was accepted: a walk that is asleep looks for its trigger there. */
void rule_walk_text(struct rule_walk *w, const char *text, size_t n);
