/* The check of the database's structure: at the start for a moment, which is enough for a small one; the rest of a large one
 * while the server runs. */
#include "base/clock.h"
#include "save/sql.h"
#include "save/state_internal.h"

#include <string.h>
#include <sys/resource.h>

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
    enum { SMALL = 64 << 20 }; /* bytes that are checked at the start; SQLite checks a table as a whole */
    int64_t bytes = sql_number(db, "PRAGMA page_count", 0) * sql_number(db, "PRAGMA page_size", 4096);
    if (bytes > SMALL && seconds < SMALL)
        return 1;
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
    setpriority(PRIO_PROCESS, 0, 19); /* of this thread: requests come first */
    if (!state_connect(s, false, &db, &e)) {
        atomic_store(&s->checked, db);
        if (state_quick_check(s, db, 1e9, &e) < 0 && e.code == ERR_DATA)
            state_damage(s, e.text);
        pthread_mutex_lock(&s->mutex); /* state_close interrupts it under the mutex */
        atomic_store(&s->checked, NULL);
        pthread_mutex_unlock(&s->mutex);
        sqlite3_close(db);
    }
    return NULL;
}
