#include "serve/http.h"

#include "base/num.h"
#include "serve/limit.h"
#include "serve/route.h"

#include <string.h>
#include <strings.h>

enum {
    HTTP_METHOD_MOST = 32,
    HTTP_CHUNK_LINE_MOST = 256,
    HTTP_KEEP_MEMORY = 64 << 10, /* larger buffers are given back between requests */
};

#define HTTP_LONG_PATH  "the path is longer than this server takes (limit uri)"
#define HTTP_LARGE_BODY "the body is larger than this server takes (limit body)"

static int http_bad(struct http *h, int status, const char *why)
{
    h->state = HTTP_BAD;
    h->status = status;
    h->why = why;
    h->keep = false;
    return -1;
}

/* A character of a token: names of methods and headers. */
static bool http_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool http_all_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!http_token((unsigned char)s[i]))
            return false;
    return n > 0;
}

/* ---- the request line ---- */

/* "http://host/path" is the same as "/path" to us. */
static int http_take_target(struct http *h, const char *line, size_t at, size_t n)
{
    const char *s = line + at;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || (unsigned char)s[i] >= 0x7f || s[i] == '#')
            return http_bad(h, 400, "the target of the request has a character that is not allowed there");
    if (n > 7 && !strncasecmp(s, "http://", 7)) {
        const char *slash = memchr(s + 7, '/', n - 7);
        if (!slash || slash == s + 7)
            return http_bad(h, 400, "the target of the request has no path");
        n -= (size_t)(slash - s);
        at += (size_t)(slash - s);
        s = slash;
    }
    bool star = n == 1 && s[0] == '*' && h->method.n == 7 && !memcmp(line, "OPTIONS", 7);
    if (!n || (s[0] != '/' && !star))
        return http_bad(h, 400, "the target of the request does not begin with a slash");
    h->target = (struct http_text){(uint32_t)at, (uint32_t)n};
    return 0;
}

/* METHOD SP target SP HTTP/1.1, with exactly these blanks. The line is at the start of the head. */
static int http_take_line(struct http *h, size_t n)
{
    const char *line = h->head.data, *first = memchr(line, ' ', n);
    if (!first || !http_all_token(line, (size_t)(first - line)))
        return http_bad(h, 400, "the first line is not METHOD PATH HTTP/1.1");
    if (first - line > HTTP_METHOD_MOST)
        return http_bad(h, 501, "there is no such method");
    size_t at = (size_t)(first - line) + 1;
    h->method = (struct http_text){0, (uint32_t)(at - 1)};
    const char *second = memchr(line + at, ' ', n - at);
    if (!second)
        return http_bad(h, 400, "the first line has no version");
    if ((size_t)(second - line) - at > limit_of(LIMIT_URI))
        return http_bad(h, 414, HTTP_LONG_PATH);
    const char *version = second + 1;
    size_t left = n - (size_t)(version - line);
    if (left != 8 || memcmp(version, "HTTP/", 5) || version[6] != '.' || version[5] < '0' ||
        version[5] > '9' || version[7] < '0' || version[7] > '9')
        return http_bad(h, 400, "the first line does not end with HTTP/1.1");
    if (version[5] != '1')
        return http_bad(h, 505, "only HTTP/1.1 and HTTP/1.0 are supported");
    h->old = version[7] == '0';
    h->keep = !h->old;
    h->state = HTTP_HEADERS;
    return http_take_target(h, line, at, (size_t)(second - line) - at);
}

/* ---- headers ---- */

static bool http_value_char(unsigned char c)
{
    return c == '\t' || (c >= ' ' && c != 0x7f);
}

/* Name, colon, value. 0 and the two texts, or bad. */
static int http_split(struct http *h, size_t at, size_t n, struct http_text *name, struct http_text *value)
{
    const char *s = h->head.data + at;
    if (s[0] == ' ' || s[0] == '\t')
        return http_bad(h, 400, "a header is folded over two lines");
    const char *colon = memchr(s, ':', n);
    if (!colon || !http_all_token(s, (size_t)(colon - s)))
        return http_bad(h, 400, "a header is not Name: value");
    size_t from = (size_t)(colon - s) + 1, to = n;
    for (size_t i = from; i < n; i++)
        if (!http_value_char((unsigned char)s[i]))
            return http_bad(h, 400, "a header's value has a control character");
    while (from < to && (s[from] == ' ' || s[from] == '\t'))
        from++;
    while (to > from && (s[to - 1] == ' ' || s[to - 1] == '\t'))
        to--;
    *name = (struct http_text){(uint32_t)at, (uint32_t)(colon - s)};
    *value = (struct http_text){(uint32_t)(at + from), (uint32_t)(to - from)};
    return 0;
}

static int http_take_header(struct http *h, size_t at, size_t n)
{
    struct http_text name, value;
    if (http_split(h, at, n, &name, &value))
        return -1;
    if (h->count == HTTP_FIELDS_MOST)
        return http_bad(h, 431, "there are more than 128 headers");
    h->fields[h->count].name = name;
    h->fields[h->count++].value = value;
    return 0;
}

