/* The public library: from a request to the engine. */
#define _GNU_SOURCE
#include "run/api.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/jsonread.h"
#include "lang/chat/tools.h"
#include "run/image_parts.h"
#include "run/prefill.h"

#include <math.h>
#include <string.h>

enum { API_STOPS = 16, API_JSON_TEXT = 64 << 20 };

/* What lives until the request is submitted. */
struct api_draft {
    const struct quern_request *r;
    struct session *session;
    json_t *messages, *set, *value; /* own; value: of the format that is wanted */
    json_t *tools;                  /* own; the stream holds it, too */
    struct api_pictures pictures;
    struct ids prompt;
    struct buf prefill;
    const char *call_begun;
    struct output_want want;
    struct engine_request request;
    struct constraint_ref *constraint;
};

/* ---- versions ---- */

void quern_request_init(struct quern_request *request, size_t size)
{
    static const struct quern_request fresh = QUERN_REQUEST;
    size_t n = size < sizeof fresh ? size : sizeof fresh;
    memset(request, 0, size);
    memcpy(request, &fresh, n);
    request->size = size;
}

void api_request_read(const struct quern_request *given, struct quern_request *out)
{
    *out = (struct quern_request)QUERN_REQUEST;
    size_t n = given->size ? given->size : sizeof *out;
    memcpy(out, given, n < sizeof *out ? n : sizeof *out);
    if (given->size)
        return;
    double *fields[] = {&out->temperature, &out->top_p, &out->min_p};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        *fields[i] = *fields[i] == 0 ? QUERN_DEFAULT : *fields[i];
    out->top_k = out->top_k ? out->top_k : -1;
    out->reasoning_tokens = out->reasoning_tokens ? out->reasoning_tokens : -1;
}

/* ---- JSON from the caller ---- */

static json_t *api_json(const char *text, const char *what, json_type type, struct err *e)
{
    static const struct jsonread_limits most = {
        .text = API_JSON_TEXT, .memory = 1 << 30, .depth = JSONREAD_DEPTH, .nul = true};
    json_t *v = jsonread_value(text, strlen(text), &most, what, e);
    if (!v || json_typeof(v) == type)
        return v;
    err_set(e, ERR_USAGE, "%s has to be a JSON %s", what, type == JSON_ARRAY ? "array" : "object");
    json_decref(v);
    return NULL;
}

/* ---- the prompt ---- */

/* The content of the user's message: its text, behind the images. */
static json_t *api_content(const struct quern_request *r)
{
    json_t *text = json_string(r->prompt), *parts;
    if (!r->image_count || !text)
        return text;
    int failed = !(parts = json_array());
    for (size_t i = 0; i < r->image_count && !failed; i++)
        failed = json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
    failed |= json_array_append_new(parts, json_pack("{s:s,s:o}", "type", "text", "text", text));
    if (!failed)
        return parts;
    json_decref(parts);
    return NULL;
}

/* One message of the user, and the system's before it. */
static json_t *api_message(const struct quern_request *r, struct err *e)
{
    json_t *messages = json_array(), *content = api_content(r);
    int failed = !content;
    if (r->system)
        failed |=
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", r->system));
    if (content)
        failed |= json_array_append_new(messages, json_pack("{s:s,s:o}", "role", "user", "content", content));
    if (!failed)
        return messages;
    err_set(e, ERR_USAGE, "the prompt is not valid UTF-8 text");
    json_decref(messages);
    return NULL;
}

static int api_check_content(const struct session *l, const json_t *content, size_t at, struct err *e)
{
    const json_t *part;
    size_t i;
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type)
            return err_set(e, ERR_USAGE, "messages[%zu].content[%zu] has to be an object with a type", at, i);
        if (image_part(part) && l->vision)
            continue;
        if (strcmp(type, "text") != 0)
            return err_set(e, ERR_USAGE,
                           "messages[%zu].content[%zu] is of type '%s'; this model reads only text%s", at, i,
                           log_safe(type), l->vision ? " and images" : "");
        if (!json_is_string(json_object_get(part, "text")))
            return err_set(e, ERR_USAGE, "messages[%zu].content[%zu] has no text", at, i);
    }
    return 0;
}

