/* Connections: bytes in, requests out; replies in, bytes out; deadlines. */
#define _GNU_SOURCE
#include "serve/conn.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/auth.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/http.h"
#include "serve/limit.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/tls.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CONN_INPUT_MOST = 256 << 10,  /* bytes of pipelined requests behind the current one */
    CONN_OUTPUT_MOST = 256 << 10, /* bytes of a stream's output: above, the stream waits for the client */
    CONN_RETRY = 300,             /* seconds: what takes longer a client need not try again itself */
    CONN_LINGER = 2,              /* seconds */
    CONN_SENDING = 10,            /* seconds that a client gets to read a reply before it counts as idle */
    CONN_RESERVE = 16,            /* connections above the limit, for probes */
};

enum { PHASE_IDLE, PHASE_HEAD, PHASE_BODY };

static const char *conn_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {411, "Length Required"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"},
                   {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}

/* ---- replies ---- */

static void conn_write(struct conn *c, const void *data, size_t n)
{
    bufferevent_write(c->bev, data, n);
    c->last_sent = clock_now();
}

bool conn_is_anthropic(const struct conn *c)
{
    return (c->route && c->route->api == API_ANTHROPIC) ||
           (c->http.state == HTTP_DONE && http_field(&c->http, "anthropic-version"));
}

/* length -1: it is not known. */
static void conn_head(struct conn *c, int status, const char *type, int64_t length)
{
    struct buf out = {0};
    char date[64];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (c->server->draining || (length < 0 && c->http.old))
        c->http.keep = false;
    buf_printf(&out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: quern\r\nx-request-id: %s\r\n", status,
               conn_reason(status), date, c->id);
    if (conn_is_anthropic(c))
        buf_printf(&out, "request-id: %s\r\n", c->id);
    if (type)
        buf_printf(&out, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n",
                   type);
    if (c->headers)
        buf_str(&out, c->headers);
    c->headers = NULL;
    if (length >= 0 && status != 204)
        buf_printf(&out, "Content-Length: %lld\r\n", (long long)length);
    else if (length < 0)
        buf_printf(&out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s",
                   c->http.old ? "" : "Transfer-Encoding: chunked\r\n");
    const char *origin = c->origin_ok ? http_field(&c->http, "origin") : NULL;
    if (origin)
        buf_printf(&out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", origin);
    if (origin && http_is(&c->http, "OPTIONS"))
        buf_str(&out, "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
                      "Access-Control-Allow-Headers: *, Authorization\r\nAccess-Control-Max-Age: 600\r\n");
    if (status == 429 || status == 503)
        buf_printf(&out, "Retry-After: %u\r\n", c->retry ? c->retry : 1);
    if ((status == 429 && c->retry > CONN_RETRY) || status == 500 || status == 501 || status == 505 ||
        status == 507)
        buf_str(&out, "x-should-retry: false\r\n");
    if (status == 401)
        buf_str(&out, "WWW-Authenticate: Bearer\r\n");
    if (status == 405)
        buf_str(&out, "Allow: GET, HEAD, POST, OPTIONS\r\n");
    buf_printf(&out, "Connection: %s\r\n\r\n", c->http.keep ? "keep-alive" : "close");
    if (out.failed)
        c->http.keep = false;
    else
        conn_write(c, out.data, out.len);
    buf_free(&out);
    uint32_t row = c->route ? (uint32_t)(c->route - route_table) : (uint32_t)route_count;
    metrics_request(&c->server->metrics, row, status);
}

static void conn_close_when_sent(struct conn *c)
{
    c->closing = true;
    if (evbuffer_get_length(bufferevent_get_output(c->bev)))
        return;
    /* closing at once with bytes unread would make the other side lose the reply */
    tls_goodbye(c->bev);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    c->lingering = true;
    c->since = clock_now();
}

/* A body with a limit of its own (a file) has to come with a key, where there are keys: before it is read. */
static void conn_check_large(struct conn *c)
{
    if (c->http.body_most == limit_of(LIMIT_BODY) || auth_key(c))
        return;
    c->http.state = HTTP_BAD;
    c->http.status = 401;
    c->http.why = "the API key is missing or wrong: Authorization: Bearer KEY";
    c->http.keep = false;
}

/* Limits the memory of all bodies together. */
static void conn_count_body(struct conn *c)
{
    if (server_charge(c->server, &c->charged, c->http.body.cap) || c->http.state == HTTP_BAD)
        return;
    c->http.state = HTTP_BAD;
    c->http.status = 503;
    c->http.why = "too many large requests at once";
    c->http.keep = false;
}

/* On to the next request. */
static void conn_next(struct conn *c)
{
    bool keep = c->http.keep;
    http_reset(&c->http);
    conn_count_body(c);
    c->route = NULL;
    c->retry = 0;
    c->streaming = c->continued = c->origin_ok = false;
    c->phase = PHASE_IDLE;
    c->since = clock_now();
    if (!keep)
        conn_close_when_sent(c);
    else if (c->request == NULL) /* pipelined ones: from the loop, not from here */
        bufferevent_trigger(c->bev, EV_READ, BEV_OPT_DEFER_CALLBACKS);
}

/* Logs no prompt, no key and no path of the client: only the table's route. */
static void conn_log(const struct conn *c, int status)
{
    const struct log_field fields[] = {
        {.name = "id", .text = c->id},
        {.name = "method", .text = c->route ? c->route->method : "-"},
        {.name = "route", .text = c->route ? c->route->path : "-"},
        {.name = "status", .number = status},
        {.name = "ms", .number = round(1e4 * (clock_now() - c->started)) / 10},
        {.name = "key", .number = c->key},
        {.name = "stream", .number = c->streaming},
    };
    log_fields(log_is_json() ? LOG_INFO : LOG_DEBUG, "request", fields, sizeof fields / sizeof *fields);
}

void conn_reply(struct conn *c, int status, const char *type, const struct buf *body)
{
    bool lost = body && body->failed;
    size_t n = body && !lost ? body->len : 0;
    conn_head(c, lost ? 503 : status, type, (int64_t)n);
    if (n && !http_is(&c->http, "HEAD"))
        conn_write(c, body->data, n);
    conn_log(c, status);
    conn_next(c);
}

void conn_fail(struct conn *c, const struct failure *f)
{
    struct buf out = {0};
    c->retry = f->retry;
    bool anthropic = conn_is_anthropic(c) && !(c->route && c->route->api != API_OPENAI);
    (anthropic ? format_of(API_ANTHROPIC) : format_for(c->route))->error(f, &out);
    conn_reply(c, f->status, "application/json", &out);
    buf_free(&out);
}

void conn_failf(struct conn *c, int status, const char *code, const char *fmt, ...)
{
    struct failure f = {.status = status, .code = code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f.err.text, sizeof f.err.text, fmt, ap);
    va_end(ap);
    conn_fail(c, &f);
}

static void conn_stream_begin(struct conn *c, const char *type)
{
    conn_head(c, 200, type, -1);
    c->streaming = true;
}

static void conn_stream_add(struct conn *c, const char *data, size_t n)
{
    char size[24];
    if (!n || http_is(&c->http, "HEAD"))
        return;
    if (c->http.old) {
        conn_write(c, data, n);
        return;
    }
    conn_write(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    conn_write(c, data, n);
    conn_write(c, "\r\n", 2);
}

static void conn_stream_end(struct conn *c)
{
    if (!c->http.old && !http_is(&c->http, "HEAD"))
        conn_write(c, "0\r\n\r\n", 5);
    conn_log(c, 200);
    conn_next(c);
}

/* The client reads too slowly: wait. */
static bool conn_is_full(const struct conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev)) > CONN_OUTPUT_MOST;
}

/* ---- the recipient of a request ---- */

static bool conn_client_full(const void *client)
{
    return conn_is_full(client);
}

static void conn_client_add(void *client, const struct request *a, const char *data, size_t n)
{
    struct conn *c = client;
    if (!c->streaming)
        conn_stream_begin(c, a->type ? a->type : format_for(a->route)->type);
    conn_stream_add(c, data, n);
}

static void conn_client_end(void *client, const char *data, size_t n)
{
    struct conn *c = client;
    c->request = NULL;
    conn_stream_add(c, data, n);
    conn_stream_end(c);
}

static void conn_client_reply(void *client, const struct buf *body)
{
    struct conn *c = client;
    c->request = NULL;
    conn_reply(c, 200, "application/json", body);
}

static void conn_client_fail(void *client, const struct route *r, const struct failure *f)
{
    struct conn *c = client;
    struct buf out = {0};
    c->request = NULL;
    if (!c->streaming) {
        conn_fail(c, f);
        return;
    }
    if (r->light) { /* no stream of events: the client sees that it has no end */
        conn_free(c);
        return;
    }
    format_for(r)->broken(f, &out);
    conn_client_end(c, out.data, out.failed ? 0 : out.len);
    buf_free(&out);
}

const struct recipient conn_recipient = {.full = conn_client_full,
                                         .add = conn_client_add,
                                         .end = conn_client_end,
                                         .reply = conn_client_reply,
                                         .fail = conn_client_fail};

/* ---- requests ---- */

static void conn_phase(struct conn *c)
{
    enum http_state s = c->http.state;
    int phase = s > HTTP_HEADERS ? PHASE_BODY : s == HTTP_LINE && !c->http.head.len ? PHASE_IDLE : PHASE_HEAD;
    if (phase != c->phase)
        c->since = clock_now();
    if (phase == PHASE_BODY && c->phase != phase && s != HTTP_BAD)
        conn_check_large(c);
    c->phase = phase;
    if (c->http.expects && phase == PHASE_BODY && s < HTTP_DONE && !c->continued) {
        c->continued = true;
        if (!c->http.body.len)
            conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
}

/* Parses the received bytes; at most one request, since a deferred call handles the next. */
static void conn_read(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (c->closing) {
        evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    struct evbuffer_iovec part;
    while (!c->request && evbuffer_peek(in, -1, NULL, &part, 1) > 0 && c->http.state < HTTP_DONE) {
        evbuffer_drain(in, http_feed(&c->http, part.iov_base, part.iov_len));
        conn_count_body(c);
        conn_phase(c);
    }
    if (c->request || c->http.state < HTTP_DONE)
        return;
    c->started = clock_now();
    server_name(c->id, sizeof c->id, "req-");
    if (c->http.state == HTTP_BAD)
        conn_failf(c, c->http.status, NULL, "%s", c->http.why);
    else
        route_request(c);
}

static void conn_written(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    (void)bev;
    if (c->closing && !c->lingering)
        conn_close_when_sent(c);
    else if (c->request && c->streaming && c->request->arrived)
        request_chunk(c->request);
}

static void conn_event(struct bufferevent *bev, short what, void *arg)
{
    struct conn *c = arg;
    bool ended = what & BEV_EVENT_EOF;
    if (what & BEV_EVENT_CONNECTED) /* the handshake of TLS is done */
        return;
    /* a client that has sent all and waits for the reply */
    if (ended && !c->request && !c->lingering && evbuffer_get_length(bufferevent_get_output(bev))) {
        c->closing = true;
        return;
    }
    conn_free(c);
}

/* The same for all of an IPv4 address, and of an IPv6 network of 64 bits. */
static uint8_t conn_address(const struct sockaddr *from)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)from;
    uint64_t bits = 0;
    if (from && from->sa_family == AF_INET)
        memcpy(&bits, &four->sin_addr, sizeof four->sin_addr);
    else if (from && from->sa_family == AF_INET6)
        memcpy(&bits, &six->sin6_addr, sizeof bits);
    return (uint8_t)((bits * 0x9e3779b97f4a7c15u) >> 56);
}

/* Whether a request is running or a reply is being sent. */
static bool conn_is_busy(const struct conn *c, double now)
{
    bool pending = evbuffer_get_length(bufferevent_get_output(c->bev)) > 0;
    return c->request || (pending && now - c->last_sent < CONN_SENDING);
}

bool conn_evict(struct server *s)
{
    struct conn *found = NULL;
    double now = clock_now();
    for (struct conn *c = s->conns; c; c = c->next) {
        uint32_t own = s->conn_by_address[c->address], most = found ? s->conn_by_address[found->address] : 0;
        if (!conn_is_busy(c, now) && (own > most || (own == most && c->since <= found->since)))
            found = c;
    }
    if (found)
        conn_free(found);
    return found;
}

static void conn_refuse(evutil_socket_t fd)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
                               "Connection: close\r\n\r\n";
    ssize_t n = send(fd, full, sizeof full - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
    evutil_closesocket(fd);
}

static bool conn_is_local(const struct sockaddr *from)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)from;
    if (!from || from->sa_family == AF_UNIX)
        return true;
    if (from->sa_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    const struct in6_addr *at = &six->sin6_addr;
    return from->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(at) || (IN6_IS_ADDR_V4MAPPED(at) && at->s6_addr[12] == IN_LOOPBACKNET));
}

