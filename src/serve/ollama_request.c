/* Ollama's requests. Runs on a worker. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "run/image_text.h"
#include "run/session.h"
#include "serve/failure.h"
#include "serve/field.h"
#include "serve/models.h"
#include "serve/ollama.h"
#include "serve/openai.h"
#include "serve/refuse.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/vectors.h"
#include "serve/worker.h"

#include <jansson.h>
#include <string.h>

const char *ollama_model(const json_t *body)
{
    const char *model = field_text(body, "model");
    return model ? model : field_text(body, "name");
}

/* ---- options ---- */

/* 300, "5m", "-1": seconds. */
static int ollama_keep(struct request *a, const json_t *body)
{
    const json_t *v = json_object_get(body, "keep_alive");
    const char *text = json_string_value(v);
    double seconds = json_number_value(v);
    if (!v)
        return 0;
    if (!json_is_number(v) && !(text && num_duration(text, strlen(text), &seconds)))
        return request_fail(a, 400, "keep_alive",
                            "keep_alive has to be seconds, or a time such as 5m; -1 = for ever");
    a->keep = seconds < 0 ? MODELS_KEEP_FOREVER : seconds;
    return 0;
}

/* Moves a field to another object under another name. */
static void ollama_move(json_t *to, const char *name, json_t *from, const char *old)
{
    json_t *v = json_object_get(from, old);
    if (v && !json_is_null(v))
        json_object_set(to, name, v);
}

