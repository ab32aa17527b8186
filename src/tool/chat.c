#define _GNU_SOURCE
#include "tool/chat.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/edit_distance.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"
#include "tool/answer.h"
#include "tool/dropped.h"
#include "tool/images.h"
#include "tool/line.h"
#include "tool/tool.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The conversation. Invariant between turns: messages is an array whose last entry, if any, is the
 * assistant's or the system's. */
struct chat_session {
    struct session *session;
    struct engine *engine;
    const struct chat_options *o;
    struct line *line;
    json_t *messages;
    struct images *images;  /* of all messages, in their order; then those of the next one */
    json_t *attached;       /* the parts of the next message that are images */
    struct generation last; /* of the last answer: /stats */
    bool done;
};

static const char chat_help[] =
    "  /help            this list\n"
    "  /clear           forget the conversation\n"
    "  /system TEXT     set the system message and start again\n"
    "  /set             show the sampler's values\n"
    "  /set NAME VALUE  change one: /set temp 0.7\n"
    "  /image FILE      an image for the next message; a file dropped on the terminal is one, too\n"
    "  /save FILE       write the conversation, as JSON\n"
    "  /load FILE       read one, and go on from there\n"
    "  /stats           figures of the last answer\n"
    "  /bye             leave (Ctrl-D does, too)\n"
    "A line that ends with \\ continues in the next one; \"\"\" begins and ends text of several lines.\n"
    "Ctrl-C stops an answer, and only that.\n";

/* The text as JSON; what is not UTF-8 (the model's own bytes, or a terminal in another encoding) is replaced. */
static json_t *chat_string(const char *text, size_t n)
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

static void chat_add(struct chat_session *t, const char *role, const char *text, size_t n)
{
    json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", role, "content", chat_string(text, n)));
}

/* ---- images ---- */

/* How many of a message's parts are images. */
static uint32_t chat_count_images(const json_t *message)
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

/* One more image: of the next message, or of one that is read from a file. */
static bool chat_take_image(struct chat_session *t, const char *path)
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

static void chat_clear(struct chat_session *t, const char *system)
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
    const char *role = json_string_value(json_object_get(first, "role"));
    return role && !strcmp(role, "system") ? json_string_value(json_object_get(first, "content")) : NULL;
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

static void chat_save(const struct chat_session *t, const char *path)
{
    bool force = !strncmp(path, "--force ", 8);
    path += force ? 8 : 0;
    path += strspn(path, " ");
    if (!*path)
        printf("/save wants a file name\n");
    else if (!force && !access(path, F_OK))
        printf("%s exists already: /save --force %s replaces it\n", log_safe(path), log_safe(path));
    else if (json_dump_file(t->messages, path, JSON_INDENT(2)))
        printf("cannot write %s\n", log_safe(path));
    else
        printf("%zu messages written to %s\n", json_array_size(t->messages), log_safe(path));
}

static bool chat_is_conversation(const json_t *v)
{
    size_t i;
    const json_t *m;
    if (!json_is_array(v))
        return false;
    json_array_foreach(v, i, m) if (!json_is_string(json_object_get(m, "role"))) return false;
    return true;
}

/* Reads the images of a conversation again, from their files. */
static bool chat_load_images(struct chat_session *t, json_t *messages)
{
    json_t *message, *part;
    size_t i, k;
    json_array_foreach(messages, i, message) json_array_foreach(json_object_get(message, "content"), k, part)
    {
        const char *type = json_string_value(json_object_get(part, "type")),
                   *file = json_string_value(json_object_get(part, "path"));
        if (type && !strcmp(type, "image") && !chat_take_image(t, file ? file : ""))
            return false;
    }
    return true;
}

static void chat_load(struct chat_session *t, const char *path)
{
    struct buf text = {.max = 64 << 20};
    struct err e = {0};
    json_error_t why;
    if (!*path || !strcmp(path, "-")) { /* standard input is the chat itself */
        printf("/load wants a file name\n");
        return;
    }
    if (file_read(path, &text, &e)) {
        printf("%s\n", e.text);
        buf_free(&text);
        return;
    }
    json_t *v = json_loadb(text.data ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &why);
    buf_free(&text);
    if (chat_is_conversation(v)) {
        chat_clear(t, NULL);
        if (chat_load_images(t, v)) {
            json_decref(t->messages);
            t->messages = v;
            printf("%zu messages read\n", json_array_size(v));
            return;
        }
        images_cut(t->images, 0);
        json_decref(v);
        return;
    }
    printf("%s is no conversation: a JSON array of messages was expected\n", log_safe(path));
    json_decref(v);
}

