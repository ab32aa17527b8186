/* /v1/models as Anthropic's clients read it: pages of models. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/json.h"
#include "base/num.h"
#include "serve/anthropic.h"
#include "serve/conn.h"
#include "serve/models.h"
#include "serve/route.h"
#include "serve/server_internal.h"

#include <string.h>
#include <time.h>

enum { PAGE_USUAL = 20, PAGE_MOST = 1000, PAGE_NAME = 512 };

void anthropic_write_model(struct json *j, const struct served *s, const char *name)
{
    struct tm tm;
    char created[64];
    gmtime_r(&s->facts.modified, &tm);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    const struct {
        const char *key, *value;
    } rows[] = {{"type", "model"},
                {"id", name},
                {"display_name", name},
                {"created_at", created},
                {"lifecycle", "active"}};
    json_begin(j, '{');
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_key(j, rows[i].key);
        json_str(j, rows[i].value);
    }
    json_key(j, "max_input_tokens");
    json_uint(j, s->facts.context);
    json_key(j, "max_tokens");
    json_uint(j, s->facts.context);
    json_end(j, '}');
}

/* The entries [from, from + limit) of all. */
struct page {
    const char *after, *before; /* ids; NULL = none */
    size_t from, limit;
    size_t at, count; /* entries seen, and written */
    size_t found;     /* place of `after` or `before`, from 1; 0 = it is not there */
    const char *first, *last;
    struct json *json; /* NULL: only looks for the id */
};

static void page_take(void *arg, const struct served *s, const char *name)
{
    struct page *p = arg;
    const char *wanted = p->after ? p->after : p->before;
    size_t at = p->at++;
    if (!p->json) {
        p->found = wanted && !strcmp(wanted, name) ? at + 1 : p->found;
        return;
    }
    if (at < p->from || at >= p->from + p->limit)
        return;
    anthropic_write_model(p->json, s, name);
    p->first = p->first ? p->first : name;
    p->last = name;
    p->count++;
}

/* Where the page begins, and whether more follows in its direction. False: there is no such id. */
static bool page_place(struct models *m, struct page *p, bool *more)
{
    models_each(m, page_take, p);
    size_t all = p->at;
    if ((p->after || p->before) && !p->found)
        return false;
    p->from = p->after ? p->found : 0;
    if (!p->after && p->before) {
        size_t end = p->found - 1;
        p->from = end > p->limit ? end - p->limit : 0;
        p->limit = end - p->from;
        *more = p->from > 0;
    } else
        *more = p->from + p->limit < all;
    p->at = 0;
    return true;
}

static bool page_read(const struct conn *c, struct page *p, char *after, char *before)
{
    char limit[32];
    int64_t n = PAGE_USUAL;
    p->after = route_query(c, "after_id", after, PAGE_NAME) ? after : NULL;
    p->before = route_query(c, "before_id", before, PAGE_NAME) ? before : NULL;
    bool fine =
        !route_query(c, "limit", limit, sizeof limit) || num_i64(limit, strlen(limit), 1, PAGE_MOST, &n);
    p->limit = (size_t)n;
    return fine;
}

void anthropic_models(struct conn *c)
{
    char after[PAGE_NAME], before[PAGE_NAME];
    struct buf out = {0};
    struct json j = {.out = &out};
    struct page p = {0};
    struct models *m = c->server->models;
    bool more = false;
    if (!page_read(c, &p, after, before)) {
        conn_failf(c, 400, NULL, "limit has to be from 1 to %d", PAGE_MOST);
        return;
    }
    models_lock(m);
    bool found = page_place(m, &p, &more);
    json_begin(&j, '{');
    json_key(&j, "data");
    json_begin(&j, '[');
    p.json = &j;
    if (found)
        models_each(m, page_take, &p);
    json_end(&j, ']');
    json_key(&j, "has_more");
    json_bool(&j, more);
    json_key(&j, "first_id");
    json_str(&j, p.first);
    json_key(&j, "last_id");
    json_str(&j, p.last);
    json_end(&j, '}');
    models_unlock(m);
    if (found)
        route_json(c, 200, &out);
    else {
        buf_free(&out);
        conn_failf(c, 400, NULL, "there is no model of the id that after_id or before_id names");
    }
}
