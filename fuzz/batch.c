/* Any bytes as a line of a batch; what is read of it is written as a line of an output. */
#include "base/mem.h"
#include "format/jsonread.h"
#include "serve/batch.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct batch_line *l = mem_zalloc(1, sizeof *l);
    struct buf out = {0};
    struct err e = {0};
    if (!l)
        return 0;
    int failed = batch_read_line((const char *)data, size, NULL, l, &e);
    if (!failed == !!e.code || (!failed && (!l->custom_id || !l->route || !l->body.len)))
        abort();
    if (!failed) {
        buf_add(&l->reply, l->body.data, l->body.len);
        batch_write_line(l, &out);
        json_t *line = jsonread_object(out.data, out.len, &jsonread_config, "the line", &e);
        const json_t *id = json_object_get(line, "custom_id");
        if (line && (!json_is_string(id) || strcmp(json_string_value(id), l->custom_id) != 0))
            abort();
        if (out.data[out.len - 1] != '\n' || memchr(out.data, '\n', out.len - 1))
            abort();
        json_decref(line);
    }
    buf_free(&out);
    batch_line_free(l);
    return 0;
}
