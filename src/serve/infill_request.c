/* llama.cpp's own shape of requests: /completion and /infill, which editors speak. They become a completion of OpenAI's.
 * Runs on a worker. */
#include "base/num.h"
#include "lang/chat/fim.h"
#include "run/engine.h"
#include "run/image_text.h"
#include "run/session.h"
#include "serve/api.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/request.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { INFILL_FILES = 256, INFILL_FIELDS = 64 };

static const struct field infill_fields[] = {
    {"input_prefix", FIELD_TEXT, 0, 0},
    {"input_suffix", FIELD_TEXT, 0, 0},
    {"input_extra", FIELD_LIST, 0, INFILL_FILES},
    {"n_predict", FIELD_INT, -1, OPENAI_TOKENS},
    {"stream", FIELD_BOOL, 0, 0},
    {"n_probs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"response_fields", FIELD_LIST, 0, INFILL_FIELDS},
};

/* The prompt as ids, so that the texts are never parsed for control tokens. */
static json_t *infill_prompt(struct request *a, const json_t *body)
{
    const json_t *extra = json_object_get(body, "input_extra");
    const char *prefix = field_text(body, "input_prefix"), *suffix = field_text(body, "input_suffix");
    struct fim_file files[INFILL_FILES];
    struct fim m = {.prefix = prefix ? prefix : "",
                    .suffix = suffix ? suffix : "",
                    .begun = field_text(body, "prompt"),
                    .files = files,
                    .count = json_array_size(extra)};
    if (m.begun && strlen(m.begun) != json_string_length(json_object_get(body, "prompt"))) {
        request_fail(a, 400, "prompt", "the prompt of an infill cannot hold the character U+0000");
        return NULL;
    }
    for (size_t i = 0; i < m.count; i++) {
        const json_t *one = json_array_get(extra, i);
        files[i] = (struct fim_file){field_text(one, "filename"), field_text(one, "text")};
        const bool named = files[i].name || !json_object_get(one, "filename");
        files[i].name = files[i].name ? files[i].name : "file";
        if (!files[i].text || !named) {
            request_fail(a, 400, "input_extra", "input_extra[%zu] has to be {filename, text}", i);
            return NULL;
        }
    }
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    json_t *list = NULL;
    if (fim_prompt(a->model->session->tokenizer, &m, &ids, &e))
        ids.over ? openai_too_long(a, &ids, "input_prefix")
                 : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "input_suffix", "%s", e.text);
    else
        list = json_array();
    for (size_t i = 0; list && i < ids.len; i++)
        json_array_append_new(list, json_integer(ids.data[i]));
    ids_free(&ids);
    return list;
}

/* n_predict is OpenAI's max_tokens; without it there is no limit. Editors send 0 to warm up the cache: one
 * token is generated then. */
static void infill_ask(struct request *a)
{
    json_t *body = a->json;
    int64_t most = field_int(body, "n_predict", field_int(body, "max_tokens", -1));
    json_object_set_new(body, "max_tokens", json_integer(most ? most : 1));
    json_object_del(body, "n");
    if (field_int(body, "n_probs", 0) > 0)
        json_object_set(body, "logprobs", json_object_get(body, "n_probs"));
    if (field_bool(body, "stream"))
        json_object_set_new(body, "return_tokens", json_true()); /* the events of a stream always have them */
    openai_completion(a);
}

static int infill_check(struct request *a)
{
    struct err e = {0};
    const char *name;
    if (field_check(a->json, infill_fields, sizeof infill_fields / sizeof *infill_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    const json_t *wanted = json_object_get(a->json, "response_fields");
    for (size_t i = 0; i < json_array_size(wanted); i++)
        if (!json_is_string(json_array_get(wanted, i)))
            return request_fail(a, 400, "response_fields", "response_fields[%zu] has to be a text", i);
    return 0;
}

/* ---- /completion: its prompts and biases ---- */

/* A prompt of ids and texts in turn, as one list of ids. NULL and a failure. */
static json_t *completion_mixed(struct request *a, const json_t *parts)
{
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    json_t *list = json_array();
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        if (a->failure.status)
            break;
        ids.len = 0;
        if (json_is_string(part) &&
            tokenizer_encode(a->model->session->tokenizer, json_string_value(part), json_string_length(part),
                             TOK_SPECIAL | (i ? 0 : TOK_ADD), &ids, &e))
            ids.over ? openai_too_long(a, &ids, "prompt")
                     : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "prompt", "%s", e.text);
        else if (!json_is_string(part) && !json_is_number(part))
            request_fail(a, 400, "prompt", "prompt[%zu] has to be a text or a token id", i);
        if (json_is_number(part))
            json_array_append(list, (json_t *)(uintptr_t)part);
        for (size_t k = 0; k < ids.len; k++)
            json_array_append_new(list, json_integer(ids.data[k]));
    }
    ids_free(&ids);
    if (!a->failure.status)
        return list;
    json_decref(list);
    return NULL;
}

