#include "serve/responses_background.h"

#include "base/mem.h"
#include "base/num.h"
#include "save/state.h"
#include "serve/conn.h"
#include "serve/failure.h"
#include "serve/message.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <stdio.h>
#include <string.h>

static const struct recipient background_recipient;

/* ---- followers ---- */

/* Where the event of this number begins: they are numbered in order. */
static size_t event_at(const struct buf *events, uint64_t number)
{
    size_t at = 0;
    while (number-- && at < events->len) {
        const char *end = strstr(events->data + at, "\n\n");
        at = end ? (size_t)(end - events->data) + 2 : events->len;
    }
    return at;
}

static int event_count(const struct buf *events)
{
    int n = 0;
    for (const char *at = events->data; at && (at = strstr(at, "\n\n")); at += 2)
        n++;
    return n;
}

static void background_free(struct background *b)
{
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
    buf_free(&b->relay.bytes);
    json_decref(b->base);
    json_decref(b->final);
    mem_free(b);
}

static void background_answer(struct background *b, struct request *f)
{
    struct buf out = {0};
    bool removes = !strcmp(f->route->method, "DELETE");
    message_json(&out, removes ? json_pack("{s:s,s:s,s:b}", "id", b->id, "object", "response", "deleted", 1)
                               : json_incref(b->final));
    f->to->reply(f->client, &out);
    buf_free(&out);
    request_free(f);
}

static void background_finish(struct relay *r, struct request *f)
{
    if (!f->stream) {
        background_answer((struct background *)r, f);
        return;
    }
    f->to->end(f->client, NULL, 0);
    request_free(f);
}

static void background_left(struct relay *r)
{
    if (r->ended)
        background_free((struct background *)r);
}

static const struct relay_kind background_kind = {background_finish, background_left};

/* ---- the request ---- */

static struct background *background_new(struct request *a)
{
    struct responses *own = a->format_state;
    struct background *b = mem_zalloc(1, sizeof *b);
    json_t *base = responses_make(a, "queued");
    if (!b || !base) {
        json_decref(base);
        mem_free(b);
        return NULL;
    }
    struct server *s = a->server;
    *b = (struct background){.relay = {.kind = &background_kind},
                             .server = s,
                             .request = a,
                             .key = a->owner,
                             .stream = a->stream,
                             .base = base};
    snprintf(b->id, sizeof b->id, "%s", json_string_value(json_object_get(base, "id")));
    b->next = s->background;
    b->link = &s->background;
    if (b->next)
        b->next->link = &b->next;
    s->background = b;
    own->runs = b;
    return b;
}

void background_begin(struct request *a)
{
    struct conn *c = a->client;
    bool refused = a->failure.status; /* after its beginning was stored: by the engine's queue */
    struct background *b = background_new(a);
    if (!b) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    a->to = &background_recipient;
    a->client = b;
    if (refused) { /* the client gets the failure, and nothing of it stays */
        struct failure f = a->failure;
        b->removed = true;
        if (c)
            conn_recipient.fail(c, a->route, &f);
        return;
    }
    if (!c)
        return;
    if (a->stream) {
        relay_follow(&b->relay, c, true);
        return;
    }
    struct buf out = {0};
    message_json(&out, json_incref(b->base));
    conn_recipient.reply(c, &out);
    buf_free(&out);
}

/* It has ended: those that follow get the rest. */
static void background_over(struct background *b, json_t *final)
{
    b->request = NULL;
    b->relay.ended = true;
    b->final = final;
    if (b->relay.followers)
        relay_feed_all(&b->relay);
    else
        background_free(b);
}

static bool background_full(const void *client)
{
    (void)client;
    return false;
}

static void background_add(void *client, const struct request *a, const char *data, size_t n)
{
    struct background *b = client;
    (void)a;
    buf_add(&b->relay.bytes, data, n);
    relay_feed_all(&b->relay);
}

static void background_end(void *client, const char *data, size_t n)
{
    struct background *b = client;
    const struct responses *own = b->request->format_state;
    buf_add(&b->relay.bytes, data, n);
    background_over(b, json_incref(own->final));
}

