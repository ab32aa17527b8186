/* Jinja: the snippets of test/data/jinja with what jinja2 made of them, origins of bytes, limits, errors. */
#include "test.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "lang/jinja/jinja.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct tm now = {.tm_year = 124,
                              .tm_mon = 6,
                              .tm_mday = 26,
                              .tm_hour = 12,
                              .tm_min = 30,
                              .tm_sec = 5,
                              .tm_wday = 5,
                              .tm_yday = 207};

static int render_with(const char *text, const json_t *data, uint64_t fuel, struct spans *out, struct err *e)
{
    struct jinja *t;
    *e = (struct err){0};
    *out = (struct spans){0};
    if (jinja_compile(&t, text, strlen(text), e))
        return -1;
    int result =
        jinja_render(t, &(struct jinja_input){.data = data, .now = now, .limits.fuel = fuel}, out, e);
    jinja_free(t);
    return result;
}

static int render(const char *text, const json_t *data, struct spans *out, struct err *e)
{
    return render_with(text, data, 0, out, e);
}

static void test_snippets(void **state)
{
    (void)state;
    json_error_t at;
    json_t *all = json_load_file("test/data/jinja/snippets.json", JSON_ALLOW_NUL, &at), *one;
    assert_non_null(all);
    size_t i, bad = 0;
    assert_true(json_array_size(json_object_get(all, "snippets")) >= 300);
    json_array_foreach(json_object_get(all, "snippets"), i, one)
    {
        const char *text = json_string_value(json_object_get(one, "template"));
        const json_t *want = json_object_get(one, "out"), *message = json_object_get(one, "message");
        struct spans got;
        struct err e;
        bool ok = !render(text, json_object_get(all, "context"), &got, &e);
        bool right = want ? ok && got.n == json_string_length(want) &&
                                !memcmp(got.text, json_string_value(want), got.n)
                          : !ok && (!message || strstr(e.text, json_string_value(message)));
        if (!right) {
            print_error("%s\n  gives %s\n  not   %s\n", text, ok ? got.text : e.text,
                        want ? json_string_value(want) : "an error");
            bad++;
        }
        if (!ok)
            assert_true(e.code == ERR_DATA || e.code == ERR_RESOURCE);
        spans_free(&got);
    }
    json_decref(all);
    assert_int_equal(bad, 0);
}

/* -- origins: what came from the data is shown in brackets */

static void check_origin(const char *text, const char *want)
{
    json_t *data = json_pack("{s:s,s:[s,s],s:{s:s},s:i}", "d", "<|X|>", "l", "A", "B", "o", "K", "V", "n", 7);
    struct spans got;
    struct err e;
    assert_int_equal(render(text, data, &got, &e), 0);
    char shown[512];
    size_t n = 0;
    for (size_t i = 0; i < got.count; i++)
        n += (size_t)snprintf(shown + n, sizeof shown - n, got.items[i].from_template ? "%.*s" : "[%.*s]",
                              (int)got.items[i].n, got.items[i].text);
    assert_string_equal(shown, want);
    spans_free(&got);
    json_decref(data);
}

static void test_origins(void **state)
{
    (void)state;
    check_origin("<|a|>{{ d }}<|b|>", "<|a|>[<|X|>]<|b|>");
    check_origin("{{ '<' ~ d ~ '>' }}", "<[<|X|>]>");
    check_origin("{{ 'ab' + d + 'c' }}", "ab[<|X|>]c");
    check_origin("{{ ('ab' ~ d ~ 'cd')[1:4] }}", "b[<|]");
    check_origin("{{ ('a' ~ d)|upper }}", "A[<|X|>]");
    check_origin("{{ ('a' ~ d ~ 'a')|replace('a', 'xy') }}", "xy[<|X|>]xy");
    check_origin("{{ 'a-b'|replace('-', d) }}", "a[<|X|>]b");
    check_origin("{{ d|replace('X', 'y') }}", "[<|]y[|>]");
    check_origin("{{ l|join(',') }}", "[A],[B]");
    check_origin("{{ ','.join(l) }}", "[A],[B]");
    check_origin("{{ 'p %s q' % d }}", "p [<|X|>] q");
    check_origin("{{ 'p {} q'.format(d) }}", "p [<|X|>] q");
    check_origin("{{ '{:>8}'.format(d) }}", "   [<|X|>]");
    check_origin("{{ d|tojson }}", "[\"<|X|>\"]");
    check_origin("{{ ('a' ~ d)|reverse }}", "[>|X|<]a");
    check_origin("{{ (d ~ ' a').split(' ')|last }}", "a");
    check_origin("{{ (d ~ ' a').split(' ')|first }}", "[<|X|>]");
    check_origin("{{ '  a'|trim ~ (' ' ~ d)|trim }}", "a[<|X|>]");
    check_origin("{{ d|e }}", "[&lt;|X|&gt;]");
    check_origin("{{ o.keys()|first }}{{ o.K }}", "[KV]");
    check_origin("{% for c in 'a' ~ d[0] %}{{ c }}-{% endfor %}", "a-[<]-");
    check_origin("{% set x %}a{{ d }}b{% endset %}{{ x }}", "a[<|X|>]b");
    check_origin("{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(d)|lower }}", "<[<|x|>]>");
    check_origin("{% filter upper %}a{{ d }}{% endfilter %}", "A[<|X|>]");
    check_origin("{{ n }}{{ n + 1 }}{{ 1 }}", "[78]1");
    check_origin("{{ n|string }}{{ '%d' % n }}{{ '5'|int }}", "[77]5");
    check_origin("{% for x in l %}{{ loop.index }}{% endfor %}", "12");
    check_origin("{{ d * 2 }}{{ 'ab'|center(4) }}", "[<|X|><|X|>] ab ");
    check_origin("{{ ('a' ~ d)|indent(1, true) }}", " a[<|X|>]");
    check_origin("{{ (d ~ 'b')|truncate(4, true, '~', 0) }}", "[<|X]~");
    check_origin("{{ [d, 'b']|string }}", "[['<|X|>', ]'b'[]]");
}

