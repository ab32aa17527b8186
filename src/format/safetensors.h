/* One safetensors file: u64 length of the header | header (one JSON object) | data. Everything is checked
 * here; the result is a table of tensors that point into the bytes. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "format/store.h"

struct safetensors {
    struct tensor *tensors; /* (count), by their place in the file */
    size_t count;
    struct arena names;
    json_t *metadata; /* __metadata__: an object of strings, or NULL */
};

/* The bytes must outlive the result. */
int safetensors_parse(struct safetensors *out, const uint8_t *data, size_t size, struct err *e);
void safetensors_free(struct safetensors *s);
