/* What a model wrote, taken apart while it comes: reasoning, text for the user, calls of tools.
 *
 *   reply_form     how a family writes calls: a row of a table, chosen by the marks in the chat template
 *   reply_thought  how it marks reasoning: a row of another
 *   reply          one answer; bytes in as they come, pieces out; one thread
 *
 * The parser is total. What looks like a call and is none comes out as text; nothing is lost but the marks
 * themselves and white space beside them. How the bytes are cut makes no difference. The beginning of a mark is
 * held back until it is clear, and a call until it is whole; but where a constraint holds the model to the syntax of
 * calls, its arguments go out as they come, and what is cut before that is dropped: it is markup. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reply_shape {
    SHAPE_JSON,  /* {"name": ..., "arguments": {...}}, a list of such, or several in a row */
    SHAPE_KEYED, /* [{"NAME": {...}}] */
    SHAPE_NAMED, /* NAME mid {...} */
    SHAPE_TAGS,  /* NAME, then values in tags */
    SHAPE_CODE,  /* NAME(key=value, ...), or several of them in a list */
};

/* name_open NAME name_close (key_open KEY key_close ... value_open VALUE value_close)* end. Texts are written as
 * they are, other values as JSON; `text` is the attribute behind a key that says which it is. */
struct reply_tags {
    const char *name_open, *name_close, *key_open, *key_close, *value_open, *value_close, *end;
    const char *name_rest;   /* what the rest of the name's tag ends with; NULL = there is none */
    const char *text, *json; /* attributes; NULL = there are none, the schema says */
};

/* One way to write a call. Without a close the body says where it ends. Several with the same open are tried in
 * turn; they have the same close. */
struct reply_wrap {
    const char *open, *close;
    enum reply_shape shape;
    const char *mid;                  /* NAMED: between the name and the arguments, as it is written */
    const char *mid_too[2];           /* NAMED: other ways to write that; NULL = there are none */
    const char *args;                 /* NAMED: what the arguments follow, as it is read; NULL = mid */
    const char *id_before, *id_after; /* NAMED: marks between an id and the name, the name and an id */
    const struct reply_tags *tags;
    const char *keys[2]; /* JSON: what name and arguments are called when we write it; NULL = the usual */
    bool list;           /* JSON, CODE: all calls stand in one list */
    bool numbered;       /* NAMED: "functions.NAME:0", which is also its id */
    bool single;         /* a call ends the answer */
    bool known;          /* only names of tools that there are: else it is text */
};

enum { REPLY_WRAPS = 4, REPLY_MARKS = 6 };
enum reply_bare { BARE_NEVER, BARE_TOO, BARE_USUAL }; /* a call may be the whole text, without any mark */

struct reply_form {
    const char *name;
    const char *marks[2];                 /* the template has both */
    struct reply_wrap wraps[REPLY_WRAPS]; /* the first is the one that we write */
    const char *section[4];               /* around all calls: open, close, and another pair */
    const char *drop[REPLY_MARKS];        /* marks without meaning for the client */
    enum reply_bare bare;
    bool short_ids; /* ids of calls have nine letters and digits */
};

struct reply_thought {
    const char *name, *mark, *open, *close; /* mark: the template has it */
};

/* Never NULL: what no template says is the general one. */
const struct reply_form *reply_form_find(const char *template_text);
const struct reply_thought *reply_thought_find(const char *template_text);
/* Is this text a part of what calls or reasoning are marked with? thought may be NULL. */
bool reply_has_mark(const struct reply_form *f, const struct reply_thought *t, const char *text, size_t n);
/* NULL and an error that lists the names. */
const struct reply_form *reply_form_named(const char *name, struct err *e);
const struct reply_thought *reply_thought_named(const char *name, struct err *e);
extern const struct reply_form *const reply_forms; /* (reply_form_count) */
extern const size_t reply_form_count;

enum reply_part { REPLY_TEXT, REPLY_REASON, REPLY_CALL };

struct reply_piece {
    enum reply_part part;
    const char *text; /* of a call: its arguments, a JSON object, or the next part of them */
    size_t n;
    const char *name, *id; /* of a call that begins; the id may be NULL. name NULL: the last call goes on */
    bool more;             /* of a call: its arguments are not whole yet */
};

struct reply_options {
    const struct reply_form *form;
    const struct reply_thought *thought; /* NULL = reasoning is text */
    const json_t *tools;                 /* OpenAI's list; NULL = calls are text; has to outlive the reply */
    bool thinking;                       /* the prompt has already opened the reasoning */
    bool ruled;                          /* the model is held to reply_constraint where a call begins */
    bool only_calls;                     /* ... and writes nothing else, but for reasoning */
    void (*take)(void *arg, const struct reply_piece *p);
    void *arg;
};

struct reply;
struct reply *reply_open(const struct reply_options *o, struct err *e);
/* Before anything else is fed: the text that the answer goes on from. It sets where the answer stands (in reasoning, in
 * a call), and none of it is taken as a piece, but for a call that is not whole: that goes on. -1 when memory is out. */
int reply_go_on(struct reply *r, const char *text, size_t n);
/* Does the answer stand in reasoning. */
bool reply_reasons(const struct reply *r);
/* Bytes at the end of what was fed that are a call which is not whole; 0 = it stands elsewhere. */
size_t reply_call_begun(const struct reply *r);
/* -1 when memory is out. */
int reply_feed(struct reply *r, const char *text, size_t n);
/* cut: the model would have written more. Then the beginning of a mark is no text. */
int reply_end(struct reply *r, bool cut);
void reply_close(struct reply *r);

/* Does this prompt end with the beginning of reasoning? */
bool reply_is_thinking(const struct reply_thought *t, const char *prompt, size_t n);

/* ---- calls that are asked for ---- */

struct constraint;
struct reply_rule {
    const json_t *tools;  /* OpenAI's list */
    const char *only;     /* this one; NULL = any of them */
    bool many;            /* several calls */
    bool loose;           /* arguments are any object: the schemas ask for what cannot be enforced */
    const json_t *answer; /* or a text of this schema instead; NULL = only calls */
    bool free;            /* any text, too, and calls in every way that the form knows */
    const struct reply_thought *thought; /* NULL = there is no reasoning */
    bool thinking;                       /* the prompt has already opened it */
};

/* The language of all that the model may write: calls in this form, arguments by each tool's schema. */
struct constraint *reply_constraint(const struct reply_form *f, const struct reply_rule *r, struct err *e);
/* What the text of calls begins with. */
const char *reply_trigger(const struct reply_form *f);
/* Can a tool be called this? */
bool reply_is_name(const char *name);
/* The function of tools[i], or the one of that name: {name, parameters?, ...}. */
const json_t *reply_function(const json_t *tools, size_t i);
const json_t *reply_tool(const json_t *tools, const char *name);
