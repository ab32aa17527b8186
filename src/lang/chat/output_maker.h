/* Shared by output_grammar.c, which writes calls, and output_free.c, which writes the text around them. */
#pragma once

#include "lang/grammar/grammar_front.h"
#include "lang/chat/output_internal.h"

struct maker {
    struct grammar *g;
    const struct output_form *form;
    const struct output_wrap *wrap;
    const struct output_rule *rule;
    struct gram *space; /* a little white space, or none */
    struct gram *json;  /* calls as JSON without a mark; NULL = not written yet */
    json_t *own;        /* schemas that we wrote; they live until the grammar is made */
};

/* All arguments of a function as one JSON object. */
struct gram *maker_object(struct maker *m, const json_t *function);
/* Any of the tools that may be called, as the wrap has it. */
struct gram *maker_any(struct maker *m);
/* One call or several, with what the wrap puts around them. */
struct gram *maker_calls(struct maker *m);
/* Text in which the model may write calls, or not: each follows its tool's schema from where it begins. */
struct gram *maker_free(struct maker *m);
