/* Chat and completion requests: from JSON to the engine. Runs on a worker. */
#define _GNU_SOURCE
#include "format/jsonread.h"
#include "run/rule.h"
#include "serve/field.h"
#include "serve/own.h"

#include "base/json.h"
#include "base/log.h"
#include "base/num.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

enum { ASK_STOPS = 16, ASK_BIASES = 1024, ASK_SCHEMA = 64 << 10, ASK_MEMORY = 256 << 20 };

#define MANY 1e6 /* items of an object that nobody counts */
static const struct field ask_fields[] = {
    {"model", FIELD_TEXT, 0, 0},
    {"messages", FIELD_LIST, 1, 4096},
    {"prompt", FIELD_TEXT | FIELD_LIST, 1, MANY},
    {"suffix", FIELD_TEXT, 0, 0},
    {"max_tokens", FIELD_INT, 1, 1 << 24},
    {"max_completion_tokens", FIELD_INT, 1, 1 << 24},
    {"n", FIELD_INT, 1, SERVE_CHOICES},
    {"stream", FIELD_BOOL, 0, 0},
    {"stream_options", FIELD_OBJECT, 0, MANY},
    {"stop", FIELD_TEXT | FIELD_LIST, 0, ASK_STOPS},
    {"seed", FIELD_INT, -9e15, 9e15},
    {"logit_bias", FIELD_OBJECT, 0, ASK_BIASES},
    {"logprobs", FIELD_BOOL | FIELD_INT, 0, ENGINE_TOP_MOST},
    {"top_logprobs", FIELD_INT, 0, ENGINE_TOP_MOST},
    {"response_format", FIELD_OBJECT, 1, MANY},
    {"tools", FIELD_LIST, 0, 128},
    {"tool_choice", FIELD_TEXT | FIELD_OBJECT, 0, MANY},
    {"chat_template_kwargs", FIELD_OBJECT, 0, 256},
    {"reasoning_effort", FIELD_TEXT, 0, 0},
    {"repetition_penalty", FIELD_NUM, 0.01, 100},
    {"ignore_eos", FIELD_BOOL, 0, 0},
    {"echo", FIELD_BOOL, 0, 0},
    {"lora", FIELD_TEXT | FIELD_LIST, 0, ADAPTERS_MIXED},
};

/* What lives only until the request is submitted. */
struct ask {
    json_t *body;
    struct engine_request request;
    const char *stops[ASK_STOPS];
    struct logit_bias biases[ASK_BIASES];
    struct rule *rule;
};

json_t *ask_body(struct answer *a)
{
    static const struct jsonread_limits most = {
        .text = HTTP_BODY_MOST, .memory = ASK_MEMORY, .depth = JSONREAD_DEPTH};
    struct err e = {0};
    json_t *body = jsonread_object(a->body.data ? a->body.data : "", a->body.len, &most, "the body", &e);
    if (body)
        field_drop_nulls(body);
    else
        answer_fail(a, e.code == ERR_RESOURCE ? 413 : 400, NULL, "%s", e.text);
    return body;
}

/* ---- messages ---- */

static int ask_parts(struct answer *a, size_t at, const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = field_text(part, "type");
        char param[SERVE_PARAM];
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", at, i);
        if (!type)
            return answer_fail(a, 400, param, "%s has to be an object with a type", param);
        if (strcmp(type, "text") != 0)
            return answer_fail(a, 400, param, "%s is of type '%s'; this model reads only text", param,
                               log_safe(type));
        if (!field_text(part, "text"))
            return answer_fail(a, 400, param, "%s has no text", param);
    }
    return 0;
}

int ask_messages(struct answer *a, const json_t *messages)
{
    if (!messages)
        return answer_fail(a, 400, "messages", "messages is missing");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        char param[SERVE_PARAM];
        snprintf(param, sizeof param, "messages[%zu]", i);
        if (!json_is_object(m))
            return answer_fail(a, 400, param, "%s has to be an object", param);
        if (!field_text(m, "role"))
            return answer_fail(a, 400, param, "%s has no role", param);
        if (json_is_array(content) && ask_parts(a, i, content))
            return -1;
        bool calls = json_array_size(json_object_get(m, "tool_calls")) > 0;
        bool none = !content || json_is_null(content), ours = !strcmp(field_text(m, "role"), "assistant");
        if (none && !calls && ours && !json_object_set_new(m, "content", json_string("")))
            continue;
        if ((none && !calls) || !(none || json_is_string(content) || json_is_array(content)))
            return answer_fail(a, 400, param, "the content of %s has to be a text or a list of parts", param);
    }
    return 0;
}

