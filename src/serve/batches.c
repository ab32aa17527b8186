#include "serve/batches.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "format/jsonread.h"
#include "save/sql.h"
#include "save/state.h"
#include "serve/field.h"
#include "serve/files.h"
#include "serve/limit.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/worker.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BATCHES_PAGE = 20, BATCHES_PAGE_MOST = 100, BATCHES_WINDOW_MOST = 30 * 24 * 3600 };

/* ---- rows ---- */

void batches_row(const struct sql *q, struct batch_row *b)
{
    int64_t *const numbers[] = {&b->number,     &b->created, &b->expires, &b->started,   &b->cancelling,
                                &b->finalizing, &b->ended,   &b->total,   &b->completed, &b->failed};
    const char **const texts[] = {&b->id,       &b->status, &b->endpoint, &b->input, &b->output,
                                  &b->failures, &b->window, &b->metadata, &b->errors};
    int column = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i] = sql_int(q, column++);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *texts[i] = sql_text(q, column++, NULL);
}

bool batches_find(struct request *a, sqlite3 *db, int api, struct sql *q, struct err *e)
{
    sql_begin(q, db, "SELECT " BATCHES_COLUMNS " FROM batches WHERE id = ? AND key = ? AND api = ?", e);
    sql_bind_text(q, a->part[0]);
    sql_bind_int(q, a->owner);
    sql_bind_int(q, api);
    return sql_step(q);
}

static int batches_missing(struct request *a)
{
    return request_fail(a, 404, "id", "there is no batch of this id");
}

void batches_show(struct request *a, int api, void (*write)(const struct batch_row *b, struct buf *out))
{
    struct state *s = a->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    struct sql q;
    struct batch_row row;
    bool found = batches_find(a, db, api, &q, &e);
    if (found) {
        batches_row(&q, &row);
        write(&row, &a->reply);
    }
    if (sql_end(&q))
        request_fail_state(a, &e);
    else if (!found)
        batches_missing(a);
    state_release(s, db);
}

void batches_show_page(struct request *a, int api, const struct batches_page *p,
                       void (*write)(const struct batch_row *b, struct buf *out))
{
    struct state *s = a->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    struct sql q;
    struct batch_row row;
    char first[BATCHES_ID] = "", last[BATCHES_ID] = "";
    int64_t count = 0;
    sql_begin(&q, db,
              "SELECT " BATCHES_COLUMNS
              " FROM batches WHERE key = ?1 AND api = ?2 AND (?3 IS NULL OR number < "
              "(SELECT number FROM batches WHERE id = ?3 AND key = ?1)) AND (?4 IS NULL OR number > "
              "(SELECT number FROM batches WHERE id = ?4 AND key = ?1)) ORDER BY number DESC LIMIT ?5",
              &e);
    sql_bind_int(&q, a->owner);
    sql_bind_int(&q, api);
    sql_bind_text(&q, p->after);
    sql_bind_text(&q, p->before);
    sql_bind_int(&q, p->limit + 1);
    buf_str(&a->reply, api == BATCHES_OPENAI ? "{\"object\":\"list\",\"data\":[" : "{\"data\":[");
    while (sql_step(&q) && count++ < p->limit) {
        batches_row(&q, &row);
        buf_str(&a->reply, count > 1 ? "," : "");
        write(&row, &a->reply);
        snprintf(last, sizeof last, "%s", row.id);
        if (count == 1)
            memcpy(first, last, sizeof first);
    }
    const char *quote = count ? "\"" : "";
    buf_printf(&a->reply, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}", quote,
               count ? first : "null", quote, quote, count ? last : "null", quote,
               count > p->limit ? "true" : "false");
    if (sql_end(&q))
        request_fail_state(a, &e);
    state_release(s, db);
}

int batches_add(sqlite3 *db, const struct batch_new *b, int64_t *number, struct err *e)
{
    struct sql q;
    int64_t now = time(NULL);
    if (sql_number(db, "SELECT count(*) FROM batches WHERE ended = 0", 0) >= (int64_t)limit_of(LIMIT_BATCHES))
        return 1;
    sql_begin(&q, db,
              "INSERT INTO batches (id, key, api, status, endpoint, input, window, metadata, created, "
              "expires, total, "
              "started) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
              e);
    sql_bind_text(&q, b->id);
    sql_bind_int(&q, b->key);
    sql_bind_int(&q, b->api);
    sql_bind_text(&q, b->status);
    sql_bind_text(&q, b->endpoint);
    sql_bind_text(&q, b->input);
    sql_bind_text(&q, b->window);
    sql_bind_text(&q, b->metadata);
    sql_bind_int(&q, now);
    sql_bind_int(&q, now + b->seconds);
    sql_bind_int(&q, b->total);
    sql_bind_int(&q, b->total ? now : 0);
    if (sql_end(&q))
        return -1;
    *number = sqlite3_last_insert_rowid(db);
    return 0;
}

