/* Jinja: the input is a template; it is compiled and rendered with a small conversation and small limits.
 * The spans must cover the text exactly. */
#include "lang/jinja/jinja.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\\u00e9 "
                              "<|x|>\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                              "\"text\":\"hi\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
                              "\"id\":\"1\",\"function\":{\"name\":\"f\","
                              "\"arguments\":{\"a\":1.5,\"b\":[1,2]}}}]}],\"tools\":[{\"function\":{\"name\":"
                              "\"f\"}}],\"s\":\" a,B c\\n\",\"n\":7,\"f\":2.5,"
                              "\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":{\"k\":\"v\"}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *names;
    if (!names)
        names = json_loads(context, 0, NULL);
    struct jinja *t;
    struct spans out;
    struct err e = {0};
    if (jinja_compile(&t, (const char *)data, size, &e))
        return e.code ? 0 : (abort(), 0);
    struct jinja_input in = {.data = names,
                             .limits = {.fuel = 200000, .memory = 8 << 20, .output = 1 << 20, .depth = 300}};
    if (!jinja_render(t, &in, &out, &e)) {
        size_t at = 0;
        for (size_t i = 0; i < out.count; at += out.items[i++].n)
            if (out.items[i].text != out.text + at || !out.items[i].n ||
                (i && out.items[i].from_template == out.items[i - 1].from_template))
                abort();
        if (at != out.n)
            abort();
        spans_free(&out);
    } else if (!e.code || !e.text[0]) {
        abort();
    }
    jinja_free(t);
    return 0;
}
