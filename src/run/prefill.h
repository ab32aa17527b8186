/* How the prompt leaves the model's output: in reasoning, or in the middle of a message that it continues. The given text
 * counts as written by the model: the parser continues reasoning and calls that it has begun, and a constraint starts with
 * it. Shared by the server and the library. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "run/output_want.h"
#include "run/session.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether the output continues this message by default: an assistant's, without calls. */
bool prefill_is_open(const json_t *message);
/* The text of the last message, appended. */
int prefill_read(const json_t *messages, struct buf *out, struct err *e);

/* The parser's state after a text. */
struct prefill_state {
    bool thinking;
    const char *call_begun; /* the unfinished call at its end; NULL = none */
};
int prefill_stand(const struct session *l, const json_t *tools, const struct buf *text,
                  struct prefill_state *out, struct err *e);

/* Where a constraint starts: *lead is the part of its language that the prompt has written, NULL = none. *append: the
 * beginning of a required call, which the caller appends to the prompt; NULL = nothing. text: may be empty. */
int prefill_lead(const struct session *l, const struct output_want *w, const struct buf *text,
                 const char *call_begun, const char **lead, const char **append, struct err *e);
