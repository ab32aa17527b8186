#define _GNU_SOURCE
#include "tool/line.h"

#include "base/mem.h"
#include "tool/interrupt.h"
#include "tool/tool.h"
#include "tool/wrap.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef QUERN_LIBEDIT
#include <histedit.h>

struct line {
    EditLine *edit;
    History *history;
    const char *prompt;
    line_complete *complete;
    bool pastes;         /* the terminal is in the mode of bracketed paste */
    bool begins;         /* nothing of the line has been read */
    char path[PATH_MAX]; /* "" = not kept */
};

static volatile sig_atomic_t line_resized;

static void line_on_resize(int signal)
{
    (void)signal;
    line_resized = 1;
    interrupt_wake();
}

/* Rows of the terminal above the cursor that the prompt and the text before the cursor take, as the terminal has broken
 * them again for its new width. */
static int line_rows(const struct line *l, const LineInfo *at, int width)
{
    int rows = 0, column = (int)strlen(l->prompt);
    mbstate_t state = {0};
    wchar_t c;
    for (const char *p = at->buffer; p < at->cursor;) {
        size_t n = mbrtowc(&c, p, (size_t)(at->cursor - p), &state);
        if (!n || n > MB_LEN_MAX)
            break;
        int w = wcwidth(c);
        column = c == '\n' ? 0 : column + (w > 0 ? w : 0);
        rows += c == '\n' || column > width;
        column = column > width ? w : column;
        p += n;
    }
    return rows;
}

/* Draws the line again for the new size of the terminal. */
static void line_redraw(EditLine *edit)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    line_resized = 0;
    int width = wrap_columns(STDOUT_FILENO), rows = width ? line_rows(l, el_line(edit), width) : 0;
    if (rows)
        printf("\033[%dA", rows);
    fputs("\r\033[J", stdout);
    fflush(stdout);
    el_resize(edit);
    el_set(edit, EL_REFRESH);
}

/* The terminal marks what is pasted while a line is read. */
static void line_pastes(struct line *l, bool on)
{
    if (on == l->pastes || !tool_colour(STDOUT_FILENO))
        return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
    l->pastes = on;
}

/* Whether the line begins with what was typed before its prompt was there. */
static bool line_typed_ahead(struct line *l)
{
    const bool begins = l->begins;
    l->begins = false;
    return begins && poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, 0) == 1;
}

/* Reads a character. A signal ends the wait: a new size of the terminal is taken up, and Ctrl-C ends the line. */
static int line_getc(EditLine *edit, wchar_t *out)
{
    enum { CTRL_D = 4 };
    mbstate_t state = {0};
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    line_pastes(l, true);
    const bool ahead = line_typed_ahead(l);
    for (char c;;) {
        if (line_resized)
            line_redraw(edit);
        if (interrupted()) {
            errno = EINTR;
            return -1;
        }
        if (!interrupt_wait(STDIN_FILENO))
            continue;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        if (!c && ahead) /* the terminal read lines then: that is what it makes of Ctrl-D */
            c = CTRL_D;
        size_t got = mbrtowc(out, &c, 1, &state);
        if (got == (size_t)-1)
            *out = 0xfffd;
        if (got != (size_t)-2)
            return 1;
    }
}

/* A terminal in the mode of bracketed paste sends ESC [ 200 ~ text ESC [ 201 ~: the text is inserted as it is. */
static unsigned char line_paste(EditLine *edit, int key)
{
    static const char end[] = "\033[201~";
    struct buf text = {.max = 16 << 20};
    wchar_t c;
    char bytes[MB_LEN_MAX + 1];
    (void)key;
    while (el_wgetc(edit, &c) == 1) {
        int n = wctomb(bytes, c == '\r' ? L'\n' : c ? c : 0xfffd);
        buf_add(&text, bytes, n > 0 ? (size_t)n : 0);
        size_t marked = sizeof end - 1;
        if (text.len >= marked && !memcmp(text.data + text.len - marked, end, marked)) {
            text.len -= marked;
            break;
        }
    }
    while (text.len && text.data[text.len - 1] == '\n')
        text.len--;
    buf_char(&text, 0);
    int failed = text.failed || (text.len > 1 && el_insertstr(edit, text.data));
    buf_free(&text);
    return failed ? CC_ERROR : CC_REFRESH;
}

static unsigned char line_tab(EditLine *edit, int key)
{
    struct line *l = NULL;
    struct buf insert = {0}, list = {0};
    const LineInfo *at = el_line(edit);
    (void)key;
    el_get(edit, EL_CLIENTDATA, &l);
    l->complete(at->buffer, (size_t)(at->cursor - at->buffer), &insert, &list);
    buf_char(&insert, 0);
    unsigned char done = insert.len > 1 && !el_insertstr(edit, insert.data) ? CC_REFRESH : CC_ERROR;
    if (list.len) {
        printf("\n%.*s", (int)list.len, list.data);
        fflush(stdout);
        done = CC_REDISPLAY;
    }
    buf_free(&insert);
    buf_free(&list);
    return done;
}

static void line_keys(struct line *l)
{
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->edit, EL_ADDFN, "paste", "insert what is pasted", line_paste);
    el_set(l->edit, EL_BIND, "\\e[200~", "paste", NULL);
    if (!l->complete)
        return;
    el_set(l->edit, EL_ADDFN, "complete", "complete a word", line_tab);
    el_set(l->edit, EL_BIND, "^I", "complete", NULL);
}

static char *line_prompt(EditLine *edit)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

struct line *line_open(const char *path, line_complete *complete)
{
    struct line *l = mem_zalloc(1, sizeof *l);
    if (!l)
        return NULL;
    tool_locale();
    l->complete = complete;
    snprintf(l->path, sizeof l->path, "%s", path ? path : "");
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
    el_set(l->edit, EL_GETCFN, line_getc);
    line_keys(l);
    el_source(l->edit, NULL);
    sigaction(SIGWINCH, &(struct sigaction){.sa_handler = line_on_resize}, NULL);
    if (l->path[0])
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
    l->begins = true;
    errno = 0;
    const char *text = el_gets(l->edit, &n);
    int why = errno;
    line_pastes(l, false);
    errno = why;
    if (!text || n <= 0) {
        if (errno != EINTR)
            return false;
        putchar('\n');
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

struct line *line_open(const char *path, line_complete *complete)
{
    (void)path, (void)complete;
    tool_locale();
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
