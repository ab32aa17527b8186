/* Which path is answered by whom. */
#include "serve/route.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/adapters.h"
#include "serve/anthropic.h"
#include "serve/api.h"
#include "serve/asset.h"
#include "serve/auth.h"
#include "serve/batches.h"
#include "serve/conn.h"
#include "serve/conversations.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/files.h"
#include "serve/http.h"
#include "serve/limit.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/multipart.h"
#include "serve/ollama.h"
#include "serve/openai.h"
#include "serve/page.h"
#include "serve/probe.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/resumable.h"
#include "serve/server_internal.h"
#include "serve/text.h"
#include "serve/usage.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    ROUTE_QUERY = 32,     /* values of a query */
    ROUTE_FORM = 64 << 10 /* bytes of a form beside its file */
};

struct route_star {
    const char *text;
    size_t n;
};

void route_json(struct conn *c, int status, struct buf *out)
{
    conn_reply(c, status, "application/json", out);
    buf_free(out);
}

static void route_root(struct conn *c)
{
    struct buf out = {0};
    const char *accept = http_field(&c->http, "accept");
    if (accept && strstr(accept, "text/html")) {
        asset_show(c);
        return;
    }
    buf_str(&out, "Ollama is running"); /* probed by Ollama's clients */
    conn_reply(c, 200, "text/plain; charset=utf-8", &out);
    buf_free(&out);
}

/* What is stored: looked up or changed on a worker. */
#define STORED(function) .prepare = (function), .model = ROUTE_NO_MODEL, .light = true