static uint32_t http_times(const struct http *h, const char *name)
{
    uint32_t times = 0;
    size_t n = strlen(name);
    for (uint32_t i = 0; i < h->count; i++)
        times += h->fields[i].name.n == n && !strncasecmp(h->head.data + h->fields[i].name.at, name, n);
    return times;
}

const char *http_field(const struct http *h, const char *name)
{
    size_t n = strlen(name);
    for (uint32_t i = 0; i < h->count; i++)
        if (h->fields[i].name.n == n && !strncasecmp(h->head.data + h->fields[i].name.at, name, n))
            return h->head.data + h->fields[i].value.at;
    return NULL;
}

/* Whether a comma-separated list contains this word (lower case). */
static bool http_lists(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, " \t,");
        if (len == n && !strncasecmp(list, word, n))
            return true;
        list += len;
    }
    return false;
}

/* host[:port], where the host is a name, an IPv4 address or [IPv6]. */
static bool http_host(const char *s)
{
    size_t name = *s == '[' ? strspn(s + 1, "0123456789abcdefABCDEF:.") + 1
                            : strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._");
    if (*s == '[')
        name = name > 1 && s[name] == ']' ? name + 1 : 0;
    if (!name)
        return false;
    s += name;
    uint64_t port;
    return !*s || (*s == ':' && (!s[1] || num_u64(s + 1, strlen(s + 1), 65535, &port)));
}

static int http_check_length(struct http *h)
{
    const char *length = http_field(h, "content-length"), *coding = http_field(h, "transfer-encoding");
    if (http_times(h, "content-length") > 1 || http_times(h, "transfer-encoding") > 1)
        return http_bad(h, 400, "the length of the body is given twice");
    if (length && coding)
        return http_bad(h, 400, "the body has a length and is chunked: it can only be one of them");
    if (length) {
        size_t n = strlen(length);
        if (!n || strspn(length, "0123456789") != n)
            return http_bad(h, 400, "Content-Length is not a number");
        if (!num_u64(length, n, h->body_most, &h->body_length))
            return http_bad(h, 413, HTTP_LARGE_BODY);
        h->length = true;
    }
    if (coding && h->old)
        return http_bad(h, 400, "HTTP/1.0 has no chunked bodies");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return http_bad(h, *coding ? 501 : 400, "the only transfer coding is chunked");
    h->chunked = coding != NULL;
    if (!length && !coding && (http_is(h, "POST") || http_is(h, "PUT") || http_is(h, "PATCH")))
        return http_bad(h, 411, "a body needs a Content-Length, or to be chunked");
    return 0;
}

static int http_check_headers(struct http *h)
{
    uint32_t hosts = http_times(h, "host");
    const char *host = http_field(h, "host"), *expect = http_field(h, "expect");
    const char *connection = http_field(h, "connection"), *coding = http_field(h, "content-encoding");
    if (hosts > 1 || (!hosts && !h->old))
        return http_bad(h, 400, "there has to be one Host header");
    if (host && !http_host(host))
        return http_bad(h, 400, "the Host header is not a name or an address");
    if (http_check_length(h))
        return -1;
    if (coding && strcasecmp(coding, "identity") != 0)
        return http_bad(h, 415, "compressed bodies are not read");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return http_bad(h, 417, "the only expectation is 100-continue");
    h->expects = expect && !h->old && (h->chunked || h->body_length);
    if (http_lists(connection, "close"))
        h->keep = false;
    else if (h->old && http_lists(connection, "keep-alive"))
        h->keep = true;
    return 0;
}

/* The head is complete: NUL-terminates each part of it. */
static int http_end_headers(struct http *h)
{
    h->head.data[h->method.at + h->method.n] = 0;
    h->head.data[h->target.at + h->target.n] = 0;
    for (uint32_t i = 0; i < h->count; i++)
        h->head.data[h->fields[i].value.at + h->fields[i].value.n] = 0;
    h->body_most = route_body_most(http_target(h));
    if (http_check_headers(h))
        return -1;
    h->left = h->body_length;
    h->state = h->chunked ? HTTP_CHUNK_LINE : h->left ? HTTP_LENGTH : HTTP_DONE;
    h->line = h->head.len;
    return 0;
}

/* ---- chunks ---- */

/* Size in hexadecimal, then optional extensions (";name=value"), which are ignored. */
static int http_take_size(struct http *h, size_t at, size_t n)
{
    const char *s = h->head.data + at;
    uint64_t size = 0;
    size_t digits = 0;
    for (; digits < n && digits < 9; digits++) {
        char c = s[digits];
        int v = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (v < 0)
            break;
        size = 16 * size + (uint64_t)v;
    }
    if (!digits || (digits < n && digits < 9 && s[digits] != ';'))
        return http_bad(h, 400, "the size of a chunk is not a hexadecimal number");
    for (size_t i = digits; i < n; i++)
        if (!http_value_char((unsigned char)s[i]))
            return http_bad(h, 400, "the line of a chunk has a control character");
    if (digits == 9 || size > h->body_most - h->body.len)
        return http_bad(h, 413, HTTP_LARGE_BODY);
    h->left = size;
    h->state = size ? HTTP_CHUNK_DATA : HTTP_TRAILERS;
    return 0;
}

