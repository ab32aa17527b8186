#define _GNU_SOURCE
#include "tool/chat.h"

#include "base/buf.h"
#include "base/edit_distance.h"
#include "base/log.h"
#include "base/num.h"
#include "base/utf8.h"
#include "device/device.h"
#include "format/store.h"
#include "hub/path.h"
#include "tool/chat_internal.h"
#include "tool/dropped.h"
#include "tool/interrupt.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>

static const char chat_help[] =
    "  /help            this list\n"
    "  /clear           forget the conversation\n"
    "  /system TEXT     set the system message and start again\n"
    "  /set             show the sampler's values\n"
    "  /set NAME VALUE  change one: /set temp 0.7\n"
    "  /image FILE      an image for the next message; a file dropped on the terminal is one, too\n"
    "  /save FILE       write the conversation, as JSON\n"
    "  /load FILE       read one, and go on from there\n"
    "  /retry           answer the last question again\n"
    "  /edit            edit the last question with $EDITOR, and answer it\n"
    "  /stats           figures of the last answer\n"
    "  /bye             leave (Ctrl-D does, too)\n"
    "Tab completes commands and paths, Ctrl-R searches the history; lines that are pasted together are one "
    "message.\n"
    "A line that ends with \\ continues in the next one; \"\"\" begins and ends text of several lines.\n"
    "Ctrl-C stops an answer, and only that.\n";

json_t *chat_string(const char *text, size_t n)
{
    json_t *string = json_stringn(text, n);
    if (string)
        return string;
    struct buf clean = {0};
    utf8_clean(&clean, text, n);
    string = json_stringn(clean.data ? clean.data : "", clean.len);
    buf_free(&clean);
    return string;
}

void chat_add(struct chat_session *t, const char *role, const char *text, size_t n)
{
    json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", role, "content", chat_string(text, n)));
}

bool chat_is(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && !strcmp(own, role);
}

/* ---- images ---- */

uint32_t chat_count_images(const json_t *message)
{
    const json_t *part;
    uint32_t count = 0;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)json_object_get(message, "content"), i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        count += type && !strcmp(type, "image");
    }
    return count;
}

bool chat_take_image(struct chat_session *t, const char *path)
{
    struct err e = {0};
    uint32_t before = t->images->count;
    if (!t->session->vision)
        err_set(&e, ERR_USAGE, "this model reads only text");
    else if (!images_add(t->images, path, &e) && !images_prepare(t->images, t->session->vision, &e))
        return true;
    images_cut(t->images, before);
    printf("%s\n", e.text);
    return false;
}

static void chat_image(struct chat_session *t, const char *path)
{
    if (!*path)
        printf("/image wants a file name\n");
    else if (chat_take_image(t, path)) {
        json_array_append_new(
            t->attached, json_pack("{s:s,s:o}", "type", "image", "path", chat_string(path, strlen(path))));
        printf("%s: %u tokens; it goes with the next message\n", log_safe(path),
               t->images->picture[t->images->count - 1]->rows);
    }
}

/* The user's message, with what is attached in front of its text. */
static void chat_add_user(struct chat_session *t, const char *text, size_t n)
{
    if (!json_array_size(t->attached)) {
        chat_add(t, "user", text, n);
        return;
    }
    json_t *parts = json_copy(t->attached);
    json_array_clear(t->attached);
    if (n)
        json_array_append_new(parts, json_pack("{s:s,s:o}", "type", "text", "text", chat_string(text, n)));
    json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", "user", "content", parts));
}

/* Takes paths of images off the front of a message. */
static const char *chat_take_dropped(struct chat_session *t, const char *text)
{
    char path[PATH_MAX];
    for (size_t n; (n = dropped_image(text, path, sizeof path)); text += n)
        chat_image(t, path);
    return text;
}

void chat_clear(struct chat_session *t, const char *system)
{
    json_array_clear(t->messages);
    json_array_clear(t->attached);
    images_cut(t->images, 0);
    if (system)
        chat_add(t, "system", system, strlen(system));
}

/* The system message in force, or NULL. */
static const char *chat_system(const struct chat_session *t)
{
    const json_t *first = json_array_get(t->messages, 0);
    return chat_is(first, "system") ? json_string_value(json_object_get(first, "content")) : NULL;
}

static void chat_set(struct chat_session *t, char *words)
{
    struct sampler_params *p = &t->o->sampling->params;
    char *rest = NULL, *name = strtok_r(words, " \t", &rest),
         *value = name ? strtok_r(NULL, " \t", &rest) : NULL;
    if (!name) {
        for (size_t i = 0; i < sampler_field_count; i++)
            printf("  %-20s %g\n", sampler_fields[i].name, *sampling_value(p, &sampler_fields[i]));
        printf("  %-20s %llu\n", "seed", (unsigned long long)p->seed);
        return;
    }
    if (!strcmp(name, "seed") && value && num_u64(value, strlen(value), UINT64_MAX, &p->seed))
        return;
    const struct sampler_field *f = sampling_field(name);
    double v;
    if (!f && strcmp(name, "seed") != 0) {
        struct nearest near = {.word = name};
        for (size_t i = 0; i < sampler_field_count; i++)
            nearest_offer(&near, sampler_fields[i].name);
        nearest_offer(&near, "seed");
        if (near.best)
            printf("there is no setting '%s'; did you mean %s?\n", log_safe(name), near.best);
        else
            printf("there is no setting '%s'; /set lists them\n", log_safe(name));
        return;
    }
    if (!f || !value || !num_f64(value, strlen(value), -1e18, 1e18, &v)) {
        printf("/set wants a name and a number; /set alone lists the names\n");
        return;
    }
    struct sampler_params trial = *p;
    struct err e = {0};
    *sampling_value(&trial, f) = v;
    if (sampler_check(&trial, t->session->model->plan.out_width, &e))
        printf("%s\n", e.text);
    else
        *p = trial;
}

