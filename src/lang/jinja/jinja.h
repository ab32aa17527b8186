/* Jinja2, as chat templates use it: a template is compiled once and rendered many times. A compiled template
 * never changes, so any number of threads may render it at once; each render has its own memory.
 *
 * The meaning is that of jinja2 3.1 in the environment that Hugging Face sets up for chat templates:
 * trim_blocks, lstrip_blocks, an immutable sandbox, loop controls, the `generation` tag, `tojson` without
 * HTML escapes, `raise_exception`, `strftime_now`.
 *
 * Every byte of the result is marked as written by the template or as data, through all filters and methods:
 * text of a message must never be taken for a control token. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct jinja;

/* What a render may use at most; 0 takes the default. Beyond it the render fails with ERR_RESOURCE. */
struct jinja_limits {
    uint64_t fuel;  /* steps: a node evaluated, an item, 32 bytes of text; default 50 million */
    size_t memory;  /* bytes of values; default 256 MiB */
    size_t output;  /* bytes of the result; default 64 MiB */
    unsigned depth; /* nested evaluations, macros and containers; default 2,000 (about 1 MB of stack) */
};

/* The names that a template sees besides the globals of Jinja. Both are JSON objects or NULL, and where
 * both have a name `data` wins. They are only read, and must outlive the call. */
struct jinja_input {
    const json_t *data; /* messages, tools, ...: none of its text is trusted */
    const json_t *own;  /* what the engine itself supplies (bos_token, ...): as if the template wrote it */
    /* A string of `data` under the key "role" counts as the template's own when it is one of these
     * (NULL-terminated, may be NULL): templates build control tokens from it ('<|' + role + '|>'). */
    const char *const *roles;
    struct tm now; /* local time, for strftime_now */
    struct jinja_limits limits;
};

struct jinja_span {
    const char *text;
    size_t n;
    bool from_template;
};

struct spans {
    char *text; /* the whole result, NUL-terminated; owned */
    size_t n;
    struct jinja_span *items; /* (count) in order, adjacent ones differ in origin; owned */
    size_t count;
};

int jinja_compile(struct jinja **out, const char *text, size_t n, struct err *e);
void jinja_free(struct jinja *t);
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct spans *out, struct err *e);
/* Whether the template mentions this name as a variable anywhere. */
bool jinja_mentions(const struct jinja *t, const char *name);
void spans_free(struct spans *s);