int batches_add_line(sqlite3 *db, int64_t batch, int64_t number, const char *custom_id,
                     const struct buf *body, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, "INSERT INTO batch_lines (batch, number, custom_id, body) VALUES (?, ?, ?, ?)", e);
    sql_bind_int(&q, batch);
    sql_bind_int(&q, number);
    sql_bind_text(&q, custom_id);
    sql_bind_bytes(&q, body->data, body->len);
    return sql_end(&q);
}

void batches_write(struct request *a, struct state_write *w)
{
    struct err e = {0};
    a->waits = true;
    if (state_write(a->server->o->state, w, &e)) {
        a->waits = false;
        request_fail_state(a, &e);
    }
}

/* ---- cancel ---- */

struct batch_cancel {
    struct state_write write;
    struct request *request;
    int api;
    bool found;
};

static int batch_cancel_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct batch_cancel *c = (struct batch_cancel *)w;
    struct sql q;
    struct batch_row row = {0};
    if ((c->found = batches_find(c->request, db, c->api, &q, e)))
        batches_row(&q, &row);
    if (sql_end(&q))
        return -1;
    sql_begin(&q, db,
              "UPDATE batches SET status = 'cancelling', cancelling = ? WHERE number = ? AND ended = 0 AND "
              "cancelling = 0",
              e);
    sql_bind_int(&q, time(NULL));
    sql_bind_int(&q, row.number);
    return sql_end(&q);
}

static void batch_cancel_done(struct state_write *w)
{
    struct batch_cancel *c = (struct batch_cancel *)w;
    batches_changed(c->request->server);
    worker_again(c->request);
}

void batches_start_cancel(struct request *a, int api)
{
    struct batch_cancel *c = mem_zalloc(1, sizeof *c);
    if (!c) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    a->task = c;
    a->drop_task = mem_free;
    c->request = a;
    c->api = api;
    c->write = (struct state_write){.run = batch_cancel_run, .done = batch_cancel_done};
    batches_write(a, &c->write);
}

int batches_cancelled(struct request *a)
{
    const struct batch_cancel *c = a->task;
    return c->write.err.code ? request_fail_state(a, &c->write.err) : c->found ? 0 : batches_missing(a);
}

/* ---- OpenAI's ---- */

static void batch_time(struct json *j, const char *name, int64_t when)
{
    json_key(j, name);
    if (when)
        json_int(j, when);
    else
        json_nil(j);
}

static void batch_number(struct json *j, const char *name, int64_t n)
{
    json_key(j, name);
    json_int(j, n);
}

static void batch_text(struct json *j, const char *name, const char *text)
{
    json_key(j, name);
    json_str(j, text);
}

/* JSON that is stored as text; NULL writes null. */
static void batch_stored(struct json *j, const char *name, const char *text)
{
    struct err ignored = {0};
    json_t *v = text ? jsonread_value(text, strlen(text), &jsonread_config, name, &ignored) : NULL;
    json_key(j, name);
    if (v)
        jsonread_write(j, v);
    else
        json_nil(j);
    json_decref(v);
}

static void batch_write_object(const struct batch_row *b, struct buf *out)
{
    static const char *const ends[][2] = {{"completed", "completed_at"},
                                          {"failed", "failed_at"},
                                          {"expired", "expired_at"},
                                          {"cancelled", "cancelled_at"}};
    struct json j = {.out = out};
    json_begin(&j, '{');
    batch_text(&j, "id", b->id);
    batch_text(&j, "object", "batch");
    batch_text(&j, "endpoint", b->endpoint);
    batch_stored(&j, "errors", b->errors);
    batch_text(&j, "input_file_id", b->input);
    batch_text(&j, "completion_window", b->window);
    batch_text(&j, "status", b->status);
    batch_text(&j, "output_file_id", b->output);
    batch_text(&j, "error_file_id", b->failures);
    batch_time(&j, "created_at", b->created);
    batch_time(&j, "in_progress_at", b->started);
    batch_time(&j, "expires_at", b->expires);
    batch_time(&j, "finalizing_at", b->finalizing);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        batch_time(&j, ends[i][1], !strcmp(b->status, ends[i][0]) ? b->ended : 0);
    batch_time(&j, "cancelling_at", b->cancelling);
    json_key(&j, "request_counts");
    json_begin(&j, '{');
    batch_number(&j, "total", b->total);
    batch_number(&j, "completed", b->completed);
    batch_number(&j, "failed", b->failed);
    json_end(&j, '}');
    batch_stored(&j, "metadata", b->metadata);
    json_end(&j, '}');
}

void batches_get(struct request *a)
{
    batches_show(a, BATCHES_OPENAI, batch_write_object);
}

void batches_list(struct request *a)
{
    struct files_page p;
    if (!files_page(a, BATCHES_PAGE, BATCHES_PAGE_MOST, &p))
        batches_show_page(a, BATCHES_OPENAI, &(struct batches_page){p.limit, p.after, NULL},
                          batch_write_object);
}

void batches_cancel(struct request *a)
{
    if (!a->stage++)
        batches_start_cancel(a, BATCHES_OPENAI);
    else if (!batches_cancelled(a))
        batches_get(a);
}

