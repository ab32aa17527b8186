/* Grammars over bytes. The front ends (GBNF, patterns, JSON schema) write rules as trees of nodes; the compiler
 * turns them into a program: a recursive transition network whose states read bytes, branch, or call a rule.
 *
 *   struct grammar   trees in an arena, being written; one thread; freed once the program is made
 *   struct program   states, edges and rules; never changes; may be shared
 *
 * Building never fails half-way: the first error (memory, a limit) sticks to the grammar, the functions return
 * a node that matches nothing, and grammar_compile reports it. */
#pragma once

#include "base/err.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GRAMMAR_MEMORY = 16 << 20, /* bytes of trees and automata of one grammar */
    GRAMMAR_RULES = 20000,
    GRAMMAR_DEPTH = 200,      /* of a tree */
    PROGRAM_STATES = 1 << 18, /* of the compiled program */
    PROGRAM_EDGES = 1 << 19,
    PROGRAM_NESTING = 400 /* frames: how deep rules may call each other in a text */
};
#define GRAMMAR_MOST UINT32_MAX /* a repetition without an upper bound */

struct range { /* of code points, both ends in it */
    uint32_t lo, hi;
};

enum gram_kind { GRAM_FAIL, GRAM_BYTES, GRAM_CLASS, GRAM_SEQ, GRAM_ALT, GRAM_REP, GRAM_CALL, GRAM_DFA };

struct dfa;

struct gram {
    enum gram_kind kind;
    bool quoted; /* CLASS: as it stands inside a JSON string: raw, or escaped where JSON asks for that */
    uint16_t depth;
    uint32_t n;        /* BYTES: bytes; CLASS: ranges; SEQ, ALT: kids; CALL: the rule */
    uint32_t min, max; /* REP */
    union {
        const char *bytes;
        const struct range *ranges; /* (n), sorted, apart */
        struct gram **kids;         /* (n); REP: one */
        const struct dfa *dfa;
    };
};

/* A deterministic automaton over bytes: state 0 is dead, 1 is the start. */
struct dfa {
    uint32_t n, classes;
    uint8_t class_of[256]; /* bytes that no state tells apart have one class */
    const uint16_t *next;  /* (n, classes) */
    const uint8_t *accept; /* (n) */
};

static inline uint32_t dfa_next(const struct dfa *d, uint32_t state, uint32_t byte)
{
    return d->next[state * d->classes + d->class_of[byte]];
}

struct grammar {
    struct arena arena;
    struct gram **rules; /* (count): NULL = declared, not defined yet */
    uint32_t count, cap;
    size_t work;    /* spent on automata, which is bounded */
    struct err err; /* the first error */
    /* A keyword of the source that is not enforced in full: all output satisfies it, but not every valid text
     * can be written. */
    const char *left_out;
};

