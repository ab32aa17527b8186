/* The bytes of an answer, cut at the marks of its family. */
#define _GNU_SOURCE
#include "lang/reply.h"

#include "base/buf.h"
#include "base/mem.h"
#include "lang/reply_own.h"

#include <string.h>

enum {
    REPLY_MOST = 1 << 20, /* bytes of a call: more are text */
    REPLY_TRIES = 64,     /* ends that a call may turn out not to have */
    REPLY_ALL = 1 + REPLY_WRAPS + 4 + REPLY_MARKS
};

enum mark_kind { MARK_WRAP, MARK_SECTION, MARK_DROP, MARK_REASON };

struct mark {
    const char *text;
    size_t n;
    enum mark_kind kind;
};

enum reply_at { AT_TEXT, AT_REASON, AT_CALL };

struct reply {
    struct reply_options o;
    struct mark marks[REPLY_ALL];
    uint32_t count;
    enum reply_at at;
    struct buf held; /* not decided yet */
    bool ending;     /* nothing more will come */
    bool cut;        /* though there would be more */
    bool begun;      /* text has come: a call without marks cannot */
    bool fresh;      /* behind reasoning or a call: white space is dropped */
    bool called;     /* the last thing was a call */
    /* AT_CALL: held is [what leads to it) body ... */
    size_t body, seen;
    uint32_t tries;
    const char *open; /* NULL = a call without marks */
    bool sure;        /* the constraint holds it: it is a call */
    struct reply_scan scan;
    struct reply_ahead ahead;
};

static const struct reply_wrap bare_wrap = {.shape = SHAPE_JSON, .close = "", .known = true};

/* ---- opening ---- */

static void reply_mark(struct reply *r, const char *text, enum mark_kind kind)
{
    if (!text)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        if (!strcmp(r->marks[i].text, text))
            return;
    r->marks[r->count++] = (struct mark){text, strlen(text), kind};
}

struct reply *reply_open(const struct reply_options *o, struct err *e)
{
    struct reply *r = mem_zalloc(1, sizeof *r);
    if (!r) {
        err_memory(e, "an answer", sizeof *r);
        return NULL;
    }
    r->o = *o;
    if (o->thought)
        reply_mark(r, o->thought->open, MARK_REASON);
    for (size_t i = 0; i < REPLY_WRAPS && o->tools; i++)
        reply_mark(r, o->form->wraps[i].open, MARK_WRAP);
    for (size_t i = 0; i < 4; i++)
        reply_mark(r, o->form->section[i], MARK_SECTION);
    for (size_t i = 0; i < REPLY_MARKS; i++)
        reply_mark(r, o->form->drop[i], MARK_DROP);
    r->at = o->thinking && o->thought ? AT_REASON : AT_TEXT;
    r->fresh = r->at == AT_REASON;
    return r;
}

void reply_close(struct reply *r)
{
    if (!r)
        return;
    buf_free(&r->held);
    mem_free(r);
}

bool reply_is_thinking(const struct reply_thought *t, const char *prompt, size_t n)
{
    struct reply_text end = reply_trim((struct reply_text){prompt, n}),
                      open = reply_trim((struct reply_text){t->open, strlen(t->open)});
    return end.n >= open.n && !memcmp(end.s + end.n - open.n, open.s, open.n);
}

/* ---- what goes out ---- */

static void reply_drop(struct reply *r, size_t n)
{
    memmove(r->held.data, r->held.data + n, r->held.len - n);
    r->held.len -= n;
}

/* The first n bytes go out; white space only where something stood before it. */
static void reply_put(struct reply *r, enum reply_part part, size_t n)
{
    size_t skip = 0;
    while (r->fresh && skip < n && reply_is_white(r->held.data[skip]))
        skip++;
    /* under a constraint what follows a call, or stands in its place, is markup that was cut */
    bool markup = part == REPLY_TEXT && (r->o.only_calls || (r->o.ruled && r->cut && r->called));
    if (skip < n && !markup) {
        r->o.take(r->o.arg, &(struct reply_piece){.part = part, .text = r->held.data + skip, .n = n - skip});
        r->fresh = false;
        if (part == REPLY_TEXT) {
            r->begun = true;
            r->called = false;
        }
    }
    reply_drop(r, n);
}

/* Bytes before `end` without the white space at their end. */
static size_t reply_solid(const struct reply *r, size_t end)
{
    while (end && reply_is_white(r->held.data[end - 1]))
        end--;
    return end;
}

