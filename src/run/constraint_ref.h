/* A constraint made ready for one model's vocabulary, and how much of it the prompt has written. Requests share it, each
 * with its own walk; rules share the language, which is most of it. Counted references, so that a client may let go of it
 * while a request still runs; any thread may. */
#pragma once

#include "base/err.h"
#include "lang/grammar/constraint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct constraint_ref;

/* Takes the constraint over, also when it fails. The vocabulary must outlive the rule. */
int constraint_ref_open(struct constraint_ref **out, struct constraint *c, const struct constraint_vocab *v,
                        struct err *e);
/* The prompt has already written this part of the language; copied. */
int rule_set_lead(struct constraint_ref *r, const char *lead, struct err *e);
/* Where the text may end, it does so if the model would write what the rule does not allow: a model that has called a
 * tool and wants to explain must not be made to call another. */
void rule_set_yielding(struct constraint_ref *r);
struct constraint_ref *constraint_ref_share(struct constraint_ref *r);
/* Another rule in the same language, which begins at once; NULL: no memory. */
struct constraint_ref *constraint_ref_again(struct constraint_ref *r);
/* Of its language, as far as it has been computed by now. */
size_t constraint_ref_bytes(const struct constraint_ref *r);
void constraint_ref_drop(struct constraint_ref *r); /* NULL is nothing */

/* Where one text stands. Without a rule everything is allowed; with one, there is no text that it does not hold. It
 * allocates when it is opened, never later. */
struct constraint_walk {
    struct constraint_ref *rule;
    struct constraint_state *state; /* NULL = there is no rule */
    uint32_t *mask;                 /* (words), a bit for each token */
    uint32_t words;
};

int constraint_walk_open(struct constraint_walk *w, struct constraint_ref *r, uint32_t vocab, struct err *e);
void constraint_walk_close(struct constraint_walk *w);
/* 0: *mask says what may come next (NULL: everything); 1: the text is whole and nothing can follow. */
int constraint_walk_next(struct constraint_walk *w, const uint32_t **mask, struct err *e);
/* The only token that a mask of constraint_walk_next allows; -1 = there are others, or no mask. */
int32_t constraint_walk_only(const struct constraint_walk *w, const uint32_t *mask);
/* Tokens of the only text that may come next, as far as it is the only one; up to cap. */
size_t constraint_walk_forced(struct constraint_walk *w, int32_t *out, size_t cap);
int constraint_walk_accept(struct constraint_walk *w, int32_t id, struct err *e);
/* Does the text end here, where the token that the model takes is not in the mask? */
bool constraint_walk_yields(struct constraint_walk *w);
/* Did constraint_walk_next last say that everything is allowed? */
bool constraint_walk_is_open(const struct constraint_walk *w);
/* May every token come next, as far as the rule goes? Then the token may be chosen without a mask. */
bool constraint_walk_allows_all(struct constraint_walk *w);
