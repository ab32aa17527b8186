/* The front ends that write grammars. Each leaves its error in the grammar; its result is then undefined. */
#pragma once

#include "lang/grammar/grammar.h"

#include <jansson.h>

/* llama.cpp's kind of grammar; the number of its rule "root". */
uint32_t gbnf_read(struct grammar *g, const char *text, size_t n);
/* JSON schema, draft 2020-12; the rule of a text that satisfies it. */
uint32_t schema_read(struct grammar *g, const json_t *schema);

enum pattern_kind {
    PATTERN_WHOLE,   /* the text as a whole matches */
    PATTERN_QUOTED,  /* somewhere in the text, unless anchored; written as inside a JSON string */
    PATTERN_POSSIBLE /* the same, with all that some program may take to match: for texts that must not */
};
struct gram *pattern_read(struct grammar *g, const char *text, size_t n, enum pattern_kind kind);
