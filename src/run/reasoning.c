#include "run/reasoning.h"

#include "base/mem.h"
#include "run/session.h"

#include <string.h>

enum { MARK_MOST = 64, MARKS_OF_CALLS = OUTPUT_WRAPS + 2 };

/* Finds a mark in a text that comes byte by byte (Knuth, Morris, Pratt). */
struct mark_search {
    const char *mark; /* NULL = never found */
    size_t n, at;     /* at: bytes at the end of the text that begin the mark */
    uint8_t back[MARK_MOST];
};

static void mark_search_begin(struct mark_search *s, const char *mark)
{
    size_t n = mark ? strlen(mark) : 0;
    *s = (struct mark_search){.mark = n && n < MARK_MOST ? mark : NULL, .n = n};
    for (size_t i = 1, k = 0; s->mark && i < n; i++) {
        while (k && mark[i] != mark[k])
            k = s->back[k - 1];
        k += mark[i] == mark[k];
        s->back[i] = (uint8_t)k;
    }
}

/* True: the mark ends with this byte. */
static bool mark_search_feed(struct mark_search *s, char c)
{
    if (!s->mark)
        return false;
    while (s->at && s->mark[s->at] != c)
        s->at = s->back[s->at - 1];
    s->at += s->mark[s->at] == c;
    if (s->at < s->n)
        return false;
    s->at = 0;
    return true;
}

enum reasoning_at { AT_TEXT, AT_REASONING, AT_CALLS };

struct reasoning {
    const struct tokenizer *tokenizer;
    struct reasoning_rule rule;
    struct mark_search open, close, calls[MARKS_OF_CALLS];
    enum reasoning_at at;
    uint32_t count,
        marked; /* tokens since the mark; the last of them that are the beginning of the closing one */
    bool spent; /* the budget has ended the reasoning before */
    /* ends[k] closes the reasoning where the text ends with k bytes of the mark; ends[n + k] goes on to the answer, too */
    struct ids *ends;
    const struct ids *forced; /* NULL = none */
    size_t forced_at;
};

static int reasoning_encode(struct reasoning *r, const struct output_thought *t, struct err *e)
{
    struct buf text = {0};
    int failed = 0;
    for (size_t k = 0; k < 2 * r->close.n && !failed; k++) {
        bool then = k >= r->close.n;
        buf_clear(&text);
        buf_str(&text, t->close + k % r->close.n);
        buf_str(&text, then && t->then ? t->then : "");
        failed = text.failed
                     ? err_memory(e, "a request", 1)
                     : tokenizer_encode(r->tokenizer, text.data, text.len, TOK_SPECIAL, &r->ends[k], e);
    }
    buf_free(&text);
    return failed;
}

/* The budget is used up: sets what closes the reasoning. The answer follows at once where no tool can be called, and where
 * the model has opened the reasoning again. */
static void reasoning_check(struct reasoning *r)
{
    if (r->at != AT_REASONING || r->count < r->rule.most || r->forced)
        return;
    bool then = !r->rule.calls || r->spent;
    r->forced = &r->ends[r->close.at + (then ? r->close.n : 0)];
    r->forced_at = 0;
    r->spent = true;
}

int reasoning_open(struct reasoning **out, const struct reasoning_rule *rule, const struct session *l,
                   struct err *e)
{
    *out = NULL;
    if (!rule->counted || !l->thought || !l->tokenizer)
        return 0;
    struct reasoning *r = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(e, "a request", sizeof *r);
    r->tokenizer = l->tokenizer;
    r->rule = *rule;
    mark_search_begin(&r->open, l->thought->open);
    mark_search_begin(&r->close, l->thought->close);
    for (size_t i = 0; i < OUTPUT_WRAPS && rule->calls; i++)
        mark_search_begin(&r->calls[i], l->form->wraps[i].open);
    for (size_t i = 0; i < 2 && rule->calls; i++)
        mark_search_begin(&r->calls[OUTPUT_WRAPS + i], l->form->section[2 * i]);
    r->at = rule->open ? AT_REASONING : AT_TEXT;
    if (rule->most != REASONING_UNLIMITED) {
        r->ends = mem_zalloc(2 * r->close.n, sizeof *r->ends);
        if (!r->ends || reasoning_encode(r, l->thought, e)) {
            int failed = r->ends ? -1 : err_memory(e, "a request", 2 * r->close.n * sizeof *r->ends);
            reasoning_close(r);
            return failed;
        }
        reasoning_check(r);
    }
    *out = r;
    return 0;
}

