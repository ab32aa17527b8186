/* The command line: one file per verb, and one row in TOOL_VERBS. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct buf;
struct hub;
struct hub_name;
struct hub_pulled;
struct store;

struct tool_verb {
    const char *name;
    const char
        *words; /* the words of the usage line that are not options: "MODEL", "[MODEL] [PROMPT]"; "" = none */
    const char *brief; /* one line: what it does */
    const char *more;  /* examples and the like, at the end of its help; NULL = nothing */
    const struct arg_option *options;
    int least, most; /* how many words */
    /* 0, or -1 with an error whose code is the exit code. Standard output is flushed and checked by main. */
    int (*run)(const struct args *a, struct err *e);
};

/* A new verb is a file of src/tool that defines its tool_verb, and a row in tool.c. */
extern const struct tool_verb tool_batch, tool_bench, tool_compare, tool_completion, tool_doctor, tool_drain,
    tool_embed, tool_help, tool_imatrix, tool_info, tool_logits, tool_ls, tool_create, tool_cp, tool_search,
    tool_perplexity, tool_ps, tool_pull, tool_quantize, tool_rm, tool_run, tool_serve, tool_show, tool_state,
    tool_stop, tool_template, tool_tokenize, tool_usage;

extern const struct tool_verb *const tool_verbs[]; /* NULL ends it */
/* NULL, with a sentence that names the nearest one. */
const struct tool_verb *tool_find(const char *name, struct err *e);

void help_short(struct buf *out);                           /* of `quern` alone */
void help_verb(struct buf *out, const struct tool_verb *v); /* of `quern VERB --help` */
void man_program(struct buf *out);                          /* quern(1) */
void man_verb(struct buf *out, const struct tool_verb *v);  /* quern-VERB(1) */

/* MODEL of the command line (NULL = the default model) to a path, and to an open model: a missing model is
 * fetched, with a progress bar. */
int tool_model_path(const char *model, char *path, size_t size, struct err *e);
int tool_open(struct store **out, const char *model, struct err *e);

/* The settings of the Hub and its caches, from the environment and --offline. */
int tool_hub(struct hub *h, struct err *e);
void tool_offline(void);
/* --config: another models.json; NULL = the usual one. */
void tool_config(const char *file);
/* hub_pull with a bar. */
int tool_fetch(struct hub *h, const struct hub_name *n, struct hub_pulled *out, struct err *e);

/* All of --set NAME=VALUE as one object, VALUE read as JSON, else as text; NULL where there is none. */
int tool_set_values(const struct args *a, json_t **out, struct err *e);

/* The ids of --tokens, "1,2,3", blanks allowed after a comma; the caller frees them. NULL and an error. */
int32_t *tool_tokens(const char *text, uint32_t *count, struct err *e);

/* Standard output. A failed write is recorded: tool_flush returns the errno of the first one, else 0, and
 * main reports it at the end. */
void tool_write(const char *text, size_t n);
int tool_flush(void);
/* Writes b to standard output and frees it; a buffer that failed is an error. */
int tool_print(struct buf *b, struct err *e);
/* Whether colours and bars may go to this stream (1 or 2): a terminal, and no NO_COLOR. */
/* The settings of a model by its name (hub/preset.h); NULL with no error: it has none. */
json_t *tool_preset(const char *model, struct err *e);
bool tool_colour(int fd);
/* The user's character set, UTF-8 where that has none: for a terminal. */
void tool_locale(void);
/* 134515008 -> "134.5 M": three or four digits and a letter, before the unit. */
void tool_scaled(struct buf *out, double v, const char *unit);