/* The tools that the template is to see; NULL = none. */
static int ask_tools(struct answer *a, const json_t *body, const json_t **out)
{
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice);
    *out = NULL;
    if (choice && (!word || (strcmp(word, "none") != 0 && strcmp(word, "auto") != 0)))
        return answer_fail(a, 400, "tool_choice",
                           "tool_choice can be 'none' or 'auto'; enforcing a call is not possible yet");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!field_text(json_object_get(json_array_get(tools, i), "function"), "name"))
            return answer_fail(a, 400, "tools", "tools[%zu] has to be a function with a name", i);
    if (json_array_size(tools) && !(word && !strcmp(word, "none")))
        *out = tools;
    return 0;
}

static int ask_chat_prompt(struct answer *a, const json_t *body)
{
    struct prompt_request r = {.messages = json_object_get(body, "messages")};
    const char *effort = field_text(body, "reasoning_effort");
    struct err e = {0};
    if (ask_messages(a, r.messages) || ask_tools(a, body, &r.tools))
        return -1;
    json_t *set = json_object();
    if (set && effort)
        json_object_set_new(set, "reasoning_effort", json_string(effort));
    if (set)
        json_object_update(set, json_object_get(body, "chat_template_kwargs"));
    r.set = set;
    a->prompt_count = 1;
    int failed = loaded_prompt(a->server->loaded, &r, &a->prompts[0], &e);
    json_decref(set);
    return failed ? answer_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "messages", "%s", e.text) : 0;
}

/* ---- prompts of completions ---- */

static int ask_ids(struct answer *a, const json_t *list, struct ids *out)
{
    int64_t vocab = a->server->loaded->model->plan.out_width;
    struct err e = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return answer_fail(a, 400, "prompt", "token %zu of the prompt has to be an id below %lld", i,
                               (long long)vocab);
        if (ids_add(out, (int32_t)json_integer_value(v), &e))
            return answer_fail(a, 503, NULL, "%s", e.text);
    }
    return 0;
}

/* Fill in the middle: the text before, the text behind, and the model writes between. */
static int ask_middle(struct answer *a, const char *text, size_t n, const char *suffix, struct ids *out,
                      struct err *e)
{
    const struct tokenizer *t = a->server->loaded->tokenizer;
    int32_t pre = tokenizer_id(t, TOK_FIM_PRE), suf = tokenizer_id(t, TOK_FIM_SUF),
            mid = tokenizer_id(t, TOK_FIM_MID);
    if (pre < 0 || suf < 0 || mid < 0)
        return answer_fail(a, 400, "suffix",
                           "this model cannot fill in the middle: it has no tokens for that");
    return ids_add(out, pre, e) || tokenizer_encode(t, text, n, 0, out, e) || ids_add(out, suf, e) ||
                   tokenizer_encode(t, suffix, strlen(suffix), 0, out, e) || ids_add(out, mid, e)
               ? -1
               : 0;
}

static int ask_text(struct answer *a, const json_t *text, const char *suffix)
{
    struct err e = {0};
    if (a->prompt_count == SERVE_CHOICES)
        return answer_fail(a, 400, "prompt", "there are more than %d prompts", SERVE_CHOICES);
    struct ids *out = &a->prompts[a->prompt_count++];
    if (json_is_array(text))
        return ask_ids(a, text, out);
    if (!json_is_string(text))
        return answer_fail(a, 400, "prompt",
                           "prompt has to be a text, a list of texts, ids, or lists of ids");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    int failed = suffix
                     ? ask_middle(a, s, n, suffix, out, &e)
                     : tokenizer_encode(a->server->loaded->tokenizer, s, n, TOK_SPECIAL | TOK_ADD, out, &e);
    return failed ? answer_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "prompt", "%s", e.text) : 0;
}

static int ask_prompts(struct answer *a, const json_t *body)
{
    const json_t *prompt = json_object_get(body, "prompt");
    const char *suffix = field_text(body, "suffix");
    if (!prompt)
        return answer_fail(a, 400, "prompt", "prompt is missing");
    if (!json_is_array(prompt) || json_is_integer(json_array_get(prompt, 0)))
        return ask_text(a, prompt, suffix);
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (ask_text(a, json_array_get(prompt, i), suffix))
            return -1;
    return 0;
}

/* ---- how to answer ---- */