/* All letters of all strings (not of keys) moved to U+E000 and on, where no template writes. */
static json_t *marked(const json_t *v)
{
    if (json_is_string(v)) {
        struct buf b = {0};
        for (const char *c = json_string_value(v); *c; c++) {
            bool letter = (*c | 0x20) >= 'a' && (*c | 0x20) <= 'z';
            char pua[3] = {(char)0xee, (char)(0x80 | *c >> 6), (char)(0x80 | (*c & 0x3f))};
            buf_add(&b, letter ? pua : c, letter ? 3 : 1);
        }
        json_t *r = json_string(b.data ? b.data : "");
        buf_free(&b);
        return r;
    }
    if (json_is_array(v)) {
        json_t *r = json_array(), *item;
        size_t i;
        json_array_foreach(v, i, item) json_array_append_new(r, marked(item));
        return r;
    }
    if (json_is_object(v)) {
        json_t *r = json_object(), *item;
        const char *key;
        json_object_foreach((json_t *)v, key, item) json_object_set_new(r, key, marked(item));
        return r;
    }
    return json_deep_copy(v);
}

/* Whatever a template does with data: none of its characters may come out as the template's. */
static void test_data_stays_data(void **state)
{
    (void)state;
    json_t *all = json_load_file("test/data/jinja/snippets.json", JSON_ALLOW_NUL, NULL), *one;
    assert_non_null(all);
    json_t *context = marked(json_object_get(all, "context"));
    size_t i, seen = 0;
    json_array_foreach(json_object_get(all, "snippets"), i, one)
    {
        const char *text = json_string_value(json_object_get(one, "template"));
        struct spans got;
        struct err e;
        if (render(text, context, &got, &e))
            continue;
        for (size_t k = 0; k < got.count; k++) {
            bool data = memchr(got.items[k].text, 0xee, got.items[k].n);
            seen += data;
            if (data && got.items[k].from_template)
                print_error("%s\n", text);
            assert_false(data && got.items[k].from_template);
        }
        spans_free(&got);
    }
    assert_true(seen > 50);
    json_decref(context);
    json_decref(all);
}

static void test_roles(void **state)
{
    (void)state;
    static const char *const roles[] = {"user", NULL};
    json_t *data = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "m", "role", "user", "content", "user", "role", "x",
                             "content", "y");
    struct err e = {0};
    struct jinja *t;
    struct spans out;
    const char *text = "{% for i in m %}<{{ i.role }}>{{ i.content }}{% endfor %}";
    assert_int_equal(jinja_compile(&t, text, strlen(text), &e), 0);
    assert_int_equal(jinja_render(t, &(struct jinja_input){.data = data, .roles = roles}, &out, &e), 0);
    assert_string_equal(out.text, "<user>user<x>y");
    assert_int_equal(out.items[0].n, 6); /* <user> is the template's, the text that follows is not */
    assert_true(out.items[0].from_template && !out.items[1].from_template);
    spans_free(&out);
    jinja_free(t);
    json_decref(data);
}

/* -- limits: each ends in an error, soon */

static void check_limit(const char *text)
{
    struct spans out;
    struct err e;
    assert_int_equal(render_with(text, NULL, 3000000, &out, &e),
                     -1); /* the default takes seconds with sanitizers */
    bool limit = e.code == ERR_RESOURCE || strstr(e.text, "Range too big") || strstr(e.text, "too big");
    if (!limit)
        print_error("%.60s: %s\n", text, e.text);
    assert_true(limit);
}

