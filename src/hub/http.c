#define _GNU_SOURCE
#include "hub/http.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/num.h"
#include "hub/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- URLs ---- */

/* "https://host:port" of a URL into out, in lower case and always with the port. Ambiguous parts (a user, a
 * backslash, a blank) are refused. */
static int http_origin(const char *url, char *out, size_t size, struct err *e)
{
    bool secure = !strncasecmp(url, "https://", 8);
    if (!secure && strncasecmp(url, "http://", 7))
        return err_set(e, ERR_UNREACHABLE, "%s: only http and https are supported", log_safe(url));
    const char *host = url + (secure ? 8 : 7);
    size_t n = strcspn(host, "/?#");
    bool good = n > 0 && strlen(url) < HTTP_URL_MOST;
    for (const char *p = url; good && *p; p++)
        good = *p > 0x20 && *p < 0x7f && !strchr("\\\"<>^`{|}", *p) && !(p < host + n && *p == '@');
    const char *bracket = memchr(host, ']', n),
               *colon = memchr(bracket ? bracket : host, ':', n - (bracket ? (size_t)(bracket - host) : 0));
    int length = snprintf(out, size, "%s://%.*s%s", secure ? "https" : "http", (int)n, host,
                          colon    ? ""
                          : secure ? ":443"
                                   : ":80");
    if (!good || length < 0 || (size_t)length >= size)
        return err_set(e, ERR_UNREACHABLE, "'%s' is not a supported URL", log_safe(url));
    for (char *p = out; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    return 0;
}

static bool http_same_origin(const char *a, const char *b)
{
    char one[512], two[512];
    struct err ignored = {0};
    return !http_origin(a, one, sizeof one, &ignored) && !http_origin(b, two, sizeof two, &ignored) &&
           !strcmp(one, two);
}

int http_aim(struct http_request *r, const char *url, struct err *e)
{
    char origin[512];
    if (http_origin(url, origin, sizeof origin, e))
        return -1;
    snprintf(r->origin_url, sizeof r->origin_url, "%s", url);
    snprintf(r->url, sizeof r->url, "%s", url);
    r->hops = 0;
    r->reply = (struct http_reply){.linked_size = HTTP_UNKNOWN};
    return 0;
}

/* ---- headers ---- */

static void http_copy(char *out, size_t size, const char *s, size_t n)
{
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), s);
}

/* W/"abc" and "abc" are abc. */
static void http_etag(char *out, size_t size, const char *s, size_t n)
{
    if (n > 2 && !strncmp(s, "W/", 2))
        s += 2, n -= 2;
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"')
        s++, n -= 2;
    http_copy(out, size, s, n);
}

static uint64_t http_number(const char *s, size_t n)
{
    uint64_t v = HTTP_UNKNOWN;
    return num_u64(s, n, INT64_MAX, &v) ? v : HTTP_UNKNOWN;
}

/* bytes 0-99/1234 */
static void http_range(struct http_reply *r, const char *s, size_t n)
{
    const char *end = s + n, *dash = memchr(s, '-', n), *slash = memchr(s, '/', n);
    if (n < 6 || strncasecmp(s, "bytes ", 6) || !dash || !slash || dash > slash)
        return;
    r->range_from = http_number(s + 6, (size_t)(dash - s - 6));
    r->range_to = http_number(dash + 1, (size_t)(slash - dash - 1));
    r->range_of = http_number(slash + 1, (size_t)(end - slash - 1));
}

/* Seconds, or a date. */
static uint64_t http_retry_after(const char *s, size_t n)
{
    char text[64];
    struct tm date = {0};
    uint64_t seconds = http_number(s, n);
    http_copy(text, sizeof text, s, n);
    if (seconds == HTTP_UNKNOWN && strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &date)) {
        time_t then = timegm(&date), now = time(NULL);
        seconds = then > now ? (uint64_t)(then - now) : 0;
    }
    return seconds == HTTP_UNKNOWN ? 0 : seconds;
}

static void http_header(struct http_reply *r, const char *name, size_t length, const char *s, size_t n)
{
#define HTTP_IS(text) (length == sizeof text - 1 && !strncasecmp(name, text, length))
    if (HTTP_IS("content-length"))
        r->length = http_number(s, n);
    else if (HTTP_IS("content-range"))
        http_range(r, s, n);
    else if (HTTP_IS("etag"))
        http_etag(r->etag, sizeof r->etag, s, n);
    else if (HTTP_IS("x-linked-etag"))
        http_etag(r->linked_etag, sizeof r->linked_etag, s, n);
    else if (HTTP_IS("x-linked-size"))
        r->linked_size = http_number(s, n);
    else if (HTTP_IS("x-repo-commit"))
        http_copy(r->commit, sizeof r->commit, s, n);
    else if (HTTP_IS("retry-after"))
        r->retry_after = http_retry_after(s, n);
    else if (HTTP_IS("x-error-code"))
        http_copy(r->error_code, sizeof r->error_code, s, n);
    else if (HTTP_IS("x-error-message"))
        http_copy(r->error_message, sizeof r->error_message, s, n);
#undef HTTP_IS
}

