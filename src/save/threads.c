#include "save/threads.h"

#include "save/sql.h"

#include <string.h>

/* ---- writes ---- */

/* The number of a row; 0 = none. Two values: an id and a key. */
static int64_t thread_number(sqlite3 *db, const char *text, const char *id, int64_t key, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, text, e);
    sql_bind_text(&q, id);
    sql_bind_int(&q, key);
    int64_t number = sql_step(&q) ? sql_int(&q, 0) : 0;
    return sql_end(&q) ? -1 : number;
}

static int64_t thread_of_conversation(sqlite3 *db, const char *id, int64_t key, struct err *e)
{
    return thread_number(db, "SELECT number FROM threads WHERE id = ? AND key = ?", id, key, e);
}

static int64_t thread_of_response(sqlite3 *db, const char *id, int64_t key, struct err *e)
{
    return thread_number(db, "SELECT number FROM responses WHERE id = ? AND key = ? AND body IS NOT NULL", id,
                         key, e);
}

int thread_create(sqlite3 *db, int64_t key, const char *id, int64_t now, const char *metadata, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, "INSERT INTO threads (key, used, id, created, metadata) VALUES (?1, ?2, ?3, ?2, ?4)",
              e);
    sql_bind_int(&q, key);
    sql_bind_int(&q, now);
    sql_bind_text(&q, id);
    sql_bind_text(&q, metadata);
    return sql_end(&q);
}

static int thread_touch(sqlite3 *db, int64_t thread, int64_t now, int64_t bytes, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, "UPDATE threads SET used = max(used, ?), bytes = bytes + ? WHERE number = ?", e);
    sql_bind_int(&q, now);
    sql_bind_int(&q, bytes);
    sql_bind_int(&q, thread);
    return sql_end(&q);
}

/* Where the items go: response 0 = a client's, of a conversation. */
struct item_place {
    int64_t thread, response;
    int turn;
    bool listed;
};

/* The bytes of the items, or -1. */
static int64_t thread_put_items(sqlite3 *db, const struct item_place *at, const struct thread_item *items,
                                size_t count, struct err *e)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct sql q;
        sql_begin(&q, db,
                  "INSERT INTO items (id, body, thread, response, turn, listed) VALUES (?, ?, ?, nullif(?, "
                  "0), ?, ?)",
                  e);
        sql_bind_text(&q, items[i].id);
        sql_bind_bytes(&q, items[i].body, items[i].n);
        sql_bind_int(&q, at->thread);
        sql_bind_int(&q, at->response);
        sql_bind_int(&q, at->turn);
        sql_bind_int(&q, at->listed);
        if (sql_end(&q))
            return -1;
        bytes += (int64_t)items[i].n;
    }
    return bytes;
}

/* The thread that a response belongs to, a new one where it goes on from nothing that is there. */
static int thread_place(sqlite3 *db, const struct thread_response *r, int64_t *thread, int64_t *previous,
                        struct err *e)
{
    *thread = *previous = 0;
    if (r->conversation)
        *thread = thread_of_conversation(db, r->conversation, r->key, e);
    else if (r->previous && (*previous = thread_of_response(db, r->previous, r->key, e)) > 0)
        *thread = thread_number(db, "SELECT thread FROM responses WHERE id = ? AND key = ?", r->previous,
                                r->key, e);
    if (*thread < 0 || *previous < 0)
        return -1;
    if (!*thread && r->store) {
        if (thread_create(db, r->key, NULL, r->now, NULL, e))
            return -1;
        *thread = sqlite3_last_insert_rowid(db);
    }
    return 0;
}

static int thread_insert(sqlite3 *db, const struct thread_response *r, int64_t thread, int64_t previous,
                         struct err *e)
{
    struct sql q;
    sql_begin(&q, db,
              "INSERT INTO responses (id, key, thread, previous, running, body, events) VALUES (?, ?, ?, "
              "nullif(?, 0), ?, ?, ?)",
              e);
    sql_bind_text(&q, r->id);
    sql_bind_int(&q, r->key);
    sql_bind_int(&q, thread);
    sql_bind_int(&q, previous);
    sql_bind_int(&q, r->running);
    sql_bind_text(&q, r->body);
    sql_bind_text(&q, r->events);
    return sql_end(&q);
}

