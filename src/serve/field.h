/* A table of a request's fields: their types and ranges. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FIELD_BOOL = 1,
    FIELD_INT = 2,
    FIELD_NUM = 4,
    FIELD_TEXT = 8,
    FIELD_LIST = 16,
    FIELD_OBJECT = 32,
    FIELD_NO_LIMIT = 64, /* of a whole number: -1 is allowed, too */
};

struct field {
    const char *name;
    unsigned kinds; /* any of the above */
    double least,
        most; /* of a number; or of the items of a list or an object; serve/limit.h may set another maximum */
};

/* Checks every field of the table that is present. On an error *name is the field's name. Unknown fields are
 * ignored. */
int field_check(const json_t *o, const struct field *table, size_t count, const char **name, struct err *e);
/* Removes null members: null counts as absent. */
void field_drop_nulls(json_t *o);

const char *field_text(const json_t *o, const char *name); /* NULL = absent or no text */
double field_num(const json_t *o, const char *name, double otherwise);
int64_t field_int(const json_t *o, const char *name, int64_t otherwise);
/* A whole number in this range, 3.0 too. */
bool field_whole(const json_t *v, int64_t least, int64_t most, int64_t *out);
int field_bool(const json_t *o, const char *name);