static const struct route routes[] = {
    {"GET", "/", .now = route_root, .open = true},
    {"GET", "/livez", .now = probe_live, .open = true, .probe = true, .scraped = true},
    {"GET", "/readyz", .now = probe_ready, .open = true, .probe = true, .scraped = true},
    {"GET", "/health", .now = probe_ready, .open = true, .probe = true, .scraped = true},
    {"GET", "/metrics", .now = probe_metrics, .scraped = true},
    {"POST", "/drain", .now = probe_drain, .scraped = true},
    {"GET", "/openapi.json", .now = asset_show, .open = true},
    {"GET", "/status", .now = asset_show, .open = true},
    {"GET", "/page/*", .now = asset_show, .open = true},
    {"GET", "/session", .now = page_session},
    {"GET", "/models", .now = api_models},
    {"POST", "/models/load", .prepare = api_load, .model = ROUTE_WORDS, .admin = true},
    {"POST", "/models/unload", .prepare = api_unload, .model = ROUTE_NO_MODEL, .admin = true},
    {"GET", "/models/*", .now = api_model},
    {"GET", "/lora-adapters", .prepare = adapters_list},
    {"POST", "/lora-adapters", .prepare = adapters_stand, .admin = true, .list = true},
    {"POST", "/load_lora_adapter", .prepare = adapters_load, .admin = true},
    {"POST", "/unload_lora_adapter", .prepare = adapters_unload, .model = ROUTE_NO_MODEL, .admin = true},
    {"GET", "/usage", STORED(api_usage)},
    {"GET", "/props", .now = api_props},
    {"GET", "/slots", .now = api_slots},
    {"POST", "/chat/completions", .prepare = openai_chat, .model = ROUTE_CHAT, .batch = true,
     .resumes = true},
    {"POST", "/chat/completions/input_tokens", .prepare = openai_count, .model = ROUTE_CHAT},
    {"POST", "/completions", .prepare = openai_completion, .batch = true, .resumes = true},
    {"GET", "/streams/*", .now = resumable_get},
    {"DELETE", "/streams/*", .now = resumable_delete},
    {"POST", "/responses", .prepare = responses_create, .model = ROUTE_CHAT, .api = API_RESPONSES,
     .batch = true},
    {"POST", "/responses/input_tokens", .prepare = responses_count, .model = ROUTE_CHAT,
     .api = API_RESPONSES},
    {"GET", "/responses/*", .now = responses_get, STORED(responses_read), .api = API_RESPONSES},
    {"DELETE", "/responses/*", .now = responses_delete, STORED(responses_remove)},
    {"POST", "/responses/*/cancel", .now = responses_cancel, STORED(responses_cancel_ended)},
    {"GET", "/responses/*/input_items", STORED(responses_input_items)},
    {"POST", "/conversations", STORED(conversations_create)},
    {"GET", "/conversations/*", STORED(conversations_read)},
    {"POST", "/conversations/*", STORED(conversations_update)},
    {"DELETE", "/conversations/*", STORED(conversations_remove)},
    {"GET", "/conversations/*/items", STORED(conversations_items)},
    {"POST", "/conversations/*/items", STORED(conversations_add)},
    {"GET", "/conversations/*/items/*", STORED(conversations_item)},
    {"DELETE", "/conversations/*/items/*", STORED(conversations_remove_item)},
    {"POST", "/messages", .prepare = anthropic_messages, .model = ROUTE_CHAT, .api = API_ANTHROPIC,
     .batch = true, .resumes = true},
    {"POST", "/messages/count_tokens", .prepare = anthropic_count, .model = ROUTE_CHAT, .api = API_ANTHROPIC},
    {"POST", "/files", .prepare = files_create, .model = ROUTE_NO_MODEL, .light = true, .large = true,
     .form = true},
    {"GET", "/files", .prepare = files_list, .model = ROUTE_NO_MODEL, .light = true},
    {"GET", "/files/*", .prepare = files_get, .model = ROUTE_NO_MODEL, .light = true},
    {"DELETE", "/files/*", .prepare = files_delete, .model = ROUTE_NO_MODEL, .light = true},
    {"GET", "/files/*/content", .prepare = files_content, .model = ROUTE_NO_MODEL, .light = true},
    {"POST", "/batches", .prepare = batches_create, .model = ROUTE_NO_MODEL, .light = true},
    {"GET", "/batches", .prepare = batches_list, .model = ROUTE_NO_MODEL, .light = true},
    {"GET", "/batches/*", .prepare = batches_get, .model = ROUTE_NO_MODEL, .light = true},
    {"POST", "/batches/*/cancel", .prepare = batches_cancel, .model = ROUTE_NO_MODEL, .light = true},
    {"POST", "/messages/batches", .prepare = anthropic_batches_create, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true, .large = true},
    {"GET", "/messages/batches", .prepare = anthropic_batches_list, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true},
    {"GET", "/messages/batches/*", .prepare = anthropic_batches_get, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true},
    {"DELETE", "/messages/batches/*", .prepare = anthropic_batches_delete, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true},
    {"POST", "/messages/batches/*/cancel", .prepare = anthropic_batches_cancel, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true},
    {"GET", "/messages/batches/*/results", .prepare = anthropic_batches_results, .model = ROUTE_NO_MODEL,
     .api = API_ANTHROPIC, .light = true},
    {"POST", "/embeddings", .prepare = api_embeddings, .model = ROUTE_VECTORS, .batch = true},
    {"POST", "/rerank", .prepare = api_rerank, .model = ROUTE_VECTORS},
    {"POST", "/embedding", .prepare = api_embedding, .model = ROUTE_VECTORS},
    {"POST", "/reranking", .prepare = api_rerank, .model = ROUTE_VECTORS},
    {"POST", "/score", .prepare = api_score, .model = ROUTE_VECTORS},
    {"POST", "/completion", .prepare = api_completion, .api = API_INFILL},
    {"POST", "/infill", .prepare = api_infill, .api = API_INFILL},
    /* Ollama's */
    {"GET", "/api/version", .now = ollama_version, .open = true},
    {"GET", "/api/tags", .now = ollama_tags, .api = API_OLLAMA},
    {"GET", "/api/ps", .now = ollama_ps, .api = API_OLLAMA},
    {"POST", "/api/show", .prepare = ollama_show, .model = ROUTE_NO_MODEL, .api = API_OLLAMA},
    {"POST", "/api/chat", .prepare = ollama_chat, .model = ROUTE_NO_MODEL, .api = API_OLLAMA_CHAT,
     .resumes = true},
    {"POST", "/api/generate", .prepare = ollama_generate, .model = ROUTE_NO_MODEL, .api = API_OLLAMA,
     .resumes = true},
    {"POST", "/api/embed", .prepare = ollama_embed, .model = ROUTE_VECTORS, .api = API_OLLAMA},
    {"POST", "/api/embeddings", .prepare = ollama_embeddings, .model = ROUTE_VECTORS, .api = API_OLLAMA},
    {"POST", "/api/pull", .prepare = ollama_pull, .model = ROUTE_NO_MODEL, .admin = true, .api = API_OLLAMA},
    {"POST", "/api/push", .now = ollama_refuse, .api = API_OLLAMA},
    {"POST", "/api/create", .prepare = ollama_create, .model = ROUTE_NO_MODEL, .admin = true,
     .api = API_OLLAMA},
    {"POST", "/api/copy", .prepare = ollama_copy, .model = ROUTE_NO_MODEL, .admin = true, .api = API_OLLAMA},
    {"DELETE", "/api/delete", .prepare = ollama_delete, .model = ROUTE_NO_MODEL, .admin = true,
     .api = API_OLLAMA},
    {"POST", "/tokenize", .prepare = text_tokenize, .model = ROUTE_WORDS},
    {"GET", "/tokenizer_info", .prepare = tokenizer_info, .model = ROUTE_WORDS},
    {"POST", "/detokenize", .prepare = text_detokenize, .model = ROUTE_WORDS},
    {"POST", "/apply-template", .prepare = text_template, .model = ROUTE_WORDS},
};
const struct route *const route_table = routes;
const size_t route_count = sizeof routes / sizeof *routes;
_Static_assert(sizeof routes / sizeof *routes < METRICS_ROUTES, "every route has a row of counters");