static int ask_sampling(struct answer *a, struct ask *q)
{
    struct sampler_params *p = &q->request.sampler;
    *p = a->server->loaded->defaults;
    p->repeat_penalty = field_num(q->body, "repetition_penalty", p->repeat_penalty);
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        const struct field row = {f->name, f->whole ? FIELD_INT : FIELD_NUM, f->least, f->most};
        const char *name;
        struct err e = {0};
        if (field_check(q->body, &row, 1, &name, &e))
            return answer_fail(a, 400, f->name, "%s", e.text);
        double *value = (double *)((char *)p + f->offset);
        *value = field_num(q->body, f->name, *value);
    }
    if (json_object_get(q->body, "seed"))
        p->seed = (uint64_t)field_int(q->body, "seed", 0);
    else if (getrandom(&p->seed, sizeof p->seed, 0) < 0)
        return answer_fail(a, 503, "seed", "the system gives no random numbers; give a seed");
    return 0;
}

static int ask_biases(struct answer *a, struct ask *q)
{
    json_t *all = json_object_get(q->body, "logit_bias"), *v;
    const char *key;
    size_t n = 0;
    json_object_foreach(all, key, v)
    {
        int64_t id;
        double bias = json_number_value(v);
        if (!num_i64(key, strlen(key), 0, a->server->loaded->model->plan.out_width - 1, &id) ||
            !json_is_number(v) || bias < -100 || bias > 100)
            return answer_fail(a, 400, "logit_bias", "logit_bias has to be {token id: -100 to 100}");
        q->biases[n++] = (struct logit_bias){(int32_t)id, bias <= -100 ? -INFINITY : (float)bias};
    }
    q->request.sampler.bias = q->biases;
    q->request.sampler.biases = n;
    return 0;
}

static int ask_stops(struct answer *a, struct ask *q)
{
    const json_t *stop = json_object_get(q->body, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
        if (!text || !*text)
            return answer_fail(a, 400, "stop",
                               "stop has to be a text or a list of texts, none of them empty");
        q->stops[i] = text;
    }
    q->request.stop_strings = q->stops;
    q->request.stops = n;
    return 0;
}

static int ask_format(struct answer *a, struct ask *q)
{
    const json_t *format = json_object_get(q->body, "response_format");
    const char *type = field_text(format, "type");
    struct err e = {0};
    struct constraint *c = NULL;
    if (!format || (type && !strcmp(type, "text")))
        return 0;
    if (type && !strcmp(type, "json_object"))
        c = constraint_from_json_object(&e);
    else if (type && !strcmp(type, "json_schema")) {
        const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
        if (!schema)
            return answer_fail(a, 400, "response_format", "response_format.json_schema.schema is missing");
        if (json_dumpb(schema, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) > ASK_SCHEMA)
            return answer_fail(a, 400, "response_format", "the schema is larger than 64 KiB");
        c = constraint_from_schema(schema, &e);
    } else
        return answer_fail(a, 400, "response_format",
                           "response_format.type has to be 'text', 'json_object' or 'json_schema'");
    const struct constraint_vocab *v = c ? loaded_vocab(a->server->loaded, &e) : NULL;
    if (c && !v)
        constraint_free(c);
    if (!v || rule_open(&q->rule, c, v, &e))
        return answer_fail(a, e.code == ERR_RESOURCE ? 503 : 400, "response_format", "%s", e.text);
    q->request.rule = q->rule;
    a->endless = false; /* under a rule an end token ends */
    return 0;
}

/* Who has another key shares nothing, in this process or, by the cache on disk, in the next. */
static uint64_t ask_salt(const struct answer *a)
{
    struct digest d = {0};
    const char *key = a->key ? a->server->o->keys[a->key - 1] : NULL;
    if (key)
        digest_add(&d, key, strlen(key));
    return d.lo;
}

