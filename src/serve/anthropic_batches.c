/* Anthropic's batches of messages. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "format/jsonread.h"
#include "save/sql.h"
#include "save/state.h"
#include "serve/batches.h"
#include "serve/field.h"
#include "serve/files.h"
#include "serve/limit.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/server_internal.h"
#include "serve/worker.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PAGE_USUAL = 20, PAGE_MOST = 1000, WINDOW = 24 * 3600, CUSTOM_ID = 64 };

static void message_batch_time(struct buf *out, const char *name, int64_t when)
{
    char text[40];
    struct tm tm;
    time_t t = (time_t)when;
    if (!when) {
        buf_printf(out, ",\"%s\":null", name);
        return;
    }
    gmtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_printf(out, ",\"%s\":\"%s\"", name, text);
}

/* All of it counts as being processed until the batch has ended. */
static void message_batch_write(const struct batch_row *b, struct buf *out)
{
    int64_t left = b->total - b->completed - b->failed;
    bool ended = b->ended != 0, cancelled = !strcmp(b->status, "cancelled");
    buf_printf(out,
               "{\"id\":\"%s\",\"type\":\"message_batch\",\"processing_status\":\"%s\",\"request_counts\":{",
               b->id,
               ended           ? "ended"
               : b->cancelling ? "canceling"
                               : "in_progress");
    buf_printf(out,
               "\"processing\":%lld,\"succeeded\":%lld,\"errored\":%lld,\"canceled\":%lld,\"expired\":%lld}",
               (long long)(ended ? 0 : b->total), (long long)(ended ? b->completed : 0),
               (long long)(ended ? b->failed : 0), (long long)(ended && cancelled ? left : 0),
               (long long)(ended && !cancelled ? left : 0));
    message_batch_time(out, "created_at", b->created);
    message_batch_time(out, "expires_at", b->expires);
    message_batch_time(out, "ended_at", b->ended);
    message_batch_time(out, "cancel_initiated_at", b->cancelling);
    buf_str(out, ",\"archived_at\":null,\"results_url\":");
    if (ended)
        buf_printf(out, "\"/v1/messages/batches/%s/results\"}", b->id);
    else
        buf_str(out, "null}");
}

void anthropic_batches_get(struct request *a)
{
    batches_show(a, BATCHES_ANTHROPIC, message_batch_write);
}

void anthropic_batches_list(struct request *a)
{
    const char *limit = field_text(a->json, "limit");
    struct batches_page p = {PAGE_USUAL, field_text(a->json, "after_id"), field_text(a->json, "before_id")};
    if (limit && !num_i64(limit, strlen(limit), 1, PAGE_MOST, &p.limit))
        request_fail(a, 400, "limit", "limit has to be from 1 to %d", PAGE_MOST);
    else
        batches_show_page(a, BATCHES_ANTHROPIC, &p, message_batch_write);
}

void anthropic_batches_cancel(struct request *a)
{
    if (!a->stage++)
        batches_start_cancel(a, BATCHES_ANTHROPIC);
    else if (!batches_cancelled(a))
        anthropic_batches_get(a);
}

/* ---- a new batch ---- */

struct message_create {
    struct state_write write;
    struct request *request;
    struct batch_new batch;
    const json_t *requests; /* of the request's body */
    bool many;
};

static int message_create_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct message_create *c = (struct message_create *)w;
    struct buf body = {0};
    int64_t number;
    int failed = batches_add(db, &c->batch, &number, e);
    c->many = failed > 0;
    for (size_t i = 0; i < json_array_size(c->requests) && !failed; i++) {
        const json_t *one = json_array_get(c->requests, i);
        buf_clear(&body);
        jsonread_write(&(struct json){.out = &body}, json_object_get(one, "params"));
        failed = body.failed
                     ? err_memory(e, "a batch", body.len)
                     : batches_add_line(db, number, (int64_t)i + 1,
                                        json_string_value(json_object_get(one, "custom_id")), &body, e);
    }
    buf_free(&body);
    return failed < 0 ? -1 : 0;
}

static void message_create_done(struct state_write *w)
{
    struct message_create *c = (struct message_create *)w;
    batches_changed(c->request->server);
    worker_again(c->request);
}

static bool message_id_is_right(const char *id)
{
    size_t n = id ? strlen(id) : 0;
    bool right = n > 0 && n <= CUSTOM_ID;
    for (size_t i = 0; i < n; i++)
        right &= isalnum((unsigned char)id[i]) || id[i] == '-' || id[i] == '_';
    return right;
}

/* Every request has an id of its own, and params. */
static int message_check(struct request *a, const json_t *requests)
{
    json_t *seen = json_object();
    int failed = seen ? 0 : request_fail(a, 503, NULL, "out of memory");
    for (size_t i = 0; i < json_array_size(requests) && !failed; i++) {
        const json_t *one = json_array_get(requests, i);
        const char *id = json_string_value(json_object_get(one, "custom_id"));
        if (!message_id_is_right(id))
            failed = request_fail(a, 400, "requests",
                                  "requests.%zu.custom_id has to be 1 to %d letters, digits, - or _", i,
                                  CUSTOM_ID);
        else if (json_object_get(seen, id))
            failed =
                request_fail(a, 400, "requests", "requests.%zu.custom_id: %s occurs twice", i, log_safe(id));
        else if (!json_is_object(json_object_get(one, "params")))
            failed = request_fail(a, 400, "requests", "requests.%zu.params has to be an object", i);
        else if (json_object_set_new(seen, id, json_true()))
            failed = request_fail(a, 503, NULL, "out of memory");
    }
    json_decref(seen);
    return failed;
}

