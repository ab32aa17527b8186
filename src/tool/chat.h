/* A chat in the terminal: line editing, history, commands that begin with a slash. */
#pragma once

#include "run/engine.h"
#include "tool/sampling.h"

struct images;

struct chat_options {
    const char *system; /* NULL = none */
    struct sampling *sampling;
    uint32_t most;
    const char *const *stop_strings; /* (stops) */
    size_t stops;
    struct constraint_ref *constraint; /* the constraint of every answer; NULL = none */
    struct adapter_mix lora;
    const json_t *set;     /* template variables, or NULL */
    bool verbose;          /* figures after every answer */
    struct images *images; /* of --image: they belong to the first message; the chat adds others */
};

int chat_run(struct session *l, struct engine *g, const struct chat_options *o, struct err *e);
