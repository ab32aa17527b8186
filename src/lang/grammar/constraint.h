/* Constrained generation: which tokens a model may write next, so that the whole text is in a language: a
 * GBNF grammar, a JSON schema, any JSON object, a regular expression, or one of a few texts. All become one
 * program over bytes.
 *
 *   constraint        a compiled language; read-only, shared between threads
 *   constraint_vocab  a tokenizer's tokens as a tree of bytes; made once for a model; read-only, shared
 *   constraint_bound  both together, with what has been computed so far: token masks by state. Any thread may call
 *                     into it (one lock inside); keep it for the next request with the same language
 *   constraint_state  the state of one text; one thread at a time
 *
 * Making the first three allocates; a state allocates when it is opened and never later, nor do the calls on
 * it.
 *
 * White space in JSON: none before and after the value; after '{', '[', ',' and ':' and before '}' and ']'
 * either nothing, one blank, or a line end and at most 32 blanks or tabs. So a model can indent, but white
 * space is bounded. Properties come in the order of the schema, those it does not name after them. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct constraint;
struct constraint_vocab;
struct constraint_bound;
struct constraint_state;
struct tokenizer;

enum constraint_language { LANGUAGE_SCHEMA, LANGUAGE_GBNF, LANGUAGE_REGEX, LANGUAGE_CHOICES };

struct constraint_spec {
    enum constraint_language language;
    const json_t *schema;
    const char *text; /* of a grammar, of a regular expression */
    size_t n;         /* its bytes; or how many choices */
    const char *const *choices;
    const char *behind; /* the language begins behind this text, which comes first; NULL = at once */
};

/* NULL and an error when it is malformed, too large, or asks for what cannot be enforced. */
struct constraint *constraint_from(const struct constraint_spec *s, struct err *e);
struct constraint *constraint_from_gbnf(const char *text, size_t n, struct err *e);
struct constraint *constraint_from_schema(const json_t *schema, struct err *e);
struct constraint *constraint_from_json_object(struct err *e); /* any JSON object */
struct constraint *constraint_from_regex(const char *text, size_t n, struct err *e);
struct constraint *constraint_from_choices(const char *const *texts, size_t n, struct err *e);
void constraint_free(struct constraint *c);

enum constraint_kind {
    CONSTRAINT_TEXT, /* stands for bytes */
    CONSTRAINT_END,  /* ends a generation: allowed exactly where the language may end */
    CONSTRAINT_NEVER /* control tokens, holes in the vocabulary */
};

struct constraint_source {
    int32_t count;
    const void *of;
    const char *(*bytes)(const void *of, int32_t id, size_t *n); /* stays until the vocabulary is made */
    enum constraint_kind (*kind)(const void *of, int32_t id);
};

struct constraint_vocab *constraint_vocab_open(const struct constraint_source *s, struct err *e);
enum constraint_kind constraint_token_kind(const struct tokenizer *t, int32_t id);
void constraint_vocab_close(struct constraint_vocab *v);

/* Keeps both alive: they must be closed later. `memory`: bytes for what is computed, 0 = 64 MiB; touched as
 * needed only. */
struct constraint_bound *constraint_bind(const struct constraint *c, const struct constraint_vocab *v,
                                         size_t memory, struct err *e);
/* Computes beforehand what most masks need, so that no step of a generation has to: up to some tens of
 * milliseconds with a large vocabulary, best spent where the request is prepared. Optional. */
void constraint_warm(struct constraint_bound *b);
/* Bytes in use, with its constraint: what has been computed, including what may have been dropped since. */
size_t constraint_bytes(struct constraint_bound *b);
void constraint_unbind(struct constraint_bound *b); /* all of its states must be closed */

enum { CONSTRAINT_BACK = 256 }; /* tokens that can be taken back */

struct constraint_state *constraint_state_open(struct constraint_bound *b, struct err *e);
struct constraint_state *constraint_state_clone(const struct constraint_state *s, struct err *e);
void constraint_state_close(struct constraint_state *s);

/* mask (vocabulary + 31) / 32 words: bit id % 32 of word id / 32 is set where the token may come next. -1 when
 * the language is too ambiguous for the memory, or no token can continue the text. */
int constraint_mask(struct constraint_state *s, uint32_t *mask, struct err *e);
/* -1, and the state stays as it was, where the token may not come here. */
int constraint_accept(struct constraint_state *s, int32_t token, struct err *e);
int constraint_accept_bytes(struct constraint_state *s, const char *text, size_t n, struct err *e);
/* Takes back the last n accepts; at most CONSTRAINT_BACK, and those that there were. */
int constraint_rollback(struct constraint_state *s, size_t n, struct err *e);
/* Does the mask that was made last allow every token that has a text, and the end? Then tokens without one are
 * accepted, too. */
bool constraint_allows_all(const struct constraint_state *s);
bool constraint_accepts_end(struct constraint_state *s);
/* May the text end, and is it not any text that may follow? */
bool constraint_is_over(struct constraint_state *s);
/* Bytes that must come next, the only continuation there is (up to cap); how many. */
size_t constraint_forced(struct constraint_state *s, char *out, size_t cap);
/* The same as tokens, each the longest that fits: how a model most likely writes it, though it may well cut it
 * otherwise. Returns how many. */
size_t constraint_forced_tokens(struct constraint_state *s, int32_t *out, size_t cap);
