#include "base/log.h"

#include "base/buf.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static enum log_level log_most = LOG_INFO;
static bool log_json;
static void (*log_sink)(void *arg, enum log_level level, const char *line);
static void *log_sink_arg;

void log_set_level(enum log_level most)
{
    log_most = most;
}

void log_set_sink(void (*sink)(void *arg, enum log_level level, const char *line), void *arg)
{
    log_sink = sink;
    log_sink_arg = arg;
}

bool log_is_on(enum log_level level)
{
    return level <= log_most;
}

void log_set_json(bool on)
{
    log_json = on;
}

bool log_is_json(void)
{
    return log_json;
}

static void log_text(struct buf *out, enum log_level level, const char *message, const struct log_field *f,
                     size_t count)
{
    static const char *const tag[] = {"", "warning: ", "", "debug: "};
    buf_printf(out, "%s%s%s", log_sink ? "" : "quern: ", log_sink ? "" : tag[level], message);
    for (size_t i = 0; i < count; i++)
        if (f[i].text)
            buf_printf(out, " %s=%s", f[i].name, log_safe(f[i].text));
        else
            buf_printf(out, " %s=%.15g", f[i].name, f[i].number);
}

static void log_object(struct buf *out, enum log_level level, const char *message, const struct log_field *f,
                       size_t count)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    struct json j = {.out = out};
    struct timespec now;
    struct tm tm;
    char day[32], stamp[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(stamp, sizeof stamp, "%s.%03ldZ", day, now.tv_nsec / 1000000);
    json_begin(&j, '{');
    json_key(&j, "time"), json_str(&j, stamp);
    json_key(&j, "level"), json_str(&j, names[level]);
    json_key(&j, "message"), json_str(&j, message);
    for (size_t i = 0; i < count; i++) {
        json_key(&j, f[i].name);
        if (f[i].text)
            json_str(&j, f[i].text);
        else
            json_num(&j, f[i].number);
    }
    json_end(&j, '}');
}

void log_fields(enum log_level level, const char *message, const struct log_field *fields, size_t count)
{
    struct buf line = {0};
    if (level > log_most)
        return;
    (log_json ? log_object : log_text)(&line, level, message, fields, count);
    if (log_sink) {
        log_sink(log_sink_arg, level, line.failed ? message : line.data);
        buf_free(&line);
        return;
    }
    buf_str(&line, "\n"); /* one write: lines of several threads do not mix */
    if (line.failed)
        fprintf(stderr, "quern: %s\n", message);
    else
        fwrite(line.data, 1, line.len, stderr);
    buf_free(&line);
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if (level > log_most)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_fields(level, line, NULL, 0);
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

void log_safe_add(struct buf *out, const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            buf_printf(out, "\\x%02x", (unsigned char)*s);
        else
            buf_char(out, *s);
}

const char *log_safe(const char *s)
{
    return s ? log_safe_n(s, strlen(s)) : "(none)";
}