static void test_limits(void **state)
{
    (void)state;
    check_limit("{{ range(10**9) }}");
    check_limit("{{ 'a' * 10**9 }}");
    check_limit("{{ [0] * 10**9 }}");
    check_limit("{{ 'a'.center(10**12) }}");
    check_limit("{{ 'a'|indent(10**12, true) }}");
    check_limit("{{ '%1000000000d' % 1 }}");
    check_limit("{{ 9223372036854775807 + 1 }}");
    check_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    check_limit("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    check_limit(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
        "{% endfor %}{% endfor %}");
    check_limit(
        "{% set ns = namespace(s='ab') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
    check_limit("{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
                "endfor %}{{ ns.l }}");
    check_limit("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}");
    check_limit("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}");
    check_limit("{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% if s.replace('a', 'b') %}{% endif "
                "%}{% endfor %}");
}

static char *repeat(const char *before, const char *unit, size_t times)
{
    size_t n = strlen(unit), head = strlen(before);
    char *s = mem_alloc(head + n * times + 1, 1);
    memcpy(s, before, head);
    for (size_t i = 0; i < times; i++)
        memcpy(s + head + i * n, unit, n);
    s[head + n * times] = 0;
    return s;
}

static void test_deep_source(void **state)
{
    (void)state;
    static const struct {
        const char *before, *unit;
    } deep[] = {{"{{ ", "["},
                {"{{ ", "("},
                {"{{ ", "{1:"},
                {"{{ ", "not "},
                {"{{ ", "-"},
                {"{{ 1", "+1"},
                {"{{ a", ".b"},
                {"{{ a", "[0]"},
                {"{{ a", "|e"},
                {"{{ 1", " if 1 else 1"},
                {"", "{% if 1 %}"},
                {"", "{% for i in x %}"},
                {"", "{% macro m() %}"},
                {"{{ '", "a"},
                {"{{ a", "()"},
                {"", "{% set x %}"},
                {"{{ 1", "~1"}};
    for (size_t i = 0; i < sizeof deep / sizeof deep[0]; i++) {
        char *text = repeat(deep[i].before, deep[i].unit, 60000);
        struct spans out;
        struct err e;
        assert_int_equal(render(text, NULL, &out, &e), -1);
        assert_true(strlen(e.text) > 10);
        mem_free(text);
    }
}

static void test_errors_have_lines(void **state)
{
    (void)state;
    struct spans out;
    struct err e;
    assert_int_equal(render("a\nb\n{{ x.y.z }}", NULL, &out, &e), -1);
    assert_string_equal(e.text, "template line 3: 'x' is undefined");
    assert_int_equal(render("a\n\n{% if %}", NULL, &out, &e), -1);
    assert_non_null(strstr(e.text, "template line 3: "));
    assert_int_equal(render("\n{{ raise_exception('no ' ~ 'way') }}", NULL, &out, &e), -1);
    assert_string_equal(e.text, "template line 2: no way");
    assert_int_equal(render("\xff", NULL, &out, &e), -1);
}

/* Every allocation fails once: an error, no leak, and the next render works. */
static void test_memory_fails(void **state)
{
    (void)state;
    const char *text =
        "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% for x in range(3) %}{{ m('é' ~ x) }}{% endfor %}";
    int result = -1;
    for (long n = 1; result && n < 200; n++) {
        struct spans out;
        struct err e;
        mem_fail_at(n);
        result = render(text, NULL, &out, &e);
        mem_fail_at(0);
        if (result)
            assert_int_equal(e.code, ERR_RESOURCE);
        else
            assert_string_equal(out.text, "É0É1É2");
        spans_free(&out);
    }
    assert_int_equal(result, 0);
}

/* One template, many threads. */

static void *render_often(void *template)
{
    json_t *data = json_pack("{s:[s,s]}", "l", "a", "é");
    for (int i = 0; i < 200; i++) {
        struct spans out;
        struct err e = {0};
        bool ok = !jinja_render(template, &(struct jinja_input){.data = data, .now = now}, &out, &e) &&
                  !strcmp(out.text, "1:A- x 2:É- x ");
        spans_free(&out);
        if (!ok)
            template = NULL;
        if (!template)
            break;
    }
    json_decref(data);
    return template;
}

static void test_threads(void **state)
{
    (void)state;
    struct jinja *t;
    struct err e = {0};
    const char *text = "{% macro m(v) %}{{ v|upper ~ '-' }}{% endmacro %}"
                       "{% for v in l %}{{ loop.index }}:{{ m(v) + ' x ' }}{% endfor %}";
    assert_int_equal(jinja_compile(&t, text, strlen(text), &e), 0);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(thread[i], &result);
        assert_ptr_equal(result, t);
    }
    jinja_free(t);
}

static void test_mentions(void **state)
{
    (void)state;
    struct jinja *t;
    struct err e = {0};
    const char *text = "{% if tools %}{{ messages }}{% endif %}";
    assert_int_equal(jinja_compile(&t, text, strlen(text), &e), 0);
    assert_true(jinja_mentions(t, "tools") && jinja_mentions(t, "messages") &&
                !jinja_mentions(t, "documents"));
    jinja_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snippets),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_data_stays_data),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_errors_have_lines),
        cmocka_unit_test(test_memory_fails),
        cmocka_unit_test(test_mentions),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
