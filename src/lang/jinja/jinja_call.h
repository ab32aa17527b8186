/* Calling: arguments, their binding to parameters, the tables of functions, filters, tests and methods, and
 * iteration, which many of them use. */
#pragma once

#include "lang/jinja/jinja_value.h"

#define JARGS_MAX 10

struct jcall {
    const char *name; /* for messages */
    size_t npos, nkw;
    struct jv *pos; /* (npos) */
    struct jv *kw;  /* (2 * nkw) name, value */
};

/* A function: `params` are the names of its parameters, separated by blanks; those before '|' must be given.
 * The function gets all of them in order, J_MISSING where not given. params NULL: it takes the call itself. */
struct jfunc {
    const char *name;
    const char *params;
    union {
        struct jv (*bound)(struct jrt *rt, struct jv self, struct jv *arg);
        struct jv (*call)(struct jrt *rt, struct jv self, const struct jcall *c);
    };
};

struct jv jfunc_run(struct jrt *rt, const struct jfunc *f, struct jv self, const struct jcall *c);
struct jv jcall_value(struct jrt *rt, struct jv callee, const struct jcall *c);

const struct jfunc *jfilter_find(const char *name, size_t n);
const struct jfunc *jtest_find(const char *name, size_t n);
const struct jfunc *jglobal_find(const char *name, size_t n);
/* The attribute of a value that Python would find before any key: a method, loop.index; J_MISSING = none. */
struct jv jmethod_find(struct jrt *rt, struct jv obj, const struct jstr *name);

/* Arguments, taken as their function needs them; `what` is for the message. */
bool jarg_given(struct jv v); /* neither missing nor None */
int64_t jarg_int(struct jrt *rt, struct jv v, int64_t otherwise, const char *what);
struct jstr *jarg_str(struct jrt *rt, struct jv v, const char *what);

/* Iteration. jiter_of fails for what cannot be iterated. */
struct jiter;
struct jiter *jiter_of(struct jrt *rt, struct jv v);
bool jiter_next(struct jrt *rt, struct jiter *it, struct jv *out);
bool jiter_can(struct jv v);
struct jlist *jiter_list(struct jrt *rt, struct jv v);              /* all that is left of it */
struct jv jiter_reversed(struct jrt *rt, struct jv v, bool strict); /* strict: only what Python can reverse */

/* A lazy sequence: step gives the next item or false. */
struct jiter {
    bool (*step)(struct jrt *rt, struct jiter *it, struct jv *out);
    struct jiter *from; /* what it draws on */
    struct jv v;        /* what it walks over */
    size_t at, n;
    void *own;
};

struct jv jiter_value(struct jrt *rt, struct jiter it);