static int api_check_messages(const struct session *l, json_t *messages, struct err *e)
{
    json_t *m;
    size_t i;
    if (!json_array_size(messages))
        return err_set(e, ERR_USAGE, "messages is empty: there is nothing to answer");
    json_array_foreach(messages, i, m)
    {
        json_t *content = json_object_get(m, "content");
        const json_t *calls = json_object_get(m, "tool_calls");
        if (!json_is_string(json_object_get(m, "role")))
            return err_set(e, ERR_USAGE, "messages[%zu] has to be an object with a role", i);
        if (calls && !json_is_null(calls) && !json_is_array(calls))
            return err_set(e, ERR_USAGE, "messages[%zu].tool_calls has to be a list", i);
        for (size_t k = 0; k < json_array_size(calls); k++)
            if (!json_is_string(json_object_get(output_function(calls, k), "name")))
                return err_set(e, ERR_USAGE, "messages[%zu].tool_calls[%zu] has to be a function with a name",
                               i, k);
        bool none = !content || json_is_null(content);
        if (none ? !json_array_size(calls) : !json_is_string(content) && !json_is_array(content))
            return err_set(e, ERR_USAGE, "the content of messages[%zu] has to be a text or a list of parts",
                           i);
        if (api_check_content(l, content, i, e))
            return -1;
    }
    return 0;
}

static int api_choose_tool(struct api_draft *d, struct err *e)
{
    const char *choice = d->r->tool_choice;
    if (!choice || !strcmp(choice, "auto"))
        return 0;
    if (!strcmp(choice, "none")) {
        json_decref(d->tools);
        d->tools = NULL;
        return 0;
    }
    if (!d->tools)
        return err_set(e, ERR_USAGE, "tool_choice asks for a call, and there are no tools");
    d->want.must = true;
    if (!strcmp(choice, "required"))
        return 0;
    if (!output_tool(d->tools, choice))
        return err_set(e, ERR_USAGE, "tool_choice names '%s', which tools does not have", log_safe(choice));
    d->want.only = choice;
    d->want.many = false;
    return 0;
}

/* Messages and tools, as the template takes them. */
static int api_chat_read(struct api_draft *d, struct err *e)
{
    const struct quern_request *r = d->r;
    d->want.many = !r->single_call;
    if (!(d->messages = r->messages ? api_json(r->messages, "messages", JSON_ARRAY, e) : api_message(r, e)) ||
        api_check_messages(d->session, d->messages, e) ||
        (r->tools && !(d->tools = api_json(r->tools, "tools", JSON_ARRAY, e))) ||
        (r->template_args && !(d->set = api_json(r->template_args, "template_args", JSON_OBJECT, e))))
        return -1;
    if (d->tools && !json_array_size(d->tools)) {
        json_decref(d->tools);
        d->tools = NULL;
    }
    if (tools_check(d->tools, e) || api_choose_tool(d, e))
        return -1;
    json_t *placed = api_pictures_read(&d->pictures, d->messages, e);
    if (!placed)
        return -1;
    json_decref(d->messages);
    d->messages = placed;
    d->want.tools = d->tools;
    d->request.reasoning = (struct reasoning_rule){
        .counted = true,
        .calls = d->tools != NULL,
        .most = r->reasoning_tokens < 0 ? REASONING_UNLIMITED : (uint32_t)r->reasoning_tokens};
    return 0;
}

/* The prompt of a conversation, and how it leaves the output. */
static int api_chat_prompt(struct api_draft *d, struct err *e)
{
    const struct session *l = d->session;
    if (api_chat_read(d, e))
        return -1;
    bool goes_on = prefill_is_open(json_array_get(d->messages, json_array_size(d->messages) - 1));
    if (goes_on && prefill_read(d->messages, &d->prefill, e))
        return -1;
    json_t *spelt = l->chat && !chat_capabilities(l->chat).tools ? tools_spell(l->chat, d->messages, d->tools)
                                                                 : json_incref(d->messages);
    if (!spelt)
        return err_memory(e, "the messages", 1);
    const struct prompt_request p = {.messages = spelt,
                                     .tools = d->tools,
                                     .set = d->set,
                                     .continue_final = goes_on,
                                     .pictures = d->pictures.all,
                                     .picture_count = d->pictures.count,
                                     .images = d->pictures.places};
    int failed = session_prompt(l, &p, &d->prompt, e);
    json_decref(spelt);
    if (failed)
        return -1;
    struct prefill_state state = {.thinking = reasoning_begins(l, &d->prompt)};
    if (d->prefill.len && prefill_stand(l, d->tools, &d->prefill, &state, e))
        return -1;
    d->want.thinking = d->request.reasoning.open = state.thinking;
    d->call_begun = state.call_begun;
    return 0;
}

static bool api_is_chat(const struct quern_request *r)
{
    return r->messages || r->prompt;
}