/* The end of a response whose beginning is stored. 1: it is not. */
static int thread_update(sqlite3 *db, const struct thread_response *r, int64_t *number, int64_t *thread,
                         struct err *e)
{
    struct sql q;
    if ((*number = thread_of_response(db, r->id, r->key, e)) <= 0)
        return *number ? -1 : 1;
    *thread = thread_number(db, "SELECT thread FROM responses WHERE id = ? AND key = ?", r->id, r->key, e);
    sql_begin(&q, db, "UPDATE responses SET running = ?, body = ?, events = ? WHERE number = ?", e);
    sql_bind_int(&q, r->running);
    sql_bind_text(&q, r->body);
    sql_bind_text(&q, r->events);
    sql_bind_int(&q, *number);
    return sql_end(&q) || *thread < 0 ? -1 : 0;
}

int thread_store(sqlite3 *db, const struct thread_response *r, struct err *e)
{
    int64_t thread = 0, previous = 0, number = 0, in = 0, out;
    if (r->removed)
        return thread_delete_response(db, r->key, r->id, e) < 0 ? -1 : 0;
    int fresh = r->store ? thread_update(db, r, &number, &thread, e) : 1;
    if (fresh < 0 || (fresh && thread_place(db, r, &thread, &previous, e)))
        return -1;
    if (fresh && r->store) {
        if (thread_insert(db, r, thread, previous, e))
            return -1;
        number = sqlite3_last_insert_rowid(db);
    }
    if (!thread) /* not stored, and its conversation has been deleted */
        return 0;
    struct item_place at = {thread, number, 0, r->conversation};
    if (fresh && (in = thread_put_items(db, &at, r->input, r->input_count, e)) < 0)
        return -1;
    at.turn = 1;
    if ((out = thread_put_items(db, &at, r->output, r->output_count, e)) < 0)
        return -1;
    size_t bytes = r->store && !r->running ? strlen(r->body) + (r->events ? strlen(r->events) : 0) : 0;
    return thread_touch(db, thread, r->now, in + out + (int64_t)bytes, e);
}

int thread_fail_running(sqlite3 *db, const char *error, struct err *e)
{
    struct sql q;
    sql_begin(
        &q, db,
        "UPDATE responses SET running = 0, body = json_set(body, '$.status', 'failed', '$.error', json(?))"
        " WHERE running",
        e);
    sql_bind_text(&q, error);
    return sql_end(&q);
}

int thread_add_items(sqlite3 *db, int64_t key, const char *conversation, int64_t now,
                     const struct thread_item *items, size_t count, struct err *e)
{
    int64_t thread = thread_of_conversation(db, conversation, key, e);
    if (thread <= 0)
        return thread ? -1 : 1;
    int64_t bytes = thread_put_items(db, &(struct item_place){thread, 0, 0, true}, items, count, e);
    return bytes < 0 ? -1 : thread_touch(db, thread, now, bytes, e);
}

int thread_set_metadata(sqlite3 *db, int64_t key, const char *id, const char *metadata, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, "UPDATE threads SET metadata = ? WHERE id = ? AND key = ?", e);
    sql_bind_text(&q, metadata);
    sql_bind_text(&q, id);
    sql_bind_int(&q, key);
    return sql_end(&q) ? -1 : !sqlite3_changes(db);
}

/* ---- deletions ---- */

/* Runs statements about one row; 1: there is none (number 0), -1: it was not found out, or a statement failed. */
static int thread_steps(sqlite3 *db, const char *const *steps, size_t count, int64_t number, struct err *e)
{
    for (size_t i = 0; i < count && number > 0; i++) {
        struct sql q;
        sql_begin(&q, db, steps[i], e);
        sql_bind_int(&q, number);
        if (sql_end(&q))
            return -1;
    }
    return number < 0 ? -1 : !number;
}