static bool completion_has_numbers(const json_t *list)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v) if (json_is_number(v)) return true;
    return false;
}

/* {"prompt_string": text} as the text; with images it stays as it is. NULL and a failure where it holds anything else. */
static json_t *completion_object(struct request *a, json_t *prompt)
{
    json_t *text = json_object_get(prompt, "prompt_string");
    const json_t *media = json_object_get(prompt, "multimodal_data");
    bool images = json_array_size(media);
    if (media && !json_is_array(media))
        request_fail(a, 400, "prompt", "multimodal_data has to be a list of images in base64");
    else if (images && !a->model->session->vision)
        request_fail(a, 400, "prompt", "multimodal_data has images; %s", request_reads(a, NULL));
    else if (!json_is_string(text))
        request_fail(a, 400, "prompt", "a prompt that is an object has to be {\"prompt_string\": text}");
    else if (media && !images && strstr(json_string_value(text), IMAGE_TEXT_MARK))
        request_fail(a, 400, "prompt", "the prompt has " IMAGE_TEXT_MARK ", and multimodal_data no image");
    return a->failure.status ? NULL : json_incref(images ? prompt : text);
}

/* A list with a number in it is one prompt; any other list has a prompt in each place. */
static int completion_prompts(struct request *a)
{
    json_t *prompt = json_object_get(a->json, "prompt"), *one, *made;
    size_t i;
    if (json_is_object(prompt)) {
        made = completion_object(a, prompt);
        if (json_is_object(made))
            made = json_pack("[o]", made);
        return made ? json_object_set_new(a->json, "prompt", made) : -1;
    }
    if (json_is_array(prompt) && completion_has_numbers(prompt)) {
        made = completion_mixed(a, prompt);
        return made ? json_object_set_new(a->json, "prompt", made) : -1;
    }
    json_array_foreach(prompt, i, one)
    {
        if (!json_is_array(one) && !json_is_object(one))
            continue;
        made = json_is_object(one) ? completion_object(a, one) : completion_mixed(a, one);
        if (!made || json_array_set_new(prompt, i, made))
            return -1;
    }
    return 0;
}

/* All tokens of a text, or the one token of a number, get this bias. */
static int completion_bias(struct request *a, const json_t *token, const json_t *value, json_t *to)
{
    struct ids ids = {.most = openai_count_most(a)};
    struct err e = {0};
    char key[32];
    double bias = json_is_false(value) ? -100 : json_number_value(value);
    int64_t id;
    if (!json_is_false(value) && !json_is_number(value))
        return request_fail(a, 400, "logit_bias", "a bias of logit_bias has to be a number, or false");
    bool known = json_is_string(token)
                     ? !tokenizer_encode(a->model->session->tokenizer, json_string_value(token),
                                         json_string_length(token), TOK_SPECIAL, &ids, &e)
                     : field_whole(token, 0, a->model->session->model->plan.out_width - 1, &id) &&
                           !ids_add(&ids, (int32_t)id, &e);
    bias = bias < -100 ? -100 : bias > 100 ? 100 : bias;
    for (size_t i = 0; i < ids.len; i++) {
        snprintf(key, sizeof key, "%d", (int)ids.data[i]);
        json_object_set_new(to, key, json_real(bias));
    }
    ids_free(&ids);
    return known ? 0 : request_fail(a, 400, "logit_bias", "logit_bias has to name tokens by id or by text");
}

/* [[id or text, bias or false], ...], or {"id or text": bias}: as {"id": bias}. */
static int completion_biases(struct request *a)
{
    json_t *all = json_object_get(a->json, "logit_bias"), *made = json_object(), *v;
    const char *name;
    size_t i;
    int failed = 0;
    json_array_foreach(all, i, v)
    {
        if (json_array_size(v) != 2)
            failed = request_fail(a, 400, "logit_bias", "logit_bias[%zu] has to be [token, bias]", i);
        failed = failed || completion_bias(a, json_array_get(v, 0), json_array_get(v, 1), made);
    }
    json_object_foreach(all, name, v)
    {
        int64_t id;
        bool number = num_i64(name, strlen(name), 0, INT32_MAX, &id);
        json_t *token = number ? json_integer(id) : json_string(name);
        failed = failed || completion_bias(a, token, v, made);
        json_decref(token);
    }
    if (!failed && (json_is_array(all) || json_is_object(all)))
        json_object_set(a->json, "logit_bias", made);
    json_decref(made);
    return failed;
}

void api_infill(struct request *a)
{
    json_t *prompt = infill_check(a) || completion_biases(a) ? NULL : infill_prompt(a, a->json);
    if (prompt && !json_object_set_new(a->json, "prompt", prompt))
        infill_ask(a);
}

void api_completion(struct request *a)
{
    if (!infill_check(a) && !completion_prompts(a) && !completion_biases(a))
        infill_ask(a);
}
