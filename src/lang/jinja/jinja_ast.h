/* A template as a tree, and the steps that make it: tokens, parser, scopes. Everything lives in the arena
 * of the template and never changes once it is compiled. */
#pragma once

#include "lang/jinja/jinja_call.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_value.h"

enum jtok_kind {
    JT_EOF,
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    /* operators, in the order of jtok_text */
    JT_ADD,
    JT_SUB,
    JT_DIV,
    JT_FLOORDIV,
    JT_MUL,
    JT_MOD,
    JT_POW,
    JT_TILDE,
    JT_LBRACKET,
    JT_RBRACKET,
    JT_LPAREN,
    JT_RPAREN,
    JT_LBRACE,
    JT_RBRACE,
    JT_EQ,
    JT_NE,
    JT_GT,
    JT_GE,
    JT_LT,
    JT_LE,
    JT_ASSIGN,
    JT_DOT,
    JT_COLON,
    JT_PIPE,
    JT_COMMA
};

struct jtok {
    enum jtok_kind kind;
    int line;
    struct jv v; /* data, names and strings: text; numbers: themselves */
};

struct jtokens {
    struct jtok *t; /* (n) ends with JT_EOF */
    size_t n;
};

struct jtokens jlex(struct jrt *rt, const char *text, size_t n);
const char *jtok_describe(struct jrt *rt, const struct jtok *t);

enum jnode_kind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* name, ref */
    JN_NSREF,   /* name.attr as a target: name, ref, value = attr */
    JN_TUPLE,   /* list */
    JN_LIST,    /* list */
    JN_DICT,    /* list of JN_PAIR */
    JN_PAIR,    /* a: b */
    JN_COND,    /* b if a else c (NULL) */
    JN_OR,      /* a, b */
    JN_AND,     /* a, b */
    JN_NOT,     /* a */
    JN_NEG,     /* a */
    JN_POS,     /* a */
    JN_COMPARE, /* a, list of JN_OPERAND */
    JN_OPERAND, /* op, a */
    JN_BINARY,  /* op, a, b */
    JN_CONCAT,  /* list */
    JN_ATTR,    /* a.name */
    JN_ITEM,    /* a[b] */
    JN_SLICE,   /* a[list of three, each may be JN_CONST None] */
    JN_CALL,    /* a(args) */
    JN_FILTER,  /* a|name(args); a NULL: of a block */
    JN_TEST,    /* a is name(args) */
    JN_KEYWORD, /* name = a, in args */
    /* statements */
    JN_OUTPUT,       /* list of expressions */
    JN_FOR,          /* a in b if c; body, other, frame, other_frame, func (test), inner (recursive) */
    JN_IF,           /* a, body, list of JN_IF (elif), other */
    JN_SET,          /* a = b */
    JN_SET_BLOCK,    /* a = body through filter b (NULL) */
    JN_MACRO,        /* name, list of params, list2 of defaults, body */
    JN_CALL_BLOCK,   /* a = call; as JN_MACRO */
    JN_FILTER_BLOCK, /* b = filter, body */
    JN_WITH,         /* list of targets, list2 of values, body */
    JN_BLOCK,        /* name, body */
    JN_SCOPE,        /* body; a = condition of autoescape */
    JN_BREAK,
    JN_CONTINUE,
    JN_NO_LOADER /* include, import, extends: list of names that it would set */
};

enum { JUSES_LOOP = 1, JUSES_CALLER = 2, JUSES_KWARGS = 4, JUSES_VARARGS = 8 };

/* Where a variable is stored: how many functions out, and in which slot. */
struct jref {
    uint16_t hops;
    uint16_t slot;
};

enum jload_kind { JLOAD_PARAM, JLOAD_RESOLVE, JLOAD_ALIAS, JLOAD_UNDEF };

/* What is done with a variable when its frame is entered; it is unset when the frame is left. */
struct jload {
    struct jref ref; /* always of the same function */
    enum jload_kind kind;
    struct jref from; /* JLOAD_ALIAS */
    struct jstr *name;
};

struct jframe {
    struct jload *load; /* (n) */
    size_t n;
};

struct jargs {
    struct jnode *pos, *kw;       /* linked by next; kw are JN_KEYWORD */
    struct jnode *more, *more_kw; /* *more, **more_kw */
    size_t npos, nkw;
};

struct jnode {
    uint8_t kind; /* enum jnode_kind */
    uint8_t op;   /* enum jbin or enum jcmp */
    uint8_t uses; /* JUSES_...: names that the body of a loop or macro mentions */
    bool recursive, toplevel, store;
    int line;
    struct jnode *next;
    struct jnode *a, *b, *c;
    struct jnode *list, *list2, *body, *other;
    size_t count; /* of list */
    struct jstr *name;
    struct jv value;
    struct jargs *args;
    const struct jfunc *func; /* filter or test; NULL: there is none of that name */
    struct jref ref;
    struct jref special[4]; /* loop of JN_FOR; caller, kwargs, varargs of a macro by bit */
    struct jframe *frame, *other_frame, *test_frame;
    size_t slots, test_slots; /* of the function that it is the root of */
};

/* jinja_parse.c, jinja_expr.c */
struct jparser {
    struct jrt *rt;
    struct jtok *t;
    unsigned uses;
    struct jdict *names;          /* all names that are read */
    const char *const *ends[200]; /* of the blocks that are open, innermost last */
    size_t nends;
};

struct jnode *jparse(struct jrt *rt, const char *text, size_t n, struct jdict *names);
struct jnode *jnode_new(struct jparser *p, enum jnode_kind kind, int line);
struct jnode *jparse_expression(struct jparser *p);
struct jnode *jparse_tuple(struct jparser *p, bool condexpr, const char *end);
struct jnode *jparse_parenthesized(struct jparser *p); /* behind '(' */
struct jnode *jparse_target(struct jparser *p, const char *end, bool with_namespace);
struct jnode *jparse_filters(struct jparser *p, struct jnode *node, bool start_inline);
_Noreturn void jparse_fail(struct jparser *p, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
struct jtok *jparse_take(struct jparser *p); /* the current token; the next becomes current */
bool jparse_is(const struct jparser *p, enum jtok_kind kind);
bool jparse_is_name(const struct jparser *p, const char *name);
bool jparse_skip(struct jparser *p, enum jtok_kind kind);
bool jparse_skip_name(struct jparser *p, const char *name);
struct jtok *jparse_expect(struct jparser *p, enum jtok_kind kind);
struct jnode **jnode_append(struct jnode **tail, struct jnode *n); /* returns the new tail */

/* jinja_scope.c: resolves every name to a slot, as jinja2's compiler does; checks filters and tests */
void jscope(struct jrt *rt, struct jnode *root);

struct jinja {
    struct arena arena;
    struct jnode *root;
    struct jdict *names;
};
