/* quern usage: requests and tokens by key, model and day, from the state folder. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/usage_table.h"
#include "tool/state_folder.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct arg_option usage_options[] = {
    {"since", 0, ARG_TEXT, "DATE",
     "from this day (2026-11-16), month (2026-11) or number of days (7d; default: 30d)", 0, 0},
    {"key", 0, ARG_TEXT, "N", "of one key: its number, name or id; 0 = requests without a key", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON array", 0, 0},
    {"csv", 0, ARG_FLAG, NULL, "print lines of comma-separated values", 0, 0},
    STATE_OPTIONS,
    {0},
};

enum { USAGE_COUNTS = 5 };
static const char *const count_names[USAGE_COUNTS] = {"requests", "errors", "read", "cached", "written"};

struct usage_print {
    struct buf out;
    struct json j;
    bool json, csv;
    uint64_t sums[USAGE_COUNTS];
    size_t rows;
};

/* What a row calls its key: its number, or its id where the server's list has it no more. */
static void usage_key_text(const struct usage_row *r, char *out, size_t size)
{
    if (r->number || !r->key)
        snprintf(out, size, "%lld", (long long)r->number);
    else
        snprintf(out, size, "%016llx", (unsigned long long)r->key);
}

static void usage_print_json(struct usage_print *p, const char *date, const char *key,
                             const struct usage_row *r, const uint64_t counts[USAGE_COUNTS])
{
    const char *const texts[][2] = {{"day", date}, {"key", key}, {"name", r->name}, {"model", r->model}};
    json_begin(&p->j, '{');
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_key(&p->j, texts[i][0]);
        json_str(&p->j, texts[i][1]);
    }
    for (int i = 0; i < USAGE_COUNTS; i++) {
        json_key(&p->j, count_names[i]);
        json_uint(&p->j, counts[i]);
    }
    json_end(&p->j, '}');
}

/* A field of CSV: in quotes where it has a comma, a quote or a new line; a formula of a spreadsheet stays text. */
static void usage_csv_text(struct buf *out, const char *text)
{
    bool formula = text && *text && strchr("=+-@", *text);
    if (!text || (!strpbrk(text, ",\"\r\n") && !formula)) {
        buf_str(out, text ? text : "");
        return;
    }
    buf_char(out, '"');
    if (formula)
        buf_char(out, '\'');
    for (; *text; text++)
        buf_printf(out, *text == '"' ? "\"\"" : "%c", *text);
    buf_char(out, '"');
}

static void usage_print_row(void *print, const struct usage_row *r)
{
    struct usage_print *p = print;
    const uint64_t counts[USAGE_COUNTS] = {r->requests, r->errors, r->read, r->cached, r->written};
    char date[USAGE_DATE], key[24];
    usage_date(r->day, date);
    usage_key_text(r, key, sizeof key);
    p->rows++;
    for (int i = 0; i < USAGE_COUNTS; i++)
        p->sums[i] += counts[i];
    if (p->json) {
        usage_print_json(p, date, key, r, counts);
        return;
    }
    if (p->csv) {
        buf_printf(&p->out, "%s,%s,", date, key);
        usage_csv_text(&p->out, r->name);
        buf_char(&p->out, ',');
        usage_csv_text(&p->out, r->model);
    } else {
        buf_printf(&p->out, "%s  %-16s  %-12s", date, key, r->name ? log_safe(r->name) : "-");
        buf_printf(&p->out, "  %-32s", *r->model ? log_safe(r->model) : "-");
    }
    for (int i = 0; i < USAGE_COUNTS; i++)
        buf_printf(&p->out, p->csv ? ",%llu" : "  %12llu", (unsigned long long)counts[i]);
    buf_char(&p->out, '\n');
}

static void usage_head(struct usage_print *p)
{
    if (p->json)
        json_begin(&p->j, '[');
    else if (p->csv)
        buf_str(&p->out, "day,key,name,model,requests,errors,read,cached,written\n");
    else
        buf_printf(&p->out, "%-10s  %-16s  %-12s  %-32s  %12s  %12s  %12s  %12s  %12s\n", "DAY", "KEY",
                   "NAME", "MODEL", "REQUESTS", "ERRORS", "READ", "CACHED", "WRITTEN");
}

static void usage_foot(struct usage_print *p)
{
    if (p->json) {
        json_end(&p->j, ']');
        buf_char(&p->out, '\n');
    } else if (!p->csv && p->rows > 1) {
        buf_printf(&p->out, "%-10s  %-16s  %-12s  %-32s", "all", "", "", "");
        for (int i = 0; i < USAGE_COUNTS; i++)
            buf_printf(&p->out, "  %12llu", (unsigned long long)p->sums[i]);
        buf_char(&p->out, '\n');
    }
}

static int usage_run(const struct args *a, struct err *e)
{
    const char *since = args_text(a, "since"), *word = args_text(a, "key");
    int64_t from = usage_read_date(since ? since : "30d", usage_day(time(NULL))), key = 0;
    struct usage_print p = {.json = args_flag(a, "json"), .csv = args_flag(a, "csv")};
    char folder[PATH_MAX];
    sqlite3 *db = NULL;
    p.j.out = &p.out;
    if (from < 0)
        return err_set(e, ERR_USAGE,
                       "--since is a date (2026-11-16), a month (2026-11) or days (7d), not '%s'",
                       log_safe(since));
    if (p.json && p.csv)
        return err_set(e, ERR_USAGE, "--json and --csv exclude each other");
    if (state_folder_existing(a, folder, e) || state_open_beside(&db, folder, false, e))
        return -1;
    usage_head(&p);
    int failed = (word && usage_find_key(db, word, &key, e)) ||
                 usage_rows(db, from, word ? &key : NULL, usage_print_row, &p, e);
    sqlite3_close(db);
    usage_foot(&p);
    if (!failed)
        return tool_print(&p.out, e);
    buf_free(&p.out);
    return -1;
}

const struct tool_verb tool_usage = {
    .name = "usage",
    .words = "",
    .brief = "print requests and tokens by key, model and day",
    .more =
        "It reads the state folder of quern serve, also while the server runs. Days are days of UTC. READ "
        "are the\n"
        "tokens of prompts, CACHED those of them that were found in the cache, WRITTEN those of answers.\n"
        "  quern usage --since 2026-11 --csv\n"
        "  quern usage --state-dir /var/lib/quern --key 2\n",
    .options = usage_options,
    .least = 0,
    .most = 0,
    .run = usage_run,
};