/* The path without its query, without /v1 and without a slash at its end. */
static const char *route_path_of(const char *path, size_t *n)
{
    path += !strncmp(path, "/v1/", 4) ? 3 : 0;
    *n = strcspn(path, "?");
    *n -= *n > 1 && path[*n - 1] == '/';
    return path;
}

static const char *route_path(const struct conn *c, size_t *n)
{
    return route_path_of(http_target(&c->http), n);
}

const struct route *route_batch(const char *url)
{
    size_t skip = !strncmp(url, "/v1/", 4) ? 3 : 0;
    for (size_t i = 0; i < route_count; i++)
        if (routes[i].batch && !strcmp(routes[i].path, url + skip))
            return &routes[i];
    return NULL;
}

uint64_t route_body_most(const char *target)
{
    size_t n;
    const char *path = route_path_of(target, &n);
    for (size_t i = 0; i < route_count; i++)
        if (routes[i].large && strlen(routes[i].path) == n && !strncmp(routes[i].path, path, n))
            return limit_of(LIMIT_FILE) + ROUTE_FORM;
    return limit_of(LIMIT_BODY);
}

/* What stands for the stars of a pattern: each for one part of the path, a last one for all of the rest. The number of
 * letters that are the same, -1 = it does not match. Stars beyond ROUTE_STARS are not kept. */
static int route_match(const char *pattern, const char *path, size_t n, struct route_star stars[ROUTE_STARS])
{
    size_t at = 0;
    int same = 0, star = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '*') {
            if (at == n || path[at] != *pattern)
                return -1;
            at++;
            same++;
            continue;
        }
        size_t from = at;
        while (at < n && (!pattern[1] || path[at] != '/'))
            at++;
        if (at == from)
            return -1;
        if (star < ROUTE_STARS)
            stars[star++] = (struct route_star){path + from, at - from};
    }
    return at == n ? same : -1;
}

/* The row that has most of the path in its pattern; of several (GET and DELETE) that of the method. */
static const struct route *route_find(const struct conn *c)
{
    const struct route *found = NULL;
    struct route_star stars[ROUTE_STARS];
    int most = -1;
    size_t n;
    const char *path = route_path(c, &n);
    for (size_t i = 0; i < route_count; i++) {
        int same = route_match(routes[i].path, path, n, stars);
        if (same > most || (same >= 0 && same == most && http_is(&c->http, routes[i].method))) {
            found = &routes[i];
            most = same;
        }
    }
    return found;
}

static int route_hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* %41 to A. */
static bool route_decode(const char *s, size_t n, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (ch == '%') {
            int high = i + 2 < n ? route_hex(s[i + 1]) : -1, low = high < 0 ? -1 : route_hex(s[i + 2]);
            if (low < 0)
                return false;
            ch = (char)(16 * high + low);
            i += 2;
        }
        if (!ch || at + 1 >= size)
            return false;
        out[at++] = ch;
    }
    out[at] = 0;
    return true;
}

bool route_part(const struct conn *c, int which, char *out, size_t size)
{
    struct route_star stars[ROUTE_STARS] = {0};
    size_t n;
    const char *path = route_path(c, &n);
    *out = 0;
    return route_match(c->route->path, path, n, stars) >= 0 && stars[which].text &&
           route_decode(stars[which].text, stars[which].n, out, size);
}