/* How many bytes at the end of [from, end) of what is held are the beginning of this mark. */
static size_t reply_overlap(const struct reply *r, size_t from, size_t end, const char *mark)
{
    size_t n = strlen(mark), most = end - from, k = n ? n - 1 : 0;
    for (k = k < most ? k : most; k && memcmp(r->held.data + end - k, mark, k);)
        k--;
    return k;
}

/* ---- marks ---- */

/* The longest mark at this place; *wait: it may still become one, or a longer one. */
static const struct mark *reply_mark_at(const struct reply *r, size_t at, bool *wait)
{
    const struct mark *best = NULL;
    size_t left = r->held.len - at;
    *wait = false;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct mark *m = &r->marks[i];
        size_t n = m->n < left ? m->n : left;
        if (memcmp(r->held.data + at, m->text, n) != 0 || (best && best->n > m->n))
            continue;
        if (n == m->n)
            best = m;
        else
            *wait |= !r->ending;
    }
    return best;
}

/* What follows a section's mark, and where; *wait: it is not there yet. */
static const struct mark *reply_mark_after(const struct reply *r, size_t *at, bool *wait)
{
    for (;; ++*at) {
        *wait = *at == r->held.len && !r->ending;
        if (*at == r->held.len)
            return NULL;
        const struct mark *m = reply_mark_at(r, *at, wait);
        if (m || *wait || !reply_is_white(r->held.data[*at]))
            return m;
    }
}

/* ---- calls ---- */

static const struct reply_wrap *reply_wrap(const struct reply *r)
{
    for (size_t i = 0; i < REPLY_WRAPS && r->open; i++)
        if (!strcmp(r->o.form->wraps[i].open, r->open))
            return &r->o.form->wraps[i];
    return &bare_wrap;
}

static void reply_enter_call(struct reply *r, const char *open, size_t body)
{
    r->at = AT_CALL;
    r->open = open;
    r->body = r->seen = body;
    r->tries = 0;
    r->scan = (struct reply_scan){0};
    r->ahead = (struct reply_ahead){.at = r->o.ruled ? AHEAD_HEAD : AHEAD_OVER, .from = body};
    r->sure = r->o.ruled && !reply_wrap(r)->known;
}

/* Tries the body [body, end) in every shape that begins like this. */
static json_t *reply_try(const struct reply *r, size_t end)
{
    struct reply_text body = {r->held.data + r->body, end - r->body};
    if (!r->open)
        return reply_calls(&bare_wrap, r->o.tools, body);
    for (size_t i = 0; i < REPLY_WRAPS && r->o.form->wraps[i].open; i++) {
        const struct reply_wrap *w = &r->o.form->wraps[i];
        json_t *calls = strcmp(w->open, r->open) ? NULL : reply_calls(w, r->o.tools, body);
        if (calls)
            return calls;
    }
    return NULL;
}

/* The calls are known: [0, end) of what is held was theirs. */
static void reply_take(struct reply *r, json_t *calls, size_t end)
{
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        if (i < r->ahead.calls) /* has gone out already */
            continue;
        const json_t *arguments = json_object_get(call, "arguments");
        r->o.take(r->o.arg, &(struct reply_piece){.part = REPLY_CALL,
                                                  .text = json_string_value(arguments),
                                                  .n = json_string_length(arguments),
                                                  .name = json_string_value(json_object_get(call, "name")),
                                                  .id = json_string_value(json_object_get(call, "id"))});
    }
    json_decref(calls);
    reply_drop(r, end);
    r->at = AT_TEXT;
    r->fresh = r->called = true;
}

/* It is no call, or no whole one: what led to it is text, unless it has gone out as a call, and what follows is looked at
 * again. */
static void reply_give_up(struct reply *r)
{
    r->at = AT_TEXT;
    if (r->ahead.calls) { /* cut where the next call begins, there is no text */
        reply_drop(r, r->ending && r->ahead.at == AHEAD_HEAD ? r->held.len : r->ahead.from);
        r->fresh = r->called = true;
        return;
    }
    if (r->sure && r->ending) {
        reply_drop(r, r->held.len);
        return;
    }
    if (!r->open)
        r->begun = true;
    reply_put(r, REPLY_TEXT, r->body);
}