static void chat_unknown(const char *text)
{
    struct nearest near = {.word = text};
    for (size_t i = 0; chat_commands[i]; i++)
        nearest_offer(&near, chat_commands[i]);
    if (near.best)
        printf("there is no command %s; did you mean %s?\n", log_safe(text), near.best);
    else
        printf("there is no command %s; /help lists them\n", log_safe(text));
}

/* A line that begins with a slash. */
static void chat_command(struct chat_session *t, char *text)
{
    char *rest = text + strcspn(text, " \t");
    if (*rest)
        *rest++ = 0;
    rest += strspn(rest, " \t");
    for (size_t n = strlen(rest); n && strchr(" \t", rest[n - 1]);)
        rest[--n] = 0;
    if (!strcmp(text, "/help") || !strcmp(text, "/?"))
        fputs(chat_help, stdout);
    else if (!strcmp(text, "/bye") || !strcmp(text, "/exit") || !strcmp(text, "/quit"))
        t->done = true;
    else if (!strcmp(text, "/clear"))
        chat_clear(t, chat_system(t));
    else if (!strcmp(text, "/system"))
        chat_clear(t, *rest ? rest : NULL);
    else if (!strcmp(text, "/set"))
        chat_set(t, rest);
    else if (!strcmp(text, "/save"))
        chat_save(t, rest);
    else if (!strcmp(text, "/load"))
        chat_load(t, rest);
    else if (!strcmp(text, "/image"))
        chat_image(t, rest);
    else if (!strcmp(text, "/retry"))
        chat_retry(t);
    else if (!strcmp(text, "/edit"))
        chat_edit(t);
    else if (!strcmp(text, "/stats"))
        answer_stats(t->session, &t->last);
    else
        chat_unknown(text);
}

/* One message, of one line or of several. false at the end of the input. */
static bool chat_read(struct chat_session *t, struct buf *message)
{
    struct buf line = {0};
    bool more, block = false;
    buf_clear(message);
    interrupt_forget();
    do {
        if (!line_read(t->line, message->len || block ? "... " : ">>> ", &line)) {
            buf_free(&line);
            return false;
        }
        if (interrupted()) { /* the whole message is taken back */
            buf_clear(message);
            break;
        }
        bool pasted = line.len && memchr(line.data, '\n', line.len); /* quotes in it are its own */
        bool quotes =
            !pasted && line.len >= 3 && !memcmp(block ? line.data + line.len - 3 : line.data, "\"\"\"", 3);
        size_t from = quotes && !block ? 3 : 0, n = line.len - (quotes && block ? 3 : 0);
        more = !block && n && line.data[n - 1] == '\\';
        block ^= quotes;
        if (n > from)
            buf_add(message, line.data + from, n - from - more);
        if (more || block)
            buf_char(message, '\n');
    } while (more || block);
    buf_free(&line);
    return true;
}

/* "SmolLM2-135M-Instruct.Q4_1: 8192 tokens of context, on cpu" */
static void chat_banner(const struct chat_session *t)
{
    const char *base = path_base(t->session->store->path), *end = strstr(base, ".gguf");
    fprintf(stderr, "%.*s: %u tokens of context, on %s; /help lists the commands, /bye leaves\n",
            (int)(end ? end - base : (long)strlen(base)), base, t->session->runner->ctx,
            t->session->runner->device->ops->name);
}

/* Answers messages until the user leaves. */
static void chat_loop(struct chat_session *t)
{
    struct buf message = {.max = 64 << 20};
    while (!t->done && !tool_flush() && chat_read(t, &message)) {
        if (strspn(message.data ? message.data : "", " \t\n") == message.len)
            continue;
        line_remember(t->line, message.data);
        const char *text = chat_take_dropped(t, message.data);
        if (text == message.data && text[0] == '/' && !strchr(text, '\n')) {
            chat_command(t, message.data);
            continue;
        }
        if (!*text) /* files alone wait for the question */
            continue;
        chat_add_user(t, text, message.len - (size_t)(text - message.data));
        chat_answer(t);
    }
    if (!t->done)
        putchar('\n');
    buf_free(&message);
}

int chat_run(struct session *l, struct engine *g, const struct chat_options *o, struct err *e)
{
    char history[PATH_MAX];
    struct err no_home = {0};
    bool kept = o->history && !chat_state_file("history", history, &no_home);
    struct chat_session t = {.session = l,
                             .engine = g,
                             .o = o,
                             .line = line_open(kept ? history : NULL, chat_complete),
                             .messages = json_array(),
                             .attached = json_array(),
                             .images = o->images};
    if (!t.line || !t.messages || !t.attached)
        err_memory(e, "the chat", 4096);
    else if (o->system)
        chat_add(&t, "system", o->system, strlen(o->system));
    for (uint32_t i = 0; i < t.images->count; i++) /* those of the command line */
        json_array_append_new(t.attached,
                              json_pack("{s:s,s:o}", "type", "image", "path",
                                        chat_string(t.images->named[i], strlen(t.images->named[i]))));
    interrupt_catch();
    chat_banner(&t);
    if (!e->code && (!o->resume || !chat_resume(&t, e)))
        chat_loop(&t);
    line_close(t.line);
    json_decref(t.messages);
    json_decref(t.attached);
    generation_free(&t.last);
    return e->code ? -1 : 0;
}
