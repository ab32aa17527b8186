/* Any bytes as a safetensors file. What opens has tensors that fill the data from the first byte to the last. */
#include "format/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    volatile uint64_t sink = 0;
    struct err e = {0};
    struct safetensors s;
    if (safetensors_parse(&s, data, size, &e) < 0) {
        if (!e.code || !e.text[0])
            abort();
        return 0;
    }
    const uint8_t *at = s.count ? s.tensors[0].data : data + size;
    for (size_t i = 0; i < s.count; i++) {
        const struct tensor *t = &s.tensors[i];
        if (t->data != at)
            abort();
        if (t->bytes)
            sink = sink + t->data[0] + t->data[t->bytes - 1];
        at += t->bytes;
    }
    if (at != data + size)
        abort();
    safetensors_free(&s);
    return 0;
}
