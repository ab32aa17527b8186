/* Lines of batches as text. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/jsonread.h"
#include "serve/batch.h"
#include "serve/limit.h"
#include "serve/route.h"

#include <string.h>

enum { BATCH_ID_MOST = 512 }; /* bytes of a custom_id */

static int batch_read_fields(json_t *line, const char *endpoint, struct batch_line *l, struct err *e)
{
    const json_t *id = json_object_get(line, "custom_id"), *method = json_object_get(line, "method");
    const json_t *url = json_object_get(line, "url"), *body = json_object_get(line, "body");
    const char *path = json_string_value(url);
    size_t length = json_string_length(id);
    if (!json_is_string(id) || !length || length > BATCH_ID_MOST || strlen(json_string_value(id)) != length)
        return err_set(e, ERR_DATA, "custom_id has to be a text of 1 to %d bytes", BATCH_ID_MOST);
    if (method && (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0))
        return err_set(e, ERR_DATA, "method has to be POST");
    if (endpoint && (!path || strcmp(path, endpoint) != 0))
        return err_set(e, ERR_DATA, "url has to be %s, as in the request for the batch", endpoint);
    if (!path || !(l->route = route_batch(path)))
        return err_set(
            e, ERR_DATA,
            "url has to be /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses or "
            "/v1/messages");
    if (!json_is_object(body))
        return err_set(e, ERR_DATA, "body has to be an object");
    jsonread_write(&(struct json){.out = &l->body}, body);
    if (l->body.failed || !(l->custom_id = mem_strdup(json_string_value(id))))
        return err_memory(e, "a line of a batch", l->body.len);
    return 0;
}

int batch_read_line(const char *text, size_t n, const char *endpoint, struct batch_line *l, struct err *e)
{
    struct jsonread_size size;
    jsonread_measure(text, n, &size);
    const struct jsonread_limits most = {.text = limit_of(LIMIT_BODY),
                                         .memory = size.memory,
                                         .depth = (int)limit_of(LIMIT_DEPTH),
                                         .nul = true};
    if (size.values > limit_of(LIMIT_VALUES))
        return err_set(e, ERR_DATA, "the line has more than %llu values (limit values)",
                       (unsigned long long)limit_of(LIMIT_VALUES));
    json_t *line = jsonread_object(text, n, &most, "the line", e);
    int failed = line ? batch_read_fields(line, endpoint, l, e) : -1;
    json_decref(line);
    return failed;
}

void batch_write_line(const struct batch_line *l, struct buf *out)
{
    size_t n = l->reply.len;
    while (n && (l->reply.data[n - 1] == '\n' || l->reply.data[n - 1] == '\r'))
        n--;
    buf_printf(out, "{\"id\":\"batch_%s\",\"custom_id\":\"", l->id);
    json_escape(out, l->custom_id, strlen(l->custom_id));
    buf_printf(out, "\",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", l->status, l->id);
    buf_add(out, n ? l->reply.data : "null", n ? n : 4);
    buf_str(out, "},\"error\":null}\n");
}
