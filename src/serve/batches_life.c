/* How a batch begins and ends: its input becomes lines, its replies become files. On the driver's thread. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/sql.h"
#include "save/state.h"
#include "serve/batch.h"
#include "serve/batches_internal.h"
#include "serve/limit.h"
#include "serve/server_internal.h"

#include <string.h>
#include <time.h>

enum {
    GROUP_LINES = 512, /* lines that are stored together */
    GROUP_BYTES = 8 << 20,
    ERRORS_MOST = 16 /* errors of an input that are reported */
};

/* ---- the input ---- */

struct batch_input {
    struct open_batch *batch;
    struct server *server;
    struct files_cursor cursor;
    struct buf text;  /* of the file: what is not read yet */
    size_t at;        /* read so far */
    bool end;         /* there is no more of the file */
    int64_t number;   /* of the line, counted from 1 */
    int64_t lines;    /* with a request */
    struct buf wrong; /* errors, as JSON */
    uint32_t errors;
};

/* Lines that are stored together. */
struct group {
    struct state_write write;
    int64_t batch;
    bool first; /* what an earlier try has stored is removed */
    uint32_t count;
    size_t bytes;
    struct group_line {
        int64_t number;
        char *custom_id;
        struct buf body;
        bool twice; /* another line has its custom_id */
    } lines[GROUP_LINES];
};

static int group_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct group *g = (struct group *)w;
    struct sql q;
    if (g->first) {
        sql_begin(&q, db, "DELETE FROM batch_lines WHERE batch = ?", e);
        sql_bind_int(&q, g->batch);
        if (sql_end(&q))
            return -1;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        struct group_line *l = &g->lines[i];
        sql_begin(&q, db, "SELECT 1 FROM batch_lines WHERE batch = ? AND custom_id = ?", e);
        sql_bind_int(&q, g->batch);
        sql_bind_text(&q, l->custom_id);
        l->twice = sql_step(&q);
        if (sql_end(&q))
            return -1;
        if (!l->twice && batches_add_line(db, g->batch, l->number, l->custom_id, &l->body, e))
            return -1;
    }
    return 0;
}

static void group_clear(struct group *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        mem_free(g->lines[i].custom_id);
        buf_free(&g->lines[i].body);
    }
    g->count = 0;
    g->bytes = 0;
}

static void input_wrong(struct batch_input *in, int64_t line, const char *code, const char *text)
{
    if (in->errors++ >= ERRORS_MOST)
        return;
    buf_printf(&in->wrong, "%s{\"code\":\"%s\",\"line\":%lld,\"message\":\"", in->wrong.len ? "," : "", code,
               (long long)line);
    json_escape(&in->wrong, text, strlen(text));
    buf_str(&in->wrong, "\",\"param\":null}");
}

/* The next line that is not empty; NULL: the end, or an error. */
static const char *input_line(struct batch_input *in, size_t *n, struct err *e)
{
    struct state *s = in->server->o->state;
    for (;;) {
        size_t left = in->text.len - in->at;
        const char *line = left ? in->text.data + in->at : NULL,
                   *end = left ? memchr(line, '\n', left) : NULL;
        if (end || (in->end && left)) {
            *n = end ? (size_t)(end - line) : left;
            in->at += *n + (end != NULL);
            in->number++;
            *n -= *n && line[*n - 1] == '\r';
            if (strspn(line, " \t") < *n)
                return line;
            continue;
        }
        if (in->end)
            return NULL;
        if (left)
            memmove(in->text.data, line, left);
        in->text.len = left;
        in->at = 0;
        sqlite3 *db = state_reader(s);
        int more = files_read(db, &in->cursor, &in->text, e);
        state_release(s, db);
        if (more < 0)
            return NULL;
        in->end = !more;
    }
}

static int input_store(struct batch_input *in, struct group *g, struct err *e)
{
    g->write = (struct state_write){.run = group_run, .bytes = g->bytes};
    if (state_write_wait(in->server->o->state, &g->write, e))
        return -1;
    g->first = false;
    for (uint32_t i = 0; i < g->count; i++)
        if (g->lines[i].twice)
            input_wrong(in, g->lines[i].number, "duplicate_custom_id",
                        "another line has the same custom_id: each has to have its own");
    group_clear(g);
    return 0;
}

