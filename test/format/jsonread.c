/* What JSON takes to read is known from its bytes, before anything is built. */
#include "test.h"

#include "base/buf.h"
#include "format/jsonread.h"

#include <string.h>

static struct jsonread_size measure(const char *text)
{
    struct jsonread_size size;
    jsonread_measure(text, strlen(text), &size);
    return size;
}

static void test_values_are_counted(void **state)
{
    static const struct {
        const char *text;
        size_t values;
        int depth;
    } rows[] = {
        {"1", 1, 0},          {"[]", 1, 1},        {"[ \n ]", 1, 1},
        {"[1]", 2, 1},        {"[1,2,3]", 4, 1},   {"{\"a\":1}", 2, 1},
        {"[{},{},{}]", 4, 2}, {"[[],[[]]]", 4, 3}, {"{\"a\":[1,{\"b\":null}],\"c\":\"x,y[{\\\"\"}", 6, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct jsonread_size size = measure(rows[i].text);
        assert_int_equal(size.values, rows[i].values);
        assert_int_equal(size.depth, rows[i].depth);
    }
    measure("\"open");
    measure("]]}}");
    measure("\"\\");
}

/* So many times the middle, between a head and a tail; NUM in the middle becomes a number of its own. */
static void fill(struct buf *out, const char *head, const char *middle, size_t times, const char *tail)
{
    buf_str(out, head);
    for (size_t i = 0; i < times; i++) {
        const char *number = strstr(middle, "NUM");
        buf_add(out, middle, number ? (size_t)(number - middle) : strlen(middle));
        if (number)
            buf_printf(out, "%zu%s", i, number + 3);
    }
    buf_str(out, tail);
    assert_false(out->failed);
}

/* jansson never takes more than was measured. Where it may have less, reading ends with an error, wherever that is. */
static void test_memory_is_enough(void **state)
{
    static const struct {
        const char *head, *middle, *tail;
    } shapes[] = {
        {"[", "{},", "1]"},
        {"[", "[],", "1]"},
        {"[", "1,", "1]"},
        {"[", "NUM.5,", "1]"},
        {"[", "\"\",", "1]"},
        {"[", "\"some text\",", "1]"},
        {"[", "{\"a\":1},", "1]"},
        {"[", "{\"a\":{}},", "1]"},
        {"[", "[[]],", "1]"},
        {"{", "\"NUM\":0,", "\"x\":0}"},
        {"{", "\"NUM\":{},", "\"x\":0}"},
        {"{", "\"a long name of a key NUM\":\"b\",", "\"x\":0}"},
        {"\"", "long text ", "\""},
        {"[\"", "long text ", "\",\"short\"]"},
        {"[\"", "\\u00fc\\n", "\",\"short\"]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t times = 0; times < 40000; times = 3 * times + 1) {
            struct buf text = {0};
            struct jsonread_size size;
            struct err e = {0};
            fill(&text, shapes[i].head, shapes[i].middle, times, shapes[i].tail);
            jsonread_measure(text.data, text.len, &size);
            struct jsonread_limits most = {.text = text.len, .memory = size.memory, .depth = JSONREAD_DEPTH};
            json_t *v = jsonread_value(text.data, text.len, &most, "shape", &e);
            if (!v)
                fail_msg("%s%s... %zu times: %s", shapes[i].head, shapes[i].middle, times, e.text);
            json_decref(v);
            for (most.memory /= 64; times > 10000 && most.memory; most.memory /= 3) {
                struct err spent = {0};
                assert_null(jsonread_value(text.data, text.len, &most, "shape", &spent));
                assert_int_equal(spent.code, ERR_RESOURCE);
            }
            buf_free(&text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_counted),
        cmocka_unit_test(test_memory_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
