/* Reading JSON from outside, through jansson, with what it leaves open: a limit of depth and of memory, no
 * duplicate keys, and a sentence that says where and what. Safe from any thread. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct json;

struct jsonread_limits {
    size_t text;   /* bytes of the text */
    size_t memory; /* bytes of what is read */
    int depth;     /* at most JSONREAD_DEPTH */
    bool nul;      /* texts may hold U+0000: the caller goes by their lengths */
};

/* What a text will take to read, from one pass over its bytes. It need not be JSON. */
struct jsonread_size {
    int depth;
    size_t values; /* those inside of others counted, too */
    size_t memory; /* bytes, at most: of the tree, and of what jansson needs beside it */
};
void jsonread_measure(const char *text, size_t n, struct jsonread_size *out);

enum { JSONREAD_DEPTH = 64 }; /* half of what the writer of base/json.h can nest */

/* For files beside a model: config.json and its like. */
extern const struct jsonread_limits jsonread_config;

/* An object from n bytes of text, or NULL. `what` is the file's name, for messages. */
json_t *jsonread_object(const char *text, size_t n, const struct jsonread_limits *most, const char *what,
                        struct err *e);
/* The same from a file. */
json_t *jsonread_file(const char *path, const struct jsonread_limits *most, struct err *e);
/* Any value, not only an object. */
json_t *jsonread_value(const char *text, size_t n, const struct jsonread_limits *most, const char *what,
                       struct err *e);

/* Writes a value that was read (or is no deeper) with our writer. */
void jsonread_write(struct json *out, const json_t *v);
