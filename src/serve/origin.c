#include "serve/origin.h"

#include "base/log.h"
#include "base/num.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

static bool origin_copy(char *to, size_t size, const char *from, size_t n, const char *others)
{
    if (n >= size)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)from[i];
        if (c >= 0x80 || (!isalnum(c) && !strchr(others, c)))
            return false;
        to[i] = (char)tolower(c);
    }
    to[n] = 0;
    return true;
}

static int origin_usual_port(const char *scheme)
{
    return !strcmp(scheme, "http") ? 80 : !strcmp(scheme, "https") ? 443 : -1;
}

bool origin_read_host(const char *text, struct origin *o)
{
    bool six = *text == '[';
    const char *name = text + six, *rest;
    size_t n = strcspn(name, six ? "]" : ":");
    uint64_t port = 0;
    struct in6_addr address;
    if (!origin_copy(o->host, sizeof o->host, name, n, six ? ":." : "-._"))
        return false;
    rest = name + n;
    if (six && (*rest++ != ']' || inet_pton(AF_INET6, o->host, &address) != 1))
        return false;
    if (*rest && (*rest != ':' || !num_u64(rest + 1, strlen(rest + 1), 65535, &port)))
        return false;
    o->port = *rest ? (int)port : origin_usual_port(o->scheme);
    return *o->host || (*o->scheme && !origin_is_web(o) && !*rest);
}

bool origin_read(const char *text, struct origin *o)
{
    const char *colon = strstr(text, "://");
    *o = (struct origin){.port = -1};
    return colon && colon > text && isalpha((unsigned char)*text) &&
           origin_copy(o->scheme, sizeof o->scheme, text, (size_t)(colon - text), "+-.") &&
           origin_read_host(colon + 3, o);
}

bool origin_is_loopback(const char *host)
{
    struct in_addr four;
    if (!strcasecmp(host, "localhost") || !strcmp(host, "::1"))
        return true;
    return inet_pton(AF_INET, host, &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

bool origin_is_local(const struct origin *o)
{
    size_t n = strlen(o->host);
    return origin_is_loopback(o->host) || (n > 10 && !strcmp(o->host + n - 10, ".localhost"));
}

bool origin_is_web(const struct origin *o)
{
    return !strcmp(o->scheme, "http") || !strcmp(o->scheme, "https");
}

/* A scheme followed by a star: every page of it. */
static bool origin_read_scheme(const char *text, struct origin *o)
{
    size_t n = strlen(text);
    *o = (struct origin){.port = -1};
    return n > 4 && !strcmp(text + n - 4, "://*") && isalpha((unsigned char)*text) &&
           origin_copy(o->scheme, sizeof o->scheme, text, n - 4, "+-.") && !origin_is_web(o);
}

int origin_check_allowed(const char *allowed, struct err *e)
{
    struct origin o;
    if (!strcmp(allowed, "*") || !strcmp(allowed, "null") || origin_read_scheme(allowed, &o) ||
        origin_read(allowed, &o))
        return 0;
    return err_set(e, ERR_USAGE,
                   "--allowed-origin takes an origin such as https://chat.example or app://obsidian.md "
                   "(scheme, host and port, no path), SCHEME://* or *, not '%s'",
                   log_safe(allowed));
}

bool origin_matches(const char *allowed, const char *origin)
{
    struct origin a, o;
    if (!strcmp(allowed, "*"))
        return true;
    if (!strcmp(allowed, "null") || !strcmp(origin, "null"))
        return !strcmp(allowed, origin);
    if (!origin_read(origin, &o))
        return false;
    if (origin_read_scheme(allowed, &a))
        return !strcmp(a.scheme, o.scheme);
    return origin_read(allowed, &a) && !strcmp(a.scheme, o.scheme) && !strcmp(a.host, o.host) &&
           a.port == o.port;
}
