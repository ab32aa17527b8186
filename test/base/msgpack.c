/* MessagePack: the shortest form of each value, by the bytes of the specification. */
#include "test.h"

#include "base/msgpack.h"

#include <string.h>

static void same(struct buf *out, const char *bytes, size_t n)
{
    assert_false(out->failed);
    assert_int_equal(out->len, n);
    assert_memory_equal(out->data, bytes, n);
    buf_free(out);
}
#define SAME(out, bytes) same(&(out), bytes, sizeof(bytes) - 1)

static void numbers(void **state)
{
    (void)state;
    static const struct {
        uint64_t value;
        const char *bytes;
        size_t n;
    } rows[] = {
        {0, "\x00", 1},
        {127, "\x7f", 1},
        {128, "\xcc\x80", 2},
        {255, "\xcc\xff", 2},
        {256, "\xcd\x01\x00", 3},
        {65535, "\xcd\xff\xff", 3},
        {65536, "\xce\x00\x01\x00\x00", 5},
        {UINT32_MAX, "\xce\xff\xff\xff\xff", 5},
        {1ull << 32, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 9},
        {UINT64_MAX, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf out = {0};
        msgpack_uint(&out, rows[i].value);
        same(&out, rows[i].bytes, rows[i].n);
    }
    struct buf out = {0};
    msgpack_double(&out, -1.5);
    msgpack_nil(&out);
    SAME(out, "\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00\xc0");
}

static void lengths(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 31, 32, 255, 256, 65535, 65536};
    static const char *const heads[] = {"\xa0",     "\xbf",         "\xd9\x20",        "\xd9\xff",
                                        "\xda\x01", "\xda\xff\xff", "\xdb\x00\x01\x00"};
    static const size_t head_bytes[] = {1, 1, 2, 2, 3, 3, 5};
    static char text[65537];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct buf out = {0};
        memset(text, 'x', sizes[i]);
        text[sizes[i]] = 0;
        msgpack_str(&out, text);
        assert_int_equal(out.len, head_bytes[i] + sizes[i]);
        assert_memory_equal(out.data, heads[i], strlen(heads[i]));
        buf_free(&out);
    }
    struct buf out = {0};
    msgpack_array(&out, 15);
    msgpack_array(&out, 16);
    msgpack_array(&out, 65535);
    msgpack_array(&out, 65536);
    SAME(out, "\x9f\xdc\x00\x10\xdc\xff\xff\xdd\x00\x01\x00\x00");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(lengths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
