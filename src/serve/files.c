#define _GNU_SOURCE
#include "serve/files.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "save/sql.h"
#include "save/state.h"
#include "serve/field.h"
#include "serve/limit.h"
#include "serve/multipart.h"
#include "serve/request.h"
#include "serve/server_internal.h"
#include "serve/worker.h"

#include <stdio.h>
#include <string.h>

enum { FILES_PART = 256 << 10, FILES_USUAL = 10000 };

#define FILES_COLUMNS "number, id, created, expires, name, purpose, bytes, batch, side"

static void files_write(struct json *j, const struct sql *q)
{
    json_begin(j, '{');
    json_key(j, "id");
    json_str(j, sql_text(q, 1, NULL));
    json_key(j, "object");
    json_str(j, "file");
    json_key(j, "bytes");
    json_int(j, sql_int(q, 6));
    json_key(j, "created_at");
    json_int(j, sql_int(q, 2));
    json_key(j, "expires_at");
    if (sql_is_null(q, 3))
        json_nil(j);
    else
        json_int(j, sql_int(q, 3));
    json_key(j, "filename");
    json_str(j, sql_text(q, 4, NULL));
    json_key(j, "purpose");
    json_str(j, sql_text(q, 5, NULL));
    json_key(j, "status");
    json_str(j, "processed");
    json_key(j, "status_details");
    json_nil(j);
    json_end(j, '}');
}

static int files_missing(struct request *a)
{
    return request_fail(a, 404, "id", "there is no file of this id, or it is kept no longer");
}

/* The row of a file of this key; false and a failure: there is none. */
static bool files_find(struct request *a, sqlite3 *db, struct sql *q, struct err *e)
{
    sql_begin(q, db, "SELECT " FILES_COLUMNS " FROM files WHERE id = ? AND key = ?", e);
    sql_bind_text(q, a->part[0]);
    sql_bind_int(q, a->owner);
    return sql_step(q);
}

/* ---- upload ---- */

struct file_put {
    struct state_write write;
    struct request *request;
    char id[FILES_ID], name[MULTIPART_NAME], purpose[64];
    int64_t created, expires; /* 0 = never */
    const char *data;         /* (n), in the body of the request */
    size_t n;
};

static int file_put_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    const struct file_put *p = (const struct file_put *)w;
    struct sql q;
    sql_begin(
        &q, db,
        "INSERT INTO files (id, key, created, expires, name, purpose, bytes) VALUES (?, ?, ?, ?, ?, ?, ?)",
        e);
    sql_bind_text(&q, p->id);
    sql_bind_int(&q, p->request->owner);
    sql_bind_int(&q, p->created);
    if (p->expires)
        sql_bind_int(&q, p->expires);
    else
        sql_bind_null(&q);
    sql_bind_text(&q, p->name);
    sql_bind_text(&q, p->purpose);
    sql_bind_int(&q, (int64_t)p->n);
    if (sql_end(&q))
        return -1;
    int64_t number = sqlite3_last_insert_rowid(db);
    for (size_t at = 0; at < p->n; at += FILES_PART) {
        size_t n = p->n - at < FILES_PART ? p->n - at : FILES_PART;
        sql_begin(&q, db, "INSERT INTO file_parts VALUES (?, ?, ?)", e);
        sql_bind_int(&q, number);
        sql_bind_int(&q, (int64_t)(at / FILES_PART) + 1);
        sql_bind_bytes(&q, p->data + at, n);
        if (sql_end(&q))
            return -1;
    }
    return 0;
}

static void file_put_done(struct state_write *w)
{
    worker_again(((struct file_put *)w)->request);
}

/* A field of the form as text; "" = there is none. */
static void form_text(const struct multipart *m, const char *name, char *out, size_t size)
{
    const struct multipart_part *p = multipart_find(m, name);
    snprintf(out, size, "%.*s", p && p->n < size ? (int)p->n : 0, p ? p->data : "");
}

static int file_read_form(struct request *a, struct file_put *p, const struct multipart *m)
{
    char seconds[32];
    int64_t keep = 0;
    const struct multipart_part *file = multipart_find(m, "file");
    form_text(m, "purpose", p->purpose, sizeof p->purpose);
    form_text(m, "expires_after[seconds]", seconds, sizeof seconds);
    if (!file)
        return request_fail(a, 400, "file", "the form has no file");
    if (!p->purpose[0])
        return request_fail(a, 400, "purpose", "the form has no purpose: 'batch', for a batch");
    if (file->n > limit_of(LIMIT_FILE))
        return request_fail(a, 413, "file", "the file has more than %llu bytes (limit file)",
                            (unsigned long long)limit_of(LIMIT_FILE));
    if (seconds[0] && !num_i64(seconds, strlen(seconds), 3600, (int64_t)3600 * 24 * 36500, &keep))
        return request_fail(a, 400, "expires_after",
                            "expires_after[seconds] has to be a number from 3600 on");
    p->data = file->data;
    p->n = file->n;
    snprintf(p->name, sizeof p->name, "%s", file->filename[0] ? file->filename : "file");
    p->created = time(NULL);
    if (!keep && !strcmp(p->purpose, "batch"))
        keep = (int64_t)limit_of(LIMIT_FILE_DAYS) * 24 * 3600;
    p->expires = keep ? p->created + keep : 0;
    server_name(p->id, sizeof p->id, "file-");
    return 0;
}

