#include "serve/usage.h"

#include "base/buf.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/usage_table.h"
#include "serve/failure.h"

#include <stddef.h>
#include <time.h>

const char *usage_admit(struct key_usage *u, const struct key_limits *most, double now)
{
    if (most->a_minute > 0) { /* what was not used is kept, but for no more than a minute */
        double left =
            u->requests + u->refused ? u->left + (now - u->since) * most->a_minute / 60 : most->a_minute;
        u->left = left < most->a_minute ? left : most->a_minute;
        u->since = now;
    }
    const char *why = most->a_minute > 0 && u->left < 1
                          ? "this key has reached its rate limit (requests a minute)"
                      : most->parallel && u->running >= most->parallel
                          ? "this key has reached its limit of concurrent sequences"
                          : NULL;
    if (why) {
        u->refused++;
        return why;
    }
    u->left -= 1;
    u->requests++;
    u->running++;
    return NULL;
}

bool usage_grow(struct key_usage *u, const struct key_limits *most, uint32_t more)
{
    bool fits = !more || !most->parallel || u->running + more <= most->parallel;
    if (fits)
        u->running += more;
    else
        u->refused++;
    return fits;
}

void usage_end(struct key_usage *u, uint32_t sequences, uint64_t prompt_tokens, uint64_t made_tokens)
{
    u->running -= sequences;
    u->prompt_tokens += prompt_tokens;
    u->made_tokens += made_tokens;
}

void usage_write(const struct key_usage *all, uint32_t only, struct buf *out)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"requests", "Requests of a key, by its index.", offsetof(struct key_usage, requests)},
        {"refused", "Requests refused by the key's limits.", offsetof(struct key_usage, refused)},
        {"prompt_tokens", "Tokens of a key's prompts.", offsetof(struct key_usage, prompt_tokens)},
        {"generated_tokens", "Tokens generated for a key.", offsetof(struct key_usage, made_tokens)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf_printf(out, "# HELP quern_key_%s_total %s\n# TYPE quern_key_%s_total counter\n", rows[i].name,
                   rows[i].help, rows[i].name);
        for (uint32_t key = 0; key < USAGE_KEYS; key++)
            if ((only == USAGE_ALL || only == key) && all[key].requests + all[key].refused)
                buf_printf(out, "quern_key_%s_total{key=\"%u\"} %llu\n", rows[i].name, key,
                           (unsigned long long)*(const uint64_t *)((const char *)&all[key] + rows[i].at));
    }
}

/* ---- quotas ---- */

void quota_free(struct quotas *q)
{
    mem_free(q->all);
    *q = (struct quotas){0};
}

static struct quota_count *quota_find(const struct quotas *q, int64_t key)
{
    for (size_t i = 0; i < q->count; i++)
        if (q->all[i].key == key)
            return &q->all[i];
    return NULL;
}

/* Another day begins at zero; where memory is out, the tokens do not count. */
void quota_add(struct quotas *q, int64_t key, int64_t day, uint64_t tokens)
{
    struct quota_count *c = quota_find(q, key);
    if (!c) {
        void *all = mem_more(q->all, q->count, &q->room, sizeof *q->all);
        if (!all)
            return;
        q->all = all;
        c = &q->all[q->count++];
        *c = (struct quota_count){.key = key, .day = day};
    }
    c->today = c->day == day ? c->today + tokens : tokens;
    c->month = usage_month(c->day) == usage_month(day) ? c->month + tokens : tokens;
    c->day = day;
}

static void quota_take(void *quotas, const struct usage_row *row)
{
    quota_add(quotas, row->key, row->day, row->read + row->written);
}

int quota_load(struct quotas *q, struct state *s, struct err *e)
{
    sqlite3 *db = state_reader(s);
    int r = usage_rows(db, usage_month(usage_day(time(NULL))), NULL, quota_take, q, e);
    state_release(s, db);
    return r;
}

static int quota_refuse(uint64_t most, const char *span, int64_t seconds, struct failure *f)
{
    f->retry = (uint32_t)seconds;
    return failure_set(f, 429, "insufficient_quota", NULL,
                       "this key has used its %llu tokens of this %s (UTC); they begin anew in %.1f h",
                       (unsigned long long)most, span, (double)seconds / 3600);
}

int quota_check(const struct quotas *q, int64_t key, const struct key_quota *most, int64_t now,
                struct failure *f)
{
    enum { DAY = 86400, LONGEST = 31 };
    const struct quota_count *c = quota_find(q, key);
    int64_t day = usage_day(now), next = day + 1;
    if (!c || (!most->day && !most->month) || usage_month(c->day) != usage_month(day))
        return 0;
    while (next <= day + LONGEST && usage_month(next) == usage_month(day))
        next++;
    if (most->month && c->month >= most->month)
        return quota_refuse(most->month, "month", next * DAY - now, f);
    if (most->day && c->day == day && c->today >= most->day)
        return quota_refuse(most->day, "day", (day + 1) * DAY - now, f);
    return 0;
}
