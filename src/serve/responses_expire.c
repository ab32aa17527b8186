#include "serve/responses_expire.h"

#include "base/log.h"
#include "base/mem.h"
#include "save/state.h"
#include "save/threads.h"
#include "serve/limit.h"
#include "serve/server_internal.h"

#include <math.h>
#include <time.h>

enum {
    EXPIRE_JUMP = 60,    /* seconds by which a clock that jumps differs */
    EXPIRE_STEADY = 600, /* seconds without a jump before anything expires */
    EXPIRE_EVERY = 10,
    EXPIRE_MEMORY = 64 << 20, /* bytes of what is kept in memory */
};

struct expiry {
    struct state_write write;
    int64_t before;
    uint64_t most;
};

static int expiry_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    const struct expiry *x = (const struct expiry *)w;
    return thread_expire(db, x->before, x->most, e) < 0 ? -1 : 0;
}

static void expiry_done(struct state_write *w)
{
    mem_free(w);
}

/* Whether the time of day has gone with the clock for long enough. */
static bool expire_is_steady(struct server *s, double now)
{
    double offset = (double)time(NULL) - now, keep = s->o->keep_responses;
    bool jumped = s->steady_since && fabs(offset - s->clock_offset) > EXPIRE_JUMP;
    if (jumped)
        log_warn(
            "the time of day has jumped by %.0f s: stored responses expire only after %d s without a jump",
            offset - s->clock_offset, EXPIRE_STEADY);
    if (jumped || !s->steady_since)
        s->steady_since = now;
    s->clock_offset = offset;
    return now - s->steady_since >= fmin(EXPIRE_STEADY, keep / 10);
}

void responses_expire(struct server *s, double now)
{
    struct err e = {0};
    uint64_t most = limit_of(LIMIT_RESPONSES);
    if (!s->o->state)
        return;
    bool steady = expire_is_steady(s, now);
    if (now - s->expired < fmin(EXPIRE_EVERY, s->o->keep_responses / 10))
        return;
    s->expired = now;
    struct expiry *x = mem_zalloc(1, sizeof *x);
    if (!x)
        return;
    x->write = (struct state_write){.run = expiry_run, .done = expiry_done};
    x->before = steady ? (int64_t)time(NULL) - (int64_t)s->o->keep_responses : 0;
    x->most = state_is_kept(s->o->state) || most < EXPIRE_MEMORY ? most : EXPIRE_MEMORY;
    if (state_write(s->o->state, &x->write, &e))
        mem_free(x);
}
