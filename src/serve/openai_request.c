/* Chat and completion requests: from JSON to the engine. Runs on a worker. */
#define _GNU_SOURCE
#include "serve/openai_request.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "format/jsonread.h"
#include "lang/chat/fim.h"
#include "run/engine.h"
#include "run/image_parts.h"
#include "run/prefill.h"
#include "run/session.h"
#include "serve/adapters.h"
#include "serve/field.h"
#include "serve/format.h"
#include "serve/limit.h"
#include "serve/message.h"
#include "serve/models.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/server_internal.h"
#include "serve/text.h"
#include "serve/worker.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

#define MANY 1e6 /* items of an object without a limit of its own */
static const struct field openai_fields[] = {
    {"messages", FIELD_LIST, 1, 4096},
    {"prompt", FIELD_TEXT | FIELD_LIST, 1, MANY},
    {"suffix", FIELD_TEXT, 0, 0},
    {"max_tokens", FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"max_completion_tokens", FIELD_INT, 1, OPENAI_TOKENS},
    {"n", FIELD_INT, 1, REQUEST_CHOICES},
    {"best_of", FIELD_INT, 1, REQUEST_CHOICES},
    {"stream", FIELD_BOOL, 0, 0},
    {"stream_options", FIELD_OBJECT, 0, MANY},
    {"stop", FIELD_TEXT | FIELD_LIST, 0, OPENAI_STOPS},
    {"seed", FIELD_INT, -9e15, 9e15},
    {"logit_bias", FIELD_OBJECT, 0, OPENAI_BIASES},
    {"logprobs", FIELD_BOOL | FIELD_INT, 0, ENGINE_TOP_MOST},
    {"top_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"response_format", FIELD_OBJECT, 1, MANY},
    {"structured_outputs", FIELD_OBJECT, 0, MANY},
    {"tools", FIELD_LIST, 0, 128},
    {"tool_choice", FIELD_TEXT | FIELD_OBJECT, 0, MANY},
    {"chat_template_kwargs", FIELD_OBJECT, 0, 256},
    {"reasoning_effort", FIELD_TEXT | FIELD_INT | FIELD_NO_LIMIT, 0, OPENAI_TOKENS},
    {"repetition_penalty", FIELD_NUM, 0.01, 100},
    {"ignore_eos", FIELD_BOOL, 0, 0},
    {"echo", FIELD_BOOL, 0, 0},
    {"functions", FIELD_LIST, 0, 128},
    {"function_call", FIELD_TEXT | FIELD_OBJECT, 0, 16},
    {"n_probs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"documents", FIELD_LIST, 0, 4096},
    {"reasoning_format", FIELD_TEXT, 0, 0},
    {"include_reasoning", FIELD_BOOL, 0, 0},
    {"continue_final_message", FIELD_BOOL, 0, 0},
    {"add_generation_prompt", FIELD_BOOL, 0, 0},
    {"lora", FIELD_TEXT | FIELD_LIST, 0, ADAPTERS_MIXED},
};

/* A chat generates at least one token. */
static const struct field chat_fields[] = {{"max_tokens", FIELD_INT | FIELD_NO_LIMIT, 1, OPENAI_TOKENS}};

/* The key of a name or a setting that holds U+0000, which would end it; NULL = none. In texts for the model
 * U+0000 is allowed. */
static const char *openai_nul_in(json_t *v, const char *key, bool read)
{
    const char *found = NULL, *name;
    json_t *one;
    size_t i;
    if (json_is_string(v))
        return read || strlen(json_string_value(v)) == json_string_length(v) ? NULL : key;
    if (json_is_array(v)) {
        json_array_foreach(v, i, one) found = found ? found : openai_nul_in(one, key, read);
        return found;
    }
    json_object_foreach(v, name, one) found =
        found ? found : openai_nul_in(one, name, read && (!strcmp(name, "content") || !strcmp(name, "text")));
    return found;
}

static const char *openai_nul(json_t *body)
{
    static const char *const read[] = {"messages", "prompt", "content", "input"};
    const char *found = NULL, *name;
    json_t *v;
    json_object_foreach(body, name, v)
    {
        bool is_read = false;
        for (size_t i = 0; i < sizeof read / sizeof *read; i++)
            is_read |= !strcmp(name, read[i]);
        found = found ? found : openai_nul_in(v, name, is_read);
    }
    return found;
}

/* Whether there is memory for the parsed body. */
static int openai_room(struct request *a, const struct jsonread_size *size)
{
    size_t all = a->body.cap + size->memory, most = limit_of(LIMIT_BODIES);
    if (size->values > limit_of(LIMIT_VALUES))
        return request_fail(a, 413, NULL,
                            "the body has %zu values; this server reads at most %llu (limit values)",
                            size->values, (unsigned long long)limit_of(LIMIT_VALUES));
    if (all > most)
        return request_fail(a, 413, NULL,
                            "the body needs %zu MiB to read; this server has %zu (limit bodies)", all >> 20,
                            most >> 20);
    if (!server_charge(a->server, &a->charged, all))
        return request_fail(a, 503, NULL, "too many large requests at once");
    return 0;
}

/* Reads the body, whose bytes are freed then. */
static json_t *openai_read(struct request *a)
{
    const char *text = a->body.data ? a->body.data : "";
    struct jsonread_size size;
    struct err e = {0};
    jsonread_measure(text, a->body.len, &size);
    const struct jsonread_limits most = {.text = limit_of(LIMIT_BODY),
                                         .memory = size.memory,
                                         .depth = (int)limit_of(LIMIT_DEPTH),
                                         .nul = true};
    json_t *body =
        openai_room(a, &size)
            ? NULL
            : (a->route->list ? jsonread_value : jsonread_object)(text, a->body.len, &most, "the body", &e);
    if (e.code)
        request_fail(a, e.code == ERR_RESOURCE ? 413 : 400, NULL, "%s", e.text);
    buf_free(&a->body);
    server_charge(a->server, &a->charged, body ? size.memory : 0);
    return body;
}

json_t *openai_body(struct request *a)
{
    const char *where;
    if (a->json)
        return json_incref(a->json);
    json_t *body = openai_read(a);
    if (body && (where = openai_nul(body))) {
        request_fail(a, 400, NULL,
                     "%s holds the character U+0000, which can stand only in what a model reads",
                     log_safe(where));
        json_decref(body);
        return NULL;
    }
    if (body)
        field_drop_nulls(body);
    a->json = body;
    return json_incref(body);
}

/* ---- prompts that are too long ---- */

size_t openai_count_most(const struct request *a)
{
    return 2 * (size_t)a->model->session->runner->ctx;
}

int openai_too_long(struct request *a, const struct ids *ids, const char *param)
{
    bool first = !a->failure.status;
    request_fail(
        a, 400, param, "This model's maximum context length is %u tokens; the prompt has %s%zu. Shorten it.",
        a->model->session->runner->ctx, ids->over ? "more than " : "", ids->over ? ids->most : ids->len);
    if (first)
        a->failure.code = "context_length_exceeded";
    return -1;
}

/* ---- messages ---- */

static int openai_parts(struct request *a, size_t at, const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = field_text(part, "type");
        char param[FAILURE_PARAM];
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", at, i);
        if (!type)
            return request_fail(a, 400, param, "%s has to be an object with a type", param);
        if (image_part(part)) {
            if (part_check_image(a, part, param))
                return -1;
            continue;
        }
        if (strcmp(type, "text") != 0)
            return request_fail(a, 400, param, "%s is of type '%s'; %s", param, log_safe(type),
                                request_reads(a, type));
        if (!field_text(part, "text"))
            return request_fail(a, 400, param, "%s has no text", param);
    }
    return 0;
}

/* Calls that were made before: each a function with a name. */
static int openai_calls(struct request *a, size_t at, const json_t *calls)
{
    char param[FAILURE_PARAM];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", at);
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return request_fail(a, 400, param, "%s has to be a list", param);
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (!field_text(json_object_get(json_array_get(calls, i), "function"), "name"))
            return request_fail(a, 400, param, "%s[%zu] has to be a function with a name", param, i);
    return 0;
}

int openai_messages(struct request *a, const json_t *messages)
{
    if (!messages)
        return request_fail(a, 400, "messages", "messages is missing");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        char param[FAILURE_PARAM];
        snprintf(param, sizeof param, "messages[%zu]", i);
        if (!json_is_object(m))
            return request_fail(a, 400, param, "%s has to be an object", param);
        if (!field_text(m, "role"))
            return request_fail(a, 400, param, "%s has no role", param);
        if (json_is_array(content) && openai_parts(a, i, content))
            return -1;
        if (openai_calls(a, i, json_object_get(m, "tool_calls")))
            return -1;
        bool calls = json_array_size(json_object_get(m, "tool_calls")) > 0;
        bool none = !content || json_is_null(content), ours = !strcmp(field_text(m, "role"), "assistant");
        if (none && !calls && ours && !json_object_set_new(m, "content", json_string("")))
            continue;
        if ((none && !calls) || !(none || json_is_string(content) || json_is_array(content)))
            return request_fail(a, 400, param, "the content of %s has to be a text or a list of parts",
                                param);
    }
    return 0;
}