/* The row of a response stays without its content, since others go on from it; what is an item of a conversation stays
 * there. A thread without anything in it goes. */
int thread_delete_response(sqlite3 *db, int64_t key, const char *id, struct err *e)
{
    static const char *const steps[] = {
        "UPDATE threads SET bytes = bytes - (SELECT length(CAST(body AS BLOB)) + coalesce(length(CAST(events "
        "AS BLOB)), 0)"
        " FROM responses WHERE number = ?1) - (SELECT coalesce(sum(length(CAST(body AS BLOB))), 0) FROM items"
        " WHERE response = ?1 AND NOT listed) WHERE number = (SELECT thread FROM responses WHERE number = "
        "?1)",
        "DELETE FROM items WHERE response = ?1 AND NOT listed",
        "UPDATE items SET response = NULL WHERE response = ?1",
        "UPDATE responses SET body = NULL, events = NULL, running = 0 WHERE number = ?1",
        "DELETE FROM threads WHERE number = (SELECT thread FROM responses WHERE number = ?1) AND id IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM responses WHERE thread = threads.number AND body IS NOT NULL)",
    };
    return thread_steps(db, steps, sizeof steps / sizeof *steps, thread_of_response(db, id, key, e), e);
}

/* Its responses stay: they become a thread without an id. */
int thread_delete_conversation(sqlite3 *db, int64_t key, const char *id, struct err *e)
{
    static const char *const steps[] = {
        "UPDATE threads SET id = NULL, metadata = NULL, bytes = bytes - (SELECT "
        "coalesce(sum(length(CAST(body AS BLOB))), 0)"
        " FROM items WHERE thread = ?1 AND response IS NULL) WHERE number = ?1",
        "DELETE FROM items WHERE thread = ?1 AND response IS NULL",
        "UPDATE items SET listed = 0 WHERE thread = ?1",
        "DELETE FROM threads WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM responses WHERE thread = ?1 AND "
        "body IS NOT"
        " NULL)",
    };
    return thread_steps(db, steps, sizeof steps / sizeof *steps, thread_of_conversation(db, id, key, e), e);
}

int thread_delete_item(sqlite3 *db, int64_t key, const char *conversation, const char *id, struct err *e)
{
    static const char *const steps[] = {
        "UPDATE threads SET bytes = bytes - (SELECT length(CAST(body AS BLOB)) FROM items WHERE number = ?1)"
        " WHERE number = (SELECT thread FROM items WHERE number = ?1 AND response IS NULL)",
        "UPDATE items SET listed = 0 WHERE number = ?1",
        "DELETE FROM items WHERE number = ?1 AND response IS NULL",
    };
    int64_t thread = thread_of_conversation(db, conversation, key, e);
    if (thread <= 0)
        return thread ? -1 : 1;
    int64_t number =
        thread_number(db, "SELECT number FROM items WHERE id = ? AND thread = ? AND listed", id, thread, e);
    return thread_steps(db, steps, sizeof steps / sizeof *steps, number, e);
}

int thread_expire(sqlite3 *db, int64_t before, uint64_t most, struct err *e)
{
    enum { SOME = 500 }; /* a transaction stays short */
    uint64_t all = (uint64_t)sql_number(db, "SELECT value FROM totals WHERE name = 'bytes'", 0);
    struct sql q;
    sql_begin(
        &q, db,
        all > most
            ? "DELETE FROM threads WHERE number IN (SELECT number FROM threads ORDER BY used LIMIT ?2)"
            : "DELETE FROM threads WHERE number IN (SELECT number FROM threads WHERE used < ?1 LIMIT ?2)",
        e);
    sql_bind_int(&q, before);
    sql_bind_int(&q, all > most ? SOME / 10 : SOME);
    return sql_end(&q) ? -1 : sqlite3_changes(db);
}

/* ---- look-ups ---- */

