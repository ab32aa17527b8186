#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum log_level log_most = LOG_INFO;

void log_set_level(enum log_level most)
{
    log_most = most;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    static const char *const tag[] = {"", "warning: ", "", "debug: "};
    if (level > log_most)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "quern: %s%s\n", tag[level], line);
}

const char *log_safe_n(const char *s, unsigned long n)
{
    enum { RING = 8, MOST = 200 };
    static _Thread_local char ring[RING][MOST + 16];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % RING];
    unsigned long at = 0, i = 0;
    for (; i < n && at < MOST; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7f)
            at += (unsigned long)snprintf(out + at, 8, "\\x%02x", c);
        else
            out[at++] = (char)c;
    }
    /* never end inside a UTF-8 character */
    while (i < n && at && ((unsigned char)out[at - 1] & 0xc0) == 0x80)
        at--;
    if (i < n && at && (unsigned char)out[at - 1] >= 0xc0)
        at--;
    snprintf(out + at, 8, "%s", i < n ? "..." : "");
    return out;
}

const char *log_safe(const char *s)
{
    return s ? log_safe_n(s, strlen(s)) : "(none)";
}
