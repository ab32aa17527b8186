/* A server without a model, for the targets that need one: a tokenizer of bytes, a template, and an engine
 * whose queue has no room, so that a request goes all the way to the engine and is refused there. */
#pragma once

#include "base/mem.h"
#include "base/utf8.h"
#include "run/engine_internal.h"
#include "serve/models.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* GPT-2's letters for bytes: those that print stand for themselves. */
static void ready_letter(struct buf *out, int byte, int *next)
{
    bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    char text[4];
    size_t n = utf8_put(prints ? (uint32_t)byte : 256u + (uint32_t)(*next)++, text);
    if (byte == '"' || byte == '\\')
        buf_char(out, '\\');
    buf_add(out, text, n);
}

static struct tokenizer *ready_tokenizer(void)
{
    struct buf out = {0};
    struct err e = {0};
    struct tokenizer *t = NULL;
    char path[64];
    int next = 0;
    buf_str(&out, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int byte = 0; byte < 256; byte++) {
        buf_str(&out, byte ? ",\"" : "\"");
        ready_letter(&out, byte, &next);
        buf_printf(&out, "\":%d", byte);
    }
    buf_str(&out,
            "}},\"added_tokens\":[{\"id\":256,\"content\":\"<|end|>\",\"special\":true},"
            "{\"id\":257,\"content\":\"<image>\",\"special\":true}],\"pre_tokenizer\":"
            "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}");
    snprintf(path, sizeof path, "/tmp/quern-fuzz-%d-tokenizer.json", (int)getpid());
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(out.data, 1, out.len, f) != out.len || fclose(f) || tokenizer_open_file(&t, path, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    unlink(path);
    buf_free(&out);
    return t;
}

/* Two templates: one that knows tools, and one that does not. */
static struct instance *ready_model(bool tools)
{
    static const char *const texts[] = {
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{{ tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}{{ "
        "c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}\n{% endfor %}{% if enable_thinking %}<think>{% endif %}"};
    static struct served served[2];
    static struct session models[2];
    static struct model model = {.plan = {.out_width = 258}};
    static struct runner runner = {.ctx = 4096};
    static struct engine engines[2];
    struct instance *f = &served[tools].instances[INSTANCE_WRITER];
    struct session *l = &models[tools];
    struct err e = {0};
    if (f->session)
        return f;
    *l = (struct session){.model = &model, .tokenizer = ready_tokenizer(), .runner = &runner};
    l->thought = output_thought_find("");
    l->form = output_form_find("");
    pthread_mutex_init(&l->lock, NULL);
    sampler_defaults(&l->defaults);
    if (constraint_cache_open(&l->constraints, 1 << 20, &e) ||
        chat_open_text(&l->chat, texts[tools], strlen(texts[tools]), &e))
        abort();
    f->of = &served[tools];
    f->of->name = "m";
    f->session = l;
    f->engine = &engines[tools];
    *f->engine = (struct engine){.session = l, .room = runner.ctx};
    pthread_mutex_init(&f->engine->mutex, NULL);
    return f;
}

static struct request *ready_request(const struct route *route, bool tools)
{
    static const struct models_options options;
    static struct models models = {.o = &options};
    static const struct server_options server_options;
    static struct server server = {.models = &models, .o = &server_options};
    struct request *a = mem_zalloc(1, sizeof *a);
    if (!a)
        abort();
    if (!server.started)
        pthread_mutex_init(&server.mutex, NULL), pthread_mutex_init(&models.mutex, NULL);
    for (size_t i = 0; i < LANES; i++)
        if (!server.lanes[i].end)
            server.lanes[i].end = &server.lanes[i].first;
    server.started = 1;
    a->server = &server;
    a->route = route;
    a->model = ready_model(tools);
    a->called = "m";
    server.request_count++;
    snprintf(a->id, sizeof a->id, "req-0");
    return a;
}

/* A request ends with a failure that has a sentence, or with a reply; either is JSON. */
__attribute__((unused)) static void ready_check(const struct request *a, const struct route *r)
{
    struct buf out = {0};
    if (!a->failure.status == !a->reply.len || (a->failure.status && !a->failure.err.text[0]))
        abort();
    if (a->failure.status)
        format_for(r)->error(&a->failure, &out);
    const struct buf *reply = a->failure.status ? &out : &a->reply;
    json_t *v = json_loadb(reply->data, reply->len, JSON_ALLOW_NUL, NULL);
    if (!v)
        abort();
    json_decref(v);
    buf_free(&out);
}

/* As when the client has disconnected. */
static void ready_drop(struct request *a)
{
    a->arrived = true;
    request_abandon(a);
}