int thread_response_body(sqlite3 *db, int64_t key, const char *id, bool *running,
                         void (*got)(void *arg, const char *body, size_t n, const char *events,
                                     size_t events_n),
                         void *arg, struct err *e)
{
    struct sql q;
    sql_begin(&q, db,
              "SELECT body, events, running FROM responses WHERE id = ? AND key = ? AND body IS NOT NULL", e);
    sql_bind_text(&q, id);
    sql_bind_int(&q, key);
    bool found = sql_step(&q);
    if (found) {
        size_t n, events_n;
        const char *body = sql_text(&q, 0, &n), *events = sql_text(&q, 1, &events_n);
        *running = sql_int(&q, 2);
        got(arg, body, n, events, events_n);
    }
    return sql_end(&q) ? -1 : !found;
}

/* Rows of id and body. The number of rows, or -1. */
static int64_t thread_walk(struct sql *q, thread_each *each, void *arg)
{
    int64_t count = 0;
    while (sql_step(q)) {
        struct thread_item item = {.id = sql_text(q, 0, NULL)};
        item.body = sql_text(q, 1, &item.n);
        count++;
        if (!each(arg, &item)) {
            q->ended = true;
            break;
        }
    }
    return sql_end(q) ? -1 : count;
}

int thread_chain(sqlite3 *db, int64_t key, const char *response, bool output, thread_each *each, void *arg,
                 struct err *e)
{
    struct sql q;
    int64_t number = thread_of_response(db, response, key, e);
    if (number <= 0)
        return number ? -1 : 1;
    sql_begin(&q, db,
              "WITH RECURSIVE chain (number, previous, depth) AS ("
              "  SELECT number, previous, 0 FROM responses WHERE number = ?1"
              "  UNION ALL SELECT r.number, r.previous, depth + 1 FROM chain JOIN responses r ON r.number = "
              "chain.previous"
              "  LIMIT 100000)"
              " SELECT items.id, items.body FROM chain JOIN items ON items.response = chain.number"
              " WHERE depth > 0 OR turn = 0 OR ?2 ORDER BY depth DESC, turn, items.number",
              e);
    sql_bind_int(&q, number);
    sql_bind_int(&q, output);
    return thread_walk(&q, each, arg) < 0 ? -1 : 0;
}

int thread_conversation(sqlite3 *db, int64_t key, const char *id, int64_t *created,
                        void (*metadata)(void *arg, const char *text, size_t n), void *arg, struct err *e)
{
    struct sql q;
    sql_begin(&q, db, "SELECT created, metadata FROM threads WHERE id = ? AND key = ?", e);
    sql_bind_text(&q, id);
    sql_bind_int(&q, key);
    bool found = sql_step(&q);
    if (found) {
        size_t n;
        const char *text = sql_text(&q, 1, &n);
        *created = sql_int(&q, 0);
        if (metadata)
            metadata(arg, text, n);
    }
    return sql_end(&q) ? -1 : !found;
}

int thread_items(sqlite3 *db, int64_t key, const struct thread_page *p, thread_each *each, void *arg,
                 struct err *e)
{
    struct sql q;
    int64_t thread = thread_of_conversation(db, p->conversation, key, e), after = 0;
    if (thread > 0 && p->after)
        after = thread_number(db, "SELECT number FROM items WHERE id = ? AND thread = ? AND listed", p->after,
                              thread, e);
    if (thread <= 0 || after < 0)
        return thread < 0 || after < 0 ? -1 : 1;
    if (p->after && !after) /* it has been deleted, or never was */
        return 1;
    sql_begin(&q, db,
              p->descending
                  ? "SELECT id, body FROM items WHERE thread = ?1 AND listed AND (?2 = 0 OR number < ?2)"
                    " AND (?3 IS NULL OR id = ?3) ORDER BY number DESC LIMIT ?4"
                  : "SELECT id, body FROM items WHERE thread = ?1 AND listed AND number > ?2"
                    " AND (?3 IS NULL OR id = ?3) ORDER BY number LIMIT ?4",
              e);
    sql_bind_int(&q, thread);
    sql_bind_int(&q, after);
    sql_bind_text(&q, p->only);
    sql_bind_int(&q, p->limit);
    int64_t count = thread_walk(&q, each, arg);
    return count < 0 ? -1 : p->only && !count;
}