/* A status line begins a new reply: clears the fields that only the last reply may set. */
static void http_fresh(struct http_reply *r)
{
    r->status = 0;
    r->length = r->range_from = r->range_to = r->range_of = HTTP_UNKNOWN;
    r->etag[0] = r->error_code[0] = r->error_message[0] = 0;
    r->retry_after = 0;
}

static size_t http_on_header(char *line, size_t size, size_t n, void *arg)
{
    struct http_request *r = arg;
    n *= size;
    r->reply.header_bytes += n;
    if (r->reply.header_bytes > HTTP_HEADERS_MOST) {
        err_set(&r->problem, ERR_UNREACHABLE, "the server sends more than %d bytes of headers",
                HTTP_HEADERS_MOST);
        return 0;
    }
    if (n > 5 && !strncmp(line, "HTTP/", 5)) {
        const char *blank = memchr(line, ' ', n);
        uint64_t status = 0;
        http_fresh(&r->reply);
        if (blank && blank + 4 <= line + n && num_u64(blank + 1, 3, 999, &status))
            r->reply.status = (long)status;
        return n;
    }
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return n;
    const char *s = colon + 1, *end = line + n;
    while (s < end && strchr(" \t", *s))
        s++;
    while (end > s && strchr(" \t\r\n", end[-1]))
        end--;
    http_header(&r->reply, line, (size_t)(colon - line), s, (size_t)(end - s));
    return n;
}

/* Bodies of redirects and errors are read and discarded, so that the connection can be reused. */
static size_t http_on_body(char *data, size_t size, size_t n, void *arg)
{
    enum { DROP_MOST = 1 << 20 };
    struct http_request *r = arg;
    n *= size;
    if (r->reply.status != 200 && r->reply.status != 206)
        return (r->dropped += n) > DROP_MOST ? 0 : n;
    return r->take && r->take(r->arg, data, n, &r->problem) ? 0 : n;
}

/* ---- transfers ---- */

int http_open(struct hub_http *h, const struct hub *hub, struct err *e)
{
    *h = (struct hub_http){.c = curl_get(e), .hub = hub};
    if (!h->c)
        return -1;
    if (!(h->multi = h->c->multi_init()))
        return err_memory(e, "libcurl", 4096);
    return 0;
}

void http_close(struct hub_http *h)
{
    if (h->multi)
        h->c->multi_cleanup(h->multi);
    h->multi = NULL;
}

static int http_headers(struct hub_http *h, struct http_request *r, struct err *e)
{
    char line[sizeof h->hub->token + 32];
    h->c->slist_free_all(r->headers);
    r->headers =
        h->c->slist_append(NULL, "Accept-Encoding: identity"); /* ranges count the file's own bytes */
    if (*h->hub->token && http_same_origin(r->url, h->hub->endpoint)) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", h->hub->token);
        struct curl_slist *more = r->headers ? h->c->slist_append(r->headers, line) : NULL;
        explicit_bzero(line, sizeof line);
        if (!more)
            return err_memory(e, "a request", sizeof line);
        r->headers = more;
    }
    return r->headers ? 0 : err_memory(e, "a request", sizeof line);
}