static void ollama_options(json_t *out, json_t *options)
{
    static const char *const names[][2] = {
        {"temperature", "temperature"},
        {"top_k", "top_k"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"typical_p", "typical_p"},
        {"seed", "seed"},
        {"stop", "stop"},
        {"repeat_penalty", "repeat_penalty"},
        {"repeat_last_n", "repeat_last_n"},
        {"presence_penalty", "presence_penalty"},
        {"frequency_penalty", "frequency_penalty"},
        {"mirostat", "mirostat"},
        {"mirostat_tau", "mirostat_tau"},
        {"mirostat_eta", "mirostat_eta"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ollama_move(out, names[i][1], options, names[i][0]);
    int64_t most = field_int(options, "num_predict", -1);
    if (json_object_get(options, "num_predict"))
        json_object_set_new(out, "max_tokens", json_integer(most > 0 ? most : -1));
}

/* "json", or a schema; "" is nothing. */
static int ollama_check_format(struct request *a, const json_t *body)
{
    const json_t *format = json_object_get(body, "format");
    const char *word = json_string_value(format);
    if (!format || json_is_object(format) || (word && (!*word || !strcmp(word, "json"))))
        return 0;
    return request_fail(a, 400, "format", "format has to be 'json' or a schema");
}

static int ollama_format(json_t *out, const json_t *body)
{
    json_t *format = json_object_get(body, "format");
    const char *word = json_string_value(format);
    if (!format || (word && !*word))
        return 0;
    return json_object_set_new(
        out, "response_format",
        word ? json_pack("{s:s}", "type", "json_object")
             : json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
}

/* think: true, false, how hard, or a budget in tokens. */
static void ollama_think(json_t *out, const json_t *body)
{
    const json_t *think = json_object_get(body, "think");
    const char *word = json_string_value(think);
    if (!think)
        return;
    if (word)
        json_object_set_new(out, "reasoning_effort", json_string(word));
    if (json_is_integer(think))
        json_object_set(out, "reasoning_budget", (json_t *)(uintptr_t)think);
    bool on = word || json_is_true(think) || json_integer_value(think);
    json_object_set_new(out, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", on));
}

/* A template in Go's syntax is not run here; the model's own, as /api/show has it, changes nothing. */
static int ollama_check_template(struct request *a, const json_t *body)
{
    static const struct refusal refused[] = {
        {"template",
         "prompts are written by the model's own template; write the prompt and send it with raw"}};
    const char *text = field_text(body, "template");
    const struct chat *own = a->model->session->chat;
    return text && own && !strcmp(text, chat_text(own)) ? 0 : refuse_fields(a, body, refused, 1);
}

/* A chat has the number of likely tokens beside, a completion has it as the value. */
static void ollama_logprobs(json_t *out, const json_t *body, bool chat)
{
    json_t *logprobs = json_object_get(body, "logprobs"), *tops = json_object_get(body, "top_logprobs");
    if (!chat && json_is_true(logprobs))
        json_object_set_new(out, "logprobs", tops ? json_incref(tops) : json_integer(0));
    else if (logprobs)
        json_object_set(out, "logprobs", logprobs);
    if (tops && (chat || !json_is_true(logprobs)))
        json_object_set(out, "top_logprobs", tops);
}

static int ollama_common(json_t *out, const json_t *body)
{
    json_t *options = json_object_get(body, "options"), *stream = json_object_get(body, "stream");
    if (options)
        field_drop_nulls(options);
    ollama_options(out, options);
    ollama_think(out, body);
    json_object_set_new(out, "stream", json_boolean(!stream || json_is_true(stream)));
    return ollama_format(out, body);
}

/* ---- chat ---- */

/* A call's arguments are an object here and a text there. */
static int ollama_calls(json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        struct buf text = {0};
        if (!json_is_object(arguments))
            continue;
        size_t n = json_dumpb(arguments, NULL, 0, JSON_COMPACT);
        char *to = buf_reserve(&text, n);
        if (to)
            text.len = json_dumpb(arguments, to, n, JSON_COMPACT);
        int failed = !to || json_object_set_new(function, "arguments", json_stringn(text.data, text.len));
        buf_free(&text);
        if (failed)
            return -1;
        json_object_set_new(call, "type", json_string("function"));
    }
    return 0;
}

static int ollama_check_images(struct request *a, const json_t *images, const char *where)
{
    if (images && !json_is_null(images) && !json_is_array(images))
        return request_fail(a, 400, where, "%s has to be a list of images in base64", where);
    return json_array_size(images) && !a->model->session->vision
               ? request_fail(a, 400, where, "%s: %s", where, request_reads(a, NULL))
               : 0;
}

/* The images of a message are parts in front of its text. */
static int ollama_images(struct request *a, json_t *message, const json_t *images, const char *where)
{
    json_t *text = json_object_get(message, "content"), *parts, *image;
    size_t i;
    if (ollama_check_images(a, images, where) || !json_array_size(images))
        return a->failure.status ? -1 : 0;
    int failed = !(parts = json_array());
    json_array_foreach((json_t *)(uintptr_t)images, i, image)
    {
        if (!json_is_string(image)) {
            json_decref(parts);
            return request_fail(a, 400, where, "%s[%zu] has to be an image in base64", where, i);
        }
        failed =
            failed || json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "image", "data", image));
    }
    if (json_string_length(text))
        failed = failed || json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    failed = failed || json_object_set_new(message, "content", parts);
    json_object_del(message, "images"); /* a message of /api/generate has none */
    return failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

static int ollama_message(struct request *a, json_t *message, size_t at)
{
    const json_t *images = json_object_get(message, "images");
    char where[FAILURE_PARAM];
    snprintf(where, sizeof where, "messages[%zu].images", at);
    if (ollama_images(a, message, images, where))
        return -1;
    if (ollama_calls(message))
        return request_fail(a, 503, NULL, "out of memory");
    ollama_move(message, "reasoning_content", message, "thinking");
    ollama_move(message, "name", message, "tool_name");
    return 0;
}

/* The reply to a request without a prompt, which only loads or unloads the model. */
static void ollama_only_load(struct request *a, bool chat, bool unload)
{
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "model");
    json_str(&j, unload ? ollama_model(a->json) : a->called);
    ollama_time(&j, "created_at", 0);
    if (chat) {
        json_key(&j, "message");
        json_begin(&j, '{');
        json_key(&j, "role");
        json_str(&j, "assistant");
        json_key(&j, "content");
        json_str(&j, "");
        json_end(&j, '}');
    } else {
        json_key(&j, "response");
        json_str(&j, "");
    }
    json_key(&j, "done");
    json_bool(&j, true);
    json_key(&j, "done_reason");
    json_str(&j, unload ? "unload" : "load");
    json_end(&j, '}');
}

/* A request without a prompt that unloads the model (keep_alive 0) must not load it first. True: the reply is
 * done, or the model is not loaded. */
static bool ollama_is_through(struct request *a, bool chat, bool empty)
{
    static const struct field fields[] = {
        {"options", FIELD_OBJECT, 0, 1e6},
        {"stream", FIELD_BOOL, 0, 0},
        {"think", FIELD_BOOL | FIELD_TEXT | FIELD_INT | FIELD_NO_LIMIT, 0, 1 << 30},
        {"messages", FIELD_LIST, 0, 4096},
        {"prompt", FIELD_TEXT, 0, 0},
        {"suffix", FIELD_TEXT, 0, 0},
        {"system", FIELD_TEXT, 0, 0},
        {"raw", FIELD_BOOL, 0, 0},
        {"template", FIELD_TEXT, 0, 0},
        {"context", FIELD_LIST, 0, 1e6},
        {"logprobs", FIELD_BOOL, 0, 0},
        {"top_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    };
    const char *name, *bad;
    struct err e = {0};
    if (field_check(a->json, fields, sizeof fields / sizeof *fields, &bad, &e))
        request_fail(a, 400, bad, "%s", e.text);
    if (a->failure.status || ollama_check_format(a, a->json) || ollama_keep(a, a->json))
        return true;
    name = ollama_model(a->json);
    if (empty && a->keep == 0 && name) {
        if (!a->admin)
            failure_set(&a->failure, 403, "admin_key_required", "keep_alive",
                        "unloading a model needs an admin key");
        else if (models_stop(a->server->models, name) < 0)
            failure_set(&a->failure, 404, "model_not_found", "model", "model '%s' not found", log_safe(name));
        else
            ollama_only_load(a, chat, true);
        return true;
    }
    if (worker_model(a, ROUTE_CHAT))
        return true;
    if (empty)
        ollama_only_load(a, chat, false);
    return empty;
}

void ollama_chat(struct request *a)
{
    json_t *body = openai_body(a), *messages = json_object_get(body, "messages"), *m;
    size_t i;
    json_decref(body); /* the request keeps a reference */
    if (!body || ollama_is_through(a, true, !json_array_size(messages)))
        return;
    json_t *made = json_object();
    int failed = ollama_check_template(a, body) || ollama_common(made, body);
    ollama_logprobs(made, body, true);
    json_array_foreach(messages, i, m) failed = failed || ollama_message(a, m, i);
    ollama_move(made, "messages", body, "messages");
    ollama_move(made, "tools", body, "tools");
    if (failed)
        json_decref(made);
    else
        openai_as(a, made, openai_chat);
}

/* ---- generate: a raw prompt, or a user's message ---- */

/* A raw prompt takes no system message. */
static int ollama_check_generate(struct request *a, const json_t *body)
{
    static const char *const shaped[] = {"system", "template", "context"};
    for (size_t i = 0; field_bool(body, "raw") && i < sizeof shaped / sizeof *shaped; i++) {
        const json_t *v = json_object_get(body, shaped[i]);
        if (json_string_length(v) || json_array_size(v))
            return request_fail(a, 400, shaped[i], "raw sends the prompt as it is: leave out %s", shaped[i]);
    }
    return ollama_check_images(a, json_object_get(body, "images"), "images") || ollama_check_template(a, body)
               ? -1
               : 0;
}

/* A model without a template gets the texts one after the other, behind the images. */
static json_t *ollama_plain(const char *system, const json_t *prompt, json_t *images)
{
    struct buf all = {0};
    for (size_t i = 0; i < json_array_size(images); i++)
        buf_str(&all, IMAGE_TEXT_MARK);
    if (system && *system)
        buf_printf(&all, "%s\n\n", system);
    buf_add(&all, prompt ? json_string_value(prompt) : "", json_string_length(prompt));
    json_t *text = all.failed ? NULL : json_stringn(all.data ? all.data : "", all.len);
    buf_free(&all);
    return json_array_size(images)
               ? json_pack("[{s:o,s:O}]", "prompt_string", text, "multimodal_data", images)
               : text;
}

void ollama_generate(struct request *a)
{
    json_t *body = openai_body(a), *text = json_object_get(body, "prompt");
    const char *prompt = json_string_value(text), *system = field_text(body, "system"),
               *suffix = field_text(body, "suffix");
    bool middle = suffix && *suffix;
    json_decref(body); /* the request keeps a reference */
    if (!body || ollama_is_through(a, false, (!prompt || !*prompt) && !middle))
        return;
    json_t *made = json_object();
    bool plain = field_bool(body, "raw") || middle || !a->model->session->chat;
    if (ollama_check_generate(a, body) || ollama_common(made, body) || ollama_context_read(a, body)) {
        json_decref(made);
        return;
    }
    ollama_logprobs(made, body, !plain);
    a->keep_ids = !field_bool(body, "raw");
    if (plain) {
        json_object_set_new(made, "prompt", ollama_plain(system, text, json_object_get(body, "images")));
        if (middle)
            ollama_move(made, "suffix", body, "suffix");
    } else {
        json_t *messages = json_array();
        if (system && *system)
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
        json_t *user = json_pack("{s:s, s:O}", "role", "user", "content", text);
        ollama_images(a, user, json_object_get(body, "images"), "images");
        json_array_append_new(messages, user);
        json_object_set_new(made, "messages", messages);
    }
    if (a->failure.status)
        json_decref(made);
    else
        openai_as(a, made, plain ? openai_completion : openai_chat);
}

/* ---- vectors ---- */

static void ollama_vector(struct json *j, const float *v, size_t n)
{
    json_begin(j, '[');
    for (size_t i = 0; i < n; i++)
        json_f32(j, v[i]);
    json_end(j, ']');
}

static int ollama_embed_read(struct request *a, const char *param)
{
    static const struct field fields[] = {{"truncate", FIELD_BOOL, 0, 0},
                                          {"dimensions", FIELD_INT, 1, 1 << 24}};
    const json_t *body = a->json, *cut = json_object_get(body, "truncate");
    const char *name;
    struct err e = {0};
    if (field_check(body, fields, sizeof fields / sizeof *fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    if (ollama_keep(a, body) || vectors_check_width(a, body))
        return -1;
    return vectors_read(a, json_object_get(body, param), param, !json_is_false(cut));
}

void ollama_embed(struct request *a)
{
    const struct vectors *v = a->vectors;
    struct json j = {.out = &a->reply};
    if (!a->stage) {
        if (!ollama_embed_read(a, "input"))
            vectors_submit(a, "input");
        return;
    }
    if (!vectors_done(a))
        return;
    size_t width = vectors_narrow(a, a->json);
    json_begin(&j, '{');
    json_key(&j, "model");
    json_str(&j, a->called);
    json_key(&j, "embeddings");
    json_begin(&j, '[');
    for (size_t i = 0; i < v->count; i++)
        ollama_vector(&j, v->out + i * v->width, width);
    json_end(&j, ']');
    json_key(&j, "total_duration");
    json_uint(&j, (uint64_t)(1e9 * (clock_now() - a->begun)));
    json_key(&j, "load_duration");
    json_uint(&j, (uint64_t)(1e9 * (a->got - a->begun)));
    json_key(&j, "prompt_eval_count");
    json_uint(&j, v->tokens);
    json_end(&j, '}');
}

void ollama_embeddings(struct request *a)
{
    struct json j = {.out = &a->reply};
    if (!a->stage) {
        if (!ollama_embed_read(a, "prompt"))
            vectors_submit(a, "prompt");
    } else if (vectors_done(a)) {
        json_begin(&j, '{');
        json_key(&j, "embedding");
        ollama_vector(&j, a->vectors->out, vectors_narrow(a, a->json));
        json_end(&j, '}');
    }
}
