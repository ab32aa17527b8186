/* Any bytes as a grammar (first byte even) or a pattern (odd). What compiles is walked. */
#include "walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[4096];
    size_t len;
    struct err e = {0};
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    struct constraint *c =
        data[0] & 1 ? constraint_from_regex(text, size - 1, &e) : constraint_from_gbnf(text, size - 1, &e);
    if (!c && (!e.code || !e.text[0]))
        abort();
    if (c)
        walk_constraint(c, data, size, out, &len, 40);
    return 0;
}
