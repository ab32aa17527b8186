/* The values of Jinja: those of Python that a template can use. All of them live in the arena of one render
 * (constants: of the template) and are freed with it. Lists, dicts and strings never change after they were
 * made; namespaces, cyclers, joiners, loops and iterators do.
 *
 * A failure leaves the render (or the compilation) at once, by longjmp to where it was started: nothing is
 * owned outside the arena, so nothing leaks. No function here returns an error. */
#pragma once

#include "base/err.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum jkind {
    J_MISSING, /* no value at all: an argument that was not given, a variable that was not set */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW,
    J_RANGE,
    J_ITER,
    J_NS,
    J_MACRO,
    J_FUNC,
    J_METHOD,
    J_LOOP,
    J_CYCLER,
    J_JOINER
};

struct jv {
    uint8_t kind; /* enum jkind */
    uint8_t data; /* a scalar that came from the data: its text is data too */
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l; /* lists and tuples */
        struct jdict *d; /* dicts and namespaces */
        struct jview *view;
        struct jrange *range;
        struct jiter *it;
        struct jundef *undef;
        struct jmacro *macro;
        struct jmethod *method;
        struct jloop *loop;
        struct jcycler *cycler;
        struct jjoiner *joiner;
        const struct jfunc *func;
    };
};

/* Text, always valid UTF-8. */
struct jstr {
    const char *s;       /* (n) not NUL-terminated */
    const uint8_t *mask; /* (n) 1 = this byte came from the data; NULL = all bytes as `data` says */
    size_t n, chars;     /* bytes, code points */
    struct jbuf *buf;    /* where s lies, if more can be appended behind it */
    bool data, markup;   /* markup: a str that HTML escaping leaves alone */
};

/* The room behind a string: a longer string may share it, so that building text piece by piece is linear. */
struct jbuf {
    char *s;
    uint8_t *mask;
    size_t used, cap;
};

struct jlist {
    struct jv *v; /* (n) */
    size_t n;
    struct jroom *room; /* as jbuf, for lists */
    bool group;         /* a tuple of groupby, with the attributes grouper and list */
};

struct jroom {
    struct jv *v;
    size_t used, cap;
};

/* A dict in order of insertion; a hash index appears beyond a few items. */
struct jpair {
    struct jv key, value;
    uint64_t hash;
};

struct jdict {
    struct jpair *item; /* (n) */
    size_t n, cap;
    uint32_t *index; /* (slots) item + 1, 0 = free; NULL while small */
    size_t slots;    /* a power of two */
};

enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };

struct jview {
    enum jview_kind kind;
    struct jdict *d;
};

struct jrange {
    int64_t start, stop, step;
    size_t n;
};

struct jundef {
    const char *hint; /* the whole message, or NULL: made from the rest */
    struct jv obj;    /* J_MISSING: a plain name */
    struct jv name;
};

struct jmethod {
    struct jv self;
    const struct jfunc *func;
};

struct jcycler {
    struct jlist *items;
    size_t pos;
};

struct jjoiner {
    struct jv sep;
    bool used;
};

/* What a running render, or a compilation, carries. Belongs to one thread. */
struct jrt {
    struct arena arena;
    uint64_t fuel;
    unsigned depth, depth_max;
    int line; /* of the template, where evaluation stands */
    struct err *err;
    jmp_buf fail;
    struct jdict *vars;  /* what the template set at its top level */
    struct jdict *given; /* what the caller supplied */
    struct jsb *out;     /* where output goes now */
    struct tm now;
};