static int message_create_read(struct request *a, struct message_create *c, const json_t *body)
{
    const json_t *requests = json_object_get(body, "requests");
    size_t n = json_array_size(requests);
    if (!n || n > limit_of(LIMIT_BATCH_LINES))
        return request_fail(a, 400, "requests", "requests has to be a list of 1 to %llu (limit batch-lines)",
                            (unsigned long long)limit_of(LIMIT_BATCH_LINES));
    if (message_check(a, requests))
        return -1;
    c->request = a;
    c->requests = requests;
    c->batch = (struct batch_new){.key = a->owner,
                                  .api = BATCHES_ANTHROPIC,
                                  .status = "in_progress",
                                  .endpoint = "/v1/messages",
                                  .window = "24h",
                                  .seconds = WINDOW,
                                  .total = (int64_t)n};
    server_name(c->batch.id, sizeof c->batch.id, "msgbatch_");
    return 0;
}

static void message_create_start(struct request *a)
{
    struct message_create *c = mem_zalloc(1, sizeof *c);
    size_t bytes = a->body.len;
    json_t *body = c ? openai_body(a) : NULL;
    struct err e = {0};
    a->task = c;
    a->drop_task = mem_free;
    if (!c)
        request_fail(a, 503, NULL, "out of memory");
    else if (body && !message_create_read(a, c, body)) {
        c->write =
            (struct state_write){.run = message_create_run, .done = message_create_done, .bytes = bytes};
        if (state_check(a->server->o->state, &e))
            request_fail_state(a, &e);
        else
            batches_write(a, &c->write);
    }
    json_decref(body); /* the request keeps a reference */
}

void anthropic_batches_create(struct request *a)
{
    if (!a->stage++) {
        message_create_start(a);
        return;
    }
    const struct message_create *c = a->task;
    if (c->write.err.code)
        request_fail_state(a, &c->write.err);
    else if (c->many)
        request_fail(a, 429, NULL, "%llu batches have not ended, which is the most (limit batches)",
                     (unsigned long long)limit_of(LIMIT_BATCHES));
    else {
        snprintf(a->part[0], sizeof a->part[0], "%s", c->batch.id);
        anthropic_batches_get(a);
    }
}

/* ---- results, removal ---- */

void anthropic_batches_results(struct request *a)
{
    struct state *s = a->server->o->state;
    struct err e = {0};
    struct sql q;
    struct batch_row row = {0};
    if (a->stage) {
        files_more(a);
        return;
    }
    sqlite3 *db = state_reader(s);
    bool found = batches_find(a, db, BATCHES_ANTHROPIC, &q, &e);
    if (found)
        batches_row(&q, &row);
    int failed = sql_end(&q);
    state_release(s, db);
    if (failed)
        request_fail_state(a, &e);
    else if (!found)
        request_fail(a, 404, "id", "there is no batch of this id");
    else if (!row.ended)
        request_fail(a, 400, "id", "the batch has not ended: there are no results yet");
    else
        files_stream(a, &(struct files_cursor){.batch = row.number, .side = -1}, "application/x-jsonl");
}

struct message_delete {
    struct state_write write;
    struct request *request;
    bool found, runs;
};

static int message_delete_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct message_delete *d = (struct message_delete *)w;
    struct sql q;
    struct batch_row row = {0};
    if ((d->found = batches_find(d->request, db, BATCHES_ANTHROPIC, &q, e)))
        batches_row(&q, &row);
    d->runs = d->found && !row.ended;
    if (sql_end(&q))
        return -1;
    if (!d->found || d->runs)
        return 0;
    sql_begin(&q, db, "DELETE FROM batches WHERE number = ?", e);
    sql_bind_int(&q, row.number);
    return sql_end(&q);
}

static void message_delete_done(struct state_write *w)
{
    worker_again(((struct message_delete *)w)->request);
}

void anthropic_batches_delete(struct request *a)
{
    if (!a->stage++) {
        struct message_delete *d = mem_zalloc(1, sizeof *d);
        if (!d) {
            request_fail(a, 503, NULL, "out of memory");
            return;
        }
        a->task = d;
        a->drop_task = mem_free;
        d->request = a;
        d->write = (struct state_write){.run = message_delete_run, .done = message_delete_done};
        batches_write(a, &d->write);
        return;
    }
    const struct message_delete *d = a->task;
    if (d->write.err.code)
        request_fail_state(a, &d->write.err);
    else if (!d->found)
        request_fail(a, 404, "id", "there is no batch of this id");
    else if (d->runs)
        request_fail(a, 400, "id", "the batch has not ended: cancel it first");
    else
        buf_printf(&a->reply, "{\"id\":\"%s\",\"type\":\"message_batch_deleted\"}", a->part[0]);
}