/* The form is read and its file handed to the writer. */
static int file_put_start(struct request *a)
{
    struct file_put *p = mem_zalloc(1, sizeof *p);
    struct multipart *m = mem_alloc(1, sizeof *m);
    struct err e = {0};
    a->task = p;
    a->drop_task = mem_free;
    int failed = 0;
    if (!p || !m || !a->boundary)
        failed = request_fail(a, 503, NULL, "out of memory");
    else if (multipart_read(a->boundary, a->body.data ? a->body.data : "", a->body.len, m, &e))
        failed = request_fail(a, 400, NULL, "%s", e.text);
    else
        failed = file_read_form(a, p, m);
    mem_free(m);
    if (failed)
        return -1;
    p->request = a;
    p->write = (struct state_write){.run = file_put_run, .done = file_put_done, .bytes = p->n};
    a->waits = true;
    if (!state_check(a->server->o->state, &e) && !state_write(a->server->o->state, &p->write, &e))
        return 0;
    a->waits = false;
    return request_fail_state(a, &e);
}

void files_create(struct request *a)
{
    if (!a->stage++) {
        file_put_start(a);
        return;
    }
    const struct file_put *p = a->task;
    if (p->write.err.code) {
        request_fail_state(a, &p->write.err);
        return;
    }
    snprintf(a->part[0], sizeof a->part[0], "%s", p->id);
    files_get(a);
}

/* ---- look-ups ---- */

void files_get(struct request *a)
{
    struct state *s = a->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    struct sql q;
    bool found = files_find(a, db, &q, &e);
    if (found)
        files_write(&(struct json){.out = &a->reply}, &q);
    if (sql_end(&q))
        request_fail_state(a, &e);
    else if (!found)
        files_missing(a);
    state_release(s, db);
}

int files_page(struct request *a, int64_t usual, int64_t most, struct files_page *out)
{
    const char *limit = field_text(a->json, "limit"), *order = field_text(a->json, "order");
    *out = (struct files_page){.limit = usual, .after = field_text(a->json, "after")};
    if (limit && !num_i64(limit, strlen(limit), 1, most, &out->limit))
        return request_fail(a, 400, "limit", "limit has to be from 1 to %lld", (long long)most);
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return request_fail(a, 400, "order", "order has to be asc or desc");
    out->ascending = order && !strcmp(order, "asc");
    return 0;
}

static void files_list_rows(struct request *a, const struct files_page *p, struct sql *q)
{
    struct json j = {.out = &a->reply};
    char first[FILES_ID] = "", last[FILES_ID] = "";
    int64_t count = 0;
    json_begin(&j, '{');
    json_key(&j, "object");
    json_str(&j, "list");
    json_key(&j, "data");
    json_begin(&j, '[');
    while (sql_step(q) && count++ < p->limit) {
        files_write(&j, q);
        snprintf(last, sizeof last, "%s", sql_text(q, 1, NULL));
        if (count == 1)
            memcpy(first, last, sizeof first);
    }
    json_end(&j, ']');
    json_key(&j, "first_id");
    json_str(&j, count ? first : NULL);
    json_key(&j, "last_id");
    json_str(&j, count ? last : NULL);
    json_key(&j, "has_more");
    json_bool(&j, count > p->limit);
    json_end(&j, '}');
}

void files_list(struct request *a)
{
    struct state *s = a->server->o->state;
    struct files_page p;
    struct err e = {0};
    struct sql q;
    if (files_page(a, FILES_USUAL, FILES_USUAL, &p))
        return;
    sqlite3 *db = state_reader(s);
    sql_begin(&q, db,
              p.ascending
                  ? "SELECT " FILES_COLUMNS " FROM files WHERE key = ?1 AND (?2 IS NULL OR number > "
                    "(SELECT number FROM files WHERE id = ?2 AND key = ?1)) AND (?3 IS NULL OR purpose = ?3) "
                    "ORDER BY number LIMIT ?4"
                  : "SELECT " FILES_COLUMNS " FROM files WHERE key = ?1 AND (?2 IS NULL OR number < "
                    "(SELECT number FROM files WHERE id = ?2 AND key = ?1)) AND (?3 IS NULL OR purpose = ?3) "
                    "ORDER BY number DESC LIMIT ?4",
              &e);
    sql_bind_int(&q, a->owner);
    sql_bind_text(&q, p.after);
    sql_bind_text(&q, field_text(a->json, "purpose"));
    sql_bind_int(&q, p.limit + 1);
    files_list_rows(a, &p, &q);
    if (sql_end(&q))
        request_fail_state(a, &e);
    state_release(s, db);
}

/* ---- content ---- */

