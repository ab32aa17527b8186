/* Log messages: to stderr, one line each, after "quern: ". */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct buf;

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level most);
bool log_is_on(enum log_level level);
/* One JSON object a line instead: {"time", "level", "message", ...}. */
void log_set_json(bool on);
bool log_is_json(void);
/* Lines go there, without "quern: ", in place of stderr; NULL = to stderr. Set it before other threads log. */
void log_set_sink(void (*sink)(void *arg, enum log_level level, const char *line), void *arg);
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/* A message with facts: in a line of text " name=value" each, in JSON members. text NULL: it is the number. */
struct log_field {
    const char *name, *text;
    double number;
};
void log_fields(enum log_level level, const char *message, const struct log_field *fields, size_t count);

/* A name from a file or a person, made fit to print: control characters escaped, cut at about 200
 * bytes. The result lives in a ring of eight per thread: enough for one message. */
const char *log_safe(const char *s);
const char *log_safe_n(const char *s, unsigned long n);
/* The same, whole: for paths and other texts that people copy. */
void log_safe_add(struct buf *out, const char *s);