void reasoning_close(struct reasoning *r)
{
    if (!r)
        return;
    for (size_t i = 0; r->ends && i < 2 * r->close.n; i++)
        ids_free(&r->ends[i]);
    mem_free(r->ends);
    mem_free(r);
}

int32_t reasoning_forced(const struct reasoning *r)
{
    return r && r->forced && r->forced_at < r->forced->len ? r->forced->data[r->forced_at] : -1;
}

uint32_t reasoning_count(const struct reasoning *r)
{
    return r ? r->count : 0;
}

/* True: the reasoning ends here. */
static bool reasoning_byte(struct reasoning *r, char c)
{
    if (r->at == AT_REASONING) {
        if (!mark_search_feed(&r->close, c))
            return false;
        r->at = AT_TEXT;
        return true;
    }
    for (size_t i = 0; i < MARKS_OF_CALLS && r->rule.calls; i++)
        if (mark_search_feed(&r->calls[i], c))
            r->at = AT_CALLS;
    if (mark_search_feed(&r->open, c) && r->at == AT_TEXT)
        r->at = AT_REASONING;
    return false;
}

/* A token of reasoning, until the mark that closes it turns out to have begun with it. */
static void reasoning_note(struct reasoning *r, size_t bytes)
{
    r->count++;
    if (!r->close.at)
        r->marked = 0;
    else if (bytes <= r->close.at) /* all of it is the beginning of the mark */
        r->marked = bytes == r->close.at ? 1 : r->marked + 1;
    else
        r->marked = 0;
}

void reasoning_accept(struct reasoning *r, int32_t id)
{
    if (!r)
        return;
    size_t n = 0;
    const char *text = tokenizer_token_bytes(r->tokenizer, id, &n);
    bool forced = id == reasoning_forced(r), before = r->at == AT_REASONING;
    for (size_t i = 0; text && i < n; i++)
        if (reasoning_byte(r, text[i])) {
            r->count -= r->marked;
            r->count += before && i + 1 > r->close.n; /* the token begins before the mark */
            r->marked = 0;
        }
    if (forced) {
        r->forced = ++r->forced_at < r->forced->len ? r->forced : NULL;
        return;
    }
    if (before && r->at == AT_REASONING)
        reasoning_note(r, n);
    else
        r->forced = NULL; /* a constraint did not allow it, and the model has ended the reasoning itself */
    reasoning_check(r);
}

bool reasoning_begins(const struct session *l, const struct ids *ids)
{
    enum { TAIL = 32 };
    struct buf text = {0};
    struct err e = {0};
    size_t n = ids->len < TAIL ? ids->len : TAIL;
    bool begins = l->thought && l->tokenizer &&
                  !tokenizer_decode(l->tokenizer, ids->data + ids->len - n, n, false, &text, &e) &&
                  text.data && output_is_thinking(l->thought, text.data, text.len);
    buf_free(&text);
    return begins;
}

uint32_t reasoning_effort(const char *effort)
{
    static const struct {
        const char *name;
        uint32_t most;
    } efforts[] = {{"none", 0}, {"minimal", 512}, {"low", 1024}, {"medium", 8192}, {"high", 24576}};
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (!strcmp(effort, efforts[i].name))
            return efforts[i].most;
    return REASONING_UNLIMITED;
}
