/* What is stored of a response: its JSON, its items, the events of one that streams in the background. */
#include "base/buf.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/threads.h"
#include "serve/message.h"
#include "serve/record.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/responses_background.h"
#include "serve/server_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Owns all that it points to: the request may end before it is written. */
struct stored {
    struct state_write write; /* of one that has no record */
    struct thread_response response;
    char previous[THREAD_ID], conversation[THREAD_ID];
    struct buf body, events;
    struct stored_items input, output;
};

static void stored_free(void *stored)
{
    struct stored *s = stored;
    buf_free(&s->body);
    buf_free(&s->events);
    responses_items_free(&s->input);
    responses_items_free(&s->output);
    mem_free(s);
}

static int stored_run(void *stored, sqlite3 *db, struct err *e)
{
    return thread_store(db, &((struct stored *)stored)->response, e);
}

/* Points the response at what is owned; -1: memory was out meanwhile. */
static int stored_point(struct stored *s)
{
    struct thread_response *r = &s->response;
    r->previous = s->previous[0] ? s->previous : NULL;
    r->conversation = s->conversation[0] ? s->conversation : NULL;
    r->body = s->body.data;
    r->events = s->events.len ? s->events.data : NULL;
    r->input = s->input.all;
    r->input_count = s->input.count;
    r->output = s->output.all;
    r->output_count = s->output.count;
    return s->body.failed || s->events.failed || !r->body ? -1 : 0;
}

static struct stored *stored_new(const json_t *response, int64_t key)
{
    struct stored *s = mem_zalloc(1, sizeof *s);
    const char *id = json_string_value(json_object_get(response, "id"));
    if (!s || !id) {
        mem_free(s);
        return NULL;
    }
    s->response = (struct thread_response){.key = key, .now = time(NULL), .store = true};
    snprintf(s->response.id, THREAD_ID, "%s", id);
    message_json(&s->body, json_incref((json_t *)(uintptr_t)response));
    return s;
}

static struct stored *stored_of(struct request *a, const json_t *response)
{
    struct responses *own = a->format_state;
    struct stored *s = stored_new(response, a->owner);
    if (!s)
        return NULL;
    s->response.store = own->store;
    memcpy(s->previous, own->previous, THREAD_ID);
    memcpy(s->conversation, own->conversation, THREAD_ID);
    s->input = own->input; /* taken over */
    own->input = (struct stored_items){0};
    return s;
}

void responses_keep(struct request *a, struct record *r)
{
    struct responses *own = a->format_state;
    size_t i;
    json_t *item;
    if (!own || !own->final || (!own->store && !own->conversation[0]))
        return;
    struct stored *s = stored_of(a, own->final);
    int failed = !s;
    json_array_foreach(own->output, i, item) failed = failed || responses_items_add(&s->output, item);
    if (!failed && own->runs) {
        s->response.removed = own->runs->removed;
        buf_add(&s->events, own->runs->relay.bytes.data, own->runs->relay.bytes.len);
        buf_add(&s->events, a->ending.data, own->runs->stream ? a->ending.len : 0);
    }
    if (failed || stored_point(s)) {
        if (s)
            stored_free(s);
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    r->kept = s;
    r->store = stored_run;
    r->drop = stored_free;
    r->kept_bytes = s->body.len + s->events.len + s->input.bytes + s->output.bytes;
}

/* ---- without a record ---- */

static int stored_write_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    return stored_run(w, db, e); /* the write is its first member */
}

static void stored_write_done(struct state_write *w)
{
    stored_free(w);
}

int responses_keep_begun(struct request *a)
{
    json_t *response = responses_make(a, "queued");
    struct stored *s = response ? stored_of(a, response) : NULL;
    struct err e = {0};
    json_decref(response);
    if (!s || stored_point(s)) {
        if (s)
            stored_free(s);
        return request_fail(a, 503, NULL, "out of memory");
    }
    s->response.running = true;
    s->write = (struct state_write){.run = stored_write_run, .bytes = s->body.len + s->input.bytes};
    int failed = state_write_wait(a->server->o->state, &s->write, &e);
    stored_free(s);
    if (failed)
        return request_fail_state(a, &e);
    a->detached = true;
    return 0;
}

void responses_keep_failed(struct background *b, const json_t *response)
{
    struct err e = {0};
    struct stored *s = stored_new(response, b->key);
    if (!s)
        return; /* the next start finds that it did not end */
    s->response.removed = b->removed;
    buf_add(&s->events, b->relay.bytes.data, b->relay.bytes.len);
    s->write = (struct state_write){
        .run = stored_write_run, .done = stored_write_done, .bytes = s->body.len + s->events.len};
    if (stored_point(s) || state_write(b->server->o->state, &s->write, &e))
        stored_free(s);
}