/* How the prompt leaves the output. */
static int openai_stand(struct request *a, struct request_draft *q)
{
    const struct session *l = a->model->session;
    struct prefill_state state = {.thinking = reasoning_begins(l, &a->prompts[0])};
    struct err e = {0};
    if (a->prefill.len && prefill_stand(l, a->tools, &a->prefill, &state, &e))
        return request_fail(a, 503, NULL, "out of memory");
    q->thinking = q->request.reasoning.open = state.thinking;
    q->call_begun = state.call_begun;
    return 0;
}

/* The text of the last message, where the output continues it. */
static int openai_prefill(struct request *a, const json_t *messages, enum openai_turn turn)
{
    struct err e = {0};
    return turn == TURN_GOES_ON && prefill_read(messages, &a->prefill, &e)
               ? request_fail(a, 503, NULL, "out of memory")
               : 0;
}

static int openai_chat_prompt(struct request *a, struct request_draft *q)
{
    struct prompt_request r = {.messages = json_object_get(q->body, "messages")};
    json_t *extra = json_object_get(q->body, "chat_template_kwargs");
    struct err e = {0};
    enum openai_turn turn;
    if (text_can_chat(a) || openai_functions(a, q->body) || openai_messages(a, r.messages) ||
        openai_turn(a, q->body, &turn) || openai_prefill(a, r.messages, turn) || openai_tools(a, q))
        return -1;
    r.continue_final = turn == TURN_GOES_ON;
    r.no_generation_prompt = turn == TURN_CLOSED;
    r.messages = json_object_get(q->body, "messages");
    r.tools = a->tools;
    json_t *set = json_object(), *documents = json_object_get(q->body, "documents");
    if (!set || (documents && json_object_set(set, "documents", documents)))
        err_memory(&e, "the request", 1);
    else if (!openai_reasoning(a, q, set) && extra && json_object_update(set, extra))
        err_memory(&e, "the request", 1);
    r.set = set;
    a->prompt_count = 1;
    struct request_images *images = &a->images[0];
    json_t *messages = e.code || a->failure.status ? NULL : request_images_read(a, r.messages, images);
    int failed = !messages || request_image_places(a, images);
    r.messages = messages;
    r.pictures = images->pictures;
    r.picture_count = images->count;
    r.images = images->places;
    failed = failed || session_prompt(a->model->session, &r, &a->prompts[0], &e);
    json_decref(messages);
    json_decref(set);
    if (a->failure.status)
        return -1;
    if (a->prompts[0].over)
        return openai_too_long(a, &a->prompts[0], "messages");
    if (failed)
        return request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "messages", "%s", e.text);
    return openai_stand(a, q);
}

