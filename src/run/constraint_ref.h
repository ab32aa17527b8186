/* A constraint compiled for one model's vocabulary, and the part of it that the prompt has already written.
 * Requests share it; each has its own walk. Constraints share the language, which is most of their memory.
 * References are counted and thread-safe: a client may drop its reference while a request still runs. */
#pragma once

#include "base/err.h"
#include "lang/grammar/constraint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct constraint_ref;

/* Takes over c, also when it fails. The vocabulary must outlive the constraint. */
int constraint_ref_open(struct constraint_ref **out, struct constraint *c, const struct constraint_vocab *v,
                        struct err *e);
/* The prompt has already written this part of the language; copied. */
int constraint_ref_set_lead(struct constraint_ref *r, const char *lead, struct err *e);
/* Where the text may end, it ends if the model's best token is not allowed: a model that has called a tool
 * and wants to explain must not be forced to call another. */
void constraint_ref_set_yielding(struct constraint_ref *r);
/* Another constraint in the same language, which applies from the first token; NULL: no memory. */
struct constraint_ref *constraint_ref_again(struct constraint_ref *r);
/* Bytes of its language, as far as it has been computed. */
size_t constraint_ref_bytes(const struct constraint_ref *r);
void constraint_ref_drop(struct constraint_ref *r); /* NULL is ignored */

/* The state of one text. Without a constraint everything is allowed; with one, the text always satisfies it.
 * It allocates when it is opened, never later. */
struct constraint_walk {
    struct constraint_ref *constraint;
    struct constraint_state *state; /* NULL = no constraint */
    uint32_t *mask;                 /* (words), a bit for each token */
    uint32_t words;
};

int constraint_walk_open(struct constraint_walk *w, struct constraint_ref *r, uint32_t vocab, struct err *e);
void constraint_walk_close(struct constraint_walk *w);
/* 0: *mask says what may come next (NULL: everything); 1: the text is complete and nothing can follow. */
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
/* Does the constraint allow every token next? Then the token may be chosen without a mask. */
bool constraint_walk_allows_all(struct constraint_walk *w);
