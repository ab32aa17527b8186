/* Usage by day, key and model: counts only, no prompts and no answers. A day is one of UTC, as days since 1970. */
#pragma once

#include "base/err.h"

#include <sqlite3.h>
#include <stdint.h>
#include <time.h>

struct usage_row {
    int64_t day, key;  /* key 0 = without one */
    const char *model; /* "" = none was found */
    uint64_t requests, errors;
    uint64_t read, cached, written; /* tokens; read has those that were cached */
    /* of usage_rows alone */
    int64_t number;   /* of the key in the server's list; 0 = it is not there */
    const char *name; /* of the key; NULL = none */
};

int64_t usage_day(time_t t);
int64_t usage_month(int64_t day); /* the first day of its month */
/* "2026-11-16"; the buffer has room for any day */
enum { USAGE_DATE = 24 };
void usage_date(int64_t day, char out[USAGE_DATE]);
/* "2026-11-16", "7d" (days before today) or "2026-11" (a month); -1 = neither */
int64_t usage_read_date(const char *text, int64_t today);

/* Adds to the counts. Inside of a write. */
int usage_add(sqlite3 *db, const struct usage_row *row, struct err *e);
/* The list of keys as the server has read it; those that are not in it stay, without a number. Inside of a write. */
struct usage_key {
    int64_t key;
    const char *name;
};
int usage_name_keys(sqlite3 *db, const struct usage_key *keys, int64_t count, struct err *e);

/* Rows since a day, in order of day, key and model. key: NULL = all. */
int usage_rows(sqlite3 *db, int64_t since, const int64_t *key,
               void (*each)(void *arg, const struct usage_row *row), void *arg, struct err *e);
/* The key that has this number or name; 0 of "0" is clients without a key. */
int usage_find_key(sqlite3 *db, const char *word, int64_t *key, struct err *e);
