/* Any bytes as JSON. What is read, written with our writer and read again, is the same. */
#include "base/buf.h"
#include "base/json.h"
#include "format/jsonread.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As json_equal, but 1e5 may come back as 100000. */
static int same(json_t *a, json_t *b)
{
    if (json_is_number(a))
        return json_is_number(b) && json_number_value(a) == json_number_value(b);
    if (json_is_array(a)) {
        if (!json_is_array(b) || json_array_size(a) != json_array_size(b))
            return 0;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!same(json_array_get(a, i), json_array_get(b, i)))
                return 0;
        return 1;
    }
    if (json_is_object(a)) {
        const char *key;
        json_t *value;
        if (!json_is_object(b) || json_object_size(a) != json_object_size(b))
            return 0;
        json_object_foreach(a, key, value)
        {
            json_t *other = json_object_get(b, key);
            if (!other || !same(value, other))
                return 0;
        }
        return 1;
    }
    return json_equal(a, b);
}

static void round_trip(json_t *v, int indent)
{
    struct buf text = {0};
    struct json out = {.out = &text, .indent = indent};
    struct err e = {0};
    jsonread_write(&out, v);
    json_t *again = text.failed ? NULL : jsonread_value(text.data, text.len, &jsonread_config, "again", &e);
    if (!again || !same(v, again))
        abort();
    json_decref(again);
    buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    json_t *v = jsonread_value((const char *)data, size, &jsonread_config, "input", &e);
    if (!v) {
        if (!e.code || !e.text[0])
            abort();
        return 0;
    }
    round_trip(v, 0);
    round_trip(v, 2);
    json_decref(v);
    return 0;
}
