/* Running a tree: environments, loops, macros. */
#pragma once

#include "lang/jinja/jinja_ast.h"

/* The variables of one call of a function. Macros keep the one that they were defined in. */
struct jenv {
    struct jenv *parent;
    struct jv *slot;
};

enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE };

struct jmacro {
    const struct jnode *node;
    struct jenv *env; /* of its definition */
};

struct jloop {
    const struct jnode *node;
    struct jenv *env; /* outside of the loop: where a recursive call starts from */
    struct jv over;   /* what is iterated, for its length; J_MISSING where that has none */
    struct jiter *it;
    struct jv before, current, after; /* after: J_MISSING = not peeked at yet */
    struct jv changed;                /* arguments of the last loop.changed(), or J_MISSING */
    int64_t index0, depth0;
    size_t length;
    bool has_length;
};

struct jv jeval(struct jrt *rt, struct jenv *env, const struct jnode *n);
struct jcall jeval_args(struct jrt *rt, struct jenv *env, const struct jargs *a, const char *name);
struct jv jeval_filter(struct jrt *rt, struct jenv *env, const struct jnode *n, struct jv block);
enum jflow jexec(struct jrt *rt, struct jenv *env, const struct jnode *list);
struct jv *jenv_at(struct jenv *env, struct jref ref);

struct jv jmacro_call(struct jrt *rt, struct jmacro *m, const struct jcall *c);
struct jv jloop_call(struct jrt *rt, struct jloop *l, const struct jcall *c);
size_t jloop_length(struct jrt *rt, struct jloop *l);
struct jv jloop_peek(struct jrt *rt, struct jloop *l); /* the next item, J_MISSING behind the last */
