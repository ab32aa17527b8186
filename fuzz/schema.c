/* Any JSON as a schema. What compiles is walked, and a text that ends is JSON. */
#include "walk.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[4096];
    size_t len;
    struct err e = {0};
    json_error_t error;
    json_t *schema =
        size > 65536 ? NULL : json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!schema)
        return 0;
    struct constraint *c = constraint_from_schema(schema, &e);
    if (!c && (!e.code || !e.text[0]))
        abort();
    if (c && walk_constraint(c, data, size, out, &len, 60)) {
        json_t *value =
            json_loadb(out, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &error);
        /* NUL in a key and numbers beyond a double are JSON, but not jansson's. */
        if (!value && !strstr(error.text, "NUL") && !strstr(error.text, "overflow")) {
            fprintf(stderr, "%s: %.*s\n", error.text, (int)len, out);
            abort();
        }
        json_decref(value);
    }
    json_decref(schema);
    return 0;
}
