/* A chat in the terminal: line editing, history, commands that begin with a slash. */
#pragma once

#include "run/engine.h"
#include "tool/sampling.h"

#include <limits.h>

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
    bool wrap;             /* break lines at words */
    bool context_shift;    /* drop the oldest turns where the context is full */
    bool history;          /* keep the history of lines, and the conversation for --continue */
    bool resume;           /* begin with the conversation that was kept */
    struct images *images; /* of --image: they belong to the first message; the chat adds others */
};

/* A file of the user's state folder, whose folder is made; "history" and CHAT_LAST are the chat's. */
#define CHAT_LAST "chat.json"
int chat_state_file(const char *name, char out[PATH_MAX], struct err *e);
/* The model of the conversation that was kept. */
int chat_last_model(char out[PATH_MAX], struct err *e);

int chat_run(struct session *l, struct engine *g, const struct chat_options *o, struct err *e);