/* A plain text. */
static int api_raw_prompt(struct api_draft *d, struct err *e)
{
    struct buf text = {0};
    int failed = api_pictures_raw(&d->pictures, d->r->raw, &text, e);
    const struct prompt_request p = {
        .pictures = d->pictures.all, .picture_count = d->pictures.count, .images = d->pictures.places};
    failed = failed ||
             session_plain_prompt(d->session, &p, text.data ? text.data : "", text.len, false, &d->prompt, e);
    buf_free(&text);
    return failed ? -1 : 0;
}

static int api_draft_prompt(struct api_draft *d, struct quern_model *m, struct err *e)
{
    const struct quern_request *r = d->r;
    if (!r->messages + !r->prompt + !r->raw + !r->ids != 3)
        return err_set(e, ERR_USAGE, "one of messages, prompt, raw and ids has to be given");
    if (!d->session->tokenizer)
        return err_set(e, ERR_DATA, "the model has no tokenizer");
    if (!api_is_chat(r) && (r->tools || r->parse))
        return err_set(e, ERR_USAGE,
                       "%s needs messages or prompt: the chat template says how calls are written",
                       r->tools ? "tools" : "parse");
    if (api_pictures_open(&d->pictures, m, r, e))
        return -1;
    if (api_is_chat(r))
        return api_chat_prompt(d, e);
    if (r->raw)
        return api_raw_prompt(d, e);
    for (size_t i = 0; i < r->id_count; i++)
        if (ids_add(&d->prompt, r->ids[i], e))
            return -1;
    return 0;
}

/* ---- sampling ---- */

static int api_sampling_field(struct sampler_params *p, const char *name, const json_t *v, struct err *e)
{
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        if (strcmp(name, f->name) != 0)
            continue;
        if (!json_is_number(v))
            return err_set(e, ERR_USAGE, "sampling: %s has to be a number", f->name);
        *(double *)((char *)p + f->offset) = json_number_value(v);
        return 0;
    }
    return err_set(e, ERR_USAGE, "sampling has no field '%s'", log_safe(name));
}

static int api_sampler(const struct api_draft *d, struct sampler_params *p, struct err *e)
{
    const struct quern_request *r = d->r;
    *p = d->session->defaults;
    if (r->sampling) {
        json_t *all = api_json(r->sampling, "sampling", JSON_OBJECT, e), *v;
        const char *name;
        int failed = !all;
        json_object_foreach(all, name, v) failed = failed || api_sampling_field(p, name, v, e);
        json_decref(all);
        if (failed)
            return -1;
    }
    p->seed = r->seed;
    p->temperature = r->greedy ? 0 : isnan(r->temperature) ? p->temperature : r->temperature;
    p->top_p = isnan(r->top_p) ? p->top_p : r->top_p;
    p->min_p = isnan(r->min_p) ? p->min_p : r->min_p;
    p->top_k = r->top_k < 0 ? p->top_k : r->top_k;
    return 0;
}

static int api_options(struct api_draft *d, struct err *e)
{
    const struct quern_request *r = d->r;
    struct engine_request *q = &d->request;
    *q = (struct engine_request){.most = r->max_tokens,
                                 .stop_strings = r->stop,
                                 .logprobs = r->logprobs != 0,
                                 .top_logprobs = r->top_logprobs,
                                 .echo = r->echo != 0,
                                 .prompt_only = r->prompt_only != 0,
                                 .ignore_eog = r->ignore_end != 0,
                                 .seconds = r->seconds,
                                 .salt = r->salt};
    for (; r->stop && r->stop[q->stops]; q->stops++)
        if (q->stops == API_STOPS)
            return err_set(e, ERR_USAGE, "more than %d stop strings", API_STOPS);
    return api_sampler(d, &q->sampler, e) || session_adapt(d->session, r->lora, &q->lora, e) ? -1 : 0;
}

/* ---- constraints ---- */

