/* The pre-tokenizer: a list of steps, each of which cuts the pieces of the one before. A piece goes
 * through all the steps, and its words through the model, before the next piece is cut. */
#include "lang/token/tok.h"

#include "base/utf8.h"
#include "lang/token/unicode.h"

#include <string.h>

/* One piece that is being cut. */
struct cut {
    struct tok_work *w;
    int step;
    const char *s;
    bool first;
    size_t from, to; /* the piece that is held back; from == to: none */
    struct scan_memo memo;
    bool is_match; /* the last segment was a match */
};

/* ---- what a step matches ---- */

static bool in_chars(enum pre_chars chars, uint32_t cp)
{
    switch (chars) {
    case CHARS_NUMERIC:
        return unicode_class(cp) & UC_N;
    case CHARS_PUNCT:
        return unicode_is_bert_punct(cp);
    default:
        return unicode_is_space(cp);
    }
}

/* The end of what matches exactly at `at`, or `at`. */
static size_t match_at(const struct pre_step *step, struct scan_memo *memo, const char *s, size_t n,
                       size_t at)
{
    size_t len;
    uint32_t cp;
    switch (step->kind) {
    case PRE_SCAN:
        return scan_match(step->pass, memo, s, n, at);
    case PRE_LITERAL:
        return step->literal.n && n - at >= step->literal.n &&
                       !memcmp(s + at, step->literal.s, step->literal.n)
                   ? at + step->literal.n
                   : at;
    case PRE_CHARS:
        return in_chars(step->chars, unicode_next(s + at, &len)) ? at + len : at;
    default: /* PRE_WORDS */
        cp = unicode_next(s + at, &len);
        if (unicode_is_word(cp)) {
            for (at += len; at < n && unicode_is_word(unicode_next(s + at, &len));)
                at += len;
            return at;
        }
        while (at < n && !unicode_is_word(cp = unicode_next(s + at, &len)) && !unicode_is_space(cp))
            at += len;
        return at;
    }
}

/* The next match at or after `at`: 1 and its place, 0 = none, -1 = an error. Only a regex can match nothing. */
static int find_match(struct cut *c, const struct pre_step *step, const char *s, size_t n, size_t at,
                      size_t hit[2])
{
    if (step->kind == PRE_REGEX)
        return regex_find(step->regex, c->w->run, s, n, at, hit, c->w->e);
    for (size_t len; at < n; at += len) {
        size_t end = match_at(step, &c->memo, s, n, at);
        if (end > at) {
            hit[0] = at;
            hit[1] = end;
            return 1;
        }
        unicode_next(s + at, &len);
    }
    return 0;
}

/* ---- cutting ---- */

static int emit(struct cut *c, size_t from, size_t to)
{
    if (from == to)
        return 0;
    return tok_pre_run(c->w, c->step + 1, c->s + from, to - from, c->first && !from);
}

static int emit_held(struct cut *c, size_t from, size_t to)
{
    size_t a = c->from, b = c->to;
    c->from = from;
    c->to = to;
    return emit(c, a, b);
}

/* One segment of the text, a match or the gap between two. */
static int segment(struct cut *c, enum pre_behaviour how, size_t from, size_t to, bool is_match)
{
    bool was_match = c->is_match;
    c->is_match = is_match;
    switch (how) {
    case SPLIT_ISOLATED:
        return emit(c, from, to);
    case SPLIT_REMOVED:
        return is_match ? 0 : emit(c, from, to);
    case SPLIT_CONTIGUOUS:
        if (c->to > c->from && was_match == is_match) {
            c->to = to;
            return 0;
        }
        return emit_held(c, from, to);
    case SPLIT_PREVIOUS:
        if (c->to > c->from && is_match && !was_match) {
            c->to = to;
            return 0;
        }
        return emit_held(c, from, to);
    default: /* SPLIT_NEXT: a held match joins the gap behind it */
        if (!is_match && was_match && c->to > c->from) {
            c->to = to;
            return emit_held(c, to, to);
        }
        return is_match ? emit_held(c, from, to) : emit(c, from, to);
    }
}