/* ---- prompts of completions ---- */

static int openai_ids(struct request *a, const json_t *list, struct ids *out)
{
    int64_t vocab = a->model->session->model->plan.out_width;
    struct err e = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        if (!field_whole(json_array_get(list, i), 0, vocab - 1, &id))
            return request_fail(a, 400, "prompt", "token %zu of the prompt has to be an id below %lld", i,
                                (long long)vocab);
        if (ids_add(out, (int32_t)id, &e))
            return out->over ? openai_too_long(a, out, "prompt") : request_fail(a, 503, NULL, "%s", e.text);
    }
    return 0;
}

/* {"prompt_string": text with a mark for each image, "multimodal_data": the images in base64}: llama.cpp's form. */
static int openai_media(struct request *a, const json_t *prompt, bool bare, struct ids *out)
{
    struct request_images *images = &a->images[a->prompt_count - 1];
    const json_t *text = json_object_get(prompt, "prompt_string"),
                 *media = json_object_get(prompt, "multimodal_data");
    struct err e = {0};
    char where[FAILURE_PARAM];
    if (!a->model->session->vision || !json_is_string(text) || !json_is_array(media))
        return request_fail(a, 400, "prompt",
                            "prompt has to be a text, a list of texts, ids, or lists of ids");
    for (size_t i = 0; i < json_array_size(media); i++) {
        const json_t *image = json_array_get(media, i);
        snprintf(where, sizeof where, "multimodal_data[%zu]", i);
        if (!json_is_string(image))
            return request_fail(a, 400, "prompt", "%s has to be an image in base64", where);
        if (request_image_add(a, images, image, false, where))
            return -1;
    }
    if (request_image_places(a, images))
        return -1;
    const struct prompt_request r = {
        .pictures = images->pictures, .picture_count = images->count, .images = images->places};
    if (!session_plain_prompt(a->model->session, &r, json_string_value(text), json_string_length(text), bare,
                              out, &e))
        return 0;
    return out->over ? openai_too_long(a, out, "prompt")
                     : request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "prompt", "%s", e.text);
}

