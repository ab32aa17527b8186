/* Shared by the files of schema_*.c: JSON schema to grammar rules.
 *
 * A value is described by several schemas at once (allOf, $ref with its siblings, a property that two schemas
 * name): struct conj is such a list, with $ref and allOf already followed. Every list becomes one rule, so a
 * recursive schema becomes a recursive grammar. Each keyword is looked up in all schemas of the list, and the
 * strictest wins. anyOf and oneOf are taken one by one: an alternative is the list with one branch added.
 *
 * What cannot be enforced is refused with an error; annotation keywords are ignored. */
#pragma once

#include "lang/grammar/grammar_front.h"

#include <jansson.h>

enum {
    SCHEMA_DEPTH = 64,
    SCHEMA_NODES = 65536,
    SCHEMA_PARTS = 48,   /* schemas that hold at once */
    SCHEMA_PATTERNS = 4, /* patternProperties that hold at once */
    SCHEMA_GRID = 8192,  /* properties by how many are there already */
    SCHEMA_MULTIPLE = 4096
};

enum { /* sets of types; a number that is no integer is a type of its own */
       T_NULL = 1,
       T_BOOL = 2,
       T_INTEGER = 4,
       T_FRACTION = 8,
       T_STRING = 16,
       T_ARRAY = 32,
       T_OBJECT = 64,
       T_ALL = 127,
       T_NUMBER = T_INTEGER | T_FRACTION
};

enum { CONJ_TOP = 0xffff };
enum { TAKEN_ANY = 1, TAKEN_ONE = 2 }; /* a branch of it has been added */

struct conj {
    uint32_t n;
    bool never; /* nothing satisfies it */
    struct conj_part {
        const json_t *s; /* an object */
        uint16_t taken;
        uint16_t parent; /* the part that brought it: $ref, allOf, a branch; CONJ_TOP = none */
        bool open;       /* what it refers to is being added */
        bool aside;      /* it came with a negation: it looks at no property in the schema's name */
    } part[SCHEMA_PARTS];
};

struct schema {
    struct grammar *g;
    const json_t *root;
    json_t *own; /* schemas that we wrote */
    struct schema_rule {
        struct conj *of;
        uint32_t rule, hash;
    } * rules; /* (count): those from `done` on wait for their bodies */
    uint32_t count, cap, done;
    uint32_t *slots;        /* hash of rules: index + 1 */
    uint32_t space, string; /* rules */
    struct gram *character; /* of a string, with every escape */
    const struct dfa *keys; /* every JSON string, in its shortest form */
    bool embedded;          /* a schema inside has an $id, which would change what "#" means there */
    uint32_t work;          /* bounded: some schemas multiply */
    struct schema_made {
        const json_t *from;
        json_t *made; /* in `own`; NULL = nothing to say */
        bool negated;
    } * made; /* what we wrote for a schema: once, so that recursion comes back to the same */
    uint32_t made_count, made_cap;
    struct {
        const char *pattern;
        enum pattern_kind kind;
        const struct dfa *dfa;
    } patterns[16]; /* the last ones, in a ring */
    uint32_t pattern_next;
};

enum { SCHEMA_SLOTS = 1 << 16, SCHEMA_WORK = 200000 };