/* Can this still become a call? A text that only begins like one must not be held back for long. */
static bool reply_may_be_call(const struct reply *r)
{
    struct reply_text t = {r->held.data + r->body, r->held.len - r->body};
    while (t.n && reply_is_white(*t.s))
        t.s++, t.n--;
    if (!t.n || reply_wrap(r)->shape != SHAPE_JSON || r->open)
        return true;
    for (size_t i = 0; i < t.n && i < 40; i++) { /* {"name", [{"name": the first key decides */
        if (t.s[i] != '"' && t.s[i] != '[' && t.s[i] != '{' && !reply_is_white(t.s[i]))
            return false;
        if (t.s[i] != '"')
            continue;
        static const char *const keys[] = {"\"name\"", "\"type\"", "\"function\"", "\"tool_name\"", "\"id\""};
        struct reply_text key = {t.s + i, t.n - i};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (reply_starts(key, keys[k]) || !strncmp(keys[k], key.s, key.n < 12 ? key.n : 12))
                return true;
        return false;
    }
    return t.n < 40;
}

/* Looks for the next place where the body may end: its end and, in *after, what follows; false = none yet. */
static bool reply_next_end(struct reply *r, size_t most, size_t *end, size_t *after)
{
    const char *close = reply_wrap(r)->close;
    size_t n = strlen(close);
    if (n) {
        const char *at = most > r->seen ? memmem(r->held.data + r->seen, most - r->seen, close, n) : NULL;
        if (!at) {
            size_t from = most > n - 1 ? most - (n - 1) : 0;
            r->seen = from > r->seen ? from : r->seen;
            return false;
        }
        *end = (size_t)(at - r->held.data);
        *after = *end + n;
        r->seen = *end + 1;
        return true;
    }
    while (r->seen < most)
        if (reply_scan(&r->scan, r->held.data[r->seen++])) {
            *end = *after = r->seen;
            return true;
        }
    return false;
}

/* Tells of what is sure in [0, end); true: a call is on its way there, and not whole. */
static bool reply_go_ahead(struct reply *r, size_t end)
{
    reply_ahead(&r->ahead, reply_wrap(r), &r->o, (struct reply_text){r->held.data, end});
    return r->ahead.at == AHEAD_ARGUMENTS;
}

/* Where the model is held to a constraint, a call is what that takes for one. 1, 0 = it is not clear yet, -1 = it is
 * none. */
static int reply_is_call(struct reply *r)
{
    struct reply_text body = {r->held.data + r->body, r->held.len - r->body};
    if (!r->o.ruled)
        return reply_may_be_call(r) ? 1 : -1;
    int is = r->sure ? 1 : output_begins(reply_wrap(r), r->o.tools, body);
    r->sure = is > 0;
    return is == 0 && (r->ending || body.n > REPLY_MOST) ? -1 : is;
}

/* True: something was decided. */
static bool reply_step_call(struct reply *r)
{
    size_t end, after, limit = r->body + REPLY_MOST;
    size_t most = r->held.len < limit ? r->held.len : limit;
    int is = reply_is_call(r);
    if (is < 0)
        reply_give_up(r);
    if (is <= 0)
        return is < 0;
    while (r->tries < REPLY_TRIES && reply_next_end(r, most, &end, &after)) {
        json_t *calls = reply_go_ahead(r, end) ? NULL : reply_try(r, end);
        if (calls) {
            reply_take(r, calls, after);
            return true;
        }
        r->tries++;
    }
    bool over = r->tries == REPLY_TRIES || most == limit;
    size_t sure = most - reply_overlap(r, r->body, most, reply_wrap(r)->close);
    bool within = r->tries < REPLY_TRIES && reply_go_ahead(r, sure);
    if (!over && !r->ending)
        return false;
    /* a model may end where the close would stand, or within it */
    json_t *calls = over || within ? NULL : reply_try(r, sure);
    if (calls)
        reply_take(r, calls, r->held.len);
    else {
        if (within && !over)
            reply_go_ahead(r, most);
        reply_give_up(r);
    }
    return true;
}

/* ---- text and reasoning ---- */

static bool reply_step_reason(struct reply *r)
{
    const char *close = r->o.thought->close, *at = NULL;
    size_t n = strlen(close);
    if (r->held.len)
        at = memmem(r->held.data, r->held.len, close, n);
    if (at) {
        size_t end = (size_t)(at - r->held.data), solid = reply_solid(r, end);
        reply_put(r, REPLY_REASON, solid);
        reply_drop(r, end - solid + n);
        r->at = AT_TEXT;
        r->fresh = true;
        return true;
    }
    size_t keep = r->ending && !r->cut ? 0 : reply_overlap(r, 0, r->held.len, close);
    reply_put(r, REPLY_REASON, reply_solid(r, r->held.len - keep));
    return false;
}

