/* A request on its way from JSON to the engine: what the files of ask_*.c share. It belongs to a worker. */
#pragma once

#include "run/constraint_ref.h"
#include "serve/own.h"

enum { OPENAI_STOPS = 16, OPENAI_BIASES = 1024, OPENAI_WORDS = 256, OPENAI_MEMORY = 256 << 20 };

/* What lives only until the request is submitted. */
struct request_draft {
    json_t *body;
    struct engine_request request;
    uint32_t each; /* answers to a prompt that are made */
    const char *stops[OPENAI_STOPS];
    struct logit_bias biases[OPENAI_BIASES];
    struct ids allowed, bad_words; /* of token_rules */
    uint8_t *dry_breaker;          /* of sampler_params; NULL = none */
    struct constraint_ref *rule;
    const char *lead; /* of a call that is asked for: the prompt ends with it */
    bool thinking;    /* the prompt has opened the reasoning */
    const char
        *call_begun;  /* the part of the last message that is a call and goes on; NULL = there is none */
    const char *only; /* the tool that has to be called */
    bool must, many;  /* some tool has to be called; several may be */
};

enum wanted_kind { WANTED_ANY, WANTED_SCHEMA, WANTED_GRAMMAR, WANTED_REGEX, WANTED_CHOICE };

/* What the answer has to be. */
struct wanted {
    enum wanted_kind kind;
    json_t *value;     /* a schema, a text or a list of texts; own */
    const char *field; /* that says so */
};

/* *w is zero before. On an error, too, w->value is the caller's. */
int openai_wanted(struct request *a, const json_t *body, struct wanted *w);
/* behind: the reasoning that the prompt has opened ends with this; NULL = there is none. */
struct constraint *wanted_constraint(const struct wanted *w, const char *behind, struct err *e);

/* Which tools there are and how they are to be used; a template that knows none gets them as text. */
int openai_tools(struct request *a, struct request_draft *q);
/* What llama.cpp's clients say of sampling; the usual fields have been read. */
int openai_samplers(struct request *a, struct request_draft *q);
/* 400 where the body asks for what is not built. */
int openai_unsupported(struct request *a, const json_t *body);
/* Fields that name tokens; sampling and options have been read. */
int openai_tokens(struct request *a, struct request_draft *q);
/* Behind the prompts: those that are longer than the request says lose their beginning. */
int openai_truncate(struct request *a, struct request_draft *q);
/* Behind the rule: what does not go together with it is refused. */
int openai_together(struct request *a, const struct request_draft *q);
/* The text that the answer goes on from. */
int prefill_read(struct request *a, const json_t *body, struct buf *out);
/* Where it leaves the answer: in reasoning, in a call. */
int prefill_stand(struct request *a, struct request_draft *q);
/* A constraint begins with it: *lead, where there is something. */
int prefill_start(struct request *a, struct request_draft *q, bool shaped, const char **lead);
/* Behind the prompt: what the answer has to be, by what is wanted of it and by tool_choice. */
int openai_rule(struct request *a, struct request_draft *q);