void schema_refuse(struct schema *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Values that satisfy this keyword (or its opposite) are passed over. */
static inline void schema_leave_out(struct schema *s, const char *keyword)
{
    s->g->left_out = s->g->left_out ? s->g->left_out : keyword;
}
static inline bool schema_stop(const struct schema *s)
{
    return s->g->err.code != 0;
}

/* Adds a schema, and what it refers to. */
void conj_add(struct schema *s, struct conj *c, const json_t *one, uint32_t parent);
void conj_copy(struct conj *to, const struct conj *from);
/* Did part d come with part k (or is it that)? Then k knows what d has looked at: unevaluatedProperties. */
bool conj_below(const struct conj *c, uint32_t d, uint32_t k);
/* The part with a choice that is still open, and its branches; NULL = none. */
const json_t *conj_choice(const struct conj *c, uint32_t *part, uint32_t *bit);
/* The list with that choice taken. */
void conj_branch(struct schema *s, const struct conj *c, uint32_t part, uint32_t bit, const json_t *branch,
                 struct conj *out);
uint32_t conj_types(struct schema *s, const struct conj *c);
/* The values that enum and const leave, a new array (or NULL where there is neither). */
json_t *conj_values(struct schema *s, const struct conj *c);
/* The largest lower bound or the smallest upper one among whole numbers; `none` where no part has it. */
uint32_t conj_least(struct schema *s, const struct conj *c, const char *keyword, uint32_t none);
uint32_t conj_most(struct schema *s, const struct conj *c, const char *keyword, uint32_t none);
bool conj_has(const struct conj *c, const char *keyword);

/* A call of the rule for such a value. */
struct gram *schema_value(struct schema *s, const struct conj *c);
struct gram *schema_space(struct schema *s);
struct gram *schema_number(struct schema *s, const struct conj *c, uint32_t types);
struct gram *schema_string(struct schema *s, const struct conj *c);
struct gram *schema_array(struct schema *s, const struct conj *c);
struct gram *schema_object(struct schema *s, const struct conj *c);
struct gram *schema_one_of(struct schema *s, const struct conj *c, uint32_t part, const json_t *branches);
/* The text of a value. */
struct gram *schema_literal(struct schema *s, const json_t *v);

/* What a string holds, between its quotes and in its shortest form; NULL = every string. */
const struct dfa *schema_string_dfa(struct schema *s, const struct conj *c);
const struct dfa *schema_pattern_dfa(struct schema *s, const char *pattern, enum pattern_kind kind);
const struct dfa *schema_keys(struct schema *s);
/* A string as it stands between quotes, appended. */
struct buf;
void schema_quote(struct buf *out, const char *text, size_t n);

/* What follows from not, if, dependentRequired and dependentSchemas, in other keywords; NULL = nothing. */
const json_t *schema_derived(struct schema *s, const json_t *one);
/* A schema of values that do not satisfy this one: all of them, or those that can be told. NULL = none can. */
const json_t *schema_negated(struct schema *s, const json_t *one);
#define SCHEMA_NOT_PATTERN  "\001pattern"  /* our own keyword: a string that does not match */
#define SCHEMA_ASIDE        "\001aside"    /* our own keyword: what comes with it is aside */
#define SCHEMA_NOT_ENUM     "\001enum"     /* our own keyword: a string that is none of these */
#define SCHEMA_NOT_MULTIPLE "\001multiple" /* our own keyword: a number that is no multiple */
const json_t *schema_ref(struct schema *s, const char *ref);

struct schema_bound {
    bool set, strict;
    double v;
};
void schema_bounds(struct schema *s, const struct conj *c, struct schema_bound *lo, struct schema_bound *hi);
/* Multiples that are asked for: 0 = none, otherwise their least common one. */
uint32_t schema_multiple(struct schema *s, const struct conj *c);
/* Of those that are excluded, that of one part of the list; 0 = none. */
uint32_t schema_not_multiple(struct schema *s, const struct conj *c, uint32_t part);

/* What holds for element i, for the property of a name. */
void schema_item(struct schema *s, const struct conj *c, uint32_t i, struct conj *out);
void schema_property(struct schema *s, const struct conj *c, const char *name, struct conj *out);
bool schema_required(const struct conj *c, const char *name);

/* Is it certain that no value satisfies both? */
bool schema_apart(struct schema *s, const struct conj *a, const struct conj *b, int depth);
/* Does the value satisfy all but enum and const? Arrays and objects with further keywords are refused. */
bool schema_allows(struct schema *s, const struct conj *c, const json_t *v);
