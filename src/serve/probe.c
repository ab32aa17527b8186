/* Probes, counters, and the call before a stop. */
#include "serve/probe.h"
#include "base/buf.h"
#include "base/log.h"
#include "serve/batches.h"
#include "serve/conn.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/origin.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/usage.h"

#include <string.h>

/* fault: NULL = 200 */
static void probe_status(struct conn *c, const char *fault)
{
    struct buf out = {0};
    buf_printf(&out, "{\"status\":\"%s\"}", fault ? fault : "ok");
    route_json(c, fault ? 503 : 200, &out);
}

void probe_live(struct conn *c)
{
    probe_status(c, models_fault(c->server->models));
}

void probe_ready(struct conn *c)
{
    const struct server *s = c->server;
    probe_status(c, s->draining || s->leaving ? "draining"
                    : s->loading              ? "loading"
                                              : models_unable(s->models));
}

void probe_metrics(struct conn *c)
{
    struct buf out = {0};
    unsigned style = c->server->o->metrics_style;
    char word[16];
    if (route_query(c, "style", word, sizeof word) && !metrics_read_style(word, &style)) {
        conn_failf(c, 400, NULL, "style is quern, vllm or both");
        return;
    }
    metrics_write(c->server, style, &out);
    if (!c->metrics && style & METRICS_QUERN)
        metrics_write_keys(c->server, c->admin ? USAGE_ALL : c->key, &out);
    conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    buf_free(&out);
}

/* Whether the request is an operator's. Without keys a client has all rights, but not this one: a proxy on this machine
 * would pass it on. */
static bool probe_may_drain(const struct conn *c)
{
    const char *host = http_field(&c->http, "host");
    struct origin named;
    if (!c->metrics)
        return c->admin && c->server->o->key_count;
    return c->local && host && origin_read_host(host, &named) && origin_is_local(&named);
}

void probe_drain(struct conn *c)
{
    struct server *s = c->server;
    struct buf out = {0};
    if (!probe_may_drain(c)) {
        conn_failf(c, 403, "admin_key_required",
                   "/drain needs an admin key, or the port of --metrics-port from this machine");
        return;
    }
    if (!s->leaving) {
        batches_stop(s); /* what runs of them begins again when the server does */
        log_info("leaving: %u requests are running; those that come are served until SIGTERM",
                 s->request_count);
    }
    s->leaving = true;
    buf_printf(&out, "{\"status\":\"draining\",\"running\":%u}", s->request_count);
    route_json(c, 200, &out);
}