void conn_open(struct server *s, evutil_socket_t fd, const struct sockaddr *from, bool metrics)
{
    if (s->conn_count >= s->conn_most)
        conn_evict(s);
    bool reserve = s->conn_count >= s->conn_most;
    struct conn *c = s->conn_count < s->conn_most + CONN_RESERVE ? mem_zalloc(1, sizeof *c) : NULL;
    struct bufferevent *bev = !c ? NULL
                              : s->tls && !metrics
                                  ? tls_accept(s->tls, s->base, fd)
                                  : bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) {
        conn_refuse(fd);
        mem_free(c);
        return;
    }
    *c = (struct conn){.server = s,
                       .bev = bev,
                       .since = clock_now(),
                       .next = s->conns,
                       .link = &s->conns,
                       .reserve = reserve,
                       .metrics = metrics,
                       .local = conn_is_local(from),
                       .address = conn_address(from)};
    if (c->next)
        c->next->link = &c->next;
    s->conns = c;
    s->conn_count++;
    s->conn_by_address[c->address]++;
    struct timeval stall = {.tv_sec = (time_t)limit_of(LIMIT_WRITE_SECONDS)};
    bufferevent_setcb(bev, conn_read, conn_written, conn_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, CONN_INPUT_MOST);
    bufferevent_set_timeouts(bev, NULL, &stall);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