int http_start(struct hub_http *h, struct http_request *r, struct err *e)
{
    const struct curl *c = h->c;
    char range[64];
    if (!r->easy && !(r->easy = c->easy_init()))
        return err_memory(e, "libcurl", 4096);
    c->easy_reset(r->easy);
    if (http_headers(h, r, e))
        return -1;
    r->problem = (struct err){0};
    r->detail[0] = 0;
    r->reply.header_bytes = r->dropped = 0;
    http_fresh(&r->reply);
    c->easy_setopt(r->easy, CURLOPT_PRIVATE, r);
    c->easy_setopt(r->easy, CURLOPT_URL, r->url);
    c->easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(r->easy, CURLOPT_FOLLOWLOCATION, 0L);
    c->easy_setopt(r->easy, CURLOPT_HTTP_VERSION,
                   (long)CURL_HTTP_VERSION_1_1); /* a connection for each range */
    c->easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers);
    c->easy_setopt(r->easy, CURLOPT_USERAGENT, "quern/" QUERN_VERSION);
    c->easy_setopt(r->easy, CURLOPT_NOBODY, r->head ? 1L : 0L);
    c->easy_setopt(r->easy, CURLOPT_HEADERFUNCTION, http_on_header);
    c->easy_setopt(r->easy, CURLOPT_HEADERDATA, r);
    c->easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, http_on_body);
    c->easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    c->easy_setopt(r->easy, CURLOPT_ERRORBUFFER, r->detail);
    c->easy_setopt(r->easy, CURLOPT_BUFFERSIZE, 256L << 10);
    c->easy_setopt(r->easy, CURLOPT_FRESH_CONNECT, r->fresh ? 1L : 0L);
    c->easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT, (long)h->hub->patience);
    c->easy_setopt(r->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c->easy_setopt(r->easy, CURLOPT_LOW_SPEED_TIME, (long)h->hub->patience);
    if (*h->hub->authorities)
        c->easy_setopt(r->easy, CURLOPT_CAINFO, h->hub->authorities);
    if (r->to) {
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)r->from,
                 (unsigned long long)r->to - 1);
        c->easy_setopt(r->easy, CURLOPT_RANGE, range);
    }
    if (c->multi_add_handle(h->multi, r->easy))
        return err_set(e, ERR_UNREACHABLE, "libcurl does not take a request");
    return 0;
}

struct http_request *http_next(struct hub_http *h, int milliseconds, struct err *e)
{
    int running = 0, left = 0;
    CURLMcode bad = h->c->multi_perform(h->multi, &running);
    CURLMsg *m = bad ? NULL : h->c->multi_info_read(h->multi, &left);
    if (!bad && !m && milliseconds) {
        bad = h->c->multi_poll(h->multi, NULL, 0, milliseconds, NULL);
        bad = bad ? bad : h->c->multi_perform(h->multi, &running);
        m = bad ? NULL : h->c->multi_info_read(h->multi, &left);
    }
    if (bad)
        err_set(e, ERR_UNREACHABLE, "libcurl fails (%d)", (int)bad);
    if (!m || m->msg != CURLMSG_DONE)
        return NULL;
    struct http_request *r = NULL;
    CURL *easy = m->easy_handle;
    CURLcode result = m->data.result;
    h->c->easy_getinfo(easy, CURLINFO_PRIVATE, &r);
    r->result = result;
    h->c->multi_remove_handle(h->multi, easy);
    return r;
}

void http_stop(struct hub_http *h, struct http_request *r)
{
    if (r->easy) {
        h->c->multi_remove_handle(h->multi, r->easy);
        h->c->easy_cleanup(r->easy);
    }
    h->c->slist_free_all(r->headers);
    r->easy = NULL;
    r->headers = NULL;
}

/* ---- replies ---- */

static enum http_verdict http_redirected(struct http_request *r, const char *to, struct err *e)
{
    char origin[512];
    if (!to || r->hops == HTTP_HOPS) {
        err_set(e, ERR_UNREACHABLE, to ? "%s: more than %d redirects" : "%s: a redirect to nowhere",
                log_safe(r->origin_url), HTTP_HOPS);
        return HTTP_FAILED;
    }
    if (http_origin(to, origin, sizeof origin, e))
        return HTTP_FAILED;
    if (!strncasecmp(r->url, "https:", 6) && strncasecmp(to, "https:", 6)) {
        err_set(e, ERR_UNREACHABLE, "%s redirects from https to http, which is not followed",
                log_safe(r->origin_url));
        return HTTP_FAILED;
    }
    char next[HTTP_URL_MOST];
    snprintf(next, sizeof next, "%s", to); /* `to` belongs to the handle, and may point into r->url */
    snprintf(r->url, sizeof r->url, "%s", next);
    r->hops++;
    return HTTP_FOLLOW;
}

static enum http_verdict http_refused(const struct hub_http *h, struct http_request *r, struct err *e)
{
    long status = r->reply.status;
    const char *said = r->reply.error_message;
    bool hub = http_same_origin(r->url, h->hub->endpoint);
    bool gated = !strcmp(r->reply.error_code, "GatedRepo");
    const char *key = *h->hub->token ? "; the token of HF_TOKEN does not open it"
                                     : "; if it is private or gated, set HF_TOKEN to a token of yours";
    bool absent = status == 404 || status == 410 || !strcmp(r->reply.error_code, "RepoNotFound");
    if (absent)
        err_set(e, ERR_DATA, "%s is not there (%ld%s%s)%s", log_safe(r->origin_url), status,
                *said ? ": " : "", log_safe(said), hub ? key : "");
    else
        err_set(e, ERR_UNREACHABLE, "%s may not be fetched (%ld%s%s)%s", log_safe(r->origin_url), status,
                *said ? ": " : "", log_safe(said),
                gated ? "; accept its conditions on the Hub's page, and set HF_TOKEN"
                : hub ? key
                      : "");
    /* the signed URL has expired: the Hub gives a new one */
    return r->hops && !hub && (status == 401 || status == 403) ? HTTP_AGAIN : HTTP_FAILED;
}