/* ---- OpenAI's: a new batch ---- */

struct batch_create {
    struct state_write write;
    struct request *request;
    struct batch_new batch;
    struct buf metadata;
    char input[FILES_ID], endpoint[64], window[32];
    bool missing, many; /* there is no such file; there are too many batches */
};

static int batch_create_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct batch_create *c = (struct batch_create *)w;
    struct sql q;
    int64_t number;
    sql_begin(&q, db, "SELECT 1 FROM files WHERE id = ? AND key = ? AND batch IS NULL", e);
    sql_bind_text(&q, c->input);
    sql_bind_int(&q, c->request->owner);
    c->missing = !sql_step(&q);
    c->many = false;
    if (sql_end(&q))
        return -1;
    int added = c->missing ? 0 : batches_add(db, &c->batch, &number, e);
    c->many = added > 0;
    return added < 0 ? -1 : 0;
}

static void batch_create_done(struct state_write *w)
{
    struct batch_create *c = (struct batch_create *)w;
    batches_changed(c->request->server);
    worker_again(c->request);
}

static void batch_create_free(void *task)
{
    struct batch_create *c = task;
    buf_free(&c->metadata);
    mem_free(c);
}

/* Up to 16 texts of up to 512 bytes. */
static int batch_metadata(struct request *a, const json_t *metadata, struct buf *out)
{
    const char *name;
    json_t *v;
    bool fine = !metadata || (json_is_object(metadata) && json_object_size(metadata) <= 16);
    json_object_foreach((json_t *)(uintptr_t)metadata, name, v) fine &=
        json_is_string(v) && json_string_length(v) <= 512 && strlen(name) <= 64;
    if (!fine)
        return request_fail(a, 400, "metadata",
                            "metadata has to be an object of at most 16 texts, of up to 512 bytes each");
    if (metadata)
        jsonread_write(&(struct json){.out = out}, metadata);
    return out->failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

static int batch_create_read(struct request *a, struct batch_create *c, const json_t *body)
{
    const char *input = field_text(body, "input_file_id"), *endpoint = field_text(body, "endpoint");
    const char *window = field_text(body, "completion_window");
    double seconds = 0;
    if (!input || strlen(input) >= sizeof c->input)
        return request_fail(a, 400, "input_file_id", "input_file_id has to be the id of a file");
    const struct route *r = endpoint ? route_batch(endpoint) : NULL;
    if (!r || r->api == API_ANTHROPIC || strlen(endpoint) >= sizeof c->endpoint)
        return request_fail(
            a, 400, "endpoint",
            "endpoint has to be /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses");
    if (!window || strlen(window) >= sizeof c->window || !num_duration(window, strlen(window), &seconds) ||
        seconds < 1 || seconds > BATCHES_WINDOW_MOST)
        return request_fail(a, 400, "completion_window",
                            "completion_window has to be a time such as 24h, up to 720h");
    if (batch_metadata(a, json_object_get(body, "metadata"), &c->metadata))
        return -1;
    snprintf(c->input, sizeof c->input, "%s", input);
    snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    snprintf(c->window, sizeof c->window, "%s", window);
    c->batch = (struct batch_new){.key = a->owner,
                                  .api = BATCHES_OPENAI,
                                  .status = "validating",
                                  .endpoint = c->endpoint,
                                  .input = c->input,
                                  .window = c->window,
                                  .metadata = c->metadata.len ? c->metadata.data : NULL,
                                  .seconds = (int64_t)seconds};
    server_name(c->batch.id, sizeof c->batch.id, "batch_");
    return 0;
}

static void batch_create_start(struct request *a)
{
    struct batch_create *c = mem_zalloc(1, sizeof *c);
    json_t *body = c ? openai_body(a) : NULL;
    struct err e = {0};
    a->task = c;
    a->drop_task = c ? batch_create_free : NULL;
    if (!c)
        request_fail(a, 503, NULL, "out of memory");
    else if (body && !batch_create_read(a, c, body)) {
        c->request = a;
        c->write = (struct state_write){.run = batch_create_run, .done = batch_create_done};
        if (state_check(a->server->o->state, &e))
            request_fail_state(a, &e);
        else
            batches_write(a, &c->write);
    }
    json_decref(body);
}

void batches_create(struct request *a)
{
    if (!a->stage++) {
        batch_create_start(a);
        return;
    }
    const struct batch_create *c = a->task;
    if (c->write.err.code)
        request_fail_state(a, &c->write.err);
    else if (c->missing)
        request_fail(a, 400, "input_file_id", "there is no file %s", log_safe(c->input));
    else if (c->many)
        failure_set(&a->failure, 429, "rate_limit_exceeded", NULL,
                    "%llu batches have not ended, which is the most (limit batches)",
                    (unsigned long long)limit_of(LIMIT_BATCHES));
    else {
        snprintf(a->part[0], sizeof a->part[0], "%s", c->batch.id);
        batches_get(a);
    }
}