static json_t *api_choices(const char *const *choices)
{
    json_t *list = json_array();
    for (size_t i = 0; list && choices[i]; i++)
        if (json_array_append_new(list, json_string(choices[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The format that the request asks for. */
static int api_format(struct api_draft *d, struct err *e)
{
    const struct quern_request *r = d->r;
    const char *text = r->grammar ? r->grammar : r->regex;
    int count = !!r->json_schema + !!r->grammar + !!r->regex + !!r->choices;
    if (count > 1)
        return err_set(e, ERR_USAGE,
                       "json_schema, grammar, regex and choices cannot hold together: give one of them");
    if (!count)
        return 0;
    if (d->tools && !r->json_schema)
        return err_set(e, ERR_USAGE, "%s does not go together with tools",
                       r->grammar ? "grammar"
                       : r->regex ? "regex"
                                  : "choices");
    d->want.kind = r->json_schema ? WANT_SCHEMA
                   : r->grammar   ? WANT_GRAMMAR
                   : r->regex     ? WANT_REGEX
                                  : WANT_CHOICE;
    static const struct jsonread_limits most = {
        .text = API_JSON_TEXT, .memory = 1 << 30, .depth = JSONREAD_DEPTH};
    d->value = r->json_schema
                   ? jsonread_value(r->json_schema, strlen(r->json_schema), &most, "json_schema", e)
               : text ? json_string(text)
                      : api_choices(r->choices);
    d->want.value = d->value;
    return d->value ? 0 : err_set(e, ERR_USAGE, "what the answer has to be is not valid UTF-8 text");
}

static int api_constrain(struct api_draft *d, struct quern_stream *s, struct err *e)
{
    const char *lead = NULL;
    if (api_format(d, e) || output_want_constraint(d->session, &d->want, &d->constraint, e))
        return -1;
    if (!d->constraint)
        return 0;
    d->request.constraint = d->constraint;
    if (prefill_lead(d->session, &d->want, &d->prefill, d->call_begun, &lead, &s->lead, e) ||
        (s->lead &&
         tokenizer_encode(d->session->tokenizer, s->lead, strlen(s->lead), TOK_SPECIAL, &d->prompt, e)) ||
        (lead && constraint_ref_set_lead(d->constraint, lead, e)))
        return -1;
    if (d->tools)
        constraint_ref_set_yielding(d->constraint);
    return 0;
}

/* ---- all of it ---- */

/* The parser of the output. What is fed here was written by the prompt: a required call has begun. */
static int api_parser(struct api_draft *d, struct quern_stream *s, struct err *e)
{
    const struct session *l = d->session;
    if (!d->tools && !d->r->parse)
        return 0;
    s->tools = json_incref(d->tools);
    s->short_ids = l->form->short_ids;
    d->request.show_special = l->marks_hidden;
    s->parser = output_open(&(struct output_options){.form = l->form,
                                                     .thought = l->thought,
                                                     .tools = d->tools,
                                                     .thinking = d->want.thinking && !d->prefill.len,
                                                     .ruled = d->tools && d->constraint,
                                                     .only_calls = d->constraint && d->want.must,
                                                     .take = api_stream_take,
                                                     .arg = s},
                            e);
    if (!s->parser)
        return -1;
    int failed = (d->prefill.len && output_go_on(s->parser, d->prefill.data, d->prefill.len)) ||
                 (s->lead && output_feed(s->parser, s->lead, strlen(s->lead)));
    return failed || s->failed ? err_memory(e, "the output's parser", 1) : 0;
}

static void api_draft_free(struct api_draft *d)
{
    json_decref(d->messages);
    json_decref(d->set);
    json_decref(d->value);
    json_decref(d->tools);
    api_pictures_free(&d->pictures);
    ids_free(&d->prompt);
    buf_free(&d->prefill);
    constraint_ref_drop(d->constraint);
}

int api_request_prompt(struct quern_model *m, const struct quern_request *r, struct ids *out, struct err *e)
{
    struct api_draft d = {.r = r, .session = m->session};
    int failed = api_draft_prompt(&d, m, e);
    if (!failed) {
        *out = d.prompt;
        d.prompt = (struct ids){0};
    }
    api_draft_free(&d);
    return failed;
}

int api_request_submit(struct quern_stream *s, const struct quern_request *r, struct err *e)
{
    struct quern_model *m = s->model;
    struct api_draft d = {.r = r, .session = m->session};
    if (!m->engine)
        return err_set(e, ERR_USAGE, "the model is open for embeddings only%s",
                       m->session->model->h.causal ? ": open it without `embed`" : "");
    int failed =
        api_options(&d, e) || api_draft_prompt(&d, m, e) || api_constrain(&d, s, e) || api_parser(&d, s, e);
    if (!failed) {
        d.request.prompt = d.prompt.data;
        d.request.n = (uint32_t)d.prompt.len;
        d.request.images = d.pictures.places;
        d.request.image_count = d.pictures.count;
        d.request.wake = r->notify ? api_stream_wake : NULL;
        d.request.arg = s;
        failed = engine_submit(m->engine, &d.request, &s->stream, e);
    }
    api_draft_free(&d);
    return failed;
}