/* -- failing, and counting */
_Noreturn void jfail(struct jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void jfail_limit(struct jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *jalloc(struct jrt *rt, size_t count, size_t size);
void jcharge(struct jrt *rt, size_t bytes); /* fuel for work on that many bytes, and one step */
void jdeeper(struct jrt *rt);               /* one level down; jshallower undoes it */
static inline void jshallower(struct jrt *rt)
{
    rt->depth--;
}

/* -- text */
struct jstr *jstr_new(struct jrt *rt, const char *s, size_t n, bool data); /* does not copy */
struct jstr *jstr_copy(struct jrt *rt, const char *s, size_t n, bool data);
struct jstr *jstr_lit(struct jrt *rt, const char *s); /* a C literal, as template text */
struct jstr *jstr_sub(struct jrt *rt, const struct jstr *s, size_t from, size_t n); /* bytes; shares them */
struct jstr *jstr_concat(struct jrt *rt, const struct jstr *a, const struct jstr *b);
struct jstr *jstr_plain(struct jrt *rt, struct jstr *s);  /* the same without the markup flag */
struct jstr *jstr_markup(struct jrt *rt, struct jstr *s); /* and with it */
bool jstr_eq(const struct jstr *a, const struct jstr *b);
bool jstr_is(const struct jstr *a, const char *lit);
int jstr_cmp(const struct jstr *a, const struct jstr *b); /* by code points */
bool jstr_any_data(const struct jstr *s);
size_t jstr_offset(const struct jstr *s, size_t chars);   /* byte offset of a code point, chars <= s->chars */
size_t jstr_count(const char *s, size_t n);               /* code points */
const char *jstr_c(struct jrt *rt, const struct jstr *s); /* for messages: NUL-terminated, cut at 200 bytes */
bool jstr_data_at(const struct jstr *s, size_t i);

/* A string under construction. */
struct jsb {
    struct jrt *rt;
    char *s;
    uint8_t *mask;
    size_t n, cap, max; /* max 0 = bounded by the arena alone */
    unsigned seen;      /* bit 0: template bytes in it, bit 1: data bytes */
};

void jsb_add(struct jsb *b, const char *s, size_t n, bool data);
void jsb_lit(struct jsb *b, const char *s, bool data);
void jsb_cp(struct jsb *b, uint32_t cp, bool data);
void jsb_str(struct jsb *b, const struct jstr *s);
void jsb_sub(struct jsb *b, const struct jstr *s, size_t from, size_t n);
struct jstr *jsb_done(struct jsb *b);

/* -- containers */
struct jlist *jlist_new(struct jrt *rt, size_t room);
void jlist_add(struct jrt *rt, struct jlist *l, struct jv v); /* only while the list is being made */
struct jlist *jlist_concat(struct jrt *rt, const struct jlist *a, const struct jlist *b);
struct jdict *jdict_new(struct jrt *rt);
void jdict_set(struct jrt *rt, struct jdict *d, struct jv key, struct jv value);
struct jv *jdict_get(struct jrt *rt, const struct jdict *d, struct jv key); /* NULL = not there */
struct jdict *jdict_copy(struct jrt *rt, const struct jdict *d);

/* -- making values */
static inline struct jv jv_none(void)
{
    return (struct jv){.kind = J_NONE};
}
static inline struct jv jv_missing(void)
{
    return (struct jv){.kind = J_MISSING};
}
static inline struct jv jv_bool(bool b)
{
    return (struct jv){.kind = J_BOOL, .b = b};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.kind = J_INT, .i = i};
}
static inline struct jv jv_float(double f)
{
    return (struct jv){.kind = J_FLOAT, .f = f};
}
static inline struct jv jv_str(struct jstr *s)
{
    return (struct jv){.kind = J_STR, .s = s};
}
static inline struct jv jv_list(struct jlist *l)
{
    return (struct jv){.kind = J_LIST, .l = l};
}
static inline struct jv jv_tuple(struct jlist *l)
{
    return (struct jv){.kind = J_TUPLE, .l = l};
}
static inline struct jv jv_dict(struct jdict *d)
{
    return (struct jv){.kind = J_DICT, .d = d};
}
struct jv jv_lit(struct jrt *rt, const char *s);
struct jv jv_pair(struct jrt *rt, struct jv a, struct jv b); /* a tuple of two */
struct jv jv_undef_hint(struct jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct jv jv_undef_name(struct jrt *rt, struct jv name);
struct jv jv_undef_attr(struct jrt *rt, struct jv obj, struct jv name);
_Noreturn void jfail_undef(struct jrt *rt, struct jv undef);

/* -- asking */
static inline bool jv_is_seq(struct jv v)
{
    return v.kind == J_LIST || v.kind == J_TUPLE;
}
static inline bool jv_is_int(struct jv v) /* bool is an int, as in Python */
{
    return v.kind == J_INT || v.kind == J_BOOL;
}
static inline bool jv_is_num(struct jv v)
{
    return jv_is_int(v) || v.kind == J_FLOAT;
}
static inline int64_t jv_as_int(struct jv v)
{
    return v.kind == J_BOOL ? v.b : v.i;
}
static inline double jv_as_float(struct jv v)
{
    return v.kind == J_FLOAT ? v.f : (double)jv_as_int(v);
}
bool jv_true(struct jv v);
const char *jv_type(struct jv v); /* Python's name of the type */
