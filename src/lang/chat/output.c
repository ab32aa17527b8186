/* The bytes of a model's output, cut at the marks of its family. */
#define _GNU_SOURCE
#include "lang/chat/output.h"

#include "base/buf.h"
#include "base/mem.h"
#include "lang/chat/output_internal.h"

#include <string.h>

enum {
    OUTPUT_MOST = 1 << 20, /* bytes of a call: more are text */
    OUTPUT_TRIES = 64,     /* ends that a call may turn out not to have */
    OUTPUT_ALL = 1 + OUTPUT_WRAPS + 4 + OUTPUT_MARKS
};

enum mark_kind { MARK_WRAP, MARK_SECTION, MARK_DROP, MARK_REASON };

struct mark {
    const char *text;
    size_t n;
    enum mark_kind kind;
};

enum output_at { AT_TEXT, AT_REASON, AT_CALL };

struct output_parser {
    struct output_options o;
    struct mark marks[OUTPUT_ALL];
    uint32_t count;
    enum output_at at;
    struct buf held; /* not decided yet */
    bool ending;     /* the output has ended */
    bool cut;        /* ended by a limit, not by the model */
    bool begun;      /* text has come: a call without marks cannot */
    bool fresh;      /* behind reasoning or a call: white space is dropped */
    bool called;     /* the last thing was a call */
    /* AT_CALL: held is [what leads to it) body ... */
    size_t body, seen;
    uint32_t tries;
    const char *open; /* NULL = a call without marks */
    bool sure;        /* the constraint guarantees that it is a call */
    struct output_scan scan;
    struct output_ahead ahead;
};

static const struct output_wrap bare_wrap = {.shape = SHAPE_JSON, .close = "", .known = true};

/* ---- opening ---- */

static void output_mark(struct output_parser *r, const char *text, enum mark_kind kind)
{
    if (!text)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        if (!strcmp(r->marks[i].text, text))
            return;
    r->marks[r->count++] = (struct mark){text, strlen(text), kind};
}

struct output_parser *output_open(const struct output_options *o, struct err *e)
{
    struct output_parser *r = mem_zalloc(1, sizeof *r);
    if (!r) {
        err_memory(e, "the parser of a model's output", sizeof *r);
        return NULL;
    }
    r->o = *o;
    if (o->thought)
        output_mark(r, o->thought->open, MARK_REASON);
    for (size_t i = 0; i < OUTPUT_WRAPS && o->tools; i++)
        output_mark(r, o->form->wraps[i].open, MARK_WRAP);
    for (size_t i = 0; i < 4; i++)
        output_mark(r, o->form->section[i], MARK_SECTION);
    for (size_t i = 0; i < OUTPUT_MARKS; i++)
        output_mark(r, o->form->drop[i], MARK_DROP);
    r->at = o->thinking && o->thought ? AT_REASON : AT_TEXT;
    r->fresh = r->at == AT_REASON;
    return r;
}

void output_close(struct output_parser *r)
{
    if (!r)
        return;
    buf_free(&r->held);
    mem_free(r);
}

bool output_is_thinking(const struct output_thought *t, const char *prompt, size_t n)
{
    struct output_text end = output_trim((struct output_text){prompt, n}),
                       open = output_trim((struct output_text){t->open, strlen(t->open)});
    return end.n >= open.n && !memcmp(end.s + end.n - open.n, open.s, open.n);
}

/* ---- pieces ---- */

static void output_drop(struct output_parser *r, size_t n)
{
    memmove(r->held.data, r->held.data + n, r->held.len - n);
    r->held.len -= n;
}

/* Emits the first n bytes; white space only where something stood before it. */
static void output_put(struct output_parser *r, enum output_part part, size_t n)
{
    size_t skip = 0;
    while (r->fresh && skip < n && output_is_white(r->held.data[skip]))
        skip++;
    /* under a constraint what follows a call, or stands in its place, is markup that was cut */
    bool markup = part == OUTPUT_TEXT && (r->o.only_calls || (r->o.ruled && r->cut && r->called));
    if (skip < n && !markup) {
        r->o.take(r->o.arg, &(struct output_piece){.part = part, .text = r->held.data + skip, .n = n - skip});
        r->fresh = false;
        if (part == OUTPUT_TEXT) {
            r->begun = true;
            r->called = false;
        }
    }
    output_drop(r, n);
}

