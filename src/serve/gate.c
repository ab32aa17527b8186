/* Who may come in: the Host header, the Origin of a page, the key. */
#include "serve/own.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool gate_is_loopback(const char *host)
{
    struct in_addr four;
    if (!strcasecmp(host, "localhost") || !strcmp(host, "::1"))
        return true;
    return inet_pton(AF_INET, host, &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

/* "name:port" or "[::1]:port" to its name. */
static void gate_name(const char *host, char *out, size_t size)
{
    size_t n = *host == '[' ? strcspn(++host, "]") : strcspn(host, ":/");
    snprintf(out, size, "%.*s", (int)n, host);
}

static bool gate_is_local(const char *host)
{
    char name[256];
    gate_name(host, name, sizeof name);
    size_t n = strlen(name);
    return gate_is_loopback(name) || (n > 10 && !strcasecmp(name + n - 10, ".localhost"));
}

/* A page elsewhere must not reach us through a name that its owner points to this machine. */
static bool gate_host(const struct server *s, const char *host)
{
    char name[256];
    if (!s->loopback && !s->o->allowed_hosts)
        return true;
    gate_name(host, name, sizeof name);
    for (size_t i = 0; i < s->o->allowed_hosts; i++)
        if (!strcasecmp(name, s->o->allowed_host[i]))
            return true;
    return s->loopback && gate_is_local(host);
}

/* Pages on this machine, and our own. */
static bool gate_origin(const struct conn *c, const char *origin)
{
    const char *host = http_field(&c->http, "host");
    const char *rest = !strncasecmp(origin, "http://", 7)    ? origin + 7
                       : !strncasecmp(origin, "https://", 8) ? origin + 8
                                                             : NULL;
    return rest && (gate_is_local(rest) || (host && !strcasecmp(rest, host)));
}

static int gate_refuse(struct failure *f, const char *why)
{
    f->status = 403;
    return err_set(&f->err, ERR_USAGE, "%s", why);
}

int gate_check(struct conn *c, struct failure *f)
{
    const char *host = http_field(&c->http, "host"), *origin = http_field(&c->http, "origin");
    if (host && !gate_host(c->server, host))
        return gate_refuse(f,
                           "the Host header names neither this machine nor an allowed host (--allowed-host)");
    c->origin_ok = origin && gate_origin(c, origin);
    if (origin && !c->origin_ok)
        return gate_refuse(f, "pages of this origin may not ask here");
    return 0;
}

/* Takes as long for a wrong key as for a right one: only the length of what was given shows. */
static bool gate_same(const char *given, size_t n, const char *key)
{
    size_t length = strlen(key);
    volatile unsigned char differs = n != length;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(given[i] ^ key[length ? i % length : 0]);
    return !differs;
}

bool gate_key(struct conn *c)
{
    const struct server_options *o = c->server->o;
    const char *given = http_field(&c->http, "authorization");
    c->key = 0;
    if (!o->key_count)
        return true;
    if (given && !strncasecmp(given, "Bearer ", 7))
        given += 7;
    else
        given = http_field(&c->http, "x-api-key");
    for (size_t i = 0; given && i < o->key_count; i++)
        if (o->keys[i] && gate_same(given, strlen(given), o->keys[i]))
            c->key = (uint32_t)i + 1;
    return c->key > 0;
}
