/* Tab in the chat: names of commands, and paths of files. */
#define _GNU_SOURCE
#include "base/log.h"
#include "hub/path.h"
#include "tool/chat_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const chat_commands[] = {"/help", "/clear", "/system", "/set", "/image", "/save", "/load",
                                     "/edit", "/retry", "/stats",  "/bye", "/exit",  "/quit", NULL};
static const char *const file_commands[] = {"/image ", "/save ", "/load "};

enum { COMPLETE_LISTED = 100 };

/* The choices so far: how many, and the beginning that they share. */
struct choices {
    const char *begun; /* what all of them begin with */
    size_t n;
    struct buf common, list;
    size_t count;
};

static void choices_offer(struct choices *c, const char *name, bool folder)
{
    if (strncmp(name, c->begun, c->n))
        return;
    size_t k = 0, n = strlen(name);
    if (!c->count++) {
        buf_add(&c->common, name, n);
        buf_str(&c->common, folder ? "/" : "");
    }
    while (k < c->common.len && k < n && c->common.data[k] == name[k])
        k++;
    if (c->count > 1)
        c->common.len = k;
    if (c->count <= COMPLETE_LISTED)
        buf_printf(&c->list, "%s%s\n", log_safe(name), folder ? "/" : "");
}

/* What follows the beginning; a single choice ends with a blank, a folder does not. */
static void choices_take(struct choices *c, struct buf *insert, struct buf *list, bool escape)
{
    for (size_t i = c->n; i < c->common.len; i++) {
        if (escape && c->common.data[i] == ' ')
            buf_char(insert, '\\');
        buf_char(insert, c->common.data[i]);
    }
    if (c->count == 1 && c->common.len && c->common.data[c->common.len - 1] != '/')
        buf_char(insert, ' ');
    if (c->count > 1 && c->common.len <= c->n)
        buf_add(list, c->list.data, c->list.len);
    buf_free(&c->common);
    buf_free(&c->list);
}

/* The path before the cursor: its folder is read. ~/ is the user's home. */
static void complete_path(const char *text, size_t n, bool escape, struct buf *insert, struct buf *list)
{
    char typed[PATH_MAX], folder[PATH_MAX], path[PATH_MAX];
    struct err e = {0};
    const char *home = getenv("HOME");
    size_t at = 0;
    for (size_t i = 0; i < n && at + 1 < sizeof typed; i++) {
        i += escape && text[i] == '\\' && i + 1 < n;
        typed[at++] = text[i];
    }
    typed[at] = 0;
    char *slash = strrchr(typed, '/');
    const char *base = slash ? slash + 1 : typed;
    struct choices c = {.begun = base, .n = strlen(base)};
    struct path_list names = {0};
    int failed = !strncmp(typed, "~/", 2) && home
                     ? path_make(folder, &e, "%s/%.*s", home, (int)(base - typed - 2), typed + 2)
                     : path_make(folder, &e, "%.*s", slash ? (int)(base - typed) : 1, slash ? typed : ".");
    if (!failed && !path_list_entries(&names, folder, &e))
        for (size_t i = 0; i < names.count; i++)
            choices_offer(&c, names.names[i],
                          !path_make(path, &e, "%s/%s", folder, names.names[i]) && path_is_folder(path));
    path_list_free(&names);
    choices_take(&c, insert, list, escape);
}

void chat_complete(const char *text, size_t n, struct buf *insert, struct buf *list)
{
    for (size_t i = 0; i < sizeof file_commands / sizeof *file_commands; i++) {
        size_t k = strlen(file_commands[i]);
        if (n >= k && !memcmp(text, file_commands[i], k)) {
            complete_path(text + k, n - k, false, insert, list);
            return;
        }
    }
    if (n && text[0] == '/' && !memchr(text, ' ', n) && !memchr(text + 1, '/', n - 1)) {
        char begun[32];
        snprintf(begun, sizeof begun, "%.*s", (int)n, text);
        struct choices c = {.begun = begun, .n = n};
        for (size_t i = 0; chat_commands[i]; i++)
            choices_offer(&c, chat_commands[i], false);
        if (c.count) {
            choices_take(&c, insert, list, false);
            return;
        }
        buf_free(&c.list);
    }
    /* a word of the message that is a path: a file to be dropped on it */
    size_t from = n;
    while (from && (text[from - 1] != ' ' || (from > 1 && text[from - 2] == '\\')))
        from--;
    if (n > from && memchr(text + from, '/', n - from))
        complete_path(text + from, n - from, true, insert, list);
}
