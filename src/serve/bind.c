/* The addresses that a server listens at, and whether that is safe. */
#define _GNU_SOURCE
#include "serve/bind.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/origin.h"
#include "serve/tls.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BIND_BACKLOG = 1024 };

/* Listens there; the descriptor, or -1 with why in errno. */
static int bind_socket(const struct sockaddr *at, socklen_t n)
{
    int on = 1, fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, at, n) && !listen(fd, BIND_BACKLOG))
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Removes a stale socket without a listener; the new one is accessible to this user only. */
static int bind_unix(const char *path, struct err *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof at.sun_path)
        return err_set(e, ERR_USAGE, "--socket %s: a path of at most %zu bytes", log_safe(path),
                       sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path));
    if (!lstat(path, &st) && S_ISSOCK(st.st_mode)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool dead = connect(fd, (struct sockaddr *)&at, sizeof at) && errno == ECONNREFUSED;
        close(fd);
        if (dead)
            unlink(path);
    }
    mode_t mask = umask(0177);
    int fd = bind_socket((struct sockaddr *)&at, sizeof at), why = errno;
    umask(mask);
    if (fd < 0)
        err_set(e, ERR_RESOURCE, "cannot listen on %s: %s", log_safe(path), strerror(why));
    return fd;
}

static int bind_address(const char *option, const char *host, int number, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", number);
    int r = getaddrinfo(host, port, &hints, &found);
    if (r)
        return err_set(e, ERR_USAGE, "%s %s: %s", option, log_safe(host), gai_strerror(r));
    int fd = bind_socket(found->ai_addr, found->ai_addrlen), why = errno;
    freeaddrinfo(found);
    if (fd < 0)
        err_set(e, ERR_RESOURCE, "cannot listen on %s port %d: %s", log_safe(host), number, strerror(why));
    return fd;
}

int server_bind(const struct server_options *o, struct server_sockets *out, struct err *e)
{
    struct tls *t = NULL;
    *out = (struct server_sockets){-1, -1};
    if (server_check(o, e) || (o->tls_cert && tls_open(&t, o->tls_cert, o->tls_key, e)))
        return -1;
    tls_close(t); /* OpenSSL has read its own configuration now, before the sandbox closes */
    out->requests = o->socket ? bind_unix(o->socket, e) : bind_address("--host", o->host, o->port, e);
    if (out->requests >= 0 && o->metrics_port >= 0)
        out->metrics = bind_address("--metrics-host", o->metrics_host, o->metrics_port, e);
    if (out->requests >= 0 && (out->metrics >= 0 || o->metrics_port < 0))
        return 0;
    server_unbind(o, out);
    return -1;
}

int server_check(const struct server_options *o, struct err *e)
{
    if (!o->tls_cert != !o->tls_key)
        return err_set(e, ERR_USAGE, "--tls-cert and --tls-key belong together");
    for (size_t i = 0; i < o->allowed_origins; i++) {
        if (origin_check_allowed(o->allowed_origin[i], e))
            return -1;
        if (!strcmp(o->allowed_origin[i], "*") && !o->key_count)
            return err_set(
                e, ERR_USAGE,
                "--allowed-origin '*' lets every page of the web send requests: give --api-key-file");
    }
    if (o->socket || origin_is_loopback(o->host) || o->key_count || (o->no_key && o->allowed_hosts))
        return 0;
    if (o->no_key)
        return err_set(
            e, ERR_USAGE,
            "--host %s with --no-key can be reached by every web page, through a name that its owner "
            "points here: give --allowed-host NAME for each name that clients use",
            log_safe(o->host));
    return err_set(e, ERR_USAGE,
                   "--host %s can be reached from elsewhere: give --api-key-file, or --no-key and "
                   "--allowed-host behind a proxy that checks access",
                   log_safe(o->host));
}

void server_unbind(const struct server_options *o, const struct server_sockets *at)
{
    if (at->metrics >= 0)
        close(at->metrics);
    if (at->requests < 0)
        return;
    close(at->requests);
    if (o->socket)
        file_remove(o->socket);
}

void bind_url(int fd, const char *scheme, char *out, size_t size)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    *out = 0;
    if (!getsockname(fd, (struct sockaddr *)&at, &n) &&
        !getnameinfo((struct sockaddr *)&at, n, host, sizeof host, port, sizeof port,
                     NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, size, "%s://%s%s%s:%s", scheme, strchr(host, ':') ? "[" : "", host,
                 strchr(host, ':') ? "]" : "", port);
}
