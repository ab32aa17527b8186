#define _GNU_SOURCE
#include "tool/client.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "format/jsonread.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { CLIENT_REPLY = 16 << 20, CLIENT_SECONDS = 150 };

/* http://host[:port][/path] */
struct client_url {
    char host[256], port[8];
    const char *path; /* inside the url, without a slash at its end */
    int path_length;
};

static int client_url(struct client_url *u, const char *url, struct err *e)
{
    const char *host = !strncmp(url, "http://", 7) ? url + 7 : strstr(url, "://") ? NULL : url;
    if (!host)
        return err_set(e, ERR_USAGE, "--url %s: only http:// is supported", log_safe(url));
    size_t n = *host == '[' ? strcspn(host, "]") : strcspn(host, ":/");
    const char *rest = host + n + (*host == '[' && host[n]);
    snprintf(u->host, sizeof u->host, "%.*s", (int)(n - (*host == '[')), host + (*host == '['));
    size_t digits = *rest == ':' ? strcspn(rest + 1, "/") : 0;
    uint64_t port = 80;
    bool good = *u->host && (!*rest || strchr(":/", *rest)) &&
                (*rest != ':' || num_u64(rest + 1, digits, 65535, &port));
    if (!good)
        return err_set(e, ERR_USAGE, "--url %s is no address such as " CLIENT_URL, log_safe(url));
    snprintf(u->port, sizeof u->port, "%llu", (unsigned long long)port);
    u->path = *rest == ':' ? rest + 1 + digits : rest;
    u->path_length = (int)strlen(u->path);
    while (u->path_length && u->path[u->path_length - 1] == '/')
        u->path_length--;
    return 0;
}

static int client_connect(const struct client_url *u, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    struct timeval limit = {.tv_sec = CLIENT_SECONDS};
    int r = getaddrinfo(u->host, u->port, &hints, &all), fd = -1, why = 0;
    if (r) {
        err_set(e, ERR_UNREACHABLE, "%s: %s", log_safe(u->host), gai_strerror(r));
        return -1;
    }
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen)) {
            why = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(all);
    if (fd < 0)
        err_set(e, ERR_UNREACHABLE, "no server at http://%s:%s: %s; 'quern serve' starts one",
                log_safe(u->host), u->port, strerror(why));
    else {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    return fd;
}

/* Everything out, then everything in until the server closes. */
static int client_exchange(int fd, const struct buf *out, struct buf *in, struct err *e)
{
    for (size_t at = 0; at < out->len;) {
        ssize_t n = send(fd, out->data + at, out->len - at, MSG_NOSIGNAL);
        if (n < 0)
            return err_set(e, ERR_UNREACHABLE, "the server takes no request: %s", strerror(errno));
        at += (size_t)n;
    }
    char part[16384];
    for (ssize_t n; (n = recv(fd, part, sizeof part, 0)) != 0;) {
        if (n < 0)
            return err_set(e, ERR_UNREACHABLE, "the server does not answer: %s", strerror(errno));
        if (!buf_add(in, part, (size_t)n))
            return err_set(e, ERR_RESOURCE, "the server's answer is too long");
    }
    return 0;
}

const char *client_admin_key(const struct args *a, struct buf *text, struct err *e)
{
    const char *file = args_text(a, "admin-key-file"), *own = getenv("QUERN_ADMIN_KEY");
    if (!file)
        return own && *own ? own : getenv("QUERN_API_KEY");
    if (file_read(file, text, e))
        return NULL;
    for (char *line = text->data, *next; line && *line; line = next) {
        char *end = line + strcspn(line, "\r\n");
        next = *end ? end + 1 : end;
        *end = 0;
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = 0;
        if (*line && *line != '#')
            return line;
    }
    err_set(e, ERR_USAGE, "--admin-key-file %s has no key", log_safe(file));
    return NULL;
}

static void client_request(struct buf *out, const struct client_url *u, const char *path, const char *given,
                           const json_t *body)
{
    const char *key = given ? given : getenv("QUERN_API_KEY");
    buf_printf(out, "%s %.*s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAccept: application/json\r\n",
               body ? "POST" : "GET", u->path_length, u->path, path, u->host);
    if (key && *key && !strpbrk(key, "\r\n"))
        buf_printf(out, "Authorization: Bearer %s\r\n", key);
    size_t n = body ? json_dumpb(body, NULL, 0, JSON_COMPACT) : 0;
    if (body)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", n);
    buf_str(out, "\r\n");
    char *to = body ? buf_reserve(out, n) : NULL;
    if (to)
        out->len += json_dumpb(body, to, n, JSON_COMPACT);
}

/* The message of an error reply: {"error": {"message"}} or {"error": "..."}. */
static const char *client_words(const json_t *reply)
{
    const json_t *error = json_object_get(reply, "error");
    const char *text = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    return text ? text : "it says no more";
}

static json_t *client_read(const struct buf *in, struct err *e)
{
    uint64_t status;
    const char *body = in->data ? strstr(in->data, "\r\n\r\n") : NULL;
    if (!body || strncmp(in->data, "HTTP/1.1 ", 9) != 0 || !num_u64(in->data + 9, 3, 999, &status)) {
        err_set(e, ERR_UNREACHABLE, "the server there is not quern");
        return NULL;
    }
    body += 4;
    static const struct jsonread_limits most = {
        .text = CLIENT_REPLY, .memory = 4 * CLIENT_REPLY, .depth = JSONREAD_DEPTH};
    json_t *reply =
        jsonread_object(body, in->len - (size_t)(body - in->data), &most, "the server's answer", e);
    if (reply && status >= 300) {
        enum err_code code = status == 401 || status == 403 ? ERR_USAGE
                             : status == 404                ? ERR_DATA
                                                            : ERR_UNREACHABLE;
        err_set(e, code, "the server refuses (%d): %s", (int)status, log_safe(client_words(reply)));
        json_decref(reply);
        reply = NULL;
    }
    return reply;
}

json_t *client_ask(const struct args *a, const char *path, const char *key, const json_t *body, struct err *e)
{
    const char *url = args_text(a, "url");
    struct client_url u;
    struct buf out = {0}, in = {.max = CLIENT_REPLY};
    json_t *reply = NULL;
    if (client_url(&u, url ? url : CLIENT_URL, e))
        return NULL;
    int fd = client_connect(&u, e);
    if (fd < 0)
        return NULL;
    client_request(&out, &u, path, key, body);
    if (out.failed)
        err_set(e, ERR_RESOURCE, "out of memory");
    else if (!client_exchange(fd, &out, &in, e))
        reply = client_read(&in, e);
    close(fd);
    buf_free(&out);
    buf_free(&in);
    return reply;
}
