/* A request on its way from JSON to the engine: what the files openai_*.c share. It belongs to a worker. */
#pragma once

#include "run/constraint_ref.h"
#include "run/engine.h"
#include "run/output_want.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct request;

enum { OPENAI_STOPS = 16, OPENAI_BIASES = 1024, OPENAI_WORDS = 256, OPENAI_MEMORY = 256 << 20 };

/* What lives only until the request is submitted. */
struct request_draft {
    json_t *body;
    struct engine_request request;
    uint32_t each; /* completions generated for a prompt */
    const char *stops[OPENAI_STOPS];
    struct logit_bias biases[OPENAI_BIASES];
    struct ids allowed, bad_words; /* of token_rules */
    uint8_t *dry_breaker;          /* of sampler_params; NULL = none */
    struct constraint_ref *constraint;
    const char *lead;       /* start of a required tool call: the prompt ends with it */
    bool thinking;          /* the prompt has opened the reasoning */
    const char *call_begun; /* the unfinished tool call at the end of the last message; NULL = none */
    const char *only;       /* the tool that has to be called */
    bool must, many;        /* some tool has to be called; several may be */
};

/* The output format that a request asks for. */
struct wanted {
    enum want_kind kind;
    json_t *value;     /* a schema, a text or a list of texts; own */
    const char *field; /* the field that asks for it */
};

/* *w is zero before. On an error, too, w->value is the caller's. */
int openai_wanted(struct request *a, const json_t *body, struct wanted *w);

/* Reads tools and tool_choice; a template without support for tools gets them as text. */
int openai_tools(struct request *a, struct request_draft *q);
/* The budget of reasoning, and the template's variables for it; call it after the tools. */
int openai_reasoning(struct request *a, struct request_draft *q, json_t *set);
/* llama.cpp's sampling fields; call it after the usual fields. */
int openai_samplers(struct request *a, struct request_draft *q);
/* 400 where the body asks for an unsupported feature. */
int openai_unsupported(struct request *a, const json_t *body);
/* Fields that name tokens; call it after sampling and options. */
int openai_tokens(struct request *a, struct request_draft *q);
/* Call it after the prompts: truncates those over the request's limit, at their beginning. */
int openai_truncate(struct request *a, struct request_draft *q);
/* Call it after the constraint: refuses fields that conflict with it. */
int openai_together(struct request *a, const struct request_draft *q);
/* Call it after the prompt: builds the constraint from the output format and tool_choice. */
int openai_constrain(struct request *a, struct request_draft *q);
