/* Chat: what a template can do is found by trying, and messages are brought into that form. */
#include "test.h"

#include "lang/chat/chat.h"

#include <string.h>

static struct chat *open_text(const char *text)
{
    struct chat *c = NULL;
    struct err e = {0};
    if (chat_open_text(&c, text, strlen(text), &e))
        print_error("%s\n", e.text);
    assert_non_null(c);
    return c;
}

static void check(const char *template, const char *messages, const char *want)
{
    struct chat *c = open_text(template);
    json_t *m = json_loads(messages, 0, NULL);
    struct spans out;
    struct err e = {0};
    assert_non_null(m);
    if (chat_render(c, &(struct chat_request){.messages = m}, &out, &e))
        print_error("%s\n", e.text);
    assert_string_equal(out.text, want);
    spans_free(&out);
    json_decref(m);
    chat_close(c);
}

#define PLAIN "{% for m in messages %}{{ m.role + ':' + m.content }};{% endfor %}"
#define PARTS "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
#define BOTH                                                                                                 \
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content "     \
    "%}[{{ p.text }}]"                                                                                       \
    "{% endfor %}{% endif %};{% endfor %}"
#define CALLS "{% for m in messages %}{% for t in m.tool_calls %}"
#define END   "{% endfor %}{% endfor %}"

static void test_caps(void **state)
{
    (void)state;
    struct chat *c = open_text(PLAIN);
    struct chat_caps k = chat_capabilities(c);
    assert_true(k.string_content && !k.parts_content && k.system && !k.tools && !k.thinking);
    chat_close(c);
    c = open_text(PARTS "{% if tools and enable_thinking %}{% endif %}");
    k = chat_capabilities(c);
    assert_true(!k.string_content && k.parts_content && k.tools && k.thinking);
    chat_close(c);
    c = open_text(BOTH);
    k = chat_capabilities(c);
    assert_true(k.string_content && k.parts_content);
    chat_close(c);
}

static void test_content(void **state)
{
    (void)state;
    check(PLAIN, "[{\"role\":\"developer\",\"content\":\"a\"}]", "system:a;");
    check(PLAIN "{# developer #}", "[{\"role\":\"developer\",\"content\":\"a\"}]", "developer:a;");
    const char *parts = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
                        "\"text\",\"text\":\"b\"}]}]";
    check(PLAIN, parts, "user:ab;");
    check(PARTS, "[{\"role\":\"user\",\"content\":\"a\"}]", "a;");
    check(BOTH, parts, "[a][b];");
    check(BOTH, "[{\"role\":\"user\",\"content\":\"a\"}]", "a;");
}

