/* llama.cpp's own shape of requests: /completion and /infill, which editors speak. They become a completion of OpenAI's, and
 * their replies are told in their own words. */
#include "base/json.h"
#include "lang/middle.h"
#include "serve/field.h"
#include "serve/own.h"

#include <string.h>

enum { INFILL_FILES = 256 };

static const struct field infill_fields[] = {
    {"input_prefix", FIELD_TEXT, 0, 0},
    {"input_suffix", FIELD_TEXT, 0, 0},
    {"input_extra", FIELD_LIST, 0, INFILL_FILES},
    {"n_predict", FIELD_INT, -1, ASK_TOKENS},
    {"stream", FIELD_BOOL, 0, 0},
};

/* The prompt as ids, so that what is in the texts is never taken for a token that steers. */
static json_t *infill_prompt(struct answer *a, const json_t *body)
{
    const json_t *extra = json_object_get(body, "input_extra");
    const char *prefix = field_text(body, "input_prefix"), *suffix = field_text(body, "input_suffix");
    struct middle_file files[INFILL_FILES];
    struct middle m = {.prefix = prefix ? prefix : "",
                       .suffix = suffix ? suffix : "",
                       .begun = field_text(body, "prompt"),
                       .files = files,
                       .count = json_array_size(extra)};
    if (m.begun && strlen(m.begun) != json_string_length(json_object_get(body, "prompt"))) {
        answer_fail(a, 400, "prompt", "the prompt of an infill cannot hold the character U+0000");
        return NULL;
    }
    for (size_t i = 0; i < m.count; i++) {
        const json_t *one = json_array_get(extra, i);
        files[i] = (struct middle_file){field_text(one, "filename"), field_text(one, "text")};
        files[i].name = files[i].name ? files[i].name : "file";
        if (!files[i].text) {
            answer_fail(a, 400, "input_extra", "input_extra[%zu] has to be {filename, text}", i);
            return NULL;
        }
    }
    struct ids ids = {0};
    struct err e = {0};
    json_t *list = NULL;
    if (middle_prompt(a->model->loaded->tokenizer, &m, &ids, &e))
        answer_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "input_suffix", "%s", e.text);
    else
        list = json_array();
    for (size_t i = 0; list && i < ids.len; i++)
        json_array_append_new(list, json_integer(ids.data[i]));
    ids_free(&ids);
    return list;
}

/* n_predict is called max_tokens there, and is endless here where it is not given. 0 is how an editor warms up
 * the cache: one token is made then. */
static void infill_ask(struct answer *a)
{
    json_t *body = a->request;
    int64_t most = field_int(body, "n_predict", -1);
    json_object_set_new(body, "max_tokens", json_integer(most ? most : 1));
    json_object_del(body, "n");
    ask_completion(a);
}

static int infill_check(struct answer *a)
{
    struct err e = {0};
    const char *name;
    if (field_check(a->request, infill_fields, sizeof infill_fields / sizeof *infill_fields, &name, &e))
        return answer_fail(a, 400, name, "%s", e.text);
    return 0;
}

void api_infill(struct answer *a)
{
    json_t *prompt = infill_check(a) ? NULL : infill_prompt(a, a->request);
    if (prompt && !json_object_set_new(a->request, "prompt", prompt))
        infill_ask(a);
}

void api_completion(struct answer *a)
{
    const json_t *prompt = json_object_get(a->request, "prompt");
    if (json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0)))
        answer_fail(a, 400, "prompt", "prompt has to be a text or a list of ids");
    else if (!infill_check(a))
        infill_ask(a);
}

/* ---- replies ---- */

static void infill_piece(struct answer *a, const char *text, size_t n, bool stop, struct buf *out)
{
    const struct choice *c = &a->choices[0];
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "index");
    json_uint(&j, 0);
    json_key(&j, "content");
    json_strn(&j, text, n);
    json_key(&j, "stop");
    json_bool(&j, stop);
    if (stop) {
        json_key(&j, "model");
        json_str(&j, a->called);
        json_key(&j, "stop_type");
        json_str(&j, c->end.finish == FINISH_LENGTH ? "limit" : "eos");
        json_key(&j, "truncated");
        json_bool(&j, false);
        json_key(&j, "tokens_evaluated");
        json_uint(&j, a->prompts[0].len);
        json_key(&j, "tokens_predicted");
        json_uint(&j, c->made);
        json_key(&j, "tokens_cached");
        json_uint(&j, c->end.cached);
        tell_timings(a, &j);
    }
    json_end(&j, '}');
}

static void infill_event(struct answer *a, const char *text, size_t n, bool stop, struct buf *out)
{
    buf_str(out, "data: ");
    infill_piece(a, text, n, stop, out);
    buf_str(out, "\n\n");
}

static void infill_told(struct answer *a, struct choice *c, const struct reply_piece *p, struct buf *out)
{
    (void)c;
    infill_event(a, p->text, p->n, false, out);
}

static void infill_end(struct answer *a, struct choice *c, struct buf *out)
{
    (void)c;
    infill_event(a, "", 0, true, out);
}

static void infill_whole(struct answer *a, struct buf *out)
{
    const struct buf *text = &a->choices[0].said.text;
    infill_piece(a, text->data ? text->data : "", text->len, true, out);
}

static void infill_error(const struct failure *f, struct buf *out)
{
    tell_openai.error(f, out);
}

static void infill_broken(const struct failure *f, struct buf *out)
{
    buf_str(out, "data: ");
    infill_error(f, out);
    buf_str(out, "\n\n");
}

const struct teller infill_teller = {
    .type = "text/event-stream",
    .alive = ":\n\n",
    .piece = infill_told,
    .end = infill_end,
    .whole = infill_whole,
    .error = infill_error,
    .broken = infill_broken,
};
