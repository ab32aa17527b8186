/* A reader of large JSON files, for tokenizers: one pass into a flat array of nodes whose strings lie
 * unescaped in the text itself. Twenty megabytes of tokenizer.json take tens of milliseconds. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "format/jsonread.h"

#include <stdbool.h>
#include <stdint.h>

enum tj_type { TJ_NULL, TJ_BOOL, TJ_NUMBER, TJ_STRING, TJ_ARRAY, TJ_OBJECT };

struct tj_node {
    const char *key; /* of a member of an object; not NUL-terminated */
    union {
        const char *s;  /* string */
        double number;  /* number, bool */
        uint32_t child; /* array, object: index of the first, 0 = empty */
    };
    uint32_t n;    /* bytes of the string, members of the array or object */
    uint32_t next; /* index of the next sibling, 0 = last */
    uint32_t key_n;
    enum tj_type type;
};

struct tj {
    struct buf text;  /* owns the strings */
    const char *file; /* its name, for messages; tj_open cuts it out of the path */
    struct err *e;    /* of the call that opened it: getters are for the time of reading only */
    struct tj_node *nodes;
    uint32_t count, cap;
};

/* nodes[0] is the root. */
int tj_open(struct tj *j, const char *path, struct err *e);
void tj_close(struct tj *j);

const struct tj_node *tj_first(const struct tj *j, const struct tj_node *n); /* NULL = empty */
const struct tj_node *tj_next(const struct tj *j, const struct tj_node *n);
bool tj_is(const struct tj_node *n, const char *text); /* is it this string */

/* ---- typed getters ----
 *
 * The rules of format/jsonread.h: another type than `types` (enum jsonread_type) is an error that names the file
 * and the field, the first error stays in j->e, a key that ends with '?' may be null. */

/* The member of an object. NULL = absent, or an error; so it is where o is NULL. */
const struct tj_node *tj_get(const struct tj *j, const struct tj_node *o, const char *key, unsigned types);
/* The same for a member that has to be there. */
const struct tj_node *tj_need(const struct tj *j, const struct tj_node *o, const char *key, unsigned types);
/* A node that was found by walking: is it of these types? */
bool tj_expect(const struct tj *j, const struct tj_node *n, unsigned types);
/* A node as a whole number in the range; -1 and an error where it is none. */
int64_t tj_whole(const struct tj *j, const struct tj_node *n, int64_t least, int64_t most);
bool tj_bool(const struct tj *j, const struct tj_node *o, const char *key, bool otherwise);