/* A mark stands at the beginning of what is held, behind `white` bytes of white space. */
static bool reply_take_mark(struct reply *r, const struct mark *m, size_t white)
{
    bool wait;
    const struct mark *next = NULL;
    size_t at = white + m->n, then = at;
    switch (m->kind) {
    case MARK_WRAP:
        reply_enter_call(r, m->text, at);
        return true;
    case MARK_SECTION:
        next = reply_mark_after(r, &then, &wait);
        if (wait)
            return false;
        if (next && next->kind == MARK_WRAP)
            reply_enter_call(r, next->text, then + next->n);
        else if (next || r->called || r->o.ruled)
            reply_drop(r, at);
        else
            reply_put(r, REPLY_TEXT, at);
        return true;
    case MARK_DROP:
    case MARK_REASON:
        break;
    }
    reply_drop(r, at);
    r->fresh = true;
    r->at = m->kind == MARK_REASON ? AT_REASON : AT_TEXT;
    return true;
}

/* Drops the beginning of a mark of calls from the end of a text that was cut. One byte says too little. */
static void reply_cut_mark(struct reply *r)
{
    size_t most = 1;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct mark *m = &r->marks[i];
        size_t n = m->kind == MARK_DROP || !r->o.tools ? 0 : reply_overlap(r, 0, r->held.len, m->text);
        most = n > most ? n : most;
    }
    r->held.len -= most > 1 ? most : 0;
}

static bool reply_step_text(struct reply *r)
{
    const struct mark *m = NULL;
    bool wait = false;
    size_t at = 0;
    if (!r->begun && r->o.tools && r->o.form->bare) {
        size_t white = 0;
        while (white < r->held.len &&
               (reply_is_white(r->held.data[white]) || (r->called && r->held.data[white] == ';')))
            white++;
        if (white == r->held.len && r->called && !r->ending)
            return false;
        if (white < r->held.len && (r->held.data[white] == '{' || r->held.data[white] == '[')) {
            reply_enter_call(r, NULL, white);
            return true;
        }
    }
    while (at < r->held.len && !(m = reply_mark_at(r, at, &wait)) && !wait)
        at++;
    if (wait)
        m = NULL;
    size_t solid = m || wait || !r->ending ? reply_solid(r, at) : at;
    if (solid || (r->ending && !m)) {
        reply_put(r, REPLY_TEXT, solid);
        at -= solid;
    }
    return m && reply_take_mark(r, m, at);
}

static void reply_run(struct reply *r)
{
    bool on = true;
    while (on && r->held.len)
        on = r->at == AT_TEXT     ? reply_step_text(r)
             : r->at == AT_REASON ? reply_step_reason(r)
                                  : reply_step_call(r);
}

int reply_feed(struct reply *r, const char *text, size_t n)
{
    if (!buf_add(&r->held, text, n))
        return -1;
    reply_run(r);
    return 0;
}

static void reply_ignore(void *arg, const struct reply_piece *p)
{
    (void)arg;
    (void)p;
}

int reply_go_on(struct reply *r, const char *text, size_t n)
{
    void (*take)(void *arg, const struct reply_piece *p) = r->o.take;
    r->o.take = reply_ignore;
    int failed = reply_feed(r, text, n);
    r->o.take = take;
    r->begun |= n > 0;
    if (r->at == AT_CALL) { /* what has been told of it was ignored: it is told again */
        r->tries = 0;
        r->seen = r->body;
        r->scan = (struct reply_scan){0};
        r->ahead = (struct reply_ahead){.at = r->o.ruled ? AHEAD_HEAD : AHEAD_OVER, .from = r->body};
    } else
        buf_clear(&r->held);
    return failed;
}

bool reply_reasons(const struct reply *r)
{
    return r->at == AT_REASON;
}

size_t reply_call_begun(const struct reply *r)
{
    return r->at == AT_CALL ? r->held.len : 0;
}

int reply_end(struct reply *r, bool cut)
{
    r->ending = true;
    r->cut = cut;
    if (cut && r->at == AT_TEXT)
        reply_cut_mark(r);
    reply_run(r);
    return r->held.failed ? -1 : 0;
}