/* A line that begins with a slash. */
static void chat_command(struct chat_session *t, char *text)
{
    char *rest = text + strcspn(text, " \t");
    if (*rest)
        *rest++ = 0;
    rest += strspn(rest, " \t");
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
    else if (!strcmp(text, "/stats"))
        answer_stats(t->session, &t->last);
    else
        printf("there is no command %s; /help lists them\n", log_safe(text));
}

/* Answers the user's message, the last of `messages`; removes it on failure. */
static void chat_answer(struct chat_session *t)
{
    struct err e = {0};
    struct ids prompt = {0};
    struct prompt_image *places = mem_zalloc(t->images->count + 1, sizeof *places);
    struct prompt_request request = {.messages = t->messages,
                                     .set = t->o->set,
                                     .pictures = t->images->picture,
                                     .picture_count = t->images->count,
                                     .images = places};
    struct answer_options o = {
        .sampler = &t->o->sampling->params,
        .most = t->o->most,
        .stop_strings = t->o->stop_strings,
        .stops = t->o->stops,
        .constraint = t->o->constraint,
        .lora = t->o->lora,
        .images = places,
        .image_count = t->images->count,
    };
    generation_free(&t->last);
    t->last = (struct generation){0};
    int failed = !places ? err_memory(&e, "images", sizeof *places)
                         : session_prompt(t->session, &request, &prompt, &e);
    o.reasoning = failed ? o.reasoning : answer_reasoning(t->session, &prompt);
    failed = failed || answer_run(t->engine, &prompt, &o, &t->last, &e);
    putchar('\n');
    if (failed && e.code != ERR_INTERRUPTED)
        log_error("%s", e.text);
    if (t->last.context_full)
        log_warn("the context of %u tokens is full: /clear starts again, --ctx makes it larger",
                 t->session->runner->ctx);
    size_t last = json_array_size(t->messages) - 1;
    if (failed && !t->last.text.len) {
        images_cut(t->images, t->images->count - chat_count_images(json_array_get(t->messages, last)));
        json_array_remove(t->messages, last);
    } else
        chat_add(t, "assistant", t->last.text.data ? t->last.text.data : "", t->last.text.len);
    if (t->o->verbose && !failed)
        answer_stats(t->session, &t->last);
    mem_free(places);
    ids_free(&prompt);
}

/* One message, of one line or of several. false at the end of the input. */
static bool chat_read(struct chat_session *t, struct buf *message)
{
    struct buf line = {0};
    bool more, block = false;
    buf_clear(message);
    answer_forget_interrupt();
    do {
        if (!line_read(t->line, message->len || block ? "... " : ">>> ", &line)) {
            buf_free(&line);
            return false;
        }
        if (answer_interrupted()) { /* the whole message is taken back */
            buf_clear(message);
            break;
        }
        bool quotes = line.len >= 3 && !memcmp(block ? line.data + line.len - 3 : line.data, "\"\"\"", 3);
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

int chat_run(struct session *l, struct engine *g, const struct chat_options *o, struct err *e)
{
    struct chat_session t = {.session = l,
                             .engine = g,
                             .o = o,
                             .line = line_open(),
                             .messages = json_array(),
                             .attached = json_array(),
                             .images = o->images};
    struct buf message = {.max = 64 << 20};
    if (!t.line || !t.messages || !t.attached)
        err_memory(e, "the chat", 4096);
    else if (o->system)
        chat_add(&t, "system", o->system, strlen(o->system));
    for (uint32_t i = 0; i < t.images->count; i++) /* those of the command line */
        json_array_append_new(t.attached, json_pack("{s:s}", "type", "image"));
    answer_catch_interrupts();
    fprintf(stderr, "/help lists the commands, /bye leaves\n");
    while (!e->code && !t.done && !tool_flush() && chat_read(&t, &message)) {
        if (strspn(message.data ? message.data : "", " \t\n") == message.len)
            continue;
        line_remember(t.line, message.data);
        const char *text = chat_take_dropped(&t, message.data);
        if (text == message.data && text[0] == '/' && !strchr(text, '\n')) {
            chat_command(&t, message.data);
            continue;
        }
        if (!*text) /* files alone wait for the question */
            continue;
        chat_add_user(&t, text, message.len - (size_t)(text - message.data));
        chat_answer(&t);
    }
    if (!t.done)
        putchar('\n');
    line_close(t.line);
    json_decref(t.messages);
    json_decref(t.attached);
    generation_free(&t.last);
    buf_free(&message);
    return e->code ? -1 : 0;
}
