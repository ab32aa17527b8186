/* A model's compiled templates, the values that it supplies to them, and probes of what they support. */
#define _GNU_SOURCE
#include "lang/chat/chat.h"

#include "base/buf.h"
#include "base/mem.h"
#include "format/store.h"
#include "lang/chat/chat_load.h"
#include "lang/chat/chat_message.h"

#include <stdio.h>
#include <string.h>

#define PROBE   "quern-probe-7391"
#define GOES_ON "quern-goes-on-7391" /* behind the text of a message that is continued */

struct chat_template {
    const char *name; /* belongs to `texts` */
    struct jinja *jinja;
};

struct chat {
    struct chat_template *templates; /* (count) */
    size_t count;
    json_t *texts;  /* name -> text */
    json_t *tokens; /* name -> text of a special token; NULL for a template alone */
    struct chat_caps caps;
};

static const char *const chat_roles[] = {"system",      "developer",   "user",    "assistant", "tool",
                                         "function",    "model",       "ipython", "human",     "gpt",
                                         "observation", "environment", NULL};

/* -- choosing and rendering */

/* As transformers chooses: tool_use where there are tools, else default, else the only one. */
static const struct jinja *chat_choose(const struct chat *c, bool tools)
{
    const struct jinja *found = c->count == 1 ? c->templates[0].jinja : NULL;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < c->count; i++)
            if (!strcmp(c->templates[i].name, pass ? "tool_use" : "default") && (!pass || tools))
                found = c->templates[i].jinja;
    return found;
}

static json_t *chat_names(const struct chat *c, const struct chat_request *r, const json_t *messages)
{
    json_t *names = json_object();
    int failed = json_object_set(names, "messages", (json_t *)messages);
    if (r->tools || c->tokens)
        failed |=
            json_object_set_new(names, "tools", r->tools ? json_incref((json_t *)r->tools) : json_null());
    if (r->documents || c->tokens)
        failed |= json_object_set_new(names, "documents",
                                      r->documents ? json_incref((json_t *)r->documents) : json_null());
    if (r->extra)
        failed |= json_object_update(names, (json_t *)r->extra);
    if (!failed)
        return names;
    json_decref(names);
    return NULL;
}

static int chat_render_with(const struct chat *c, const struct chat_request *r, const json_t *messages,
                            struct spans *out, struct err *e)
{
    const struct jinja *t = chat_choose(c, r->tools && json_array_size(r->tools));
    if (!t)
        return err_set(e, ERR_DATA, "the model has several chat templates and none of them is named default");
    json_t *names = chat_names(c, r, messages), *own = c->tokens ? json_copy(c->tokens) : json_object();
    int result = -1;
    if (!names || !own ||
        json_object_set_new(own, "add_generation_prompt",
                            json_boolean(!r->no_generation_prompt && !r->continue_final)))
        err_memory(e, "a chat", 1);
    else
        result = jinja_render(t, &(struct jinja_input){names, own, chat_roles, r->now, r->limits}, out, e);
    json_decref(names);
    json_decref(own);
    return result;
}

/* Marks where the text of the last message ends: templates trim texts and close turns, so the end cannot be found by the
 * text itself. */
static int chat_mark_end(json_t *messages, struct err *e)
{
    json_t *message = json_array_get(messages, json_array_size(messages) - 1),
           *content = json_object_get(message, "content"),
           *part = json_array_get(content, json_array_size(content) - 1);
    const json_t *text = json_is_array(content) ? json_object_get(part, "text") : content;
    struct buf marked = {0};
    if (!json_is_string(text))
        return err_set(e, ERR_DATA, "the last message has no text that could be continued");
    buf_add(&marked, json_string_value(text), json_string_length(text));
    buf_str(&marked, GOES_ON);
    json_t *string = marked.failed ? NULL : json_stringn(marked.data, marked.len);
    buf_free(&marked);
    int failed = string ? part ? json_object_set_new(part, "text", string)
                               : json_object_set_new(message, "content", string)
                        : -1;
    return failed ? err_memory(e, "a chat", 1) : 0;
}