static void background_reply(void *client, const struct buf *body)
{
    (void)body;
    background_end(client, NULL, 0);
}

static void background_fail(void *client, const struct route *r, const struct failure *f)
{
    struct background *b = client;
    json_t *final = json_copy(b->base);
    (void)r;
    json_object_set_new(final, "status", json_string("failed"));
    json_object_set_new(final, "error",
                        json_pack("{s:s,s:o}", "code", "server_error", "message",
                                  message_string(f->err.text, strlen(f->err.text))));
    if (b->stream)
        message_event(&b->relay.bytes,
                      json_pack("{s:s,s:i,s:O}", "type", "response.failed", "sequence_number",
                                event_count(&b->relay.bytes), "response", final));
    responses_keep_failed(b, final);
    background_over(b, final);
}

static const struct recipient background_recipient = {.full = background_full,
                                                      .add = background_add,
                                                      .end = background_end,
                                                      .reply = background_reply,
                                                      .fail = background_fail};

/* ---- routes ---- */

/* The one that the path names, where it belongs to the client's key and still runs. */
static struct background *background_named(struct conn *c)
{
    char id[THREAD_ID];
    int64_t key = c->key ? c->server->o->keys[c->key - 1].owner : 0;
    bool named = route_part(c, 0, id, sizeof id);
    for (struct background *b = c->server->background; named && b; b = b->next)
        if (b->request && b->key == key && !strcmp(b->id, id))
            return b;
    return NULL;
}

void responses_get(struct conn *c)
{
    struct background *b = background_named(c);
    char stream[8] = "", after[24] = "";
    uint64_t number = 0;
    struct buf out = {0};
    if (!b) {
        request_start(c);
        return;
    }
    route_query(c, "stream", stream, sizeof stream);
    bool from = route_query(c, "starting_after", after, sizeof after);
    if (strcmp(stream, "true") != 0) {
        message_json(&out, responses_make(b->request, b->request->first ? "in_progress" : "queued"));
        route_json(c, 200, &out);
    } else if (!b->stream || (from && !num_u64(after, strlen(after), INT32_MAX, &number)))
        conn_failf(c, 400, NULL, "%s",
                   b->stream ? "starting_after is the number of an event"
                             : "the response was not made with stream: true; it has no events");
    else {
        struct request *f = relay_follow(&b->relay, c, true);
        if (f)
            f->fed = from ? event_at(&b->relay.bytes, number + 1) : 0;
        if (f)
            relay_feed(f);
    }
}

/* Ends it with what it has. The client gets its answer when that is stored. */
static void background_cancel(struct background *b, struct conn *c)
{
    struct responses *own = b->request->format_state;
    if (!relay_follow(&b->relay, c, false) || b->request->ended)
        return;
    own->cancelled = true;
    request_stop(b->request);
}

void responses_cancel(struct conn *c)
{
    struct background *b = background_named(c);
    if (b)
        background_cancel(b, c);
    else
        request_start(c);
}

void responses_delete(struct conn *c)
{
    struct background *b = background_named(c);
    if (!b || b->request->ended) { /* the end of it is being stored: the deletion comes after it */
        request_start(c);
        return;
    }
    b->removed = true;
    background_cancel(b, c);
}

/* ---- start and end of the server ---- */

void background_stop(struct server *s)
{
    while (s->background) {
        struct background *b = s->background;
        struct request *a = b->request;
        b->request = NULL;
        b->relay.ended = true;
        if (a)
            request_free(a);
        if (b->relay.followers)
            relay_feed_all(&b->relay);
        else
            background_free(b);
    }
}

static int recover_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    (void)w;
    return thread_fail_running(db,
                               "{\"code\":\"server_error\",\"message\":\"the server was restarted before the "
                               "response was complete\"}",
                               e);
}

int background_recover(struct state *s, struct err *e)
{
    struct state_write w = {.run = recover_run};
    return state_write_wait(s, &w, e);
}
