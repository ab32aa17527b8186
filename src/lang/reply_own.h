/* Between the files of reply_*.c. */
#pragma once

#include "base/buf.h"
#include "lang/reply.h"

struct reply_text {
    const char *s;
    size_t n;
};

enum { REPLY_DEPTH = 32, REPLY_CALLS = 64 };

/* Where brackets close: fed byte by byte. */
struct reply_scan {
    uint32_t depth;
    char quote; /* 0 = outside of a string */
    bool escaped;
};
/* True where this byte closes the outermost bracket. */
bool reply_scan(struct reply_scan *s, char c);

/* The calls in a body: a list of {"name", "arguments": a text, "id"?}; NULL = it has none, or is not whole. */
json_t *reply_calls(const struct reply_wrap *w, const json_t *tools, struct reply_text body);
/* Appends a call; takes the arguments over. -1: they are no object, or memory is out. */
int reply_add_call(json_t *calls, const char *name, size_t n, json_t *arguments, const char *id);
/* The same for bodies that look like code. */
int reply_code(json_t *calls, struct reply_text body);
json_t *reply_json(struct reply_text t);
struct reply_text reply_trim(struct reply_text t);
bool reply_starts(struct reply_text t, const char *with);
size_t reply_name_length(struct reply_text t);
/* Is a value of this schema written as it is, without quotes? */
bool reply_is_text(const json_t *schema);
