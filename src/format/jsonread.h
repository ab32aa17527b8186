/* Reads untrusted JSON with jansson, and adds limits of depth and memory, refusal of duplicate keys, and
 * error messages with place and cause. Safe from any thread. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json;

struct jsonread_limits {
    size_t text;   /* bytes of the text */
    size_t memory; /* bytes of what is read */
    int depth;     /* at most JSONREAD_DEPTH */
    bool nul;      /* texts may hold U+0000: the caller goes by their lengths */
    bool words;    /* Python's Infinity and -Infinity are no error: they are read as null */
    bool huge;     /* an integer beyond 64 bits is no error: all numbers of such a text are real */
};

/* An upper bound of the memory to parse a text, from one pass over its bytes. It need not be JSON. */
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

/* ---- typed getters: how every field of a file is read ----
 *
 * A field of another type than the file's definition allows is an error that names the file, the field, what it
 * is and what was expected. The first error stays: read all fields, then look at e->code once. A key that ends
 * with '?' may be null, which counts as absent. */
enum jsonread_type {
    JSONREAD_IS_BOOL = 1,
    JSONREAD_IS_INT = 2, /* 3.0 too */
    JSONREAD_IS_NUMBER = 4,
    JSONREAD_IS_STRING = 8,
    JSONREAD_IS_ARRAY = 16,
    JSONREAD_IS_OBJECT = 32,
};

struct jsonread {
    const json_t *root;
    const char *file; /* its name, for messages */
    struct err *e;
};

/* The member of an object, of one of these types. NULL = absent, or an error; so it is where o is NULL. */
json_t *jsonread_get(const struct jsonread *r, const json_t *o, const char *key, unsigned types);
/* The same where the file chose the key: every character of it counts, and null is an error. */
json_t *jsonread_member(const struct jsonread *r, const json_t *o, const char *key, unsigned types);
/* The i-th item of an array that has it. NULL = an error. */
json_t *jsonread_item(const struct jsonread *r, const json_t *array, size_t i, unsigned types);
/* These return `otherwise` where the field is absent, and after an error. */
const char *jsonread_str(const struct jsonread *r, const json_t *o, const char *key, const char *otherwise);
bool jsonread_bool(const struct jsonread *r, const json_t *o, const char *key, bool otherwise);
double jsonread_number(const struct jsonread *r, const json_t *o, const char *key, const double range[2],
                       double otherwise);
/* A whole number in the range: false where it is none. */
bool jsonread_whole(const json_t *v, const int64_t range[2], int64_t *out);

/* "FILE: PATH is IS, a string or an object was expected", for readers with trees of their own. */
int jsonread_wrong(struct err *e, const char *file, const char *path, const char *is, unsigned types);
int jsonread_out_of_range(struct err *e, const char *file, const char *path, double is,
                          const double range[2]);

/* Writes a value that was read (or is no deeper) with our writer. */
void jsonread_write(struct json *out, const json_t *v);
