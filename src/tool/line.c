#define _GNU_SOURCE
#include "tool/line.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ~/.local/state/quern/history, by the XDG rules; false where there is no home. */
static bool line_history_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && *state == '/')
        n = snprintf(path, size, "%s/quern", state);
    else if (home)
        n = snprintf(path, size, "%s/.local/state/quern", home);
    if (n < 0 || (size_t)n + 16 >= size)
        return false;
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    mkdir(path, 0700);
    memcpy(path + n, "/history", sizeof "/history");
    return true;
}

#ifdef QUERN_LIBEDIT
#include <histedit.h>

struct line {
    EditLine *edit;
    History *history;
    const char *prompt;
    char path[PATH_MAX]; /* "" = not kept */
};

static char *line_prompt(EditLine *edit)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

struct line *line_open(void)
{
    struct line *l = mem_zalloc(1, sizeof *l);
    if (!l)
        return NULL;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    HistEvent ev;
    l->history = history_init();
    l->edit = el_init("quern", stdin, stdout, stderr);
    if (!l->history || !l->edit) {
        line_close(l);
        return NULL;
    }
    history(l->history, &ev, H_SETSIZE, 1000);
    history(l->history, &ev, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, line_prompt);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_HIST, history, l->history);
    el_source(l->edit, NULL);
    if (line_history_path(l->path, sizeof l->path))
        history(l->history, &ev, H_LOAD, l->path);
    return l;
}

void line_close(struct line *l)
{
    if (!l)
        return;
    HistEvent ev;
    if (l->history && l->path[0])
        history(l->history, &ev, H_SAVE, l->path);
    if (l->edit)
        el_end(l->edit);
    if (l->history)
        history_end(l->history);
    mem_free(l);
}

bool line_read(struct line *l, const char *prompt, struct buf *out)
{
    int n = 0;
    buf_clear(out);
    l->prompt = prompt;
    errno = 0;
    const char *text = el_gets(l->edit, &n);
    if (!text || n <= 0) {
        if (errno != EINTR)
            return false;
        putchar('\n');
        el_set(l->edit, EL_REFRESH);
        return true;
    }
    if (text[n - 1] == '\n')
        n--;
    buf_add(out, text, (size_t)n);
    return true;
}

void line_remember(struct line *l, const char *text)
{
    HistEvent ev;
    history(l->history, &ev, H_ENTER, text);
}

#else

struct line {
    int unused;
};

struct line *line_open(void)
{
    return mem_zalloc(1, sizeof(struct line));
}

void line_close(struct line *l)
{
    mem_free(l);
}

bool line_read(struct line *l, const char *prompt, struct buf *out)
{
    (void)l;
    buf_clear(out);
    fputs(prompt, stdout);
    fflush(stdout);
    errno = 0;
    int c;
    while ((c = getchar()) != EOF && c != '\n')
        buf_char(out, (char)c);
    bool interrupted = c == EOF && errno == EINTR;
    clearerr(stdin);
    return c == '\n' || out->len || interrupted;
}

void line_remember(struct line *l, const char *text)
{
    (void)l, (void)text;
}

#endif