static void test_arguments(void **state)
{
    (void)state;
    const char *text = "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
                       "\"{\\\"a\\\": 1}\"}}]}]";
    const char *object = "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                         "\"arguments\":{\"a\": 1}}}]}]";
    const char *broken =
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{a\"}}]}]";
    const char *wants_object = CALLS "{{ t.function.arguments|tojson }}" END;
    const char *wants_items =
        CALLS "{% for k, v in t.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}" END;
    const char *wants_text = CALLS "{{ '<' + t.function.arguments + '>' }}" END;
    check(wants_object, text, "{\"a\": 1}");
    check(wants_object, object, "{\"a\": 1}");
    check(wants_items, text, "a=1");
    check(wants_text, text, "<{\"a\": 1}>");
    check(wants_text, object, "<{\"a\": 1}>");
    check(CALLS "{{ t.function.arguments }}" END, object, "{\"a\": 1}"); /* not Python's {'a': 1} */
    check(wants_object, broken, "\"{a\"");
}

static void test_empty_beside_calls(void **state)
{
    (void)state;
    const char *null = "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
                       "\"arguments\":{\"a\":1}}}]}]";
    const char *empty = "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
                        "\"arguments\":{\"a\":1}}}]}]";
    const char *wants_text = CALLS "{{ m.content + '!' }}{{ t.function.arguments|tojson }}" END;
    const char *wants_null =
        CALLS "{% if m.content is none %}{{ t.function.arguments|tojson }}{% endif %}" END;
    check(wants_text, null, "!{\"a\": 1}");
    check(wants_text, empty, "!{\"a\": 1}");
    check(wants_null, null, "{\"a\": 1}");
    check(wants_null, empty, "{\"a\": 1}");
}

static void test_reasoning(void **state)
{
    (void)state;
    const char *template = "{% for m in messages %}{{ m.reasoning_content }},{{ m.thinking }}{% endfor %}";
    check(template, "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\"}]", "r,r");
    check(template, "[{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"t\"}]", "t,t");
}

/* Control tokens are the template's alone, also where it builds them from the role. */
static void test_origin(void **state)
{
    (void)state;
    struct chat *c = open_text("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}");
    json_t *m = json_loads(
        "[{\"role\":\"user\",\"content\":\"<|user|>\"},{\"role\":\"|>x\",\"content\":\"\"}]", 0, NULL);
    struct spans out;
    struct err e = {0};
    assert_int_equal(chat_render(c, &(struct chat_request){.messages = m}, &out, &e), 0);
    assert_string_equal(out.text, "<|user|><|user|><||>x|>");
    assert_true(out.items[0].from_template && out.items[0].n == 8);
    assert_true(!out.items[1].from_template && out.items[1].n == 8);
    assert_true(out.items[2].from_template && out.items[2].n == 2);
    assert_true(!out.items[3].from_template && out.items[3].n == 3);
    spans_free(&out);
    json_decref(m);
    chat_close(c);
}

/* A last message that goes on: the prompt ends with its text, whatever the template does with texts and turns. */
static void check_goes_on(const char *template, const char *content, const char *want)
{
    struct chat *c = open_text(template);
    json_t *m = json_pack("[{s:s,s:s},{s:s,s:o}]", "role", "user", "content", "hi", "role", "assistant",
                          "content", json_loads(content, JSON_DECODE_ANY, NULL));
    struct spans out;
    struct err e = {0};
    int failed = chat_render(c, &(struct chat_request){.messages = m, .continue_final = true}, &out, &e);
    if (want) {
        assert_int_equal(failed, 0);
        assert_string_equal(out.text, want);
        size_t n = 0;
        for (size_t i = 0; i < out.count; i++)
            n += out.items[i].n;
        assert_true(n == out.n && n == strlen(want));
        spans_free(&out);
    } else {
        assert_int_equal(failed, -1);
        assert_non_null(strstr(e.text, "continue_final_message"));
    }
    json_decref(m);
    chat_close(c);
}

static void test_goes_on(void **state)
{
    (void)state;
    static const char trims[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}";
    static const char parts[] = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}"
                                "{% endfor %}</s>{% endfor %}[assistant]";
    static const char thinks[] =
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last "
        "%}<think>\n\n</think>\n\n"
        "{% endif %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}</s>{% endfor %}";
    static const char drops[] = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    check_goes_on(trims, "\"so \"", "[user]hi</s>\n[assistant]so ");
    check_goes_on(trims, "\"</s>\\n\"", "[user]hi</s>\n[assistant]</s>\n");
    check_goes_on(trims, "\"hi</s>\"", "[user]hi</s>\n[assistant]hi</s>");
    check_goes_on(trims, "\"\"", "[user]hi</s>\n[assistant]");
    check_goes_on(trims, "[{\"type\":\"text\",\"text\":\"a \"},{\"type\":\"text\",\"text\":\"b\"}]",
                  "[user]hi</s>\n[assistant]a b");
    check_goes_on(parts, "\"a \"", "[user]hi</s>[assistant]a ");
    check_goes_on(parts, "[{\"type\":\"text\",\"text\":\"a \"},{\"type\":\"text\",\"text\":\"b\"}]",
                  "[user]hi</s>[assistant]a b");
    check_goes_on(thinks, "\"<think>x</think>\\nso\"", "[user]hi</s>[assistant]<think>\n\n</think>\n\nso");
    check_goes_on(drops, "\"so\"", NULL);
    check_goes_on("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "\"so\"", NULL);
}

static void test_bad_template(void **state)
{
    (void)state;
    struct chat *c;
    struct err e = {0};
    assert_int_equal(chat_open_text(&c, "\n{% if %}", 9, &e), -1);
    assert_non_null(strstr(e.text, "line 2"));
    e = (struct err){0};
    assert_int_equal(chat_open_text(&c, "\xff", 1, &e), -1);
    assert_non_null(strstr(e.text, "UTF-8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_empty_beside_calls),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_bad_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
