#include "tool/dropped.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* One word as a shell reads it: quotes and backslashes. 0: it has no end, or is longer than size. */
static size_t word_read(const char *text, char *out, size_t size)
{
    size_t n = 0, at = 0;
    char quote = 0;
    for (; text[at] && (quote || !strchr(" \t\n", text[at])); at++) {
        char c = text[at];
        if (c == quote) {
            quote = 0;
            continue;
        }
        if (!quote && (c == '\'' || c == '"')) {
            quote = c;
            continue;
        }
        if (c == '\\' && quote != '\'' && text[at + 1])
            c = text[++at];
        if (n + 1 >= size)
            return 0;
        out[n++] = c;
    }
    out[n] = 0;
    return quote ? 0 : at;
}

static bool is_image_file(const char *path)
{
    static const char *const ends[] = {".jpg", ".jpeg", ".png", ".webp", ".gif"};
    const char *dot = strrchr(path, '.');
    struct stat st;
    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++)
        if (!strcasecmp(dot, ends[i]))
            return !stat(path, &st) && S_ISREG(st.st_mode);
    return false;
}

size_t dropped_image(const char *text, char *path, size_t size)
{
    size_t lead = strspn(text, " \t"), n;
    if (!strncasecmp(text + lead, "file://", 7))
        lead += 7;
    n = word_read(text + lead, path, size);
    if (!n || !is_image_file(path))
        return 0;
    n += lead;
    return n + strspn(text + n, " \t\n");
}