/* Reads one line into the group; errors of the line are the input's. */
static int input_read_line(struct batch_input *in, struct group *g, const char *line, size_t n, struct err *e)
{
    struct batch_line *l = mem_zalloc(1, sizeof *l);
    struct err why = {0};
    if (!l)
        return err_memory(e, "a line of a batch", sizeof *l);
    in->lines++;
    if (batch_read_line(line, n, in->batch->endpoint, l, &why))
        input_wrong(in, in->number, "invalid_request", why.text);
    else {
        g->lines[g->count++] =
            (struct group_line){.number = in->number, .custom_id = l->custom_id, .body = l->body};
        g->bytes += l->body.len;
        l->custom_id = NULL;
        l->body = (struct buf){0};
    }
    batch_line_free(l);
    return 0;
}

static int input_read(struct batch_input *in, struct group *g, struct err *e)
{
    const char *line;
    size_t n;
    while ((line = input_line(in, &n, e)) && in->errors < ERRORS_MOST) {
        if (in->lines == (int64_t)limit_of(LIMIT_BATCH_LINES)) {
            input_wrong(in, in->number, "too_many_tasks", "the batch has more lines than this server takes");
            break;
        }
        if (input_read_line(in, g, line, n, e) ||
            ((g->count == GROUP_LINES || g->bytes > GROUP_BYTES) && input_store(in, g, e)))
            return -1;
    }
    if (e->code || input_store(in, g, e))
        return -1;
    if (!in->lines && !in->errors)
        input_wrong(in, 0, "empty_file", "the file has no lines");
    return 0;
}

/* The file's number becomes the cursor's. */
static int input_find(struct batch_input *in, struct err *e)
{
    struct state *s = in->server->o->state;
    sqlite3 *db = state_reader(s);
    struct sql q;
    sql_begin(&q, db, "SELECT number FROM files WHERE id = ? AND key = ?", e);
    sql_bind_text(&q, in->batch->input);
    sql_bind_int(&q, in->batch->owner);
    in->cursor.file = sql_step(&q) ? sql_int(&q, 0) : 0;
    int failed = sql_end(&q);
    state_release(s, db);
    return failed;
}

/* The end of the validation: the batch runs, or it has failed. */
struct validated {
    struct state_write write;
    const struct batch_input *input;
};

static int validated_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    const struct batch_input *in = ((struct validated *)w)->input;
    struct sql q;
    if (in->errors) {
        sql_begin(&q, db, "DELETE FROM batch_lines WHERE batch = ?", e);
        sql_bind_int(&q, in->batch->number);
        if (sql_end(&q))
            return -1;
    }
    sql_begin(
        &q, db,
        in->errors
            ? "UPDATE batches SET status = 'failed', ended = ?1, total = ?2, errors = '{\"object\":\"list\","
              "\"data\":[' || ?3 || ']}' WHERE number = ?4"
            : "UPDATE batches SET status = iif(cancelling, status, 'in_progress'), started = ?1, total = ?2, "
              "errors = ?3 WHERE number = ?4",
        e);
    sql_bind_int(&q, time(NULL));
    sql_bind_int(&q, in->lines);
    if (in->errors)
        sql_bind_text(&q, in->wrong.data);
    else
        sql_bind_null(&q);
    sql_bind_int(&q, in->batch->number);
    return sql_end(&q);
}

bool batches_validate(struct batches *all, struct open_batch *b)
{
    struct batch_input in = {
        .batch = b, .server = all->server, .text.max = limit_of(LIMIT_FILE) + GROUP_BYTES};
    struct group *g = mem_zalloc(1, sizeof *g);
    struct validated v = {.write.run = validated_run, .input = &in};
    struct err e = {0};
    int failed = g ? input_find(&in, &e) : err_memory(&e, "the lines of a batch", sizeof *g);
    if (!failed && !in.cursor.file)
        input_wrong(&in, 0, "missing_file", "the input file is kept no longer");
    else if (!failed) {
        g->batch = b->number;
        g->first = true;
        failed = input_read(&in, g, &e);
    }
    failed = failed || state_write_wait(all->server->o->state, &v.write, &e);
    if (failed)
        log_warn("batch %s cannot be read now: %s", b->id, e.text); /* the next tick tries again */
    b->validating = failed;
    if (g)
        group_clear(g);
    mem_free(g);
    buf_free(&in.text);
    buf_free(&in.wrong);
    return !failed && in.errors;
}

/* ---- the end ---- */

struct finish {
    struct state_write write;
    const struct open_batch *batch;
    bool left; /* there are lines without a reply: it goes on */
};

