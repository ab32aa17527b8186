/* Usage by day, key and model, as the database has it. */
#include "base/json.h"
#include "base/log.h"
#include "save/state.h"
#include "save/usage_table.h"
#include "serve/api.h"
#include "serve/field.h"
#include "serve/request.h"
#include "serve/server_internal.h"

#include <stdio.h>
#include <time.h>

static void usage_json(void *json, const struct usage_row *row)
{
    struct json *j = json;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"requests", row->requests},
                  {"errors", row->errors},
                  {"read", row->read},
                  {"cached", row->cached},
                  {"written", row->written}};
    char date[USAGE_DATE], id[24];
    usage_date(row->day, date);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)row->key);
    json_begin(j, '{');
    json_key(j, "day");
    json_str(j, date);
    json_key(j, "key");
    json_int(j, row->number);
    json_key(j, "key_id");
    json_str(j, row->key ? id : NULL);
    json_key(j, "name");
    json_str(j, row->name);
    json_key(j, "model");
    json_str(j, row->model);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        json_key(j, counts[i].name);
        json_uint(j, counts[i].value);
    }
    json_end(j, '}');
}

void api_usage(struct request *a)
{
    const char *since = field_text(a->json, "since");
    int64_t from = usage_read_date(since ? since : "30d", usage_day(time(NULL)));
    struct json j = {.out = &a->reply};
    struct err e = {0};
    if (from < 0) {
        request_fail(a, 400, "since",
                     "since is a date (2026-11-16), a month (2026-11) or days (7d), not '%s'",
                     log_safe(since));
        return;
    }
    json_begin(&j, '{');
    json_key(&j, "object");
    json_str(&j, "list");
    json_key(&j, "data");
    json_begin(&j, '[');
    sqlite3 *db = state_reader(a->server->o->state);
    if (usage_rows(db, from, a->admin ? NULL : &a->owner, usage_json, &j, &e))
        request_fail_state(a, &e);
    state_release(a->server->o->state, db);
    json_end(&j, ']');
    json_end(&j, '}');
}
