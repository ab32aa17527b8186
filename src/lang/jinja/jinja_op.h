/* Operators of Python on values: arithmetic, comparison, containment, subscripts, text forms. */
#pragma once

#include "lang/jinja/jinja_value.h"

enum jbin { JBIN_ADD, JBIN_SUB, JBIN_MUL, JBIN_DIV, JBIN_FLOORDIV, JBIN_MOD, JBIN_POW };
enum jcmp { JCMP_EQ, JCMP_NE, JCMP_LT, JCMP_LE, JCMP_GT, JCMP_GE, JCMP_IN, JCMP_NOTIN };

bool jop_eq(struct jrt *rt, struct jv a, struct jv b);
bool jop_less(struct jrt *rt, struct jv a, struct jv b); /* fails where Python has no order */
bool jop_compare(struct jrt *rt, enum jcmp op, struct jv a, struct jv b);
struct jv jop_binary(struct jrt *rt, enum jbin op, struct jv a, struct jv b);
struct jv jop_negate(struct jrt *rt, struct jv a, bool minus);
bool jop_len(struct jv v, size_t *n); /* false: has no length */

/* Subscripts. The first two give an undefined value where there is nothing. */
struct jv jop_attr(struct jrt *rt, struct jv obj, struct jstr *name);
struct jv jop_item(struct jrt *rt, struct jv obj, struct jv key);
struct jv jop_slice(struct jrt *rt, struct jv obj, const struct jv bound[3]);
/* A path "a.b.0" of the filters that take an attribute; an int is an index. */
struct jv jop_path(struct jrt *rt, struct jv obj, struct jv path, struct jv fallback);

/* Text forms */
struct jstr *jop_str(struct jrt *rt, struct jv v);      /* str(v) without markup */
struct jstr *jop_soft_str(struct jrt *rt, struct jv v); /* a str stays what it is */
struct jstr *jop_repr(struct jrt *rt, struct jv v);
struct jstr *jop_pprint(struct jrt *rt, struct jv v);
size_t jop_float_text(double f, char out[32]);        /* Python's repr of a float */
struct jstr *jop_escape(struct jrt *rt, struct jv v); /* HTML; the result is markup */

struct jjson {
    bool ascii, sort, pretty;
    const struct jstr *indent, *item_sep, *key_sep;
};
struct jstr *jop_json(struct jrt *rt, struct jv v, const struct jjson *how);

/* Formatting: "..." % args, and "...".format(args) */
struct jcall;
struct jstr *jformat_percent(struct jrt *rt, const struct jstr *fmt, struct jv args);
struct jstr *jformat_braces(struct jrt *rt, const struct jstr *fmt, const struct jcall *args);