static int ask_options(struct answer *a, struct ask *q)
{
    const json_t *b = q->body, *logprobs = json_object_get(b, "logprobs");
    struct engine_request *r = &q->request;
    a->stream = field_bool(b, "stream");
    a->include_usage = field_bool(json_object_get(b, "stream_options"), "include_usage");
    a->echo = !a->chat && field_bool(b, "echo");
    if (a->chat && json_is_integer(logprobs))
        return answer_fail(a, 400, "logprobs",
                           "logprobs has to be true or false; top_logprobs is the number");
    a->logprobs = json_is_true(logprobs) || json_is_integer(logprobs);
    a->tops = (uint32_t)(a->chat ? field_int(b, "top_logprobs", 0) : field_int(b, "logprobs", 0));
    if (a->tops && !a->logprobs)
        return answer_fail(a, 400, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (a->echo && a->logprobs)
        return answer_fail(a, 400, "echo", "echo does not go together with logprobs");
    r->logprobs = a->logprobs;
    r->top_logprobs = a->tops;
    r->ignore_eog = a->endless = field_bool(b, "ignore_eos");
    r->most = (uint32_t)field_int(b, "max_completion_tokens", field_int(b, "max_tokens", a->chat ? 0 : 16));
    r->salt = ask_salt(a);
    r->wake = work_wake;
    r->arg = a;
    return 0;
}

/* ---- all of it ---- */

static int ask_check(struct answer *a, const json_t *body)
{
    struct err e = {0};
    const char *name = NULL, *model = field_text(body, "model"), *own = a->server->o->name;
    if (field_check(body, ask_fields, sizeof ask_fields / sizeof *ask_fields, &name, &e))
        return answer_fail(a, 400, name, "%s", e.text);
    struct adapter_mix mix;
    bool known =
        !model || !*model || !strcmp(model, own) || !loaded_adapt(a->server->loaded, model, &mix, &e);
    if (!known) {
        answer_fail(a, 404, "model", "there is no model '%s'; this is %s", log_safe(model), own);
        a->failure.code = "model_not_found";
        return -1;
    }
    return 0;
}

/* Adapters: the model's name, or "NAME[:SCALE],...", or [{"id" from 0, or "name", "scale"}] as llama.cpp has it. */
static int ask_lora(struct answer *a, struct ask *q)
{
    const struct loaded *l = a->server->loaded;
    const json_t *lora = json_object_get(q->body, "lora");
    const char *model = field_text(q->body, "model"), *text = json_string_value(lora);
    struct adapter_mix *mix = &q->request.lora;
    struct err e = {0};
    bool named = !lora && model && *model && strcmp(model, a->server->o->name) != 0;
    if (loaded_adapt(l, named ? model : text, mix, &e))
        return answer_fail(a, 400, "lora", "%s", e.text);
    for (size_t i = 0; i < json_array_size(lora); i++) {
        const json_t *one = json_array_get(lora, i);
        const char *name = field_text(one, "name");
        struct adapter_mix by_name = {0};
        int64_t id = field_int(one, "id", -1) + 1;
        if (name && loaded_adapt(l, name, &by_name, &e))
            return answer_fail(a, 400, "lora", "%s", e.text);
        id = by_name.count ? by_name.id[0] : id;
        if (id < 1 || id > l->adapters)
            return answer_fail(a, 400, "lora",
                               "lora[%zu] has to name an adapter by \"id\" (0 to %d) or \"name\"", i,
                               (int)l->adapters - 1);
        mix->id[mix->count] = (uint32_t)id;
        mix->scale[mix->count++] = (float)field_num(one, "scale", (double)l->adapter[id - 1].scale);
    }
    return 0;
}

static int ask_submit(struct answer *a, struct ask *q, uint32_t n)
{
    uint32_t ctx = a->server->loaded->runner->ctx;
    if (a->prompt_count * n > SERVE_CHOICES)
        return answer_fail(a, 400, "n", "%u prompts times n makes more than %d answers", a->prompt_count,
                           SERVE_CHOICES);
    for (uint32_t i = 0; i < a->prompt_count; i++)
        if (a->prompts[i].len >= ctx) {
            answer_fail(a, 400, a->chat ? "messages" : "prompt",
                        "This model's maximum context length is %u tokens; the prompt has %zu. Shorten it.",
                        ctx, a->prompts[i].len);
            a->failure.code = "context_length_exceeded";
            return -1;
        }
    uint64_t seed = q->request.sampler.seed;
    for (uint32_t i = 0; i < a->prompt_count * n; i++) {
        struct choice *c = &a->choices[i];
        struct err e = {0};
        c->prompt_at = i / n;
        q->request.prompt = a->prompts[c->prompt_at].data;
        q->request.n = (uint32_t)a->prompts[c->prompt_at].len;
        q->request.sampler.seed = seed + i;
        if (engine_submit(a->server->engine, &q->request, &c->stream, &e))
            return answer_fail(a, e.code == ERR_RESOURCE ? 429 : 400, NULL, "%s", e.text);
        a->count++;
    }
    return 0;
}

static void ask_any(struct answer *a)
{
    struct ask q = {.body = ask_body(a)};
    if (q.body && !ask_check(a, q.body) && !ask_options(a, &q) && !ask_lora(a, &q) && !ask_sampling(a, &q) &&
        !ask_biases(a, &q) && !ask_stops(a, &q) &&
        !(a->chat ? ask_chat_prompt(a, q.body) : ask_prompts(a, q.body)) && !ask_format(a, &q))
        ask_submit(a, &q, (uint32_t)field_int(q.body, "n", 1));
    rule_drop(q.rule);
    json_decref(q.body);
}

void ask_chat(struct answer *a)
{
    a->chat = true;
    ask_any(a);
}

void ask_completion(struct answer *a)
{
    ask_any(a);
}