static int openai_text(struct request *a, const json_t *text, const json_t *body)
{
    const char *suffix = field_text(body, "suffix");
    bool bare = json_is_false(json_object_get(body, "add_special_tokens"));
    struct err e = {0};
    if (a->prompt_count == REQUEST_CHOICES)
        return request_fail(a, 400, "prompt", "there are more than %d prompts", REQUEST_CHOICES);
    struct ids *out = &a->prompts[a->prompt_count++];
    if (json_is_array(text))
        return openai_ids(a, text, out);
    if (json_is_object(text) && !suffix)
        return openai_media(a, text, bare, out);
    if (!json_is_string(text))
        return request_fail(a, 400, "prompt",
                            "prompt has to be a text, a list of texts, ids, or lists of ids");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (suffix && strlen(s) != n)
        return request_fail(a, 400, "prompt", "a prompt with a suffix cannot hold the character U+0000");
    int failed = suffix ? fim_prompt(a->model->session->tokenizer,
                                     &(struct fim){.prefix = s, .suffix = suffix}, out, &e)
                        : tokenizer_encode(a->model->session->tokenizer, s, n,
                                           TOK_SPECIAL | (bare ? 0 : TOK_ADD), out, &e);
    if (out->over)
        return openai_too_long(a, out, "prompt");
    return failed ? request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "prompt", "%s", e.text) : 0;
}

static int openai_prompts(struct request *a, const json_t *body)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (!prompt)
        return request_fail(a, 400, "prompt", "prompt is missing");
    if (!json_is_array(prompt) || json_is_number(json_array_get(prompt, 0)))
        return openai_text(a, prompt, body);
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (openai_text(a, json_array_get(prompt, i), body))
            return -1;
    return 0;
}

/* ---- options of the generation ---- */

static int openai_sampling(struct request *a, struct request_draft *q)
{
    struct sampler_params *p = &q->request.sampler;
    *p = a->model->session->defaults;
    p->repeat_penalty = field_num(q->body, "repetition_penalty", p->repeat_penalty);
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        const struct field row = {f->name, f->whole ? FIELD_INT : FIELD_NUM, f->least, f->most};
        const char *name;
        struct err e = {0};
        if (field_check(q->body, &row, 1, &name, &e))
            return request_fail(a, 400, f->name, "%s", e.text);
        double *value = (double *)((char *)p + f->offset);
        *value = field_num(q->body, f->name, *value);
    }
    if (json_object_get(q->body, "seed"))
        p->seed = (uint64_t)field_int(q->body, "seed", 0);
    else if (getrandom(&p->seed, sizeof p->seed, 0) < 0)
        return request_fail(a, 503, "seed", "the system gives no random numbers; give a seed");
    else
        p->seed >>= 12; /* replies return it, and a client that sends it back means the same one */
    return 0;
}

