/* The check of the database's structure: at the start for a moment, which is enough for a small one; the rest of a large one
 * while the server runs. */
#include "base/clock.h"
#include "save/sql.h"
#include "save/state_internal.h"

#include <string.h>

struct check_limit {
    const struct state *state;
    double until;
};

static int check_is_over(void *arg)
{
    const struct check_limit *l = arg;
    return clock_now() > l->until || atomic_load(&l->state->closing);
}

int state_quick_check(struct state *s, sqlite3 *db, double seconds, struct err *e)
{
    struct check_limit limit = {s, clock_now() + seconds};
    struct err own = {0};
    struct sql q;
    int result = 0;
    sqlite3_progress_handler(db, 1000, check_is_over, &limit);
    sql_begin(&q, db, "PRAGMA quick_check(1)", &own);
    while (sql_step(&q)) {
        const char *found = sql_text(&q, 0, NULL);
        if (found && strcmp(found, "ok") != 0)
            result = err_set(e, ERR_DATA, "%s", strchr(found, '\n') ? strchr(found, '\n') + 1 : found);
    }
    if (sql_end(&q) && !result)
        result = check_is_over(&limit) ? 1 : err_set(e, own.code, "%s", own.text);
    sqlite3_progress_handler(db, 0, NULL, NULL);
    return result;
}

void *state_checker(void *state)
{
    struct state *s = state;
    struct err e = {0};
    sqlite3 *db;
    if (!state_connect(s, false, &db, &e)) {
        if (state_quick_check(s, db, 1e9, &e) < 0 && e.code == ERR_DATA)
            state_damage(s, e.text);
        sqlite3_close(db);
    }
    return NULL;
}
