/* Parses a model's output while it streams: reasoning, text for the user, tool calls.
 *
 *   output_form     how a family writes calls: a row of a table, chosen by the marks in the chat template
 *   output_thought  how it marks reasoning: a row of another
 *   output          one text of the model; bytes in as they come, pieces out; one thread
 *
 * The parser is total. What looks like a call and is none comes out as text; nothing is lost but the marks
 * themselves and white space beside them. How the bytes are cut makes no difference. The beginning of a mark
 * is held back until it is decided, and a call until it is complete; but where a constraint enforces the
 * syntax of calls, its arguments are emitted as they come, and what is cut before that is dropped: it is
 * markup. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum output_shape {
    SHAPE_JSON,  /* {"name": ..., "arguments": {...}}, a list of such, or several in a row */
    SHAPE_KEYED, /* [{"NAME": {...}}] */
    SHAPE_NAMED, /* NAME mid {...} */
    SHAPE_TAGS,  /* NAME, then values in tags */
    SHAPE_CODE,  /* NAME(key=value, ...), or several of them in a list */
};

/* name_open NAME name_close (key_open KEY key_close ... value_open VALUE value_close)* end. Texts are written as
 * they are, other values as JSON; `text` is the attribute behind a key that says which it is. */
struct output_tags {
    const char *name_open, *name_close, *key_open, *key_close, *value_open, *value_close, *end;
    const char *name_rest;   /* what the rest of the name's tag ends with; NULL = there is none */
    const char *text, *json; /* attributes; NULL = there are none, the schema says */
};

/* One way to write a call. Without a close the body says where it ends. Several with the same open are tried in
 * turn; they have the same close. */
struct output_wrap {
    const char *open, *close;
    enum output_shape shape;
    const char *mid;                  /* NAMED: between the name and the arguments, as it is written */
    const char *mid_too[2];           /* NAMED: other ways to write that; NULL = there are none */
    const char *args;                 /* NAMED: what the arguments follow, as it is read; NULL = mid */
    const char *id_before, *id_after; /* NAMED: marks between an id and the name, the name and an id */
    const struct output_tags *tags;
    const char *keys[2]; /* JSON: what name and arguments are called when we write it; NULL = the usual */
    bool list;           /* JSON, CODE: all calls stand in one list */
    bool lines;          /* CODE: all calls stand in one block, each on a line of its own */
    bool numbered;       /* NAMED: "functions.NAME:0", which is also its id */
    bool single;         /* a call ends the output */
    bool known;          /* only names of tools that there are: else it is text */
};

enum { OUTPUT_WRAPS = 4, OUTPUT_MARKS = 6 };
enum output_bare { BARE_NEVER, BARE_TOO, BARE_USUAL }; /* a call may be the whole text, without any mark */

struct output_form {
    const char *name;
    const char *marks[2];                   /* the template has both */
    struct output_wrap wraps[OUTPUT_WRAPS]; /* the first is the one that we write */
    const char *section[4];                 /* around all calls: open, close, and another pair */
    const char *drop[OUTPUT_MARKS];         /* marks without meaning for the client */
    enum output_bare bare;
    bool short_ids; /* ids of calls have nine letters and digits */
};

struct output_thought {
    const char *name, *mark, *open, *close; /* mark: the template has it */
    const char *then;                       /* what leads from there to the answer; NULL = nothing */
};

/* Never NULL: what no template says is the general one. */
const struct output_form *output_form_find(const char *template_text);
const struct output_thought *output_thought_find(const char *template_text);
/* Is this text a part of what calls or reasoning are marked with? thought may be NULL. */
bool output_has_mark(const struct output_form *f, const struct output_thought *t, const char *text, size_t n);
/* NULL and an error that lists the names. */
const struct output_form *output_form_named(const char *name, struct err *e);
const struct output_thought *output_thought_named(const char *name, struct err *e);
extern const struct output_form *const output_forms; /* (output_form_count) */
extern const size_t output_form_count;

enum output_part { OUTPUT_TEXT, OUTPUT_REASON, OUTPUT_CALL };

struct output_piece {
    enum output_part part;
    const char *text; /* of a call: its arguments, a JSON object, or the next part of them */
    size_t n;
    const char *name, *id; /* of a call that begins; the id may be NULL. name NULL: the last call goes on */
    bool more;             /* of a call: its arguments are not whole yet */
};

struct output_options {
    const struct output_form *form;
    const struct output_thought *thought; /* NULL = reasoning is text */
    const json_t *tools;                  /* OpenAI's list; NULL = calls are text; must outlive the parser */
    bool thinking;                        /* the prompt has already opened the reasoning */
    bool ruled;                           /* output_constraint applies where a call begins */
    bool only_calls;                      /* ... and the model writes nothing else, except reasoning */
    void (*take)(void *arg, const struct output_piece *p);
    void *arg;
};

struct output_parser;
struct output_parser *output_open(const struct output_options *o, struct err *e);
/* Before anything else is fed: the text that the output continues. It sets the parser's state (in reasoning,
 * in a call), and none of it is emitted, except a call that is not complete: that continues. -1: out of
 * memory. */
int output_go_on(struct output_parser *r, const char *text, size_t n);
/* Is the parser in reasoning? */
bool output_reasons(const struct output_parser *r);
/* Bytes at the end of what was fed that are a call which is not whole; 0 = it stands elsewhere. */
size_t output_call_begun(const struct output_parser *r);
/* From now on `take` gets this `arg`. */
void output_set_arg(struct output_parser *r, void *arg);
/* -1 when memory is out. */
int output_feed(struct output_parser *r, const char *text, size_t n);
/* cut: the model would have written more. Then the beginning of a mark is no text. */
int output_end(struct output_parser *r, bool cut);
void output_close(struct output_parser *r);

/* Does this prompt end with the beginning of reasoning? */
bool output_is_thinking(const struct output_thought *t, const char *prompt, size_t n);

/* ---- calls that are asked for ---- */

struct constraint;
struct output_rule {
    const json_t *tools;  /* OpenAI's list */
    const char *only;     /* this one; NULL = any of them */
    bool many;            /* several calls */
    bool loose;           /* arguments are any object: the schemas ask for what cannot be enforced */
    const json_t *answer; /* or a text of this schema instead; NULL = only calls */
    bool free;            /* any text, too, and calls in every way that the form knows */
    const struct output_thought *thought; /* NULL = there is no reasoning */
    bool thinking;                        /* the prompt has already opened it */
};

/* The language of all that the model may write: calls in this form, arguments by each tool's schema. */
struct constraint *output_constraint(const struct output_form *f, const struct output_rule *r, struct err *e);
/* What the text of calls begins with. */
const char *output_trigger(const struct output_form *f);
/* Can a tool be called this? */
bool output_is_name(const char *name);
/* The function of tools[i], or the one of that name: {name, parameters?, ...}. */
const json_t *output_function(const json_t *tools, size_t i);
const json_t *output_tool(const json_t *tools, const char *name);
