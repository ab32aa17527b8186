#include "base/json.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void json_line(struct json *j)
{
    if (!j->indent)
        return;
    buf_char(j->out, '\n');
    for (int i = 0; i < j->indent * j->depth; i++)
        buf_char(j->out, ' ');
}

/* Writes the separator before a value. */
static void json_before(struct json *j)
{
    if (j->after_key) {
        j->after_key = false;
        return;
    }
    if (!j->depth)
        return;
    if (j->filled[j->depth - 1])
        buf_char(j->out, ',');
    j->filled[j->depth - 1] = true;
    json_line(j);
}

void json_begin(struct json *j, char open)
{
    json_before(j);
    assert(j->depth < JSON_DEPTH);
    buf_char(j->out, open);
    j->filled[j->depth++] = false;
}

void json_end(struct json *j, char close)
{
    assert(j->depth > 0 && !j->after_key);
    bool filled = j->filled[--j->depth];
    if (filled)
        json_line(j);
    buf_char(j->out, close);
}

void json_escape(struct buf *out, const char *s, size_t n)
{
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = 0;
        len = utf8_decode(s + i, n - i, &cp);
        if (len && cp >= 0x20 && cp != '"' && cp != '\\' && cp != 0x7f)
            continue;
        buf_add(out, s + plain, i - plain);
        const char *at, *from = "\"\\\n\r\t\b\f", *to = "\"\\nrtbf";
        if (!len)
            buf_str(out, "\xef\xbf\xbd");
        else if (cp && (at = strchr(from, (int)cp)))
            buf_printf(out, "\\%c", to[at - from]);
        else
            buf_printf(out, "\\u%04x", cp);
        len = len ? len : 1;
        plain = i + len;
    }
    buf_add(out, s + plain, n - plain);
}

void json_strn(struct json *j, const char *s, size_t n)
{
    json_before(j);
    buf_char(j->out, '"');
    json_escape(j->out, s, n);
    buf_char(j->out, '"');
}

void json_str(struct json *j, const char *s)
{
    if (s)
        json_strn(j, s, strlen(s));
    else
        json_nil(j);
}

void json_key(struct json *j, const char *key)
{
    assert(!j->after_key);
    json_str(j, key);
    buf_str(j->out, j->indent ? ": " : ":");
    j->after_key = true;
}

void json_int(struct json *j, int64_t v)
{
    json_before(j);
    buf_printf(j->out, "%" PRId64, v);
}

void json_uint(struct json *j, uint64_t v)
{
    json_before(j);
    buf_printf(j->out, "%" PRIu64, v);
}

void json_num(struct json *j, double v)
{
    if (!isfinite(v)) {
        json_nil(j);
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    json_before(j);
    buf_str(j->out, text);
}

void json_f32(struct json *j, float v)
{
    if (!isfinite(v)) {
        json_nil(j);
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    json_before(j);
    buf_str(j->out, text);
}

void json_bool(struct json *j, bool v)
{
    json_before(j);
    buf_str(j->out, v ? "true" : "false");
}

void json_nil(struct json *j)
{
    json_before(j);
    buf_str(j->out, "null");
}