static int run_split(const struct pre_step *step, struct cut *c, const char *s, size_t n)
{
    size_t from = 0, at = 0, hit[2];
    int got = 0;
    while (at <= n && from < n && (got = find_match(c, step, s, n, at, hit)) > 0) {
        if (hit[0] > from && segment(c, step->behaviour, from, hit[0], step->invert))
            return -1;
        if (segment(c, step->behaviour, hit[0], hit[1], !step->invert))
            return -1;
        from = at = hit[1];
        if (hit[1] == hit[0]) {
            size_t len = 1;
            if (at < n)
                unicode_next(s + at, &len);
            at += len;
        }
    }
    if (got < 0 || (from < n && segment(c, step->behaviour, from, n, step->invert)))
        return -1;
    return emit_held(c, 0, 0);
}

/* ---- steps that rewrite ---- */

static int run_metaspace(struct tok_work *w, const struct pre_step *step, struct cut *c, const char *s,
                         size_t n)
{
    struct buf *out = &w->level[c->step];
    tok_grow_begin(w, out, n);
    bool has = n && (s[0] == ' ' || (n >= step->to.n && !memcmp(s, step->to.s, step->to.n)));
    if (!has && (step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && c->first)))
        buf_add(out, step->to.s, step->to.n);
    for (size_t at = 0; at < n; at++) {
        if (s[at] == ' ')
            buf_add(out, step->to.s, step->to.n);
        else
            buf_char(out, s[at]);
    }
    if (tok_grow_end(w, out, n))
        return -1;
    c->s = out->data;
    if (!step->split)
        return emit(c, 0, out->len);
    struct pre_step split = {.kind = PRE_LITERAL, .literal = step->to, .behaviour = SPLIT_NEXT};
    return run_split(&split, c, out->data, out->len);
}

static int run_bytes(struct tok_work *w, const struct pre_step *step, struct cut *c, const char *s, size_t n)
{
    if (step->prefix && n && s[0] == ' ')
        return emit(c, 0, n);
    struct buf *out = &w->level[c->step];
    tok_grow_begin(w, out, n);
    if (step->prefix) {
        buf_char(out, ' ');
        buf_add(out, s, n);
    } else {
        for (size_t at = 0; at < n; at++) {
            char utf8[4];
            buf_add(out, utf8, utf8_put(tok_byte_char((unsigned char)s[at]), utf8));
        }
    }
    if (tok_grow_end(w, out, n))
        return -1;
    c->s = out->data;
    return emit(c, 0, out->len);
}

static int run_fixed(const struct pre_step *step, struct cut *c, const char *s, size_t n)
{
    size_t from = 0, count = 0;
    for (size_t at = 0, len; at < n; at += len) {
        unicode_next(s + at, &len);
        if (count++ == step->length) {
            if (emit(c, from, at))
                return -1;
            from = at;
            count = 1;
        }
    }
    return emit(c, from, n);
}

/* The usual case, one known pattern and then the model: no bookkeeping. */
static int run_scan(struct tok_work *w, const struct scan_pass *pass, const char *s, size_t n)
{
    struct scan_memo memo = {0};
    size_t gap = 0;
    for (size_t at = 0, len; at < n;) {
        size_t end = scan_match(pass, &memo, s, n, at);
        if (end == at) {
            unicode_next(s + at, &len);
            at += len;
            continue;
        }
        if ((gap < at && tok_model_word(w, s + gap, at - gap)) || tok_model_word(w, s + at, end - at))
            return -1;
        at = gap = end;
    }
    return gap < n ? tok_model_word(w, s + gap, n - gap) : 0;
}

int tok_pre_run(struct tok_work *w, int step, const char *s, size_t n, bool first)
{
    if (step == w->t->pre_n)
        return tok_model_word(w, s, n);
    const struct pre_step *p = &w->t->pre[step];
    if (p->kind == PRE_SCAN && step + 1 == w->t->pre_n && p->behaviour == SPLIT_ISOLATED && !p->invert)
        return run_scan(w, p->pass, s, n);
    struct cut c = {.w = w, .step = step, .s = s, .first = first};
    switch (p->kind) {
    case PRE_METASPACE:
        return run_metaspace(w, p, &c, s, n);
    case PRE_BYTES:
        return run_bytes(w, p, &c, s, n);
    case PRE_FIXED:
        return run_fixed(p, &c, s, n);
    default:
        return run_split(p, &c, s, n);
    }
}