static int openai_biases(struct request *a, struct request_draft *q)
{
    json_t *all = json_object_get(q->body, "logit_bias"), *v;
    const char *key;
    size_t n = 0;
    json_object_foreach(all, key, v)
    {
        int64_t id;
        double bias = json_number_value(v);
        if (!num_i64(key, strlen(key), 0, a->model->session->model->plan.out_width - 1, &id) ||
            !json_is_number(v) || bias < -100 || bias > 100)
            return request_fail(a, 400, "logit_bias", "logit_bias has to be {token id: -100 to 100}");
        q->biases[n++] = (struct logit_bias){(int32_t)id, bias <= -100 ? -INFINITY : (float)bias};
    }
    q->request.sampler.bias = q->biases;
    q->request.sampler.biases = n;
    return 0;
}

static int openai_stops(struct request *a, struct request_draft *q)
{
    const json_t *stop = json_object_get(q->body, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
        if (!text || !*text)
            return request_fail(a, 400, "stop",
                                "stop has to be a text or a list of texts, none of them empty");
        q->stops[i] = text;
    }
    const struct session *l = a->model->session;
    for (size_t i = 0; !stop && i < l->preset_stop_count && i < OPENAI_STOPS; i++)
        q->stops[n++] = l->preset_stops[i];
    q->request.stop_strings = q->stops;
    q->request.stops = n;
    a->stops = json_incref((json_t *)(uintptr_t)stop);
    return 0;
}

/* Where the request has no limit: that of the model's own settings, -1 = none; OpenAI's completions have 16. */
static int64_t openai_usual_most(const struct request *a)
{
    uint32_t most = a->model->session->preset_most;
    if (!a->chat && !(a->route && (a->route->api == API_OLLAMA || a->route->api == API_OLLAMA_CHAT)))
        return 16;
    return most ? (int64_t)most : -1;
}

/* How many tokens: -1 and what is more than the context holds mean as many as fit. */
static void openai_most(const struct request *a, struct request_draft *q)
{
    int64_t most =
        field_int(q->body, "max_completion_tokens", field_int(q->body, "max_tokens", openai_usual_most(a)));
    q->request.prompt_only = !most;
    q->request.most = most < 0 || most > UINT32_MAX ? 0 : (uint32_t)most;
}

static int openai_options(struct request *a, struct request_draft *q)
{
    const json_t *b = q->body, *logprobs = json_object_get(b, "logprobs");
    struct engine_request *r = &q->request;
    const char *format = field_text(b, "reasoning_format");
    a->stream = field_bool(b, "stream");
    a->include_usage = field_bool(json_object_get(b, "stream_options"), "include_usage");
    a->echo = field_bool(b, "echo");
    if (a->chat && json_is_integer(logprobs))
        return request_fail(a, 400, "logprobs",
                            "logprobs has to be true or false; top_logprobs is the number");
    const int64_t native = logprobs ? 0 : field_int(b, "n_probs", 0); /* llama.cpp's name for it */
    a->logprobs = json_is_true(logprobs) || json_is_integer(logprobs) || native;
    a->tops = (uint32_t)(a->chat ? field_int(b, "top_logprobs", native) : field_int(b, "logprobs", native));
    if (a->tops && !a->logprobs)
        return request_fail(a, 400, "top_logprobs", "top_logprobs needs logprobs to be true");
    r->logprobs = a->logprobs;
    r->top_logprobs = a->tops;
    r->echo = !a->chat && a->echo && a->logprobs;
    r->ignore_eog = a->endless = field_bool(b, "ignore_eos");
    if (format && strcmp(format, "auto") && strncmp(format, "deepseek", 8) && strcmp(format, "none"))
        return request_fail(a, 400, "reasoning_format",
                            "reasoning_format has to be 'auto', 'deepseek' or 'none'");
    a->raw_reasoning = format && !strcmp(format, "none");
    a->no_reasoning = json_is_false(json_object_get(b, "include_reasoning"));
    openai_most(a, q);
    r->show_special = a->chat && a->model->session->marks_hidden;
    r->salt = a->salt;
    r->wake = worker_wake;
    r->arg = a;
    return 0;
}

