/* Parses the command line of a verb by a table of its options. Options may come before or after the other
 * words: --name VALUE, --name=VALUE, -n VALUE, -nVALUE; "--" ends them. Spellings of llama.cpp and Ollama are taken too. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum arg_kind {
    ARG_FLAG,
    ARG_INT,   /* a whole number, least to most */
    ARG_NUM,   /* a number, least to most */
    ARG_TEXT,  /* as it is */
    ARG_BYTES, /* "512M", "2.5GiB", least to most */
};

struct arg_option {
    const char *name; /* without its dashes; NULL ends the table */
    char letter;      /* 0 = has none */
    enum arg_kind kind;
    const char *value; /* the value's name in help: "N", "FILE" */
    const char *help;
    double least, most;
};

struct arg_seen {
    const struct arg_option *option;
    const char *text; /* NULL for a flag */
    union {
        int64_t integer; /* ARG_INT, ARG_BYTES */
        double number;
    };
};

struct args {
    const struct arg_option *options;
    struct arg_seen *seen; /* (seen_count), in the order given */
    int seen_count;
    const char **words; /* (count): words that are not options */
    int count;
    char *model; /* the first word, where an option (-m, -hf) gave it */
};

/* Options that every verb has: --help, --quiet, --verbose, --offline. */
extern const struct arg_option args_common[];

/* argv without the program and the verb. */
int args_parse(struct args *a, const struct arg_option *options, int argc, char **argv, struct err *e);
void args_free(struct args *a);

/* Whether the verb has an option of this name. */
bool args_has(const struct args *a, const char *name);
/* The last one given, where there are several. */
bool args_flag(const struct args *a, const char *name);
const char *args_text(const struct args *a, const char *name); /* NULL = not given */
int64_t args_int(const struct args *a, const char *name, int64_t otherwise);
double args_num(const struct args *a, const char *name, double otherwise);
/* An option that may be given many times: start with at = 0; NULL after the last. */
const char *args_next(const struct args *a, const char *name, int *at);
