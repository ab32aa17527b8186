/* Which path is answered by whom. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/own.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { ROUTE_STUCK = 60 }; /* seconds in which an engine that has work takes a step */

static void route_json(struct conn *c, int status, struct buf *out)
{
    conn_reply(c, status, "application/json", out);
    buf_free(out);
}

static void route_status(struct conn *c, int status, const char *word)
{
    struct buf out = {0};
    buf_printf(&out, "{\"status\":\"%s\"}", word);
    route_json(c, status, &out);
}

static void route_live(struct conn *c)
{
    route_status(c, 200, "ok");
}

static void route_ready(struct conn *c)
{
    bool draining = c->server->draining;
    route_status(c, draining ? 503 : 200, draining ? "draining" : "ok");
}

static void route_health(struct conn *c)
{
    struct engine_stats e;
    engine_stats(c->server->engine, &e);
    bool stuck = e.running && e.last_step > 0 && clock_now() - e.last_step > ROUTE_STUCK;
    if (stuck)
        route_status(c, 503, "the engine does not move");
    else
        route_ready(c);
}

static void route_metrics(struct conn *c)
{
    struct buf out = {0};
    metrics_write(c->server, &out);
    conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    buf_free(&out);
}

static void route_model(const struct server *s, const char *name, struct json *j)
{
    json_begin(j, '{');
    json_key(j, "id");
    json_str(j, name);
    json_key(j, "object");
    json_str(j, "model");
    json_key(j, "created");
    json_int(j, s->started);
    json_key(j, "owned_by");
    json_str(j, "quern");
    json_key(j, "max_model_len");
    json_uint(j, s->loaded->runner->ctx);
    json_key(j, "status");
    json_begin(j, '{');
    json_key(j, "value");
    json_str(j, "loaded");
    json_end(j, '}');
    json_end(j, '}');
}

static void route_models(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    json_begin(&j, '{');
    json_key(&j, "object");
    json_str(&j, "list");
    json_key(&j, "data");
    json_begin(&j, '[');
    route_model(c->server, c->server->o->name, &j);
    for (uint32_t i = 0; i < c->server->loaded->adapters; i++)
        route_model(c->server, c->server->loaded->adapter[i].name, &j);
    json_end(&j, ']');
    json_end(&j, '}');
    route_json(c, 200, &out);
}

static void route_one_model(struct conn *c)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    route_model(c->server, c->server->o->name, &j);
    route_json(c, 200, &out);
}

static void route_root(struct conn *c)
{
    struct buf out = {0};
    buf_str(&out, "quern\n");
    conn_reply(c, 200, "text/plain; charset=utf-8", &out);
    buf_free(&out);
}

static const struct route routes[] = {
    {"GET", "/", route_root, NULL, true},
    {"GET", "/livez", route_live, NULL, true},
    {"GET", "/readyz", route_ready, NULL, true},
    {"GET", "/health", route_health, NULL, true},
    {"GET", "/metrics", route_metrics, NULL, false},
    {"GET", "/models", route_models, NULL, false},
    {"GET", "/models/*", route_one_model, NULL, false},
    {"POST", "/chat/completions", NULL, ask_chat, false},
    {"POST", "/completions", NULL, ask_completion, false},
    {"POST", "/tokenize", NULL, text_tokenize, false},
    {"POST", "/detokenize", NULL, text_detokenize, false},
    {"POST", "/apply-template", NULL, text_template, false},
};
const struct route *const route_table = routes;
const size_t route_count = sizeof routes / sizeof *routes;

/* The path without its query and without /v1; the name of a model behind /models/ is looked at. */
static const struct route *route_find(const struct conn *c, bool *is_model)
{
    const char *path = http_target(&c->http);
    path += !strncmp(path, "/v1/", 4) ? 3 : 0;
    size_t n = strcspn(path, "?");
    *is_model = false;
    if (n > 8 && !strncmp(path, "/models/", 8)) {
        const char *name = c->server->o->name;
        *is_model = true;
        if (strlen(name) != n - 8 || strncmp(path + 8, name, n - 8) != 0)
            return NULL;
        path = "/models/*";
        n = strlen(path);
    }
    for (size_t i = 0; i < route_count; i++)
        if (strlen(routes[i].path) == n && !strncmp(routes[i].path, path, n))
            return &routes[i];
    return NULL;
}

static bool route_is_json(const struct conn *c)
{
    const char *type = http_field(&c->http, "content-type");
    static const char *const taken[] = {"application/json",
                                        "application/x-www-form-urlencoded"}; /* curl -d */
    size_t n = type ? strcspn(type, "; ") : 0;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (n == strlen(taken[i]) && !strncasecmp(type, taken[i], n))
            return true;
    return !n || (n > 5 && !strncasecmp(type + n - 5, "+json", 5));
}

static void route_take(struct conn *c)
{
    const struct route *r = c->route;
    bool reads = http_is(&c->http, "GET") || http_is(&c->http, "HEAD");
    if (!http_is(&c->http, r->method) && !(reads && !strcmp(r->method, "GET")))
        conn_failf(c, 405, NULL, "%s wants %s", r->path, r->method);
    else if (!r->open && !gate_key(c))
        conn_failf(c, 401, "invalid_api_key", "the API key is missing or wrong: Authorization: Bearer KEY");
    else if (r->now)
        r->now(c);
    else if (c->server->draining)
        conn_failf(c, 503, NULL, "the server is ending and takes no more requests");
    else if (!route_is_json(c))
        conn_failf(c, 415, NULL, "the body has to be JSON (Content-Type: application/json)");
    else
        answer_start(c);
}

void route_request(struct conn *c)
{
    static const char *const methods[] = {"GET",   "HEAD",   "POST",    "PUT",
                                          "PATCH", "DELETE", "OPTIONS", "TRACE"};
    struct failure f = {0};
    bool known = false, is_model;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        known |= http_is(&c->http, methods[i]);
    if (!known) {
        c->http.keep = false;
        conn_failf(c, 501, NULL, "there is no method %s", log_safe(http_method(&c->http)));
    } else if (gate_check(c, &f))
        conn_fail(c, &f);
    else if (http_is(&c->http, "OPTIONS"))
        conn_reply(c, 204, NULL, NULL);
    else if ((c->route = route_find(c, &is_model)))
        route_take(c);
    else if (is_model)
        conn_failf(c, 404, "model_not_found", "there is no such model; /v1/models lists what there is");
    else
        conn_failf(c, 404, NULL, "there is nothing at %s", log_safe(http_target(&c->http)));
}