/* How many completions of each prompt are returned, and how many are generated for that. */
static int openai_number(struct request *a, struct request_draft *q)
{
    a->returned = (uint32_t)field_int(q->body, "n", 1);
    q->each = (uint32_t)field_int(q->body, "best_of", a->returned);
    if (q->each < a->returned)
        return request_fail(a, 400, "best_of", "best_of is %u; it has to be at least n, which is %u", q->each,
                            a->returned);
    if (q->each > a->returned && a->stream)
        return request_fail(a, 400, "best_of",
                            "the best of %u answers is known when all are there: it cannot be streamed",
                            q->each);
    q->request.logprobs |= q->each > a->returned;
    return 0;
}

/* ---- all of it ---- */

static int openai_check(struct request *a, const json_t *body)
{
    struct err e = {0};
    const char *name = NULL;
    if (field_check(body, openai_fields, sizeof openai_fields / sizeof *openai_fields, &name, &e) ||
        (a->chat && field_check(body, chat_fields, 1, &name, &e)))
        return request_fail(a, 400, name, "%s", e.text);
    return openai_unsupported(a, body);
}

/* The parser of the answer. A required call has begun in the prompt. */
static int openai_reply(struct request *a, const struct request_draft *q, struct choice *c)
{
    const struct session *l = a->model->session;
    struct err e = {0};
    struct message_sink sink = {.choice = c}; /* what is fed here has no pieces for a stream */
    c->parser = output_open(&(struct output_options){.form = l->form,
                                                     .thought = a->raw_reasoning ? NULL : l->thought,
                                                     .tools = a->tools,
                                                     .thinking = q->thinking && !a->prefill.len,
                                                     .ruled = a->tools && q->constraint,
                                                     .only_calls = q->constraint && q->must,
                                                     .take = message_take,
                                                     .arg = &sink},
                            &e);
    if (c->parser && !(a->prefill.len && output_go_on(c->parser, a->prefill.data, a->prefill.len)) &&
        !(q->lead && output_feed(c->parser, q->lead, strlen(q->lead)))) {
        output_set_arg(c->parser, NULL);
        return 0;
    }
    output_close(c->parser);
    c->parser = NULL;
    return request_fail(a, 503, NULL, "out of memory");
}

/* Adapters: the model's name, or "NAME[:SCALE],...", or [{"id" from 0, or "name", "scale"}] as llama.cpp has it. */
static int openai_lora(struct request *a, struct request_draft *q)
{
    struct session *l = a->model->session;
    const json_t *lora = json_object_get(q->body, "lora");
    const char *model = field_text(q->body, "model"), *text = json_string_value(lora);
    struct err e = {0};
    if (json_is_array(lora))
        return adapters_mix(a, lora, &q->request.lora);
    if (!session_adapt(l, a->adapted && !lora ? model : text, &q->request.lora, &e))
        return 0;
    return a->adapted && !lora ? failure_set(&a->failure, 404, "model_not_found", "model", "%s", e.text)
                               : request_fail(a, 400, "lora", "%s", e.text);
}

static int openai_fits(struct request *a)
{
    for (uint32_t i = 0; i < a->prompt_count; i++)
        if (a->prompts[i].len >= a->model->session->runner->ctx)
            return openai_too_long(a, &a->prompts[i], a->chat ? "messages" : "prompt");
    return 0;
}

