#include "serve/conversations.h"

#include "base/log.h"
#include "save/state.h"
#include "save/threads.h"
#include "serve/field.h"
#include "serve/item_list.h"
#include "serve/message.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CONVERSATION_ITEMS = 20 }; /* of one request */

static const struct field conversation_fields[] = {
    {"items", FIELD_LIST, 0, CONVERSATION_ITEMS},
    {"metadata", FIELD_OBJECT, 0, 16},
};

static int conversation_missing(struct request *a, int missing, const struct err *e)
{
    if (missing < 0)
        return request_fail_state(a, e);
    return missing
               ? request_fail(a, 404, NULL, "there is no %s '%s', or it is kept no longer",
                              a->part[1][0] ? "item" : "conversation", log_safe(a->part[a->part[1][0] != 0]))
               : 0;
}

/* ---- changes ---- */

struct change {
    struct state_write write;
    struct request *request;
    int (*make)(struct change *c, sqlite3 *db, struct err *e); /* as in threads.h: 1 = there is none */
    char id[THREAD_ID];
    int64_t now;
    struct buf metadata;
    struct stored_items items;
    int missing;
};

static int change_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct change *c = (struct change *)w;
    c->missing = c->make(c, db, e);
    return c->missing < 0 ? -1 : 0;
}

/* Stores it; -1 and a failure. */
static int change_store(struct change *c)
{
    struct err e = {0};
    struct request *a = c->request;
    c->write = (struct state_write){.run = change_run, .bytes = c->metadata.len + c->items.bytes};
    c->now = time(NULL);
    return conversation_missing(a, state_write_wait(a->server->o->state, &c->write, &e) ? -1 : c->missing,
                                &e);
}

static void change_free(struct change *c)
{
    buf_free(&c->metadata);
    responses_items_free(&c->items);
}

/* Reads items and metadata of the body; -1 and a failure. `grows`: there has to be room. */
static int change_read(struct change *c, bool grows)
{
    struct request *a = c->request;
    const char *name = NULL;
    struct err e = {0};
    json_t *body = openai_body(a), *item, *messages = json_array();
    size_t i;
    int failed = !body || !messages;
    if (!failed && field_check(body, conversation_fields,
                               sizeof conversation_fields / sizeof *conversation_fields, &name, &e))
        failed = request_fail(a, 400, name, "%s", e.text);
    if (!failed && grows && state_check(a->server->o->state, &e))
        failed = request_fail_state(a, &e);
    json_array_foreach(json_object_get(body, "items"), i, item) failed =
        failed || responses_item(a, item, i, messages) || responses_items_add(&c->items, item);
    json_t *metadata = json_object_get(body, "metadata");
    if (!failed)
        message_json(&c->metadata, metadata ? json_incref(metadata) : json_object());
    json_decref(messages);
    json_decref(body);
    if ((failed || c->metadata.failed) && !a->failure.status)
        request_fail(a, 503, NULL, "out of memory");
    return a->failure.status ? -1 : 0;
}

static void conversation_write(struct request *a, const char *id, int64_t created, const struct buf *metadata)
{
    buf_printf(&a->reply, "{\"id\":\"%s\",\"object\":\"conversation\",\"created_at\":%lld,\"metadata\":%s}",
               id, (long long)created, metadata->len ? metadata->data : "{}");
}

static int make_create(struct change *c, sqlite3 *db, struct err *e)
{
    int64_t key = c->request->owner;
    return thread_create(db, key, c->id, c->now, c->metadata.data, e)
               ? -1
               : thread_add_items(db, key, c->id, c->now, c->items.all, c->items.count, e);
}

void conversations_create(struct request *a)
{
    struct change c = {.request = a, .make = make_create};
    server_name(c.id, sizeof c.id, "conv_");
    if (!change_read(&c, true) && !change_store(&c))
        conversation_write(a, c.id, c.now, &c.metadata);
    change_free(&c);
}

static int make_update(struct change *c, sqlite3 *db, struct err *e)
{
    return thread_set_metadata(db, c->request->owner, c->request->part[0], c->metadata.data, e);
}

void conversations_update(struct request *a)
{
    struct change c = {.request = a, .make = make_update};
    if (!change_read(&c, false) && !change_store(&c))
        conversations_read(a);
    change_free(&c);
}

static int make_remove(struct change *c, sqlite3 *db, struct err *e)
{
    return thread_delete_conversation(db, c->request->owner, c->request->part[0], e);
}

void conversations_remove(struct request *a)
{
    struct change c = {.request = a, .make = make_remove};
    if (!change_store(&c))
        message_json(&a->reply, json_pack("{s:s,s:s,s:b}", "id", a->part[0], "object", "conversation.deleted",
                                          "deleted", 1));
}

static int make_remove_item(struct change *c, sqlite3 *db, struct err *e)
{
    return thread_delete_item(db, c->request->owner, c->request->part[0], c->request->part[1], e);
}

void conversations_remove_item(struct request *a)
{
    struct change c = {.request = a, .make = make_remove_item};
    if (!change_store(&c))
        conversations_read(a);
}

static int make_add(struct change *c, sqlite3 *db, struct err *e)
{
    return thread_add_items(db, c->request->owner, c->request->part[0], c->now, c->items.all, c->items.count,
                            e);
}

void conversations_add(struct request *a)
{
    struct change c = {.request = a, .make = make_add};
    struct item_list list = {0};
    if (!change_read(&c, true) && !change_store(&c)) {
        for (size_t i = 0; i < c.items.count && item_list_take(&list, &c.items.all[i]); i++)
            ;
        item_list_write(&list, a, 0, list.count, false);
    }
    item_list_free(&list);
    change_free(&c);
}

/* ---- look-ups ---- */

static void metadata_take(void *metadata, const char *text, size_t n)
{
    buf_add(metadata, text, text ? n : 0);
}

void conversations_read(struct request *a)
{
    struct state *state = a->server->o->state;
    struct buf metadata = {0};
    struct err e = {0};
    int64_t created = 0;
    sqlite3 *db = state_reader(state);
    int missing = thread_conversation(db, a->owner, a->part[0], &created, metadata_take, &metadata, &e);
    state_release(state, db);
    if (!conversation_missing(a, missing, &e))
        conversation_write(a, a->part[0], created, &metadata);
    buf_free(&metadata);
}

/* One more than the page tells whether there are others. */
static int conversation_page(struct request *a, struct item_list *l, const char *only)
{
    struct state *state = a->server->o->state;
    struct thread_page page = {a->part[0], l->after, only, l->descending, (int64_t)l->limit + 1};
    struct err e = {0};
    sqlite3 *db = state_reader(state);
    int missing = thread_items(db, a->owner, &page, item_list_take, l, &e);
    state_release(state, db);
    return conversation_missing(a, missing, &e);
}

void conversations_items(struct request *a)
{
    struct item_list l = {0};
    if (!item_list_read(&l, a) && !conversation_page(a, &l, NULL))
        item_list_write(&l, a, 0, l.count < l.limit ? l.count : l.limit, l.count > l.limit);
    item_list_free(&l);
}

void conversations_item(struct request *a)
{
    struct item_list l = {.limit = 1};
    if (!conversation_page(a, &l, a->part[1]) && l.count && !l.failed)
        buf_add(&a->reply, l.all[0].body.data, l.all[0].body.len);
    item_list_free(&l);
}