/* Cuts the prompt off where the mark stands: drops what the template wrote after the text. */
static int chat_cut(struct spans *s, struct err *e)
{
    const char *at = NULL;
    for (const char *next = s->text;
         (next = memmem(next, s->n - (size_t)(next - s->text), GOES_ON, sizeof GOES_ON - 1)); next++)
        at = next;
    if (!at)
        return err_set(
            e, ERR_DATA,
            "the model's chat template does not write the last message as it is, so that it cannot be "
            "continued; with continue_final_message false a new turn begins");
    s->n = (size_t)(at - s->text);
    s->text[s->n] = 0;
    while (s->count && s->items[s->count - 1].text >= at)
        s->count--;
    if (s->count)
        s->items[s->count - 1].n = (size_t)(at - s->items[s->count - 1].text);
    return 0;
}

int chat_render(const struct chat *c, const struct chat_request *r, struct spans *out, struct err *e)
{
    *out = (struct spans){0};
    if (!json_is_array(r->messages))
        return err_set(e, ERR_DATA, "messages must be an array");
    if (r->as_given && !r->continue_final)
        return chat_render_with(c, r, r->messages, out, e);
    json_t *messages =
        r->as_given ? json_deep_copy(r->messages) : chat_messages(r->messages, &c->caps, r->image_mark, e);
    if (!messages)
        return err_memory(e, "a chat", 1);
    int result = r->continue_final ? chat_mark_end(messages, e) : 0;
    result = result ? result : chat_render_with(c, r, messages, out, e);
    json_decref(messages);
    if (!result && r->continue_final && chat_cut(out, e)) {
        spans_free(out);
        *out = (struct spans){0};
        return -1;
    }
    return result;
}

/* -- probing: what comes out of small conversations */

/* Renders the messages, which are released; whether `text` comes out, and `never` does not. */
static bool chat_shows(const struct chat *c, json_t *messages, const char *text, const char *never)
{
    struct chat_request r = {.limits = {.fuel = 1000 * 1000, .memory = 16 << 20}};
    struct spans out;
    struct err e = {0};
    bool shows = messages && !chat_render_with(c, &r, messages, &out, &e);
    json_decref(messages);
    if (!shows)
        return false;
    shows = strstr(out.text, text) && !(never && strstr(out.text, never));
    spans_free(&out);
    return shows;
}

/* A tool call with these arguments (released), beside a content of "" or null. */
static json_t *probe_call(json_t *arguments, bool null)
{
    return json_pack("[{s:s,s:s},{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]}]", "role", "user", "content", "hi",
                     "role", "assistant", "content", null ? json_null() : json_string(""), "tool_calls", "id",
                     "call12345", "type", "function", "function", "name", "f", "arguments", arguments);
}

static void chat_probe_calls(struct chat *c)
{
    struct chat_caps *k = &c->caps;
    for (int null = 0; null < 2; null++) {
        bool object = chat_shows(c, probe_call(json_pack("{s:s}", PROBE, "v"), null), PROBE, "'" PROBE "'");
        bool string = chat_shows(c, probe_call(json_string("{\"" PROBE "\": \"v\"}"), null), PROBE, NULL);
        k->object_arguments = k->object_arguments || object;
        k->string_arguments = k->string_arguments || string;
        *(null ? &k->calls_with_null : &k->calls_with_empty) = object || string;
    }
}

/* Whether an image beside a text comes out as something. */
static bool chat_probe_images(const struct chat *c)
{
    struct chat_request r = {.limits = {.fuel = 1000 * 1000, .memory = 16 << 20}};
    size_t n[2] = {0};
    for (int i = 0; i < 2; i++) {
        struct spans out;
        struct err e = {0};
        json_t *messages =
            json_pack("[{s:s,s:[{s:s,s:s}]}]", "role", "user", "content", "type", "text", "text", PROBE);
        json_t *parts = json_object_get(json_array_get(messages, 0), "content");
        if (i)
            json_array_insert_new(parts, 0, json_pack("{s:s}", "type", "image"));
        if (messages && !chat_render_with(c, &r, messages, &out, &e)) {
            n[i] = out.n;
            spans_free(&out);
        }
        json_decref(messages);
    }
    return n[0] && n[1] > n[0];
}

