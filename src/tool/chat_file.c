/* Conversations in files: those that the user saves and loads, and the last one, for `quern run --continue`. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/store.h"
#include "hub/path.h"
#include "tool/chat_internal.h"
#include "tool/wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHAT_FILE_MOST = 64 << 20 };

int chat_state_file(const char *name, char out[PATH_MAX], struct err *e)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int failed = state && *state == '/' ? path_make(out, e, "%s/quern/%s", state, name)
                 : home && *home        ? path_make(out, e, "%s/.local/state/quern/%s", home, name)
                                        : err_set(e, ERR_USAGE, "there is no home folder (HOME)");
    mode_t before = umask(077);
    failed = failed || path_make_folders(out, e);
    umask(before);
    return failed;
}

void chat_save(const struct chat_session *t, const char *path)
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

/* NULL and an error. */
static json_t *chat_read_json(const char *path, struct err *e)
{
    struct buf text = {.max = CHAT_FILE_MOST};
    json_error_t why;
    json_t *v = NULL;
    if (!file_read(path, &text, e) &&
        !(v = json_loadb(text.data ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &why)))
        err_set(e, ERR_DATA, "%s is no conversation: a JSON array of messages was expected", log_safe(path));
    buf_free(&text);
    return v;
}

/* Goes on from these messages; takes them over. */
static int chat_take_messages(struct chat_session *t, json_t *messages, const char *path, struct err *e)
{
    if (!chat_is_conversation(messages)) {
        json_decref(messages);
        return err_set(e, ERR_DATA, "%s is no conversation: a JSON array of messages was expected",
                       log_safe(path));
    }
    chat_clear(t, NULL);
    if (!chat_load_images(t, messages)) {
        images_cut(t->images, 0);
        json_decref(messages);
        return err_set(e, ERR_DATA, "the images of %s cannot be read again", log_safe(path));
    }
    json_decref(t->messages);
    t->messages = messages;
    return 0;
}

void chat_load(struct chat_session *t, const char *path)
{
    struct err e = {0};
    if (!*path || !strcmp(path, "-")) { /* standard input is the chat itself */
        printf("/load wants a file name\n");
        return;
    }
    json_t *v = chat_read_json(path, &e);
    if (!v || chat_take_messages(t, v, path, &e))
        printf("%s\n", e.text);
    else
        printf("%zu messages read\n", json_array_size(t->messages));
}

/* ---- the last conversation ---- */

void chat_keep(const struct chat_session *t)
{
    char path[PATH_MAX];
    struct err e = {0};
    if (!t->o->history || chat_state_file(CHAT_LAST, path, &e))
        return;
    char model[PATH_MAX];
    const char *given = t->session->store->path;
    json_t *all =
        json_pack("{s:s,s:O}", "model", realpath(given, model) ? model : given, "messages", t->messages);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    mode_t before = umask(077);
    if (!text || path_write(path, text, strlen(text), &e))
        log_warn("this conversation is not kept for --continue: %s", text ? e.text : "out of memory");
    umask(before);
    mem_free(text);
    json_decref(all);
}

/* The conversation that was kept; NULL and an error. */
static json_t *chat_last(char path[PATH_MAX], struct err *e)
{
    if (chat_state_file(CHAT_LAST, path, e))
        return NULL;
    if (!path_is_file(path)) {
        err_set(e, ERR_USAGE, "there is no conversation to continue: %s is not there", log_safe(path));
        return NULL;
    }
    return chat_read_json(path, e);
}

int chat_last_model(char out[PATH_MAX], struct err *e)
{
    char path[PATH_MAX];
    json_t *v = chat_last(path, e);
    if (!v)
        return -1;
    const char *model = json_string_value(json_object_get(v, "model"));
    int failed = model ? path_make(out, e, "%s", model)
                       : err_set(e, ERR_DATA, "%s names no model: give one", log_safe(path));
    json_decref(v);
    return failed;
}

/* The last question and its answer, so that the user knows where the conversation is. */
static void chat_recall(const struct chat_session *t)
{
    size_t n = json_array_size(t->messages);
    for (size_t i = n > 2 ? n - 2 : 0; i < n; i++) {
        const json_t *m = json_array_get(t->messages, i), *content = json_object_get(m, "content"), *part;
        size_t k;
        bool user = chat_is(m, "user");
        struct buf text = {0}, out = {0};
        struct wrap w = {.width = t->o->wrap ? wrap_columns(STDOUT_FILENO) : 0};
        buf_str(&text, user ? ">>> " : "");
        buf_add(&text, json_string_value(content), json_string_length(content));
        json_array_foreach(content, k, part)
        {
            const json_t *s = json_object_get(part, "text");
            buf_add(&text, json_string_value(s), json_string_length(s));
        }
        wrap_feed(&w, text.data, text.len, &out);
        wrap_end(&w, &out);
        printf("%.*s\n", (int)out.len, out.data ? out.data : "");
        wrap_free(&w);
        buf_free(&text);
        buf_free(&out);
    }
}

int chat_resume(struct chat_session *t, struct err *e)
{
    char path[PATH_MAX];
    json_t *v = chat_last(path, e);
    if (!v)
        return -1;
    json_t *messages = json_deep_copy(json_object_get(v, "messages"));
    json_decref(v);
    if (chat_take_messages(t, messages, path, e))
        return -1;
    fprintf(stderr, "going on with %zu messages; /clear forgets them\n", json_array_size(t->messages));
    chat_recall(t);
    return 0;
}
