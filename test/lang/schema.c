/* JSON schema: texts that satisfy a schema and texts that do not, and what is refused. */
#include "test.h"

#include "base/mem.h"
#include "lang/words.h"

struct row {
    const char *schema;
    const char *yes[8], *no[8];
};

static const struct row rows[] = {
    {"true",
     {"1", "null", "{\"a\": [1, {\"b\": \"c\"}]}", "-0.5e+10", "\"\\ud83d\\ude00\""},
     {"", " 1", "1 ", "[1,]", "\"\\ud83d\"", "01", "\"\t\""}},
    {"{\"type\":\"integer\"}", {"0", "-5", "123456789012345678"}, {"01", "1.5", "", "-", "1e2"}},
    {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":120}",
     {"5", "99", "120"},
     {"4", "121", "-5", "05", "1000"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":-5,\"exclusiveMaximum\":3}",
     {"-4", "2", "0", "-0"},
     {"-5", "3", "30"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":100}", {"105", "700"}, {"98", "106"}},
    {"{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":2.25}",
     {"0.5", "1", "2.2", "2.249", "0.50"},
     {"0.4", "0.49", "2.25", "2.250", "3", "-1", "1e0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.1", "1", "0.01"}, {"0", "0.0", "-1", "-0"}},
    {"{\"type\":\"number\",\"maximum\":-1.5}", {"-1.5", "-2", "-1.50", "-100"}, {"-1.4", "-1", "1.5", "0"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"é日x\"", "\"\\u00e9\\n\"", "\"😀\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\":\"string\",\"maxLength\":50}",
     {"\"\"", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
     {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", {"\"a\"", "\"aaaa\""}, {"\"\"", "\"ab\"", "\"ba\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"abc\"", "\"b\"", "\"\\n\\\"b\""}, {"\"\"", "\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\""},
     {"\"a\"", "\"abcd\"", "\"A\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\n]$\"}", {"\"\\\"\"", "\"\\n\""}, {"\"n\"", "\"\\u000a\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"0.0.0.0\"", "\"192.168.1.255\""},
     {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\"", "\"g23e4567-e89b-12d3-a456-426614174000\""}},
    {"{\"enum\":[\"a\",1,null,{\"x\":[1,true]}]}",
     {"\"a\"", "1", "null", "{\"x\":[1,true]}", "{\"x\": [1, true]}"},
     {"\"b\"", "2", "{}"}},
    {"{\"enum\":[1,2,\"x\",3.5],\"type\":\"number\",\"minimum\":2}", {"2", "3.5"}, {"1", "\"x\""}},
    {"{\"const\":\"q\\\"\\\\\\u0001é\"}", {"\"q\\\"\\\\\\u0001é\""}, {"\"q\""}},
    {"{\"type\":[\"null\",\"boolean\"]}", {"null", "true", "false"}, {"0", "\"null\""}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},"
     "\"required\":[\"a\"],\"additionalProperties\":false}",
     {"{\"a\":1}", "{\"a\":1,\"b\":null}", "{ \"a\": 1, \"b\": null }", "{\n  \"a\": 1,\n  \"b\": null\n}"},
     {"{}", "{\"b\":null}", "{\"a\":1,\"c\":1}", "{\"a\":1,}", "{\"a\":1  }", "{\"b\":null,\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"null\"}}}",
     {"{}", "{\"ab\":null}", "{\"abc\":[]}", "{\"a\":1,\"b\":1,\"\":2}", "{\"A\":1,\"A\":2}"},
     {"{\"a\":null}", "{\"b\":1,\"a\":null}", "{\"ab\":1}", "{\"\\u0061\":null}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,"
     "\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":\"x\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"additionalProperties\":false,"
     "\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"b\":1,\"c\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x_\":{\"type\":\"integer\"},\"_s$\":{\"minimum\":5}},"
     "\"additionalProperties\":false}",
     {"{}", "{\"x_a\":1}", "{\"x_s\":5}", "{\"a_s\":\"any\"}"},
     {"{\"y\":1}", "{\"x_a\":\"s\"}", "{\"x_s\":4}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{1,2}$\"}}",
     {"{\"a\":1}", "{\"ab\":1}"},
     {"{\"abc\":1}", "{\"A\":1}"}},
    {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"properties\":{\"a\":{},\"b\":{}}}",
     {"{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
     {"{\"a\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1,2,3]", "[ 1, 2 ]"},
     {"[]", "[1,2,3,4]", "[1,]", "[,1]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":30}",
     {"[null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,"
      "null,null,null,null,null,null,null,null,null,null,null]"},
     {"[null]", "[]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":1}",
     {"[1]", "[1,\"a\"]", "[1,\"a\",null,[]]"},
     {"[]", "[\"a\"]", "[1,1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{},{}],\"items\":false,\"minItems\":2}",
     {"[1,2]"},
     {"[1]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":1}}", {"[1]", "[2,1,3]", "[1,1]"}, {"[]", "[2,3]"}},
    {"{\"$ref\":\"#/$defs/"
     "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{\"$ref\":"
     "\"#/$defs/n\"}},\"required\":[\"v\"],\"additionalProperties\":false}}}",
     {"{\"v\":1}", "{\"v\":1,\"n\":{\"v\":2,\"n\":{\"v\":3}}}"},
     {"{}", "{\"n\":{\"v\":1}}", "{\"v\":1,\"n\":{}}"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}]}",
     {"1", "[true,false]"},
     {"[1]", "\"1\""}},
    {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":5},{\"type\":\"integer\",\"minimum\":3}]}",
     {"2", "6"},
     {"3", "5", "\"x\""}},
    {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\"}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
    {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":2},{\"maximum\":4}]}", {"2", "4"}, {"1", "5"}},
    {"{\"not\":{\"type\":[\"string\",\"object\",\"array\"]}}", {"1", "null"}, {"\"a\"", "{}"}},
    {"{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]}}",
     {"\"c\"", "\"ab\"", "\"\""},
     {"\"a\"", "\"b\""}},
    {"{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[1,2]},\"x\":{\"type\":\"null\"}},\"required\":["
     "\"k\"],\"additionalProperties\":false,\"if\":{\"properties\":{\"k\":{\"const\":1}}},\"then\":{"
     "\"required\":[\"x\"]}}",
     {"{\"k\":1,\"x\":null}", "{\"k\":2}", "{\"k\":2,\"x\":null}"},
     {"{\"k\":1}", "{\"k\":3}"}},
};

static struct constraint *make(const char *text, struct err *e)
{
    json_error_t error;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, &error);
    if (!schema)
        fail_msg("%s: %s", text, error.text);
    struct constraint *c = constraint_from_schema(schema, e);
    json_decref(schema);
    return c;
}

static void test_rows(void **state)
{
    struct constraint_vocab *v = words_open();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = {0};
        struct constraint *c = make(rows[i].schema, &e);
        if (!c)
            fail_msg("%s: %s", rows[i].schema, e.text);
        words_check(v, c, rows[i].schema, i % 2, rows[i].yes, rows[i].no);
    }
    constraint_vocab_close(v);
}

static void test_json_object(void **state)
{
    struct constraint_vocab *v = words_open();
    struct err e = {0};
    (void)state;
    struct constraint *c = constraint_from_json_object(&e);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e);
    assert_true(words_accepts(b, "{}", 2));
    static const char nested[] = "{\"a\": {\"b\": [1, -2.5e3, \"x\", null]}}";
    assert_true(words_accepts(b, nested, sizeof nested - 1));
    assert_false(words_accepts(b, "[]", 2));
    assert_false(words_accepts(b, "{\"a\"}", 5));
    constraint_unbind(b);
    constraint_free(c);
    constraint_vocab_close(v);
}

static void test_refused(void **state)
{
    static const struct {
        const char *schema, *why;
    } bad[] = {{"false", "nothing satisfies"},
               {"3", "a schema is an object"},
               {"{\"$ref\":\"#\"}", "comes back to itself"},
               {"{\"$ref\":\"#/nowhere\"}", "leads nowhere"},
               {"{\"$ref\":\"other.json\"}", "leaves the document"},
               {"{\"type\":\"strin\"}", "type is one of"},
               {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
               {"{\"type\":\"number\",\"multipleOf\":0.1}", "multipleOf"},
               {"{\"pattern\":\"(?=a)\"}", "look-around"},
               {"{\"$dynamicRef\":\"#x\"}", "$dynamicRef"},
               {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "nothing satisfies"},
               {"{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#\"}},\"required\":[\"x\"]}",
                "nothing satisfies"},
               {"{\"oneOf\":[{\"type\":\"object\",\"additionalProperties\":{}},{\"type\":\"object\","
                "\"minProperties\":0}]}",
                "\"additionalProperties\" is not enforced in full"},
               {"{\"type\":\"object\",\"minProperties\":3}", "\"minProperties\" is not enforced in full"},
               {"{\"minLength\":-1}", "minLength"},
               {"{\"anyOf\":[]}", "anyOf"},
               {"{\"not\":{\"format\":\"date\"}}", "not"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct constraint *c = make(bad[i].schema, &e);
        if (c || !strstr(e.text, bad[i].why))
            fail_msg("%s: %s", bad[i].schema, c ? "accepted" : e.text);
    }
}

static void test_memory_fails(void **state)
{
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a\","
        "\"maxLength\":4},\"b\":{\"oneOf\":[{\"type\":\"number\",\"minimum\":0.5},{\"not\":{"
        "\"type\":\"number\"}}]}},\"patternProperties\":{\"x\":{\"enum\":[1,\"y\"]}}}";
    json_t *schema = json_loads(text, 0, NULL);
    bool done = false;
    (void)state;
    assert_non_null(schema);
    for (long n = 1; !done; n++) {
        struct err e = {0};
        mem_fail_at(n);
        struct constraint *c = constraint_from_schema(schema, &e);
        mem_fail_at(0);
        done = c != NULL;
        assert_true(done || e.code);
        constraint_free(c);
        assert_in_range(n, 1, 20000);
    }
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_json_object),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
