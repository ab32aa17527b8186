/* The command line: one file per verb, and one row in TOOL_VERBS. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct buf;
struct store;

struct tool_verb {
    const char *name;
    const char *words; /* how usage calls what is no option: "MODEL", "[MODEL] [PROMPT]"; "" = none */
    const char *brief; /* one line: what it does */
    const char *more;  /* examples and the like, at the end of its help; NULL = nothing */
    const struct arg_option *options;
    int least, most; /* how many words */
    /* 0, or -1 with an error whose code is the exit code. Standard output is flushed and checked by main. */
    int (*run)(const struct args *a, struct err *e);
};

/* A new verb is src/tool/NAME.c, which defines tool_NAME, and its row in tool.c. */
extern const struct tool_verb tool_bench, tool_doctor, tool_embed, tool_help, tool_info, tool_logits,
    tool_perplexity, tool_ps, tool_run, tool_serve, tool_stop, tool_template, tool_tokenize;

extern const struct tool_verb *const tool_verbs[]; /* NULL ends it */
/* NULL, with a sentence that names the nearest one. */
const struct tool_verb *tool_find(const char *name, struct err *e);

void help_short(struct buf *out);                           /* of `quern` alone */
void help_verb(struct buf *out, const struct tool_verb *v); /* of `quern VERB --help` */

/* MODEL of the command line (NULL = the default model) to a path, and to an open model. */
int tool_model_path(const char *model, char *path, size_t size, struct err *e);
int tool_open(struct store **out, const char *model, struct err *e);

/* All of --set NAME=VALUE as one object, VALUE read as JSON, else as text; NULL where there is none. */
int tool_set_values(const struct args *a, json_t **out, struct err *e);

/* Standard output. What cannot be written is lost: tool_flush gives the errno of the first such write, else 0,
 * and main says it at the end. */
void tool_write(const char *text, size_t n);
int tool_flush(void);
/* Writes b to standard output and frees it; a buffer that failed is an error. */
int tool_print(struct buf *b, struct err *e);
/* Whether colours and bars may go to this stream (1 or 2): a terminal, and no NO_COLOR. */
bool tool_colour(int fd);