/* Bytes before `end` without the white space at their end. */
static size_t output_solid(const struct output_parser *r, size_t end)
{
    while (end && output_is_white(r->held.data[end - 1]))
        end--;
    return end;
}

/* How many bytes at the end of [from, end) of what is held are the beginning of this mark. */
static size_t output_overlap(const struct output_parser *r, size_t from, size_t end, const char *mark)
{
    size_t n = strlen(mark), most = end - from, k = n ? n - 1 : 0;
    for (k = k < most ? k : most; k && memcmp(r->held.data + end - k, mark, k);)
        k--;
    return k;
}

/* ---- marks ---- */

/* The longest mark at this place; *wait: it may still become one, or a longer one. */
static const struct mark *output_mark_at(const struct output_parser *r, size_t at, bool *wait)
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
static const struct mark *output_mark_after(const struct output_parser *r, size_t *at, bool *wait)
{
    for (;; ++*at) {
        *wait = *at == r->held.len && !r->ending;
        if (*at == r->held.len)
            return NULL;
        const struct mark *m = output_mark_at(r, *at, wait);
        if (m || *wait || !output_is_white(r->held.data[*at]))
            return m;
    }
}

/* ---- calls ---- */

static const struct output_wrap *output_wrap(const struct output_parser *r)
{
    for (size_t i = 0; i < OUTPUT_WRAPS && r->open; i++)
        if (!strcmp(r->o.form->wraps[i].open, r->open))
            return &r->o.form->wraps[i];
    return &bare_wrap;
}

static void output_enter_call(struct output_parser *r, const char *open, size_t body)
{
    r->at = AT_CALL;
    r->open = open;
    r->body = r->seen = body;
    r->tries = 0;
    r->scan = (struct output_scan){0};
    r->ahead = (struct output_ahead){.at = r->o.ruled ? AHEAD_HEAD : AHEAD_OVER, .from = body};
    r->sure = r->o.ruled && !output_wrap(r)->known;
}

/* Tries the body [body, end) in every shape that begins like this. */
static json_t *output_try(const struct output_parser *r, size_t end)
{
    struct output_text body = {r->held.data + r->body, end - r->body};
    if (!r->open)
        return output_calls(&bare_wrap, r->o.tools, body);
    for (size_t i = 0; i < OUTPUT_WRAPS && r->o.form->wraps[i].open; i++) {
        const struct output_wrap *w = &r->o.form->wraps[i];
        json_t *calls = strcmp(w->open, r->open) ? NULL : output_calls(w, r->o.tools, body);
        if (calls)
            return calls;
    }
    return NULL;
}

/* The calls are known: [0, end) of what is held was theirs. */
static void output_take(struct output_parser *r, json_t *calls, size_t end)
{
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        if (i < r->ahead.calls) /* emitted already */
            continue;
        const json_t *arguments = json_object_get(call, "arguments");
        r->o.take(r->o.arg, &(struct output_piece){.part = OUTPUT_CALL,
                                                   .text = json_string_value(arguments),
                                                   .n = json_string_length(arguments),
                                                   .name = json_string_value(json_object_get(call, "name")),
                                                   .id = json_string_value(json_object_get(call, "id"))});
    }
    json_decref(calls);
    output_drop(r, end);
    r->at = AT_TEXT;
    r->fresh = r->called = true;
}

/* It is no call, or no whole one: what led to it is text, unless it has gone out as a call, and what follows is looked at
 * again. */
static void output_give_up(struct output_parser *r)
{
    r->at = AT_TEXT;
    if (r->ahead.calls) { /* cut where the next call begins, there is no text */
        output_drop(r, r->ending && r->ahead.at == AHEAD_HEAD ? r->held.len : r->ahead.from);
        r->fresh = r->called = true;
        return;
    }
    if (r->sure && r->ending) {
        output_drop(r, r->held.len);
        return;
    }
    if (!r->open)
        r->begun = true;
    output_put(r, OUTPUT_TEXT, r->body);
}

