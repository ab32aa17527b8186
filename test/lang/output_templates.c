/* What a model's own template writes for a call in the history is what the model writes: the parser that is chosen
 * by the template's text has to read it. */
#include "test.h"

#include "base/buf.h"
#include "base/file.h"
#include "lang/chat/chat.h"
#include "lang/chat/output.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS "{\"city\":\"Paris\",\"days\":3}"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"w\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"c\"},"
    "\"days\":{\"type\":\"integer\",\"description\":\"d\"}},\"required\":[\"city\"]}}}]";

static void take(void *arg, const struct output_piece *p)
{
    struct buf *out = arg;
    if (p->part == OUTPUT_REASON)
        buf_printf(out, "(%.*s)", (int)p->n, p->text);
    if (p->part == OUTPUT_CALL)
        buf_printf(out, "%s %.*s;", p->name, (int)p->n, p->text);
}

/* The conversation as the template renders it, with `calls` calls in the last message; "" = it refuses. */
static char *render(const struct chat *c, const json_t *tools, int calls, bool prompt)
{
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    json_t *list = json_array();
    for (int i = 0; i < calls; i++)
        json_array_append_new(list, json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", i ? "call12346" : "call12345",
                                              "type", "function", "function", "name", "get_weather",
                                              "arguments", ARGUMENTS));
    if (calls)
        json_array_append_new(messages, json_pack("{s:s,s:s,s:s,s:O}", "role", "assistant", "content", "",
                                                  "reasoning_content", "Hmmm", "tool_calls", list));
    struct spans out;
    struct err e = {0};
    char *text =
        chat_render(
            c, &(struct chat_request){.messages = messages, .tools = tools, .no_generation_prompt = !prompt},
            &out, &e)
            ? strdup("")
            : strdup(out.text);
    if (!e.code)
        spans_free(&out);
    json_decref(list);
    json_decref(messages);
    return text;
}

/* True: it writes calls, and they were read. */
static bool check(const char *name, const char *text, const json_t *tools, int calls)
{
    struct chat *c;
    struct err e = {0};
    struct buf got = {0}, want = {0};
    assert_int_equal(chat_open_text(&c, text, strlen(text), &e), 0);
    char *before = render(c, tools, 0, true), *after = render(c, tools, calls, false);
    if (strncmp(after, before, strlen(before)) != 0) { /* the history does not go on where an answer would */
        free(before);
        before = render(c, tools, 0, false);
    }
    size_t n = 0;
    while (before[n] && before[n] == after[n])
        n++;
    int writes = 0; /* some can write but one */
    for (const char *at = after + n; (at = strstr(at, "Paris")); at++)
        writes++;
    if (writes) {
        struct output_options o = {.form = output_form_find(chat_text(c)),
                                   .thought = output_thought_find(chat_text(c)),
                                   .tools = tools,
                                   .thinking =
                                       output_is_thinking(output_thought_find(chat_text(c)), after, n),
                                   .take = take,
                                   .arg = &got};
        struct output_parser *r = output_open(&o, &e);
        assert_int_equal(output_feed(r, after + n, strlen(after + n)) || output_end(r, false), 0);
        output_close(r);
        /* some leave out the mark in front of it where they write history */
        if (strstr(after + n, "Hmmm") && (o.thinking || strstr(after + n, o.thought->open)))
            buf_str(&want, "(Hmmm)");
        for (int i = 0; i < writes; i++)
            buf_str(&want, "get_weather " ARGUMENTS ";");
        if (!got.data || strcmp(got.data, want.data) != 0)
            print_error("%s (%s): %s\n", name, o.form->name, after + n);
        assert_non_null(got.data);
        assert_string_equal(got.data, want.data);
    }
    buf_free(&got);
    buf_free(&want);
    free(before);
    free(after);
    chat_close(c);
    return writes > 0;
}

/* A last message that goes on ends the prompt, with its own white space. */
static void check_goes_on(const char *name, const char *text)
{
    static const char begun[] = "Well, so ";
    struct chat *c;
    struct err e = {0};
    struct spans out;
    assert_int_equal(chat_open_text(&c, text, strlen(text), &e), 0);
    json_t *m = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "hi", "role", "assistant",
                          "content", begun),
           *extra = json_pack("{s:s,s:s,s:s,s:s}", "bos_token", "", "eos_token", "</s>", "functions", "[]",
                              "datetime", "now");
    if (chat_render(c, &(struct chat_request){.messages = m, .extra = extra, .continue_final = true}, &out,
                    &e))
        fail_msg("%s: %s", name, e.text);
    if (out.n < sizeof begun || strcmp(out.text + out.n - (sizeof begun - 1), begun) != 0)
        fail_msg("%s: %s", name, out.text);
    spans_free(&out);
    json_decref(extra);
    json_decref(m);
    chat_close(c);
}

/* Known, and read as text: their calls have no marks, or marks made of the arguments' names. */
static bool is_other(const char *name)
{
    return strstr(name, "functionary-medium-v3.2") || strstr(name, "MiniMax-M3");
}

static void test_templates(void **state)
{
    (void)state;
    const char *shared = getenv("QUERN_SHARED");
    char folder[512];
    snprintf(folder, sizeof folder, "%s/templates", shared ? shared : "../shared");
    DIR *d = opendir(folder);
    if (!d) {
        print_message("no reference data: ../shared/templates is not there\n");
        skip();
    }
    json_t *tools = json_loads(tools_text, 0, NULL);
    int written = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char path[1024];
        struct buf text = {0};
        struct err e = {0};
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (!strstr(f->d_name, ".jinja") || is_other(f->d_name))
            continue;
        assert_int_equal(file_read(path, &text, &e), 0);
        check_goes_on(f->d_name, text.data);
        written += check(f->d_name, text.data, tools, 1);
        check(f->d_name, text.data, tools, 2);
        buf_free(&text);
    }
    assert_true(written > 20);
    closedir(d);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
