/* What the output of a chat has to be: a format (a schema, a grammar, a regular expression, one of a few texts), calls of
 * tools, or both; and the constraint that enforces it. Shared by the server and the library. */
#pragma once

#include "base/err.h"
#include "run/constraint_ref.h"
#include "run/session.h"

#include <jansson.h>
#include <stdbool.h>

enum want_kind { WANT_ANY, WANT_SCHEMA, WANT_GRAMMAR, WANT_REGEX, WANT_CHOICE };

struct output_want {
    enum want_kind kind;
    const json_t *value; /* a schema, a text or a list of texts */
    const json_t *tools; /* that may be called; NULL = none */
    const char *only;    /* the tool that has to be called; NULL = any */
    bool must, many;     /* some tool has to be called; several may be */
    bool thinking;       /* the prompt has opened the reasoning */
};

/* The constraint, from the session's cache or compiled now. *out is NULL where nothing is to be enforced: no format is
 * asked for, and calls that cannot be enforced are allowed unless a tool is strict. Any thread. */
int output_want_constraint(struct session *l, const struct output_want *w, struct constraint_ref **out,
                           struct err *e);