static enum http_verdict http_verdict(const struct hub_http *h, struct http_request *r, struct err *e)
{
    long status = r->reply.status;
    if (r->problem.code) {
        err_set(e, r->problem.code, "%s", r->problem.text);
        return HTTP_FAILED;
    }
    if (r->result == CURLE_OK && (status == 200 || status == 206))
        return HTTP_DONE;
    char *to = NULL;
    if (status >= 300 && status < 400)
        h->c->easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &to);
    if (to || (r->result == CURLE_OK && status >= 300 && status < 400))
        return http_redirected(r, to, e);
    if (r->result != CURLE_OK && status < 400) {
        err_set(e, ERR_UNREACHABLE, "%s: %s", log_safe(r->url),
                r->detail[0] ? r->detail : h->c->easy_strerror(r->result));
        bool never = r->result == CURLE_PEER_FAILED_VERIFICATION || r->result == CURLE_SSL_CACERT_BADFILE;
        return never ? HTTP_FAILED : HTTP_AGAIN;
    }
    if (status == 408 || status == 429 || status >= 500) {
        err_set(e, ERR_UNREACHABLE, "%s answers %ld%s", log_safe(r->origin_url), status,
                status == 429 ? " (too many requests)" : "");
        if (r->reply.retry_after <= HTTP_WAIT_MOST)
            return HTTP_AGAIN;
        *e = (struct err){0};
        err_set(e, ERR_UNREACHABLE, "%s answers %ld and asks to wait for %llu seconds: try again then",
                log_safe(r->origin_url), status, (unsigned long long)r->reply.retry_after);
        return HTTP_FAILED;
    }
    return http_refused(h, r, e);
}

enum http_verdict http_judge(const struct hub_http *h, struct http_request *r, struct err *e)
{
    enum http_verdict v = http_verdict(h, r, e);
    r->fresh = v == HTTP_AGAIN || (v == HTTP_FOLLOW && r->fresh);
    if (v == HTTP_AGAIN) { /* the redirect's target may have caused the failure */
        snprintf(r->url, sizeof r->url, "%s", r->origin_url);
        r->hops = 0;
    }
    return v;
}

double http_delay(const struct http_request *r, int failures)
{
    double wait = 0.25;
    for (int i = 1; i < failures && wait < 16; i++)
        wait *= 2;
    double jitter =
        0.75 + 0.5 * (double)(random() % 1000) / 1000; /* jitter: clients do not retry all at once */
    return r->reply.retry_after ? (double)r->reply.retry_after : wait * jitter;
}

static int http_into_buf(void *arg, const void *data, size_t n, struct err *e)
{
    struct buf *b = arg;
    return buf_add(b, data, n) ? 0
                               : err_set(e, ERR_UNREACHABLE, "the answer is longer than %zu bytes", b->max);
}

static int http_attempts(struct hub_http *h, struct http_request *r, struct err *e)
{
    for (int failures = 0;;) {
        struct err why = {0};
        if (r->arg)
            buf_clear(r->arg);
        if (http_start(h, r, e))
            return -1;
        while (!http_next(h, 1000, e))
            if (e->code)
                return -1;
        bool known = r->head && r->reply.linked_etag[0] && r->reply.linked_size != HTTP_UNKNOWN;
        if (known && r->reply.status < 400)
            return 0;
        switch (http_judge(h, r, &why)) {
        case HTTP_DONE:
            return 0;
        case HTTP_FOLLOW:
            continue;
        case HTTP_FAILED:
            return err_set(e, why.code, "%s", why.text);
        case HTTP_AGAIN:;
            bool unreachable = r->result == CURLE_COULDNT_RESOLVE_HOST || r->result == CURLE_COULDNT_CONNECT;
            if (++failures > (unreachable && h->hub->retries ? 1 : h->hub->retries))
                return err_set(e, why.code, "%s", why.text);
            log_debug("%s; attempt %d of %d", why.text, failures + 1, h->hub->retries + 1);
            double wait = http_delay(r, failures);
            nanosleep(&(struct timespec){(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)}, NULL);
        }
    }
}

int http_fetch(struct hub_http *h, const char *url, struct buf *body, struct http_reply *reply, struct err *e)
{
    struct http_request r = {.head = !body, .take = http_into_buf, .arg = body};
    int bad = http_aim(&r, url, e) || http_attempts(h, &r, e);
    *reply = r.reply;
    http_stop(h, &r);
    return bad ? -1 : 0;
}