json_t *route_query_all(const struct conn *c)
{
    json_t *all = json_object();
    const char *at = strchr(http_target(&c->http), '?');
    for (int i = 0; all && at && i < ROUTE_QUERY; i++) {
        char name[64], value[512];
        size_t own = strcspn(++at, "=&"), n = at[own] == '=' ? strcspn(at + own + 1, "&") : 0;
        if (own && route_decode(at, own, name, sizeof name) &&
            route_decode(at + own + (at[own] == '='), n, value, sizeof value))
            json_object_set_new(all, name, json_string(value)); /* what is not UTF-8 is not kept */
        at = strchr(at, '&');
    }
    return all;
}

bool route_query(const struct conn *c, const char *name, char *out, size_t size)
{
    const char *at = strchr(http_target(&c->http), '?');
    size_t own = strlen(name);
    while (at) {
        at++;
        if (!strncmp(at, name, own) && at[own] == '=')
            return route_decode(at + own + 1, strcspn(at + own + 1, "&"), out, size);
        at = strchr(at, '&');
    }
    return false;
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

/* Whether the key has tokens and room for one more request. -1 and 429 */
static int route_admit(struct conn *c, struct failure *f)
{
    static const struct server_key none;
    struct server *s = c->server;
    const struct server_key *key = c->key ? &s->o->keys[c->key - 1] : &none;
    pthread_mutex_lock(&s->mutex);
    int refused = quota_check(&s->quotas, key->owner, &key->quota, time(NULL), f);
    const char *why = refused ? NULL : usage_admit(&s->usage[c->key], &s->o->usage, clock_now());
    pthread_mutex_unlock(&s->mutex);
    return why ? failure_set(f, 429, "rate_limit_exceeded", NULL, "%s", why) : refused;
}

static void route_take(struct conn *c)
{
    const struct route *r = c->route;
    struct failure f = {0};
    bool reads = http_is(&c->http, "GET") || http_is(&c->http, "HEAD");
    c->http.keep &= !c->reserve;
    if (c->reserve && !r->probe && !c->metrics)
        conn_failf(c, 503, NULL,
                   "all connections that this server takes have a request running; try again later");
    else if (!http_is(&c->http, r->method) && !(reads && !strcmp(r->method, "GET")))
        conn_failf(c, 405, NULL, "%s wants %s", r->path, r->method);
    else if (!r->open && !c->metrics && !auth_key(c))
        conn_failf(c, 401, "invalid_api_key", "the API key is missing or wrong: Authorization: Bearer KEY");
    else if (r->admin && !c->admin)
        conn_failf(c, 403, "admin_key_required", "%s needs an admin key", r->path);
    else if (r->now)
        r->now(c);
    else if (c->server->draining)
        conn_failf(c, 503, NULL, "the server is ending and takes no more requests");
    else if (r->form && multipart_boundary(http_field(&c->http, "content-type"), c->boundary))
        conn_failf(c, 415, NULL, "the body has to be a form (Content-Type: multipart/form-data)");
    else if (!r->form && !route_is_json(c))
        conn_failf(c, 415, NULL, "the body has to be JSON (Content-Type: application/json)");
    else if (!r->light && route_admit(c, &f))
        conn_fail(c, &f);
    else
        request_start(c);
}

void route_request(struct conn *c)
{
    static const char *const methods[] = {"GET",    "HEAD",    "POST",  "PUT",  "PATCH",
                                          "DELETE", "OPTIONS", "TRACE", "QUERY"};
    struct failure f = {0};
    bool known = false;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        known |= http_is(&c->http, methods[i]);
    c->route = known ? route_find(c) : NULL;
    if (!known) {
        c->http.keep = false;
        conn_failf(c, 501, NULL, "there is no method %s", log_safe(http_method(&c->http)));
    } else if (auth_check(c, &f))
        conn_fail(c, &f);
    else if (http_is(&c->http, "OPTIONS"))
        conn_reply(c, 204, NULL, NULL);
    else if (c->route && (c->route->scraped || !c->metrics))
        route_take(c);
    else
        conn_failf(c, 404, NULL, "there is nothing at %s%s", log_safe(http_target(&c->http)),
                   c->metrics ? " of this port, which has /metrics and probes" : "");
}
