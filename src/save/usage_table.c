#define _GNU_SOURCE
#include "save/usage_table.h"

#include "base/log.h"
#include "base/num.h"
#include "save/sql.h"

#include <stdio.h>
#include <string.h>

enum { DAY = 86400 };

int64_t usage_day(time_t t)
{
    int64_t s = (int64_t)t;
    return s >= 0 ? s / DAY : -1;
}

int64_t usage_month(int64_t day)
{
    time_t t = (time_t)(day * DAY);
    struct tm tm;
    gmtime_r(&t, &tm);
    return day - (tm.tm_mday - 1);
}

void usage_date(int64_t day, char out[USAGE_DATE])
{
    time_t t = (time_t)(day * DAY);
    struct tm tm = {0};
    gmtime_r(&t, &tm);
    if (!strftime(out, USAGE_DATE, "%Y-%m-%d", &tm))
        snprintf(out, USAGE_DATE, "%lld", (long long)day);
}

int64_t usage_read_date(const char *text, int64_t today)
{
    struct tm tm = {.tm_mday = 1};
    uint64_t days;
    size_t n = strlen(text);
    if (n > 1 && text[n - 1] == 'd' && num_u64(text, n - 1, 100000, &days))
        return (int64_t)days < today ? today - (int64_t)days : 0;
    const char *end = strptime(text, "%Y-%m-%d", &tm);
    if (!end || *end) {
        tm = (struct tm){.tm_mday = 1};
        end = strptime(text, "%Y-%m", &tm);
    }
    return end && !*end ? usage_day(timegm(&tm)) : -1;
}

int usage_add(sqlite3 *db, const struct usage_row *row, struct err *e)
{
    struct sql q;
    sql_begin(
        &q, db,
        "INSERT INTO usage (day, key, model, requests, errors, read, cached, written)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,"
        " errors = errors + excluded.errors, read = read + excluded.read, cached = cached + excluded.cached,"
        " written = written + excluded.written",
        e);
    sql_bind_int(&q, row->day);
    sql_bind_int(&q, row->key);
    sql_bind_text(&q, row->model);
    sql_bind_int(&q, (int64_t)row->requests);
    sql_bind_int(&q, (int64_t)row->errors);
    sql_bind_int(&q, (int64_t)row->read);
    sql_bind_int(&q, (int64_t)row->cached);
    sql_bind_int(&q, (int64_t)row->written);
    return sql_end(&q);
}

int usage_name_keys(sqlite3 *db, const struct usage_key *keys, int64_t count, struct err *e)
{
    if (sql_run(db, "UPDATE keys SET number = NULL", e))
        return -1;
    for (int64_t i = 0; i < count; i++) {
        struct sql q;
        if (!keys[i].key)
            continue;
        sql_begin(&q, db,
                  "INSERT INTO keys (key, number, name) VALUES (?, ?, ?)"
                  " ON CONFLICT DO UPDATE SET number = excluded.number, name = excluded.name",
                  e);
        sql_bind_int(&q, keys[i].key);
        sql_bind_int(&q, i + 1);
        sql_bind_text(&q, keys[i].name);
        if (sql_end(&q))
            return -1;
    }
    return 0;
}

int usage_rows(sqlite3 *db, int64_t since, const int64_t *key,
               void (*each)(void *arg, const struct usage_row *row), void *arg, struct err *e)
{
    struct sql q;
    sql_begin(
        &q, db,
        "SELECT day, key, model, requests, errors, read, cached, written, number, name FROM usage"
        " LEFT JOIN keys USING (key) WHERE day >= ?1 AND (?2 IS NULL OR key = ?2) ORDER BY day, key, model",
        e);
    sql_bind_int(&q, since);
    if (key)
        sql_bind_int(&q, *key);
    else
        sql_bind_null(&q);
    while (sql_step(&q)) {
        struct usage_row row = {.day = sql_int(&q, 0),
                                .key = sql_int(&q, 1),
                                .model = sql_text(&q, 2, NULL),
                                .requests = (uint64_t)sql_int(&q, 3),
                                .errors = (uint64_t)sql_int(&q, 4),
                                .read = (uint64_t)sql_int(&q, 5),
                                .cached = (uint64_t)sql_int(&q, 6),
                                .written = (uint64_t)sql_int(&q, 7),
                                .number = sql_int(&q, 8),
                                .name = sql_text(&q, 9, NULL)};
        each(arg, &row);
    }
    return sql_end(&q);
}

int usage_find_key(sqlite3 *db, const char *word, int64_t *key, struct err *e)
{
    struct sql q;
    uint64_t number = 0;
    bool is_number = num_u64(word, strlen(word), INT64_MAX, &number);
    *key = 0;
    if (is_number && !number)
        return 0;
    sql_begin(&q, db,
              "SELECT key FROM keys WHERE number = ?1 OR name = ?2 OR printf('%016x', key) = ?2"
              " ORDER BY number IS NULL LIMIT 1",
              e);
    sql_bind_int(&q, is_number ? (int64_t)number : -1);
    sql_bind_text(&q, word);
    bool found = sql_step(&q);
    *key = found ? sql_int(&q, 0) : 0;
    if (sql_end(&q))
        return -1;
    return found
               ? 0
               : err_set(e, ERR_DATA,
                         "there is no key '%s': it is the number of a line, a name, or an id of quern usage",
                         log_safe(word));
}
