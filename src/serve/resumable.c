#include "serve/resumable.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/conn.h"
#include "serve/format.h"
#include "serve/http.h"
#include "serve/message.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char HEADER[] = "x-stream-id";

/* ---- followers ---- */

static void resumable_finish(struct relay *r, struct request *f)
{
    struct resumable *h = (struct resumable *)r;
    if (h->failure.status)
        f->to->fail(f->client, h->route, &h->failure);
    else if (h->whole)
        f->to->reply(f->client, &h->body);
    else
        f->to->end(f->client, NULL, 0);
    request_free(f);
}

static void resumable_left(struct relay *r)
{
    ((struct resumable *)r)->since = clock_now();
}

static const struct relay_kind resumable_kind = {resumable_finish, resumable_left};

static void resumable_free(struct resumable *h)
{
    *h->link = h->next;
    if (h->next)
        h->next->link = h->link;
    server_charge(h->server, &h->charged, 0);
    buf_free(&h->relay.bytes);
    buf_free(&h->body);
    mem_free(h);
}

/* ---- the recipient of the request ---- */

static void resumable_over(struct resumable *h)
{
    h->request = NULL;
    h->relay.ended = true;
    h->since = clock_now();
    relay_feed_all(&h->relay);
}

static bool resumable_full(const void *client)
{
    (void)client;
    return false;
}

static void resumable_add(void *client, const struct request *a, const char *data, size_t n)
{
    struct resumable *h = client;
    (void)a;
    buf_add(&h->relay.bytes, data, n);
    if (h->relay.bytes.failed || !server_charge(h->server, &h->charged, h->relay.bytes.cap))
        request_fail(h->request, 503, NULL, "too many large streams at once");
    relay_feed_all(&h->relay);
}

static void resumable_end(void *client, const char *data, size_t n)
{
    struct resumable *h = client;
    buf_add(&h->relay.bytes, data, n);
    resumable_over(h);
}

static void resumable_reply(void *client, const struct buf *body)
{
    struct resumable *h = client;
    h->whole = true;
    buf_add(&h->body, body->data, body->len);
    h->body.failed |= body->failed;
    server_charge(h->server, &h->charged, h->body.cap);
    resumable_over(h);
}

static void resumable_fail(void *client, const struct route *r, const struct failure *f)
{
    struct resumable *h = client;
    (void)r;
    h->failure = *f;
    resumable_over(h);
}

const struct recipient resumable_recipient = {.full = resumable_full,
                                              .add = resumable_add,
                                              .end = resumable_end,
                                              .reply = resumable_reply,
                                              .fail = resumable_fail};

/* ---- by id ---- */

static int64_t resumable_key(const struct conn *c)
{
    return c->key ? c->server->o->keys[c->key - 1].owner : 0;
}

static struct resumable *resumable_find(const struct conn *c, const char *id)
{
    for (struct resumable *h = c->server->resumable; h; h = h->next)
        if (!h->removed && h->key == resumable_key(c) && !strcmp(h->id, id))
            return h;
    return NULL;
}

static struct resumable *resumable_named(const struct conn *c)
{
    char id[RESUMABLE_ID_MOST + 1];
    return route_part(c, 0, id, sizeof id) ? resumable_find(c, id) : NULL;
}

bool resumable_is_asked(const struct conn *c)
{
    return c->route->resumes && http_field(&c->http, HEADER);
}

struct resumable *resumable_open(struct conn *c)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    const char *id = http_field(&c->http, HEADER);
    size_t n = strlen(id);
    struct server *s = c->server;
    struct resumable *h = NULL;
    if (n < RESUMABLE_ID_LEAST || n > RESUMABLE_ID_MOST || strspn(id, letters) != n)
        conn_failf(c, 400, NULL, "X-Stream-Id has %d to %d letters, digits, _ and -", RESUMABLE_ID_LEAST,
                   RESUMABLE_ID_MOST);
    else if (resumable_find(c, id))
        conn_failf(c, 409, NULL, "there is a stream of this id: GET /v1/streams/%s", id);
    else if (!(h = mem_zalloc(1, sizeof *h)))
        conn_failf(c, 503, NULL, "out of memory");
    if (!h)
        return NULL;
    *h = (struct resumable){
        .relay = {.kind = &resumable_kind}, .server = s, .route = c->route, .key = resumable_key(c)};
    snprintf(h->id, sizeof h->id, "%s", id);
    h->next = s->resumable;
    h->link = &s->resumable;
    if (h->next)
        h->next->link = &h->next;
    s->resumable = h;
    if (relay_follow(&h->relay, c, true))
        return h;
    resumable_free(h);
    return NULL;
}

void resumable_undo(struct resumable *h, struct conn *c)
{
    request_free(c->request);
    c->request = NULL;
    resumable_free(h);
}

void resumable_get(struct conn *c)
{
    struct resumable *h = resumable_named(c);
    if (!h) {
        conn_failf(c, 404, NULL, "there is no such stream, or it is kept no longer");
        return;
    }
    struct request *f = relay_follow(&h->relay, c, true);
    if (!f)
        return;
    f->type = format_for(h->route)->type;
    relay_feed(f);
}

/* Ends the request of one. */
static void resumable_abandon(struct resumable *h)
{
    struct request *a = h->request;
    h->request = NULL;
    if (a)
        request_abandon(a);
}

void resumable_delete(struct conn *c)
{
    struct resumable *h = resumable_named(c);
    struct buf out = {0};
    message_json(&out, json_pack("{s:s,s:b}", "object", "stream", "deleted", h != NULL));
    if (h) {
        h->removed = true;
        resumable_abandon(h);
        if (!h->relay.ended) {
            failure_set(&h->failure, 503, NULL, NULL, "the stream was ended by its client");
            resumable_over(h);
        }
    }
    route_json(c, 200, &out);
}

void resumable_expire(struct server *s, double now)
{
    for (struct resumable *h = s->resumable, *next; h; h = next) {
        next = h->next;
        if (h->relay.followers || !(h->removed || s->draining || now - h->since > RESUMABLE_SECONDS))
            continue;
        resumable_abandon(h);
        resumable_free(h);
    }
}

void resumable_stop(struct server *s)
{
    while (s->resumable) {
        resumable_abandon(s->resumable);
        resumable_free(s->resumable);
    }
}
