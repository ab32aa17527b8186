/* Counts the tokens of reasoning in one output, and ends the reasoning once it has used its budget: the tokens of the mark
 * that closes it are then forced, one after the other, and the answer follows.
 *
 * A token counts that begins after the mark that opens the reasoning and before the mark that closes it. The state belongs
 * to one request and to the engine's thread. It allocates when it is opened, never later. */
#pragma once

#include "base/err.h"
#include "lang/token/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct session;

#define REASONING_UNLIMITED UINT32_MAX

/* What a request asks for. All zero = nothing is counted. */
struct reasoning_rule {
    bool counted; /* the output may hold reasoning */
    bool open;    /* the prompt has opened it */
    bool
        calls; /* the output may hold tool calls: their text opens no reasoning, and one may follow the reasoning */
    uint32_t most; /* the budget in tokens; REASONING_UNLIMITED = none */
};

struct reasoning;

/* *out is NULL where nothing is counted, or where the model marks no reasoning. */
int reasoning_open(struct reasoning **out, const struct reasoning_rule *r, const struct session *l,
                   struct err *e);
void reasoning_close(struct reasoning *r);
/* The token that has to come next; -1 = any. r may be NULL, here and below. */
int32_t reasoning_forced(const struct reasoning *r);
void reasoning_accept(struct reasoning *r, int32_t id);
/* Tokens of reasoning so far. */
uint32_t reasoning_count(const struct reasoning *r);

/* Whether the prompt ends with reasoning that it has opened. */
bool reasoning_begins(const struct session *l, const struct ids *prompt);
/* The budget of an effort (none, minimal, low, medium, high; others have none). */
uint32_t reasoning_effort(const char *effort);
