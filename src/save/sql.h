/* Statements of SQLite with a sticky error: bind and step without checks, and check sql_end once. The text of a statement
 * is always a constant; every value is bound.
 *
 *     struct sql q;
 *     sql_begin(&q, db, "SELECT body, used FROM responses WHERE id = ? AND key = ?", e);
 *     sql_bind_text(&q, id);
 *     sql_bind_int(&q, key);
 *     while (sql_step(&q))
 *         ... sql_text(&q, 0, &n), sql_int(&q, 1)
 *     return sql_end(&q);
 *
 * Errors: ERR_FULL where the disk, the file or the limit of the database has no more room or cannot be written, ERR_DATA
 * where the database is damaged, ERR_RESOURCE for the rest. */
#pragma once

#include "base/err.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sql {
    sqlite3 *db;
    sqlite3_stmt *statement; /* NULL after a failure */
    struct err *e;
    int bound;          /* values so far */
    bool failed, ended; /* ended: there are no more rows */
};

void sql_begin(struct sql *q, sqlite3 *db, const char *text, struct err *e);
/* The next value. What they point to stays valid until sql_end. NULL binds NULL. */
void sql_bind_int(struct sql *q, int64_t v);
void sql_bind_text(struct sql *q, const char *s);
void sql_bind_bytes(struct sql *q, const void *data, size_t n); /* as text, which may contain NUL */
void sql_bind_null(struct sql *q);
/* Whether there is (another) row. Its columns count from 0 and stay valid until the next step. */
bool sql_step(struct sql *q);
int64_t sql_int(const struct sql *q, int column);
const char *sql_text(const struct sql *q, int column, size_t *n); /* n may be NULL; NULL = a NULL */
bool sql_is_null(const struct sql *q, int column);
/* Steps to the end, where there are rows left, and frees the statement. -1 with the first error. */
int sql_end(struct sql *q);

/* Statements without values, one or several. */
int sql_run(sqlite3 *db, const char *text, struct err *e);
/* The number in the first row of a statement without values; `otherwise` where there is none. */
int64_t sql_number(sqlite3 *db, const char *text, int64_t otherwise);
/* The error of the last call, as above. */
int sql_fail(sqlite3 *db, int code, struct err *e);
