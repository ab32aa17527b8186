/* Stored responses, looked up and removed on a worker. */
#include "base/log.h"
#include "base/num.h"
#include "save/state.h"
#include "save/threads.h"
#include "serve/field.h"
#include "serve/item_list.h"
#include "serve/message.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <string.h>

static int stored_missing(struct request *a, int missing, const struct err *e)
{
    if (missing < 0)
        return request_fail_state(a, e);
    return missing ? request_fail(a, 404, NULL, "there is no response '%s', or it is kept no longer",
                                  log_safe(a->part[0]))
                   : 0;
}

struct stored_body {
    struct buf body, events;
    bool has_events;
};

static void stored_got(void *stored, const char *body, size_t n, const char *events, size_t events_n)
{
    struct stored_body *s = stored;
    buf_add(&s->body, body, n);
    buf_add(&s->events, events, events ? events_n : 0);
    s->has_events = events;
}

/* The body of the response that the path names; -1 and a failure. */
static int stored_read(struct request *a, struct stored_body *out)
{
    struct state *state = a->server->o->state;
    struct err e = {0};
    bool running;
    sqlite3 *db = state_reader(state);
    int missing = thread_response_body(db, a->owner, a->part[0], &running, stored_got, out, &e);
    state_release(state, db);
    return stored_missing(a, missing, &e);
}

/* The events after the one of this number. */
static void stored_events(struct request *a, const struct buf *events, uint64_t number)
{
    const char *at = events->data;
    while (number-- && at)
        at = (at = strstr(at, "\n\n")) ? at + 2 : NULL;
    if (at)
        buf_add(&a->reply, at, events->len - (size_t)(at - events->data));
    a->type = "text/event-stream";
}

void responses_read(struct request *a)
{
    const char *stream = field_text(a->json, "stream"), *after = field_text(a->json, "starting_after");
    struct stored_body s = {0};
    uint64_t number = 0;
    if (after && !num_u64(after, strlen(after), INT32_MAX, &number))
        request_fail(a, 400, "starting_after", "starting_after is the number of an event");
    else if (stored_read(a, &s))
        ;
    else if (!stream || strcmp(stream, "true") != 0)
        buf_add(&a->reply, s.body.data, s.body.len);
    else if (!s.has_events)
        request_fail(a, 400, "stream",
                     "only a response that was made with background: true and stream: true has events");
    else
        stored_events(a, &s.events, after ? number + 1 : 0);
    buf_free(&s.body);
    buf_free(&s.events);
}

/* One that runs is cancelled by the loop. */
void responses_cancel_ended(struct request *a)
{
    struct stored_body s = {0};
    if (!stored_read(a, &s)) {
        json_t *response = json_loadb(s.body.data, s.body.len, 0, NULL);
        if (json_is_true(json_object_get(response, "background")))
            buf_add(&a->reply, s.body.data, s.body.len);
        else
            request_fail(a, 400, NULL, "only a response with background: true can be cancelled");
        json_decref(response);
    }
    buf_free(&s.body);
    buf_free(&s.events);
}

struct removal {
    struct state_write write;
    const struct request *request;
    int missing;
};

static int removal_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct removal *r = (struct removal *)w;
    r->missing = thread_delete_response(db, r->request->owner, r->request->part[0], e);
    return r->missing < 0 ? -1 : 0;
}

void responses_remove(struct request *a)
{
    struct removal r = {.write = {.run = removal_run}, .request = a};
    struct err e = {0};
    int failed = state_write_wait(a->server->o->state, &r.write, &e);
    if (!stored_missing(a, failed ? -1 : r.missing, &e))
        message_json(&a->reply,
                     json_pack("{s:s,s:s,s:b}", "id", a->part[0], "object", "response", "deleted", 1));
}

/* All items, since they are found along the chain; the page is cut out of them. */
void responses_input_items(struct request *a)
{
    struct state *state = a->server->o->state;
    struct item_list list = {0};
    struct err e = {0};
    if (item_list_read(&list, a))
        return;
    sqlite3 *db = state_reader(state);
    int missing = thread_chain(db, a->owner, a->part[0], false, item_list_take, &list, &e);
    state_release(state, db);
    if (!stored_missing(a, missing, &e))
        item_list_write_page(&list, a);
    item_list_free(&list);
}
