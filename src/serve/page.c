#include "serve/page.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/conn.h"
#include "serve/origin.h"
#include "serve/route.h"
#include "serve/server.h"
#include "serve/server_internal.h"

#include <ctype.h>
#include <string.h>

static bool mcp_read_name(struct mcp_server *m, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '-' && text[i] != '_')
            return false;
    if (!n || n >= sizeof m->name)
        return false;
    memcpy(m->name, text, n);
    m->name[n] = 0;
    return true;
}

/* The origin goes into a header: only what origin_read knows. */
static bool mcp_read_url(struct mcp_server *m, const char *url)
{
    struct origin o;
    const char *host = strstr(url, "://");
    size_t n = host ? (size_t)(host + 3 - url) + strcspn(host + 3, "/?") : 0;
    if (!n || n >= sizeof m->origin)
        return false;
    memcpy(m->origin, url, n);
    m->origin[n] = 0;
    for (const char *at = url; *at; at++)
        if (!isgraph((unsigned char)*at) || strchr("\"<>\\#", *at))
            return false;
    m->url = url;
    return origin_read(m->origin, &o) && origin_is_web(&o);
}

int mcp_read(const char *text, struct mcp_server *out, size_t count, struct err *e)
{
    struct mcp_server *m = out + count;
    const char *equals = strchr(text, '=');
    if (!equals || !mcp_read_name(m, text, (size_t)(equals - text)) || !mcp_read_url(m, equals + 1))
        return err_set(e, ERR_USAGE,
                       "--mcp takes NAME=URL such as files=http://localhost:3000/mcp (the name: letters, "
                       "digits, - and _), "
                       "not '%s'",
                       log_safe(text));
    for (size_t i = 0; i < count; i++)
        if (!strcmp(out[i].name, m->name))
            return err_set(e, ERR_USAGE, "two MCP servers are called %s", m->name);
    return 0;
}

void page_session(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    const struct server_options *o = c->server->o;
    json_begin(&j, '{');
    json_key(&j, "version");
    json_str(&j, QUERN_VERSION);
    json_key(&j, "admin");
    json_bool(&j, c->admin);
    json_key(&j, "keys");
    json_bool(&j, o->key_count > 0);
    json_key(&j, "mcp");
    json_begin(&j, '[');
    for (size_t i = 0; i < o->mcp_count; i++) {
        json_begin(&j, '{');
        json_key(&j, "name");
        json_str(&j, o->mcp[i].name);
        json_key(&j, "url");
        json_str(&j, o->mcp[i].url);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    route_json(c, 200, &out);
}
