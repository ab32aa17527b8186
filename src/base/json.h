/* A JSON writer into a buffer. It writes commas and colons itself. Assertions check the nesting, since a
 * wrong nesting is a bug. Strings are written as valid UTF-8: a byte that is not becomes U+FFFD. Reading JSON
 * is for jansson, in the layers above, whose names (json_object, json_array, json_null) these must not
 * take. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

#define JSON_DEPTH 128

struct json {
    struct buf *out;
    int indent; /* spaces a level; 0 = one line */
    int depth;
    bool filled[JSON_DEPTH]; /* this level has a value already */
    bool after_key;
};

void json_begin(struct json *j, char open); /* '{' or '[' */
void json_end(struct json *j, char close);  /* '}' or ']' */
void json_key(struct json *j, const char *key);
void json_str(struct json *j, const char *s); /* NULL writes null */
void json_strn(struct json *j, const char *s, size_t n);
void json_int(struct json *j, int64_t v);
void json_uint(struct json *j, uint64_t v);
void json_num(struct json *j, double v); /* shortest that reads back the same; not finite: null */
void json_f32(struct json *j, float v);
void json_bool(struct json *j, bool v);
void json_nil(struct json *j);

/* The text of a string without its quotes, appended to out. */
void json_escape(struct buf *out, const char *s, size_t n);
