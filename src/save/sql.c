#include "save/sql.h"

#include <errno.h>
#include <string.h>

int sql_fail(sqlite3 *db, int code, struct err *e)
{
    int system = sqlite3_system_errno(db), kind = code & 0xff;
    const char *why = sqlite3_errmsg(db);
    if (kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB)
        return err_set(e, ERR_DATA, "the database is damaged: %s", why);
    if (kind == SQLITE_FULL)
        return err_set(
            e, ERR_FULL,
            "the state folder has no more room: its disk is full, or its limit (--limit state) is reached");
    if (kind == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT))
        return err_set(e, ERR_FULL, "the disk of the state folder is full");
    if (kind == SQLITE_IOERR && system == EFBIG)
        return err_set(e, ERR_FULL, "a file of the state folder may not grow further: %s", strerror(system));
    if (kind == SQLITE_READONLY || kind == SQLITE_CANTOPEN || kind == SQLITE_IOERR)
        return err_set(e, ERR_FULL, "the state folder cannot be written: %s%s%s", why, system ? ": " : "",
                       system ? strerror(system) : "");
    return err_set(e, ERR_RESOURCE, "the database failed: %s", why);
}

static void sql_check(struct sql *q, int code)
{
    if (code == SQLITE_OK || q->failed)
        return;
    q->failed = true;
    sql_fail(q->db, code, q->e);
}

void sql_begin(struct sql *q, sqlite3 *db, const char *text, struct err *e)
{
    *q = (struct sql){.db = db, .e = e};
    sql_check(q, sqlite3_prepare_v2(db, text, -1, &q->statement, NULL));
}

void sql_bind_int(struct sql *q, int64_t v)
{
    q->bound++;
    if (!q->failed)
        sql_check(q, sqlite3_bind_int64(q->statement, q->bound, v));
}

void sql_bind_bytes(struct sql *q, const void *data, size_t n)
{
    q->bound++;
    if (!q->failed)
        sql_check(q, data ? sqlite3_bind_text64(q->statement, q->bound, data, n, SQLITE_STATIC, SQLITE_UTF8)
                          : sqlite3_bind_null(q->statement, q->bound));
}

void sql_bind_text(struct sql *q, const char *s)
{
    sql_bind_bytes(q, s, s ? strlen(s) : 0);
}

void sql_bind_null(struct sql *q)
{
    sql_bind_bytes(q, NULL, 0);
}

bool sql_step(struct sql *q)
{
    if (q->failed || q->ended)
        return false;
    int code = sqlite3_step(q->statement);
    q->ended = code != SQLITE_ROW;
    if (q->ended && code != SQLITE_DONE)
        sql_check(q, code);
    return !q->ended;
}

int64_t sql_int(const struct sql *q, int column)
{
    return sqlite3_column_int64(q->statement, column);
}

const char *sql_text(const struct sql *q, int column, size_t *n)
{
    const char *s = (const char *)sqlite3_column_text(q->statement, column);
    if (n)
        *n = s ? (size_t)sqlite3_column_bytes(q->statement, column) : 0;
    return s;
}

bool sql_is_null(const struct sql *q, int column)
{
    return sqlite3_column_type(q->statement, column) == SQLITE_NULL;
}

int sql_end(struct sql *q)
{
    while (sql_step(q))
        ;
    sqlite3_finalize(q->statement);
    q->statement = NULL;
    return q->failed ? -1 : 0;
}

int sql_run(sqlite3 *db, const char *text, struct err *e)
{
    int code = sqlite3_exec(db, text, NULL, NULL, NULL);
    return code ? sql_fail(db, code, e) : 0;
}

int64_t sql_number(sqlite3 *db, const char *text, int64_t otherwise)
{
    struct err ignored = {0};
    struct sql q;
    sql_begin(&q, db, text, &ignored);
    int64_t v = sql_step(&q) ? sql_int(&q, 0) : otherwise;
    sql_end(&q);
    return v;
}
