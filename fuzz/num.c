/* Any bytes as a number. What is taken agrees with the C library, which is more lenient and slower. */
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[256];
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    if (n)
        memcpy(text, data, n);
    text[n] = 0;
    uint64_t u;
    int64_t i;
    double d;
    if (num_u64(text, n, UINT64_MAX, &u) && u != strtoull(text, NULL, 10))
        abort();
    if (num_i64(text, n, INT64_MIN, INT64_MAX, &i) && i != strtoll(text, NULL, 10))
        abort();
    if (num_i64(text, n, -5, 5, &i) && (i < -5 || i > 5))
        abort();
    if (num_f64(text, n, -1e308, 1e308, &d) && (d != strtod(text, NULL) || strpbrk(text, "xXnNpP")))
        abort();
    if (num_bytes(text, n, &u) && (u > (uint64_t)9e18 || text[0] < '0' || text[0] > '9'))
        abort();
    return 0;
}
