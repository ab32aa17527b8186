/* A Content-Type in the first line, then any bytes as the body of a form. */
#include "serve/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct multipart m;
    char type[256], boundary[MULTIPART_BOUNDARY];
    const uint8_t *end = memchr(data, '\n', size);
    size_t n = end ? (size_t)(end - data) : size;
    struct err e = {0};
    n = n < sizeof type - 1 ? n : sizeof type - 1;
    memcpy(type, data, n);
    type[n] = 0;
    if (!end || multipart_boundary(type, boundary))
        return 0;
    /* a copy of its own size: reads beyond it are seen */
    size_t length = size - (size_t)(end + 1 - data);
    char *body = malloc(length ? length : 1);
    if (!body)
        return 0;
    memcpy(body, end + 1, length);
    int failed = multipart_read(boundary, body, length, &m, &e);
    if (!failed == !!e.code)
        abort();
    for (size_t i = 0; i < m.count && !failed; i++)
        if (!m.parts[i].name[0] || m.parts[i].data < body || m.parts[i].data + m.parts[i].n > body + length)
            abort();
    free(body);
    return 0;
}