static void chat_probe(struct chat *c)
{
    struct chat_caps *k = &c->caps;
    k->string_content =
        chat_shows(c, json_pack("[{s:s,s:s}]", "role", "user", "content", PROBE), PROBE, NULL);
    k->parts_content =
        chat_shows(
            c, json_pack("[{s:s,s:[{s:s,s:s}]}]", "role", "user", "content", "type", "text", "text", PROBE),
            PROBE, "'text'") &&
        !chat_shows(
            c, json_pack("[{s:s,s:[{s:s,s:s}]}]", "role", "user", "content", "type", "text", "text", PROBE),
            "\"text\"", NULL);
    k->images = k->parts_content && chat_probe_images(c);
    chat_probe_calls(c);
    k->system = chat_shows(c,
                           json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", PROBE, "role",
                                     "user", "content", "hi"),
                           PROBE, NULL);
    /* where nothing came out at all, what transformers hands over */
    k->string_content = k->string_content || !k->parts_content;
    k->object_arguments = k->object_arguments || !k->string_arguments;
    for (size_t i = 0; i < c->count; i++) {
        const struct jinja *t = c->templates[i].jinja;
        const char *text = json_string_value(json_object_get(c->texts, c->templates[i].name));
        k->developer = k->developer || strstr(text, "developer");
        k->tools = k->tools || jinja_mentions(t, "tools");
        k->thinking = k->thinking || jinja_mentions(t, "enable_thinking") || jinja_mentions(t, "thinking");
        k->effort = k->effort || jinja_mentions(t, "reasoning_effort");
    }
}

/* -- opening */

static int chat_compile(struct chat *c, struct err *e)
{
    const char *name;
    json_t *text;
    c->templates = mem_zalloc(json_object_size(c->texts), sizeof *c->templates);
    if (!c->templates)
        return err_memory(e, "chat templates", sizeof *c->templates);
    json_object_foreach(c->texts, name, text)
    {
        struct chat_template *t = &c->templates[c->count];
        t->name = name;
        if (jinja_compile(&t->jinja, json_string_value(text), json_string_length(text), e))
            return -1;
        c->count++;
    }
    return 0;
}

static int chat_finish(struct chat **out, struct chat *c, struct err *e)
{
    if (!c->texts || chat_compile(c, e)) {
        err_set(e, ERR_DATA, "the chat template is not valid UTF-8");
        chat_close(c);
        return -1;
    }
    chat_probe(c);
    *out = c;
    return 0;
}

int chat_open(struct chat **out, const struct store *s, const char *override, struct err *e)
{
    struct chat *c = mem_zalloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "a chat", sizeof *c);
    c->tokens = chat_load_tokens(s, e);
    c->texts = override    ? json_pack("{s:s}", "default", override)
               : c->tokens ? chat_load_templates(s, e)
                           : NULL;
    if (!c->tokens || !c->texts) {
        err_set(e, ERR_DATA, "the chat template is not valid UTF-8");
        chat_close(c);
        return -1;
    }
    if (!json_object_size(c->texts)) {
        chat_close(c);
        return err_set(e, ERR_DATA,
                       "%s has no chat template: give one with --template, or use --raw for plain text",
                       s->path);
    }
    return chat_finish(out, c, e);
}

int chat_open_text(struct chat **out, const char *text, size_t n, struct err *e)
{
    struct chat *c = mem_zalloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "a chat", sizeof *c);
    c->texts = json_object();
    if (!c->texts || json_object_set_new(c->texts, "default", json_stringn(text, n))) {
        json_decref(c->texts);
        c->texts = NULL;
    }
    return chat_finish(out, c, e);
}

void chat_close(struct chat *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->count; i++)
        jinja_free(c->templates[i].jinja);
    mem_free(c->templates);
    json_decref(c->texts);
    json_decref(c->tokens);
    mem_free(c);
}

const char *chat_text(const struct chat *c)
{
    const struct jinja *chosen = chat_choose(c, true);
    for (size_t i = 0; i < c->count; i++)
        if (c->templates[i].jinja == chosen)
            return json_string_value(json_object_get(c->texts, c->templates[i].name));
    return "";
}

struct chat_caps chat_capabilities(const struct chat *c)
{
    return c->caps;
}