/* ---- bytes ---- */

/* A line without its end. */
static int http_take(struct http *h, size_t at, size_t n)
{
    struct http_text name, value;
    switch (h->state) {
    case HTTP_LINE:
        if (n)
            return http_take_line(h, n);
        if (h->skipped)
            return http_bad(h, 400, "empty lines instead of a request");
        h->skipped = true;
        h->head.len = 0;
        return 0;
    case HTTP_HEADERS:
        return n ? http_take_header(h, at, n) : http_end_headers(h);
    case HTTP_CHUNK_LINE:
        return http_take_size(h, at, n);
    case HTTP_CHUNK_END:
        h->state = HTTP_CHUNK_LINE;
        return n ? http_bad(h, 400, "a chunk is longer than its size says") : 0;
    default: /* trailers */
        if (n)
            return http_split(h, at, n, &name, &value);
        h->state = HTTP_DONE;
        return 0;
    }
}

/* Whether the unfinished line, n bytes so far, is too long. */
static int http_check_line(struct http *h, size_t n)
{
    if (h->state == HTTP_LINE && n > limit_of(LIMIT_URI) + HTTP_METHOD_MOST + 16)
        return http_bad(h, 414, HTTP_LONG_PATH);
    if ((h->state == HTTP_HEADERS || h->state == HTTP_TRAILERS) &&
        h->head_bytes + n > limit_of(LIMIT_HEADERS))
        return http_bad(h, 431, "the headers are longer than this server takes (limit headers)");
    if (h->state == HTTP_CHUNK_LINE && n > HTTP_CHUNK_LINE_MOST)
        return http_bad(h, 400, "the line of a chunk is too long");
    if (h->state == HTTP_CHUNK_END && n > 2)
        return http_bad(h, 400, "a chunk is longer than its size says");
    return 0;
}

/* Takes bytes of the current line; when its end is among them, the line. */
static size_t http_feed_line(struct http *h, const char *data, size_t n)
{
    enum http_state was = h->state;
    const char *end = memchr(data, '\n', n);
    size_t take = end ? (size_t)(end - data) + 1 : n;
    size_t most = limit_of(LIMIT_HEADERS) + limit_of(LIMIT_URI); /* no line is longer, whatever it is */
    if (take > most) {
        take = most;
        end = NULL;
    }
    if (!buf_add(&h->head, data, take)) {
        http_bad(h, 503, "out of memory");
        return take;
    }
    size_t at = h->line, length = h->head.len - at;
    if (http_check_line(h, length) || !end)
        return take;
    if (length < 2 || h->head.data[h->head.len - 2] != '\r') {
        http_bad(h, 400, "a line ends with LF alone; it has to be CR LF");
        return take;
    }
    h->line = h->head.len;
    if (was == HTTP_HEADERS || was == HTTP_TRAILERS)
        h->head_bytes += length;
    if (http_take(h, at, length - 2))
        return take;
    if (was != HTTP_LINE && was != HTTP_HEADERS) /* only the head is kept */
        h->head.len = at;
    h->line = h->head.len;
    return take;
}

static size_t http_feed_data(struct http *h, const char *data, size_t n)
{
    size_t take = n < h->left ? n : (size_t)h->left;
    if (!buf_add(&h->body, data, take))
        http_bad(h, 503, "out of memory");
    h->left -= take;
    if (!h->left && h->state != HTTP_BAD)
        h->state = h->state == HTTP_LENGTH ? HTTP_DONE : HTTP_CHUNK_END;
    return take;
}

size_t http_feed(struct http *h, const char *data, size_t n)
{
    size_t at = 0;
    while (at < n && h->state != HTTP_DONE && h->state != HTTP_BAD) {
        bool is_data = h->state == HTTP_LENGTH || h->state == HTTP_CHUNK_DATA;
        at += is_data ? http_feed_data(h, data + at, n - at) : http_feed_line(h, data + at, n - at);
    }
    return at;
}

static struct buf http_keep(struct buf b)
{
    if (b.cap > HTTP_KEEP_MEMORY)
        buf_free(&b);
    buf_clear(&b);
    return b;
}

void http_reset(struct http *h)
{
    struct buf head = http_keep(h->head), body = http_keep(h->body);
    *h = (struct http){.head = head, .body = body};
}

void http_free(struct http *h)
{
    buf_free(&h->head);
    buf_free(&h->body);
}

const char *http_method(const struct http *h)
{
    return h->state == HTTP_LINE || !h->method.n ? "" : h->head.data + h->method.at;
}

const char *http_target(const struct http *h)
{
    return h->state == HTTP_LINE || !h->target.n ? "" : h->head.data + h->target.at;
}

bool http_is(const struct http *h, const char *method)
{
    size_t n = strlen(method);
    return h->method.n == n && !memcmp(h->head.data + h->method.at, method, n);
}
