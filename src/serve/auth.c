/* Who may come in: the Host header, the Origin of a page, the key. */
#include "serve/auth.h"
#include "serve/conn.h"
#include "serve/failure.h"
#include "serve/http.h"
#include "serve/origin.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <string.h>
#include <strings.h>

/* Protects against DNS rebinding: a web page must not reach us through a name that its owner points to this
 * machine. Probes and the metrics port are open: they return nothing that a page could use, and who asks connects by
 * address. */
static bool auth_host(const struct conn *c, const char *host)
{
    const struct server *s = c->server;
    struct origin named = {.port = -1};
    if ((!s->loopback && !s->o->allowed_hosts) || (c->route && c->route->probe) || c->metrics)
        return true;
    if (!origin_read_host(host, &named))
        return false;
    for (size_t i = 0; i < s->o->allowed_hosts; i++)
        if (!strcasecmp(named.host, s->o->allowed_host[i]))
            return true;
    return s->loopback && origin_is_local(&named);
}

/* Pages on this machine, our own, and those that --allowed-origin names. */
static bool auth_origin(const struct conn *c, const char *origin)
{
    const struct server_options *options = c->server->o;
    const char *host = http_field(&c->http, "host");
    struct origin page, own;
    for (size_t i = 0; i < options->allowed_origins; i++)
        if (origin_matches(options->allowed_origin[i], origin))
            return true;
    if (!origin_read(origin, &page) || !origin_is_web(&page))
        return false;
    own = page; /* a Host header without a port means the usual one of the scheme */
    return origin_is_local(&page) ||
           (host && origin_read_host(host, &own) && !strcmp(own.host, page.host) && own.port == page.port);
}

static int auth_refuse(struct failure *f, const char *why)
{
    f->status = 403;
    return err_set(&f->err, ERR_USAGE, "%s", why);
}

int auth_check(struct conn *c, struct failure *f)
{
    const char *host = http_field(&c->http, "host"), *origin = http_field(&c->http, "origin");
    if (host && !auth_host(c, host))
        return auth_refuse(f, "the Host header names neither this machine nor an allowed host");
    c->origin_ok = origin && auth_origin(c, origin);
    if (origin && !c->origin_ok)
        return auth_refuse(f, "pages of this origin may not send requests here");
    return 0;
}

/* Constant time: the duration depends only on the length of the given key. */
static bool auth_same(const char *given, size_t n, const char *key)
{
    size_t length = strlen(key);
    volatile unsigned char differs = n != length;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(given[i] ^ key[length ? i % length : 0]);
    return !differs;
}

bool auth_key(struct conn *c)
{
    const struct server_options *o = c->server->o;
    const char *given = http_field(&c->http, "authorization");
    c->key = 0;
    c->admin = !o->key_count; /* without any keys every client may do everything */
    if (!o->key_count)
        return true;
    if (given && !strncasecmp(given, "Bearer ", 7))
        given += 7;
    else
        given = http_field(&c->http, "x-api-key");
    for (size_t i = 0; given && i < o->key_count; i++)
        if (o->keys[i].text && auth_same(given, strlen(given), o->keys[i].text))
            c->key = (uint32_t)i + 1;
    c->admin = c->key && o->keys[c->key - 1].admin;
    return c->key > 0;
}