/* Can this still become a call? A text that only begins like one must not be held back for long. */
static bool output_may_be_call(const struct output_parser *r)
{
    struct output_text t = {r->held.data + r->body, r->held.len - r->body};
    while (t.n && output_is_white(*t.s))
        t.s++, t.n--;
    if (!t.n || output_wrap(r)->shape != SHAPE_JSON || r->open)
        return true;
    for (size_t i = 0; i < t.n && i < 40; i++) { /* {"name", [{"name": the first key decides */
        if (t.s[i] != '"' && t.s[i] != '[' && t.s[i] != '{' && !output_is_white(t.s[i]))
            return false;
        if (t.s[i] != '"')
            continue;
        static const char *const keys[] = {"\"name\"", "\"type\"", "\"function\"", "\"tool_name\"", "\"id\""};
        struct output_text key = {t.s + i, t.n - i};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (output_starts(key, keys[k]) || !strncmp(keys[k], key.s, key.n < 12 ? key.n : 12))
                return true;
        return false;
    }
    return t.n < 40;
}

/* Looks for the next place where the body may end: its end and, in *after, what follows; false = none yet. */
static bool output_next_end(struct output_parser *r, size_t most, size_t *end, size_t *after)
{
    const char *close = output_wrap(r)->close;
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
        if (output_scan(&r->scan, r->held.data[r->seen++])) {
            *end = *after = r->seen;
            return true;
        }
    return false;
}

/* Emits what is certain in [0, end); true: a call has begun there, and is not complete. */
static bool output_go_ahead(struct output_parser *r, size_t end)
{
    output_ahead(&r->ahead, output_wrap(r), &r->o, (struct output_text){r->held.data, end});
    return r->ahead.at == AHEAD_ARGUMENTS;
}

/* Where the model is held to a constraint, a call is what that takes for one. 1, 0 = it is not clear yet, -1 = it is
 * none. */
static int output_is_call(struct output_parser *r)
{
    struct output_text body = {r->held.data + r->body, r->held.len - r->body};
    if (!r->o.ruled)
        return output_may_be_call(r) ? 1 : -1;
    int is = r->sure ? 1 : output_begins(output_wrap(r), r->o.tools, body);
    r->sure = is > 0;
    return is == 0 && (r->ending || body.n > OUTPUT_MOST) ? -1 : is;
}

/* True: something was decided. */
static bool output_step_call(struct output_parser *r)
{
    size_t end, after, limit = r->body + OUTPUT_MOST;
    size_t most = r->held.len < limit ? r->held.len : limit;
    int is = output_is_call(r);
    if (is < 0)
        output_give_up(r);
    if (is <= 0)
        return is < 0;
    while (r->tries < OUTPUT_TRIES && output_next_end(r, most, &end, &after)) {
        json_t *calls = output_go_ahead(r, end) ? NULL : output_try(r, end);
        if (calls) {
            output_take(r, calls, after);
            return true;
        }
        r->tries++;
    }
    bool over = r->tries == OUTPUT_TRIES || most == limit;
    size_t sure = most - output_overlap(r, r->body, most, output_wrap(r)->close);
    bool within = r->tries < OUTPUT_TRIES && output_go_ahead(r, sure);
    if (!over && !r->ending)
        return false;
    /* a model may end where the close would stand, or within it */
    json_t *calls = over || within ? NULL : output_try(r, sure);
    if (calls)
        output_take(r, calls, r->held.len);
    else {
        if (within && !over)
            output_go_ahead(r, most);
        output_give_up(r);
    }
    return true;
}

/* ---- text and reasoning ---- */

static bool output_step_reason(struct output_parser *r)
{
    const char *close = r->o.thought->close, *at = NULL;
    size_t n = strlen(close);
    if (r->held.len)
        at = memmem(r->held.data, r->held.len, close, n);
    if (at) {
        size_t end = (size_t)(at - r->held.data), solid = output_solid(r, end);
        output_put(r, OUTPUT_REASON, solid);
        output_drop(r, end - solid + n);
        r->at = AT_TEXT;
        r->fresh = true;
        return true;
    }
    size_t keep = r->ending && !r->cut ? 0 : output_overlap(r, 0, r->held.len, close);
    output_put(r, OUTPUT_REASON, output_solid(r, r->held.len - keep));
    return false;
}

