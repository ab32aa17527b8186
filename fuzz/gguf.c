/* Any bytes as a GGUF file. What opens is then read through every getter, and touched at both ends. */
#include "codec/dtype.h"
#include "format/gguf.h"
#include "format/store.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void walk(const struct gguf_key *k)
{
    size_t at = 0, items = 0;
    struct gguf_str s;
    struct gguf_key inner;
    while (gguf_next_str(k, &at, &s)) {
        sink += s.n ? (uint8_t)s.s[0] + (uint8_t)s.s[s.n - 1] : 0;
        items++;
    }
    while (gguf_next_array(k, &at, &inner)) {
        walk(&inner);
        items++;
    }
    if ((k->item == GGUF_STRING || k->item == GGUF_ARRAY) && items != k->count)
        abort();
    if (k->item != GGUF_STRING && k->item != GGUF_ARRAY && k->count) {
        sink += (uint64_t)gguf_item_i64(k, 0) + (uint64_t)gguf_item_i64(k, k->count - 1);
        sink += gguf_item_f64(k, k->count - 1) > 0;
    }
}

static void walk_keys(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i), *array;
        if (gguf_find(g, k->name) != k)
            abort();
        walk(k);
        uint64_t u;
        double d;
        bool b;
        struct gguf_str s;
        struct err e = {0};
        int found = gguf_get_u64(g, k->name, 0, UINT64_MAX, &u, &e) > 0;
        found += gguf_get_f64(g, k->name, &d, &e) > 0;
        found += gguf_get_bool(g, k->name, &b, &e) > 0;
        found += gguf_get_str(g, k->name, &s, &e) > 0;
        found += gguf_get_array(g, k->name, GGUF_I64, 0, &array, &e) > 0;
        if (found > 2) /* an integer is a number too; nothing is three things */
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct gguf *g;
    if (gguf_parse(&g, data, size, &e) < 0) {
        if (!e.code || !e.text[0])
            abort();
        return 0;
    }
    walk_keys(g);
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct tensor *t = gguf_tensor_at(g, i);
        if (gguf_find_tensor(g, t->name) != t || t->data < data || t->data + t->bytes > data + size ||
            !t->bytes)
            abort();
        sink += t->data[0] + t->data[t->bytes - 1];
    }
    gguf_close(g);
    return 0;
}
