/* What a model may write where it may write text and call tools: a call is held to its tool's schema from where it begins,
 * in whatever way it is written, and what is no call is free. */
#include "test.h"

#include "lang/grammar/constraint.h"
#include "lang/chat/output.h"

#include <string.h>

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"strict\": true, \"parameters\": {"
    "\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Oslo\", \"Rome\"]}, \"days\": {\"type\": "
    "\"integer\", \"minimum\": 5, \"maximum\": 9}}, \"required\": [\"city\"], \"additionalProperties\": "
    "false}}}, {\"type\": \"function\", \"function\": {\"name\": \"get_time\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {}, \"additionalProperties\": false}}}]";

static const char *byte_text(const void *of, int32_t id, size_t *n)
{
    *n = id < 256;
    return (const char *)of + id;
}

static enum constraint_kind byte_kind(const void *of, int32_t id)
{
    (void)of;
    return id < 256 ? CONSTRAINT_TEXT : CONSTRAINT_END;
}

struct heard {
    uint32_t calls;
    bool text;
};

static void take(void *arg, const struct output_piece *p)
{
    struct heard *h = arg;
    h->calls += p->part == OUTPUT_CALL && p->name;
    h->text |= p->part == OUTPUT_TEXT;
}

/* How many calls the parser hears in a text. */
static struct heard hear(const struct output_form *f, const json_t *tools, const char *text, bool thinking)
{
    struct err e = {0};
    struct heard h = {0};
    struct output_options o = {.form = f,
                               .thought = output_thought_find(""),
                               .tools = tools,
                               .thinking = thinking,
                               .ruled = true,
                               .take = take,
                               .arg = &h};
    struct output_parser *r = output_open(&o, &e);
    assert_int_equal(output_feed(r, text, strlen(text)), 0);
    assert_int_equal(output_end(r, false), 0);
    output_close(r);
    return h;
}

#define GOOD     "{\"city\": \"Oslo\", \"days\": 7}"
#define CALL     "{\"name\": \"get_weather\", \"arguments\": " GOOD "}"
#define BAD(x)   "{\"name\": \"get_weather\", \"arguments\": " x "}"
#define TIME     "{\"name\": \"get_time\", \"arguments\": {}}"
#define FENCE(x) "```json\n" x "\n```"

#define S(f, t, ...)                                                                                         \
    {                                                                                                        \
        .form = f, .text = t, .calls = __VA_ARGS__                                                           \
    }

/* calls: that it holds; -1 = it cannot be written. */
static const struct sample {
    const char *form, *text;
    int calls;
    bool one; /* only one call is wanted */
    bool thinking;
} samples[] = {

    /* text is free */
    S("hermes", "Hello, <tool and ```json\n{\"name\": \"John\"}\n``` and {\"name\": \"get_weather\"}.", 0),
    S("hermes", "{\"name\": \"John\", \"arguments\": {\"a\": 1}}", 0),
    S("hermes", "{\"title\": [1, 2, {\"name\": \"get_weather\"}]}", 0),
    S("hermes", "\xff\xfe </think> }}", 0),
    S("hermes", "", 0),
    /* behind a mark */
    S("hermes", "So: <tool_call>\n" CALL "\n</tool_call>\n", 1),
    S("hermes", "<tool_call>" CALL "</tool_call>\n<tool_call>" TIME "</tool_call>", 2),
    S("hermes", "<tool_call>" CALL "</tool_call>\n<tool_call>" TIME "</tool_call>", -1, .one = true),
    S("hermes", "<tool_call>" BAD("{\"city\": \"Paris\"}") "</tool_call>", -1),
    S("hermes", "<tool_call>\n\n\n" CALL "</tool_call>", -1),
    S("qwen-coder", "<function=get_weather><parameter=city>Oslo</parameter></function>", 1),
    S("qwen-coder", "<function=get_weather><parameter=city>Paris</parameter></function>", -1),
    S("qwen-coder", "<function=get_weather></function>", -1),
    S("granite", "<tool_call>" CALL "</tool_call>", 1),
    S("granite", "<tool_call>" BAD("{}") "</tool_call>", -1),
    S("deepseek", "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>", 1),
    S("deepseek", "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>", -1),
    S("llama3", "<|python_tag|>get_weather.call(city=\"Rome\")", 1),
    S("llama3", "<|python_tag|>get_weather.call(city=\"Paris\")", -1),
    S("llama3", "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {}}", -1),
    /* in a block, in every way to write the head */
    S("hermes", "Sure.\n" FENCE(CALL) "\nThis gets the weather.", 1),
    S("hermes", FENCE("[" CALL ", " TIME "]"), 2),
    S("hermes", FENCE("[" CALL ", " TIME "]"), -1, .one = true),
    S("hermes", FENCE(CALL) "\n" FENCE(TIME), 2),
    S("hermes", FENCE(CALL) "\n" FENCE(TIME), -1, .one = true),
    S("hermes", FENCE(CALL) "\nAnd <tool_call>" TIME "</tool_call>", -1, .one = true),
    S("hermes", FENCE(CALL) "\nAnd that is all: " FENCE("{\"a\": 1}"), 1, .one = true),
    S("hermes", FENCE(BAD("{\"city\": \"Paris\"}")), -1),
    S("hermes", FENCE(BAD("{\"city\": \"Oslo\", \"days\": 3}")), -1),
    S("hermes", FENCE(BAD("{\"days\": 7}")), -1),
    S("hermes", FENCE(BAD("{\"city\": \"Oslo\", \"unit\": \"C\"}")), -1),
    S("hermes",
      FENCE("{\n    \"name\": \"get_weather\",\n    \"arguments\": {\n        \"city\": \"Oslo\"\n    }\n}"),
      1),
    S("hermes", FENCE("{\"name\": \"get_weather\"}"), -1),
    S("hermes", FENCE("{\"type\": \"function\", \"function\": " CALL "}"), 1),
    S("hermes", FENCE("{\"type\": \"function\", \"function\": " BAD("{}") "}"), -1),
    S("hermes", FENCE("{\"function\": \"get_weather\", \"args\": " GOOD "}"), 1),
    S("hermes", FENCE("{\"tool\": \"get_weather\", \"input\": {}}"), -1),
    S("hermes", FENCE("{" CALL "}"), 1),
    S("hermes", FENCE("{" BAD("{}") "}"), -1),
    S("hermes", FENCE("{\"arguments\": {}, \"name\": \"get_weather\"}"),
      0), /* a way that is not held is text */
    S("gemma", "```tool_code\nget_weather(city=\"Rome\")\n```", 1),
    S("gemma", "```tool_code\nprint(get_weather(city=\"Rome\"))\n```", 1),
    S("gemma", "```tool_code\nget_weather(city=\"Paris\")\n```", -1),
    S("gemma", "```tool_code\nprint([1])\n```", 0),
    /* alone */
    S("hermes", CALL, 1),
    S("hermes", " \n" CALL "\n" TIME " Done.", 2),
    S("hermes", CALL "\n" TIME, -1, .one = true),
    S("hermes", CALL "; " TIME, -1, .one = true),
    S("hermes", CALL " Done. " TIME, 1, .one = true), /* behind text it is text */
    S("hermes", BAD("{\"city\": \"Paris\"}"), -1),
    S("hermes", "[" CALL "]", 1),
    S("hermes", "[" BAD("{}") "]", -1),
    S("hermes", "{" CALL "}", 1),
    S("hermes", "Now: " BAD("{}"), 0),
    S("llama3", "{\"name\": \"get_weather\", \"parameters\": " GOOD "}", 1),
    S("llama3", "{\"name\": \"get_weather\", \"parameters\": {\"city\": 1}}", -1),
    /* reasoning: nothing counts in it, and it is not text before JSON alone */
    S("hermes", "<think>" BAD("{}") "<tool_call></think>" CALL, 1),
    S("hermes", "<think>a</think>\n<think></think> " BAD("{}"), -1),
    S("hermes", "<think>a</think>" FENCE(BAD("{}")), -1),
    S("hermes", "<think><tool_call>", 0),
    S("hermes", FENCE(BAD("{}")) "<tool_call></think>\n\n" CALL, 1, .thinking = true),
    S("hermes", "a</think><tool_call>" BAD("{}"), -1, .thinking = true),
    S("hermes", "never closed <tool_call>", 0, .thinking = true),
};

