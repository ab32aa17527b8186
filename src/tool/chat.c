#define _GNU_SOURCE
#include "tool/chat.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/edit_distance.h"
#include "base/log.h"
#include "base/num.h"
#include "base/utf8.h"
#include "tool/answer.h"
#include "tool/line.h"
#include "tool/tool.h"

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
    struct generation last; /* of the last answer: /stats */
    bool done;
};

static const char chat_help[] =
    "  /help            this list\n"
    "  /clear           forget the conversation\n"
    "  /system TEXT     set the system message and start again\n"
    "  /set             show the sampler's values\n"
    "  /set NAME VALUE  change one: /set temp 0.7\n"
    "  /save FILE       write the conversation, as JSON\n"
    "  /load FILE       read one, and go on from there\n"
    "  /stats           figures of the last answer\n"
    "  /bye             leave (Ctrl-D does, too)\n"
    "A line that ends with \\ continues in the next one; \"\"\" begins and ends text of several lines.\n"
    "Ctrl-C stops an answer, and only that.\n";

static void chat_add(struct chat_session *t, const char *role, const char *text, size_t n)
{
    json_t *content = json_stringn(text, n);
    if (!content) { /* not UTF-8: the model's own bytes, or a terminal in another encoding */
        struct buf clean = {0};
        utf8_clean(&clean, text, n);
        content = json_stringn(clean.data ? clean.data : "", clean.len);
        buf_free(&clean);
    }
    json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", role, "content", content));
}

static void chat_clear(struct chat_session *t, const char *system)
{
    json_array_clear(t->messages);
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
        json_decref(t->messages);
        t->messages = v;
        printf("%zu messages read\n", json_array_size(v));
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
    struct prompt_request request = {.messages = t->messages, .set = t->o->set};
    struct answer_options o = {
        .sampler = &t->o->sampling->params,
        .most = t->o->most,
        .stop_strings = t->o->stop_strings,
        .stops = t->o->stops,
        .constraint = t->o->constraint,
        .lora = t->o->lora,
    };
    generation_free(&t->last);
    t->last = (struct generation){0};
    int failed =
        session_prompt(t->session, &request, &prompt, &e) || answer_run(t->engine, &prompt, &o, &t->last, &e);
    putchar('\n');
    if (failed && e.code != ERR_INTERRUPTED)
        log_error("%s", e.text);
    if (t->last.context_full)
        log_warn("the context of %u tokens is full: /clear starts again, --ctx makes it larger",
                 t->session->runner->ctx);
    if (failed && !t->last.text.len)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    else
        chat_add(t, "assistant", t->last.text.data ? t->last.text.data : "", t->last.text.len);
    if (t->o->verbose && !failed)
        answer_stats(t->session, &t->last);
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
    struct chat_session t = {
        .session = l, .engine = g, .o = o, .line = line_open(), .messages = json_array()};
    struct buf message = {.max = 64 << 20};
    if (!t.line || !t.messages)
        err_memory(e, "the chat", 4096);
    else
        chat_clear(&t, o->system);
    answer_catch_interrupts();
    fprintf(stderr, "/help lists the commands, /bye leaves\n");
    while (!e->code && !t.done && !tool_flush() && chat_read(&t, &message)) {
        if (strspn(message.data ? message.data : "", " \t\n") == message.len)
            continue;
        line_remember(t.line, message.data);
        if (message.data[0] == '/' && !strchr(message.data, '\n')) {
            chat_command(&t, message.data);
            continue;
        }
        chat_add(&t, "user", message.data, message.len);
        chat_answer(&t);
    }
    if (!t.done)
        putchar('\n');
    line_close(t.line);
    json_decref(t.messages);
    generation_free(&t.last);
    buf_free(&message);
    return e->code ? -1 : 0;
}
