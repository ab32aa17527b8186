/* Shared by the files of output_*.c. */
#pragma once

#include "base/buf.h"
#include "lang/chat/output.h"

struct output_text {
    const char *s;
    size_t n;
};

enum { OUTPUT_DEPTH = 32, OUTPUT_CALLS = 64 };

/* Where brackets close: fed byte by byte. */
struct output_scan {
    uint32_t depth;
    char quote; /* 0 = outside of a string */
    bool escaped;
};
/* True where this byte closes the outermost bracket. */
bool output_scan(struct output_scan *s, char c);

/* What leads to the arguments of a call. */
struct output_call_head {
    struct output_text name, id;
    size_t n; /* bytes before the arguments */
};
/* Of a body of SHAPE_NAMED: 1, 0 = there may be more to come, -1 = it is none. */
int output_named_head(const struct output_wrap *w, struct output_text body, struct output_call_head *h);

/* How a call without a mark of its own begins: a space stands for white space, @ for the name of a tool. */
struct output_head {
    const char *text;
    uint32_t depth; /* braces that are open behind it */
};
extern const struct output_head output_heads[]; /* (output_head_count) */
extern const size_t output_head_count;
extern const char *const output_arguments[]; /* what leads from there to the arguments; the last is NULL */
/* 1, and h says what was read; 0 = there may be more to come; -1 = it is something else. */
int output_match(const char *pattern, struct output_text t, struct output_call_head *h);
/* Is this body, of a wrap that only knows names of tools that there are, a call? 1, 0 and -1 as above. */
int output_begins(const struct output_wrap *w, const json_t *tools, struct output_text t);

/* Calls that are emitted before their body is complete. */
struct output_ahead {
    enum { AHEAD_HEAD, AHEAD_ARGUMENTS, AHEAD_OVER } at;
    size_t from; /* end of what was emitted, from the first byte held */
    uint32_t calls;
    struct output_scan scan;
};
/* Emits the calls in [a->from, n) of what is held. */
void output_ahead(struct output_ahead *a, const struct output_wrap *w, const struct output_options *o,
                  struct output_text held);

/* The calls in a body: a list of {"name", "arguments": a text, "id"?}; NULL = it has none, or is not whole. */
json_t *output_calls(const struct output_wrap *w, const json_t *tools, struct output_text body);
/* Appends a call; takes the arguments over. -1: they are no object, or out of memory. */
int output_add_call(json_t *calls, const char *name, size_t n, json_t *arguments, const char *id);
/* The same for bodies that look like code. */
int output_code(json_t *calls, struct output_text body);
json_t *output_json(struct output_text t);
bool output_is_white(char c);
struct output_text output_trim(struct output_text t);
bool output_starts(struct output_text t, const char *with);
size_t output_name_length(struct output_text t);
/* Is a value of this schema written as it is, without quotes? */
bool output_is_text(const json_t *schema);