static int openai_submit(struct request *a, struct request_draft *q)
{
    uint32_t n = q->each;
    if (a->prompt_count * n > REQUEST_CHOICES)
        return request_fail(a, 400, "n", "%u prompts times n makes more than %d answers", a->prompt_count,
                            REQUEST_CHOICES);
    if (openai_fits(a))
        return -1;
    const struct api_format *t = format_for(a->route);
    if (request_admit(a, a->prompt_count * n) || (t->asked && t->asked(a, &q->request)))
        return -1;
    uint64_t seed = q->request.sampler.seed;
    q->request.batch = a->batch;
    for (uint32_t i = 0; i < a->prompt_count * n; i++) {
        struct choice *c = &a->choices[i];
        struct err e = {0};
        c->request = a;
        c->prompt_at = i / n;
        c->rank = i % n;
        q->request.prompt = a->prompts[c->prompt_at].data;
        q->request.n = (uint32_t)a->prompts[c->prompt_at].len;
        q->request.images = a->images[c->prompt_at].places;
        q->request.image_count = a->images[c->prompt_at].count;
        q->request.sampler.seed = seed + i;
        if (a->chat && openai_reply(a, q, c))
            return -1;
        if (engine_submit(a->model->engine, &q->request, &c->stream, &e)) {
            a->failure.retry = engine_retry(a->model->engine);
            return request_fail(a, e.code == ERR_RESOURCE ? 429 : 400, NULL, "%s", e.text);
        }
        a->count++;
    }
    return 0;
}

/* Puts a->before in front of the first prompt. */
static int openai_prepend(struct request *a)
{
    struct ids *prompt = &a->prompts[0], all = a->before;
    const struct tokenizer *t = a->model->session->tokenizer;
    struct err e = {0};
    if (!all.len)
        return 0;
    /* a text begins once */
    size_t from = prompt->len && tokenizer_adds_bos(t) && prompt->data[0] == tokenizer_id(t, TOK_BOS);
    a->before = (struct ids){0};
    for (size_t i = from; i < prompt->len; i++)
        if (ids_add(&all, prompt->data[i], &e)) {
            ids_free(&all);
            return request_fail(a, 503, NULL, "%s", e.text);
        }
    for (uint32_t i = 0; i < a->images[0].count; i++)
        a->images[0].places[i].first += (uint32_t)(all.len - prompt->len);
    ids_free(prompt);
    *prompt = all;
    return 0;
}

static void openai_any(struct request *a)
{
    struct request_draft q = {.body = openai_body(a)};
    for (uint32_t i = 0; i < REQUEST_CHOICES; i++)
        a->prompts[i].most = openai_count_most(a);
    if (q.body && !openai_check(a, q.body) && !openai_options(a, &q) && !openai_lora(a, &q) &&
        !openai_sampling(a, &q) && !openai_samplers(a, &q) && !openai_number(a, &q) &&
        !openai_biases(a, &q) && !openai_stops(a, &q) && !openai_tokens(a, &q) &&
        !(a->chat ? openai_chat_prompt(a, &q) : openai_prompts(a, q.body)) && !openai_truncate(a, &q) &&
        !openai_prepend(a) && !openai_fits(a) && !openai_constrain(a, &q) && !openai_together(a, &q))
        openai_submit(a, &q);
    for (uint32_t i = 0; i < REQUEST_CHOICES; i++) /* the engine has its own */
        request_images_free(&a->images[i]);
    constraint_ref_drop(q.constraint);
    ids_free(&q.allowed);
    ids_free(&q.bad_words);
    mem_free(q.dry_breaker);
    json_decref(q.body);
}

void openai_chat(struct request *a)
{
    a->chat = true;
    openai_any(a);
}

void openai_completion(struct request *a)
{
    openai_any(a);
}

void openai_as(struct request *a, json_t *body, void (*ask)(struct request *a))
{
    json_decref(a->json);
    a->json = body;
    ask(a);
}

/* How many tokens the prompt of a chat has. */
void openai_count(struct request *a)
{
    a->chat = true;
    if (!openai_prompt(a))
        buf_printf(&a->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}",
                   a->prompts[0].len);
}

int openai_prompt(struct request *a)
{
    struct request_draft q = {.body = openai_body(a)};
    int failed = !q.body || openai_check(a, q.body) || openai_sampling(a, &q) || openai_stops(a, &q) ||
                 openai_chat_prompt(a, &q);
    json_decref(q.body);
    return failed ? -1 : 0;
}