static void check(const struct sample *s, const json_t *tools, const struct constraint_vocab *v)
{
    struct err e = {0};
    const struct output_form *f = output_form_named(s->form, &e);
    struct constraint *c = output_constraint(f,
                                             &(struct output_rule){.tools = tools,
                                                                   .many = !s->one,
                                                                   .free = true,
                                                                   .thought = output_thought_find(""),
                                                                   .thinking = s->thinking},
                                             &e);
    assert_int_equal(e.code, 0);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e);
    struct constraint_state *state = constraint_state_open(b, &e);
    bool written =
        !constraint_accept_bytes(state, s->text, strlen(s->text), &e) && constraint_accepts_end(state);
    struct heard h = written ? hear(f, tools, s->text, s->thinking) : (struct heard){0};
    int got = written ? (int)h.calls : -1;
    if (got != s->calls)
        print_error("%s: %s: %d calls\n", s->form, s->text, got);
    assert_int_equal(got, s->calls);
    constraint_state_close(state);
    constraint_unbind(b);
    constraint_free(c);
}

static void test_samples(void **state)
{
    (void)state;
    char bytes[256];
    struct err e = {0};
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    struct constraint_vocab *v = constraint_vocab_open(
        &(struct constraint_source){.count = 257, .of = bytes, .bytes = byte_text, .kind = byte_kind}, &e);
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        check(&samples[i], tools, v);
    json_decref(tools);
    constraint_vocab_close(v);
}

/* Many tools have one language, and a schema that cannot be enforced leaves the rest of it in force. */
static void test_tools(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *many = json_array(),
           *odd = json_pack("[{s:s,s:{s:s,s:{s:{s:s,s:b}}}}]", "name", "f", "parameters", "type", "object",
                            "properties", "a", "type", "array", "uniqueItems", true);
    for (int i = 0; i < 200; i++)
        json_array_append_new(many, json_pack("{s:o,s:{s:s}}", "name",
                                              json_sprintf("a_tool_of_many_%d_and_more", i), "parameters",
                                              "type", "object"));
    for (size_t i = 0; i < output_form_count; i++) {
        struct output_rule r = {
            .tools = many, .many = true, .free = true, .thought = output_thought_find("")};
        struct constraint *c = output_constraint(&output_forms[i], &r, &e);
        if (!c)
            print_error("%s: %s\n", output_forms[i].name, e.text);
        assert_non_null(c);
        constraint_free(c);
        r.tools = odd;
        r.loose = true;
        assert_non_null(c = output_constraint(&output_forms[i], &r, &e));
        constraint_free(c);
    }
    json_decref(many);
    json_decref(odd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_samples), cmocka_unit_test(test_tools)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
