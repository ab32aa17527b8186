#define _GNU_SOURCE
#include "tool/wrap.h"

#include "base/utf8.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

enum { WRAP_LEAST = 16, WRAP_TAB = 8 };

int wrap_columns(int fd)
{
    struct winsize w;
    return isatty(fd) && !ioctl(fd, TIOCGWINSZ, &w) && w.ws_col >= WRAP_LEAST ? w.ws_col : 0;
}

/* Closing punctuation that does not begin a line. */
static bool wrap_closes(uint32_t c)
{
    static const uint16_t closing[] = {'!',    ')',    ',',    '.',    ':',    ';',    '?',    ']',    '}',
                                       0x2019, 0x201d, 0x2026, 0x3001, 0x3002, 0x3009, 0x300b, 0x300d, 0x300f,
                                       0x3011, 0x3015, 0x3017, 0x30fb, 0x30fc, 0xff01, 0xff09, 0xff0c, 0xff0e,
                                       0xff1a, 0xff1b, 0xff1f, 0xff3d, 0xff5d, 0xff61, 0xff63, 0xff64};
    for (size_t i = 0; i < sizeof closing / sizeof *closing; i++)
        if (c == closing[i])
            return true;
    return false;
}

/* A character that lines may break before and after: wide, and not Hangul, whose words have blanks between them. */
static bool wrap_is_wide(uint32_t c, int width)
{
    bool hangul =
        (c >= 0x1100 && c <= 0x11ff) || (c >= 0x3130 && c <= 0x318f) || (c >= 0xac00 && c <= 0xd7ff);
    return width == 2 && !hangul;
}

static void wrap_newline(struct wrap *w, struct buf *out)
{
    buf_char(out, '\n');
    w->column = 0;
    w->blanks = 0;
}

/* Writes the blanks and the word, on this line or the next. */
static void wrap_word(struct wrap *w, struct buf *out)
{
    if (!w->word.len)
        return;
    bool fence = !w->begun && w->word.len >= 3 && !memcmp(w->word.data, "```", 3);
    if (fence)
        w->code = !w->code;
    bool fits = !w->width || w->code || w->column + w->blanks + w->word_width <= w->width;
    if (!fits && w->column)
        wrap_newline(w, out);
    for (; w->blanks; w->blanks--, w->column++)
        buf_char(out, ' ');
    buf_add(out, w->word.data, w->word.len);
    w->column += w->word_width;
    w->begun = true;
    w->wide = false;
    w->word_width = 0;
    buf_clear(&w->word);
}

/* One character of a word. */
static void wrap_letter(struct wrap *w, uint32_t c, const char *text, size_t n, struct buf *out)
{
    int width = c < 0x80 ? 1 : wcwidth((wchar_t)c);
    if (c < ' ' || width < 0) {
        text = "\xef\xbf\xbd";
        n = 3;
        width = 1;
    }
    bool wide = wrap_is_wide(c, width);
    if ((wide || w->wide) && width && !wrap_closes(c))
        wrap_word(w, out);
    /* a word that no line holds is cut at the end of this one */
    if (w->width && !w->code && w->word.len && w->word_width + width > w->width)
        wrap_word(w, out);
    buf_add(&w->word, text, n);
    w->word_width += width;
    w->wide = wide || (w->wide && (!width || wrap_closes(c)));
}

static void wrap_character(struct wrap *w, uint32_t c, const char *text, size_t n, struct buf *out)
{
    if (c == '\n') {
        wrap_word(w, out);
        wrap_newline(w, out);
        w->begun = false;
    } else if (c == ' ' || c == '\t') {
        wrap_word(w, out);
        if (w->code)
            buf_char(out, (char)c);
        else
            w->blanks += c == ' ' ? 1 : WRAP_TAB - (w->column + w->blanks) % WRAP_TAB;
    } else if (c != '\r')
        wrap_letter(w, c, text, n, out);
}

void wrap_feed(struct wrap *w, const char *text, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t c;
        w->part[w->part_n++] = text[i];
        size_t whole = utf8_decode(w->part, w->part_n, &c);
        if (!whole && utf8_partial(w->part, w->part_n) == w->part_n)
            continue;
        if (whole)
            wrap_character(w, c, w->part, whole, out);
        else
            wrap_character(w, 0xfffd, "\xef\xbf\xbd", 3, out);
        i -= !whole && w->part_n > 1; /* this byte may begin the next character */
        w->part_n = 0;
    }
}

void wrap_end(struct wrap *w, struct buf *out)
{
    if (w->part_n)
        wrap_character(w, 0xfffd, "\xef\xbf\xbd", 3, out);
    w->part_n = 0;
    wrap_word(w, out);
}

void wrap_free(struct wrap *w)
{
    buf_free(&w->word);
    *w = (struct wrap){0};
}