void conn_free(struct conn *c)
{
    if (c->request)
        request_abandon(c->request);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->server->conn_count--;
    c->server->conn_by_address[c->address]--;
    server_charge(c->server, &c->charged, 0);
    bufferevent_free(c->bev);
    http_free(&c->http);
    mem_free(c);
}

/* A stream without output for long sends a keep-alive. */
static void conn_alive(struct conn *c, double now)
{
    struct request *a = c->request;
    double last = c->streaming ? c->last_sent : c->started;
    const struct api_format *t = format_for(a->route);
    bool quiet = now - last > (double)limit_of(LIMIT_ALIVE_SECONDS);
    if (!a->arrived || !a->stream || !t->alive || !quiet || conn_is_full(c))
        return;
    if (!c->streaming)
        conn_stream_begin(c, t->type);
    conn_stream_add(c, t->alive, strlen(t->alive));
}

void conn_tick(struct conn *c, double now)
{
    double waited = now - c->since;
    double rest = c->server->draining ? CONN_LINGER : (double)limit_of(LIMIT_IDLE_SECONDS);
    double deadline = (double)limit_of(c->phase == PHASE_HEAD ? LIMIT_HEADER_SECONDS : LIMIT_BODY_SECONDS);
    bool pending = evbuffer_get_length(bufferevent_get_output(c->bev)) > 0;
    bool idle = c->phase == PHASE_IDLE && waited > rest;
    bool late = c->phase != PHASE_IDLE && waited > deadline;
    if (c->request)
        conn_alive(c, now);
    else if (c->lingering && waited > CONN_LINGER)
        conn_free(c);
    else if (c->closing) /* what is pending has the deadline of writes */
        return;
    else if (idle && !pending)
        conn_free(c);
    else if (late) {
        c->started = now;
        server_name(c->id, sizeof c->id, "req-");
        c->http.keep = false;
        conn_failf(c, 408, NULL, "the request did not come within %.0f s", deadline);
    }
}