/* What a line says that was not run: OpenAI's reply, or Anthropic's result. */
static int finish_lines(const struct open_batch *b, sqlite3 *db, struct err *e)
{
    static const char openai[] =
        "UPDATE batch_lines SET status = 0, body = NULL, reply = '{\"id\":\"batch_req-' || "
        "lower(hex(randomblob(12))) "
        "|| '\",\"custom_id\":' || json_quote(custom_id) || "
        "',\"response\":null,\"error\":{\"code\":\"batch_' || ?2 || "
        "'\",\"message\":\"' || ?3 || '\"}}' || char(10) WHERE batch = ?1 AND status IS NULL";
    static const char anthropic[] = "UPDATE batch_lines SET status = 0, body = NULL, reply = "
                                    "'{\"custom_id\":' || json_quote(custom_id) || "
                                    "',\"result\":{\"type\":\"' || iif(?2 = 'cancelled', 'canceled', ?2) || "
                                    "'\"}}' || char(10) || substr(?3, 1, 0) "
                                    "WHERE batch = ?1 AND status IS NULL";
    struct sql q;
    sql_begin(&q, db, b->api == BATCHES_ANTHROPIC ? anthropic : openai, e);
    sql_bind_int(&q, b->number);
    sql_bind_text(&q, b->cancelling ? "cancelled" : "expired");
    sql_bind_text(&q, b->cancelling
                          ? "This request was not executed before the batch was cancelled."
                          : "This request could not be executed before the completion window expired.");
    return sql_end(&q);
}

/* The file of one side's replies, if there are any; the batch has its id. */
static int finish_file(const struct open_batch *b, int side, sqlite3 *db, struct err *e)
{
    char id[FILES_ID];
    struct sql q;
    server_name(id, sizeof id, "file-");
    sql_begin(&q, db,
              "INSERT INTO files (id, key, created, expires, name, purpose, bytes, batch, side) SELECT ?1, "
              "?2, ?3, ?4, "
              "?5 || iif(?6, '_error.jsonl', '_output.jsonl'), 'batch_output', sum(length(CAST(reply AS "
              "BLOB))), ?7, ?6 "
              "FROM batch_lines WHERE batch = ?7 AND (status != 200) = ?6 HAVING count(*) > 0",
              e);
    int64_t now = time(NULL);
    sql_bind_text(&q, id);
    sql_bind_int(&q, b->owner);
    sql_bind_int(&q, now);
    sql_bind_int(&q, now + (int64_t)limit_of(LIMIT_FILE_DAYS) * 24 * 3600);
    sql_bind_text(&q, b->id);
    sql_bind_int(&q, side);
    sql_bind_int(&q, b->number);
    if (sql_end(&q))
        return -1;
    if (!sqlite3_changes(db))
        return 0;
    sql_begin(&q, db,
              side ? "UPDATE batches SET failures = ? WHERE number = ?"
                   : "UPDATE batches SET output = ? WHERE number = ?",
              e);
    sql_bind_text(&q, id);
    sql_bind_int(&q, b->number);
    return sql_end(&q);
}

static int finish_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct finish *f = (struct finish *)w;
    const struct open_batch *b = f->batch;
    struct sql q;
    sql_begin(&q, db, "SELECT 1 FROM batch_lines WHERE batch = ? AND status IS NULL LIMIT 1", e);
    sql_bind_int(&q, b->number);
    f->left = sql_step(&q);
    if (sql_end(&q))
        return -1;
    if (f->left && !b->stops)
        return 0;
    bool whole = !f->left;
    f->left = false;
    if (!whole && finish_lines(b, db, e))
        return -1;
    if (b->api == BATCHES_OPENAI && (finish_file(b, 0, db, e) || finish_file(b, 1, db, e)))
        return -1;
    sql_begin(&q, db,
              "UPDATE batches SET status = ?, finalizing = ?2, ended = ?2 WHERE number = ?3 AND ended = 0",
              e);
    sql_bind_text(&q, b->cancelling ? "cancelled" : whole ? "completed" : "expired");
    sql_bind_int(&q, time(NULL));
    sql_bind_int(&q, b->number);
    return sql_end(&q);
}

bool batches_finish(struct batches *all, struct open_batch *b)
{
    struct finish f = {.write.run = finish_run, .batch = b};
    struct err e = {0};
    if (state_write_wait(all->server->o->state, &f.write, &e)) {
        log_warn("the end of batch %s cannot be stored now: %s", b->id,
                 e.text); /* the next tick tries again */
        return false;
    }
    if (f.left) { /* from the first that has no reply */
        b->at = 0;
        b->all = false;
    }
    return !f.left;
}