void grammar_init(struct grammar *g);
void grammar_free(struct grammar *g);
void grammar_fail(struct grammar *g, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct gram *gram_fail(struct grammar *g); /* matches nothing */
struct gram *gram_bytes(struct grammar *g, const char *s, size_t n);
struct gram *gram_text(struct grammar *g, const char *s);
struct ranges;
/* Joins the ranges and keeps them. */
struct gram *gram_class(struct grammar *g, struct ranges *r, bool quoted);
/* Of ASCII characters, two for each range: "09azAZ__". */
struct gram *gram_ascii(struct grammar *g, const char *pairs);
struct gram *gram_list(struct grammar *g, enum gram_kind kind, struct gram *const *kids, size_t n);
#define GRAM_KIDS(...)                                                                                       \
    (struct gram *[]){__VA_ARGS__}, sizeof((struct gram *[]){__VA_ARGS__}) / sizeof(struct gram *)
#define gram_seq(g, ...) gram_list(g, GRAM_SEQ, GRAM_KIDS(__VA_ARGS__))
#define gram_alt(g, ...) gram_list(g, GRAM_ALT, GRAM_KIDS(__VA_ARGS__))
struct gram *gram_rep(struct grammar *g, struct gram *kid, uint32_t min, uint32_t max);
struct gram *gram_call(struct grammar *g, uint32_t rule);
struct gram *gram_dfa(struct grammar *g, const struct dfa *d);
struct gram *gram_any(struct grammar *g); /* any bytes, UTF-8 or not, or none */
/* Any bytes without this text in them. */
struct gram *gram_until(struct grammar *g, const char *text);
/* A rule: any bytes, this text, a little white space, and then the rule. */
uint32_t grammar_behind(struct grammar *g, const char *text, uint32_t rule);
uint32_t grammar_rule(struct grammar *g); /* a new one, to be defined: g->rules[it] = body */
void grammar_define(struct grammar *g, uint32_t rule, struct gram *body);

/* A list of nodes that grows in the grammar's arena. */
struct gram_items {
    struct gram **at;
    uint32_t n, cap;
};
void gram_push(struct grammar *g, struct gram_items *l, struct gram *one);

/* Code points, in the grammar's arena. */
struct ranges {
    struct range *at;
    size_t n, cap;
};
void ranges_add(struct grammar *g, struct ranges *l, uint32_t lo, uint32_t hi);
void ranges_invert(struct grammar *g, struct ranges *l);

/* Regular languages, for what needs them whole: no calls inside. NULL and the grammar's error when it is
 * too large. */
const struct dfa *dfa_make(struct grammar *g, const struct gram *node);
enum dfa_op { DFA_AND, DFA_MINUS };
const struct dfa *dfa_combine(struct grammar *g, const struct dfa *a, const struct dfa *b, enum dfa_op op);
/* Of d, the texts of at least min and at most max characters, each of which is a text of `one`. */
const struct dfa *dfa_counted(struct grammar *g, const struct dfa *d, const struct dfa *one, uint32_t min,
                              uint32_t max);
/* Texts of which no beginning is a text of `node`, which has to begin with gram_any. */
const struct dfa *dfa_never(struct grammar *g, const struct gram *node);
bool dfa_empty(const struct dfa *d);
bool dfa_accepts(const struct dfa *d, const char *s, size_t n);

/* --- the program --- */

enum grammar_op {
    OP_BYTES, /* edges [a, a + b): none = a dead end */
    OP_SPLIT, /* to a and to b, reading nothing */
    OP_CALL,  /* rule a, then go on at b */
    OP_END,   /* of a rule: return */
    OP_COUNT  /* the body of a counted rule is done once more: again, or return */
};

struct pstate {
    enum grammar_op op;
    uint32_t a, b;
    uint32_t rule;   /* that it belongs to */
    uint32_t height; /* frames that must be pushed, at least, to get from here to the rule's end */
};

struct pedge {
    uint8_t lo, hi;
    uint32_t to;
};

struct prule {
    uint32_t start;
    bool counted, simple; /* simple: a counted rule that calls none */
    bool nullable;     /* matches the empty text; callers step over it, so a frame always reads something */
    uint32_t min, max; /* counted: how many times */
};

struct program {
    struct pstate *states;
    struct pedge *edges;
    struct prule *rules;
    uint32_t state_count, edge_count, rule_count;
    uint32_t state_cap, edge_cap, rule_cap;
    uint8_t class_of[256]; /* bytes that no edge tells apart have one class */
    uint8_t class_byte[256];
    uint32_t classes;
    uint32_t root; /* rule */
};

/* Dead ends, left recursion and grammars that match no finite text are refused. */
int grammar_compile(struct grammar *g, uint32_t root, struct program *out, struct err *e);
void program_free(struct program *p);

/* Between the files of the compiler. flat: repetitions are written out, calls refused. */
int program_emit(struct grammar *g, const struct gram *root, bool flat, struct program *out);
int program_check(struct program *p, const char *left_out, struct err *e);
void program_classes(struct program *p);