int files_read(sqlite3 *db, struct files_cursor *c, struct buf *out, struct err *e)
{
    struct sql q;
    size_t n;
    bool more = false;
    if (c->file)
        sql_begin(&q, db, "SELECT part, data FROM file_parts WHERE file = ? AND part > ? ORDER BY part", e);
    else
        sql_begin(
            &q, db,
            "SELECT number, reply, status FROM batch_lines WHERE batch = ?1 AND number > ?2 AND reply IS NOT "
            "NULL AND (?3 < 0 OR (status != 200) = ?3) ORDER BY number",
            e);
    sql_bind_int(&q, c->file ? c->file : c->batch);
    sql_bind_int(&q, c->at);
    if (!c->file)
        sql_bind_int(&q, c->side);
    while (!more && sql_step(&q)) {
        const char *data = sql_text(&q, 1, &n);
        buf_add(out, data, n);
        c->at = sql_int(&q, 0);
        more = out->len >= FILES_PART || out->failed;
    }
    q.ended = true; /* the rest is for the next call */
    if (sql_end(&q))
        return -1;
    return out->failed ? err_memory(e, "a part of a file", FILES_PART) : more;
}

void files_more(struct request *a)
{
    struct state *s = a->server->o->state;
    sqlite3 *db = state_reader(s);
    struct err e = {0};
    int more = files_read(db, a->task, &a->reply, &e);
    state_release(s, db);
    a->partial = more > 0;
    if (more < 0)
        request_fail_state(a, &e);
}

void files_stream(struct request *a, const struct files_cursor *c, const char *type)
{
    struct files_cursor *own = mem_zalloc(1, sizeof *own);
    if (!own) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    *own = *c;
    a->task = own;
    a->drop_task = mem_free;
    a->type = type;
    a->stage = 1;
    files_more(a);
}

void files_content(struct request *a)
{
    struct state *s = a->server->o->state;
    struct err e = {0};
    struct sql q;
    struct files_cursor c = {0};
    if (a->stage) {
        files_more(a);
        return;
    }
    sqlite3 *db = state_reader(s);
    bool found = files_find(a, db, &q, &e);
    if (found && sql_is_null(&q, 7))
        c.file = sql_int(&q, 0);
    else if (found)
        c = (struct files_cursor){.batch = sql_int(&q, 7), .side = (int)sql_int(&q, 8)};
    int failed = sql_end(&q);
    state_release(s, db);
    if (failed)
        request_fail_state(a, &e);
    else if (!found)
        files_missing(a);
    else
        files_stream(a, &c, "application/octet-stream");
}

/* ---- removal ---- */

/* Removes a file, and where it is an output, the replies. */
static int files_remove(sqlite3 *db, int64_t number, struct err *e)
{
    struct sql q;
    sql_begin(&q, db,
              "DELETE FROM batch_lines WHERE batch = (SELECT batch FROM files WHERE number = ?1) AND "
              "(status != 200) = (SELECT side FROM files WHERE number = ?1)",
              e);
    sql_bind_int(&q, number);
    if (sql_end(&q))
        return -1;
    sql_begin(&q, db, "DELETE FROM files WHERE number = ?", e);
    sql_bind_int(&q, number);
    return sql_end(&q);
}

int files_expire(sqlite3 *db, int64_t now, struct err *e)
{
    enum { AT_ONCE = 16 };
    int64_t found[AT_ONCE];
    int count = 0;
    struct sql q;
    sql_begin(&q, db, "SELECT number FROM files WHERE expires < ? LIMIT 16", e);
    sql_bind_int(&q, now);
    while (sql_step(&q) && count < AT_ONCE)
        found[count++] = sql_int(&q, 0);
    int failed = sql_end(&q);
    for (int i = 0; i < count && !failed; i++)
        failed = files_remove(db, found[i], e);
    return failed;
}

struct file_delete {
    struct state_write write;
    struct request *request;
    bool found;
};

static int file_delete_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct file_delete *d = (struct file_delete *)w;
    struct sql q;
    d->found = files_find(d->request, db, &q, e);
    int64_t number = d->found ? sql_int(&q, 0) : 0;
    return sql_end(&q) || (d->found && files_remove(db, number, e)) ? -1 : 0;
}

static void file_delete_done(struct state_write *w)
{
    worker_again(((struct file_delete *)w)->request);
}

void files_delete(struct request *a)
{
    struct err e = {0};
    if (a->stage++) {
        const struct file_delete *d = a->task;
        if (d->write.err.code)
            request_fail_state(a, &d->write.err);
        else if (!d->found)
            files_missing(a);
        else
            buf_printf(&a->reply, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", a->part[0]);
        return;
    }
    struct file_delete *d = mem_zalloc(1, sizeof *d);
    if (!d) {
        request_fail(a, 503, NULL, "out of memory");
        return;
    }
    d->request = a;
    d->write = (struct state_write){.run = file_delete_run, .done = file_delete_done};
    a->task = d;
    a->drop_task = mem_free;
    a->waits = true;
    if (state_write(a->server->o->state, &d->write, &e)) {
        a->waits = false;
        request_fail_state(a, &e);
    }
}
