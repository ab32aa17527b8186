/* quern state: what the state folder has, and how to remove, export and copy it. Beside a running server, too. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "save/sql.h"
#include "save/state.h"
#include "save/usage_table.h"
#include "tool/state_folder.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct arg_option state_options[] = {
    {"older", 0, ARG_TEXT, "T", "purge: what was not used for this time, such as 7d or 12h", 0, 0},
    {"key", 0, ARG_TEXT, "N", "purge, export: of one key: its number, name or id; 0 = requests without a key",
     0, 0},
    {"all", 0, ARG_FLAG, NULL, "purge: everything, whenever it was used", 0, 0},
    {"usage", 0, ARG_FLAG, NULL, "purge: counts of usage instead", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "show: print JSON", 0, 0},
    STATE_OPTIONS,
    {0},
};

struct state_tool {
    const struct args *a;
    char folder[PATH_MAX];
    sqlite3 *db;
    bool has_key;
    int64_t key;
};

/* ---- show ---- */

static int state_show(struct state_tool *t, struct err *e)
{
    static const struct {
        const char *name, *text;
    } counts[] = {
        {"version", "PRAGMA user_version"},
        {"bytes", "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"},
        {"free_bytes", "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"},
        {"responses", "SELECT count(*) FROM responses WHERE body IS NOT NULL"},
        {"conversations", "SELECT count(*) FROM threads WHERE id IS NOT NULL"},
        {"items", "SELECT count(*) FROM items"},
        {"stored_bytes", "SELECT value FROM totals WHERE name = 'bytes'"},
        {"files", "SELECT count(*) FROM files"},
        {"batches", "SELECT count(*) FROM batches"},
        {"open_batches", "SELECT count(*) FROM batches WHERE ended = 0"},
        {"usage_days", "SELECT count(DISTINCT day) FROM usage"},
        {"keys", "SELECT count(*) FROM keys WHERE number IS NOT NULL"},
    };
    struct buf out = {0};
    struct json j = {.out = &out, .indent = 2};
    bool json = args_flag(t->a, "json");
    if (json) {
        json_begin(&j, '{');
        json_key(&j, "folder");
        json_str(&j, t->folder);
    } else {
        buf_printf(&out, "%-14s ", "folder");
        log_safe_add(&out, t->folder);
        buf_char(&out, '\n');
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t v = sql_number(t->db, counts[i].text, 0);
        if (json) {
            json_key(&j, counts[i].name);
            json_int(&j, v);
        } else
            buf_printf(&out, "%-14s %" PRId64 "\n", counts[i].name, v);
    }
    if (json) {
        json_end(&j, '}');
        buf_char(&out, '\n');
    }
    return tool_print(&out, e);
}

/* ---- purge ---- */

static int state_purge(struct state_tool *t, struct err *e)
{
    const char *older = args_text(t->a, "older");
    bool usage = args_flag(t->a, "usage");
    double age = 0;
    struct sql q;
    if (older && (!num_duration(older, strlen(older), &age) || age < 0))
        return err_set(e, ERR_USAGE, "--older takes a time such as 7d or 12h, not '%s'", log_safe(older));
    if (!older && !args_flag(t->a, "all") && !t->has_key)
        return err_set(e, ERR_USAGE,
                       "quern state purge removes what is stored: give --older TIME, --key N or --all");
    int64_t before = older ? (int64_t)time(NULL) - (int64_t)age : INT64_MAX;
    sql_begin(&q, t->db,
              usage ? "DELETE FROM usage WHERE day < ?1 AND (?2 IS NULL OR key = ?2)"
                    : "DELETE FROM threads WHERE used < ?1 AND (?2 IS NULL OR key = ?2)",
              e);
    sql_bind_int(&q, usage && older ? usage_day((time_t)before) : before);
    if (t->has_key)
        sql_bind_int(&q, t->key);
    else
        sql_bind_null(&q);
    if (sql_end(&q))
        return -1;
    printf("%d %s removed\n", sqlite3_changes(t->db),
           usage ? "rows of usage" : "conversations and chains of responses");
    return sql_run(t->db, "PRAGMA wal_checkpoint(PASSIVE)", e);
}

/* ---- export ---- */

