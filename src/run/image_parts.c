#include "run/image_parts.h"

#include "base/base64.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool image_part(const json_t *part)
{
    static const char *const types[] = {"image_url", "input_image", "image"};
    const char *type = json_string_value(json_object_get(part, "type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i]))
            return true;
    return false;
}

const json_t *image_part_text(const json_t *part, bool *is_url)
{
    const json_t *url = json_object_get(part, "image_url"), *data = json_object_get(part, "data");
    *is_url = url != NULL;
    url = json_is_object(url) ? json_object_get(url, "url") : url;
    const json_t *text = *is_url ? url : data;
    return json_is_string(text) ? text : NULL;
}

struct parts_reader {
    int (*add)(void *arg, const json_t *part, const char *where);
    void *arg;
};

/* The parts of one message. */
static json_t *parts_read(const struct parts_reader *r, const json_t *parts, size_t at)
{
    json_t *out = json_array(), *part;
    char where[64];
    size_t i;
    int failed = !out;
    json_array_foreach((json_t *)(uintptr_t)parts, i, part)
    {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", at, i);
        bool image = image_part(part);
        failed = failed || (image && r->add && r->add(r->arg, part, where)) ||
                 json_array_append_new(out, image ? json_pack("{s:s}", "type", "image") : json_incref(part));
    }
    if (!failed)
        return out;
    json_decref(out);
    return NULL;
}

json_t *image_parts_read(const json_t *messages, int (*add)(void *arg, const json_t *part, const char *where),
                         void *arg)
{
    const struct parts_reader r = {add, arg};
    json_t *out = json_array(), *message, *part;
    size_t i, k;
    int failed = !out;
    json_array_foreach((json_t *)(uintptr_t)messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        bool has = false;
        json_array_foreach((json_t *)(uintptr_t)content, k, part) has |= image_part(part);
        json_t *own = has ? json_copy(message) : json_incref(message);
        failed = failed || !own || (has && json_object_set_new(own, "content", parts_read(&r, content, i))) ||
                 json_array_append(out, own);
        json_decref(own);
        if (failed)
            break;
    }
    if (!failed)
        return out;
    json_decref(out);
    return NULL;
}

int image_part_bytes(struct buf *out, const char *text, size_t n, struct err *e)
{
    static const char base64[] = ";base64";
    if (n >= 5 && !strncasecmp(text, "data:", 5)) {
        const char *comma = memchr(text, ',', n);
        size_t head = comma ? (size_t)(comma - text) : 0;
        if (!comma || head < sizeof base64 - 1 ||
            strncasecmp(comma - (sizeof base64 - 1), base64, sizeof base64 - 1) != 0)
            return err_set(e, ERR_USAGE, "a data: URL of an image has to be data:image/...;base64,...");
        text = comma + 1;
        n -= head + 1;
    }
    if (base64_read_loose(out, text, n))
        return 0;
    return out->failed ? err_memory(e, "an image", n)
                       : err_set(e, ERR_USAGE, "the image is not valid base64");
}
