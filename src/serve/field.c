#include "serve/field.h"

#include "serve/limit.h"

#include <math.h>

static unsigned field_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_TRUE:
    case JSON_FALSE:
        return FIELD_BOOL;
    case JSON_INTEGER:
        return FIELD_INT | FIELD_NUM;
    case JSON_REAL:
        return FIELD_NUM;
    case JSON_STRING:
        return FIELD_TEXT;
    case JSON_ARRAY:
        return FIELD_LIST;
    case JSON_OBJECT:
        return FIELD_OBJECT;
    default:
        return 0;
    }
}

static const char *field_kind_name(unsigned kinds)
{
    static const char *const names[] = {"true or false", "a whole number", "a number",
                                        "a text",        "a list",         "an object"};
    int i = 0;
    while (!(kinds >> i & 1))
        i++;
    return names[i];
}

static int field_check_one(const json_t *v, const struct field *f, struct err *e)
{
    const double most = limit_of_field(f->name, f->most);
    unsigned kind = field_kind(v) & f->kinds;
    /* 3.0 is a whole number too */
    if (!kind && json_is_real(v) && f->kinds & FIELD_INT && floor(json_real_value(v)) == json_real_value(v))
        kind = FIELD_INT;
    const unsigned types = f->kinds & (FIELD_NO_LIMIT - 1);
    if (!kind && types & (types - 1))
        return err_set(e, ERR_USAGE, "%s has to be %s or %s", f->name, field_kind_name(types),
                       field_kind_name(types & (types - 1)));
    if (!kind)
        return err_set(e, ERR_USAGE, "%s has to be %s", f->name, field_kind_name(f->kinds));
    if (kind & (FIELD_BOOL | FIELD_TEXT))
        return 0;
    bool counted = kind & (FIELD_LIST | FIELD_OBJECT);
    double n = !counted            ? json_number_value(v)
               : kind & FIELD_LIST ? (double)json_array_size(v)
                                   : (double)json_object_size(v);
    const bool no_limit = !counted && f->kinds & FIELD_NO_LIMIT;
    if (!(n >= f->least && n <= most) && !(no_limit && n == -1))
        return err_set(e, ERR_USAGE, "%s is %.15g%s; it has to be from %.15g to %.15g%s", f->name, n,
                       counted ? " items long" : "", f->least, most, no_limit ? ", or -1" : "");
    return 0;
}

int field_check(const json_t *o, const struct field *table, size_t count, const char **name, struct err *e)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_object_get(o, table[i].name);
        *name = table[i].name;
        if (v && field_check_one(v, &table[i], e))
            return -1;
    }
    return 0;
}

void field_drop_nulls(json_t *o)
{
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(o, next, key, v)
    {
        if (json_is_null(v))
            json_object_del(o, key);
    }
}

const char *field_text(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

double field_num(const json_t *o, const char *name, double otherwise)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

int64_t field_int(const json_t *o, const char *name, int64_t otherwise)
{
    const json_t *v = json_object_get(o, name);
    return json_is_integer(v)                                    ? json_integer_value(v)
           : json_is_real(v) && fabs(json_real_value(v)) <= 9e15 ? (int64_t)json_real_value(v)
                                                                 : otherwise;
}

bool field_whole(const json_t *v, int64_t least, int64_t most, int64_t *out)
{
    double d = json_number_value(v);
    if (!json_is_number(v) || floor(d) != d || d < (double)least || d > (double)most)
        return false;
    *out = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    return true;
}

int field_bool(const json_t *o, const char *name)
{
    return json_is_true(json_object_get(o, name));
}