/* One object a line: the columns of a row, JSON as it is. `json`: the column from which on texts are JSON. */
static int export_rows(const struct state_tool *t, const char *kind, const char *text, int json,
                       struct err *e)
{
    struct sql q;
    sql_begin(&q, t->db, text, e);
    if (t->has_key)
        sql_bind_int(&q, t->key);
    else
        sql_bind_null(&q);
    while (sql_step(&q)) {
        struct buf out = {0};
        struct json j = {.out = &out};
        json_begin(&j, '{');
        json_key(&j, "kind");
        json_str(&j, kind);
        for (int i = 0; i < sqlite3_column_count(q.statement); i++) {
            size_t n;
            const char *s = sql_text(&q, i, &n);
            json_key(&j, sqlite3_column_name(q.statement, i));
            if (sqlite3_column_type(q.statement, i) == SQLITE_INTEGER)
                json_int(&j, sql_int(&q, i));
            else if (s && i >= json) {
                json_nil(&j); /* the writer counts a value; its text is the stored one */
                out.len -= 4;
                buf_add(&out, s, n);
            } else
                json_str(&j, s);
        }
        json_end(&j, '}');
        buf_char(&out, '\n');
        if (tool_print(&out, e))
            break;
    }
    return sql_end(&q) || e->code ? -1 : 0;
}

static int state_export(struct state_tool *t, struct err *e)
{
    return export_rows(t, "usage",
                       "SELECT date(day * 86400, 'unixepoch') AS day, printf('%016x', key) AS key_id, model, "
                       "requests,"
                       " errors, read, cached, written FROM usage WHERE ?1 IS NULL OR key = ?1",
                       99, e) ||
                   export_rows(
                       t, "conversation",
                       "SELECT id, printf('%016x', key) AS key_id, created, used, metadata FROM threads"
                       " WHERE id IS NOT NULL AND (?1 IS NULL OR key = ?1)",
                       4, e) ||
                   export_rows(t, "response",
                               "SELECT responses.id, printf('%016x', responses.key) AS key_id, threads.id AS"
                               " conversation, body FROM responses JOIN threads ON threads.number = thread"
                               " WHERE body IS NOT NULL AND (?1 IS NULL OR responses.key = ?1)",
                               3, e) ||
                   export_rows(
                       t, "item",
                       "SELECT items.id, printf('%016x', threads.key) AS key_id, threads.id AS conversation,"
                       " responses.id AS response, turn, items.body FROM items"
                       " JOIN threads ON threads.number = items.thread"
                       " LEFT JOIN responses ON responses.number = items.response"
                       " WHERE ?1 IS NULL OR threads.key = ?1 ORDER BY items.number",
                       5, e)
               ? -1
               : 0;
}

/* ---- backup ---- */

static int state_backup(struct state_tool *t, struct err *e)
{
    struct sql q;
    const char *to = t->a->words[1];
    if (!access(to, F_OK))
        return err_set(e, ERR_USAGE, "%s is already there", log_safe(to));
    mode_t mask = umask(0077);
    sql_begin(&q, t->db, "VACUUM INTO ?", e);
    sql_bind_text(&q, to);
    int failed = sql_end(&q);
    umask(mask);
    if (!failed)
        printf("%s\n", to);
    return failed;
}

static int state_run(const struct args *a, struct err *e)
{
    static const struct {
        const char *name;
        int words;
        bool write;
        int (*run)(struct state_tool *t, struct err *e);
    } actions[] = {{"show", 1, false, state_show},
                   {"purge", 1, true, state_purge},
                   {"export", 1, false, state_export},
                   {"backup", 2, true, state_backup}};
    const char *word = a->count ? a->words[0] : "show", *key = args_text(a, "key");
    struct state_tool t = {.a = a, .has_key = key};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        if (strcmp(word, actions[i].name) != 0)
            continue;
        if ((a->count ? a->count : 1) != actions[i].words)
            return err_set(e, ERR_USAGE, "quern state %s takes %s", word,
                           actions[i].words > 1 ? "a FILE" : "no words");
        if (state_folder_existing(a, t.folder, e) || state_open_beside(&t.db, t.folder, actions[i].write, e))
            return -1;
        int failed = (key && usage_find_key(t.db, key, &t.key, e)) || actions[i].run(&t, e);
        sqlite3_close(t.db);
        return failed ? -1 : 0;
    }
    return err_set(e, ERR_USAGE, "quern state takes show, purge, export or backup, not '%s'", log_safe(word));
}

const struct tool_verb tool_state = {
    .name = "state",
    .words = "[show|purge|export|backup FILE]",
    .brief = "show, remove, export or copy what a server has stored",
    .more = "It works on the state folder of quern serve, also while the server runs.\n"
            "  quern state\n"
            "  quern state purge --older 7d\n"
            "  quern state export > state.jsonl\n"
            "  quern state backup /backup/quern.db\n",
    .options = state_options,
    .least = 0,
    .most = 2,
    .run = state_run,
};