/* A mark stands at the beginning of what is held, behind `white` bytes of white space. */
static bool output_take_mark(struct output_parser *r, const struct mark *m, size_t white)
{
    bool wait;
    const struct mark *next = NULL;
    size_t at = white + m->n, then = at;
    switch (m->kind) {
    case MARK_WRAP:
        output_enter_call(r, m->text, at);
        return true;
    case MARK_SECTION:
        next = output_mark_after(r, &then, &wait);
        if (wait)
            return false;
        if (next && next->kind == MARK_WRAP)
            output_enter_call(r, next->text, then + next->n);
        else if (next || r->called || r->o.ruled)
            output_drop(r, at);
        else
            output_put(r, OUTPUT_TEXT, at);
        return true;
    case MARK_DROP:
    case MARK_REASON:
        break;
    }
    output_drop(r, at);
    r->fresh = true;
    r->at = m->kind == MARK_REASON ? AT_REASON : AT_TEXT;
    return true;
}

/* Drops the beginning of a mark of calls from the end of a text that was cut. One byte says too little. */
static void output_cut_mark(struct output_parser *r)
{
    size_t most = 1;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct mark *m = &r->marks[i];
        size_t n = m->kind == MARK_DROP || !r->o.tools ? 0 : output_overlap(r, 0, r->held.len, m->text);
        most = n > most ? n : most;
    }
    r->held.len -= most > 1 ? most : 0;
}

static bool output_step_text(struct output_parser *r)
{
    const struct mark *m = NULL;
    bool wait = false;
    size_t at = 0;
    if (!r->begun && r->o.tools && r->o.form->bare) {
        size_t white = 0;
        while (white < r->held.len &&
               (output_is_white(r->held.data[white]) || (r->called && r->held.data[white] == ';')))
            white++;
        if (white == r->held.len && r->called && !r->ending)
            return false;
        if (white < r->held.len && (r->held.data[white] == '{' || r->held.data[white] == '[')) {
            output_enter_call(r, NULL, white);
            return true;
        }
    }
    while (at < r->held.len && !(m = output_mark_at(r, at, &wait)) && !wait)
        at++;
    if (wait)
        m = NULL;
    size_t solid = m || wait || !r->ending ? output_solid(r, at) : at;
    if (solid || (r->ending && !m)) {
        output_put(r, OUTPUT_TEXT, solid);
        at -= solid;
    }
    return m && output_take_mark(r, m, at);
}

static void output_run(struct output_parser *r)
{
    bool on = true;
    while (on && r->held.len)
        on = r->at == AT_TEXT     ? output_step_text(r)
             : r->at == AT_REASON ? output_step_reason(r)
                                  : output_step_call(r);
}

void output_set_arg(struct output_parser *r, void *arg)
{
    r->o.arg = arg;
}

int output_feed(struct output_parser *r, const char *text, size_t n)
{
    if (!buf_add(&r->held, text, n))
        return -1;
    output_run(r);
    return 0;
}

static void output_ignore(void *arg, const struct output_piece *p)
{
    (void)arg;
    (void)p;
}

int output_go_on(struct output_parser *r, const char *text, size_t n)
{
    void (*take)(void *arg, const struct output_piece *p) = r->o.take;
    r->o.take = output_ignore;
    int failed = output_feed(r, text, n);
    r->o.take = take;
    r->begun |= n > 0;
    if (r->at == AT_CALL) { /* what was reported of it was ignored: report it again */
        r->tries = 0;
        r->seen = r->body;
        r->scan = (struct output_scan){0};
        r->ahead = (struct output_ahead){.at = r->o.ruled ? AHEAD_HEAD : AHEAD_OVER, .from = r->body};
    } else
        buf_clear(&r->held);
    return failed;
}

bool output_reasons(const struct output_parser *r)
{
    return r->at == AT_REASON;
}

size_t output_call_begun(const struct output_parser *r)
{
    return r->at == AT_CALL ? r->held.len : 0;
}

int output_end(struct output_parser *r, bool cut)
{
    r->ending = true;
    r->cut = cut;
    if (cut && r->at == AT_TEXT)
        output_cut_mark(r);
    output_run(r);
    return r->held.failed ? -1 : 0;
}
