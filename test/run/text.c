/* The engine with text: many constrained answers at once from a real model and its vocabulary. */
#include "test.h"

#include "codec/dtype.h"
#include "run/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 4 };

static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"mill\":{\"enum\":[\"quern\",\"stone\"]},"
                             "\"n\":{\"type\":\"integer\",\"minimum\":10,\"maximum\":99}},"
                             "\"required\":[\"mill\",\"n\"],\"additionalProperties\":false}";

/* The default model, where it has been fetched. */
static struct session *open_model(void)
{
    char path[512];
    struct err e = {0};
    struct store *store;
    struct session *l;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/quern/models/SmolLM2-135M-Instruct.Q4_1.gguf",
             cache  ? cache
             : home ? home
                    : "",
             cache ? "" : "/.cache");
    if (access(path, R_OK)) {
        print_message("SmolLM2-135M is not in the cache (scripts/fetch-model)\n");
        return NULL;
    }
    struct session_options o = {.runner = {.ctx = 512, .seqs = STREAMS, .outs = 64, .kv_type = DTYPE_F16}};
    if (store_open(&store, path, &e) || session_open(&l, store, &o, &e))
        fail_msg("%s", e.text);
    return l;
}

static struct constraint_ref *open_constraint(struct session *l)
{
    struct err e = {0};
    struct constraint_ref *r;
    json_t *schema = json_loads(SCHEMA, 0, NULL);
    struct constraint *c = constraint_from_schema(schema, &e);
    json_decref(schema);
    if (!c || constraint_ref_open(&r, c, session_vocab(l, &e), &e))
        fail_msg("%s", e.text);
    return r;
}

static void read_text(struct stream *s, struct buf *text, struct stream_chunk *last)
{
    do {
        assert_true(stream_look(s, -1, last));
        buf_add(text, last->text, last->text_length);
    } while (!last->done);
    if (last->err.code)
        fail_msg("%s", last->err.text);
    stream_close(s);
}

static void assert_obeys(const struct buf *text)
{
    const char *mill;
    int n;
    json_t *v = json_loadb(text->data, text->len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(v);
    assert_int_equal(json_unpack(v, "{s:s,s:i!}", "mill", &mill, "n", &n), 0);
    assert_true(!strcmp(mill, "quern") || !strcmp(mill, "stone"));
    assert_in_range(n, 10, 99);
    json_decref(v);
}

/* Hot, with guesses ahead, half of the requests under the rule and half free, and no allocation in a step. */
static void constraint_cache_hold(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct ids prompt = {0};
    struct stream *streams[STREAMS];
    struct stream_chunk last;
    struct session *l = open_model();
    if (!l)
        skip();
    struct constraint_ref *constraint = open_constraint(l);
    assert_int_equal(tokenizer_encode(l->tokenizer, "A mill as JSON:", 15, 0, &prompt, &e), 0);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 4, .guard = true}, &e), 0);
    struct engine_request r = {.prompt = prompt.data, .n = (uint32_t)prompt.len, .ignore_eog = true};
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 1.5;
    r.sampler.top_k = r.sampler.min_p = 0;
    r.sampler.top_p = 1;
    for (uint32_t i = 0; i < STREAMS; i++) {
        r.sampler.seed = i;
        r.constraint = i % 2 ? NULL : constraint;
        r.most = i % 2 ? 12 : 0;
        assert_int_equal(engine_submit(g, &r, &streams[i], &e), 0);
    }
    constraint_ref_drop(constraint); /* the requests have their shares */
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct buf text = {0};
        read_text(streams[i], &text, &last);
        assert_int_equal(last.finish, i % 2 ? FINISH_LENGTH : FINISH_STOP);
        if (i % 2 == 0)
            assert_obeys(&text);
        buf_free(&text);
    }
    engine_close(g);
    ids_free(&prompt);
    session_close(l);
}

/* The text of a request ends before its stop string, and nothing of that is let out. */
static void stop_strings_stop(void **state)
{
    (void)state;
    static const char *const stops[] = {"zzzz", "five"};
    static const char text[] = "one two three four five six. one two three four five six. one two three";
    struct err e = {0};
    struct engine *g;
    struct ids prompt = {0};
    struct stream *s;
    struct stream_chunk last;
    struct buf got = {0};
    struct session *l = open_model();
    if (!l)
        skip();
    assert_int_equal(tokenizer_encode(l->tokenizer, text, strlen(text), 0, &prompt, &e), 0);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 4, .guard = true}, &e), 0);
    struct engine_request r = {
        .prompt = prompt.data, .n = (uint32_t)prompt.len, .most = 20, .stop_strings = stops, .stops = 2};
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 0;
    assert_int_equal(engine_submit(g, &r, &s, &e), 0);
    read_text(s, &got, &last);
    assert_string_equal(got.data, " four ");
    assert_int_equal(last.finish, FINISH_STOP);
    buf_free(&got);
    engine_close(g);
    ids_free(&prompt);
    session_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constraint_cache_hold),
        cmocka_unit_test(stop_strings_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
